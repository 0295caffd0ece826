/* SPDX-License-Identifier: Apache-2.0 */
/* stub_kernels.c - what a program on the stub driver does without: linked with --wrap, it takes the
 * place of the compiler, and the self test's verdict on kernels that compute nothing is not looked at.
 * The self test itself is run, with its waits. */
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/cuda_self_test.h"

#include <stdlib.h>

int __wrap_cuda_compile(const struct geometry *g, const struct cuda_target *target, const char *cache,
                        FILE *report, struct cuda_program *program, char error[CUDA_COMPILER_ERROR_BYTES]);
enum attention_verdict __real_cuda_self_test_part(struct cuda_backend *b);
enum attention_verdict __wrap_cuda_self_test_part(struct cuda_backend *b);

int __wrap_cuda_compile(const struct geometry *g, const struct cuda_target *target, const char *cache,
                        FILE *report, struct cuda_program *program, char error[CUDA_COMPILER_ERROR_BYTES])
{
    (void)g, (void)target, (void)cache, (void)report;
    *program = (struct cuda_program){.count = CUDA_PIECES_MAX};
    for (uint32_t i = 0; i < CUDA_PIECES_MAX; i++)
        program->cubins[i] = (struct cuda_cubin){malloc(1), 1};
    error[0] = '\0';
    return 0;
}

enum attention_verdict __wrap_cuda_self_test_part(struct cuda_backend *b)
{
    enum attention_verdict verdict = __real_cuda_self_test_part(b);
    bool failed = cuda_failed(&b->device);
    return verdict == ATTENTION_TEST_FAILED && !failed ? ATTENTION_TEST_PASSED : verdict;
}
