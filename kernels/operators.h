/* SPDX-License-Identifier: Apache-2.0 */
/* operators.h - kernels over caches of the caller's own: of the vllm layout what vLLM's operators do, and of the hnd layout the backend's, which
 * are bit-stable.
 *
 * Nothing is kept between calls but the compiled kernels, and for TMA a description of each cache of the hnd layout. A call is a launch, or a
 * few, on the caller's stream, waits for nothing and may be captured in a CUDA graph: what it reads (lengths, tables, slots) lies on the GPU
 * and may change until a replay. Addresses are the GPU's and are not looked at: one that is wrong ends the context.
 *
 *   vllm  key_cache    [blocks][kv_heads][head_dim / x][block_size][x], x elements of kv_dtype being 16 bytes
 *         value_cache  [blocks][kv_heads][head_dim][block_size]
 *   hnd   cache        [blocks][K, V][kv_heads][block_size][head_dim]
 *
 * A block of one of the former takes block_bytes, from one to the next. Any thread. */
#ifndef KERNELS_OPERATORS_H
#define KERNELS_OPERATORS_H

#include "config/geometry.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    OPERATORS_ERROR_BYTES = 256,
    OPERATORS_LAYERS_MAX = 128,   /* of a launch of copy_blocks */
    OPERATORS_CACHES_MAX = 4096,  /* that are described to TMA, of the hnd layout */
    OPERATORS_QUERIES_MAX = 8192, /* whose lengths the GPU finds */
    OPERATORS_LISTS = 48,         /* of work tiles: one for each width and kind of split group, late or not */
    OPERATORS_SHAPE_WORDS = 10
};

struct operators;

/* operators_open(g, gpu, cache, operators, error): find or compile the kernels of a geometry of one layer (compiler.h), for a GPU.
 * Seconds, or milliseconds when they are cached. Returns 0, or a status with a sentence in `error`. */
MUST_USE int operators_open(const struct geometry *g, uint32_t gpu, const char *cache,
                            struct operators **operators, char error[OPERATORS_ERROR_BYTES]);
void operators_close(struct operators *operators);

struct operators_caches {
    void *k, *v;                    /* hnd: k is the cache, */
    uint64_t block_bytes;           /* and these follow from the geometry */
    const float *k_scale, *v_scale; /* one for all KV heads; hnd: [kv_heads] */
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

/* ---- attention over the hnd layout

 * A plan is made on the host, by a planner for these tiles and this many pieces of work; or, where lengths are the GPU's, a launch is sized for
 * the longest and the GPU finds its work tiles. Either way the launches are the same kind of data: what the host needs of them, and lists for
 * the GPU. Bits do not depend on any of it. */
const struct tile_caps *operators_caps(const struct operators *operators);
uint32_t operators_tasks(const struct operators *operators);

/* Plain data; addresses are offsets in the lists. */
struct operators_launches {
    uint32_t shape[OPERATORS_SHAPE_WORDS]; /* of the kernels that it is for */
    uint32_t queries, max_length, window;
    uint32_t slots;                  /* of splits that the GPU finds; 0: it is a plan's */
    uint32_t tiles[OPERATORS_LISTS]; /* how many, one list behind the other */
    uint32_t work_tiles, work_tile_queries, merges, merge_partials; /* offsets, in units of 16 bytes */
    uint32_t merge_count, longest_merge, spans;                     /* spans 1: a query has several */
    uint32_t partials;                                              /* partial states */
    uint64_t lists_bytes, workspace_bytes;
};

/* operators_lower(operators, plan, tables, stride, max_length, window, launches, lists): what of a plan for operators_caps(), over tables
 * [..][stride], goes to the GPU. `lists` [launches->lists_bytes], aligned to 16; NULL: only that size is wanted. */
void operators_lower(const struct operators *operators, const struct plan *plan, const uint32_t *tables,
                     uint32_t stride, uint32_t max_length, uint32_t window,
                     struct operators_launches *launches, void *lists);

/* operators_size(operators, queries, max_length, window, launches): of lists that the GPU writes. Returns NULL, or why there can be none. */
const char *operators_size(const struct operators *operators, uint32_t queries, uint32_t max_length,
                           uint32_t window, struct operators_launches *launches);

/* operators_are_for: whether launches are those of these kernels. */
bool operators_are_for(const struct operators *operators, const struct operators_launches *launches);

struct operators_decode {
    const struct operators_launches *launches;
    void *lists, *workspace;         /* of the GPU, lists_bytes and workspace_bytes, aligned to 16 */
    bool finds;                      /* first write the lists, from lengths and tables */
    const int32_t *tables, *lengths; /* [sequences][table_row], [sequences]; beyond max_length: not seen */
    const int32_t *starts;           /* [sequences + 1] cuda_tiles_pass.starts; NULL: one query a sequence */
    uint64_t table_row;
    uint32_t sequences;
    struct operators_caches caches; /* k NULL: only write the lists */
    uint64_t blocks;                /* of the cache */
    const void *q;                  /* [queries][query_heads][head_dim] */
    void *o;
    float *lse;                 /* [queries][query_heads]; NULL: not wanted */
    const float *sinks, *alibi; /* [query_heads]; NULL */
    float scale;                /* the soft cap is the geometry's */
};

/* operators_decode: NULL, or what went wrong, as the others above. */
const char *operators_decode(struct operators *operators, const struct operators_decode *of, void *stream);

/* ---- blocks

 * Whole blocks [pairs][2] of `layers` caches, from the first of a pair to the second. */
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
