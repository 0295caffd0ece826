/* requests.h - what the loop thread asks of the engine, and its answers.
 *
 * Requests come from a fixed pool, each with an arena for its tensors and lists. The loop fills in a request
 * and submits it; from then on it belongs to the engine until it comes back completed. */
#ifndef SCHEDULER_CALL_H
#define SCHEDULER_CALL_H

#include "allocator/prefix_index.h"
#include "scheduler/step.h"
#include "scheduler/sequences.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum request_kind {
    REQUEST_CREATE,   /* id (0: choose one), tokens, salt, options -> views[0], its length what was cached */
    REQUEST_SEQUENCE, /* id -> views[0], lengths, list: block ids */
    REQUEST_BLOCKS,   /* id -> blocks: the sequence's table */
    REQUEST_FORK,     /* id, length, count, ids -> views[0..count), list: their block ids in turn */
    REQUEST_TRUNCATE, /* id, length -> views[0] */
    REQUEST_DELETE,   /* id */
    REQUEST_APPEND,   /* layer or all_layers, sequences, k, v -> views, lengths */
    REQUEST_ATTEND,   /* layer, sequences, q [, k, v] -> o, lse */
    REQUEST_STATS,    /* cursor, limit -> stats, views and list of one page */
    REQUEST_LIST,     /* cursor, limit -> views and list of one page */
    REQUEST_POOL,     /* cursor, limit -> blocks: one page of the pool */
    REQUEST_AUDIT,    /* -> fault */
    REQUEST_TRIM,     /* -> count */
    REQUEST_LEASE,    /* id (0: choose one), count blocks, options -> views[0], list: block ids */
    REQUEST_PAGED,    /* layer, sequences[0]: a lease, paged, q?, k?, v? -> o, lse */
    REQUEST_MERGE,    /* count states of rows: q (their o) and k (their lse) -> o, lse */
    REQUEST_PARAMETERS,     /* parameters: those given replace the model constants */
    REQUEST_SELF_TEST,      /* -> fault */
    REQUEST_WORKLOAD_START, /* workload (handed over) -> report */
    REQUEST_WORKLOAD,       /* id, waits -> report */
    REQUEST_WORKLOAD_CANCEL /* id -> report */
};

enum {
    REQUEST_DETAIL_BYTES = 256,
    REQUEST_ARENA_BYTES = 4 << 20, /* tensors of a body, in and out, with room to spare */
    REQUEST_PAGE_MAX = 1000,       /* sequences or blocks on a page */
    REQUEST_IDS_MAX = 100000,      /* block ids in one answer: about a megabyte of JSON */
    REQUEST_SCAN_MAX = 65536,      /* blocks looked at for one page */
    REQUEST_PRIORITY_MAX = 1000000,
    REQUEST_IDLE_S_MAX = 31536000,
    REQUEST_TABLE_MAX = 20000 /* blocks of one table in one answer, with their fill and references */
};

/* A sequence as it is shown. */
struct sequence_view {
    uint64_t id, parent; /* parent 0: none */
    uint32_t length, blocks, shared_blocks;
    double age_s, idle_s;
    enum sequence_state state;
    bool swapped; /* its block ids are those of host blocks */
    int32_t priority;
    uint32_t max_tokens; /* declared; 0: not */
    uint64_t workload;   /* 0: none */
};

/* A block as it is shown. */
struct block_view {
    uint32_t block, refs, fill;
    enum block_state state;
    uint64_t owner; /* the first sequence found to hold it; 0: none */
    bool on_host;   /* a host block, of which nothing else is known */
};

/* One sequence of an append or attend: `rows` consecutive tokens, the first at `position`. */
struct request_sequence {
    uint64_t id;
    uint32_t rows;
    uint32_t position; /* REQUEST_POSITION_ABSENT: where the sequence ends; the engine fills it in */
    bool placed;       /* by the engine, and anew if the request has to wait */
};

#define REQUEST_POSITION_ABSENT UINT32_MAX
#define REQUEST_ID_MAX          ((UINT64_C(1) << 53) - 1)

/* Which of the things on a page are wanted. */
struct request_filter {
    bool on;
    unsigned state; /* enum block_state or enum sequence_state */
};

struct request_stats {
    uint64_t epoch, preemptions;
    struct block_pool_counts pool;
    struct block_tables_counts tables;
    struct step_stats steps;
    double gb_per_s;
    uint32_t states[SEQUENCE_STATES]; /* sequences in each */
    uint32_t leases, leased_blocks;
};

/* Block tables of the caller's own, in the arena. Ids and slots are below the pool's; the engine checks
 * that they are the lease's. */
struct request_paged {
    uint32_t sequences;
    uint32_t *indptr;  /* [sequences + 1] rows of q of each; NULL without q */
    uint32_t *context; /* [sequences] tokens of each, of which its rows are the last */
    uint32_t *first;   /* [sequences + 1] where its block ids begin in ids */
    uint32_t *ids;     /* as many for each as its context takes */
    int64_t *slots;    /* [tokens] block * block_size + slot that a row of k and v goes to; -1: none */
    uint32_t tokens;   /* of k and v; 0 without them */
};

struct request {
    enum request_kind kind;
    /* in */
    uint64_t id, cursor;
    uint32_t layer, length, count, limit;
    bool of_leases; /* its ids, or the things on its page, are leases */
    enum attention_kernel kernel;
    struct request_paged *paged;        /* of REQUEST_PAGED */
    bool all_layers;                    /* k and v are [layers][rows][kv_heads][head_dim] */
    struct sequence_options options;    /* of REQUEST_CREATE */
    uint64_t *ids;                      /* [count] of REQUEST_FORK, in the arena; NULL: choose them */
    struct request_filter filter;       /* of REQUEST_LIST and REQUEST_POOL */
    struct model_constants parameters;  /* of REQUEST_PARAMETERS, in the arena; NULL: as it is */
    struct request_sequence *sequences; /* [sequence_count], in the arena */
    uint32_t sequence_count;
    uint32_t rows;         /* tokens of all sequences together */
    const void *q, *k, *v; /* in the arena or before it; NULL: not given. q has geometry.dtype */
    enum dtype kv_source;  /* of k and v: geometry.dtype or geometry.kv_dtype */
    double deadline_s;     /* after its submission; 0: none. One that still waits then fails */
    uint32_t *tokens; /* in the arena: of a prompt to look up, or [rows] token ids of an append; NULL: none */
    uint32_t token_count;
    char salt[PREFIX_SALT_BYTES_MAX]; /* of REQUEST_CREATE */
    uint32_t salt_bytes;
    struct workload *workload;
    bool waits; /* for the next news of a workload, a quarter of a second or so */

    /* out */
    int status;
    char detail[REQUEST_DETAIL_BYTES];
    struct sequence_view *views; /* in the arena */
    uint32_t view_count;
    uint32_t *list; /* in the arena */
    uint32_t list_count;
    struct block_view *blocks; /* in the arena */
    uint32_t block_count;
    uint64_t next;     /* cursor of the next page; 0: none */
    uint32_t *lengths; /* [view_count][layers], in the arena */
    void *o;           /* in the arena */
    float *lse;
    struct request_stats stats;
    const char *fault;
    struct workload_report *report; /* in the arena */
    double queue_us, step_us;
    uint32_t rows_in_step;
    uint64_t bytes_read; /* by its step */

    /* the loop's own */
    void *cookie;
    int answer_status;             /* HTTP status of success */
    bool wants_lse, wants_tensors; /* of the answer: lse; safetensors instead of JSON */
    bool wants_metrics;            /* of REQUEST_STATS: Prometheus text */

    bool streams;            /* the answer goes on until the workload ends, a line a report */
    bool cancels;            /* when its client goes, the workload is cancelled */
    struct staging *staging; /* memory that its body lies in, and its arena with it; NULL: none */
    bool columns;            /* of REQUEST_POOL: arrays instead of objects */
    unsigned fields;         /* of REQUEST_POOL: bits, see request_parse.h; 0: all */

    /* of both: the loop sets it when the client has gone, and the engine drops a request that still waits
     */
    atomic_bool cancelled;

    /* the engine's own */
    double submitted_s;
    int32_t priority; /* of its sequences' the highest */
    struct request *next_ready;
    bool passed_over;               /* a step was formed without it */
    struct reserve_request *writes; /* [sequence_count] in the arena: what it writes */

    size_t arena_used, arena_bytes;
    uint8_t *arena;
};

/* request_alloc(request, n, size): room for n elements in the request's arena, aligned to 64 bytes; NULL when
 * it does not fit. */
void *request_alloc(struct request *request, size_t n, size_t size);

/* request_fail: set status and detail; returns the status. */
int request_fail(struct request *request, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
