/* SPDX-License-Identifier: Apache-2.0 */
/* quantiles.h - percentiles of any number of values in constant memory.
 *
 * A histogram whose buckets grow by 2 %, so a percentile is off by at most 1 %. For times in
 * microseconds: from 0.1 to about 10^10. */
#ifndef SCHEDULER_QUANTILES_H
#define SCHEDULER_QUANTILES_H

#include <stdint.h>

enum { QUANTILES_BUCKETS = 1280 };

struct quantiles {
    uint64_t count;
    uint32_t buckets[QUANTILES_BUCKETS];
};

/* The three that reports show. */
struct percentiles {
    double p50, p90, p99;
};

void quantiles_add(struct quantiles *q, double value);

/* quantiles_at(q, part): the value below which `part` (0 to 1) of all values lie; 0 without values. */
double quantiles_at(const struct quantiles *q, double part);

struct percentiles quantiles_percentiles(const struct quantiles *q);

#endif
