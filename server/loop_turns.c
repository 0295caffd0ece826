/* SPDX-License-Identifier: Apache-2.0 */
/* loop_turns.c - see loop_turns.h. */
#include "server/loop_turns.h"

void loop_turns_add(struct loop_turns *x, double end_s, double processor_s)
{
    x->turns[x->count++ % LOOP_TURNS] = (struct loop_turn){end_s, (float)(processor_s * 1e6)};
}

uint32_t loop_turns_read(const struct loop_turns *x, struct loop_turn copy[LOOP_TURNS])
{
    uint32_t n = x->count < LOOP_TURNS ? (uint32_t)x->count : LOOP_TURNS;
    for (uint32_t i = 0; i < n; i++)
        copy[i] = x->turns[(x->count - n + i) % LOOP_TURNS];
    return n;
}
