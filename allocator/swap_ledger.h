/* SPDX-License-Identifier: Apache-2.0 */
/* swap_ledger.h - which host block stands for which device block while sequences are swapped out.
 *
 * A swapped sequence's table names host blocks. A host block counts the entries that name it, and knows
 * where its bytes are: on the device (some resident sequence still holds the device block), in host
 * memory, or both.
 *
 *                                                                           device   bytes on
 *   park(d)      an entry that named device block d now names host block h     d       device
 *   detach(h)    the bytes have been copied out and d given back               none    host
 *   attach(h,d)  the bytes have been copied in for one of the entries          d       both
 *   unpark(h)    an entry goes back to the device block, or its sequence is freed
 *
 * Ids and counts only, as in the block pool. A host block that is given back may be handed out at once:
 * copies run in the order in which they were asked for, so a later copy cannot overtake the one that
 * still reads it. Engine thread only; nothing allocates after create. */
#ifndef ALLOCATOR_SWAP_LEDGER_H
#define ALLOCATOR_SWAP_LEDGER_H

#include "allocator/block_pool.h"
#include "allocator/id_bitmap.h"

struct host_block {
    uint32_t refs;                  /* entries of swapped sequences that name it; 0: it is free */
    uint32_t device;                /* block with the same bytes; NO_BLOCK: none */
    bool has_bytes;                 /* the host copy is good */
    uint16_t fill;                  /* of the host copy: slots */
    struct block_partials partials; /* empty while there is a device block */
};

/* To be read by whoever has it; the functions below change it, but for fill and partials. */
struct swap_ledger {
    uint32_t *host_of;       /* [blocks] host block that stands for a device block; NO_BLOCK: none */
    struct host_block *host; /* [host_blocks] */
    struct id_bitmap free;
};

/* swap_ledger_init(ledger, blocks, host_blocks): for a pool of `blocks`; host_blocks may be 0.
 * Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int swap_ledger_init(struct swap_ledger *ledger, uint32_t blocks, uint32_t host_blocks);
void swap_ledger_deinit(struct swap_ledger *ledger);

/* swap_ledger_park: count one more entry for device block `id`; takes a free host block (there must be
 * one) unless one stands for it already. Returns the host block. */
uint32_t swap_ledger_park(struct swap_ledger *ledger, uint32_t id);

/* swap_ledger_unpark: one entry less; the last one frees the host block. */
void swap_ledger_unpark(struct swap_ledger *ledger, uint32_t host);

void swap_ledger_detach(struct swap_ledger *ledger, uint32_t host);
void swap_ledger_attach(struct swap_ledger *ledger, uint32_t host, uint32_t id);

/* swap_ledger_check: the first broken invariant of a host block as a constant sentence, NULL if all hold. */
const char *swap_ledger_check(const struct swap_ledger *ledger, uint32_t host);

#endif
