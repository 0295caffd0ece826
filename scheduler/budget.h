/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h - how long a turn may take for one kind of work that no step computes: requests from the ring,
 * those that are carried out while a step is formed, and sequences of workloads that end or are admitted.
 *
 * Whoever does it begins a budget each turn, and asks before each piece. The first piece of a turn is always
 * done, so nobody waits for ever, however long each takes. Engine thread. */
#ifndef SCHEDULER_BUDGET_H
#define SCHEDULER_BUDGET_H

#include <stdbool.h>

struct journal;

struct budget {
    double (*clock)(void *cookie); /* as in engine_options */
    void *cookie;
    struct journal *journal; /* where it is noted that it is spent; NULL: nowhere */
    double us;               /* a turn */
    double until_s;          /* of this turn */
    bool begun, spent;
};

/* budget_begin: a turn begins. budget_allows: whether there is time for one more; after a false only the next
 * turn has some. */
void budget_begin(struct budget *budget);
bool budget_allows(struct budget *budget);

#endif
