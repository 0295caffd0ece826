/* SPDX-License-Identifier: Apache-2.0 */
/* test_address_range.c - which addresses a list has, and which lists are none. */
#include "server/address_range.h"
#include "tests/unit/suites.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

static bool contains(const char *list, const char *address)
{
    struct address_ranges ranges;
    char reason[ADDRESS_RANGE_REASON_BYTES];
    struct sockaddr_storage at = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at;
    ck_assert_int_eq(address_ranges_parse(list, &ranges, reason), 0);
    if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
        at.ss_family = AF_INET;
    } else {
        ck_assert_int_eq(inet_pton(AF_INET6, address, &v6->sin6_addr), 1);
        at.ss_family = AF_INET6;
    }
    return address_ranges_contain(&ranges, (const struct sockaddr *)&at);
}

static const struct {
    const char *list, *address;
    bool in;
} cases[] = {
    {"", "127.0.0.1", false},
    {"127.0.0.1", "127.0.0.1", true},
    {"127.0.0.1", "127.0.0.2", false},
    {"127.0.0.1", "::ffff:127.0.0.1", true},
    {"10.0.0.0/8", "10.255.1.2", true},
    {"10.0.0.0/8", "11.0.0.0", false},
    {"192.168.4.0/22", "192.168.7.255", true},
    {"192.168.4.0/22", "192.168.8.0", false},
    {"0.0.0.0/0", "203.0.113.9", true},
    {"0.0.0.0/0", "2001:db8::1", false},
    {"::/0", "2001:db8::1", true},
    {"::1, fd00::/8", "fd12::1", true},
    {" ::1\t,fd00::/8,", "fe00::1", false},
    {"2001:db8::/33", "2001:db8:7fff::", true},
    {"2001:db8::/33", "2001:db8:8000::", false},
};

START_TEST(knows_what_is_in_it)
{
    ck_assert_msg(contains(cases[_i].list, cases[_i].address) == cases[_i].in, "%s in %s", cases[_i].address,
                  cases[_i].list);
}
END_TEST

START_TEST(refuses_what_is_no_list)
{
    static const char *const lists[] = {"x",           "127.0.0.1/33", "127.0.0.1/", "127.0.0.1/x", "::/129",
                                        "10.0.0.0/-1", "localhost",    "1.2.3",      "127.0.0.1:80"};
    struct address_ranges ranges;
    char reason[ADDRESS_RANGE_REASON_BYTES], many[512] = "";
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        ck_assert_msg(address_ranges_parse(lists[i], &ranges, reason) == ATTND_INVALID, "%s", lists[i]);
    for (int i = 0; i < ADDRESS_RANGES_MAX + 1; i++)
        strcat(many, "127.0.0.1 ");
    ck_assert_int_eq(address_ranges_parse(many, &ranges, reason), ATTND_INVALID);
    many[strlen(many) - strlen("127.0.0.1 ")] = '\0';
    ck_assert_int_eq(address_ranges_parse(many, &ranges, reason), 0);
    ck_assert_uint_eq(ranges.count, ADDRESS_RANGES_MAX);
}
END_TEST

TCase *address_range_case(void)
{
    TCase *tc = tcase_create("address_range");
    tcase_add_loop_test(tc, knows_what_is_in_it, 0, sizeof cases / sizeof cases[0]);
    tcase_add_test(tc, refuses_what_is_no_list);
    return tc;
}
