/* SPDX-License-Identifier: Apache-2.0 */
/* simulation.c - see simulation.h. */
#include "tests/simulation/simulation.h"

#include <stdarg.h>
#include <stdio.h>

struct simulation sim;

uint64_t sim_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint32_t sim_below(uint64_t *random, uint32_t n)
{
    *random = sim_mix(*random);
    return (uint32_t)((*random >> 32) * n >> 32);
}

bool sim_chance(uint64_t *random, uint32_t n)
{
    return sim_below(random, n) == 0;
}

void sim_note(const char *format, ...)
{
    va_list args;
    if (!sim.keep_history)
        return;
    uint64_t at = sim.history_count++; /* the beginning is kept, and the end */
    char *line = sim.history[at < SIM_HISTORY_LINES ? at : SIM_HISTORY_LINES + at % SIM_HISTORY_LINES];
    int n = snprintf(line, SIM_LINE_BYTES, "%12.6f ", sim.now_s);
    va_start(args, format);
    vsnprintf(line + n, SIM_LINE_BYTES - (size_t)n, format, args);
    va_end(args);
}

void sim_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(sim.fault, sizeof sim.fault, format, args);
    va_end(args);
    longjmp(sim.failed, 1);
}
