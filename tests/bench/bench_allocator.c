/* SPDX-License-Identifier: Apache-2.0 */
/* bench_allocator.c - what the allocator costs: a pool operation, a decode step, a fork.
 *
 * What is said to be noted has a log of changes, as the engine has, and an eighth of the blocks: a log takes 784 bytes of each. Each figure is the median of ROUNDS rounds, with the fastest and slowest beside it. `--short` runs
 * one small round, to show that it works. */
#include "allocator/block_log.h"
#include "allocator/block_table.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, MILLION = 1 << 20 };

static int rounds = ROUNDS;
static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)random_state * n >> 32);
}

static void print(const char *what, double *values, double unit, const char *unit_name, double goal)
{
    struct bench_spread s = bench_spread(values, (size_t)rounds);
    printf("%-58s %8.2f %s  (%.2f .. %.2f)  goal %g\n", what, s.median / unit, unit_name, s.min / unit,
           s.max / unit, goal);
}

enum pool_pattern { SAME_BLOCK, RUNS, RANDOM_BATCH };

/* A pool of a million blocks, seven eighths in use: give `n` blocks back in one call and take `n` in
 * another. Blocks of one sequence (RUNS), or anybody's (RANDOM_BATCH). Seconds per pair. */
static double time_pool(struct block_pool *pool, uint32_t *ids, uint32_t held, enum pool_pattern pattern,
                        uint32_t n)
{
    uint32_t at[256], chosen[256];
    const uint32_t calls = (rounds == 1 ? 4096 : 4 * MILLION) / n;
    double start = bench_now();
    for (uint32_t call = 0; call < calls; call++) {
        uint32_t first = pattern == SAME_BLOCK ? 0 : random_below(held - n);
        for (uint32_t i = 0; i < n; i++) {
            at[i] = pattern == RANDOM_BATCH ? random_below(held / n) + i * (held / n) : first + i;
            chosen[i] = ids[at[i]];
        }
        block_pool_release(pool, chosen, n, 0);
        if (block_pool_acquire(pool, n, chosen) != 0)
            abort();
        for (uint32_t i = 0; i < n; i++)
            ids[at[i]] = chosen[i];
    }
    return (bench_now() - start) / calls / n;
}

static void bench_pool(void)
{
    static const struct {
        const char *what;
        enum pool_pattern pattern;
        uint32_t n;
        bool noted;
    } cases[] = {
        {"release + acquire, a million blocks, 64 of one sequence", RUNS, 64, false},
        {"release + acquire, the same block each time", SAME_BLOCK, 1, false},
        {"release + acquire, 256 random blocks a call", RANDOM_BATCH, 256, false},
        {"release + acquire, 131 072 blocks, 64 of one sequence, noted", RUNS, 64, true},
        {"release + acquire, the same block each time, noted", SAME_BLOCK, 1, true},
        {"release + acquire, 256 random blocks a call, noted", RANDOM_BATCH, 256, true},
    };
    struct block_pool *pool;
    struct block_log *log;
    double seconds[ROUNDS];
    uint32_t *ids = malloc(MILLION * sizeof *ids);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint32_t blocks = cases[c].noted ? MILLION / 8 : MILLION, held = blocks / 8 * 7;
        if (!ids || block_pool_create(blocks, 16, NULL, NULL, NULL, &pool) != 0 ||
            block_pool_acquire(pool, held, ids) != 0 || block_log_create(blocks, 1, 1024, &log) != 0)
            abort();
        block_pool_set_log(pool, cases[c].noted ? log : NULL);
        for (int r = 0; r < rounds; r++)
            seconds[r] = time_pool(pool, ids, held, cases[c].pattern, cases[c].n);
        print(cases[c].what, seconds, 1e-9, "ns", 10);
        block_pool_destroy(pool);
        block_log_destroy(log);
    }
    free(ids);
}

static struct block_tables *make_tables(uint32_t blocks, uint32_t rows, uint32_t row_blocks, uint32_t epochs)
{
    const struct block_tables_options o = {.blocks = blocks,
                                           .block_size = 16,
                                           .layers = 32,
                                           .rows = rows,
                                           .row_blocks = row_blocks,
                                           .epochs = epochs};
    struct block_tables *t;
    if (block_tables_create(&o, &t) != 0)
        abort();
    return t;
}

/* One step of all rows, numbered in `all`; `requests` is scratch. */
static void decode_step(struct block_tables *t, const uint32_t *all, uint32_t rows, uint32_t tokens,
                        struct reserve_request *requests, struct block_copy *copies, uint64_t step)
{
    uint32_t copy_count = 0;
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t at = block_tables_cursor(t, row, 0);
        requests[row] = (struct reserve_request){row, at, at + tokens};
    }
    if (block_tables_reserve(t, step, requests, rows, copies, &copy_count) != 0)
        abort();
    block_tables_submit_all(t, step, requests, rows);
    block_tables_retire_step(t, step, all, rows);
}

/* 4 096 rows, each at another place in its block, one token each a step. */
static void bench_decode(uint32_t epochs)
{
    enum { ROWS = 4096, STEPS = 256 };
    double seconds[ROUNDS];
    struct block_tables *t = make_tables(MILLION, ROWS, 256, epochs);
    struct reserve_request *requests = malloc(ROWS * sizeof *requests);
    struct block_copy *copies = malloc(ROWS * sizeof *copies);
    const uint32_t steps = rounds == 1 ? 4 : STEPS;
    uint64_t step = 1;
    uint32_t row, copy_count = 0, *all = malloc(ROWS * sizeof *all);
    if (!requests || !copies || !all)
        abort();
    for (uint32_t i = 0; i < ROWS; i++) {
        all[i] = i;
        struct reserve_request first = {i, 0, 1 + random_below(256)};
        if (block_tables_add(t, UINT32_MAX, NULL, 0, &row) != 0 ||
            block_tables_reserve(t, step, &first, 1, copies, &copy_count) != 0)
            abort();
        block_tables_advance_all(t, row, first.end);
    }
    block_tables_retire_step(t, step++, NULL, 0);
    for (int r = 0; r < rounds; r++) {
        double start = bench_now();
        for (uint32_t i = 0; i < steps; i++)
            decode_step(t, all, ROWS, 1, requests, copies, step++);
        seconds[r] = (bench_now() - start) / steps / ROWS;
    }
    print(epochs ? "decode step, per sequence of 4 096, noted"
                 : "decode step, per sequence of 4 096 (reserve to retire)",
          seconds, 1e-9, "ns", 20);
    block_tables_destroy(t);
    free(requests);
    free(copies);
    free(all);
}

/* A parent of 131 072 tokens, 8 192 blocks; contiguous as one append leaves them, then scattered over
 * the pool. */
static void bench_fork(bool scattered, uint32_t epochs)
{
    enum { BLOCKS = 8192, FORKS = 32 };
    double fork_seconds[ROUNDS], free_seconds[ROUNDS];
    struct block_tables *t = make_tables(2 * BLOCKS * (scattered ? 8 : 1), 64, BLOCKS, epochs);
    struct block_copy copies[2];
    uint32_t parent, other, child[FORKS], copy_count = 0;
    if (block_tables_add(t, UINT32_MAX, NULL, 0, &parent) != 0 ||
        block_tables_add(t, UINT32_MAX, NULL, 0, &other) != 0)
        abort();
    for (uint32_t tokens = 0; tokens < BLOCKS * 16; tokens += scattered ? 16 : BLOCKS * 16) {
        struct reserve_request more = {parent, tokens, tokens + (scattered ? 16 : BLOCKS * 16)};
        uint32_t at = block_tables_cursor(t, other, 0), gap = scattered ? random_below(8) * 16 : 0;
        struct reserve_request between = {other, at, at + gap};
        if (at + gap > BLOCKS * 16)
            between.end = at;
        if (block_tables_reserve(t, 1, &more, 1, copies, &copy_count) != 0 ||
            block_tables_reserve(t, 1, &between, 1, copies, &copy_count) != 0)
            abort();
        block_tables_advance_all(t, parent, more.end - more.first);
        block_tables_advance_all(t, other, between.end - between.first);
    }
    block_tables_retire_step(t, 1, NULL, 0);
    for (int r = 0; r < rounds; r++) {
        double start = bench_now();
        for (int i = 0; i < FORKS; i++) {
            if (block_tables_fork(t, parent, BLOCKS * 16, &child[i]) != 0)
                abort();
        }
        fork_seconds[r] = (bench_now() - start) / FORKS;
        start = bench_now();
        for (int i = 0; i < FORKS; i++)
            block_tables_remove(t, child[i]);
        free_seconds[r] = (bench_now() - start) / FORKS;
    }
    const char *noted = epochs ? ", noted" : "", *where = scattered ? "scattered" : "contiguous";
    char what[80];
    snprintf(what, sizeof what, "fork of 131 072 tokens, %s blocks%s", where, noted);
    print(what, fork_seconds, 1e-6, "us", 20);
    snprintf(what, sizeof what, "remove it again, %s blocks%s", where, noted);
    print(what, free_seconds, 1e-6, "us", 20);
    block_tables_destroy(t);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--short") == 0)
        rounds = 1;
    bench_print_machine("allocator");
    bench_pool();
    for (uint32_t epochs = 0; epochs <= 1024; epochs += 1024) {
        bench_decode(epochs);
        bench_fork(false, epochs);
        bench_fork(true, epochs);
    }
    return 0;
}
