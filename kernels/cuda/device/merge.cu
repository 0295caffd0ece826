/* merge.cu - rows whose items left partial states: fold them, in order of position, and write the row.
 *
 * A thread is four elements of head_dim of one query head of one merge; grid: merges x thread blocks that a merge needs. Partials
 * are loaded MERGE_LOADS at a time, since waiting for one after the other is what a merge of many would do otherwise; they go by way
 * of shared memory, so that one piece of code folds them all (folding out of registers takes a copy of it for each, and fetching those
 * takes longer than the folding: 128 rows of 4 partials 2 us, W2 on an H200). All threads of a head keep m and l of the fold's levels,
 * each alike. The operations on an element are those of the items' kernels, so it does not matter where a fold is cut. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/states.cuh"

static constexpr uint32_t MERGE_LOADS = 16, MERGE_PARTS = 64 /* kept in shared memory */;

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
                       blocks = (heads * vectors + CUDA_THREADS - 1) / CUDA_THREADS,
                       block_heads = (CUDA_THREADS + vectors - 2) / vectors + 1; /* at most */
    __shared__ plan_part parts[MERGE_PARTS];
    __shared__ float4 loaded_o[MERGE_LOADS][CUDA_THREADS];
    __shared__ float2 loaded_ml[MERGE_LOADS][block_heads];
    const plan_merge m = pass.merges[blockIdx.x / blocks];
    uint32_t block_at = blockIdx.x % blocks * CUDA_THREADS, at = block_at + threadIdx.x, head = at / vectors,
             vector = at % vectors, first_head = block_at / vectors;
    vector_fold fold;
    for (uint32_t done = 0; done == 0 || done < m.count; done += MERGE_PARTS) {
        uint32_t n = min(m.count - done, MERGE_PARTS);
        __syncthreads(); /* those before are read */
        if (threadIdx.x < n)
            parts[threadIdx.x] = pass.parts[m.first + done + threadIdx.x];
        __syncthreads(); /* they are there */
        if (done == 0) {
            await_previous();
            let_next_begin();
        }
        for (uint32_t first = 0; first < n; first += MERGE_LOADS) {
            uint32_t count = min(n - first, MERGE_LOADS);
            float4 o[MERGE_LOADS];
#pragma unroll
            for (uint32_t i = 0; i < MERGE_LOADS; i++) {
                if (i < count && head < heads)
                    o[i] = ((const float4 *)pass.partial_o)[((size_t)parts[first + i].partial * heads + head) * vectors + vector];
            }
            for (uint32_t i = threadIdx.x; i < count * block_heads; i += CUDA_THREADS) {
                uint32_t of = min(first_head + i % block_heads, heads - 1);
                loaded_ml[i / block_heads][i % block_heads] =
                    ((const float2 *)pass.partial_ml)[(size_t)parts[first + i / block_heads].partial * heads + of];
            }
#pragma unroll
            for (uint32_t i = 0; i < MERGE_LOADS; i++) {
                if (i < count)
                    loaded_o[i][threadIdx.x] = o[i];
            }
            __syncthreads(); /* m and l are there */
#pragma unroll 1
            for (uint32_t i = 0; i < count; i++) {
                const float4 from = loaded_o[i][threadIdx.x];
                const float2 ml = loaded_ml[i][head - first_head];
                fold.push(parts[first + i], {ml.x, ml.y, {from.x, from.y, from.z, from.w}});
            }
            __syncthreads(); /* and read */
        }
    }
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
