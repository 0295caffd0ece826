/* requests.c - see requests.h. */
#include "scheduler/requests.h"

#include <stdarg.h>
#include <stdio.h>

enum { ALIGNMENT = 64 };

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
