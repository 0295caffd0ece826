/* clients.h - simulated connections, their requests, and the judgement of every answer.
 *
 *   client_requests.c      what a client asks, and what it expects to stand then
 *   client_answers.c    whether an answer is one that the contract allows, by the token model
 *   client_workloads.c  workloads: their digest is known before they run
 *
 * Requests on one sequence run in the order of their submission. So a request is judged once it is answered
 * and every earlier request on its sequences is judged, and the model then holds what stood when it ran. */
#ifndef TESTS_SIMULATION_CLIENTS_H
#define TESTS_SIMULATION_CLIENTS_H

#include "tests/simulation/simulation.h"
#include "tests/simulation/token_model.h"

enum { OP_SEQUENCES_MOST = 4, NO_CONNECTION = -1, FORKS_MOST = 4 };

/* A request under way. */
struct op {
    struct request *request; /* NULL: the place is free */
    int connection;          /* that waits for it; NO_CONNECTION: it has gone */
    uint64_t action, steps;  /* which action made it; steps when it was submitted, */
    uint64_t turn, tests;    /* turns, and self-tests that were done */
    size_t arena_used;
    uint32_t again, chained; /* as many more follow at once; it is the n-th that was submitted in one turn */
    double submitted_s;
    bool done;
    bool alone; /* nothing else was under way on its sequence when it was submitted */
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

/* client_answers.c: judge a request whose turn it is. */
void client_answers_judge(struct op *op);

/* client_workloads.c */
enum { SIM_WORKLOADS = 12 };
struct sim_workload {
    bool used, running, cancelled;
    uint64_t id, tokens, tokens_done;
    uint32_t sequences;
    uint64_t digest_low, digest_high;
};
struct sim_workload *client_workloads(void); /* [SIM_WORKLOADS] */
void client_workloads_begin(void);
struct sim_workload *client_workloads_make(uint64_t *random, struct request *request);
void client_workloads_judge(struct op *op);

#endif
