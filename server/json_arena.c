/* json_arena.c - see json_arena.h. */
#include "server/json_arena.h"

#include <cjson/cJSON.h>

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    ARENA_BYTES = 8 << 20, /* 64 KiB of "0," are 32 768 items of 64 bytes, and 64 of header */
    ALIGNMENT = 16
};

static _Thread_local struct {
    uint8_t *bytes;
    size_t used, live; /* live: pieces given out and not yet given back */
} arena;

static bool map_arena(void)
{
    void *bytes =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena.bytes = bytes == MAP_FAILED ? NULL : bytes;
    return arena.bytes != NULL;
}

static void *take(size_t n)
{
    if (!arena.bytes && !map_arena())
        return NULL;
    size_t rounded = (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (n > ARENA_BYTES || rounded > ARENA_BYTES - arena.used)
        return NULL;
    void *piece = arena.bytes + arena.used;
    arena.used += rounded;
    arena.live++;
    return piece;
}

static void give(void *piece)
{
    uintptr_t at = (uintptr_t)piece - (uintptr_t)arena.bytes;
    if (!piece)
        return;
    if (!arena.bytes || at >= ARENA_BYTES) { /* of the configuration, which is older */
        free(piece);
        return;
    }
    assert(arena.live > 0);
    if (--arena.live == 0)
        arena.used = 0;
}

void json_arena_install(void)
{
    cJSON_Hooks hooks = {take, give};
    cJSON_InitHooks(&hooks);
}

void json_arena_remove(void)
{
    assert(arena.live == 0);
    cJSON_InitHooks(NULL);
    if (arena.bytes)
        munmap(arena.bytes, ARENA_BYTES);
    arena.bytes = NULL;
}
