/* SPDX-License-Identifier: Apache-2.0 */
/* cluster_combine.cuh - combine the states of a split group: in one thread block, or in a cluster, whose
 * thread blocks run at the same time and read each other's shared memory (sm_90 and later). */
#pragma once

#include "kernels/cuda/device/epilogue.cuh"

struct combined_epilogue : tile_epilogue {
    using tile_epilogue::tile_epilogue;

    /* How the splits' states of a column are folded: o = o * into + o_i * from, split by split, then
     * times factor. */
    struct column_weights {
        float into[PLAN_SPLITS_MAX - 1], from[PLAN_SPLITS_MAX - 1], factor;
    };

    /* Where the splits' states are. */
    struct split_states {
        const uint8_t *of[PLAN_SPLITS_MAX]; /* of those that are not there: the first */
        uint32_t count;

        /* four floats of a column of split i's, the `at`-th one and on */
        float4 operator()(uint32_t i, uint32_t column, uint32_t at) const
        {
            return ((const float4 *)of[i])[(column * STATE_FLOATS + at) / 4];
        }
    };

    /* Writes lse too, if `one`. */
    column_weights combine_weights(const split_states &states, uint32_t column, bool one) const
    {
        column_weights w;
        float4 ml[PLAN_SPLITS_MAX];
        for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
            ml[i] = states(i, column, HEAD_DIM);
        float m = ml[0].x, l = ml[0].y;
        for (uint32_t i = 1; i < PLAN_SPLITS_MAX; i++) {
            const merge_weights merge(m, ml[i].x);
            w.into[i - 1] = merge.into;
            w.from[i - 1] = merge.from;
            if (i < states.count) {
                m = merge.m;
                l = merge(l, ml[i].y);
            }
        }
        w.factor = finish(column, m, l, one).factor;
        return w;
    }

    /* Fold this warp's share of the vectors of the columns from `first` on: [0, count) in all, `rounds` a
     * lane. Each lane computes the weights of one column while its first vectors load. */
    void fold_splits(const split_states &states, uint32_t first, uint32_t count, uint32_t rounds) const
    {
        constexpr uint32_t VECTORS = HEAD_DIM / 4;
        const uint32_t begin = threadIdx.x / 32 * 32 * rounds, found_first = begin / VECTORS,
                       mine = found_first + lane();
        float4 o[PLAN_SPLITS_MAX], next[PLAN_SPLITS_MAX];
        const auto load = [&](float4(&to)[PLAN_SPLITS_MAX], uint32_t round) {
            const uint32_t at = min(begin + round * 32 + lane(), count - 1);
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                to[i] = states(i, first + at / VECTORS, at % VECTORS * 4);
        };
        if (begin >= count)
            return;
        load(o, 0);
        const column_weights found =
            combine_weights(states, first + min(mine, count / VECTORS - 1),
                            mine < count / VECTORS && mine * VECTORS < begin + 32 * rounds);
        for (uint32_t round = 0; round < rounds; round++) {
            const uint32_t at = begin + round * 32 + lane(), column = min(at, count - 1) / VECTORS,
                           dim = at % VECTORS * 4;
            if (round + 1 < rounds)
                load(next, round + 1);
            for (uint32_t i = 1; i < PLAN_SPLITS_MAX; i++) {
                const float into = __shfl_sync(ALL_LANES, found.into[i - 1], column - found_first),
                            from = __shfl_sync(ALL_LANES, found.from[i - 1], column - found_first);
                if (i < states.count)
                    o[0] = merge_weights::weighted_sum(o[0], into, o[i], from);
            }
            const output_writer write{pass.o, query_of(first + column) * HEAD_DIM,
                                      __shfl_sync(ALL_LANES, found.factor, column - found_first)};
            if (at < count) {
                write(dim, o[0].x, o[0].y);
                write(dim + 2, o[0].z, o[0].w);
            }
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                o[i] = next[i];
        }
    }

    /* By `threads` threads of each split, after its states are written: fold the states of some columns, in
     * order of the splits, and write outputs. One left fold is what the tree asks for, since a split group
     * lies in one node of the tree, cut at the nodes below it (plan_fault() sees to that). `mine` are this
     * split's, `apart` is how far those of a thread block lie from each other. The work tile is of one
     * query. */
    void combine_splits(const uint8_t *mine, uint32_t apart, uint32_t threads) const
    {
        const uint32_t split = tile_coord::split(pass), each = (work_tile.columns - 1 >> pass.split_bits) + 1,
                       first = min(split * each, work_tile.columns),
                       count = min(each, work_tile.columns - first) * (HEAD_DIM / 4),
                       rounds = (count + threads - 1) / threads;
        const uint8_t *all = mine - tile_coord::cta_split() * apart; /* of the thread block */
        const bool is_cluster = pass.split_bits > pass.cta_bits;
        split_states states;
        states.count = 1u << pass.split_bits;
        for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
            states.of[i] = all + (i < states.count ? i & (1u << pass.cta_bits) - 1 : 0) * apart;
        if (is_cluster) {
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                states.of[i] = cluster_pointer(states.of[i], i < states.count ? i >> pass.cta_bits : 0);
            cluster_sync(); /* all have written theirs */
            fold_splits(states, first, count, rounds);
            cluster_sync_before_exit(); /* no thread block ends before the others have read */
        } else {
            named_barrier_sync(BARRIER_OF_SPLIT_GROUP, threads << pass.split_bits);
            fold_splits(states, first, count, rounds);
        }
    }
};
