/* SPDX-License-Identifier: Apache-2.0 */
/* listen_address.h - where to listen: HOST:PORT, [HOST]:PORT or unix:PATH, or fd:N, a listening socket that was
 * handed over by who started the daemon. Hosts are numeric or "localhost". */
#ifndef SERVER_LISTEN_ADDRESS_H
#define SERVER_LISTEN_ADDRESS_H

#include "config/status.h"
#include "server/address_range.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

enum { ADDRESS_REASON_BYTES = 192 };

struct listen_address {
    bool is_unix;
    bool is_local;              /* a unix socket, or a loopback address */
    int fd;                     /* handed over; 0: none, there is one to be made */
    struct sockaddr_storage ip; /* when !is_unix */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* when is_unix; NUL-terminated */
};

/* How to listen there, and who is let in. */
struct listen_options {
    struct listen_address address;
    bool management;     /* it serves administration, on connections of its own */
    bool local;          /* Host and Origin may name loopback only, since there are no keys */
    bool proxy_protocol; /* connections begin with a header of it, */
    const struct address_ranges *trusted; /* and come from these, unless it is a unix socket */
    uint32_t node;                        /* of the daemon, which every answer names */
    unsigned anonymous;                   /* enum config_scope, without a key where there are keys */
    uint32_t mode;                        /* of the unix socket; 0: as the umask has it */
    char group[32];                       /* likewise; empty: the process's */
};

/* listen_address_parse(text, fds, address, reason): file descriptors below `fds` have been handed over; LISTEN_FDS_UNKNOWN: another
 * process will have them, SERVICE_SOCKETS_MAX at most, and fd:N is taken for a unix socket. 0, or ATTND_INVALID with a sentence in `reason`. */
enum { LISTEN_FDS_UNKNOWN = -1 };
MUST_USE int listen_address_parse(const char *text, int fds, struct listen_address *address,
                                  char reason[ADDRESS_REASON_BYTES]);

/* listen_address_clear(path, type): a socket file that nobody listens on any more (sockets of that type) is removed; one that is in use
 * is not touched. listen_address_folder: 0, or an errno where no socket can be made in its folder: libuv says EACCES where that is
 * missing. listen_address_try: 0, or an errno where a TCP address cannot be bound now; it is given back at once.
 * listen_address_may_come: whether the folder may be made by the service manager at the start (RuntimeDirectory=, in /run).
 * listen_address_is_same: whether two listeners cannot both have it; port 0 is another one each time.
 * listen_address_has_group: whether this machine has such a group. listen_address_restrict: give a bound unix socket its mode and group; 0 or an errno. */
void listen_address_clear(const char *path, int type);
MUST_USE int listen_address_folder(const struct listen_address *address);
MUST_USE int listen_address_try(const struct listen_address *address);
bool listen_address_may_come(const struct listen_address *address);
bool listen_address_is_same(const struct listen_address *a, const struct listen_address *b);
bool listen_address_has_group(const char *name);
MUST_USE int listen_address_restrict(const struct listen_options *options);

/* listen_address_is_loopback_host: whether the value of a Host header (or the authority of an Origin)
 * of `n` bytes names this machine's loopback: localhost, 127.x.x.x or [::1], with or without a port. A
 * page in a browser that reached us by another name (DNS rebinding) is told apart by this. */
bool listen_address_is_loopback_host(const char *host, size_t n);

#endif
