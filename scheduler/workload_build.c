/* SPDX-License-Identifier: Apache-2.0 */
/* workload_build.c - see workload_build.h. */
#include "scheduler/workload_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHARED_PREFIX = 1 }; /* content number of prefix_share */

void workload_builder_init(struct workload_builder *b, struct workload *workload,
                           const struct workload_shaping *shaping)
{
    *b = (struct workload_builder){.workload = workload, .shaping = *shaping, .random = {workload->seed}};
}

void workload_builder_deinit(struct workload_builder *b)
{
    free(b->spans);
    b->spans = NULL;
}

double workload_builder_arrival(struct workload_builder *b, double given)
{
    if (b->shaping.rate <= 0)
        return given * b->shaping.time_scale;
    double arrival = b->clock_s;
    b->clock_s += random_gap(&b->random, b->shaping.rate, b->shaping.cv);
    return arrival;
}

static uint32_t scaled(double length, double scale)
{
    double result = floor(length * scale + 0.5);
    return result < 1 ? 1 : result > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)result;
}

/* The spans of a prompt: its hash blocks, or the shared prefix. Returns their number. */
static uint32_t lay_out_spans(struct workload_builder *b, uint32_t prompt, const uint64_t *hash_ids,
                              uint32_t n, bool prefix)
{
    uint32_t tokens = scaled(TRACE_HASH_TOKENS, b->shaping.length_scale), count = 0;
    for (uint64_t end = 0; count < n && end < prompt; count++) {
        end = end + tokens < prompt ? end + tokens : prompt;
        b->spans[count] = (struct workload_span){
            .end = (uint32_t)end, .content = workload_content_id(CONTENT_HASH, hash_ids[count])};
    }
    if (prefix && prompt && b->shaping.prefix_length) {
        uint32_t end = b->shaping.prefix_length < prompt ? b->shaping.prefix_length : prompt;
        b->spans[0] =
            (struct workload_span){.end = end, .content = workload_content_id(CONTENT_PREFIX, SHARED_PREFIX)};
        count = 1;
    }
    return count;
}

int workload_builder_add(struct workload_builder *b, double arrival_s, uint32_t prompt, uint32_t decode,
                         const uint64_t *hash_ids, uint32_t n, char reason[WORKLOAD_REASON_BYTES])
{
    const struct workload_shaping *s = &b->shaping;
    struct workload_request r = {.arrival_s = arrival_s,
                                 .prompt = prompt ? scaled(prompt, s->length_scale) : 0,
                                 .decode = decode ? scaled(decode, s->length_scale) : 0};
    bool prefix = random_unit(&b->random) < s->prefix_fraction;
    bool fork = random_unit(&b->random) < s->fork_fraction;
    if (n + 1 > b->span_room) {
        free(b->spans);
        b->span_room = 2 * (n + 1);
        b->spans = calloc(b->span_room, sizeof *b->spans);
        if (!b->spans)
            return ATTND_NO_MEMORY;
    }
    uint32_t at = s->fork_at ? s->fork_at : r.prompt;
    if (fork && at > 0 && at < r.prompt + r.decode) { /* shorter ones never come to the fork */
        r.fork_at = at;
        r.forks = s->fork_count;
    }
    uint32_t spans = lay_out_spans(b, r.prompt, hash_ids, n, prefix);
    return workload_add(b->workload, &r, b->spans, spans, reason);
}

int workload_builder_draw(struct workload_builder *b, const struct shape *shape, uint32_t count,
                          char reason[WORKLOAD_REASON_BYTES])
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        uint32_t prompt = shape_prompt(shape, &b->random), decode = shape_decode(shape, &b->random);
        rc = workload_builder_add(b, workload_builder_arrival(b, 0), prompt, decode, NULL, 0, reason);
    }
    return rc;
}
