/* SPDX-License-Identifier: Apache-2.0 */
/* shares.h - how much time owners have had, and their connections.
 *
 *     owner A  =========|             an account each, in virtual time: microseconds over the weight
 *     owner B  ======|                goes next
 *     owner C     .  |                comes back, and starts where those are that wait for time
 *              ------|-----------
 *                   now: the least of those that wait
 *
 * Start-time fair queueing. Whoever waits for time has its turn in the order of the accounts, so none waits
 * for ever and each gets time by its weight; who does not wait saves up nothing. Within an owner its
 * connections have accounts of the same kind, all of one weight.
 *
 * A step charges estimates. When it retires they are corrected, all by one factor, to what it took. Engine
 * thread; nothing allocates after create. */
#ifndef SCHEDULER_SHARES_H
#define SCHEDULER_SHARES_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

#define SHARES_NONE     UINT32_MAX
#define SHARES_WORKLOAD (UINT64_C(1) << 63) /* bit of an owner that is a workload, with its id */

struct shares;

/* shares_create(holders, slots, shares): for at most so many accounts that are held at a time, and steps in
 * flight. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int shares_create(uint32_t holders, uint32_t slots, struct shares **shares);
void shares_destroy(struct shares *shares); /* NULL is fine. */

/* shares_hold: the account of a connection of an owner, which has this weight >= 1 from now on. It is kept
 * until shares_drop(), and longer while it has had more than others. O(1), O(accounts) when there are
 * many. */
uint32_t shares_hold(struct shares *shares, uint64_t owner, uint64_t connection, uint32_t weight);
void shares_drop(struct shares *shares, uint32_t account);

/* shares_owner: the account of a connection's owner. */
uint32_t shares_owner(const struct shares *shares, uint32_t account);

/* shares_at: the virtual time at which an account would start now, among those of its kind: owners', or those
 * of one owner. shares_lead: by how many microseconds of its own an owner's is ahead of those that wait. */
double shares_at(const struct shares *shares, uint32_t account);
double shares_lead(const struct shares *shares, uint32_t owner);

/* shares_us: microseconds of an owner in so much virtual time. */
double shares_us(const struct shares *shares, uint32_t owner, double virtual_us);

/* ---- a step: begin, charge and wait, end ... retire ---- */

/* shares_charge: a connection, and with it its owner, has so much estimated time in the step of `slot`
 * that is being formed. shares_wait: it had none, or could do with more, and nothing else keeps it
 * waiting. shares_end: the step is formed. O(accounts). shares_retire: the step took so long. O(accounts). */
void shares_charge(struct shares *shares, uint32_t slot, uint32_t account, double us);
void shares_wait(struct shares *shares, uint32_t account);
void shares_end(struct shares *shares);
void shares_retire(struct shares *shares, uint32_t slot, double took_us);

#endif
