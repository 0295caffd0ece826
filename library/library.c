/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - open and close a handle, have its engine's turns made, and what is about the library itself. */
#include "library/handle.h"

#include "config/log.h"
#include "config/version.h"
#include "kernels/attention.h"
#include "kernels/numeric.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    STRUCT_BYTES_MAX = 4096, /* that a caller's struct may have */
    SPARE_REQUESTS = 8,      /* beside limits.calls: for what is waited for */
    NAP_NS = 100000          /* between two turns when nothing is in flight */
};

static const double CLOSE_LOOK_S = 1e-3; /* between two looks whether others are still in a function */

static _Thread_local char last_error[HANDLE_ERROR_BYTES];
static atomic_uint forks; /* of this process, so far */

/* ---- codes and errors ------------------------------------------------------------------------------- */

int handle_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return code;
}

/* What a status of the engine's is to callers. */
static int code_of(int status)
{
    switch (status) {
    case 0:
        return ATTND_OK;
    case ATTND_NOT_FOUND:
        return ATTND_ERR_NOT_FOUND;
    case ATTND_GONE:
    case ATTND_MOVED:
        return ATTND_ERR_GONE;
    case ATTND_EXISTS:
        return ATTND_ERR_EXISTS;
    case ATTND_GAP:
        return ATTND_ERR_POSITION;
    case ATTND_CONFLICT:
    case ATTND_FIXED:
    case ATTND_CHANGED:
        return ATTND_ERR_CONFLICT;
    case ATTND_BUSY:
        return ATTND_ERR_BUSY;
    case ATTND_NO_BLOCKS:
    case ATTND_NO_HOST_BLOCKS:
        return ATTND_ERR_NO_BLOCKS;
    case ATTND_NO_SEQUENCES:
        return ATTND_ERR_NO_SEQUENCES;
    case ATTND_NO_MEMORY:
        return ATTND_ERR_NO_MEMORY;
    case ATTND_DEADLINE:
        return ATTND_ERR_DEADLINE;
    case ATTND_DEVICE:
        return ATTND_ERR_DEVICE;
    case ATTND_INVALID:
    case ATTND_UNWRITTEN:
        return ATTND_ERR_INVALID;
    default:
        return ATTND_ERR_INTERNAL;
    }
}

const char *attnd_error(void)
{
    return last_error;
}

const char *attnd_code_name(int code)
{
    static const char *const names[] = {
        "ok",   "invalid",   "unsupported",  "not_found", "gone",     "exists", "position", "conflict",
        "busy", "no_blocks", "no_sequences", "no_memory", "deadline", "device", "forked",   "internal"};
    int n = (int)(sizeof names / sizeof names[0]);
    return code == ATTND_PENDING ? "pending" : code <= 0 && code > -n ? names[-code] : "unknown";
}

/* ---- what is in it ---------------------------------------------------------------------------------- */

const char *attnd_version(void)
{
    return "attnd " ATTND_VERSION " (" ATTND_COMMIT ")";
}

static char backends_text[1024];

static void list_backends(void)
{
    char reason[ATTENTION_ERROR_BYTES];
    size_t n = (size_t)snprintf(backends_text, sizeof backends_text, "cpu:");
    for (int i = 1; attention_isa_names[i]; i++) {
        if (attention_isa_supported(attention_isa_names[i]))
            n += (size_t)snprintf(backends_text + n, sizeof backends_text - n, " %s", attention_isa_names[i]);
    }
    n += (size_t)snprintf(backends_text + n, sizeof backends_text - n, "\nreference\ncuda: %s",
                          attention_cuda_build());
    if (!attention_cuda_present(reason))
        snprintf(backends_text + n, sizeof backends_text - n, "; not usable here: %s", reason);
}

const char *attnd_backends(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, list_backends);
    return backends_text;
}

static void (*log_write)(int level, const char *message, void *cookie);

static void log_sink(enum log_level level, const char *message, void *cookie)
{
    log_write((int)level, message, cookie);
}

void attnd_log(void (*write)(int level, const char *message, void *cookie), void *cookie)
{
    log_write = write;
    log_to(write ? log_sink : NULL, cookie);
}

static void note_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

/* As the library is loaded: it writes to no stream, and knows a fork from its parent. */
static void __attribute__((constructor)) load(void)
{
    log_to(NULL, NULL);
    log_init(LOG_DEBUG, LOG_TEXT);
    (void)pthread_atfork(NULL, NULL, note_fork);
}

/* ---- structs ---------------------------------------------------------------------------------------- */

int handle_take(void *to, size_t known, const void *from, const char *what)
{
    size_t size, n;
    if (!from)
        return handle_fail(ATTND_ERR_INVALID, "%s: is NULL", what);
    memcpy(&size, from, sizeof size);
    if (size < sizeof size || size > STRUCT_BYTES_MAX)
        return handle_fail(ATTND_ERR_INVALID, "%s.size: wants the sizeof of the struct, is %zu", what, size);
    n = size < known ? size : known;
    memset(to, 0, known);
    memcpy(to, from, n);
    for (size_t i = known; i < size; i++) {
        if (((const unsigned char *)from)[i])
            return handle_fail(ATTND_ERR_UNSUPPORTED, "%s: has a member that this library (%s) does not know",
                               what, ATTND_VERSION);
    }
    return ATTND_OK;
}

void handle_give(void *to, const void *from, size_t known)
{
    size_t size;
    memcpy(&size, to, sizeof size);
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size,
           (size < known ? size : known) - sizeof size);
}

bool handle_dtype(uint8_t code, uint8_t bits, enum dtype *dtype)
{
    static const struct {
        uint8_t code, bits;
        enum dtype dtype;
    } known[] = {{2, 32, DTYPE_F32},
                 {2, 16, DTYPE_F16},
                 {4, 16, DTYPE_BF16},
                 {10, 8, DTYPE_E4M3},
                 {12, 8, DTYPE_E5M2}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        *dtype = known[i].dtype;
        if (code == known[i].code && bits == known[i].bits)
            return true;
    }
    return false;
}

/* ---- requests that come back ------------------------------------------------------------------------ */

static void deliver(const struct output *output)
{
    float row[256];
    if (!output->to)
        return;
    size_t bytes = dtype_bytes(output->dtype), from_bytes = dtype_bytes(output->from_dtype);
    if (output->dtype == output->from_dtype) {
        memcpy(output->to, output->from, output->elements * bytes);
        return;
    }
    for (size_t at = 0, n; at < output->elements; at += n) {
        n = output->elements - at < 256 ? output->elements - at : 256;
        numeric_to_float(output->from_dtype, (const uint8_t *)output->from + at * from_bytes, n, row);
        numeric_from_float(output->dtype, row, n, (uint8_t *)output->to + at * bytes);
    }
}

/* A request of a call is completed. */
static void note(struct attnd *a, const struct ownership *owner, const struct request *request)
{
    struct call *call = owner->call;
    a->voided += request->status != 0 && request->queued.taken;
    const struct request_output *out =
        request->kind == REQUEST_MERGE ? &request->merge.out : &request->rows.out;
    a->pending--;
    call->pending--;
    if (request->status == 0) {
        deliver(&owner->o);
        deliver(&owner->lse);
        call->result.rows_in_step = out->rows_in_step;
        call->result.queue_us = out->queue_us;
        call->result.step_us = out->step_us;
        call->result.bytes_read = out->bytes_read;
    } else if (call->code == ATTND_OK || owner->index < call->result.failed) {
        call->code = code_of(request->status);
        call->result.failed = owner->index;
        memcpy(call->error, request->detail, sizeof request->detail);
    }
}

/* A streamed request is given to the device, or never will be. */
static void forget_untaken(struct attnd *a, const struct ownership *owner)
{
    for (struct ownership **link = &a->untaken; *link; link = &(*link)->next) {
        if (*link == owner) {
            *link = owner->next;
            return;
        }
    }
}

/* Take what is completed. */
static void drain(struct attnd *a)
{
    struct request *request;
    while ((request = engine_take(a->engine))) {
        struct ownership *owner = request->cookie;
        owner->done = true;
        if (!owner->call)
            continue;
        note(a, owner, request);
        forget_untaken(a, owner);
        owner->call->used &= !owner->call->dropped || owner->call->pending;
        engine_release(a->engine, request);
    }
}

/* ---- turns ------------------------------------------------------------------------------------------ */

/* Engine's thread. */
static void notify(void *cookie)
{
    struct attnd *a = cookie;
    if (!a->threaded)
        return;
    pthread_mutex_lock(&a->signal_mutex);
    a->signals++;
    pthread_cond_broadcast(&a->signal);
    pthread_mutex_unlock(&a->signal_mutex);
}

static bool turn(struct attnd *a)
{
    return !a->threaded && engine_turn(a->engine, engine_now_s(a->engine));
}

/* Let the engine go on. The mutex is given up meanwhile, so that other threads have their turn. `until_s`: on the engine's clock;
 * negative: no matter when. */
static void go_on(struct attnd *a, uint64_t signals, double until_s)
{
    if (a->threaded) {
        struct timespec until;
        double left = until_s < 0 ? 1 : until_s - engine_now_s(a->engine);
        clock_gettime(CLOCK_MONOTONIC, &until);
        left = left < 0   ? 0
               : left > 1 ? 1
                          : left; /* a failed backend completes what waits, but look now and then */
        until.tv_nsec += (long)(left * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_unlock(&a->mutex);
        pthread_mutex_lock(&a->signal_mutex);
        if (a->signals == signals)
            pthread_cond_timedwait(&a->signal, &a->signal_mutex, &until);
        pthread_mutex_unlock(&a->signal_mutex);
        pthread_mutex_lock(&a->mutex);
        return;
    }
    bool rests = !turn(a) && !engine_in_flight(a->engine);
    pthread_mutex_unlock(&a->mutex);
    if (rests)
        nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    pthread_mutex_lock(&a->mutex);
}

static uint64_t signals_of(struct attnd *a)
{
    if (!a->threaded)
        return 0;
    pthread_mutex_lock(&a->signal_mutex);
    uint64_t signals = a->signals;
    pthread_mutex_unlock(&a->signal_mutex);
    return signals;
}

int handle_enter(struct attnd *a)
{
    if (!a)
        return handle_fail(ATTND_ERR_INVALID, "the handle is NULL");
    if (a->forks != atomic_load(&forks))
        return handle_fail(ATTND_ERR_FORKED,
                           "the handle is of the process that has forked this one: open another one here");
    atomic_fetch_add(&a->inside, 1);
    pthread_mutex_lock(&a->mutex);
    engine_visit(a->engine, true);
    return ATTND_OK;
}

int handle_leave(struct attnd *a, int code)
{
    engine_visit(a->engine, false);
    pthread_mutex_unlock(&a->mutex);
    atomic_fetch_sub(&a->inside, 1);
    return code;
}

struct request *handle_acquire(struct attnd *a, enum request_kind kind, uint64_t id)
{
    drain(a);
    struct request *request = engine_acquire(a->engine);
    if (!request) {
        handle_fail(ATTND_ERR_BUSY, "%u calls are under way (limits.calls)", a->config.limits.calls);
        return NULL;
    }
    request->kind = kind;
    request->id = id;
    request->sees_all = true;
    request->weight = 1;
    return request;
}

int handle_run(struct attnd *a, struct request *request)
{
    struct ownership owner = {0};
    request->cookie = &owner; // cppcheck-suppress autoVariables; it has come back before this returns
    engine_submit(a->engine, request);
    for (;;) {
        uint64_t signals = signals_of(a);
        drain(a);
        if (owner.done)
            return request->status == 0 ? ATTND_OK
                                        : handle_fail(code_of(request->status), "%s", request->detail);
        go_on(a, signals, -1);
    }
}

int attnd_turn(struct attnd *a)
{
    int rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    bool worked = turn(a);
    drain(a);
    return handle_leave(a, worked);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

struct call *handle_begin_call(struct attnd *a)
{
    for (uint32_t i = 0; i < a->call_count; i++) {
        struct call *call = &a->calls[i];
        if (call->used)
            continue;
        *call = (struct call){.generation = call->generation + 1, .used = true};
        return call;
    }
    handle_fail(ATTND_ERR_BUSY, "%u tickets are out: attnd_poll() or attnd_await() take them back",
                a->call_count);
    return NULL;
}

void handle_submit(struct attnd *a, struct call *call, struct request *request)
{
    struct ownership *owner = request->cookie;
    owner->call = call;
    call->pending++;
    a->pending++;
    if (request_stream(request)) {
        owner->request = request;
        owner->next = a->untaken;
        a->untaken = owner;
    }
    engine_submit(a->engine, request);
}

/* It is done: tell how it went, and forget it. */
static int finish_call(struct call *call, struct attnd_result *result)
{
    int code = call->code;
    if (result)
        handle_give(result, &call->result, sizeof call->result);
    if (code != ATTND_OK)
        handle_fail(code, "%s", call->error);
    call->used = false;
    return code;
}

static int await_call(struct attnd *a, struct call *call, double timeout_s, struct attnd_result *result)
{
    double until = timeout_s < 0 ? -1 : engine_now_s(a->engine) + timeout_s;
    uint32_t generation = call->generation;
    for (;;) {
        uint64_t signals = signals_of(a);
        drain(a);
        if (call->generation != generation || !call->used)
            return handle_fail(ATTND_ERR_NOT_FOUND, "another thread has taken the ticket back");
        if (call->pending == 0)
            return finish_call(call, result);
        if (until >= 0 && engine_now_s(a->engine) >= until)
            return ATTND_PENDING;
        go_on(a, signals, until);
    }
}

int handle_end_call(struct attnd *a, struct call *call, uint64_t *ticket)
{
    if (!ticket)
        return await_call(a, call, -1, NULL);
    *ticket = (uint64_t)call->generation << 32 | (uint32_t)(call - a->calls);
    (void)turn(a); /* so that it begins */
    return ATTND_OK;
}

int handle_find_stream_room(struct attnd *a, uint32_t count)
{
    uint32_t most = 2 * a->config.geometry.layers;
    if (engine_stream_room(a->engine) < count)
        (void)turn(a); /* what is done makes room */
    drain(a);
    return engine_stream_room(a->engine) >= count
               ? ATTND_OK
               : handle_fail(ATTND_ERR_BUSY,
                             "the GPU's queue is full: %u lists of rows, at most, are under way", most);
}

/* Of the streamed requests in the list those that the device has been given are not untaken any more. */
static void sift_untaken(struct attnd *a)
{
    struct ownership **link = &a->untaken;
    while (*link) {
        if ((*link)->request->queued.taken)
            *link = (*link)->next;
        else
            link = &(*link)->next;
    }
}

int handle_end_stream_call(struct attnd *a, struct call *call, uint64_t *ticket)
{
    (void)engine_stream_turn(a->engine, engine_now_s(a->engine));
    for (;;) {
        drain(a);
        sift_untaken(a);
        if (!a->untaken)
            break;
        (void)turn(a); /* it waits for another one, or for its sequence to come back from the host */
    }
    if (call->code != ATTND_OK && !call->pending)
        return finish_call(call, NULL);
    if (ticket) {
        *ticket = (uint64_t)call->generation << 32 | (uint32_t)(call - a->calls);
        return ATTND_OK;
    }
    int code = call->code;
    if (code != ATTND_OK)
        handle_fail(code, "%s", call->error);
    call->dropped = true;
    call->used = call->pending > 0;
    return code;
}

static struct call *find_call(const struct attnd *a, uint64_t ticket)
{
    uint32_t i = (uint32_t)ticket;
    struct call *call = i < a->call_count ? &a->calls[i] : NULL;
    return call && call->used && call->generation == ticket >> 32 ? call : NULL;
}

int attnd_await(struct attnd *a, uint64_t ticket, double timeout_s, struct attnd_result *result)
{
    struct attnd_result known;
    int rc = result ? handle_take(&known, sizeof known, result, "result") : ATTND_OK;
    if (rc == ATTND_OK && isnan(timeout_s))
        rc = handle_fail(ATTND_ERR_INVALID, "timeout_s: is not a number");
    if (rc == ATTND_OK)
        rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    struct call *call = find_call(a, ticket);
    if (call)
        rc = await_call(a, call, timeout_s, result);
    else
        rc = handle_fail(ATTND_ERR_NOT_FOUND, "there is no such ticket, or it was taken back");
    return handle_leave(a, rc);
}

int attnd_poll(struct attnd *a, uint64_t ticket, struct attnd_result *result)
{
    struct attnd_result known;
    int rc = result ? handle_take(&known, sizeof known, result, "result") : ATTND_OK;
    if (rc == ATTND_OK)
        rc = handle_enter(a);
    if (rc != ATTND_OK)
        return rc;
    struct call *call = find_call(a, ticket);
    drain(a);
    if (call && call->pending && turn(a))
        drain(a);
    if (!call)
        rc = handle_fail(ATTND_ERR_NOT_FOUND, "there is no such ticket, or it was taken back");
    else
        rc = call->pending ? ATTND_PENDING : finish_call(call, result);
    return handle_leave(a, rc);
}

/* ---- open and close --------------------------------------------------------------------------------- */

/* What the daemon's configuration has and a library has not. */
static int fit_configuration(struct config *config, bool threaded)
{
    if (config->file_blocks)
        return handle_fail(ATTND_ERR_UNSUPPORTED,
                           "pool.file_blocks: the library has no file for swapped blocks");
    if (!threaded)
        config->batch_window_us = 0; /* nobody else can come while the caller waits */
    return ATTND_OK;
}

static int open_engine(struct attnd *a)
{
    char error[ATTENTION_ERROR_BYTES];
    const struct engine_options options = {
        .config = &a->config, .spare_requests = SPARE_REQUESTS, .notify = notify, .cookie = a};
    pthread_condattr_t monotonic;
    int rc = engine_create(&options, &a->engine, error);
    if (rc == ATTND_NOT_FOUND) /* no driver, no GPU, no compiler, or not in this build */
        return handle_fail(ATTND_ERR_UNSUPPORTED, "%s", error);
    if (rc != 0)
        return handle_fail(code_of(rc), "%s", error);
    engine_keep_all(a->engine, true);
    a->call_count = a->config.limits.calls;
    a->calls = calloc(a->call_count, sizeof *a->calls);
    pthread_mutex_init(&a->mutex, NULL);
    pthread_mutex_init(&a->signal_mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&a->signal, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (a->calls && (!a->threaded || engine_start(a->engine) == 0))
        return ATTND_OK;
    return handle_fail(ATTND_ERR_NO_MEMORY, "no memory for the engine's thread");
}

static void destroy(struct attnd *a)
{
    if (a->engine) {
        engine_destroy(a->engine);
        pthread_cond_destroy(&a->signal);
        pthread_mutex_destroy(&a->signal_mutex);
        pthread_mutex_destroy(&a->mutex);
    }
    free(a->calls);
    config_deinit(&a->config);
    free(a);
}

int attnd_open(const struct attnd_options *options, struct attnd **result)
{
    struct attnd_options o = {0};
    char error[CONFIG_ERROR_BYTES];
    int rc = handle_take(&o, sizeof o, options, "options");
    if (rc != ATTND_OK)
        return rc;
    if (!result || (o.configuration && o.configuration_file))
        return handle_fail(ATTND_ERR_INVALID, "%s",
                           result ? "options: configuration and configuration_file exclude each other"
                                  : "a: is NULL");
    struct attnd *a = calloc(1, sizeof *a);
    if (!a)
        return handle_fail(ATTND_ERR_NO_MEMORY, "no memory for a handle");
    const struct config_inputs inputs = {.file = o.configuration_file,
                                         .text = o.configuration,
                                         .sets = o.settings,
                                         .set_count = o.setting_count,
                                         .set_word = "setting"};
    a->threaded = o.thread != 0;
    a->forks = atomic_load(&forks);
    if (config_load(&a->config, &inputs, error) != 0) {
        free(a);
        return handle_fail(ATTND_ERR_INVALID, "%s", error);
    }
    rc = fit_configuration(&a->config, a->threaded);
    if (rc == ATTND_OK)
        rc = open_engine(a);
    if (rc == ATTND_OK)
        engine_visit(a->engine, false);
    if (rc != ATTND_OK) {
        destroy(a);
        return rc;
    }
    *result = a;
    return ATTND_OK;
}

void attnd_close(struct attnd *a)
{
    if (!a || handle_enter(a) != ATTND_OK) /* a child lets its parent's be */
        return;
    drain(a);
    while ((a->pending && !engine_failure(a->engine)) ||
           atomic_load(&a->inside) > 1) { /* others come to their end, too */
        uint64_t signals = signals_of(a);
        drain(a);
        go_on(a, signals, engine_now_s(a->engine) + CLOSE_LOOK_S);
    }
    while (!a->threaded && engine_in_flight(a->engine))
        (void)turn(a);
    handle_leave(a, ATTND_OK);
    destroy(a);
}
