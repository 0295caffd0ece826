/* SPDX-License-Identifier: Apache-2.0 */
/* peer.c - see peer.h. */
#include "server/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

bool peer_of_socket(int fd, uint64_t *uid)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof peer;
    bool known = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid != 0;
    *uid = known ? peer.uid : 0;
    return known;
}

uint64_t peer_of_address(const struct sockaddr *address)
{
    struct sockaddr_in v4 = {0};
    struct sockaddr_in6 v6 = {0};
    uint32_t half[2];
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        return ntohl(v4.sin_addr.s_addr);
    }
    if (address->sa_family != AF_INET6)
        return 0;
    memcpy(&v6, address, sizeof v6);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
        memcpy(half, v6.sin6_addr.s6_addr + 12, sizeof half[0]);
        return ntohl(half[0]);
    }
    memcpy(half, v6.sin6_addr.s6_addr, sizeof half);
    return (uint64_t)ntohl(half[0]) << 32 | ntohl(half[1]);
}

void peer_name(const struct sockaddr *address, char name[PEER_NAME_BYTES])
{
    struct sockaddr_in v4 = {0};
    struct sockaddr_in6 v6 = {0};
    memcpy(&v4, address, sizeof v4);
    if (address->sa_family == AF_INET6)
        memcpy(&v6, address, sizeof v6);
    const void *of = address->sa_family == AF_INET6 ? (const void *)&v6.sin6_addr : &v4.sin_addr;
    if (!inet_ntop(address->sa_family, of, name, PEER_NAME_BYTES))
        snprintf(name, PEER_NAME_BYTES, "an unknown address");
}
