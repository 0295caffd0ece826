/* SPDX-License-Identifier: Apache-2.0 */
/* budget.c - see budget.h. */
#include "scheduler/budget.h"

#include "scheduler/journal.h"

void budget_begin(struct budget *b)
{
    b->begun = b->spent = false;
}

bool budget_allows(struct budget *b)
{
    if (b->spent)
        return false;
    double now_s = b->clock(b->cookie);
    if (!b->begun) {
        b->begun = true;
        b->until_s = now_s + b->us * 1e-6;
        return true;
    }
    b->spent = journal_spent(b->journal, now_s >= b->until_s);
    return !b->spent;
}
