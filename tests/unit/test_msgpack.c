/* SPDX-License-Identifier: Apache-2.0 */
/* test_msgpack.c - each type in its shortest form, at both sides of every bound; the bytes are the specification's. Then another
 * reader, python3-msgpack, is asked what it reads, where it is installed: with CI=true it has to be. */
#include "config/msgpack.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t buffer[1 << 20];

static const struct {
    uint64_t value;
    const char *bytes;
    size_t n;
} numbers[] = {
    {0, "\x00", 1},
    {127, "\x7f", 1},
    {128, "\xcc\x80", 2},
    {255, "\xcc\xff", 2},
    {256, "\xcd\x01\x00", 3},
    {65535, "\xcd\xff\xff", 3},
    {65536, "\xce\x00\x01\x00\x00", 5},
    {UINT32_MAX, "\xce\xff\xff\xff\xff", 5},
    {UINT64_C(1) << 32, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00", 9},
    {UINT64_MAX, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9},
};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

START_TEST(numbers_are_as_short_as_they_go)
{
    struct msgpack m;
    msgpack_init(&m, buffer, sizeof buffer);
    msgpack_uint(&m, numbers[_i].value);
    ck_assert_uint_eq(m.length, numbers[_i].n);
    ck_assert_mem_eq(buffer, numbers[_i].bytes, numbers[_i].n);
}
END_TEST

static const uint32_t counts[] = {0, 15, 16, 31, 32, 255, 256, 65535, 65536};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static void put_array(struct msgpack *m, uint32_t n)
{
    msgpack_array(m, n);
    for (uint32_t i = 0; i < n; i++)
        msgpack_uint(m, i);
}

static void put_map(struct msgpack *m, uint32_t n)
{
    char name[16];
    msgpack_map(m, n);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%u", i);
        msgpack_text(m, name);
        msgpack_nil(m);
    }
}

/* Heads at the bounds of the specification. */
START_TEST(heads_are_as_short_as_they_go)
{
    static const char text[65536];
    static const size_t strings[] = {1, 1, 1, 1, 2, 2, 3, 3, 5}, containers[] = {1, 1, 3, 3, 3, 3, 3, 3, 5};
    struct msgpack m;
    msgpack_init(&m, buffer, sizeof buffer);
    msgpack_string(&m, text, counts[_i]);
    ck_assert_uint_eq(m.length, strings[_i] + counts[_i]);
    msgpack_init(&m, buffer, sizeof buffer);
    msgpack_array(&m, counts[_i]);
    ck_assert_uint_eq(m.length, containers[_i]);
    msgpack_init(&m, buffer, sizeof buffer);
    msgpack_map(&m, counts[_i]);
    ck_assert_uint_eq(m.length, containers[_i]);
}
END_TEST

START_TEST(what_does_not_fit_is_dropped)
{
    struct msgpack m;
    msgpack_init(&m, buffer, 4);
    memset(buffer, 0x55, 8);
    msgpack_uint(&m, 65536);
    ck_assert(m.overflow);
    msgpack_nil(&m);
    ck_assert_uint_eq(m.length, 0);
    ck_assert_uint_eq(buffer[4], 0x55);
}
END_TEST

/* One array of everything, and the same as Python builds it. */
START_TEST(another_reader_reads_the_same)
{
    static const char program[] =
        "import msgpack, sys\n"
        "counts = [0, 15, 16, 31, 32, 255, 256, 65535, 65536]\n"
        "want = [0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1]\n"
        "want += [None, 1.5, -0.1, 1795691233.6245344, 'h\\u00e9']\n"
        "want += ['x' * n for n in counts] + [list(range(n)) for n in counts]\n"
        "want += [{str(i): None for i in range(n)} for n in counts]\n"
        "got = msgpack.unpackb(open(sys.argv[1], 'rb').read(), max_map_len=1 << 20)\n"
        "wrong = [i for i in range(len(want)) if got[i] != want[i] or type(got[i]) != type(want[i])]\n"
        "sys.exit('differs: %s of %d, %d' % (wrong, len(got), len(want)) if wrong or len(got) != len(want) "
        "else 0)\n";
    static char letters[65536], path[] = "/tmp/attnd-msgpack-XXXXXX", script[] = "/tmp/attnd-msgpack-XXXXXX";
    char command[256];
    struct msgpack m;
    const char *ci = getenv("CI");
    if (system("/usr/bin/python3 -c 'import msgpack' 2>/dev/null") != 0) {
        ck_assert_msg(!ci || strcmp(ci, "true") != 0, "python3-msgpack is not installed");
        return;
    }
    memset(letters, 'x', sizeof letters);
    static uint8_t large[1 << 21];
    msgpack_init(&m, large, sizeof large);
    msgpack_array(&m, NUMBERS + 5 + 3 * COUNTS);
    for (size_t i = 0; i < NUMBERS; i++)
        msgpack_uint(&m, numbers[i].value);
    msgpack_nil(&m);
    msgpack_double(&m, 1.5);
    msgpack_double(&m, -0.1);
    msgpack_double(&m, 1795691233.6245344);
    msgpack_text(&m, "h\xc3\xa9");
    for (size_t i = 0; i < COUNTS; i++)
        msgpack_string(&m, letters, counts[i]);
    for (size_t i = 0; i < COUNTS; i++)
        put_array(&m, counts[i]);
    for (size_t i = 0; i < COUNTS; i++)
        put_map(&m, counts[i]);
    ck_assert(!m.overflow);
    int fd = mkstemp(path), code = mkstemp(script);
    ck_assert(write(fd, large, m.length) == (ssize_t)m.length && write(code, program, strlen(program)) > 0);
    snprintf(command, sizeof command, "/usr/bin/python3 %s %s", script, path);
    int rc = system(command);
    unlink(path);
    unlink(script);
    close(fd);
    close(code);
    ck_assert_int_eq(rc, 0);
}
END_TEST

TCase *msgpack_case(void)
{
    TCase *c = tcase_create("msgpack");
    tcase_add_loop_test(c, numbers_are_as_short_as_they_go, 0, NUMBERS);
    tcase_add_loop_test(c, heads_are_as_short_as_they_go, 0, COUNTS);
    tcase_add_test(c, what_does_not_fit_is_dropped);
    tcase_add_test(c, another_reader_reads_the_same);
    return c;
}
