/* SPDX-License-Identifier: Apache-2.0 */
/* block_table.c - the rows of all sequences: their entries, their cursors, and what a step does to them.
 *
 *            row 5 (parent)      [ 17 | 4 | 9 ]        cursors 40
 *            row 8 (its fork)    [ 17 | 4 ]            cursors 20: slots 16..19 of block 4 are shared
 *
 * Cursors: as long as all layers of a row stand at the same token - the usual case - only cursor_min ==
 * cursor_max is kept and the per-layer array is stale; it is filled when a layer first runs ahead. So a
 * decode step costs one store a row, not one a layer.
 *
 * What a row has written is known in three degrees: submitted (the cursors), retired (`retired`, moved
 * when a step is done, from the length noted at its submission), and published (`published` leading
 * blocks). A truncate lowers all three and what the steps in flight noted, so a later retire cannot
 * raise them over slots that are being rewritten.
 *
 *   I2  refs of a block == entries of resident rows that name it + entries of swapped rows parked on it
 *   I4  entries below `entries` are valid ids of the generation they had when they were stored; the
 *       rest are -1
 *
 * I1 is kept by block_fill.c, I5 by block_reserve.c, I6 and I9 by block_prefix.c.
 *
 * An audit (block_audit.c) counts the entries of all tables while these change, so whatever changes
 * entries, or a row's longest cursor, says so before and after: begin_change(), end_change(). */
#include "allocator/block_table_state.h"

#include "config/mapping.h"
#include <stdlib.h>

/* ---- giving back --------------------------------------------------------------------------------- */

/* Give back the entries of a row from the last one down to entry `keep`. The row is a partial holder of
 * none of them. */
static void pop_entries(struct block_tables *t, uint32_t row, uint32_t keep)
{
    struct row *r = &t->rows[row];
    if (r->entries <= keep)
        return;
    uint32_t n = r->entries - keep;
    t->more[row].high = larger(t->more[row].high, r->entries);
    begin_change(t, row, keep, r->entries);
    if (r->swapped) {
        for (uint32_t i = r->entries; i-- > keep;)
            block_swap_unpark(t, row, i);
    } else {
        block_pool_release(t->pool, entry(t, row, keep), n, r->last_step);
    }
    memset(entry(t, row, keep), 0xff, n * sizeof *t->ids);
    memset(entry_generation(t, row, keep), 0, n * sizeof *t->generation);
    r->entries = keep;
    t->more[row].version++;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

/* Of ids, and of generations, of which loose rows need none: no memory is taken for them. */
static uint64_t entry_bytes(const struct block_tables *t)
{
    return ((uint64_t)t->o.rows + t->o.loose_rows) * t->o.row_blocks * sizeof(uint32_t);
}

static uint64_t token_bytes(const struct block_tables *t)
{
    return ((uint64_t)t->o.blocks + t->o.host_blocks) * t->o.block_size * sizeof(uint32_t);
}

static void forget_evicted(uint32_t id, void *cookie)
{
    struct block_tables *t = cookie;
    prefix_index_remove(t->index, id);
}

int block_tables_create(const struct block_tables_options *options, struct block_tables **result)
{
    struct block_tables *t = calloc(1, sizeof *t);
    assert((uint64_t)options->row_blocks * options->block_size <= INT32_MAX); /* tokens fit 32 bits */
    if (!t)
        return ATTND_NO_MEMORY;
    t->o = *options;
    t->leaving = NO_ROW;
    t->rows = mapping_create(options->rows * sizeof *t->rows, 0);
    t->more = calloc(options->rows, sizeof *t->more);
    t->ids = mapping_create(entry_bytes(t), 0);
    t->generation = mapping_create(entry_bytes(t), 0);
    t->tokens = mapping_create(token_bytes(t), 0);
    t->cursors = calloc((size_t)options->rows * options->layers, sizeof *t->cursors);
    t->claims = calloc(options->blocks, sizeof *t->claims);
    t->marks = calloc(options->rows, sizeof *t->marks);
    t->audit.holders = calloc((size_t)options->blocks + options->host_blocks, sizeof *t->audit.holders);
    t->at_once.holders = calloc((size_t)options->blocks + options->host_blocks, sizeof *t->at_once.holders);
    if (!t->rows || !t->more || !t->ids || !t->generation || !t->tokens || !t->cursors || !t->claims ||
        !t->marks || !t->audit.holders || !t->at_once.holders ||
        id_bitmap_init(&t->free_rows, options->rows) != 0 ||
        block_pool_create(options->blocks, options->block_size, forget_evicted, block_fill_of_partials, t,
                          &t->pool) != 0 ||
        prefix_index_create(options->blocks, options->block_size, t->tokens, options->hash_shift,
                            &t->index) != 0 ||
        swap_ledger_init(&t->ledger, options->blocks, options->host_blocks) != 0 ||
        (options->epochs &&
         block_log_create(options->blocks, options->rows, options->epochs, &t->log) != 0)) {
        block_tables_destroy(t);
        return ATTND_NO_MEMORY;
    }
    block_pool_set_log(t->pool, t->log);
    *result = t;
    return 0;
}

void block_tables_destroy(struct block_tables *t)
{
    if (!t)
        return;
    block_pool_destroy(t->pool);
    block_log_destroy(t->log);
    prefix_index_destroy(t->index);
    swap_ledger_deinit(&t->ledger);
    id_bitmap_deinit(&t->free_rows);
    mapping_destroy(t->ids, entry_bytes(t));
    mapping_destroy(t->generation, entry_bytes(t));
    mapping_destroy(t->tokens, token_bytes(t));
    mapping_destroy(t->rows, t->o.rows * sizeof *t->rows);
    free(t->more);
    free(t->cursors);
    free(t->claims);
    free(t->marks);
    free(t->audit.holders);
    free(t->at_once.holders);
    free(t);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

/* A vacant row with `root` retained, or NO_ROW. */
static uint32_t new_row(struct block_tables *t, uint32_t root)
{
    if (t->free_rows.count == 0)
        return NO_ROW;
    uint32_t row = id_bitmap_take(&t->free_rows);
    block_log_begin(t->log, row);
    t->rows[row] = (struct row){.root = root, .state = ROW_LIVE};
    prefix_index_retain_root(t->index, root);
    t->more[row].version++;
    t->counts.rows++;
    return row;
}

/* The entries of a new row have been set to `n` blocks that others hold or the cache keeps, `tokens` of
 * them its own. */
static void share_front(struct block_tables *t, uint32_t row, uint32_t n, uint32_t tokens)
{
    struct row *r = &t->rows[row];
    block_pool_retain(t->pool, entry(t, row, 0), n);
    r->entries = n;
    r->cursor_min = r->cursor_max = tokens;
    block_fill_link(t, row);
    end_change(t, row, 0, n);
    t->counts.tokens_logical += tokens;
}

int block_tables_add(struct block_tables *t, uint32_t root, const uint32_t *tokens, uint32_t n,
                     uint32_t *result)
{
    uint32_t row = new_row(t, root);
    if (row == NO_ROW)
        return ATTND_NO_SEQUENCES;
    uint32_t asked = smaller(n / t->o.block_size, t->o.row_blocks);
    uint32_t id, hit = prefix_index_match(t->index, root, tokens, asked, &id);
    if (hit)
        prefix_index_hit(t->index, id);
    for (uint32_t i = hit; i-- > 0; id = prefix_index_node(t->index, id)->parent)
        set_entry(t, row, i, id);
    share_front(t, row, hit, hit * t->o.block_size);
    for (uint32_t i = 0; i < hit; i++)
        block_pool_raise_fill(t->pool, *entry(t, row, i),
                              t->o.block_size); /* others may have had a part only */
    struct row *r = &t->rows[row];
    r->published = hit;
    r->retired = r->known = hit * t->o.block_size;
    t->counts.blocks_asked += asked;
    t->counts.blocks_hit += hit;
    *result = row;
    return 0;
}

int block_tables_fork(struct block_tables *t, uint32_t parent, uint32_t length, uint32_t *result)
{
    struct row *p = live_row(t, parent);
    assert(!p->swapped && length <= p->cursor_min);
    uint32_t row = new_row(t, p->root);
    if (row == NO_ROW)
        return ATTND_NO_SEQUENCES;
    uint32_t n = blocks_for(t, length);
    memcpy(entry(t, row, 0), entry(t, parent, 0), n * sizeof *t->ids);
    memcpy(entry_generation(t, row, 0), entry_generation(t, parent, 0), n * sizeof *t->generation);
    share_front(t, row, n, length);
    p->plain_end = 0;
    struct row *r = &t->rows[row];
    r->published = smaller(p->published, length / t->o.block_size);
    r->retired = smaller(p->retired, length);
    r->known = smaller(p->known, length);
    t->counts.forks++;
    *result = row;
    return 0;
}

void block_tables_remove(struct block_tables *t, uint32_t row)
{
    struct row *r = live_row(t, row);
    block_log_enter(t->log, row);
    block_fill_unlink(t, row);
    pop_entries(t, row, 0);
    prefix_index_close_root(t->index, r->root);
    t->counts.tokens_logical -= r->cursor_max;
    t->counts.rows--;
    t->counts.swapped -= r->swapped;
    if (r->last_step > block_pool_retired(t->pool)) {
        r->state = ROW_LEAVING;
        t->more[row].next_leaving = t->leaving;
        t->leaving = row;
    } else {
        make_vacant(t, row);
    }
}

/* No cursor of a row stays above `length`, which is less than the longest one. */
static void lower_cursors(struct block_tables *t, uint32_t row, uint32_t length)
{
    struct row *r = &t->rows[row];
    uint32_t *cursors = &t->cursors[(uint64_t)row * t->o.layers];
    for (uint32_t layer = 0; r->cursor_min != r->cursor_max && layer < t->o.layers; layer++)
        cursors[layer] = smaller(cursors[layer], length);
    uint32_t from = r->cursor_max, first = length / t->o.block_size, end = blocks_for(t, from);
    t->counts.tokens_logical -= from - length;
    block_fill_unlink(t, row);
    begin_change(t, row, first, end);
    r->cursor_max = length;
    end_change(t, row, first, end);
    block_fill_link(t, row);
    r->cursor_min = smaller(r->cursor_min, length);
    if (length % t->o.block_size)
        block_fill_lower(t, row, length / t->o.block_size);
}

void block_tables_truncate(struct block_tables *t, uint32_t row, uint32_t length)
{
    struct row *r = live_row(t, row);
    block_log_enter(t->log, row);
    if (length < r->cursor_max)
        lower_cursors(t, row, length);
    pop_entries(t, row, blocks_for(t, r->cursor_max));
    r->plain_end = 0;
    r->published = smaller(r->published, length / t->o.block_size);
    r->publish_stopped = false;
    r->retired = smaller(r->retired, length);
    r->known = smaller(r->known, length);
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        r->pending[i] = smaller(r->pending[i], length);
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* The longest cursor of a row moves to a block's end or into another block. Not inlined: that takes 2 ns of
 * the 20 of a decode step that stays within its block. */
__attribute__((noinline)) static void enter_block(struct block_tables *t, uint32_t row, uint32_t to)
{
    uint32_t from = t->rows[row].cursor_max, first = from / t->o.block_size, end = blocks_for(t, to);
    block_fill_unlink(t, row);
    begin_change(t, row, first, end);
    t->rows[row].cursor_max = to;
    end_change(t, row, first, end);
    for (uint32_t i = first; i < end; i++)
        block_pool_raise_fill(t->pool, *entry(t, row, i), smaller(to - i * t->o.block_size, t->o.block_size));
    block_fill_link(t, row);
}

static void raise_cursor_max(struct block_tables *t, uint32_t row, uint32_t to)
{
    struct row *r = &t->rows[row];
    uint32_t from = r->cursor_max;
    if (to <= from)
        return;
    assert(to <= r->entries * t->o.block_size);
    t->counts.tokens_logical += to - from;
    uint32_t last = r->entries - 1, start = last * t->o.block_size;
    if (from <= start || to - start >= t->o.block_size) {
        enter_block(t, row, to);
        return;
    }
    r->cursor_max = to; /* most steps of a decode: no division */
    block_pool_raise_fill(t->pool, *entry(t, row, last), to - start);
}

void block_tables_advance_all(struct block_tables *t, uint32_t row, uint32_t n)
{
    struct row *r = live_row(t, row);
    assert(r->cursor_min == r->cursor_max && !r->swapped);
    raise_cursor_max(t, row, r->cursor_max + n);
    r->cursor_min = r->cursor_max;
}

void block_tables_advance(struct block_tables *t, uint32_t row, uint32_t layer, uint32_t n)
{
    struct row *r = live_row(t, row);
    uint32_t *cursors = &t->cursors[(uint64_t)row * t->o.layers];
    assert(layer < t->o.layers && !r->swapped);
    if (n == 0)
        return;
    for (uint32_t i = 0; r->cursor_min == r->cursor_max && i < t->o.layers; i++)
        cursors[i] = r->cursor_min;
    bool was_min = cursors[layer] == r->cursor_min;
    cursors[layer] += n;
    raise_cursor_max(t, row, cursors[layer]);
    if (!was_min)
        return;
    r->cursor_min = cursors[0];
    for (uint32_t i = 1; i < t->o.layers; i++)
        r->cursor_min = smaller(r->cursor_min, cursors[i]);
}

static void take_part(struct row *r, uint64_t step)
{
    r->last_step = step;
    r->pending[step % STEPS_IN_FLIGHT_MAX] = r->cursor_min;
}

void block_tables_submit(struct block_tables *t, uint32_t row, uint64_t step)
{
    assert(step > block_pool_retired(t->pool) && step <= block_pool_retired(t->pool) + STEPS_IN_FLIGHT_MAX);
    take_part(live_row(t, row), step);
}

void block_tables_submit_all(struct block_tables *t, uint64_t step, const struct reserve_request *requests,
                             uint32_t n)
{
    assert(step > block_pool_retired(t->pool) && step <= block_pool_retired(t->pool) + STEPS_IN_FLIGHT_MAX);
    for (uint32_t i = 0; i < n; i++) {
        struct row *r = live_row(t, requests[i].row);
        assert(r->cursor_min == r->cursor_max && !r->swapped && requests[i].first == r->cursor_max);
        raise_cursor_max(t, requests[i].row, requests[i].end);
        r->cursor_min = r->cursor_max;
        take_part(r, step);
    }
}

bool block_tables_awaits_step(const struct block_tables *t)
{
    return block_pool_counts(t->pool).fenced > 0 || t->leaving != NO_ROW;
}

void block_tables_retire_step(struct block_tables *t, uint64_t step, const uint32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct row *r = &t->rows[rows[i]];
        if (r->state != ROW_LIVE)
            continue;
        uint32_t written = r->pending[step % STEPS_IN_FLIGHT_MAX];
        if (written > r->retired)
            r->retired = written;
        if (r->root == NO_ROOT)
            continue;
        block_log_enter(t->log, rows[i]);
        block_prefix_publish(t, rows[i]);
    }
    block_log_enter(t->log, NO_ROW);
    for (uint32_t *link = &t->leaving; *link != NO_ROW;) {
        uint32_t row = *link;
        if (t->rows[row].last_step > step) {
            link = &t->more[row].next_leaving;
            continue;
        }
        *link = t->more[row].next_leaving;
        make_vacant(t, row);
    }
    block_pool_retire(t->pool, step);
}

/* ---- looking ------------------------------------------------------------------------------------- */

struct block_table_view block_tables_view(const struct block_tables *t, uint32_t row)
{
    const struct row *r = live_row(t, row);
    return (struct block_table_view){
        .ids = entry(t, row, 0),
        .entries = r->entries,
        .length = r->cursor_min,
        .cursor_max = r->cursor_max,
        .published = r->published,
        .swapped = r->swapped,
        .last_step = r->last_step,
    };
}

uint32_t block_tables_shared(const struct block_tables *t, uint32_t row)
{
    const struct row *r = live_row(t, row);
    uint32_t shared = 0;
    for (uint32_t i = 0; !r->swapped && i < r->entries; i++)
        shared += block_pool_refs(t->pool, *entry(t, row, i)) > 1;
    return shared;
}

bool block_tables_in_flight(const struct block_tables *t, uint32_t row)
{
    return live_row(t, row)->last_step > block_pool_retired(t->pool);
}

uint32_t block_tables_version(const struct block_tables *t, uint32_t row)
{
    return t->more[row].version;
}

uint32_t block_tables_cursor(const struct block_tables *t, uint32_t row, uint32_t layer)
{
    const struct row *r = live_row(t, row);
    assert(layer < t->o.layers);
    return r->cursor_min == r->cursor_max ? r->cursor_min : t->cursors[(uint64_t)row * t->o.layers + layer];
}

struct block_tables_counts block_tables_counts(const struct block_tables *t)
{
    struct block_tables_counts counts = t->counts;
    counts.tokens_physical = block_pool_counts(t->pool).filled;
    counts.host_blocks = t->o.host_blocks;
    counts.host_free = t->ledger.free.count;
    counts.vacant = t->free_rows.count;
    return counts;
}

const struct block_pool *block_tables_pool(const struct block_tables *t)
{
    return t->pool;
}

struct block_log *block_tables_log(const struct block_tables *t)
{
    return t->log;
}

void block_tables_set_vacated(struct block_tables *t, block_pool_vacated_fn vacated, void *cookie)
{
    block_pool_set_vacated(t->pool, vacated, cookie);
}

const uint32_t *block_tables_ids(const struct block_tables *t, uint32_t *stride)
{
    *stride = t->o.row_blocks;
    return t->ids;
}

uint32_t *block_tables_loose(struct block_tables *t, uint32_t i)
{
    assert(i < t->o.loose_rows);
    return entry(t, t->o.rows + i, 0);
}
