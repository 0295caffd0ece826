/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - the proof that a workload's outputs are right: rows computed again in double precision
 * from the generator alone.
 *
 * Nothing here knows of blocks, tables, sharing or steps: a key is what the value function says for its
 * position, rounded as it is stored. So a row that agrees was served the right bytes. */
#ifndef SCHEDULER_VERIFY_H
#define SCHEDULER_VERIFY_H

#include "scheduler/workload.h"

/* verify_tolerance(g, p_rounded): the largest error of a row that counts as right: what one rounding of
 * the output to its dtype costs, the same again where the backend rounds probabilities
 * (attention_info), and the f32 arithmetic of the kernels. Relative to the largest element of its head.
 */
double verify_tolerance(const struct geometry *g, bool p_rounded);

/* verify_head(w, g, constants, sample, kv_head, error): compare the query heads of one KV head of a
 * taken sample with a computation in double precision; *error is the largest difference, relative to
 * the largest element of each head. O(position x head_dim). Any thread; allocates for the call. Returns
 * 0 or ATTND_NO_MEMORY. */
MUST_USE int verify_head(const struct workload *w, const struct geometry *g,
                         const struct model_constants *constants, uint32_t sample, uint32_t kv_head,
                         double *error);

#endif
