/* SPDX-License-Identifier: Apache-2.0 */
/* scarce_memory.c - see scarce_memory.h. */
#include "tests/simulation/scarce_memory.h"

#include "tests/simulation/watched.h"

#include <stddef.h>

static struct {
    uint64_t left; /* before the one that is refused */
    bool armed, refused;
    int64_t pieces;
} memory;

static bool is_refused(void)
{
    if (!memory.armed || memory.left-- > 0)
        return false;
    memory.armed = false;
    memory.refused = true;
    return true;
}

/* Count a piece that was given out. */
static void *count(void *piece)
{
    memory.pieces += piece != NULL;
    return piece;
}

WATCHED(void *, malloc, size_t bytes)
{
    return is_refused() ? NULL : count(__real_malloc(bytes));
}

WATCHED(void *, calloc, size_t n, size_t bytes)
{
    return is_refused() ? NULL : count(__real_calloc(n, bytes));
}

WATCHED(void *, aligned_alloc, size_t alignment, size_t bytes)
{
    return is_refused() ? NULL : count(__real_aligned_alloc(alignment, bytes));
}

WATCHED(void, free, void *piece)
{
    memory.pieces -= piece != NULL;
    __real_free(piece);
}

void scarce_memory_refuse(uint64_t n)
{
    memory.left = n;
    memory.armed = true;
    memory.refused = false;
}

void scarce_memory_end(void)
{
    memory.armed = false;
}

int64_t scarce_memory_pieces(void)
{
    return memory.pieces;
}

bool scarce_memory_refused(void)
{
    return memory.refused;
}
