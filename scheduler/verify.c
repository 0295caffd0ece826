/* SPDX-License-Identifier: Apache-2.0 */
/* verify.c - see verify.h. */
#include "scheduler/verify.h"

#include "kernels/numeric.h"
#include "kernels/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* K and V of one head at the positions that a row sees. */
struct history {
    uint32_t first, head_dim;
    float *k, *v; /* [keys - first][head_dim] as stored, before the scales */
};

double verify_tolerance(const struct geometry *g, bool p_rounded)
{
    static const double half_ulp[] = {[DTYPE_F32] = 0x1p-24, [DTYPE_F16] = 0x1p-11, [DTYPE_BF16] = 0x1p-8};
    return half_ulp[g->dtype] * (p_rounded ? 2 : 1) + 0x1p-14;
}

/* One stored row: the generated value divided by its scale and rounded to the KV format. */
static void stored_row(const struct geometry *g, struct value_source source, uint32_t position,
                       uint32_t layer, enum values_tensor tensor, uint32_t head, float scale, float *row)
{
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    values_row(source, position, layer, tensor, head, g->head_dim, row);
    for (uint32_t d = 0; scale != 1.0F && d < g->head_dim; d++)
        row[d] /= scale;
    numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
    numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
}

static void from_history(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct history *h = cookie;
    size_t at = (size_t)(position - h->first) * h->head_dim;
    (void)kv_head;
    memcpy(k, h->k + at, h->head_dim * sizeof *k);
    memcpy(v, h->v + at, h->head_dim * sizeof *v);
}

static void recompute(const struct workload *w, const struct geometry *g, const struct model_constants *c,
                      const struct workload_sample *sample, uint32_t kv_head, struct history *h)
{
    size_t head = (size_t)sample->layer * g->kv_heads + kv_head;
    for (uint32_t at = h->first; at <= sample->position; at++) {
        struct value_source source = {.seed = w->seed,
                                      .content = workload_span_at(w, sample->ordinal, at).content};
        size_t row = (size_t)(at - h->first) * g->head_dim;
        stored_row(g, source, at, sample->layer, VALUES_K, kv_head, c->k_scale[head], h->k + row);
        stored_row(g, source, at, sample->layer, VALUES_V, kv_head, c->v_scale[head], h->v + row);
    }
}

static double compare(const struct workload *w, const struct geometry *g, const struct model_constants *c,
                      const struct workload_sample *sample, uint32_t query_head, struct history *h,
                      const uint8_t *output)
{
    float q[HEAD_DIM_MAX], have[HEAD_DIM_MAX];
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    double o[HEAD_DIM_MAX], lse, largest = 0, off = 0;
    values_row(workload_query_source(w, sample->ordinal), sample->position, sample->layer, VALUES_Q,
               query_head, g->head_dim, q);
    numeric_from_float(g->dtype, q, g->head_dim, rounded);
    numeric_to_float(g->dtype, rounded, g->head_dim, q);
    reference_query(g, c, sample->layer, sample->position + 1, query_head, q, from_history, h, o, &lse);
    numeric_to_float(g->dtype, output, g->head_dim, have);
    for (uint32_t d = 0; d < g->head_dim; d++) {
        double difference = fabs((double)have[d] - o[d]);
        largest = fmax(largest, fabs(o[d]));
        off = difference > off || isnan(difference) ? difference : off;
    }
    return largest > 0 ? off / largest : off;
}

int verify_head(const struct workload *w, const struct geometry *g, const struct model_constants *c,
                uint32_t index, uint32_t kv_head, double *error)
{
    const struct workload_sample *sample = &w->samples[index];
    size_t head_bytes = g->head_dim * dtype_bytes(g->dtype);
    const uint8_t *outputs = w->outputs + (size_t)index * g->query_heads * head_bytes;
    uint32_t group = geometry_group(g);
    struct history h = {.first = plan_visible(sample->position + 1, g->window[sample->layer]).first,
                        .head_dim = g->head_dim};
    size_t elements = (size_t)(sample->position + 1 - h.first) * g->head_dim;
    h.k = malloc(2 * elements * sizeof *h.k);
    if (!h.k)
        return ATTND_NO_MEMORY;
    h.v = h.k + elements;
    recompute(w, g, c, sample, kv_head, &h);
    *error = 0;
    for (uint32_t i = kv_head * group; i < (kv_head + 1) * group; i++) {
        double off = compare(w, g, c, sample, i, &h, outputs + i * head_bytes);
        *error = off > *error || isnan(off) ? off : *error;
    }
    free(h.k);
    return 0;
}
