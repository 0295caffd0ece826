/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_operators.h - what operators.c, which opens kernels and launches those of the vllm layout, and decode.c, which launches those of the hnd
 * layout, share. See kernels/operators.h. */
#ifndef KERNELS_CUDA_OPERATORS_H
#define KERNELS_CUDA_OPERATORS_H

#include "kernels/operators.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launches.h"

#include <pthread.h>

enum { OPERATORS_PLACES = 2 * OPERATORS_CACHES_MAX }; /* of a hash table */

/* A cache that was described to TMA. */
struct operators_cache {
    const void *cache; /* NULL: none */
    uint64_t blocks;
    CUdeviceptr maps;
};

struct operators {
    struct geometry geometry;
    struct attention owner; /* of the device: its failure */
    struct cuda_device device;
    CUmodule modules[CUDA_PIECES_MAX];
    uint32_t module_count;
    CUfunction kernels[KERNEL_COUNT];
    uint32_t v1_max;

    /* of the hnd layout: */
    struct cuda_widths tiles;
    struct cuda_workspace workspace;
    struct cuda_pool pool; /* of one layer, but for its bytes and tables */
    CUdeviceptr maps;      /* [OPERATORS_CACHES_MAX][2], never written again; 0: K and V do not come by TMA */
    pthread_mutex_t mutex; /* of what follows: */
    uint32_t cache_count;
    struct operators_cache caches[OPERATORS_PLACES];
};

/* operators_open_hnd: what kernels of the hnd layout need beside themselves; false after a failure. */
MUST_USE bool operators_open_hnd(struct operators *x);

/* operators_enter: have the calling thread's context be the GPU's; whether it was another one. operators_leave: give that back; returns NULL,
 * or a sentence about `result`. operators_refuse: another sentence. */
bool operators_enter(const struct operators *x);
const char *operators_leave(const struct operators *x, bool entered, CUresult result, const char *doing);
const char *operators_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
