/* SPDX-License-Identifier: Apache-2.0 */
/* test_json.c - the strict JSON reader accepts RFC 8259 and nothing else, and tells where a fault is. */
#include "config/json.h"
#include "config/json_writer.h"
#include "tests/unit/suites.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const good[] = {
    "0",
    "-0",
    "1.5e-3",
    "\"\"",
    "\"\\u00e9\\n\"",
    "\"\xc3\xa9\"",
    "[]",
    "{}",
    " [1 , {\"a\" : null}] \n",
    "true",
    "[[[[]]]]",
    "1e308",
    "100000000000000000000000000000000000000000000000000000000000000", /* 63 characters */
};

/* Each with the offset at which it goes wrong. Most of these cJSON alone would take. */
static const struct {
    const char *text;
    size_t offset;
} bad[] = {
    {"", 0},
    {"{\"a\":1}xyz", 7},
    {"012", 1},
    {"1.", 2},
    {"+1", 0},
    {".5", 0},
    {"1e999", 0},
    {"[1,]", 3},
    {"{\"a\":1,}", 7},
    {"{\"a\" 1}", 5},
    {"\"a\nb\"", 2},
    {"\"\\u0000\"", 7},
    {"\"\\x\"", 2},
    {"\"\xff\"", 1},
    {"\"\xc0\x80\"", 1},
    {"\"\xed\xa0\x80\"", 1},
    {"\xef\xbb\xbf{}", 0},
    {"nul", 0},
    {"[1 2]", 3},
    {"{\"a\":1,\"a\":2}", 7},
    {"\"abc", 4},
    {"{a:1}", 1},
    {"NaN", 0},
    {"[", 1},
    {"\v1", 0},
    {"\"\\ud800\"", 0},
    {"[1000000000000000000000000000000000000000000000000000000000000000]", 1},
};

START_TEST(accepts_json)
{
    struct json_error error;
    cJSON *root;
    ck_assert_int_eq(json_parse(good[_i], strlen(good[_i]), &root, &error), 0);
    ck_assert_ptr_nonnull(root);
    cJSON_Delete(root);
}
END_TEST

START_TEST(refuses_bytes_of_zero)
{
    struct json_error error;
    cJSON *root;
    ck_assert_int_eq(json_parse("{}\0", 3, &root, &error), ATTND_MALFORMED);
    ck_assert_uint_eq(error.offset, 2);
    ck_assert_int_eq(json_parse("{\"a\":\"b\0c\"}", 11, &root, &error), ATTND_MALFORMED);
}
END_TEST

START_TEST(refuses_what_is_not_json)
{
    struct json_error error;
    cJSON *root;
    ck_assert_int_eq(json_parse(bad[_i].text, strlen(bad[_i].text), &root, &error), ATTND_MALFORMED);
    ck_assert_ptr_null(root);
    ck_assert_msg(error.offset == bad[_i].offset, "case %d %s: offset %zu, wanted %zu (%s)", _i, bad[_i].text,
                  error.offset, bad[_i].offset, error.reason);
}
END_TEST

START_TEST(depth_is_bounded)
{
    char text[2 * JSON_DEPTH_MAX + 4];
    struct json_error error;
    cJSON *root;
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        int rc = json_parse(text, 2 * (size_t)depth, &root, &error);
        ck_assert_int_eq(rc, depth <= JSON_DEPTH_MAX ? 0 : ATTND_MALFORMED);
        cJSON_Delete(root);
    }
}
END_TEST

START_TEST(comments_become_blanks)
{
    char text[] = "{ // one\n \"a//b\": /* two\n three */ 1 }";
    struct json_error error;
    cJSON *root;
    size_t n = strlen(text);
    ck_assert_int_eq(json_blank_comments(text, n, &error), 0);
    ck_assert_str_eq(text, "{       \n \"a//b\":       \n          1 }");
    ck_assert_int_eq(json_parse(text, n, &root, &error), 0);
    cJSON_Delete(root);

    char open[] = "1 /* never";
    ck_assert_int_eq(json_blank_comments(open, strlen(open), &error), ATTND_MALFORMED);
    ck_assert_uint_eq(error.offset, 2);
}
END_TEST

START_TEST(locates_values)
{
    const char *text = "{\"x\": [1, {\"b\": 2}],\n \"a\": {\"bb\": 1, \"b\": 7}}";
    struct json_place place = json_place(text, json_locate(text, strlen(text), "a.b"));
    ck_assert_uint_eq(place.line, 2);
    ck_assert_uint_eq(place.column, 22);
    ck_assert_uint_eq(json_locate(text, strlen(text), "a.missing"), (size_t)(strstr(text, "{\"bb") - text));
}
END_TEST

START_TEST(integers_are_exact)
{
    static const struct {
        double number;
        bool ok;
    } cases[] = {
        {7, true}, {-1, false}, {7.5, false}, {9007199254740991.0, true}, {9007199254740994.0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t value = -5;
        cJSON *item = cJSON_CreateNumber(cases[i].number);
        ck_assert_int_eq(json_is_integer(item, 0, (INT64_C(1) << 53) - 1, &value), cases[i].ok);
        ck_assert_int_eq(value, cases[i].ok ? (int64_t)cases[i].number : -5);
        cJSON_Delete(item);
    }
}
END_TEST

START_TEST(writer_writes)
{
    char buffer[256];
    struct json_writer w;
    json_writer_init(&w, buffer, sizeof buffer);
    json_open(&w, NULL, '{');
    json_string(&w, "s", "a\"\n");
    json_uint(&w, "u", UINT64_MAX);
    json_open(&w, "l", '[');
    json_float(&w, NULL, 0.1F);
    json_double(&w, NULL, 0.1 + 0.2);
    json_double(&w, NULL, INFINITY);
    json_close(&w, ']');
    json_open(&w, "d", '[');
    json_rounded(&w, NULL, 1.00250049, 6);
    json_rounded(&w, NULL, -1.96, 1);
    json_rounded(&w, NULL, 7e-9, 9);
    json_rounded(&w, NULL, -0.0004, 3);
    json_rounded(&w, NULL, 1e300, 3);
    json_rounded(&w, NULL, NAN, 3);
    json_close(&w, ']');
    json_bool(&w, "b", true);
    json_null(&w, "n");
    json_close(&w, '}');
    ck_assert(!w.overflow);
    buffer[w.length] = '\0';
    ck_assert_str_eq(buffer, "{\"s\":\"a\\\"\\u000a\",\"u\":18446744073709551615,"
                             "\"l\":[0.1,0.30000000000000004,null],\"d\":[1.0025,-2,0.000000007,0,1e+300,"
                             "null],\"b\":true,\"n\":null}");

    json_writer_init(&w, buffer, 4);
    json_string(&w, NULL, "long");
    ck_assert(w.overflow);
    ck_assert_uint_le(w.length, 4);
}
END_TEST

/* What the writer says of one number. */
static const char *written(double value, bool as_float)
{
    static char text[64];
    struct json_writer w;
    json_writer_init(&w, text, sizeof text - 1);
    if (as_float)
        json_float(&w, NULL, (float)value);
    else
        json_double(&w, NULL, value);
    text[w.length] = '\0';
    return text;
}

/* Digits of a number, without zeros in front and behind. */
static int digits_of(const char *text)
{
    int n = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text < '0' || *text > '9' || (*text == '0' && n + zeros == 0))
            continue;
        if (*text == '0') {
            zeros++;
            continue;
        }
        n += zeros + 1;
        zeros = 0;
    }
    return n;
}

/* No more digits than printf's shortest that reads back equal, as a JSON number that does so. */
static void check_number(double value, bool as_float)
{
    char shortest[64];
    const char *text = written(value, as_float);
    size_t length = strlen(text);
    for (int precision = as_float ? 6 : 15; precision <= 17; precision++) {
        snprintf(shortest, sizeof shortest, "%.*g", precision, value);
        if (as_float ? strtof(shortest, NULL) == (float)value : strtod(shortest, NULL) == value)
            break;
    }
    ck_assert_msg(as_float ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value,
                  "%s is not %.17g", text, value);
    ck_assert_msg(signbit(strtod(text, NULL)) == signbit(value), "%s", text);
    ck_assert_msg(digits_of(text) <= digits_of(shortest), "%s instead of %s", text, shortest);
    ck_assert_msg(text[length - 1] != '.' && text[0] != '.' &&
                      (text[0] != '0' || length == 1 || text[1] == '.'),
                  "%s", text);
}

START_TEST(numbers_read_back_equal)
{
    static const double some[] = {0,
                                  -0.0,
                                  1,
                                  -1,
                                  0.1,
                                  1e-3,
                                  0.001F,
                                  9.9999997,
                                  0.0099999998,
                                  999999.94,
                                  1e6,
                                  1e15,
                                  123456789012345,
                                  -1e14,
                                  5e-324,
                                  1.7976931348623157e308,
                                  1.5e-45,
                                  3.4028235e38,
                                  8388608.5,
                                  0.30000000000000004};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        check_number(some[i], false);
        if (fabs(some[i]) < 3.5e38)
            check_number((double)(float)some[i], true);
    }
    uint64_t state = 1;
    for (int i = 0; i < ROUNDS_OF(60000); i++) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        uint32_t bits = (uint32_t)(state >> 32);
        float value;
        double wide;
        memcpy(&value, &bits, sizeof value);
        memcpy(&wide, &state, sizeof wide);
        if (isfinite(value))
            check_number((double)value, true);
        if (isfinite(wide))
            check_number(wide, false);
        check_number((double)((float)(bits % 1000000) / 1000), true); /* rounded figures */
        check_number((double)ldexpf((float)(bits >> 8), -10 - (int)(bits % 24)), true);
    }
    ck_assert_str_eq(written(2.5, true), "2.5");
    ck_assert_str_eq(written(-0.00123456F, true), "-0.00123456");
    ck_assert_str_eq(written(123456789012345, false), "123456789012345");
}
END_TEST

TCase *json_case(void)
{
    TCase *tc = tcase_create("json");
    tcase_add_loop_test(tc, accepts_json, 0, sizeof good / sizeof good[0]);
    tcase_add_test(tc, refuses_bytes_of_zero);
    tcase_add_loop_test(tc, refuses_what_is_not_json, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, depth_is_bounded);
    tcase_add_test(tc, comments_become_blanks);
    tcase_add_test(tc, locates_values);
    tcase_add_test(tc, integers_are_exact);
    tcase_add_test(tc, writer_writes);
    tcase_add_test(tc, numbers_read_back_equal);
    return tc;
}
