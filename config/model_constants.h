/* SPDX-License-Identifier: Apache-2.0 */
/* model_constants.h - sinks, ALiBi slopes and fp8 scales, read from JSON.
 *
 * Each is given as one number for all, a list for the heads of every layer, a list of lists for each
 * layer, or "seeded": reproducible values for workloads, the same on every machine. */
#ifndef CONFIG_MODEL_CONSTANTS_H
#define CONFIG_MODEL_CONSTANTS_H

#include "config/geometry.h"

/* Of k_scale and v_scale: values, which are below 2^97, are finite times that. */
#define MODEL_SCALE_LIMIT 0x1p30F

struct cJSON;

/* The JSON values, borrowed; false switches sinks and alibi off. */
struct model_constants_source {
    const struct cJSON *sinks, *alibi, *k_scale, *v_scale;
};

/* model_constants_init(c, g, source, field, reason): allocate and fill `c` for the checked geometry
 * `g`. Returns 0, or ATTND_INVALID with the offending field and a sentence, and nothing to free. */
MUST_USE int model_constants_init(struct model_constants *c, const struct geometry *g,
                                  const struct model_constants_source *source, const char **field,
                                  char reason[GEOMETRY_REASON_BYTES]);
/* model_constants_replace(c, g, with): those of `with` that are not NULL are copied over, or added to,
 * those of `c`. Returns 0 or ATTND_NO_MEMORY, and then `c` is as it was. */
MUST_USE int model_constants_replace(struct model_constants *c, const struct geometry *g,
                                     const struct model_constants *with);
/* model_constants_digest: XXH3-64 of all their values: other values have another one. */
uint64_t model_constants_digest(const struct model_constants *c, const struct geometry *g);
void model_constants_deinit(struct model_constants *c);

#endif
