/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c - see requests.h. */
#include "scheduler/requests.h"

#include "kernels/numeric.h"
#include "scheduler/staging.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 };

/* What one member of the union is for is at its front. */
static_assert(offsetof(struct request_attend, rows) == 0 && offsetof(struct request_paged, rows) == 0,
              "request.rows is of both");
static_assert(offsetof(struct request_listing, page) == 0 && offsetof(struct request_stats, list) == 0 &&
                  offsetof(struct request_pool, page) == 0 && offsetof(struct request_table, page) == 0,
              "request.page is of all four, request.list of two");

const struct request_traits request_kinds[REQUEST_KINDS] = {
#define XX(kind, when, changes, computes, function)                                                          \
    {#kind, REQUEST_##when, REQUEST_OF_##changes, computes, function},
    REQUEST_MAP(XX)
#undef XX
};

void *request_alloc(struct request *request, size_t n, size_t size)
{
    size_t at = (request->arena_used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (at > request->arena_bytes)
        return NULL;
    if (size && n > (request->arena_bytes - at) / size)
        return NULL;
    request->arena_used = at + n * size;
    return request->arena + at;
}

void request_reset(struct request *request, uint8_t *arena, size_t arena_bytes)
{
    void *cookie = request->cookie;
    struct staging *staging = request->staging;
    for (uint32_t i = 0; i < request->tensor_count; i++)
        staging_give(staging, request->tensors[i]);
    memset(request, 0, sizeof *request);
    request->cookie = cookie;
    request->staging = staging;
    request->arena = arena;
    request->arena_bytes = arena_bytes;
}

void request_trim_arena(uint8_t *arena, size_t used)
{
    if (used > REQUEST_ARENA_KEPT)
        (void)madvise(arena + REQUEST_ARENA_KEPT / 4, REQUEST_ARENA_BYTES - REQUEST_ARENA_KEPT / 4,
                      MADV_DONTNEED);
}

void request_adopt_tensor(struct request *request, void *block, size_t bytes)
{
    request->tensor_bytes += bytes;
    assert(request->tensor_count < REQUEST_TENSORS_MAX);
    request->tensors[request->tensor_count++] = block;
}

void *request_tensor(struct request *request, size_t n, size_t size)
{
    if (n > SIZE_MAX / 2 / size)
        return NULL;
    void *block = staging_take(request->staging, n * size);
    if (block)
        request_adopt_tensor(request, block, n * size);
    return block;
}

/* K and V that an export reads. */
static int make_exported(struct request *request, const struct geometry *g)
{
    struct request_export *e = &request->export;
    size_t bytes = geometry_kv_bytes(g, e->end - e->first);
    e->k = request_tensor(request, bytes, 1);
    e->v = e->k ? request_tensor(request, bytes, 1) : NULL;
    return e->v ? 0 : request_fail(request, ATTND_BUSY, "no staging memory for K and V");
}

int request_make_outputs(struct request *request, const struct geometry *g)
{
    if (request->kind == REQUEST_EXPORT)
        return make_exported(request, g);
    bool merges = request->kind == REQUEST_MERGE,
         attends = (request->kind == REQUEST_ATTEND || request->kind == REQUEST_PAGED) && request->rows.q;
    struct request_output *out = merges ? &request->merge.out : &request->rows.out;
    uint32_t rows = merges ? request->merge.rows : request->rows.count;
    if (!merges && !attends)
        return 0;
    out->o = request_tensor(request, rows, geometry_q_row_bytes(g));
    out->lse = request_tensor(request, rows, g->query_heads * sizeof *out->lse);
    return out->o && out->lse ? 0 : request_fail(request, ATTND_BUSY, "no staging memory for the outputs");
}

const char *request_wrong_element(enum dtype dtype, const void *array, size_t at)
{
    return isfinite(numeric_load(dtype, array, at)) ? "2^97 (1.6e29) or more" : "not finite";
}

bool request_elements_are_good(const struct request_elements *of, char *text, size_t text_bytes)
{
    return request_some_are_good(of, 0, (size_t)of->layers * of->rows * of->heads * of->head_dim, text,
                                 text_bytes);
}

bool request_some_are_good(const struct request_elements *of, size_t first, size_t n, char *text,
                           size_t text_bytes)
{
    const void *part = (const uint8_t *)of->array + first * dtype_bytes(of->dtype);
    size_t bad = of->summed ? numeric_first_unsummable(of->dtype, part, n)
                            : numeric_first_nonfinite(of->dtype, part, n);
    if (bad == n)
        return true;
    bad += first;
    snprintf(text, text_bytes, "row %zu, head %zu, element %zu is %s",
             bad / of->head_dim / of->heads % of->rows, bad / of->head_dim % of->heads, bad % of->head_dim,
             request_wrong_element(of->dtype, of->array, bad));
    return false;
}

int request_fail(struct request *request, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(request->detail, sizeof request->detail, format, args);
    va_end(args);
    request->status = status;
    return status;
}
