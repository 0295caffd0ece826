/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c - see tensors.h. */
#include "server/tensors.h"

#include "kernels/numeric.h"
#include "server/answer.h"
#include "server/media_type.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    ALIGNMENT = 8, /* attention.h */
    SPECS_MAX = SAFETENSORS_MAX,
    PLACE_BYTES = 128
};

/* ---- refusing -------------------------------------------------------------------------------------- */

int tensors_refuse(struct tensor_body *b, const char *name, const char *wants)
{
    char pointer[PLACE_BYTES];
    snprintf(pointer, sizeof pointer, "%.40s/%.80s", b->arguments.where, name);
    http_problem_at(b->x, ATTND_INVALID, pointer, wants);
    return ATTND_INVALID;
}

int tensors_mismatch(struct tensor_body *b, const char *name, const char *format, ...)
{
    char text[256];
    const struct named_tensor *t = tensors_find(b, name);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t n = strlen(text);
    if (!t)
        snprintf(text + n, sizeof text - n, ", and is missing");
    else
        n += (size_t)snprintf(text + n, sizeof text - n, ", has %s [", t->dtype);
    for (unsigned i = 0; t && i < t->rank && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)t->shape[i]);
    if (t && n < sizeof text)
        snprintf(text + n, sizeof text - n, "]");
    return tensors_refuse(b, name, text);
}

int tensors_no_room(struct http_exchange *x)
{
    http_problem(x, ATTND_BUSY, "no memory for tensors: limits.staging_bytes or memory.bytes are in use");
    return ATTND_BUSY;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

/* Lists that become a tensor. */
struct lists {
    struct tensor_body *b;
    struct named_tensor *t;
    enum tensor_kind kind;
    enum dtype dtype;                     /* of values */
    uint64_t index[SAFETENSORS_RANK_MAX]; /* of the number or list that is looked at */
    uint64_t done;                        /* numbers stored */
    uint8_t *to;                          /* NULL: only look */
};

/* The number or list at the index, down to `depth`, is wrong. */
static int refuse_entry(struct lists *l, unsigned depth, const char *wants)
{
    char place[PLACE_BYTES];
    size_t n = (size_t)snprintf(place, sizeof place, "%s", l->t->name);
    for (unsigned i = 0; i < depth && n < sizeof place; i++)
        n += (size_t)snprintf(place + n, sizeof place - n, "/%llu", (unsigned long long)l->index[i]);
    return tensors_refuse(l->b, place, wants);
}

/* Rank and shape are those of the first list at each depth. */
static int measure(struct lists *l, const cJSON *list)
{
    for (; cJSON_IsArray(list); list = list->child) {
        if (l->t->rank == SAFETENSORS_RANK_MAX)
            return refuse_entry(l, 0, "has lists in more than 8 lists");
        l->t->shape[l->t->rank++] = (uint64_t)cJSON_GetArraySize(list);
    }
    return l->t->rank ? 0 : refuse_entry(l, 0, "wants a list");
}

static int read_number(struct lists *l, const cJSON *item)
{
    int64_t integer = 0;
    float value = cJSON_IsNumber(item) ? (float)item->valuedouble : -INFINITY;
    bool good = l->kind == TENSOR_INTEGERS
                    ? json_is_integer(item, -(int64_t)REQUEST_ID_MAX, (int64_t)REQUEST_ID_MAX, &integer)
                    : cJSON_IsNumber(item) || (l->kind == TENSOR_FLOATS && cJSON_IsNull(item));
    if (!good)
        return refuse_entry(l, l->t->rank,
                            l->kind == TENSOR_INTEGERS ? "wants an integer below 2^53"
                            : l->kind == TENSOR_FLOATS ? "wants a number, or null for minus infinity"
                                                       : "wants a number");
    if (l->to && l->kind == TENSOR_INTEGERS)
        memcpy(l->to + l->done * sizeof integer, &integer, sizeof integer);
    else if (l->to && l->kind == TENSOR_FLOATS)
        memcpy(l->to + l->done * sizeof value, &value, sizeof value);
    else if (l->to)
        numeric_from_float(l->dtype, &value, 1, l->to + l->done * dtype_bytes(l->dtype));
    l->done++;
    return 0;
}

/* A list at that depth, or a number below the last one. */
static int read_entry(struct lists *l, const cJSON *entry, unsigned depth)
{
    char wants[64];
    const cJSON *item;
    if (depth == l->t->rank)
        return read_number(l, entry);
    if (!cJSON_IsArray(entry) || (uint64_t)cJSON_GetArraySize(entry) != l->t->shape[depth]) {
        snprintf(wants, sizeof wants, "wants a list of %llu, as the first one there is",
                 (unsigned long long)l->t->shape[depth]);
        return refuse_entry(l, depth, wants);
    }
    l->index[depth] = 0;
    cJSON_ArrayForEach (item, entry) {
        int rc = read_entry(l, item, depth + 1);
        if (rc != 0)
            return rc;
        l->index[depth]++;
    }
    return 0;
}

/* One member, looked at before there is memory for what its first lists announce. */
static int read_lists(struct tensor_body *b, const struct tensor_spec *spec, const cJSON *list)
{
    struct named_tensor *t = &b->tensors.tensors[b->tensors.count++];
    struct lists l = {.b = b, .t = t, .kind = spec->kind, .dtype = b->g->dtype};
    *t = (struct named_tensor){.stays = true};
    snprintf(t->name, sizeof t->name, "%s", spec->name);
    snprintf(t->dtype, sizeof t->dtype, "%s",
             spec->kind == TENSOR_INTEGERS ? "I64"
             : spec->kind == TENSOR_FLOATS ? "F32"
                                           : safetensors_dtype_name(l.dtype));
    int rc = measure(&l, list);
    if (rc == 0)
        rc = read_entry(&l, list, 0);
    if (rc != 0)
        return rc;
    t->end = l.done * safetensors_dtype_bytes(t->dtype);
    l.to = spec->kind == TENSOR_INTEGERS ? request_alloc(b->request, t->end, 1)
                                         : request_tensor(b->request, t->end, 1);
    if (!l.to)
        return spec->kind == TENSOR_INTEGERS ? tensors_refuse(b, t->name, "is too long for one call")
                                             : tensors_no_room(b->x);
    t->data = l.to;
    l.done = 0;
    return read_entry(&l, list, 0);
}

/* ---- both ------------------------------------------------------------------------------------------ */

bool tensors_wanted(const struct http_exchange *x)
{
    return media_type_is(x->head.body_type, "application/x-safetensors") ||
           media_type_is(x->head.body_type, "application/octet-stream");
}

/* The members that are lists. */
static int read_members(struct tensor_body *b, const struct tensor_spec *specs)
{
    int rc = 0;
    for (; rc == 0 && specs->name; specs++) {
        const cJSON *list = arguments_member(&b->arguments, specs->name);
        if (list)
            rc = read_lists(b, specs, list);
    }
    return rc;
}

static bool is_in(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

static int open_safetensors(struct tensor_body *b, const char *const *names, const char *const *spec_names)
{
    char reason[SAFETENSORS_REASON_BYTES], text[ARGUMENTS_TEXT_BYTES];
    int rc = arguments_of_query(&b->arguments, b->x, names, spec_names);
    if (rc != 0)
        return rc;
    rc = safetensors_parse(b->x->body.bytes, b->x->body.n, &b->tensors, reason);
    if (rc != 0)
        http_problem(b->x, rc, "%s", reason);
    for (unsigned i = 0; rc == 0 && i < b->tensors.count; i++) {
        struct named_tensor *t = &b->tensors.tensors[i];
        t->stays = b->x->staging && (uintptr_t)t->data % ALIGNMENT == 0;
        if (is_in(names, t->name)) {
            rc = tensors_refuse(b, t->name, "belongs in the query");
        } else if (!is_in(spec_names, t->name)) {
            arguments_no_such("tensor", t->name, spec_names, NULL, text);
            rc = tensors_refuse(b, t->name, text);
        }
    }
    return rc;
}

/* An empty body, and the names of its tensors. */
static void init(struct tensor_body *b, struct http_exchange *x, struct request *request,
                 const struct geometry *g, const struct tensor_spec *specs, const char *names[SPECS_MAX + 1])
{
    unsigned n = 0;
    for (; specs[n].name; n++)
        names[n] = specs[n].name;
    names[n] = NULL;
    b->x = x;
    b->request = request;
    b->g = g;
    b->tensors.count = 0;
}

int tensors_open(struct tensor_body *b, struct http_exchange *x, struct request *request,
                 const struct geometry *g, const char *const *names, const struct tensor_spec *specs)
{
    const char *spec_names[SPECS_MAX + 1];
    init(b, x, request, g, specs, spec_names);
    if (tensors_wanted(x))
        return open_safetensors(b, names, spec_names);
    int rc = arguments_of_json(&b->arguments, x, names, spec_names);
    return rc == 0 ? read_members(b, specs) : rc;
}

int tensors_open_object(struct tensor_body *b, struct http_exchange *x, struct request *request,
                        const struct geometry *g, const cJSON *object, const char *where,
                        const char *const *names, const struct tensor_spec *specs)
{
    const char *spec_names[SPECS_MAX + 1];
    init(b, x, request, g, specs, spec_names);
    int rc = arguments_of_object(&b->arguments, x, object, where, names, spec_names);
    return rc == 0 ? read_members(b, specs) : rc;
}

void tensors_close(struct tensor_body *b)
{
    arguments_close(&b->arguments);
}

const struct named_tensor *tensors_find(const struct tensor_body *b, const char *name)
{
    return safetensors_find(&b->tensors, name);
}

/* ---- integers -------------------------------------------------------------------------------------- */

bool tensors_is(const struct named_tensor *t, const char *dtype, unsigned rank, const uint64_t *shape)
{
    return t && strcmp(t->dtype, dtype) == 0 && t->rank == rank &&
           memcmp(t->shape, shape, rank * sizeof *shape) == 0;
}

bool tensors_is_list(const struct named_tensor *t, uint64_t n)
{
    return tensors_is(t, "I64", 1, &n) || tensors_is(t, "I32", 1, &n) || tensors_is(t, "U64", 1, &n);
}

bool tensors_integer(const struct named_tensor *t, uint64_t i, int64_t *value)
{
    int32_t narrow;
    if (strcmp(t->dtype, "I32") == 0) {
        memcpy(&narrow, t->data + i * sizeof narrow, sizeof narrow);
        *value = narrow;
        return true;
    }
    memcpy(value, t->data + i * sizeof *value,
           sizeof *value); /* little-endian, as every host that we build for */
    return *value >= 0 || t->dtype[0] == 'I';
}

int tensors_tokens(struct tensor_body *b, const char *name, uint64_t count, struct request_tokens *tokens)
{
    const struct named_tensor *t = tensors_find(b, name);
    uint64_t n = t && count == UINT64_MAX && t->rank == 1 ? t->shape[0] : count;
    char text[96];
    int64_t id;
    if (!t)
        return 0;
    if (!tensors_is_list(t, n))
        return count == UINT64_MAX ? tensors_mismatch(b, name, "wants a list of integers")
                                   : tensors_mismatch(b, name, "wants integers [%llu], one for each row",
                                                      (unsigned long long)n);
    tokens->ids = request_alloc(b->request, n, sizeof *tokens->ids);
    if (!tokens->ids)
        return tensors_refuse(b, name, "is too long for one call");
    for (uint64_t i = 0; i < n; i++) {
        if (!tensors_integer(t, i, &id) || id < 0 || id > UINT32_MAX) {
            snprintf(text, sizeof text, "entry %llu: wants a token id in 0..4294967295",
                     (unsigned long long)i);
            return tensors_refuse(b, name, text);
        }
        tokens->ids[tokens->count++] = (uint32_t)id;
    }
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------------- */

const void *tensors_data(struct tensor_body *b, const struct named_tensor *t)
{
    if (t->stays)
        return t->data;
    answer_of(b->request)->copied++;
    void *copy = request_tensor(b->request, t->end - t->begin, 1);
    if (copy)
        memcpy(copy, t->data, t->end - t->begin);
    else
        tensors_no_room(b->x);
    return copy;
}

int tensors_rows(struct tensor_body *b, const char *name, const struct tensor_rows *wants, const void **rows,
                 enum dtype *dtype)
{
    const struct named_tensor *t = tensors_find(b, name);
    const struct geometry *g = b->g;
    const char *own = safetensors_dtype_name(g->dtype), *other = safetensors_dtype_name(wants->other);
    char text[96];
    if (!t)
        return wants->required ? tensors_refuse(b, name, "is missing") : 0;
    bool all = wants->layered && t->rank == 4;
    const uint64_t shape[] = {g->layers, wants->n, wants->heads, g->head_dim};
    const uint64_t *own_shape = all ? shape : shape + 1;
    unsigned rank = all ? 4 : 3;
    *dtype = tensors_is(t, other, rank, own_shape) ? wants->other : g->dtype;
    if (!tensors_is(t, safetensors_dtype_name(*dtype), rank, own_shape))
        return tensors_mismatch(b, name, "wants %s%s%s [%u, %u, %u]%s", own, own == other ? "" : " or ",
                                own == other ? "" : other, wants->n, wants->heads, g->head_dim,
                                wants->layered ? ", or with [layers, ...] before" : "");
    *rows = tensors_data(b, t);
    if (!*rows)
        return ATTND_BUSY;
    const struct request_elements elements = {.array = *rows,
                                              .dtype = *dtype,
                                              .layers = all ? g->layers : 1,
                                              .rows = wants->n,
                                              .heads = wants->heads,
                                              .head_dim = g->head_dim,
                                              .summed = wants->summed};
    return request_elements_are_good(&elements, text, sizeof text) ? 0 : tensors_refuse(b, name, text);
}
