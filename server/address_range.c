/* SPDX-License-Identifier: Apache-2.0 */
/* address_range.c - see address_range.h. */
#include "server/address_range.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V4_FRONT_BITS = 96 };

/* An address as 16 bytes; false: it is of another family. */
static bool to_bytes(const struct sockaddr *address, uint8_t bytes[16])
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memset(bytes, 0, 16);
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        bytes[10] = bytes[11] = 0xff;
        memcpy(bytes + 12, &v4.sin_addr, 4);
        return true;
    }
    if (address->sa_family != AF_INET6)
        return false;
    memcpy(&v6, address, sizeof v6);
    memcpy(bytes, &v6.sin6_addr, 16);
    return true;
}

/* "ADDRESS" or "ADDRESS/BITS", without white space. */
static bool parse_range(char *text, uint8_t bytes[16], unsigned *bits)
{
    char *slash = strchr(text, '/'), *end;
    if (slash)
        *slash = '\0';
    memset(bytes, 0, 16);
    bool is_v4 = inet_pton(AF_INET, text, bytes + 12) == 1;
    if (is_v4)
        bytes[10] = bytes[11] = 0xff;
    else if (inet_pton(AF_INET6, text, bytes) != 1)
        return false;
    *bits = 128;
    if (!slash)
        return true;
    unsigned long n = strtoul(slash + 1, &end, 10);
    if (slash[1] < '0' || slash[1] > '9' || *end != '\0' || n > (is_v4 ? 32 : 128))
        return false;
    *bits = (unsigned)n + (is_v4 ? V4_FRONT_BITS : 0);
    return true;
}

int address_ranges_parse(const char *text, struct address_ranges *ranges,
                         char reason[ADDRESS_RANGE_REASON_BYTES])
{
    static const char separators[] = ", \t";
    ranges->count = 0;
    for (text += strspn(text, separators); *text; text += strspn(text, separators)) {
        char word[64];
        size_t n = strcspn(text, separators);
        unsigned i = ranges->count;
        if (i == ADDRESS_RANGES_MAX) {
            snprintf(reason, ADDRESS_RANGE_REASON_BYTES, "has more than %d entries", ADDRESS_RANGES_MAX);
            return ATTND_INVALID;
        }
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
        if (n >= sizeof word || !parse_range(word, ranges->ranges[i].bytes, &ranges->ranges[i].bits)) {
            snprintf(reason, ADDRESS_RANGE_REASON_BYTES, "wants ADDRESS or ADDRESS/BITS, has \"%.*s\"",
                     (int)(n < 48 ? n : 48), text);
            return ATTND_INVALID;
        }
        ranges->count++;
        text += n;
    }
    return 0;
}

/* Whether the first `bits` bits are the same. */
static bool same_front(const uint8_t a[16], const uint8_t b[16], unsigned bits)
{
    unsigned whole = bits / 8, rest = bits % 8;
    return memcmp(a, b, whole) == 0 && (rest == 0 || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

bool address_ranges_contain(const struct address_ranges *ranges, const struct sockaddr *address)
{
    uint8_t bytes[16];
    if (!to_bytes(address, bytes))
        return false;
    for (unsigned i = 0; i < ranges->count; i++) {
        if (same_front(bytes, ranges->ranges[i].bytes, ranges->ranges[i].bits))
            return true;
    }
    return false;
}
