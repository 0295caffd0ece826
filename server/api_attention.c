/* SPDX-License-Identifier: Apache-2.0 */
/* api_attention.c - /v1/append, /v1/attend, /v1/paged and /v1/merge. */
#include "kernels/numeric.h"
#include "scheduler/paged_lists.h"
#include "server/api.h"
#include "server/tensors.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { JSON_NUMBERS_MAX = 100000 /* of an answer */ };

/* ---- what requests have in common -------------------------------------------------------------------- */

/* "layer"; absent it is the only one, or k and v are those of all. */
static int read_layer(struct tensor_body *b)
{
    const struct named_tensor *k = tensors_find(b, "k");
    char wants[64];
    int64_t layer = 0;
    int rc = arguments_integer(&b->arguments, "layer", 0, b->g->layers - 1, &layer);
    snprintf(wants, sizeof wants, "is missing: there are layers 0..%u", b->g->layers - 1);
    if (rc == 0 && b->g->layers > 1 && !arguments_has(&b->arguments, "layer") && !(k && k->rank == 4))
        rc = arguments_refuse(&b->arguments, "layer", wants);
    b->request->rows.layer = (uint32_t)layer;
    b->request->rows.kv_source = b->g->dtype;
    return rc;
}

/* "lse", "kernel" and "accept", of what computes. The answer has the format of the body unless it says
 * otherwise. */
static int read_wishes(struct tensor_body *b)
{
    static const char *const formats[] = {"json", "safetensors"};
    struct answer *answer = answer_of(b->request);
    unsigned kernel = ATTENTION_AUTO, format = tensors_wanted(b->x);
    int rc = arguments_flag(&b->arguments, "lse", &answer->wants_lse);
    if (rc == 0)
        rc = arguments_word(&b->arguments, "kernel", config_kernel_names, ATTENTION_PAGED_V2 + 1, &kernel);
    if (rc == 0)
        rc = arguments_word(&b->arguments, "accept", formats, 2, &format);
    b->request->rows.kernel = (enum attention_kernel)kernel;
    answer->wants_tensors = format == 1;
    return rc;
}

/* "indptr": how many rows each sequence has. */
static int read_row_counts(struct tensor_body *b, const struct named_tensor *indptr)
{
    struct request_attend *attend = &b->request->attend;
    int64_t from, to;
    if (!tensors_is_list(indptr, (uint64_t)attend->sequence_count + 1))
        return tensors_mismatch(b, "indptr", "wants integers [%u], one more than sequences",
                                attend->sequence_count + 1);
    if (!tensors_integer(indptr, 0, &from) || from != 0)
        return tensors_refuse(b, "indptr", "wants numbers that rise from 0");
    for (uint32_t i = 0; i < attend->sequence_count; i++, from = to) {
        if (!tensors_integer(indptr, i + 1, &to) || to <= from || to > INT32_MAX)
            return tensors_refuse(b, "indptr", "wants numbers that rise from 0, each by at least 1");
        attend->sequences[i].rows = (uint32_t)(to - from);
    }
    b->request->rows.count = (uint32_t)from;
    return 0;
}

/* "sequences", "positions" and "indptr": which sequences, where, and how many rows of each. */
static int read_sequences(struct tensor_body *b)
{
    const struct named_tensor *ids = tensors_find(b, "sequences"), *indptr = tensors_find(b, "indptr"),
                              *positions = tensors_find(b, "positions");
    struct request_attend *attend = &b->request->attend;
    uint64_t n = ids && ids->rank == 1 ? ids->shape[0] : 0;
    int64_t id, position = 0;
    char text[96];
    if (n == 0 || !tensors_is_list(ids, n))
        return tensors_mismatch(b, "sequences", "wants a list of ids");
    if (positions && !tensors_is_list(positions, n))
        return tensors_mismatch(b, "positions", "wants integers [%llu], one for each sequence",
                                (unsigned long long)n);
    attend->sequences = request_alloc(b->request, n, sizeof *attend->sequences);
    if (!attend->sequences)
        return tensors_refuse(b, "sequences", "is too long for one call");
    for (; attend->sequence_count < n; attend->sequence_count++) {
        uint32_t i = attend->sequence_count;
        snprintf(text, sizeof text, "entry %u: wants an id in 1..9007199254740991", i);
        if (!tensors_integer(ids, i, &id) || id < 1 || id > ID_MAX)
            return tensors_refuse(b, "sequences", text);
        snprintf(text, sizeof text, "entry %u: wants a position in 0..2147483647", i);
        if (positions && (!tensors_integer(positions, i, &position) || position < 0 || position > INT32_MAX))
            return tensors_refuse(b, "positions", text);
        attend->sequences[i] =
            (struct request_sequence){.id = (uint64_t)id,
                                      .rows = 1,
                                      .position = positions ? (uint32_t)position : REQUEST_POSITION_ABSENT};
    }
    b->request->rows.count = attend->sequence_count;
    return indptr ? read_row_counts(b, indptr) : 0;
}

static int read_queries(struct tensor_body *b, bool required)
{
    const struct tensor_rows wants = {
        .required = required, .n = b->request->rows.count, .heads = b->g->query_heads, .other = b->g->dtype};
    enum dtype dtype;
    return tensors_rows(b, "q", &wants, &b->request->rows.q, &dtype);
}

int api_read_keys_and_values(struct tensor_body *b, uint32_t n, bool required, bool layered)
{
    const struct named_tensor *k = tensors_find(b, "k"), *v = tensors_find(b, "v");
    const struct tensor_rows wants = {
        .required = required, .layered = layered, .n = n, .heads = b->g->kv_heads, .other = b->g->kv_dtype};
    struct request_rows *rows = &b->request->rows;
    struct tensor_rows wants_v = wants;
    enum dtype dtype_of_v = rows->kv_source;
    wants_v.summed = true;
    int rc = tensors_rows(b, "k", &wants, &rows->k, &rows->kv_source);
    if (rc == 0)
        rc = tensors_rows(b, "v", &wants_v, &rows->v, &dtype_of_v);
    if (rc != 0 || (!k && !v))
        return rc;
    if (!k || !v)
        return tensors_refuse(b, k ? "v" : "k", "is missing: k and v come together");
    rows->all_layers = k->rank == 4;
    if (k->rank != v->rank || rows->kv_source != dtype_of_v)
        return tensors_refuse(b, "v", "wants the dtype and shape of k");
    if (rows->all_layers && arguments_has(&b->arguments, "layer"))
        return arguments_refuse(&b->arguments, "layer", "goes with k and v of one layer, and these have all");
    return 0;
}

/* An answer in JSON has at most JSON_NUMBERS_MAX numbers. */
static int limit_json(struct http_exchange *x, const struct request *request, uint32_t rows,
                      const struct geometry *g)
{
    if (answer_of(request)->wants_tensors ||
        (uint64_t)rows * g->query_heads * g->head_dim <= JSON_NUMBERS_MAX)
        return 0;
    http_problem(x, ATTND_INVALID, "o would have more than %d numbers; ask for safetensors",
                 JSON_NUMBERS_MAX);
    return ATTND_INVALID;
}

/* ---- outputs --------------------------------------------------------------------------------------- */

/* Rows of o, and lse if it is wanted. */
struct output {
    const struct request_output *of;
    uint32_t rows;
    bool lse;
    const char *kernel;
    double roof_fraction; /* of its step, */
    const char *above;    /* and why it is above 1; NULL: it is not */
};

static struct output output_of(const struct request *request, const struct request_output *of, uint32_t rows,
                               enum attention_kernel kernel, const struct render_context *c)
{
    double roof = c->roof.gb_per_s * 1e9 * of->step_us * 1e-6,
           fraction = roof > 0 ? (double)of->bytes_read / roof : 0;
    return (struct output){.of = of,
                           .rows = rows,
                           .lse = answer_of(request)->wants_lse,
                           .kernel =
                               kernel == ATTENTION_AUTO ? c->backend->kernel : config_kernel_names[kernel],
                           .roof_fraction = fraction,
                           .above = roof_explain(&c->roof, fraction)};
}

static void write_output(struct json_writer *w, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    json_open(w, NULL, '{');
    json_open(w, "o", '[');
    for (uint32_t row = 0; row < out->rows; row++) {
        json_open(w, NULL, '[');
        for (uint32_t head = 0; head < g->query_heads; head++) {
            json_open(w, NULL, '[');
            for (uint32_t d = 0; d < g->head_dim; d++)
                json_float(
                    w, NULL,
                    numeric_load(g->dtype, of->o, ((size_t)row * g->query_heads + head) * g->head_dim + d));
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_close(w, ']');
    if (out->lse) {
        json_open(w, "lse", '[');
        for (uint32_t row = 0; row < out->rows; row++) {
            json_open(w, NULL, '[');
            for (uint32_t head = 0; head < g->query_heads; head++)
                json_float(w, NULL, fminf(of->lse[(size_t)row * g->query_heads + head], FLT_MAX));
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_rounded(w, "queue_us", of->queue_us, 1);
    json_rounded(w, "step_us", of->step_us, 1);
    json_uint(w, "rows_in_step", of->rows_in_step);
    json_uint(w, "bytes_read", of->bytes_read);
    json_float(w, "roof_fraction", (float)out->roof_fraction);
    if (out->above)
        json_string(w, "above_roof", out->above);
    json_string(w, "kernel", out->kernel);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* o, and lse if asked for, with the request's timing as metadata. The numbers are sent from where they lie
 * in the request's arena. */
static void send_tensors(struct http_exchange *x, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    size_t o_bytes = out->rows * geometry_q_row_bytes(g);
    size_t lse_bytes = (size_t)out->rows * g->query_heads * sizeof *of->lse;
    struct named_tensors tensors = {
        .count = out->lse ? 2 : 1,
        .tensors =
            {{.name = "o", .rank = 3, .shape = {out->rows, g->query_heads, g->head_dim}, .end = o_bytes},
             {.name = "lse",
              .dtype = "F32",
              .rank = 2,
              .shape = {out->rows, g->query_heads},
              .end = lse_bytes}},
    };
    char metadata[512];
    snprintf(tensors.tensors[0].dtype, sizeof tensors.tensors[0].dtype, "%s",
             safetensors_dtype_name(g->dtype));
    snprintf(metadata, sizeof metadata,
             "{\"queue_us\":\"%.1f\",\"step_us\":\"%.1f\",\"rows_in_step\":\"%u\",\"bytes_read\":\"%llu\","
             "\"roof_fraction\":\"%.4f\"%s%s%s,\"kernel\":\"%s\"}",
             of->queue_us, of->step_us, of->rows_in_step, (unsigned long long)of->bytes_read,
             out->roof_fraction, out->above ? ",\"above_roof\":\"" : "", out->above ? out->above : "",
             out->above ? "\"" : "", out->kernel);
    x->content_type = "application/x-safetensors";
    x->reply.length = safetensors_write_header(&tensors, metadata, x->reply.buffer, x->reply.capacity);
    x->reply.overflow = x->reply.length == 0;
    x->tail[x->tail_count++] = (struct http_text){of->o, o_bytes};
    if (out->lse)
        x->tail[x->tail_count++] = (struct http_text){(const char *)of->lse, lse_bytes};
}

static void render_output(struct http_exchange *x, const struct request *request, const struct output *out,
                          const struct render_context *c)
{
    if (answer_of(request)->wants_tensors)
        send_tensors(x, out, &c->config->geometry);
    else
        write_output(&x->reply, out, &c->config->geometry);
}

/* ---- append and attend ----------------------------------------------------------------------------- */

/* The answer of an append has a number for every layer of every sequence, and must have room: what was
 * appended cannot be taken back. */
static int limit_lengths(struct http_exchange *x, const struct request *request, const struct geometry *g)
{
    enum { NUMBER_BYTES = 11, SEQUENCE_BYTES = 64 };
    uint64_t bytes =
        (uint64_t)request->attend.sequence_count * (SEQUENCE_BYTES + (uint64_t)g->layers * NUMBER_BYTES);
    if (bytes + SEQUENCE_BYTES <= HTTP_REPLY_BYTES_MAX)
        return 0;
    http_problem(x, ATTND_INVALID, "%u sequences of %u layers are too many for one answer",
                 request->attend.sequence_count, g->layers);
    return ATTND_INVALID;
}

static const struct tensor_spec attend_tensors[] = {
    {"sequences", TENSOR_INTEGERS}, {"indptr", TENSOR_INTEGERS}, {"positions", TENSOR_INTEGERS},
    {"token_ids", TENSOR_INTEGERS}, {"k", TENSOR_VALUES},        {"v", TENSOR_VALUES},
    {"q", TENSOR_VALUES},           {NULL, TENSOR_VALUES}};

static const struct tensor_spec append_tensors[] = {
    {"sequences", TENSOR_INTEGERS}, {"indptr", TENSOR_INTEGERS}, {"positions", TENSOR_INTEGERS},
    {"token_ids", TENSOR_INTEGERS}, {"k", TENSOR_VALUES},        {"v", TENSOR_VALUES},
    {NULL, TENSOR_VALUES}};

/* Rows of sequences; with q or without. */
static int read_rows(struct tensor_body *b, bool attend)
{
    struct request *request = b->request;
    int rc = read_layer(b);
    if (rc == 0)
        rc = read_sequences(b);
    if (rc == 0 && attend)
        rc = read_queries(b, true);
    if (rc == 0)
        rc = api_read_keys_and_values(b, request->rows.count, !attend, !attend);
    if (rc == 0 && !request->rows.k && tensors_find(b, "token_ids"))
        rc = tensors_refuse(b, "token_ids", "belongs to k and v, which are missing");
    return rc == 0 ? tensors_tokens(b, "token_ids", request->rows.count, &request->attend.tokens) : rc;
}

static int parse_append(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"layer", NULL};
    const struct geometry *g = &config->geometry;
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, g, names, append_tensors);
    if (rc == 0)
        rc = read_rows(&b, false);
    tensors_close(&b);
    return rc == 0 ? limit_lengths(x, request, g) : rc;
}

static int parse_attend(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"layer", "lse", "kernel", "accept", NULL};
    const struct geometry *g = &config->geometry;
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, g, names, attend_tensors);
    if (rc == 0)
        rc = read_rows(&b, true);
    if (rc == 0)
        rc = read_wishes(&b);
    tensors_close(&b);
    return rc == 0 ? limit_json(x, request, request->rows.count, g) : rc;
}

static void render_append(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_attend *append = &request->attend;
    uint32_t layers = c->config->geometry.layers;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < append->view_count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", append->views[i].id);
        json_uint(w, "length", append->views[i].length);
        api_write_lengths(w, append->lengths + (size_t)i * layers, layers);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

static void render_attend(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_rows *rows = &request->rows;
    const struct output out = output_of(request, &rows->out, rows->count, rows->kernel, c);
    render_output(x, request, &out, c);
}

/* ---- tables of the caller's own -------------------------------------------------------------------- */

/* An optional tensor of integers of that rank, as they are. */
static int read_list(struct tensor_body *b, const char *name, unsigned rank, struct paged_list *list)
{
    const struct named_tensor *t = tensors_find(b, name);
    if (!t)
        return 0;
    if (!tensors_is(t, "I32", rank, t->shape) && !tensors_is(t, "I64", rank, t->shape))
        return tensors_mismatch(b, name, "wants %s of integers (I32 or I64)", rank == 2 ? "lists" : "a list");
    list->columns = t->shape[rank - 1];
    list->n = (t->end - t->begin) / safetensors_dtype_bytes(t->dtype);
    int64_t *values = request_alloc(b->request, list->n, sizeof *values);
    if (!values)
        return tensors_refuse(b, name, "is too long for one call");
    for (uint64_t i = 0; i < list->n; i++)
        (void)tensors_integer(t, i, &values[i]); /* signed: any will do */
    list->values = values;
    return 0;
}

static int read_paged(struct tensor_body *b, const struct config *config)
{
    struct paged_lists lists = {0};
    struct paged_refusal refusal = {0};
    int64_t lease = 0;
    int rc = read_layer(b);
    if (rc == 0)
        rc = arguments_integer(&b->arguments, "lease", 1, ID_MAX, &lease);
    b->request->id = (uint64_t)lease;
    b->request->of_leases = true;
#define XX(name)                                                                                             \
    if (rc == 0)                                                                                             \
        rc = read_list(b, #name, &lists.name == &lists.block_tables ? 2 : 1, &lists.name);
    PAGED_LISTS(XX)
#undef XX
    if (rc == 0 && paged_build(b->request, config, &lists, tensors_find(b, "q"),
                               tensors_find(b, "k") || tensors_find(b, "v"), &refusal) != 0)
        rc = tensors_refuse(b, refusal.name, refusal.wants);
    if (rc == 0)
        rc = read_queries(b, false);
    if (rc == 0)
        rc = api_read_keys_and_values(b, b->request->paged.tokens, false, false);
    if (rc == 0 && !lease)
        rc = arguments_refuse(&b->arguments, "lease", "is missing: POST /v1/leases reserves blocks");
    return rc == 0 ? read_wishes(b) : rc;
}

static int parse_paged(struct http_exchange *x, struct request *request, const struct config *config)
{
#define XX(name) {#name, TENSOR_INTEGERS},
    static const struct tensor_spec specs[] = {
        PAGED_LISTS(XX){"q", TENSOR_VALUES},
        {"k", TENSOR_VALUES},
        {"v", TENSOR_VALUES},
        {NULL, TENSOR_VALUES}
    };
#undef XX
    static const char *const names[] = {"lease", "layer", "lse", "kernel", "accept", NULL};
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, &config->geometry, names, specs);
    if (rc == 0)
        rc = read_paged(&b, config);
    tensors_close(&b);
    return rc == 0 ? limit_json(x, request, request->rows.count, &config->geometry) : rc;
}

/* Without q: k and v that were written and not read. */
static void render_paged(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    uint32_t n = 0;
    if (request->rows.q) {
        render_attend(x, request, c);
        return;
    }
    for (uint32_t i = 0; i < request->paged.tokens; i++)
        n += request->paged.slots[i] >= 0;
    json_open(w, NULL, '{');
    json_uint(w, "tokens", n);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- merge ----------------------------------------------------------------------------------------- */

static int read_states(struct tensor_body *b)
{
    const struct named_tensor *o = tensors_find(b, "o"), *lse = tensors_find(b, "lse");
    const struct geometry *g = b->g;
    const char *dtype = safetensors_dtype_name(g->dtype);
    struct request_merge *merge = &b->request->merge;
    uint64_t n = o && o->rank == 4 ? o->shape[0] : 0, rows = n ? o->shape[1] : 0;
    const uint64_t shape[] = {n, rows, g->query_heads, g->head_dim};
    char text[192];
    if (n == 0 || rows == 0 || !tensors_is(o, dtype, 4, shape))
        return tensors_mismatch(b, "o", "wants %s [n, T, %u, %u], n and T at least 1", dtype, g->query_heads,
                                g->head_dim);
    if (!tensors_is(lse, "F32", 3, shape))
        return tensors_mismatch(b, "lse", "wants F32 [%llu, %llu, %u], as o is", (unsigned long long)n,
                                (unsigned long long)rows, g->query_heads);
    merge->states = (uint32_t)n; /* a body of 64 MiB has fewer than 2^32 of anything */
    merge->rows = (uint32_t)rows;
    const float *values = tensors_data(b, lse);
    merge->lse = values;
    merge->o = values ? tensors_data(b, o) : NULL;
    if (!merge->o)
        return ATTND_BUSY;
    size_t heads = (size_t)n * rows * g->query_heads, bad = 0;
    while (bad < heads && !isnan(values[bad]))
        bad++;
    snprintf(text, sizeof text,
             "state %zu, row %zu, head %zu: wants a number, minus infinity for a state without keys",
             bad / g->query_heads / rows, bad / g->query_heads % rows, bad % g->query_heads);
    if (bad < heads)
        return tensors_refuse(b, "lse", text);
    bad = numeric_first_unsummable(g->dtype, merge->o, heads * g->head_dim);
    if (bad == heads * g->head_dim)
        return 0;
    const char *wrong = request_wrong_element(g->dtype, merge->o, bad);
    bad /= g->head_dim;
    snprintf(text, sizeof text, "state %zu, row %zu, head %zu is %s", bad / g->query_heads / rows,
             bad / g->query_heads % rows, bad % g->query_heads, wrong);
    return tensors_refuse(b, "o", text);
}

static int parse_merge(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const struct tensor_spec specs[] = {
        {"o", TENSOR_VALUES}, {"lse", TENSOR_FLOATS}, {NULL, TENSOR_VALUES}};
    static const char *const names[] = {"accept", NULL};
    static const char *const formats[] = {"json", "safetensors"};
    struct tensor_body b;
    unsigned format = tensors_wanted(x);
    int rc = tensors_open(&b, x, request, &config->geometry, names, specs);
    if (rc == 0)
        rc = arguments_word(&b.arguments, "accept", formats, 2, &format);
    if (rc == 0)
        rc = read_states(&b);
    tensors_close(&b);
    answer_of(request)->wants_lse = true;
    answer_of(request)->wants_tensors = format == 1;
    return rc == 0 ? limit_json(x, request, request->merge.rows, &config->geometry) : rc;
}

static void render_merge(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_merge *merge = &request->merge;
    const struct output out = output_of(request, &merge->out, merge->rows, ATTENTION_AUTO, c);
    render_output(x, request, &out, c);
}

static const struct api_schema schemas[] = {
    {"Append",
     "{layer?:uint sequences:[id] indptr?:[uint] positions?:[uint] token_ids?:[uint] k:[any] v:[any]}"},
    {"Appended", "{sequences:[{id:id length:uint lengths:[uint]}]}"},
    {"Attend", "{layer?:uint sequences:[id] indptr?:[uint] positions?:[uint] token_ids?:[uint] k?:[any] "
               "v?:[any] q:[any] lse?:bool kernel?:(auto|paged_v1|paged_v2) accept?:(json|safetensors)}"},
    {"Outputs", "{o:[[[number]]] lse?:[[number?]] queue_us:number step_us:number rows_in_step:uint "
                "bytes_read:uint roof_fraction:number above_roof?:text kernel:text}"},
    {"Paged", "{lease:id layer?:uint lse?:bool kernel?:(auto|paged_v1|paged_v2) accept?:(json|safetensors) "
              "block_tables?:[[int]] context_lens?:[uint] kv_indptr?:[uint] kv_indices?:[int] "
              "kv_last_page_len?:[uint] indptr?:[uint] slot_mapping?:[int] q?:[any] k?:[any] v?:[any]}"},
    {"Written", "{tokens:uint}"},
    {"Merge", "{o:[any] lse:[any] accept?:(json|safetensors)}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK(POST, "/v1/append", INFER, APPEND, TENSORS, parse_append, render_append, 200,
        "Write k and v at the end of sequences", "layer?:uint", "Append", "Appended", 0),
    ASK_TYPES(POST, "/v1/attend", INFER, ATTEND, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_attend,
              render_attend, 200, "Attention of q over sequences; k and v, if given, are appended first",
              "layer?:uint lse?:uint(0..1) kernel?:(auto|paged_v1|paged_v2) accept?:(json|safetensors)",
              "Attend", "Outputs", 0),
    ASK_TYPES(
        POST, "/v1/paged", INFER, PAGED, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_paged, render_paged, 200,
        "Attention over block tables of the caller's own, in leased blocks",
        "lease?:id layer?:uint lse?:uint(0..1) kernel?:(auto|paged_v1|paged_v2) accept?:(json|safetensors)",
        "Paged", "Outputs|Written", 0),
    ASK_TYPES(POST, "/v1/merge", INFER, MERGE, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_merge, render_merge,
              200, "Merge attention states over disjoint keys", "accept?:(json|safetensors)", "Merge",
              "Outputs", 0),
    {0},
};

const struct api_resource api_attention = {routes, schemas};
