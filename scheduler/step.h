/* step.h - what steps run on: the backend, the block tables, a planner for every pass of a step,
 * and the record of the steps that were run.
 *
 * Whoever forms a step reserves its blocks with step_tables() under the number step_number(),
 * plans its passes, submits them, and retires the step when they are done. One step is formed at a time
 * while the one before may still be computed; steps are retired in their order. Engine thread only;
 * nothing allocates after create. */
#ifndef SCHEDULER_STEP_H
#define SCHEDULER_STEP_H

#include "allocator/block_table.h"
#include "config/config.h"
#include "kernels/attention.h"
#include "scheduler/planner.h"

/* Plans that can be alive at a time, each with a planner that remembers the rows it had: one for each
 * pass of a step of client calls, and one for the sequences that the daemon drives itself. */
enum { PLAN_SLOTS_OF_CALLS = 4, PLAN_SLOT_DRIVEN = PLAN_SLOTS_OF_CALLS, PLAN_SLOTS };

/* Block tables of a step that belong to no sequence. */
enum { LOOSE_TABLES = 1024 };

struct steps;

struct steps_options {
    const struct config *config;             /* borrowed */
    const struct model_constants *constants; /* likewise; may change between steps */
    uint32_t partials_max;
    void (*progress)(uint64_t bytes_done, uint64_t bytes, void *cookie);
    void *cookie;
};

/* What running passes took. */
struct step_cost {
    double seconds;
    uint64_t bytes; /* of K and V that the plans read */
};

/* Passes that were submitted. */
struct step_run {
    uint64_t ticket; /* of the backend */
    uint64_t bytes;
    bool done; /* and this is what they took: */
    struct step_cost cost;
};

/* Of the latest steps, and since start. */
struct step_stats {
    uint64_t steps, bytes_read;
    double busy_s;
    uint32_t rows_p50, rows_max;
    double step_us_p50, step_us_p99;
    struct step_cost latest; /* of the latest steps together */
    double
        idle_us_p50; /* between the end of a step and the begin of the next that waited for nothing */
};

/* steps_create: open the backend, measure the roof, make the tables. Returns 0, ATTND_INVALID or
 * ATTND_NO_MEMORY with a sentence in `error`. */
MUST_USE int steps_create(const struct steps_options *options, struct steps **steps,
                             char error[ATTENTION_ERROR_BYTES]);
void steps_destroy(struct steps *steps);

struct block_tables *step_tables(const struct steps *steps);
const struct attention_info *step_backend(const struct steps *steps);
double step_roof_gb_per_s(const struct steps *steps);
double step_grouping_us(const struct steps *steps);

/* See attention_merge_states(). */
void step_merge_states(struct steps *steps, const struct merge_states *m);

/* See attention_failure(). */
const char *step_failure(const struct steps *steps);

/* See attention_compare_kv(), attention_self_test(). */
uint32_t step_compare_kv(struct steps *steps, const struct kv_rows *rows,
                             const uint32_t *ids);
bool step_self_test(struct steps *steps);

/* Whether anything was ever appended. */
bool step_has_appended(const struct steps *steps);

/* The number of the step that is being formed. */
uint64_t step_number(const struct steps *steps);

/* step_plan(steps, slot, layer, rows, n): the plan of these rows for layers with the window of
 * `layer`; valid until the slot's next plan for such a layer. NULL for no rows. */
const struct plan *step_plan(struct steps *steps, unsigned slot, uint32_t layer,
                                 const struct planner_row *rows, uint32_t n);

/* step_set_table(steps, i, ids, n): what loose table i <= LOOSE_TABLES holds from now on; no
 * step is in flight. Returns its number, for planner rows and appends. Its version, likewise, is new
 * each time. */
uint32_t step_set_table(struct steps *steps, uint32_t i, const uint32_t *ids, uint32_t n);
uint64_t step_table_version(const struct steps *steps, uint32_t i);

/* Blocks that a table has room for. */
uint32_t step_table_blocks(const struct steps *steps);

/* step_submit: the copies (n of them, in order), then the passes. What is handed over may be used
 * again at once but for the tensors of the passes, which stay untouched until step_wait(). */
struct step_run step_submit(struct steps *steps, const struct block_copy *copies, uint32_t n,
                                const struct attention_pass *passes, uint32_t pass_count);
bool step_is_done(struct steps *steps, const struct step_run *run);
struct step_cost step_wait(struct steps *steps, struct step_run *run);

/* step_run: submit, and wait. */
struct step_cost step_run(struct steps *steps, const struct block_copy *copies, uint32_t n,
                              const struct attention_pass *passes, uint32_t pass_count);

/* step_submitted: all of the step being formed is submitted; the next one begins. */
void step_submitted(struct steps *steps);

/* step_retire(steps, step, table_rows, n, rows, cost): a step has run, with these rows of the
 * block tables, `rows` query rows and this cost in all. */
void step_retire(struct steps *steps, uint64_t step, const uint32_t *table_rows, uint32_t n,
                     uint32_t rows, struct step_cost cost);

/* Memory for tensors that the backend reads and writes fast; NULL when there is none. */
void *step_host_memory(struct steps *steps, size_t bytes);
void step_free_host_memory(struct steps *steps, void *memory, size_t bytes);

struct step_stats step_stats(const struct steps *steps);

#endif
