/* json_arena.h - memory for the trees of JSON bodies, taken once.
 *
 * cJSON allocates every number and string of a body by itself. While this is in place it does so from a
 * fixed piece of memory that starts over whenever the last tree is freed, so bodies cost no heap and
 * cannot grow it; a body whose tree does not fit is refused as malformed. Loop thread only: nobody else
 * may use cJSON meanwhile. */
#ifndef SERVER_JSON_ARENA_H
#define SERVER_JSON_ARENA_H

#include "config/status.h"

/* json_arena_install: from now on. Returns 0 or ATTND_NO_MEMORY. json_arena_remove: back to the heap;
 * all trees made meanwhile have been freed. */
MUST_USE int json_arena_install(void);
void json_arena_remove(void);

#endif
