/* SPDX-License-Identifier: Apache-2.0 */
/* access.h - who sends a request, and whether it may. Loop thread.
 *
 *   no keys file         everybody may do everything; only loopback and unix sockets listen
 *   keys file            Authorization: Bearer KEY, or what the listener lets clients do without one
 *   management listener  on a unix socket whoever runs as the daemon, or as root; on TCP probes and metrics,
 *                        and the rest with an admin's key
 *
 * What belongs to a key does not exist for another one. The probes are everybody's. */
#ifndef SERVER_ACCESS_H
#define SERVER_ACCESS_H

#include "server/api.h"
#include "server/http_exchange.h"
#include "server/routes.h"

/* access_scope: the scope that a key needs for it, by name; NULL: none. */
const char *access_scope(enum route_access access);

/* access_admit(x, daemon): note x->key and x->scopes; false: the answer is a problem (401, 403, 404 at the
 * management listener, 429). x->route has been found. */
bool access_admit(struct http_exchange *x, struct daemon_state *daemon);

/* access_refuse_quota: say that a quota of the client's key is used up; `limit` of it. */
int access_refuse_quota(struct http_exchange *x, const char *quota, uint64_t limit);

/* access_write_key(w, x): the member "key", with the name and the scopes of the client's key; nothing if there
 * are no keys. */
void access_write_key(struct json_writer *w, const struct http_exchange *x);

/* Whether the client sees what belongs to any key. */
bool access_sees_all(const struct http_exchange *x);

#endif
