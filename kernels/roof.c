/* SPDX-License-Identifier: Apache-2.0 */
/* roof.c - see roof.h.
 *
 *   way    0  1  2  w  w  w ...      w: that which was the fastest of the first three
 *
 * The result are the passes of way w alone: that the others are slower is no noise. */
#include "kernels/roof.h"

#include <assert.h>
#include <stdlib.h>

void roof_trial_begin(struct roof_trial *t, uint32_t passes)
{
    assert(passes > 0 && passes <= ROOF_PASSES_MAX);
    *t = (struct roof_trial){.passes = passes};
}

uint32_t roof_trial_way(const struct roof_trial *t)
{
    return t->done < ROOF_WAYS ? t->done : t->way;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bool roof_trial_add(struct roof_trial *t, double gb_per_s, struct attention_roof *roof)
{
    double passes[ROOF_PASSES_MAX];
    t->gb_per_s[t->done] = gb_per_s;
    if (t->done < ROOF_WAYS && gb_per_s > t->gb_per_s[t->way])
        t->way = t->done;
    t->done++;
    if (t->done < ROOF_WAYS + t->passes - 1)
        return false;
    passes[0] = t->gb_per_s[t->way];
    for (uint32_t i = 1; i < t->passes; i++)
        passes[i] = t->gb_per_s[ROOF_WAYS + i - 1];
    qsort(passes, t->passes, sizeof passes[0], by_size);
    *roof = (struct attention_roof){passes[t->passes - 1], passes[t->passes / 2], passes[0]};
    return true;
}
