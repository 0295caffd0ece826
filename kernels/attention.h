/* attention.h - the contract between the scheduler and whatever computes attention.
 *
 * A backend owns the bytes of the KV pool. It is told, step by step, which slots to copy and fill and
 * which plan to execute. Names and shapes:
 *
 *   q, o     [rows][query_heads][head_dim]    geometry.dtype
 *   lse      [rows][query_heads]              f32, natural logarithm, -inf for a row without keys
 *   k, v     [tokens][kv_heads][head_dim]     geometry.dtype, converted when stored, or
 * geometry.kv_dtype as it is tables   [sequences][stride]              block ids; entries behind a
 * sequence's end are never read
 *
 * The score of query i and key j is softcap(scale * q.k) + slope * (j - i); key j is visible iff j <= i
 * and (window = 0 or i - j < window). A sink is one more logit without a value, merged last; lse
 * includes it. k and v must be finite in the KV format: masked finite values leave the bits of other
 * rows alone, NaN and infinity would not.
 *
 * All functions belong to the engine thread. One step may be in flight. */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include "config/geometry.h"
#include "kernels/plan.h"
#include "kernels/values.h"

#include <stdbool.h>
#include <stdio.h>

enum { ATTENTION_ERROR_BYTES = 256 };

struct attention;

struct attention_options {
    const char *backend;             /* "auto", "cpu" or "reference" */
    const char *isa;                 /* of the CPU backend: "auto" or a name of attention_isa_names */
    uint32_t threads;                /* of the CPU backend; 0: as many as this process may use */
    const struct geometry *geometry; /* borrowed for the life of the backend */
    const struct model_constants *constants; /* likewise; may change between steps */
    uint32_t blocks;
    uint32_t partials_max; /* partial states that a plan may have */
    /* Called now and then while the pool is being touched; may be NULL. */
    void (*progress)(uint64_t bytes_done, uint64_t bytes, void *cookie);
    void *cookie;
};

struct attention_info {
    const char *name, *isa;
    char device[128];
    uint32_t threads;
    bool bit_stable;
};

/* Copy slots 0..slots-1, all layers, K and V. */
struct kv_copy {
    uint32_t from, to, slots;
};

/* `count` consecutive tokens of one sequence, the first at `position`: rows `source` and on of the
 * pass's k and v, or generated. */
struct kv_append {
    uint32_t table, position, count, source;
    struct value_source generated;
};

/* Rows of k and v of consecutive tokens of one sequence, the first at `position`. */
struct kv_rows {
    uint32_t layer, position, count;
    enum dtype dtype; /* geometry.dtype or geometry.kv_dtype */
    const void *k, *v;
};

/* One layer of a step: its appends, then attention over a plan. Layers with the same rows and mask may
 * share the plan. */
struct attention_pass {
    uint32_t layer;
    const struct kv_append *appends;
    uint32_t append_count;
    const void *k, *v;                   /* NULL: generated (values.h) */
    enum dtype source_dtype;             /* of k and v */
    const struct plan *plan;             /* NULL: appends only */
    const void *q;                       /* NULL: generated from q_source */
    const struct value_source *q_source; /* [rows] */
    void *o;
    float *lse; /* NULL: not wanted */
};

struct attention_step {
    const uint32_t *tables; /* [sequences][stride], borrowed until the step is done */
    uint32_t stride;
    const struct kv_copy *copies; /* made before anything else, in this order */
    uint32_t copy_count;
    const struct attention_pass *passes; /* in this order */
    uint32_t pass_count;
};

/* attention_open(options, attention, error): take the pool's memory, touch it, test the kernels against
 * the reference. Returns 0, or ATTND_INVALID (options; `error` says which), ATTND_NO_MEMORY. */
MUST_USE int attention_open(const struct attention_options *options, struct attention **attention,
                            char error[ATTENTION_ERROR_BYTES]);
void attention_close(struct attention *attention);

const struct attention_info *attention_info(const struct attention *attention);

/* attention_submit: begin a step. What it names stays untouched until attention_poll() says that it is
 * done. */
void attention_submit(struct attention *attention, const struct attention_step *step);

/* attention_poll: whether the step in flight is done; true when none is. */
bool attention_poll(struct attention *attention);

/* attention_read_kv(a, layer, block, slot, count, k, v): slots of one block in the stored format,
 * [count][kv_heads][head_dim] each. No step is in flight. */
void attention_read_kv(struct attention *attention, uint32_t layer, uint32_t block, uint32_t slot,
                       uint32_t count, void *k, void *v);

/* attention_compare_kv(a, rows, ids): how many of the rows, from the first one on, are what stands in
 * the pool at their positions, once converted as an append converts them; `ids` is their sequence's
 * table. No step is in flight. */
uint32_t attention_compare_kv(struct attention *attention, const struct kv_rows *rows,
                              const uint32_t *ids);

/* attention_self_test: compare the kernels with the reference on a small problem, as at the start.
 * Takes milliseconds. True when they agree. */
bool attention_self_test(struct attention *attention);

/* attention_measure_roof: GB/s at which the pool can be read by this backend's threads: the best of
 * several plain loops. Takes well under a second. No step is in flight. */
double attention_measure_roof(struct attention *attention);

/* Whether this processor, and this build, has the CPU backend's kernels of that name. */
bool attention_isa_supported(const char *name);

extern const char *const attention_isa_names[]; /* "auto" first, NULL-terminated */

#endif
