/* SPDX-License-Identifier: Apache-2.0 */
/* kv_batch.h - events of the prefix cache as a batch of vLLM's KV cache events, in MessagePack.
 *
 *     [ts, [event, ...], 0]                                          seconds since 1970; rank of the data-parallel engine
 *
 *     {type: BlockStored, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name, extra_keys,
 *      group_idx, kv_cache_spec_kind}
 *     {type: BlockRemoved, block_hashes, medium, group_idx}
 *     {type: AllBlocksCleared}
 *
 * Source: vllm/distributed/kv_events.py; docs/EVENTS.md says of which version, and what the members mean here. Blocks that
 * follow each other are one event. Any thread; never allocates. */
#ifndef SERVER_KV_BATCH_H
#define SERVER_KV_BATCH_H

#include "config/msgpack.h"
#include "scheduler/kv_events.h"

/* kv_batch_write: `n` events, of blocks of `block_size` tokens, at time `ts`. O(tokens). */
void kv_batch_write(struct msgpack *m, const struct kv_event *const *events, uint32_t n, uint32_t block_size,
                    double ts);

/* kv_batch_write_cleared: nothing is in the cache: what there was is of another start. */
void kv_batch_write_cleared(struct msgpack *m, double ts);

/* kv_batch_bytes: of a batch of `n` events, at most. */
size_t kv_batch_bytes(uint32_t n, uint32_t block_size);

#endif
