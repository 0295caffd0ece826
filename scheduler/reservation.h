/* SPDX-License-Identifier: Apache-2.0 */
/* reservation.h - every promise of blocks, and the one rule of admission.
 *
 * Promised are: to a client's sequence that declares max_tokens, and to its forks, all the blocks that it
 * can still need (its `declared`), so that no append of it ever fails for want of blocks; to each workload,
 * what its running sequences will hold at most (ledger.h) beyond what they hold now. Blocks may be promised,
 * or taken by somebody to whom they are not promised, while all promises stay below what is free and cached.
 * Engine thread. */
#ifndef SCHEDULER_RESERVATION_H
#define SCHEDULER_RESERVATION_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

enum { RESERVATION_PLACES = 16 }; /* workloads at a time */

struct reservation;

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int reservation_create(const struct config *config, struct reservation **reservation);
void reservation_destroy(struct reservation *reservation); /* NULL is fine. */

/* ---- the rule ------------------------------------------------------------------------------------ */

/* reservation_promised: blocks that are kept for sequences of clients and of workloads; _declared: for
 * clients'. */
uint64_t reservation_promised(const struct engine_state *state);
uint64_t reservation_declared(const struct engine_state *state);

/* reservation_unpromised: blocks that can be had and are promised to nobody. */
uint64_t reservation_unpromised(const struct engine_state *state);

/* reservation_balance: likewise; negative while what is given back waits for the end of its step. */
int64_t reservation_balance(const struct engine_state *state);

/* reservation_can_promise: whether `need` blocks can be promised. */
bool reservation_can_promise(struct engine_state *state, uint64_t need);

/* ---- clients' sequences -------------------------------------------------------------------------- */

/* reservation_note: a row's table or its sharing has changed: count again. Rows that declare nothing cost
 * nothing. */
void reservation_note(struct engine_state *state, uint32_t row);

/* reservation_note_all: likewise all rows that share blocks which they will write: what others do to these is
 * noted no sooner. Until then the sum may be too high, never too low. O(those rows), nothing if nothing has
 * changed since. */
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

/* ---- sequences of workloads ---------------------------------------------------------------------- */

/* A sequence of a workload, as its admission sees it. */
struct reservation_plan {
    uint32_t place;          /* of its workload, < RESERVATION_PLACES */
    uint32_t length;         /* tokens at its end */
    uint32_t fill;           /* tokens that it appends first, as many a round as there is room for */
    bool attends;            /* outputs of these are computed, too */
    uint32_t forks, fork_at; /* children that it has yet to make */
};

/* reservation_may_run: whether it can be promised its blocks, of which others hold what `hit` says; under
 * scheduler.admission "optimistic": whether its first tokens have room. reservation_run: it was admitted, as
 * `row`. O(buckets). */
bool reservation_may_run(struct engine_state *state, const struct reservation_plan *plan,
                         const struct block_tables_hit *hit);
/* reservation_compared: the figures that reservation_may_run() compared last: blocks that it takes, and that there are. */
void reservation_compared(const struct engine_state *state, uint64_t *needed, uint64_t *there);
void reservation_run(struct engine_state *state, uint32_t row, const struct reservation_plan *plan,
                     const struct block_tables_hit *hit);

/* reservation_run_fork: `row` was forked from a running row. reservation_forked: a row has no more forks to
 * make. */
void reservation_run_fork(struct engine_state *state, uint32_t row, uint32_t parent,
                          const struct reservation_plan *plan);
void reservation_forked(struct engine_state *state, uint32_t row);

/* reservation_begin_round: a round begins in which all of a workload that decode take part. Amortised O(1 +
 * its running sequences / LEDGER_SORT_ROUNDS). */
void reservation_begin_round(struct engine_state *state, uint32_t place);

/* reservation_note_run: a running row has its blocks for the round that begins, after which it has `tokens`.
 * `decodes`: from the next one on it gets one token in every round of its workload. O(new blocks). */
void reservation_note_run(struct engine_state *state, uint32_t row, uint32_t tokens, bool decodes);

/* reservation_end_run: a running row is about to be removed. */
void reservation_end_run(struct engine_state *state, uint32_t row);

/* reservation_row_fault(state, row, entry, work): the first broken invariant of a row as a constant
 * sentence, NULL if all hold: of its blocks from *entry on, as many as there is work for. Both move on; if
 * there is work left, it has come to the end. reservation_fault: likewise of the sums. O(rows). */
const char *reservation_row_fault(const struct engine_state *state, uint32_t row, uint32_t *entry,
                                  uint32_t *work);
const char *reservation_fault(const struct engine_state *state);

#endif
