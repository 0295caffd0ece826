/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_request.c - what two parsers could read differently is refused, however its bytes arrive. */
#include "server/http_request.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <string.h>

enum { BODY_MAX = 64 };

START_TEST(finds_the_end_of_the_head)
{
    const char *text = "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
    size_t whole = strlen(text) - 4;
    ck_assert_uint_eq(http_head_length(text, strlen(text)), whole);
    for (size_t n = 0; n < whole; n++)
        ck_assert_uint_eq(http_head_length(text, n), 0);
}
END_TEST

struct body {
    char bytes[BODY_MAX];
    size_t n;
};

static int take(void *cookie, const char *bytes, size_t n)
{
    struct body *body = cookie;
    ck_assert_uint_ge(n, 1);
    ck_assert_uint_le(body->n + n, sizeof body->bytes - 1);
    memcpy(body->bytes + body->n, bytes, n);
    body->n += n;
    body->bytes[body->n] = '\0';
    return 0;
}

/* Read a request whose body comes `piece` bytes at a time. Returns the status of its fault, 0 if there is
 * none, -1 if it is not complete. */
static int read_request(const char *text, size_t n, size_t piece, struct http_request *request,
                        struct body *body)
{
    struct http_parser parser;
    struct http_fault fault = {0, ""};
    size_t head = http_head_length(text, n), used;
    body->n = 0;
    body->bytes[0] = '\0';
    if (!http_request_read(&parser, text, head ? head : n, true, request, &fault)) {
        ck_assert_int_ne(fault.status, 0);
        ck_assert_uint_gt(strlen(fault.detail), 0);
        return fault.status;
    }
    ck_assert_uint_ne(head, 0);
    for (size_t at = head; at < n && !parser.complete; at += used) {
        size_t now = n - at < piece ? n - at : piece;
        if (http_body_read(&parser, text + at, now, take, body, &used, &fault) == HTTP_REFUSED)
            return fault.status;
        ck_assert_uint_ge(used, 1);
    }
    return parser.complete ? 0 : -1;
}

#define HOST            "Host: localhost\r\n"
#define CHUNKED         "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
#define POSTED(headers) "POST / HTTP/1.1\r\n" HOST headers "\r\n\r\n"

static const struct {
    int status;
    const char *text;
    size_t n; /* 0: strlen */
} requests[] = {
    {0, "GET / HTTP/1.1\r\n" HOST "\r\n", 0},
    {0, "GET / HTTP/1.0\r\n\r\n", 0},
    {0, POSTED("X:") "", 0},
    {0, CHUNKED "3\r\nabc\r\n0\r\n\r\n", 0},
    {0, CHUNKED "1;name=value\r\na\r\n0\r\n\r\n", 0},
    {0, POSTED("Content-Length: 3") "abc", 0},
    {0, POSTED("Connection: close") "GET / HTTP/1.1\r\n\r\n", 0},
    /* What llhttp compiled otherwise takes. */
    {ATTND_MALFORMED, POSTED("X:\rTransfer-Encoding: chunked"), 0},
    {ATTND_MALFORMED, CHUNKED "1\r\naXX0\r\n\r\n", 0},
    {ATTND_MALFORMED, "GET /\xff HTTP/1.1\r\n" HOST "\r\n", 0},
    /* What it takes in any case. */
    {ATTND_MALFORMED, POSTED("Transfer-Encoding:\r\n chunked"), 0},
    {ATTND_MALFORMED, POSTED("X: a\r\n\tb"), 0},
    {ATTND_MALFORMED, POSTED(" Content-Length: 1") "a", 0},
    {ATTND_MALFORMED, POSTED(": empty"), 0},
    {ATTND_MALFORMED, "GET / HTTP/1.1\r\n\r\n", 0},
    {ATTND_MALFORMED, POSTED("Host: localhost"), 0},
    {ATTND_MALFORMED, "GET /\r\n\r\n", 0},
    {ATTND_BAD_VERSION, "GET / HTTP/0.9\r\n\r\n", 0},
    {ATTND_BAD_VERSION, "GET / HTTP/2.0\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: gzip, chunked") "0\r\n\r\n", 0},
    {ATTND_MALFORMED, "CONNECT localhost:1 HTTP/1.1\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "GET / RTSP/1.0\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "SOURCE / ICE/1.0\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, CHUNKED "0\r\n\n", 0},
    {ATTND_MALFORMED, CHUNKED "0\r\nX: trailer\r\n\r\n", 0},
    /* What it refuses. */
    {ATTND_MALFORMED, POSTED("Content-Length: 1\r\nTransfer-Encoding: chunked") "0\r\n\r\n", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: chunked\r\nContent-Length: 1") "0\r\n\r\n", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: 1\r\nContent-Length: 1") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: 1\r\nContent-Length: 2") "ab", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: 1, 1") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: +1") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: -1") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: 0x1") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: ") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length: 18446744073709551616") "a", 0},
    {ATTND_MALFORMED, POSTED("Content-Length : 1") "a", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: identity") "a", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: xchunked") "a", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: chunked, identity") "0\r\n\r\n", 0},
    {ATTND_MALFORMED, POSTED("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked") "0\r\n\r\n", 0},
    {ATTND_MALFORMED, "GET / HTTP/1.1\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "GET / HTTP/1.1\r\nHost: localhost\n\r\n\r\n", 0},
    {ATTND_MALFORMED, CHUNKED "0x1\r\na\r\n0\r\n\r\n", 0},
    {ATTND_MALFORMED, CHUNKED "1 \r\na\r\n0\r\n\r\n", 0},
    {ATTND_MALFORMED, CHUNKED "10000000000000000\r\na\r\n0\r\n\r\n", 0},
    {ATTND_MALFORMED, CHUNKED "1\na\r\n0\r\n\r\n", 0},
    {ATTND_MALFORMED, "GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n", 43},
    {ATTND_MALFORMED, POSTED("X: a\001b"), 0},
    {ATTND_MALFORMED, "get / HTTP/1.1\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "GET / HTTP/1.2\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, "\x16\x03\x01\x02\x00\x01", 6},
    /* What it does not know. */
    {ATTND_MALFORMED, POSTED("Origin: http://localhost\r\nOrigin: http://localhost"), 0},
    {ATTND_FORBIDDEN, POSTED("Origin: null"), 0},
    {ATTND_FORBIDDEN, "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 0},
    {ATTND_FORBIDDEN, "GET http://evil.example/ HTTP/1.1\r\n" HOST "\r\n", 0},
    {ATTND_BAD_TYPE, POSTED("Content-Encoding: gzip"), 0},
    {ATTND_EXPECTATION, POSTED("Expect: cake"), 0},
    {ATTND_BAD_METHOD, "PATCH / HTTP/1.1\r\n" HOST "\r\n", 0},
    {ATTND_BAD_METHOD, "BREW / HTTP/1.1\r\n" HOST "\r\n", 0}, /* which llhttp does not know either */
    {ATTND_MALFORMED, "BR3W / HTTP/1.1\r\n" HOST "\r\n", 0},
    {ATTND_MALFORMED, POSTED("X-Request-Timeout-Ms: 0"), 0},
    {ATTND_MALFORMED, POSTED("X-Request-Timeout-Ms: 1s"), 0},
};

START_TEST(reads_or_refuses)
{
    struct http_request request;
    struct body body;
    const char *text = requests[_i].text;
    size_t n = requests[_i].n ? requests[_i].n : strlen(text);
    for (size_t piece = 1; piece <= n; piece++)
        ck_assert_msg(read_request(text, n, piece, &request, &body) == requests[_i].status, "%s", text);
}
END_TEST

START_TEST(says_what_the_head_says)
{
    const char *text =
        "HEAD http://localhost:8400/v1/x?a=1&b HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: me\r\n"
        "Accept: text/plain\r\nIf-None-Match: \"7\"\r\nX-Request-Timeout-Ms: 250\r\n\r\n";
    struct http_request r;
    struct body body;
    ck_assert_int_eq(read_request(text, strlen(text), 1, &r, &body), 0);
    ck_assert_int_eq(r.method, HTTP_METHOD_GET);
    ck_assert(r.head_only && r.keeps_alive && !r.is_1_0 && !r.expects && !r.has_length);
    ck_assert(http_text_is(r.path, "/v1/x") && http_text_is(r.query, "a=1&b"));
    ck_assert(http_text_is(r.accept, "text/plain") && http_text_is(r.if_none_match, "\"7\""));
    ck_assert(http_text_is(r.body_type, ""));
    ck_assert_uint_eq(r.timeout_ms, 250);
    ck_assert_str_eq(r.id, "me");
}
END_TEST

START_TEST(says_what_it_can_of_one_that_it_refuses)
{
    const char *text = "HEAD /a HTTP/1.1\r\nX-Request-Id: me\r\nHost: evil.example\r\n\r\n";
    struct http_request r;
    struct body body;
    ck_assert_int_eq(read_request(text, strlen(text), 1, &r, &body), ATTND_FORBIDDEN);
    ck_assert(r.head_only && http_text_is(r.path, "/a"));
    ck_assert_str_eq(r.id, "me");
    text = "GET /a HTTP/1.1\r\nX-Request-Id: say \"no\"\r\nHost: a\r\n\r\n";
    ck_assert_int_eq(read_request(text, strlen(text), 1, &r, &body), ATTND_FORBIDDEN);
    ck_assert_uint_eq(strlen(r.id), 16); /* a random one */
}
END_TEST

START_TEST(hands_over_the_body)
{
    const char *text = CHUNKED "3;x=\"y\"\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\nGET /";
    struct http_request r;
    struct body body;
    for (size_t piece = 1; piece < strlen(text); piece++) {
        ck_assert_int_eq(read_request(text, strlen(text), piece, &r, &body), 0);
        ck_assert_str_eq(body.bytes, "abc0123456789");
    }
    text = CHUNKED "3\r\nab";
    ck_assert_int_eq(read_request(text, strlen(text), 4, &r, &body), -1);
}
END_TEST

START_TEST(has_limits)
{
    static char text[3 * HTTP_HEAD_BYTES_MAX];
    struct http_request r;
    struct body body;
    size_t n = (size_t)sprintf(text, "GET /%0*d HTTP/1.1\r\n" HOST "\r\n", HTTP_URL_BYTES_MAX, 0);
    ck_assert_int_eq(read_request(text, n, 1, &r, &body), ATTND_URL_TOO_LONG);
    n = (size_t)sprintf(text, "GET / HTTP/1.1\r\n" HOST "X: %0*d\r\n\r\n", HTTP_HEAD_BYTES_MAX, 0);
    ck_assert_int_eq(read_request(text, n, 1, &r, &body), ATTND_HEADERS_TOO_LARGE);
    for (int more = 0; more < 2; more++) {
        n = (size_t)sprintf(text, "GET / HTTP/1.1\r\n" HOST);
        for (int i = 1; i < HTTP_HEADERS_MAX + more; i++)
            n += (size_t)sprintf(text + n, "X: y\r\n");
        n += (size_t)sprintf(text + n, "\r\n");
        ck_assert_int_eq(read_request(text, n, 1, &r, &body), more ? ATTND_HEADERS_TOO_LARGE : 0);
    }
}
END_TEST

TCase *http_request_case(void)
{
    TCase *tc = tcase_create("http_request");
    tcase_add_test(tc, finds_the_end_of_the_head);
    tcase_add_loop_test(tc, reads_or_refuses, 0, sizeof requests / sizeof requests[0]);
    tcase_add_test(tc, says_what_the_head_says);
    tcase_add_test(tc, says_what_it_can_of_one_that_it_refuses);
    tcase_add_test(tc, hands_over_the_body);
    tcase_add_test(tc, has_limits);
    return tc;
}
