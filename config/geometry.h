/* SPDX-License-Identifier: Apache-2.0 */
/* geometry.h - the shape of the attention that a daemon serves, and the arithmetic that follows from
 * it.
 *
 * One daemon serves one geometry, fixed at start. Everything here is plain data; sizes are computed in
 * 64 bits from fields that geometry_check() has bounded, so no product below can overflow. */
#ifndef CONFIG_GEOMETRY_H
#define CONFIG_GEOMETRY_H

#include "config/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    LAYERS_MAX = 256,
    QUERY_HEADS_MAX = 1024,
    KV_HEADS_MAX = 256,
    HEAD_DIM_MAX = 256,
    HEAD_DIM_STEP = 8,    /* head_dim is a multiple of it, so that every row is whole vectors of 8 */
    BLOCK_SIZE_MAX = 256, /* token slots */
    GEOMETRY_REASON_BYTES = 160,
    GEOMETRY_TEXT_BYTES = 320
};

#define POOL_BLOCKS_MAX UINT32_C(0x7fffffff) /* ids are 32-bit and the upper half is kept for marks */

#define POOL_BYTES_MAX (UINT64_C(1) << 50)

/* XX(constant, name, bytes of an element) */
#define DTYPE_MAP(XX)                                                                                        \
    XX(DTYPE_F32, "f32", 4)                                                                                  \
    XX(DTYPE_F16, "f16", 2)                                                                                  \
    XX(DTYPE_BF16, "bf16", 2)                                                                                \
    XX(DTYPE_E4M3, "e4m3", 1) /* OCP E4M3FN: largest 448, no infinity */                                     \
    XX(DTYPE_E5M2, "e5m2", 1) /* OCP E5M2: largest 57344 */

enum dtype {
#define XX(constant, name, bytes) constant,
    DTYPE_MAP(XX)
#undef XX
        DTYPE_COUNT
};

/* How a block's K (and its V) of one layer lies in memory, outermost first. */
enum kv_layout {
    LAYOUT_HND, /* [kv_heads][block_size][head_dim] */
    LAYOUT_NHD, /* [block_size][kv_heads][head_dim] */
    /* K [kv_heads][head_dim / x][block_size][x], x elements being 16 bytes; V
       [kv_heads][head_dim][block_size] */
    LAYOUT_VLLM,
    LAYOUT_COUNT
};

/* Block-sparse attention, of the vllm layout: of the blocks of `block_size` tokens a query sees the
 * latest `local_blocks` (its own included), and every vert_stride'th, from a first one that slides by
 * head_sliding_step a head: query heads, or KV heads if it is negative. tp_rank: of a model that is
 * spread over several daemons, which counts heads on from the ranks before. */
struct block_sparse {
    uint32_t local_blocks, vert_stride, block_size, tp_rank; /* vert_stride 0 or 1: all are seen */
    int32_t head_sliding_step;
};

struct geometry {
    uint32_t layers, query_heads, kv_heads, head_dim;
    uint32_t block_size;         /* token slots of a block */
    enum dtype dtype;            /* of q and o: f32, f16 or bf16 */
    enum dtype kv_dtype;         /* of stored k and v */
    enum kv_layout layout;       /* of a block */
    float scale;                 /* of q.k, before softcap; > 0 */
    float softcap;               /* 0: none */
    uint32_t window[LAYERS_MAX]; /* tokens that a query sees, itself included; 0: all */
    struct block_sparse sparse;
};

/* Model constants, allocated to the geometry's sizes. NULL sinks or alibi: the model has none. */
struct model_constants {
    float *sinks;     /* [layers][query_heads]: one more logit in every softmax, without a value */
    float *alibi;     /* [query_heads]: slope of the distance bias */
    float *k_scale;   /* [layers][kv_heads]: stored k = k / k_scale; 1 unless kv_dtype is fp8 */
    float *v_scale;   /* [layers][kv_heads] */
    uint64_t version; /* grows with every change */
};

const char *dtype_name(enum dtype dtype);
size_t dtype_bytes(enum dtype dtype);
int dtype_is_fp8(enum dtype dtype);
extern const char *const dtype_names[DTYPE_COUNT + 1];   /* NULL-terminated, for parsing */
extern const char *const layout_names[LAYOUT_COUNT + 1]; /* likewise */

/* geometry_check(g, field, reason): whether `g` can be served. Returns 0, or ATTND_INVALID with the
 * name of the offending field ("query_heads", a constant) in `*field` and a sentence in `reason`. */
MUST_USE int geometry_check(const struct geometry *g, const char **field, char reason[GEOMETRY_REASON_BYTES]);

/* geometry_describe: what decides the attention over stored K and V, in words: other words, other outputs. */
void geometry_describe(const struct geometry *g, char text[GEOMETRY_TEXT_BYTES]);

/* Blocks that so many tokens take. */
static inline uint32_t geometry_blocks(const struct geometry *g, uint64_t tokens)
{
    return (uint32_t)(tokens / g->block_size + (tokens % g->block_size != 0));
}

/* Bytes of a token's K, or V, of one layer, in a format. */
static inline size_t geometry_kv_row_bytes(const struct geometry *g, enum dtype dtype)
{
    return (size_t)g->kv_heads * g->head_dim * dtype_bytes(dtype);
}

/* Bytes of K, or V, of `tokens` tokens of all layers, as it is stored. */
static inline size_t geometry_kv_bytes(const struct geometry *g, uint64_t tokens)
{
    return (size_t)tokens * g->layers * geometry_kv_row_bytes(g, g->kv_dtype);
}

/* Bytes of a row of q, or o. */
static inline size_t geometry_q_row_bytes(const struct geometry *g)
{
    return (size_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
}

/* Query heads that share one KV head. */
static inline uint32_t geometry_group(const struct geometry *g)
{
    return g->query_heads / g->kv_heads;
}

/* Whether a query head that sees positions below `keys` sees position `j` of them under block-sparse
 * attention. */
static inline int geometry_sees(const struct geometry *g, uint32_t query_head, uint32_t keys, uint32_t j)
{
    const struct block_sparse *s = &g->sparse;
    if (s->vert_stride <= 1)
        return 1;
    uint32_t query_block = (keys - 1) / s->block_size, key_block = j / s->block_size;
    uint32_t first =
        s->head_sliding_step >= 0
            ? (s->tp_rank * g->query_heads + query_head) * (uint32_t)s->head_sliding_step
            : (s->tp_rank * g->kv_heads + query_head / geometry_group(g)) * (uint32_t)-s->head_sliding_step;
    return key_block + s->local_blocks > query_block || (key_block + first + 1) % s->vert_stride == 0;
}

/* Bytes of K plus V of one token in one layer, and of one block in all layers. */
uint64_t geometry_token_bytes(const struct geometry *g);
uint64_t geometry_block_bytes(const struct geometry *g);

#endif
