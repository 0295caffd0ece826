/* SPDX-License-Identifier: Apache-2.0 */
/* test_ptxas_report.c - a kernel that uses local memory is noticed in the assembler's log, whichever way its line begins; one that
 * uses none, and kernels beside attention, are not. */
#include "tests/unit/suites.h"

#if __has_include(<cuda.h>) /* otherwise the build has no CUDA backend */
#include "kernels/cuda/compiler.h"

#include <stdlib.h>
#include <string.h>

#define KERNEL(name, before, bytes, registers)                                                               \
    "ptxas info    : Compiling entry function '" name "' for 'sm_90a'\n"                                     \
    "ptxas info    : Function properties for " name "\n" before bytes " bytes stack frame, " bytes           \
    " bytes spill stores, " bytes " bytes spill loads\n"                                                     \
    "ptxas info    : Used " registers " registers, used 1 barriers, 648 bytes cmem[0]\n"

#define INDENTED "    "
#define PREFIXED "ptxas         .     "

START_TEST(local_memory_is_noticed)
{
    static const struct {
        const char *log, *found;
    } logs[] = {
        {"", ""},
        {KERNEL("merge", INDENTED, "0", "64"), ""},
        {KERNEL("merge", PREFIXED, "0", "64"), ""},
        {KERNEL("merge", INDENTED, "8", "64"), "merge"},
        {KERNEL("merge", PREFIXED, "8", "64"), "merge"},
        {KERNEL("append", PREFIXED, "8", "64"), ""}, /* not attention */
        {KERNEL("attend_8", INDENTED, "16", "255") KERNEL("merge", INDENTED, "0", "64"), "attend_8"},
        {KERNEL("attend_8", PREFIXED, "0", "255") KERNEL("paged_v1", PREFIXED, "24", "64"), "paged_v1"},
    };
    for (size_t i = 0; i < sizeof logs / sizeof logs[0]; i++) {
        struct cuda_program program = {0};
        cuda_read_report(logs[i].log, NULL, &program);
        ck_assert_msg(strcmp(program.uses_local_memory, logs[i].found) == 0,
                      "found '%s', wanted '%s', in\n%s", program.uses_local_memory, logs[i].found,
                      logs[i].log);
    }
}
END_TEST

START_TEST(a_kernel_is_a_line)
{
    struct cuda_program program = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *report = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(report);
    cuda_read_report(KERNEL("append", INDENTED, "8", "40") KERNEL("merge", PREFIXED, "0", "64"), report,
                     &program);
    fclose(report);
    ck_assert_str_eq(text, "  append          40 registers, 8 bytes of stack, 8 spilled\n"
                           "  merge           64 registers, 0 bytes of stack, 0 spilled\n");
    free(text);
}
END_TEST
#endif

TCase *ptxas_report_case(void)
{
    TCase *tc = tcase_create("ptxas_report");
#if __has_include(<cuda.h>)
    tcase_add_test(tc, local_memory_is_noticed);
    tcase_add_test(tc, a_kernel_is_a_line);
#endif
    return tc;
}
