/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_on_host.h - enough of CUDA to run device code on the CPU, without tensor cores. What runs a block's
 * threads is one of two:
 *
 *   threads.h            a thread of the host for each; what copies in the background is there at once
 *   fibers.h, copies.h   (EMULATED_FIBERS) in an order that a seed draws, with a model of the barriers and
 *                        copies by which K and V come
 *
 * Included before all else; C++17. */
#ifndef TESTS_EMULATION_CUDA_ON_HOST_H
#define TESTS_EMULATION_CUDA_ON_HOST_H

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define __CUDACC_RTC__ 1
#ifdef EMULATED_FIBERS
#define __global__ inline /* kernels as such are not made: they have tensor cores */
#define __shared__
#else
#define __global__
#define __shared__ static /* blocks run one at a time, if they have such variables */
#endif
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)               __attribute__((aligned(n)))
#define __expf                     expf
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulated->dynamic)

struct emulated_index {
    uint32_t x, y, z;
};

enum { EMULATED_WARPS_MAX = 32, EMULATED_LANES = 32 };

static thread_local emulated_index threadIdx, blockIdx;
static emulated_index blockDim, gridDim;

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
#ifdef EMULATED_FIBERS
    uint4 &operator=(const uint4 &from); /* a store to shared memory is noticed */
#endif
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

template <class To, class From> static inline To bits_as(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "the same bits");
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline uint32_t __float_as_uint(float x)
{
    return bits_as<uint32_t>(x);
}

static inline float __uint_as_float(uint32_t x)
{
    return bits_as<float>(x);
}

static inline float __int_as_float(int x)
{
    return bits_as<float>(x);
}

static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}

using std::max;
using std::min;

static inline uint32_t min(uint32_t a, uint32_t b) /* of an enumerator too */
{
    return a < b ? a : b;
}

#ifdef EMULATED_FIBERS
#include "tests/emulation/fibers.h"
#else
#include "tests/emulation/threads.h"
#endif

static inline uint32_t emulated_lane()
{
    return threadIdx.x % EMULATED_LANES;
}

/* x of every lane of the warp, as `read` makes something of it before the next one writes. */
template <class T, class F> static inline auto emulated_exchange(T x, F read)
{
    uint32_t *lanes = emulated->lanes[emulated_warp()];
    lanes[emulated_lane()] = bits_as<uint32_t>(x);
    __syncwarp();
    auto result = read(lanes);
    __syncwarp();
    return result;
}

template <class T> static inline T __shfl_sync(uint32_t, T x, uint32_t lane)
{
    return emulated_exchange(x,
                             [=](const uint32_t *lanes) { return bits_as<T>(lanes[lane % EMULATED_LANES]); });
}

static inline bool __shfl_sync(uint32_t all, bool x, uint32_t lane)
{
    return __shfl_sync(all, (uint32_t)x, lane) != 0;
}

template <class T> static inline T __shfl_xor_sync(uint32_t all, T x, int apart)
{
    return __shfl_sync(all, x, emulated_lane() ^ (uint32_t)apart);
}

template <class T> static inline T __shfl_up_sync(uint32_t all, T x, uint32_t apart)
{
    return __shfl_sync(all, x, emulated_lane() < apart ? emulated_lane() : emulated_lane() - apart);
}

static inline uint32_t __ballot_sync(uint32_t, bool is_set)
{
    return emulated_exchange((uint32_t)is_set, [](const uint32_t *lanes) {
        uint32_t mask = 0;
        for (uint32_t lane = 0; lane < EMULATED_LANES; lane++)
            mask |= lanes[lane] << lane;
        return mask;
    });
}

static inline bool __any_sync(uint32_t all, bool x)
{
    return __ballot_sync(all, x) != 0;
}

static inline bool __all_sync(uint32_t all, bool x)
{
    return __ballot_sync(all, x) == 0xffffffff;
}

static inline uint32_t atomicExch(uint32_t *at, uint32_t x)
{
    return __atomic_exchange_n(at, x, __ATOMIC_SEQ_CST);
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline uint32_t __reduce_max_sync(uint32_t, uint32_t x)
{
    return emulated_exchange(
        x, [](const uint32_t *lanes) { return *std::max_element(lanes, lanes + EMULATED_LANES); });
}

static inline uint32_t __reduce_min_sync(uint32_t, uint32_t x)
{
    return emulated_exchange(
        x, [](const uint32_t *lanes) { return *std::min_element(lanes, lanes + EMULATED_LANES); });
}

/* Bytes of y:x, whose numbers are the nibbles of `which`. */
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t which)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < 4; i++)
        bytes |= (uint32_t)(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return bytes;
}

static inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}

static inline int __clz(uint32_t x)
{
    return x ? __builtin_clz(x) : 32;
}

static inline int __ffs(uint32_t x)
{
    return __builtin_ffs((int)x);
}

/* ---- what ptx.cuh has for a GPU; the rest of it is in the files above and below */

/* Addresses of shared memory count from its beginning. */
static inline uint32_t shared_address(const void *pointer)
{
    return (uint32_t)((const uint8_t *)pointer - (const uint8_t *)emulated->dynamic);
}

static inline void await_previous()
{
}

static inline void let_next_begin()
{
}

static inline void cluster_sync_before_exit()
{
    cluster_sync();
}

static inline float exp2_fast(float x)
{
    return exp2f(x);
}

static inline float reciprocal_estimate(float x)
{
    return 1.0F / x;
}

#ifdef EMULATED_FIBERS
#include "tests/emulation/copies.h"
#endif

template <int BYTES> static inline void copy_async(uint32_t to, const void *from, bool valid)
{
    emulated_copy(to, valid ? from : nullptr, BYTES);
}

#endif
