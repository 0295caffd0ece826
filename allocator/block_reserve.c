/* SPDX-License-Identifier: Apache-2.0 */
/* block_reserve.c - blocks for what a step will write, and every rule about who may write where.
 *
 *            row 5 (parent)      [ 17 | 4 | 9 ]        cursors 40
 *            row 8 (its fork)    [ 17 | 4 ]            cursors 20: slots 16..19 of block 4 are shared
 *            after reserve()     [ 17 | 6 ]            and a copy: block 4 to 6, 4 slots
 *
 * The next token of row 8 goes to slot 20, in block 4, which is shared: reserve() gives row 8 a private
 * copy of slots 16..19 in a new block and returns that copy for the backend to make. Whoever writes
 * first pays; the last holder writes in place. Nothing else is ever copied.
 *
 * A reserve is planned before anything is taken: the blocks that all requests need together are counted,
 * with the writers of each shared block in claims[]. All requests are committed if the pool has so many,
 * else none.
 *
 *   I5  a block that a row writes has one reference and is not published: reserve() sees to it
 *
 * The first design had truncate() unpublish the block it cuts into. Here reserve() does, when a write
 * is really coming: a fork can leave a sole holder inside a published block just as well, so reserve()
 * has to look anyway, and a block that is never written stays good for others
 * (docs/decisions/0002-unpublish-at-the-write.md). */
#include "allocator/block_table_state.h"

/* Blocks that bringing a row in and writing these slots takes, at most: what is written may have to be
 * copied if anybody else has it, here or on the host. */
static uint32_t need_of_swapped(const struct block_tables *t, const struct reserve_request *q)
{
    const struct row *r = &t->rows[q->row];
    uint32_t need = block_tables_absent(t, q->row);
    uint32_t end = q->first < q->end ? blocks_for(t, q->end) : 0;
    for (uint32_t i = q->first / t->o.block_size; i < smaller(end, r->entries); i++) {
        const struct host_block *h = &t->ledger.host[*entry(t, q->row, i)];
        need += h->refs > 1 || h->device != NO_BLOCK;
    }
    return need + (end > r->entries ? end - r->entries : 0);
}

/* Count the blocks that one request takes, and the writers of shared blocks in claims[]. `*plain` is
 * left true when there is nothing to do for it. */
static uint32_t plan_request(struct block_tables *t, const struct reserve_request *q, bool *plain)
{
    const struct row *r = live_row(t, q->row);
    uint32_t need = 0;
    assert(q->first <= q->end && q->first <= r->entries * t->o.block_size);
    if (r->swapped)
        return need_of_swapped(t, q);
    if (q->first == q->end || (q->first >= r->plain_first && q->end <= r->plain_end))
        return 0;
    *plain = false; /* even if it turns out that there is nothing to do: the commit notes that */
    uint32_t end = blocks_for(t, q->end);
    for (uint32_t i = q->first / t->o.block_size; i < smaller(end, r->entries); i++) {
        uint32_t id = *entry(t, q->row, i);
        uint32_t refs = block_pool_refs(t->pool, id);
        if (refs == 1 && !block_pool_is_published(t->pool, id))
            continue;
        need += refs > 1 + t->claims[id]; /* the last writer of a block writes in place */
        t->claims[id]++;
    }
    return need + (end > r->entries ? end - r->entries : 0);
}

/* Set the claims that plan_request() counted back to zero. */
static void unclaim(struct block_tables *t, const struct reserve_request *q)
{
    uint32_t end = smaller(blocks_for(t, q->end), t->rows[q->row].entries);
    for (uint32_t i = q->first / t->o.block_size; q->first < q->end && i < end; i++)
        t->claims[*entry(t, q->row, i)] = 0;
}

/* Blocks that all requests take together; indices of those that are not plain go to marks[]. */
static uint32_t plan_requests(struct block_tables *t, const struct reserve_request *requests, uint32_t n,
                              uint32_t *marked)
{
    uint32_t need = 0;
    *marked = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool plain = true;
        need += plan_request(t, &requests[i], &plain);
        if (!plain)
            t->marks[(*marked)++] = i;
    }
    for (uint32_t i = 0; i < *marked; i++)
        unclaim(t, &requests[t->marks[i]]);
    return need;
}

uint32_t block_tables_need(struct block_tables *t, const struct reserve_request *requests, uint32_t n)
{
    uint32_t marked;
    return plan_requests(t, requests, n, &marked);
}

/* Give entry `i` of `row` a private copy of what the row sees of its shared block. */
static void copy_on_write(struct block_tables *t, uint64_t step, uint32_t row, uint32_t i,
                          struct block_copy *copies, uint32_t *copy_count)
{
    struct row *r = &t->rows[row];
    uint32_t from = *entry(t, row, i), to = take_block(t);
    uint32_t slots = smaller(r->cursor_max - i * t->o.block_size, t->o.block_size);
    copies[(*copy_count)++] = (struct block_copy){COPY_BLOCK, from, to, slots};
    copy_tokens(t, from, to);
    block_pool_set_fill(t->pool, to, slots);
    block_fill_unlink(t, row);
    begin_change(t, row, i, i + 1);
    set_entry(t, row, i, to);
    end_change(t, row, i, i + 1);
    block_fill_link(t, row);
    block_pool_note(t->pool, CHANGE_COPIED, to, from);
    block_pool_release(t->pool, &from, 1, step); /* the copy reads it in this step */
    t->counts.copies++;
    t->more[row].version++;
}

static void commit_request(struct block_tables *t, uint64_t step, const struct reserve_request *q,
                           struct block_copy *copies, uint32_t *copy_count)
{
    struct row *r = &t->rows[q->row];
    uint32_t end = blocks_for(t, q->end), had = r->entries;
    block_log_enter(t->log, q->row);
    for (uint32_t i = q->first / t->o.block_size; i < smaller(end, had); i++) {
        uint32_t id = *entry(t, q->row, i);
        if (block_pool_refs(t->pool, id) > 1)
            copy_on_write(t, step, q->row, i, copies, copy_count);
        else if (block_pool_is_published(t->pool, id))
            block_prefix_unpublish(t, id); /* held by nobody else: a plain block again */
        else
            continue;
        r->published = smaller(r->published, i);
    }
    for (; r->entries < end; r->entries++)
        set_entry(t, q->row, r->entries, take_block(t));
    end_change(t, q->row, had, r->entries);
    r->last_step = step;
    r->plain_first = q->first;
    r->plain_end = end * t->o.block_size;
}

int block_tables_reserve(struct block_tables *t, uint64_t step, const struct reserve_request *requests,
                         uint32_t n, struct block_copy *copies, uint32_t *copy_count)
{
    uint32_t marked;
    for (uint32_t i = 0; i < n; i++) {
        assert(!live_row(t, requests[i].row)->swapped);
        if (requests[i].end > (uint64_t)t->o.row_blocks * t->o.block_size)
            return ATTND_INVALID;
    }
    uint32_t need = plan_requests(t, requests, n, &marked);
    if (need > block_pool_available(t->pool)) {
        uint32_t none;
        return block_pool_acquire(t->pool, need, &none); /* fails, and counts the failure */
    }
    for (uint32_t i = 0; i < marked; i++)
        commit_request(t, step, &requests[t->marks[i]], copies, copy_count);
    return 0;
}
