/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - see step.h.
 *
 * A step is laid out when it is submitted. Appends, and the rows of q, of parts that share a pass become
 * one list each, so that the planner sees them all at once and rows of different clients share work tiles:
 *
 *     pass of layer 3    rows      [ request 7: 2 | request 9: 1 | request 12: 1 ]    where q, o and lse of each lie
 *                        appends   [ request 7: 2 |              | request 12: 1 ]    where k and v of each lie
 *
 * Tensors stay where their requests have them; the backend reads and writes them there. */
#include "scheduler/step.h"

#include "config/clock.h"
#include "config/fault.h"
#include "config/log.h"
#include "config/numbers.h"
#include "scheduler/calibration.h"
#include "scheduler/poison.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES = 1024,           /* steps remembered for the percentiles of /stats */
    PASSES_PER_LAYER = 4,     /* room in a step */
    KEPT_MAX = 64,            /* requests of which slices have states */
    POISONED_TOGETHER = 1024, /* blocks, in a step before the first one */
    CORRECTED_US = 200,       /* steps estimated shorter say little about the machine's speed */
    PRODUCERS = STEP_OF_WORKLOADS + 1
};

#define NO_PART UINT32_MAX

const double step_time_bounds[STEP_TIMES] = {2.5e-5, 5e-5, 1e-4,   2.5e-4, 5e-4, 1e-3, 2.5e-3,
                                             5e-3,   1e-2, 2.5e-2, 5e-2,   0.1,  0.25, 1};
const double step_wait_bounds[STEP_WAITS] = {2.5e-5, 1e-4,   2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
                                             1e-2,   2.5e-2, 0.1,    0.5,  2.5,  10};

/* Planners for the layers of one window, a planner a plan of a step. */
struct window_planners {
    uint32_t window;
    struct planner *plans[STEP_PLANS], *order;
};

/* A part as the step keeps it. */
struct kept_part {
    struct step_part is;
    uint32_t next; /* of its pass; NO_PART: the last */
};

struct pass {
    uint32_t layer;
    enum attention_kernel kernel;
    enum dtype kv_dtype; /* of what is given to its appends */
    bool alone;          /* no other part shares it */
    enum step_producer producer;
    uint32_t first, last; /* parts */
    uint32_t rows, appends;
    const struct planner_query *planned; /* [rows] once it is laid out */
};

struct step {
    struct steps *of;
    unsigned slot;
    uint64_t number, ticket;
    struct pass *passes;     /* [passes_max] */
    struct kept_part *parts; /* [parts_max] */
    uint32_t pass_count, part_count, client_plans;
    uint32_t rows[PRODUCERS];
    uint64_t bytes[PRODUCERS];
    struct copy_list copies;
    uint32_t *table_rows; /* [limits.sequences] that take part */
    uint32_t table_row_count;
    bool streamed, continues;          /* what is being formed */
    bool looks;                        /* it only reads what the step before has left (step_looks) */
    bool has_workloads, awaits_client; /* awaits_client: it is on a stream of the caller's */
    void *stream;
    uint32_t parts_streamed; /* of the step, submitted one after the other */
    uint32_t rows_before;    /* table_row_count ahead of what is being formed */
    uint32_t loose_count;    /* tables of its own */
    struct kv_compare compares[STEP_COMPARES];
    struct kv_read reads[STEP_READS];
    struct merge_states merges[STEP_MERGES];
    uint32_t compare_count, read_count, merge_count;
    struct step_cost cost;
    struct cost_work operations; /* its compares, reads and merges */
    double cost_us;              /* estimated of its parts and operations, */
    double estimate_us;          /* and of its plans, once they are made */
    double forming_s;            /* when what is being formed was begun */
    struct step_log_entry entry; /* what is known of it for the log */
};

/* States that slices keep. */
struct kept {
    uint32_t first, count;
};

struct steps {
    const struct config *config;
    const struct geometry *g;
    struct attention *attention;
    struct roof roof;
    struct planner_costs costs;
    struct cost_model cost;
    uint32_t partials_max;      /* of a plan; the states of slices follow */
    struct kept kept[KEPT_MAX]; /* in order of first */
    uint32_t kept_count;
    struct block_tables *tables;
    struct window_planners *windows; /* [window_count] */
    uint32_t window_count;
    uint32_t rows_max, passes_max, parts_max, copies_max;

    struct step slots[STEPS_IN_FLIGHT];
    unsigned oldest, in_flight; /* slots[oldest], and those behind it */
    unsigned in_flight_max;
    struct poison *poison;          /* NULL: debug.poison is off */
    struct block_copy *with_poison; /* [copies_max + blocks] likewise: the copies of what is submitted */
    uint64_t number;                /* of the step being formed, or to be formed next */
    uint64_t submitted_number;      /* of the latest one that was submitted */

    /* of the step being formed */
    struct planner_query *row_room, *rows;   /* [rows_max] given out; as laid out */
    struct kv_append *append_room, *appends; /* [rows_max] likewise */
    uint32_t rows_given, appends_given;
    struct attention_row *tensors;    /* [rows_max] of the rows of clients, as laid out */
    struct attention_pass *submitted; /* [passes_max] */
    struct pass *ordered;             /* [passes_max] scratch */
    struct table_use *loose;          /* [STEPS_IN_FLIGHT * STEP_LOOSE_TABLES] what they hold */
    uint64_t loose_version;
    struct table_use *uses; /* [table rows] */
    uint64_t *used_in;      /* [table rows] the submission that named a row last */
    uint64_t *part_of;      /* [limits.sequences] the step in which a row took part last */
    uint64_t submissions;

    bool appended;            /* anything, ever */
    double slow_noted_s;      /* when a slow step was last logged */
    struct step_stats totals; /* steps, bytes_read, busy_s, rows_max */
    float step_us[SAMPLES], idle_us[SAMPLES];
    uint32_t step_rows_of[SAMPLES];
    uint64_t step_bytes_of[SAMPLES];
    struct step_log log;
};

/* ---- forming ------------------------------------------------------------------------------------- */

/* Of the latest step in flight. */
static struct step *latest(struct steps *x)
{
    return &x->slots[(x->oldest + x->in_flight - 1) % STEPS_IN_FLIGHT];
}

/* Whether the latest step in flight may have more: streamed, each layer's calls one after the other. */
static bool may_continue(struct steps *x)
{
    const struct step *s = latest(x);
    return x->in_flight && s->parts_streamed && s->parts_streamed < x->g->layers && !s->has_workloads &&
           attention_may_continue(x->attention);
}

struct step *step_begin(struct steps *x)
{
    bool continues = may_continue(x);
    if (x->in_flight == x->in_flight_max && !continues)
        return NULL;
    struct step *s = continues ? latest(x) : &x->slots[(x->oldest + x->in_flight) % STEPS_IN_FLIGHT];
    x->number = x->submitted_number + !continues;
    s->number = x->number;
    s->continues = continues;
    s->streamed = s->looks = false;
    s->pass_count = s->part_count = s->client_plans = 0;
    s->copies.count = 0;
    s->cost_us = 0;
    s->operations = (struct cost_work){0};
    s->compare_count = s->read_count = s->merge_count = 0;
    x->rows_given = x->appends_given = 0;
    s->forming_s = clock_s();
    if (!continues) {
        s->entry = (struct step_log_entry){
            .step = s->number, .begin_s = s->forming_s, .queue_us = NAN, .upload_us = NAN, .merge_us = NAN};
        s->table_row_count = s->loose_count = s->parts_streamed = 0;
        s->has_workloads = s->awaits_client = false;
        memset(s->rows, 0, sizeof s->rows);
        memset(s->bytes, 0, sizeof s->bytes);
    }
    s->rows_before = s->table_row_count;
    return s;
}

bool step_stream(struct step *s, void *stream)
{
    if (s->streamed && s->stream != stream)
        return false;
    s->streamed = true;
    s->stream = stream;
    s->awaits_client |= stream != attention_own_stream(s->of->attention);
    return true;
}

uint32_t step_stream_room(struct steps *x)
{
    uint32_t left = may_continue(x) ? x->g->layers - latest(x)->parts_streamed : 0;
    return left + (x->in_flight_max - x->in_flight) * x->g->layers;
}

void step_looks(struct step *s)
{
    s->looks = true;
}

void step_vacate(struct steps *x, uint32_t block, uint32_t first)
{
    if (x->poison)
        poison_add(block, first, x->g->block_size, x->poison);
}

/* The first of `n` buckets whose bound is no less than `value`; n: none. */
static unsigned find_bucket(double value, const double *bounds, unsigned n)
{
    unsigned i = 0;
    while (i < n && value > bounds[i])
        i++;
    return i;
}

void step_note_request(struct step *s, double waited_us)
{
    struct step_stats *totals = &s->of->totals;
    s->entry.queue_us = fmaxf(s->entry.queue_us, (float)waited_us); /* of a NAN and a number, the number */
    totals->waits[find_bucket(waited_us * 1e-6, step_wait_bounds, STEP_WAITS)]++;
    totals->waited_s += waited_us * 1e-6;
}

void step_note_owner(struct step *s, uint64_t key, uint32_t rows)
{
    step_log_own(&s->entry, key, rows);
}

uint64_t step_number(const struct steps *x)
{
    return x->number;
}

unsigned step_slot(const struct step *s)
{
    return s->slot;
}

struct planner_query *step_rows(struct step *s, uint32_t n)
{
    struct steps *x = s->of;
    if (n > x->rows_max - x->rows_given)
        return NULL;
    x->rows_given += n;
    return x->row_room + x->rows_given - n;
}

struct kv_append *step_appends(struct step *s, uint32_t n)
{
    struct steps *x = s->of;
    if (n > x->rows_max - x->appends_given)
        return NULL;
    x->appends_given += n;
    return x->append_room + x->appends_given - n;
}

uint32_t step_lists_left(const struct step *s)
{
    const struct steps *x = s->of;
    uint32_t given = x->rows_given > x->appends_given ? x->rows_given : x->appends_given;
    return x->rows_max - given;
}

/* Whether a part is a pass by itself. */
static bool is_alone(const struct step_part *part)
{
    return part->producer == STEP_OF_WORKLOADS || part->slice;
}

/* The pass that a part can share, or NULL. */
static struct pass *find_pass(const struct step *s, const struct step_part *part)
{
    for (uint32_t i = 0; !is_alone(part) && i < s->pass_count; i++) {
        struct pass *pass = &s->passes[i];
        if (!pass->alone && pass->layer == part->layer && pass->kernel == part->kernel &&
            (!part->append_count || !pass->appends || pass->kv_dtype == part->kv_dtype))
            return pass;
    }
    return NULL;
}

/* Whether a pass that has no queries yet, or a new one (NULL), will need a plan for those of a part. */
static bool needs_plan(const struct pass *pass, const struct step_part *part)
{
    return part->producer == STEP_OF_CLIENTS && part->row_count && !(pass && pass->rows);
}

bool step_fits(const struct step *s, const struct step_part *part, uint32_t n)
{
    const struct steps *x = s->of;
    const struct pass *pass = find_pass(s, part);
    uint32_t kept = part->producer == STEP_OF_CLIENTS ? x->g->layers : 0; /* for workloads, that come last */
    return n + kept <= x->parts_max - s->part_count && (pass || n + kept <= x->passes_max - s->pass_count) &&
           !(needs_plan(pass, part) && s->client_plans == STEP_CLIENT_PLANS);
}

void step_add(struct step *s, const struct step_part *part)
{
    struct pass *pass = find_pass(s, part);
    assert(step_fits(s, part, 1));
    s->client_plans += needs_plan(pass, part);
    s->has_workloads |= part->producer == STEP_OF_WORKLOADS;
    uint32_t at = s->part_count++;
    if (!pass) {
        pass = &s->passes[s->pass_count++];
        *pass = (struct pass){.layer = part->layer,
                              .kernel = part->kernel,
                              .alone = is_alone(part),
                              .producer = part->producer,
                              .first = at};
    } else {
        s->parts[pass->last].next = at;
    }
    pass->last = at;
    s->parts[at] = (struct kept_part){.is = *part, .next = NO_PART};
    if (part->append_count)
        pass->kv_dtype = part->kv_dtype;
    pass->rows += part->row_count;
    pass->appends += part->append_count;
    s->cost_us += part->cost_us;
    if (part->producer == STEP_OF_CLIENTS)
        s->rows[STEP_OF_CLIENTS] += part->row_count;
    else if (part->row_count > s->rows[STEP_OF_WORKLOADS]) /* layer after layer the same rows */
        s->rows[STEP_OF_WORKLOADS] = part->row_count;
}

double step_us(const struct step *s)
{
    const struct cost_work copies = {.copies = s->copies.count};
    return s->cost_us + cost_step_us(&s->of->cost, &copies);
}

double step_us_of(const struct steps *x, const struct cost_work *work)
{
    return cost_us(&x->cost, work);
}

static void add_operation(struct step *s, const struct cost_work *work)
{
    cost_add(&s->operations, work);
    s->cost_us += cost_us(&s->of->cost, work);
}

bool step_add_compare(struct step *s, const struct kv_compare *compare)
{
    const struct cost_work work = {.passes = 1, .appended = compare->count};
    if (s->compare_count == STEP_COMPARES)
        return false;
    s->compares[s->compare_count++] = *compare;
    add_operation(s, &work);
    return true;
}

bool step_add_read(struct step *s, const struct kv_read *read)
{
    const struct cost_work work = {.passes = 1, .appended = read->count};
    if (s->read_count == STEP_READS)
        return false;
    s->reads[s->read_count++] = *read;
    add_operation(s, &work);
    return true;
}

bool step_add_merge(struct step *s, const struct merge_states *merge)
{
    const struct cost_work work = {.passes = 1, .queries = (uint64_t)merge->rows * merge->states};
    if (s->merge_count == STEP_MERGES)
        return false;
    s->merges[s->merge_count++] = *merge;
    add_operation(s, &work);
    return true;
}

struct copy_list *step_copies(struct step *s)
{
    return &s->copies;
}

void step_take_part(struct step *s, uint32_t row)
{
    struct steps *x = s->of;
    block_tables_submit(x->tables, row, s->number);
    if (x->part_of[row] == s->number)
        return; /* what continues a step has mostly the same rows */
    x->part_of[row] = s->number;
    s->table_rows[s->table_row_count++] = row;
}

struct step_table step_set_table(struct step *s, const uint32_t *ids, uint32_t n)
{
    struct steps *x = s->of;
    uint32_t i = s->slot * STEP_LOOSE_TABLES + s->loose_count++, row = x->config->limits.sequences + i;
    memcpy(block_tables_loose(x->tables, i), ids, n * sizeof *ids);
    x->loose[i] = (struct table_use){row, n, ++x->loose_version};
    return (struct step_table){row, x->loose_version};
}

uint32_t step_tables_left(const struct step *s)
{
    return STEP_LOOSE_TABLES - s->loose_count;
}

uint32_t step_table_blocks(const struct steps *x)
{
    uint32_t stride;
    (void)block_tables_ids(x->tables, &stride);
    return stride;
}

bool step_is_empty(const struct step *s)
{
    return s->part_count == 0 && s->copies.count == 0 && s->table_row_count == s->rows_before &&
           s->merge_count == 0 && s->compare_count == 0 && s->read_count == 0;
}

uint32_t step_row_count(const struct step *s)
{
    return s->rows[STEP_OF_CLIENTS] + s->rows[STEP_OF_WORKLOADS];
}

/* ---- laying out ---------------------------------------------------------------------------------- */

/* Where q, o and lse of a part's rows lie. */
static void find_tensors(const struct steps *x, const struct step_part *part, struct attention_row *to)
{
    size_t q_bytes = geometry_q_row_bytes(x->g), heads = x->g->query_heads;
    for (uint32_t i = 0; i < part->row_count; i++) {
        size_t row = part->places ? part->places[i].query : i;
        to[i] = (struct attention_row){.q = (const uint8_t *)part->q + row * q_bytes,
                                       .o = part->o ? (uint8_t *)part->o + row * q_bytes : NULL,
                                       .lse = part->lse ? part->lse + row * heads : NULL,
                                       .content = part->contents ? part->contents[i] : 0};
    }
}

/* Lay out the pass of a workload, as it is. */
static void lay_out_alone(struct step *s, struct pass *pass, struct attention_pass *to)
{
    const struct step_part *part = &s->parts[pass->first].is;
    pass->planned = part->rows;
    to->appends = part->appends;
    to->append_count = part->append_count;
    to->q_source = part->q_source;
    to->o = part->o;
    to->lse = part->lse;
}

/* Make one list of what the parts of clients have: appends and rows go behind those of the passes before. */
static void join_parts(struct step *s, struct pass *pass, struct attention_pass *to)
{
    struct steps *x = s->of;
    to->source_dtype = pass->kv_dtype;
    to->appends = x->appends + x->appends_given;
    to->append_count = pass->appends;
    to->rows = x->tensors + x->rows_given;
    pass->planned = x->rows + x->rows_given;
    for (uint32_t i = pass->first; i != NO_PART; i = s->parts[i].next) {
        const struct step_part *part = &s->parts[i].is;
        if (part->append_count)
            memcpy(x->appends + x->appends_given, part->appends, part->append_count * sizeof *part->appends);
        if (part->row_count)
            memcpy(x->rows + x->rows_given, part->rows, part->row_count * sizeof *part->rows);
        find_tensors(x, part, x->tensors + x->rows_given);
        x->appends_given += part->append_count;
        x->rows_given += part->row_count;
    }
}

/* The planners of a layer. */
static const struct window_planners *planners_of(const struct steps *x, uint32_t layer)
{
    uint32_t i = 0;
    while (x->windows[i].window != x->g->window[layer])
        i++;
    return &x->windows[i];
}

/* A plan of these rows for the layers with the window of `layer`, of all their keys or of a slice. */
static const struct plan *make_plan(struct steps *x, unsigned plan, uint32_t layer,
                                    const struct planner_query *rows, uint32_t n,
                                    const struct plan_slice *slice)
{
    uint32_t stride;
    const uint32_t *ids = block_tables_ids(x->tables, &stride);
    struct planner *p = planners_of(x, layer)->plans[plan];
    return slice ? planner_make_slice(p, rows, n, ids, stride, slice) : planner_make(p, rows, n, ids, stride);
}

void step_order(struct steps *x, uint32_t layer, const struct planner_query *rows, uint32_t n,
                struct planner_place *places)
{
    uint32_t stride;
    const uint32_t *ids = block_tables_ids(x->tables, &stride);
    planner_order(planners_of(x, layer)->order, rows, n, ids, stride, places);
}

uint32_t step_rows_together(const struct steps *x)
{
    return planner_queries_of_work_tile(geometry_group(x->g));
}

bool step_takes_segments(const struct steps *x)
{
    return attention_info(x->attention)->paged_v1_tokens == 0; /* the vllm layout's kernels take whole rows */
}

/* ---- states of slices ---------------------------------------------------------------------------- */

/* The first gap of at least `n` states, as an index of kept[]; *first: where it begins. */
static uint32_t find_gap(const struct steps *x, uint32_t n, uint32_t *first)
{
    *first = 0;
    for (uint32_t i = 0; i < x->kept_count; i++) {
        if (x->kept[i].first - *first >= n)
            return i;
        *first = x->kept[i].first + x->kept[i].count;
    }
    return x->kept_count;
}

uint32_t step_keep_states(struct steps *x, uint32_t n)
{
    uint32_t first, at = find_gap(x, n, &first);
    if (n == 0 || x->kept_count == KEPT_MAX || n > STEP_SLICE_STATES - first)
        return STEP_NO_STATES;
    memmove(&x->kept[at + 1], &x->kept[at], (x->kept_count++ - at) * sizeof *x->kept);
    x->kept[at] = (struct kept){first, n};
    return x->partials_max + first;
}

void step_drop_states(struct steps *x, uint32_t first)
{
    uint32_t at = 0;
    while (x->partials_max + x->kept[at].first != first)
        at++;
    memmove(&x->kept[at], &x->kept[at + 1], (--x->kept_count - at) * sizeof *x->kept);
}

uint32_t step_states_free(const struct steps *x)
{
    uint32_t most = 0, first = 0;
    if (x->kept_count == KEPT_MAX)
        return 0;
    for (uint32_t i = 0; i <= x->kept_count; i++) {
        uint32_t end = i < x->kept_count ? x->kept[i].first : STEP_SLICE_STATES;
        most = end - first > most ? end - first : most;
        first = i < x->kept_count ? end + x->kept[i].count : end;
    }
    return most;
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Plan the queries of every pass. Those of workloads are the same rows at every layer, so layers of one
 * window have the same plan. */
static void make_plans(struct step *s, struct attention_pass *passes)
{
    struct steps *x = s->of;
    unsigned clients = 0;
    for (uint32_t i = 0; i < s->pass_count; i++) {
        const struct pass *pass = &s->passes[i];
        const struct step_part *part = &s->parts[pass->first].is;
        if (pass->rows == 0)
            continue;
        const struct planner_query *rows = pass->planned;
        if (pass->producer == STEP_OF_CLIENTS) {
            passes[i].plan = make_plan(x, clients++, pass->layer, rows, pass->rows, part->slice);
            continue;
        }
        for (uint32_t other = 0; other < i && !passes[i].plan; other++) {
            if (s->passes[other].producer == STEP_OF_WORKLOADS &&
                x->g->window[s->passes[other].layer] == x->g->window[pass->layer])
                passes[i].plan = passes[other].plan;
        }
        if (!passes[i].plan)
            passes[i].plan = make_plan(x, STEP_CLIENT_PLANS, pass->layer, rows, pass->rows, part->slice);
    }
}

/* Put the passes of workloads first, which mostly come again. Returns their number. */
static uint32_t order_passes(struct step *s)
{
    struct pass *ordered = s->of->ordered;
    uint32_t n = 0, steady = 0;
    for (int clients = 0; clients < 2; clients++) {
        for (uint32_t i = 0; i < s->pass_count; i++) {
            if ((s->passes[i].producer == STEP_OF_CLIENTS) == clients)
                ordered[n++] = s->passes[i];
        }
        steady = clients ? steady : n;
    }
    memcpy(s->passes, ordered, n * sizeof *ordered);
    return steady;
}

static void lay_out(struct step *s, struct attention_pass *passes)
{
    s->of->appends_given = s->of->rows_given = 0; /* given out; from now on laid out */
    for (uint32_t i = 0; i < s->pass_count; i++) {
        struct pass *pass = &s->passes[i];
        passes[i] = (struct attention_pass){.layer = pass->layer, .kernel = pass->kernel};
        if (pass->producer == STEP_OF_WORKLOADS)
            lay_out_alone(s, pass, &passes[i]);
        else
            join_parts(s, pass, &passes[i]);
    }
    make_plans(s, passes);
}

/* ---- submitting ---------------------------------------------------------------------------------- */

/* What a pass does, by its plan. */
static struct cost_work work_of(const struct steps *x, const struct attention_pass *pass)
{
    struct cost_work work = {.passes = 1, .queries = pass->plan ? pass->plan->query_count : 0};
    for (uint32_t i = 0; pass->plan && i < pass->plan->work_tile_count; i++) {
        uint64_t tokens =
            plan_work_tile_tokens(pass->plan, &pass->plan->work_tiles[i], x->g->window[pass->layer]);
        work.tokens += tokens;
        work.weighed += tokens * pass->plan->work_tiles[i].queries;
    }
    for (uint32_t i = 0; i < pass->append_count; i++)
        *(pass->appends[i].k ? &work.appended : &work.generated) += pass->appends[i].count;
    if (!pass->rows)
        work.generated += work.queries;
    return work;
}

/* Tokens that a pass appends. */
static uint32_t tokens_of(const struct attention_pass *pass)
{
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < pass->append_count; i++)
        tokens += pass->appends[i].count;
    return tokens;
}

/* Bytes that the plans read, by producer, and how long it all takes. Passes of one plan read the same. */
static void count_work(struct step *s, const struct attention_pass *passes)
{
    struct cost_work work = {0}, sum = s->operations;
    uint32_t tokens = 0, of_workloads = 0;
    sum.copies = s->copies.count;
    for (uint32_t i = 0; i < s->pass_count; i++) {
        if (i == 0 || passes[i].plan != passes[i - 1].plan || passes[i].appends != passes[i - 1].appends) {
            work = work_of(s->of, &passes[i]);
            tokens = tokens_of(&passes[i]);
        }
        if (s->passes[i].producer == STEP_OF_CLIENTS)
            s->entry.appends += tokens;
        else
            of_workloads = larger(of_workloads, tokens);
        s->bytes[s->passes[i].producer] += work.tokens * geometry_token_bytes(s->of->g);
        cost_add(&sum, &work);
    }
    s->entry.appends += of_workloads;
    s->estimate_us = cost_step_us(&s->of->cost, &sum);
}

/* The copies of what is formed, by kind. */
static void count_copies(struct step *s)
{
    for (uint32_t i = 0; i < s->copies.count; i++) {
        enum block_copy_kind kind = s->copies.list[i].kind;
        s->entry.copies += kind == COPY_BLOCK;
        s->entry.swaps_out += kind == COPY_SWAP_OUT;
        s->entry.swaps_in += kind == COPY_SWAP_IN;
    }
}

/* What the parts of submitting it took; of a step that goes on, all of them together. */
static void note_times(struct step *s, double laid_out_s, double planned_s)
{
    double submitted_s = clock_s();
    struct step_log_entry *e = &s->entry;
    e->form_us += (float)((laid_out_s - s->forming_s) * 1e6);
    e->plan_us += (float)((planned_s - laid_out_s) * 1e6);
    e->submit_us += (float)((submitted_s - planned_s) * 1e6);
    if (attention_info(s->of->attention)->on_device)
        e->upload_us = e->submit_us;
}

/* Name a row of the tables, once a step. */
static uint32_t add_use(struct steps *x, uint32_t row, uint32_t n)
{
    if (x->used_in[row] == x->submissions)
        return n;
    x->used_in[row] = x->submissions;
    if (row >= x->config->limits.sequences) {
        x->uses[n] = x->loose[row - x->config->limits.sequences];
        return n + 1;
    }
    x->uses[n] = (struct table_use){row, block_tables_view(x->tables, row).entries,
                                    block_tables_version(x->tables, row)};
    return n + 1;
}

/* The rows that compares, reads and passes name; layers mostly have the same ones as the layer before. */
static uint32_t find_uses(struct step *s, const struct attention_pass *passes)
{
    struct steps *x = s->of;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->compare_count; i++)
        n = add_use(x, s->compares[i].table, n);
    for (uint32_t i = 0; i < s->read_count; i++)
        n = add_use(x, s->reads[i].table, n);
    for (uint32_t p = 0; p < s->pass_count; p++) {
        const struct attention_pass *pass = &passes[p];
        bool same_plan = p > 0 && pass->plan == passes[p - 1].plan;
        bool same_appends = p > 0 && pass->appends == passes[p - 1].appends &&
                            pass->append_count == passes[p - 1].append_count;
        for (uint32_t i = 0; pass->plan && !same_plan && i < pass->plan->query_count; i++)
            n = add_use(x, pass->plan->queries[i].table, n);
        for (uint32_t i = 0; !same_appends && i < pass->append_count; i++)
            n = add_use(x, pass->appends[i].table, n);
    }
    return n;
}

/* The copies, behind those by which unwritten slots become NaN. */
static const struct block_copy *poisoned(struct step *s, uint32_t *count)
{
    struct steps *x = s->of;
    if (!x->poison || s->looks)
        return s->copies.list;
    *count = poison_take(x->poison, s->copies.list, *count, x->with_poison);
    return x->with_poison;
}

void step_submit(struct step *s)
{
    struct steps *x = s->of;
    uint32_t copies = FAULTY(FAULT_COPY_SKIPPED) ? 0 : s->copies.count;
    assert(s->number == x->number && copies <= x->copies_max);
    assert(s->continues ? s == latest(x) : x->in_flight < x->in_flight_max);
    x->submissions++;
    double laid_out_s = clock_s();
    uint32_t steady = order_passes(s);
    lay_out(s, x->submitted);
    count_work(s, x->submitted);
    for (uint32_t i = 0; i < s->pass_count; i++)
        x->appended |= x->submitted[i].append_count > 0;
    struct attention_step step = {.uses = x->uses,
                                  .use_count = find_uses(s, x->submitted),
                                  .compares = s->compares,
                                  .compare_count = s->compare_count,
                                  .reads = s->reads,
                                  .read_count = s->read_count,
                                  .merges = s->merges,
                                  .merge_count = s->merge_count,
                                  .passes = x->submitted,
                                  .pass_count = s->pass_count,
                                  .steady = steady,
                                  .streamed = s->streamed,
                                  .stream = s->stream,
                                  .continues = s->continues};
    step.tables = block_tables_ids(x->tables, &step.stride);
    step.copies = poisoned(s, &copies);
    step.copy_count = copies;
    count_copies(s);
    double planned_s = clock_s();
    s->ticket = attention_submit(x->attention, &step);
    note_times(s, laid_out_s, planned_s);
    x->in_flight += !s->continues;
    s->parts_streamed += s->streamed;
    x->submitted_number = s->number;
    x->number = s->number + 1;
}

bool step_skip(struct step *s)
{
    struct steps *x = s->of;
    assert(step_is_empty(s));
    x->number = x->submitted_number + 1;
    if (x->in_flight || !block_tables_awaits_step(x->tables))
        return false;
    block_tables_retire_step(x->tables, x->number, NULL, 0);
    x->submitted_number = x->number++;
    return true;
}

/* ---- retiring ------------------------------------------------------------------------------------ */

unsigned steps_in_flight(const struct steps *x)
{
    return x->in_flight;
}

double steps_left_s(const struct steps *x, double now_s)
{
    double end_s = 0; /* each begins when the one before it ends */
    for (unsigned i = 0; i < x->in_flight; i++) {
        const struct step *s = &x->slots[(x->oldest + i) % STEPS_IN_FLIGHT];
        end_s = fmax(end_s, s->entry.begin_s) + s->estimate_us * 1e-6;
    }
    return fmax(end_s - now_s, 0);
}

bool steps_await_client(const struct steps *x)
{
    return x->in_flight && x->slots[x->oldest].awaits_client;
}

struct step *steps_poll(struct steps *x, bool but_latest)
{
    struct step *s = &x->slots[x->oldest];
    if (!x->in_flight || (but_latest && s == latest(x) && may_continue(x)))
        return NULL;
    return attention_poll(x->attention, s->ticket) ? s : NULL;
}

/* One line for a step that took long. */
static void note_slow(struct steps *x, const struct step *s)
{
    const struct step_cost cost = s->cost;
    double now = clock_s(), limit = x->config->slow_step_ms * 1e-3;
    if (limit == 0 || cost.seconds < limit || now - x->slow_noted_s < 1)
        return;
    x->slow_noted_s = now;
    log_event(LOG_WARNING, "slow_step",
              LOG_NUMBERS({"step", (double)s->number}, {"ms", cost.seconds * 1e3},
                          {"rows", step_row_count(s)}, {"sequences", s->table_row_count},
                          {"bytes", (double)cost.bytes}),
              "slow step %llu: %.0f ms for %u query row%s of %u sequence%s, %.1f MB of K and V read at %.1f "
              "GB/s (roof %.1f)",
              (unsigned long long)s->number, cost.seconds * 1e3, step_row_count(s), plural(step_row_count(s)),
              s->table_row_count, plural(s->table_row_count), (double)cost.bytes * 1e-6,
              (double)cost.bytes / cost.seconds * 1e-9, x->roof.report.gb_per_s);
}

static void note_figures(struct steps *x, const struct step *s, double idle_s)
{
    uint32_t at = (uint32_t)(x->totals.steps++ % SAMPLES), rows = step_row_count(s);
    x->totals.times[find_bucket(s->cost.seconds, step_time_bounds, STEP_TIMES)]++;
    x->idle_us[at] = (float)(idle_s * 1e6);
    x->step_us[at] = (float)(s->cost.seconds * 1e6);
    x->step_rows_of[at] = rows;
    x->step_bytes_of[at] = s->cost.bytes;
    x->totals.rows_max = rows > x->totals.rows_max ? rows : x->totals.rows_max;
    x->totals.busy_s += s->cost.seconds;
    x->totals.bytes_read += s->cost.bytes;
}

/* Keep what the device says of the passes; the sum of their merges, NAN if it does not say all. */
static float note_passes(struct steps *x, const struct step *s)
{
    float merge_us = 0;
    if (!x->log.passes)
        return NAN;
    struct step_log_passes *to = &x->log.passes[s->number % STEP_LOG_STAMPED];
    to->step = s->number;
    to->count = attention_passes(x->attention, s->ticket, to->passes);
    for (uint32_t i = 0; i < to->count; i++)
        merge_us += to->passes[i].merge_us;
    return to->count == 0 || to->count == ATTENTION_PASSES_STAMPED ? NAN : merge_us;
}

static void log_step(struct steps *x, struct step *s, double idle_s)
{
    struct step_log_entry *e = &s->entry;
    bool timed = !s->parts_streamed; /* what a caller's stream does meanwhile is not the step's */
    e->end_s = clock_s();
    e->compute_us = timed ? (float)(s->cost.seconds * 1e6) : NAN;
    e->idle_us = timed ? (float)(idle_s * 1e6) : NAN;
    e->merge_us = note_passes(x, s);
    e->rows_clients = s->rows[STEP_OF_CLIENTS];
    e->rows_workloads = s->rows[STEP_OF_WORKLOADS];
    e->sequences = s->table_row_count;
    e->kv_bytes = s->cost.bytes;
    step_log_add(&x->log, e);
}

void step_retire(struct step *s)
{
    struct steps *x = s->of;
    assert(x->in_flight && s == &x->slots[x->oldest]);
    struct attention_times times = attention_times(x->attention, s->ticket);
    s->cost = (struct step_cost){times.busy_s, s->bytes[STEP_OF_CLIENTS] + s->bytes[STEP_OF_WORKLOADS]};
    if (s->estimate_us >= CORRECTED_US && !s->parts_streamed)
        cost_correct(&x->cost, s->estimate_us, s->cost.seconds * 1e6);
    note_slow(x, s);
    block_tables_retire_step(x->tables, s->number, s->table_rows, s->table_row_count);
    note_figures(x, s, times.idle_s);
    log_step(x, s, times.idle_s);
    x->oldest = (x->oldest + 1) % STEPS_IN_FLIGHT;
    x->in_flight--;
}

struct step_cost step_cost(const struct step *s)
{
    return s->cost;
}

struct step_figures step_figures(const struct step *s)
{
    return (struct step_figures){s->number, step_row_count(s), s->table_row_count};
}

const uint32_t *step_table_rows(const struct step *s, uint32_t *count)
{
    *count = s->table_row_count;
    return s->table_rows;
}

const struct block_copy *step_copied(const struct step *s, uint32_t *count)
{
    *count = s->copies.count;
    return s->copies.list;
}

const struct kv_compare *step_compares(const struct step *s, uint32_t *count)
{
    *count = s->compare_count;
    return s->compares;
}

void step_rows_of(const struct step *s, uint32_t rows[2])
{
    rows[STEP_OF_CLIENTS] = s->rows[STEP_OF_CLIENTS];
    rows[STEP_OF_WORKLOADS] = s->rows[STEP_OF_WORKLOADS];
}

struct attention_times step_times(const struct step *s)
{
    return attention_times(s->of->attention, s->ticket);
}

uint64_t step_bytes(const struct step *s, enum step_producer producer)
{
    return s->bytes[producer];
}

/* ---- looking ------------------------------------------------------------------------------------- */

/* The value that would be at `k` if these were in order; they change places. Sorting 1 024 of them takes 25
 * times as long. */
static double select_value(float *values, uint32_t n, uint32_t k)
{
    for (uint32_t first = 0, end = n;;) { /* it is one of these */
        float middle = values[first + (end - first) / 2];
        uint32_t equal = first, larger = end; /* where such values begin */
        for (uint32_t i = first; i < larger;) {
            float value = values[i];
            uint32_t to = value < middle ? equal++ : value > middle ? --larger : i;
            values[i] = values[to];
            values[to] = value;
            i += value <= middle;
        }
        if (k >= equal && k < larger)
            return (double)middle;
        first = k < equal ? first : larger;
        end = k < equal ? equal : end;
    }
}

struct step_stats step_stats(const struct steps *x)
{
    struct step_stats stats = x->totals;
    stats.graphs = attention_graphs(x->attention);
    uint32_t n = stats.steps < SAMPLES ? (uint32_t)stats.steps : SAMPLES;
    float times[SAMPLES], idle[SAMPLES], rows[SAMPLES];
    if (n == 0)
        return stats;
    for (uint32_t i = 0; i < n; i++) {
        stats.latest.seconds += (double)x->step_us[i] * 1e-6;
        stats.latest.bytes += x->step_bytes_of[i];
        rows[i] = (float)x->step_rows_of[i]; /* exact: below 2^24 */
    }
    memcpy(times, x->step_us, n * sizeof *times);
    memcpy(idle, x->idle_us, n * sizeof *idle);
    stats.idle_us_p50 = select_value(idle, n, n / 2);
    stats.rows_p50 = (uint32_t)select_value(rows, n, n / 2);
    stats.step_us_p50 = select_value(times, n, n / 2);
    stats.step_us_p99 = select_value(times, n, n * 99 / 100);
    return stats;
}

const struct step_log *step_log(const struct steps *x)
{
    return &x->log;
}

struct block_tables *step_tables(const struct steps *x)
{
    return x->tables;
}

const struct attention_info *step_backend(const struct steps *x)
{
    return attention_info(x->attention);
}

struct attention *step_attention(const struct steps *x)
{
    return x->attention;
}

struct roof_report step_roof(struct steps *x)
{
    return roof_report(&x->roof);
}

bool step_roof_part(struct steps *x, const void *who, double now_s)
{
    return roof_part(&x->roof, x->attention, who, now_s);
}

bool step_roof_turn(struct steps *x, bool computes, double now_s)
{
    return roof_turn(&x->roof, x->attention, computes, now_s);
}

double step_roof_idle_s(const struct steps *x, double now_s)
{
    return roof_idle_s(&x->roof, now_s);
}

struct step_measures step_measures(const struct steps *x)
{
    return (struct step_measures){x->cost, x->costs};
}

double step_grouping_us(const struct steps *x)
{
    return x->costs.grouping_us;
}

const struct poison *step_poison(const struct steps *x)
{
    return x->poison;
}

const char *step_failure(const struct steps *x)
{
    return attention_failure(x->attention);
}

void step_fail(struct steps *x, const char *why)
{
    attention_fail(x->attention, "%s", why);
}

uint64_t step_call(const struct steps *x)
{
    return attention_call(x->attention);
}

enum attention_verdict step_self_test(struct steps *x)
{
    return attention_self_test(x->attention);
}

bool step_has_appended(const struct steps *x)
{
    return x->appended;
}

void *step_host_memory(struct steps *x, size_t bytes)
{
    return attention_host_memory(x->attention, bytes);
}

void step_free_host_memory(struct steps *x, void *memory, size_t bytes)
{
    attention_free_host_memory(x->attention, memory, bytes);
}

/* ---- create and destroy -------------------------------------------------------------------------- */

static uint32_t table_rows(const struct config *c)
{
    return c->limits.sequences + STEPS_IN_FLIGHT * STEP_LOOSE_TABLES;
}

static int open_attention(struct steps *x, const struct steps_options *o, char error[ATTENTION_ERROR_BYTES])
{
    const struct config *c = x->config;
    const struct attention_options options = {
        .backend = c->backend,
        .isa = c->isa,
        .threads = c->threads,
        .device = c->device,
        .kernel = (enum attention_kernel)c->kernel,
        .l2_prefetch = c->l2_prefetch != 0,
        .pass_stamps = c->pass_stamps != 0,
        .cache = c->cache,
        .step_timeout_s = c->step_timeout_s,
        .geometry = &c->geometry,
        .constants = o->constants,
        .blocks = (uint32_t)c->pool_blocks,
        .pool_key = config_pool_key(c),
        .host_blocks = (uint32_t)c->host_blocks,
        .rows_max = c->step_rows_max,
        .partials_max = x->partials_max + STEP_SLICE_STATES,
        .table_rows = table_rows(c),
        .table_stride = config_sequence_blocks(c),
        .progress = o->progress,
        .cookie = o->cookie,
    };
    int rc = o->open_backend(&options, &x->attention, error);
    if (rc != 0)
        return rc;
    const struct attention_roof roof = attention_measure_roof(x->attention);
    roof_note(&x->roof, &roof, o->now_s);
    const struct calibration calibration = {.geometry = &c->geometry,
                                            .blocks = options.blocks,
                                            .rows_max = options.rows_max,
                                            .partials_max = x->partials_max,
                                            .table_rows = options.table_rows,
                                            .table_stride = options.table_stride,
                                            .read_gb_per_s = roof.best};
    if (o->measures) {
        x->cost = o->measures->cost;
        x->costs = o->measures->costs;
    } else {
        x->cost = (struct cost_model){calibrate_rates(&calibration, x->attention), 1};
        x->costs = calibrate(&calibration, x->attention);
    }
    const char *failure = attention_failure(x->attention);
    if (failure)
        snprintf(error, ATTENTION_ERROR_BYTES, "%s", failure);
    return failure ? ATTND_DEVICE : 0;
}

static int make_planners(struct steps *x)
{
    const struct geometry *g = x->g;
    x->windows = calloc(g->layers, sizeof *x->windows);
    for (uint32_t layer = 0; x->windows && layer < g->layers; layer++) {
        uint32_t i = 0;
        while (i < x->window_count && x->windows[i].window != g->window[layer])
            i++;
        if (i < x->window_count)
            continue;
        x->windows[x->window_count++].window = g->window[layer];
        struct planner_options options = {.queries_max = x->config->step_rows_max,
                                          .partials_max = x->partials_max,
                                          .slice_states = STEP_SLICE_STATES,
                                          .tasks = attention_info(x->attention)->tasks,
                                          .kv_heads = g->kv_heads,
                                          .group = geometry_group(g),
                                          .block_size = g->block_size,
                                          .window = g->window[layer],
                                          .first_loose_table = x->config->limits.sequences,
                                          .costs = x->costs,
                                          .caps = attention_info(x->attention)->tile_caps};
        for (int plan = 0; plan < STEP_PLANS; plan++) {
            if (planner_create(&options, &x->windows[i].plans[plan]) != 0)
                return ATTND_NO_MEMORY;
        }
        if (options.queries_max < x->config->limits.rows_per_call)
            options.queries_max = x->config->limits.rows_per_call;
        options.partials_max = options.slice_states = 0;
        if (planner_create(&options, &x->windows[i].order) != 0)
            return ATTND_NO_MEMORY;
    }
    return x->windows ? 0 : ATTND_NO_MEMORY;
}

static int make_tables(struct steps *x)
{
    const struct config *c = x->config;
    const struct block_tables_options options = {
        .blocks = (uint32_t)c->pool_blocks,
        .block_size = c->geometry.block_size,
        .layers = c->geometry.layers,
        .rows = c->limits.sequences,
        .loose_rows = STEPS_IN_FLIGHT * STEP_LOOSE_TABLES,
        .host_blocks = (uint32_t)(c->file_blocks ? c->file_blocks : c->host_blocks),
        .row_blocks = config_sequence_blocks(c),
        .epochs = c->history_epochs,
    };
    return block_tables_create(&options, &x->tables);
}

/* What a step in flight keeps. */
static bool make_slot(struct steps *x, unsigned slot)
{
    struct step *s = &x->slots[slot];
    s->of = x;
    s->slot = slot;
    s->passes = calloc(x->passes_max, sizeof *s->passes);
    s->parts = calloc(x->parts_max, sizeof *s->parts);
    s->copies.list = calloc(x->copies_max, sizeof *s->copies.list);
    s->table_rows = calloc(x->config->limits.sequences, sizeof *s->table_rows);
    return s->passes && s->parts && s->copies.list && s->table_rows;
}

static void free_slot(struct step *s)
{
    free(s->passes);
    free(s->parts);
    free(s->copies.list);
    free(s->table_rows);
}

static bool make_lists(struct steps *x)
{
    uint32_t tables = table_rows(x->config), rows = x->rows_max;
    bool made = true;
    x->row_room = calloc(rows, sizeof *x->row_room);
    x->rows = calloc(rows, sizeof *x->rows);
    x->append_room = calloc(rows, sizeof *x->append_room);
    x->appends = calloc(rows, sizeof *x->appends);
    x->tensors = calloc(rows, sizeof *x->tensors);
    x->submitted = calloc(x->passes_max, sizeof *x->submitted);
    x->ordered = calloc(x->passes_max, sizeof *x->ordered);
    x->loose = calloc((size_t)STEPS_IN_FLIGHT * STEP_LOOSE_TABLES, sizeof *x->loose);
    x->uses = calloc(tables, sizeof *x->uses);
    x->used_in = calloc(tables, sizeof *x->used_in);
    x->part_of = calloc(tables, sizeof *x->part_of);
    for (unsigned slot = 0; slot < STEPS_IN_FLIGHT; slot++)
        made &= make_slot(x, slot);
    return made && x->ordered && x->row_room && x->rows && x->append_room && x->appends && x->tensors &&
           x->submitted && x->loose && x->uses && x->used_in && x->part_of;
}

/* Where debug.poison is on: all of the pool is unwritten, whatever was tried in it before. One step at a time, so that what a
 * step has read can be looked at before the next one writes. */
static int make_poison(struct steps *x)
{
    uint32_t blocks = (uint32_t)x->config->pool_blocks;
    x->in_flight_max = x->config->poison ? 1 : STEPS_IN_FLIGHT;
    if (!x->config->poison)
        return 0;
    x->with_poison = calloc((size_t)x->copies_max + blocks, sizeof *x->with_poison);
    if (!x->with_poison || poison_create(blocks, x->g->block_size, &x->poison) != 0)
        return ATTND_NO_MEMORY;
    block_tables_set_vacated(x->tables, poison_add, x->poison);
    log_line(LOG_WARNING, "debug.poison is on: unwritten slots are NaN, outputs are looked at, and one step "
                          "runs at a time: slow");
    struct attention_step step = {.copies = x->with_poison};
    step.tables = block_tables_ids(x->tables, &step.stride);
    for (uint32_t n = poison_take(x->poison, NULL, 0, x->with_poison); n > 0; n -= step.copy_count) {
        step.copy_count = smaller(n, POISONED_TOGETHER);
        attention_await(x->attention, attention_submit(x->attention, &step));
        step.copies += step.copy_count;
    }
    return 0;
}

int steps_create(const struct steps_options *options, struct steps **result,
                 char error[ATTENTION_ERROR_BYTES])
{
    struct steps *x = calloc(1, sizeof *x);
    const struct config *c = options->config;
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!x)
        return ATTND_NO_MEMORY;
    roof_init(&x->roof);
    x->config = c;
    x->g = &c->geometry;
    x->number = 1;
    x->rows_max = c->step_rows_max;
    x->partials_max = larger(
        options->partials_max,
        planner_partials_least(x->rows_max, (uint64_t)config_sequence_blocks(c) * c->geometry.block_size));
    x->passes_max = PASSES_PER_LAYER * c->geometry.layers + STEP_CLIENT_PLANS;
    x->parts_max = x->rows_max + x->passes_max;
    x->copies_max = x->rows_max + (uint32_t)c->pool_blocks + c->limits.sequences;
    int rc = open_attention(x, options, error);
    if (rc == 0 && c->pass_stamps && attention_info(x->attention)->on_device) {
        x->log.passes = calloc(STEP_LOG_STAMPED, sizeof *x->log.passes);
        rc = x->log.passes ? 0 : ATTND_NO_MEMORY;
    }
    if (rc == 0 && (!make_lists(x) || make_tables(x) != 0 || make_planners(x) || make_poison(x)))
        rc = ATTND_NO_MEMORY;
    if (rc != 0) {
        steps_destroy(x);
        return rc;
    }
    *result = x;
    return 0;
}

void steps_destroy(struct steps *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; i < x->window_count; i++) {
        for (int plan = 0; plan < STEP_PLANS; plan++)
            planner_destroy(x->windows[i].plans[plan]);
        planner_destroy(x->windows[i].order);
    }
    for (unsigned slot = 0; slot < STEPS_IN_FLIGHT; slot++)
        free_slot(&x->slots[slot]);
    void *const lists[] = {x->windows, x->ordered,   x->tensors, x->row_room, x->rows,  x->append_room,
                           x->appends, x->submitted, x->uses,    x->used_in,  x->loose, x->part_of};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]);
    block_tables_destroy(x->tables);
    poison_destroy(x->poison);
    free(x->with_poison);
    if (x->attention)
        attention_close(x->attention);
    roof_deinit(&x->roof);
    free(x->log.passes);
    free(x);
}
