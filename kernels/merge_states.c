/* SPDX-License-Identifier: Apache-2.0 */
/* merge_states.c - attention states merged on the host; see attention.h, struct merge_states. */
#include "kernels/backend.h"
#include "kernels/numeric.h"

#include <math.h>

/* One head of one row: its weights, and the merged lse. */
static float merge_head(const struct merge_states *m, size_t head, float *o)
{
    size_t apart = (size_t)m->rows * m->heads, bytes = m->head_dim * dtype_bytes(m->dtype);
    float largest = -INFINITY, sum = 0, state_o[HEAD_DIM_MAX];
    for (uint32_t i = 0; i < m->states; i++)
        largest = fmaxf(largest, m->lse[i * apart + head]);
    for (uint32_t d = 0; d < m->head_dim; d++)
        o[d] = 0;
    if (largest == -INFINITY)
        return largest;
    for (uint32_t i = 0; i < m->states; i++) {
        float lse = m->lse[i * apart + head], w = lse == largest ? 1 : expf(lse - largest);
        sum += w;
        numeric_to_float(m->dtype, (const uint8_t *)m->o + (i * apart + head) * bytes, m->head_dim, state_o);
        for (uint32_t d = 0; w > 0 && d < m->head_dim; d++)
            o[d] += w * state_o[d];
    }
    for (uint32_t d = 0; d < m->head_dim; d++)
        o[d] /= sum;
    return largest + logf(sum);
}

void merge_states_on_host(const struct merge_states *m, size_t first, size_t count)
{
    size_t bytes = m->head_dim * dtype_bytes(m->dtype);
    float o[HEAD_DIM_MAX];
    for (size_t head = first; head < first + count; head++) {
        float lse = merge_head(m, head, o);
        numeric_from_float(m->dtype, o, m->head_dim, (uint8_t *)m->merged_o + head * bytes);
        m->merged_lse[head] = lse;
    }
}
