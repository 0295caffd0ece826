/* SPDX-License-Identifier: Apache-2.0 */
/* cover.h - small sets of cases in which every combination of values of any few axes occurs. */
#ifndef TESTS_CONFORMANCE_COVER_H
#define TESTS_CONFORMANCE_COVER_H

#include <stddef.h>
#include <stdint.h>

enum { COVER_AXES_MAX = 16 };

/* One case: the index of a value on each axis. */
struct cover_case {
    uint8_t value[COVER_AXES_MAX];
};

/* cover_make(sizes, axes, strength, cases): a set of cases such that for every choice of `strength` (2
 * or 3) axes every combination of their values occurs. Deterministic. Returns the number of cases; the
 * caller frees *cases. */
size_t cover_make(const unsigned *sizes, unsigned axes, unsigned strength, struct cover_case **cases);

#endif
