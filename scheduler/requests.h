/* SPDX-License-Identifier: Apache-2.0 */
/* requests.h - what the loop thread asks of the engine, and its answers.
 *
 *   loop     acquire, fill in the struct of its kind, submit      ... take, read the answer there, release
 *   engine                        request_kinds[kind].run: carry it out ^
 *
 * Requests come from a fixed pool, each with an arena for its tensors and lists. From its submission until
 * it comes back completed a request belongs to the engine; only `cancelled` may be set meanwhile. Its
 * pointers are to its arena, or to memory of the loop's that stays as long; NULL: not given, or not answered.
 *
 * For another kind of request add a line to REQUEST_MAP and a struct to the union here, write the function
 * that the line names, and give it a route in the file of its resource (server/api.h). */
#ifndef SCHEDULER_REQUESTS_H
#define SCHEDULER_REQUESTS_H

#include "allocator/block_log.h"
#include "allocator/prefix_index.h"
#include "config/model_constants.h"
#include "scheduler/kv_events.h"
#include "scheduler/sequences.h"
#include "scheduler/slicing.h"
#include "scheduler/step.h"
#include "scheduler/swap_cache.h"
#include "scheduler/tenant_calls.h"
#include "scheduler/waiting.h"
#include "scheduler/workload.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REQUEST_DETAIL_BYTES = 512,
    REQUEST_ARENA_BYTES = 4 << 20, /* lists of a body of up to a MiB, and of its answer */
    REQUEST_ARENA_KEPT =
        256 << 10,              /* of which so much stays; when more was used, most goes back to the system */
    REQUEST_TENSORS_MAX = 8,    /* blocks of staging memory */
    REQUEST_PAGE_MAX = 1000,    /* sequences or blocks on a page; */
    REQUEST_COLUMNS_MAX = 4000, /* of blocks in columns, which are a third as long */
    REQUEST_IDS_MAX = 100000,   /* block ids in one answer, */
    REQUEST_LISTED_MAX = 1000,  /* and of one sequence; the rest is had by pages of its table */
    REQUEST_SCAN_MAX = 65536,   /* blocks looked at for one page, */
    REQUEST_ROWS_MAX = 16384,   /* or rows of sequences */
    REQUEST_PRIORITY_MAX = 1000000,
    REQUEST_IDLE_S_MAX = 31536000,
    REQUEST_OPS_MAX = 4096,                      /* of a batch */
    REQUEST_FORKS_MAX = 1000,                    /* of one sequence at a time */
    REQUEST_IDS_AHEAD = 1 << 19,                 /* ids that may be given out without another limit */
    REQUEST_BATCH_VIEWS_MAX = 8192,              /* sequences in its answer */
    REQUEST_EVENTS_MAX = 2048,                   /* events in one part of a stream */
    REQUEST_NAME_BYTES = WORKLOAD_REQUEST_BYTES, /* of its X-Request-Id, */
    REQUEST_OWNER_BYTES = 64,                    /* and of the name of its key */
    REQUEST_WAITS_MAX = 4608,                    /* in an answer: calls and workloads */
    REQUEST_WAIT_IDS_MAX = 16                    /* sequences of one of these */
};

#define REQUEST_POSITION_ABSENT UINT32_MAX
#define REQUEST_ID_MAX          ((UINT64_C(1) << 53) - 1)

/* ---- kinds --------------------------------------------------------------------------------------- */

/* When a request is carried out. */
enum request_when {
    REQUEST_AT_ONCE, /* as soon as it is taken */
    REQUEST_LOOKING, /* likewise, and it is answered turns later: in parts, or once there is news. It changes nothing that the
                      * scheduler decides by, and the journal leaves it out. */
    REQUEST_QUEUED,  /* while a step is formed, in its turn among the requests on its sequences */
    REQUEST_STEPPED, /* likewise, and it is answered when that step retires */
    REQUEST_ALONE    /* when no step is in flight */
};

/* What a request may change. */
enum request_change {
    REQUEST_OF_NOTHING,
    REQUEST_OF_SEQUENCES, /* and leases */
    REQUEST_OF_POOL,      /* what blocks hold, or what is cached */
    REQUEST_OF_WORKLOADS,
    REQUEST_OF_PARAMETERS
};

/* XX(kind, when, changes, computes: only a sound backend can answer it, function) */
#define REQUEST_MAP(XX)                                                                                      \
    XX(CREATE, AT_ONCE, SEQUENCES, false, sequence_ops_create)                                               \
    XX(SEQUENCE, AT_ONCE, NOTHING, false, inspect_sequence)                                                  \
    XX(BLOCKS, AT_ONCE, NOTHING, false, inspect_blocks)                                                      \
    XX(FORK, QUEUED, SEQUENCES, false, client_queue_fork)                                                    \
    XX(TRUNCATE, QUEUED, SEQUENCES, false, sequence_ops_truncate)                                            \
    XX(EXPORT, QUEUED, NOTHING, true, client_queue_export)                                                   \
    XX(DESCRIBE, AT_ONCE, NOTHING, false, inspect_describe)                                                  \
    XX(RESTORE, QUEUED, SEQUENCES, false, client_queue_restore)                                              \
    XX(IDS, AT_ONCE, NOTHING, false, sequence_ops_ids)                                                       \
    XX(MOVED, AT_ONCE, SEQUENCES, false, sequence_ops_moved)                                                 \
    XX(DELETE, AT_ONCE, SEQUENCES, false, sequence_ops_delete)                                               \
    XX(BATCH, QUEUED, SEQUENCES, false, batch_run)                                                           \
    XX(LEASE, QUEUED, SEQUENCES, true, client_queue_lease)                                                   \
    XX(APPEND, STEPPED, SEQUENCES, true, client_queue_attend)                                                \
    XX(ATTEND, STEPPED, SEQUENCES, true, client_queue_attend)                                                \
    XX(PAGED, STEPPED, POOL, true, client_queue_paged)                                                       \
    XX(MERGE, STEPPED, NOTHING, true, client_queue_merge)                                                    \
    XX(PARAMETERS, ALONE, PARAMETERS, true, backend_ops_parameters)                                          \
    XX(ROOF, ALONE, NOTHING, true, backend_ops_roof)                                                         \
    XX(SELF_TEST, AT_ONCE, NOTHING, true, backend_ops_self_test)                                             \
    XX(STATS, AT_ONCE, NOTHING, false, inspect_stats)                                                        \
    XX(LIST, AT_ONCE, NOTHING, false, inspect_list)                                                          \
    XX(POOL, LOOKING, NOTHING, false, inspect_pool)                                                          \
    XX(STEPS, AT_ONCE, NOTHING, false, inspect_steps)                                                        \
    XX(BLOCK_LIFE, AT_ONCE, NOTHING, false, history_life)                                                    \
    XX(WAITING, AT_ONCE, NOTHING, false, inspect_waiting)                                                    \
    XX(PREFIXES, LOOKING, NOTHING, false, inspect_prefixes)                                                  \
    XX(EVENTS, LOOKING, NOTHING, false, history_watch)                                                       \
    XX(AUDIT, LOOKING, NOTHING, false, inspect_audit)                                                        \
    XX(DOORBELL, LOOKING, NOTHING, false, doorbell_control)                                                  \
    XX(FORGET, AT_ONCE, SEQUENCES, false, sequence_ops_forget)                                               \
    XX(TRIM, AT_ONCE, POOL, false, sequence_ops_trim)                                                        \
    XX(WORKLOAD_START, AT_ONCE, WORKLOADS, true, workload_run_start)                                         \
    XX(WORKLOADS, AT_ONCE, NOTHING, false, workload_run_list)                                                \
    XX(WORKLOAD, AT_ONCE, NOTHING, true, workload_run_look)                                                  \
    XX(WORKLOAD_CANCEL, AT_ONCE, WORKLOADS, true, workload_run_cancel)                                       \
    XX(TABLES, LOOKING, NOTHING, false, inspect_tables)

enum request_kind {
#define XX(kind, when, changes, computes, function) REQUEST_##kind,
    REQUEST_MAP(XX)
#undef XX
};

enum {
#define XX(kind, when, changes, computes, function) +1
    REQUEST_KINDS = REQUEST_MAP(XX)
#undef XX
};

struct engine_state;
struct doorbell_client;
struct request;

/* A function carries out one request. Returns 0 with the answer filled in; a negative status, with
 * request_fail() called and nothing changed; or REQUEST_WAITS, and it is as if nothing had been asked: it is
 * called again in a later step (QUEUED, STEPPED) or turn (ALONE), or has kept the request and completes it (others). Engine
 * thread. */
enum { REQUEST_WAITS = 1 };
typedef int (*request_run)(struct engine_state *state, struct request *request);
#define XX(kind, when, changes, computes, function)                                                          \
    int function(struct engine_state *state, struct request *request);
REQUEST_MAP(XX)
#undef XX

struct request_traits {
    const char *name;
    enum request_when when;
    enum request_change changes;
    bool computes;
    request_run run;
};

extern const struct request_traits request_kinds[REQUEST_KINDS];

/* Who has registered memory, for the engine; of its requests, as identify() in routes.c has it. */
struct doorbell_terms {
    uint64_t key, owner, connection;
    bool sees_all;
    uint32_t weight;
    struct tenant_quotas quotas;
    struct tenant_calls *use; /* of the key; NULL: none is needed */
};

struct doorbell_counts {
    uint32_t clients, regions;
    uint64_t bytes, gpu_bytes;       /* of regions */
    uint64_t calls, ended;           /* since the start: taken; clients ended since their ring was wrong; */
    uint64_t problems[STATUS_COUNT]; /* calls that failed, by status_number() */
};

/* ---- parts of requests --------------------------------------------------------------------------- */

/* A sequence as it is shown. */
struct sequence_view {
    uint64_t id, parent; /* parent 0: none */
    uint64_t key;        /* to which it belongs; 0: none */
    uint32_t length, blocks, shared_blocks;
    uint32_t listed; /* of its blocks, the first ones */
    double age_s, idle_s;
    enum sequence_state state;
    bool swapped; /* its block ids are those of host blocks */
    int32_t priority;
    uint32_t max_tokens; /* declared; 0: not */
    uint64_t workload;   /* 0: none */
    const char *owner;   /* the key's name, put in by the server for an admin; NULL: not told */
};

/* A block as it is shown. */
struct block_view {
    uint32_t block, refs, fill;
    enum block_state state;
    uint64_t owner; /* the first sequence found to hold it; 0: none, or not found before it was given back */
    bool on_host;   /* a host block, of which nothing else is known */
    bool foreign;   /* it belongs to another key: nothing more is told than that it is held or cached */
};

/* Sequences or leases with their blocks. */
struct request_shown {
    struct sequence_view *views; /* [count] */
    uint32_t count;
    uint32_t *block_ids; /* [block_id_count] those listed of one sequence after the other */
    uint32_t block_id_count;
};

struct request_blocks {
    struct block_view *views; /* [count] */
    uint32_t count;
};

/* Which of the things on a page are wanted. */
struct request_filter {
    bool on;
    unsigned state; /* enum block_state or enum sequence_state */
};

struct request_page {
    uint64_t cursor;
    uint32_t limit;
    struct request_filter filter;
    uint64_t next; /* out: the cursor of the next page; 0: none */
};

struct request_tokens {
    uint32_t *ids; /* [count] */
    uint32_t count;
};

/* One sequence of an append or attend: `rows` consecutive tokens, the first at `position`. */
struct request_sequence {
    uint64_t id;
    uint32_t rows;
    uint32_t position; /* REQUEST_POSITION_ABSENT: where the sequence ends; the engine fills it in */
    bool placed;       /* by the engine, and anew if the request has to wait */
};

/* What was computed of rows of queries. */
struct request_output {
    void *o;    /* [rows][query_heads][head_dim] of geometry.dtype; from request_make_outputs(), like */
    float *lse; /* [rows][query_heads] */
    double queue_us, step_us;
    uint32_t rows_in_step;
    uint64_t bytes_read; /* by its step */
};

/* Of the library: tensors lie on the device, and the step is streamed (attention.h). */
struct request_stream {
    bool on;
    void *of; /* the CUstream */
};

/* Rows of q, k and v at a layer. */
struct request_rows {
    uint32_t layer;
    bool all_layers; /* of an append: k and v are [layers][count][kv_heads][head_dim] */
    enum attention_kernel kernel;
    uint32_t count;        /* of q and, but in tables of the caller's own, of k and v */
    const void *q, *k, *v; /* q is of geometry.dtype, */
    enum dtype kv_source;  /* k and v of this: geometry.dtype or geometry.kv_dtype */
    struct request_stream stream;
    bool retries; /* of a stream: rows at positions that stand are compared; else they are refused */
    uint8_t *
        wrong; /* likewise: [sequence_count], or [1] of a lease: kv_append.wrong, in staging memory; with k */
    struct request_output out; /* with q */
};

/* ---- the kinds' arguments and answers ------------------------------------------------------------ */

struct request_create {
    struct request_tokens tokens; /* of a prompt to look up */
    char salt[PREFIX_SALT_BYTES_MAX];
    uint32_t salt_bytes;
    struct sequence_options options;
    struct request_shown shown; /* out: its length is what was cached */
};

struct request_lease {
    uint32_t blocks;
    struct sequence_options options;
    struct request_shown shown; /* out */
};

struct request_fork {
    uint32_t length; /* UINT32_MAX: all */
    uint32_t count;
    uint64_t *ids;              /* [count]; NULL: choose them */
    struct request_shown shown; /* out: the children */
};

struct request_truncate {
    uint32_t length;
    struct request_shown shown; /* out */
};

/* K and V of tokens [first, end) as they are stored. */
struct request_export {
    uint32_t first, end;
    uint64_t content; /* 0, or which it has to have (sequences.h); out: which it has */
    void *k, *v; /* [layers][end - first][kv_heads][head_dim] of geometry.kv_dtype; request_make_outputs() */
    int64_t *tokens;      /* out: [token_count] ids of the first ones, as far as they are known */
    uint32_t token_count; /* likewise */
    uint32_t length;      /* out: of the sequence */
    uint64_t constants;   /* out: model_constants_digest() */
    uint32_t layer, at;   /* how much has been read: of the layers before all, of this one up to `at` */
};

/* What a sequence is, apart from its K and V: answered by DESCRIBE; RESTORE makes one like that, whose first
 * `shared` tokens are those of the sequence `base`. */
struct request_described {
    struct sequence_options options;
    uint64_t key, parent;
    struct request_tokens prompt;
    char salt[PREFIX_SALT_BYTES_MAX];
    uint32_t salt_bytes;
    uint32_t length;  /* DESCRIBE: tokens that all layers have */
    uint32_t *blocks; /* DESCRIBE: [block_count]; NULL: it is in host memory */
    uint32_t block_count;
    uint64_t base;   /* RESTORE: 0: none */
    uint32_t shared; /* likewise; base has as many */
};

/* Which ids may be given out: not those below `next`, nor `chosen` ones, nor yet those from `limit` on. */
struct request_ids {
    uint64_t next, limit;
    const struct id_ranges *chosen; /* NULL: none are added */
    uint64_t reach;                 /* out: engine_ids_reach() */
};

/* A sequence is elsewhere now: it is removed here. */
struct request_moved {
    char moved_to[DEPARTURE_MOVED_BYTES]; /* what calls on it are told */
    uint32_t length;                      /* that it must have, and */
    uint64_t content;                     /* likewise; 0: whatever it is */
};

/* One of a batch: what a request of its kind asks and answers. */
struct request_op {
    enum request_kind kind; /* CREATE, FORK, TRUNCATE or DELETE, which needs no more than the id */
    uint64_t id;
    uint32_t findable; /* of a create: how many of its tokens are looked up in the cache; batch.c */
    union {
        struct request_create create;
        struct request_fork fork;
        struct request_truncate truncate;
    };
};

/* All of these are done, in order, or none. */
struct request_batch {
    struct request_op *ops; /* [count] */
    uint32_t count;
    uint32_t
        changed; /* the first of queued.on that some op forks or truncates; those behind are deleted only */
};

struct request_look {
    struct request_shown shown; /* out */
    uint32_t *lengths;          /* out: [layers] */
};

struct request_table {
    struct request_page page;     /* its cursor is the index of an entry */
    struct request_blocks blocks; /* out */
};

/* An append has k and v, an attend q and perhaps k and v. */
struct request_attend {
    struct request_rows rows;
    struct request_sequence *sequences; /* [sequence_count] */
    uint32_t sequence_count;
    struct request_tokens tokens; /* one for each row, or the first ones, or none */
    bool has_constants;           /* k and v come from elsewhere, where these held: */
    uint64_t constants;           /* model_constants_digest() */
    /* out, of an append: */
    struct sequence_view *views; /* [view_count] */
    uint32_t view_count;
    uint32_t *lengths; /* [view_count][layers] */
};

/* Block tables of the caller's own. Ids and slots are below the pool's; the engine checks that they are the
 * lease's. */
struct request_paged {
    struct request_rows rows;
    uint32_t sequences;
    uint32_t *indptr;  /* [sequences + 1] rows of q of each; NULL without q */
    uint32_t *context; /* [sequences] tokens of each, of which its rows are the last */
    uint32_t *first;   /* [sequences + 1] where its block ids begin in ids */
    uint32_t *ids;     /* as many for each as its context takes, and room for `tokens` more */
    int64_t *slots;    /* [tokens] block * block_size + slot that a row of k and v goes to; -1: none */
    uint32_t tokens;   /* of k and v; 0 without them */
};

/* States of the same rows, to be merged. */
struct request_merge {
    uint32_t states, rows;
    const void *o;    /* [states][rows][query_heads][head_dim] of geometry.dtype */
    const float *lse; /* [states][rows][query_heads] */
    struct request_stream stream;
    struct request_output out;
};

struct request_listing {
    struct request_page page;
    struct request_shown shown; /* out */
};

/* What is shown of a journal that records. */
struct journal_state {
    bool on;                 /* there is one */
    uint64_t records, bytes; /* written */
    uint32_t files;
    const char *stopped; /* why it has ended, as a constant sentence; NULL: it goes on */
};

struct engine_stats {
    struct journal_state journal;
    struct kv_events_counts kv_events;
    uint64_t epoch, preemptions, refusals;
    struct block_pool_counts pool;
    struct block_tables_counts tables;
    struct swap_cache_counts swap;
    struct step_stats steps;
    struct work_done done;
    double gb_per_s;
    uint32_t states[SEQUENCE_STATES]; /* sequences in each */
    uint32_t leases, leased_blocks;
    double workload_wait_s; /* that one has admitted nobody; the longest */
    uint64_t promised;      /* blocks, of those free or cached: of max_tokens, and of workloads that run */
    struct tenant_use own;  /* of the key that asks */
    struct doorbell_counts doorbell;
};

/* What a key has. */
struct request_tenant {
    uint64_t key;
    struct tenant_use use; /* out */
};

struct request_stats {
    struct request_listing list;
    struct request_tenant *tenants; /* [tenant_count] of which is asked */
    uint32_t tenant_count;
    struct engine_stats all; /* out */
};

/* Of when something is shown. */
struct request_epoch {
    bool past;      /* as it was at this epoch: */
    uint64_t epoch; /* out, if it is of now */
    /* inspect.c */
    bool begun, hurries; /* the epoch is known; it has begun again, and goes on to the end at once */
};

struct request_pool {
    struct request_page page;
    struct request_epoch at;
    struct request_blocks blocks; /* out */
    /* How far it has come; inspect.c. */
    uint32_t first, most;       /* block, and how many are looked at from there on; */
    uint32_t looked_at, *place; /* [looked_at] where on the page block first + i is; UINT32_MAX: not wanted */
    bool *lost;                 /* [blocks.count] somebody has given it back since that epoch */
    uint32_t *generation;       /* [blocks.count] */
    uint32_t asked_losers;      /* blocks of which was asked who */
    uint32_t unowned, row, entry; /* blocks without an owner; the next entry to look at */
};

/* The table of a sequence as it was, or is. */
struct table_view {
    uint64_t id, parent;     /* 0: none */
    uint32_t blocks, listed; /* in all; those told */
};

struct request_tables {
    struct request_epoch at;
    uint32_t limit;
    struct table_view *views; /* out, like: [count] */
    uint32_t count, left_out; /* beyond the limit, or what an answer has room for */
    uint32_t *block_ids;      /* [block_id_count] those listed of one sequence after the other */
    uint32_t block_id_count;
    /* How far it has come; inspect.c. */
    uint32_t row;  /* the next one to look at, */
    uint64_t next; /* and change, for one that has ended */
};

/* The latest steps. */
struct request_steps {
    uint64_t since; /* those behind this one, the first ones; or */
    bool latest;    /* the last ones of all */
    uint32_t limit;
    bool passes;                    /* of a trace: with theirs */
    struct step_log_entry *entries; /* out: [count], oldest first */
    uint32_t count, stamped_count;
    struct step_log_passes *stamped; /* out: [stamped_count], of the last ones that have any */
};

/* The latest changes of the block `id`. */
struct request_life {
    uint64_t epoch;               /* out, like */
    enum block_state state;       /* now, */
    uint32_t generation, count;   /* and */
    struct block_change *changes; /* [count] oldest first */
};

/* Events from a number on. It waits for some, for a second at most, but when it begins. */
#define REQUEST_EVENTS_NOW UINT64_MAX
enum { REQUEST_EVENTS_BLOCK = 1, REQUEST_EVENTS_SEQUENCE = 2, REQUEST_EVENTS_STEP = 4 };
struct request_events {
    unsigned types;
    bool begins;
    uint64_t next;                /* REQUEST_EVENTS_NOW: those to come; out: from where on to ask again */
    double since_s;               /* when it began to wait */
    uint64_t missed, resumed;     /* out: numbers that are not in the ring any more; the next one that is */
    bool restarted;               /* out: `next` was in the future: it is of another start */
    struct block_change *changes; /* out: [count] */
    uint32_t count;
};

/* Something that waits, as it is shown. */
struct wait_view {
    const char *kind; /* the request's, as in request_kinds; NULL: sequences of a workload */
    char name[REQUEST_NAME_BYTES], owner[REQUEST_OWNER_BYTES];
    uint64_t ids[REQUEST_WAIT_IDS_MAX];
    uint32_t id_count, sequences; /* listed, and in all */
    uint64_t workload;            /* 0: none */
    double since_s;               /* that it has waited */
    double estimate_s;            /* until it is looked at with other figures; NAN: not known */
    struct wait_note note;
};

struct request_waiting {
    uint64_t epoch;          /* out, like */
    struct wait_view *views; /* [count] */
    uint32_t count, others;  /* that the key sees; of others */
};

/* A chain of the prefix index, as it is shown. */
struct chain_view {
    struct block_chain chain;
    uint32_t listed; /* of its blocks, the first ones */
    double idle_s;   /* since its last block was taken, shared, published or given back */
};

struct request_prefixes {
    struct request_page page;  /* its cursor is a block */
    uint64_t epoch;            /* out, like */
    struct chain_view *chains; /* [count] */
    uint32_t count;
    uint32_t *block_ids; /* [block_id_count] those listed of one chain after the other */
    uint32_t block_id_count;
    uint32_t block; /* the next one to look at; inspect.c */
};

struct request_check {
    const char *fault; /* out; NULL: none */
    /* How far an audit has come; inspect.c. */
    bool begun, blocks_done;
    uint32_t row, entry;
};

/* Sequences and leases of request.key are removed, some at a time: asked again as it was answered, until it is
 * done. */
struct request_forget {
    uint32_t row;      /* looked at next */
    uint64_t workload; /* out: one of the key that has to be cancelled first; 0: none */
    uint32_t removed;  /* out: by this asking */
    bool done;         /* out */
};

struct request_trim {
    uint32_t dropped; /* out: blocks */
};

struct request_workload {
    struct workload *workload;       /* to start, handed over */
    enum workload_reason reason;     /* of a cancel: why, if nobody asked for it */
    bool waits;                      /* for its next news, a quarter of a second or so */
    bool takes_outputs;              /* those that are kept, as many as fit an answer */
    struct workload_report *report;  /* out; [count] of WORKLOADS, newest first */
    uint32_t count;                  /* likewise */
    struct workload_output *outputs; /* out: [output_count], and their rows one behind the other */
    uint8_t *output_rows;
    uint32_t output_count;
    bool more;                        /* out: there are more outputs already */
    struct workload_table_row *table; /* out: [report.table_rows], beside the report; NULL: none */
};

/* Who had a block, from one epoch to another. */
enum { BLOCK_OWNERS = 3 };
struct block_owner {
    uint64_t id,
        key; /* of the sequence or lease; to whom that belonged, 0: nobody, or it is not known any more */
    uint64_t since, until; /* epochs; until 0: it has it yet */
    bool foreign;          /* who asks is not told who it was: it belongs to another key */
};

/* What an output that is NaN has seen: unwritten.h. */
struct request_unwritten {
    uint64_t id;                /* of the sequence; of a paged call its table's number */
    uint32_t row, layer, query; /* of o; query: its position */
    uint32_t position, block, slot;
    uint32_t slots, blocks; /* that are like this one, of all rows that are NaN, with it */
    uint32_t owner_count;
    struct block_owner owners[BLOCK_OWNERS]; /* of the block, the latest first */
};

/* ---- a request ----------------------------------------------------------------------------------- */

/* What the loop has the engine do with a client that has registered memory (doorbell.h). */
struct request_doorbell {
    enum { DOORBELL_OPEN, DOORBELL_RENEW, DOORBELL_REGION, DOORBELL_CLOSE_REGION, DOORBELL_CLOSE } op;
    struct doorbell_client *client;
    struct doorbell_terms terms; /* of RENEW */
    bool answers;                /* of CLOSE: calls that were taken are answered; else they are dropped */
    uint32_t region;             /* of CLOSE_REGION; out, of REGION */
    int fd;                      /* of REGION; out, of CLOSE_REGION: it is the loop's again */
    uint64_t bytes;              /* likewise */
    const uint8_t *ipc;          /* of REGION: a handle, instead of fd; NULL: none */
    bool gpu,
        writes; /* of REGION: memory of the GPU, made here if fd is -1 (out: a descriptor for the client; the loop's), else mapped,
                         while fd stays the loop's; out, of CLOSE_REGION: gpu, without fd */
};

/* How far a request has come whose rows go into several steps; client_slices.c. */
struct request_slices {
    bool begun;
    bool appended;                 /* no more to append, since it is, or will not be */
    bool stands;                   /* its cursors have moved over what it appends */
    unsigned steps;                /* in flight that have some of it: a bit each, of step_slot() */
    struct kv_append *append_list; /* of a layer: */
    struct append_slicing appends; /* how far the next layer has come */
    uint32_t layers;               /* of which all is appended */
    struct planner_query *rows;    /* [rows.count] of q */
    struct planner_place *places;  /* [rows.count] */
    struct slicing queries;
};

/* What client_queue.c keeps of one that is queued. */
struct request_queued {
    struct request_sequence *on; /* [on_count] sequences, or the lease, on which it keeps its place */
    uint32_t on_count;
    struct request_sequence one;    /* `on`, when there is one that `id` names */
    int32_t priority;               /* of its sequences' the highest */
    struct wait_note wait;          /* why it waits, once it does */
    bool passed_over;               /* a step was formed without it */
    struct reserve_request *writes; /* [on_count]: what it writes; NULL before that is known */
    double estimate_us;             /* of what it computes */
    uint32_t account;               /* of its connection, shares.h */
    uint32_t place;                 /* among those that wait while a step is formed */
    bool tried;                     /* likewise: it has had its turn, or has to wait for others */
    bool wants_time;                /* likewise: nothing else keeps it waiting */
    bool hesitated;                 /* it was to fail for want of blocks, and waited once more */
    bool resumes;                   /* it was let wait for blocks, and goes first in the next step */
    bool pinned;                    /* its sequences are, until it is done */
    bool taken;                     /* it is in a step that was submitted */
    struct request_streamed {
        uint64_t content;
        uint32_t length; /* tokens that all layers had */
    } * streamed;        /* [on_count] its sequences as they were before it, of one that is streamed */
    enum { NOT_LOOKED, LOOKING, LOOKED } looked; /* at what stands: a step compares or reads it, or has */
    unsigned look_step;                          /* its slot */
    uint32_t *equal;                             /* [compare_count] results */
    uint32_t compare_count, compares_done;
    struct request_slices slices;
    struct unwritten_search *search; /* for what its outputs have seen; unwritten.c */
};

struct request {
    enum request_kind kind;
    uint64_t id;         /* of the sequence, lease or workload that it is about; of a new one 0: choose it */
    bool of_leases;      /* id, or what is listed, is of leases */
    uint32_t listed_max; /* block ids that the answer lists of a sequence; 0: REQUEST_LISTED_MAX */
    uint64_t key;        /* to whom belongs what it makes, and whose alone it sees, but if it */
    bool sees_all;       /* or there are no keys (0) */
    bool displaces_all;  /* the daemon's own: sequences of any priority make room */
    struct tenant_quotas quotas;          /* of the key */
    struct tenant_calls *use;             /* of the key: where its work is counted; NULL: nowhere */
    char name[REQUEST_NAME_BYTES];        /* X-Request-Id, for people; empty: none */
    char owner_name[REQUEST_OWNER_BYTES]; /* of the key; likewise */
    uint64_t owner;      /* whose time it takes, whoever that is; the highest bit counts for nothing */
    uint32_t weight;     /* of the owner; 0 is 1 */
    uint64_t connection; /* and on which connection of its own */
    double deadline_s;   /* after its submission; 0: none. One that still waits then fails */
    bool rings;          /* it came by a doorbell, and goes back there: doorbell.c */
    void *cookie; /* the loop's own, or the doorbell's; stays from one use of the request to the next */
    atomic_bool cancelled; /* nobody waits for the answer any more: if it still waits, it fails */

    int status; /* out: 0, or why it failed, and in words: */
    char detail[REQUEST_DETAIL_BYTES];
    char *moved_to;                      /* out, with ATTND_MOVED: where to; NULL: not known any more */
    struct request_unwritten *unwritten; /* out, with ATTND_UNWRITTEN */

    double submitted_s;
    uint64_t digest;         /* of its tensors; 0: there is no journal. Set when it is submitted */
    uint64_t journal_number; /* likewise; set when it is taken */
    struct request *next;    /* in the list in which it waits */
    struct request_queued queued;

    uint8_t *arena;
    size_t arena_bytes, arena_used;
    struct staging *staging;            /* the engine's; stays, like the cookie */
    void *tensors[REQUEST_TENSORS_MAX]; /* blocks of it, which go back with the request */
    uint32_t tensor_count;
    uint64_t tensor_bytes; /* in them */

    union {
        struct request_create create;       /* CREATE */
        struct request_look look;           /* SEQUENCE */
        struct request_table table;         /* BLOCKS */
        struct request_fork fork;           /* FORK */
        struct request_truncate truncate;   /* TRUNCATE */
        struct request_export export;       /* EXPORT */
        struct request_described described; /* DESCRIBE, RESTORE */
        struct request_moved moved;         /* MOVED */
        struct request_ids ids;             /* IDS */
        struct request_batch batch;         /* BATCH */
        struct request_lease lease;         /* LEASE */
        struct request_rows rows;           /* APPEND, ATTEND, PAGED: what these two begin with: */
        struct request_attend attend;       /* APPEND, ATTEND */
        struct request_paged paged;         /* PAGED; `id` is the lease */
        struct request_merge merge;         /* MERGE */
        struct model_constants parameters;  /* PARAMETERS: those given replace the model's */
        struct request_check check;         /* SELF_TEST, AUDIT */
        struct request_forget forget;       /* FORGET */
        struct request_page page;           /* BLOCKS, STATS, LIST, POOL, PREFIXES: what these begin with: */
        struct request_listing list;        /* LIST; STATS begins with it, too */
        struct request_stats stats;         /* STATS */
        struct request_pool pool;           /* POOL */
        struct request_tables tables;       /* TABLES */
        struct request_steps steps;         /* STEPS */
        struct request_trim trim;           /* TRIM */
        struct request_life life;           /* BLOCK_LIFE */
        struct request_events events;       /* EVENTS */
        struct request_waiting waiting;     /* WAITING */
        struct request_prefixes prefixes;   /* PREFIXES */
        struct request_doorbell doorbell;   /* DOORBELL */
        struct request_workload workload;   /* WORKLOAD_START, WORKLOAD, WORKLOAD_CANCEL */
    };                                      /* DELETE needs none */
};

/* Requests in order, linked by `next`. One that is all zeros is empty. */
struct request_list {
    struct request *first, *last;
};

/* request_list_append: put a request at the end. request_list_take: take the first one; NULL: empty. */
static inline void request_list_append(struct request_list *list, struct request *request)
{
    request->next = NULL;
    *(list->last ? &list->last->next : &list->first) = request;
    list->last = request;
}

static inline struct request *request_list_take(struct request_list *list)
{
    struct request *request = list->first;
    if (request)
        list->first = request->next;
    if (!list->first)
        list->last = NULL;
    return request;
}

/* request_alloc(request, n, size): room for n elements in the request's arena, aligned to 64 bytes; NULL when
 * it does not fit. */
void *request_alloc(struct request *request, size_t n, size_t size);

/* request_reset: give the tensors back and make it an empty request, but for its cookie, with that arena. request_trim_arena: of an
 * arena of which so much was used, most goes back to the system. The thread that has the request. */
void request_reset(struct request *request, uint8_t *arena, size_t arena_bytes);
void request_trim_arena(uint8_t *arena, size_t used);

/* request_tensor(request, n, size): room for n elements of a tensor in staging memory, aligned to
 * STAGING_ALIGNMENT, until the request is released; NULL when there is none now. request_adopt_tensor: a
 * block that was taken there goes back with the request. request_make_outputs: room for o and lse of what
 * the request computes; 0 or ATTND_BUSY. The thread that has the request. */
void *request_tensor(struct request *request, size_t n, size_t size);
void request_adopt_tensor(struct request *request, void *block, size_t bytes);
MUST_USE int request_make_outputs(struct request *request, const struct geometry *g);

/* A tensor [layers][rows][heads][head_dim] that has to be finite; `summed`: sums of its elements, too. */
struct request_elements {
    const void *array;
    enum dtype dtype;
    uint32_t layers, rows, heads, head_dim;
    bool summed;
};

/* request_elements_are_good: whether all are, as numeric_first_nonfinite() or numeric_first_unsummable() has it; else `text` says
 * which one is not. Any thread; O(elements). */
bool request_elements_are_good(const struct request_elements *of, char *text, size_t text_bytes);

/* request_some_are_good: likewise of n elements from `first` on. */
bool request_some_are_good(const struct request_elements *of, size_t first, size_t n, char *text,
                           size_t text_bytes);

/* request_wrong_element: what is wrong with an element that these functions have found, in words. */
const char *request_wrong_element(enum dtype dtype, const void *array, size_t at);

/* request_has_rows: whether it has rows for a layer. */
static inline bool request_has_rows(const struct request *request)
{
    return request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND ||
           request->kind == REQUEST_PAGED;
}

/* request_stream(request): the stream that its tensors belong to; NULL: none. */
static inline const struct request_stream *request_stream(const struct request *request)
{
    const struct request_stream *stream = request_has_rows(request)        ? &request->rows.stream
                                          : request->kind == REQUEST_MERGE ? &request->merge.stream
                                                                           : NULL;
    return stream && stream->on ? stream : NULL;
}

/* request_fail: set status and detail; returns the status. */
int request_fail(struct request *request, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
