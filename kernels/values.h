/* SPDX-License-Identifier: Apache-2.0 */
/* values.h - the value of every generated q, k and v element, as a pure function.
 *
 * A workload needs no data from outside: each element is computed from (seed, content id, position,
 * layer, tensor, head, dimension) alone. So a checker can recompute any of them without looking at a
 * block table, and sequences that share a content id share values. The function (docs/WORKLOADS.md):
 *
 *   counter = {content low, content high, position, layer << 20 | tensor << 18 | head << 6 | dim / 4}
 *   key     = {seed low, seed high}
 *   words   = Philox4x32-10(counter, key)
 *   integer = sum of the four bytes of words[dim % 4], minus 510      in -510 .. 510, nearly normal
 *   value   = integer / 128                                           standard deviation 1.15, exact in f32
 *
 * and one rounding to the tensor's format at the end (numeric.h). Integers until the last conversion,
 * so every backend gives the same bits.
 *
 * A sum of products of such values is exact in f32 in whatever order it is formed. Tests that have to notice the order, and
 * benchmarks, take the wide values of a spread up to 10:
 *
 *   value   = int32(words[dim % 4]) / 2^31 * 2^(bit 0 of the word) * 2^channel      a whole mantissa, within +-2
 *   channel = (dim * 2654435769 >> 16) % (2 * spread + 1) - spread                  of k the opposite: q and k balance
 *
 * and k has channels 8 times as large in one of 32 dimensions, another one in each head, as real models have. The largest
 * is 2^14, within f16. */
#ifndef KERNELS_VALUES_H
#define KERNELS_VALUES_H

#include "config/geometry.h"

#include <stdint.h>

enum values_tensor { VALUES_Q, VALUES_K, VALUES_V };

/* Whose values: the workload's seed, and which content of it. */
struct value_source {
    uint64_t seed, content;
    uint32_t wide; /* 1 + spread: wide values; 0: none of them */
};

enum {
    VALUES_OUTLIER_EVERY = 32, /* dimensions of k, */
    VALUES_OUTLIER_EXPONENT = 3
};

/* What is wrong with a token that was given: k, or v, of which an element is not finite or, of v, 2^97 or more. */
enum { KV_WRONG_K = 1, KV_WRONG_V = 2 };

/* values_row(source, position, layer, tensor, head, dims, row): the first `dims` elements of one
 * head of one token as f32. layer < 4096, head < 4096, dims a multiple of 4 and <= 256. Any thread. */
void values_row(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                uint32_t head, uint32_t dims, float *row);

/* values_words: the four words that those of dimensions dim .. dim + 3 come from. */
void values_words(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                  uint32_t head, uint32_t dim, uint32_t word[4]);

#endif
