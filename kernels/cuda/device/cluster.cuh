/* cluster.cuh - thread blocks that run at the same time and read each other's shared memory (a cluster,
 * sm_90 and later). */
#pragma once

#include "kernels/cuda/device/async_copy.cuh"

/* By all threads of all thread blocks of the cluster that have not ended: what was written before is seen
 * after. */
static inline void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#elif !defined(__CUDA_ARCH__) /* tests/emulation */
    emulated_await_cluster();
#endif
}

/* Likewise, before they end: what they read of each other's has been read. What they wrote need not be
 * seen by the others, which would take 0.4 us (H200). */
static inline void cluster_part()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
#elif !defined(__CUDA_ARCH__)
    emulated_await_cluster();
#endif
}

/* Where the thread block `rank` of the cluster has what this one has at `here` in its shared memory. */
static inline const uint8_t *cluster_pointer(const uint8_t *here, uint32_t rank)
{
    const uint8_t *there = here;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
#elif !defined(__CUDA_ARCH__)
    there = emulated_there(here, rank);
#endif
    return there;
}
