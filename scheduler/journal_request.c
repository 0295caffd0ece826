/* SPDX-License-Identifier: Apache-2.0 */
/* journal_request.c - see journal_request.h. */
#include "scheduler/journal_request.h"

#include "scheduler/workload.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Where a tensor would be whose bytes are not known: nobody reads it. */
static uint8_t no_tensor[64] __attribute__((aligned(64)));

/* ---- values ---------------------------------------------------------------------------------------- */

static void bytes(struct journal_wire *w, void *value, size_t n)
{
    if (w->bad || n > (size_t)(w->end - w->at)) {
        w->bad = true;
        return;
    }
    if (n && w->reads)
        memcpy(value, w->at, n);
    else if (n)
        memcpy(w->at, value, n);
    w->at += n;
}

#define VALUE(w, value) bytes(w, &(value), sizeof(value))

static void flag(struct journal_wire *w, bool *value)
{
    uint8_t byte = *value;
    VALUE(w, byte);
    *value = byte & 1;
}

/* A list of `n` elements, which is the request's when it is read; `any` false: it is NULL. */
static void *list(struct journal_wire *w, void *from, size_t n, size_t size)
{
    bool any = from != NULL;
    flag(w, &any);
    if (!any || w->bad)
        return NULL;
    if (n > (size_t)(w->end - w->at) / size) {
        w->bad = true;
        return NULL;
    }
    if (w->reads)
        from = request_alloc(w->request, n, size);
    w->bad |= !from;
    if (from)
        bytes(w, from, n * size);
    return from;
}

#define LIST(w, pointer, n) ((pointer) = list(w, pointer, n, sizeof *(pointer)))

/* Whether there is a tensor. */
static void tensor(struct journal_wire *w, const void **pointer)
{
    bool any = *pointer != NULL;
    flag(w, &any);
    if (w->reads)
        *pointer = any ? no_tensor : NULL;
}

static void tokens(struct journal_wire *w, struct request_tokens *t)
{
    VALUE(w, t->count);
    uint8_t *from = w->at + 1;
    LIST(w, t->ids, t->count);
    if (w->bad || w->reads || w->plain || !t->ids)
        return;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t hash = (uint32_t)XXH3_64bits_withSeed(&t->ids[i], sizeof t->ids[i], w->key);
        memcpy(from + i * sizeof hash, &hash, sizeof hash);
    }
}

/* A hash of a salt does for one. */
static void salt(struct journal_wire *w, const char *text, uint32_t n, char *to, uint32_t *to_bytes)
{
    uint64_t hash = n ? XXH3_64bits_withSeed(text, n, w->key) : 0;
    uint8_t count = n ? sizeof hash : 0;
    VALUE(w, count);
    bytes(w, &hash, count == sizeof hash ? count : 0);
    w->bad |= count && count != sizeof hash;
    if (!w->reads)
        return;
    memcpy(to, &hash, sizeof hash);
    *to_bytes = count;
}

/* ---- parts of requests ----------------------------------------------------------------------------- */

static void create(struct journal_wire *w, struct request_create *c)
{
    tokens(w, &c->tokens);
    salt(w, c->salt, c->salt_bytes, c->salt, &c->salt_bytes);
    VALUE(w, c->options);
}

static void fork(struct journal_wire *w, struct request_fork *f)
{
    VALUE(w, f->length);
    VALUE(w, f->count);
    LIST(w, f->ids, f->count);
}

static void rows(struct journal_wire *w, struct request_rows *r)
{
    uint8_t kernel = (uint8_t)r->kernel, source = (uint8_t)r->kv_source;
    const void *o = r->out.o;
    VALUE(w, r->layer);
    flag(w, &r->all_layers);
    VALUE(w, kernel);
    VALUE(w, source);
    VALUE(w, r->count);
    tensor(w, &r->q);
    tensor(w, &r->k);
    tensor(w, &r->v);
    tensor(w, &o);
    r->kernel = (enum attention_kernel)kernel;
    r->kv_source = (enum dtype)source;
    if (w->reads && o) {
        r->out.o = no_tensor;
        r->out.lse = (float *)(void *)no_tensor;
    }
    flag(w, &r->retries);
}

static void attend(struct journal_wire *w, struct request_attend *a)
{
    rows(w, &a->rows);
    VALUE(w, a->sequence_count);
    LIST(w, a->sequences, a->sequence_count);
    tokens(w, &a->tokens);
    flag(w, &a->has_constants);
    VALUE(w, a->constants);
}

static void paged(struct journal_wire *w, struct request_paged *p)
{
    uint32_t ids = p->first ? p->first[p->sequences] : 0;
    rows(w, &p->rows);
    VALUE(w, p->sequences);
    VALUE(w, p->tokens);
    VALUE(w, ids);
    LIST(w, p->indptr, (size_t)p->sequences + 1);
    LIST(w, p->context, p->sequences);
    LIST(w, p->first, (size_t)p->sequences + 1);
    LIST(w, p->slots, p->tokens);
    bool any = p->ids != NULL;
    flag(w, &any);
    if (w->reads && any) { /* the engine may add some */
        p->ids = request_alloc(w->request, (size_t)ids + p->tokens, sizeof *p->ids);
        w->bad |= !p->ids;
    }
    if (any && !w->bad)
        bytes(w, p->ids, ids * sizeof *p->ids);
}

static void described(struct journal_wire *w, struct request_described *d)
{
    VALUE(w, d->options);
    VALUE(w, d->key);
    VALUE(w, d->parent);
    VALUE(w, d->base);
    VALUE(w, d->shared);
    VALUE(w, d->length);
    tokens(w, &d->prompt);
    salt(w, d->salt, d->salt_bytes, d->salt, &d->salt_bytes);
}

static void batch(struct journal_wire *w, struct request_batch *b)
{
    VALUE(w, b->count);
    if (w->reads && !w->bad) {
        w->bad |= b->count > REQUEST_OPS_MAX;
        b->ops = w->bad ? NULL : request_alloc(w->request, b->count, sizeof *b->ops);
        w->bad |= !b->ops;
        if (!w->bad)
            memset(b->ops, 0, b->count * sizeof *b->ops);
    }
    for (uint32_t i = 0; !w->bad && i < b->count; i++) {
        struct request_op *op = &b->ops[i];
        uint8_t kind = (uint8_t)op->kind;
        VALUE(w, kind);
        VALUE(w, op->id);
        op->kind = (enum request_kind)kind;
        if (op->kind == REQUEST_CREATE)
            create(w, &op->create);
        else if (op->kind == REQUEST_FORK)
            fork(w, &op->fork);
        else if (op->kind == REQUEST_TRUNCATE)
            VALUE(w, op->truncate.length);
        else
            w->bad |= op->kind != REQUEST_DELETE;
    }
}

static void ids(struct journal_wire *w, struct request_ids *i)
{
    struct id_ranges *chosen = NULL;
    VALUE(w, i->next);
    VALUE(w, i->limit);
    if (!w->reads && i->chosen) { /* the cast: it is only read */
        bool any = true;
        struct id_ranges copy = *i->chosen;
        flag(w, &any);
        VALUE(w, copy);
        return;
    }
    i->chosen = LIST(w, chosen, 1);
}

/* One of an array, or nothing. */
static void floats(struct journal_wire *w, float **values, size_t n)
{
    LIST(w, *values, n);
}

static void parameters(struct journal_wire *w, struct model_constants *c, const struct geometry *g)
{
    size_t heads = (size_t)g->layers * g->query_heads, kv_heads = (size_t)g->layers * g->kv_heads;
    floats(w, &c->sinks, heads);
    floats(w, &c->alibi, g->query_heads);
    floats(w, &c->k_scale, kv_heads);
    floats(w, &c->v_scale, kv_heads);
}

/* ---- workloads ------------------------------------------------------------------------------------- */

static int by_ordinal(const void *a, const void *b)
{
    const struct workload_request *x = *(const struct workload_request *const *)a,
                                  *y = *(const struct workload_request *const *)b;
    return (x->ordinal > y->ordinal) - (x->ordinal < y->ordinal);
}

static void workload_head(struct journal_wire *w, struct workload *of)
{
    uint8_t sharing = (uint8_t)of->report.sharing;
    VALUE(w, of->seed);
    flag(w, &of->attend_prompt);
    VALUE(w, of->verify_rows);
    VALUE(w, sharing);
    VALUE(w, of->report.deadline_s);
    VALUE(w, of->report.owner);
    uint64_t room = of->outputs_room;
    VALUE(w, room);
    VALUE(w, of->table_room);
    flag(w, &of->awaited);
    of->report.sharing = (enum sharing)sharing;
    of->outputs_room = (size_t)room;
}

/* Write one that was closed, in the order in which it was built. */
static void write_workload(struct journal_wire *w, struct workload *of)
{
    uint32_t n = of->request_count;
    const struct workload_request **order = calloc(n ? n : 1, sizeof *order);
    w->bad |= !order;
    workload_head(w, of);
    VALUE(w, n);
    for (uint32_t i = 0; order && i < n; i++)
        order[i] = &of->requests[i];
    if (order)
        qsort(order, n, sizeof *order, by_ordinal);
    for (uint32_t i = 0; !w->bad && i < n; i++) {
        struct workload_request r = *order[i];
        VALUE(w, r);
        bytes(w, of->spans + r.first_span, r.span_count * sizeof *of->spans);
    }
    free(order);
}

static void read_workload(struct journal_wire *w, const struct config *config)
{
    char reason[WORKLOAD_REASON_BYTES];
    struct workload *of = workload_create(0);
    uint32_t n = 0, sequences = config->limits.sequences < config->step_rows_max ? config->limits.sequences
                                                                                 : config->step_rows_max;
    if (!of) {
        w->bad = true;
        return;
    }
    workload_head(w, of);
    VALUE(w, n);
    for (uint32_t i = 0; !w->bad && i < n; i++) {
        struct workload_request r;
        VALUE(w, r);
        if (w->bad || r.span_count > (size_t)(w->end - w->at) / sizeof(struct workload_span)) {
            w->bad = true;
            break;
        }
        struct workload_span *spans = calloc((size_t)r.span_count + 1, sizeof *spans);
        w->bad |= !spans;
        if (spans)
            bytes(w, spans, r.span_count * sizeof *spans);
        w->bad = w->bad || workload_add(of, &r, spans, r.span_count, reason) != 0;
        free(spans);
    }
    w->bad = w->bad || workload_close(of, &config->geometry, (uint32_t)config->pool_blocks, sequences,
                                      config->limits.sequence_tokens, reason) != 0;
    if (w->bad)
        workload_destroy(of);
    else
        w->request->workload.workload = of;
}

static void workload(struct journal_wire *w, const struct config *config)
{
    struct request_workload *of = &w->request->workload;
    flag(w, &of->waits);
    flag(w, &of->takes_outputs);
    if (w->request->kind != REQUEST_WORKLOAD_START)
        return;
    if (w->reads)
        read_workload(w, config);
    else
        write_workload(w, of->workload);
}

/* ---- all ------------------------------------------------------------------------------------------- */

static void common(struct journal_wire *w)
{
    struct request *r = w->request;
    uint8_t kind = (uint8_t)r->kind;
    VALUE(w, kind);
    w->bad |= kind >= REQUEST_KINDS || request_kinds[kind].when == REQUEST_LOOKING;
    r->kind = w->bad ? REQUEST_STATS : (enum request_kind)kind;
    VALUE(w, r->id);
    flag(w, &r->of_leases);
    VALUE(w, r->listed_max);
    VALUE(w, r->key);
    flag(w, &r->sees_all);
    flag(w, &r->displaces_all);
    VALUE(w, r->quotas);
    VALUE(w, r->owner);
    VALUE(w, r->weight);
    VALUE(w, r->connection);
    VALUE(w, r->deadline_s);
    VALUE(w, r->submitted_s);
    VALUE(w, r->digest);
}

static void page(struct journal_wire *w, struct request_page *p)
{
    uint32_t state = p->filter.state;
    VALUE(w, p->cursor);
    VALUE(w, p->limit);
    flag(w, &p->filter.on);
    VALUE(w, state);
    p->filter.state = state;
}

bool journal_request(struct journal_wire *w, const struct config *config)
{
    struct request *r = w->request;
    common(w);
    switch (w->bad ? REQUEST_DELETE : r->kind) {
    case REQUEST_CREATE:
        create(w, &r->create);
        break;
    case REQUEST_FORK:
        fork(w, &r->fork);
        break;
    case REQUEST_TRUNCATE:
        VALUE(w, r->truncate.length);
        break;
    case REQUEST_EXPORT:
        VALUE(w, r->export.first);
        VALUE(w, r->export.end);
        VALUE(w, r->export.content);
        r->export.k = r->export.v = w->reads ? no_tensor : r->export.k;
        break;
    case REQUEST_RESTORE:
        described(w, &r->described);
        break;
    case REQUEST_IDS:
        ids(w, &r->ids);
        break;
    case REQUEST_MOVED:
        VALUE(w, r->moved);
        break;
    case REQUEST_BATCH:
        batch(w, &r->batch);
        break;
    case REQUEST_LEASE:
        VALUE(w, r->lease.blocks);
        VALUE(w, r->lease.options);
        break;
    case REQUEST_APPEND:
    case REQUEST_ATTEND:
        attend(w, &r->attend);
        break;
    case REQUEST_PAGED:
        paged(w, &r->paged);
        break;
    case REQUEST_MERGE:
        VALUE(w, r->merge.states);
        VALUE(w, r->merge.rows);
        if (w->reads) {
            r->merge.o = no_tensor;
            r->merge.lse = (float *)(void *)no_tensor;
            r->merge.out.o = no_tensor;
            r->merge.out.lse = (float *)(void *)no_tensor;
        }
        break;
    case REQUEST_PARAMETERS:
        parameters(w, &r->parameters, &config->geometry);
        break;
    case REQUEST_BLOCKS:
    case REQUEST_STATS:
    case REQUEST_LIST:
        page(w, &r->page);
        break;
    case REQUEST_STEPS:
        VALUE(w, r->steps.limit);
        break;
    case REQUEST_FORGET:
        VALUE(w, r->forget.row);
        break;
    case REQUEST_WORKLOAD_START:
    case REQUEST_WORKLOAD:
    case REQUEST_WORKLOAD_CANCEL:
        workload(w, config);
        break;
    default: /* it has no more than its id */
        break;
    }
    return !w->bad;
}

uint64_t journal_digest_on(uint64_t digest, const void *bytes, size_t n)
{
    return XXH3_64bits_withSeed(bytes, n, digest);
}

uint64_t journal_digest(const struct request *r, const struct geometry *g)
{
    if (!request_has_rows(r) || request_stream(r))
        return 0;
    size_t kv_rows = r->kind == REQUEST_PAGED ? r->paged.tokens : r->rows.count;
    size_t kv = kv_rows * geometry_kv_row_bytes(g, r->rows.kv_source) * (r->rows.all_layers ? g->layers : 1);
    uint64_t digest = JOURNAL_DIGEST_OF_NOTHING;
    if (r->rows.q)
        digest = journal_digest_on(digest, r->rows.q, r->rows.count * geometry_q_row_bytes(g));
    if (r->rows.k)
        digest = journal_digest_on(digest, r->rows.k, kv);
    if (r->rows.v)
        digest = journal_digest_on(digest, r->rows.v, kv);
    return digest;
}
