/* http_server.h - HTTP/1.1 over TCP and unix sockets: connections, limits, one request at a time on
 * each.
 *
 * All memory is taken by http_server_create(): a connection costs its three fixed buffers, which stay
 * untouched (and so cost no memory) until it is used. Everything here belongs to the loop thread. */
#ifndef SERVER_HTTP_SERVER_H
#define SERVER_HTTP_SERVER_H

#include "config/config.h"
#include "config/json_writer.h"
#include "server/listen_address.h"

#include <uv.h>

enum {
    HTTP_HEAD_BYTES_MAX = 16 * 1024, /* request line and headers; more is 431 */
    HTTP_URL_BYTES_MAX = 4096,       /* more is 414 */
    HTTP_HEADERS_MAX = 64,           /* more is 431 */
    HTTP_JSON_BYTES_MAX = 64 * 1024, /* of a JSON body; more is 413 */
    HTTP_BODY_BYTES_MAX =
        CONFIG_SMALL_BODY_BYTES, /* of a body, unless http_service.begun gives it more room */
    HTTP_TAILS_MAX = 2,
    HTTP_REPLY_BYTES_MAX = 2 * 1024 * 1024,
    HTTP_REQUEST_ID_BYTES = 129,
    HTTP_EXTRA_BYTES = 256
};

enum http_method { HTTP_METHOD_GET = 1, HTTP_METHOD_POST = 2, HTTP_METHOD_PUT = 4, HTTP_METHOD_DELETE = 8 };

/* A span of the request's bytes; not NUL-terminated. */
struct http_text {
    const char *bytes;
    size_t n;
};

struct http_exchange;
struct route;

/* Takes the next `n` bytes of a body. Returns 0, or a status with the answer made a problem: the rest
 * is not read. */
typedef int (*http_sink)(struct http_exchange *x, const char *bytes, size_t n);

/* One request and its answer, lent to a handler. HEAD arrives as GET. */
struct http_exchange {
    enum http_method method;
    uint64_t peer, connection;    /* who asks (peer.h), and a number of the connection that no other has */
    struct http_text path, query; /* query without its '?' */
    struct http_text body, body_type; /* Content-Type, empty if there is none */
    struct http_text accept;          /* Accept, likewise */
    struct http_text if_none_match;   /* likewise */
    uint64_t body_length;             /* Content-Length; 0 if there is none */
    uint32_t timeout_ms;              /* X-Request-Timeout-Ms; 0 if there is none */
    bool expects;                     /* 100-continue: the body waits for it */
    const struct route *route;        /* the handler's, found by begun; NULL: none, */
    unsigned methods;                 /* but one with these methods */
    uint64_t id;                      /* in its path */
    http_sink sink;                   /* set by begun: takes the body as it comes; else it is collected */
    char *body_buffer;                /* where it is collected, and */
    size_t body_max;                  /* how much may come: begun may set both */
    bool wants_length;                /* set by begun: more would be taken if there were a Content-Length */
    void *upload;                     /* the sink's */
    void *staging;                    /* the handler's: what body_buffer is, when begun has set it */
    struct json_writer reply;         /* the handler writes the body here, */
    char prefix[16];                  /* what the detail of a problem begins with */
    struct http_text tail[HTTP_TAILS_MAX]; /* and what follows it, sent from where it lies, here: it
                                              stays there until finished is called */
    unsigned tail_count;
    int http_status;              /* 200 unless the handler says otherwise */
    const char *content_type;     /* application/json unless the handler says otherwise */
    char extra[HTTP_EXTRA_BYTES]; /* more header lines, each ended by CRLF */
    char request_id[HTTP_REQUEST_ID_BYTES];
    bool deferred; /* the handler will call http_answer() later */
    bool more;     /* what is in `reply` is a part of the answer; http_proceed is called when it is sent */
    void *pending; /* the handler's, while deferred or between two parts */
};

/* What serves the requests, all on the loop thread. */
struct http_service {
    /* begun: the head is there and in order, a body may follow. May give the exchange a sink. False:
     * the answer is a problem, and the body is not read. */
    bool (*begun)(struct http_exchange *x, void *cookie);

    /* handle: once for every well-formed request. Either fills in the answer before it returns, or sets
     * x->deferred and has http_answer() called when it is there. */
    void (*handle)(struct http_exchange *x, void *cookie);

    /* finished: the answer has been sent, and the exchange has still `pending`. */
    void (*finished)(struct http_exchange *x, void *cookie);

    /* proceed: a part of the answer has been sent; the next one is wanted, by http_answer(). */
    void (*proceed)(struct http_exchange *x, void *cookie);

    /* abandoned: an exchange that has `pending`, `upload` or `staging` ends without its answer, since
     * its client has gone or its body was refused. http_answer() must not be called any more. */
    void (*abandoned)(struct http_exchange *x, void *cookie);
    void *cookie;
};

struct http_server;

/* http_server_create(loop, address, limits, service, server): listen on `address`. Returns 0 or a
 * negative libuv code and nothing to destroy. */
MUST_USE int http_server_create(uv_loop_t *loop, const struct listen_address *address,
                                const struct config_limits *limits, const struct http_service *service,
                                struct http_server **server);

/* http_server_url: where it really listens ("http://127.0.0.1:43117", "unix:/run/attnd.sock"). */
const char *http_server_url(const struct http_server *server);

/* http_server_drain: accept nothing more, close idle connections now and the others after their answer.
 * The loop runs out of work when the last one is closed. Idempotent. */
void http_server_drain(struct http_server *server);

/* http_server_cut: close what is still open, whatever is under way there. Returns how many. */
uint32_t http_server_cut(struct http_server *server);

/* http_server_destroy: free it, once the loop has run out. NULL is fine. */
void http_server_destroy(struct http_server *server);

/* http_answer: send the answer of a deferred exchange, or its next part (x->more, chunked). */
void http_answer(struct http_exchange *x);

/* http_problem(x, status, format, ...): make the answer an RFC 9457 problem with a detail sentence,
 * dropping what was written before. */
void http_problem(struct http_exchange *x, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* http_problem_at: likewise, of what `pointer` names: the detail becomes "pointer: wants", and `errors`
 * lists the pointer. */
void http_problem_at(struct http_exchange *x, int status, const char *pointer, const char *wants);

/* http_text_is: whether the span equals `text`. */
bool http_text_is(struct http_text span, const char *text);

#endif
