/* cluster.cuh - thread blocks that run at the same time and read each other's shared memory (a cluster, sm_90 and later). */
#pragma once

#include "kernels/cuda/device/copies.cuh"

/* By all threads of all thread blocks of the cluster that have not ended: what was written before is seen after. */
static inline void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif !defined(__CUDA_ARCH__) /* tests/emulation */
    emulated_await_cluster();
#endif
}

/* Where the thread block `rank` of the cluster has what this one has at `address` of its shared memory. */
static inline uint32_t cluster_address(uint32_t address, uint32_t rank)
{
    uint32_t there = address;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#elif !defined(__CUDA_ARCH__)
    there += rank << EMULATED_RANK_BIT;
#endif
    return there;
}

static inline float2 cluster_load2(uint32_t there)
{
    float2 x = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(there) : "memory");
#elif !defined(__CUDA_ARCH__)
    memcpy(&x, emulated_there(there), sizeof x);
#endif
    return x;
}

static inline float4 cluster_load4(uint32_t there)
{
    float4 x = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(there)
                 : "memory");
#elif !defined(__CUDA_ARCH__)
    memcpy(&x, emulated_there(there), sizeof x);
#endif
    return x;
}
