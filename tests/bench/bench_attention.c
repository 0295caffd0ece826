/* SPDX-License-Identifier: Apache-2.0 */
/* bench_attention.c - decode attention against the read roof of the same machine in the same run.
 *
 * 8 KV heads of 128 or 64, block 16, 16 sequences of 4 096 tokens, 8 layers visited in turn, so that
 * the pool is far larger than the last-level cache: 2 GiB in bf16 with heads of 128. Generated values,
 * permuted block ids. The kernel and the read loop alternate, ROUNDS rounds; GB/s counts each needed K
 * and V element once. Then ragged lengths, and 64 sequences that share all of their 4 096 tokens against
 * 64 that share nothing. A row is printed as soon as it is measured.
 *
 * With `--turns` two builds, or another program, are measured in turn, while each keeps its pool: a round
 * begins when a line is read, and ends with a line. */
#include "kernels/attention.h"
#include "scheduler/planner.h"
#include "scheduler/shape.h"
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, ROUNDS_MAX = 100, LAYERS = 8, BLOCK_SIZE = 16, KV_HEADS = 8, PARTIALS_MAX = 16384 };

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

/* What is asked for. */
struct options {
    const char *isa, *row; /* NULL: all */
    int rounds;
    uint32_t layers;
    bool brief, by_turns;
};

static const char usage[] =
    "usage: bench_attention [--short] [--isa NAME] [--row Q/KV/GROUP/HEAD_DIM] [--rounds N] [--layers N]\n"
    "                       [--turns]\n"
    "  --short   a toy size, to show that it works\n"
    "  --isa     one instruction set: portable, avx2, avx512, amx\n"
    "  --row     one row, bf16/e4m3/8/128 for instance; neither ragged lengths nor shared tokens\n"
    "  --rounds  medians of N rounds instead of 7 (at most 100)\n"
    "  --layers  a pool of N layers instead of 8, of 256 MiB each in bf16 with heads of 128; one that the\n"
    "            last-level cache holds in part reads faster than memory, and so does its roof\n"
    "  --turns   print 'ready', then run a round, and print it, for each line of the standard input, whose\n"
    "            end is the end of the row\n";

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

/* Wait for a line; false: there is none any more. */
static bool wait_for_turn(void)
{
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

/* Times of a step and roofs, alternating. */
static struct bench_spread measure(struct world *w, const struct options *o, struct bench_spread *roof)
{
    double seconds[ROUNDS_MAX] = {0}, roofs[ROUNDS_MAX] = {0};
    size_t r = 0;
    if (o->by_turns)
        printf("ready\n");
    while (r < (size_t)o->rounds && (!o->by_turns || wait_for_turn())) {
        roofs[r] = attention_measure_roof(w->attention).best;
        seconds[r] = time_step(w->attention, &w->step) / w->s->layers;
        if (o->by_turns)
            printf("round %zu: %.4f ms a layer, roof %.3f\n", r + 1, seconds[r] * 1e3, roofs[r]);
        r++;
    }
    *roof = bench_spread(roofs, r ? r : 1);
    return bench_spread(seconds, r ? r : 1);
}

/* One setting; returns its fraction of the roof, 0 where its kernels cannot run. */
static double run(const struct setting *s, const struct options *o)
{
    struct world w;
    struct bench_spread roof;
    double fraction = 0;
    open_world(&w, s);
    if (w.attention) {
        plan(&w, SHARING_ON);
        struct bench_spread t = measure(&w, o, &roof);
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
static void run_shared(const struct setting *s, const struct options *o)
{
    struct world apart, together;
    struct setting shared = *s;
    struct bench_spread roof, ta, tt;
    shared.lengths = SHARED;
    open_world(&apart, s);
    if (apart.attention) {
        plan(&apart, SHARING_ON);
        ta = measure(&apart, o, &roof);
        close_world(&apart);
        open_world(&together, &shared);
        plan(&together, SHARING_OFF);
        time_step(together.attention, &together.step);
        void *unshared = make_array(together.o_bytes, 1);
        memcpy(unshared, together.o, together.o_bytes);
        plan(&together, SHARING_ON);
        tt = measure(&together, o, &roof);
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

struct row {
    enum dtype dtype, kv_dtype;
    uint32_t group, head_dim;
};

static const struct row table[] = {
    {DTYPE_BF16, DTYPE_BF16, 1, 128}, {DTYPE_BF16, DTYPE_BF16, 4, 128}, {DTYPE_BF16, DTYPE_BF16, 8, 128},
    {DTYPE_F16, DTYPE_F16, 1, 128},   {DTYPE_F16, DTYPE_F16, 4, 128},   {DTYPE_F32, DTYPE_F32, 1, 128},
    {DTYPE_F32, DTYPE_F32, 4, 128},   {DTYPE_BF16, DTYPE_E4M3, 1, 128}, {DTYPE_BF16, DTYPE_E4M3, 4, 128},
    {DTYPE_BF16, DTYPE_E4M3, 8, 128}, {DTYPE_BF16, DTYPE_E5M2, 1, 128}, {DTYPE_BF16, DTYPE_E5M2, 4, 128},
    {DTYPE_BF16, DTYPE_BF16, 1, 64},  {DTYPE_BF16, DTYPE_E4M3, 1, 64},
};

static bool row_wanted(const struct options *o, const struct row *row)
{
    char name[64];
    snprintf(name, sizeof name, "%s/%s/%u/%u", dtype_name(row->dtype), dtype_name(row->kv_dtype), row->group,
             row->head_dim);
    return !o->row || strcmp(name, o->row) == 0;
}

/* The table by one instruction set; returns how many rows of it are wanted. */
static int run_table(const char *isa, const struct options *o)
{
    int wanted = 0;
    for (size_t i = 0; i < (o->brief ? 1 : sizeof table / sizeof table[0]); i++) {
        const struct row *row = &table[i];
        if (!row_wanted(o, row))
            continue;
        const struct setting s = {.isa = isa,
                                  .dtype = row->dtype,
                                  .kv_dtype = row->kv_dtype,
                                  .group = row->group,
                                  .head_dim = row->head_dim,
                                  .sequences = o->brief ? 2 : 16,
                                  .tokens = o->brief ? 300 : 4096,
                                  .layers = o->layers};
        run(&s, o);
        wanted++;
    }
    return wanted;
}

static void run_ragged(const char *isa, const struct options *o)
{
    const struct setting s = {.isa = isa,
                              .dtype = DTYPE_BF16,
                              .kv_dtype = DTYPE_BF16,
                              .group = 4,
                              .head_dim = 128,
                              .sequences = o->brief ? 3 : 64,
                              .layers = o->layers,
                              .lengths = RAGGED};
    printf("ragged, azure-conv lengths, batch %u:\n", s.sequences);
    run(&s, o);
}

static void run_sharing(const char *isa, const struct options *o)
{
    for (uint32_t group = 1; group <= 4; group += 3) {
        const struct setting s = {.isa = isa,
                                  .dtype = DTYPE_BF16,
                                  .kv_dtype = DTYPE_BF16,
                                  .group = group,
                                  .head_dim = 128,
                                  .sequences = o->brief ? 3 : 64,
                                  .tokens = o->brief ? 300 : 4096,
                                  .layers = o->layers < 2 ? o->layers : 2};
        run_shared(&s, o);
    }
}

/* A number from 1 to `most`; 0: it is none. */
static uint32_t number(const char *text, uint32_t most)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    return *end == 0 && n <= most ? (uint32_t)n : 0;
}

static bool parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--short") == 0) {
            o->brief = true;
            o->rounds = 1;
            o->layers = 1;
        } else if (strcmp(argv[i], "--turns") == 0) {
            o->by_turns = true;
        } else if (strcmp(argv[i], "--isa") == 0) {
            o->isa = value;
            i++;
        } else if (strcmp(argv[i], "--row") == 0) {
            o->row = value;
            i++;
        } else if (strcmp(argv[i], "--rounds") == 0) {
            o->rounds = (int)number(value, ROUNDS_MAX);
            i++;
        } else if (strcmp(argv[i], "--layers") == 0) {
            o->layers = number(value, 64);
            i++;
        } else {
            return false;
        }
    }
    return o->rounds > 0 && o->layers > 0 && (!o->isa || *o->isa) && (!o->row || *o->row);
}

int main(int argc, char **argv)
{
    struct options o = {.rounds = ROUNDS, .layers = LAYERS};
    char what[128];
    int wanted = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!parse(&o, argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    snprintf(what, sizeof what, "attention, 8 KV heads, block 16, 16 x 4 096 tokens, layers: %u, rounds: %d",
             o.layers, o.rounds);
    bench_print_machine(what);
    for (int isa = 1; attention_isa_names[isa]; isa++) {
        const char *name = attention_isa_names[isa];
        if (o.isa && strcmp(name, o.isa) != 0)
            continue;
        wanted += run_table(name, &o);
        if (!o.row) {
            run_ragged(name, &o);
            run_sharing(name, &o);
        }
    }
    if (wanted == 0)
        fputs(usage, stderr);
    return wanted ? 0 : 2;
}
