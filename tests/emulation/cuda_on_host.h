/* cuda_on_host.h - enough of CUDA to run device code on the CPU: a thread of the host for each thread
 * of a block, blocks one after the other, or those of a cluster together.
 *
 * Barriers and shuffles are real, so a barrier that not all threads reach hangs, and sanitizers see
 * every access. No tensor cores, no copy engine, and what copies in the background is there at once: it
 * is for pool.cu, paged.cu and merge.cu. Included before all else; C++17. */
#ifndef TESTS_EMULATION_CUDA_ON_HOST_H
#define TESTS_EMULATION_CUDA_ON_HOST_H

#include <pthread.h>

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
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n)               alignas(n)
#define __expf                     expf
#define __shared__                 static /* blocks run one at a time, if they have such variables */
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulated->dynamic)

struct emulated_index {
    uint32_t x, y, z;
};

enum { EMULATED_WARPS_MAX = 8, EMULATED_LANES = 32 };

static thread_local emulated_index threadIdx, blockIdx;
static emulated_index blockDim, gridDim;

/* A block that runs, beside the others of its cluster. */
struct emulated_block {
    pthread_barrier_t block, warp[EMULATED_WARPS_MAX], *cluster_barrier;
    uint32_t lanes[EMULATED_WARPS_MAX][EMULATED_LANES];
    float *dynamic; /* shared memory */
    emulated_block *cluster;
    std::atomic<uint32_t> running; /* threads */
};

static thread_local emulated_block *emulated; /* the thread's */

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

static inline uint32_t min(uint32_t a, uint32_t b) /* of an enumerator too */
{
    return a < b ? a : b;
}

static inline void __syncthreads()
{
    pthread_barrier_wait(&emulated->block);
}

static inline void emulated_await(uint32_t, uint32_t threads)
{
    if (threads != blockDim.x * blockDim.y)
        abort(); /* so far all of them */
    __syncthreads();
}

static inline uint32_t emulated_warp()
{
    return (threadIdx.y * blockDim.x + threadIdx.x) / EMULATED_LANES;
}

static inline void __syncwarp()
{
    pthread_barrier_wait(&emulated->warp[emulated_warp()]);
}

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

/* Addresses of shared memory count from its beginning. */
static inline size_t __cvta_generic_to_shared(const void *pointer)
{
    return (size_t)((const uint8_t *)pointer - (const uint8_t *)emulated->dynamic);
}

static inline void emulated_copy(uint32_t to, const void *from, size_t bytes)
{
    uint8_t *at = (uint8_t *)emulated->dynamic + to;
    from ? memcpy(at, from, bytes) : memset(at, 0, bytes);
}

static inline void emulated_await_cluster()
{
    pthread_barrier_wait(emulated->cluster_barrier);
}

static inline const uint8_t *emulated_there(const uint8_t *here, uint32_t rank)
{
    return (const uint8_t *)emulated->cluster[rank].dynamic + (here - (const uint8_t *)emulated->dynamic);
}

/* Run a block's threads; its shared memory is NaN before and, for others of the cluster, after. */
static inline void emulated_run(emulated_block &b, emulated_index at, uint32_t threads, size_t shared_floats,
                                const std::function<void()> &kernel, std::vector<std::thread> &team)
{
    std::fill(b.dynamic, b.dynamic + shared_floats, NAN);
    b.running = threads;
    for (uint32_t thread = 0; thread < threads; thread++)
        team.emplace_back([=, &b, &kernel] {
            threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
            blockIdx = at;
            emulated = &b;
            kernel();
            if (--b.running == 0)
                std::fill(b.dynamic, b.dynamic + shared_floats, NAN);
        });
}

/* Run `kernel` on every thread of a grid of blocks of threads_x times threads_y, in clusters of so many
 * blocks. */
static inline void emulate(emulated_index grid, uint32_t threads_x, size_t shared_floats,
                           const std::function<void()> &kernel, uint32_t threads_y = 1, uint32_t cluster = 1)
{
    std::vector<float> dynamic(cluster * (shared_floats + 1));
    std::vector<emulated_block> blocks(cluster);
    pthread_barrier_t cluster_barrier;
    uint32_t threads = threads_x * threads_y;
    blockDim = {threads_x, threads_y, 1};
    gridDim = grid;
    pthread_barrier_init(&cluster_barrier, nullptr, cluster * threads);
    for (uint32_t i = 0; i < cluster; i++) {
        emulated_block &b = blocks[i];
        pthread_barrier_init(&b.block, nullptr, threads);
        for (uint32_t warp = 0; warp < threads / EMULATED_LANES; warp++)
            pthread_barrier_init(&b.warp[warp], nullptr, EMULATED_LANES);
        b.cluster_barrier = &cluster_barrier;
        b.cluster = blocks.data();
        b.dynamic = dynamic.data() + i * (shared_floats + 1);
    }
    for (uint32_t first = 0; first < grid.x * grid.y * grid.z; first += cluster) {
        std::vector<std::thread> team;
        for (uint32_t i = 0; i < cluster; i++) {
            uint32_t at = first + i;
            emulated_run(blocks[i], {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y}, threads,
                         shared_floats, kernel, team);
        }
        for (std::thread &member : team)
            member.join();
    }
    for (emulated_block &b : blocks) {
        pthread_barrier_destroy(&b.block);
        for (uint32_t warp = 0; warp < threads / EMULATED_LANES; warp++)
            pthread_barrier_destroy(&b.warp[warp]);
    }
    pthread_barrier_destroy(&cluster_barrier);
}

#endif
