/* SPDX-License-Identifier: Apache-2.0 */
/* row_order.h - rows in an order that the caller defines.
 *
 * What the order looks at must not change while a row is in it. Nothing allocates after init. */
#ifndef SCHEDULER_ROW_ORDER_H
#define SCHEDULER_ROW_ORDER_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ROW_ORDER_NONE UINT32_MAX

/* Whether row `a` comes before row `b`: a strict order of all rows. */
typedef bool (*row_order_before_fn)(uint32_t a, uint32_t b, const void *cookie);

/* Whether row `a` comes before what is looked for. */
typedef bool (*row_order_below_fn)(uint32_t a, const void *wanted, const void *cookie);

struct row_order_node;

struct row_order {
    struct row_order_node *nodes; /* [rows] */
    uint32_t root;
    row_order_before_fn before;
    const void *cookie;
};

/* row_order_init: an empty order of up to `rows` rows. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int row_order_init(struct row_order *order, uint32_t rows, row_order_before_fn before,
                            const void *cookie);
void row_order_deinit(struct row_order *order);

/* row_order_insert: a row that is not in it; _remove: one that is. O(log rows), expected. */
void row_order_insert(struct row_order *order, uint32_t row);
void row_order_remove(struct row_order *order, uint32_t row);
bool row_order_has(const struct row_order *order, uint32_t row);

/* The first and the last row, ROW_ORDER_NONE if there is none. O(log rows). */
uint32_t row_order_first(const struct row_order *order);
uint32_t row_order_last(const struct row_order *order);

/* row_order_find(order, below, wanted, before): the first row that is not below what is wanted, and in
 * *before the last one that is; ROW_ORDER_NONE if there is none. O(log rows). */
uint32_t row_order_find(const struct row_order *order, row_order_below_fn below, const void *wanted,
                        uint32_t *before);

#endif
