/* policy.h - who goes first, and who has to give way: the only place that compares priorities and
 * arrivals.
 *
 * Plain functions of plain facts: another policy is another policy.c. Any thread. */
#ifndef SCHEDULER_POLICY_H
#define SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* A request of a client, or a sequence of a workload, that waits for its turn. */
struct policy_claim {
    int32_t priority; /* larger first */
    double arrived_s;
    uint64_t id; /* a workload's id and an ordinal in it settle what is left; 0 for requests */
    uint32_t ordinal;
};

/* policy_goes_before: whether `a` has its turn before `b`. A strict order. */
bool policy_goes_before(const struct policy_claim *a, const struct policy_claim *b);

/* policy_of_both: the priority of a request on two sequences. */
int32_t policy_of_both(int32_t a, int32_t b);

/* A sequence whose blocks could be given to somebody else. */
struct policy_victim {
    int32_t priority;
    bool waited_for; /* a request on it is queued */
    uint32_t blocks; /* that it would give back */
    double created_s;
};

/* policy_may_displace: whether one of priority `asker` may take blocks from one of priority `victim`. */
bool policy_may_displace(int32_t asker, int32_t victim);

/* policy_gives_way: whether `a` gives its blocks before `b` when `need` are wanted. */
bool policy_gives_way(const struct policy_victim *a, const struct policy_victim *b, uint32_t need);

/* policy_victims_before: an order of victims in which, whatever the need, the one that gives way first is
 * found beside a place that can be searched for: those that come first give way before all others but for
 * their blocks (policy_same_rank); among these come those with fewer blocks first, and the latest of as many. */
bool policy_victims_before(const struct policy_victim *a, const struct policy_victim *b);
bool policy_same_rank(const struct policy_victim *a, const struct policy_victim *b);

#endif
