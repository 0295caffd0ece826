/* tensor_parse.h - from an exchange with a safetensors body to a request of the engine; see api.h.
 *
 * Tensors of a body that lies in staging memory (x->staging) are used where they are; those of a small
 * one, whose memory is the connection's, are copied into the request's arena. */
#ifndef SERVER_TENSOR_PARSE_H
#define SERVER_TENSOR_PARSE_H

#include "config/config.h"
#include "scheduler/requests.h"
#include "server/http_exchange.h"

/* Whether the request's body says that it is safetensors. */
bool tensor_parse_wanted(const struct http_exchange *x);

/* Tensors sequences, indptr?, positions?, k, v, token_ids? and for attend q, with k and v optional;
 * ?layer= and for attend &lse=1 &kernel= &accept=json */
int tensor_parse_rows(struct http_exchange *x, struct request *request, const struct config *config,
                      bool attend);

/* Tensors q?, k?, v? and the lists of paged_parse.h; ?lease= &layer= &lse=1 &kernel= &accept=json */
int tensor_parse_paged(struct http_exchange *x, struct request *request, const struct config *config);

/* Tensor tokens; ?id= &salt= &max_tokens= &priority= &idle_timeout_s= */
int tensor_parse_create(struct http_exchange *x, struct request *request, const struct config *config);

/* Tensors o [n, T, query_heads, head_dim] and lse [n, T, query_heads]: REQUEST_MERGE. */
int tensor_parse_states(struct http_exchange *x, struct request *request, const struct config *config);

/* Tensors sinks?, alibi_slopes?, k_scale?, v_scale? */
int tensor_parse_parameters(struct http_exchange *x, struct request *request, const struct config *config);

#endif
