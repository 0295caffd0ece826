/* SPDX-License-Identifier: Apache-2.0 */
/* http_tally.h - how many exchanges were answered, how, and how long that took, by route.
 *
 * The loop thread alone counts. Any thread may look: each figure by itself is one that was true. */
#ifndef SERVER_HTTP_TALLY_H
#define SERVER_HTTP_TALLY_H

#include "config/status.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
    HTTP_TALLY_STATUSES = 12, /* different ones of a route; those beyond are counted together, as 0 */
    HTTP_TALLY_TIMES = 12     /* buckets of a histogram, without the one that has no bound */
};

/* Upper bounds of the buckets, in seconds. */
extern const double http_tally_bounds[HTTP_TALLY_TIMES];

/* Of one route. */
struct http_tally_route {
    _Atomic uint32_t status[HTTP_TALLY_STATUSES + 1];
    _Atomic uint64_t answered[HTTP_TALLY_STATUSES + 1];
    _Atomic uint64_t
        times[HTTP_TALLY_TIMES + 1]; /* answers that took at most so long, and longer than the one before */
    _Atomic uint64_t took_ns;        /* all of them together */
};

struct http_tally {
    _Atomic uint64_t problems[STATUS_COUNT]; /* by status_number() */
    uint32_t routes;                         /* and one more, of what has no route: the last */
    struct http_tally_route each[];          /* [routes + 1] */
};

/* http_tally_create(routes): all zero; NULL: no memory. The caller ends it with free(). */
struct http_tally *http_tally_create(uint32_t routes);

/* http_tally_note(tally, route, status, problem, took_ns): an answer of route number `route` was handed to the kernel, so long after
 * its request's head was there; problem: a code of config/status.h, or 0. Loop thread; some ns. */
void http_tally_note(struct http_tally *tally, uint32_t route, int status, int problem, uint64_t took_ns);

#endif
