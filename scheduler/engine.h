/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - the engine thread: the only one that touches the allocator, the sequences and the backend.
 *
 * The loop thread acquires a request, fills it in and submits it; the engine completes it and notifies the
 * loop, which takes it, reads the answer and releases it. Requests that compute (append, attend, ...)
 * go into steps beside workloads, whole or in slices: what is ready for the same layer when a step is formed
 * shares a pass (step.h). */
#ifndef SCHEDULER_ENGINE_H
#define SCHEDULER_ENGINE_H

#include "config/config.h"
#include "kernels/attention.h"
#include "config/memory_budget.h"
#include "scheduler/requests.h"
#include "scheduler/swap_file.h"

struct engine;
struct journal;
struct kv_events;

struct engine_options {
    const struct config *config;
    struct memory_budget *budget; /* what tensors of requests count for; NULL: nothing */
    uint32_t partials_max;        /* partial states of a plan; 0: as many as serve best */
    uint32_t spare_requests;      /* beside limits.calls */
    bool rings;                   /* clients register memory (doorbell.h) */
    const struct swap_io *swap;   /* the file of pool.file_blocks; NULL: those are 0 */
    /* Called on the engine thread when there is something for engine_take(); coalesces, so drain until
     * NULL. */
    void (*notify)(void *cookie);
    /* Called on the thread that creates the engine, while the pool is being touched. */
    void (*progress)(uint64_t bytes_done, uint64_t bytes, void *cookie);
    void *cookie;
    /* For tests: another backend than attention_open() opens, and another clock than clock_s(). */
    int (*open_backend)(const struct attention_options *options, struct attention **attention,
                        char error[ATTENTION_ERROR_BYTES]);
    double (*clock)(void *cookie);
    struct journal *journal;     /* that records, or checks; borrowed. NULL: none */
    struct kv_events *kv_events; /* what changes in the prefix cache is told there; borrowed. NULL: nowhere */
    const struct step_measures *measures; /* of one that checks; NULL: they are made */
    uint32_t question_work; /* entries that questions look at in a turn; 0: as many as serve best */
};

/* engine_create(options, engine, error): open the backend, take all memory. Returns 0, ATTND_INVALID or
 * ATTND_NO_MEMORY with a sentence in `error`. */
MUST_USE int engine_create(const struct engine_options *options, struct engine **engine,
                           char error[ATTENTION_ERROR_BYTES]);

/* engine_start: begin the thread, which makes turn after turn. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int engine_start(struct engine *engine);

/* engine_turn(engine, now_s): retire the steps that are done, take the requests that are there, form and
 * submit a step. For the engine's own thread, or, if it was not started, for whoever simulates it. Returns
 * whether anything was done. */
bool engine_turn(struct engine *engine, double now_s);

/* engine_stream_turn: likewise, while streamed requests follow each other: the latest step is left as it is, so that they continue
 * it. engine_stream_room: how many of them can be submitted to the backend now. */
bool engine_stream_turn(struct engine *engine, double now_s);
uint32_t engine_stream_room(struct engine *engine);

/* engine_in_flight: whether a step is; then turns follow each other. engine_idle_s: otherwise, seconds
 * until a turn has something to do if no request comes; negative: never. The engine's thread. */
bool engine_in_flight(const struct engine *engine);
double engine_idle_s(const struct engine *engine);

/* engine_keep_all(engine, keep): while no client is served, none is to blame for not using its sequences: none is removed
 * for that. Any thread. */
void engine_keep_all(struct engine *engine, bool keep);

/* engine_destroy: finish what has been submitted, end the thread. Requests not taken are dropped. NULL is
 * fine. */
void engine_destroy(struct engine *engine);

/* Loop thread. engine_acquire: an empty request, but for its arena and cookie; NULL when all are under way.
 * engine_submit: hand it over. engine_take: a completed request, NULL when there is none. engine_release:
 * give a request back. */
struct request *engine_acquire(struct engine *engine);
void engine_submit(struct engine *engine, struct request *request);
struct request *engine_take(struct engine *engine);
void engine_release(struct engine *engine, struct request *request);

/* engine_trim_requests: some memory of requests that nobody has asked for lately goes back to the system; now and then. */
void engine_trim_requests(struct engine *engine);

/* engine_staging: the memory for tensors, of limits.staging_bytes. */
struct staging *engine_staging(const struct engine *engine);

/* engine_reuse: make a completed request an empty one of that kind, about `id`, with the same arena. */
void engine_reuse(struct request *request, enum request_kind kind, uint64_t id);

/* See attention_look_at() and attention_visit(); the engine's thread. */
const char *engine_look_at(const struct engine *engine, const void *address);
const char *engine_look_at_stream(const struct engine *engine, void *stream);
void engine_visit(const struct engine *engine, bool begins);

/* Any thread. */
const struct attention_info *engine_backend(const struct engine *engine);
struct roof_report engine_roof(const struct engine *engine);
double engine_now_s(const struct engine *engine);       /* on its clock */
double engine_grouping_us(const struct engine *engine); /* planner.h */
bool engine_has_sinks(const struct engine *engine);     /* configured, or given to REQUEST_PARAMETERS */
bool engine_has_alibi(const struct engine *engine);

/* engine_ids_reach: the id behind the next REQUEST_IDS_AHEAD that it may give out, as of its latest turn: a limit that REQUEST_IDS
 * has set has to go there. 0: none is set. */
uint64_t engine_ids_reach(const struct engine *engine);

/* Loop thread, while no request is under way: the model's constants, and their model_constants_digest(). */
const struct model_constants *engine_constants(const struct engine *engine);
uint64_t engine_constants_digest(const struct engine *engine);

/* engine_failure: why the backend has stopped working for good, or NULL. From then on every request that
 * computes fails with ATTND_DEVICE. */
const char *engine_failure(const struct engine *engine);

/* engine_rings_ended: how many clients with registered memory the engine has ended. Any thread. */
uint64_t engine_rings_ended(const struct engine *engine);

/* engine_device_call: see attention_call(). Any thread. */
uint64_t engine_device_call(const struct engine *engine);

/* Loop thread, when a driver does not return. engine_give_up: what engine_failure() says from now on, a
 * string that stays; the engine must not be destroyed any more. engine_request: request `i` of limits.calls
 * and the spare ones, wherever it is; NULL: there are fewer. */
void engine_give_up(struct engine *engine, const char *why);
struct request *engine_request(const struct engine *engine, uint32_t i);

/* engine_stall_s: seconds since the engine last showed that it is alive, while it has work; 0 without
 * work. */
double engine_stall_s(const struct engine *engine);

#endif
