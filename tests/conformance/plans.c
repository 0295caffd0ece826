/* SPDX-License-Identifier: Apache-2.0 */
/* plans.c - see plans.h. Simple and quadratic; the real planner lives in scheduler/. */
#include "tests/conformance/plans.h"

#include "config/numbers.h"

#include <stdlib.h>
#include <string.h>

/* A range of one query's chunks, to be computed by some work tile. */
struct split {
    uint32_t query, first, end;
    enum plan_level level;
    uint32_t work_tile; /* once it has one */
    uint32_t partial;
};

struct maker {
    const struct plan_request *q;
    struct split *splits;
    uint32_t count, room, random;
};

/* The plan with its arrays behind it. */
struct owned_plan {
    struct plan plan;
    struct plan_query *queries;
    struct work_tile *work_tiles;
    uint32_t *work_tile_queries;
    struct plan_merge *merges;
    struct partial_ref *merge_partials;
};

static void *grow(void *array, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room)
        return array;
    *room = *room ? 2 * *room : 64;
    array = realloc(array, *room * size);
    if (!array)
        abort();
    return array;
}

static void *make_array(size_t n, size_t size)
{
    void *array = calloc(n + 1, size);
    if (!array)
        abort();
    return array;
}

static uint32_t random_below(struct maker *m, uint32_t n)
{
    m->random = m->random * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)m->random * n >> 32);
}

static void add_split(struct maker *m, uint32_t query, uint32_t first, uint32_t end, enum plan_level level)
{
    m->splits = grow(m->splits, m->count, &m->room, sizeof *m->splits);
    m->splits[m->count++] = (struct split){query, first, end, level, UINT32_MAX, 0};
}

/* The end of the node of `level` that chunk `at` lies in, for a query of `end` chunks; of a query: of its
 * span. */
static uint32_t node_end(enum plan_level level, uint32_t at, uint32_t end)
{
    uint32_t node = plan_node_chunks(level);
    return smaller((at / node + 1) * node, end);
}

/* A level at which a split may begin at chunk `at` of a query that begins at `first`: no node of it may
 * have begun before. */
static enum plan_level random_level(struct maker *m, uint32_t at, uint32_t first)
{
    if ((at % SEGMENT_CHUNKS == 0 || at == first) && random_below(m, 3) == 0)
        return PLAN_SEGMENT;
    if ((at % RUN_CHUNKS == 0 || at == first) && random_below(m, 2) == 0)
        return PLAN_RUN;
    return PLAN_CHUNK;
}

/* Sometimes let a split that begins its parent node go on over more nodes of its level: a left fold
 * that is continued later. */
static uint32_t extend(struct maker *m, enum plan_level level, uint32_t at, uint32_t first, uint32_t end,
                       uint32_t query_end)
{
    uint32_t parent = plan_parent_chunks(level);
    bool leads = at == first || at % parent == 0;
    while (leads && end < query_end && end / parent == at / parent && random_below(m, 2))
        end = node_end(level, end, query_end);
    return end;
}

static void cut_query(struct maker *m, uint32_t query)
{
    static const enum plan_level levels[] = {PLAN_CONTEXT, PLAN_SEGMENT, PLAN_RUN, PLAN_CHUNK};
    struct plan_range seen = plan_visible_chunks(m->q->queries[query].keys, m->q->window);
    uint32_t first = seen.first, query_end = seen.end, end;
    for (uint32_t at = first; at < query_end; at = end) {
        enum plan_level level = m->q->cut == CUT_RANDOM ? random_level(m, at, first) : levels[m->q->cut];
        end = node_end(level, at, query_end);
        if (m->q->cut == CUT_RANDOM)
            end = extend(m, level, at, first, end, query_end);
        if (level == PLAN_CONTEXT && !plan_within_span(first, query_end))
            level = PLAN_SEGMENT; /* the segments of a span */
        add_split(m, query, at, end, level);
    }
}

/* Whether two splits of the same range read the same blocks, as far as both see keys. */
static bool same_blocks(const struct plan_request *q, const struct split *a, const struct split *b)
{
    const struct plan_query *x = &q->queries[a->query], *y = &q->queries[b->query];
    uint32_t end = smaller(smaller(x->keys, y->keys), a->end * CHUNK_TOKENS);
    for (uint32_t block = a->first * CHUNK_TOKENS / q->block_size; block * q->block_size < end; block++) {
        if (q->tables[(size_t)x->table * q->stride + block] !=
            q->tables[(size_t)y->table * q->stride + block])
            return false;
    }
    return true;
}

/* Put `leader` and every later split that may share with it into work tile `work_tile`; returns how many
 * queries it has. */
static uint32_t fill_work_tile(struct maker *m, struct owned_plan *p, uint32_t leader, uint32_t work_tile,
                               uint32_t next_query)
{
    struct work_tile *to = &p->work_tiles[work_tile];
    uint32_t rows_max = m->q->group > PLAN_QUERY_HEADS_MAX ? 1 : PLAN_QUERY_HEADS_MAX / m->q->group;
    const struct split *first = &m->splits[leader];
    bool final = first->level == PLAN_CONTEXT;
    *to = (struct work_tile){.first_chunk = first->first,
                             .chunks = first->end - first->first,
                             .first_query = next_query,
                             .partial = final ? PLAN_NO_PARTIAL : p->plan.partial_count};
    for (uint32_t i = leader; i < m->count && to->queries < rows_max; i++) {
        struct split *split = &m->splits[i];
        bool joins = i == leader || (m->q->share && split->work_tile == UINT32_MAX &&
                                     split->first == first->first && split->end == first->end &&
                                     split->level == first->level && same_blocks(m->q, first, split));
        /* all must agree with the longest one, whose table is read */
        for (uint32_t k = 0; joins && k < to->queries; k++) {
            const struct split other = {
                .query = p->work_tile_queries[next_query + k], .first = first->first, .end = first->end};
            joins = same_blocks(m->q, &other, split);
        }
        if (!joins)
            continue;
        split->work_tile = work_tile;
        split->partial = final ? 0 : p->plan.partial_count++;
        p->work_tile_queries[next_query + to->queries++] = split->query;
    }
    uint32_t longest = 0; /* its table names every block that any of the queries reads */
    for (uint32_t k = 0; k < to->queries; k++) {
        const struct plan_query *query = &m->q->queries[p->work_tile_queries[next_query + k]];
        if (query->keys >= longest) {
            longest = query->keys;
            to->table = query->table;
        }
    }
    return to->queries;
}

/* Of up to `widest`, a width that takes all of `count` work tiles: at random, or as the columns need it. */
static uint32_t choose_width(struct maker *m, uint32_t widest, const struct work_tile *work_tiles,
                             uint32_t count, uint32_t columns)
{
    if (m->q->cut == CUT_RANDOM)
        widest = random_below(m, widest + 1);
    return plan_width_for(m->q->caps, widest, work_tiles, count,
                          m->q->cut == CUT_RANDOM ? UINT32_MAX : columns);
}

/* Let the splits of a query be a split group, where they can. */
static bool make_group(struct maker *m, struct owned_plan *p, const struct plan_merge *merge)
{
    const struct tile_caps *caps = m->q->caps;
    const struct partial_ref *partials = p->merge_partials + merge->first;
    uint32_t first = 0, parent, members = 1, cta_splits = 1;
    if (merge->count < 2 || merge->count > caps->splits_max ||
        (m->q->cut == CUT_RANDOM && random_below(m, 4) == 0))
        return false;
    while (first < p->plan.work_tile_count && p->work_tiles[first].partial != partials[0].partial)
        first++;
    if (first == p->plan.work_tile_count) /* it is of several queries */
        return false;
    struct work_tile *work_tiles = &p->work_tiles[first];
    parent = plan_parent_chunks(partials[0].level);
    for (uint32_t i = 0; i < merge->count; i++) {
        if (first + i >= p->plan.work_tile_count || work_tiles[i].partial != partials[i].partial ||
            work_tiles[i].queries != 1 || partials[i].level != partials[0].level ||
            work_tiles[i].first_chunk / parent != work_tiles->first_chunk / parent ||
            (partials[i].end_chunk - 1) / parent != work_tiles->first_chunk / parent)
            return false;
    }
    while (members < merge->count)
        members *= 2;
    uint32_t width = choose_width(m, plan_widest(caps), work_tiles, merge->count, m->q->group),
             most = smaller(members, plan_cta_splits_max(caps, width));
    while (members / cta_splits > caps->cluster_max || (2 * cta_splits <= most && random_below(m, 2)))
        cta_splits *= 2;
    if (cta_splits > most)
        return false;
    work_tiles->splits = (uint8_t)merge->count;
    work_tiles->cta_splits = (uint8_t)cta_splits;
    for (uint32_t i = 0; i < merge->count; i++)
        work_tiles[i].width = (uint8_t)width;
    return true;
}

struct plan *plans_make(const struct plan_request *q)
{
    struct maker m = {.q = q, .random = q->seed};
    uint32_t next_query = 0, partials = 0;
    struct owned_plan *p = make_array(1, sizeof *p);
    for (uint32_t query = 0; query < q->query_count; query++)
        cut_query(&m, query);
    p->queries = make_array(q->query_count, sizeof *p->queries);
    memcpy(p->queries, q->queries, q->query_count * sizeof *p->queries);
    p->work_tiles = make_array(m.count, sizeof *p->work_tiles);
    p->work_tile_queries = make_array(m.count, sizeof *p->work_tile_queries);
    p->merges = make_array(q->query_count, sizeof *p->merges);
    p->merge_partials = make_array(m.count, sizeof *p->merge_partials);

    for (uint32_t i = 0; i < m.count; i++) {
        if (m.splits[i].work_tile != UINT32_MAX)
            continue;
        struct work_tile *work_tile = &p->work_tiles[p->plan.work_tile_count];
        next_query += fill_work_tile(&m, p, i, p->plan.work_tile_count++, next_query);
        work_tile->width =
            (uint8_t)choose_width(&m, plan_widest(q->caps), work_tile, 1, work_tile->queries * q->group);
    }
    for (uint32_t query = 0, i = 0; query < q->query_count; query++) {
        struct plan_merge merge = {.query = query, .first = partials};
        for (; i < m.count && m.splits[i].query == query; i++) {
            if (m.splits[i].level != PLAN_CONTEXT)
                p->merge_partials[partials++] =
                    (struct partial_ref){m.splits[i].partial, m.splits[i].end, m.splits[i].level};
        }
        merge.count = partials - merge.first;
        merge.is_split_group = make_group(&m, p, &merge);
        if (merge.count || q->queries[query].keys == 0)
            p->merges[p->plan.merge_count++] = merge;
    }
    for (uint32_t i = 0, of_group = 0; i < p->plan.work_tile_count; i++) {
        of_group = p->work_tiles[i].splits ? p->work_tiles[i].splits : of_group ? of_group - 1 : 0;
        p->work_tiles[i].late = of_group == 0 && q->cut == CUT_RANDOM && random_below(&m, 4) == 0;
    }
    free(m.splits);
    p->plan.queries = p->queries;
    p->plan.query_count = q->query_count;
    p->plan.work_tiles = p->work_tiles;
    p->plan.work_tile_queries = p->work_tile_queries;
    p->plan.merges = p->merges;
    p->plan.merge_partials = p->merge_partials;
    p->plan.caps = q->caps;
    return &p->plan;
}

void plans_free(struct plan *plan)
{
    struct owned_plan *p = (struct owned_plan *)plan;
    free(p->queries);
    free(p->work_tiles);
    free(p->work_tile_queries);
    free(p->merges);
    free(p->merge_partials);
    free(p);
}
