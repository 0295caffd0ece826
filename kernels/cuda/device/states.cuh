/* SPDX-License-Identifier: Apache-2.0 */
/* states.cuh - the arithmetic that attend_* and merge share, so that their bits agree: scores, exponentials,
 * the weights of a merge, and the output. The fold is in folds.cuh; paged.cu has arithmetic of its own.
 *
 * Scores and maxima are in units of ln 2, since the hardware's exponential is 2^x. A state is (m, l,
 * o); the empty one is (-inf, 0, 0). Nothing is contracted (-fmad=false): fma only where it is written.
 */
#pragma once

#include "kernels/coefficients.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/step.h"

static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147182f;
static constexpr int FOLD_LEVELS = PLAN_SPAN; /* level 0 adds up a run, of chunks; 1 a segment, of runs; 2 a
                                                 span, of segments */
static constexpr float SMALLEST_SCALE = 1.17549435e-38f; /* of dot products, so that -inf times it is -inf */

/* 1 / x for x >= 1, to about the last bit: the hardware's estimate and one Newton step. A division
 * would be a call, for which the compiler spills what is in registers. */
static inline float reciprocal(float x)
{
    const float y = reciprocal_estimate(x);
    return fmaf(fmaf(-x, y, 1.0f), y, y);
}

/* tanh(y): an odd polynomial near 0 (coefficients.h), (1 - e) / (1 + e) with e = exp(-2 |y|) elsewhere.
 */
static inline float tanh_any(float y)
{
    float magnitude = fabsf(y), z = y * y;
    float near = fmaf(TANH_0, z, TANH_1);
    near = fmaf(near, z, TANH_2);
    near = fmaf(near, z, TANH_3);
    near = fmaf(near, z, TANH_4);
    near = fmaf(near * z, y, y);
    float e = exp2_fast(-2.0f * LOG2_E * magnitude);
    float far = copysignf((1.0f - e) * reciprocal(1.0f + e), y);
    return magnitude >= TANH_NEAR ? far : near; /* of NaN: near, NaN too */
}

/* What turns a dot product into a score. */
struct score_rule {
    float scale, softcap; /* scale: of q.k, k_scale included, and divided by softcap if there is one */

    score_rule(const cuda_attend_pass &pass, float k_scale)
        : scale(pass.scale * k_scale * (pass.softcap > 0.0f ? pass.inverse_softcap : LOG2_E)),
          softcap(pass.softcap * LOG2_E)
    {
    }

    float capped(float scaled) const
    {
        return softcap * tanh_any(scaled);
    }
    /* In units of ln 2, as is the slope; distance = j - i, not positive. */
    static float with_slope(float score, float slope, int distance)
    {
        return fmaf(slope, (float)distance, score);
    }
    float operator()(float dot, float slope, int distance) const
    {
        return with_slope(softcap > 0.0f ? capped(dot * scale) : dot * scale, slope, distance);
    }
};

/* 2^(m - of): what a state with maximum m is worth beside the largest maximum `of`; both may be +inf
 * (kernels/plan.h), or -inf: of two empty states. */
static inline float weight(float m, float of)
{
    return m == of ? 1.0f : exp2_fast(m - of);
}

/* The two factors of a merge, and its maximum. The l and o of an empty side are 0. */
struct merge_weights {
    float m, into, from;

    merge_weights(float m_into, float m_from)
        : m(fmaxf(m_into, m_from)), into(weight(m_into, m)), from(weight(m_from, m))
    {
    }
    float operator()(float x_into, float x_from) const
    {
        return weighted_sum(x_into, into, x_from, from);
    }
    static float weighted_sum(float x_into, float into, float x_from, float from)
    {
        return fmaf(x_into, into, x_from * from);
    }
    static float4 weighted_sum(const float4 &x_into, float into, const float4 &x_from, float from)
    {
        return {weighted_sum(x_into.x, into, x_from.x, from), weighted_sum(x_into.y, into, x_from.y, from),
                weighted_sum(x_into.z, into, x_from.z, from), weighted_sum(x_into.w, into, x_from.w, from)};
    }
};

/* What the outputs of one query head are made of: o_d becomes o_d * factor. */
struct output_scale {
    float factor, lse;

    /* sink: NULL, or one more logit (natural) without a value */
    output_scale(float m, float l, const float *sink, float v_scale)
        : factor(0.0f), lse(sink ? *sink : -INFINITE)
    {
        float of_o = 1.0f;
        if (m == -INFINITE) /* no keys: o is 0 already */
            return;
        if (sink) {
            float s = *sink * LOG2_E, both = fmaxf(m, s);
            of_o = weight(m, both);
            l = fmaf(l, of_o, weight(s, both));
            m = both;
        }
        factor = of_o * reciprocal(l) * v_scale;
        lse = fmaf(m, LN_2, logf(l));
    }
    /* "+ 0": a value that was -0 or 0, depending on what it was computed together with, is 0 */
    float operator()(float o) const
    {
        return scaled(o, factor);
    }
    static float scaled(float o, float factor)
    {
        return fmaf(o, factor, 0.0f);
    }
};
