/* SPDX-License-Identifier: Apache-2.0 */
/* sequence_ops.h - what clients do to sequences and leases as a whole: create, fork, truncate, delete,
 * lease; and the end of those that nobody uses.
 *
 * Those of REQUEST_MAP run one request: they answer it, or fail it and change nothing. Engine thread. */
#ifndef SCHEDULER_SEQUENCE_OPS_H
#define SCHEDULER_SEQUENCE_OPS_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* For batch.c. sequence_ops_find: the row of the sequence that a request names and that clients may
 * change, or NO_ROW with the request failed. _id_is_free, _fits_pool: whether an id can be given to
 * something new, or max_tokens be declared at all; else the request has failed. */
uint32_t sequence_ops_find(struct engine_state *state, struct request *request);
bool sequence_ops_id_is_free(struct engine_state *state, struct request *request, unsigned long long id);
bool sequence_ops_may_add(const struct engine_state *state, struct request *request);
bool sequence_ops_fits_pool(struct engine_state *state, struct request *request, uint32_t max_tokens);

/* sequence_ops_is_within: whether so many sequences more, and blocks, are within the quotas of the request's
 * key; else it has failed: with ATTND_INVALID when they alone are more than a whole quota. */
bool sequence_ops_is_within(const struct engine_state *state, struct request *request, uint32_t sequences,
                            uint64_t blocks);

/* sequence_ops_make: do a REQUEST_CREATE that is checked, and look up the first `tokens` of its tokens.
 * sequence_ops_cut: likewise a REQUEST_TRUNCATE of `row`. 0, or the request failed: too many sequences,
 * too many tokens of prompts, or no room for the answer. */
int sequence_ops_make(struct engine_state *state, struct request *request, uint32_t tokens);
int sequence_ops_cut(struct engine_state *state, struct request *request, uint32_t row);

/* sequence_ops_has_content: whether the sequence in a row has that content (0: whichever); else the request has failed. */
bool sequence_ops_has_content(const struct engine_state *state, struct request *request, uint32_t row,
                              uint64_t content);

/* sequence_ops_restore: do a REQUEST_RESTORE whose base is in the resident row `base` (NO_ROW: none). 0, or the request
 * failed: the id is in use, or there is no room. */
int sequence_ops_restore(struct engine_state *state, struct request *request, uint32_t base);

/* sequence_ops_match: what of the prompt of a REQUEST_CREATE is in the cache. */
struct block_tables_hit sequence_ops_match(struct engine_state *state, const struct request *request);

/* Why they fail. */
#define SEQUENCE_OPS_NO_PROMISE                                                                              \
    "max_tokens needs %llu blocks more, and %llu are free or reclaimable and promised to nobody"
#define SEQUENCE_OPS_QUOTA_SEQUENCES "quotas.sequences of the key is %u: it has %u, and this makes %u more"
#define SEQUENCE_OPS_QUOTA_BLOCKS                                                                            \
    "quotas.blocks of the key is %u: its tables have %llu, those promised included, and this takes %llu "    \
    "more"
#define SEQUENCE_OPS_NO_TRUNCATION                                                                           \
    "it shares %u of the blocks that it would give back, max_tokens says that it will need others for "      \
    "them, "                                                                                                 \
    "and %llu are free or reclaimable and promised to nobody"
#define SEQUENCE_OPS_PROMPTS_FULL                                                                            \
    "tokens: the prompts of all sequences together have as many ids as the pool has tokens"

/* sequence_ops_check_fork: whether REQUEST_FORK can be done once its parent is resident; the parent's row, or
 * NO_ROW with the request failed. sequence_ops_make_forks: do it; 0, or the request failed. */
uint32_t sequence_ops_check_fork(struct engine_state *state, struct request *request);
int sequence_ops_make_forks(struct engine_state *state, struct request *request);

/* sequence_ops_check_lease: 0, or REQUEST_LEASE has failed. sequence_ops_add_lease: a new row that has the
 * lease's blocks becomes the lease; likewise. */
int sequence_ops_check_lease(struct engine_state *state, struct request *request);
int sequence_ops_add_lease(struct engine_state *state, struct request *request, uint32_t row);

/* sequence_ops_reap: remove clients' sequences and leases that were not used for as long as they may
 * be. To be called often; it looks at some thousands of rows twice a second. */
void sequence_ops_reap(struct engine_state *state);

#endif
