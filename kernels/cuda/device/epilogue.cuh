/* SPDX-License-Identifier: Apache-2.0 */
/* epilogue.cuh - what becomes of the state of a work tile's column: its output, a partial state for merge.cu,
 * or, where several splits have a query's chunks among them, a state in shared memory
 * (cluster_combine.cuh). */
#pragma once

#include "kernels/cuda/device/work_tile.cuh"

/* Write o of a column: an element, or two from an even dim on. */
struct output_writer {
    uint8_t *o;
    size_t first;
    float factor;

    void operator()(uint32_t dim, float x) const
    {
        store_result<Q_DTYPE>(o, first + dim, output_scale::scaled(x, factor));
    }
    void operator()(uint32_t dim, float x, float next) const
    {
        store_results<Q_DTYPE>(o, first + dim, output_scale::scaled(x, factor),
                               output_scale::scaled(next, factor));
    }
};

struct partial_writer {
    float *o;

    void operator()(uint32_t dim, float x) const
    {
        store_result<DTYPE_F32>(o, dim, x);
    }
    void operator()(uint32_t dim, float x, float next) const
    {
        store_results<DTYPE_F32>(o, dim, x, next);
    }
};

struct tile_epilogue : work_tile_columns {
    using work_tile_columns::work_tile_columns;

    /* What becomes of a column's state, which is the query's if the work tile is_final(); otherwise `states`
     * is where it goes if it is shared. each(write) calls write for this thread's elements of o; `one`: of
     * the threads that have the column, this one writes m and l, or lse. */
    template <typename F>
    void write(uint32_t column, float m, float l, bool one, uint8_t *states, F each) const
    {
        if (!is_final())
            write_state(column, m, l, one, states, each);
        else if (column < work_tile.columns)
            each(output_writer{pass.o, query_of(column) * HEAD_DIM, finish(column, m, l, one).factor});
    }

    /* Writes lse too. */
    output_scale finish(uint32_t column, float m, float l, bool one) const
    {
        const output_scale f(m, l, pass.sinks ? &pass.sinks[head_of(column)] : nullptr, memory.v_scale);
        if (one)
            pass.lse[query_of(column)] = f.lse;
        return f;
    }

    template <typename F>
    void write_state(uint32_t column, float m, float l, bool one, uint8_t *states, F each) const
    {
        if (column >= work_tile.columns)
            return;
        if (is_in_split_group()) {
            float *state = (float *)states + column * STATE_FLOATS;
            if (one) {
                state[HEAD_DIM] = m;
                state[HEAD_DIM + 1] = l;
            }
            each(partial_writer{state});
        } else {
            size_t at =
                (size_t)(work_tile.partial + (work_tile.column + column) / GROUP) * (KV_HEADS * GROUP) +
                head_of(column);
            if (one) {
                pass.partial_ml[2 * at] = m;
                pass.partial_ml[2 * at + 1] = l;
            }
            each(partial_writer{pass.partial_o + at * HEAD_DIM});
        }
    }
};
