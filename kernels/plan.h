/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - what a step computes, as plain data: the one structure that every backend executes.
 *
 * Attention of a query over its KV is a fixed tree of states (m, l, o), by absolute position alone:
 *
 *     tile 64  <  chunk 256  <  run 1 024  <  segment 4 096  <  span 65 536  <  the context
 *
 * each level a left fold of the one below. A tile is one softmax update; a chunk starts from the empty
 * state. Spans are folded by merges alone: no work tile crosses the end of one. So the bits of a query do not
 * depend on how a step is cut into work tiles, which queries share a work tile, or who computes it.
 *
 * Scores are numbers of f32, and may be infinite. In every backend and in the reference:
 *
 *   - A key that a query does not see is left out by the mask, never by arithmetic.
 *   - A sum beyond f32 is infinite; of terms of both signs that are, either way, or NaN, as their order has it.
 *     A score that is NaN counts as -inf.
 *   - A key with the largest score weighs 1, infinite or not; another one exp(s - m), which is 0 beside
 *     m = +inf. The same goes for the states of folds and merges, and for a sink.
 *   - Where every score is -inf, o = 0 and lse = -inf.
 *
 * So from finite q and k, and v below 2^97 (numeric_first_unsummable), no o is NaN or infinite, and each lies
 * within the values that its query sees.
 *
 * A work tile is a range of chunks of one block table and the queries that read it, for every KV head. Its
 * fold over the range becomes, per query, a partial state that a merge folds with the others, or, when
 * the range is all that the query sees, the query's output.
 *
 * So each query of a work tile has a partial of its own, or is finished: all work tiles together have at most
 * as many queries as the plan has queries and partials.
 *
 * A plan also says how a backend with tiles of several sizes is to compute its work tiles; another one
 * ignores that. Query head h of query r of a work tile, h counted within the group of its KV head, is its
 * number r * group + h: they are packed (PackGQA). Tiles are cut from them one after the other, each as wide
 * as what is left of them needs (plan_width_for()). A query whose splits are two to four work tiles of its
 * own may have these as a split group: they are computed side by side and folded where they are, without a
 * merge. Some work tiles may be late: they begin behind all others.
 *
 * A partial of a given level is folded into the node one level up: a chunk into its run, a run into its
 * segment, a segment into its span. It may stand for several nodes of its level only if it is the first
 * of them in the node above, since then it is the beginning of the left fold.
 *
 * A plan may compute a slice of its queries: some of their segments. Each leaves a partial for every query
 * that sees it, in states that outlive the step, and the last slice merges them:
 *
 *     segments   0 1 2 | 3 4 5 | 6 7         one query in three slices, a plan each
 *     states     0 1 2   3 4 5   6 7         merged by the last plan: 0..7 */
#ifndef KERNELS_PLAN_H
#define KERNELS_PLAN_H

#include <stdint.h>

enum {
    TILE_TOKENS = 64,
    CHUNK_TOKENS = 256,
    RUN_CHUNKS = 4,
    SEGMENT_CHUNKS = 16,
    SPAN_CHUNKS = 256,
    PLAN_QUERY_HEADS_MAX = 256, /* queries of a work tile times the group; a single query may have a larger
                                   group */
    PLAN_WIDTHS_MAX = 4,
    PLAN_SPLITS_MAX = 4 /* of a split group */
};

enum plan_level { PLAN_CHUNK, PLAN_RUN, PLAN_SEGMENT, PLAN_SPAN, PLAN_CONTEXT };

/* Chunks of a node of a level, up to the span; and of the node above it. */
static inline uint32_t plan_node_chunks(enum plan_level level)
{
    return level == PLAN_CHUNK     ? 1
           : level == PLAN_RUN     ? RUN_CHUNKS
           : level == PLAN_SEGMENT ? SEGMENT_CHUNKS
                                   : SPAN_CHUNKS;
}

static inline uint32_t plan_parent_chunks(enum plan_level level)
{
    return plan_node_chunks((enum plan_level)(level + 1));
}

struct tile_width {
    uint32_t query_heads;    /* of a tile, at most */
    uint32_t chunks;         /* it takes work tiles within a node of so many; 0: all work tiles */
    uint32_t cta_splits_max; /* splits of a group that one thread block computes, at most: a power of two */
};

/* What tiles a backend has. All 0: one size for whatever it is given, and no split groups. */
struct tile_caps {
    struct tile_width widths[PLAN_WIDTHS_MAX]; /* narrowest first, which takes all work tiles */
    uint32_t width_count;
    uint32_t splits_max;  /* of a group; 0: there are none */
    uint32_t cluster_max; /* thread blocks that fold a group: a cluster */
    uint32_t processors;  /* that thread blocks are spread over */
};

#define PLAN_NO_PARTIAL UINT32_MAX

/* A query token. Its index in plan.queries is its index in q, o and lse. */
struct plan_query {
    uint32_t table; /* block table that holds its keys */
    uint32_t keys;  /* it sees positions below this: its own position + 1, or 0 for a sequence without
                       tokens */
};

struct work_tile {
    uint32_t table; /* block table to read; all queries of the work tile have these blocks there */
    uint32_t first_chunk,
        chunks; /* the range, within a span; chunk c holds positions [c * 256, c * 256 + 256) */
    uint32_t first_query, queries; /* in plan.work_tile_queries */
    uint32_t partial; /* index of the first query's partial, the others follow; PLAN_NO_PARTIAL: outputs */
    uint8_t width;    /* of its tiles: index into tile_caps.widths, 0 where there are none */
    uint8_t splits;   /* this work tile and those behind it, so many, are a split group, in order of position;
                         0: it begins none */
    uint8_t cta_splits; /* of such a group: so many are one thread block, a power of two */
    uint8_t late;       /* 1: it begins behind all that are not, and is of no split group */
};

/* Fold partials into one query, in order of position. Every query that no work tile finishes has one merge;
 * with count 0 its output is that of the empty state. */
struct plan_merge {
    uint32_t query;
    uint32_t first, count;   /* in plan.merge_partials */
    uint32_t is_split_group; /* 1: only for backends that fold no split groups by themselves */
};

struct partial_ref {
    uint32_t partial;
    uint32_t end_chunk;    /* one past the last chunk that it covers */
    enum plan_level level; /* up to PLAN_SEGMENT */
};

/* Segments [first, end) of every query; the last slice has end UINT32_MAX, and only it has outputs. The
 * states of query r of the plan, one per segment, are states + (segment - base) * plan.query_count + r. All
 * slices of the same queries name the same base, at most the first segment that any of the queries sees. */
struct plan_slice {
    uint32_t first, end, base, states;
};

struct plan {
    const struct plan_query *queries;
    const struct work_tile *work_tiles;
    const uint32_t *work_tile_queries; /* indices into queries */
    const struct plan_merge *merges;
    const struct partial_ref *merge_partials;
    uint32_t query_count, work_tile_count, merge_count;
    uint32_t partial_count;         /* states of all query heads each, but for those of slices */
    const struct plan_slice *slice; /* NULL: all of every query */
    const struct tile_caps *caps;   /* for which widths and split groups were chosen; NULL: there are none */
    uint64_t version;               /* grows with every plan that is made in these arrays */
};

/* The state that a slice leaves for a query and a segment. */
static inline uint32_t plan_slice_state(const struct plan *plan, uint32_t query, uint32_t segment)
{
    return plan->slice->states + (segment - plan->slice->base) * plan->query_count + query;
}

/* Whether the plan has outputs: all but slices that others follow. */
static inline int plan_has_outputs(const struct plan *plan)
{
    return !plan->slice || plan->slice->end == UINT32_MAX;
}

/* Whether chunks [first, end) lie within a span, so that a work tile may have them. */
static inline int plan_within_span(uint32_t first, uint32_t end)
{
    return end <= first || first / SPAN_CHUNKS == (end - 1) / SPAN_CHUNKS;
}

/* The most spans that a query of so many keys sees: as many partial states it may need, if more than one. */
static inline uint32_t plan_spans(uint64_t keys)
{
    return (uint32_t)((keys + SPAN_CHUNKS * CHUNK_TOKENS - 1) / (SPAN_CHUNKS * CHUNK_TOKENS));
}

static inline uint32_t plan_widest(const struct tile_caps *caps)
{
    return caps->width_count ? caps->width_count - 1 : 0;
}

/* Splits of a group that one thread block may compute: its last query heads may go to any width up to its
 * own. */
static inline uint32_t plan_cta_splits_max(const struct tile_caps *caps, uint32_t width)
{
    uint32_t most = caps->widths[0].cta_splits_max;
    for (uint32_t i = 1; i <= width; i++)
        most = caps->widths[i].cta_splits_max < most ? caps->widths[i].cta_splits_max : most;
    return most;
}

/* Whether a tile of this width takes a work tile. */
static inline int plan_width_takes(const struct tile_width *width, const struct work_tile *work_tile)
{
    return width->chunks == 0 || work_tile->first_chunk / width->chunks ==
                                     (work_tile->first_chunk + work_tile->chunks - 1) / width->chunks;
}

/* The narrowest width of up to `widest` with room for so many query heads, or the widest, of those that take
 * each of `count` work tiles. */
static inline uint32_t plan_width_for(const struct tile_caps *caps, uint32_t widest,
                                      const struct work_tile *work_tiles, uint32_t count,
                                      uint32_t query_heads)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i <= widest && caps->widths[best].query_heads < query_heads; i++) {
        int takes = 1;
        for (uint32_t k = 0; k < count; k++)
            takes &= plan_width_takes(&caps->widths[i], &work_tiles[k]);
        best = takes ? i : best;
    }
    return best;
}

/* plan_fault(plan, window): why the plan does not compute every query, or its slice of every query, exactly
 * once for layers of this window, as a constant sentence; NULL if it does. For tests and the reference
 * backend; allocates. */
const char *plan_fault(const struct plan *plan, uint32_t window);

/* Positions, or chunks, [first, end); none if end <= first. */
struct plan_range {
    uint32_t first, end;
};

/* The positions that a query with `keys` sees under `window` (0: all): those j < keys with keys - 1 - j <
 * window. The reference, the backends, planners and plan_fault() all have the mask from here; block-sparse
 * attention leaves more out (geometry_sees). */
static inline struct plan_range plan_visible(uint32_t keys, uint32_t window)
{
    struct plan_range seen = {window == 0 || keys <= window ? 0 : keys - window, keys};
    return seen;
}

/* The chunks that have any of them. */
static inline struct plan_range plan_visible_chunks(uint32_t keys, uint32_t window)
{
    struct plan_range seen = plan_visible(keys, window);
    struct plan_range chunks = {seen.first / CHUNK_TOKENS,
                                seen.end / CHUNK_TOKENS + (seen.end % CHUNK_TOKENS != 0)};
    return chunks;
}

/* A size for splits of roughly so many chunks: whole nodes of the tree, since what is left of a node becomes splits of its children. Up to
 * twice as large, because a few large splits are better than many partial states. */
static inline uint32_t plan_whole_nodes(uint32_t chunks)
{
    if (chunks > SEGMENT_CHUNKS)
        return chunks;
    if (chunks >= SEGMENT_CHUNKS / 2)
        return SEGMENT_CHUNKS;
    return chunks >= RUN_CHUNKS / 2 ? RUN_CHUNKS : 1;
}

/* The end of a split of this level from chunk `at` on, of queries that begin at `first`, in a stretch up to
 * `end`; or `at`, if none can begin there. One of PLAN_CHUNK always can. */
static inline uint32_t plan_end_of_split(enum plan_level level, uint32_t split_chunks_max, uint32_t first,
                                         uint32_t at, uint32_t end, int to_context_end)
{
    uint32_t node = plan_node_chunks(level), parent = plan_parent_chunks(level),
             node_end = (at / node + 1) * node, parent_end = (at / parent + 1) * parent;
    int begins = at % node == 0 || at == first, ends = node_end <= end || to_context_end;
    if (node > 1 && (!begins || !ends || node > split_chunks_max))
        return at;
    int leads = at % parent == 0 || at == first;
    uint32_t stop = end < parent_end ? end : parent_end, split_end = node_end < end ? node_end : end;
    while (leads && split_end < stop && split_end + node - at <= split_chunks_max &&
           (split_end + node <= stop || to_context_end))
        split_end = split_end + node < stop ? split_end + node : stop;
    return split_end;
}

/* The level of the next split from chunk `at` on, and its end, for splits of about so many chunks at most. The queries begin at chunk `first`;
 * the stretch ends at `end`, where all its queries end if `to_context_end`. Inline, with levels that the compiler knows: else families of 8
 * take 19.5 us a step in bench_planner, not 18.6. */
static inline enum plan_level plan_next_split(uint32_t split_chunks_max, uint32_t first, uint32_t at,
                                              uint32_t end, int to_context_end, uint32_t *split_end)
{
    *split_end = plan_end_of_split(PLAN_SEGMENT, split_chunks_max, first, at, end, to_context_end);
    if (*split_end > at)
        return PLAN_SEGMENT;
    *split_end = plan_end_of_split(PLAN_RUN, split_chunks_max, first, at, end, to_context_end);
    if (*split_end > at)
        return PLAN_RUN;
    *split_end = plan_end_of_split(PLAN_CHUNK, split_chunks_max, first, at, end, to_context_end);
    return PLAN_CHUNK;
}

static inline int plan_sees(struct plan_range seen, uint32_t position)
{
    return position >= seen.first && position < seen.end;
}

/* plan_work_tile_keys(plan, work_tile, first, queries, window): the positions of the work tile's chunks that
 * any of its queries [first, first + queries) sees in layers of this window. Any thread; O(queries). */
struct plan_range plan_work_tile_keys(const struct plan *plan, const struct work_tile *work_tile,
                                      uint32_t first, uint32_t queries, uint32_t window);

/* plan_work_tile_tokens(plan, work_tile, window): tokens whose K and V the work tile reads in layers of this
 * window, from the beginning of a tile. Any thread; O(queries of the work tile). */
uint32_t plan_work_tile_tokens(const struct plan *plan, const struct work_tile *work_tile, uint32_t window);

#endif
