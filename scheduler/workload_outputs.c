/* SPDX-License-Identifier: Apache-2.0 */
/* workload_outputs.c - see workload_outputs.h. */
#include "scheduler/workload_outputs.h"

#include "config/mapping.h"
#include "config/numbers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 2, PART_NUMBERS = 50000 };

struct workload_outputs {
    uint32_t layers, numbers; /* of one row */
    size_t row_bytes;
    uint32_t capacity, first, kept, announced; /* rows at one layer */
    struct workload_output *of;                /* [capacity] */
    uint8_t *rows;                             /* [capacity][row_bytes] */
};

struct workload_outputs *workload_outputs_create(const struct geometry *g, size_t bytes)
{
    struct workload_outputs *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->layers = g->layers;
    o->numbers = g->query_heads * g->head_dim;
    o->row_bytes = geometry_q_row_bytes(g);
    o->capacity = larger((uint32_t)(bytes / o->row_bytes), ROUNDS * g->layers);
    o->of = calloc(o->capacity, sizeof *o->of);
    o->rows = mapping_create(o->capacity * o->row_bytes, 0);
    if (o->of && o->rows)
        return o;
    workload_outputs_destroy(o);
    return NULL;
}

void workload_outputs_destroy(struct workload_outputs *o)
{
    if (!o)
        return;
    mapping_destroy(o->rows, o->capacity * o->row_bytes);
    free(o->of);
    free(o);
}

/* Rows of a whole part of the answer. */
static uint32_t part_rows(const struct workload_outputs *o)
{
    return larger(1, PART_NUMBERS / o->numbers);
}

uint32_t workload_outputs_tokens(const struct workload_outputs *o)
{
    return o->capacity / ROUNDS / o->layers;
}

uint32_t workload_outputs_room(const struct workload_outputs *o)
{
    return (o->capacity - o->kept - o->announced) / o->layers;
}

void workload_outputs_announce(struct workload_outputs *o, uint32_t tokens)
{
    assert(tokens <= workload_outputs_room(o));
    o->announced += tokens * o->layers;
}

void workload_outputs_put(struct workload_outputs *o, struct workload_output of, const void *row)
{
    uint32_t at = (uint32_t)(((uint64_t)o->first + o->kept) % o->capacity);
    assert(o->announced > 0);
    o->announced--;
    o->of[at] = of;
    memcpy(o->rows + at * o->row_bytes, row, o->row_bytes);
    o->kept++;
}

uint32_t workload_outputs_next(const struct workload_outputs *o)
{
    return smaller(o->kept, part_rows(o));
}

void workload_outputs_take(struct workload_outputs *o, uint32_t n, struct workload_output *of, uint8_t *rows)
{
    assert(n <= o->kept);
    for (uint32_t i = 0; i < n; i++) {
        of[i] = o->of[o->first];
        memcpy(rows + i * o->row_bytes, o->rows + o->first * o->row_bytes, o->row_bytes);
        o->first = o->first + 1 < o->capacity ? o->first + 1 : 0;
    }
    o->kept -= n;
}

void workload_outputs_drop(struct workload_outputs *o)
{
    o->kept = 0;
}

bool workload_outputs_any(const struct workload_outputs *o)
{
    return o->kept > 0;
}

bool workload_outputs_many(const struct workload_outputs *o)
{
    return o->kept >= part_rows(o) || o->kept > o->capacity / 4;
}
