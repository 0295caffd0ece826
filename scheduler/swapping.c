/* swapping.c - see swapping.h. */
#include "scheduler/swapping.h"

#include "config/log.h"
#include "scheduler/policy.h"

#include <assert.h>
#include <stdlib.h>

/* A sequence that may leave, the blocks that only it holds, and the host blocks that it takes. What
 * leaves with the last of those that share it comes on top. */
struct candidate {
    uint32_t row, blocks, host_blocks;
};

struct swapping {
    struct engine_state *state;
    struct candidate *candidates; /* [limits.sequences] */
    uint32_t *rows;               /* likewise, chosen */
};

static const struct sequence *sequence_at(const struct swapping *w, uint32_t row)
{
    return sequences_at(w->state->sequences, row);
}

static bool may_leave(const struct swapping *w, uint32_t row, const struct swap_request *request)
{
    const struct sequence *s = sequence_at(w, row);
    if (s->id == 0 || s->workload || s->lease || s->pinned || s->options.max_tokens ||
        s->forming == request->forming || !policy_may_displace(request->priority, s->options.priority))
        return false;
    struct block_table_view table = block_tables_view(step_tables(w->state->steps), row);
    return !table.swapped && table.entries > 0;
}

/* Who may leave; returns how many. */
static uint32_t find_candidates(struct swapping *w, const struct swap_request *request)
{
    struct block_tables *tables = step_tables(w->state->steps);
    uint32_t n = 0;
    for (uint32_t row = 0; row < w->state->config->limits.sequences; row++) {
        if (may_leave(w, row, request))
            w->candidates[n++] = (struct candidate){row, block_tables_reclaimable(tables, &row, 1),
                                                    block_tables_host_need(tables, row)};
    }
    return n;
}

static struct policy_victim victim_of(const struct swapping *w, const struct candidate *c)
{
    const struct sequence *s = sequence_at(w, c->row);
    return (struct policy_victim){s->options.priority, s->queued > 0, c->blocks, s->created_s};
}

static uint32_t best_of(const struct swapping *w, uint32_t n, uint32_t need)
{
    struct policy_victim first = victim_of(w, &w->candidates[0]);
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        const struct policy_victim victim = victim_of(w, &w->candidates[i]);
        if (!policy_gives_way(&victim, &first, need))
            continue;
        first = victim;
        best = i;
    }
    return best;
}

/* Choose among n candidates until `need` blocks come free; into w->rows. Returns how many, 0 if all of
 * them are not enough. What several of them share is counted now and then only. */
static uint32_t choose(struct swapping *w, uint32_t n, uint32_t need)
{
    struct block_tables *tables = step_tables(w->state->steps);
    uint32_t chosen = 0, alone = 0, room = block_tables_counts(tables).host_free;
    while (n > 0) {
        uint32_t i = best_of(w, n, need - alone);
        const struct candidate c = w->candidates[i];
        w->candidates[i] = w->candidates[--n];
        if (c.host_blocks > room)
            continue;
        room -= c.host_blocks;
        alone += c.blocks;
        w->rows[chosen++] = c.row;
        bool look = (chosen & (chosen - 1)) == 0;
        if (alone >= need || (look && block_tables_reclaimable(tables, w->rows, chosen) >= need))
            return chosen;
    }
    return block_tables_reclaimable(tables, w->rows, chosen) >= need ? chosen : 0;
}

bool swapping_out(struct swapping *w, const struct swap_request *request, struct copy_list *copies)
{
    struct block_tables *tables = step_tables(w->state->steps);
    uint64_t step = step_number(w->state->steps);
    uint32_t stranded = block_tables_stranded(tables), chosen = 0;
    if (w->state->config->host_blocks == 0)
        return false;
    if (stranded < request->blocks) {
        chosen = choose(w, find_candidates(w, request), request->blocks - stranded);
        if (chosen == 0)
            return false;
    }
    (void)block_tables_evacuate(tables, request->blocks, step, copies->list, &copies->count);
    for (uint32_t i = 0; i < chosen; i++) {
        int rc = block_tables_swap_out(tables, w->rows[i], step, copies->list, &copies->count);
        assert(rc == 0); /* there is room */
        (void)rc;
        log_line(LOG_DEBUG, "sequence %llu is swapped out",
                 (unsigned long long)sequence_at(w, w->rows[i])->id);
    }
    return true;
}

int swapping_create(struct engine_state *state, struct swapping **result)
{
    struct swapping *w = calloc(1, sizeof *w);
    if (!w)
        return ATTND_NO_MEMORY;
    w->state = state;
    w->candidates = calloc(state->config->limits.sequences, sizeof *w->candidates);
    w->rows = calloc(state->config->limits.sequences, sizeof *w->rows);
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
