/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the benchmarks share: time, medians, and a head line that names the machine. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stddef.h>

/* Seconds of a monotonic clock. */
double bench_now(void);

/* Median, smallest and largest of n values; sorts them. */
struct bench_spread {
    double median, min, max;
};
struct bench_spread bench_spread(double *values, size_t n);

/* Print program, date, processor and cores. */
void bench_print_machine(const char *what);

#endif
