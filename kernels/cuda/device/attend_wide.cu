/* attend_wide.cu - items of many packed columns (more than 32) by warpgroups, on Hopper, for K and V in q's format: the
 * arithmetic of attend_mma.cu to the bit, with K and V read from shared memory once for 64 columns.
 *
 * A warpgroup takes 64 packed columns:
 *
 *   S [64 x 64 tokens] = Q K^T
 *   O [64 x head_dim] = O 2^(m - m') + P V
 *
 * Columns are the rows of the products here, a thread has two of them and the four threads of a quad their tokens: maxima need two
 * exchanges, and p goes from accumulators into operands as it lies in registers. Which role an operand has, and in which
 * instruction, does not change a bit of the products (tests/conformance compares every item with its rows computed one by one).
 *
 * A thread block has 1 or 2 warpgroups, which read the same K and V, and one more, of which a warp sends for them and which leaves
 * its registers to the others. While one multiplies another
 * one weighs. An item lies within a segment, so that two levels of the fold are enough: the run in registers, the segment in shared
 * memory. */
#include "kernels/cuda/device/columns.cuh"
#include "kernels/cuda/device/folds.cuh"
#include "kernels/cuda/device/ring.cuh"
#include "kernels/cuda/device/wgmma.cuh"

/* A thread's part of the states of its warpgroup's columns. `sums` as in attend_mma.cu: of the thread's tokens of a tile's
 * sixteens, for each column. */
template <int SEGMENTS> struct wide_state {
    static constexpr int VALUES = SEGMENTS * WGMMA_VALUES;

    float o[SEGMENTS][WGMMA_VALUES];
    float m[2], l[2], sums[TILE_TOKENS / 16][2][2];

    float &value(int i) { return o[i / WGMMA_VALUES][i % WGMMA_VALUES]; }
    static constexpr int column_of(int i) { return i / 2 % 2; }

    void make_empty()
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            m[i] = -INFINITE;
            l[i] = 0;
#pragma unroll
            for (int t = 0; t < TILE_TOKENS / 16; t++)
                sums[t][i][0] = sums[t][i][1] = 0;
        }
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            value(i) = 0;
    }
};

/* The run, and m and l of the segment, in registers; o of the segment a slot a thread in shared memory. */
template <int VALUES, int THREADS> struct wide_fold_storage {
    float run[VALUES + 4], segment[4];
    float *shared; /* [value][thread] */

    wide_fold_storage(uint8_t *memory) : shared((float *)memory + threadIdx.x) {}
    float &at(int level, int i) { return level == 0 ? run[i] : i < 4 ? segment[i] : shared[(i - 4) * THREADS]; }
};

template <int COLUMNS> struct wide_tile {
    static constexpr tile_shape SHAPE = tile_wide_shape_of(HEAD_DIM, COLUMNS, SM_BYTES);
    static constexpr uint32_t TOGETHER = SHAPE.unit;
};

template <int COLUMNS> struct attend_wide : item_columns {
    using tiles = tile_ring<wide_tile<COLUMNS>>;
    static constexpr tile_shape SHAPE = tiles::SHAPE;
    static constexpr int STEPS = SHAPE.padded_dim / 16, SEGMENTS = SHAPE.kv_row / TILE_SEGMENT, TILE_STEPS = TILE_TOKENS / 16,
                         SEGMENT_STEPS = 4; /* of 16 elements */
    /* of a thread; all have as many at first (whole eights of 512 a lane of those that share a file), and hand them over */
    static constexpr int GROUPS = COLUMNS / TILE_GROUP_COLUMNS, FIRST_REGISTERS = 512 / SHAPE.blocks / (GROUPS + 1) / 8 * 8,
                         REGISTERS = COLUMNS > 64 || SEGMENTS > 1 ? 232 : 224,
                         SENDER_REGISTERS = FIRST_REGISTERS * (GROUPS + 1) - GROUPS * REGISTERS;
    static_assert(SHAPE.blocks > 0 && SHAPE.unit == TILE_TOKENS, "the host asks only for what fits");

    using state = wide_state<SEGMENTS>;
    using folds = chunk_fold<state, wide_fold_storage<state::VALUES, 32 * SHAPE.warps>, 2>;
    using scores = float[WGMMA_VALUES];
    using probabilities = uint32_t[TILE_STEPS][4];

    uint32_t group; /* of warps */
    uint8_t *queries, *fold_memory;
    tiles ring;
    seen_keys seen;
    const score_rule rule;

    /* Shared memory, in this order: the ring's slots, q, barriers and table entries, folds. */
    attend_wide(const cuda_attend_pass &pass_, const cuda_item &item_, uint32_t kv_head_, uint8_t *shared)
        : item_columns(pass_, item_, kv_head_), group(threadIdx.x / 128),
          queries(shared + SHAPE.queries + group * SEGMENTS * WGMMA_SEGMENT), fold_memory(shared + SHAPE.folds),
          ring(tile_range(pass_, item_, kv_head_), shared, SHAPE.warps), rule(pass_, kv_head_)
    {
    }

    static uint32_t lane() { return threadIdx.x % 32; }
    /* the i-th (0, 1) column of this thread */
    uint32_t column_of(int i) const { return threadIdx.x / 32 * 16 + lane() / 4 + i * 8; }

    /* q of the warpgroup's columns into shared memory, as the copy engine would bring it; zeros where there is none. */
    void load_q() const
    {
        constexpr uint32_t pieces = TILE_SEGMENT / 16;
#pragma unroll
        for (uint32_t i = 0; i < SEGMENTS * WGMMA_SEGMENT / 16 / 128; i++) {
            uint32_t at = i * 128 + threadIdx.x % 128, piece = at % pieces, row = at / pieces % 64, segment = at / pieces / 64;
            const uint8_t *q = query(group * 64 + row);
            uint32_t byte = segment * TILE_SEGMENT + piece * 16;
            uint4 x = {0, 0, 0, 0};
            if (q && byte < HEAD_DIM * 2)
                x = *(const uint4 *)(q + byte);
            *(uint4 *)(queries + segment * WGMMA_SEGMENT + row * TILE_SEGMENT + (piece ^ row % 8) * 16) = x;
        }
        fence_engine(); /* products read it as the engine does */
        asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
    }

    void multiply_keys(uint32_t unit, scores &s)
    {
        ring.acquire(unit);
        uint64_t q = wgmma_operand(shared_address(queries)), k = wgmma_operand(ring.address(unit));
        wgmma_hold(s);
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            uint32_t at = step / SEGMENT_STEPS * (WGMMA_SEGMENT / 16) + step % SEGMENT_STEPS * WGMMA_STEP_ALONG;
            wgmma_rows(s, q + at, k + at, step > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_hold(s);
        ring.release(unit);
    }

    void score(scores &s, uint32_t position) const
    {
        seen.score(*this, {column_of(0), column_of(1)}, rule, {rule.scale, rule.scale}, position, [&](auto change) {
#pragma unroll
            for (int j = 0; j < WGMMA_VALUES / 4; j++) {
#pragma unroll
                for (int r = 0; r < 4; r++)
                    change(s[j * 4 + r], r / 2, position + j * 8 + lane() % 4 * 2 + r % 2);
            }
        });
    }

    /* p of the scores; o and l are scaled to the new maximum. */
    void weigh(scores &s, state &x, probabilities &p) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float best = x.m[i];
#pragma unroll
            for (int j = 0; j < WGMMA_VALUES / 4; j++)
                best = fmaxf(best, fmaxf(s[j * 4 + i * 2], s[j * 4 + i * 2 + 1]));
            best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, 1));
            best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, 2));
            float of = best == -INFINITE ? 0.0f : best; /* 2^(-inf - 0) = 0 */
            float a = exp2_fast(x.m[i] - of);
#pragma unroll
            for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &low = s[t * 8 + i * 2 + e], &high = s[t * 8 + 4 + i * 2 + e];
                    low = exp2_fast(low - of);
                    high = exp2_fast(high - of);
                    x.sums[t][i][e] = x.sums[t][i][e] * a + (low + high);
                }
            }
            x.m[i] = best;
#pragma unroll
            for (int v = 0; v < state::VALUES; v++) {
                if (state::column_of(v) == i)
                    x.value(v) *= a;
            }
        }
#pragma unroll
        for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
            for (int r = 0; r < 4; r++)
                p[t][r] = round_operands(s[t * 8 + r * 2], s[t * 8 + r * 2 + 1]);
        }
    }

    void add_values(uint32_t unit, state &x, const probabilities &p)
    {
        ring.acquire(unit);
        uint64_t v = wgmma_operand(ring.address(unit));
#pragma unroll
        for (int segment = 0; segment < SEGMENTS; segment++)
            wgmma_hold(x.o[segment]);
        wgmma_begin();
#pragma unroll
        for (int t = 0; t < TILE_STEPS; t++) {
#pragma unroll
            for (int segment = 0; segment < SEGMENTS; segment++)
                wgmma_fragment(x.o[segment], p[t], v + segment * (WGMMA_SEGMENT / 16) + t * WGMMA_STEP_ROWS);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int segment = 0; segment < SEGMENTS; segment++)
            wgmma_hold(x.o[segment]);
        ring.release(unit);
    }

    /* l of a chunk, in the order of attend_mma.cu: tokens g of a sixteen are 2 c + e here. */
    static void sum_up(state &x)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sixteen[TILE_STEPS];
#pragma unroll
            for (int t = 0; t < TILE_STEPS; t++) {
                float(&sums)[2] = x.sums[t][i];
#pragma unroll
                for (int apart = 2; apart >= 1; apart /= 2) {
                    sums[0] += __shfl_xor_sync(ALL_LANES, sums[0], apart);
                    sums[1] += __shfl_xor_sync(ALL_LANES, sums[1], apart);
                }
                sixteen[t] = sums[0] + sums[1];
            }
            static_assert(TILE_STEPS == 4, "as many sixteens");
            x.l[i] = (sixteen[0] + sixteen[1]) + (sixteen[2] + sixteen[3]);
        }
    }

    void write_states(const state &x) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            write(column_of(i), x.m[i], x.l[i], lane() % 4 == 0, [&](auto write) {
#pragma unroll
                for (int segment = 0; segment < SEGMENTS; segment++) {
#pragma unroll
                    for (int v = 0; v < WGMMA_VALUES; v++) {
                        uint32_t dim = segment * 64 + v / 4 * 8 + lane() % 4 * 2 + v % 2;
                        if (v / 2 % 2 == i && dim < HEAD_DIM)
                            write(dim, x.o[segment][v]);
                    }
                }
            });
    }

    void run()
    {
        ring.prepare();
        if (threadIdx.x < 32 * SHAPE.warps) {
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
            compute();
        } else {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(SENDER_REGISTERS));
            if (ring.is_sender())
                ring.send_all();
        }
        if (pass.beside)
            await_previous(); /* to be complete after it (launch.cuh) */
    }

    void compute()
    {
        scores s = {};
        probabilities p;
        state x;

        seen.find(*this, {column_of(0), column_of(1)});
        begin_pass(pass);
        load_q();
        x.make_empty();
        folds fold(fold_memory);
        for (uint32_t unit = 0; unit < ring.end; unit += 2) {
            uint32_t position = ring.position_of(unit);
            multiply_keys(unit, s);
            score(s, position);
            weigh(s, x, p);
            add_values(unit + 1, x, p);
            if ((position + TILE_TOKENS) % CHUNK_TOKENS == 0 || unit + 2 >= ring.end) {
                sum_up(x);
                fold.add_chunk(x, position / CHUNK_TOKENS + 1);
                x.make_empty();
            }
        }
        fold.finish(x);
        write_states(x);
    }
};

#define ATTEND_WIDE_KERNEL(COLUMNS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(attend_wide<COLUMNS>::SHAPE.threads, attend_wide<COLUMNS>::SHAPE.blocks)     \
        attend_wide_##COLUMNS(const __grid_constant__ cuda_attend_pass pass)                                                  \
    {                                                                                                                         \
        extern __shared__ __align__(TILE_ALIGNMENT) uint8_t shared[];                                                         \
        const cuda_item item = pass.items[blockIdx.x / KV_HEADS];                                                             \
        attend_wide<COLUMNS>(pass, item, blockIdx.x % KV_HEADS, shared).run();                                                \
    }

ATTEND_WIDE_KERNEL(64)
ATTEND_WIDE_KERNEL(128)
