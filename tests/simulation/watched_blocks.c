/* SPDX-License-Identifier: Apache-2.0 */
/* watched_blocks.c - see watch.h: blocks of the pool, and of the host.
 *
 * Every block has a state here, which follows from what was asked of the pool; after each call the pool
 * must have it in one that is a legal transition away. A fence has gone when its step has retired (I7). */
#include "tests/simulation/watch.h"

#include "allocator/swap_ledger.h"
#include "scheduler/client_queue.h"
#include "scheduler/poison.h"
#include "scheduler/unwritten.h"
#include "tests/simulation/simulation.h"
#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/transitions.h"
#include "tests/simulation/watched.h"

#include <string.h>

enum { BLOCKS_MOST = 16384, HOST_BLOCKS_MOST = 1024 };

static struct {
    const struct block_pool *pool;
    uint32_t count, fenced_count;
    uint32_t fenced[BLOCKS_MOST];
    uint8_t state[BLOCKS_MOST];
    bool leased[BLOCKS_MOST], listed[BLOCKS_MOST]; /* among `fenced` */
    uint64_t last_step[BLOCKS_MOST];               /* of those that held it, the last one's */
} blocks;

static struct {
    const struct swap_ledger *ledger;
    uint8_t state[HOST_BLOCKS_MOST];
} host;

/* ---- blocks of the pool -------------------------------------------------------------------------- */

static enum state state_of(uint32_t id)
{
    bool published = block_pool_is_published(blocks.pool, id), shared = block_pool_refs(blocks.pool, id) > 1;
    switch (block_pool_state(blocks.pool, id)) {
    case BLOCK_FREE:
        return STATE_FREE;
    case BLOCK_CACHED:
        return STATE_CACHED;
    case BLOCK_FENCED:
        return published ? STATE_FENCED_PUBLISHED : STATE_FENCED;
    case BLOCK_HELD:
        break;
    }
    if (blocks.leased[id] && !shared && !published)
        return STATE_LEASED;
    return published ? shared ? STATE_SHARED_PUBLISHED : STATE_PUBLISHED : shared ? STATE_SHARED : STATE_HELD;
}

static void go_to(uint32_t id, enum state to)
{
    transitions_note(MACHINE_BLOCKS, (enum state)blocks.state[id], to);
    blocks.state[id] = (uint8_t)to;
}

/* A call has been made that may have changed a block. */
static void look(uint32_t id)
{
    enum state to = state_of(id);
    go_to(id, to);
    if ((to == STATE_FENCED || to == STATE_FENCED_PUBLISHED) && !blocks.listed[id]) {
        blocks.listed[id] = true;
        blocks.fenced[blocks.fenced_count++] = id;
    }
}

WATCHED(int, block_pool_create, uint32_t n, uint32_t block_size, block_pool_evict_fn on_evict,
        block_pool_fill_fn on_fill, void *cookie, struct block_pool **pool)
{
    int rc = __real_block_pool_create(n, block_size, on_evict, on_fill, cookie, pool);
    if (n > BLOCKS_MOST)
        sim_fail("the simulation watches %u blocks at most", (unsigned)BLOCKS_MOST);
    blocks.pool = rc == 0 ? *pool : NULL;
    blocks.count = n;
    blocks.fenced_count = 0;
    memset(blocks.state, STATE_FREE, n);
    memset(blocks.leased, 0, n * sizeof *blocks.leased);
    memset(blocks.listed, 0, n * sizeof *blocks.listed);
    memset(blocks.last_step, 0, n * sizeof *blocks.last_step);
    return rc;
}

WATCHED(int, block_pool_acquire, struct block_pool *pool, uint32_t n, uint32_t *ids)
{
    int rc = __real_block_pool_acquire(pool, n, ids);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        if (blocks.state[ids[i]] == STATE_CACHED) /* it was evicted for that */
            go_to(ids[i], STATE_FREE);
        blocks.leased[ids[i]] = false;
        blocks.last_step[ids[i]] = 0;
        look(ids[i]);
    }
    return rc;
}

WATCHED(void, block_pool_retain, struct block_pool *pool, const uint32_t *ids, uint32_t n)
{
    __real_block_pool_retain(pool, ids, n);
    for (uint32_t i = 0; i < n; i++)
        look(ids[i]);
}

WATCHED(void, block_pool_release, struct block_pool *pool, const uint32_t *ids, uint32_t n, uint64_t step)
{
    __real_block_pool_release(pool, ids, n, step);
    for (uint32_t i = n; i-- > 0;) {
        if (step > blocks.last_step[ids[i]])
            blocks.last_step[ids[i]] = step;
        look(ids[i]);
    }
}

WATCHED(void, block_pool_publish, struct block_pool *pool, uint32_t id)
{
    __real_block_pool_publish(pool, id);
    look(id);
}

WATCHED(void, block_pool_unpublish, struct block_pool *pool, uint32_t id)
{
    __real_block_pool_unpublish(pool, id);
    look(id);
}

WATCHED(void, block_pool_retire, struct block_pool *pool, uint64_t step)
{
    uint32_t kept = 0;
    __real_block_pool_retire(pool, step);
    for (uint32_t i = 0; i < blocks.fenced_count; i++) {
        uint32_t id = blocks.fenced[i];
        look(id);
        bool fenced = blocks.state[id] == STATE_FENCED || blocks.state[id] == STATE_FENCED_PUBLISHED;
        if (fenced && blocks.last_step[id] <= step)
            sim_fail("I7: step %llu has retired, and block %u still waits for step %llu",
                     (unsigned long long)step, id, (unsigned long long)blocks.last_step[id]);
        blocks.listed[id] = fenced;
        if (fenced)
            blocks.fenced[kept++] = id;
    }
    blocks.fenced_count = kept;
}

WATCHED(uint32_t, block_pool_trim, struct block_pool *pool)
{
    uint32_t evicted = __real_block_pool_trim(pool);
    for (uint32_t id = 0; evicted && id < blocks.count; id++)
        look(id);
    return evicted;
}

void watched_blocks_leased(const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        blocks.leased[ids[i]] = true;
        look(ids[i]);
    }
}

bool watched_blocks_may_write(uint32_t block, bool forked)
{
    return blocks.state[block] == STATE_HELD || blocks.state[block] == STATE_LEASED ||
           (forked && blocks.state[block] == STATE_SHARED);
}

void watched_blocks_check_unwritten(void)
{
    const struct engine_state *state = watch_state();
    if (!sim.config.poison || !state || sim.lost || steps_in_flight(state->steps) ||
        step_failure(state->steps))
        return;
    bool slices =
        !client_queue_is_empty(state->clients); /* which may have appended more than is counted yet */
    for (uint32_t id = 0; id < blocks.count; id++) {
        bool held = block_pool_state(blocks.pool, id) == BLOCK_HELD && !blocks.leased[id] && !slices &&
                    !block_pool_is_published(blocks.pool, id),
             vacant = block_pool_state(blocks.pool, id) == BLOCK_FREE;
        uint32_t first = held ? block_pool_kept_fill(blocks.pool, id) : 0;
        if ((!held && !vacant) || poison_is_due(step_poison(state->steps), id))
            continue;
        if (!symbolic_backend_is_unwritten(id, first))
            sim_fail("block %u is %s, and something is left in it from slot %u on", id,
                     vacant ? "free" : "held", first);
        sim.seen.unwritten++;
    }
}

/* An output here is a tag, of which some have the bits of NaN. */
WATCHED(bool, unwritten_is_seen, const struct engine_state *state, const struct request *request)
{
    (void)state;
    (void)request;
    return false;
}

/* ---- blocks of the host -------------------------------------------------------------------------- */

static void look_at_host(uint32_t id)
{
    const struct host_block *block = &host.ledger->host[id];
    enum state to = block->refs == 0            ? STATE_FREE
                    : block->device == NO_BLOCK ? STATE_ON_HOST
                    : block->has_bytes          ? STATE_ON_BOTH
                                                : STATE_ON_DEVICE;
    transitions_note(MACHINE_HOST_BLOCKS, (enum state)host.state[id], to);
    host.state[id] = (uint8_t)to;
}

WATCHED(int, swap_ledger_init, struct swap_ledger *ledger, uint32_t n, uint32_t host_blocks)
{
    int rc = __real_swap_ledger_init(ledger, n, host_blocks);
    if (host_blocks > HOST_BLOCKS_MOST)
        sim_fail("the simulation watches %u host blocks at most", (unsigned)HOST_BLOCKS_MOST);
    host.ledger = rc == 0 ? ledger : NULL;
    memset(host.state, STATE_FREE, host_blocks);
    return rc;
}

WATCHED(uint32_t, swap_ledger_park, struct swap_ledger *ledger, uint32_t id)
{
    uint32_t at = __real_swap_ledger_park(ledger, id);
    look_at_host(at);
    return at;
}

WATCHED(void, swap_ledger_unpark, struct swap_ledger *ledger, uint32_t at)
{
    __real_swap_ledger_unpark(ledger, at);
    look_at_host(at);
}

WATCHED(void, swap_ledger_detach, struct swap_ledger *ledger, uint32_t at)
{
    __real_swap_ledger_detach(ledger, at);
    look_at_host(at);
}

WATCHED(void, swap_ledger_attach, struct swap_ledger *ledger, uint32_t at, uint32_t id)
{
    __real_swap_ledger_attach(ledger, at, id);
    look_at_host(at);
}
