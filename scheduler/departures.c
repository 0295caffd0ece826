/* SPDX-License-Identifier: Apache-2.0 */
/* departures.c - see departures.h. */
#include "scheduler/departures.h"

#include "config/numbers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct departures {
    struct departure *ring; /* [count]; id 0: none */
    uint32_t *next;         /* [count] in the same chain */
    uint32_t *heads;        /* [mask + 1] of chains */
    uint32_t count, mask, oldest;
};

static uint32_t *head_of(const struct departures *d, uint64_t id)
{
    return &d->heads[hash_id(id) & d->mask];
}

int departures_create(uint32_t count, struct departures **result)
{
    struct departures *d = calloc(1, sizeof *d);
    uint32_t heads = 1;
    while (heads < count)
        heads *= 2;
    if (!d)
        return ATTND_NO_MEMORY;
    d->count = count;
    d->mask = heads - 1;
    d->ring = calloc(count, sizeof *d->ring);
    d->next = calloc(count, sizeof *d->next);
    d->heads = malloc(heads * sizeof *d->heads);
    if (!d->ring || !d->next || !d->heads) {
        departures_destroy(d);
        return ATTND_NO_MEMORY;
    }
    memset(d->heads, 0xff, heads * sizeof *d->heads);
    *result = d;
    return 0;
}

void departures_destroy(struct departures *d)
{
    if (!d)
        return;
    free(d->ring);
    free(d->next);
    free(d->heads);
    free(d);
}

void departures_forget(struct departures *d, uint64_t id)
{
    for (uint32_t *at = head_of(d, id); *at != NONE; at = &d->next[*at]) {
        if (d->ring[*at].id != id)
            continue;
        d->ring[*at].id = 0;
        *at = d->next[*at];
        return;
    }
}

void departures_note(struct departures *d, const struct departure *departure)
{
    uint32_t at = d->oldest;
    assert(departure->id && !departures_find(d, departure->id));
    if (d->ring[at].id)
        departures_forget(d, d->ring[at].id);
    d->ring[at] = *departure;
    uint32_t *head = head_of(d, departure->id);
    d->next[at] = *head;
    *head = at;
    d->oldest = (at + 1) % d->count;
}

const struct departure *departures_find(const struct departures *d, uint64_t id)
{
    uint32_t at = *head_of(d, id);
    while (at != NONE && d->ring[at].id != id)
        at = d->next[at];
    return at == NONE ? NULL : &d->ring[at];
}
