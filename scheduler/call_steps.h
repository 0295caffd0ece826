/* call_steps.h - the queue of appends and attends, and the steps that are formed from it. */
#ifndef SCHEDULER_CALL_STEPS_H
#define SCHEDULER_CALL_STEPS_H

#include "scheduler/inspect.h"

struct call_steps;

struct call_steps_options {
    struct inspected *all;
    /* Blocks that a call must leave to sequences that were promised them; `cookie` is its own. */
    uint32_t (*promised)(void *cookie);
    void (*complete)(struct call *call, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int call_steps_create(const struct call_steps_options *options, struct call_steps **steps);
void call_steps_destroy(struct call_steps *steps);

/* call_steps_add: queue a call; one that can never run is completed at once. */
void call_steps_add(struct call_steps *steps, struct call *call);

/* call_steps_drop(steps, id): fail the queued calls on a sequence that is about to be deleted. */
void call_steps_drop(struct call_steps *steps, uint64_t id);

/* call_steps_bring_in(steps, call, row): see that a sequence is resident, for a call that is about to
 * look at its blocks; nothing is queued. 0, or the call has failed. */
int call_steps_bring_in(struct call_steps *steps, struct call *call, uint32_t row);

/* call_steps_take_blocks(steps, call, row, n): n blocks of zeros for a row that has none, pushing
 * others out if need be; nothing is queued. 0, or the call has failed. */
int call_steps_take_blocks(struct call_steps *steps, struct call *call, uint32_t row, uint32_t n);

/* call_steps_wait_s: seconds until what is queued has to run, since its rows have waited for company as
 * long as they may; 0: now, negative: nothing is queued. */
double call_steps_wait_s(const struct call_steps *steps);

/* call_steps_run: form one step of what is queued and run it; its calls, and those that failed, are
 * completed. False when nothing was queued. */
bool call_steps_run(struct call_steps *steps);

#endif
