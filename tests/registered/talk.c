/* SPDX-License-Identifier: Apache-2.0 */
/* talk.c - a client with registered memory that does what it reads, a line at a time, and prints what came of it: for scripts.
 *
 *     talk SOCKET <<'END'
 *     open KEY | -            say who it is            hello VERSION KEY_BYTES   likewise, wrong
 *     region BYTES            have one made; the latest is used from then on
 *     own BYTES SEALS         register a memfd of its own: w grow shrink seal, as letters g s S w; a: opened to append; f: a file
 *     close NUMBER            close a region
 *     raw KIND BYTES RIGHTS   send a message with that many descriptors
 *     load OFFSET FILE        copy a file into the region           save OFFSET BYTES FILE
 *     u64 OFFSET N...         numbers into the region               u32, f32
 *     call MEMBER=VALUE...    a call: what is not named is 0, or for offsets none
 *     put, wait, go           put it; print a completion; both
 *     tail N, head N          move an index by that much
 *     end                     print the message with which the daemon ends the client
 *     sync FILE               create a file, and wait until it is removed
 *     END */
#include "clients/registered/client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORDS_MAX = 4096, SPIN_US = 20 };

static struct registered_client client = {.socket = -1, .bell = -1};
static struct registered_region regions[REGISTERED_REGIONS];
static struct registered_region *region = &regions[0];
static struct registered_call call;

static void say(bool good)
{
    const struct registered_answer *a = &client.answer;
    if (good)
        printf("ok %u %llu\n", a->region, (unsigned long long)a->bytes);
    else
        printf("%u %s %s\n", a->status, a->code, a->detail);
}

static void keep(const struct registered_region *made, bool good)
{
    if (good) {
        region = &regions[made->number];
        *region = *made;
    }
    say(good);
}

static uint8_t *at(uint64_t offset)
{
    if (!region->memory || offset > region->bytes) {
        printf("no such place\n");
        exit(1);
    }
    return region->memory + offset;
}

static void use_own(uint64_t bytes, const char *seals)
{
    struct registered_region made;
    int fd = strchr(seals, 'f') ? open(".", O_TMPFILE | O_RDWR, 0600)
                                : memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) {
        printf("no memfd\n");
        return;
    }
    (void)fcntl(fd, F_ADD_SEALS,
                (strchr(seals, 'g') ? F_SEAL_GROW : 0) | (strchr(seals, 's') ? F_SEAL_SHRINK : 0) |
                    (strchr(seals, 'S') ? F_SEAL_SEAL : 0) | (strchr(seals, 'w') ? F_SEAL_WRITE : 0));
    if (strchr(seals, 'a'))
        (void)fcntl(fd, F_SETFL, O_APPEND);
    bool good = registered_use_region(&client, fd, bytes + (strchr(seals, '+') ? 1 : 0), &made);
    close(fd);
    keep(&made, good);
}

/* A message with descriptors that are none of a memfd. */
static void send_raw(unsigned kind, uint64_t bytes, unsigned rights)
{
    const struct registered_message m = {.kind = kind, .bytes = bytes};
    char control[CMSG_SPACE(16 * sizeof(int))] = {0};
    struct iovec part = {(void *)(uintptr_t)&m, sizeof m};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (rights) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(rights * sizeof(int));
        struct cmsghdr *h = CMSG_FIRSTHDR(&message);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(rights * sizeof(int));
        for (unsigned i = 0; i < rights; i++)
            memcpy(CMSG_DATA(h) + i * sizeof(int), &(int){STDOUT_FILENO}, sizeof(int));
    }
    if (sendmsg(client.socket, &message, 0) < 0 ||
        recv(client.socket, &client.answer, sizeof client.answer, 0) != (ssize_t)sizeof client.answer)
        printf("no answer\n");
    else
        say(client.answer.status == 200);
}

static void store_numbers(const char *kind, char **words, int n)
{
    uint8_t *to = at(strtoull(words[0], NULL, 0));
    for (int i = 1; i < n; i++) {
        char *value = words[i], *star = strchr(value, '*');
        unsigned long times = star ? strtoul(value, NULL, 0) : 1;
        value = star ? star + 1 : value;
        for (unsigned long k = 0; k < times; k++) {
            uint64_t wide = strtoull(value, NULL, 0);
            uint32_t narrow = (uint32_t)wide;
            float number = strtof(value, NULL);
            const void *from = kind[0] == 'f'   ? (void *)&number
                               : kind[1] == '6' ? (void *)&wide
                                                : (void *)&narrow;
            size_t bytes = kind[1] == '6' ? 8 : 4;
            memcpy(to, from, bytes);
            to += bytes;
        }
    }
}

static const struct {
    const char *name;
    size_t offset, bytes;
} members[] = {
#define XX(name) {#name, offsetof(struct registered_call, name), sizeof(((struct registered_call *)0)->name)},
    XX(tag) XX(kind) XX(region) XX(layer) XX(kernel) XX(kv_stored) XX(timeout_ms) XX(sequence_count) XX(rows)
        XX(token_count) XX(sequences) XX(counts) XX(positions) XX(tokens) XX(q) XX(k) XX(v) XX(o) XX(lse)
#undef XX
};

static void make_call(char **words, int n)
{
    call = (struct registered_call){.region = region->number};
    call.counts = call.positions = call.k = call.v = call.lse = REGISTERED_NONE;
    for (int i = 0; i < n; i++) {
        char *value = strchr(words[i], '=');
        size_t m = 0;
        while (value && m < sizeof members / sizeof members[0] &&
               (strncmp(members[m].name, words[i], (size_t)(value - words[i])) != 0 ||
                members[m].name[value - words[i]] != '\0'))
            m++;
        if (!value || m == sizeof members / sizeof members[0]) {
            printf("no such member: %s\n", words[i]);
            exit(1);
        }
        uint64_t number = strtoull(value + 1, NULL, 0);
        memcpy((char *)&call + members[m].offset, &number, members[m].bytes);
    }
}

static void copy_file(uint64_t offset, const char *name, long bytes)
{
    FILE *f = fopen(name, bytes < 0 ? "rb" : "wb");
    size_t n = !f          ? 0
               : bytes < 0 ? fread(at(offset), 1, (size_t)(region->bytes - offset), f)
                           : fwrite(at(offset), 1, (size_t)bytes, f);
    if (!f || (bytes >= 0 && n != (size_t)bytes))
        printf("cannot copy %s\n", name);
    if (f)
        fclose(f);
}

static void put(void)
{
    if (!registered_put(&client, &call))
        printf("full\n");
}

static void wait_for_one(void)
{
    struct registered_completion c;
    if (!registered_wait(&client, SPIN_US, &c))
        printf("the daemon is gone\n");
    else if (c.status == 200)
        printf("ok %llu\n", (unsigned long long)c.tag);
    else
        printf("%u %s %s\n", c.status, c.code, c.detail);
}

static void sync_by(const char *name)
{
    FILE *f = fopen(name, "w");
    if (f)
        fclose(f);
    while (access(name, F_OK) == 0)
        usleep(2000);
}

static void obey(const char *path, char **w, int n)
{
    const char *what = w[0];
    struct registered_region made = {0};
    if (strcmp(what, "open") == 0) {
        say(registered_open(&client, path, n > 1 && strcmp(w[1], "-") != 0 ? w[1] : ""));
    } else if (strcmp(what, "hello") == 0) {
        const struct registered_message m = {.kind = REGISTERED_HELLO,
                                             .version = (uint32_t)strtoul(w[1], NULL, 0),
                                             .key_bytes = (uint32_t)strtoul(w[2], NULL, 0)};
        say(registered_ask(&client, &m, -1, NULL));
    } else if (strcmp(what, "region") == 0) {
        bool good = registered_make_region(&client, strtoull(w[1], NULL, 0), &made);
        keep(&made, good);
    } else if (strcmp(what, "own") == 0) {
        use_own(strtoull(w[1], NULL, 0), n > 2 ? w[2] : "");
    } else if (strcmp(what, "close") == 0) {
        made.number = (uint32_t)strtoul(w[1], NULL, 0);
        say(registered_close_region(&client,
                                    made.number < REGISTERED_REGIONS ? &regions[made.number] : &made));
    } else if (strcmp(what, "raw") == 0) {
        send_raw((unsigned)strtoul(w[1], NULL, 0), strtoull(w[2], NULL, 0), (unsigned)strtoul(w[3], NULL, 0));
    } else if (strcmp(what, "load") == 0) {
        copy_file(strtoull(w[1], NULL, 0), w[2], -1);
    } else if (strcmp(what, "save") == 0) {
        copy_file(strtoull(w[1], NULL, 0), w[3], strtol(w[2], NULL, 0));
    } else if (strcmp(what, "call") == 0) {
        make_call(w + 1, n - 1);
    } else if (strcmp(what, "put") == 0) {
        put();
    } else if (strcmp(what, "wait") == 0) {
        wait_for_one();
    } else if (strcmp(what, "go") == 0) {
        put();
        wait_for_one();
    } else if (strcmp(what, "tail") == 0) {
        __atomic_fetch_add(&client.ring->calls_tail.value, (uint32_t)strtol(w[1], NULL, 0), __ATOMIC_SEQ_CST);
        (void)!write(client.bell, &(uint64_t){1}, sizeof(uint64_t));
    } else if (strcmp(what, "head") == 0) {
        __atomic_fetch_add(&client.ring->done_head.value, (uint32_t)strtol(w[1], NULL, 0), __ATOMIC_SEQ_CST);
    } else if (strcmp(what, "end") == 0) {
        ssize_t got = recv(client.socket, &client.answer, sizeof client.answer, 0);
        if (got != (ssize_t)sizeof client.answer)
            client.answer = (struct registered_answer){.detail = "nothing is said"};
        say(false);
    } else if (strcmp(what, "sync") == 0) {
        sync_by(w[1]);
    } else {
        store_numbers(what, w + 1, n - 1);
    }
}

int main(int argc, char **argv)
{
    static char line[1 << 16];
    char *words[WORDS_MAX];
    if (argc != 2)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        int n = 0;
        for (char *word = strtok(line, " \t\n"); word && n < WORDS_MAX; word = strtok(NULL, " \t\n"))
            words[n++] = word;
        if (n && words[0][0] != '#')
            obey(argv[1], words, n);
    }
    registered_close(&client);
    return 0;
}
