/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h - /metrics, and what it consists of. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "server/answer.h"

#include <stdio.h>

/* metrics_parse: a route_parse of a REQUEST_STATS, which metrics_render() shows. */
int metrics_parse(struct http_exchange *x, struct request *request, const struct config *config);

/* metrics_render: an answer_render of a REQUEST_STATS: every family. */
void metrics_render(struct http_exchange *x, const struct request *request, const struct render_context *c);

/* metrics_describe: a line a family: name, type, labels and meaning, with tabs between. docs/METRICS.md is made of it. */
void metrics_describe(FILE *out);

#endif
