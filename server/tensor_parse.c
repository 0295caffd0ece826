/* tensor_parse.c - see tensor_parse.h. */
#include "server/tensor_parse.h"

#include "kernels/numeric.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/body.h"
#include "server/paged_parse.h"
#include "server/safetensors.h"

#include <math.h>
#include <string.h>

enum { TENSOR_ALIGNMENT = 8 }; /* attention.h */

/* A body being read. */
struct tensor_body {
    struct http_exchange *x;
    struct request *request;
    const struct geometry *g;
    struct safetensors tensors;
};

bool tensor_parse_wanted(const struct http_exchange *x)
{
    return body_is_type(x->head.body_type, "application/x-safetensors") ||
           body_is_type(x->head.body_type, "application/octet-stream");
}

static int refuse(const struct tensor_body *b, const char *name, const char *wants)
{
    char pointer[SAFETENSORS_NAME_BYTES + 1];
    snprintf(pointer, sizeof pointer, "/%s", name);
    http_problem_at(b->x, ATTND_INVALID, pointer, wants);
    return ATTND_INVALID;
}

/* Parse the body; its tensors are all in `names` (NULL-terminated). */
static int open_tensors(struct tensor_body *b, const char *const *names)
{
    char reason[SAFETENSORS_REASON_BYTES];
    int rc = safetensors_parse(b->x->body.bytes, b->x->body.n, &b->tensors, reason);
    if (rc != 0)
        http_problem(b->x, rc, "%s", reason);
    for (unsigned i = 0; rc == 0 && i < b->tensors.count; i++) {
        size_t n = 0;
        while (names[n] && strcmp(b->tensors.tensors[i].name, names[n]) != 0)
            n++;
        if (!names[n])
            rc = refuse(b, b->tensors.tensors[i].name, "there is no such tensor, or it is not built yet");
    }
    return rc;
}

/* ---- integers ------------------------------------------------------------------------------------ */

/* Element i of an integer tensor; false when it is negative or 2^63 and more. */
static bool integer_at(const struct safetensor *t, uint64_t i, uint64_t *value)
{
    size_t size = safetensors_dtype_bytes(t->dtype);
    *value = 0;
    memcpy(value, t->data + i * size, size); /* little-endian, as every host that we build for */
    bool is_signed = t->dtype[0] == 'I';
    return *value >> (8 * size - 1) == 0 || (!is_signed && size < 8);
}

static bool is_integers(const struct safetensor *t, uint64_t n)
{
    return t && t->rank == 1 && t->shape[0] == n &&
           (strcmp(t->dtype, "I64") == 0 || strcmp(t->dtype, "I32") == 0 || strcmp(t->dtype, "U64") == 0);
}

static int read_sequences(struct tensor_body *b)
{
    const struct safetensor *ids = safetensors_find(&b->tensors, "sequences"),
                            *indptr = safetensors_find(&b->tensors, "indptr"),
                            *positions = safetensors_find(&b->tensors, "positions");
    struct request *request = b->request;
    uint64_t n = ids && ids->rank == 1 ? ids->shape[0] : 0, from, to;
    if (n == 0 || !is_integers(ids, n))
        return refuse(b, "sequences", "wants U64 or I64 [S]");
    if (positions && !is_integers(positions, n))
        return refuse(b, "positions", "wants I64 [S], one for each sequence");
    request->attend.sequences = request_alloc(request, n, sizeof *request->attend.sequences);
    if (!request->attend.sequences)
        return refuse(b, "sequences", "is too long");
    for (; request->attend.sequence_count < n; request->attend.sequence_count++) {
        uint64_t id, position = REQUEST_POSITION_ABSENT;
        if (!integer_at(ids, request->attend.sequence_count, &id) || id < 1 || id > REQUEST_ID_MAX)
            return refuse(b, "sequences", "has an id that is not in 1..2^53-1");
        if (positions &&
            (!integer_at(positions, request->attend.sequence_count, &position) || position > INT32_MAX))
            return refuse(b, "positions", "has one that is not in 0..2^31-1");
        request->attend.sequences[request->attend.sequence_count] =
            (struct request_sequence){.id = id, .rows = 1, .position = (uint32_t)position};
    }
    request->rows.count = request->attend.sequence_count;
    if (!indptr)
        return 0;
    if (!is_integers(indptr, n + 1) || !integer_at(indptr, 0, &from) || from != 0)
        return refuse(b, "indptr", "wants I32 or I64 [S+1], rising from 0");
    for (uint32_t i = 0; i < n; i++, from = to) {
        if (!integer_at(indptr, i + 1, &to) || to <= from || to > INT32_MAX)
            return refuse(b, "indptr", "wants I32 or I64 [S+1], rising from 0, each by at least 1");
        request->attend.sequences[i].rows = (uint32_t)(to - from);
    }
    request->rows.count = (uint32_t)from;
    return 0;
}

/* An optional tensor of token ids, `n` of them (UINT64_MAX: any number), into `tokens`. */
static int read_tokens(struct tensor_body *b, const char *name, uint64_t n, const char *wants,
                       struct request_tokens *tokens)
{
    const struct safetensor *t = safetensors_find(&b->tensors, name);
    uint64_t id;
    if (!t)
        return 0;
    n = n == UINT64_MAX && t->rank == 1 ? t->shape[0] : n;
    if (!is_integers(t, n))
        return refuse(b, name, wants);
    tokens->ids = request_alloc(b->request, n, sizeof *tokens->ids);
    if (!tokens->ids)
        return refuse(b, name, "is too long");
    for (uint64_t i = 0; i < n; i++) {
        if (!integer_at(t, i, &id) || id > UINT32_MAX)
            return refuse(b, name, "has an id that is not in 0..4294967295");
        tokens->ids[tokens->count++] = (uint32_t)id;
    }
    return 0;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

/* The data of a tensor: where it lies, or a copy. NULL: there is no room. */
static const void *take_data(struct tensor_body *b, const struct safetensor *t)
{
    if (b->x->staging && (uintptr_t)t->data % TENSOR_ALIGNMENT == 0)
        return t->data;
    answer_of(b->request)->copied++;
    void *copy = request_tensor(b->request, t->end - t->begin, 1);
    if (copy)
        memcpy(copy, t->data, t->end - t->begin);
    return copy;
}

/* A tensor [n][heads][head_dim], all finite; with `layered`, [layers] may come before. Its format is
 * geometry.dtype or `other`. */
static int read_rows(struct tensor_body *b, const char *name, bool required, uint32_t n, uint32_t heads,
                     enum dtype other, bool layered, const void **rows, enum dtype *dtype)
{
    const struct safetensor *t = safetensors_find(&b->tensors, name);
    const struct geometry *g = b->g;
    char wants[160];
    if (!t)
        return required ? refuse(b, name, "is missing") : 0;
    bool all = layered && t->rank == 4 && t->shape[0] == g->layers;
    const uint64_t *shape = t->shape + all;
    *dtype = strcmp(t->dtype, safetensors_dtype_name(other)) == 0 ? other : g->dtype;
    if (strcmp(t->dtype, safetensors_dtype_name(*dtype)) != 0 || t->rank != 3U + all || shape[0] != n ||
        shape[1] != heads || shape[2] != g->head_dim) {
        snprintf(wants, sizeof wants, "wants %s%s%s [%u, %u, %u]%s", safetensors_dtype_name(g->dtype),
                 other == g->dtype ? "" : " or ", other == g->dtype ? "" : safetensors_dtype_name(other), n,
                 heads, g->head_dim, layered ? ", or with [layers, ...] before" : "");
        return refuse(b, name, wants);
    }
    size_t elements = (size_t)n * heads * g->head_dim * (all ? g->layers : 1);
    *rows = take_data(b, t);
    if (!*rows)
        return body_no_room(b->x);
    size_t bad = numeric_first_nonfinite(*dtype, *rows, elements);
    if (bad == elements)
        return 0;
    snprintf(wants, sizeof wants, "row %zu, head %zu, element %zu is not finite",
             bad / g->head_dim / heads % n, bad / g->head_dim % heads, bad % g->head_dim);
    return refuse(b, name, wants);
}

/* k and v of n rows: both or, if they are not `required`, none. With `layered` they may be those of all
 * layers. */
static int read_keys_and_values(struct tensor_body *b, uint32_t n, bool required, bool layered)
{
    const struct geometry *g = b->g;
    struct request *request = b->request;
    enum dtype dtype_of_v = request->rows.kv_source;
    const struct safetensor *k = safetensors_find(&b->tensors, "k"), *v = safetensors_find(&b->tensors, "v");
    int rc = read_rows(b, "k", required, n, g->kv_heads, g->kv_dtype, layered, &request->rows.k,
                       &request->rows.kv_source);
    if (rc == 0)
        rc = read_rows(b, "v", required, n, g->kv_heads, g->kv_dtype, layered, &request->rows.v, &dtype_of_v);
    if (rc != 0 || (!k && !v))
        return rc;
    if (!k || !v)
        return refuse(b, k ? "v" : "k", "is missing: k and v come together");
    request->rows.all_layers = k->rank == 4;
    if (k->rank != v->rank || request->rows.kv_source != dtype_of_v)
        return refuse(b, "v", "wants the dtype and shape of k");
    if (request->rows.all_layers && request->rows.layer)
        return refuse(b, "k", "has all layers: ?layer= goes with the k and v of one");
    return 0;
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* kernel= one of those that can be named. */
static bool query_kernel(struct http_text text, struct request *request)
{
    struct http_text name;
    return query_is(text, "kernel", &name) && api_read_kernel(name, &request->rows.kernel);
}

/* ?layer=N; for what computes &lse=1 &kernel= &accept=json; with a lease &lease=N */
static int read_rows_query(struct tensor_body *b, bool attend, bool leased)
{
    static const char simple[] = "wants layer=N below the number of layers",
                      computing[] = "wants layer=N below the number of layers, lse=1, "
                                    "kernel=auto|paged_v1|paged_v2 or accept=json",
                      paged[] = "wants lease=ID, layer=N below the number of layers, lse=1, "
                                "kernel=auto|paged_v1|paged_v2 or accept=json";
    struct request *request = b->request;
    struct http_text text;
    uint64_t value;
    answer_of(request)->wants_tensors = attend;
    for (size_t at = 0; query_next(b->x->head.query, &at, &text);) {
        if (query_number(text, "layer", &value) && value < b->g->layers)
            request->rows.layer = (uint32_t)value;
        else if (attend && query_number(text, "lse", &value) && value <= 1)
            answer_of(request)->wants_lse = value;
        else if (leased && query_number(text, "lease", &value) && value >= 1 && value <= REQUEST_ID_MAX)
            request->id = value;
        else if (attend && http_text_is(text, "accept=json"))
            answer_of(request)->wants_tensors = false;
        else if (!attend || !query_kernel(text, request))
            return query_refuse(b->x, text, leased ? paged : attend ? computing : simple);
    }
    return 0;
}

int tensor_parse_rows(struct http_exchange *x, struct request *request, const struct config *config,
                      bool attend)
{
    static const char *const names[] = {"sequences", "indptr", "positions", "k", "v", "token_ids", "q", NULL},
                             *const append_names[] = {"sequences", "indptr",    "positions", "k",
                                                      "v",         "token_ids", NULL};
    struct tensor_body b = {.x = x, .request = request, .g = &config->geometry};
    enum dtype dtype_of_q;
    request->rows.kv_source = b.g->dtype;
    int rc = read_rows_query(&b, attend, false);
    if (rc == 0)
        rc = open_tensors(&b, attend ? names : append_names);
    if (rc == 0)
        rc = read_sequences(&b);
    if (rc == 0 && attend)
        rc = read_rows(&b, "q", true, request->rows.count, b.g->query_heads, b.g->dtype, false,
                       &request->rows.q, &dtype_of_q);
    if (rc == 0)
        rc = read_keys_and_values(&b, request->rows.count, !attend, !attend);
    if (rc == 0 && !request->rows.k && safetensors_find(&b.tensors, "token_ids"))
        rc = refuse(&b, "token_ids", "wants I64 [T], beside k and v");
    return rc == 0 ? read_tokens(&b, "token_ids", request->rows.count, "wants I64 [T], beside k and v",
                                 &request->attend.tokens)
                   : rc;
}

/* An optional tensor of integers of that rank, as they are. */
static int read_list(struct tensor_body *b, const char *name, unsigned rank, struct paged_list *list)
{
    const struct safetensor *t = safetensors_find(&b->tensors, name);
    if (!t)
        return 0;
    bool wide = strcmp(t->dtype, "I64") == 0;
    if (t->rank != rank || (!wide && strcmp(t->dtype, "I32") != 0))
        return refuse(b, name, rank == 2 ? "wants I32 or I64 [S, M]" : "wants I32 or I64, a list");
    list->columns = t->shape[rank - 1];
    list->n = (t->end - t->begin) / safetensors_dtype_bytes(t->dtype);
    int64_t *values = request_alloc(b->request, list->n, sizeof *values);
    if (!values)
        return refuse(b, name, "is too long for one call");
    for (uint64_t i = 0; i < list->n; i++) {
        int32_t narrow;
        if (wide) {
            memcpy(&values[i], t->data + i * sizeof *values, sizeof *values);
            continue;
        }
        memcpy(&narrow, t->data + i * sizeof narrow, sizeof narrow);
        values[i] = narrow;
    }
    list->values = values;
    return 0;
}

int tensor_parse_paged(struct http_exchange *x, struct request *request, const struct config *config)
{
#define XX(name) #name,
    static const char *const names[] = { PAGED_LISTS(XX) "q", "k", "v", NULL };
#undef XX
    struct tensor_body b = {.x = x, .request = request, .g = &config->geometry};
    struct paged_lists lists = {0};
    enum dtype dtype_of_q;
    request->rows.kv_source = b.g->dtype;
    int rc = read_rows_query(&b, true, true);
    if (rc == 0)
        rc = open_tensors(&b, names);
#define XX(name)                                                                                             \
    if (rc == 0)                                                                                             \
        rc = read_list(&b, #name, &lists.name == &lists.block_tables ? 2 : 1, &lists.name);
    PAGED_LISTS(XX)
#undef XX
    bool has_q = rc == 0 && safetensors_find(&b.tensors, "q"),
         has_kv = rc == 0 && (safetensors_find(&b.tensors, "k") || safetensors_find(&b.tensors, "v"));
    if (rc == 0)
        rc = paged_build(x, request, config, &lists, has_q, has_kv);
    if (rc == 0)
        rc = read_rows(&b, "q", false, request->rows.count, b.g->query_heads, b.g->dtype, false,
                       &request->rows.q, &dtype_of_q);
    return rc == 0 ? read_keys_and_values(&b, request->paged.tokens, false, false) : rc;
}

/* ?id= &salt= &max_tokens= &priority= &idle_timeout_s= */
static int read_create_query(struct tensor_body *b, const struct config *config)
{
    struct request *request = b->request;
    struct http_text text, salt;
    int64_t value;
    for (size_t at = 0; query_next(b->x->head.query, &at, &text);) {
        if (query_integer(text, "id", 1, (int64_t)REQUEST_ID_MAX, &value))
            request->id = (uint64_t)value;
        else if (query_integer(text, "max_tokens", 1, config->limits.sequence_tokens, &value))
            request->create.options.max_tokens = (uint32_t)value;
        else if (query_integer(text, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &value))
            request->create.options.priority = (int32_t)value;
        else if (query_integer(text, "idle_timeout_s", 0, REQUEST_IDLE_S_MAX, &value))
            request->create.options.idle_timeout_s = (uint32_t)value;
        else if (query_is(text, "salt", &salt) && salt.n >= 1 && salt.n <= sizeof request->create.salt &&
                 !memchr(salt.bytes, '%', salt.n) && !memchr(salt.bytes, '+', salt.n)) {
            request->create.salt_bytes = (uint32_t)salt.n;
            memcpy(request->create.salt, salt.bytes, salt.n);
        } else {
            return query_refuse(b->x, text,
                                "wants id=, max_tokens=, priority=, idle_timeout_s= with an integer in "
                                "its range, or salt= with up to 64 plain characters");
        }
    }
    return 0;
}

int tensor_parse_create(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"tokens", NULL};
    struct tensor_body b = {.x = x, .request = request, .g = &config->geometry};
    int rc = read_create_query(&b, config);
    if (rc == 0)
        rc = open_tensors(&b, names);
    return rc == 0 ? read_tokens(&b, "tokens", UINT64_MAX, "wants I32 or I64 [N]", &request->create.tokens)
                   : rc;
}

/* An optional F32 tensor [rows][columns] (rows 0: [columns]) of finite numbers, `positive` ones if so. */
static int read_constants(struct tensor_body *b, const char *name, uint32_t rows, uint32_t columns,
                          bool positive, float **to)
{
    const struct safetensor *t = safetensors_find(&b->tensors, name);
    char wants[96];
    if (!t)
        return 0;
    size_t n = (size_t)(rows ? rows : 1) * columns;
    bool shaped = rows ? t->rank == 2 && t->shape[0] == rows && t->shape[1] == columns
                       : t->rank == 1 && t->shape[0] == columns;
    if (strcmp(t->dtype, "F32") != 0 || !shaped) {
        if (rows)
            snprintf(wants, sizeof wants, "wants F32 [%u, %u]", rows, columns);
        else
            snprintf(wants, sizeof wants, "wants F32 [%u]", columns);
        return refuse(b, name, wants);
    }
    *to = request_alloc(b->request, n, sizeof **to);
    if (!*to)
        return refuse(b, name, "is too large");
    memcpy(*to, t->data, n * sizeof **to);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((*to)[i]) || (positive && !((*to)[i] > 0)))
            return refuse(b, name, positive ? "wants finite numbers above 0" : "wants finite numbers");
    }
    return 0;
}

int tensor_parse_parameters(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"sinks", "alibi_slopes", "k_scale", "v_scale", NULL};
    const struct geometry *g = &config->geometry;
    struct tensor_body b = {.x = x, .request = request, .g = g};
    struct model_constants *c = &request->parameters;
    int rc = query_none(x);
    if (rc == 0 && !tensor_parse_wanted(x)) {
        http_problem(x, ATTND_BAD_TYPE, "send safetensors, as application/x-safetensors");
        rc = ATTND_BAD_TYPE;
    }
    if (rc == 0)
        rc = open_tensors(&b, names);
    if (rc == 0)
        rc = read_constants(&b, "sinks", g->layers, g->query_heads, false, &c->sinks);
    if (rc == 0)
        rc = read_constants(&b, "alibi_slopes", 0, g->query_heads, false, &c->alibi);
    if (rc == 0)
        rc = read_constants(&b, "k_scale", g->layers, g->kv_heads, true, &c->k_scale);
    if (rc == 0)
        rc = read_constants(&b, "v_scale", g->layers, g->kv_heads, true, &c->v_scale);
    if (rc == 0 && c->sinks && g->layout == LAYOUT_VLLM)
        rc = refuse(&b, "sinks", "the kernels of the layout vllm know no sinks");
    if (rc == 0 && (c->k_scale || c->v_scale) && !dtype_is_fp8(g->kv_dtype))
        rc = refuse(&b, c->k_scale ? "k_scale" : "v_scale", "only fp8 has scales");
    return rc;
}

int tensor_parse_states(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"o", "lse", NULL};
    const struct geometry *g = &config->geometry;
    struct tensor_body b = {.x = x, .request = request, .g = g};
    char wants[128];
    int rc = query_none(x);
    if (rc == 0)
        rc = open_tensors(&b, names);
    if (rc != 0)
        return rc;
    const struct safetensor *o = safetensors_find(&b.tensors, "o"),
                            *lse = safetensors_find(&b.tensors, "lse");
    snprintf(wants, sizeof wants, "wants %s [n, T, %u, %u], n and T at least 1",
             safetensors_dtype_name(g->dtype), g->query_heads, g->head_dim);
    if (!o || strcmp(o->dtype, safetensors_dtype_name(g->dtype)) != 0 || o->rank != 4 || o->shape[0] == 0 ||
        o->shape[1] == 0 || o->shape[2] != g->query_heads || o->shape[3] != g->head_dim)
        return refuse(&b, "o", wants);
    request->merge.states = (uint32_t)o->shape[0]; /* a body of 64 MiB has fewer than 2^32 of anything */
    request->merge.rows = (uint32_t)o->shape[1];
    answer_of(request)->wants_tensors = true;
    snprintf(wants, sizeof wants, "wants F32 [%u, %u, %u], as o is", request->merge.states,
             request->merge.rows, g->query_heads);
    if (!lse || strcmp(lse->dtype, "F32") != 0 || lse->rank != 3 || lse->shape[0] != request->merge.states ||
        lse->shape[1] != request->merge.rows || lse->shape[2] != g->query_heads)
        return refuse(&b, "lse", wants);
    size_t heads = (size_t)request->merge.states * request->merge.rows * g->query_heads;
    const float *values = take_data(&b, lse);
    request->merge.o = take_data(&b, o);
    request->merge.lse = values;
    if (!values || !request->merge.o)
        return body_no_room(x);
    for (size_t i = 0; i < heads; i++) {
        if (!(values[i] < INFINITY))
            return refuse(&b, "lse", "wants numbers, or minus infinity for a state without keys");
    }
    if (numeric_first_nonfinite(g->dtype, request->merge.o, heads * g->head_dim) != heads * g->head_dim)
        return refuse(&b, "o", "wants finite numbers");
    return 0;
}
