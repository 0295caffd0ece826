/* SPDX-License-Identifier: Apache-2.0 */
/* scarce_memory.h - memory that is not there when it is asked for. The linker has malloc(), calloc(),
 * aligned_alloc() and free() of the whole program come here first (Makefile). */
#ifndef TESTS_SIMULATION_SCARCE_MEMORY_H
#define TESTS_SIMULATION_SCARCE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* scarce_memory_refuse(n): refuse the n-th piece from now on, the next one being 0. scarce_memory_end:
 * refuse none. scarce_memory_refused: whether one was refused. scarce_memory_pieces: pieces that were not
 * given back. */
void scarce_memory_refuse(uint64_t n);
void scarce_memory_end(void);
bool scarce_memory_refused(void);
int64_t scarce_memory_pieces(void);

#endif
