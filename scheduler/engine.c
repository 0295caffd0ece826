/* engine.c - the engine thread.
 *
 *   loop thread                          engine thread
 *   acquire -> submit ==== ring ====>    run at once: create, fork, truncate, delete, questions
 *                                        queue: append, attend -> call_steps.c -> complete
 *                                        workloads             -> driver.c     -> complete
 *   take    <- notify <=== ring =====
 *
 * Between two looks at the ring the queue of calls is run empty, then a workload makes one step. Before
 * anything that changes a sequence's blocks the queue is run empty too, so calls on one sequence keep
 * their order. */
#include "scheduler/engine.h"

#include "allocator/prefix_index.h"
#include "config/log.h"
#include "scheduler/call_steps.h"
#include "scheduler/driver.h"
#include "scheduler/ring.h"

#include <assert.h>
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
    OWNER_CLIENTS = 0 /* of prefix roots: there are no keys yet */
};

struct engine {
    struct engine_options o;
    struct inspected all;
    struct call_steps *call_steps;
    struct driver *driver;

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
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void complete(struct call *call, void *cookie)
{
    struct engine *e = cookie;
    bool put = ring_put(&e->to_loop, call); /* it has room for every call */
    assert(put);
    (void)put;
    e->o.notify(e->o.cookie);
}

static uint32_t promised(void *cookie)
{
    struct engine *e = cookie;
    return driver_promised(e->driver);
}

static struct block_tables *tables_of(const struct engine *e)
{
    return executor_tables(e->all.executor);
}

/* The row of a sequence that clients may change, or NO_ROW with the call failed. */
static uint32_t find_own(struct engine *e, struct call *call)
{
    uint32_t row = inspect_find(&e->all, call, call->id);
    if (row == NO_ROW)
        return NO_ROW;
    uint64_t workload = sequences_at(e->all.sequences, row)->workload;
    if (!workload)
        return row;
    call_fail(call, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu",
              (unsigned long long)call->id, (unsigned long long)workload);
    return NO_ROW;
}

/* ---- what changes sequences ---------------------------------------------------------------------- */

/* A row that shares what is cached of the call's tokens, under its salt. */
static int add_row(struct engine *e, const struct call *call, uint32_t *row)
{
    uint32_t root = block_tables_open_root(tables_of(e), OWNER_CLIENTS, call->salt, call->salt_bytes);
    int rc = block_tables_add(tables_of(e), root, call->tokens, call->token_count, row);
    block_tables_close_root(tables_of(e), root); /* the row keeps its own reference */
    return rc;
}

static void run_create(struct engine *e, struct call *call)
{
    uint32_t row;
    if (call->id >> SEQUENCE_NODE_SHIFT) {
        call_fail(call, ATTND_OTHER_NODE, "id %llu is one of node %llu, this is node 0",
                  (unsigned long long)call->id, (unsigned long long)(call->id >> SEQUENCE_NODE_SHIFT));
    } else if (call->id && sequences_find(e->all.sequences, call->id) != NO_ROW) {
        call_fail(call, ATTND_EXISTS, "there is a sequence %llu already", (unsigned long long)call->id);
    } else if (add_row(e, call, &row) != 0) {
        call_fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
                  e->o.config->limits.sequences);
    } else {
        sequences_add(e->all.sequences, row, call->id, 0, now_s());
        inspect_show_one(&e->all, call, row);
    }
}

static void run_fork(struct engine *e, struct call *call)
{
    uint32_t parent = find_own(e, call), row, made = 0;
    if (parent == NO_ROW)
        return;
    uint32_t length = block_tables_view(tables_of(e), parent).length;
    if (call->length == UINT32_MAX)
        call->length = length;
    if (call->length > length) {
        call_fail(call, ATTND_INVALID, "length is %u, and the sequence has %u", call->length, length);
        return;
    }
    call->views = call_alloc(call, call->count, sizeof *call->views);
    uint32_t *rows = call_alloc(call, call->count, sizeof *rows);
    while (call->views && rows && made < call->count &&
           block_tables_fork(tables_of(e), parent, call->length, &row) == 0) {
        rows[made++] = row;
        sequences_add(e->all.sequences, row, 0, call->id, now_s());
    }
    bool all = rows && made == call->count;
    for (uint32_t i = 0; all && i < made; i++)
        all = inspect_show(&e->all, call, rows[i]);
    if (all)
        return;
    for (uint32_t i = 0; i < made; i++) { /* all or none */
        sequences_remove(e->all.sequences, rows[i]);
        block_tables_remove(tables_of(e), rows[i]);
    }
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
    block_tables_truncate(tables_of(e), row, call->length);
    inspect_show_one(&e->all, call, row);
}

static void run_delete(struct engine *e, struct call *call)
{
    uint32_t row = find_own(e, call);
    if (row == NO_ROW)
        return;
    sequences_remove(e->all.sequences, row);
    block_tables_remove(tables_of(e), row);
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

static void run_queue(struct engine *e)
{
    do {
        atomic_store(&e->busy_since_us, (uint64_t)(now_s() * 1e6));
        check_invariants(e);
    } while (call_steps_run(e->call_steps));
}

/* ---- the thread ---------------------------------------------------------------------------------- */

/* A call that changes blocks: after everything that came before it. */
static void run_change(struct engine *e, struct call *call)
{
    run_queue(e);
    switch (call->kind) {
    case CALL_CREATE:
        run_create(e, call);
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
    default:
        call->count = block_tables_trim(tables_of(e));
        break;
    }
    e->all.epoch++;
    complete(call, e);
}

static void handle(struct engine *e, struct call *call)
{
    switch (call->kind) {
    case CALL_APPEND:
    case CALL_ATTEND:
        call_steps_add(e->call_steps, call);
        return;
    case CALL_CREATE:
    case CALL_FORK:
    case CALL_TRUNCATE:
    case CALL_DELETE:
    case CALL_TRIM:
        run_change(e, call);
        return;
    case CALL_WORKLOAD_START:
        driver_start(e->driver, call);
        return;
    case CALL_WORKLOAD:
        driver_look(e->driver, call);
        return;
    case CALL_WORKLOAD_CANCEL:
        driver_cancel(e->driver, call);
        return;
    case CALL_SEQUENCE:
        inspect_sequence(&e->all, call);
        break;
    case CALL_BLOCKS:
        inspect_blocks(&e->all, call);
        break;
    case CALL_STATS:
        inspect_stats(&e->all, call);
        break;
    case CALL_LIST:
        inspect_list(&e->all, call);
        break;
    case CALL_POOL:
        inspect_pool(&e->all, call);
        break;
    case CALL_AUDIT:
        call->fault = block_tables_fault(tables_of(e));
        break;
    }
    complete(call, e);
}

/* Until a call comes, or the driver has something to do. */
static void wait_for_work(struct engine *e)
{
    double idle = driver_idle_s(e->driver);
    struct pollfd wake = {.fd = e->wake, .events = POLLIN};
    uint64_t woken;
    if (poll(&wake, 1, idle < 0 ? -1 : (int)(idle * 1e3) + 1) > 0 &&
        read(e->wake, &woken, sizeof woken) < 0)
        log_line(LOG_ERROR, "the engine's wake-up failed");
}

static void *engine_main(void *cookie)
{
    struct engine *e = cookie;
    for (;;) {
        struct call *call;
        atomic_store(&e->busy_since_us, (uint64_t)(now_s() * 1e6));
        while ((call = ring_take(&e->to_engine))) {
            handle(e, call);
            check_invariants(e);
        }
        run_queue(e);
        bool stop = atomic_load(&e->stop);
        bool worked = !stop && driver_turn(e->driver);
        atomic_store(&e->busy_since_us, 0);
        if (stop)
            return NULL;
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
    uint8_t *arena = call->arena;
    *call = (struct call){.arena = arena, .answer_status = 200};
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
                          .arena = call->arena};
}

void engine_submit(struct engine *e, struct call *call)
{
    call->submitted_s = now_s();
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
    return executor_backend(e->all.executor);
}

double engine_roof_gb_per_s(const struct engine *e)
{
    return executor_roof_gb_per_s(e->all.executor);
}

double engine_stall_s(const struct engine *e)
{
    uint64_t since = atomic_load(&e->busy_since_us);
    return since ? now_s() - (double)since * 1e-6 : 0;
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
    for (uint32_t i = n; i-- > 0;) {
        e->calls[i].arena = e->arenas + (size_t)i * CALL_ARENA_BYTES;
        e->free_calls[e->free_count++] = &e->calls[i];
    }
    return ring_init(&e->to_engine, n) || ring_init(&e->to_loop, n) ? ATTND_NO_MEMORY : 0;
}

static int make_parts(struct engine *e)
{
    const struct call_steps_options calls = {
        .all = &e->all, .promised = promised, .complete = complete, .cookie = e};
    const struct driver_options driver = {.all = &e->all, .complete = complete, .cookie = e};
    int rc = sequences_create(e->o.config->limits.sequences, &e->all.sequences);
    if (rc == 0)
        rc = call_steps_create(&calls, &e->call_steps);
    if (rc == 0)
        rc = driver_create(&driver, &e->driver);
    return rc == 0 ? make_calls(e) : rc;
}

int engine_create(const struct engine_options *options, struct engine **result,
                  char error[ATTENTION_ERROR_BYTES])
{
    struct engine *e = aligned_alloc(ALIGNMENT, (sizeof *e + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    const struct executor_options executor = {.config = options->config,
                                              .partials_max = options->partials_max,
                                              .progress = options->progress,
                                              .cookie = options->cookie};
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!e)
        return ATTND_NO_MEMORY;
    memset(e, 0, sizeof *e);
    e->o = *options;
    e->all.config = options->config;
    e->wake = eventfd(0, EFD_CLOEXEC);
    int rc = executor_create(&executor, &e->all.executor, error);
    if (rc == 0 &&
        (e->wake < 0 || make_parts(e) != 0 || pthread_create(&e->thread, NULL, engine_main, e) != 0))
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
    driver_destroy(e->driver);
    call_steps_destroy(e->call_steps);
    sequences_destroy(e->all.sequences);
    executor_destroy(e->all.executor);
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
