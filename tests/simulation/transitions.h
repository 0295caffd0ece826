/* SPDX-License-Identifier: Apache-2.0 */
/* transitions.h - state machines as the contract has them: the legal transitions of each, and which were
 * seen.
 *
 * Who sees them: watched_blocks.c and watched_steps.c at every call that makes one; watch.c between turns,
 * where what happened within a turn is one transition. One that is not legal ends the simulation. */
#ifndef TESTS_SIMULATION_TRANSITIONS_H
#define TESTS_SIMULATION_TRANSITIONS_H

#include <stdbool.h>
#include <stdint.h>

/* XX(machine, what is in its states) */
#define MACHINE_MAP(XX)                                                                                      \
    XX(BLOCKS, "blocks")                                                                                     \
    XX(HOST_BLOCKS, "host blocks")                                                                           \
    XX(STEPS, "steps")                                                                                       \
    XX(REQUESTS, "requests")                                                                                 \
    XX(SEQUENCES, "sequences")                                                                               \
    XX(LEASES, "leases")                                                                                     \
    XX(WORKLOADS, "workloads")                                                                               \
    XX(ORDINALS, "sequences of workloads")                                                                   \
    XX(RUNNING_ROWS, "running sequences of workloads")

/* XX(state, text); a machine has some of them. */
#define STATE_MAP(XX)                                                                                        \
    XX(ABSENT, "absent")                                                                                     \
    XX(FREE, "free")                                                                                         \
    XX(HELD, "held")                                                                                         \
    XX(SHARED, "shared")                                                                                     \
    XX(PUBLISHED, "held and published")                                                                      \
    XX(SHARED_PUBLISHED, "shared and published")                                                             \
    XX(LEASED, "leased")                                                                                     \
    XX(FENCED, "fenced")                                                                                     \
    XX(FENCED_PUBLISHED, "fenced and published")                                                             \
    XX(CACHED, "cached")                                                                                     \
    XX(ON_DEVICE, "on the device")                                                                           \
    XX(ON_HOST, "on the host")                                                                               \
    XX(ON_BOTH, "on both")                                                                                   \
    XX(FORMING, "forming")                                                                                   \
    XX(IN_FLIGHT, "in flight")                                                                               \
    XX(HANGING, "hanging")                                                                                   \
    XX(RETIRED, "retired")                                                                                   \
    XX(SKIPPED, "skipped")                                                                                   \
    XX(DROPPED, "dropped")                                                                                   \
    XX(FAILED, "failed")                                                                                     \
    XX(SUBMITTED, "submitted")                                                                               \
    XX(WAITS, "waits")                                                                                       \
    XX(WANTS_ROOM, "waits for room")                                                                         \
    XX(COMPARES, "is compared")                                                                              \
    XX(COMPUTES, "computes in one step")                                                                     \
    XX(APPENDS, "appends in slices")                                                                         \
    XX(ATTENDS, "attends in slices")                                                                         \
    XX(GIVEN_UP, "given up in flight")                                                                       \
    XX(ANSWERED, "answered")                                                                                 \
    XX(REFUSED, "refused")                                                                                   \
    XX(CLIENT_GONE, "ended by its client")                                                                   \
    XX(LATE, "ended by its deadline")                                                                        \
    XX(DELETED, "deleted")                                                                                   \
    XX(REAPED, "reaped")                                                                                     \
    XX(DEVICE_LOST, "ended by the device")                                                                   \
    XX(IDLE, "idle")                                                                                         \
    XX(QUEUED, "queued")                                                                                     \
    XX(RUNNING, "running")                                                                                   \
    XX(SLICED, "in slices")                                                                                  \
    XX(SWAPPED, "swapped")                                                                                   \
    XX(SWAPPED_QUEUED, "swapped and queued")                                                                 \
    XX(VERIFYING, "verifying")                                                                               \
    XX(FINISHED, "finished")                                                                                 \
    XX(CANCELLED, "cancelled")                                                                               \
    XX(FILLS, "fills")                                                                                       \
    XX(DECODES, "decodes")                                                                                   \
    XX(FORKED, "forked")                                                                                     \
    XX(PREEMPTED, "preempted")

enum machine {
#define XX(machine, text) MACHINE_##machine,
    MACHINE_MAP(XX)
#undef XX
        MACHINES
};

enum state {
#define XX(state, text) STATE_##state,
    STATE_MAP(XX)
#undef XX
        STATES
};

/* How often each transition was seen; [from][to]. */
struct transitions {
    uint32_t seen[MACHINES][STATES][STATES];
};

/* transitions_note: one more has gone from one state to another, or stays where it is. */
void transitions_note(enum machine machine, enum state from, enum state to);

/* transitions_add: all that one has seen. transitions_report: how many of the legal ones were seen, and, if
 * wanted, the `names` of those that were not; false if there are some. */
void transitions_add(struct transitions *to, const struct transitions *from);
bool transitions_report(const struct transitions *all, bool names);

#endif
