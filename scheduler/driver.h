/* driver.h - runs workloads: admits their sequences, forms a step of one token of each, and tells how
 * it goes. Engine thread only. */
#ifndef SCHEDULER_DRIVER_H
#define SCHEDULER_DRIVER_H

#include "scheduler/inspect.h"
#include "scheduler/workload.h"

enum { WORKLOADS_MAX = 16 }; /* running, or ended and still told about */

struct driver;

struct driver_options {
    struct inspected *all;
    void (*complete)(struct call *call, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int driver_create(const struct driver_options *options, struct driver **driver);

/* driver_destroy: drops the workloads. NULL is fine. */
void driver_destroy(struct driver *driver);

/* The three calls about workloads; each is completed, at once or, for CALL_WORKLOAD that waits, when
 * there is news. */
void driver_start(struct driver *driver,
                  struct call *call); /* CALL_WORKLOAD_START: takes call->workload */
void driver_look(struct driver *driver, struct call *call);   /* CALL_WORKLOAD */
void driver_cancel(struct driver *driver, struct call *call); /* CALL_WORKLOAD_CANCEL */

/* driver_promised: free or cached blocks that admitted sequences may still need. */
uint32_t driver_promised(struct driver *driver);

/* driver_turn: run one step, or verify one row's part. False when there is nothing to do now. */
bool driver_turn(struct driver *driver);

/* driver_fail: the backend has failed: every workload that runs is cancelled. */
void driver_fail(struct driver *driver);

/* driver_settle: wait for the step that is being computed, if there is one. Before anything else than
 * driver_turn() looks at sequences or runs a step. */
void driver_settle(struct driver *driver);

/* driver_idle_s: seconds until driver_turn() has something to do if no call comes; negative: never. */
double driver_idle_s(const struct driver *driver);

#endif
