/* SPDX-License-Identifier: Apache-2.0 */
/* id_ranges.c - see id_ranges.h. */
#include "scheduler/id_ranges.h"

#include <string.h>

static void remove_ranges(struct id_ranges *r, uint32_t i, uint32_t n)
{
    r->count -= n;
    memmove(&r->all[i], &r->all[i + n], (r->count - i) * sizeof *r->all);
}

/* Make the two ranges between which the fewest ids lie one. */
static void join_closest(struct id_ranges *r)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i + 1 < r->count; i++) {
        if (r->all[i + 1].first - r->all[i].last < r->all[best + 1].first - r->all[best].last)
            best = i;
    }
    r->all[best].last = r->all[best + 1].last;
    remove_ranges(r, best + 1, 1);
}

void id_ranges_add(struct id_ranges *r, uint64_t first, uint64_t last)
{
    uint32_t i = 0, n = 0;
    while (i < r->count && r->all[i].last + 1 < first)
        i++;
    for (; i + n < r->count && r->all[i + n].first <= last + 1; n++) { /* they meet */
        first = r->all[i + n].first < first ? r->all[i + n].first : first;
        last = r->all[i + n].last > last ? r->all[i + n].last : last;
    }
    if (n > 0) {
        remove_ranges(r, i + 1, n - 1);
    } else {
        memmove(&r->all[i + 1], &r->all[i], (r->count - i) * sizeof *r->all);
        r->count++;
    }
    r->all[i] = (struct id_range){first, last};
    if (r->count > ID_RANGES_MOST)
        join_closest(r);
}

bool id_ranges_has(const struct id_ranges *r, uint64_t id)
{
    uint32_t low = 0, high = r->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->all[middle].last < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->count && r->all[low].first <= id;
}

void id_ranges_remove_below(struct id_ranges *r, uint64_t id)
{
    uint32_t n = 0;
    while (n < r->count && r->all[n].last < id)
        n++;
    remove_ranges(r, 0, n);
    if (r->count && r->all[0].first < id)
        r->all[0].first = id;
}
