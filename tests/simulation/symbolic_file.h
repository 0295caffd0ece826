/* SPDX-License-Identifier: Apache-2.0 */
/* symbolic_file.h - a file for swapped blocks in virtual time (scheduler/swap_file.h): transfers take as long as they like. What
 * a write finds in its frame must be the same from its submission to its end, and what a read is to bring is garbage until
 * then. */
#ifndef TESTS_SIMULATION_SYMBOLIC_FILE_H
#define TESTS_SIMULATION_SYMBOLIC_FILE_H

#include "scheduler/swap_file.h"

/* symbolic_file_begin(seed, blocks, fails_at): a new one; its write number `fails_at` and later ones fail, 0: none does. _end:
 * free it. */
void symbolic_file_begin(uint64_t seed, uint32_t blocks, uint64_t fails_at);
void symbolic_file_end(void);
extern const struct swap_io symbolic_file_io;

/* When the next transfer is done; negative: none is under way. */
double symbolic_file_due_s(void);
bool symbolic_file_has_failed(void);

#endif
