/* SPDX-License-Identifier: Apache-2.0 */
/* poison.c - see poison.h.
 *
 *   blocks:  [ 0 | 12..16 | 0 | 0..16 ]     what is to be marked of each, one range: of a held block the fill only falls, so
 *   due:     [ 3 | 1 ]                      its ranges touch each other, and a free block is one range
 *
 * A step makes first what is due of blocks that it writes, then its copies, then what is due of blocks that it copies from: the
 * last of several who had these slots may be the one for whom they are copied, and whoever is left in the block may write
 * there behind the copies.
 *
 * Why V alone is NaN: a score that is NaN counts as -inf (kernels/plan.h), so a key that is NaN would take itself, and a
 * chunk of such keys its values too, out of the output. A key of zeros has a score like others have, and its value makes
 * the output NaN whatever that score is worth: 0 x NaN is NaN (docs/decisions/0044). */
#include "scheduler/poison.h"

#include "config/numbers.h"

#include <stdlib.h>
#include <string.h>

enum { IS_READ = 1, IS_WRITTEN = 2 };

struct poison_range {
    uint16_t first, end; /* end 0: nothing */
};

struct poison {
    uint32_t blocks, block_size, count;
    struct poison_range *range; /* [blocks] */
    uint32_t *due;              /* [count] blocks with a range, or that had one; each once */
    bool *listed;               /* [blocks] in due */
    uint8_t *use;               /* [blocks] by the copies of the step that is submitted */
};

int poison_create(uint32_t blocks, uint32_t block_size, struct poison **result)
{
    struct poison *p = calloc(1, sizeof *p);
    if (!p)
        return ATTND_NO_MEMORY;
    *p = (struct poison){.blocks = blocks,
                         .block_size = block_size,
                         .range = calloc(blocks, sizeof *p->range),
                         .due = calloc(blocks, sizeof *p->due),
                         .listed = calloc(blocks, sizeof *p->listed),
                         .use = calloc(blocks, sizeof *p->use)};
    if (!p->range || !p->due || !p->listed || !p->use) {
        poison_destroy(p);
        return ATTND_NO_MEMORY;
    }
    for (uint32_t block = 0; block < blocks; block++)
        poison_add(block, 0, block_size, p);
    *result = p;
    return 0;
}

void poison_destroy(struct poison *p)
{
    if (!p)
        return;
    free(p->range);
    free(p->due);
    free(p->listed);
    free(p->use);
    free(p);
}

void poison_add(uint32_t block, uint32_t first, uint32_t end, void *cookie)
{
    struct poison *p = cookie;
    struct poison_range *range = &p->range[block];
    if (first >= end)
        return;
    range->first = (uint16_t)(range->end ? smaller(range->first, first) : first);
    range->end = (uint16_t)larger(range->end, end);
    if (!p->listed[block])
        p->due[p->count++] = block;
    p->listed[block] = true;
}

/* Mark what the copies of a step do with blocks; or forget it. */
static void mark(struct poison *p, const struct block_copy *copies, uint32_t n, bool on)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct block_copy *c = &copies[i];
        if (c->kind == COPY_BLOCK)
            p->use[c->from] = on ? p->use[c->from] | IS_READ : 0;
        if (c->kind == COPY_BLOCK || c->kind == COPY_SWAP_IN)
            p->use[c->to] = on ? p->use[c->to] | IS_WRITTEN : 0;
    }
}

/* The COPY_POISON of those due blocks of which the step's copies only read, or of the others. Returns how many there are. */
static uint32_t list_due(struct poison *p, bool read, struct block_copy *list)
{
    uint32_t made = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t block = p->due[i];
        struct poison_range *range = &p->range[block];
        if (range->end == 0 || (p->use[block] == IS_READ) != read)
            continue;
        list[made++] =
            (struct block_copy){COPY_POISON, range->first, block, (uint32_t)range->end - range->first};
        range->end = 0;
    }
    return made;
}

uint32_t poison_take(struct poison *p, const struct block_copy *copies, uint32_t n, struct block_copy *list)
{
    mark(p, copies, n, true);
    for (uint32_t i = 0; i < n; i++) {
        if (copies[i].kind == COPY_SWAP_IN)
            p->range[copies[i].to].end = 0;
    }
    uint32_t made = list_due(p, false, list);
    if (n)
        memcpy(list + made, copies, n * sizeof *copies);
    made += n;
    made += list_due(p, true, list + made);
    mark(p, copies, n, false);
    while (p->count > 0)
        p->listed[p->due[--p->count]] = false;
    for (uint32_t i = 0; i < n; i++) {
        if (copies[i].kind == COPY_SWAP_IN)
            poison_add(copies[i].to, copies[i].slots, p->block_size, p);
    }
    return made;
}

bool poison_is_due(const struct poison *p, uint32_t block)
{
    return p->range[block].end > 0;
}
