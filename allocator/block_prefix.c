/* SPDX-License-Identifier: Apache-2.0 */
/* block_prefix.c - the token ids of rows, and the blocks that are published under them.
 *
 *            row 3           [ 17 | 4 | 9 ]        block_size 16, retired 40, known 37
 *            published         17 - 4              full, written by retired steps, tokens known; not so 9
 *
 * Token ids are kept by block, and go with its bytes when these are copied or swapped. A published block is
 * shared with every new row under the same root that says the same, and stays in the cache when its last
 * holder has left.
 *
 *   I6  the first `published` blocks of a row are published, each the child of the one before
 *   I9  of a cached chain the child is evicted before its parent, because rows release their last
 *       block first */
#include "allocator/block_table_state.h"

/* ---- roots --------------------------------------------------------------------------------------- */

uint32_t block_tables_open_root(struct block_tables *t, uint64_t owner, const void *salt, size_t salt_bytes)
{
    return prefix_index_open_root(t->index, owner, salt, salt_bytes);
}

void block_tables_close_root(struct block_tables *t, uint32_t root)
{
    prefix_index_close_root(t->index, root);
}

size_t block_tables_salt(const struct block_tables *t, uint32_t row, const void **salt)
{
    uint32_t root = live_row(t, row)->root;
    *salt = NULL;
    return root == NO_ROOT ? 0 : prefix_index_salt(t->index, root, salt);
}

/* ---- tokens -------------------------------------------------------------------------------------- */

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

/* ---- what is published --------------------------------------------------------------------------- */

struct block_tables_hit block_tables_match(struct block_tables *t, uint32_t root, const uint32_t *tokens,
                                           uint32_t n)
{
    uint32_t id, asked = smaller(n / t->o.block_size, t->o.row_blocks);
    uint32_t hit = prefix_index_match(t->index, root, tokens, asked, &id), held = hit;
    for (; held > 0 && block_pool_refs(t->pool, id) == 0;
         held--) /* who holds a block holds those before it */
        id = prefix_index_node(t->index, id)->parent;
    return (struct block_tables_hit){hit, held, id};
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

bool block_tables_chain(struct block_tables *t, uint32_t id, struct block_chain *chain, uint32_t *ids,
                        uint32_t most)
{
    if (!block_pool_is_published(t->pool, id) || prefix_index_node(t->index, id)->first_child != NO_BLOCK)
        return false;
    const struct prefix_node *last = prefix_index_node(t->index, id);
    *chain = (struct block_chain){.hash = last->chain.low, .rank = NO_BLOCK};
    chain->owner = prefix_index_owner(t->index, last->root, &chain->salted);
    for (uint32_t at = id; at != NO_BLOCK; at = prefix_index_node(t->index, at)->parent) {
        enum block_state state = block_pool_state(t->pool, at);
        chain->blocks++;
        chain->cached += state == BLOCK_CACHED;
        chain->held += state == BLOCK_HELD;
        chain->hits += prefix_index_node(t->index, at)->hits;
    }
    uint32_t n = chain->blocks;
    for (uint32_t at = id; at != NO_BLOCK; at = prefix_index_node(t->index, at)->parent) {
        if (--n < most)
            ids[n] = at;
    }
    if (block_pool_state(t->pool, id) == BLOCK_CACHED)
        chain->rank = block_pool_rank(t->pool, id);
    return true;
}

bool block_tables_published(const struct block_tables *t, uint32_t id, struct block_published *published)
{
    if (!block_pool_is_published(t->pool, id))
        return false;
    const struct prefix_node *node = prefix_index_node(t->index, id);
    *published = (struct block_published){.hash = node->chain.low,
                                          .parent = node->parent,
                                          .tokens = &t->tokens[(uint64_t)id * t->o.block_size]};
    published->salt_bytes = (uint32_t)prefix_index_salt(t->index, node->root, &published->salt);
    return true;
}

/* Take `id` and everything that was published below it out of the index, as many blocks as there is work
 * for; true when all are. No resident sequence but the caller's holds any of it. */
static bool unpublish_some(struct block_tables *t, uint32_t id, uint32_t *work)
{
    for (uint32_t at = id; *work > 0;) {
        const struct prefix_node *node = prefix_index_node(t->index, at);
        if (node->first_child != NO_BLOCK) {
            at = node->first_child;
            continue;
        }
        uint32_t parent = node->parent;
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

uint32_t block_tables_trim(struct block_tables *t)
{
    block_log_enter(t->log, NO_ROW);
    return block_pool_trim(t->pool);
}

bool block_tables_trim_root(struct block_tables *t, uint32_t root, uint32_t *at, uint32_t work)
{
    if (root == NO_ROOT)
        return true;
    block_log_enter(t->log, NO_ROW);
    while (prefix_index_published(t->index, root) > 0 && *at < t->o.blocks && work > 0) {
        bool wanted = block_pool_is_published(t->pool, *at) && prefix_index_node(t->index, *at)->root == root;
        if (!wanted || unpublish_some(t, *at, &work))
            ++*at;
        work -= smaller(work, 1);
    }
    return prefix_index_published(t->index, root) == 0 || *at == t->o.blocks;
}
