/* geometry.c - see geometry.h. */
#include "config/geometry.h"

#include <math.h>
#include <stdio.h>

const char *const dtype_names[DTYPE_COUNT + 1] = {
#define XX(constant, name, bytes) name,
    DTYPE_MAP(XX)
#undef XX
};

static const uint8_t dtype_sizes[DTYPE_COUNT] = {
#define XX(constant, name, bytes) bytes,
    DTYPE_MAP(XX)
#undef XX
};

const char *const layout_names[LAYOUT_COUNT + 1] = {"hnd", "nhd"};

const char *dtype_name(enum dtype dtype)
{
    return dtype_names[dtype];
}

size_t dtype_bytes(enum dtype dtype)
{
    return dtype_sizes[dtype];
}

int dtype_is_fp8(enum dtype dtype)
{
    return dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
}

int geometry_check(const struct geometry *g, const char **field, char reason[GEOMETRY_REASON_BYTES])
{
    const struct {
        const char *field;
        uint32_t value, max;
    } counts[] = {
        {"layers", g->layers, LAYERS_MAX},
        {"query_heads", g->query_heads, QUERY_HEADS_MAX},
        {"kv_heads", g->kv_heads, KV_HEADS_MAX},
        {"head_dim", g->head_dim, HEAD_DIM_MAX},
        {"block_size", g->block_size, BLOCK_SIZE_MAX},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].value >= 1 && counts[i].value <= counts[i].max)
            continue;
        *field = counts[i].field;
        snprintf(reason, GEOMETRY_REASON_BYTES, "%u is not in 1..%u", counts[i].value, counts[i].max);
        return ATTND_INVALID;
    }
    if (g->query_heads % g->kv_heads != 0) {
        *field = "query_heads";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%u is not a multiple of kv_heads (%u)", g->query_heads,
                 g->kv_heads);
        return ATTND_INVALID;
    }
    if (g->head_dim % HEAD_DIM_STEP != 0) {
        *field = "head_dim";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%u is not a multiple of %d", g->head_dim,
                 HEAD_DIM_STEP);
        return ATTND_INVALID;
    }
    if (dtype_is_fp8(g->dtype)) {
        *field = "dtype";
        snprintf(reason, GEOMETRY_REASON_BYTES,
                 "q and o can be f32, f16 or bf16, not %s (kv_dtype can)", dtype_name(g->dtype));
        return ATTND_INVALID;
    }
    if (!(isfinite(g->scale) && g->scale > 0)) {
        *field = "scale";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%g is not a positive number", (double)g->scale);
        return ATTND_INVALID;
    }
    if (!(isfinite(g->softcap) && g->softcap >= 0)) {
        *field = "softcap";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%g is neither 0 nor a positive number",
                 (double)g->softcap);
        return ATTND_INVALID;
    }
    return 0;
}

uint64_t geometry_token_bytes(const struct geometry *g)
{
    return 2 * (uint64_t)g->kv_heads * g->head_dim * dtype_bytes(g->kv_dtype);
}

uint64_t geometry_block_bytes(const struct geometry *g)
{
    return geometry_token_bytes(g) * g->layers * g->block_size;
}
