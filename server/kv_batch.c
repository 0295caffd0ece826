/* SPDX-License-Identifier: Apache-2.0 */
/* kv_batch.c - see kv_batch.h. */
#include "server/kv_batch.h"

/* Bytes at most: of a number; of what an event has beside its lists; of the lists' heads, a salt included, for each block; of what
 * a batch has beside events. */
enum { NUMBER_BYTES = 9, EVENT_BYTES = 256, BLOCK_BYTES = 96, BATCH_BYTES = 32 };

size_t kv_batch_bytes(uint32_t n, uint32_t block_size)
{
    return BATCH_BYTES + (size_t)n * (EVENT_BYTES + BLOCK_BYTES + (size_t)block_size * NUMBER_BYTES);
}

/* How many of `n` events, from the first one on, are one of vLLM's: removed blocks, or a chain of stored ones. */
static uint32_t run_of(const struct kv_event *const *events, uint32_t n)
{
    uint32_t i = 1;
    while (i < n && events[i]->stored == events[0]->stored &&
           (!events[0]->stored || events[i]->parent == events[i - 1]->hash))
        i++;
    return i;
}

static void write_hashes(struct msgpack *m, const struct kv_event *const *events, uint32_t n)
{
    msgpack_text(m, "block_hashes");
    msgpack_array(m, n);
    for (uint32_t i = 0; i < n; i++)
        msgpack_uint(m, events[i]->hash);
}

/* Of vLLM's media the one that attention reads. */
static void write_medium(struct msgpack *m)
{
    msgpack_text(m, "medium");
    msgpack_text(m, "GPU");
}

/* All layers are one group. */
static void write_group(struct msgpack *m)
{
    msgpack_text(m, "group_idx");
    msgpack_uint(m, 0);
}

static void write_removed(struct msgpack *m, const struct kv_event *const *events, uint32_t n)
{
    msgpack_map(m, 4);
    msgpack_text(m, "type");
    msgpack_text(m, "BlockRemoved");
    write_hashes(m, events, n);
    write_medium(m);
    write_group(m);
}

/* What beside tokens makes blocks differ: the salt, at the first block of a prompt. */
static void write_extra_keys(struct msgpack *m, const struct kv_event *const *events, uint32_t n)
{
    msgpack_text(m, "extra_keys");
    msgpack_array(m, n);
    for (uint32_t i = 0; i < n; i++) {
        if (events[i]->parent || !events[i]->salt_bytes) {
            msgpack_nil(m);
            continue;
        }
        msgpack_array(m, 1);
        msgpack_string(m, events[i]->salt, events[i]->salt_bytes);
    }
}

static void write_stored(struct msgpack *m, const struct kv_event *const *events, uint32_t n,
                         uint32_t block_size)
{
    msgpack_map(m, 11);
    msgpack_text(m, "type");
    msgpack_text(m, "BlockStored");
    write_hashes(m, events, n);
    msgpack_text(m, "parent_block_hash");
    if (events[0]->parent)
        msgpack_uint(m, events[0]->parent);
    else
        msgpack_nil(m);
    msgpack_text(m, "token_ids");
    msgpack_array(m, n * block_size);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < block_size; k++)
            msgpack_uint(m, events[i]->tokens[k]);
    }
    msgpack_text(m, "block_size");
    msgpack_uint(m, block_size);
    msgpack_text(m, "lora_id");
    msgpack_nil(m);
    write_medium(m);
    msgpack_text(m, "lora_name");
    msgpack_nil(m);
    write_extra_keys(m, events, n);
    write_group(m);
    msgpack_text(m, "kv_cache_spec_kind");
    msgpack_text(m, "full_attention");
}

void kv_batch_write(struct msgpack *m, const struct kv_event *const *events, uint32_t n, uint32_t block_size,
                    double ts)
{
    uint32_t runs = 0;
    for (uint32_t i = 0; i < n; i += run_of(events + i, n - i))
        runs++;
    msgpack_array(m, 3);
    msgpack_double(m, ts);
    msgpack_array(m, runs);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = run_of(events + i, n - i);
        if (events[i]->stored)
            write_stored(m, events + i, run, block_size);
        else
            write_removed(m, events + i, run);
    }
    msgpack_uint(m, 0);
}

void kv_batch_write_cleared(struct msgpack *m, double ts)
{
    msgpack_array(m, 3);
    msgpack_double(m, ts);
    msgpack_array(m, 1);
    msgpack_map(m, 1);
    msgpack_text(m, "type");
    msgpack_text(m, "AllBlocksCleared");
    msgpack_uint(m, 0);
}
