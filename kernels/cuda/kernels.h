/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - the kernels of a program, in one table: what compiler.c compiles, cuda_backend.c loads, the planner's
 * tiles are made of and queue.c launches. */
#ifndef KERNELS_CUDA_KERNELS_H
#define KERNELS_CUDA_KERNELS_H

#include "kernels/cuda/device/tile.h"

/* The geometries whose programs have a kernel. */
enum cuda_kernel_of {
    OF_ALL,
    OF_PAGED,  /* the vllm layout */
    OF_TILES,  /* the others */
    OF_SIMPLE, /* of these, formats and GPUs without tensor cores */
    OF_MMA,    /* tiles of mma.sync: those that the GPU has room for */
    OF_WIDE    /* tiles of wgmma */
};

/* XX(constant, name, file, of, query heads of a tile, chunks: its work tiles lie within a node of so many, 0: any) */
#define CUDA_KERNEL_MAP(XX)                                                                                  \
    XX(KERNEL_CHANGE_TABLES, "change_tables", "pool.cu", OF_ALL, 0, 0)                                       \
    XX(KERNEL_COPY_SLOTS, "copy_slots", "pool.cu", OF_ALL, 0, 0)                                             \
    XX(KERNEL_APPEND, "append", "pool.cu", OF_ALL, 0, 0)                                                     \
    XX(KERNEL_GENERATE_Q, "generate_q", "pool.cu", OF_ALL, 0, 0)                                             \
    XX(KERNEL_LOAD_Q, "load_q", "pool.cu", OF_ALL, 0, 0)                                                     \
    XX(KERNEL_STORE_ROWS, "store_rows", "pool.cu", OF_ALL, 0, 0)                                             \
    XX(KERNEL_COMPARE_KV, "compare_kv", "pool.cu", OF_ALL, 0, 0)                                             \
    XX(KERNEL_READ_KV, "read_kv", "pool.cu", OF_ALL, 0, 0)                                                   \
    XX(KERNEL_MERGE_STATES, "merge_states", "pool.cu", OF_ALL, 0, 0)                                         \
    XX(KERNEL_STORE_TOKENS, "store_tokens", "pool.cu", OF_ALL, 0, 0)                                         \
    XX(KERNEL_COPY_BLOCKS, "copy_blocks", "pool.cu", OF_PAGED, 0, 0)                                         \
    XX(KERNEL_WRITE_TILES, "write_tiles", "tiles.cu", OF_TILES, 0, 0)                                        \
    XX(KERNEL_STAMP, "stamp", "measure.cu", OF_ALL, 0, 0)                                                    \
    XX(KERNEL_READ_ALL, "read_all", "measure.cu", OF_ALL, 0, 0)                                              \
    XX(KERNEL_PAGED_V1, "paged_v1", "paged.cu", OF_PAGED, 0, 0)                                              \
    XX(KERNEL_PAGED_V2, "paged_v2", "paged.cu", OF_PAGED, 0, 0)                                              \
    XX(KERNEL_PAGED_REDUCE, "paged_reduce", "paged.cu", OF_PAGED, 0, 0)                                      \
    XX(KERNEL_MERGE, "merge", "merge.cu", OF_TILES, 0, 0)                                                    \
    XX(KERNEL_MERGE_SPANS, "merge_spans", "merge.cu", OF_TILES, 0, 0)                                        \
    XX(KERNEL_ATTEND_SIMPLE, "attend_simple", "attend_simple.cu", OF_SIMPLE, TILE_SIMPLE_COLUMNS, 0)         \
    XX(KERNEL_ATTEND_8, "attend_8", "attend_mma.cu", OF_MMA, 8, 0)                                           \
    XX(KERNEL_ATTEND_32, "attend_32", "attend_mma.cu", OF_MMA, 32, 0)                                        \
    XX(KERNEL_ATTEND_64, "attend_64", "attend_mma.cu", OF_MMA, 64, 0)                                        \
    XX(KERNEL_ATTEND_WIDE_64, "attend_wide_64", "attend_wide.cu", OF_WIDE, 64, RUN_CHUNKS)                   \
    XX(KERNEL_ATTEND_WIDE_128, "attend_wide_128", "attend_wide.cu", OF_WIDE, 128, SPAN_CHUNKS)

enum cuda_kernel {
#define XX(constant, name, file, of, query_heads, chunks) constant,
    CUDA_KERNEL_MAP(XX)
#undef XX
        KERNEL_COUNT
};

/* From here on kernels are what cuda_queue_time() measures: attention, and the read roof. */
#define KERNEL_FIRST_TIMED KERNEL_READ_ALL

struct cuda_kernel_info {
    const char *name, *file; /* in kernels/cuda/device/ */
    enum cuda_kernel_of of;
    uint32_t query_heads, chunks;
};

/* Widths of tiles come narrowest first. */
extern const struct cuda_kernel_info cuda_kernels[KERNEL_COUNT];

#endif
