/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c - see policy.h.
 *
 * Turns: who has had least time by its weight, then by priority, then whose connection has had least, then
 * by arrival. Small requests of owners within their share go first. Bulk work of a step is shared among
 * those that have some, so that each has a part of it, in slices not too small to be worth it.
 *
 * Victims: the lowest priority first, never one above the asker; idle ones before those with a request
 * queued; then the one that moves least and is enough, then the one that gives most; then the latest. */
#include "scheduler/policy.h"

#include <math.h>

/* Parts of a step: a request that takes no longer is small, an owner that is no further ahead is within
 * its share; a slice of bulk work has at least so much of the time for it. */
static const double SMALL = 0.125, SLICE_LEAST = 0.125;

/* A round without those that are ahead takes so many times what each round takes at least, so that two rounds
 * instead of one take 3 % longer at most. */
static const double ROUND_LEAST = 32;

bool policy_goes_before(const struct policy_claim *a, const struct policy_claim *b)
{
    if (a->owner_at != b->owner_at)
        return a->owner_at < b->owner_at;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->connection_at != b->connection_at)
        return a->connection_at < b->connection_at;
    if (a->arrived_s != b->arrived_s)
        return a->arrived_s < b->arrived_s;
    return a->id != b->id ? a->id < b->id : a->ordinal < b->ordinal;
}

bool policy_is_small(double us, double step_us_max)
{
    return us <= step_us_max * SMALL;
}

bool policy_is_within_share(double lead_us, double step_us_max)
{
    return lead_us <= step_us_max * SMALL;
}

double policy_slice_least_us(double bulk_us)
{
    return bulk_us * SLICE_LEAST;
}

double policy_slice_us(double bulk_us, uint32_t owners, double behind_us)
{
    return fmax(fmax(bulk_us / owners, policy_slice_least_us(bulk_us)), fmin(behind_us, bulk_us));
}

double policy_beside_us(double bulk_us, double behind_us)
{
    return behind_us <= 0 ? 0 : fmax(behind_us, policy_slice_least_us(bulk_us));
}

bool policy_sits_out(double lead_us, double part_us, double rest_us, double fixed_us)
{
    return lead_us >= part_us && rest_us >= ROUND_LEAST * fixed_us;
}

int32_t policy_of_both(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

bool policy_may_displace(int32_t asker, int32_t victim)
{
    return victim <= asker;
}

bool policy_same_rank(const struct policy_victim *a, const struct policy_victim *b)
{
    return a->priority == b->priority && a->waited_for == b->waited_for;
}

bool policy_victims_before(const struct policy_victim *a, const struct policy_victim *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->waited_for != b->waited_for)
        return !a->waited_for;
    return a->blocks != b->blocks ? a->blocks < b->blocks : a->created_s > b->created_s;
}
