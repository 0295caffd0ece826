/* SPDX-License-Identifier: Apache-2.0 */
/* id_bitmap.h - a set of ids 0..n-1 that gives out its lowest member.
 *
 * One bit an id in level 0; a bit of level k+1 says whether a word of level k has any bit set, so the
 * lowest member is found by one count-trailing-zeros a level: four levels for a million ids. Lowest
 * first keeps what is in use dense and makes every run repeatable, whatever was freed before
 * (docs/decisions/0001-lowest-id-bitmap.md). One writer thread; operations never allocate and cost
 * O(levels). */
#ifndef ALLOCATOR_ID_BITMAP_H
#define ALLOCATOR_ID_BITMAP_H

#include "config/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum { ID_BITMAP_LEVELS_MAX = 6 }; /* 64^6 > 2^32 */

struct id_bitmap {
    uint32_t capacity, count; /* ids in all, and members */
    unsigned levels;
    uint32_t lowest;                       /* no member lies in a word of level 0 before this one */
    uint64_t *level[ID_BITMAP_LEVELS_MAX]; /* one allocation, owned through level[0] */
};

/* id_bitmap_init(set, n): the full set 0..n-1. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int id_bitmap_init(struct id_bitmap *set, uint32_t n);
void id_bitmap_deinit(struct id_bitmap *set);

static inline bool id_bitmap_has(const struct id_bitmap *set, uint32_t id)
{
    return set->level[0][id / 64] >> (id % 64) & 1;
}

/* take and put are here to be inlined: a call each would double the cost of a pool operation */

/* The word of level 0 that holds the lowest member, found from the top. */
static inline uint32_t id_bitmap_find_lowest(const struct id_bitmap *set)
{
    uint32_t word = 0;
    for (unsigned k = set->levels - 1; k > 0; k--)
        word = word * 64 + (uint32_t)__builtin_ctzll(set->level[k][word]);
    return word;
}

/* Word `at` of level 0 has become empty: clear its summaries. */
static inline void id_bitmap_clear_summaries(struct id_bitmap *set, uint32_t at)
{
    for (unsigned k = 1; k < set->levels; k++, at /= 64) {
        set->level[k][at / 64] &= ~(UINT64_C(1) << at % 64);
        if (set->level[k][at / 64])
            break;
    }
}

static inline void id_bitmap_set_summaries(struct id_bitmap *set, uint32_t at)
{
    for (unsigned k = 1; k < set->levels; k++, at /= 64) {
        uint64_t before = set->level[k][at / 64];
        set->level[k][at / 64] |= UINT64_C(1) << at % 64;
        if (before)
            break;
    }
}

/* Take the lowest member out; the set must not be empty. */
static inline uint32_t id_bitmap_take(struct id_bitmap *set)
{
    assert(set->count > 0);
    uint32_t at = set->lowest;
    if (set->level[0][at] == 0)
        at = set->lowest = id_bitmap_find_lowest(set);
    uint64_t word = set->level[0][at];
    set->level[0][at] = word & (word - 1);
    if ((word & (word - 1)) == 0)
        id_bitmap_clear_summaries(set, at);
    set->count--;
    return at * 64 + (uint32_t)__builtin_ctzll(word);
}

/* Put back `id`, which must not be a member. */
static inline void id_bitmap_put(struct id_bitmap *set, uint32_t id)
{
    assert(id < set->capacity && !id_bitmap_has(set, id));
    uint32_t at = id / 64;
    uint64_t before = set->level[0][at];
    set->level[0][at] = before | UINT64_C(1) << id % 64;
    if (before == 0)
        id_bitmap_set_summaries(set, at);
    if (at < set->lowest)
        set->lowest = at;
    set->count++;
}

/* id_bitmap_fault: the first broken invariant as a constant sentence, NULL if all hold. O(n / 64). */
const char *id_bitmap_fault(const struct id_bitmap *set);

#endif
