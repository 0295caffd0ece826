/* SPDX-License-Identifier: Apache-2.0 */
/* quantiles.c - see quantiles.h. Bucket i holds the values from LOWEST * GROWTH^i to the next. */
#include "scheduler/quantiles.h"

#include <math.h>

static const double LOWEST = 0.1, GROWTH = 1.02;

void quantiles_add(struct quantiles *q, double value)
{
    double at = value > LOWEST ? log(value / LOWEST) / log(GROWTH) : 0;
    q->buckets[at < QUANTILES_BUCKETS - 1 ? (int)at : QUANTILES_BUCKETS - 1]++;
    q->count++;
}

double quantiles_at(const struct quantiles *q, double part)
{
    uint64_t before = 0, wanted = (uint64_t)(part * (double)q->count);
    for (int i = 0; i < QUANTILES_BUCKETS; i++) {
        before += q->buckets[i];
        if (before > wanted || (before == q->count && before > 0))
            return LOWEST * pow(GROWTH, i + 0.5);
    }
    return 0;
}

struct percentiles quantiles_percentiles(const struct quantiles *q)
{
    return (struct percentiles){quantiles_at(q, 0.5), quantiles_at(q, 0.9), quantiles_at(q, 0.99)};
}
