/* SPDX-License-Identifier: Apache-2.0 */
/* extreme.h - values of q and k whose scores have any size, infinite ones too.
 *
 * Both are 0 but for two elements: in q a power of two twice, in k too, or a power and its opposite. So a dot
 * product is exact, or 0, or infinite, or the difference of two infinities. A head of k has powers of one size
 * and sign mostly: some maxima are infinite, some huge, some ordinary, and some scores -inf alone. */
#ifndef TESTS_CONFORMANCE_EXTREME_H
#define TESTS_CONFORMANCE_EXTREME_H

#include "kernels/values.h"

/* extreme_row: as values_row(), within `dtype`; v has values_row(). */
void extreme_row(struct value_source source, uint32_t position, uint32_t layer, enum values_tensor tensor,
                 uint32_t head, uint32_t dims, enum dtype dtype, float *row);

#endif
