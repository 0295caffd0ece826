/* SPDX-License-Identifier: Apache-2.0 */
/* id_ranges.h - a set of ids, as a bounded number of ranges: when they become too many, the two between which the fewest ids lie
 * become one, so the set has more ids than were added, never fewer. */
#ifndef SCHEDULER_ID_RANGES_H
#define SCHEDULER_ID_RANGES_H

#include <stdbool.h>
#include <stdint.h>

enum { ID_RANGES_MOST = 256 };

/* Ids first..last. */
struct id_range {
    uint64_t first, last;
};

/* One that is all zeros is empty. */
struct id_ranges {
    struct id_range all[ID_RANGES_MOST + 1]; /* [count], in order, with ids between them */
    uint32_t count;
};

/* id_ranges_add: add ids first..last. id_ranges_has: whether an id is in the set. id_ranges_remove_below: take those below `id`
 * out. O(ranges). */
void id_ranges_add(struct id_ranges *ranges, uint64_t first, uint64_t last);
bool id_ranges_has(const struct id_ranges *ranges, uint64_t id);
void id_ranges_remove_below(struct id_ranges *ranges, uint64_t id);

#endif
