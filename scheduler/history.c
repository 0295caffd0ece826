/* SPDX-License-Identifier: Apache-2.0 */
/* history.c - see history.h. */
#include "scheduler/history.h"

#include "allocator/block_log.h"
#include "scheduler/inspect.h"

#include <math.h>

static const double LEAST_S = 0.02, /* between two answers to one who listens */
    MOST_S = 1;                     /* that one waits without */

enum { READ_MOST = REQUEST_EVENTS_MAX }; /* changes that are looked at for one in a turn */

static struct block_log *log_of(const struct engine_state *state)
{
    return block_tables_log(step_tables(state->steps));
}

const char *history_reason_name(unsigned reason)
{
    static const char *const names[] = {
#define XX(constant, name) name,
        HISTORY_REASON_MAP(XX)
#undef XX
    };
    return names[reason];
}

/* ---- noting -------------------------------------------------------------------------------------- */

/* Something has happened to a sequence. */
static void note(struct engine_state *state, enum change_kind kind, uint32_t row, uint32_t length,
                 uint32_t reason)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    block_log_note(log_of(state),
                   &(struct block_change){.kind = kind,
                                          .sequence = s->id,
                                          .key = s->key,
                                          .parent = s->parent,
                                          .length = length,
                                          .blocks = block_tables_view(step_tables(state->steps), row).entries,
                                          .reason = reason,
                                          .lease = s->lease,
                                          .row = row});
}

void history_began(struct engine_state *state, uint32_t row, bool forked)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    block_log_name(log_of(state), row, s->id, s->key);
    note(state, forked ? CHANGE_FORKED : CHANGE_CREATED, row,
         block_tables_view(step_tables(state->steps), row).length, 0);
    sequences_at(state->sequences, row)->began = log_of(state)->number;
}

void history_ends(struct engine_state *state, uint32_t row, enum history_reason reason)
{
    note(state, CHANGE_ENDED, row, block_tables_view(step_tables(state->steps), row).length, reason);
}

void history_cut(struct engine_state *state, uint32_t row, uint32_t length)
{
    note(state, CHANGE_TRUNCATED, row, length, 0);
}

void history_stepped(struct engine_state *state, const struct step *step, double submitted_s)
{
    struct step_figures f = step_figures(step);
    double in_flight_us = (state->now_s - submitted_s) * 1e6;
    block_log_note(
        log_of(state),
        &(struct block_change){.kind = CHANGE_STEP,
                               .sequence = f.number,
                               .kv_bytes = step_cost(step).bytes,
                               .rows = f.rows,
                               .sequences = f.sequences,
                               .queued_us = (float)fmax(in_flight_us - step_cost(step).seconds * 1e6, 0),
                               .compute_us = (float)(step_cost(step).seconds * 1e6)});
}

void history_touch(struct engine_state *state)
{
    block_log_touch(log_of(state));
}

uint64_t history_epoch(struct engine_state *state)
{
    return block_log_epoch(log_of(state));
}

/* ---- the life of a block ------------------------------------------------------------------------- */

/* How many of the latest changes concern whoever holds the block now: from the one on by which it was taken last. */
static uint32_t of_generation(const struct block_life *life, uint32_t n)
{
    uint32_t of = 0;
    while (of < n && life->changes[(life->count - 1 - of) % LIFE_CHANGES].kind != CHANGE_TAKEN)
        of++;
    return of < n ? of + 1 : of;
}

int history_life(struct engine_state *state, struct request *request)
{
    struct request_life *out = &request->life;
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    if (request->id >= state->config->pool_blocks)
        return request_fail(request, ATTND_NOT_FOUND, "there is no block %llu: ids are 0..%llu",
                            (unsigned long long)request->id,
                            (unsigned long long)state->config->pool_blocks - 1);
    uint32_t block = (uint32_t)request->id;
    const struct block_life *life = block_log_life(log_of(state), block);
    out->state = block_pool_state(pool, block);
    if (!inspect_sees(request, life->key) || (!request->sees_all && out->state == BLOCK_FREE))
        return request_fail(request, ATTND_NOT_FOUND, "block %u belongs to no sequence of this key", block);
    uint32_t n = life->count < LIFE_CHANGES ? (uint32_t)life->count : LIFE_CHANGES;
    out->count = request->sees_all ? n : of_generation(life, n);
    out->generation = block_pool_generation(pool, block);
    out->epoch = history_epoch(state);
    out->changes = request_alloc(request, out->count, sizeof *out->changes);
    if (!out->changes)
        return request_fail(request, ATTND_INVALID, "the answer has no room for its changes");
    uint32_t generation = out->generation;
    for (uint32_t i = out->count; i-- > 0;) {
        const struct life_change *c = &life->changes[(life->count - out->count + i) % LIFE_CHANGES];
        out->changes[i] = (struct block_change){.number = c->number,
                                                .time_us = c->time_ms * 1000,
                                                .kind = c->kind,
                                                .sequence = c->sequence,
                                                .block = block,
                                                .generation = generation,
                                                .refs = c->refs,
                                                .fill = c->fill};
        generation -= c->kind == CHANGE_TAKEN;
    }
    return 0;
}

/* The key that a change of a block's life was of, as far as the ring has it. */
static uint64_t key_of(const struct engine_state *state, const struct life_change *c)
{
    const struct block_log *log = log_of(state);
    const struct block_change *in_ring = &log->ring[c->number & log->mask];
    uint32_t row = sequences_find(state->sequences, c->sequence);
    if (row != NO_ROW)
        return sequences_at(state->sequences, row)->key;
    return in_ring->number == c->number ? in_ring->key : 0;
}

static bool is_named(const struct block_owner *owners, uint32_t n, uint64_t id)
{
    while (n > 0 && owners[n - 1].id != id)
        n--;
    return n > 0;
}

/* When a sequence gave a block back that it had taken by change `from`, counted from the latest; 0: it did not. */
static uint64_t given_back(const struct block_life *life, uint32_t from, uint64_t sequence)
{
    for (uint32_t i = from; i-- > 0;) { /* the changes behind, the oldest of them first */
        const struct life_change *c = &life->changes[(life->count - 1 - i) % LIFE_CHANGES];
        bool all = c->kind == CHANGE_FREED || c->kind == CHANGE_CACHED || c->kind == CHANGE_EVICTED ||
                   c->kind == CHANGE_TAKEN;
        if (all || ((c->kind == CHANGE_UNSHARED || c->kind == CHANGE_FENCED) && c->sequence == sequence))
            return c->number;
    }
    return 0;
}

uint32_t history_owners(struct engine_state *state, const struct request *request, uint32_t block,
                        struct block_owner *owners, uint32_t most)
{
    const struct block_life *life = block_log_life(log_of(state), block);
    uint32_t n = life->count < LIFE_CHANGES ? (uint32_t)life->count : LIFE_CHANGES, count = 0;
    for (uint32_t i = 0; i < n && count < most; i++) {
        const struct life_change *c = &life->changes[(life->count - 1 - i) % LIFE_CHANGES];
        if ((c->kind != CHANGE_TAKEN && c->kind != CHANGE_SHARED) || !c->sequence ||
            is_named(owners, count, c->sequence))
            continue;
        uint64_t key = key_of(state, c);
        owners[count++] = (struct block_owner){.id = c->sequence,
                                               .key = key,
                                               .since = c->number,
                                               .until = given_back(life, i, c->sequence),
                                               .foreign = !inspect_sees(request, key)};
    }
    return count;
}

/* ---- events -------------------------------------------------------------------------------------- */

/* Whether somebody is to be told of a change: of the kinds that it has asked for, and of what belongs to it. */
static bool concerns(const struct request *request, const struct block_change *c)
{
    unsigned of = change_is_of_block(c->kind) ? REQUEST_EVENTS_BLOCK
                  : c->kind == CHANGE_STEP    ? REQUEST_EVENTS_STEP
                  : c->kind == CHANGE_OTHER   ? 0
                                              : REQUEST_EVENTS_SEQUENCE;
    return (request->events.types & of) && (c->kind == CHANGE_STEP || inspect_sees(request, c->key));
}

/* Copy what there is for somebody: as much as one answer has, out of as much as there is time for in a turn. */
static void copy_news(struct engine_state *state, struct request *request)
{
    struct request_events *ask = &request->events;
    struct block_log *log = log_of(state);
    struct block_change c;
    uint64_t wanted = ask->next;
    for (uint32_t n = 0;
         n < READ_MOST && ask->count < REQUEST_EVENTS_MAX && block_log_read(log, &ask->next, &c, 1); n++) {
        if (wanted != 0)
            ask->missed = c.number - wanted;
        ask->resumed = wanted ? c.number : ask->resumed;
        wanted = 0;
        if (concerns(request, &c))
            ask->changes[ask->count++] = c;
    }
}

int history_watch(struct engine_state *state, struct request *request)
{
    struct request_events *ask = &request->events;
    uint64_t present = log_of(state)->number;
    ask->changes = request_alloc(request, REQUEST_EVENTS_MAX, sizeof *ask->changes);
    if (!ask->changes)
        return request_fail(request, ATTND_INVALID, "the answer has no room for events");
    ask->since_s = state->now_s;
    if (!ask->begins) {
        request_list_append(&state->listeners, request);
        return REQUEST_WAITS;
    }
    ask->restarted = ask->next != REQUEST_EVENTS_NOW && ask->next > present + 1;
    if (ask->next > present)
        ask->next = ask->resumed = present + 1;
    else
        copy_news(state, request);
    return 0;
}

/* Whether somebody who listens is to be answered now. */
static bool is_due(struct engine_state *state, struct request *request)
{
    struct request_events *ask = &request->events;
    double waited = state->now_s - ask->since_s;
    if (atomic_load(&request->cancelled))
        return request_fail(request, ATTND_GONE, "the client went away") != 0;
    if (log_of(state)->number >= ask->next && (waited >= LEAST_S || waited < 0))
        copy_news(state, request);
    return ask->count > 0 || ask->missed > 0 || waited >= MOST_S || waited < 0 || state->stopping;
}

struct request *history_news(struct engine_state *state)
{
    struct request *before = NULL;
    for (struct request *r = state->listeners.first; r; before = r, r = r->next) {
        if (!is_due(state, r))
            continue;
        *(before ? &before->next : &state->listeners.first) = r->next;
        if (state->listeners.last == r)
            state->listeners.last = before;
        return r;
    }
    return NULL;
}

double history_idle_s(const struct engine_state *state, double now_s)
{
    double idle = -1;
    for (const struct request *r = state->listeners.first; r; r = r->next) {
        bool news = log_of(state)->number >= r->events.next;
        double left = fmax(r->events.since_s + (news ? LEAST_S : MOST_S) - now_s, 0);
        idle = idle < 0 || left < idle ? left : idle;
    }
    return idle;
}
