/* SPDX-License-Identifier: Apache-2.0 */
/* paged_parse.h - the integer lists of POST /v1/paged, from whichever format they came in.
 *
 * A body says where the tokens of its sequences lie in one of two ways:
 *
 *     block_tables [S][M], context_lens [S]                          as vLLM's kernels take them
 *     kv_indptr [S+1], kv_indices [N], kv_last_page_len [S]          as FlashInfer's do (CSR)
 *
 * with indptr [S+1] for several rows of q a sequence, its last tokens; and where k and v go:
 * slot_mapping [T]. */
#ifndef SERVER_PAGED_PARSE_H
#define SERVER_PAGED_PARSE_H

#include "config/config.h"
#include "scheduler/requests.h"
#include "server/http_exchange.h"

/* XX(member of struct paged_lists) */
#define PAGED_LISTS(XX)                                                                                      \
    XX(block_tables)                                                                                         \
    XX(context_lens)                                                                                         \
    XX(kv_indptr)                                                                                            \
    XX(kv_indices)                                                                                           \
    XX(kv_last_page_len)                                                                                     \
    XX(indptr)                                                                                               \
    XX(slot_mapping)

/* `columns` is of block_tables; n counts all its entries. */
struct paged_list {
    const int64_t *values; /* NULL: absent */
    uint64_t n, columns;
};

struct paged_lists {
#define XX(name) struct paged_list name;
    PAGED_LISTS(XX)
#undef XX
};

/* paged_build(x, request, config, lists): check them and make request->paged of them, but for its tensors;
 * has_q, has_kv: whether the body has those tensors. Returns 0 or a status with the answer made a problem. */
int paged_build(struct http_exchange *x, struct request *request, const struct config *config,
                const struct paged_lists *lists, bool has_q, bool has_kv);

#endif
