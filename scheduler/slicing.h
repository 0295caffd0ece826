/* SPDX-License-Identifier: Apache-2.0 */
/* slicing.h - cuts the appends and the queries of a layer into slices that each fit a step.
 *
 * The queries lie in the planner's order, in which those that share K and V are neighbours:
 *
 *     query    | segments of 4 096 tokens
 *        0     | A A A A A A A A          A: some queries, all that they see
 *        1     | A A A A A A A A
 *        2..65 | B B B C C C D D          B, C, D: as many as read together, some segments
 *
 * A slice takes as many queries as there is time for. Where they would have to stop in the midst of those
 * that read together, or one query alone takes too long, the slices are of segments instead: each leaves
 * states (plan.h), and the last one merges them. So K and V are read as often as by one plan, but where a
 * segment of all that read together takes too long for a step; then fewer of them do. Engine thread. */
#ifndef SCHEDULER_SLICING_H
#define SCHEDULER_SLICING_H

#include "scheduler/step.h"

#include <stdbool.h>

/* A way through some queries. */
struct slicing {
    const struct planner_place *places; /* [n] */
    uint32_t n;
    uint32_t at;                /* the first that is not submitted, or not in all segments */
    uint32_t together;          /* queries of which some segments are submitted; 0: none */
    uint32_t states;            /* of those, from step_keep_states() */
    uint32_t segment_end;       /* of the longest of those */
    struct plan_slice segments; /* of the slice made last */
};

/* What a step has left. */
struct slicing_room {
    double us;
    double
        together_us; /* if more: for as many queries as read K and V together, which cost more one by one */
    uint32_t queries;
    bool any; /* take the smallest slice even if it takes longer */
};

/* A way through the appends of a layer. */
struct append_slicing {
    const struct kv_append *appends; /* [count] */
    uint32_t count;
    size_t row_bytes; /* of a token of k, or v, that are given */
    uint32_t done;    /* whole ones that are submitted, */
    uint32_t tokens;  /* and tokens of the next one */
};

/* slicing_appends: put the next appends, at most `room` with at most `tokens` tokens in all, into `to`; their
 * number. *done: how many tokens they are. */
uint32_t slicing_appends(struct append_slicing *s, uint32_t tokens, struct kv_append *to, uint32_t room,
                         uint32_t *done);

/* slicing_count: add what n queries do, of which `together` neighbours read together. */
void slicing_count(const struct planner_place *places, uint32_t n, uint32_t together, struct cost_work *work);

/* slicing_begin: n queries; places stay until the end. */
void slicing_begin(struct slicing *s, const struct planner_place *places, uint32_t n);

/* slicing_next: the next slice, into row_count, slice and cost_us of `part`; part->slice lies in *s and stays
 * until the next call. False when nothing fits now. *first: the place of its first query; *last: they
 * have come to their end with it (else the part has no outputs). The rows are the caller's to fill in. */
bool slicing_next(struct slicing *s, struct steps *steps, const struct slicing_room *room,
                  struct step_part *part, uint32_t *first, bool *last);

/* Whether all slices have been made. */
bool slicing_is_done(const struct slicing *s);

/* slicing_stop: no more slices; what is kept of those in flight is given up. */
void slicing_stop(struct slicing *s, struct steps *steps);

#endif
