/* SPDX-License-Identifier: Apache-2.0 */
/* producer.cuh - the warps that bring K and V: by TMA where that goes (cuda_uses_tma), otherwise by cp.async. */
#pragma once

#if TMA
#include "kernels/cuda/device/tma_producer.cuh"
#else
#include "kernels/cuda/device/async_producer.cuh"
#endif

/* By the producer's warps: all that there is to be done. `memory` is the work tile's, in `shared`. The first
 * of them brings the work tile and the barriers; the others go on when these are there. */
template <class TILE>
void produce(const cuda_attend_pass &pass, const tile_coord &coord, work_tile_memory &memory, uint8_t *shared)
{
    using producer = kv_producer<TILE>;
    const bool is_first = producer::PRODUCERS == 1 || producer::producer() == 0;
    if constexpr (TMA)
        producer::prefetch_constants(pass);
    if (is_first) {
        coord.bring(pass, memory);
        __syncwarp();
        if constexpr (TILE::HAS_WORKSPACE) {
            if (elect_one())
                memory.slot = TILE::takes_workspace(memory.work_tile) ? take_slot(pass) : NO_SLOT;
        }
    } else {
        producer::wait_work_tile();
    }
    producer p(pass, memory.work_tile, coord.kv_head, shared);
    if (is_first) {
        if (elect_one()) { /* one lane: 0.06 us an address that is no constant (H200) */
#pragma unroll
            for (uint32_t stage = 0; stage < producer::STAGES; stage++) {
                mbarrier_init(p.full + stage * 8, producer::ARRIVALS);
                mbarrier_init(p.empty + stage * 8, p.consumers);
            }
            mbarrier_fence();
        }
        __syncwarp();
        named_barrier_arrive(BARRIER_OF_SPLIT + threadIdx.y, producer::THREADS);
    }
    p.begin();
    for (uint32_t fill = 0; fill < p.fills; fill++) {
        p.wait_empty(fill);
        p.load(fill);
    }
    if constexpr (TMA)
        producer::prefetch_next(pass);
}
