/* merge.cu - rows whose items left partial states: fold them, in order of position, and write the row.
 *
 * A thread is four elements of head_dim of one query head of one merge; grid: merges x thread blocks that a merge needs.
 * Partials are loaded MERGE_LOADS at a time, since waiting for one after the other is what a merge of many would do otherwise. All threads of a
 * head keep m and l of the fold's levels, each alike. The operations on an element are those of the items' kernels, so it does
 * not matter where a fold is cut. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/states.cuh"

static constexpr uint32_t MERGE_LOADS = 8, MERGE_PARTS = 64 /* kept in shared memory */;

struct vector_state {
    float m, l, o[4];
};

struct vector_fold {
    vector_state level[FOLD_LEVELS];

    vector_fold()
    {
#pragma unroll
        for (int i = 0; i < FOLD_LEVELS; i++)
            level[i] = {-INFINITE, 0, {0, 0, 0, 0}};
    }
    void add(int to, const vector_state &from)
    {
#pragma unroll
        for (int i = 0; i < FOLD_LEVELS; i++) { /* so that levels stay in registers */
            if (i != to)
                continue;
            const merge_weights w(level[i].m, from.m);
            level[i].m = w.m;
            level[i].l = w(level[i].l, from.l);
#pragma unroll
            for (int d = 0; d < 4; d++)
                level[i].o[d] = w(level[i].o[d], from.o[d]);
        }
    }
    void close(int i)
    {
        add(i + 1, level[i]);
        level[i] = {-INFINITE, 0, {0, 0, 0, 0}};
    }
    void push(const plan_part &part, const vector_state &from)
    {
        add((int)part.level, from);
        if (part.end_chunk % RUN_CHUNKS == 0)
            close(0);
        if (part.end_chunk % SEGMENT_CHUNKS == 0)
            close(1);
    }
};

extern "C" __global__ void __launch_bounds__(CUDA_THREADS) merge(const __grid_constant__ cuda_attend_pass pass)
{
    constexpr uint32_t heads = KV_HEADS * GROUP, vectors = HEAD_DIM / 4,
                       blocks = (heads * vectors + CUDA_THREADS - 1) / CUDA_THREADS;
    __shared__ plan_part parts[MERGE_PARTS];
    const plan_merge m = pass.merges[blockIdx.x / blocks];
    uint32_t at = blockIdx.x % blocks * CUDA_THREADS + threadIdx.x, head = at / vectors, vector = at % vectors;
    vector_fold fold;
    for (uint32_t done = 0; done < m.count; done += MERGE_PARTS) {
        uint32_t n = min(m.count - done, MERGE_PARTS);
        __syncthreads(); /* those before are read */
        if (threadIdx.x < n)
            parts[threadIdx.x] = pass.parts[m.first + done + threadIdx.x];
        __syncthreads(); /* they are there */
        if (done == 0) {
            await_previous();
            let_next_begin();
        }
        for (uint32_t first = 0; first < n && head < heads; first += MERGE_LOADS) {
            float4 o[MERGE_LOADS];
            float2 ml[MERGE_LOADS];
#pragma unroll
            for (uint32_t i = 0; i < MERGE_LOADS; i++) {
                size_t from = (size_t)parts[min(first + i, n - 1)].partial * heads + head;
                o[i] = ((const float4 *)pass.partial_o)[from * vectors + vector];
                ml[i] = ((const float2 *)pass.partial_ml)[from];
            }
#pragma unroll
            for (uint32_t i = 0; i < MERGE_LOADS; i++) {
                if (first + i < n)
                    fold.push(parts[first + i], {ml[i].x, ml[i].y, {o[i].x, o[i].y, o[i].z, o[i].w}});
            }
        }
    }
    if (m.count == 0)
        await_previous();
    let_next_begin();
    if (head >= heads)
        return;
    fold.close(0);
    fold.close(1);
    const vector_state &all = fold.level[2];
    const finished f(all.m, all.l, pass.sinks ? &pass.sinks[head] : nullptr, pass.v_scale[head / GROUP]);
    size_t row = (size_t)m.row * heads + head;
#pragma unroll
    for (uint32_t d = 0; d < 4; d++)
        store_element<Q_DTYPE>(pass.o, row * HEAD_DIM + vector * 4 + d, f(all.o[d]));
    if (vector == 0)
        pass.lse[row] = f.lse;
}
