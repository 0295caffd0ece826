/* SPDX-License-Identifier: Apache-2.0 */
/* engine_state.h - what the scheduler's modules share.
 *
 * Engine thread only: it is the one writer of all of it. */
#ifndef SCHEDULER_ENGINE_STATE_H
#define SCHEDULER_ENGINE_STATE_H

#include "config/model_constants.h"
#include "scheduler/budget.h"
#include "scheduler/prompts.h"
#include "scheduler/requests.h"
#include "scheduler/sequences.h"
#include "scheduler/step.h"

#include <stdatomic.h>
#include <stdbool.h>

struct client_queue;
struct workload_run;
struct reservation;
struct swapping;
struct swap_cache;
struct shares;
struct doorbell;
struct journal;
struct kv_events;

struct engine_state {
    const struct config *config;
    uint32_t requests;                  /* in the pool */
    double now_s;                       /* of this turn (clock.h) */
    bool stopping;                      /* only what was queued is computed, and waits for no company */
    bool failed;                        /* the backend has */
    bool keeps_all;                     /* whatever was last used counts as in use */
    double step_us_max, step_us_shared; /* scheduler.step_us_max and step_us_shared, as the backend is */
    uint64_t taken;                     /* requests so far, but those that only look: engine.c, doorbell.c */
    struct budget taking;               /* requests from the ring: engine.c, */
    struct budget waiting;              /* and those that a step carries out: client_queue.c */
    struct client_queue *clients;
    struct workload_run *workloads;
    struct doorbell *doorbell;        /* NULL: no client has registered memory */
    struct journal *journal;          /* NULL: there is none */
    struct kv_events *kv_events;      /* NULL: nobody mirrors the prefix cache */
    struct steps *steps;              /* step.c: backend, tables, steps in flight */
    struct sequences *sequences;      /* sequence_ops.c, workload_run.c */
    struct prompts *prompts;          /* sequence_ops.c */
    struct request_list alone;        /* that wait until no step is in flight; engine.c */
    struct request_list self_tests;   /* that wait for a verdict; backend_ops.c */
    struct request_list questions;    /* that are answered in parts; inspect.c */
    struct request_list listeners;    /* that wait for events; history.c */
    uint64_t preemptions;             /* since start; workload_run.c */
    uint64_t refusals;                /* likewise: requests that were refused for want of blocks; engine.c */
    struct model_constants constants; /* backend_ops.c */
    uint64_t constants_digest;        /* likewise */
    atomic_bool has_sinks, has_alibi; /* whether constants has them, for other threads */
    struct reservation *reservation;  /* every promise of blocks */
    struct swapping *swapping;        /* who leaves for host memory, */
    struct swap_cache *swap_cache;    /* and who from there for a file; NULL: there is none */
    struct shares *shares;            /* time that owners have had */
    uint32_t *lease_of;               /* [pool.blocks] row of the lease that has a block, or NO_ROW */
    uint32_t leases, leased_blocks;   /* sequence_ops.c, like the next two */
    struct work_tally done;           /* since the start, of all clients and workloads */
    double reaped_s;                  /* when it was last looked for sequences that nobody uses, */
    uint32_t reap_row;                /* and where the next look begins */
};

/* engine_state_note_done: count work, also for the key of `use`, if it is not NULL. */
static inline void engine_state_note_done(struct engine_state *state, struct tenant_calls *use,
                                          const struct work_done *done)
{
    work_tally_add(&state->done, done);
    if (use)
        work_tally_add(&use->done, done);
}

#endif
