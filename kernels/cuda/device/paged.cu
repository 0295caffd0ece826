/* SPDX-License-Identifier: Apache-2.0 */
/* paged.cu - paged_v1 and paged_v2: vLLM's paged attention as its documents describe it, on its layout
 *
 *   K [blocks, kv_heads, head_dim / x, block_size, x]    x elements are 16 bytes
 *   V [blocks, kv_heads, head_dim, block_size]
 *
 * One thread block of 4 warps takes one query head of one query: all of its keys (v1, grid (heads, queries)),
 * or a partition of 512 (v2, grid (heads, queries, partitions), and paged_reduce).
 *
 *   q        to shared memory, split over a thread group of max(32 / block_size, 1) threads
 *   scores   a warp takes a block of keys at a time, a thread group a key: vectors that are 16 bytes a
 *            group, f32 sums, a butterfly over the group; logits stay in shared memory
 *   softmax  maximum and sum over a warp, then over the warps through shared memory
 *   o        a warp takes a block of values at a time, a thread 16 bytes of one dim's row; a butterfly
 *            over a row, then the upper half of the warps adds to the lower half, and again
 *
 * With ALiBi, fp8 K and V (scales per head folded into the score and the output), block-sparse masks.
 * K and V are read once a query head, so a group of 4 reads four times what the native kernels read:
 * these are the compatibility path and the baseline of the benchmark, not the fast one. Unlike vLLM's,
 * sums are not divided by (sum + 1e-6), partial outputs stay f32, and lse is given. Not in the bit
 * contract: which of the two runs depends on the batch. */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/step.h"

static constexpr int WARPS = CUDA_THREADS / 32;
static constexpr int GROUP_THREADS = BLOCK_SIZE < 32 ? 32 / BLOCK_SIZE : 1;
static constexpr int PACK = 16 / bytes_of(KV_DTYPE);                    /* x */
static constexpr int VECTOR = 16 / (GROUP_THREADS * bytes_of(Q_DTYPE)); /* elements of q or k */
static constexpr int VECTORS = HEAD_DIM / GROUP_THREADS / VECTOR;       /* of a thread */
static constexpr int UNROLLED = VECTORS > 8 ? 4 : VECTORS;
static constexpr int V_VECTOR = 16 / bytes_of(Q_DTYPE) < BLOCK_SIZE ? 16 / bytes_of(Q_DTYPE) : BLOCK_SIZE;
static constexpr int V_VECTORS_PER_ROW = BLOCK_SIZE / V_VECTOR;
static constexpr int ROWS_PER_ROUND = 32 / V_VECTORS_PER_ROW;
static constexpr int ROWS_PER_THREAD = (HEAD_DIM + ROWS_PER_ROUND - 1) / ROWS_PER_ROUND;
static constexpr int RESIDENT =
    HEAD_DIM * bytes_of(Q_DTYPE) > 256 ? 2 : 4; /* thread blocks an SM, for registers */

/* N elements of the stored format as f32, loaded as whole words where they are any. */
template <int N> void load_vector(const uint8_t *from, float to[N])
{
    constexpr int bytes = N * bytes_of(KV_DTYPE);
    using words = typename word < bytes<16 ? bytes : 16>::type;
    __align__(16) uint8_t raw[bytes];
    for (int i = 0; i < bytes; i += sizeof(words))
        *(words *)(raw + i) = *(const words *)(from + i);
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = load_element<KV_DTYPE>(raw, i);
}

/* The sum, or the maximum, over a thread block; `scratch` [WARPS]. All threads get it. */
template <bool MAXIMUM> float reduce_block(float x, float *scratch)
{
    const auto join = [](float a, float b) { return MAXIMUM ? fmaxf(a, b) : a + b; };
    for (int apart = 16; apart > 0; apart /= 2)
        x = join(x, __shfl_xor_sync(ALL_LANES, x, apart));
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads(); /* every warp's is there */
    x = scratch[threadIdx.x % WARPS];
    for (int apart = WARPS / 2; apart > 0; apart /= 2)
        x = join(x, __shfl_xor_sync(ALL_LANES, x, apart));
    return x;
}

/* What a logit, or a partition with this maximum, is worth beside the largest (kernels/plan.h). */
static inline float weight_of(float x, float largest)
{
    return x == -INFINITE ? 0.0f : x == largest ? 1.0f : x < largest ? __expf(x - largest) : 0.0f /* NaN */;
}

/* Whether the block of keys that begins at `token` is seen under block-sparse attention (geometry_sees). */
static inline bool sees_block(uint32_t head, uint32_t keys, uint32_t token)
{
#if SPARSE_VERT_STRIDE > 1
    uint32_t query_block = (keys - 1) / SPARSE_BLOCK_SIZE, key_block = token / SPARSE_BLOCK_SIZE;
    uint32_t first = SPARSE_HEAD_STEP >= 0
                         ? (SPARSE_TP_RANK * KV_HEADS * GROUP + head) * (uint32_t)(SPARSE_HEAD_STEP)
                         : (SPARSE_TP_RANK * KV_HEADS + head / GROUP) * (uint32_t) - (SPARSE_HEAD_STEP);
    return key_block + SPARSE_LOCAL_BLOCKS > query_block || (key_block + first + 1) % SPARSE_VERT_STRIDE == 0;
#else
    return true;
#endif
}

static inline uint32_t keys_of(const cuda_paged_pass &pass, uint32_t query)
{
    return pass.lengths ? pass.lengths[query] : pass.attend.queries[query].keys;
}

template <bool PARTITIONED> struct paged {
    const cuda_paged_pass &pass;
    uint32_t head, query, partition, keys, first_block, end_block;
    const uint32_t *table;
    const uint8_t *pool; /* of the layer */
    float *logits;       /* shared, from token first_block * BLOCK_SIZE on */

    /* Of K or V of one block and head. */
    const uint8_t *plane_of(uint32_t block, bool v) const
    {
        const cuda_pool &p = pass.attend.pool;
        return pool + table[block] * p.block_bytes + v * p.plane_bytes +
               (uint64_t)(head / GROUP) * HEAD_DIM * BLOCK_SIZE * bytes_of(KV_DTYPE);
    }

    /* Logits of all keys, -inf where they are not seen; the largest one that this thread has met. */
    float score(const float (*q)[VECTORS * VECTOR]) const
    {
        uint32_t lane = threadIdx.x % 32, member = lane % GROUP_THREADS, slot = lane / GROUP_THREADS;
        const cuda_attend_pass &a = pass.attend;
        float scale = a.scale * a.k_scale[pass.lengths ? 0 : head / GROUP],
              slope = a.alibi ? a.alibi[head] : 0.0f;
        float best = -INFINITE;
        for (uint32_t block = first_block + threadIdx.x / 32; block < end_block; block += WARPS) {
            uint32_t token = block * BLOCK_SIZE + slot;
            bool seen = token < keys && sees_block(head, keys, block * BLOCK_SIZE);
            float dot = 0;
            if (seen) {
                const uint8_t *k = plane_of(block, false);
#pragma unroll UNROLLED /* not all of them: q would be kept in registers over the blocks */
                for (int j = 0; j < VECTORS; j++) {
                    uint32_t dim = (member + j * GROUP_THREADS) * VECTOR;
                    float x[VECTOR];
                    load_vector<VECTOR>(
                        k + ((dim / PACK * BLOCK_SIZE + slot) * PACK + dim % PACK) * bytes_of(KV_DTYPE), x);
                    for (int i = 0; i < VECTOR; i++)
                        dot = fmaf(q[member][j * VECTOR + i], x[i], dot);
                }
            }
            for (int apart = GROUP_THREADS / 2; apart > 0; apart /= 2)
                dot += __shfl_xor_sync(ALL_LANES, dot, apart);
            float logit = seen ? fmaf(slope, (float)((int)token - (int)(keys - 1)), dot * scale) : -INFINITE;
            if (member == 0 && slot < BLOCK_SIZE)
                logits[token - first_block * BLOCK_SIZE] = logit;
            best = fmaxf(best, logit);
        }
        return best;
    }

    /* Weights in place of logits; their sum over this thread's. */
    float exponentiate(float m) const
    {
        float sum = 0;
        for (uint32_t i = threadIdx.x; i < (end_block - first_block) * BLOCK_SIZE; i += CUDA_THREADS) {
            float p = weight_of(logits[i], m);
            logits[i] = p;
            sum += p;
        }
        return sum;
    }

    /* Sums of weight times value over the blocks of this warp, for the rows of V of this thread. */
    void add_values(float sums[ROWS_PER_THREAD]) const
    {
        uint32_t lane = threadIdx.x % 32, slot = lane % V_VECTORS_PER_ROW * V_VECTOR;
        for (uint32_t block = first_block + threadIdx.x / 32; block < end_block; block += WARPS) {
            const float *p = logits + (block - first_block) * BLOCK_SIZE + slot;
            const uint8_t *v = plane_of(block, true);
            uint32_t left = keys - block * BLOCK_SIZE; /* what lies behind is never looked at */
            if (!sees_block(head, keys, block * BLOCK_SIZE))
                continue;
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                uint32_t dim = lane / V_VECTORS_PER_ROW + i * ROWS_PER_ROUND;
                float x[V_VECTOR];
                if (HEAD_DIM % ROWS_PER_ROUND != 0 && dim >= HEAD_DIM)
                    break;
                load_vector<V_VECTOR>(v + (dim * BLOCK_SIZE + slot) * bytes_of(KV_DTYPE), x);
                for (int j = 0; j < V_VECTOR; j++)
                    sums[i] = fmaf(p[j], slot + j < left ? x[j] : 0.0f, sums[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            for (int apart = V_VECTORS_PER_ROW / 2; apart > 0; apart /= 2)
                sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], apart);
        }
    }

    /* Add the warps' sums up: the upper half hands over to the lower half until one is left. `shared`:
     * [WARPS / 2][HEAD_DIM]. */
    static void join_warps(float sums[ROWS_PER_THREAD], float *shared)
    {
        uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        bool leads = lane % V_VECTORS_PER_ROW == 0;
        for (uint32_t half = WARPS / 2; half > 0; half /= 2) {
            __syncthreads(); /* what stands in shared memory is read */
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                uint32_t dim = lane / V_VECTORS_PER_ROW + i * ROWS_PER_ROUND;
                if (warp >= half && warp < 2 * half && leads && dim < HEAD_DIM)
                    shared[(warp - half) * HEAD_DIM + dim] = sums[i];
            }
            __syncthreads(); /* the upper half's sums are there */
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                uint32_t dim = lane / V_VECTORS_PER_ROW + i * ROWS_PER_ROUND;
                if (warp < half && dim < HEAD_DIM)
                    sums[i] += shared[warp * HEAD_DIM + dim];
            }
        }
    }

    void run(float *shared)
    {
        __shared__ float q[GROUP_THREADS][VECTORS * VECTOR], scratch[2][WARPS];
        constexpr uint32_t heads = KV_HEADS * GROUP, blocks = PAGED_PARTITION / BLOCK_SIZE;
        const cuda_attend_pass &a = pass.attend;
        head = blockIdx.x;
        query = pass.first_query + blockIdx.y;
        partition = PARTITIONED ? blockIdx.z : 0;
        keys = keys_of(pass, query);
        table = a.pool.tables + (pass.lengths ? query : a.queries[query].table) * a.pool.stride;
        pool = a.pool.bytes + a.layer * a.pool.layer_bytes;
        logits = shared;
        uint32_t all = (keys + BLOCK_SIZE - 1) / BLOCK_SIZE;
        first_block = PARTITIONED ? partition * blocks : 0;
        end_block = PARTITIONED ? min(first_block + blocks, all) : all;
        if (PARTITIONED && first_block >= all)
            return;
        size_t at = (size_t)query * heads + head,
               q_at = pass.q_row ? query * pass.q_row + head * HEAD_DIM : at * HEAD_DIM;
        for (uint32_t i = threadIdx.x; i < HEAD_DIM; i += CUDA_THREADS) {
            uint32_t vector = i / VECTOR;
            q[vector % GROUP_THREADS][vector / GROUP_THREADS * VECTOR + i % VECTOR] =
                load_element<Q_DTYPE>(a.q, q_at + i);
        }
        __syncthreads(); /* q is there */
        float m = reduce_block<true>(score(q), scratch[0]);
        __syncthreads(); /* all logits are there */
        float l = reduce_block<false>(exponentiate(m), scratch[1]);
        float sums[ROWS_PER_THREAD] = {0};
        add_values(sums);
        join_warps(sums, shared);

        float factor = l > 0 ? a.v_scale[pass.lengths ? 0 : head / GROUP] / l : 0.0f;
        size_t part = ((size_t)blockIdx.y * heads + head) * pass.partitions + partition;
        uint32_t lane = threadIdx.x % 32;
        if (threadIdx.x == 0 && PARTITIONED) {
            a.partial_ml[2 * part] = m;
            a.partial_ml[2 * part + 1] = l;
        } else if (threadIdx.x == 0 && a.lse) {
            a.lse[at] = l > 0 ? m + logf(l) : -INFINITE;
        }
#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            uint32_t dim = lane / V_VECTORS_PER_ROW + i * ROWS_PER_ROUND;
            if (threadIdx.x >= 32 || lane % V_VECTORS_PER_ROW != 0 || dim >= HEAD_DIM)
                continue;
            if (PARTITIONED)
                a.partial_o[part * HEAD_DIM + dim] = sums[i] * factor;
            else
                store_element<Q_DTYPE>(a.o, at * HEAD_DIM + dim, sums[i] * factor);
        }
    }
};

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, RESIDENT)
    paged_v1(const __grid_constant__ cuda_paged_pass pass)
{
    DYNAMIC_SHARED(float, shared_logits);
    paged<false>{pass}.run(shared_logits);
}

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, RESIDENT)
    paged_v2(const __grid_constant__ cuda_paged_pass pass)
{
    DYNAMIC_SHARED(float, shared_logits);
    paged<true>{pass}.run(shared_logits);
}

/* The partitions of one head of one query: each output is worth its sum of exponentials under the common
 * maximum. grid (heads, queries). */
extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    paged_reduce(const __grid_constant__ cuda_paged_pass pass)
{
    __shared__ float scratch[2][WARPS];
    constexpr uint32_t heads = KV_HEADS * GROUP;
    const cuda_attend_pass &a = pass.attend;
    uint32_t query = pass.first_query + blockIdx.y;
    size_t at = (size_t)query * heads + blockIdx.x;
    size_t first = ((size_t)blockIdx.y * heads + blockIdx.x) * pass.partitions;
    uint32_t n = (keys_of(pass, query) + PAGED_PARTITION - 1) / PAGED_PARTITION;
    float m = -INFINITE, l = 0;
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS)
        m = fmaxf(m, a.partial_ml[2 * (first + i)]);
    m = reduce_block<true>(m, scratch[0]);
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        float of = a.partial_ml[2 * (first + i)];
        l += a.partial_ml[2 * (first + i) + 1] * weight_of(of, m);
    }
    l = reduce_block<false>(l, scratch[1]);
    for (uint32_t dim = threadIdx.x; dim < HEAD_DIM; dim += CUDA_THREADS) {
        float o = 0;
        for (uint32_t i = 0; i < n; i++) {
            float of = a.partial_ml[2 * (first + i)];
            float weight = a.partial_ml[2 * (first + i) + 1] * weight_of(of, m);
            o = fmaf(a.partial_o[(first + i) * HEAD_DIM + dim], weight, o);
        }
        store_element<Q_DTYPE>(a.o, at * HEAD_DIM + dim, l > 0 ? o / l : 0.0f);
    }
    if (threadIdx.x == 0 && a.lse)
        a.lse[at] = l > 0 ? m + logf(l) : -INFINITE;
}
