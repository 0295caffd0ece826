/* SPDX-License-Identifier: Apache-2.0 */
/* step_log.c - see step_log.h.
 *
 *   I1  entries that are kept are those with the last STEP_LOG_STEPS places; place p lies at p % STEP_LOG_STEPS
 *   I2  their numbers rise */
#include "scheduler/step_log.h"

void step_log_own(struct step_log_entry *e, uint64_t key, uint32_t rows)
{
    uint32_t i = 0;
    if (rows == 0)
        return;
    while (i < e->owner_count && e->owners[i].key != key)
        i++;
    if (i == STEP_LOG_OWNERS) {
        e->rows_of_others += rows;
        return;
    }
    if (i == e->owner_count)
        e->owners[e->owner_count++] = (struct step_log_owner){key, 0};
    e->owners[i].rows += rows;
}

void step_log_add(struct step_log *log, const struct step_log_entry *entry)
{
    log->entries[log->count++ % STEP_LOG_STEPS] = *entry;
}

const struct step_log_passes *step_log_passes(const struct step_log *log, uint64_t step)
{
    const struct step_log_passes *of = log->passes ? &log->passes[step % STEP_LOG_STAMPED] : NULL;
    return of && of->step == step && of->count > 0 ? of : NULL;
}

/* The place of the oldest entry that is kept. */
static uint64_t oldest(const struct step_log *log)
{
    return log->count < STEP_LOG_STEPS ? 0 : log->count - STEP_LOG_STEPS;
}

/* The first place with a step behind `since`. */
static uint64_t find_behind(const struct step_log *log, uint64_t since)
{
    uint64_t first = oldest(log), end = log->count;
    while (first < end) {
        uint64_t middle = first + (end - first) / 2;
        if (log->entries[middle % STEP_LOG_STEPS].step <= since)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

uint32_t step_log_read(const struct step_log *log, uint64_t since, bool latest, uint32_t limit,
                       struct step_log_entry *entries)
{
    uint64_t kept = log->count - oldest(log), first = find_behind(log, since);
    if (latest)
        first = limit < kept ? log->count - limit : oldest(log);
    uint32_t n = log->count - first < limit ? (uint32_t)(log->count - first) : limit;
    for (uint32_t i = 0; i < n; i++)
        entries[i] = log->entries[(first + i) % STEP_LOG_STEPS];
    return n;
}
