/* SPDX-License-Identifier: Apache-2.0 */
/* poison.h - debug.poison: which slots of which blocks have still to be marked as unwritten.
 *
 *     block_pool_set_vacated() -> poison_add()         blocks that are free, slots that were cut off
 *     a step is submitted      -> poison_take()        COPY_POISON for these, ahead of what the step appends
 *
 * So a slot is marked behind all steps that may have read it, and ahead of whoever writes it next: steps are computed in
 * the order in which they are submitted. Engine thread only; nothing allocates after create. */
#ifndef SCHEDULER_POISON_H
#define SCHEDULER_POISON_H

#include "config/block_copy.h"
#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

struct poison;

/* poison_create: of a pool of so many blocks of so many slots, none of which is marked. Returns 0 or ATTND_NO_MEMORY.
 * poison_destroy: NULL is none. */
MUST_USE int poison_create(uint32_t blocks, uint32_t block_size, struct poison **poison);
void poison_destroy(struct poison *poison);

/* poison_add: slots [first, end) of a block hold nothing any more. A block_pool_vacated_fn; O(1). */
void poison_add(uint32_t block, uint32_t first, uint32_t end, void *poison);

/* poison_take(p, copies, n, list): write to `list` the n copies of a step and, ahead of them, the COPY_POISON of all that is to be
 * marked; of blocks that are copied, behind them. Returns how many. A block that the step swaps in is left out, since swaps are made beside all else: what lies
 * behind its slots is marked by the next step. The list has room for all blocks beside the copies. O(blocks to be marked + n). */
uint32_t poison_take(struct poison *p, const struct block_copy *copies, uint32_t n, struct block_copy *list);

/* poison_is_due: whether slots of a block are to be marked yet. For tests. */
bool poison_is_due(const struct poison *p, uint32_t block);

#endif
