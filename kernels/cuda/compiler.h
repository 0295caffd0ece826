/* SPDX-License-Identifier: Apache-2.0 */
/* compiler.h - device code for one geometry and one GPU: compiled by NVRTC in pieces, kept on disk.
 *
 * The sources are part of the binary. NVRTC is opened when something has to be compiled; what it gives
 * is kept under a name made of a hash of sources, options and compiler version, so nothing stale is
 * ever found, and a file that is not whole is compiled again. */
#ifndef KERNELS_CUDA_COMPILER_H
#define KERNELS_CUDA_COMPILER_H

#include "config/geometry.h"
#include "kernels/cuda/cubin_cache.h"

#include <stdbool.h>
#include <stdio.h>

enum { CUDA_COMPILER_ERROR_BYTES = 1024, CUDA_ARCH_BYTES = 16 };

/* A kind of GPU. */
struct cuda_target {
    char arch[CUDA_ARCH_BYTES]; /* "sm_90a" */
    uint32_t sm_bytes;          /* shared memory of a multiprocessor */
};

/* cuda_target_known(arch, target): one of the architectures that the kernels are tested to compile for;
 * false if `arch` is none of them. */
bool cuda_target_known(const char *arch, struct cuda_target *target);

/* cuda_target_of(major, minor, sm_bytes): the GPU at hand. */
struct cuda_target cuda_target_of(int major, int minor, uint32_t sm_bytes);

/* The widest of the kernels of attend_mma.cu for this geometry: 64 to 8 query heads; 0: its work tiles
 * are computed in plain f32 there, for want of the formats, the instructions or shared memory. */
uint32_t cuda_columns_max(const struct geometry *g, const struct cuda_target *target);

/* Whether K and V come by TMA, or else by cp.async: on sm_90 to sm_119, where whole blocks of 8 slots or
 * more make up a tile or whole tiles a block, and rows are whole vectors of 16 bytes. */
bool cuda_uses_tma(const struct geometry *g, const struct cuda_target *target);

/* Whether those of more than 32 columns are computed by warpgroups (attend_wide.cu): on sm_90, where
 * K and V have q's format and head_dim is 128 or less. */
bool cuda_uses_warpgroups(const struct geometry *g, const struct cuda_target *target);

/* Of paged_v1 and v2: shared memory for the logits of so many tokens, or the warps' outputs; and what there is of it. */
uint32_t cuda_paged_shared_bytes(const struct geometry *g, uint32_t tokens);
uint32_t cuda_paged_shared_max(const struct cuda_target *target);

/* Whether the program of this geometry has a kernel. */
bool cuda_has_kernel(const struct geometry *g, const struct cuda_target *target, enum cuda_kernel kernel);

/* cuda_compile(g, target, cache, report, program, error): `cache` is a folder, made if need be; "": attnd
 * under $XDG_CACHE_HOME or ~/.cache; "none": nothing is kept. Pieces are compiled side by side, by as many
 * threads as this process may use processors. `report`, if not NULL, gets a line a kernel: registers, stack,
 * spills; how long it took; and the file. Code that cannot be kept is no failure. Returns 0, ATTND_NOT_FOUND
 * (no NVRTC here), ATTND_NO_MEMORY (for threads) or ATTND_INTERNAL (it would not compile), with a sentence in
 * `error` that names the first piece which did not. Seconds; milliseconds when cached. Free the program by
 * cuda_program_deinit(). */
MUST_USE int cuda_compile(const struct geometry *g, const struct cuda_target *target, const char *cache,
                          FILE *report, struct cuda_program *program, char error[CUDA_COMPILER_ERROR_BYTES]);

/* cuda_read_report(log, report, program): read what ptxas says of each kernel: a line a kernel goes to `report`,
 * unless that is NULL; program->uses_local_memory becomes the last attention kernel that does. */
void cuda_read_report(const char *log, FILE *report, struct cuda_program *program);

#endif
