/* SPDX-License-Identifier: Apache-2.0 */
/* http_exchange.h - one request and its answer, as they are lent to what serves it. Loop thread. */
#ifndef SERVER_HTTP_EXCHANGE_H
#define SERVER_HTTP_EXCHANGE_H

#include "config/config.h"
#include "config/json_writer.h"
#include "server/http_request.h"
#include "server/listen_address.h"

enum {
    HTTP_JSON_BYTES_MAX = 64 * 1024, /* of a JSON body; more is 413 */
    HTTP_BODY_BYTES_MAX =
        CONFIG_SMALL_BODY_BYTES, /* of a body, unless http_service.begun gives it more room */
    HTTP_TAILS_MAX = 3,
    HTTP_REPLY_BYTES_MAX = 2 * 1024 * 1024,
    HTTP_EXTRA_BYTES = 256
};

struct api_key;
struct http_exchange;
struct route;

/* Takes the next `n` bytes of a body; 0 bytes: there are no more now. Returns 0, or a status with the answer
 * made a problem: the rest is not read. */
typedef int (*http_sink)(struct http_exchange *x, const char *bytes, size_t n);

struct http_exchange {
    struct http_request head;
    const struct listen_options *listener; /* at which its client came in */
    uint64_t begun_ns;                     /* uv_hrtime(), when its head was there */
    uint64_t peer, connection; /* who asks (peer.h), and a number of the connection that no other has */
    const char *client;        /* the same for the log: an address, or "a unix socket" */
    bool is_owner;             /* on a unix socket: its process runs as we do, or as root */
    struct http_text body;     /* all of it, when it was collected */

    /* Set by begun. */
    struct api_key *key;       /* of the client; NULL: there are none */
    unsigned scopes;           /* enum config_scope: what it may do */
    bool known;                /* its connection counts as one of somebody known; it has shown `key` */
    bool stranger;             /* it has shown a key that is none */
    const struct route *route; /* NULL: none, */
    const char *route_path;    /* else its path, with {id}, */
    uint32_t route_number;     /* and its place among all routes */
    unsigned methods;          /* but one with these methods */
    uint64_t id;               /* in its path */
    http_sink sink;            /* takes the body as it comes; NULL: it is collected, */
    char *body_buffer;         /* here, */
    size_t body_max;           /* and so much of it */
    bool wants_length;         /* more would be taken if there were a Content-Length */
    void *upload;              /* the sink's, */
    uint64_t upload_memory;    /* taken of memory.bytes for that, */
    bool counts;               /* which counts as one */
    void *staging;             /* what body_buffer is, when begun has set it, and */
    uint64_t staging_bytes;    /* how much of it is counted for the key */

    /* The answer. */
    int http_status;                       /* 200 unless the handler says otherwise */
    int problem;                           /* the status that it tells of; 0: it is no problem */
    const char *content_type;              /* application/json unless the handler says otherwise */
    struct json_writer reply;              /* the handler writes the body here, */
    char prefix[32];                       /* what the detail of a problem begins with */
    struct http_text tail[HTTP_TAILS_MAX]; /* and what follows it, sent from where it lies, here: it
                                              stays there until finished is called */
    unsigned tail_count;
    uint64_t sent_bytes;          /* of the body: what has been handed to be written */
    char extra[HTTP_EXTRA_BYTES]; /* more header lines, each ended by CRLF */
    const char *headers;          /* constant ones, in place of "Cache-Control: no-store"; NULL: that */
    bool deferred;                /* the handler will call http_answer() later */
    bool held;   /* another thread uses the exchange: it stays as it is until http_let_go() */
    bool failed; /* set while it was held: the answer is a problem */
    bool more;   /* what is in `reply` is a part of the answer; proceed is called when it is sent */
    struct log_subject
        subject;   /* which sequences, or lease, it has made or used, as far as its path does not say so */
    bool cut;      /* of a streamed workload: the end of the daemon has cancelled it, as its last line says */
    void *pending; /* the handler's, while deferred or between two parts */
    uint64_t memory; /* of memory.bytes, taken for the answer until it is sent */
};

/* Why a request ends without its answer: its client has gone, or does not read; or the daemon ends. */
enum http_end { HTTP_CLIENT_GONE, HTTP_CLIENT_SLOW, HTTP_CUT };

/* How far it was: its body was arriving; its answer was not there; that was being sent, or was a stream, of which parts have been. */
enum http_stage { HTTP_ARRIVING, HTTP_WAITING, HTTP_SENDING, HTTP_STREAMING };

/* What serves the requests. */
struct http_service {
    /* begun: the head is there and in order, a body may follow. May give the exchange a sink. False:
     * the answer is a problem, and the body is not read. */
    bool (*begun)(struct http_exchange *x, void *cookie);

    /* handle: once for every well-formed request. Either fills in the answer before it returns, or sets
     * x->deferred and has http_answer() called when it is there. */
    void (*handle)(struct http_exchange *x, void *cookie);

    /* finished: the answer has been sent, and the exchange has still `pending`. */
    void (*finished)(struct http_exchange *x, void *cookie);

    /* answered: the kernel has the whole answer, whoever wrote it. */
    void (*answered)(struct http_exchange *x, void *cookie);

    /* unanswered: the client will not have the whole answer; sent_bytes are those of its body that the kernel has taken. Then
     * comes abandoned, if that does. */
    void (*unanswered)(struct http_exchange *x, enum http_end why, enum http_stage stage, void *cookie);

    /* proceed: a part of the answer has been sent; the next one is wanted, by http_answer(). */
    void (*proceed)(struct http_exchange *x, void *cookie);

    /* abandoned: an exchange that has `pending`, `upload` or `staging` ends without its answer, since
     * its client has gone or its body was refused. http_answer() must not be called any more. */
    void (*abandoned)(struct http_exchange *x, void *cookie);
    void *cookie;
};

#endif
