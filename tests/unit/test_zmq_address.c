/* SPDX-License-Identifier: Apache-2.0 */
/* test_zmq_address.c - what may be bound for events, and what of it is this machine only. (test_config.c has what follows from that.) */
#include "config/zmq_address.h"
#include "tests/unit/suites.h"

#include <arpa/inet.h>
#include <string.h>

static const struct {
    const char *text;
    bool ok, local;
    int port; /* -1: it has none */
} addresses[] = {
    {"ipc:///run/attnd/events", true, true, -1},
    {"ipc://events", false, false, 0}, /* whose working folder? */
    {"ipc://@abstract", false, false, 0},
    {"ipc://*", false, false, 0},
    {"ipc://", false, false, 0},
    {"tcp://127.0.0.1:5557", true, true, 5557},
    {"tcp://127.0.0.1:*", true, true, 0},
    {"tcp://127.0.0.1:0", true, true, 0},
    {"tcp://127.255.255.254:65535", true, true, 65535},
    {"tcp://[::1]:5557", true, true, 5557},
    {"tcp://128.0.0.1:1", true, false, 1},
    {"tcp://0.0.0.0:1", true, false, 1},
    {"tcp://[::]:1", true, false, 1},
    {"tcp://[::ffff:127.0.0.1]:1", true, false, 1},
    {"tcp://*:5557", false, false, 0},
    {"tcp://lo:5557", false, false, 0},
    {"tcp://localhost:5557", false, false, 0},
    {"tcp://127.1:5557", false, false, 0},
    {"tcp://127.0.0.1:65536", false, false, 0},
    {"tcp://127.0.0.1:-1", false, false, 0},
    {"tcp://127.0.0.1:5557;eth0", false, false, 0},
    {"tcp://127.0.0.1:", false, false, 0},
    {"tcp://127.0.0.1", false, false, 0},
    {"tcp://::1:5557", false, false, 0},
    {"tcp://[]:1", false, false, 0},
    {"tcp://[:1", false, false, 0},
    {"tcp://[::1", false, false, 0},
    {"tcp://:1", false, false, 0},
    {"tcp://", false, false, 0},
    {"inproc://events", false, false, 0},
    {"pgm://127.0.0.1:1", false, false, 0},
    {"127.0.0.1:5557", false, false, 0},
    {"", false, false, 0},
};

START_TEST(tells_what_is_local)
{
    struct zmq_address a;
    char reason[ZMQ_ADDRESS_REASON_BYTES] = "";
    int rc = zmq_address_parse(addresses[_i].text, &a, reason), port = -1;
    ck_assert_msg((rc == 0) == addresses[_i].ok, "%s: %d %s", addresses[_i].text, rc, reason);
    ck_assert_int_eq(rc != 0, reason[0] != '\0');
    if (rc != 0)
        return;
    if (!a.is_ipc)
        port = ntohs(a.ip.ss_family == AF_INET ? ((struct sockaddr_in *)&a.ip)->sin_port
                                               : ((struct sockaddr_in6 *)&a.ip)->sin6_port);
    ck_assert_msg(a.is_local == addresses[_i].local && port == addresses[_i].port, "%s: %d, port %d",
                  addresses[_i].text, a.is_local, port);
}
END_TEST

START_TEST(a_path_fits_a_socket)
{
    struct zmq_address a;
    char reason[ZMQ_ADDRESS_REASON_BYTES], text[128] = "ipc:///";
    memset(text + 7, 'x', 107);
    ck_assert_int_ne(zmq_address_parse(text, &a, reason), 0);
    text[6 + 107] = '\0';
    ck_assert_int_eq(zmq_address_parse(text, &a, reason), 0);
    ck_assert_uint_eq(strlen(a.ipc.sun_path), 107);
}
END_TEST

TCase *zmq_address_case(void)
{
    TCase *c = tcase_create("zmq_address");
    tcase_add_loop_test(c, tells_what_is_local, 0, (int)(sizeof addresses / sizeof addresses[0]));
    tcase_add_test(c, a_path_fits_a_socket);
    return c;
}
