/* SPDX-License-Identifier: Apache-2.0 */
/* attend_simple.cu - the attention work tiles in plain f32, for every combination of formats and every GPU:
 * what the tensor cores do not take (f32, q and K of different 16-bit formats, GPUs before sm_80).
 *
 * A thread block takes a work tile of up to 8 packed columns of one KV head, tile by tile:
 *
 *   s_j      a thread a token of half a tile and two columns; the dot product runs over head_dim in order
 *   m, p, l  a warp two columns, two tokens a lane; l sums token j and j + 32, then by halves 16 .. 1 apart
 *   o        a thread an element of head_dim (two if head_dim > 128) and all columns; tokens in order
 *
 * Half a tile of K, then of V, stands in shared memory as f32, rows padded by one float. */
#include "kernels/cuda/device/epilogue.cuh"
#include "kernels/cuda/device/launch.cuh"

static constexpr int SIMPLE_COLUMNS = TILE_SIMPLE_COLUMNS;
static constexpr int HALF_TOKENS = TILE_TOKENS / 2;
static constexpr int DIMS = (HEAD_DIM + CUDA_THREADS - 1) / CUDA_THREADS; /* of a thread */

struct simple_state {
    float m[SIMPLE_COLUMNS], l[SIMPLE_COLUMNS], o[DIMS][SIMPLE_COLUMNS];

    void init()
    {
#pragma unroll
        for (int c = 0; c < SIMPLE_COLUMNS; c++) {
            m[c] = -INFINITE;
            l[c] = 0;
            for (int d = 0; d < DIMS; d++)
                o[d][c] = 0;
        }
    }
    void merge(const simple_state &from)
    {
#pragma unroll
        for (int c = 0; c < SIMPLE_COLUMNS; c++) {
            const merge_weights w(m[c], from.m[c]);
            m[c] = w.m;
            l[c] = w(l[c], from.l[c]);
            for (int d = 0; d < DIMS; d++)
                o[d][c] = w(o[d][c], from.o[d][c]);
        }
    }
};

struct simple_shared {
    float kv[HALF_TOKENS][HEAD_DIM + 1];
    float q[SIMPLE_COLUMNS][HEAD_DIM];
    float s[SIMPLE_COLUMNS][TILE_TOKENS]; /* scores, then p */
    float m[SIMPLE_COLUMNS], sum[SIMPLE_COLUMNS];
    uint32_t keys[SIMPLE_COLUMNS];
    work_tile_memory memory;
};

struct simple_attend : tile_epilogue {
    simple_shared &shared;
    const uint32_t *table;
    const uint8_t *pool;
    plan_range seen; /* positions that any column sees */

    simple_attend(const cuda_attend_pass &pass_, uint32_t kv_head_, simple_shared &shared_)
        : tile_epilogue(pass_, shared_.memory, kv_head_), shared(shared_)
    {
        table = pass.pool.tables + work_tile.table * pass.pool.stride;
        pool = pass.pool.bytes + pass.layer * pass.pool.layer_bytes + kv_head * pass.pool.head_bytes;
    }

    void load_columns()
    {
        if (threadIdx.x < 32)
            keep_queries(0, SIMPLE_COLUMNS);
        __syncthreads(); /* the queries are there */
        for (uint32_t at = threadIdx.x; at < SIMPLE_COLUMNS * HEAD_DIM; at += CUDA_THREADS) {
            uint32_t column = at / HEAD_DIM, dim = at % HEAD_DIM;
            size_t row = column < work_tile.columns ? query_of(column) : 0;
            shared.q[column][dim] =
                column < work_tile.columns ? load_element<Q_DTYPE>(pass.q, row * HEAD_DIM + dim) : 0;
        }
        if (threadIdx.x < SIMPLE_COLUMNS)
            shared.keys[threadIdx.x] = threadIdx.x < work_tile.columns ? query_at(threadIdx.x).keys : 0;
        __syncthreads(); /* the keys are there */
        seen = work_tile.seen;
    }

    /* Keys or values at [position, position + 32) as f32; zeros where no column sees them. */
    void load_half(uint32_t position, bool values)
    {
        __syncthreads(); /* what stands there is read */
        for (uint32_t at = threadIdx.x; at < HALF_TOKENS * HEAD_DIM; at += CUDA_THREADS) {
            uint32_t row = at / HEAD_DIM, dim = at % HEAD_DIM, token = position + row;
            float x = 0;
            if (token >= seen.first && token < seen.end)
                x = load_element<KV_DTYPE>(pool + table[token / BLOCK_SIZE] * pass.pool.block_bytes +
                                               token % BLOCK_SIZE * pass.pool.slot_bytes +
                                               values * pass.pool.plane_bytes,
                                           dim);
            shared.kv[row][dim] = x;
        }
        __syncthreads(); /* the half is there */
    }

    /* Tokens [position, position + 32), which are `offset` and on of the tile. */
    void score_half(uint32_t position, uint32_t offset)
    {
        const score_rule rule(pass, memory.k_scale);
        uint32_t row = threadIdx.x % HALF_TOKENS, j = position + row;
        for (uint32_t c = threadIdx.x / HALF_TOKENS; c < SIMPLE_COLUMNS; c += CUDA_THREADS / HALF_TOKENS) {
            uint32_t keys = shared.keys[c];
            float dot = 0;
            for (uint32_t d = 0; d < HEAD_DIM; d++)
                dot = fmaf(shared.q[c][d], shared.kv[row][d], dot);
            const plan_range of = plan_visible(keys, pass.window);
            bool visible = j < of.end && j >= of.first;
            float slope = pass.alibi && keys ? pass.alibi[head_of(c)] * LOG2_E : 0.0f;
            float s = rule(dot, slope, (int)(j + 1 - keys));
            shared.s[c][offset + row] = visible && s == s ? s : -INFINITE; /* of NaN too */
        }
    }

    /* Maxima, p and sums of the tile, by the warp that has the column. */
    void online_softmax(const simple_state &x)
    {
        uint32_t lane = threadIdx.x % 32;
        __syncthreads(); /* all scores are there */
#pragma unroll
        for (int c = 0; c < SIMPLE_COLUMNS; c++) {
            if (c % (CUDA_THREADS / 32) != threadIdx.x / 32)
                continue;
            float s0 = shared.s[c][lane], s1 = shared.s[c][lane + 32], m = fmaxf(s0, s1);
            for (int apart = 16; apart > 0; apart /= 2)
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, apart));
            m = fmaxf(m, x.m[c]);
            float of = m == -INFINITE ? 0.0f : m, p0 = weight(s0, of), p1 = weight(s1, of), sum = p0 + p1;
            for (int apart = 16; apart > 0; apart /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            shared.s[c][lane] = p0;
            shared.s[c][lane + 32] = p1;
            if (lane == 0) {
                shared.m[c] = m;
                shared.sum[c] = sum;
            }
        }
        __syncthreads(); /* p, maxima and sums are there */
    }

    void add_half(uint32_t offset, simple_state &x)
    {
        for (int row = 0; row < HALF_TOKENS; row++) {
            for (int d = 0; d < DIMS; d++) {
                uint32_t dim = threadIdx.x + d * CUDA_THREADS;
                float v = dim < HEAD_DIM ? shared.kv[row][dim] : 0.0f;
#pragma unroll
                for (int c = 0; c < SIMPLE_COLUMNS; c++)
                    x.o[d][c] = fmaf(shared.s[c][offset + row], v, x.o[d][c]);
            }
        }
    }

    void tile(uint32_t position, simple_state &x)
    {
        for (uint32_t offset = 0; offset < TILE_TOKENS; offset += HALF_TOKENS) {
            load_half(position + offset, false);
            score_half(position + offset, offset);
        }
        online_softmax(x);
#pragma unroll
        for (int c = 0; c < SIMPLE_COLUMNS; c++) {
            float m = shared.m[c], a = weight(x.m[c], m);
            x.m[c] = m;
            x.l[c] = x.l[c] * a + shared.sum[c];
            for (int d = 0; d < DIMS; d++)
                x.o[d][c] *= a;
        }
        for (uint32_t offset = 0; offset < TILE_TOKENS; offset += HALF_TOKENS) {
            load_half(position + offset, true);
            add_half(offset, x);
        }
    }

    void write_states(const simple_state &x) const
    {
#pragma unroll
        for (int c = 0; c < SIMPLE_COLUMNS; c++)
            write(c, x.m[c], x.l[c], threadIdx.x == 0, nullptr, [&](auto write) {
                for (int d = 0; d < DIMS; d++) {
                    uint32_t dim = threadIdx.x + d * CUDA_THREADS;
                    if (dim < HEAD_DIM)
                        write(dim, x.o[d][c]);
                }
            });
    }

    void run()
    {
        simple_state chunk, fold[FOLD_LEVELS];
        load_columns();
        chunk.init();
        for (int level = 0; level < FOLD_LEVELS; level++)
            fold[level].init();
        uint32_t end_tile = (seen.end + TILE_TOKENS - 1) / TILE_TOKENS;
        for (uint32_t t = seen.first / TILE_TOKENS; t < end_tile; t++) {
            tile(t * TILE_TOKENS, chunk);
            uint32_t end = t * TILE_TOKENS / CHUNK_TOKENS + 1;
            if ((t + 1) * TILE_TOKENS % CHUNK_TOKENS != 0 && t + 1 != end_tile)
                continue;
            fold[0].merge(chunk);
            chunk.init();
            if (end % RUN_CHUNKS == 0) {
                fold[1].merge(fold[0]);
                fold[0].init();
            }
            if (end % SEGMENT_CHUNKS == 0) {
                fold[2].merge(fold[1]);
                fold[1].init();
            }
        }
        fold[1].merge(fold[0]);
        fold[2].merge(fold[1]);
        write_states(fold[2]);
    }
};

extern "C" __global__ void __launch_bounds__(CUDA_THREADS, HEAD_DIM > CUDA_THREADS ? 2 : 3)
    attend_simple(const __grid_constant__ cuda_attend_pass pass)
{
    begin_pass(pass);
    __shared__ simple_shared shared;
    const tile_coord coord(pass);
    if (threadIdx.x < 32)
        coord.bring(pass, shared.memory);
    __syncthreads(); /* the work tile is there */
    simple_attend(pass, coord.kv_head, shared).run();
}
