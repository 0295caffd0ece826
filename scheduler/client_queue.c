/* client_queue.c - see client_queue.h.
 *
 * A step takes the queued requests oldest first, as long as they fit. A sequence has at most one request in a
 * step; a request that has to wait makes the later ones on its sequences wait, so their order is kept.
 *
 * A request is taken in one go: it is checked, its blocks are reserved, its cursors move, and its parts are
 * added to the step (step.h), where they share passes with those of other requests.
 *
 * Rows at positions that stand already are a retry: they are compared with what stands and not appended
 * again, and their attention sees what it saw the first time:
 *
 *     stands   0 1 2 3 4 5 |            cursor 6
 *     request           3 4 5 6 7          position 3: 3..5 are compared, 6 and 7 appended
 *
 * A request on a sequence that is swapped out has it swapped in beside the step being formed and runs in
 * the next one. When blocks run out, idle sequences are swapped out in the same way (swapping.h); the
 * request waits, and so does every later one that needs blocks.
 *
 * Forks and truncates of a sequence that has requests queued wait behind them; leases wait for blocks. They
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

enum { WAIT = REQUEST_WAITS }; /* for another step; errors are negative */

struct client_queue {
    struct client_queue_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct request *queue, *last; /* the first and the last that is queued; NULL: none */
    uint64_t request_number;      /* counts requests that were resolved */
    uint64_t forming;             /* counts attempts to form a step */
    bool needs_idle;              /* a request waits for the pipeline to be empty */

    /* the step being formed */
    struct step *step;
    struct copy_list *copies;
    uint32_t rows, tokens, sequence_count;
    uint64_t bytes;       /* of K and V that it reads, about; counted if bounded */
    bool short_of_blocks; /* a request waits for some */
    struct swapping *swapping;
    uint32_t *tokens_read; /* [rows_max] ids of a prompt */

    struct request *in_step[STEPS_IN_FLIGHT]; /* by step_slot(): requests to be answered */
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

/* Whether a request is answered when its step retires; others are when they are taken. */
static bool waits_for_step(const struct request *request)
{
    return request_kinds[request->kind].when == REQUEST_STEPPED;
}

/* Rows that a request has in its step, and tokens of them that it appends. */
static uint32_t rows_of(const struct request *request)
{
    return waits_for_step(request) ? request->rows.count : 0;
}

static uint32_t tokens_of(const struct request *request)
{
    if (request->kind == REQUEST_PAGED)
        return request->paged.tokens;
    return waits_for_step(request) && request->rows.k ? request->rows.count : 0;
}

/* ---- checking a request -------------------------------------------------------------------------- */

/* Compare the token ids that a request gives for the rows of one sequence, its rows `first` and on, with the
 * prompt's; 0, or the request failed. */
static int check_tokens(struct client_queue *c, struct request *request, uint32_t i, uint32_t first)
{
    const struct request_sequence *s = &request->attend.sequences[i];
    const uint32_t *ids = request->attend.tokens.ids + first;
    uint32_t row = request->queued.writes[i].row, prompt;
    uint32_t agree = prompts_agree(c->o.state->prompts, row, s->position, ids, s->rows);
    if (agree == s->rows)
        return 0;
    prompts_read(c->o.state->prompts, row, s->position + agree, 1, &prompt);
    return request_fail(request, ATTND_INVALID,
                        "token_ids: sequence %llu, position %u: %u, but the prompt says %u",
                        (unsigned long long)s->id, s->position + agree, ids[agree], prompt);
}

/* Where the rows of one sequence go, into its write; 0, or the request failed. */
static int resolve_sequence(struct client_queue *c, struct request *request, uint32_t i)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct request_sequence *named = &request->attend.sequences[i];
    uint32_t tokens_max = c->o.state->config->limits.sequence_tokens, rows = named->rows;
    uint32_t row = inspect_find(c->o.state, request, named->id);
    if (row == NO_ROW)
        return request->status;
    const struct sequence *s = sequences_at(c->o.state->sequences, row);
    unsigned long long id = s->id;
    if (s->workload)
        return request_fail(request, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu", id,
                            (unsigned long long)s->workload);
    struct block_table_view table = block_tables_view(tables, row);
    if (request->rows.all_layers && table.length != table.cursor_max)
        return request_fail(request, ATTND_GAP,
                            "sequence %llu has %u tokens at one layer and %u at another: append to it "
                            "layer by layer",
                            id, table.length, table.cursor_max);
    uint32_t at = block_tables_cursor(tables, row, request->rows.layer), grows = request->rows.k ? rows : 0;
    bool given = named->position != REQUEST_POSITION_ABSENT && !named->placed;
    if (!given && !request->rows.k && at > 0 && rows > at)
        return request_fail(request, ATTND_INVALID,
                            "sequence %llu has %u tokens at layer %u, and %u rows ask for them", id, at,
                            request->rows.layer, rows);
    if (!given)
        named->position = request->rows.k || at == 0 ? at : at - rows;
    named->placed = !given;
    uint64_t end = (uint64_t)named->position + rows;
    if (given && (request->rows.k ? named->position > at : end > at))
        return request_fail(request, ATTND_GAP,
                            "sequence %llu has %u tokens at layer %u; rows at position %u do not continue "
                            "them (length %u)",
                            id, at, request->rows.layer, named->position, table.length);
    if (request->rows.k && end > tokens_max)
        return request_fail(request, ATTND_INVALID,
                            "sequence %llu would have %llu tokens; limits.sequence_tokens is %u", id,
                            (unsigned long long)end, tokens_max);
    if (request->rows.k && s->options.max_tokens && end > s->options.max_tokens)
        return request_fail(request, ATTND_INVALID,
                            "sequence %llu would have %llu tokens; it declared max_tokens %u", id,
                            (unsigned long long)end, s->options.max_tokens);
    uint32_t stands = at - named->position < grows ? at - named->position : grows;
    request->queued.writes[i] = (struct reserve_request){row, at, at + grows - stands};
    return 0;
}

/* The rows of the block tables of a request, into its writes; 0, or the request failed. */
static int resolve(struct client_queue *c, struct request *request)
{
    uint32_t first = 0;
    c->request_number++;
    request->queued.writes =
        request_alloc(request, request->attend.sequence_count, sizeof *request->queued.writes);
    if (!request->queued.writes)
        return request_fail(request, ATTND_INVALID, "%u sequences are too many for one call",
                            request->attend.sequence_count);
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        int rc = resolve_sequence(c, request, i);
        if (rc == 0 && request->attend.tokens.ids)
            rc = check_tokens(c, request, i, first);
        if (rc != 0)
            return rc;
        struct sequence *s = sequences_at(c->o.state->sequences, request->queued.writes[i].row);
        if (s->seen == c->request_number)
            return request_fail(request, ATTND_INVALID, "sequence %llu is named twice in one call",
                                (unsigned long long)s->id);
        s->seen = c->request_number;
        first += request->attend.sequences[i].rows;
    }
    return 0;
}

/* Compare the first `stands` rows of one sequence, rows `first` and on of the request's tensors, with what
 * stands; 0, or the request failed. */
static int compare_sequence(struct client_queue *c, struct request *request, uint32_t i, uint32_t first,
                            uint32_t stands)
{
    const struct request_sequence *s = &request->attend.sequences[i];
    uint32_t row = request->queued.writes[i].row;
    uint32_t stride, layers = request->rows.all_layers ? c->g->layers : 1;
    size_t row_bytes = kv_row_bytes(c, request->rows.kv_source);
    const uint32_t *ids = block_tables_ids(step_tables(c->o.state->steps), &stride);
    for (uint32_t layer = 0; layer < layers; layer++) {
        size_t at = ((size_t)layer * request->rows.count + first) * row_bytes;
        struct kv_rows rows = {.layer = request->rows.all_layers ? layer : request->rows.layer,
                               .position = s->position,
                               .count = stands,
                               .dtype = request->rows.kv_source,
                               .k = (const uint8_t *)request->rows.k + at,
                               .v = (const uint8_t *)request->rows.v + at};
        uint32_t equal = step_compare_kv(c->o.state->steps, &rows, ids + (uint64_t)row * stride);
        if (equal < stands)
            return request_fail(request, ATTND_CONFLICT,
                                "sequence %llu, position %u, layer %u: other k or v stand there",
                                (unsigned long long)s->id, s->position + equal, rows.layer);
    }
    return 0;
}

/* Whether some rows of a request stand already. */
static bool has_retries(const struct request *request)
{
    bool has = false;
    for (uint32_t i = 0; request->rows.k && i < request->attend.sequence_count; i++)
        has |= request->attend.sequences[i].rows >
               request->queued.writes[i].end - request->queued.writes[i].first;
    return has;
}

/* Compare all rows of a request that stand already: 0, WAIT until no step is in flight, or the request
 * failed. Its sequences are resident. */
static int compare(struct client_queue *c, struct request *request)
{
    uint32_t first = 0;
    int rc = 0;
    if (steps_in_flight(c->o.state->steps) && has_retries(request)) {
        c->needs_idle = true;
        return WAIT;
    }
    for (uint32_t i = 0; rc == 0 && request->rows.k && i < request->attend.sequence_count; i++) {
        uint32_t rows = request->attend.sequences[i].rows,
                 stands = rows - (request->queued.writes[i].end - request->queued.writes[i].first);
        if (stands)
            rc = compare_sequence(c, request, i, first, stands);
        first += rows;
    }
    return rc;
}

/* Room for the request's outputs in its own arena. */
static int make_outputs(struct client_queue *c, struct request *request)
{
    struct request_attend *append = &request->attend;
    struct request_output *out = &request->rows.out;
    uint32_t rows = request->rows.count, n = append->sequence_count;
    bool ok = true;
    if (request->rows.q) {
        out->o = request_alloc(request, rows, q_row_bytes(c));
        out->lse = request_alloc(request, (size_t)rows * c->g->query_heads, sizeof *out->lse);
        ok = out->o && out->lse;
    } else if (request->kind == REQUEST_APPEND) {
        append->views = request_alloc(request, n, sizeof *append->views);
        append->lengths = request_alloc(request, (size_t)n * c->g->layers, sizeof *append->lengths);
        ok = append->views && append->lengths;
    }
    return ok ? 0 : request_fail(request, ATTND_INVALID, "%u rows are too many for one call", rows);
}

/* Whether the kernel that a request names can compute it; else it has failed. */
static int check_kernel(struct client_queue *c, struct request *request)
{
    uint32_t limit = step_backend(c->o.state->steps)->paged_v1_tokens, longest = 0;
    bool paged = request->kind == REQUEST_PAGED;
    if (request->rows.kernel == ATTENTION_AUTO)
        return 0;
    if (limit == 0)
        return request_fail(
            request, ATTND_INVALID,
            "kernel: paged_v1 and paged_v2 go with geometry.layout vllm and backend.name cuda");
    for (uint32_t i = 0; paged && i < request->paged.sequences; i++)
        longest = request->paged.context[i] > longest ? request->paged.context[i] : longest;
    for (uint32_t i = 0; !paged && i < request->attend.sequence_count; i++) {
        uint32_t end = request->attend.sequences[i].position + request->attend.sequences[i].rows;
        longest = end > longest ? end : longest;
    }
    if (request->rows.kernel == ATTENTION_PAGED_V1 && longest > limit)
        return request_fail(request, ATTND_INVALID,
                            "kernel: paged_v1 keeps the logits of %u tokens in shared memory, and a sequence "
                            "has %u: take paged_v2",
                            limit, longest);
    return 0;
}

/* ---- room ---------------------------------------------------------------------------------------- */

/* Blocks that the rows of a request take out of what is kept for their own sequences: each as many as it
 * takes, and none for another one. */
static uint64_t drawn_from_promises(struct client_queue *c, const struct request *request)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    uint64_t drawn = 0;
    for (uint32_t i = 0; request->queued.writes && i < request->queued.on_count; i++) {
        uint32_t kept = sequences_at(c->o.state->sequences, request->queued.writes[i].row)->declared;
        uint32_t need = kept ? block_tables_need(tables, &request->queued.writes[i], 1) : 0;
        drawn += need < kept ? need : kept;
    }
    return drawn;
}

/* `need` blocks were not to be had. */
static int fail_for_blocks(struct client_queue *c, struct request *request, uint32_t need, uint64_t promised)
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
    return request_fail(request, ATTND_NO_BLOCKS, "needs %u blocks of %u; %u free, %u reclaimable%s%s", need,
                        counts.blocks, counts.free, counts.cached, kept, swaps);
}

/* Whether nothing will give blocks back by itself: no step is in flight, and the one being formed does
 * nothing. */
static bool nothing_runs(const struct client_queue *c)
{
    return steps_in_flight(c->o.state->steps) == 0 && c->sequence_count == 0 && c->copies->count == 0 &&
           block_pool_counts(block_tables_pool(tables_of(c))).fenced == 0;
}

/* Whether a request may take `need` blocks now: 0; WAIT when some step gives some back; else the
 * request has failed. What was promised to others is not touched. */
static int make_room(struct client_queue *c, struct request *request, uint32_t need)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables));
    uint64_t available = (uint64_t)counts.free + counts.cached;
    if (need == 0)
        return 0;
    if (c->short_of_blocks)
        return WAIT; /* behind the one that is */
    uint64_t drawn = drawn_from_promises(c, request), promised = reservation_promised(c->o.state) - drawn;
    if (promised && need + promised > available) {
        reservation_note_all(c->o.state); /* somebody may have stopped sharing meanwhile */
        drawn = drawn_from_promises(c, request);
        promised = reservation_promised(c->o.state) - drawn;
    }
    if (need > counts.blocks)
        return request_fail(request, ATTND_INVALID, "needs %u blocks of %u", need, counts.blocks);
    if (need + promised <= available)
        return 0;
    if (need <= drawn && need <= available)
        return 0; /* it was kept for these sequences; what is forecast for workloads may be too much */
    const struct swap_request swap = {(uint32_t)(need + promised - available), request->queued.priority,
                                      c->forming};
    bool comes = need + promised <= available + counts.fenced ||
                 (swap.blocks <= counts.blocks && swapping_out(c->swapping, &swap, c->copies));
    if (!comes && nothing_runs(c)) /* else those that are in a step may leave after it */
        return fail_for_blocks(c, request, need, promised);
    c->short_of_blocks = true;
    return WAIT;
}

/* Swap in the sequences of a request that are on the host, for which there is room: 0, or WAIT when some
 * are on their way. */
static int bring_in(struct client_queue *c, const struct request *request)
{
    struct steps *x = c->o.state->steps;
    int result = 0;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        uint32_t row = request->queued.writes[i].row;
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

/* Blocks for what the request appends; there is room for them. 0, or the request failed. */
static int reserve(struct client_queue *c, struct request *request)
{
    struct steps *x = c->o.state->steps;
    if (!request->rows.k)
        return 0;
    int rc = block_tables_reserve(step_tables(x), step_number(x), request->queued.writes,
                                  request->attend.sequence_count, c->copies->list, &c->copies->count);
    if (rc != 0)
        return request_fail(request, rc, "a sequence would be longer than its table");
    for (uint32_t i = 0; i < request->attend.sequence_count;
         i++) /* the next request of this step must see it */
        reservation_note(c->o.state, request->queued.writes[i].row);
    return 0;
}

/* ---- taking a request into a step ---------------------------------------------------------------- */

/* Tell what tokens [at.first, at.end) of a row are: those that the request names from its row `first` on,
 * or those of the prompt, as far as it goes. */
static void note_tokens(struct client_queue *c, const struct request *request, struct reserve_request at,
                        uint32_t first)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    uint32_t prompt = prompts_length(c->o.state->prompts, at.row);
    if (request->attend.tokens.ids) {
        block_tables_note_tokens(tables, at.row, at.first, request->attend.tokens.ids + first,
                                 at.end - at.first);
    } else if (prompt > at.first) {
        uint32_t n = (prompt < at.end ? prompt : at.end) - at.first;
        prompts_read(c->o.state->prompts, at.row, at.first, n, c->tokens_read);
        block_tables_note_tokens(tables, at.row, at.first, c->tokens_read, n);
    }
}

/* The appends of a request: those of its new tokens, which are noted; their number. Blocks are reserved. */
static uint32_t make_appends(struct client_queue *c, const struct request *request, struct kv_append *appends)
{
    struct block_tables *tables = tables_of(c);
    uint32_t first = 0, count = 0;
    for (uint32_t i = 0; request->rows.k && i < request->attend.sequence_count; i++) {
        struct reserve_request at = request->queued.writes[i];
        uint32_t rows = request->attend.sequences[i].rows, n = at.end - at.first;
        if (n > 0) {
            appends[count++] = (struct kv_append){
                .table = at.row, .position = at.first, .count = n, .source = first + rows - n};
            if (at.first >= block_tables_view(tables, at.row).cursor_max) /* the first layer to come */
                note_tokens(c, request, at, first + rows - n);
        }
        first += rows;
    }
    return count;
}

/* The queries of a request, as the planner wants them. */
static void make_rows(struct client_queue *c, const struct request *request, struct planner_row *rows)
{
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        uint32_t row = request->queued.writes[i].row, first = request->attend.sequences[i].position;
        bool sees = request->rows.k || request->queued.writes[i].first > 0; /* an empty one has no keys */
        for (uint32_t r = 0; r < request->attend.sequences[i].rows; r++)
            *rows++ =
                (struct planner_row){row, sees ? first + r + 1 : 0, block_tables_version(tables_of(c), row)};
    }
}

/* The cursors move, and the sequences take part in the step. */
static void enter(struct client_queue *c, struct request *request)
{
    struct block_tables *tables = tables_of(c);
    double now = c->o.state->now_s;
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        struct reserve_request at = request->queued.writes[i];
        if (request->rows.k && request->rows.all_layers)
            block_tables_advance_all(tables, at.row, at.end - at.first);
        else if (request->rows.k)
            block_tables_advance(tables, at.row, request->rows.layer, at.end - at.first);
        step_take_part(c->step, at.row);
        sequences_at(c->o.state->sequences, at.row)->used_s = now;
    }
}

/* What the answer shows of the sequences, as the request leaves them. */
static void show(struct client_queue *c, struct request *request)
{
    for (uint32_t i = 0; request->attend.views && i < request->attend.sequence_count; i++) {
        uint32_t row = request->queued.writes[i].row;
        inspect_view(c->o.state, row, &request->attend.views[request->attend.view_count++]);
        for (uint32_t layer = 0; layer < c->g->layers; layer++)
            request->attend.lengths[(size_t)i * c->g->layers + layer] =
                block_tables_cursor(tables_of(c), row, layer);
    }
}

/* A request's part at its layer; with `all_layers`, at `layer`. */
static struct step_part part_of(const struct client_queue *c, const struct request *request, uint32_t layer)
{
    const struct request_rows *r = &request->rows;
    size_t layer_bytes = r->all_layers ? r->count * kv_row_bytes(c, r->kv_source) : 0;
    return (struct step_part){.producer = STEP_OF_CLIENTS,
                              .layer = layer,
                              .kernel = r->kernel,
                              .k = r->k ? (const uint8_t *)r->k + layer * layer_bytes : NULL,
                              .v = r->k ? (const uint8_t *)r->v + layer * layer_bytes : NULL,
                              .tokens = tokens_of(request),
                              .kv_dtype = r->kv_source,
                              .row_count = r->q ? r->count : 0,
                              .q = r->q,
                              .o = r->out.o,
                              .lse = r->out.lse,
                              .in_place = r->all_layers || request->kind == REQUEST_PAGED};
}

/* Whether the step has room for the parts of a request. */
static bool has_room(const struct client_queue *c, const struct request *request)
{
    struct step_part part = part_of(c, request, request->rows.all_layers ? 0 : request->rows.layer);
    if (request->kind == REQUEST_PAGED) {
        uint32_t room = step_table_blocks(c->o.state->steps);
        if (request->paged.sequences + (request->paged.tokens + room - 1) / room > step_tables_left(c->step))
            return false;
    }
    return step_fits(c->step, &part, request->rows.all_layers ? c->g->layers : 1);
}

/* Give a request on sequences what it takes to be in the step: 0, WAIT, or the request failed. Whatever can
 * be refused without looking at K and V is refused before anything is moved. */
static int admit_to_sequences(struct client_queue *c, struct request *request)
{
    int rc = resolve(c, request);
    if (rc == 0)
        rc = check_kernel(c, request);
    if (rc == 0)
        rc = make_outputs(c, request);
    if (rc == 0)
        rc = make_room(
            c, request,
            block_tables_need(tables_of(c), request->queued.writes, request->attend.sequence_count));
    if (rc == 0)
        rc = bring_in(c, request);
    if (rc == 0)
        rc = compare(c, request);
    return rc == 0 ? reserve(c, request) : rc;
}

/* Add a request on sequences, which was admitted. */
static void add_to_sequences(struct client_queue *c, struct request *request)
{
    struct kv_append *appends = step_appends(c->step, request->rows.k ? request->attend.sequence_count : 0);
    struct planner_row *rows = step_rows(c->step, request->rows.q ? request->rows.count : 0);
    assert(appends && rows);
    uint32_t append_count = make_appends(c, request, appends);
    if (request->rows.q)
        make_rows(c, request, rows);
    enter(c, request);
    show(c, request);
    for (uint32_t layer = 0; layer < (request->rows.all_layers ? c->g->layers : 1); layer++) {
        struct step_part part = part_of(c, request, request->rows.all_layers ? layer : request->rows.layer);
        part.appends = appends;
        part.append_count = append_count;
        part.rows = rows;
        step_add(c->step, &part);
    }
}

int client_queue_attend(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    size_t used = request->arena_used;
    int rc = has_room(c, request) ? admit_to_sequences(c, request) : WAIT;
    if (rc == WAIT)
        request->arena_used = used;
    else if (rc == 0)
        add_to_sequences(c, request);
    return rc;
}

/* The same two for a request on the caller's own tables, which takes no blocks. */
static int admit_paged(struct client_queue *c, struct request *request)
{
    int rc = client_tables_check(c->o.state, request);
    if (rc == 0)
        rc = check_kernel(c, request);
    return rc == 0 ? make_outputs(c, request) : rc;
}

static void add_paged(struct client_queue *c, struct request *request)
{
    struct step_part part = part_of(c, request, request->rows.layer);
    struct client_tables_part made = {.rows = step_rows(c->step, part.row_count),
                                      .appends = step_appends(c->step, part.tokens)};
    uint32_t lease = sequences_find(c->o.state->sequences, request->id);
    assert(made.rows && made.appends);
    client_tables_fill(c->o.state, request, c->step, &made);
    part.appends = made.appends;
    part.append_count = made.append_count;
    part.rows = made.rows;
    step_add(c->step, &part);
    step_take_part(c->step, lease);
    sequences_at(c->o.state->sequences, lease)->used_s = c->o.state->now_s;
}

int client_queue_paged(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    int rc = has_room(c, request) ? admit_paged(c, request) : WAIT;
    if (rc == 0)
        add_paged(c, request);
    return rc;
}

/* Blocks of zeros for a new lease. */
int client_queue_lease(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    struct block_tables *tables = tables_of(c);
    uint32_t row, n = request->lease.blocks;
    int rc = sequence_ops_check_lease(c->o.state, request);
    if (rc == 0)
        rc = make_room(c, request, n);
    if (rc != 0)
        return rc;
    rc = block_tables_add(tables, NO_ROOT, NULL, 0, &row);
    if (rc != 0)
        return request_fail(request, rc, "limits.sequences (%u) are in use",
                            c->o.state->config->limits.sequences);
    const struct reserve_request blocks = {row, 0, n * c->g->block_size};
    rc = block_tables_reserve(tables, step_number(c->o.state->steps), &blocks, 1, c->copies->list,
                              &c->copies->count);
    assert(rc == 0); /* there is room, in the pool and in a table */
    const uint32_t *ids = block_tables_view(tables, row).ids;
    for (uint32_t i = 0; i < n; i++)
        c->copies->list[c->copies->count++] = (struct block_copy){COPY_CLEAR, 0, ids[i], c->g->block_size};
    return sequence_ops_add_lease(state, request, row);
}

/* A fork: its parent comes in first. */
int client_queue_fork(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    uint32_t parent = sequence_ops_check_fork(c->o.state, request);
    if (parent == NO_ROW)
        return request->status;
    struct reserve_request nothing = {parent, 0, 0};
    request->queued.writes = &nothing;
    int rc = make_room(c, request, block_tables_need(tables_of(c), &nothing, 1));
    if (rc == 0)
        (void)bring_in(c, request); /* its bytes may come later: a fork only shares the table */
    request->queued.writes = NULL;
    return rc == 0 ? sequence_ops_make_forks(state, request) : rc;
}

/* Take a request into the step, or do what it asks: 0, WAIT (and it is as if nothing had been asked), or
 * it has failed. */
static int take(struct client_queue *c, struct request *request)
{
    return request_kinds[request->kind].run(c->o.state, request);
}

/* K and V that the attention of a request reads, at most. */
static uint64_t bytes_of(const struct client_queue *c, const struct request *request)
{
    uint64_t tokens = 0;
    bool attends = waits_for_step(request) && request->rows.q;
    for (uint32_t i = 0; attends && i < request->queued.on_count; i++) {
        uint32_t row = sequences_find(c->o.state->sequences, request->queued.on[i].id);
        if (row != NO_ROW)
            tokens += block_tables_cursor(step_tables(c->o.state->steps), row, request->rows.layer) +
                      request->queued.on[i].rows;
    }
    return tokens * geometry_token_bytes(c->g);
}

/* Whether a request must wait for another step: it does not fit, or one of its sequences is in this one or
 * waits itself. Its sequences are marked. */
static bool has_to_wait(struct client_queue *c, const struct request *request)
{
    uint64_t bytes_max = c->o.state->config->step_bytes_max;
    bool waits = c->rows + rows_of(request) > c->rows_max || c->tokens + tokens_of(request) > c->rows_max ||
                 c->sequence_count + request->queued.on_count > c->rows_max ||
                 (bytes_max && c->sequence_count && c->bytes + bytes_of(c, request) > bytes_max);
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        waits |= s && s->forming == c->forming; /* of unknown ones resolve() will say so */
    }
    for (uint32_t i = 0; i < request->queued.on_count; i++) { /* after that: one may be named twice */
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            s->forming = c->forming;
    }
    return waits;
}

static void count_queued(struct client_queue *c, const struct request *request, int32_t by)
{
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s && (by > 0 || s->queued > 0)) /* it may be newer than the request */
            s->queued += (uint32_t)by;
    }
}

/* Fail a request that is cancelled or past its deadline; return whether it was. */
static bool is_too_late(struct request *request, double now)
{
    if (atomic_load(&request->cancelled))
        request_fail(request, ATTND_GONE, "the client went away before the call ran");
    else if (request->deadline_s > 0 && now > request->submitted_s + request->deadline_s)
        request_fail(request, ATTND_DEADLINE, "%.0f ms passed before the call could run",
                     request->deadline_s * 1e3);
    return request->status != 0;
}

/* A request has been taken, or has failed: answer it, or keep it until the step retires. */
static void finish_taking(struct client_queue *c, struct request *request)
{
    if (request->status != 0 || !waits_for_step(request)) {
        c->o.complete(request, c->o.cookie);
        return;
    }
    if (c->o.state->config->step_bytes_max)
        c->bytes += bytes_of(c, request);
    c->rows += request->rows.q ? request->rows.count : 0;
    c->tokens += tokens_of(request);
    c->sequence_count += request->queued.on_count;
    request->rows.out.queue_us = (c->o.state->now_s - request->submitted_s) * 1e6;
    request->next = c->in_step[step_slot(c->step)];
    c->in_step[step_slot(c->step)] = request;
}

static void begin_forming(struct client_queue *c, struct step *step)
{
    c->step = step;
    c->copies = step_copies(step);
    c->forming++;
    c->bytes = 0;
    c->short_of_blocks = c->needs_idle = false;
    c->rows = c->tokens = c->sequence_count = 0;
    c->in_step[step_slot(step)] = NULL;
}

/* Put a request at the end of the queue. */
static void append(struct client_queue *c, struct request *request)
{
    request->next = NULL;
    *(c->last ? &c->last->next : &c->queue) = request;
    c->last = request;
}

void client_queue_fill(struct client_queue *c, struct step *step)
{
    struct request *request = c->queue, *next;
    begin_forming(c, step);
    if (client_queue_wait_s(c) != 0 && !c->o.state->stopping)
        return;
    c->queue = c->last = NULL;
    for (; request; request = next) {
        int rc = 0;
        next = request->next;
        if (c->o.state->failed)
            request_fail(request, ATTND_DEVICE, "the device has failed");
        else if (!is_too_late(request, c->o.state->now_s))
            rc = has_to_wait(c, request) ? WAIT : take(c, request);
        if (rc == WAIT) {
            request->queued.passed_over = true;
            append(c, request);
            continue;
        }
        count_queued(c, request, -1);
        finish_taking(c, request);
    }
}

void client_queue_retire(struct client_queue *c, const struct step *step)
{
    struct request *request = c->in_step[step_slot(step)], *first = NULL, *next;
    struct step_cost cost = step_cost(step);
    for (; request; request = next) { /* in the order in which they were taken */
        next = request->next;
        request->next = first;
        first = request;
    }
    c->in_step[step_slot(step)] = NULL;
    for (request = first; request; request = next) {
        next = request->next;
        request->rows.out.step_us = cost.seconds * 1e6;
        request->rows.out.rows_in_step = step_row_count(step);
        request->rows.out.bytes_read = cost.bytes;
        c->o.complete(request, c->o.cookie);
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
    for (const struct request *request = c->queue; shortest > 0 && request; request = request->next) {
        double waited = c->o.state->now_s - request->submitted_s;
        if (!waits_for_step(request) ||
            request->queued.passed_over) /* waits for no company, nor does what is ahead */
            return 0;
        shortest = fmin(shortest, window - waited);
        if (request->deadline_s > 0)
            shortest = fmin(shortest, request->deadline_s - waited);
    }
    return fmax(shortest, 0);
}

void client_queue_drop(struct client_queue *c, uint64_t id)
{
    struct request *request = c->queue, *next;
    c->queue = c->last = NULL;
    for (; request; request = next) {
        bool names = false;
        next = request->next;
        for (uint32_t i = 0; i < request->queued.on_count; i++)
            names |= request->queued.on[i].id == id;
        if (!names) {
            append(c, request);
            continue;
        }
        count_queued(c, request, -1);
        request_fail(request, ATTND_GONE, "%s %llu was deleted before the call ran",
                     request->of_leases ? "lease" : "sequence", (unsigned long long)id);
        c->o.complete(request, c->o.cookie);
    }
}

static bool goes_before(const struct request *a, const struct request *b)
{
    const struct policy_claim first = {a->queued.priority, a->submitted_s, 0, 0},
                              second = {b->queued.priority, b->submitted_s, 0, 0};
    return policy_goes_before(&first, &second);
}

/* Put a request behind all that go before it, and behind every earlier one on one of its sequences. */
static void enqueue(struct client_queue *c, struct request *request)
{
    struct request *after = NULL;
    c->forming++; /* marks the request's sequences */
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            s->forming = c->forming;
    }
    for (struct request *other = c->queue; other; other = other->next) {
        bool behind = !goes_before(request, other);
        for (uint32_t i = 0; !behind && i < other->queued.on_count; i++) {
            const struct sequence *s = sequence_of(c, other->queued.on[i].id);
            behind = s && s->forming == c->forming;
        }
        after = behind ? other : after;
    }
    request->next = after ? after->next : c->queue;
    *(after ? &after->next : &c->queue) = request;
    c->last = request->next ? c->last : request;
}

/* Whether something keeps a fork or truncate waiting: requests on its sequence, or bytes on the host. */
static bool is_held_up(const struct client_queue *c, const struct request *request)
{
    uint32_t row = sequences_find(c->o.state->sequences, request->id);
    return row != NO_ROW && (sequences_at(c->o.state->sequences, row)->queued ||
                             (request->kind == REQUEST_FORK && block_tables_view(tables_of(c), row).swapped));
}

/* Name the sequences, or the lease, on which a request keeps its place; a new lease is on none. */
static void name_sequences(struct request *request)
{
    struct request_queued *q = &request->queued;
    if (request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND) {
        q->on = request->attend.sequences;
        q->on_count = request->attend.sequence_count;
    } else if (request->kind != REQUEST_LEASE) {
        q->one = (struct request_sequence){.id = request->id};
        q->on = &q->one;
        q->on_count = 1;
    }
}

void client_queue_add(struct client_queue *c, struct request *request)
{
    uint32_t rows = rows_of(request), tokens = tokens_of(request);
    bool whole = request->kind == REQUEST_FORK || request->kind == REQUEST_TRUNCATE; /* of a sequence */
    if (whole && !is_held_up(c, request)) {
        (void)take(c, request);
        finish_taking(c, request);
        return;
    }
    name_sequences(request);
    if (rows > c->rows_max || tokens > c->rows_max || request->queued.on_count > c->rows_max) {
        request_fail(request, ATTND_INVALID, "%u rows of %u sequences; scheduler.step_rows_max is %u",
                     tokens > rows ? tokens : rows, request->queued.on_count, c->rows_max);
        c->o.complete(request, c->o.cookie);
        return;
    }
    count_queued(c, request, 1);
    request->queued.priority = request->kind == REQUEST_LEASE ? request->lease.options.priority : INT32_MIN;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            request->queued.priority = policy_of_both(request->queued.priority, s->options.priority);
    }
    if (c->last && goes_before(request, c->last))
        enqueue(c, request);
    else
        append(c, request);
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
