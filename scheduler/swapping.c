/* swapping.c - see swapping.h. */
#include "scheduler/swapping.h"

#include "config/log.h"

#include <stdlib.h>

/* A sequence that may leave, and the blocks that only it holds. What leaves with the last of those that
 * share them comes on top. */
struct candidate {
    uint32_t row, blocks;
};

struct swapping {
    struct inspected *all;
    struct candidate *candidates; /* [limits.sequences] */
    uint32_t *rows;               /* likewise */
};

static const struct sequence *sequence_at(const struct swapping *w, uint32_t row)
{
    return sequences_at(w->all->sequences, row);
}

static bool may_leave(const struct swapping *w, uint32_t row, const struct swap_request *request)
{
    const struct sequence *s = sequence_at(w, row);
    if (s->id == 0 || s->workload || s->lease || s->queued || s->options.max_tokens ||
        s->forming == request->forming || s->options.priority > request->priority)
        return false;
    struct block_table_view table = block_tables_view(executor_tables(w->all->executor), row);
    return !table.swapped && table.entries > 0;
}

/* Who may leave; returns how many. */
static uint32_t find_candidates(struct swapping *w, const struct swap_request *request)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < w->all->config->limits.sequences; row++) {
        if (!may_leave(w, row, request))
            continue;
        w->rows[n] = row;
        w->candidates[n++] = (struct candidate){row, 0};
    }
    return n;
}

static void count_blocks(struct swapping *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        w->candidates[i].blocks =
            block_tables_reclaimable(executor_tables(w->all->executor), &w->candidates[i].row, 1);
}

/* Whether `a` should leave before `b` when `need` blocks are wanted. */
static bool goes_first(const struct swapping *w, const struct candidate *a, const struct candidate *b,
                       uint32_t need)
{
    const struct sequence *sa = sequence_at(w, a->row), *sb = sequence_at(w, b->row);
    bool enough = a->blocks >= need, other = b->blocks >= need;
    if (sa->options.priority != sb->options.priority)
        return sa->options.priority < sb->options.priority;
    if (enough != other)
        return enough;
    if (a->blocks != b->blocks)
        return enough ? a->blocks < b->blocks : a->blocks > b->blocks;
    return sa->created_s > sb->created_s;
}

static uint32_t choose(const struct swapping *w, uint32_t n, uint32_t need)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (goes_first(w, &w->candidates[i], &w->candidates[best], need))
            best = i;
    }
    return best;
}

/* Swap one out; the blocks that this gives back, or an error. */
static int swap_out(struct swapping *w, uint32_t row, struct copy_list *copies, uint32_t *freed)
{
    struct block_tables *tables = executor_tables(w->all->executor);
    const struct block_pool *pool = block_tables_pool(tables);
    uint32_t fenced = block_pool_counts(pool).fenced;
    int rc = block_tables_swap_out(tables, row, executor_step(w->all->executor), copies->list,
                                   &copies->count);
    *freed = block_pool_counts(pool).fenced - fenced;
    if (rc == 0)
        log_line(LOG_DEBUG, "sequence %llu is swapped out, which gives %u blocks back",
                 (unsigned long long)sequence_at(w, row)->id, *freed);
    return rc;
}

uint32_t swapping_out(struct swapping *w, const struct swap_request *request, struct copy_list *copies)
{
    struct block_tables *tables = executor_tables(w->all->executor);
    uint32_t n = find_candidates(w, request), got = 0, freed;
    if (block_tables_counts(tables).host_free == 0 ||
        block_tables_reclaimable(tables, w->rows, n) < request->blocks)
        return 0;
    count_blocks(w, n);
    while (n > 0 && got < request->blocks) {
        uint32_t i = choose(w, n, request->blocks - got), row = w->candidates[i].row;
        bool alone = w->candidates[i].blocks > 0;
        w->candidates[i] = w->candidates[--n];
        if (swap_out(w, row, copies, &freed) != 0)
            continue; /* more than host memory has room for */
        got += freed;
        if (!alone)
            count_blocks(w, n); /* what it shared may be the others' own now */
    }
    return got >= request->blocks ? got : 0;
}

int swapping_create(struct inspected *all, struct swapping **result)
{
    struct swapping *w = calloc(1, sizeof *w);
    if (!w)
        return ATTND_NO_MEMORY;
    w->all = all;
    w->candidates = calloc(all->config->limits.sequences, sizeof *w->candidates);
    w->rows = calloc(all->config->limits.sequences, sizeof *w->rows);
    if (!w->candidates || !w->rows) {
        swapping_destroy(w);
        return ATTND_NO_MEMORY;
    }
    *result = w;
    return 0;
}

void swapping_destroy(struct swapping *w)
{
    if (!w)
        return;
    free(w->candidates);
    free(w->rows);
    free(w);
}
