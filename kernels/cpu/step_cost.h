/* SPDX-License-Identifier: Apache-2.0 */
/* step_cost.h - how long one thread would take for a step, said before the step is begun.
 *
 *   what                                       counted in                       rate
 *   a work tile reads K and V                  keys x KV heads                  key_ns
 *   and weighs them for its rows               keys x query heads of all rows   column_ns
 *   rows are loaded, folded and written        query heads of all rows          head_ns
 *   q, k, v are generated or converted         values                           value_ns
 *   k and v are stored, copied, read or        keys x KV heads, twice           key_ns
 *     compared as they are
 *   states are merged                          values; heads of all rows        value_ns; head_ns
 *
 * The rates belong to the geometry, the kernels and the machine, and are measured once, at the start, but for
 * value_ns. */
#ifndef KERNELS_CPU_STEP_COST_H
#define KERNELS_CPU_STEP_COST_H

#include "kernels/attention.h"

/* Nanoseconds of one thread; all above 0. */
struct step_rates {
    double key_ns;    /* to read one key and its value, of one KV head */
    double column_ns; /* to compute with one key for one query head of one query */
    double head_ns;   /* to load, fold and write one query head of one row */
    double value_ns;  /* to generate or convert one element */
};

/* step_rates_measure(attention, g, blocks): time small steps of a backend, which computes them while they are
 * submitted, over the first `blocks` blocks of its pool, one at least; they are read and not written. What
 * cannot be measured keeps a fall-back. Allocates; milliseconds. */
struct step_rates step_rates_measure(struct attention *attention, const struct geometry *g, uint32_t blocks);

/* step_cost_us(rates, g, step, enough): microseconds that one thread would take. Ends counting, with what
 * it has, once that is `enough`. Any thread; a few nanoseconds a row, append, copy and other operation. */
double step_cost_us(const struct step_rates *rates, const struct geometry *g,
                    const struct attention_step *step, double enough);

#endif
