/* SPDX-License-Identifier: Apache-2.0 */
/* zmq_address.h - where ZeroMQ sockets may be bound: ipc://PATH, tcp://HOST:PORT or tcp://[HOST]:PORT. Hosts are numeric;
 * port * or 0: any free one. Names of interfaces and wildcards of ZeroMQ are not taken: what is bound has to be known. */
#ifndef CONFIG_ZMQ_ADDRESS_H
#define CONFIG_ZMQ_ADDRESS_H

#include "config/status.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/un.h>

enum { ZMQ_ADDRESS_REASON_BYTES = 192 };

struct zmq_address {
    bool is_ipc;
    bool is_local; /* ipc, or a loopback address */
    struct sockaddr_un ipc;
    struct sockaddr_storage ip; /* when !is_ipc */
};

/* zmq_address_parse: 0, or ATTND_INVALID with a sentence in `reason`. Any thread. */
MUST_USE int zmq_address_parse(const char *text, struct zmq_address *address,
                               char reason[ZMQ_ADDRESS_REASON_BYTES]);

#endif
