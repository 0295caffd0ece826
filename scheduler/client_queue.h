/* SPDX-License-Identifier: Apache-2.0 */
/* client_queue.h - the requests of clients that wait for a step: appends, attends, requests on leased blocks,
 * leases, and what has to wait behind such requests. A producer of step.h. Engine thread. */
#ifndef SCHEDULER_CLIENT_QUEUE_H
#define SCHEDULER_CLIENT_QUEUE_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

struct client_queue;

struct client_queue_options {
    struct engine_state *state;
    void (*complete)(struct request *request, void *cookie);
    void *cookie;
};

/* Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int client_queue_create(const struct client_queue_options *options, struct client_queue **queue);
void client_queue_destroy(struct client_queue *queue);

/* client_queue_add: queue a request on sequences or leases that a step carries out, or that waits for
 * blocks or for other requests; one that can never run is completed at once. */
void client_queue_add(struct client_queue *queue, struct request *request);

/* client_queue_drop(queue, id, key): fail the queued requests on a sequence of that key that is about to be
 * deleted. Those for which it does not exist stay. */
void client_queue_drop(struct client_queue *queue, uint64_t id, uint64_t key);

/* client_queue_drop_cancelled: fail the queued requests that are cancelled or past their deadline, without waiting for company. Not
 * while a step is formed. */
void client_queue_drop_cancelled(struct client_queue *queue);

/* client_queue_bring_in: swap in those of `n` rows that are on the host, beside the step being formed: 0
 * when none is, REQUEST_WAITS, or the request has failed. */
int client_queue_bring_in(struct client_queue *queue, struct request *request,
                          const struct reserve_request *nothing, uint32_t n);

/* client_queue_begin: take into the step being formed small requests of owners within their share.
 * Requests that fail, and those that compute nothing, are completed on the way. */
void client_queue_begin(struct client_queue *queue, struct step *step);

/* client_queue_at: the virtual time (shares.h) of the owner of bulk work, or of small requests beyond its
 * share, whose turn it is, and of the next one; INFINITY: there is none. client_queue_owners: how many
 * such owners there are. */
double client_queue_at(struct client_queue *queue, double *next_but_one);
uint32_t client_queue_owners(struct client_queue *queue);

/* client_queue_add_bulk: let that owner have its turn, if there is one: it may add a small request of
 * `room_us`, or `slice_us` of others, which are cut if need be; if `any`, the smallest slice though it
 * takes longer. False when nothing was added. */
bool client_queue_add_bulk(struct client_queue *queue, double slice_us, double room_us, bool any);

/* client_queue_end: the step has all that clients add to it. */
void client_queue_end(struct client_queue *queue);

/* client_queue_look: a step is done, and about to retire: what streamed requests have appended that is not finite
 * is cut off, with all that followed on its sequence. */
void client_queue_look(struct client_queue *queue, const struct step *step);

/* client_queue_is_empty: nothing is queued, and nothing goes into steps in slices. */
bool client_queue_is_empty(const struct client_queue *queue);

/* client_queue_retire: a step has retired: complete its requests. */
void client_queue_retire(struct client_queue *queue, const struct step *step);

/* With debug.poison. client_queue_is_unsound: outputs were NaN, and why is not known yet. client_queue_read_back: add to an empty
 * step, while none is in flight, what has to be read to know it; false: that is known now, and their requests are completed. */
bool client_queue_is_unsound(const struct client_queue *queue);
bool client_queue_read_back(struct client_queue *queue, struct step *step);

/* client_queue_first: those that wait, linked by `next`, between two turns. Each has queued.wait. */
const struct request *client_queue_first(const struct client_queue *queue);

/* client_queue_wait_s: seconds until what is queued has to run, since its queries have waited for company
 * as long as they may; 0: now, negative: nothing is queued. */
double client_queue_wait_s(const struct client_queue *queue);

/* Whether a small request was taken a moment ago. */

/* client_queue_idle_s: after a turn that did nothing, seconds until the next: those that were passed over in it have to wait
 * for what is under way to or from the file. client_queue_awaits_file: whether there are such. */
double client_queue_idle_s(const struct client_queue *queue);
bool client_queue_awaits_file(const struct client_queue *queue);
bool client_queue_is_interactive(const struct client_queue *queue);

#endif
