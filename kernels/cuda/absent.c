/* SPDX-License-Identifier: Apache-2.0 */
/* absent.c - in place of the CUDA backend where the build found no CUDA headers. */
#include "kernels/backend.h"

static const char reason[] = "this attnd was built without CUDA headers, so it has no CUDA backend";

int cuda_backend_open(const struct attention_options *options, struct attention **attention,
                      char error[ATTENTION_ERROR_BYTES])
{
    (void)options;
    *attention = NULL;
    snprintf(error, ATTENTION_ERROR_BYTES, "%s", reason);
    return ATTND_NOT_FOUND;
}

uint64_t cuda_memory_available(uint32_t device)
{
    (void)device;
    return 0;
}

int attention_compile_kernels(const struct geometry *g, const char *arch, const char *cache, FILE *report,
                              char error[ATTENTION_ERROR_BYTES])
{
    (void)g;
    (void)arch;
    (void)cache;
    (void)report;
    snprintf(error, ATTENTION_ERROR_BYTES, "%s", reason);
    return ATTND_NOT_FOUND;
}

bool attention_cuda_present(char error[ATTENTION_ERROR_BYTES])
{
    snprintf(error, ATTENTION_ERROR_BYTES, "%s", reason);
    return false;
}

const char *attention_cuda_build(void)
{
    return "not built in (no CUDA headers where it was built)";
}
