/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h - whose turn it is among the requests of clients, while a step is formed.
 *
 *     kept    [ r1 | r2 | r3 | r4 | r5 ]        all that were queued, in their order
 *     offers  owner A: r4, r1   owner B: r2     those that may go, each owner's in the order of their turns
 *
 * The next one is of the owner who has had least time by then (shares.h). Engine thread; nothing allocates
 * after create. */
#ifndef SCHEDULER_TURNS_H
#define SCHEDULER_TURNS_H

#include "scheduler/engine_state.h"

struct turns;

/* turns_create(requests, turns): for at most so many requests. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int turns_create(uint32_t requests, struct turns **turns);
void turns_destroy(struct turns *turns); /* NULL is fine. */

/* turns_begin: nothing is kept. turns_keep: a request is, behind the others. turns_forget: it is not any
 * more, if it was; _put_back: it is again, in its place. turns_kept(turns, i): the i-th, NULL if it was
 * forgotten; i < turns_count(). */
void turns_begin(struct turns *turns);
void turns_keep(struct turns *turns, struct request *request);
void turns_forget(struct turns *turns, const struct request *request);
void turns_put_back(struct turns *turns, struct request *request);
uint32_t turns_count(const struct turns *turns);
struct request *turns_kept(const struct turns *turns, uint32_t i);

/* turns_offer: a request that is kept may go; `small`: before bulk work. turns_arrange: no more are
 * offered. O(n log n) for n offers. */
void turns_offer(struct turns *turns, const struct engine_state *state, struct request *request, bool small);
void turns_arrange(struct turns *turns);

/* turns_next: the request whose turn it is, of the small ones of owners within their share or of all that
 * were not tried; NULL: none. It is not next again before turns_arrange(). O(owners). */
struct request *turns_next(struct turns *turns, const struct engine_state *state, bool small);

/* turns_at: virtual time of the owner who is next with one that was not tried, and of the next but one;
 * INFINITY: there is none. turns_owners: how many have such. O(owners). */
double turns_at(struct turns *turns, const struct engine_state *state, double *next_but_one);
uint32_t turns_owners(struct turns *turns);

#endif
