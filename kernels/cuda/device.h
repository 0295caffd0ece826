/* device.h - one GPU: its context, three streams, memory, and the first error that CUDA reported.
 *
 * Engine thread only, but for opening. After the first error nothing is of use any more: the context is
 * lost, and functions do nothing. */
#ifndef KERNELS_CUDA_DEVICE_H
#define KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/compiler.h"
#include "kernels/cuda/driver.h"

#include <stdbool.h>

enum { CUDA_PINNED_MAX = 16 };

struct cuda_pinned {
    const uint8_t *memory;
    size_t bytes;
};

struct cuda_device {
    struct cuda_driver cu;
    CUdevice device;
    CUcontext context;
    CUstream stream, copies, swaps; /* kernels; outputs on their way to the host; blocks */
    struct cuda_target target;
    uint32_t multiprocessors;
    uint32_t l2_bytes;
    bool follows_early; /* whether a kernel may begin while the one before it ends */
    char name[128];     /* for people: product, multiprocessors, memory */
    char *failure;      /* [ATTENTION_ERROR_BYTES] of the owner; empty: none */
    struct cuda_pinned pinned[CUDA_PINNED_MAX];
};

/* cuda_device_open(d, index, failure): load the driver, take GPU `index`. Returns 0 or ATTND_NOT_FOUND
 * (no driver, no such GPU) with a sentence in `failure` and nothing to close. */
MUST_USE int cuda_device_open(struct cuda_device *d, uint32_t index, char *failure);
void cuda_device_close(struct cuda_device *d);

/* cuda_enter: make the context the calling thread's. */
void cuda_enter(struct cuda_device *d);

static inline bool cuda_failed(const struct cuda_device *d)
{
    return d->failure[0] != '\0';
}

/* cuda_holds(d, result, doing, ...): note a result; the first bad one stays, with what was being done.
 * True when everything is well so far. */
bool cuda_holds(struct cuda_device *d, CUresult result, const char *doing, ...)
    __attribute__((format(printf, 3, 4)));

/* cuda_allocate: memory of the GPU; 0 for 0 bytes and after a failure. */
CUdeviceptr cuda_allocate(struct cuda_device *d, uint64_t bytes, const char *what);
void cuda_free(struct cuda_device *d, CUdeviceptr address);
uint64_t cuda_free_bytes(struct cuda_device *d);

/* cuda_host_memory: pinned memory of the host, which has the same address on both sides; NULL when
 * there is none. cuda_is_pinned: whether a range lies in such memory. */
void *cuda_host_memory(struct cuda_device *d, size_t bytes);
void cuda_free_host_memory(struct cuda_device *d, void *memory);
bool cuda_is_pinned(const struct cuda_device *d, const void *memory, size_t bytes);

#endif
