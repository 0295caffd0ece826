/* cuda_self_test.h - do the kernels compute attention on this very GPU?
 *
 * A test is a step over CUDA_TEST_KEYS tokens, in blocks of the pool behind those of the options, which are
 * nobody else's. Streams, tables and buffers are the test's own: it runs beside steps. */
#ifndef KERNELS_CUDA_CUDA_SELF_TEST_H
#define KERNELS_CUDA_CUDA_SELF_TEST_H

#include "kernels/cuda/cuda_backend.h"

enum {
    CUDA_TEST_KEYS = CHUNK_TOKENS + 100,
    CUDA_TEST_ROWS = 2 /* and as many partial states */
};

static inline uint32_t cuda_self_test_blocks(const struct geometry *g)
{
    return CUDA_TEST_KEYS / g->block_size + 1;
}

/* cuda_self_test_init: memory, for a backend that is open but for this; false after a failure.
 * cuda_self_test_deinit() also then. */
MUST_USE bool cuda_self_test_init(struct cuda_backend *b);
void cuda_self_test_deinit(struct cuda_backend *b);

/* cuda_self_test_await: wait for the GPU, if it is at a test. */
void cuda_self_test_await(struct cuda_backend *b);

/* cuda_self_test_part: see attention_self_test(). The first part submits the step, the next ones look whether
 * it is done, and each of the others makes some keys or compares a head of a row with double precision. */
enum attention_verdict cuda_self_test_part(struct cuda_backend *b);

#endif
