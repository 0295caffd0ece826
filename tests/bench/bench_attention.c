/* bench_attention.c - decode attention against the read roof of the same machine in the same run.
 *
 * 8 KV heads, head_dim 128, block 16, 16 sequences of 4 096 tokens, 8 layers visited in turn, so that
 * the pool is 2 GiB in bf16 and far larger than the last-level cache. Generated values, permuted block
 * ids. The kernel and the read loop alternate, ROUNDS rounds; GB/s counts each needed K and V element
 * once. `--short` runs a toy size, to show that it works. */
#include "kernels/attention.h"
#include "tests/bench/bench.h"
#include "tests/conformance/plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, BLOCK_SIZE = 16, KV_HEADS = 8, HEAD_DIM = 128 };

struct setting {
    const char *isa;
    enum dtype dtype, kv_dtype;
    uint32_t group, sequences, tokens, layers;
};

static void *make_array(size_t n, size_t size)
{
    void *array = calloc(n + 1, size);
    if (!array)
        abort();
    return array;
}

/* Ids 0..n-1 in a random order. */
static uint32_t *permuted(uint32_t n)
{
    uint32_t *ids = make_array(n, sizeof *ids), random = 1;
    for (uint32_t i = 0; i < n; i++) {
        random = random * 1664525 + 1013904223;
        uint32_t at = (uint32_t)((uint64_t)random * (i + 1) >> 32);
        ids[i] = ids[at];
        ids[at] = i;
    }
    return ids;
}

static void fill(struct attention *a, const struct setting *s, const uint32_t *tables, uint32_t stride)
{
    struct kv_append *appends = make_array(s->sequences, sizeof *appends);
    struct attention_pass *passes = make_array(s->layers, sizeof *passes);
    for (uint32_t i = 0; i < s->sequences; i++)
        appends[i] = (struct kv_append){.table = i, .count = s->tokens, .generated = {1, i}};
    for (uint32_t layer = 0; layer < s->layers; layer++)
        passes[layer] =
            (struct attention_pass){.layer = layer, .appends = appends, .append_count = s->sequences};
    const struct attention_step step = {
        .tables = tables, .stride = stride, .passes = passes, .pass_count = s->layers};
    attention_submit(a, &step);
    free(appends);
    free(passes);
}

/* Seconds of one step over all layers. */
static double time_step(struct attention *a, const struct attention_step *step)
{
    double start = bench_now();
    attention_submit(a, step);
    while (!attention_poll(a)) {
    }
    return bench_now() - start;
}

static void run(const struct setting *s, int rounds)
{
    struct geometry g = {.layers = s->layers,
                         .query_heads = KV_HEADS * s->group,
                         .kv_heads = KV_HEADS,
                         .head_dim = HEAD_DIM,
                         .block_size = BLOCK_SIZE,
                         .dtype = s->dtype,
                         .kv_dtype = s->kv_dtype,
                         .scale = 1.0F / sqrtf(HEAD_DIM)};
    uint32_t stride = (s->tokens + BLOCK_SIZE - 1) / BLOCK_SIZE, blocks = stride * s->sequences;
    float *ones = make_array((size_t)s->layers * KV_HEADS, sizeof *ones);
    for (uint32_t i = 0; i < s->layers * KV_HEADS; i++)
        ones[i] = 1;
    const struct model_constants constants = {.k_scale = ones, .v_scale = ones};
    const struct attention_options options = {
        .backend = "cpu", .isa = s->isa, .geometry = &g, .constants = &constants, .blocks = blocks};
    char error[ATTENTION_ERROR_BYTES];
    struct attention *a;
    if (attention_open(&options, &a, error) != 0) {
        printf("%s: %s\n", s->isa, error);
        free(ones);
        return;
    }
    uint32_t *tables = permuted(blocks);
    fill(a, s, tables, stride);

    struct plan_row *rows = make_array(s->sequences, sizeof *rows);
    struct value_source *sources = make_array(s->sequences, sizeof *sources);
    for (uint32_t i = 0; i < s->sequences; i++)
        rows[i] = (struct plan_row){i, s->tokens};
    const struct plan_request request = {rows, s->sequences, tables,  stride, BLOCK_SIZE,
                                         0,    s->group,     CUT_ROW, false,  0};
    struct plan *plan = plans_make(&request);
    void *o = make_array((size_t)s->sequences * g.query_heads * HEAD_DIM, sizeof(float));
    struct attention_pass *passes = make_array(s->layers, sizeof *passes);
    for (uint32_t layer = 0; layer < s->layers; layer++)
        passes[layer] =
            (struct attention_pass){.layer = layer, .plan = plan, .q_source = sources, .o = o};
    const struct attention_step step = {
        .tables = tables, .stride = stride, .passes = passes, .pass_count = s->layers};

    double seconds[ROUNDS], roof[ROUNDS];
    for (int r = 0; r < rounds; r++) {
        roof[r] = attention_measure_roof(a);
        seconds[r] = time_step(a, &step);
    }
    double gigabytes = (double)geometry_token_bytes(&g) * s->layers * s->sequences * s->tokens * 1e-9;
    struct bench_spread t = bench_spread(seconds, (size_t)rounds),
                        f = bench_spread(roof, (size_t)rounds);
    printf("%-9s q %-4s kv %-4s group %u: %7.2f ms a layer (%.2f .. %.2f), %5.2f GB/s, roof %5.2f, "
           "fraction %.2f\n",
           attention_info(a)->isa, dtype_name(s->dtype), dtype_name(s->kv_dtype), s->group,
           t.median / s->layers * 1e3, t.min / s->layers * 1e3, t.max / s->layers * 1e3,
           gigabytes / t.median, f.median, gigabytes / t.median / f.median);
    attention_close(a);
    plans_free(plan);
    free(tables);
    free(rows);
    free(sources);
    free(o);
    free(passes);
    free(ones);
}

int main(int argc, char **argv)
{
    bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    static const struct {
        enum dtype dtype, kv_dtype;
        uint32_t group;
    } cases[] = {
        {DTYPE_BF16, DTYPE_BF16, 1}, {DTYPE_BF16, DTYPE_BF16, 4}, {DTYPE_BF16, DTYPE_BF16, 8},
        {DTYPE_F16, DTYPE_F16, 1},   {DTYPE_F16, DTYPE_F16, 4},   {DTYPE_F32, DTYPE_F32, 1},
        {DTYPE_F32, DTYPE_F32, 4},   {DTYPE_BF16, DTYPE_E4M3, 1}, {DTYPE_BF16, DTYPE_E4M3, 4},
    };
    bench_print_machine("attention, 8 KV heads, head_dim 128, block 16, 16 x 4 096 tokens, 8 layers");
    for (int isa = 1; attention_isa_names[isa]; isa++) {
        for (size_t i = 0; i < (brief             ? 1
                                : getenv("CASES") ? (size_t)atoi(getenv("CASES"))
                                                  : sizeof cases / sizeof cases[0]);
             i++) {
            const struct setting s = {
                attention_isa_names[isa], cases[i].dtype,     cases[i].kv_dtype, cases[i].group,
                brief ? 2 : 16,           brief ? 300 : 4096, brief ? 1 : 8};
            run(&s, brief ? 1 : ROUNDS);
        }
    }
    return 0;
}
