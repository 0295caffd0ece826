/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h - who is at the other end of a connection, as long as there are no keys: time is shared between
 * these. */
#ifndef SERVER_PEER_H
#define SERVER_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* peer_of_socket: the uid of the process at the other end of a unix socket; false if it is not known. */
bool peer_of_socket(int fd, uint64_t *uid);

/* peer_of_address: a number for an IP address without its port. An IPv4 address is the same inside IPv6;
 * another IPv6 address counts by its first 64 bits, since one host has all of these. */
uint64_t peer_of_address(const struct sockaddr *address);

/* peer_name: an IP address in words, without its port. */
enum { PEER_NAME_BYTES = 46 };
void peer_name(const struct sockaddr *address, char name[PEER_NAME_BYTES]);

#endif
