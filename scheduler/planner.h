/* SPDX-License-Identifier: Apache-2.0 */
/* planner.h - from the queries of a step to the work tiles that compute them.
 *
 * A planner serves the layers of one window. It finds what queries share by comparing block ids, never
 * reference counts: queries sorted by their tables form a tree, and every stretch of chunks that several
 * queries read becomes work tiles of all of them, at any depth. How finely work is cut follows the amount of
 * it, and in which tiles and split groups it is computed the backend's caps; whether a query is grouped with
 * others it says itself, or what that costs. None of this changes a bit of any result (kernels/plan.h), so
 * the planner is free to choose.
 *
 * Between steps it keeps the order of the queries: as long as the same tables come again, with the same
 * versions and sharing, a step costs O(queries + work tiles), whatever the contexts. Loose tables are
 * compared entry by entry when they are new. Engine thread only; nothing allocates after create. */
#ifndef SCHEDULER_PLANNER_H
#define SCHEDULER_PLANNER_H

#include "kernels/plan.h"

#include "config/config.h"

struct planner;

/* Microseconds, as measured on this machine (calibration.h). All 0: grouping always pays. */
struct planner_costs {
    double chunk_us;    /* of reading a chunk of one layer, all KV heads */
    double grouping_us; /* of a pass in which queries read something together, beside what it reads */
};

struct planner_options {
    uint32_t queries_max;  /* of a plan */
    uint32_t partials_max; /* of a plan; planner_partials_least() or more: with few, queries share less */
    uint32_t slice_states; /* states that slices may leave, which are not among those of plans */
    uint32_t tasks;        /* pieces of work to aim for, of all KV heads together */
    uint32_t kv_heads, group, block_size;
    uint32_t window;            /* of the layers that the plans are for */
    uint32_t first_loose_table; /* tables below it are sequences', which agree at an index only if they
                                   agree before it; those from it on may hold anything */
    struct planner_costs costs;
    struct tile_caps caps; /* of the backend; of work tiles of many query heads, too, which then lie within
                              nodes */
};

/* A query to be planned. `version` changes whenever blocks that the table already had change; growth at
 * its end does not count. `sharing` says whether it reads together with its neighbours in the order:
 * never (off), wherever they share a chunk (on), or (auto) where that saves time or queries that are on
 * share something anyway. */
struct planner_query {
    uint32_t table, keys;
    uint64_t version;
    enum sharing sharing;
};

/* planner_create(options, planner): takes about 230 bytes a query of queries_max and 80 a partial state, 2.3
 * MB as the daemon has it. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int planner_create(const struct planner_options *options, struct planner **planner);
void planner_destroy(struct planner *planner);

/* planner_make(planner, queries, n, tables, stride): the plan of n <= queries_max queries over the tables
 * [..][stride]; query i of the plan is queries[i]. It stays valid until the next call. */
const struct plan *planner_make(struct planner *planner, const struct planner_query *queries, uint32_t n,
                                const uint32_t *tables, uint32_t stride);

/* planner_make_slice: likewise the plan of some segments of n queries. Give the queries as planner_order()
 * has them, and the same ones for all slices. slice.base is the first segment that any of them
 * sees. */
const struct plan *planner_make_slice(struct planner *planner, const struct planner_query *queries,
                                      uint32_t n, const uint32_t *tables, uint32_t stride,
                                      const struct plan_slice *slice);

/* A query as its place in the order has it. */
struct planner_place {
    uint32_t query;      /* index in queries */
    uint32_t first, end; /* chunks that it reads */
    uint32_t common;     /* leading chunks that it can read together with the next one; 0: the last one */
};

/* planner_order(planner, queries, n, tables, stride, places): n <= queries_max queries in an order in which
 * those that share lie side by side. What a call reads follows from it before a plan is made. */
void planner_order(struct planner *planner, const struct planner_query *queries, uint32_t n,
                   const uint32_t *tables, uint32_t stride, struct planner_place *places);

/* planner_partials_least(queries, keys): partial states without which not every plan of so many queries, with
 * so many keys at most, can be made. */
uint32_t planner_partials_least(uint32_t queries, uint64_t keys);

/* planner_queries_of_work_tile(group): queries that read K and V together at most. */
uint32_t planner_queries_of_work_tile(uint32_t group);

#endif
