/* SPDX-License-Identifier: Apache-2.0 */
/* workload_run.h - runs workloads: admits their sequences, decodes a token of each a round, and tells how
 * it goes. A producer of step.h. Engine thread only. */
#ifndef SCHEDULER_WORKLOAD_RUN_H
#define SCHEDULER_WORKLOAD_RUN_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"
#include "scheduler/workload.h"

enum { WORKLOADS_MAX = 16 }; /* running, or ended and still told about */

struct workload_run;

struct workload_run_options {
    struct engine_state *state;
    void (*complete)(struct request *request, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int workload_run_create(const struct workload_run_options *options, struct workload_run **run);

/* workload_run_number_from: ids of workloads that begin from now on are not below `id`. A start with a state.dir begins where no sequence
 * ever was, so ids of workloads are not used again either. */
void workload_run_number_from(struct workload_run *run, uint64_t id);

/* workload_run_destroy: drops the workloads. NULL is fine. */
void workload_run_destroy(struct workload_run *run);

/* workload_run_begin: a step is being formed: admit what may run. workload_run_may_add: whether something
 * of a round may be added to it. */
void workload_run_begin(struct workload_run *run, struct step *step);
bool workload_run_may_add(const struct workload_run *run);

/* workload_run_at: the virtual time (shares.h) of the workload in the round that has had most, or, before
 * there is one, of the one that has had least; INFINITY: none runs. workload_run_owners: how many run. */
double workload_run_at(const struct workload_run *run);
uint32_t workload_run_owners(const struct workload_run *run);

/* workload_run_add: add the next layers of the round, or of a new one, as many as are estimated to take
 * `room_us`; if none, a part of one. Once a step. False when nothing was added. */
bool workload_run_add(struct workload_run *run, struct step *step, double room_us);

/* workload_run_end: the step has all that workloads add to it. workload_run_retire: a step has retired:
 * take its outputs and go on. */
void workload_run_end(struct workload_run *run);
void workload_run_retire(struct workload_run *run, const struct step *step);

/* workload_run_verify: verify a part of a row, now and then, or at once when the engine is `idle`. False
 * when there was nothing to do. */
bool workload_run_verify(struct workload_run *run, bool idle);

/* workload_run_begin_turn: a turn of the engine begins, with what it may take to admit sequences and to
 * end others. workload_run_tidy: go on ending rounds, sequences and workloads; false when there was
 * nothing to end. */
void workload_run_begin_turn(struct workload_run *run);
bool workload_run_tidy(struct workload_run *run);

/* workload_run_report: answer the requests that wait for news. */
void workload_run_report(struct workload_run *run);

/* workload_run_of_key: a workload that belongs to the key and has not ended; 0: none. */
uint64_t workload_run_of_key(const struct workload_run *run, uint64_t key);

/* workload_run_oldest: the one that runs longest; 0: none runs. workload_run_waits(run, i, view): what of the i-th
 * one waits, and why; false: nothing, or there is none. */
uint64_t workload_run_oldest(const struct workload_run *run);
struct wait_view;
bool workload_run_key(const struct workload_run *run, uint64_t id, uint64_t *key); /* to whom one belongs */
bool workload_run_waits(const struct workload_run *run, uint32_t i, struct wait_view *view, uint64_t *key);

/* workload_run_longest_wait_s: for how long that workload has admitted nobody that has waited longest; 0: none waits. */
double workload_run_longest_wait_s(const struct workload_run *run);

/* workload_run_fail: the backend has failed and no step is in flight: cancel every workload. */
void workload_run_fail(struct workload_run *run);

/* workload_run_idle_s: seconds until there is something to do if no request comes; negative: never. */
double workload_run_idle_s(const struct workload_run *run);

#endif
