/* SPDX-License-Identifier: Apache-2.0 */
/* client_queue.c - see client_queue.h.
 *
 *     gather -> those let wait for blocks -> small ones of owners within their share -> bulk, by turns -> kept
 *
 * A sequence has at most one request in a step; a request that has to wait makes the later ones on its
 * sequences wait, so their order is kept. Those that may go have their turns by the time that their owners
 * have had (turns.h), as long as they fit.
 *
 * A request is taken when it has been checked and its blocks are reserved. A small one goes into the step
 * whole: its cursors move, and its parts are added, where they share passes with those of others (step.h). A
 * large one goes into this step and the next ones in slices (client_slices.h).
 *
 * Rows at positions that stand already are a retry: they are compared with what stands and not appended
 * again, and their attention sees what it saw the first time:
 *
 *     stands   0 1 2 3 4 5 |          cursor 6
 *     request        3 4 5 6 7        position 3: 3..5 are compared, 6 and 7 appended
 *
 * A request on a sequence that is swapped out has it swapped in beside the step being formed and runs in
 * the next one. When blocks run out, idle sequences are swapped out in the same way (swapping.h); the
 * request waits, and so does every later one that needs blocks.
 *
 * Forks and truncates of a sequence that has requests queued wait behind them, and so does a batch that
 * has some; leases wait for blocks. They are done while the step is formed and compute nothing; those for
 * which its budget has no time (budget.h) are done with the next one. */
#include "scheduler/client_queue.h"

#include "config/numbers.h"
#include "scheduler/client_slices.h"
#include "scheduler/client_tables.h"
#include "scheduler/inspect.h"
#include "scheduler/journal.h"
#include "scheduler/policy.h"
#include "scheduler/reservation.h"
#include "scheduler/sequence_ops.h"
#include "scheduler/shares.h"
#include "scheduler/swap_cache.h"
#include "scheduler/swapping.h"
#include "scheduler/turns.h"
#include "scheduler/unwritten.h"
#include "scheduler/workload_run.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    WAIT = REQUEST_WAITS, /* for another step; errors are negative */
    CUT_MAX = 64,         /* requests that go into steps in slices at a time, */
    CUT_OWNER_MAX = 16,   /* and of one owner; of each other one there may be one at any time */
    READ_TOKENS = 64,     /* that a step reads at least for an export that has its turn */
};

static const double INTERACTIVE_S = 0.1; /* after a small request */

struct client_queue {
    struct client_queue_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct request_list queue; /* that wait, but while a step is formed: then they are kept by turns */
    struct request_list cut;   /* that go into steps in slices */
    uint32_t cut_count;
    struct turns *turns;
    double small_s;          /* when the last small one was taken */
    uint64_t request_number; /* counts requests that were resolved */
    uint64_t forming;        /* counts attempts to form a step */

    /* the step being formed */
    struct step *step;
    struct copy_list *copies;
    bool takes_part;      /* some request */
    bool short_of_blocks; /* a request waits for some, */
    uint64_t short_id;    /* on this sequence; 0: on none */
    bool whole;           /* the request being taken goes into the step as a whole */
    bool early;           /* others may have their turns yet, and give blocks back: */
    bool hesitates;       /* so the request being taken has not failed for want of them */

    struct request_list in_step[STEPS_IN_FLIGHT]; /* by step_slot(): to be answered with the step */

    struct unwritten *unwritten; /* NULL: debug.poison is off */
    struct request_list unsound; /* likewise: whose outputs are NaN, until it is known why */
    bool reads_back;             /* the step in flight is for the first of these */
};

/* ---- small helpers ------------------------------------------------------------------------------- */

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

static bool is_streamed(const struct request *request)
{
    return request_stream(request) != NULL;
}

/* Rows that a request has in its steps, and tokens of them that it appends. */
static uint32_t rows_of(const struct request *request)
{
    return request_has_rows(request) ? request->rows.count : 0;
}

static uint32_t tokens_of(const struct request *request)
{
    if (request->kind == REQUEST_PAGED)
        return request->paged.tokens;
    return request_has_rows(request) && request->rows.k ? request->rows.count : 0;
}

/* Mark the sequences of a request: the later ones on them wait for another step. */
static void mark(struct client_queue *c, const struct request *request)
{
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            s->forming = c->forming;
    }
}

/* ---- checking a request -------------------------------------------------------------------------- */

/* Compare the token ids that a request gives for the rows of one sequence, its rows `first` and on, with the
 * prompt's; 0, or the request failed. */
static int check_tokens(struct client_queue *c, struct request *request, uint32_t i, uint32_t first)
{
    const struct request_sequence *s = &request->attend.sequences[i];
    const uint32_t *ids = request->attend.tokens.ids + first;
    uint32_t row = request->queued.writes[i].row, prompt,
             n = smaller(s->rows, request->attend.tokens.count - first);
    uint32_t agree = prompts_agree(c->o.state->prompts, row, s->position, ids, n);
    if (agree == n)
        return 0;
    prompts_read(c->o.state->prompts, row, s->position + agree, 1, &prompt);
    return request_fail(request, ATTND_INVALID,
                        "token_ids: sequence %llu, position %u: %u, but the prompt says %u",
                        (unsigned long long)s->id, s->position + agree, ids[agree], prompt);
}

/* A request fails because of what the device has found on a sequence. */
static int fail_void(struct request *request, const struct sequence *s)
{
    const struct sequence_void found = s->found;
    return request_fail(
        request, ATTND_INVALID,
        "sequence %llu: %s of tokens %u..%u at layer %u has an element that is not finite%s; it and all "
        "that followed on the sequence are void",
        (unsigned long long)s->id, found.wrong == KV_WRONG_V ? "v" : "k", found.position,
        found.position + found.rows - 1, found.layer,
        found.wrong == KV_WRONG_V ? ", or is 2^97 or more" : "");
}

/* Whether the device has found something on a row, of which nobody was told yet: then the request fails, and the sequence is as
 * before. */
static int check_void(struct client_queue *c, struct request *request, uint32_t row)
{
    struct sequence *s = sequences_at(c->o.state->sequences, row);
    if (!s->found.is)
        return 0;
    int rc = fail_void(request, s);
    s->found = (struct sequence_void){0};
    sequences_note_cut(c->o.state->sequences, row); /* with another content the device goes on */
    return rc;
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
    if (check_void(c, request, row) != 0)
        return request->status;
    if (s->workload)
        return request_fail(request, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu", id,
                            (unsigned long long)s->workload);
    struct block_table_view table = block_tables_view(tables, row);
    if (request->attend.has_constants && request->attend.constants != c->o.state->constants_digest)
        return request_fail(request, ATTND_INVALID,
                            "the model's parameters are others here than where k and v come from: "
                            "PUT /v1/parameters sets them");
    if (request->rows.all_layers && table.length != table.cursor_max)
        return request_fail(request, ATTND_GAP,
                            "sequence %llu has %u token%s at one layer and %u at another: append to it "
                            "layer by layer",
                            id, table.length, plural(table.length), table.cursor_max);
    uint32_t at = block_tables_cursor(tables, row, request->rows.layer), grows = request->rows.k ? rows : 0;
    bool given = named->position != REQUEST_POSITION_ABSENT && !named->placed;
    if (!request->rows.k && at == 0)
        return request_fail(request, ATTND_INVALID, "sequence %llu has no tokens at layer %u to attend to",
                            id, request->rows.layer);
    if (!given && !request->rows.k && rows > at)
        return request_fail(request, ATTND_INVALID,
                            "sequence %llu has %u token%s at layer %u, and %u rows ask for them", id, at,
                            plural(at), request->rows.layer, rows);
    if (!given)
        named->position = request->rows.k ? at : at - rows;
    named->placed = !given;
    uint64_t end = (uint64_t)named->position + rows;
    if (given && (request->rows.k ? named->position > at : end > at))
        return request_fail(request, ATTND_GAP,
                            "sequence %llu has %u token%s at layer %u; rows at position %u do not continue "
                            "them (length %u)",
                            id, at, plural(at), request->rows.layer, named->position, table.length);
    if (request->rows.stream.on && request->rows.k && !request->rows.retries && named->position < at)
        return request_fail(
            request, ATTND_CONFLICT,
            "sequence %llu has %u token%s at layer %u, and rows at position %u stand already: a retry "
            "has to be asked for",
            id, at, plural(at), request->rows.layer, named->position);
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

/* Whether some rows of a request stand already. */
static bool has_retries(const struct request *request)
{
    bool has = false;
    for (uint32_t i = 0; request->rows.k && i < request->attend.sequence_count; i++)
        has |= request->attend.sequences[i].rows >
               request->queued.writes[i].end - request->queued.writes[i].first;
    return has;
}

/* The sequences of a request are used by several steps, and so stay in the pool; or not any more. */
static void pin(struct client_queue *c, struct request *request, bool on)
{
    if (request->queued.pinned == on)
        return;
    request->queued.pinned = on;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s && on)
            s->pinned++;
        else if (s && s->pinned) /* it may be newer than the request */
            s->pinned--;
    }
}

/* Tokens of sequence `i` of a request that stand already. */
static uint32_t standing(const struct request *request, uint32_t i)
{
    const struct reserve_request *write = &request->queued.writes[i];
    return request->rows.k ? request->attend.sequences[i].rows - (write->end - write->first) : 0;
}

/* Sequence and layer of comparison `n` of a request: those of a sequence follow each other. */
static uint32_t sequence_of_compare(const struct client_queue *c, const struct request *request, uint32_t n,
                                    uint32_t *layer)
{
    uint32_t layers = request->rows.all_layers ? c->g->layers : 1;
    *layer = request->rows.all_layers ? n % layers : request->rows.layer;
    return n / layers;
}

/* The step being formed looks at what stands of the request's sequences, which stay where they are. */
static void look(struct client_queue *c, struct request *request)
{
    request->queued.looked = LOOKING;
    request->queued.look_step = step_slot(c->step);
    c->takes_part = true;
    for (uint32_t i = 0; i < request->queued.on_count; i++)
        step_take_part(c->step, sequences_find(c->o.state->sequences, request->queued.on[i].id));
    pin(c, request, true);
}

/* Add comparisons of what stands already to the step, as many as there is room for. WAIT: for their results.
 * The sequences of the request are resident. */
static int compare(struct client_queue *c, struct request *request)
{
    struct request_queued *q = &request->queued;
    uint32_t layers = request->rows.all_layers ? c->g->layers : 1, first = 0;
    size_t row_bytes = geometry_kv_row_bytes(c->g, request->rows.kv_source);
    if (q->looked == LOOKED || !has_retries(request))
        return 0;
    if (q->looked == NOT_LOOKED && !q->equal) {
        q->compare_count = q->on_count * layers;
        q->compares_done = 0;
        q->equal = request_alloc(request, q->compare_count, sizeof *q->equal);
        if (!q->equal)
            return request_fail(request, ATTND_INVALID, "%u sequences are too many for one call",
                                q->on_count);
    }
    uint32_t last = 0, layer;
    bool added = false;
    for (uint32_t n = 0; n < q->compare_count; n++) {
        uint32_t i = sequence_of_compare(c, request, n, &layer), stands = standing(request, i);
        first += i > last ? request->attend.sequences[last].rows : 0;
        last = i;
        if (n < q->compares_done)
            continue;
        size_t at = (request->rows.all_layers ? (size_t)layer * request->rows.count : 0) + first;
        const struct kv_compare compare = {.table = q->writes[i].row,
                                           .layer = layer,
                                           .position = request->attend.sequences[i].position,
                                           .count = stands,
                                           .dtype = request->rows.kv_source,
                                           .k = (const uint8_t *)request->rows.k + at * row_bytes,
                                           .v = (const uint8_t *)request->rows.v + at * row_bytes,
                                           .equal = &q->equal[n]};
        bool time_left = !added || step_us(c->step) < c->o.state->step_us_max;
        if (stands && (!time_left || !step_add_compare(c->step, &compare)))
            break;
        added |= stands > 0;
        q->compares_done++;
    }
    if (added)
        look(c, request);
    return WAIT;
}

/* The step with a request's comparisons, or reads, has retired: go on, or note that all is there; or the request
 * has failed. */
static void note_looked(struct client_queue *c, struct request *request)
{
    struct request_queued *q = &request->queued;
    q->looked = q->compares_done == q->compare_count ? LOOKED : NOT_LOOKED;
    for (uint32_t n = 0; request->status == 0 && n < q->compares_done; n++) {
        uint32_t layer, i = sequence_of_compare(c, request, n, &layer), stands = standing(request, i);
        if (stands && q->equal[n] < stands)
            request_fail(request, ATTND_CONFLICT,
                         "sequence %llu, position %u, layer %u: other k or v stand there",
                         (unsigned long long)request->attend.sequences[i].id,
                         request->attend.sequences[i].position + q->equal[n], layer);
    }
}

/* Room in the request's arena for what an append shows. */
static int make_views(struct client_queue *c, struct request *request)
{
    struct request_attend *append = &request->attend;
    uint32_t n = append->sequence_count;
    if (request->kind != REQUEST_APPEND || request->rows.q)
        return 0;
    append->views = request_alloc(request, n, sizeof *append->views);
    append->lengths = request_alloc(request, (size_t)n * c->g->layers, sizeof *append->lengths);
    return append->views && append->lengths
               ? 0
               : request_fail(request, ATTND_INVALID, "%u sequences are too many for one call", n);
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

/* ---- why a request waits ------------------------------------------------------------------------- */

static int wait_for(struct request *request, enum wait_reason reason)
{
    request->queued.wait = (struct wait_note){.reason = reason};
    return WAIT;
}

/* It waits for `needed` blocks, behind another one that waits for some, or since they are promised to a workload. */
static int wait_for_blocks(struct client_queue *c, struct request *request, uint64_t needed)
{
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables_of(c)));
    struct wait_note *note = &request->queued.wait;
    *note = (struct wait_note){
        .reason = WAIT_FOR_BLOCKS, .needed = needed, .free = counts.free, .reclaimable = counts.cached};
    if (c->short_of_blocks) {
        note->behind = c->short_id ? BEHIND_SEQUENCE : BEHIND_NOTHING;
        note->behind_id = c->short_id;
        return WAIT;
    }
    if (reservation_promised(c->o.state) > reservation_declared(c->o.state))
        note->behind_id = workload_run_oldest(c->o.state->workloads);
    note->behind = note->behind_id ? BEHIND_WORKLOAD : BEHIND_NOTHING;
    c->short_of_blocks = true;
    c->short_id = request->queued.on_count ? request->queued.on[0].id : 0;
    return WAIT;
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
    return request_fail(request, ATTND_NO_BLOCKS, "needs %u block%s of %u; %u free, %u reclaimable%s%s", need,
                        plural(need), counts.blocks, counts.free, counts.cached, kept, swaps);
}

/* Whether nothing will give blocks back by itself: no step is in flight, and the one being formed does
 * nothing. */
static bool nothing_runs(const struct client_queue *c)
{
    return steps_in_flight(c->o.state->steps) == 0 && !c->takes_part && c->cut_count == 0 &&
           c->copies->count == 0 && block_pool_counts(block_tables_pool(tables_of(c))).fenced == 0 &&
           !swap_cache_is_busy(c->o.state->swap_cache);
}

/* Whether a request that is to fail for want of blocks waits once more, since others may have their turns
 * yet. */
static bool hesitates(struct client_queue *c, struct request *request)
{
    c->hesitates = c->early && !request->queued.hesitated;
    request->queued.hesitated |= c->hesitates;
    return c->hesitates;
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
        return wait_for_blocks(c, request, need); /* behind the one that is */
    uint64_t drawn = drawn_from_promises(c, request), promised = reservation_promised(c->o.state) - drawn;
    if (promised && need + promised > available) {
        reservation_note_all(c->o.state); /* somebody may have stopped sharing meanwhile */
        drawn = drawn_from_promises(c, request);
        promised = reservation_promised(c->o.state) - drawn;
    }
    if (need > counts.blocks)
        return request_fail(request, ATTND_INVALID, "needs %u blocks; the pool has %u", need, counts.blocks);
    if (need + promised <= available)
        return 0;
    if (need <= drawn && need <= available)
        return 0; /* it was kept for these sequences; what is forecast for workloads may be too much */
    const struct swap_request swap = {(uint32_t)(need + promised - available), request->queued.priority,
                                      c->forming};
    bool comes = need + promised <= available + counts.fenced ||
                 (swap.blocks <= counts.blocks && swapping_out(c->o.state->swapping, &swap, c->copies));
    if (!comes && nothing_runs(c)) /* else those that are in a step may leave after it */
        return hesitates(c, request) ? WAIT : fail_for_blocks(c, request, need, promised);
    return wait_for_blocks(c, request, need);
}

/* Swap a row in whose bytes are in host memory; there is room. */
static void swap_in(struct client_queue *c, uint32_t row)
{
    struct steps *x = c->o.state->steps;
    uint32_t before = c->copies->count;
    int rc = block_tables_swap_in(step_tables(x), row, step_number(x), c->copies->list, &c->copies->count);
    assert(rc == 0);
    (void)rc;
    swap_cache_place(c->o.state->swap_cache, c->copies->list + before, c->copies->count - before,
                     step_number(x));
    swapping_note(c->o.state->swapping, row);
    inspect_note_state(c->o.state, row);
}

/* Swap in those of `n` rows that are on the host, for which there is room: 0, WAIT when some are on their
 * way, or the request has failed. Nobody behind takes the room meanwhile. */
static int bring_in(struct client_queue *c, struct request *request, const struct reserve_request *writes,
                    uint32_t n)
{
    int result = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = writes[i].row;
        if (!block_tables_view(tables_of(c), row).swapped)
            continue;
        int rc = swap_cache_fetch(c->o.state->swap_cache, row, c->forming);
        if (rc < 0)
            return request_fail(request, rc, "K and V of sequence %llu were swapped to a file, %s",
                                (unsigned long long)sequences_at(c->o.state->sequences, row)->id,
                                rc == ATTND_LOST ? "which does not give them back"
                                                 : "which has failed, and host memory has no room for them");
        if (rc == 0)
            swap_in(c, row);
        else
            c->short_of_blocks = true;
        result = wait_for(request, WAIT_FOR_SWAP);
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
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        reservation_note(c->o.state, request->queued.writes[i].row); /* the next of this step must see it */
        swapping_note(c->o.state->swapping, request->queued.writes[i].row);
    }
    return 0;
}

/* Whether what a request appends is within the quota of blocks of its key; else it has failed. */
static int check_quota(struct client_queue *c, struct request *request)
{
    uint64_t more = 0, whole = 0; /* with what the sequences have */
    uint32_t quota = request->quotas.blocks;
    if (!request->rows.k || !quota)
        return 0;
    for (uint32_t i = 0; i < request->attend.sequence_count; i++) {
        const struct reserve_request *write = &request->queued.writes[i];
        const struct sequence *s = sequences_at(c->o.state->sequences, write->row);
        uint32_t blocks = geometry_blocks(c->g, write->end);
        if (s->key != request->key)
            continue;
        more += blocks > s->charged ? blocks - s->charged : 0;
        whole += larger(blocks, s->charged);
    }
    if (more && whole > quota)
        return request_fail(request, ATTND_INVALID,
                            "quotas.blocks of the key is %u, and the sequences take %llu with these rows",
                            quota, (unsigned long long)whole);
    return sequence_ops_is_within(c->o.state, request, 0, more) ? 0 : request->status;
}

/* Whether a streamed request finds place in the step, as a whole and with others of its stream: 0, WAIT, or it has failed. */
static int find_stream(struct client_queue *c, struct request *request)
{
    struct request_queued *q = &request->queued;
    if (!is_streamed(request))
        return 0;
    if (!client_slices_go_whole(c->o.state, request))
        return request_fail(request, ATTND_INVALID,
                            "%u rows are too many for a call on a stream: scheduler.step_rows_max is %u",
                            request->rows.count, c->rows_max);
    if (!client_slices_fit(c->o.state, c->step, request) || !step_stream(c->step, request->rows.stream.of))
        return WAIT;
    q->streamed = request_alloc(request, q->on_count, sizeof *q->streamed);
    c->whole = true;
    return q->streamed
               ? 0
               : request_fail(request, ATTND_INVALID, "%u sequences are too many for one call", q->on_count);
}

/* Give a request on sequences what it takes to be in the step: 0, WAIT, or the request failed. Whatever can
 * be refused without looking at K and V is refused before anything is moved. */
static int admit_to_sequences(struct client_queue *c, struct request *request)
{
    int rc = resolve(c, request);
    if (rc == 0)
        rc = check_kernel(c, request);
    if (rc == 0)
        rc = make_views(c, request);
    if (rc == 0)
        rc = check_quota(c, request);
    if (rc == 0)
        rc = find_stream(c, request);
    if (rc == 0)
        rc = make_room(
            c, request,
            block_tables_need(tables_of(c), request->queued.writes, request->attend.sequence_count));
    if (rc == 0)
        rc = bring_in(c, request, request->queued.writes, request->queued.on_count);
    if (rc == 0)
        rc = compare(c, request);
    return rc == 0 ? reserve(c, request) : rc;
}

/* What a streamed request appends is looked at by the device alone. */
static void begin_streamed(const struct client_queue *c, struct request *request)
{
    for (uint32_t i = 0; is_streamed(request) && i < request->queued.on_count; i++) {
        uint32_t row = sequences_find(c->o.state->sequences, request->queued.on[i].id);
        struct sequence *s = sequences_at(c->o.state->sequences, row);
        request->queued.streamed[i] =
            (struct request_streamed){s->content, block_tables_view(tables_of(c), row).length};
        s->streamed++;
    }
}

/* The request goes into the step: whole, or, if that takes too long, in as many slices as it takes. Its
 * blocks are reserved. */
static int go(struct client_queue *c, struct request *request)
{
    begin_streamed(c, request);
    if (c->whole) {
        client_slices_add_whole(c->o.state, c->step, request);
        return 0;
    }
    int rc = client_slices_begin(c->o.state, request);
    if (rc == 0)
        pin(c, request, true);
    return rc;
}

int client_queue_attend(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    size_t used = request->arena_used;
    const uint32_t *equal = request->queued.equal;
    int rc = admit_to_sequences(c, request);
    if (rc == WAIT && request->queued.equal == equal) /* else a step writes its results there */
        request->arena_used = used;
    return rc == 0 ? go(c, request) : rc;
}

/* A request on the caller's own tables, which takes no blocks. */
int client_queue_paged(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    int rc = client_tables_check(c->o.state, request);
    if (rc == 0)
        rc = check_void(c, request, sequences_find(c->o.state->sequences, request->id));
    if (rc == 0)
        rc = check_kernel(c, request);
    if (rc == 0)
        rc = find_stream(c, request);
    return rc == 0 ? go(c, request) : rc;
}

int client_queue_merge(struct engine_state *state, struct request *request)
{
    const struct geometry *g = &state->config->geometry;
    const struct request_merge *merge = &request->merge;
    const struct request_stream *stream = request_stream(request);
    const struct merge_states m = {.states = merge->states,
                                   .rows = merge->rows,
                                   .heads = g->query_heads,
                                   .head_dim = g->head_dim,
                                   .dtype = g->dtype,
                                   .o = merge->o,
                                   .lse = merge->lse,
                                   .merged_o = merge->out.o,
                                   .merged_lse = merge->out.lse};
    struct step *step = state->clients->step;
    return (!stream || step_stream(step, stream->of)) && step_add_merge(step, &m) ? 0 : WAIT;
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
    const enum block_copy_kind kind =
        c->unwritten ? COPY_POISON : COPY_CLEAR; /* no block has what others had in it */
    for (uint32_t i = 0; i < n; i++)
        c->copies->list[c->copies->count++] = (struct block_copy){kind, 0, ids[i], c->g->block_size};
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
    assert(request->queued.on_count <= 1); /* 0: it was never queued */
    request->queued.writes = &nothing;
    int rc = make_room(c, request, block_tables_need(tables_of(c), &nothing, 1));
    if (rc == 0)
        rc = bring_in(c, request, &nothing, 1);
    request->queued.writes = NULL;
    if (rc == WAIT && !block_tables_view(tables_of(c), parent).swapped)
        rc = 0; /* it is in: its bytes may come later, a fork only shares the table */
    return rc == 0 ? sequence_ops_make_forks(state, request) : rc;
}

/* The only sequence that a request is on comes in: 0, WAIT, or the request has failed. */
static int bring_in_one(struct client_queue *c, struct request *request, uint32_t row)
{
    struct reserve_request nothing = {row, 0, 0};
    assert(request->queued.on_count == 1);
    request->queued.writes = &nothing;
    int rc = client_queue_bring_in(c, request, &nothing, 1);
    request->queued.writes = NULL;
    return rc;
}

int client_queue_restore(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    struct request_described *d = &request->described;
    uint32_t base = d->base ? inspect_find(state, request, d->base) : NO_ROW;
    if (request->status != 0)
        return request->status;
    if (base != NO_ROW && d->shared > block_tables_view(tables_of(c), base).length)
        return request_fail(request, ATTND_INVALID, "sequence %llu has less than %u tokens",
                            (unsigned long long)d->base, d->shared);
    int rc = base == NO_ROW ? 0 : bring_in_one(c, request, base);
    if (rc == 0)
        rc = make_room(c, request, reservation_need(state, d->options.max_tokens, 0, false));
    return rc == 0 ? sequence_ops_restore(state, request, base) : rc;
}

int client_queue_bring_in(struct client_queue *c, struct request *request,
                          const struct reserve_request *nothing, uint32_t n)
{
    int rc = make_room(c, request, block_tables_need(tables_of(c), nothing, n));
    return rc == 0 ? bring_in(c, request, nothing, n) : rc;
}

/* ---- exports ------------------------------------------------------------------------------------- */

/* The row of the sequence that is exported; NO_ROW: the request has failed. */
static uint32_t find_exported(struct client_queue *c, struct request *request)
{
    const struct request_export *e = &request->export;
    uint32_t row = sequence_ops_find(c->o.state, request);
    if (row == NO_ROW)
        return NO_ROW;
    uint32_t length = block_tables_view(tables_of(c), row).length;
    if (sequence_ops_has_content(c->o.state, request, row, e->content) && e->end > length)
        request_fail(request, ATTND_GAP, "sequence %llu has %u token%s; %u..%u are not all there",
                     (unsigned long long)request->id, length, plural(length), e->first, e->end - 1);
    return request->status == 0 ? row : NO_ROW;
}

/* Add reads to the step, as many as there is time and room for, at least one. */
static void add_reads(struct client_queue *c, struct request *request, uint32_t row)
{
    struct request_export *e = &request->export;
    const struct cost_work pass = {.passes = 1}, one = {.appended = 1};
    double each_us = step_us_of(c->o.state->steps, &one), pass_us = step_us_of(c->o.state->steps, &pass);
    size_t row_bytes = geometry_kv_row_bytes(c->g, c->g->kv_dtype);
    uint32_t tokens = e->end - e->first;
    bool added = false;
    while (e->layer < c->g->layers) {
        double room = floor((c->o.state->step_us_max - step_us(c->step) - pass_us) / each_us);
        uint32_t n = tokens - e->at, least = added ? 0 : smaller(n, READ_TOKENS);
        n = room < (double)least ? least : room < (double)n ? (uint32_t)room : n;
        size_t skip = ((size_t)e->layer * tokens + e->at) * row_bytes;
        const struct kv_read read = {.table = row,
                                     .layer = e->layer,
                                     .position = e->first + e->at,
                                     .count = n,
                                     .k = (uint8_t *)e->k + skip,
                                     .v = (uint8_t *)e->v + skip};
        if (n == 0 || !step_add_read(c->step, &read))
            break;
        e->at += n;
        e->layer += e->at == tokens;
        e->at = e->at == tokens ? 0 : e->at;
        added = true;
    }
    if (added)
        look(c, request);
}

/* What the answer says beside K and V. */
static int show_export(struct client_queue *c, struct request *request, uint32_t row)
{
    struct request_export *e = &request->export;
    uint32_t tokens = e->end - e->first, *ids = request_alloc(request, tokens, sizeof *ids);
    int64_t *wide = request_alloc(request, tokens, sizeof *wide);
    if (!ids || !wide)
        return request_fail(request, ATTND_INVALID, "%u tokens are too many for one call", tokens);
    e->token_count = block_tables_read_tokens(tables_of(c), row, e->first, tokens, ids);
    for (uint32_t i = 0; i < e->token_count; i++)
        wide[i] = ids[i];
    e->tokens = wide;
    e->content = sequences_at(c->o.state->sequences, row)->content;
    e->length = block_tables_view(tables_of(c), row).length;
    e->constants = c->o.state->constants_digest;
    return 0;
}

/* Tokens of a sequence, which is brought in first; in as many steps as it takes. Those behind it wait, so nothing
 * changes meanwhile. */
int client_queue_export(struct engine_state *state, struct request *request)
{
    struct client_queue *c = state->clients;
    uint32_t row = find_exported(c, request);
    if (row == NO_ROW)
        return request->status;
    if (request->export.layer == c->g->layers)
        return show_export(c, request, row);
    int rc = bring_in_one(c, request, row);
    if (rc == 0)
        add_reads(c, request, row);
    return rc == 0 ? WAIT : rc;
}

/* Take a request into the step, or do what it asks: 0, WAIT (and it is as if nothing had been asked), or
 * it has failed. */
static int take(struct client_queue *c, struct request *request)
{
    return request_kinds[request->kind].run(c->o.state, request);
}

/* Whether a request must wait for another step: an earlier one on one of its sequences is in this one or
 * waits itself; that is noted. Later ones wait behind it. */
static bool is_behind(struct client_queue *c, struct request *request)
{
    bool behind = false;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (!s || s->ordered != c->forming) /* of unknown ones resolve() will say so */
            continue;
        behind = true;
        request->queued.wait =
            (struct wait_note){.reason = WAIT_FOR_SEQUENCE, .behind = BEHIND_SEQUENCE, .behind_id = s->id};
    }
    for (uint32_t i = 0; i < request->queued.on_count; i++) { /* after that: one may be named twice */
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            s->ordered = c->forming;
    }
    return behind;
}

static void count_queued(struct client_queue *c, const struct request *request, int32_t by)
{
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        uint32_t row = sequences_find(c->o.state->sequences, request->queued.on[i].id);
        if (row == NO_ROW)
            continue;
        struct sequence *s = sequences_at(c->o.state->sequences, row);
        if (by > 0 || s->queued > 0) /* it may be newer than the request */
            s->queued += (uint32_t)by;
        inspect_note_state(c->o.state, row);
        if (s->queued == 0 && c->o.state->config->host_blocks)
            swapping_note_idle(c->o.state->swapping, row);
    }
}

/* Fail a request that is cancelled or past its deadline; return whether it was. */
static bool is_too_late(const struct client_queue *c, struct request *request)
{
    double now = c->o.state->now_s;
    if (journal_gone(c->o.state->journal, request))
        request_fail(request, ATTND_GONE, "the client went away before the call ran");
    else if (request->deadline_s > 0 && now > request->submitted_s + request->deadline_s)
        request_fail(request, ATTND_DEADLINE, "%.0f ms passed before the call was done",
                     request->deadline_s * 1e3);
    return request->status != 0;
}

static struct request_output *output_of(struct request *request)
{
    return request->kind == REQUEST_MERGE ? &request->merge.out : &request->rows.out;
}

/* A request has come to its end, and with it the use of its sequences: answer it. */
static void finish(struct client_queue *c, struct request *request)
{
    pin(c, request, false);
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            s->used_s = c->o.state->now_s;
    }
    turns_forget(c->turns, request);
    shares_drop(c->o.state->shares, request->queued.account);
    c->o.complete(request, c->o.cookie);
}

/* Count what a request has appended and attended. */
static void note_done(struct client_queue *c, const struct request *request)
{
    struct work_done done = {0};
    bool tokens = request_has_rows(request) && (request->rows.all_layers || request->rows.layer == 0);
    if (!request_has_rows(request))
        return;
    for (uint32_t i = 0; tokens && request->kind == REQUEST_PAGED && i < request->paged.tokens; i++)
        done.tokens += request->paged.slots[i] >= 0;
    for (uint32_t i = 0; tokens && request->kind != REQUEST_PAGED && i < request->queued.on_count; i++)
        done.tokens += request->queued.writes[i].end - request->queued.writes[i].first;
    done.query_rows = request->rows.q ? request->rows.count : 0;
    engine_state_note_done(c->o.state, request->use, &done);
}

/* What a request asks has been computed: answer it, unless its outputs are NaN and it has to be found out why. */
static void conclude(struct client_queue *c, struct request *request)
{
    if (request->status == 0)
        note_done(c, request);
    if (!c->unwritten || !unwritten_is_seen(c->o.state, request)) {
        finish(c, request);
        return;
    }
    unwritten_keep(c->unwritten, request);
    request_list_append(&c->unsound, request);
}

bool client_queue_is_unsound(const struct client_queue *c)
{
    return c->unsound.first;
}

bool client_queue_read_back(struct client_queue *c, struct step *step)
{
    c->reads_back = false;
    while (c->unsound.first && !c->reads_back) {
        c->reads_back =
            !step_failure(c->o.state->steps) && unwritten_read(c->unwritten, step, c->unsound.first);
        if (!c->reads_back)
            finish(c, request_list_take(&c->unsound));
    }
    return c->reads_back;
}

/* A request has been taken, or has failed: answer it, or keep it until its steps retire. */
static void finish_taking(struct client_queue *c, struct request *request)
{
    if (request->status != 0 || !waits_for_step(request)) {
        count_queued(c, request, -1);
        finish(c, request);
        return;
    }
    c->takes_part = true;
    output_of(request)->queue_us = (c->o.state->now_s - request->submitted_s) * 1e6;
    step_note_request(c->step, output_of(request)->queue_us);
    if (request->queued.slices.begun) { /* still queued for others, until it is done */
        request_list_append(&c->cut, request);
        c->cut_count++;
        return;
    }
    count_queued(c, request, -1);
    request->queued.taken = true;
    request_list_append(&c->in_step[step_slot(c->step)], request);
}

/* Answer those in slices that have no more of them, here or in flight. */
static void finish_cut(struct client_queue *c)
{
    struct request_list cut = c->cut;
    struct request *request;
    c->cut = (struct request_list){0};
    while ((request = request_list_take(&cut))) {
        if (request->queued.slices.steps || (request->status == 0 && !client_slices_are_done(request))) {
            request_list_append(&c->cut, request);
            continue;
        }
        client_slices_stop(c->o.state, request);
        c->cut_count--;
        count_queued(c, request, -1);
        conclude(c, request);
    }
}

/* ---- turns --------------------------------------------------------------------------------------- */

/* Charge the owner of a request for what has come into the step since it was estimated to take `before_us`. */
static void charge(struct client_queue *c, const struct request *request, double before_us)
{
    double us = step_us(c->step) - before_us;
    if (us > 0)
        shares_charge(c->o.state->shares, step_slot(c->step), request->queued.account, us);
}

/* Let a request have its turn: 0, WAIT, or it has failed; a whole one that does not wait is gone then. */
static int take_turn(struct client_queue *c, struct request *request)
{
    double before_us = step_us(c->step);
    mark(c, request);
    c->hesitates = false;
    turns_forget(c->turns, request); /* a batch deletes sequences, and with them what is kept on them */
    (void)wait_for(request, WAIT_FOR_STEP); /* unless whoever lets it wait has another reason */
    int rc = take(c, request);
    charge(c, request, before_us);
    request->queued.tried = !c->hesitates;
    request->queued.wants_time = false;
    request->queued.resumes = rc == WAIT && request->queued.looked != LOOKING;
    if (rc == WAIT || (rc == 0 && request->queued.slices.begun))
        turns_put_back(c->turns, request);
    if (rc != WAIT)
        finish_taking(c, request);
    return rc;
}

static bool is_small(const struct client_queue *c, const struct request *request)
{
    return !request_has_rows(request) || is_streamed(request) ||
           (client_slices_go_whole(c->o.state, request) &&
            policy_is_small(request->queued.estimate_us, c->o.state->step_us_max));
}

/* Whether there is time for a request that the step carries out and that computes nothing; others take
 * none now. */
static bool is_time_for(const struct client_queue *c, const struct request *request)
{
    return waits_for_step(request) || budget_allows(&c->o.state->waiting);
}

/* Whether a small request finds place in the step. */
static bool small_fits(const struct client_queue *c, const struct request *request)
{
    const struct engine_state *state = c->o.state;
    double us = request->queued.estimate_us, left_us = state->step_us_max - step_us(c->step);
    bool fits = us <= left_us || !c->takes_part;
    if (is_streamed(request))
        return true; /* as soon as can be */
    return fits && is_time_for(c, request) &&
           (!request_has_rows(request) || client_slices_fit(state, c->step, request));
}

/* Whether a request may begin to go into steps in slices. */
static bool may_be_cut(const struct client_queue *c, const struct request *request)
{
    const struct shares *shares = c->o.state->shares;
    uint32_t owner = shares_owner(shares, request->queued.account), n = 0;
    for (const struct request *other = c->cut.first; other; other = other->next)
        n += shares_owner(shares, other->queued.account) == owner;
    return n == 0 || (n < CUT_OWNER_MAX && c->cut_count < CUT_MAX);
}

/* ---- forming a step ------------------------------------------------------------------------------ */

static void begin_forming(struct client_queue *c, struct step *step)
{
    c->step = step;
    c->copies = step_copies(step);
    c->forming++;
    c->short_of_blocks = c->takes_part = c->early = false;
    c->short_id = 0;
    turns_begin(c->turns);
    budget_begin(&c->o.state->waiting);
}

/* Stop those requests that are in slices and too late; the others may have more. */
static void gather_cut(struct client_queue *c)
{
    for (struct request *request = c->cut.first; request; request = request->next) {
        bool done = client_slices_are_done(request);
        mark(c, request);
        (void)is_behind(c, request);
        if (c->o.state->failed && request->status == 0)
            request_fail(request, ATTND_DEVICE, "the device has failed");
        if (!done && (request->status != 0 || is_too_late(c, request))) {
            client_slices_stop(c->o.state, request);
            done = true;
        }
        if (done)
            continue;
        turns_keep(c->turns, request);
        turns_offer(c->turns, c->o.state, request, false);
    }
}

/* Whether a request has to wait until what is streamed on one of its sequences is done, since it may become void: all but those
 * that are streamed themselves; these too, once it is. */
static bool awaits_streamed(struct client_queue *c, const struct request *request)
{
    bool awaits = false;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        awaits |= s && s->streamed && (s->found.is || !is_streamed(request) || request->rows.retries);
    }
    return awaits;
}

/* Fail what is queued and too late, and keep the others; those that wait for no earlier one may go. */
static void gather_queued(struct client_queue *c)
{
    struct request_list queue = c->queue;
    struct request *request;
    c->queue = (struct request_list){0};
    while ((request = request_list_take(&queue))) {
        bool looking = request->queued.looked == LOOKING;
        if (!looking && c->o.state->failed)
            request_fail(request, ATTND_DEVICE, "the device has failed");
        if (!looking && (request->status != 0 || is_too_late(c, request))) {
            finish_taking(c, request);
            continue;
        }
        bool behind = is_behind(c, request);
        if (!behind && !looking)
            (void)wait_for(request, WAIT_FOR_TURN); /* until it has had it */
        if (!behind && awaits_streamed(c, request))
            behind = wait_for(request, WAIT_FOR_STEP) != 0;
        turns_keep(c->turns, request);
        if (looking)
            mark(c, request);
        if (looking || behind)
            continue;
        request->queued.estimate_us = client_slices_us(c->o.state, request);
        turns_offer(c->turns, c->o.state, request, is_small(c, request));
    }
}

/* Whoever waits for blocks is first to have them, in the order of the queue. Of large requests no slice goes
 * into the step out of turn. */
static void take_resuming(struct client_queue *c)
{
    c->early = true;
    for (uint32_t i = 0; i < turns_count(c->turns); i++) {
        struct request *request = turns_kept(c->turns, i);
        if (!request || !request->queued.resumes || request->queued.tried)
            continue;
        c->whole = is_small(c, request);
        if (c->whole ? small_fits(c, request) : may_be_cut(c, request))
            (void)take_turn(c, request);
    }
    c->early = false;
}

/* Take small requests of owners within their share. */
static void take_small(struct client_queue *c)
{
    struct request *request;
    turns_arrange(c->turns);
    while ((request = turns_next(c->turns, c->o.state, true))) {
        bool steps = waits_for_step(request);
        c->whole = true;
        if (small_fits(c, request) && take_turn(c, request) == 0 && steps)
            c->small_s = c->o.state->now_s;
    }
    turns_arrange(c->turns);
}

void client_queue_begin(struct client_queue *c, struct step *step)
{
    begin_forming(c, step);
    gather_cut(c);
    if (client_queue_wait_s(c) == 0 || c->o.state->stopping)
        gather_queued(c);
    take_resuming(c);
    take_small(c);
}

const struct request *client_queue_first(const struct client_queue *c)
{
    return c->queue.first;
}

double client_queue_at(struct client_queue *c, double *next_but_one)
{
    return turns_at(c->turns, c->o.state, next_but_one);
}

uint32_t client_queue_owners(struct client_queue *c)
{
    return turns_owners(c->turns);
}

/* Take a request out of the queue: whole if that takes no longer than `slice_us`, or, if it is small,
 * `room_us`; or else in slices. */
static void take_bulk(struct client_queue *c, struct request *request, double slice_us, double room_us,
                      bool any)
{
    double us = request->queued.estimate_us;
    bool small = is_small(c, request), fits = request_has_rows(request)
                                                  ? client_slices_go_whole(c->o.state, request) &&
                                                        client_slices_fit(c->o.state, c->step, request)
                                                  : is_time_for(c, request);
    c->whole = small || (us <= slice_us && fits);
    if (small ? fits && (us <= room_us || any) : c->whole || may_be_cut(c, request))
        (void)take_turn(c, request);
}

bool client_queue_add_bulk(struct client_queue *c, double slice_us, double room_us, bool any)
{
    struct request *request = turns_next(c->turns, c->o.state, false);
    assert(request);
    uint32_t place = request->queued.place;
    double before_us = step_us(c->step);
    if (!request->queued.slices.begun)
        take_bulk(c, request, slice_us, room_us, any);
    request = turns_kept(c->turns, place); /* NULL: it is gone */
    if (request && request->queued.slices.begun) {
        double begun_us = step_us(c->step);
        request->queued.tried = true;
        c->takes_part |= client_slices_add(c->o.state, c->step, request, slice_us, any);
        charge(c, request, begun_us);
    }
    return step_us(c->step) > before_us;
}

void client_queue_end(struct client_queue *c)
{
    for (uint32_t i = 0; i < turns_count(c->turns); i++) {
        struct request *request = turns_kept(c->turns, i);
        if (!request)
            continue;
        bool begun = request->queued.slices.begun,
             more = begun ? request->status == 0 && !client_slices_are_done(request)
                          : request->queued.wants_time;
        if (more)
            shares_wait(c->o.state->shares, request->queued.account);
        if (begun)
            continue;
        request->queued.passed_over = true;
        request_list_append(&c->queue, request);
    }
    turns_begin(c->turns);
    finish_cut(c);
}

/* What a step was for one of its requests. */
static void note_step(struct request *request, const struct step *step)
{
    const struct step_cost cost = step_cost(step);
    struct request_output *out = output_of(request);
    out->step_us += cost.seconds * 1e6;
    out->rows_in_step = step_row_count(step) > out->rows_in_step ? step_row_count(step) : out->rows_in_step;
    out->bytes_read += cost.bytes;
}

/* The sequence `i` of a streamed request, unless it is another one by now. */
static struct sequence *streamed_on(const struct client_queue *c, const struct request *request, uint32_t i)
{
    struct sequence *s = sequence_of(c, request->queued.on[i].id);
    return s && s->content == request->queued.streamed[i].content ? s : NULL;
}

/* Cut off what a streamed request has appended to a sequence, and what followed. */
static void cut_void(struct client_queue *c, const struct request *request, uint32_t i, struct sequence *s)
{
    const struct request_rows *rows = &request->rows;
    s->found = (struct sequence_void){
        .is = true, .wrong = rows->wrong[s->lease ? 0 : i], .layer = rows->layer, .rows = rows->count};
    if (s->lease)
        return; /* what its blocks hold is the caller's affair */
    uint32_t row = request->queued.writes[i].row, length = request->queued.streamed[i].length;
    s->found.position = request->queued.writes[i].first;
    s->found.rows = request->queued.writes[i].end - s->found.position;
    block_tables_truncate(tables_of(c), row, length);
    reservation_note(c->o.state, row);
    swapping_note(c->o.state->swapping, row);
    inspect_note_state(c->o.state, row);
}

void client_queue_look(struct client_queue *c, const struct step *step)
{
    const struct request_list *list = &c->in_step[step_slot(step)];
    for (struct request *request = list->first; request; request = request->next) {
        for (uint32_t i = 0; is_streamed(request) && i < request->queued.on_count; i++) {
            struct sequence *s = streamed_on(c, request, i);
            if (!s || step_failure(c->o.state->steps))
                continue;
            if (!s->found.is && request->rows.k && request->rows.wrong[s->lease ? 0 : i])
                cut_void(c, request, i, s);
            if (s->found.is && request->status == 0)
                (void)fail_void(request, s); /* and the next call on it is told, too */
        }
    }
}

/* What a streamed request was on is looked at no more. */
static void end_streamed(const struct client_queue *c, const struct request *request)
{
    for (uint32_t i = 0; is_streamed(request) && i < request->queued.on_count; i++) {
        struct sequence *s = streamed_on(c, request, i);
        if (s)
            s->streamed--;
    }
}

void client_queue_retire(struct client_queue *c, const struct step *step)
{
    unsigned slot = step_slot(step);
    struct request *request;
    if (c->reads_back && !step_failure(c->o.state->steps))
        unwritten_note(c->unwritten, c->unsound.first);
    c->reads_back = false;
    while ((request = request_list_take(&c->in_step[slot]))) {
        end_streamed(c, request);
        note_step(request, step);
        conclude(c, request);
    }
    for (request = c->cut.first; request; request = request->next) {
        if (request->queued.slices.steps & 1U << slot)
            note_step(request, step);
        request->queued.slices.steps &= ~(1U << slot);
    }
    finish_cut(c);
    for (request = c->queue.first; request; request = request->next) {
        if (request->queued.looked == LOOKING && request->queued.look_step == slot)
            note_looked(c, request);
    }
}

bool client_queue_is_empty(const struct client_queue *c)
{
    return !c->queue.first && !c->cut.first;
}

bool client_queue_is_interactive(const struct client_queue *c)
{
    return c->o.state->now_s - c->small_s < INTERACTIVE_S;
}

/* ---- the queue ----------------------------------------------------------------------------------- */

double client_queue_wait_s(const struct client_queue *c)
{
    double window = c->o.state->config->batch_window_us * 1e-6, shortest = window;
    if (c->cut.first || c->unsound.first)
        return 0;
    if (!c->queue.first)
        return -1;
    for (const struct request *request = c->queue.first; shortest > 0 && request; request = request->next) {
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

bool client_queue_awaits_file(const struct client_queue *c)
{
    return c->queue.first && swap_cache_is_busy(c->o.state->swap_cache);
}

double client_queue_idle_s(const struct client_queue *c)
{
    double idle = INFINITY;
    if (c->cut.first || c->unsound.first || !client_queue_awaits_file(c))
        return client_queue_wait_s(c);
    for (const struct request *request = c->queue.first; request; request = request->next) {
        double waited = c->o.state->now_s - request->submitted_s;
        if (!request->queued.passed_over)
            return client_queue_wait_s(c);
        if (request->deadline_s > 0)
            idle = fmin(idle, fmax(request->deadline_s - waited, 0));
    }
    return isinf(idle) ? -1 : idle;
}

/* Whether a request is about a sequence, which belongs to that key. */
static bool names(const struct request *request, uint64_t id, uint64_t key)
{
    for (uint32_t i = 0; inspect_sees(request, key) && i < request->queued.on_count; i++) {
        if (request->queued.on[i].id == id)
            return true;
    }
    return false;
}

/* Fail a request because of the sequence that is deleted. */
static void fail_deleted(const struct client_queue *c, struct request *request, uint64_t id)
{
    const struct departure *gone = departures_find(sequences_departures(c->o.state->sequences), id);
    if (gone)
        inspect_fail_moved(request, gone);
    else
        request_fail(request, ATTND_GONE, "%s %llu was deleted before the call ran",
                     request->of_leases ? "lease" : "sequence", (unsigned long long)id);
}

/* Likewise while a step is formed. */
static void drop_kept(struct client_queue *c, uint64_t id, uint64_t key)
{
    for (uint32_t i = 0; i < turns_count(c->turns); i++) {
        struct request *request = turns_kept(c->turns, i);
        if (!request || request->queued.slices.begun || !names(request, id, key))
            continue;
        fail_deleted(c, request, id);
        if (request->queued.looked == LOOKING) /* a step in flight reads its tensors */
            continue;
        count_queued(c, request, -1);
        finish(c, request);
    }
}

static void drop_from(struct client_queue *c, struct request_list *list, uint64_t id, uint64_t key)
{
    struct request_list old = *list;
    struct request *request;
    *list = (struct request_list){0};
    while ((request = request_list_take(&old))) {
        bool goes = names(request, id, key);
        if (goes)
            fail_deleted(c, request, id);
        if (!goes || request->queued.looked == LOOKING) { /* a step in flight reads its tensors */
            request_list_append(list, request);
            continue;
        }
        count_queued(c, request, -1);
        finish(c, request);
    }
}

void client_queue_drop(struct client_queue *c, uint64_t id, uint64_t key)
{
    struct request *request;
    drop_from(c, &c->queue, id, key);
    drop_kept(c, id, key);
    for (request = c->cut.first; request; request = request->next) {
        if (!names(request, id, key) || request->status != 0)
            continue;
        fail_deleted(c, request, id);
        client_slices_stop(c->o.state, request);
    }
    finish_cut(c);
}

void client_queue_drop_cancelled(struct client_queue *c)
{
    struct request_list old = c->queue;
    struct request *request;
    c->queue = (struct request_list){0};
    while ((request = request_list_take(&old))) {
        if (request->queued.looked != LOOKING && is_too_late(c, request))
            finish_taking(c, request);
        else
            request_list_append(&c->queue, request);
    }
}

static bool goes_before(const struct request *a, const struct request *b)
{
    const struct policy_claim first = {.priority = a->queued.priority, .arrived_s = a->submitted_s},
                              second = {.priority = b->queued.priority, .arrived_s = b->submitted_s};
    return policy_goes_before(&first, &second);
}

/* Put a request behind all that go before it, and behind every earlier one on one of its sequences. */
static void enqueue(struct client_queue *c, struct request *request)
{
    struct request *after = NULL;
    c->forming++;
    mark(c, request);
    for (struct request *other = c->queue.first; other; other = other->next) {
        bool behind = !goes_before(request, other);
        for (uint32_t i = 0; !behind && i < other->queued.on_count; i++) {
            const struct sequence *s = sequence_of(c, other->queued.on[i].id);
            behind = s && s->forming == c->forming;
        }
        after = behind ? other : after;
    }
    request->next = after ? after->next : c->queue.first;
    *(after ? &after->next : &c->queue.first) = request;
    c->queue.last = request->next ? c->queue.last : request;
}

/* Whether something keeps a fork or truncate waiting: requests on its sequence, or bytes on the host. A batch
 * waits for the sequences that it forks or truncates, not for those that it only deletes. */
static bool is_held_up(const struct client_queue *c, const struct request *request)
{
    bool batch = request->kind == REQUEST_BATCH, held = false;
    for (uint32_t i = 0; i < (batch ? request->batch.changed : 1); i++) {
        uint64_t id = batch ? request->queued.on[i].id : request->id;
        uint32_t row = sequences_find(c->o.state->sequences, id);
        held |= row != NO_ROW &&
                (sequences_at(c->o.state->sequences, row)->queued ||
                 sequences_at(c->o.state->sequences, row)->streamed ||
                 (request->kind != REQUEST_TRUNCATE && block_tables_view(tables_of(c), row).swapped));
    }
    return held;
}

/* Append the sequences that a batch deletes, or changes, to those on which it keeps its place, each once. */
static void name_ops(struct client_queue *c, struct request *request, bool deletes)
{
    struct request_queued *q = &request->queued;
    for (uint32_t i = 0; i < request->batch.count; i++) {
        const struct request_op *op = &request->batch.ops[i];
        struct sequence *s = op->kind == REQUEST_CREATE ? NULL : sequence_of(c, op->id);
        if (!s || s->lease || !inspect_sees(request, s->key) || s->seen == c->request_number ||
            (op->kind == REQUEST_DELETE) != deletes)
            continue;
        s->seen = c->request_number;
        q->on[q->on_count++] = (struct request_sequence){.id = op->id};
    }
}

/* Name the sequences of a batch that there are. */
static void name_batch(struct client_queue *c, struct request *request)
{
    c->request_number++;
    request->queued.on = request_alloc(request, request->batch.count, sizeof *request->queued.on);
    if (!request->queued.on) {
        request_fail(request, ATTND_INVALID, "%u ops with so many ids are too many for one call",
                     request->batch.count);
        return;
    }
    name_ops(c, request, false);
    request->batch.changed = request->queued.on_count;
    name_ops(c, request, true);
}

/* Name the sequences, or the lease, on which a request keeps its place; a new lease is on none. */
static void name_sequences(struct request *request)
{
    struct request_queued *q = &request->queued;
    if (request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND) {
        q->on = request->attend.sequences;
        q->on_count = request->attend.sequence_count;
    } else if (request->kind != REQUEST_LEASE && request->kind != REQUEST_MERGE) {
        q->one = (struct request_sequence){.id = request->kind == REQUEST_RESTORE ? request->described.base
                                                                                  : request->id};
        q->on = &q->one;
        q->on_count = 1;
    }
}

/* What belongs to another key does not exist: a request that names it fails before it counts for anything. */
static void refuse_foreign(struct client_queue *c, struct request *request)
{
    for (uint32_t i = 0; request->status == 0 && i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s && !inspect_sees(request, s->key))
            (void)inspect_find(c->o.state, request, s->id);
    }
}

void client_queue_add(struct client_queue *c, struct request *request)
{
    uint32_t rows = rows_of(request), tokens = tokens_of(request),
             rows_max = c->o.state->config->limits.rows_per_call;
    bool batch = request->kind == REQUEST_BATCH,
         whole = batch || request->kind == REQUEST_FORK || request->kind == REQUEST_TRUNCATE; /* sequences */
    request->queued.account = shares_hold(c->o.state->shares, request->owner & ~SHARES_WORKLOAD,
                                          request->connection, larger(request->weight, 1));
    if (batch)
        name_batch(c, request);
    else
        name_sequences(request);
    refuse_foreign(c, request);
    if (request->status != 0 || (whole && !is_held_up(c, request))) {
        request->queued.on_count = 0;
        if (request->status == 0)
            (void)take(c, request);
        finish_taking(c, request);
        return;
    }
    uint32_t most = request->kind == REQUEST_PAGED ? c->rows_max : rows_max;
    if (rows > rows_max || tokens > most || (!batch && request->queued.on_count > rows_max)) {
        request_fail(request, ATTND_INVALID, "%u row%s of %u sequence%s; %s is %u", larger(tokens, rows),
                     plural(larger(tokens, rows)), request->queued.on_count, plural(request->queued.on_count),
                     rows > rows_max || most == rows_max ? "limits.rows_per_call" : "scheduler.step_rows_max",
                     rows > rows_max ? rows_max : most);
        finish(c, request);
        return;
    }
    count_queued(c, request, 1);
    request->queued.priority = request->displaces_all           ? INT32_MAX
                               : request->kind == REQUEST_LEASE ? request->lease.options.priority
                                                                : INT32_MIN;
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        const struct sequence *s = sequence_of(c, request->queued.on[i].id);
        if (s)
            request->queued.priority = policy_of_both(request->queued.priority, s->options.priority);
    }
    if (c->queue.last && goes_before(request, c->queue.last))
        enqueue(c, request);
    else
        request_list_append(&c->queue, request);
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
    c->small_s = -1;
    if (turns_create(options->state->requests, &c->turns) != 0 ||
        (options->state->config->poison && unwritten_create(options->state, &c->unwritten) != 0)) {
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
    turns_destroy(c->turns);
    unwritten_destroy(c->unwritten);
    free(c);
}
