/* calibration.h - what the planner has to know of the machine, measured when the daemon starts. */
#ifndef SCHEDULER_CALIBRATION_H
#define SCHEDULER_CALIBRATION_H

#include "kernels/attention.h"
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

#endif
