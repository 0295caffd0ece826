/* reservation.c - see reservation.h. */
#include "scheduler/reservation.h"

#include "scheduler/workload_run.h"

static uint32_t blocks_of(const struct engine_state *state, uint32_t tokens)
{
    uint32_t size = state->config->geometry.block_size;
    return tokens / size + (tokens % size != 0);
}

uint32_t reservation_need(const struct engine_state *state, uint32_t max_tokens, uint32_t tokens, bool shared)
{
    if (max_tokens <= tokens)
        return 0;
    bool copies = shared && tokens % state->config->geometry.block_size != 0;
    return blocks_of(state, max_tokens) - blocks_of(state, tokens) + copies;
}

static void set(struct engine_state *state, struct sequence *s, uint32_t declared)
{
    state->declared += declared;
    state->declared -= s->declared;
    s->declared = declared;
}

/* Whether a block that is about to be written may have to be copied: somebody shares it (the last
 * writer needs no copy, but who that is is not known yet), or can come to. */
static bool may_be_copied(const struct engine_state *state, uint32_t block)
{
    const struct block_pool *pool = block_tables_pool(step_tables(state->steps));
    return block_pool_refs(pool, block) > 1 || block_pool_is_published(pool, block);
}

void reservation_note(struct engine_state *state, uint32_t row)
{
    struct sequence *s = sequences_at(state->sequences, row);
    uint32_t need = 0;
    if (!s->options.max_tokens)
        return;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    uint32_t blocks = blocks_of(state, s->options.max_tokens);
    need = blocks > table.entries ? blocks - table.entries : 0;
    for (uint32_t i = table.length / state->config->geometry.block_size;
         table.length < s->options.max_tokens && i < table.entries; i++)
        need += may_be_copied(state, table.ids[i]);
    set(state, s, need);
}

void reservation_note_all(struct engine_state *state)
{
    for (uint32_t row = 0; state->declared && row < state->config->limits.sequences; row++) {
        if (sequences_at(state->sequences, row)->id)
            reservation_note(state, row);
    }
}

uint32_t reservation_truncation(const struct engine_state *state, uint32_t row, uint32_t length)
{
    uint32_t need = 0;
    if (!sequences_at(state->sequences, row)->options.max_tokens)
        return 0;
    struct block_table_view table = block_tables_view(step_tables(state->steps), row);
    for (uint32_t i = length / state->config->geometry.block_size; i < table.entries; i++)
        need += may_be_copied(state, table.ids[i]);
    return need;
}

void reservation_drop(struct engine_state *state, uint32_t row)
{
    set(state, sequences_at(state->sequences, row), 0);
}

uint64_t reservation_promised(const struct engine_state *state)
{
    return workload_run_promised(state->workloads) + state->declared;
}

uint64_t reservation_unpromised(const struct engine_state *state)
{
    uint64_t available = block_pool_available(block_tables_pool(step_tables(state->steps))),
             promised = reservation_promised(state);
    return available > promised ? available - promised : 0;
}

bool reservation_can_promise(struct engine_state *state, uint64_t need)
{
    if (need > reservation_unpromised(state))
        reservation_note_all(state); /* somebody may have stopped sharing meanwhile */
    return need <= reservation_unpromised(state);
}
