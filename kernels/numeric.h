/* SPDX-License-Identifier: Apache-2.0 */
/* numeric.h - conversion between f32 and the stored number formats, one element at a time and exactly
 * defined.
 *
 * To a narrower format: round to nearest, ties to even; beyond the largest finite value saturate to it;
 * NaN stays NaN. To f32: exact. This is the definition that every faster conversion is compared with.
 * e4m3 and e5m2 are the OCP 8-bit formats (OFP8, revision 1.0); e4m3 has no infinity. */
#ifndef KERNELS_NUMERIC_H
#define KERNELS_NUMERIC_H

#include "config/geometry.h"

#include <stdbool.h>

/* Element `i` of an array of `dtype`. The arrays need no alignment. */
float numeric_load(enum dtype dtype, const void *array, size_t i);
void numeric_store(enum dtype dtype, void *array, size_t i, float value);

/* numeric_to_float, numeric_from_float: n elements. The arrays do not overlap. */
void numeric_to_float(enum dtype dtype, const void *from, size_t n, float *to);
void numeric_from_float(enum dtype dtype, const float *from, size_t n, void *to);

/* numeric_first_nonfinite: index of the first NaN or infinity among n elements, n if there is none. */
size_t numeric_first_nonfinite(enum dtype dtype, const void *array, size_t n);

/* numeric_first_unsummable: likewise of the first that is 2^97 (1.6e29) or more, too, by magnitude: sums of
 * fewer than 2^30 others stay within f32. For values, and outputs that are merged. */
size_t numeric_first_unsummable(enum dtype dtype, const void *array, size_t n);

#endif
