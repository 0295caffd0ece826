/* SPDX-License-Identifier: Apache-2.0 */
/* registered.h - clients that register memory: who they are, their rings and regions, and their end.
 *
 * They come in at transport.listen, a SOCK_SEQPACKET socket, and say who they are; the daemon makes a ring and regions, and hands over
 * descriptors (config/registered.h). Calls go by the ring, which the engine reads (scheduler/doorbell.h). Loop thread. */
#ifndef SERVER_REGISTERED_H
#define SERVER_REGISTERED_H

#include "server/listen_address.h"
#include "server/routes.h"

struct registered;

/* registered_listen(daemon, options, registered): listen there, with memory for config.transport_clients. 0, or an errno and nothing to
 * destroy. */
MUST_USE int registered_listen(struct daemon_state *daemon, const struct listen_options *options,
                               struct registered **registered);

/* NULL is fine, from here on. registered_drain: take no new clients; calls that were taken are answered, and then each client is told that
 * the daemon ends. registered_cut: do not wait for their calls; how many clients there still were. registered_destroy: when the loop has
 * run until all of that was done. */
void registered_drain(struct registered *registered);
uint32_t registered_cut(struct registered *registered);
void registered_destroy(struct registered *registered);

/* registered_deliver: a request of theirs is back (struct answer). registered_look: the engine has notified the loop, perhaps since it has
 * ended a client. registered_renew: the keys have been read again. registered_tick: about twice a second. */
void registered_deliver(struct registered *registered, struct request *request);
void registered_look(struct registered *registered);
void registered_renew(struct registered *registered);
void registered_tick(struct registered *registered);

/* registered_give_up: the engine does not answer any more. */
void registered_give_up(struct registered *registered, const char *why);

#endif
