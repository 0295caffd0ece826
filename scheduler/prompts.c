/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.c - see prompts.h.
 *
 *   row 3    first 7 --> [ 256 ids ] next 2 --> [ 256 ids ] next 9 --> [ 88 ids, the rest unused ]
 *
 * Pages of one store, chained by index; those that nobody uses are chained too. */
#include "scheduler/prompts.h"

#include "config/numbers.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_IDS = 256 };

#define NO_PAGE UINT32_MAX

struct prompts {
    uint32_t (*ids)[PAGE_IDS]; /* [pages] */
    uint32_t *next;            /* [pages] in its chain */
    uint32_t pages, free, free_count;
    uint32_t *first, *length; /* [rows] */
};

uint32_t prompts_pages(uint32_t n)
{
    return n / PAGE_IDS + (n % PAGE_IDS != 0);
}

int prompts_create(uint32_t rows, uint64_t tokens, struct prompts **result)
{
    struct prompts *p = calloc(1, sizeof *p);
    uint64_t pages = tokens / PAGE_IDS + rows;
    if (!p)
        return ATTND_NO_MEMORY;
    p->pages = p->free_count = pages < NO_PAGE ? (uint32_t)pages : NO_PAGE - 1;
    p->ids = calloc(p->pages, sizeof *p->ids);
    p->next = malloc(p->pages * sizeof *p->next);
    p->first = malloc(rows * sizeof *p->first);
    p->length = calloc(rows, sizeof *p->length);
    if (!p->ids || !p->next || !p->first || !p->length) {
        prompts_destroy(p);
        return ATTND_NO_MEMORY;
    }
    memset(p->first, 0xff, rows * sizeof *p->first);
    for (uint32_t page = 0; page < p->pages; page++)
        p->next[page] = page + 1 < p->pages ? page + 1 : NO_PAGE;
    *result = p;
    return 0;
}

void prompts_destroy(struct prompts *p)
{
    if (!p)
        return;
    free(p->ids);
    free(p->next);
    free(p->first);
    free(p->length);
    free(p);
}

int prompts_set(struct prompts *p, uint32_t row, const uint32_t *ids, uint32_t n)
{
    uint32_t *link = &p->first[row];
    if (prompts_pages(n) > p->free_count)
        return ATTND_NO_SEQUENCES;
    for (uint32_t at = 0; at < n; at += PAGE_IDS) {
        uint32_t page = p->free;
        p->free = p->next[page];
        memcpy(p->ids[page], ids + at, smaller(PAGE_IDS, n - at) * sizeof *ids);
        *link = page;
        link = &p->next[page];
    }
    *link = NO_PAGE;
    p->free_count -= prompts_pages(n);
    p->length[row] = n;
    return 0;
}

void prompts_cut(struct prompts *p, uint32_t row, uint32_t length)
{
    uint32_t *link = &p->first[row];
    if (length >= p->length[row])
        return;
    p->length[row] = length;
    for (uint32_t i = 0; i < prompts_pages(length); i++)
        link = &p->next[*link];
    for (uint32_t page = *link, next; page != NO_PAGE; page = next) {
        next = p->next[page];
        p->next[page] = p->free;
        p->free = page;
        p->free_count++;
    }
    *link = NO_PAGE;
}

uint32_t prompts_free_pages(const struct prompts *p)
{
    return p->free_count;
}

uint32_t prompts_length(const struct prompts *p, uint32_t row)
{
    return p->length[row];
}

/* The page of a position that the prompt names. */
static uint32_t page_at(const struct prompts *p, uint32_t row, uint32_t position)
{
    uint32_t page = p->first[row];
    for (uint32_t i = 0; i < position / PAGE_IDS; i++)
        page = p->next[page];
    return page;
}

void prompts_read(const struct prompts *p, uint32_t row, uint32_t position, uint32_t n, uint32_t *ids)
{
    uint32_t page = n ? page_at(p, row, position) : NO_PAGE;
    while (n > 0) {
        uint32_t at = position % PAGE_IDS, count = smaller(PAGE_IDS - at, n);
        memcpy(ids, &p->ids[page][at], count * sizeof *ids);
        ids += count;
        position += count;
        n -= count;
        page = p->next[page];
    }
}

uint32_t prompts_agree(const struct prompts *p, uint32_t row, uint32_t position, const uint32_t *ids,
                       uint32_t n)
{
    uint32_t named = p->length[row] > position ? smaller(p->length[row] - position, n) : 0;
    uint32_t page = named ? page_at(p, row, position) : NO_PAGE;
    for (uint32_t i = 0; i < named; i++) {
        if (p->ids[page][(position + i) % PAGE_IDS] != ids[i])
            return i;
        if ((position + i) % PAGE_IDS == PAGE_IDS - 1)
            page = p->next[page];
    }
    return n;
}
