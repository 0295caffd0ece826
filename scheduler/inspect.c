/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c - see inspect.h. */
#include "scheduler/inspect.h"
#include "scheduler/journal.h"

#include "allocator/block_log.h"
#include "config/numbers.h"
#include "scheduler/client_queue.h"
#include "scheduler/doorbell.h"
#include "scheduler/history.h"
#include "scheduler/reservation.h"
#include "scheduler/swap_cache.h"
#include "scheduler/workload.h"
#include "scheduler/workload_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool inspect_sees(const struct request *request, uint64_t key)
{
    return request->sees_all || request->key == key;
}

void inspect_fail_moved(struct request *request, const struct departure *gone)
{
    request->moved_to = request_alloc(request, sizeof gone->moved_to, 1);
    if (request->moved_to)
        memcpy(request->moved_to, gone->moved_to, sizeof gone->moved_to);
    request_fail(request, ATTND_MOVED, "sequence %llu has moved", (unsigned long long)gone->id);
}

/* A request about what is no more fails. */
static void fail_departed(const struct engine_state *state, struct request *request,
                          const struct departure *gone)
{
    if (gone->moved_to[0])
        inspect_fail_moved(request, gone);
    else
        request_fail(request, ATTND_GONE,
                     "%s %llu was not used for %.0f s (its idle_timeout_s) and was removed %.0f s ago",
                     gone->lease ? "lease" : "sequence", (unsigned long long)gone->id, gone->idle_s,
                     state->now_s - gone->at_s);
}

bool inspect_is_ours(const struct engine_state *state, struct request *request, uint64_t id, const char *what)
{
    bool ours = id >> SEQUENCE_NODE_SHIFT == state->config->node;
    if (!ours)
        request_fail(request, ATTND_OTHER_NODE, "%s %llu belongs to node %llu, this is node %u", what,
                     (unsigned long long)id, (unsigned long long)(id >> SEQUENCE_NODE_SHIFT),
                     state->config->node);
    return ours;
}

/* The row of a sequence, or NO_ROW with the request failed. */
uint32_t inspect_find(const struct engine_state *state, struct request *request, uint64_t id)
{
    const char *what = request->of_leases ? "lease" : "sequence";
    if (id == 0 || id > REQUEST_ID_MAX) {
        request_fail(request, ATTND_NOT_FOUND, "there is no %s %llu: ids are 1..9007199254740991", what,
                     (unsigned long long)id);
        return NO_ROW;
    }
    if (!inspect_is_ours(state, request, id, what))
        return NO_ROW;
    uint32_t row = sequences_find(state->sequences, id);
    if (row != NO_ROW && sequences_at(state->sequences, row)->lease == request->of_leases &&
        inspect_sees(request, sequences_at(state->sequences, row)->key))
        return row;
    const struct departure *gone = departures_find(sequences_departures(state->sequences), id);
    if (gone && gone->lease == request->of_leases && inspect_sees(request, gone->key))
        fail_departed(state, request, gone);
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
                                         : block_tables_view(step_tables(state->steps), row).last_step);
}

void inspect_view(const struct engine_state *state, uint32_t row, struct sequence_view *view)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    enum sequence_state is = state_of(state, row);
    bool used = is == SEQUENCE_QUEUED || is == SEQUENCE_RUNNING;
    double now = state->now_s;
    *view = (struct sequence_view){.id = s->id,
                                   .parent = s->parent,
                                   .key = s->key,
                                   .length = table.length,
                                   .blocks = table.entries,
                                   .shared_blocks = block_tables_shared(step_tables(state->steps), row),
                                   .age_s = now - s->created_s,
                                   .idle_s = used ? 0 : now - s->used_s,
                                   .state = is,
                                   .swapped = table.swapped,
                                   .priority = s->options.priority,
                                   .max_tokens = s->options.max_tokens,
                                   .workload = s->workload};
}

bool inspect_show(const struct engine_state *state, struct request *request, struct request_shown *shown,
                  uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    uint32_t most = request->listed_max ? request->listed_max : REQUEST_LISTED_MAX,
             listed = smaller(table.entries, most);
    if (listed > REQUEST_IDS_MAX - shown->block_id_count)
        return false;
    uint32_t *ids = request_alloc(request, listed, sizeof *ids);
    if (!ids)
        return false;
    if (!shown->block_ids)
        shown->block_ids = ids;
    /* they follow each other without the gaps that alignment leaves */
    memmove(shown->block_ids + shown->block_id_count, table.ids, listed * sizeof *ids);
    shown->block_id_count += listed;
    inspect_view(state, row, &shown->views[shown->count]);
    shown->views[shown->count++].listed = listed;
    return true;
}

int inspect_show_one(const struct engine_state *state, struct request *request, struct request_shown *shown,
                     uint32_t row)
{
    shown->views = request_alloc(request, 1, sizeof *shown->views);
    if (!shown->views || !inspect_show(state, request, shown, row))
        return request_fail(request, ATTND_INVALID, "the answer has no room for its blocks");
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

int inspect_describe(struct engine_state *state, struct request *request)
{
    struct request_described *d = &request->described;
    uint32_t row = inspect_find(state, request, request->id);
    if (row == NO_ROW)
        return request->status;
    const struct sequence *s = sequences_at(state->sequences, row);
    const struct block_tables *tables = step_tables(state->steps);
    struct block_table_view table = block_tables_view(tables, row);
    const void *salt;
    *d = (struct request_described){.options = s->options,
                                    .key = s->key,
                                    .parent = s->parent,
                                    .prompt.count = prompts_length(state->prompts, row),
                                    .salt_bytes = (uint32_t)block_tables_salt(tables, row, &salt),
                                    .length = table.length,
                                    .block_count = table.swapped ? 0 : table.entries};
    d->prompt.ids = request_alloc(request, d->prompt.count, sizeof *d->prompt.ids);
    d->blocks = table.swapped ? NULL : request_alloc(request, table.entries, sizeof *d->blocks);
    if (!d->prompt.ids || (!table.swapped && !d->blocks))
        return request_fail(request, ATTND_INVALID, "the prompt of sequence %llu is too long for an answer",
                            (unsigned long long)request->id);
    memcpy(d->salt, salt ? salt : "", d->salt_bytes);
    prompts_read(state->prompts, row, 0, d->prompt.count, d->prompt.ids);
    for (uint32_t i = 0; d->blocks && i < table.entries; i++)
        d->blocks[i] = table.ids[i];
    return 0;
}

int inspect_blocks(struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id), size = state->config->geometry.block_size;
    struct request_blocks *blocks = &request->table.blocks;
    struct request_page *page = &request->table.page;
    if (row == NO_ROW)
        return request->status;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    uint32_t first = page->cursor < table.entries ? (uint32_t)page->cursor : table.entries;
    blocks->count = smaller(table.entries - first, page->limit);
    blocks->views = request_alloc(request, blocks->count, sizeof *blocks->views);
    if (!blocks->views)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", page->limit);
    for (uint32_t n = 0; n < blocks->count; n++) {
        uint32_t start = (first + n) * size, left = table.cursor_max > start ? table.cursor_max - start : 0;
        if (table.swapped)
            blocks->views[n] = (struct block_view){.block = table.ids[first + n], .on_host = true};
        else
            show_block(state, table.ids[first + n], &blocks->views[n]);
        blocks->views[n].fill = left < size ? left : size; /* as this sequence sees it */
    }
    page->next = first + blocks->count < table.entries ? first + blocks->count : 0;
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
        if (s->id == 0 || s->lease != request->of_leases || !inspect_sees(request, s->key) ||
            (page->filter.on && state_of(state, row) != page->filter.state))
            continue;
        if (shown->count == page->limit || !inspect_show(state, request, shown, row)) {
            page->next = row;
            break;
        }
    }
    return 0;
}

int inspect_stats(struct engine_state *state, struct request *request)
{
    struct step_stats steps = step_stats(state->steps);
    struct engine_stats *stats = &request->stats.all;
    *stats = (struct engine_stats){.epoch = history_epoch(state),
                                   .preemptions = state->preemptions,
                                   .refusals = state->refusals,
                                   .pool = block_pool_counts(block_tables_pool(step_tables(state->steps))),
                                   .tables = block_tables_counts(step_tables(state->steps)),
                                   .swap = swap_cache_counts(state->swap_cache),
                                   .steps = steps,
                                   .leases = state->leases,
                                   .leased_blocks = state->leased_blocks,
                                   .promised = reservation_promised(state),
                                   .workload_wait_s = workload_run_longest_wait_s(state->workloads),
                                   .gb_per_s =
                                       steps.busy_s > 0 ? (double)steps.bytes_read / steps.busy_s * 1e-9 : 0};
    stats->done = work_tally_read(&state->done);
    stats->doorbell = doorbell_counts(state->doorbell);
    stats->journal = journal_state(state->journal);
    stats->kv_events = kv_events_counts(state->kv_events);
    stats->own = tenants_use(sequences_tenants(state->sequences), request->key);
    for (uint32_t i = 0; i < request->stats.tenant_count; i++) {
        struct request_tenant *tenant = &request->stats.tenants[i];
        tenant->use = tenants_use(sequences_tenants(state->sequences), tenant->key);
    }
    sequences_count(state->sequences, block_pool_retired(block_tables_pool(step_tables(state->steps))),
                    stats->states);
    return inspect_list(state, request);
}

int inspect_steps(struct engine_state *state, struct request *request)
{
    struct request_steps *ask = &request->steps;
    ask->entries = request_alloc(request, ask->limit, sizeof *ask->entries);
    if (!ask->entries)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", ask->limit);
    const struct step_log *log = step_log(state->steps);
    ask->count = step_log_read(log, ask->since, ask->latest, ask->limit, ask->entries);
    if (!ask->passes || !log->passes)
        return 0;
    ask->stamped = request_alloc(request, smaller(ask->count, STEP_LOG_STAMPED), sizeof *ask->stamped);
    for (uint32_t i = 0; ask->stamped && i < ask->count; i++) {
        const struct step_log_passes *passes = step_log_passes(log, ask->entries[i].step);
        if (passes && ask->stamped_count < STEP_LOG_STAMPED)
            ask->stamped[ask->stamped_count++] = *passes;
    }
    return 0;
}

/* ---- questions in parts -------------------------------------------------------------------------- */

/* Keep a question, which is answered in parts, one a turn, behind those that came before it. */
static int ask_in_parts(struct engine_state *state, struct request *request)
{
    request_list_append(&state->questions, request);
    return REQUEST_WAITS;
}

enum {
    LOOK_WORK = 2,     /* a block that is looked at is work of so many entries of tables, */
    CHANGES_A_LOOK = 8 /* and so many changes of the log are that of one */
};

/* Whether the epoch that is asked for can be shown; else the request has failed. One of now begins again if its epoch is
 * too long ago already, and then goes on to its end at once. */
static bool has_epoch(struct engine_state *state, struct request *request, struct request_epoch *at)
{
    uint64_t now = history_epoch(state),
             oldest = block_log_oldest(block_tables_log(step_tables(state->steps)));
    if (!at->past && (!at->begun || at->epoch < oldest))
        *at = (struct request_epoch){.epoch = now, .begun = true, .hurries = at->begun};
    else if (at->epoch > now)
        request_fail(request, ATTND_INVALID, "epoch %llu is to come, it is %llu now",
                     (unsigned long long)at->epoch, (unsigned long long)now);
    else if (at->epoch < oldest)
        request_fail(request, ATTND_EPOCH_GONE,
                     "epoch %llu is too long ago: the oldest that can be shown is %llu",
                     (unsigned long long)at->epoch, (unsigned long long)oldest);
    return request->status == 0;
}

/* Of the blocks of a page as they were, find who held those then that somebody has given back since; true when all are
 * looked at. */
static bool find_losers(const struct engine_state *state, struct request_pool *ask, uint32_t *work)
{
    struct block_log *log = block_tables_log(step_tables(state->steps));
    for (; ask->asked_losers < ask->blocks.count; ask->asked_losers++) {
        struct block_view *view = &ask->blocks.views[ask->asked_losers];
        if (!ask->lost[ask->asked_losers])
            continue;
        if (*work == 0)
            return false;
        *work -= smaller(*work, 1 + (uint32_t)(log->number - ask->at.epoch) / CHANGES_A_LOOK);
        view->owner = block_log_loser(log, ask->at.epoch, view->block);
        ask->unowned -= view->owner != 0;
    }
    return true;
}

/* Look in entries of tables for the blocks of a page that have no owner yet; true when none is
 * left, or all tables are looked at. A block that somebody gave back meanwhile stays without. */
static bool find_owners(const struct engine_state *state, struct request_pool *ask, uint32_t *work)
{
    const struct block_tables *tables = step_tables(state->steps);
    struct block_log *log = block_tables_log(tables);
    const struct block_pool *pool = block_tables_pool(tables);
    if (!find_losers(state, ask, work))
        return false;
    while (*work > 0 && ask->unowned > 0 && ask->row < state->config->limits.sequences) {
        uint64_t id = sequences_at(state->sequences, ask->row)->id;
        struct block_table_view table = {.swapped = true};
        if (id)
            table = block_tables_view(tables, ask->row);
        uint32_t entries = table.swapped ? 0 : table.entries, last = entries, before = *work;
        if (entries > ask->entry && entries - ask->entry > before)
            last = ask->entry + before;
        for (uint32_t i = ask->entry; table.ids && i < last; i++) {
            uint32_t at = table.ids[i] - ask->first,
                     place = at < ask->looked_at ? ask->place[at] : UINT32_MAX;
            if (place == UINT32_MAX || ask->blocks.views[place].owner ||
                ask->generation[place] != block_pool_generation(pool, table.ids[i]))
                continue;
            if (ask->at.past)
                *work -= smaller(*work, 1 + (uint32_t)(log->number - ask->at.epoch) / CHANGES_A_LOOK);
            if (ask->at.past && block_log_gained(log, ask->at.epoch, table.ids[i], id))
                continue;
            ask->blocks.views[place].owner = id;
            ask->unowned--;
        }
        *work -= smaller(*work, 1 + (last > ask->entry ? last - ask->entry : 0));
        ask->entry = last;
        if (last >= entries) {
            ask->row++;
            ask->entry = 0;
        }
    }
    return ask->unowned == 0 || ask->row == state->config->limits.sequences;
}

/* How blocks were, or are: what a page shows of them. */
static struct block_view view_of_past(const struct engine_state *state, const struct request *request,
                                      uint32_t block, const struct block_past *past)
{
    struct block_view view = {.block = block, .state = (enum block_state)past->state};
    view.foreign = past->state != BLOCK_FREE && !inspect_sees(request, past->key);
    if (view.foreign) {
        view.state = past->state == BLOCK_CACHED ? BLOCK_CACHED : BLOCK_HELD;
        return view;
    }
    view.refs = past->refs;
    if (past->state != BLOCK_FREE)
        view.fill = past->refs == 0 && past->published ? state->config->geometry.block_size : past->fill;
    return view;
}

enum { LOOKED_AT_ONCE = 256 }; /* blocks */

/* past [n] become blocks from `first` on as they are, or were at the epoch that is asked for. */
static void look_at(struct engine_state *state, const struct request *request, uint32_t first, uint32_t n,
                    struct block_past *past, uint32_t *work)
{
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    struct block_log *log = block_tables_log(step_tables(state->steps));
    bool keyed = !request->sees_all || request->pool.at.past;
    for (uint32_t i = 0; i < n; i++) {
        past[i] = block_pool_now(pool, first + i);
        past[i].key = keyed ? block_log_key(log, first + i) : 0;
    }
    *work -= smaller(*work, n * LOOK_WORK);
    if (history_epoch(state) == request->pool.at.epoch)
        return;
    *work -= smaller(*work, (uint32_t)(log->number - request->pool.at.epoch) / CHANGES_A_LOOK);
    block_log_rewind(log, request->pool.at.epoch, first, n, past);
}

/* Put a block on the page, if it is wanted there. */
static void show_on_page(struct engine_state *state, struct request *request, uint32_t block,
                         const struct block_past *past)
{
    struct request_pool *ask = &request->pool;
    const struct block_view view = view_of_past(state, request, block, past);
    bool wants_owner = view.state == BLOCK_HELD && !view.foreign;
    uint32_t *place = &ask->place[ask->looked_at++], at = ask->blocks.count;
    *place = UINT32_MAX;
    if (ask->page.filter.on && view.state != ask->page.filter.state)
        return;
    if (wants_owner && !past->retaken)
        *place = at;
    ask->lost[at] = wants_owner && past->lost;
    ask->unowned += wants_owner;
    ask->generation[at] = block_pool_generation(block_tables_pool(step_tables(state->steps)), block);
    ask->blocks.views[ask->blocks.count++] = view;
}

/* Look at blocks until the page is full, all as they were at one epoch; true when it is, or the request has failed. */
static bool fill_page(struct engine_state *state, struct request *request, uint32_t *work)
{
    struct request_pool *ask = &request->pool;
    struct request_page *page = &ask->page;
    struct block_past past[LOOKED_AT_ONCE];
    if (ask->looked_at == ask->most || ask->blocks.count == page->limit)
        return true;
    uint64_t epoch = ask->at.epoch;
    if (!has_epoch(state, request, &ask->at))
        return true;
    if (epoch != ask->at.epoch) /* it begins again */
        ask->looked_at = ask->blocks.count = ask->unowned = 0;
    while (ask->looked_at < ask->most && ask->blocks.count < page->limit) {
        if (*work == 0 && !ask->at.hurries)
            return false;
        uint32_t first = ask->first + ask->looked_at, n = smaller(ask->most - ask->looked_at, LOOKED_AT_ONCE);
        n = ask->at.hurries ? n : smaller(n, 1 + *work / LOOK_WORK);
        look_at(state, request, first, n, past, work);
        for (uint32_t i = 0; i < n && ask->blocks.count < page->limit; i++)
            show_on_page(state, request, first + i, &past[i]);
    }
    uint32_t next = ask->first + ask->looked_at;
    page->next = next < (uint32_t)state->config->pool_blocks ? next : 0;
    return true;
}

int inspect_pool(struct engine_state *state, struct request *request)
{
    struct request_pool *ask = &request->pool;
    struct request_page *page = &ask->page;
    uint32_t all = (uint32_t)state->config->pool_blocks;
    if (!has_epoch(state, request, &ask->at))
        return request->status;
    ask->first = page->cursor < all ? (uint32_t)page->cursor : all;
    ask->most = smaller(all - ask->first, page->filter.on ? REQUEST_SCAN_MAX : page->limit);
    ask->blocks.views = request_alloc(request, page->limit, sizeof *ask->blocks.views);
    ask->generation = request_alloc(request, page->limit, sizeof *ask->generation);
    ask->place = request_alloc(request, ask->most, sizeof *ask->place);
    ask->lost = request_alloc(request, page->limit, sizeof *ask->lost);
    if (!ask->blocks.views || !ask->lost || !ask->generation || !ask->place)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", page->limit);
    return ask_in_parts(state, request);
}

/* Do a part of it; true when it is answered. */
static bool pool_part(struct engine_state *state, struct request *request, uint32_t *work)
{
    return fill_page(state, request, work) &&
           (request->status != 0 || find_owners(state, &request->pool, work));
}

/* ---- tables -------------------------------------------------------------------------------------- */

int inspect_tables(struct engine_state *state, struct request *request)
{
    struct request_tables *ask = &request->tables;
    if (!has_epoch(state, request, &ask->at))
        return request->status;
    ask->next = ask->at.epoch + 1;
    ask->views = request_alloc(request, ask->limit, sizeof *ask->views);
    ask->block_ids = request_alloc(request, REQUEST_IDS_MAX, sizeof *ask->block_ids);
    if (!ask->views || !ask->block_ids)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", ask->limit);
    return ask_in_parts(state, request);
}

/* List a sequence with its table, of which this is now, as it was at the epoch that is asked for; or count it, if there is no
 * room. Not one that began after that epoch and ended by change `ended`. */
static void add_table(const struct engine_state *state, struct request_tables *ask, struct table_view view,
                      const struct block_table_view *table, uint64_t ended, uint32_t *work)
{
    const struct block_log *log = block_tables_log(step_tables(state->steps));
    uint32_t *ids = ask->block_ids + ask->block_id_count, room = REQUEST_IDS_MAX - ask->block_id_count,
             most = smaller(room, REQUEST_LISTED_MAX), n = smaller(table->entries, most);
    uint64_t began = 0;
    if (!ended && (ask->left_out || ask->count == ask->limit)) {
        ask->left_out++;
        return;
    }
    if (n > 0)
        memcpy(ids, table->ids, n * sizeof *ids);
    *work -= smaller(*work, n + (uint32_t)(log->number - ask->at.epoch) / CHANGES_A_LOOK);
    view.blocks = block_log_rewind_table(log, ask->at.epoch, view.id, ids, table->entries, most, &began);
    view.listed = smaller(view.blocks, most);
    if (began && began < ended)
        return;
    if (ask->left_out || ask->count == ask->limit ||
        (view.listed < view.blocks && view.listed == room && ask->count > 0)) {
        ask->left_out++;
        return;
    }
    ask->views[ask->count++] = view;
    ask->block_id_count += view.listed;
}

/* Look at those that have ended since, but for those in rows that were looked at before; true when it has come to the
 * present. */
static bool find_ended(const struct engine_state *state, struct request *request, uint32_t *work)
{
    struct request_tables *ask = &request->tables;
    struct block_log *log = block_tables_log(step_tables(state->steps));
    static const struct block_table_view none;
    struct block_change c;
    while (ask->next <= log->number) {
        if (*work == 0 && !ask->at.hurries)
            return false;
        (void)block_log_read(log, &ask->next, &c, 1);
        *work -= smaller(*work, c.number % CHANGES_A_LOOK == 0);
        if (c.kind == CHANGE_ENDED && !c.lease && c.row >= ask->row && inspect_sees(request, c.key))
            add_table(state, ask, (struct table_view){.id = c.sequence, .parent = c.parent}, &none, c.number,
                      work);
    }
    return true;
}

/* Go on with the tables at an epoch: those of sequences that have ended first, since while it looks at the others some of
 * these end; true when all are looked at, or the request has failed. */
static bool tables_part(struct engine_state *state, struct request *request, uint32_t *work)
{
    struct request_tables *ask = &request->tables;
    const struct block_tables *tables = step_tables(state->steps);
    uint64_t epoch = ask->at.epoch;
    if (!has_epoch(state, request, &ask->at))
        return true;
    if (epoch != ask->at.epoch) { /* it begins again */
        ask->count = ask->left_out = ask->block_id_count = ask->row = 0;
        ask->next = ask->at.epoch + 1;
    }
    if (!find_ended(state, request, work))
        return false;
    for (; ask->row < state->config->limits.sequences; ask->row++) {
        const struct sequence *s = sequences_at(state->sequences, ask->row);
        if (*work == 0 && !ask->at.hurries)
            return false;
        *work -= smaller(*work, 1);
        if (!s->id || s->lease || s->began > ask->at.epoch || !inspect_sees(request, s->key))
            continue;
        struct block_table_view table = block_tables_view(tables, ask->row);
        table.entries = table.swapped ? 0 : table.entries;
        add_table(state, ask, (struct table_view){.id = s->id, .parent = s->parent}, &table, 0, work);
    }
    return true;
}

/* ---- the prefix index ---------------------------------------------------------------------------- */

/* Seconds since the latest change of a block. */
static double rests_s(const struct engine_state *state, uint32_t block)
{
    const struct block_life *life = block_log_life(block_tables_log(step_tables(state->steps)), block);
    const struct life_change *last = &life->changes[(life->count - 1) % LIFE_CHANGES];
    double rests = life->count ? state->now_s - (double)last->time_ms * 1e-3 : 0;
    return rests > 0 ? rests : 0;
}

int inspect_prefixes(struct engine_state *state, struct request *request)
{
    struct request_prefixes *out = &request->prefixes;
    struct request_page *page = &out->page;
    uint32_t all = (uint32_t)state->config->pool_blocks;
    out->epoch = history_epoch(state);
    out->chains = request_alloc(request, page->limit, sizeof *out->chains);
    out->block_ids = request_alloc(request, REQUEST_IDS_MAX, sizeof *out->block_ids);
    if (!out->chains || !out->block_ids)
        return request_fail(request, ATTND_INVALID, "limit %u does not fit one answer", page->limit);
    out->block = page->cursor < all ? (uint32_t)page->cursor : all;
    return ask_in_parts(state, request);
}

/* Go on with a page of chains, by their last blocks, each as it is then; true when it is full. */
static bool prefixes_part(struct engine_state *state, struct request *request, uint32_t *work)
{
    struct request_prefixes *out = &request->prefixes;
    struct block_tables *tables = step_tables(state->steps);
    uint32_t all = (uint32_t)state->config->pool_blocks;
    for (; out->block < all && out->count < out->page.limit; out->block++) {
        struct chain_view *view = &out->chains[out->count];
        uint32_t room = REQUEST_IDS_MAX - out->block_id_count;
        if (*work == 0)
            return false;
        --*work;
        if (!block_tables_chain(tables, out->block, &view->chain, out->block_ids + out->block_id_count,
                                smaller(room, REQUEST_LISTED_MAX)))
            continue;
        *work -= smaller(*work, view->chain.blocks);
        if (!inspect_sees(request, view->chain.owner))
            continue;
        view->listed = smaller(view->chain.blocks, smaller(room, REQUEST_LISTED_MAX));
        if (view->listed < view->chain.blocks && view->listed == room && out->count > 0)
            break; /* on the next page there is room for it */
        view->idle_s = rests_s(state, out->block);
        out->block_id_count += view->listed;
        out->count++;
    }
    out->page.next = out->block < all ? out->block : 0;
    return true;
}

/* ---- what waits ---------------------------------------------------------------------------------- */

/* What something waits behind keeps its number to itself, if it is another key's. */
static void hide_foreign(const struct engine_state *state, const struct request *ask, struct wait_note *note)
{
    uint64_t key = 0;
    bool there = note->behind == BEHIND_WORKLOAD && workload_run_key(state->workloads, note->behind_id, &key);
    uint32_t row =
        note->behind == BEHIND_SEQUENCE ? sequences_find(state->sequences, note->behind_id) : NO_ROW;
    if (row != NO_ROW)
        key = sequences_at(state->sequences, row)->key;
    if (!(there || row != NO_ROW) || !inspect_sees(ask, key))
        note->behind_id = ask->sees_all ? note->behind_id : 0;
}

/* Add a request that waits, or count it, if it is another key's. */
static void add_wait(const struct engine_state *state, struct request *ask, const struct request *waits,
                     struct wait_note note)
{
    struct request_waiting *out = &ask->waiting;
    bool seen = inspect_sees(ask, waits->key) && out->count < REQUEST_WAITS_MAX;
    out->others += !seen;
    if (!seen)
        return;
    struct wait_view *view = &out->views[out->count++];
    *view = (struct wait_view){.kind = request_kinds[waits->kind].name,
                               .sequences = waits->queued.on_count,
                               .id_count = smaller(waits->queued.on_count, REQUEST_WAIT_IDS_MAX),
                               .since_s = state->now_s - waits->submitted_s,
                               .note = note};
    view->estimate_s = note.reason == WAIT_FOR_STEP || note.reason == WAIT_FOR_TURN
                           ? steps_left_s(state->steps, state->now_s)
                           : NAN;
    snprintf(view->name, sizeof view->name, "%s", waits->name);
    snprintf(view->owner, sizeof view->owner, "%s", waits->owner_name);
    hide_foreign(state, ask, &view->note);
    for (uint32_t i = 0; i < view->id_count; i++)
        view->ids[i] = waits->queued.on[i].id;
}

int inspect_waiting(struct engine_state *state, struct request *request)
{
    struct request_waiting *out = &request->waiting;
    uint32_t most = smaller(state->requests + WORKLOADS_MAX, REQUEST_WAITS_MAX);
    struct wait_view view;
    uint64_t key;
    out->epoch = history_epoch(state);
    out->views = request_alloc(request, most, sizeof *out->views);
    if (!out->views)
        return request_fail(request, ATTND_INVALID, "the answer has no room for all that waits");
    for (const struct request *r = client_queue_first(state->clients); r; r = r->next)
        add_wait(state, request, r, r->queued.wait);
    for (const struct request *r = state->alone.first; r; r = r->next)
        add_wait(state, request, r, (struct wait_note){.reason = WAIT_FOR_STEP});
    for (uint32_t i = 0; i < WORKLOADS_MAX; i++) {
        if (!workload_run_waits(state->workloads, i, &view, &key))
            continue;
        bool seen = inspect_sees(request, key) && out->count < most;
        out->others += !seen;
        hide_foreign(state, request, &view.note);
        if (seen)
            out->views[out->count++] = view;
    }
    return 0;
}

/* ---- the audit ----------------------------------------------------------------------------------- */

/* Whether the state that was noted is that of the sequence. */
static const char *state_fault(const struct engine_state *state, uint32_t row)
{
    uint64_t retired = block_pool_retired(block_tables_pool(step_tables(state->steps)));
    const struct sequence *s = sequences_at(state->sequences, row);
    if (s->id && s->noted == s->lease)
        return "S1: a sequence is not counted by its state, or a lease is";
    if (s->noted && s->id && sequences_state(state->sequences, row, retired) != state_of(state, row))
        return "S1: a sequence is in another state than it is counted by";
    return NULL;
}

/* Go on with what the scheduler knows of rows, for `work` entries of their tables. */
static const char *audit_rows(const struct engine_state *state, struct request_check *audit, uint32_t work)
{
    const char *fault = NULL;
    while (!fault && work > 0 && audit->row < state->config->limits.sequences) {
        fault = state_fault(state, audit->row);
        if (!fault)
            fault = reservation_row_fault(state, audit->row, &audit->entry, &work);
        if (work == 0) /* there may be more */
            break;
        work--;
        audit->row++;
        audit->entry = 0;
    }
    return fault;
}

static const char *totals_fault(const struct engine_state *state)
{
    const char *fault = reservation_fault(state);
    return fault ? fault : sequences_fault(state->sequences);
}

const char *inspect_fault(const struct engine_state *state)
{
    struct request_check audit = {0};
    const char *fault = block_tables_fault(step_tables(state->steps));
    fault = fault ? fault : audit_rows(state, &audit, UINT32_MAX);
    fault = fault ? fault : swap_cache_fault(state->swap_cache);
    return fault ? fault : totals_fault(state);
}

int inspect_audit(struct engine_state *state, struct request *request)
{
    return ask_in_parts(state, request);
}

/* Do a part of an audit: of the allocator first, then of the scheduler; true when it has ended. */
static bool audit_part(const struct engine_state *state, struct request_check *audit, uint32_t work)
{
    struct block_tables *tables = step_tables(state->steps);
    if (!audit->begun)
        block_tables_begin_audit(tables);
    audit->begun = true;
    if (!audit->blocks_done) {
        audit->blocks_done = block_tables_audit(tables, work, &audit->fault);
        return audit->fault;
    }
    if (audit->row < state->config->limits.sequences)
        audit->fault = audit_rows(state, audit, work);
    if (audit->fault || audit->row < state->config->limits.sequences)
        return audit->fault;
    audit->fault = swap_cache_fault(state->swap_cache);
    audit->fault = audit->fault ? audit->fault : totals_fault(state);
    return true;
}

struct request *inspect_part(struct engine_state *state, uint32_t *work)
{
    struct request *request = state->questions.first;
    bool ended, gone = atomic_load(&request->cancelled), audits = request->kind == REQUEST_AUDIT;
    if (gone)
        request_fail(request, ATTND_GONE, "the client went away");
    if (gone && audits)
        block_tables_end_audit(step_tables(state->steps));
    if (gone)
        ended = true;
    else if (request->kind == REQUEST_POOL)
        ended = pool_part(state, request, work);
    else if (request->kind == REQUEST_TABLES)
        ended = tables_part(state, request, work);
    else if (request->kind == REQUEST_PREFIXES)
        ended = prefixes_part(state, request, work);
    else
        ended = audit_part(state, &request->check, *work);
    *work = audits ? 0 : *work; /* an audit takes what there is */
    return ended ? request_list_take(&state->questions) : NULL;
}
