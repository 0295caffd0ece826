/* SPDX-License-Identifier: Apache-2.0 */
/* client.h - a client with registered memory, in C: for tests and benchmarks, and to be read by who writes one (docs/TRANSPORTS.md).
 *
 * Not for several threads at once. What fails by the daemon's word returns false with its answer; what cannot be, like a daemon that is
 * gone, sets answer.status to 0 and answer.detail to why. */
#ifndef CLIENTS_REGISTERED_CLIENT_H
#define CLIENTS_REGISTERED_CLIENT_H

#include "config/registered.h"

#include <stdbool.h>

struct registered_client {
    int socket, bell; /* -1: none */
    struct registered_ring *ring;
    uint32_t tail, head;             /* calls put, completions taken */
    uint64_t bells, waits;           /* how often either side slept */
    struct registered_answer answer; /* the latest */
};

struct registered_region {
    uint32_t number;
    uint64_t bytes;
    uint8_t *memory;
};

/* registered_open: connect to unix socket `path` and say who it is; key "": nobody. registered_close: end it; its sequences stay. */
bool registered_open(struct registered_client *client, const char *path, const char *key);
void registered_close(struct registered_client *client);

/* registered_ask: send a message, with a descriptor unless it is -1, and take the answer, and a descriptor that comes with it (*taken). */
bool registered_ask(struct registered_client *client, const struct registered_message *message, int fd,
                    int *taken);

/* registered_make_region: the daemon makes it. registered_use_region: it is a memfd of the caller's, sealed. Both map it. */
bool registered_make_region(struct registered_client *client, uint64_t bytes,
                            struct registered_region *region);
bool registered_use_region(struct registered_client *client, int fd, uint64_t bytes,
                           struct registered_region *region);
bool registered_close_region(struct registered_client *client, struct registered_region *region);

/* registered_put: put a call into the ring and wake the daemon if it sleeps; false: all slots are in use. */
bool registered_put(struct registered_client *client, const struct registered_call *call);

/* registered_take: a completion; false: there is none now. registered_wait: likewise, after looking for spin_us and then sleeping; false: the
 * daemon is gone. */
bool registered_take(struct registered_client *client, struct registered_completion *completion);
bool registered_wait(struct registered_client *client, unsigned spin_us,
                     struct registered_completion *completion);

#endif
