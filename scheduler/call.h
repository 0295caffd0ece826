/* call.h - one thing that the loop thread asks of the engine, and its answer.
 *
 * Calls come from a fixed pool, each with an arena for its tensors and lists. The loop fills in a call
 * and submits it; from then on it belongs to the engine until it comes back completed. */
#ifndef SCHEDULER_CALL_H
#define SCHEDULER_CALL_H

#include "allocator/prefix_index.h"
#include "scheduler/executor.h"
#include "scheduler/sequences.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum call_kind {
    CALL_CREATE,   /* id (0: choose one), tokens, salt -> views[0]; its length is what was cached */
    CALL_SEQUENCE, /* id -> views[0], lengths, list: block ids */
    CALL_BLOCKS,   /* id -> blocks: the sequence's table */
    CALL_FORK,     /* id, length, count -> views[0..count), list: their block ids one after the other */
    CALL_TRUNCATE, /* id, length -> views[0] */
    CALL_DELETE,   /* id */
    CALL_APPEND,   /* layer, sequences, k, v -> views */
    CALL_ATTEND,   /* layer, sequences, q [, k, v] -> o, lse */
    CALL_STATS,    /* cursor, limit -> stats, views and list of one page */
    CALL_LIST,     /* cursor, limit -> views and list of one page */
    CALL_POOL,     /* cursor, limit -> blocks: one page of the pool */
    CALL_AUDIT,    /* -> fault */
    CALL_TRIM,     /* -> count */
    CALL_WORKLOAD_START, /* workload (handed over) -> report */
    CALL_WORKLOAD,       /* id, waits -> report */
    CALL_WORKLOAD_CANCEL /* id -> report */
};

enum {
    CALL_DETAIL_BYTES = 256,
    CALL_ARENA_BYTES = 4 << 20, /* tensors of a body, in and out, with room to spare */
    CALL_PAGE_MAX = 1000,       /* sequences or blocks on a page */
    CALL_IDS_MAX = 100000,      /* block ids in one answer: about a megabyte of JSON */
    CALL_TABLE_MAX = 20000      /* blocks of one table in one answer, with their fill and references */
};

/* A sequence as it is shown. */
struct sequence_view {
    uint64_t id, parent; /* parent 0: none */
    uint32_t length, blocks, shared_blocks;
    double age_s, idle_s;
    enum sequence_state state;
    uint64_t workload; /* 0: none */
};

/* A block as it is shown. */
struct block_view {
    uint32_t block, refs, fill;
    enum block_state state;
    uint64_t owner; /* the first sequence found to hold it; 0: none */
};

/* One sequence of an append or attend: `rows` consecutive tokens. */
struct call_sequence {
    uint64_t id;
    uint32_t rows;
};

struct call_stats {
    uint64_t epoch;
    struct block_pool_counts pool;
    struct block_tables_counts tables;
    struct executor_stats steps;
    double gb_per_s;
    uint32_t states[SEQUENCE_STATES]; /* sequences in each */
};

struct call {
    enum call_kind kind;
    /* in */
    uint64_t id, cursor;
    uint32_t layer, length, count, limit;
    struct call_sequence *sequences; /* [sequence_count], in the arena */
    uint32_t sequence_count;
    uint32_t rows;   /* tokens of all sequences together */
    void *q, *k, *v; /* in the arena, geometry.dtype; NULL: not given */
    uint32_t *
        tokens; /* in the arena: of a prompt to look up, or [rows] token ids of an append; NULL: none */
    uint32_t token_count;
    char salt[PREFIX_SALT_BYTES_MAX]; /* of CALL_CREATE */
    uint32_t salt_bytes;
    struct workload *workload;
    bool waits; /* for the next news of a workload, a quarter of a second or so */

    /* out */
    int status;
    char detail[CALL_DETAIL_BYTES];
    struct sequence_view *views; /* in the arena */
    uint32_t view_count;
    uint32_t *list; /* in the arena */
    uint32_t list_count;
    struct block_view *blocks; /* in the arena */
    uint32_t block_count;
    uint64_t next;     /* cursor of the next page; 0: none */
    uint32_t *lengths; /* per layer, in the arena */
    void *o;           /* in the arena */
    float *lse;
    struct call_stats stats;
    const char *fault;
    struct workload_report *report; /* in the arena */
    double queue_us, step_us;
    uint32_t rows_in_step;

    /* the loop's own */
    void *cookie;
    int answer_status;             /* HTTP status of success */
    bool wants_lse, wants_tensors; /* of the answer: lse; safetensors instead of JSON */
    bool wants_metrics;            /* of CALL_STATS: Prometheus text */

    bool streams; /* the answer goes on until the workload ends, a line a report */
    bool cancels; /* when its client goes, the workload is cancelled */

    /* the engine's own */
    double submitted_s;
    struct call *next_ready;
    struct reserve_request *requests; /* [sequence_count] in the arena: what it writes */
    struct call *next_in_step;
    uint32_t pass, first_row; /* its rows in the step: of which pass, from which row on */

    size_t arena_used;
    uint8_t *arena;
};

/* call_alloc(call, n, size): room for n elements in the call's arena, aligned to 64 bytes; NULL when it
 * does not fit. */
void *call_alloc(struct call *call, size_t n, size_t size);

/* call_fail: set status and detail; returns the status. */
int call_fail(struct call *call, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
