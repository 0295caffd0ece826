/* attention.c - choose a backend, and call it. */
#include "kernels/attention.h"

#include "config/clock.h"
#include "config/config.h"
#include "config/fault.h"
#include "config/log.h"
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { LOST_AT = 100 }; /* step at which a build for that loses its device */

static bool is_isa(const char *name)
{
    for (int i = 0; attention_isa_names[i]; i++) {
        if (strcmp(attention_isa_names[i], name) == 0)
            return true;
    }
    return false;
}

int attention_open(const struct attention_options *options, struct attention **attention,
                   char error[ATTENTION_ERROR_BYTES])
{
    if (!is_isa(options->isa)) {
        snprintf(error, ATTENTION_ERROR_BYTES, "backend.isa: there is no \"%.32s\"", options->isa);
        return ATTND_INVALID;
    }
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
    snprintf(error, ATTENTION_ERROR_BYTES,
             "backend.name: there is no \"%.32s\", only auto, cuda, cpu and reference",
             options->backend);
    return ATTND_INVALID;
}

void attention_close(struct attention *attention)
{
    if (attention)
        attention->ops->close(attention);
}

const struct attention_info *attention_info(const struct attention *attention)
{
    return &attention->info;
}

uint64_t attention_submit(struct attention *a, const struct attention_step *step)
{
    uint64_t ticket = ++a->submitted;
    if (FAULTY(LOST_DEVICE) && ticket == LOST_AT)
        snprintf(a->failure, sizeof a->failure, "the device was lost on purpose");
    double start = clock_s();
    a->ops->submit(a, step, ticket);
    double end = clock_s();
    a->times[ticket % ATTENTION_STEPS_IN_FLIGHT] =
        (struct attention_times){end - start, a->ended_s > 0 ? start - a->ended_s : 0};
    a->ended_s = end;
    return ticket;
}

bool attention_poll(struct attention *attention, uint64_t ticket)
{
    return !attention->ops->poll || attention->ops->poll(attention, ticket);
}

struct attention_times attention_times(struct attention *attention, uint64_t ticket)
{
    return attention->ops->times ? attention->ops->times(attention, ticket)
                                 : attention->times[ticket % ATTENTION_STEPS_IN_FLIGHT];
}

void *attention_host_memory(struct attention *attention, size_t bytes)
{
    if (attention->ops->host_memory)
        return attention->ops->host_memory(attention, bytes);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void attention_free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    if (memory && attention->ops->free_host_memory)
        attention->ops->free_host_memory(attention, memory, bytes);
    else if (memory)
        munmap(memory, bytes);
}

const char *attention_failure(const struct attention *attention)
{
    return attention->failure[0] ? attention->failure : NULL;
}

void attention_read_kv(struct attention *attention, uint32_t layer, uint32_t block, uint32_t slot,
                       uint32_t count, void *k, void *v)
{
    attention->ops->read_kv(attention, layer, block, slot, count, k, v);
}

uint32_t attention_compare_kv(struct attention *attention, const struct kv_rows *rows,
                              const uint32_t *ids)
{
    return attention->ops->compare_kv(attention, rows, ids);
}

void attention_merge_states(struct attention *attention, const struct merge_states *m)
{
    if (attention->ops->merge_states)
        attention->ops->merge_states(attention, m);
    else
        merge_states_on_host(m);
}

bool attention_self_test(struct attention *attention)
{
    return attention->ops->self_test(attention);
}

bool attention_time_passes(struct attention *attention, const struct attention_step *step,
                           uint32_t replays, bool apart, double *us)
{
    return attention->ops->time_passes &&
           attention->ops->time_passes(attention, step, replays, apart, us);
}

uint64_t attention_memory_available(const char *backend, uint32_t device)
{
    bool on_gpu = strcmp(backend, "cuda") == 0 || strcmp(backend, "auto") == 0;
    uint64_t bytes = on_gpu ? cuda_memory_available(device) : 0;
    return bytes ? bytes : config_memory_available();
}

double attention_measure_roof(struct attention *attention)
{
    return attention->ops->measure_roof(attention);
}
