/* SPDX-License-Identifier: Apache-2.0 */
/* shape.h - the lengths and arrivals of real traces as quantile tables, and the draws from them.
 *
 * Lengths: inverse of the piecewise linear distribution through the quantiles. Arrivals: the gaps are
 * gamma distributed with the trace's rate and coefficient of variation (shape 1 / CV^2; CV 1 is a
 * Poisson process). All draws come from one seeded generator, so a seed names a workload exactly. */
#ifndef SCHEDULER_SHAPE_H
#define SCHEDULER_SHAPE_H

#include <stdint.h>

/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every seed is good. */
struct random {
    uint64_t state;
};

uint64_t random_next(struct random *r);
double random_unit(struct random *r); /* in [0, 1) */

/* random_gap(r, rate, cv): seconds to the next arrival, of mean 1 / rate and standard deviation
 * cv / rate. rate > 0; cv below 0.001: exactly 1 / rate. */
double random_gap(struct random *r, double rate, double cv);

struct shape;

/* The shape of that name, NULL if there is none; shape_names: all of them, for messages. */
const struct shape *shape_find(const char *name);
extern const char shape_names[];

/* One request's tokens. */
uint32_t shape_prompt(const struct shape *shape, struct random *r);
uint32_t shape_decode(const struct shape *shape, struct random *r);

/* Of the trace's arrivals; a rate of 0: it has no times. */
double shape_rate(const struct shape *shape);
double shape_cv(const struct shape *shape);

#endif
