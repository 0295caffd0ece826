/* budget.h - how long a turn may take for requests that no step computes: control requests and questions.
 *
 * Whoever carries them out begins a budget and asks before each one. The first of a turn is always carried out, so
 * nobody waits for ever, however long each takes. Engine thread. */
#ifndef SCHEDULER_BUDGET_H
#define SCHEDULER_BUDGET_H

#include <stdbool.h>

struct budget {
    double (*clock)(void *cookie); /* as in engine_options */
    void *cookie;
    double us;      /* a turn */
    double until_s; /* of this turn */
    bool begun, spent;
};

/* budget_begin: a turn begins. budget_allows: whether there is time for one more; after a false only the next
 * turn has some. */
void budget_begin(struct budget *budget);
bool budget_allows(struct budget *budget);

#endif
