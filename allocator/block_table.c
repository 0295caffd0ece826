/* block_table.c - the rows of all sequences, and every rule about who may write where.
 *
 *            row 5 (parent)      [ 17 | 4 | 9 ]        cursors 40
 *            row 8 (its fork)    [ 17 | 4 ]            cursors 20: slots 16..19 of block 4 are shared
 *
 * The next token of row 8 goes to slot 20, in block 4, which is shared: reserve() gives row 8 a private
 * copy of slots 16..19 in a new block and returns that copy for the backend to make. Whoever writes
 * first pays; the last holder writes in place. Nothing else is ever copied.
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
 * Fill: a row has all slots of the blocks before its longest cursor, none of those that are only
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
 *       its slots that one of its holders has
 *   I2  refs of a block == entries of resident rows that name it + entries of swapped rows parked on it
 *   I4  entries below `entries` are valid ids of the generation they had when they were stored; the
 *       rest are -1
 *   I5  a block that a row writes has one reference and is not published: reserve() sees to it
 *   I6  the first `published` blocks of a row are published, each the child of the one before
 *   I9  of a cached chain the child is evicted before its parent, because rows release their last
 *       block first
 *
 * An audit (block_audit.c) counts the entries of all tables while these change, so whatever changes
 * entries, or a row's longest cursor, says so before and after: begin_change(), end_change().
 *
 * The first design had truncate() unpublish the block it cuts into. Here reserve() does, when a write
 * is really coming: a fork can leave a sole holder inside a published block just as well, so reserve()
 * has to look anyway, and a block that is never written stays good for others
 * (docs/decisions/0002-unpublish-at-the-write.md). */
#include "allocator/block_table_state.h"

#include "allocator/mapping.h"
#include "config/numbers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- small helpers ------------------------------------------------------------------------------- */

static void forget_evicted(uint32_t id, void *cookie)
{
    struct block_tables *t = cookie;
    prefix_index_remove(t->index, id);
}

/* Take `id` and everything that was published below it out of the index, as many blocks as there is work
 * for; true when all are. No resident sequence but the caller's holds any of it. */
static bool unpublish_some(struct block_tables *t, uint32_t id, uint32_t *work)
{
    for (uint32_t at = id; *work > 0;) {
        uint32_t child = prefix_index_first_child(t->index, at);
        if (child != NO_BLOCK) {
            at = child;
            continue;
        }
        uint32_t parent = prefix_index_parent(t->index, at);
        prefix_index_remove(t->index, at);
        block_pool_unpublish(t->pool, at);
        --*work;
        if (at == id)
            return true;
        at = parent;
    }
    return false;
}

void block_prefix_unpublish(struct block_tables *t, uint32_t id)
{
    uint32_t all = UINT32_MAX;
    (void)unpublish_some(t, id, &all);
}

/* ---- partial holders ----------------------------------------------------------------------------- */

void block_fill_link(struct block_tables *t, uint32_t row, uint32_t i)
{
    struct block_partials *list = partials_at(t, place_of(t, row, i));
    uint32_t next = list->count++ ? list->first : NO_ROW;
    t->partial_links[row] = (struct partial_link){.next = next, .prev = NO_ROW};
    if (next != NO_ROW)
        t->partial_links[next].prev = row;
    list->first = row;
}

void block_fill_unlink(struct block_tables *t, uint32_t row, uint32_t i)
{
    struct block_partials *list = partials_at(t, place_of(t, row, i));
    struct partial_link link = t->partial_links[row];
    if (link.next != NO_ROW)
        t->partial_links[link.next].prev = link.prev;
    if (link.prev != NO_ROW)
        t->partial_links[link.prev].next = link.next;
    else
        list->first = link.next;
    list->count--;
}

void block_fill_move(struct block_tables *t, uint32_t row, uint32_t from, uint32_t to)
{
    uint32_t n = t->o.block_size;
    if (from % n && to % n && from / n == to / n)
        return;
    if (from % n)
        block_fill_unlink(t, row, from / n);
    if (to % n)
        block_fill_link(t, row, to / n);
}

/* The most slots that a row of the list has; none has more than `most`, which ends the search. */
static uint32_t largest_part(const struct block_tables *t, const struct block_partials *list, uint32_t most)
{
    uint32_t largest = 0, row = list->first;
    for (uint32_t n = list->count; n > 0 && largest < most; n--) {
        uint32_t slots = t->rows[row].cursor_max % t->o.block_size;
        largest = slots > largest ? slots : largest;
        row = t->partial_links[row].next;
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
    struct block_partials *list = &t->host_partials[host];
    if (swap_ledger_refs(t->ledger, host) == list->count)
        t->host_fill[host] = (uint16_t)largest_part(t, list, t->host_fill[host]);
}

void block_fill_lower(struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t place = place_of(t, row, i);
    if (place < t->o.blocks)
        block_pool_lower_fill(t->pool, place);
    else
        block_fill_lower_host(t, place - t->o.blocks);
}

void block_fill_hand_over(struct block_partials *from, struct block_partials *to)
{
    *to = *from;
    from->count = 0;
}

/* ---- giving back --------------------------------------------------------------------------------- */

void block_swap_unpark(struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t host = *entry(t, row, i), device = swap_ledger_device_of(t->ledger, host);
    if (device != NO_BLOCK)
        block_pool_release(t->pool, &device, 1, t->rows[row].last_step);
    swap_ledger_unpark(t->ledger, host);
    if (device == NO_BLOCK)
        block_fill_lower_host(t, host);
}

/* Give back the entries of a row from the last one down to entry `keep`. The row is a partial holder of
 * none of them. */
static void pop_entries(struct block_tables *t, uint32_t row, uint32_t keep)
{
    struct row *r = &t->rows[row];
    if (r->entries <= keep)
        return;
    uint32_t n = r->entries - keep;
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
    t->version[row]++;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

static uint64_t table_bytes(const struct block_tables *t)
{
    return (uint64_t)t->o.rows * t->o.row_blocks * sizeof(uint32_t);
}

static uint64_t id_bytes(const struct block_tables *t)
{
    return ((uint64_t)t->o.rows + t->o.loose_rows) * t->o.row_blocks * sizeof(uint32_t);
}

static uint64_t token_bytes(const struct block_tables *t)
{
    return ((uint64_t)t->o.blocks + t->o.host_blocks) * t->o.block_size * sizeof(uint32_t);
}

int block_tables_create(const struct block_tables_options *options, struct block_tables **result)
{
    struct block_tables *t = calloc(1, sizeof *t);
    assert((uint64_t)options->row_blocks * options->block_size <= INT32_MAX); /* tokens fit 32 bits */
    if (!t)
        return ATTND_NO_MEMORY;
    t->o = *options;
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        t->leaving[i] = NO_ROW;
    unsigned hash_bits = options->hash_bits ? options->hash_bits : PREFIX_HASH_BITS;
    t->rows = mapping_create(options->rows * sizeof *t->rows, 0);
    t->high = calloc(options->rows, sizeof *t->high);
    t->next_leaving = calloc(options->rows, sizeof *t->next_leaving);
    t->version = calloc(options->rows, sizeof *t->version);
    t->ids = mapping_create(id_bytes(t), 0);
    t->generation = mapping_create(table_bytes(t), 0);
    t->tokens = mapping_create(token_bytes(t), 0);
    t->cursors = calloc((size_t)options->rows * options->layers, sizeof *t->cursors);
    t->partial_links = calloc(options->rows, sizeof *t->partial_links);
    t->host_partials = calloc((size_t)options->host_blocks + 1, sizeof *t->host_partials);
    t->host_fill = calloc((size_t)options->host_blocks + 1, sizeof *t->host_fill);
    t->claims = calloc(options->blocks, sizeof *t->claims);
    t->marks = calloc(options->rows, sizeof *t->marks);
    t->audit.holders = calloc((size_t)options->blocks + options->host_blocks, sizeof *t->audit.holders);
    t->at_once.holders = calloc((size_t)options->blocks + options->host_blocks, sizeof *t->at_once.holders);
    t->order = calloc(options->blocks, sizeof *t->order);
    if (!t->rows || !t->high || !t->next_leaving || !t->version || !t->ids || !t->generation || !t->tokens ||
        !t->cursors || !t->partial_links || !t->host_partials || !t->host_fill || !t->claims || !t->marks ||
        !t->audit.holders || !t->at_once.holders || !t->order ||
        id_bitmap_init(&t->free_rows, options->rows) != 0 ||
        block_pool_create(options->blocks, options->block_size, forget_evicted, block_fill_of_partials, t,
                          &t->pool) != 0 ||
        prefix_index_create(options->blocks, options->block_size, t->tokens, hash_bits, &t->index) != 0 ||
        swap_ledger_create(options->blocks, options->host_blocks, &t->ledger) != 0) {
        block_tables_destroy(t);
        return ATTND_NO_MEMORY;
    }
    *result = t;
    return 0;
}

void block_tables_destroy(struct block_tables *t)
{
    if (!t)
        return;
    block_pool_destroy(t->pool);
    prefix_index_destroy(t->index);
    swap_ledger_destroy(t->ledger);
    id_bitmap_deinit(&t->free_rows);
    mapping_destroy(t->ids, id_bytes(t));
    mapping_destroy(t->generation, table_bytes(t));
    mapping_destroy(t->tokens, token_bytes(t));
    mapping_destroy(t->rows, t->o.rows * sizeof *t->rows);
    free(t->high);
    free(t->next_leaving);
    free(t->version);
    free(t->cursors);
    free(t->partial_links);
    free(t->host_partials);
    free(t->host_fill);
    free(t->claims);
    free(t->marks);
    free(t->audit.holders);
    free(t->at_once.holders);
    free(t->order);
    free(t);
}

uint32_t block_tables_open_root(struct block_tables *t, uint64_t owner, const void *salt, size_t salt_bytes)
{
    return prefix_index_open_root(t->index, owner, salt, salt_bytes);
}

void block_tables_close_root(struct block_tables *t, uint32_t root)
{
    prefix_index_close_root(t->index, root);
}

/* ---- rows ---------------------------------------------------------------------------------------- */

size_t block_tables_salt(const struct block_tables *t, uint32_t row, const void **salt)
{
    uint32_t root = live_row(t, row)->root;
    uint64_t owner;
    *salt = NULL;
    return root == NO_ROOT ? 0 : prefix_index_root_name(t->index, root, &owner, salt);
}

/* A vacant row with `root` retained, or NO_ROW. */
static uint32_t new_row(struct block_tables *t, uint32_t root)
{
    if (t->free_rows.count == 0)
        return NO_ROW;
    uint32_t row = id_bitmap_take(&t->free_rows);
    t->rows[row] = (struct row){.root = root, .state = ROW_LIVE};
    prefix_index_retain_root(t->index, root);
    t->version[row]++;
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
    if (tokens % t->o.block_size)
        block_fill_link(t, row, n - 1);
    end_change(t, row, 0, n);
    note_high(t, row);
    t->counts.tokens_logical += tokens;
}

int block_tables_add(struct block_tables *t, uint32_t root, const uint32_t *tokens, uint32_t n,
                     uint32_t *result)
{
    uint32_t row = new_row(t, root);
    if (row == NO_ROW)
        return ATTND_NO_SEQUENCES;
    uint32_t asked = smaller(n / t->o.block_size, t->o.row_blocks);
    uint32_t *ids = entry(t, row, 0);
    uint32_t hit = prefix_index_match(t->index, root, tokens, asked, ids);
    share_front(t, row, hit, hit * t->o.block_size);
    for (uint32_t i = 0; i < hit; i++) {
        *entry_generation(t, row, i) = block_pool_generation(t->pool, ids[i]);
        block_pool_raise_fill(t->pool, ids[i], t->o.block_size); /* others may have had a part only */
    }
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

struct block_tables_hit block_tables_match(struct block_tables *t, uint32_t root, const uint32_t *tokens,
                                           uint32_t n)
{
    uint32_t *ids = t->order, asked = smaller(n / t->o.block_size, t->o.row_blocks), held = 0;
    uint32_t hit = prefix_index_match(t->index, root, tokens, smaller(asked, t->o.blocks), ids);
    while (held < hit && block_pool_refs(t->pool, ids[held]) > 0)
        held++; /* who holds a block holds those before it */
    return (struct block_tables_hit){hit, held, held ? ids[held - 1] : NO_BLOCK};
}

void block_tables_remove(struct block_tables *t, uint32_t row)
{
    struct row *r = live_row(t, row);
    if (r->cursor_max % t->o.block_size)
        block_fill_unlink(t, row, r->cursor_max / t->o.block_size);
    pop_entries(t, row, 0);
    prefix_index_close_root(t->index, r->root);
    t->counts.tokens_logical -= r->cursor_max;
    t->counts.rows--;
    t->counts.swapped -= r->swapped;
    if (r->last_step > block_pool_retired(t->pool)) {
        uint32_t *list = &t->leaving[r->last_step % STEPS_IN_FLIGHT_MAX];
        r->state = ROW_LEAVING;
        t->next_leaving[row] = *list;
        *list = row;
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
    block_fill_move(t, row, from, length);
    begin_change(t, row, first, end);
    r->cursor_max = length;
    end_change(t, row, first, end);
    r->cursor_min = smaller(r->cursor_min, length);
    if (length % t->o.block_size)
        block_fill_lower(t, row, length / t->o.block_size);
}

void block_tables_truncate(struct block_tables *t, uint32_t row, uint32_t length)
{
    struct row *r = live_row(t, row);
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

/* ---- reserve ------------------------------------------------------------------------------------- */

/* Blocks that bringing a row in and writing these slots takes, at most: what is written may have to be
 * copied if anybody else has it, here or on the host. */
static uint32_t need_of_swapped(const struct block_tables *t, const struct reserve_request *q)
{
    const struct row *r = &t->rows[q->row];
    uint32_t need = block_tables_absent(t, q->row);
    uint32_t end = q->first < q->end ? blocks_for(t, q->end) : 0;
    for (uint32_t i = q->first / t->o.block_size; i < smaller(end, r->entries); i++) {
        uint32_t host = *entry(t, q->row, i);
        need += swap_ledger_refs(t->ledger, host) > 1 || swap_ledger_device_of(t->ledger, host) != NO_BLOCK;
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
    bool partial = slots < t->o.block_size;
    copies[(*copy_count)++] = (struct block_copy){COPY_ON_WRITE, from, to, slots};
    copy_tokens(t, from, to);
    block_pool_set_fill(t->pool, to, slots);
    if (partial)
        block_fill_unlink(t, row, i);
    begin_change(t, row, i, i + 1);
    set_entry(t, row, i, to);
    end_change(t, row, i, i + 1);
    if (partial)
        block_fill_link(t, row, i);
    block_pool_release(t->pool, &from, 1, step); /* the copy reads it in this step */
    t->counts.copies++;
    t->version[row]++;
}

static void commit_request(struct block_tables *t, uint64_t step, const struct reserve_request *q,
                           struct block_copy *copies, uint32_t *copy_count)
{
    struct row *r = &t->rows[q->row];
    uint32_t end = blocks_for(t, q->end), had = r->entries;
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
    note_high(t, q->row);
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

void block_tables_note_tokens(struct block_tables *t, uint32_t row, uint32_t position, const uint32_t *tokens,
                              uint32_t n)
{
    struct row *r = live_row(t, row);
    assert(!r->swapped && position >= r->cursor_max && position + n <= r->entries * t->o.block_size);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = position + i;
        uint32_t id = *entry(t, row, at / t->o.block_size);
        t->tokens[(uint64_t)id * t->o.block_size + at % t->o.block_size] = tokens[i];
    }
    if (position <= r->known && r->known < position + n)
        r->known = position + n;
}

uint32_t block_tables_read_tokens(const struct block_tables *t, uint32_t row, uint32_t position, uint32_t n,
                                  uint32_t *tokens)
{
    const struct row *r = live_row(t, row);
    uint32_t known = r->known > position ? smaller(r->known - position, n) : 0;
    assert(!r->swapped);
    for (uint32_t i = 0; i < known; i++) {
        uint32_t at = position + i, id = *entry(t, row, at / t->o.block_size);
        tokens[i] = t->tokens[(uint64_t)id * t->o.block_size + at % t->o.block_size];
    }
    return known;
}

/* ---- a step -------------------------------------------------------------------------------------- */

void block_fill_raise(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end)
{
    uint32_t last = t->rows[row].entries - 1; /* where a decode step writes; else find the block */
    uint32_t i = first >= last * t->o.block_size ? last : first / t->o.block_size;
    for (; i * t->o.block_size < end; i++) {
        uint32_t slots = smaller(end - i * t->o.block_size, t->o.block_size);
        block_pool_raise_fill(t->pool, *entry(t, row, i), slots);
    }
}

/* The longest cursor of a row moves to a block's end or into another block. Not inlined: that takes 2 ns of
 * the 20 of a decode step that stays within its block. */
__attribute__((noinline)) static void enter_block(struct block_tables *t, uint32_t row, uint32_t to)
{
    uint32_t from = t->rows[row].cursor_max, first = from / t->o.block_size, end = blocks_for(t, to);
    begin_change(t, row, first, end);
    t->rows[row].cursor_max = to;
    end_change(t, row, first, end);
    block_fill_raise(t, row, from, to);
    block_fill_move(t, row, from, to);
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

void block_prefix_publish(struct block_tables *t, uint32_t row)
{
    struct row *r = &t->rows[row];
    uint32_t ready = smaller(smaller(r->retired, r->known), r->cursor_min);
    if (r->swapped)
        return;
    while (ready >= (r->published + 1) * t->o.block_size && !r->publish_stopped) {
        uint32_t id = *entry(t, row, r->published);
        uint32_t parent = r->published ? *entry(t, row, r->published - 1) : NO_BLOCK;
        if (!block_pool_is_published(t->pool, id)) { /* else a fork of this row was first */
            if (prefix_index_publish(t->index, r->root, parent, id) != 0) {
                r->publish_stopped = true;
                return;
            }
            block_pool_publish(t->pool, id);
        }
        r->published++;
    }
}

bool block_tables_awaits_step(const struct block_tables *t)
{
    bool awaits = block_pool_counts(t->pool).fenced > 0;
    for (int i = 0; i < STEPS_IN_FLIGHT_MAX; i++)
        awaits |= t->leaving[i] != NO_ROW;
    return awaits;
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
        if (r->root != NO_ROOT)
            block_prefix_publish(t, rows[i]);
    }
    for (uint64_t s = block_pool_retired(t->pool) + 1; s <= step; s++) {
        uint32_t next, *list = &t->leaving[s % STEPS_IN_FLIGHT_MAX];
        for (uint32_t row = *list; row != NO_ROW; row = next) {
            next = t->next_leaving[row];
            make_vacant(t, row);
        }
        *list = NO_ROW;
    }
    block_pool_retire(t->pool, step);
}

/* ---- swap ---------------------------------------------------------------------------------------- */

static bool has_held_child(const struct block_tables *t, uint32_t id)
{
    uint32_t child = block_pool_is_published(t->pool, id) ? prefix_index_first_child(t->index, id) : NO_BLOCK;
    while (child != NO_BLOCK && block_pool_state(t->pool, child) != BLOCK_HELD)
        child = prefix_index_next_child(t->index, child);
    return child != NO_BLOCK;
}

/* The device block of `host` has lost its last resident holder: move the bytes, give the block back. */
static void evacuate(struct block_tables *t, uint32_t host, uint64_t step, struct block_copy *copies,
                     uint32_t *copy_count)
{
    uint32_t id = swap_ledger_device_of(t->ledger, host), slots = block_pool_fill(t->pool, id);
    if (!swap_ledger_has_bytes(t->ledger, host)) {
        copy_tokens(t, id, t->o.blocks + host);
        if (slots)
            copies[(*copy_count)++] = (struct block_copy){COPY_OUT, id, host, slots};
    } else {
        assert(slots <= t->host_fill[host]); /* the block was not written: a swapped row held it, too */
    }
    t->host_fill[host] = (uint16_t)slots;
    /* held by sequences that are swapped out themselves: the child must not outlive it */
    if (has_held_child(t, id))
        block_prefix_unpublish(t, id);
    swap_ledger_detach(t->ledger, host);
    block_fill_hand_over(block_pool_partials(t->pool, id), &t->host_partials[host]);
    for (uint32_t n = swap_ledger_refs(t->ledger, host); n > 0; n--)
        block_pool_release(t->pool, &id, 1, step);
}

int block_tables_swap_out(struct block_tables *t, uint32_t row, uint64_t step, struct block_copy *copies,
                          uint32_t *copy_count)
{
    struct row *r = live_row(t, row);
    assert(!r->swapped);
    if (block_tables_host_need(t, row) > swap_ledger_free(t->ledger))
        return ATTND_NO_HOST_BLOCKS;

    r->last_step = step;
    begin_change(t, row, 0, r->entries);
    for (uint32_t i = r->entries; i-- > 0;) {
        uint32_t id = *entry(t, row, i);
        uint32_t host = swap_ledger_park(t->ledger, id);
        *entry(t, row, i) = host;
        *entry_generation(t, row, i) = 0;
        if (block_pool_refs(t->pool, id) == swap_ledger_refs(t->ledger, host))
            evacuate(t, host, step, copies, copy_count);
    }
    r->swapped = true;
    end_change(t, row, 0, r->entries);
    t->version[row]++;
    r->published = r->plain_end = 0;
    t->counts.swapped++;
    t->counts.swaps_out++;
    return 0;
}

/* Bring the bytes of `host` back to the device for every entry that is parked on it. */
static void bring_back(struct block_tables *t, uint32_t host, struct block_copy *copies, uint32_t *copy_count)
{
    uint32_t id = take_block(t);
    swap_ledger_attach(t->ledger, host, id);
    for (uint32_t n = swap_ledger_refs(t->ledger, host); n > 1; n--)
        block_pool_retain(t->pool, &id, 1);
    block_pool_set_fill(t->pool, id, t->host_fill[host]);
    block_fill_hand_over(&t->host_partials[host], block_pool_partials(t->pool, id));
    copy_tokens(t, t->o.blocks + host, id);
    if (t->host_fill[host])
        copies[(*copy_count)++] = (struct block_copy){COPY_IN, host, id, t->host_fill[host]};
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
    begin_change(t, row, 0, r->entries);
    r->swapped = r->publish_stopped = false;
    for (uint32_t i = 0; i < r->entries; i++) {
        uint32_t host = *entry(t, row, i);
        if (swap_ledger_device_of(t->ledger, host) == NO_BLOCK)
            bring_back(t, host, copies, copy_count);
        uint32_t id = swap_ledger_device_of(t->ledger, host);
        set_entry(t, row, i, id);
        swap_ledger_unpark(t->ledger, host);
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
    t->version[row]++;
    return 0;
}

uint32_t block_tables_host_need(const struct block_tables *t, uint32_t row)
{
    uint32_t need = 0;
    for (uint32_t i = 0; i < live_row(t, row)->entries; i++)
        need += swap_ledger_host_of(t->ledger, *entry(t, row, i)) == NO_BLOCK;
    return need;
}

static bool is_stranded(const struct block_tables *t, uint32_t host)
{
    uint32_t refs = swap_ledger_refs(t->ledger, host), id = swap_ledger_device_of(t->ledger, host);
    return refs > 0 && id != NO_BLOCK && block_pool_refs(t->pool, id) == refs;
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
        absent += swap_ledger_device_of(t->ledger, *entry(t, row, i)) == NO_BLOCK;
    return absent;
}

uint32_t block_tables_absent_at(const struct block_tables *t, uint32_t row, uint32_t i)
{
    uint32_t host = *entry(t, row, i);
    assert(live_row(t, row)->swapped && i < t->rows[row].entries);
    return swap_ledger_device_of(t->ledger, host) == NO_BLOCK && t->host_fill[host] ? host : NO_BLOCK;
}

uint32_t block_tables_swap_refs(const struct block_tables *t, uint32_t host)
{
    return swap_ledger_refs(t->ledger, host);
}

uint32_t block_tables_reclaimable(struct block_tables *t, const uint32_t *rows, uint32_t n)
{
    uint32_t reclaimable = 0;
    for (uint32_t k = 0; k < n; k++) {
        const struct row *r = live_row(t, rows[k]);
        assert(!r->swapped);
        for (uint32_t i = 0; i < r->entries; i++)
            t->claims[*entry(t, rows[k], i)]++;
    }
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < t->rows[rows[k]].entries; i++) {
            uint32_t id = *entry(t, rows[k], i), host = swap_ledger_host_of(t->ledger, id);
            uint32_t parked = host == NO_BLOCK ? 0 : swap_ledger_refs(t->ledger, host);
            reclaimable += t->claims[id] && t->claims[id] + parked == block_pool_refs(t->pool, id);
            t->claims[id] = 0; /* counted once */
        }
    }
    return reclaimable;
}

uint32_t block_tables_claim(struct block_tables *t, uint32_t row, uint32_t first, uint32_t end)
{
    uint32_t n = 0;
    assert(!live_row(t, row)->swapped && end <= t->rows[row].entries);
    for (uint32_t i = first; i < end; i++) {
        uint32_t id = *entry(t, row, i);
        n += ++t->claims[id] == block_pool_refs(t->pool, id);
    }
    return n;
}

void block_tables_unclaim(struct block_tables *t, uint32_t row)
{
    for (uint32_t i = 0; i < live_row(t, row)->entries; i++)
        t->claims[*entry(t, row, i)] = 0;
}

/* ---- looking ------------------------------------------------------------------------------------- */

struct block_table_view block_tables_view(const struct block_tables *t, uint32_t row)
{
    const struct row *r = live_row(t, row);
    struct block_table_view view = {
        .ids = entry(t, row, 0),
        .entries = r->entries,
        .length = r->cursor_min,
        .cursor_max = r->cursor_max,
        .published = r->published,
        .swapped = r->swapped,
    };
    return view;
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

uint64_t block_tables_last_step(const struct block_tables *t, uint32_t row)
{
    return live_row(t, row)->last_step;
}

uint32_t block_tables_version(const struct block_tables *t, uint32_t row)
{
    return t->version[row];
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
    counts.host_blocks = swap_ledger_blocks(t->ledger);
    counts.host_free = swap_ledger_free(t->ledger);
    counts.vacant = t->free_rows.count;
    return counts;
}

const struct block_pool *block_tables_pool(const struct block_tables *t)
{
    return t->pool;
}

uint32_t block_tables_trim(struct block_tables *t)
{
    return block_pool_trim(t->pool);
}

bool block_tables_trim_root(struct block_tables *t, uint32_t root, uint32_t *at, uint32_t work)
{
    if (root == NO_ROOT)
        return true;
    while (prefix_index_root_refs(t->index, root) > 1 && *at < t->o.blocks && work > 0) {
        bool wanted = block_pool_is_published(t->pool, *at) && prefix_index_root(t->index, *at) == root;
        if (!wanted || unpublish_some(t, *at, &work))
            ++*at;
        work -= smaller(work, 1);
    }
    return prefix_index_root_refs(t->index, root) == 1 || *at == t->o.blocks;
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
