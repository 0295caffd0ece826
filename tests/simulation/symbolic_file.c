/* SPDX-License-Identifier: Apache-2.0 */
/* symbolic_file.c - see symbolic_file.h. */
#include "tests/simulation/symbolic_file.h"

#include "tests/simulation/simulation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { UNDER_WAY_MOST = 256, GARBAGE = 0x5a };

static struct {
    uint64_t random, fails_at, writes;
    bool failed, ended;
    struct attention_host host;
    void (*wake)(void *);
    void *of_wake;
    size_t block_bytes;
    uint8_t *stored; /* [blocks] */
    uint32_t blocks;
    struct under_way {
        struct swap_transfer t;
        double due_s;
        uint8_t *bytes;    /* of a frame that is written */
    } all[UNDER_WAY_MOST]; /* in the order in which they came */
    uint32_t count;
} file;

void symbolic_file_begin(uint64_t seed, uint32_t blocks, uint64_t fails_at)
{
    symbolic_file_end();
    memset(&file, 0, sizeof file);
    file.random = seed;
    file.blocks = blocks;
    file.fails_at = fails_at;
}

void symbolic_file_end(void)
{
    for (uint32_t i = 0; i < file.count; i++)
        free(file.all[i].bytes);
    free(file.stored);
    file.stored = NULL;
    file.count = 0;
}

/* Between a frame and memory that has its layers one behind the other. */
static void move(uint32_t frame, uint8_t *bytes, bool to_frame)
{
    const struct attention_host *h = &file.host;
    for (uint32_t layer = 0; layer < h->layers; layer++) {
        uint8_t *at = h->bytes + layer * h->layer_stride + frame * h->block_stride;
        uint8_t *part = bytes + layer * h->layer_bytes;
        memcpy(to_frame ? at : part, to_frame ? part : at, h->layer_bytes);
    }
}

static uint64_t hash(const uint8_t *bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < file.block_bytes; i++)
        sum = sim_mix(sum ^ bytes[i]);
    return sum;
}

static void begin(void *cookie, const struct attention_host *host, void (*wake)(void *), void *of_wake)
{
    (void)cookie;
    file.host = *host;
    file.wake = wake;
    file.of_wake = of_wake;
    file.block_bytes = host->layers * host->layer_bytes;
}

static void submit(void *cookie, const struct swap_transfer *t)
{
    static const uint32_t most_us[] = {2, 50, 5000};
    (void)cookie;
    if (file.count == UNDER_WAY_MOST || t->block >= file.blocks)
        sim_fail("%u transfers are under way, and block %u of %u goes to the file", file.count, t->block,
                 file.blocks);
    file.stored = file.stored ? file.stored : calloc(file.blocks, file.block_bytes);
    if (!file.stored)
        abort();
    struct under_way *u = &file.all[file.count++];
    uint32_t us = sim_below(&file.random, most_us[sim_below(&file.random, 3)]);
    *u = (struct under_way){*t, sim.now_s + us * 1e-6, malloc(file.block_bytes)};
    if (!u->bytes)
        abort();
    if (t->write) {
        move(t->frame, u->bytes, false);
        return;
    }
    memset(u->bytes, GARBAGE, file.block_bytes);
    move(t->frame, u->bytes, true);
}

/* The order in which a thread has them done: reads first. */
static struct under_way *next(void)
{
    for (uint32_t i = 0; i < file.count; i++) {
        if (!file.all[i].t.write)
            return &file.all[i];
    }
    return file.count ? &file.all[0] : NULL;
}

static void write_block(struct under_way *u, uint8_t *stored)
{
    uint8_t *now = malloc(file.block_bytes);
    if (!now)
        abort();
    move(u->t.frame, now, false);
    bool same = memcmp(now, u->bytes, file.block_bytes) == 0;
    free(now);
    if (!same)
        sim_fail("frame %u changed while it was written to block %u of the file", u->t.frame, u->t.block);
    file.writes++;
    file.failed |= file.fails_at && file.writes >= file.fails_at;
    u->t.error = file.failed ? EIO : 0;
    u->t.digest = hash(u->bytes);
    if (!file.failed)
        memcpy(stored, u->bytes, file.block_bytes);
    sim.seen.file_writes++;
}

static void read_block(struct under_way *u, uint8_t *stored)
{
    if (hash(stored) != u->t.digest)
        sim_fail("block %u is read from the file, which has other bytes than were written", u->t.block);
    move(u->t.frame, stored, true);
    sim.seen.file_reads++;
}

static bool take(void *cookie, struct swap_transfer *done)
{
    struct under_way *u = next();
    (void)cookie;
    if (!u || u->due_s > sim.now_s)
        return false;
    uint8_t *stored = file.stored + u->t.block * file.block_bytes;
    if (u->t.write)
        write_block(u, stored);
    else
        read_block(u, stored);
    *done = u->t;
    free(u->bytes);
    memmove(u, u + 1, (size_t)(&file.all[--file.count] - u) * sizeof *u);
    return true;
}

static void end(void *cookie)
{
    (void)cookie;
    symbolic_file_end();
}

const struct swap_io symbolic_file_io = {NULL, begin, submit, take, end};

double symbolic_file_due_s(void)
{
    const struct under_way *u = next();
    return u ? u->due_s : -1;
}

bool symbolic_file_has_failed(void)
{
    return file.failed;
}
