/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_states.h - merging and finishing softmax states: the one text that every CPU path compiles with
 * its own exp and its own instructions.
 *
 * exp_one() is a function of the including file; x <= 0, exp_one(0) = 1. */
#ifndef KERNELS_CPU_CPU_STATES_H
#define KERNELS_CPU_CPU_STATES_H

#include "kernels/cpu/cpu_kernels.h"

#include <math.h>
#include <string.h>

static inline float exp_one(float x);

/* What a state with maximum m is worth beside the largest one; both may be +inf (kernels/plan.h). */
static inline float states_weight(float m, float largest)
{
    return m == largest ? 1 : exp_one(m - largest);
}

/* See cpu_kernels.merge. */
static void states_merge(uint32_t rows, uint32_t head_dim, const struct cpu_states *into,
                         const struct cpu_states *from)
{
    for (uint32_t row = 0; row < rows; row++) {
        float *to = into->o + (size_t)row * head_dim;
        const float *o = from->o + (size_t)row * head_dim;
        if (from->m[row] == -INFINITY)
            continue;
        if (into->m[row] == -INFINITY) {
            into->m[row] = from->m[row];
            into->l[row] = from->l[row];
            memcpy(to, o, head_dim * sizeof *to);
            continue;
        }
        float m = into->m[row] > from->m[row] ? into->m[row] : from->m[row];
        float a = states_weight(into->m[row], m), b = states_weight(from->m[row], m);
        into->m[row] = m;
        into->l[row] = into->l[row] * a + from->l[row] * b;
        for (uint32_t d = 0; d < head_dim; d++)
            to[d] = to[d] * a + o[d] * b;
    }
}

/* See cpu_kernels.finish. */
static void states_finish(uint32_t head_dim, const struct cpu_states *states, uint32_t row, const float *sink,
                          float v_scale, float *o, float *lse)
{
    const float *from = states->o + (size_t)row * head_dim;
    float m = states->m[row], l = states->l[row], a = 1;
    if (m == -INFINITY) {
        memset(o, 0, head_dim * sizeof *o);
        *lse = sink ? *sink : -INFINITY;
        return;
    }
    if (sink) { /* the state (sink, 1, 0) */
        float both = m > *sink ? m : *sink;
        a = states_weight(m, both);
        l = l * a + states_weight(*sink, both);
        m = both;
    }
    for (uint32_t d = 0; d < head_dim; d++)
        o[d] = from[d] * a / l * v_scale;
    *lse = m + logf(l);
}

#endif
