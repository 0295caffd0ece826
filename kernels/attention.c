/* attention.c - choose a backend, and call it. */
#include "kernels/attention.h"

#include "config/log.h"
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>

int attention_open(const struct attention_options *options, struct attention **attention,
                   char error[ATTENTION_ERROR_BYTES])
{
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

void attention_submit(struct attention *attention, const struct attention_step *step)
{
    attention->ops->submit(attention, step);
}

bool attention_poll(struct attention *attention)
{
    return attention->ops->poll(attention);
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

bool attention_self_test(struct attention *attention)
{
    return attention->ops->self_test(attention);
}

bool attention_time_passes(struct attention *attention, const struct attention_step *step,
                           uint32_t replays, double *us)
{
    return attention->ops->time_passes && attention->ops->time_passes(attention, step, replays, us);
}

double attention_measure_roof(struct attention *attention)
{
    return attention->ops->measure_roof(attention);
}
