/* SPDX-License-Identifier: Apache-2.0 */
/* operators.c - see kernels/operators.h. */
#include "kernels/cuda/cuda_operators.h"

#include "kernels/cuda/compiler.h"
#include "kernels/cuda/device/step.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_MAX = 65535 /* of a grid's second dimension */ };

_Static_assert(sizeof((struct cuda_copies_pass){0}.caches) == 2 * sizeof(uint64_t) * OPERATORS_LAYERS_MAX,
               "caches of a launch");

/* ---- open and close ------------------------------------------------------------------------------ */

static int load_kernels(struct operators *x, const char *cache)
{
    struct cuda_device *d = &x->device;
    char error[CUDA_COMPILER_ERROR_BYTES];
    struct cuda_program program;
    int rc = cuda_compile(&x->geometry, &d->target, cache, NULL, &program, error);
    if (rc != 0) {
        snprintf(x->owner.failure, sizeof x->owner.failure, "CUDA: %.240s", error);
        return rc;
    }
    cuda_load_kernels(d, &x->geometry, &program, x->modules, &x->module_count, x->kernels);
    cuda_program_deinit(&program);
    if (x->geometry.layout != LAYOUT_VLLM)
        return !cuda_failed(d) && operators_open_hnd(x) ? 0 : ATTND_INTERNAL;
    uint32_t bytes = cuda_paged_shared_max(&d->target);
    x->v1_max = bytes / (uint32_t)sizeof(float) / x->geometry.block_size * x->geometry.block_size;
    cuda_holds(d,
               d->cu.cuFuncSetAttribute(x->kernels[KERNEL_PAGED_V1],
                                        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes),
               "allowing %u bytes of shared memory", bytes);
    return cuda_failed(d) ? ATTND_INTERNAL : 0;
}

int operators_open(const struct geometry *g, uint32_t gpu, const char *cache, struct operators **result,
                   char error[OPERATORS_ERROR_BYTES])
{
    struct operators *x = calloc(1, sizeof *x);
    snprintf(error, OPERATORS_ERROR_BYTES, "no memory for the operators");
    if (!x)
        return ATTND_NO_MEMORY;
    x->geometry = *g;
    (void)pthread_mutex_init(&x->mutex, NULL);
    int rc = cuda_device_open(&x->device, gpu, &x->owner);
    if (rc != 0) {
        snprintf(error, OPERATORS_ERROR_BYTES, "%.255s", x->owner.failure);
        (void)pthread_mutex_destroy(&x->mutex);
        free(x);
        return rc;
    }
    rc = load_kernels(x, cache);
    cuda_leave(&x->device);
    if (rc == 0) {
        *result = x;
        return 0;
    }
    snprintf(error, OPERATORS_ERROR_BYTES, "%.255s", x->owner.failure);
    operators_close(x);
    return rc;
}

void operators_close(struct operators *x)
{
    if (!x)
        return;
    cuda_note_context(&x->device);
    (void)x->device.cu.cuCtxSetCurrent(x->device.context);
    for (uint32_t i = 0; i < x->module_count; i++)
        (void)x->device.cu.cuModuleUnload(x->modules[i]);
    cuda_device_close(&x->device);
    (void)pthread_mutex_destroy(&x->mutex);
    free(x);
}

/* ---- launches ------------------------------------------------------------------------------------ */

static _Thread_local char failure[OPERATORS_ERROR_BYTES];

bool operators_enter(const struct operators *x)
{
    CUcontext now = NULL;
    (void)x->device.cu.cuCtxGetCurrent(&now);
    if (now == x->device.context)
        return false;
    cuda_note_context(&x->device);
    (void)x->device.cu.cuCtxSetCurrent(x->device.context);
    return true;
}

const char *operators_leave(const struct operators *x, bool entered, CUresult result, const char *doing)
{
    if (entered)
        cuda_leave(&x->device);
    if (result == CUDA_SUCCESS)
        return NULL;
    snprintf(failure, sizeof failure, "CUDA: %s while %s", cuda_driver_error(&x->device.cu, result), doing);
    return failure;
}

const char *operators_refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    return failure;
}

static CUresult launch(const struct operators *x, enum cuda_kernel kernel, const uint32_t grid[3],
                       uint32_t shared_bytes, void *pass, void *stream)
{
    void *parameters[] = {pass};
    return x->device.cu.cuLaunchKernel(x->kernels[kernel], grid[0], grid[1], grid[2], CUDA_THREADS, 1, 1,
                                       shared_bytes, stream, parameters, NULL);
}

/* A pool of one layer; in the vllm layout its values lie where the caller has them, at whichever distance from the keys. */
static struct cuda_pool pool_of(const struct operators *x, const struct operators_caches *caches)
{
    struct cuda_pool pool = x->pool;
    pool.bytes = (uintptr_t)caches->k;
    if (x->geometry.layout != LAYOUT_VLLM)
        return pool;
    return (struct cuda_pool){.bytes = (uintptr_t)caches->k,
                              .block_bytes = caches->block_bytes,
                              .plane_bytes = (uintptr_t)caches->v - (uintptr_t)caches->k};
}

static uint32_t partitions_of(uint32_t max_length)
{
    return max_length / PAGED_PARTITION + (max_length % PAGED_PARTITION != 0);
}

uint32_t operators_v1_max(const struct operators *x)
{
    return x->v1_max;
}

const char *operators_attend(struct operators *x, const struct operators_attention *of, bool v2, void *stream)
{
    const struct geometry *g = &x->geometry;
    uint64_t states = (uint64_t)of->sequences * g->query_heads * partitions_of(of->max_length);
    struct cuda_paged_pass pass = {
        .attend = {.pool = pool_of(x, &of->caches),
                   .q = (uintptr_t)of->q,
                   .o = (uintptr_t)of->o,
                   .partial_ml = (uintptr_t)of->partials,
                   .partial_o = (uintptr_t)(of->partials ? of->partials + 2 * states : NULL),
                   .k_scale = (uintptr_t)of->caches.k_scale,
                   .v_scale = (uintptr_t)of->caches.v_scale,
                   .alibi = (uintptr_t)of->alibi,
                   .scale = of->scale},
        .partitions = v2 ? partitions_of(of->max_length) : 1,
        .lengths = (uintptr_t)of->lengths,
        .q_row = of->q_row};
    pass.attend.pool.tables = (uintptr_t)of->tables;
    pass.attend.pool.stride = of->table_row;
    uint32_t shared = cuda_paged_shared_bytes(g, v2 ? PAGED_PARTITION : of->max_length);
    bool entered = operators_enter(x);
    CUresult result = CUDA_SUCCESS;
    for (uint32_t first = 0, n; result == CUDA_SUCCESS && first < of->sequences; first += n) {
        n = of->sequences - first < GRID_MAX ? of->sequences - first : GRID_MAX;
        pass.first_query = first;
        result = launch(x, v2 ? KERNEL_PAGED_V2 : KERNEL_PAGED_V1,
                        (const uint32_t[]){g->query_heads, n, pass.partitions}, shared, &pass, stream);
        if (v2 && result == CUDA_SUCCESS)
            result =
                launch(x, KERNEL_PAGED_REDUCE, (const uint32_t[]){g->query_heads, n, 1}, 0, &pass, stream);
    }
    return operators_leave(x, entered, result, v2 ? "launching paged_v2" : "launching paged_v1");
}

const char *operators_store(struct operators *x, const struct operators_tokens *of, void *stream)
{
    struct cuda_tokens_pass pass = {.pool = pool_of(x, &of->caches),
                                    .k = (uintptr_t)of->k,
                                    .v = (uintptr_t)of->v,
                                    .slots = (uintptr_t)of->slots,
                                    .k_scale = (uintptr_t)of->caches.k_scale,
                                    .v_scale = (uintptr_t)of->caches.v_scale,
                                    .k_row = of->k_row,
                                    .v_row = of->v_row,
                                    .source_dtype = of->dtype};
    bool entered = operators_enter(x);
    CUresult result =
        of->tokens ? launch(x, KERNEL_STORE_TOKENS, (const uint32_t[]){of->tokens, 1, 1}, 0, &pass, stream)
                   : CUDA_SUCCESS;
    return operators_leave(x, entered, result, "launching store_tokens");
}

const char *operators_copy(struct operators *x, const struct operators_copies *of, void *stream)
{
    struct cuda_copies_pass pass = {.pairs = (uintptr_t)of->pairs, .block_bytes = of->block_bytes};
    bool entered = operators_enter(x);
    CUresult result = CUDA_SUCCESS;
    for (uint32_t first = 0, n; result == CUDA_SUCCESS && of->pair_count && first < of->layers; first += n) {
        n = of->layers - first < OPERATORS_LAYERS_MAX ? of->layers - first : OPERATORS_LAYERS_MAX;
        for (uint32_t i = 0; i < n; i++) {
            pass.caches[i][0] = (uintptr_t)of->k[first + i];
            pass.caches[i][1] = (uintptr_t)of->v[first + i];
        }
        result = launch(x, KERNEL_COPY_BLOCKS, (const uint32_t[]){of->pair_count, n, 2}, 0, &pass, stream);
    }
    return operators_leave(x, entered, result, "launching copy_blocks");
}

const char *operators_swap(struct operators *x, void *to, const void *from, uint64_t block_bytes,
                           const int64_t *pairs, uint32_t pair_count, void *stream)
{
    bool entered = operators_enter(x);
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < pair_count && result == CUDA_SUCCESS; i++)
        result = x->device.cu.cuMemcpyAsync((uintptr_t)to + (uint64_t)pairs[2 * (size_t)i + 1] * block_bytes,
                                            (uintptr_t)from + (uint64_t)pairs[2 * (size_t)i] * block_bytes,
                                            block_bytes, stream);
    return operators_leave(x, entered, result, "copying a block");
}
