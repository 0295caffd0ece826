/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - what has happened: to sequences, beside what the allocator notes of blocks (allocator/block_log.h), and
 * what is told of it.
 *
 * Events are read out of that log's ring by the engine, between two operations, and copied into the request of whoever
 * listens: the loop writes them down and hands the request back. One who is slow has its request with the loop, and
 * costs the engine nothing; what the ring lost meanwhile is counted. Engine thread. */
#ifndef SCHEDULER_HISTORY_H
#define SCHEDULER_HISTORY_H

#include "scheduler/engine_state.h"
#include "scheduler/requests.h"

/* Why a sequence has ended. XX(constant, name) */
#define HISTORY_REASON_MAP(XX)                                                                               \
    XX(REQUEST, "request")     /* a client has deleted it, */                                                \
    XX(IDLE, "idle")           /* or not used it */                                                          \
    XX(MOVED, "moved")         /* it is on another daemon */                                                 \
    XX(KEY, "key")             /* its key is no more */                                                      \
    XX(UNDONE, "undone")       /* of forks of which not all could be made */                                 \
    XX(WORKLOAD, "workload")   /* its workload has decoded it, */                                            \
    XX(CANCELLED, "cancelled") /* was cancelled, */                                                          \
    XX(PREEMPTED, "preempted") /* or begins it again later */

enum history_reason {
#define XX(constant, name) HISTORY_##constant,
    HISTORY_REASON_MAP(XX)
#undef XX
};

/* history_reason_name: the word for a reason. */
const char *history_reason_name(unsigned reason);

/* history_began: a row is a new sequence, as sequences_at() has it, perhaps a fork of its parent. history_ends: it is about to be removed, and why.
 * history_cut: tokens from `length` on were cut off. */
void history_began(struct engine_state *state, uint32_t row, bool forked);
void history_ends(struct engine_state *state, uint32_t row, enum history_reason reason);
void history_cut(struct engine_state *state, uint32_t row, uint32_t length);

/* history_stepped: a step has retired, in flight since `submitted_s`. */
void history_stepped(struct engine_state *state, const struct step *step, double submitted_s);

/* history_touch: something has changed that is shown, and is none of these. history_epoch: the epoch of now. */
void history_touch(struct engine_state *state);
uint64_t history_epoch(struct engine_state *state);

/* history_owners(state, request, block, owners, most): the latest `most` sequences and leases that had a block, as far as its
 * life goes back (block_log.h), the latest first; of another key than the request's no more than when. Returns how many. */
uint32_t history_owners(struct engine_state *state, const struct request *request, uint32_t block,
                        struct block_owner *owners, uint32_t most);

/* history_news: a request of those that listen for which there is something, or that has waited long enough; NULL:
 * there is none. history_idle_s: seconds until there will be one, if nothing happens; negative: for ever. */
struct request *history_news(struct engine_state *state);
double history_idle_s(const struct engine_state *state, double now_s);

#endif
