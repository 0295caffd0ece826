/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - the contract between the scheduler and whatever computes attention.
 *
 * A backend owns the bytes of the KV pool. It is told, step by step, which slots to copy and fill and
 * which plan to execute. Names and shapes:
 *
 *   q, o     [rows][query_heads][head_dim]    geometry.dtype
 *   lse      [rows][query_heads]              f32, natural logarithm, -inf for a row without keys
 *   k, v     [tokens][kv_heads][head_dim]     geometry.dtype, converted when stored, or as it is in
 *                                             geometry.kv_dtype
 *   tables   [sequences][stride]              block ids; entries behind a sequence's end are never read
 *
 * The score of query i and key j is softcap(scale * q.k) + slope * (j - i); key j is visible iff j <= i
 * and (window = 0 or i - j < window). A sink is one more logit without a value, merged last; lse
 * includes it. k and v must be finite in the KV format: masked finite values leave the bits of other
 * rows alone, NaN and infinity would not.
 *
 * All functions belong to the engine thread, but for attention_call(). None needs the steps in flight to be
 * done, but attention_roof_part(), attention_measure_roof() and attention_time_passes(), for the start and for benchmarks; and the
 * model constants change only while no step is in flight. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include "config/block_copy.h"
#include "config/geometry.h"
#include "kernels/plan.h"
#include "kernels/values.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    ATTENTION_ERROR_BYTES = 256,
    ATTENTION_STEPS_IN_FLIGHT = 2, /* submitted and not done; they are done in their order */
    ATTENTION_STEP_TIMEOUT_S = 60, /* unless the options say otherwise */
    ATTENTION_PLANS = 8 /* different plans of a step that a device keeps; others it prepares again */
};

struct attention;

/* Which of the kernels of the vllm layout; those of the other layouts follow from the geometry. */
enum attention_kernel { ATTENTION_AUTO, ATTENTION_PAGED_V1, ATTENTION_PAGED_V2 };

struct attention_options {
    const char *backend;             /* "auto", "cuda", "cpu" or "reference" */
    const char *isa;                 /* of the CPU backend: "auto" or a name of attention_isa_names */
    uint32_t threads;                /* of the CPU backend; 0: as many as this process may use */
    uint32_t device;                 /* of the CUDA backend: which GPU */
    enum attention_kernel kernel;    /* likewise */
    bool l2_prefetch;                /* likewise: backend.l2_prefetch */
    bool pass_stamps;                /* likewise: see attention_passes() */
    const char *cache;               /* likewise: folder for compiled kernels, "" or "none" (config.c) */
    uint32_t step_timeout_s;         /* likewise: of every wait; 0: ATTENTION_STEP_TIMEOUT_S */
    const struct geometry *geometry; /* borrowed for the life of the backend */
    const struct model_constants *constants; /* likewise; may change between steps */
    uint32_t blocks;
    const char *pool_key;  /* which key of the configuration said so, for errors; NULL: pool.blocks */
    uint32_t host_blocks;  /* in host memory, for swapping */
    uint32_t rows_max;     /* query rows of a pass */
    uint32_t partials_max; /* partial states that a plan may have */
    uint32_t table_rows, table_stride; /* sizes of the block tables, for backends that copy them */
    /* Called now and then while the pool is being touched; may be NULL. */
    void (*progress)(uint64_t bytes_done, uint64_t bytes, void *cookie);
    void *cookie;
};

/* Host memory for blocks that are swapped: layer l of block b, K and V, is layer_bytes at bytes + l x layer_stride +
 * b x block_stride. Steps in flight read and write it. */
struct attention_host {
    uint8_t *bytes; /* NULL: there is none */
    uint32_t layers;
    uint64_t layer_stride, block_stride, layer_bytes;
};

struct attention_info {
    const char *name, *isa;
    const char *kernel; /* that computes attention */
    char device[128];
    uint32_t threads; /* of the host, or multiprocessors */
    uint32_t tasks;   /* pieces of work that keep all of them busy to the end */
    bool bit_stable;
    bool on_device;     /* not on this machine's processors, which are free while a step is computed */
    bool takes_streams; /* steps may be streamed */
    uint64_t
        region_unit; /* regions have a multiple of so many bytes (attention_region_make); 0: there are none */
    bool shares_context; /* what another process does wrong on the device ends this one's, too: NVIDIA MPS */
    uint32_t paged_v1_tokens; /* longest row of paged_v1; 0: kernels cannot be named */
    struct tile_caps tile_caps;
    bool p_rounded; /* probabilities are rounded to geometry.dtype (with fp8 K and V: to f16) before
                       they weigh values */
    struct attention_host host;
};

/* `count` consecutive tokens of one sequence, the first at `position`. */
struct kv_append {
    uint32_t table, position, count;
    const void *k, *v;             /* [count][kv_heads][head_dim] of the pass's source_dtype; NULL: */
    struct value_source generated; /* values.h */
    /* NULL, or, of a streamed step, in attention_host_memory(): becomes KV_WRONG_K or KV_WRONG_V if an element is not finite or,
       of v, 2^97 or more. 0 is stored in its place, and rows of this content get NaN from then on. */
    uint8_t *wrong;
    uint64_t content; /* of the sequence */
};

/* Where q, o and lse of a row of a pass lie. */
struct attention_row {
    const void *q;    /* [query_heads][head_dim] of geometry.dtype */
    void *o;          /* likewise */
    float *lse;       /* [query_heads]; NULL: not wanted */
    uint64_t content; /* of its sequence, whose k or v may have been wrong (kv_append); 0: not */
};

/* How many of `count` consecutive tokens, the first at `position`, from the first one on, are what stands in
 * the pool, once k and v are converted as an append converts them. */
struct kv_compare {
    uint32_t table, layer, position, count;
    enum dtype dtype; /* geometry.dtype or geometry.kv_dtype */
    const void *k, *v;
    uint32_t *equal; /* the result */
};

/* K and V of consecutive tokens as they are stored: [count][kv_heads][head_dim] in geometry.kv_dtype. */
struct kv_read {
    uint32_t table, layer, position, count;
    void *k, *v;
};

/* States of the same rows over disjoint sets of keys, to be merged into the state over all of them. An
 * output o is normalised, lse is the natural logarithm of its sum of exponentials, -inf without keys
 * (o is then not looked at). Formula: m = max lse_i, w_i = exp(lse_i - m), o = sum w_i o_i / sum w_i,
 * lse = m + ln sum w_i; FlashInfer's merge_states. Without any keys o = 0. */
struct merge_states {
    uint32_t states, rows, heads, head_dim;
    enum dtype dtype; /* of o and merged_o */
    const void *o;    /* [states][rows][heads][head_dim] */
    const float *lse; /* [states][rows][heads] */
    void *merged_o;   /* [rows][heads][head_dim]; may be the first state's, in place */
    float *merged_lse;
};

/* One layer of a step: its appends, then attention over a plan. Layers with the same rows and mask may
 * share the plan. */
struct attention_pass {
    uint32_t layer;
    const struct kv_append *appends;
    uint32_t append_count;
    enum dtype source_dtype; /* of k and v that are given */
    const struct plan *plan; /* NULL: appends only. If all its work tiles leave states, o and lse are not
                                used */
    const struct attention_row *rows;    /* [plan->query_count]; NULL: */
    const struct value_source *q_source; /* [plan->query_count]: q is generated (values.h), */
    void *o;                      /* and these lie one after the other: [row_count][query_heads][head_dim], */
    float *lse;                   /* [row_count][query_heads]; NULL: not wanted */
    enum attention_kernel kernel; /* AUTO: as the options have it; see attention_info.paged_v1_tokens */
};

/* `count` tokens of an append, from its token `first` on. row_bytes: of a token of k, or v, that are given. */
static inline struct kv_append kv_append_part(const struct kv_append *append, uint32_t first, uint32_t count,
                                              size_t row_bytes)
{
    struct kv_append part = *append;
    part.position += first;
    part.count = count;
    if (append->k) {
        part.k = (const uint8_t *)append->k + first * row_bytes;
        part.v = (const uint8_t *)append->v + first * row_bytes;
    }
    return part;
}

/* Where o and lse of row `row` of a pass belong; lse NULL: not wanted. */
static inline struct attention_row attention_row_of(const struct attention_pass *pass,
                                                    const struct geometry *g, uint32_t row)
{
    if (pass->rows)
        return pass->rows[row];
    return (struct attention_row){.o = (uint8_t *)pass->o + row * geometry_q_row_bytes(g),
                                  .lse = pass->lse ? pass->lse + (size_t)row * g->query_heads : NULL};
}

/* A row of the block tables that a step reads or writes. As long as the row comes with the same
 * version, the entries that it had before are what they were. */
struct table_use {
    uint32_t row, entries;
    uint64_t version;
};

struct attention_step {
    const uint32_t *tables; /* [sequences][stride], borrowed until the step is done */
    uint32_t stride;
    const struct table_use *uses; /* every row that compares, reads and passes name, once */
    uint32_t use_count;
    /* In this order, before anything else; but swaps are made in their order among themselves, beside
       the rest of the step, which does not touch the blocks that they name. */
    const struct block_copy *copies;
    uint32_t copy_count;
    /* Behind the copies and ahead of every pass: none sees what the step appends. Results are there when the
       step is done. A step may consist of these alone. */
    const struct kv_compare *compares;
    const struct kv_read *reads;
    const struct merge_states *merges; /* in any order, since none sees what another one makes */
    uint32_t compare_count, read_count, merge_count;
    const struct attention_pass *passes; /* in this order */
    uint32_t pass_count;
    /* The first so many of these mostly come again in a later step. They generate q, and the others then
       do not; these may run beside them: nothing that one of them writes is read by another. */
    uint32_t steady;
    /* Its tensors lie on the device, and what was given to this stream of the caller's (a CUstream) comes before the step, and what
       is given to it later behind. */
    bool streamed;
    void *stream;
    /* It is more of the latest step, which is done when both are: see attention_may_continue(). */
    bool continues;
};

/* attention_open(options, attention, error): take the pool's memory, touch it, test the kernels against
 * the reference. Returns 0, or ATTND_INVALID (options; `error` says which), ATTND_NO_MEMORY. */
MUST_USE int attention_open(const struct attention_options *options, struct attention **attention,
                            char error[ATTENTION_ERROR_BYTES]);
void attention_close(struct attention *attention);

/* attention_check(options, error): refuse what attention_open() refuses, as far as that is known without a device or a
 * pool: backend, isa and geometry of the options. Returns 0, ATTND_INVALID or ATTND_NOT_FOUND. */
MUST_USE int attention_check(const struct attention_options *options, char error[ATTENTION_ERROR_BYTES]);

const struct attention_info *attention_info(const struct attention *attention);

/* What a step took, by the backend's own clock. */
struct attention_times {
    double busy_s;
    double idle_s; /* since the end of the step before */
};

/* A pass of a step by the device's own clock, in microseconds: its begin after the step's, then each of its parts in this order. 0: it has
 * no such part. */
enum { ATTENTION_PASSES_STAMPED = 64 }; /* of a step, the first ones */
struct attention_pass_times {
    uint32_t layer;
    float begin_us;
    float append_us; /* k, v are stored, and q is loaded or generated */
    float attend_us; /* its tiles */
    float merge_us;  /* of partial states */
    float store_us;  /* o and lse, of clients */
};

/* How many graphs of passes a device has been given since the start, how many of them were recorded for
 * that, and how many recorded ones were made anew, since no graph of the same form was there. */
struct attention_graphs {
    uint64_t launched, recorded, made;
};

/* attention_submit: begin a step; the result is its ticket. The tensors that it names (q, k, v, o, lse, those
 * of merges, kv_compare.equal) stay untouched until attention_poll() says that it is done; all else may be
 * used again. A device uses tensors where they are: they lie in attention_host_memory(), aligned to 8
 * bytes (lse: to 4); equal and q_source may lie anywhere. */
uint64_t attention_submit(struct attention *attention, const struct attention_step *step);

/* attention_poll: whether a step is done. */
bool attention_poll(struct attention *attention, uint64_t ticket);

/* attention_may_continue: whether there is room for more in the latest step, which is not known to be done. */
bool attention_may_continue(struct attention *attention);

/* attention_look_at: what is wrong with the address of a tensor on the device, or, _stream, with the stream of a streamed step, as a
 * constant sentence; NULL: nothing. */
const char *attention_look_at(struct attention *attention, const void *address);
const char *attention_look_at_stream(struct attention *attention, void *stream);

/* attention_own_stream: a stream (CUstream) for streamed steps whose tensors are there when they are submitted; NULL: the backend takes no
 * streams. */
void *attention_own_stream(struct attention *attention);

/* Memory of the device that another process of this host may have, too. */
struct attention_region {
    void *address; /* of the device, here */
    uint64_t bytes;
    bool ipc;
};
enum { ATTENTION_IPC_BYTES = 64 };

/* Of backends with info.region_unit. attention_region_make: a new one of so many bytes, a multiple of that, with a descriptor for others to map it by, which is the caller's to close.
 * attention_region_take: memory that came with a descriptor, to read, or to write, too (`writes`); the descriptor stays the caller's.
 * attention_region_open: memory of a process that is trusted to keep it until the region's end, by its handle (CUipcMemHandle).
 * All return 0, ATTND_NO_MEMORY or ATTND_INVALID with a sentence. They take a fraction of a millisecond. attention_region_end: unmap one
 * that no step in flight names. */
MUST_USE int attention_region_make(struct attention *attention, uint64_t bytes,
                                   struct attention_region *region, int *fd,
                                   char error[ATTENTION_ERROR_BYTES]);
MUST_USE int attention_region_take(struct attention *attention, int fd, uint64_t bytes, bool writes,
                                   struct attention_region *region, char error[ATTENTION_ERROR_BYTES]);
MUST_USE int attention_region_open(struct attention *attention, const uint8_t handle[ATTENTION_IPC_BYTES],
                                   uint64_t bytes, struct attention_region *region,
                                   char error[ATTENTION_ERROR_BYTES]);
void attention_region_end(struct attention *attention, const struct attention_region *region);

/* attention_look: ask a device that has nothing to do whether it is still there; if not, that is the failure. */
void attention_look(struct attention *attention);

/* attention_visit: the calling thread is about to call, or has called, functions of the backend, and what it has of the driver's (a
 * context) is to be as it was before. */
void attention_visit(struct attention *attention, bool begins);

/* attention_await: wait until a step is done. One that is not after step_timeout_s is a failure. */
void attention_await(struct attention *attention, uint64_t ticket);

/* attention_times: of one of the two latest steps that are done. */
struct attention_times attention_times(struct attention *attention, uint64_t ticket);

/* attention_passes: likewise, of its passes, with attention_options.pass_stamps; how many. 0 elsewhere, and of a streamed step. */
uint32_t attention_passes(struct attention *attention, uint64_t ticket,
                          struct attention_pass_times passes[ATTENTION_PASSES_STAMPED]);

/* attention_graphs: all zero where there are none. */
struct attention_graphs attention_graphs(const struct attention *attention);

/* attention_host_memory(a, bytes): memory for tensors. NULL when there is none. */
void *attention_host_memory(struct attention *attention, size_t bytes);
void attention_free_host_memory(struct attention *attention, void *memory, size_t bytes);

/* attention_failure: why this backend has stopped working (a device error that cannot be undone), or
 * NULL. After it nothing is computed any more, and outputs (kv_compare.equal too) are not to be used. */
const char *attention_failure(const struct attention *attention);

/* attention_fail(a, format, ...): give up a device that hangs. The sentence becomes the failure, unless
 * there is one. From then on the backend is not called any more, since a driver may wait for its device
 * in any call: steps are done, took no time and have computed nothing; memory and backend are not
 * freed, since the device may still write there. */
void attention_fail(struct attention *attention, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* attention_call: any thread. Which call of a backend with a device the caller of these functions is
 * in; another number for every call, and again and again during a wait in it. 0: in none. The same
 * number for long means that the driver does not return. */
uint64_t attention_call(const struct attention *attention);

/* attention_self_test(a): compare the kernels with the reference on a small problem, as at the start, part
 * by part: begin a test, or do the next part of it. ATTENTION_TEST_RUNS: call again, now or later; else
 * that was the end of it. In memory and, on a device, a stream of its own, so that steps in flight neither
 * wait nor are waited for. A part takes about a millisecond, or, while a device computes, a microsecond; a
 * test one part (reference), 10 (CPU), or up to 200 and those that find the device at work (CUDA). A device that is not done after step_timeout_s hangs: a failure. */
enum attention_verdict { ATTENTION_TEST_RUNS, ATTENTION_TEST_PASSED, ATTENTION_TEST_FAILED };
enum attention_verdict attention_self_test(struct attention *attention);

/* GB/s at which the pool can be read by this backend: of several passes over it, in the fastest of several plain
 * ways. All 0: not measured. */
struct attention_roof {
    double best, median, worst;
};

/* attention_roof_part(a, begins, roof): begin to measure the roof, or do the next part of that: a few milliseconds,
 * unless others use the machine. False: call again, now or later; steps may be run meanwhile, but none is in
 * flight. True: that was the end of it, with the result in *roof. What is measured is time in the parts alone.
 * attention_measure_roof: all parts, well under a second. */
bool attention_roof_part(struct attention *attention, bool begins, struct attention_roof *roof);
struct attention_roof attention_measure_roof(struct attention *attention);

/* attention_time_passes(a, step, replays, apart, us): microseconds that attention itself takes (work tiles
 * and merges, without appends, q and copies) for the passes of a step that has just run, one pass after
 * the other, per pass: `replays` values in us[], unsorted. `apart`: with an empty kernel ahead of each
 * pass, whose own time is subtracted. Only a device has such a clock: returns false
 * for the others. For benchmarks. No step is in flight. */
bool attention_time_passes(struct attention *attention, const struct attention_step *step, uint32_t replays,
                           bool apart, double *us);

/* attention_compile_kernels(g, arch, cache, report, error): compile the CUDA kernels for a geometry and
 * a kind of GPU ("sm_90a"), which need not be there, into `cache`. A line a kernel goes to `report`.
 * Returns 0, ATTND_INVALID (no such kind), ATTND_NOT_FOUND (no compiler here, or `cache` cannot
 * be written), or ATTND_INTERNAL (they do not compile, or use local memory). */
MUST_USE int attention_compile_kernels(const struct geometry *g, const char *arch, const char *cache,
                                       FILE *report, char error[ATTENTION_ERROR_BYTES]);

/* What --version says of CUDA. */
const char *attention_cuda_build(void);

/* attention_memory_available(backend, device): bytes that a pool of that backend could have now; 0:
 * unknown. */
uint64_t attention_memory_available(const char *backend, uint32_t device);

/* attention_is_on_device: whether that backend would have its pool on a GPU. */
bool attention_is_on_device(const char *backend, uint32_t device);

/* attention_cuda_present(reason): whether the CUDA backend is in this build and finds a driver and a
 * GPU; else a sentence in `reason`. */
bool attention_cuda_present(char reason[ATTENTION_ERROR_BYTES]);

/* Whether this processor, and this build, has the CPU backend's kernels of that name. */
bool attention_isa_supported(const char *name);

extern const char *const attention_isa_names[]; /* "auto" first, NULL-terminated */

#endif
