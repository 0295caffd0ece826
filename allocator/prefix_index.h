/* SPDX-License-Identifier: Apache-2.0 */
/* prefix_index.h - which published block continues which other block with which tokens.
 *
 * The identity of a published block is exact: its root (who may share), its parent block, and its own
 * token ids. A keyed 128-bit hash of the whole chain only finds the candidate; parent, root and tokens
 * are always compared, so neither a collision nor a guessed hash can make two prompts share. Two
 * tenants, or two salts of one, have different roots and can never meet.
 *
 * The index knows ids and tokens; whether a block is held or cached is the pool's affair. Engine thread
 * only; nothing allocates after create. */
#ifndef ALLOCATOR_PREFIX_INDEX_H
#define ALLOCATOR_PREFIX_INDEX_H

#include "allocator/block_pool.h"

enum { PREFIX_ROOTS_MAX = 1024, PREFIX_SALT_BYTES_MAX = 64 };

#define NO_ROOT UINT32_MAX

struct prefix_index;

struct prefix_hash {
    uint64_t low, high;
};

/* A block, as far as it is published. */
struct prefix_node {
    struct prefix_hash chain; /* of all tokens from the root to its last one */
    uint32_t root;
    uint32_t parent; /* NO_BLOCK at the root */
    uint32_t first_child, next_sibling, prev_sibling;
    uint32_t next_in_bucket; /* of the hash table */
    bool published;
    uint32_t hits; /* new sequences whose beginning ended here */
};

/* prefix_index_create(blocks, block_size, tokens, hash_shift, index): `tokens` [blocks][block_size] is
 * borrowed; it holds the token ids of every published block. `hash_shift` is how many bits of each half of a
 * hash are not used: 0, but in tests that force collisions. Draws the hash key from the kernel. Returns 0 or
 * ATTND_NO_MEMORY. */
MUST_USE int prefix_index_create(uint32_t blocks, uint32_t block_size, const uint32_t *tokens,
                                 unsigned hash_shift, struct prefix_index **index);
void prefix_index_destroy(struct prefix_index *index);

/* prefix_index_open_root(index, owner, salt, salt_bytes): the root of this owner and salt, with a
 * reference of the caller; NO_ROOT when all are taken (the sequence then shares with nobody) or the
 * salt is too long. */
uint32_t prefix_index_open_root(struct prefix_index *index, uint64_t owner, const void *salt,
                                size_t salt_bytes);

/* prefix_index_salt: the salt of a root, which stays as long as a reference or a published block; returns its bytes. */
size_t prefix_index_salt(const struct prefix_index *index, uint32_t root, const void **salt);

/* prefix_index_owner: who has opened a root. */
uint64_t prefix_index_owner(const struct prefix_index *index, uint32_t root, bool *salted);

/* References to a root; NO_ROOT is fine for both. Without one it stays as long as blocks are published under
 * it. */
void prefix_index_retain_root(struct prefix_index *index, uint32_t root);
void prefix_index_close_root(struct prefix_index *index, uint32_t root);

/* prefix_index_match(index, root, tokens, n, last): the longest chain of published blocks under `root`
 * that spells the first `n` blocks of `tokens`; its length in blocks, and its last one, NO_BLOCK if there is
 * none. O(n). */
uint32_t prefix_index_match(struct prefix_index *index, uint32_t root, const uint32_t *tokens, uint32_t n,
                            uint32_t *last);

/* prefix_index_hit: a new sequence begins with what ends in this published block. */
void prefix_index_hit(struct prefix_index *index, uint32_t id);

/* prefix_index_publish(index, root, parent, id): add `id`, whose tokens stand in the arena, after the
 * published block `parent` (NO_BLOCK: at the root). Returns 0, or ATTND_EXISTS if another block already
 * says the same there. */
MUST_USE int prefix_index_publish(struct prefix_index *index, uint32_t root, uint32_t parent, uint32_t id);

/* prefix_index_remove: take out `id`, which has no children. */
void prefix_index_remove(struct prefix_index *index, uint32_t id);

/* prefix_index_published: how many blocks are published under a root. prefix_index_node: a published one. */
uint32_t prefix_index_published(const struct prefix_index *index, uint32_t root);
const struct prefix_node *prefix_index_node(const struct prefix_index *index, uint32_t id);

/* prefix_index_check, _watch, _check_census: like those of block_pool.h, for what is published. */
struct prefix_census {
    uint32_t roots[PREFIX_ROOTS_MAX]; /* published blocks of each */
};
const char *prefix_index_check(const struct prefix_index *index, const struct block_pool *pool, uint32_t id,
                               struct prefix_census *census);
void prefix_index_watch(struct prefix_index *index, struct prefix_census *census, uint32_t counted);
const char *prefix_index_check_census(const struct prefix_index *index, const struct prefix_census *census);

#endif
