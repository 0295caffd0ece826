/* SPDX-License-Identifier: Apache-2.0 */
/* cubin_cache.c - see cubin_cache.h. A file:
 *
 *   "attndcb2"   count (u64)   sizes (u64, CUDA_PIECES_MAX of them)   XXH3 (128 bits)   cubin, cubin, ...
 *
 * The hash is that of everything else, the header with zeros in its place. The last digit of the first word is
 * the version of this format: a file of another one is not read. A file is written under another name and
 * renamed, so it is there whole or not at all. */
#include "kernels/cuda/cubin_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CUBIN_BYTES_MAX = 64 << 20, PATH_BYTES = CUDA_CUBIN_PATH_BYTES };

struct header {
    char magic[8];
    uint64_t count, sizes[CUDA_PIECES_MAX];
    XXH128_canonical_t hash;
};

_Static_assert(sizeof(struct header) == 32 + 8 * CUDA_PIECES_MAX, "without holes");

static const char MAGIC[8] = {'a', 't', 't', 'n', 'd', 'c', 'b', '2'};

void cuda_program_deinit(struct cuda_program *program)
{
    for (uint32_t i = 0; i < CUDA_PIECES_MAX; i++)
        free(program->cubins[i].bytes);
    *program = (struct cuda_program){0};
}

/* The hash of a header and of the machine code that it goes with. */
static XXH128_canonical_t hash_of(struct header header, const struct cuda_program *program)
{
    XXH128_canonical_t hash;
    XXH3_state_t state;
    memset(&header.hash, 0, sizeof header.hash);
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &header, sizeof header);
    for (uint32_t i = 0; i < program->count; i++)
        XXH3_128bits_update(&state, program->cubins[i].bytes, program->cubins[i].size);
    XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(&state));
    return hash;
}

/* ---- reading ------------------------------------------------------------------------------------- */

static bool read_cubin(FILE *f, uint64_t size, struct cuda_cubin *cubin)
{
    if (size == 0 || size > CUBIN_BYTES_MAX || !(cubin->bytes = malloc(size)))
        return false;
    cubin->size = size;
    return fread(cubin->bytes, size, 1, f) == 1;
}

/* Whether what follows in `f` is a program, and all of it. */
static bool read_program(FILE *f, struct cuda_program *program)
{
    struct header header;
    if (fread(&header, sizeof header, 1, f) != 1 || memcmp(header.magic, MAGIC, sizeof MAGIC) != 0 ||
        header.count == 0 || header.count > CUDA_PIECES_MAX)
        return false;
    for (uint32_t i = 0; i < header.count; i++) {
        if (!read_cubin(f, header.sizes[i], &program->cubins[i]))
            return false;
        program->count++;
    }
    XXH128_canonical_t hash = hash_of(header, program);
    return fgetc(f) == EOF && memcmp(&hash, &header.hash, sizeof hash) == 0;
}

static bool read_file(const char *path, struct cuda_program *program)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    bool whole = read_program(f, program);
    fclose(f);
    if (whole)
        snprintf(program->file, sizeof program->file, "%s", path);
    else
        cuda_program_deinit(program);
    return whole;
}

bool cubin_cache_find(const char *folder, const char *begins, struct cuda_program *program)
{
    char path[PATH_BYTES];
    bool found = false;
    DIR *files = opendir(folder);
    const struct dirent *entry;
    *program = (struct cuda_program){0};
    while (files && !found && (entry = readdir(files))) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        found = strncmp(entry->d_name, begins, strlen(begins)) == 0 && read_file(path, program);
    }
    if (files)
        closedir(files);
    return found;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Make a folder and those above it; what is missing in the end shows when the file is written. */
static void make_folders(const char *folder)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/", folder);
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        (void)mkdir(path, 0755);
        *at = '/';
    }
}

static bool write_program(FILE *f, const struct cuda_program *program)
{
    struct header header = {.count = program->count};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    for (uint32_t i = 0; i < program->count; i++)
        header.sizes[i] = program->cubins[i].size;
    header.hash = hash_of(header, program);
    bool ok = fwrite(&header, sizeof header, 1, f) == 1;
    for (uint32_t i = 0; ok && i < program->count; i++)
        ok = fwrite(program->cubins[i].bytes, program->cubins[i].size, 1, f) == 1;
    return ok;
}

void cubin_cache_keep(const char *folder, const char *name, struct cuda_program *program)
{
    char *path = program->file, temporary[PATH_BYTES + 16];
    make_folders(folder);
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    errno = 0;
    FILE *f = fopen(temporary, "wb");
    bool ok = f && write_program(f, program);
    ok = (!f || fclose(f) == 0) && ok && rename(temporary, path) == 0;
    if (ok)
        return;
    program->keep_errno = errno ? errno : EIO;
    (void)unlink(temporary);
}
