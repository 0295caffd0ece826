/* SPDX-License-Identifier: Apache-2.0 */
/* operators.h - the kernels of the vllm layout over caches of the caller's own: what vLLM's operators of these names do.
 *
 * Nothing is kept between calls but the compiled kernels. A call is a launch, or a few, on the caller's stream, waits for nothing and
 * may be captured in a CUDA graph: what it reads (lengths, tables, slots) lies on the GPU and may change until a replay. Addresses are
 * the GPU's and are not looked at: one that is wrong ends the context.
 *
 *   key_cache    [blocks][kv_heads][head_dim / x][block_size][x], x elements of kv_dtype being 16 bytes
 *   value_cache  [blocks][kv_heads][head_dim][block_size]
 *
 * A block of either takes block_bytes, from one to the next. Any thread. */
#ifndef KERNELS_OPERATORS_H
#define KERNELS_OPERATORS_H

#include "config/geometry.h"

#include <stdbool.h>
#include <stdint.h>

enum { OPERATORS_ERROR_BYTES = 256, OPERATORS_LAYERS_MAX = 128 /* of a launch of copy_blocks */ };

struct operators;

/* operators_open(g, gpu, cache, operators, error): find or compile the kernels of a geometry of the vllm layout (compiler.h), for a GPU.
 * Seconds, or milliseconds when they are cached. Returns 0, or a status with a sentence in `error`. */
MUST_USE int operators_open(const struct geometry *g, uint32_t gpu, const char *cache,
                            struct operators **operators, char error[OPERATORS_ERROR_BYTES]);
void operators_close(struct operators *operators);

struct operators_caches {
    void *k, *v;
    uint64_t block_bytes;
    const float *k_scale, *v_scale; /* of all KV heads */
};

/* o of one query a sequence, of geometry.dtype. */
struct operators_attention {
    struct operators_caches caches;
    const void *q; /* [sequences][query_heads][head_dim], rows q_row elements apart */
    uint64_t q_row;
    void *o;                         /* [sequences][query_heads][head_dim] */
    const int32_t *tables, *lengths; /* [sequences][table_row], [sequences]: at most max_length, */
    uint64_t table_row;
    uint32_t sequences, max_length; /* which the launch is made for */
    const float *alibi;             /* [query_heads]; NULL */
    float scale;
    float *partials; /* paged_v2: [sequences * query_heads * ceil(max_length / 512) * (head_dim + 2)] */
};

/* operators_v1_max: the longest max_length of paged_v1, which keeps logits in shared memory. */
uint32_t operators_v1_max(const struct operators *operators);

/* All return NULL, or what went wrong, until the next call of the thread. */
const char *operators_attend(struct operators *operators, const struct operators_attention *of, bool v2,
                             void *stream);

/* k and v of tokens [tokens][kv_heads][head_dim], of `dtype` (geometry.dtype or kv_dtype), rows k_row and v_row elements apart, to their
 * slots [tokens], block * block_size + slot; a negative one: nowhere. */
struct operators_tokens {
    struct operators_caches caches;
    const void *k, *v;
    uint64_t k_row, v_row;
    enum dtype dtype;
    const int64_t *slots;
    uint32_t tokens;
};
const char *operators_store(struct operators *operators, const struct operators_tokens *of, void *stream);

/* Whole blocks [pairs][2] of `layers` caches, from the first of a pair to the second. */
struct operators_copies {
    void *const *k, *const *v; /* [layers] */
    uint64_t block_bytes;
    const int64_t *pairs;
    uint32_t layers, pair_count;
};
const char *operators_copy(struct operators *operators, const struct operators_copies *of, void *stream);

/* Blocks between two memories, of the GPU or the host; pairs lie in the host's. A copy of pageable host memory may wait. */
const char *operators_swap(struct operators *operators, void *to, const void *from, uint64_t block_bytes,
                           const int64_t *pairs, uint32_t pair_count, void *stream);

#endif
