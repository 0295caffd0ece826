/* declared.c - see declared.h. */
#include "scheduler/declared.h"

static uint32_t blocks_of(const struct inspected *all, uint32_t tokens)
{
    uint32_t size = all->config->geometry.block_size;
    return tokens / size + (tokens % size != 0);
}

uint32_t declared_need(const struct inspected *all, uint32_t max_tokens, uint32_t tokens, bool shared)
{
    if (max_tokens <= tokens)
        return 0;
    bool copies = shared && tokens % all->config->geometry.block_size != 0;
    return blocks_of(all, max_tokens) - blocks_of(all, tokens) + copies;
}

static void set(struct inspected *all, struct sequence *s, uint32_t declared)
{
    all->declared += declared;
    all->declared -= s->declared;
    s->declared = declared;
}

/* Whether a block that is about to be written may have to be copied: somebody shares it (the last
 * writer needs no copy, but who that is is not known yet), or can come to. */
static bool may_be_copied(const struct inspected *all, uint32_t block)
{
    const struct block_pool *pool = block_tables_pool(executor_tables(all->executor));
    return block_pool_refs(pool, block) > 1 || block_pool_is_published(pool, block);
}

void declared_note(struct inspected *all, uint32_t row)
{
    struct sequence *s = sequences_at(all->sequences, row);
    uint32_t need = 0;
    if (!s->options.max_tokens)
        return;
    struct block_table_view table = block_tables_view(executor_tables(all->executor), row);
    uint32_t blocks = blocks_of(all, s->options.max_tokens);
    need = blocks > table.entries ? blocks - table.entries : 0;
    for (uint32_t i = table.length / all->config->geometry.block_size;
         table.length < s->options.max_tokens && i < table.entries; i++)
        need += may_be_copied(all, table.ids[i]);
    set(all, s, need);
}

void declared_note_all(struct inspected *all)
{
    for (uint32_t row = 0; all->declared && row < all->config->limits.sequences; row++) {
        if (sequences_at(all->sequences, row)->id)
            declared_note(all, row);
    }
}

uint32_t declared_truncation(const struct inspected *all, uint32_t row, uint32_t length)
{
    uint32_t need = 0;
    if (!sequences_at(all->sequences, row)->options.max_tokens)
        return 0;
    struct block_table_view table = block_tables_view(executor_tables(all->executor), row);
    for (uint32_t i = length / all->config->geometry.block_size; i < table.entries; i++)
        need += may_be_copied(all, table.ids[i]);
    return need;
}

void declared_drop(struct inspected *all, uint32_t row)
{
    set(all, sequences_at(all->sequences, row), 0);
}
