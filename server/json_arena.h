/* SPDX-License-Identifier: Apache-2.0 */
/* json_arena.h - memory for the trees of JSON bodies, a fixed piece a thread.
 *
 * cJSON allocates every number and string of a body by itself. While this is in place it does so from a
 * piece of memory of the thread that starts over whenever its last tree is freed, so bodies cost no heap and
 * cannot grow it; a body whose tree does not fit is refused as malformed. A tree is freed by the thread that
 * made it. A thread's piece is taken when it makes its first tree, and stays. */
#ifndef SERVER_JSON_ARENA_H
#define SERVER_JSON_ARENA_H

/* json_arena_install: from now on. json_arena_remove: back to the heap; all trees made meanwhile have been
 * freed. No other thread makes trees then. */
void json_arena_install(void);
void json_arena_remove(void);

#endif
