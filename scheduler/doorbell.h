/* SPDX-License-Identifier: Apache-2.0 */
/* doorbell.h - calls of clients that have registered memory with the daemon: their rings are read by the engine itself.
 *
 *     client's memory                engine
 *     calls[] ---- copied ---------> doorbell_check() -> lists, q, k, v copied into a request -> client_queue.c, as any other
 *     o, lse, completions[] <------- copied when its step has retired
 *
 * What a client writes is trusted in nothing: a call and its lists are copied once, and the copy is what is checked and used. q, k and v
 * are copied into staging memory, and looked at there. Regions are never mapped: pread() and pwrite() on a sealed memfd fail, where a
 * mapping would be a SIGBUS. Rings are. The layout, and who wakes whom, is config/registered.h.
 *
 * Tensors in regions of GPU memory are used where they are, by streamed steps (attention.h): k and v are read once, by the append that looks at
 * them, so what the client writes there meanwhile changes nothing but its own results.
 *
 * The loop thread makes clients and their regions and ends them, by requests (REQUEST_DOORBELL). Everything else is for the engine's thread. */
#ifndef SCHEDULER_DOORBELL_H
#define SCHEDULER_DOORBELL_H

#include "config/memory_budget.h"
#include "config/registered.h"
#include "scheduler/engine_state.h"

#include <stdatomic.h>

struct doorbell;

/* A region of a client: a memfd, or memory of the GPU. */
struct doorbell_region {
    int fd; /* -1: memory of the GPU, */
    struct attention_region gpu;
    bool writes; /* where outputs may go */
    bool open;
    uint64_t bytes;
    uint32_t calls;         /* that use it */
    struct request *closer; /* waits for them; NULL: it is not to be closed */
};

/* A client. The memory is the loop's, which sets the first members before DOORBELL_OPEN and takes all back after DOORBELL_CLOSE. */
struct doorbell_client {
    struct registered_ring *ring;
    int bell; /* eventfd; never read, since the client may have it wait */
    struct doorbell_terms terms;

    struct doorbell_region regions[REGISTERED_REGIONS];
    uint32_t head, done;           /* calls taken, completions written: ours, whatever the ring says */
    uint32_t seen;                 /* calls_tail, when it was last looked at */
    uint32_t calls;                /* under way */
    struct doorbell_call *reading; /* that is being copied; later ones wait for it */
    struct request *closer;        /* DOORBELL_CLOSE, which waits for its calls; NULL: none came */
    bool open;                     /* it has come to the engine, and not gone */
    bool answers;                  /* its calls are answered; else they are dropped */
    uint32_t hot; /* place among those that are looked at every turn; UINT32_MAX: it is to ring */
    _Atomic(const char *)
        ended; /* why no more is taken from it; NULL: it is. For the loop, which is notified */
};

struct doorbell_options {
    struct engine_state *state;
    struct staging *staging;
    struct memory_budget *budget; /* for lists; NULL: without a limit */
    uint32_t requests;            /* calls under way, of all clients */
    int wake;                     /* becomes readable when the engine has something to do */
    void (*complete)(struct request *request, void *cookie); /* of REQUEST_DOORBELL */
    void (*notify)(void *cookie); /* the loop is to look at doorbell_client.ended */
    double (*clock)(void *clock_cookie);
    void *cookie, *clock_cookie; /* of complete(); of the two others */
};

/* doorbell_create(options, doorbell): 0 or ATTND_NO_MEMORY. doorbell_destroy: no call is under way. NULL is fine. */
MUST_USE int doorbell_create(const struct doorbell_options *options, struct doorbell **doorbell);
void doorbell_destroy(struct doorbell *doorbell);

/* doorbell_turn: take calls, copy tensors and outputs, as much as a turn has time for; whether anything was done. */
bool doorbell_turn(struct doorbell *doorbell);

/* doorbell_drops: whether clients have ended whose calls wait, since it was last asked: client_queue_drop_cancelled() is to be called. */
bool doorbell_drops(struct doorbell *doorbell);

/* doorbell_complete: a request with `rings` has been carried out. */
void doorbell_complete(struct doorbell *doorbell, struct request *request);

/* doorbell_rings: whether a client has put a call since the latest turn. doorbell_spin_until_s: until when that is worth asking. */
bool doorbell_rings(struct doorbell *doorbell);
double doorbell_spin_until_s(const struct doorbell *doorbell);

/* doorbell_await(doorbell, idle_s): sleep until a client rings, `wake` is readable, or that many seconds have passed (negative: for
 * ever). Returns whether `wake` is. */
bool doorbell_await(struct doorbell *doorbell, double idle_s);

struct doorbell_counts doorbell_counts(const struct doorbell *doorbell); /* NULL: zeros */

/* doorbell_ended: counts.ended, for any thread. */
uint64_t doorbell_ended(const struct doorbell *doorbell);

/* What a call's tensors come to. */
struct doorbell_bytes {
    uint64_t q, kv, o, lse; /* 0: there is none */
    uint64_t lists;
};

/* doorbell_check(call, g, rows_max, region_bytes, tensor_bytes, bytes, detail): whether a call's numbers make sense and everything lies in its
 * region, and its tensors in that of so many bytes; 0 or ATTND_INVALID with what is wrong. */
MUST_USE int doorbell_check(const struct registered_call *call, const struct geometry *g, uint32_t rows_max,
                            uint64_t region_bytes, uint64_t tensor_bytes, struct doorbell_bytes *bytes,
                            char detail[REQUEST_DETAIL_BYTES]);

#endif
