/* client_queue.c - see client_queue.h.
 *
 * A step takes the queued calls oldest first, as long as they fit. A sequence has at most one call in a
 * step; a call that has to wait makes the later ones on its sequences wait, so their order is kept.
 *
 * A call is taken in one go: it is checked, its blocks are reserved, its cursors move, and its parts are
 * added to the step (step.h), where they share passes with those of other calls.
 *
 * Rows at positions that stand already are a retry: they are compared with what stands and not appended
 * again, and their attention sees what it saw the first time:
 *
 *     stands   0 1 2 3 4 5 |            cursor 6
 *     call           3 4 5 6 7          position 3: 3..5 are compared, 6 and 7 appended
 *
 * A call on a sequence that is swapped out has it swapped in beside the step being formed and runs in
 * the next one. When blocks run out, idle sequences are swapped out in the same way (swapping.h); the
 * call waits, and so does every later one that needs blocks.
 *
 * Forks and truncates of a sequence that has calls queued wait behind them; leases wait for blocks. They
 * are done while the step is formed and compute nothing. */
#include "scheduler/client_queue.h"

#include "scheduler/client_tables.h"
#include "scheduler/inspect.h"
#include "scheduler/policy.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_ops.h"
#include "scheduler/swapping.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT = 1 }; /* for another step; errors are negative */

struct client_queue {
    struct client_queue_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct call *queue, *last; /* the first and the last that is queued; NULL: none */
    uint64_t call_number;      /* counts calls that were resolved */
    uint64_t forming;          /* counts attempts to form a step */
    bool needs_idle;           /* a call waits for the pipeline to be empty */

    /* the step being formed */
    struct step *step;
    struct copy_list *copies;
    uint32_t rows, tokens, sequence_count;
    bool short_of_blocks; /* a call waits for some */
    struct swapping *swapping;
    uint32_t *tokens_read; /* [rows_max] ids of a prompt */

    struct call *in_step[STEPS_IN_FLIGHT]; /* by step_slot(): calls to be answered */
};

static size_t q_row_bytes(const struct client_queue *c)
{
    return (size_t)c->g->query_heads * c->g->head_dim * dtype_bytes(c->g->dtype);
}

static size_t kv_row_bytes(const struct client_queue *c, enum dtype dtype)
{
    return (size_t)c->g->kv_heads * c->g->head_dim * dtype_bytes(dtype);
}

static struct block_tables *tables_of(const struct client_queue *c)
{
    return step_tables(c->o.state->steps);
}

static struct sequence *sequence_of(const struct client_queue *c, uint64_t id)
{
    uint32_t row = sequences_find(c->o.state->sequences, id);
    return row == NO_ROW ? NULL : sequences_at(c->o.state->sequences, row);
}

/* ---- checking a call ----------------------------------------------------------------------------- */

/* Compare the token ids that a call gives for the rows of one sequence, its rows `first` and on, with the
 * prompt's; 0, or the call failed. */
static int check_tokens(struct client_queue *c, struct call *call, uint32_t i, uint32_t first)
{
    const struct call_sequence *s = &call->sequences[i];
    const uint32_t *ids = call->tokens + first;
    uint32_t row = call->requests[i].row, prompt;
    uint32_t agree = prompts_agree(c->o.state->prompts, row, s->position, ids, s->rows);
    if (agree == s->rows)
        return 0;
    prompts_read(c->o.state->prompts, row, s->position + agree, 1, &prompt);
    return call_fail(call, ATTND_INVALID, "token_ids: sequence %llu, position %u: %u, but the prompt says %u",
                     (unsigned long long)s->id, s->position + agree, ids[agree], prompt);
}

/* Where the rows of one sequence go, into its request; 0, or the call failed. */
static int resolve_sequence(struct client_queue *c, struct call *call, uint32_t i)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct call_sequence *named = &call->sequences[i];
    uint32_t tokens_max = c->o.state->config->limits.sequence_tokens, rows = named->rows;
    uint32_t row = inspect_find(c->o.state, call, named->id);
    if (row == NO_ROW)
        return call->status;
    const struct sequence *s = sequences_at(c->o.state->sequences, row);
    unsigned long long id = s->id;
    if (s->workload)
        return call_fail(call, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu", id,
                         (unsigned long long)s->workload);
    struct block_table_view table = block_tables_view(tables, row);
    if (call->all_layers && table.length != table.cursor_max)
        return call_fail(call, ATTND_GAP,
                         "sequence %llu has %u tokens at one layer and %u at another: append to it "
                         "layer by layer",
                         id, table.length, table.cursor_max);
    uint32_t at = block_tables_cursor(tables, row, call->layer), grows = call->k ? rows : 0;
    bool given = named->position != CALL_POSITION_ABSENT && !named->placed;
    if (!given && !call->k && at > 0 && rows > at)
        return call_fail(call, ATTND_INVALID,
                         "sequence %llu has %u tokens at layer %u, and %u rows ask for them", id, at,
                         call->layer, rows);
    if (!given)
        named->position = call->k || at == 0 ? at : at - rows;
    named->placed = !given;
    uint64_t end = (uint64_t)named->position + rows;
    if (given && (call->k ? named->position > at : end > at))
        return call_fail(call, ATTND_GAP,
                         "sequence %llu has %u tokens at layer %u; rows at position %u do not continue "
                         "them (length %u)",
                         id, at, call->layer, named->position, table.length);
    if (call->k && end > tokens_max)
        return call_fail(call, ATTND_INVALID,
                         "sequence %llu would have %llu tokens; limits.sequence_tokens is %u", id,
                         (unsigned long long)end, tokens_max);
    if (call->k && s->options.max_tokens && end > s->options.max_tokens)
        return call_fail(call, ATTND_INVALID,
                         "sequence %llu would have %llu tokens; it declared max_tokens %u", id,
                         (unsigned long long)end, s->options.max_tokens);
    uint32_t stands = at - named->position < grows ? at - named->position : grows;
    call->requests[i] = (struct reserve_request){row, at, at + grows - stands};
    return 0;
}

/* The rows of the block tables of a call, into its requests; 0, or the call failed. */
static int resolve(struct client_queue *c, struct call *call)
{
    uint32_t first = 0;
    c->call_number++;
    call->requests = call_alloc(call, call->sequence_count, sizeof *call->requests);
    if (!call->requests)
        return call_fail(call, ATTND_INVALID, "%u sequences are too many for one call", call->sequence_count);
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        int rc = resolve_sequence(c, call, i);
        if (rc == 0 && call->tokens)
            rc = check_tokens(c, call, i, first);
        if (rc != 0)
            return rc;
        struct sequence *s = sequences_at(c->o.state->sequences, call->requests[i].row);
        if (s->seen == c->call_number)
            return call_fail(call, ATTND_INVALID, "sequence %llu is named twice in one call",
                             (unsigned long long)s->id);
        s->seen = c->call_number;
        first += call->sequences[i].rows;
    }
    return 0;
}

/* Compare the first `stands` rows of one sequence, rows `first` and on of the call's tensors, with what
 * stands; 0, or the call failed. */
static int compare_sequence(struct client_queue *c, struct call *call, uint32_t i, uint32_t first,
                            uint32_t stands)
{
    const struct call_sequence *s = &call->sequences[i];
    uint32_t row = call->requests[i].row;
    uint32_t stride, layers = call->all_layers ? c->g->layers : 1;
    size_t row_bytes = kv_row_bytes(c, call->kv_source);
    const uint32_t *ids = block_tables_ids(step_tables(c->o.state->steps), &stride);
    for (uint32_t layer = 0; layer < layers; layer++) {
        size_t at = ((size_t)layer * call->rows + first) * row_bytes;
        struct kv_rows rows = {.layer = call->all_layers ? layer : call->layer,
                               .position = s->position,
                               .count = stands,
                               .dtype = call->kv_source,
                               .k = (const uint8_t *)call->k + at,
                               .v = (const uint8_t *)call->v + at};
        uint32_t equal = step_compare_kv(c->o.state->steps, &rows, ids + (uint64_t)row * stride);
        if (equal < stands)
            return call_fail(call, ATTND_CONFLICT,
                             "sequence %llu, position %u, layer %u: other k or v stand there",
                             (unsigned long long)s->id, s->position + equal, rows.layer);
    }
    return 0;
}

/* Whether some rows of a call stand already. */
static bool has_retries(const struct call *call)
{
    bool has = false;
    for (uint32_t i = 0; call->k && i < call->sequence_count; i++)
        has |= call->sequences[i].rows > call->requests[i].end - call->requests[i].first;
    return has;
}

/* Compare all rows of a call that stand already: 0, WAIT until no step is in flight, or the call failed.
 * Its sequences are resident. */
static int compare(struct client_queue *c, struct call *call)
{
    uint32_t first = 0;
    int rc = 0;
    if (steps_in_flight(c->o.state->steps) && has_retries(call)) {
        c->needs_idle = true;
        return WAIT;
    }
    for (uint32_t i = 0; rc == 0 && call->k && i < call->sequence_count; i++) {
        uint32_t rows = call->sequences[i].rows,
                 stands = rows - (call->requests[i].end - call->requests[i].first);
        if (stands)
            rc = compare_sequence(c, call, i, first, stands);
        first += rows;
    }
    return rc;
}

/* Room for the call's outputs in its own arena. */
static int make_outputs(struct client_queue *c, struct call *call)
{
    bool ok = true;
    if (call->q) {
        call->o = call_alloc(call, call->rows, q_row_bytes(c));
        call->lse = call_alloc(call, (size_t)call->rows * c->g->query_heads, sizeof *call->lse);
        ok = call->o && call->lse;
    } else if (call->kind == CALL_APPEND) {
        call->views = call_alloc(call, call->sequence_count, sizeof *call->views);
        call->lengths = call_alloc(call, (size_t)call->sequence_count * c->g->layers, sizeof *call->lengths);
        ok = call->views && call->lengths;
    }
    return ok ? 0 : call_fail(call, ATTND_INVALID, "%u rows are too many for one call", call->rows);
}

/* Whether the kernel that a call names can compute it; else it has failed. */
static int check_kernel(struct client_queue *c, struct call *call)
{
    uint32_t limit = step_backend(c->o.state->steps)->paged_v1_tokens, longest = 0;
    if (call->kernel == ATTENTION_AUTO)
        return 0;
    if (limit == 0)
        return call_fail(call, ATTND_INVALID,
                         "kernel: paged_v1 and paged_v2 go with geometry.layout vllm and backend.name cuda");
    for (uint32_t i = 0; call->paged && i < call->paged->sequences; i++)
        longest = call->paged->context[i] > longest ? call->paged->context[i] : longest;
    for (uint32_t i = 0; !call->paged && i < call->sequence_count; i++) {
        uint32_t end = call->sequences[i].position + call->sequences[i].rows;
        longest = end > longest ? end : longest;
    }
    if (call->kernel == ATTENTION_PAGED_V1 && longest > limit)
        return call_fail(call, ATTND_INVALID,
                         "kernel: paged_v1 keeps the logits of %u tokens in shared memory, and a sequence "
                         "has %u: take paged_v2",
                         limit, longest);
    return 0;
}

/* ---- room ---------------------------------------------------------------------------------------- */

/* Blocks that the rows of a call take out of what is kept for their own sequences: each as many as it
 * takes, and none for another one. */
static uint64_t drawn_from_promises(struct client_queue *c, const struct call *call)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    uint64_t drawn = 0;
    for (uint32_t i = 0; call->requests && i < call->sequence_count; i++) {
        uint32_t kept = sequences_at(c->o.state->sequences, call->requests[i].row)->declared;
        uint32_t need = kept ? block_tables_need(tables, &call->requests[i], 1) : 0;
        drawn += need < kept ? need : kept;
    }
    return drawn;
}

/* `need` blocks were not to be had. */
static int fail_for_blocks(struct client_queue *c, struct call *call, uint32_t need, uint64_t promised)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables));
    char kept[96] = "", swaps[80] = "";
    if (promised)
        snprintf(kept, sizeof kept,
                 ", of which %llu are promised to workloads and to sequences with max_tokens",
                 (unsigned long long)promised);
    if (c->o.state->config->host_blocks)
        snprintf(swaps, sizeof swaps, "; too few idle sequences can be swapped out (%u host blocks free)",
                 block_tables_counts(tables).host_free);
    return call_fail(call, ATTND_NO_BLOCKS, "needs %u blocks of %u; %u free, %u reclaimable%s%s", need,
                     counts.blocks, counts.free, counts.cached, kept, swaps);
}

/* Whether nothing will give blocks back by itself: no step is in flight, and the one being formed does
 * nothing. */
static bool nothing_runs(const struct client_queue *c)
{
    return steps_in_flight(c->o.state->steps) == 0 && c->sequence_count == 0 && c->copies->count == 0 &&
           block_pool_counts(block_tables_pool(tables_of(c))).fenced == 0;
}

/* Whether a call may take `need` blocks now: 0; WAIT when some step gives some back; else the
 * call has failed. What was promised to others is not touched. */
static int make_room(struct client_queue *c, struct call *call, uint32_t need)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables));
    uint64_t available = (uint64_t)counts.free + counts.cached;
    if (need == 0)
        return 0;
    if (c->short_of_blocks)
        return WAIT; /* behind the one that is */
    uint64_t drawn = drawn_from_promises(c, call), promised = reservation_promised(c->o.state) - drawn;
    if (promised && need + promised > available) {
        reservation_note_all(c->o.state); /* somebody may have stopped sharing meanwhile */
        drawn = drawn_from_promises(c, call);
        promised = reservation_promised(c->o.state) - drawn;
    }
    if (need > counts.blocks)
        return call_fail(call, ATTND_INVALID, "needs %u blocks of %u", need, counts.blocks);
    if (need + promised <= available)
        return 0;
    if (need <= drawn && need <= available)
        return 0; /* it was kept for these sequences; what is forecast for workloads may be too much */
    const struct swap_request request = {(uint32_t)(need + promised - available), call->priority, c->forming};
    bool comes = need + promised <= available + counts.fenced ||
                 (request.blocks <= counts.blocks && swapping_out(c->swapping, &request, c->copies));
    if (!comes && nothing_runs(c)) /* else those that are in a step may leave after it */
        return fail_for_blocks(c, call, need, promised);
    c->short_of_blocks = true;
    return WAIT;
}

/* Swap in the sequences of a call that are on the host, for which there is room: 0, or WAIT when some
 * are on their way. */
static int bring_in(struct client_queue *c, const struct call *call)
{
    struct steps *x = c->o.state->steps;
    int result = 0;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row;
        if (!block_tables_view(step_tables(x), row).swapped)
            continue;
        int rc =
            block_tables_swap_in(step_tables(x), row, step_number(x), c->copies->list, &c->copies->count);
        assert(rc == 0); /* make_room() has seen to it */
        (void)rc;
        result = WAIT;
    }
    return result;
}

/* Blocks for what the call appends; there is room for them. 0, or the call failed. */
static int reserve(struct client_queue *c, struct call *call)
{
    struct steps *x = c->o.state->steps;
    if (!call->k)
        return 0;
    int rc = block_tables_reserve(step_tables(x), step_number(x), call->requests, call->sequence_count,
                                  c->copies->list, &c->copies->count);
    if (rc != 0)
        return call_fail(call, rc, "a sequence would be longer than its table");
    for (uint32_t i = 0; i < call->sequence_count; i++)
        reservation_note(c->o.state, call->requests[i].row); /* the next call of this step must see it */
    return 0;
}

/* ---- taking a call into a step ------------------------------------------------------------------- */

/* Tell what tokens [at.first, at.end) of a row are: those that the call names from its row `first` on,
 * or those of the prompt, as far as it goes. */
static void note_tokens(struct client_queue *c, const struct call *call, struct reserve_request at,
                        uint32_t first)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    uint32_t prompt = prompts_length(c->o.state->prompts, at.row);
    if (call->tokens) {
        block_tables_note_tokens(tables, at.row, at.first, call->tokens + first, at.end - at.first);
    } else if (prompt > at.first) {
        uint32_t n = (prompt < at.end ? prompt : at.end) - at.first;
        prompts_read(c->o.state->prompts, at.row, at.first, n, c->tokens_read);
        block_tables_note_tokens(tables, at.row, at.first, c->tokens_read, n);
    }
}

/* The appends of a call: those of its new tokens, which are noted; their number. Blocks are reserved. */
static uint32_t make_appends(struct client_queue *c, const struct call *call, struct kv_append *appends)
{
    struct block_tables *tables = tables_of(c);
    uint32_t first = 0, count = 0;
    for (uint32_t i = 0; call->k && i < call->sequence_count; i++) {
        struct reserve_request at = call->requests[i];
        uint32_t rows = call->sequences[i].rows, n = at.end - at.first;
        if (n > 0) {
            appends[count++] = (struct kv_append){
                .table = at.row, .position = at.first, .count = n, .source = first + rows - n};
            if (at.first >= block_tables_view(tables, at.row).cursor_max) /* the first layer to come */
                note_tokens(c, call, at, first + rows - n);
        }
        first += rows;
    }
    return count;
}

/* The queries of a call, as the planner wants them. */
static void make_rows(struct client_queue *c, const struct call *call, struct planner_row *rows)
{
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row, first = call->sequences[i].position;
        bool sees = call->k || call->requests[i].first > 0; /* an empty sequence has no keys */
        for (uint32_t r = 0; r < call->sequences[i].rows; r++)
            *rows++ =
                (struct planner_row){row, sees ? first + r + 1 : 0, block_tables_version(tables_of(c), row)};
    }
}

/* The cursors move, and the sequences take part in the step. */
static void enter(struct client_queue *c, struct call *call)
{
    struct block_tables *tables = tables_of(c);
    double now = c->o.state->now_s;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        struct reserve_request at = call->requests[i];
        if (call->k && call->all_layers)
            block_tables_advance_all(tables, at.row, at.end - at.first);
        else if (call->k)
            block_tables_advance(tables, at.row, call->layer, at.end - at.first);
        step_take_part(c->step, at.row);
        sequences_at(c->o.state->sequences, at.row)->used_s = now;
    }
}

/* What the answer shows of the sequences, as the call leaves them. */
static void show(struct client_queue *c, struct call *call)
{
    for (uint32_t i = 0; call->views && i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row;
        inspect_view(c->o.state, row, &call->views[call->view_count++]);
        for (uint32_t layer = 0; layer < c->g->layers; layer++)
            call->lengths[(size_t)i * c->g->layers + layer] = block_tables_cursor(tables_of(c), row, layer);
    }
}

/* Tokens that a call appends. */
static uint32_t tokens_of(const struct call *call)
{
    return call->paged ? call->paged->tokens : call->k ? call->rows : 0;
}

/* A call's part at its layer; with `all_layers`, at `layer`. */
static struct step_part part_of(const struct client_queue *c, const struct call *call, uint32_t layer)
{
    size_t layer_bytes = call->all_layers ? call->rows * kv_row_bytes(c, call->kv_source) : 0;
    return (struct step_part){.producer = STEP_OF_CLIENTS,
                              .layer = layer,
                              .kernel = call->kernel,
                              .k = call->k ? (const uint8_t *)call->k + layer * layer_bytes : NULL,
                              .v = call->k ? (const uint8_t *)call->v + layer * layer_bytes : NULL,
                              .tokens = tokens_of(call),
                              .kv_dtype = call->kv_source,
                              .row_count = call->q ? call->rows : 0,
                              .q = call->q,
                              .o = call->o,
                              .lse = call->lse,
                              .in_place = call->all_layers || call->paged};
}

/* Whether the step has room for the parts of a call. */
static bool has_room(const struct client_queue *c, const struct call *call)
{
    struct step_part part = part_of(c, call, call->all_layers ? 0 : call->layer);
    if (call->kind == CALL_PAGED) {
        uint32_t room = step_table_blocks(c->o.state->steps);
        if (call->paged->sequences + (call->paged->tokens + room - 1) / room > step_tables_left(c->step))
            return false;
    }
    return step_fits(c->step, &part, call->all_layers ? c->g->layers : 1);
}

/* Give a call on sequences what it takes to be in the step: 0, WAIT, or the call failed. Whatever can be
 * refused without looking at K and V is refused before anything is moved. */
static int admit_to_sequences(struct client_queue *c, struct call *call)
{
    int rc = resolve(c, call);
    if (rc == 0)
        rc = check_kernel(c, call);
    if (rc == 0)
        rc = make_outputs(c, call);
    if (rc == 0)
        rc = make_room(c, call, block_tables_need(tables_of(c), call->requests, call->sequence_count));
    if (rc == 0)
        rc = bring_in(c, call);
    if (rc == 0)
        rc = compare(c, call);
    return rc == 0 ? reserve(c, call) : rc;
}

/* Add a call on sequences, which was admitted. */
static void add_to_sequences(struct client_queue *c, struct call *call)
{
    struct kv_append *appends = step_appends(c->step, call->k ? call->sequence_count : 0);
    struct planner_row *rows = step_rows(c->step, call->q ? call->rows : 0);
    assert(appends && rows);
    uint32_t append_count = make_appends(c, call, appends);
    if (call->q)
        make_rows(c, call, rows);
    enter(c, call);
    show(c, call);
    for (uint32_t layer = 0; layer < (call->all_layers ? c->g->layers : 1); layer++) {
        struct step_part part = part_of(c, call, call->all_layers ? layer : call->layer);
        part.appends = appends;
        part.append_count = append_count;
        part.rows = rows;
        step_add(c->step, &part);
    }
}

/* The same two for a call on the caller's own tables, which takes no blocks. */
static int admit_paged(struct client_queue *c, struct call *call)
{
    int rc = client_tables_check(c->o.state, call);
    if (rc == 0)
        rc = check_kernel(c, call);
    return rc == 0 ? make_outputs(c, call) : rc;
}

static void add_paged(struct client_queue *c, struct call *call)
{
    struct step_part part = part_of(c, call, call->layer);
    struct client_tables_part made = {.rows = step_rows(c->step, part.row_count),
                                      .appends = step_appends(c->step, part.tokens)};
    uint32_t lease = sequences_find(c->o.state->sequences, call->sequences[0].id);
    assert(made.rows && made.appends);
    client_tables_fill(c->o.state, call, c->step, &made);
    part.appends = made.appends;
    part.append_count = made.append_count;
    part.rows = made.rows;
    step_add(c->step, &part);
    step_take_part(c->step, lease);
    sequences_at(c->o.state->sequences, lease)->used_s = c->o.state->now_s;
}

/* Blocks of zeros for a new lease: 0, WAIT, or the call failed. */
static int make_lease(struct client_queue *c, struct call *call)
{
    struct block_tables *tables = tables_of(c);
    uint32_t row, n = call->count;
    int rc = sequence_ops_check_lease(c->o.state, call);
    if (rc == 0)
        rc = make_room(c, call, n);
    if (rc != 0)
        return rc;
    rc = block_tables_add(tables, NO_ROOT, NULL, 0, &row);
    if (rc != 0)
        return call_fail(call, rc, "limits.sequences (%u) are in use", c->o.state->config->limits.sequences);
    const struct reserve_request request = {row, 0, n * c->g->block_size};
    rc = block_tables_reserve(tables, step_number(c->o.state->steps), &request, 1, c->copies->list,
                              &c->copies->count);
    assert(rc == 0); /* there is room, in the pool and in a table */
    const uint32_t *ids = block_tables_view(tables, row).ids;
    for (uint32_t i = 0; i < n; i++)
        c->copies->list[c->copies->count++] = (struct block_copy){COPY_CLEAR, 0, ids[i], c->g->block_size};
    sequence_ops_add_lease(c->o.state, call, row);
    return 0;
}

/* A fork: its parent comes in first. */
static int make_forks(struct client_queue *c, struct call *call)
{
    uint32_t parent = sequence_ops_check_fork(c->o.state, call);
    if (parent == NO_ROW)
        return call->status;
    struct reserve_request nothing = {parent, 0, 0};
    call->requests = &nothing;
    int rc = make_room(c, call, block_tables_need(tables_of(c), &nothing, 1));
    if (rc == 0)
        (void)bring_in(c, call); /* its bytes may come later: a fork only shares the table */
    call->requests = NULL;
    if (rc == 0)
        sequence_ops_fork(c->o.state, call);
    return rc == 0 ? call->status : rc;
}

/* Take a call into the step, or do what it asks: 0, WAIT (and it is as if nothing had been asked), or
 * it has failed. */
static int take(struct client_queue *c, struct call *call)
{
    switch (call->kind) {
    case CALL_LEASE:
        return make_lease(c, call);
    case CALL_FORK:
        return make_forks(c, call);
    case CALL_TRUNCATE:
        sequence_ops_truncate(c->o.state, call);
        return call->status;
    default:
        break;
    }
    size_t used = call->arena_used;
    bool paged = call->kind == CALL_PAGED;
    int rc = !has_room(c, call) ? WAIT : paged ? admit_paged(c, call) : admit_to_sequences(c, call);
    if (rc == WAIT)
        call->arena_used = used;
    else if (rc == 0 && paged)
        add_paged(c, call);
    else if (rc == 0)
        add_to_sequences(c, call);
    return rc;
}

/* Whether a call must wait for another step: it does not fit, or one of its sequences is in this one or
 * waits itself. Its sequences are marked. */
static bool has_to_wait(struct client_queue *c, const struct call *call)
{
    bool waits = c->rows + call->rows > c->rows_max || c->tokens + tokens_of(call) > c->rows_max ||
                 c->sequence_count + call->sequence_count > c->rows_max;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        const struct sequence *s = sequence_of(c, call->sequences[i].id);
        waits |= s && s->forming == c->forming; /* of unknown ones resolve() will say so */
    }
    for (uint32_t i = 0; i < call->sequence_count; i++) { /* after that: one may be named twice */
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            s->forming = c->forming;
    }
    return waits;
}

static void count_queued(struct client_queue *c, const struct call *call, int32_t by)
{
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s && (by > 0 || s->queued > 0)) /* it may be newer than the call */
            s->queued += (uint32_t)by;
    }
}

/* Fail a call that is cancelled or past its deadline; return whether it was. */
static bool is_too_late(struct call *call, double now)
{
    if (atomic_load(&call->cancelled))
        call_fail(call, ATTND_GONE, "the client went away before the call ran");
    else if (call->deadline_s > 0 && now > call->submitted_s + call->deadline_s)
        call_fail(call, ATTND_DEADLINE, "%.0f ms passed before the call could run", call->deadline_s * 1e3);
    return call->status != 0;
}

/* Whether a call is answered when its step retires; others are when they are taken. */
static bool waits_for_step(const struct call *call)
{
    return call->kind == CALL_APPEND || call->kind == CALL_ATTEND || call->kind == CALL_PAGED;
}

/* A call has been taken, or has failed: answer it, or keep it until the step retires. */
static void finish_taking(struct client_queue *c, struct call *call)
{
    if (call->status != 0 || !waits_for_step(call)) {
        c->o.state->epoch += call->status == 0;
        c->o.complete(call, c->o.cookie);
        return;
    }
    c->rows += call->q ? call->rows : 0;
    c->tokens += tokens_of(call);
    c->sequence_count += call->sequence_count;
    call->queue_us = (c->o.state->now_s - call->submitted_s) * 1e6;
    call->next_ready = c->in_step[step_slot(c->step)];
    c->in_step[step_slot(c->step)] = call;
}

static void begin_forming(struct client_queue *c, struct step *step)
{
    c->step = step;
    c->copies = step_copies(step);
    c->forming++;
    c->short_of_blocks = c->needs_idle = false;
    c->rows = c->tokens = c->sequence_count = 0;
    c->in_step[step_slot(step)] = NULL;
}

/* Put a call at the end of the queue. */
static void append(struct client_queue *c, struct call *call)
{
    call->next_ready = NULL;
    *(c->last ? &c->last->next_ready : &c->queue) = call;
    c->last = call;
}

void client_queue_fill(struct client_queue *c, struct step *step)
{
    struct call *call = c->queue, *next;
    begin_forming(c, step);
    if (client_queue_wait_s(c) != 0 && !c->o.state->stopping)
        return;
    c->queue = c->last = NULL;
    for (; call; call = next) {
        int rc = 0;
        next = call->next_ready;
        if (c->o.state->failed)
            call_fail(call, ATTND_DEVICE, "the device has failed");
        else if (!is_too_late(call, c->o.state->now_s))
            rc = has_to_wait(c, call) ? WAIT : take(c, call);
        if (rc == WAIT) {
            call->passed_over = true;
            append(c, call);
            continue;
        }
        count_queued(c, call, -1);
        finish_taking(c, call);
    }
}

void client_queue_retire(struct client_queue *c, const struct step *step)
{
    struct call *call = c->in_step[step_slot(step)], *first = NULL, *next;
    struct step_cost cost = step_cost(step);
    for (; call; call = next) { /* in the order in which they were taken */
        next = call->next_ready;
        call->next_ready = first;
        first = call;
    }
    c->in_step[step_slot(step)] = NULL;
    for (call = first; call; call = next) {
        next = call->next_ready;
        call->step_us = cost.seconds * 1e6;
        call->rows_in_step = step_row_count(step);
        call->bytes_read = cost.bytes;
        c->o.complete(call, c->o.cookie);
    }
}

bool client_queue_needs_idle(const struct client_queue *c)
{
    return c->needs_idle;
}

/* ---- the queue ----------------------------------------------------------------------------------- */

double client_queue_wait_s(const struct client_queue *c)
{
    double window = c->o.state->config->batch_window_us * 1e-6, shortest = window;
    if (!c->queue)
        return -1;
    for (const struct call *call = c->queue; shortest > 0 && call; call = call->next_ready) {
        double waited = c->o.state->now_s - call->submitted_s;
        if (!waits_for_step(call) || call->passed_over) /* waits for no company, nor does what is ahead */
            return 0;
        shortest = fmin(shortest, window - waited);
        if (call->deadline_s > 0)
            shortest = fmin(shortest, call->deadline_s - waited);
    }
    return fmax(shortest, 0);
}

void client_queue_drop(struct client_queue *c, uint64_t id)
{
    struct call *call = c->queue, *next;
    c->queue = c->last = NULL;
    for (; call; call = next) {
        bool names = false;
        next = call->next_ready;
        for (uint32_t i = 0; i < call->sequence_count; i++)
            names |= call->sequences[i].id == id;
        if (!names) {
            append(c, call);
            continue;
        }
        count_queued(c, call, -1);
        call_fail(call, ATTND_GONE, "%s %llu was deleted before the call ran",
                  call->of_leases ? "lease" : "sequence", (unsigned long long)id);
        c->o.complete(call, c->o.cookie);
    }
}

static bool goes_before(const struct call *a, const struct call *b)
{
    const struct policy_claim first = {a->priority, a->submitted_s, 0, 0},
                              second = {b->priority, b->submitted_s, 0, 0};
    return policy_goes_before(&first, &second);
}

/* Put a call behind all that go before it, and behind every earlier one on one of its sequences. */
static void enqueue(struct client_queue *c, struct call *call)
{
    struct call *after = NULL;
    c->forming++; /* marks the call's sequences */
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            s->forming = c->forming;
    }
    for (struct call *other = c->queue; other; other = other->next_ready) {
        bool behind = !goes_before(call, other);
        for (uint32_t i = 0; !behind && i < other->sequence_count; i++) {
            const struct sequence *s = sequence_of(c, other->sequences[i].id);
            behind = s && s->forming == c->forming;
        }
        after = behind ? other : after;
    }
    call->next_ready = after ? after->next_ready : c->queue;
    *(after ? &after->next_ready : &c->queue) = call;
    c->last = call->next_ready ? c->last : call;
}

/* Whether something keeps a fork or truncate waiting: calls on its sequence, or bytes on the host. */
static bool is_held_up(const struct client_queue *c, const struct call *call)
{
    uint32_t row = sequences_find(c->o.state->sequences, call->id);
    return row != NO_ROW && (sequences_at(c->o.state->sequences, row)->queued ||
                             (call->kind == CALL_FORK && block_tables_view(tables_of(c), row).swapped));
}

/* Name the sequence that a fork or truncate is of, so that it keeps its place among the calls on it. */
static void name_sequence(struct call *call)
{
    call->sequences = call_alloc(call, 1, sizeof *call->sequences);
    assert(call->sequences); /* the arena has room for more than such a call takes */
    *call->sequences = (struct call_sequence){.id = call->id};
    call->sequence_count = 1;
}

void client_queue_add(struct client_queue *c, struct call *call)
{
    uint32_t tokens = tokens_of(call);
    bool whole = call->kind == CALL_FORK || call->kind == CALL_TRUNCATE; /* of a sequence */
    if (whole && !is_held_up(c, call)) {
        (void)take(c, call);
        finish_taking(c, call);
        return;
    }
    if (call->rows > c->rows_max || tokens > c->rows_max || call->sequence_count > c->rows_max) {
        call_fail(call, ATTND_INVALID, "%u rows of %u sequences; scheduler.step_rows_max is %u",
                  tokens > call->rows ? tokens : call->rows, call->sequence_count, c->rows_max);
        c->o.complete(call, c->o.cookie);
        return;
    }
    if (whole)
        name_sequence(call);
    count_queued(c, call, 1);
    call->priority = call->kind == CALL_LEASE ? call->options.priority : INT32_MIN;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        const struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            call->priority = policy_of_both(call->priority, s->options.priority);
    }
    if (c->last && goes_before(call, c->last))
        enqueue(c, call);
    else
        append(c, call);
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int client_queue_create(const struct client_queue_options *options, struct client_queue **result)
{
    struct client_queue *c = calloc(1, sizeof *c);
    if (!c)
        return ATTND_NO_MEMORY;
    c->o = *options;
    c->g = &options->state->config->geometry;
    c->rows_max = options->state->config->step_rows_max;
    c->tokens_read = calloc(c->rows_max, sizeof *c->tokens_read);
    if (!c->tokens_read || swapping_create(options->state, &c->swapping) != 0) {
        client_queue_destroy(c);
        return ATTND_NO_MEMORY;
    }
    *result = c;
    return 0;
}

void client_queue_destroy(struct client_queue *c)
{
    if (!c)
        return;
    swapping_destroy(c->swapping);
    free(c->tokens_read);
    free(c);
}
