/* SPDX-License-Identifier: Apache-2.0 */
/* roof.c - see roof.h.
 *
 *   start |--- quiet for 5 s, due after 60 s or more ---| measures, a part a turn | ... | due again
 *
 * A measurement reads up to 1 GiB five times on a CPU: half a second at 10 GB/s. The next one is due a thousand
 * times later than this one took, so that an idle machine stays idle. What is computed meanwhile ends a
 * measurement that nobody has asked for. */
#include "scheduler/roof.h"

#include <math.h>
#include <stddef.h>

static const double QUIET_S = 5;        /* without anything computed, and it counts as idle */
static const double EVERY_S = 60;       /* between two measurements that nobody asked for, at least, */
static const double PAUSES = 1000;      /* and so many times as long as the latest took */
static const double EVERY_S_MAX = 1800; /* but no longer, so that one is in every half hour */
static const double HALF_HOUR_S = 1800;
static const double NOISY = 0.8; /* the worst pass of a measurement, of the best */

void roof_init(struct roof *roof)
{
    *roof = (struct roof){0};
    pthread_mutex_init(&roof->mutex, NULL);
}

void roof_deinit(struct roof *roof)
{
    pthread_mutex_destroy(&roof->mutex);
}

void roof_note(struct roof *roof, const struct attention_roof *measured, double now_s)
{
    roof->due_s = now_s + EVERY_S;
    if (!(measured->best > 0))
        return;
    bool long_ago = now_s - roof->since_s >= 2 * HALF_HOUR_S; /* or never */
    if (long_ago || now_s - roof->since_s >= HALF_HOUR_S) {
        roof->before = roof->now;
        if (long_ago)
            roof->before = (struct roof_best){0};
        roof->now = (struct roof_best){0};
        roof->since_s = now_s;
    }
    if (measured->best > roof->now.gb_per_s)
        roof->now = (struct roof_best){measured->best, now_s};
    const struct roof_best *best = roof->before.gb_per_s > roof->now.gb_per_s ? &roof->before : &roof->now;
    pthread_mutex_lock(&roof->mutex);
    roof->report =
        (struct roof_report){best->gb_per_s, best->seen_s, *measured, now_s, roof->report.measurements + 1};
    pthread_mutex_unlock(&roof->mutex);
}

bool roof_part(struct roof *roof, struct attention *attention, const void *who, double now_s)
{
    struct attention_roof measured;
    bool begins = roof->measures != who;
    if (begins)
        roof->began_s = now_s;
    roof->measures = who;
    if (!attention_roof_part(attention, begins, &measured))
        return false;
    roof->measures = NULL;
    roof_note(roof, &measured, now_s);
    roof->due_s = now_s + fmin(fmax((now_s - roof->began_s) * PAUSES, EVERY_S), EVERY_S_MAX);
    return true;
}

bool roof_turn(struct roof *roof, struct attention *attention, bool computes, double now_s)
{
    if (computes) {
        roof->quiet_s = now_s;
        roof->measures = roof->measures == roof ? NULL : roof->measures;
        return false;
    }
    if (roof_idle_s(roof, now_s) != 0)
        return false;
    (void)roof_part(roof, attention, roof, now_s);
    return true;
}

double roof_idle_s(const struct roof *roof, double now_s)
{
    double from_s = fmax(roof->quiet_s + QUIET_S, roof->due_s);
    return roof->report.measurements ? fmax(from_s - now_s, 0) : -1;
}

struct roof_report roof_report(struct roof *roof)
{
    pthread_mutex_lock(&roof->mutex);
    struct roof_report report = roof->report;
    pthread_mutex_unlock(&roof->mutex);
    return report;
}

const char *roof_explain(const struct roof_report *report, double fraction)
{
    if (!(fraction > 1))
        return NULL;
    return report->latest.worst < NOISY * report->latest.best
               ? "K and V were read from caches, or the roof was measured while others used the machine"
               : "K and V were read from caches, which are faster than memory";
}
