/* routes.h - which handler answers which request. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "kernels/attention.h"
#include "server/http_server.h"

/* What handlers may look at; owned by main, lives as long as the server. */
struct daemon_state {
    const struct config *config;
    const struct attention_info *backend;
    double roof_gb_per_s; /* measured at start */
    bool draining;
};

/* routes_handle: an http_handler; `cookie` is the struct daemon_state. Unknown paths are 404, known
 * paths with another method 405 with Allow. */
void routes_handle(struct http_exchange *x, void *cookie);

#endif
