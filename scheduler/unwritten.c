/* SPDX-License-Identifier: Apache-2.0 */
/* unwritten.c - see unwritten.h.
 *
 *   o of the call      row   0  1  2  3 | 4  5          two sequences
 *   NaN                            x  x |
 *   read               V of positions [first that row 2 sees, end of row 3's) of the first sequence's table
 *
 * K and V of e4m3 are widened to numbers of 16 or 32 bits, and some kernels make a number of its NaN, too: on AVX2, and on GPUs before
 * sm_89. So there all that a call sees is read back, whatever its outputs are, and it is answered if nothing is found.
 *
 * A query that is NaN need not see such a slot itself: queries that read the same blocks are computed together, and a value
 * that one of them does not see is weighed with 0 for it. So all NaN queries of the call are gone through, and if none of
 * them sees one, that is said. */
#include "scheduler/unwritten.h"

#include "config/numbers.h"
#include "kernels/numeric.h"
#include "scheduler/history.h"
#include "scheduler/inspect.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READ_TOKENS = 1024, /* of a step */ BLOCKS_NAMED = 4 };

/* Rows of one sequence, or table, that are NaN. */
struct unwritten_rows {
    uint64_t id;          /* of the sequence; of a table its number */
    uint32_t row;         /* of the call, the sequence's first one, */
    uint32_t keys;        /* and what that one sees */
    uint32_t first, last; /* of the sequence's rows, the first and the last that are NaN */
    const uint32_t *ids;  /* [entries]; NULL: the table has changed since */
    uint32_t entries;
};

/* What is being found out about one call, in its arena. */
struct unwritten_search {
    struct unwritten_rows *rows;  /* [count] */
    uint32_t count, at;           /* the one that is gone through, */
    uint32_t position, end, read; /* from where on, as far as begun; tokens of the step in flight */
    uint32_t row, keys;           /* of the first row that is NaN */
    bool lost;                    /* a table had changed */
    uint32_t blocks[BLOCKS_NAMED], latest;
};

struct unwritten {
    struct engine_state *state;
    const struct geometry *g;
    size_t bytes;   /* of k, and of v */
    uint8_t *k, *v; /* [READ_TOKENS][kv_heads][head_dim] of geometry.kv_dtype */
};

/* ---- the outputs --------------------------------------------------------------------------------- */

/* Whether outputs do not tell what was seen. */
static bool outputs_hide(const struct geometry *g)
{
    return g->kv_dtype == DTYPE_E4M3;
}

static bool is_finite(const struct geometry *g, const struct request *request, uint32_t first, uint32_t rows)
{
    size_t n = (size_t)g->query_heads * g->head_dim * rows;
    const uint8_t *o = (const uint8_t *)request->rows.out.o + first * geometry_q_row_bytes(g);
    return numeric_first_nonfinite(g->dtype, o, n) == n;
}

/* Whether a row can have seen an unwritten slot. */
static bool is_unsound(const struct geometry *g, const struct request *request, uint32_t row)
{
    return outputs_hide(g) || !is_finite(g, request, row, 1);
}

bool unwritten_is_seen(const struct engine_state *state, const struct request *request)
{
    const struct geometry *g = &state->config->geometry;
    if (request->status != 0 || !request_has_rows(request) || request_stream(request) || !request->rows.q)
        return false;
    return outputs_hide(g) || !is_finite(g, request, 0, request->rows.count);
}

/* Note a sequence of which some of these rows are unsound. */
static void keep_rows(struct unwritten *u, struct request *request, struct unwritten_rows of, uint32_t n,
                      const uint32_t *ids)
{
    struct unwritten_search *search = request->queued.search;
    uint32_t bad = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (!is_unsound(u->g, request, of.row + r))
            continue;
        of.first = bad++ ? of.first : r;
        of.last = r;
    }
    if (!bad)
        return;
    uint32_t need = geometry_blocks(u->g, of.keys + of.last);
    uint32_t *copy = ids && of.entries >= need ? request_alloc(request, need, sizeof *copy) : NULL;
    if (copy)
        memcpy(copy, ids, need * sizeof *copy);
    of.ids = copy;
    of.entries = need;
    search->rows[search->count++] = of;
}

static void keep_sequences(struct unwritten *u, struct request *request)
{
    struct block_tables *tables = step_tables(u->state->steps);
    uint32_t first = 0;
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        const struct request_sequence *s = &request->attend.sequences[i];
        uint32_t row = sequences_find(u->state->sequences, s->id);
        struct block_table_view table = {0};
        if (row != NO_ROW)
            table = block_tables_view(tables, row);
        const struct unwritten_rows of = {
            .id = s->id, .row = first, .keys = s->position + 1, .entries = table.swapped ? 0 : table.entries};
        keep_rows(u, request, of, s->rows, table.ids);
        first += s->rows;
    }
}

static void keep_tables(struct unwritten *u, struct request *request)
{
    const struct request_paged *p = &request->paged;
    for (uint32_t s = 0; s < p->sequences; s++) {
        uint32_t n = p->indptr[s + 1] - p->indptr[s];
        const struct unwritten_rows of = {.id = s,
                                          .row = p->indptr[s],
                                          .keys = p->context[s] - n + 1,
                                          .entries = p->first[s + 1] - p->first[s]};
        if (p->context[s])
            keep_rows(u, request, of, n, p->ids + p->first[s]);
    }
}

void unwritten_keep(struct unwritten *u, struct request *request)
{
    bool paged = request->kind == REQUEST_PAGED;
    uint32_t n = paged ? request->paged.sequences : request->attend.sequence_count;
    struct unwritten_search *search = request_alloc(request, 1, sizeof *search);
    struct unwritten_rows *rows = search ? request_alloc(request, n, sizeof *rows) : NULL;
    request->queued.search = rows ? search : NULL;
    if (!rows)
        return;
    *search = (struct unwritten_search){.rows = rows};
    if (paged)
        keep_tables(u, request);
    else
        keep_sequences(u, request);
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* What is seen of a sequence by the rows that are NaN; of one whose table is not known any more, nothing. */
static void begin_rows(const struct unwritten *u, const struct request *request,
                       struct unwritten_search *search)
{
    const struct unwritten_rows *of = &search->rows[search->at];
    uint32_t window = u->g->window[request->rows.layer];
    search->position = plan_visible(of->keys + of->first, window).first;
    search->end = of->ids ? of->keys + of->last : search->position;
    search->lost |= !of->ids;
    search->latest = NO_BLOCK;
}

/* The first row that is NaN and sees a position; UINT32_MAX: none does. */
static uint32_t row_that_sees(const struct unwritten *u, const struct request *request,
                              const struct unwritten_rows *of, uint32_t position)
{
    uint32_t window = u->g->window[request->rows.layer];
    for (uint32_t r = of->first; r <= of->last; r++) {
        if (plan_sees(plan_visible(of->keys + r, window), position) && is_unsound(u->g, request, of->row + r))
            return r;
    }
    return UINT32_MAX;
}

/* A slot that a row sees is not written. */
static void find(struct unwritten *u, struct request *request, const struct unwritten_rows *of,
                 uint32_t position, uint32_t r)
{
    struct unwritten_search *search = request->queued.search;
    struct request_unwritten *found = request->unwritten;
    uint32_t block = of->ids[position / u->g->block_size];
    if (!found) {
        found = request->unwritten = request_alloc(request, 1, sizeof *found);
        if (!found)
            return;
        *found = (struct request_unwritten){.id = of->id,
                                            .row = of->row + r,
                                            .layer = request->rows.layer,
                                            .query = of->keys + r - 1,
                                            .position = position,
                                            .block = block,
                                            .slot = position % u->g->block_size};
    }
    found->slots++;
    if (block == search->latest)
        return;
    search->latest = block;
    if (found->blocks < BLOCKS_NAMED)
        search->blocks[found->blocks] = block;
    found->blocks++;
}

void unwritten_note(struct unwritten *u, struct request *request)
{
    struct unwritten_search *search = request->queued.search;
    const struct unwritten_rows *of = &search->rows[search->at];
    size_t n = (size_t)u->g->kv_heads * u->g->head_dim,
           row_bytes = geometry_kv_row_bytes(u->g, u->g->kv_dtype);
    for (uint32_t i = 0; i < search->read; i++, search->position++) {
        if (numeric_first_nonfinite(u->g->kv_dtype, u->v + i * row_bytes, n) == n)
            continue;
        uint32_t r = row_that_sees(u, request, of, search->position);
        if (r != UINT32_MAX)
            find(u, request, of, search->position, r);
    }
    if (search->position == search->end)
        search->at++;
    search->read = 0;
}

/* ---- what is said -------------------------------------------------------------------------------- */

/* A text that is put together, as far as there is room. */
struct text {
    char bytes[REQUEST_DETAIL_BYTES];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->bytes + t->used, sizeof t->bytes - t->used, format, args);
    va_end(args);
    t->used = n > 0 && (size_t)n < sizeof t->bytes - t->used ? t->used + (size_t)n : sizeof t->bytes - 1;
}

static void say_owners(struct text *t, const struct request_unwritten *found)
{
    for (uint32_t i = 0; i < found->owner_count; i++) {
        const struct block_owner *owner = &found->owners[i];
        say(t, i ? ", " : "; who had block %u, latest first: ", found->block);
        if (owner->foreign)
            say(t, "another key");
        else
            say(t, "%llu", (unsigned long long)owner->id);
        if (owner->until)
            say(t, " (epochs %llu to %llu)", (unsigned long long)owner->since,
                (unsigned long long)owner->until);
        else
            say(t, " (since epoch %llu)", (unsigned long long)owner->since);
    }
}

/* The call fails, with what was found. */
static void tell(struct unwritten *u, struct request *request)
{
    const struct unwritten_search *search = request->queued.search;
    struct request_unwritten *found = request->unwritten;
    unsigned layer = request->rows.layer;
    struct text t = {.used = 0};
    if (!found && is_finite(u->g, request, 0, request->rows.count))
        return;
    if (!found || !search) {
        request_fail(
            request, ATTND_INTERNAL,
            "o is NaN at layer %u, and %s: another query may have been computed with it that sees one, "
            "or a kernel is wrong",
            layer,
            !search || search->lost ? "what it has seen is not known any more"
                                    : "no slot that it sees is unwritten");
        return;
    }
    found->owner_count = history_owners(u->state, request, found->block, found->owners, BLOCK_OWNERS);
    say(&t, "row %u at layer %u: ", found->row, layer);
    if (request->kind == REQUEST_PAGED)
        say(&t, "sequence %llu of lease %llu", (unsigned long long)found->id,
            (unsigned long long)request->id);
    else
        say(&t, "sequence %llu", (unsigned long long)found->id);
    say(&t, ", query at %u, sees position %u in slot %u of block %u, which nobody has written", found->query,
        found->position, found->slot, found->block);
    if (found->slots > 1)
        say(&t, " (%u such slots, in block%s", found->slots, plural(found->blocks));
    for (uint32_t i = 0; found->slots > 1 && i < smaller(found->blocks, BLOCKS_NAMED); i++)
        say(&t, "%s %u", i ? "," : "", search->blocks[i]);
    if (found->slots > 1)
        say(&t, "%s)", found->blocks > BLOCKS_NAMED ? ", ..." : "");
    say_owners(&t, found);
    request_fail(request, ATTND_UNWRITTEN, "%s", t.bytes);
}

bool unwritten_read(struct unwritten *u, struct step *step, struct request *request)
{
    struct unwritten_search *search = request->queued.search;
    bool goes_on = search && search->position < search->end;
    while (search && !goes_on && search->at < search->count) {
        begin_rows(u, request, search);
        goes_on = search->position < search->end;
        search->at += !goes_on;
    }
    if (!goes_on) {
        tell(u, request);
        return false;
    }
    const struct unwritten_rows *of = &search->rows[search->at];
    struct step_table table = step_set_table(step, of->ids, of->entries);
    search->read = smaller(search->end - search->position, READ_TOKENS);
    const struct kv_read read = {.table = table.row,
                                 .layer = request->rows.layer,
                                 .position = search->position,
                                 .count = search->read,
                                 .k = u->k,
                                 .v = u->v};
    step_looks(step);
    bool added = step_add_read(step, &read);
    assert(added); /* the step is empty */
    (void)added;
    return true;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int unwritten_create(struct engine_state *state, struct unwritten **result)
{
    struct unwritten *u = calloc(1, sizeof *u);
    if (!u)
        return ATTND_NO_MEMORY;
    u->state = state;
    u->g = &state->config->geometry;
    u->bytes = READ_TOKENS * geometry_kv_row_bytes(u->g, u->g->kv_dtype);
    u->k = step_host_memory(state->steps, u->bytes);
    u->v = step_host_memory(state->steps, u->bytes);
    if (!u->k || !u->v) {
        unwritten_destroy(u);
        return ATTND_NO_MEMORY;
    }
    *result = u;
    return 0;
}

void unwritten_destroy(struct unwritten *u)
{
    if (!u)
        return;
    step_free_host_memory(u->state->steps, u->k, u->bytes);
    step_free_host_memory(u->state->steps, u->v, u->bytes);
    free(u);
}
