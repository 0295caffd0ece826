/* SPDX-License-Identifier: Apache-2.0 */
/* stub_driver.c - a libcuda.so.1 for machines without a GPU: memory is the host's, kernels do nothing, unless
 * stub_launch is set, which is then called for each (tests/emulation/operations.cc, decode.cc).
 *
 * It hangs on request:
 *
 *   stub_hangs_at = N      from the N-th question on whether something is done
 *   $STUB_HANGS, a file    with "event" in it: from the next question on
 *                          with "launch" in it: from the next launch on, which does not return
 *
 * A launch with more shared memory than its kernel is allowed fails, as on a GPU.
 *
 * The answer to questions is then "not yet". Nothing else may be called any more, nor questions asked
 * once stub_closed is set: it aborts.
 *
 * Once it hangs it is not unloaded either: its destructor waits for ever, as a driver's may. */
#include <cuda.h>

#undef cuEventElapsedTime /* driver.h asks for it under this name, not for a later version */
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end);

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MULTIPROCESSORS = 4,
    SM_BYTES = 233472,
    SHARED_BYTES = 49152, /* of a launch, unless the kernel is allowed more */
    KERNELS_MAX = 64,
    DRIVER_VERSION = 12040
};

void (*stub_launch)(const char *kernel, const unsigned grid[3], unsigned threads, const void *arguments);
unsigned stub_hangs_at, stub_questions;
bool stub_hangs, stub_closed;

/* Begin of every function but questions. */
static void called(const char *name)
{
    if (!stub_hangs)
        return;
    fprintf(stderr, "the driver hangs, and %s was called\n", name);
    abort();
}

static bool file_says(const char *word)
{
    char text[16] = "";
    const char *path = getenv("STUB_HANGS");
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f)
        return false;
    (void)!fread(text, 1, sizeof text - 1, f);
    fclose(f);
    return strstr(text, word) != NULL;
}

static CUresult question(void)
{
    stub_hangs |= ++stub_questions == stub_hangs_at || file_says("event");
    if (!stub_hangs)
        return CUDA_SUCCESS;
    if (stub_closed)
        called("a question");
    usleep(1000);
    return CUDA_ERROR_NOT_READY;
}

/* Kernels that are allowed more. */
static struct {
    CUfunction kernel;
    unsigned bytes;
} allowed[KERNELS_MAX];

static unsigned *shared_of(CUfunction kernel)
{
    unsigned i = 0;
    while (allowed[i].kernel && allowed[i].kernel != kernel)
        i++;
    if (i + 1 == KERNELS_MAX)
        abort();
    if (!allowed[i].kernel) {
        allowed[i].kernel = kernel;
        allowed[i].bytes = SHARED_BYTES;
    }
    return &allowed[i].bytes;
}

static CUresult launched(CUfunction kernel, unsigned shared)
{
    if (kernel && shared > *shared_of(kernel))
        return CUDA_ERROR_INVALID_VALUE;
    while (file_says("launch")) {
        stub_hangs = true;
        pause();
    }
    called("a launch");
    return CUDA_SUCCESS;
}

__attribute__((destructor)) static void unload(void)
{
    while (stub_hangs)
        pause();
}

/* A handle that is not NULL. */
static void *handle(void)
{
    static char any;
    return &any;
}

#define SUCCEED(name)                                                                                        \
    {                                                                                                        \
        called(#name);                                                                                       \
        return CUDA_SUCCESS;                                                                                 \
    }
#define GIVE(name, result, value)                                                                            \
    {                                                                                                        \
        called(#name);                                                                                       \
        *(result) = (value);                                                                                 \
        return CUDA_SUCCESS;                                                                                 \
    }

/* ---- memory that other processes map: a memfd; its handle is the descriptor, one up so that none is 0 ---- */

enum { REGION_UNIT = 2 << 20 };

CUresult cuMemCreate(CUmemGenericAllocationHandle *made, size_t bytes, const CUmemAllocationProp *of, unsigned long long flags)
{
    called("cuMemCreate");
    int fd = of->requestedHandleTypes && !flags ? memfd_create("gpu", MFD_CLOEXEC) : -1;
    if (fd < 0 || bytes % REGION_UNIT || bytes > (size_t)1 << 30 || ftruncate(fd, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (CUmemGenericAllocationHandle)fd + 1;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle of)
{
    called("cuMemRelease");
    close((int)of - 1);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle of, CUmemAllocationHandleType type, unsigned long long flags)
{
    int copy = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags ? dup((int)of - 1) : -1;
    called("cuMemExportToShareableHandle");
    memcpy(fd, &copy, sizeof copy);
    return copy < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *of, void *fd, CUmemAllocationHandleType type)
{
    int copy = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? dup((int)(intptr_t)fd) : -1;
    called("cuMemImportFromShareableHandle");
    if (copy < 0 || fcntl(copy, F_GET_SEALS) < 0) {
        close(copy);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *of = (CUmemGenericAllocationHandle)copy + 1;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *of, CUmemGenericAllocationHandle handle_)
{
    called("cuMemGetAllocationPropertiesFromHandle");
    *of = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    of->location.type = handle_ ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_INVALID;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr hint, unsigned long long flags)
{
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    called("cuMemAddressReserve");
    *at = (CUdeviceptr)(uintptr_t)memory;
    return memory == MAP_FAILED || alignment || hint || flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes)
{
    called("cuMemAddressFree");
    return munmap((void *)(uintptr_t)at, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle of, unsigned long long flags)
{
    off_t end = lseek((int)of - 1, 0, SEEK_END);
    called("cuMemMap");
    if (offset || flags || end < 0 || bytes > (size_t)end || bytes % REGION_UNIT ||
        mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)of - 1, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    called("cuMemUnmap");
    return mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    int writes = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_WRITE : 0;
    called("cuMemSetAccess");
    return count != 1 || mprotect((void *)(uintptr_t)at, bytes, PROT_READ | writes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- memory of cuMemAlloc, and by a handle: which ranges there are. A handle says how large its memory is; who opens it has as much, of
 * which nothing is there. ---- */

struct range {
    struct range *next;
    uint8_t *at;
    size_t bytes;
    bool opened;
};

static struct range *ranges;
static pthread_mutex_t ranges_mutex = PTHREAD_MUTEX_INITIALIZER;

enum { HANDLE_IS = 0x49504331 };
struct handle_of_ipc {
    uint64_t is, bytes, offset; /* offset 0: of the begin, or the stub would have none */
};

static void add_range(void *at, size_t bytes, bool opened)
{
    struct range *made = malloc(sizeof *made);
    if (!made)
        abort();
    (void)pthread_mutex_lock(&ranges_mutex);
    *made = (struct range){ranges, at, bytes, opened};
    ranges = made;
    (void)pthread_mutex_unlock(&ranges_mutex);
}

/* The range in which an address lies; at NULL: there is none. With `ends` it is none any more. */
static struct range find_range(CUdeviceptr address, bool ends)
{
    struct range found = {0};
    (void)pthread_mutex_lock(&ranges_mutex);
    for (struct range **link = &ranges; *link; link = &(*link)->next) {
        struct range *r = *link;
        if (address - (uintptr_t)r->at >= (r->bytes ? r->bytes : 1))
            continue;
        found = *r;
        if (ends) {
            *link = r->next;
            free(r);
        }
        break;
    }
    (void)pthread_mutex_unlock(&ranges_mutex);
    return found;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t n)
{
    void *memory = calloc(1, n);
    called("cuMemAlloc_v2");
    *at = (CUdeviceptr)(uintptr_t)memory;
    if (memory)
        add_range(memory, n, false);
    return memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr at)
{
    called("cuMemFree_v2");
    (void)find_range(at, true);
    free((void *)(uintptr_t)at);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    struct range found = find_range(at, false);
    called("cuMemGetAddressRange_v2");
    *base = (CUdeviceptr)(uintptr_t)found.at;
    *bytes = found.bytes;
    return found.at ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *of, CUdeviceptr at)
{
    struct range found = find_range(at, false);
    struct handle_of_ipc handle = {HANDLE_IS, found.bytes, at - (uintptr_t)found.at};
    called("cuIpcGetMemHandle");
    memset(of, 0, sizeof *of);
    memcpy(of, &handle, sizeof handle);
    return found.at && !found.opened ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle of, unsigned flags)
{
    struct handle_of_ipc handle;
    called("cuIpcOpenMemHandle_v2");
    memcpy(&handle, &of, sizeof handle);
    if (handle.is != HANDLE_IS || handle.offset || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, handle.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    add_range(memory, handle.bytes, true);
    *at = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    struct range found = find_range(at, true);
    called("cuIpcCloseMemHandle");
    return found.opened && munmap(found.at, found.bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
/* clang-format off */
CUresult cuInit(unsigned flags) SUCCEED(cuInit)
CUresult cuDriverGetVersion(int *version) GIVE(cuDriverGetVersion, version, DRIVER_VERSION)
CUresult cuDeviceGetCount(int *count) GIVE(cuDeviceGetCount, count, 1)
CUresult cuDeviceGet(CUdevice *device, int index) GIVE(cuDeviceGet, device, index)
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) GIVE(cuDeviceTotalMem_v2, bytes, (size_t)1 << 30)
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) GIVE(cuDevicePrimaryCtxRetain, context, handle())
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) SUCCEED(cuDevicePrimaryCtxRelease_v2)
CUresult cuCtxSetCurrent(CUcontext context) SUCCEED(cuCtxSetCurrent)
CUresult cuCtxSynchronize(void) SUCCEED(cuCtxSynchronize)
CUresult cuCtxGetCurrent(CUcontext *context) GIVE(cuCtxGetCurrent, context, NULL)
CUresult cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *of, CUmemAllocationGranularity_flags o) GIVE(cuMemGetAllocationGranularity, unit, REGION_UNIT)
CUresult cuMemHostAlloc(void **at, size_t n, unsigned flags) GIVE(cuMemHostAlloc, at, calloc(1, n))
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t n, CUstream stream) SUCCEED(cuMemsetD8Async)
CUresult cuMemsetD2D8Async(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)
    SUCCEED(cuMemsetD2D8Async)
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) SUCCEED(cuMemcpy2DAsync_v2)
CUresult cuStreamCreate(CUstream *stream, unsigned flags) GIVE(cuStreamCreate, stream, handle())
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
    GIVE(cuStreamCreateWithPriority, stream, handle())
CUresult cuStreamDestroy_v2(CUstream stream) SUCCEED(cuStreamDestroy_v2)
CUresult cuStreamSynchronize(CUstream stream) SUCCEED(cuStreamSynchronize)
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) SUCCEED(cuStreamWaitEvent)
CUresult cuEventCreate(CUevent *event, unsigned flags) GIVE(cuEventCreate, event, handle())
CUresult cuEventDestroy_v2(CUevent event) SUCCEED(cuEventDestroy_v2)
CUresult cuEventRecord(CUevent event, CUstream stream) SUCCEED(cuEventRecord)
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end) GIVE(cuEventElapsedTime, ms, 1)
CUresult cuModuleLoadData(CUmodule *module, const void *image) GIVE(cuModuleLoadData, module, handle())
CUresult cuModuleUnload(CUmodule module) SUCCEED(cuModuleUnload)
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
    GIVE(cuModuleGetFunction, function, (CUfunction)(uintptr_t)name)
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value)
{
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        *shared_of(function) = (unsigned)value;
    SUCCEED(cuFuncSetAttribute)
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) SUCCEED(cuStreamBeginCapture_v2)
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) GIVE(cuStreamEndCapture, graph, handle())
CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
    GIVE(cuGraphInstantiateWithFlags, made, handle())
CUresult cuGraphExecUpdate_v2(CUgraphExec made, CUgraph graph, CUgraphExecUpdateResultInfo *info)
    SUCCEED(cuGraphExecUpdate_v2)
CUresult cuGraphLaunch(CUgraphExec made, CUstream stream) { return launched(NULL, 0); }
CUresult cuGraphExecDestroy(CUgraphExec made) SUCCEED(cuGraphExecDestroy)
CUresult cuGraphDestroy(CUgraph graph) SUCCEED(cuGraphDestroy)
CUresult cuGetErrorName(CUresult result, const char **name) GIVE(cuGetErrorName, name, "an error of the stub")
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
    SUCCEED(cuTensorMapEncodeTiled)
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **arguments, void **extra)
{
    if (stub_launch)
        stub_launch((const char *)f, (const unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ},
                    config->blockDimX, arguments[0]);
    return launched(f, config->sharedMemBytes);
}
CUresult cuLaunchKernel(CUfunction f, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                        unsigned threads_z, unsigned shared, CUstream stream, void **arguments, void **extra)
{
    if (stub_launch)
        stub_launch((const char *)f, (const unsigned[]){x, y, z}, threads_x, arguments[0]);
    return launched(f, shared);
}
CUresult cuStreamQuery(CUstream stream) { return question(); }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
    GIVE(cuStreamIsCapturing, status, CU_STREAM_CAPTURE_STATUS_NONE)
CUresult cuEventQuery(CUevent event) { return question(); }
/* clang-format on */

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    snprintf(name, (size_t)bytes, "stub");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT                   ? MULTIPROCESSORS
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR             ? 9
             : which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED ? 1
             : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR ? SM_BYTES
                                                                                 : 0;
    return CUDA_SUCCESS;
}

/* All memory is the GPU's. */
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *which, void **answers, CUdeviceptr at)
{
    called("cuPointerGetAttributes");
    for (unsigned i = 0; i < n; i++)
        *(int *)answers[i] = which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ? CU_MEMORYTYPE_DEVICE : 0;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    called("cuMemGetInfo_v2");
    *available = *total = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *at)
{
    called("cuMemFreeHost");
    free(at);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    called("cuMemcpyAsync");
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    called("cuMemcpyHtoDAsync_v2");
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    called("cuMemcpyDtoHAsync_v2");
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}
