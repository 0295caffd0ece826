/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h - a thread of the host for each thread of a block, blocks one after the other, or those of a
 * cluster together.
 *
 * Barriers and shuffles are real, so a barrier that not all threads reach hangs, and sanitizers see every
 * access. No copy engine: what copies in the background is there at once. For pool.cu, paged.cu and merge.cu;
 * included by cuda_on_host.h. */
#ifndef TESTS_EMULATION_THREADS_H
#define TESTS_EMULATION_THREADS_H

#include <pthread.h>

/* A block that runs, beside the others of its cluster. */
struct emulated_block {
    pthread_barrier_t block, warp[EMULATED_WARPS_MAX], *cluster_barrier;
    uint32_t lanes[EMULATED_WARPS_MAX][EMULATED_LANES];
    float *dynamic; /* shared memory */
    emulated_block *cluster;
    std::atomic<uint32_t> running; /* threads */
};

static thread_local emulated_block *emulated; /* the thread's */

static inline void __syncthreads()
{
    pthread_barrier_wait(&emulated->block);
}

static inline void named_barrier_sync(uint32_t, uint32_t threads)
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

static inline void named_barrier_arrive(uint32_t, uint32_t)
{
    abort(); /* only by producers */
}

static inline void emulated_copy(uint32_t to, const void *from, size_t bytes)
{
    uint8_t *at = (uint8_t *)emulated->dynamic + to;
    from ? memcpy(at, from, bytes) : memset(at, 0, bytes);
}

static inline void copy_async_commit()
{
}

static inline void copy_async_wait()
{
}

static inline void cluster_sync()
{
    pthread_barrier_wait(emulated->cluster_barrier);
}

static inline const uint8_t *cluster_pointer(const uint8_t *here, uint32_t rank)
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
