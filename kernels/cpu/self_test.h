/* self_test.h - do an instruction set's kernels compute attention on this very processor? Takes about a
 * millisecond. */
#ifndef KERNELS_CPU_SELF_TEST_H
#define KERNELS_CPU_SELF_TEST_H

#include "kernels/cpu/cpu_kernels.h"

/* Whether tile, merge and finish agree with the double-precision reference on a few hundred keys, in
 * every KV format. */
bool self_test(const struct cpu_kernels *kernels);

#endif
