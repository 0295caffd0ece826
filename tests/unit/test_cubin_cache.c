/* SPDX-License-Identifier: Apache-2.0 */
/* test_cubin_cache.c - a program that is kept is found again, all of its pieces; whatever byte of its file is damaged, wherever it
 * is cut off, and in another version of the format it is not found. */
#include "kernels/cuda/cubin_cache.h"
#include "tests/unit/suites.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECES = 3, FILE_MOST = 4096, VERSION_AT = 7 };

static const size_t sizes[PIECES] = {700, 1, 129};
static char folder[64];

static void set_up(void)
{
    strcpy(folder, "/tmp/attnd-cubins-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void make_program(struct cuda_program *program)
{
    *program = (struct cuda_program){.count = PIECES};
    for (uint32_t i = 0; i < PIECES; i++) {
        program->cubins[i] = (struct cuda_cubin){malloc(sizes[i]), sizes[i]};
        memset(program->cubins[i].bytes, 'a' + (int)i, sizes[i]);
    }
}

static bool is_made_program(const struct cuda_program *program)
{
    struct cuda_program made;
    make_program(&made);
    bool same = program->count == PIECES;
    for (uint32_t i = 0; same && i < PIECES; i++)
        same = program->cubins[i].size == sizes[i] &&
               memcmp(program->cubins[i].bytes, made.cubins[i].bytes, sizes[i]) == 0;
    cuda_program_deinit(&made);
    return same;
}

/* Keep the program, and leave the name of its file in `path`. */
static void keep(char path[CUDA_CUBIN_PATH_BYTES])
{
    struct cuda_program program;
    make_program(&program);
    cubin_cache_keep(folder, "sm_0-stem13.0.cubin", &program);
    ck_assert_int_eq(program.keep_errno, 0);
    strcpy(path, program.file);
    cuda_program_deinit(&program);
}

static bool finds(const char *begins)
{
    struct cuda_program program;
    if (!cubin_cache_find(folder, begins, &program)) {
        ck_assert_uint_eq(program.count, 0);
        return false;
    }
    ck_assert(is_made_program(&program));
    cuda_program_deinit(&program);
    return true;
}

static size_t read_bytes(const char *path, char *bytes)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(bytes, 1, FILE_MOST, f);
    fclose(f);
    return size;
}

static void write_bytes(const char *path, const char *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
}

static void clean_up(const char *path)
{
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(folder), 0); /* no other file is left */
}

START_TEST(what_is_kept_is_found)
{
    char path[CUDA_CUBIN_PATH_BYTES];
    set_up();
    ck_assert(!finds("sm_0-stem13.0.cubin"));
    ck_assert(!finds("sm_0-stem"));
    keep(path);
    ck_assert(finds("sm_0-stem13.0.cubin"));
    ck_assert(!finds("sm_0-stem12.9.cubin"));
    ck_assert(finds("sm_0-stem")); /* of any version */
    keep(path);                    /* in the place of what is there */
    ck_assert(finds("sm_0-stem13.0.cubin"));
    clean_up(path);
}
END_TEST

START_TEST(a_damaged_byte_is_noticed)
{
    char path[CUDA_CUBIN_PATH_BYTES], bytes[FILE_MOST];
    set_up();
    keep(path);
    size_t size = read_bytes(path, bytes);
    for (size_t at = 0; at < size; at++) {
        bytes[at] ^= (char)(1 << at % 8);
        write_bytes(path, bytes, size);
        ck_assert_msg(!finds("sm_0-stem13.0.cubin"), "byte %zu of %zu is damaged", at, size);
        bytes[at] ^= (char)(1 << at % 8);
    }
    write_bytes(path, bytes, size);
    ck_assert(finds("sm_0-stem13.0.cubin"));
    clean_up(path);
}
END_TEST

START_TEST(a_torn_file_is_noticed)
{
    char path[CUDA_CUBIN_PATH_BYTES], bytes[FILE_MOST];
    set_up();
    keep(path);
    size_t size = read_bytes(path, bytes);
    for (size_t kept = 0; kept < size; kept++) {
        write_bytes(path, bytes, kept);
        ck_assert_msg(!finds("sm_0-stem13.0.cubin"), "%zu of %zu bytes", kept, size);
    }
    bytes[size] = 0; /* one too many */
    write_bytes(path, bytes, size + 1);
    ck_assert(!finds("sm_0-stem13.0.cubin"));
    clean_up(path);
}
END_TEST

START_TEST(another_version_is_not_read)
{
    static const char before[] = "attndcub\4\0\0\0\0\0\0\0................code"; /* one cubin, no count */
    char path[CUDA_CUBIN_PATH_BYTES], bytes[FILE_MOST];
    set_up();
    keep(path);
    size_t size = read_bytes(path, bytes);
    bytes[VERSION_AT]++;
    write_bytes(path, bytes, size);
    ck_assert(!finds("sm_0-stem13.0.cubin"));
    ck_assert(!finds("sm_0-stem"));
    write_bytes(path, before, sizeof before - 1);
    ck_assert(!finds("sm_0-stem13.0.cubin"));
    clean_up(path);
}
END_TEST

START_TEST(a_folder_that_cannot_be_is_said)
{
    char path[CUDA_CUBIN_PATH_BYTES], below[CUDA_CUBIN_PATH_BYTES + 16];
    struct cuda_program program;
    set_up();
    keep(path);
    make_program(&program);
    snprintf(below, sizeof below, "%s/below", path);
    cubin_cache_keep(below, "sm_0-stem13.0.cubin", &program);
    ck_assert_int_eq(program.keep_errno, ENOTDIR);
    ck_assert(is_made_program(&program)); /* and can be used */
    cuda_program_deinit(&program);
    clean_up(path);
}
END_TEST

TCase *cubin_cache_case(void)
{
    TCase *tc = tcase_create("cubin_cache");
    tcase_add_test(tc, what_is_kept_is_found);
    tcase_add_test(tc, a_damaged_byte_is_noticed);
    tcase_add_test(tc, a_torn_file_is_noticed);
    tcase_add_test(tc, another_version_is_not_read);
    tcase_add_test(tc, a_folder_that_cannot_be_is_said);
    return tc;
}
