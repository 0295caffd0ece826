/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.h - what planner and scheduler have to know of the machine, measured when the daemon starts. */
#ifndef SCHEDULER_CALIBRATION_H
#define SCHEDULER_CALIBRATION_H

#include "kernels/attention.h"
#include "scheduler/cost.h"
#include "scheduler/planner.h"

struct calibration {
    const struct geometry *geometry;
    uint32_t blocks, rows_max, partials_max, table_rows, table_stride; /* as the backend was opened */
    double read_gb_per_s;                                              /* the roof */
};

/* calibrate(c, attention): read some blocks of the pool by two plans, which differ in two rows reading
 * a chunk together, and see what that costs. Milliseconds; what stands in the pool does not matter and
 * stays as it is. No step is in flight. Costs are 0 where there is nothing to measure: too small a
 * pool, no layer without a window, no memory, or a backend so slow that it would take long. */
struct planner_costs calibrate(const struct calibration *c, struct attention *attention);

/* calibrate_rates(c, attention): time small steps that read, store and copy blocks of the pool, to which
 * nothing was appended so far: it holds other bytes afterwards. Milliseconds. What cannot be measured, or
 * takes too long, is cost_fallback()'s. */
struct cost_rates calibrate_rates(const struct calibration *c, struct attention *attention);

#endif
