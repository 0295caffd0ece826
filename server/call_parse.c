/* call_parse.c - see call_parse.h. */
#include "server/call_parse.h"

#include "kernels/numeric.h"
#include "server/body.h"
#include "server/safetensors.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORKS_MAX = 1000,
    PAGE_DEFAULT = 100,
    JSON_NUMBERS_MAX = 100000 /* of an answer */
};

static const int64_t ID_MAX = (INT64_C(1) << 53) - 1;

/* ---- small requests ------------------------------------------------------------------------------ */

int call_parse_nothing(struct http_exchange *x, struct call *call, const struct config *config)
{
    (void)call;
    (void)config;
    int rc = query_none(x);
    return rc == 0 ? body_none(x) : rc;
}

int call_parse_page(struct http_exchange *x, struct call *call, const struct config *config)
{
    (void)config;
    call->limit = PAGE_DEFAULT;
    struct http_text text;
    uint64_t value;
    for (size_t at = 0; query_next(x->query, &at, &text);) {
        if (query_number(text, "limit", &value) && value >= 1 && value <= CALL_PAGE_MAX)
            call->limit = (uint32_t)value;
        else if (query_number(text, "cursor", &value) && value <= UINT32_MAX)
            call->cursor = value;
        else
            return query_refuse(x, text, "wants limit=1..1000 or cursor=N");
    }
    return body_none(x);
}

/* A body being read. */
struct body {
    struct http_exchange *x;
    cJSON *tree;
};

static int open_body(struct body *b, struct http_exchange *x, const char *const *names)
{
    b->x = x;
    return body_open(x, names, &b->tree);
}

static int refuse(struct body *b, const char *member, const char *wants)
{
    return member_wrong(b->x, "", member, wants);
}

static const cJSON *member(const struct body *b, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(b->tree, name);
}

static int read_integer(struct body *b, const char *name, int64_t min, int64_t max, int64_t *value)
{
    return member_integer(b->x, "", b->tree, name, min, max, value);
}

/* An optional list of token ids into call->tokens, `count` of them (UINT32_MAX: any number). */
static int read_tokens(struct body *b, const char *name, struct call *call, uint32_t count)
{
    const cJSON *list = member(b, name), *item;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    int64_t id;
    if (!list)
        return 0;
    if (n < 0 || (count != UINT32_MAX && (uint32_t)n != count))
        return refuse(b, name, "wants a list of token ids, one for each row");
    call->tokens = call_alloc(call, (size_t)n, sizeof *call->tokens);
    if (!call->tokens)
        return refuse(b, name, "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 0, UINT32_MAX, &id))
            return refuse(b, name, "wants integers in 0..4294967295");
        call->tokens[call->token_count++] = (uint32_t)id;
    }
    return 0;
}

static int read_salt(struct body *b, struct call *call)
{
    const cJSON *salt = member(b, "salt");
    size_t n = cJSON_IsString(salt) ? strlen(salt->valuestring) : 0;
    if (!salt)
        return 0;
    if (!cJSON_IsString(salt) || n > sizeof call->salt)
        return refuse(b, "salt", "wants a string of at most 64 bytes");
    memcpy(call->salt, salt->valuestring, n);
    call->salt_bytes = (uint32_t)n;
    return 0;
}

int call_parse_create(struct http_exchange *x, struct call *call, const struct config *config)
{
    static const char *const names[] = {"id", "tokens", "salt", NULL};
    struct body b;
    int64_t id = 0;
    (void)config;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = read_tokens(&b, "tokens", call, UINT32_MAX);
    if (rc == 0)
        rc = read_salt(&b, call);
    cJSON_Delete(b.tree);
    call->id = (uint64_t)id;
    return rc;
}

int call_parse_fork(struct http_exchange *x, struct call *call, const struct config *config)
{
    static const char *const names[] = {"count", "length", NULL};
    struct body b;
    int64_t count = 1, length = UINT32_MAX;
    (void)config;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "count", 1, FORKS_MAX, &count);
    if (rc == 0)
        rc = read_integer(&b, "length", 0, UINT32_MAX - 1, &length);
    cJSON_Delete(b.tree);
    call->count = (uint32_t)count;
    call->length = (uint32_t)length;
    return rc;
}

int call_parse_truncate(struct http_exchange *x, struct call *call, const struct config *config)
{
    static const char *const names[] = {"length", NULL};
    struct body b;
    int64_t length = -1;
    (void)config;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0 && length < 0)
        rc = refuse(&b, "length", "is missing");
    cJSON_Delete(b.tree);
    call->length = (uint32_t)length;
    return rc;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

/* "sequences" and "indptr": which sequences, and how many rows of each. */
static int read_sequences(struct body *b, struct call *call)
{
    const cJSON *list = member(b, "sequences"), *indptr = member(b, "indptr"), *item;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    int64_t id, from, to;
    if (n == 0)
        return refuse(b, "sequences", "wants a list of sequence ids");
    call->sequences = call_alloc(call, (size_t)n, sizeof *call->sequences);
    if (!call->sequences)
        return refuse(b, "sequences", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return refuse(b, "sequences", "wants a list of sequence ids");
        call->sequences[call->sequence_count++] = (struct call_sequence){(uint64_t)id, 1};
    }
    call->rows = call->sequence_count;
    if (!indptr)
        return 0;
    item = cJSON_IsArray(indptr) && cJSON_GetArraySize(indptr) == n + 1 ? indptr->child : NULL;
    if (!json_is_integer(item, 0, 0, &from))
        return refuse(b, "indptr", "wants one number more than sequences, rising from 0");
    for (uint32_t i = 0; i < call->sequence_count; i++, from = to) {
        item = item ? item->next : NULL;
        if (!json_is_integer(item, from + 1, INT32_MAX, &to))
            return refuse(b, "indptr",
                          "wants one number more than sequences, rising from 0, each by at least 1");
        call->sequences[i].rows = (uint32_t)(to - from);
    }
    call->rows = (uint32_t)from;
    return 0;
}

static int wrong_shape(struct body *b, const char *name, const char *where, int have, uint32_t want,
                       const char *of)
{
    char text[160];
    if (have < 0)
        snprintf(text, sizeof text, "%sis not a list", where);
    else
        snprintf(text, sizeof text, "%shas %d entries, wants %u (%s)", where, have, want, of);
    return refuse(b, name, text);
}

/* Entries of a list, -1 if it is none. */
static int entries(const cJSON *list)
{
    return cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
}

/* One head of one row: head_dim finite numbers, stored in `dtype` at `to`. */
static int read_head(struct body *b, const char *name, uint32_t row, uint32_t head, const cJSON *list,
                     const struct geometry *g, uint8_t *to)
{
    float values[HEAD_DIM_MAX];
    char where[64];
    uint32_t d = 0;
    const cJSON *item;
    snprintf(where, sizeof where, "row %u, head %u: ", row, head);
    if (entries(list) != (int)g->head_dim)
        return wrong_shape(b, name, where, entries(list), g->head_dim, "head_dim");
    cJSON_ArrayForEach (item, list) {
        values[d] = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
        if (!isfinite(values[d])) {
            snprintf(where, sizeof where, "row %u, head %u, element %u is no finite number", row, head,
                     d);
            return refuse(b, name, where);
        }
        d++;
    }
    numeric_from_float(g->dtype, values, g->head_dim, to);
    return 0;
}

/* A tensor [rows][heads][head_dim]; `*tensor` stays NULL when the member is absent and may be. */
static int read_tensor(struct body *b, struct call *call, const char *name, bool required,
                       uint32_t heads, const struct geometry *g, void **tensor)
{
    const cJSON *rows = member(b, name), *row, *head;
    size_t head_bytes = g->head_dim * dtype_bytes(g->dtype);
    uint32_t r = 0;
    if (!rows)
        return required ? refuse(b, name, "is missing") : 0;
    if (entries(rows) != (int)call->rows)
        return wrong_shape(b, name, "", entries(rows), call->rows, "one for each row");
    uint8_t *to = call_alloc(call, (size_t)call->rows * heads, head_bytes);
    if (!to)
        return refuse(b, name, "is too large");
    cJSON_ArrayForEach (row, rows) {
        char where[32];
        uint32_t h = 0;
        snprintf(where, sizeof where, "row %u: ", r);
        if (entries(row) != (int)heads)
            return wrong_shape(b, name, where, entries(row), heads, "heads");
        cJSON_ArrayForEach (head, row) {
            int rc = read_head(b, name, r, h, head, g, to + ((size_t)r * heads + h) * head_bytes);
            if (rc != 0)
                return rc;
            h++;
        }
        r++;
    }
    *tensor = to;
    return 0;
}

/* What append and attend have in common. */
static int read_rows(struct body *b, struct call *call, const struct geometry *g, bool attend)
{
    int64_t layer = 0;
    int rc = read_integer(b, "layer", 0, g->layers - 1, &layer);
    call->layer = (uint32_t)layer;
    if (rc == 0)
        rc = read_sequences(b, call);
    if (rc == 0 && attend)
        rc = read_tensor(b, call, "q", true, g->query_heads, g, &call->q);
    if (rc == 0)
        rc = read_tensor(b, call, "k", !attend, g->kv_heads, g, &call->k);
    if (rc == 0)
        rc = read_tensor(b, call, "v", !attend, g->kv_heads, g, &call->v);
    if (rc == 0 && !call->k != !call->v)
        rc = refuse(b, call->k ? "v" : "k", "is missing: k and v come together");
    if (rc == 0 && !call->k && member(b, "token_ids"))
        rc = refuse(b, "token_ids", "belongs to k and v");
    if (rc == 0)
        rc = read_tokens(b, "token_ids", call, call->rows);
    return rc;
}

/* ---- safetensors --------------------------------------------------------------------------------- */

static int refuse_tensor(struct http_exchange *x, const char *name, const char *wants)
{
    http_problem(x, ATTND_INVALID, "tensor %s: %s", name, wants);
    return ATTND_INVALID;
}

/* ?layer=N &lse=1 &accept=json */
static int read_tensor_query(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    call->wants_tensors = true;
    struct http_text text;
    uint64_t value;
    for (size_t at = 0; query_next(x->query, &at, &text);) {
        if (query_number(text, "layer", &value) && value < g->layers)
            call->layer = (uint32_t)value;
        else if (query_number(text, "lse", &value) && value <= 1)
            call->wants_lse = value;
        else if (http_text_is(text, "accept=json"))
            call->wants_tensors = false;
        else
            return query_refuse(x, text,
                                "wants layer=N below the number of layers, lse=1 or accept=json");
    }
    return 0;
}

/* Element i of an integer tensor; false when it is negative or 2^63 and more. */
static bool tensor_integer(const struct safetensor *t, uint64_t i, uint64_t *value)
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
           (strcmp(t->dtype, "I64") == 0 || strcmp(t->dtype, "I32") == 0 ||
            strcmp(t->dtype, "U64") == 0);
}

static int read_tensor_sequences(struct http_exchange *x, struct call *call,
                                 const struct safetensors *tensors)
{
    const struct safetensor *ids = safetensors_find(tensors, "sequences"),
                            *indptr = safetensors_find(tensors, "indptr");
    uint64_t n = ids && ids->rank == 1 ? ids->shape[0] : 0, from, to;
    if (n == 0 || !is_integers(ids, n))
        return refuse_tensor(x, "sequences", "wants U64 or I64 [S]");
    call->sequences = call_alloc(call, n, sizeof *call->sequences);
    if (!call->sequences)
        return refuse_tensor(x, "sequences", "is too long");
    for (; call->sequence_count < n; call->sequence_count++) {
        if (!tensor_integer(ids, call->sequence_count, &from) || from < 1 || from > (uint64_t)ID_MAX)
            return refuse_tensor(x, "sequences", "has an id that is not in 1..2^53-1");
        call->sequences[call->sequence_count] = (struct call_sequence){from, 1};
    }
    call->rows = call->sequence_count;
    if (!indptr)
        return 0;
    if (!is_integers(indptr, n + 1) || !tensor_integer(indptr, 0, &from) || from != 0)
        return refuse_tensor(x, "indptr", "wants I32 or I64 [S+1], rising from 0");
    for (uint32_t i = 0; i < n; i++, from = to) {
        if (!tensor_integer(indptr, i + 1, &to) || to <= from || to > INT32_MAX)
            return refuse_tensor(x, "indptr",
                                 "wants I32 or I64 [S+1], rising from 0, each by at least 1");
        call->sequences[i].rows = (uint32_t)(to - from);
    }
    call->rows = (uint32_t)from;
    return 0;
}

/* A tensor [rows][heads][head_dim] of the geometry's dtype, all finite, into the call's arena
 * (aligned). */
static int read_tensor_rows(struct http_exchange *x, struct call *call,
                            const struct safetensors *tensors, const char *name, bool required,
                            uint32_t heads, const struct geometry *g, void **rows)
{
    const struct safetensor *t = safetensors_find(tensors, name);
    char wants[120];
    if (!t)
        return required ? refuse_tensor(x, name, "is missing") : 0;
    snprintf(wants, sizeof wants, "wants %s [%u, %u, %u]", safetensors_dtype_name(g->dtype), call->rows,
             heads, g->head_dim);
    if (strcmp(t->dtype, safetensors_dtype_name(g->dtype)) != 0 || t->rank != 3 ||
        t->shape[0] != call->rows || t->shape[1] != heads || t->shape[2] != g->head_dim)
        return refuse_tensor(x, name, wants);
    size_t elements = (size_t)call->rows * heads * g->head_dim;
    *rows = call_alloc(call, elements, dtype_bytes(g->dtype));
    if (!*rows)
        return refuse_tensor(x, name, "is too large");
    memcpy(*rows, t->data, elements * dtype_bytes(g->dtype));
    size_t bad = numeric_first_nonfinite(g->dtype, *rows, elements);
    if (bad == elements)
        return 0;
    snprintf(wants, sizeof wants, "row %zu, head %zu, element %zu is not finite",
             bad / g->head_dim / heads, bad / g->head_dim % heads, bad % g->head_dim);
    return refuse_tensor(x, name, wants);
}

/* Optional token ids, one for each row of k and v. */
static int read_tensor_tokens(struct http_exchange *x, struct call *call,
                              const struct safetensors *tensors)
{
    const struct safetensor *t = safetensors_find(tensors, "token_ids");
    uint64_t id;
    if (!t)
        return 0;
    if (!call->k || !is_integers(t, call->rows))
        return refuse_tensor(x, "token_ids", "wants I64 [T], beside k and v");
    call->tokens = call_alloc(call, call->rows, sizeof *call->tokens);
    if (!call->tokens)
        return refuse_tensor(x, "token_ids", "is too long");
    for (uint32_t i = 0; i < call->rows; i++) {
        if (!tensor_integer(t, i, &id) || id > UINT32_MAX)
            return refuse_tensor(x, "token_ids", "has an id that is not in 0..4294967295");
        call->tokens[call->token_count++] = (uint32_t)id;
    }
    return 0;
}

static int parse_tensors(struct http_exchange *x, struct call *call, const struct geometry *g,
                         bool attend)
{
    static const char *const known[] = {"sequences", "indptr", "k", "v", "token_ids", "q"};
    struct safetensors tensors;
    char reason[SAFETENSORS_REASON_BYTES];
    int rc = read_tensor_query(x, call, g);
    if (rc == 0 && (rc = safetensors_parse(x->body.bytes, x->body.n, &tensors, reason)) != 0)
        http_problem(x, rc, "%s", reason);
    for (unsigned i = 0; rc == 0 && i < tensors.count; i++) {
        bool found = false;
        for (int k = 0; k < (attend ? 6 : 5); k++)
            found |= strcmp(tensors.tensors[i].name, known[k]) == 0;
        if (!found)
            rc = refuse_tensor(x, tensors.tensors[i].name,
                               "there is no such tensor, or it is not built yet");
    }
    if (rc == 0)
        rc = read_tensor_sequences(x, call, &tensors);
    if (rc == 0 && attend)
        rc = read_tensor_rows(x, call, &tensors, "q", true, g->query_heads, g, &call->q);
    if (rc == 0)
        rc = read_tensor_rows(x, call, &tensors, "k", !attend, g->kv_heads, g, &call->k);
    if (rc == 0)
        rc = read_tensor_rows(x, call, &tensors, "v", !attend, g->kv_heads, g, &call->v);
    if (rc == 0 && !call->k != !call->v)
        rc = refuse_tensor(x, call->k ? "v" : "k", "is missing: k and v come together");
    return rc == 0 ? read_tensor_tokens(x, call, &tensors) : rc;
}

static bool is_tensor_type(struct http_text type)
{
    return body_is_type(type, "application/x-safetensors") ||
           body_is_type(type, "application/octet-stream");
}

/* An answer in JSON has at most JSON_NUMBERS_MAX numbers. */
static int limit_json(struct http_exchange *x, const struct call *call, const struct geometry *g)
{
    if (call->wants_tensors || (uint64_t)call->rows * g->query_heads * g->head_dim <= JSON_NUMBERS_MAX)
        return 0;
    http_problem(x, ATTND_INVALID, "o would have more than %d numbers; ask for safetensors",
                 JSON_NUMBERS_MAX);
    return ATTND_INVALID;
}

int call_parse_append(struct http_exchange *x, struct call *call, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr", "k", "v", "token_ids", NULL};
    struct body b;
    if (is_tensor_type(x->body_type))
        return parse_tensors(x, call, g, false);
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, call, g, false);
    cJSON_Delete(b.tree);
    return rc;
}

int call_parse_attend(struct http_exchange *x, struct call *call, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr", "q", "k",
                                        "v",     "token_ids", "lse",    NULL};
    struct body b;
    if (is_tensor_type(x->body_type)) {
        int bad = parse_tensors(x, call, g, true);
        return bad ? bad : limit_json(x, call, g);
    }
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, call, g, true);
    if (rc == 0 && member(&b, "lse") && !cJSON_IsBool(member(&b, "lse")))
        rc = refuse(&b, "lse", "wants true or false");
    call->wants_lse = rc == 0 && cJSON_IsTrue(member(&b, "lse"));
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, call, g) : rc;
}
