/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h - how long the backend will take for a piece of work, said before it is planned.
 *
 *   what                                  counted in                 rate
 *   a step                                                           step_us
 *   a pass: one layer of a producer                                  pass_us
 *   K and V are read                      tokens of a layer          token_us
 *   and weighed                           tokens x queries           weigh_us
 *   a query is loaded, folded, written    queries                    query_us
 *   K and V that were given are stored    tokens of a layer          append_us
 *   K, V or q are generated               tokens of a layer          generate_us
 *   a block is copied, all layers         blocks                     copy_us
 *
 * The rates are measured at every start (calibration.h). What retired steps took against their estimate
 * corrects them by one factor, so that a machine that becomes slower is noticed within a few steps. */
#ifndef SCHEDULER_COST_H
#define SCHEDULER_COST_H

#include "config/geometry.h"

#include <stdint.h>

/* Microseconds; all above 0. */
struct cost_rates {
    double step_us, pass_us, token_us, weigh_us, query_us, append_us, generate_us, copy_us;
};

struct cost_model {
    struct cost_rates rates;
    double factor; /* of all rates, from what steps took */
};

/* What is to be done; counts of the table above. */
struct cost_work {
    uint64_t passes, tokens, weighed, queries, appended, generated, copies;
};

/* cost_fallback(g): rates of a slow machine (1 GB/s, 1 GFLOP/s), where nothing can be measured. */
struct cost_rates cost_fallback(const struct geometry *g);

/* cost_us: microseconds of some work of a step, without the step's own. cost_step_us: with them. */
double cost_us(const struct cost_model *model, const struct cost_work *work);
double cost_step_us(const struct cost_model *model, const struct cost_work *work);

void cost_add(struct cost_work *sum, const struct cost_work *work);

/* cost_correct(model, estimate_us, took_us): a step of this estimate took so long. The factor goes a third
 * of the way, so that one slow step changes little and 20 of them all. */
void cost_correct(struct cost_model *model, double estimate_us, double took_us);

#endif
