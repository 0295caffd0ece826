/* requests.c - see requests.h. */
#include "scheduler/requests.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

enum { ALIGNMENT = 64 };

/* What one member of the union is for is at its front. */
static_assert(offsetof(struct request_attend, rows) == 0 && offsetof(struct request_paged, rows) == 0,
              "request.rows is of both");
static_assert(offsetof(struct request_listing, page) == 0 && offsetof(struct request_stats, list) == 0 &&
                  offsetof(struct request_pool, page) == 0,
              "request.page is of all three, request.list of two");

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

int request_fail(struct request *request, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(request->detail, sizeof request->detail, format, args);
    va_end(args);
    request->status = status;
    return status;
}
