/* SPDX-License-Identifier: Apache-2.0 */
/* http_listen.h - a listening socket: TCP or unix. Loop thread. */
#ifndef SERVER_HTTP_LISTEN_H
#define SERVER_HTTP_LISTEN_H

#include "server/listen_address.h"

#include <uv.h>

struct http_listener;

/* A client waits at `listener`: http_listener_accept() takes it. Nothing more is told before. */
typedef void (*http_on_client)(struct http_listener *listener, void *cookie);

/* http_listen(loop, options, on_client, cookie, listener): listen there. The options stay the caller's, and where
 * they are as long as there are connections. A unix socket has its mode and group
 * before anybody can connect. Returns 0 or a negative libuv code and nothing to close. */
MUST_USE int http_listen(uv_loop_t *loop, const struct listen_options *options, http_on_client on_client,
                         void *cookie, struct http_listener **listener);

/* http_listener_accept: take the client into `stream`, which has been initialized for the listener's
 * family. Returns 0 or a negative libuv code. */
int http_listener_accept(struct http_listener *listener, uv_stream_t *stream);

const struct listen_options *http_listener_options(const struct http_listener *listener);

/* http_listener_url: where it really listens ("http://127.0.0.1:43117", "unix:/run/attnd.sock"). */
const char *http_listener_url(const struct http_listener *listener);

/* http_listener_close: close it, remove a unix socket's file, and free it when the loop has run. NULL is fine. */
void http_listener_close(struct http_listener *listener);

#endif
