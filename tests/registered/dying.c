/* SPDX-License-Identifier: Apache-2.0 */
/* dying.c - clients that register memory, append, attend, and are killed, at every stage in turn.
 *
 *     dying SOCKET KEY CLIENTS SEQUENCE
 *
 * Some live at a time. The sequence has a token at each layer; what is appended to it is at a position that it does not have, but for one token. */
#include "clients/registered/client.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    AT_A_TIME = 8,
    STAGES = 14,
    REGION_BYTES = 16 << 20,
    OWN_BYTES = 1 << 20,
    LARGE_ROWS = 8192, /* of 2 heads of 64, bf16: 2 MiB of k, and of v */
    FAR = 100000000
};

static const char *path, *key;
static uint64_t sequence;
static struct registered_client client = {.socket = -1, .bell = -1};
static struct registered_region region;

static _Noreturn void die(void)
{
    (void)kill(getpid(), SIGKILL);
    abort();
}

static void die_at(int stage, int now)
{
    if (stage == now)
        die();
}

static void say(const struct registered_message *m)
{
    if (send(client.socket, m, sizeof *m, MSG_NOSIGNAL) < 0)
        die();
}

static void connect_only(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    client.socket = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(client.socket, (struct sockaddr *)&address, sizeof address) != 0)
        die();
}

/* A memfd of the client's own. */
static int make_own(void)
{
    int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(fd, OWN_BYTES) != 0)
        die();
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    return fd;
}

static struct registered_call call_of(enum registered_call_kind kind, uint32_t rows)
{
    return (struct registered_call){.kind = kind,
                                    .region = region.number,
                                    .sequence_count = 1,
                                    .rows = rows,
                                    .counts = 64,
                                    .positions = kind == REGISTERED_APPEND ? 128 : REGISTERED_NONE,
                                    .q = 1 << 20,
                                    .k = kind == REGISTERED_APPEND ? 1 << 20 : REGISTERED_NONE,
                                    .v = kind == REGISTERED_APPEND ? 8 << 20 : REGISTERED_NONE,
                                    .o = 4 << 20,
                                    .lse = 5 << 20};
}

static void write_lists(uint32_t rows, uint32_t position)
{
    memcpy(region.memory, &sequence, sizeof sequence);
    memcpy(region.memory + 64, &rows, sizeof rows);
    memcpy(region.memory + 128, &position, sizeof position);
}

/* A life, until `stage`. */
static _Noreturn void live(int stage)
{
    const struct registered_message ask_region = {.kind = REGISTERED_REGION, .bytes = REGION_BYTES};
    struct registered_message hello = {
        .kind = REGISTERED_HELLO, .version = REGISTERED_VERSION, .key_bytes = (uint32_t)strlen(key)};
    struct registered_region own;
    struct registered_completion done;
    snprintf(hello.key, sizeof hello.key, "%s", key);
    if (stage < 2) {
        connect_only();
        die_at(stage, 0);
        say(&hello); /* whose answer nobody takes */
        die();
    }
    if (!registered_open(&client, path, key))
        die();
    die_at(stage, 2);
    if (stage == 3) {
        say(&ask_region);
        say(&ask_region);
        die();
    }
    if (!registered_make_region(&client, REGION_BYTES, &region))
        die();
    die_at(stage, 4);
    if (!registered_use_region(&client, make_own(), OWN_BYTES, &own))
        die();
    die_at(stage, 5);
    struct registered_call large = call_of(REGISTERED_APPEND, LARGE_ROWS),
                           attend = call_of(REGISTERED_ATTEND, 1);
    write_lists(LARGE_ROWS, FAR);
    if (stage == 6) { /* half of what a call takes */
        memcpy(&client.ring->calls[0], &large, sizeof large);
        die();
    }
    (void)registered_put(&client, &large); /* which is being copied */
    die_at(stage, 7);
    if (!registered_wait(&client, 0, &done))
        die();
    die_at(stage, 8);
    write_lists(1, 1);
    for (int i = 0; i < REGISTERED_CALLS; i++)
        (void)registered_put(&client, &attend);
    die_at(stage, 9);
    if (!registered_wait(&client, 0, &done))
        die();
    die_at(stage, 10);
    const struct registered_message close_it = {.kind = REGISTERED_CLOSE_REGION, .region = region.number};
    say(&close_it);
    die_at(stage, 11);
    for (int i = 1; i < REGISTERED_CALLS; i++) {
        if (!registered_wait(&client, 0, &done))
            die();
    }
    die_at(stage, 12);
    shutdown(client.socket, SHUT_WR);
    die();
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    path = argv[1];
    key = argv[2];
    sequence = strtoull(argv[4], NULL, 0);
    long clients = strtol(argv[3], NULL, 0), ended = 0;
    for (long i = 0; i < clients + AT_A_TIME; i++) {
        int status;
        if (i >= AT_A_TIME && wait(&status) > 0)
            ended++;
        if (i < clients && fork() == 0)
            live((int)(i % STAGES));
    }
    printf("%ld clients\n", ended);
    return 0;
}
