/* SPDX-License-Identifier: Apache-2.0 */
/* test_staging.c - memory for tensors.
 *
 * Property: whatever is taken and given back, blocks lie within the memory, aligned, and none overlaps
 * another; a block is refused only when no gap is large enough, for large ones behind the first quarter,
 * or as many are out as may be; what is counted as used is what is out.
 * Method: random histories against a map of the memory. One case: CK_RUN_CASE=staging. */
#include "scheduler/shape.h"
#include "scheduler/staging.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { UNITS = 200, BLOCKS = 24, BYTES = UNITS * STAGING_ALIGNMENT, SMALL = 450 };

static _Alignas(STAGING_ALIGNMENT) uint8_t memory[BYTES];
static struct random source;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(random_next(&source) % n);
}

/* The longest run of units that are free, from `first` on. */
static uint32_t longest_gap(const bool *used, uint32_t first)
{
    uint32_t longest = 0, run = 0;
    for (uint32_t i = first; i < UNITS; i++) {
        run = used[i] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest;
}

START_TEST(blocks_never_overlap)
{
    struct staging *s;
    struct {
        uint8_t *at;
        uint32_t units;
    } out[BLOCKS];
    uint32_t count = 0, units_out = 0;
    bool used[UNITS] = {false};
    const struct staging_options options = {memory, BYTES + STAGING_ALIGNMENT - 1, SMALL, BLOCKS, NULL};
    ck_assert_int_eq(staging_create(&options, &s), 0);
    for (int step = 0; step < 100000; step++) {
        if (count && below(2)) {
            uint32_t i = below(count);
            staging_give(s, out[i].at);
            memset(&used[(out[i].at - memory) / STAGING_ALIGNMENT], false, out[i].units);
            units_out -= out[i].units;
            out[i] = out[--count];
        } else {
            size_t bytes = below(below(4) ? 500 : BYTES / 2);
            uint32_t units = bytes ? (uint32_t)((bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT) : 1;
            uint8_t *at = staging_take(s, bytes);
            uint32_t from = bytes > SMALL ? UNITS / 4 : 0;
            ck_assert((at != NULL) == (count < BLOCKS && units <= longest_gap(used, from)));
            if (!at)
                continue;
            size_t first = (size_t)(at - memory) / STAGING_ALIGNMENT;
            ck_assert((uintptr_t)at % STAGING_ALIGNMENT == 0 && first >= from && first + units <= UNITS);
            for (uint32_t i = 0; i < units; i++) {
                ck_assert(!used[first + i]);
                used[first + i] = true;
            }
            out[count].at = at;
            out[count++].units = units;
            units_out += units;
        }
        ck_assert_uint_eq(staging_used(s), (size_t)units_out * STAGING_ALIGNMENT);
    }
    staging_give(s, NULL);
    staging_destroy(s);
}
END_TEST

TCase *staging_case(void)
{
    TCase *t = tcase_create("staging");
    tcase_add_test(t, blocks_never_overlap);
    return t;
}
