/* SPDX-License-Identifier: Apache-2.0 */
/* http_connection.h - connections of HTTP/1.1: their limits and times, one request at a time on each.
 *
 * All memory is taken by http_connections_create(): a connection costs its three fixed buffers, which stay
 * untouched (and so cost no memory) until it is used. Everything here belongs to the loop thread. */
#ifndef SERVER_HTTP_CONNECTION_H
#define SERVER_HTTP_CONNECTION_H

#include "config/memory_budget.h"
#include "server/http_exchange.h"
#include "server/http_listen.h"

struct http_connections;

/* What a connection has apart from the budget: its head, a little of its body and answer, the socket's buffers as the
 * kernel counts them. */
enum { HTTP_CONNECTION_BYTES = 208 << 10 };

/* http_connections_create(loop, limits, budget, service, all): room for limits.connections; larger bodies and
 * answers are taken from the budget. Returns 0 or a negative libuv code and nothing to destroy. */
MUST_USE int http_connections_create(uv_loop_t *loop, const struct config_limits *limits,
                                     struct memory_budget *budget, const struct http_service *service,
                                     struct http_connections **all);

/* http_connections_accept: take the client that waits at the listener. One too many is told so with a 503 at
 * once. An http_on_client; `all` is the struct http_connections. */
void http_connections_accept(struct http_listener *listener, void *all);

/* Connections of clients. */
struct http_connection_counts {
    uint32_t open;              /* now */
    uint64_t accepted, refused; /* since the start; refused: since as many as may be were open */
};

/* http_connections_counts: of NULL all are 0. */
struct http_connection_counts http_connections_counts(const struct http_connections *all);

/* http_connections_drain(all, emptied, cookie): close idle connections now and the others after their answer, and
 * call `emptied` when there is none any more. The listeners have been closed. Idempotent. */
void http_connections_drain(struct http_connections *all, void (*emptied)(void *cookie), void *cookie);

/* http_connections_cut: close what is still open, whatever is under way there. Returns how many. */
uint32_t http_connections_cut(struct http_connections *all);

/* http_connections_destroy: free them, once the loop has run out. NULL is fine. */
void http_connections_destroy(struct http_connections *all);

/* http_let_go: an exchange is held no more: false: its client has gone meanwhile, and it ends now. A body whose
 * bytes it was held for goes on. */
bool http_let_go(struct http_exchange *x);

/* http_answer: send the answer of a deferred exchange, or its next part (x->more, chunked). */
void http_answer(struct http_exchange *x);

#endif
