/* SPDX-License-Identifier: Apache-2.0 */
/* lowering.c - see lowering.h. */
#include "kernels/cuda/lowering.h"

#include "config/numbers.h"

const struct cuda_split_kind cuda_split_kinds[CUDA_SPLIT_KINDS] = {{0, 0}, {1, 0}, {1, 1},
                                                                   {2, 0}, {2, 1}, {2, 2}};

/* A work tile of the plan, or those of a split group. */
struct work {
    const struct work_tile *work_tiles;
    uint32_t count;
    uint32_t splits; /* the count, made a power of two */
    uint32_t kind;
};

static uint32_t bits_of(uint32_t n)
{
    uint32_t bits = 0;
    while (1U << bits < n)
        bits++;
    return bits;
}

static struct work work_at(const struct cuda_lowering *of, uint32_t i)
{
    const struct work_tile *work_tile = &of->plan->work_tiles[i];
    if (work_tile->splits == 0)
        return (struct work){work_tile, 1, 1, 0};
    uint32_t bits = bits_of(work_tile->splits);
    return (struct work){work_tile, work_tile->splits, 1U << bits,
                         bits * (bits + 1) / 2 + bits_of(work_tile->cta_splits)};
}

/* The list and the columns of the tile that begins at query head `at` of so many. */
static uint32_t list_at(const struct cuda_lowering *of, const struct work *w, uint32_t columns, uint32_t at,
                        uint32_t *n)
{
    uint32_t width = plan_width_for(of->caps, w->work_tiles->width, w->work_tiles, w->count, columns - at);
    *n = smaller(columns - at, of->caps->widths[width].query_heads);
    return (!w->work_tiles->late * PLAN_WIDTHS_MAX + width) * CUDA_SPLIT_KINDS + w->kind;
}

/* The positions that a tile's columns see, within the chunks of `work_tile`. */
static struct plan_range find_keys(const struct cuda_lowering *of, const struct work_tile *work_tile,
                                   const struct cuda_work_tile *tile)
{
    uint32_t first = tile->column / of->group, last = (tile->column + tile->columns - 1) / of->group;
    return plan_work_tile_keys(of->plan, work_tile, first, last - first + 1, of->window);
}

/* To where all of a tile's columns see everything from its first tile on; 0, where they do not all begin there. */
static uint32_t find_seen_by_all(const struct cuda_lowering *of, const struct work_tile *work_tile,
                                 const struct cuda_work_tile *tile)
{
    uint32_t end = (work_tile->first_chunk + work_tile->chunks) * CHUNK_TOKENS, first = 0;
    for (uint32_t r = tile->column / of->group; r <= (tile->column + tile->columns - 1) / of->group; r++) {
        uint32_t query = of->plan->work_tile_queries[tile->first_query + r];
        struct plan_range seen = plan_visible(of->plan->queries[query].keys, of->window);
        first = larger(first, seen.first);
        end = smaller(end, seen.end);
    }
    return first <= tile->seen.first / TILE_TOKENS * TILE_TOKENS ? end : 0;
}

/* The block table's entries of a tile's first keys, so that fetching can begin with them. */
static void add_entries(const struct cuda_lowering *of, struct cuda_work_tile *tile)
{
    uint32_t first = tile->seen.first / TILE_TOKENS * TILE_TOKENS / of->block_size,
             end = (uint32_t)(((uint64_t)tile->seen.end + of->block_size - 1) / of->block_size);
    const uint32_t *table = of->tables + (uint64_t)tile->table * of->stride;
    for (uint32_t i = 0; i < CUDA_WORK_TILE_ENTRIES && first + i < end; i++)
        tile->entries[i] = table[first + i];
}

void cuda_lower_tiles(const struct cuda_lowering *of, struct cuda_tile_list lists[CUDA_TILE_LISTS])
{
    for (uint32_t i = 0; i < of->plan->work_tile_count;) {
        struct work w = work_at(of, i);
        uint32_t columns = w.work_tiles->queries * of->group;
        for (uint32_t at = 0, n; at < columns; at += n) {
            struct cuda_tile_list *list = &lists[list_at(of, &w, columns, at, &n)];
            for (uint32_t m = 0; list->tiles && m < w.splits; m++) {
                const struct work_tile *work_tile = &w.work_tiles[m < w.count ? m : 0];
                struct cuda_work_tile tile = {.table = work_tile->table,
                                              .first_query = work_tile->first_query,
                                              .column = at,
                                              .columns = n,
                                              .partial = work_tile->partial};
                if (m < w.count) {
                    tile.seen = find_keys(of, work_tile, &tile);
                    tile.seen_by_all = find_seen_by_all(of, work_tile, &tile);
                    add_entries(of, &tile);
                } /* else it has no keys */
                list->tiles[list->count + m] = tile;
            }
            list->count += w.splits;
        }
        i += w.count;
    }
}

uint32_t cuda_work_tile_queries(const struct plan *plan)
{
    uint32_t queries = 0;
    for (uint32_t i = 0; i < plan->work_tile_count; i++)
        queries += plan->work_tiles[i].queries;
    return queries;
}

void cuda_lower_queries(const struct plan *plan, struct cuda_work_tile_query *queries)
{
    uint32_t count = cuda_work_tile_queries(plan);
    for (uint32_t i = 0; i < count; i++)
        queries[i] = (struct cuda_work_tile_query){plan->work_tile_queries[i],
                                                   plan->queries[plan->work_tile_queries[i]].keys};
}

struct cuda_merges cuda_lower_merges(const struct plan *plan, struct plan_merge *merges)
{
    struct cuda_merges left = {0};
    for (uint32_t i = 0; i < plan->merge_count; i++) {
        const struct plan_merge *merge = &plan->merges[i];
        const struct partial_ref *partials = plan->merge_partials + merge->first;
        if (merge->is_split_group)
            continue;
        merges[left.count++] = *merge;
        left.longest = larger(left.longest, merge->count);
        left.spans |= merge->count > 1 &&
                      !plan_within_span(partials[0].end_chunk - 1, partials[merge->count - 1].end_chunk);
    }
    return left;
}
