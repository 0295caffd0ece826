/* SPDX-License-Identifier: Apache-2.0 */
/* client_slices.c - see client_slices.h. */
#include "scheduler/client_slices.h"

#include "config/numbers.h"
#include "scheduler/client_tables.h"
#include "scheduler/inspect.h"
#include "scheduler/reservation.h"
#include "scheduler/swapping.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { NOTED_TOGETHER = 256 }; /* ids of a prompt */

static struct block_tables *tables_of(const struct engine_state *state)
{
    return step_tables(state->steps);
}

static const struct geometry *geometry_of(const struct engine_state *state)
{
    return &state->config->geometry;
}

static bool is_paged(const struct request *request)
{
    return request->kind == REQUEST_PAGED;
}

/* Layers that a request appends at. */
static uint32_t layers_of(const struct engine_state *state, const struct request *request)
{
    return request->rows.all_layers ? geometry_of(state)->layers : 1;
}

/* ---- estimates ----------------------------------------------------------------------------------- */

/* Add n queries that see `keys` tokens, the last one all of them. */
static void add_queries(const struct engine_state *state, uint32_t n, uint64_t keys, struct cost_work *work)
{
    uint32_t together = step_rows_together(state->steps);
    work->tokens += (n + together - 1) / together * keys;
    work->weighed += n * keys;
    work->queries += n;
}

double client_slices_us(const struct engine_state *state, const struct request *request)
{
    struct cost_work work = {.passes = 1};
    const struct request_rows *rows = &request->rows;
    if (request->kind == REQUEST_PAGED) {
        const struct request_paged *p = &request->paged;
        for (uint32_t s = 0; rows->q && s < p->sequences; s++)
            add_queries(state, p->indptr[s + 1] - p->indptr[s], p->context[s], &work);
        work.appended = p->tokens;
    } else if (request->kind == REQUEST_APPEND || request->kind == REQUEST_ATTEND) {
        const struct request_attend *a = &request->attend;
        for (uint32_t i = 0; rows->q && i < a->sequence_count; i++) {
            uint32_t row = sequences_find(state->sequences, a->sequences[i].id), n = a->sequences[i].rows;
            if (row != NO_ROW)
                add_queries(state, n,
                            block_tables_cursor(tables_of(state), row, rows->layer) + (rows->k ? n : 0),
                            &work);
        }
        work.passes = layers_of(state, request);
        work.appended = rows->k ? rows->count * work.passes : 0;
    } else if (request->kind == REQUEST_MERGE) {
        work.queries = (uint64_t)request->merge.states * request->merge.rows;
    } else {
        return 0;
    }
    return step_us_of(state->steps, &work);
}

/* ---- what a request is made of ------------------------------------------------------------------- */

/* Tell what tokens [at.first, at.end) of a row are: those that the request names from its row `first` on,
 * or those of the prompt, as far as it goes. */
static void note_tokens(struct engine_state *state, const struct request *request, struct reserve_request at,
                        uint32_t first)
{
    struct block_tables *tables = tables_of(state);
    uint32_t prompt = prompts_length(state->prompts, at.row), tokens[NOTED_TOGETHER];
    if (request->attend.tokens.ids) {
        uint32_t given = request->attend.tokens.count - smaller(first, request->attend.tokens.count);
        block_tables_note_tokens(tables, at.row, at.first, request->attend.tokens.ids + first,
                                 smaller(at.end - at.first, given));
        return;
    }
    for (uint32_t end = smaller(prompt, at.end), n; at.first < end; at.first += n) {
        n = smaller(end - at.first, NOTED_TOGETHER);
        prompts_read(state->prompts, at.row, at.first, n, tokens);
        block_tables_note_tokens(tables, at.row, at.first, tokens, n);
    }
}

/* The appends of a request on sequences: those of its new tokens; their number. Blocks are reserved. */
static uint32_t make_appends(const struct engine_state *state, const struct request *request,
                             struct kv_append *appends)
{
    size_t row_bytes = geometry_kv_row_bytes(geometry_of(state), request->rows.kv_source);
    uint32_t first = 0, count = 0;
    for (uint32_t i = 0; request->rows.k && i < request->attend.sequence_count; i++) {
        struct reserve_request at = request->queued.writes[i];
        uint32_t rows = request->attend.sequences[i].rows, n = at.end - at.first;
        size_t skip = (first + rows - n) * row_bytes;
        const struct kv_append append = {.table = at.row,
                                         .position = at.first,
                                         .count = n,
                                         .k = (const uint8_t *)request->rows.k + skip,
                                         .v = (const uint8_t *)request->rows.v + skip,
                                         .wrong = request->rows.stream.on ? request->rows.wrong + i : NULL,
                                         .content = sequences_at(state->sequences, at.row)->content};
        if (n > 0)
            appends[count++] = append;
        first += rows;
    }
    return count;
}

/* The queries of a request on sequences, as the planner wants them. */
static void make_rows(const struct engine_state *state, const struct request *request,
                      struct planner_query *rows)
{
    for (uint32_t i = 0; request->rows.q && i < request->attend.sequence_count; i++) {
        uint32_t row = request->queued.writes[i].row, first = request->attend.sequences[i].position;
        bool sees = request->rows.k || request->queued.writes[i].first > 0; /* an empty one has no keys */
        uint64_t version = block_tables_version(tables_of(state), row);
        for (uint32_t r = 0; r < request->attend.sequences[i].rows; r++)
            *rows++ = (struct planner_query){row, sees ? first + r + 1 : 0, version, state->config->sharing};
    }
}

/* Both, for requests on the caller's own tables too, which become the step's. Returns the number of appends. */
static uint32_t make_lists(struct engine_state *state, struct step *step, const struct request *request,
                           struct kv_append *appends, struct planner_query *rows)
{
    struct client_tables_part part = {.rows = rows, .appends = appends};
    if (is_paged(request)) {
        client_tables_fill(state, request, step, &part);
        return part.append_count;
    }
    make_rows(state, request, rows);
    return make_appends(state, request, appends);
}

/* The sequences, or the lease, of a request take part in the step. */
static void take_part(struct engine_state *state, struct step *step, const struct request *request)
{
    for (uint32_t i = 0; i < request->queued.on_count; i++) {
        uint32_t row = sequences_find(state->sequences, request->queued.on[i].id);
        step_take_part(step, row);
    }
}

/* The cursors move over what a request on sequences appends, and its tokens are known. */
static void move_cursors(struct engine_state *state, const struct request *request)
{
    struct block_tables *tables = tables_of(state);
    uint32_t first = 0;
    for (uint32_t i = 0; request->rows.k && i < request->attend.sequence_count; i++) {
        struct reserve_request at = request->queued.writes[i];
        uint32_t rows = request->attend.sequences[i].rows, n = at.end - at.first;
        if (n > 0 && at.first >= block_tables_view(tables, at.row).cursor_max) /* the first layer to come */
            note_tokens(state, request, at, first + rows - n);
        first += rows;
        if (request->rows.all_layers)
            block_tables_advance_all(tables, at.row, n);
        else
            block_tables_advance(tables, at.row, request->rows.layer, n);
    }
}

/* What the answer shows of the sequences, as the request leaves them. */
static void show(const struct engine_state *state, struct request *request)
{
    uint32_t layers = geometry_of(state)->layers;
    for (uint32_t i = 0; request->attend.views && i < request->attend.sequence_count; i++) {
        uint32_t row = request->queued.writes[i].row;
        inspect_view(state, row, &request->attend.views[request->attend.view_count++]);
        for (uint32_t layer = 0; layer < layers; layer++)
            request->attend.lengths[(size_t)i * layers + layer] =
                block_tables_cursor(tables_of(state), row, layer);
    }
}

/* Bytes of K, or V, of one layer to the next one's, of a request that has all of them. */
static size_t layer_bytes(const struct engine_state *state, const struct request *request)
{
    return request->rows.all_layers
               ? request->rows.count * geometry_kv_row_bytes(geometry_of(state), request->rows.kv_source)
               : 0;
}

/* Move appends of the first layer to another one. */
static void move_to_layer(const struct engine_state *state, const struct request *request, uint32_t layer,
                          struct kv_append *appends, uint32_t n)
{
    size_t bytes = layer * layer_bytes(state, request);
    for (uint32_t i = 0; i < n; i++) {
        appends[i].k = (const uint8_t *)appends[i].k + bytes;
        appends[i].v = (const uint8_t *)appends[i].v + bytes;
    }
}

/* Appends of a layer, at most. */
static uint32_t appends_of(const struct request *request)
{
    uint32_t tokens = request->rows.k ? request->rows.count : 0;
    return is_paged(request) ? request->paged.tokens : smaller(tokens, request->queued.on_count);
}

/* A request's part at its layer; with `all_layers`, at `layer`. Its appends and rows are still to come. */
static struct step_part part_of(const struct request *request, uint32_t layer)
{
    const struct request_rows *r = &request->rows;
    return (struct step_part){.producer = STEP_OF_CLIENTS,
                              .layer = r->all_layers ? layer : r->layer,
                              .kernel = r->kernel,
                              .append_count = appends_of(request),
                              .kv_dtype = r->kv_source,
                              .row_count = r->q ? r->count : 0,
                              .q = r->q,
                              .o = r->out.o,
                              .lse = r->out.lse};
}

/* ---- whole --------------------------------------------------------------------------------------- */

/* Whether there is room for a request's rows, and for its appends, in lists of so many. */
static bool lists_fit(const struct engine_state *state, const struct request *request, uint32_t room)
{
    uint32_t rows = request->rows.q ? request->rows.count : 0;
    return rows <= room && (uint64_t)appends_of(request) * layers_of(state, request) <= room;
}

bool client_slices_go_whole(const struct engine_state *state, const struct request *request)
{
    return lists_fit(state, request, state->config->step_rows_max);
}

bool client_slices_fit(const struct engine_state *state, const struct step *step,
                       const struct request *request)
{
    const struct step_part part = part_of(request, 0);
    if (is_paged(request) && client_tables_count(state, request) > step_tables_left(step))
        return false;
    return lists_fit(state, request, step_lists_left(step)) &&
           step_fits(step, &part, layers_of(state, request));
}

/* Of the sequence of each row of a streamed request; NULL: they may not become void. */
static const uint64_t *make_contents(const struct engine_state *state, struct request *request)
{
    uint64_t *contents, *next;
    if (!request->rows.stream.on || !request->rows.q || is_paged(request))
        return NULL;
    contents = next = request_alloc(request, request->rows.count, sizeof *contents);
    for (uint32_t i = 0; contents && i < request->attend.sequence_count; i++) {
        for (uint32_t r = 0; r < request->attend.sequences[i].rows; r++)
            *next++ = sequences_at(state->sequences, request->queued.writes[i].row)->content;
    }
    return contents;
}

void client_slices_add_whole(struct engine_state *state, struct step *step, struct request *request)
{
    uint32_t layers = layers_of(state, request), most = appends_of(request);
    struct kv_append *appends = step_appends(step, most * layers);
    struct planner_query *rows = step_rows(step, request->rows.q ? request->rows.count : 0);
    assert(appends && rows);
    uint32_t append_count = make_lists(state, step, request, appends, rows);
    const uint64_t *contents = make_contents(state, request);
    if (!is_paged(request)) {
        move_cursors(state, request);
        show(state, request);
    }
    take_part(state, step, request);
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct step_part part = part_of(request, layer);
        struct kv_append *of_layer = appends + (size_t)layer * most;
        if (layer > 0) {
            memcpy(of_layer, appends, append_count * sizeof *appends);
            move_to_layer(state, request, layer, of_layer, append_count);
        }
        part.appends = of_layer;
        part.append_count = append_count;
        part.rows = rows;
        part.contents = contents;
        part.cost_us = request->queued.estimate_us / layers;
        step_add(step, &part);
        step_note_owner(step, request->key, part.row_count);
    }
}

/* ---- in slices ----------------------------------------------------------------------------------- */

int client_slices_begin(const struct engine_state *state, struct request *request)
{
    struct request_slices *s = &request->queued.slices;
    uint32_t queries = request->rows.q ? request->rows.count : 0, appends = appends_of(request);
    *s = (struct request_slices){.begun = true};
    s->append_list = request_alloc(request, appends, sizeof *s->append_list);
    s->appends = (struct append_slicing){
        .appends = s->append_list,
        .row_bytes = geometry_kv_row_bytes(geometry_of(state), request->rows.kv_source)};
    s->rows = request_alloc(request, queries, sizeof *s->rows);
    s->places = request_alloc(request, queries, sizeof *s->places);
    return s->append_list && s->rows && s->places
               ? 0
               : request_fail(request, ATTND_INVALID, "%u rows are too many for one call",
                              request->rows.count);
}

/* Add appends for which there is time, at least a token if `any`; microseconds that they take. */
static double add_appends(struct engine_state *state, struct step *step, struct request *request,
                          double room_us, bool any)
{
    struct request_slices *s = &request->queued.slices;
    const struct cost_work one = {.appended = 1}, pass = {.passes = 1};
    double each = step_us_of(state->steps, &one), of_pass = step_us_of(state->steps, &pass), us = 0;
    uint32_t layers = layers_of(state, request);
    if (s->appends.count == 0)
        s->layers = layers;
    while (s->layers < layers) {
        struct step_part part = part_of(request, s->layers);
        double fit = floor((room_us - us - of_pass) / each);
        uint32_t tokens = fit < 1 ? 0 : fit < (double)UINT32_MAX ? (uint32_t)fit : UINT32_MAX, done = 0;
        if (is_paged(request)) /* all or none: what its slots hold is the caller's affair */
            tokens = fit >= request->paged.tokens || any ? UINT32_MAX : 0;
        else if (tokens == 0 && any && us == 0)
            tokens = 1;
        part.row_count = 0;
        part.append_count = 1; /* or more: whether one fits */
        uint32_t room = smaller(smaller(s->appends.count - s->appends.done, tokens), step_lists_left(step));
        if (is_paged(request) && room < s->appends.count) /* likewise */
            tokens = 0;
        struct kv_append *appends = tokens && step_fits(step, &part, 1) ? step_appends(step, room) : NULL;
        if (s->appends.count && !appends)
            break;
        part.appends = appends;
        part.append_count = slicing_appends(&s->appends, tokens, appends, room, &done);
        move_to_layer(state, request, s->layers, appends, part.append_count);
        part.cost_us = of_pass + done * each;
        if (part.append_count)
            step_add(step, &part);
        us += part.cost_us;
        if (s->appends.done < s->appends.count)
            break;
        s->layers++;
        s->appends.done = 0;
    }
    return us;
}

/* Add a slice of queries; false when none fits. */
static bool add_queries_slice(struct engine_state *state, struct step *step, struct request *request,
                              double room_us, bool any)
{
    struct request_slices *s = &request->queued.slices;
    struct step_part part = part_of(request, 0);
    uint32_t first, rows_max = step_lists_left(step);
    const struct slicing_room room = {room_us, any ? state->step_us_max / 2 : 0, rows_max, any};
    bool last;
    part.append_count = 0;
    part.row_count = 1;
    part.slice = &s->queries.segments; /* which it may become: then it is a pass by itself */
    bool fits = rows_max > 0 && step_fits(step, &part, 1);
    part.slice = NULL;
    if (!fits || !slicing_next(&s->queries, state->steps, &room, &part, &first, &last))
        return false;
    struct planner_query *rows = step_rows(step, part.row_count);
    assert(rows);
    part.places = s->places + first;
    part.rows = rows;
    for (uint32_t i = 0; i < part.row_count; i++)
        rows[i] = s->rows[part.places[i].query];
    part.o = last ? part.o : NULL;
    part.lse = last ? part.lse : NULL;
    step_add(step, &part);
    step_note_owner(step, request->key, part.row_count);
    return true;
}

bool client_slices_add(struct engine_state *state, struct step *step, struct request *request, double room_us,
                       bool any)
{
    struct request_slices *s = &request->queued.slices;
    bool first = s->layers == 0 && s->appends.done == 0 && s->appends.tokens == 0 && !s->appended,
         added = false;
    if (is_paged(request) && client_tables_count(state, request) > step_tables_left(step))
        return false;
    if (first || is_paged(request)) /* the caller's own tables are this step's */
        s->appends.count = make_lists(state, step, request, s->append_list, s->rows);
    if (first && request->rows.q) {
        step_order(state->steps, request->rows.layer, s->rows, request->rows.count, s->places);
        slicing_begin(&s->queries, s->places, request->rows.count);
    }
    if (!s->appended) {
        double us = add_appends(state, step, request, room_us, any);
        added = us > 0;
        if (s->layers == layers_of(state, request)) {
            s->appended = s->stands = true;
            if (!is_paged(request)) {
                move_cursors(state, request);
                show(state, request);
            }
        }
    }
    /* queries may share a pass with those of others, which may be ahead of these appends: the next step's */
    if (!added && s->appended && request->rows.q && (room_us > 0 || any))
        added = add_queries_slice(state, step, request, room_us, any);
    if (added) {
        take_part(state, step, request);
        s->steps |= 1U << step_slot(step);
    }
    return added;
}

bool client_slices_are_done(const struct request *request)
{
    const struct request_slices *s = &request->queued.slices;
    return s->appended && (!request->rows.q || slicing_is_done(&s->queries));
}

/* What was appended behind the end of a row, and never counted, is given up: in its last block, since those behind are given back.
 * (With debug.poison; nobody else has such a block.) */
static void vacate_end(struct engine_state *state, uint32_t row)
{
    struct block_table_view table = block_tables_view(tables_of(state), row);
    uint32_t size = geometry_of(state)->block_size, last = table.cursor_max / size;
    if (table.cursor_max % size && !table.swapped && last < table.entries &&
        block_pool_refs(block_tables_pool(tables_of(state)), table.ids[last]) == 1)
        step_vacate(state->steps, table.ids[last], table.cursor_max % size);
}

void client_slices_stop(struct engine_state *state, struct request *request)
{
    struct request_slices *s = &request->queued.slices;
    slicing_stop(&s->queries, state->steps);
    for (uint32_t i = 0; !s->appended && !is_paged(request) && i < request->queued.on_count; i++) {
        uint32_t row = sequences_find(state->sequences, request->queued.on[i].id);
        if (row == NO_ROW || !request->rows.k)
            continue;
        block_tables_truncate(tables_of(state), row, block_tables_view(tables_of(state), row).cursor_max);
        vacate_end(state, row);
        reservation_note(state, row);
        swapping_note(state->swapping, row);
    }
    s->appended = true;
}
