/* SPDX-License-Identifier: Apache-2.0 */
/* waiting.h - why something waits: what the scheduler found when it decided so, noted there and then.
 *
 * Whoever lets a request, or the next sequence of a workload, wait writes down the reason and the figures that it has
 * compared. Nothing is computed again for the one who asks. Engine thread. */
#ifndef SCHEDULER_WAITING_H
#define SCHEDULER_WAITING_H

#include <stdint.h>

/* XX(constant, name) */
#define WAIT_MAP(XX)                                                                                         \
    XX(TURN, "turn")         /* its owner's turn is later, or it waits for company */                        \
    XX(BLOCKS, "blocks")     /* it needs more than there are */                                              \
    XX(STEP, "step")         /* a step in flight, or room in one */                                          \
    XX(SEQUENCE, "sequence") /* another call on one of its sequences comes first */                          \
    XX(SWAP, "swap")         /* its sequence is on its way in */                                             \
    XX(ARRIVAL, "arrival")   /* of a workload: it is not due */                                              \
    XX(SLOTS, "slots")       /* of a workload: rows, quotas of its key, or room for outputs are used up */

enum wait_reason {
#define XX(constant, name) WAIT_FOR_##constant,
    WAIT_MAP(XX)
#undef XX
};

/* Which limit WAIT_FOR_SLOTS has met: XX(constant, name) */
#define WAIT_LIMIT_MAP(XX)                                                                                   \
    XX(STEP, "")                                                                                             \
    XX(SEQUENCES, "limits.sequences")                                                                        \
    XX(STEP_ROWS, "scheduler.step_rows_max")                                                                 \
    XX(KEY_SEQUENCES, "quotas.sequences of its key")                                                         \
    XX(KEY_BLOCKS, "quotas.blocks of its key")                                                               \
    XX(OUTPUTS, "room for rows of outputs")                                                                  \
    XX(IDS, "")

enum wait_limit {
#define XX(constant, name) LIMIT_##constant,
    WAIT_LIMIT_MAP(XX)
#undef XX
};

enum wait_behind { BEHIND_NOTHING, BEHIND_SEQUENCE, BEHIND_WORKLOAD };

struct wait_note {
    enum wait_reason reason;
    enum wait_behind behind;
    uint64_t behind_id;
    uint64_t needed, free, reclaimable; /* blocks, of WAIT_FOR_BLOCKS */
    enum wait_limit limit;              /* of WAIT_FOR_SLOTS, with: */
    uint64_t most, used;                /* `needed` more are wanted; all 0 for STEP and IDS */
};

#endif
