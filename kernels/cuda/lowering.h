/* SPDX-License-Identifier: Apache-2.0 */
/* lowering.h - a plan as the GPU's launches take it: lists of tiles, by their width and split group, and the
 * merges that are left. A pure function of the plan, the block tables and the geometry; needs no GPU.
 *
 *   work tile of the plan, 5 queries x 4 query heads 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19
 *   its tiles, of widths 16 and 8              [---------------- 16 -------------------] [-- 8 --]
 *
 * A launch takes the tiles of one width and one kind of split group, late ones apart. The tiles of a group
 * follow each other; where they are three, an empty one makes up the fourth. */
#ifndef KERNELS_CUDA_LOWERING_H
#define KERNELS_CUDA_LOWERING_H

#include "kernels/cuda/device/step.h"
#include "kernels/plan.h"

#include <stdbool.h>

/* 2^group_bits splits are computed side by side, 2^cta_bits of them by a thread block. */
struct cuda_split_kind {
    uint32_t group_bits, cta_bits;
};

/* Lists [late or not][width][kind of split group]. The last one is launched first. */
enum { CUDA_SPLIT_KINDS = 6, CUDA_TILE_LISTS = 2 * PLAN_WIDTHS_MAX * CUDA_SPLIT_KINDS };

extern const struct cuda_split_kind cuda_split_kinds[CUDA_SPLIT_KINDS]; /* largest groups last */

struct cuda_lowering {
    const struct plan *plan;
    const struct tile_caps *caps; /* of the backend; those of the plan, if it has any */
    const uint32_t *tables;       /* [..][stride] */
    uint32_t stride, block_size, group, window;
};

struct cuda_tile_list {
    struct cuda_work_tile *tiles;
    uint32_t count;
};

static inline uint32_t cuda_width_of_list(uint32_t list)
{
    return list / CUDA_SPLIT_KINDS % PLAN_WIDTHS_MAX;
}

/* The list of a width's work tiles that are of no split group, and not late. */
static inline uint32_t cuda_list_of_width(uint32_t width)
{
    return (PLAN_WIDTHS_MAX + width) * CUDA_SPLIT_KINDS;
}

/* cuda_lower_tiles: add tiles to the lists, in the plan's order. Lists without room, whose tiles are NULL,
 * only count them. */
void cuda_lower_tiles(const struct cuda_lowering *of, struct cuda_tile_list lists[CUDA_TILE_LISTS]);

/* cuda_lower_queries: the queries of all work tiles, [cuda_work_tile_queries(plan)]. */
uint32_t cuda_work_tile_queries(const struct plan *plan);
void cuda_lower_queries(const struct plan *plan, struct cuda_work_tile_query *queries);

/* What is left to merge. */
struct cuda_merges {
    uint32_t count;
    uint32_t longest; /* partials of one of them, at most */
    bool spans;       /* one has partials of several spans */
};

/* cuda_lower_merges: write the merges that no split group does to merges[plan->merge_count]. */
struct cuda_merges cuda_lower_merges(const struct plan *plan, struct plan_merge *merges);

#endif
