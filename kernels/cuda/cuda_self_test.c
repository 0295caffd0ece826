/* cuda_self_test.c - see cuda_self_test.h. Two rows of the first layer: one finished by an item, one cut
 * into chunks and merged. What writes the step down is a second struct cuda_backend: pool and kernels of
 * the one that is tested, all else its own. */
#include "kernels/cuda/cuda_self_test.h"

#include "config/clock.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "kernels/values.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of the largest element of a head: several roundings of bf16; a wrong key or factor is more. */
static const double TOLERANCE = 0.02;

static const struct value_source test_values = {.seed = 7, .content = 1};
static const uint32_t test_keys[CUDA_TEST_ROWS] = {CUDA_TEST_KEYS, CUDA_TEST_KEYS - 7};

enum {
    CONTROL_BYTES = 1 << 20,
    FILL_TOKENS = 64 /* of a part: generated and rounded in a millisecond, at most */
};

struct cuda_self_test {
    struct cuda_backend own;
    uint32_t *table; /* of its one sequence, row 0 */
    uint8_t *o;      /* [CUDA_TEST_ROWS][query_heads][head_dim], pinned */
    uint64_t ticket; /* of the latest test */
    bool runs, done; /* done: by the GPU */
    double begun_s;
    /* What is compared: KV head after KV head, whose keys and values are filled in, then head after head of
       its group, row after row. */
    uint32_t kv_head, filled, compared;
    float (*kv)[2][HEAD_DIM_MAX]; /* [CUDA_TEST_KEYS] as they are stored */
};

static void fill(struct cuda_self_test *t, uint32_t position)
{
    const struct geometry *g = t->own.options.geometry;
    const struct model_constants *c = t->own.options.constants;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    for (int i = 0; i < 2; i++) {
        float *row = t->kv[position][i], scale = (i ? c->v_scale : c->k_scale)[t->kv_head];
        values_row(test_values, position, 0, i ? VALUES_V : VALUES_K, t->kv_head, g->head_dim, row);
        for (uint32_t d = 0; d < g->head_dim; d++)
            row[d] /= scale;
        numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
        numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
    }
}

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct cuda_self_test *t = cookie;
    size_t bytes = t->own.options.geometry->head_dim * sizeof *k;
    (void)kv_head;
    memcpy(k, t->kv[position][0], bytes);
    memcpy(v, t->kv[position][1], bytes);
}

/* Whether a head of a row is right. */
static bool head_agrees(struct cuda_self_test *t, uint32_t row, uint32_t head)
{
    const struct attention_options *o = &t->own.options;
    const struct geometry *g = o->geometry;
    float q[HEAD_DIM_MAX];
    double expected[HEAD_DIM_MAX], lse, largest = 0, worst = 0;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    values_row(test_values, test_keys[row] - 1, 0, VALUES_Q, head, g->head_dim, q);
    numeric_from_float(g->dtype, q, g->head_dim, rounded);
    numeric_to_float(g->dtype, rounded, g->head_dim, q);
    reference_row(g, o->constants, 0, test_keys[row], head, q, load_kv, t, expected, &lse);
    for (uint32_t d = 0; d < g->head_dim; d++) {
        double got =
            (double)numeric_load(g->dtype, t->o, ((size_t)row * g->query_heads + head) * g->head_dim + d);
        largest = fmax(largest, fabs(expected[d]));
        worst = isfinite(got) ? fmax(worst, fabs(got - expected[d])) : INFINITY;
    }
    return worst <= TOLERANCE * largest;
}

static void submit(struct cuda_self_test *t)
{
    const struct geometry *g = t->own.options.geometry;
    const struct plan_row rows[CUDA_TEST_ROWS] = {{0, test_keys[0]}, {0, test_keys[1]}};
    uint32_t first[CUDA_TEST_ROWS], end = (CUDA_TEST_KEYS + CHUNK_TOKENS - 1) / CHUNK_TOKENS, chunk = 0;
    const uint32_t item_rows[] = {0, 1, 1};
    struct plan_item items[3] = {0};
    struct plan_part parts[2];
    for (int i = 0; i < CUDA_TEST_ROWS; i++)
        first[i] = plan_first_key(rows[i].keys, g->window[0]) / CHUNK_TOKENS;
    items[0] = (struct plan_item){
        .first_chunk = first[0], .chunks = end - first[0], .rows = 1, .partial = PLAN_NO_PARTIAL};
    for (; first[1] + chunk < end; chunk++) {
        items[1 + chunk] = (struct plan_item){.first_chunk = first[1] + chunk,
                                              .chunks = 1,
                                              .first_row = 1 + chunk,
                                              .rows = 1,
                                              .partial = chunk};
        parts[chunk] = (struct plan_part){chunk, first[1] + chunk + 1, PLAN_CHUNK};
    }
    const struct plan_merge merge = {1, 0, chunk, 0};
    const struct plan plan = {rows,      items, item_rows, &merge, parts, CUDA_TEST_ROWS,
                              1 + chunk, 1,     chunk,     NULL,   NULL};
    assert(!plan_fault(&plan, g->window[0]));
    const struct kv_append append = {.count = CUDA_TEST_KEYS, .generated = test_values};
    const struct value_source q_source[CUDA_TEST_ROWS] = {test_values, test_values};
    const struct attention_pass pass = {
        .appends = &append, .append_count = 1, .plan = &plan, .q_source = q_source, .o = t->o};
    const struct table_use use = {0, cuda_self_test_blocks(g), 1};
    const struct attention_step step = {
        .tables = t->table, .uses = &use, .use_count = 1, .passes = &pass, .pass_count = 1};
    cuda_step_submit(&t->own, &step, ++t->ticket);
}

/* Go on comparing; false when a head is wrong. */
static bool compare(struct cuda_self_test *t)
{
    uint32_t group = geometry_group(t->own.options.geometry);
    if (t->filled < CUDA_TEST_KEYS) {
        for (uint32_t i = 0; i < FILL_TOKENS && t->filled < CUDA_TEST_KEYS; i++)
            fill(t, t->filled++);
        return true;
    }
    bool agrees = head_agrees(t, t->compared / group, t->kv_head * group + t->compared % group);
    if (++t->compared == CUDA_TEST_ROWS * group) {
        t->kv_head++;
        t->filled = t->compared = 0;
    }
    return agrees;
}

/* Look whether the GPU is done, for step_timeout_s at most. */
static void look(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    uint32_t limit_s = b->base.step_timeout_s ? b->base.step_timeout_s : ATTENTION_STEP_TIMEOUT_S;
    double now = clock_s(); /* ahead of the look, for a process that was stopped */
    t->done = cuda_queue_is_done(&t->own.queue, t->ticket);
    if (!t->done && now > t->begun_s + limit_s)
        attention_fail(&b->base, "the device hangs: the self-test is not finished after %u s", limit_s);
}

enum attention_verdict cuda_self_test_part(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    bool agrees = true;
    if (!t->runs) {
        t->runs = true;
        t->done = false;
        t->kv_head = t->filled = t->compared = 0;
        t->begun_s = clock_s();
        submit(t);
    } else if (!t->done) {
        look(b);
    } else {
        agrees = compare(t);
    }
    if (!agrees || cuda_failed(&b->device)) {
        t->runs = false;
        return ATTENTION_TEST_FAILED;
    }
    t->runs = t->kv_head < b->options.geometry->kv_heads;
    return t->runs ? ATTENTION_TEST_RUNS : ATTENTION_TEST_PASSED;
}

void cuda_self_test_await(struct cuda_backend *b)
{
    const struct cuda_self_test *t = b->test;
    if (t && t->runs && !t->done)
        cuda_await_stream(&b->device, t->own.device.stream, "the self-test");
}

/* ---- init and deinit ----------------------------------------------------------------------------- */

bool cuda_self_test_init(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    uint32_t blocks = cuda_self_test_blocks(g);
    size_t q_heads = (size_t)g->layers * g->query_heads, kv_heads = (size_t)g->layers * g->kv_heads,
           o_bytes = CUDA_TEST_ROWS * geometry_q_row_bytes(g);
    struct cuda_self_test *t = b->test = calloc(1, sizeof *t);
    if (!t)
        return false;
    struct cuda_backend *own = &t->own;
    struct cuda_device *d = &own->device;
    own->base.info = b->base.info;
    own->options = b->options;
    own->options.rows_max = own->options.partials_max = CUDA_TEST_ROWS;
    memcpy(own->widths, b->widths, sizeof own->widths);
    own->merge_together_max = b->merge_together_max;
    own->layout = b->layout;
    own->pool = b->pool;
    own->pool.stride = blocks;
    own->maps = b->maps;
    own->constants_version = UINT64_MAX;
    if (!cuda_device_share(d, &b->device) || !cuda_queue_init(&own->queue, d, CONTROL_BYTES))
        return false;
    memcpy(own->queue.kernels, b->queue.kernels, sizeof own->queue.kernels);
    own->pool.tables = cuda_allocate(d, blocks * sizeof(uint32_t), "the self-test");
    cuda_tensors_take(own, CUDA_TEST_ROWS, CUDA_TEST_ROWS);
    own->k_scale = cuda_allocate(d, kv_heads * sizeof(float), "the self-test");
    own->v_scale = cuda_allocate(d, kv_heads * sizeof(float), "the self-test");
    own->sinks = cuda_allocate(d, q_heads * sizeof(float), "the self-test");
    own->alibi = cuda_allocate(d, g->query_heads * sizeof(float), "the self-test");
    own->known = calloc(1, sizeof *own->known);
    t->table = calloc(blocks, sizeof *t->table);
    t->kv = calloc(CUDA_TEST_KEYS, sizeof *t->kv);
    t->o = cuda_host_memory(d, o_bytes);
    for (uint32_t i = 0; t->table && i < blocks; i++)
        t->table[i] = b->options.blocks + i;
    return own->known && t->table && t->kv && t->o && !cuda_failed(d);
}

void cuda_self_test_deinit(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    if (!t)
        return;
    struct cuda_backend *own = &t->own;
    struct cuda_device *d = &own->device;
    const CUdeviceptr all[] = {own->pool.tables, own->k_scale, own->v_scale, own->sinks, own->alibi};
    cuda_queue_deinit(&own->queue);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cuda_free(d, all[i]);
    cuda_tensors_free(own);
    cuda_free_host_memory(d, t->o);
    cuda_device_unshare(d);
    free(own->known);
    free(t->table);
    free(t->kv);
    free(t);
}
