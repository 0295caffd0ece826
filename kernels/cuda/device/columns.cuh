/* columns.cuh - the packed columns of an item: which row and head each of them is, what it sees, and what it writes. */
#pragma once

#include "kernels/cuda/device/states.cuh"

/* Write o of a column: an element, or two from an even dim on. */
struct output_writer {
    uint8_t *o;
    size_t first;
    const finished &f;

    void operator()(uint32_t dim, float x) const { store_element<Q_DTYPE>(o, first + dim, f(x)); }
    void operator()(uint32_t dim, float x, float next) const { store_pair<Q_DTYPE>(o, first + dim, f(x), f(next)); }
};

struct partial_writer {
    float *o;

    void operator()(uint32_t dim, float x) const { store_element<DTYPE_F32>(o, dim, x); }
    void operator()(uint32_t dim, float x, float next) const { store_pair<DTYPE_F32>(o, dim, x, next); }
};

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

    /* What becomes of a column's state. each(write) calls write for this thread's elements of o; `one`: of the threads that have
     * the column, this one writes m and l, or lse. */
    template <typename F> void write(uint32_t column, float m, float l, bool one, F each) const
    {
        if (column >= item.columns)
            return;
        if (item.partial == PLAN_NO_PARTIAL) {
            size_t at = query_of(column);
            const finished f(m, l, pass.sinks ? &pass.sinks[head_of(column)] : nullptr, pass.v_scale[kv_head]);
            if (one)
                pass.lse[at] = f.lse;
            each(output_writer{pass.o, at * HEAD_DIM, f});
        } else {
            size_t at = (size_t)(item.partial + (item.column + column) / GROUP) * (KV_HEADS * GROUP) + head_of(column);
            if (one) {
                pass.partial_ml[2 * at] = m;
                pass.partial_ml[2 * at + 1] = l;
            }
            each(partial_writer{pass.partial_o + at * HEAD_DIM});
        }
    }
};

/* What two columns see. One that is not there sees everything: of zeros, and nobody reads what comes out. */
struct seen_keys {
    uint32_t keys[2], first[2];

    seen_keys(const item_columns &columns, const uint32_t (&column)[2])
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool there = column[i] < columns.item.columns;
            keys[i] = there ? columns.row_at(column[i]).keys : UINT32_MAX;
            first[i] = there ? plan_first_key(keys[i], columns.pass.window) : 0;
        }
    }
};

/* The keys that all columns of the warp see. */
struct common_keys {
    uint32_t first, end;

    common_keys(const seen_keys &seen)
        : first(__reduce_max_sync(ALL_LANES, max(seen.first[0], seen.first[1]))),
          end(__reduce_min_sync(ALL_LANES, min(seen.keys[0], seen.keys[1])))
    {
    }
    bool has_tile(uint32_t position) const { return position >= first && position + TILE_TOKENS <= end; }
};

/* Scores of the tile at `position` in place of dot products, but for a factor, which is left in `scales`; -inf where a column
 * does not see the key. each(change) calls change(x, i, j) for every dot product x of column i with key j; seen() is what the two
 * columns see. */
template <typename SEEN, typename EACH>
void score_tile(const item_columns &columns, const uint32_t (&column)[2], const score_rule &rule, float (&scales)[2],
                const common_keys &common, uint32_t position, SEEN seen, EACH each)
{
    const float *alibi = columns.pass.alibi;
    if (rule.softcap > 0.0f || alibi) {
        each([&](float &x, int i, uint32_t) { x *= scales[i]; });
        scales[0] = scales[1] = 1.0f;
    }
    if (rule.softcap > 0.0f)
        each([&](float &x, int, uint32_t) { x = rule.capped(x); });
    if (alibi) {
        const float slopes[2] = {alibi[columns.head_of(column[0])] * LOG2_E, alibi[columns.head_of(column[1])] * LOG2_E};
        const seen_keys by = seen();
        each([&](float &x, int i, uint32_t j) { x = rule.with_slope(x, slopes[i], (int)(j + 1 - by.keys[i])); });
    }
    if (!common.has_tile(position)) {
        const seen_keys by = seen();
        each([&](float &x, int i, uint32_t j) { x = j >= by.first[i] && j < by.keys[i] ? x : -INFINITE; });
    }
}

/* How a tile moves the maximum of a column: p_j = 2^(s_j scale - of), o and l so far times `scaled`. (A maximum that stays up to
 * 2^8 behind the true one would save most of the scaling, but then the largest p, 1, would be rounded like the others: twice the
 * error where one key outweighs the rest.) */
struct maximum_update {
    float m, of, scaled;
    bool scales; /* something is there, and not to be multiplied by 1 */

    /* m_before: -inf if there is nothing yet; best: the largest of the tile's scores but for `scale` */
    maximum_update(float m_before, float best, float scale)
    {
        best *= scale;
        m = fmaxf(m_before, best);
        of = m == -INFINITE ? 0.0f : m; /* 2^(-inf - 0) = 0 */
        scaled = exp2_fast(m_before - of);
        scales = m != m_before && m_before != -INFINITE;
    }
    float p(float s, float scale) const { return exp2_fast(fmaf(s, scale, -of)); }
};
