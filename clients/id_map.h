/* SPDX-License-Identifier: Apache-2.0 */
/* id_map.h - pointers by id. One thread. */
#ifndef CLIENTS_ID_MAP_H
#define CLIENTS_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

/* One that is all zeros is empty. What the pointers are to stays the caller's. */
struct id_map {
    struct id_map_entry {
        uint64_t id;
        void *value; /* NULL: vacant */
    } * entries;     /* [room], a power of 2 */
    size_t room, count;
};

/* id_map_get: NULL: there is none. id_map_put: set what an id has, not NULL; memory that is not to be had ends the program.
 * id_map_take: remove it; what it had, or NULL. id_map_next: go over all, in no order, from *at == 0 on; NULL: that was the last.
 * O(1). */
void *id_map_get(const struct id_map *map, uint64_t id);
void id_map_put(struct id_map *map, uint64_t id, void *value);
void *id_map_take(struct id_map *map, uint64_t id);
void *id_map_next(const struct id_map *map, size_t *at);
void id_map_free(struct id_map *map);

#endif
