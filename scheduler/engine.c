/* engine.c - the engine thread.
 *
 *   loop thread                          engine thread
 *   acquire -> submit ==== ring ====>    run at once: create, fork, truncate, delete, questions
 *                                        queue: append, attend -> steps -> complete
 *   take    <- notify <=== ring =====
 *
 * Between two looks at the ring the engine forms steps from the queue until it is empty. A step takes
 * one layer: that of the oldest call, with every later call of the same layer whose sequences are not
 * in the step yet and which still fits. Calls on one sequence keep their order: a call that has to wait
 * makes the later ones on its sequences wait, and before anything that changes a sequence's blocks the
 * queue is run empty.
 *
 * The step's q, k and v are gathered into staging buffers, row after row, so that rows of different
 * clients share items. */
#include "scheduler/engine.h"

#include "allocator/prefix_index.h"
#include "config/log.h"
#include "scheduler/planner.h"
#include "scheduler/ring.h"
#include "scheduler/sequences.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SAMPLES = 1024, /* of step times and sizes, for the percentiles of /stats */
    ALIGNMENT = 64
};

/* Plans for the layers of one window. */
struct window_planner {
    uint32_t window;
    struct planner *planner;
};

/* What the step being formed will run. */
struct step_work {
    uint64_t number;
    uint32_t layer;
    uint32_t rows, tokens, append_count, copy_count, sequence_count;
    struct call *first, *last;        /* its calls */
    struct planner_row *planner_rows; /* [rows_max] */
    struct kv_append *appends;        /* [rows_max] */
    struct block_copy *copies;        /* [rows_max] */
    struct kv_copy *kv_copies;        /* [rows_max] */
    struct reserve_request *requests; /* [rows_max] of one call */
    uint32_t *sequences;              /* [rows_max] rows of the block tables that take part */
    uint8_t *q, *k, *v, *o;           /* [rows_max][heads][head_dim] */
    float *lse;                       /* [rows_max][query_heads] */
};

struct engine {
    struct engine_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct attention *attention;
    double roof_gb_per_s;
    struct block_tables *tables;
    struct sequences *sequences;
    struct window_planner *planners; /* [planner_count] */
    uint32_t planner_count;
    struct call *ready_first, *ready_last;
    struct step_work work;

    struct call *calls; /* [limits.calls] */
    uint8_t *arenas;
    struct call **free_calls; /* the loop's stack */
    uint32_t free_count;
    struct ring to_engine, to_loop;
    int wake; /* eventfd: something is in to_engine */
    pthread_t thread;
    bool started;
    _Atomic bool stop;
    _Atomic uint64_t busy_since_us; /* 0: waiting for calls */

    uint64_t call_number; /* counts calls that were resolved */
    uint64_t forming; /* counts attempts to form a step: one in which every call fails has no number */
    uint64_t epoch, steps, bytes_read;
    double busy_s;
    float step_us[SAMPLES];
    uint32_t step_rows[SAMPLES], rows_max_seen;
};

/* ---- small helpers ------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void *call_alloc(struct call *call, size_t n, size_t size)
{
    size_t at = (call->arena_used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size && n > (CALL_ARENA_BYTES - at) / size)
        return NULL;
    call->arena_used = at + n * size;
    return call->arena + at;
}

static int __attribute__((format(printf, 3, 4)))
fail(struct call *call, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(call->detail, sizeof call->detail, format, args);
    va_end(args);
    call->status = status;
    return status;
}

static void complete(struct engine *e, struct call *call)
{
    bool put = ring_put(&e->to_loop, call); /* it has room for every call */
    assert(put);
    (void)put;
    e->o.notify(e->o.cookie);
}

/* The row of a sequence, or NO_ROW with the call failed. */
static uint32_t find_row(struct engine *e, struct call *call, uint64_t id)
{
    if (id >> SEQUENCE_NODE_SHIFT) {
        fail(call, ATTND_OTHER_NODE, "sequence %llu belongs to node %llu, this is node 0",
             (unsigned long long)id, (unsigned long long)(id >> SEQUENCE_NODE_SHIFT));
        return NO_ROW;
    }
    uint32_t row = sequences_find(e->sequences, id);
    if (row == NO_ROW)
        fail(call, ATTND_NOT_FOUND, "there is no sequence %llu", (unsigned long long)id);
    return row;
}

static size_t q_row_bytes(const struct engine *e)
{
    return (size_t)e->g->query_heads * e->g->head_dim * dtype_bytes(e->g->dtype);
}

static size_t kv_row_bytes(const struct engine *e)
{
    return (size_t)e->g->kv_heads * e->g->head_dim * dtype_bytes(e->g->dtype);
}

/* ---- views --------------------------------------------------------------------------------------- */

static void view_sequence(struct engine *e, uint32_t row, struct sequence_view *view)
{
    const struct sequence *s = sequences_at(e->sequences, row);
    struct block_table_view table = block_tables_view(e->tables, row);
    double now = now_s();
    *view = (struct sequence_view){.id = s->id,
                                   .parent = s->parent,
                                   .length = table.length,
                                   .blocks = table.entries,
                                   .shared_blocks = table.shared_blocks,
                                   .age_s = now - s->created_s,
                                   .idle_s = now - s->used_s};
}

/* Append one sequence and its block ids to the call's answer; false when it is full. */
static bool show_sequence(struct engine *e, struct call *call, uint32_t row)
{
    struct block_table_view table = block_tables_view(e->tables, row);
    if (table.entries > CALL_IDS_MAX - call->list_count)
        return false;
    uint32_t *list = call_alloc(call, table.entries, sizeof *list);
    if (!list)
        return false;
    if (!call->list)
        call->list = list;
    /* lists follow each other without the gaps that alignment leaves */
    memmove(call->list + call->list_count, table.ids, table.entries * sizeof *list);
    call->list_count += table.entries;
    view_sequence(e, row, &call->views[call->view_count++]);
    return true;
}

static int show_one(struct engine *e, struct call *call, uint32_t row)
{
    call->views = call_alloc(call, 1, sizeof *call->views);
    if (!call->views || !show_sequence(e, call, row))
        return fail(call, ATTND_INVALID, "the sequence has more blocks than one answer shows (%d)",
                    CALL_IDS_MAX);
    return 0;
}

static void show_block(struct engine *e, uint32_t block, struct block_view *view)
{
    const struct block_pool *pool = block_tables_pool(e->tables);
    uint32_t refs = block_pool_refs(pool, block);
    enum block_state state = block_pool_state(pool, block);
    *view = (struct block_view){.block = block, .refs = refs, .state = state};
    view->fill = state == BLOCK_FREE ? 0 : block_pool_fill(pool, block);
}

/* ---- calls that are answered at once ------------------------------------------------------------- */

static void run_create(struct engine *e, struct call *call)
{
    uint32_t row;
    if (call->id >> SEQUENCE_NODE_SHIFT) {
        fail(call, ATTND_OTHER_NODE, "id %llu is one of node %llu, this is node 0",
             (unsigned long long)call->id, (unsigned long long)(call->id >> SEQUENCE_NODE_SHIFT));
    } else if (call->id && sequences_find(e->sequences, call->id) != NO_ROW) {
        fail(call, ATTND_EXISTS, "there is a sequence %llu already", (unsigned long long)call->id);
    } else if (block_tables_add(e->tables, NO_ROOT, NULL, 0, &row) != 0) {
        fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) are in use",
             e->o.config->limits.sequences);
    } else {
        sequences_add(e->sequences, row, call->id, 0, now_s());
        show_one(e, call, row);
    }
}

static void run_sequence(struct engine *e, struct call *call)
{
    uint32_t row = find_row(e, call, call->id);
    if (row == NO_ROW || show_one(e, call, row) != 0)
        return;
    call->lengths = call_alloc(call, e->g->layers, sizeof *call->lengths);
    for (uint32_t layer = 0; call->lengths && layer < e->g->layers; layer++)
        call->lengths[layer] = block_tables_cursor(e->tables, row, layer);
}

static void run_blocks(struct engine *e, struct call *call)
{
    uint32_t row = find_row(e, call, call->id);
    if (row == NO_ROW)
        return;
    struct block_table_view table = block_tables_view(e->tables, row);
    if (table.entries <= CALL_TABLE_MAX)
        call->blocks = call_alloc(call, table.entries, sizeof *call->blocks);
    if (!call->blocks) {
        fail(call, ATTND_INVALID, "the table has %u blocks, and one answer shows %d", table.entries,
             CALL_TABLE_MAX);
        return;
    }
    for (uint32_t i = 0; i < table.entries; i++) {
        uint32_t start = i * e->g->block_size,
                 left = table.cursor_max > start ? table.cursor_max - start : 0;
        show_block(e, table.ids[i], &call->blocks[i]);
        call->blocks[i].fill =
            left < e->g->block_size ? left : e->g->block_size; /* as this sequence sees it */
    }
    call->block_count = table.entries;
}

static void run_fork(struct engine *e, struct call *call)
{
    uint32_t parent = find_row(e, call, call->id), row, made = 0;
    if (parent == NO_ROW)
        return;
    uint32_t length = block_tables_view(e->tables, parent).length;
    if (call->length == UINT32_MAX)
        call->length = length;
    if (call->length > length) {
        fail(call, ATTND_INVALID, "length is %u, and the sequence has %u", call->length, length);
        return;
    }
    call->views = call_alloc(call, call->count, sizeof *call->views);
    uint32_t *rows = call_alloc(call, call->count, sizeof *rows);
    while (call->views && rows && made < call->count &&
           block_tables_fork(e->tables, parent, call->length, &row) == 0) {
        rows[made++] = row;
        sequences_add(e->sequences, row, 0, call->id, now_s());
    }
    bool all = rows && made == call->count;
    for (uint32_t i = 0; all && i < made; i++)
        all = show_sequence(e, call, rows[i]);
    if (all)
        return;
    for (uint32_t i = 0; i < made; i++) { /* all or none */
        sequences_remove(e->sequences, rows[i]);
        block_tables_remove(e->tables, rows[i]);
    }
    call->view_count = 0;
    if (made < call->count)
        fail(call, ATTND_NO_SEQUENCES, "limits.sequences (%u) leave room for %u of %u forks",
             e->o.config->limits.sequences, made, call->count);
    else
        fail(call, ATTND_INVALID, "the block tables of %u forks do not fit one answer", call->count);
}

static void run_truncate(struct engine *e, struct call *call)
{
    uint32_t row = find_row(e, call, call->id);
    if (row == NO_ROW)
        return;
    block_tables_truncate(e->tables, row, call->length);
    show_one(e, call, row);
}

static void run_delete(struct engine *e, struct call *call)
{
    uint32_t row = find_row(e, call, call->id);
    if (row == NO_ROW)
        return;
    sequences_remove(e->sequences, row);
    block_tables_remove(e->tables, row);
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int by_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* One page of sequences, by row. */
static void run_list(struct engine *e, struct call *call)
{
    call->views = call_alloc(call, call->limit, sizeof *call->views);
    for (uint32_t row = (uint32_t)call->cursor; call->views && row < e->o.config->limits.sequences;
         row++) {
        if (sequences_at(e->sequences, row)->id == 0)
            continue;
        if (call->view_count == call->limit || !show_sequence(e, call, row)) {
            if (call->view_count == 0)
                fail(call, ATTND_INVALID, "sequence %llu has more blocks than one answer shows (%d)",
                     (unsigned long long)sequences_at(e->sequences, row)->id, CALL_IDS_MAX);
            call->next = row;
            return;
        }
    }
}

static void run_stats(struct engine *e, struct call *call)
{
    uint32_t samples = e->steps < SAMPLES ? (uint32_t)e->steps : SAMPLES;
    float *times = call_alloc(call, samples, sizeof *times);
    uint32_t *rows = call_alloc(call, samples, sizeof *rows);
    call->stats =
        (struct call_stats){.epoch = e->epoch,
                            .pool = block_pool_counts(block_tables_pool(e->tables)),
                            .tables = block_tables_counts(e->tables),
                            .steps = e->steps,
                            .bytes_read = e->bytes_read,
                            .rows_max = e->rows_max_seen,
                            .gb_per_s = e->busy_s > 0 ? (double)e->bytes_read / e->busy_s * 1e-9 : 0};
    if (samples && times && rows) {
        memcpy(times, e->step_us, samples * sizeof *times);
        memcpy(rows, e->step_rows, samples * sizeof *rows);
        qsort(times, samples, sizeof *times, by_float);
        qsort(rows, samples, sizeof *rows, by_u32);
        call->stats.rows_p50 = rows[samples / 2];
        call->stats.step_us_p50 = (double)times[samples / 2];
        call->stats.step_us_p99 = (double)times[samples * 99 / 100];
    }
    run_list(e, call);
}

static void run_pool(struct engine *e, struct call *call)
{
    uint32_t blocks = (uint32_t)e->o.config->pool_blocks, first = (uint32_t)call->cursor;
    uint32_t n = first < blocks ? blocks - first : 0;
    n = n < call->limit ? n : call->limit;
    call->blocks = call_alloc(call, n, sizeof *call->blocks);
    if (!call->blocks) {
        fail(call, ATTND_INVALID, "limit %u does not fit one answer", call->limit);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        show_block(e, first + i, &call->blocks[i]);
    for (uint32_t row = 0; row < e->o.config->limits.sequences; row++) {
        uint64_t id = sequences_at(e->sequences, row)->id;
        struct block_table_view table = {0};
        if (id)
            table = block_tables_view(e->tables, row);
        for (uint32_t i = 0; i < table.entries; i++) {
            uint32_t at = table.ids[i] - first;
            if (at < n && call->blocks[at].owner == 0)
                call->blocks[at].owner = id;
        }
    }
    call->block_count = n;
    call->stats.epoch = e->epoch;
    call->next = first + n < blocks ? first + n : 0;
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* The rows of the block tables of a call, into the requests; 0, or the call failed. */
static int resolve(struct engine *e, struct call *call)
{
    uint32_t tokens_max = e->o.config->limits.sequence_tokens;
    e->call_number++;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t rows = call->sequences[i].rows, row = find_row(e, call, call->sequences[i].id);
        if (row == NO_ROW)
            return call->status;
        struct sequence *s = sequences_at(e->sequences, row);
        if (s->seen == e->call_number)
            return fail(call, ATTND_INVALID, "sequence %llu is named twice in one call",
                        (unsigned long long)s->id);
        s->seen = e->call_number;
        uint32_t at = block_tables_cursor(e->tables, row, call->layer), grows = call->k ? rows : 0;
        if ((uint64_t)at + grows > tokens_max)
            return fail(call, ATTND_INVALID,
                        "sequence %llu would have %llu tokens; limits.sequence_tokens is %u",
                        (unsigned long long)call->sequences[i].id, (unsigned long long)at + grows,
                        tokens_max);
        if (!call->k && at > 0 && rows > at)
            return fail(call, ATTND_INVALID,
                        "sequence %llu has %u tokens at layer %u, and %u rows ask for them",
                        (unsigned long long)call->sequences[i].id, at, call->layer, rows);
        e->work.requests[i] = (struct reserve_request){row, at, at + grows};
    }
    return 0;
}

/* Whether a sequence of the call is in the step already, or waits for it. Unknown sequences do not
 * matter: resolve() will say. */
static bool has_to_wait(struct engine *e, const struct call *call)
{
    bool waits = call->layer != e->work.layer || e->work.rows + call->rows > e->rows_max ||
                 e->work.tokens + call->rows > e->rows_max ||
                 e->work.sequence_count + call->sequence_count > e->rows_max;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = sequences_find(e->sequences, call->sequences[i].id);
        waits |= row != NO_ROW && sequences_at(e->sequences, row)->forming == e->forming;
    }
    return waits;
}

static void mark_sequences(struct engine *e, const struct call *call)
{
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = sequences_find(e->sequences, call->sequences[i].id);
        if (row != NO_ROW)
            sequences_at(e->sequences, row)->forming = e->forming;
    }
}

/* Blocks for what the call appends, or the call failed. */
static int reserve(struct engine *e, struct call *call)
{
    struct step_work *w = &e->work;
    int rc = call->k ? block_tables_reserve(e->tables, w->number, w->requests, call->sequence_count,
                                            w->copies, &w->copy_count)
                     : 0;
    if (rc == ATTND_NO_BLOCKS) {
        uint32_t need = block_tables_need(e->tables, w->requests, call->sequence_count);
        struct block_pool_counts counts = block_pool_counts(block_tables_pool(e->tables));
        return fail(call, need > counts.blocks ? ATTND_INVALID : rc,
                    "needs %u blocks of %u; %u free, %u reclaimable", need, counts.blocks, counts.free,
                    counts.cached);
    }
    return rc == 0 ? 0 : fail(call, rc, "a sequence would be longer than its table");
}

/* Put the rows of a call into the step. */
static void gather(struct engine *e, struct call *call)
{
    struct step_work *w = &e->work;
    uint32_t token = w->tokens;
    call->first_row = w->rows;
    if (call->k) {
        memcpy(w->k + w->tokens * kv_row_bytes(e), call->k, call->rows * kv_row_bytes(e));
        memcpy(w->v + w->tokens * kv_row_bytes(e), call->v, call->rows * kv_row_bytes(e));
        w->tokens += call->rows;
    }
    if (call->q)
        memcpy(w->q + w->rows * q_row_bytes(e), call->q, call->rows * q_row_bytes(e));
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = w->requests[i].row, rows = call->sequences[i].rows, at = w->requests[i].first;
        uint32_t keys = call->k ? at : at - (at ? rows : 0); /* before the first row's own token */
        if (call->k && rows) {
            w->appends[w->append_count++] =
                (struct kv_append){.table = row, .position = at, .count = rows, .source = token};
            block_tables_advance(e->tables, row, call->layer, rows);
            token += rows;
        }
        for (uint32_t r = 0; call->q && r < rows; r++) {
            uint32_t sees = call->k || at ? keys + r + 1 : 0; /* an empty sequence has no keys */
            w->planner_rows[w->rows++] =
                (struct planner_row){row, sees, block_tables_version(e->tables, row)};
        }
        block_tables_submit(e->tables, row, w->number);
        w->sequences[w->sequence_count++] = row;
        sequences_at(e->sequences, row)->used_s = now_s();
    }
}

/* Room for the call's outputs in its own arena. */
static int make_outputs(struct engine *e, struct call *call)
{
    if (call->kind == CALL_ATTEND) {
        call->o = call_alloc(call, call->rows, q_row_bytes(e));
        call->lse = call_alloc(call, (size_t)call->rows * e->g->query_heads, sizeof *call->lse);
    } else {
        call->views = call_alloc(call, call->sequence_count, sizeof *call->views);
    }
    bool ok = call->kind == CALL_ATTEND ? call->o && call->lse : call->views != NULL;
    return ok ? 0 : fail(call, ATTND_INVALID, "%u rows are too many for one call", call->rows);
}

/* Take into the step what fits, oldest first. Failed calls are completed on the way. */
static void form_step(struct engine *e)
{
    struct step_work *w = &e->work;
    struct call *call = e->ready_first, *next;
    atomic_store(&e->busy_since_us, (uint64_t)(now_s() * 1e6));
    e->forming++;
    w->layer = call->layer;
    w->rows = w->tokens = w->append_count = w->copy_count = w->sequence_count = 0;
    w->first = w->last = NULL;
    e->ready_first = e->ready_last = NULL;
    for (; call; call = next) {
        next = call->next_ready;
        call->next_ready = NULL;
        bool waits = has_to_wait(e, call);
        mark_sequences(e, call);
        if (!waits && (resolve(e, call) != 0 || make_outputs(e, call) != 0 || reserve(e, call) != 0)) {
            complete(e, call);
            continue;
        }
        struct call **first = waits ? &e->ready_first : &w->first,
                    **last = waits ? &e->ready_last : &w->last;
        if (!waits)
            gather(e, call);
        if (*last)
            (*last)->next_ready = call;
        else
            *first = call;
        *last = call;
    }
}

static const struct plan *make_plan(struct engine *e)
{
    struct step_work *w = &e->work;
    uint32_t stride, i = 0;
    const uint32_t *ids = block_tables_ids(e->tables, &stride);
    if (w->rows == 0)
        return NULL;
    while (e->planners[i].window != e->g->window[w->layer])
        i++;
    return planner_make(e->planners[i].planner, w->planner_rows, w->rows, ids, stride);
}

/* Bytes of K and V that the plan reads. */
static uint64_t bytes_of(const struct engine *e, const struct plan *plan)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; plan && i < plan->item_count; i++) {
        const struct plan_item *item = &plan->items[i];
        uint32_t end = 0, begin = item->first_chunk * CHUNK_TOKENS;
        for (uint32_t r = 0; r < item->rows; r++) {
            uint32_t keys = plan->rows[plan->item_rows[item->first_row + r]].keys;
            end = keys > end ? keys : end;
        }
        uint32_t stop = begin + item->chunks * CHUNK_TOKENS;
        tokens += (end < stop ? end : stop) - begin;
    }
    return tokens * geometry_token_bytes(e->g);
}

static void note_step(struct engine *e, double seconds, uint64_t bytes)
{
    uint32_t at = (uint32_t)(e->steps % SAMPLES);
    e->step_us[at] = (float)(seconds * 1e6);
    e->step_rows[at] = e->work.rows;
    e->rows_max_seen = e->work.rows > e->rows_max_seen ? e->work.rows : e->rows_max_seen;
    e->steps++;
    e->epoch++;
    e->busy_s += seconds;
    e->bytes_read += bytes;
}

static void run_step(struct engine *e)
{
    struct step_work *w = &e->work;
    uint32_t stride;
    for (uint32_t i = 0; i < w->copy_count; i++)
        w->kv_copies[i] = (struct kv_copy){w->copies[i].from, w->copies[i].to, w->copies[i].slots};
    const struct plan *plan = make_plan(e);
    const struct attention_pass pass = {.layer = w->layer,
                                        .appends = w->appends,
                                        .append_count = w->append_count,
                                        .k = w->k,
                                        .v = w->v,
                                        .source_dtype = e->g->dtype,
                                        .plan = plan,
                                        .q = w->q,
                                        .o = w->o,
                                        .lse = w->lse};
    struct attention_step step = {
        .copies = w->kv_copies, .copy_count = w->copy_count, .passes = &pass, .pass_count = 1};
    step.tables = block_tables_ids(e->tables, &stride);
    step.stride = stride;
    double start = now_s();
    attention_submit(e->attention, &step);
    while (!attention_poll(e->attention)) {
    }
    double seconds = now_s() - start;
    for (uint32_t i = 0; i < w->sequence_count; i++)
        block_tables_retire(e->tables, w->sequences[i], w->number);
    block_tables_retire_step(e->tables, w->number++);
    note_step(e, seconds, bytes_of(e, plan));

    struct call *next;
    for (struct call *call = w->first; call; call = next) {
        next = call->next_ready;
        if (call->q) {
            memcpy(call->o, w->o + call->first_row * q_row_bytes(e), call->rows * q_row_bytes(e));
            memcpy(call->lse, w->lse + (size_t)call->first_row * e->g->query_heads,
                   (size_t)call->rows * e->g->query_heads * sizeof *call->lse);
        }
        for (uint32_t i = 0; call->views && i < call->sequence_count; i++)
            view_sequence(e, sequences_find(e->sequences, call->sequences[i].id),
                          &call->views[call->view_count++]);
        call->queue_us = (start - call->submitted_s) * 1e6;
        call->step_us = seconds * 1e6;
        call->rows_in_step = w->rows;
        complete(e, call);
    }
}

/* In debug and sanitizer builds every operation is followed by a walk over all invariants. */
static void check_invariants(struct engine *e)
{
#if ATTND_CHECK >= 3
    const char *fault = block_tables_fault(e->tables);
    if (fault) {
        log_line(LOG_ERROR, "broken invariant: %s", fault);
        abort();
    }
#else
    (void)e;
#endif
}

static void run_ready(struct engine *e)
{
    while (e->ready_first) {
        form_step(e);
        if (e->work.first)
            run_step(e);
        check_invariants(e);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------- */

static void handle(struct engine *e, struct call *call)
{
    switch (call->kind) {
    case CALL_APPEND:
    case CALL_ATTEND:
        if (call->rows > e->rows_max || call->sequence_count > e->rows_max) {
            fail(call, ATTND_INVALID, "%u rows of %u sequences; scheduler.step_rows_max is %u",
                 call->rows, call->sequence_count, e->rows_max);
            break;
        }
        if (e->ready_last)
            e->ready_last->next_ready = call;
        else
            e->ready_first = call;
        e->ready_last = call;
        return;
    case CALL_FORK:
        run_ready(e);
        run_fork(e, call);
        break;
    case CALL_TRUNCATE:
        run_ready(e);
        run_truncate(e, call);
        break;
    case CALL_DELETE:
        run_ready(e);
        run_delete(e, call);
        break;
    case CALL_TRIM:
        run_ready(e);
        call->count = block_tables_trim(e->tables);
        break;
    case CALL_CREATE:
        run_create(e, call);
        break;
    case CALL_SEQUENCE:
        run_sequence(e, call);
        break;
    case CALL_BLOCKS:
        run_blocks(e, call);
        break;
    case CALL_STATS:
        run_stats(e, call);
        break;
    case CALL_LIST:
        run_list(e, call);
        break;
    case CALL_POOL:
        run_pool(e, call);
        break;
    case CALL_AUDIT:
        call->fault = block_tables_fault(e->tables);
        break;
    }
    e->epoch += call->kind <= CALL_DELETE && call->kind != CALL_SEQUENCE && call->kind != CALL_BLOCKS;
    complete(e, call);
}

static void *engine_main(void *cookie)
{
    struct engine *e = cookie;
    uint64_t woken;
    for (;;) {
        struct call *call;
        atomic_store(&e->busy_since_us, (uint64_t)(now_s() * 1e6));
        while ((call = ring_take(&e->to_engine))) {
            handle(e, call);
            check_invariants(e);
        }
        run_ready(e);
        atomic_store(&e->busy_since_us, 0);
        if (atomic_load(&e->stop))
            return NULL;
        if (read(e->wake, &woken, sizeof woken) < 0)
            log_line(LOG_ERROR, "the engine's wake-up failed");
    }
}

static void wake_engine(struct engine *e)
{
    uint64_t one = 1;
    if (write(e->wake, &one, sizeof one) < 0)
        log_line(LOG_ERROR, "the engine cannot be woken");
}

/* ---- the loop's side ----------------------------------------------------------------------------- */

struct call *engine_acquire(struct engine *e)
{
    if (e->free_count == 0)
        return NULL;
    struct call *call = e->free_calls[--e->free_count];
    uint8_t *arena = call->arena;
    *call = (struct call){.arena = arena, .answer_status = 200};
    return call;
}

void engine_submit(struct engine *e, struct call *call)
{
    call->submitted_s = now_s();
    bool put = ring_put(&e->to_engine, call); /* it has room for every call */
    assert(put);
    (void)put;
    wake_engine(e);
}

struct call *engine_take(struct engine *e)
{
    return ring_take(&e->to_loop);
}

void engine_release(struct engine *e, struct call *call)
{
    e->free_calls[e->free_count++] = call;
}

const struct attention_info *engine_backend(const struct engine *e)
{
    return attention_info(e->attention);
}

double engine_roof_gb_per_s(const struct engine *e)
{
    return e->roof_gb_per_s;
}

double engine_stall_s(const struct engine *e)
{
    uint64_t since = atomic_load(&e->busy_since_us);
    return since ? now_s() - (double)since * 1e-6 : 0;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

static int open_attention(struct engine *e, char error[ATTENTION_ERROR_BYTES])
{
    const struct config *c = e->o.config;
    const struct attention_options options = {
        .backend = c->backend,
        .isa = c->isa,
        .threads = c->threads,
        .geometry = &c->geometry,
        .constants = &c->constants,
        .blocks = (uint32_t)c->pool_blocks,
        .partials_max = e->o.partials_max,
        .progress = e->o.progress,
        .cookie = e->o.cookie,
    };
    int rc = attention_open(&options, &e->attention, error);
    if (rc == 0)
        e->roof_gb_per_s = attention_measure_roof(e->attention);
    return rc;
}

static int make_planners(struct engine *e)
{
    const struct geometry *g = e->g;
    e->planners = calloc(g->layers, sizeof *e->planners);
    for (uint32_t layer = 0; e->planners && layer < g->layers; layer++) {
        uint32_t i = 0;
        while (i < e->planner_count && e->planners[i].window != g->window[layer])
            i++;
        if (i < e->planner_count)
            continue;
        const struct planner_options options = {.rows_max = e->rows_max,
                                                .partials_max = e->o.partials_max,
                                                .threads = attention_info(e->attention)->threads,
                                                .kv_heads = g->kv_heads,
                                                .group = geometry_group(g),
                                                .block_size = g->block_size,
                                                .window = g->window[layer],
                                                .share = true};
        if (planner_create(&options, &e->planners[i].planner) != 0)
            return ATTND_NO_MEMORY;
        e->planners[i].window = g->window[layer];
        e->planner_count++;
    }
    return e->planners ? 0 : ATTND_NO_MEMORY;
}

static int make_work(struct engine *e)
{
    struct step_work *w = &e->work;
    uint32_t n = e->rows_max;
    w->number = 1;
    w->planner_rows = calloc(n, sizeof *w->planner_rows);
    w->appends = calloc(n, sizeof *w->appends);
    w->copies = calloc(n, sizeof *w->copies);
    w->kv_copies = calloc(n, sizeof *w->kv_copies);
    w->requests = calloc(n, sizeof *w->requests);
    w->sequences = calloc(n, sizeof *w->sequences);
    w->q = calloc(n, q_row_bytes(e));
    w->o = calloc(n, q_row_bytes(e));
    w->k = calloc(n, kv_row_bytes(e));
    w->v = calloc(n, kv_row_bytes(e));
    w->lse = calloc((size_t)n * e->g->query_heads, sizeof *w->lse);
    return w->planner_rows && w->appends && w->copies && w->kv_copies && w->requests && w->sequences &&
                   w->q && w->o && w->k && w->v && w->lse
               ? 0
               : ATTND_NO_MEMORY;
}

static int make_calls(struct engine *e)
{
    uint32_t n = e->o.config->limits.calls;
    e->calls = calloc(n, sizeof *e->calls);
    e->free_calls = calloc(n, sizeof *e->free_calls);
    void *arenas = mmap(NULL, (size_t)n * CALL_ARENA_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!e->calls || !e->free_calls || arenas == MAP_FAILED)
        return ATTND_NO_MEMORY;
    e->arenas = arenas;
    for (uint32_t i = n; i-- > 0;) {
        e->calls[i].arena = e->arenas + (size_t)i * CALL_ARENA_BYTES;
        e->free_calls[e->free_count++] = &e->calls[i];
    }
    return ring_init(&e->to_engine, n) || ring_init(&e->to_loop, n) ? ATTND_NO_MEMORY : 0;
}

static int make_tables(struct engine *e)
{
    const struct config *c = e->o.config;
    uint64_t tokens = c->limits.sequence_tokens, pool = c->pool_blocks * c->geometry.block_size;
    const struct block_tables_options options = {
        .blocks = (uint32_t)c->pool_blocks,
        .block_size = c->geometry.block_size,
        .layers = c->geometry.layers,
        .rows = c->limits.sequences,
        .row_blocks = (uint32_t)((tokens < pool ? tokens : pool) / c->geometry.block_size) + 1,
    };
    int rc = block_tables_create(&options, &e->tables);
    return rc == 0 ? sequences_create(c->limits.sequences, &e->sequences) : rc;
}

int engine_create(const struct engine_options *options, struct engine **result,
                  char error[ATTENTION_ERROR_BYTES])
{
    struct engine *e = aligned_alloc(ALIGNMENT, (sizeof *e + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!e)
        return ATTND_NO_MEMORY;
    memset(e, 0, sizeof *e);
    e->o = *options;
    e->g = &options->config->geometry;
    e->rows_max = options->config->step_rows_max;
    e->wake = eventfd(0, EFD_CLOEXEC);
    int rc = open_attention(e, error);
    if (rc == 0 && (e->wake < 0 || make_tables(e) != 0 || make_planners(e) != 0 || make_work(e) != 0 ||
                    make_calls(e) != 0 || pthread_create(&e->thread, NULL, engine_main, e) != 0))
        rc = ATTND_NO_MEMORY;
    e->started = rc == 0;
    if (rc != 0) {
        engine_destroy(e);
        return rc;
    }
    *result = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    if (e->started) {
        atomic_store(&e->stop, true);
        wake_engine(e);
        pthread_join(e->thread, NULL);
    }
    for (uint32_t i = 0; i < e->planner_count; i++)
        planner_destroy(e->planners[i].planner);
    free(e->planners);
    block_tables_destroy(e->tables);
    sequences_destroy(e->sequences);
    attention_close(e->attention);
    struct step_work *w = &e->work;
    void *const arrays[] = {w->planner_rows, w->appends,   w->copies, w->kv_copies, w->requests,
                            w->sequences,    w->q,         w->o,      w->k,         w->v,
                            w->lse,          e->free_calls};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    if (e->arenas)
        munmap(e->arenas, (size_t)e->o.config->limits.calls * CALL_ARENA_BYTES);
    free(e->calls);
    ring_deinit(&e->to_engine);
    ring_deinit(&e->to_loop);
    if (e->wake >= 0)
        close(e->wake);
    free(e);
}
