/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.c - sequences, leases, and looking: each function asks the engine once and waits for the answer. */
#include "library/handle.h"

#include "config/numbers.h"

#include <assert.h>
#include <string.h>

/* Take the handle, and a request of a kind about `id`. What begins well is to be ended. */
static int begin(struct attnd *a, enum request_kind kind, uint64_t id, struct request **request)
{
    int rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    *request = handle_acquire(a, kind, id);
    return *request ? ATTND_OK : handle_leave(a, ATTND_ERR_BUSY);
}

/* Give both back; returns `rc`. */
static int end(struct attnd *a, struct request *request, int rc)
{
    engine_release(a->engine, request);
    return handle_leave(a, rc);
}

/* ---- create, fork, truncate, delete ----------------------------------------------------------------- */

static int check_id(uint64_t id, bool may_be_none)
{
    return id <= REQUEST_ID_MAX && (id || may_be_none)
               ? ATTND_OK
               : handle_fail(ATTND_ERR_INVALID, "id: wants one in 1..2^53-1");
}

static int build_creation(struct attnd *a, struct request *request, const struct attnd_creation *from,
                          struct request_create *create)
{
    const struct config_limits *limits = &a->config.limits;
    size_t salt = from->salt ? strlen(from->salt) : 0;
    if (check_id(from->id, true) != ATTND_OK)
        return ATTND_ERR_INVALID;
    if (from->max_tokens > limits->sequence_tokens)
        return handle_fail(ATTND_ERR_INVALID, "max_tokens: wants %u at most (limits.sequence_tokens)",
                           limits->sequence_tokens);
    if (from->priority < -REQUEST_PRIORITY_MAX || from->priority > REQUEST_PRIORITY_MAX)
        return handle_fail(ATTND_ERR_INVALID, "priority: wants one within %d", REQUEST_PRIORITY_MAX);
    if (salt > sizeof create->salt)
        return handle_fail(ATTND_ERR_INVALID, "salt: has more than %zu bytes", sizeof create->salt);
    if (from->token_count && !from->token_ids)
        return handle_fail(ATTND_ERR_INVALID, "token_ids: is NULL");
    create->options = (struct sequence_options){.max_tokens = from->max_tokens, .priority = from->priority};
    if (salt)
        memcpy(create->salt, from->salt, salt);
    create->salt_bytes = (uint32_t)salt;
    create->tokens.ids = request_alloc(request, from->token_count, sizeof *create->tokens.ids);
    if (!create->tokens.ids)
        return handle_fail(ATTND_ERR_INVALID, "token_ids: are too many for one call");
    if (from->token_count)
        memcpy(create->tokens.ids, from->token_ids, from->token_count * sizeof *create->tokens.ids);
    create->tokens.count = from->token_count;
    request->listed_max = 1; /* attnd_blocks() tells them */
    return ATTND_OK;
}

static void answer_creation(struct attnd_creation *to, const struct request_create *create)
{
    struct attnd_creation known;
    (void)handle_take(&known, sizeof known, to, "creation"); /* that it is good was seen */
    known.id = create->shown.views[0].id;
    known.length = create->shown.views[0].length;
    handle_give(to, &known, sizeof known);
}

int attnd_create(struct attnd *a, struct attnd_creation *creation)
{
    struct attnd_creation from;
    int rc = handle_take(&from, sizeof from, creation, "creation");
    struct request *request = NULL;
    if (rc == ATTND_OK)
        rc = begin(a, REQUEST_CREATE, from.id, &request);
    if (rc != ATTND_OK)
        return rc;
    rc = build_creation(a, request, &from, &request->create);
    if (rc == ATTND_OK)
        rc = handle_run(a, request);
    if (rc == ATTND_OK)
        answer_creation(creation, &request->create);
    return end(a, request, rc);
}

static int build_fork(struct request *request, uint32_t length, const uint64_t *ids, uint32_t count,
                      struct request_fork *fork)
{
    uint32_t given = 0;
    if (count < 1 || count > REQUEST_FORKS_MAX || !ids)
        return handle_fail(ATTND_ERR_INVALID, "count: wants 1..%d, and room for their ids",
                           REQUEST_FORKS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        given += ids[i] != 0;
        if (check_id(ids[i], true) != ATTND_OK)
            return ATTND_ERR_INVALID;
    }
    if (given && given < count)
        return handle_fail(ATTND_ERR_INVALID, "ids: wants all of them, or none");
    if (given) {
        fork->ids = request_alloc(request, count, sizeof *fork->ids);
        if (!fork->ids)
            return handle_fail(ATTND_ERR_INVALID, "ids: are too many for one call");
        memcpy(fork->ids, ids, count * sizeof *ids);
    }
    fork->length = length;
    fork->count = count;
    request->listed_max = 1;
    return ATTND_OK;
}

static void answer_fork(uint64_t *ids, const struct request_fork *fork)
{
    for (uint32_t i = 0; i < fork->shown.count; i++)
        ids[i] = fork->shown.views[i].id;
}

int attnd_fork(struct attnd *a, uint64_t id, uint32_t length, uint64_t *ids, uint32_t count)
{
    struct request *request = NULL;
    int rc = begin(a, REQUEST_FORK, id, &request);
    if (rc != ATTND_OK)
        return rc;
    rc = build_fork(request, length, ids, count, &request->fork);
    if (rc == ATTND_OK)
        rc = handle_run(a, request);
    if (rc == ATTND_OK)
        answer_fork(ids, &request->fork);
    return end(a, request, rc);
}

int attnd_truncate(struct attnd *a, uint64_t id, uint32_t length)
{
    struct request *request = NULL;
    int rc = begin(a, REQUEST_TRUNCATE, id, &request);
    if (rc != ATTND_OK)
        return rc;
    request->truncate.length = length;
    request->listed_max = 1;
    return end(a, request, handle_run(a, request));
}

/* Of a sequence, or else of a lease: they have their ids in common. */
static int delete (struct attnd *a, uint64_t id, bool of_leases)
{
    struct request *request = NULL;
    int rc = begin(a, REQUEST_DELETE, id, &request);
    if (rc != ATTND_OK)
        return rc;
    request->of_leases = of_leases;
    return end(a, request, handle_run(a, request));
}

int attnd_delete(struct attnd *a, uint64_t id)
{
    char text[HANDLE_ERROR_BYTES];
    int rc = delete (a, id, false);
    if (rc == ATTND_ERR_NOT_FOUND) {
        memcpy(text, attnd_error(), sizeof text);
        rc = delete (a, id, true);
        if (rc == ATTND_ERR_NOT_FOUND)
            handle_fail(rc, "%s", text);
    }
    return rc;
}

/* ---- batches ---------------------------------------------------------------------------------------- */

static int build_op(struct attnd *a, struct request *request, const struct attnd_op *from,
                    struct request_op *op)
{
    struct attnd_creation creation;
    int rc = from->kind == ATTND_CREATE ? ATTND_OK : check_id(from->id, false);
    op->id = from->id;
    if (rc != ATTND_OK)
        return rc;
    switch (from->kind) {
    case ATTND_CREATE:
        op->kind = REQUEST_CREATE;
        rc = handle_take(&creation, sizeof creation, from->creation, "creation");
        op->id = rc == ATTND_OK ? creation.id : 0;
        return rc == ATTND_OK ? build_creation(a, request, &creation, &op->create) : rc;
    case ATTND_FORK:
        op->kind = REQUEST_FORK;
        return build_fork(request, from->length, from->ids, from->count, &op->fork);
    case ATTND_TRUNCATE:
        op->kind = REQUEST_TRUNCATE;
        op->truncate.length = from->length;
        return ATTND_OK;
    case ATTND_DELETE:
        op->kind = REQUEST_DELETE;
        return ATTND_OK;
    default:
        return handle_fail(ATTND_ERR_INVALID, "kind: there is no %u", from->kind);
    }
}

/* The i-th op, as far as this library knows it. */
static int take_op(const struct attnd_op *ops, uint32_t i, struct attnd_op *op)
{
    size_t size = 0;
    if (ops)
        memcpy(&size, ops, sizeof size);
    return handle_take(op, sizeof *op, ops ? (const char *)ops + i * size : NULL, "ops");
}

static int build_batch(struct attnd *a, struct request *request, const struct attnd_op *ops, uint32_t count)
{
    struct request_batch *batch = &request->batch;
    char text[HANDLE_ERROR_BYTES];
    if (count > REQUEST_OPS_MAX)
        return handle_fail(ATTND_ERR_INVALID, "ops: one batch takes at most %d", REQUEST_OPS_MAX);
    batch->ops = request_alloc(request, count, sizeof *batch->ops);
    if (!batch->ops)
        return handle_fail(ATTND_ERR_INVALID, "ops: are too many for one call");
    memset(batch->ops, 0, count * sizeof *batch->ops);
    for (; batch->count < count; batch->count++) {
        struct attnd_op op;
        int rc = take_op(ops, batch->count, &op);
        if (rc == ATTND_OK)
            rc = build_op(a, request, &op, &batch->ops[batch->count]);
        if (rc != ATTND_OK) {
            memcpy(text, attnd_error(), sizeof text);
            return handle_fail(rc, "ops[%u]: %.480s", batch->count, text);
        }
    }
    request->listed_max = 1;
    return ATTND_OK;
}

static void answer_batch(struct attnd_op *ops, const struct request_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        struct attnd_op op;
        (void)take_op(ops, i, &op);
        if (op.kind == ATTND_CREATE)
            answer_creation(op.creation, &batch->ops[i].create);
        else if (op.kind == ATTND_FORK)
            answer_fork(op.ids, &batch->ops[i].fork);
    }
}

int attnd_batch(struct attnd *a, struct attnd_op *ops, uint32_t count)
{
    struct request *request = NULL;
    int rc = begin(a, REQUEST_BATCH, 0, &request);
    if (rc != ATTND_OK)
        return rc;
    rc = build_batch(a, request, ops, count);
    if (rc == ATTND_OK)
        rc = handle_run(a, request);
    if (rc == ATTND_OK)
        answer_batch(ops, &request->batch);
    return end(a, request, rc);
}

/* ---- looking at one --------------------------------------------------------------------------------- */

int attnd_look(struct attnd *a, uint64_t id, struct attnd_sequence *sequence)
{
    struct attnd_sequence to;
    int rc = handle_take(&to, sizeof to, sequence, "sequence");
    struct request *request = NULL;
    if (rc == ATTND_OK)
        rc = begin(a, REQUEST_SEQUENCE, id, &request);
    if (rc != ATTND_OK)
        return rc;
    request->listed_max = 1;
    rc = handle_run(a, request);
    if (rc == ATTND_OK) {
        const struct sequence_view *view = &request->look.shown.views[0];
        to.parent = view->parent;
        to.length = view->length;
        to.blocks = view->blocks;
        to.shared_blocks = view->shared_blocks;
        if (to.lengths)
            memcpy(to.lengths, request->look.lengths, a->config.geometry.layers * sizeof *to.lengths);
        handle_give(sequence, &to, sizeof to);
    }
    return end(a, request, rc);
}

/* One page of a table: at most `most` blocks from `first` on. *more: there are others behind them. */
static int read_page(struct attnd *a, uint64_t id, bool of_leases, uint32_t first, uint32_t most,
                     uint32_t *ids, uint32_t *count, bool *more)
{
    struct request *request = handle_acquire(a, REQUEST_BLOCKS, id);
    if (!request)
        return ATTND_ERR_BUSY;
    request->of_leases = of_leases;
    request->table.page.cursor = first;
    request->table.page.limit = smaller(most, REQUEST_PAGE_MAX);
    int rc = handle_run(a, request);
    if (rc == ATTND_OK) {
        *count = request->table.blocks.count;
        *more = request->table.page.next != 0;
        for (uint32_t i = 0; i < *count; i++)
            ids[i] = request->table.blocks.views[i].block;
    }
    engine_release(a->engine, request);
    return rc;
}

int attnd_blocks(struct attnd *a, uint64_t id, uint32_t first, uint32_t *ids, uint32_t *count)
{
    int rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    if (!count || (*count && !ids))
        return handle_leave(a, handle_fail(ATTND_ERR_INVALID, "count: is NULL, or ids is"));
    char text[HANDLE_ERROR_BYTES] = ""; /* of what is neither a sequence nor a lease: as a sequence */
    uint32_t n = 0, page = 0;
    bool more = true, of_leases = false;
    while (rc == ATTND_OK && more && n < *count) {
        rc = read_page(a, id, of_leases, first + n, *count - n, ids + n, &page, &more);
        if (rc == ATTND_ERR_NOT_FOUND && n == 0 && !of_leases) {
            memcpy(text, attnd_error(), sizeof text);
            of_leases = true;
            rc = ATTND_OK;
            continue;
        }
        n += rc == ATTND_OK ? page : 0;
    }
    if (rc == ATTND_OK)
        *count = n;
    else if (rc == ATTND_ERR_NOT_FOUND && *text)
        handle_fail(rc, "%s", text);
    return handle_leave(a, rc);
}

int attnd_lease(struct attnd *a, uint32_t blocks, uint64_t *lease, uint32_t *ids)
{
    struct request *request = NULL;
    int rc = blocks && lease && ids
                 ? begin(a, REQUEST_LEASE, 0, &request)
                 : handle_fail(ATTND_ERR_INVALID, "blocks: wants 1 at least, and room for the answer");
    if (rc != ATTND_OK)
        return rc;
    assert(request); /* else begin() says why there is none */
    request->of_leases = true;
    request->lease.blocks = blocks;
    rc = handle_run(a, request);
    if (rc == ATTND_OK) {
        const struct request_shown *shown = &request->lease.shown;
        *lease = shown->views[0].id;
        memcpy(ids, shown->block_ids, shown->block_id_count * sizeof *ids);
    }
    return end(a, request, rc);
}

/* ---- looking at all --------------------------------------------------------------------------------- */

int attnd_describe(struct attnd *a, struct attnd_description *description)
{
    static const uint8_t codes[DTYPE_COUNT] = {
        [DTYPE_F32] = 2, [DTYPE_F16] = 2, [DTYPE_BF16] = 4, [DTYPE_E4M3] = 10, [DTYPE_E5M2] = 12};
    struct attnd_description to;
    int rc = handle_take(&to, sizeof to, description, "description");
    if (rc == ATTND_OK)
        rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    const struct geometry *g = &a->config.geometry;
    const struct attention_info *info = engine_backend(a->engine);
    to = (struct attnd_description){.layers = g->layers,
                                    .query_heads = g->query_heads,
                                    .kv_heads = g->kv_heads,
                                    .head_dim = g->head_dim,
                                    .block_size = g->block_size,
                                    .blocks = (uint32_t)a->config.pool_blocks,
                                    .sequence_tokens = a->config.limits.sequence_tokens,
                                    .rows_per_call = a->config.limits.rows_per_call,
                                    .calls = a->config.limits.calls,
                                    .dtype_code = codes[g->dtype],
                                    .dtype_bits = (uint8_t)(8 * dtype_bytes(g->dtype)),
                                    .kv_dtype_code = codes[g->kv_dtype],
                                    .kv_dtype_bits = (uint8_t)(8 * dtype_bytes(g->kv_dtype)),
                                    .bit_stable = info->bit_stable,
                                    .threads = info->threads,
                                    .backend = info->name,
                                    .isa = info->isa,
                                    .device = info->device,
                                    .kernel = info->kernel,
                                    .gpu = info->takes_streams ? (int32_t)a->config.device : -1,
                                    .stream_rows = info->takes_streams ? a->config.step_rows_max : 0};
    handle_give(description, &to, sizeof to);
    return handle_leave(a, ATTND_OK);
}

int attnd_stats(struct attnd *a, struct attnd_stats *stats)
{
    struct attnd_stats to;
    int rc = handle_take(&to, sizeof to, stats, "stats");
    struct request *request = NULL;
    if (rc == ATTND_OK)
        rc = begin(a, REQUEST_STATS, 0, &request);
    if (rc != ATTND_OK)
        return rc;
    request->page.limit = 1;
    request->listed_max = 1;
    rc = handle_run(a, request);
    if (rc == ATTND_OK) {
        const struct engine_stats *all = &request->stats.all;
        to = (struct attnd_stats){.blocks_free = all->pool.free,
                                  .blocks_cached = all->pool.cached,
                                  .blocks_held = all->pool.held,
                                  .blocks_fenced = all->pool.fenced,
                                  .blocks_shared = all->pool.shared,
                                  .sequences = all->tables.rows - all->leases,
                                  .tokens_logical = all->tables.tokens_logical,
                                  .tokens_physical = all->tables.tokens_physical,
                                  .forks = all->tables.forks,
                                  .copies_on_write = all->tables.copies,
                                  .steps = all->steps.steps,
                                  .roof_gb_per_s = engine_roof(a->engine).gb_per_s,
                                  .voided = a->voided};
        handle_give(stats, &to, sizeof to);
    }
    return end(a, request, rc);
}

int attnd_audit(struct attnd *a)
{
    struct request *request = NULL;
    int rc = begin(a, REQUEST_AUDIT, 0, &request);
    if (rc != ATTND_OK)
        return rc;
    rc = handle_run(a, request);
    if (rc == ATTND_OK && request->check.fault)
        rc = handle_fail(ATTND_ERR_INTERNAL, "%s", request->check.fault);
    return end(a, request, rc);
}
