/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_regions.c - memory of the GPU that another process of this host has, too: by the driver's virtual memory management, whose
 * descriptors are files. Memory that was made here stays when the other process dies, and the other way round.
 *
 *   make     cuMemCreate -> a descriptor to give away -> mapped here
 *   take     a descriptor that came -> cuMemImport... -> mapped here, to read or to write, too
 *   open     a handle of CUDA IPC, whose memory is only there as long as its owner keeps it
 *
 * What goes wrong here is the region's, not the device's: the driver says that memory is short, or a descriptor none of its. */
#include "kernels/cuda/cuda_backend.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int refuse(const struct cuda_device *d, CUresult result, const char *doing, char *error)
{
    snprintf(error, ATTENTION_ERROR_BYTES, "%s: the driver says %s", doing,
             cuda_driver_error(&d->cu, result));
    return result == CUDA_ERROR_OUT_OF_MEMORY ? ATTND_NO_MEMORY : ATTND_INVALID;
}

/* Where regions can be had: with a driver that knows them, on a GPU that has descriptors. */
static bool has_regions(const struct cuda_device *d)
{
    const struct cuda_driver *cu = &d->cu;
    int has = 0;
    return cu->cuMemCreate && cu->cuMemRelease && cu->cuMemExportToShareableHandle &&
           cu->cuMemImportFromShareableHandle && cu->cuMemAddressReserve && cu->cuMemAddressFree &&
           cu->cuMemMap && cu->cuMemUnmap && cu->cuMemSetAccess && cu->cuMemGetAllocationGranularity &&
           cu->cuMemGetAllocationPropertiesFromHandle &&
           cu->cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                    d->device) == CUDA_SUCCESS &&
           has;
}

static CUmemAllocationProp properties_of(const struct cuda_device *d)
{
    CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    of.location.id = d->device;
    return of;
}

/* Map what the handle is of. */
static CUresult map(const struct cuda_device *d, CUmemGenericAllocationHandle handle, uint64_t bytes,
                    bool writes, CUdeviceptr *address)
{
    const struct cuda_driver *cu = &d->cu;
    CUmemAccessDesc access = {.flags = writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                              : CU_MEM_ACCESS_FLAGS_PROT_READ};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = d->device;
    CUresult result = cu->cuMemAddressReserve(address, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = cu->cuMemMap(*address, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        result = cu->cuMemSetAccess(*address, bytes, &access, 1);
        if (result != CUDA_SUCCESS)
            (void)cu->cuMemUnmap(*address, bytes);
    }
    if (result != CUDA_SUCCESS)
        (void)cu->cuMemAddressFree(*address, bytes);
    return result;
}

uint64_t cuda_region_unit(const struct cuda_device *d)
{
    const CUmemAllocationProp of = properties_of(d);
    size_t unit = 0;
    bool has = has_regions(d) && d->cu.cuMemGetAllocationGranularity(
                                     &unit, &of, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
    return has ? unit : 0;
}

int cuda_region_make(struct attention *attention, uint64_t bytes, struct attention_region *region, int *fd,
                     char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    const CUmemAllocationProp of = properties_of(d);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address = 0;
    int made = -1;
    cuda_enter(d);
    CUresult result = d->cu.cuMemCreate(&handle, bytes, &of, 0);
    if (result != CUDA_SUCCESS)
        return refuse(d, result, "taking memory of the GPU", error);
    result = d->cu.cuMemExportToShareableHandle(&made, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
        result = map(d, handle, bytes, true, &address);
    (void)d->cu.cuMemRelease(handle); /* what is mapped, and the descriptor, keep it */
    if (result != CUDA_SUCCESS) {
        if (made >= 0)
            close(made);
        return refuse(d, result, "mapping memory of the GPU", error);
    }
    *fd = made;
    *region = (struct attention_region){.address = (void *)(uintptr_t)address, .bytes = bytes};
    return 0;
}

int cuda_region_take(struct attention *attention, int fd, uint64_t bytes, bool writes,
                     struct attention_region *region, char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp has;
    CUdeviceptr address = 0;
    cuda_enter(d);
    CUresult result = d->cu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS)
        return refuse(d, result, "the descriptor is no memory of a GPU", error);
    result = d->cu.cuMemGetAllocationPropertiesFromHandle(&has, handle);
    if (result == CUDA_SUCCESS && has.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = map(d, handle, bytes, writes, &address);
    (void)d->cu.cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        return refuse(d, result, "the memory cannot be mapped for this GPU with so many bytes", error);
    *region = (struct attention_region){.address = (void *)(uintptr_t)address, .bytes = bytes};
    return 0;
}

int cuda_region_open(struct attention *attention, const uint8_t handle[ATTENTION_IPC_BYTES], uint64_t bytes,
                     struct attention_region *region, char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    CUipcMemHandle of;
    CUdeviceptr address = 0, base = 0;
    size_t size = 0;
    _Static_assert(sizeof of == ATTENTION_IPC_BYTES, "a handle");
    memcpy(&of, handle, sizeof of);
    cuda_enter(d);
    if (!d->cu.cuIpcOpenMemHandle_v2 || !d->cu.cuIpcCloseMemHandle || !d->cu.cuMemGetAddressRange_v2)
        return refuse(d, CUDA_ERROR_NOT_SUPPORTED, "opening a handle", error);
    CUresult result = d->cu.cuIpcOpenMemHandle_v2(&address, of, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS)
        return refuse(d, result, "the handle is of no memory of a GPU", error);
    result = d->cu.cuMemGetAddressRange_v2(&base, &size, address);
    if (result == CUDA_SUCCESS && bytes > size - (address - base))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) {
        (void)d->cu.cuIpcCloseMemHandle(address);
        return refuse(d, result, "the memory has not so many bytes", error);
    }
    *region = (struct attention_region){.address = (void *)(uintptr_t)address, .bytes = bytes, .ipc = true};
    return 0;
}

void cuda_region_end(struct attention *attention, const struct attention_region *region)
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)region->address;
    cuda_enter(d);
    if (region->ipc) {
        cuda_holds(d, d->cu.cuIpcCloseMemHandle(address), "closing a region");
        return;
    }
    cuda_holds(d, d->cu.cuMemUnmap(address, region->bytes), "unmapping a region");
    cuda_holds(d, d->cu.cuMemAddressFree(address, region->bytes), "giving back a region's addresses");
}
