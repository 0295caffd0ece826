/* SPDX-License-Identifier: Apache-2.0 */
/* swapping.c - see swapping.h.
 *
 * All that may leave are in one order (policy_victims_before), with what is known of each. Of those of the
 * first rank the one that moves least and is enough stands at the first place where blocks >= need, else the
 * one that gives most stands before it: a search. What is known may be old: what others do to blocks
 * that a sequence shares is not noted, nor the requests queued on it. So whoever is found is looked at again,
 * and goes to its right place if something was wrong. */
#include "scheduler/swapping.h"

#include "config/log.h"
#include "config/numbers.h"
#include "scheduler/inspect.h"
#include "scheduler/policy.h"
#include "scheduler/row_order.h"
#include "scheduler/swap_cache.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct swapping {
    struct engine_state *state;
    struct row_order order;
    struct policy_victim *known; /* [limits.sequences] by row; `blocks`: that only it holds */
    uint32_t *entries;           /* likewise, of its table when it was noted */
    uint32_t *rows, *passed;     /* likewise: chosen ones, and those that cannot be, taken out of the order */
    uint32_t chosen, passed_over;
};

static const struct sequence *sequence_at(const struct swapping *w, uint32_t row)
{
    return sequences_at(w->state->sequences, row);
}

static bool may_leave(const struct swapping *w, uint32_t row, const struct block_table_view *table)
{
    const struct sequence *s = sequence_at(w, row);
    return s->id && !s->workload && !s->lease && !s->options.max_tokens && !table->swapped &&
           table->entries > 0;
}

static bool comes_before(uint32_t a, uint32_t b, const void *cookie)
{
    const struct swapping *w = cookie;
    if (policy_victims_before(&w->known[a], &w->known[b]))
        return true;
    return !policy_victims_before(&w->known[b], &w->known[a]) && a < b;
}

static bool is_below(uint32_t a, const void *wanted, const void *cookie)
{
    const struct swapping *w = cookie;
    return policy_victims_before(&w->known[a], wanted);
}

/* A row that is not in the order gets its place. */
static void insert(struct swapping *w, uint32_t row, uint32_t blocks)
{
    const struct sequence *s = sequence_at(w, row);
    w->known[row] = (struct policy_victim){s->options.priority, s->queued > 0, blocks, s->created_s};
    row_order_insert(&w->order, row);
}

void swapping_drop(struct swapping *w, uint32_t row)
{
    if (row_order_has(&w->order, row))
        row_order_remove(&w->order, row);
}

void swapping_note(struct swapping *w, uint32_t row)
{
    if (w->state->config->host_blocks == 0)
        return;
    struct block_tables *tables = step_tables(w->state->steps);
    struct block_table_view table = block_tables_view(tables, row);
    bool was = row_order_has(&w->order, row);
    uint32_t blocks = w->known[row].blocks, before = w->entries[row];
    if (was && before == table.entries)
        return;
    swapping_drop(w, row);
    w->entries[row] = table.entries;
    if (!may_leave(w, row, &table))
        return;
    if (!was)
        blocks = block_tables_reclaimable(tables, &row, 1);
    else if (table.entries > before)
        blocks += table.entries - before;
    else
        blocks -= blocks < before - table.entries ? blocks : before - table.entries;
    insert(w, row, blocks);
}

void swapping_note_idle(struct swapping *w, uint32_t row)
{
    if (!row_order_has(&w->order, row) || !w->known[row].waited_for)
        return;
    row_order_remove(&w->order, row);
    insert(w, row, w->known[row].blocks);
}

/* The first one to give way; NO_ROW when there is none. */
static uint32_t best_of(const struct swapping *w, uint32_t need)
{
    uint32_t first = row_order_first(&w->order), before;
    if (first == ROW_ORDER_NONE)
        return NO_ROW;
    struct policy_victim wanted = w->known[first];
    wanted.blocks = need;
    wanted.created_s = INFINITY;
    uint32_t found = row_order_find(&w->order, is_below, &wanted, &before);
    if (found != ROW_ORDER_NONE && policy_same_rank(&w->known[found], &wanted))
        return found;
    wanted.blocks = w->known[before].blocks; /* the most, and the latest that has so many */
    return row_order_find(&w->order, is_below, &wanted, &before);
}

/* Whether what is known of a row was right; if it was not, it is now. */
static bool check(struct swapping *w, uint32_t row)
{
    uint32_t blocks = block_tables_reclaimable(step_tables(w->state->steps), &row, 1);
    if (w->known[row].blocks == blocks && w->known[row].waited_for == (sequence_at(w, row)->queued > 0))
        return true;
    row_order_remove(&w->order, row);
    insert(w, row, blocks);
    return false;
}

/* Choose until `need` blocks come free: into w->rows, as those that cannot be chosen into w->passed; both are
 * out of the order then. What several of them share is counted now and then only. */
static bool choose(struct swapping *w, const struct swap_request *request, uint32_t need)
{
    struct block_tables *tables = step_tables(w->state->steps);
    uint32_t alone = 0, room = block_tables_counts(tables).host_free, row;
    w->chosen = w->passed_over = 0;
    while ((row = best_of(w, need - alone)) != NO_ROW) {
        if (!policy_may_displace(request->priority, w->known[row].priority))
            break; /* nor any after it */
        if (!check(w, row))
            continue;
        uint32_t host_blocks = block_tables_host_need(tables, row);
        row_order_remove(&w->order, row);
        const struct sequence *s = sequence_at(w, row);
        if (s->pinned || s->forming == request->forming || host_blocks > room) {
            w->passed[w->passed_over++] = row;
            continue;
        }
        room -= host_blocks;
        alone += w->known[row].blocks;
        w->rows[w->chosen++] = row;
        bool look = (w->chosen & (w->chosen - 1)) == 0;
        if (alone >= need || (look && block_tables_reclaimable(tables, w->rows, w->chosen) >= need))
            return true;
    }
    return block_tables_reclaimable(tables, w->rows, w->chosen) >= need;
}

static void put_back(struct swapping *w, const uint32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        row_order_insert(&w->order, rows[i]);
}

/* Of the rows that were chosen leave as many as there are frames for; the others stay, for the next time. */
static void limit(struct swapping *w, uint32_t frames)
{
    struct block_tables *tables = step_tables(w->state->steps);
    uint32_t n = 0;
    for (uint32_t entries; n < w->chosen; n++, frames -= entries) {
        entries = block_tables_view(tables, w->rows[n]).entries;
        if (entries > frames)
            break;
    }
    put_back(w, w->rows + n, w->chosen - n);
    w->chosen = n;
}

bool swapping_out(struct swapping *w, const struct swap_request *request, struct copy_list *copies)
{
    struct block_tables *tables = step_tables(w->state->steps);
    struct swap_cache *cache = w->state->swap_cache;
    uint64_t step = step_number(w->state->steps);
    uint32_t stranded = smaller(block_tables_stranded(tables), request->blocks), first = copies->count,
             frames = stranded;
    if (w->state->config->host_blocks == 0)
        return false;
    w->chosen = 0;
    if (stranded < request->blocks) {
        bool enough = choose(w, request, request->blocks - stranded);
        put_back(w, w->passed, w->passed_over);
        if (!enough) {
            put_back(w, w->rows, w->chosen);
            return false;
        }
    }
    for (uint32_t i = 0; i < w->chosen; i++)
        frames += block_tables_view(tables, w->rows[i]).entries;
    uint32_t room = swap_cache_room(cache, frames);
    if (room < frames && swap_cache_has_failed(cache)) {
        put_back(w, w->rows, w->chosen);
        return false;
    }
    stranded = smaller(stranded, room);
    limit(w, room - stranded);
    (void)block_tables_evacuate(tables, stranded, step, copies->list, &copies->count);
    for (uint32_t i = 0; i < w->chosen; i++) {
        int rc = block_tables_swap_out(tables, w->rows[i], step, copies->list, &copies->count);
        assert(rc == 0); /* there is room */
        (void)rc;
        inspect_note_state(w->state, w->rows[i]);
        log_line(LOG_DEBUG, "sequence %llu is swapped out",
                 (unsigned long long)sequence_at(w, w->rows[i])->id);
    }
    swap_cache_place(cache, copies->list + first, copies->count - first, step);
    return true;
}

int swapping_create(struct engine_state *state, struct swapping **result)
{
    struct swapping *w = calloc(1, sizeof *w);
    uint32_t rows = state->config->limits.sequences;
    if (!w)
        return ATTND_NO_MEMORY;
    w->state = state;
    w->known = calloc(rows, sizeof *w->known);
    w->entries = calloc(rows, sizeof *w->entries);
    w->rows = calloc(rows, sizeof *w->rows);
    w->passed = calloc(rows, sizeof *w->passed);
    if (!w->known || !w->entries || !w->rows || !w->passed ||
        row_order_init(&w->order, rows, comes_before, w) != 0) {
        swapping_destroy(w);
        return ATTND_NO_MEMORY;
    }
    *result = w;
    return 0;
}

void swapping_destroy(struct swapping *w)
{
    if (!w)
        return;
    row_order_deinit(&w->order);
    free(w->known);
    free(w->entries);
    free(w->rows);
    free(w->passed);
    free(w);
}
