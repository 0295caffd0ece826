/* bench_attention.c - decode attention against the read roof of the same machine in the same run.
 *
 * 8 KV heads of 128 or 64, block 16, 16 sequences of 4 096 tokens, 8 layers visited in turn, so that
 * the pool is far larger than the last-level cache: 2 GiB in bf16 with heads of 128. Generated values,
 * permuted block ids. The kernel and the read loop alternate, ROUNDS rounds; GB/s counts each needed K
 * and V element once. Then ragged lengths, and 64 sequences that share all of their 4 096 tokens against
 * 64 that share nothing. `--short` runs a toy size, to show that it works; `--isa NAME` one instruction
 * set. */
#include "kernels/attention.h"
#include "scheduler/planner.h"
#include "scheduler/shape.h"
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, BLOCK_SIZE = 16, KV_HEADS = 8, PARTIALS_MAX = 16384 };

/* What the sequences of a step look like. */
enum lengths {
    UNIFORM, /* all of `tokens` tokens */
    RAGGED,  /* drawn from the azure-conv shape */
    SHARED   /* all of `tokens` tokens, and all the same blocks */
};

struct setting {
    const char *isa;
    enum dtype dtype, kv_dtype;
    uint32_t group, head_dim, sequences, tokens, layers;
    enum lengths lengths;
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

/* Everything that a setting needs. */
struct world {
    const struct setting *s;
    struct geometry g;
    float *ones;
    struct attention *attention;
    uint32_t *tables, *lengths, stride;
    struct planner *planner;
    struct planner_query *rows;
    struct value_source *sources;
    struct attention_pass *passes;
    struct attention_step step;
    size_t o_bytes;
    void *o;
    struct model_constants *constants;
    uint64_t tokens; /* stored */
};

/* Lengths, and tables over blocks in a random order. Returns the number of blocks. */
static uint32_t lay_out(struct world *w)
{
    const struct setting *s = w->s;
    const struct shape *shape = shape_find("azure-conv");
    struct random random = {1};
    uint32_t blocks = 0, next = 0, longest = 0;
    w->lengths = make_array(s->sequences, sizeof *w->lengths);
    for (uint32_t i = 0; i < s->sequences; i++) {
        uint32_t n = s->tokens;
        if (s->lengths == RAGGED) /* in the middle of being decoded */
            n = shape_prompt(shape, &random) + shape_decode(shape, &random) / 2;
        w->lengths[i] = n;
        longest = n > longest ? n : longest;
        blocks += s->lengths == SHARED && i > 0 ? 0 : (n + BLOCK_SIZE - 1) / BLOCK_SIZE;
        w->tokens += s->lengths == SHARED && i > 0 ? 0 : n;
    }
    w->stride = (longest + BLOCK_SIZE - 1) / BLOCK_SIZE;
    w->tables = make_array((size_t)w->stride * s->sequences, sizeof *w->tables);
    uint32_t *ids = permuted(blocks);
    for (uint32_t i = 0; i < s->sequences; i++) {
        next = s->lengths == SHARED ? 0 : next;
        for (uint32_t b = 0; b * BLOCK_SIZE < w->lengths[i]; b++)
            w->tables[i * w->stride + b] = ids[next++];
    }
    free(ids);
    return blocks;
}

static void fill(struct world *w)
{
    const struct setting *s = w->s;
    struct kv_append *appends = make_array(s->sequences, sizeof *appends);
    uint32_t n = s->lengths == SHARED ? 1 : s->sequences;
    for (uint32_t i = 0; i < n; i++)
        appends[i] = (struct kv_append){.table = i, .count = w->lengths[i], .generated = {1, i}};
    for (uint32_t layer = 0; layer < s->layers; layer++)
        w->passes[layer] = (struct attention_pass){.layer = layer, .appends = appends, .append_count = n};
    attention_submit(w->attention, &w->step);
    free(appends);
}

/* A plan for every pass. */
static void plan(struct world *w, enum sharing sharing)
{
    const struct setting *s = w->s;
    const struct planner_options options = {.queries_max = s->sequences,
                                            .partials_max = PARTIALS_MAX,
                                            .tasks = attention_info(w->attention)->tasks,
                                            .kv_heads = KV_HEADS,
                                            .group = s->group,
                                            .block_size = BLOCK_SIZE,
                                            .first_loose_table = s->sequences,
                                            .caps = attention_info(w->attention)->tile_caps};
    planner_destroy(w->planner);
    if (planner_create(&options, &w->planner) != 0)
        abort();
    for (uint32_t i = 0; i < s->sequences; i++)
        w->rows[i] = (struct planner_query){.table = i, .keys = w->lengths[i], .sharing = sharing};
    const struct plan *made = planner_make(w->planner, w->rows, s->sequences, w->tables, w->stride);
    for (uint32_t layer = 0; layer < s->layers; layer++)
        w->passes[layer] =
            (struct attention_pass){.layer = layer, .plan = made, .q_source = w->sources, .o = w->o};
}

static void open_world(struct world *w, const struct setting *s)
{
    *w = (struct world){.s = s};
    w->g = (struct geometry){.layers = s->layers,
                             .query_heads = KV_HEADS * s->group,
                             .kv_heads = KV_HEADS,
                             .head_dim = s->head_dim,
                             .block_size = BLOCK_SIZE,
                             .dtype = s->dtype,
                             .kv_dtype = s->kv_dtype,
                             .scale = 1.0F / sqrtf((float)s->head_dim)};
    w->ones = make_array((size_t)s->layers * KV_HEADS, sizeof *w->ones);
    for (uint32_t i = 0; i < s->layers * KV_HEADS; i++)
        w->ones[i] = 1;
    const struct model_constants constants = {.k_scale = w->ones, .v_scale = w->ones};
    struct model_constants *kept = make_array(1, sizeof *kept);
    *kept = constants;
    const struct attention_options options = {.backend = "cpu",
                                              .isa = s->isa,
                                              .geometry = &w->g,
                                              .constants = kept,
                                              .blocks = lay_out(w),
                                              .rows_max = s->sequences,
                                              .partials_max = PARTIALS_MAX};
    char error[ATTENTION_ERROR_BYTES];
    w->constants = kept;
    if (attention_open(&options, &w->attention, error) != 0) {
        printf("%s: %s\n", s->isa, error);
        return;
    }
    w->rows = make_array(s->sequences, sizeof *w->rows);
    w->sources = make_array(s->sequences, sizeof *w->sources);
    w->passes = make_array(s->layers, sizeof *w->passes);
    w->o_bytes = (size_t)s->sequences * w->g.query_heads * s->head_dim * dtype_bytes(s->dtype);
    w->o = make_array(w->o_bytes, 1);
    w->step = (struct attention_step){
        .tables = w->tables, .stride = w->stride, .passes = w->passes, .pass_count = s->layers};
    fill(w);
}

static void close_world(struct world *w)
{
    if (w->attention)
        attention_close(w->attention);
    planner_destroy(w->planner);
    void *const arrays[] = {w->ones, w->constants, w->tables, w->lengths,
                            w->rows, w->sources,   w->passes, w->o};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
}

/* Seconds of one step over all layers. */
static double time_step(struct attention *a, const struct attention_step *step)
{
    double start = bench_now();
    uint64_t ticket = attention_submit(a, step);
    attention_await(a, ticket);
    return bench_now() - start;
}

/* Times of a step and roofs, alternating. */
static struct bench_spread measure(struct world *w, int rounds, struct bench_spread *roof)
{
    double seconds[ROUNDS], roofs[ROUNDS];
    for (int r = 0; r < rounds; r++) {
        roofs[r] = attention_measure_roof(w->attention).best;
        seconds[r] = time_step(w->attention, &w->step) / w->s->layers;
    }
    *roof = bench_spread(roofs, (size_t)rounds);
    return bench_spread(seconds, (size_t)rounds);
}

/* One setting; returns its fraction of the roof, 0 where its kernels cannot run. */
static double run(const struct setting *s, int rounds)
{
    struct world w;
    struct bench_spread roof;
    double fraction = 0;
    open_world(&w, s);
    if (w.attention) {
        plan(&w, SHARING_ON);
        struct bench_spread t = measure(&w, rounds, &roof);
        double rate = (double)geometry_token_bytes(&w.g) * (double)w.tokens * 1e-9 / t.median;
        fraction = rate / roof.median;
        printf(
            "%-9s q %-4s kv %-4s group %u head %3u: %7.2f ms a layer (%.2f .. %.2f), %5.2f GB/s, roof %5.2f, "
            "fraction %.2f\n",
            s->isa, dtype_name(s->dtype), dtype_name(s->kv_dtype), s->group, s->head_dim, t.median * 1e3,
            t.min * 1e3, t.max * 1e3, rate, roof.median, fraction);
    }
    close_world(&w);
    return fraction;
}

/* Sequences that share everything against as many that share nothing. */
static void run_shared(const struct setting *s, int rounds)
{
    struct world apart, together;
    struct setting shared = *s;
    struct bench_spread roof, ta, tt;
    shared.lengths = SHARED;
    open_world(&apart, s);
    if (apart.attention) {
        plan(&apart, SHARING_ON);
        ta = measure(&apart, rounds, &roof);
        close_world(&apart);
        open_world(&together, &shared);
        plan(&together, SHARING_OFF);
        time_step(together.attention, &together.step);
        void *unshared = make_array(together.o_bytes, 1);
        memcpy(unshared, together.o, together.o_bytes);
        plan(&together, SHARING_ON);
        tt = measure(&together, rounds, &roof);
        printf("%-9s %s group %u, %u sequences x %u tokens: apart %.2f ms a layer (%.2f .. %.2f), "
               "sharing all "
               "%.2f (%.2f .. %.2f): 1/%.1f, %s bits\n",
               s->isa, dtype_name(s->kv_dtype), s->group, s->sequences, s->tokens, ta.median * 1e3,
               ta.min * 1e3, ta.max * 1e3, tt.median * 1e3, tt.min * 1e3, tt.max * 1e3, ta.median / tt.median,
               memcmp(unshared, together.o, together.o_bytes) == 0 ? "same" : "OTHER");
        free(unshared);
        close_world(&together);
    } else {
        close_world(&apart);
    }
}

int main(int argc, char **argv)
{
    bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    const char *only = argc > 2 && strcmp(argv[1], "--isa") == 0 ? argv[2] : NULL;
    static const struct {
        enum dtype dtype, kv_dtype;
        uint32_t group, head_dim;
    } cases[] = {
        {DTYPE_BF16, DTYPE_BF16, 1, 128}, {DTYPE_BF16, DTYPE_BF16, 4, 128}, {DTYPE_BF16, DTYPE_BF16, 8, 128},
        {DTYPE_F16, DTYPE_F16, 1, 128},   {DTYPE_F16, DTYPE_F16, 4, 128},   {DTYPE_F32, DTYPE_F32, 1, 128},
        {DTYPE_F32, DTYPE_F32, 4, 128},   {DTYPE_BF16, DTYPE_E4M3, 1, 128}, {DTYPE_BF16, DTYPE_E4M3, 4, 128},
        {DTYPE_BF16, DTYPE_E4M3, 8, 128}, {DTYPE_BF16, DTYPE_E5M2, 1, 128}, {DTYPE_BF16, DTYPE_E5M2, 4, 128},
        {DTYPE_BF16, DTYPE_BF16, 1, 64},  {DTYPE_BF16, DTYPE_E4M3, 1, 64},
    };
    bench_print_machine("attention, 8 KV heads, block 16, 16 x 4 096 tokens, 8 layers");
    for (int isa = 1; attention_isa_names[isa]; isa++) {
        const char *name = attention_isa_names[isa];
        if (only && strcmp(name, only) != 0)
            continue;
        for (size_t i = 0; i < (brief ? 1 : sizeof cases / sizeof cases[0]); i++) {
            const struct setting s = {
                name,           cases[i].dtype,     cases[i].kv_dtype, cases[i].group, cases[i].head_dim,
                brief ? 2 : 16, brief ? 300 : 4096, brief ? 1 : 8,     UNIFORM};
            run(&s, brief ? 1 : ROUNDS);
        }
        const struct setting ragged = {name,           DTYPE_BF16, DTYPE_BF16,    4,     128,
                                       brief ? 3 : 64, 0,          brief ? 1 : 8, RAGGED};
        printf("ragged, azure-conv lengths, batch %u:\n", ragged.sequences);
        run(&ragged, brief ? 1 : ROUNDS);
        for (uint32_t group = 1; group <= 4; group += 3) {
            const struct setting s = {name,           DTYPE_BF16,         DTYPE_BF16,    group,  128,
                                      brief ? 3 : 64, brief ? 300 : 4096, brief ? 1 : 2, UNIFORM};
            run_shared(&s, brief ? 1 : ROUNDS);
        }
    }
    return 0;
}
