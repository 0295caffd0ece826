/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.c - see safetensors.h. */
#include "server/safetensors.h"

#include "config/json.h"
#include "config/json_writer.h"

#include <cjson/cJSON.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 /* of the header, ahead of it */ };

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
              {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
              {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};

static const int64_t INTEGER_MAX = (INT64_C(1) << 53) - 1;

size_t safetensors_dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].bytes;
    }
    return 0;
}

const char *safetensors_dtype_name(enum dtype dtype)
{
    static const char *const names[] = {[DTYPE_F32] = "F32",
                                        [DTYPE_F16] = "F16",
                                        [DTYPE_BF16] = "BF16",
                                        [DTYPE_E4M3] = "F8_E4M3",
                                        [DTYPE_E5M2] = "F8_E5M2"};
    return names[dtype];
}

static int __attribute__((format(printf, 3, 4))) fail(char *reason, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason, SAFETENSORS_REASON_BYTES, format, args);
    va_end(args);
    return status;
}

/* Bytes that the shape and dtype stand for; false when the product does not fit 63 bits or the dtype is
 * unknown. */
static bool tensor_bytes(const struct named_tensor *t, uint64_t *bytes)
{
    *bytes = safetensors_dtype_bytes(t->dtype);
    if (*bytes == 0)
        return false;
    for (unsigned i = 0; i < t->rank; i++) {
        if (__builtin_mul_overflow(*bytes, t->shape[i], bytes) || *bytes > INT64_MAX)
            return false;
    }
    return true;
}

/* One member of the header. */
static int read_tensor(const cJSON *item, struct named_tensor *t, char *reason)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape"), *size;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    int64_t value, begin, end;
    uint64_t bytes;
    if (strlen(item->string) >= sizeof t->name)
        return fail(reason, ATTND_INVALID, "a tensor's name has more than %d bytes",
                    SAFETENSORS_NAME_BYTES - 1);
    strcpy(t->name, item->string);
    if (cJSON_GetArraySize(item) != 3 || !cJSON_IsString(dtype) || !cJSON_IsArray(shape) ||
        !cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !json_is_integer(offsets->child, 0, INTEGER_MAX, &begin) ||
        !json_is_integer(offsets->child->next, begin, INTEGER_MAX, &end))
        return fail(reason, ATTND_MALFORMED, "tensor \"%s\" wants dtype, shape and two rising data_offsets",
                    t->name);
    if (strlen(dtype->valuestring) >= sizeof t->dtype || safetensors_dtype_bytes(dtype->valuestring) == 0)
        return fail(reason, ATTND_INVALID, "tensor \"%s\" has an unknown dtype", t->name);
    strcpy(t->dtype, dtype->valuestring);
    cJSON_ArrayForEach (size, shape) {
        if (t->rank == SAFETENSORS_RANK_MAX || !json_is_integer(size, 0, INTEGER_MAX, &value))
            return fail(reason, ATTND_INVALID, "tensor \"%s\" has a shape that is not served", t->name);
        t->shape[t->rank++] = (uint64_t)value;
    }
    t->begin = (uint64_t)begin;
    t->end = (uint64_t)end;
    if (!tensor_bytes(t, &bytes) || bytes != t->end - t->begin)
        return fail(reason, ATTND_MALFORMED, "tensor \"%s\" has %llu bytes, which its shape does not make",
                    t->name, (unsigned long long)(t->end - t->begin));
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct named_tensor *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                                : (x->end > y->end) - (x->end < y->end);
}

static bool is_metadata(const cJSON *object)
{
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return false;
    cJSON_ArrayForEach (item, object) {
        if (!cJSON_IsString(item))
            return false;
    }
    return true;
}

static int read_header(const cJSON *header, struct named_tensors *tensors, char *reason)
{
    const cJSON *item;
    if (!cJSON_IsObject(header))
        return fail(reason, ATTND_MALFORMED, "the header is not a JSON object");
    cJSON_ArrayForEach (item, header) {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (!is_metadata(item))
                return fail(reason, ATTND_MALFORMED, "__metadata__ wants an object of texts");
            continue;
        }
        if (tensors->count == SAFETENSORS_MAX)
            return fail(reason, ATTND_INVALID, "more than %d tensors", SAFETENSORS_MAX);
        int rc = read_tensor(item, &tensors->tensors[tensors->count++], reason);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* What the first bytes say. */
static uint64_t header_bytes(const void *body)
{
    const uint8_t *bytes = body;
    uint64_t n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        n = n << 8 | bytes[i];
    return n;
}

int safetensors_parse(const void *body, size_t n, struct named_tensors *tensors,
                      char reason[SAFETENSORS_REASON_BYTES])
{
    const uint8_t *bytes = body;
    struct json_error wrong;
    uint64_t header = 0, at = 0;
    cJSON *tree;
    *tensors = (struct named_tensors){0};
    if (n < LENGTH_BYTES)
        return fail(reason, ATTND_MALFORMED, "%zu bytes are too short for safetensors", n);
    header = header_bytes(body);
    if (header > n - LENGTH_BYTES)
        return fail(reason, ATTND_MALFORMED,
                    "no safetensors: the first 8 bytes announce a header of %llu bytes, and %zu follow",
                    (unsigned long long)header, n - LENGTH_BYTES);
    if (header > SAFETENSORS_HEADER_BYTES_MAX)
        return fail(reason, ATTND_INVALID, "a header of more than %d bytes", SAFETENSORS_HEADER_BYTES_MAX);
    if (json_parse((const char *)bytes + LENGTH_BYTES, header, &tree, &wrong) != 0)
        return fail(reason, ATTND_MALFORMED, "header, byte %zu: %s", wrong.offset, wrong.reason);
    int rc = read_header(tree, tensors, reason);
    cJSON_Delete(tree);
    if (rc != 0)
        return rc;

    qsort(tensors->tensors, tensors->count, sizeof tensors->tensors[0], by_begin);
    for (unsigned i = 0; i < tensors->count; i++) {
        struct named_tensor *t = &tensors->tensors[i];
        if (t->begin != at)
            return fail(reason, ATTND_MALFORMED, "tensor \"%s\" overlaps another or leaves a hole", t->name);
        at = t->end;
        t->data = bytes + LENGTH_BYTES + header + t->begin; /* inside the body, by the check below */
    }
    if (at != n - LENGTH_BYTES - header)
        return fail(reason, ATTND_MALFORMED, "the tensors take %llu bytes of data, the body has %llu",
                    (unsigned long long)at, (unsigned long long)(n - LENGTH_BYTES - header));
    return 0;
}

void safetensors_metadata(const void *body, size_t n, struct safetensors_text *texts, unsigned count)
{
    struct json_error wrong;
    cJSON *tree;
    uint64_t header = n < LENGTH_BYTES ? 0 : header_bytes(body);
    for (unsigned i = 0; i < count; i++)
        texts[i].there = false;
    if (n < LENGTH_BYTES || header > n - LENGTH_BYTES ||
        json_parse((const char *)body + LENGTH_BYTES, header, &tree, &wrong) != 0)
        return;
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(tree, "__metadata__");
    for (unsigned i = 0; i < count; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, texts[i].name);
        texts[i].there = cJSON_IsString(item) && strlen(item->valuestring) < texts[i].room;
        if (texts[i].there)
            memcpy(texts[i].text, item->valuestring, strlen(item->valuestring) + 1);
    }
    cJSON_Delete(tree);
}

const struct named_tensor *safetensors_find(const struct named_tensors *tensors, const char *name)
{
    for (unsigned i = 0; i < tensors->count; i++) {
        if (strcmp(tensors->tensors[i].name, name) == 0)
            return &tensors->tensors[i];
    }
    return NULL;
}

size_t safetensors_write_header(struct named_tensors *tensors, const char *metadata, void *out,
                                size_t capacity)
{
    struct json_writer w;
    uint8_t *to = out;
    uint64_t data = 0;
    if (capacity < 16)
        return 0;
    json_writer_init(&w, out, capacity);
    w.length = 8;
    json_open(&w, NULL, '{');
    for (unsigned i = 0; i < tensors->count; i++) {
        struct named_tensor *t = &tensors->tensors[i];
        uint64_t bytes = t->end - t->begin;
        t->begin = data;
        t->end = data += bytes;
        json_open(&w, t->name, '{');
        json_string(&w, "dtype", t->dtype);
        json_open(&w, "shape", '[');
        for (unsigned d = 0; d < t->rank; d++)
            json_uint(&w, NULL, t->shape[d]);
        json_close(&w, ']');
        json_open(&w, "data_offsets", '[');
        json_uint(&w, NULL, t->begin);
        json_uint(&w, NULL, t->end);
        json_close(&w, ']');
        json_close(&w, '}');
    }
    if (metadata) {
        json_name(&w, "__metadata__");
        json_raw(&w, metadata);
    }
    json_close(&w, '}');
    while (w.length % 8 && !w.overflow)
        json_raw(&w, " ");
    if (w.overflow)
        return 0;
    uint64_t header = w.length - 8;
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(header >> 8 * i);
    return w.length;
}
