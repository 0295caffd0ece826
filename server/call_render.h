/* call_render.h - from a completed call of the engine to the answer of its exchange. */
#ifndef SERVER_CALL_RENDER_H
#define SERVER_CALL_RENDER_H

#include "scheduler/engine.h"
#include "scheduler/workload.h"
#include "server/http_server.h"

/* What the answer of /stats shows beside the call's own figures. */
struct render_context {
    const struct config *config;
    const struct attention_info *backend;
    double roof_gb_per_s, uptime_s;
};

/* call_render: write the answer of `call` into `x`: a problem when it failed, else what its kind
 * promises. */
void call_render(struct http_exchange *x, const struct call *call, const struct render_context *context);

#endif
