/* tma.cuh - barriers in shared memory at which copies arrive, and copies by TMA. */
#pragma once

#include "kernels/cuda/device/async_copy.cuh"

#ifdef __CUDA_ARCH__ /* tests/emulation has its own */

/* ---- barriers in shared memory (mbarrier, 8 bytes), at which copies arrive */

/* Its phase ends when so many have arrived. */
static inline void mbarrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
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

/* What this thread knows to be written is there for TMA and wgmma, which go another way to shared memory. */
static inline void fence_async_proxy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
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

/* TMA sees the barriers that were initialised. */
static inline void mbarrier_fence()
{
#if TMA
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* ---- TMA */

#if TMA
/* The barrier's phase ends once so many bytes have arrived. */
static inline void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

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
#endif
