/* SPDX-License-Identifier: Apache-2.0 */
/* block_pool.h - a fixed pool of KV blocks, named by 32-bit ids and counted by references.
 *
 * A block is in exactly one state:
 *
 *   FREE     refs 0, in the free bitmap
 *   HELD     refs >= 1
 *   CACHED   refs 0, kept because its content is published for reuse; evicted oldest first when FREE
 *            runs out
 *   FENCED   refs 0, but a step in flight may still touch it; becomes FREE or CACHED when that step
 *            retires
 *
 * Beside its references a block has a fill: while it is HELD, the largest number of its token slots
 * that one of its holders has; while nobody holds it and it is published, block_size. A holder that has
 * some slots of a block and not all is a partial holder. The caller lists and counts those of each
 * block (block_pool_partials). Once only partial holders are left, the pool asks the caller for the
 * fill.
 *
 * Steps are numbered from 1 in the order of their submission and retire in that order. The pool hands
 * out ids and sees no bytes. Engine thread only; nothing allocates after create. */
#ifndef ALLOCATOR_BLOCK_POOL_H
#define ALLOCATOR_BLOCK_POOL_H

#include "config/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block_past; /* block_log.h */

#define NO_BLOCK UINT32_MAX

enum { STEPS_IN_FLIGHT_MAX = 4 }; /* submitted or being formed, and not retired */

enum block_state { BLOCK_FREE, BLOCK_HELD, BLOCK_CACHED, BLOCK_FENCED };

struct block_pool;

struct block_pool_counts {
    uint32_t blocks, free, held, cached, fenced;
    uint32_t shared; /* of the held: those with more than one reference */
    uint64_t filled; /* slots filled in held blocks */
    uint64_t evictions, failures;
};

/* Called when a cached block is about to be reused: its content must be forgotten. */
typedef void (*block_pool_evict_fn)(uint32_t id, void *cookie);

/* Called when all holders of a HELD block are partial and its fill may have fallen: returns the largest
 * number of slots that one of them has, at most the old fill. */
typedef uint32_t (*block_pool_fill_fn)(uint32_t id, void *cookie);

/* The list of a block's partial holders; `first` means nothing while `count` is 0. */
struct block_partials {
    uint32_t first, count;
};

/* block_pool_create(blocks, block_size, on_evict, on_fill, cookie, pool): all blocks free. on_evict may
 * be NULL if nothing is ever published, on_fill if there are never partial holders. Returns 0 or
 * ATTND_NO_MEMORY. */
MUST_USE int block_pool_create(uint32_t blocks, uint32_t block_size, block_pool_evict_fn on_evict,
                               block_pool_fill_fn on_fill, void *cookie, struct block_pool **pool);
void block_pool_destroy(struct block_pool *pool);

/* block_pool_set_log: changes are noted there from now on; borrowed. Without one, a branch an operation. */
struct block_log;
void block_pool_set_log(struct block_pool *pool, struct block_log *log);

/* block_pool_set_vacated: `vacated` is called when slots [first, end) of a block come to hold nothing that anybody has: all
 * of one that is FREE from now on, or those of a HELD one that is not published and by which its fill falls; first may be end. For
 * whoever marks them (scheduler/poison.h). Without it, a branch an operation. */
typedef void (*block_pool_vacated_fn)(uint32_t id, uint32_t first, uint32_t end, void *cookie);
void block_pool_set_vacated(struct block_pool *pool, block_pool_vacated_fn vacated, void *cookie);

/* block_pool_note: something has happened to a block by which its state does not change: COPIED, SWAPPED_OUT or
 * SWAPPED_IN (block_log.h), and from or to where. */
void block_pool_note(const struct block_pool *pool, unsigned kind, uint32_t id, uint32_t from);

/* block_pool_acquire(pool, n, ids): take `n` blocks, lowest free id first, then the oldest cached ones.
 * All or nothing. Each starts with one reference, owned by the caller, a new generation and a fill of
 * 0. O(n). Returns 0 or ATTND_NO_BLOCKS (pool unchanged but for the failure count). */
MUST_USE int block_pool_acquire(struct block_pool *pool, uint32_t n, uint32_t *ids);

/* block_pool_retain(pool, ids, n): one more reference to each, none named twice: HELD blocks, or the first
 * one to CACHED or FENCED blocks that are published (a prefix hit). O(n). */
void block_pool_retain(struct block_pool *pool, const uint32_t *ids, uint32_t n);

/* block_pool_release(pool, ids, n, step): drop a reference to each, none named twice, from the last to the
 * first, whose owner takes part in steps up to `step` (0: in none) and is no longer listed as a partial
 * holder. The last reference frees, caches or fences the block. O(n), plus the partial holders of those of
 * which only partial holders are left. */
void block_pool_release(struct block_pool *pool, const uint32_t *ids, uint32_t n, uint64_t step);

/* block_pool_set_fill(pool, id, slots): of a HELD block; _raise_fill: to at least so many; _lower_fill:
 * a partial holder has fewer slots than before, O(partial holders). */
void block_pool_set_fill(struct block_pool *pool, uint32_t id, uint32_t slots);
void block_pool_raise_fill(struct block_pool *pool, uint32_t id, uint32_t slots);
void block_pool_lower_fill(struct block_pool *pool, uint32_t id);

/* block_pool_partials: of a HELD block, for the caller to change; valid while it is HELD. O(1). */
struct block_partials *block_pool_partials(struct block_pool *pool, uint32_t id);

/* block_pool_publish, _unpublish: whether the content of a HELD (for unpublish: any but FREE) block is
 * worth keeping once nobody holds it. Unpublishing a CACHED block frees it. O(1). */
void block_pool_publish(struct block_pool *pool, uint32_t id);
void block_pool_unpublish(struct block_pool *pool, uint32_t id);

/* block_pool_retire(pool, step): all steps up to `step` are done; fences on them are lifted, in the
 * order in which the blocks were released. O(fenced blocks). */
void block_pool_retire(struct block_pool *pool, uint64_t step);

uint64_t block_pool_retired(const struct block_pool *pool);
uint32_t block_pool_refs(const struct block_pool *pool, uint32_t id);
uint32_t block_pool_fill(const struct block_pool *pool, uint32_t id);
uint32_t block_pool_kept_fill(const struct block_pool *pool, uint32_t id); /* as it was noted last */
uint32_t block_pool_generation(const struct block_pool *pool, uint32_t id);
enum block_state block_pool_state(const struct block_pool *pool, uint32_t id);
bool block_pool_is_published(const struct block_pool *pool, uint32_t id);

/* block_pool_now: a block as it is, for block_log_rewind(); whose it is stays 0 (block_log_key()). */
struct block_past block_pool_now(const struct block_pool *pool, uint32_t id);

/* Blocks that an acquire could get now: free and cached. */
uint32_t block_pool_available(const struct block_pool *pool);
struct block_pool_counts block_pool_counts(const struct block_pool *pool);

/* block_pool_trim: evict every cached block. Returns how many. */
uint32_t block_pool_trim(struct block_pool *pool);

/* block_pool_rank: of a cached block, how many are evicted before it; more than there are, perhaps, when there have been
 * more than BLOCK_POOL_EXACT_RANKS. O(1), or O(those that were cached since the last time). */
enum { BLOCK_POOL_EXACT_RANKS = 65536 };
uint32_t block_pool_rank(struct block_pool *pool, uint32_t id);

/* block_pool_leaves_before: of two cached blocks, whether `id` is evicted before `other`. O(1). */
bool block_pool_leaves_before(const struct block_pool *pool, uint32_t id, uint32_t other);

/* block_pool_check(pool, id, census): the first broken invariant of one block as a constant sentence, NULL
 * if all hold; the block is added to the census. block_pool_watch(pool, census, counted): this census has
 * the blocks below `counted`, and from now on follows their changes (0: it has none).
 * block_pool_check_census: whether one that has all blocks agrees with the pool's counters;
 * O(blocks / 64). */
struct block_pool_census {
    uint32_t states[4]; /* blocks in each */
    uint32_t shared;
    uint64_t filled;
};
const char *block_pool_check(const struct block_pool *pool, uint32_t id, struct block_pool_census *census);
void block_pool_watch(struct block_pool *pool, struct block_pool_census *census, uint32_t counted);
const char *block_pool_check_census(const struct block_pool *pool, const struct block_pool_census *census);

#endif
