/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h - what a backend fills in; attention.c calls through it. See attention.h for what each
 * does. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/attention.h"

#include <stdatomic.h>

struct attention_ops {
    void (*close)(struct attention *attention);
    /* `ticket`: 1, 2, ..., or the latest one again, if the step continues */
    void (*submit)(struct attention *attention, const struct attention_step *step, uint64_t ticket);
    /* NULL, all four: a step is done when submit returns; memory is any memory */
    bool (*poll)(struct attention *attention, uint64_t ticket);
    struct attention_times (*times)(struct attention *attention, uint64_t ticket);
    void *(*host_memory)(struct attention *attention, size_t bytes);
    void (*free_host_memory)(struct attention *attention, void *memory, size_t bytes);
    /* NULL, all nine: no step is streamed, and there are no regions */
    bool (*may_continue)(struct attention *attention);
    const char *(*look_at)(struct attention *attention, const void *address);
    const char *(*look_at_stream)(struct attention *attention, void *stream);
    void (*visit)(struct attention *attention, bool begins);
    void *(*own_stream)(struct attention *attention);
    int (*region_make)(struct attention *attention, uint64_t bytes, struct attention_region *region, int *fd,
                       char error[ATTENTION_ERROR_BYTES]);
    int (*region_take)(struct attention *attention, int fd, uint64_t bytes, bool writes,
                       struct attention_region *region, char error[ATTENTION_ERROR_BYTES]);
    int (*region_open)(struct attention *attention, const uint8_t handle[ATTENTION_IPC_BYTES], uint64_t bytes,
                       struct attention_region *region, char error[ATTENTION_ERROR_BYTES]);
    void (*region_end)(struct attention *attention, const struct attention_region *region);
    /* NULL: its passes have no stamps */
    uint32_t (*passes)(struct attention *attention, uint64_t ticket, struct attention_pass_times *passes);
    void (*look)(struct attention *attention); /* NULL: it is always there */
    /* NULL: it has none */
    struct attention_graphs (*graphs)(const struct attention *attention);
    /* NULL: there is nothing to test; no roof */
    enum attention_verdict (*self_test)(struct attention *attention);
    bool (*roof_part)(struct attention *attention, bool begins, struct attention_roof *roof);
    /* NULL: no clock of its own */
    bool (*time_passes)(struct attention *attention, const struct attention_step *step, uint32_t replays,
                        bool apart, double *us);
};

/* The first member of every backend's own structure. */
struct attention {
    const struct attention_ops *ops;
    struct attention_info info;
    char failure[ATTENTION_ERROR_BYTES]; /* see attention_failure(); empty: none */
    bool hangs;                          /* see attention_fail(): ops are not called any more */
    uint32_t step_timeout_s;             /* of every wait; 0: ATTENTION_STEP_TIMEOUT_S */
    _Atomic uint32_t depth;              /* of calls of ops: 0, 1, or 2 where one makes another */
    _Atomic uint64_t beats;              /* counts their begins, and looks during waits */
    uint64_t submitted;                  /* steps */
    struct attention_times times[ATTENTION_STEPS_IN_FLIGHT]; /* by ticket, if the backend has no clock */
    double ended_s;                                          /* likewise: when the latest step was done */
};

/* backend_await(a, is_done, cookie, doing): ask is_done(cookie) until it is true. After step_timeout_s
 * the device hangs: attention_fail(). This is the only place where anything waits for a device. Returns
 * whether there is no failure. */
bool backend_await(struct attention *attention, bool (*is_done)(void *cookie), void *cookie,
                   const char *doing);

/* merge_states_on_host(m, first, count): heads [first, first + count) of all rows together, in f32. Any
 * thread. */
void merge_states_on_host(const struct merge_states *m, size_t first, size_t count);

int reference_backend_open(const struct attention_options *options, struct attention **attention,
                           char error[ATTENTION_ERROR_BYTES]);
int cuda_backend_open(const struct attention_options *options, struct attention **attention,
                      char error[ATTENTION_ERROR_BYTES]);
/* Free memory of a GPU; 0 if there is none. */
uint64_t cuda_memory_available(uint32_t device);
int cpu_backend_open(const struct attention_options *options, struct attention **attention,
                     char error[ATTENTION_ERROR_BYTES]);
/* Whether cpu_backend_open() would take these options: 0, or ATTND_INVALID. */
int cpu_backend_check(const struct attention_options *options, char error[ATTENTION_ERROR_BYTES]);
/* For tests. How often the CPU backend has woken its other threads; and from which estimate on a step does,
 * 0: every step. */
uint64_t cpu_backend_wakes(const struct attention *attention);
void cpu_backend_wake_from(struct attention *attention, double us);

#endif
