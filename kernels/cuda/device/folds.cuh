/* folds.cuh - the fold of kernels/plan.h over the chunks of an item, for kernels whose threads have parts of the states of two
 * columns each.
 *
 * STATE: m[2], l[2]; VALUES elements of o, value(i) of column column_of(i). STORAGE: at(level, i) is m of the columns (i = 0, 1),
 * l (2, 3) and then the values, of level 0 (the chunks of the run), 1 (the runs of the segment), 2 (the segments of the row). */
#pragma once

#include "kernels/cuda/device/states.cuh"

/* The lower levels in registers, the others a slot a thread in shared memory. */
template <int LEVELS, int VALUES, int THREADS> struct fold_storage {
    float values[LEVELS ? LEVELS : 1][VALUES + 4];
    float *shared; /* [level][float][thread] */

    fold_storage(uint8_t *memory) : shared((float *)memory + threadIdx.x) {}
    float &at(int level, int i)
    {
        return level < LEVELS ? values[level < LEVELS ? level : 0][i] : shared[((level - LEVELS) * (VALUES + 4) + i) * THREADS];
    }
};

template <class STATE, class STORAGE, int LEVELS> struct chunk_fold : STORAGE {
    using STORAGE::at;

    chunk_fold(uint8_t *memory) : STORAGE(memory)
    {
#pragma unroll
        for (int level = 0; level < LEVELS; level++)
            clear(level);
    }

    void clear(int level)
    {
#pragma unroll
        for (int i = 0; i < STATE::VALUES + 4; i++)
            at(level, i) = i < 2 ? -INFINITE : 0.0f;
    }

    void add(int level, STATE &from)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const merge_weights w(at(level, c), from.m[c]);
            at(level, c) = w.m;
            at(level, 2 + c) = w(at(level, 2 + c), from.l[c]);
#pragma unroll
            for (int i = 0; i < STATE::VALUES; i++) {
                if (STATE::column_of(i) == c)
                    at(level, 4 + i) = w(at(level, 4 + i), from.value(i));
            }
        }
    }

    void take(int level, STATE &to)
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            to.m[c] = at(level, c);
            to.l[c] = at(level, 2 + c);
        }
#pragma unroll
        for (int i = 0; i < STATE::VALUES; i++)
            to.value(i) = at(level, 4 + i);
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
        if (end % RUN_CHUNKS == 0)
            close(0, x);
        if (LEVELS > 2 && end % SEGMENT_CHUNKS == 0)
            close(1, x);
    }

    /* All of them, when the last chunk is in it. */
    void finish(STATE &x)
    {
#pragma unroll
        for (int level = 0; level + 1 < LEVELS; level++)
            close(level, x);
        take(LEVELS - 1, x);
    }
};
