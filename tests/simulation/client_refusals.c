/* SPDX-License-Identifier: Apache-2.0 */
/* client_refusals.c - see clients.h: refusals for want of blocks.
 *
 * Each is looked at while the pool is as it was when the engine refused. It is right only if the request
 * could have taken more blocks than were free or cached and promised to nobody. The bound is on one side:
 * all that the request may touch counts as what it needs, and what is promised is what the engine says,
 * but no more than what all sequences that declared something could still take, while no workload runs. A
 * request that waits in the queue is not refused while a step in flight, or a fence, may give blocks back,
 * nor if swapping out those that nobody uses would do. Batches are left out. */
#include "tests/simulation/clients.h"

#include "config/numbers.h"
#include "scheduler/policy.h"
#include "scheduler/reservation.h"
#include "tests/simulation/symbolic_file.h"
#include "tests/simulation/watch.h"

#include <string.h>

enum { ROWS_MOST = 64 };

static const struct geometry *geometry(void)
{
    return &sim.config.geometry;
}

static struct block_tables *tables(void)
{
    return step_tables(watch_state()->steps);
}

/* Blocks that are not resident of a sequence, at most; 0 of one that is unknown. */
static uint64_t absent(uint64_t id)
{
    uint32_t row = sequences_find(watch_state()->sequences, id);
    struct block_table_view view = {0};
    if (row != NO_ROW)
        view = block_tables_view(tables(), row);
    return view.swapped ? view.entries : 0;
}

/* Blocks in which some rows of a sequence lie. */
static uint64_t touched(const struct request *request, const struct request_sequence *s)
{
    uint32_t row = sequences_find(watch_state()->sequences, s->id), size = geometry()->block_size;
    if (row == NO_ROW || !request->rows.k)
        return 0;
    uint32_t at = block_tables_cursor(tables(), row, request->rows.layer);
    return geometry_blocks(geometry(), at + s->rows) - at / size;
}

/* Blocks that `n` sequences more may take up to max_tokens, from `length` on, with a copy of the last one. */
static uint64_t to_come(uint32_t max_tokens, uint32_t length, uint64_t n)
{
    return max_tokens > length
               ? n * (geometry_blocks(geometry(), max_tokens) - length / geometry()->block_size)
               : 0;
}

/* Blocks that a request may take. */
static uint64_t need_of(const struct request *request)
{
    uint32_t row = request->id ? sequences_find(watch_state()->sequences, request->id) : NO_ROW;
    struct block_table_view view = {0};
    uint32_t declared = 0;
    uint64_t need = 0;
    if (row != NO_ROW) {
        view = block_tables_view(tables(), row);
        declared = sequences_at(watch_state()->sequences, row)->options.max_tokens;
    }
    switch (request->kind) {
    case REQUEST_CREATE:
        return to_come(request->create.options.max_tokens, 0, 1);
    case REQUEST_LEASE:
        return request->lease.blocks;
    case REQUEST_FORK:
        return absent(request->id) + to_come(declared, request->fork.length, request->fork.count) +
               (declared > 0);
    case REQUEST_EXPORT:
        return absent(request->id);
    case REQUEST_TRUNCATE:
        return view.entries - smaller(view.entries, request->truncate.length / geometry()->block_size);
    default:
        for (uint32_t i = 0; i < request->attend.sequence_count; i++)
            need += absent(request->attend.sequences[i].id) + touched(request, &request->attend.sequences[i]);
        return need;
    }
}

/* Blocks that are promised, at most. */
static uint64_t promised(void)
{
    uint64_t sum = 0, by_engine = reservation_promised(watch_state());
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++) {
        const struct sequence *s = sequences_at(watch_state()->sequences, row);
        if (s->workload)
            return by_engine;
        if (s->id == 0 || !s->options.max_tokens)
            continue;
        sum += to_come(s->options.max_tokens, block_tables_view(tables(), row).length, 1);
    }
    return sum < by_engine ? sum : by_engine;
}

/* Blocks that swapping out every sequence would give that nobody uses, and that a request may displace; 0
 * if these, and those that others wait for, do not all fit the host, each with all its blocks. Those that
 * the step being formed has looked at stay. */
static uint64_t swappable(const struct request *request)
{
    uint32_t rows[ROWS_MOST], n = 0, host = 0;
    uint64_t forming = 0;
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++) {
        const struct sequence *s = sequences_at(watch_state()->sequences, row);
        forming = s->forming > forming ? s->forming : forming;
    }
    for (uint32_t row = 0; row < sim.config.limits.sequences; row++) {
        const struct sequence *s = sequences_at(watch_state()->sequences, row);
        if (s->id == 0 || s->workload || s->lease || s->options.max_tokens ||
            !policy_may_displace(request->queued.priority, s->options.priority) ||
            block_tables_view(tables(), row).swapped)
            continue;
        host += block_tables_host_need(tables(), row);
        if (s->forming != forming && !s->queued)
            rows[n++] = row;
    }
    return host <= block_tables_counts(tables()).host_free ? block_tables_reclaimable(tables(), rows, n) : 0;
}

static void look(const struct op *op)
{
    const struct request *request = op->request;
    const struct block_pool_counts pool = block_pool_counts(block_tables_pool(tables()));
    bool waited = strncmp(request->detail, "needs ", 6) == 0; /* in the queue */
    uint64_t need = need_of(request) + promised(), room = (uint64_t)pool.free + pool.cached;
    if (waited && (steps_in_flight(watch_state()->steps) || pool.fenced))
        sim_fail("request %llu is refused for want of blocks, and a step in flight may give some back",
                 (unsigned long long)op->action);
    if (waited && !symbolic_file_has_failed()) /* else host memory may have no room */
        room += swappable(request);
    if (need <= room)
        sim_fail("request %llu is refused for want of blocks: %s; but it takes, with all promises, %llu at "
                 "most, and "
                 "%llu are to be had",
                 (unsigned long long)op->action, request->detail, (unsigned long long)need,
                 (unsigned long long)room);
    sim.seen.refusals++;
}

void client_refusals_look(void)
{
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        struct op *op = &clients_ops()[i];
        if (!op->request || op->done || op->looked_at || op->request->status != ATTND_NO_BLOCKS)
            continue;
        op->looked_at = true;
        if (op->request->kind != REQUEST_BATCH)
            look(op);
    }
}
