/* SPDX-License-Identifier: Apache-2.0 */
/* workload.h - a list of requests that the daemon decodes by itself, and what comes of it.
 *
 * A request is a prompt and a number of tokens to decode, perhaps with a shared beginning and with
 * forks. Each of its sequences has an ordinal; the values of its tokens are those of kernels/values.h
 * under the workload's seed, so nothing has to be stored to know what should stand anywhere:
 *
 *     position    0 ........ shared ........ fork ........ prompt ........ prompt + decode
 *     content     | spans that      | the parent's own     ...             the parent
 *                 | other requests  |      | the child's own ...           its children
 *                 | may name too    |
 *
 * A workload is built by the loop thread (create, add, close), then belongs to the engine. It allocates
 * while it is built, up to the limits below, and frees its lists when it ends. */
#ifndef SCHEDULER_WORKLOAD_H
#define SCHEDULER_WORKLOAD_H

#include "config/config.h"
#include "config/memory_budget.h"
#include "kernels/values.h"
#include "scheduler/quantiles.h"
#include "scheduler/tenants.h"
#include "scheduler/waiting.h"
#include "scheduler/workload_outputs.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    WORKLOAD_REQUESTS_MAX = 131072,
    WORKLOAD_SEQUENCES_MAX = 262144, /* requests and their forks */
    WORKLOAD_SPANS_MAX = 1 << 21,
    WORKLOAD_FORKS_MAX = 1000,
    WORKLOAD_VERIFY_MAX = 4096,
    WORKLOAD_TABLE_MAX = 4096, /* rows */
    WORKLOAD_OWNER_BYTES = 64,
    WORKLOAD_REQUEST_BYTES = 129, /* of the id of a request */
    WORKLOAD_REASON_BYTES = 256
};

/* Kinds of content, in the highest byte of a content id. */
enum workload_content { CONTENT_OWN, CONTENT_PREFIX, CONTENT_HASH };

#define CONTENT_ID_MAX ((UINT64_C(1) << 53) - 1)

/* The content id of a kind and a number <= CONTENT_ID_MAX. */
static inline uint64_t workload_content_id(enum workload_content kind, uint64_t number)
{
    return (uint64_t)kind << 56 | number;
}

/* Positions from the end of the span before (or 0) up to `end` have this content. */
struct workload_span {
    uint32_t end;
    uint32_t token; /* stands for the content in the prefix index; workload_add() sets it */
    uint64_t content;
};

struct workload_request {
    double arrival_s;        /* after the start; not negative */
    uint32_t prompt, decode; /* tokens; together at least 1 */
    uint32_t fork_at, forks; /* that many children once it is fork_at tokens long; 0: none */
    int32_t priority;        /* larger first */
    uint32_t first_span, span_count;
    uint32_t ordinal; /* of its own sequence; its children follow */
};

/* What one sequence has come to. */
struct workload_sequence {
    uint32_t request;
    uint32_t child;       /* 0: the request's own sequence; else its n-th fork */
    uint32_t done;        /* tokens that are appended, and whose outputs are computed where they are wanted */
    uint32_t next_sample; /* in workload.samples: the first one of this sequence that is not done */
    bool forked;          /* its children have been made */
    float admitted_s, first_s; /* after the arrival; negative: not yet */
    double arrived_s;          /* when it could have started */
};

/* A row whose output is kept for verification. */
struct workload_sample {
    uint32_t ordinal, position, layer;
    bool taken; /* its output stands in workload.outputs */
};

/* A row of the table that simulators of serving read: a round, which is one token of each sequence that decodes, and
 * some of the prompts of others, through all layers. */
struct workload_table_row {
    uint32_t prefill_chunk, kv_prefill; /* tokens of prompts; how many stood before them, on average */
    uint32_t n_decode, kv_decode;       /* sequences that decode; likewise */
    float time_us;                      /* of its steps, whoever else is in them */
};

enum workload_state { WORKLOAD_RUNNING, WORKLOAD_VERIFYING, WORKLOAD_FINISHED, WORKLOAD_CANCELLED };

/* Why one was cancelled: XX(constant, name in its report, in the log's words) */
#define WORKLOAD_REASON_MAP(XX)                                                                              \
    XX(NO_REASON, NULL, "")                                                                                  \
    XX(BY_REQUEST, "request", ", by request")                                                                \
    XX(BY_CLIENT, "client", ", since its client went away")                                                  \
    XX(BY_KEY, "key", ", since its key is no more")                                                          \
    XX(BY_DEADLINE, "deadline", ", since its time is over")                                                  \
    XX(BY_DRAIN, "drain", ", since the daemon ends")                                                         \
    XX(BY_FAILURE, "failure", ", by a failure of the backend")

enum workload_reason {
#define XX(constant, name, words) WORKLOAD_##constant,
    WORKLOAD_REASON_MAP(XX)
#undef XX
};

/* Everything that is told about a workload; plain data. Times of sequences in microseconds. */
struct workload_report {
    uint64_t id;
    enum workload_state state;
    enum workload_reason reason;                              /* of one that is cancelled */
    char owner[WORKLOAD_OWNER_BYTES];                         /* the name of its key; empty: none */
    double deadline_s;                                        /* after the start it is cancelled; 0: never */
    double expires_in_s;                                      /* until one that has ended is forgotten */
    enum sharing sharing;                                     /* of its queries */
    uint32_t requests, sequences;                             /* in all */
    uint32_t arrived, waiting, running, finished;             /* sequences now */
    uint32_t to_arrive;                                       /* requests that are not due, */
    double next_arrival_s;                                    /* and when the next is; NaN: none */
    uint64_t tokens, tokens_done;                             /* to be decoded in all, and so far */
    uint64_t prompt_tokens, cached_tokens, recomputed_tokens; /* appended; found in the cache; appended
                                                                  again after a preemption */
    uint64_t rows;                                            /* outputs computed, a layer each */
    uint64_t steps, bytes_read;
    double wall_s, busy_s; /* since the start; in steps */
    struct percentiles step_us, queue_us, first_token_us, per_token_us;
    /* Of the whole pool, whoever holds it: blocks in all; held now, and at most in the workload's steps;
     * tokens that sharing kept from being stored. */
    uint32_t pool_blocks, pool_held, pool_held_peak;
    uint64_t pool_saved_tokens_peak;
    uint32_t table_rows;     /* of workload.table that are there, */
    uint64_t table_left_out; /* and rounds for which it had no room */
    uint64_t forks, copies, preemptions;
    uint64_t digest_high, digest_low;
    uint32_t verify_rows, verify_done;
    double verify_error, verify_tolerance;
    bool verify_ok;
};

struct workload {
    struct workload_report report;
    uint64_t seed;
    bool attend_prompt; /* compute outputs for the tokens of the prompts too */
    uint32_t verify_rows;
    struct workload_request *requests; /* in the order of arrival once closed */
    struct workload_span *spans;
    struct workload_sequence *sequences; /* by ordinal; made by workload_close() */
    struct workload_sample *samples;     /* [report.verify_rows] by ordinal, position and layer */
    struct memory_budget *budget;        /* where `charged` bytes have been taken for its lists */
    uint64_t charged;
    bool awaited;                     /* its client will take the report at its end */
    size_t outputs_room;              /* bytes of outputs that wait for the client; 0: it wants none */
    struct workload_outputs *kept;    /* NULL: likewise */
    uint32_t table_room;              /* rows that the client asked for; made by workload_close(), */
    struct workload_table_row *table; /* [table_room]; NULL: none. It stays as long as the report */
    uint8_t *outputs;                 /* [report.verify_rows][query_heads][head_dim] of geometry.dtype */
    uint32_t request_count, request_room, span_count, span_room;
    uint32_t longest;                   /* tokens of its longest sequence */
    uint32_t widest;                    /* sequences of its request with the most forks */
    struct workload_contents *contents; /* the shared ones, while it is built */
    uint32_t content_count;
    uint64_t hash_seed; /* of their table: ids from the network cannot be chosen to collide */
    bool unordered;     /* requests did not arrive in order */
    double latest_s;    /* arrival so far */

    /* workload_run.c's own */
    char request[WORKLOAD_REQUEST_BYTES]; /* the id of the request that began it, for the log */
    uint64_t key;                         /* to which it belongs; 0: none */
    struct tenant_quotas quotas;          /* of the key */
    struct tenant_calls *use;             /* likewise (requests.h) */
    bool held_back;                       /* by them, or its client, who does not read, from admitting more */
    struct wait_note wait;                /* why the first one that waits does */
    double wait_s;                        /* and since when */
    uint32_t *waiting;                    /* heap of ordinals */
    uint32_t waiting_count, next_arrival;
    uint32_t root; /* of the prefix index */
    bool has_account;
    uint32_t account; /* shares.h; it is an owner */
    double round_us;  /* of its rows and tokens in the last round that it took part in, all layers */
    bool sits_out;    /* of the round being formed */
    double started_s, ended_s;
    uint32_t promised;     /* sequences that run, and children that they have yet to make */
    uint32_t rows_left;    /* of outputs, for which there is room in the round being formed */
    bool lags;             /* its client: there is not enough, and it takes no part */
    uint64_t noted_step;   /* the last one in its figures */
    uint64_t round_number; /* the last one that it took part in */
    uint32_t
        *filling; /* [content_count + report.sequences] by token number: running sequences that append it */
    struct quantiles step_us, queue_us, first_token_us, per_token_us;
    struct request *watchers; /* requests that wait for the next report */
    double watched_s;         /* when the last one was answered */
    bool ends;                /* what it has in the cache is being forgotten, up to block ends_at; */
    uint32_t ends_at;
    enum workload_state ends_as; /* then this is its state, */
    struct request *cancels;     /* and these are answered */
    uint32_t verify_next, verify_head;
};

/* workload_create: an empty one; NULL without memory. workload_destroy: NULL is fine. */
struct workload *workload_create(uint64_t seed);
void workload_destroy(struct workload *workload);

/* workload_add(w, request, spans, n, reason): append a request with `n` spans (their ends rise).
 * Returns 0, ATTND_NO_MEMORY, or ATTND_INVALID (beyond a limit, or no tokens) with a sentence. */
MUST_USE int workload_add(struct workload *w, const struct workload_request *request,
                          const struct workload_span *spans, uint32_t n, char reason[WORKLOAD_REASON_BYTES]);

/* workload_close(w, g, blocks, sequences, sequence_tokens, reason): all requests are there. Checks that
 * each can run on a pool of `blocks` with that many sequences of that length, that all arrive before the
 * deadline, and that there is room for outputs; draws the samples.
 * Returns 0, ATTND_NO_MEMORY, or ATTND_INVALID with a sentence. */
MUST_USE int workload_close(struct workload *w, const struct geometry *g, uint32_t blocks, uint32_t sequences,
                            uint32_t sequence_tokens, char reason[WORKLOAD_REASON_BYTES]);

/* workload_bytes: of all its lists, once it is closed. */
uint64_t workload_bytes(const struct workload *w, const struct geometry *g);

/* workload_release: free one of the lists, the report stays; false when there is none any more. A list may
 * be tens of megabytes, which take a millisecond. */
bool workload_release(struct workload *w);

/* Tokens of a sequence at its end, and how many of them its fork took over (0 for a parent). */
uint32_t workload_length(const struct workload *w, uint32_t ordinal);
uint32_t workload_inherited(const struct workload *w, uint32_t ordinal);

/* workload_span_at(w, ordinal, position): what stands at a position and, up to .end, behind it. */
struct workload_span workload_span_at(const struct workload *w, uint32_t ordinal, uint32_t position);

/* The first position of a sequence whose output is computed. */
uint32_t workload_first_row(const struct workload *w, uint32_t ordinal);

/* The values of a sequence's queries. */
struct value_source workload_query_source(const struct workload *w, uint32_t ordinal);

/* XXH3-128. */
struct workload_hash {
    uint64_t low, high;
};

/* workload_hash_row(ordinal, position, layer, o, bytes): of one row of outputs: over the three numbers
 * (each 8 bytes, little-endian) and the bytes. Any thread. */
struct workload_hash workload_hash_row(uint32_t ordinal, uint32_t position, uint32_t layer, const void *o,
                                       size_t bytes);

/* workload_note_round: a round of the workload is over; the row goes into its table, if it has one. */
void workload_note_round(struct workload *w, const struct workload_table_row *row);

/* workload_digest(w, hash): add it to the digest, a sum modulo 2^128, so that order does not matter. */
void workload_digest(struct workload *w, struct workload_hash hash);

#endif
