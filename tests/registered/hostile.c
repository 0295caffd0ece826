/* SPDX-License-Identifier: Apache-2.0 */
/* hostile.c - a client that rewrites its ring and its lists all the time, while it puts calls, moves indices, sends messages, punches
 * holes and hangs up. What becomes of the daemon is for the script to see.
 *
 *     hostile SOCKET KEY ROUNDS SEQUENCE [SEED [gpu]]
 *
 * gpu: it has a region of GPU memory, too, and rewrites that where this process can map it, as on a driver that is a stub.
 * A round is one of these things; a client that has been ended comes again. Ends with 0 when the rounds are over, with 1 when the daemon is
 * not there any more. */
#include "clients/registered/client.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GPU_BYTES = 2 << 20, REGION_BYTES = 1 << 20, LISTS_BYTES = 4096, CALLS_AT_ONCE = 8, TRIES = 200 };

static struct registered_client client;
static struct registered_region region, on_gpu; /* on_gpu: memory NULL if it cannot be mapped */
static bool gpu;
static uint64_t sequence;
static atomic_bool scribbles, ends;
static atomic_uint pauses; /* the scribbler has stopped so often */

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A number that may be believed. */
static uint64_t number(uint64_t *state)
{
    switch (next(state) % 7) {
    case 0:
        return next(state) % 4;
    case 1:
        return UINT64_MAX - next(state) % 4;
    case 2:
        return UINT32_MAX - next(state) % 4;
    case 3:
        return UINT64_C(1) << next(state) % 64;
    case 4:
        return REGION_BYTES - next(state) % 65536;
    case 5:
        return sequence;
    default:
        return next(state) % REGION_BYTES;
    }
}

/* Rewrite a word somewhere in the ring or in the lists. */
static void scribble(uint64_t *state)
{
    uint64_t value = number(state), at = next(state);
    uint32_t half = (uint32_t)value;
    bool wide = next(state) % 2;
    if (on_gpu.memory && at % 8 == 0) { /* q, k and v */
        __atomic_store_n((uint64_t *)(void *)(on_gpu.memory + next(state) % GPU_BYTES / 8 * 8), value,
                         __ATOMIC_RELAXED);
        return;
    }
    void *to = next(state) % 4
                   ? (uint8_t *)client.ring + (at % 3 ? 4096 + at % (sizeof client.ring->calls) / 8 * 8
                                                      : at % sizeof *client.ring / 8 * 8)
                   : region.memory + at % LISTS_BYTES / 8 * 8;
    if (wide)
        __atomic_store_n((uint64_t *)to, value, __ATOMIC_RELAXED);
    else
        __atomic_store_n((uint32_t *)to, half, __ATOMIC_RELAXED);
}

static void *scribbler(void *cookie)
{
    uint64_t state = *(uint64_t *)cookie;
    while (!atomic_load(&ends)) {
        if (atomic_load(&scribbles))
            scribble(&state);
        else
            atomic_fetch_add(&pauses, 1);
    }
    return NULL;
}

/* The ring is not touched from here on. */
static void stop_scribbling(void)
{
    atomic_store(&scribbles, false);
    unsigned seen = atomic_load(&pauses);
    while (atomic_load(&pauses) < seen + 2) {
    }
}

static void hang_up(void)
{
    stop_scribbling();
    if (region.memory)
        munmap(region.memory, region.bytes);
    if (on_gpu.memory)
        munmap(on_gpu.memory, on_gpu.bytes);
    region = on_gpu = (struct registered_region){0};
    registered_close(&client);
}

static void ask_for_gpu_memory(void)
{
    const struct registered_message m = {.kind = REGISTERED_GPU_REGION, .bytes = GPU_BYTES};
    int fd = -1;
    if (!gpu || !registered_ask(&client, &m, -1, &fd)) /* others may have all */
        return;
    void *memory = mmap(NULL, client.answer.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    on_gpu = (struct registered_region){client.answer.region, client.answer.bytes,
                                        memory == MAP_FAILED ? NULL : memory};
    close(fd);
}

/* Come, again if need be: others may have all places. */
static bool come(const char *path, const char *key)
{
    for (int i = 0; i < TRIES; i++) {
        hang_up();
        if (registered_open(&client, path, key) && registered_make_region(&client, REGION_BYTES, &region)) {
            memcpy(region.memory, &sequence, sizeof sequence);
            ask_for_gpu_memory();
            atomic_store(&scribbles, true);
            return true;
        }
        usleep(10000);
    }
    printf("the daemon is not there: %s\n", client.answer.detail);
    return false;
}

static bool has_ended(void)
{
    char byte;
    return recv(client.socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN;
}

static void ring_bell(void)
{
    const uint64_t one = 1;
    (void)!write(client.bell, &one, sizeof one);
}

/* Calls that are nearly right, when they are written. */
static void put_calls(uint64_t *state)
{
    for (unsigned n = (unsigned)(next(state) % CALLS_AT_ONCE); n-- > 0;) {
        struct registered_call call = {.tag = next(state),
                                       .kind = 1 + (uint32_t)(next(state) % 2),
                                       .region = region.number,
                                       .sequence_count = 1,
                                       .rows = 1,
                                       .tensors = gpu && next(state) % 2 ? on_gpu.number + 1 : 0,
                                       .retry = (uint32_t)(next(state) % 8 == 0),
                                       .counts = REGISTERED_NONE,
                                       .positions = next(state) % 2 ? 256 : REGISTERED_NONE,
                                       .q = 8192,
                                       .k = next(state) % 2 ? 65536 : REGISTERED_NONE,
                                       .o = 262144,
                                       .lse = next(state) % 2 ? 300000 : REGISTERED_NONE};
        call.v = call.k;
        client.tail = __atomic_load_n(&client.ring->calls_tail.value, __ATOMIC_RELAXED);
        memcpy(&client.ring->calls[client.tail % REGISTERED_CALLS], &call, sizeof call);
        __atomic_store_n(&client.ring->calls_tail.value, client.tail + 1, __ATOMIC_RELEASE);
    }
    ring_bell();
}

/* A message, with descriptors, of which some make sense. */
static void send_something(uint64_t *state)
{
    struct registered_message m = {.kind = (uint32_t)(next(state) % (gpu ? 10 : 6)),
                                   .version = REGISTERED_VERSION,
                                   .bytes = next(state) % 2 ? number(state) : 65536,
                                   .region = (uint32_t)(next(state) % 10),
                                   .key_bytes = gpu && next(state) % 2 ? REGISTERED_IPC_BYTES : 0,
                                   .writes = (uint32_t)(next(state) % 2)};
    int fd = -1;
    if (next(state) % 2) {
        fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        (void)!ftruncate(fd, 65536);
        (void)fcntl(fd, F_ADD_SEALS,
                    next(state) % 4 ? F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL : F_SEAL_SHRINK);
    }
    (void)registered_ask(&client, &m, fd, NULL);
    if (fd >= 0)
        close(fd);
}

static void do_something(uint64_t *state, const char *path, const char *key)
{
    switch (next(state) % 16) {
    case 0:
        send_something(state);
        break;
    case 1: /* an index jumps */
        __atomic_store_n(&client.ring->calls_tail.value, (uint32_t)number(state), __ATOMIC_RELEASE);
        ring_bell();
        break;
    case 2:
        __atomic_store_n(&client.ring->done_head.value, (uint32_t)number(state), __ATOMIC_RELEASE);
        break;
    case 3: /* what is not there any more reads as zeros */
        (void)madvise(region.memory + next(state) % REGION_BYTES / 4096 * 4096, 4096, MADV_REMOVE);
        (void)madvise((uint8_t *)client.ring + next(state) % 7 * 4096, 4096, MADV_REMOVE);
        break;
    case 4: /* flags of an open file are shared: a read of the bell would wait now */
        (void)fcntl(client.bell, F_SETFL, O_NONBLOCK);
        (void)!read(client.bell, &(uint64_t){0}, sizeof(uint64_t));
        (void)fcntl(client.bell, F_SETFL, 0);
        break;
    case 5:
        if (next(state) % 8 == 0)
            (void)come(path, key);
        break;
    default:
        put_calls(state);
        break;
    }
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 5)
        return 2;
    uint64_t state = argc > 5 ? strtoull(argv[5], NULL, 0) : 1, seed = state * 77 + 1;
    unsigned long rounds = strtoul(argv[3], NULL, 0), lives = 0;
    sequence = strtoull(argv[4], NULL, 0);
    gpu = argc > 6 && strcmp(argv[6], "gpu") == 0;
    client.socket = client.bell = -1;
    if (pthread_create(&thread, NULL, scribbler, &seed) != 0)
        return 2;
    for (unsigned long i = 0; i < rounds; i++) {
        if (client.socket < 0 || has_ended()) {
            lives++;
            if (!come(argv[1], argv[2]))
                return 1;
        }
        do_something(&state, argv[1], argv[2]);
    }
    hang_up();
    atomic_store(&ends, true);
    pthread_join(thread, NULL);
    printf("%lu rounds, %lu lives\n", rounds, lives);
    return 0;
}
