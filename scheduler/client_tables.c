/* SPDX-License-Identifier: Apache-2.0 */
/* client_tables.c - see client_tables.h.
 *
 * A table that names blocks only to be written to is made of the slots: the blocks of consecutive
 * tokens, in the order of the tokens,
 *
 *     slots      36 37 38 39 | 80 81 | -1 | 7        block_size 4
 *     table      [ 9 | 20 | 1 ]                      positions 0..3, 4..5, none, 11
 *
 * so that an append through it puts each token where its slot says. */
#include "scheduler/client_tables.h"

#include "config/numbers.h"
#include "scheduler/inspect.h"

uint32_t client_tables_count(const struct engine_state *state, const struct request *request)
{
    return request->paged.sequences + ceiling(request->paged.tokens, step_table_blocks(state->steps));
}

int client_tables_check(const struct engine_state *state, struct request *request)
{
    const struct request_paged *p = &request->paged;
    uint32_t size = state->config->geometry.block_size;
    unsigned long long id = request->id;
    uint32_t row = inspect_find(state, request, id), room = step_table_blocks(state->steps);
    if (row == NO_ROW)
        return request->status;
    if (client_tables_count(state, request) > STEP_LOOSE_TABLES)
        return request_fail(request, ATTND_INVALID, "%u sequences and %u tokens are too many for one call",
                            p->sequences, p->tokens);
    for (uint32_t s = 0; s < p->sequences; s++) {
        if (p->first[s + 1] - p->first[s] > room)
            return request_fail(request, ATTND_INVALID, "sequence %u has %u blocks; a table has room for %u",
                                s, p->first[s + 1] - p->first[s], room);
        for (uint32_t i = p->first[s]; i < p->first[s + 1]; i++) {
            if (state->lease_of[p->ids[i]] != row)
                return request_fail(request, ATTND_INVALID,
                                    "block_tables: sequence %u, entry %u: block %u is not in lease %llu", s,
                                    i - p->first[s], p->ids[i], id);
        }
    }
    for (uint32_t i = 0; i < p->tokens; i++) {
        int64_t slot = p->slots[i];
        if (slot >= 0 && state->lease_of[slot / size] != row)
            return request_fail(request, ATTND_INVALID,
                                "slot_mapping: token %u: slot %lld is in block %lld, which is not in lease "
                                "%llu",
                                i, (long long)slot, (long long)(slot / size), id);
    }
    return 0;
}

/* The appends, in runs of consecutive slots of a block; each run takes an entry of a table. */
static void fill_appends(const struct engine_state *state, const struct request *request, struct step *step,
                         struct client_tables_part *part)
{
    const struct request_paged *p = &request->paged;
    size_t row_bytes = geometry_kv_row_bytes(&state->config->geometry, request->rows.kv_source);
    uint32_t size = state->config->geometry.block_size, room = step_table_blocks(state->steps);
    uint32_t first_append = 0, n = 0;                /* of the table being made; its entries */
    uint32_t *ids = p->ids + p->first[p->sequences]; /* there is room behind the ids for them */
    for (uint32_t i = 0, count; i <= p->tokens; i += count) {
        count = 1;
        if (i == p->tokens || n == room) { /* the table is complete */
            uint32_t table = n ? step_set_table(step, ids, n).row : 0;
            for (; first_append < part->append_count; first_append++)
                part->appends[first_append].table = table;
            n = 0;
        }
        if (i == p->tokens || p->slots[i] < 0)
            continue;
        uint32_t offset = (uint32_t)(p->slots[i] % size);
        while (i + count < p->tokens && offset + count < size && p->slots[i + count] == p->slots[i] + count)
            count++;
        part->appends[part->append_count++] =
            (struct kv_append){.position = n * size + offset,
                               .count = count,
                               .k = (const uint8_t *)request->rows.k + i * row_bytes,
                               .v = (const uint8_t *)request->rows.v + i * row_bytes,
                               .wrong = request->rows.wrong};
        ids[n++] = (uint32_t)(p->slots[i] / size);
    }
}

void client_tables_fill(const struct engine_state *state, const struct request *request, struct step *step,
                        struct client_tables_part *part)
{
    const struct request_paged *p = &request->paged;
    part->row_count = part->append_count = 0;
    for (uint32_t s = 0; request->rows.q && s < p->sequences; s++) {
        uint32_t n = p->indptr[s + 1] - p->indptr[s];
        struct step_table table = step_set_table(step, p->ids + p->first[s], p->first[s + 1] - p->first[s]);
        for (uint32_t r = 0; r < n; r++)
            part->rows[part->row_count++] =
                (struct planner_query){table.row, p->context[s] ? p->context[s] - n + r + 1 : 0,
                                       table.version, state->config->sharing};
    }
    fill_appends(state, request, step, part);
}
