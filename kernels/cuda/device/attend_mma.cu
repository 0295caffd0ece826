/* attend_mma.cu - the attention items on tensor cores, for q in f16 or bf16 and K, V of q's format or
 * fp8.
 *
 * A warp takes 8 packed columns of an item (a range of chunks of one KV head) and walks it tile by tile, 64 keys at a time,
 * alone:
 *
 *   S^T [64 tokens x 8] = K Q^T
 *   m' = max(m, max_j s_j)
 *   p_j = 2^(s_j - m'), l' = l 2^(m - m') + sum_j p_j
 *   O^T [head_dim x 8] = O^T 2^(m - m') + V^T P^T
 *
 * Keys are the M operand and query rows the N operand, so a group of 4 or 8 wastes nothing. p stays in registers: what
 * comes out as an accumulator goes in as an operand after a transposition of 8 x 8. Items of more columns have more warps,
 * which read the same K and V. Those arrive through a ring of shared-memory slots (ring.cuh).
 *
 * The arithmetic of a column does not depend on the other columns, on their number or on which warp computes it: dot
 * products run over head_dim in steps of 16; p is rounded to the operands' format after m'; l sums unrounded p: of each
 * sixteen tokens of a tile separately, token g + token g + 8, tile by tile, and at the end of a chunk over g by halves 4
 * apart, 2, 1 (a butterfly), then (0 + 1) + (2 + 3) of the sixteens; o accumulates tokens in steps of 16. A tile that a
 * column does not see leaves it as it is: m' = m, p = 0, and adding 0 keeps all bits but the sign of a zero (states.cuh,
 * finished). At the end of a chunk the state goes into the fold of kernels/plan.h.
 *
 * Registers and shares of the roof: docs/KERNELS.md. */
#include "kernels/cuda/device/ring.cuh"
#include "kernels/cuda/device/states.cuh"

/* The fold's levels: the lower ones in registers, the others a slot a thread in shared memory. */
template <int LEVELS, int FLOATS, int THREADS> struct fold_storage {
    float values[LEVELS ? LEVELS : 1][FLOATS];
    float *shared; /* [level][float][thread] */

    fold_storage(uint8_t *memory) : shared((float *)memory + threadIdx.x) {}
    float &at(int level, int i)
    {
        return level < LEVELS ? values[level < LEVELS ? level : 0][i] : shared[((level - LEVELS) * FLOATS + i) * THREADS];
    }
};

/* A thread's part of the states of its warp's columns: its accumulators of O^T, and m and l of the two columns of each
 * group of eight that they belong to. Until a chunk ends, `sums` of the thread's tokens are in the place of l. */
template <int DIM_TILES, int GROUPS> struct thread_state {
    fragment_c o[DIM_TILES][GROUPS];
    float m[GROUPS][2], l[GROUPS][2], sums[TILE_TOKENS / 16][GROUPS][2];

    void make_empty()
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                m[n][i] = -INFINITE;
                l[n][i] = 0;
#pragma unroll
                for (int t = 0; t < TILE_TOKENS / 16; t++)
                    sums[t][n][i] = 0;
            }
#pragma unroll
            for (int t = 0; t < DIM_TILES; t++)
                o[t][n] = {0, 0, 0, 0};
        }
    }
};

template <int COLUMNS> struct attend {
    using tiles = tile_ring<COLUMNS>;
    static constexpr tile_shape SHAPE = tiles::SHAPE;
    static constexpr int STEPS = SHAPE.padded_dim / 16; /* of a dot product; and tiles of 16 rows of O^T */
    static constexpr int GROUPS = SHAPE.groups;
    static constexpr uint32_t UNIT = SHAPE.unit, UNITS = tiles::UNITS;
    static constexpr int TILE_STEPS = TILE_TOKENS / 16, UNIT_STEPS = UNIT / 16; /* of tokens */
    static_assert(SHAPE.blocks > 0, "the host asks only for what fits");

    using state = thread_state<STEPS, GROUPS>;
    using folds = fold_storage<SHAPE.register_levels, SHAPE.fold_floats, 32 * SHAPE.warps>;
    using scores = fragment_c[TILE_STEPS][GROUPS];
    using probabilities = fragment_b[TILE_STEPS][GROUPS];

    const cuda_attend_pass &pass;
    const cuda_item &item;
    uint32_t kv_head, first_column; /* of this warp */
    tiles ring;
    uint8_t *fold_memory;
    uint32_t keys[GROUPS][2], first[GROUPS][2]; /* what this thread's columns see */
    float slopes[GROUPS][2], scales[GROUPS][2];
    const score_rule rule;
    uint32_t all_from, all_below; /* all of the warp's columns see the keys between */

    /* Shared memory, in this order: the ring's slots, barriers and table entries, folds. */
    attend(const cuda_attend_pass &pass_, const cuda_item &item_, uint32_t kv_head_, uint8_t *shared)
        : pass(pass_), item(item_), kv_head(kv_head_), first_column(threadIdx.x / 32 * GROUPS * 8),
          ring(tile_range(pass_, item_, kv_head_), shared, (item_.columns + GROUPS * 8 - 1) / (GROUPS * 8)),
          fold_memory(shared + SHAPE.folds), rule(pass_, kv_head_)
    {
    }

    static uint32_t lane() { return threadIdx.x % 32; }
    /* the i-th (0, 1) column of group n that this thread's accumulators belong to */
    uint32_t column_of(int n, int i) const { return first_column + n * 8 + lane() % 4 * 2 + i; }

    const cuda_item_row &row_at(uint32_t column) const
    {
        return pass.item_rows[item.first_row + (item.column + column) / GROUP];
    }
    uint32_t row_of(uint32_t column) const { return row_at(column).row; }
    uint32_t head_of(uint32_t column) const { return kv_head * GROUP + (item.column + column) % GROUP; }

    /* Columns that are not there see everything: of zeros, and nobody reads what comes out. */
    void find_keys()
    {
        all_from = 0;
        all_below = UINT32_MAX;
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t column = column_of(n, i);
                bool there = column < item.columns;
                keys[n][i] = there ? row_at(column).keys : UINT32_MAX;
                first[n][i] = there ? plan_first_key(keys[n][i], pass.window) : 0;
                slopes[n][i] = pass.alibi && there ? pass.alibi[head_of(column)] * LOG2_E : 0.0f;
                all_from = max(all_from, first[n][i]);
                all_below = min(all_below, keys[n][i]);
            }
        }
        all_from = __reduce_max_sync(ALL_LANES, all_from);
        all_below = __reduce_min_sync(ALL_LANES, all_below);
    }

    void load_q(fragment_b (&q)[STEPS][GROUPS]) const
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            uint32_t column = first_column + n * 8 + lane() / 4;
            const uint8_t *row = nullptr;
            if (column < item.columns)
                row = pass.q + ((size_t)row_of(column) * (KV_HEADS * GROUP) + head_of(column)) * (HEAD_DIM * 2);
#pragma unroll
            for (int step = 0; step < STEPS; step++)
                q[step][n] = query_fragment(row, step);
        }
    }

    /* q as operands, and what makes scores of their dot products. */
    void scale_q(fragment_b (&q)[STEPS][GROUPS])
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            float unit = 1.0f;
            if constexpr (OPERAND != Q_DTYPE)
                unit = narrow_query(q, n);
#pragma unroll
            for (int i = 0; i < 2; i++)
                scales[n][i] = rule.scale * __shfl_sync(ALL_LANES, unit, (lane() % 4 * 2 + i) * 4);
        }
    }

    /* A column of q from bf16 to f16, in units of a power of two such that the largest element is just below 2^15. Those
     * below 2^-29 of it lose bits; the others are exact. Returns the unit. */
    static float narrow_query(fragment_b (&q)[STEPS][GROUPS], int n)
    {
        uint32_t largest = 0; /* as bits of an f32 */
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++)
                largest = max(largest, max(q[step][n].r[r] << 16 & 0x7fffffffu, q[step][n].r[r] & 0x7fff0000u));
        }
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = max(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        int exponent = max((int)(largest >> 23) - 127, -100) - 14;
        float factor = __int_as_float((127 - exponent) << 23);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                uint32_t both = q[step][n].r[r];
                q[step][n].r[r] =
                    round_operands(__uint_as_float(both << 16) * factor, __uint_as_float(both & 0xffff0000u) * factor);
            }
        }
        return __int_as_float((127 + exponent) << 23);
    }

    /* ---- a tile */

    /* Dot products of a tile; its first unit of K is `unit`. */
    void multiply_keys(uint32_t unit, scores &s, const fragment_b (&q)[STEPS][GROUPS])
    {
#pragma unroll
        for (int u = 0; u < (int)UNITS; u++) {
            ring.acquire(unit + u);
            uint32_t at = ring.address(unit + u);
#pragma unroll
            for (int t = u * UNIT_STEPS; t < (u + 1) * UNIT_STEPS; t++) {
#pragma unroll
                for (int n = 0; n < GROUPS; n++)
                    s[t][n] = {0, 0, 0, 0};
            }
#pragma unroll
            for (int step = 0; step < STEPS; step += LOAD_STEPS) {
#pragma unroll
                for (int t = 0; t < UNIT_STEPS; t++) {
                    fragment_a k[LOAD_STEPS];
                    load_keys<UNIT, SHAPE.kv_row>(k, at, t * 16, step);
#pragma unroll
                    for (int i = 0; i < LOAD_STEPS && step + i < STEPS; i++) {
#pragma unroll
                        for (int n = 0; n < GROUPS; n++)
                            multiply(s[u * UNIT_STEPS + t][n], k[i], q[step + i][n]);
                    }
                }
            }
            ring.release(unit + u);
        }
    }

    /* Scores in place of dot products, -inf where a column does not see the key. */
    void score(scores &s, uint32_t position) const
    {
        bool all = position >= all_from && position + TILE_TOKENS <= all_below;
        each_score(s, position, [&](float &x, int n, int i, uint32_t) { x *= scales[n][i]; });
        if (rule.softcap > 0.0f)
            each_score(s, position, [&](float &x, int, int, uint32_t) { x = rule.capped(x); });
        if (pass.alibi)
            each_score(s, position, [&](float &x, int n, int i, uint32_t j) {
                x = rule.with_slope(x, slopes[n][i], (int)(j + 1 - keys[n][i]));
            });
        if (!all)
            each_score(s, position, [&](float &x, int n, int i, uint32_t j) {
                x = j >= first[n][i] && j < keys[n][i] ? x : -INFINITE;
            });
    }

    template <typename F> void each_score(scores &s, uint32_t position, F change) const
    {
#pragma unroll
        for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
            for (int n = 0; n < GROUPS; n++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    change(s[t][n].r[r], n, r % 2, position + t * 16 + r / 2 * 8 + lane() / 4);
            }
        }
    }

    /* p of the scores; o and l are scaled to the new maximum. */
    void weigh(scores &s, state &x, probabilities &p) const
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float best = x.m[n][i];
#pragma unroll
                for (int t = 0; t < TILE_STEPS; t++)
                    best = fmaxf(best, fmaxf(s[t][n].r[i], s[t][n].r[2 + i]));
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2)
                    best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, apart));
                float of = best == -INFINITE ? 0.0f : best; /* 2^(-inf - 0) = 0 */
                float a = exp2_fast(x.m[n][i] - of);
#pragma unroll
                for (int t = 0; t < TILE_STEPS; t++) {
                    float &low = s[t][n].r[i], &high = s[t][n].r[2 + i];
                    low = exp2_fast(low - of);
                    high = exp2_fast(high - of);
                    x.sums[t][n][i] = x.sums[t][n][i] * a + (low + high);
                }
                x.m[n][i] = best;
#pragma unroll
                for (int t = 0; t < STEPS; t++) {
                    x.o[t][n].r[i] *= a;
                    x.o[t][n].r[2 + i] *= a;
                }
            }
#pragma unroll
            for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
                for (int half = 0; half < 2; half++)
                    p[t][n].r[half] = transpose(round_operands(s[t][n].r[2 * half], s[t][n].r[2 * half + 1]));
            }
        }
    }

    /* The tile's first unit of V is `unit`. */
    void add_values(uint32_t unit, state &x, const probabilities &p)
    {
#pragma unroll
        for (int u = 0; u < (int)UNITS; u++) {
            ring.acquire(unit + u);
            uint32_t at = ring.address(unit + u);
#pragma unroll
            for (int step = 0; step < UNIT_STEPS; step += LOAD_STEPS) {
#pragma unroll
                for (int t = 0; t < STEPS; t++) {
                    fragment_a v[LOAD_STEPS];
                    load_values<UNIT, SHAPE.kv_row>(v, at, t, step);
#pragma unroll
                    for (int i = 0; i < LOAD_STEPS; i++) {
#pragma unroll
                        for (int n = 0; n < GROUPS; n++)
                            multiply(x.o[t][n], v[i], p[u * UNIT_STEPS + step + i][n]);
                    }
                }
            }
            ring.release(unit + u);
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
                for (int t = 0; t < STEPS; t++) {
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
            for (int t = 0; t < STEPS; t++) {
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

    /* The chunk before chunk `end` is complete. */
    static void end_chunk(folds &fold, state &x, uint32_t end)
    {
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
                    for (int apart = 16; apart >= 4; apart /= 2)
                        x.sums[t][n][i] += __shfl_xor_sync(ALL_LANES, x.sums[t][n][i], apart);
                }
                static_assert(TILE_STEPS == 4, "as many sixteens");
                x.l[n][i] = (x.sums[0][n][i] + x.sums[1][n][i]) + (x.sums[2][n][i] + x.sums[3][n][i]);
            }
        }
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
        if (lane() < 4) {
            pass.partial_ml[2 * at] = x.m[n][i];
            pass.partial_ml[2 * at + 1] = x.l[n][i];
        }
        each_output(n, i, x, [&](uint32_t dim, float o) { pass.partial_o[at * HEAD_DIM + dim] = o; });
    }

    void write_output(uint32_t column, int n, int i, const state &x) const
    {
        uint32_t head = head_of(column);
        size_t at = (size_t)row_of(column) * (KV_HEADS * GROUP) + head;
        const finished f(x.m[n][i], x.l[n][i], pass.sinks ? &pass.sinks[head] : nullptr, pass.v_scale[kv_head]);
        if (lane() < 4)
            pass.lse[at] = f.lse;
        each_output(n, i, x, [&](uint32_t dim, float o) { store_element<Q_DTYPE>(pass.o, at * HEAD_DIM + dim, f(o)); });
    }

    /* This thread's elements of o of a column. */
    template <typename F> static void each_output(int n, int i, const state &x, F write)
    {
#pragma unroll
        for (int t = 0; t < STEPS; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t dim = dim_of(t, half);
                if (dim < HEAD_DIM)
                    write(dim, x.o[t][n].r[2 * half + i]);
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
        ring.prepare();
        if (ring.is_sender())
            ring.send_all();
        else if (first_column < item.columns || !ENGINE)
            compute();
        if (pass.beside)
            await_previous(); /* to be complete after it (launch.cuh) */
    }

    void compute()
    {
        fragment_b q[STEPS][GROUPS];
        scores s;
        probabilities p;
        state x;
        folds fold(fold_memory);

        find_keys();
        begin_pass(pass);
        load_q(q);
        ring.begin();
        scale_q(q);
        x.make_empty();
        for (int level = 0; level < FOLD_LEVELS; level++)
            clear_fold(fold, level);

        for (uint32_t unit = 0; unit < ring.end; unit += 2 * UNITS) {
            uint32_t position = ring.position_of(unit);
            multiply_keys(unit, s, q);
            score(s, position);
            weigh(s, x, p);
            add_values(unit + UNITS, x, p);
            if ((position + TILE_TOKENS) % CHUNK_TOKENS == 0 || unit + 2 * UNITS >= ring.end) {
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

#define ATTEND_KERNEL(COLUMNS)                                                                                               \
    extern "C" __global__ void __launch_bounds__(attend<COLUMNS>::SHAPE.threads, attend<COLUMNS>::SHAPE.blocks)              \
        attend_##COLUMNS(const __grid_constant__ cuda_attend_pass pass)                                                      \
    {                                                                                                                        \
        extern __shared__ __align__(TILE_ALIGNMENT) uint8_t shared[];                                                        \
        const cuda_item item = pass.items[blockIdx.x / KV_HEADS];                                                            \
        attend<COLUMNS>(pass, item, blockIdx.x % KV_HEADS, shared).run();                                                    \
    }

ATTEND_KERNEL(8)
#if COLUMNS_MAX >= 16
ATTEND_KERNEL(16)
#endif
#if COLUMNS_MAX >= 32
ATTEND_KERNEL(32)
#endif
#if COLUMNS_MAX >= 64
ATTEND_KERNEL(64)
#endif
