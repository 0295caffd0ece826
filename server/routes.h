/* routes.h - which request becomes which call of the engine, and what is answered at once. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "scheduler/engine.h"
#include "server/http_server.h"

/* What requests are answered from; owned by main, lives as long as the server. Loop thread. */
struct daemon_state {
    const struct config *config;
    struct engine *engine;
    uint64_t started_ns; /* uv_hrtime() */
    bool draining;
};

/* routes_handle: an http_handler; `cookie` is the struct daemon_state. Unknown paths are 404, known
 * paths with another method 405 with Allow. */
void routes_handle(struct http_exchange *x, void *cookie);

/* routes_abandon: an http_abandoned: the client of a deferred exchange has gone; its call's answer will
 * be dropped. */
void routes_abandon(struct http_exchange *x, void *cookie);

/* routes_deliver: answer every exchange whose call the engine has completed. */
void routes_deliver(struct daemon_state *daemon);

#endif
