/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - see bench.h. */
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return (struct bench_spread){values[n / 2], values[0], values[n - 1]};
}

void bench_print_machine(const char *what)
{
    char line[256], model[128] = "unknown processor", date[32];
    time_t now = time(NULL);
    struct tm utc;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "model name%*[^:]: %127[^\n]", model) == 1)
            break;
    }
    if (f)
        fclose(f);
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%d", &utc);
    printf("== %s, %s, %s, %ld cores\n", what, date, model, sysconf(_SC_NPROCESSORS_ONLN));
}
