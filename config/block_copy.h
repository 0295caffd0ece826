/* SPDX-License-Identifier: Apache-2.0 */
/* block_copy.h - one copy between blocks: what the allocator asks for, a step carries and a backend makes.
 *
 * Plain data, read by C11 and, as it is, by the kernel that makes those of one launch. */
#ifndef CONFIG_BLOCK_COPY_H
#define CONFIG_BLOCK_COPY_H

#include <stdint.h>

enum block_copy_kind {
    COPY_BLOCK,    /* from one block of the pool to another */
    COPY_SWAP_OUT, /* from the pool to a block of host memory, */
    COPY_SWAP_IN,  /* and back */
    COPY_CLEAR,    /* zeros to a block of the pool */
    COPY_POISON /* slots [from, from + slots) of a block of the pool are as if nobody had written them: V is NaN, all bits set,
                      and K zeros, so that whoever reads one gets NaN (docs/decisions/0044) */
};

/* Slots 0..slots-1 of a block, all layers, K and V; of COPY_POISON see there. Swaps and clears may move whole blocks. */
struct block_copy {
    enum block_copy_kind kind;
    uint32_t from, to, slots;
};

#endif
