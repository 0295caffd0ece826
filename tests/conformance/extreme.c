/* SPDX-License-Identifier: Apache-2.0 */
/* extreme.c - see extreme.h. */
#include "tests/conformance/extreme.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Powers of two that queries and keys have, from 1 to what their format holds. */
static int exponent_of(enum dtype dtype, uint32_t choice)
{
    static const int of[DTYPE_COUNT][4] = {[DTYPE_F32] = {0, 10, 63, 126},
                                           [DTYPE_F16] = {0, 5, 10, 15},
                                           [DTYPE_BF16] = {0, 10, 63, 126},
                                           [DTYPE_E4M3] = {0, 3, 6, 8},
                                           [DTYPE_E5M2] = {0, 5, 10, 15}};
    return of[dtype][choice % 4];
}

void extreme_row(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                 uint32_t head, uint32_t dims, enum dtype dtype, float *row)
{
    uint32_t word[4];
    if (tensor == VALUES_V) {
        values_row(source, position, layer, tensor, head, dims, row);
        return;
    }
    values_words(source, position, layer, tensor, head, 0, word);
    uint32_t kind = word[0] % 16; /* of a key: 0 is of another size, 1 is 0, 2 is a power and its opposite */
    bool of_head = tensor == VALUES_K && kind > 0, is_negative = word[1] % (tensor == VALUES_Q ? 2 : 8) == 0;
    float size = ldexpf(1, exponent_of(dtype, of_head ? head + kind / 14 : word[2]));
    memset(row, 0, dims * sizeof *row);
    if (tensor == VALUES_K && kind == 1)
        return;
    row[1] = is_negative ? -size : size;
    row[dims - 1] = tensor == VALUES_K && kind == 2 ? -row[1] : row[1];
}
