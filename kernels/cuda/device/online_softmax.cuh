/* SPDX-License-Identifier: Apache-2.0 */
/* online_softmax.cuh - from a tile of dot products to probabilities, for the kernels on tensor cores, whose
 * threads have some of the tokens of two columns each. */
#pragma once

#include "kernels/cuda/device/work_tile.cuh"

/* What two columns see. A column that does not exist counts as seeing every key: its q is 0, and nobody reads
 * its result. */
struct seen_keys {
    plan_range ranges[2];

    seen_keys(const work_tile_columns &columns, const uint32_t (&column)[2])
    {
        for (int i = 0; i < 2; i++) {
            bool there = column[i] < columns.work_tile.columns;
            ranges[i].end = there ? columns.query_at(column[i]).keys : UINT32_MAX;
            ranges[i].first = there ? plan_visible(ranges[i].end, columns.pass.window).first : 0;
        }
    }
};

/* The keys that all columns of the warp see. */
struct common_keys {
    uint32_t first, end;

    common_keys(const seen_keys &seen)
        : first(__reduce_max_sync(ALL_LANES, max(seen.ranges[0].first, seen.ranges[1].first))),
          end(__reduce_min_sync(ALL_LANES, min(seen.ranges[0].end, seen.ranges[1].end)))
    {
    }
    bool has_tile(uint32_t position) const
    {
        return position >= first && position + TILE_TOKENS <= end;
    }
};

/* A tile has eight groups of eight tokens. A thread has SUMS of each, for two columns: SCORES(j, i, e) is the
 * score of column SCORES::column(i) and the e-th of group j, token SCORES::token(j, e) of the tile. Threads
 * that have the same columns are FIRST, 2 FIRST .. END / 2 apart. */
static constexpr int TOKEN_GROUPS = TILE_TOKENS / 8;

/* change(x, i, token) for every score x. */
template <class SCORES, typename F> void each(SCORES &s, F change)
{
    for (int j = 0; j < TOKEN_GROUPS; j++) {
        for (int i = 0; i < 2; i++) {
            for (int e = 0; e < SCORES::SUMS; e++)
                change(s(j, i, e), i, SCORES::token(j, e));
        }
    }
}

/* Scores of the tile at `position` in place of dot products, but for a factor, which is left in `scales`;
 * -inf where a column does not see the key. seen() is what the two columns see. PLAIN: all columns see the
 * tile, and there is no alibi. */
template <bool PLAIN, class SCORES, typename SEEN>
void score_tile(SCORES &s, const work_tile_columns &columns, const score_rule &rule, float (&scales)[2],
                const common_keys &common, uint32_t position, SEEN seen)
{
    const float *alibi = columns.pass.alibi;
    if (SOFTCAP || (!PLAIN && __builtin_expect(alibi != nullptr, false))) {
        each(s, [&](float &x, int i, uint32_t) { x *= scales[i]; });
        scales[0] = scales[1] = 1.0f;
    }
    if constexpr (SOFTCAP)
        each(s, [&](float &x, int, uint32_t) { x = rule.capped(x); });
    if (!PLAIN && __builtin_expect(alibi != nullptr, false)) {
        const float slopes[2] = {alibi[columns.head_of(SCORES::column(0))] * LOG2_E,
                                 alibi[columns.head_of(SCORES::column(1))] * LOG2_E};
        const seen_keys by = seen();
        each(s, [&](float &x, int i, uint32_t token) {
            x = rule.with_slope(x, slopes[i], (int)(position + token + 1 - by.ranges[i].end));
        });
    }
    if (!PLAIN && __builtin_expect(!common.has_tile(position), false)) {
        const seen_keys by = seen();
        each(s, [&](float &x, int i, uint32_t token) {
            x = plan_sees(by.ranges[i], position + token) ? x : -INFINITE;
        });
    }
}

/* The larger one; NaN if one of them is. */
static inline float larger_or_nan(float x, float y)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
    return larger;
}

/* The largest score of each column in best[0], or NaN if one is: a tree for both together, since a chain of
 * comparisons takes longer. */
template <class SCORES> void row_max(SCORES &s, float (&largest)[2])
{
    constexpr int SUMS = SCORES::SUMS, N = TOKEN_GROUPS * SUMS / 2;
    float best[N][2];
    for (int n = 0; n < N; n++) {
        for (int i = 0; i < 2; i++)
            best[n][i] =
                larger_or_nan(s(2 * n / SUMS, i, 2 * n % SUMS), s((2 * n + 1) / SUMS, i, (2 * n + 1) % SUMS));
    }
    for (int n = N / 2; n > 0; n /= 2) {
        for (int j = 0; j < n; j++) {
            for (int i = 0; i < 2; i++)
                best[j][i] = larger_or_nan(best[j][i], best[j + n][i]);
        }
    }
    for (int apart = SCORES::FIRST; apart < SCORES::END; apart *= 2) {
        for (int i = 0; i < 2; i++)
            best[0][i] = larger_or_nan(best[0][i], __shfl_xor_sync(ALL_LANES, best[0][i], apart));
    }
    largest[0] = best[0][0];
    largest[1] = best[0][1];
}

/* Beyond, a maximum and the score that it is rounded from may differ by one and more. */
static constexpr float ORDINARY_MAXIMUM = 16777216.0f;

/* How a tile moves the maximum of a column: p_j = 2^(s_j scale - m_p), and o and l so far times `rescale`. (A
 * maximum that stays up to 2^8 behind the true one would save most of the scaling, but then the largest p,
 * 1, would be rounded like the others: twice the error where one key outweighs the rest.) */
struct maximum_update {
    float m, m_p, rescale;

    /* m_before: -inf if there is nothing yet; best: the largest of the tile's scores but for `scale`, or
     * NaN */
    maximum_update(float m_before, float best, float scale)
        : m(larger_or_nan(m_before, best * scale)), m_p(m), rescale(exp2_fast(m_before - m))
    {
    }
    /* No score is NaN, and the maximum is not infinite, nor so large that p needs its scores rounded. It is
     * -inf as long as the column sees none of the chunk's keys. */
    bool is_ordinary() const
    {
        return fabsf(m) < ORDINARY_MAXIMUM;
    }
    float p(float s, float scale) const
    {
        return exp2_fast(fmaf(s, scale, -m_p));
    }
};

/* The two columns' updates where one of the warp's is not ordinary: such a column's scores are rounded, then
 * the maximum is subtracted, by the rule of kernels/plan.h. What is left in the place of the scores gives p
 * with a scale of 1 and a maximum of 0. */
template <class SCORES>
void softmax_extremes(SCORES &s, const float (&m_before)[2], maximum_update (&updates)[2], float (&scales)[2])
{
    float best[2] = {-INFINITE, -INFINITE};
    each(s, [&](float &x, int i, uint32_t) { best[i] = fmaxf(best[i], x * scales[i]); }); /* not of NaN */
#pragma unroll
    for (int column = 0; column < 2; column++) {
        maximum_update &update = updates[column];
        for (int apart = SCORES::FIRST; apart < SCORES::END; apart *= 2)
            best[column] = fmaxf(best[column], __shfl_xor_sync(ALL_LANES, best[column], apart));
        if (update.is_ordinary())
            continue;
        update.m = fmaxf(m_before[column], best[column]);
        update.rescale = weight(m_before[column], update.m);
        each(s, [&](float &x, int i, uint32_t) {
            if (i == column) {
                const float of = x * scales[i], below = of < update.m ? of - update.m : -INFINITE;
                x = of == update.m && of != -INFINITE ? 0.0f : below; /* of NaN: -inf */
            }
        });
        update.m_p = 0.0f;
        scales[column] = 1.0f;
    }
}

/* p in place of the dot products of the tile at `position`, which times `scale` are scores. CHUNK, the chunk
 * so far, has m[2], and sum(i, e) of p of the e-th tokens of groups. Returns whether o is to be multiplied by
 * `rescale`. */
template <bool PLAIN, class SCORES, class CHUNK, typename SEEN>
bool online_softmax(SCORES &s, const work_tile_columns &columns, const score_rule &rule,
                    const float (&scale)[2], const common_keys &common, uint32_t position, SEEN seen,
                    CHUNK &x, float (&rescale)[2])
{
    float scales[2] = {scale[0], scale[1]}, best[2];
    bool rescales_o = false;
    score_tile<PLAIN>(s, columns, rule, scales, common, position, seen);
    row_max(s, best);
    maximum_update updates[2] = {{x.m[0], best[0], scales[0]}, {x.m[1], best[1], scales[1]}};
    if (__builtin_expect(!__all_sync(ALL_LANES, updates[0].is_ordinary() && updates[1].is_ordinary()), false))
        softmax_extremes(s, x.m, updates, scales);
    for (int i = 0; i < 2; i++) {
        const maximum_update &update = updates[i];
        for (int e = 0; e < SCORES::SUMS; e++) {
            float pairs[TOKEN_GROUPS / 2];
            for (int t = 0; t < TOKEN_GROUPS / 2; t++) {
                float &low = s(2 * t, i, e), &high = s(2 * t + 1, i, e);
                low = update.p(low, scales[i]);
                high = update.p(high, scales[i]);
                pairs[t] = low + high;
            }
            static_assert(TOKEN_GROUPS == 8, "as many pairs");
            x.sum(i, e) = x.sum(i, e) * update.rescale + ((pairs[0] + pairs[1]) + (pairs[2] + pairs[3]));
        }
        rescale[i] = update.rescale;
        rescales_o |= update.m != x.m[i] && x.m[i] != -INFINITE; /* o is not empty */
        x.m[i] = update.m;
    }
    return __any_sync(ALL_LANES, rescales_o);
}
