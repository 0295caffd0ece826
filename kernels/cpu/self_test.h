/* SPDX-License-Identifier: Apache-2.0 */
/* self_test.h - do an instruction set's kernels compute attention on this very processor? */
#ifndef KERNELS_CPU_SELF_TEST_H
#define KERNELS_CPU_SELF_TEST_H

#include "kernels/cpu/cpu_kernels.h"

enum { SELF_TEST_DIMS = 2, SELF_TEST_PARTS = DTYPE_COUNT * SELF_TEST_DIMS };

/* Whether tile, merge and finish agree with the double-precision reference on a few hundred keys, in
 * every KV format. */
bool self_test(const struct cpu_kernels *kernels);

/* self_test_part(kernels, part): one of SELF_TEST_PARTS parts of that, for a format and a size of a head.
 * About half a millisecond; allocates. */
bool self_test_part(const struct cpu_kernels *kernels, uint32_t part);

#endif
