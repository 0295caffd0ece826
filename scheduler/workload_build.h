/* SPDX-License-Identifier: Apache-2.0 */
/* workload_build.h - from lengths and arrivals, as they are written down or drawn, to the requests of a
 * workload: scaling, shared prefixes, forks, arrival processes. Loop thread. */
#ifndef SCHEDULER_WORKLOAD_BUILD_H
#define SCHEDULER_WORKLOAD_BUILD_H

#include "scheduler/shape.h"
#include "scheduler/workload.h"

enum { TRACE_HASH_TOKENS = 512 }; /* that one hash id of a trace stands for, before scaling */

/* What is done to every request of a shape or trace. */
struct workload_shaping {
    double length_scale, time_scale;       /* of all lengths (hash blocks too), of all arrivals; 1: none */
    double prefix_fraction, fork_fraction; /* of the requests get them */
    uint32_t prefix_length;                /* tokens of the shared prefix, not scaled */
    uint32_t fork_at, fork_count;          /* at 0: at the end of the prompt */
    double rate, cv;                       /* rate > 0: arrivals are drawn instead */
};

struct workload_builder {
    struct workload *workload;
    struct workload_shaping shaping;
    struct random random;
    double clock_s;              /* of drawn arrivals */
    struct workload_span *spans; /* scratch */
    uint32_t span_room;
};

/* workload_builder_init: `workload` is borrowed; all draws follow from its seed.
 * workload_builder_deinit frees the scratch. */
void workload_builder_init(struct workload_builder *b, struct workload *workload,
                           const struct workload_shaping *shaping);
void workload_builder_deinit(struct workload_builder *b);

/* workload_builder_arrival: the next arrival in seconds: `given`, scaled, or drawn. */
double workload_builder_arrival(struct workload_builder *b, double given);

/* workload_builder_add(b, arrival_s, prompt, decode, hash_ids, n, reason): one request of a trace,
 * before scaling. Each hash id <= CONTENT_ID_MAX names the content of TRACE_HASH_TOKENS tokens of its
 * prompt. Results as workload_add(). */
MUST_USE int workload_builder_add(struct workload_builder *b, double arrival_s, uint32_t prompt,
                                  uint32_t decode, const uint64_t *hash_ids, uint32_t n,
                                  char reason[WORKLOAD_REASON_BYTES]);

/* workload_builder_draw(b, shape, count, reason): `count` requests of a shape; they arrive together
 * unless shaping.rate says otherwise. */
MUST_USE int workload_builder_draw(struct workload_builder *b, const struct shape *shape, uint32_t count,
                                   char reason[WORKLOAD_REASON_BYTES]);

#endif
