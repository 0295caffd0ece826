/* id_bitmap.c - see id_bitmap.h.
 *
 *   I1  bit i of level k+1 is set exactly when word i of level k is not zero
 *   I2  bits beyond the capacity are clear
 *   I3  count is the number of set bits of level 0
 *   I4  words of level 0 before `lowest` are zero */
#include "allocator/id_bitmap.h"

#include <stdlib.h>

static uint32_t words_for(uint32_t bits)
{
    return bits / 64 + (bits % 64 != 0);
}

int id_bitmap_init(struct id_bitmap *set, uint32_t n)
{
    uint32_t words[ID_BITMAP_LEVELS_MAX];
    size_t total = 0;
    *set = (struct id_bitmap){.capacity = n, .count = n};
    uint32_t bits = n;
    do {
        bits = words[set->levels++] = words_for(bits);
        total += bits;
    } while (bits > 1);
    uint64_t *memory = malloc((total + 1) * sizeof *memory);
    if (!memory)
        return ATTND_NO_MEMORY;

    bits = n;
    set->level[0] = memory;
    for (unsigned k = 0; k < set->levels; k++) {
        if (k > 0)
            set->level[k] = set->level[k - 1] + words[k - 1];
        for (uint32_t w = 0; w < words[k]; w++)
            set->level[k][w] = ~UINT64_C(0);
        if (bits % 64)
            set->level[k][words[k] - 1] = (UINT64_C(1) << bits % 64) - 1;
        bits = words[k];
    }
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
        uint32_t words = words_for(bits);
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
