/* plan.c - what a work tile reads, and whether a plan computes every query exactly once. */
#include "kernels/plan.h"

#include "config/numbers.h"

#include <stddef.h>
#include <stdlib.h>

struct plan_range plan_work_tile_keys(const struct plan *plan, const struct work_tile *work_tile,
                                      uint32_t first, uint32_t queries, uint32_t window)
{
    uint32_t begin = work_tile->first_chunk * CHUNK_TOKENS, stop = begin + work_tile->chunks * CHUNK_TOKENS;
    struct plan_range any = {stop, begin};
    for (uint32_t r = first; r < first + queries; r++) {
        struct plan_range seen =
            plan_visible(plan->queries[plan->work_tile_queries[work_tile->first_query + r]].keys, window);
        any.first = smaller(any.first, seen.first);
        any.end = larger(any.end, seen.end);
    }
    return (struct plan_range){larger(any.first, begin), smaller(any.end, stop)};
}

uint32_t plan_work_tile_tokens(const struct plan *plan, const struct work_tile *work_tile, uint32_t window)
{
    struct plan_range seen = plan_work_tile_keys(plan, work_tile, 0, work_tile->queries, window);
    return seen.end - seen.first / TILE_TOKENS * TILE_TOKENS;
}

static struct plan_range chunks_of(const struct plan_query *query, uint32_t window)
{
    return plan_visible_chunks(query->keys, window);
}

/* Whether a partial of `level` over chunks [first, end) can be folded into a query that sees chunks
 * `seen`. */
static int partial_fits(enum plan_level level, uint32_t first, uint32_t end, struct plan_range seen)
{
    uint32_t node = plan_node_chunks(level), parent = plan_parent_chunks(level);
    uint32_t parent_start = first / parent * parent;
    int whole = (first % node == 0 || first == seen.first) && (end % node == 0 || end == seen.end);
    int in_one_parent = (end - 1) / parent == first / parent;
    int single = (end - 1) / node == first / node;
    int leads = first == parent_start || first == seen.first;
    return whole && in_one_parent && (single || leads);
}

/* What is known of a partial: the work tile that writes it, or one of these. */
#define PARTIAL_FREE   UINT32_MAX
#define PARTIAL_MERGED (UINT32_MAX - 1)

static const char *work_tile_fault(const struct plan *plan, uint32_t i, uint32_t window,
                                   uint32_t *work_tile_of, uint32_t *finished)
{
    const struct work_tile *work_tile = &plan->work_tiles[i];
    if (work_tile->queries == 0 || work_tile->chunks == 0)
        return "a work tile without queries or chunks";
    if (!plan_within_span(work_tile->first_chunk, work_tile->first_chunk + work_tile->chunks))
        return "a work tile crosses the end of a span";
    for (uint32_t r = 0; r < work_tile->queries; r++) {
        uint32_t query = plan->work_tile_queries[work_tile->first_query + r];
        struct plan_range seen = chunks_of(&plan->queries[query], window);
        if (work_tile->first_chunk < seen.first || work_tile->first_chunk + work_tile->chunks > seen.end)
            return "a work tile reads chunks that a query does not see";
        if (work_tile->partial != PLAN_NO_PARTIAL) {
            uint32_t partial = work_tile->partial + r;
            if (partial >= plan->partial_count)
                return "a partial out of range";
            if (work_tile_of[partial] != PARTIAL_FREE)
                return "two work tiles write one partial";
            work_tile_of[partial] = i;
        } else if (work_tile->first_chunk != seen.first ||
                   work_tile->first_chunk + work_tile->chunks != seen.end) {
            return "a work tile finishes a query of which it reads only a part";
        } else {
            finished[query]++;
        }
    }
    return NULL;
}

static const char *merge_fault(const struct plan *plan, const struct plan_merge *merge,
                               uint32_t *work_tile_of, uint32_t window)
{
    const struct plan_query *query = &plan->queries[merge->query];
    struct plan_range seen = chunks_of(query, window);
    uint32_t at = seen.first;
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct partial_ref *ref = &plan->merge_partials[merge->first + i];
        if (ref->partial >= plan->partial_count || work_tile_of[ref->partial] == PARTIAL_FREE)
            return "a merge reads a partial that no work tile writes";
        if (work_tile_of[ref->partial] == PARTIAL_MERGED)
            return "a partial is merged twice";
        const struct work_tile *work_tile = &plan->work_tiles[work_tile_of[ref->partial]];
        if (plan->work_tile_queries[work_tile->first_query + ref->partial - work_tile->partial] !=
            merge->query)
            return "a merge reads another query's partial";
        if (work_tile->first_chunk != at || ref->end_chunk != work_tile->first_chunk + work_tile->chunks)
            return "a query's partials do not follow each other";
        if (ref->level > PLAN_SEGMENT || !partial_fits(ref->level, at, ref->end_chunk, seen))
            return "a partial's level does not fit its range";
        work_tile_of[ref->partial] = PARTIAL_MERGED;
        at = ref->end_chunk;
    }
    return at == seen.end || merge->count == 0
               ? (merge->count || query->keys == 0 ? NULL : "a query with keys has no partials")
               : "a query's partials do not reach its end";
}

/* ---- slices -------------------------------------------------------------------------------------- */

/* Whether a work tile is what a slice may have: one segment of its queries, as far as they see it, with the
 * states that belong to them. Counts the queries in seen[]. */
static const char *slice_work_tile_fault(const struct plan *plan, const struct work_tile *work_tile,
                                         uint32_t window, uint32_t *seen)
{
    uint32_t segment = work_tile->first_chunk / SEGMENT_CHUNKS;
    if (work_tile->queries == 0 || work_tile->chunks == 0)
        return "a work tile without queries or chunks";
    if (segment < plan->slice->first || segment >= plan->slice->end || segment < plan->slice->base)
        return "a work tile outside of the slice";
    for (uint32_t r = 0; r < work_tile->queries; r++) {
        uint32_t query = plan->work_tile_queries[work_tile->first_query + r];
        struct plan_range visible = chunks_of(&plan->queries[query], window);
        uint32_t first = larger(visible.first, segment * SEGMENT_CHUNKS),
                 end = smaller(visible.end, (segment + 1) * SEGMENT_CHUNKS);
        if (work_tile->first_chunk != first || work_tile->first_chunk + work_tile->chunks != end)
            return "a work tile of a slice is not a query's segment";
        if (work_tile->partial + r != plan_slice_state(plan, query, segment))
            return "a work tile of a slice writes another query's state";
        seen[query]++;
    }
    return NULL;
}

/* Segments of a query that the slice has. */
static uint32_t slice_segments(const struct plan *plan, const struct plan_query *query, uint32_t window)
{
    struct plan_range seen = chunks_of(query, window);
    uint32_t first = larger(seen.first / SEGMENT_CHUNKS, plan->slice->first),
             end = smaller(ceiling(seen.end, SEGMENT_CHUNKS), plan->slice->end);
    return end > first ? end - first : 0;
}

static const char *slice_merge_fault(const struct plan *plan, const struct plan_merge *merge, uint32_t window)
{
    const struct plan_query *query = &plan->queries[merge->query];
    struct plan_range seen = chunks_of(query, window);
    uint32_t segment = seen.first / SEGMENT_CHUNKS;
    for (uint32_t i = 0; i < merge->count; i++, segment++) {
        const struct partial_ref *ref = &plan->merge_partials[merge->first + i];
        uint32_t stop = smaller((segment + 1) * SEGMENT_CHUNKS, seen.end);
        if (ref->level != PLAN_SEGMENT || ref->end_chunk != stop ||
            ref->partial != plan_slice_state(plan, merge->query, segment))
            return "a merge of a slice does not read the query's segments";
    }
    return segment * SEGMENT_CHUNKS >= seen.end ? NULL : "a query's partials do not reach its end";
}

static const char *slice_fault(const struct plan *plan, uint32_t window)
{
    const char *fault = NULL;
    uint32_t *seen = calloc(plan->query_count + 1, sizeof *seen), *merged = calloc(plan->query_count + 1, 4);
    if (!seen || !merged)
        abort();
    for (uint32_t i = 0; !fault && i < plan->work_tile_count; i++)
        fault = slice_work_tile_fault(plan, &plan->work_tiles[i], window, seen);
    for (uint32_t i = 0; !fault && i < plan->merge_count; i++) {
        merged[plan->merges[i].query]++;
        fault = slice_merge_fault(plan, &plan->merges[i], window);
    }
    for (uint32_t query = 0; !fault && query < plan->query_count; query++) {
        if (seen[query] != slice_segments(plan, &plan->queries[query], window))
            fault = "a slice does not compute each of its segments exactly once";
        else if (merged[query] != (uint32_t)plan_has_outputs(plan))
            fault = "a query is not merged by the last slice";
    }
    free(seen);
    free(merged);
    return fault;
}

/* ---- tiles and split groups ---------------------------------------------------------------------- */

static const char *width_fault(const struct plan *plan, const struct work_tile *work_tile)
{
    uint32_t count = plan->caps ? plan->caps->width_count : 0;
    if (work_tile->width >= (count ? count : 1))
        return "a work tile has a width that there is not";
    if (count && !plan_width_takes(&plan->caps->widths[work_tile->width], work_tile))
        return "a work tile's tiles do not take its chunks";
    return NULL;
}

static int is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Whether the tiles of a group fit the caps. */
static const char *group_size_fault(const struct tile_caps *caps, const struct work_tile *first)
{
    uint32_t members = 1;
    while (members < first->splits)
        members *= 2;
    if (first->splits < 2 || first->splits > caps->splits_max || first->splits > PLAN_SPLITS_MAX)
        return "a split group of so many work tiles cannot be";
    if (!is_power_of_two(first->cta_splits) || first->cta_splits > members ||
        members / first->cta_splits > caps->cluster_max)
        return "a split group has no room in a cluster";
    if (caps->width_count && first->cta_splits > plan_cta_splits_max(caps, first->width))
        return "a split group has no room in a thread block";
    return NULL;
}

/* Whether the work tiles from `i` on are a split group: all splits of one query, by themselves, in one
 * node. */
static const char *group_fault(const struct plan *plan, uint32_t i, const struct plan_merge *const *merge_of)
{
    const struct work_tile *work_tiles = &plan->work_tiles[i];
    const char *fault = plan->caps ? group_size_fault(plan->caps, work_tiles) : "a split group without caps";
    if (fault || work_tiles->splits > plan->work_tile_count - i)
        return fault ? fault : "a split group behind the last work tile";
    const struct plan_merge *merge = merge_of[plan->work_tile_queries[work_tiles->first_query]];
    if (!merge || !merge->is_split_group || merge->count != work_tiles->splits)
        return "a split group is not all splits of a query";
    const struct partial_ref *partials = plan->merge_partials + merge->first;
    uint32_t parent = plan_parent_chunks(partials[0].level);
    for (uint32_t k = 0; k < work_tiles->splits; k++) {
        if (work_tiles[k].queries != 1 || work_tiles[k].partial != partials[k].partial ||
            (k && work_tiles[k].splits) || work_tiles[k].width != work_tiles->width)
            return "a split group is not the splits of a query in their order";
        if (partials[k].level != partials[0].level ||
            work_tiles[k].first_chunk / parent != (partials[k].end_chunk - 1) / parent ||
            work_tiles[k].first_chunk / parent != work_tiles->first_chunk / parent)
            return "a split group is not of one node";
    }
    return NULL;
}

/* Widths and split groups of a plan that is right otherwise. */
static const char *tiles_fault(const struct plan *plan)
{
    const char *fault = NULL;
    uint32_t groups = 0, merged = 0;
    const struct plan_merge **merge_of = calloc(plan->query_count + 1, sizeof *merge_of);
    if (!merge_of)
        abort();
    for (uint32_t i = 0; i < plan->merge_count; i++) {
        merge_of[plan->merges[i].query] = &plan->merges[i];
        merged += plan->merges[i].is_split_group != 0;
    }
    for (uint32_t i = 0; !fault && i < plan->work_tile_count; i++) {
        fault = width_fault(plan, &plan->work_tiles[i]);
        if (!fault && plan->work_tiles[i].splits) {
            groups++;
            fault = group_fault(plan, i, merge_of);
        }
    }
    free(merge_of);
    return fault || groups == merged ? fault : "a merge is left out, and no split group computes it";
}

const char *plan_fault(const struct plan *plan, uint32_t window)
{
    const char *fault = NULL;
    if (plan->slice) {
        fault = slice_fault(plan, window);
        return fault ? fault : tiles_fault(plan);
    }
    uint32_t *finished = calloc(plan->query_count + 1, sizeof *finished);
    uint32_t *work_tile_of = malloc((plan->partial_count + 1) * sizeof *work_tile_of); /* by partial */
    if (!finished || !work_tile_of)
        abort();
    for (uint32_t i = 0; i < plan->partial_count; i++)
        work_tile_of[i] = PARTIAL_FREE;
    for (uint32_t i = 0; !fault && i < plan->work_tile_count; i++)
        fault = work_tile_fault(plan, i, window, work_tile_of, finished);
    for (uint32_t i = 0; !fault && i < plan->merge_count; i++) {
        finished[plan->merges[i].query]++;
        fault = merge_fault(plan, &plan->merges[i], work_tile_of, window);
    }
    for (uint32_t query = 0; !fault && query < plan->query_count; query++) {
        if (finished[query] != 1)
            fault = "a query is not finished exactly once";
    }
    for (uint32_t i = 0; !fault && i < plan->partial_count; i++) {
        if (work_tile_of[i] != PARTIAL_FREE && work_tile_of[i] != PARTIAL_MERGED)
            fault = "a partial that no merge reads";
    }
    free(finished);
    free(work_tile_of);
    return fault ? fault : tiles_fault(plan);
}
