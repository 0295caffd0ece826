/* driver.h - the CUDA driver, found when the program runs.
 *
 * The daemon is not linked with CUDA: libcuda.so.1 comes with the GPU's driver, and where there is none
 * the same binary serves from the CPU. Symbols are looked up under the versioned names of the header
 * that this was compiled with. */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include "config/status.h"

#include <cuda.h>

#include <stddef.h>

/* XX(function). None that waits for the GPU is among them: see cuda_await(). */
#define CUDA_SYMBOLS(XX)                                                                                     \
    XX(cuInit)                                                                                               \
    XX(cuDriverGetVersion)                                                                                   \
    XX(cuDeviceGetCount)                                                                                     \
    XX(cuDeviceGet)                                                                                          \
    XX(cuDeviceGetName)                                                                                      \
    XX(cuDeviceGetAttribute)                                                                                 \
    XX(cuDeviceTotalMem_v2)                                                                                  \
    XX(cuDevicePrimaryCtxRetain)                                                                             \
    XX(cuDevicePrimaryCtxRelease_v2)                                                                         \
    XX(cuCtxSetCurrent)                                                                                      \
    XX(cuMemGetInfo_v2)                                                                                      \
    XX(cuMemAlloc_v2)                                                                                        \
    XX(cuMemFree_v2)                                                                                         \
    XX(cuMemHostAlloc)                                                                                       \
    XX(cuMemFreeHost)                                                                                        \
    XX(cuMemcpyHtoDAsync_v2)                                                                                 \
    XX(cuMemcpyDtoHAsync_v2)                                                                                 \
    XX(cuMemsetD8Async)                                                                                      \
    XX(cuMemsetD2D8Async)                                                                                    \
    XX(cuMemcpy2DAsync_v2)                                                                                   \
    XX(cuStreamCreate)                                                                                       \
    XX(cuStreamCreateWithPriority)                                                                           \
    XX(cuStreamDestroy_v2)                                                                                   \
    XX(cuStreamQuery)                                                                                        \
    XX(cuStreamWaitEvent)                                                                                    \
    XX(cuEventCreate)                                                                                        \
    XX(cuEventDestroy_v2)                                                                                    \
    XX(cuEventRecord)                                                                                        \
    XX(cuEventQuery)                                                                                         \
    XX(cuEventElapsedTime)                                                                                   \
    XX(cuModuleLoadData)                                                                                     \
    XX(cuModuleUnload)                                                                                       \
    XX(cuModuleGetFunction)                                                                                  \
    XX(cuFuncSetAttribute)                                                                                   \
    XX(cuLaunchKernel)                                                                                       \
    XX(cuStreamBeginCapture_v2)                                                                              \
    XX(cuStreamEndCapture)                                                                                   \
    XX(cuGraphInstantiateWithFlags)                                                                          \
    XX(cuGraphExecUpdate_v2)                                                                                 \
    XX(cuGraphLaunch)                                                                                        \
    XX(cuGraphExecDestroy)                                                                                   \
    XX(cuGraphDestroy)                                                                                       \
    XX(cuGetErrorName)

/* XX(function): may be missing, in older drivers; NULL then */
#define CUDA_OPTIONAL_SYMBOLS(XX)                                                                            \
    XX(cuTensorMapEncodeTiled)                                                                               \
    XX(cuLaunchKernelEx)

struct cuda_driver {
    void *library;
#define XX(function) __typeof__(function) *function;
    CUDA_SYMBOLS(XX)
    CUDA_OPTIONAL_SYMBOLS(XX)
#undef XX
};

/* cuda_driver_load(cu, error): open the library, look everything up, cuInit(). Returns 0, or
 * ATTND_NOT_FOUND with a sentence and nothing to unload. Takes 0.1 s or more where there is a GPU. */
MUST_USE int cuda_driver_load(struct cuda_driver *cu, char *error, size_t error_bytes);
void cuda_driver_unload(struct cuda_driver *cu);

/* The name of a result, "CUDA_ERROR_OUT_OF_MEMORY". */
const char *cuda_driver_error(const struct cuda_driver *cu, CUresult result);

#endif
