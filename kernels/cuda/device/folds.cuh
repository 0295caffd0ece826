/* folds.cuh - the fold of kernels/plan.h over the chunks of an item, for kernels whose threads have parts of the states of two
 * columns each.
 *
 * STATE: m[2], l[2]; VALUES elements of o, value(i) of column column_of(i). STORAGE keeps levels 0 (the chunks of the run), 1 (the
 * runs of the segment) and 2 (the segments of the row) as vectors: get(level, 0) is m and l of the columns, get(level, 1 + i) is
 * the values 4 i and on; put() likewise. */
#pragma once

#include "kernels/cuda/device/states.cuh"

/* The lower levels in registers, the others in shared memory. */
template <int LEVELS, int VALUES, int THREADS> struct fold_storage {
    static constexpr int VECTORS = 1 + VALUES / 4;
    float4 values[LEVELS ? LEVELS : 1][VECTORS];
    float4 *shared; /* [level][vector][thread] */

    fold_storage(uint8_t *memory) : shared((float4 *)memory + threadIdx.x) {}
    float4 get(int level, int i) const
    {
        return level < LEVELS ? values[level < LEVELS ? level : 0][i] : shared[((level - LEVELS) * VECTORS + i) * THREADS];
    }
    void put(int level, int i, const float4 &x)
    {
        if (level < LEVELS)
            values[level < LEVELS ? level : 0][i] = x;
        else
            shared[((level - LEVELS) * VECTORS + i) * THREADS] = x;
    }
};

template <class STATE, class STORAGE, int LEVELS> struct chunk_fold : STORAGE {
    using STORAGE::get;
    using STORAGE::put;

    chunk_fold(uint8_t *memory) : STORAGE(memory)
    {
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            clear(level);
    }

    void clear(int level)
    {
        put(level, 0, {-INFINITE, -INFINITE, 0, 0});
#pragma unroll
        for (int i = 0; i < STATE::VALUES / 4; i++)
            put(level, 1 + i, {0, 0, 0, 0});
    }

    void add(int level, STATE &from)
    {
        const float4 ml = get(level, 0);
        const merge_weights w[2] = {{ml.x, from.m[0]}, {ml.y, from.m[1]}};
        put(level, 0, {w[0].m, w[1].m, w[0](ml.z, from.l[0]), w[1](ml.w, from.l[1])});
#pragma unroll
        for (int i = 0; i < STATE::VALUES; i += 4) {
            const float4 o = get(level, 1 + i / 4);
            put(level, 1 + i / 4,
                {w[STATE::column_of(i)](o.x, from.value(i)), w[STATE::column_of(i + 1)](o.y, from.value(i + 1)),
                 w[STATE::column_of(i + 2)](o.z, from.value(i + 2)), w[STATE::column_of(i + 3)](o.w, from.value(i + 3))});
        }
    }

    void take(int level, STATE &to) const
    {
        const float4 ml = get(level, 0);
        to.m[0] = ml.x;
        to.m[1] = ml.y;
        to.l[0] = ml.z;
        to.l[1] = ml.w;
#pragma unroll
        for (int i = 0; i < STATE::VALUES; i += 4) {
            const float4 o = get(level, 1 + i / 4);
            to.value(i) = o.x;
            to.value(i + 1) = o.y;
            to.value(i + 2) = o.z;
            to.value(i + 3) = o.w;
        }
    }

    /* The node of `level` is complete and goes into the one above; `x` is free to be used. */
    void close(int level, STATE &x)
    {
        take(level, x);
        add(level + 1, x);
        clear(level);
    }

    /* `x` is the state of the chunk before chunk `end`, and free to be used then. */
    void add_chunk(STATE &x, uint32_t end)
    {
        add(0, x);
        if (LEVELS > 1 && end % RUN_CHUNKS == 0)
            close(0, x);
        if (LEVELS > 2 && end % SEGMENT_CHUNKS == 0)
            close(1, x);
    }

    /* All of them, when the last chunk, before chunk `end`, is in it. */
    void finish(STATE &x, uint32_t end)
    {
        if (LEVELS > 1 && end % RUN_CHUNKS != 0)
            close(0, x);
        if (LEVELS > 2 && end % SEGMENT_CHUNKS != 0)
            close(1, x);
        take(LEVELS - 1, x);
    }
};
