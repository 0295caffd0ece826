/* swapping.h - who leaves for host memory when blocks run out.
 *
 * Only clients' sequences are swapped that nobody waits for: those that are idle, did not declare
 * max_tokens (whose blocks were promised), and are of no higher priority than the one that asks. Of
 * these the lowest priority goes first, then the one that moves least and is enough, then the latest.
 * Engine thread. */
#ifndef SCHEDULER_SWAPPING_H
#define SCHEDULER_SWAPPING_H

#include "scheduler/inspect.h"

struct swapping;

/* What is asked for. */
struct swap_request {
    uint32_t blocks;  /* that must become free when the step being formed retires */
    int32_t priority; /* of the one who asks */
    uint64_t forming; /* sequences of this number (sequence.forming) stay */
};

/* The copies of a step that is being formed; there is room for every block of the pool. */
struct copy_list {
    struct block_copy *list;
    uint32_t count;
};

MUST_USE int swapping_create(struct inspected *all, struct swapping **swapping);
void swapping_destroy(struct swapping *swapping);

/* swapping_out(swapping, request, copies): swap out as many as it takes. Returns how many blocks the
 * step will give back; 0 when there are not enough such sequences, and none is moved (or host memory is
 * full: then some may be). O(their blocks). */
uint32_t swapping_out(struct swapping *swapping, const struct swap_request *request,
                      struct copy_list *copies);

#endif
