/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - the time that things take. Any thread. */
#ifndef CONFIG_CLOCK_H
#define CONFIG_CLOCK_H

#include <time.h>

/* clock_s: seconds on a clock that never goes back; only differences mean anything. */
static inline double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
