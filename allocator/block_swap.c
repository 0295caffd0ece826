/* SPDX-License-Identifier: Apache-2.0 */
/* block_swap.c - rows that leave for the host and come back.
 *
 *            row 5 (swapped)     [ h2 | h0 ]
 *            row 8 (its fork)    [ 17 | 4 ]
 *            ledger              h2: 17            row 8 has block 17: no byte has moved
 *                                h0: none          nobody else had block 9: copied out and given back
 *
 * A swapped row keeps its references, by way of host blocks that stand for device blocks (swap_ledger.h).
 * The bytes of a block move once: out when its last resident holder is swapped out, or by
 * block_tables_evacuate() when that one has been removed; in when the first row that names it comes back. Its
 * token ids, fill and partial holders go with them.
 *
 * A published block that is given back stays in the cache, unless a held block is published below it: then
 * it is unpublished with all below it (I9). */
#include "allocator/block_table_state.h"

void block_swap_unpark(struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t host = *entry(t, row, i), device = t->ledger.host[host].device;
    if (device != NO_BLOCK) {
        block_pool_note(t->pool, CHANGE_UNPARKED, device, host);
        block_pool_release(t->pool, &device, 1, t->rows[row].last_step);
    }
    swap_ledger_unpark(&t->ledger, host);
    if (device == NO_BLOCK)
        block_fill_lower_host(t, host);
}

static bool has_held_child(const struct block_tables *t, uint32_t id)
{
    uint32_t child =
        block_pool_is_published(t->pool, id) ? prefix_index_node(t->index, id)->first_child : NO_BLOCK;
    while (child != NO_BLOCK && block_pool_state(t->pool, child) != BLOCK_HELD)
        child = prefix_index_node(t->index, child)->next_sibling;
    return child != NO_BLOCK;
}

/* The partial holders of one block become those of another. */
static void hand_over(struct block_partials *from, struct block_partials *to)
{
    *to = *from;
    from->count = 0;
}

/* The device block of `host` has lost its last resident holder: move the bytes, give the block back, which is noted of no row:
 * those that are parked on it have lost it before. */
static void evacuate(struct block_tables *t, uint32_t host, uint64_t step, struct block_copy *copies,
                     uint32_t *copy_count)
{
    struct host_block *h = &t->ledger.host[host];
    uint32_t id = h->device, slots = block_pool_fill(t->pool, id);
    if (!h->has_bytes) {
        copy_tokens(t, id, t->o.blocks + host);
        if (slots)
            copies[(*copy_count)++] = (struct block_copy){COPY_SWAP_OUT, id, host, slots};
    } else {
        assert(slots <= h->fill); /* the block was not written: a swapped row held it, too */
    }
    h->fill = (uint16_t)slots;
    /* held by sequences that are swapped out themselves: the child must not outlive it */
    if (has_held_child(t, id))
        block_prefix_unpublish(t, id);
    block_pool_note(t->pool, CHANGE_SWAPPED_OUT, id, host);
    swap_ledger_detach(&t->ledger, host);
    hand_over(block_pool_partials(t->pool, id), &h->partials);
    block_log_enter(t->log, NO_ROW);
    for (uint32_t n = h->refs; n > 0; n--)
        block_pool_release(t->pool, &id, 1, step);
}

int block_tables_swap_out(struct block_tables *t, uint32_t row, uint64_t step, struct block_copy *copies,
                          uint32_t *copy_count)
{
    struct row *r = live_row(t, row);
    assert(!r->swapped);
    if (block_tables_host_need(t, row) > t->ledger.free.count)
        return ATTND_NO_HOST_BLOCKS;

    r->last_step = step;
    begin_change(t, row, 0, r->entries);
    for (uint32_t i = r->entries; i-- > 0;) {
        uint32_t id = *entry(t, row, i);
        uint32_t host = swap_ledger_park(&t->ledger, id);
        block_log_enter(t->log, row);
        block_pool_note(t->pool, CHANGE_PARKED, id, host);
        *entry(t, row, i) = host;
        *entry_generation(t, row, i) = 0;
        if (block_pool_refs(t->pool, id) == t->ledger.host[host].refs)
            evacuate(t, host, step, copies, copy_count);
    }
    r->swapped = true;
    end_change(t, row, 0, r->entries);
    t->more[row].version++;
    r->published = r->plain_end = 0;
    t->counts.swapped++;
    t->counts.swaps_out++;
    return 0;
}

/* Bring the bytes of `host` back to the device for every entry that is parked on it. */
static void bring_back(struct block_tables *t, uint32_t host, struct block_copy *copies, uint32_t *copy_count)
{
    struct host_block *h = &t->ledger.host[host];
    uint32_t id = take_block(t);
    swap_ledger_attach(&t->ledger, host, id);
    for (uint32_t n = h->refs; n > 1; n--)
        block_pool_retain(t->pool, &id, 1);
    block_pool_set_fill(t->pool, id, h->fill);
    hand_over(&h->partials, block_pool_partials(t->pool, id));
    copy_tokens(t, t->o.blocks + host, id);
    block_pool_note(t->pool, CHANGE_SWAPPED_IN, id, host);
    if (h->fill)
        copies[(*copy_count)++] = (struct block_copy){COPY_SWAP_IN, host, id, h->fill};
}

int block_tables_swap_in(struct block_tables *t, uint32_t row, uint64_t step, struct block_copy *copies,
                         uint32_t *copy_count)
{
    struct row *r = live_row(t, row);
    uint32_t need = block_tables_absent(t, row);
    assert(r->swapped);
    if (need > block_pool_available(t->pool)) {
        uint32_t none;
        return block_pool_acquire(t->pool, need, &none); /* fails, and counts the failure */
    }
    r->last_step = step;
    block_log_enter(t->log, row);
    begin_change(t, row, 0, r->entries);
    r->swapped = r->publish_stopped = false;
    for (uint32_t i = 0; i < r->entries; i++) {
        uint32_t host = *entry(t, row, i);
        if (t->ledger.host[host].device == NO_BLOCK)
            bring_back(t, host, copies, copy_count);
        uint32_t id = t->ledger.host[host].device;
        set_entry(t, row, i, id);
        block_pool_note(t->pool, CHANGE_UNPARKED, id, host);
        swap_ledger_unpark(&t->ledger, host);
        if (r->published == i && block_pool_is_published(t->pool, id) &&
            (i + 1) * t->o.block_size <= r->cursor_min)
            r->published++;
    }
    end_change(t, row, 0, r->entries);
    r->retired = smaller(r->retired, r->published * t->o.block_size); /* the rest is being copied */
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        r->pending[i] = smaller(r->pending[i], r->retired);
    t->counts.swapped--;
    t->counts.swaps_in++;
    t->more[row].version++;
    return 0;
}

uint32_t block_tables_host_need(const struct block_tables *t, uint32_t row)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < live_row(t, row)->entries; i++)
        need += t->ledger.host_of[*entry(t, row, i)] == NO_BLOCK;
    return need;
}

static bool is_stranded(const struct block_tables *t, uint32_t host)
{
    const struct host_block *h = &t->ledger.host[host];
    return h->refs > 0 && h->device != NO_BLOCK && block_pool_refs(t->pool, h->device) == h->refs;
}

uint32_t block_tables_stranded(const struct block_tables *t)
{
    uint32_t stranded = 0;
    for (uint32_t host = 0; t->counts.swapped && host < t->o.host_blocks; host++)
        stranded += is_stranded(t, host);
    return stranded;
}

uint32_t block_tables_evacuate(struct block_tables *t, uint32_t most, uint64_t step,
                               struct block_copy *copies, uint32_t *copy_count)
{
    uint32_t moved = 0;
    block_log_enter(t->log, NO_ROW);
    for (uint32_t host = 0; t->counts.swapped && moved < most && host < t->o.host_blocks; host++) {
        if (!is_stranded(t, host))
            continue;
        evacuate(t, host, step, copies, copy_count);
        moved++;
    }
    /* whoever was parked there must not release an earlier block of the chain before the fences of
     * these lift */
    for (uint32_t row = 0; moved && row < t->o.rows; row++) {
        if (t->rows[row].state == ROW_LIVE && t->rows[row].swapped)
            t->rows[row].last_step = step;
    }
    return moved;
}

uint32_t block_tables_absent(const struct block_tables *t, uint32_t row)
{
    const struct row *r = live_row(t, row);
    uint32_t absent = 0;
    for (uint32_t i = 0; r->swapped && i < r->entries; i++)
        absent += t->ledger.host[*entry(t, row, i)].device == NO_BLOCK;
    return absent;
}

uint32_t block_tables_absent_at(const struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t host = *entry(t, row, i);
    assert(live_row(t, row)->swapped && i < t->rows[row].entries);
    return t->ledger.host[host].device == NO_BLOCK && t->ledger.host[host].fill ? host : NO_BLOCK;
}

uint32_t block_tables_swap_refs(const struct block_tables *t, uint32_t host)
{
    return t->ledger.host[host].refs;
}

uint32_t block_tables_claim(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end, bool parked)
{
    uint32_t n = 0;
    assert(!live_row(t, row)->swapped && end <= t->rows[row].entries);
    for (uint32_t i = first; i < end; i++) {
        uint32_t id = *entry(t, row, i), host = parked ? t->ledger.host_of[id] : NO_BLOCK;
        uint32_t besides = host == NO_BLOCK ? 0 : t->ledger.host[host].refs;
        n += ++t->claims[id] + besides == block_pool_refs(t->pool, id);
    }
    return n;
}

uint32_t block_tables_reclaimable(struct block_tables *t, const uint32_t *rows, uint32_t n)
{
    uint32_t reclaimable = 0;
    for (uint32_t k = 0; k < n; k++)
        reclaimable += block_tables_claim(t, rows[k], 0, t->rows[rows[k]].entries, true);
    for (uint32_t k = 0; k < n; k++)
        block_tables_unclaim(t, rows[k]);
    return reclaimable;
}

void block_tables_unclaim(struct block_tables *t, uint32_t row)
{
    for (uint32_t i = 0; i < live_row(t, row)->entries; i++)
        t->claims[*entry(t, row, i)] = 0;
}
