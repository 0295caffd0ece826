/* SPDX-License-Identifier: Apache-2.0 */
/* departures.h - ids of sequences and leases that are no more, and why: the last ones, until others push them
 * out.
 *
 * A ring, and a hash table of chains over it. Engine thread only; nothing allocates after create. */
#ifndef SCHEDULER_DEPARTURES_H
#define SCHEDULER_DEPARTURES_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { DEPARTURE_MOVED_BYTES = 256 };

struct departure {
    uint64_t id, key; /* key: to which it belonged */
    bool lease;       /* it was one */
    double at_s;
    double idle_s; /* that it had not been used when it was removed for that */
    char moved_to
        [DEPARTURE_MOVED_BYTES]; /* where it is now; "": nowhere, it was removed since nobody used it */
};

struct departures;

/* departures_create(count, departures): as many are remembered. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int departures_create(uint32_t count, struct departures **departures);
void departures_destroy(struct departures *departures);

/* departures_note: remember one, in place of the oldest if there are as many. Its id is not among them. O(1). */
void departures_note(struct departures *departures, const struct departure *departure);

/* departures_find: NULL: there is none of that id. departures_forget: the id is in use again. O(1). */
const struct departure *departures_find(const struct departures *departures, uint64_t id);
void departures_forget(struct departures *departures, uint64_t id);

#endif
