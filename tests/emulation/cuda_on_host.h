/* cuda_on_host.h - enough of CUDA to run device code on the CPU: a thread of the host for each thread
 * of a block, blocks one after the other.
 *
 * Barriers and shuffles are real, so a barrier that not all threads reach hangs, and sanitizers see
 * every access. No tensor cores, no asynchronous copies: it is for pool.cu and paged.cu. Included
 * before all else; C++17. */
#ifndef TESTS_EMULATION_CUDA_ON_HOST_H
#define TESTS_EMULATION_CUDA_ON_HOST_H

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define __CUDACC_RTC__ 1
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)               alignas(n)
#define __expf                     expf
#define __shared__                 static /* blocks run one at a time */
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulated.dynamic)

struct emulated_index {
    uint32_t x, y, z;
};

enum { EMULATED_WARPS_MAX = 8, EMULATED_LANES = 32 };

static thread_local emulated_index threadIdx, blockIdx;
static emulated_index blockDim, gridDim;

/* Of the block that runs. */
static struct {
    pthread_barrier_t block, warp[EMULATED_WARPS_MAX];
    float lanes[EMULATED_WARPS_MAX][EMULATED_LANES];
    float *dynamic; /* shared memory */
} emulated;

struct uint2 {
    uint32_t x, y;
};
struct uint4 {
    uint32_t x, y, z, w;
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

static inline void __syncthreads()
{
    pthread_barrier_wait(&emulated.block);
}

static inline float __shfl_xor_sync(uint32_t, float x, int apart)
{
    uint32_t warp = threadIdx.x / EMULATED_LANES, lane = threadIdx.x % EMULATED_LANES;
    emulated.lanes[warp][lane] = x;
    pthread_barrier_wait(&emulated.warp[warp]);
    float other = emulated.lanes[warp][lane ^ (uint32_t)apart];
    pthread_barrier_wait(&emulated.warp[warp]); /* all have read before the next one writes */
    return other;
}

/* Run `kernel` on every thread of a grid. Shared memory is NaN for every block. */
static inline void emulate(emulated_index grid, uint32_t threads, size_t shared_floats,
                           const std::function<void()> &kernel)
{
    std::vector<float> dynamic(shared_floats + 1);
    blockDim = {threads, 1, 1};
    gridDim = grid;
    emulated.dynamic = dynamic.data();
    pthread_barrier_init(&emulated.block, nullptr, threads);
    for (uint32_t warp = 0; warp < threads / EMULATED_LANES; warp++)
        pthread_barrier_init(&emulated.warp[warp], nullptr, EMULATED_LANES);
    for (uint32_t block = 0; block < grid.x * grid.y * grid.z; block++) {
        std::vector<std::thread> team;
        std::fill(dynamic.begin(), dynamic.end(), NAN);
        for (uint32_t thread = 0; thread < threads; thread++)
            team.emplace_back([=, &kernel] {
                threadIdx = {thread, 0, 0};
                blockIdx = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
                kernel();
            });
        for (std::thread &member : team)
            member.join();
    }
    pthread_barrier_destroy(&emulated.block);
    for (uint32_t warp = 0; warp < threads / EMULATED_LANES; warp++)
        pthread_barrier_destroy(&emulated.warp[warp]);
}

#endif
