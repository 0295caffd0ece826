/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.h - the token ids that clients gave for the prompts of their sequences.
 *
 * A prompt names positions [0, length) of a sequence, also those that are not appended yet: what is
 * appended there is published under these ids. Ids are kept in pages of a fixed store, so naming a long
 * prompt takes memory only while its sequence lives. Engine thread only; nothing allocates after
 * create. */
#ifndef SCHEDULER_PROMPTS_H
#define SCHEDULER_PROMPTS_H

#include "config/status.h"

#include <stdint.h>

struct prompts;

/* prompts_create(rows, tokens, prompts): for sequences in rows 0..rows-1 of the block tables, with room
 * for `tokens` ids in all and a page more for each. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int prompts_create(uint32_t rows, uint64_t tokens, struct prompts **prompts);
void prompts_destroy(struct prompts *prompts);

/* prompts_set(prompts, row, ids, n): name a row's first n positions; it has no prompt yet. Returns 0 or
 * ATTND_NO_SEQUENCES (no room; nothing changes). O(n). */
MUST_USE int prompts_set(struct prompts *prompts, uint32_t row, const uint32_t *ids, uint32_t n);

/* prompts_cut(prompts, row, length): the row's prompt ends at `length`, if it did not before. 0 gives
 * it up. */
void prompts_cut(struct prompts *prompts, uint32_t row, uint32_t length);

/* Pages that a prompt of `n` ids takes; pages that nobody uses. */
uint32_t prompts_pages(uint32_t n);
uint32_t prompts_free_pages(const struct prompts *prompts);

/* Positions that a row's prompt names. */
uint32_t prompts_length(const struct prompts *prompts, uint32_t row);

/* prompts_read(prompts, row, position, n, ids): the ids of [position, position + n), which the prompt
 * names. O(position / 256 + n). */
void prompts_read(const struct prompts *prompts, uint32_t row, uint32_t position, uint32_t n, uint32_t *ids);

/* prompts_agree(prompts, row, position, ids, n): how many of these n ids, from the first on, are the
 * prompt's, or lie behind its end. */
uint32_t prompts_agree(const struct prompts *prompts, uint32_t row, uint32_t position, const uint32_t *ids,
                       uint32_t n);

#endif
