/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_self_test.h - do the kernels compute attention on this very GPU?
 *
 * Everything that this program can launch is run on a small problem: tiles of every width, split groups of
 * every kind, merges over nodes and spans. A few heads of the narrowest tiles' outputs are compared with
 * double precision, and everything else with those, bit for bit. So an architecture that nobody has tried
 * starts proved, or not at all.
 *
 * The problem lies in a pool, streams and buffers of its own: a test runs beside steps. */
#ifndef KERNELS_CUDA_CUDA_SELF_TEST_H
#define KERNELS_CUDA_CUDA_SELF_TEST_H

#include "kernels/cuda/cuda_backend.h"

/* cuda_self_test_init: memory and plans, for a backend that is open but for this; false after a failure.
 * cuda_self_test_deinit() also then. */
MUST_USE bool cuda_self_test_init(struct cuda_backend *b);
void cuda_self_test_deinit(struct cuda_backend *b);

/* cuda_self_test_await: wait for the GPU, if it is at a test. */
void cuda_self_test_await(struct cuda_backend *b);

/* cuda_self_test_part: see attention_self_test(). The first part submits a step, the next ones look whether
 * it is done, one compares bits, and each of the others makes some keys or compares a head with double
 * precision; the last of them submits the other step. A test begins again when the constants change. */
enum attention_verdict cuda_self_test_part(struct cuda_backend *b);

/* cuda_self_test_finding: what was wrong in the latest test that failed, as a sentence. */
const char *cuda_self_test_finding(const struct cuda_backend *b);

#endif
