/* SPDX-License-Identifier: Apache-2.0 */
/* watched_history.c - whether what is told of the engine is what it does.
 *
 * After each turn the changes that are new in the log are replayed, as a client of /v1/events would: then every block has the
 * state and the references that the pool says, and there are the sequences that there are. All blocks are noted down with the
 * epoch, and one of the states noted before is compared with what undoing the changes since gives: blocks, and tables. */
#include "tests/simulation/watch.h"

#include "allocator/block_log.h"
#include "scheduler/sequences.h"
#include "tests/simulation/simulation.h"

#include <string.h>

enum { BLOCKS_MOST = 1024, SEQUENCES_MOST = 64, LISTED_MOST = 48, SEEN = 32, CHANGES_AT_ONCE = 64 };

struct table {
    uint64_t id, parent, key, began;
    uint32_t blocks, ids[LISTED_MOST]; /* the first ones; none, if it is swapped out */
    bool lease, swapped;
};

struct seen {
    uint64_t epoch;
    struct block_past blocks[BLOCKS_MOST];
    struct table tables[SEQUENCES_MOST]; /* [table_count] */
    uint32_t table_count;
};

static struct {
    uint64_t next, turns, random;
    struct block_past blocks[BLOCKS_MOST]; /* as the changes have made them */
    uint64_t ids[SEQUENCES_MOST];          /* 0: none */
    struct seen seen[SEEN];
    struct block_past past[BLOCKS_MOST];
} w;

void watched_history_begin(void)
{
    memset(&w, 0, sizeof w);
    w.next = 1;
}

static void replay_sequence(const struct block_change *c)
{
    uint64_t wanted = c->kind == CHANGE_ENDED ? c->sequence : 0;
    if (c->kind == CHANGE_TRUNCATED)
        return;
    for (uint32_t i = 0; i < SEQUENCES_MOST; i++) {
        if (w.ids[i] != wanted)
            continue;
        w.ids[i] = wanted ? 0 : c->sequence;
        return;
    }
    sim_fail("change %llu: sequence %llu has %s, and was not there, or there are too many",
             (unsigned long long)c->number, (unsigned long long)c->sequence, change_name(c->kind));
}

static void replay_block(const struct block_change *c)
{
    struct block_past *at = &w.blocks[c->block];
    if (at->state != c->state_before || at->published != c->published_before)
        sim_fail("change %llu (%s): block %u was in state %u, and the change says %u",
                 (unsigned long long)c->number, change_name(c->kind), c->block, at->state,
                 (unsigned)c->state_before);
    at->state = c->state;
    at->refs = c->refs;
    at->published = c->published;
}

/* Replay what is new; a turn that changes more than the ring holds has lost some, and all is as it is then. */
static bool replay(struct block_log *log)
{
    struct block_change changes[CHANGES_AT_ONCE];
    uint64_t wanted = w.next;
    for (;;) {
        uint32_t n = block_log_read(log, &w.next, changes, CHANGES_AT_ONCE);
        if (n == 0)
            return true;
        if (changes[0].number != wanted)
            return false;
        for (uint32_t i = 0; i < n; i++) {
            if (changes[i].number != wanted++)
                sim_fail("change %llu comes after %llu", (unsigned long long)changes[i].number,
                         (unsigned long long)wanted - 2);
            if (change_is_of_block(changes[i].kind))
                replay_block(&changes[i]);
            else if (changes[i].kind <= CHANGE_ENDED)
                replay_sequence(&changes[i]);
        }
        sim.seen.changes += n;
    }
}

static struct block_past look_at(const struct block_pool *pool, struct block_log *log, uint32_t block)
{
    struct block_past now = block_pool_now(pool, block);
    now.key = block_log_key(log, block);
    return now;
}

static void compare_replayed(const struct seen *now, uint32_t blocks)
{
    const struct engine_state *state = watch_state();
    for (uint32_t i = 0; i < blocks; i++) {
        const struct block_past *is = &now->blocks[i], *said = &w.blocks[i];
        if (is->state != said->state || is->refs != said->refs || is->published != said->published)
            sim_fail("block %u: the events say state %u, references %u, published %d; it has %u, %u, %d", i,
                     said->state, said->refs, said->published, is->state, is->refs, is->published);
    }
    uint32_t told = 0, there = 0;
    for (uint32_t i = 0; i < SEQUENCES_MOST; i++)
        told += w.ids[i] != 0;
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++) {
        uint64_t id = sequences_at(state->sequences, row)->id;
        bool found = false;
        for (uint32_t i = 0; i < SEQUENCES_MOST; i++)
            found |= w.ids[i] == id;
        there += id != 0;
        if (id && !found)
            sim_fail("sequence %llu is there, and nobody was told", (unsigned long long)id);
    }
    if (told != there)
        sim_fail("%u sequences are there, and by the events %u", there, told);
}

static void compare_past(struct block_log *log, const struct seen *then, const struct seen *now,
                         uint32_t blocks)
{
    memcpy(w.past, now->blocks, blocks * sizeof *w.past);
    block_log_rewind(log, then->epoch, 0, blocks, w.past);
    for (uint32_t i = 0; i < blocks; i++) {
        const struct block_past *got = &w.past[i], *want = &then->blocks[i];
        bool same = got->state == want->state && got->refs == want->refs &&
                    got->published == want->published &&
                    (want->state == BLOCK_FREE || (got->fill == want->fill && got->key == want->key));
        if (!same)
            sim_fail("block %u at epoch %llu: state %u, references %u, fill %u; it had %u, %u, %u", i,
                     (unsigned long long)then->epoch, got->state, got->refs, got->fill, want->state,
                     want->refs, want->fill);
    }
    sim.seen.pasts++;
}

/* ---- tables -------------------------------------------------------------------------------------- */

static void note_tables(struct seen *now)
{
    const struct engine_state *state = watch_state();
    now->table_count = 0;
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++) {
        const struct sequence *s = sequences_at(state->sequences, row);
        if (!s->id)
            continue;
        struct block_table_view view = block_tables_view(step_tables(state->steps), row);
        struct table *table = &now->tables[now->table_count++];
        *table = (struct table){.id = s->id,
                                .parent = s->parent,
                                .key = s->key,
                                .began = s->began,
                                .blocks = view.swapped ? 0 : view.entries,
                                .lease = s->lease,
                                .swapped = view.swapped};
        for (uint32_t i = 0; i < table->blocks && i < LISTED_MOST; i++)
            table->ids[i] = view.ids[i];
    }
}

static const struct table *find_table(const struct seen *seen, uint64_t id)
{
    for (uint32_t i = 0; i < seen->table_count; i++) {
        if (seen->tables[i].id == id)
            return &seen->tables[i];
    }
    return NULL;
}

static void compare_ids(const struct seen *then, const struct table *was, const uint32_t *ids, uint32_t count)
{
    if (count != was->blocks)
        sim_fail("sequence %llu at epoch %llu: %u blocks; it had %u", (unsigned long long)was->id,
                 (unsigned long long)then->epoch, count, was->blocks);
    for (uint32_t i = 0; i < count && i < LISTED_MOST; i++) {
        if (ids[i] != was->ids[i])
            sim_fail("sequence %llu at epoch %llu: entry %u is block %u; it was %u",
                     (unsigned long long)was->id, (unsigned long long)then->epoch, i, ids[i], was->ids[i]);
    }
}

/* Each table that was noted comes out again, whatever has become of its sequence; with few entries asked for, too. */
static void compare_tables(struct block_log *log, const struct seen *then, const struct seen *now)
{
    for (uint32_t i = 0; i < then->table_count; i++) {
        const struct table *was = &then->tables[i], *is = find_table(now, was->id);
        uint32_t ids[LISTED_MOST], most = (w.random >> 40) % 2 ? LISTED_MOST : (w.random >> 41) % 4, count;
        uint64_t began;
        bool same = is && is->began == was->began;
        memcpy(ids, is ? is->ids : was->ids, sizeof ids);
        count = block_log_rewind_table(log, then->epoch, was->id, ids, is ? is->blocks : 0, most, &began);
        for (uint32_t k = most; k < LISTED_MOST; k++) /* are not told */
            ids[k] = was->ids[k];
        compare_ids(then, was, ids, count);
        sim.seen.tables++;
        sim.seen.tables_changed +=
            same && (was->blocks != is->blocks || memcmp(was->ids, is->ids, sizeof is->ids) != 0);
        sim.seen.tables_ended += !same && was->blocks > 0;
        sim.seen.tables_swapped += same && was->swapped != is->swapped;
    }
    for (uint32_t i = 0; i < now->table_count; i++) {
        const struct table *is = &now->tables[i], *was = find_table(then, is->id);
        if ((was && was->began == is->began) != (is->began <= then->epoch))
            sim_fail("sequence %llu began with change %llu", (unsigned long long)is->id,
                     (unsigned long long)is->began);
    }
}

uint64_t watched_history_epoch(uint32_t turns_ago)
{
    return turns_ago < w.turns ? w.seen[(w.turns - 1 - turns_ago) % SEEN].epoch : 0;
}

void watched_history_check(const struct request *request)
{
    const struct request_tables *ask = &request->tables;
    const struct seen *then = w.seen;
    const uint32_t *ids = ask->block_ids;
    uint32_t there = 0;
    while (then < &w.seen[SEEN] && then->epoch != ask->at.epoch)
        then++;
    if (then == &w.seen[SEEN] || then->epoch == 0)
        return;
    for (uint32_t i = 0; i < then->table_count; i++)
        there += !then->tables[i].lease && (request->sees_all || then->tables[i].key == request->key);
    if (ask->count + ask->left_out != there)
        sim_fail("%u tables at epoch %llu, and %u more; there were %u", ask->count,
                 (unsigned long long)then->epoch, ask->left_out, there);
    for (uint32_t i = 0; i < ask->count; i++) {
        const struct table_view *view = &ask->views[i];
        const struct table *was = find_table(then, view->id);
        if (!was || was->lease || was->parent != view->parent ||
            (!request->sees_all && was->key != request->key))
            sim_fail("sequence %llu at epoch %llu: it was not there, or another one",
                     (unsigned long long)view->id, (unsigned long long)then->epoch);
        for (uint32_t k = i + 1; k < ask->count; k++) {
            if (ask->views[k].id == view->id)
                sim_fail("sequence %llu is told twice", (unsigned long long)view->id);
        }
        compare_ids(then, was, ids, view->blocks);
        ids += view->listed;
    }
    sim.seen.tables_told += ask->count;
    sim.seen.tables_left_out += ask->left_out > 0;
}

void watched_history_turn(void)
{
    const struct block_tables *tables = step_tables(watch_state()->steps);
    const struct block_pool *pool = block_tables_pool(tables);
    struct block_log *log = block_tables_log(tables);
    uint32_t blocks = block_pool_counts(pool).blocks;
    struct seen *now = &w.seen[w.turns++ % SEEN];
    if (blocks > BLOCKS_MOST || sim.config.limits.sequences > SEQUENCES_MOST)
        return;
    now->epoch = block_log_epoch(log);
    for (uint32_t i = 0; i < blocks; i++)
        now->blocks[i] = look_at(pool, log, i);
    note_tables(now);
    if (!replay(log))
        sim_fail("a turn has changed more than the log keeps");
    compare_replayed(now, blocks);
    w.random = w.random * UINT64_C(6364136223846793005) + 1442695040888963407;
    const struct seen *then = &w.seen[(w.random >> 33) % (w.turns < SEEN ? w.turns : SEEN)];
    if (then->epoch < block_log_oldest(log))
        return;
    compare_past(log, then, now, blocks);
    compare_tables(log, then, now);
}
