/* SPDX-License-Identifier: Apache-2.0 */
/* test_proxy_protocol.c - headers of the PROXY protocol, version 2, as proxies send them, and what is none. */
#include "server/proxy_protocol.h"
#include "tests/unit/suites.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

#define SIGNATURE "\r\n\r\n\0\r\nQUIT\n"

struct header {
    uint8_t bytes[PROXY_HEADER_BYTES_MAX + 64];
    size_t n;
};

static struct header make(uint8_t command, uint8_t family, const void *rest, size_t n)
{
    struct header h = {.n = 16 + n};
    memcpy(h.bytes, SIGNATURE, 12);
    h.bytes[12] = command;
    h.bytes[13] = family;
    h.bytes[14] = (uint8_t)(n >> 8);
    h.bytes[15] = (uint8_t)n;
    memcpy(h.bytes + 16, rest, n);
    return h;
}

/* Every shorter piece waits for more, the whole is read, and what follows is left alone. */
static struct sockaddr_storage read_whole(struct header h)
{
    struct sockaddr_storage client;
    for (size_t n = 0; n < h.n; n++)
        ck_assert_int_eq(proxy_protocol_read(h.bytes, n, &client), 0);
    memcpy(h.bytes + h.n, "GET /", 5);
    ck_assert_int_eq(proxy_protocol_read(h.bytes, h.n + 5, &client), (int)h.n);
    return client;
}

START_TEST(reads_ipv4)
{
    static const uint8_t rest[] = {192,  0,    2,    7,    10,   0, 0, 1, 0x30, 0x39,
                                   0x01, 0xbb, 0x03, 0x00, 0x04, 1, 2, 3, 4};
    struct sockaddr_storage client = read_whole(make(0x21, 0x11, rest, sizeof rest)); /* with a TLV */
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&client;
    ck_assert_int_eq(client.ss_family, AF_INET);
    ck_assert_uint_eq(ntohl(v4->sin_addr.s_addr), 0xc0000207);
    ck_assert_uint_eq(ntohs(v4->sin_port), 12345);
}
END_TEST

START_TEST(reads_ipv6)
{
    uint8_t rest[36] = {0x20, 0x01, 0x0d, 0xb8};
    rest[15] = 9;
    struct sockaddr_storage client = read_whole(make(0x21, 0x21, rest, sizeof rest));
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&client;
    ck_assert_int_eq(client.ss_family, AF_INET6);
    ck_assert_mem_eq(&v6->sin6_addr, rest, 16);
}
END_TEST

START_TEST(the_proxy_itself_is_nobody)
{
    static const uint8_t rest[12] = {192, 0, 2, 7};
    ck_assert_int_eq(read_whole(make(0x20, 0x11, rest, sizeof rest)).ss_family, AF_UNSPEC); /* LOCAL */
    ck_assert_int_eq(read_whole(make(0x20, 0x00, rest, 0)).ss_family, AF_UNSPEC);
    ck_assert_int_eq(read_whole(make(0x21, 0x00, rest, 0)).ss_family, AF_UNSPEC);  /* unknown to the proxy */
    ck_assert_int_eq(read_whole(make(0x21, 0x31, rest, 12)).ss_family, AF_UNSPEC); /* a unix socket */
}
END_TEST

START_TEST(refuses_what_is_none)
{
    static const uint8_t rest[PROXY_HEADER_BYTES_MAX] = {0};
    struct sockaddr_storage client;
    struct header wrong[] = {make(0x11, 0x11, rest, 12),                      /* version 1 */
                             make(0x22, 0x11, rest, 12),                      /* no such command */
                             make(0x21, 0x11, rest, 11),                      /* too short for its family */
                             make(0x21, 0x21, rest, 35),                      /* likewise */
                             make(0x20, 0x00, rest, PROXY_HEADER_BYTES_MAX)}; /* too long */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_int_eq(proxy_protocol_read(wrong[i].bytes, wrong[i].n, &client), -1);
    ck_assert_int_eq(proxy_protocol_read("GET / HTTP/1.1\r\n", 16, &client), -1);
    ck_assert_int_eq(proxy_protocol_read("PROXY TCP4 1.2.3.4", 18, &client), -1);
    ck_assert_int_eq(proxy_protocol_read("\r\n\r\nGET", 7, &client), -1);
}
END_TEST

TCase *proxy_protocol_case(void)
{
    TCase *tc = tcase_create("proxy_protocol");
    tcase_add_test(tc, reads_ipv4);
    tcase_add_test(tc, reads_ipv6);
    tcase_add_test(tc, the_proxy_itself_is_nobody);
    tcase_add_test(tc, refuses_what_is_none);
    return tc;
}
