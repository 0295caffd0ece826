/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the engine thread, and what a turn of it does.
 *
 *   loop thread                       engine thread
 *   acquire -> submit === ring ===>   sequence_ops.c, inspect.c       at once
 *                                     client_queue.c  \
 *                                     workload_run.c   > step.c -> planner -> backend
 *   take   <- notify  <=== ring ===   completed when their step retires
 *
 * Calls of clients with registered memory do not come by way of the loop: doorbell.c reads them where the clients put them.
 *
 * A turn retires the steps that the backend has done, takes requests from the ring, at most as many as were
 * there when it began and only as long as its budget lasts (budget.h), forms a step of what clients and
 * workloads have to compute, and submits it. While steps are in flight turns follow each other, so a question
 * never waits for the device. Requests on one sequence keep their order; only a delete ends the queued
 * requests on its sequence instead. */
#include "scheduler/engine.h"

#include "config/clock.h"
#include "config/log.h"
#include "config/mapping.h"
#include "config/model_constants.h"
#include "config/numbers.h"
#include "config/version.h"
#include "scheduler/backend_ops.h"
#include "scheduler/client_queue.h"
#include "scheduler/doorbell.h"
#include "scheduler/history.h"
#include "scheduler/inspect.h"
#include "scheduler/journal.h"
#include "scheduler/journal_request.h"
#include "scheduler/kv_events.h"
#include "scheduler/policy.h"
#include "scheduler/reservation.h"
#include "scheduler/ring.h"
#include "scheduler/sequence_ops.h"
#include "scheduler/shares.h"
#include "scheduler/staging.h"
#include "scheduler/swap_cache.h"
#include "scheduler/swapping.h"
#include "scheduler/workload_run.h"

#include <assert.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    ARENA_PAGE = 4096,
    HOT_REQUESTS = 16,     /* free ones that are used next, whose arenas stay as they are */
    TRIMMED_REQUESTS = 32, /* at a time: half a millisecond */
    ALIGNMENT = 64,
    PARTIALS_LEAST =
        16384, /* of a plan; six a query let it read at most half more than the best cut (planner.c) */
    PARTIALS_PER_ROW = 6,
    BUDGETS = 4, /* each a fourth of scheduler.step_us_shared */
    /* Entries and blocks that questions look at in a turn, some 40 us; behind a step of more than 2 ms one for
     * each microsecond of it, a fiftieth of its time. */
    QUESTION_WORK = 2048,
    CPU_STEP_US = 20000, /* scheduler.step_us_max and step_us_shared */
    CPU_SHARED_US = 2000,
    DEVICE_STEP_US = 4000,
    DEVICE_SHARED_US = 500
};

static const double LOOK_S = 1, /* between two looks for sequences that nobody uses, */
    DEVICE_LOOK_S = 0.5;        /* and for a device that has nothing to do, which others can lose for us */

struct engine {
    struct engine_options o;
    struct engine_state state;

    struct doorbell *doorbell; /* NULL: no client has registered memory */
    uint32_t loop_requests;    /* of state.requests; the others are the doorbell's */
    struct request *requests;  /* [loop_requests] */
    uint8_t *arenas;
    void *staging_memory; /* limits.staging_bytes */
    struct staging *staging;
    struct request **free_requests; /* the loop's stack */
    uint32_t free_count;
    bool *touched; /* [loop_requests] more of its arena than the first page; the loop's */
    struct ring to_engine, to_loop;
    int wake; /* eventfd: something is in to_engine */
    pthread_t thread;
    bool started;
    _Atomic bool stop, keep_all;
    _Atomic uint64_t busy_since_us;      /* 0: waiting for requests */
    double submitted_s[STEPS_IN_FLIGHT]; /* of a step, by its slot */
    double latest_step_us;               /* that the latest one to retire took */
    bool holds;                          /* the latest step is not retired as long as it may be continued */
    bool awaits;                         /* the oldest step in flight, and */
    double awaits_since_s;               /* since when: turns that found it not done */
    double device_seen_s;                /* when it was last looked at, having nothing to do */
    _Atomic(const char *) failure;       /* of the backend; NULL: none */
    _Atomic uint64_t ids_reach;
    bool failure_noted;
};

/* Whether a request may change what the engine shows. What a step does is counted when it retires. */
static bool changes_what_is_shown(const struct request_traits *kind)
{
    return kind->when != REQUEST_STEPPED &&
           (kind->changes == REQUEST_OF_SEQUENCES || kind->changes == REQUEST_OF_POOL);
}

static void complete(struct request *request, void *cookie)
{
    struct engine *e = cookie;
    const struct request_traits *kind = &request_kinds[request->kind];
    const char *failure = step_failure(e->state.steps);
    if (request->status == 0 && changes_what_is_shown(kind))
        history_touch(&e->state);
    if (failure && kind->computes) { /* whatever else it seems to be */
        request_fail(request, ATTND_DEVICE, "%s; the daemon ends", failure);
        atomic_store(&e->failure, failure);
    }
    if (request->status == ATTND_NO_BLOCKS) {
        e->state.refusals++;
        history_touch(&e->state);
    }
    journal_answer(e->state.journal, &e->state, request);
    if (request->rings) {
        doorbell_complete(e->doorbell, request);
        return;
    }
    bool put = ring_put(&e->to_loop, request); /* it has room for every request */
    assert(put);
    (void)put;
    e->o.notify(e->o.cookie);
}

static struct block_tables *tables_of(const struct engine *e)
{
    return step_tables(e->state.steps);
}

/* In debug and sanitizer builds every operation is followed by a walk over all invariants. */
static void check_invariants(struct engine *e)
{
#if ATTND_CHECK >= 3
    const char *fault = inspect_fault(&e->state);
    if (fault) {
        log_line(LOG_ERROR, "broken invariant: %s", fault);
        abort();
    }
#else
    (void)e;
#endif
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* Carry out one request that needs the backend to itself, or a part of it, if no step is in flight. Between two
 * parts there is a step. */
static bool run_next_alone(struct engine *e)
{
    struct request *request = e->state.alone.first;
    if (!request || steps_in_flight(e->state.steps))
        return false;
    bool runs = !e->state.failed; /* else completing it says that it has */
    if (!runs || request_kinds[request->kind].run(&e->state, request) != REQUEST_WAITS)
        complete(request_list_take(&e->state.alone), e);
    return true;
}

static void handle(struct engine *e, struct request *request)
{
    const struct request_traits *kind = &request_kinds[request->kind];
    e->state.taken += kind->when != REQUEST_LOOKING;
    switch (kind->when) {
    case REQUEST_QUEUED:
    case REQUEST_STEPPED:
        client_queue_add(e->state.clients, request);
        break;
    case REQUEST_ALONE:
        request_list_append(&e->state.alone, request);
        break;
    case REQUEST_AT_ONCE:
    case REQUEST_LOOKING:
        if (kind->run(&e->state, request) != REQUEST_WAITS)
            complete(request, e);
        break;
    }
}

/* Handle those that were recorded to be taken now, whoever they came from. */
static void take_recorded(struct engine *e)
{
    while (journal_next_is(e->state.journal, JOURNAL_REQUEST)) {
        struct request *request = engine_acquire(e);
        if (!request || !journal_next_request(e->state.journal, request))
            break;
        journal_take(e->state.journal, request);
        handle(e, request);
        check_invariants(e);
    }
}

/* Handle the requests that are in the ring now, as many as there is time for; the others and those that come
 * meanwhile have their turn later, so that steps are formed however many come and however long they take. Returns whether there were
 * any. */
static bool take_requests(struct engine *e)
{
    uint32_t n = ring_count(&e->to_engine);
    budget_begin(&e->state.taking);
    for (uint32_t i = 0; i < n && budget_allows(&e->state.taking); i++) {
        struct request *request = ring_take(&e->to_engine);
        journal_take(e->state.journal, request);
        handle(e, request);
        check_invariants(e);
    }
    return n > 0;
}

/* Take calls of clients with registered memory, and then those of the loop. Returns whether there was anything to do. */
static bool take_calls(struct engine *e)
{
    if (journal_checks(e->state.journal))
        take_recorded(e);
    bool any = e->doorbell && doorbell_turn(e->doorbell);
    any |= take_requests(e);
    if (journal_dropped(e->state.journal, e->doorbell && doorbell_drops(e->doorbell)))
        client_queue_drop_cancelled(e->state.clients);
    return any;
}

/* ---- a turn -------------------------------------------------------------------------------------- */

/* Retire the steps that are done. */
static bool retire_steps(struct engine *e)
{
    struct step *step;
    bool worked = false;
    while ((step = steps_poll(e->state.steps, e->holds))) {
        journal_done(e->state.journal, step);
        client_queue_look(e->state.clients, step);
        step_retire(step);
        history_stepped(&e->state, step, e->submitted_s[step_slot(step)]);
        e->latest_step_us = step_cost(step).seconds * 1e6;
        shares_retire(e->state.shares, step_slot(step), e->latest_step_us);
        client_queue_retire(e->state.clients, step);
        workload_run_retire(e->state.workloads, step);
        journal_retired(e->state.journal, &e->state, step);
        check_invariants(e);
        worked = true;
    }
    return worked;
}

/* A device that takes too long for the oldest step in flight has failed. Time counts from the first
 * turn that finds this step not done, since its submission may wait itself. What a client's stream takes is its affair. */
static void watch_steps(struct engine *e, bool retired)
{
    uint32_t limit_s = e->o.config->step_timeout_s;
    char why[ATTENTION_ERROR_BYTES];
    bool in_flight = steps_in_flight(e->state.steps) > 0 && !steps_await_client(e->state.steps);
    if (!in_flight || retired || !e->awaits) {
        e->awaits = in_flight;
        e->awaits_since_s = e->state.now_s;
    } else if (e->state.now_s - e->awaits_since_s > limit_s) {
        snprintf(why, sizeof why, "the device hangs: a step is not finished after %u s", limit_s);
        step_fail(e->state.steps, why);
    }
}

/* Do a part of a self-test that somebody waits for. */
static bool test_backend(struct engine *e)
{
    struct request *request = e->state.self_tests.first ? backend_ops_test(&e->state) : NULL;
    if (request)
        complete(request, e);
    return request || e->state.self_tests.first;
}

/* Answer questions that are answered in parts, as far as there is work for in a turn. */
static bool answer_questions(struct engine *e)
{
    uint32_t work =
        e->o.question_work ? e->o.question_work : larger(QUESTION_WORK, (uint32_t)e->latest_step_us);
    bool any = e->state.questions.first;
    while (e->state.questions.first && work > 0) {
        struct request *request = inspect_part(&e->state, &work);
        if (request)
            complete(request, e);
    }
    return any;
}

/* Tell one of those who listen what has happened. */
static bool tell_news(struct engine *e)
{
    struct request *request = e->state.listeners.first ? history_news(&e->state) : NULL;
    if (request)
        complete(request, e);
    return request;
}

/* Of the step being formed. */
struct bulk {
    double bulk_us;
    uint32_t owners; /* that have some */
    bool beside;     /* workloads have all that they can do in it, or had room for */
};

/* How much bulk work a client's owner who is at `at` may add, the next one's being at `next_at` and the
 * workloads' at `round_at`. */
static double client_slice_us(const struct bulk *b, double at, double next_at, double round_at)
{
    double us = policy_slice_us(b->bulk_us, b->owners, fmin(next_at, round_at) - at);
    return b->beside ? fmin(us, policy_beside_us(b->bulk_us, round_at - at)) : us;
}

/* Add so much bulk work to a step that has small requests, and takes at most step_us_max, by turns of the
 * owners: of clients, and of the round of all workloads. The first slice is added however long it takes. */
static void add_bulk(struct engine *e, struct step *step, double bulk_us)
{
    double end_us = fmin(step_us(step) + bulk_us, e->state.step_us_max);
    struct client_queue *clients = e->state.clients;
    struct workload_run *workloads = e->state.workloads;
    uint32_t running = workload_run_owners(workloads);
    struct bulk b = {.bulk_us = bulk_us, .owners = client_queue_owners(clients) + running};
    for (bool any = true;;) {
        double next_at, at = client_queue_at(clients, &next_at), round_at = workload_run_at(workloads),
                        room_us = end_us - step_us(step);
        bool round = workload_run_may_add(workloads) && round_at <= at;
        if ((!round && isinf(at)) || (!any && room_us < policy_slice_least_us(bulk_us)))
            return;
        if (round) {
            double slice_us = running * policy_slice_us(bulk_us, b.owners, at - round_at);
            b.beside = workload_run_add(workloads, step, fmin(slice_us, room_us));
            any &= !b.beside;
            continue;
        }
        double slice_us = client_slice_us(&b, at, next_at, round_at);
        if (slice_us <= 0)
            return;
        any &= !client_queue_add_bulk(clients, fmin(slice_us, room_us), room_us, any);
    }
}

/* A step by which it is found out why outputs are NaN, before anything else is computed; false: that is known. */
static bool read_back(struct engine *e)
{
    struct step *step = steps_in_flight(e->state.steps) ? NULL : step_begin(e->state.steps);
    if (step && !client_queue_read_back(e->state.clients, step))
        return false;
    if (step) {
        e->submitted_s[step_slot(step)] = e->state.now_s;
        step_submit(step);
    }
    return true;
}

/* Form a step and submit it; false when there is nothing to compute, or no place for a step. There is less
 * bulk work in it while owners within their share make small requests. */
static bool form_step(struct engine *e)
{
    struct step *step;
    if (client_queue_is_unsound(e->state.clients) && read_back(e))
        return true;
    if ((e->state.alone.first && steps_in_flight(e->state.steps)) || !(step = step_begin(e->state.steps)))
        return false;
    bool attempts = !client_queue_is_empty(e->state.clients) || workload_run_owners(e->state.workloads);
    if (attempts && e->state.swap_cache) /* each attempt may have the file read something */
        journal_note_turn(e->state.journal);
    else if (attempts)
        journal_note_attempt(e->state.journal);
    client_queue_begin(e->state.clients, step);
    workload_run_begin(e->state.workloads, step);
    add_bulk(e, step,
             client_queue_is_interactive(e->state.clients) ? e->state.step_us_shared : e->state.step_us_max);
    client_queue_end(e->state.clients);
    workload_run_end(e->state.workloads);
    shares_end(e->state.shares);
    check_invariants(e);
    if (step_is_empty(step))
        return step_skip(step);
    e->submitted_s[step_slot(step)] = e->state.now_s; /* of the turn: no look at the clock more */
    step_submit(step);
    journal_step(e->state.journal, &e->state, step);
    return true;
}

/* Once the backend has failed and nothing is in flight any more, end what runs and tell the loop. */
static void note_failure(struct engine *e)
{
    const char *failure = step_failure(e->state.steps);
    e->state.failed = failure != NULL;
    if (!failure || e->failure_noted || steps_in_flight(e->state.steps))
        return;
    e->failure_noted = true;
    journal_end(e->state.journal, "the device has failed");
    log_event(LOG_ERROR, "backend_failed", NULL, "the backend has failed: %s", failure);
    workload_run_fail(e->state.workloads);
    atomic_store(&e->failure, failure);
    e->o.notify(e->o.cookie);
}

/* Whether the device can be lost by what other processes do with it. */
static bool device_is_shared(const struct engine *e)
{
    return step_backend(e->state.steps)->shares_context || doorbell_counts(e->doorbell).gpu_bytes;
}

static void look_at_device(struct engine *e)
{
    if (e->state.now_s - e->device_seen_s < DEVICE_LOOK_S || steps_in_flight(e->state.steps))
        return;
    e->device_seen_s = e->state.now_s;
    if (device_is_shared(e))
        attention_look(step_attention(e->state.steps));
}

bool engine_turn(struct engine *e, double now_s)
{
    e->state.keeps_all = atomic_load(&e->keep_all);
    journal_turn(e->state.journal, &now_s, &e->state.keeps_all, &e->state.stopping);
    e->state.now_s = now_s;
    uint64_t taken = e->state.taken;
    block_log_at(block_tables_log(tables_of(e)), now_s);
    workload_run_begin_turn(e->state.workloads);
    bool worked = retire_steps(e);
    worked |= swap_cache_turn(e->state.swap_cache);
    watch_steps(e, worked);
    look_at_device(e);
    note_failure(e);
    bool stirs = take_calls(e); /* also what the journal leaves out, by which nothing is decided */
    worked |= e->state.taken != taken;
    worked |= run_next_alone(e);
    worked |= test_backend(e);
    worked |= workload_run_tidy(e->state.workloads);
    sequence_ops_reap(&e->state);
    bool formed = form_step(e);
    worked |= formed;
    if (formed || (!worked && steps_in_flight(e->state.steps) == 0))
        worked |= workload_run_verify(e->state.workloads, !worked);
    bool computes =
        e->state.alone.first || steps_in_flight(e->state.steps) || e->state.failed || e->state.stopping;
    if (computes || !(worked || stirs))
        worked |= step_roof_turn(e->state.steps, computes, now_s);
    workload_run_report(e->state.workloads);
    if (worked)
        journal_note_turn(e->state.journal);
    worked |= answer_questions(e); /* and news: while the step computes */
    worked |= tell_news(e);
    worked |= kv_events_turn(e->state.kv_events, tables_of(e));
    if (sequences_are_limited(e->state.sequences))
        atomic_store(&e->ids_reach, sequences_reach(e->state.sequences, REQUEST_IDS_AHEAD));
    return worked || stirs;
}

/* The earlier of two times to wait, of which negative ones mean for ever. */
static double sooner(double a, double b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

double engine_idle_s(const struct engine *e)
{
    double idle = sooner(workload_run_idle_s(e->state.workloads), client_queue_idle_s(e->state.clients));
    idle = sooner(idle, step_roof_idle_s(e->state.steps, e->state.now_s));
    if (e->state.listeners.first)
        idle = sooner(idle, history_idle_s(&e->state, e->state.now_s));
    idle = sooner(idle, kv_events_idle_s(e->state.kv_events, tables_of(e)));
    if (device_is_shared(e) && !e->state.failed)
        idle = sooner(idle, DEVICE_LOOK_S);
    return block_tables_counts(tables_of(e)).rows ? sooner(idle, LOOK_S) : idle;
}

bool engine_stream_turn(struct engine *e, double now_s)
{
    e->holds = true;
    bool worked = engine_turn(e, now_s);
    e->holds = false;
    return worked;
}

uint32_t engine_stream_room(struct engine *e)
{
    return step_stream_room(e->state.steps);
}

bool engine_in_flight(const struct engine *e)
{
    return steps_in_flight(e->state.steps) > 0;
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* Until a request comes, or there is something to do without one. */
static void wait_for_work(struct engine *e)
{
    double idle = engine_idle_s(e);
    struct timespec wait = {(time_t)idle, (long)((idle - floor(idle)) * 1e9)};
    struct pollfd wake = {.fd = e->wake, .events = POLLIN};
    uint64_t woken;
    bool wakes =
        e->doorbell ? doorbell_await(e->doorbell, idle) : ppoll(&wake, 1, idle < 0 ? NULL : &wait, NULL) > 0;
    if (wakes && read(e->wake, &woken, sizeof woken) < 0)
        log_line(LOG_ERROR, "the engine's wake-up failed");
}

/* Where calls of clients with registered memory follow each other, look for the next one for a while; whether there is something to do. */
static bool spin(struct engine *e)
{
    if (!e->doorbell || engine_idle_s(e) == 0)
        return false;
    double until = doorbell_spin_until_s(e->doorbell);
    while (e->o.clock(e->o.cookie) < until) {
        if (doorbell_rings(e->doorbell) || ring_count(&e->to_engine) || atomic_load(&e->stop))
            return true;
    }
    return false;
}

static void *engine_main(void *cookie)
{
    struct engine *e = cookie;
    for (;;) {
        double now = e->o.clock(e->o.cookie);
        atomic_store(&e->busy_since_us, (uint64_t)(now * 1e6));
        e->state.stopping = atomic_load(&e->stop);
        bool worked = engine_turn(e, now);
        if (worked || steps_in_flight(e->state.steps))
            continue;
        if (e->state.stopping && !client_queue_awaits_file(e->state.clients))
            return NULL;
        if (spin(e))
            continue;
        atomic_store(&e->busy_since_us, 0);
        wait_for_work(e);
    }
}

static void wake_engine(struct engine *e)
{
    uint64_t one = 1;
    if (e->started && write(e->wake, &one, sizeof one) < 0)
        log_line(LOG_ERROR, "the engine cannot be woken");
}

static void wake_for_file(void *cookie)
{
    wake_engine(cookie);
}

/* ---- the loop's side ----------------------------------------------------------------------------- */

struct request *engine_acquire(struct engine *e)
{
    if (e->free_count == 0)
        return NULL;
    struct request *request = e->free_requests[--e->free_count];
    request_reset(request, e->arenas + (size_t)(request - e->requests) * REQUEST_ARENA_BYTES,
                  REQUEST_ARENA_BYTES);
    return request;
}

void engine_reuse(struct request *request, enum request_kind kind, uint64_t id)
{
    assert(request->tensor_count == 0); /* the arena may be one of them */
    request_reset(request, request->arena, request->arena_bytes);
    request->kind = kind;
    request->id = id;
}

void engine_submit(struct engine *e, struct request *request)
{
    request->submitted_s = e->o.clock(e->o.cookie);
    request->digest = e->o.journal ? journal_digest(request, &e->o.config->geometry) : 0;
    bool put = ring_put(&e->to_engine, request); /* it has room for every request */
    assert(put);
    (void)put;
    wake_engine(e);
}

struct request *engine_take(struct engine *e)
{
    return ring_take(&e->to_loop);
}

void engine_trim_requests(struct engine *e)
{
    uint32_t trimmed = 0;
    for (uint32_t i = 0; i + HOT_REQUESTS < e->free_count && trimmed < TRIMMED_REQUESTS; i++) {
        size_t n = (size_t)(e->free_requests[i] - e->requests);
        if (!e->touched[n])
            continue;
        (void)madvise(e->arenas + n * REQUEST_ARENA_BYTES + ARENA_PAGE, REQUEST_ARENA_KEPT - ARENA_PAGE,
                      MADV_DONTNEED);
        e->touched[n] = false;
        trimmed++;
    }
}

void engine_release(struct engine *e, struct request *request)
{
    uint8_t *arena = e->arenas + (size_t)(request - e->requests) * REQUEST_ARENA_BYTES;
    if (request->arena == arena)
        request_trim_arena(arena, request->arena_used);
    e->touched[request - e->requests] |= request->arena_used > ARENA_PAGE;
    request_reset(request, NULL, 0);
    e->free_requests[e->free_count++] = request;
}

struct staging *engine_staging(const struct engine *e)
{
    return e->staging;
}

const struct attention_info *engine_backend(const struct engine *e)
{
    return step_backend(e->state.steps);
}

const char *engine_look_at(const struct engine *e, const void *address)
{
    return attention_look_at(step_attention(e->state.steps), address);
}

const char *engine_look_at_stream(const struct engine *e, void *stream)
{
    return attention_look_at_stream(step_attention(e->state.steps), stream);
}

void engine_visit(const struct engine *e, bool begins)
{
    attention_visit(step_attention(e->state.steps), begins);
}

struct roof_report engine_roof(const struct engine *e)
{
    return step_roof(e->state.steps);
}

double engine_now_s(const struct engine *e)
{
    return e->o.clock(e->o.cookie);
}

double engine_grouping_us(const struct engine *e)
{
    return step_grouping_us(e->state.steps);
}

uint64_t engine_ids_reach(const struct engine *e)
{
    return atomic_load(&e->ids_reach);
}

const struct model_constants *engine_constants(const struct engine *e)
{
    return &e->state.constants;
}

uint64_t engine_constants_digest(const struct engine *e)
{
    return e->state.constants_digest;
}

bool engine_has_sinks(const struct engine *e)
{
    return atomic_load(&e->state.has_sinks);
}

bool engine_has_alibi(const struct engine *e)
{
    return atomic_load(&e->state.has_alibi);
}

const char *engine_failure(const struct engine *e)
{
    return atomic_load(&e->failure);
}

uint64_t engine_rings_ended(const struct engine *e)
{
    return e->doorbell ? doorbell_ended(e->doorbell) : 0;
}

uint64_t engine_device_call(const struct engine *e)
{
    return step_call(e->state.steps);
}

void engine_give_up(struct engine *e, const char *why)
{
    const char *none = NULL;
    atomic_compare_exchange_strong(&e->failure, &none, why);
}

struct request *engine_request(const struct engine *e, uint32_t i)
{
    return i < e->loop_requests ? &e->requests[i] : NULL;
}

double engine_stall_s(const struct engine *e)
{
    uint64_t since = atomic_load(&e->busy_since_us);
    return since ? e->o.clock(e->o.cookie) - (double)since * 1e-6 : 0;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

static double real_clock(void *cookie)
{
    (void)cookie;
    return clock_s();
}

/* Calls of clients with registered memory that are under way; 0: there are no such clients. */
static uint32_t doorbell_requests(const struct engine *e)
{
    return e->o.rings ? e->o.config->limits.calls : 0;
}

static int make_staging(struct engine *e)
{
    const struct config_limits *limits = &e->o.config->limits;
    uint32_t blocks = (limits->calls + doorbell_requests(e)) * REQUEST_TENSORS_MAX + 2 * limits->connections;
    e->staging_memory = step_host_memory(e->state.steps, limits->staging_bytes);
    const struct staging_options options = {.memory = e->staging_memory,
                                            .bytes = limits->staging_bytes,
                                            .small_bytes = CONFIG_SMALL_BODY_BYTES,
                                            .blocks_max = blocks,
                                            .budget =
                                                step_backend(e->state.steps)->on_device ? NULL : e->o.budget};
    return e->staging_memory ? staging_create(&options, &e->staging) : ATTND_NO_MEMORY;
}

static int make_requests(struct engine *e)
{
    uint32_t n = e->loop_requests;
    e->requests = calloc(n, sizeof *e->requests);
    e->free_requests = calloc(n, sizeof *e->free_requests);
    e->touched = calloc(n, sizeof *e->touched);
    e->arenas = mapping_create((size_t)n * REQUEST_ARENA_BYTES, 0);
    if (!e->requests || !e->free_requests || !e->touched || !e->arenas)
        return ATTND_NO_MEMORY;
    for (uint32_t i = n; i-- > 0;) {
        e->requests[i].staging = e->staging;
        e->free_requests[e->free_count++] = &e->requests[i];
    }
    return ring_init(&e->to_engine, n) || ring_init(&e->to_loop, n) ? ATTND_NO_MEMORY : 0;
}

/* No block is leased. */
static int make_lease_table(struct engine *e)
{
    uint64_t blocks = e->o.config->pool_blocks;
    e->state.lease_of = malloc(blocks * sizeof *e->state.lease_of);
    for (uint64_t i = 0; e->state.lease_of && i < blocks; i++)
        e->state.lease_of[i] = NO_ROW;
    return e->state.lease_of ? 0 : ATTND_NO_MEMORY;
}

/* Who has a frame of host memory, where there is a file for the others. One that checks a journal needs none. */
static int make_swap_cache(struct engine *e)
{
    const struct config *c = e->o.config;
    struct swap_io io;
    const struct swap_cache_options options = {.blocks = (uint32_t)c->file_blocks,
                                               .frames = (uint32_t)c->host_blocks,
                                               .tables = tables_of(e),
                                               .io = &io,
                                               .host = &step_backend(e->state.steps)->host,
                                               .wake = wake_for_file,
                                               .cookie = e};
    assert(!c->file_blocks == !e->o.swap || journal_checks(e->o.journal));
    if (!c->file_blocks)
        return 0;
    int rc = journal_swap_io(e->o.journal, e->o.swap, options.frames, &io);
    return rc == 0 ? swap_cache_create(&options, &e->state.swap_cache) : rc;
}

static int make_doorbell(struct engine *e)
{
    const struct doorbell_options options = {.state = &e->state,
                                             .staging = e->staging,
                                             .budget = e->o.budget,
                                             .requests = doorbell_requests(e),
                                             .wake = e->wake,
                                             .complete = complete,
                                             .notify = e->o.notify,
                                             .clock = e->o.clock,
                                             .cookie = e,
                                             .clock_cookie = e->o.cookie};
    int rc = e->o.rings ? doorbell_create(&options, &e->doorbell) : 0;
    e->state.doorbell = e->doorbell;
    return rc;
}

static int make_parts(struct engine *e)
{
    const struct client_queue_options requests = {.state = &e->state, .complete = complete, .cookie = e};
    const struct workload_run_options workloads = {.state = &e->state, .complete = complete, .cookie = e};
    const struct config *c = e->o.config;
    e->loop_requests = c->limits.calls + e->o.spare_requests;
    e->state.requests = e->loop_requests + doorbell_requests(e);
    int rc = sequences_create(c->limits.sequences, c->node, &e->state.sequences);
    if (rc == 0)
        rc = prompts_create(c->limits.sequences, c->pool_blocks * c->geometry.block_size, &e->state.prompts);
    if (rc == 0)
        rc = reservation_create(c, &e->state.reservation);
    if (rc == 0)
        rc = swapping_create(&e->state, &e->state.swapping);
    if (rc == 0)
        rc = make_swap_cache(e);
    if (rc == 0)
        rc = shares_create(e->state.requests + WORKLOADS_MAX, STEPS_IN_FLIGHT, &e->state.shares);
    if (rc == 0)
        rc = client_queue_create(&requests, &e->state.clients);
    if (rc == 0)
        rc = workload_run_create(&workloads, &e->state.workloads);
    if (rc == 0)
        rc = make_staging(e);
    if (rc == 0)
        rc = make_requests(e);
    return rc == 0 ? make_doorbell(e) : rc;
}

/* The bounds of a step, as the configuration or else the backend has them. */
static void set_bounds(struct engine *e)
{
    const struct config *c = e->o.config;
    bool on_device = step_backend(e->state.steps)->on_device;
    e->state.step_us_max = c->step_us_max ? c->step_us_max : on_device ? DEVICE_STEP_US : CPU_STEP_US;
    e->state.step_us_shared = c->step_us_shared ? c->step_us_shared
                              : on_device       ? DEVICE_SHARED_US
                                                : CPU_SHARED_US;
    e->state.step_us_shared = fmin(e->state.step_us_shared, e->state.step_us_max);
    e->state.taking = e->state.waiting =
        (struct budget){.clock = e->o.clock, .cookie = e->o.cookie, .us = e->state.step_us_shared / BUDGETS};
    e->state.waiting.journal = e->o.journal; /* of taking the journal has each request that was taken */
}

static uint32_t partials_of(const struct engine_options *o)
{
    uint32_t of_rows = PARTIALS_PER_ROW * o->config->step_rows_max;
    return o->partials_max ? o->partials_max : of_rows > PARTIALS_LEAST ? of_rows : PARTIALS_LEAST;
}

/* Record what this engine is like. */
static int begin_journal(struct engine *e)
{
    const struct attention_info *info = step_backend(e->state.steps);
    struct step_measures measures = step_measures(e->state.steps);
    char *settings = NULL;
    size_t n = 0;
    FILE *text = open_memstream(&settings, &n);
    if (!text)
        return ATTND_NO_MEMORY;
    config_print(e->o.config, text);
    bool whole = fclose(text) == 0;
    const struct journal_begin begin = {.tasks = info->tasks,
                                        .paged_v1_tokens = info->paged_v1_tokens,
                                        .spare_requests = e->state.requests - e->o.config->limits.calls,
                                        .on_device = info->on_device,
                                        .tile_caps = info->tile_caps,
                                        .cost = measures.cost,
                                        .costs = measures.costs,
                                        .pool_blocks = e->o.config->pool_blocks};
    if (whole)
        journal_begin(e->o.journal, &begin, settings, ATTND_VERSION);
    free(settings);
    return whole ? 0 : ATTND_NO_MEMORY;
}

int engine_create(const struct engine_options *options, struct engine **result,
                  char error[ATTENTION_ERROR_BYTES])
{
    struct engine *e = aligned_alloc(ALIGNMENT, (sizeof *e + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    const struct steps_options steps = {
        .config = options->config,
        .constants = &e->state.constants,
        .partials_max = partials_of(options),
        .open_backend = options->open_backend ? options->open_backend : attention_open,
        .progress = options->progress,
        .cookie = options->cookie,
        .measures = options->measures,
        .now_s = options->clock ? options->clock(options->cookie) : clock_s()};
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!e)
        return ATTND_NO_MEMORY;
    memset(e, 0, sizeof *e);
    e->o = *options;
    e->o.clock = options->clock ? options->clock : real_clock;
    e->state.config = options->config;
    e->state.journal = options->journal;
    e->state.kv_events = options->kv_events;
    e->wake = eventfd(0, EFD_CLOEXEC);
    int rc = backend_ops_replace_constants(&e->state, &options->config->constants);
    if (rc == 0)
        rc = steps_create(&steps, &e->state.steps, error); /* refuses a pool that does not fit */
    if (rc == 0)
        set_bounds(e);
    if (rc == 0 && (e->wake < 0 || make_lease_table(e) != 0 || make_parts(e) != 0))
        rc = ATTND_NO_MEMORY;
    if (rc == 0 && options->journal)
        rc = begin_journal(e);
    if (rc != 0) {
        engine_destroy(e);
        return rc;
    }
    *result = e;
    return 0;
}

int engine_start(struct engine *e)
{
    e->started = pthread_create(&e->thread, NULL, engine_main, e) == 0;
    return e->started ? 0 : ATTND_NO_MEMORY;
}

void engine_keep_all(struct engine *e, bool keep)
{
    atomic_store(&e->keep_all, keep);
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    if (e->started) {
        atomic_store(&e->stop, true);
        wake_engine(e);
        pthread_join(e->thread, NULL);
    }
    journal_end(e->state.journal, "the daemon has ended");
    doorbell_destroy(e->doorbell);
    workload_run_destroy(e->state.workloads);
    client_queue_destroy(e->state.clients);
    shares_destroy(e->state.shares);
    swapping_destroy(e->state.swapping);
    swap_cache_destroy(e->state.swap_cache);
    reservation_destroy(e->state.reservation);
    sequences_destroy(e->state.sequences);
    prompts_destroy(e->state.prompts);
    staging_destroy(e->staging);
    if (e->staging_memory)
        step_free_host_memory(e->state.steps, e->staging_memory, e->o.config->limits.staging_bytes);
    steps_destroy(e->state.steps);
    model_constants_deinit(&e->state.constants);
    free(e->state.lease_of);
    free(e->free_requests);
    free(e->touched);
    mapping_destroy(e->arenas, (size_t)e->loop_requests * REQUEST_ARENA_BYTES);
    free(e->requests);
    ring_deinit(&e->to_engine);
    ring_deinit(&e->to_loop);
    if (e->wake >= 0)
        close(e->wake);
    free(e);
}
