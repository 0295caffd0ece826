/* SPDX-License-Identifier: Apache-2.0 */
/* json_arena.c - see json_arena.h. */
#include "server/json_arena.h"

#include "config/mapping.h"

#include <cjson/cJSON.h>

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum {
    ARENA_BYTES = 8 << 20, /* 64 KiB of "0," are 32 768 items of 64 bytes, and 64 of header */
    ALIGNMENT = 16
};

static _Thread_local struct {
    uint8_t *bytes;
    size_t used, live; /* live: pieces given out and not yet given back */
} arena;

static void *take(size_t n)
{
    if (!arena.bytes)
        arena.bytes = mapping_create(ARENA_BYTES, 0);
    if (!arena.bytes)
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
    mapping_destroy(arena.bytes, ARENA_BYTES);
    arena.bytes = NULL;
}
