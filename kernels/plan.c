/* SPDX-License-Identifier: Apache-2.0 */
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

/* A plan, or a slice, being checked. */
struct check {
    const struct plan *plan;
    uint32_t window;
    uint32_t first_partial, partials; /* that it may write and merge; in a slice: one a segment and query */
    uint32_t *work_tile_of;           /* [partials] which writes it, or one of these: */
    uint32_t *finished;               /* [queries] how often */
    const char *fault;                /* of the slice itself, or NULL */
};

#define PARTIAL_FREE     UINT32_MAX
#define PARTIAL_MERGED   (UINT32_MAX - 1)
#define PARTIAL_NOT_OURS (UINT32_MAX - 2) /* another slice's, or nothing to be seen */

static struct plan_range visible_chunks(const struct check *c, uint32_t query)
{
    return plan_visible_chunks(c->plan->queries[query].keys, c->window);
}

/* The chunks of a segment that a query sees. */
static struct plan_range segment_chunks(const struct check *c, uint32_t query, uint32_t segment)
{
    struct plan_range seen = visible_chunks(c, query);
    return (struct plan_range){larger(seen.first, segment * SEGMENT_CHUNKS),
                               smaller(seen.end, (segment + 1) * SEGMENT_CHUNKS)};
}

static struct check begin_check(const struct plan *plan, uint32_t window)
{
    const struct plan_slice *slice = plan->slice;
    struct check c = {.plan = plan, .window = window, .partials = plan->partial_count};
    uint32_t segments = 0;
    for (uint32_t query = 0; slice && query < plan->query_count; query++) {
        struct plan_range seen = visible_chunks(&c, query);
        segments = larger(segments, ceiling(seen.end, SEGMENT_CHUNKS));
        if (seen.first < seen.end && seen.first / SEGMENT_CHUNKS < slice->base)
            c.fault = "a query of a slice sees a segment before the slice's base";
    }
    if (slice) {
        c.first_partial = slice->states;
        c.partials = segments > slice->base ? (segments - slice->base) * plan->query_count : 0;
    }
    c.finished = calloc(plan->query_count + 1, sizeof *c.finished);
    c.work_tile_of = malloc((c.partials + 1) * sizeof *c.work_tile_of);
    if (!c.finished || !c.work_tile_of)
        abort();
    for (uint32_t i = 0; i < c.partials; i++) {
        c.work_tile_of[i] = PARTIAL_FREE;
        if (!slice)
            continue;
        uint32_t segment = slice->base + i / plan->query_count;
        struct plan_range chunks = segment_chunks(&c, i % plan->query_count, segment);
        if (segment < slice->first || segment >= slice->end || chunks.first >= chunks.end)
            c.work_tile_of[i] = PARTIAL_NOT_OURS;
    }
    return c;
}

/* The query that a partial belongs to, and the chunks that it covers. */
static uint32_t covered(const struct check *c, uint32_t partial, struct plan_range *chunks)
{
    const struct plan *plan = c->plan;
    if (plan->slice) {
        uint32_t query = partial % plan->query_count;
        *chunks = segment_chunks(c, query, plan->slice->base + partial / plan->query_count);
        return query;
    }
    const struct work_tile *work_tile = &plan->work_tiles[c->work_tile_of[partial]];
    *chunks = (struct plan_range){work_tile->first_chunk, work_tile->first_chunk + work_tile->chunks};
    return plan->work_tile_queries[work_tile->first_query + partial - work_tile->partial];
}

static const char *work_tile_fault(const struct check *c, uint32_t i)
{
    const struct plan *plan = c->plan;
    const struct work_tile *work_tile = &plan->work_tiles[i];
    uint32_t end = work_tile->first_chunk + work_tile->chunks;
    if (work_tile->queries == 0 || work_tile->chunks == 0)
        return "a work tile without queries or chunks";
    if (!plan_within_span(work_tile->first_chunk, end))
        return "a work tile crosses the end of a span";
    for (uint32_t r = 0; r < work_tile->queries; r++) {
        uint32_t query = plan->work_tile_queries[work_tile->first_query + r];
        struct plan_range seen = visible_chunks(c, query), chunks;
        if (work_tile->first_chunk < seen.first || end > seen.end)
            return "a work tile reads chunks that a query does not see";
        if (work_tile->partial == PLAN_NO_PARTIAL) {
            if (work_tile->first_chunk != seen.first || end != seen.end)
                return "a work tile finishes a query of which it reads only a part";
            c->finished[query]++;
            continue;
        }
        uint32_t partial = work_tile->partial + r - c->first_partial;
        if (partial >= c->partials)
            return "a partial out of range";
        if (c->work_tile_of[partial] != PARTIAL_FREE)
            return c->work_tile_of[partial] == PARTIAL_NOT_OURS ? "a work tile outside of the slice"
                                                                : "two work tiles write one partial";
        c->work_tile_of[partial] = i;
        if (covered(c, partial, &chunks) != query || chunks.first != work_tile->first_chunk ||
            chunks.end != end)
            return "a work tile of a slice is not the segment whose state it writes";
    }
    return NULL;
}

static const char *merge_fault(const struct check *c, const struct plan_merge *merge)
{
    struct plan_range seen = visible_chunks(c, merge->query), chunks;
    uint32_t at = seen.first;
    c->finished[merge->query]++;
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct partial_ref *ref = &c->plan->merge_partials[merge->first + i];
        uint32_t partial = ref->partial - c->first_partial;
        if (partial >= c->partials || c->work_tile_of[partial] == PARTIAL_FREE)
            return "a merge reads a partial that no work tile writes";
        if (c->work_tile_of[partial] == PARTIAL_MERGED)
            return "a partial is merged twice";
        if (covered(c, partial, &chunks) != merge->query)
            return "a merge reads another query's partial";
        if (chunks.first != at || ref->end_chunk != chunks.end || chunks.first >= chunks.end)
            return "a query's partials do not follow each other";
        if (ref->level > PLAN_SEGMENT || !partial_fits(ref->level, at, ref->end_chunk, seen))
            return "a partial's level does not fit its range";
        c->work_tile_of[partial] = PARTIAL_MERGED;
        at = ref->end_chunk;
    }
    if (merge->count == 0)
        return seen.end == 0 ? NULL : "a query with keys has no partials";
    return at == seen.end ? NULL : "a query's partials do not reach its end";
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

/* Whether the tiles of a group fit the caps. */
static const char *group_size_fault(const struct tile_caps *caps, const struct work_tile *first)
{
    uint32_t members = 1;
    while (members < first->splits)
        members *= 2;
    if (first->splits < 2 || first->splits > caps->splits_max || first->splits > PLAN_SPLITS_MAX)
        return "a split group of so many work tiles cannot be";
    if (first->cta_splits == 0 || (first->cta_splits & (first->cta_splits - 1)) != 0 ||
        first->cta_splits > members || members / first->cta_splits > caps->cluster_max)
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
            (k && work_tiles[k].splits) || work_tiles[k].late || work_tiles[k].width != work_tiles->width)
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
    struct check c = begin_check(plan, window);
    const char *fault = c.fault;
    for (uint32_t i = 0; !fault && i < plan->work_tile_count; i++)
        fault = work_tile_fault(&c, i);
    for (uint32_t i = 0; !fault && i < plan->merge_count; i++)
        fault = merge_fault(&c, &plan->merges[i]);
    for (uint32_t query = 0; !fault && query < plan->query_count; query++) {
        if (c.finished[query] != (uint32_t)plan_has_outputs(plan))
            fault = "a query is not finished exactly once";
    }
    for (uint32_t i = 0; !fault && i < c.partials; i++) {
        if (c.work_tile_of[i] == PARTIAL_FREE && plan->slice)
            fault = "a slice does not compute each of its segments";
        else if (c.work_tile_of[i] < PARTIAL_NOT_OURS && plan_has_outputs(plan))
            fault = "a partial that no merge reads";
    }
    free(c.finished);
    free(c.work_tile_of);
    return fault ? fault : tiles_fault(plan);
}
