/* SPDX-License-Identifier: Apache-2.0 */
/* routes.h - which exchange becomes which request of the engine, and what is answered at once. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "config/memory_budget.h"
#include "scheduler/engine.h"
#include "server/http_exchange.h"
#include "server/loop_turns.h"

#include <uv.h>

struct http_connections;
struct route;

enum { ROUTES_TURNS = 3 };

/* What requests are answered from; owned by main, lives as long as the server. Loop thread. */
struct daemon_state {
    const struct config *config;
    struct engine *engine;
    uv_loop_t *loop;
    const struct http_connections *connections, *managers; /* NULL: none yet */
    uint64_t started_ns;                                   /* uv_hrtime() */
    double started_s;                                      /* Unix time */
    uint64_t instance;                    /* a random number: what another start has is another one's */
    bool leaving;                         /* the daemon is to end: /readyz says so */
    bool draining;                        /* and takes no new clients; */
    bool overdue;                         /* the time of those whom it has is over */
    const char *given_up;                 /* why the engine answers no more requests; NULL: it does */
    uv_async_t *completed;                /* on which the engine says that it has answers */
    struct state *outlasting;             /* what outlives the daemon; NULL: nothing */
    struct request *asked;                /* by the daemon itself, which waits for it */
    struct keys *keys;                    /* NULL: none is needed */
    uint32_t calls;                       /* requests that came from clients, of limits.calls */
    uint32_t streams;                     /* requests that streamed answers keep */
    uint32_t uploads;                     /* traces being read */
    double longest_turns_s[ROUTES_TURNS]; /* of the loop: processor time between two waits; longest first */
    struct loop_turns turns;              /* the latest ones */
    struct memory_budget memory;          /* memory.bytes */
    uint64_t tensors_copied;              /* of bodies, since they were not where they can be used */
    uint32_t restored, not_restored;      /* sequences of the snapshot, by the start */
    bool follows_unclean;                 /* the daemon before has not saved all (state.dir) */
    struct answer *answers;               /* of the engine's requests, made by routes_create(), like */
    char *openapi;                        /* the text of /openapi.json */
    struct http_tally *tally;             /* of what was answered, likewise */

    /* begin to end: serve for `lame_duck_s` more, or what an earlier one has left if that is less; return which. What is under way then has
     * `deadline_s`; 0: as long as it takes */
    uint32_t (*drain)(uint32_t lame_duck_s, uint32_t deadline_s, void *cookie);
    bool (*stay)(void *cookie); /* end a lame duck that a request has begun, and stay; false: there is none */
    uint32_t (*lame_duck_left)(void *cookie); /* seconds; 0: there is none */
    void *cookie;
};

/* Requests of the engine beside limits.calls: for the management listener, and for what no client asks. */
enum { ROUTES_SPARE_REQUESTS = 8 };

/* routes_create, _destroy: what is kept of requests. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int routes_create(struct daemon_state *daemon);
void routes_destroy(struct daemon_state *daemon);

/* The functions of a struct http_service; `cookie` is the struct daemon_state. Unknown paths are 404,
 * known paths with another method 405 with Allow. The answer of an abandoned request is dropped, and a
 * workload that is streamed to its client ends with it. */
bool routes_begun(struct http_exchange *x, void *cookie);
void routes_handle(struct http_exchange *x, void *cookie);
void routes_finish(struct http_exchange *x, void *cookie);
void routes_answered(struct http_exchange *x, void *cookie);
void routes_proceed(struct http_exchange *x, void *cookie);
void routes_unanswered(struct http_exchange *x, enum http_end why, enum http_stage stage, void *cookie);
void routes_abandon(struct http_exchange *x, void *cookie);

/* routes_end_key: a key is no more: what it has under way is answered with 401, and what belongs to it is
 * removed. */
void routes_end_key(struct daemon_state *daemon, struct api_key *key);

/* routes_streamed: how many streamed workloads run. Once `overdue` is set they are cancelled, and their clients told. */
uint32_t routes_streamed(const struct daemon_state *daemon);

/* routes_give_up: the engine does not answer any more. Requests under way, and later ones, fail. */
void routes_give_up(struct daemon_state *daemon, const char *why);

/* routes_at: the route with this number, in the order of their files; NULL: there are no more. Any thread. */
const struct route *routes_at(uint32_t number);

/* routes_ask: hand a request of the daemon's own to the engine and wait for it, while the loop goes on. False: the engine does
 * not answer any more, and has the request. routes_request: an empty one, waited for likewise; NULL: the same. */
MUST_USE bool routes_ask(struct daemon_state *daemon, struct request *request);
struct request *routes_request(struct daemon_state *daemon);

/* routes_deliver: answer every exchange whose request the engine has completed. */
void routes_deliver(struct daemon_state *daemon);

#endif
