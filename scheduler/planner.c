/* SPDX-License-Identifier: Apache-2.0 */
/* planner.c - see planner.h.
 *
 * Queries sorted by their block tables, and between neighbours the number of chunks that they have in
 * common:
 *
 *   order    query 4  query 0  query 7  query 2
 *   common       6        6        2             in chunks
 *
 * Queries that read alone come last, and have nothing in common with anybody.
 *
 * emit_range() takes a range of the order that has everything before chunk c in common. The smallest
 * `common` inside the range is where it branches: the chunks up to there become work tiles of all queries of
 * the range, and each part goes on alone.
 *
 * A stretch of chunks is cut into splits at the boundaries of the tree in plan.h. A split may cover
 * several nodes of its level only where it begins the node above (plan.h says why); split_chunks_max, from
 * the amount of work, says how large one may be, and the backend's tiles for many query heads may take no
 * more than a node. Work is counted in chunks of up to NARROW_QUERY_HEADS query heads, which cost what
 * reading them costs; what more queries do with them is computation, and counts by query heads.
 *
 * Where there are more splits than tasks, queries that read alone are cut further (lone_split()): otherwise
 * the last of them would run by themselves.
 *
 * Then each work tile gets the width of its tiles, and where a query was cut for want of other work into few
 * work tiles of its own, these become a split group, if there is room for it on a processor or in a cluster.
 *
 * Where work tiles of many query heads fill the processors once, and then others wait for memory, a part of the
 * former is cut into runs that begin behind the latter (make_some_late()).
 *
 * When partials run out, the plan is made again with larger splits; and where that is not enough, queries
 * share less (share_less()). A query that reads alone needs none, or one for each of its spans, if it has
 * several: there are as many (planner_partials_least()), so there is always a plan that fits. */
#include "scheduler/planner.h"

#include "config/numbers.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPLITS_PER_QUERY = 8,    /* beyond it splits become larger for a step */
    COMPARED_IDS = 64,       /* entries of loose tables compared at a time */
    SIZE_CLASSES = 32,       /* work tiles are handed out largest class first */
    LONE_SPLITS = 4,         /* of a task's share: so that the last ones end together */
    NARROW_QUERY_HEADS = 32, /* what up to so many query heads cost is reading */
    WHOLE_QUERY_HEADS =
        2 * PLAN_QUERY_HEADS_MAX, /* from so many on, query tokens of a sequence may be computed whole */
    TOKENS_BESIDE = 1700          /* of a processor, whose reading takes as long as a late run (H200) */
};

#define NO_SPLIT  UINT32_MAX
#define NO_PREFIX UINT32_MAX

static const uint64_t CHUNK_PRICE = 4096; /* what it costs to read one, in the unit of planner.price */

/* A query as the planner keeps it between steps. */
struct entry {
    uint32_t query; /* index in this step */
    uint32_t table, keys;
    uint64_t version;
    uint32_t common; /* leading blocks in common with the next one in the order */
    enum sharing sharing;
};

/* A split of one query, in a list per query. */
struct split {
    uint32_t partial, end_chunk, next;
    uint32_t alone; /* the work tile, if it is of this query only; else NO_SPLIT */
    enum plan_level level;
};

/* Two choices of what queries share: the last one that fits, and the next one, that shares more. */
enum { FITS, MORE, CHOICES };

/* Queries [a, b) of the order that have their chunks before `end` in common. Below it are those that go on
 * together, in their order; a leaf has none, its queries all end there. */
struct prefix {
    uint32_t a, b, first, end; /* the queries begin at chunk `first` */
    uint32_t child, next;      /* the first one below it, the next one beside it; NO_PREFIX */
    uint32_t stop[CHOICES];    /* they read together up to there, if those above it stop before */
    uint32_t states[CHOICES];  /* of a leaf: partial states of each of its queries */
};

struct planner {
    struct planner_options o;
    uint32_t work_tile_queries_max, room; /* work tile queries that fit; that the plan may have
                                             (SPLITS_PER_QUERY) */
    const uint32_t *tables;               /* of the current call */
    uint32_t stride;
    uint32_t split_chunks_max; /* chunks of a split, roughly at most */
    uint32_t lone_max;         /* queries of more chunks that read alone are cut further (lone_split()) */
    bool within_nodes;         /* work tiles lie within the nodes that the tiles for their query heads take */
    bool overflow;

    struct entry *entries, *scratch; /* [queries_max] in order */
    uint32_t *place;                 /* [queries_max] by query of the step: its index in entries */
    uint32_t entry_count;
    uint32_t sharing_count; /* the first ones, that do not read alone */
    uint32_t grouped_count; /* of the current call: those, or 0 if grouping them does not pay */

    struct prefix *prefixes; /* [2 * queries_max] a tree; [0] holds all queries */
    uint32_t prefix_count;
    uint64_t price; /* of a partial state, against CHUNK_PRICE */

    struct plan plan;
    struct planner_query *asked; /* [queries_max] of the plan; */
    uint32_t asked_count;        /* UINT32_MAX: it is of a slice, or there is none */
    struct plan_slice slice;
    struct plan_query *queries;
    struct work_tile *work_tiles, *sorted;
    uint32_t *work_tile_queries;
    struct plan_merge *merges;
    struct partial_ref *merge_partials;
    struct split *splits;
    uint32_t *first_split, *last_split; /* [queries_max] */
    uint32_t work_tile_query_count, split_count;
};

/* ---- small helpers ------------------------------------------------------------------------------- */

/* The chunks that a query with so many keys sees. */
static struct plan_range chunks_of(const struct planner *p, uint32_t keys)
{
    return plan_visible_chunks(keys, p->o.window);
}

uint32_t planner_partials_least(uint32_t queries, uint64_t keys)
{
    return plan_spans(keys) > 1 ? queries * plan_spans(keys) : 0;
}

uint32_t planner_queries_of_work_tile(uint32_t group)
{
    return larger(1, PLAN_QUERY_HEADS_MAX / group);
}

/* Leading entries that x[n] and y[n] have in common, looked at one after the other. */
static uint32_t common_from_front(const uint32_t *x, const uint32_t *y, uint32_t n)
{
    uint32_t at = 0;
    while (n - at >= COMPARED_IDS && memcmp(x + at, y + at, COMPARED_IDS * sizeof *x) == 0)
        at += COMPARED_IDS;
    while (at < n && x[at] == y[at])
        at++;
    return at;
}

/* Leading blocks that two tables have in common, of the first `n`. Sequences share from the front only,
 * so equality at an index implies equality before it, and a bisection finds the end. A caller's own
 * tables may agree after they differ: a pair with one of those is compared from the front. */
static uint32_t common_blocks(const struct planner *p, uint32_t a, uint32_t b, uint32_t n)
{
    const uint32_t *x = p->tables + (uint64_t)a * p->stride, *y = p->tables + (uint64_t)b * p->stride;
    uint32_t low = 0, high = n; /* equal below low, different from high on */
    if (a == b)
        return n;
    if (larger(a, b) >= p->o.first_loose_table)
        return common_from_front(x, y, n);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (x[middle] == y[middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- the order of the queries -------------------------------------------------------------------- */

/* Whether `a` comes before `b`: by the first block in which their tables differ, then by length. */
static bool before(const struct planner *p, const struct entry *a, const struct entry *b)
{
    uint32_t n = ceiling(smaller(a->keys, b->keys), p->o.block_size);
    uint32_t common = common_blocks(p, a->table, b->table, n);
    if (common == n)
        return a->keys < b->keys;
    return p->tables[(uint64_t)a->table * p->stride + common] <
           p->tables[(uint64_t)b->table * p->stride + common];
}

/* Merge sort of p->entries, by way of p->scratch. */
static void sort_entries(struct planner *p)
{
    uint32_t n = p->entry_count;
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t start = 0; start < n; start += 2 * width) {
            uint32_t middle = smaller(start + width, n), end = smaller(start + 2 * width, n);
            uint32_t left = start, right = middle;
            for (uint32_t to = start; to < end; to++) {
                bool take_right =
                    left == middle || (right < end && before(p, &p->entries[right], &p->entries[left]));
                p->scratch[to] = p->entries[take_right ? right++ : left++];
            }
        }
        struct entry *swap = p->entries;
        p->entries = p->scratch;
        p->scratch = swap;
    }
}

/* Whether the queries are those of the last step, in the same order, grown at most. Their keys are updated
 * on the way. */
static bool same_queries(struct planner *p, const struct planner_query *queries, uint32_t n)
{
    if (n != p->entry_count)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &p->entries[p->place[i]];
        if (e->table != queries[i].table || e->version != queries[i].version ||
            e->sharing != queries[i].sharing || e->keys > queries[i].keys)
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        p->entries[p->place[i]].keys = queries[i].keys;
    return true;
}

/* Whether every query that its neighbour holds entirely still comes before the longer one, after queries
 * have grown. */
static bool still_nested(const struct planner *p)
{
    for (uint32_t i = 0; i + 1 < p->sharing_count; i++) {
        const struct entry *e = &p->entries[i];
        bool within = e->table == e[1].table || e[1].keys <= (uint64_t)e->common * p->o.block_size;
        if (e->keys > e[1].keys && within)
            return false;
    }
    return true;
}

/* Add those of the queries that read alone, or all others, behind what is in the order. */
static void add_entries(struct planner *p, const struct planner_query *queries, uint32_t n, bool alone)
{
    for (uint32_t i = 0; i < n; i++) {
        if ((queries[i].sharing == SHARING_OFF) == alone)
            p->entries[p->entry_count++] = (struct entry){.query = i,
                                                          .table = queries[i].table,
                                                          .keys = queries[i].keys,
                                                          .version = queries[i].version,
                                                          .sharing = queries[i].sharing};
    }
}

static void order_queries(struct planner *p, const struct planner_query *queries, uint32_t n)
{
    if (same_queries(p, queries, n) && still_nested(p))
        return;
    p->entry_count = 0;
    add_entries(p, queries, n, false);
    sort_entries(p);
    p->sharing_count = p->entry_count;
    add_entries(p, queries, n, true);
    for (uint32_t i = 0; i < n; i++) {
        struct entry *e = &p->entries[i];
        p->place[e->query] = i;
        if (i + 1 < p->sharing_count)
            e->common =
                common_blocks(p, e->table, e[1].table, ceiling(smaller(e->keys, e[1].keys), p->o.block_size));
    }
}

/* Chunks that neighbours in the order can read together: whole ones inside the common blocks; and all
 * of the first one's when it is not longer than the second and has all its keys in the common blocks.
 * So every query of a range reads what any later query of the range has there, whichever of them is the
 * longest. */
static uint32_t common_chunks(const struct planner *p, uint32_t at)
{
    const struct entry *e = &p->entries[at];
    bool apart = e->common == 0 && e->table != e[1].table;
    if (at + 1 >= p->grouped_count || apart) /* first: 256 of them take 5.5 us in bench_planner, not 6.9 */
        return 0;
    struct plan_range seen = chunks_of(p, e->keys), next = chunks_of(p, e[1].keys);
    if (seen.first > 0 || next.first > 0)
        return 0; /* windows begin at different chunks */
    uint64_t tokens = (uint64_t)e->common * p->o.block_size;
    uint32_t ends = smaller(seen.end, next.end);
    if (e->keys <= e[1].keys && (e->table == e[1].table || e->keys <= tokens))
        return ends;
    return smaller(ends, (uint32_t)(tokens / CHUNK_TOKENS));
}

/* ---- splits and work tiles ----------------------------------------------------------------------- */

/* Add one work tile over chunks [first, end) for the queries [a, b) of the order, whose partial states are
 * those from `partial` on. Inline: else families of 256 take 17.8 us a step in bench_planner, not 17.0. */
static inline void add_work_tile(struct planner *p, uint32_t a, uint32_t b, uint32_t first, uint32_t end,
                                 uint32_t partial)
{
    const struct entry *entries = &p->entries[a], *longest = entries;
    uint32_t *work_tile_queries = &p->work_tile_queries[p->work_tile_query_count], n = b - a;
    for (uint32_t i = 0; i < n; i++) {
        longest = entries[i].keys > longest->keys ? &entries[i] : longest;
        work_tile_queries[i] = entries[i].query;
    }
    struct work_tile *work_tile = &p->work_tiles[p->plan.work_tile_count++];
    *work_tile =
        (struct work_tile){.table = longest->table, /* it names every block that any of the queries reads */
                           .first_chunk = first,
                           .chunks = end - first,
                           .first_query = p->work_tile_query_count,
                           .queries = n,
                           .partial = partial};
    work_tile->width =
        (uint8_t)plan_width_for(&p->o.caps, plan_widest(&p->o.caps), work_tile, 1, n * p->o.group);
    p->work_tile_query_count += n;
}

/* Add to each of the queries [a, b) of the order a split that ends at chunk `end`, with the next partials: of
 * the latest work tile. */
static void add_splits(struct planner *p, uint32_t a, uint32_t b, uint32_t end, enum plan_level level)
{
    uint32_t split = p->split_count, partial = p->plan.partial_count,
             alone = b - a == 1 ? p->plan.work_tile_count - 1 : NO_SPLIT;
    p->split_count += b - a;
    p->plan.partial_count += b - a;
    for (uint32_t i = a; i < b; i++, split++) {
        uint32_t query = p->entries[i].query;
        p->splits[split] = (struct split){partial++, end, NO_SPLIT, alone, level};
        if (p->first_split[query] == NO_SPLIT)
            p->first_split[query] = split;
        else
            p->splits[p->last_split[query]].next = split;
        p->last_split[query] = split;
    }
}

/* Add as many work tiles over chunks [first, end) as the query heads of [a, b) need, and their splits; final
 * ones have none. */
static void add_work_tiles(struct planner *p, uint32_t a, uint32_t b, uint32_t first, uint32_t end,
                           enum plan_level level, bool final)
{
    uint32_t queries = planner_queries_of_work_tile(p->o.group);
    for (uint32_t next; a < b; a = next) {
        next = smaller(a + queries, b);
        if (p->work_tile_query_count + (next - a) > p->room ||
            (!final && p->plan.partial_count + (next - a) > p->o.partials_max)) {
            p->overflow = true;
            continue;
        }
        add_work_tile(p, a, next, first, end, final ? PLAN_NO_PARTIAL : p->plan.partial_count);
        if (!final)
            add_splits(p, a, next, end, level);
    }
}

/* Chunks that the tiles for so many query heads take. */
static uint32_t chunks_of_tile(const struct planner *p, uint64_t query_heads)
{
    const struct tile_width *widths = p->o.caps.widths;
    uint32_t i = 0;
    while (i < plan_widest(&p->o.caps) && widths[i].query_heads < query_heads)
        i++;
    return widths[i].chunks ? widths[i].chunks : UINT32_MAX;
}

/* Chunks of a split of a query that reads [from, end) alone. If it is to be cut, then, where that is all it
 * reads, into a split group, which needs no merge; otherwise into segments. */
static uint32_t lone_split(const struct planner *p, uint32_t from, uint32_t end, bool is_all)
{
    if (end - from <= p->lone_max || end - from < RUN_CHUNKS)
        return UINT32_MAX;
    for (enum plan_level level = PLAN_CHUNK; is_all && level <= PLAN_SEGMENT; level++) {
        uint32_t node = plan_node_chunks(level), parent = plan_parent_chunks(level);
        if (from / parent == (end - 1) / parent && (end - 1) / node - from / node < p->o.caps.splits_max)
            return node;
    }
    return larger(p->lone_max, SEGMENT_CHUNKS);
}

/* Chunks [from, end) of the queries [a, b) of the order, which read the same blocks there. */
static void emit_stretch(struct planner *p, uint32_t a, uint32_t b, uint32_t from, uint32_t end)
{
    uint32_t first = chunks_of(p, p->entries[a].keys).first, split_chunks_max = p->split_chunks_max;
    bool to_context_end = true;
    if (p->within_nodes)
        split_chunks_max = smaller(split_chunks_max, chunks_of_tile(p, (uint64_t)(b - a) * p->o.group));
    for (uint32_t i = a; i < b; i++)
        to_context_end &= chunks_of(p, p->entries[i].keys).end == end;
    if (b - a == 1)
        split_chunks_max =
            smaller(split_chunks_max, lone_split(p, from, end, from == first && to_context_end));
    if (from == first && to_context_end && end - from <= split_chunks_max && plan_within_span(from, end)) {
        add_work_tiles(p, a, b, from, end, PLAN_CONTEXT, true);
        return;
    }
    for (uint32_t at = from, split_end; at < end; at = split_end) {
        enum plan_level level = plan_next_split(split_chunks_max, first, at, end, to_context_end, &split_end);
        add_work_tiles(p, a, b, at, split_end, level, false);
    }
}

/* Whether the queries [a, b) of the order, of which nothing has been emitted, are query tokens of one
 * sequence that wait for tensor cores and not for memory: those that end in the same chunk become work tiles
 * of their own, which finish them. Chunks that are read again cost nothing then, and partial states would: of
 * 4 x 512 query tokens behind 8 192 others they took 100 of 740 us (H200). */
static bool are_whole(const struct planner *p, uint32_t a, uint32_t b, uint32_t from)
{
    const struct entry *first = &p->entries[a], *last = &p->entries[b - 1];
    struct plan_range seen = chunks_of(p, last->keys);
    uint32_t end = seen.end;
    if (p->o.caps.width_count == 0 || first->table != last->table || first->keys == 0)
        return false;
    if (chunks_of(p, first->keys).first != from || seen.first != from)
        return false;
    /* a thread block has more columns than splits are made for */
    if ((end - from) / 2 > p->split_chunks_max || !plan_within_span(from, end) ||
        (p->within_nodes && end - from > chunks_of_tile(p, PLAN_QUERY_HEADS_MAX)))
        return false;
    for (uint32_t i = a; i + 1 < b; i++) {
        if (p->entries[i].table != last->table || common_chunks(p, i) < chunks_of(p, p->entries[i].keys).end)
            return false;
    }
    return true;
}

static void emit_whole(struct planner *p, uint32_t a, uint32_t b, uint32_t from)
{
    for (uint32_t start = a, i = a + 1; i <= b; i++) {
        uint32_t end = chunks_of(p, p->entries[start].keys).end;
        if (i < b && chunks_of(p, p->entries[i].keys).end == end)
            continue;
        add_work_tiles(p, start, i, from, end, PLAN_CONTEXT, true);
        start = i;
    }
}

/* The queries [a, b) of the order from chunk `from` on, before which all has been emitted. */
static void emit_range(struct planner *p, uint32_t a, uint32_t b, uint32_t from)
{
    if (b - a == 1) {
        struct plan_range seen = chunks_of(p, p->entries[a].keys);
        if (larger(from, seen.first) < seen.end)
            emit_stretch(p, a, b, larger(from, seen.first), seen.end);
        return;
    }
    if ((b - a) * p->o.group >= WHOLE_QUERY_HEADS && are_whole(p, a, b, from)) {
        emit_whole(p, a, b, from);
        return;
    }
    uint32_t common = UINT32_MAX;
    for (uint32_t i = a; i + 1 < b; i++)
        common = smaller(common, common_chunks(p, i));
    if (common > from)
        emit_stretch(p, a, b, from, common);
    for (uint32_t start = a, i = a; i < b; i++) {
        if (i + 1 < b && common_chunks(p, i) > common)
            continue;
        emit_range(p, start, i + 1, larger(from, common));
        start = i + 1;
    }
}

static void begin_plan(struct planner *p, uint32_t n)
{
    p->plan.work_tile_count = p->plan.merge_count = p->plan.partial_count = 0;
    p->work_tile_query_count = p->split_count = 0;
    p->overflow = false;
    memset(p->first_split, 0xff, n * sizeof *p->first_split);
}

/* ---- when partial states are few ----------------------------------------------------------------- */

/* Add the queries [a, b) of the order and all below them to the tree. Returns their index. */
static uint32_t add_prefix(struct planner *p, uint32_t a, uint32_t b)
{
    uint32_t index = p->prefix_count++, end = chunks_of(p, p->entries[a].keys).end, leaf_end = a;
    struct prefix *v = &p->prefixes[index];
    for (uint32_t i = a; i + 1 < b; i++)
        end = smaller(end, common_chunks(p, i));
    uint32_t first = b - a == 1 ? chunks_of(p, p->entries[a].keys).first : 0; /* 0 where queries share */
    *v = (struct prefix){.a = a, .b = b, .first = first, .end = end, .child = NO_PREFIX, .next = NO_PREFIX};
    while (leaf_end < b && chunks_of(p, p->entries[leaf_end].keys).end == end)
        leaf_end++; /* queries that end there come before longer ones */
    if (leaf_end == b) {
        v->stop[MORE] = end;
        return index;
    }
    uint32_t *link = &v->child;
    for (uint32_t start = a, i = a; i < b; i++) {
        if (i + 1 < b && i + 1 != leaf_end && (i < leaf_end || common_chunks(p, i) > end))
            continue;
        *link = add_prefix(p, start, i + 1);
        link = &p->prefixes[*link].next;
        start = i + 1;
    }
    return index;
}

/* Partial states of a query that begins at chunk `first` for its chunks [from, end). */
static uint32_t states_of(uint32_t first, uint32_t from, uint32_t end, bool to_context_end)
{
    uint32_t count = 0;
    if (from == first && to_context_end && plan_within_span(from, end))
        return 0;
    for (; from < end; count++)
        (void)plan_next_split(UINT32_MAX, first, from, end, to_context_end, &from);
    return count;
}

/* What it costs that the queries of a prefix read chunks [from, stop) together. */
static uint64_t cost_of(const struct planner *p, const struct prefix *v, uint32_t from, uint32_t stop)
{
    uint32_t queries = v->b - v->a;
    from = larger(from, v->first);
    if (stop <= from)
        return 0;
    return (uint64_t)ceiling(queries, planner_queries_of_work_tile(p->o.group)) * (stop - from) *
               CHUNK_PRICE +
           p->price * queries * states_of(v->first, from, stop, v->child == NO_PREFIX);
}

/* The same for what they read next from chunk `from` on, by the choice MORE: together, or by parts. */
static uint64_t cost_from(const struct planner *p, const struct prefix *v, uint32_t from)
{
    uint64_t cost = 0;
    if (v->stop[MORE] > from)
        return cost_of(p, v, from, v->stop[MORE]);
    for (uint32_t c = v->child; c != NO_PREFIX; c = p->prefixes[c].next)
        cost += cost_from(p, &p->prefixes[c], from);
    return cost;
}

/* Choose how far the queries of a prefix, which read alone from chunk `from` on, read together: not at
 * all, as far as they can, or to where a run, a segment or a span ends, which may save states. First those
 * below it. */
static void choose_stops(struct planner *p, struct prefix *v, uint32_t from)
{
    const uint32_t stops[] = {0, v->end, v->end / RUN_CHUNKS * RUN_CHUNKS,
                              v->end / SEGMENT_CHUNKS * SEGMENT_CHUNKS, v->end / SPAN_CHUNKS * SPAN_CHUNKS};
    uint64_t least = UINT64_MAX;
    if (v->child == NO_PREFIX)
        return;
    for (uint32_t c = v->child; c != NO_PREFIX; c = p->prefixes[c].next)
        choose_stops(p, &p->prefixes[c], larger(from, v->stop[MORE]));
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        uint64_t cost = cost_of(p, v, from, stops[i]);
        for (uint32_t c = v->child; c != NO_PREFIX; c = p->prefixes[c].next)
            cost += cost_from(p, &p->prefixes[c], larger(from, stops[i]));
        if (cost < least) {
            least = cost;
            v->stop[MORE] = stops[i];
        }
    }
}

/* Count the partial states of a prefix's queries by the choice MORE: `states` each for what is before
 * chunk `from`. Returns their sum. */
static uint64_t count_states(struct planner *p, struct prefix *v, uint32_t from, uint32_t states)
{
    uint64_t sum = 0;
    from = larger(from, v->first);
    uint32_t stop = larger(from, v->stop[MORE]);
    states += states_of(v->first, from, stop, v->child == NO_PREFIX);
    v->states[MORE] = states;
    for (uint32_t c = v->child; c != NO_PREFIX; c = p->prefixes[c].next)
        sum += count_states(p, &p->prefixes[c], stop, states);
    return v->child == NO_PREFIX ? (uint64_t)states * (v->b - v->a) : sum;
}

/* Emit those of a prefix's queries that lie in [a, b) of the order, from chunk `from` on. */
static void emit_prefix(struct planner *p, const struct prefix *v, int choice, uint32_t a, uint32_t b,
                        uint32_t from)
{
    a = larger(a, v->a);
    b = smaller(b, v->b);
    if (a >= b)
        return;
    from = larger(from, v->first);
    uint32_t stop = larger(from, v->stop[choice]);
    if (stop > from)
        emit_stretch(p, a, b, from, stop);
    for (uint32_t c = v->child; c != NO_PREFIX; c = p->prefixes[c].next)
        emit_prefix(p, &p->prefixes[c], choice, a, b, stop);
}

/* How many queries, from the first of the order on, may share by the choice MORE while the others do by
 * FITS, with `states` in all. */
static uint32_t queries_that_share_more(const struct planner *p, uint64_t states)
{
    uint32_t queries = 0;
    for (uint32_t i = 0; i < p->prefix_count; i++) {
        const struct prefix *v = &p->prefixes[i];
        for (uint32_t query = v->a; v->child == NO_PREFIX && query < v->b; query++, queries++) {
            states += v->states[MORE];
            states -= v->states[FITS];
            if (states > p->o.partials_max)
                return queries;
        }
    }
    return queries;
}

/* Make the plan with no more partial states than there may be; splits are as large as can be by now.
 *
 * Queries that read a prefix together and then part have a state or more each for it, and others for what
 * they read alone, where a query that reads all of it alone has none. So states buy chunks that are not
 * read again, and go to where they buy most: a state has a price, what queries share is chosen so that
 * chunks and states cost least, each prefix after those below it, and the price is halved until there
 * are too few states. What that leaves of them goes to the first queries of the order, which share by the
 * last choice.
 *
 * Halving ranges of queries until the states suffice was tried. With 4 states a query, forks of a prefix of
 * 30 chunks read 13.0 times what the best cut reads, three nested prefixes 33 times. This reads 1.6 and
 * 1.5 times that; whatever queries share, it is at least 1.5 and 1.4 (a bound from the prices: the states
 * that there are, sold at a price, from the least cost at that price). */
static void share_less(struct planner *p, uint32_t n)
{
    uint64_t states, fitting;
    uint32_t longest = 0;
    p->room = p->work_tile_queries_max;
    p->prefix_count = 0;
    (void)add_prefix(p, 0, n);
    struct prefix *all = &p->prefixes[0];
    for (uint32_t i = 0; i < p->prefix_count; i++)
        longest = larger(longest, p->prefixes[i].end);
    states = count_states(p, all, 0, 0); /* of queries that all read alone: the least */
    assert(states <= p->o.partials_max);
    p->price = CHUNK_PRICE * longest; /* no state saves more */
    do {
        p->price /= 2;
        fitting = states;
        for (uint32_t i = 0; i < p->prefix_count; i++) {
            p->prefixes[i].stop[FITS] = p->prefixes[i].stop[MORE];
            p->prefixes[i].states[FITS] = p->prefixes[i].states[MORE];
        }
        choose_stops(p, all, 0);
        states = count_states(p, all, 0, 0);
    } while (p->price > 0 && states <= p->o.partials_max);
    uint32_t more = queries_that_share_more(p, fitting);
    begin_plan(p, n);
    emit_prefix(p, all, MORE, 0, more, 0);
    emit_prefix(p, all, FITS, more, n, 0);
    assert(!p->overflow);
}

/* ---- late work tiles ----------------------------------------------------------------------------- */

/* Whether a work tile waits for arithmetic: its tiles have many query heads, and a processor computes one at a time. */
static bool is_wide(const struct planner *p, const struct work_tile *work_tile)
{
    const struct tile_width *width = &p->o.caps.widths[work_tile->width];
    return width->query_heads > NARROW_QUERY_HEADS && width->cta_splits_max == 1;
}

static uint32_t thread_blocks_of(const struct planner *p, const struct work_tile *work_tile)
{
    return ceiling(work_tile->queries * p->o.group, p->o.caps.widths[work_tile->width].query_heads) *
           p->o.kv_heads;
}

/* The split that a query has in partial state `partial`. */
static uint32_t split_in(const struct planner *p, uint32_t query, uint32_t partial)
{
    uint32_t i = p->first_split[query];
    while (p->splits[i].partial != partial)
        i = p->splits[i].next;
    return i;
}

/* Whether a work tile is a segment whose queries merge it. */
static bool is_segment(const struct planner *p, const struct work_tile *work_tile)
{
    return work_tile->partial != PLAN_NO_PARTIAL && work_tile->chunks == SEGMENT_CHUNKS &&
           work_tile->first_chunk % SEGMENT_CHUNKS == 0 &&
           p->splits[split_in(p, p->work_tile_queries[work_tile->first_query], work_tile->partial)].level ==
               PLAN_SEGMENT;
}

/* Cut a segment into its runs, which are late. Returns whether there was room for their partial states. */
static bool cut_into_late_runs(struct planner *p, uint32_t i)
{
    const uint32_t queries = p->work_tiles[i].queries, first_query = p->work_tiles[i].first_query,
                   first_chunk = p->work_tiles[i].first_chunk,
                   more = (SEGMENT_CHUNKS / RUN_CHUNKS - 1) * queries;
    if (p->work_tile_query_count + more > p->room || p->plan.partial_count + more > p->o.partials_max)
        return false;
    uint32_t behind[PLAN_QUERY_HEADS_MAX]; /* of each query: the split that the next one follows */
    p->work_tiles[i].chunks = RUN_CHUNKS;
    p->work_tiles[i].late = 1;
    for (uint32_t r = 0; r < queries; r++) {
        behind[r] = split_in(p, p->work_tile_queries[first_query + r], p->work_tiles[i].partial + r);
        p->splits[behind[r]].end_chunk = first_chunk + RUN_CHUNKS;
        p->splits[behind[r]].level = PLAN_RUN;
    }
    for (uint32_t at = first_chunk + RUN_CHUNKS; at < first_chunk + SEGMENT_CHUNKS; at += RUN_CHUNKS) {
        struct work_tile *run = &p->work_tiles[p->plan.work_tile_count++];
        *run = p->work_tiles[i];
        run->first_chunk = at;
        run->first_query = p->work_tile_query_count;
        run->partial = p->plan.partial_count;
        for (uint32_t r = 0; r < queries; r++) {
            const uint32_t query = p->work_tile_queries[first_query + r], split = p->split_count++;
            p->work_tile_queries[p->work_tile_query_count++] = query;
            p->splits[split] = (struct split){.partial = p->plan.partial_count++,
                                              .end_chunk = at + RUN_CHUNKS,
                                              .next = p->splits[behind[r]].next,
                                              .alone = NO_SPLIT,
                                              .level = PLAN_RUN};
            p->splits[behind[r]].next = split;
            if (p->last_split[query] == behind[r])
                p->last_split[query] = split;
            behind[r] = split;
        }
    }
    return true;
}

/* Work tiles that wait for arithmetic are computed first, one a processor, and those that wait for memory behind
 * them, so that first the memory has nothing to do and then the arithmetic. Where the former make one wave, the
 * last of them are cut into runs, no more than a wave either, and made late: their processors read meanwhile.
 * Cutting costs a run's time, a fourth of a segment's: the others have to take longer. 256 sequences behind 8 192
 * common tokens, with 128, 256 and 512 of their own: 0.95, 0.90 and 0.92 of the time (H200). */
static void make_some_late(struct planner *p)
{
    const uint32_t processors = p->o.caps.processors;
    uint32_t blocks = 0, late = 0, count = p->plan.work_tile_count;
    uint64_t beside = 0; /* tokens */
    if (p->o.caps.width_count == 0)
        return;
    for (uint32_t i = 0; i < count; i++)
        blocks += is_wide(p, &p->work_tiles[i]) ? thread_blocks_of(p, &p->work_tiles[i]) : 0;
    if (blocks > processors || blocks <= processors - processors / 4)
        return;
    for (uint32_t i = 0; i < count; i++)
        beside += is_wide(p, &p->work_tiles[i])
                      ? 0
                      : plan_work_tile_tokens(&p->plan, &p->work_tiles[i], p->o.window);
    if (beside * p->o.kv_heads < (uint64_t)processors * TOKENS_BESIDE)
        return;
    for (uint32_t i = count; i-- > 0;) {
        const struct work_tile *work_tile = &p->work_tiles[i];
        if (!is_wide(p, work_tile) || !is_segment(p, work_tile))
            continue;
        late += thread_blocks_of(p, work_tile) * (SEGMENT_CHUNKS / RUN_CHUNKS);
        if (late > processors || !cut_into_late_runs(p, i))
            return;
    }
}

/* ---- the plan ------------------------------------------------------------------------------------ */

/* Larger work tiles first, by the power of two of their chunks times queries; split groups where their first
 * work tile is. */
static void sort_work_tiles(struct planner *p)
{
    uint32_t start[SIZE_CLASSES + 1] = {0}, left = 0; /* of a group */
    int class = 0;
    for (uint32_t i = 0; i < p->plan.work_tile_count; i++) {
        const struct work_tile *work_tile = &p->work_tiles[i];
        class = left ? class : __builtin_clz(work_tile->chunks * work_tile->queries | 1);
        left = left ? left - 1 : work_tile->splits ? work_tile->splits - 1U : 0;
        start[class + 1]++;
    }
    for (class = 0; class < SIZE_CLASSES; class ++)
        start[class + 1] += start[class];
    for (uint32_t i = 0; i < p->plan.work_tile_count; i++) {
        const struct work_tile *work_tile = &p->work_tiles[i];
        class = left ? class : __builtin_clz(work_tile->chunks * work_tile->queries | 1);
        left = left ? left - 1 : work_tile->splits ? work_tile->splits - 1U : 0;
        p->sorted[start[class]++] = *work_tile;
    }
}

/* Whether what queries need not read again takes as long as what grouping them costs, or some are to be
 * grouped whatever that costs. */
static bool grouping_pays(const struct planner *p)
{
    uint64_t saved = 0; /* chunks */
    for (uint32_t i = 0; i + 1 < p->sharing_count; i++) {
        const struct entry *e = &p->entries[i];
        uint32_t chunks = common_chunks(p, i);
        saved += chunks;
        if (chunks && (e->sharing == SHARING_ON || e[1].sharing == SHARING_ON ||
                       (double)saved * p->o.costs.chunk_us >= p->o.costs.grouping_us))
            return true;
    }
    return false;
}

/* What the queries cost, in chunks of NARROW_QUERY_HEADS. */
static uint64_t work_of(const struct planner *p)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < p->entry_count; i++) {
        struct plan_range seen = chunks_of(p, p->entries[i].keys);
        uint32_t shared = common_chunks(p, i), alone = seen.end - seen.first - shared;
        work += (uint64_t)alone * larger(p->o.group, NARROW_QUERY_HEADS) + (uint64_t)shared * p->o.group;
    }
    return work / NARROW_QUERY_HEADS;
}

/* Whether there will be more splits than tasks of a KV head, if they are of split_chunks_max chunks. */
static bool is_more_than_a_wave(const struct planner *p, uint32_t tasks)
{
    uint64_t splits = 0;
    for (uint32_t i = 0; i < p->entry_count && splits <= tasks; i++) {
        struct plan_range seen = chunks_of(p, p->entries[i].keys);
        splits += ceiling(seen.end - seen.first - common_chunks(p, i), p->split_chunks_max);
    }
    return splits > tasks;
}

/* How many splits of a group a thread block of a width computes: as many thread blocks as come to lie on a
 * processor anyway, by the number of work tiles. */
static uint32_t cta_splits_of(const struct planner *p, uint32_t width)
{
    const struct tile_caps *caps = &p->o.caps;
    uint64_t all = (uint64_t)p->plan.work_tile_count * p->o.kv_heads;
    uint32_t most = smaller((uint32_t)((all + caps->processors - 1) / caps->processors),
                            plan_cta_splits_max(caps, width));
    return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

/* Make the work tiles that are the splits of a query a split group, if they can be one. */
static bool make_group(struct planner *p, uint32_t query, uint32_t splits)
{
    const struct tile_caps *caps = &p->o.caps;
    if (splits < 2 || splits > caps->splits_max)
        return false;
    const struct split *first = &p->splits[p->first_split[query]], *last = &p->splits[p->last_split[query]];
    if (first->alone == NO_SPLIT || last->alone != first->alone + splits - 1)
        return false;
    struct work_tile *work_tiles = &p->work_tiles[first->alone];
    uint32_t members = splits <= 2 ? 2 : 4, parent = plan_parent_chunks(first->level);
    for (uint32_t i = p->first_split[query]; i != NO_SPLIT; i = p->splits[i].next) {
        if (p->splits[i].level != first->level || p->splits[i].alone == NO_SPLIT)
            return false;
    }
    uint32_t width = plan_width_for(caps, plan_widest(caps), work_tiles, splits, p->o.group),
             cta_splits = smaller(members, cta_splits_of(p, width));
    if (work_tiles->first_chunk / parent != (last->end_chunk - 1) / parent ||
        members / cta_splits > caps->cluster_max)
        return false;
    for (uint32_t i = 0; i < splits; i++)
        work_tiles[i].width = (uint8_t)width;
    work_tiles->splits = (uint8_t)splits;
    work_tiles->cta_splits = (uint8_t)cta_splits;
    return true;
}

/* The partials of each query that no work tile finishes, in order of position. */
static void lay_out_merges(struct planner *p, uint32_t n)
{
    uint32_t partials = 0;
    bool groups = p->o.caps.splits_max > 1 && p->o.caps.width_count > 0;
    for (uint32_t query = 0; query < n; query++) {
        if (p->first_split[query] == NO_SPLIT && p->queries[query].keys > 0)
            continue;
        struct plan_merge *merge = &p->merges[p->plan.merge_count++];
        *merge = (struct plan_merge){.query = query, .first = partials};
        for (uint32_t i = p->first_split[query]; i != NO_SPLIT; i = p->splits[i].next)
            p->merge_partials[partials++] =
                (struct partial_ref){p->splits[i].partial, p->splits[i].end_chunk, p->splits[i].level};
        merge->count = partials - merge->first;
        merge->is_split_group = groups && make_group(p, query, merge->count);
    }
}

/* Make room for a plan that had none: larger splits, then of many query heads too. Returns whether there is
 * something left to try. */
static bool make_fewer_splits(struct planner *p)
{
    if (p->lone_max < UINT32_MAX) {
        p->lone_max = UINT32_MAX;
    } else if (p->split_chunks_max < SEGMENT_CHUNKS) {
        p->split_chunks_max = p->split_chunks_max < RUN_CHUNKS ? RUN_CHUNKS : SEGMENT_CHUNKS;
    } else if (p->split_chunks_max < UINT32_MAX) {
        p->split_chunks_max = UINT32_MAX;
    } else if (p->within_nodes) {
        p->within_nodes = false;
    } else {
        return false;
    }
    return true;
}

/* Take the queries in, in their order. */
static void begin(struct planner *p, const struct planner_query *queries, uint32_t n, const uint32_t *tables,
                  uint32_t stride)
{
    assert(n <= p->o.queries_max);
    p->tables = tables;
    p->stride = stride;
    order_queries(p, queries, n);
    for (uint32_t i = 0; i < n; i++)
        p->queries[i] = (struct plan_query){queries[i].table, queries[i].keys};
    p->grouped_count = p->sharing_count;
    p->plan.query_count = n;
    p->plan.version++;
    p->asked_count = UINT32_MAX;
}

/* Whether the latest plan is that of these queries. */
static bool has_planned(const struct planner *p, const struct planner_query *queries, uint32_t n)
{
    bool same = n == p->asked_count;
    for (uint32_t i = 0; same && i < n; i++) {
        const struct planner_query *a = &p->asked[i], *b = &queries[i];
        same = a->table == b->table && a->keys == b->keys && a->version == b->version &&
               a->sharing == b->sharing;
    }
    return same;
}

const struct plan *planner_make(struct planner *p, const struct planner_query *queries, uint32_t n,
                                const uint32_t *tables, uint32_t stride)
{
    if (has_planned(p, queries, n)) /* layer after layer */
        return &p->plan;
    begin(p, queries, n, tables, stride);
    memcpy(p->asked, queries, n * sizeof *queries);
    p->asked_count = n;
    p->plan.slice = NULL;
    if (!grouping_pays(p))
        p->grouped_count = 0;
    uint32_t tasks = larger(1, p->o.tasks / p->o.kv_heads);
    uint32_t each = (uint32_t)((work_of(p) + tasks - 1) / tasks);
    p->split_chunks_max = plan_whole_nodes(each);
    p->lone_max = p->o.caps.splits_max && is_more_than_a_wave(p, tasks) ? each / LONE_SPLITS : UINT32_MAX;
    p->within_nodes = true;
    p->room = smaller(p->work_tile_queries_max, p->o.queries_max * SPLITS_PER_QUERY + 2 * p->o.tasks);
    do {
        begin_plan(p, n);
        if (n)
            emit_range(p, 0, n, 0);
    } while (p->overflow && make_fewer_splits(p));
    if (p->overflow)
        share_less(p, n);
    else
        make_some_late(p);
    lay_out_merges(p, n);
    sort_work_tiles(p);
    return &p->plan;
}

/* ---- slices -------------------------------------------------------------------------------------- */

/* Chunks of a segment that the query at a place of the order sees. */
static struct plan_range range_in(const struct planner *p, uint32_t at, uint32_t segment)
{
    struct plan_range seen = chunks_of(p, p->entries[at].keys);
    return (struct plan_range){larger(seen.first, segment * SEGMENT_CHUNKS),
                               smaller(seen.end, (segment + 1) * SEGMENT_CHUNKS)};
}

/* The end of the queries from `a` on in the order that read a segment together. Their states lie side by
 * side. */
static uint32_t end_of_readers(const struct planner *p, uint32_t a, uint32_t segment)
{
    struct plan_range range = range_in(p, a, segment);
    uint32_t b = a + 1, most = smaller(p->entry_count, a + planner_queries_of_work_tile(p->o.group));
    for (; b < most; b++) {
        struct plan_range next = range_in(p, b, segment);
        if (next.first != range.first || next.end != range.end || common_chunks(p, b - 1) < range.end ||
            p->entries[b].query != p->entries[b - 1].query + 1)
            break;
    }
    return b;
}

static void emit_segment(struct planner *p, uint32_t segment)
{
    for (uint32_t a = 0, b; a < p->entry_count; a = b) {
        struct plan_range range = range_in(p, a, segment);
        b = range.first < range.end ? end_of_readers(p, a, segment) : a + 1;
        if (range.first >= range.end)
            continue;
        assert(p->work_tile_query_count + (b - a) <= p->work_tile_queries_max);
        add_work_tile(p, a, b, range.first, range.end,
                      plan_slice_state(&p->plan, p->entries[a].query, segment));
    }
}

/* Merges of all queries: the last slice. */
static void merge_segments(struct planner *p, uint32_t n)
{
    uint32_t partials = 0;
    for (uint32_t query = 0; query < n; query++) {
        struct plan_range seen = chunks_of(p, p->queries[query].keys);
        struct plan_merge *merge = &p->merges[p->plan.merge_count++];
        *merge = (struct plan_merge){.query = query, .first = partials};
        for (uint32_t s = seen.first / SEGMENT_CHUNKS; s * SEGMENT_CHUNKS < seen.end; s++)
            p->merge_partials[partials++] =
                (struct partial_ref){plan_slice_state(&p->plan, query, s),
                                     smaller(seen.end, (s + 1) * SEGMENT_CHUNKS), PLAN_SEGMENT};
        merge->count = partials - merge->first;
    }
}

const struct plan *planner_make_slice(struct planner *p, const struct planner_query *queries, uint32_t n,
                                      const uint32_t *tables, uint32_t stride, const struct plan_slice *slice)
{
    uint32_t longest = 0;
    begin(p, queries, n, tables, stride);
    begin_plan(p, n);
    p->slice = *slice;
    p->plan.slice = &p->slice;
    for (uint32_t i = 0; i < n; i++)
        longest = larger(longest, chunks_of(p, queries[i].keys).end);
    uint32_t end = smaller(slice->end, ceiling(longest, SEGMENT_CHUNKS));
    assert(end <= slice->base ||
           slice->states - p->o.partials_max + (end - slice->base) * n <= p->o.slice_states);
    for (uint32_t segment = slice->first; segment < end; segment++)
        emit_segment(p, segment);
    sort_work_tiles(p);
    if (plan_has_outputs(&p->plan))
        merge_segments(p, n);
    return &p->plan;
}

void planner_order(struct planner *p, const struct planner_query *queries, uint32_t n, const uint32_t *tables,
                   uint32_t stride, struct planner_place *places)
{
    begin(p, queries, n, tables, stride);
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &p->entries[i];
        struct plan_range seen = chunks_of(p, e->keys);
        places[i] = (struct planner_place){e->query, seen.first, seen.end, common_chunks(p, i)};
    }
}

int planner_create(const struct planner_options *options, struct planner **result)
{
    struct planner *p = calloc(1, sizeof *p);
    if (!p)
        return ATTND_NO_MEMORY;
    uint32_t queries = options->queries_max;
    p->o = *options;
    /* each has a partial state, or its query no other */
    uint32_t states = larger(options->partials_max, options->slice_states);
    p->work_tile_queries_max = queries + states;
    p->entries = calloc(queries + 1, sizeof *p->entries);
    p->scratch = calloc(queries + 1, sizeof *p->scratch);
    p->place = calloc(queries + 1, sizeof *p->place);
    p->prefixes = calloc(2 * (uint64_t)queries + 1, sizeof *p->prefixes);
    p->queries = calloc(queries + 1, sizeof *p->queries);
    p->work_tiles = calloc(p->work_tile_queries_max, sizeof *p->work_tiles);
    p->sorted = calloc(p->work_tile_queries_max, sizeof *p->sorted);
    p->work_tile_queries = calloc(p->work_tile_queries_max, sizeof *p->work_tile_queries);
    p->merges = calloc(queries + 1, sizeof *p->merges);
    p->merge_partials = calloc(states + UINT64_C(1), sizeof *p->merge_partials);
    p->splits = calloc(options->partials_max + UINT64_C(1), sizeof *p->splits);
    p->first_split = calloc(queries + 1, sizeof *p->first_split);
    p->last_split = calloc(queries + 1, sizeof *p->last_split);
    p->asked = calloc(queries + 1, sizeof *p->asked);
    p->asked_count = UINT32_MAX;
    if (!p->entries || !p->scratch || !p->place || !p->prefixes || !p->queries || !p->work_tiles ||
        !p->sorted || !p->work_tile_queries || !p->merges || !p->merge_partials || !p->splits ||
        !p->first_split || !p->last_split || !p->asked) {
        planner_destroy(p);
        return ATTND_NO_MEMORY;
    }
    p->plan = (struct plan){.queries = p->queries,
                            .work_tiles = p->sorted,
                            .work_tile_queries = p->work_tile_queries,
                            .merges = p->merges,
                            .merge_partials = p->merge_partials,
                            .caps = &p->o.caps};
    *result = p;
    return 0;
}

void planner_destroy(struct planner *p)
{
    if (!p)
        return;
    free(p->entries);
    free(p->scratch);
    free(p->place);
    free(p->prefixes);
    free(p->queries);
    free(p->work_tiles);
    free(p->sorted);
    free(p->work_tile_queries);
    free(p->merges);
    free(p->merge_partials);
    free(p->splits);
    free(p->first_split);
    free(p->last_split);
    free(p->asked);
    free(p);
}
