/* SPDX-License-Identifier: Apache-2.0 */
/* step_log.h - what the latest steps did, and what they took: a ring of fixed size, written when a step retires.
 *
 *     forming | planning | handing over |      computing      |
 *     begin_s                                                  end_s
 *
 * GET /v1/steps and GET /v1/trace show it. Engine thread; nothing allocates. */
#ifndef SCHEDULER_STEP_LOG_H
#define SCHEDULER_STEP_LOG_H

#include "kernels/attention.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    STEP_LOG_STEPS = 1000,
    STEP_LOG_OWNERS = 8 /* of a step; rows of further ones are counted together */
};

/* Queries of a step that belong to a key. */
struct step_log_owner {
    uint64_t key; /* 0: none */
    uint32_t rows;
};

/* A step. Times are on the engine's clock, parts of it in microseconds; NAN: not measured, or there was none. */
struct step_log_entry {
    uint64_t step;
    double begin_s, end_s;        /* its forming began; it was found done */
    float form_us, plan_us;       /* to choose what is in it; to lay it out and plan it */
    float submit_us;              /* the call that hands it over; on the CPU that computes it, too */
    float queue_us;               /* its request that waited longest, until it began to be formed */
    float upload_us;              /* of a device: the host writes the step down and begins the uploads */
    float compute_us;             /* by the backend's clock */
    float merge_us;               /* of it, to merge partial states */
    float idle_us;                /* of the backend, since the end of the step before */
    uint32_t rows_clients;        /* queries */
    uint32_t rows_workloads;      /* likewise, once for all layers */
    uint32_t sequences;           /* that take part */
    uint32_t appends;             /* tokens; a client's at each layer, a workload's once for all layers */
    uint32_t copies;              /* of blocks, on write */
    uint32_t swaps_out, swaps_in; /* blocks */
    uint64_t kv_bytes;            /* of K and V that its plans read */
    uint32_t owner_count, rows_of_others;
    struct step_log_owner owners[STEP_LOG_OWNERS]; /* [owner_count] */
};

/* The passes of a step by the device's clock, with backend.pass_stamps. */
enum { STEP_LOG_STAMPED = 128 }; /* steps: a page of a trace */
struct step_log_passes {
    uint64_t step; /* 0: none */
    uint32_t count;
    struct attention_pass_times passes[ATTENTION_PASSES_STAMPED];
};

struct step_log {
    struct step_log_entry entries[STEP_LOG_STEPS];
    uint64_t count; /* that were ever added */
    struct step_log_passes *
        passes; /* [STEP_LOG_STAMPED] by step; NULL: they have no stamps. Whoever has made the log frees it */
};

/* step_log_own(entry, key, rows): so many queries of the step are of the key. O(STEP_LOG_OWNERS). */
void step_log_own(struct step_log_entry *entry, uint64_t key, uint32_t rows);

/* step_log_add: the steps come in the order of their numbers. */
void step_log_add(struct step_log *log, const struct step_log_entry *entry);

/* step_log_passes: those of a step; NULL: it has none, or not any more. */
const struct step_log_passes *step_log_passes(const struct step_log *log, uint64_t step);

/* step_log_read(log, since, latest, limit, entries): copy at most `limit` entries, oldest first: of steps behind `since`
 * the first ones, or, `latest`, the last ones of all. Returns how many. O(limit + log STEP_LOG_STEPS). */
uint32_t step_log_read(const struct step_log *log, uint64_t since, bool latest, uint32_t limit,
                       struct step_log_entry *entries);

#endif
