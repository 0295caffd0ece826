/* call_parse.h - from an HTTP request to a call of the engine.
 *
 * Each function reads the query or the JSON body of `x` into `call` and returns 0, or a status with the
 * answer already made a problem that says which member is wrong. Counts and ranges are checked here,
 * before anything is sized by them. */
#ifndef SERVER_CALL_PARSE_H
#define SERVER_CALL_PARSE_H

#include "config/config.h"
#include "scheduler/call.h"
#include "server/http_server.h"

/* No body and no query are allowed. */
int call_parse_nothing(struct http_exchange *x, struct call *call, const struct config *config);

/* ?limit= and ?cursor= */
int call_parse_page(struct http_exchange *x, struct call *call, const struct config *config);

/* {"id"?, "tokens"?, "salt"?} */
int call_parse_create(struct http_exchange *x, struct call *call, const struct config *config);

/* {"count"?, "length"?} */
int call_parse_fork(struct http_exchange *x, struct call *call, const struct config *config);

/* {"length"} */
int call_parse_truncate(struct http_exchange *x, struct call *call, const struct config *config);

/* JSON {"layer"?, "sequences", "indptr"?, "k", "v"} and for attend "q", "lse"?, with k and v optional;
 * or safetensors with tensors of these names and ?layer= &lse=1 &accept=json */
int call_parse_append(struct http_exchange *x, struct call *call, const struct config *config);
int call_parse_attend(struct http_exchange *x, struct call *call, const struct config *config);

#endif
