/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c - append, attend, paged and merge: from a caller's tensors to requests.
 *
 * Tensors in host memory are used where they are by a backend on the host. What has another dtype than the geometry's, and what a
 * device reads, goes through the engine's staging memory; outputs likewise, and are copied to the caller as the request is completed.
 * Everything is checked before anything is submitted.
 *
 * Tensors on the device are used where they are, too: the calls are stream-ordered (scheduler/step.h). They are submitted to the device
 * before a call returns, and belong to a ticket, or to nobody, until they come back. */
#include "library/handle.h"

#include "kernels/numeric.h"
#include "scheduler/paged_lists.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    DEVICE_HOST = 1, /* DLPack's, as are */
    DEVICE_CUDA = 2,
    DEVICE_PINNED = 3,
    DEVICE_ALIGNMENT = 8, /* of rows on a device, of which kernels load so much at once */
    RANK_MAX = 4,
    ANSWER_BYTES_MAX = REQUEST_ARENA_BYTES / 2 /* of lengths that an append answers */
};

/* A request that is being made. */
struct builder {
    struct attnd *a;
    const struct geometry *g;
    struct request *request;
    struct ownership *owner;
    char where[32]; /* of its list, ahead of what is wrong: "rows[2]." */
    bool streams;   /* its tensors are on the device */
};

static int __attribute__((format(printf, 3, 4)))
refuse(const struct builder *b, const char *name, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return handle_fail(ATTND_ERR_INVALID, "%s%s: %s", b->where, name, text);
}

static int no_room(const struct builder *b, const char *name)
{
    return handle_fail(ATTND_ERR_BUSY, "%s%s: no staging memory now (limits.staging_bytes)", b->where, name);
}

static int too_long(const struct builder *b, const char *name)
{
    return refuse(b, name, "is too long for one call");
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

/* What a tensor has to be: [shape[0]]...[shape[rank - 1]]. */
struct wants {
    unsigned rank;
    int64_t shape[RANK_MAX];
    enum dtype own, other; /* which of the two dtypes; */
    bool converts;         /* or float32, which becomes `own` */
};

static struct wants rows_of(const struct builder *b, uint32_t rows, uint32_t heads)
{
    const struct geometry *g = b->g;
    return (struct wants){.rank = 3,
                          .shape = {rows, heads, g->head_dim},
                          .own = g->dtype,
                          .other = g->dtype,
                          .converts = dtype_bytes(g->dtype) == 2};
}

static size_t elements_of(const struct wants *w)
{
    size_t n = 1;
    for (unsigned i = 0; i < w->rank; i++)
        n *= (size_t)w->shape[i];
    return n;
}

/* False: it is none that there is. */
static bool dtype_of(const struct builder *b, const struct attnd_tensor *t, enum dtype *dtype)
{
    if (t->dtype_code == 1 && t->dtype_bits == 8 &&
        dtype_is_fp8(b->g->kv_dtype)) { /* bytes, for who has no such type */
        *dtype = b->g->kv_dtype;
        return t->dtype_lanes == 1;
    }
    return handle_dtype(t->dtype_code, t->dtype_bits, dtype) && t->dtype_lanes == 1;
}

/* A tensor's rank and shape, in words. */
static const char *shape_text(unsigned rank, const int64_t *shape, char text[96])
{
    size_t n = (size_t)snprintf(text, 96, "[");
    for (unsigned i = 0; i < rank && n < 96; i++)
        n += (size_t)snprintf(text + n, 96 - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (n < 96)
        snprintf(text + n, 96 - n, "]");
    return text;
}

static bool is_contiguous(const struct attnd_tensor *t)
{
    int64_t step = 1;
    for (int32_t i = t->ndim; t->strides && i-- > 0;) {
        if (t->shape[i] != 1 && t->strides[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

/* Whether a tensor's address is one of the backend's device. Rows are of rank 3 and 4; lse is read and written float by float. */
static int look_at(const struct builder *b, const char *name, const void *data, unsigned rank)
{
    const char *wrong = engine_look_at(b->a->engine, data);
    if (!wrong && rank > 2 && (uintptr_t)data % DEVICE_ALIGNMENT)
        wrong = "is not aligned to 8 bytes";
    return wrong ? refuse(b, name, "%s", wrong) : ATTND_OK;
}

/* Whether it is what is wanted; its data and dtype. */
static int check_tensor(const struct builder *b, const struct attnd_tensor *t, const char *name,
                        const struct wants *w, uint8_t **data, enum dtype *dtype)
{
    char has[96], want[96];
    if (!t)
        return refuse(b, name, "is missing");
    bool on_gpu = t->device_type == DEVICE_CUDA;
    if (!on_gpu && t->device_type != DEVICE_HOST && t->device_type != DEVICE_PINNED)
        return handle_fail(ATTND_ERR_UNSUPPORTED, "%s%s: is on a device of DLPack's type %d", b->where, name,
                           t->device_type);
    if (on_gpu != b->streams)
        return refuse(b, name,
                      on_gpu ? "is on the GPU, and this call takes tensors in host memory"
                             : "is not on the GPU, as others are");
    if (t->ndim < 0 || (t->ndim > 0 && !t->shape))
        return refuse(b, name, "has no shape");
    if (!dtype_of(b, t, dtype) ||
        (*dtype != w->own && *dtype != w->other && !(w->converts && !on_gpu && *dtype == DTYPE_F32)))
        return refuse(b, name, "wants %s%s%s%s, has DLPack's type %u of %u bits", dtype_name(w->own),
                      w->own == w->other ? "" : " or ", w->own == w->other ? "" : dtype_name(w->other),
                      w->converts && !on_gpu ? " or f32" : "", t->dtype_code, t->dtype_bits);
    if ((unsigned)t->ndim != w->rank || memcmp(t->shape, w->shape, w->rank * sizeof *w->shape) != 0)
        return refuse(b, name, "wants the shape %s, has %s", shape_text(w->rank, w->shape, want),
                      shape_text((unsigned)t->ndim, t->shape, has));
    if (!is_contiguous(t))
        return refuse(b, name, "is not contiguous");
    if (!t->data)
        return refuse(b, name, "has no data");
    *data = (uint8_t *)t->data + t->byte_offset;
    if ((uintptr_t)*data % dtype_bytes(*dtype) != 0)
        return refuse(b, name, "is not aligned to its elements");
    return on_gpu ? look_at(b, name, *data, w->rank) : ATTND_OK;
}

static bool on_device(const struct builder *b)
{
    return engine_backend(b->a->engine)->on_device;
}

/* Where the backend reads a tensor; *dtype becomes what it has there. All elements have to be finite. */
static int read_tensor(const struct builder *b, const struct attnd_tensor *t, const char *name,
                       const struct wants *w, bool summed, const void **data, enum dtype *dtype)
{
    uint8_t *from = NULL;
    char text[128];
    *dtype = w->own;
    int rc = check_tensor(b, t, name, w, &from, dtype);
    if (rc != ATTND_OK)
        return rc;
    assert(from); /* else it has no data */
    *data = from;
    if (b->streams) /* the device looks at its elements */
        return ATTND_OK;
    bool layered = w->rank == RANK_MAX;
    const struct request_elements elements = {.array = from,
                                              .dtype = *dtype,
                                              .layers = layered ? (uint32_t)w->shape[0] : 1,
                                              .rows = (uint32_t)w->shape[layered],
                                              .heads = (uint32_t)w->shape[layered + 1],
                                              .head_dim = b->g->head_dim,
                                              .summed = summed};
    if (!request_elements_are_good(&elements, text, sizeof text))
        return refuse(b, name, "%s", text);
    bool converts = *dtype != w->own && *dtype != w->other;
    if (!converts && !on_device(b))
        return ATTND_OK;
    size_t n = elements_of(w);
    enum dtype to_dtype = converts ? w->own : *dtype;
    void *to = request_tensor(b->request, n, dtype_bytes(to_dtype));
    if (!to)
        return no_room(b, name);
    if (converts)
        numeric_from_float(to_dtype, (const float *)(const void *)from, n, to);
    else
        memcpy(to, from, n * dtype_bytes(to_dtype));
    *data = to;
    *dtype = to_dtype;
    return ATTND_OK;
}

/* Where the backend writes a tensor, of w->own. */
static int write_tensor(const struct builder *b, const struct attnd_tensor *t, const char *name,
                        const struct wants *w, struct output *output, void **data)
{
    uint8_t *to = NULL;
    enum dtype dtype = w->own;
    int rc = check_tensor(b, t, name, w, &to, &dtype);
    *data = to;
    if (rc != ATTND_OK || b->streams || (dtype == w->own && !on_device(b)))
        return rc;
    size_t n = elements_of(w);
    *data = request_tensor(b->request, n, dtype_bytes(w->own));
    *output = (struct output){.to = to, .dtype = dtype, .from = *data, .from_dtype = w->own, .elements = n};
    return *data ? ATTND_OK : no_room(b, name);
}

/* ---- q, k, v, o, lse -------------------------------------------------------------------------------- */

struct five {
    const struct attnd_tensor *q, *k, *v, *o, *lse;
};

static int read_queries(const struct builder *b, const struct five *t)
{
    struct request_rows *rows = &b->request->rows;
    const struct wants q = rows_of(b, rows->count, b->g->query_heads);
    const struct wants lse = {
        .rank = 2, .shape = {rows->count, b->g->query_heads}, .own = DTYPE_F32, .other = DTYPE_F32};
    enum dtype dtype;
    void *to_lse = NULL;
    int rc = read_tensor(b, t->q, "q", &q, false, &rows->q, &dtype);
    if (rc == ATTND_OK)
        rc = write_tensor(b, t->o, "o", &q, &b->owner->o, &rows->out.o);
    if (rc == ATTND_OK && t->lse)
        rc = write_tensor(b, t->lse, "lse", &lse, &b->owner->lse, &to_lse);
    rows->out.lse = to_lse;
    return rc;
}

/* Where the device says whose k or v is not finite: a byte a sequence, or lease. */
static int take_marks(const struct builder *b)
{
    uint32_t n = b->request->kind == REQUEST_PAGED ? 1 : b->request->attend.sequence_count;
    uint8_t *marks = request_tensor(b->request, n, 1);
    if (!marks)
        return no_room(b, "k");
    memset(marks, 0, n);
    b->request->rows.wrong = marks;
    return ATTND_OK;
}

/* Whether tensors, of which this is the first, are on the GPU, and the stream is one of it. */
static int read_stream(struct builder *b, const struct attnd_tensor *first, const char *name, void *of,
                       struct request_stream *stream)
{
    b->streams = first && first->device_type == DEVICE_CUDA;
    if (!b->streams)
        return of ? refuse(b, "stream", "goes with tensors on the GPU") : ATTND_OK;
    if (!engine_backend(b->a->engine)->takes_streams)
        return handle_fail(ATTND_ERR_UNSUPPORTED, "%s%s: is on a GPU, and the backend is %s", b->where, name,
                           engine_backend(b->a->engine)->name);
    if (b->a->threaded)
        return handle_fail(ATTND_ERR_UNSUPPORTED,
                           "%sstream: a handle with a thread of its own takes no tensors on the GPU",
                           b->where);
    const char *wrong = engine_look_at_stream(b->a->engine, of);
    *stream = (struct request_stream){.on = true, .of = of};
    return wrong ? refuse(b, "stream", "%s", wrong) : ATTND_OK;
}

/* k and v of `n` rows; `layers`: 0, or they are those of so many layers. */
static int read_keys_and_values(const struct builder *b, const struct five *t, uint32_t n, uint32_t layers)
{
    struct request_rows *rows = &b->request->rows;
    struct wants w = rows_of(b, n, b->g->kv_heads);
    enum dtype dtype_of_v;
    w.other = b->g->kv_dtype;
    if (layers) {
        w.rank = RANK_MAX;
        memmove(w.shape + 1, w.shape, 3 * sizeof *w.shape);
        w.shape[0] = layers;
    }
    int rc = read_tensor(b, t->k, "k", &w, false, &rows->k, &rows->kv_source);
    if (rc == ATTND_OK)
        rc = read_tensor(b, t->v, "v", &w, true, &rows->v, &dtype_of_v);
    if (rc == ATTND_OK && dtype_of_v != rows->kv_source)
        rc = refuse(b, "v", "wants the dtype of k");
    rows->all_layers = layers > 0;
    return rc == ATTND_OK && b->streams ? take_marks(b) : rc;
}

static int read_layer(const struct builder *b, uint32_t layer, bool may_be_all)
{
    if (layer >= b->g->layers && !(may_be_all && layer == ATTND_ALL_LAYERS)) {
        char most[16] = ""; /* behind the first layer, where there are more */
        if (b->g->layers > 1)
            snprintf(most, sizeof most, "..%u", b->g->layers - 1);
        return refuse(b, "layer", "wants 0%s%s; has %u", most,
                      may_be_all ? ", or ATTND_ALL_LAYERS for all of k and v" : "", layer);
    }
    b->request->rows.layer = layer == ATTND_ALL_LAYERS ? 0 : layer;
    b->request->rows.kv_source = b->g->dtype;
    return ATTND_OK;
}

static int read_kernel(const struct builder *b, uint32_t kernel)
{
    if (kernel > ATTENTION_PAGED_V2)
        return refuse(b, "kernel", "wants 0, 1 (paged_v1) or 2 (paged_v2)");
    b->request->rows.kernel = (enum attention_kernel)kernel;
    return ATTND_OK;
}

/* ---- append and attend ------------------------------------------------------------------------------ */

static int read_sequences(const struct builder *b, const struct attnd_rows *rows)
{
    struct request_attend *attend = &b->request->attend;
    uint32_t n = rows->sequence_count, most = b->a->config.limits.rows_per_call;
    uint64_t count = 0;
    if (n == 0 || !rows->sequences)
        return refuse(b, "sequences", "wants one at least");
    if ((uint64_t)n * (sizeof *attend->views + b->g->layers * sizeof *attend->lengths) > ANSWER_BYTES_MAX)
        return too_long(b, "sequences");
    attend->sequences = request_alloc(b->request, n, sizeof *attend->sequences);
    if (!attend->sequences)
        return too_long(b, "sequences");
    for (uint32_t i = 0; i < n; i++) {
        int64_t position = rows->positions ? rows->positions[i] : 0;
        uint32_t of_it = rows->counts ? rows->counts[i] : 1;
        if (rows->sequences[i] < 1 || rows->sequences[i] > REQUEST_ID_MAX)
            return refuse(b, "sequences", "entry %u: wants an id in 1..2^53-1", i);
        if (position < 0 || position > INT32_MAX)
            return refuse(b, "positions", "entry %u: wants a position in 0..2^31-1", i);
        if (of_it < 1)
            return refuse(b, "counts", "entry %u: wants 1 at least", i);
        count += of_it;
        attend->sequences[i] = (struct request_sequence){
            .id = rows->sequences[i],
            .rows = of_it,
            .position = rows->positions ? (uint32_t)position : REQUEST_POSITION_ABSENT};
        if (count > most)
            return refuse(b, "counts", "are more than %u rows (limits.rows_per_call)", most);
    }
    attend->sequence_count = n;
    b->request->rows.count = (uint32_t)count;
    return ATTND_OK;
}

static int read_tokens(const struct builder *b, const struct attnd_rows *rows)
{
    struct request_tokens *tokens = &b->request->attend.tokens;
    if (rows->token_count == 0)
        return ATTND_OK;
    if (!rows->token_ids || rows->token_count > b->request->rows.count || !rows->k)
        return refuse(b, "token_ids", "wants an id for each of the first rows of k and v");
    tokens->ids = request_alloc(b->request, rows->token_count, sizeof *tokens->ids);
    if (!tokens->ids)
        return too_long(b, "token_ids");
    memcpy(tokens->ids, rows->token_ids, rows->token_count * sizeof *tokens->ids);
    tokens->count = rows->token_count;
    return ATTND_OK;
}

static int build_rows(struct builder *b, const struct attnd_rows *rows, bool attends)
{
    const struct five t = {rows->q, rows->k, rows->v, rows->o, rows->lse};
    bool all = rows->layer == ATTND_ALL_LAYERS;
    int rc = read_stream(b, t.q ? t.q : t.k, t.q ? "q" : "k", rows->stream, &b->request->rows.stream);
    b->request->rows.retries = rows->retry != 0;
    if (rc == ATTND_OK)
        rc = read_layer(b, rows->layer, !attends);
    if (rc == ATTND_OK)
        rc = read_kernel(b, rows->kernel);
    if (rc == ATTND_OK)
        rc = read_sequences(b, rows);
    if (rc == ATTND_OK && attends)
        rc = read_queries(b, &t);
    if (rc == ATTND_OK && !attends && (t.q || t.o || t.lse))
        rc = refuse(b, "q", "goes with attnd_attend()");
    if (rc == ATTND_OK && (t.k || t.v || !attends))
        rc = read_keys_and_values(b, &t, b->request->rows.count, all ? b->g->layers : 0);
    return rc == ATTND_OK ? read_tokens(b, rows) : rc;
}

/* An empty request, and whose it is. */
static int begin(struct builder *b, struct attnd *a, enum request_kind kind, uint64_t id)
{
    *b = (struct builder){.a = a, .g = &a->config.geometry, .request = handle_acquire(a, kind, id)};
    if (!b->request)
        return ATTND_ERR_BUSY;
    b->owner = request_alloc(b->request, 1, sizeof *b->owner); /* an empty arena has room */
    *b->owner = (struct ownership){0};
    b->request->cookie = b->owner;
    return ATTND_OK;
}

/* Make a request of each list, or of none. */
static int build_lists(struct attnd *a, const struct attnd_rows *rows, uint32_t count, bool attends,
                       struct request_list *list)
{
    struct attnd_rows of = {0};
    size_t size = 0;
    int rc = ATTND_OK;
    if (rows)
        memcpy(&size, rows, sizeof size);
    for (uint32_t i = 0; rc == ATTND_OK && i < count; i++) {
        struct builder b;
        rc = handle_take(&of, sizeof of, (const char *)rows + i * size, "rows");
        if (rc == ATTND_OK && of.size != size)
            rc = handle_fail(ATTND_ERR_INVALID, "rows[%u].size: wants that of rows[0]", i);
        if (rc == ATTND_OK)
            rc = begin(&b, a, attends ? REQUEST_ATTEND : REQUEST_APPEND, 0);
        if (rc != ATTND_OK)
            return rc;
        request_list_append(list, b.request);
        b.owner->index = i;
        if (count > 1)
            snprintf(b.where, sizeof b.where, "rows[%u].", i);
        rc = build_rows(&b, &of, attends);
    }
    return rc;
}

/* Submit what was built if that went well, else let it go. */
static int submit_list(struct attnd *a, int rc, struct request_list *list, uint64_t *ticket)
{
    struct request *request;
    uint32_t streamed = 0;
    for (request = list->first; rc == ATTND_OK && request; request = request->next)
        streamed += request_stream(request) != NULL;
    if (streamed)
        rc = handle_find_stream_room(a, streamed);
    struct call *call = rc == ATTND_OK ? handle_begin_call(a) : NULL;
    if (rc == ATTND_OK && !call)
        rc = ATTND_ERR_BUSY;
    while ((request = request_list_take(list))) {
        if (call)
            handle_submit(a, call, request);
        else
            engine_release(a->engine, request);
    }
    return !call ? rc : streamed ? handle_end_stream_call(a, call, ticket) : handle_end_call(a, call, ticket);
}

static int submit_rows(struct attnd *a, const struct attnd_rows *rows, uint32_t count, bool attends,
                       uint64_t *ticket)
{
    struct request_list list = {0};
    int rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    rc = count ? build_lists(a, rows, count, attends, &list)
               : handle_fail(ATTND_ERR_INVALID, "count: wants 1 at least");
    return handle_leave(a, submit_list(a, rc, &list, ticket));
}

int attnd_append(struct attnd *a, const struct attnd_rows *rows, uint32_t count, uint64_t *ticket)
{
    return submit_rows(a, rows, count, false, ticket);
}

int attnd_attend(struct attnd *a, const struct attnd_rows *rows, uint32_t count, uint64_t *ticket)
{
    return submit_rows(a, rows, count, true, ticket);
}

/* ---- tables of the caller's own --------------------------------------------------------------------- */

/* A list of n integers of 32 bits, as the scheduler has them; with NULL it stays absent. */
static int take_list(const struct builder *b, const char *name, const int32_t *from, uint64_t n,
                     struct paged_list *list)
{
    if (!from)
        return ATTND_OK;
    int64_t *values = request_alloc(b->request, n, sizeof *values);
    if (!values)
        return too_long(b, name);
    for (uint64_t i = 0; i < n; i++)
        values[i] = from[i];
    list->values = values;
    list->n = n;
    return ATTND_OK;
}

static int build_paged(struct builder *b, const struct attnd_paged_rows *rows)
{
    const struct five t = {rows->q, rows->k, rows->v, rows->o, rows->lse};
    struct paged_lists lists = {
        .slot_mapping = {.values = rows->tokens ? rows->slot_mapping : NULL, .n = rows->tokens}};
    struct paged_refusal refusal = {0};
    bool has_q = rows->q != NULL, has_kv = rows->k || rows->v;
    int rc = read_stream(b, t.q ? t.q : t.k, t.q ? "q" : "k", rows->stream, &b->request->rows.stream);
    if (rc == ATTND_OK)
        rc = read_layer(b, rows->layer, false);
    if (rc == ATTND_OK)
        rc = read_kernel(b, rows->kernel);
    if (rc == ATTND_OK)
        rc = take_list(b, "block_tables", rows->block_tables, (uint64_t)rows->sequences * rows->columns,
                       &lists.block_tables);
    lists.block_tables.columns = rows->columns;
    if (rc == ATTND_OK)
        rc = take_list(b, "context_lens", rows->context_lens, rows->sequences, &lists.context_lens);
    if (rc == ATTND_OK)
        rc = take_list(b, "indptr", rows->indptr, (uint64_t)rows->sequences + 1, &lists.indptr);
    if (rc == ATTND_OK && paged_build(b->request, &b->a->config, &lists, has_q, has_kv, &refusal) != 0)
        rc = refuse(b, refusal.name, "%s", refusal.wants);
    if (rc == ATTND_OK && b->request->rows.count > b->a->config.limits.rows_per_call)
        rc =
            refuse(b, "q", "has more than %u rows (limits.rows_per_call)", b->a->config.limits.rows_per_call);
    if (rc == ATTND_OK && has_q)
        rc = read_queries(b, &t);
    if (rc == ATTND_OK && has_kv)
        rc = read_keys_and_values(b, &t, b->request->paged.tokens, 0);
    return rc;
}

int attnd_paged(struct attnd *a, const struct attnd_paged_rows *rows, uint64_t *ticket)
{
    struct attnd_paged_rows of;
    struct request_list list = {0};
    struct builder b;
    int rc = handle_take(&of, sizeof of, rows, "rows");
    if (rc == ATTND_OK)
        rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    rc = begin(&b, a, REQUEST_PAGED, of.lease);
    if (rc == ATTND_OK) {
        b.request->of_leases = true;
        request_list_append(&list, b.request);
        rc = build_paged(&b, &of);
    }
    return handle_leave(a, submit_list(a, rc, &list, ticket));
}

/* ---- merge ------------------------------------------------------------------------------------------ */

/* Whether lse is there: numbers, of tensors in host memory. */
static int read_lse(const struct builder *b, const struct attnd_tensor *lse, const struct wants *w,
                    const float **values)
{
    uint8_t *data = NULL;
    enum dtype dtype;
    int rc = check_tensor(b, lse, "lse", w, &data, &dtype);
    size_t heads = elements_of(w), bad = 0;
    *values = (const float *)(const void *)data;
    if (rc != ATTND_OK || b->streams)
        return rc;
    assert(*values); /* else it has no data */
    while (bad < heads && !isnan((*values)[bad]))
        bad++;
    if (bad < heads)
        return refuse(b, "lse", "element %zu: wants a number, minus infinity for a state without keys", bad);
    if (!on_device(b))
        return ATTND_OK;
    float *copy = request_tensor(b->request, heads, sizeof *copy);
    if (!copy)
        return no_room(b, "lse");
    memcpy(copy, *values, heads * sizeof *copy);
    *values = copy;
    return ATTND_OK;
}

static int build_merge(struct builder *b, const struct attnd_states *states)
{
    const struct geometry *g = b->g;
    const struct attnd_tensor *o = states->o;
    struct request_merge *merge = &b->request->merge;
    int64_t most = b->a->config.limits.rows_per_call, n, rows;
    void *to_lse = NULL;
    enum dtype dtype;
    if (!o || o->ndim != RANK_MAX || !o->shape || o->shape[0] < 1 || o->shape[1] < 1 || o->shape[0] > most ||
        o->shape[1] > most)
        return refuse(b, "o", "wants the shape [n, T, %u, %u], n and T in 1..%lld", g->query_heads,
                      g->head_dim, (long long)most);
    n = o->shape[0];
    rows = o->shape[1];
    struct wants w = {.rank = 4,
                      .shape = {n, rows, g->query_heads, g->head_dim},
                      .own = g->dtype,
                      .other = g->dtype,
                      .converts = dtype_bytes(g->dtype) == 2};
    struct wants w_lse = {
        .rank = 3, .shape = {n, rows, g->query_heads}, .own = DTYPE_F32, .other = DTYPE_F32};
    int rc = read_stream(b, o, "o", states->stream, &merge->stream);
    if (rc == ATTND_OK)
        rc = read_lse(b, states->lse, &w_lse, &merge->lse);
    if (rc == ATTND_OK)
        rc = read_tensor(b, o, "o", &w, true, &merge->o, &dtype);
    if (rc != ATTND_OK)
        return rc;
    merge->states = (uint32_t)n;
    merge->rows = (uint32_t)rows;
    w = rows_of(b, (uint32_t)rows, g->query_heads);
    w_lse.rank = 2;
    memmove(w_lse.shape, w_lse.shape + 1, 2 * sizeof *w_lse.shape);
    rc = write_tensor(b, states->merged_o, "merged_o", &w, &b->owner->o, &merge->out.o);
    if (rc == ATTND_OK)
        rc = write_tensor(b, states->merged_lse, "merged_lse", &w_lse, &b->owner->lse, &to_lse);
    merge->out.lse = to_lse;
    return rc;
}

int attnd_merge(struct attnd *a, const struct attnd_states *states)
{
    struct attnd_states of;
    struct request_list list = {0};
    struct builder b;
    int rc = handle_take(&of, sizeof of, states, "states");
    if (rc == ATTND_OK)
        rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    rc = begin(&b, a, REQUEST_MERGE, 0);
    if (rc == ATTND_OK) {
        request_list_append(&list, b.request);
        rc = build_merge(&b, &of);
    }
    return handle_leave(a, submit_list(a, rc, &list, NULL));
}
