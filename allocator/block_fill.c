/* SPDX-License-Identifier: Apache-2.0 */
/* block_fill.c - how many slots of a block its holders have written: its fill, from its partial holders.
 *
 * A row has all slots of the blocks before its longest cursor, none of those that are only
 * reserved, and some of at most one block: the one in which the longest cursor ends. It is a partial
 * holder of that block, and is in its list:
 *
 *            block 4             row 5 and row 8 hold it (refs 2)
 *            partial holders     first -> row 8 (4 slots)       count 1
 *
 * While a block has more references than partial holders, one of its holders has all of it (or it is
 * reserved, and has one reference). When only partial holders are left, its fill is the most slots that
 * a row of the list has. A row changes lists when its longest cursor enters another block, not with
 * every token: most steps of a decode do no list work. The list belongs to the device block; it moves
 * to the host block when the last resident row has left, and back with the bytes.
 *
 * Rejected: a count of holders for each length would take block_size counters a block; fills found when
 * somebody asks would take a walk over all tables with every step of a workload, which reports them.
 *
 *   I1  the fill of a held block, and of a host block without a device block, is the largest number of
 *       its slots that one of its holders has */
#include "allocator/block_table_state.h"

/* The list of the block in which the longest cursor of a row ends; NULL: it ends at a block's end. */
static struct block_partials *list_of(const struct block_tables *t, uint32_t row)
{
    uint32_t tokens = t->rows[row].cursor_max, size = t->o.block_size;
    return tokens % size ? partials_at(t, place_of(t, row, tokens / size)) : NULL;
}

void block_fill_link(struct block_tables *t, uint32_t row)
{
    struct block_partials *list = list_of(t, row);
    if (!list)
        return;
    uint32_t next = list->count++ ? list->first : NO_ROW;
    t->more[row].next_partial = next;
    t->more[row].prev_partial = NO_ROW;
    if (next != NO_ROW)
        t->more[next].prev_partial = row;
    list->first = row;
}

void block_fill_unlink(struct block_tables *t, uint32_t row)
{
    struct block_partials *list = list_of(t, row);
    uint32_t next = t->more[row].next_partial, prev = t->more[row].prev_partial;
    if (!list)
        return;
    if (next != NO_ROW)
        t->more[next].prev_partial = prev;
    if (prev != NO_ROW)
        t->more[prev].next_partial = next;
    else
        list->first = next;
    list->count--;
}

/* The most slots that a row of the list has; none has more than `most`, which ends the search. */
static uint32_t largest_part(const struct block_tables *t, const struct block_partials *list, uint32_t most)
{
    uint32_t largest = 0, row = list->first;
    for (uint32_t n = list->count; n > 0 && largest < most; n--) {
        largest = larger(largest, t->rows[row].cursor_max % t->o.block_size);
        row = t->more[row].next_partial;
    }
    return largest;
}

uint32_t block_fill_of_partials(uint32_t id, void *cookie)
{
    struct block_tables *t = cookie;
    return largest_part(t, block_pool_partials(t->pool, id), block_pool_fill(t->pool, id));
}

void block_fill_lower_host(struct block_tables *t, uint32_t host)
{
    struct host_block *h = &t->ledger.host[host];
    if (h->refs == h->partials.count)
        h->fill = (uint16_t)largest_part(t, &h->partials, h->fill);
}

void block_fill_lower(struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t place = place_of(t, row, i);
    if (place < t->o.blocks)
        block_pool_lower_fill(t->pool, place);
    else
        block_fill_lower_host(t, place - t->o.blocks);
}
