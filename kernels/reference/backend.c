/* SPDX-License-Identifier: Apache-2.0 */
/* backend.c - the reference backend: every query of a step by reference_query(), one after the other.
 *
 * It checks the plan and then ignores how it cuts the work up. For tests, and for looking at a result
 * that one does not believe; thousands of times slower than the CPU backend. */
#include "kernels/backend.h"

#include "kernels/kv_pool.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct reference_backend {
    struct attention base;
    struct attention_options options;
    struct kv_pool pool, host; /* blocks that are swapped to */
};

/* Where reference_query() finds the keys of one query. */
struct query_source {
    const struct kv_pool *pool;
    const uint32_t *ids;
    uint32_t layer;
};

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct query_source *s = cookie;
    const struct geometry *g = s->pool->geometry;
    uint32_t block = s->ids[position / g->block_size], slot = position % g->block_size;
    uint8_t row[HEAD_DIM_MAX * sizeof(float)];
    kv_pool_load(s->pool, s->layer, block, slot, kv_head, false, row);
    numeric_to_float(g->kv_dtype, row, g->head_dim, k);
    kv_pool_load(s->pool, s->layer, block, slot, kv_head, true, row);
    numeric_to_float(g->kv_dtype, row, g->head_dim, v);
}

static void run_query(const struct reference_backend *b, const struct attention_step *step,
                      const struct attention_pass *pass, uint32_t query)
{
    const struct geometry *g = b->options.geometry;
    const struct plan_query *r = &pass->plan->queries[query];
    const struct attention_row to = attention_row_of(pass, g, query);
    struct query_source source = {&b->pool, step->tables + (uint64_t)r->table * step->stride, pass->layer};
    for (uint32_t head = 0; head < g->query_heads; head++) {
        float q[HEAD_DIM_MAX];
        double o[HEAD_DIM_MAX], lse;
        if (r->keys) /* a generated q is that of the query's position, and a query without keys has none */
            kv_pool_load_q(g, pass, query, head, q);
        reference_query(g, b->options.constants, pass->layer, r->keys, head, q, load_kv, &source, o, &lse);
        for (uint32_t d = 0; d < g->head_dim; d++)
            numeric_store(g->dtype, to.o, (size_t)head * g->head_dim + d, (float)o[d]);
        if (to.lse)
            to.lse[head] = (float)lse;
    }
}

static void run_operations(const struct reference_backend *b, const struct attention_step *step)
{
    for (uint32_t i = 0; i < step->compare_count; i++) {
        const struct kv_compare *c = &step->compares[i];
        *c->equal = kv_pool_compare(&b->pool, b->options.constants, c, 0, c->count,
                                    step->tables + (uint64_t)c->table * step->stride);
    }
    for (uint32_t i = 0; i < step->read_count; i++) {
        const struct kv_read *r = &step->reads[i];
        kv_pool_read(&b->pool, r, 0, r->count, step->tables + (uint64_t)r->table * step->stride);
    }
    for (uint32_t i = 0; i < step->merge_count; i++)
        merge_states_on_host(&step->merges[i], 0, (size_t)step->merges[i].rows * step->merges[i].heads);
}

static void reference_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    (void)ticket; /* done when this returns */
    struct reference_backend *b = (struct reference_backend *)attention;
    for (uint32_t i = 0; i < step->copy_count; i++) {
        for (uint32_t layer = 0; layer < b->options.geometry->layers; layer++)
            kv_pool_copy(&b->pool, &b->host, &step->copies[i], layer);
    }
    run_operations(b, step);
    for (uint32_t p = 0; p < step->pass_count; p++) {
        const struct attention_pass *pass = &step->passes[p];
        for (uint32_t i = 0; i < pass->append_count; i++)
            kv_pool_append(&b->pool, b->options.constants, pass, &pass->appends[i],
                           step->tables + (uint64_t)pass->appends[i].table * step->stride);
        if (!pass->plan)
            continue;
        assert(!plan_fault(pass->plan, b->options.geometry->window[pass->layer]));
        for (uint32_t query = 0; plan_has_outputs(pass->plan) && query < pass->plan->query_count; query++)
            run_query(b, step, pass, query);
    }
}

static void reference_close(struct attention *attention)
{
    struct reference_backend *b = (struct reference_backend *)attention;
    kv_pool_deinit(&b->pool);
    kv_pool_deinit(&b->host);
    free(b);
}

/* No self-test: it is what the others are compared with. No roof: it is not meant to be fast. */
static const struct attention_ops ops = {.close = reference_close, .submit = reference_submit};

int reference_backend_open(const struct attention_options *options, struct attention **attention,
                           char error[ATTENTION_ERROR_BYTES])
{
    struct reference_backend *b = calloc(1, sizeof *b);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the reference backend");
    if (!b)
        return ATTND_NO_MEMORY;
    if (kv_pool_init(&b->pool, options->geometry, options->blocks, options->pool_key, error) != 0 ||
        kv_pool_init(&b->host, options->geometry, options->host_blocks, "pool.host_blocks", error) != 0) {
        reference_close(&b->base);
        return ATTND_NO_MEMORY;
    }
    b->options = *options;
    b->base.ops = &ops;
    b->base.info = (struct attention_info){.name = "reference",
                                           .isa = "c",
                                           .kernel = "reference",
                                           .threads = 1,
                                           .tasks = 1,
                                           .bit_stable = true,
                                           .host = kv_pool_host(&b->host)};
    strcpy(b->base.info.device, "host, double precision");
    *attention = &b->base;
    return 0;
}
