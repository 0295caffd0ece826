/* http_server.c - the life of a connection.
 *
 *            head complete                message complete            written
 *   HEAD ------------------> BODY -----> [WAITING] -----> REPLYING ----------> HEAD, or CLOSING
 *     |  refused: answer and close  |                        (one answer at a time; a pipelined
 *     +-----------------------------+                         request waits in the input buffer)
 *
 * The input buffer holds the head of the current request at its front, so that every span of the
 * request points into it, and behind it whatever was read since. The head is looked at as a whole:
 * first by http_head_fault(), then by llhttp, then by check_head() for what neither knows (host,
 * limits).
 *
 * The end of the client's stream while it waits for an answer counts as its going away, also when only
 * its sending side was shut down: there is no telling them apart, and the answer's work should stop.
 *
 * A connection that was told an error it caused itself is closed the polite way: our side is shut down,
 * what still arrives is dropped for LINGER_S, so that the client reads the answer before it sees a
 * reset. */
#include "server/http_server.h"

#include "config/log.h"
#include "server/http_head.h"
#include "server/peer.h"

#include <llhttp.h>

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Static_assert(LLHTTP_STRICT_MODE == 1, "llhttp accepts smuggled headers unless it is compiled strict");

enum {
    INPUT_BYTES = 2 * HTTP_HEAD_BYTES_MAX,
    READ_MAX = 1 << 20, /* bytes of a body, of one read */
    OUTPUT_HEAD_BYTES_MAX = 1024,
    REFUSING_CONNECTIONS = 8, /* beyond the limit, to say 503 with */
    ACCEPT_BACKLOG = 511,
    LINGER_S = 2,
    TICK_MS = 500,                     /* how exactly timeouts are kept */
    BODY_BYTES_PER_S_MIN = 256 * 1024, /* slower clients would keep memory from others */
    URL_BYTES_MAX = 160,
    PHRASE_BYTES = 48,
    TLS_HANDSHAKE = 0x16 /* the first byte of a connection (RFC 8446, 5.1) */
};

enum phase {
    PHASE_FREE,
    PHASE_HEAD,
    PHASE_BODY,
    PHASE_WAITING,
    PHASE_REPLYING,
    PHASE_LINGERING,
    PHASE_CLOSING
};

struct header {
    struct http_text name, value;
};

struct connection {
    struct http_server *server;
    enum phase phase;
    union {
        uv_handle_t any;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } handle;
    uv_write_t write;
    uint64_t deadline_ms;   /* loop time at which patience ends, */
    uint64_t body_until_ms; /* and at which a body has to be there, however steadily it comes */
    llhttp_t parser;
    uint64_t peer, number; /* peer.h; of the connection, none is used twice */

    size_t head_bytes;  /* front of `input` that belongs to the current request */
    size_t input_bytes; /* filled part of `input` */
    size_t body_bytes;  /* filled part of `body` */
    size_t raw_bytes;   /* of the body, chunk sizes and extensions included */
    unsigned header_count;
    struct header headers[HTTP_HEADERS_MAX];
    struct http_text url, authority; /* the authority of a URL that has one */
    bool complete;                   /* the parser has seen the end of the message */
    bool body_overflow;              /* it was longer than exchange.body_max */
    bool sink_refused;               /* the answer is the sink's problem */
    bool head_only;                  /* HEAD */
    bool reading;                    /* uv_read_start is in effect */
    bool close_after;                /* the answer under way is the last */
    bool refusing;                   /* beyond limits.connections: gets a 503, whatever it asks */
    bool streaming;                  /* the head of an answer in parts has been sent */
    bool chunked;                    /* its parts are framed; HTTP/1.0 gets them plain */
    char chunk_head[20];             /* size of the part being sent */
    char fed;                        /* the last byte that the parser was given */

    struct http_exchange exchange;
    char output_head[OUTPUT_HEAD_BYTES_MAX];
    char *input;  /* INPUT_BYTES */
    char *body;   /* HTTP_BODY_BYTES_MAX */
    char *output; /* HTTP_REPLY_BYTES_MAX */
};

struct http_server {
    uv_loop_t *loop;
    struct config_limits limits;
    struct http_service service;
    llhttp_settings_t settings;
    union {
        uv_handle_t any;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } listener;
    uv_timer_t tick;
    char url[URL_BYTES_MAX];
    struct listen_address address;
    uint32_t open, slots; /* connections in use, and all */
    bool draining;
    uint64_t accepted; /* connections so far */
    bool accept_waits; /* a client is in the backlog and no slot was free */
    struct connection *connections;
    char *buffers; /* one mapping for every connection's three */
    size_t buffers_bytes;
};

static void process(struct connection *c);
static void start_reading(struct connection *c);
static void accept_client(struct http_server *server);

/* ---- small helpers ------------------------------------------------------------------------------- */

bool http_text_is(struct http_text span, const char *text)
{
    return span.n == strlen(text) && memcmp(span.bytes, text, span.n) == 0;
}

static void set_deadline(struct connection *c, uint32_t seconds)
{
    c->deadline_ms = uv_now(c->server->loop) + (uint64_t)seconds * 1000;
}

/* The value of the header `name`, or a span of no bytes; `*count` says how often it occurs. */
static struct http_text find_header(const struct connection *c, const char *name, unsigned *count)
{
    struct http_text value = {"", 0};
    *count = 0;
    for (unsigned i = 0; i < c->header_count; i++) {
        const struct header *h = &c->headers[i];
        if (h->name.n == strlen(name) && strncasecmp(h->name.bytes, name, h->name.n) == 0) {
            value = h->value;
            ++*count;
        }
    }
    return value;
}

/* The problem's body. `pointer`: the JSON pointer of what is wrong, or NULL. */
static void write_problem(struct http_exchange *x, int status, const char *pointer, char *detail)
{
    char type[64], all[640];
    struct json_writer *w = &x->reply;
    for (char *p = detail; *p; p++) /* what it quotes may be cut, or no UTF-8 at all */
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    snprintf(all, sizeof all, "%s%s%s%s", x->prefix, pointer ? pointer : "", pointer ? ": " : "", detail);
    json_writer_init(w, w->buffer, w->capacity);
    x->tail_count = 0;
    x->http_status = status_http(status);
    if (x->http_status == 503) /* it may be better soon */
        snprintf(x->extra, sizeof x->extra, "Retry-After: 1\r\n");
    x->content_type = "application/problem+json";
    snprintf(type, sizeof type, "/problems/%s", status_code(status));
    for (char *p = type; *p; p++)
        *p = *p == '_' ? '-' : *p;
    json_open(w, NULL, '{');
    json_string(w, "type", type);
    json_string(w, "title", status_title(status));
    json_uint(w, "status", (uint64_t)x->http_status);
    json_string(w, "detail", all);
    json_string(w, "code", status_code(status));
    json_string(w, "request_id", x->request_id);
    if (pointer) {
        json_open(w, "errors", '[');
        json_open(w, NULL, '{');
        json_string(w, "pointer", pointer);
        json_string(w, "detail", detail);
        json_close(w, '}');
        json_close(w, ']');
    }
    json_close(w, '}');
    json_raw(w, "\n");
    log_line(LOG_WARNING, "refused %.*s: %d %s: %s (request %s)", (int)x->path.n, x->path.bytes,
             x->http_status, status_code(status), all, x->request_id);
}

void http_problem(struct http_exchange *x, int status, const char *format, ...)
{
    char detail[512];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    write_problem(x, status, NULL, detail);
}

void http_problem_at(struct http_exchange *x, int status, const char *pointer, const char *wants)
{
    char detail[512], place[128];
    snprintf(detail, sizeof detail, "%s", wants);
    snprintf(place, sizeof place, "%s", pointer);
    for (char *p = place; *p; p++) /* it may quote a name of the client's */
        *p = (unsigned char)*p < 0x80 ? *p : '?';
    write_problem(x, status, place, detail);
}

/* "NO_CONTENT" as llhttp names it -> "No Content" */
static void reason_phrase(int http_status, char phrase[PHRASE_BYTES])
{
    const char *name = "Unknown";
    switch (http_status) {
#define XX(number, constant, text)                                                                           \
    case number:                                                                                             \
        name = #constant;                                                                                    \
        break;
        HTTP_STATUS_MAP(XX)
#undef XX
    default:
        break;
    }
    snprintf(phrase, PHRASE_BYTES, "%s", http_status == 414 ? "URI Too Long" : name);
    for (size_t i = 1; phrase[i] && http_status != 200 && http_status != 414; i++) {
        bool first = phrase[i - 1] == ' ';
        phrase[i] = phrase[i] == '_' ? ' ' : first ? phrase[i] : (char)tolower((unsigned char)phrase[i]);
    }
}

/* ---- closing ------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle)
{
    struct connection *c = handle->data;
    struct http_server *server = c->server;
    c->phase = PHASE_FREE;
    server->open--;
    if (server->accept_waits)
        accept_client(server);
}

/* The exchange ends without its answer: its handler stops what it has under way. */
static void abandon(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    if (x->pending || x->upload || x->staging)
        c->server->service.abandoned(x, c->server->service.cookie);
    x->pending = x->upload = x->staging = NULL;
}

static void close_connection(struct connection *c)
{
    if (c->phase == PHASE_CLOSING)
        return;
    abandon(c);
    c->phase = PHASE_CLOSING;
    uv_close((uv_handle_t *)&c->handle, on_closed);
}

static void linger(struct connection *c)
{
    c->phase = PHASE_LINGERING;
    c->head_bytes = c->input_bytes = 0; /* room to drop what still arrives into */
    start_reading(c);
    set_deadline(c, LINGER_S);
    int fd;
    if (uv_fileno((uv_handle_t *)&c->handle, &fd) != 0 || shutdown(fd, SHUT_WR) != 0)
        close_connection(c);
}

/* ---- answering ----------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status)
{
    struct connection *c = write->data;
    if (c->phase == PHASE_CLOSING)
        return;
    if (status < 0) {
        close_connection(c);
        return;
    }
    if (c->exchange.more) {
        json_writer_init(&c->exchange.reply, c->output, HTTP_REPLY_BYTES_MAX);
        c->phase = PHASE_WAITING;
        c->server->service.proceed(&c->exchange, c->server->service.cookie);
        return;
    }
    if (c->exchange.pending)
        c->server->service.finished(&c->exchange, c->server->service.cookie);
    c->exchange.pending = NULL;
    if (c->close_after || c->server->draining) {
        linger(c);
        return;
    }
    c->input_bytes -= c->head_bytes;
    memmove(c->input, c->input + c->head_bytes, c->input_bytes);
    c->head_bytes = 0;
    c->phase = PHASE_HEAD;
    set_deadline(c, c->input_bytes ? c->server->limits.header_timeout_s : c->server->limits.keepalive_s);
    start_reading(c); /* a pipelining client may have filled the buffer */
    process(c);
}

/* The head of the answer into c->output_head; `length` is its header lines about the body. Returns its
 * bytes. */
static unsigned write_head(struct connection *c, const char *length)
{
    const struct http_exchange *x = &c->exchange;
    char date[40], phrase[PHRASE_BYTES];
    struct tm utc;
    time_t now = time(NULL);
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    reason_phrase(x->http_status, phrase);
    int n = snprintf(c->output_head, sizeof c->output_head,
                     "HTTP/1.1 %d %s\r\nDate: %s\r\n%sCache-Control: no-store\r\nX-Request-Id: %s\r\n"
                     "X-Attnd-Node: n0\r\n%s%s\r\n",
                     x->http_status, phrase, date, length, x->request_id, x->extra,
                     c->close_after ? "Connection: close\r\n" : "");
    assert(n > 0 && (size_t)n < sizeof c->output_head);
    return (unsigned)n;
}

static void write_parts(struct connection *c, const uv_buf_t *parts, unsigned n)
{
    c->phase = PHASE_REPLYING;
    set_deadline(c, c->server->limits.body_timeout_s);
    c->write.data = c;
    if (uv_write(&c->write, &c->handle.stream, parts, n, on_written) != 0)
        close_connection(c);
}

/* Send a part of an answer that comes in parts: the first brings the head, the last ends it. */
static void send_part(struct connection *c)
{
    static char line_end[] = "\r\n", last[] = "\r\n0\r\n\r\n";
    struct http_exchange *x = &c->exchange;
    uv_buf_t parts[4];
    unsigned n = 0;
    if (!c->streaming) {
        char length[128];
        c->streaming = true;
        c->chunked = c->parser.http_minor == 1;
        if (!c->chunked || !llhttp_should_keep_alive(&c->parser) || c->server->draining)
            c->close_after = true;
        snprintf(length, sizeof length, "Content-Type: %s\r\n%s", x->content_type,
                 c->chunked ? "Transfer-Encoding: chunked\r\n" : "");
        parts[n++] = uv_buf_init(c->output_head, write_head(c, length));
        if (c->head_only && x->more) {
            abandon(c);
            x->more = false;
        }
    }
    if (!c->head_only) {
        int bytes = snprintf(c->chunk_head, sizeof c->chunk_head, "%zx\r\n", x->reply.length);
        if (c->chunked)
            parts[n++] = uv_buf_init(c->chunk_head, (unsigned)bytes);
        parts[n++] = uv_buf_init(x->reply.buffer, (unsigned)x->reply.length);
        if (c->chunked)
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
        log_line(LOG_ERROR, "request %s: an answer of more than %d bytes was cut off", x->request_id,
                 HTTP_REPLY_BYTES_MAX);
        http_problem(x, ATTND_INTERNAL, "the answer does not fit its buffer");
    }
    if (!llhttp_should_keep_alive(&c->parser) || c->server->draining || c->refusing)
        c->close_after = true;

    char length[96] = ""; /* a 204 or 304 has neither body nor length */
    bool empty = x->http_status == 204 || x->http_status == 304;
    size_t bytes = x->reply.length;
    for (unsigned i = 0; i < x->tail_count; i++)
        bytes += x->tail[i].n;
    if (!empty)
        snprintf(length, sizeof length, "Content-Type: %s\r\nContent-Length: %zu\r\n", x->content_type,
                 bytes);
    uv_buf_t parts[2 + HTTP_TAILS_MAX] = {uv_buf_init(c->output_head, write_head(c, length)),
                                          uv_buf_init(x->reply.buffer, (unsigned)x->reply.length)};
    for (unsigned i = 0; i < x->tail_count; i++) /* libuv does not write to what it sends */
        parts[2 + i] = uv_buf_init((char *)(uintptr_t)x->tail[i].bytes, (unsigned)x->tail[i].n);
    write_parts(c, parts, c->head_only || empty ? 1 : 2 + x->tail_count);
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
    char detail[256];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    http_problem(&c->exchange, status, "%s", detail);
    end_with_problem(c);
}

/* ---- llhttp's callbacks: note where things are ---------------------------------------------------- */

/* The head is contiguous, so pieces of one span are too. */
static void extend(struct http_text *span, const char *at, size_t n)
{
    if (span->n == 0)
        span->bytes = at;
    span->n += n;
}

static int on_url(llhttp_t *parser, const char *at, size_t n)
{
    struct connection *c = parser->data;
    extend(&c->url, at, n);
    return c->url.n > HTTP_URL_BYTES_MAX ? HPE_USER : 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t n)
{
    struct connection *c = parser->data;
    if (c->head_bytes) /* a trailer: could say anything about a message already accepted */
        return HPE_USER;
    if (c->header_count == HTTP_HEADERS_MAX)
        return HPE_USER;
    extend(&c->headers[c->header_count].name, at, n);
    return 0;
}

static int on_header_value(llhttp_t *parser, const char *at, size_t n)
{
    struct connection *c = parser->data;
    if (c->header_count == HTTP_HEADERS_MAX)
        return HPE_USER;
    extend(&c->headers[c->header_count].value, at, n);
    return 0;
}

/* An Upgrade is an offer: it is not taken, and the request is served as it is (RFC 9110, 7.8). */
static int on_headers_complete(llhttp_t *parser)
{
    if (parser->method != HTTP_CONNECT)
        parser->upgrade = 0;
    return 0;
}

static int on_header_value_complete(llhttp_t *parser)
{
    struct connection *c = parser->data;
    c->header_count++;
    return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t n)
{
    struct connection *c = parser->data;
    if (n > c->exchange.body_max - c->body_bytes) {
        c->body_overflow = true;
        return HPE_USER;
    }
    if (c->exchange.sink && c->exchange.sink(&c->exchange, at, n) != 0) {
        c->sink_refused = true;
        return HPE_USER;
    }
    char *to = c->exchange.body_buffer + c->body_bytes;
    if (!c->exchange.sink && to != at) /* else it was read there */
        memcpy(to, at, n);
    c->body_bytes += n;
    return 0;
}

static int on_message_complete(llhttp_t *parser)
{
    struct connection *c = parser->data;
    c->complete = true;
    return HPE_PAUSED;
}

/* ---- the request --------------------------------------------------------------------------------- */

/* The client's id if it is 1 to 128 visible ASCII characters that need no quoting, else 16 random hex
 * digits. */
static void choose_request_id(struct connection *c)
{
    unsigned count;
    struct http_text given = find_header(c, "x-request-id", &count);
    char *id = c->exchange.request_id;
    bool sane = count == 1 && given.n >= 1 && given.n < HTTP_REQUEST_ID_BYTES;
    for (size_t i = 0; sane && i < given.n; i++)
        sane =
            given.bytes[i] > ' ' && given.bytes[i] < 0x7f && given.bytes[i] != '"' && given.bytes[i] != '\\';
    if (sane) {
        memcpy(id, given.bytes, given.n);
        id[given.n] = '\0';
        return;
    }
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random = uv_hrtime();
    snprintf(id, HTTP_REQUEST_ID_BYTES, "%016llx", (unsigned long long)random);
}

/* Path and query of the URL, whose authority, if it has one, is noted: http://HOST:PORT/PATH?QUERY. */
static struct http_text target_of(struct connection *c)
{
    static const char scheme[] = "http://";
    const size_t n = sizeof scheme - 1;
    c->authority = (struct http_text){"", 0};
    if (c->url.n <= n || strncasecmp(c->url.bytes, scheme, n) != 0)
        return c->url;
    struct http_text rest = {c->url.bytes + n, c->url.n - n};
    size_t end = 0;
    while (end < rest.n && rest.bytes[end] != '/' && rest.bytes[end] != '?')
        end++;
    c->authority = (struct http_text){rest.bytes, end};
    return (struct http_text){rest.bytes + end, rest.n - end};
}

static void begin_exchange(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    *x = (struct http_exchange){.peer = c->peer,
                                .connection = c->number,
                                .http_status = 200,
                                .content_type = "application/json",
                                .body_buffer = c->body,
                                .body_max = HTTP_BODY_BYTES_MAX};
    json_writer_init(&x->reply, c->output, HTTP_REPLY_BYTES_MAX);
    choose_request_id(c);
    unsigned types;
    x->body_type = find_header(c, "content-type", &types);
    x->accept = find_header(c, "accept", &types);
    x->if_none_match = find_header(c, "if-none-match", &types);
    x->body_length = c->parser.flags & F_CONTENT_LENGTH ? c->parser.content_length : 0;
    x->expects = find_header(c, "expect", &types).n > 0;
    struct http_text url = target_of(c);
    const char *mark = url.n ? memchr(url.bytes, '?', url.n) : NULL;
    size_t path = mark ? (size_t)(mark - url.bytes) : url.n;
    x->path = path ? (struct http_text){url.bytes, path} : (struct http_text){"/", 1};
    x->query = (struct http_text){url.bytes + path + (mark != NULL), url.n - path - (mark != NULL)};
}

/* An Origin is foreign unless its authority is a loopback name; "null" is foreign. */
static bool foreign_origin(struct http_text origin)
{
    const char *authority = origin.n ? memmem(origin.bytes, origin.n, "://", 3) : NULL;
    if (!authority)
        return true;
    authority += 3;
    return !listen_address_is_loopback_host(authority, origin.n - (size_t)(authority - origin.bytes));
}

/* The method into the exchange; false when it is not served at all. */
static bool note_method(struct connection *c)
{
    static const struct {
        uint8_t parsed;
        enum http_method method;
    } methods[] = {{HTTP_GET, HTTP_METHOD_GET},
                   {HTTP_HEAD, HTTP_METHOD_GET},
                   {HTTP_POST, HTTP_METHOD_POST},
                   {HTTP_PUT, HTTP_METHOD_PUT},
                   {HTTP_DELETE, HTTP_METHOD_DELETE}};
    c->head_only = c->parser.method == HTTP_HEAD;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].parsed == c->parser.method)
            c->exchange.method = methods[i].method;
    }
    return c->exchange.method != 0;
}

/* X-Request-Timeout-Ms into the exchange; false when it is no such number. */
static bool read_timeout(struct connection *c)
{
    unsigned count;
    struct http_text text = find_header(c, "x-request-timeout-ms", &count);
    uint32_t ms = 0;
    if (count == 0)
        return true;
    for (size_t i = 0; i < text.n && text.n <= 8; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
        ms = ms * 10 + (uint32_t)(text.bytes[i] - '0');
    }
    c->exchange.timeout_ms = ms;
    return count == 1 && ms >= 1 && ms <= 86400000;
}

/* What llhttp leaves to us. True when the request may go on; otherwise it has been refused. */
static bool check_head(struct connection *c)
{
    unsigned hosts, origins, expects, encodings, codings;
    struct http_text host = find_header(c, "host", &hosts);
    struct http_text coding = find_header(c, "content-encoding", &codings);
    struct http_text origin = find_header(c, "origin", &origins);
    struct http_text expect = find_header(c, "expect", &expects);
    struct http_text encoding = find_header(c, "transfer-encoding", &encodings);
    bool over_ip = !c->server->address.is_unix;
    if (c->authority.n) /* instead of the Host (RFC 9112, 3.2.2) */
        host = c->authority;
    if (c->refusing) {
        refuse(c, ATTND_BUSY, "limits.connections (%u) are open", c->server->limits.connections);
    } else if (c->parser.http_major != 1 || c->parser.http_minor > 1) {
        refuse(c, ATTND_BAD_VERSION, "HTTP/%d.%d", c->parser.http_major, c->parser.http_minor);
    } else if (c->parser.upgrade) { /* llhttp takes what follows for another protocol */
        refuse(c, ATTND_MALFORMED, "CONNECT is not served");
    } else if (origins > 1) {
        refuse(c, ATTND_MALFORMED, "wants at most one Origin header, not %u", origins);
    } else if (codings && (codings > 1 || coding.n != 8 || strncasecmp(coding.bytes, "identity", 8) != 0)) {
        refuse(c, ATTND_BAD_TYPE, "Content-Encoding is \"%.*s\"; send the body as it is", (int)coding.n,
               coding.bytes);
    } else if (hosts > 1 || (hosts == 0 && c->parser.http_minor == 1)) {
        refuse(c, ATTND_MALFORMED, "wants exactly one Host header, not %u", hosts);
    } else if (encodings && (c->parser.http_minor == 0 || encodings > 1 || encoding.n != 7 ||
                             strncasecmp(encoding.bytes, "chunked", 7) != 0)) {
        refuse(c, ATTND_MALFORMED, "of transfer encodings only chunked is served, and only in HTTP/1.1");
    } else if (over_ip && hosts && !listen_address_is_loopback_host(host.bytes, host.n)) {
        refuse(c, ATTND_FORBIDDEN, "Host is \"%.*s\", and only loopback names are served", (int)host.n,
               host.bytes);
    } else if (over_ip && origins && foreign_origin(origin)) {
        refuse(c, ATTND_FORBIDDEN, "Origin is \"%.*s\", and only loopback origins are served", (int)origin.n,
               origin.bytes);
    } else if (expects &&
               (expects > 1 || expect.n != 12 || strncasecmp(expect.bytes, "100-continue", 12) != 0)) {
        refuse(c, ATTND_EXPECTATION, "Expect is \"%.*s\"", (int)expect.n, expect.bytes);
    } else if (!read_timeout(c)) {
        refuse(c, ATTND_MALFORMED, "X-Request-Timeout-Ms wants a number of milliseconds in 1..86400000");
    } else if (!note_method(c)) {
        snprintf(c->exchange.extra, sizeof c->exchange.extra, "Allow: GET, HEAD, POST, PUT, DELETE\r\n");
        refuse(c, ATTND_BAD_METHOD, "%s is not served", llhttp_method_name(c->parser.method));
    } else if (!c->server->service.begun(&c->exchange, c->server->service.cookie)) {
        end_with_problem(c);
    } else if (c->parser.content_length > c->exchange.body_max && (c->parser.flags & F_CONTENT_LENGTH)) {
        refuse(c, ATTND_BODY_TOO_LARGE, "%llu bytes; a body has at most %zu",
               (unsigned long long)c->parser.content_length, c->exchange.body_max);
    } else {
        return true;
    }
    return false;
}

static void answer(struct connection *c)
{
    struct http_exchange *x = &c->exchange;
    x->body = (struct http_text){x->body_buffer, x->sink ? 0 : c->body_bytes};
    c->phase = PHASE_WAITING;
    c->server->service.handle(x, c->server->service.cookie);
    if (!x->deferred)
        send_reply(c);
}

void http_answer(struct http_exchange *x)
{
    struct connection *c = (struct connection *)((char *)x - offsetof(struct connection, exchange));
    assert(c->phase == PHASE_WAITING && x->deferred);
    x->deferred = false;
    send_reply(c);
}

/* Say what the parser did not like. */
static void refuse_syntax(struct connection *c, enum llhttp_errno error)
{
    if (c->exchange.request_id[0] == '\0')
        begin_exchange(c);
    if (c->sink_refused)
        end_with_problem(c);
    else if (c->url.n > HTTP_URL_BYTES_MAX)
        refuse(c, ATTND_URL_TOO_LONG, "more than %d bytes", HTTP_URL_BYTES_MAX);
    else if (c->body_overflow && c->exchange.wants_length)
        refuse(c, ATTND_LENGTH_REQUIRED, "more than %zu bytes are taken with a Content-Length only",
               c->exchange.body_max);
    else if (c->body_overflow)
        refuse(c, ATTND_BODY_TOO_LARGE, "a body has at most %zu bytes", c->exchange.body_max);
    else if (error == HPE_USER && c->header_count == HTTP_HEADERS_MAX)
        refuse(c, ATTND_HEADERS_TOO_LARGE, "more than %d headers", HTTP_HEADERS_MAX);
    else if (error == HPE_USER)
        refuse(c, ATTND_MALFORMED, "trailers are not served");
    else
        refuse(c, ATTND_MALFORMED, "%s", llhttp_get_error_reason(&c->parser));
}

/* Give `n` bytes of input to the parser. True when it wants more or the message is complete; `*used`
 * tells how many of them belong to the message. */
static bool feed(struct connection *c, const char *bytes, size_t n, size_t *used)
{
    enum llhttp_errno error = llhttp_execute(&c->parser, bytes, n);
    char before = c->fed; /* the byte before these */
    *used = n;
    c->fed = n ? bytes[n - 1] : c->fed;
    if (error == HPE_OK)
        return true;
    if (error == HPE_PAUSED && c->complete) {
        *used = (size_t)(llhttp_get_error_pos(&c->parser) - bytes);
        char last_but_one = *used > 1 ? bytes[*used - 2] : before;
        if (!(c->parser.flags & F_CHUNKED) || last_but_one == '\r')
            return true;
        refuse(c, ATTND_MALFORMED, "a LF without CR ends the chunks");
        return false;
    }
    refuse_syntax(c, error);
    return false;
}

static void start_request(struct connection *c)
{
    llhttp_init(&c->parser, HTTP_REQUEST, &c->server->settings);
    c->parser.data = c;
    memset(c->headers, 0, sizeof c->headers);
    c->header_count = 0;
    c->url = (struct http_text){"", 0};
    c->body_bytes = c->raw_bytes = 0;
    c->complete = c->body_overflow = c->sink_refused = c->head_only = c->streaming = false;
    c->exchange.request_id[0] = '\0';
}

/* A whole head is at the front of the input. True when the request goes on. */
static bool read_head(struct connection *c, size_t n)
{
    size_t used;
    start_request(c);
    const char *fault = n > HTTP_HEAD_BYTES_MAX ? NULL : http_head_fault(c->input, n);
    if (n > HTTP_HEAD_BYTES_MAX || fault) {
        begin_exchange(c);
        if (fault)
            refuse(c, ATTND_MALFORMED, "%s", fault);
        else
            refuse(c, ATTND_HEADERS_TOO_LARGE, "more than %d bytes", HTTP_HEAD_BYTES_MAX);
        return false;
    }
    if (!feed(c, c->input, n, &used))
        return false;
    c->head_bytes = n;
    begin_exchange(c);
    return check_head(c);
}

static void send_continue(struct connection *c)
{
    static char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
    uv_buf_t part = uv_buf_init(text, sizeof text - 1);
    unsigned expects;
    find_header(c, "expect", &expects);
    if (expects && c->parser.http_minor == 1 && uv_try_write(&c->handle.stream, &part, 1) != (int)part.len)
        close_connection(c);
}

/* A client that speaks TLS begins with a handshake, and would wait for ours. */
static void refuse_tls(struct connection *c)
{
    start_request(c);
    begin_exchange(c);
    refuse(c, ATTND_MALFORMED, "this is TLS, and http:// is served here: put a proxy in front for https://");
}

/* Do what can be done with the input that is there. */
static void process(struct connection *c)
{
    if (c->phase == PHASE_HEAD && c->input_bytes && c->input[0] == TLS_HANDSHAKE) {
        refuse_tls(c);
        return;
    }
    if (c->phase == PHASE_HEAD) {
        size_t n = http_head_length(c->input, c->input_bytes);
        if (n == 0 && c->input_bytes <= HTTP_HEAD_BYTES_MAX)
            return; /* more is to come */
        if (!read_head(c, n ? n : HTTP_HEAD_BYTES_MAX + 1))
            return;
        c->phase = PHASE_BODY;
        set_deadline(c, c->server->limits.body_timeout_s);
        uint64_t bytes = c->exchange.body_length ? c->exchange.body_length : c->exchange.body_max;
        c->body_until_ms = c->deadline_ms + bytes * 1000 / BODY_BYTES_PER_S_MIN;
        if (!c->complete && c->input_bytes == c->head_bytes)
            send_continue(c);
    }
    if (c->phase == PHASE_BODY && !c->complete) {
        size_t used, n = c->input_bytes - c->head_bytes;
        char *rest = c->input + c->head_bytes;
        c->raw_bytes += n;
        if (c->raw_bytes > 2 * c->exchange.body_max) { /* chunks that are mostly framing: an attack */
            refuse(c, ATTND_BODY_TOO_LARGE, "more than %zu bytes with the chunks' own",
                   2 * c->exchange.body_max);
            return;
        }
        if (n == 0 || !feed(c, rest, n, &used))
            return;
        c->input_bytes -= used;
        memmove(rest, rest + used, n - used);
        start_reading(c);
    }
    if (c->phase == PHASE_BODY && c->complete)
        answer(c);
}

/* `n` bytes more of the body are where they belong. */
static void process_body(struct connection *c, size_t n)
{
    size_t used;
    if (feed(c, c->exchange.body_buffer + c->body_bytes, n, &used) && c->complete)
        answer(c);
}

/* ---- libuv's callbacks --------------------------------------------------------------------------- */

/* What is still to come of a body that is read to where it is collected: one with a length, once what came
 * with the head has been taken out of the input. */
static size_t body_left(const struct connection *c)
{
    const struct http_exchange *x = &c->exchange;
    if (c->phase != PHASE_BODY || x->sink || x->body_length == 0 || c->input_bytes > c->head_bytes)
        return 0;
    return (size_t)x->body_length - c->body_bytes;
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
        close_connection(c);
        return;
    }
    if (c->phase == PHASE_LINGERING || n == 0)
        return;
    if (c->phase == PHASE_HEAD && c->input_bytes == 0)
        set_deadline(c, c->server->limits.header_timeout_s);
    if (c->phase == PHASE_BODY)
        set_deadline(c, c->server->limits.body_timeout_s);
    if (c->phase == PHASE_BODY && c->deadline_ms > c->body_until_ms)
        c->deadline_ms = c->body_until_ms;
    if (body_left(c))
        process_body(c, (size_t)n);
    else {
        c->input_bytes += (size_t)n;
        process(c);
    }
}

static void start_reading(struct connection *c)
{
    if (!c->reading && uv_read_start(&c->handle.stream, on_alloc, on_read) == 0)
        c->reading = true;
}

static struct connection *free_slot(struct http_server *server)
{
    for (uint32_t i = 0; i < server->slots; i++) {
        if (server->connections[i].phase == PHASE_FREE)
            return &server->connections[i];
    }
    return NULL;
}

/* Note who is at the other end. */
static void note_peer(struct http_server *server, struct connection *c)
{
    struct sockaddr_storage address = {0};
    int bytes = sizeof address;
    uv_os_fd_t fd;
    c->number = ++server->accepted;
    c->peer = 0;
    if (server->address.is_unix && uv_fileno(&c->handle.any, &fd) == 0)
        c->peer = peer_of_socket(fd);
    else if (!server->address.is_unix &&
             uv_tcp_getpeername(&c->handle.tcp, (struct sockaddr *)&address, &bytes) == 0)
        c->peer = peer_of_address((const struct sockaddr *)&address);
}

static void accept_client(struct http_server *server)
{
    struct connection *c = free_slot(server);
    server->accept_waits = c == NULL;
    if (!c || server->draining)
        return;
    if (server->address.is_unix)
        uv_pipe_init(server->loop, &c->handle.pipe, 0);
    else
        uv_tcp_init(server->loop, &c->handle.tcp);
    c->handle.stream.data = c;
    c->refusing = server->open++ >= server->limits.connections;
    c->head_bytes = c->input_bytes = 0;
    c->close_after = c->reading = false;
    c->phase = PHASE_HEAD;
    set_deadline(c, server->limits.header_timeout_s);
    if (uv_accept(&server->listener.stream, &c->handle.stream) != 0) {
        close_connection(c);
        return;
    }
    note_peer(server, c);
    if (!server->address.is_unix)
        uv_tcp_nodelay(&c->handle.tcp, 1);
    start_reading(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    if (status == 0)
        accept_client(listener->data);
    else
        log_line(LOG_WARNING, "a connection could not be accepted: %s", uv_strerror(status));
}

/* Twice a second: end what has run out of patience, and let those read again who made room. */
static void on_tick(uv_timer_t *timer)
{
    struct http_server *server = timer->data;
    uint64_t now = uv_now(server->loop);
    for (uint32_t i = 0; i < server->slots; i++) {
        struct connection *c = &server->connections[i];
        if (c->phase == PHASE_FREE || c->phase == PHASE_CLOSING)
            continue;
        if (now < c->deadline_ms || c->phase == PHASE_WAITING) {
            if (c->input_bytes < INPUT_BYTES)
                start_reading(c);
            continue;
        }
        bool in_request = (c->phase == PHASE_HEAD && c->input_bytes) || c->phase == PHASE_BODY;
        if (!in_request) {
            close_connection(c);
            continue;
        }
        if (c->phase == PHASE_HEAD) {
            start_request(c);
            begin_exchange(c);
        }
        refuse(c, ATTND_TIMEOUT, "the %s did not arrive in time", c->phase == PHASE_HEAD ? "head" : "body");
    }
}

/* ---- the server ---------------------------------------------------------------------------------- */

/* A socket file that nobody listens on any more is in the way; one that is in use is not touched. */
static void remove_stale_socket(const char *path)
{
    struct stat info;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (stat(path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    strcpy(address.sun_path, path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        unlink(path);
    close(fd);
}

/* Whether the folder of a socket is there: libuv says EACCES where it is not. */
static bool has_folder(const char *path)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return true;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return access(folder, F_OK) == 0 || errno != ENOENT;
}

static int listen_unix(struct http_server *server)
{
    const char *path = server->address.path;
    uv_pipe_init(server->loop, &server->listener.pipe, 0);
    remove_stale_socket(path);
    snprintf(server->url, sizeof server->url, "unix:%s", path);
    return has_folder(path) ? uv_pipe_bind(&server->listener.pipe, path) : UV_ENOENT;
}

static int listen_tcp(struct http_server *server)
{
    uv_tcp_init(server->loop, &server->listener.tcp);
    return uv_tcp_bind(&server->listener.tcp, (const struct sockaddr *)&server->address.ip, 0);
}

/* The address the kernel gave us: the port may have been 0. */
static void note_url(struct http_server *server)
{
    struct sockaddr_storage name;
    int bytes = sizeof name;
    char host[INET6_ADDRSTRLEN];
    if (server->address.is_unix ||
        uv_tcp_getsockname(&server->listener.tcp, (struct sockaddr *)&name, &bytes) != 0)
        return;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&name;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&name;
    bool is_v6 = name.ss_family == AF_INET6;
    inet_ntop(name.ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host, sizeof host);
    snprintf(server->url, sizeof server->url, is_v6 ? "http://[%s]:%u" : "http://%s:%u", host,
             ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
}

static void on_failed_listener_closed(uv_handle_t *handle)
{
    struct http_server *server = handle->data;
    http_server_destroy(server);
}

static int map_connections(struct http_server *server)
{
    size_t each = INPUT_BYTES + HTTP_BODY_BYTES_MAX + HTTP_REPLY_BYTES_MAX;
    server->slots = server->limits.connections + REFUSING_CONNECTIONS;
    server->buffers_bytes = each * server->slots;
    server->connections = calloc(server->slots, sizeof *server->connections);
    server->buffers = mmap(NULL, server->buffers_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!server->connections || server->buffers == MAP_FAILED)
        return UV_ENOMEM;
    for (uint32_t i = 0; i < server->slots; i++) {
        struct connection *c = &server->connections[i];
        c->server = server;
        c->input = server->buffers + each * i;
        c->body = c->input + INPUT_BYTES;
        c->output = c->body + HTTP_BODY_BYTES_MAX;
    }
    return 0;
}

int http_server_create(uv_loop_t *loop, const struct listen_address *address,
                       const struct config_limits *limits, const struct http_service *service,
                       struct http_server **result)
{
    struct http_server *server = calloc(1, sizeof *server);
    if (!server)
        return UV_ENOMEM;
    server->loop = loop;
    server->limits = *limits;
    server->service = *service;
    server->address = *address;
    server->buffers = MAP_FAILED;
    llhttp_settings_init(&server->settings);
    server->settings.on_url = on_url;
    server->settings.on_header_field = on_header_field;
    server->settings.on_header_value = on_header_value;
    server->settings.on_header_value_complete = on_header_value_complete;
    server->settings.on_headers_complete = on_headers_complete;
    server->settings.on_body = on_body;
    server->settings.on_message_complete = on_message_complete;
    int rc = map_connections(server);
    if (rc != 0) {
        http_server_destroy(server);
        return rc;
    }
    rc = address->is_unix ? listen_unix(server) : listen_tcp(server);
    server->listener.any.data = server;
    if (rc == 0)
        rc = uv_listen(&server->listener.stream, ACCEPT_BACKLOG, on_connection);
    if (rc != 0) {
        uv_close(&server->listener.any, on_failed_listener_closed);
        uv_run(loop, UV_RUN_DEFAULT);
        return rc;
    }
    note_url(server);
    uv_timer_init(loop, &server->tick);
    server->tick.data = server;
    uv_timer_start(&server->tick, on_tick, TICK_MS, TICK_MS);
    uv_unref((uv_handle_t *)&server->tick);
    *result = server;
    return 0;
}

const char *http_server_url(const struct http_server *server)
{
    return server->url;
}

void http_server_drain(struct http_server *server)
{
    if (server->draining)
        return;
    server->draining = true;
    uv_close(&server->listener.any, NULL);
    for (uint32_t i = 0; i < server->slots; i++) {
        struct connection *c = &server->connections[i];
        if (c->phase == PHASE_HEAD && c->input_bytes == 0)
            close_connection(c);
    }
}

uint32_t http_server_cut(struct http_server *server)
{
    uint32_t cut = 0;
    for (uint32_t i = 0; i < server->slots; i++) {
        struct connection *c = &server->connections[i];
        if (c->phase == PHASE_FREE || c->phase == PHASE_CLOSING)
            continue;
        cut += c->phase != PHASE_LINGERING;
        close_connection(c);
    }
    return cut;
}

void http_server_destroy(struct http_server *server)
{
    if (!server)
        return;
    if (server->address.is_unix && server->draining)
        unlink(server->address.path);
    if (server->tick.loop) {
        uv_close((uv_handle_t *)&server->tick, NULL);
        uv_run(server->loop, UV_RUN_DEFAULT);
    }
    if (server->buffers != MAP_FAILED)
        munmap(server->buffers, server->buffers_bytes);
    free(server->connections);
    free(server);
}
