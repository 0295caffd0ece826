/* columns.cuh - the packed columns of an item: which row and head each of them is, what it sees, and what it writes. */
#pragma once

#include "kernels/cuda/device/states.cuh"

/* Write o of a column: an element, or two from an even dim on. */
struct output_writer {
    uint8_t *o;
    size_t first;
    const finished &f;

    void operator()(uint32_t dim, float x) const { store_element<Q_DTYPE>(o, first + dim, f(x)); }
    void operator()(uint32_t dim, float x, float next) const { store_pair<Q_DTYPE>(o, first + dim, f(x), f(next)); }
};

struct partial_writer {
    float *o;

    void operator()(uint32_t dim, float x) const { store_element<DTYPE_F32>(o, dim, x); }
    void operator()(uint32_t dim, float x, float next) const { store_pair<DTYPE_F32>(o, dim, x, next); }
};

struct item_columns {
    const cuda_attend_pass &pass;
    const cuda_item &item;
    uint32_t kv_head;

    item_columns(const cuda_attend_pass &pass_, const cuda_item &item_, uint32_t kv_head_)
        : pass(pass_), item(item_), kv_head(kv_head_)
    {
    }

    const cuda_item_row &row_at(uint32_t column) const
    {
        return pass.item_rows[item.first_row + (item.column + column) / GROUP];
    }
    uint32_t head_of(uint32_t column) const { return kv_head * GROUP + (item.column + column) % GROUP; }
    /* its place in [rows][query_heads], of q, o and lse */
    size_t query_of(uint32_t column) const
    {
        return (size_t)row_at(column).row * (KV_HEADS * GROUP) + head_of(column);
    }
    /* its q in 16 bits, NULL if it is not there */
    const uint8_t *query(uint32_t column) const
    {
        return column < item.columns ? pass.q + query_of(column) * (HEAD_DIM * 2) : nullptr;
    }

    /* What becomes of a column's state. each(write) calls write for this thread's elements of o; `one`: of the threads that have
     * the column, this one writes m and l, or lse. */
    template <typename F> void write(uint32_t column, float m, float l, bool one, F each) const
    {
        if (column >= item.columns)
            return;
        if (item.partial == PLAN_NO_PARTIAL) {
            size_t at = query_of(column);
            const finished f(m, l, pass.sinks ? &pass.sinks[head_of(column)] : nullptr, pass.v_scale[kv_head]);
            if (one)
                pass.lse[at] = f.lse;
            each(output_writer{pass.o, at * HEAD_DIM, f});
        } else {
            size_t at = (size_t)(item.partial + (item.column + column) / GROUP) * (KV_HEADS * GROUP) + head_of(column);
            if (one) {
                pass.partial_ml[2 * at] = m;
                pass.partial_ml[2 * at + 1] = l;
            }
            each(partial_writer{pass.partial_o + at * HEAD_DIM});
        }
    }
};
