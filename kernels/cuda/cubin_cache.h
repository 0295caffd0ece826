/* SPDX-License-Identifier: Apache-2.0 */
/* cubin_cache.h - the machine code of a program, one cubin a piece, and the file that it is kept in.
 *
 * Any thread; files of one name may be written by several processes at a time. */
#ifndef KERNELS_CUDA_CUBIN_CACHE_H
#define KERNELS_CUDA_CUBIN_CACHE_H

#include "kernels/cuda/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CUDA_PIECES_MAX = 8, CUDA_CUBIN_PATH_BYTES = 1600 };

struct cuda_cubin {
    void *bytes; /* malloc'ed */
    size_t size;
};

/* The pieces of a program, in the order in which they are compiled; freed by cuda_program_deinit(). */
struct cuda_program {
    struct cuda_cubin cubins[CUDA_PIECES_MAX];
    uint32_t count;
    uint8_t piece_of[KERNEL_COUNT];   /* which has a kernel; 0 also for those that the program has not */
    char file[CUDA_CUBIN_PATH_BYTES]; /* that it was read from, or kept in; empty: none */
    int keep_errno;                   /* why it could not be kept, or 0 */
    double compile_s;                 /* how long it took to compile; 0: it was found */
    char uses_local_memory[64];       /* an attention kernel that does; empty: none, or found */
};

void cuda_program_deinit(struct cuda_program *program);

/* cubin_cache_find(folder, begins, program): read a file whose name begins so. False, with an empty program,
 * where there is none, or none that is whole. */
MUST_USE bool cubin_cache_find(const char *folder, const char *begins, struct cuda_program *program);

/* cubin_cache_keep(folder, name, program): write it to that file, in the place of what is there; make the
 * folder if need be. Sets program->file, and keep_errno where that fails. */
void cubin_cache_keep(const char *folder, const char *name, struct cuda_program *program);

#endif
