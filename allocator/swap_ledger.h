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

struct swap_ledger;

/* swap_ledger_create(blocks, host_blocks, ledger): for a pool of `blocks`; host_blocks may be 0.
 * Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int swap_ledger_create(uint32_t blocks, uint32_t host_blocks, struct swap_ledger **ledger);
void swap_ledger_destroy(struct swap_ledger *ledger);

uint32_t swap_ledger_blocks(const struct swap_ledger *ledger);
uint32_t swap_ledger_free(const struct swap_ledger *ledger);

/* The host block that stands for device block `id`, NO_BLOCK if none does. */
uint32_t swap_ledger_host_of(const struct swap_ledger *ledger, uint32_t id);

/* swap_ledger_park: count one more entry for device block `id`; takes a free host block (there must be
 * one) unless one stands for it already. Returns the host block. */
uint32_t swap_ledger_park(struct swap_ledger *ledger, uint32_t id);

/* swap_ledger_unpark: one entry less; the last one frees the host block. */
void swap_ledger_unpark(struct swap_ledger *ledger, uint32_t host);

void swap_ledger_detach(struct swap_ledger *ledger, uint32_t host);
void swap_ledger_attach(struct swap_ledger *ledger, uint32_t host, uint32_t id);

uint32_t swap_ledger_refs(const struct swap_ledger *ledger, uint32_t host);
uint32_t swap_ledger_device_of(const struct swap_ledger *ledger, uint32_t host); /* NO_BLOCK: none */
bool swap_ledger_has_bytes(const struct swap_ledger *ledger, uint32_t host);

/* swap_ledger_check: the first broken invariant of a host block as a constant sentence, NULL if all hold;
 * _check_free: of the count of free ones. */
const char *swap_ledger_check(const struct swap_ledger *ledger, uint32_t host);
const char *swap_ledger_check_free(const struct swap_ledger *ledger);

#endif
