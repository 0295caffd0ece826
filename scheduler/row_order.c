/* SPDX-License-Identifier: Apache-2.0 */
/* row_order.c - see row_order.h.
 *
 * A treap: a search tree by the caller's order that is a heap by weight. Weights are hashes of rows, so its
 * shape does not depend on the order in which rows come, and its depth is about 2 log2(rows). */
#include "scheduler/row_order.h"

#include <stdlib.h>

struct row_order_node {
    uint32_t left, right;
    bool here;
};

static uint64_t weight_of(uint32_t row)
{
    uint64_t x = (row + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 32);
}

int row_order_init(struct row_order *o, uint32_t rows, row_order_before_fn before, const void *cookie)
{
    *o = (struct row_order){.root = ROW_ORDER_NONE, .before = before, .cookie = cookie};
    o->nodes = calloc(rows, sizeof *o->nodes);
    return o->nodes ? 0 : ATTND_NO_MEMORY;
}

void row_order_deinit(struct row_order *o)
{
    free(o->nodes);
    o->nodes = NULL;
}

/* Cut tree `at` in two: what comes before `row`, and what comes after. */
static void split(struct row_order *o, uint32_t at, uint32_t row, uint32_t *left, uint32_t *right)
{
    while (at != ROW_ORDER_NONE) {
        struct row_order_node *n = &o->nodes[at];
        if (o->before(at, row, o->cookie)) {
            *left = at;
            left = &n->right;
            at = n->right;
        } else {
            *right = at;
            right = &n->left;
            at = n->left;
        }
    }
    *left = *right = ROW_ORDER_NONE;
}

void row_order_insert(struct row_order *o, uint32_t row)
{
    uint32_t *at = &o->root, rest;
    uint64_t weight = weight_of(row);
    while (*at != ROW_ORDER_NONE && weight_of(*at) > weight)
        at = o->before(row, *at, o->cookie) ? &o->nodes[*at].left : &o->nodes[*at].right;
    rest = *at;
    *at = row;
    o->nodes[row].here = true;
    split(o, rest, row, &o->nodes[row].left, &o->nodes[row].right);
}

void row_order_remove(struct row_order *o, uint32_t row)
{
    uint32_t *at = &o->root, left = o->nodes[row].left, right = o->nodes[row].right;
    while (*at != row)
        at = o->before(row, *at, o->cookie) ? &o->nodes[*at].left : &o->nodes[*at].right;
    while (left != ROW_ORDER_NONE && right != ROW_ORDER_NONE) {
        bool first = weight_of(left) > weight_of(right);
        uint32_t *next = first ? &left : &right;
        *at = *next;
        at = first ? &o->nodes[*next].right : &o->nodes[*next].left;
        *next = *at;
    }
    *at = left != ROW_ORDER_NONE ? left : right;
    o->nodes[row].here = false;
}

bool row_order_has(const struct row_order *o, uint32_t row)
{
    return o->nodes[row].here;
}

uint32_t row_order_first(const struct row_order *o)
{
    uint32_t at = o->root;
    while (at != ROW_ORDER_NONE && o->nodes[at].left != ROW_ORDER_NONE)
        at = o->nodes[at].left;
    return at;
}

uint32_t row_order_last(const struct row_order *o)
{
    uint32_t at = o->root;
    while (at != ROW_ORDER_NONE && o->nodes[at].right != ROW_ORDER_NONE)
        at = o->nodes[at].right;
    return at;
}

uint32_t row_order_find(const struct row_order *o, row_order_below_fn below, const void *wanted,
                        uint32_t *before)
{
    uint32_t at = o->root, found = ROW_ORDER_NONE;
    *before = ROW_ORDER_NONE;
    while (at != ROW_ORDER_NONE) {
        bool is_below = below(at, wanted, o->cookie);
        *(is_below ? before : &found) = at;
        at = is_below ? o->nodes[at].right : o->nodes[at].left;
    }
    return found;
}
