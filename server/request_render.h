/* request_render.h - from a completed request of the engine to the answer of its exchange. */
#ifndef SERVER_REQUEST_RENDER_H
#define SERVER_REQUEST_RENDER_H

#include "scheduler/engine.h"
#include "scheduler/workload.h"
#include "server/answer.h"
#include "server/http_server.h"

/* What answers show beside the request's own figures. */
struct render_context {
    const struct config *config;
    const struct attention_info *backend;
    double roof_gb_per_s, uptime_s;
    uint64_t tensors_copied;
    size_t staging_used;
};

/* request_render: write the answer of `request` into `x`: a problem when it failed, else what its route
 * promises (answer.h). */
void request_render(struct http_exchange *x, const struct request *request,
                    const struct render_context *context);

/* What routes promise, each of one kind of request. */
#define XX(name)                                                                                             \
    void request_render_##name(struct http_exchange *x, const struct request *request,                       \
                               const struct render_context *context);
XX(append)
XX(attend)
XX(audit)
XX(batch)
XX(create)
XX(fork)
XX(lease)
XX(list)
XX(merge)
XX(metrics)
XX(paged)
XX(pool)
XX(self_test)
XX(sequence)
XX(stats)
XX(table)
XX(trim)
XX(truncate)
XX(workload)
#undef XX

#endif
