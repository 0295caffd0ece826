/* SPDX-License-Identifier: Apache-2.0 */
/* staging.c - see staging.h. */
#include "scheduler/staging.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TRIMMED_BYTES = 1 << 20 /* at a time */ };

/* A block that is out, in units of STAGING_ALIGNMENT bytes. */
struct extent {
    size_t first, count;
};

struct staging {
    uint8_t *memory;
    size_t units, used;
    size_t touched; /* units, from the front, that may have been used since they were trimmed */
    struct memory_budget *budget;
    size_t small_bytes;
    struct extent *out; /* [blocks_max] in order of first */
    uint32_t count, blocks_max;
    pthread_mutex_t mutex;
};

int staging_create(const struct staging_options *o, struct staging **result)
{
    struct staging *s = calloc(1, sizeof *s);
    if (!s)
        return ATTND_NO_MEMORY;
    *s = (struct staging){.memory = o->memory,
                          .units = o->bytes / STAGING_ALIGNMENT,
                          .budget = o->budget,
                          .small_bytes = o->small_bytes,
                          .blocks_max = o->blocks_max};
    s->out = calloc(o->blocks_max, sizeof *s->out);
    if (!s->out) {
        free(s);
        return ATTND_NO_MEMORY;
    }
    pthread_mutex_init(&s->mutex, NULL);
    *result = s;
    return 0;
}

void staging_destroy(struct staging *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->mutex);
    free(s->out);
    free(s);
}

static void *take(struct staging *s, size_t bytes)
{
    size_t units = bytes / STAGING_ALIGNMENT + (bytes % STAGING_ALIGNMENT != 0),
           first = bytes > s->small_bytes ? s->units / 4 : 0;
    uint32_t at = 0;
    units += units == 0;
    for (; at < s->count && (s->out[at].first < first || s->out[at].first - first < units); at++) {
        size_t end = s->out[at].first + s->out[at].count;
        first = end > first ? end : first;
    }
    if (s->count == s->blocks_max || units > s->units - first ||
        !memory_take_bulk(s->budget, units * STAGING_ALIGNMENT))
        return NULL;
    s->touched = first + units > s->touched ? first + units : s->touched;
    memmove(&s->out[at + 1], &s->out[at], (s->count++ - at) * sizeof *s->out);
    s->out[at] = (struct extent){first, units};
    s->used += units;
    return s->memory + first * STAGING_ALIGNMENT;
}

void *staging_take(struct staging *s, size_t bytes)
{
    pthread_mutex_lock(&s->mutex);
    void *block = take(s, bytes);
    pthread_mutex_unlock(&s->mutex);
    return block;
}

static void give(struct staging *s, const void *block)
{
    size_t first = (size_t)((const uint8_t *)block - s->memory) / STAGING_ALIGNMENT;
    uint32_t from = 0, end = s->count;
    while (from + 1 < end) { /* out[from].first <= first < out[end].first */
        uint32_t middle = from + (end - from) / 2;
        if (s->out[middle].first <= first)
            from = middle;
        else
            end = middle;
    }
    assert(s->count && s->out[from].first == first);
    s->used -= s->out[from].count;
    memory_give(s->budget, s->out[from].count * STAGING_ALIGNMENT);
    memmove(&s->out[from], &s->out[from + 1], (--s->count - from) * sizeof *s->out);
}

void staging_give(struct staging *s, void *block)
{
    if (!block)
        return;
    pthread_mutex_lock(&s->mutex);
    give(s, block);
    pthread_mutex_unlock(&s->mutex);
}

/* Whether the units are free. */
static bool is_free(const struct staging *s, size_t first, size_t end)
{
    for (uint32_t i = 0; i < s->count && s->out[i].first < end; i++) {
        if (s->out[i].first + s->out[i].count > first)
            return false;
    }
    return true;
}

void staging_trim(struct staging *s)
{
    const size_t piece = TRIMMED_BYTES / STAGING_ALIGNMENT;
    if (!s->budget)
        return;
    pthread_mutex_lock(&s->mutex);
    for (size_t first = 0, end = s->touched; first < end; first += piece) {
        size_t last = first + piece < s->units ? first + piece : s->units;
        if (is_free(s, first, last))
            (void)madvise(s->memory + first * STAGING_ALIGNMENT, (last - first) * STAGING_ALIGNMENT,
                          MADV_DONTNEED);
        pthread_mutex_unlock(&s->mutex); /* whoever waits has a turn */
        pthread_mutex_lock(&s->mutex);
    }
    if (s->count == 0)
        s->touched = 0;
    pthread_mutex_unlock(&s->mutex);
}

bool staging_is_touched(struct staging *s)
{
    pthread_mutex_lock(&s->mutex);
    bool touched = s->budget && s->touched > 0;
    pthread_mutex_unlock(&s->mutex);
    return touched;
}

size_t staging_used(struct staging *s)
{
    pthread_mutex_lock(&s->mutex);
    size_t used = s->used;
    pthread_mutex_unlock(&s->mutex);
    return used * STAGING_ALIGNMENT;
}
