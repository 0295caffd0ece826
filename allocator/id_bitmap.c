/* SPDX-License-Identifier: Apache-2.0 */
/* id_bitmap.c - see id_bitmap.h.
 *
 *   I1  bit i of level k+1 is set exactly when word i of level k is not zero
 *   I2  bits beyond the capacity are clear
 *   I3  count is the number of set bits of level 0
 *   I4  words of level 0 before `lowest` are zero */
#include "allocator/id_bitmap.h"

#include "config/numbers.h"

#include <stdlib.h>

int id_bitmap_init(struct id_bitmap *set, uint32_t n)
{
    *set = (struct id_bitmap){.capacity = n, .count = n};
    /* n / 64 + n / 64^2 + ... words, and one more at each level, for its last bits */
    uint64_t *level = calloc(n / 63 + ID_BITMAP_LEVELS_MAX, sizeof *level);
    if (!level)
        return ATTND_NO_MEMORY;
    uint32_t bits = n;
    do {
        set->level[set->levels++] = level;
        for (uint32_t w = 0; w < bits / 64; w++)
            level[w] = ~UINT64_C(0);
        if (bits % 64)
            level[bits / 64] = (UINT64_C(1) << bits % 64) - 1;
        bits = ceiling(bits, 64);
        level += bits;
    } while (bits > 1);
    return 0;
}

void id_bitmap_deinit(struct id_bitmap *set)
{
    free(set->level[0]);
    *set = (struct id_bitmap){0};
}

const char *id_bitmap_fault(const struct id_bitmap *set)
{
    uint32_t count = 0, bits = set->capacity;
    for (unsigned k = 0; k < set->levels; k++) {
        uint32_t words = ceiling(bits, 64);
        for (uint32_t w = 0; w < words; w++) {
            uint64_t word = set->level[k][w];
            if (k == 0 && word && w < set->lowest)
                return "bitmap I4: a member lies before the hint";
            if (k == 0)
                count += (uint32_t)__builtin_popcountll(word);
            if (k + 1 < set->levels && (set->level[k + 1][w / 64] >> w % 64 & 1) != (word != 0))
                return "bitmap I1: a summary bit differs from its word";
            if (w + 1 == words && bits % 64 && word >> bits % 64)
                return "bitmap I2: a bit beyond the capacity is set";
        }
        bits = words;
    }
    return count == set->count ? NULL : "bitmap I3: the count differs from the bits";
}
