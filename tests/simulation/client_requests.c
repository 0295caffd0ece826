/* SPDX-License-Identifier: Apache-2.0 */
/* client_requests.c - see clients.h.
 *
 * Every action of every connection draws from a generator of its own, seeded with the connection and the
 * number of the action. So an action can be left out of a history and the others stay what they were,
 * which is how a failing history is shortened. */
#include "config/numbers.h"
#include "tests/simulation/clients.h"

#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/watch.h"

#include <math.h>
#include <string.h>

enum {
    ROWS_MOST = 160,       /* of one request, */
    ROWS_MOST_LONG = 4600, /* where sequences are long */
    MERGED_STATES = 4,
    MERGED_ROWS = 6,
    AGAIN_MOST = 30,  /* questions that one client asks one after the other, */
    CHAINED_MOST = 3, /* and how many of them one turn of the engine's may answer */
    CHOSEN_IDS = 60,  /* ids that clients choose are among so many */
    FAMILY_KINDS = 7, /* of actions: the first ones make, fill, fork, cut and end sequences */
    QUIET = 6,        /* one seed in so many begins with so many actions at most that append nothing */
    QUIET_ACTIONS = 400,
    PATIENT = 8 /* one request in so many is one that its client does not wait for */
};

/* XX(name, largest weight, function) */
#define ACTION_MAP(XX)                                                                                       \
    XX(create, 6, create)                                                                                    \
    XX(append, 10, append)                                                                                   \
    XX(attend, 8, attend)                                                                                    \
    XX(append_and_attend, 12, append_and_attend)                                                             \
    XX(fork, 4, fork)                                                                                        \
    XX(truncate, 3, truncate)                                                                                \
    XX(delete, 4, delete)                                                                                    \
    XX(batch, 5, batch)                                                                                      \
    XX(lease, 2, lease)                                                                                      \
    XX(paged, 6, paged)                                                                                      \
    XX(question, 3, question)                                                                                \
    XX(look_around, 1, look_around)                                                                          \
    XX(look_again, 1, look_again)                                                                            \
    XX(export, 2, export)                                                                                    \
    XX(merge, 3, merge)                                                                                      \
    XX(self_test, 1, self_test)                                                                              \
    XX(roof, 1, roof)                                                                                        \
    XX(workload, 1, workload)                                                                                \
    XX(workload_look, 4, workload_look)                                                                      \
    XX(lull, 1, lull)                                                                                        \
    XX(parameters, 1, parameters)

struct connection {
    double next_s;
    uint64_t actions;
    struct op *op; /* that it waits for */
};

static struct {
    struct connection at[SIM_CONNECTIONS_MOST];
    struct op ops[SIM_REQUESTS_MOST];
    uint32_t count, owners;
    uint64_t random, action; /* that is being made */
    uint64_t quiet;          /* actions in which nothing is appended */
    uint64_t base[ROWS_MOST_LONG];
    uint32_t token[ROWS_MOST_LONG];
    uint32_t weights[32], weight_sum;
    double think_s;
    bool stopped, noticing;
} clients;

struct op *clients_ops(void)
{
    return clients.ops;
}

static uint32_t below(uint32_t n)
{
    return sim_below(&clients.random, n);
}

static bool chance(uint32_t n)
{
    return sim_chance(&clients.random, n);
}

/* ---- submitting ---------------------------------------------------------------------------------- */

static struct op *begin_op(enum request_kind kind)
{
    struct op *op = clients.ops;
    while (op < clients.ops + SIM_REQUESTS_MOST && op->request)
        op++;
    if (op == clients.ops + SIM_REQUESTS_MOST)
        return NULL;
    struct request *request = engine_acquire(sim.engine);
    if (!request) {
        sim.seen.no_requests++;
        return NULL;
    }
    request->kind = kind;
    request->key = sim.seed % 3; /* 0: none */
    request->sees_all = true;
    if (request_kinds[kind].when == REQUEST_STEPPED)
        request->rows.kv_source = DTYPE_F32;
    *op = (struct op){.request = request, .connection = NO_CONNECTION, .alone = true, .wrong = NO_ROW_WRONG};
    return op;
}

static void name(struct op *op, struct model_sequence *s)
{
    op->on[op->count++] = s;
    op->alone &= s->queued == 0;
    s->queue[s->queued++] = op;
}

/* Begin a request about a sequence (or lease). Returns NULL if there is none, or no request is free. */
static struct op *begin_op_on(struct model_sequence *s, enum request_kind kind)
{
    struct op *op = s ? begin_op(kind) : NULL;
    if (!op)
        return NULL;
    op->request->id = s->id;
    op->request->of_leases = s->lease;
    name(op, s);
    return op;
}

static void describe_ops(const struct request *r, char *text, size_t bytes)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->batch.count && n < bytes; i++) {
        const struct request_op *o = &r->batch.ops[i];
        int length = o->kind == REQUEST_FORK       ? (int)o->fork.length
                     : o->kind == REQUEST_TRUNCATE ? (int)o->truncate.length
                                                   : 0;
        n += (size_t)snprintf(text + n, bytes - n, " %c%llu:%d", request_kinds[o->kind].name[0],
                              (unsigned long long)o->id, length);
    }
}

/* What a kind of request asks beside its id and sequences. */
static void describe(const struct request *r, char *text, size_t bytes)
{
    text[0] = 0;
    if (r->kind == REQUEST_MERGE)
        snprintf(text, bytes, " states %u rows %u", r->merge.states, r->merge.rows);
    else if (request_kinds[r->kind].when == REQUEST_STEPPED)
        snprintf(text, bytes, " layer %d q%d k%d", r->rows.all_layers ? -1 : (int)r->rows.layer,
                 r->rows.q != NULL, r->rows.k != NULL);
    else if (r->kind == REQUEST_CREATE)
        snprintf(text, bytes, " tokens %u max %u prio %d", r->create.tokens.count,
                 r->create.options.max_tokens, r->create.options.priority);
    else if (r->kind == REQUEST_FORK)
        snprintf(text, bytes, " length %d count %u", (int)r->fork.length, r->fork.count);
    else if (r->kind == REQUEST_TRUNCATE)
        snprintf(text, bytes, " length %u", r->truncate.length);
    else if (r->kind == REQUEST_EXPORT)
        snprintf(text, bytes, " %u:%u", r->export.first, r->export.end);
    else if (r->kind == REQUEST_BATCH)
        describe_ops(r, text, bytes);
    else if (r->kind == REQUEST_LEASE)
        snprintf(text, bytes, " blocks %u prio %d", r->lease.blocks, r->lease.options.priority);
}

static void note_op(const struct op *op)
{
    const struct request *r = op->request;
    char where[128] = "", what[128];
    int n = 0;
    for (uint32_t i = 0; i < op->count && n < 100; i++)
        n += snprintf(where + n, sizeof where - (size_t)n, " %llu@%d+%u", (unsigned long long)op->on[i]->id,
                      (int)op->position[i], op->rows[i]);
    describe(r, what, sizeof what);
    sim_note("%llu: %s id %llu%s%s%s", (unsigned long long)op->action, request_kinds[r->kind].name,
             (unsigned long long)r->id, where, what, r->deadline_s > 0 ? " deadline" : "");
}

static void submit(struct op *op)
{
    op->action = clients.action;
    op->submitted_s = sim.now_s;
    op->steps = sim.seen.steps;
    op->turn = sim.seen.turns;
    op->tests = symbolic_backend_tests();
    op->roofs = symbolic_backend_roofs();
    op->arena_used = op->request->arena_used;
    note_op(op);
    if (request_make_outputs(op->request, &sim.config.geometry) != 0)
        sim_fail("no staging memory is left");
    watch_submitted(op);
    engine_submit(sim.engine, op->request);
}

/* ---- choosing ------------------------------------------------------------------------------------ */

/* A sequence (or lease) that somebody may name: a live one, or, now and then, one that was just deleted. */
static struct model_sequence *pick(bool lease)
{
    uint32_t start = below(MODEL_SEQUENCES);
    bool dead = sim.faults && chance(30);
    for (uint32_t i = 0; i < MODEL_SEQUENCES * (1U + dead); i++) {
        struct model_sequence *s = &model.sequences[(start + i) % MODEL_SEQUENCES];
        bool wanted = s->live != dead || i >= MODEL_SEQUENCES;
        if (s->used && s->lease == lease && wanted && s->queued < SIM_REQUESTS_MOST / 2)
            return s;
    }
    return NULL;
}

/* An id that nothing has, or asks for; 0: none. */
static uint64_t choose_id(void)
{
    uint64_t id = 1000 + below(CHOSEN_IDS);
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        if (model.sequences[i].used && model.sequences[i].id == id)
            return 0;
    }
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        for (uint32_t k = 0; clients.ops[i].request && k < FORKS_MOST; k++) {
            if (clients.ops[i].claimed[k] == id)
                return 0;
        }
    }
    return id;
}

static void give_deadline(struct request *request)
{
    if (sim.faults && chance(20)) {
        request->deadline_s = below(1000) * 1e-5 + 1e-9;
        sim.seen.faults++;
    }
}

/* ---- create, fork, truncate, delete -------------------------------------------------------------- */

/* Seconds that a sequence may lie unused. */
static uint32_t choose_timeout(void)
{
    return chance(2) ? 0 : chance(4) ? 600 : 1 + below(3);
}

static void fill_create(struct request *request, struct request_create *create)
{
    uint32_t longest = sim.config.limits.sequence_tokens;
    if (chance(3))
        create->options.max_tokens = 1 + below(chance(3) ? longest : smaller(longest, 40));
    create->options.priority = chance(2) ? 0 : (int32_t)below(5) - 2;
    create->options.idle_timeout_s = choose_timeout();
    create->salt_bytes = below(2);
    memset(create->salt, 'x', create->salt_bytes);
    if (chance(2)) {
        create->tokens.count = below(chance(4) ? longest : smaller(longest, 70)) + chance(40);
        create->tokens.ids = request_alloc(request, create->tokens.count, sizeof *create->tokens.ids);
        for (uint32_t i = 0; i < create->tokens.count; i++) /* few prompts, so that they meet */
            create->tokens.ids[i] = i % 7 == 0 ? below(2) : 0;
    }
}

static struct op *make_create(void)
{
    struct op *op = begin_op(REQUEST_CREATE);
    if (!op)
        return NULL;
    if (chance(4))
        op->request->id = op->claimed[0] = choose_id();
    fill_create(op->request, &op->request->create);
    return op;
}

static struct op *make_fork(void)
{
    struct model_sequence *s = pick(false);
    struct op *op = begin_op_on(s, REQUEST_FORK);
    if (!op)
        return NULL;
    struct request *request = op->request;
    request->fork.count = 1 + below(FORKS_MOST - 1);
    request->fork.length = chance(2) ? UINT32_MAX : below(s->planned_high + 1 + (sim.faults && chance(10)));
    if (chance(4)) {
        request->fork.ids = request_alloc(request, request->fork.count, sizeof *request->fork.ids);
        for (uint32_t i = 0; i < request->fork.count; i++) {
            op->claimed[i] = request->fork.ids[i] = choose_id();
            for (uint32_t other = 0; other < i; other++)
                request->fork.ids[i] =
                    request->fork.ids[other] == request->fork.ids[i] ? 0 : request->fork.ids[i];
            if (request->fork.ids[i] == 0)
                request->fork.count = i;
        }
        request->fork.ids = request->fork.count ? request->fork.ids : NULL;
        request->fork.count += request->fork.count == 0;
    }
    give_deadline(request);
    return op;
}

static struct op *make_truncate(void)
{
    struct model_sequence *s = pick(false);
    struct op *op = begin_op_on(s, REQUEST_TRUNCATE);
    if (!op)
        return NULL;
    op->request->truncate.length =
        chance(3) ? below(s->planned_high + 2) : s->planned_high - smaller(s->planned_high, below(5));
    for (uint32_t layer = 0; layer < SIM_LAYERS_MOST; layer++)
        s->planned[layer] = smaller(s->planned[layer], op->request->truncate.length);
    give_deadline(op->request);
    return op;
}

static struct op *make_delete(void)
{
    return begin_op_on(pick(chance(4)), REQUEST_DELETE);
}

/* ---- batches ------------------------------------------------------------------------------------- */

/* Claim an id for a new sequence of a batch; 0: it has claimed all that it may, or none is free. */
static uint64_t claim_id(struct op *op)
{
    for (uint32_t i = 0; i < FORKS_MOST; i++) {
        if (op->claimed[i] == 0)
            return op->claimed[i] = choose_id();
    }
    return 0;
}

/* The sequence that an op of a batch is about: a new one of the batch, or one that is named; 0: none. */
static uint64_t pick_for_batch(struct op *op, struct model_sequence **result)
{
    struct model_sequence *s = NULL;
    *result = NULL;
    uint64_t claimed = op->claimed[below(FORKS_MOST)];
    if (claimed && chance(2))
        return claimed;
    for (uint32_t i = 0; i < op->count && chance(3); i++)
        s = op->on[i];
    s = s ? s : pick(false);
    if (!s)
        return 0;
    bool named = false;
    for (uint32_t i = 0; i < op->count; i++)
        named |= op->on[i] == s;
    if (!named && op->count == OP_SEQUENCES_MOST)
        return 0;
    if (!named)
        name(op, s);
    *result = s;
    return s->id;
}

static void fill_fork(struct op *op, struct request_fork *fork, const struct model_sequence *s)
{
    uint32_t longest = s ? s->planned_high + 1 : 0;
    fork->count = 1 + below(FORKS_MOST - 1);
    fork->length = s && chance(2) ? below(longest + (sim.faults && chance(10))) : UINT32_MAX;
    uint64_t id = chance(2) ? claim_id(op) : 0;
    if (!id)
        return;
    fork->ids = request_alloc(op->request, 1, sizeof *fork->ids);
    fork->ids[0] = id;
    fork->count = 1;
}

static bool fill_op(struct op *op, struct request_op *o)
{
    static const enum request_kind kinds[] = {REQUEST_CREATE, REQUEST_FORK, REQUEST_FORK, REQUEST_TRUNCATE,
                                              REQUEST_DELETE};
    struct model_sequence *s;
    o->kind = kinds[below(sizeof kinds / sizeof kinds[0])];
    if (o->kind == REQUEST_CREATE) {
        o->id = chance(2) ? claim_id(op) : 0;
        fill_create(op->request, &o->create);
        return true;
    }
    o->id = pick_for_batch(op, &s);
    if (o->id && o->kind == REQUEST_FORK)
        fill_fork(op, &o->fork, s);
    else if (o->id && o->kind == REQUEST_TRUNCATE)
        o->truncate.length = below((s ? s->planned_high : 20) + 2);
    for (uint32_t layer = 0; s && o->kind == REQUEST_TRUNCATE && layer < SIM_LAYERS_MOST; layer++)
        s->planned[layer] = smaller(s->planned[layer], o->truncate.length);
    return o->id != 0;
}

static struct op *make_batch(void)
{
    enum { OPS_MOST = 7 };
    struct op *op = begin_op(REQUEST_BATCH);
    uint32_t wanted = 1 + below(OPS_MOST);
    if (!op)
        return NULL;
    struct request_batch *batch = &op->request->batch;
    batch->ops = request_alloc(op->request, OPS_MOST, sizeof *batch->ops);
    memset(batch->ops, 0, OPS_MOST * sizeof *batch->ops);
    while (wanted-- > 0 && fill_op(op, &batch->ops[batch->count]))
        batch->count++;
    give_deadline(op->request);
    return op;
}

/* ---- append and attend --------------------------------------------------------------------------- */

/* What a client knows of the rows that it sends. */
struct batch {
    struct op *op;
    uint32_t layer, total; /* rows */
    uint32_t first;        /* position of the first row */
    bool all_layers, keys, queries, named, lies;
    uint64_t *base;  /* [total] */
    uint32_t *token; /* [total] */
};

static uint32_t rows_most(void)
{
    return sim.long_sequences ? ROWS_MOST_LONG : ROWS_MOST;
}

static uint32_t planned_at(const struct model_sequence *s, const struct batch *b)
{
    return s->planned[b->layer];
}

/* Where the rows go: mostly behind what stands, else over what stands, or beyond it. */
static uint32_t choose_position(const struct model_sequence *s, const struct batch *b, uint32_t rows)
{
    uint32_t at = planned_at(s, b);
    if (!b->keys)
        return at >= rows ? at - rows - below(chance(3) ? at - rows + 1 : 1) : 0;
    if (at && chance(6))
        return at - 1 - below(chance(2) ? at : smaller(at, 4));
    return sim.faults && chance(60) ? at + 1 + below(3) : at;
}

static bool gives_tokens(const struct request *request)
{
    return (request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND) && request->attend.tokens.ids;
}

/* The position may be left out when the rows are sure to go where the client thinks. */
static bool may_omit(const struct model_sequence *s, const struct batch *b)
{
    bool named = b->named || s->prompt || s->known; /* then content and position belong together */
    for (uint32_t i = 0; i < s->queued; i++)
        named |= gives_tokens(s->queue[i]->request);
    return s->queued == 0 || !b->keys || !named;
}

/* The base of one row to be sent. Whatever is named, or may be, follows from its ids. */
static uint64_t base_at(struct model_sequence *s, struct batch *b, uint32_t at, uint32_t *known)
{
    if (at >= SIM_TOKENS_MOST)
        return model_unique_base();
    if (at < s->planned_high || at < s->prompt) {
        if (at >= *known && at < s->prompt)
            *known = at + 1;
        return s->planned_base[at];
    }
    s->planned_base[at] = model_unique_base();
    if (b->named && at == *known) {
        s->token[at] = at % 7 == 0 ? below(2) : 0;
        s->planned_base[at] = model_named_base(s, at);
        *known = at + 1;
    } else if (b->named) {
        s->token[at] = below(3);
    }
    return s->planned_base[at];
}

static void lay_rows(struct model_sequence *s, struct batch *b, uint32_t first, uint32_t rows)
{
    uint32_t known = s->known;
    uint64_t end = (uint64_t)first + rows;
    uint32_t limit = sim.config.limits.sequence_tokens;
    for (uint32_t r = 0; r < rows; r++) {
        b->base[b->total + r] = base_at(s, b, first + r, &known);
        if (b->named)
            b->token[b->total + r] = first + r < SIM_TOKENS_MOST ? s->token[first + r] : 0;
        if (first + r == s->planned_high && end <= limit)
            s->planned_high = first + r + 1;
    }
    if (end > limit || (s->options.max_tokens && end > s->options.max_tokens))
        return;
    for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
        if ((b->all_layers || layer == b->layer) && first <= s->planned[layer] && end > s->planned[layer])
            s->planned[layer] = (uint32_t)end;
    }
}

static uint32_t choose_rows(const struct batch *b)
{
    uint32_t most = smaller(sim.config.step_rows_max, ROWS_MOST / OP_SEQUENCES_MOST);
    uint32_t rows = chance(3) ? 1 + below(most) : 1 + below(smaller(most, 3));
    if (sim.long_sequences && !b->queries && chance(3))
        return ROWS_MOST_LONG - below(chance(2) ? 400 : ROWS_MOST_LONG);
    return sim.faults && chance(200) ? sim.config.limits.rows_per_call + 1 : rows;
}

static bool is_named_already(const struct op *op, const struct model_sequence *s)
{
    for (uint32_t i = 0; i < op->count; i++) {
        if (op->on[i] == s)
            return true;
    }
    return false;
}

/* One more sequence of a request; false when it cannot be added. */
static bool add_sequence(struct batch *b, struct request *request)
{
    struct model_sequence *s = pick(false);
    struct op *op = b->op;
    uint32_t rows = choose_rows(b), i = op->count;
    if (!s || rows > rows_most() - b->total || is_named_already(op, s) || (b->named && s->queued))
        return false;
    uint32_t position = choose_position(s, b, rows);
    if (!b->keys)
        rows = smaller(rows, planned_at(s, b) ? planned_at(s, b) : 1);
    bool omit = may_omit(s, b) && chance(2) && (!b->keys || position == planned_at(s, b));
    b->first = i ? b->first : position;
    op->rows[i] = rows;
    op->position[i] = omit ? REQUEST_POSITION_ABSENT : position;
    request->attend.sequences[i] =
        (struct request_sequence){.id = s->id, .rows = rows, .position = op->position[i]};
    if (b->keys)
        lay_rows(s, b, position, rows);
    b->total += rows;
    name(op, s);
    return true;
}

static void fill_keys(const struct batch *b, struct request *request)
{
    uint32_t layers = b->all_layers ? sim.config.geometry.layers : 1;
    uint32_t heads = sim.config.geometry.kv_heads;
    struct symbolic_row *k = request_tensor(request, (size_t)layers * b->total * heads, sizeof *k),
                        *v = request_tensor(request, (size_t)layers * b->total * heads, sizeof *v);
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t r = 0; r < b->total; r++) {
            uint64_t tag = model_tag(b->base[r], b->all_layers ? l : b->layer);
            symbolic_put(k, l * b->total + r, heads, symbolic_k(tag, b->base[r]));
            symbolic_put(v, l * b->total + r, heads,
                         r == b->op->wrong ? symbolic_wrong(tag) : symbolic_v(tag));
        }
    }
    request->rows.k = k;
    request->rows.v = v;
    if (!b->named)
        return;
    request->attend.tokens.count = b->total;
    request->attend.tokens.ids = request_alloc(request, b->total, sizeof *request->attend.tokens.ids);
    memcpy(request->attend.tokens.ids, b->token, b->total * sizeof *request->attend.tokens.ids);
    if (b->lies)
        request->attend.tokens.ids[0] += 7;
}

static void fill_queries(struct request *request, uint32_t rows)
{
    uint32_t heads = sim.config.geometry.query_heads;
    struct symbolic_row *q = request_tensor(request, (size_t)rows * heads, sizeof *q);
    for (uint32_t r = 0; r < rows; r++)
        symbolic_put(q, r, heads, (struct symbolic_row){{sim_mix(clients.random + r)}});
    request->rows.q = q;
}

/* Content other than what stands, at the first row of a sequence that nobody else writes to. */
static void change_content(struct batch *b)
{
    const struct op *op = b->op;
    const struct model_sequence *s = op->on[0];
    if (sim.faults && chance(3) && op->alone && s->live && op->position[0] < s->layer[b->layer].cursor &&
        op->position[0] != REQUEST_POSITION_ABSENT)
        b->base[0] = model_unique_base();
}

/* That a request is streamed, as the library's may be, or not. */
static struct request_stream choose_stream(void)
{
    if (!sim.streams || chance(4))
        return (struct request_stream){0};
    return (struct request_stream){.on = true, .of = &clients.ops[chance(6)]};
}

static void stream(struct batch *b, struct request *request)
{
    request->rows.stream = choose_stream();
    request->rows.retries = request->rows.stream.on && chance(2);
    if (!request->rows.stream.on || !b->keys)
        return;
    request->rows.wrong = request_tensor(request, b->op->count, 1);
    memset(request->rows.wrong, 0, b->op->count);
    if (sim.faults && chance(12))
        b->op->wrong = below(b->total);
}

static struct op *make_rows(enum request_kind kind, bool keys, bool queries)
{
    struct batch b = {
        .op = begin_op(kind), .keys = keys, .queries = queries, .base = clients.base, .token = clients.token};
    if (!b.op)
        return NULL;
    struct request *request = b.op->request;
    uint32_t wanted = chance(3) ? 1 + below(OP_SEQUENCES_MOST) : 1;
    b.layer = below(sim.config.geometry.layers);
    b.named = keys && (sim.families || chance(3));
    b.all_layers = keys && !queries && chance(2);
    if (b.all_layers)
        b.layer = 0;
    request->rows.layer = b.layer;
    request->rows.all_layers = b.all_layers;
    request->attend.sequences = request_alloc(request, OP_SEQUENCES_MOST, sizeof *request->attend.sequences);
    while (wanted-- > 0 && add_sequence(&b, request))
        continue;
    if (b.op->count == 0) {
        engine_release(sim.engine, request);
        b.op->request = NULL;
        return NULL;
    }
    request->attend.sequence_count = b.op->count;
    request->rows.count = b.total;
    stream(&b, request);
    if (keys) {
        change_content(&b);
        b.lies = b.named && sim.faults && b.op->alone && b.first < b.op->on[0]->prompt && chance(6);
        fill_keys(&b, request);
    }
    if (queries)
        fill_queries(request, b.total);
    give_deadline(request);
    return b.op;
}

static struct op *make_append(void)
{
    return make_rows(REQUEST_APPEND, true, false);
}

static struct op *make_attend(void)
{
    return make_rows(REQUEST_ATTEND, false, true);
}

static struct op *make_append_and_attend(void)
{
    return make_rows(REQUEST_ATTEND, true, true);
}

/* ---- leases -------------------------------------------------------------------------------------- */

static struct op *make_lease(void)
{
    struct op *op = begin_op(REQUEST_LEASE);
    if (!op)
        return NULL;
    op->request->of_leases = true;
    op->request->lease.blocks = 1 + below(chance(4) ? (uint32_t)sim.config.pool_blocks + 1 : 4);
    if (op->request->lease.blocks > MODEL_LEASE_BLOCKS)
        op->request->lease.blocks = MODEL_LEASE_BLOCKS;
    op->request->lease.options.priority = (int32_t)below(3) - 1;
    op->request->lease.options.idle_timeout_s = choose_timeout();
    if (chance(4))
        op->request->id = op->claimed[0] = choose_id();
    give_deadline(op->request);
    return op;
}

/* Slots to write, each at most once: `n` from a random one on, with some left out. */
static void fill_slots(const struct model_sequence *s, struct request *request, struct request_paged *p)
{
    uint32_t size = sim.config.geometry.block_size, all = s->blocks * size, at = below(all);
    uint32_t n = 1 + below(smaller(smaller(all, sim.config.step_rows_max), 40));
    uint32_t heads = sim.config.geometry.kv_heads;
    struct symbolic_row *k = request_tensor(request, (size_t)n * heads, sizeof *k),
                        *v = request_tensor(request, (size_t)n * heads, sizeof *v);
    p->slots = request_alloc(request, n, sizeof *p->slots);
    p->tokens = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = (at + i) % all;
        uint64_t base = model_unique_base(), tag = model_tag(base, request->rows.layer);
        p->slots[i] = chance(5) ? -1 : (int64_t)s->block[slot / size] * size + slot % size;
        symbolic_put(k, i, heads, symbolic_k(tag, base));
        symbolic_put(v, i, heads, symbolic_v(tag));
    }
    request->rows.k = k;
    request->rows.v = v;
}

/* Tables of some of the lease's blocks, the same one perhaps more than once. */
static void fill_tables(const struct model_sequence *s, struct request *request, struct request_paged *p)
{
    uint32_t size = sim.config.geometry.block_size, room = 0;
    p->sequences = 1 + below(3);
    p->context = request_alloc(request, p->sequences, sizeof *p->context);
    p->indptr = request_alloc(request, p->sequences + 1, sizeof *p->indptr);
    p->first = request_alloc(request, p->sequences + 1, sizeof *p->first);
    p->indptr[0] = p->first[0] = 0;
    for (uint32_t i = 0; i < p->sequences; i++) {
        p->context[i] = below(s->blocks * size + 1);
        uint32_t rows = p->context[i] ? 1 + below(smaller(p->context[i], 4)) : below(2);
        p->indptr[i + 1] = p->indptr[i] + rows;
        room += p->context[i] / size + (p->context[i] % size != 0);
        p->first[i + 1] = room;
    }
    p->ids = request_alloc(request, room + p->tokens, sizeof *p->ids);
    for (uint32_t i = 0; i < room; i++)
        p->ids[i] = s->block[below(s->blocks)];
    request->rows.count = p->indptr[p->sequences];
    if (request->rows.count == 0) /* then no sequence has tokens */
        p->indptr[p->sequences] = request->rows.count = 1;
}

static struct op *make_paged(void)
{
    struct model_sequence *s = pick(true);
    struct op *op = s && s->blocks ? begin_op_on(s, REQUEST_PAGED) : NULL;
    if (!op)
        return NULL;
    struct request *request = op->request;
    struct request_paged *p = &request->paged;
    request->rows.layer = below(sim.config.geometry.layers);
    bool writes = chance(2);
    if (writes)
        fill_slots(s, request, p);
    if (!writes || chance(2)) {
        fill_tables(s, request, p);
        fill_queries(request, request->rows.count);
    } else {
        p->first = request_alloc(request, 1, sizeof *p->first);
        p->first[0] = 0;
        p->ids = request_alloc(request, p->tokens, sizeof *p->ids);
    }
    give_deadline(request);
    return op;
}

/* ---- questions ----------------------------------------------------------------------------------- */

static struct op *make_question(void)
{
    struct model_sequence *s = pick(chance(5));
    return s ? begin_op_on(s, chance(3) ? REQUEST_BLOCKS : REQUEST_SEQUENCE) : NULL;
}

/* Tokens of a sequence as they are stored; now and then some that it does not have. */
static struct op *make_export(void)
{
    struct model_sequence *s = pick(false);
    uint32_t length = s ? s->planned[0] : 0;
    for (uint32_t layer = 1; s && layer < sim.config.geometry.layers; layer++)
        length = smaller(length, s->planned[layer]);
    length += chance(10);
    struct op *op = length ? begin_op_on(s, REQUEST_EXPORT) : NULL;
    if (!op)
        return NULL;
    struct request_export *e = &op->request->export;
    e->first = below(length);
    e->end = e->first + 1 + below(length - e->first);
    give_deadline(op->request);
    return op;
}

/* States of rows that saw some keys, or none. */
static struct op *make_merge(void)
{
    struct op *op = begin_op(REQUEST_MERGE);
    if (!op)
        return NULL;
    struct request *request = op->request;
    uint32_t states = 1 + below(MERGED_STATES), rows = 1 + below(MERGED_ROWS);
    uint32_t n = states * rows * sim.config.geometry.query_heads;
    float *o = request_tensor(request, (size_t)n * SYMBOLIC_HEAD_DIM, sizeof *o),
          *lse = request_tensor(request, n, sizeof *lse);
    for (uint32_t i = 0; i < n * SYMBOLIC_HEAD_DIM; i++)
        o[i] = (float)below(2000) * 1e-3F - 1;
    for (uint32_t i = 0; i < n; i++)
        lse[i] = chance(4) ? -INFINITY : (float)below(20000) * 1e-3F - 10;
    request->merge =
        (struct request_merge){.states = states, .rows = rows, .o = o, .lse = lse, .stream = choose_stream()};
    give_deadline(request);
    return op;
}

static void set_limit(struct request *request, uint32_t limit)
{
    if (request->kind == REQUEST_STATS || request->kind == REQUEST_LIST || request->kind == REQUEST_POOL ||
        request->kind == REQUEST_PREFIXES)
        request->page.limit = limit;
    else if (request->kind == REQUEST_TABLES)
        request->tables.limit = limit;
}

static struct op *make_look_around(void)
{
    enum { LONG_AGO = 12 };
    static const enum request_kind kinds[] = {REQUEST_STATS,    REQUEST_LIST,  REQUEST_POOL, REQUEST_TABLES,
                                              REQUEST_PREFIXES, REQUEST_AUDIT, REQUEST_TRIM};
    struct op *op = begin_op(kinds[below(sizeof kinds / sizeof kinds[0])]);
    if (!op)
        return NULL;
    set_limit(op->request, 1 + below(40));
    if (op->request->kind == REQUEST_POOL && chance(3)) { /* as it was */
        uint64_t now = block_log_epoch(block_tables_log(step_tables(watch_state()->steps)));
        op->request->pool.at.past = true;
        op->request->pool.at.epoch = now - smaller((uint32_t)now, below(LONG_AGO));
    }
    if (op->request->kind == REQUEST_TABLES && chance(2))
        op->request->tables.at =
            (struct request_epoch){.past = true, .epoch = watched_history_epoch(below(LONG_AGO))};
    return op;
}

/* A client that asks and, when it is answered, asks again. */
static struct op *make_look_again(void)
{
    struct op *op = begin_op(chance(2) ? REQUEST_STATS : REQUEST_LIST);
    if (!op)
        return NULL;
    set_limit(op->request, 1);
    op->again = 1 + below(AGAIN_MOST);
    return op;
}

static struct op *make_self_test(void)
{
    return begin_op(REQUEST_SELF_TEST);
}

static struct op *make_roof(void)
{
    return begin_op(REQUEST_ROOF);
}

static struct op *make_parameters(void)
{
    struct op *op = begin_op(REQUEST_PARAMETERS);
    if (op)
        client_parameters_fill(op->request, &clients.random);
    return op;
}

/* Nobody asks anything for a while. */
static struct op *make_lull(void)
{
    enum { LULLS = 12, LONGEST_MS = 4000 };
    double seconds = below(LONGEST_MS) * 1e-3;
    if (!chance(LULLS))
        return NULL;
    for (uint32_t i = 0; i < clients.count; i++)
        clients.at[i].next_s += seconds;
    return NULL;
}

/* ---- workloads ----------------------------------------------------------------------------------- */

static struct op *make_workload(void)
{
    struct op *op = begin_op(REQUEST_WORKLOAD_START);
    if (!op)
        return NULL;
    op->workload = client_workloads_make(&clients.random, op->request);
    if (op->workload) {
        watch_workload(op->request->workload.workload);
        return op;
    }
    engine_release(sim.engine, op->request);
    op->request = NULL;
    return NULL;
}

static struct op *make_workload_look(void)
{
    struct sim_workload *w = &client_workloads()[below(SIM_WORKLOADS)];
    struct op *op = w->used && w->running ? begin_op(REQUEST_WORKLOAD) : NULL;
    if (!op)
        return NULL;
    op->workload = w;
    op->request->id = w->id;
    op->request->workload.waits = chance(2);
    op->request->workload.takes_outputs = w->keeps;
    if (sim.faults && chance(5)) {
        op->request->kind = REQUEST_WORKLOAD_CANCEL;
        w->cancelled = true;
        sim.seen.faults++;
    }
    return op;
}

/* ---- connections --------------------------------------------------------------------------------- */

static struct op *make_op(void)
{
    static struct op *(*const makers[])(void) = {
#define XX(name, weight, function) make_##function,
        ACTION_MAP(XX)
#undef XX
    };
    uint32_t at = below(clients.weight_sum), i = 0;
    while (at >= clients.weights[i])
        at -= clients.weights[i++];
    bool appends = makers[i] == make_append || makers[i] == make_append_and_attend ||
                   makers[i] == make_paged || makers[i] == make_workload;
    return appends && clients.action < clients.quiet ? make_parameters() : makers[i]();
}

static void choose_weights(uint64_t *random)
{
    static const uint32_t largest[] = {
#define XX(name, weight, function) weight,
        ACTION_MAP(XX)
#undef XX
    };
    const uint32_t always = sim.families ? FAMILY_KINDS : 4;
    clients.weight_sum = 0;
    for (uint32_t i = 0; i < sizeof largest / sizeof largest[0]; i++) {
        bool some = i < always || (!sim.families && !sim_chance(random, 3)); /* some seeds leave some out */
        clients.weights[i] = some ? 1 + sim_below(random, largest[i]) : 0;
        clients.weight_sum += clients.weights[i];
    }
}

void clients_begin(uint64_t seed, uint32_t connections)
{
    static const double think_s[] = {0, 20e-6, 1e-3};
    memset(&clients, 0, sizeof clients);
    model_begin();
    clients.count = connections;
    choose_weights(&seed);
    clients.quiet = sim_chance(&seed, QUIET) ? sim_below(&seed, QUIET_ACTIONS) : 0;
    clients.think_s = think_s[sim_below(&seed, 3)];
    clients.owners = 1 + sim_below(&seed, SIM_OWNERS_MOST);
    for (uint32_t i = 0; i < connections; i++)
        clients.at[i].next_s = sim.now_s;
}

static double think(void)
{
    return sim.now_s + clients.think_s * below(2000) * 1e-3;
}

static bool is_left_out(uint64_t action)
{
    return sim.skip && action < sim.skip_count && sim.skip[action];
}

/* The client goes away while its request is under way. */
static void leave(struct connection *c)
{
    sim_note("the client of %llu leaves", (unsigned long long)c->op->action);
    atomic_store(&c->op->request->cancelled, true);
    c->op->connection = NO_CONNECTION;
    c->op = NULL;
    sim.seen.faults++;
}

static void act(struct connection *c)
{
    uint32_t index = (uint32_t)(c - clients.at);
    uint64_t action = c->actions++ * clients.count + index;
    sim.action_most = action > sim.action_most ? action : sim.action_most;
    clients.action = action;
    clients.random = sim_mix(sim.seed ^ sim_mix(action + 1));
    if (c->op)
        leave(c);
    struct op *op = clients.stopped || is_left_out(action) ? NULL : make_op();
    c->next_s = think() + 1e-6;
    if (!op)
        return;
    c->op = op;
    op->connection = (int)index;
    op->request->owner = index % clients.owners;
    op->request->connection = index;
    bool patient = !sim.faults || !chance(PATIENT);
    c->next_s = patient ? INFINITY : sim.now_s + below(1000) * 4e-6;
    submit(op);
}

void clients_act(void)
{
    for (uint32_t i = 0; i < clients.count; i++) {
        if (clients.at[i].next_s <= sim.now_s)
            act(&clients.at[i]);
    }
}

double clients_next_s(void)
{
    double next = INFINITY;
    for (uint32_t i = 0; i < clients.count; i++)
        next = clients.at[i].next_s < next ? clients.at[i].next_s : next;
    return next;
}

void clients_storm(void)
{
    uint64_t random = sim_mix(sim.seed ^ sim.seen.turns);
    for (uint32_t i = 0; sim.faults && i < clients.count; i++) {
        if (clients.at[i].op && sim_chance(&random, 2))
            clients.at[i].next_s = sim.now_s;
    }
}

void clients_stop(void)
{
    clients.stopped = true;
    for (uint32_t i = 0; i < clients.count; i++)
        clients.at[i].next_s = INFINITY;
}

void clients_ask(enum request_kind kind, uint64_t id, bool lease)
{
    struct op *op = begin_op(kind);
    struct model_sequence *s = id && kind == REQUEST_DELETE ? model_find(id) : NULL;
    if (!op)
        sim_fail("all requests are under way, and nobody asks anything any more");
    op->request->id = id;
    op->request->of_leases = lease;
    set_limit(op->request, 40);
    for (uint32_t i = 0; i < SIM_WORKLOADS && (kind == REQUEST_WORKLOAD || kind == REQUEST_WORKLOAD_CANCEL);
         i++) {
        if (client_workloads()[i].used && client_workloads()[i].id == id)
            op->workload = &client_workloads()[i];
    }
    if (kind == REQUEST_WORKLOAD)
        op->request->workload.waits = op->request->workload.takes_outputs = true;
    if (kind == REQUEST_CREATE)
        op->request->create.options.max_tokens =
            smaller((uint32_t)sim.config.pool_blocks * sim.config.geometry.block_size,
                    sim.config.limits.sequence_tokens);
    if (s)
        name(op, s);
    submit(op);
}

void clients_read(struct model_sequence *s, uint32_t layer)
{
    struct op *op = begin_op(REQUEST_ATTEND);
    if (!op)
        sim_fail("all requests are under way, and nobody asks anything any more");
    struct request *request = op->request;
    uint32_t rows = smaller(s->layer[layer].cursor, smaller(sim.config.step_rows_max, ROWS_MOST));
    request->rows.layer = layer;
    request->rows.count = op->rows[0] = rows;
    op->position[0] = REQUEST_POSITION_ABSENT;
    request->attend.sequence_count = 1;
    request->attend.sequences = request_alloc(request, 1, sizeof *request->attend.sequences);
    *request->attend.sequences =
        (struct request_sequence){.id = s->id, .rows = rows, .position = REQUEST_POSITION_ABSENT};
    fill_queries(request, rows);
    name(op, s);
    submit(op);
}

/* ---- answers ------------------------------------------------------------------------------------- */

uint32_t clients_under_way(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++)
        n += clients.ops[i].request != NULL;
    return n;
}

static struct op *op_of(const struct request *request)
{
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        if (clients.ops[i].request == request)
            return &clients.ops[i];
    }
    sim_fail("a request is answered that is not under way");
}

static bool is_next(const struct op *op)
{
    bool next = op->request && op->done;
    for (uint32_t i = 0; next && i < op->count; i++)
        next = op->on[i]->queue[0] == op;
    return next;
}

/* A request is judged: those behind it on its sequences may be, too. */
static void end_op(struct op *op)
{
    for (uint32_t i = 0; i < op->count; i++) {
        struct model_sequence *s = op->on[i];
        memmove(s->queue, s->queue + 1, --s->queued * sizeof s->queue[0]);
        s->used_high_s = sim.now_s;
        if (s->reaped && s->live && --s->reaped_behind == 0)
            s->live = false;
        if (s->queued == 0 && s->live)
            model_settle(s);
        s->used = s->live || s->queued;
    }
    engine_release(sim.engine, op->request);
    op->request = NULL;
}

static void judge_all(void)
{
    for (bool judged = true; judged;) {
        judged = false;
        for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
            if (!is_next(&clients.ops[i]))
                continue;
            client_answers_judge(&clients.ops[i]);
            end_op(&clients.ops[i]);
            judged = true;
        }
    }
}

/* A client asks the same again, since it has been answered. */
static void ask_again(struct connection *c, const struct op *answered)
{
    struct op *op = begin_op(answered->request->kind);
    if (!op)
        return;
    set_limit(op->request, 1);
    op->again = answered->again - 1;
    op->chained = answered->turn == sim.seen.turns ? answered->chained + 1 : 0;
    op->connection = (int)(c - clients.at);
    op->request->owner = (uint64_t)op->connection % clients.owners;
    op->request->connection = (uint64_t)op->connection;
    clients.action = answered->action;
    c->op = op;
    c->next_s = INFINITY;
    submit(op);
    sim.seen.asked_meanwhile += clients.noticing;
    if (op->chained > CHAINED_MOST)
        sim_fail("the engine goes on taking requests, as long as some come, in one turn");
}

uint32_t clients_take(void)
{
    struct request *request;
    uint32_t n = 0;
    for (; (request = engine_take(sim.engine)); n++) {
        struct op *op = op_of(request);
        sim_note("%llu is answered: %s%s%s", (unsigned long long)op->action,
                 request->status ? status_code(request->status) : "ok", request->status ? ": " : "",
                 request->status ? request->detail : "");
        op->done = true;
        op->before_failure = !engine_failure(sim.engine);
        watch_answered(op);
        client_idle_note_answer(op);
        if (op->connection != NO_CONNECTION) {
            struct connection *c = &clients.at[op->connection];
            clients.random = sim_mix(sim.seed ^ sim_mix(op->action) ^ 5);
            c->op = NULL;
            c->next_s = clients.stopped ? INFINITY : think();
            op->connection = NO_CONNECTION;
            if (op->again && !clients.stopped)
                ask_again(c, op);
        }
        judge_all();
    }
    return n;
}

void clients_notice(void)
{
    clients.noticing = true;
    if (sim.notices)
        (void)clients_take();
    clients.noticing = false;
}
