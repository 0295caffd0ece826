/* SPDX-License-Identifier: Apache-2.0 */
/* client_slices.h - how the rows of a client's request go into steps: whole into one, or in slices.
 *
 *     admitted    append slices ...  the last one        slices of queries ...     the last one
 *                 nothing shows yet  cursors move: what  the appends stand         answered when all of
 *                                    it appends stands                             its steps retire
 *
 * A request that is given up before its cursors move has changed nothing. All comparisons of what stands
 * already come before (client_queue.c). Engine thread. */
#ifndef SCHEDULER_CLIENT_SLICES_H
#define SCHEDULER_CLIENT_SLICES_H

#include "scheduler/engine_state.h"
#include "scheduler/requests.h"

/* client_slices_us: microseconds that a request takes, estimated from its sequences' lengths: what different
 * sequences share counts for each. Requests that compute nothing take 0. */
double client_slices_us(const struct engine_state *state, const struct request *request);

/* client_slices_go_whole: whether an empty step has room for all of a request. client_slices_fit: whether
 * the step has. client_slices_add_whole: add all of it; its blocks are reserved. */
bool client_slices_go_whole(const struct engine_state *state, const struct request *request);
bool client_slices_fit(const struct engine_state *state, const struct step *step,
                       const struct request *request);
void client_slices_add_whole(struct engine_state *state, struct step *step, struct request *request);

/* client_slices_begin: a request whose blocks are reserved is to go into slices: 0, or it has failed. */
int client_slices_begin(const struct engine_state *state, struct request *request);

/* client_slices_add: add the next slice for which `room_us` are enough, or, if `any`, the smallest one.
 * False when nothing was added. */
bool client_slices_add(struct engine_state *state, struct step *step, struct request *request, double room_us,
                       bool any);

/* Whether all slices have been added. */
bool client_slices_are_done(const struct request *request);

/* client_slices_stop: add no more. What is not appended by now never is, and its blocks return. */
void client_slices_stop(struct engine_state *state, struct request *request);

#endif
