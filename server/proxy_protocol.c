/* SPDX-License-Identifier: Apache-2.0 */
/* proxy_protocol.c - see proxy_protocol.h. */
#include "server/proxy_protocol.h"

#include <netinet/in.h>
#include <stdint.h>
#include <string.h>

enum {
    SIGNATURE = 12,
    FRONT = 16,
    LOCAL = 0x20,
    PROXY = 0x21,
    TCP4 = 0x11,
    TCP6 = 0x21,
    V4_BYTES = 12,
    V6_BYTES = 36
};

int proxy_protocol_read(const void *bytes, size_t n, struct sockaddr_storage *client)
{
    static const uint8_t signature[SIGNATURE] = {0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d,
                                                 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a};
    const uint8_t *b = bytes, *addresses = b + FRONT;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    memset(client, 0, sizeof *client); /* AF_UNSPEC */
    if (memcmp(b, signature, n < SIGNATURE ? n : SIGNATURE) != 0)
        return -1;
    if (n < FRONT)
        return 0;
    size_t rest = (size_t)b[14] << 8 | b[15];
    if ((b[12] != LOCAL && b[12] != PROXY) || FRONT + rest > PROXY_HEADER_BYTES_MAX)
        return -1;
    if (b[12] == PROXY && ((b[13] == TCP4 && rest < V4_BYTES) || (b[13] == TCP6 && rest < V6_BYTES)))
        return -1;
    if (n < FRONT + rest)
        return 0;
    if (b[12] == PROXY && b[13] == TCP4) { /* source, destination, their ports */
        memcpy(&v4.sin_addr, addresses, 4);
        memcpy(&v4.sin_port, addresses + 8, 2);
        memcpy(client, &v4, sizeof v4);
    } else if (b[12] == PROXY && b[13] == TCP6) {
        memcpy(&v6.sin6_addr, addresses, 16);
        memcpy(&v6.sin6_port, addresses + 32, 2);
        memcpy(client, &v6, sizeof v6);
    }
    return (int)(FRONT + rest);
}
