/* SPDX-License-Identifier: Apache-2.0 */
/* block_table.h - the block tables of all sequences: reserve, fork, copy-on-write, truncate, publish,
 * swap.
 *
 * A sequence is a row: a list of block ids in token order, one list for all layers, and a cursor per
 * layer that says how many tokens that layer has written. The smallest cursor is the sequence's length.
 *
 *     cursors    layer 0: 21   layer 1: 20   length 20
 *     row        [ 17 | 4 | - | - ... ]        block_size 16: tokens 0..15 in block 17, the rest in 4
 *
 * The life of a step, seen from here:
 *
 *     reserve(step, ...)           blocks for the slots that will be written, and copies to make first
 *     advance(row, ...)            the cursors move: the step has been submitted with these rows
 *     submit(row, step)            the row takes part in this step
 *     retire_step(step, rows)      the step is done: full blocks of its rows whose tokens are known are
 *                                  published, and its fences are lifted
 *
 * Ids and counts only; the bytes move elsewhere, by the lists of copies that are returned. Copies run
 * in list order, before the step's appends. Engine thread only; nothing allocates after create. */
#ifndef ALLOCATOR_BLOCK_TABLE_H
#define ALLOCATOR_BLOCK_TABLE_H

#include "allocator/block_pool.h"
#include "config/block_copy.h"

#define NO_ROW UINT32_MAX

struct block_tables;

struct block_tables_options {
    uint32_t blocks, block_size, layers;
    uint32_t rows;       /* sequences at a time */
    uint32_t loose_rows; /* more rows of ids, that are the caller's to fill, see block_tables_loose() */
    uint32_t row_blocks; /* longest sequence, in blocks */
    uint32_t host_blocks;
    uint32_t epochs;     /* at which the state can be found later (block_log.h); 0: nothing is noted */
    unsigned hash_shift; /* of the prefix index: 0, but in tests that force collisions */
};

/* Which row will write the token slots [first, end); first <= the tokens that its blocks and cursors
 * reach. */
struct reserve_request {
    uint32_t row, first, end;
};

struct block_tables_counts {
    uint32_t rows, swapped;            /* live sequences */
    uint32_t vacant;                   /* rows that can be had now: others leave with a step */
    uint64_t tokens_logical;           /* sum of all rows' longest cursors */
    uint64_t tokens_physical;          /* slots of held blocks that some row has, each counted once */
    uint64_t copies, forks;            /* since start */
    uint64_t swaps_out, swaps_in;      /* sequences, since start */
    uint64_t blocks_hit, blocks_asked; /* of the prefix index, since start */
    uint32_t host_blocks, host_free;
};

/* What one row looks like from outside. */
struct block_table_view {
    const uint32_t *ids; /* [entries] block ids (host block ids while swapped) */
    uint32_t entries;    /* blocks of the row */
    uint32_t length;     /* smallest cursor */
    uint32_t cursor_max; /* largest cursor */
    uint32_t published;  /* leading blocks that are published */
    bool swapped;
    uint64_t last_step; /* the newest one that reads or writes the row, or did */
};

/* block_tables_create(options, tables): everything is allocated here; tables and token ids are mapped
 * and cost memory only as they fill. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int block_tables_create(const struct block_tables_options *options, struct block_tables **tables);
void block_tables_destroy(struct block_tables *tables);

/* block_tables_open_root: see prefix_index_open_root(). The caller's reference ends with
 * block_tables_close_root(). */
uint32_t block_tables_open_root(struct block_tables *tables, uint64_t owner, const void *salt,
                                size_t salt_bytes);
void block_tables_close_root(struct block_tables *tables, uint32_t root);

/* block_tables_salt: the salt under which a row shares, as long as it does; returns its bytes. */
size_t block_tables_salt(const struct block_tables *tables, uint32_t row, const void **salt);

/* block_tables_add(tables, root, tokens, n, row): a new sequence that may share under `root` (NO_ROOT:
 * with nobody). The longest chain of published blocks that spells the front of `tokens` [n] becomes its
 * own front: its length. Returns 0 or ATTND_NO_SEQUENCES. O(n). */
MUST_USE int block_tables_add(struct block_tables *tables, uint32_t root, const uint32_t *tokens, uint32_t n,
                              uint32_t *row);

/* What block_tables_add() would share: its `hit` first blocks, of which a sequence holds the first `held`
 * already; the others leave the cache. */
struct block_tables_hit {
    uint32_t hit, held;
    uint32_t last_held; /* block; NO_BLOCK: none */
};

/* block_tables_match(tables, root, tokens, n): what that would be. O(n). */
struct block_tables_hit block_tables_match(struct block_tables *tables, uint32_t root, const uint32_t *tokens,
                                           uint32_t n);

/* block_tables_fork(tables, parent, length, row): a new row that shares the parent's blocks up to
 * `length` <= the parent's length; all its cursors are `length`. The parent is resident. Returns 0 or
 * ATTND_NO_SEQUENCES. O(blocks). */
MUST_USE int block_tables_fork(struct block_tables *tables, uint32_t parent, uint32_t length, uint32_t *row);

/* block_tables_reserve(tables, step, requests, n, copies, copy_count): give every request the blocks it
 * will write in `step`: new ones at the end, a private copy of each shared one, and a published one
 * that nobody else holds stops being published. All requests or none; each row at most once, resident.
 * `copies` has room for n entries beyond *copy_count and the copies are appended. O(blocks touched).
 * Returns 0, ATTND_NO_BLOCKS or ATTND_INVALID (longer than row_blocks), the tables unchanged. */
MUST_USE int block_tables_reserve(struct block_tables *tables, uint64_t step,
                                  const struct reserve_request *requests, uint32_t n,
                                  struct block_copy *copies, uint32_t *copy_count);

/* block_tables_need: how many blocks such a reserve would take. Rows may be swapped out: then at most so
 * many, with those that swapping them in takes. */
uint32_t block_tables_need(struct block_tables *tables, const struct reserve_request *requests, uint32_t n);

/* block_tables_note_tokens(tables, row, position, tokens, n): the token ids of positions that are
 * reserved and not yet written. They count only as far as they continue what is known from position 0
 * on. */
void block_tables_note_tokens(struct block_tables *tables, uint32_t row, uint32_t position,
                              const uint32_t *tokens, uint32_t n);

/* block_tables_read_tokens(tables, row, position, n, tokens): the token ids of positions from `position` on,
 * as far as they are known, at most `n`; returns how many. The row is resident. */
uint32_t block_tables_read_tokens(const struct block_tables *tables, uint32_t row, uint32_t position,
                                  uint32_t n, uint32_t *tokens);

/* block_tables_advance: `n` reserved tokens are being written at `layer`; _advance_all: at every layer,
 * whose cursors are equal. */
void block_tables_advance(struct block_tables *tables, uint32_t row, uint32_t layer, uint32_t n);
void block_tables_advance_all(struct block_tables *tables, uint32_t row, uint32_t n);

/* block_tables_submit: `row` takes part in `step`. _submit_all: so do the rows of these requests, whose
 * tokens are being written at every layer (advance_all). */
void block_tables_submit(struct block_tables *tables, uint32_t row, uint64_t step);
void block_tables_submit_all(struct block_tables *tables, uint64_t step,
                             const struct reserve_request *requests, uint32_t n);

/* block_tables_retire_step(tables, step, rows, n): the step, in which these rows took part, is done.
 * Rows that were removed meanwhile are left alone. */
void block_tables_retire_step(struct block_tables *tables, uint64_t step, const uint32_t *rows, uint32_t n);

/* block_tables_awaits_step: whether blocks or rows that were given up wait for the end of a step. */
bool block_tables_awaits_step(const struct block_tables *tables);

/* block_tables_truncate(tables, row, length): no cursor stays above `length`; blocks and reservations
 * beyond are given back. */
void block_tables_truncate(struct block_tables *tables, uint32_t row, uint32_t length);

/* block_tables_remove: end a sequence; its blocks are released last one first. The row is reused once
 * no step in flight uses it. */
void block_tables_remove(struct block_tables *tables, uint32_t row);

/* block_tables_swap_out(tables, row, step, copies, copy_count): move the row to the host in `step`:
 * blocks that no resident sequence holds are copied out and released, the others stay where they are.
 * `copies` has room for the row's entries beyond *copy_count. Returns 0 or ATTND_NO_HOST_BLOCKS, the
 * tables unchanged. */
MUST_USE int block_tables_swap_out(struct block_tables *tables, uint32_t row, uint64_t step,
                                   struct block_copy *copies, uint32_t *copy_count);

/* block_tables_swap_in: the way back. Returns 0 or ATTND_NO_BLOCKS, the tables unchanged. */
MUST_USE int block_tables_swap_in(struct block_tables *tables, uint32_t row, uint64_t step,
                                  struct block_copy *copies, uint32_t *copy_count);

/* block_tables_absent: blocks that swapping a row in takes; 0 for one that is resident. O(blocks). */
uint32_t block_tables_absent(const struct block_tables *tables, uint32_t row);

/* block_tables_absent_at: the host block that has the only bytes of entry `i` of a row; NO_BLOCK: there are none, or some on
 * the device. block_tables_swap_refs: entries of swapped rows that name a host block; 0: it is free. */
uint32_t block_tables_absent_at(const struct block_tables *tables, uint32_t row, uint32_t i);
uint32_t block_tables_swap_refs(const struct block_tables *tables, uint32_t host);

/* block_tables_reclaimable(tables, rows, n): blocks that nobody else holds: that swapping these n
 * resident rows out would give back. O(their blocks). */
uint32_t block_tables_reclaimable(struct block_tables *tables, const uint32_t *rows, uint32_t n);

/* block_tables_claim(tables, row, first, end, parked): mark entries [first, end) of a resident row as about
 * to be given back; how many blocks nobody holds then but by entries that are marked or, with `parked`, of
 * rows that are swapped out. Each entry is marked once, and block_tables_unclaim() takes all marks of a row
 * back before anything else is asked. O(end - first), O(entries). */
uint32_t block_tables_claim(struct block_tables *tables, uint32_t row, uint32_t first, uint32_t end,
                            bool parked);
void block_tables_unclaim(struct block_tables *tables, uint32_t row);

/* block_tables_host_need: host blocks that swapping a resident row out takes. O(blocks). */
uint32_t block_tables_host_need(const struct block_tables *tables, uint32_t row);

/* block_tables_stranded: blocks that only rows hold which are swapped out, since the last resident one
 * has left. block_tables_evacuate(tables, most, step, copies, copy_count): move up to `most` of them to
 * the host, too; returns how many. `copies` has room for them beyond *copy_count. O(host blocks +
 * rows). */
uint32_t block_tables_stranded(const struct block_tables *tables);
uint32_t block_tables_evacuate(struct block_tables *tables, uint32_t most, uint64_t step,
                               struct block_copy *copies, uint32_t *copy_count);

struct block_table_view block_tables_view(const struct block_tables *tables, uint32_t row);

/* block_tables_shared: blocks of a resident row that have more than one reference. O(blocks). */
uint32_t block_tables_shared(const struct block_tables *tables, uint32_t row);

/* block_tables_in_flight: whether a step that is not retired reads or writes the row. */
bool block_tables_in_flight(const struct block_tables *tables, uint32_t row);

/* block_tables_version: changes whenever an entry that the row had is replaced or given back; growth
 * does not count. */
uint32_t block_tables_version(const struct block_tables *tables, uint32_t row);
uint32_t block_tables_cursor(const struct block_tables *tables, uint32_t row, uint32_t layer);

struct block_tables_counts block_tables_counts(const struct block_tables *tables);
const struct block_pool *block_tables_pool(const struct block_tables *tables);

/* block_tables_log: where changes are noted; NULL: nowhere. The caller names its rows there. */
struct block_log;
struct block_log *block_tables_log(const struct block_tables *tables);

/* block_tables_set_vacated: see block_pool_set_vacated(). */
void block_tables_set_vacated(struct block_tables *tables, block_pool_vacated_fn vacated, void *cookie);

/* What is published from a root up to a block that nothing follows. */
struct block_chain {
    uint64_t hash;                 /* of all its tokens */
    uint64_t owner;                /* of its root */
    bool salted;                   /* likewise */
    uint32_t blocks, cached, held; /* in all; of these */
    uint64_t hits;                 /* new sequences that have begun with some of it */
    uint32_t rank;                 /* of its last block, block_pool_rank(); NO_BLOCK: it is not cached */
};

/* block_tables_chain(tables, id, chain, ids, most): the chain that ends with a block, and the first `most` of its blocks;
 * false: the block is not published, or another one follows. O(blocks of the chain). */
bool block_tables_chain(struct block_tables *tables, uint32_t id, struct block_chain *chain, uint32_t *ids,
                        uint32_t most);

/* A published block. */
struct block_published {
    uint64_t hash;          /* of all tokens from its root on: `hash` of a chain that ends with it */
    uint32_t parent;        /* NO_BLOCK at the root */
    uint32_t salt_bytes;    /* of its root; 0: none */
    const void *salt;       /* [salt_bytes] */
    const uint32_t *tokens; /* [block_size] ids */
};

/* block_tables_published(tables, id, published): what is published as a block; false: nothing. Pointers are valid until a table
 * changes. O(1), with four cache misses. */
bool block_tables_published(const struct block_tables *tables, uint32_t id,
                            struct block_published *published);

/* block_tables_trim: forget every cached block. Returns how many. */
uint32_t block_tables_trim(struct block_tables *tables);

/* block_tables_trim_root(tables, root, at, work): forget what is cached under a root that only the caller
 * has opened and of which no row has anything: from block *at on, for some `work` blocks that are looked
 * at or forgotten. True when nothing is left; NO_ROOT has nothing. */
bool block_tables_trim_root(struct block_tables *tables, uint32_t root, uint32_t *at, uint32_t work);

/* All rows' ids as the kernels see them: row r starts at ids + r * stride. */
const uint32_t *block_tables_ids(const struct block_tables *tables, uint32_t *stride);

/* block_tables_loose(tables, i): [stride] ids of loose row i, number rows + i among all, for a table
 * that belongs to no sequence. */
uint32_t *block_tables_loose(struct block_tables *tables, uint32_t i);

/* block_audit.c: whether I1 to I7 and I9 hold, in parts, between which anything may happen to the tables.
 * block_tables_begin_audit: begin. block_tables_end_audit: give up one that has not ended.
 * block_tables_audit(tables, work, fault): go on, for some `work` entries and blocks; true when it has ended:
 * with the first broken invariant as a constant sentence, or NULL. What it looks at is what stands then; what
 * was there all the time has been looked at.
 * block_tables_fault: all of it at once. O(blocks + table entries). */
void block_tables_begin_audit(struct block_tables *tables);
void block_tables_end_audit(struct block_tables *tables);
bool block_tables_audit(struct block_tables *tables, uint32_t work, const char **fault);
const char *block_tables_fault(struct block_tables *tables);

#endif
