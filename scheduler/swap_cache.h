/* SPDX-License-Identifier: Apache-2.0 */
/* swap_cache.h - host memory as a cache of the file that swapped blocks go to (pool.file_blocks).
 *
 * Tables of swapped sequences name host blocks (swap_ledger.h). With a file there are more of them than host memory has
 * frames for, and this is who has one:
 *
 *     device -- a step's copy --> frame: dirty -- written --> frame: clean, and the file -- frame taken --> the file
 *     device <-- a step's copy -- frame: clean  <------------------ read ------------------------------------'
 *
 * Dirty ones are written in the order in which they came, as long as fewer than a quarter of all frames are free or clean,
 * or somebody wants more. A frame is written, or read into, when no step in flight has it. The file has only copies: a frame
 * that cannot be written stays, and then host memory is all there is.
 *
 * All functions take NULL, where there is no file: every host block has its frame then, of the same number. Engine thread. */
#ifndef SCHEDULER_SWAP_CACHE_H
#define SCHEDULER_SWAP_CACHE_H

#include "allocator/block_table.h"
#include "scheduler/swap_file.h"

struct swap_cache;

struct swap_cache_options {
    uint32_t blocks, frames;
    const struct block_tables *tables;
    const struct swap_io *io; /* copied */
    const struct attention_host *host;
    void (*wake)(void *cookie); /* from any thread: a turn is due */
    void *cookie;
};

struct swap_cache_counts {
    uint64_t writes, reads; /* blocks, since start */
    uint32_t frames, room;  /* of host memory; free or clean */
    uint32_t file_blocks;   /* 0: there is no file, */
    bool failed;            /* or it cannot be written any more */
};

MUST_USE int swap_cache_create(const struct swap_cache_options *options, struct swap_cache **cache);
void swap_cache_destroy(struct swap_cache *cache);

/* swap_cache_turn: note what the file has done, have it do more. Whether there was anything. _is_busy: it has something to
 * do; a turn is due when that is done. */
bool swap_cache_turn(struct swap_cache *cache);
bool swap_cache_is_busy(const struct swap_cache *cache);

/* swap_cache_room(cache, wanted): frames for blocks that are swapped out now: at least `wanted`, or how many there are. With
 * fewer, more are to come, unless the file has failed. O(frames) then. */
uint32_t swap_cache_room(struct swap_cache *cache, uint32_t wanted);
bool swap_cache_has_failed(const struct swap_cache *cache);

/* swap_cache_place(cache, copies, n, step): these n copies of `step`, in the order in which it makes them, name host blocks;
 * have them name frames. For blocks out there is room; blocks in have been fetched. */
void swap_cache_place(struct swap_cache *cache, struct block_copy *copies, uint32_t n, uint64_t step);

/* swap_cache_fetch(cache, row, now): whether all bytes of a swapped row are in memory: 0; else SWAP_CACHE_COMES, and to be
 * asked again after a turn; ATTND_LOST: the file does not give back what was written; or ATTND_NO_HOST_BLOCKS: it has failed, and
 * memory has too few frames. Those that were found with the same number `now` keep theirs. */
enum { SWAP_CACHE_COMES = 1 };
MUST_USE int swap_cache_fetch(struct swap_cache *cache, uint32_t row, uint64_t now);

struct swap_cache_counts swap_cache_counts(const struct swap_cache *cache);

/* swap_cache_fault: the first broken invariant as a constant sentence, NULL if all hold. O(blocks). */
const char *swap_cache_fault(const struct swap_cache *cache);

#endif
