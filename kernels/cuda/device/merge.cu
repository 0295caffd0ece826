/* merge.cu - rows whose items left partial states: fold them, in order of position, and write the row.
 *
 * grid: merges x query heads; a thread is one element of head_dim. All threads keep m and l of the
 * fold's levels, each alike. The operations on an element are those of the items' kernels, so it does
 * not matter where a fold is cut. */
#include "kernels/cuda/device/states.cuh"

struct scalar_state {
    float m, l, o;
};

struct scalar_fold {
    scalar_state level[FOLD_LEVELS];

    scalar_fold()
    {
#pragma unroll
        for (int i = 0; i < FOLD_LEVELS; i++)
            level[i] = {-INFINITE, 0, 0};
    }
    void add(int to, const scalar_state &from)
    {
#pragma unroll
        for (int i = 0; i < FOLD_LEVELS; i++) { /* so that levels stay in registers */
            if (i != to)
                continue;
            const merge_weights w(level[i].m, from.m);
            level[i] = {w.m, w(level[i].l, from.l), w(level[i].o, from.o)};
        }
    }
    void close(int i)
    {
        add(i + 1, level[i]);
        level[i] = {-INFINITE, 0, 0};
    }
    void push(int to, uint32_t end_chunk, const scalar_state &from)
    {
        add(to, from);
        if (end_chunk % RUN_CHUNKS == 0)
            close(0);
        if (end_chunk % SEGMENT_CHUNKS == 0)
            close(1);
    }
};

extern "C" __global__ void __launch_bounds__(HEAD_DIM_MAX) merge(const __grid_constant__ cuda_attend_pass pass)
{
    constexpr uint32_t heads = KV_HEADS * GROUP;
    const plan_merge m = pass.merges[blockIdx.x / heads];
    uint32_t head = blockIdx.x % heads, dim = threadIdx.x;
    scalar_fold fold;
    if (dim >= HEAD_DIM)
        return;
    for (uint32_t i = 0; i < m.count; i++) {
        const plan_part part = pass.parts[m.first + i];
        size_t at = (size_t)part.partial * heads + head;
        const scalar_state from = {pass.partial_ml[2 * at], pass.partial_ml[2 * at + 1],
                                   pass.partial_o[at * HEAD_DIM + dim]};
        fold.push((int)part.level, part.end_chunk, from);
    }
    fold.close(0);
    fold.close(1);
    const scalar_state &x = fold.level[2];
    const finished f(x.m, x.l, pass.sinks ? &pass.sinks[head] : nullptr, pass.v_scale[head / GROUP]);
    size_t at = (size_t)m.row * heads + head;
    store_element<Q_DTYPE>(pass.o, at * HEAD_DIM + dim, f(x.o));
    if (dim == 0)
        pass.lse[at] = f.lse;
}
