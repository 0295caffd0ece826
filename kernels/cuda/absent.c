/* SPDX-License-Identifier: Apache-2.0 */
/* absent.c - in place of the CUDA backend where the build found no CUDA headers. */
#include "kernels/backend.h"
#include "kernels/operators.h"

static const char reason[] =
    "this build of attnd has no CUDA backend; container images whose tag ends with -gpu have it, and "
    "packages and wheels that are built where CUDA headers are (docs/GPU.md)";

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

/* ---- operators ----------------------------------------------------------------------------------- */

int operators_open(const struct geometry *g, uint32_t gpu, const char *cache, struct operators **operators,
                   char error[OPERATORS_ERROR_BYTES])
{
    (void)g;
    (void)gpu;
    (void)cache;
    *operators = NULL;
    snprintf(error, OPERATORS_ERROR_BYTES, "%s", reason);
    return ATTND_NOT_FOUND;
}

void operators_close(struct operators *operators)
{
    (void)operators;
}

/* The others want what operators_open() gives. */
uint32_t operators_v1_max(const struct operators *operators)
{
    (void)operators;
    return 0;
}

const char *operators_attend(struct operators *operators, const struct operators_attention *of, bool v2,
                             void *stream)
{
    (void)operators;
    (void)of;
    (void)v2;
    (void)stream;
    return reason;
}

const char *operators_store(struct operators *operators, const struct operators_tokens *of, void *stream)
{
    (void)operators;
    (void)of;
    (void)stream;
    return reason;
}

const char *operators_copy(struct operators *operators, const struct operators_copies *of, void *stream)
{
    (void)operators;
    (void)of;
    (void)stream;
    return reason;
}

const char *operators_swap(struct operators *operators, void *to, const void *from, uint64_t block_bytes,
                           const int64_t *pairs, uint32_t pair_count, void *stream)
{
    (void)operators;
    (void)to;
    (void)from;
    (void)block_bytes;
    (void)pairs;
    (void)pair_count;
    (void)stream;
    return reason;
}

const struct tile_caps *operators_caps(const struct operators *operators)
{
    (void)operators;
    return NULL;
}

uint32_t operators_tasks(const struct operators *operators)
{
    (void)operators;
    return 0;
}

void operators_lower(const struct operators *operators, const struct plan *plan, const uint32_t *tables,
                     uint32_t stride, uint32_t max_length, uint32_t window,
                     struct operators_launches *launches, void *lists)
{
    (void)operators;
    (void)plan;
    (void)tables;
    (void)stride;
    (void)max_length;
    (void)window;
    (void)launches;
    (void)lists;
}

const char *operators_size(const struct operators *operators, uint32_t queries, uint32_t max_length,
                           uint32_t window, struct operators_launches *launches)
{
    (void)operators;
    (void)queries;
    (void)max_length;
    (void)window;
    (void)launches;
    return reason;
}

bool operators_are_for(const struct operators *operators, const struct operators_launches *launches)
{
    (void)operators;
    (void)launches;
    return false;
}

const char *operators_decode(struct operators *operators, const struct operators_decode *of, void *stream)
{
    (void)operators;
    (void)of;
    (void)stream;
    return reason;
}
