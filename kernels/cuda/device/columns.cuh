/* columns.cuh - the packed columns of an item: which row and head each of them is, what it sees, and what
 * it writes: its output, a partial state for merge.cu, or, if it is one of several splits that have a
 * row's chunks among them, a state in shared memory, out of which they make the output together. */
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/states.cuh"
#include "kernels/cuda/device/tile.h"

/* What an item's columns need of global memory, in shared memory since the start: a load beside the tiles
 * takes 0.3 us (H200), and when an item ends nothing hides that. */
struct item_memory {
    cuda_item item;
    float k_scale, v_scale;          /* of the KV head */
    uint32_t rows[CUDA_COLUMNS_MAX]; /* of its columns; there is room for as many as the kernel takes */
};
static_assert(sizeof(item_memory) <= TILE_ITEM_BYTES + 4 * CUDA_COLUMNS_MAX, "the room that tile.h leaves");

/* Which item of which KV head is taken here. Its 2^split_bits splits have the same columns and each some
 * of the chunks, in order; 2^cta_bits of them are a thread block (threadIdx.y), and as many thread
 * blocks as that takes a cluster. */
struct tile_coord {
    uint32_t item, kv_head;

    tile_coord(const cuda_attend_pass &pass)
    {
        const uint32_t at = blockIdx.x >> (pass.split_bits - pass.cta_bits);
        item = (at / KV_HEADS << pass.split_bits) + split(pass);
        kv_head = at % KV_HEADS;
    }
    static uint32_t split(const cuda_attend_pass &pass)
    {
        return ((blockIdx.x << pass.cta_bits) + of_block()) & (1u << pass.split_bits) - 1;
    }
    /* Which of the thread block's splits; said so that the compiler sees that it is the same for a whole
     * warp. */
    static uint32_t of_block()
    {
        return __shfl_sync(ALL_LANES, threadIdx.y, 0);
    }

    /* By a warp: bring the item, which is there after a barrier. */
    void bring(const cuda_attend_pass &pass, item_memory &to) const
    {
        constexpr uint32_t WORDS = sizeof(cuda_item) / sizeof(uint32_t);
        static_assert(WORDS + 2 <= 32, "a lane each");
        const uint32_t lane = threadIdx.x % 32;
        if (lane < WORDS)
            ((uint32_t *)&to.item)[lane] = ((const uint32_t *)&pass.items[item])[lane];
        else if (lane < WORDS + 2)
            (lane == WORDS ? to.k_scale : to.v_scale) =
                (lane == WORDS ? pass.k_scale : pass.v_scale)[kv_head];
    }
};

/* Write o of a column: an element, or two from an even dim on. */
struct output_writer {
    uint8_t *o;
    size_t first;
    float factor;

    float f(float x) const
    {
        return epilogue::scaled(x, factor);
    }
    void operator()(uint32_t dim, float x) const
    {
        store_result<Q_DTYPE>(o, first + dim, f(x));
    }
    void operator()(uint32_t dim, float x, float next) const
    {
        store_results<Q_DTYPE>(o, first + dim, f(x), f(next));
    }
};

struct partial_writer {
    float *o;

    void operator()(uint32_t dim, float x) const
    {
        store_result<DTYPE_F32>(o, dim, x);
    }
    void operator()(uint32_t dim, float x, float next) const
    {
        store_results<DTYPE_F32>(o, dim, x, next);
    }
};

struct item_columns {
    const cuda_attend_pass &pass;
    item_memory &memory;
    const cuda_item &item;
    uint32_t kv_head;

    item_columns(const cuda_attend_pass &pass_, item_memory &memory_, uint32_t kv_head_)
        : pass(pass_), memory(memory_), item(memory_.item), kv_head(kv_head_)
    {
    }

    const cuda_item_row &row_at(uint32_t column) const
    {
        return pass.item_rows[item.first_row + (item.column + column) / GROUP];
    }
    uint32_t head_of(uint32_t column) const
    {
        return kv_head * GROUP + (item.column + column) % GROUP;
    }
    /* By a warp: keep the rows of `n` columns from `first` on, up to 32. */
    void keep_rows(uint32_t first, uint32_t n) const
    {
        uint32_t column = first + threadIdx.x % 32;
        if (column < min(first + n, item.columns))
            memory.rows[column] = row_at(column).row;
        __syncwarp();
    }
    /* its place in [rows][query_heads], of q, o and lse; its row is kept */
    size_t query_of(uint32_t column) const
    {
        return (size_t)memory.rows[column] * (KV_HEADS * GROUP) + head_of(column);
    }
    /* its q in 16 bits, NULL if it is not there */
    const uint8_t *query(uint32_t column) const
    {
        return column < item.columns ? pass.q + query_of(column) * (HEAD_DIM * 2) : nullptr;
    }

    /* of a column's state in shared memory: o, then m and l */
    static constexpr uint32_t STATE_FLOATS = tile_state_floats(HEAD_DIM);

    bool is_shared() const
    {
        return TENSOR_CORES && pass.split_bits > 0;
    }
    bool is_whole() const
    {
        return !is_shared() && item.partial == PLAN_NO_PARTIAL;
    }

    /* What becomes of a column's state, which is the row's if the item is_whole(); otherwise `states` is
     * where it goes if it is shared. each(write) calls write for this thread's elements of o; `one`: of
     * the threads that have the column, this one writes m and l, or lse. */
    template <typename F>
    void write(uint32_t column, float m, float l, bool one, uint8_t *states, F each) const
    {
        if (!is_whole())
            write_state(column, m, l, one, states, each);
        else if (column < item.columns)
            each(output_writer{pass.o, query_of(column) * HEAD_DIM, finish(column, m, l, one).factor});
    }

    /* Writes lse too. */
    epilogue finish(uint32_t column, float m, float l, bool one) const
    {
        const epilogue f(m, l, pass.sinks ? &pass.sinks[head_of(column)] : nullptr, memory.v_scale);
        if (one)
            pass.lse[query_of(column)] = f.lse;
        return f;
    }

    template <typename F>
    void write_state(uint32_t column, float m, float l, bool one, uint8_t *states, F each) const
    {
        if (column >= item.columns)
            return;
        if (is_shared()) {
            float *state = (float *)states + column * STATE_FLOATS;
            if (one) {
                state[HEAD_DIM] = m;
                state[HEAD_DIM + 1] = l;
            }
            each(partial_writer{state});
        } else {
            size_t at = (size_t)(item.partial + (item.column + column) / GROUP) * (KV_HEADS * GROUP) +
                        head_of(column);
            if (one) {
                pass.partial_ml[2 * at] = m;
                pass.partial_ml[2 * at + 1] = l;
            }
            each(partial_writer{pass.partial_o + at * HEAD_DIM});
        }
    }

    /* How the splits' states of a column are folded: o = o * into + o_i * from, split by split, then
     * times factor. */
    struct column_weights {
        float into[PLAN_SPLITS_MAX - 1], from[PLAN_SPLITS_MAX - 1], factor;
    };

    /* Where the splits' states are. */
    struct split_states {
        const uint8_t *of[PLAN_SPLITS_MAX]; /* of those that are not there: the first */
        uint32_t count;

        /* four floats of a column of split i's, the `at`-th one and on */
        float4 operator()(uint32_t i, uint32_t column, uint32_t at) const
        {
            return ((const float4 *)of[i])[(column * STATE_FLOATS + at) / 4];
        }
    };

    /* Writes lse too, if `one`. */
    column_weights combine_weights(const split_states &states, uint32_t column, bool one) const
    {
        column_weights w;
        float4 ml[PLAN_SPLITS_MAX];
#pragma unroll
        for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
            ml[i] = states(i, column, HEAD_DIM);
        float m = ml[0].x, l = ml[0].y;
#pragma unroll
        for (uint32_t i = 1; i < PLAN_SPLITS_MAX; i++) {
            const merge_weights merge(m, ml[i].x);
            w.into[i - 1] = merge.into;
            w.from[i - 1] = merge.from;
            if (i < states.count) {
                m = merge.m;
                l = merge(l, ml[i].y);
            }
        }
        w.factor = finish(column, m, l, one).factor;
        return w;
    }

    /* Those of vectors [0, count) of columns from `first` on that this warp has, `rounds` a lane. The
     * lanes find the weights of the columns, once, while the first vectors are on their way. */
    void fold_splits(const split_states &states, uint32_t first, uint32_t count, uint32_t rounds) const
    {
        constexpr uint32_t VECTORS = HEAD_DIM / 4;
        const uint32_t lane = threadIdx.x % 32, begin = threadIdx.x / 32 * 32 * rounds,
                       found_first = begin / VECTORS, mine = found_first + lane;
        float4 o[PLAN_SPLITS_MAX], next[PLAN_SPLITS_MAX];
        const auto load = [&](float4(&to)[PLAN_SPLITS_MAX], uint32_t round) {
            const uint32_t at = min(begin + round * 32 + lane, count - 1);
#pragma unroll
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                to[i] = states(i, first + at / VECTORS, at % VECTORS * 4);
        };
        if (begin >= count)
            return;
        load(o, 0);
        const column_weights found =
            combine_weights(states, first + min(mine, count / VECTORS - 1),
                            mine < count / VECTORS && mine * VECTORS < begin + 32 * rounds);
        for (uint32_t round = 0; round < rounds; round++) {
            const uint32_t at = begin + round * 32 + lane, column = min(at, count - 1) / VECTORS,
                           dim = at % VECTORS * 4;
            if (round + 1 < rounds)
                load(next, round + 1);
#pragma unroll
            for (uint32_t i = 1; i < PLAN_SPLITS_MAX; i++) {
                const float into = __shfl_sync(ALL_LANES, found.into[i - 1], column - found_first),
                            from = __shfl_sync(ALL_LANES, found.from[i - 1], column - found_first);
                if (i < states.count)
                    o[0] = {merge_weights::weighed(o[0].x, into, o[i].x, from),
                            merge_weights::weighed(o[0].y, into, o[i].y, from),
                            merge_weights::weighed(o[0].z, into, o[i].z, from),
                            merge_weights::weighed(o[0].w, into, o[i].w, from)};
            }
            const output_writer write{pass.o, query_of(first + column) * HEAD_DIM,
                                      __shfl_sync(ALL_LANES, found.factor, column - found_first)};
            if (at < count) {
                write(dim, o[0].x, o[0].y);
                write(dim + 2, o[0].z, o[0].w);
            }
#pragma unroll
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                o[i] = next[i];
        }
    }

    /* By `threads` threads of each split, when its states are written: fold those of some columns, in
     * order of the splits, and write them. `mine` are this split's, `apart` is how far those of a thread
     * block lie from each other. The item is of one row. */
    void combine_splits(const uint8_t *mine, uint32_t apart, uint32_t threads) const
    {
        const uint32_t split = tile_coord::split(pass), each = (item.columns - 1 >> pass.split_bits) + 1,
                       first = min(split * each, item.columns),
                       count = min(each, item.columns - first) * (HEAD_DIM / 4),
                       rounds = (count + threads - 1) / threads;
        const uint8_t *all = mine - tile_coord::of_block() * apart; /* of the thread block */
        const bool is_cluster = pass.split_bits > pass.cta_bits;
        split_states states;
        states.count = 1u << pass.split_bits;
#pragma unroll
        for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
            states.of[i] = all + (i < states.count ? i & (1u << pass.cta_bits) - 1 : 0) * apart;
        if (is_cluster) {
#pragma unroll
            for (uint32_t i = 0; i < PLAN_SPLITS_MAX; i++)
                states.of[i] = cluster_pointer(states.of[i], i < states.count ? i >> pass.cta_bits : 0);
            cluster_sync(); /* all have written theirs */
            fold_splits(states, first, count, rounds);
            cluster_part(); /* no thread block ends before the others have read */
        } else {
            named_barrier_sync(BARRIER_OF_GROUP, threads << pass.split_bits);
            fold_splits(states, first, count, rounds);
        }
    }
};
