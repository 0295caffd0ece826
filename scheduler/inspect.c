/* inspect.c - see inspect.h. */
#include "scheduler/inspect.h"

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

/* Append one sequence and its block ids to the request's answer; false when it is full. */
bool inspect_show(const struct engine_state *state, struct request *request, uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (table.entries > REQUEST_IDS_MAX - request->list_count)
        return false;
    uint32_t *list = request_alloc(request, table.entries, sizeof *list);
    if (!list)
        return false;
    if (!request->list)
        request->list = list;
    /* lists follow each other without the gaps that alignment leaves */
    memmove(request->list + request->list_count, table.ids, table.entries * sizeof *list);
    request->list_count += table.entries;
    inspect_view(state, row, &request->views[request->view_count++]);
    return true;
}

int inspect_show_one(const struct engine_state *state, struct request *request, uint32_t row)
{
    request->views = request_alloc(request, 1, sizeof *request->views);
    if (!request->views || !inspect_show(state, request, row))
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

void inspect_sequence(const struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id);
    if (row == NO_ROW || inspect_show_one(state, request, row) != 0)
        return;
    request->lengths = request_alloc(request, state->config->geometry.layers, sizeof *request->lengths);
    for (uint32_t layer = 0; request->lengths && layer < state->config->geometry.layers; layer++)
        request->lengths[layer] = block_tables_cursor(step_tables(state->steps), row, layer);
}

void inspect_blocks(const struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id);
    if (row == NO_ROW)
        return;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (table.entries <= REQUEST_TABLE_MAX)
        request->blocks = request_alloc(request, table.entries, sizeof *request->blocks);
    if (!request->blocks) {
        request_fail(request, ATTND_INVALID, "the table has %u blocks, and one answer shows %d",
                     table.entries, REQUEST_TABLE_MAX);
        return;
    }
    for (uint32_t i = 0; i < table.entries; i++) {
        uint32_t start = i * state->config->geometry.block_size,
                 left = table.cursor_max > start ? table.cursor_max - start : 0;
        if (table.swapped)
            request->blocks[i] = (struct block_view){.block = table.ids[i], .on_host = true};
        else
            show_block(state, table.ids[i], &request->blocks[i]);
        request->blocks[i].fill = left < state->config->geometry.block_size
                                      ? left
                                      : state->config->geometry.block_size; /* as this sequence sees it */
    }
    request->block_count = table.entries;
}

/* One page of sequences, by row. */
void inspect_list(const struct engine_state *state, struct request *request)
{
    request->views = request_alloc(request, request->limit, sizeof *request->views);
    for (uint32_t row = (uint32_t)request->cursor; request->views && row < state->config->limits.sequences;
         row++) {
        const struct sequence *s = sequences_at(state->sequences, row);
        if (s->id == 0 || s->lease != request->of_leases ||
            (request->filter.on && state_of(state, row) != request->filter.state))
            continue;
        if (request->view_count == request->limit || !inspect_show(state, request, row)) {
            if (request->view_count == 0)
                request_fail(request, ATTND_INVALID, "%s %llu has more blocks than one answer shows (%d)",
                             request->of_leases ? "lease" : "sequence",
                             (unsigned long long)sequences_at(state->sequences, row)->id, REQUEST_IDS_MAX);
            request->next = row;
            return;
        }
    }
}

void inspect_stats(const struct engine_state *state, struct request *request)
{
    struct step_stats steps = step_stats(state->steps);
    request->stats = (struct request_stats){
        .epoch = state->epoch,
        .preemptions = state->preemptions,
        .pool = block_pool_counts(block_tables_pool(step_tables(state->steps))),
        .tables = block_tables_counts(step_tables(state->steps)),
        .steps = steps,
        .leases = state->leases,
        .leased_blocks = state->leased_blocks,
        .gb_per_s = steps.busy_s > 0 ? (double)steps.bytes_read / steps.busy_s * 1e-9 : 0};
    for (uint32_t row = 0; row < state->config->limits.sequences; row++) {
        const struct sequence *s = sequences_at(state->sequences, row);
        if (s->id && !s->lease)
            request->stats.states[state_of(state, row)]++;
    }
    inspect_list(state, request);
}

void inspect_pool(const struct engine_state *state, struct request *request)
{
    uint32_t blocks = (uint32_t)state->config->pool_blocks, first = (uint32_t)request->cursor;
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    request->blocks = request_alloc(request, request->limit, sizeof *request->blocks);
    uint32_t *place =
        request_alloc(request, REQUEST_SCAN_MAX, sizeof *place); /* on the page, of each block */
    if (!request->blocks || !place) {
        request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", request->limit);
        return;
    }
    uint32_t n = 0;
    for (; first + n < blocks && n < REQUEST_SCAN_MAX && request->block_count < request->limit; n++) {
        bool wanted = !request->filter.on || block_pool_state(pool, first + n) == request->filter.state;
        place[n] = wanted ? request->block_count : UINT32_MAX;
        if (wanted)
            show_block(state, first + n, &request->blocks[request->block_count++]);
    }
    for (uint32_t row = 0; row < state->config->limits.sequences; row++) {
        uint64_t id = sequences_at(state->sequences, row)->id;
        struct block_table_view table = {0};
        if (id)
            table = block_tables_view(step_tables(state->steps), row);
        for (uint32_t i = 0; !table.swapped && i < table.entries; i++) {
            uint32_t at = table.ids[i] - first;
            if (at < n && place[at] != UINT32_MAX && request->blocks[place[at]].owner == 0)
                request->blocks[place[at]].owner = id;
        }
    }
    request->stats.epoch = state->epoch;
    request->next = first + n < blocks ? first + n : 0;
}
