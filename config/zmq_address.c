/* SPDX-License-Identifier: Apache-2.0 */
/* zmq_address.c - see zmq_address.h. */
#include "config/zmq_address.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(char reason[ZMQ_ADDRESS_REASON_BYTES], const char *why)
{
    snprintf(reason, ZMQ_ADDRESS_REASON_BYTES, "%s", why);
    return ATTND_INVALID;
}

/* HOST:PORT or [HOST]:PORT into its parts; false: it is neither. */
static bool split(const char *text, char host[INET6_ADDRSTRLEN], bool *brackets, uint16_t *port)
{
    const char *colon = strrchr(text, ':');
    char *end;
    *brackets = text[0] == '[';
    if (!colon || (*brackets && colon[-1] != ']'))
        return false;
    size_t n = (size_t)(colon - text) - 2 * (size_t)*brackets;
    if (colon - text < (*brackets ? 3 : 1) || n >= INET6_ADDRSTRLEN)
        return false;
    memcpy(host, text + *brackets, n);
    host[n] = '\0';
    *port = 0;
    if (strcmp(colon + 1, "*") == 0)
        return true;
    if (colon[1] < '0' || colon[1] > '9')
        return false;
    unsigned long number = strtoul(colon + 1, &end, 10);
    *port = (uint16_t)number;
    return *end == '\0' && number <= UINT16_MAX;
}

static int parse_ipc(const char *path, struct zmq_address *address, char reason[ZMQ_ADDRESS_REASON_BYTES])
{
    size_t n = strlen(path);
    if (path[0] != '/' || n >= sizeof address->ipc.sun_path)
        return refuse(reason, "ipc:// wants a path from the root, of at most 107 bytes");
    address->is_ipc = address->is_local = true;
    address->ipc.sun_family = AF_UNIX;
    memcpy(address->ipc.sun_path, path, n);
    return 0;
}

int zmq_address_parse(const char *text, struct zmq_address *address, char reason[ZMQ_ADDRESS_REASON_BYTES])
{
    char host[INET6_ADDRSTRLEN];
    bool brackets;
    uint16_t port;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    *address = (struct zmq_address){0};
    if (strncmp(text, "ipc://", 6) == 0)
        return parse_ipc(text + 6, address, reason);
    if (strncmp(text, "tcp://", 6) != 0)
        return refuse(reason, "wants ipc://PATH, tcp://HOST:PORT or tcp://[HOST]:PORT");
    if (!split(text + 6, host, &brackets, &port))
        return refuse(reason, "tcp:// wants HOST:PORT or [HOST]:PORT; port *: any free one");
    v4.sin_port = v6.sin6_port = htons(port);
    if (!brackets && inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        address->is_local = ntohl(v4.sin_addr.s_addr) >> 24 == 127;
        memcpy(&address->ip, &v4, sizeof v4);
    } else if (brackets && inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        address->is_local = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
        memcpy(&address->ip, &v6, sizeof v6);
    } else {
        return refuse(reason, "the host of tcp:// is a numeric address, of IPv6 in brackets");
    }
    return 0;
}
