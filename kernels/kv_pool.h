/* SPDX-License-Identifier: Apache-2.0 */
/* kv_pool.h - the bytes of the KV pool in host memory, and where everything lies in them.
 *
 * Shared by the host backends. One mapping on huge pages:
 *
 *   [layer][block][K, V][ hnd: kv_head, slot, dim | nhd: slot, kv_head, dim | vllm: geometry.h ]
 *
 * A layer's pool is contiguous, so consecutive block ids are consecutive memory for the pass that reads
 * one layer. All offsets are 64-bit. No locks: who writes what is the caller's affair. */
#ifndef KERNELS_KV_POOL_H
#define KERNELS_KV_POOL_H

#include "kernels/attention.h"

struct kv_pool {
    const struct geometry *geometry;
    uint32_t blocks;
    uint8_t *bytes;
    uint64_t total_bytes;
    uint64_t layer_bytes, block_bytes; /* one layer of all blocks; K and V of one block in one layer */
    uint64_t plane_bytes;              /* K, or V, of one block in one layer */
    uint64_t head_bytes, slot_bytes;   /* strides of a KV head and of a token slot */
    size_t element_bytes;
};

/* kv_pool_lay_out(pool, geometry, blocks): sizes and strides, no memory. */
void kv_pool_lay_out(struct kv_pool *pool, const struct geometry *geometry, uint32_t blocks);

/* kv_pool_init(pool, geometry, blocks, key, error): map the memory, untouched; none for 0 blocks.
 * Returns 0, or ATTND_NO_MEMORY with the arithmetic in `error`, which names the configuration's `key`. */
MUST_USE int kv_pool_init(struct kv_pool *pool, const struct geometry *geometry, uint32_t blocks,
                          const char *key, char error[ATTENTION_ERROR_BYTES]);
void kv_pool_deinit(struct kv_pool *pool);

/* Where blocks that are swapped are, in a pool of their own. */
struct attention_host kv_pool_host(const struct kv_pool *host);

/* hnd and nhd: the K row of one token and head; its V row lies plane_bytes behind. */
static inline uint8_t *kv_pool_key(const struct kv_pool *pool, uint32_t layer, uint32_t block, uint32_t slot,
                                   uint32_t kv_head)
{
    return pool->bytes + layer * pool->layer_bytes + block * pool->block_bytes + kv_head * pool->head_bytes +
           slot * pool->slot_bytes;
}

/* kv_pool_load: K (or V) of one token and head, [head_dim] in the stored format, whatever the layout. */
void kv_pool_load(const struct kv_pool *pool, uint32_t layer, uint32_t block, uint32_t slot, uint32_t kv_head,
                  bool v, void *row);

/* `rows` pieces of `bytes`, `pitch` apart, that are filled with a byte; `offset` is from the beginning of the pool. */
struct kv_fill {
    uint64_t offset, bytes, pitch;
    uint32_t rows;
    uint8_t byte;
};

/* kv_pool_poison(pool, copy, layer, v): what a COPY_POISON fills of K, or V, in one layer. In every format an element of which all
 * bits are set is NaN. */
struct kv_fill kv_pool_poison(const struct kv_pool *pool, const struct block_copy *copy, uint32_t layer,
                              bool v);

/* kv_pool_copy(pool, host, copy, layer): the part of a copy that lies in one layer; `host` has the
 * blocks that are swapped to. */
void kv_pool_copy(const struct kv_pool *pool, const struct kv_pool *host, const struct block_copy *copy,
                  uint32_t layer);

/* kv_pool_append(pool, constants, pass, append, ids): store the tokens of one append; `ids` is its
 * sequence's table. */
void kv_pool_append(const struct kv_pool *pool, const struct model_constants *constants,
                    const struct attention_pass *pass, const struct kv_append *append, const uint32_t *ids);

/* kv_pool_compare(pool, constants, c, first, n, ids): how many of the rows [first, first + n) of a
 * comparison, from `first` on, are equal; `ids` is its table. */
uint32_t kv_pool_compare(const struct kv_pool *pool, const struct model_constants *constants,
                         const struct kv_compare *c, uint32_t first, uint32_t n, const uint32_t *ids);

/* kv_pool_read(pool, r, first, n, ids): rows [first, first + n) of what is read. */
void kv_pool_read(const struct kv_pool *pool, const struct kv_read *r, uint32_t first, uint32_t n,
                  const uint32_t *ids);

/* kv_pool_load_q(geometry, pass, row, head, q): one head of one query row as f32 [head_dim], generated
 * where the pass says so. */
void kv_pool_load_q(const struct geometry *geometry, const struct attention_pass *pass, uint32_t row,
                    uint32_t head, float *q);

#endif
