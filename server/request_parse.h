/* request_parse.h - from an HTTP exchange to a request of the engine.
 *
 * Each function reads the query or the JSON body of `x` into `request` and returns 0, or a status with the
 * answer already made a problem that says which member is wrong. Counts and ranges are checked here,
 * before anything is sized by them. */
#ifndef SERVER_REQUEST_PARSE_H
#define SERVER_REQUEST_PARSE_H

#include "config/config.h"
#include "scheduler/requests.h"
#include "server/http_server.h"

enum { REQUEST_BLOCK_FIELDS = 5 };

/* Words of the wire: members of a block, in the order of their bits in answer.fields; states, by number. */
extern const char *const request_block_fields[REQUEST_BLOCK_FIELDS];
extern const char *const request_block_states[], *const request_sequence_states[];

/* Whether `name` is that of a kernel: auto, paged_v1 or paged_v2. */
bool request_parse_kernel(struct http_text name, enum attention_kernel *kernel);

/* No body and no query are allowed. */
int request_parse_nothing(struct http_exchange *x, struct request *request, const struct config *config);

/* ?limit= and ?cursor= */
int request_parse_page(struct http_exchange *x, struct request *request, const struct config *config);

/* likewise, and ?state= */
int request_parse_sequences(struct http_exchange *x, struct request *request, const struct config *config);

/* likewise, and ?fields= &format=columns */
int request_parse_pool(struct http_exchange *x, struct request *request, const struct config *config);

/* {"id"?, "tokens"?, "salt"?, "max_tokens"?, "priority"?, "idle_timeout_s"?}, or safetensors with
 * tokens and the rest in the query */
int request_parse_create(struct http_exchange *x, struct request *request, const struct config *config);

/* {"count"?, "length"?, "ids"?} */
int request_parse_fork(struct http_exchange *x, struct request *request, const struct config *config);

/* {"length"} */
int request_parse_truncate(struct http_exchange *x, struct request *request, const struct config *config);

/* {"ops": [{"op": "create", "fork", "truncate" or "delete", "id"?, and the members of that request}]} */
int request_parse_batch(struct http_exchange *x, struct request *request, const struct config *config);

/* JSON {"layer"?, "sequences", "indptr"?, "positions"?, "k", "v", "token_ids"?} and for attend "q",
 * "lse"?, "kernel"?, with k and v optional; or safetensors, see tensor_parse.h */
int request_parse_append(struct http_exchange *x, struct request *request, const struct config *config);
int request_parse_attend(struct http_exchange *x, struct request *request, const struct config *config);

/* {"blocks", "id"?, "priority"?, "idle_timeout_s"?} */
int request_parse_lease(struct http_exchange *x, struct request *request, const struct config *config);

/* ?limit= and ?cursor=, of leases; neither query nor body, of one */
int request_parse_leases(struct http_exchange *x, struct request *request, const struct config *config);
int request_parse_one_lease(struct http_exchange *x, struct request *request, const struct config *config);

/* JSON {"lease", "layer"?, "q"?, "k"?, "v"?, the lists of paged_parse.h, "lse"?, "kernel"?}, or
 * safetensors */
int request_parse_paged(struct http_exchange *x, struct request *request, const struct config *config);

/* JSON {"o", "lse"}, or safetensors. */
int request_parse_merge(struct http_exchange *x, struct request *request, const struct config *config);

#endif
