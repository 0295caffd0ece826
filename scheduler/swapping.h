/* SPDX-License-Identifier: Apache-2.0 */
/* swapping.h - who leaves for host memory when blocks run out.
 *
 * Only clients' sequences are swapped, and of these only such as are not in the step being formed, come
 * no earlier in the queue than the one that asks, and did not declare max_tokens (whose blocks were
 * promised); policy.h says which of them. Before them go blocks that nobody on the device holds any more.
 * Engine thread. */
#ifndef SCHEDULER_SWAPPING_H
#define SCHEDULER_SWAPPING_H

#include "scheduler/engine_state.h"

struct swapping;

/* What is asked for. */
struct swap_request {
    uint32_t blocks;  /* that must become free when the step being formed retires */
    int32_t priority; /* of the one who asks */
    uint64_t forming; /* sequences with this number (sequence.forming) stay */
};

MUST_USE int swapping_create(struct engine_state *state, struct swapping **swapping);
void swapping_destroy(struct swapping *swapping); /* NULL is fine. */

/* swapping_note: the table of a row has changed, or it came back from the host. O(log sequences), and nothing
 * unless the number of its blocks is another one; O(blocks) when it becomes one that may leave. */
void swapping_note(struct swapping *swapping, uint32_t row);

/* swapping_note_idle: no call on the row is queued any more. */
void swapping_note_idle(struct swapping *swapping, uint32_t row);

/* swapping_drop: a row is about to be removed. */
void swapping_drop(struct swapping *swapping, uint32_t row);

/* swapping_out(swapping, request, copies): swap out as many as it takes; or as many as host memory has frames for now, when
 * more are to come (swap_cache.h). False when they are not enough, or there are too few host blocks for them; then nothing
 * is moved. O(log sequences + blocks) for each
 * that is chosen or was chosen in vain: it is in the step, or what it shares has changed since it was last
 * looked at. */
bool swapping_out(struct swapping *swapping, const struct swap_request *request, struct copy_list *copies);

#endif
