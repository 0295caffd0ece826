/* async_copy.cuh - copies from global to shared memory in the background (cp.async, sm_80 and later; before,
 * they are just made). */
#pragma once

#include <stdint.h>

static inline uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* `BYTES` (4, 8 or 16), aligned to as many; zeros if not `valid`. */
template <int BYTES> void copy_async(uint32_t to, const void *from, bool valid)
{
#ifndef __CUDA_ARCH__ /* tests/emulation */
    emulated_copy(to, valid ? from : nullptr, BYTES);
#elif __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? BYTES : 0), "n"(BYTES)
                     : "memory");
#else
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 4 * i), "r"(valid ? ((const uint32_t *)from)[i] : 0)
                     : "memory");
#endif
}

static inline void copy_async_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDA_ARCH__)
    emulated_commit();
#endif
}

/* Wait until all but the last `PENDING` groups have arrived. */
template <int PENDING> void copy_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#elif !defined(__CUDA_ARCH__)
    emulated_wait_copies(PENDING);
#endif
}
