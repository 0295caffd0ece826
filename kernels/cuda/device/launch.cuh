/* SPDX-License-Identifier: Apache-2.0 */
/* launch.cuh - kernels that overlap (programmatic dependent launch, sm_90 and later). A kernel says when
 * the next one may begin, and that one awaits it before it uses what it made; what it does before is
 * hidden. Two rules:
 *
 * - A kernel is complete only after the one before it. One that begins early therefore awaits its own: at
 *   its start, or, if it is independent of the previous launch of its pass (concurrent), at its end.
 * - What does not await never begins early (cuda_grid.overlaps). So the first kernel of a pass has
 *   everything ahead of it complete when it lets the next ones begin, and concurrent ones find q as it does.
 *
 * K and V, block tables and work tiles need not be awaited: what is directly ahead of a pass's first kernel,
 * if that begins early, writes none of them. It is generate_q, which began when the appends were complete;
 * load_q, which awaits them before it lets the next one begin; or, when passes are timed, attention of
 * another pass. So tiles are sent for while the kernel ahead still runs: 64 sequences of 1 024 tokens took
 * 65.0 us before, 62.4 after (H200).
 */
#pragma once

#include "kernels/cuda/device/ptx.cuh"

#ifndef DYNAMIC_SHARED /* tests/emulation has its own */
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#endif

static constexpr uint32_t ALL_LANES = 0xffffffffu; /* of a warp, for shuffles and votes */

static inline uint32_t lane()
{
    return threadIdx.x % 32;
}

/* The named barriers of a thread block (FlashAttention-3's FwdNamedBarriers); 0 is __syncthreads(). */
enum named_barrier {
    BARRIER_OF_SPLIT = 1, /* and on, one a split: its producer and consumers */
    BARRIER_OF_SPLIT_GROUP = BARRIER_OF_SPLIT + PLAN_SPLITS_MAX /* the consumers of all splits */
};

/* Wait for the grid before this one, ahead of reading q and writing outputs; then let the next one begin. */
static inline void begin_pass(const cuda_attend_pass &pass)
{
    if (!pass.concurrent)
        await_previous();
    let_next_begin();
}
