/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h - the questions that change nothing: sequences, block tables, the pool, the figures of
 * /stats.
 *
 * Those of REQUEST_MAP fill in the answer of one request, in its arena, or fail it. What would take long
 * is answered in parts, one a turn: the owners of blocks, the audit. Engine thread. */
#ifndef SCHEDULER_INSPECT_H
#define SCHEDULER_INSPECT_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* inspect_sees: whether what belongs to the key exists for whoever asks. */
bool inspect_sees(const struct request *request, uint64_t key);

/* inspect_is_ours: whether an id is one of this node's; if not, the request has failed. `what`: "sequence", ... */
bool inspect_is_ours(const struct engine_state *state, struct request *request, uint64_t id,
                     const char *what);

/* inspect_find: the row of a sequence (of a lease, if the request is of leases), or NO_ROW with the request
 * failed (not here, reaped, or another node's). */
uint32_t inspect_find(const struct engine_state *state, struct request *request, uint64_t id);

/* inspect_fail_moved: fail a request about a sequence that is elsewhere now. */
void inspect_fail_moved(struct request *request, const struct departure *gone);

/* inspect_show: append one sequence and its block ids to what is shown, which has room for its view; false
 * when the answer is full. inspect_show_one: the same as the only one; 0, or the request failed. */
bool inspect_show(const struct engine_state *state, struct request *request, struct request_shown *shown,
                  uint32_t row);
int inspect_show_one(const struct engine_state *state, struct request *request, struct request_shown *shown,
                     uint32_t row);

/* inspect_note_state: something has changed on which a sequence's state depends: its requests, whether it
 * is swapped out, the steps in which it takes part; it keeps the counts of /stats. */
void inspect_note_state(struct engine_state *state, uint32_t row);

/* inspect_part: do a part of the question that is answered in parts and came first (there is one), as much as there is
 * `work` for, in entries of tables; that request, if it is answered, or nobody waits for it any more. */
struct request *inspect_part(struct engine_state *state, uint32_t *work);

/* inspect_fault: the first broken invariant as a constant sentence, NULL if all hold. */
const char *inspect_fault(const struct engine_state *state);

/* inspect_view: a sequence without its blocks. */
void inspect_view(const struct engine_state *state, uint32_t row, struct sequence_view *view);

#endif
