/* listen_address.h - the `listen` key: HOST:PORT, [HOST]:PORT or unix:PATH.
 *
 * Hosts are numeric or "localhost". Only loopback addresses are served: there are no API keys yet, and
 * without a key any other address would hand the pool to the network. */
#ifndef SERVER_LISTEN_ADDRESS_H
#define SERVER_LISTEN_ADDRESS_H

#include "config/status.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/un.h>

enum { ADDRESS_REASON_BYTES = 192 };

struct listen_address {
    bool is_unix;
    struct sockaddr_storage ip;                             /* when !is_unix */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* when is_unix; NUL-terminated */
};

/* listen_address_parse(text, address, reason): 0, or ATTND_INVALID with a sentence in `reason`. */
MUST_USE int listen_address_parse(const char *text, struct listen_address *address,
                                  char reason[ADDRESS_REASON_BYTES]);

/* listen_address_is_loopback_host: whether the value of a Host header (or the authority of an Origin)
 * of `n` bytes names this machine's loopback: localhost, 127.x.x.x or [::1], with or without a port. A
 * page in a browser that reached us by another name (DNS rebinding) is told apart by this. */
bool listen_address_is_loopback_host(const char *host, size_t n);

#endif
