/* SPDX-License-Identifier: Apache-2.0 */
/* roof.h - the rate at which the backend reads the pool, as it was measured lately.
 *
 * Steps are compared with it. It is measured at the start, when somebody asks, and when nothing is computed; the
 * best of the last half hour to hour counts, so that neither a noisy start stays, nor what a GPU did before it was
 * throttled. */
#ifndef SCHEDULER_ROOF_H
#define SCHEDULER_ROOF_H

#include "kernels/attention.h"

#include <pthread.h>
#include <stdbool.h>

/* What is shown of it. Times are those of the engine's clock. */
struct roof_report {
    double gb_per_s;              /* the roof: the best, lately; 0: not measured */
    double seen_s;                /* when it was read so fast */
    struct attention_roof latest; /* measurement, */
    double latest_s;              /* and when */
    uint64_t measurements;
};

/* The best of some half hour. */
struct roof_best {
    double gb_per_s, seen_s;
};

struct roof {
    pthread_mutex_t mutex; /* of the report: the engine thread writes it */
    struct roof_report report;
    struct roof_best now, before; /* of this half hour, and of that before */
    double since_s;               /* when this one began */
    const void *measures;         /* for whom a measurement is under way; NULL: none is */
    double began_s;
    double quiet_s; /* nothing was computed from then on */
    double due_s;   /* not before is it measured again unasked */
};

void roof_init(struct roof *roof);
void roof_deinit(struct roof *roof);

/* roof_note: what was measured, at now_s; nothing, where that is nothing. */
void roof_note(struct roof *roof, const struct attention_roof *measured, double now_s);

/* roof_part: do a part of a measurement for `who`, the first one if the latest was for somebody else. True: that
 * was the last, and is noted. No step is in flight. */
bool roof_part(struct roof *roof, struct attention *attention, const void *who, double now_s);

/* roof_turn: called in every turn; `computes`: something is, or waits to be. Once nothing was for ROOF_QUIET_S and it
 * is due, every call does a part, until something is again. Returns whether it did. */
bool roof_turn(struct roof *roof, struct attention *attention, bool computes, double now_s);

/* roof_idle_s: how long roof_turn() has nothing to do, if nothing is computed; negative: for ever. */
double roof_idle_s(const struct roof *roof, double now_s);

/* Any thread. */
struct roof_report roof_report(struct roof *roof);

/* roof_explain: why a step may be so much faster than the roof; NULL, where `fraction` of it is 1 or less. Any
 * thread. */
const char *roof_explain(const struct roof_report *report, double fraction);

#endif
