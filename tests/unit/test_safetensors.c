/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c - what is written reads back; and every way in which a body can lie about its
 * sizes is refused.
 *
 * The cases are those of the reference implementation's own tests (json_attack,
 * metadata_incomplete_buffer, header_too_large, header_too_small, invalid_header_length, non_utf8,
 * not_json, zero_sized, validation_overflow), and some more. */
#include "server/safetensors.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { BODY_BYTES = 4096 };

/* A body of this header and `data` zero bytes; `lie` is added to the header's length field. Returns its
 * size. */
static size_t make_body(uint8_t *body, const char *header, size_t data, int64_t lie)
{
    uint64_t n = strlen(header), field = (uint64_t)((int64_t)n + lie);
    for (int i = 0; i < 8; i++)
        body[i] = (uint8_t)(field >> 8 * i);
    memcpy(body + 8, header, n);
    memset(body + 8 + n, 0, data);
    return 8 + n + data;
}

static int parse(const char *header, size_t data, int64_t lie, struct named_tensors *tensors)
{
    uint8_t stack[BODY_BYTES];
    char reason[SAFETENSORS_REASON_BYTES] = "";
    size_t n = make_body(stack, header, data, lie);
    uint8_t *body = malloc(n); /* exactly as long, so that a sanitizer sees a read beyond it */
    ck_assert_ptr_nonnull(body);
    memcpy(body, stack, n);
    int rc = safetensors_parse(body, n, tensors, reason);
    ck_assert_int_eq(rc != 0, reason[0] != '\0');
    free(body);
    return rc;
}

static const struct {
    const char *header;
    size_t data;
    int64_t lie;
    int status;
} cases[] = {
    {"{}", 0, 0, 0},
    {" {} ", 0, 0, 0},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 0, 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}}", 8, 0, 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 0, 0},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, 0, 0},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},\"a\":{\"dtype\":\"U8\",\"shape\":"
     "[1],\"data_offsets\":[0,1]}}",
     2, 0, 0},
    /* data missing, and data too many */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 6, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, 0, ATTND_MALFORMED},
    /* two tensors on the same bytes, and a hole between two */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":"
     "[4],\"data_offsets\":[0,4]}}",
     4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, 0, ATTND_MALFORMED},
    /* offsets and shapes that do not agree, fall, overflow, or are no integers */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[2,9007199254740991],\"data_offsets\":[0,0]}}", 0, 0,
     ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[4503599627370496,4096],\"data_offsets\":[0,0]}}", 0, 0,
     ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[2,18446744073709551614],\"data_offsets\":[0,0]}}", 0, 0,
     ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1.5],\"data_offsets\":[0,6]}}", 6, 0, ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, 0, ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":{\"x\":0,\"y\":4}}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, 0, ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, 0, ATTND_MALFORMED},
    {"{\"a\":7}", 0, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"U8\",\"shape\":"
     "[0],\"data_offsets\":[0,0]}}",
     0, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[2,9223372036854775807],\"data_offsets\":[0,0]}}", 0, 0,
     ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[-1,3]}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0.5,4.5]}}", 4, 0, ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,9007199254740993]}}", 4, 0,
     ATTND_MALFORMED},
    {"{\"a\":{\"dtype\":\"I32\",\"shape\":[1e0],\"data_offsets\":[0,4.0]}}", 4, 0,
     0}, /* integers, as JSON has them */
    {"{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"F8_E4M3FNUZ_AND_MORE\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0,
     ATTND_INVALID},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, 0, ATTND_MALFORMED},
    {"{\"a\":{\"DTYPE\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, ATTND_MALFORMED},
    /* what is said of it, which is texts */
    {"{\"__metadata__\":7}", 0, 0, ATTND_MALFORMED},
    {"{\"__metadata__\":[\"a\"]}", 0, 0, ATTND_MALFORMED},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, ATTND_MALFORMED},
    {"{\"__metadata__\":{\"a\":null}}", 0, 0, ATTND_MALFORMED},
    /* headers that are not what their length says */
    {"{}", 0, 1, ATTND_MALFORMED},
    {"{}", 0, -1, ATTND_MALFORMED},
    {"{}", 0, 70000, ATTND_MALFORMED},
    {"{}", 0, -3, ATTND_MALFORMED}, /* 2^64 - 1 */
    {"\xff", 0, 0, ATTND_MALFORMED},
    {"{", 0, 0, ATTND_MALFORMED},
    {"[]", 0, 0, ATTND_MALFORMED},
};

START_TEST(sizes_must_agree)
{
    struct named_tensors tensors;
    ck_assert_msg(parse(cases[_i].header, cases[_i].data, cases[_i].lie, &tensors) == cases[_i].status,
                  "case %d: %s", _i, cases[_i].header);
}
END_TEST

START_TEST(tensors_and_names_are_bounded)
{
    struct named_tensors tensors;
    char header[4096];
    for (int count = SAFETENSORS_MAX; count <= SAFETENSORS_MAX + 1; count++) {
        size_t n = 0;
        for (int i = 0; i < count; i++)
            n += (size_t)snprintf(header + n, sizeof header - n,
                                  "%c\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                                  i ? ',' : '{', i);
        snprintf(header + n, sizeof header - n, "}");
        ck_assert_int_eq(parse(header, 0, 0, &tensors), count <= SAFETENSORS_MAX ? 0 : ATTND_INVALID);
    }
    for (int length = SAFETENSORS_NAME_BYTES - 1; length <= SAFETENSORS_NAME_BYTES; length++) {
        snprintf(header, sizeof header, "{\"%0*d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                 length, 7);
        ck_assert_int_eq(parse(header, 0, 0, &tensors), length < SAFETENSORS_NAME_BYTES ? 0 : ATTND_INVALID);
    }
}
END_TEST

START_TEST(short_bodies_are_refused)
{
    struct named_tensors tensors;
    char reason[SAFETENSORS_REASON_BYTES];
    for (size_t n = 0; n < 8; n++)
        ck_assert_int_eq(safetensors_parse("\0\0\0\0\0\0\0\0", n, &tensors, reason), ATTND_MALFORMED);
}
END_TEST

static bool metadata_has(const void *body, size_t n, const char *name, char *text, size_t room)
{
    struct safetensors_text wanted[] = {{"nothing", text, room, true}, {name, text, room, false}};
    safetensors_metadata(body, n, wanted, 2);
    ck_assert(!wanted[0].there);
    return wanted[1].there;
}

START_TEST(what_is_written_reads_back)
{
    const float o[4] = {1, 2, 3, 4};
    const uint8_t bytes[3] = {7, 8, 9};
    uint8_t body[512];
    char reason[SAFETENSORS_REASON_BYTES];
    struct named_tensors back,
        tensors = {
            .count = 2,
            .tensors = {{.name = "o",
                         .dtype = "F32",
                         .rank = 2,
                         .shape = {2, 2},
                         .end = 16,
                         .data = (const uint8_t *)o},
                        {.name = "x", .dtype = "U8", .rank = 1, .shape = {3}, .end = 3, .data = bytes}},
        };
    size_t header = safetensors_write_header(&tensors, "{\"a\":\"b\"}", body, sizeof body),
           n = header + sizeof o + sizeof bytes;
    ck_assert_uint_gt(header, 0);
    ck_assert_uint_le(n, sizeof body);
    memcpy(body + header, o, sizeof o);
    memcpy(body + header + sizeof o, bytes, sizeof bytes);
    ck_assert_int_eq(safetensors_parse(body, n, &back, reason), 0);
    const struct named_tensor *t = safetensors_find(&back, "o");
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_eq(t->rank, 2);
    ck_assert_uint_eq((uintptr_t)(t->data - body) % 8, 0);
    ck_assert_int_eq(memcmp(t->data, o, sizeof o), 0);
    ck_assert_int_eq(memcmp(safetensors_find(&back, "x")->data, bytes, 3), 0);
    ck_assert_ptr_null(safetensors_find(&back, "y"));
    char text[4];
    ck_assert(metadata_has(body, n, "a", text, 2));
    ck_assert_str_eq(text, "b");
    ck_assert(!metadata_has(body, n, "a", text, 1)); /* no room */
    ck_assert(!metadata_has(body, n, "o", text, sizeof text));
    ck_assert(!metadata_has(body, 7, "a", text, sizeof text));
    for (size_t room = 0; room < header; room++)
        ck_assert_uint_eq(safetensors_write_header(&tensors, "{\"a\":\"b\"}", body, room), 0);
}
END_TEST

TCase *safetensors_case(void)
{
    TCase *tc = tcase_create("safetensors");
    tcase_add_loop_test(tc, sizes_must_agree, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(tc, tensors_and_names_are_bounded);
    tcase_add_test(tc, short_bodies_are_refused);
    tcase_add_test(tc, what_is_written_reads_back);
    return tc;
}
