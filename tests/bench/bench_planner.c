/* SPDX-License-Identifier: Apache-2.0 */
/* bench_planner.c - what planning a decode step costs in the steady state, when every sequence grows by
 * one token.
 *
 * `--short` runs a few steps, to show that it works. */
#include "scheduler/planner.h"
#include "tests/bench/bench.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, BLOCK_SIZE = 16 };

/* Of a GPU's kernels for bf16. */
static const struct tile_caps caps = {
    .widths = {{8, 0, 4}, {32, 0, 2}, {64, RUN_CHUNKS, 2}, {128, SEGMENT_CHUNKS, 1}},
    .width_count = 4,
    .splits_max = 4,
    .cluster_max = 2,
    .processors = 132};

/* `sequences` of `tokens`; groups of `family` share the first half. */
static double run(uint32_t sequences, uint32_t tokens, uint32_t family, int rounds, int steps)
{
    uint32_t stride = tokens / BLOCK_SIZE + 64, next = 0;
    uint32_t *tables = calloc((size_t)sequences * stride, sizeof *tables);
    struct planner_query *rows = calloc(sequences, sizeof *rows);
    const struct planner_options o = {.queries_max = sequences,
                                      .partials_max = 1 << 16,
                                      .tasks = 16,
                                      .kv_heads = 8,
                                      .group = 4,
                                      .block_size = BLOCK_SIZE,
                                      .first_loose_table = sequences,
                                      .caps = caps};
    struct planner *p;
    double seconds[ROUNDS];
    if (!tables || !rows || planner_create(&o, &p) != 0)
        abort();
    for (uint32_t s = 0; s < sequences; s++) {
        for (uint32_t b = 0; b < stride; b++) {
            bool shared = s % family && b < tokens / 2 / BLOCK_SIZE;
            tables[(size_t)s * stride + b] = shared ? tables[(size_t)(s - 1) * stride + b] : next++;
        }
        rows[s] = (struct planner_query){s, tokens, 1, SHARING_AUTO};
    }
    double first = bench_now();
    const struct plan *plan = planner_make(p, rows, sequences, tables, stride);
    first = bench_now() - first;
    for (int r = 0; r < rounds; r++) {
        double start = bench_now();
        for (int i = 0; i < steps; i++) {
            for (uint32_t s = 0; s < sequences; s++)
                rows[s].keys = tokens + (uint32_t)i;
            plan = planner_make(p, rows, sequences, tables, stride);
        }
        seconds[r] = (bench_now() - start) / steps;
    }
    struct bench_spread s = bench_spread(seconds, (size_t)rounds);
    printf("%4u x %6u tokens, families of %3u: %7.2f us a step (%.2f .. %.2f), first %7.2f us, %u "
           "work tiles, %u partials\n",
           sequences, tokens, family, s.median * 1e6, s.min * 1e6, s.max * 1e6, first * 1e6,
           plan->work_tile_count, plan->partial_count);
    planner_destroy(p);
    free(tables);
    free(rows);
    return s.median;
}

int main(int argc, char **argv)
{
    bool brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    int rounds = brief ? 1 : ROUNDS, steps = brief ? 2 : 500;
    bench_print_machine("planner, steady state");
    run(256, 4096, 1, rounds, steps);
    run(256, 4096, 8, rounds, steps);
    run(256, 4096, 256, rounds, steps);
    double less = run(16, 4096, 1, rounds, steps), more = run(16, 131072, 1, rounds, steps);
    printf("16 x 131 072 against 16 x 4 096: %.2f (goal 1.5); goal of 256 x 4 096: 50 us\n", more / less);
    return 0;
}
