/* columns.cuh - the packed columns of an item: which row and head each of them is, what it sees, and what it writes. */
#pragma once

#include "kernels/cuda/device/states.cuh"

struct item_columns {
    const cuda_attend_pass &pass;
    const cuda_item &item;
    uint32_t kv_head;

    item_columns(const cuda_attend_pass &pass_, const cuda_item &item_, uint32_t kv_head_)
        : pass(pass_), item(item_), kv_head(kv_head_)
    {
    }

    const cuda_item_row &row_at(uint32_t column) const
    {
        return pass.item_rows[item.first_row + (item.column + column) / GROUP];
    }
    uint32_t head_of(uint32_t column) const { return kv_head * GROUP + (item.column + column) % GROUP; }
    /* its place in [rows][query_heads], of q, o and lse */
    size_t query_of(uint32_t column) const
    {
        return (size_t)row_at(column).row * (KV_HEADS * GROUP) + head_of(column);
    }
    /* its q in 16 bits, NULL if it is not there */
    const uint8_t *query(uint32_t column) const
    {
        return column < item.columns ? pass.q + query_of(column) * (HEAD_DIM * 2) : nullptr;
    }

    /* What becomes of a column's state. each(write) calls write(dim, o) for this thread's elements; `one`: of the threads that
     * have the column, this one writes m and l, or lse. */
    template <typename F> void write(uint32_t column, float m, float l, bool one, F each) const
    {
        if (column >= item.columns)
            return;
        if (item.partial == PLAN_NO_PARTIAL) {
            size_t at = query_of(column);
            const finished f(m, l, pass.sinks ? &pass.sinks[head_of(column)] : nullptr, pass.v_scale[kv_head]);
            if (one)
                pass.lse[at] = f.lse;
            each([&](uint32_t dim, float o) { store_element<Q_DTYPE>(pass.o, at * HEAD_DIM + dim, f(o)); });
        } else {
            size_t at = (size_t)(item.partial + (item.column + column) / GROUP) * (KV_HEADS * GROUP) + head_of(column);
            if (one) {
                pass.partial_ml[2 * at] = m;
                pass.partial_ml[2 * at + 1] = l;
            }
            each([&](uint32_t dim, float o) { pass.partial_o[at * HEAD_DIM + dim] = o; });
        }
    }
};

/* What two columns see. One that is not there sees everything: of zeros, and nobody reads what comes out. */
struct seen_keys {
    uint32_t keys[2], first[2];
    uint32_t all_from, all_below; /* all columns of the warp see the keys between */

    void find(const item_columns &columns, const uint32_t (&column)[2])
    {
        const cuda_attend_pass &pass = columns.pass;
        all_from = 0;
        all_below = UINT32_MAX;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool there = column[i] < columns.item.columns;
            keys[i] = there ? columns.row_at(column[i]).keys : UINT32_MAX;
            first[i] = there ? plan_first_key(keys[i], pass.window) : 0;
            all_from = max(all_from, first[i]);
            all_below = min(all_below, keys[i]);
        }
        all_from = __reduce_max_sync(ALL_LANES, all_from);
        all_below = __reduce_min_sync(ALL_LANES, all_below);
    }

    /* Scores of the tile at `position` in place of dot products, -inf where a column does not see the key. each(change) calls
     * change(x, i, j) for every dot product x of column i with key j. */
    template <typename EACH>
    void score(const item_columns &columns, const uint32_t (&column)[2], const score_rule &rule, const float (&scales)[2],
               uint32_t position, EACH each) const
    {
        bool all = position >= all_from && position + TILE_TOKENS <= all_below;
        each([&](float &x, int i, uint32_t) { x *= scales[i]; });
        if (rule.softcap > 0.0f)
            each([&](float &x, int, uint32_t) { x = rule.capped(x); });
        if (const float *alibi = columns.pass.alibi) {
            const float slopes[2] = {alibi[columns.head_of(column[0])] * LOG2_E, alibi[columns.head_of(column[1])] * LOG2_E};
            each([&](float &x, int i, uint32_t j) { x = rule.with_slope(x, slopes[i], (int)(j + 1 - keys[i])); });
        }
        if (!all)
            each([&](float &x, int i, uint32_t j) { x = j >= first[i] && j < keys[i] ? x : -INFINITE; });
    }
};
