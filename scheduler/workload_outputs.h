/* SPDX-License-Identifier: Apache-2.0 */
/* workload_outputs.h - outputs of a workload that its client wants to have, until it takes them: a ring.
 *
 *   room = capacity - kept - announced
 *
 * A round announces its rows before it is computed, so there is always room for what comes back; a workload
 * whose client does not read takes part in no further round. Made by the loop thread, then the engine's. */
#ifndef SCHEDULER_WORKLOAD_OUTPUTS_H
#define SCHEDULER_WORKLOAD_OUTPUTS_H

#include "config/geometry.h"
#include "config/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    WORKLOAD_OUTPUTS_ROOM = 16 << 20,
    WORKLOAD_OUTPUT_NUMBERS = 100000 /* of a row at most: more do not fit an answer */
};

/* Of which row an output is. */
struct workload_output {
    uint32_t ordinal, position, layer;
};

struct workload_outputs;

/* workload_outputs_create(g, bytes): room for so many bytes of rows, or at least for two rounds of a token; NULL without
 * memory. _destroy: NULL is fine. */
struct workload_outputs *workload_outputs_create(const struct geometry *g, size_t bytes);
void workload_outputs_destroy(struct workload_outputs *o);

/* workload_outputs_tokens: tokens, all layers of each, that one round may have at most: two rounds fit, at least 1.
 * workload_outputs_room: for how many more tokens there is room now. */
uint32_t workload_outputs_tokens(const struct workload_outputs *o);
uint32_t workload_outputs_room(const struct workload_outputs *o);

/* workload_outputs_announce: outputs of so many tokens will come. workload_outputs_put: one of them has, [query_heads][head_dim]
 * of geometry.dtype. */
void workload_outputs_announce(struct workload_outputs *o, uint32_t tokens);
void workload_outputs_put(struct workload_outputs *o, struct workload_output of, const void *row);

/* workload_outputs_next: how many a part of the answer takes now. workload_outputs_take: move the oldest n to `of` and, one
 * behind the other, to `rows`. */
uint32_t workload_outputs_next(const struct workload_outputs *o);
void workload_outputs_take(struct workload_outputs *o, uint32_t n, struct workload_output *of, uint8_t *rows);

/* workload_outputs_drop: nobody wants those that are kept. */
void workload_outputs_drop(struct workload_outputs *o);

/* Whether any are kept; whether so many that they should be taken now. */
bool workload_outputs_any(const struct workload_outputs *o);
bool workload_outputs_many(const struct workload_outputs *o);

#endif
