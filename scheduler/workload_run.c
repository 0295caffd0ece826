/* SPDX-License-Identifier: Apache-2.0 */
/* workload_run.c - workloads, round by round.
 *
 *   arrives        waits             runs: fills, then decodes                    ends
 *   ------> [heap of its workload] -----> [running, in order of admission] -----> verified, reported
 *                    ^   admission by forecast        |
 *                    +---- preempted: its blocks go, its tokens are appended again when it is back
 *
 * A round is one token of every running sequence that decodes, and as many tokens of those that fill
 * (append their prompt, or what they had before a preemption) as there is room for, through all layers.
 * A step has all layers of a round, or as many as there is time for, and room for their outputs; the others
 * go into the next steps. A layer that takes too long for a step is cut (slicing.h). The next round is formed
 * while the one before is computed.
 *
 * Admission looks at the peak of blocks over all future rounds (reservation.h). What was admitted so is
 * never preempted; under scheduler.admission "optimistic" a request is admitted when its prompt fits, and
 * the latest sequence of the lowest priority is preempted when the pool runs out. The head of the queue is
 * never overtaken.
 *
 * Each workload is an owner of time (shares.h) and is charged for its part of a round. One that is ahead
 * of the others by as much as it would take sits the round out, as long as that is worth a round
 * (policy.h).
 *
 * What takes long with thousands of sequences has a budget a turn (budget.h): admission, the end of a
 * round in which many end, cancelling a workload, forgetting what an ended one has in the cache. The rest
 * follows in later turns; a workload is shown as ended when all of it is done.
 *
 * A request whose beginning is just being appended by another one waits for it, a round or two, and then
 * finds it in the cache. */
#include "scheduler/workload_run.h"

#include "allocator/prefix_index.h"
#include "config/log.h"
#include "config/numbers.h"
#include "kernels/numeric.h"
#include "kernels/thread_pool.h"
#include "scheduler/history.h"
#include "scheduler/inspect.h"
#include "scheduler/policy.h"
#include "scheduler/reservation.h"
#include "scheduler/row_order.h"
#include "scheduler/shares.h"
#include "scheduler/slicing.h"
#include "scheduler/verify.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HASHED_ROWS = 16, /* by a helper at a time */
    HELPERS_MAX = 8,
    ROUNDS = 2,              /* one is formed while the one before is computed */
    OUTPUT_BYTES = 64 << 20, /* of the outputs of a step, at least a layer's */
    RETRY_STEPS = 8,         /* between two tries to admit when nothing has ended */
    ARRIVALS_MAX = 16384,    /* of one turn */
    LOOKED_AT = 64,          /* sequences between two looks at the clock */
    FORGOTTEN = 256,         /* likewise, blocks */
    VERIFY_TURNS = 4,        /* while others run, every so many a part of a row is verified */
    OWNER_WORKLOADS = 1,     /* of prefix roots; clients without a key are 0 */
    WEIGHT = 1,              /* of a workload */
    WINDOWS_KNOWN = 8        /* whose costs are kept for a round */
};

_Static_assert((int)WORKLOADS_MAX == (int)RESERVATION_PLACES, "each workload has a ledger");

/* Of step_us_max, a turn. Admitting less at a time would let many small rounds come before the large ones. */
static const double ENDING = 0.125, ADMITTING = 0.25;
static const double WATCH_S = 0.25;   /* between two reports to a watcher */
static const double BLOCKED_S = 0.02; /* between two tries when clients hold all blocks */

/* A sequence that has blocks. */
struct running {
    struct workload *w; /* NULL: it has ended, and leaves the list with compact() */
    uint32_t ordinal, row;
    uint32_t fill; /* tokens to append before it decodes */
    uint32_t done; /* how far it has come with what is submitted */
    bool fills;    /* and has not appended all of it yet, from fill_from on; retired, not submitted */
    uint32_t fill_from;
    struct {
        bool taken;        /* it takes part in this round, */
        uint32_t appended; /* with so many new tokens, */
        uint32_t done;     /* and has then come so far */
    } in[ROUNDS];
};

/* A query of a round. */
struct output_row {
    struct workload *w;
    uint32_t ordinal, position;
};

/* The largest element of the lists of a round's rows. */
#define ROW_LIST_BYTES                                                                                       \
    (sizeof(struct output_row) + sizeof(struct planner_query) + sizeof(struct value_source))

/* What was begun and has not ended: of which not all layers are submitted, or not all retired. */
struct round {
    bool begun;
    uint32_t next_layer; /* that is not submitted, or not all of it */
    uint32_t in_flight;  /* steps with some of its layers */
    bool ends;           /* all layers are computed, and it has ended for all of running but the first: */
    uint32_t left;       /* these */
    bool in_order;       /* rows lie in the planner's order, so that a layer can be cut */
    bool cutting;        /* the next layer, of which some is submitted: */
    struct append_slicing appends;
    struct slicing queries;
    struct {
        uint32_t window;
        double us;
    } costs[WINDOWS_KNOWN]; /* of a layer with that window */
    uint32_t cost_count;
    uint32_t row_count, member_count;
    double part[WORKLOADS_MAX]; /* of what it costs; by place, like */
    uint32_t rows_of[WORKLOADS_MAX];
    struct round_shape {
        uint64_t prefill, prefill_tokens; /* tokens of prompts; the sum of those that stand before each */
        uint64_t decode, decode_tokens;   /* sequences that decode; likewise */
    } shape[WORKLOADS_MAX];
    double busy_s; /* of its steps that have retired */
    uint64_t copies;
    struct output_row *rows;   /* [rows_max] */
    struct workload **members; /* [sequences_max] of the sequences that take part */
    uint32_t *table_rows;      /* [sequences_max] theirs, of the block tables */
};

/* What a step computes of a round: some layers, or a part of one. */
struct slice {
    struct round *round; /* NULL: none */
    uint32_t first_layer, layers, first_row, rows;
    uint8_t *outputs; /* [layers][rows][query_heads][head_dim], in outputs_bytes */
};

struct workload_run {
    struct workload_run_options o;
    const struct config *config;
    const struct geometry *g;
    struct block_tables *tables;
    uint32_t rows_max, sequences_max;
    size_t row_bytes; /* of one row's outputs at one layer */

    struct workload *workloads[WORKLOADS_MAX];
    uint64_t next_id;
    struct running *running; /* [2 * sequences_max] in order of admission */
    uint32_t running_count;  /* with those that have ended and are still in the list */
    uint32_t live_count;     /* without */
    uint32_t filling_count;
    uint64_t forks_due;          /* of all that run */
    uint32_t *index_of;          /* [sequences_max] by row: where it is in running */
    struct policy_claim *claims; /* likewise, its own */
    struct row_order by_turn;    /* rows, those that go first first */
    bool may_add;                /* to the step being formed */
    bool blocked;                /* clients hold what the next step needs */
    uint32_t turns;
    uint64_t steps_noted; /* with layers of a round */
    bool changed;         /* something has ended since admission was last tried */
    uint64_t retry_step;
    uint64_t round_number; /* counts rounds */

    struct round rounds[ROUNDS];
    struct slice slices[STEPS_IN_FLIGHT]; /* by step_slot() */
    struct request_list cancels;          /* requests that wait for the end of all rounds */
    struct budget ending, admitting;      /* of a turn */

    /* the round that was begun last */
    unsigned now;
    uint32_t token_count, request_count, append_count;
    uint32_t *members;                /* [sequences_max] of running, that take part */
    struct reserve_request *requests; /* [sequences_max] */
    struct kv_append *appends;        /* [appends_max] */
    uint32_t appends_max;
    struct planner_query *planner_queries; /* [rows_max] */
    struct value_source *q_source;         /* [rows_max] */
    struct planner_place *places;          /* [rows_max] of the layer being cut */
    void *permuted;                        /* [rows_max] scratch for the three lists of rows */
    uint32_t *tokens;                      /* [sequence_tokens] scratch for the prefix index */
    size_t outputs_bytes;                  /* of a step */
    struct workload_hash *hashes;          /* [rows of outputs_bytes] */
    struct thread_pool *helpers;           /* NULL: the backend needs the processors itself */
};

/* ---- small helpers ------------------------------------------------------------------------------- */

static struct workload_sequence *state_of(const struct running *r)
{
    return &r->w->sequences[r->ordinal];
}

static const struct workload_request *request_of(const struct workload *w, uint32_t ordinal)
{
    return &w->requests[w->sequences[ordinal].request];
}

static uint32_t length_of(const struct workload_run *d, const struct running *r)
{
    return block_tables_cursor(d->tables, r->row, 0);
}

/* The same without what is in flight, which the cache does not have yet. */
static uint32_t retired_length(const struct workload_run *d, const struct running *r)
{
    uint32_t length = length_of(d, r);
    for (int i = 0; i < ROUNDS; i++)
        length -= d->rounds[i].begun && r->in[i].taken ? r->in[i].appended : 0;
    return length;
}

/* Children that a running sequence has yet to make. */
static uint32_t forks_due(const struct running *r)
{
    bool due = state_of(r)->child == 0 && !state_of(r)->forked;
    return due ? request_of(r->w, r->ordinal)->forks : 0;
}

static bool has_ended(const struct workload *w)
{
    return w->report.state == WORKLOAD_FINISHED || w->report.state == WORKLOAD_CANCELLED;
}

/* A workload whose deadline has passed, and that is to be cancelled; NULL: none. */
static struct workload *next_overdue(const struct workload_run *d)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (w && !w->ends && !has_ended(w) && w->report.deadline_s > 0 &&
            d->o.state->now_s - w->started_s >= w->report.deadline_s)
            return w;
    }
    return NULL;
}

/* ---- the waiting sequences of a workload: a heap ------------------------------------------------- */

static struct policy_claim claim_of(const struct workload *w, uint32_t ordinal)
{
    return (struct policy_claim){.priority = request_of(w, ordinal)->priority,
                                 .arrived_s = w->sequences[ordinal].arrived_s,
                                 .id = w->report.id,
                                 .ordinal = ordinal};
}

/* Whether ordinal `a` of workload `v` goes before `b` of `w`. */
static bool goes_before(const struct workload *v, uint32_t a, const struct workload *w, uint32_t b)
{
    const struct policy_claim first = claim_of(v, a), second = claim_of(w, b);
    return policy_goes_before(&first, &second);
}

/* The order of running rows. */
static bool has_turn_before(uint32_t a, uint32_t b, const void *cookie)
{
    const struct workload_run *d = cookie;
    return policy_goes_before(&d->claims[a], &d->claims[b]);
}

static void push_waiting(struct workload *w, uint32_t ordinal)
{
    uint32_t at = w->waiting_count++;
    while (at > 0 && goes_before(w, ordinal, w, w->waiting[(at - 1) / 2])) {
        w->waiting[at] = w->waiting[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->waiting[at] = ordinal;
}

static void pop_waiting(struct workload *w)
{
    uint32_t last = w->waiting[--w->waiting_count], at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= w->waiting_count)
            break;
        if (child + 1 < w->waiting_count && goes_before(w, w->waiting[child + 1], w, w->waiting[child]))
            child++;
        if (!goes_before(w, w->waiting[child], w, last))
            break;
        w->waiting[at] = w->waiting[child];
        at = child;
    }
    w->waiting[at] = last;
}

static void note_arrivals(struct workload_run *d, double now)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (!w || w->report.state != WORKLOAD_RUNNING || w->ends)
            continue;
        for (uint32_t n = 0; n < ARRIVALS_MAX && w->next_arrival < w->request_count &&
                             w->started_s + w->requests[w->next_arrival].arrival_s <= now;
             n++) {
            const struct workload_request *r = &w->requests[w->next_arrival++];
            w->sequences[r->ordinal].arrived_s = w->started_s + r->arrival_s;
            w->report.arrived++;
            push_waiting(w, r->ordinal);
        }
    }
}

/* The workload whose waiting sequence is next, NULL when none waits. */
static struct workload *next_in_line(const struct workload_run *d)
{
    struct workload *first = NULL;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (w && w->waiting_count && !w->held_back &&
            (!first || goes_before(w, w->waiting[0], first, first->waiting[0])))
            first = w;
    }
    return first;
}

/* ---- admission ----------------------------------------------------------------------------------- */

/* Token ids [from, end) of a sequence for the prefix index. */
static void spell(const struct workload *w, uint32_t ordinal, uint32_t from, uint32_t end, uint32_t *tokens)
{
    while (from < end) {
        struct workload_span span = workload_span_at(w, ordinal, from);
        for (; from < smaller(span.end, end); from++)
            *tokens++ = span.token;
    }
}

/* Tokens at the beginning of two sequences of a workload that have the same content. */
static uint32_t common_tokens(const struct workload *w, uint32_t a, uint32_t b, uint32_t max)
{
    uint32_t at = 0;
    while (at < max) {
        struct workload_span x = workload_span_at(w, a, at), y = workload_span_at(w, b, at);
        if (x.content != y.content)
            break;
        at = smaller(x.end, y.end);
    }
    return smaller(at, max);
}

/* One sequence more, or less, appends these tokens. */
static void count_filling(struct workload *w, uint32_t ordinal, uint32_t from, uint32_t end, uint32_t by)
{
    while (from < end) {
        struct workload_span span = workload_span_at(w, ordinal, from);
        w->filling[span.token] += by;
        from = span.end;
    }
}

/* A sequence has filled, or ends before. */
static void end_filling(struct workload_run *d, struct running *r)
{
    if (!r->fills)
        return;
    r->fills = false;
    d->filling_count--;
    count_filling(r->w, r->ordinal, r->fill_from, r->fill, UINT32_MAX);
}

/* Whether a running sequence is about to append, and so to publish, more of a sequence's beginning than the
 * `hit` blocks that the cache has of it. Only if one appends the content in which the next block ends are all
 * looked at. */
static bool is_being_filled(const struct workload_run *d, const struct workload *w, uint32_t ordinal,
                            uint32_t fill, uint32_t hit)
{
    uint32_t end = (hit + 1) * d->g->block_size;
    if (end > fill || w->filling[workload_span_at(w, ordinal, end - 1).token] == 0)
        return false;
    for (uint32_t i = 0; i < d->running_count; i++) {
        const struct running *r = &d->running[i];
        if (r->w != w || !r->fills)
            continue;
        uint32_t blocks = common_tokens(w, ordinal, r->ordinal, smaller(fill, r->fill)) / d->g->block_size;
        if (blocks > hit && blocks * d->g->block_size > retired_length(d, r))
            return true;
    }
    return false;
}

static uint32_t place_of(const struct workload_run *d, const struct workload *w)
{
    uint32_t place = 0;
    while (d->workloads[place] != w)
        place++;
    return place;
}

/* Tokens that a sequence appends before it decodes. */
static uint32_t fill_of(const struct workload *w, uint32_t ordinal)
{
    return larger(request_of(w, ordinal)->prompt, w->sequences[ordinal].done);
}

static struct reservation_plan plan_of(const struct workload_run *d, const struct workload *w,
                                       uint32_t ordinal)
{
    const struct workload_request *request = request_of(w, ordinal);
    bool due = w->sequences[ordinal].child == 0 && !w->sequences[ordinal].forked;
    return (struct reservation_plan){.place = place_of(d, w),
                                     .length = workload_length(w, ordinal),
                                     .fill = fill_of(w, ordinal),
                                     .attends = w->attend_prompt,
                                     .forks = due ? request->forks : 0,
                                     .fork_at = request->fork_at};
}

/* Whether `needed` more fit a limit; else *note says that they do not. */
static bool fits(enum wait_limit limit, uint64_t used, uint64_t needed, uint64_t most, struct wait_note *note)
{
    if (used + needed <= most)
        return true;
    *note = (struct wait_note){
        .reason = WAIT_FOR_SLOTS, .limit = limit, .most = most, .used = used, .needed = needed};
    return false;
}

/* Whether there are rows for one more sequence, its children, and those that others have yet to make. */
static bool has_rows_for(const struct workload_run *d, const struct reservation_plan *plan,
                         struct wait_note *note)
{
    uint64_t rows = 1 + (uint64_t)plan->forks;
    return fits(LIMIT_SEQUENCES, block_tables_counts(d->tables).rows + (uint64_t)d->forks_due, rows,
                d->sequences_max, note) &&
           fits(LIMIT_STEP_ROWS, (uint64_t)d->live_count + d->forks_due, rows, d->rows_max, note);
}

/* Blocks that a sequence may come to have, and its children that are yet to be made, count for the key. */
static uint64_t charge_of(const struct workload_run *d, const struct reservation_plan *plan)
{
    return (uint64_t)geometry_blocks(d->g, plan->length) * (1 + plan->forks);
}

static void charge_key(struct workload_run *d, const struct workload *w, uint32_t ordinal, uint32_t row)
{
    const struct reservation_plan plan = plan_of(d, w, ordinal);
    sequences_charge(d->o.state->sequences, row, (uint32_t)charge_of(d, &plan));
}

/* Whether the quotas of the workload's key leave room for a sequence and its children, and there are ids for them. */
static bool is_within_quotas(const struct workload_run *d, const struct workload *w,
                             const struct reservation_plan *plan, struct wait_note *note)
{
    const struct tenant_quotas *q = &w->quotas;
    struct tenant_use use = tenants_use(sequences_tenants(d->o.state->sequences), w->key);
    *note = (struct wait_note){.reason = WAIT_FOR_SLOTS, .limit = LIMIT_IDS};
    return sequences_may_add(d->o.state->sequences) &&
           (!q->sequences ||
            fits(LIMIT_KEY_SEQUENCES, use.sequences, 1 + (uint64_t)plan->forks, q->sequences, note)) &&
           (!q->blocks || fits(LIMIT_KEY_BLOCKS, use.blocks, charge_of(d, plan), q->blocks, note));
}

/* Whether a round may have outputs of a sequence and its children more. */
static bool has_room_for_outputs(const struct workload *w, const struct reservation_plan *plan,
                                 struct wait_note *note)
{
    return !w->kept || fits(LIMIT_OUTPUTS, w->promised, 1 + (uint64_t)plan->forks,
                            workload_outputs_tokens(w->kept), note);
}

static void add_running(struct workload_run *d, struct workload *w, uint32_t ordinal, uint32_t row,
                        uint32_t parent_row, double now)
{
    struct workload_sequence *s = &w->sequences[ordinal];
    uint64_t parent = parent_row == NO_ROW ? 0 : sequences_at(d->o.state->sequences, parent_row)->id;
    sequences_add(d->o.state->sequences, row, 0, parent, w->key, now);
    history_began(d->o.state, row, parent != 0);
    charge_key(d, w, ordinal, row);
    sequences_at(d->o.state->sequences, row)->workload = w->report.id;
    inspect_note_state(d->o.state, row);
    if (s->admitted_s < 0) {
        s->admitted_s = (float)(now - s->arrived_s);
        quantiles_add(&w->queue_us, (double)s->admitted_s * 1e6);
    }
    struct running *r = &d->running[d->running_count];
    *r = (struct running){
        .w = w, .ordinal = ordinal, .row = row, .fill = fill_of(w, ordinal), .done = s->done};
    r->fill_from = length_of(d, r);
    r->fills = r->fill_from < r->fill;
    if (r->fills) {
        d->filling_count++;
        count_filling(w, ordinal, r->fill_from, r->fill, 1);
    }
    d->forks_due += forks_due(r);
    w->promised += 1 + forks_due(r);
    d->claims[row] = claim_of(w, ordinal);
    d->index_of[row] = d->running_count++;
    row_order_insert(&d->by_turn, row);
    d->live_count++;
    w->report.running++;
}

/* Note why the sequence of a workload that is next in line waits, and that no other is looked at now. */
static bool note_wait(struct workload_run *d, struct workload *w, struct wait_note note)
{
    bool goes_on = w->wait_s > 0 && w->wait.reason == note.reason;
    w->wait_s = goes_on ? w->wait_s : d->o.state->now_s;
    w->wait = note;
    if (note.reason == WAIT_FOR_BLOCKS)
        reservation_compared(d->o.state, &w->wait.needed, &w->wait.free);
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *other = d->workloads[i];
        if (!other || other == w || !other->waiting_count || other->held_back)
            continue;
        other->wait_s =
            other->wait_s > 0 && other->wait.reason == WAIT_FOR_TURN ? other->wait_s : d->o.state->now_s;
        other->wait =
            (struct wait_note){.reason = WAIT_FOR_TURN, .behind = BEHIND_WORKLOAD, .behind_id = w->report.id};
    }
    return false;
}

/* Start the sequence that is next in line, if it may; false when it has to wait. */
static bool admit_next(struct workload_run *d, struct workload *w, double now)
{
    uint32_t ordinal = w->waiting[0], row;
    const struct reservation_plan plan = plan_of(d, w, ordinal);
    struct wait_note note;
    w->held_back = !is_within_quotas(d, w, &plan, &note) || !has_room_for_outputs(w, &plan, &note);
    if (w->held_back) {
        note_wait(d, w, note);
        return true; /* the others need not wait for it */
    }
    /* one that decodes nothing has its last token appended all the same: a step must end it */
    uint32_t known = smaller(plan.fill, plan.length - 1);
    spell(w, ordinal, 0, known, d->tokens);
    const struct block_tables_hit hit = block_tables_match(d->tables, w->root, d->tokens, known);
    if (is_being_filled(d, w, ordinal, known, hit.hit))
        return note_wait(d, w, (struct wait_note){.reason = WAIT_FOR_SEQUENCE});
    if (!has_rows_for(d, &plan, &note))
        return note_wait(d, w, note);
    if (!reservation_may_run(d->o.state, &plan, &hit))
        return note_wait(d, w, (struct wait_note){.reason = WAIT_FOR_BLOCKS});
    if (block_tables_add(d->tables, w->root, d->tokens, known, &row) !=
        0) /* rows leave with a step in flight */
        return note_wait(d, w, (struct wait_note){.reason = WAIT_FOR_SLOTS, .limit = LIMIT_STEP});
    pop_waiting(w);
    w->wait_s = 0;
    engine_state_note_done(
        d->o.state, w->use,
        &(struct work_done){.prompt_tokens = known, .cached_tokens = (uint64_t)hit.hit * d->g->block_size});
    if (w->sequences[ordinal].admitted_s < 0)
        w->report.cached_tokens += (uint64_t)hit.hit * d->g->block_size;
    reservation_run(d->o.state, row, &plan, &hit);
    add_running(d, w, ordinal, row, NO_ROW, now);
    return true;
}

static void admit(struct workload_run *d, double now)
{
    struct workload *w;
    uint64_t step = step_number(d->o.state->steps);
    if (!d->changed && d->running_count && step < d->retry_step)
        return;
    d->changed = false;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (d->workloads[i])
            d->workloads[i]->held_back = d->workloads[i]->lags;
    }
    while ((w = next_in_line(d))) {
        d->changed = !budget_allows(&d->admitting); /* the others have their turn after this step */
        if (d->changed || !admit_next(d, w, now))
            break;
    }
    bool filling = d->filling_count > 0; /* then what is waited for may be a step away */
    d->retry_step = step + (filling || d->running_count == 0 ? 1 : RETRY_STEPS);
}

/* Take a sequence out; it stays in the list until compact(). */
static void drop_running(struct workload_run *d, uint32_t i, enum history_reason reason)
{
    struct running *r = &d->running[i];
    history_ends(d->o.state, r->row, reason);
    r->w->report.running--;
    end_filling(d, r);
    d->forks_due -= forks_due(r);
    r->w->promised -= 1 + forks_due(r);
    row_order_remove(&d->by_turn, r->row);
    reservation_end_run(d->o.state, r->row);
    sequences_remove(d->o.state->sequences, r->row);
    block_tables_remove(d->tables, r->row);
    r->w = NULL;
    d->live_count--;
    d->changed = true;
}

/* The others keep their order. */
static void compact(struct workload_run *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->running_count && d->live_count < d->running_count; i++) {
        if (!d->running[i].w)
            continue;
        if (n < i)
            d->running[n] = d->running[i];
        d->index_of[d->running[n].row] = n;
        n++;
    }
    d->running_count = d->live_count;
}

/* Make room: the sequence of the lowest priority that came last goes back to wait. False when only one
 * is left. */
static bool preempt(struct workload_run *d)
{
    if (d->live_count < 2)
        return false;
    uint32_t victim = d->index_of[row_order_last(&d->by_turn)];
    struct running r = d->running[victim];
    r.w->report.preemptions++;
    d->o.state->preemptions++;
    drop_running(d, victim, HISTORY_PREEMPTED);
    push_waiting(r.w, r.ordinal);
    return true;
}

/* ---- what a round costs -------------------------------------------------------------------------- */

/* Let list[i] be what list[places[i].query] was. */
static void permute(struct workload_run *d, void *list, size_t size, uint32_t n)
{
    uint8_t *from = d->permuted, *to = list;
    memcpy(from, list, n * size);
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + i * size, from + d->places[i].query * size, size);
}

/* What a layer costs besides its queries. */
static struct cost_work work_beside_queries(const struct workload_run *d, const struct round *f)
{
    return (struct cost_work){.passes = 1, .generated = d->token_count + f->row_count};
}

/* What a layer costs if no row shares anything. */
static double layer_us_at_most(const struct workload_run *d, const struct round *f)
{
    struct cost_work work = work_beside_queries(d, f);
    for (uint32_t i = 0; i < f->row_count; i++)
        work.tokens += d->planner_queries[i].keys;
    work.weighed = work.tokens;
    work.queries = f->row_count;
    return step_us_of(d->o.state->steps, &work);
}

/* Whether the rows are in the order of d->places. */
static bool is_in_order(const struct workload_run *d, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && d->places[i].query == i)
        i++;
    return i == n;
}

/* Keep what a layer of that window costs, by d->places. */
static double note_layer(struct workload_run *d, struct round *f, uint32_t window)
{
    struct cost_work work = work_beside_queries(d, f);
    slicing_count(d->places, f->row_count, step_rows_together(d->o.state->steps), &work);
    double us = step_us_of(d->o.state->steps, &work);
    if (f->cost_count < WINDOWS_KNOWN) {
        f->costs[f->cost_count].window = window;
        f->costs[f->cost_count++].us = us;
    }
    return us;
}

/* Find out what the layers of a round cost that has just begun: if they may have to be cut, its rows come
 * into the order in which that is done. */
static void look_at_costs(struct workload_run *d, struct round *f)
{
    double most = layer_us_at_most(d, f);
    f->cutting = false;
    f->cost_count = 0;
    f->in_order = f->row_count > 0 && most * d->g->layers > d->o.state->step_us_shared;
    if (!f->in_order) {
        f->costs[0].us = most;
        return;
    }
    step_order(d->o.state->steps, 0, d->planner_queries, f->row_count, d->places);
    (void)note_layer(d, f, d->g->window[0]);
    if (is_in_order(d, f->row_count))
        return;
    permute(d, f->rows, sizeof *f->rows, f->row_count);
    permute(d, d->planner_queries, sizeof *d->planner_queries, f->row_count);
    permute(d, d->q_source, sizeof *d->q_source, f->row_count);
}

/* Microseconds of a layer. */
static double layer_us(struct workload_run *d, struct round *f, uint32_t layer)
{
    uint32_t window = d->g->window[layer], i = 0;
    if (!f->in_order)
        return f->costs[0].us;
    while (i < f->cost_count && f->costs[i].window != window)
        i++;
    if (i < f->cost_count)
        return f->costs[i].us;
    step_order(d->o.state->steps, layer, d->planner_queries, f->row_count, d->places);
    return note_layer(d, f, window);
}

/* ---- forming a round ----------------------------------------------------------------------------- */

/* Add `n` tokens from `at` on to the appends, cut where their content changes. */
static void add_appends(struct workload_run *d, const struct running *r, uint32_t at, uint32_t n)
{
    for (uint32_t end = at + n; at < end;) {
        struct workload_span span = workload_span_at(r->w, r->ordinal, at);
        uint32_t stop = smaller(span.end, end);
        assert(d->append_count < d->appends_max);
        d->appends[d->append_count++] = (struct kv_append){
            .table = r->row, .position = at, .count = stop - at, .generated = {r->w->seed, span.content}};
        at = stop;
    }
}

/* Spans that [at, at + n) of a sequence touches. */
static uint32_t count_spans(const struct running *r, uint32_t at, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t end = at + n; at < end; count++)
        at = workload_span_at(r->w, r->ordinal, at).end;
    return count;
}

/* Rows for which there is room in the round. */
static uint32_t room_for_rows(const struct workload_run *d, const struct workload *w)
{
    uint32_t room = d->rows_max - d->rounds[d->now].row_count;
    return w->kept ? smaller(room, w->rows_left) : room;
}

/* Let sequence `i` take part, as far as there is room. */
static void take_one(struct workload_run *d, uint32_t i)
{
    struct running *r = &d->running[i];
    uint32_t length = length_of(d, r), first_row = workload_first_row(r->w, r->ordinal);
    struct round *f = &d->rounds[d->now];
    uint32_t row = larger(r->done, first_row), n = 0, appended = 0;
    if (row < length) { /* outputs of tokens that the cache had */
        n = smaller(length - row, room_for_rows(d, r->w));
    } else {
        assert(length < workload_length(r->w, r->ordinal));
        uint32_t target = length < r->fill ? r->fill : length + 1;
        n = smaller(target - length, d->rows_max - d->token_count);
        row = larger(row, length);
        if (length + n > row)
            n = smaller(n, row - length + room_for_rows(d, r->w));
        while (n > 1 && count_spans(r, length, n) > d->appends_max - d->append_count)
            n /= 2;
        if (n && count_spans(r, length, n) > d->appends_max - d->append_count)
            n = 0;
        appended = n;
    }
    if (n == 0)
        return;
    uint32_t end = appended ? length + n : row + n;
    r->in[d->now].taken = true;
    r->in[d->now].appended = appended;
    r->in[d->now].done = larger(r->done, end);
    f->members[f->member_count] = r->w;
    d->members[f->member_count++] = i;
    d->token_count += appended;
    if (appended)
        d->requests[d->request_count++] = (struct reserve_request){r->row, length, length + n};
    add_appends(d, r, length, appended);
    for (; row < end; row++) {
        f->rows[f->row_count++] = (struct output_row){r->w, r->ordinal, row};
        r->w->rows_left--;
    }
}

/* Whether all that a sequence has to do is submitted. */
static bool has_come_to_its_end(const struct running *r)
{
    return r->done >= workload_length(r->w, r->ordinal);
}

/* Whether a sequence still appends what comes before its first decoded token, or computes outputs of it: as
 * far as there is room. Others get a token in each round, on which the forecast relies. */
static bool catches_up(const struct workload_run *d, const struct running *r)
{
    uint32_t length = length_of(d, r);
    return length < r->fill || larger(r->done, workload_first_row(r->w, r->ordinal)) < length;
}

/* Whether a running sequence could take part in a round, but for room. */
static bool may_take_part(const struct workload_run *d, const struct running *r, bool catching_up)
{
    return !r->w->sits_out && !r->w->lags && catches_up(d, r) == catching_up && !has_come_to_its_end(r);
}

/* Who takes part: those that decode first, then those that catch up. */
static void take_all(struct workload_run *d)
{
    struct round *f = &d->rounds[d->now];
    f->row_count = f->member_count = d->token_count = d->request_count = d->append_count = 0;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (d->workloads[i])
            d->workloads[i]->rows_left =
                d->workloads[i]->kept ? workload_outputs_room(d->workloads[i]->kept) : UINT32_MAX;
    }
    for (uint32_t i = 0; i < d->running_count; i++) {
        d->running[i].in[d->now].taken = false;
        if (may_take_part(d, &d->running[i], false))
            take_one(d, i);
    }
    for (uint32_t i = 0; i < d->running_count; i++) {
        if (may_take_part(d, &d->running[i], true))
            take_one(d, i);
    }
}

/* The workloads with running sequences: the account of a workload's time is an owner's. */
static bool runs(const struct workload *w)
{
    return w && w->report.state == WORKLOAD_RUNNING && w->report.running > 0 && !w->lags;
}

static uint32_t owner_of(const struct workload_run *d, const struct workload *w)
{
    return shares_owner(d->o.state->shares, w->account);
}

/* The least virtual time of the workloads that run; INFINITY: none does. */
static double least_at(const struct workload_run *d)
{
    double least = INFINITY;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (runs(d->workloads[i]))
            least = fmin(least, shares_at(d->o.state->shares, owner_of(d, d->workloads[i])));
    }
    return least;
}

/* Let workloads that are ahead sit out the round that begins, if the others' is worth it. */
static void let_sit_out(struct workload_run *d)
{
    const struct shares *shares = d->o.state->shares;
    const struct cost_work passes = {.passes = d->g->layers};
    double least = least_at(d), rest_us = 0, lead_us[WORKLOADS_MAX] = {0};
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (!runs(w))
            continue;
        w->sits_out = false;
        lead_us[i] = shares_us(shares, owner_of(d, w), shares_at(shares, owner_of(d, w)) - least);
        if (w->round_us <= 0) /* it never took part: it does, and then its part is known */
            rest_us = INFINITY;
        else if (lead_us[i] < w->round_us)
            rest_us += w->round_us;
    }
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (runs(w) && w->round_us > 0)
            w->sits_out =
                policy_sits_out(lead_us[i], w->round_us, rest_us, step_us_of(d->o.state->steps, &passes));
    }
}

/* Nobody sits the round out; whether somebody would have. */
static bool let_all_take_part(struct workload_run *d)
{
    bool any = false;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (!d->workloads[i])
            continue;
        any |= runs(d->workloads[i]) && d->workloads[i]->sits_out;
        d->workloads[i]->sits_out = false;
    }
    return any;
}

/* What each workload's rows and tokens are of a round, by the keys that they see; and count them. */
static void note_parts(struct workload_run *d, struct round *f)
{
    struct cost_work work[WORKLOADS_MAX] = {0};
    double sum_us = 0;
    for (uint32_t i = 0; i < f->member_count; i++)
        work[place_of(d, f->members[i])].generated += d->running[d->members[i]].in[d->now].appended;
    for (uint32_t i = 0; i < f->row_count; i++) {
        struct cost_work *of = &work[place_of(d, f->rows[i].w)];
        of->generated++;
        of->queries++;
        of->tokens += f->rows[i].position + 1;
        of->weighed += f->rows[i].position + 1;
    }
    for (uint32_t i = 0; i < WORKLOADS_MAX; i++) {
        const struct work_done done = {.tokens = work[i].generated - work[i].queries,
                                       .query_rows = work[i].queries * d->g->layers};
        if (work[i].generated)
            engine_state_note_done(d->o.state, d->workloads[i]->use, &done);
        f->rows_of[i] = (uint32_t)work[i].queries;
        f->part[i] = step_us_of(d->o.state->steps, &work[i]);
        sum_us += f->part[i];
        if (f->part[i] > 0)
            d->workloads[i]->round_us = f->part[i] * d->g->layers;
    }
    for (uint32_t i = 0; i < WORKLOADS_MAX; i++)
        f->part[i] /= sum_us > 0 ? sum_us : 1;
}

/* Count a sequence that appends so many tokens behind the first ones. */
static void note_shape(struct round_shape *shape, const struct running *r, uint32_t first, uint32_t appended)
{
    bool decodes = first >= r->fill;
    *(decodes ? &shape->decode : &shape->prefill) += appended;
    *(decodes ? &shape->decode_tokens : &shape->prefill_tokens) += (uint64_t)first * appended;
}

/* Take part for good: blocks are reserved. */
static void enter_round(struct workload_run *d)
{
    struct round *f = &d->rounds[d->now];
    d->round_number++;
    memset(f->shape, 0, sizeof f->shape);
    f->busy_s = 0;
    for (uint32_t i = 0, row = 0; i < f->member_count; i++) {
        struct running *r = &d->running[d->members[i]];
        struct workload_report *report = &r->w->report;
        uint32_t appended = r->in[d->now].appended, first = length_of(d, r), end = first + appended;
        uint32_t again = smaller(state_of(r)->done, end),
                 prompt = smaller(request_of(r->w, r->ordinal)->prompt, end);
        if (r->w->round_number != d->round_number) { /* its first sequence */
            r->w->round_number = d->round_number;
            reservation_begin_round(d->o.state, place_of(d, r->w));
        }
        if (r->w->table)
            note_shape(&f->shape[place_of(d, r->w)], r, first, appended);
        if (appended) {
            bool decodes = end >= r->fill && r->in[d->now].done >= end;
            reservation_note_run(d->o.state, r->row, end, decodes);
            spell(r->w, r->ordinal, first, end, d->tokens);
            block_tables_note_tokens(d->tables, r->row, first, d->tokens, appended);
        }
        report->recomputed_tokens += again > first ? again - first : 0;
        uint32_t fresh = larger(first, state_of(r)->done);
        report->prompt_tokens += prompt > fresh ? prompt - fresh : 0;
        r->done = r->in[d->now].done;
        f->table_rows[i] = r->row;
        for (; row < f->row_count && f->rows[row].w == r->w && f->rows[row].ordinal == r->ordinal; row++) {
            d->planner_queries[row] = (struct planner_query){
                r->row, f->rows[row].position + 1, block_tables_version(d->tables, r->row), report->sharing};
            d->q_source[row] = workload_query_source(r->w, r->ordinal);
            if (r->w->kept)
                workload_outputs_announce(r->w->kept, 1);
        }
    }
    f->begun = true;
    f->next_layer = f->in_flight = 0;
    note_parts(d, f);
    look_at_costs(d, f);
}

/* Whether the step being formed leaves alone what is kept for clients' sequences. */
static bool leaves_declared(struct workload_run *d)
{
    uint64_t declared = reservation_declared(d->o.state);
    return !declared || block_tables_need(d->tables, d->requests, d->request_count) + declared <=
                            block_pool_available(block_tables_pool(d->tables));
}

/* Begin a round of what can run, in the step being formed; false when there is nothing, or no room for
 * anything. */
static bool begin_round(struct workload_run *d, struct step *step)
{
    struct copy_list *copies = step_copies(step);
    uint32_t before = copies->count;
    let_sit_out(d);
    for (;;) {
        take_all(d);
        if (d->rounds[d->now].member_count == 0 && let_all_take_part(d))
            continue;
        if (d->rounds[d->now].member_count == 0)
            return false;
        if (leaves_declared(d) && block_tables_reserve(d->tables, step_number(d->o.state->steps), d->requests,
                                                       d->request_count, copies->list, &copies->count) == 0)
            break;
        if (d->rounds[!d->now].begun) /* what ends in the round before gives its blocks back */
            return false;
        if (let_all_take_part(d)) /* whoever ends gives some back */
            continue;
        bool preempted = preempt(d);
        compact(d);
        if (!preempted) {
            d->blocked = true;
            return false;
        }
    }
    d->blocked = false;
    d->rounds[d->now].copies = copies->count - before;
    enter_round(d);
    return true;
}

/* ---- slices of a round --------------------------------------------------------------------------- */

/* The cursors of the slice's layers move, and its sequences take part in the step. */
static void enter_step(struct workload_run *d, const struct slice *slice, struct step *step)
{
    const struct round *f = slice->round;
    if (slice->layers == d->g->layers)
        block_tables_submit_all(d->tables, step_number(d->o.state->steps), d->requests, d->request_count);
    for (uint32_t i = 0; slice->layers < d->g->layers && i < d->request_count; i++) {
        for (uint32_t layer = slice->first_layer; layer < slice->first_layer + slice->layers; layer++)
            block_tables_advance(d->tables, d->requests[i].row, layer,
                                 d->requests[i].end - d->requests[i].first);
    }
    for (uint32_t i = 0; i < f->member_count; i++)
        step_take_part(step, f->table_rows[i]);
}

/* Add whole layers to the step being formed. */
static void add_layers(struct workload_run *d, struct step *step, uint32_t layers)
{
    struct slice *slice = &d->slices[step_slot(step)];
    struct round *f = &d->rounds[d->now];
    size_t layer_bytes = f->row_count * d->row_bytes;
    *slice = (struct slice){f, f->next_layer, layers, 0, f->row_count, slice->outputs};
    enter_step(d, slice, step);
    for (uint32_t i = 0; i < layers; i++) {
        const struct step_part part = {.producer = STEP_OF_WORKLOADS,
                                       .layer = slice->first_layer + i,
                                       .appends = d->appends,
                                       .append_count = d->append_count,
                                       .rows = d->planner_queries,
                                       .row_count = f->row_count,
                                       .q_source = d->q_source,
                                       .o = slice->outputs + i * layer_bytes,
                                       .cost_us = layer_us(d, f, slice->first_layer + i)};
        step_add(step, &part);
    }
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (f->rows_of[i])
            step_note_owner(step, d->workloads[i]->key, f->rows_of[i]);
    }
    f->next_layer += layers;
    f->in_flight++;
}

/* Begin to cut the next layer; false if it cannot be cut. */
static bool begin_cutting(struct workload_run *d, struct round *f)
{
    if (!f->in_order)
        return false;
    step_order(d->o.state->steps, f->next_layer, d->planner_queries, f->row_count, d->places);
    if (!is_in_order(d, f->row_count))
        return false;
    slicing_begin(&f->queries, d->places, f->row_count);
    f->cutting = true;
    f->appends = (struct append_slicing){.appends = d->appends, .count = d->append_count};
    return true;
}

/* The next appends of the layer being cut, for which there is time; microseconds that they take. */
static double cut_appends(struct workload_run *d, struct round *f, struct step *step, double room_us,
                          struct step_part *part)
{
    const struct cost_work one = {.generated = 1};
    double each = step_us_of(d->o.state->steps, &one), fit = room_us / each;
    uint32_t tokens = fit < (double)d->rows_max ? larger(1, (uint32_t)fit) : d->rows_max, done = 0,
             room = smaller(f->appends.count - f->appends.done, tokens);
    struct kv_append *appends = step_appends(step, room);
    part->appends = appends;
    part->append_count = appends ? slicing_appends(&f->appends, tokens, appends, room, &done) : 0;
    return done * each;
}

/* Add a part of the layer being cut: appends first, then queries, segment by segment where need be. */
static void add_part(struct workload_run *d, struct step *step, double room_us)
{
    struct slice *slice = &d->slices[step_slot(step)];
    struct round *f = &d->rounds[d->now];
    struct step_part part = {.producer = STEP_OF_WORKLOADS, .layer = f->next_layer, .o = slice->outputs};
    *slice = (struct slice){f, f->next_layer, 0, 0, 0, slice->outputs};
    bool began_done = f->appends.done == f->appends.count, last = true;
    if (!began_done)
        part.cost_us = cut_appends(d, f, step, room_us, &part);
    if (f->appends.done == f->appends.count && (began_done || part.cost_us < room_us)) {
        const struct slicing_room room = {room_us - part.cost_us, d->o.state->step_us_max / 2, d->rows_max,
                                          part.append_count == 0};
        double appends_us = part.cost_us;
        uint32_t first;
        if (!slicing_is_done(&f->queries) &&
            slicing_next(&f->queries, d->o.state->steps, &room, &part, &first, &last)) {
            part.rows = d->planner_queries + first;
            part.q_source = d->q_source + first;
            slice->first_row = first;
            slice->rows = last ? part.row_count : 0;
            part.cost_us += appends_us;
            for (uint32_t i = 0; i < part.row_count; i++)
                step_note_owner(step, f->rows[first + i].w->key, 1);
        }
    }
    if (part.append_count == 0 && part.row_count == 0) { /* no states now: those of others are given back */
        slice->round = NULL;
        return;
    }
    if (!began_done && f->appends.done == f->appends.count)
        slice->layers = 1; /* its cursors move with the last append */
    enter_step(d, slice, step);
    slice->layers = 1;
    step_add(step, &part);
    f->in_flight++;
    if (f->appends.done == f->appends.count && slicing_is_done(&f->queries)) {
        f->cutting = false;
        f->next_layer++;
    }
}

/* Of `fit` layers for which there is room, how many to take of `all`, which are cut into equal parts, as
 * few as there would be anyway. So rounds are cut alike while the room varies a little, and a device's
 * graphs of them come again. */
static uint32_t equal_part(uint32_t all, uint32_t fit)
{
    return fit ? ceiling(all, ceiling(all, fit)) : 0;
}

/* Add what there is time for of the round to the step being formed. */
static void add_slice(struct workload_run *d, struct step *step, double room_us)
{
    struct round *f = &d->rounds[d->now];
    uint32_t layers = 0, most = d->g->layers - f->next_layer;
    double us = 0;
    if (f->row_count)
        most = smaller(most, (uint32_t)(d->outputs_bytes / (f->row_count * d->row_bytes)));
    for (; !f->cutting && layers < most; layers++) {
        us += layer_us(d, f, f->next_layer + layers);
        if (us > room_us)
            break;
    }
    if (layers < d->g->layers - f->next_layer)
        layers = equal_part(d->g->layers, layers);
    if (layers > 0)
        add_layers(d, step, layers);
    else if (f->cutting || begin_cutting(d, f))
        add_part(d, step, room_us);
    else
        add_layers(d, step, 1);
}

/* Charge the workloads of the round for what has come into the step. */
static void charge(struct workload_run *d, const struct step *step, double before_us)
{
    const struct round *f = &d->rounds[d->now];
    double us = step_us(step) - before_us;
    for (uint32_t i = 0; i < WORKLOADS_MAX; i++) {
        if (f->part[i] > 0 && d->workloads[i]->has_account)
            shares_charge(d->o.state->shares, step_slot(step), d->workloads[i]->account, us * f->part[i]);
    }
}

/* Whether a round was begun that is not submitted. */
static bool is_under_way(const struct workload_run *d)
{
    return d->rounds[d->now].begun && d->rounds[d->now].next_layer < d->g->layers;
}

/* Which workloads have kept so many outputs that their clients have to read first: these lag. */
static void note_lagging(struct workload_run *d)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (w)
            w->lags = w->kept && workload_outputs_room(w->kept) < w->promised;
    }
}

void workload_run_begin(struct workload_run *d, struct step *step)
{
    d->slices[step_slot(step)].round = NULL;
    d->may_add = false;
    if (d->o.state->failed)
        return;
    note_arrivals(d, d->o.state->now_s);
    d->may_add = is_under_way(d);
    if (d->may_add || d->cancels.first || next_overdue(d) || d->o.state->stopping ||
        d->rounds[!d->now].begun) /* no place yet */
        return;
    note_lagging(d);
    admit(d, d->o.state->now_s);
    note_lagging(d); /* with those that were admitted */
    d->may_add = d->live_count > 0;
}

bool workload_run_may_add(const struct workload_run *d)
{
    return d->may_add;
}

double workload_run_at(const struct workload_run *d)
{
    const struct round *f = &d->rounds[d->now];
    double most = -INFINITY;
    if (!is_under_way(d))
        return least_at(d);
    for (uint32_t i = 0; i < WORKLOADS_MAX; i++) {
        if (f->part[i] > 0 && d->workloads[i]->has_account)
            most = fmax(most, shares_at(d->o.state->shares, owner_of(d, d->workloads[i])));
    }
    return most;
}

uint32_t workload_run_owners(const struct workload_run *d)
{
    uint32_t n = 0;
    for (int i = 0; i < WORKLOADS_MAX; i++)
        n += runs(d->workloads[i]);
    return n;
}

bool workload_run_add(struct workload_run *d, struct step *step, double room_us)
{
    double before_us = step_us(step);
    d->may_add = false;
    if (!is_under_way(d)) {
        d->now = !d->now;
        if (!begin_round(d, step)) {
            d->now = !d->now;
            return false;
        }
    }
    add_slice(d, step, room_us);
    charge(d, step, before_us);
    return d->slices[step_slot(step)].round != NULL;
}

/* One that found no room in the round waits for that, not for time. */
void workload_run_end(struct workload_run *d)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct workload *w = d->workloads[i];
        if (runs(w) && !d->blocked && (w->sits_out || d->rounds[d->now].part[i] > 0))
            shares_wait(d->o.state->shares, w->account);
    }
}

/* ---- running it ---------------------------------------------------------------------------------- */

/* Outputs whose hashes are being computed. */
struct hashing {
    struct workload_run *d;
    const struct slice *slice;
};

/* A worker takes some rows of a layer at a time. */
static void hash_rows(uint32_t worker, void *cookie)
{
    const struct hashing *h = cookie;
    const struct workload_run *d = h->d;
    const struct round *f = h->slice->round;
    uint32_t rows = h->slice->rows, pieces = (rows + HASHED_ROWS - 1) / HASHED_ROWS, next = 0;
    (void)worker;
    while ((next = d->helpers ? thread_pool_take(d->helpers) : next) < h->slice->layers * pieces) {
        uint32_t layer = next / pieces, row = next % pieces * HASHED_ROWS;
        for (uint32_t end = smaller(row + HASHED_ROWS, rows); row < end; row++) {
            size_t at = (size_t)layer * rows + row;
            const struct output_row *of = &f->rows[h->slice->first_row + row];
            d->hashes[at] = workload_hash_row(of->ordinal, of->position, h->slice->first_layer + layer,
                                              h->slice->outputs + at * d->row_bytes, d->row_bytes);
        }
        next++;
    }
    if (d->helpers)
        thread_pool_barrier(d->helpers);
}

/* With debug.poison: an output that is not finite has seen a slot that nobody has written, and the workload is not good,
 * whatever is sampled of it. */
static void look_at_output(const struct workload_run *d, struct workload *w, const struct output_row *row,
                           uint32_t layer, const uint8_t *output)
{
    size_t n = (size_t)d->g->query_heads * d->g->head_dim;
    if (isnan(w->report.verify_error) || numeric_first_nonfinite(d->g->dtype, output, n) == n)
        return;
    w->report.verify_error = (double)NAN;
    log_line(LOG_ERROR,
             "workload %llu: o of sequence %u, position %u, layer %u is NaN: it has seen a slot that nobody "
             "has written",
             (unsigned long long)w->report.id, row->ordinal, row->position, layer);
}

/* The outputs of a step go into the digests, and aside where they will be verified. */
static void collect(struct workload_run *d, const struct slice *slice)
{
    struct hashing h = {d, slice};
    const struct round *f = slice->round;
    if (d->helpers)
        thread_pool_run(d->helpers, hash_rows, &h);
    else
        hash_rows(0, &h);
    for (size_t at = 0; slice->rows > 0 && at < (size_t)slice->layers * slice->rows; at++) {
        const struct output_row *row = &f->rows[slice->first_row + at % slice->rows];
        struct workload *w = row->w;
        uint32_t layer = slice->first_layer + (uint32_t)(at / slice->rows);
        workload_digest(w, d->hashes[at]);
        if (d->config->poison)
            look_at_output(d, w, row, layer, slice->outputs + at * d->row_bytes);
        if (w->kept)
            workload_outputs_put(w->kept, (struct workload_output){row->ordinal, row->position, layer},
                                 slice->outputs + at * d->row_bytes);
        w->report.rows++;
        for (uint32_t s = w->sequences[row->ordinal].next_sample;
             s < w->report.verify_rows && w->samples[s].ordinal == row->ordinal &&
             w->samples[s].position <= row->position;
             s++) {
            if (w->samples[s].position != row->position || w->samples[s].layer != layer)
                continue;
            memcpy(w->outputs + s * d->row_bytes, slice->outputs + at * d->row_bytes, d->row_bytes);
            w->samples[s].taken = true;
        }
    }
}

/* Make the children of a sequence that has come to its fork. */
static void fork_running(struct workload_run *d, uint32_t i, double now)
{
    struct workload *w = d->running[i].w;
    uint32_t parent = d->running[i].ordinal, row;
    const struct workload_request *request = request_of(w, parent);
    d->forks_due -= request->forks;
    w->promised -= request->forks;
    state_of(&d->running[i])->forked = true;
    reservation_forked(d->o.state, d->running[i].row);
    for (uint32_t child = parent + 1; child <= parent + request->forks; child++) {
        w->sequences[child].arrived_s = now;
        w->sequences[child].done = request->fork_at;
        w->report.arrived++;
        w->report.forks++;
        if (d->live_count < smaller(d->sequences_max, d->rows_max) &&
            block_tables_fork(d->tables, d->running[i].row, request->fork_at, &row) == 0) {
            const struct reservation_plan plan = plan_of(d, w, child);
            reservation_run_fork(d->o.state, row, d->running[i].row, &plan);
            add_running(d, w, child, row, d->running[i].row, now);
        } else {
            push_waiting(w, child); /* it will append its beginning itself */
        }
    }
    charge_key(d, w, parent, d->running[i].row); /* they count for themselves now */
}

/* By whom it was begun, for the log. */
static struct log_about about_workload(const struct workload *w)
{
    return (struct log_about){.id = w->request[0] ? w->request : NULL,
                              .key = w->report.owner[0] ? w->report.owner : NULL};
}

/* Tell the log how a workload has ended; `cut`: with the daemon. */
static void log_ended(const struct workload *w, const char *how, bool cut)
{
    static const char *const why[] = {
#define XX(constant, name, words) words,
        WORKLOAD_REASON_MAP(XX)
#undef XX
    };
    const struct workload_report *r = &w->report;
    cut |= r->reason == WORKLOAD_BY_DRAIN || r->reason == WORKLOAD_BY_FAILURE;
    const struct log_about about = about_workload(w);
    log_event_of(cut ? LOG_WARNING : LOG_INFO, "workload_ended", &about,
                 LOG_NUMBERS({"workload", (double)r->id}, {"ms", r->wall_s * 1e3}, {"sequences", r->finished},
                             {"of", r->sequences}, {"tokens", (double)r->tokens_done},
                             {"of_tokens", (double)r->tokens}),
                 "workload %llu %s after %.1f s%s: %u of %u sequence%s, %llu of %llu token%s",
                 (unsigned long long)r->id, how, r->wall_s, why[r->reason], r->finished, r->sequences,
                 plural(r->sequences), (unsigned long long)r->tokens_done, (unsigned long long)r->tokens,
                 plural(r->tokens));
}

/* All sequences of a workload have left. Its state is told once the cache has nothing of it any more. */
static void finish_workload(struct workload_run *d, struct workload *w, enum workload_state state)
{
    if (w->report.state == WORKLOAD_RUNNING)
        w->report.wall_s = d->o.state->now_s - w->started_s;
    log_ended(w, state == WORKLOAD_CANCELLED ? "was cancelled" : "has finished", false);
    w->ends = true;
    w->ends_at = 0;
    w->ends_as = state;
    if (w->has_account) {
        shares_drop(d->o.state->shares, w->account);
        tenants_add(sequences_tenants(d->o.state->sequences), w->key, 0, -1, 0);
    }
    w->has_account = false;
}

/* What a round did to sequence `i`; true when that was its end. */
static bool note_progress(struct workload_run *d, uint32_t i, unsigned round, double now)
{
    const struct running *r = &d->running[i];
    struct workload *w = r->w;
    struct workload_sequence *s = state_of(r);
    const struct workload_request *request = request_of(w, r->ordinal);
    uint32_t first_row = workload_first_row(w, r->ordinal), total = workload_length(w, r->ordinal);
    uint32_t before = s->done;
    s->done = r->in[round].done;
    while (s->next_sample < w->report.verify_rows && w->samples[s->next_sample].ordinal == r->ordinal &&
           w->samples[s->next_sample].position < s->done)
        s->next_sample++;
    w->report.tokens_done += larger(s->done, first_row) - larger(before, first_row);
    if (s->first_s < 0 && s->done > larger(request->prompt, workload_inherited(w, r->ordinal))) {
        s->first_s = (float)(now - s->arrived_s);
        quantiles_add(&w->first_token_us, (double)s->first_s * 1e6);
    }
    if (s->done < total)
        return false;
    uint32_t decoded = total - larger(request->prompt, workload_inherited(w, r->ordinal));
    if (decoded > 1)
        quantiles_add(&w->per_token_us, (now - s->arrived_s - (double)s->first_s) * 1e6 / (decoded - 1));
    return true;
}

/* The figures of a step go to every workload that took part. */
static void note_step(struct workload_run *d, struct round *f, const struct step *step)
{
    struct block_pool_counts pool = block_pool_counts(block_tables_pool(d->tables));
    struct block_tables_counts counts = block_tables_counts(d->tables);
    uint64_t saved = counts.tokens_logical - counts.tokens_physical;
    double seconds = step_cost(step).seconds;
    d->steps_noted++;
    f->busy_s += seconds;
    for (uint32_t i = 0; i < f->member_count; i++) {
        struct workload *w = f->members[i];
        if (w->noted_step == d->steps_noted)
            continue;
        w->noted_step = d->steps_noted;
        w->report.steps++;
        w->report.busy_s += seconds;
        w->report.bytes_read += step_bytes(step, STEP_OF_WORKLOADS);
        w->report.copies += f->copies;
        w->report.pool_held_peak = larger(w->report.pool_held_peak, pool.held);
        if (saved > w->report.pool_saved_tokens_peak)
            w->report.pool_saved_tokens_peak = saved;
        quantiles_add(&w->step_us, seconds * 1e6);
    }
    f->copies = 0; /* were made with the first layers */
}

/* A round has ended for a sequence that took part; whether the sequence has, too. */
static bool end_round_of(struct workload_run *d, unsigned round, uint32_t i, double now)
{
    struct running *r = &d->running[i];
    struct workload *w = r->w;
    r->in[round].taken = false;
    sequences_at(d->o.state->sequences, r->row)->used_s = now;
    if (r->fills && retired_length(d, r) >= r->fill)
        end_filling(d, r);
    bool ended = note_progress(d, i, round, now);
    /* at all layers: those of the next round may have begun */
    uint32_t length = block_tables_view(d->tables, r->row).length;
    if (forks_due(r) && length >= request_of(w, r->ordinal)->fork_at)
        fork_running(d, i, now);
    if (!ended)
        return false;
    w->report.finished++;
    drop_running(d, i, HISTORY_WORKLOAD);
    if (w->report.finished == w->report.sequences)
        finish_workload(d, w, w->report.verify_rows ? WORKLOAD_VERIFYING : WORKLOAD_FINISHED);
    return true;
}

/* All layers of a round are computed: end it for as many sequences as there is time for, the last ones
 * first. Those that start meanwhile come behind them. */
static void end_round(struct workload_run *d, unsigned round)
{
    struct round *f = &d->rounds[round];
    double now = d->o.state->now_s;
    bool more = true;
    f->left = smaller(f->left, d->running_count);
    for (uint32_t n = 1; more && f->left > 0; n++) {
        const struct running *r = &d->running[f->left - 1];
        bool ended = r->w && r->in[round].taken && end_round_of(d, round, f->left - 1, now);
        f->left--;
        more = (!ended && n % LOOKED_AT) || budget_allows(&d->ending);
    }
    compact(d);
    f->begun = f->ends = f->left > 0;
}

/* Go on ending rounds, the one that was begun first first. Returns whether there was one. */
static bool end_rounds(struct workload_run *d)
{
    const unsigned order[ROUNDS] = {!d->now, d->now};
    bool any = false;
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct round *f = &d->rounds[order[i]];
        any |= f->ends;
        if (f->ends)
            end_round(d, order[i]);
        if (f->ends) /* the other one has to wait */
            break;
    }
    return any;
}

static uint32_t mean(uint64_t sum, uint64_t n)
{
    return n ? (uint32_t)((sum + n / 2) / n) : 0;
}

/* All layers of a round are computed: it goes into the tables of its workloads. */
static void note_round(struct workload_run *d, const struct round *f)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct round_shape *s = &f->shape[i];
        const struct workload_table_row row = {(uint32_t)s->prefill, mean(s->prefill_tokens, s->prefill),
                                               (uint32_t)s->decode, mean(s->decode_tokens, s->decode),
                                               (float)(f->busy_s * 1e6)};
        if (s->prefill + s->decode)
            workload_note_round(d->workloads[i], &row);
    }
}

void workload_run_retire(struct workload_run *d, const struct step *step)
{
    struct slice *slice = &d->slices[step_slot(step)];
    struct round *f = slice->round;
    if (!f)
        return;
    collect(d, slice);
    slice->round = NULL;
    note_step(d, f, step);
    history_touch(d->o.state);
    if (--f->in_flight > 0 || f->next_layer < d->g->layers)
        return;
    note_round(d, f);
    f->ends = true;
    f->left = UINT32_MAX; /* all */
    (void)end_rounds(d);
}

/* ---- verification -------------------------------------------------------------------------------- */

/* One KV head of one sample; the workload is finished with the last. */
static void verify_part(struct workload_run *d, struct workload *w)
{
    struct workload_report *report = &w->report;
    double error;
    if (!w->samples[w->verify_next].taken ||
        verify_head(w, d->g, &d->o.state->constants, w->verify_next, w->verify_head, &error) != 0)
        error = (double)NAN;
    if (!isnan(report->verify_error) && !(error <= report->verify_error))
        report->verify_error = error; /* a NaN too, and it stays */
    if (++w->verify_head < d->g->kv_heads)
        return;
    w->verify_head = 0;
    report->verify_done++;
    if (++w->verify_next < report->verify_rows)
        return;
    report->verify_ok = report->verify_error <= report->verify_tolerance;
    report->state = WORKLOAD_FINISHED;
    w->ended_s = d->o.state->now_s;
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* Fill in the answer of a request on a workload. */
static void describe(const struct workload_run *d, const struct workload *w, struct workload_report *report)
{
    *report = w->report;
    if (has_ended(w))
        report->expires_in_s = w->ended_s + d->config->limits.workload_kept_s - d->o.state->now_s;
    report->waiting = w->waiting_count;
    report->next_arrival_s = NAN;
    if (report->state == WORKLOAD_RUNNING && w->next_arrival < w->request_count) {
        double due_s = w->started_s + w->requests[w->next_arrival].arrival_s;
        report->to_arrive = w->request_count - w->next_arrival;
        report->next_arrival_s = due_s > d->o.state->now_s ? due_s - d->o.state->now_s : 0;
    }
    report->pool_blocks = (uint32_t)d->config->pool_blocks;
    report->pool_held = block_pool_counts(block_tables_pool(d->tables)).held;
    if (report->state == WORKLOAD_RUNNING && !w->ends)
        report->wall_s = d->o.state->now_s - w->started_s;
    report->step_us = quantiles_percentiles(&w->step_us);
    report->queue_us = quantiles_percentiles(&w->queue_us);
    report->first_token_us = quantiles_percentiles(&w->first_token_us);
    report->per_token_us = quantiles_percentiles(&w->per_token_us);
}

/* Move outputs that are kept into the answer, as many as fit. */
static void give_outputs(struct workload_run *d, struct workload *w, struct request *request)
{
    struct request_workload *out = &request->workload;
    uint32_t n = workload_outputs_next(w->kept);
    out->outputs = request_alloc(request, n, sizeof *out->outputs);
    out->output_rows = request_alloc(request, n, d->row_bytes);
    assert(out->outputs && out->output_rows);
    workload_outputs_take(w->kept, n, out->outputs, out->output_rows);
    out->output_count = n;
    out->more = workload_outputs_any(w->kept);
}

/* Copy the table into the answer that has the report. */
static void give_table(const struct workload *w, struct request *request)
{
    struct workload_table_row *copy = request_alloc(request, w->report.table_rows, sizeof *copy);
    if (copy)
        memcpy(copy, w->table, w->report.table_rows * sizeof *copy);
    request->workload.table = copy;
}

static void tell(struct workload_run *d, struct workload *w, struct request *request)
{
    struct workload_report *report = request_alloc(request, 1, sizeof *report);
    describe(d, w, report);
    request->workload.report = report;
    if (request->workload.takes_outputs && w->kept)
        give_outputs(d, w, request);
    if (has_ended(w) && w->table && !request->workload.more)
        give_table(w, request);
    if (has_ended(w) && request->workload.waits && !request->workload.more)
        w->awaited = false;
}

/* Whether a workload has ended, and its client has taken all of it. */
static bool is_told(const struct workload *w)
{
    return has_ended(w) && !w->watchers && !w->cancels && !w->awaited &&
           !(w->kept && workload_outputs_any(w->kept));
}

/* Forget workloads that ended long ago. */
static void forget_expired(struct workload_run *d)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload **at = &d->workloads[i];
        if (*at && is_told(*at) && d->o.state->now_s - (*at)->ended_s >= d->config->limits.workload_kept_s) {
            workload_destroy(*at);
            *at = NULL;
        }
    }
}

uint64_t workload_run_oldest(const struct workload_run *d)
{
    const struct workload *oldest = NULL;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct workload *w = d->workloads[i];
        if (w && w->report.running && (!oldest || w->report.id < oldest->report.id))
            oldest = w;
    }
    return oldest ? oldest->report.id : 0;
}

bool workload_run_key(const struct workload_run *d, uint64_t id, uint64_t *key)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (!d->workloads[i] || d->workloads[i]->report.id != id)
            continue;
        *key = d->workloads[i]->key;
        return true;
    }
    return false;
}

/* Seconds until the first of the sequences that run comes to its end, by the median time of its workload's tokens; NAN: not known. */
static double first_end_s(const struct workload_run *d)
{
    double first = NAN;
    for (int place = 0; place < WORKLOADS_MAX; place++) {
        const struct workload *w = d->workloads[place];
        uint32_t least = UINT32_MAX;
        for (uint32_t i = 0; w && w->per_token_us.count && i < d->running_count; i++) {
            const struct running *r = &d->running[i];
            if (r->w != w)
                continue;
            uint32_t length = workload_length(w, r->ordinal);
            least = smaller(least, length - smaller(r->done, length));
        }
        if (least != UINT32_MAX)
            first = fmin(first, least * quantiles_at(&w->per_token_us, 0.5) * 1e-6);
    }
    return first;
}

bool workload_run_waits(const struct workload_run *d, uint32_t i, struct wait_view *view, uint64_t *key)
{
    const struct workload *w = i < WORKLOADS_MAX ? d->workloads[i] : NULL;
    if (!w || (!w->waiting_count && w->next_arrival >= w->request_count))
        return false;
    *key = w->key;
    *view = (struct wait_view){
        .workload = w->report.id, .sequences = w->waiting_count, .estimate_s = NAN, .note = w->wait};
    snprintf(view->owner, sizeof view->owner, "%s", w->report.owner);
    if (w->waiting_count) {
        view->since_s = w->wait_s > 0 ? d->o.state->now_s - w->wait_s : 0;
        if (w->wait.reason == WAIT_FOR_BLOCKS || w->wait.reason == WAIT_FOR_SLOTS)
            view->estimate_s = first_end_s(d);
        return true;
    }
    view->note = (struct wait_note){.reason = WAIT_FOR_ARRIVAL};
    view->sequences = w->request_count - w->next_arrival;
    view->since_s = d->o.state->now_s - w->started_s;
    view->estimate_s = fmax(w->started_s + w->requests[w->next_arrival].arrival_s - d->o.state->now_s, 0);
    return true;
}

double workload_run_longest_wait_s(const struct workload_run *d)
{
    double longest = 0;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct workload *w = d->workloads[i];
        if (w && w->waiting_count && w->wait_s > 0)
            longest = fmax(longest, d->o.state->now_s - w->wait_s);
    }
    return longest;
}

int workload_run_list(struct engine_state *state, struct request *request)
{
    struct workload_run *d = state->workloads;
    struct request_workload *list = &request->workload;
    forget_expired(d);
    list->report = request_alloc(request, WORKLOADS_MAX, sizeof *list->report);
    for (uint64_t below = UINT64_MAX; list->count < WORKLOADS_MAX;) { /* newest first */
        const struct workload *next = NULL;
        for (int i = 0; i < WORKLOADS_MAX; i++) {
            const struct workload *w = d->workloads[i];
            if (w && w->report.id < below && inspect_sees(request, w->key) &&
                (!next || w->report.id > next->report.id))
                next = w;
        }
        if (!next)
            break;
        describe(d, next, &list->report[list->count++]);
        below = next->report.id;
    }
    return 0;
}

/* Answer the requests of a list, which is empty then. */
static void answer_all(struct workload_run *d, struct workload *w, struct request **list)
{
    struct request *next;
    for (struct request *request = *list; request; request = next) {
        next = request->next;
        tell(d, w, request);
        d->o.complete(request, d->o.cookie);
    }
    *list = NULL;
}

static void tell_watchers(struct workload_run *d, double now)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        bool full = w && w->kept && workload_outputs_many(w->kept);
        if (!w || !w->watchers || (!has_ended(w) && !full && now - w->watched_s < WATCH_S))
            continue;
        answer_all(d, w, &w->watchers);
        w->watched_s = now;
    }
}

/* A place for one more workload: a free one, or that of the one that ended first; NULL when all run. */
static struct workload **find_place(struct workload_run *d)
{
    struct workload **oldest = NULL;
    forget_expired(d);
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload **at = &d->workloads[i];
        if (!*at)
            return at;
        if (is_told(*at) && (!oldest || (*at)->report.id < (*oldest)->report.id))
            oldest = at;
    }
    return oldest;
}

/* Whether a workload can begin within the quotas of its key, and ever run; else the request has failed. */
static void check_quotas(const struct workload_run *d, const struct workload *w, struct request *request)
{
    const struct tenant_quotas *q = &request->quotas;
    struct tenant_use use = tenants_use(sequences_tenants(d->o.state->sequences), request->key);
    uint64_t blocks = (uint64_t)geometry_blocks(d->g, w->longest) * w->widest;
    if (q->sequences && w->widest > q->sequences)
        request_fail(request, ATTND_INVALID, "quotas.sequences of the key is %u, and one of it has %u forks",
                     q->sequences, w->widest - 1);
    else if (q->blocks && blocks > q->blocks)
        request_fail(request, ATTND_INVALID,
                     "quotas.blocks of the key is %u, and its longest sequence with its forks takes %llu",
                     q->blocks, (unsigned long long)blocks);
    else if (q->workloads && use.workloads >= q->workloads)
        request_fail(request, ATTND_QUOTA, "quotas.workloads of the key is %u, and as many run",
                     q->workloads);
}

uint64_t workload_run_of_key(const struct workload_run *d, uint64_t key)
{
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct workload *w = d->workloads[i];
        if (w && w->key == key && !has_ended(w) && !w->ends)
            return w->report.id;
    }
    return 0;
}

void workload_run_number_from(struct workload_run *d, uint64_t id)
{
    d->next_id = id > d->next_id ? id : d->next_id;
}

int workload_run_start(struct engine_state *state, struct request *request)
{
    struct workload_run *d = state->workloads;
    struct workload **place = find_place(d), *w = request->workload.workload;
    if (d->o.state->failed)
        request_fail(request, ATTND_DEVICE, "the device has failed");
    else if (!place)
        request_fail(request, ATTND_BUSY, "%d workloads are running", WORKLOADS_MAX);
    else
        check_quotas(d, w, request);
    if (!place || request->status != 0) {
        workload_destroy(w);
        return request->status;
    }
    workload_destroy(*place);
    *place = w;
    w->report.id = d->next_id++;
    w->report.verify_tolerance = verify_tolerance(d->g, step_backend(d->o.state->steps)->p_rounded);
    w->root = block_tables_open_root(d->tables, OWNER_WORKLOADS, &w->report.id, sizeof w->report.id);
    w->key = request->key;
    w->quotas = request->quotas;
    w->use = request->use;
    w->account = w->key ? shares_hold(state->shares, w->key, SHARES_WORKLOAD | w->report.id,
                                      larger(request->weight, 1))
                        : shares_hold(state->shares, SHARES_WORKLOAD | w->report.id, 0, WEIGHT);
    w->has_account = true;
    tenants_add(sequences_tenants(state->sequences), w->key, 0, 1, 0);
    w->started_s = w->watched_s = d->o.state->now_s;
    snprintf(w->request, sizeof w->request, "%s", request->name);
    const struct log_about about = about_workload(w);
    log_event_of(LOG_INFO, "workload_begun", &about,
                 LOG_NUMBERS({"workload", (double)w->report.id}, {"sequences", w->report.sequences},
                             {"tokens", (double)w->report.tokens}),
                 "workload %llu begins%s%s: %u sequence%s, %llu token%s", (unsigned long long)w->report.id,
                 w->report.owner[0] ? ", of the key " : "", w->report.owner, w->report.sequences,
                 plural(w->report.sequences), (unsigned long long)w->report.tokens, plural(w->report.tokens));
    d->changed = true;
    tell(d, w, request);
    return 0;
}

/* What the ids of the node's workloads are above, as those of its sequences. */
static uint64_t node_of(const struct workload_run *d)
{
    return (uint64_t)d->config->node << SEQUENCE_NODE_SHIFT;
}

static struct workload *find_workload(struct workload_run *d, struct request *request)
{
    forget_expired(d);
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (d->workloads[i] && d->workloads[i]->report.id == request->id &&
            inspect_sees(request, d->workloads[i]->key))
            return d->workloads[i];
    }
    if (!inspect_is_ours(d->o.state, request, request->id, "workload"))
        return NULL;
    if (inspect_sees(request, 0) && request->id > node_of(d) && request->id < d->next_id)
        request_fail(request, ATTND_GONE,
                     "workload %llu is forgotten: the last %d are kept, for limits.workload_kept_s (%u)",
                     (unsigned long long)request->id, WORKLOADS_MAX, d->config->limits.workload_kept_s);
    else
        request_fail(request, ATTND_NOT_FOUND, "there is no workload %llu", (unsigned long long)request->id);
    return NULL;
}

int workload_run_look(struct engine_state *state, struct request *request)
{
    struct workload_run *d = state->workloads;
    struct workload *w = find_workload(d, request);
    if (!w)
        return request->status;
    if (request->workload.waits && !has_ended(w)) {
        request->next = w->watchers;
        w->watchers = request;
        return REQUEST_WAITS;
    }
    tell(d, w, request);
    return 0;
}

static bool is_between_rounds(const struct workload_run *d)
{
    return !d->rounds[0].begun && !d->rounds[1].begun;
}

/* Let sequences of a workload leave, as many as there is time for, or all; true when none is left. */
static bool leave(struct workload_run *d, const struct workload *w, bool all)
{
    for (uint32_t i = d->running_count; i-- > 0 && w->report.running > 0;) {
        if (d->running[i].w != w)
            continue;
        if (!all && !budget_allows(&d->ending))
            break;
        drop_running(d, i, HISTORY_CANCELLED);
    }
    compact(d);
    return w->report.running == 0;
}

/* Cancel a workload between two rounds; true when all its sequences have left. */
static bool cancel_workload(struct workload_run *d, struct workload *w, enum workload_reason reason, bool all)
{
    if (w->kept)
        workload_outputs_drop(w->kept);
    if (reason != WORKLOAD_BY_DEADLINE && reason != WORKLOAD_BY_FAILURE)
        w->awaited = false;
    if (w->ends && w->ends_as == WORKLOAD_VERIFYING) {
        w->ends_as = WORKLOAD_CANCELLED;
        w->report.reason = reason;
    }
    if (w->ends || has_ended(w))
        return true;
    w->report.reason = reason;
    w->waiting_count = 0;
    w->next_arrival = w->request_count;
    if (!leave(d, w, all))
        return false;
    finish_workload(d, w, WORKLOAD_CANCELLED);
    return true;
}

/* Go on with the first of what was waiting for the end of all rounds, if they have ended. Returns whether
 * anything was done. */
static bool make_cancels(struct workload_run *d)
{
    struct request *request = d->cancels.first;
    struct workload *w = next_overdue(d);
    if ((!request && !w) || !is_between_rounds(d))
        return false;
    if (w) {
        (void)cancel_workload(d, w, WORKLOAD_BY_DEADLINE, false);
        return true;
    }
    w = find_workload(d, request);
    enum workload_reason reason = request->workload.reason ? request->workload.reason : WORKLOAD_BY_REQUEST;
    if (w && !cancel_workload(d, w, reason, false))
        return true;
    (void)request_list_take(&d->cancels);
    if (w) {
        request->next = w->cancels;
        w->cancels = request;
    } else {
        d->o.complete(request, d->o.cookie);
    }
    return true;
}

int workload_run_cancel(struct engine_state *state, struct request *request)
{
    struct workload_run *d = state->workloads;
    if (!find_workload(d, request))
        return request->status;
    request_list_append(&d->cancels, request);
    return REQUEST_WAITS;
}

void workload_run_fail(struct workload_run *d)
{
    for (int i = 0; i < ROUNDS; i++)
        d->rounds[i].begun = d->rounds[i].ends = false;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        if (d->workloads[i])
            (void)cancel_workload(d, d->workloads[i], WORKLOAD_BY_FAILURE, true);
    }
}

/* Go on ending a workload: forget what it has in the cache, answer, free a list. Whether there was
 * anything left to do. */
static bool end_workload(struct workload_run *d, struct workload *w)
{
    bool forgotten = false;
    if (!w->ends && !w->cancels)
        return has_ended(w) && workload_release(w);
    while (w->ends && !forgotten && budget_allows(&d->ending))
        forgotten = block_tables_trim_root(d->tables, w->root, &w->ends_at, FORGOTTEN);
    if (forgotten) {
        block_tables_close_root(d->tables, w->root);
        w->root = NO_ROOT;
        w->ends = false;
        w->report.state = w->ends_as;
        w->ended_s = d->o.state->now_s;
    }
    if (!w->ends && has_ended(w))
        answer_all(d, w, &w->cancels);
    return true;
}

bool workload_run_tidy(struct workload_run *d)
{
    bool worked = end_rounds(d);
    worked |= make_cancels(d);
    for (int i = 0; i < WORKLOADS_MAX && !worked; i++) /* one at a time */
        worked = d->workloads[i] && end_workload(d, d->workloads[i]);
    return worked;
}

/* ---- the turn ------------------------------------------------------------------------------------ */

void workload_run_begin_turn(struct workload_run *d)
{
    budget_begin(&d->ending);
    budget_begin(&d->admitting);
}

bool workload_run_verify(struct workload_run *d, bool idle)
{
    bool verify = idle || ++d->turns % VERIFY_TURNS == 0;
    for (int i = 0; i < WORKLOADS_MAX && verify; i++) {
        struct workload *w = d->workloads[i];
        if (!w || w->report.state != WORKLOAD_VERIFYING || w->ends) /* it is cancelled */
            continue;
        verify_part(d, w);
        return true;
    }
    return false;
}

void workload_run_report(struct workload_run *d)
{
    tell_watchers(d, d->o.state->now_s);
}

double workload_run_idle_s(const struct workload_run *d)
{
    double now = d->o.state->now_s, idle = -1;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        const struct workload *w = d->workloads[i];
        if (!w || has_ended(w))
            continue;
        double until = w->watchers ? w->watched_s + WATCH_S - now : 1;
        if (w->report.deadline_s > 0)
            until = fmin(until, w->started_s + w->report.deadline_s - now);
        if (w->waiting_count || d->blocked)
            until = until < BLOCKED_S ? until : BLOCKED_S;
        if (w->next_arrival < w->request_count) {
            double arrival = w->started_s + w->requests[w->next_arrival].arrival_s - now;
            until = arrival < until ? arrival : until;
        }
        until = until > 0 ? until : 0;
        idle = idle < 0 || until < idle ? until : idle;
    }
    return idle;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int workload_run_create(const struct workload_run_options *options, struct workload_run **result)
{
    struct workload_run *d = calloc(1, sizeof *d);
    if (!d)
        return ATTND_NO_MEMORY;
    d->o = *options;
    d->config = options->state->config;
    d->g = &d->config->geometry;
    d->tables = step_tables(options->state->steps);
    d->rows_max = d->config->step_rows_max;
    d->sequences_max = d->config->limits.sequences;
    d->row_bytes = geometry_q_row_bytes(d->g);
    d->next_id = node_of(d) + 1;
    d->ending = d->admitting = options->state->waiting;
    d->ending.us = options->state->step_us_max * ENDING;
    d->admitting.us = options->state->step_us_max * ADMITTING;
    uint32_t n = d->sequences_max;
    d->appends_max = n + d->rows_max;
    d->running = calloc(2 * (size_t)n, sizeof *d->running);
    d->index_of = calloc(n, sizeof *d->index_of);
    d->claims = calloc(n, sizeof *d->claims);
    d->members = calloc(n, sizeof *d->members);
    d->requests = calloc(n, sizeof *d->requests);
    d->appends = calloc(d->appends_max, sizeof *d->appends);
    d->planner_queries = calloc(d->rows_max, sizeof *d->planner_queries);
    d->q_source = calloc(d->rows_max, sizeof *d->q_source);
    d->places = calloc(d->rows_max, sizeof *d->places);
    d->permuted = calloc(d->rows_max, ROW_LIST_BYTES);
    d->tokens = calloc(d->config->limits.sequence_tokens, sizeof *d->tokens);
    size_t layer_bytes = d->rows_max * d->row_bytes;
    d->outputs_bytes = layer_bytes > OUTPUT_BYTES ? layer_bytes : OUTPUT_BYTES;
    d->hashes = calloc(d->outputs_bytes / d->row_bytes, sizeof *d->hashes);
    uint32_t helpers = smaller(thread_pool_default_threads(), HELPERS_MAX);
    bool made =
        row_order_init(&d->by_turn, n, has_turn_before, d) == 0 && d->hashes &&
        (!step_backend(options->state->steps)->on_device || thread_pool_create(helpers, &d->helpers) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        struct round *f = &d->rounds[i];
        f->rows = calloc(d->rows_max, sizeof *f->rows);
        f->members = calloc(n, sizeof *f->members);
        f->table_rows = calloc(n, sizeof *f->table_rows);
        made &= f->rows && f->members && f->table_rows;
    }
    for (unsigned slot = 0; slot < STEPS_IN_FLIGHT; slot++) {
        d->slices[slot].outputs = step_host_memory(options->state->steps, d->outputs_bytes);
        made &= d->slices[slot].outputs != NULL;
    }
    if (!made || !d->running || !d->index_of || !d->claims || !d->members || !d->requests || !d->appends ||
        !d->planner_queries || !d->q_source || !d->places || !d->permuted || !d->tokens) {
        workload_run_destroy(d);
        return ATTND_NO_MEMORY;
    }
    *result = d;
    return 0;
}

void workload_run_destroy(struct workload_run *d)
{
    if (!d)
        return;
    for (int i = 0; i < WORKLOADS_MAX; i++) {
        struct workload *w = d->workloads[i];
        if (w && !w->ends && !has_ended(w)) {
            w->report.wall_s = d->o.state->now_s - w->started_s;
            log_ended(w, "is cut off by the end of the daemon", true);
        }
        workload_destroy(w);
    }
    void *const arrays[] = {d->running,         d->index_of, d->claims, d->members,  d->requests, d->appends,
                            d->planner_queries, d->q_source, d->places, d->permuted, d->tokens};
    row_order_deinit(&d->by_turn);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    thread_pool_destroy(d->helpers);
    free(d->hashes);
    for (int i = 0; i < ROUNDS; i++) {
        free(d->rounds[i].rows);
        free(d->rounds[i].members);
        free(d->rounds[i].table_rows);
    }
    for (unsigned slot = 0; slot < STEPS_IN_FLIGHT; slot++)
        step_free_host_memory(d->o.state->steps, d->slices[slot].outputs, d->outputs_bytes);
    free(d);
}
