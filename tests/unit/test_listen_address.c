/* SPDX-License-Identifier: Apache-2.0 */
/* test_listen_address.c - what may be listened on, and which Host headers are this machine's loopback. */
#include "server/listen_address.h"
#include "tests/unit/suites.h"

#include <string.h>

static const struct {
    const char *text;
    bool ok, local;
} addresses[] = {
    {"127.0.0.1:8400", true, true},
    {"localhost:0", true, true},
    {"[::1]:80", true, true},
    {"127.9.9.9:65535", true, true},
    {"unix:/tmp/a", true, true},
    {"unix:", false, false},
    {"0.0.0.0:80", true, false},
    {"[::]:80", true, false},
    {"192.0.2.1:80", true, false},
    {"[::ffff:127.0.0.1]:1", true, false},
    {"127.0.0.1", false, false},
    {"127.0.0.1:", false, false},
    {"127.0.0.1:65536", false, false},
    {"127.0.0.1:+1", false, false},
    {"example.org:80", false, false},
    {":80", false, false},
    {"fd:3", false, false},
    {"fd:", false, false},
    {"fd:0", false, false},
    {"", false, false},
};

START_TEST(tells_what_is_local)
{
    struct listen_address address;
    char reason[ADDRESS_REASON_BYTES] = "";
    int rc = listen_address_parse(addresses[_i].text, 3, &address, reason);
    ck_assert_msg((rc == 0) == addresses[_i].ok, "%s: %d %s", addresses[_i].text, rc, reason);
    ck_assert_int_eq(rc != 0, reason[0] != '\0');
    if (rc == 0)
        ck_assert_msg(address.is_local == addresses[_i].local, "%s", addresses[_i].text);
}
END_TEST

static const struct {
    const char *host;
    bool ok;
} hosts[] = {
    {"localhost", true},
    {"LOCALHOST:8400", true},
    {"127.0.0.1", true},
    {"127.0.0.1:1", true},
    {"[::1]", true},
    {"[::1]:8400", true},
    {"localhost.example", false},
    {"localhost:8400", true},
    {"localhost:abc", false},
    {"localhost:65536", false},
    {"", false},
    {"127.0.0.1.x", false},
    {"example.org", false},
    {"[::1]x", false},
    {"128.0.0.1", false},
};

START_TEST(loopback_hosts)
{
    ck_assert_msg(listen_address_is_loopback_host(hosts[_i].host, strlen(hosts[_i].host)) == hosts[_i].ok,
                  "%s", hosts[_i].host);
}
END_TEST

TCase *listen_address_case(void)
{
    TCase *tc = tcase_create("listen_address");
    tcase_add_loop_test(tc, tells_what_is_local, 0, sizeof addresses / sizeof addresses[0]);
    tcase_add_loop_test(tc, loopback_hosts, 0, sizeof hosts / sizeof hosts[0]);
    return tc;
}
