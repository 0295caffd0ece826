/* SPDX-License-Identifier: Apache-2.0 */
/* ptx.cuh - instructions that CUDA C++ has no function for; those of tensor cores are in mma.cuh and
 * wgmma.cuh. tests/emulation has its own of all of them. */
#pragma once

#include "kernels/cuda/device/step.h"

#ifdef __CUDA_ARCH__

/* ---- launches that overlap (launch.cuh) */

static inline void await_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static inline void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- barriers of threads */

/* bar.sync: wait for `threads` threads of the block, whole warps. */
static inline void named_barrier_sync(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* bar.arrive: signal without waiting. */
static inline void named_barrier_arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* By all threads of all thread blocks of the cluster that have not ended: what was written before is seen
 * after. */
static inline void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

/* Likewise, before they end: what they read of each other's has been read. What they wrote need not be
 * seen by the others, which would take 0.4 us (H200). */
static inline void cluster_sync_before_exit()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Where the thread block `rank` of the cluster has what this one has at `here` in its shared memory. */
static inline const uint8_t *cluster_pointer(const uint8_t *here, uint32_t rank)
{
    const uint8_t *there = here;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(here), "r"(rank));
#endif
    return there;
}

/* True for one lane of the warp, which the compiler knows to be alone. */
static inline bool elect_one()
{
#if __CUDA_ARCH__ >= 900
    uint32_t elected;
    asm volatile("{\n"
                 ".reg .pred one;\n"
                 "elect.sync _|one, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, one;\n"
                 "}"
                 : "=r"(elected));
    return elected;
#else
    return threadIdx.x % 32 == 0;
#endif
}

/* ---- arithmetic */

/* 2^x by the special-function unit: relative error 2^-22, 2^0 = 1, 2^-inf = 0; what is below 2^-126 is 0. */
static inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* About 1 / x. */
static inline float reciprocal_estimate(float x)
{
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- shared memory */

static inline uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static inline uint32_t load_shared(uint32_t address)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

static inline void store_shared(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

static inline void store_shared(uint32_t address, const uint4 &x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}

/* What this thread knows to be written is there for TMA and wgmma, which go another way to shared memory. */
static inline void fence_async_proxy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- copies to it in the background (cp.async, sm_80 and later; before, they are just made) */

/* `BYTES` (4, 8 or 16), aligned to as many; zeros if not `valid`. */
template <int BYTES> void copy_async(uint32_t to, const void *from, bool valid)
{
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from),
                     "r"(valid ? BYTES : 0), "n"(BYTES)
                     : "memory");
#else
    for (int i = 0; i < BYTES / 4; i++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 4 * i), "r"(valid ? ((const uint32_t *)from)[i] : 0)
                     : "memory");
#endif
}

static inline void copy_async_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait until all groups have arrived. */
static inline void copy_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

/* ---- barriers in it (mbarrier, 8 bytes), at which copies arrive */

/* Its phase ends when so many have arrived. */
static inline void mbarrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/* TMA sees the barriers that were initialised. */
static inline void mbarrier_fence()
{
#if TMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static inline void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* This thread arrives once its copies (cp.async) so far have. */
static inline void mbarrier_arrive_behind_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* The phase ends once so many bytes have arrived by TMA. */
static inline void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Whether the phase has ended. */
static inline bool mbarrier_test(uint32_t barrier, uint32_t parity)
{
    uint32_t ended;
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return ended;
}

static inline void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n"
                 ".reg .pred arrived;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 arrived, [%0], %1;\n"
                 "@!arrived bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#else
    while (!mbarrier_test(barrier, parity)) {
    }
#endif
}

/* ---- TMA */

static inline void tma_prefetch_map(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

static inline uint64_t evict_first_policy()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Bring a box into L2. */
static inline void tma_prefetch(const void *map, uint32_t dim, uint32_t atom, uint32_t slot, uint32_t head,
                                uint32_t plane)
{
    asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %5, %3, %4}];" ::"l"(map),
                 "r"(dim), "r"(slot), "r"(head), "r"(plane), "r"(atom)
                 : "memory");
}

/* One box of the pool; its number in each dimension of the map. */
static inline void tma_load(uint32_t to, const void *map, uint32_t barrier, uint32_t dim, uint32_t atom,
                            uint32_t slot, uint32_t head, uint32_t plane, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %8, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(dim), "r"(slot), "r"(head), "r"(plane), "l"(policy), "r"(atom)
        : "memory");
}
#endif
