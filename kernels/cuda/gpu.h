/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - one GPU: its context, five streams, memory, and the first error that CUDA reported.
 *
 * Engine thread only, but for opening. After the first error nothing is of use any more: the context is
 * lost, and functions do nothing. A GPU that hangs is one that failed: nothing waits for it without a
 * bound, and no function of the driver is called after that, not even to close it. */
#ifndef KERNELS_CUDA_GPU_H
#define KERNELS_CUDA_GPU_H

#include "kernels/backend.h"
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/kernels.h"

#include <stdbool.h>

enum { CUDA_ALLOCATIONS_MAX = 64, CUDA_PINNED_MAX = 64, CUDA_EVENTS_MAX = 16 };

struct cuda_pinned {
    uint8_t *memory;
    size_t bytes;
};

struct cuda_device {
    struct cuda_driver cu;
    CUdevice device;
    CUcontext context;
    CUstream stream, copies, swaps; /* kernels; outputs on their way to the host; blocks */
    CUstream beside;                /* kernels beside those, whose thread blocks go first */
    CUstream uploads;               /* control data */
    struct cuda_target target;
    uint32_t multiprocessors;
    uint32_t l2_bytes;
    bool follows_early;      /* whether a kernel may begin while the one before it ends */
    bool has_clusters;       /* whether thread blocks can read each other's shared memory */
    char name[128];          /* for people: product, multiprocessors, memory */
    struct attention *owner; /* has the failure, and the bound of waits */
    CUdeviceptr allocations[CUDA_ALLOCATIONS_MAX]; /* freed with it, as are */
    CUevent events[CUDA_EVENTS_MAX];               /* and */
    uint32_t allocation_count, event_count;
    struct cuda_pinned pinned[CUDA_PINNED_MAX];
};

/* cuda_device_open(d, index, owner): load the driver, take GPU `index`. Returns 0 or ATTND_NOT_FOUND
 * (no driver, no such GPU) with a sentence in owner->failure and nothing to close. */
MUST_USE int cuda_device_open(struct cuda_device *d, uint32_t index, struct attention *owner);

/* cuda_device_close: free all its memory, of the GPU and of the host, events and streams. */
void cuda_device_close(struct cuda_device *d);

/* cuda_device_share(d, of): the same GPU and context, with streams of its own, for work beside that of `of`,
 * which is closed later. False after a failure; cuda_device_unshare() also then. */
MUST_USE bool cuda_device_share(struct cuda_device *d, const struct cuda_device *of);
void cuda_device_unshare(struct cuda_device *d);

/* cuda_enter: make the context the calling thread's. */
void cuda_enter(struct cuda_device *d);

/* cuda_note_context: which one the calling thread has; so does cuda_device_open(). cuda_leave: give it back; so does
 * cuda_device_close(). */
void cuda_note_context(const struct cuda_device *d);
void cuda_leave(const struct cuda_device *d);

static inline bool cuda_failed(const struct cuda_device *d)
{
    return d->owner->failure[0] != '\0';
}

/* cuda_holds(d, call, doing, ...): make a call of the driver, unless something has failed, and note its
 * result; the first bad one stays, with what was being done. True when everything is well so far. */
#define cuda_holds(d, call, ...) cuda_note(d, cuda_failed(d) ? CUDA_SUCCESS : (call), __VA_ARGS__)
bool cuda_note(struct cuda_device *d, CUresult result, const char *doing, ...)
    __attribute__((format(printf, 3, 4)));

/* cuda_load_kernels(d, g, program, modules, count, kernels): load the program of a geometry; modules [CUDA_PIECES_MAX] are the caller's
 * to unload, kernels [KERNEL_COUNT] NULL where it has none such. */
void cuda_load_kernels(struct cuda_device *d, const struct geometry *g, const struct cuda_program *program,
                       CUmodule *modules, uint32_t *count, CUfunction *kernels);

/* cuda_make_event: one that is there for as long as `d` is open, with a clock if it is `timed`; NULL after a
 * failure. */
CUevent cuda_make_event(struct cuda_device *d, bool timed);

/* cuda_await: wait until an event has happened or, where that is NULL, all that was issued to a stream is
 * done. After backend.step_timeout_s the GPU hangs. True when everything is well. */
bool cuda_await(struct cuda_device *d, CUevent event, CUstream stream, const char *doing);

/* cuda_allocate: memory of the GPU, for as long as `d` is open; 0 for 0 bytes and after a failure. */
CUdeviceptr cuda_allocate(struct cuda_device *d, uint64_t bytes, const char *what);
uint64_t cuda_free_bytes(struct cuda_device *d);

/* cuda_host_memory: pinned memory of the host, which has the same address on both sides; NULL when there is
 * none. It may be freed before the device is closed. cuda_is_pinned: whether an address lies there. */
void *cuda_host_memory(struct cuda_device *d, size_t bytes);
void cuda_free_host_memory(struct cuda_device *d, void *memory);
bool cuda_is_pinned(const struct cuda_device *d, const void *address);

#endif
