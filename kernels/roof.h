/* SPDX-License-Identifier: Apache-2.0 */
/* roof.h - the order of a measurement of the read roof, for backends: they read, it says how and when it is enough. */
#ifndef KERNELS_ROOF_H
#define KERNELS_ROOF_H

#include "kernels/attention.h"

#include <stdbool.h>

enum { ROOF_WAYS = 3, ROOF_PASSES_MAX = 5 };

/* A measurement under way. */
struct roof_trial {
    uint32_t passes; /* of the fastest way */
    uint32_t done;   /* of all passes: the first ROOF_WAYS, one a way, then the others */
    uint32_t way;    /* the fastest so far */
    double gb_per_s[ROOF_WAYS + ROOF_PASSES_MAX];
};

void roof_trial_begin(struct roof_trial *t, uint32_t passes);

/* roof_trial_way: 0..ROOF_WAYS-1, the way of the pass that comes now. */
uint32_t roof_trial_way(const struct roof_trial *t);

/* roof_trial_add: that pass read so fast. True if it was the last, with what all of the fastest way read in *roof. */
bool roof_trial_add(struct roof_trial *t, double gb_per_s, struct attention_roof *roof);

#endif
