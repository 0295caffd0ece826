/* SPDX-License-Identifier: Apache-2.0 */
/* workload_parse.h - the body of POST /v1/workloads into a workload: JSON, or a trace as it is (Azure
 * CSV, Mooncake JSON lines), read as a stream. */
#ifndef SERVER_WORKLOAD_PARSE_H
#define SERVER_WORKLOAD_PARSE_H

#include "config/config.h"
#include "scheduler/requests.h"
#include "server/http_exchange.h"

#include <uv.h>

enum { TRACE_BYTES_MAX = 64 << 20 };

/* workload_parse_begin: the head of such a request is there. A trace gets a reader as x->upload and a
 * sink, which has a worker of the loop read it, and the exchange held meanwhile; false with the answer already a problem when its parameters are wrong. */
bool workload_parse_begin(struct http_exchange *x, const struct config *config, uv_loop_t *loop);

/* workload_parse_drop: free the reader of an upload that will not be finished. */
void workload_parse_drop(struct http_exchange *x);

/* workload_parse: the whole request is there: make a workload of it, closed, for the engine to start. Returns
 * 0, or a status with the answer already a problem. */
int workload_parse(struct http_exchange *x, struct request *request, const struct config *config);

#endif
