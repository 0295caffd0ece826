/* SPDX-License-Identifier: Apache-2.0 */
/* block_audit.c - whether tables, pool, index and ledger agree, in parts.
 *
 *     clear    0 0 0 0 0 ...                       the holders of every block
 *     rows     [ 17 | 4 | 9 ]  [ 17 | 4 ]  ...     each entry by itself, and it is counted for its block:
 *                                                  17: 2 entries, 2 full    4: 2 entries, 1 full, 1 partial
 *     blocks   each by itself, and against its holders: references, fill, list of partial holders
 *     totals   the sums of what was counted against the counters
 *
 * Between two parts tables and blocks change. What concerns one entry or one block holds at any moment, so
 * it is looked at in its turn. What concerns all of them is counted, and whoever changes something that
 * was counted corrects the count: begin_change() and end_change() of block_table_state.h for the entries
 * before (row, entry), those of block_pool.c for the blocks before `at`. So once the last row is counted,
 * the holders are those of this moment for as long as the audit takes, and nothing has to stand still. An
 * entry that comes and goes between two parts is not looked at; one that stays is.
 *
 *     counted   row 0 ... row 6 | row 7: [ 3 | 8 | 12 | 5 ]  row 8 ...
 *                                          ------- ^entry      a fork of row 7 to row 2 counts 3 and 8 for row 2 at once
 *
 * The totals of the rows, of which there are 65 536 at most, are one part.
 *
 * Rejected: one walk while everything stands still: 25 ms with a million blocks (docs/decisions/0005).
 * Versions of rows, to count those again that have changed: all that decode change with every step. */
#include "allocator/block_table_state.h"

enum {
    CLEARED = 4,        /* places for the work of one entry */
    PUBLISHED_WORK = 8, /* of a published block: its tokens are hashed */
    TAIL = 16           /* entries of a table's tail for the work of one */
};

/* Take `n` off the work that is left. */
static void use(uint32_t *work, uint32_t n)
{
    *work -= smaller(*work, n);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* Count an entry for its block, or, by UINT32_MAX, do so no more. */
static void count_entry(const struct block_tables *t, struct block_audit *a, uint32_t row, uint32_t i,
                        uint32_t by)
{
    uint32_t id = *entry(t, row, i), tokens = t->rows[row].cursor_max, size = t->o.block_size;
    struct holders *h = &a->holders[t->rows[row].swapped ? t->o.blocks + id : id];
    h->entries += by;
    if (tokens / size > i)
        h->full += by;
    else if (tokens > i * size)
        h->partial += by;
}

void block_audit_count(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end, uint32_t by)
{
    struct block_audit *a = &t->audit;
    if (row > a->row)
        return;
    if (row == a->row)
        end = smaller(end, a->entry);
    for (uint32_t i = first; i < end; i++)
        count_entry(t, a, row, i, by);
}

/* What concerns a row as a whole. */
static const char *row_fault(const struct block_tables *t, uint32_t row)
{
    const struct row *r = &t->rows[row];
    const uint32_t *cursors = &t->cursors[(uint64_t)row * t->o.layers];
    uint32_t min = UINT32_MAX, max = 0;
    for (uint32_t i = r->entries; i < t->more[row].high; i++) {
        if (*entry(t, row, i) != NO_BLOCK)
            return "I4: the tail of a table is not -1";
    }
    if (r->state != ROW_LIVE)
        return r->entries ? "I4: a row that is not live has entries" : NULL;
    for (uint32_t layer = 0; layer < t->o.layers; layer++) {
        min = smaller(min, cursors[layer]);
        max = larger(max, cursors[layer]);
    }
    if (r->cursor_min > r->cursor_max ||
        (r->cursor_min != r->cursor_max && (r->cursor_min != min || r->cursor_max != max)))
        return "I4: the cursors' bounds differ from the cursors";
    return blocks_for(t, r->cursor_max) > r->entries ? "I4: a cursor is beyond the table" : NULL;
}

static const char *entry_fault(const struct block_tables *t, uint32_t row, uint32_t i)
{
    const struct row *r = &t->rows[row];
    uint32_t id = *entry(t, row, i);
    if (r->swapped)
        return id < t->o.host_blocks ? NULL : "I4: an entry of a row that is swapped out is no host block";
    if (id >= t->o.blocks || block_pool_generation(t->pool, id) != *entry_generation(t, row, i))
        return "I4: a table entry is not a block of the right generation";
    if (i < r->published &&
        (!block_pool_is_published(t->pool, id) ||
         prefix_index_node(t->index, id)->parent != (i ? *entry(t, row, i - 1) : NO_BLOCK)))
        return "I6: a row's published front is not a published chain";
    return NULL;
}

/* Look at the row whose turn it is, or go on within it. */
static const char *audit_row(const struct block_tables *t, struct block_audit *a, uint32_t *work)
{
    const struct row *r = &t->rows[a->row];
    const char *fault = NULL;
    if (a->entry == 0) {
        use(work, 1 + (larger(t->more[a->row].high, r->entries) - r->entries) / TAIL);
        fault = row_fault(t, a->row);
    }
    /* one in any case, or the whole of it would be looked at again and again */
    for (; !fault && (*work || a->entry == 0) && a->entry < r->entries; a->entry++) {
        use(work, 1);
        fault = entry_fault(t, a->row, a->entry);
        if (!fault)
            count_entry(t, a, a->row, a->entry, 1);
    }
    if (a->entry >= r->entries) {
        a->row++;
        a->entry = 0;
    }
    return fault;
}

/* ---- blocks -------------------------------------------------------------------------------------- */

/* Whether the list of a held block, by place_of(), is that of its partial holders, and its fill that of all. */
static const char *holders_fault(const struct block_tables *t, uint32_t place, const struct holders *h,
                                 uint32_t fill, uint32_t *work)
{
    const struct block_partials *list = partials_at(t, place);
    uint32_t row = list->first, prev = NO_ROW, size = t->o.block_size, most = h->full ? size : 0;
    use(work, list->count);
    if (list->count != h->partial)
        return "I1: a partial holder of a block is not in its list";
    for (uint32_t n = list->count; n > 0; n--) {
        if (row >= t->o.rows || t->rows[row].state != ROW_LIVE || t->more[row].prev_partial != prev ||
            t->rows[row].cursor_max % size == 0 || place_of(t, row, t->rows[row].cursor_max / size) != place)
            return "I1: a list of partial holders has a row whose longest cursor ends elsewhere";
        most = larger(most, t->rows[row].cursor_max % size);
        prev = row;
        row = t->more[row].next_partial;
    }
    if (list->count && row != NO_ROW)
        return "I1: a list of partial holders goes on beyond its end";
    return fill == most ? NULL : "I1: a block's fill differs from what its holders have";
}

static const char *host_block_fault(const struct block_tables *t, const struct block_audit *a, uint32_t host,
                                    uint32_t *work)
{
    const struct holders *h = &a->holders[t->o.blocks + host];
    const struct host_block *block = &t->ledger.host[host];
    const char *fault = swap_ledger_check(&t->ledger, host);
    if (fault)
        return fault;
    if (h->entries != block->refs)
        return "I2: a host block's references differ from the tables";
    if (block->refs > 0 && block->device == NO_BLOCK)
        return holders_fault(t, t->o.blocks + host, h, block->fill, work);
    return block->partials.count ? "I1: a host block lists partial holders that are elsewhere" : NULL;
}

/* I9, and what it rests on: a published block's parent outlives it. */
static const char *eviction_fault(const struct block_tables *t, uint32_t id)
{
    uint32_t parent =
        block_pool_is_published(t->pool, id) ? prefix_index_node(t->index, id)->parent : NO_BLOCK;
    if (parent == NO_BLOCK)
        return NULL;
    enum block_state state = block_pool_state(t->pool, id), above = block_pool_state(t->pool, parent);
    if (state == BLOCK_HELD && above != BLOCK_HELD)
        return "I9: a held block's parent is not held";
    if (above == BLOCK_CACHED && (state != BLOCK_CACHED || !block_pool_leaves_before(t->pool, id, parent)))
        return "I9: a parent would be evicted before its child";
    return NULL;
}

static const char *block_fault(const struct block_tables *t, struct block_audit *a, uint32_t id,
                               uint32_t *work)
{
    struct holders h = a->holders[id];
    uint32_t host = t->ledger.host_of[id], refs = block_pool_refs(t->pool, id);
    const char *fault = block_pool_check(t->pool, id, &a->blocks);
    if (!fault)
        fault = prefix_index_check(t->index, t->pool, id, &a->published);
    if (fault)
        return fault;
    if (host != NO_BLOCK && t->ledger.host[host].device != id)
        return "swap: a host block does not name the device block that names it";
    if (host != NO_BLOCK) {
        const struct holders *parked = &a->holders[t->o.blocks + host];
        h.entries += parked->entries;
        h.full += parked->full;
        h.partial += parked->partial;
    }
    if (h.entries != refs)
        return "I2: a block's references differ from the tables";
    use(work, block_pool_is_published(t->pool, id) ? PUBLISHED_WORK : 0);
    if (refs > 0)
        fault = holders_fault(t, id, &h, block_pool_fill(t->pool, id), work);
    return fault ? fault : eviction_fault(t, id);
}

/* ---- all ----------------------------------------------------------------------------------------- */

static const char *totals_fault(const struct block_tables *t, const struct block_audit *a)
{
    uint64_t logical = 0;
    uint32_t rows = 0, swapped = 0;
    const char *fault = block_pool_check_census(t->pool, &a->blocks);
    if (!fault)
        fault = prefix_index_check_census(t->index, &a->published);
    if (!fault)
        fault = id_bitmap_fault(&t->ledger.free);
    for (uint32_t row = 0; !fault && row < t->o.rows; row++) {
        const struct row *r = &t->rows[row];
        bool live = r->state == ROW_LIVE;
        rows += live;
        swapped += live && r->swapped;
        logical += live ? r->cursor_max : 0;
    }
    if (fault)
        return fault;
    if (rows != t->counts.rows || swapped != t->counts.swapped)
        return "I1: the number of sequences differs from the rows";
    return logical == t->counts.tokens_logical ? NULL : "I1: a token count differs from the rows";
}

/* Set holders to zero. */
static void clear(const struct block_tables *t, struct block_audit *a, uint32_t *work)
{
    uint32_t left = t->o.blocks + t->o.host_blocks - a->cleared, n = smaller(left, CLEARED * *work);
    memset(&a->holders[a->cleared], 0, n * sizeof *a->holders);
    a->cleared += n;
    use(work, n / CLEARED + 1);
}

/* Go on with what is next, by a row, a block, or as far as there is work. */
static const char *audit_some(const struct block_tables *t, struct block_audit *a, uint32_t *work)
{
    uint32_t blocks = t->o.blocks, places = blocks + t->o.host_blocks;
    if (a->cleared < places) {
        clear(t, a, work);
        return NULL;
    }
    if (a->row < t->o.rows)
        return audit_row(t, a, work);
    if (a->at < places) {
        uint32_t at = a->at++;
        use(work, 1);
        return at < blocks ? block_fault(t, a, at, work) : host_block_fault(t, a, at - blocks, work);
    }
    a->runs = false;
    return totals_fault(t, a);
}

/* Do a part of an audit; true when it has ended. */
static bool audit(const struct block_tables *t, struct block_audit *a, uint32_t work, const char **fault)
{
    *fault = NULL;
    while (work > 0 && a->runs && !*fault)
        *fault = audit_some(t, a, &work);
    a->runs &= !*fault;
    return !a->runs;
}

/* Have pool and index correct what the audit in parts has counted. */
static void watch(struct block_tables *t)
{
    uint32_t counted = t->audit.runs ? smaller(t->audit.at, t->o.blocks) : 0;
    block_pool_watch(t->pool, &t->audit.blocks, counted);
    prefix_index_watch(t->index, &t->audit.published, counted);
}

void block_tables_begin_audit(struct block_tables *t)
{
    t->audit = (struct block_audit){.runs = true, .holders = t->audit.holders};
    watch(t);
}

void block_tables_end_audit(struct block_tables *t)
{
    t->audit.runs = false;
    watch(t);
}

bool block_tables_audit(struct block_tables *t, uint32_t work, const char **fault)
{
    bool ended = audit(t, &t->audit, work, fault);
    watch(t);
    return ended;
}

const char *block_tables_fault(struct block_tables *t)
{
    const char *fault;
    t->at_once = (struct block_audit){.runs = true, .holders = t->at_once.holders};
    while (!audit(t, &t->at_once, UINT32_MAX / CLEARED, &fault))
        continue;
    return fault;
}
