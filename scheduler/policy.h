/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - who goes first, how much of a step each may have, and who has to give way: the only place that
 * compares priorities, arrivals and shares of time.
 *
 * Plain functions of plain facts: another policy is another policy.c. Any thread. */
#ifndef SCHEDULER_POLICY_H
#define SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* A request of a client, or a sequence of a workload, that waits for its turn. */
struct policy_claim {
    double owner_at;      /* time that its owner has had (shares.h), where turns are of time; else 0 */
    int32_t priority;     /* larger first */
    double connection_at; /* time that its connection has had; likewise */
    double arrived_s;
    uint64_t id; /* a workload's id and an ordinal in it settle what is left; 0 for requests */
    uint32_t ordinal;
};

/* policy_goes_before: whether `a` has its turn before `b`. A strict order. */
bool policy_goes_before(const struct policy_claim *a, const struct policy_claim *b);

/* policy_of_both: the priority of a request on two sequences. */
int32_t policy_of_both(int32_t a, int32_t b);

/* policy_is_small: whether a request of `us` is small beside steps of at most `step_us_max`.
 * _is_within_share: whether an owner that is `lead_us` ahead of those that wait is within its share, so
 * that its small requests go first. */
bool policy_is_small(double us, double step_us_max);
bool policy_is_within_share(double lead_us, double step_us_max);

/* policy_slice_us: microseconds that an owner whose turn it is may add of bulk work to a step that has
 * `bulk_us` of it. `owners`: those that have some; `behind_us`: by how much of its own it is behind the
 * next one. */
double policy_slice_us(double bulk_us, uint32_t owners, double behind_us);
double policy_slice_least_us(double bulk_us); /* at least so much */

/* policy_beside_us: likewise at most, when another owner has all that it could do in this step, who has a
 * step more to do after it. 0: the step is better over. */
double policy_beside_us(double bulk_us, double behind_us);

/* policy_sits_out: whether a workload that is `lead_us` ahead of the one that had least is left out of a
 * round in which it would take `part_us`, and those that stay `rest_us`, of which every round takes
 * `fixed_us`. */
bool policy_sits_out(double lead_us, double part_us, double rest_us, double fixed_us);

/* A sequence whose blocks could be given to somebody else. */
struct policy_victim {
    int32_t priority;
    bool waited_for; /* a request on it is queued */
    uint32_t blocks; /* that it would give back */
    double created_s;
};

/* policy_may_displace: whether one of priority `asker` may take blocks from one of priority `victim`. */
bool policy_may_displace(int32_t asker, int32_t victim);

/* policy_victims_before: an order of victims in which, whatever the need, the one that gives way first is
 * found beside a place that can be searched for: those that come first give way before all others but for
 * their blocks (policy_same_rank); among these come those with fewer blocks first, and the latest of as
 * many. Of the first rank the first one that has enough gives way, else the last. */
bool policy_victims_before(const struct policy_victim *a, const struct policy_victim *b);
bool policy_same_rank(const struct policy_victim *a, const struct policy_victim *b);

#endif
