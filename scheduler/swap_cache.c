/* SPDX-License-Identifier: Apache-2.0 */
/* swap_cache.c - see swap_cache.h.
 *
 * A frame is in the list of its state, or on its way. A host block that is given back is not told of: its frame is found
 * out when room is wanted, or when the block is handed out again and has bytes. */
#include "scheduler/swap_cache.h"

#include "config/log.h"
#include "config/numbers.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NO_FRAME UINT32_MAX

enum frame_state { FREE, DIRTY, CLEAN, LISTS, WRITING = LISTS, READING };

struct frame {
    uint32_t block; /* NO_BLOCK: free, or on its way for nobody */
    uint32_t next, prev;
    enum frame_state state;
    uint64_t last_step; /* that copies from or to it */
    uint64_t fetched;   /* see swap_cache_fetch() */
};

struct list {
    uint32_t first, last, count;
};

/* What is known of a host block. */
struct swapped {
    uint32_t frame;
    bool in_file; /* has its bytes, of this */
    uint64_t digest;
};

struct swap_cache {
    struct swap_cache_options o;
    struct swap_io io;
    struct frame *frames;     /* [frames] */
    struct swapped *blocks;   /* [blocks] */
    struct list lists[LISTS]; /* DIRTY and CLEAN: the longest there first */
    uint32_t under_way, writing;
    uint32_t wanted; /* frames that are free or clean */
    bool failed;
    uint64_t writes, reads;
};

/* ---- frames -------------------------------------------------------------------------------------- */

static void append(struct swap_cache *c, uint32_t f, enum frame_state state)
{
    struct list *list = &c->lists[state];
    c->frames[f].state = state;
    c->frames[f].prev = list->last;
    c->frames[f].next = NO_FRAME;
    *(list->last == NO_FRAME ? &list->first : &c->frames[list->last].next) = f;
    list->last = f;
    list->count++;
}

static void unlink_frame(struct swap_cache *c, uint32_t f)
{
    struct frame *frame = &c->frames[f];
    struct list *list = &c->lists[frame->state];
    *(frame->prev == NO_FRAME ? &list->first : &c->frames[frame->prev].next) = frame->next;
    *(frame->next == NO_FRAME ? &list->last : &c->frames[frame->next].prev) = frame->prev;
    list->count--;
}

static bool is_under_way(const struct frame *frame)
{
    return frame->state == WRITING || frame->state == READING;
}

/* A step in flight copies from it or to it. */
static bool is_in_flight(const struct swap_cache *c, const struct frame *frame)
{
    return frame->last_step > block_pool_retired(block_tables_pool(c->o.tables));
}

/* Take a frame from its block: it is free now, or when it is back. */
static void abandon(struct swap_cache *c, uint32_t f)
{
    struct frame *frame = &c->frames[f];
    c->blocks[frame->block].frame = NO_FRAME;
    frame->block = NO_BLOCK;
    if (is_under_way(frame))
        return;
    unlink_frame(c, f);
    append(c, f, FREE);
}

static void give(struct swap_cache *c, uint32_t f, uint32_t block)
{
    unlink_frame(c, f);
    c->frames[f].block = block;
    c->blocks[block].frame = f;
}

/* Free the frames of host blocks that were given back. */
static void sweep(struct swap_cache *c)
{
    for (uint32_t f = 0; f < c->o.frames; f++) {
        uint32_t block = c->frames[f].block;
        if (block != NO_BLOCK && block_tables_swap_refs(c->o.tables, block) == 0)
            abandon(c, f);
    }
}

static uint32_t room_of(const struct swap_cache *c)
{
    return c->lists[FREE].count + c->lists[CLEAN].count;
}

uint32_t swap_cache_room(struct swap_cache *c, uint32_t wanted)
{
    if (!c)
        return UINT32_MAX;
    if (room_of(c) < wanted)
        sweep(c);
    if (room_of(c) < wanted)
        c->wanted = larger(c->wanted, smaller(wanted, c->o.frames));
    return room_of(c);
}

bool swap_cache_has_failed(const struct swap_cache *c)
{
    return c && c->failed;
}

/* A frame to read into now, NO_FRAME if there is none: no step in flight has it, and what it has was not fetched at `now`. */
static uint32_t take_for_reading(struct swap_cache *c, uint64_t now)
{
    for (enum frame_state state = FREE; state <= CLEAN; state = state == FREE ? CLEAN : LISTS) {
        for (uint32_t f = c->lists[state].first; f != NO_FRAME; f = c->frames[f].next) {
            if (is_in_flight(c, &c->frames[f]) || (state == CLEAN && c->frames[f].fetched == now))
                continue;
            if (state == CLEAN)
                abandon(c, f);
            return f;
        }
    }
    return NO_FRAME;
}

/* ---- steps' copies ------------------------------------------------------------------------------- */

/* The frame to which the bytes of a block go. Copies are made in their order: those that still read it are before. */
static uint32_t place_out(struct swap_cache *c, uint32_t block)
{
    struct swapped *b = &c->blocks[block];
    if (b->frame != NO_FRAME) /* of an earlier use of the block */
        abandon(c, b->frame);
    if (!c->lists[FREE].count)
        abandon(c, c->lists[CLEAN].first);
    uint32_t f = c->lists[FREE].first;
    give(c, f, block);
    append(c, f, DIRTY);
    b->in_file = false;
    return f;
}

void swap_cache_place(struct swap_cache *c, struct block_copy *copies, uint32_t n, uint64_t step)
{
    for (uint32_t i = 0; c && i < n; i++) {
        struct block_copy *copy = &copies[i];
        if (copy->kind == COPY_SWAP_OUT)
            copy->to = place_out(c, copy->to);
        else if (copy->kind == COPY_SWAP_IN)
            copy->from = c->blocks[copy->from].frame;
        else
            continue;
        uint32_t f = copy->kind == COPY_SWAP_OUT ? copy->to : copy->from;
        assert(f != NO_FRAME && c->frames[f].state != READING);
        c->frames[f].last_step = step;
    }
}

/* ---- the file ------------------------------------------------------------------------------------ */

static void submit(struct swap_cache *c, uint32_t f, bool write)
{
    struct frame *frame = &c->frames[f];
    const struct swap_transfer t = {
        .write = write, .block = frame->block, .frame = f, .digest = c->blocks[frame->block].digest};
    unlink_frame(c, f);
    frame->state = write ? WRITING : READING;
    c->under_way++;
    c->writing += write;
    c->io.submit(c->io.cookie, &t);
}

/* No frame comes free any more for those that are missing. */
static bool is_stuck(const struct swap_cache *c, uint32_t wanted)
{
    return c->failed && c->under_way == 0 && room_of(c) < wanted;
}

int swap_cache_fetch(struct swap_cache *c, uint32_t row, uint64_t now)
{
    if (!c)
        return 0;
    uint32_t missing = 0, clean = 0, entries = block_tables_view(c->o.tables, row).entries;
    int result = 0;
    for (uint32_t i = 0; i < entries; i++) {
        uint32_t block = block_tables_absent_at(c->o.tables, row, i);
        if (block == NO_BLOCK)
            continue;
        struct swapped *b = &c->blocks[block];
        if (b->frame == NO_FRAME && !b->in_file)
            return ATTND_LOST;
        if (b->frame == NO_FRAME && (b->frame = take_for_reading(c, now)) != NO_FRAME) {
            c->frames[b->frame].block = block;
            submit(c, b->frame, false);
        }
        if (b->frame != NO_FRAME)
            c->frames[b->frame].fetched = now;
        missing += b->frame == NO_FRAME;
        clean += b->frame != NO_FRAME && c->frames[b->frame].state == CLEAN;
        if (b->frame == NO_FRAME || c->frames[b->frame].state == READING)
            result = SWAP_CACHE_COMES;
    }
    if (missing && swap_cache_room(c, missing + clean) < missing + clean && is_stuck(c, missing + clean))
        return ATTND_NO_HOST_BLOCKS;
    return result;
}

static void end_write(struct swap_cache *c, const struct swap_transfer *t)
{
    struct swapped *b = &c->blocks[t->block];
    c->writing--;
    if (t->error && !c->failed)
        log_line(
            LOG_ERROR,
            "the file for swapped blocks cannot be written: %s. What is swapped out stays in host memory",
            strerror(t->error));
    c->failed |= t->error != 0;
    b->in_file = t->error == 0;
    b->digest = t->digest;
    append(c, t->frame, t->error ? DIRTY : CLEAN);
    c->writes += t->error == 0;
}

static void end_read(struct swap_cache *c, const struct swap_transfer *t)
{
    struct swapped *b = &c->blocks[t->block];
    append(c, t->frame, CLEAN);
    c->reads++;
    if (t->error == 0)
        return;
    log_line(LOG_ERROR, "block %u of the file for swapped blocks cannot be read back: %s", t->block,
             t->error == EBADMSG ? "it has other bytes than were written" : strerror(t->error));
    b->in_file = false;
    abandon(c, t->frame);
}

static bool take_done(struct swap_cache *c)
{
    struct swap_transfer t;
    bool any = false;
    for (; c->io.take(c->io.cookie, &t); any = true) {
        c->under_way--;
        if (c->frames[t.frame].block == NO_BLOCK) { /* abandoned */
            c->writing -= t.write;
            append(c, t.frame, FREE);
        } else if (t.write) {
            end_write(c, &t);
        } else {
            end_read(c, &t);
        }
    }
    return any;
}

/* Write the dirty ones that have been so for the longest, as far as steps are done with them. */
static bool write_back(struct swap_cache *c)
{
    uint32_t least = larger(c->o.frames / 4, c->wanted), f;
    bool any = false;
    if (room_of(c) >= c->wanted)
        c->wanted = 0;
    while (!c->failed && room_of(c) + c->writing < least && (f = c->lists[DIRTY].first) != NO_FRAME &&
           !is_in_flight(c, &c->frames[f])) {
        if (block_tables_swap_refs(c->o.tables, c->frames[f].block) == 0)
            abandon(c, f);
        else
            submit(c, f, true);
        any = true;
    }
    return any;
}

bool swap_cache_turn(struct swap_cache *c)
{
    if (!c)
        return false;
    bool any = take_done(c);
    return write_back(c) || any;
}

bool swap_cache_is_busy(const struct swap_cache *c)
{
    return c && c->under_way > 0;
}

/* ---- looking ------------------------------------------------------------------------------------- */

struct swap_cache_counts swap_cache_counts(const struct swap_cache *c)
{
    return c ? (struct swap_cache_counts){c->writes,  c->reads,    c->o.frames,
                                          room_of(c), c->o.blocks, c->failed}
             : (struct swap_cache_counts){0};
}

const char *swap_cache_fault(const struct swap_cache *c)
{
    uint32_t listed =
        c ? c->lists[FREE].count + c->lists[DIRTY].count + c->lists[CLEAN].count + c->under_way : 0;
    for (uint32_t f = 0; c && f < c->o.frames; f++) {
        const struct frame *frame = &c->frames[f];
        if (frame->block != NO_BLOCK && c->blocks[frame->block].frame != f)
            return "swap: a host block does not name the frame that has its bytes";
        if (frame->block == NO_BLOCK && (frame->state == DIRTY || frame->state == CLEAN))
            return "swap: a frame has the bytes of no host block";
        if (frame->state == CLEAN && !c->blocks[frame->block].in_file)
            return "swap: a clean frame's bytes are not in the file";
    }
    return c && listed != c->o.frames ? "swap: a frame is in no list, or in two" : NULL;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int swap_cache_create(const struct swap_cache_options *options, struct swap_cache **result)
{
    struct swap_cache *c = calloc(1, sizeof *c);
    if (!c)
        return ATTND_NO_MEMORY;
    c->o = *options;
    c->io = *options->io;
    c->frames = calloc(options->frames, sizeof *c->frames);
    c->blocks = calloc(options->blocks, sizeof *c->blocks);
    if (!c->frames || !c->blocks) {
        swap_cache_destroy(c);
        return ATTND_NO_MEMORY;
    }
    for (int state = 0; state < LISTS; state++)
        c->lists[state] = (struct list){NO_FRAME, NO_FRAME, 0};
    for (uint32_t f = 0; f < options->frames; f++) {
        c->frames[f].block = NO_BLOCK;
        append(c, f, FREE);
    }
    for (uint32_t block = 0; block < options->blocks; block++)
        c->blocks[block].frame = NO_FRAME;
    c->io.begin(c->io.cookie, options->host, options->wake, options->cookie);
    *result = c;
    return 0;
}

void swap_cache_destroy(struct swap_cache *c)
{
    if (!c)
        return;
    c->io.end(c->io.cookie);
    free(c->frames);
    free(c->blocks);
    free(c);
}
