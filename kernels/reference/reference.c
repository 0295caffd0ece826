/* SPDX-License-Identifier: Apache-2.0 */
/* reference.c - see reference.h. */
#include "kernels/reference.h"

#include <float.h>
#include <math.h>

/* x as far as f32 reaches, and infinite beyond. */
static double within_f32(double x)
{
    return fabs(x) > (double)FLT_MAX ? copysign(INFINITY, x) : x;
}

/* What a score is worth beside the largest one. */
static double weight(double s, double m)
{
    return s == m ? 1 : exp(s - m);
}

/* The score of one key, k already f32. */
static double score(const struct geometry *g, const struct model_constants *c, uint32_t layer,
                    uint32_t query_head, const float *q, const float *k, double distance)
{
    uint32_t kv_head = query_head / geometry_group(g);
    double dot = 0;
    for (uint32_t d = 0; d < g->head_dim; d++)
        dot += (double)q[d] * (double)k[d];
    double scale = (double)g->scale * (double)c->k_scale[(size_t)layer * g->kv_heads + kv_head];
    double s = within_f32(within_f32(dot) * scale);
    if (g->softcap > 0)
        s = (double)g->softcap * tanh(s / (double)g->softcap);
    if (c->alibi)
        s = within_f32(s + within_f32((double)c->alibi[query_head] * distance));
    return isnan(s) ? -INFINITY : s;
}

void reference_query(const struct geometry *g, const struct model_constants *c, uint32_t layer, uint32_t keys,
                     uint32_t query_head, const float *q, reference_kv_fn kv, void *cookie, double *o,
                     double *lse)
{
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX];
    uint32_t kv_head = query_head / geometry_group(g);
    struct plan_range seen = plan_visible(keys, g->window[layer]);
    double v_scale = (double)c->v_scale[(size_t)layer * g->kv_heads + kv_head];
    double sink = c->sinks ? (double)c->sinks[(size_t)layer * g->query_heads + query_head] : -INFINITY;
    double m = sink, l = 0;

    for (uint32_t j = seen.first; j < seen.end; j++) {
        if (!geometry_sees(g, query_head, keys, j))
            continue;
        kv(cookie, j, kv_head, k, v);
        m = fmax(m, score(g, c, layer, query_head, q, k, (double)j - (double)(keys - 1)));
    }
    for (uint32_t d = 0; d < g->head_dim; d++)
        o[d] = 0;
    *lse = -INFINITY;
    if (m == -INFINITY)
        return;
    l = c->sinks ? weight(sink, m) : 0;
    for (uint32_t j = seen.first; j < seen.end; j++) {
        if (!geometry_sees(g, query_head, keys, j))
            continue;
        kv(cookie, j, kv_head, k, v);
        double p = weight(score(g, c, layer, query_head, q, k, (double)j - (double)(keys - 1)), m);
        l += p;
        for (uint32_t d = 0; d < g->head_dim; d++)
            o[d] += p * (double)v[d];
    }
    for (uint32_t d = 0; d < g->head_dim; d++)
        o[d] = o[d] / l * v_scale;
    *lse = m + log(l);
}
