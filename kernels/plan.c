/* plan.c - what an item reads, and whether a plan computes every row exactly once. */
#include "kernels/plan.h"

#include "config/numbers.h"

#include <stddef.h>
#include <stdlib.h>

struct plan_range plan_item_keys(const struct plan *plan, const struct plan_item *item, uint32_t first,
                                 uint32_t rows, uint32_t window)
{
    uint32_t begin = item->first_chunk * CHUNK_TOKENS, stop = begin + item->chunks * CHUNK_TOKENS;
    struct plan_range any = {stop, begin};
    for (uint32_t r = first; r < first + rows; r++) {
        struct plan_range seen = plan_visible(plan->rows[plan->item_rows[item->first_row + r]].keys, window);
        any.first = smaller(any.first, seen.first);
        any.end = larger(any.end, seen.end);
    }
    return (struct plan_range){larger(any.first, begin), smaller(any.end, stop)};
}

uint32_t plan_item_tokens(const struct plan *plan, const struct plan_item *item, uint32_t window)
{
    struct plan_range seen = plan_item_keys(plan, item, 0, item->rows, window);
    return seen.end - seen.first / TILE_TOKENS * TILE_TOKENS;
}

static struct plan_range chunks_of(const struct plan_row *row, uint32_t window)
{
    return plan_visible_chunks(row->keys, window);
}

/* Whether a partial of `level` over chunks [first, end) can be folded into a row that sees chunks `seen`. */
static int part_fits(enum plan_level level, uint32_t first, uint32_t end, struct plan_range seen)
{
    uint32_t node = plan_node_chunks(level), parent = plan_parent_chunks(level);
    uint32_t parent_start = first / parent * parent;
    int whole = (first % node == 0 || first == seen.first) && (end % node == 0 || end == seen.end);
    int in_one_parent = (end - 1) / parent == first / parent;
    int single = (end - 1) / node == first / node;
    int leads = first == parent_start || first == seen.first;
    return whole && in_one_parent && (single || leads);
}

/* What is known of a partial: the item that writes it, or one of these. */
#define PARTIAL_FREE   UINT32_MAX
#define PARTIAL_MERGED (UINT32_MAX - 1)

static const char *item_fault(const struct plan *plan, uint32_t i, uint32_t window, uint32_t *item_of,
                              uint32_t *finished)
{
    const struct plan_item *item = &plan->items[i];
    if (item->rows == 0 || item->chunks == 0)
        return "an item without rows or chunks";
    if (!plan_within_span(item->first_chunk, item->first_chunk + item->chunks))
        return "an item crosses the end of a span";
    for (uint32_t r = 0; r < item->rows; r++) {
        uint32_t row = plan->item_rows[item->first_row + r];
        struct plan_range seen = chunks_of(&plan->rows[row], window);
        if (item->first_chunk < seen.first || item->first_chunk + item->chunks > seen.end)
            return "an item reads chunks that a row does not see";
        if (item->partial != PLAN_NO_PARTIAL) {
            uint32_t partial = item->partial + r;
            if (partial >= plan->partial_count)
                return "a partial out of range";
            if (item_of[partial] != PARTIAL_FREE)
                return "two items write one partial";
            item_of[partial] = i;
        } else if (item->first_chunk != seen.first || item->first_chunk + item->chunks != seen.end) {
            return "an item finishes a row of which it reads only a part";
        } else {
            finished[row]++;
        }
    }
    return NULL;
}

static const char *merge_fault(const struct plan *plan, const struct plan_merge *merge, uint32_t *item_of,
                               uint32_t window)
{
    const struct plan_row *row = &plan->rows[merge->row];
    struct plan_range seen = chunks_of(row, window);
    uint32_t at = seen.first;
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct plan_part *part = &plan->merge_parts[merge->first + i];
        if (part->partial >= plan->partial_count || item_of[part->partial] == PARTIAL_FREE)
            return "a merge reads a partial that no item writes";
        if (item_of[part->partial] == PARTIAL_MERGED)
            return "a partial is merged twice";
        const struct plan_item *item = &plan->items[item_of[part->partial]];
        if (plan->item_rows[item->first_row + part->partial - item->partial] != merge->row)
            return "a merge reads another row's partial";
        if (item->first_chunk != at || part->end_chunk != item->first_chunk + item->chunks)
            return "a row's partials do not follow each other";
        if (part->level > PLAN_SEGMENT || !part_fits(part->level, at, part->end_chunk, seen))
            return "a partial's level does not fit its range";
        item_of[part->partial] = PARTIAL_MERGED;
        at = part->end_chunk;
    }
    return at == seen.end || merge->count == 0
               ? (merge->count || row->keys == 0 ? NULL : "a row with keys has no parts")
               : "a row's partials do not reach its end";
}

/* ---- slices -------------------------------------------------------------------------------------- */

/* Whether an item is what a slice may have: one segment of its rows, as far as they see it, with the states
 * that belong to them. Counts the rows in seen[]. */
static const char *slice_item_fault(const struct plan *plan, const struct plan_item *item, uint32_t window,
                                    uint32_t *seen)
{
    uint32_t segment = item->first_chunk / SEGMENT_CHUNKS;
    if (item->rows == 0 || item->chunks == 0)
        return "an item without rows or chunks";
    if (segment < plan->slice->first || segment >= plan->slice->end || segment < plan->slice->base)
        return "an item outside of the slice";
    for (uint32_t r = 0; r < item->rows; r++) {
        uint32_t row = plan->item_rows[item->first_row + r];
        struct plan_range visible = chunks_of(&plan->rows[row], window);
        uint32_t first = larger(visible.first, segment * SEGMENT_CHUNKS),
                 end = smaller(visible.end, (segment + 1) * SEGMENT_CHUNKS);
        if (item->first_chunk != first || item->first_chunk + item->chunks != end)
            return "an item of a slice is not a row's segment";
        if (item->partial + r != plan_slice_state(plan, row, segment))
            return "an item of a slice writes another row's state";
        seen[row]++;
    }
    return NULL;
}

/* Segments of a row that the slice has. */
static uint32_t slice_segments(const struct plan *plan, const struct plan_row *row, uint32_t window)
{
    struct plan_range seen = chunks_of(row, window);
    uint32_t first = larger(seen.first / SEGMENT_CHUNKS, plan->slice->first),
             end = smaller(ceiling(seen.end, SEGMENT_CHUNKS), plan->slice->end);
    return end > first ? end - first : 0;
}

static const char *slice_merge_fault(const struct plan *plan, const struct plan_merge *merge, uint32_t window)
{
    const struct plan_row *row = &plan->rows[merge->row];
    struct plan_range seen = chunks_of(row, window);
    uint32_t segment = seen.first / SEGMENT_CHUNKS;
    for (uint32_t i = 0; i < merge->count; i++, segment++) {
        const struct plan_part *part = &plan->merge_parts[merge->first + i];
        uint32_t stop = smaller((segment + 1) * SEGMENT_CHUNKS, seen.end);
        if (part->level != PLAN_SEGMENT || part->end_chunk != stop ||
            part->partial != plan_slice_state(plan, merge->row, segment))
            return "a merge of a slice does not read the row's segments";
    }
    return segment * SEGMENT_CHUNKS >= seen.end ? NULL : "a row's partials do not reach its end";
}

static const char *slice_fault(const struct plan *plan, uint32_t window)
{
    const char *fault = NULL;
    uint32_t *seen = calloc(plan->row_count + 1, sizeof *seen), *merged = calloc(plan->row_count + 1, 4);
    if (!seen || !merged)
        abort();
    for (uint32_t i = 0; !fault && i < plan->item_count; i++)
        fault = slice_item_fault(plan, &plan->items[i], window, seen);
    for (uint32_t i = 0; !fault && i < plan->merge_count; i++) {
        merged[plan->merges[i].row]++;
        fault = slice_merge_fault(plan, &plan->merges[i], window);
    }
    for (uint32_t row = 0; !fault && row < plan->row_count; row++) {
        if (seen[row] != slice_segments(plan, &plan->rows[row], window))
            fault = "a slice does not compute each of its segments exactly once";
        else if (merged[row] != (uint32_t)plan_has_outputs(plan))
            fault = "a row is not merged by the last slice";
    }
    free(seen);
    free(merged);
    return fault;
}

/* ---- tiles and split groups ---------------------------------------------------------------------- */

static const char *width_fault(const struct plan *plan, const struct plan_item *item)
{
    uint32_t count = plan->caps ? plan->caps->width_count : 0;
    if (item->width >= (count ? count : 1))
        return "an item has a width that there is not";
    if (count && !plan_width_takes(&plan->caps->widths[item->width], item))
        return "an item's tiles do not take its chunks";
    return NULL;
}

static int is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Whether the tiles of a group fit the caps. */
static const char *group_size_fault(const struct tile_caps *caps, const struct plan_item *first)
{
    uint32_t members = 1;
    while (members < first->splits)
        members *= 2;
    if (first->splits < 2 || first->splits > caps->splits_max || first->splits > PLAN_SPLITS_MAX)
        return "a split group of so many items cannot be";
    if (!is_power_of_two(first->splits_together) || first->splits_together > members ||
        members / first->splits_together > caps->cluster_max)
        return "a split group has no room in a cluster";
    if (caps->width_count && first->splits_together > plan_together_max(caps, first->width))
        return "a split group has no room in a thread block";
    return NULL;
}

/* Whether the items from `i` on are a split group: all parts of one row, by themselves, in one node. */
static const char *group_fault(const struct plan *plan, uint32_t i, const struct plan_merge *const *merge_of)
{
    const struct plan_item *items = &plan->items[i];
    const char *fault = plan->caps ? group_size_fault(plan->caps, items) : "a split group without caps";
    if (fault || items->splits > plan->item_count - i)
        return fault ? fault : "a split group behind the last item";
    const struct plan_merge *merge = merge_of[plan->item_rows[items->first_row]];
    if (!merge || !merge->is_split_group || merge->count != items->splits)
        return "a split group is not all parts of a row";
    const struct plan_part *parts = plan->merge_parts + merge->first;
    uint32_t parent = plan_parent_chunks(parts[0].level);
    for (uint32_t k = 0; k < items->splits; k++) {
        if (items[k].rows != 1 || items[k].partial != parts[k].partial || (k && items[k].splits) ||
            items[k].width != items->width)
            return "a split group is not the parts of a row in their order";
        if (parts[k].level != parts[0].level ||
            items[k].first_chunk / parent != (parts[k].end_chunk - 1) / parent ||
            items[k].first_chunk / parent != items->first_chunk / parent)
            return "a split group is not of one node";
    }
    return NULL;
}

/* Widths and split groups of a plan that is right otherwise. */
static const char *tiles_fault(const struct plan *plan)
{
    const char *fault = NULL;
    uint32_t groups = 0, merged = 0;
    const struct plan_merge **merge_of = calloc(plan->row_count + 1, sizeof *merge_of);
    if (!merge_of)
        abort();
    for (uint32_t i = 0; i < plan->merge_count; i++) {
        merge_of[plan->merges[i].row] = &plan->merges[i];
        merged += plan->merges[i].is_split_group != 0;
    }
    for (uint32_t i = 0; !fault && i < plan->item_count; i++) {
        fault = width_fault(plan, &plan->items[i]);
        if (!fault && plan->items[i].splits) {
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
    uint32_t *finished = calloc(plan->row_count + 1, sizeof *finished);
    uint32_t *item_of = malloc((plan->partial_count + 1) * sizeof *item_of); /* by partial */
    if (!finished || !item_of)
        abort();
    for (uint32_t i = 0; i < plan->partial_count; i++)
        item_of[i] = PARTIAL_FREE;
    for (uint32_t i = 0; !fault && i < plan->item_count; i++)
        fault = item_fault(plan, i, window, item_of, finished);
    for (uint32_t i = 0; !fault && i < plan->merge_count; i++) {
        finished[plan->merges[i].row]++;
        fault = merge_fault(plan, &plan->merges[i], item_of, window);
    }
    for (uint32_t row = 0; !fault && row < plan->row_count; row++) {
        if (finished[row] != 1)
            fault = "a row is not finished exactly once";
    }
    for (uint32_t i = 0; !fault && i < plan->partial_count; i++) {
        if (item_of[i] != PARTIAL_FREE && item_of[i] != PARTIAL_MERGED)
            fault = "a partial that no merge reads";
    }
    free(finished);
    free(item_of);
    return fault ? fault : tiles_fault(plan);
}
