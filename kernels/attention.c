/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - choose a backend, and call it. */
#include "kernels/attention.h"

#include "config/clock.h"
#include "config/fault.h"
#include "config/host_memory.h"
#include "config/log.h"
#include "config/mapping.h"
#include "kernels/backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOST_AT = 100 }; /* step at which a build for that loses its device, or from which on it hangs */

static bool is_isa(const char *name)
{
    for (int i = 0; attention_isa_names[i]; i++) {
        if (strcmp(attention_isa_names[i], name) == 0)
            return true;
    }
    return false;
}

/* A name that is none, with those that there are here. */
static int refuse_isa(const char *isa, char error[ATTENTION_ERROR_BYTES])
{
    int n = snprintf(error, ATTENTION_ERROR_BYTES,
                     "backend.isa: there is no \"%.32s\"; this machine takes auto", isa);
    for (int i = 1; attention_isa_names[i]; i++) {
        if (attention_isa_supported(attention_isa_names[i]))
            n += snprintf(error + n, (size_t)(ATTENTION_ERROR_BYTES - n), ", %s", attention_isa_names[i]);
    }
    return ATTND_INVALID;
}

static int refuse_name(const char *name, char error[ATTENTION_ERROR_BYTES])
{
    snprintf(error, ATTENTION_ERROR_BYTES,
             "backend.name: there is no \"%.32s\", only auto, cuda, cpu and reference", name);
    return ATTND_INVALID;
}

int attention_check(const struct attention_options *options, char error[ATTENTION_ERROR_BYTES])
{
    if (!is_isa(options->isa))
        return refuse_isa(options->isa, error);
    if (strcmp(options->backend, "reference") == 0)
        return 0;
    if (strcmp(options->backend, "cpu") == 0)
        return cpu_backend_check(options, error);
    if (strcmp(options->backend, "cuda") == 0)
        return attention_cuda_present(error) ? 0 : ATTND_NOT_FOUND;
    if (strcmp(options->backend, "auto") == 0)
        return attention_cuda_present(error) ? 0 : cpu_backend_check(options, error);
    return refuse_name(options->backend, error);
}

int attention_open(const struct attention_options *options, struct attention **attention,
                   char error[ATTENTION_ERROR_BYTES])
{
    if (!is_isa(options->isa))
        return refuse_isa(options->isa, error);
    if (strcmp(options->backend, "reference") == 0)
        return reference_backend_open(options, attention, error);
    if (strcmp(options->backend, "cpu") == 0)
        return cpu_backend_open(options, attention, error);
    if (strcmp(options->backend, "cuda") == 0)
        return cuda_backend_open(options, attention, error);
    if (strcmp(options->backend, "auto") == 0) {
        int rc = cuda_backend_open(options, attention, error);
        if (rc != ATTND_NOT_FOUND)
            return rc;
        log_line(LOG_INFO, "computing on the CPU: %s", error);
        return cpu_backend_open(options, attention, error);
    }
    return refuse_name(options->backend, error);
}

/* ---- a device that hangs ------------------------------------------------------------------------- */

/* Begin and end a call of the backend. */
static void enter(struct attention *a)
{
    atomic_fetch_add(&a->beats, 1);
    atomic_fetch_add(&a->depth, 1);
}

static void leave(struct attention *a)
{
    atomic_fetch_sub(&a->depth, 1);
}

uint64_t attention_call(const struct attention *a)
{
    bool can_hang = a->info.on_device || FAULTY(STUCK_DEVICE);
    return can_hang && atomic_load(&a->depth) ? atomic_load(&a->beats) : 0;
}

const char *attention_failure(const struct attention *attention)
{
    return attention->failure[0] ? attention->failure : NULL;
}

void attention_fail(struct attention *a, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!a->failure[0])
        vsnprintf(a->failure, sizeof a->failure, format, args);
    va_end(args);
    a->hangs = true;
}

bool backend_await(struct attention *a, bool (*is_done)(void *cookie), void *cookie, const char *doing)
{
    uint32_t limit_s = a->step_timeout_s ? a->step_timeout_s : ATTENTION_STEP_TIMEOUT_S;
    double end = clock_s() + limit_s;
    while (!a->failure[0]) {
        double now = clock_s(); /* ahead of the look, for a process that was stopped */
        atomic_fetch_add(&a->beats, 1);
        if (is_done(cookie))
            break;
        if (now > end)
            attention_fail(a, "the device hangs: %s is not finished after %u s", doing, limit_s);
    }
    return !a->failure[0];
}

/* ---- calling the backend ------------------------------------------------------------------------- */

void attention_close(struct attention *attention)
{
    if (attention && !attention->hangs)
        attention->ops->close(attention);
}

const struct attention_info *attention_info(const struct attention *attention)
{
    return &attention->info;
}

uint64_t attention_submit(struct attention *a, const struct attention_step *step)
{
    uint64_t ticket = step->continues ? a->submitted : ++a->submitted;
    if (FAULTY(LOST_DEVICE) && ticket == LOST_AT)
        snprintf(a->failure, sizeof a->failure, "the device was lost on purpose");
    if (a->hangs)
        return ticket;
    double start = clock_s();
    enter(a);
    while (FAULTY(STUCK_DEVICE) && ticket == LOST_AT)
        pause();
    a->ops->submit(a, step, ticket);
    leave(a);
    double end = clock_s();
    a->times[ticket % ATTENTION_STEPS_IN_FLIGHT] =
        (struct attention_times){end - start, a->ended_s > 0 ? start - a->ended_s : 0};
    a->ended_s = end;
    return ticket;
}

bool attention_poll(struct attention *a, uint64_t ticket)
{
    if (a->hangs)
        return true;
    if (FAULTY(HANGING_DEVICE) && ticket >= LOST_AT)
        return false;
    if (!a->ops->poll)
        return true;
    enter(a);
    bool done = a->ops->poll(a, ticket);
    leave(a);
    return done;
}

bool attention_may_continue(struct attention *a)
{
    return !a->failure[0] && a->ops->may_continue && a->ops->may_continue(a);
}

const char *attention_look_at(struct attention *a, const void *address)
{
    return a->failure[0] ? NULL : a->ops->look_at(a, address);
}

const char *attention_look_at_stream(struct attention *a, void *stream)
{
    return a->failure[0] ? NULL : a->ops->look_at_stream(a, stream);
}

void *attention_own_stream(struct attention *a)
{
    return a->ops->own_stream ? a->ops->own_stream(a) : NULL;
}

/* Whether it has, and how. */
static bool has_failed(const struct attention *a, char error[ATTENTION_ERROR_BYTES])
{
    if (a->failure[0])
        memcpy(error, a->failure, sizeof a->failure);
    return a->failure[0];
}

int attention_region_make(struct attention *a, uint64_t bytes, struct attention_region *region, int *fd,
                          char error[ATTENTION_ERROR_BYTES])
{
    if (has_failed(a, error))
        return ATTND_DEVICE;
    enter(a);
    int rc = a->ops->region_make(a, bytes, region, fd, error);
    leave(a);
    return rc;
}

int attention_region_take(struct attention *a, int fd, uint64_t bytes, bool writes,
                          struct attention_region *region, char error[ATTENTION_ERROR_BYTES])
{
    if (has_failed(a, error))
        return ATTND_DEVICE;
    enter(a);
    int rc = a->ops->region_take(a, fd, bytes, writes, region, error);
    leave(a);
    return rc;
}

int attention_region_open(struct attention *a, const uint8_t handle[ATTENTION_IPC_BYTES], uint64_t bytes,
                          struct attention_region *region, char error[ATTENTION_ERROR_BYTES])
{
    if (has_failed(a, error))
        return ATTND_DEVICE;
    enter(a);
    int rc = a->ops->region_open(a, handle, bytes, region, error);
    leave(a);
    return rc;
}

void attention_look(struct attention *a)
{
    if (!a->ops->look || a->failure[0])
        return;
    enter(a);
    a->ops->look(a);
    leave(a);
}

void attention_region_end(struct attention *a, const struct attention_region *region)
{
    if (a->failure[0]) /* the device keeps it */
        return;
    enter(a);
    a->ops->region_end(a, region);
    leave(a);
}

void attention_visit(struct attention *a, bool begins)
{
    if (a->ops->visit && !a->hangs)
        a->ops->visit(a, begins);
}

struct awaited {
    struct attention *attention;
    uint64_t ticket;
};

static bool is_done(void *cookie)
{
    const struct awaited *x = cookie;
    return attention_poll(x->attention, x->ticket);
}

void attention_await(struct attention *attention, uint64_t ticket)
{
    struct awaited awaited = {attention, ticket};
    (void)backend_await(attention, is_done, &awaited, "a step");
}

struct attention_times attention_times(struct attention *attention, uint64_t ticket)
{
    if (attention->hangs)
        return (struct attention_times){0};
    return attention->ops->times ? attention->ops->times(attention, ticket)
                                 : attention->times[ticket % ATTENTION_STEPS_IN_FLIGHT];
}

uint32_t attention_passes(struct attention *attention, uint64_t ticket,
                          struct attention_pass_times passes[ATTENTION_PASSES_STAMPED])
{
    return attention->ops->passes && !attention->hangs ? attention->ops->passes(attention, ticket, passes)
                                                       : 0;
}

void *attention_host_memory(struct attention *attention, size_t bytes)
{
    if (attention->hangs)
        return NULL;
    if (attention->ops->host_memory) {
        enter(attention);
        void *pinned = attention->ops->host_memory(attention, bytes);
        leave(attention);
        return pinned;
    }
    return mapping_create(bytes, 0);
}

void attention_free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    if (!memory || attention->hangs)
        return;
    if (!attention->ops->free_host_memory) {
        mapping_destroy(memory, bytes);
        return;
    }
    enter(attention);
    attention->ops->free_host_memory(attention, memory, bytes);
    leave(attention);
}

enum attention_verdict attention_self_test(struct attention *attention)
{
    if (attention->hangs)
        return ATTENTION_TEST_FAILED;
    if (!attention->ops->self_test)
        return ATTENTION_TEST_PASSED;
    enter(attention);
    enum attention_verdict verdict = attention->ops->self_test(attention);
    leave(attention);
    return verdict;
}

bool attention_time_passes(struct attention *attention, const struct attention_step *step, uint32_t replays,
                           bool apart, double *us)
{
    if (attention->hangs || !attention->ops->time_passes)
        return false;
    enter(attention);
    bool timed = attention->ops->time_passes(attention, step, replays, apart, us);
    leave(attention);
    return timed;
}

/* Bytes that are free on the GPU that the backend would use; 0: it would use none. */
static uint64_t free_on_gpu(const char *backend, uint32_t device)
{
    bool may = strcmp(backend, "cuda") == 0 || strcmp(backend, "auto") == 0;
    return may ? cuda_memory_available(device) : 0;
}

bool attention_is_on_device(const char *backend, uint32_t device)
{
    return free_on_gpu(backend, device) > 0;
}

uint64_t attention_memory_available(const char *backend, uint32_t device)
{
    uint64_t bytes = free_on_gpu(backend, device);
    return bytes ? bytes : host_memory_available();
}

struct attention_graphs attention_graphs(const struct attention *attention)
{
    bool has = attention->ops->graphs && !attention->hangs;
    return has ? attention->ops->graphs(attention) : (struct attention_graphs){0};
}

bool attention_roof_part(struct attention *attention, bool begins, struct attention_roof *roof)
{
    *roof = (struct attention_roof){0};
    if (attention->hangs || !attention->ops->roof_part)
        return true;
    enter(attention);
    bool done = attention->ops->roof_part(attention, begins, roof);
    leave(attention);
    return done;
}

struct attention_roof attention_measure_roof(struct attention *attention)
{
    struct attention_roof roof;
    bool done = attention_roof_part(attention, true, &roof);
    while (!done)
        done = attention_roof_part(attention, false, &roof);
    return roof;
}
