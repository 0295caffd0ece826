/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - many creates, forks, truncates and deletes of sequences as one request: all of them or none.
 *
 *   ops      fork 1 -> 11, 12      delete 1      create 13      truncate 12 to 5
 *   check    | drafts: what each named sequence is like after the ops so far | rows, blocks, pages, room left
 *   commit   the functions of the single requests, in the same order, which cannot fail any more
 *
 * The check changes nothing. It counts what ops take in full and what they give back only as far as that
 * is sure to come, so what it lets pass fits:
 *
 *   blocks   the balance of reservation.h, less what each op would promise or take out of the cache if nobody
 *            shared any of it, plus what deleted sequences were promised and the blocks that nobody else holds,
 *            unless a step in flight uses their sequence
 *   rows     those that are vacant, less what is made, plus those of deleted sequences outside of steps in flight
 *   answer   sequences shown, and the arena's bytes for them and the block ids that are listed
 *
 * Nothing here takes a block out of the index of prompts, so what a create will find there is known.
 * Parents that are swapped out come in first, which changes no sequence; then the batch is checked again. */
#include "config/numbers.h"
#include "scheduler/client_queue.h"
#include "scheduler/inspect.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_ops.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 64 /* of request_alloc() */ };

#define NO_DRAFT UINT32_MAX

/* A sequence in the middle of the batch. */
struct draft {
    uint64_t id;
    uint32_t row;                     /* NO_ROW: an op makes it */
    uint32_t length, longest, blocks; /* least and most tokens of a layer; entries of its table */
    uint32_t max_tokens, kept;        /* declared; of one that an op makes: blocks counted for it */
    uint32_t prompt;                  /* tokens that its prompt names */
    uint32_t unclaimed;               /* leading entries whose blocks are not counted as given back */
    bool live, forked, cut;           /* by this batch */
};

/* The check of a batch. */
struct check {
    struct engine_state *state;
    struct block_tables *tables;
    struct request op; /* the one that is looked at, as a single request */
    struct draft *drafts;
    uint32_t *slots; /* [mask + 1] the latest draft of an id, or NO_DRAFT */
    uint32_t draft_count, mask;
    int64_t room; /* blocks that can be promised */
    uint32_t rows, pages;
    int64_t sequences, blocks;       /* that the key has more after the ops so far, and that count for it */
    uint32_t views, listed_max;      /* in the answer; and block ids of each */
    size_t bytes;                    /* left for it */
    bool releases;                   /* an op has given blocks back */
    struct reserve_request *parents; /* [parent_count] that are swapped out */
    uint32_t parent_count, parent_op;
};

/* ---- drafts -------------------------------------------------------------------------------------- */

static uint32_t *slot_of(const struct check *c, uint64_t id)
{
    uint32_t at = hash_id(id) & c->mask;
    while (c->slots[at] != NO_DRAFT && c->drafts[c->slots[at]].id != id)
        at = (at + 1) & c->mask;
    return &c->slots[at];
}

static struct draft *add_draft(struct check *c, const struct draft *draft)
{
    uint32_t *slot = slot_of(c, draft->id); /* of one that was deleted, perhaps */
    *slot = c->draft_count++;
    c->drafts[*slot] = *draft;
    c->drafts[*slot].live = true;
    return &c->drafts[*slot];
}

/* The sequence that an op names; NULL: the op has failed. */
static struct draft *find_draft(struct check *c)
{
    uint32_t slot = *slot_of(c, c->op.id);
    if (slot != NO_DRAFT && c->drafts[slot].live)
        return &c->drafts[slot];
    if (slot != NO_DRAFT) {
        request_fail(&c->op, ATTND_NOT_FOUND, "there is no sequence %llu any more",
                     (unsigned long long)c->op.id);
        return NULL;
    }
    uint32_t row = sequence_ops_find(c->state, &c->op);
    if (row == NO_ROW)
        return NULL;
    struct block_table_view table = block_tables_view(c->tables, row);
    const struct draft draft = {.id = c->op.id,
                                .row = row,
                                .length = table.length,
                                .longest = table.cursor_max,
                                .blocks = table.entries,
                                .max_tokens = sequences_at(c->state->sequences, row)->options.max_tokens,
                                .prompt = prompts_length(c->state->prompts, row),
                                .unclaimed = table.entries};
    return add_draft(c, &draft);
}

/* Whether an id can be given to a new sequence; else the op has failed. */
static bool is_free(struct check *c, uint64_t id)
{
    uint32_t slot = id ? *slot_of(c, id) : NO_DRAFT;
    if (slot == NO_DRAFT)
        return sequence_ops_id_is_free(c->state, &c->op, id);
    if (c->drafts[slot].live)
        request_fail(&c->op, ATTND_EXISTS, "there is a sequence %llu already", (unsigned long long)id);
    return !c->drafts[slot].live;
}

/* ---- what is left -------------------------------------------------------------------------------- */

/* Take `need` blocks of what can be promised; false when there are fewer. */
static bool promise(struct check *c, uint64_t need)
{
    bool may = need == 0 || (int64_t)need <= c->room;
    c->room -= may ? (int64_t)need : 0;
    return may;
}

static unsigned long long room_of(const struct check *c)
{
    return c->room > 0 ? (unsigned long long)c->room : 0;
}

static size_t arena_bytes(size_t n, size_t size)
{
    return (n * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Show `count` sequences of `blocks` each in the answer; false: the op has failed. */
static bool show(struct check *c, uint32_t count, uint32_t blocks)
{
    size_t bytes = arena_bytes(count, sizeof(struct sequence_view)) + arena_bytes(count, sizeof(uint32_t)) +
                   count * arena_bytes(smaller(blocks, c->listed_max), sizeof(uint32_t));
    if (count > REQUEST_BATCH_VIEWS_MAX - c->views)
        request_fail(&c->op, ATTND_INVALID, "more than %d sequences do not fit one answer",
                     REQUEST_BATCH_VIEWS_MAX);
    else if (bytes > c->bytes)
        request_fail(&c->op, ATTND_INVALID, "the sequences before it leave no room in the answer");
    if (c->op.status != 0)
        return false;
    c->views += count;
    c->bytes -= bytes;
    return true;
}

/* Blocks that a sequence gives back from entry `first` on, as far as they are sure to be available then. */
static void give_back(struct check *c, struct draft *d, uint32_t first)
{
    bool stays = d->row == NO_ROW || d->forked || block_tables_view(c->tables, d->row).swapped ||
                 block_tables_in_flight(c->tables, d->row);
    if (!stays && first < d->unclaimed)
        c->room += block_tables_claim(c->tables, d->row, first, d->unclaimed, false);
    d->unclaimed = smaller(d->unclaimed, first);
    c->releases = true;
}

/* Blocks of a sequence that count for its key. */
static uint32_t charge_of(const struct check *c, const struct draft *d)
{
    return d->row == NO_ROW ? larger(d->blocks, geometry_blocks(&c->state->config->geometry, d->max_tokens))
                            : sequences_at(c->state->sequences, d->row)->charged;
}

/* Make `count` sequences for the key; false: its quotas do not allow it, and the op has failed. */
static bool charge(struct check *c, const struct draft *d, uint32_t count)
{
    c->sequences += count;
    c->blocks += (int64_t)charge_of(c, d) * count;
    return sequence_ops_is_within(c->state, &c->op, c->sequences > 0 ? (uint32_t)c->sequences : 0,
                                  c->blocks > 0 ? (uint64_t)c->blocks : 0);
}

/* ---- the ops ------------------------------------------------------------------------------------- */

/* How much of its prompt a create will find in the cache: blocks. Those that nobody holds are taken from what
 * others could have had; so are, perhaps, those of sequences that the batch deletes. */
static uint32_t look_up(struct check *c, struct request_op *op, uint32_t need)
{
    struct block_tables_hit match = sequence_ops_match(c->state, &c->op);
    uint32_t held = c->releases ? 0 : match.held, taken = match.hit - held;
    uint64_t room = room_of(c) + need; /* its own promise counts */
    op->findable = op->create.tokens.count;
    if (taken > room) {
        taken = (uint32_t)room;
        op->findable = (held + taken) * c->state->config->geometry.block_size;
    }
    c->room -= taken > need ? taken - need : 0;
    return held + taken;
}

static void check_create(struct check *c, struct request_op *op)
{
    const struct request_tokens *tokens = &op->create.tokens;
    uint32_t limit = c->state->config->limits.sequence_tokens, pages = prompts_pages(tokens->count);
    uint32_t max_tokens = op->create.options.max_tokens,
             need = reservation_need(c->state, max_tokens, 0, false);
    c->op.create = op->create;
    if (!is_free(c, op->id))
        return;
    if (tokens->count > limit)
        request_fail(&c->op, ATTND_INVALID, "tokens: %u, but limits.sequence_tokens is %u", tokens->count,
                     limit);
    else if (!sequence_ops_fits_pool(c->state, &c->op, max_tokens))
        return;
    else if (!promise(c, need))
        request_fail(&c->op, ATTND_NO_BLOCKS, SEQUENCE_OPS_NO_PROMISE, (unsigned long long)need, room_of(c));
    else if (c->rows == 0)
        request_fail(&c->op, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
                     c->state->config->limits.sequences);
    else if (pages > c->pages)
        request_fail(&c->op, ATTND_NO_SEQUENCES, SEQUENCE_OPS_PROMPTS_FULL);
    if (c->op.status != 0)
        return;
    uint32_t hit = look_up(c, op, need), length = hit * c->state->config->geometry.block_size;
    const struct draft draft = {.id = op->id,
                                .row = NO_ROW,
                                .length = length,
                                .longest = length,
                                .blocks = hit,
                                .max_tokens = max_tokens,
                                .kept = need,
                                .prompt = tokens->count};
    if (!charge(c, &draft, 1))
        return;
    c->rows--;
    c->pages -= pages;
    if (op->id)
        (void)add_draft(c, &draft);
    (void)show(c, 1, hit);
}

/* Whether the ids that a fork asks for are free, and different; else the op has failed. Their drafts are
 * made. */
static bool draft_children(struct check *c, const struct request_fork *fork, const struct draft *child)
{
    for (uint32_t i = 0; fork->ids && i < fork->count; i++) {
        struct draft draft = *child;
        draft.id = fork->ids[i];
        if (!is_free(c, draft.id))
            return false;
        (void)add_draft(c, &draft);
    }
    return true;
}

static void check_fork(struct check *c, struct request_op *op)
{
    const struct request_fork *fork = &op->fork;
    struct draft *parent = find_draft(c);
    if (!parent)
        return;
    uint32_t length = fork->length == UINT32_MAX ? parent->length : fork->length,
             blocks = geometry_blocks(&c->state->config->geometry, length),
             each = reservation_need(c->state, parent->max_tokens, length, true);
    uint64_t need = (uint64_t)each * fork->count + (each > 0); /* the parent may have to copy, too */
    const struct draft child = {.row = NO_ROW,
                                .length = length,
                                .longest = length,
                                .blocks = blocks,
                                .max_tokens = parent->max_tokens,
                                .kept = each};
    bool first = parent->row != NO_ROW && !parent->forked;
    if (length > parent->length) {
        request_fail(&c->op, ATTND_INVALID, "length is %u, and the sequence has %u", length, parent->length);
        return;
    }
    if (first && block_tables_view(c->tables, parent->row).swapped)
        c->parents[c->parent_count++] = (struct reserve_request){parent->row, 0, 0};
    parent->forked = true;
    bool owned = parent->row == NO_ROW || sequences_at(c->state->sequences, parent->row)->key == c->op.key;
    if (!draft_children(c, fork, &child) || (owned && !charge(c, &child, fork->count)))
        return;
    if (fork->count > c->rows)
        request_fail(&c->op, ATTND_NO_SEQUENCES, "limits.sequences (%u) leave room for %u of %u forks",
                     c->state->config->limits.sequences, c->rows, fork->count);
    else if (show(c, fork->count, blocks) && !promise(c, need))
        request_fail(&c->op, ATTND_NO_BLOCKS, SEQUENCE_OPS_NO_PROMISE, (unsigned long long)need, room_of(c));
    c->rows -= smaller(c->rows, fork->count);
}

/* Blocks more than it gives back that truncating a sequence makes it need, at most. */
static uint32_t truncation_need(const struct check *c, const struct draft *d, uint32_t length)
{
    uint32_t kept = length / c->state->config->geometry.block_size;
    if (!d->max_tokens)
        return 0;
    if (d->row != NO_ROW && !d->forked && !d->cut && !block_tables_in_flight(c->tables, d->row))
        return reservation_truncation(c->state, d->row, length);
    return d->blocks > kept ? d->blocks - kept : 0;
}

static void check_truncate(struct check *c, struct request_op *op)
{
    struct draft *d = find_draft(c);
    if (!d)
        return;
    uint32_t length = op->truncate.length, need = truncation_need(c, d, length);
    if (!promise(c, need)) {
        request_fail(&c->op, ATTND_NO_BLOCKS, SEQUENCE_OPS_NO_TRUNCATION, need, room_of(c));
        return;
    }
    if (length < d->longest) {
        c->pages += prompts_pages(d->prompt) - prompts_pages(smaller(d->prompt, length));
        d->prompt = smaller(d->prompt, length);
    }
    d->length = smaller(d->length, length);
    d->longest = smaller(d->longest, length);
    d->blocks = geometry_blocks(&c->state->config->geometry, d->longest);
    d->kept += d->row == NO_ROW ? need : 0;
    d->cut = true;
    if (!d->max_tokens)
        give_back(c, d, d->blocks);
    d->unclaimed = smaller(d->unclaimed, d->blocks);
    c->releases = true;
    (void)show(c, 1, d->blocks);
}

static void check_delete(struct check *c)
{
    struct draft *d = find_draft(c);
    if (!d)
        return;
    bool leaves = d->row != NO_ROW && block_tables_in_flight(c->tables, d->row);
    d->live = false;
    c->sequences--;
    c->blocks -= charge_of(c, d);
    c->rows += !leaves;
    c->pages += prompts_pages(d->prompt);
    c->room += d->row == NO_ROW ? d->kept : sequences_at(c->state->sequences, d->row)->declared;
    give_back(c, d, 0);
}

static void check_op(struct check *c, struct request_op *op)
{
    c->op.kind = op->kind;
    c->op.id = op->id;
    if (op->kind == REQUEST_CREATE)
        check_create(c, op);
    else if (op->kind == REQUEST_FORK)
        check_fork(c, op);
    else if (op->kind == REQUEST_TRUNCATE)
        check_truncate(c, op);
    else
        check_delete(c);
}

/* ---- all of them --------------------------------------------------------------------------------- */

/* Room for the drafts; false when the arena has none. */
static bool make_drafts(struct check *c, struct request *request)
{
    const struct request_batch *batch = &request->batch;
    size_t n = batch->count, slots = 4;
    for (uint32_t i = 0; i < batch->count; i++)
        n += batch->ops[i].kind == REQUEST_FORK && batch->ops[i].fork.ids ? batch->ops[i].fork.count : 0;
    while (slots < 2 * n)
        slots *= 2;
    c->drafts = request_alloc(request, n, sizeof *c->drafts);
    c->slots = request_alloc(request, slots, sizeof *c->slots);
    c->parents = request_alloc(request, batch->count, sizeof *c->parents);
    if (!c->drafts || !c->slots || !c->parents)
        return false;
    memset(c->slots, 0xff, slots * sizeof *c->slots);
    c->mask = (uint32_t)slots - 1;
    return true;
}

/* How many block ids the answer lists of each of its sequences. */
static uint32_t listed_of_each(const struct request_batch *batch)
{
    uint64_t views = 1;
    for (uint32_t i = 0; i < batch->count; i++)
        views += batch->ops[i].kind == REQUEST_FORK ? batch->ops[i].fork.count : 1;
    return views > REQUEST_IDS_MAX / REQUEST_LISTED_MAX ? (uint32_t)(REQUEST_IDS_MAX / views)
                                                        : REQUEST_LISTED_MAX;
}

/* Check all ops: 0, or the batch failed. The parents to bring in are in the arena, from `used` on. */
static int check_all(struct check *c, struct request *request)
{
    size_t used = request->arena_used;
    reservation_note_all(c->state);
    c->room = reservation_balance(c->state);
    c->listed_max = listed_of_each(&request->batch);
    c->rows = block_tables_counts(c->tables).vacant;
    c->pages = prompts_free_pages(c->state->prompts);
    c->bytes = request->arena_bytes - used > ALIGNMENT ? request->arena_bytes - used - ALIGNMENT : 0;
    if (!make_drafts(c, request))
        return request_fail(request, ATTND_INVALID, "%u ops with so many ids are too many for one call",
                            request->batch.count);
    for (uint32_t i = 0; c->op.status == 0 && i < request->batch.count; i++) {
        uint32_t parents = c->parent_count;
        check_op(c, &request->batch.ops[i]);
        c->parent_op = parents == 0 && c->parent_count ? i : c->parent_op;
        if (c->op.status != 0)
            request_fail(request, c->op.status, "ops[%u]: %s", i, c->op.detail);
    }
    for (uint32_t i = 0; i < c->draft_count; i++) {
        const struct draft *d = &c->drafts[i];
        if (d->row != NO_ROW && !block_tables_view(c->tables, d->row).swapped)
            block_tables_unclaim(c->tables, d->row);
    }
    return request->status;
}

/* Bring the parents in that are on the host: 0 when there are none, REQUEST_WAITS, or the batch failed. */
static int bring_in(struct check *c, struct request *request)
{
    char why[REQUEST_DETAIL_BYTES];
    int rc =
        c->parent_count ? client_queue_bring_in(c->state->clients, request, c->parents, c->parent_count) : 0;
    if (rc < 0) {
        memcpy(why, request->detail, sizeof why);
        request_fail(request, rc, "ops[%u]: %s", c->parent_op, why);
    }
    return rc;
}

/* Do one op, as a single request that has the batch's arena. */
static int commit_op(struct engine_state *state, struct request *one, struct request_op *op)
{
    int rc;
    one->kind = op->kind;
    one->id = op->id;
    switch (op->kind) {
    case REQUEST_CREATE:
        one->create = op->create;
        rc = sequence_ops_make(state, one, op->findable);
        op->create.shown = one->create.shown;
        return rc;
    case REQUEST_FORK:
        one->fork = op->fork;
        if (op->fork.length == UINT32_MAX)
            one->fork.length =
                block_tables_view(step_tables(state->steps), sequence_ops_find(state, one)).length;
        rc = sequence_ops_make_forks(state, one);
        op->fork.shown = one->fork.shown;
        return rc;
    case REQUEST_TRUNCATE:
        one->truncate = op->truncate;
        rc = sequence_ops_cut(state, one, sequence_ops_find(state, one));
        op->truncate.shown = one->truncate.shown;
        return rc;
    default:
        return sequence_ops_delete(state, one);
    }
}

/* Do all ops, which are checked. Ids that clients choose are set aside first, so that none of them is
 * given to a sequence of an earlier op that leaves the choice to us. */
static void commit(struct engine_state *state, struct request *request, uint32_t listed_max)
{
    struct request one = {.arena = request->arena,
                          .arena_bytes = request->arena_bytes,
                          .arena_used = request->arena_used,
                          .listed_max = listed_max,
                          .key = request->key,
                          .sees_all = request->sees_all,
                          .use = request->use};
    for (uint32_t i = 0; i < request->batch.count; i++) {
        const struct request_op *op = &request->batch.ops[i];
        if (op->kind == REQUEST_CREATE && op->id)
            sequences_choose(state->sequences, op->id, op->id);
        for (uint32_t k = 0; op->kind == REQUEST_FORK && op->fork.ids && k < op->fork.count; k++)
            sequences_choose(state->sequences, op->fork.ids[k], op->fork.ids[k]);
    }
    for (uint32_t i = 0; i < request->batch.count; i++) {
        int rc = commit_op(state, &one, &request->batch.ops[i]);
        assert(rc == 0);
        (void)rc;
    }
    request->arena_used = one.arena_used;
}

int batch_run(struct engine_state *state, struct request *request)
{
    struct check check = {.state = state, .tables = step_tables(state->steps)};
    check.op.key = request->key;
    check.op.sees_all = request->sees_all;
    check.op.quotas = request->quotas;
    size_t used = request->arena_used;
    int rc = check_all(&check, request);
    if (rc == 0)
        rc = bring_in(&check, request);
    request->arena_used = used;
    if (rc == 0)
        commit(state, request, check.listed_max);
    return rc;
}
