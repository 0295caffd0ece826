/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - a step: copies, appends and attention that the backend makes together, whoever they are for.
 *
 *     begin -> add, copies, take_part, ... -> submit -> the backend computes -> retire
 *
 * One step is formed at a time. Up to STEPS_IN_FLIGHT are submitted and not retired; they retire in
 * their order. Producers (client_queue.c, workload_run.c) add parts to the step being formed: parts of
 * clients at one layer, of one format and for one kernel share a pass, and with it what their sequences
 * share. Only this file submits to a backend.
 *
 * It also owns what steps run on: the backend, the block tables, and a planner for every plan of a
 * step. Engine thread only; nothing allocates after create. */
#ifndef SCHEDULER_STEP_H
#define SCHEDULER_STEP_H

#include "allocator/block_table.h"
#include "config/config.h"
#include "kernels/attention.h"
#include "scheduler/cost.h"
#include "scheduler/planner.h"
#include "scheduler/roof.h"
#include "scheduler/step_log.h"

enum {
    STEPS_IN_FLIGHT = ATTENTION_STEPS_IN_FLIGHT,
    /* Plans of a step, each made by a planner that remembers the rows that it had: one for each pass of
       clients, and one for the sequences of workloads (and each window). */
    STEP_CLIENT_PLANS = ATTENTION_PLANS / 2,
    STEP_PLANS,
    STEP_LOOSE_TABLES = 1024, /* block tables of a step that belong to no sequence */
    STEP_COMPARES = 1024,     /* of a step */
    STEP_READS = 64,          /* likewise */
    STEP_MERGES = 64,         /* likewise */
    STEP_SLICE_STATES = 4096  /* partial states that slices of calls keep from step to step, of all calls */
};

struct steps;
struct step;
struct poison;

struct steps_options {
    const struct config *config;             /* borrowed */
    const struct model_constants *constants; /* borrowed; may change while no step is in flight */
    uint32_t partials_max;                   /* of a plan, or more where rows have many spans */
    int (*open_backend)(const struct attention_options *options, struct attention **attention,
                        char error[ATTENTION_ERROR_BYTES]); /* attention_open(), but for tests */
    void (*progress)(uint64_t bytes_done, uint64_t bytes, void *cookie);
    void *cookie;
    double now_s;                         /* on the engine's clock */
    const struct step_measures *measures; /* NULL: measure them */
};

/* What estimates and plans are made with. */
struct step_measures {
    struct cost_model cost;
    struct planner_costs costs;
};

/* What a step took. */
struct step_cost {
    double seconds;
    uint64_t bytes; /* of K and V that its plans read */
};

/* Upper bounds, in seconds, of the buckets in which steps are counted by what they took. */
enum { STEP_TIMES = 14 };
extern const double step_time_bounds[STEP_TIMES];

/* The same of requests by what they waited. */
enum { STEP_WAITS = 13 };
extern const double step_wait_bounds[STEP_WAITS];

/* Of the latest steps, and since start. */
struct step_stats {
    uint64_t steps, bytes_read;
    uint64_t times[STEP_TIMES +
                   1]; /* steps that took at most so long, and longer than the one before; the last: longer */
    uint64_t waits[STEP_WAITS + 1]; /* requests, likewise; */
    double waited_s;                /* all of them together */
    double busy_s;
    uint32_t rows_p50, rows_max;
    double step_us_p50, step_us_p99;
    struct step_cost latest; /* of the latest steps together */
    double idle_us_p50;      /* between the end of a step and the begin of the next */
    struct attention_graphs graphs;
};

/* Who adds a part. */
enum step_producer { STEP_OF_CLIENTS, STEP_OF_WORKLOADS };

/* What one producer has computed at one layer: appends, then attention. The arrays of appends and rows
 * stay as they are until the step is submitted, tensors until it is retired. Those of workloads are passes by
 * themselves, and so are slices. */
struct step_part {
    enum step_producer producer;
    uint32_t layer;
    enum attention_kernel kernel;
    const struct kv_append *appends; /* [append_count] */
    uint32_t append_count;
    enum dtype kv_dtype;              /* of what they are given */
    const struct planner_query *rows; /* [row_count] */
    uint32_t row_count;
    const void *q;                       /* [..][query_heads][head_dim]; NULL, of workloads: generated */
    const struct value_source *q_source; /* [row_count] */
    void *o;                             /* [..][query_heads][head_dim]; NULL: a slice that others follow */
    float *lse;                          /* [..][query_heads]; NULL: not wanted */
    const struct planner_place *places;  /* [row_count] .query: which of q, o and lse; NULL: as they come */
    const uint64_t *contents;            /* [row_count] attention_row.content; NULL: 0 */
    const struct plan_slice *slice;      /* NULL: all of the rows' keys */
    double cost_us;                      /* estimated: cost_us() */
};

/* steps_create: open the backend, measure the roof, make the tables. Returns 0, ATTND_INVALID or
 * ATTND_NO_MEMORY with a sentence in `error`. */
MUST_USE int steps_create(const struct steps_options *options, struct steps **steps,
                          char error[ATTENTION_ERROR_BYTES]);
void steps_destroy(struct steps *steps);

/* ---- forming ---- */

/* step_begin: a new, empty step, or the latest one, to be continued, if it is streamed, has nothing of workloads, and has room; NULL
 * while STEPS_IN_FLIGHT are in flight. One that was begun and not submitted is dropped; what was added to it must be nothing. */
struct step *step_begin(struct steps *steps);

/* step_stream(step, stream): what the step being formed has is streamed (attention.h), on that stream. False: it is on another
 * one. step_stream_room: for how many more steps, or parts of steps, that are streamed there is room now. */
bool step_stream(struct step *step, void *stream);
uint32_t step_stream_room(struct steps *steps);

/* With debug.poison. step_looks: the step being formed consists of reads, which see what the step before has left; slots
 * that have been given back since are marked as unwritten by the next one. step_vacate: slots from `first` on of a block that
 * is held hold nothing, though they may have been written. Without debug.poison both do nothing. */
void step_looks(struct step *step);
void step_vacate(struct steps *steps, uint32_t block, uint32_t first);
const struct poison *step_poison(const struct steps *steps); /* for tests */

/* The number of the step that is being formed, for the allocator. */
uint64_t step_number(const struct steps *steps);

/* 0..STEPS_IN_FLIGHT-1: two steps that are alive have different ones. */
unsigned step_slot(const struct step *step);

/* Room that a part may use for its lists until the step is submitted; NULL when there is none. */
struct planner_query *step_rows(struct step *step, uint32_t n);
struct kv_append *step_appends(struct step *step, uint32_t n);

/* step_lists_left: how much room there is in the smaller of the two. */
uint32_t step_lists_left(const struct step *step);

/* step_fits: whether `n` parts like this one, at as many layers, can be added. step_add: add one that
 * can. */
bool step_fits(const struct step *step, const struct step_part *part, uint32_t n);
void step_add(struct step *step, const struct step_part *part);

/* step_add_compare, step_add_read, step_add_merge: operations beside the passes. Compares and reads come before
 * all that the step appends; their results and those of merges are there when the step retires, and not to be
 * used if step_failure(). False when there is no room. */
bool step_add_compare(struct step *step, const struct kv_compare *compare);
bool step_add_read(struct step *step, const struct kv_read *read);
bool step_add_merge(struct step *step, const struct merge_states *merge);

/* For figures and the log of steps. step_note_request: a request of the step waited so long until it was formed.
 * step_note_owner: so many of its queries are of that key; 0: of none. */
void step_note_request(struct step *step, double waited_us);
void step_note_owner(struct step *step, uint64_t key, uint32_t rows);

/* step_us: how long the step will take, estimated of what has been added so far. step_us_of: how long some
 * work takes in a step. */
double step_us(const struct step *step);
double step_us_of(const struct steps *steps, const struct cost_work *work);

/* step_order: the order in which slices of n <= limits.rows_per_call rows are cut; see planner_order(). */
void step_order(struct steps *steps, uint32_t layer, const struct planner_query *rows, uint32_t n,
                struct planner_place *places);

/* step_rows_together: queries that read K and V together at most. step_takes_segments: whether the backend
 * computes slices of segments; else a query is not cut. */
uint32_t step_rows_together(const struct steps *steps);
bool step_takes_segments(const struct steps *steps);

/* step_keep_states(steps, n): n states that lie side by side, for the slices of some rows; STEP_NO_STATES:
 * not now. step_drop_states: they are not needed any more once the steps in flight are done, whose
 * successors may write them. step_states_free: how many step_keep_states() gives at most. */
#define STEP_NO_STATES UINT32_MAX
uint32_t step_keep_states(struct steps *steps, uint32_t n);
void step_drop_states(struct steps *steps, uint32_t first);
uint32_t step_states_free(const struct steps *steps);

/* The copies of the step, made in this order before all else. Room for every block of the pool and one
 * for every sequence. */
struct copy_list {
    struct block_copy *list;
    uint32_t count;
};
struct copy_list *step_copies(struct step *step);

/* step_take_part: a row of the block tables is read or written by the step. Its cursors have moved as
 * the step moves them. Once a step. */
void step_take_part(struct step *step, uint32_t row);

/* step_set_table(step, ids, n): a block table of the step's own, of at most step_table_blocks() ids.
 * Returns its number and its version, for planner rows and appends. step_tables_left: how many more. */
struct step_table {
    uint32_t row;
    uint64_t version;
};
struct step_table step_set_table(struct step *step, const uint32_t *ids, uint32_t n);
uint32_t step_tables_left(const struct step *step);
uint32_t step_table_blocks(const struct steps *steps);

/* Nothing was added, and nothing has to be copied. */
bool step_is_empty(const struct step *step);

/* Queries so far. */
uint32_t step_row_count(const struct step *step);

/* step_skip: an empty step that is not submitted, while none is in flight: what was given up in it, and
 * waits for its end, is lifted. False when there is nothing of the kind. */
bool step_skip(struct step *step);

/* step_submit: hand the step to the backend. */
void step_submit(struct step *step);

/* ---- in flight ---- */

unsigned steps_in_flight(const struct steps *steps);

/* steps_left_s: seconds from `now_s` (the engine's clock) until the steps in flight are done, as they were estimated; 0: there is none, or
 * they take longer than that. */
double steps_left_s(const struct steps *steps, double now_s);

/* Whether the oldest step in flight is on a stream of a client's, and so waits for what that has the device do. */
bool steps_await_client(const struct steps *steps);

/* steps_poll: the oldest step in flight, if the backend has done it; else NULL. `but_latest`: not one that may be continued. */
struct step *steps_poll(struct steps *steps, bool but_latest);

/* step_retire: a step that is done: outputs are put where they belong, full blocks published, fences
 * lifted, figures noted. What it took can be asked for until the next step_begin(). */
void step_retire(struct step *step);
struct step_cost step_cost(const struct step *step);

/* step_figures: what one was, that can be asked for as long. */
struct step_figures {
    uint64_t number;
    uint32_t rows, sequences; /* queries; rows of the block tables that took part */
};
struct step_figures step_figures(const struct step *step);

/* What a step consists of, for the journal: sequences that take part, copies, comparisons and queries by producer; and, of
 * one that is done, what the backend says it took. */
const uint32_t *step_table_rows(const struct step *step, uint32_t *count);
const struct block_copy *step_copied(const struct step *step, uint32_t *count);
const struct kv_compare *step_compares(const struct step *step, uint32_t *count);
void step_rows_of(const struct step *step, uint32_t rows[2]);
struct attention_times step_times(const struct step *step);

/* Bytes of K and V that the parts of a producer read. */
uint64_t step_bytes(const struct step *step, enum step_producer producer);

/* ---- what steps run on ---- */

struct block_tables *step_tables(const struct steps *steps);
const struct attention_info *step_backend(const struct steps *steps);
struct attention *step_attention(const struct steps *steps);
/* step_roof: what was measured (roof_report()). step_roof_part, step_roof_turn, step_roof_idle_s: see roof.h. */
struct roof_report step_roof(struct steps *steps); /* any thread */
bool step_roof_part(struct steps *steps, const void *who, double now_s);
bool step_roof_turn(struct steps *steps, bool computes, double now_s);
double step_roof_idle_s(const struct steps *steps, double now_s);
double step_grouping_us(const struct steps *steps);
struct step_measures step_measures(const struct steps *steps);
struct step_stats step_stats(const struct steps *steps);
const struct step_log *step_log(const struct steps *steps);

/* See attention_failure(), attention_fail(), attention_call(). */
const char *step_failure(const struct steps *steps);
void step_fail(struct steps *steps, const char *why);
uint64_t step_call(const struct steps *steps); /* any thread */

/* step_self_test: the next part of attention_self_test(). */
enum attention_verdict step_self_test(struct steps *steps);

/* Whether anything was ever appended. */
bool step_has_appended(const struct steps *steps);

/* Memory for tensors that the backend reads and writes fast; NULL when there is none. */
void *step_host_memory(struct steps *steps, size_t bytes);
void step_free_host_memory(struct steps *steps, void *memory, size_t bytes);

#endif
