/* SPDX-License-Identifier: Apache-2.0 */
/* unwritten.h - debug.poison: which slot a call has read whose output is NaN, and who has had its block.
 *
 * What clients give is finite, and attention over finite numbers is finite (kernels/plan.h). So an output that is NaN has
 * seen a slot that nobody has written (poison.h). V of what its rows see is read back, as many tokens a step as there is room
 * for, by steps that do nothing else; the first slot that is NaN goes into the call's problem with the life of its block.
 *
 * Outputs of streamed calls, which stay on the device, and of workloads, which verify theirs, are not looked at. Engine
 * thread; nothing allocates after create. */
#ifndef SCHEDULER_UNWRITTEN_H
#define SCHEDULER_UNWRITTEN_H

#include "scheduler/engine_state.h"
#include "scheduler/requests.h"

struct unwritten;

/* unwritten_create: room to read into, from the backend of state->steps. Returns 0 or ATTND_NO_MEMORY. unwritten_destroy: NULL is
 * none. */
MUST_USE int unwritten_create(struct engine_state *state, struct unwritten **unwritten);
void unwritten_destroy(struct unwritten *unwritten);

/* unwritten_is_seen: whether a call that has been computed, and has not failed, may have seen such a slot: an output is not finite,
 * or it cannot tell (e4m3). O(outputs). */
bool unwritten_is_seen(const struct engine_state *state, const struct request *request);

/* unwritten_keep: note the tables of such a call as they are now, in its arena. Whatever happens to them later, what it has read is
 * found, until the next step writes. */
void unwritten_keep(struct unwritten *u, struct request *request);

/* unwritten_read: add to an empty step the next reads of a call that was kept; false: there is nothing more to be read, and the
 * call has failed with what was found; if nothing was, and its outputs are finite, it has not. unwritten_note: that step is done. */
bool unwritten_read(struct unwritten *u, struct step *step, struct request *request);
void unwritten_note(struct unwritten *u, struct request *request);

#endif
