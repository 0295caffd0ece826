/* call.c - see call.h. */
#include "scheduler/call.h"

#include <stdarg.h>
#include <stdio.h>

enum { ALIGNMENT = 64 };

void *call_alloc(struct call *call, size_t n, size_t size)
{
    size_t at = (call->arena_used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (at > call->arena_bytes)
        return NULL;
    if (size && n > (call->arena_bytes - at) / size)
        return NULL;
    call->arena_used = at + n * size;
    return call->arena + at;
}

int call_fail(struct call *call, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(call->detail, sizeof call->detail, format, args);
    va_end(args);
    call->status = status;
    return status;
}
