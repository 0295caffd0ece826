/* SPDX-License-Identifier: Apache-2.0 */
/* attend_mma.cu - the attention work tiles on tensor cores, for q in f16 or bf16 and K, V of q's format or
 * fp8.
 *
 * A warp takes 8 packed columns of a work tile (a range of chunks of one KV head) and walks it tile by tile,
 * 64 keys at a time, alone:
 *
 *   S^T [64 tokens x 8] = K Q^T
 *   m' = max(m, max_j s_j)
 *   p_j = 2^(s_j - m'), l' = l 2^(m - m') + sum_j p_j
 *   O^T [head_dim x 8] = O^T 2^(m - m') + V^T P^T
 *
 * Keys are the M operand and query rows the N operand, since N may be as small as 8: a decode step has a
 * group of 4 or 8 query heads, not 64. p stays in registers: what comes out as an accumulator goes in as an
 * operand after a transposition of 8 x 8. Work tiles of more columns have more warps, which read the same K
 * and V. Those arrive through a ring of shared-memory stages (kv_pipeline.cuh).
 *
 * The arithmetic of a column does not depend on the other columns, on their number or on which warp
 * computes it: dot products run over head_dim in steps of 16; p is rounded to the operands' format after
 * m'; l sums unrounded p: tokens g, g + 8 .. g + 56 of a tile as a tree of neighbours, for each g < 8,
 * tile by tile, and at the end of a chunk over g by halves 4 apart, 2, 1 (a butterfly); o accumulates
 * tokens in steps of 16. A tile that a column does not see leaves it as it is: m' = m, p = 0, and adding 0
 * keeps all bits but the sign of a zero (states.cuh, output_scale). At the end of a chunk the state goes into
 * the fold of kernels/plan.h.
 *
 * Registers and shares of the roof: docs/KERNELS.md. */
#include "kernels/cuda/device/cluster_combine.cuh"
#include "kernels/cuda/device/folds.cuh"
#include "kernels/cuda/device/producer.cuh"
#include "kernels/cuda/device/online_softmax.cuh"

/* A thread's part of S^T, of its warp's 8 columns. */
struct mma_scores {
    static constexpr int SUMS = 1, FIRST = 4, END = 32;
    fragment_c s[TILE_TOKENS / 16];

    float &operator()(int j, int i, int)
    {
        return s[j / 2].r[j % 2 * 2 + i];
    }
    static uint32_t column(int i)
    {
        return threadIdx.x / 32 * 8 + lane() % 4 * 2 + i;
    }
    static uint32_t token(int j, int)
    {
        return j * 8 + lane() / 4;
    }
};

template <int COLUMNS> struct mma_tile {
    static constexpr tile_shape SHAPE = tile_shape_of(HEAD_DIM, bytes_of(KV_DTYPE), COLUMNS, SM_BYTES, TMA);
    static constexpr uint32_t ATOM_ROWS = atom_rows<SHAPE.stage_tokens>, PRODUCERS = 1, COPIES_AT_ONCE = 8;
    static constexpr bool HAS_WORKSPACE = false;
    static uint32_t consumers(const cuda_work_tile &work_tile)
    {
        return (work_tile.columns + 7) / 8;
    }
};

template <int COLUMNS> struct attend : combined_epilogue {
    using tile = mma_tile<COLUMNS>;
    using pipeline = kv_pipeline<tile>;
    static constexpr tile_shape SHAPE = pipeline::SHAPE;
    static constexpr int STEPS = SHAPE.padded_dim / 16; /* of a dot product; and tiles of 16 rows of O^T */
    static constexpr uint32_t STAGE_TOKENS = SHAPE.stage_tokens, FILLS = pipeline::FILLS;
    static constexpr int TILE_STEPS = TILE_TOKENS / 16, STAGE_STEPS = STAGE_TOKENS / 16; /* of tokens */
    /* of the largest thread block, of as many splits as may be one */
    static constexpr uint32_t CTA_SPLITS_MAX = tile_cta_splits_max(&SHAPE),
                              THREADS = SHAPE.threads * CTA_SPLITS_MAX,
                              BLOCKS = SHAPE.blocks / CTA_SPLITS_MAX;
    static_assert(SHAPE.blocks > 0, "the host asks only for what fits");

    using state = columns_state<fragment_c, STEPS, 1>;
    using folds =
        chunk_fold<state, fold_storage<SHAPE.register_levels, state::VALUES, 32 * SHAPE.warps>, FOLD_LEVELS>;
    using query_fragments = fragment_b[STEPS];
    using scores = mma_scores;
    using probabilities = fragment_b[TILE_STEPS];

    /* Shared memory, in this order: the ring's stages, barriers and table entries, the work tile, which is
     * there, and folds. */
    pipeline ring;
    const score_rule rule{pass, memory.k_scale};
    float scales[2];                                    /* of dot products */
    const uint32_t first_column = threadIdx.x / 32 * 8; /* of this warp */

    attend(const cuda_attend_pass &pass_, work_tile_memory &memory_, uint32_t kv_head_, uint8_t *shared)
        : combined_epilogue(pass_, memory_, kv_head_), ring(pass_, work_tile, kv_head_, shared)
    {
    }

    void load_q(query_fragments &q) const
    {
        const uint8_t *row = query(first_column + lane() / 4);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            q[step] = query_fragment(row, step);
    }

    /* q as operands, and what makes scores of their dot products. */
    void scale_q(query_fragments &q)
    {
        float unit = 1.0f;
        if constexpr (OPERAND != Q_DTYPE)
            unit = narrow_query(q);
        for (int i = 0; i < 2; i++)
            scales[i] =
                fmaxf(rule.scale * __shfl_sync(ALL_LANES, unit, (lane() % 4 * 2 + i) * 4), SMALLEST_SCALE);
    }

    /* A column of q from bf16 to f16, in units of a power of two such that the largest element is just
     * below 2^15. Those below 2^-29 of it lose bits; the others are exact. Returns the unit. */
    static float narrow_query(query_fragments &q)
    {
        uint32_t largest = 0; /* as bits of an f32 */
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            for (int r = 0; r < 2; r++)
                largest = max(largest, max(q[step].r[r] << 16 & 0x7fffffffu, q[step].r[r] & 0x7fff0000u));
        }
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        int exponent = max((int)(largest >> 23) - 127, -100) - 14;
        float factor = __int_as_float((127 - exponent) << 23);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            for (int r = 0; r < 2; r++) {
                uint32_t both = q[step].r[r];
                q[step].r[r] = round_operands(__uint_as_float(both << 16) * factor,
                                              __uint_as_float(both & 0xffff0000u) * factor);
            }
        }
        return __int_as_float((127 + exponent) << 23);
    }

    /* ---- a tile */

    /* Dot products of a tile; its first fill of K is `fill`. */
    void multiply_qk(uint32_t fill, scores &s, const query_fragments &q)
    {
#pragma unroll
        for (int u = 0; u < (int)FILLS; u++) {
            ring.wait_full(fill + u);
            uint32_t at = ring.address(fill + u);
            for (int t = u * STAGE_STEPS; t < (u + 1) * STAGE_STEPS; t++)
                s.s[t] = {0, 0, 0, 0};
#pragma unroll
            for (int step = 0; step < STEPS; step += LOAD_STEPS) {
                for (int t = 0; t < STAGE_STEPS; t++) {
                    fragment_a k[LOAD_STEPS];
                    load_keys<STAGE_TOKENS, SHAPE.kv_row>(k, at, t * 16, step);
                    for (int i = 0; i < LOAD_STEPS && step + i < STEPS; i++)
                        multiply(s.s[u * STAGE_STEPS + t], k[i], q[step + i]);
                }
            }
            ring.release(fill + u);
        }
    }

    /* p of the dot products of the tile at `position`; o and l are rescaled to the new maximum. */
    void softmax(scores &s, uint32_t position, const seen_keys &seen, const common_keys &common, state &x,
                 probabilities &p) const
    {
        float rescale[2];
        if (online_softmax<false>(
                s, *this, rule, scales, common, position, [&] { return seen; }, x, rescale))
            x.rescale_o(rescale);
        for (int t = 0; t < TILE_STEPS; t++) {
            for (int half = 0; half < 2; half++)
                p[t].r[half] = transpose(round_operands(s(2 * t + half, 0, 0), s(2 * t + half, 1, 0)));
        }
    }

    /* The tile's first fill of V is `fill`. */
    void multiply_pv(uint32_t fill, state &x, const probabilities &p)
    {
#pragma unroll
        for (int u = 0; u < (int)FILLS; u++) {
            ring.wait_values(fill + u);
            uint32_t at = ring.address(fill + u);
#pragma unroll
            for (int step = 0; step < STAGE_STEPS; step += LOAD_STEPS) {
#pragma unroll
                for (int t = 0; t < STEPS; t++) {
                    fragment_a v[LOAD_STEPS];
                    load_values<STAGE_TOKENS, SHAPE.kv_row>(v, at, t, step);
                    for (int i = 0; i < LOAD_STEPS; i++)
                        multiply(x.o[t], v[i], p[u * STAGE_STEPS + step + i]);
                }
            }
            ring.release(fill + u);
        }
    }

    /* l of a chunk, of all tokens. */
    static void reduce_l(state &x)
    {
        for (int apart = 16; apart >= 4; apart /= 2) {
            for (int i = 0; i < 2; i++)
                x.l[i] += __shfl_xor_sync(ALL_LANES, x.l[i], apart);
        }
    }

    /* The two columns' elements of a row of O^T, as 16 bits each, are transposed, so that a thread has
     * neighbours of one column. */
    void write_outputs(const state &x) const
    {
        const uint32_t column = first_column + lane() / 4;
        uint8_t *o = pass.o + query_of(min(column, work_tile.columns - 1)) * (HEAD_DIM * 2);
        const output_scale f[2] = {finish_column(x, 0), finish_column(x, 1)};
#pragma unroll
        for (int t = 0; t < STEPS; t++) {
            uint32_t both[2];
            for (int half = 0; half < 2; half++)
                both[half] = transpose(
                    encode_results<Q_DTYPE>(f[0](x.o[t].r[2 * half]), f[1](x.o[t].r[2 * half + 1])));
            const uint32_t dim = t * 16 + lane() % 4 * (NARROW_KV ? 4 : 2);
            if constexpr (NARROW_KV) { /* even elements, and odd ones (dim_of) */
                if (column < work_tile.columns && dim < HEAD_DIM)
                    *(uint2 *)(o + dim * 2) = {__byte_perm(both[0], both[1], 0x5410),
                                               __byte_perm(both[0], both[1], 0x7632)};
            } else {
                for (int half = 0; half < 2; half++) {
                    if (column < work_tile.columns && dim + 8 * half < HEAD_DIM)
                        *(uint32_t *)(o + (dim + 8 * half) * 2) = both[half];
                }
            }
        }
    }

    /* A column that is not there has the head, and nothing else, of the last one that is. */
    output_scale finish_column(const state &x, int i) const
    {
        uint32_t column = scores::column(i);
        return finish(min(column, work_tile.columns - 1), x.m[i], x.l[i],
                      lane() < 4 && column < work_tile.columns);
    }

    void write_states(const state &x) const
    {
        if (is_final()) {
            write_outputs(x);
            return;
        }
        for (int i = 0; i < 2; i++)
            write_state(scores::column(i), x.m[i], x.l[i], lane() < 4, ring.stages, [&](auto store) {
#pragma unroll
                for (int t = 0; t < STEPS; t++) {
                    for (int half = 0; half < 2; half++) {
                        uint32_t dim = dim_of(t, half);
                        if (dim < HEAD_DIM)
                            store(dim, x.o[t].r[2 * half + i]);
                    }
                }
            });
    }

    static void run(const cuda_attend_pass &pass, uint8_t *shared)
    {
        const tile_coord coord(pass);
        shared += threadIdx.y *
                  SHAPE.bytes; /* not tile_coord::cta_split(): one register less, which head_dim 256 needs */
        work_tile_memory &memory = *(work_tile_memory *)(shared + SHAPE.work_tile);
        if (pipeline::is_producer()) {
            produce<tile>(pass, coord, memory, shared);
        } else {
            pipeline::wait_work_tile();
            attend self(pass, memory, coord.kv_head, shared);
            if (self.first_column < self.work_tile.columns)
                self.compute();
        }
        if (pass.concurrent && blockIdx.x == 0)
            await_previous(); /* to be complete after it (launch.cuh) */
    }

    void compute()
    {
        query_fragments q;
        scores s;
        probabilities p;
        state x;

        /* masks; then, behind the grid ahead of this one, q */
        keep_queries(first_column, 8);
        const seen_keys seen(*this, {scores::column(0), scores::column(1)});
        const common_keys common(seen);
        begin_pass(pass);
        load_q(q);
        scale_q(q);

        /* all tiles */
        x.init();
        folds fold(ring.stages + SHAPE.folds);
        for (uint32_t fill = 0; fill < ring.fills; fill += 2 * FILLS) {
            uint32_t position = ring.position_of(fill);
            multiply_qk(fill, s, q);
            softmax(s, position, seen, common, x, p);
            multiply_pv(fill + FILLS, x, p);
            const bool is_last = fill + 2 * FILLS >= ring.fills;
            if ((position + TILE_TOKENS) % CHUNK_TOKENS == 0 || is_last)
                reduce_l(x);
            if (is_last) {
                fold.finish(x);
            } else if ((position + TILE_TOKENS) % CHUNK_TOKENS == 0) {
                fold.add_chunk(x, position / CHUNK_TOKENS + 1);
                x.init();
            }
        }

        /* epilogue; the state of a split goes into the ring's stages, so wait until all consumers have read
         * them */
        if (is_in_split_group())
            ring.sync();
        write_states(x);
        if (is_in_split_group())
            combine_splits(ring.stages, SHAPE.bytes, ring.consumers * 32);
    }
};

/* One compilation a kernel: KERNEL is attend_8 and KERNEL_COLUMNS 8, and so on. */
#ifdef KERNEL /* tests/emulation has its own */
extern "C" __global__ void __launch_bounds__(attend<KERNEL_COLUMNS>::THREADS, attend<KERNEL_COLUMNS>::BLOCKS)
    KERNEL(const __grid_constant__ cuda_attend_pass pass)
{
    extern __shared__ __align__(TILE_ALIGNMENT) uint8_t shared[];
    attend<KERNEL_COLUMNS>::run(pass, shared);
}
#endif
