/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_memory.c - what control groups leave, in folders like the kernel's. */
#include "config/host_memory.h"
#include "tests/unit/suites.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char folder[64];

static int take_away(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type, (void)place;
    return remove(path);
}

static void set_up(void)
{
    strcpy(folder, "/tmp/attnd-groups-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void)
{
    ck_assert_int_eq(nftw(folder, take_away, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* A file below the folder, and the folders that it is in. */
static void file(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

static uint64_t left(const char *membership)
{
    char path[256];
    file("membership", membership);
    snprintf(path, sizeof path, "%s/membership", folder);
    return control_groups_left(path, folder);
}

START_TEST(a_service_has_the_limit_of_its_own_group)
{
    file("memory.stat", "anon 1\n"); /* the root has no limit */
    file("system.slice/memory.max", "max\n");
    file("system.slice/memory.current", "9000\n");
    file("system.slice/attnd.service/memory.max", "5000\n");
    file("system.slice/attnd.service/memory.current", "1200\n");
    ck_assert_uint_eq(left("0::/system.slice/attnd.service\n"), 3800);
}
END_TEST

START_TEST(a_group_above_may_leave_less)
{
    file("pod/memory.max", "2000\n");
    file("pod/memory.current", "1900\n");
    file("pod/one/memory.max", "5000\n");
    file("pod/one/memory.current", "0\n");
    ck_assert_uint_eq(left("0::/pod/one\n"), 100);
}
END_TEST

/* A container's group is the root that it sees, by whatever name it is known outside. */
START_TEST(a_container_has_the_limit_of_its_root)
{
    file("memory.max", "700\n");
    file("memory.current", "600\n");
    ck_assert_uint_eq(left("0::/docker/0123\n"), 100);
    ck_assert_uint_eq(left("0::/\n"), 100);
}
END_TEST

START_TEST(cache_that_can_be_reclaimed_is_not_used)
{
    file("memory.max", "1000\n");
    file("memory.current", "990\n");
    file("memory.stat", "anon 90\nfile 900\nactive_file 100\ninactive_file 800\n");
    ck_assert_uint_eq(left("0::/\n"), 810);
    file("memory.stat", "inactive_file 99999\n");
    ck_assert_uint_eq(left("0::/\n"), 1000);
}
END_TEST

START_TEST(version_1_has_the_controller_in_a_list)
{
    file("memory/a/memory.limit_in_bytes", "4000\n");
    file("memory/a/memory.usage_in_bytes", "3000\n");
    file("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    file("cpu/a/memory.limit_in_bytes", "1\n");
    ck_assert_uint_eq(left("9:name=systemd:/a\n5:hugetlb,memory:/a\n1:cpu:/a\n0::/\n"), 1500);
    ck_assert_uint_eq(left("1:cpu:/a\n2:memoryless:/a\n"), UINT64_MAX);
}
END_TEST

START_TEST(more_than_the_limit_leaves_nothing)
{
    file("memory.max", "1000\n");
    file("memory.current", "1001\n");
    ck_assert_uint_eq(left("0::/\n"), 0);
}
END_TEST

START_TEST(no_group_no_limit)
{
    char nothing[128];
    ck_assert_uint_eq(left("0::/\n"), UINT64_MAX);
    ck_assert_uint_eq(left("no line of it\n0:\n\n"), UINT64_MAX);
    snprintf(nothing, sizeof nothing, "%s/nothing", folder);
    ck_assert_uint_eq(control_groups_left(nothing, folder), UINT64_MAX);
    ck_assert_uint_gt(host_memory_available(), 0);
}
END_TEST

TCase *host_memory_case(void)
{
    TCase *tests = tcase_create("host_memory");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, a_service_has_the_limit_of_its_own_group);
    tcase_add_test(tests, a_group_above_may_leave_less);
    tcase_add_test(tests, a_container_has_the_limit_of_its_root);
    tcase_add_test(tests, cache_that_can_be_reclaimed_is_not_used);
    tcase_add_test(tests, version_1_has_the_controller_in_a_list);
    tcase_add_test(tests, more_than_the_limit_leaves_nothing);
    tcase_add_test(tests, no_group_no_limit);
    return tests;
}
