/* cuda_self_test.c - see cuda_self_test.h. Two rows of the first layer: one finished by an item, one
 * cut into chunks and merged. */
#include "kernels/cuda/cuda_self_test.h"

#include "kernels/numeric.h"
#include "kernels/reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Of the largest element of a head: several roundings of bf16; a wrong key or factor is more. */
static const double TOLERANCE = 0.02;

/* Keys as they are stored. */
struct source {
    const struct attention_options *o;
    struct value_source values;
};

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct source *s = cookie;
    const struct geometry *g = s->o->geometry;
    const struct model_constants *c = s->o->constants;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    for (int i = 0; i < 2; i++) {
        float *row = i ? v : k, scale = i ? c->v_scale[kv_head] : c->k_scale[kv_head];
        values_row(s->values, position, 0, i ? VALUES_V : VALUES_K, kv_head, g->head_dim, row);
        for (uint32_t d = 0; d < g->head_dim; d++)
            row[d] /= scale;
        numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
        numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
    }
}

static bool row_agrees(struct source *s, uint32_t keys, const uint8_t *o)
{
    const struct geometry *g = s->o->geometry;
    for (uint32_t head = 0; head < g->query_heads; head++) {
        float q[HEAD_DIM_MAX];
        double expected[HEAD_DIM_MAX], lse, largest = 0, worst = 0;
        uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
        values_row(s->values, keys - 1, 0, VALUES_Q, head, g->head_dim, q);
        numeric_from_float(g->dtype, q, g->head_dim, rounded);
        numeric_to_float(g->dtype, rounded, g->head_dim, q);
        reference_row(g, s->o->constants, 0, keys, head, q, load_kv, s, expected, &lse);
        for (uint32_t d = 0; d < g->head_dim; d++) {
            double got = (double)numeric_load(g->dtype, o, (size_t)head * g->head_dim + d);
            largest = fmax(largest, fabs(expected[d]));
            worst = isfinite(got) ? fmax(worst, fabs(got - expected[d])) : INFINITY;
        }
        if (!(worst <= TOLERANCE * largest))
            return false;
    }
    return true;
}

bool cuda_self_test_passes(struct attention *attention, const struct attention_options *options)
{
    const struct geometry *g = options->geometry;
    const uint32_t row = options->table_rows, blocks = CUDA_TEST_KEYS / g->block_size + 1;
    struct source source = {options, {.seed = 7, .content = 1}};
    const struct plan_row rows[CUDA_TEST_ROWS] = {{row, CUDA_TEST_KEYS}, {row, CUDA_TEST_KEYS - 7}};
    uint32_t first[CUDA_TEST_ROWS], end = (CUDA_TEST_KEYS + CHUNK_TOKENS - 1) / CHUNK_TOKENS, chunk = 0;
    const uint32_t item_rows[] = {0, 1, 1};
    struct plan_item items[3] = {0};
    struct plan_part parts[2];
    for (int i = 0; i < CUDA_TEST_ROWS; i++)
        first[i] = plan_first_key(rows[i].keys, g->window[0]) / CHUNK_TOKENS;
    items[0] = (struct plan_item){row, first[0], end - first[0], 0, 1, PLAN_NO_PARTIAL};
    for (; first[1] + chunk < end; chunk++) {
        items[1 + chunk] = (struct plan_item){row, first[1] + chunk, 1, 1 + chunk, 1, chunk};
        parts[chunk] = (struct plan_part){chunk, first[1] + chunk + 1, PLAN_CHUNK};
    }
    const struct plan_merge merge = {1, 0, chunk};
    const struct plan plan = {rows,           items,     item_rows, &merge, parts,
                              CUDA_TEST_ROWS, 1 + chunk, 1,         chunk,  NULL};
    assert(!plan_fault(&plan, g->window[0]));

    size_t row_bytes = (size_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    uint32_t *table = malloc(blocks * sizeof *table);
    uint8_t *o = malloc(CUDA_TEST_ROWS * row_bytes);
    if (!table || !o)
        abort();
    for (uint32_t i = 0; i < blocks; i++)
        table[i] = options->blocks + i;
    const struct kv_append append = {row, 0, CUDA_TEST_KEYS, 0, source.values};
    const struct value_source q_source[CUDA_TEST_ROWS] = {source.values, source.values};
    const struct attention_pass pass = {
        .appends = &append, .append_count = 1, .plan = &plan, .q_source = q_source, .o = o};
    const struct table_use use = {row, blocks, 1};
    const struct attention_step step = {.tables = table, /* whichever row it is */
                                        .stride = 0,
                                        .uses = &use,
                                        .use_count = 1,
                                        .passes = &pass,
                                        .pass_count = 1};
    uint64_t ticket = attention_submit(attention, &step);
    attention_await(attention, ticket);
    bool ok = !attention_failure(attention) && row_agrees(&source, rows[0].keys, o) &&
              row_agrees(&source, rows[1].keys, o + row_bytes);
    free(table);
    free(o);
    return ok;
}
