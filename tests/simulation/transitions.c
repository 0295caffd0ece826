/* SPDX-License-Identifier: Apache-2.0 */
/* transitions.c - see transitions.h. */
#include "tests/simulation/transitions.h"

#include "tests/simulation/simulation.h"

#include <stdio.h>

/* ---- the contract -------------------------------------------------------------------------------- */

enum { MOST = 16 /* that follow a state; ABSENT, which follows none, ends the list */ };

static const struct {
    enum machine machine;
    enum state from, to[MOST];
} legal[] = {
    /* A block is held by one that took it, or that was forked to it or found it in the cache. Whoever holds a
       published one alone unpublishes it before he writes. What steps in flight touch is fenced first. */
    {MACHINE_BLOCKS, STATE_FREE, {STATE_HELD}},
    {MACHINE_BLOCKS, STATE_HELD, {STATE_FREE, STATE_SHARED, STATE_PUBLISHED, STATE_LEASED, STATE_FENCED}},
    {MACHINE_BLOCKS, STATE_SHARED, {STATE_HELD, STATE_SHARED_PUBLISHED}},
    {MACHINE_BLOCKS,
     STATE_PUBLISHED,
     {STATE_HELD, STATE_SHARED_PUBLISHED, STATE_FENCED_PUBLISHED, STATE_CACHED}},
    {MACHINE_BLOCKS, STATE_SHARED_PUBLISHED, {STATE_SHARED, STATE_PUBLISHED}},
    {MACHINE_BLOCKS, STATE_LEASED, {STATE_FREE, STATE_FENCED}},
    {MACHINE_BLOCKS, STATE_FENCED, {STATE_FREE}},
    {MACHINE_BLOCKS, STATE_FENCED_PUBLISHED, {STATE_PUBLISHED, STATE_FENCED, STATE_CACHED}},
    {MACHINE_BLOCKS, STATE_CACHED, {STATE_FREE, STATE_PUBLISHED}},
    /* A host block stands for one of the pool; its bytes follow, and stay while they are good. */
    {MACHINE_HOST_BLOCKS, STATE_FREE, {STATE_ON_DEVICE}},
    {MACHINE_HOST_BLOCKS, STATE_ON_DEVICE, {STATE_FREE, STATE_ON_HOST}},
    {MACHINE_HOST_BLOCKS, STATE_ON_HOST, {STATE_FREE, STATE_ON_BOTH}},
    {MACHINE_HOST_BLOCKS, STATE_ON_BOTH, {STATE_FREE, STATE_ON_HOST}},
    /* An empty step is dropped, or skipped if blocks wait for its end. */
    {MACHINE_STEPS, STATE_ABSENT, {STATE_FORMING}},
    {MACHINE_STEPS, STATE_FORMING, {STATE_IN_FLIGHT, STATE_SKIPPED, STATE_DROPPED}},
    {MACHINE_STEPS, STATE_IN_FLIGHT, {STATE_HANGING, STATE_RETIRED, STATE_FAILED}},
    {MACHINE_STEPS, STATE_HANGING, {STATE_RETIRED, STATE_FAILED}},
    /* As they are between turns. A request that is queued may end in any way, one in a step only with it.
       A request in slices ends before its appends stand as if it had never been, behind that they stay.
       One with slices, or comparisons, in flight waits for these when it is given up. */
    {MACHINE_REQUESTS,
     STATE_SUBMITTED,
     {STATE_WAITS, STATE_WANTS_ROOM, STATE_COMPARES, STATE_COMPUTES, STATE_APPENDS, STATE_ATTENDS,
      STATE_ANSWERED, STATE_REFUSED, STATE_DELETED, STATE_REAPED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_WAITS,
     {STATE_WANTS_ROOM, STATE_COMPARES, STATE_COMPUTES, STATE_APPENDS, STATE_ATTENDS, STATE_ANSWERED,
      STATE_REFUSED, STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_REAPED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_WANTS_ROOM,
     {STATE_COMPARES, STATE_COMPUTES, STATE_APPENDS, STATE_ATTENDS, STATE_ANSWERED, STATE_REFUSED,
      STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_COMPARES,
     {STATE_WAITS, STATE_WANTS_ROOM, STATE_COMPUTES, STATE_APPENDS, STATE_ATTENDS, STATE_GIVEN_UP,
      STATE_ANSWERED, STATE_REFUSED, STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_COMPUTES,
     {STATE_ANSWERED, STATE_REFUSED, STATE_DEVICE_LOST}}, /* refused: void */
    {MACHINE_REQUESTS,
     STATE_APPENDS,
     {STATE_ATTENDS, STATE_GIVEN_UP, STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_ATTENDS,
     {STATE_GIVEN_UP, STATE_ANSWERED, STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_DEVICE_LOST}},
    {MACHINE_REQUESTS,
     STATE_GIVEN_UP,
     {STATE_REFUSED, STATE_CLIENT_GONE, STATE_LATE, STATE_DELETED, STATE_DEVICE_LOST}},
    /* As they are between turns. In a turn a step retires, requests come, and a step is formed, in which a
       sequence may leave for the host. It comes back in flight. None is reaped that is queued, in flight
       or in slices. */
    {MACHINE_SEQUENCES, STATE_ABSENT, {STATE_IDLE, STATE_SWAPPED}},
    {MACHINE_SEQUENCES,
     STATE_IDLE,
     {STATE_DELETED, STATE_REAPED, STATE_QUEUED, STATE_RUNNING, STATE_SLICED, STATE_SWAPPED,
      STATE_SWAPPED_QUEUED}},
    {MACHINE_SEQUENCES,
     STATE_QUEUED,
     {STATE_DELETED, STATE_IDLE, STATE_RUNNING, STATE_SLICED, STATE_SWAPPED, STATE_SWAPPED_QUEUED}},
    {MACHINE_SEQUENCES,
     STATE_RUNNING,
     {STATE_DELETED, STATE_IDLE, STATE_QUEUED, STATE_SLICED, STATE_SWAPPED, STATE_SWAPPED_QUEUED}},
    {MACHINE_SEQUENCES,
     STATE_SLICED,
     {STATE_DELETED, STATE_IDLE, STATE_QUEUED, STATE_RUNNING, STATE_SWAPPED, STATE_SWAPPED_QUEUED}},
    {MACHINE_SEQUENCES,
     STATE_SWAPPED,
     {STATE_DELETED, STATE_REAPED, STATE_QUEUED, STATE_RUNNING, STATE_SWAPPED_QUEUED}},
    {MACHINE_SEQUENCES, STATE_SWAPPED_QUEUED, {STATE_DELETED, STATE_QUEUED, STATE_RUNNING, STATE_SWAPPED}},
    /* The same; they stay in the pool, and their first step clears them. */
    {MACHINE_LEASES, STATE_ABSENT, {STATE_RUNNING}},
    {MACHINE_LEASES, STATE_IDLE, {STATE_DELETED, STATE_REAPED, STATE_QUEUED, STATE_RUNNING, STATE_SLICED}},
    {MACHINE_LEASES, STATE_QUEUED, {STATE_DELETED, STATE_IDLE, STATE_RUNNING, STATE_SLICED}},
    {MACHINE_LEASES, STATE_RUNNING, {STATE_DELETED, STATE_IDLE, STATE_QUEUED, STATE_SLICED}},
    {MACHINE_LEASES, STATE_SLICED, {STATE_DELETED, STATE_IDLE, STATE_QUEUED, STATE_RUNNING}},
    /* Workloads and their sequences, as they are between turns. */
    {MACHINE_WORKLOADS, STATE_ABSENT, {STATE_RUNNING}},
    {MACHINE_WORKLOADS, STATE_RUNNING, {STATE_VERIFYING, STATE_FINISHED, STATE_CANCELLED}},
    {MACHINE_WORKLOADS, STATE_VERIFYING, {STATE_FINISHED, STATE_CANCELLED}},
    {MACHINE_ORDINALS, STATE_ABSENT, {STATE_WAITS, STATE_RUNNING, STATE_CANCELLED}},
    {MACHINE_ORDINALS, STATE_WAITS, {STATE_RUNNING, STATE_CANCELLED}},
    {MACHINE_ORDINALS, STATE_RUNNING, {STATE_FINISHED, STATE_CANCELLED, STATE_PREEMPTED}},
    {MACHINE_ORDINALS, STATE_PREEMPTED, {STATE_RUNNING, STATE_CANCELLED}},
    /* A running sequence gets its last token as it decodes, also if it has none to decode. */
    {MACHINE_RUNNING_ROWS, STATE_ABSENT, {STATE_FILLS, STATE_FORKED}},
    {MACHINE_RUNNING_ROWS, STATE_FILLS, {STATE_CANCELLED, STATE_DECODES, STATE_PREEMPTED}},
    {MACHINE_RUNNING_ROWS, STATE_DECODES, {STATE_FINISHED, STATE_CANCELLED, STATE_PREEMPTED}},
    {MACHINE_RUNNING_ROWS, STATE_FORKED, {STATE_CANCELLED, STATE_FILLS, STATE_DECODES, STATE_PREEMPTED}},
};

enum { LEGAL = sizeof legal / sizeof legal[0] };

/* ---- what was seen ------------------------------------------------------------------------------- */

static const char *const machine_names[] = {
#define XX(machine, text) text,
    MACHINE_MAP(XX)
#undef XX
};

static const char *const state_names[] = {
#define XX(state, text) text,
    STATE_MAP(XX)
#undef XX
};

static bool is_legal(enum machine machine, enum state from, enum state to)
{
    uint32_t i = 0, k = 0;
    while (i < LEGAL && (legal[i].machine != machine || legal[i].from != from))
        i++;
    while (i < LEGAL && legal[i].to[k] != STATE_ABSENT && legal[i].to[k] != to)
        k++;
    return i < LEGAL && legal[i].to[k] == to;
}

void transitions_note(enum machine machine, enum state from, enum state to)
{
    if (from == to)
        return;
    if (sim.moved.seen[machine][from][to]++ == 0 && !is_legal(machine, from, to))
        sim_fail("%s: from \"%s\" to \"%s\" is no legal transition", machine_names[machine],
                 state_names[from], state_names[to]);
}

void transitions_add(struct transitions *to, const struct transitions *from)
{
    const uint32_t *more = &from->seen[0][0][0];
    uint32_t *sum = &to->seen[0][0][0];
    for (uint32_t i = 0; i < sizeof *to / sizeof *sum; i++)
        sum[i] += more[i];
}

/* What was seen of a machine's legal transitions. */
struct sum {
    uint32_t legal, seen, least;     /* the least often, */
    enum state least_from, least_to; /* of those that were seen */
};

/* Look at all legal transitions of a machine, and name those that were not seen, if that is wanted. */
static struct sum sum_up(const struct transitions *all, enum machine machine, bool names)
{
    struct sum sum = {.least = UINT32_MAX};
    for (uint32_t i = 0; i < LEGAL; i++) {
        for (uint32_t k = 0; legal[i].machine == machine && legal[i].to[k] != STATE_ABSENT; k++) {
            uint32_t seen = all->seen[machine][legal[i].from][legal[i].to[k]];
            sum.legal++;
            sum.seen += seen > 0;
            if (names && !seen)
                printf("never seen: %s: from \"%s\" to \"%s\"\n", machine_names[machine],
                       state_names[legal[i].from], state_names[legal[i].to[k]]);
            if (!seen || seen >= sum.least)
                continue;
            sum.least = seen;
            sum.least_from = legal[i].from;
            sum.least_to = legal[i].to[k];
        }
    }
    return sum;
}

bool transitions_report(const struct transitions *all, bool names)
{
    bool covered = true;
    printf("  %-40s %4s %4s  %s\n", "transitions of", "seen", "all", "least often");
    for (int machine = 0; machine < MACHINES; machine++) {
        const struct sum sum = sum_up(all, (enum machine)machine, false);
        covered &= sum.seen == sum.legal;
        printf("    %-38s %4u %4u", machine_names[machine], sum.seen, sum.legal);
        if (sum.seen)
            printf("  %u times: \"%s\" to \"%s\"", sum.least, state_names[sum.least_from],
                   state_names[sum.least_to]);
        printf("\n");
    }
    for (int machine = 0; names && machine < MACHINES; machine++)
        (void)sum_up(all, (enum machine)machine, true);
    return covered;
}
