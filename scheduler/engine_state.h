/* engine_state.h - what the scheduler's modules share.
 *
 * Engine thread only: it is the one writer of all of it. */
#ifndef SCHEDULER_ENGINE_STATE_H
#define SCHEDULER_ENGINE_STATE_H

#include "config/model_constants.h"
#include "scheduler/prompts.h"
#include "scheduler/sequences.h"
#include "scheduler/step.h"

struct engine_state {
    const struct config *config;
    struct steps *steps;              /* step.c: backend, tables, steps in flight */
    struct sequences *sequences;      /* sequence_ops.c, workload_run.c */
    struct prompts *prompts;          /* sequence_ops.c */
    uint64_t epoch;                   /* counts changes */
    uint64_t preemptions;             /* since start; workload_run.c */
    struct model_constants constants; /* engine.c */
    uint64_t declared;                /* blocks kept for sequences with max_tokens; reservation.c */
    uint32_t *lease_of;               /* [pool.blocks] row of the lease that has a block, or NO_ROW */
    uint32_t leases, leased_blocks;
};

#endif
