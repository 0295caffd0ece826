/* SPDX-License-Identifier: Apache-2.0 */
/* kv_publisher.c - see kv_publisher.h.
 *
 *   PUB      [topic] [number, 8 bytes, the highest first] [batch]
 *   ROUTER   -> [] [number]    <- [] [topic] [number] [batch]  for each that is kept, then [] [] [8 bytes of 0xff] []
 *   REP      inproc://zeromq.zap.01: whether a client's public key is one of events.zmq.curve_file (ZeroMQ's RFC 27)
 *
 * The frames are those of vLLM's publisher (0.33). Batches are numbered from 0; the first one says that nothing is cached, for who was
 * subscribed to the daemon before.
 *
 * Sockets are bound here and handed to libzmq: an ipc socket so is never open to others, not even until its mode is changed, one that is
 * in use is not taken away, and errors have the system's words. It also keeps libzmq from looking for network interfaces, for which it
 * aborts where the unit's filter has no AF_NETLINK. */
#include "server/kv_publisher.h"

#include "config/log.h"
#include "config/numbers.h"
#include "config/zmq_address.h"
#include "scheduler/kv_events.h"
#include "server/kv_batch.h"
#include "server/listen_address.h"
#include "server/zmq.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "the port is in the same place");

enum {
    MODE = 0600,
    BACKLOG = 64,
    CLIENTS_MAX = 64,
    NUMBER_BYTES = 8,
    FRAME_BYTES = 256, /* of what comes: identities have 255 at most */
    MESSAGE_BYTES = 1024,
    KEPT_BYTES = 256, /* that a past batch takes beside its bytes */
    LINGER_MS = 100,  /* at the end, for who reads */
    KEY_FILE_BYTES = 1 << 16,
    URL_BYTES = 160
};

#define ZAP_ADDRESS "inproc://zeromq.zap.01"
#define ZAP_DOMAIN  "attnd"

/* A past batch. */
struct batch {
    struct batch *next;
    uint64_t number;
    size_t bytes;
    struct zmq_message message;
};

struct endpoint {
    void *socket; /* NULL: there is none */
    char url[URL_BYTES];
    char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* to be removed at the end; empty: nothing */
};

struct kv_publisher {
    const struct config *config;
    struct zmq_library zmq;
    struct kv_events *events;
    void *context, *zap;
    struct endpoint pub, replay;

    bool has_curve;
    uint8_t secret[ZMQ_KEY_BYTES], clients[CLIENTS_MAX][ZMQ_KEY_BYTES];
    char public_key[ZMQ_KEY_CHARACTERS + 1];
    unsigned client_count;

    pthread_t thread;
    bool started;
    atomic_bool stop;

    /* The thread's. */
    uint64_t number; /* of the next batch */
    struct batch *first, *last;
    uint64_t kept_bytes;
    uint8_t *scratch; /* [scratch_bytes] a batch being written */
    size_t scratch_bytes;
    const struct kv_event **list; /* [kv_events_most()] */
};

static int __attribute__((format(printf, 3, 4))) fail(int code, char *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason, KV_PUBLISHER_REASON_BYTES, format, args);
    va_end(args);
    return code;
}

/* ---- batches --------------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void write_number(uint64_t number, uint8_t bytes[NUMBER_BYTES])
{
    for (unsigned i = 0; i < NUMBER_BYTES; i++)
        bytes[i] = (uint8_t)(number >> (8 * (NUMBER_BYTES - 1 - i)));
}

static uint64_t read_number(const uint8_t bytes[NUMBER_BYTES])
{
    uint64_t number = 0;
    for (unsigned i = 0; i < NUMBER_BYTES; i++)
        number = number << 8 | bytes[i];
    return number;
}

/* Send topic, number and bytes of a batch, which stays. */
static void send_batch(struct kv_publisher *p, void *socket, struct batch *b)
{
    const char *topic = p->config->events.topic;
    struct zmq_message copy;
    uint8_t number[NUMBER_BYTES];
    int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    write_number(b->number, number);
    p->zmq.zmq_msg_init(&copy);
    if (p->zmq.zmq_msg_copy(&copy, &b->message) != 0 ||
        p->zmq.zmq_send(socket, topic, strlen(topic), flags) < 0 ||
        p->zmq.zmq_send(socket, number, sizeof number, flags) < 0 ||
        p->zmq.zmq_msg_send(&copy, socket, ZMQ_DONTWAIT) < 0)
        p->zmq.zmq_msg_close(&copy);
}

static void forget_first(struct kv_publisher *p)
{
    struct batch *b = p->first;
    p->first = b->next;
    p->last = p->first ? p->last : NULL;
    p->kept_bytes -= b->bytes + KEPT_BYTES;
    p->zmq.zmq_msg_close(&b->message);
    free(b);
}

/* Publish what has been written to the scratch memory, and keep it, and of those before what there is room for. Without memory its number is left out, which subscribers see. */
static void publish(struct kv_publisher *p, const struct msgpack *m)
{
    struct batch *b = malloc(sizeof *b);
    uint64_t number = p->number++;
    if (!b || p->zmq.zmq_msg_init_size(&b->message, m->length) != 0) {
        log_line(LOG_ERROR, "kv events: no memory for batch %llu", (unsigned long long)number);
        free(b);
        return;
    }
    b->number = number;
    b->bytes = m->length;
    b->next = NULL;
    memcpy(p->zmq.zmq_msg_data(&b->message), m->bytes, m->length);
    send_batch(p, p->pub.socket, b);
    *(p->last ? &p->last->next : &p->first) = b;
    p->last = b;
    p->kept_bytes += b->bytes + KEPT_BYTES;
    while (p->first != p->last && p->kept_bytes > p->config->events.replay_bytes)
        forget_first(p);
}

static void publish_all(struct kv_publisher *p)
{
    struct msgpack m;
    uint32_t n;
    while ((n = kv_events_batch(p->events)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            p->list[i] = kv_events_at(p->events, i);
        msgpack_init(&m, p->scratch, p->scratch_bytes);
        kv_batch_write(&m, p->list, n, p->config->geometry.block_size, now_s());
        publish(p, &m);
        kv_events_sent(p->events, n);
    }
}

static void publish_cleared(struct kv_publisher *p)
{
    struct msgpack m;
    msgpack_init(&m, p->scratch, p->scratch_bytes);
    kv_batch_write_cleared(&m, now_s());
    publish(p, &m);
}

/* ---- what comes ------------------------------------------------------------------------------------ */

struct frame {
    uint8_t bytes[FRAME_BYTES];
    size_t n; /* more than FRAME_BYTES: only so many of them were read */
};

/* A message, of which `most` frames are read, and the others dropped; how many it had, 0: there is none. */
static unsigned receive(struct kv_publisher *p, void *socket, struct frame *frames, unsigned most)
{
    struct frame dropped = {.n = 0};
    unsigned count = 0;
    for (int more = 1; more; count++) {
        struct frame *f = count < most ? &frames[count] : &dropped;
        size_t bytes = sizeof more;
        int n = p->zmq.zmq_recv(socket, f->bytes, sizeof f->bytes, ZMQ_DONTWAIT);
        if (n < 0 || p->zmq.zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &bytes) != 0)
            return 0;
        f->n = (size_t)n;
    }
    return count;
}

/* Answer who asks for past batches. What is not such a question has no answer. */
static void answer_replay(struct kv_publisher *p)
{
    static const uint8_t end[NUMBER_BYTES] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct frame f[3];
    void *to = p->replay.socket;
    if (receive(p, to, f, 3) != 3 || f[0].n > FRAME_BYTES || f[1].n != 0 || f[2].n != NUMBER_BYTES)
        return;
    uint64_t from = read_number(f[2].bytes);
    int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    for (struct batch *b = p->first; b; b = b->next) {
        if (b->number >= from && p->zmq.zmq_send(to, f[0].bytes, f[0].n, flags) >= 0 &&
            p->zmq.zmq_send(to, "", 0, flags) >= 0)
            send_batch(p, to, b);
    }
    if (p->zmq.zmq_send(to, f[0].bytes, f[0].n, flags) >= 0 && p->zmq.zmq_send(to, "", 0, flags) >= 0 &&
        p->zmq.zmq_send(to, "", 0, flags) >= 0 && p->zmq.zmq_send(to, end, sizeof end, flags) >= 0)
        p->zmq.zmq_send(to, "", 0, ZMQ_DONTWAIT);
    kv_events_replayed(p->events);
}

static bool is_client(const struct kv_publisher *p, const struct frame *key)
{
    bool known = false;
    for (unsigned i = 0; i < p->client_count; i++)
        known |= key->n == ZMQ_KEY_BYTES && memcmp(key->bytes, p->clients[i], ZMQ_KEY_BYTES) == 0;
    return known;
}

/* Say whether a client may connect: version, id, domain, address, identity, mechanism, key. */
static void answer_zap(struct kv_publisher *p)
{
    struct frame f[7];
    unsigned n = receive(p, p->zap, f, 7);
    if (n < 2 || f[1].n > FRAME_BYTES)
        return;
    bool allowed = n == 7 && f[5].n == 5 && memcmp(f[5].bytes, "CURVE", 5) == 0 && is_client(p, &f[6]);
    const char *const texts[] = {allowed ? "200" : "400", allowed ? "OK" : "no such key", ""};
    int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT;
    p->zmq.zmq_send(p->zap, "1.0", 3, flags);
    p->zmq.zmq_send(p->zap, f[1].bytes, f[1].n, flags);
    for (unsigned i = 0; i < 3; i++)
        p->zmq.zmq_send(p->zap, texts[i], strlen(texts[i]), flags);
    p->zmq.zmq_send(p->zap, "", 0, ZMQ_DONTWAIT);
}

static void *run(void *cookie)
{
    struct kv_publisher *p = cookie;
    struct zmq_poll_item items[3] = {{.fd = kv_events_fd(p->events), .events = ZMQ_POLLIN}};
    int n = 1;
    if (p->replay.socket)
        items[n++] = (struct zmq_poll_item){.socket = p->replay.socket, .events = ZMQ_POLLIN};
    if (p->zap)
        items[n++] = (struct zmq_poll_item){.socket = p->zap, .events = ZMQ_POLLIN};
    publish_cleared(p);
    for (bool stops = false; !stops;) {
        uint64_t raised;
        if (p->zmq.zmq_poll(items, n, -1) < 0 && p->zmq.zmq_errno() != EINTR) {
            log_line(LOG_ERROR, "kv events: zmq_poll: %s", p->zmq.zmq_strerror(p->zmq.zmq_errno()));
            return NULL;
        }
        stops = atomic_load(&p->stop); /* the engine has ended, so that all is there */
        ssize_t got = read(items[0].fd, &raised, sizeof raised);
        (void)got;
        publish_all(p);
        for (int i = 1; i < n; i++) {
            if (!(items[i].revents & ZMQ_POLLIN))
                continue;
            if (items[i].socket == p->zap)
                answer_zap(p);
            else
                answer_replay(p);
        }
    }
    return NULL;
}

/* ---- keys ------------------------------------------------------------------------------------------ */

/* The text of the file, whose owner alone may read it. */
static int read_key_file(const char *path, char text[KEY_FILE_BYTES], char *reason)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
    ssize_t n = -1;
    if (fd < 0 || fstat(fd, &info) != 0)
        rc = fail(ATTND_INVALID, reason, "events.zmq.curve_file: %s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode) || (info.st_mode & (S_IRWXG | S_IRWXO)))
        rc = fail(ATTND_INVALID, reason, "events.zmq.curve_file: %s: wants a file of mode 0600", path);
    else if ((n = read(fd, text, KEY_FILE_BYTES)) < 0 || n == KEY_FILE_BYTES)
        rc = fail(ATTND_INVALID, reason, "events.zmq.curve_file: %s: cannot be read, or has 64 KiB or more",
                  path);
    if (fd >= 0)
        close(fd);
    text[n < 0 || n == KEY_FILE_BYTES ? 0 : n] = '\0';
    return rc;
}

/* "secret KEY" or "client KEY", what follows is a comment; false: neither. */
static bool read_key_line(struct kv_publisher *p, char *line)
{
    char *save, *word = strtok_r(line, " \t\r", &save), *key = word ? strtok_r(NULL, " \t\r", &save) : NULL;
    if (!word || word[0] == '#')
        return true;
    bool good = key && strlen(key) == ZMQ_KEY_CHARACTERS;
    if (good && strcmp(word, "secret") == 0 && !p->has_curve)
        return p->has_curve = p->zmq.zmq_z85_decode(p->secret, key) != NULL &&
                              p->zmq.zmq_curve_public(p->public_key, key) == 0;
    return good && strcmp(word, "client") == 0 && p->client_count < CLIENTS_MAX &&
           p->zmq.zmq_z85_decode(p->clients[p->client_count++], key) != NULL;
}

static int read_keys(struct kv_publisher *p, char *reason)
{
    const char *path = p->config->events.curve_file;
    char text[KEY_FILE_BYTES] = "";
    unsigned number = 0;
    int rc = *path ? read_key_file(path, text, reason) : 0;
    if (!*path || rc != 0)
        return rc;
    if (!p->zmq.zmq_has("curve"))
        return fail(ATTND_NOT_FOUND, reason, "events.zmq.curve_file: this libzmq was built without CURVE");
    for (char *line = text, *next; rc == 0 && line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        if (!read_key_line(p, line))
            rc = fail(ATTND_INVALID, reason,
                      "events.zmq.curve_file: %s:%u: wants one `secret KEY` and up to %d `client KEY`, of 40 "
                      "characters (Z85)",
                      path, number, CLIENTS_MAX);
    }
    explicit_bzero(text, sizeof text);
    if (rc == 0 && (!p->has_curve || p->client_count == 0))
        rc = fail(ATTND_INVALID, reason,
                  "events.zmq.curve_file: %s: wants `secret KEY`, and `client KEY` for who may subscribe",
                  path);
    return rc;
}

/* ---- sockets --------------------------------------------------------------------------------------- */

/* Bind and listen; the socket, or -1 with an errno. */
static int listen_at(const struct zmq_address *a)
{
    const void *address = a->is_ipc ? (const void *)&a->ipc : &a->ip;
    socklen_t bytes = a->is_ipc                    ? sizeof a->ipc
                      : a->ip.ss_family == AF_INET ? sizeof(struct sockaddr_in)
                                                   : sizeof(struct sockaddr_in6);
    int one = 1, family = a->is_ipc ? AF_UNIX : a->ip.ss_family;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (a->is_ipc)
        listen_address_clear(a->ipc.sun_path, SOCK_STREAM);
    /* On Linux the file of a socket gets the socket's mode; where it does not, it has it before anybody can connect. */
    bool good =
        a->is_ipc ? fchmod(fd, MODE) == 0 : setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0;
    if (good && family == AF_INET6)
        good = setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one) == 0;
    good = good && bind(fd, address, bytes) == 0;
    if (good && a->is_ipc && chmod(a->ipc.sun_path, MODE) != 0) {
        unlink(a->ipc.sun_path);
        good = false;
    }
    if (good && listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* The address with the port that the kernel chose. */
static void write_url(const char *text, int fd, char url[URL_BYTES])
{
    struct sockaddr_in6 name = {0}; /* of IPv4 the port is in the same place */
    socklen_t bytes = sizeof name;
    int host = (int)(strrchr(text, ':') - text);
    if (strncmp(text, "tcp:", 4) != 0 || getsockname(fd, (struct sockaddr *)&name, &bytes) != 0)
        snprintf(url, URL_BYTES, "%s", text);
    else
        snprintf(url, URL_BYTES, "%.*s:%u", host, text, ntohs(name.sin6_port));
}

static int set_option(struct kv_publisher *p, void *socket, int option, int value)
{
    return p->zmq.zmq_setsockopt(socket, option, &value, sizeof value);
}

/* Options of a socket that is about to be bound; 0, or libzmq's error. */
static int set_options(struct kv_publisher *p, void *socket, int hwm)
{
    int64_t most = MESSAGE_BYTES; /* of what subscribers send */
    int rc = set_option(p, socket, ZMQ_SNDHWM, hwm);
    rc |= set_option(p, socket, ZMQ_LINGER, LINGER_MS);
    rc |= p->zmq.zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (p->has_curve) {
        rc |= set_option(p, socket, ZMQ_CURVE_SERVER, 1);
        rc |= p->zmq.zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, p->secret, sizeof p->secret);
        rc |= p->zmq.zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN));
    }
    return rc;
}

static int open_endpoint(struct kv_publisher *p, struct endpoint *e, int kind, const char *key,
                         const char *text, int hwm, char *reason)
{
    struct zmq_address address;
    char why[ZMQ_ADDRESS_REASON_BYTES];
    if (zmq_address_parse(text, &address, why) != 0)
        return fail(ATTND_INVALID, reason, "%s: %s", key, why);
    int fd = listen_at(&address);
    if (fd < 0)
        return fail(ATTND_NOT_FOUND, reason, "%s: cannot bind %s: %s", key, text, strerror(errno));
    if (address.is_ipc)
        memcpy(e->path, address.ipc.sun_path, sizeof e->path);
    write_url(text, fd, e->url);
    e->socket = p->zmq.zmq_socket(p->context, kind);
    if (e->socket && set_options(p, e->socket, hwm) == 0 && set_option(p, e->socket, ZMQ_USE_FD, fd) == 0 &&
        p->zmq.zmq_bind(e->socket, e->url) == 0)
        return 0;
    close(fd);
    return fail(ATTND_NOT_FOUND, reason, "%s: libzmq cannot bind %s: %s", key, text,
                p->zmq.zmq_strerror(p->zmq.zmq_errno()));
}

static void close_endpoint(struct kv_publisher *p, struct endpoint *e)
{
    if (e->socket)
        p->zmq.zmq_close(e->socket);
    if (e->path[0])
        unlink(e->path);
}

static int open_sockets(struct kv_publisher *p, char *reason)
{
    const struct config_events *events = &p->config->events;
    uint64_t kept = events->replay_bytes / KEPT_BYTES + 1; /* an answer whole */
    p->context = p->zmq.zmq_ctx_new();
    if (!p->context)
        return fail(ATTND_NO_MEMORY, reason, "events.zmq: no memory for libzmq");
    if (p->has_curve) {
        p->zap = p->zmq.zmq_socket(p->context, ZMQ_REP);
        if (!p->zap || set_option(p, p->zap, ZMQ_LINGER, 0) != 0 || p->zmq.zmq_bind(p->zap, ZAP_ADDRESS) != 0)
            return fail(ATTND_NO_MEMORY, reason, "events.zmq.curve_file: %s",
                        p->zmq.zmq_strerror(p->zmq.zmq_errno()));
    }
    int rc =
        open_endpoint(p, &p->pub, ZMQ_PUB, "events.zmq.endpoint", events->endpoint, (int)events->hwm, reason);
    return rc == 0 && events->replay[0]
               ? open_endpoint(p, &p->replay, ZMQ_ROUTER, "events.zmq.replay", events->replay,
                               kept < INT32_MAX ? (int)kept : INT32_MAX, reason)
               : rc;
}

/* ---- open and close -------------------------------------------------------------------------------- */

static struct kv_events_options options_of(const struct config *c)
{
    return (struct kv_events_options){.blocks = (uint32_t)c->pool_blocks,
                                      .block_size = c->geometry.block_size,
                                      .row_blocks = config_sequence_blocks(c),
                                      .salted = c->events.salted};
}

static int make_memory(struct kv_publisher *p)
{
    const struct kv_events_options options = options_of(p->config);
    if (kv_events_create(&options, &p->events) != 0)
        return ATTND_NO_MEMORY;
    uint32_t most = kv_events_most(&options);
    p->scratch_bytes = kv_batch_bytes(most, options.block_size);
    p->scratch = malloc(p->scratch_bytes);
    p->list = calloc(most, sizeof *p->list);
    return p->scratch && p->list ? 0 : ATTND_NO_MEMORY;
}

/* Signals are the loop's: the thread, and those that libzmq has made, take none. */
static int start(struct kv_publisher *p)
{
    p->started = pthread_create(&p->thread, NULL, run, p) == 0;
    return p->started ? 0 : ATTND_NO_MEMORY;
}

/* Library and keys. */
static int prepare(struct kv_publisher *p, char *reason)
{
    char why[ZMQ_REASON_BYTES];
    int rc = zmq_open(&p->zmq, why);
    return rc == 0 ? read_keys(p, reason) : fail(rc, reason, "events.zmq.endpoint: %s", why);
}

int kv_publisher_check(const struct config *config, char reason[KV_PUBLISHER_REASON_BYTES])
{
    struct kv_publisher *p = calloc(1, sizeof *p);
    if (!p)
        return fail(ATTND_NO_MEMORY, reason, "events.zmq: no memory");
    p->config = config;
    int rc = prepare(p, reason);
    kv_publisher_close(p);
    return rc;
}

int kv_publisher_open(const struct config *config, struct kv_publisher **result,
                      char reason[KV_PUBLISHER_REASON_BYTES])
{
    struct kv_publisher *p = calloc(1, sizeof *p);
    sigset_t all, before;
    if (!p)
        return fail(ATTND_NO_MEMORY, reason, "events.zmq: no memory");
    p->config = config;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = prepare(p, reason);
    if (rc == 0 && (rc = make_memory(p)) != 0)
        fail(rc, reason, "events.zmq: no memory");
    if (rc == 0)
        rc = open_sockets(p, reason);
    if (rc == 0 && (rc = start(p)) != 0)
        fail(rc, reason, "events.zmq: no memory for its thread");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        kv_publisher_close(p);
        return rc;
    }
    *result = p;
    return 0;
}

void kv_publisher_close(struct kv_publisher *p)
{
    if (!p)
        return;
    if (p->started) {
        atomic_store(&p->stop, true);
        kv_events_wake(p->events);
        pthread_join(p->thread, NULL);
    }
    while (p->first)
        forget_first(p);
    close_endpoint(p, &p->pub);
    close_endpoint(p, &p->replay);
    if (p->zap)
        p->zmq.zmq_close(p->zap);
    while (p->context && p->zmq.zmq_ctx_term(p->context) != 0 && p->zmq.zmq_errno() == EINTR)
        continue;
    zmq_shut(&p->zmq);
    kv_events_destroy(p->events);
    free(p->scratch);
    free(p->list);
    explicit_bzero(p->secret, sizeof p->secret);
    free(p);
}

struct kv_events *kv_publisher_events(const struct kv_publisher *p)
{
    return p ? p->events : NULL;
}

uint64_t kv_publisher_bytes(const struct config *config)
{
    const struct kv_events_options options = options_of(config);
    if (!config->events.endpoint[0])
        return 0;
    return kv_events_bytes(&options) + kv_batch_bytes(kv_events_most(&options), options.block_size) +
           config->events.replay_bytes;
}

void kv_publisher_log(const struct kv_publisher *p)
{
    if (!p)
        return;
    log_line(LOG_INFO, "kv events on %s%s%s", p->pub.url, p->replay.socket ? ", past ones on " : "",
             p->replay.url);
    if (p->has_curve)
        log_line(LOG_INFO, "kv events: CURVE, public key %s, %u client%s", p->public_key, p->client_count,
                 plural(p->client_count));
}
