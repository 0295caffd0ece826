/* SPDX-License-Identifier: Apache-2.0 */
/* client.c - see client.h. */
#include "clients/registered/client.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    LOOK_S = 1,
    RIGHTS = 2
}; /* LOOK_S: between two looks whether the daemon is there, while it is waited for */

static bool fail(struct registered_client *c, const char *what)
{
    c->answer = (struct registered_answer){0};
    snprintf(c->answer.detail, sizeof c->answer.detail, "%s: %s", what, strerror(errno));
    return false;
}

/* ---- the socket ---------------------------------------------------------------------------------- */

static bool send_message(int socket, const struct registered_message *m, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)m, sizeof *m};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        control.header = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
}

/* An answer, and descriptors that come with it; those that do not are -1. */
static bool take_answer(int socket, struct registered_answer *answer, int fds[RIGHTS])
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(RIGHTS * sizeof(int))];
    } control;
    struct iovec part = {answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    ssize_t n;
    while ((n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
    }
    struct cmsghdr *rights = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights && rights->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(rights), rights->cmsg_len - CMSG_LEN(0));
    if (n == 0)
        errno = ECONNRESET;
    return n == (ssize_t)sizeof *answer;
}

static bool ask(struct registered_client *c, const struct registered_message *m, int fd, int fds[RIGHTS])
{
    fds[0] = fds[1] = -1;
    if (!send_message(c->socket, m, fd) && errno != EPIPE) /* why it has ended may still be said */
        return fail(c, "send");
    if (!take_answer(c->socket, &c->answer, fds))
        return fail(c, "the daemon");
    return c->answer.status == 200;
}

bool registered_ask(struct registered_client *c, const struct registered_message *m, int fd, int *taken)
{
    int fds[RIGHTS];
    bool good = ask(c, m, fd, fds);
    if (fds[1] >= 0)
        close(fds[1]);
    if (taken)
        *taken = fds[0];
    else if (fds[0] >= 0)
        close(fds[0]);
    return good;
}

bool registered_open(struct registered_client *c, const char *path, const char *key)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct registered_message hello = {
        .kind = REGISTERED_HELLO, .version = REGISTERED_VERSION, .key_bytes = (uint32_t)strlen(key)};
    int fds[RIGHTS];
    *c = (struct registered_client){.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), .bell = -1};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    snprintf(hello.key, sizeof hello.key, "%s", key);
    if (c->socket < 0 || connect(c->socket, (struct sockaddr *)&address, sizeof address) != 0)
        return fail(c, path);
    if (!ask(c, &hello, -1, fds))
        return false;
    void *ring = mmap(NULL, sizeof *c->ring, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    close(fds[0]);
    c->bell = fds[1];
    if (ring == MAP_FAILED)
        return fail(c, "mapping the ring");
    c->ring = ring;
    return true;
}

void registered_close(struct registered_client *c)
{
    if (c->ring)
        munmap(c->ring, sizeof *c->ring);
    if (c->bell >= 0)
        close(c->bell);
    if (c->socket >= 0)
        close(c->socket);
    *c = (struct registered_client){.socket = -1, .bell = -1};
}

static bool map_region(struct registered_client *c, int fd, struct registered_region *region)
{
    void *memory = mmap(NULL, c->answer.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *region = (struct registered_region){
        .number = c->answer.region, .bytes = c->answer.bytes, .memory = memory == MAP_FAILED ? NULL : memory};
    return memory != MAP_FAILED || fail(c, "mapping a region");
}

bool registered_make_region(struct registered_client *c, uint64_t bytes, struct registered_region *region)
{
    const struct registered_message m = {.kind = REGISTERED_REGION, .bytes = bytes};
    int fd;
    if (!registered_ask(c, &m, -1, &fd))
        return false;
    bool good = map_region(c, fd, region);
    close(fd);
    return good;
}

bool registered_use_region(struct registered_client *c, int fd, uint64_t bytes,
                           struct registered_region *region)
{
    const struct registered_message m = {.kind = REGISTERED_OWN_REGION, .bytes = bytes};
    return registered_ask(c, &m, fd, NULL) && map_region(c, fd, region);
}

bool registered_close_region(struct registered_client *c, struct registered_region *region)
{
    const struct registered_message m = {.kind = REGISTERED_CLOSE_REGION, .region = region->number};
    if (region->memory)
        munmap(region->memory, region->bytes);
    region->memory = NULL;
    return registered_ask(c, &m, -1, NULL);
}

/* ---- the ring ------------------------------------------------------------------------------------ */

bool registered_put(struct registered_client *c, const struct registered_call *call)
{
    const uint64_t one = 1;
    if (c->tail - c->head == REGISTERED_CALLS)
        return false;
    memcpy(&c->ring->calls[c->tail % REGISTERED_CALLS], call, sizeof *call);
    registered_store_and_look(&c->ring->calls_tail,
                              ++c->tail); /* the daemon sets `asleep`, and looks at calls_tail */
    if (registered_load(&c->ring->asleep)) {
        c->bells++;
        (void)!write(c->bell, &one, sizeof one);
    }
    return true;
}

bool registered_take(struct registered_client *c, struct registered_completion *completion)
{
    if (registered_load(&c->ring->done_tail) == c->head)
        return false;
    memcpy(completion, &c->ring->completions[c->head % REGISTERED_CALLS], sizeof *completion);
    registered_store(&c->ring->done_head, ++c->head);
    return true;
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static bool is_gone(const struct registered_client *c)
{
    struct pollfd hangup = {.fd = c->socket, .events = POLLRDHUP};
    return poll(&hangup, 1, 0) != 0;
}

bool registered_wait(struct registered_client *c, unsigned spin_us, struct registered_completion *completion)
{
    const struct timespec look = {.tv_sec = LOOK_S};
    double until = spin_us ? now_us() + spin_us : 0;
    do {
        if (registered_take(c, completion))
            return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } while (spin_us && now_us() < until);
    for (;;) {
        registered_store_and_look(&c->ring->waiting,
                                  1); /* the daemon writes done_tail, and looks at `waiting` */
        if (registered_load(&c->ring->done_tail) == c->head) {
            c->waits++;
            if (syscall(SYS_futex, &c->ring->done_tail.value, FUTEX_WAIT, c->head, &look, NULL, 0) != 0 &&
                errno == ETIMEDOUT && is_gone(c) && registered_load(&c->ring->done_tail) == c->head)
                return false;
        }
        registered_store(&c->ring->waiting, 0);
        if (registered_take(c, completion))
            return true;
    }
}
