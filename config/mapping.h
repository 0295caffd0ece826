/* SPDX-License-Identifier: Apache-2.0 */
/* mapping.h - big zeroed memory that costs nothing until it is touched, on huge pages where they are
 * worth it.
 *
 * The pool of K and V is read at full speed, and the allocator's arrays at random: with 4 KiB pages most of a
 * random access to 16 MiB is the page walk. */
#ifndef CONFIG_MAPPING_H
#define CONFIG_MAPPING_H

#include <stddef.h>
#include <stdint.h>

/* mapping_create(bytes, huge): zeroed, page-aligned memory, NULL when there is none. `huge` asks for 2
 * MiB pages, which become resident whole: not for arrays that stay mostly empty. */
void *mapping_create(uint64_t bytes, int huge);
void mapping_destroy(void *mapping, uint64_t bytes); /* NULL is fine */

#endif
