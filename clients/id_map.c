/* SPDX-License-Identifier: Apache-2.0 */
/* id_map.c - see id_map.h. Open addressing, half full at most; what is removed is closed up, so there are no marks of it. */
#include "clients/id_map.h"
#include "clients/memory.h"

#include <stdlib.h>

enum { ROOM_LEAST = 64 };

static size_t place_of(const struct id_map *m, uint64_t id)
{
    return (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (m->room - 1);
}

/* Where an id is, or would be. */
static struct id_map_entry *find(const struct id_map *m, uint64_t id)
{
    size_t at = place_of(m, id);
    while (m->entries[at].value && m->entries[at].id != id)
        at = (at + 1) & (m->room - 1);
    return &m->entries[at];
}

void *id_map_get(const struct id_map *m, uint64_t id)
{
    return m->room ? find(m, id)->value : NULL;
}

static void grow(struct id_map *m)
{
    struct id_map old = *m;
    m->room = old.room ? 2 * old.room : ROOM_LEAST;
    m->entries = memory_must(calloc(m->room, sizeof *m->entries));
    for (size_t i = 0; i < old.room; i++) {
        if (old.entries[i].value)
            *find(m, old.entries[i].id) = old.entries[i];
    }
    free(old.entries);
}

void id_map_put(struct id_map *m, uint64_t id, void *value)
{
    if (2 * (m->count + 1) > m->room)
        grow(m);
    struct id_map_entry *e = find(m, id);
    m->count += !e->value;
    *e = (struct id_map_entry){id, value};
}

void *id_map_take(struct id_map *m, uint64_t id)
{
    struct id_map_entry *e = m->room ? find(m, id) : NULL;
    void *value = e ? e->value : NULL;
    if (!value)
        return NULL;
    m->count--;
    e->value = NULL;
    /* Those behind it, up to a vacant one, may have had to go past it. */
    size_t at = (size_t)(e - m->entries);
    for (;;) {
        at = (at + 1) & (m->room - 1);
        struct id_map_entry moved = m->entries[at];
        if (!moved.value)
            return value;
        m->entries[at].value = NULL;
        *find(m, moved.id) = moved;
    }
}

void *id_map_next(const struct id_map *m, size_t *at)
{
    while (*at < m->room) {
        void *value = m->entries[(*at)++].value;
        if (value)
            return value;
    }
    return NULL;
}

void id_map_free(struct id_map *m)
{
    free(m->entries);
    *m = (struct id_map){0};
}
