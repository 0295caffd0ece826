/* SPDX-License-Identifier: Apache-2.0 */
/* registered.c - see registered.h.
 *
 *     accepted -> HELLO -> served <-> a message is with the engine        until it hangs up, breaks the rules, or the daemon ends
 *                            |
 *                            +-> DOORBELL_CLOSE -> its calls are done -> a worker closes ring and regions -> charges go back, slot free
 *
 * One message of a client is carried out at a time; the next ones wait in its socket. What the engine has to do goes by requests, of
 * which there may be none free: then it waits in a list until one is.
 *
 * Memory of a client is a memfd that can neither shrink nor grow. The daemon makes it, so that it is charged before it is there; a
 * client's own one is looked at after it has come. The last descriptor of a large one takes milliseconds to close, so workers do that.
 *
 * Memory of the GPU is made, mapped and unmapped by the engine's thread, whose driver may take a fraction of a millisecond for it; its
 * descriptors are only passed on here. */
#include "server/registered.h"

#include "config/log.h"
#include "config/registered.h"
#include "scheduler/doorbell.h"
#include "scheduler/workload_run.h"
#include "server/answer.h"
#include "server/keys.h"
#include "server/peer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020 /* Linux 6.3 */
#endif

enum {
    BACKLOG = 511,
    ACCEPTED_MAX = 32, /* a turn */
    MESSAGES_MAX = 4,  /* likewise, of a client, */
    EVENTS_MAX = 32,   /* and of clients of whom there is something; the others have their turn next */
    RIGHTS_MAX = 8,    /* descriptors that are looked at; the system closes what is more */
    CLOSED_MAX = REGISTERED_REGIONS + 3
};

#define CONNECTION (UINT64_C(1) << 62) /* numbers of theirs are none of HTTP's */

enum phase {
    FREE,
    GREETING, /* it has not said who it is */
    SERVED,
    CLOSING
};

/* What of a client waits for a request to be free. */
enum want { WANT_ASK = 1, WANT_RENEW = 2, WANT_CLOSE = 4 };

struct client {
    struct doorbell_client bell;
    struct registered *all;
    enum phase state;
    int fd; /* -1: closed */
    uv_poll_t poll;
    bool polled, handled; /* poll is to be closed; its handle is there */
    uint64_t number, since_ns, peer;
    struct api_key *key;  /* NULL: there are none */
    bool known;           /* by a key that it has shown */
    uint64_t charged;     /* bytes, of memory.bytes and of the key's */
    uint64_t gpu_charged; /* likewise, of transport.gpu_bytes */

    bool busy; /* a message of this kind is being carried out: */
    enum registered_kind kind;
    struct request_doorbell ask;
    uint8_t ipc[REGISTERED_IPC_BYTES]; /* of a region that is asked for */
    int ring_fd, loose_fd;             /* memory that is not the engine's yet, or any more; -1: none */

    unsigned wants; /* enum want */
    unsigned asked; /* requests that the engine has */
    bool opened;    /* the engine has it, or will have */
    bool answers;   /* of the end: not before calls are answered */
    bool says;      /* `last`, ahead of closing the socket */
    struct registered_answer last;

    uv_work_t work; /* closes descriptors, and then charges go back */
    bool works;
    int closed[CLOSED_MAX];
    unsigned closed_count;
    uint64_t given, gpu_given;
    struct client *next; /* of the free ones */
};

struct registered {
    struct daemon_state *daemon;
    const struct listen_options *options;
    int fd;
    uv_poll_t poll;
    bool listens, paused; /* paused: no descriptor was free for another client */
    bool draining;
    unsigned events;        /* of this turn */
    uv_check_t hold;        /* keeps the loop running while clients are being closed */
    struct client *clients; /* [count] */
    struct client *free_clients;
    uint32_t count, used;
    uint64_t numbers;
    uint64_t gpu_bytes; /* in regions */
    bool waits;         /* some client's `wants`, or did */
    uint64_t ended;     /* clients that the engine has ended, as they were last looked at */
};

/* ---- answers ------------------------------------------------------------------------------------- */

static void send_answer(struct client *c, const struct registered_answer *answer, const int *fds,
                        unsigned count);
static void begin_close(struct client *c, bool answers);
static struct doorbell_terms terms_of(const struct client *c);
static void watch(struct client *c);

static void __attribute__((format(printf, 3, 4)))
make_refusal(struct registered_answer *answer, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(answer->detail, sizeof answer->detail, format, args);
    va_end(args);
    answer->status = (uint32_t)status_http(status);
    snprintf(answer->code, sizeof answer->code, "%s", status_code(status));
}

#define REFUSE(c, what, status, ...)                                                                         \
    do {                                                                                                     \
        struct registered_answer refusal = {.kind = (what), .version = REGISTERED_VERSION};                  \
        make_refusal(&refusal, (status), __VA_ARGS__);                                                       \
        send_answer((c), &refusal, NULL, 0);                                                                 \
    } while (0)

/* The client ends, and is told why. */
#define END(c, answers, status, ...)                                                                         \
    do {                                                                                                     \
        (c)->last = (struct registered_answer){.kind = REGISTERED_END, .version = REGISTERED_VERSION};       \
        make_refusal(&(c)->last, (status), __VA_ARGS__);                                                     \
        (c)->says = true;                                                                                    \
        begin_close((c), (answers));                                                                         \
    } while (0)

/* Send a message with descriptors; false: it cannot be sent now. */
static bool send_message(int fd, const void *bytes, size_t n, const int *fds, unsigned count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, n};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)n;
}

/* Send a last message and close the socket. What is unread then would have the client see a reset instead. */
static void say_and_close(int fd, const struct registered_answer *last)
{
    char unread;
    (void)shutdown(fd, SHUT_RD);
    while (recv(fd, &unread, sizeof unread, MSG_DONTWAIT) > 0) {
    }
    (void)send_message(fd, last, sizeof *last, NULL, 0);
    close(fd);
}

/* Who does not read its answers has no use for the next one. */
static void send_answer(struct client *c, const struct registered_answer *answer, const int *fds,
                        unsigned count)
{
    if (c->fd >= 0 && !send_message(c->fd, answer, sizeof *answer, fds, count))
        begin_close(c, false);
}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Charge a client for memory; false: there is not so much, and it is told so. */
static bool charge(struct client *c, enum registered_kind kind, uint64_t bytes)
{
    struct daemon_state *daemon = c->all->daemon;
    uint64_t staging = daemon->config->limits.staging_bytes;
    if (c->key && !tenant_calls_take_staging(&c->key->use, bytes, staging)) {
        uint64_t part = tenant_calls_part(&c->key->use, staging);
        if (bytes > part)
            REFUSE(c, kind, ATTND_INVALID,
                   "quotas.staging_bytes of the key \"%s\" is %llu, and this takes %llu", c->key->name,
                   (unsigned long long)part, (unsigned long long)bytes);
        else
            REFUSE(c, kind, ATTND_QUOTA, "quotas.staging_bytes (%llu) of the key \"%s\" are used up",
                   (unsigned long long)part, c->key->name);
        return false;
    }
    if (!memory_take_bulk(&daemon->memory, bytes)) {
        if (c->key)
            tenant_calls_give_staging(&c->key->use, bytes);
        REFUSE(c, kind, ATTND_BUSY, "memory.bytes (%llu MiB) are in use",
               (unsigned long long)(daemon->memory.limit >> 20));
        return false;
    }
    c->charged += bytes;
    return true;
}

static void give_back(struct client *c, uint64_t bytes)
{
    if (c->key)
        tenant_calls_give_staging(&c->key->use, bytes);
    memory_give(&c->all->daemon->memory, bytes);
    c->charged -= bytes;
}

/* The same of GPU memory. */
static bool charge_gpu(struct client *c, enum registered_kind kind, uint64_t bytes)
{
    struct registered *r = c->all;
    uint64_t all = r->daemon->config->transport_gpu_bytes;
    if (c->key && !tenant_calls_take_gpu(&c->key->use, bytes, all)) {
        REFUSE(c, kind, bytes > all / 2 ? ATTND_INVALID : ATTND_QUOTA,
               "half of transport.gpu_bytes (%llu) is what the key \"%s\" may have", (unsigned long long)all,
               c->key->name);
        return false;
    }
    if (bytes > all - r->gpu_bytes) {
        if (c->key)
            tenant_calls_give_gpu(&c->key->use, bytes);
        REFUSE(c, kind, ATTND_BUSY, "transport.gpu_bytes: %llu of %llu are in use, and the region takes %llu",
               (unsigned long long)r->gpu_bytes, (unsigned long long)all, (unsigned long long)bytes);
        return false;
    }
    r->gpu_bytes += bytes;
    c->gpu_charged += bytes;
    return true;
}

static void give_back_gpu(struct client *c, uint64_t bytes)
{
    if (c->key)
        tenant_calls_give_gpu(&c->key->use, bytes);
    c->all->gpu_bytes -= bytes;
    c->gpu_charged -= bytes;
}

/* A sealed memfd; -1: there is none to be had. */
static int make_memory(const char *name, uint64_t bytes)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* What is wrong with memory that a client has sent; NULL: nothing. */
static const char *look_at_memory(int fd, uint64_t bytes)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int seals = fcntl(fd, F_GET_SEALS), flags = fcntl(fd, F_GETFL);
    struct stat info;
    struct statfs system;
    if (seals < 0 || fstat(fd, &info) != 0 || fstatfs(fd, &system) != 0 || !S_ISREG(info.st_mode))
        return "the descriptor is no memfd";
    if (system.f_type != TMPFS_MAGIC)
        return "the memfd is of huge pages, which may turn out not to be there: wants one without "
               "MFD_HUGETLB";
    if ((seals & wanted) != wanted)
        return "the memfd wants the seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL";
    if (seals & ~wanted & ~F_SEAL_EXEC)
        return "the memfd has a seal against writing, and outputs are written there";
    if ((flags & O_ACCMODE) != O_RDWR)
        return "the descriptor cannot be written by: wants one that was opened with O_RDWR";
    return (uint64_t)info.st_size != bytes ? "the memfd has not the size that the message says" : NULL;
}

/* ---- to the engine ------------------------------------------------------------------------------- */

/* Hand over the first of what waits of a client; false: no request is free now. */
static bool submit_one(struct client *c)
{
    struct request *request = engine_acquire(c->all->daemon->engine);
    if (!request)
        return false;
    enum want want = c->wants & WANT_ASK ? WANT_ASK : c->wants & WANT_RENEW ? WANT_RENEW : WANT_CLOSE;
    *answer_of(request) = (struct answer){.registered = c->all};
    request->kind = REQUEST_DOORBELL;
    request->doorbell = c->ask;
    if (want == WANT_RENEW)
        request->doorbell = (struct request_doorbell){.op = DOORBELL_RENEW, .terms = terms_of(c)};
    if (want == WANT_CLOSE)
        request->doorbell = (struct request_doorbell){.op = DOORBELL_CLOSE, .answers = c->answers};
    request->doorbell.client = &c->bell;
    c->wants &= ~(unsigned)want;
    c->asked++;
    engine_submit(c->all->daemon->engine, request);
    return true;
}

static void want(struct client *c, enum want what)
{
    c->wants |= what;
    while (c->wants && submit_one(c)) {
    }
    c->all->waits |= c->wants != 0;
}

/* What waits, as far as there are requests. */
static void submit_waiting(struct registered *r)
{
    bool waits = false;
    for (uint32_t i = 0; r->waits && i < r->count; i++) {
        while (r->clients[i].wants && submit_one(&r->clients[i])) {
        }
        waits |= r->clients[i].wants != 0;
    }
    r->waits = waits;
}

/* ---- the end of a client ------------------------------------------------------------------------- */

static void proceed_closing(struct client *c);

static void on_poll_closed(uv_handle_t *handle)
{
    struct client *c = handle->data;
    c->handled = false;
    proceed_closing(c);
}

static void close_socket(struct client *c)
{
    if (c->polled) {
        uv_poll_stop(&c->poll);
        uv_close((uv_handle_t *)&c->poll, on_poll_closed);
    }
    c->polled = false;
    if (c->fd >= 0 && c->says)
        say_and_close(c->fd, &c->last);
    else if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* Worker. */
static void close_descriptors(uv_work_t *work)
{
    struct client *c = work->data;
    for (unsigned i = 0; i < c->closed_count; i++)
        close(c->closed[i]);
}

static void after_closing(uv_work_t *work, int status)
{
    struct client *c = work->data;
    (void)status;
    c->works = false;
    give_back(c, c->given);
    give_back_gpu(c, c->gpu_given);
    if (c->state == SERVED) { /* it was a region, and there may be other messages now */
        c->busy = false;
        watch(c);
    }
    proceed_closing(c);
}

/* Close the descriptors in c->closed, and then give bytes back. */
static void close_memory(struct client *c, uint64_t bytes, uint64_t gpu_bytes)
{
    assert(!c->works && c->closed_count <= CLOSED_MAX);
    c->given = bytes;
    c->gpu_given = gpu_bytes;
    c->works = true;
    c->work.data = c;
    if (uv_queue_work(c->all->daemon->loop, &c->work, close_descriptors, after_closing) == 0)
        return;
    close_descriptors(&c->work);
    after_closing(&c->work, 0);
}

/* Close a region's descriptor, if it has one, that is not the engine's any more. */
static void close_loose(struct client *c, const struct request_doorbell *of)
{
    c->closed[0] = c->loose_fd;
    c->closed_count = c->loose_fd >= 0;
    c->loose_fd = -1;
    close_memory(c, of->gpu ? 0 : of->bytes, of->gpu ? of->bytes : 0);
}

/* Ring and regions of a client that the engine has not, or not any more. */
static void collect_memory(struct client *c)
{
    const int fds[] = {c->bell.ring ? c->bell.bell : -1, c->ring_fd, c->loose_fd};
    c->closed_count = 0;
    for (uint32_t i = 0; i < REGISTERED_REGIONS; i++) {
        if (c->bell.regions[i].open)
            c->closed[c->closed_count++] = c->bell.regions[i].fd;
        c->bell.regions[i].open = false;
    }
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (fds[i] >= 0)
            c->closed[c->closed_count++] = fds[i];
    }
    if (c->bell.ring)
        munmap(c->bell.ring, sizeof *c->bell.ring);
    c->bell.ring = NULL;
    c->ring_fd = c->loose_fd = -1;
}

/* Do what can be done now of ending a client. */
static void proceed_closing(struct client *c)
{
    struct registered *r = c->all;
    if (c->state != CLOSING || c->opened || c->asked || c->works)
        return;
    close_socket(c);
    collect_memory(c);
    if (c->closed_count || c->charged || c->gpu_charged) {
        close_memory(c, c->charged, c->gpu_charged);
        return;
    }
    if (c->handled)
        return;
    *c = (struct client){.all = r, .fd = -1, .ring_fd = -1, .loose_fd = -1, .next = r->free_clients};
    r->free_clients = c;
    if (--r->used == 0)
        uv_check_stop(&r->hold);
}

/* The client ends; `answers`: not before the calls that were taken are answered, or this is said without. */
static void begin_close(struct client *c, bool answers)
{
    if (c->state == FREE || (c->state == CLOSING && (answers || !c->answers)))
        return;
    if (c->wants & WANT_ASK && c->ask.op == DOORBELL_OPEN)
        c->opened = false;
    c->state = CLOSING;
    c->answers = answers;
    c->wants = 0;
    if (!answers)
        close_socket(c);
    if (c->opened)
        want(c, WANT_CLOSE);
    proceed_closing(c);
}

/* ---- messages ------------------------------------------------------------------------------------ */

static void on_client(uv_poll_t *poll, int status, int events);

/* Look for messages, or, while one is being carried out, only for the client's end. */
static void watch(struct client *c)
{
    bool reads = !c->busy && c->state != CLOSING;
    if (c->polled)
        uv_poll_start(&c->poll, UV_DISCONNECT | (reads ? UV_READABLE : 0), on_client);
}

/* The message is with the engine. */
static void ask(struct client *c, enum registered_kind kind)
{
    c->busy = true;
    c->kind = kind;
    watch(c);
    want(c, WANT_ASK);
}

/* For the engine, what identify() of routes.c is for a request of HTTP's. */
static struct doorbell_terms terms_of(const struct client *c)
{
    struct api_key *key = c->key;
    struct doorbell_terms terms = {
        .sees_all = true, .owner = c->peer, .connection = CONNECTION | c->number, .weight = 1};
    if (!key)
        return terms;
    terms.key = key->id;
    terms.owner = c->known ? key->id : c->peer;
    terms.sees_all = c->known && key->scopes & SCOPE_ADMIN;
    terms.weight = key->weight;
    terms.quotas = key->quotas.of_engine;
    terms.use = &key->use;
    return terms;
}

/* Who the client is; false: it has been told why it is nobody. */
static bool identify(struct client *c, const struct registered_message *m)
{
    struct keys *keys = c->all->daemon->keys;
    if (!keys)
        return true;
    c->key = m->key_bytes ? keys_find(keys, m->key, m->key_bytes) : keys_anonymous(keys);
    c->known = m->key_bytes > 0;
    unsigned scopes = !c->key ? 0 : c->known ? c->key->scopes : c->all->options->anonymous;
    if (scopes & SCOPE_INFER)
        return true;
    if (!c->key)
        REFUSE(c, REGISTERED_HELLO, ATTND_NO_KEY, "there is no such key");
    else if (!c->known)
        REFUSE(c, REGISTERED_HELLO, ATTND_NO_KEY, "this needs a key");
    else
        REFUSE(c, REGISTERED_HELLO, ATTND_FORBIDDEN, "the key \"%s\" lacks the scope infer", c->key->name);
    c->key = NULL;
    return false;
}

static void greet(struct client *c, const struct registered_message *m)
{
    const uint64_t bytes = sizeof(struct registered_ring);
    if (c->state != GREETING) {
        REFUSE(c, REGISTERED_HELLO, ATTND_INVALID, "the client has said who it is");
        return;
    }
    if (m->version != REGISTERED_VERSION) {
        REFUSE(c, REGISTERED_HELLO, ATTND_INVALID, "version: this daemon speaks %d, and not %u",
               REGISTERED_VERSION, m->version);
        return;
    }
    if (m->key_bytes > REGISTERED_KEY_BYTES) {
        REFUSE(c, REGISTERED_HELLO, ATTND_INVALID, "key_bytes: wants %d at most", REGISTERED_KEY_BYTES);
        return;
    }
    if (!identify(c, m) || !charge(c, REGISTERED_HELLO, bytes))
        return;
    c->state = SERVED;
    c->ring_fd = make_memory("attnd-ring", bytes);
    c->bell.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    void *ring =
        c->ring_fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->ring_fd, 0);
    if (ring == MAP_FAILED || c->bell.bell < 0) {
        if (ring != MAP_FAILED)
            munmap(ring, bytes);
        if (c->bell.bell >= 0)
            close(c->bell.bell);
        END(c, false, ATTND_NO_MEMORY, "no memory, or no descriptor, for a ring");
        return;
    }
    c->bell.ring = ring;
    c->bell.terms = terms_of(c);
    c->opened = true;
    c->ask = (struct request_doorbell){.op = DOORBELL_OPEN};
    ask(c, REGISTERED_HELLO);
}

/* A region of so many bytes: of the daemon's making, or what has come along. */
static void register_region(struct client *c, const struct registered_message *m, int fd)
{
    enum registered_kind kind = (enum registered_kind)m->kind;
    uint64_t most = c->all->daemon->config->limits.body_bytes;
    const char *wrong = NULL;
    if (m->bytes < 1 || m->bytes > most) {
        REFUSE(c, kind, ATTND_INVALID, "bytes: wants 1..%llu (limits.body_bytes)", (unsigned long long)most);
        return;
    }
    if (kind == REGISTERED_OWN_REGION)
        wrong = fd < 0 ? "no descriptor has come along: wants one, of a memfd" : look_at_memory(fd, m->bytes);
    if (wrong) {
        REFUSE(c, kind, ATTND_INVALID, "%s", wrong);
        return;
    }
    if (!charge(c, kind, m->bytes))
        return;
    c->loose_fd =
        kind == REGISTERED_OWN_REGION ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : make_memory("attnd-region", m->bytes);
    if (c->loose_fd < 0) {
        give_back(c, m->bytes);
        REFUSE(c, kind, ATTND_NO_MEMORY, "no memory, or no descriptor, for a region");
        return;
    }
    c->ask = (struct request_doorbell){.op = DOORBELL_REGION, .fd = c->loose_fd, .bytes = m->bytes};
    ask(c, kind);
}

/* A region in memory of the GPU, likewise. */
static void register_gpu_region(struct client *c, const struct registered_message *m, int fd)
{
    enum registered_kind kind = (enum registered_kind)m->kind;
    bool own = kind == REGISTERED_OWN_GPU_REGION, ipc = kind == REGISTERED_IPC_REGION,
         trusts = c->all->daemon->config->transport_trust_clients;
    const struct attention_info *backend = engine_backend(c->all->daemon->engine);
    uint64_t most = c->all->daemon->config->transport_gpu_bytes, unit = backend->region_unit;
    if (unit == 0) {
        REFUSE(c, kind, ATTND_INVALID, "this daemon's backend, %s, has no memory that a region could be in",
               backend->name);
        return;
    }
    if (!trusts && (ipc || backend->shares_context)) {
        REFUSE(c, kind, ATTND_FORBIDDEN, "%s",
               ipc ? "a CUDA IPC handle goes only where transport.trust_clients is on: wants a descriptor "
                     "(OWN_GPU_REGION)"
                   : "the GPU is served by NVIDIA MPS, where a client that fails takes the daemon's context "
                     "with it: that wants "
                     "transport.trust_clients=on");
        return;
    }
    if (m->bytes < 1 || m->bytes > most) {
        REFUSE(c, kind, ATTND_INVALID, "bytes: wants 1..%llu (transport.gpu_bytes)",
               (unsigned long long)most);
        return;
    }
    if (ipc && m->key_bytes != REGISTERED_IPC_BYTES) {
        REFUSE(c, kind, ATTND_INVALID, "key_bytes: wants %d, those of a CUipcMemHandle",
               REGISTERED_IPC_BYTES);
        return;
    }
    if (m->writes > 1 || (m->writes && !own && !ipc)) {
        REFUSE(c, kind, ATTND_INVALID, "writes: wants 0 or 1, and 0 for a region of the daemon's making");
        return;
    }
    if (own && fd < 0) {
        REFUSE(c, kind, ATTND_INVALID,
               "no descriptor has come along: wants one, of cuMemExportToShareableHandle()");
        return;
    }
    uint64_t bytes = ipc ? m->bytes : (m->bytes + unit - 1) / unit * unit;
    if (!charge_gpu(c, kind, bytes))
        return;
    c->loose_fd = own ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (own && c->loose_fd < 0) {
        give_back_gpu(c, bytes);
        REFUSE(c, kind, ATTND_NO_MEMORY, "no descriptor for a region");
        return;
    }
    c->ask = (struct request_doorbell){
        .op = DOORBELL_REGION, .fd = c->loose_fd, .bytes = bytes, .gpu = true, .writes = m->writes};
    if (ipc) {
        memcpy(c->ipc, m->key, sizeof c->ipc);
        c->ask.ipc = c->ipc;
    }
    ask(c, kind);
}

static void handle_message(struct client *c, const struct registered_message *m, int fd)
{
    bool known = m->kind >= REGISTERED_HELLO && m->kind <= REGISTERED_IPC_REGION && m->kind != REGISTERED_END;
    if (known && m->kind != REGISTERED_HELLO && c->state == GREETING) {
        REFUSE(c, (enum registered_kind)m->kind, ATTND_NO_KEY,
               "the first message is HELLO (1), with the version and a key");
        return;
    }
    switch (m->kind) {
    case REGISTERED_HELLO:
        greet(c, m);
        break;
    case REGISTERED_REGION:
    case REGISTERED_OWN_REGION:
        register_region(c, m, fd);
        break;
    case REGISTERED_GPU_REGION:
    case REGISTERED_OWN_GPU_REGION:
    case REGISTERED_IPC_REGION:
        register_gpu_region(c, m, fd);
        break;
    case REGISTERED_CLOSE_REGION:
        c->ask = (struct request_doorbell){.op = DOORBELL_CLOSE_REGION, .region = m->region};
        ask(c, REGISTERED_CLOSE_REGION);
        break;
    default:
        REFUSE(c, (enum registered_kind)m->kind, ATTND_INVALID,
               "kind: wants 1 (HELLO), 2 (REGION), 3 (OWN_REGION), 4 (CLOSE_REGION), 6 (GPU_REGION), "
               "7 (OWN_GPU_REGION) or 8 (IPC_REGION)");
        break;
    }
}

/* Descriptors that came with a message. */
static unsigned take_rights(struct msghdr *message, int fds[RIGHTS_MAX])
{
    unsigned n = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && n < RIGHTS_MAX; i++)
            memcpy(&fds[n++], CMSG_DATA(h) + i * sizeof(int), sizeof(int));
    }
    return n;
}

/* Read and carry out a message; false: there is none now. */
static bool read_message(struct client *c)
{
    struct registered_message m;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(RIGHTS_MAX * sizeof(int))];
    } control;
    struct iovec part = {&m, sizeof m};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    int fds[RIGHTS_MAX];
    ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        begin_close(c, false);
        return false;
    }
    unsigned count = take_rights(&message, fds);
    if (n != sizeof m || message.msg_flags & MSG_TRUNC)
        REFUSE(c, (enum registered_kind)0, ATTND_MALFORMED, "a message has %zu bytes", sizeof m);
    else
        handle_message(c, &m, count ? fds[0] : -1);
    for (unsigned i = 0; i < count; i++)
        close(fds[i]); /* whoever wants one has a copy */
    return true;
}

static void on_client(uv_poll_t *poll, int status, int events)
{
    struct client *c = poll->data;
    if (++c->all->events > EVENTS_MAX)
        return;
    if (status < 0 || (events & UV_DISCONNECT && !(events & UV_READABLE))) {
        begin_close(c, false);
        return;
    }
    for (int i = 0; i < MESSAGES_MAX && c->polled && !c->busy && c->state != CLOSING; i++) {
        if (!read_message(c))
            break;
    }
    if (events & UV_DISCONNECT && c->polled && c->busy)
        begin_close(c, false);
}

/* ---- what comes back from the engine ------------------------------------------------------------- */

static void answer_hello(struct client *c)
{
    const int fds[] = {c->ring_fd, c->bell.bell};
    struct registered_answer answer = {.kind = REGISTERED_HELLO,
                                       .status = 200,
                                       .version = REGISTERED_VERSION,
                                       .bytes = sizeof(struct registered_ring)};
    send_answer(c, &answer, fds, 2);
    if (c->ring_fd >= 0)
        close(c->ring_fd); /* it is mapped */
    c->ring_fd = -1;
}

static void answer_region(struct client *c, const struct request_doorbell *done)
{
    struct registered_answer answer = {.kind = c->kind,
                                       .status = 200,
                                       .version = REGISTERED_VERSION,
                                       .region = done->region,
                                       .bytes = done->bytes};
    bool made = c->kind == REGISTERED_REGION || c->kind == REGISTERED_GPU_REGION;
    c->loose_fd = -1; /* the engine's now, but of GPU memory, which is mapped */
    send_answer(c, &answer, &done->fd, made);
    if (done->gpu && done->fd >= 0)
        close(done->fd);
}

static void answer_close_region(struct client *c, const struct request_doorbell *done)
{
    struct registered_answer answer = {.kind = c->kind,
                                       .status = 200,
                                       .version = REGISTERED_VERSION,
                                       .region = done->region,
                                       .bytes = done->bytes};
    c->loose_fd = done->fd;
    send_answer(c, &answer, NULL, 0);
    if (c->state == SERVED)
        close_loose(c, done);
}

/* A message has been carried out, or refused by the engine. */
static void answer_ask(struct client *c, const struct request *request)
{
    const struct request_doorbell *done = &request->doorbell;
    bool closes = done->op == DOORBELL_CLOSE_REGION ? request->status == 0
                                                    : done->op == DOORBELL_REGION && request->status != 0;
    c->busy = closes; /* until that is closed */
    if (request->status != 0) {
        REFUSE(c, c->kind, request->status, "%s", request->detail);
        if (closes && c->state == SERVED)
            close_loose(c, done);
    } else if (done->op == DOORBELL_OPEN) {
        answer_hello(c);
    } else if (done->op == DOORBELL_REGION) {
        answer_region(c, done);
    } else {
        answer_close_region(c, done);
    }
    watch(c);
}

void registered_deliver(struct registered *r, struct request *request)
{
    struct client *c = (struct client *)request->doorbell.client; /* its first member */
    const struct request_doorbell *done = &request->doorbell;
    c->asked--;
    if (done->op == DOORBELL_CLOSE)
        c->opened = false;
    else if (done->op == DOORBELL_OPEN && request->status != 0)
        c->opened = false;
    if (done->op != DOORBELL_CLOSE && done->op != DOORBELL_RENEW && c->state != CLOSING)
        answer_ask(c, request);
    else if (c->state == CLOSING && request->status == 0 && done->op == DOORBELL_REGION)
        c->loose_fd = done->gpu ? done->fd : -1; /* else it is one of its regions */
    else if (c->state == CLOSING && request->status == 0 && done->op == DOORBELL_CLOSE_REGION)
        c->loose_fd = done->fd;
    *answer_of(request) = (struct answer){0};
    engine_release(r->daemon->engine, request);
    submit_waiting(r);
    proceed_closing(c);
}

void registered_look(struct registered *r)
{
    uint64_t ended = r ? engine_rings_ended(r->daemon->engine) : 0;
    if (!r || ended == r->ended)
        return;
    r->ended = ended;
    for (uint32_t i = 0; i < r->count; i++) {
        struct client *c = &r->clients[i];
        const char *why = c->state == SERVED ? atomic_load(&c->bell.ended) : NULL;
        if (!why)
            continue;
        log_line(LOG_WARNING, "%s: a client has ended: %s", r->options->address.path, why);
        END(c, false, ATTND_INVALID, "%s", why);
    }
}

void registered_renew(struct registered *r)
{
    for (uint32_t i = 0; r && i < r->count; i++) {
        struct client *c = &r->clients[i];
        if (c->state != SERVED || !c->known || !c->key)
            continue;
        if (c->key->gone) {
            END(c, false, ATTND_NO_KEY, "the key \"%s\" is no more", c->key->name);
        } else if (!(c->key->scopes & SCOPE_INFER)) {
            END(c, false, ATTND_FORBIDDEN, "the key \"%s\" lacks the scope infer", c->key->name);
        } else {
            want(c, WANT_RENEW);
        }
    }
}

/* The next turn begins. While this is active the loop runs on. */
static void on_hold(uv_check_t *hold)
{
    struct registered *r = hold->data;
    r->events = 0;
}

/* ---- clients come -------------------------------------------------------------------------------- */

static void refuse_client(const struct registered *r, int fd)
{
    struct registered_answer answer = {.kind = REGISTERED_END, .version = REGISTERED_VERSION};
    make_refusal(&answer, ATTND_BUSY, "transport.clients (%u) are there", r->count);
    say_and_close(fd, &answer);
}

static void add_client(struct registered *r, int fd)
{
    struct client *c = r->free_clients;
    if (!c) {
        refuse_client(r, fd);
        return;
    }
    r->free_clients = c->next;
    if (r->used++ == 0)
        uv_check_start(&r->hold, on_hold);
    c->state = GREETING;
    c->fd = fd;
    c->number = ++r->numbers;
    c->since_ns = uv_hrtime();
    (void)peer_of_socket(fd, &c->peer);
    c->polled = c->handled = uv_poll_init(r->daemon->loop, &c->poll, fd) == 0;
    c->poll.data = c;
    if (c->polled)
        watch(c);
    else
        begin_close(c, false);
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct registered *r = poll->data;
    (void)events;
    for (int i = 0; status == 0 && i < ACCEPTED_MAX; i++) {
        int fd = accept4(r->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            add_client(r, fd);
            continue;
        }
        if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR)
            break;
        log_line(LOG_WARNING, "%s: a client could not be accepted: %s", r->options->address.path,
                 strerror(errno));
        uv_poll_stop(&r->poll); /* until there may be a descriptor for it */
        r->paused = true;
        break;
    }
}

void registered_tick(struct registered *r)
{
    if (!r)
        return;
    uint64_t most_ns = (uint64_t)r->daemon->config->limits.header_timeout_s * 1000000000;
    for (uint32_t i = 0; r->used && i < r->count; i++) {
        if (r->clients[i].state == GREETING && uv_hrtime() - r->clients[i].since_ns > most_ns)
            END(&r->clients[i], false, ATTND_TIMEOUT,
                "the client has not said who it is within limits.header_timeout_s");
    }
    submit_waiting(r);
    if (r->paused && r->listens)
        r->paused = uv_poll_start(&r->poll, UV_READABLE, on_listener) != 0;
}

/* ---- the end of all ------------------------------------------------------------------------------ */

static void close_listener(struct registered *r)
{
    if (!r->listens)
        return;
    r->listens = false;
    uv_poll_stop(&r->poll);
    uv_close((uv_handle_t *)&r->poll, NULL);
    close(r->fd);
    r->fd = -1;
    if (!r->options->address.fd)
        unlink(r->options->address.path);
}

void registered_drain(struct registered *r)
{
    if (!r)
        return;
    close_listener(r);
    for (uint32_t i = 0; i < r->count; i++) {
        struct client *c = &r->clients[i];
        if (c->state == GREETING || c->state == SERVED)
            END(c, true, ATTND_BUSY, "the daemon ends");
        watch(c);
    }
}

uint32_t registered_cut(struct registered *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; r && i < r->count; i++) {
        n += r->clients[i].state != FREE;
        begin_close(&r->clients[i], false);
    }
    return n;
}

void registered_give_up(struct registered *r, const char *why)
{
    if (r)
        uv_unref((uv_handle_t *)&r->hold); /* what the engine has does not come back */
    for (uint32_t i = 0; r && i < r->count; i++) {
        struct client *c = &r->clients[i];
        if (c->state == GREETING || c->state == SERVED)
            END(c, false, ATTND_DEVICE, "%s; the daemon ends", why);
    }
}

/* A socket that was handed over: whether it is of the kind that is wanted; 0 or an errno. */
static int look_at_socket(int fd)
{
    int type = 0;
    socklen_t bytes = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0)
        return errno;
    return type == SOCK_SEQPACKET ? 0 : EPROTOTYPE;
}

static int bind_socket(const struct registered *r)
{
    const struct listen_options *o = r->options;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, o->address.path);
    listen_address_clear(o->address.path, SOCK_SEQPACKET);
    if (bind(r->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return errno;
    int rc = listen_address_restrict(o);
    if (rc != 0)
        unlink(o->address.path);
    return rc;
}

int registered_listen(struct daemon_state *daemon, const struct listen_options *options,
                      struct registered **result)
{
    struct registered *r = calloc(1, sizeof *r);
    uint32_t n = daemon->config->transport_clients;
    if (!r || !(r->clients = calloc(n, sizeof *r->clients))) {
        free(r);
        return ENOMEM;
    }
    r->daemon = daemon;
    r->options = options;
    r->count = n;
    for (uint32_t i = n; i-- > 0;) {
        r->clients[i] =
            (struct client){.all = r, .fd = -1, .ring_fd = -1, .loose_fd = -1, .next = r->free_clients};
        r->free_clients = &r->clients[i];
    }
    r->fd = options->address.fd ? options->address.fd
                                : socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = r->fd < 0 ? errno : options->address.fd ? look_at_socket(r->fd) : bind_socket(r);
    if (rc == 0 && (listen(r->fd, BACKLOG) != 0 || uv_poll_init(daemon->loop, &r->poll, r->fd) != 0))
        rc = errno ? errno : EINVAL;
    if (rc != 0) {
        if (r->fd >= 0)
            close(r->fd);
        free(r->clients);
        free(r);
        return rc;
    }
    r->poll.data = r;
    r->listens = true;
    uv_poll_start(&r->poll, UV_READABLE, on_listener);
    uv_check_init(daemon->loop, &r->hold);
    r->hold.data = r;
    *result = r;
    return 0;
}

void registered_destroy(struct registered *r)
{
    if (!r)
        return;
    close_listener(r);
    uv_close((uv_handle_t *)&r->hold, NULL);
    uv_run(r->daemon->loop, UV_RUN_DEFAULT);
    assert(r->used == 0 || r->daemon->given_up);
    free(r->clients);
    free(r);
}
