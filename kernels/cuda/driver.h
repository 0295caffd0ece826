/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - the CUDA driver, found when the program runs.
 *
 * The daemon is not linked with CUDA: libcuda.so.1 comes with the GPU's driver, and where there is none
 * the same binary serves from the CPU. Symbols are looked up under the versioned names of the header
 * that this was compiled with. */
#ifndef KERNELS_CUDA_DRIVER_H
#define KERNELS_CUDA_DRIVER_H

#include "config/status.h"

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

/* XX(function, whether it has to be there): others are missing in older drivers, and NULL then. None that
 * waits for the GPU is among them: see cuda_await(). */
#define CUDA_SYMBOLS(XX)                                                                                     \
    XX(cuInit, true)                                                                                         \
    XX(cuDriverGetVersion, true)                                                                             \
    XX(cuDeviceGetCount, true)                                                                               \
    XX(cuDeviceGet, true)                                                                                    \
    XX(cuDeviceGetName, true)                                                                                \
    XX(cuDeviceGetAttribute, true)                                                                           \
    XX(cuDeviceTotalMem_v2, true)                                                                            \
    XX(cuDevicePrimaryCtxRetain, true)                                                                       \
    XX(cuDevicePrimaryCtxRelease_v2, true)                                                                   \
    XX(cuCtxSetCurrent, true)                                                                                \
    XX(cuCtxGetCurrent, true)                                                                                \
    XX(cuMemGetInfo_v2, true)                                                                                \
    XX(cuMemAlloc_v2, true)                                                                                  \
    XX(cuMemFree_v2, true)                                                                                   \
    XX(cuMemHostAlloc, true)                                                                                 \
    XX(cuMemFreeHost, true)                                                                                  \
    XX(cuMemcpyAsync, true)                                                                                  \
    XX(cuMemcpyHtoDAsync_v2, true)                                                                           \
    XX(cuMemcpyDtoHAsync_v2, true)                                                                           \
    XX(cuMemsetD8Async, true)                                                                                \
    XX(cuMemsetD2D8Async, true)                                                                              \
    XX(cuMemcpy2DAsync_v2, true)                                                                             \
    XX(cuStreamCreate, true)                                                                                 \
    XX(cuStreamCreateWithPriority, true)                                                                     \
    XX(cuStreamDestroy_v2, true)                                                                             \
    XX(cuStreamQuery, true)                                                                                  \
    XX(cuStreamIsCapturing, true)                                                                            \
    XX(cuPointerGetAttributes, true)                                                                         \
    XX(cuStreamWaitEvent, true)                                                                              \
    XX(cuEventCreate, true)                                                                                  \
    XX(cuEventDestroy_v2, true)                                                                              \
    XX(cuEventRecord, true)                                                                                  \
    XX(cuEventQuery, true)                                                                                   \
    XX(cuEventElapsedTime, true)                                                                             \
    XX(cuModuleLoadData, true)                                                                               \
    XX(cuModuleUnload, true)                                                                                 \
    XX(cuModuleGetFunction, true)                                                                            \
    XX(cuFuncSetAttribute, true)                                                                             \
    XX(cuLaunchKernel, true)                                                                                 \
    XX(cuStreamBeginCapture_v2, true)                                                                        \
    XX(cuStreamEndCapture, true)                                                                             \
    XX(cuGraphInstantiateWithFlags, true)                                                                    \
    XX(cuGraphExecUpdate_v2, true)                                                                           \
    XX(cuGraphLaunch, true)                                                                                  \
    XX(cuGraphExecDestroy, true)                                                                             \
    XX(cuGraphDestroy, true)                                                                                 \
    XX(cuGetErrorName, true)                                                                                 \
    XX(cuIpcOpenMemHandle_v2, false)                                                                         \
    XX(cuIpcCloseMemHandle, false)                                                                           \
    XX(cuMemGetAddressRange_v2, false)                                                                       \
    XX(cuMemCreate, false)                                                                                   \
    XX(cuMemRelease, false)                                                                                  \
    XX(cuMemExportToShareableHandle, false)                                                                  \
    XX(cuMemImportFromShareableHandle, false)                                                                \
    XX(cuMemAddressReserve, false)                                                                           \
    XX(cuMemAddressFree, false)                                                                              \
    XX(cuMemMap, false)                                                                                      \
    XX(cuMemUnmap, false)                                                                                    \
    XX(cuMemSetAccess, false)                                                                                \
    XX(cuMemGetAllocationGranularity, false)                                                                 \
    XX(cuMemGetAllocationPropertiesFromHandle, false)                                                        \
    XX(cuThreadExchangeStreamCaptureMode, false)                                                             \
    XX(cuTensorMapEncodeTiled, false)                                                                        \
    XX(cuLaunchKernelEx, false)

struct cuda_driver {
    void *library;
#define XX(function, needed) __typeof__(function) *function;
    CUDA_SYMBOLS(XX)
#undef XX
};

/* cuda_driver_load(cu, error): open the library, look everything up, cuInit(). Returns 0, or
 * ATTND_NOT_FOUND with a sentence and nothing to unload. Takes 0.1 s or more where there is a GPU. */
MUST_USE int cuda_driver_load(struct cuda_driver *cu, char *error, size_t error_bytes);
void cuda_driver_unload(struct cuda_driver *cu);

/* The name of a result, "CUDA_ERROR_OUT_OF_MEMORY". */
const char *cuda_driver_error(const struct cuda_driver *cu, CUresult result);

#endif
