/* SPDX-License-Identifier: Apache-2.0 */
/* cover.c - greedy covering arrays.
 *
 * Every combination to be met has a number; a bitmap remembers which have been. The next case is begun
 * with a combination that has not, completed at random CANDIDATES times, and the completion that meets
 * the most new ones is taken. About 1.5 times the smallest possible set, which is plenty. */
#include "tests/conformance/cover.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 24, TUPLES_MAX = 1024 };

/* A choice of axes, and where the numbers of its combinations begin. */
struct tuple {
    unsigned axis[3];
    size_t base, combinations;
};

struct cover {
    const unsigned *sizes;
    unsigned axes, strength, tuple_count;
    struct tuple tuples[TUPLES_MAX];
    uint8_t *met;
    size_t total, left;
    uint32_t random;
};

static unsigned random_below(struct cover *c, unsigned n)
{
    c->random = c->random * 1664525 + 1013904223;
    return (unsigned)((uint64_t)c->random * n >> 32);
}

static void add_tuple(struct cover *c, unsigned a, unsigned b, unsigned d)
{
    struct tuple *t = &c->tuples[c->tuple_count++];
    *t = (struct tuple){{a, b, d}, c->total, (size_t)c->sizes[a] * c->sizes[b]};
    if (c->strength == 3)
        t->combinations *= c->sizes[d];
    c->total += t->combinations;
}

/* The number of the combination that `k` shows on the axes of `t`. */
static size_t number_of(const struct cover *c, const struct tuple *t, const struct cover_case *k)
{
    size_t n = k->value[t->axis[0]];
    for (unsigned i = 1; i < c->strength; i++)
        n = n * c->sizes[t->axis[i]] + k->value[t->axis[i]];
    return t->base + n;
}

static size_t count_new(const struct cover *c, const struct cover_case *k)
{
    size_t fresh = 0;
    for (unsigned i = 0; i < c->tuple_count; i++)
        fresh += !c->met[number_of(c, &c->tuples[i], k)];
    return fresh;
}

static void meet(struct cover *c, const struct cover_case *k)
{
    for (unsigned i = 0; i < c->tuple_count; i++) {
        uint8_t *met = &c->met[number_of(c, &c->tuples[i], k)];
        c->left -= !*met;
        *met = 1;
    }
}

/* Set the axes of combination `number` in `k`. */
static void put_combination(const struct cover *c, size_t number, struct cover_case *k)
{
    unsigned i = 0;
    while (number >= c->tuples[i].base + c->tuples[i].combinations)
        i++;
    number -= c->tuples[i].base;
    for (unsigned at = c->strength; at-- > 0;) {
        unsigned axis = c->tuples[i].axis[at];
        k->value[axis] = (uint8_t)(number % c->sizes[axis]);
        number /= c->sizes[axis];
    }
}

static struct cover_case next_case(struct cover *c, size_t missing)
{
    struct cover_case best = {{0}};
    size_t best_new = 0;
    for (int i = 0; i < CANDIDATES; i++) {
        struct cover_case k = {{0}};
        for (unsigned axis = 0; axis < c->axes; axis++)
            k.value[axis] = (uint8_t)random_below(c, c->sizes[axis]);
        put_combination(c, missing, &k);
        size_t fresh = count_new(c, &k);
        if (fresh > best_new) {
            best_new = fresh;
            best = k;
        }
    }
    return best;
}

size_t cover_make(const unsigned *sizes, unsigned axes, unsigned strength, struct cover_case **cases)
{
    struct cover *c = calloc(1, sizeof *c);
    size_t count = 0, room = 0, missing = 0;
    *cases = NULL;
    if (!c)
        abort();
    *c = (struct cover){.sizes = sizes, .axes = axes, .strength = strength, .random = 1};
    for (unsigned a = 0; a < axes; a++) {
        for (unsigned b = a + 1; b < axes; b++) {
            if (strength == 2)
                add_tuple(c, a, b, 0);
            for (unsigned d = b + 1; strength == 3 && d < axes; d++)
                add_tuple(c, a, b, d);
        }
    }
    c->met = calloc(c->total, 1);
    c->left = c->total;
    while (c->left) {
        while (c->met[missing])
            missing++;
        if (count == room) {
            room = room ? 2 * room : 256;
            *cases = realloc(*cases, room * sizeof **cases);
        }
        if (!c->met || !*cases)
            abort();
        (*cases)[count] = next_case(c, missing);
        meet(c, &(*cases)[count++]);
    }
    free(c->met);
    free(c);
    return count;
}
