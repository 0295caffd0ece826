/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c - see gpu.h. */
#include "kernels/cuda/gpu.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drivers from this version on record kernels that begin early into graphs (CUDA 12.3). */
enum {
    EARLY_IN_GRAPHS = 12030,
    FIRST_CLUSTERS = 9,   /* of compute capabilities */
    FIRST_PRIORITY = -100 /* the smaller goes first; the driver takes the least that it has */
};

bool cuda_note(struct cuda_device *d, CUresult result, const char *doing, ...)
{
    char what[128];
    va_list args;
    if (result == CUDA_SUCCESS || cuda_failed(d))
        return !cuda_failed(d);
    va_start(args, doing);
    vsnprintf(what, sizeof what, doing, args);
    va_end(args);
    snprintf(d->owner->failure, ATTENTION_ERROR_BYTES, "CUDA: %s while %s", cuda_driver_error(&d->cu, result),
             what);
    return false;
}

/* ---- events -------------------------------------------------------------------------------------- */

CUevent cuda_make_event(struct cuda_device *d, bool timed)
{
    CUevent *event = &d->events[d->event_count];
    assert(d->event_count < CUDA_EVENTS_MAX);
    if (cuda_holds(d, d->cu.cuEventCreate(event, timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING),
                   "making an event"))
        return d->events[d->event_count++];
    return NULL;
}

struct awaited {
    struct cuda_device *d;
    CUevent event; /* NULL: */
    CUstream stream;
    const char *doing;
};

static bool is_done(void *cookie)
{
    const struct awaited *x = cookie;
    const struct cuda_driver *cu = &x->d->cu;
    CUresult result = x->event ? cu->cuEventQuery(x->event) : cu->cuStreamQuery(x->stream);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    cuda_note(x->d, result, "%s", x->doing);
    return true;
}

bool cuda_await(struct cuda_device *d, CUevent event, CUstream stream, const char *doing)
{
    struct awaited awaited = {d, event, stream, doing};
    return backend_await(d->owner, is_done, &awaited, doing);
}

void cuda_enter(struct cuda_device *d)
{
    cuda_holds(d, d->cu.cuCtxSetCurrent(d->context), "choosing the context");
}

/* Which context the calling thread had before it came here. */
static _Thread_local CUcontext outer;

void cuda_note_context(const struct cuda_device *d)
{
    outer = NULL;
    (void)d->cu.cuCtxGetCurrent(&outer);
}

void cuda_leave(const struct cuda_device *d)
{
    (void)d->cu.cuCtxSetCurrent(outer);
}

/* ---- memory -------------------------------------------------------------------------------------- */

uint64_t cuda_free_bytes(struct cuda_device *d)
{
    size_t available = 0, total = 0;
    return d->cu.cuMemGetInfo_v2(&available, &total) == CUDA_SUCCESS ? available : 0;
}

CUdeviceptr cuda_allocate(struct cuda_device *d, uint64_t bytes, const char *what)
{
    CUdeviceptr address = 0;
    if (cuda_failed(d) || bytes == 0)
        return 0;
    double available = (double)cuda_free_bytes(d);
    assert(d->allocation_count < CUDA_ALLOCATIONS_MAX);
    if (cuda_holds(d, d->cu.cuMemAlloc_v2(&address, bytes), "allocating %.2f GiB for %s (%.2f GiB are free)",
                   (double)bytes / 0x1p30, what, available / 0x1p30))
        d->allocations[d->allocation_count++] = address;
    return address;
}

void *cuda_host_memory(struct cuda_device *d, size_t bytes)
{
    void *memory = NULL;
    int place = 0;
    while (place < CUDA_PINNED_MAX && d->pinned[place].memory)
        place++;
    cuda_enter(d);
    if (cuda_failed(d) || place == CUDA_PINNED_MAX ||
        d->cu.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
        return NULL;
    d->pinned[place] = (struct cuda_pinned){memory, bytes};
    return memory;
}

void cuda_free_host_memory(struct cuda_device *d, void *memory)
{
    for (int i = 0; i < CUDA_PINNED_MAX; i++) {
        if (d->pinned[i].memory == memory)
            d->pinned[i] = (struct cuda_pinned){0};
    }
    (void)d->cu.cuCtxSetCurrent(d->context);
    (void)d->cu.cuMemFreeHost(memory);
}

bool cuda_is_pinned(const struct cuda_device *d, const void *address)
{
    const uint8_t *at = address;
    for (int i = 0; i < CUDA_PINNED_MAX; i++) {
        const struct cuda_pinned *p = &d->pinned[i];
        if (p->memory && at >= p->memory && at < p->memory + p->bytes)
            return true;
    }
    return false;
}

/* ---- kernels ------------------------------------------------------------------------------------- */

void cuda_load_kernels(struct cuda_device *d, const struct geometry *g, const struct cuda_program *program,
                       CUmodule *modules, uint32_t *count, CUfunction *kernels)
{
    while (*count < program->count &&
           cuda_holds(d, d->cu.cuModuleLoadData(&modules[*count], program->cubins[*count].bytes),
                      "loading the kernels"))
        ++*count;
    for (enum cuda_kernel i = 0; i < KERNEL_COUNT; i++) {
        if (cuda_has_kernel(g, &d->target, i))
            cuda_holds(
                d,
                d->cu.cuModuleGetFunction(&kernels[i], modules[program->piece_of[i]], cuda_kernels[i].name),
                "looking for the kernel %s", cuda_kernels[i].name);
    }
}

/* ---- open and close ------------------------------------------------------------------------------ */

static int attribute(struct cuda_device *d, CUdevice_attribute which)
{
    int value = 0;
    cuda_holds(d, d->cu.cuDeviceGetAttribute(&value, which, d->device), "asking for the GPU's properties");
    return value;
}

static bool make_streams(struct cuda_device *d)
{
    static const char making[] = "making a stream";
    return cuda_holds(d, d->cu.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING), making) &&
           cuda_holds(d, d->cu.cuStreamCreate(&d->copies, CU_STREAM_NON_BLOCKING), making) &&
           cuda_holds(d, d->cu.cuStreamCreate(&d->swaps, CU_STREAM_NON_BLOCKING), making) &&
           cuda_holds(d, d->cu.cuStreamCreate(&d->uploads, CU_STREAM_NON_BLOCKING), making) &&
           cuda_holds(d, d->cu.cuStreamCreateWithPriority(&d->beside, CU_STREAM_NON_BLOCKING, FIRST_PRIORITY),
                      making);
}

static bool take(struct cuda_device *d, uint32_t index)
{
    int count = 0;
    char product[64] = "";
    size_t memory = 0;
    if (cuda_holds(d, d->cu.cuDeviceGetCount(&count), "looking for GPUs") && index >= (uint32_t)count) {
        snprintf(d->owner->failure, ATTENTION_ERROR_BYTES, "CUDA: there is no GPU %u, but %d in all", index,
                 count);
        return false;
    }
    cuda_holds(d, d->cu.cuDeviceGet(&d->device, (int)index), "choosing a GPU");
    cuda_holds(d, d->cu.cuDeviceGetName(product, sizeof product, d->device), "asking for a name");
    cuda_holds(d, d->cu.cuDeviceTotalMem_v2(&memory, d->device), "asking for its memory");
    d->multiprocessors = (uint32_t)attribute(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    d->l2_bytes = (uint32_t)attribute(d, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    int major = attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    int driver = 0;
    bool recorded = d->cu.cuDriverGetVersion(&driver) == CUDA_SUCCESS && driver >= EARLY_IN_GRAPHS;
    d->follows_early = (major == 9 || major == 10) && recorded && d->cu.cuLaunchKernelEx;
    d->has_clusters = major >= FIRST_CLUSTERS && d->cu.cuLaunchKernelEx;
    d->target =
        cuda_target_of(major, attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
                       (uint32_t)attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
    snprintf(d->name, sizeof d->name, "%s, %u multiprocessors, %.1f GiB", product, d->multiprocessors,
             (double)memory / 0x1p30);
    return cuda_holds(d, d->cu.cuDevicePrimaryCtxRetain(&d->context, d->device), "making a context") &&
           cuda_holds(d, d->cu.cuCtxSetCurrent(d->context), "making a context") && make_streams(d);
}

int cuda_device_open(struct cuda_device *d, uint32_t index, struct attention *owner)
{
    *d = (struct cuda_device){.owner = owner};
    int rc = cuda_driver_load(&d->cu, owner->failure, ATTENTION_ERROR_BYTES);
    if (rc != 0)
        return rc;
    cuda_note_context(d);
    if (take(d, index))
        return 0;
    cuda_device_close(d);
    return ATTND_NOT_FOUND;
}

bool cuda_device_share(struct cuda_device *d, const struct cuda_device *of)
{
    *d = *of;
    d->stream = d->copies = d->swaps = d->beside = d->uploads = NULL;
    d->allocation_count = d->event_count = 0;
    memset(d->pinned, 0, sizeof d->pinned);
    return make_streams(d);
}

/* Results are not looked at: after a failure they all say so again. */
void cuda_device_unshare(struct cuda_device *d)
{
    const CUstream streams[] = {d->uploads, d->beside, d->swaps, d->copies, d->stream};
    for (uint32_t i = 0; i < d->allocation_count; i++)
        (void)d->cu.cuMemFree_v2(d->allocations[i]);
    for (uint32_t i = 0; i < d->event_count; i++)
        (void)d->cu.cuEventDestroy_v2(d->events[i]);
    for (size_t i = 0; i < CUDA_PINNED_MAX; i++) {
        if (d->pinned[i].memory)
            (void)d->cu.cuMemFreeHost(d->pinned[i].memory);
    }
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        if (streams[i])
            (void)d->cu.cuStreamDestroy_v2(streams[i]);
    }
}

void cuda_device_close(struct cuda_device *d)
{
    cuda_device_unshare(d);
    cuda_leave(d);
    if (d->context)
        (void)d->cu.cuDevicePrimaryCtxRelease_v2(d->device);
    cuda_driver_unload(&d->cu);
}
