/* engine.c - the engine thread.
 *
 *   loop thread                          engine thread
 *   acquire -> submit ==== ring ====>    run at once: create, fork, truncate, delete, questions
 *                                        queue: append, attend -> client_queue.c -> complete
 *                                        workloads             -> workload_run.c     -> complete
 *   take    <- notify <=== ring =====
 *
 * Between two looks at the ring the queue of calls is run empty (once its rows have waited for company
 * as long as they may), then a workload makes one step. Before anything that changes a sequence's
 * blocks the queue is run empty too, so calls on one sequence keep their order; only a delete ends the
 * queued calls on its sequence instead. */
#include "scheduler/engine.h"

#include "allocator/prefix_index.h"
#include "config/clock.h"
#include "config/log.h"
#include "config/model_constants.h"
#include "scheduler/client_queue.h"
#include "scheduler/reservation.h"
#include "scheduler/workload_run.h"
#include "scheduler/paged_calls.h"
#include "scheduler/ring.h"

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
    ALIGNMENT = 64,
    REAP_ROWS = 8192, /* looked at in one go */
    OWNER_CLIENTS = 0 /* of prefix roots: there are no keys yet */
};

static const double REAP_S = 0.5; /* between two looks for sequences that nobody uses */

struct engine {
    struct engine_options o;
    struct engine_state state;
    double reaped_s;   /* when it was last looked for them, */
    uint32_t reap_row; /* and where the next look begins */
    struct client_queue *clients;
    struct workload_run *workloads;

    struct call *calls; /* [limits.calls] */
    uint8_t *arenas;
    struct call **free_calls; /* the loop's stack */
    uint32_t free_count;
    struct ring to_engine, to_loop;
    int wake; /* eventfd: something is in to_engine */
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint64_t busy_since_us; /* 0: waiting for calls */
    _Atomic(const char *) failure;  /* of the backend; NULL: none */
    bool failure_noted;
    _Atomic bool has_sinks, has_alibi; /* whether all.constants has them, for other threads */
};

/* Whether calls of that kind have results that only a sound backend gives. */
static bool computes(enum call_kind kind)
{
    return kind == CALL_APPEND || kind == CALL_ATTEND || kind == CALL_PAGED || kind == CALL_LEASE ||
           kind == CALL_MERGE || kind == CALL_SELF_TEST || kind == CALL_WORKLOAD_START ||
           kind == CALL_WORKLOAD || kind == CALL_WORKLOAD_CANCEL;
}

static void complete(struct call *call, void *cookie)
{
    struct engine *e = cookie;
    const char *failure = step_failure(e->state.steps);
    if (failure && computes(call->kind)) { /* whatever else it seems to be */
        call_fail(call, ATTND_DEVICE, "%s; the daemon ends", failure);
        atomic_store(&e->failure, failure);
    }
    bool put = ring_put(&e->to_loop, call); /* it has room for every call */
    assert(put);
    (void)put;
    e->o.notify(e->o.cookie);
}

static uint32_t promised(void *cookie)
{
    struct engine *e = cookie;
    return workload_run_promised(e->workloads);
}

static struct block_tables *tables_of(const struct engine *e)
{
    return step_tables(e->state.steps);
}

/* The row of a sequence that clients may change, or NO_ROW with the call failed. */
static uint32_t find_own(struct engine *e, struct call *call)
{
    uint32_t row = inspect_find(&e->state, call, call->id);
    if (row == NO_ROW)
        return NO_ROW;
    uint64_t workload = sequences_at(e->state.sequences, row)->workload;
    if (!workload)
        return row;
    call_fail(call, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu",
              (unsigned long long)call->id, (unsigned long long)workload);
    return NO_ROW;
}

/* ---- what changes sequences ---------------------------------------------------------------------- */

/* A row that shares what is cached of the call's first `tokens` tokens, under its salt. */
static int add_row(struct engine *e, const struct call *call, uint32_t tokens, uint32_t *row)
{
    uint32_t root = block_tables_open_root(tables_of(e), OWNER_CLIENTS, call->salt, call->salt_bytes);
    int rc = block_tables_add(tables_of(e), root, call->tokens, tokens, row);
    block_tables_close_root(tables_of(e), root); /* the row keeps its own reference */
    return rc;
}

/* Blocks that can be had and are promised to nobody. */
static uint64_t unpromised(struct engine *e)
{
    uint64_t available = block_pool_available(block_tables_pool(tables_of(e))),
             taken = workload_run_promised(e->workloads) + e->state.declared;
    return available > taken ? available - taken : 0;
}

/* Whether `need` blocks can be promised. */
static bool can_promise(struct engine *e, uint64_t need)
{
    if (need > unpromised(e))
        reservation_note_all(&e->state); /* somebody may have stopped sharing meanwhile */
    return need <= unpromised(e);
}

/* Whether `children` sequences that declare max_tokens may be made, forks at `tokens`, or a new one;
 * else the call has failed. */
static bool may_declare(struct engine *e, struct call *call, uint32_t max_tokens, uint32_t tokens,
                        uint32_t children)
{
    const struct config *c = e->o.config;
    bool forks = call->kind == CALL_FORK;
    uint64_t need = (uint64_t)reservation_need(&e->state, max_tokens, tokens, forks) * children;
    need += forks && need; /* the parent may have to copy its last block too */
    uint64_t whole = ((uint64_t)max_tokens + c->geometry.block_size - 1) / c->geometry.block_size;
    if (max_tokens && (whole > c->pool_blocks || max_tokens > c->limits.sequence_tokens)) {
        call_fail(call, ATTND_INVALID,
                  "max_tokens %u are %llu blocks of %u tokens; the pool has %llu, and "
                  "limits.sequence_tokens is %u",
                  max_tokens, (unsigned long long)whole, c->geometry.block_size,
                  (unsigned long long)c->pool_blocks, c->limits.sequence_tokens);
        return false;
    }
    if (can_promise(e, need))
        return true;
    call_fail(
        call, ATTND_NO_BLOCKS,
        "max_tokens needs %llu blocks more, and %llu are free or reclaimable and promised to nobody",
        (unsigned long long)need, (unsigned long long)unpromised(e));
    return false;
}

/* How many of the call's tokens may be looked for in the cache: a cached block that nobody holds is one
 * that others could have had. */
static uint32_t findable(struct engine *e, const struct call *call)
{
    uint32_t held,
        root = block_tables_open_root(tables_of(e), OWNER_CLIENTS, call->salt, call->salt_bytes);
    uint32_t hit = block_tables_match(tables_of(e), root, call->tokens, call->token_count, &held);
    uint64_t room = unpromised(e);
    block_tables_close_root(tables_of(e), root);
    return hit - held > room ? (held + (uint32_t)room) * e->o.config->geometry.block_size
                             : call->token_count;
}

/* Whether an id can be given to something new; else the call has failed. */
static bool id_is_free(struct engine *e, struct call *call, unsigned long long id)
{
    uint32_t row = id >> SEQUENCE_NODE_SHIFT ? NO_ROW : sequences_find(e->state.sequences, id);
    if (id >> SEQUENCE_NODE_SHIFT)
        call_fail(call, ATTND_OTHER_NODE, "id %llu is one of node %llu, this is node 0", id,
                  id >> SEQUENCE_NODE_SHIFT);
    else if (id && row != NO_ROW)
        call_fail(call, ATTND_EXISTS, "there is a %s %llu already",
                  sequences_at(e->state.sequences, row)->lease ? "lease" : "sequence", id);
    return call->status == 0;
}

static void run_create(struct engine *e, struct call *call)
{
    uint32_t row;
    struct sequence_options options = call->options;
    if (!id_is_free(e, call, call->id))
        return;
    if (call->token_count > e->o.config->limits.sequence_tokens) {
        call_fail(call, ATTND_INVALID, "tokens: %u, but limits.sequence_tokens is %u",
                  call->token_count, e->o.config->limits.sequence_tokens);
        return;
    }
    if (!may_declare(e, call, options.max_tokens, 0, 1)) /* as if nothing of it were cached */
        return;
    if (add_row(e, call, findable(e, call), &row) != 0) {
        call_fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
                  e->o.config->limits.sequences);
        return;
    }
    if (prompts_set(e->state.prompts, row, call->tokens, call->token_count) != 0) {
        block_tables_remove(tables_of(e), row);
        call_fail(call, ATTND_NO_SEQUENCES,
                  "tokens: the prompts of all sequences together have as many ids as the pool has "
                  "tokens");
        return;
    }
    sequences_add(e->state.sequences, row, call->id, 0, clock_s());
    sequences_at(e->state.sequences, row)->options = options;
    reservation_note(&e->state, row);
    inspect_show_one(&e->state, call, row);
}

/* Whether `children` sequences more can be had, and their tables of `tokens` be shown in one answer; else
 * the call has failed. */
static bool has_room_for_forks(struct engine *e, struct call *call, uint32_t tokens)
{
    const struct config *c = e->o.config;
    uint64_t blocks = (tokens + c->geometry.block_size - 1) / c->geometry.block_size;
    uint32_t left = c->limits.sequences - block_tables_counts(tables_of(e)).rows;
    if (call->count > left)
        call_fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) leave room for %u of %u forks",
                  c->limits.sequences, left, call->count);
    else if (blocks * call->count > CALL_IDS_MAX)
        call_fail(call, ATTND_INVALID, "the block tables of %u forks do not fit one answer (%d ids)",
                  call->count, CALL_IDS_MAX);
    return call->status == 0;
}

/* Whether the ids that a fork asks for can be given; else the call has failed. */
static bool ids_are_free(struct engine *e, struct call *call)
{
    for (uint32_t i = 0; call->ids && i < call->count; i++) {
        if (!id_is_free(e, call, call->ids[i]))
            return false;
        for (uint32_t other = 0; other < i; other++) {
            if (call->ids[other] != call->ids[i])
                continue;
            call_fail(call, ATTND_EXISTS, "there is a sequence %llu already",
                      (unsigned long long)call->ids[i]);
            return false;
        }
    }
    return true;
}

static void remove_row(struct engine *e, uint32_t row)
{
    if (sequences_at(e->state.sequences, row)->lease)
        leases_remove(&e->state, row);
    reservation_drop(&e->state, row);
    prompts_cut(e->state.prompts, row, 0);
    sequences_remove(e->state.sequences, row);
    block_tables_remove(tables_of(e), row);
}

static void run_fork(struct engine *e, struct call *call)
{
    uint32_t parent = find_own(e, call), row, made = 0;
    if (parent == NO_ROW)
        return;
    uint32_t length = block_tables_view(tables_of(e), parent).length;
    struct sequence *from = sequences_at(e->state.sequences, parent);
    if (call->length == UINT32_MAX)
        call->length = length;
    if (call->length > length) {
        call_fail(call, ATTND_INVALID, "length is %u, and the sequence has %u", call->length, length);
        return;
    }
    if (!ids_are_free(e, call) || !has_room_for_forks(e, call, call->length) ||
        !may_declare(e, call, from->options.max_tokens, call->length, call->count) ||
        client_queue_bring_in(e->clients, call, parent) != 0)
        return;
    call->views = call_alloc(call, call->count, sizeof *call->views);
    uint32_t *rows = call_alloc(call, call->count, sizeof *rows);
    while (call->views && rows && made < call->count &&
           block_tables_fork(tables_of(e), parent, call->length, &row) == 0) {
        sequences_add(e->state.sequences, row, call->ids ? call->ids[made] : 0, call->id, clock_s());
        sequences_at(e->state.sequences, row)->options = from->options;
        rows[made++] = row;
    }
    bool all = rows && made == call->count;
    for (uint32_t i = 0; i < made; i++) {
        reservation_note(&e->state, rows[i]);
        all = all && inspect_show(&e->state, call, rows[i]);
    }
    reservation_note(&e->state, parent);
    from->used_s = clock_s();
    if (all)
        return;
    for (uint32_t i = 0; i < made; i++) /* all or none */
        remove_row(e, rows[i]);
    reservation_note(&e->state, parent);
    call->view_count = 0;
    if (made < call->count)
        call_fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) leave room for %u of %u forks",
                  e->o.config->limits.sequences, made, call->count);
    else
        call_fail(call, ATTND_INVALID, "the block tables of %u forks do not fit one answer",
                  call->count);
}

static void run_truncate(struct engine *e, struct call *call)
{
    uint32_t row = find_own(e, call);
    if (row == NO_ROW)
        return;
    uint32_t need = reservation_truncation(&e->state, row, call->length);
    if (!can_promise(e, need)) {
        call_fail(
            call, ATTND_NO_BLOCKS,
            "it shares %u of the blocks that it would give back, max_tokens says that it will need "
            "others for them, and %llu are free or reclaimable and promised to nobody",
            need, (unsigned long long)unpromised(e));
        return;
    }
    if (call->length < block_tables_view(tables_of(e), row).cursor_max)
        prompts_cut(e->state.prompts, row, call->length); /* what is written anew may be something else */
    block_tables_truncate(tables_of(e), row, call->length);
    reservation_note(&e->state, row);
    sequences_at(e->state.sequences, row)->used_s = clock_s();
    inspect_show_one(&e->state, call, row);
}

static void run_delete(struct engine *e, struct call *call)
{
    uint32_t row = find_own(e, call);
    if (row != NO_ROW)
        remove_row(e, row);
}

static void run_lease(struct engine *e, struct call *call)
{
    const struct config *c = e->o.config;
    uint32_t row;
    if (!id_is_free(e, call, call->id))
        return;
    if ((uint64_t)call->count * c->geometry.block_size > c->limits.sequence_tokens) {
        call_fail(call, ATTND_INVALID,
                  "%u blocks are %llu tokens; a lease has at most limits.sequence_tokens (%u)",
                  call->count, (unsigned long long)call->count * c->geometry.block_size,
                  c->limits.sequence_tokens);
        return;
    }
    if (block_tables_add(tables_of(e), NO_ROOT, NULL, 0, &row) != 0) {
        call_fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use", c->limits.sequences);
        return;
    }
    call->priority = call->options.priority;
    if (client_queue_take_blocks(e->clients, call, row, call->count) != 0) {
        block_tables_remove(tables_of(e), row);
        return;
    }
    leases_add(&e->state, row, call->id, call->options);
    inspect_show_one(&e->state, call, row);
}

/* Remove clients' sequences that were not used for as long as they may be, some thousands a look. */
static void reap(struct engine *e)
{
    double now = clock_s();
    uint32_t rows = e->o.config->limits.sequences;
    if (now - e->reaped_s < REAP_S)
        return;
    e->reaped_s = now;
    reservation_note_all(&e->state);
    for (uint32_t n = 0; n < REAP_ROWS && n < rows; n++) {
        uint32_t row = e->reap_row++ % rows;
        const struct sequence *s = sequences_at(e->state.sequences, row);
        if (s->id == 0 || s->workload || s->queued || s->options.idle_timeout_s == 0 ||
            now - s->used_s < s->options.idle_timeout_s)
            continue;
        log_line(LOG_INFO, "%s %llu was not used for %.0f s and is removed",
                 s->lease ? "lease" : "sequence", (unsigned long long)s->id, now - s->used_s);
        sequences_note_reaped(e->state.sequences, row, now);
        remove_row(e, row);
        e->state.epoch++;
    }
}

/* ---- states -------------------------------------------------------------------------------------- */

static void run_merge(struct engine *e, struct call *call)
{
    const struct geometry *g = &e->o.config->geometry;
    size_t heads = (size_t)call->rows * g->query_heads;
    struct merge_states m = {.states = call->count,
                             .rows = call->rows,
                             .heads = g->query_heads,
                             .head_dim = g->head_dim,
                             .dtype = g->dtype,
                             .o = call->q,
                             .lse = call->k};
    m.merged_o = call->o = call_alloc(call, heads, g->head_dim * dtype_bytes(g->dtype));
    m.merged_lse = call->lse = call_alloc(call, heads, sizeof *call->lse);
    if (call->o && call->lse)
        step_merge_states(e->state.steps, &m);
    else
        call_fail(call, ATTND_INVALID, "%u rows are too many for one call", call->rows);
}

/* ---- model constants ----------------------------------------------------------------------------- */

/* Replace those of the model's constants that `with` has. After a failure some are. */
static int replace_constants(struct engine *e, const struct model_constants *with)
{
    struct model_constants *c = &e->state.constants;
    int rc = model_constants_replace(c, &e->o.config->geometry, with);
    atomic_store(&e->has_sinks, c->sinks != NULL);
    atomic_store(&e->has_alibi, c->alibi != NULL);
    return rc;
}

static void run_parameters(struct engine *e, struct call *call)
{
    if (step_has_appended(e->state.steps))
        call_fail(call, ATTND_FIXED, "something was appended already; they are fixed from then on");
    else if (replace_constants(e, &call->parameters) != 0)
        call_fail(call, ATTND_NO_MEMORY, "no memory for the parameters");
}

/* In debug and sanitizer builds every operation is followed by a walk over all invariants. */
static void check_invariants(struct engine *e)
{
#if ATTND_CHECK >= 3
    const char *fault = block_tables_fault(tables_of(e));
    if (fault) {
        log_line(LOG_ERROR, "broken invariant: %s", fault);
        abort();
    }
#else
    (void)e;
#endif
}

/* Run what is queued until nothing is. */
static void run_queue(struct engine *e)
{
    if (client_queue_wait_s(e->clients) >= 0) /* else nothing is queued */
        workload_run_settle(e->workloads);
    do {
        atomic_store(&e->busy_since_us, (uint64_t)(clock_s() * 1e6));
        check_invariants(e);
    } while (client_queue_run(e->clients));
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* A call that changes blocks: after everything that came before it. */
static void run_change(struct engine *e, struct call *call)
{
    if (call->kind == CALL_DELETE && find_own(e, call) != NO_ROW)
        client_queue_drop(e->clients, call->id);
    run_queue(e);
    switch (call->kind) {
    case CALL_CREATE:
        run_create(e, call);
        break;
    case CALL_LEASE:
        run_lease(e, call);
        break;
    case CALL_FORK:
        run_fork(e, call);
        break;
    case CALL_TRUNCATE:
        run_truncate(e, call);
        break;
    case CALL_DELETE:
        run_delete(e, call);
        break;
    case CALL_PARAMETERS:
        run_parameters(e, call);
        break;
    default:
        call->count = block_tables_trim(tables_of(e));
        break;
    }
    e->state.epoch++;
    complete(call, e);
}

static void handle(struct engine *e, struct call *call)
{
    switch (call->kind) {
    case CALL_APPEND:
    case CALL_ATTEND:
    case CALL_PAGED:
        client_queue_add(e->clients, call);
        return;
    case CALL_CREATE:
    case CALL_LEASE:
    case CALL_FORK:
    case CALL_TRUNCATE:
    case CALL_DELETE:
    case CALL_PARAMETERS:
    case CALL_TRIM:
        run_change(e, call);
        return;
    case CALL_MERGE:
        run_merge(e, call);
        break;
    case CALL_WORKLOAD_START:
        workload_run_start(e->workloads, call);
        return;
    case CALL_WORKLOAD:
        workload_run_look(e->workloads, call);
        return;
    case CALL_WORKLOAD_CANCEL:
        workload_run_cancel(e->workloads, call);
        return;
    case CALL_SEQUENCE:
        inspect_sequence(&e->state, call);
        break;
    case CALL_BLOCKS:
        inspect_blocks(&e->state, call);
        break;
    case CALL_STATS:
        inspect_stats(&e->state, call);
        break;
    case CALL_LIST:
        inspect_list(&e->state, call);
        break;
    case CALL_POOL:
        inspect_pool(&e->state, call);
        break;
    case CALL_AUDIT:
        call->fault = block_tables_fault(tables_of(e));
        break;
    case CALL_SELF_TEST:
        if (!step_self_test(e->state.steps))
            call->fault = "the kernels differ from the reference";
        break;
    }
    complete(call, e);
}

/* The earlier of two times to wait, of which negative ones mean for ever. */
static double sooner(double a, double b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* Until a call comes, or there is something to do without one. */
static void wait_for_work(struct engine *e)
{
    double idle = sooner(workload_run_idle_s(e->workloads), client_queue_wait_s(e->clients));
    if (block_tables_counts(tables_of(e)).rows)
        idle = sooner(idle, 2 * REAP_S);
    struct timespec wait = {(time_t)idle, (long)((idle - floor(idle)) * 1e9)};
    struct pollfd wake = {.fd = e->wake, .events = POLLIN};
    uint64_t woken;
    if (ppoll(&wake, 1, idle < 0 ? NULL : &wait, NULL) > 0 && read(e->wake, &woken, sizeof woken) < 0)
        log_line(LOG_ERROR, "the engine's wake-up failed");
}

/* Whether the backend has failed. The first time, what runs is cancelled and the loop is told. */
static bool note_failure(struct engine *e)
{
    const char *failure = step_failure(e->state.steps);
    if (!failure || e->failure_noted)
        return failure != NULL;
    e->failure_noted = true;
    log_line(LOG_ERROR, "the backend has failed: %s", failure);
    workload_run_fail(e->workloads);
    atomic_store(&e->failure, failure);
    e->o.notify(e->o.cookie);
    return true;
}

static void *engine_main(void *cookie)
{
    struct engine *e = cookie;
    for (;;) {
        struct call *call;
        atomic_store(&e->busy_since_us, (uint64_t)(clock_s() * 1e6));
        while ((call = ring_take(&e->to_engine))) {
            workload_run_settle(e->workloads);
            handle(e, call);
            check_invariants(e);
        }
        bool stop = atomic_load(&e->stop);
        if (stop || client_queue_wait_s(e->clients) <= 0)
            run_queue(e);
        reap(e);
        bool worked = !note_failure(e) && !stop && workload_run_turn(e->workloads);
        atomic_store(&e->busy_since_us, 0);
        if (stop) {
            workload_run_settle(e->workloads);
            return NULL;
        }
        if (!worked)
            wait_for_work(e);
    }
}

static void wake_engine(struct engine *e)
{
    uint64_t one = 1;
    if (write(e->wake, &one, sizeof one) < 0)
        log_line(LOG_ERROR, "the engine cannot be woken");
}

/* ---- the loop's side ----------------------------------------------------------------------------- */

struct call *engine_acquire(struct engine *e)
{
    if (e->free_count == 0)
        return NULL;
    struct call *call = e->free_calls[--e->free_count];
    *call = (struct call){.arena = e->arenas + (size_t)(call - e->calls) * CALL_ARENA_BYTES,
                          .arena_bytes = CALL_ARENA_BYTES,
                          .answer_status = 200};
    return call;
}

void engine_reuse(struct call *call, enum call_kind kind)
{
    *call = (struct call){.kind = kind,
                          .id = call->id,
                          .cookie = call->cookie,
                          .answer_status = call->answer_status,
                          .streams = call->streams,
                          .cancels = call->cancels,
                          .arena = call->arena,
                          .arena_bytes = call->arena_bytes};
}

void engine_submit(struct engine *e, struct call *call)
{
    call->submitted_s = clock_s();
    bool put = ring_put(&e->to_engine, call); /* it has room for every call */
    assert(put);
    (void)put;
    wake_engine(e);
}

struct call *engine_take(struct engine *e)
{
    return ring_take(&e->to_loop);
}

void engine_release(struct engine *e, struct call *call)
{
    e->free_calls[e->free_count++] = call;
}

const struct attention_info *engine_backend(const struct engine *e)
{
    return step_backend(e->state.steps);
}

double engine_roof_gb_per_s(const struct engine *e)
{
    return step_roof_gb_per_s(e->state.steps);
}

double engine_grouping_us(const struct engine *e)
{
    return step_grouping_us(e->state.steps);
}

bool engine_has_sinks(const struct engine *e)
{
    return atomic_load(&e->has_sinks);
}

bool engine_has_alibi(const struct engine *e)
{
    return atomic_load(&e->has_alibi);
}

const char *engine_failure(const struct engine *e)
{
    return atomic_load(&e->failure);
}

double engine_stall_s(const struct engine *e)
{
    uint64_t since = atomic_load(&e->busy_since_us);
    return since ? clock_s() - (double)since * 1e-6 : 0;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

static int make_calls(struct engine *e)
{
    uint32_t n = e->o.config->limits.calls;
    e->calls = calloc(n, sizeof *e->calls);
    e->free_calls = calloc(n, sizeof *e->free_calls);
    void *arenas = mmap(NULL, (size_t)n * CALL_ARENA_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!e->calls || !e->free_calls || arenas == MAP_FAILED)
        return ATTND_NO_MEMORY;
    e->arenas = arenas;
    for (uint32_t i = n; i-- > 0;)
        e->free_calls[e->free_count++] = &e->calls[i];
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

static int make_parts(struct engine *e)
{
    const struct client_queue_options calls = {
        .state = &e->state, .promised = promised, .complete = complete, .cookie = e};
    const struct workload_run_options workloads = {.state = &e->state, .complete = complete, .cookie = e};
    const struct config *c = e->o.config;
    int rc = sequences_create(c->limits.sequences, &e->state.sequences);
    if (rc == 0)
        rc = prompts_create(c->limits.sequences, c->pool_blocks * c->geometry.block_size,
                            &e->state.prompts);
    if (rc == 0)
        rc = client_queue_create(&calls, &e->clients);
    if (rc == 0)
        rc = workload_run_create(&workloads, &e->workloads);
    return rc == 0 ? make_calls(e) : rc;
}

int engine_create(const struct engine_options *options, struct engine **result,
                  char error[ATTENTION_ERROR_BYTES])
{
    struct engine *e = aligned_alloc(ALIGNMENT, (sizeof *e + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    const struct steps_options steps = {.config = options->config,
                                              .constants = &e->state.constants,
                                              .partials_max = options->partials_max,
                                              .progress = options->progress,
                                              .cookie = options->cookie};
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!e)
        return ATTND_NO_MEMORY;
    memset(e, 0, sizeof *e);
    e->o = *options;
    e->state.config = options->config;
    e->wake = eventfd(0, EFD_CLOEXEC);
    int rc = replace_constants(e, &options->config->constants);
    if (rc == 0)
        rc = steps_create(&steps, &e->state.steps, error); /* refuses a pool that does not fit */
    if (rc == 0 && (e->wake < 0 || make_lease_table(e) != 0 || make_parts(e) != 0 ||
                    pthread_create(&e->thread, NULL, engine_main, e) != 0))
        rc = ATTND_NO_MEMORY;
    e->started = rc == 0;
    if (rc != 0) {
        engine_destroy(e);
        return rc;
    }
    *result = e;
    return 0;
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
    workload_run_destroy(e->workloads);
    client_queue_destroy(e->clients);
    sequences_destroy(e->state.sequences);
    prompts_destroy(e->state.prompts);
    steps_destroy(e->state.steps);
    model_constants_deinit(&e->state.constants);
    free(e->state.lease_of);
    free(e->free_calls);
    if (e->arenas)
        munmap(e->arenas, (size_t)e->o.config->limits.calls * CALL_ARENA_BYTES);
    free(e->calls);
    ring_deinit(&e->to_engine);
    ring_deinit(&e->to_loop);
    if (e->wake >= 0)
        close(e->wake);
    free(e);
}
