/* SPDX-License-Identifier: Apache-2.0 */
/* client_answers.c - see clients.h.
 *
 * For every request the model says what the contract demands: success, or the first reason to refuse it.
 * Beside that a request may be refused for what the model does not know - blocks, rows, time, a client that
 * left, a delete that overtook it - and then nothing has changed. Sequences that declared max_tokens are
 * never refused for want of blocks. */
#include "tests/simulation/clients.h"

#include "tests/simulation/reservation_faults.h"
#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/symbolic_file.h"
#include "tests/simulation/watch.h"

#include <math.h>
#include <string.h>

enum { ARENA_BYTES = 1500, ARENA_BYTES_OF_ROW = 360, ARENA_BYTES_OF_HEAD = 40 }; /* that an answer may take */

static const double MERGE_TOLERANCE = 1e-5;

/* ---- what may have been refused ------------------------------------------------------------------- */

static bool deletes(const struct request *batch, uint64_t id)
{
    for (uint32_t i = 0; i < batch->batch.count; i++) {
        if (batch->batch.ops[i].kind == REQUEST_DELETE && batch->batch.ops[i].id == id)
            return true;
    }
    return false;
}

/* Whether a delete may have ended a request that waited: one behind it, or a batch before it. */
static bool is_deleted_behind(const struct op *op)
{
    for (uint32_t i = 0; i < op->count; i++) {
        if (op->on[i]->ended)
            return true;
        for (uint32_t k = 1; k < op->on[i]->queued; k++) {
            const struct request *behind = op->on[i]->queue[k]->request;
            if (behind->kind == REQUEST_DELETE ||
                (behind->kind == REQUEST_BATCH && deletes(behind, op->on[i]->id)))
                return true;
        }
    }
    return false;
}

/* Whether a request may have been given up before it ran. */
static bool may_be_given_up(const struct op *op)
{
    const struct request *request = op->request;
    if (request->status == ATTND_DEADLINE)
        return request->deadline_s > 0 && sim.now_s > op->submitted_s + request->deadline_s;
    return request->status == ATTND_GONE && (atomic_load(&request->cancelled) || is_deleted_behind(op));
}

static void count_given_up(const struct op *op)
{
    if (op->request->status == ATTND_DEADLINE)
        sim.seen.deadlines++;
    else if (is_deleted_behind(op))
        sim.seen.dropped++;
    else
        sim.seen.cancelled++;
}

static _Noreturn void fail_answer(const struct op *op, const char *wanted)
{
    sim_fail("request %llu (%s) answered %s (%s), wanted %s", (unsigned long long)op->action,
             request_kinds[op->request->kind].name,
             op->request->status ? status_code(op->request->status) : "ok",
             op->request->status ? op->request->detail : "", wanted);
}

static void require(const struct op *op, bool ok, const char *wanted)
{
    if (!ok)
        fail_answer(op, wanted);
}

bool client_answers_has_run(const struct op *op, int expected, int other)
{
    int status = op->request->status;
    if (status == ATTND_DEVICE && engine_failure(sim.engine))
        sim.lost = true;
    if (sim.lost)
        return status == 0;
    if (status != 0 && may_be_given_up(op)) {
        count_given_up(op);
        return false;
    }
    if (status == ATTND_NO_HOST_BLOCKS && symbolic_file_has_failed()) {
        sim.seen.in_the_file++;
        return false;
    }
    if (status == expected || (other && status == other)) {
        sim.seen.refused += status != 0;
        sim.seen.no_blocks += status == ATTND_NO_BLOCKS;
        sim.seen.gaps += status == ATTND_GAP;
        sim.seen.conflicts += status == ATTND_CONFLICT;
        sim.seen.requests += status == 0;
        sim.seen.sliced += status == 0 && op->request->queued.slices.begun;
        sim.seen.compared += op->request->queued.looked == LOOKED;
        sim.seen.too_late += status == 0 && atomic_load(&op->request->cancelled);
        return status == 0;
    }
    fail_answer(op, expected ? status_code(expected) : "success");
}

static int missing(const struct model_sequence *s)
{
    return s->live ? 0 : s->reaped ? ATTND_GONE : ATTND_NOT_FOUND;
}

/* ---- append and attend --------------------------------------------------------------------------- */

/* Where the rows of a sequence went, by the contract. */
struct placed {
    uint32_t position, at, end; /* of its rows; the cursor, before and after */
};

static bool agrees_with_prompt(const struct op *op, uint32_t i, uint32_t position, uint32_t first)
{
    const struct model_sequence *s = op->on[i];
    for (uint32_t r = 0; op->request->attend.tokens.ids && r < op->rows[i]; r++) {
        if (position + r < s->prompt && op->request->attend.tokens.ids[first + r] != s->token[position + r])
            return false;
    }
    return true;
}

/* The status that the contract demands for one sequence of a request, without looking at K and V. */
static int place(const struct op *op, uint32_t i, uint32_t first, struct placed *p)
{
    const struct request *request = op->request;
    const struct model_sequence *s = op->on[i];
    uint32_t rows = op->rows[i];
    if (!s->live)
        return missing(s);
    if (s->voided)
        return ATTND_INVALID;
    if (request->rows.all_layers && model_length(s) != model_longest(s))
        return ATTND_GAP;
    uint32_t at = s->layer[request->rows.layer].cursor;
    bool given = op->position[i] != REQUEST_POSITION_ABSENT;
    if (!request->rows.k && at == 0)
        return ATTND_INVALID;
    if (!given && !request->rows.k && rows > at)
        return ATTND_INVALID;
    p->position = given ? op->position[i] : request->rows.k ? at : at - rows;
    uint32_t end = p->position + rows;
    if (given && (request->rows.k ? p->position > at : end > at))
        return ATTND_GAP;
    if (request->rows.stream.on && request->rows.k && !request->rows.retries && p->position < at)
        return ATTND_CONFLICT;
    if (request->rows.k &&
        (end > sim.config.limits.sequence_tokens || (s->options.max_tokens && end > s->options.max_tokens)))
        return ATTND_INVALID;
    p->at = at;
    p->end = request->rows.k && end > at ? end : at;
    return agrees_with_prompt(op, i, p->position, first) ? 0 : ATTND_INVALID;
}

static uint64_t tag_given(const struct request *request, uint32_t layer, uint32_t row)
{
    size_t first = (size_t)(request->rows.all_layers ? layer : 0) * request->rows.count;
    return symbolic_get(request->rows.k, first + row, sim.config.geometry.kv_heads)->word[0];
}

static uint64_t base_given(const struct request *request, uint32_t row)
{
    return symbolic_get(request->rows.k, row, sim.config.geometry.kv_heads)->word[1];
}

static bool is_at_layer(const struct request *request, uint32_t layer)
{
    return request->rows.all_layers || request->rows.layer == layer;
}

/* Whether the rows that stand already are those that are sent. */
static bool repeats(const struct op *op, uint32_t i, uint32_t first, const struct placed *p)
{
    const struct model_sequence *s = op->on[i];
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        for (uint32_t r = 0; is_at_layer(op->request, layer) && r < op->rows[i] && p->position + r < p->at;
             r++) {
            sim.seen.retries++;
            if (s->layer[layer].tag[p->position + r] != tag_given(op->request, layer, first + r))
                return false;
        }
    }
    return true;
}

/* Enter the new rows of a sequence into the model. */
static void put_rows(const struct op *op, uint32_t i, uint32_t first, const struct placed *p)
{
    struct model_sequence *s = op->on[i];
    const struct request *request = op->request;
    uint32_t longest = model_longest(s);
    for (uint32_t at = p->at; at < p->end; at++) {
        uint32_t row = first + at - p->position;
        if (at < longest)
            continue;
        s->base[at] = base_given(request, row);
        if (at < s->prompt || request->attend.tokens.ids) {
            s->token[at] = request->attend.tokens.ids ? request->attend.tokens.ids[row] : s->token[at];
            s->known += s->known == at;
        }
    }
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        for (uint32_t at = p->at; is_at_layer(request, layer) && at < p->end; at++)
            model_put(s, layer, at, tag_given(request, layer, first + at - p->position));
        if (is_at_layer(request, layer))
            s->layer[layer].cursor = p->end;
    }
    sim_note("  sequence %llu has rows %u to %u, the first based on %llx, salt %u, token %u",
             (unsigned long long)s->id, p->at, p->end,
             p->end > p->at ? (unsigned long long)s->base[p->at] : 0, s->salt, s->token[p->at]);
    sim.seen.appended += p->end - p->at;
    sim.seen.declared += s->options.max_tokens ? p->end - p->at : 0;
}

/* Whether all heads of a row have one output, of `keys` keys whose terms have that sum. */
static bool has_output(const struct request *request, uint32_t row, uint64_t sum, uint32_t keys)
{
    uint32_t heads = sim.config.geometry.query_heads;
    const struct symbolic_row *q = symbolic_get(request->rows.q, row, heads),
                              *o = symbolic_get(request->rows.out.o, row, heads);
    struct symbolic_row wanted = symbolic_output(q->word[0], sum, keys);
    bool same = o && memcmp(&wanted, o, sizeof wanted) == 0;
    for (uint32_t head = 0; head < heads; head++)
        same &= request->rows.out.lse[(size_t)row * heads + head] == (float)keys;
    return same;
}

/* The outputs of one sequence's rows. */
static void check_outputs(const struct op *op, uint32_t i, uint32_t first, const struct placed *p)
{
    const struct request *request = op->request;
    for (uint32_t r = 0; r < op->rows[i]; r++) {
        uint32_t keys = p->position + r + 1;
        uint32_t seen = keys - plan_visible(keys, sim.config.geometry.window[request->rows.layer]).first;
        uint64_t sum = model_seen(op->on[i], request->rows.layer, keys);
        sim.seen.attended++;
        if (!has_output(request, first + r, sum, seen))
            sim_fail("request %llu: sequence %llu, position %u, layer %u has another output than its tokens "
                     "say (%u keys)",
                     (unsigned long long)op->action, (unsigned long long)op->on[i]->id, p->position + r,
                     request->rows.layer, seen);
    }
}

static void check_views(const struct op *op, uint32_t i)
{
    const struct request *request = op->request;
    uint32_t layers = sim.config.geometry.layers;
    if (request->kind != REQUEST_APPEND)
        return;
    require(op,
            request->attend.view_count == op->count && request->attend.views[i].id == op->on[i]->id &&
                request->attend.views[i].length == model_length(op->on[i]),
            "the sequences with their lengths");
    for (uint32_t layer = 0; layer < layers; layer++)
        require(op, request->attend.lengths[i * layers + layer] == op->on[i]->layer[layer].cursor,
                "the length at each layer");
}

/* Blocks may be wanting only if some sequence has not declared how many it takes. */
static bool may_lack_blocks(const struct op *op)
{
    for (uint32_t i = 0; i < op->count; i++) {
        if (op->on[i]->live && !op->on[i]->options.max_tokens)
            return true;
    }
    return false;
}

/* Blocks of a request that no pool of this size can have: then it is refused as invalid. */
static bool exceeds_pool(const struct op *op, const struct placed *p)
{
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < op->count; i++) {
        uint32_t longest = model_longest(op->on[i]), end = p[i].end > longest ? p[i].end : longest;
        blocks += end / sim.config.geometry.block_size + 2;
    }
    return blocks > sim.config.pool_blocks;
}

/* A request in slices that was given up after its appends: they stand. */
static void put_what_stands(struct op *op)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < op->count; first += op->rows[i++]) {
        struct placed placed = {0};
        if (place(op, i, first, &placed) == 0)
            put_rows(op, i, first, &placed);
    }
    sim.seen.stood++;
}

/* A streamed request is in one step. */
static bool is_too_large_to_stream(const struct op *op)
{
    const struct request_rows *rows = &op->request->rows;
    uint32_t layers = rows->all_layers ? sim.config.geometry.layers : 1, most = sim.config.step_rows_max,
             appends = rows->count < op->count ? rows->count : op->count;
    return rows->stream.on && ((rows->q && rows->count > most) || (rows->k && appends * layers > most));
}

/* Whether a streamed request has a wrong v among the rows of sequence i that it appends. */
static bool voids(const struct op *op, uint32_t i, uint32_t first, const struct placed *p)
{
    return op->wrong >= first && op->wrong < first + op->rows[i] && p->position + op->wrong - first >= p->at;
}

/* A request that was in a step: which of its sequences go on with it, and which are void from then on. */
static void judge_streamed(struct op *op)
{
    const struct request *request = op->request;
    bool any = false, gone = is_deleted_behind(op);
    uint32_t first = 0, heads = sim.config.geometry.query_heads;
    for (uint32_t i = 0; i < op->count; first += op->rows[i++]) {
        struct model_sequence *s = op->on[i];
        struct placed p = {0};
        bool was_void = s->voided;
        if (!was_void && (place(op, i, first, &p) != 0 || (request->rows.k && !repeats(op, i, first, &p))))
            sim_fail("request %llu was in a step, and sequence %llu not fit for it",
                     (unsigned long long)op->action, (unsigned long long)s->id);
        s->voided = was_void || (request->rows.k && voids(op, i, first, &p));
        any |= s->voided;
        sim.seen.voided += s->voided && !was_void;
        if (!s->voided) {
            if (request->rows.k)
                put_rows(op, i, first, &p);
            if (request->rows.q)
                check_outputs(op, i, first, &p);
            continue;
        }
        uint32_t prompt = s->prompt;
        if (!was_void)
            model_truncate(s, model_length(s));
        s->prompt = prompt; /* it was not given up */
        for (uint32_t r = 0; request->rows.q && r < op->rows[i]; r++) {
            if (!symbolic_is_refused(symbolic_get(request->rows.out.o, first + r, heads)))
                sim_fail("request %llu: an output that follows a wrong v", (unsigned long long)op->action);
        }
    }
    require(op, request->status == (any ? ATTND_INVALID : 0) || (gone && any && request->status == 0),
            any ? "void" : "success");
    sim.seen.requests += !any;
}

/* A streamed request that was refused at once, by what its sequences would have had if nothing had become void. */
static bool is_refused_ahead(const struct op *op)
{
    const struct request *request = op->request;
    bool voided = false;
    for (uint32_t i = 0; i < op->count; i++)
        voided |= op->on[i]->voided;
    return voided && request->status != 0 && request->status != ATTND_DEVICE && request->rows.stream.on &&
           !strstr(request->detail, "void");
}

/* A request that was refused because of a sequence of which nobody had been told: now somebody is. */
static void note_told(const struct op *op)
{
    unsigned long long id = 0;
    if (sscanf(op->request->detail, "sequence %llu", &id) != 1)
        return;
    for (uint32_t i = 0; i < op->count; i++) {
        sim.seen.told += op->on[i]->voided && op->on[i]->id == id;
        op->on[i]->voided &= op->on[i]->id != id;
    }
}

static void judge_rows(struct op *op)
{
    const struct request *request = op->request;
    struct placed placed[OP_SEQUENCES_MOST] = {0};
    uint32_t first = 0;
    int expected = request->rows.count > sim.config.limits.rows_per_call ? ATTND_INVALID : 0;
    bool too_large = expected != 0;
    if (request->rows.stream.on && request->queued.taken && request->status != ATTND_DEVICE && !sim.lost) {
        judge_streamed(op);
        return;
    }
    if (is_refused_ahead(op))
        expected = request->status;
    for (uint32_t i = 0; expected == 0 && i < op->count; first += op->rows[i++])
        expected = place(op, i, first, &placed[i]);
    if (expected == 0 && is_too_large_to_stream(op))
        expected = ATTND_INVALID;
    int other =
        expected == 0 && may_lack_blocks(op)
            ? (request->status == ATTND_INVALID && exceeds_pool(op, placed) ? ATTND_INVALID : ATTND_NO_BLOCKS)
            : 0;
    first = 0;
    for (uint32_t i = 0; expected == 0 && request->rows.k && i < op->count; first += op->rows[i++])
        expected = repeats(op, i, first, &placed[i]) ? 0 : ATTND_CONFLICT;
    if (!client_answers_has_run(op, expected, other)) {
        if (!sim.lost && !too_large && request->status == ATTND_INVALID && strstr(request->detail, "void"))
            note_told(op);
        if (!sim.lost && request->rows.k && request->queued.slices.stands)
            put_what_stands(op);
        return;
    }
    require(op, !sim.lost || op->before_failure, "a failure, since the device is lost");
    if (sim.lost) /* and nobody knows how far earlier ones have come */
        return;
    first = 0;
    for (uint32_t i = 0; i < op->count; first += op->rows[i++]) {
        if (request->rows.k)
            put_rows(op, i, first, &placed[i]);
        if (request->rows.q)
            check_outputs(op, i, first, &placed[i]);
        check_views(op, i);
    }
}

/* ---- create, fork, truncate, delete -------------------------------------------------------------- */

static struct model_sequence *new_sequence(const struct op *op, uint64_t id, bool lease)
{
    require(op, id != 0 && !model_find(id), "an id that is not in use");
    struct model_sequence *s = model_add(id, lease);
    if (!s)
        sim_fail("the model has no room for another sequence");
    s->used_low_s = op->submitted_s;
    return s;
}

/* The tokens of a prompt, of which the cache had `hit`. */
static void set_prompt(struct model_sequence *s, const struct request_create *create, uint32_t hit)
{
    s->salt = create->salt_bytes;
    s->prompt = create->tokens.count;
    for (uint32_t at = 0; at < create->tokens.count; at++) {
        s->token[at] = create->tokens.ids[at];
        s->base[at] = s->planned_base[at] = model_named_base(s, at);
    }
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        for (uint32_t at = 0; at < hit; at++)
            model_put(s, layer, at, model_tag(s->base[at], layer));
        s->layer[layer].cursor = hit;
    }
    s->known = hit;
    sim_note("  sequence %llu has %u tokens of the cache, salt %u, the first %u is based on %llx",
             (unsigned long long)s->id, hit, s->salt, hit ? s->token[0] : 0,
             hit ? (unsigned long long)s->base[0] : 0);
    sim.seen.hits += hit > 0;
}

/* What the cache had has been written by steps that are done (I6). */
static void check_hit(const struct op *op, const struct model_sequence *s, uint32_t hit)
{
    uint32_t size = sim.config.geometry.block_size;
    for (uint32_t at = 0; at < hit && !sim.lost; at++) {
        for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
            uint32_t block = op->request->create.shown.block_ids[at / size];
            if (symbolic_backend_tag(layer, block, at % size) != s->layer[layer].tag[at])
                sim_fail("I6: block %u, position %u of sequence %llu, was in the cache before it was written",
                         block, at, (unsigned long long)s->id);
        }
    }
}

/* The status that the contract demands of a create whose id is free. */
static int create_expected(const struct request_create *create)
{
    uint32_t size = sim.config.geometry.block_size, limit = sim.config.limits.sequence_tokens;
    uint32_t max_tokens = create->options.max_tokens;
    bool too_much = max_tokens > limit || (max_tokens + size - 1) / size > sim.config.pool_blocks;
    return create->tokens.count > limit || too_much ? ATTND_INVALID : 0;
}

static struct model_sequence *put_created(const struct op *op, const struct request_create *create,
                                          uint64_t id)
{
    const struct sequence_view *view = &create->shown.views[0];
    require(op, view->length <= create->tokens.count && view->length % sim.config.geometry.block_size == 0,
            "whole blocks of the prompt");
    require(op, !id || view->id == id, "the id that was asked for");
    struct model_sequence *s = new_sequence(op, view->id, false);
    s->options = create->options;
    set_prompt(s, create, view->length);
    model_settle(s);
    return s;
}

static void judge_create(struct op *op)
{
    const struct request *request = op->request;
    int other = request->status == ATTND_NO_BLOCKS && request->create.options.max_tokens ? ATTND_NO_BLOCKS
                                                                                         : ATTND_NO_SEQUENCES;
    if (!client_answers_has_run(op, create_expected(&request->create), other))
        return;
    struct model_sequence *s = put_created(op, &request->create, op->claimed[0]);
    check_hit(op, s, request->create.shown.views[0].length);
}

static void put_forks(const struct op *op, const struct request_fork *fork,
                      const struct model_sequence *parent, uint32_t length)
{
    require(op, fork->shown.count == fork->count, "every child");
    for (uint32_t i = 0; i < fork->count; i++) {
        require(op, sim.lost || fork->shown.views[i].length == length, "children of that length");
        require(op, !fork->ids || fork->shown.views[i].id == fork->ids[i], "the ids that were asked for");
        model_fork(new_sequence(op, fork->shown.views[i].id, false), parent, sim.lost ? 0 : length);
        sim.seen.forks++;
    }
}

static void judge_fork(struct op *op)
{
    const struct request *request = op->request;
    struct model_sequence *parent = op->on[0];
    int expected = missing(parent);
    uint32_t length = request->fork.length == UINT32_MAX ? model_length(parent) : request->fork.length;
    if (expected == 0 && length > model_length(parent))
        expected = ATTND_INVALID;
    int other = expected ? 0 : request->status == ATTND_NO_SEQUENCES ? ATTND_NO_SEQUENCES : ATTND_NO_BLOCKS;
    if (!client_answers_has_run(op, expected, other))
        return;
    put_forks(op, &request->fork, parent, length);
}

static void judge_truncate(struct op *op)
{
    struct model_sequence *s = op->on[0];
    int other = s->live && s->options.max_tokens ? ATTND_NO_BLOCKS : 0;
    if (!client_answers_has_run(op, missing(s), other) || sim.lost)
        return;
    model_truncate(s, op->request->truncate.length);
    require(op, op->request->truncate.shown.views[0].length == model_length(s),
            "the length after the truncate");
    sim.seen.truncates++;
}

static void judge_delete(struct op *op)
{
    struct model_sequence *s = op->on[0];
    if (!client_answers_has_run(op, missing(s), 0))
        return;
    s->live = false;
    sim.seen.deletes++;
}

/* ---- batches ------------------------------------------------------------------------------------- */

enum { TRIED_MOST = 32 };

/* A sequence in the middle of a batch, as far as the contract says. */
struct tried {
    uint64_t id;
    int missing;                /* the status if it is not live */
    bool live, declared, known; /* `length` is */
    uint32_t length;
};

static struct tried *try_find(struct tried *tried, uint32_t n, uint64_t id)
{
    while (n-- > 0) {
        if (tried[n].id == id)
            return &tried[n];
    }
    return NULL;
}

/* The status that the contract demands of a batch, and of which op it is; `*scarce`: it may want blocks. */
static int try_batch(const struct op *op, uint32_t *at, bool *scarce)
{
    struct tried tried[TRIED_MOST];
    const struct request_batch *batch = &op->request->batch;
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->count; i++)
        tried[n++] = (struct tried){.id = op->on[i]->id,
                                    .missing = missing(op->on[i]),
                                    .live = op->on[i]->live,
                                    .declared = op->on[i]->options.max_tokens != 0,
                                    .known = true,
                                    .length = model_length(op->on[i])};
    for (*at = 0; *at < batch->count; ++*at) {
        const struct request_op *o = &batch->ops[*at];
        struct tried *t = o->kind == REQUEST_CREATE ? NULL : try_find(tried, n, o->id);
        if (o->kind == REQUEST_CREATE && create_expected(&o->create) != 0)
            return ATTND_INVALID;
        if (o->kind == REQUEST_CREATE) {
            *scarce |= o->create.options.max_tokens != 0;
            tried[n++] =
                (struct tried){.id = o->id, .live = true, .declared = o->create.options.max_tokens != 0};
        } else if (!t || !t->live) {
            return t && t->missing ? t->missing : ATTND_NOT_FOUND;
        } else if (o->kind == REQUEST_FORK) {
            *scarce = true;
            if (t->known && o->fork.length != UINT32_MAX && o->fork.length > t->length)
                return ATTND_INVALID;
            if (o->fork.ids)
                tried[n++] =
                    (struct tried){.id = o->fork.ids[0],
                                   .live = true,
                                   .declared = t->declared,
                                   .known = t->known,
                                   .length = o->fork.length == UINT32_MAX ? t->length : o->fork.length};
        } else if (o->kind == REQUEST_TRUNCATE) {
            *scarce |= t->declared;
            t->length = o->truncate.length < t->length ? o->truncate.length : t->length;
        } else {
            t->live = false;
        }
    }
    return 0;
}

/* Do one op of a batch that has run to the model. */
static void put_op(const struct op *op, const struct request_op *o)
{
    struct model_sequence *s = o->kind == REQUEST_CREATE ? NULL : model_find(o->id);
    require(op, s || o->kind == REQUEST_CREATE, "a sequence that there is");
    if (o->kind == REQUEST_CREATE) {
        (void)put_created(op, &o->create, o->id);
    } else if (o->kind == REQUEST_FORK) {
        put_forks(op, &o->fork, s, o->fork.length == UINT32_MAX ? model_length(s) : o->fork.length);
    } else if (o->kind == REQUEST_TRUNCATE && !sim.lost) {
        model_truncate(s, o->truncate.length);
        require(op, o->truncate.shown.views[0].length == model_length(s), "the length after the truncate");
        if (s->queued == 0)
            model_settle(s);
    } else if (o->kind == REQUEST_DELETE) {
        s->live = false;
        s->ended = true;
        s->used = s->queued > 0;
    }
}

/* Whether a batch may have been refused before an earlier batch ended one of its sequences: it does not
 * wait for those that it only deletes. */
static bool overtook_its_end(const struct op *op)
{
    bool ended = false;
    for (uint32_t i = 0; i < op->count; i++)
        ended |= op->on[i]->ended;
    return ended && !op->alone;
}

static void judge_batch(struct op *op)
{
    const struct request *request = op->request;
    char where[16];
    uint32_t at;
    bool scarce = false;
    if (request->status != 0 && overtook_its_end(op))
        return;
    int expected = try_batch(op, &at, &scarce), other = ATTND_NO_SEQUENCES;
    if (scarce && request->status == ATTND_NO_BLOCKS)
        other = ATTND_NO_BLOCKS;
    else if (scarce && request->status == ATTND_INVALID && strstr(request->detail, ": needs "))
        other = ATTND_INVALID; /* all parents together have more blocks than the pool */
    bool ran = client_answers_has_run(op, expected, other);
    snprintf(where, sizeof where, "ops[%u]: ", at);
    if (!sim.lost && !ran && request->status == expected && !may_be_given_up(op)) {
        require(op, strncmp(request->detail, where, strlen(where)) == 0, where);
        sim.seen.batches_refused++;
    }
    for (uint32_t i = 0; ran && i < request->batch.count; i++)
        put_op(op, &request->batch.ops[i]);
    sim.seen.batches += ran;
}

/* ---- leases -------------------------------------------------------------------------------------- */

static void judge_lease(struct op *op)
{
    const struct request *request = op->request;
    uint32_t size = sim.config.geometry.block_size;
    bool too_much = request->lease.blocks * size > sim.config.limits.sequence_tokens ||
                    request->lease.blocks > sim.config.pool_blocks;
    int other = request->status == ATTND_NO_SEQUENCES ? ATTND_NO_SEQUENCES : ATTND_NO_BLOCKS;
    if (!client_answers_has_run(op, too_much ? ATTND_INVALID : 0, too_much ? 0 : other))
        return;
    require(op, request->lease.shown.block_id_count == request->lease.blocks, "the blocks of the lease");
    struct model_sequence *s = new_sequence(op, request->lease.shown.views[0].id, true);
    s->options = request->lease.options;
    s->blocks = request->lease.blocks;
    memcpy(s->block, request->lease.shown.block_ids, request->lease.blocks * sizeof *s->block);
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++)
        memset(s->layer[layer].tag, 0, s->blocks * size * sizeof *s->layer[layer].tag);
    sim.seen.leases++;
}

/* The token of a lease that a slot is. */
static uint64_t *lease_slot(struct model_sequence *s, uint32_t layer, uint32_t block, uint32_t slot)
{
    uint32_t i = 0;
    while (i < s->blocks && s->block[i] != block)
        i++;
    return i < s->blocks ? &s->layer[layer].tag[i * sim.config.geometry.block_size + slot] : NULL;
}

static void check_paged_row(const struct op *op, uint32_t table, uint32_t row, uint32_t keys)
{
    const struct request *request = op->request;
    const struct request_paged *p = &request->paged;
    uint32_t size = sim.config.geometry.block_size;
    uint32_t first = plan_visible(keys, sim.config.geometry.window[request->rows.layer]).first;
    uint64_t sum = 0;
    for (uint32_t at = first; at < keys; at++) {
        uint32_t block = p->ids[p->first[table] + at / size];
        sum += symbolic_term(*lease_slot(op->on[0], request->rows.layer, block, at % size), at);
    }
    sim.seen.attended++;
    if (!has_output(request, row, sum, keys - first))
        sim_fail("request %llu: lease %llu, row %u, layer %u has another output than its slots say",
                 (unsigned long long)op->action, (unsigned long long)op->on[0]->id, row, request->rows.layer);
}

/* What a paged request wrote; of a lease that is gone nothing. */
static void put_slots(const struct op *op)
{
    const struct request *request = op->request;
    const struct request_paged *p = &request->paged;
    uint32_t size = sim.config.geometry.block_size;
    for (uint32_t i = 0; op->on[0]->live && i < p->tokens; i++) {
        if (p->slots[i] >= 0)
            *lease_slot(op->on[0], request->rows.layer, (uint32_t)p->slots[i] / size,
                        (uint32_t)p->slots[i] % size) =
                symbolic_get(request->rows.k, i, sim.config.geometry.kv_heads)->word[0];
    }
}

static void judge_paged(struct op *op)
{
    const struct request *request = op->request;
    const struct request_paged *p = &request->paged;
    int expected = request->rows.count > sim.config.limits.rows_per_call ? ATTND_INVALID : missing(op->on[0]);
    if (!client_answers_has_run(op, expected, 0)) {
        if (!sim.lost && request->queued.slices.stands)
            put_slots(op);
        return;
    }
    put_slots(op);
    for (uint32_t table = 0; request->rows.q && table < p->sequences; table++) {
        uint32_t rows = p->indptr[table + 1] - p->indptr[table];
        for (uint32_t r = 0; r < rows; r++)
            check_paged_row(op, table, p->indptr[table] + r,
                            p->context[table] ? p->context[table] - rows + r + 1 : 0);
    }
    sim.seen.paged++;
}

/* ---- questions ----------------------------------------------------------------------------------- */

static void judge_question(struct op *op)
{
    const struct request *request = op->request;
    const struct model_sequence *s = op->on[0];
    if (!op->alone && (request->status != 0 || !s->live))
        return; /* it may have been answered before or after what it was asked beside */
    if (!client_answers_has_run(op, missing(s), 0))
        return;
    sim.seen.questions++;
    if (sim.lost || !op->alone || s->queued > 1 || s->lease || request->kind != REQUEST_SEQUENCE)
        return;
    require(op, request->look.shown.views[0].length == model_length(s), "the length of the sequence");
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++)
        require(op, request->look.lengths[layer] == s->layer[layer].cursor, "the length at each layer");
}

static void judge_export(struct op *op)
{
    const struct request_export *e = &op->request->export;
    const struct model_sequence *s = op->on[0];
    uint32_t tokens = e->end - e->first, heads = sim.config.geometry.kv_heads;
    int expected = missing(s) ? missing(s) : e->end > model_length(s) ? ATTND_GAP : 0;
    if (!client_answers_has_run(op, expected, expected ? 0 : ATTND_NO_BLOCKS) || sim.lost)
        return;
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        for (uint32_t i = 0; i < tokens; i++) {
            size_t row = (size_t)layer * tokens + i;
            struct symbolic_row k = symbolic_k(s->layer[layer].tag[e->first + i], 0),
                                v = symbolic_v(s->layer[layer].tag[e->first + i]);
            const struct symbolic_row *has_k = symbolic_get(e->k, row, heads),
                                      *has_v = symbolic_get(e->v, row, heads);
            require(op, has_k && memcmp(has_k, &k, sizeof k) == 0, "K as it is stored");
            require(op, has_v && memcmp(has_v, &v, sizeof v) == 0, "V as it is stored");
        }
    }
    for (uint32_t i = 0; i < e->token_count; i++)
        require(op, e->tokens[i] == s->token[e->first + i], "the ids of the tokens");
    require(op, e->length == model_length(s), "the length of the sequence");
    sim.seen.exports++;
    sim.seen.exports_named += e->token_count > 0;
    sim.seen.exports_in_parts += sim.seen.steps > op->steps + 2;
}

/* A page of blocks, looked at in parts, has them as they all were at its epoch: as they come out when they are rewound
 * to it at once. */
static void check_pool(const struct op *op)
{
    enum { MOST = 64 };
    const struct request_pool *ask = &op->request->pool;
    const struct block_tables *tables = step_tables(watch_state()->steps);
    const struct block_pool *pool = block_tables_pool(tables);
    struct block_log *log = block_tables_log(tables);
    struct block_past past[MOST];
    bool known = ask->at.epoch >= block_log_oldest(log);
    require(op, ask->blocks.count <= MOST && ask->blocks.count <= ask->page.limit, "a page of blocks");
    for (uint32_t i = 0; i < ask->blocks.count; i++) {
        const struct block_view *view = &ask->blocks.views[i];
        require(op, view->block == ask->page.cursor + i, "one block after the other");
        require(op, !view->owner || view->state == BLOCK_HELD, "owners of held blocks only");
        past[i] = block_pool_now(pool, view->block);
    }
    if (!known || ask->blocks.count == 0)
        return;
    block_log_rewind(log, ask->at.epoch, ask->blocks.views[0].block, ask->blocks.count, past);
    for (uint32_t i = 0; i < ask->blocks.count; i++) {
        const struct block_view *view = &ask->blocks.views[i];
        if (view->foreign)
            continue;
        require(op, view->state == past[i].state && view->refs == past[i].refs, "blocks of one epoch");
        require(op, view->state == BLOCK_FREE || past[i].refs == 0 || view->fill == past[i].fill,
                "fills of one epoch");
    }
    sim.seen.pages += sim.seen.steps == op->steps;
    sim.seen.pages_in_parts += sim.seen.steps > op->steps;
}

static void judge_look_around(struct op *op)
{
    const struct request *request = op->request;
    bool past = (request->kind == REQUEST_POOL && request->pool.at.past) ||
                (request->kind == REQUEST_TABLES && request->tables.at.past);
    if (!client_answers_has_run(op, 0, past ? ATTND_EPOCH_GONE : 0))
        return;
    if (request->kind == REQUEST_AUDIT) {
        if (request->check.fault)
            sim_fail("%s", request->check.fault);
        reservation_plant_faults(watch_state());
        sim.seen.audits++;
        sim.seen.audits_in_parts += sim.seen.steps > op->steps;
    } else if (request->kind == REQUEST_POOL) {
        check_pool(op);
    } else if (request->kind == REQUEST_TABLES) {
        watched_history_check(request);
        sim.seen.tables_in_parts += sim.seen.steps > op->steps;
    } else if (request->kind == REQUEST_STATS) {
        const struct block_pool_counts *pool = &request->stats.all.pool;
        sim.stats = request->stats.all;
        require(op, pool->free + pool->cached + pool->held + pool->fenced == pool->blocks,
                "I1: every block counted once");
    }
}

/* The outcome is the backend's, of a test that was done since. */
static void judge_self_test(struct op *op)
{
    if (!client_answers_has_run(op, 0, 0) || sim.lost)
        return;
    require(op, symbolic_backend_tests() > op->tests, "the outcome of a test that has run");
    require(op, !op->request->check.fault == !symbolic_backend_conduct.differs, "what the test has found");
    sim.seen.self_tests++;
    sim.seen.self_tests_failed += op->request->check.fault != NULL;
}

/* All parts of a measurement that was begun since. */
static void judge_roof(struct op *op)
{
    if (!client_answers_has_run(op, 0, 0) || sim.lost)
        return;
    require(op, symbolic_backend_roofs() > op->roofs, "a measurement of the roof that is done");
    sim.seen.roofs++;
}

/* One row of a merge, of `rows` of all heads: the states weighed by what they saw. */
static void check_merged(const struct op *op, uint32_t row, uint32_t rows)
{
    const struct request_merge *m = &op->request->merge;
    const float *o = m->o, *merged = (const float *)m->out.o + (size_t)row * SYMBOLIC_HEAD_DIM;
    double sum = 0, wanted[SYMBOLIC_HEAD_DIM] = {0};
    for (uint32_t i = 0; i < m->states; i++) {
        double weight = exp((double)m->lse[i * rows + row]);
        sum += weight;
        for (uint32_t d = 0; d < SYMBOLIC_HEAD_DIM; d++)
            wanted[d] += weight * (double)o[(i * rows + row) * SYMBOLIC_HEAD_DIM + d];
    }
    bool same = sum > 0 ? fabs((double)m->out.lse[row] - log(sum)) < MERGE_TOLERANCE
                        : isinf(m->out.lse[row]) && m->out.lse[row] < 0;
    for (uint32_t d = 0; d < SYMBOLIC_HEAD_DIM; d++)
        same &= fabs((double)merged[d] - (sum > 0 ? wanted[d] / sum : 0)) < MERGE_TOLERANCE;
    if (!same)
        sim_fail("request %llu: row %u of the merge is not that of its states",
                 (unsigned long long)op->action, row);
}

static void judge_merge(struct op *op)
{
    if (!client_answers_has_run(op, 0, 0))
        return;
    uint32_t rows = op->request->merge.rows * sim.config.geometry.query_heads;
    for (uint32_t row = 0; row < rows; row++)
        check_merged(op, row, rows);
    sim.seen.merges++;
}

/* A request that has to wait takes no more room for that. */
static void check_arena(const struct op *op)
{
    const struct request *request = op->request;
    bool has_rows =
        request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND || request->kind == REQUEST_PAGED;
    size_t rows = has_rows ? request->rows.count : 0;
    size_t heads = sim.config.geometry.query_heads;
    rows += request->kind == REQUEST_MERGE ? request->merge.rows : 0;
    rows += request->kind == REQUEST_PAGED ? request->paged.tokens : 0;
    size_t used = request->arena_used - op->arena_used;
    if (request_kinds[request->kind].when == REQUEST_STEPPED &&
        used > ARENA_BYTES + rows * (ARENA_BYTES_OF_ROW + heads * ARENA_BYTES_OF_HEAD))
        sim_fail("request %llu (%s) of %zu rows has taken %zu bytes of its arena",
                 (unsigned long long)op->action, request_kinds[request->kind].name, rows, used);
}

/* ---- all ----------------------------------------------------------------------------------------- */

void client_answers_judge(struct op *op)
{
    check_arena(op);
    switch (op->request->kind) {
    case REQUEST_MERGE:
        judge_merge(op);
        return;
    case REQUEST_SELF_TEST:
        judge_self_test(op);
        return;
    case REQUEST_ROOF:
        judge_roof(op);
        return;
    case REQUEST_APPEND:
    case REQUEST_ATTEND:
        judge_rows(op);
        return;
    case REQUEST_CREATE:
        judge_create(op);
        return;
    case REQUEST_FORK:
        judge_fork(op);
        return;
    case REQUEST_TRUNCATE:
        judge_truncate(op);
        return;
    case REQUEST_DELETE:
        judge_delete(op);
        return;
    case REQUEST_BATCH:
        judge_batch(op);
        return;
    case REQUEST_LEASE:
        judge_lease(op);
        return;
    case REQUEST_PAGED:
        judge_paged(op);
        return;
    case REQUEST_EXPORT:
        judge_export(op);
        return;
    case REQUEST_SEQUENCE:
    case REQUEST_BLOCKS:
        judge_question(op);
        return;
    case REQUEST_PARAMETERS:
        client_parameters_judge(op);
        return;
    case REQUEST_WORKLOAD_START:
    case REQUEST_WORKLOAD:
    case REQUEST_WORKLOAD_CANCEL:
        sim.seen.requests += op->request->status == 0;
        client_workloads_judge(op);
        return;
    default:
        judge_look_around(op);
    }
}
