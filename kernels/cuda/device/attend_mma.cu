/* attend_mma.cu - the attention items on tensor cores, for q in f16 or bf16 and K, V of q's format or
 * fp8.
 *
 * A thread block of four warps takes one item (a range of chunks, up to COLUMNS packed columns) of one
 * KV head and walks it tile by tile, 64 keys at a time:
 *
 *   S^T [64 tokens x COLUMNS] = K Q^T          warp w: tokens 16 w .. 16 w + 15
 *   m' = max(m, max_j s_j)                     over all four warps, through shared memory
 *   p_j = 2^(s_j - m'), l' = l 2^(m - m') + sum_j p_j
 *   O^T [head_dim x COLUMNS] = O^T 2^(m - m') + V^T P^T     warp w: rows of head_dim 16 (w + 4 i) ..
 *
 * Keys are the M operand and query rows the N operand, so a group of 4 or 8 wastes nothing and rows
 * that share a prefix are more columns. K and V halves of tiles arrive through a ring of shared-memory
 * slots (ring.cuh).
 *
 * The arithmetic of a column does not depend on the other columns, on COLUMNS or on which thread block
 * computes it: dot products run over head_dim in steps of 16; p is rounded to q's format after m'; l
 * sums unrounded p: in a warp token g + token g + 8, then over g by halves 4 apart, 2, 1 (a butterfly),
 * then the warps in order; o accumulates tokens in steps of 16. A tile that a column does not see
 * leaves it as it is: m' = m, p = 0, and adding 0 keeps all bits but the sign of a zero (states.cuh,
 * finished). At the end of a chunk the state goes into the fold of kernels/plan.h.
 *
 * Registers and shares of the roof: docs/KERNELS.md. */
#include "kernels/cuda/device/ring.cuh"
#include "kernels/cuda/device/states.cuh"

/* The fold's levels: in registers, or a slot a thread in shared memory. */
template <bool REGISTERS, int FLOATS> struct fold_storage;

template <int FLOATS> struct fold_storage<true, FLOATS> {
    float values[FOLD_LEVELS][FLOATS];
    fold_storage(float *) {}
    float &at(int level, int i) { return values[level][i]; }
};

template <int FLOATS> struct fold_storage<false, FLOATS> {
    float *values; /* [level][float][thread] */
    fold_storage(float *shared) : values(shared + threadIdx.x) {}
    float &at(int level, int i) { return values[(level * FLOATS + i) * CUDA_THREADS]; }
};

/* A thread's part of the states of all columns: its accumulators of O^T, and m and l of the two columns
 * of each group of eight that its accumulators belong to. */
template <int DIM_TILES, int GROUPS> struct thread_state {
    fragment_c o[DIM_TILES][GROUPS];
    float m[GROUPS][2], l[GROUPS][2];

    void make_empty()
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                m[n][i] = -INFINITE;
                l[n][i] = 0;
            }
#pragma unroll
            for (int t = 0; t < DIM_TILES; t++)
                o[t][n] = {0, 0, 0, 0};
        }
    }
};

template <int COLUMNS> struct attend {
    static constexpr tile_shape SHAPE = tile_shape_of(HEAD_DIM, bytes_of(KV_DTYPE), COLUMNS, SM_BYTES, ENGINE);
    static constexpr int STEPS = SHAPE.padded_dim / 16;                           /* of a dot product */
    static constexpr int DIM_TILES = (STEPS + TILE_WARPS - 1) / TILE_WARPS;       /* of a warp */
    static constexpr int GROUPS = COLUMNS / 8;
    static constexpr int SLOTS = SHAPE.slots;
    static_assert(SHAPE.blocks > 0 && SHAPE.slots >= 2, "the host asks only for what fits");
    static constexpr bool Q_IN_REGISTERS = STEPS * GROUPS * 2 <= 32;

    using state = thread_state<DIM_TILES, GROUPS>;
    using folds = fold_storage<SHAPE.folds_in_registers, SHAPE.fold_floats>;

    const cuda_attend_pass &pass;
    const cuda_item &item;
    uint32_t kv_head;
    tile_ring<SLOTS, SHAPE.kv_row> ring;
    uint8_t *q, *p;
    float *maxima, *sums; /* [warps][columns] */
    float *fold_memory;
    uint32_t keys[GROUPS][2];       /* of this thread's columns; 0 for columns that are not there */
    float slopes[GROUPS][2];

    /* Shared memory, in this order: the ring's slots, q, p, maxima, sums, the slots' barriers, folds. */
    attend(const cuda_attend_pass &pass_, const cuda_item &item_, uint32_t kv_head_, uint8_t *shared)
        : pass(pass_), item(item_), kv_head(kv_head_),
          ring(tile_range(pass_, item_, kv_head_), shared, shared + SLOTS * SHAPE.half + COLUMNS * (SHAPE.q_row + SHAPE.p_row) +
                                  2 * TILE_WARPS * COLUMNS * 4)
    {
        q = shared + SLOTS * SHAPE.half;
        p = q + COLUMNS * SHAPE.q_row;
        maxima = (float *)(p + COLUMNS * SHAPE.p_row);
        sums = maxima + TILE_WARPS * COLUMNS;
        fold_memory = sums + TILE_WARPS * COLUMNS + 2 * TILE_SLOTS_MAX;
    }

    static uint32_t warp() { return threadIdx.x / 32; }
    static uint32_t lane() { return threadIdx.x % 32; }
    /* the i-th (0, 1) column of group n that this thread's accumulators belong to */
    static uint32_t column_of(int n, int i) { return n * 8 + lane() % 4 * 2 + i; }

    uint32_t row_of(uint32_t column) const
    {
        return pass.item_rows[item.first_row + (item.column + column) / GROUP];
    }
    uint32_t head_of(uint32_t column) const { return kv_head * GROUP + (item.column + column) % GROUP; }

    uint32_t keys_of(uint32_t column) const
    {
        return column < item.columns ? pass.rows[row_of(column)].keys : 0;
    }

    void find_keys()
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t k = keys_of(column_of(n, i));
                keys[n][i] = k;
                slopes[n][i] = pass.alibi && k ? pass.alibi[head_of(column_of(n, i))] * LOG2_E : 0.0f;
            }
        }
    }

    /* q into shared memory, zeros where there is no column and in the padding. */
    void load_q()
    {
        constexpr uint32_t words = SHAPE.q_row / 4;
        for (uint32_t at = threadIdx.x; at < COLUMNS * words; at += CUDA_THREADS) {
            uint32_t column = at / words, word = at % words;
            uint32_t value = 0;
            if (column < item.columns && word < HEAD_DIM / 2) {
                size_t row = (size_t)row_of(column) * (KV_HEADS * GROUP) + head_of(column);
                value = ((const uint32_t *)pass.q)[row * (HEAD_DIM / 2) + word];
            }
            *(uint32_t *)(q + column * SHAPE.q_row + word * 4) = value;
        }
    }

    void dot_products(uint32_t half, fragment_c s[GROUPS], const fragment_b (&q_held)[STEPS][GROUPS]) const
    {
        uint32_t tile = ring.address(half);
        fragment_a pair;
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            s[n] = {0, 0, 0, 0};
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            fragment_a k = key_fragment(tile, warp() * 16, SHAPE.kv_row, step, pair);
#pragma unroll
            for (int n = 0; n < GROUPS; n++)
                multiply(s[n], k, Q_IN_REGISTERS ? q_held[step][n] : query_fragment(q, SHAPE.q_row, n * 8, step));
        }
    }

    /* Scores in place of dot products, -inf where a column does not see the key, and the warp's
     * maximum of each column to shared memory. `position`: of the warp's first token. */
    void score(fragment_c s[GROUPS], uint32_t position) const
    {
        const score_rule rule(pass, kv_head);
        uint32_t token = position + lane() / 4;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t first = plan_first_key(keys[n][i], pass.window);
                float best = -INFINITE;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t j = token + 8 * half;
                    float &x = s[n].r[2 * half + i];
                    bool seen = j >= first && j < keys[n][i];
                    x = seen ? rule(x, slopes[n][i], (int)(j + 1 - keys[n][i])) : -INFINITE;
                    best = fmaxf(best, x);
                }
                for (int apart = 4; apart < 32; apart *= 2)
                    best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, apart));
                if (lane() < 4)
                    maxima[warp() * COLUMNS + column_of(n, i)] = best;
            }
        }
    }

    /* p in place of scores, rounded to shared memory, its sums likewise; o and l are scaled to the new
     * maximum. */
    void weigh(fragment_c s[GROUPS], state &x) const
    {
        uint32_t token = warp() * 16 + lane() / 4;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t column = column_of(n, i);
                float m = x.m[n][i];
#pragma unroll
                for (int w = 0; w < TILE_WARPS; w++)
                    m = fmaxf(m, maxima[w * COLUMNS + column]);
                float a = m == -INFINITE ? 1.0f : exp2_fast(x.m[n][i] - m), sum = 0;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float &score = s[n].r[2 * half + i];
                    float probability = score == -INFINITE ? 0.0f : exp2_fast(score - m);
                    *(uint16_t *)(p + column * SHAPE.p_row + (token + 8 * half) * 2) =
                        round_probability(probability);
                    sum += probability;
                }
                for (int apart = 16; apart >= 4; apart /= 2)
                    sum += __shfl_xor_sync(ALL_LANES, sum, apart);
                if (lane() < 4)
                    sums[warp() * COLUMNS + column] = sum;
                x.m[n][i] = m;
                x.l[n][i] *= a;
#pragma unroll
                for (int t = 0; t < DIM_TILES; t++) {
                    x.o[t][n].r[i] *= a;
                    x.o[t][n].r[2 + i] *= a;
                }
            }
        }
    }

    void add_values(uint32_t half, state &x) const
    {
        uint32_t tile = ring.address(half);
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *of = sums + column_of(n, i);
                x.l[n][i] += (of[0] + of[COLUMNS]) + (of[2 * COLUMNS] + of[3 * COLUMNS]);
            }
        }
#pragma unroll
        for (int t = 0; t < DIM_TILES; t++) {
            uint32_t dim_tile = warp() + t * TILE_WARPS;
            fragment_a pair;
            if (STEPS % TILE_WARPS != 0 && dim_tile >= STEPS)
                break;
#pragma unroll
            for (int step = 0; step < TILE_TOKENS / 16; step++) {
                fragment_a v = value_fragment(tile, SHAPE.kv_row, dim_tile, step, pair);
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
                    multiply(x.o[t][n], v, probability_fragment(p, SHAPE.p_row, n * 8, step));
            }
        }
    }

    /* ---- the fold: level 0 the chunks of the run, 1 the runs of the segment, 2 the segments of the row */

    /* Where a thread keeps m, l and o of group n in a fold level. */
    static constexpr int fold_m(int n, int i) { return n * 4 + i; }
    static constexpr int fold_l(int n, int i) { return n * 4 + 2 + i; }
    static constexpr int fold_o(int t, int n, int r) { return GROUPS * 4 + (t * GROUPS + n) * 4 + r; }

    static void clear_fold(folds &fold, int level)
    {
#pragma unroll
        for (int i = 0; i < (int)SHAPE.fold_floats; i++)
            fold.at(level, i) = i < GROUPS * 4 && i % 4 < 2 ? -INFINITE : 0.0f;
    }

    static void fold_state(folds &fold, int level, const state &from)
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const merge_weights w(fold.at(level, fold_m(n, i)), from.m[n][i]);
                fold.at(level, fold_m(n, i)) = w.m;
                fold.at(level, fold_l(n, i)) = w(fold.at(level, fold_l(n, i)), from.l[n][i]);
#pragma unroll
                for (int t = 0; t < DIM_TILES; t++) {
#pragma unroll
                    for (int r = i; r < 4; r += 2)
                        fold.at(level, fold_o(t, n, r)) = w(fold.at(level, fold_o(t, n, r)), from.o[t][n].r[r]);
                }
            }
        }
    }

    static void take_fold(folds &fold, int level, state &to)
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                to.m[n][i] = fold.at(level, fold_m(n, i));
                to.l[n][i] = fold.at(level, fold_l(n, i));
            }
#pragma unroll
            for (int t = 0; t < DIM_TILES; t++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    to.o[t][n].r[r] = fold.at(level, fold_o(t, n, r));
            }
        }
    }

    /* The node of `level` is complete and goes into the one above; `x` is free to be used. */
    static void close_level(folds &fold, int level, state &x)
    {
        take_fold(fold, level, x);
        fold_state(fold, level + 1, x);
        clear_fold(fold, level);
    }

    static void end_chunk(folds &fold, state &x, uint32_t end)
    {
        fold_state(fold, 0, x);
        if (end % RUN_CHUNKS == 0)
            close_level(fold, 0, x);
        if (end % SEGMENT_CHUNKS == 0)
            close_level(fold, 1, x);
    }

    /* ---- what comes out */

    void write_partial(uint32_t column, int n, int i, const state &x) const
    {
        uint32_t partial = item.partial + (item.column + column) / GROUP, head = head_of(column);
        size_t at = (size_t)partial * (KV_HEADS * GROUP) + head;
        if (warp() == 0 && lane() < 4) {
            pass.partial_ml[2 * at] = x.m[n][i];
            pass.partial_ml[2 * at + 1] = x.l[n][i];
        }
#pragma unroll
        for (int t = 0; t < DIM_TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t dim = dim_of(warp() + t * TILE_WARPS, half);
                if (dim < HEAD_DIM)
                    pass.partial_o[at * HEAD_DIM + dim] = x.o[t][n].r[2 * half + i];
            }
        }
    }

    void write_output(uint32_t column, int n, int i, const state &x) const
    {
        uint32_t head = head_of(column);
        size_t at = (size_t)row_of(column) * (KV_HEADS * GROUP) + head;
        const finished f(x.m[n][i], x.l[n][i], pass.sinks ? &pass.sinks[head] : nullptr,
                         pass.v_scale[kv_head]);
        if (warp() == 0 && lane() < 4)
            pass.lse[at] = f.lse;
#pragma unroll
        for (int t = 0; t < DIM_TILES; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t dim = dim_of(warp() + t * TILE_WARPS, half);
                if (dim < HEAD_DIM)
                    store_element<Q_DTYPE>(pass.o, at * HEAD_DIM + dim, f(x.o[t][n].r[2 * half + i]));
            }
        }
    }

    void write(const state &x) const
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t column = column_of(n, i);
                if (column >= item.columns)
                    continue;
                if (item.partial == PLAN_NO_PARTIAL)
                    write_output(column, n, i, x);
                else
                    write_partial(column, n, i, x);
            }
        }
    }

    void run()
    {
        fragment_b q_held[STEPS][GROUPS];
        fragment_c s[GROUPS];
        state x;
        folds fold(fold_memory);

        ring.begin();
        find_keys();
        load_q();
        __syncthreads(); /* q is there */
        if constexpr (Q_IN_REGISTERS) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
                    q_held[step][n] = query_fragment(q, SHAPE.q_row, n * 8, step);
            }
        }

        x.make_empty();
        for (int level = 0; level < FOLD_LEVELS; level++)
            clear_fold(fold, level);

        uint32_t tiles = ring.range.tiles();
        for (uint32_t tile = 0; tile < tiles; tile++) {
            uint32_t position = ring.range.position_of(2 * tile);
            ring.advance(2 * tile);
            dot_products(2 * tile, s, q_held);
            score(s, position + warp() * 16);
            __syncthreads(); /* the maxima are there; the p and sums of the last tile are read */
            weigh(s, x);
            ring.advance(2 * tile + 1); /* and with it p and the sums */
            add_values(2 * tile + 1, x);
            if ((position + TILE_TOKENS) % CHUNK_TOKENS == 0 || tile + 1 == tiles) {
                end_chunk(fold, x, position / CHUNK_TOKENS + 1);
                x.make_empty();
            }
        }
        close_level(fold, 0, x);
        close_level(fold, 1, x);
        take_fold(fold, 2, x);
        write(x);
    }
};

#define ATTEND_KERNEL(COLUMNS)                                                                         \
    extern "C" __global__ void __launch_bounds__(                                                      \
        CUDA_THREADS,                                                                                  \
        tile_shape_of(HEAD_DIM, bytes_of(KV_DTYPE), COLUMNS, SM_BYTES, ENGINE).blocks)                         \
        attend_##COLUMNS(const __grid_constant__ cuda_attend_pass pass)                                \
    {                                                                                                  \
        extern __shared__ __align__(TILE_ALIGNMENT) uint8_t shared[];                                              \
        const cuda_item item = pass.items[blockIdx.x / KV_HEADS];                                      \
        attend<COLUMNS>(pass, item, blockIdx.x % KV_HEADS, shared).run();                              \
    }

ATTEND_KERNEL(8)
#if COLUMNS_MAX >= 16
ATTEND_KERNEL(16)
#endif
#if COLUMNS_MAX >= 32
ATTEND_KERNEL(32)
#endif
