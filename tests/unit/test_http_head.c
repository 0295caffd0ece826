/* test_http_head.c - the raw scan of a request's head finds what llhttp 8.1.0 lets through. */
#include "server/http_head.h"
#include "tests/unit/suites.h"

#include <string.h>

START_TEST(finds_the_end_of_the_head)
{
    const char *text = "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
    size_t whole = strlen(text) - 4;
    ck_assert_uint_eq(http_head_length(text, strlen(text)), whole);
    for (size_t n = 0; n < whole; n++)
        ck_assert_uint_eq(http_head_length(text, n), 0);
}
END_TEST

static const struct {
    const char *head;
    size_t n; /* 0: strlen */
    bool fault;
} heads[] = {
    {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0, false},
    {"GET / HTTP/1.1\r\nHost:a\r\nX:\r\n\r\n", 0, false},
    {"GET / HTTP/1.1\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n", 0, true},
    {"GET / HTTP/1.1\r\nTransfer-Encoding:\r\n chunked\r\n\r\n", 0, true},
    {"GET / HTTP/1.1\r\n\tContent-Length: 1\r\n\r\n", 0, true},
    {"GET / HTTP/1.1\r\n: empty\r\n\r\n", 0, true},
    {"GET / HTTP/1.1\nHost: a\r\n\r\n", 0, true},
    {"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", 26, true},
};

START_TEST(finds_faults)
{
    size_t n = heads[_i].n ? heads[_i].n : strlen(heads[_i].head);
    ck_assert_int_eq(http_head_fault(heads[_i].head, n) != NULL, heads[_i].fault);
}
END_TEST

TCase *http_head_case(void)
{
    TCase *tc = tcase_create("http_head");
    tcase_add_test(tc, finds_the_end_of_the_head);
    tcase_add_loop_test(tc, finds_faults, 0, sizeof heads / sizeof heads[0]);
    return tc;
}
