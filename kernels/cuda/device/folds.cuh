/* SPDX-License-Identifier: Apache-2.0 */
/* folds.cuh - the fold of kernels/plan.h over the chunks of a work tile, for kernels whose threads have parts
 * of the states of two columns each: tiles of 64 tokens into chunks of 256, these into runs of 1 024, segments of
 * 4 096 and spans of 65 536, always in that order, so that bits do not depend on who computes what.
 *
 * STATE: m[2], l[2]; VALUES elements of o, value(i) of column column_of(i). STORAGE keeps level 0 (a run
 * so far, of chunks), 1 (a segment, of runs) and 2 (a span, of segments) as vectors: at(level,
 * 0) is m and l of the columns, at(level, 1 + i) is the values 4 i and on. O_IN_MEMORY: o
 * lies in memory, not in registers: an empty level is filled by a store. */
#pragma once

#include "kernels/cuda/device/states.cuh"

/* A thread's part of the states of two columns: m and l, and accumulators of COUNT tiles of o, in which the
 * columns take turns every NEIGHBOURS values. */
template <class ACCUMULATORS, int COUNT, int NEIGHBOURS> struct columns_state {
    static constexpr int EACH = sizeof(ACCUMULATORS) / sizeof(float), VALUES = COUNT * EACH;

    ACCUMULATORS o[COUNT];
    float m[2], l[2];

    float &value(int i)
    {
        return o[i / EACH].r[i % EACH];
    }
    static constexpr int column_of(int i)
    {
        return i / NEIGHBOURS % 2;
    }

    /* of p: until a chunk ends, l is of the thread's tokens */
    float &sum(int i, int)
    {
        return l[i];
    }

    void init()
    {
        for (int i = 0; i < 2; i++) {
            m[i] = -INFINITE;
            l[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            value(i) = 0;
    }
    void rescale_o(const float (&by)[2])
    {
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            value(i) *= by[column_of(i)];
    }
};

/* The lower levels in registers, the others in shared memory. */
template <int LEVELS, int VALUES, int THREADS> struct fold_storage {
    static constexpr bool O_IN_MEMORY = false;
    static constexpr int VECTORS = 1 + VALUES / 4;
    float4 values[LEVELS ? LEVELS : 1][VECTORS];
    float4 *shared; /* [level][vector][thread] */

    fold_storage(uint8_t *memory) : shared((float4 *)memory + threadIdx.x)
    {
    }
    float4 &at(int level, int i)
    {
        return level < LEVELS ? values[level < LEVELS ? level : 0][i]
                              : shared[((level - LEVELS) * VECTORS + i) * THREADS];
    }
};

template <class STATE, class STORAGE, int LEVELS> struct chunk_fold : STORAGE {
    using STORAGE::at;

    bool is_filled[LEVELS];

    template <typename... MEMORY> chunk_fold(const MEMORY &...memory) : STORAGE(memory...)
    {
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            is_filled[level] = false;
    }

    /* Put `x` behind what the level has. */
    void add(int level, STATE &x)
    {
        if (!is_filled[level]) {
            is_filled[level] = true;
            if (STORAGE::O_IN_MEMORY) {
                at(level, 0) = {x.m[0], x.m[1], x.l[0], x.l[1]};
#pragma unroll
                for (int i = 0; i < STATE::VALUES; i += 4)
                    at(level, 1 + i / 4) = {x.value(i), x.value(i + 1), x.value(i + 2), x.value(i + 3)};
                return;
            }
            clear(level); /* for `x` itself ptxas takes local memory (sm_100) */
        }
        const float4 ml = at(level, 0);
        const merge_weights w[2] = {{ml.x, x.m[0]}, {ml.y, x.m[1]}};
        at(level, 0) = {w[0].m, w[1].m, w[0](ml.z, x.l[0]), w[1](ml.w, x.l[1])};
#pragma unroll
        for (int i = 0; i < STATE::VALUES; i += 4) {
            const float4 o = at(level, 1 + i / 4);
            at(level, 1 + i / 4) = {w[STATE::column_of(i)](o.x, x.value(i)),
                                    w[STATE::column_of(i + 1)](o.y, x.value(i + 1)),
                                    w[STATE::column_of(i + 2)](o.z, x.value(i + 2)),
                                    w[STATE::column_of(i + 3)](o.w, x.value(i + 3))};
        }
    }

    void clear(int level)
    {
        at(level, 0) = {-INFINITE, -INFINITE, 0, 0};
#pragma unroll
        for (int i = 0; i < STATE::VALUES / 4; i++)
            at(level, 1 + i) = {0, 0, 0, 0};
    }

    /* The node of the level is complete with `x`, which becomes its state. */
    void close(int level, STATE &x)
    {
        if (!is_filled[level])
            return;
        const float4 ml = at(level, 0);
        const merge_weights w[2] = {{ml.x, x.m[0]}, {ml.y, x.m[1]}};
        x.l[0] = w[0](ml.z, x.l[0]);
        x.l[1] = w[1](ml.w, x.l[1]);
        x.m[0] = w[0].m;
        x.m[1] = w[1].m;
#pragma unroll
        for (int i = 0; i < STATE::VALUES; i += 4) {
            const float4 o = at(level, 1 + i / 4);
            x.value(i) = w[STATE::column_of(i)](o.x, x.value(i));
            x.value(i + 1) = w[STATE::column_of(i + 1)](o.y, x.value(i + 1));
            x.value(i + 2) = w[STATE::column_of(i + 2)](o.z, x.value(i + 2));
            x.value(i + 3) = w[STATE::column_of(i + 3)](o.w, x.value(i + 3));
        }
        is_filled[level] = false;
    }

    /* `x` is the state of the chunk before chunk `end`, not the last one, and free to be used then. */
    void add_chunk(STATE &x, uint32_t end)
    {
        if (LEVELS == 1 || end % RUN_CHUNKS != 0) {
            add(0, x);
        } else if constexpr (LEVELS > 1) {
            close(0, x);
            if (LEVELS == 2 || end % SEGMENT_CHUNKS != 0) {
                add(1, x);
            } else if constexpr (LEVELS > 2) {
                close(1, x);
                add(2, x);
            }
        }
    }

    /* `x`, the state of the last chunk, becomes that of all of them. */
    void finish(STATE &x)
    {
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            close(level, x);
    }
};
