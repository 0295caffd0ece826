/* SPDX-License-Identifier: Apache-2.0 */
/* proxy_protocol.h - the header with which a proxy says for whom a connection is: version 2 of the PROXY
 * protocol (haproxy.org/download/2.9/doc/proxy-protocol.txt). Pure.
 *
 *   \r\n\r\n\0\r\nQUIT\n | 0x20 LOCAL or 0x21 PROXY | family and transport | u16 n big-endian | n bytes: addresses, TLVs
 */
#ifndef SERVER_PROXY_PROTOCOL_H
#define SERVER_PROXY_PROTOCOL_H

#include <stddef.h>
#include <sys/socket.h>

enum { PROXY_HEADER_BYTES_MAX = 2048 }; /* TLVs included, of which proxies send a few hundred bytes */

/* proxy_protocol_read(bytes, n, client): the header at the front of `bytes`. Returns its length, 0 if it is not
 * whole yet, -1 if there is none. client: whom the connection is for; its family is AF_UNSPEC when the header does
 * not say (LOCAL: the proxy itself, checking). TLVs are skipped. */
int proxy_protocol_read(const void *bytes, size_t n, struct sockaddr_storage *client);

#endif
