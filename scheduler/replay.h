/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h - run a journal again, through the engine that would have written it, and compare.
 *
 * The engine is the daemon's own: allocator, scheduler, planner. Only the backend computes nothing, and says of steps what was
 * recorded; and time is what was recorded. The first record whose effect is another one is the finding. */
#ifndef SCHEDULER_REPLAY_H
#define SCHEDULER_REPLAY_H

#include "scheduler/journal.h"

/* replay_check(path, check, reason): 0: every record is as it was made; 1: one is not; ATTND_INVALID: it cannot be read,
 * or is damaged; ATTND_NO_MEMORY. `reason` has a sentence, but for 0. One at a time in a process. */
MUST_USE int replay_check(const char *path, struct journal_check *check, char reason[JOURNAL_REASON_BYTES]);

/* replay_config: the configuration that a journal's first record says (journal_read_begin()), with the pool that the daemon had; nothing is
 * written by it, and no client comes in. Returns 0, or ATTND_INVALID or ATTND_NO_MEMORY with a sentence and nothing to free. */
MUST_USE int replay_config(const char *settings, const struct journal_begin *begin, struct config *config,
                           char reason[JOURNAL_REASON_BYTES]);

#endif
