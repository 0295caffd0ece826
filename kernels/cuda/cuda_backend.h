/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_backend.h - the CUDA backend's own structure: what cuda_backend.c opens with the memory of
 * cuda_memory.c, and cuda_step.c and cuda_operations.c write steps down with. */
#ifndef KERNELS_CUDA_BACKEND_H
#define KERNELS_CUDA_BACKEND_H

#include "kernels/backend.h"
#include "kernels/cuda/device/step.h"
#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/lowering.h"
#include "kernels/cuda/queue.h"
#include "kernels/kv_pool.h"
#include "kernels/roof.h"

enum {
    CUDA_PASS_OPERATIONS = 64, /* of a pass, at most, without its appends */
    CUDA_OF_ROWS =
        CUDA_SIDES, /* the tensors of passes whose rows lie in host memory: they run beside others */
    CUDA_COMPARED_MAX = 1 << 16 /* thread blocks that compare at a time; a step of more is issued in parts */
};

/* What the device knows of one of the block tables. */
struct cuda_known_row {
    uint64_t version;
    uint32_t entries;
};

/* A plan in the control buffer. */
struct cuda_prepared_plan {
    const struct plan *plan;        /* whose; NULL: none */
    uint64_t version;               /* of it */
    struct cuda_attend_pass arrays; /* queries, work_tile_queries, merges, merge_partials */
    enum cuda_kernel merge;         /* for these merges */
    struct cuda_tile_list lists[CUDA_TILE_LISTS];
};

/* Rows [first, first + count) of a comparison, whose results begin at that of a thread block. */
struct cuda_compared_rows {
    uint32_t *equal;
    uint32_t first, count, block;
};

/* What a step in flight compares. */
struct cuda_compared {
    uint64_t ticket;
    uint32_t *results; /* [CUDA_COMPARED_MAX] by thread block: how many of its rows are equal; pinned */
    uint32_t used;
    struct cuda_compared_rows rows[CUDA_COMPARED_MAX];
    uint32_t count;
};

/* What a pass computes with. All sides but the last share q and partial states: their passes run one after
 * the other. */
struct cuda_tensors {
    CUdeviceptr q, o, lse, partial_ml, partial_o;
};

struct cuda_self_test;

struct cuda_backend {
    struct attention base;
    struct attention_options options;
    struct cuda_device device;
    struct cuda_queue queue;
    CUmodule modules[CUDA_PIECES_MAX]; /* of the program */
    uint32_t module_count;
    struct cuda_widths tiles; /* their caps are base.info.tile_caps */

    struct kv_pool layout; /* sizes only, no bytes */
    struct cuda_pool pool;
    CUdeviceptr maps;             /* the pool as the copy engine sees it, two CUtensorMaps; 0: not used */
    uint8_t *host;                /* [host_blocks][layers][K, V]: blocks that are swapped to; pinned */
    struct cuda_known_row *known; /* [table_rows] */
    struct cuda_tensors tensors[CUDA_SIDES + 1]; /* for outputs that are copied, in turn; and CUDA_OF_ROWS */
    unsigned side, side_first;                   /* the next; the first of the step's */
    struct cuda_workspace workspace;
    CUdeviceptr sinks, alibi, k_scale, v_scale;
    CUdeviceptr refused; /* [table_rows] cuda_rows_pass.refused */
    uint64_t constants_version;

    struct cuda_prepared_plan prepared[ATTENTION_PLANS]; /* of the buffer as it was emptied the last time */
    uint32_t prepared_count;
    uint64_t prepared_since; /* cuda_queue.emptied */

    struct roof_trial roof; /* being measured, */
    uint64_t roof_bytes;    /* so many a pass; 0: not yet */

    struct cuda_compared compared_of[ATTENTION_STEPS_IN_FLIGHT],
        *compared; /* and of the step being written */
    struct cuda_self_test *test;
};

/* cuda_step_submit: write a step down and issue it; nothing after a failure. See struct attention_ops. */
void cuda_step_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket);

/* cuda_memory_take: all memory that the options ask for, pinned and on the GPU, for as long as the device is
 * open, and b->known; false after a failure, with the arithmetic in it. */
MUST_USE bool cuda_memory_take(struct cuda_backend *b);

/* cuda_step_attention: write down the attention of a pass of a step. */
void cuda_step_attention(struct cuda_backend *b, const struct attention_step *step,
                         const struct attention_pass *pass);

/* cuda_operations_init: memory for results, for as long as the device is open; false where there is none. */
MUST_USE bool cuda_operations_init(struct cuda_backend *b);

/* cuda_operations_add: write down the compares, reads and merges of a step. cuda_operations_deliver: put the
 * results of compares where they belong, when the step `ticket` is done; again without effect. */
void cuda_operations_add(struct cuda_backend *b, const struct attention_step *step, uint64_t ticket);
void cuda_operations_deliver(struct cuda_backend *b, uint64_t ticket);

/* cuda_regions.c; see attention_region_make(). */
uint64_t cuda_region_unit(const struct cuda_device *d);
MUST_USE int cuda_region_make(struct attention *attention, uint64_t bytes, struct attention_region *region,
                              int *fd, char error[ATTENTION_ERROR_BYTES]);
MUST_USE int cuda_region_take(struct attention *attention, int fd, uint64_t bytes, bool writes,
                              struct attention_region *region, char error[ATTENTION_ERROR_BYTES]);
MUST_USE int cuda_region_open(struct attention *attention, const uint8_t handle[ATTENTION_IPC_BYTES],
                              uint64_t bytes, struct attention_region *region,
                              char error[ATTENTION_ERROR_BYTES]);
void cuda_region_end(struct attention *attention, const struct attention_region *region);

#endif
