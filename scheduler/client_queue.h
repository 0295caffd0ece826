/* client_queue.h - the queue of appends and attends, and the steps that are formed from it. */
#ifndef SCHEDULER_CLIENT_QUEUE_H
#define SCHEDULER_CLIENT_QUEUE_H

#include "scheduler/inspect.h"

struct client_queue;

struct client_queue_options {
    struct engine_state *state;
    /* Blocks that a call must leave to sequences that were promised them; `cookie` is its own. */
    uint32_t (*promised)(void *cookie);
    void (*complete)(struct call *call, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int client_queue_create(const struct client_queue_options *options, struct client_queue **steps);
void client_queue_destroy(struct client_queue *steps);

/* client_queue_add: queue a call; one that can never run is completed at once. */
void client_queue_add(struct client_queue *steps, struct call *call);

/* client_queue_drop(steps, id): fail the queued calls on a sequence that is about to be deleted. */
void client_queue_drop(struct client_queue *steps, uint64_t id);

/* client_queue_bring_in(steps, call, row): see that a sequence is resident, for a call that is about to
 * look at its blocks; nothing is queued. 0, or the call has failed. */
int client_queue_bring_in(struct client_queue *steps, struct call *call, uint32_t row);

/* client_queue_take_blocks(steps, call, row, n): n blocks of zeros for a row that has none, pushing
 * others out if need be; nothing is queued. 0, or the call has failed. */
int client_queue_take_blocks(struct client_queue *steps, struct call *call, uint32_t row, uint32_t n);

/* client_queue_wait_s: seconds until what is queued has to run, since its rows have waited for company as
 * long as they may; 0: now, negative: nothing is queued. */
double client_queue_wait_s(const struct client_queue *steps);

/* client_queue_run: form one step of what is queued and run it; its calls, and those that failed, are
 * completed. False when nothing was queued. */
bool client_queue_run(struct client_queue *steps);

#endif
