/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - attention written to be read: the oracle that everything else is compared with.
 *
 *   s_j = softcap(scale * k_scale * q.k_j) + slope * (j - i)     for the keys j that query i sees (also
 *                                                                under block-sparse attention: geometry_sees)
 *   m   = max s_j [, sink]
 *   l   = sum_j exp(s_j - m) [+ exp(sink - m)]
 *   o   = v_scale * sum_j exp(s_j - m) v_j / l
 *   lse = m + ln l
 *
 * in double precision, two passes, no tiles, no blocks. Scores beyond f32 are infinite (kernels/plan.h);
 * exp(s_j - m) is 1 where s_j = m. */
#ifndef KERNELS_REFERENCE_H
#define KERNELS_REFERENCE_H

#include "kernels/attention.h"

/* Where a reference query gets its keys and values: the stored values (before k_scale and v_scale) of one
 * KV head at `position`, [head_dim] each. */
typedef void (*reference_kv_fn)(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v);

/* reference_query(g, constants, layer, keys, query_head, q, kv, cookie, o, lse): one head of one query
 * that sees positions below `keys`. q [head_dim] is f32; o [head_dim] and *lse are written. Any thread. */
void reference_query(const struct geometry *g, const struct model_constants *constants, uint32_t layer,
                     uint32_t keys, uint32_t query_head, const float *q, reference_kv_fn kv, void *cookie,
                     double *o, double *lse);

#endif
