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

enum { CALL_BLOCK_FIELDS = 5 };

/* Words of the wire: members of a block, in the order of their bits in call.fields; states, by number. */
extern const char *const call_block_fields[CALL_BLOCK_FIELDS];
extern const char *const call_block_states[], *const call_sequence_states[];

/* Whether `name` is that of a kernel: auto, paged_v1 or paged_v2. */
bool call_parse_kernel(struct http_text name, enum attention_kernel *kernel);

/* No body and no query are allowed. */
int call_parse_nothing(struct http_exchange *x, struct call *call, const struct config *config);

/* ?limit= and ?cursor= */
int call_parse_page(struct http_exchange *x, struct call *call, const struct config *config);

/* likewise, and ?state= */
int call_parse_sequences(struct http_exchange *x, struct call *call, const struct config *config);

/* likewise, and ?fields= &format=columns */
int call_parse_pool(struct http_exchange *x, struct call *call, const struct config *config);

/* {"id"?, "tokens"?, "salt"?, "max_tokens"?, "priority"?, "idle_timeout_s"?}, or safetensors with
 * tokens and the rest in the query */
int call_parse_create(struct http_exchange *x, struct call *call, const struct config *config);

/* {"count"?, "length"?, "ids"?} */
int call_parse_fork(struct http_exchange *x, struct call *call, const struct config *config);

/* {"length"} */
int call_parse_truncate(struct http_exchange *x, struct call *call, const struct config *config);

/* JSON {"layer"?, "sequences", "indptr"?, "positions"?, "k", "v", "token_ids"?} and for attend "q",
 * "lse"?, "kernel"?, with k and v optional; or safetensors, see tensor_parse.h */
int call_parse_append(struct http_exchange *x, struct call *call, const struct config *config);
int call_parse_attend(struct http_exchange *x, struct call *call, const struct config *config);

/* {"blocks", "id"?, "priority"?, "idle_timeout_s"?} */
int call_parse_lease(struct http_exchange *x, struct call *call, const struct config *config);

/* ?limit= and ?cursor=, of leases; neither query nor body, of one */
int call_parse_leases(struct http_exchange *x, struct call *call, const struct config *config);
int call_parse_one_lease(struct http_exchange *x, struct call *call, const struct config *config);

/* JSON {"lease", "layer"?, "q"?, "k"?, "v"?, the lists of paged_parse.h, "lse"?, "kernel"?}, or
 * safetensors */
int call_parse_paged(struct http_exchange *x, struct call *call, const struct config *config);

/* JSON {"o", "lse"}, or safetensors. */
int call_parse_merge(struct http_exchange *x, struct call *call, const struct config *config);

#endif
