/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_memory.c - the memory of a CUDA backend: the pool and its tensor maps, tables, tensors, constants, and
 * pinned memory for blocks that are swapped. */
#include "kernels/cuda/cuda_backend.h"

#include "config/host_memory.h"
#include "kernels/cuda/compiler.h"

#include <stdlib.h>

/* The pool, or the arithmetic why there is none. */
static bool take_pool(struct cuda_backend *b)
{
    const struct attention_options *o = &b->options;
    struct cuda_device *d = &b->device;
    kv_pool_lay_out(&b->layout, o->geometry, o->blocks);
    if (b->layout.total_bytes > cuda_free_bytes(d)) {
        snprintf(b->base.failure, sizeof b->base.failure,
                 "the pool does not fit: %u blocks of %llu bytes are %llu MiB, and %llu MiB of the GPU's "
                 "memory are free (set pool.blocks, pool.bytes or pool.memory)",
                 o->blocks, (unsigned long long)geometry_block_bytes(o->geometry),
                 (unsigned long long)(o->blocks * geometry_block_bytes(o->geometry) >> 20),
                 (unsigned long long)(cuda_free_bytes(d) >> 20));
        return false;
    }
    b->pool = (struct cuda_pool){
        .layer_bytes = b->layout.layer_bytes,
        .block_bytes = b->layout.block_bytes,
        .plane_bytes = b->layout.plane_bytes,
        .head_bytes = b->layout.head_bytes,
        .slot_bytes = b->layout.slot_bytes,
        .stride = o->table_stride,
    };
    b->pool.bytes = cuda_allocate(d, b->layout.total_bytes, "the KV pool");
    b->pool.tables =
        cuda_allocate(d, (uint64_t)o->table_rows * b->pool.stride * sizeof(uint32_t), "block tables");
    return !cuda_failed(d) &&
           cuda_holds(d, d->cu.cuMemsetD8Async(b->pool.bytes, 0, b->layout.total_bytes, d->stream),
                      "clearing the KV pool") &&
           cuda_await(d, NULL, d->stream, "clearing the KV pool");
}

static bool make_maps(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_device *d = &b->device;
    CUtensorMap maps[2];
    if (g->layout == LAYOUT_VLLM || !cuda_uses_tma(g, &d->target) || cuda_failed(d))
        return true;
    if (!cuda_describe_pool(d, g, &b->pool, UINT64_C(2) * g->layers * b->layout.blocks, maps))
        return false;
    b->maps = cuda_allocate(d, sizeof maps, "tensor maps");
    return cuda_holds(d, d->cu.cuMemcpyHtoDAsync_v2(b->maps, maps, sizeof maps, d->stream),
                      "uploading tensor maps") &&
           cuda_await(d, NULL, d->stream, "uploading tensor maps");
}

/* Pinned memory for the blocks that are swapped to. */
static bool take_host_blocks(struct cuda_backend *b)
{
    uint64_t blocks = b->options.host_blocks, available = host_memory_available(),
             bytes = blocks * geometry_block_bytes(b->options.geometry);
    if (blocks && (!available || bytes < available))
        b->host = cuda_host_memory(&b->device, bytes);
    b->base.info.host =
        (struct attention_host){b->host, b->options.geometry->layers, b->pool.block_bytes,
                                b->options.geometry->layers * b->pool.block_bytes, b->pool.block_bytes};
    if (!blocks || b->host)
        return true;
    snprintf(b->base.failure, sizeof b->base.failure,
             "pool.host_blocks: %llu MiB of host memory cannot be pinned for %llu blocks, %llu MiB are "
             "available",
             (unsigned long long)(bytes >> 20), (unsigned long long)blocks,
             (unsigned long long)(available >> 20));
    return false;
}

static void take_tensors(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_device *d = &b->device;
    uint64_t rows = b->options.rows_max, row_bytes = geometry_q_row_bytes(g),
             heads = (uint64_t)b->options.partials_max * g->query_heads;
    for (int i = 0; i <= CUDA_SIDES; i++) {
        struct cuda_tensors *t = &b->tensors[i];
        if (i == 0 || i == CUDA_OF_ROWS) {
            t->q = cuda_allocate(d, rows * row_bytes, "q");
            t->partial_ml = cuda_allocate(d, heads * 2 * sizeof(float), "partial states");
            t->partial_o = cuda_allocate(d, heads * g->head_dim * sizeof(float), "partial states");
        } else {
            *t = b->tensors[0];
        }
        t->o = cuda_allocate(d, rows * row_bytes, "o");
        t->lse = cuda_allocate(d, rows * g->query_heads * sizeof(float), "lse");
    }
}

bool cuda_memory_take(struct cuda_backend *b)
{
    const struct attention_options *o = &b->options;
    const struct geometry *g = o->geometry;
    struct cuda_device *d = &b->device;
    uint64_t kv_scales = (uint64_t)g->layers * g->kv_heads;
    if (!take_pool(b) || !make_maps(b) || !take_host_blocks(b))
        return false;
    take_tensors(b);
    b->workspace = cuda_take_workspace(d, &b->tiles);
    b->k_scale = cuda_allocate(d, kv_scales * sizeof(float), "scales");
    b->v_scale = cuda_allocate(d, kv_scales * sizeof(float), "scales");
    b->sinks = cuda_allocate(d, (uint64_t)g->layers * g->query_heads * sizeof(float), "sinks");
    b->alibi = cuda_allocate(d, g->query_heads * sizeof(float), "slopes");
    b->refused = cuda_allocate(d, o->table_rows * sizeof(uint64_t), "marks of sequences");
    cuda_holds(d, d->cu.cuMemsetD8Async(b->refused, 0, o->table_rows * sizeof(uint64_t), d->stream),
               "clearing marks of sequences");
    b->known = calloc(o->table_rows + UINT64_C(1), sizeof *b->known);
    b->constants_version = UINT64_MAX;
    return b->known && !cuda_failed(d);
}
