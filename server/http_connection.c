/* SPDX-License-Identifier: Apache-2.0 */
/* http_connection.c - the life of a connection.
 *
 *            head complete                message complete            written
 *   HEAD ------------------> BODY -----> [WAITING] -----> REPLYING ----------> HEAD, or CLOSING
 *     |  refused: answer and close  |                        (one answer at a time; a pipelined
 *     +-----------------------------+                         request waits in the input buffer)
 *
 * The input buffer holds the head of the current request at its front, so that every span of the
 * request points into it, and behind it whatever was read since. What the head says is http_request.c's.
 *
 * A client may shut down its sending side and wait for the answer. Whether it has gone altogether shows at
 * once on a unix socket. Over TCP both look alike until something is sent: the answer's beginning or, while
 * there is none, a "100 Continue", which every client of HTTP/1.1 must skip; one that has gone resets the
 * connection. Its exchange is then abandoned, also when the answer was written, but never arrived:
 * REPLYING becomes DELIVERING until the kernel says that it has.
 *
 * A connection that was told an error it caused itself is closed the polite way: our side is shut down,
 * what still arrives is dropped for LINGER_S, so that the client reads the answer before it sees a
 * reset. */
#include "server/http_connection.h"

#include "config/log.h"
#include "config/mapping.h"
#include "server/http_reply.h"
#include "server/peer.h"
#include "server/proxy_protocol.h"

#include <assert.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    INPUT_BYTES = 2 * HTTP_HEAD_BYTES_MAX,
    READ_MAX =
        256 << 10, /* bytes of a body, of one read; one a turn of the loop: a tenth of a millisecond, */
    SOCKET_BYTES = 24 << 10, /* each way; the kernel takes twice that */
    LARGE_SOCKET_BYTES =
        512 << 10, /* likewise, once something larger than those is sent: a write copies as much at once */
    KEPT_BYTES = 32 << 10,    /* of a buffer that was used: the rest goes back to the system */
    TURN_READ_MAX = 1 << 20,  /* and of all connections in a turn */
    TURN_ANSWERS_NS = 500000, /* in which connections go on whose answers are written */
    OUTPUT_HEAD_BYTES_MAX = 1536,
    REFUSALS = 64, /* connections beyond the limit, to say 503 on */
    LINGER_S = 2,
    TICK_MS = 500,      /* how exactly timeouts are kept, */
    ENDED_TICK_MS = 20, /* while some client has shut down its sending side */
    LISTENERS_MAX = 16,
    TRIM_MS = 20, /* between two looks at what closed connections have used, */
    TRIMMED = 16, /* of so many of them: a tenth of a millisecond */
    PAGE = 4096,
    ROOMY_BYTES = 4 * LARGE_SOCKET_BYTES, /* of a socket with large buffers, as the kernel counts */
    TLS_HANDSHAKE = 0x16                  /* the first byte of a connection (RFC 8446, 5.1) */
};

enum phase {
    PHASE_FREE,
    PHASE_PROXY,
    PHASE_HEAD,
    PHASE_BODY,
    PHASE_WAITING,
    PHASE_REPLYING,
    PHASE_DELIVERING,
    PHASE_LINGERING,
    PHASE_CLOSING
};

struct connection {
    struct http_connections *all;
    enum phase phase;
    union {
        uv_handle_t any;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } handle;
    uv_write_t write;
    uint64_t
        deadline_ms; /* loop time at which patience ends, unless enough of a body or an answer has moved: */
    uint64_t moved;  /* bytes, since the deadline was set */
    size_t unsent;   /* of an answer, when it was */
    struct http_parser parser;
    uint64_t peer, number; /* peer.h; of the connection, none is used twice */
    char client[PEER_NAME_BYTES];

    size_t head_bytes;  /* front of `input` that belongs to the current request */
    size_t input_bytes; /* filled part of `input` */
    size_t body_bytes;  /* filled part of `body` */
    size_t raw_bytes;   /* of the body, chunk sizes and extensions included */
    const struct listen_options *listener;
    bool is_unix;       /* else TCP */
    bool by_address;    /* `peer` is one, not a uid */
    bool is_owner;      /* of a unix socket: the other end runs as we do, or as root */
    bool known;         /* some request of it came from somebody known */
    bool body_overflow; /* it was longer than exchange.body_max */
    bool reading;       /* uv_read_start is in effect */
    bool paused;        /* it has read enough for this turn: in http_connections.paused */
    bool roomy;         /* its socket's buffers are large */
    size_t charged;     /* of memory.bytes, for them and the body */
    size_t input_touched, body_touched, output_touched; /* bytes of the buffers that are resident, at most */
    bool close_after;                                   /* the answer under way is the last */
    bool ended;                                         /* the client sends no more */
    enum http_end why_closed;                           /* if it is closed amid a request, */
    uint8_t closed_in;                                  /* enum phase: where it was then */
    bool streaming;                                     /* the head of an answer in parts has been sent, */
    enum http_framing framing;                          /* which come so */
    char chunk_head[20];                                /* size of the part being sent */

    struct http_exchange exchange;
    char output_head[OUTPUT_HEAD_BYTES_MAX];
    char *input;  /* INPUT_BYTES */
    char *body;   /* HTTP_BODY_BYTES_MAX */
    char *output; /* HTTP_REPLY_BYTES_MAX */
};

struct http_connections {
    uv_loop_t *loop;
    struct config_limits limits;
    struct memory_budget *budget;
    struct http_service service;
    uv_timer_t tick, trim;
    uv_check_t turn_end;
    struct connection **paused; /* [paused_count] until then */
    uint32_t paused_count;
    uv_idle_t next_turn;
    struct connection *
        *written; /* [written_count] whose answer the kernel has taken at once: they go on then */
    uint32_t written_count;
    size_t turn_bytes;    /* read into bodies in this turn */
    uint32_t open, slots; /* connections in use, and all */
    uint32_t ended;       /* of those in use */
    bool draining;
    void (*emptied)(void *cookie); /* then: called when none is open */
    void *emptied_cookie;
    uint64_t accepted, refused;                   /* connections so far */
    struct http_listener *waiting[LISTENERS_MAX]; /* with a client, when no slot was free */
    uint32_t waiting_count;
    struct connection *connections;
    char *buffers; /* one mapping for every connection's three */
    size_t buffers_bytes;
};

static void process(struct connection *c);
static void start_reading(struct connection *c);
static void on_turn_end(uv_check_t *check);

/* ---- closing ------------------------------------------------------------------------------------- */

static void set_deadline(struct connection *c, uint32_t seconds)
{
    c->deadline_ms = uv_now(c->all->loop) + (uint64_t)seconds * 1000;
    c->moved = 0;
}

/* A client sends no more, or is no more. */
static void count_ended(struct http_connections *all, int change)
{
    bool some = all->ended > 0;
    all->ended += (uint32_t)change;
    if (some == (all->ended > 0))
        return;
    uv_timer_set_repeat(&all->tick, all->ended ? ENDED_TICK_MS : TICK_MS);
    uv_timer_again(&all->tick);
}

/* Let the system have what was used of a buffer, *touched bytes, but for `kept`. */
static void give_pages(char *buffer, size_t *touched, size_t kept)
{
    if (*touched <= kept)
        return;
    (void)madvise(buffer + kept, (*touched - kept + PAGE - 1) / PAGE * PAGE, MADV_DONTNEED);
    *touched = kept;
}

/* Now and then, some connections that are closed: what they have used goes back to the system. */
static void on_trim(uv_timer_t *timer)
{
    struct http_connections *all = timer->data;
    uint32_t n = 0;
    for (uint32_t i = 0; i < all->slots && n < TRIMMED; i++) {
        struct connection *c = &all->connections[i];
        if (c->phase != PHASE_FREE ||
            c->input_touched + c->body_touched + c->output_touched <= 3 * (size_t)PAGE)
            continue;
        give_pages(c->input, &c->input_touched, PAGE);
        give_pages(c->body, &c->body_touched, PAGE);
        give_pages(c->output, &c->output_touched, PAGE);
        n++;
    }
    if (n < TRIMMED)
        uv_timer_stop(timer);
}

static void note_touched(size_t *touched, size_t bytes)
{
    *touched = bytes > *touched ? bytes : *touched;
}

/* An exchange has ended: give back what it has of memory.bytes; when the connection is `closed`, too, all of it. */
static void give_memory(struct connection *c, bool closed)
{
    size_t socket = c->roomy && !closed ? ROOMY_BYTES : 0;
    memory_give(c->all->budget, c->charged - socket + c->exchange.memory);
    c->charged = socket;
    c->exchange.memory = 0;
    if (c->exchange.body_buffer == c->body)
        note_touched(&c->body_touched, c->body_bytes);
    note_touched(&c->output_touched, c->exchange.reply.length);
    give_pages(c->body, &c->body_touched, KEPT_BYTES);
    give_pages(c->output, &c->output_touched, KEPT_BYTES);
    if (closed && !uv_is_active((uv_handle_t *)&c->all->trim))
        uv_timer_start(&c->all->trim, on_trim, TRIM_MS, TRIM_MS);
}

/* Give the socket large buffers, if there is memory for them. */
static void make_roomy(struct connection *c)
{
    int send = LARGE_SOCKET_BYTES, receive = LARGE_SOCKET_BYTES;
    if (c->roomy || !memory_take_bulk(c->all->budget, ROOMY_BYTES))
        return;
    c->roomy = true;
    c->charged += ROOMY_BYTES;
    (void)uv_send_buffer_size(&c->handle.any, &send);
    (void)uv_recv_buffer_size(&c->handle.any, &receive);
}

static void on_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;
    struct http_connections *all = c->all;
    give_memory(c, true);
    c->roomy = false;
    c->phase = PHASE_FREE;
    all->open--;
    if (c->ended)
        count_ended(all, -1);
    if (all->waiting_count)
        http_connections_accept(all->waiting[--all->waiting_count], all);
    if (!all->draining || all->open > 0)
        return;
    uv_unref((uv_handle_t *)&all->tick);
    all->emptied(all->emptied_cookie);
}

/* The exchange ends without its answer: its handler stops what it has under way. */
static void abandon(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    if (x->pending || x->upload || x->staging)
        c->all->service.abandoned(x, c->all->service.cookie);
    x->pending = x->upload = x->staging = NULL;
}

/* The connection is closed amid a request: its handler tells of it. */
static void tell_unanswered(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    bool sending = c->closed_in == PHASE_REPLYING || c->closed_in == PHASE_DELIVERING;
    size_t unsent = uv_stream_get_write_queue_size(&c->handle.stream);
    x->sent_bytes -= unsent < x->sent_bytes ? unsent : x->sent_bytes;
    c->all->service.unanswered(x, c->why_closed,
                               c->streaming                 ? HTTP_STREAMING
                               : sending                    ? HTTP_SENDING
                               : c->closed_in == PHASE_BODY ? HTTP_ARRIVING
                                                            : HTTP_WAITING,
                               c->all->service.cookie);
}

static void close_handle(struct connection *c)
{
    if (c->closed_in == PHASE_BODY || c->closed_in == PHASE_WAITING || c->closed_in == PHASE_REPLYING ||
        c->closed_in == PHASE_DELIVERING)
        tell_unanswered(c);
    abandon(c);
    uv_close(&c->handle.any, on_closed);
}

/* What another thread uses stays until it has done so. */
static void close_because(struct connection *c, enum http_end why)
{
    if (c->phase == PHASE_CLOSING)
        return;
    c->closed_in = (uint8_t)c->phase;
    c->why_closed = why;
    c->phase = PHASE_CLOSING;
    if (!c->exchange.held)
        close_handle(c);
    else
        uv_read_stop(&c->handle.stream);
}

/* Likewise, since its client is no more, if it has a request under way. */
static void close_connection(struct connection *c)
{
    close_because(c, HTTP_CLIENT_GONE);
}

/* Whether nobody is at the other end any more: of a unix socket, or of a TCP connection that was reset. */
static bool has_gone(const struct connection *c)
{
    struct pollfd p = {.events = 0};
    return uv_fileno(&c->handle.any, &p.fd) == 0 && poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static void linger(struct connection *c)
{
    c->phase = PHASE_LINGERING;
    if (c->ended) {
        close_connection(c);
        return;
    }
    c->head_bytes = c->input_bytes = 0; /* room to drop what still arrives into */
    start_reading(c);
    set_deadline(c, LINGER_S);
    int fd;
    if (uv_fileno(&c->handle.any, &fd) != 0 || shutdown(fd, SHUT_WR) != 0)
        close_connection(c);
}

/* ---- answering ----------------------------------------------------------------------------------- */

/* The answer is with the client: go on to its next request. */
static void finish_answer(struct connection *c)
{
    c->all->service.answered(&c->exchange, c->all->service.cookie);
    if (c->exchange.pending)
        c->all->service.finished(&c->exchange, c->all->service.cookie);
    c->exchange.pending = NULL;
    give_memory(c, false);
    if (c->close_after || c->all->draining) {
        linger(c);
        return;
    }
    c->input_bytes -= c->head_bytes;
    memmove(c->input, c->input + c->head_bytes, c->input_bytes);
    c->head_bytes = 0;
    c->phase = PHASE_HEAD;
    set_deadline(c, c->input_bytes ? c->all->limits.header_timeout_s : c->all->limits.keepalive_s);
    start_reading(c); /* a pipelining client may have filled the buffer */
    process(c);
    if (c->ended && (c->phase == PHASE_HEAD || c->phase == PHASE_BODY)) /* no more of it will come */
        close_connection(c);
}

/* The answer is written, and the client sends no more: see whether it is still there to read it. */
static void see_delivery(struct connection *c)
{
    int fd, unsent;
    if (has_gone(c) || uv_fileno(&c->handle.any, &fd) != 0)
        close_connection(c);
    else if (c->is_unix || ioctl(fd, SIOCOUTQ, &unsent) != 0 || unsent == 0 ||
             uv_now(c->all->loop) >= c->deadline_ms)
        finish_answer(c);
}

/* What was to be sent has been. */
static void note_written(struct connection *c)
{
    if (c->exchange.more) {
        note_touched(&c->output_touched, c->exchange.reply.length);
        json_writer_init(&c->exchange.reply, c->output, HTTP_REPLY_BYTES_MAX);
        c->phase = PHASE_WAITING;
        c->all->service.proceed(&c->exchange, c->all->service.cookie);
        return;
    }
    if (c->ended) {
        c->phase = PHASE_DELIVERING;
        set_deadline(c, LINGER_S);
        see_delivery(c);
    } else {
        finish_answer(c);
    }
}

static void on_written(uv_write_t *write, int status)
{
    struct connection *c = write->data;
    if (c->phase == PHASE_CLOSING)
        return;
    if (status < 0)
        close_connection(c);
    else
        note_written(c);
}

/* In their order, as many as there is time for: then others have their turns. */
static void on_next_turn(uv_idle_t *idle)
{
    struct http_connections *all = idle->data;
    uint64_t until_ns = uv_hrtime() + TURN_ANSWERS_NS;
    uint32_t n = 0, count = all->written_count;
    while (n < count && (n == 0 || uv_hrtime() < until_ns)) {
        struct connection *c = all->written[n++];
        if (c->phase == PHASE_REPLYING)
            note_written(c);
    }
    all->written_count -= n;
    memmove(all->written, all->written + n, all->written_count * sizeof(struct connection *));
    if (all->written_count == 0)
        uv_idle_stop(idle);
}

/* Have the kernel take what it can at once; returns how many of the parts are left, from the front of which it has taken
 * some. libuv's own writes cost a system call more each (epoll_ctl). */
static unsigned write_at_once(struct connection *c, uv_buf_t *parts, unsigned n)
{
    int taken = uv_try_write(&c->handle.stream, parts, n);
    size_t left = taken > 0 ? (size_t)taken : 0;
    unsigned done = 0;
    while (done < n && left >= parts[done].len)
        left -= parts[done++].len;
    memmove(parts, parts + done, (n - done) * sizeof *parts);
    if (done < n)
        parts[0] = uv_buf_init(parts[0].base + left, (unsigned)(parts[0].len - left));
    return n - done;
}

static void write_parts(struct connection *c, uv_buf_t *parts, unsigned n)
{
    struct http_connections *all = c->all;
    size_t bytes = 0;
    for (unsigned i = 0; i < n; i++)
        bytes += parts[i].len;
    if (bytes > SOCKET_BYTES)
        make_roomy(c);
    c->phase = PHASE_REPLYING;
    c->unsent = bytes;
    set_deadline(c, c->all->limits.body_timeout_s);
    c->write.data = c;
    n = write_at_once(c, parts, n);
    if (n == 0) {
        all->written[all->written_count++] = c;
        uv_idle_start(&all->next_turn, on_next_turn);
        return;
    }
    if (uv_write(&c->write, &c->handle.stream, parts, n, on_written) != 0)
        close_connection(c);
}

/* The head of the answer, in c->output_head. */
static uv_buf_t head_part(struct connection *c, enum http_framing framing, uint64_t length)
{
    size_t n =
        http_reply_head(&c->exchange, framing, length, c->close_after, c->output_head, sizeof c->output_head);
    return uv_buf_init(c->output_head, (unsigned)n);
}

/* Send a part of an answer that comes in parts: the first brings the head, the last ends it. */
static void send_part(struct connection *c)
{
    static char line_end[] = "\r\n", last[] = "\r\n0\r\n\r\n";
    struct http_exchange *x = &c->exchange;
    uv_buf_t parts[4];
    unsigned n = 0;
    if (!c->streaming) {
        c->streaming = true;
        c->framing = x->head.is_1_0 ? HTTP_UNTIL_CLOSE : HTTP_CHUNKED;
        if (x->head.is_1_0 || !x->head.keeps_alive || c->all->draining)
            c->close_after = true;
        parts[n++] = head_part(c, c->framing, 0);
        if (x->head.head_only && x->more) {
            abandon(c);
            x->more = false;
        }
    }
    if (!x->head.head_only) {
        bool chunked = c->framing == HTTP_CHUNKED;
        int bytes = snprintf(c->chunk_head, sizeof c->chunk_head, "%zx\r\n", x->reply.length);
        if (chunked)
            parts[n++] = uv_buf_init(c->chunk_head, (unsigned)bytes);
        parts[n++] = uv_buf_init(x->reply.buffer, (unsigned)x->reply.length);
        x->sent_bytes += x->reply.length;
        if (chunked)
            parts[n++] =
                x->more ? uv_buf_init(line_end, sizeof line_end - 1) : uv_buf_init(last, sizeof last - 1);
    }
    write_parts(c, parts, n);
}

/* Send what stands in the exchange. */
static void send_reply(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    if (x->more || c->streaming) {
        send_part(c);
        return;
    }
    if (x->reply.overflow) {
        log_line(LOG_ERROR, "request %s: an answer of more than %d bytes was cut off", x->head.id,
                 HTTP_REPLY_BYTES_MAX);
        http_problem(x, ATTND_INTERNAL, "the answer does not fit its buffer");
    }
    if (!x->head.keeps_alive || c->all->draining)
        c->close_after = true;
    size_t bytes = x->reply.length;
    for (unsigned i = 0; i < x->tail_count; i++)
        bytes += x->tail[i].n;
    uv_buf_t parts[2 + HTTP_TAILS_MAX] = {head_part(c, HTTP_LENGTH, bytes),
                                          uv_buf_init(x->reply.buffer, (unsigned)x->reply.length)};
    for (unsigned i = 0; i < x->tail_count; i++) /* libuv does not write to what it sends */
        parts[2 + i] = uv_buf_init((char *)(uintptr_t)x->tail[i].bytes, (unsigned)x->tail[i].n);
    bool headed = x->head.head_only || http_reply_is_bare(x->http_status);
    x->sent_bytes = headed ? 0 : bytes;
    write_parts(c, parts, headed ? 1 : 2 + x->tail_count);
}

static struct connection *connection_of(struct http_exchange *x)
{
    return (struct connection *)((char *)x - offsetof(struct connection, exchange));
}

void http_answer(struct http_exchange *x)
{
    struct connection *c = connection_of(x);
    assert(c->phase == PHASE_WAITING && x->deferred && !x->held);
    x->deferred = false;
    send_reply(c);
}

/* Send the problem that stands in the exchange and, since the end of the request may not be known, end
 * the connection. */
static void end_with_problem(struct connection *c)
{
    abandon(c);
    c->close_after = true;
    send_reply(c);
}

/* Refuse the request, and the rest of the connection. */
static void __attribute__((format(printf, 3, 4)))
refuse(struct connection *c, int status, const char *format, ...)
{
    char detail[HTTP_FAULT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    if (status == ATTND_BAD_METHOD)
        snprintf(c->exchange.extra, sizeof c->exchange.extra, "Allow: GET, HEAD, POST, PUT, DELETE\r\n");
    http_problem(&c->exchange, status, "%s", detail);
    end_with_problem(c);
}

/* ---- the request --------------------------------------------------------------------------------- */

/* An exchange for the request that stands in its head. */
static void begin_exchange(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    struct http_request head = x->head;
    *x = (struct http_exchange){.head = head,
                                .listener = c->listener,
                                .peer = c->peer,
                                .is_owner = c->is_owner,
                                .connection = c->number,
                                .client = c->client,
                                .begun_ns = uv_hrtime(),
                                .http_status = 200,
                                .content_type = "application/json",
                                .body_buffer = c->body,
                                .body_max = HTTP_BODY_BYTES_MAX};
    json_writer_init(&x->reply, c->output, HTTP_REPLY_BYTES_MAX);
    c->body_bytes = c->raw_bytes = 0;
    c->body_overflow = c->streaming = false;
}

/* Likewise, when nothing of it could be read. */
static void begin_nothing(struct connection *c)
{
    http_request_none(&c->exchange.head);
    begin_exchange(c);
}

/* Ask who serves the request, and remember whether somebody known has sent it. */
static bool begin_serving(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    bool good = c->all->service.begun(x, c->all->service.cookie);
    c->known |= x->known;
    return good;
}

/* A whole head is at the front of the input. True when the request goes on. */
static bool read_head(struct connection *c, size_t n)
{
    struct http_exchange *x = &c->exchange;
    struct http_fault fault = {0};
    bool good = http_request_read(&c->parser, c->input, n, c->listener->local, &x->head, &fault);
    c->head_bytes = n;
    begin_exchange(c);
    if (!good)
        refuse(c, fault.status, "%s", fault.detail);
    else if (!begin_serving(c))
        end_with_problem(c);
    else if (x->head.has_length && x->head.body_length > x->body_max)
        refuse(c, ATTND_BODY_TOO_LARGE, "%llu bytes; a body has at most %zu",
               (unsigned long long)x->head.body_length, x->body_max);
    else
        return true;
    return false;
}

/* An http_take: the next bytes of the body. */
static int take_body(void *cookie, const char *bytes, size_t n)
{
    struct connection *c = cookie;
    struct http_exchange *x = &c->exchange;
    c->body_overflow = n > x->body_max - c->body_bytes;
    if (c->body_overflow)
        return ATTND_BODY_TOO_LARGE;
    int rc = x->sink ? x->sink(x, bytes, n) : 0;
    char *to = x->body_buffer + c->body_bytes;
    if (!x->sink && to != bytes) /* else it was read there */
        memcpy(to, bytes, n);
    c->body_bytes += n;
    return rc;
}

/* The whole body is there. */
static void handle(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    x->body = (struct http_text){x->body_buffer, x->sink ? 0 : c->body_bytes};
    c->phase = PHASE_WAITING;
    c->all->service.handle(x, c->all->service.cookie);
    if (!x->deferred)
        send_reply(c);
}

/* Read `n` bytes of what follows the head. False when the request has been refused; else `*used` of them
 * belong to it. */
static bool read_body(struct connection *c, const char *bytes, size_t n, size_t *used)
{
    const struct http_exchange *x = &c->exchange;
    struct http_fault fault = {0};
    enum http_progress progress = http_body_read(&c->parser, bytes, n, take_body, c, used, &fault);
    bool good = progress == HTTP_MORE || progress == HTTP_WHOLE;
    if (good && x->sink && x->sink(&c->exchange, NULL, 0) != 0) {
        end_with_problem(c);
        return false;
    }
    if (good)
        return true;
    if (progress == HTTP_REFUSED)
        refuse(c, fault.status, "%s", fault.detail);
    else if (!c->body_overflow) /* the sink's problem stands */
        end_with_problem(c);
    else if (x->wants_length)
        refuse(c, ATTND_LENGTH_REQUIRED, "more than %zu bytes are taken with a Content-Length only",
               x->body_max);
    else
        refuse(c, ATTND_BODY_TOO_LARGE, "a body has at most %zu bytes", x->body_max);
    return false;
}

/* Read on, or handle what is whole, unless another thread has the exchange. */
static void go_on(struct connection *c)
{
    if (c->exchange.held) {
        uv_read_stop(&c->handle.stream);
        c->reading = false;
    } else if (c->parser.complete) {
        handle(c);
    } else {
        start_reading(c);
    }
}

bool http_let_go(struct http_exchange *x)
{
    struct connection *c = connection_of(x);
    assert(x->held);
    x->held = false;
    if (c->phase == PHASE_CLOSING) {
        close_handle(c);
        return false;
    }
    if (c->phase != PHASE_BODY)
        return true;
    set_deadline(c, c->all->limits.body_timeout_s);
    if (x->failed)
        end_with_problem(c);
    else
        go_on(c);
    return true;
}

static void send_continue(struct connection *c)
{
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    uv_buf_t part = uv_buf_init(text, sizeof text - 1);
    if (!c->exchange.head.is_1_0 && uv_try_write(&c->handle.stream, &part, 1) != (int)part.len)
        close_connection(c);
}

/* A client that speaks TLS begins with a handshake, and would wait for ours. */
static void refuse_tls(struct connection *c)
{
    begin_nothing(c);
    refuse(c, ATTND_MALFORMED, "this is TLS, and http:// is served here: put a proxy in front for https://");
}

/* Take memory for a body that is collected; false: there is none, and the request has been refused. */
static bool take_body_memory(struct connection *c)
{
    const struct http_exchange *x = &c->exchange;
    bool none = x->head.has_length && x->head.body_length == 0,
         collected = !x->sink && x->body_buffer == c->body;
    size_t bytes = x->head.has_length ? (size_t)x->head.body_length : c->parser.complete ? 0 : x->body_max;
    if (none || !collected || bytes <= KEPT_BYTES)
        return true;
    if (memory_take_bulk(c->all->budget, bytes)) {
        c->charged += bytes;
        return true;
    }
    refuse(c, ATTND_BUSY, "memory.bytes (%llu MiB) are in use",
           (unsigned long long)(c->all->budget->limit >> 20));
    return false;
}

/* The head is in order: see how long its body may take. */
static void begin_body(struct connection *c)
{
    const struct http_exchange *x = &c->exchange;
    c->phase = PHASE_BODY;
    set_deadline(c, c->all->limits.body_timeout_s);
    if (x->head.body_length > SOCKET_BYTES)
        make_roomy(c);
    if (x->head.expects && !c->parser.complete && c->input_bytes == c->head_bytes)
        send_continue(c);
}

/* Whether there is room for the connection among all, and among those of its address that have shown no key. */
static bool has_room(const struct connection *c)
{
    const struct http_connections *all = c->all;
    uint32_t unknown = 0, most = all->limits.unknown_connections;
    for (uint32_t i = 0; most && c->by_address && i < all->slots; i++) {
        const struct connection *other = &all->connections[i];
        unknown += other->phase != PHASE_FREE && other->phase != PHASE_CLOSING && other->by_address &&
                   !other->known && other->peer == c->peer;
    }
    return all->open <= all->limits.connections && (most == 0 || unknown <= most);
}

/* Tell a client that there is no room for it. */
static void refuse_connection(struct connection *c)
{
    const struct config_limits *limits = &c->all->limits;
    c->all->refused++;
    begin_nothing(c);
    if (c->all->open > limits->connections)
        refuse(c, ATTND_BUSY, "limits.connections (%u) are open", limits->connections);
    else
        refuse(c, ATTND_BUSY, "limits.unknown_connections (%u) are open from your address without a key",
               limits->unknown_connections);
}

/* The header of a proxy that may send one. False: it is not whole yet, or the connection ends. */
static bool read_proxy(struct connection *c)
{
    struct sockaddr_storage client;
    int n = proxy_protocol_read(c->input, c->input_bytes, &client);
    if (n < 0) {
        log_line(LOG_WARNING,
                 "a connection from %s does not begin with a header of the PROXY protocol, version 2: closed",
                 c->client);
        close_connection(c);
    }
    if (n <= 0)
        return false;
    c->is_owner = false; /* that is the proxy */
    if (client.ss_family != AF_UNSPEC) {
        c->peer = peer_of_address((const struct sockaddr *)&client);
        peer_name((const struct sockaddr *)&client, c->client);
        c->by_address = true;
    }
    c->input_bytes -= (size_t)n;
    memmove(c->input, c->input + n, c->input_bytes);
    c->phase = PHASE_HEAD;
    if (has_room(c))
        return true;
    refuse_connection(c);
    return false;
}

/* Do what can be done with the input that is there. */
static void process(struct connection *c)
{
    if (c->phase == PHASE_PROXY && !read_proxy(c))
        return;
    if (c->phase == PHASE_HEAD && c->input_bytes && c->input[0] == TLS_HANDSHAKE) {
        refuse_tls(c);
        return;
    }
    if (c->phase == PHASE_HEAD) {
        size_t n = http_head_length(c->input, c->input_bytes);
        if (n == 0 && c->input_bytes <= HTTP_HEAD_BYTES_MAX)
            return; /* more is to come */
        if (!read_head(c, n ? n : HTTP_HEAD_BYTES_MAX + 1) || !take_body_memory(c))
            return;
        begin_body(c);
    }
    if (c->phase == PHASE_BODY && !c->parser.complete) {
        size_t used, n = c->input_bytes - c->head_bytes;
        char *rest = c->input + c->head_bytes;
        c->raw_bytes += n;
        if (c->raw_bytes > 2 * c->exchange.body_max) { /* chunks that are mostly framing: an attack */
            refuse(c, ATTND_BODY_TOO_LARGE, "more than %zu bytes with the chunks' own",
                   2 * c->exchange.body_max);
            return;
        }
        if (n == 0 || !read_body(c, rest, n, &used))
            return;
        c->input_bytes -= used;
        memmove(rest, rest + used, n - used);
    }
    if (c->phase == PHASE_BODY)
        go_on(c);
}

/* `n` bytes more of the body are where they belong. */
static void process_body(struct connection *c, size_t n)
{
    size_t used;
    if (read_body(c, c->exchange.body_buffer + c->body_bytes, n, &used))
        go_on(c);
}

/* ---- libuv's callbacks --------------------------------------------------------------------------- */

/* What is still to come of a body that is read to where it is collected: one with a length, once what came
 * with the head has been taken out of the input. */
static size_t body_left(const struct connection *c)
{
    const struct http_exchange *x = &c->exchange;
    if (c->phase != PHASE_BODY || x->sink || x->head.body_length == 0 || c->input_bytes > c->head_bytes)
        return 0;
    return (size_t)x->head.body_length - c->body_bytes;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer)
{
    struct connection *c = handle->data;
    size_t left = body_left(c);
    (void)suggested;
    if (left)
        *buffer =
            uv_buf_init(c->exchange.body_buffer + c->body_bytes, left < READ_MAX ? (unsigned)left : READ_MAX);
    else
        *buffer = uv_buf_init(c->input + c->input_bytes, (unsigned)(INPUT_BYTES - c->input_bytes));
}

/* Nothing more will be read: if an answer is owed and somebody may be there to read it, it is still given. */
static void note_end(struct connection *c, bool in_order)
{
    bool owed = c->phase == PHASE_WAITING || c->phase == PHASE_REPLYING;
    uv_read_stop(&c->handle.stream);
    c->reading = false;
    if (!in_order || !owed || has_gone(c)) {
        close_connection(c);
        return;
    }
    c->ended = true;
    count_ended(c->all, +1);
    if (c->phase == PHASE_WAITING && !c->is_unix && !c->streaming)
        send_continue(c);
    if (has_gone(c)) /* the answer to that may be here already */
        close_connection(c);
}

/* A large body comes faster than it should be taken: others have their turns. */
static void pause_reading(struct connection *c, size_t n)
{
    struct http_connections *all = c->all;
    all->turn_bytes += n;
    if (c->paused || (n < READ_MAX && all->turn_bytes < TURN_READ_MAX))
        return;
    uv_read_stop(&c->handle.stream);
    c->reading = false;
    c->paused = true;
    all->paused[all->paused_count++] = c;
    uv_check_start(&all->turn_end, on_turn_end);
}

static void on_turn_end(uv_check_t *check)
{
    struct http_connections *all = check->data;
    uint32_t n = all->paused_count;
    all->turn_bytes = all->paused_count = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct connection *c = all->paused[i];
        c->paused = false;
        if (c->phase != PHASE_FREE && c->phase != PHASE_CLOSING && !c->exchange.held)
            start_reading(c);
    }
    uv_check_stop(check);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct connection *c = stream->data;
    (void)buffer;
    if (n == UV_ENOBUFS) { /* a pipelining client is ahead of its answers: it waits */
        uv_read_stop(stream);
        c->reading = false;
        return;
    }
    if (n < 0) {
        note_end(c, n == UV_EOF);
        return;
    }
    if (c->phase == PHASE_LINGERING || n == 0)
        return;
    if (c->phase == PHASE_HEAD && c->input_bytes == 0)
        set_deadline(c, c->all->limits.header_timeout_s);
    c->moved += (uint64_t)n;
    if (body_left(c)) {
        pause_reading(c, (size_t)n);
        process_body(c, (size_t)n);
    } else {
        c->input_bytes += (size_t)n;
        note_touched(&c->input_touched, c->input_bytes);
        process(c);
    }
}

static void start_reading(struct connection *c)
{
    if (!c->reading && !c->ended && !c->paused && uv_read_start(&c->handle.stream, on_alloc, on_read) == 0)
        c->reading = true;
}

static struct connection *free_slot(struct http_connections *all)
{
    for (uint32_t i = 0; i < all->slots; i++) {
        if (all->connections[i].phase == PHASE_FREE)
            return &all->connections[i];
    }
    return NULL;
}

enum note { NOTED, NOT_TRUSTED /* its headers of the PROXY protocol would not be believed */, HAS_GONE };

/* Note who is at the other end. */
static enum note note_peer(struct connection *c)
{
    const struct listen_options *l = c->listener;
    struct sockaddr_storage address = {0};
    int bytes = sizeof address;
    uv_os_fd_t fd;
    c->number = ++c->all->accepted;
    c->peer = 0;
    c->is_owner = false;
    snprintf(c->client, sizeof c->client, "a unix socket");
    if (c->is_unix) {
        c->is_owner = uv_fileno(&c->handle.any, &fd) == 0 && peer_of_socket(fd, &c->peer) &&
                      (c->peer == 0 || c->peer == geteuid());
        return NOTED;
    }
    if (uv_tcp_getpeername(&c->handle.tcp, (struct sockaddr *)&address, &bytes) != 0)
        return HAS_GONE;
    c->peer = peer_of_address((const struct sockaddr *)&address);
    peer_name((const struct sockaddr *)&address, c->client);
    return !l->proxy_protocol || address_ranges_contain(l->trusted, (const struct sockaddr *)&address)
               ? NOTED
               : NOT_TRUSTED;
}

/* All slots are in use: the client that has been refused for longest has had time to read it. */
static void end_a_refusal(struct http_connections *all)
{
    struct connection *oldest = NULL;
    for (uint32_t i = 0; i < all->slots; i++) {
        struct connection *c = &all->connections[i];
        if (c->phase == PHASE_LINGERING && (!oldest || c->deadline_ms < oldest->deadline_ms))
            oldest = c;
    }
    if (oldest)
        close_connection(oldest);
}

void http_connections_accept(struct http_listener *listener, void *cookie)
{
    struct http_connections *all = cookie;
    struct connection *c = free_slot(all);
    if (all->draining)
        return;
    if (!c) {
        assert(all->waiting_count < LISTENERS_MAX);
        all->waiting[all->waiting_count++] = listener;
        end_a_refusal(all);
        return;
    }
    c->listener = http_listener_options(listener);
    c->is_unix = c->listener->address.is_unix;
    c->by_address = !c->is_unix;
    c->known = false;
    if (c->is_unix)
        uv_pipe_init(all->loop, &c->handle.pipe, 0);
    else
        uv_tcp_init(all->loop, &c->handle.tcp);
    c->handle.stream.data = c;
    all->open++;
    c->head_bytes = c->input_bytes = 0;
    c->close_after = c->reading = c->ended = false;
    c->phase = c->listener->proxy_protocol ? PHASE_PROXY : PHASE_HEAD;
    set_deadline(c, all->limits.header_timeout_s);
    if (http_listener_accept(listener, &c->handle.stream) != 0) {
        close_connection(c);
        return;
    }
    enum note note = note_peer(c);
    if (note == NOT_TRUSTED)
        log_line(LOG_WARNING, "%s: a connection from %s, which is not in trusted_proxies: closed",
                 http_listener_url(listener), c->client);
    if (note != NOTED) {
        close_connection(c);
        return;
    }
    int send = SOCKET_BYTES, receive = SOCKET_BYTES;
    (void)uv_send_buffer_size(&c->handle.any, &send); /* else it is as the system has it */
    (void)uv_recv_buffer_size(&c->handle.any, &receive);
    if (!c->is_unix)
        uv_tcp_nodelay(&c->handle.tcp, 1);
    start_reading(c);
    if (all->open > all->limits.connections || (c->phase == PHASE_HEAD && !has_room(c)))
        refuse_connection(c);
}

/* Whether a body or an answer has moved by enough since its deadline was set: then it has another one. */
static bool has_moved(struct connection *c)
{
    const struct config_limits *limits = &c->all->limits;
    uint64_t least = (uint64_t)limits->bytes_per_s * limits->body_timeout_s;
    size_t unsent = uv_stream_get_write_queue_size(&c->handle.stream);
    if (c->phase == PHASE_REPLYING)
        c->moved = c->unsent > unsent ? c->unsent - unsent : 0;
    if ((c->phase != PHASE_REPLYING && c->phase != PHASE_BODY) || c->moved < least)
        return false;
    c->unsent = unsent;
    set_deadline(c, limits->body_timeout_s);
    return true;
}

/* Now and then: end what has run out of patience, and let those read again who made room. */
static void on_tick(uv_timer_t *timer)
{
    struct http_connections *all = timer->data;
    uint64_t now = uv_now(all->loop);
    for (uint32_t i = 0; i < all->slots; i++) {
        struct connection *c = &all->connections[i];
        if (c->phase == PHASE_FREE || c->phase == PHASE_CLOSING || c->exchange.held)
            continue;
        if (c->phase == PHASE_DELIVERING) {
            see_delivery(c);
            continue;
        }
        if (c->ended && has_gone(c)) {
            close_connection(c);
            continue;
        }
        if (now < c->deadline_ms || c->phase == PHASE_WAITING) {
            if (c->input_bytes < INPUT_BYTES)
                start_reading(c);
            continue;
        }
        if (has_moved(c))
            continue;
        bool in_request = (c->phase == PHASE_HEAD && c->input_bytes) || c->phase == PHASE_BODY;
        if (!in_request) {
            close_because(c, HTTP_CLIENT_SLOW);
            continue;
        }
        if (c->phase == PHASE_HEAD)
            begin_nothing(c);
        refuse(c, ATTND_TIMEOUT, "the %s did not arrive in time", c->phase == PHASE_HEAD ? "head" : "body");
    }
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static int map_connections(struct http_connections *all)
{
    size_t each = INPUT_BYTES + HTTP_BODY_BYTES_MAX + HTTP_REPLY_BYTES_MAX;
    all->slots = all->limits.connections + REFUSALS;
    all->buffers_bytes = each * all->slots;
    all->connections = calloc(all->slots, sizeof *all->connections);
    all->buffers = mapping_create(all->buffers_bytes, 0);
    all->paused = calloc(all->slots, sizeof(struct connection *));
    all->written = calloc(2 * (size_t)all->slots, sizeof(struct connection *));
    if (!all->connections || !all->paused || !all->written || !all->buffers)
        return UV_ENOMEM;
    for (uint32_t i = 0; i < all->slots; i++) {
        struct connection *c = &all->connections[i];
        c->all = all;
        c->input = all->buffers + each * i;
        c->body = c->input + INPUT_BYTES;
        c->output = c->body + HTTP_BODY_BYTES_MAX;
    }
    return 0;
}

int http_connections_create(uv_loop_t *loop, const struct config_limits *limits, struct memory_budget *budget,
                            const struct http_service *service, struct http_connections **result)
{
    struct http_connections *all = calloc(1, sizeof *all);
    if (!all)
        return UV_ENOMEM;
    all->loop = loop;
    all->limits = *limits;
    all->budget = budget;
    all->service = *service;
    int rc = map_connections(all);
    if (rc != 0) {
        http_connections_destroy(all);
        return rc;
    }
    uv_timer_init(loop, &all->tick);
    all->tick.data = all;
    uv_timer_start(&all->tick, on_tick, TICK_MS, TICK_MS);
    uv_unref((uv_handle_t *)&all->tick);
    uv_timer_init(loop, &all->trim);
    all->trim.data = all;
    uv_unref((uv_handle_t *)&all->trim);
    uv_check_init(loop, &all->turn_end);
    all->turn_end.data = all;
    uv_idle_init(loop, &all->next_turn);
    all->next_turn.data = all;
    *result = all;
    return 0;
}

struct http_connection_counts http_connections_counts(const struct http_connections *all)
{
    return all ? (struct http_connection_counts){all->open, all->accepted, all->refused}
               : (struct http_connection_counts){0};
}

void http_connections_drain(struct http_connections *all, void (*emptied)(void *cookie), void *cookie)
{
    if (all->draining)
        return;
    all->draining = true;
    all->emptied = emptied;
    all->emptied_cookie = cookie;
    if (all->open == 0)
        emptied(cookie);
    else
        uv_ref((uv_handle_t *)&all
                   ->tick); /* one that waits, and whose client sends no more, keeps no loop alive */
    all->waiting_count = 0;
    for (uint32_t i = 0; i < all->slots; i++) {
        struct connection *c = &all->connections[i];
        if ((c->phase == PHASE_HEAD || c->phase == PHASE_PROXY) && c->input_bytes == 0)
            close_connection(c);
    }
}

uint32_t http_connections_cut(struct http_connections *all)
{
    uint32_t cut = 0;
    for (uint32_t i = 0; i < all->slots; i++) {
        struct connection *c = &all->connections[i];
        if (c->phase == PHASE_FREE || c->phase == PHASE_CLOSING)
            continue;
        cut += c->phase != PHASE_LINGERING;
        close_because(c, HTTP_CUT);
    }
    return cut;
}

void http_connections_destroy(struct http_connections *all)
{
    if (!all)
        return;
    if (all->tick.loop) {
        uv_close((uv_handle_t *)&all->tick, NULL);
        uv_close((uv_handle_t *)&all->turn_end, NULL);
        uv_close((uv_handle_t *)&all->next_turn, NULL);
        uv_close((uv_handle_t *)&all->trim, NULL);
        uv_run(all->loop, UV_RUN_DEFAULT);
    }
    mapping_destroy(all->buffers, all->buffers_bytes);
    free(all->connections);
    free(all->paused);
    free(all->written);
    free(all);
}
