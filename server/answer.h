/* SPDX-License-Identifier: Apache-2.0 */
/* answer.h - of a request that the engine has, what the engine need not know: whose it is, how its answer
 * is written, and what of that is done off the loop. One of each request of the pool, made by routes_create(). Loop thread. */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "config/config.h"
#include "scheduler/requests.h"
#include "server/http_connection.h"
#include "server/http_exchange.h"

#include <uv.h>

/* What answers show beside the request's own figures. */
struct daemon_state;
struct http_tally;
struct metrics_key;
struct registered;
struct steps_beside;

struct render_context {
    const struct config *config;
    const struct attention_info *backend;
    struct roof_report roof;
    double now_s;          /* on the clock of its times, on which the daemon */
    double started_s;      /* was started then; */
    double started_unix_s; /* the same as Unix time */
    double uptime_s, longest_turn_s;
    uint64_t instance;
    uint64_t tensors_copied;
    size_t staging_used;
    uint32_t restored, not_restored; /* sequences, at the start */
    bool follows_unclean;            /* struct daemon_state's */
    bool keys_refused;               /* at the latest SIGHUP */
    uint64_t memory_used, memory_limit, memory_refused;
    struct http_connection_counts connections, managers;
    uint32_t calls, streams, uploads; /* under way */
    bool leaving;                     /* the daemon is to end */
    uint32_t lame_duck_left_s;        /* 0: there is none */
    const struct http_tally *tally;
};

/* Writes the answer of a request that has succeeded into `x`. */
typedef void (*answer_render)(struct http_exchange *x, const struct request *request,
                              const struct render_context *context);

struct answer {
    uv_work_t work; /* off the loop: reading the exchange, or writing the answer */
    struct daemon_state *daemon;
    struct request *request;
    struct render_context context;
    bool good; /* the exchange was read */

    struct http_exchange *x; /* NULL: its client has gone */
    struct api_key *key;     /* the client's; NULL: none is needed */
    bool counts;             /* as one of limits.calls */
    uint64_t staging_bytes;  /* counted for its key */
    uint64_t memory;         /* of memory.bytes, taken for its lists */
    int http_status;         /* of success */
    answer_render render;    /* NULL: success has no body */
    uint32_t copied;         /* tensors of the body, since they were not where the backend can use them */

    bool wants_lse, wants_tensors;   /* of what computes: lse; safetensors instead of JSON */
    const char *bits;                /* of K and V that come from elsewhere: how they compare */
    bool has_owner;                  /* of a sequence that an admin makes: the name of the key that */
    char owner[REQUEST_OWNER_BYTES]; /* it belongs to; "": to clients without one */
    bool columns;                    /* of a page of blocks: arrays instead of objects */
    unsigned fields;                 /* likewise: bits, see api_observe.c; 0: all */

    const struct steps_beside *beside;      /* of a list of steps: what the loop knows; api_steps.c */
    const struct metrics_key *metrics_keys; /* likewise of metrics: of request.stats.tenants; metrics.c */

    struct registered *registered; /* of a client with registered memory: it is delivered there */

    const struct api_key *forgets; /* it removes what belonged to it; NULL: it does not */
    uint32_t removed_sequences;    /* leases, too: so far */
    uint32_t removed_workloads;    /* likewise */

    bool events;   /* of a stream: server-sent events, else lines */
    double said_s; /* when something was written to it last */
    bool streams;  /* it goes on until the workload ends, a line a report */
    bool cancels;  /* when its client goes, the workload is cancelled */
};

static inline struct answer *answer_of(const struct request *request)
{
    return request->cookie;
}

#endif
