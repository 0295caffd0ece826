/* SPDX-License-Identifier: Apache-2.0 */
/* kv_pool.c - see kv_pool.h. */
#include "kernels/kv_pool.h"

#include "config/fault.h"
#include "config/host_memory.h"
#include "config/mapping.h"
#include "kernels/numeric.h"
#include "kernels/values.h"

#include <string.h>

enum { RESERVE_BYTES = 64 << 20 }; /* of memory that the pool leaves to everything else */

void kv_pool_lay_out(struct kv_pool *pool, const struct geometry *g, uint32_t blocks)
{
    uint64_t row_bytes = g->head_dim * dtype_bytes(g->kv_dtype);
    *pool = (struct kv_pool){.geometry = g, .blocks = blocks, .element_bytes = dtype_bytes(g->kv_dtype)};
    pool->plane_bytes = row_bytes * g->kv_heads * g->block_size;
    pool->block_bytes = 2 * pool->plane_bytes;
    pool->layer_bytes = pool->block_bytes * blocks;
    pool->total_bytes = pool->layer_bytes * g->layers;
    pool->head_bytes = g->layout == LAYOUT_HND ? row_bytes * g->block_size : row_bytes;
    pool->slot_bytes = g->layout == LAYOUT_HND ? row_bytes : row_bytes * g->kv_heads;
}

int kv_pool_init(struct kv_pool *pool, const struct geometry *g, uint32_t blocks, const char *key,
                 char error[ATTENTION_ERROR_BYTES])
{
    uint64_t available = host_memory_available();
    key = key ? key : "pool.blocks";
    kv_pool_lay_out(pool, g, blocks);
    if (blocks == 0)
        return 0;
    if (available && pool->total_bytes + RESERVE_BYTES > available) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "%s: %u blocks of %llu bytes are %llu MiB and do not fit: %llu MiB are available, of "
                 "which %d stay free",
                 key, blocks, (unsigned long long)geometry_block_bytes(g),
                 (unsigned long long)(pool->total_bytes >> 20), (unsigned long long)(available >> 20),
                 RESERVE_BYTES >> 20);
        return ATTND_NO_MEMORY;
    }
    pool->bytes = mapping_create(pool->total_bytes, 1);
    if (!pool->bytes) {
        snprintf(error, ATTENTION_ERROR_BYTES, "%s: no memory for %u blocks", key, blocks);
        return ATTND_NO_MEMORY;
    }
    return 0;
}

void kv_pool_deinit(struct kv_pool *pool)
{
    mapping_destroy(pool->bytes, pool->total_bytes);
    *pool = (struct kv_pool){0};
}

struct attention_host kv_pool_host(const struct kv_pool *host)
{
    return (struct attention_host){host->bytes, host->geometry->layers, host->layer_bytes, host->block_bytes,
                                   host->block_bytes};
}

static uint8_t *plane_of(const struct kv_pool *pool, uint32_t layer, uint32_t block, bool v)
{
    return pool->bytes + layer * pool->layer_bytes + block * pool->block_bytes + v * pool->plane_bytes;
}

/* The vllm layout: one element of a plane. */
static uint8_t *packed_at(const struct kv_pool *pool, uint8_t *plane, uint32_t slot, uint32_t kv_head,
                          uint32_t dim, bool v)
{
    const struct geometry *g = pool->geometry;
    uint32_t x = 16 / (uint32_t)pool->element_bytes;
    uint64_t row = (uint64_t)kv_head * g->head_dim + dim;
    uint64_t element = v ? row * g->block_size + slot
                         : (row / x * g->block_size + slot) * x + dim % x; /* head_dim is a multiple of x */
    return plane + element * pool->element_bytes;
}

void kv_pool_load(const struct kv_pool *pool, uint32_t layer, uint32_t block, uint32_t slot, uint32_t kv_head,
                  bool v, void *row)
{
    size_t bytes = pool->element_bytes, n = pool->geometry->head_dim;
    uint8_t *plane = plane_of(pool, layer, block, v), *to = row;
    if (pool->geometry->layout != LAYOUT_VLLM) {
        memcpy(to, plane + kv_head * pool->head_bytes + slot * pool->slot_bytes, n * bytes);
        return;
    }
    for (uint32_t d = 0; d < n; d++)
        memcpy(to + d * bytes, packed_at(pool, plane, slot, kv_head, d, v), bytes);
}

static void store(const struct kv_pool *pool, uint32_t layer, uint32_t block, uint32_t slot, uint32_t kv_head,
                  bool v, const uint8_t *row)
{
    size_t bytes = pool->element_bytes, n = pool->geometry->head_dim;
    uint8_t *plane = plane_of(pool, layer, block, v);
    if (pool->geometry->layout != LAYOUT_VLLM) {
        memcpy(plane + kv_head * pool->head_bytes + slot * pool->slot_bytes, row, n * bytes);
        return;
    }
    for (uint32_t d = 0; d < n; d++)
        memcpy(packed_at(pool, plane, slot, kv_head, d, v), row + d * bytes, bytes);
}

struct kv_fill kv_pool_poison(const struct kv_pool *pool, const struct block_copy *copy, uint32_t layer,
                              bool v)
{
    const struct geometry *g = pool->geometry;
    uint32_t x =
        v ? 1 : 16 / (uint32_t)pool->element_bytes; /* elements of a slot that lie together (packed_at) */
    struct kv_fill fill = {.offset = layer * pool->layer_bytes + copy->to * pool->block_bytes +
                                     v * pool->plane_bytes,
                           .bytes = pool->plane_bytes,
                           .rows = 1,
                           .byte = v ? 0xff : 0};
    if (copy->slots == g->block_size)
        return fill;
    uint64_t slot_bytes = g->layout == LAYOUT_VLLM ? x * pool->element_bytes : pool->slot_bytes;
    fill.offset += copy->from * slot_bytes;
    fill.bytes = copy->slots * slot_bytes;
    fill.pitch = g->block_size * slot_bytes;
    if (g->layout != LAYOUT_NHD)
        fill.rows = g->layout == LAYOUT_HND ? g->kv_heads : g->kv_heads * g->head_dim / x;
    return fill;
}

static void make_poison(const struct kv_pool *pool, const struct block_copy *copy, uint32_t layer)
{
    for (int v = 0; v < 2; v++) {
        const struct kv_fill fill = kv_pool_poison(pool, copy, layer, v != 0);
        for (uint32_t row = 0; row < fill.rows; row++)
            memset(pool->bytes + fill.offset + row * fill.pitch, fill.byte, fill.bytes);
    }
}

void kv_pool_copy(const struct kv_pool *pool, const struct kv_pool *host, const struct block_copy *copy,
                  uint32_t layer)
{
    const struct geometry *g = pool->geometry;
    const struct kv_pool *from_pool = copy->kind == COPY_SWAP_IN ? host : pool,
                         *to_pool = copy->kind == COPY_SWAP_OUT ? host : pool;
    if (copy->kind == COPY_CLEAR) {
        memset(plane_of(pool, layer, copy->to, false), 0, pool->block_bytes);
        return;
    }
    if (copy->kind == COPY_POISON) {
        make_poison(pool, copy, layer);
        return;
    }
    /* the filled slots lie together per head (hnd) or for all heads at once (nhd), or are spread (vllm) */
    uint32_t pieces = g->layout == LAYOUT_HND ? g->kv_heads : 1;
    uint64_t bytes = g->layout == LAYOUT_VLLM ? pool->plane_bytes : copy->slots * pool->slot_bytes;
    for (uint32_t head = 0; head < pieces; head++) {
        const uint8_t *from = kv_pool_key(from_pool, layer, copy->from, 0, head);
        uint8_t *to = kv_pool_key(to_pool, layer, copy->to, 0, head);
        memcpy(to, from, bytes);
        memcpy(to + pool->plane_bytes, from + pool->plane_bytes, bytes);
    }
}

/* One head of one token as it is stored, in `to`: divided by its scale and rounded once. */
static const uint8_t *round_row(const struct kv_pool *pool, float *row, float scale, uint8_t *to)
{
    const struct geometry *g = pool->geometry;
    for (uint32_t d = 0; scale != 1.0F && d < g->head_dim; d++)
        row[d] /= scale;
    numeric_from_float(g->kv_dtype, row, g->head_dim, to);
    return to;
}

/* The same of token `i` of a tensor in `dtype`: what has the stored format already is taken where it lies. */
static const uint8_t *convert_row(const struct kv_pool *pool, enum dtype dtype, const uint8_t *tensor,
                                  uint32_t i, uint32_t head, float scale, uint8_t *to)
{
    const struct geometry *g = pool->geometry;
    const uint8_t *from = tensor + ((size_t)i * g->kv_heads + head) * g->head_dim * dtype_bytes(dtype);
    float row[HEAD_DIM_MAX];
    if (dtype == g->kv_dtype)
        return from;
    numeric_to_float(dtype, from, g->head_dim, row);
    return round_row(pool, row, scale, to);
}

/* The same of an append's token, from the caller's tensor or from the generator. */
static const uint8_t *make_row(const struct kv_pool *pool, const struct attention_pass *pass,
                               const struct kv_append *append, uint32_t i, uint32_t head, bool v, float scale,
                               uint8_t *to)
{
    float row[HEAD_DIM_MAX];
    if (append->k)
        return convert_row(pool, pass->source_dtype, v ? append->v : append->k, i, head, scale, to);
    values_row(append->generated, append->position + i + FAULTY(FAULT_POSITION), pass->layer,
               v ? VALUES_V : VALUES_K, head, pool->geometry->head_dim, row);
    return round_row(pool, row, scale, to);
}

static float scale_of(const struct kv_pool *pool, const struct model_constants *constants, uint32_t layer,
                      uint32_t head, bool v)
{
    return (v ? constants->v_scale : constants->k_scale)[(size_t)layer * pool->geometry->kv_heads + head];
}

void kv_pool_append(const struct kv_pool *pool, const struct model_constants *constants,
                    const struct attention_pass *pass, const struct kv_append *append, const uint32_t *ids)
{
    const struct geometry *g = pool->geometry;
    uint8_t row[HEAD_DIM_MAX * sizeof(float)];
    for (uint32_t i = 0; i < append->count; i++) {
        uint32_t position = append->position + i;
        uint32_t block = ids[position / g->block_size], slot = position % g->block_size;
        for (uint32_t plane = 0; plane < 2 * g->kv_heads; plane++) {
            uint32_t head = plane / 2;
            bool v = plane % 2;
            float scale = scale_of(pool, constants, pass->layer, head, v);
            store(pool, pass->layer, block, slot, head, v,
                  make_row(pool, pass, append, i, head, v, scale, row));
        }
    }
}

uint32_t kv_pool_compare(const struct kv_pool *pool, const struct model_constants *constants,
                         const struct kv_compare *c, uint32_t first, uint32_t n, const uint32_t *ids)
{
    const struct geometry *g = pool->geometry;
    uint8_t row[HEAD_DIM_MAX * sizeof(float)], stands[HEAD_DIM_MAX * sizeof(float)];
    for (uint32_t i = first; i < first + n; i++) {
        uint32_t position = c->position + i;
        uint32_t block = ids[position / g->block_size], slot = position % g->block_size;
        for (uint32_t plane = 0; plane < 2 * g->kv_heads; plane++) {
            uint32_t head = plane / 2;
            bool v = plane % 2;
            float scale = scale_of(pool, constants, c->layer, head, v);
            const uint8_t *given = convert_row(pool, c->dtype, v ? c->v : c->k, i, head, scale, row);
            kv_pool_load(pool, c->layer, block, slot, head, v, stands);
            if (memcmp(given, stands, g->head_dim * pool->element_bytes) != 0)
                return i - first;
        }
    }
    return n;
}

void kv_pool_read(const struct kv_pool *pool, const struct kv_read *r, uint32_t first, uint32_t n,
                  const uint32_t *ids)
{
    const struct geometry *g = pool->geometry;
    size_t row_bytes = g->head_dim * pool->element_bytes;
    for (uint32_t i = first; i < first + n; i++) {
        uint32_t position = r->position + i;
        uint32_t block = ids[position / g->block_size], slot = position % g->block_size;
        for (uint32_t head = 0; head < g->kv_heads; head++) {
            size_t to = ((size_t)i * g->kv_heads + head) * row_bytes;
            kv_pool_load(pool, r->layer, block, slot, head, false, (uint8_t *)r->k + to);
            kv_pool_load(pool, r->layer, block, slot, head, true, (uint8_t *)r->v + to);
        }
    }
}

void kv_pool_load_q(const struct geometry *g, const struct attention_pass *pass, uint32_t row, uint32_t head,
                    float *q)
{
    if (pass->rows) {
        size_t first = (size_t)head * g->head_dim * dtype_bytes(g->dtype);
        numeric_to_float(g->dtype, (const uint8_t *)pass->rows[row].q + first, g->head_dim, q);
        return;
    }
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)]; /* a generated q is rounded to the geometry's dtype
                                                      as a posted one is */
    uint32_t position = pass->plan->queries[row].keys - 1;
    values_row(pass->q_source[row], position, pass->layer, VALUES_Q, head, g->head_dim, q);
    numeric_from_float(g->dtype, q, g->head_dim, rounded);
    numeric_to_float(g->dtype, rounded, g->head_dim, q);
}
