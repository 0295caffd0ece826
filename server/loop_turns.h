/* SPDX-License-Identifier: Apache-2.0 */
/* loop_turns.h - the latest turns of the loop: what it did between two waits. A ring of fixed size; loop thread.
 *
 * libuv does not say when a wait was over, so a turn is known by its end and its processor time. One that was kept
 * from the processor began earlier than it seems. */
#ifndef SERVER_LOOP_TURNS_H
#define SERVER_LOOP_TURNS_H

#include <stdint.h>

enum { LOOP_TURNS = 4096 };

struct loop_turn {
    double end_s; /* clock.h; the next wait begins */
    float processor_us;
};

struct loop_turns {
    struct loop_turn turns[LOOP_TURNS];
    uint64_t count; /* that were ever added */
};

void loop_turns_add(struct loop_turns *turns, double end_s, double processor_s);

/* loop_turns_read: copy those that are kept, oldest first; how many. O(LOOP_TURNS). */
uint32_t loop_turns_read(const struct loop_turns *turns, struct loop_turn copy[LOOP_TURNS]);

#endif
