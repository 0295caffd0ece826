/* cuda_self_test.h - do the kernels compute attention on this very GPU? Takes milliseconds. */
#ifndef KERNELS_CUDA_CUDA_SELF_TEST_H
#define KERNELS_CUDA_CUDA_SELF_TEST_H

#include "kernels/attention.h"

enum {
    CUDA_TEST_KEYS = CHUNK_TOKENS + 100,
    CUDA_TEST_ROWS = 2 /* and as many partial states */
};

/* cuda_self_test_passes(a, o): run a step over CUDA_TEST_KEYS tokens in blocks from o->blocks on, under
 * row o->table_rows of the tables, both of which are nobody else's, and compare with double precision. */
bool cuda_self_test_passes(struct attention *attention, const struct attention_options *options);

#endif
