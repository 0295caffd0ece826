/* SPDX-License-Identifier: Apache-2.0 */
/* sequence_ops.c - see sequence_ops.h. */
#include "scheduler/sequence_ops.h"

#include "allocator/prefix_index.h"
#include "config/log.h"
#include "config/numbers.h"
#include "scheduler/client_queue.h"
#include "scheduler/history.h"
#include "scheduler/inspect.h"
#include "scheduler/journal.h"
#include "scheduler/reservation.h"
#include "scheduler/swapping.h"
#include "scheduler/workload_run.h"

enum {
    REAP_ROWS = 8192,   /* looked at in one go */
    FORGET_ROWS = 4096, /* likewise for what belongs to a key, */
    FORGET_MOST = 64    /* and removed */
};

static const double REAP_S = 0.5; /* between two looks for sequences that nobody uses */

uint32_t sequence_ops_find(struct engine_state *state, struct request *request)
{
    uint32_t row = inspect_find(state, request, request->id);
    if (row == NO_ROW)
        return NO_ROW;
    uint64_t workload = sequences_at(state->sequences, row)->workload;
    if (!workload)
        return row;
    request_fail(request, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu",
                 (unsigned long long)request->id, (unsigned long long)workload);
    return NO_ROW;
}

/* ---- what changes sequences ---------------------------------------------------------------------- */

/* The table of a row has changed. */
static void note(struct engine_state *state, uint32_t row)
{
    reservation_note(state, row);
    swapping_note(state->swapping, row);
    inspect_note_state(state, row);
}

/* A row that shares what is cached of the request's first `tokens` tokens, under its salt. */
static int add_row(struct engine_state *state, const struct request *request, uint32_t tokens, uint32_t *row)
{
    uint32_t root = block_tables_open_root(step_tables(state->steps), request->key, request->create.salt,
                                           request->create.salt_bytes);
    int rc = block_tables_add(step_tables(state->steps), root, request->create.tokens.ids, tokens, row);
    block_tables_close_root(step_tables(state->steps), root); /* the row keeps its own reference */
    return rc;
}

bool sequence_ops_fits_pool(struct engine_state *state, struct request *request, uint32_t max_tokens)
{
    const struct config *c = state->config;
    uint64_t whole = ((uint64_t)max_tokens + c->geometry.block_size - 1) / c->geometry.block_size;
    if (!max_tokens || (whole <= c->pool_blocks && max_tokens <= c->limits.sequence_tokens))
        return true;
    request_fail(request, ATTND_INVALID,
                 "max_tokens %u are %llu blocks of %u tokens; the pool has %llu, and "
                 "limits.sequence_tokens is %u",
                 max_tokens, (unsigned long long)whole, c->geometry.block_size,
                 (unsigned long long)c->pool_blocks, c->limits.sequence_tokens);
    return false;
}

/* Whether `children` sequences that declare max_tokens may be made, forks at `tokens`, or a new one;
 * else the request has failed. */
static bool may_declare(struct engine_state *state, struct request *request, uint32_t max_tokens,
                        uint32_t tokens, uint32_t children)
{
    bool forks = request->kind == REQUEST_FORK;
    uint64_t need = (uint64_t)reservation_need(state, max_tokens, tokens, forks) * children;
    need += forks && need; /* the parent may have to copy its last block too */
    if (!sequence_ops_fits_pool(state, request, max_tokens))
        return false;
    if (reservation_can_promise(state, need))
        return true;
    request_fail(request, ATTND_NO_BLOCKS, SEQUENCE_OPS_NO_PROMISE, (unsigned long long)need,
                 (unsigned long long)reservation_unpromised(state));
    return false;
}

struct block_tables_hit sequence_ops_match(struct engine_state *state, const struct request *request)
{
    const struct request_tokens *tokens = &request->create.tokens;
    uint32_t root = block_tables_open_root(step_tables(state->steps), request->key, request->create.salt,
                                           request->create.salt_bytes);
    struct block_tables_hit match =
        block_tables_match(step_tables(state->steps), root, tokens->ids, tokens->count);
    block_tables_close_root(step_tables(state->steps), root);
    return match;
}

/* How many of the request's tokens may be looked for in the cache: a cached block that nobody holds is one
 * that others could have had. */
static uint32_t findable(const struct engine_state *state, const struct request *request,
                         struct block_tables_hit match)
{
    const struct request_tokens *tokens = &request->create.tokens;
    uint64_t room = reservation_unpromised(state);
    return match.hit - match.held > room ? (match.held + (uint32_t)room) * state->config->geometry.block_size
                                         : tokens->count;
}

bool sequence_ops_is_within(const struct engine_state *state, struct request *request, uint32_t sequences,
                            uint64_t blocks)
{
    const struct tenant_quotas *q = &request->quotas;
    struct tenant_use use = tenants_use(sequences_tenants(state->sequences), request->key);
    if (q->sequences && sequences > q->sequences)
        request_fail(request, ATTND_INVALID, "quotas.sequences of the key is %u, and this makes %u",
                     q->sequences, sequences);
    else if (q->blocks && blocks > q->blocks)
        request_fail(request, ATTND_INVALID, "quotas.blocks of the key is %u, and this takes %llu", q->blocks,
                     (unsigned long long)blocks);
    else if (sequences && q->sequences && use.sequences + (uint64_t)sequences > q->sequences)
        request_fail(request, ATTND_QUOTA, SEQUENCE_OPS_QUOTA_SEQUENCES, q->sequences, use.sequences,
                     sequences);
    else if (q->blocks && blocks && use.blocks + blocks > q->blocks)
        request_fail(request, ATTND_QUOTA, SEQUENCE_OPS_QUOTA_BLOCKS, q->blocks,
                     (unsigned long long)use.blocks, (unsigned long long)blocks);
    return request->status == 0;
}

bool sequence_ops_may_add(const struct engine_state *state, struct request *request)
{
    bool may = sequences_may_add(state->sequences);
    if (!may)
        request_fail(request, ATTND_BUSY, "more ids are being made durable in state.dir");
    return may;
}

int sequence_ops_ids(struct engine_state *state, struct request *request)
{
    struct request_ids *ids = &request->ids;
    for (uint32_t i = 0; ids->chosen && i < ids->chosen->count; i++)
        sequences_choose(state->sequences, ids->chosen->all[i].first, ids->chosen->all[i].last);
    sequences_allow(state->sequences, ids->next, ids->limit);
    workload_run_number_from(state->workloads, ids->next);
    ids->reach = sequences_reach(state->sequences, REQUEST_IDS_AHEAD);
    return 0;
}

/* Whether clients of another key are still to be told where the sequence of this id has gone. */
static bool is_signpost(const struct engine_state *state, const struct request *request, uint64_t id)
{
    const struct departure *gone = departures_find(sequences_departures(state->sequences), id);
    return gone && gone->moved_to[0] && !inspect_sees(request, gone->key);
}

bool sequence_ops_id_is_free(struct engine_state *state, struct request *request, unsigned long long id)
{
    if (!sequence_ops_may_add(state, request))
        return false;
    bool ours = id == 0 || id >> SEQUENCE_NODE_SHIFT == state->config->node;
    uint32_t row = ours ? sequences_find(state->sequences, id) : NO_ROW;
    if (!ours)
        request_fail(request, ATTND_OTHER_NODE, "id %llu is one of node %llu, this is node %u", id,
                     id >> SEQUENCE_NODE_SHIFT, state->config->node);
    else if (id && (row == NO_ROW ? is_signpost(state, request, id)
                                  : !inspect_sees(request, sequences_at(state->sequences, row)->key)))
        request_fail(request, ATTND_EXISTS, "the id %llu is in use",
                     id); /* whose it is, and what, is not said */
    else if (id && row != NO_ROW)
        request_fail(request, ATTND_EXISTS, "there is a %s %llu already",
                     sequences_at(state->sequences, row)->lease ? "lease" : "sequence", id);
    return request->status == 0;
}

int sequence_ops_make(struct engine_state *state, struct request *request, uint32_t tokens)
{
    const struct request_create *c = &request->create;
    uint32_t row;
    if (add_row(state, request, tokens, &row) != 0)
        return request_fail(request, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
                            state->config->limits.sequences);
    if (prompts_set(state->prompts, row, c->tokens.ids, c->tokens.count) != 0) {
        block_tables_remove(step_tables(state->steps), row);
        return request_fail(request, ATTND_NO_SEQUENCES, SEQUENCE_OPS_PROMPTS_FULL);
    }
    sequences_add(state->sequences, row, request->id, 0, request->key, state->now_s);
    history_began(state, row, false);
    sequences_at(state->sequences, row)->options = c->options;
    note(state, row);
    engine_state_note_done(
        state, request->use,
        &(struct work_done){.prompt_tokens = c->tokens.count,
                            .cached_tokens = block_tables_view(step_tables(state->steps), row).length});
    return inspect_show_one(state, request, &request->create.shown, row);
}

int sequence_ops_restore(struct engine_state *state, struct request *request, uint32_t base)
{
    const struct request_described *d = &request->described;
    struct block_tables *tables = step_tables(state->steps);
    uint32_t row, root = NO_ROOT;
    if (!sequence_ops_id_is_free(state, request, request->id) ||
        !may_declare(state, request, d->options.max_tokens, 0, 1))
        return request->status;
    if (base == NO_ROW)
        root = block_tables_open_root(tables, d->key, d->salt, d->salt_bytes);
    int rc = base == NO_ROW ? block_tables_add(tables, root, NULL, 0, &row)
                            : block_tables_fork(tables, base, d->shared, &row);
    block_tables_close_root(tables, root);
    if (rc != 0)
        return request_fail(request, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
                            state->config->limits.sequences);
    if (prompts_set(state->prompts, row, d->prompt.ids, d->prompt.count) != 0) {
        block_tables_remove(tables, row);
        return request_fail(request, ATTND_NO_SEQUENCES, SEQUENCE_OPS_PROMPTS_FULL);
    }
    sequences_add(state->sequences, row, request->id, d->parent, d->key, state->now_s);
    history_began(state, row, base != NO_ROW);
    sequences_at(state->sequences, row)->options = d->options;
    note(state, row);
    if (base != NO_ROW)
        note(state, base);
    return 0;
}

static int create(struct engine_state *state, struct request *request)
{
    const struct request_create *c = &request->create;
    const struct geometry *g = &state->config->geometry;
    if (!sequence_ops_id_is_free(state, request, request->id))
        return request->status;
    if (c->tokens.count > state->config->limits.sequence_tokens)
        return request_fail(request, ATTND_INVALID, "tokens: %u, but limits.sequence_tokens is %u",
                            c->tokens.count, state->config->limits.sequence_tokens);
    if (!may_declare(state, request, c->options.max_tokens, 0, 1)) /* as if nothing of it were cached */
        return request->status;
    struct block_tables_hit match = sequence_ops_match(state, request);
    uint32_t tokens = findable(state, request, match), declared = geometry_blocks(g, c->options.max_tokens),
             cached = smaller(tokens / g->block_size, match.hit);
    if (!sequence_ops_is_within(state, request, 1, declared > cached ? declared : cached))
        return request->status;
    return sequence_ops_make(state, request, tokens);
}

int sequence_ops_create(struct engine_state *state, struct request *request)
{
    int rc = create(state, request);
    if (rc != 0)
        history_touch(state); /* it may have looked its prompt up, which /stats counts */
    return rc;
}

/* Whether as many sequences more can be had; else the request has failed. */
static bool has_room_for_forks(struct engine_state *state, struct request *request)
{
    const struct config *c = state->config;
    uint32_t left = c->limits.sequences - block_tables_counts(step_tables(state->steps)).rows;
    if (!sequence_ops_may_add(state, request))
        return false;
    if (request->fork.count > left)
        request_fail(request, ATTND_NO_SEQUENCES, "limits.sequences (%u) leave room for %u of %u forks",
                     c->limits.sequences, left, request->fork.count);
    return request->status == 0;
}

/* Whether the ids that a fork asks for can be given; else the request has failed. */
static bool ids_are_free(struct engine_state *state, struct request *request)
{
    for (uint32_t i = 0; request->fork.ids && i < request->fork.count; i++) {
        if (!sequence_ops_id_is_free(state, request, request->fork.ids[i]))
            return false;
        for (uint32_t other = 0; other < i; other++) {
            if (request->fork.ids[other] != request->fork.ids[i])
                continue;
            request_fail(request, ATTND_EXISTS, "there is a sequence %llu already",
                         (unsigned long long)request->fork.ids[i]);
            return false;
        }
    }
    return true;
}

static void remove_lease(struct engine_state *state, uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    for (uint32_t i = 0; i < table.entries; i++)
        state->lease_of[table.ids[i]] = NO_ROW;
    tenants_add_leases(sequences_tenants(state->sequences), sequences_at(state->sequences, row)->key, -1);
    state->leases--;
    state->leased_blocks -= table.entries;
}

static void remove_row(struct engine_state *state, uint32_t row, enum history_reason reason)
{
    history_ends(state, row, reason);
    if (sequences_at(state->sequences, row)->lease)
        remove_lease(state, row);
    reservation_drop(state, row);
    swapping_drop(state->swapping, row);
    prompts_cut(state->prompts, row, 0);
    sequences_remove(state->sequences, row);
    block_tables_remove(step_tables(state->steps), row);
}

uint32_t sequence_ops_check_fork(struct engine_state *state, struct request *request)
{
    struct request_fork *fork = &request->fork;
    uint32_t parent = sequence_ops_find(state, request);
    if (parent == NO_ROW)
        return NO_ROW;
    uint32_t length = block_tables_view(step_tables(state->steps), parent).length;
    uint32_t max_tokens = sequences_at(state->sequences, parent)->options.max_tokens;
    if (fork->length == UINT32_MAX)
        fork->length = length;
    if (fork->length > length)
        request_fail(request, ATTND_INVALID, "length is %u, and the sequence has %u", fork->length, length);
    uint32_t blocks = geometry_blocks(&state->config->geometry, max_tokens ? max_tokens : fork->length);
    bool owned = sequences_at(state->sequences, parent)->key == request->key; /* children belong to its key */
    bool may =
        request->status == 0 && ids_are_free(state, request) &&
        (!owned || sequence_ops_is_within(state, request, fork->count, (uint64_t)blocks * fork->count)) &&
        has_room_for_forks(state, request) &&
        may_declare(state, request, max_tokens, fork->length, fork->count);
    return may ? parent : NO_ROW;
}

int sequence_ops_make_forks(struct engine_state *state, struct request *request)
{
    struct request_fork *fork = &request->fork;
    uint32_t parent = sequence_ops_find(state, request), row, made = 0;
    struct sequence *from = sequences_at(state->sequences, parent);
    fork->shown.views = request_alloc(request, fork->count, sizeof *fork->shown.views);
    uint32_t *rows = request_alloc(request, fork->count, sizeof *rows);
    if (!request->listed_max)
        request->listed_max = smaller(REQUEST_LISTED_MAX, REQUEST_IDS_MAX / fork->count);
    while (fork->shown.views && rows && made < fork->count &&
           block_tables_fork(step_tables(state->steps), parent, fork->length, &row) == 0) {
        sequences_add(state->sequences, row, fork->ids ? fork->ids[made] : 0, request->id, from->key,
                      state->now_s);
        history_began(state, row, true);
        sequences_at(state->sequences, row)->options = from->options;
        rows[made++] = row;
    }
    bool all = rows && made == fork->count;
    for (uint32_t i = 0; i < made; i++) {
        note(state, rows[i]);
        all = all && inspect_show(state, request, &fork->shown, rows[i]);
    }
    note(state, parent);
    from->used_s = state->now_s;
    if (all)
        return 0;
    for (uint32_t i = 0; i < made; i++) /* all or none */
        remove_row(state, rows[i], HISTORY_UNDONE);
    note(state, parent);
    fork->shown.count = 0;
    return request_fail(request, ATTND_NO_SEQUENCES,
                        "limits.sequences (%u) leave room for %u of %u forks now",
                        state->config->limits.sequences, made, fork->count);
}

int sequence_ops_cut(struct engine_state *state, struct request *request, uint32_t row)
{
    uint32_t length = request->truncate.length;
    if (length <
        block_tables_view(step_tables(state->steps), row).cursor_max) { /* what is written anew may be
                                                                                    something else */
        prompts_cut(state->prompts, row, length);
        sequences_note_cut(state->sequences, row);
        history_cut(state, row, length);
    }
    block_tables_truncate(step_tables(state->steps), row, length);
    note(state, row);
    sequences_at(state->sequences, row)->used_s = state->now_s;
    return inspect_show_one(state, request, &request->truncate.shown, row);
}

int sequence_ops_truncate(struct engine_state *state, struct request *request)
{
    uint32_t row = sequence_ops_find(state, request), length = request->truncate.length;
    if (row == NO_ROW)
        return request->status;
    uint32_t need = reservation_truncation(state, row, length);
    if (!reservation_can_promise(state, need))
        return request_fail(request, ATTND_NO_BLOCKS, SEQUENCE_OPS_NO_TRUNCATION, need,
                            (unsigned long long)reservation_unpromised(state));
    return sequence_ops_cut(state, request, row);
}

/* A sequence or lease and what waits for it. */
static void remove_sequence(struct engine_state *state, uint32_t row, enum history_reason reason)
{
    const struct sequence *s = sequences_at(state->sequences, row);
    client_queue_drop(state->clients, s->id, s->key);
    remove_row(state, row, reason);
}

int sequence_ops_delete(struct engine_state *state, struct request *request)
{
    uint32_t row = sequence_ops_find(state, request);
    if (row == NO_ROW)
        return request->status;
    remove_sequence(state, row, HISTORY_REQUEST);
    return 0;
}

bool sequence_ops_has_content(const struct engine_state *state, struct request *request, uint32_t row,
                              uint64_t content)
{
    if (content && content != sequences_at(state->sequences, row)->content)
        request_fail(request, ATTND_CHANGED, "sequence %llu was cut since, or is another one",
                     (unsigned long long)request->id);
    return request->status == 0;
}

int sequence_ops_moved(struct engine_state *state, struct request *request)
{
    const struct request_moved *moved = &request->moved;
    uint32_t row = sequence_ops_find(state, request);
    if (row == NO_ROW)
        return request->status;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    if (!sequence_ops_has_content(state, request, row, moved->content))
        return request->status;
    if (table.cursor_max != moved->length)
        return request_fail(request, ATTND_GAP, "sequence %llu has %u token%s, not %u: move the others, too",
                            (unsigned long long)request->id, table.cursor_max, plural(table.cursor_max),
                            moved->length);
    sequences_note_moved(state->sequences, row, moved->moved_to, state->now_s);
    const struct log_about about = {.id = request->name[0] ? request->name : NULL,
                                    .key = request->owner_name[0] ? request->owner_name : NULL};
    log_event_of(LOG_INFO, "moved", &about, LOG_NUMBERS({"sequence", (double)request->id}),
                 "sequence %llu has moved to %s", (unsigned long long)request->id, moved->moved_to);
    remove_sequence(state, row, HISTORY_MOVED);
    return 0;
}

int sequence_ops_forget(struct engine_state *state, struct request *request)
{
    struct request_forget *forget = &request->forget;
    uint32_t rows = state->config->limits.sequences, first = forget->row, removed = 0;
    forget->workload = workload_run_of_key(state->workloads, request->key);
    for (; forget->workload == 0 && forget->row < rows && forget->row - first < FORGET_ROWS &&
           removed < FORGET_MOST;
         forget->row++) {
        const struct sequence *s = sequences_at(state->sequences, forget->row);
        if (!s->id || s->key != request->key || s->workload)
            continue;
        remove_sequence(state, forget->row, HISTORY_KEY);
        removed++;
    }
    forget->removed = removed;
    forget->done = forget->workload == 0 && forget->row == rows;
    return 0;
}

int sequence_ops_trim(struct engine_state *state, struct request *request)
{
    request->trim.dropped = block_tables_trim(step_tables(state->steps));
    return 0;
}

int sequence_ops_check_lease(struct engine_state *state, struct request *request)
{
    const struct config *c = state->config;
    uint64_t tokens = (uint64_t)request->lease.blocks * c->geometry.block_size;
    if (!sequence_ops_id_is_free(state, request, request->id) ||
        !sequence_ops_is_within(state, request, 1, request->lease.blocks))
        return request->status;
    if (tokens > c->limits.sequence_tokens)
        request_fail(request, ATTND_INVALID,
                     "%u blocks are %llu tokens; a lease has at most limits.sequence_tokens (%u)",
                     request->lease.blocks, (unsigned long long)tokens, c->limits.sequence_tokens);
    return request->status;
}

int sequence_ops_add_lease(struct engine_state *state, struct request *request, uint32_t row)
{
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    (void)sequences_add(state->sequences, row, request->id, 0, request->key, state->now_s);
    struct sequence *s = sequences_at(state->sequences, row);
    s->options = request->lease.options;
    s->lease = true;
    history_began(state, row, false);
    tenants_add_leases(sequences_tenants(state->sequences), s->key, 1);
    sequences_charge(state->sequences, row, table.entries);
    for (uint32_t i = 0; i < table.entries; i++)
        state->lease_of[table.ids[i]] = row;
    state->leases++;
    state->leased_blocks += table.entries;
    request->listed_max = REQUEST_IDS_MAX; /* its client has no other way to know them */
    return inspect_show_one(state, request, &request->lease.shown, row);
}

void sequence_ops_reap(struct engine_state *state)
{
    double now = state->now_s;
    uint32_t rows = state->config->limits.sequences;
    if (now - state->reaped_s < REAP_S)
        return;
    state->reaped_s = now;
    journal_note_turn(state->journal);
    reservation_note_all(state);
    for (uint32_t n = 0; n < REAP_ROWS && n < rows; n++) {
        uint32_t row = state->reap_row++ % rows;
        struct sequence *s = sequences_at(state->sequences, row);
        if (s->id == 0 || s->workload)
            continue;
        if (state->keeps_all || s->queued || block_tables_in_flight(step_tables(state->steps), row))
            s->used_s = now;
        if (s->options.idle_timeout_s == 0 || now - s->used_s < s->options.idle_timeout_s)
            continue;
        log_event(LOG_INFO, "idle_removed",
                  LOG_NUMBERS({s->lease ? "lease" : "sequence", (double)s->id}, {"idle_s", now - s->used_s}),
                  "%s %llu was not used for %.0f s and is removed", s->lease ? "lease" : "sequence",
                  (unsigned long long)s->id, now - s->used_s);
        sequences_note_reaped(state->sequences, row, now);
        remove_row(state, row, HISTORY_IDLE);
    }
}
