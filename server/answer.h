/* answer.h - of a request that the engine has, what the engine need not know: whose it is, and how its answer
 * is written. One of each request of the pool, made by routes_create(). Loop thread. */
#ifndef SERVER_ANSWER_H
#define SERVER_ANSWER_H

#include "scheduler/requests.h"
#include "server/http_exchange.h"

struct render_context;

/* Writes the answer of a request that has succeeded into `x`. */
typedef void (*answer_render)(struct http_exchange *x, const struct request *request,
                              const struct render_context *context);

struct answer {
    struct http_exchange *x; /* NULL: its client has gone */
    struct api_key *key;     /* the client's; NULL: none is needed */
    bool counts;             /* as one of limits.calls */
    uint64_t staging_bytes;  /* counted for its key */
    int http_status;         /* of success */
    answer_render render;    /* NULL: success has no body */
    uint32_t copied;         /* tensors of the body, since they were not where the backend can use them */

    bool wants_lse, wants_tensors; /* of what computes: lse; safetensors instead of JSON */
    bool columns;                  /* of a page of blocks: arrays instead of objects */
    unsigned fields;               /* likewise: bits, see api_observe.c; 0: all */

    bool forgets; /* it removes what belonged to a key */
    bool streams; /* it goes on until the workload ends, a line a report */
    bool cancels; /* when its client goes, the workload is cancelled */
};

static inline struct answer *answer_of(const struct request *request)
{
    return request->cookie;
}

#endif
