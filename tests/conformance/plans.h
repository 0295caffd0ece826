/* SPDX-License-Identifier: Apache-2.0 */
/* plans.h - plans for tests: the same queries cut up in every way that the contract allows. */
#ifndef TESTS_CONFORMANCE_PLANS_H
#define TESTS_CONFORMANCE_PLANS_H

#include "config/geometry.h"
#include "kernels/plan.h"

#include <stdbool.h>

/* How queries are cut into work tiles: whole, at every node of a level, or at random. */
enum cut { CUT_CONTEXT, CUT_SEGMENT, CUT_RUN, CUT_CHUNK, CUT_RANDOM, CUT_COUNT };

struct plan_request {
    const struct plan_query *queries;
    uint32_t query_count;
    const uint32_t *tables;
    uint32_t stride, block_size, window, group;
    enum cut cut;
    bool share;    /* queries that read the same blocks go into one work tile */
    uint32_t seed; /* of CUT_RANDOM; which draws widths and split groups too */
    const struct tile_caps *caps;
};

/* plans_make(request): a plan and all that it names, in one structure to be freed with plans_free(). */
struct plan *plans_make(const struct plan_request *request);
void plans_free(struct plan *plan);

#endif
