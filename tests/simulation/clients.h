/* SPDX-License-Identifier: Apache-2.0 */
/* clients.h - simulated connections, their requests, and the judgement of every answer.
 *
 *   client_requests.c      what a client asks, and what it expects to stand then
 *   client_answers.c    whether an answer is one that the contract allows, by the token model
 *   client_workloads.c  workloads: their digest is known before they run
 *   client_idle.c       who is removed because nobody used it
 *   client_parameters.c the model's constants
 *   client_refusals.c   refusals for want of blocks
 *
 * Requests on one sequence run in the order of their submission. So a request is judged once it is answered
 * and every earlier request on its sequences is judged, and the model then holds what stood when it ran. */
#ifndef TESTS_SIMULATION_CLIENTS_H
#define TESTS_SIMULATION_CLIENTS_H

#include "tests/simulation/simulation.h"
#include "tests/simulation/token_model.h"

enum { OP_SEQUENCES_MOST = 4, NO_CONNECTION = -1, FORKS_MOST = 4 };
#define NO_ROW_WRONG UINT32_MAX

/* A request under way. */
struct op {
    struct request *request; /* NULL: the place is free */
    int connection;          /* that waits for it; NO_CONNECTION: it has gone */
    uint64_t action, steps;  /* which action made it; steps when it was submitted, */
    uint64_t turn, tests;    /* turns, and self-tests that were done, */
    uint64_t roofs;          /* and measurements of the roof */
    size_t arena_used;
    uint32_t again, chained; /* as many more follow at once; it is the n-th that was submitted in one turn */
    double submitted_s;
    bool done, before_failure; /* it is answered; and was before the device failed */
    bool looked_at;            /* client_refusals.c */
    uint8_t stage;             /* watch.c */
    uint32_t wrong;            /* the row whose v is not finite; NO_ROW_WRONG: none */
    bool alone;                /* nothing else was under way on its sequence when it was submitted */
    uint32_t count;
    struct model_sequence *on[OP_SEQUENCES_MOST];
    uint32_t rows[OP_SEQUENCES_MOST], position[OP_SEQUENCES_MOST]; /* as they were given */
    uint64_t claimed[FORKS_MOST];                                  /* ids that it asks for; 0: none */
    struct sim_workload *workload;
};

struct op *clients_ops(void); /* [SIM_CALLS_MOST] */

/* clients_begin: nobody is connected yet. */
void clients_begin(uint64_t seed, uint32_t connections);

/* clients_act: everybody whose time has come does something. clients_next_s: when the next one does. */
void clients_act(void);
double clients_next_s(void);

/* clients_storm: half of those that wait lose patience. */
void clients_storm(void);

/* clients_stop: no more requests but those of clients_ask(). */
void clients_stop(void);

/* clients_take: answers that are there; returns how many. Each is judged as soon as it can be.
 * clients_notice: the engine has put one there; some take it before its turn is over, and ask again. */
uint32_t clients_take(void);
void clients_notice(void);
uint32_t clients_under_way(void);

/* clients_ask: make a request of a kind on an id, outside all connections. A create declares all that the
 * pool has. clients_read: attend the last rows of a sequence at a layer. */
void clients_ask(enum request_kind kind, uint64_t id, bool lease);
void clients_read(struct model_sequence *s, uint32_t layer);

/* client_answers.c: judge a request whose turn it is. client_answers_has_run: whether a request ran that
 * is judged; `expected`: 0 or the status that the model demands; `other`: one that is allowed beside it,
 * or 0. */
void client_answers_judge(struct op *op);
bool client_answers_has_run(const struct op *op, int expected, int other);

/* client_refusals.c: the engine completes a request: was it refused for want of blocks although there were
 * some? */
void client_refusals_look(void);

/* client_idle.c. _note_answer: a request is answered. _note_reaped: the engine removes a sequence, or a
 * lease, since nobody used it. _check: at the end of a turn: nothing that was in use was removed, and
 * nothing stays that was not used for long. */
void client_idle_note_answer(const struct op *op);
void client_idle_note_reaped(uint64_t id, double now_s);
void client_idle_check(void);

/* client_parameters.c */
void client_parameters_begin(void);
void client_parameters_fill(struct request *request, uint64_t *random);
void client_parameters_judge(const struct op *op);

/* client_workloads.c */
enum { SIM_WORKLOADS = 20 /* more than may run */ };
struct sim_workload {
    bool used, running, cancelled;
    uint64_t id, tokens, tokens_done;
    uint32_t sequences;
    uint64_t digest_low, digest_high;
    bool keeps;                            /* its outputs are for its client, who has taken: */
    uint64_t taken, taken_low, taken_high; /* so many, and their digest */
};
struct sim_workload *client_workloads(void); /* [SIM_WORKLOADS] */
void client_workloads_begin(void);
struct sim_workload *client_workloads_make(uint64_t *random, struct request *request);
void client_workloads_judge(struct op *op);

#endif
