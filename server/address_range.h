/* SPDX-License-Identifier: Apache-2.0 */
/* address_range.h - lists of IP addresses and networks, "127.0.0.1, 10.0.0.0/8, fd00::/8". Pure. */
#ifndef SERVER_ADDRESS_RANGE_H
#define SERVER_ADDRESS_RANGE_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { ADDRESS_RANGES_MAX = 16, ADDRESS_RANGE_REASON_BYTES = 128 };

struct address_ranges {
    unsigned count;
    struct {
        uint8_t bytes[16]; /* IPv4 as ::ffff:a.b.c.d */
        unsigned bits;
    } ranges[ADDRESS_RANGES_MAX];
};

/* address_ranges_parse(text, ranges, reason): an empty text is an empty list. 0, or ATTND_INVALID with a
 * sentence. */
MUST_USE int address_ranges_parse(const char *text, struct address_ranges *ranges,
                                  char reason[ADDRESS_RANGE_REASON_BYTES]);

bool address_ranges_contain(const struct address_ranges *ranges, const struct sockaddr *address);

#endif
