/* SPDX-License-Identifier: Apache-2.0 */
/* http_tally.c - see http_tally.h. A slot of `status` is taken by the first answer that has it, for good. */
#include "server/http_tally.h"

#include <assert.h>
#include <stdlib.h>

const double http_tally_bounds[HTTP_TALLY_TIMES] = {1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
                                                    1e-2, 2.5e-2, 1e-1, 5e-1, 2.5,    10};

struct http_tally *http_tally_create(uint32_t routes)
{
    struct http_tally *tally = calloc(1, sizeof *tally + (routes + 1) * sizeof tally->each[0]);
    if (tally)
        tally->routes = routes;
    return tally;
}

/* There is one writer, so this needs no locked instruction. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

void http_tally_note(struct http_tally *tally, uint32_t route, int status, int problem, uint64_t took_ns)
{
    struct http_tally_route *of = &tally->each[route];
    double took_s = (double)took_ns * 1e-9;
    unsigned slot = 0, time = 0;
    assert(route <= tally->routes);
    for (; slot < HTTP_TALLY_STATUSES; slot++) {
        uint32_t has = atomic_load_explicit(&of->status[slot], memory_order_relaxed);
        if (has == 0)
            atomic_store_explicit(&of->status[slot], (uint32_t)status, memory_order_relaxed);
        if (has == 0 || has == (uint32_t)status)
            break;
    }
    while (time < HTTP_TALLY_TIMES && took_s > http_tally_bounds[time])
        time++;
    add(&of->answered[slot], 1);
    add(&of->times[time], 1);
    add(&of->took_ns, took_ns);
    if (problem)
        add(&tally->problems[status_number(problem)], 1);
}
