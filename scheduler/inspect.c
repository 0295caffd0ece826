/* inspect.c - see inspect.h. */
#include "scheduler/inspect.h"

#include "scheduler/reservation.h"

#include <string.h>

/* The row of a sequence, or NO_ROW with the request failed. */
uint32_t inspect_find(const struct engine_state *state, struct request *request, uint64_t id)
{
    const char *what = request->of_leases ? "lease" : "sequence";
    if (id >> SEQUENCE_NODE_SHIFT) {
        request_fail(request, ATTND_OTHER_NODE, "%s %llu belongs to node %llu, this is node 0", what,
                     (unsigned long long)id, (unsigned long long)(id >> SEQUENCE_NODE_SHIFT));
        return NO_ROW;
    }
    uint32_t row = sequences_find(state->sequences, id);
    if (row != NO_ROW && sequences_at(state->sequences, row)->lease == request->of_leases)
        return row;
    struct sequence_departure gone = sequences_departure(state->sequences, id);
    if (gone.id && gone.lease == request->of_leases)
        request_fail(request, ATTND_GONE,
                     "%s %llu was not used for %.0f s (its idle_timeout_s) and was removed %.0f s ago", what,
                     (unsigned long long)id, gone.idle_s, state->now_s - gone.at_s);
    else
        request_fail(request, ATTND_NOT_FOUND, "there is no %s %llu", what, (unsigned long long)id);
    return NO_ROW;
}

/* A sequence of a workload runs from its admission to its end. */
static enum sequence_state state_of(const struct engine_state *state, uint32_t row)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    const struct block_tables *tables = step_tables(state->steps);
    if (s->workload)
        return SEQUENCE_RUNNING;
    if (s->queued)
        return SEQUENCE_QUEUED;
    if (block_tables_view(tables, row).swapped)
        return SEQUENCE_SWAPPED;
    return block_tables_in_flight(tables, row) ? SEQUENCE_RUNNING : SEQUENCE_IDLE;
}

void inspect_note_state(struct engine_state *state, uint32_t row)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    if (!s->lease)
        sequences_note_state(state->sequences, row, state_of(state, row),
                             s->workload ? SEQUENCE_RUNS_ON
                                         : block_tables_last_step(step_tables(state->steps), row));
}

void inspect_view(const struct engine_state *state, uint32_t row, struct sequence_view *view)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    double now = state->now_s;
    *view = (struct sequence_view){.id = s->id,
                                   .parent = s->parent,
                                   .length = table.length,
                                   .blocks = table.entries,
                                   .shared_blocks = block_tables_shared(step_tables(state->steps), row),
                                   .age_s = now - s->created_s,
                                   .idle_s = now - s->used_s,
                                   .state = state_of(state, row),
                                   .swapped = table.swapped,
                                   .priority = s->options.priority,
                                   .max_tokens = s->options.max_tokens,
                                   .workload = s->workload};
}

bool inspect_show(const struct engine_state *state, struct request *request, struct request_shown *shown,
                  uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (table.entries > REQUEST_IDS_MAX - shown->block_id_count)
        return false;
    uint32_t *ids = request_alloc(request, table.entries, sizeof *ids);
    if (!ids)
        return false;
    if (!shown->block_ids)
        shown->block_ids = ids;
    /* they follow each other without the gaps that alignment leaves */
    memmove(shown->block_ids + shown->block_id_count, table.ids, table.entries * sizeof *ids);
    shown->block_id_count += table.entries;
    inspect_view(state, row, &shown->views[shown->count++]);
    return true;
}

int inspect_show_one(const struct engine_state *state, struct request *request, struct request_shown *shown,
                     uint32_t row)
{
    shown->views = request_alloc(request, 1, sizeof *shown->views);
    if (!shown->views || !inspect_show(state, request, shown, row))
        return request_fail(request, ATTND_INVALID, "it has more blocks than one answer shows (%d)",
                            REQUEST_IDS_MAX);
    return 0;
}

static void show_block(const struct engine_state *state, uint32_t block, struct block_view *view)
{
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    uint32_t refs = block_pool_refs(pool, block);
    *view = (struct block_view){.block = block, .refs = refs, .state = block_pool_state(pool, block)};
    view->fill = view->state == BLOCK_FREE ? 0 : block_pool_fill(pool, block);
}

int inspect_sequence(struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id), layers = state->config->geometry.layers;
    struct request_look *look = &request->look;
    if (row == NO_ROW || inspect_show_one(state, request, &look->shown, row) != 0)
        return request->status;
    look->lengths = request_alloc(request, layers, sizeof *look->lengths);
    for (uint32_t layer = 0; look->lengths && layer < layers; layer++)
        look->lengths[layer] = block_tables_cursor(step_tables(state->steps), row, layer);
    return 0;
}

int inspect_blocks(struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id), size = state->config->geometry.block_size;
    struct request_blocks *blocks = &request->table.blocks;
    if (row == NO_ROW)
        return request->status;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (table.entries <= REQUEST_TABLE_MAX)
        blocks->views = request_alloc(request, table.entries, sizeof *blocks->views);
    if (!blocks->views)
        return request_fail(request, ATTND_INVALID, "the table has %u blocks, and one answer shows %d",
                            table.entries, REQUEST_TABLE_MAX);
    for (uint32_t i = 0; i < table.entries; i++) {
        uint32_t start = i * size, left = table.cursor_max > start ? table.cursor_max - start : 0;
        if (table.swapped)
            blocks->views[i] = (struct block_view){.block = table.ids[i], .on_host = true};
        else
            show_block(state, table.ids[i], &blocks->views[i]);
        blocks->views[i].fill = left < size ? left : size; /* as this sequence sees it */
    }
    blocks->count = table.entries;
    return 0;
}

/* One page of sequences, by row; of a few wanted ones among many perhaps a short one, or an empty one. */
int inspect_list(struct engine_state *state, struct request *request)
{
    struct request_page *page = &request->list.page;
    struct request_shown *shown = &request->list.shown;
    shown->views = request_alloc(request, page->limit, sizeof *shown->views);
    uint32_t first = (uint32_t)page->cursor, rows = state->config->limits.sequences;
    for (uint32_t row = first; shown->views && row < rows; row++) {
        if (row - first == REQUEST_ROWS_MAX) {
            page->next = row;
            break;
        }
        const struct sequence *s = sequences_at(state->sequences, row);
        if (s->id == 0 || s->lease != request->of_leases ||
            (page->filter.on && state_of(state, row) != page->filter.state))
            continue;
        if (shown->count == page->limit || !inspect_show(state, request, shown, row)) {
            if (shown->count == 0)
                request_fail(request, ATTND_INVALID, "%s %llu has more blocks than one answer shows (%d)",
                             request->of_leases ? "lease" : "sequence",
                             (unsigned long long)sequences_at(state->sequences, row)->id, REQUEST_IDS_MAX);
            page->next = row;
            break;
        }
    }
    return request->status;
}

int inspect_stats(struct engine_state *state, struct request *request)
{
    struct step_stats steps = step_stats(state->steps);
    struct engine_stats *stats = &request->stats.all;
    *stats = (struct engine_stats){.epoch = state->epoch,
                                   .preemptions = state->preemptions,
                                   .pool = block_pool_counts(block_tables_pool(step_tables(state->steps))),
                                   .tables = block_tables_counts(step_tables(state->steps)),
                                   .steps = steps,
                                   .leases = state->leases,
                                   .leased_blocks = state->leased_blocks,
                                   .gb_per_s =
                                       steps.busy_s > 0 ? (double)steps.bytes_read / steps.busy_s * 1e-9 : 0};
    sequences_count(state->sequences, block_pool_retired(block_tables_pool(step_tables(state->steps))),
                    stats->states);
    return inspect_list(state, request);
}

/* Which sequence holds each of the `n` blocks from `first` on that are on the page; `place`: where there. */
static void find_owners(const struct engine_state *state, struct request_blocks *blocks, uint32_t first,
                        uint32_t n, const uint32_t *place)
{
    for (uint32_t row = 0; row < state->config->limits.sequences; row++) {
        uint64_t id = sequences_at(state->sequences, row)->id;
        struct block_table_view table = {0};
        if (id)
            table = block_tables_view(step_tables(state->steps), row);
        for (uint32_t i = 0; !table.swapped && i < table.entries; i++) {
            uint32_t at = table.ids[i] - first;
            if (at < n && place[at] != UINT32_MAX && blocks->views[place[at]].owner == 0)
                blocks->views[place[at]].owner = id;
        }
    }
}

int inspect_pool(struct engine_state *state, struct request *request)
{
    struct request_page *page = &request->pool.page;
    struct request_blocks *blocks = &request->pool.blocks;
    uint32_t all = (uint32_t)state->config->pool_blocks, first = (uint32_t)page->cursor;
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    blocks->views = request_alloc(request, page->limit, sizeof *blocks->views);
    uint32_t *place =
        request_alloc(request, REQUEST_SCAN_MAX, sizeof *place); /* on the page, of each block */
    if (!blocks->views || !place)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", page->limit);
    uint32_t n = 0;
    for (; first + n < all && n < REQUEST_SCAN_MAX && blocks->count < page->limit; n++) {
        bool wanted = !page->filter.on || block_pool_state(pool, first + n) == page->filter.state;
        place[n] = wanted ? blocks->count : UINT32_MAX;
        if (wanted)
            show_block(state, first + n, &blocks->views[blocks->count++]);
    }
    find_owners(state, blocks, first, n, place);
    request->pool.epoch = state->epoch;
    page->next = first + n < all ? first + n : 0;
    return 0;
}

/* Whether the states that were noted are those of the sequences. */
static const char *states_fault(const struct engine_state *state)
{
    uint64_t retired = block_pool_retired(block_tables_pool(step_tables(state->steps)));
    for (uint32_t row = 0; row < state->config->limits.sequences; row++) {
        const struct sequence *s = sequences_at(state->sequences, row);
        if (s->id && s->noted == s->lease)
            return "S1: a sequence is not counted by its state, or a lease is";
        if (s->noted && s->id && sequences_state(state->sequences, row, retired) != state_of(state, row))
            return "S1: a sequence is in another state than it is counted by";
    }
    return sequences_fault(state->sequences);
}

const char *inspect_fault(const struct engine_state *state)
{
    const char *fault = block_tables_fault(step_tables(state->steps));
    fault = fault ? fault : reservation_fault(state);
    return fault ? fault : states_fault(state);
}

int inspect_audit(struct engine_state *state, struct request *request)
{
    request->check.fault = inspect_fault(state);
    return 0;
}
