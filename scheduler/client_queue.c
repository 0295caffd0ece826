/* client_queue.c - see client_queue.h.
 *
 * A step takes the queued calls oldest first, as long as they fit. Calls of one layer become one pass,
 * and a step has up to PLAN_SLOTS_OF_CALLS of them. A sequence has at most one call in a step; a call
 * that has to wait makes the later ones on its sequences wait, so their order is kept.
 *
 * Forming has two halves. While calls are taken, each one's blocks are reserved; then the passes are
 * filled one after the other, so that the rows of a pass lie side by side in the staging buffers, and
 * rows of different clients share items.
 *
 * Rows at positions that stand already are a retry: they are compared with what stands and not appended
 * again, and their attention sees what it saw the first time:
 *
 *     stands   0 1 2 3 4 5 |            cursor 6
 *     call           3 4 5 6 7          position 3: 3..5 are compared, 6 and 7 appended
 *
 * An append to all layers at once is a step by itself, whose passes read the call's own tensors; so is
 * a call on the caller's own tables (paged_calls.h).
 *
 * A call on a sequence that is swapped out has it swapped in beside the step being formed and runs in
 * the next one. When blocks run out, idle sequences are swapped out in the same way (swapping.h); the
 * call waits, and so does every later one that needs blocks. */
#include "scheduler/client_queue.h"

#include "config/clock.h"
#include "scheduler/reservation.h"
#include "scheduler/paged_calls.h"
#include "scheduler/swapping.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT = 1 }; /* for another step; errors are negative */

struct pass_work {
    uint32_t layer;
    enum dtype source; /* of its k and v */
    bool appending;    /* it has some */
    enum attention_kernel kernel;
    uint32_t first_row, rows, first_token, first_append, appends;
    struct call *first, **last; /* its calls */
};

struct client_queue {
    struct client_queue_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct call *queue, **queue_end;
    int32_t lowest;       /* no queued call has a lower priority */
    uint64_t call_number; /* counts calls that were resolved */
    uint64_t forming;     /* counts attempts to form a step */

    /* the step being formed */
    struct pass_work passes[PLAN_SLOTS_OF_CALLS];
    uint32_t pass_count, rows, tokens, append_count, sequence_count;
    uint64_t bytes;                      /* of K and V that it reads, about; counted if bounded */
    struct call *whole;                  /* its only call, see takes_whole_step(); NULL: passes */
    struct attention_pass *whole_passes; /* [layers], */
    uint32_t whole_count;                /* of which it uses so many */
    struct planner_row *planner_rows;    /* [rows_max] */
    struct kv_append *appends;           /* [rows_max] */
    struct copy_list copies;             /* [rows_max + pool.blocks] */
    bool short_of_blocks;                /* a call waits for some */
    struct swapping *swapping;
    uint32_t *table_rows;        /* [rows_max] rows of the block tables that take part */
    uint32_t *tokens_read;       /* [rows_max] ids of a prompt */
    uint8_t *q, *k, *v, *o_rows; /* [rows_max][heads][head_dim] */
    float *lse;                  /* [rows_max][query_heads] */
};

static size_t q_row_bytes(const struct client_queue *c)
{
    return (size_t)c->g->query_heads * c->g->head_dim * dtype_bytes(c->g->dtype);
}

static size_t kv_row_bytes(const struct client_queue *c, enum dtype dtype)
{
    return (size_t)c->g->kv_heads * c->g->head_dim * dtype_bytes(dtype);
}

/* Room for one token's K or V in the staging buffers, whichever format it comes in. */
static size_t kv_row_room(const struct client_queue *c)
{
    size_t given = kv_row_bytes(c, c->g->dtype), stored = kv_row_bytes(c, c->g->kv_dtype);
    return given > stored ? given : stored;
}

static struct sequence *sequence_of(const struct client_queue *c, uint64_t id)
{
    uint32_t row = sequences_find(c->o.state->sequences, id);
    return row == NO_ROW ? NULL : sequences_at(c->o.state->sequences, row);
}

/* Whether a call is a step by itself. */
static bool takes_whole_step(const struct call *call)
{
    return call->all_layers || call->kind == CALL_PAGED;
}

/* ---- taking calls into a step -------------------------------------------------------------------- */

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
    return call_fail(call, ATTND_INVALID,
                     "token_ids: sequence %llu, position %u: %u, but the prompt says %u",
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
    bool given = named->position != CALL_POSITION_ABSENT;
    if (!given && !call->k && at > 0 && rows > at)
        return call_fail(call, ATTND_INVALID,
                         "sequence %llu has %u tokens at layer %u, and %u rows ask for them", id, at,
                         call->layer, rows);
    if (!given)
        named->position = call->k || at == 0 ? at : at - rows;
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
        return call_fail(call, ATTND_INVALID, "%u sequences are too many for one call",
                         call->sequence_count);
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

/* Compare all rows of a call that stand already; 0, or the call failed. Its sequences are resident. */
static int compare(struct client_queue *c, struct call *call)
{
    uint32_t first = 0;
    int rc = 0;
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
        call->lengths =
            call_alloc(call, (size_t)call->sequence_count * c->g->layers, sizeof *call->lengths);
        ok = call->views && call->lengths;
    }
    return ok ? 0 : call_fail(call, ATTND_INVALID, "%u rows are too many for one call", call->rows);
}

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

/* Blocks that are kept for workloads and sequences, without those that the call may draw. */
static uint64_t promised_to_others(struct client_queue *c, const struct call *call)
{
    return c->o.promised(c->o.cookie) + c->o.state->declared - drawn_from_promises(c, call);
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
        snprintf(swaps, sizeof swaps,
                 "; too few idle sequences can be swapped out (%u host blocks free)",
                 block_tables_counts(tables).host_free);
    return call_fail(call, ATTND_NO_BLOCKS, "needs %u blocks of %u; %u free, %u reclaimable%s%s", need,
                     counts.blocks, counts.free, counts.cached, kept, swaps);
}

/* Whether the step being formed does nothing; blocks that it gives back have to wait for its end. */
static bool is_empty(const struct client_queue *c)
{
    const struct block_pool *pool = block_tables_pool(step_tables(c->o.state->steps));
    return c->sequence_count == 0 && c->copies.count == 0 && block_pool_counts(pool).fenced == 0;
}

/* Whether a call may take `need` blocks now: 0; WAIT when the step being formed gives some back; else
 * the call has failed. What was promised to others is not touched. */
static int make_room(struct client_queue *c, struct call *call, uint32_t need)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables));
    uint64_t available = (uint64_t)counts.free + counts.cached;
    if (need == 0)
        return 0;
    if (c->short_of_blocks)
        return WAIT; /* behind the one that is */
    uint64_t promised = promised_to_others(c, call);
    if (promised && need + promised > available) {
        reservation_note_all(c->o.state); /* somebody may have stopped sharing meanwhile */
        promised = promised_to_others(c, call);
    }
    if (need > counts.blocks)
        return call_fail(call, ATTND_INVALID, "needs %u blocks of %u", need, counts.blocks);
    if (need + promised <= available)
        return 0;
    const struct swap_request request = {(uint32_t)(need + promised - available), call->priority,
                                         c->forming};
    bool comes = need + promised <= available + counts.fenced ||
                 (request.blocks <= counts.blocks && swapping_out(c->swapping, &request, &c->copies));
    if (!comes && is_empty(c)) /* else those that are in the step may leave after it */
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
        int rc = block_tables_swap_in(step_tables(x), row, step_number(x), c->copies.list,
                                      &c->copies.count);
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
    int rc = block_tables_reserve(step_tables(x), step_number(x), call->requests,
                                  call->sequence_count, c->copies.list, &c->copies.count);
    if (rc != 0)
        return call_fail(call, rc, "a sequence would be longer than its table");
    for (uint32_t i = 0; i < call->sequence_count; i++)
        reservation_note(c->o.state, call->requests[i].row); /* the next call of this step must see it */
    return 0;
}

/* Whether the kernel that a call names can compute it; else it has failed. */
static int check_kernel(struct client_queue *c, struct call *call)
{
    uint32_t limit = step_backend(c->o.state->steps)->paged_v1_tokens, longest = 0;
    if (call->kernel == ATTENTION_AUTO)
        return 0;
    if (limit == 0)
        return call_fail(
            call, ATTND_INVALID,
            "kernel: paged_v1 and paged_v2 go with geometry.layout vllm and backend.name cuda");
    for (uint32_t i = 0; call->paged && i < call->paged->sequences; i++)
        longest = call->paged->context[i] > longest ? call->paged->context[i] : longest;
    for (uint32_t i = 0; !call->paged && i < call->sequence_count; i++) {
        uint32_t end = call->sequences[i].position + call->sequences[i].rows;
        longest = end > longest ? end : longest;
    }
    if (call->kernel == ATTENTION_PAGED_V1 && longest > limit)
        return call_fail(
            call, ATTND_INVALID,
            "kernel: paged_v1 keeps the logits of %u tokens in shared memory, and a sequence "
            "has %u: take paged_v2",
            limit, longest);
    return 0;
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
        rc = make_room(c, call,
                       block_tables_need(step_tables(c->o.state->steps), call->requests,
                                         call->sequence_count));
    if (rc == 0)
        rc = bring_in(c, call);
    if (rc == 0)
        rc = compare(c, call);
    return rc == 0 ? reserve(c, call) : rc;
}

/* The same for a call on the caller's own tables, which takes no blocks. */
static int admit_paged(struct client_queue *c, struct call *call)
{
    int rc = paged_check(c->o.state, call);
    if (rc == 0)
        rc = check_kernel(c, call);
    return rc == 0 ? make_outputs(c, call) : rc;
}

/* Everything that a call needs to be in the step: 0, WAIT (and it is as if nothing had been asked), or
 * it has failed. */
static int admit(struct client_queue *c, struct call *call)
{
    size_t used = call->arena_used;
    int rc = call->kind == CALL_PAGED ? admit_paged(c, call) : admit_to_sequences(c, call);
    if (rc == WAIT)
        call->arena_used = used;
    return rc;
}

/* A pass of the call's layer and format, a new one if it is the first; NULL when all are taken. */
static struct pass_work *pass_for(struct client_queue *c, const struct call *call)
{
    for (uint32_t i = 0; i < c->pass_count; i++) {
        struct pass_work *pass = &c->passes[i];
        if (pass->layer == call->layer && pass->kernel == call->kernel &&
            (!call->k || !pass->appending || pass->source == call->kv_source))
            return pass;
    }
    if (c->pass_count == PLAN_SLOTS_OF_CALLS)
        return NULL;
    struct pass_work *pass = &c->passes[c->pass_count++];
    *pass = (struct pass_work){.layer = call->layer, .kernel = call->kernel};
    pass->last = &pass->first;
    return pass;
}

/* K and V that the attention of a call reads, at most. */
static uint64_t bytes_of(const struct client_queue *c, const struct call *call)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; call->q && i < call->sequence_count; i++) {
        uint32_t row = sequences_find(c->o.state->sequences, call->sequences[i].id);
        if (row != NO_ROW)
            tokens += block_tables_cursor(step_tables(c->o.state->steps), row, call->layer) +
                      call->sequences[i].rows;
    }
    return tokens * geometry_token_bytes(c->g);
}

/* Whether a call must wait for another step: it does not fit, or one of its sequences is in this one or
 * waits itself. Its sequences are marked. */
static bool has_to_wait(struct client_queue *c, const struct call *call)
{
    uint64_t bytes_max = c->o.state->config->step_bytes_max;
    bool waits = c->rows + call->rows > c->rows_max || c->tokens + call->rows > c->rows_max ||
                 c->sequence_count + call->sequence_count > c->rows_max || c->whole ||
                 (takes_whole_step(call) && c->sequence_count) ||
                 (bytes_max && c->sequence_count && c->bytes + bytes_of(c, call) > bytes_max);
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

/* Whether nobody waits for a call any more, or it has waited too long: then it has failed. */
static bool is_too_late(struct call *call, double now)
{
    if (atomic_load(&call->cancelled))
        call_fail(call, ATTND_GONE, "the client went away before the call ran");
    else if (call->deadline_s > 0 && now > call->submitted_s + call->deadline_s)
        call_fail(call, ATTND_DEADLINE, "%.0f ms passed before the call could run",
                  call->deadline_s * 1e3);
    return call->status != 0;
}

static void begin_forming(struct client_queue *c)
{
    c->forming++;
    c->whole = NULL;
    c->bytes = 0;
    c->short_of_blocks = false;
    c->pass_count = c->rows = c->tokens = c->append_count = c->copies.count = c->sequence_count = 0;
}

/* Take what fits, oldest first; the rest stays queued. Calls that fail are completed on the way. */
static void take_calls(struct client_queue *c)
{
    struct call *call = c->queue, *next;
    double now = clock_s();
    c->queue = NULL;
    c->queue_end = &c->queue;
    begin_forming(c);
    for (; call; call = next) {
        next = call->next_ready;
        call->next_ready = NULL;
        if (is_too_late(call, now)) {
            count_queued(c, call, -1);
            c->o.complete(call, c->o.cookie);
            continue;
        }
        bool waits = has_to_wait(c, call);
        bool whole = takes_whole_step(call);
        struct pass_work *pass = waits || whole ? NULL : pass_for(c, call);
        int rc = !pass && (waits || !whole) ? WAIT : admit(c, call);
        if (rc == WAIT) {
            *c->queue_end = call;
            c->queue_end = &call->next_ready;
            continue;
        }
        count_queued(c, call, -1);
        if (rc != 0) {
            c->o.complete(call, c->o.cookie);
            continue;
        }
        if (c->o.state->config->step_bytes_max)
            c->bytes += bytes_of(c, call);
        c->rows += call->q ? call->rows : 0;
        c->tokens += call->k ? call->rows : 0;
        c->sequence_count += call->sequence_count;
        call->next_in_step = NULL;
        if (!pass) {
            c->whole = call;
            continue;
        }
        if (call->k) {
            pass->appending = true;
            pass->source = call->kv_source;
        }
        *pass->last = call;
        pass->last = &call->next_in_step;
    }
}

/* ---- filling the passes -------------------------------------------------------------------------- */

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

/* The new tokens of sequence `i` of a call, whose rows begin at `first` in its tensors and at `source`
 * in those of the pass: an append, and the cursors move. */
static void append_rows(struct client_queue *c, struct call *call, uint32_t i, uint32_t first,
                        uint32_t source)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct reserve_request at = call->requests[i];
    uint32_t n = at.end - at.first, stands = call->sequences[i].rows - n;
    if (!call->k || n == 0)
        return;
    c->appends[c->append_count++] = (struct kv_append){
        .table = at.row, .position = at.first, .count = n, .source = source + stands};
    if (at.first >= block_tables_view(tables, at.row).cursor_max) /* the first layer to come */
        note_tokens(c, call, at, first + stands);
    if (call->all_layers)
        block_tables_advance_all(tables, at.row, n);
    else
        block_tables_advance(tables, at.row, call->layer, n);
}

/* Every sequence of a call takes part; its tokens begin at `source` in the tensors of the pass. */
static void enter(struct client_queue *c, struct call *call, uint32_t source)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    uint32_t first = 0;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row, rows = call->sequences[i].rows;
        bool sees = call->k || call->requests[i].first > 0; /* an empty sequence has no keys */
        append_rows(c, call, i, first, source + first);
        for (uint32_t r = 0; call->q && r < rows; r++)
            c->planner_rows[c->rows++] = (struct planner_row){
                row, sees ? call->sequences[i].position + r + 1 : 0, block_tables_version(tables, row)};
        block_tables_submit(tables, row, step_number(c->o.state->steps));
        c->table_rows[c->sequence_count++] = row;
        sequences_at(c->o.state->sequences, row)->used_s = clock_s();
        first += rows;
    }
}

/* Put the rows of a call behind those of the pass that are there. */
static void gather(struct client_queue *c, struct call *call, const struct pass_work *pass)
{
    uint32_t source = c->tokens - pass->first_token;
    size_t row_bytes = kv_row_bytes(c, pass->source);
    size_t at = pass->first_token * kv_row_room(c) + source * row_bytes;
    call->first_row = c->rows;
    if (call->k) {
        memcpy(c->k + at, call->k, call->rows * row_bytes);
        memcpy(c->v + at, call->v, call->rows * row_bytes);
        c->tokens += call->rows;
    }
    if (call->q)
        memcpy(c->q + c->rows * q_row_bytes(c), call->q, call->rows * q_row_bytes(c));
    enter(c, call, source);
}

static void fill_passes(struct client_queue *c, struct attention_pass *passes)
{
    for (uint32_t i = 0; i < c->pass_count; i++) {
        struct pass_work *p = &c->passes[i];
        p->first_row = c->rows;
        p->first_token = c->tokens;
        p->first_append = c->append_count;
        for (struct call *call = p->first; call; call = call->next_in_step)
            gather(c, call, p);
        p->rows = c->rows - p->first_row;
        p->appends = c->append_count - p->first_append;
    }
    for (uint32_t i = 0; i < c->pass_count; i++) {
        const struct pass_work *p = &c->passes[i];
        passes[i] =
            (struct attention_pass){.layer = p->layer,
                                    .appends = c->appends + p->first_append,
                                    .append_count = p->appends,
                                    .k = c->k + p->first_token * kv_row_room(c),
                                    .v = c->v + p->first_token * kv_row_room(c),
                                    .source_dtype = p->source,
                                    .plan = step_plan(c->o.state->steps, i, p->layer,
                                                          c->planner_rows + p->first_row, p->rows),
                                    .q = c->q + p->first_row * q_row_bytes(c),
                                    .o = c->o_rows + p->first_row * q_row_bytes(c),
                                    .lse = c->lse + (size_t)p->first_row * c->g->query_heads,
                                    .kernel = p->kernel};
    }
}

/* On the caller's own tables. */
static void fill_paged(struct client_queue *c)
{
    const struct call *call = c->whole;
    struct paged_pass filled = {.rows = c->planner_rows, .appends = c->appends};
    uint32_t lease = sequences_find(c->o.state->sequences, call->sequences[0].id);
    paged_fill(c->o.state, call, &filled);
    c->rows = filled.row_count;
    c->table_rows[c->sequence_count++] = lease;
    block_tables_submit(step_tables(c->o.state->steps), lease, step_number(c->o.state->steps));
    sequences_at(c->o.state->sequences, lease)->used_s = clock_s();
    c->whole_passes[0] = (struct attention_pass){
        .layer = call->layer,
        .appends = filled.appends,
        .append_count = filled.append_count,
        .k = call->k,
        .v = call->v,
        .source_dtype = call->kv_source,
        .plan = step_plan(c->o.state->steps, 0, call->layer, filled.rows, filled.row_count),
        .q = call->q,
        .o = call->o,
        .lse = call->lse,
        .kernel = call->kernel};
    c->whole_count = 1;
}

/* An append to all layers: a pass a layer, each reading its part of the call's tensors. */
static void fill_whole(struct client_queue *c)
{
    const struct call *call = c->whole;
    size_t layer_bytes = call->rows * kv_row_bytes(c, call->kv_source);
    enter(c, c->whole, 0);
    c->whole_count = c->g->layers;
    for (uint32_t layer = 0; layer < c->g->layers; layer++)
        c->whole_passes[layer] =
            (struct attention_pass){.layer = layer,
                                    .appends = c->appends,
                                    .append_count = c->append_count,
                                    .k = (const uint8_t *)call->k + layer * layer_bytes,
                                    .v = (const uint8_t *)call->v + layer * layer_bytes,
                                    .source_dtype = call->kv_source};
}

/* ---- running ------------------------------------------------------------------------------------- */

static void answer(struct client_queue *c, struct call *call, double start, struct step_cost cost)
{
    const struct block_tables *tables = step_tables(c->o.state->steps);
    if (call->kind == CALL_ATTEND) {
        memcpy(call->o, c->o_rows + call->first_row * q_row_bytes(c), call->rows * q_row_bytes(c));
        memcpy(call->lse, c->lse + (size_t)call->first_row * c->g->query_heads,
               (size_t)call->rows * c->g->query_heads * sizeof *call->lse);
    }
    for (uint32_t i = 0; call->views && i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row;
        inspect_view(c->o.state, row, &call->views[call->view_count++]);
        for (uint32_t layer = 0; layer < c->g->layers; layer++)
            call->lengths[(size_t)i * c->g->layers + layer] = block_tables_cursor(tables, row, layer);
    }
    call->queue_us = (start - call->submitted_s) * 1e6;
    call->step_us = cost.seconds * 1e6;
    call->rows_in_step = c->rows;
    call->bytes_read = cost.bytes;
    c->o.complete(call, c->o.cookie);
}

/* Run the step that was formed. */
static struct step_cost run_step(struct client_queue *c, const struct attention_pass *passes, uint32_t n)
{
    struct steps *x = c->o.state->steps;
    struct step_cost cost = step_run(x, c->copies.list, c->copies.count, passes, n);
    uint64_t step = step_number(x);
    step_submitted(x);
    step_retire(x, step, c->table_rows, c->sequence_count, c->rows, cost);
    c->o.state->epoch++;
    return cost;
}

bool client_queue_run(struct client_queue *c)
{
    struct attention_pass passes[PLAN_SLOTS_OF_CALLS];
    if (!c->queue)
        return false;
    take_calls(c);
    if (is_empty(c))
        return true;
    c->rows = c->tokens = c->append_count = c->sequence_count = 0;
    if (c->whole && c->whole->kind == CALL_PAGED)
        fill_paged(c);
    else if (c->whole)
        fill_whole(c);
    else
        fill_passes(c, passes);
    double start = clock_s();
    struct step_cost cost =
        run_step(c, c->whole ? c->whole_passes : passes, c->whole ? c->whole_count : c->pass_count);
    if (c->whole)
        answer(c, c->whole, start, cost);
    for (uint32_t i = 0; i < c->pass_count; i++) {
        struct call *next;
        for (struct call *call = c->passes[i].first; call; call = next) {
            next = call->next_in_step;
            answer(c, call, start, cost);
        }
    }
    return true;
}

int client_queue_bring_in(struct client_queue *c, struct call *call, uint32_t row)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    struct sequence *s = sequences_at(c->o.state->sequences, row);
    struct reserve_request nothing = {row, 0, 0};
    struct call_sequence named = {.id = s->id};
    int rc = WAIT;
    call->sequences = &named;
    call->requests = &nothing;
    call->sequence_count = 1;
    call->priority = s->options.priority;
    while (rc == WAIT) {
        begin_forming(c);
        s->forming = c->forming;
        rc = make_room(c, call, block_tables_need(tables, &nothing, 1));
        if (rc == 0)
            rc = bring_in(c, call);
        if (!is_empty(c))
            (void)run_step(c, NULL, 0);
    }
    call->sequences = NULL;
    call->requests = NULL;
    call->sequence_count = 0;
    return rc;
}

/* Blocks for a row without any, filled with zeros. */
static int take_blocks(struct client_queue *c, struct call *call, uint32_t row, uint32_t n)
{
    struct block_tables *tables = step_tables(c->o.state->steps);
    const struct reserve_request request = {row, 0, n * c->g->block_size};
    int rc = make_room(c, call, n);
    if (rc != 0)
        return rc;
    rc = block_tables_reserve(tables, step_number(c->o.state->steps), &request, 1, c->copies.list,
                              &c->copies.count);
    const uint32_t *ids = block_tables_view(tables, row).ids;
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        c->copies.list[c->copies.count++] =
            (struct block_copy){COPY_CLEAR, 0, ids[i], c->g->block_size};
    return rc == 0 ? 0 : call_fail(call, rc, "a lease has at most limits.sequence_tokens tokens");
}

int client_queue_take_blocks(struct client_queue *c, struct call *call, uint32_t row, uint32_t n)
{
    int rc = WAIT;
    while (rc == WAIT) {
        begin_forming(c);
        rc = take_blocks(c, call, row, n);
        if (!is_empty(c))
            (void)run_step(c, NULL, 0);
    }
    return rc;
}

double client_queue_wait_s(const struct client_queue *c)
{
    double window = c->o.state->config->batch_window_us * 1e-6, longest = 0;
    if (!c->queue)
        return -1;
    if (window == 0)
        return 0;
    double now = clock_s();
    for (const struct call *call = c->queue; call; call = call->next_ready)
        longest = now - call->submitted_s > longest ? now - call->submitted_s : longest;
    return longest < window ? window - longest : 0;
}

void client_queue_drop(struct client_queue *c, uint64_t id)
{
    struct call *call = c->queue, *next;
    c->queue = NULL;
    c->queue_end = &c->queue;
    for (; call; call = next) {
        bool names = false;
        next = call->next_ready;
        call->next_ready = NULL;
        for (uint32_t i = 0; i < call->sequence_count; i++)
            names |= call->sequences[i].id == id;
        if (!names) {
            *c->queue_end = call;
            c->queue_end = &call->next_ready;
            continue;
        }
        count_queued(c, call, -1);
        call_fail(call, ATTND_GONE, "%s %llu was deleted before the call ran",
                  call->of_leases ? "lease" : "sequence", (unsigned long long)id);
        c->o.complete(call, c->o.cookie);
    }
}

/* Put a call into the queue: behind those of its priority and above, and behind every earlier one on
 * one of its sequences. */
static void enqueue(struct client_queue *c, struct call *call)
{
    struct call **at = &c->queue;
    c->forming++; /* marks the call's sequences */
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            s->forming = c->forming;
    }
    for (struct call **next = &c->queue; *next; next = &(*next)->next_ready) {
        bool behind = (*next)->priority >= call->priority;
        for (uint32_t i = 0; !behind && i < (*next)->sequence_count; i++) {
            const struct sequence *s = sequence_of(c, (*next)->sequences[i].id);
            behind = s && s->forming == c->forming;
        }
        at = behind ? &(*next)->next_ready : at;
    }
    call->next_ready = *at;
    *at = call;
    if (!call->next_ready)
        c->queue_end = &call->next_ready;
}

void client_queue_add(struct client_queue *c, struct call *call)
{
    uint32_t tokens = call->paged ? call->paged->tokens : call->rows;
    if (call->rows > c->rows_max || tokens > c->rows_max || call->sequence_count > c->rows_max) {
        call_fail(call, ATTND_INVALID, "%u rows of %u sequences; scheduler.step_rows_max is %u",
                  tokens > call->rows ? tokens : call->rows, call->sequence_count, c->rows_max);
        c->o.complete(call, c->o.cookie);
        return;
    }
    count_queued(c, call, 1);
    call->priority = INT32_MIN;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        const struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s && s->options.priority > call->priority)
            call->priority = s->options.priority;
    }
    bool last = !c->queue || call->priority <= c->lowest;
    c->lowest = last ? call->priority : c->lowest;
    if (!last) {
        enqueue(c, call);
        return;
    }
    *c->queue_end = call;
    c->queue_end = &call->next_ready;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

/* Memory for [rows_max] rows, which the backend reads and writes fast. */
static void *tensors(struct client_queue *c, size_t row_bytes)
{
    return step_host_memory(c->o.state->steps, c->rows_max * row_bytes);
}

static void free_tensors(struct client_queue *c, void *memory, size_t row_bytes)
{
    step_free_host_memory(c->o.state->steps, memory, c->rows_max * row_bytes);
}

int client_queue_create(const struct client_queue_options *options, struct client_queue **result)
{
    struct client_queue *c = calloc(1, sizeof *c);
    if (!c)
        return ATTND_NO_MEMORY;
    c->o = *options;
    c->g = &options->state->config->geometry;
    c->queue_end = &c->queue;
    uint32_t n = c->rows_max = options->state->config->step_rows_max;
    c->planner_rows = calloc(n, sizeof *c->planner_rows);
    c->appends = calloc(n, sizeof *c->appends);
    c->copies.list = calloc(n + options->state->config->pool_blocks, sizeof *c->copies.list);
    c->table_rows = calloc(n, sizeof *c->table_rows);
    c->tokens_read = calloc(n, sizeof *c->tokens_read);
    c->q = tensors(c, q_row_bytes(c));
    c->o_rows = tensors(c, q_row_bytes(c));
    c->k = tensors(c, kv_row_room(c));
    c->v = tensors(c, kv_row_room(c));
    c->lse = tensors(c, c->g->query_heads * sizeof *c->lse);
    c->whole_passes = calloc(c->g->layers, sizeof *c->whole_passes);
    if (!c->planner_rows || !c->appends || !c->copies.list || !c->table_rows || !c->tokens_read || !c->q || !c->o_rows ||
        !c->k || !c->v || !c->lse || !c->whole_passes ||
        swapping_create(options->state, &c->swapping) != 0) {
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
    free_tensors(c, c->q, q_row_bytes(c));
    free_tensors(c, c->o_rows, q_row_bytes(c));
    free_tensors(c, c->k, kv_row_room(c));
    free_tensors(c, c->v, kv_row_room(c));
    free_tensors(c, c->lse, c->g->query_heads * sizeof *c->lse);
    void *const arrays[] = {c->planner_rows, c->appends,     c->copies.list,
                            c->table_rows,   c->tokens_read, c->whole_passes};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    free(c);
}
