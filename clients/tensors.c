/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c - see tensors.h. */
#include "clients/tensors.h"
#include "clients/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 8, HEADER_MOST = 1 << 20, ROWS_MOST = 1 << 20 };

enum exit_code model_fetch(const struct command *c, struct model *m)
{
    cJSON *info;
    enum exit_code code = command_fetch(c, "GET", "/v1/info", NULL, &info);
    if (!info)
        return code == EXIT_OK ? EXIT_FAILED : code;
    *m = (struct model){.layers = (uint32_t)answer_number(info, "geometry.layers"),
                        .query_heads = (uint32_t)answer_number(info, "geometry.query_heads"),
                        .kv_heads = (uint32_t)answer_number(info, "geometry.kv_heads"),
                        .head_dim = (uint32_t)answer_number(info, "geometry.head_dim"),
                        .block_size = (uint32_t)answer_number(info, "geometry.block_size"),
                        .body_bytes = (uint64_t)answer_number(info, "limits.body_bytes"),
                        .rows_per_call = (uint64_t)answer_number(info, "limits.rows_per_call"),
                        .kv_range_tokens = (uint64_t)answer_number(info, "limits.kv_range_tokens"),
                        .sequence_tokens = (uint64_t)answer_number(info, "limits.sequence_tokens"),
                        .blocks = (uint64_t)answer_number(info, "pool.blocks"),
                        .bytes_per_block = (uint64_t)answer_number(info, "pool.bytes_per_block")};
    snprintf(m->dtype, sizeof m->dtype, "%s", answer_text(info, "geometry.dtype"));
    snprintf(m->layout, sizeof m->layout, "%s", answer_text(info, "geometry.layout"));
    snprintf(m->backend, sizeof m->backend, "%s", answer_text(info, "backend.name"));
    const cJSON *window;
    m->scale = answer_number(info, "geometry.scale");
    m->is_plain = strcmp(m->dtype, answer_text(info, "geometry.kv_dtype")) == 0 &&
                  answer_number(info, "geometry.softcap") == 0 &&
                  !cJSON_IsTrue(answer_at(info, "geometry.sinks")) &&
                  !cJSON_IsTrue(answer_at(info, "geometry.alibi"));
    cJSON_ArrayForEach (window, answer_at(info, "geometry.window")) {
        m->is_plain &= window->valuedouble == 0;
    }
    cJSON_Delete(info);
    if (m->layers && m->kv_heads && m->query_heads && m->head_dim && m->block_size)
        return EXIT_OK;
    fprintf(stderr, "attnctl: %s/v1/info has no geometry: is this attnd?\n", c->url);
    return EXIT_FAILED;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Both round to the nearest, of two as near to the even one. */
static uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t to_f16(float value)
{
    uint16_t sign = (uint16_t)(bits_of(value) >> 16 & 0x8000);
    int exponent;
    double fraction = frexp(fabs((double)value), &exponent); /* 0.5 .. 1 */
    if (fraction == 0)
        return sign;
    int digits = exponent < -13 ? 11 + exponent + 13 : 11; /* below 2^-14 there are fewer */
    double mantissa = nearbyint(ldexp(fraction, digits));
    if (exponent < -13)
        return (uint16_t)(sign | (uint16_t)mantissa);
    uint32_t bits =
        ((uint32_t)(exponent + 13) << 10) + (uint32_t)mantissa; /* its first bit is in the exponent */
    return (uint16_t)(sign | (bits > 0x7c00 ? 0x7c00 : bits));
}

static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double mantissa = bits & 1023;
    double value = exponent == 0    ? ldexp(mantissa, -24)
                   : exponent == 31 ? (mantissa > 0 ? (double)NAN : (double)INFINITY)
                                    : ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

double tensors_value(const struct tensor *t, size_t i)
{
    uint16_t half;
    uint32_t word;
    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(&word, t->data + 4 * i, sizeof word);
        return (double)float_of(word);
    }
    memcpy(&half, t->data + 2 * i, sizeof half);
    return strcmp(t->dtype, "F16") == 0 ? from_f16(half) : (double)float_of((uint32_t)half << 16);
}

void tensors_generate(uint64_t seed, uint64_t stream, uint64_t first, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++) {
        /* SplitMix64's finalizer of a counter */
        uint64_t x =
            (seed * 0x9e3779b97f4a7c15u + stream) * 0xbf58476d1ce4e5b9u + (first + i) * 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        values[i] = (float)((int)(x % 255) - 127) / 64;
    }
}

/* The numbers of one row, up to ':' or the end; how many, 0: it is none. */
static size_t parse_row(const char **text, float *row, size_t most)
{
    size_t n = 0;
    const char *s = *text;
    for (;;) {
        char *end;
        float value = strtof(s, &end);
        if (end == s || !isfinite(value) || n == most)
            return 0;
        row[n++] = value;
        s = end;
        if (*s != ',')
            break;
        s++;
    }
    *text = s;
    return *s == ':' || *s == '\0' ? n : 0;
}

float *tensors_parse_rows(const char *option, const char *text, uint32_t heads, uint32_t head_dim,
                          size_t *rows)
{
    size_t wide = (size_t)heads * head_dim, count = 1;
    for (const char *s = text; *s; s++)
        count += *s == ':';
    float *values = count <= ROWS_MOST ? calloc(count * wide, sizeof *values) : NULL;
    const char *at = text;
    *rows = 0;
    for (size_t r = 0; values && r < count; r++) {
        float *row = values + r * wide;
        size_t n = parse_row(&at, row, wide);
        if (n != 1 && n != head_dim && n != wide) {
            char of_a_head[16] = "";
            if (head_dim != wide)
                snprintf(of_a_head, sizeof of_a_head, ", %u", head_dim);
            command_usage(
                "--%s: row %zu wants 1%s or %zu finite numbers with commas between; rows have : between",
                option, r + 1, of_a_head, wide);
            free(values);
            return NULL;
        }
        for (size_t i = n; i < wide; i++)
            row[i] = row[i % n];
        at += *at == ':';
        *rows = r + 1;
    }
    if (!values)
        command_usage("--%s has too many rows", option);
    return values;
}

/* ---- making -------------------------------------------------------------------------------------- */

/* Room for so many more bytes; memory that is not to be had ends the program. */
static char *more(struct tensors *t, size_t bytes)
{
    if (t->n + bytes > t->room) {
        t->room = 2 * (t->n + bytes);
        t->data = realloc(t->data, t->room);
        if (!t->data) {
            fputs("attnctl: out of memory\n", stderr);
            abort();
        }
    }
    t->n += bytes;
    return t->data + t->n - bytes;
}

static struct tensor *add(struct tensors *t, const char *name, const char *dtype, size_t bytes)
{
    struct tensor *new = &t->list[t->count++];
    *new = (struct tensor){.begin = t->n, .bytes = bytes};
    snprintf(new->name, sizeof new->name, "%s", name);
    snprintf(new->dtype, sizeof new->dtype, "%s", dtype);
    return new;
}

void tensors_add_values(struct tensors *t, const char *name, const char *dtype, unsigned rank,
                        const uint64_t *shape, const float *values)
{
    size_t count = 1;
    for (unsigned i = 0; i < rank; i++)
        count *= shape[i];
    bool is_f32 = strcmp(dtype, "f32") == 0, is_f16 = strcmp(dtype, "f16") == 0;
    size_t bytes = count * (is_f32 ? 4 : 2);
    struct tensor *new = add(t, name, is_f32 ? "F32" : is_f16 ? "F16" : "BF16", bytes);
    char *to = more(t, bytes);
    new->rank = rank;
    memcpy(new->shape, shape, rank * sizeof *shape);
    for (size_t i = 0; i < count; i++) {
        uint32_t word = is_f32 ? bits_of(values[i]) : is_f16 ? to_f16(values[i]) : to_bf16(values[i]);
        memcpy(to + i * (is_f32 ? 4 : 2), &word, is_f32 ? 4 : 2); /* little-endian, as the format is */
    }
}

void tensors_add_integers(struct tensors *t, const char *name, const int64_t *values, size_t count,
                          size_t columns)
{
    struct tensor *new = add(t, name, "I64", count * sizeof *values);
    new->rank = columns ? 2 : 1;
    new->shape[0] = columns ? count / columns : count;
    new->shape[1] = columns;
    memcpy(more(t, count * sizeof *values), values, count * sizeof *values);
}

char *tensors_body(const struct tensors *t, const char *metadata, size_t *bytes)
{
    char *header = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&header, &n);
    if (!f)
        return NULL;
    fputc('{', f);
    for (size_t i = 0; i < t->count; i++) {
        const struct tensor *is = &t->list[i];
        fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", is->name, is->dtype);
        for (unsigned r = 0; r < is->rank; r++)
            fprintf(f, "%s%llu", r ? "," : "", (unsigned long long)is->shape[r]);
        fprintf(f, "],\"data_offsets\":[%zu,%zu]}", is->begin, is->begin + is->bytes);
    }
    if (metadata)
        fprintf(f, ",\"__metadata__\":%s", metadata);
    fputc('}', f);
    fflush(f);
    for (size_t pad = (8 - n % 8) % 8; pad > 0; pad--)
        fputc(' ', f);
    fclose(f);
    char *body = malloc(HEADER_BYTES + n + t->n);
    uint64_t length = n;
    if (body) {
        memcpy(body, &length, HEADER_BYTES);
        memcpy(body + HEADER_BYTES, header, n);
        if (t->n)
            memcpy(body + HEADER_BYTES + n, t->data, t->n);
        *bytes = HEADER_BYTES + n + t->n;
    }
    free(header);
    return body;
}

void tensors_free(struct tensors *t)
{
    free(t->data);
    *t = (struct tensors){0};
}

/* ---- reading ------------------------------------------------------------------------------------- */

static size_t element_bytes(const char *dtype)
{
    return strcmp(dtype, "I64") == 0                                 ? 8
           : strcmp(dtype, "F32") == 0                               ? 4
           : strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2
                                                                     : 1;
}

/* One tensor of the header; false when it is not within `room` bytes, or not of its shape. */
static bool read_tensor(const cJSON *item, const char *data, size_t room, struct tensor *t)
{
    const cJSON *offsets = answer_at(item, "data_offsets"), *shape = answer_at(item, "shape"), *side;
    double begin = cJSON_GetArraySize(offsets) == 2 ? cJSON_GetArrayItem(offsets, 0)->valuedouble : -1;
    double end = cJSON_GetArraySize(offsets) == 2 ? cJSON_GetArrayItem(offsets, 1)->valuedouble : -1;
    if (!(begin >= 0) || !(end >= begin) || !(end <= (double)room) ||
        cJSON_GetArraySize(shape) > TENSORS_RANK)
        return false;
    *t =
        (struct tensor){.data = data + (size_t)begin, .begin = (size_t)begin, .bytes = (size_t)(end - begin)};
    snprintf(t->name, sizeof t->name, "%s", item->string);
    snprintf(t->dtype, sizeof t->dtype, "%s", answer_text(item, "dtype"));
    double elements = 1;
    cJSON_ArrayForEach (side, shape) {
        if (!cJSON_IsNumber(side) || !(side->valuedouble >= 0) || !(side->valuedouble <= (double)room))
            return false;
        t->shape[t->rank++] = (uint64_t)side->valuedouble;
        elements *= side->valuedouble;
    }
    return elements * (double)element_bytes(t->dtype) == (double)t->bytes;
}

bool tensors_read(const char *body, size_t bytes, struct tensors *t, cJSON **metadata)
{
    uint64_t n = 0;
    const cJSON *item;
    *t = (struct tensors){0};
    *metadata = NULL;
    if (bytes >= HEADER_BYTES)
        memcpy(&n, body, HEADER_BYTES);
    if (n == 0 || n > HEADER_MOST || n > bytes - HEADER_BYTES)
        return false;
    cJSON *header = cJSON_ParseWithLength(body + HEADER_BYTES, n);
    bool ok = cJSON_IsObject(header);
    cJSON_ArrayForEach (item, header) {
        if (strcmp(item->string, "__metadata__") == 0)
            continue;
        ok = ok && t->count < TENSORS_MOST &&
             read_tensor(item, body + HEADER_BYTES + n, bytes - HEADER_BYTES - n, &t->list[t->count]);
        t->count += ok;
    }
    if (ok)
        *metadata = cJSON_DetachItemFromObjectCaseSensitive(header, "__metadata__");
    cJSON_Delete(header);
    return ok;
}

const struct tensor *tensors_find(const struct tensors *t, const char *name)
{
    for (size_t i = 0; i < t->count; i++) {
        if (strcmp(t->list[i].name, name) == 0)
            return &t->list[i];
    }
    return NULL;
}
