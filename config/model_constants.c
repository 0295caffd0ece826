/* SPDX-License-Identifier: Apache-2.0 */
/* model_constants.c - see model_constants.h.
 *
 * "seeded" values come from splitmix64 of (constant, index), so they depend on nothing but their place:
 *   sinks      uniform in [-2, 2)
 *   scales     2^e with uniform e in {-2, -1, 0, 1}: powers of two, as calibration tools often round to
 *   alibi      the slopes of the ALiBi paper, 2^(-8 (h + 1) / heads) */
#include "config/model_constants.h"

#include <cjson/cJSON.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum constant { SINKS, ALIBI, K_SCALE, V_SCALE };

/* Where one constant goes: values [rows][columns], all > 0 if it is a scale. */
struct target {
    enum constant constant;
    const char *field;
    float *values;
    uint32_t rows, columns;
};

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t splitmix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static float seeded_value(const struct target *t, uint64_t index)
{
    uint64_t random = splitmix64(((uint64_t)t->constant << 32) + index);
    switch (t->constant) {
    case SINKS:
        return (float)((double)(random >> 40) / (1 << 22) - 2.0);
    case ALIBI:
        return (float)exp2(-8.0 * (double)(index + 1) / t->columns);
    default:
        return ldexpf(1.0F, (int)(random >> 62) - 2);
    }
}

static int refuse(const struct target *t, const char **field, char reason[GEOMETRY_REASON_BYTES])
{
    *field = t->field;
    snprintf(reason, GEOMETRY_REASON_BYTES, "wants %sa %snumber%s, a list of %u%s, or \"seeded\"",
             t->constant <= ALIBI ? "false, " : "", t->constant >= K_SCALE ? "positive " : "",
             t->constant >= K_SCALE ? " below 2^30" : "", t->columns,
             t->constant == ALIBI ? "" : " (or one such list per layer)");
    return ATTND_INVALID;
}

static bool store_number(const struct target *t, uint64_t index, const cJSON *item)
{
    float value = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
    t->values[index] = value;
    return isfinite(value) && (t->constant <= ALIBI || (value > 0 && value < MODEL_SCALE_LIMIT));
}

/* One row from a list of exactly `columns` numbers. */
static bool store_row(const struct target *t, uint32_t row, const cJSON *list)
{
    uint32_t n = 0;
    const cJSON *item;
    if (!cJSON_IsArray(list))
        return false;
    cJSON_ArrayForEach (item, list) {
        if (n == t->columns || !store_number(t, (uint64_t)row * t->columns + n, item))
            return false;
        n++;
    }
    return n == t->columns;
}

static bool store_source(const struct target *t, const cJSON *source)
{
    uint64_t count = (uint64_t)t->rows * t->columns;
    bool nested = cJSON_IsArray(source) && cJSON_IsArray(source->child);
    if (cJSON_IsString(source) && strcmp(source->valuestring, "seeded") == 0) {
        for (uint64_t i = 0; i < count; i++)
            t->values[i] = seeded_value(t, i);
        return true;
    }
    if (cJSON_IsNumber(source)) {
        for (uint64_t i = 0; i < count; i++) {
            if (!store_number(t, i, source))
                return false;
        }
        return true;
    }
    if (!cJSON_IsArray(source) || (nested && cJSON_GetArraySize(source) != (int)t->rows))
        return false;
    const cJSON *list = source->child;
    for (uint32_t row = 0; row < t->rows; row++) {
        if (!store_row(t, row, nested ? list : source))
            return false;
        list = nested ? list->next : list;
    }
    return true;
}

int model_constants_init(struct model_constants *c, const struct geometry *g,
                         const struct model_constants_source *source, const char **field,
                         char reason[GEOMETRY_REASON_BYTES])
{
    const struct {
        struct target target;
        const cJSON *source;
        float **slot;
    } all[] = {
        {{SINKS, "sinks", NULL, g->layers, g->query_heads}, source->sinks, &c->sinks},
        {{ALIBI, "alibi", NULL, 1, g->query_heads}, source->alibi, &c->alibi},
        {{K_SCALE, "k_scale", NULL, g->layers, g->kv_heads}, source->k_scale, &c->k_scale},
        {{V_SCALE, "v_scale", NULL, g->layers, g->kv_heads}, source->v_scale, &c->v_scale},
    };
    *c = (struct model_constants){0};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct target t = all[i].target;
        if (t.constant <= ALIBI && cJSON_IsFalse(all[i].source))
            continue;
        t.values = malloc(sizeof(float) * t.rows * t.columns);
        *all[i].slot = t.values;
        if (!t.values)
            abort(); /* at most 1 MiB, before anything is served */
        if (t.constant == SINKS && g->layout == LAYOUT_VLLM) {
            model_constants_deinit(c);
            *field = t.field;
            snprintf(reason, GEOMETRY_REASON_BYTES, "the kernels of the layout vllm know no sinks");
            return ATTND_INVALID;
        }
        if (!store_source(&t, all[i].source)) {
            model_constants_deinit(c);
            return refuse(&t, field, reason);
        }
        for (uint64_t n = 0; t.constant >= K_SCALE && n < (uint64_t)t.rows * t.columns; n++) {
            if (t.values[n] == 1.0F || dtype_is_fp8(g->kv_dtype))
                continue;
            *field = t.field;
            snprintf(reason, GEOMETRY_REASON_BYTES, "only fp8 has scales, and kv_dtype is %s",
                     dtype_name(g->kv_dtype));
            model_constants_deinit(c);
            return ATTND_INVALID;
        }
    }
    return 0;
}

int model_constants_replace(struct model_constants *c, const struct geometry *g,
                            const struct model_constants *with)
{
    size_t by_query = (size_t)g->layers * g->query_heads, by_kv = (size_t)g->layers * g->kv_heads;
    const struct {
        float **to;
        const float *from;
        size_t n;
    } all[] = {{&c->sinks, with->sinks, by_query},
               {&c->alibi, with->alibi, g->query_heads},
               {&c->k_scale, with->k_scale, by_kv},
               {&c->v_scale, with->v_scale, by_kv}};
    enum { CONSTANTS = sizeof all / sizeof all[0] };
    float *fresh[CONSTANTS];
    bool made = true;
    for (size_t i = 0; i < CONSTANTS; i++) {
        bool wanted = all[i].from && !*all[i].to;
        fresh[i] = wanted ? malloc(all[i].n * sizeof(float)) : NULL;
        made &= !wanted || fresh[i];
    }
    for (size_t i = 0; i < CONSTANTS; i++) {
        if (!made)
            free(fresh[i]);
        if (!made || !all[i].from)
            continue;
        *all[i].to = fresh[i] ? fresh[i] : *all[i].to;
        memcpy(*all[i].to, all[i].from, all[i].n * sizeof(float));
        c->version++;
    }
    return made ? 0 : ATTND_NO_MEMORY;
}

/* A list that is not there is another one than a list of zeros. */
static void add_list(XXH3_state_t *digest, const float *list, size_t n)
{
    const uint8_t there = list != NULL;
    XXH3_64bits_update(digest, &there, 1);
    if (list)
        XXH3_64bits_update(digest, list, n * sizeof *list);
}

uint64_t model_constants_digest(const struct model_constants *c, const struct geometry *g)
{
    size_t of_queries = (size_t)g->layers * g->query_heads, of_kv = (size_t)g->layers * g->kv_heads;
    XXH3_state_t digest;
    XXH3_64bits_reset(&digest);
    add_list(&digest, c->sinks, of_queries);
    add_list(&digest, c->alibi, g->query_heads);
    add_list(&digest, c->k_scale, of_kv);
    add_list(&digest, c->v_scale, of_kv);
    return XXH3_64bits_digest(&digest);
}

void model_constants_deinit(struct model_constants *c)
{
    free(c->sinks);
    free(c->alibi);
    free(c->k_scale);
    free(c->v_scale);
    *c = (struct model_constants){0};
}
