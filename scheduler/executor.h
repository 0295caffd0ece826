/* executor.h - what steps run on: the backend, the block tables, a planner for every pass of a step,
 * and the record of the steps that were run.
 *
 * Whoever forms a step reserves its blocks with executor_tables() under the number executor_step(),
 * plans its passes, submits them, and retires the step when they are done. One step is formed at a time
 * while the one before may still be computed; steps are retired in their order. Engine thread only;
 * nothing allocates after create. */
#ifndef SCHEDULER_EXECUTOR_H
#define SCHEDULER_EXECUTOR_H

#include "allocator/block_table.h"
#include "config/config.h"
#include "kernels/attention.h"
#include "scheduler/planner.h"

/* Plans that can be alive at a time, each with a planner that remembers the rows it had: one for each
 * pass of a step of client calls, and one for the sequences that the daemon drives itself. */
enum { PLAN_SLOTS_OF_CALLS = 4, PLAN_SLOT_DRIVEN = PLAN_SLOTS_OF_CALLS, PLAN_SLOTS };

/* Block tables of a step that belong to no sequence. */
enum { LOOSE_TABLES = 1024 };

struct executor;

struct executor_options {
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
struct executor_stats {
    uint64_t steps, bytes_read;
    double busy_s;
    uint32_t rows_p50, rows_max;
    double step_us_p50, step_us_p99;
    struct step_cost latest; /* of the latest steps together */
    double
        idle_us_p50; /* between the end of a step and the begin of the next that waited for nothing */
};

/* executor_create: open the backend, measure the roof, make the tables. Returns 0, ATTND_INVALID or
 * ATTND_NO_MEMORY with a sentence in `error`. */
MUST_USE int executor_create(const struct executor_options *options, struct executor **executor,
                             char error[ATTENTION_ERROR_BYTES]);
void executor_destroy(struct executor *executor);

struct block_tables *executor_tables(const struct executor *executor);
const struct attention_info *executor_backend(const struct executor *executor);
double executor_roof_gb_per_s(const struct executor *executor);
double executor_grouping_us(const struct executor *executor);

/* See attention_merge_states(). */
void executor_merge_states(struct executor *executor, const struct merge_states *m);

/* See attention_failure(). */
const char *executor_failure(const struct executor *executor);

/* See attention_compare_kv(), attention_self_test(). */
uint32_t executor_compare_kv(struct executor *executor, const struct kv_rows *rows,
                             const uint32_t *ids);
bool executor_self_test(struct executor *executor);

/* Whether anything was ever appended. */
bool executor_has_appended(const struct executor *executor);

/* The number of the step that is being formed. */
uint64_t executor_step(const struct executor *executor);

/* executor_plan(executor, slot, layer, rows, n): the plan of these rows for layers with the window of
 * `layer`; valid until the slot's next plan for such a layer. NULL for no rows. */
const struct plan *executor_plan(struct executor *executor, unsigned slot, uint32_t layer,
                                 const struct planner_row *rows, uint32_t n);

/* executor_set_table(executor, i, ids, n): what loose table i <= LOOSE_TABLES holds from now on; no
 * step is in flight. Returns its number, for planner rows and appends. Its version, likewise, is new
 * each time. */
uint32_t executor_set_table(struct executor *executor, uint32_t i, const uint32_t *ids, uint32_t n);
uint64_t executor_table_version(const struct executor *executor, uint32_t i);

/* Blocks that a table has room for. */
uint32_t executor_table_blocks(const struct executor *executor);

/* executor_submit: the copies (n of them, in order), then the passes. What is handed over may be used
 * again at once but for the tensors of the passes, which stay untouched until executor_wait(). */
struct step_run executor_submit(struct executor *executor, const struct block_copy *copies, uint32_t n,
                                const struct attention_pass *passes, uint32_t pass_count);
bool executor_is_done(struct executor *executor, const struct step_run *run);
struct step_cost executor_wait(struct executor *executor, struct step_run *run);

/* executor_run: submit, and wait. */
struct step_cost executor_run(struct executor *executor, const struct block_copy *copies, uint32_t n,
                              const struct attention_pass *passes, uint32_t pass_count);

/* executor_submitted: all of the step being formed is submitted; the next one begins. */
void executor_submitted(struct executor *executor);

/* executor_retire(executor, step, table_rows, n, rows, cost): a step has run, with these rows of the
 * block tables, `rows` query rows and this cost in all. */
void executor_retire(struct executor *executor, uint64_t step, const uint32_t *table_rows, uint32_t n,
                     uint32_t rows, struct step_cost cost);

/* Memory for tensors that the backend reads and writes fast; NULL when there is none. */
void *executor_host_memory(struct executor *executor, size_t bytes);
void executor_free_host_memory(struct executor *executor, void *memory, size_t bytes);

struct executor_stats executor_stats(const struct executor *executor);

#endif
