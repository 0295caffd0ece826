/* policy.c - see policy.h.
 *
 * Turns: by priority, then by arrival. Victims: the lowest priority first, never one above the asker;
 * idle ones before those with a request queued; then the one that moves least and is enough, then the one
 * that gives most; then the latest. */
#include "scheduler/policy.h"

bool policy_goes_before(const struct policy_claim *a, const struct policy_claim *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->arrived_s != b->arrived_s)
        return a->arrived_s < b->arrived_s;
    return a->id != b->id ? a->id < b->id : a->ordinal < b->ordinal;
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
    if (!policy_same_rank(a, b))
        return policy_gives_way(a, b, 0);
    return a->blocks != b->blocks ? a->blocks < b->blocks : a->created_s > b->created_s;
}

bool policy_gives_way(const struct policy_victim *a, const struct policy_victim *b, uint32_t need)
{
    bool enough = a->blocks >= need, other = b->blocks >= need;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->waited_for != b->waited_for)
        return !a->waited_for;
    if (enough != other)
        return enough;
    if (a->blocks != b->blocks)
        return enough ? a->blocks < b->blocks : a->blocks > b->blocks;
    return a->created_s > b->created_s;
}
