/* reservation.h - the blocks that are kept for clients' sequences that said how long they may grow.
 *
 * A sequence that declares max_tokens is admitted only if all the blocks it can still need are there
 * and promised to nobody else, so that no append of it ever fails for want of blocks. What it may still
 * take is its `declared`; the sum of all is what everybody else has to leave alone. Engine thread. */
#ifndef SCHEDULER_RESERVATION_H
#define SCHEDULER_RESERVATION_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* reservation_promised: blocks that are kept for sequences of clients and of workloads. */
uint64_t reservation_promised(const struct engine_state *state);

/* reservation_unpromised: blocks that can be had and are promised to nobody. */
uint64_t reservation_unpromised(const struct engine_state *state);

/* reservation_can_promise: whether `need` blocks can be promised. */
bool reservation_can_promise(struct engine_state *state, uint64_t need);

/* reservation_note: a row's table or its sharing has changed: count again. Rows that declare nothing cost
 * nothing. */
void reservation_note(struct engine_state *state, uint32_t row);

/* reservation_note_all: likewise all rows: what others do to blocks that they share with a row is noted no
 * sooner. Until then the sum may be too high, never too low. O(sequences + blocks of those that
 * declare). */
void reservation_note_all(struct engine_state *state);

/* reservation_truncation: blocks more than it gives back that truncating a row to `length` makes it need;
 * those that it shares stay with the others. */
uint32_t reservation_truncation(const struct engine_state *state, uint32_t row, uint32_t length);

/* reservation_drop: a row is about to be removed. */
void reservation_drop(struct engine_state *state, uint32_t row);

/* reservation_need: blocks that a sequence of `max_tokens` would still need after its first `tokens`, of
 * which the last block is shared when `shared`; 0 for one that declares nothing. */
uint32_t reservation_need(const struct engine_state *state, uint32_t max_tokens, uint32_t tokens,
                          bool shared);

#endif
