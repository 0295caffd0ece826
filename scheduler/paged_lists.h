/* SPDX-License-Identifier: Apache-2.0 */
/* paged_lists.h - the integer lists of a call over block tables of the caller's own.
 *
 * A call says where the tokens of its sequences lie in one of two ways:
 *
 *     block_tables [S][M], context_lens [S]                          as vLLM's kernels take them
 *     kv_indptr [S+1], kv_indices [N], kv_last_page_len [S]          as FlashInfer's do (CSR)
 *
 * with indptr [S+1] for several rows of q a sequence, its last tokens; and where k and v go:
 * slot_mapping [T]. */
#ifndef SCHEDULER_PAGED_LISTS_H
#define SCHEDULER_PAGED_LISTS_H

#include "config/config.h"
#include "scheduler/requests.h"

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

/* Which list is wrong, and what it wants. */
struct paged_refusal {
    const char *name; /* a constant */
    char wants[160];
};

/* paged_build(request, config, lists, has_q, has_kv, refusal): check them and make request->paged of them, but for its
 * tensors; has_q, has_kv: whether the call has those. Any thread. Returns 0, or ATTND_INVALID with `refusal` filled. */
MUST_USE int paged_build(struct request *request, const struct config *config,
                         const struct paged_lists *lists, bool has_q, bool has_kv,
                         struct paged_refusal *refusal);

#endif
