/* planner.c - see planner.h.
 *
 * Rows sorted by their block tables, and between neighbours the number of chunks that they have in
 * common:
 *
 *   order    row 4    row 0    row 7    row 2
 *   common       6        6        2             in chunks
 *
 * emit_range() takes a range of the order that has everything before chunk c in common. The smallest
 * `common` inside the range is where it splits: the chunks up to there become items of all rows of the
 * range, and each part goes on alone.
 *
 * A stretch of chunks is cut into pieces at the boundaries of the tree in plan.h. A piece may cover
 * several nodes of its level only where it begins the node above (plan.h says why); piece_max, from the
 * amount of work, says how large one may be. Work is counted in chunks of up to NARROW_COLUMNS packed
 * columns, which cost what reading them costs; what more rows do with them is computation, and counts
 * by columns.
 *
 * When the arrays for pieces or partials run out, the plan is made again with larger pieces, at last
 * without sharing and with whole rows, which always fits: one item a row and no partials. */
#include "scheduler/planner.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECES_PER_ROW = 8,  /* room; beyond it pieces become larger for a step */
    COMPARED_IDS = 64,   /* entries of loose tables compared at a time */
    SIZE_CLASSES = 32,   /* items are handed out largest class first */
    NARROW_COLUMNS = 32, /* items of more packed columns lie within a segment, */
    RUN_COLUMNS = 64     /* and of up to so many within a run: attend_wide.cu folds no further */
};

#define NO_PIECE UINT32_MAX

/* A row as the planner keeps it between steps. */
struct entry {
    uint32_t row; /* index in this step */
    uint32_t table, keys;
    uint64_t version;
    uint32_t common; /* leading blocks in common with the next one in the order */
};

/* A part of one row, in a list per row. */
struct piece {
    uint32_t partial, end_chunk, next;
    enum plan_level level;
};

struct planner {
    struct planner_options o;
    uint32_t items_max, pieces_max;
    const uint32_t *tables; /* of the current call */
    uint32_t stride;
    uint32_t piece_max; /* chunks of a piece, roughly at most */
    bool grouped;       /* rows read together what they share */
    bool within_nodes;  /* items of many columns lie within a node (NARROW_COLUMNS) */
    bool overflow;

    struct entry *entries, *scratch; /* [rows_max] in order */
    uint32_t *place;                 /* [rows_max] by row of the step: its index in entries */
    uint32_t entry_count;

    struct plan plan;
    struct plan_row *rows;
    struct plan_item *items, *sorted;
    uint32_t *item_rows;
    struct plan_merge *merges;
    struct plan_part *parts;
    struct piece *pieces;
    uint32_t *first_piece, *last_piece; /* [rows_max] */
    uint32_t item_row_count, piece_count;
};

/* ---- small helpers ------------------------------------------------------------------------------- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t ceiling(uint32_t n, uint32_t of)
{
    return n / of + (n % of != 0);
}

static uint32_t first_chunk_of(const struct planner *p, uint32_t keys)
{
    return plan_first_key(keys, p->o.window) / CHUNK_TOKENS;
}

static uint32_t end_chunk_of(uint32_t keys)
{
    return ceiling(keys, CHUNK_TOKENS);
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

/* ---- the order of the rows ----------------------------------------------------------------------- */

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

/* Whether the rows are those of the last step, in the same order, grown at most. Their keys are updated
 * on the way. */
static bool same_rows(struct planner *p, const struct planner_row *rows, uint32_t n)
{
    if (n != p->entry_count)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *e = &p->entries[p->place[i]];
        if (e->table != rows[i].table || e->version != rows[i].version || e->keys > rows[i].keys)
            return false;
    }
    for (uint32_t i = 0; i < n; i++)
        p->entries[p->place[i]].keys = rows[i].keys;
    return true;
}

/* Whether every row that its neighbour holds entirely still comes before the longer one, after rows
 * have grown. */
static bool still_nested(const struct planner *p)
{
    for (uint32_t i = 0; i + 1 < p->entry_count; i++) {
        const struct entry *e = &p->entries[i];
        bool within = e->table == e[1].table || e[1].keys <= (uint64_t)e->common * p->o.block_size;
        if (e->keys > e[1].keys && within)
            return false;
    }
    return true;
}

static void order_rows(struct planner *p, const struct planner_row *rows, uint32_t n)
{
    if (same_rows(p, rows, n) && still_nested(p))
        return;
    p->entry_count = n;
    for (uint32_t i = 0; i < n; i++)
        p->entries[i] = (struct entry){
            .row = i, .table = rows[i].table, .keys = rows[i].keys, .version = rows[i].version};
    if (p->o.share)
        sort_entries(p);
    for (uint32_t i = 0; i < n; i++) {
        struct entry *e = &p->entries[i];
        p->place[e->row] = i;
        if (i + 1 < n && p->o.share)
            e->common = common_blocks(p, e->table, e[1].table,
                                      ceiling(smaller(e->keys, e[1].keys), p->o.block_size));
    }
}

/* Chunks that neighbours in the order can read together: whole ones inside the common blocks; and all
 * of the first one's when it is not longer than the second and has all its keys in the common blocks.
 * So every row of a range reads what any later row of the range has there, whichever of them is the
 * longest. */
static uint32_t common_chunks(const struct planner *p, uint32_t at)
{
    const struct entry *e = &p->entries[at];
    uint64_t tokens = (uint64_t)e->common * p->o.block_size;
    uint32_t ends = smaller(end_chunk_of(e->keys), end_chunk_of(e[1].keys));
    if (first_chunk_of(p, e->keys) > 0 || first_chunk_of(p, e[1].keys) > 0 || !p->grouped)
        return 0; /* windows begin at different chunks */
    if (e->keys <= e[1].keys && (e->table == e[1].table || e->keys <= tokens))
        return ends;
    return smaller(ends, (uint32_t)(tokens / CHUNK_TOKENS));
}

/* ---- pieces and items ---------------------------------------------------------------------------- */

/* A size for pieces of roughly so many chunks: whole nodes of the tree, since what is left of a node
 * becomes pieces of its children. Up to twice as large, because a few large pieces are better than many
 * partial states. */
static uint32_t whole_nodes(uint32_t chunks)
{
    if (chunks > SEGMENT_CHUNKS)
        return chunks;
    if (chunks >= SEGMENT_CHUNKS / 2)
        return SEGMENT_CHUNKS;
    return chunks >= RUN_CHUNKS / 2 ? RUN_CHUNKS : 1;
}

/* One item over chunks [first, end) for the rows [a, b) of the order; a final one has no partials. */
static void add_item(struct planner *p, uint32_t a, uint32_t b, uint32_t first, uint32_t end,
                     enum plan_level level, bool final)
{
    uint32_t longest = a;
    if (p->plan.item_count == p->items_max || p->item_row_count + (b - a) > p->pieces_max ||
        (!final && (p->piece_count + (b - a) > p->pieces_max ||
                    p->plan.partial_count + (b - a) > p->o.partials_max))) {
        p->overflow = true;
        return;
    }
    struct plan_item *item = &p->items[p->plan.item_count++];
    *item = (struct plan_item){.first_chunk = first,
                               .chunks = end - first,
                               .first_row = p->item_row_count,
                               .rows = b - a,
                               .partial = final ? PLAN_NO_PARTIAL : p->plan.partial_count};
    for (uint32_t i = a; i < b; i++) {
        uint32_t row = p->entries[i].row;
        longest = p->entries[i].keys > p->entries[longest].keys ? i : longest;
        p->item_rows[p->item_row_count++] = row;
        if (final)
            continue;
        uint32_t piece = p->piece_count++;
        p->pieces[piece] = (struct piece){p->plan.partial_count++, end, NO_PIECE, level};
        if (p->first_piece[row] == NO_PIECE)
            p->first_piece[row] = piece;
        else
            p->pieces[p->last_piece[row]].next = piece;
        p->last_piece[row] = piece;
    }
    item->table = p->entries[longest].table; /* it names every block that any of the rows reads */
}

/* The same for any number of rows: as many items as their packed rows need. */
static void add_items(struct planner *p, uint32_t a, uint32_t b, uint32_t first, uint32_t end,
                      enum plan_level level, bool final)
{
    uint32_t rows = larger(1, PLAN_PACKED_ROWS_MAX / p->o.group);
    for (; a < b; a = smaller(a + rows, b))
        add_item(p, a, smaller(a + rows, b), first, end, level, final);
}

/* The level of the next piece from chunk `at` on, and its end. The rows begin at chunk `first`; the
 * stretch ends at `end`, where all its rows end if `to_row_end`. */
static enum plan_level next_piece(uint32_t piece_max, uint32_t first, uint32_t at, uint32_t end,
                                  bool to_row_end, uint32_t *piece_end)
{
    static const struct {
        enum plan_level level;
        uint32_t node, parent;
    } levels[] = {{PLAN_SEGMENT, SEGMENT_CHUNKS, UINT32_MAX},
                  {PLAN_RUN, RUN_CHUNKS, SEGMENT_CHUNKS},
                  {PLAN_CHUNK, 1, RUN_CHUNKS}};
    for (int i = 0;; i++) {
        uint32_t node = levels[i].node, parent = levels[i].parent;
        uint32_t node_end = (at / node + 1) * node;
        bool begins = at % node == 0 || at == first;
        bool ends = node_end <= end || to_row_end;
        if (node > 1 && (!begins || !ends || node > piece_max))
            continue;
        bool leads = at % parent == 0 || at == first;
        uint32_t stop = smaller(end, parent == UINT32_MAX ? end : (at / parent + 1) * parent);
        *piece_end = smaller(node_end, end);
        while (leads && *piece_end < stop && *piece_end + node - at <= piece_max &&
               (*piece_end + node <= stop || to_row_end))
            *piece_end = smaller(*piece_end + node, stop);
        return levels[i].level;
    }
}

/* Chunks [from, end) of the rows [a, b) of the order, which read the same blocks there. */
static void emit_stretch(struct planner *p, uint32_t a, uint32_t b, uint32_t from, uint32_t end)
{
    uint32_t first = first_chunk_of(p, p->entries[a].keys), piece_max = p->piece_max;
    bool to_row_end = true;
    uint64_t columns = (uint64_t)(b - a) * p->o.group;
    if (p->within_nodes && columns > NARROW_COLUMNS)
        piece_max = smaller(piece_max, columns > RUN_COLUMNS ? SEGMENT_CHUNKS : RUN_CHUNKS);
    for (uint32_t i = a; i < b; i++)
        to_row_end &= end_chunk_of(p->entries[i].keys) == end;
    if (from == first && to_row_end && end - from <= piece_max) {
        add_items(p, a, b, from, end, PLAN_ROW, true);
        return;
    }
    for (uint32_t at = from, piece_end; at < end; at = piece_end) {
        enum plan_level level = next_piece(piece_max, first, at, end, to_row_end, &piece_end);
        add_items(p, a, b, at, piece_end, level, false);
    }
}

/* The rows [a, b) of the order from chunk `from` on, before which all has been emitted. */
static void emit_range(struct planner *p, uint32_t a, uint32_t b, uint32_t from)
{
    if (b - a == 1) {
        uint32_t keys = p->entries[a].keys, end = end_chunk_of(keys);
        uint32_t start = larger(from, first_chunk_of(p, keys));
        if (start < end)
            emit_stretch(p, a, b, start, end);
        return;
    }
    uint32_t split = UINT32_MAX;
    for (uint32_t i = a; i + 1 < b; i++)
        split = smaller(split, common_chunks(p, i));
    if (split > from)
        emit_stretch(p, a, b, from, split);
    for (uint32_t start = a, i = a; i < b; i++) {
        if (i + 1 < b && common_chunks(p, i) > split)
            continue;
        emit_range(p, start, i + 1, larger(from, split));
        start = i + 1;
    }
}

/* ---- the plan ------------------------------------------------------------------------------------ */

static void begin_plan(struct planner *p, uint32_t n)
{
    p->plan.item_count = p->plan.merge_count = p->plan.partial_count = 0;
    p->item_row_count = p->piece_count = 0;
    p->overflow = false;
    memset(p->first_piece, 0xff, n * sizeof *p->first_piece);
}

/* Larger items first, by the power of two of their chunks times rows. */
static void sort_items(struct planner *p)
{
    uint32_t start[SIZE_CLASSES + 1] = {0};
    for (uint32_t i = 0; i < p->plan.item_count; i++)
        start[__builtin_clz(p->items[i].chunks * p->items[i].rows | 1) + 1]++;
    for (int class = 0; class < SIZE_CLASSES; class ++)
        start[class + 1] += start[class];
    for (uint32_t i = 0; i < p->plan.item_count; i++)
        p->sorted[start[__builtin_clz(p->items[i].chunks * p->items[i].rows | 1)]++] = p->items[i];
}

/* Whether what rows need not read again takes as long as what grouping them costs. */
static bool grouping_pays(const struct planner *p)
{
    uint64_t saved = 0; /* chunks */
    for (uint32_t i = 0; i + 1 < p->entry_count; i++)
        saved += common_chunks(p, i);
    return (double)saved * p->o.costs.chunk_us >= p->o.costs.grouping_us;
}

/* What the rows cost, in chunks of NARROW_COLUMNS. */
static uint64_t work_of(const struct planner *p)
{
    uint64_t work = 0;
    for (uint32_t i = 0; i < p->entry_count; i++) {
        uint32_t keys = p->entries[i].keys, chunks = end_chunk_of(keys) - first_chunk_of(p, keys),
                 shared = i + 1 < p->entry_count ? common_chunks(p, i) : 0;
        work += (uint64_t)(chunks - shared) * larger(p->o.group, NARROW_COLUMNS) +
                (uint64_t)shared * p->o.group;
    }
    return work / NARROW_COLUMNS;
}

/* The parts of each row that no item finishes, in order of position. */
static void lay_out_merges(struct planner *p, uint32_t n)
{
    uint32_t parts = 0;
    for (uint32_t row = 0; row < n; row++) {
        if (p->first_piece[row] == NO_PIECE && p->rows[row].keys > 0)
            continue;
        struct plan_merge *merge = &p->merges[p->plan.merge_count++];
        *merge = (struct plan_merge){.row = row, .first = parts};
        for (uint32_t i = p->first_piece[row]; i != NO_PIECE; i = p->pieces[i].next)
            p->parts[parts++] =
                (struct plan_part){p->pieces[i].partial, p->pieces[i].end_chunk, p->pieces[i].level};
        merge->count = parts - merge->first;
    }
}

/* Make room for a plan that had none: larger pieces, then of many columns too. Returns whether there is
 * something left to try. */
static bool make_fewer_pieces(struct planner *p)
{
    if (p->piece_max < SEGMENT_CHUNKS) {
        p->piece_max = p->piece_max < RUN_CHUNKS ? RUN_CHUNKS : SEGMENT_CHUNKS;
    } else if (p->piece_max < UINT32_MAX) {
        p->piece_max = UINT32_MAX;
    } else if (p->within_nodes) {
        p->within_nodes = false;
    } else {
        return false;
    }
    return true;
}

const struct plan *planner_make(struct planner *p, const struct planner_row *rows, uint32_t n,
                                const uint32_t *tables, uint32_t stride)
{
    assert(n <= p->o.rows_max);
    p->tables = tables;
    p->stride = stride;
    order_rows(p, rows, n);
    for (uint32_t i = 0; i < n; i++)
        p->rows[i] = (struct plan_row){rows[i].table, rows[i].keys};
    p->grouped = p->o.share;
    p->grouped = p->grouped && grouping_pays(p);
    uint32_t tasks = larger(1, p->o.tasks / p->o.kv_heads);
    p->piece_max = whole_nodes((uint32_t)((work_of(p) + tasks - 1) / tasks));
    p->within_nodes = true;
    do {
        begin_plan(p, n);
        if (n)
            emit_range(p, 0, n, 0);
    } while (p->overflow && make_fewer_pieces(p));
    if (p->overflow) {
        begin_plan(p, n);
        for (uint32_t i = 0; i < n; i++)
            emit_range(p, i, i + 1, 0);
        assert(!p->overflow);
    }
    sort_items(p);
    lay_out_merges(p, n);
    p->plan.rows = p->rows;
    p->plan.row_count = n;
    p->plan.items = p->sorted;
    p->plan.item_rows = p->item_rows;
    p->plan.merges = p->merges;
    p->plan.merge_parts = p->parts;
    return &p->plan;
}

int planner_create(const struct planner_options *options, struct planner **result)
{
    struct planner *p = calloc(1, sizeof *p);
    if (!p)
        return ATTND_NO_MEMORY;
    uint32_t rows = options->rows_max;
    p->o = *options;
    p->pieces_max = rows * PIECES_PER_ROW + 2 * options->tasks;
    p->items_max = p->pieces_max;
    p->entries = calloc(rows + 1, sizeof *p->entries);
    p->scratch = calloc(rows + 1, sizeof *p->scratch);
    p->place = calloc(rows + 1, sizeof *p->place);
    p->rows = calloc(rows + 1, sizeof *p->rows);
    p->items = calloc(p->items_max, sizeof *p->items);
    p->sorted = calloc(p->items_max, sizeof *p->sorted);
    p->item_rows = calloc(p->pieces_max, sizeof *p->item_rows);
    p->merges = calloc(rows + 1, sizeof *p->merges);
    p->parts = calloc(p->pieces_max, sizeof *p->parts);
    p->pieces = calloc(p->pieces_max, sizeof *p->pieces);
    p->first_piece = calloc(rows + 1, sizeof *p->first_piece);
    p->last_piece = calloc(rows + 1, sizeof *p->last_piece);
    if (!p->entries || !p->scratch || !p->place || !p->rows || !p->items || !p->sorted ||
        !p->item_rows || !p->merges || !p->parts || !p->pieces || !p->first_piece || !p->last_piece) {
        planner_destroy(p);
        return ATTND_NO_MEMORY;
    }
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
    free(p->rows);
    free(p->items);
    free(p->sorted);
    free(p->item_rows);
    free(p->merges);
    free(p->parts);
    free(p->pieces);
    free(p->first_piece);
    free(p->last_piece);
    free(p);
}
