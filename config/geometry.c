/* SPDX-License-Identifier: Apache-2.0 */
/* geometry.c - see geometry.h. */
#include "config/geometry.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

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

const char *const layout_names[LAYOUT_COUNT + 1] = {"hnd", "nhd", "vllm"};

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

/* What the kernels of the vllm layout are made for. */
static int check_vllm(const struct geometry *g, const char **field, char reason[GEOMETRY_REASON_BYTES])
{
    static const uint32_t head_dims[] = {32, 64, 80, 96, 112, 120, 128, 192, 256};
    bool known_dim = false, windowed = false;
    for (size_t i = 0; i < sizeof head_dims / sizeof head_dims[0]; i++)
        known_dim |= g->head_dim == head_dims[i];
    for (uint32_t layer = 0; layer < g->layers; layer++)
        windowed |= g->window[layer] != 0;
    const char *wants = NULL;
    *field = "layout";
    if (!known_dim)
        wants = "vllm has heads of 32, 64, 80, 96, 112, 120, 128, 192 or 256";
    else if (g->block_size != 8 && g->block_size != 16 && g->block_size != 32)
        wants = "vllm has blocks of 8, 16 or 32 slots";
    else if (g->kv_dtype != g->dtype && !dtype_is_fp8(g->kv_dtype))
        wants = "vllm stores k and v in the format of q, or in e4m3 or e5m2";
    else if (g->head_dim * dtype_bytes(g->kv_dtype) % 16 != 0)
        wants = "vllm keeps keys in vectors of 16 bytes: this head_dim is not a whole number of them";
    else if (windowed || g->softcap > 0)
        wants = "vllm has neither windows nor softcap";
    else if (g->sparse.vert_stride > 1 && g->sparse.block_size % g->block_size != 0)
        wants = "vllm's sparse blocks are whole blocks: sparse_block_size is no multiple of block_size";
    if (!wants)
        return 0;
    snprintf(reason, GEOMETRY_REASON_BYTES, "%s", wants);
    return ATTND_INVALID;
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
        snprintf(reason, GEOMETRY_REASON_BYTES, "%u is not a multiple of %d", g->head_dim, HEAD_DIM_STEP);
        return ATTND_INVALID;
    }
    if (dtype_is_fp8(g->dtype)) {
        *field = "dtype";
        snprintf(reason, GEOMETRY_REASON_BYTES, "q and o can be f32, f16 or bf16, not %s (kv_dtype can)",
                 dtype_name(g->dtype));
        return ATTND_INVALID;
    }
    if (g->layout == LAYOUT_VLLM && check_vllm(g, field, reason) != 0)
        return ATTND_INVALID;
    if (g->layout != LAYOUT_VLLM && g->sparse.vert_stride > 1) {
        *field = "sparse_vert_stride";
        snprintf(reason, GEOMETRY_REASON_BYTES, "block-sparse attention needs the layout vllm");
        return ATTND_INVALID;
    }
    if (!(isfinite(g->scale) && g->scale > 0)) {
        *field = "scale";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%g is not a positive number", (double)g->scale);
        return ATTND_INVALID;
    }
    if (!(isfinite(g->softcap) && g->softcap >= 0)) {
        *field = "softcap";
        snprintf(reason, GEOMETRY_REASON_BYTES, "%g is neither 0 nor a positive number", (double)g->softcap);
        return ATTND_INVALID;
    }
    return 0;
}

void geometry_describe(const struct geometry *g, char text[GEOMETRY_TEXT_BYTES])
{
    size_t n = (size_t)snprintf(text, GEOMETRY_TEXT_BYTES,
                                "layers %u, query_heads %u, kv_heads %u, head_dim %u, dtype %s, kv_dtype %s, "
                                "scale %.9g, softcap %.9g",
                                g->layers, g->query_heads, g->kv_heads, g->head_dim, dtype_name(g->dtype),
                                dtype_name(g->kv_dtype), (double)g->scale, (double)g->softcap);
    bool windows = false;
    for (uint32_t layer = 0; layer < g->layers; layer++)
        windows |= g->window[layer] != 0;
    if (windows)
        n += (size_t)snprintf(text + n, GEOMETRY_TEXT_BYTES - n, ", windows %016llx",
                              (unsigned long long)XXH3_64bits(g->window, g->layers * sizeof g->window[0]));
    if (g->sparse.vert_stride > 1)
        snprintf(text + n, GEOMETRY_TEXT_BYTES - n, ", sparse %u %u %u %u %d", g->sparse.local_blocks,
                 g->sparse.vert_stride, g->sparse.block_size, g->sparse.tp_rank, g->sparse.head_sliding_step);
}

uint64_t geometry_token_bytes(const struct geometry *g)
{
    return 2 * (uint64_t)g->kv_heads * g->head_dim * dtype_bytes(g->kv_dtype);
}

uint64_t geometry_block_bytes(const struct geometry *g)
{
    return geometry_token_bytes(g) * g->layers * g->block_size;
}
