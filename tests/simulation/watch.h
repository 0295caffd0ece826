/* SPDX-License-Identifier: Apache-2.0 */
/* watch.h - looks at state machines while the engine runs, and notes their transitions (transitions.h).
 *
 *   watched_blocks.c   the calls that change a block of the pool, or of the host: each is looked at before and after
 *   watched_steps.c    likewise steps, and rows that workloads run
 *   watched_history.c  the log of changes: replayed, and undone
 *   watch.c            between turns: requests, sequences, leases, workloads and their sequences
 *
 * The linker has the engine call the functions of the first two instead of its own (--wrap in the
 * Makefile), which call those. So the product knows nothing of it. */
#ifndef TESTS_SIMULATION_WATCH_H
#define TESTS_SIMULATION_WATCH_H

#include "scheduler/engine_state.h"
#include "scheduler/workload.h"

#include <stdbool.h>

/* watch_begin: nothing was seen yet of this simulation. watch_turn: a turn is over, and its answers are
 * taken. */
void watch_begin(void);
void watch_turn(void);

/* What the engine's modules share; its turns are done. */
const struct engine_state *watch_state(void);

/* watch_submitted: a request is. watch_answered: and has its answer. */
struct op;
void watch_submitted(struct op *op);
void watch_answered(struct op *op);

/* watch_workload: one is about to be started. */
void watch_workload(struct workload *w);

/* watched_steps.c: what watch.c has to be told. watch_reaped: a sequence, or lease, is removed since
 * nobody used it. watch_released: a workload's lists go; `ended`: it ran. watch_see_state: an engine is
 * made, whose modules share it. watched_steps_begin, watched_steps_turn: like those above. */
void watch_reaped(uint64_t id, double now_s);
void watch_released(const struct workload *w, bool ended);
void watch_see_state(const struct engine_state *state);
void watched_steps_begin(void);
void watched_steps_turn(void);

/* watched_history.c: likewise. watched_history_epoch: at which the tables were noted so many turns ago. watched_history_check:
 * an answer with tables has those that were noted at its epoch, if any were. */
struct request;
void watched_history_begin(void);
void watched_history_turn(void);
uint64_t watched_history_epoch(uint32_t turns_ago);
void watched_history_check(const struct request *request);

/* watch_hung_s: when a step was last found to hang. */
double watch_hung_s(void);

/* watched_blocks_check_unwritten: with debug.poison, while no step is in flight: every block that is free, and of those that
 * are held by sequences what is behind their fill, is unwritten or will be with the next step. */
void watched_blocks_check_unwritten(void);

/* watched_blocks_leased: these blocks of the pool are a lease's now. watched_blocks_may_write: whether a
 * step that is submitted may write to a block: nobody else holds it, and it is not published (I5, I6). A
 * round that began before its sequence was forked (`forked`) goes on where the child has nothing. */
void watched_blocks_leased(const uint32_t *ids, uint32_t n);
bool watched_blocks_may_write(uint32_t block, bool forked);

#endif
