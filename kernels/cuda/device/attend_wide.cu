/* SPDX-License-Identifier: Apache-2.0 */
/* attend_wide.cu - work tiles of many packed columns (more than 32) by warpgroups, on Hopper, for K and V in
 * q's format: the arithmetic of attend_mma.cu to the bit, with K and V read from shared memory once for 64
 * columns.
 *
 * A warpgroup takes 64 packed columns:
 *
 *   S [64 x 64 tokens] = Q K^T
 *   O [64 x head_dim] = O 2^(m - m') + P V
 *
 * The columns are M here. A thread has two of them, and the four threads of a quad their tokens: maxima need
 * two exchanges, and p goes from accumulators into operands as it lies in registers; q is kept there too.
 * Which role an operand has, and in which instruction, does not change a bit of the products
 * (tests/conformance compares every work tile with its queries computed one by one).
 *
 * The products overlap within a warpgroup, as in FlashAttention-3: Q K^T of the next tile and P V of this one
 * are issued together, and the softmax of the next tile runs while P V of this one goes on.
 *
 * A thread block has 1 or 2 consumer warpgroups, which read the same K and V, and the producer's: one of its
 * warps loads them by TMA, or all four by cp.async, and its registers go to the consumers.
 * FlashAttention-3's ping-pong of two warpgroups was tried: no difference (docs/decisions/0032).
 *
 * A work tile of 64 columns lies within a run: one level of the fold is enough. One of 128 may be a whole
 * context of up to a span: chunks and runs are folded in shared memory, segments in global memory, which is
 * read and written once in 64 tiles (take_slot() in work_tile.cuh). */
#include "kernels/cuda/device/cluster_combine.cuh"
#include "kernels/cuda/device/folds.cuh"
#include "kernels/cuda/device/producer.cuh"
#include "kernels/cuda/device/online_softmax.cuh"
#include "kernels/cuda/device/wgmma.cuh"

/* A thread's part of S, of its warp's 16 columns. */
struct wide_scores {
    static constexpr int SUMS = 2, FIRST = 1, END = 4;
    wgmma_accumulators<TILE_TOKENS> s;

    float &operator()(int j, int i, int e)
    {
        return s.r[j * 4 + i * 2 + e];
    }
    static uint32_t column(int i)
    {
        return threadIdx.x / 32 * 16 + lane() / 4 + i * 8;
    }
    static uint32_t token(int j, int e)
    {
        return j * 8 + lane() % 4 * 2 + e;
    }
};

/* m of a chunk as far as its softmax is computed, and the sums of the thread's even and odd tokens. */
struct wide_sums {
    float m[2], sums[2][2];

    float &sum(int i, int e)
    {
        return sums[i][e];
    }
    void init()
    {
        for (int i = 0; i < 2; i++) {
            m[i] = -INFINITE;
            sums[i][0] = sums[i][1] = 0;
        }
    }
};

/* o of the lower levels in shared memory, their m and l in registers; the level above them, if there is one,
 * is in the workspace, which `owner` has. */
template <int SHARED_LEVELS, int VALUES, int THREADS, class OWNER> struct wide_fold_storage {
    static constexpr bool O_IN_MEMORY = true;
    float4 ml[SHARED_LEVELS];
    float4 *shared; /* [level][vector][thread] */
    const OWNER &owner;

    wide_fold_storage(uint8_t *memory, const OWNER &owner_)
        : shared((float4 *)memory + threadIdx.x), owner(owner_)
    {
    }
    float4 &at(int level, int i)
    {
        if (level >= SHARED_LEVELS)
            return owner.workspace()[i * THREADS];
        return i == 0 ? ml[level] : shared[(level * (VALUES / 4) + i - 1) * THREADS];
    }
};

template <int COLUMNS> struct wide_tile {
    static constexpr tile_shape SHAPE = tile_wide_shape_of(HEAD_DIM, COLUMNS, SM_BYTES, TMA);
    static constexpr uint32_t ATOM_ROWS = SHAPE.stage_tokens, PRODUCERS = TMA ? 1 : TILE_GROUP_WARPS,
                              COPIES_AT_ONCE = 2; /* the producer has few registers */
    static constexpr bool HAS_WORKSPACE = SHAPE.fold_levels > SHAPE.shared_levels;
    static uint32_t consumers(const cuda_work_tile &)
    {
        return SHAPE.warps;
    }
    /* More than a segment is folded by way of the workspace. */
    static bool takes_workspace(const cuda_work_tile &work_tile)
    {
        constexpr uint32_t SEGMENT = SEGMENT_CHUNKS * CHUNK_TOKENS;
        return work_tile.seen.end > work_tile.seen.first &&
               work_tile.seen.first / SEGMENT != (work_tile.seen.end - 1) / SEGMENT;
    }
};

template <int COLUMNS> struct attend_wide : combined_epilogue {
    using tile = wide_tile<COLUMNS>;
    using pipeline = kv_pipeline<tile>;
    static constexpr tile_shape SHAPE = pipeline::SHAPE;
    static constexpr int STEPS = SHAPE.padded_dim / 16, ATOMS = SHAPE.kv_row / SWIZZLE_BYTES,
                         TILE_STEPS = TILE_TOKENS / 16, ATOM_STEPS = 4 /* of 16 elements */;
    /* Registers of a thread. A register file has 512 for each lane of its warps. All warpgroups start with an
     * equal share, a multiple of 8; setmaxnreg moves what the producer's does not need to the consumers. */
    static constexpr int CONSUMER_WARPGROUPS = COLUMNS / TILE_GROUP_COLUMNS,
                         FIRST_REGISTERS = 512 / SHAPE.blocks / (CONSUMER_WARPGROUPS + 1) / 8 * 8,
                         REGISTERS = CONSUMER_WARPGROUPS > 1 ? 232 : 224,
                         PRODUCER_REGISTERS =
                             FIRST_REGISTERS * (CONSUMER_WARPGROUPS + 1) - CONSUMER_WARPGROUPS * REGISTERS;
    /* of the largest thread block, of as many splits as may be one */
    static constexpr uint32_t CTA_SPLITS_MAX = tile_cta_splits_max(&SHAPE),
                              THREADS = SHAPE.threads * CTA_SPLITS_MAX,
                              BLOCKS = SHAPE.blocks / CTA_SPLITS_MAX;
    static_assert(SHAPE.stages >= TILE_STAGES_MIN, "there is room on sm_90");
    static_assert(!tile::HAS_WORKSPACE || 2 * SHAPE.bytes > SM_BYTES, "a slot for each that runs at a time");
    /* Compile a loop without masks too. For other head_dims ptxas (13.0) would serialise the products of
     * both. */
    static constexpr bool HAS_PLAIN = HEAD_DIM % 64 == 0;

    using state = columns_state<wgmma_accumulators<64 * ATOMS>, 1, 2>;
    using folds =
        chunk_fold<state,
                   wide_fold_storage<SHAPE.shared_levels, state::VALUES, 32 * SHAPE.warps, attend_wide>,
                   SHAPE.fold_levels>;
    using query_fragments = uint32_t[STEPS][4];
    using scores = wide_scores;
    using pipeline_at = typename pipeline::state;
    using probabilities = uint32_t[TILE_STEPS][4];

    /* Shared memory, in this order: the ring's stages, barriers and table entries, the work tile, which is
     * there, and folds. */
    pipeline ring;
    const score_rule rule{pass, memory.k_scale};

    attend_wide(const cuda_attend_pass &pass_, work_tile_memory &memory_, uint32_t kv_head_, uint8_t *shared)
        : combined_epilogue(pass_, memory_, kv_head_), ring(pass_, work_tile, kv_head_, shared)
    {
    }

    seen_keys seen() const
    {
        return seen_keys(*this, {scores::column(0), scores::column(1)});
    }

    void load_q(query_fragments &q) const
    {
        for (int i = 0; i < 2; i++) {
            const uint32_t *row = (const uint32_t *)query(scores::column(i));
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                for (int half = 0; half < 2; half++) {
                    uint32_t at = step * 8 + half * 4 + lane() % 4;
                    q[step][half * 2 + i] = row && at < HEAD_DIM / 2 ? row[at] : 0;
                }
            }
        }
    }

    /* ---- Q K^T and P V of a tile */

    void issue_qk(const pipeline_at &at, scores &s, const query_fragments &q)
    {
        uint64_t k = wgmma_operand(ring.address(at));
        wgmma_hold(s.s);
        ring.fence_for_wgmma();
        wgmma_begin();
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            wgmma_multiply<false>(s.s, q[step],
                                  k + step / ATOM_STEPS * (WGMMA_ATOM_BYTES / 16) +
                                      step % ATOM_STEPS * WGMMA_STEP_ALONG,
                                  step > 0);
        wgmma_commit();
    }

    /* Sums of values that were begun later may go on: `later` of them, 0 or 1. */
    template <int later> void wait_qk(const pipeline_at &at, scores &s)
    {
        wgmma_wait<later>();
        wgmma_hold(s.s);
        ring.release(at);
    }

    /* adds: to what o is, which otherwise is nothing yet. */
    void issue_pv(const pipeline_at &at, state &x, const probabilities &p, bool adds)
    {
        uint64_t v = wgmma_operand(ring.address(at));
        wgmma_hold(x.o[0]);
        ring.fence_for_wgmma();
        wgmma_begin();
        for (int t = 0; t < TILE_STEPS; t++)
            wgmma_multiply<true>(x.o[0], p[t], v + t * WGMMA_STEP_ROWS, adds || t > 0);
        wgmma_commit();
    }

    void wait_pv(const pipeline_at &at, state &x)
    {
        wgmma_wait<0>();
        wgmma_hold(x.o[0]);
        ring.release(at);
    }

    /* ---- softmax */

    /* p in place of the dot products of the tile at `position`. Returns whether o is to be multiplied by
     * `rescale`. */
    template <bool PLAIN>
    bool softmax(scores &s, uint32_t position, const common_keys &common, wide_sums &sums,
                 float (&rescale)[2]) const
    {
        const float scale = fmaxf(rule.scale, SMALLEST_SCALE);
        return online_softmax<PLAIN>(
            s, *this, rule, {scale, scale}, common, position, [&] { return seen(); }, sums, rescale);
    }

    static void round(scores &s, probabilities &p)
    {
        for (int t = 0; t < TILE_STEPS; t++) {
            for (int r = 0; r < 4; r++)
                p[t][r] = round_operands(s(2 * t + r / 2, r % 2, 0), s(2 * t + r / 2, r % 2, 1));
        }
    }

    /* m and l of a chunk, of all tokens, in the order of attend_mma.cu: its g is 2 c + e here. `from`
     * becomes empty. */
    static void reduce_l(wide_sums &from, state &to)
    {
        for (int i = 0; i < 2; i++) {
            to.m[i] = from.m[i];
            for (int apart = 2; apart >= 1; apart /= 2) {
                from.sums[i][0] += __shfl_xor_sync(ALL_LANES, from.sums[i][0], apart);
                from.sums[i][1] += __shfl_xor_sync(ALL_LANES, from.sums[i][1], apart);
            }
            to.l[i] = from.sums[i][0] + from.sums[i][1];
        }
        from.init();
    }

    /* ---- epilogue */

    void write_states(const state &x) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            write(scores::column(i), x.m[i], x.l[i], lane() % 4 == 0, ring.stages, [&](auto store) {
#pragma unroll
                for (int v = 2 * i; v < state::VALUES; v += 4) {
                    uint32_t dim = v / 4 * 8 + lane() % 4 * 2;
                    if (dim < HEAD_DIM)
                        store(dim, x.o[0].r[v], x.o[0].r[v + 1]);
                }
            });
    }

    /* ---- entry: producer or consumer */

    static void run(const cuda_attend_pass &pass, uint8_t *shared)
    {
        const tile_coord coord(pass);
        shared += tile_coord::cta_split() * SHAPE.bytes;
        work_tile_memory &memory = *(work_tile_memory *)(shared + SHAPE.work_tile);
        if (threadIdx.x < 32 * SHAPE.warps) {
            pipeline::wait_work_tile();
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
            attend_wide(pass, memory, coord.kv_head, shared).compute();
        } else {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
            if (pipeline::is_producer())
                produce<tile>(pass, coord, memory, shared);
        }
        if (pass.concurrent && blockIdx.x == 0)
            await_previous(); /* to be complete after it (launch.cuh) */
    }

    /* ---- the loop over a work tile's tiles */

    /* What is carried from tile to tile: p of the tile at `position`, where its V is, and where K of the next
     * one is. */
    struct progress {
        scores s;
        probabilities p;
        wide_sums sums;
        pipeline_at keys, values;
        uint32_t position;
        bool have_arrived; /* K of the next tile, and V of this one */

        progress(uint32_t first) : keys(0), values(1), position(first), have_arrived(false)
        {
            sums.init();
        }
    };

    /* Whether O has tiles of the chunk already; the first one overwrites it. */
    bool continues_chunk(uint32_t position) const
    {
        return position % CHUNK_TOKENS != 0 && position != ring.position_of(0);
    }

    /* Q K^T and softmax of the first tile. */
    void prologue(progress &t, const query_fragments &q, const common_keys &common)
    {
        float rescale[2];
        ring.wait_full(t.keys);
        issue_qk(t.keys, t.s, q);
        wait_qk<0>(t.keys, t.s);
        softmax<false>(t.s, t.position, common, t.sums, rescale);
        round(t.s, t.p);
        t.keys.advance(2);
    }

    /* Go on until p of the tile at `end` is there. An iteration: issue Q K^T of the next tile, issue P V of
     * this one, wait for Q K^T, softmax of the next tile, wait for P V, rescale O or end the chunk, round p.
     * PLAIN: all columns see every tile, and there is no alibi: without the code for masks the loop is
     * faster. */
    template <bool PLAIN>
    void mainloop(progress &t, state &x, folds &fold, const query_fragments &q, const common_keys &common,
                  uint32_t end)
    {
        while (t.position < end) {
            float rescale[2];
            if (!t.have_arrived) {
                ring.wait_full(t.keys);
                ring.wait_full(t.values);
            }
            if (!PLAIN)
                ring.clear_unseen_values(t.values, t.position);
            const bool continues = continues_chunk(t.position);
            t.position += TILE_TOKENS;
            const bool ends_chunk = t.position % CHUNK_TOKENS == 0;
            issue_qk(t.keys, t.s, q);
            issue_pv(t.values, x, t.p, continues);
            wait_qk<1>(t.keys, t.s);
            if (ends_chunk)
                reduce_l(t.sums, x);
            bool rescales_o = softmax<PLAIN>(t.s, t.position, common, t.sums, rescale);
            wgmma_hold(t.s.s);
            pipeline_at next_keys = t.keys, next_values = t.values;
            next_keys.advance(2);
            next_values.advance(2);
            /* asked early, since it takes a while to know */
            t.have_arrived =
                __all_sync(ALL_LANES, ring.has_arrived(next_keys) & ring.has_arrived(next_values));
            /* on both paths: the assembler would move a common wait ahead of the softmax, which goes on
             * beside */
            if (ends_chunk) {
                wait_pv(t.values, x);
                fold.add_chunk(x, t.position / CHUNK_TOKENS);
            } else {
                wait_pv(t.values, x);
                if (rescales_o)
                    x.rescale_o(rescale);
            }
            t.keys = next_keys;
            t.values = next_values;
            round(t.s, t.p);
        }
    }

    /* P V of the last tile, and the end of the fold. */
    void tail(progress &t, state &x, folds &fold)
    {
        ring.wait_full(t.values);
        ring.clear_unseen_values(t.values, t.position);
        issue_pv(t.values, x, t.p, continues_chunk(t.position));
        wait_pv(t.values, x);
        reduce_l(t.sums, x);
        fold.finish(x);
    }

    void take_tiles(state &x, const query_fragments &q, const common_keys &common)
    {
        const uint32_t plain = pass.alibi == nullptr ? work_tile.seen_by_all : 0;
        progress t(ring.position_of(0));
        const uint32_t last = t.position + (ring.fills / 2 - 1) * TILE_TOKENS;
        /* its Q K^T is of the next tile, so the plain loop ends one tile before what all see ends */
        const uint32_t last_plain = max(plain / TILE_TOKENS, 1u) * TILE_TOKENS - TILE_TOKENS;
        folds fold(ring.stages + SHAPE.folds, *this);
        prologue(t, q, common);
        if (HAS_PLAIN)
            mainloop<true>(t, x, fold, q, common, min(last, last_plain));
        mainloop<false>(t, x, fold, q, common, last);
        tail(t, x, fold);
    }

    /* This thread's part of the slot that the work tile has, if it has one. */
    float4 *workspace() const
    {
        return (float4 *)(pass.fold_workspace + (size_t)memory.slot * tile_workspace_bytes(&SHAPE)) +
               threadIdx.x;
    }
    void release_workspace() const
    {
        if (!tile::HAS_WORKSPACE || memory.slot == NO_SLOT)
            return;
        __threadfence();
        ring.sync(); /* all have read it */
        if (threadIdx.x == 0)
            free_slot(pass, memory.slot);
    }

    void compute()
    {
        query_fragments q;
        state x;

        /* masks; then, behind the grid ahead of this one, q */
        keep_queries(threadIdx.x / 32 * 16, 16);
        const common_keys common(seen());
        begin_pass(pass);
        load_q(q);

        /* all tiles */
        x.init();
        if (ring.fills > 0)
            take_tiles(x, q, common);
        release_workspace();

        /* epilogue; the state of a split goes into the ring's stages, so wait until all consumers have read
         * them */
        if (is_in_split_group())
            ring.sync();
        write_states(x);
        if (is_in_split_group())
            combine_splits(ring.stages, SHAPE.bytes, ring.consumers * 32);
    }
};

/* One compilation a kernel: KERNEL is attend_wide_64 and KERNEL_COLUMNS 64, or the same with 128. */
#ifdef KERNEL /* tests/emulation has its own */
extern "C" __global__ void __launch_bounds__(attend_wide<KERNEL_COLUMNS>::THREADS,
                                             attend_wide<KERNEL_COLUMNS>::BLOCKS)
    KERNEL(const __grid_constant__ cuda_attend_pass pass)
{
    extern __shared__ __align__(TILE_ALIGNMENT) uint8_t shared[];
    attend_wide<KERNEL_COLUMNS>::run(pass, shared);
}
#endif
