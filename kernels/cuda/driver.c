/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - see driver.h. */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"

const char *cuda_driver_error(const struct cuda_driver *cu, CUresult result)
{
    const char *name = NULL;
    return cu->cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown CUDA error";
}

/* The first symbol that the library lacks, or NULL. */
static const char *look_up(struct cuda_driver *cu)
{
    /* POSIX lets dlsym's result be used as a function; ISO C wants it copied */
#define XX(function, needed)                                                                                 \
    {                                                                                                        \
        void *symbol = dlsym(cu->library, #function);                                                        \
        if (!symbol && (needed))                                                                             \
            return #function;                                                                                \
        memcpy(&cu->function, &symbol, sizeof symbol);                                                       \
    }
    CUDA_SYMBOLS(XX)
#undef XX
    return NULL;
}

int cuda_driver_load(struct cuda_driver *cu, char *error, size_t error_bytes)
{
    *cu = (struct cuda_driver){.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (!cu->library) {
        snprintf(error, error_bytes, "no CUDA driver (%s)", dlerror());
        return ATTND_NOT_FOUND;
    }
    const char *missing = look_up(cu);
    CUresult result = missing ? CUDA_SUCCESS : cu->cuInit(0);
    if (!missing && result == CUDA_SUCCESS)
        return 0;
    if (missing)
        snprintf(error, error_bytes, "the CUDA driver has no %s: it is too old", missing);
    else
        snprintf(error, error_bytes, "the CUDA driver cannot start: cuInit says %s",
                 cuda_driver_error(cu, result));
    cuda_driver_unload(cu);
    return ATTND_NOT_FOUND;
}

void cuda_driver_unload(struct cuda_driver *cu)
{
    if (cu->library)
        dlclose(cu->library);
    *cu = (struct cuda_driver){0};
}
