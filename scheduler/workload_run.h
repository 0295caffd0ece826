/* workload_run.h - runs workloads: admits their sequences, forms a step of one token of each, and tells how
 * it goes. Engine thread only. */
#ifndef SCHEDULER_WORKLOAD_RUN_H
#define SCHEDULER_WORKLOAD_RUN_H

#include "scheduler/inspect.h"
#include "scheduler/workload.h"

enum { WORKLOADS_MAX = 16 }; /* running, or ended and still told about */

struct workload_run;

struct workload_run_options {
    struct engine_state *state;
    void (*complete)(struct call *call, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int workload_run_create(const struct workload_run_options *options, struct workload_run **run);

/* workload_run_destroy: drops the workloads. NULL is fine. */
void workload_run_destroy(struct workload_run *run);

/* The three calls about workloads; each is completed, at once or, for CALL_WORKLOAD that waits, when
 * there is news. */
void workload_run_start(struct workload_run *run,
                  struct call *call); /* CALL_WORKLOAD_START: takes call->workload */
void workload_run_look(struct workload_run *run, struct call *call);   /* CALL_WORKLOAD */
void workload_run_cancel(struct workload_run *run, struct call *call); /* CALL_WORKLOAD_CANCEL */

/* workload_run_promised: free or cached blocks that admitted sequences may still need. */
uint32_t workload_run_promised(struct workload_run *run);

/* workload_run_turn: run one step, or verify one row's part. False when there is nothing to do now. */
bool workload_run_turn(struct workload_run *run);

/* workload_run_fail: the backend has failed: every workload that runs is cancelled. */
void workload_run_fail(struct workload_run *run);

/* workload_run_settle: wait for the step that is being computed, if there is one. Before anything else than
 * workload_run_turn() looks at sequences or runs a step. */
void workload_run_settle(struct workload_run *run);

/* workload_run_idle_s: seconds until workload_run_turn() has something to do if no call comes; negative: never. */
double workload_run_idle_s(const struct workload_run *run);

#endif
