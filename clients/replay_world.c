/* SPDX-License-Identifier: Apache-2.0 */
/* replay_world.c - see replay_world.h. */
#include "clients/replay_world.h"
#include "clients/answer.h"
#include "clients/memory.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JSON_BYTES = 64 * 1024, /* of a body, at most */
    JSON_TOKENS = 4000,     /* ids that surely fit it; more go as a tensor */
    HASH_TOKENS = 512,      /* of a trace, that one of its hash_ids stands for */
    STREAM_Q = 1,
    STREAM_K,
    STREAM_V,
    STREAM_O,
    STREAM_LSE,
    STREAMS = 8 /* a layer */
};

static const char *const daemons_own = "the daemon did it by itself (snapshots, ids, keys that were removed)",
                         *const a_stream = "a stream of events, which has no end",
                         *const no_json =
                             "a workload that a body of JSON cannot say (arrivals with forks, priorities or "
                             "prefixes; more than 64 KiB)",
                         *const too_long = "a body of more than 64 KiB",
                         *const no_lease = "a lease whose blocks are not known here";

/* ---- reading records ------------------------------------------------------------------------------- */

static const cJSON *member(const cJSON *of, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(of, name);
}

static uint64_t integer(const cJSON *of, const char *name)
{
    const cJSON *item = member(of, name);
    return cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : 0;
}

static bool is(const cJSON *of, const char *name, const char *text)
{
    return strcmp(answer_text(of, name), text) == 0;
}

static uint64_t hex(const cJSON *of, const char *name)
{
    return strtoull(answer_text(of, name), NULL, 16);
}

static bool was_done(const cJSON *answer)
{
    return is(answer, "status", "ok");
}

/* ---- hashes ---------------------------------------------------------------------------------------- */

/* SplitMix64's finalizer; never 0. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) + b + UINT64_C(0x632be59bd9b4e019);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x ? x : 1;
}

/* ---- things ---------------------------------------------------------------------------------------- */

static void free_thing(struct replay_thing *t)
{
    free(t->cursors);
    free(t->contents);
    free(t->chain);
    free(t->blocks);
    for (unsigned i = 0; i < REPLAY_TARGETS; i++)
        free(t->here[i]);
    free(t);
}

static void remove_thing(struct replay_world *w, uint64_t id)
{
    struct replay_thing *t = id_map_take(&w->things, id);
    if (!t)
        return;
    w->astray -= t->astray;
    free_thing(t);
}

static struct replay_thing *add_thing(struct replay_world *w, uint64_t id, bool lease)
{
    remove_thing(w, id);
    struct replay_thing *t = memory_must(calloc(1, sizeof *t));
    t->id = id;
    t->lease = lease;
    t->cursors = memory_must(calloc(w->model.layers, sizeof *t->cursors));
    id_map_put(&w->things, id, t);
    return t;
}

static void mark_astray(struct replay_world *w, uint64_t id)
{
    struct replay_thing *t = id_map_get(&w->things, id);
    if (!t || t->astray)
        return;
    t->astray = true;
    w->astray++;
}

void replay_world_free(struct replay_world *w)
{
    size_t at = 0;
    for (void *t; (t = id_map_next(&w->things, &at));)
        free_thing(t);
    at = 0;
    for (void *ids; (ids = id_map_next(&w->workloads, &at));)
        free(ids);
    id_map_free(&w->things);
    at = 0;
    for (void *content; (content = id_map_next(&w->odd, &at));)
        free(content);
    id_map_free(&w->workloads);
    id_map_free(&w->odd);
}

/* Positions up to `end` have a place in contents. */
static void make_room(struct replay_thing *t, uint32_t end)
{
    if (end <= t->room)
        return;
    uint32_t room = 2 * end;
    t->contents = memory_must(realloc(t->contents, room * sizeof *t->contents));
    memset(t->contents + t->room, 0, (room - t->room) * sizeof *t->contents);
    t->room = room;
}

/* The tokens at positions `known` and on are `ids`, without the first `skip` and up to `end` of them. */
static void name_tokens(struct replay_thing *t, const cJSON *ids, uint32_t skip, uint32_t end)
{
    const cJSON *id;
    uint32_t at = 0;
    if (end <= skip)
        return;
    t->chain = memory_must(realloc(t->chain, (t->known + end - skip) * sizeof *t->chain));
    cJSON_ArrayForEach (id, ids) {
        if (at >= skip && at < end) {
            t->chain[t->known] =
                mix(t->known ? t->chain[t->known - 1] : mix(t->salt, 1), (uint64_t)id->valuedouble);
            t->known++;
        }
        at++;
    }
}

/* All layers have `length` tokens, which were found in the cache: rows that follow from the tokens, or from what an odd call wrote. */
static void set_length(struct replay_world *w, struct replay_thing *t, uint32_t length)
{
    make_room(t, length);
    t->cached = length > 0;
    for (uint32_t i = 0; i < length; i++) {
        const uint64_t *odd = i < t->known ? id_map_get(&w->odd, t->chain[i]) : NULL;
        t->doubtful |= odd != NULL;
        t->contents[i] = odd ? *odd : i < t->known ? t->chain[i] : mix(i, 2);
    }
    for (uint32_t i = 0; i < w->model.layers; i++)
        t->cursors[i] = length;
}

static uint32_t length_of(const struct replay_world *w, const struct replay_thing *t)
{
    uint32_t least = t->cursors[0];
    for (uint32_t i = 1; i < w->model.layers; i++)
        least = t->cursors[i] < least ? t->cursors[i] : least;
    return least;
}

/* ---- bodies ---------------------------------------------------------------------------------------- */

static const char *put_json(struct replay_call *call, cJSON *tree)
{
    call->body = cJSON_PrintUnformatted(tree);
    cJSON_Delete(tree);
    memory_must(call->body);
    call->bytes = strlen(call->body);
    if (call->bytes <= JSON_BYTES)
        return NULL;
    free(call->body);
    call->body = NULL;
    return too_long;
}

static const char *put_tensors(struct replay_call *call, struct tensors *t)
{
    call->type = "application/x-safetensors";
    call->body = memory_must(tensors_body(t, NULL, &call->bytes));
    tensors_free(t);
    return NULL;
}

static void __attribute__((format(printf, 2, 3))) add_path(struct replay_call *call, const char *format, ...)
{
    va_list args;
    size_t n = strlen(call->path);
    va_start(args, format);
    vsnprintf(call->path + n, sizeof call->path - n, format, args);
    va_end(args);
}

/* "?limit=", and "cursor=" where the page is not the first. */
static void add_page(struct replay_call *call, const cJSON *request)
{
    uint64_t limit = integer(request, "limit"), cursor = integer(request, "cursor");
    add_path(call, "?limit=%" PRIu64, limit < 1 ? 1 : limit > 1000 ? 1000 : limit);
    if (cursor && cursor <= UINT32_MAX)
        add_path(call, "&cursor=%" PRIu64, cursor);
}

/* A copy of a list of the record. */
static void copy_list(cJSON *to, const char *name, const cJSON *list)
{
    if (cJSON_GetArraySize(list) > 0)
        cJSON_AddItemToObject(to, name, memory_must(cJSON_Duplicate(list, true)));
}

static void add_options(cJSON *to, const cJSON *of)
{
    if (integer(of, "max_tokens"))
        cJSON_AddNumberToObject(to, "max_tokens", (double)integer(of, "max_tokens"));
    if (answer_number(of, "priority") != 0)
        cJSON_AddNumberToObject(to, "priority", answer_number(of, "priority"));
    cJSON_AddNumberToObject(to, "idle_timeout_s", (double)integer(of, "idle_timeout_s"));
}

/* The id that was asked for; or, where the daemon chose it, the one that it chose: so they are the same here. */
static uint64_t id_of_new(const cJSON *request, const cJSON *answer)
{
    uint64_t id = integer(request, "id");
    const cJSON *first = cJSON_GetArrayItem(member(answer, "sequences"), 0);
    return id ? id : integer(first, "id");
}

static cJSON *create_object(const cJSON *of, uint64_t id)
{
    cJSON *o = memory_must(cJSON_CreateObject());
    if (id)
        cJSON_AddNumberToObject(o, "id", (double)id);
    if (answer_text(of, "salt")[0])
        cJSON_AddStringToObject(o, "salt", answer_text(of, "salt"));
    add_options(o, of);
    return o;
}

/* Ids of tokens, as a tensor. */
static void add_tokens(struct tensors *t, const char *name, const cJSON *ids)
{
    size_t n = (size_t)cJSON_GetArraySize(ids), at = 0;
    int64_t *values = memory_must(calloc(n + 1, sizeof *values));
    const cJSON *id;
    cJSON_ArrayForEach (id, ids)
        values[at++] = (int64_t)id->valuedouble;
    tensors_add_integers(t, name, values, n, 0);
    free(values);
}

static const char *make_create(const cJSON *request, const cJSON *answer, struct replay_call *call)
{
    const cJSON *tokens = member(request, "tokens");
    cJSON *o = create_object(request, id_of_new(request, answer));
    if (cJSON_GetArraySize(tokens) <= JSON_TOKENS) {
        copy_list(o, "tokens", tokens);
        return put_json(call, o);
    }
    struct tensors t = {0};
    const cJSON *argument;
    cJSON_ArrayForEach (argument, o) {
        add_path(call, "%c%s=", argument == o->child ? '?' : '&', argument->string);
        if (cJSON_IsString(argument))
            add_path(call, "%s", argument->valuestring);
        else
            add_path(call, "%.0f", argument->valuedouble);
    }
    cJSON_Delete(o);
    add_tokens(&t, "tokens", tokens);
    return put_tensors(call, &t);
}

/* The ids of children: those asked for, or those that the daemon chose. */
static void add_children(cJSON *o, const cJSON *request, const cJSON *answer)
{
    const cJSON *asked = member(request, "ids"), *child;
    if (cJSON_GetArraySize(asked) > 0) {
        copy_list(o, "ids", asked);
    } else if (cJSON_GetArraySize(member(answer, "sequences")) > 0) {
        cJSON *ids = memory_must(cJSON_AddArrayToObject(o, "ids"));
        cJSON_ArrayForEach (child, member(answer, "sequences"))
            cJSON_AddItemToArray(ids, cJSON_CreateNumber(answer_number(child, "id")));
    } else {
        cJSON_AddNumberToObject(o, "count", answer_number(request, "count"));
    }
    if (cJSON_IsNumber(member(request, "length")))
        cJSON_AddNumberToObject(o, "length", answer_number(request, "length"));
}

static const char *make_fork(const cJSON *request, const cJSON *answer, struct replay_call *call)
{
    cJSON *o = memory_must(cJSON_CreateObject());
    add_children(o, request, answer);
    return put_json(call, o);
}

static const char *make_batch(const cJSON *request, const cJSON *answer, struct replay_call *call)
{
    const cJSON *result = member(answer, "results") ? member(answer, "results")->child : NULL;
    cJSON *o = memory_must(cJSON_CreateObject()), *ops = memory_must(cJSON_AddArrayToObject(o, "ops"));
    const cJSON *op;
    cJSON_ArrayForEach (op, member(request, "ops")) {
        bool creates = is(op, "op", "create");
        cJSON *to = creates ? create_object(op, id_of_new(op, result)) : memory_must(cJSON_CreateObject());
        cJSON_AddStringToObject(to, "op", answer_text(op, "op"));
        if (creates)
            copy_list(to, "tokens", member(op, "tokens"));
        else
            cJSON_AddNumberToObject(to, "id", answer_number(op, "id"));
        if (is(op, "op", "fork"))
            add_children(to, op, result);
        else if (is(op, "op", "truncate"))
            cJSON_AddNumberToObject(to, "length", answer_number(op, "length"));
        cJSON_AddItemToArray(ops, to);
        result = result ? result->next : NULL;
    }
    return put_json(call, o);
}

/* ---- rows of numbers ------------------------------------------------------------------------------- */

/* What a row at a position follows from; `again`: another one than what stands there. */
static uint64_t content_at(const struct replay_thing *t, uint32_t layer, uint32_t position, uint64_t digest,
                           uint32_t row, bool again)
{
    bool stands = t && position < t->cursors[layer];
    if (stands && again)
        return mix(mix(digest, row), 3);
    if (t && position < t->room && t->contents[position])
        return t->contents[position];
    return t && position < t->known ? t->chain[position] : mix(digest, row);
}

/* Where a sequence's first row goes. */
static uint32_t position_of(const struct replay_world *w, const struct replay_thing *t, const cJSON *named,
                            uint32_t layer, bool all_layers)
{
    const cJSON *position = member(named, "position");
    if (cJSON_IsNumber(position))
        return (uint32_t)position->valuedouble;
    return !t ? 0 : all_layers ? length_of(w, t) : t->cursors[layer];
}

/* Note rows of a sequence that its tokens name and that follow from something else: they stood before they were named. The prompt cache may
 * have them from now on. */
static void note_odd(struct replay_world *w, const struct replay_thing *t, uint32_t from, uint32_t end)
{
    for (uint32_t i = from; i < end && i < t->known && i < t->room; i++) {
        uint64_t *odd = id_map_get(&w->odd, t->chain[i]);
        if (!t->contents[i] || t->contents[i] == t->chain[i])
            continue;
        if (!odd) {
            odd = memory_must(calloc(1, sizeof *odd));
            id_map_put(&w->odd, t->chain[i], odd);
        }
        *odd = t->contents[i];
    }
}

/* What an append says of its tokens: those that continue what is known of their sequence. */
static void name_rows(struct replay_world *w, const cJSON *request, uint32_t layer, bool all_layers)
{
    const cJSON *tokens = member(request, "token_ids"), *named;
    uint32_t row = 0, count = (uint32_t)cJSON_GetArraySize(tokens);
    cJSON_ArrayForEach (named, member(request, "sequences")) {
        struct replay_thing *t = id_map_get(&w->things, integer(named, "id"));
        uint32_t n = (uint32_t)integer(named, "rows"), position = position_of(w, t, named, layer, all_layers);
        if (t && !t->lease && position <= t->known && row + n <= count)
            name_tokens(t, tokens, row + (t->known - position), row + n);
        row += n;
    }
}

/* K and V of rows, for one layer after the other. Of a layer that stands at another length the same contents do. */
static void add_keys_and_values(struct tensors *t, const struct model *m, const uint64_t *contents,
                                size_t rows, uint32_t first_layer, uint32_t layers, bool layered)
{
    static const struct {
        const char *name;
        unsigned stream;
    } both[] = {{"k", STREAM_K}, {"v", STREAM_V}};
    size_t wide = (size_t)m->kv_heads * m->head_dim;
    const uint64_t shape[] = {layers, rows, m->kv_heads, m->head_dim};
    float *values = memory_must(calloc(layers * rows * wide + 1, sizeof *values));
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        for (uint32_t layer = 0; layer < layers; layer++) {
            for (size_t row = 0; row < rows; row++)
                tensors_generate(contents[row], (first_layer + layer) * STREAMS + both[i].stream, 0, wide,
                                 values + (layer * rows + row) * wide);
        }
        tensors_add_values(t, both[i].name, m->dtype, layered ? 4 : 3, layered ? shape : shape + 1, values);
    }
    free(values);
}

static void add_queries(struct tensors *t, const struct model *m, uint64_t digest, uint32_t layer,
                        size_t rows)
{
    size_t wide = (size_t)m->query_heads * m->head_dim;
    const uint64_t shape[] = {rows, m->query_heads, m->head_dim};
    float *values = memory_must(calloc(rows * wide + 1, sizeof *values));
    tensors_generate(digest, layer * STREAMS + STREAM_Q, 0, rows * wide, values);
    tensors_add_values(t, "q", m->dtype, 3, shape, values);
    free(values);
}

/* "?layer=", and what is asked of the outputs. */
static void add_wishes(struct replay_call *call, const cJSON *request, bool computes)
{
    const char *kernel = answer_text(request, "kernel");
    char mark = '?';
    if (cJSON_IsNumber(member(request, "layer"))) {
        add_path(call, "?layer=%" PRIu64, integer(request, "layer"));
        mark = '&';
    }
    if (!computes)
        return;
    add_path(call, "%clse=1", mark);
    if (strcmp(kernel, "auto") != 0)
        add_path(call, "&kernel=%s", kernel);
    call->accept = "application/x-safetensors";
}

static const char *make_attend(struct replay_world *w, const cJSON *request, const cJSON *answer,
                               struct replay_call *call)
{
    const struct model *m = &w->model;
    const cJSON *sequences = member(request, "sequences"), *named, *tokens = member(request, "token_ids");
    size_t count = (size_t)cJSON_GetArraySize(sequences), rows = (size_t)integer(request, "rows"), at = 0,
           row = 0;
    uint32_t layer = (uint32_t)integer(request, "layer");
    bool all = !cJSON_IsNumber(member(request, "layer")), placed = false,
         q = cJSON_IsTrue(member(request, "q"));
    bool again = is(answer, "status", "content_conflict");
    uint64_t digest = hex(request, "digest");
    int64_t *ids = memory_must(calloc(3 * count + 3, sizeof *ids)), *indptr = ids + count,
            *positions = indptr + count + 1;
    uint64_t *contents = memory_must(calloc(rows + 1, sizeof *contents));
    if (layer >= m->layers)
        layer = 0;
    if (was_done(answer))
        name_rows(w, request, layer, all);
    cJSON_ArrayForEach (named, sequences) {
        const struct replay_thing *t = id_map_get(&w->things, integer(named, "id"));
        uint32_t n = (uint32_t)integer(named, "rows"), position = position_of(w, t, named, layer, all);
        ids[at] = (int64_t)integer(named, "id");
        positions[at] = position;
        placed |= cJSON_IsNumber(member(named, "position"));
        indptr[at + 1] = indptr[at] + n;
        for (uint32_t i = 0; i < n && row < rows; i++, row++)
            contents[row] = content_at(t, layer, position + i, digest, (uint32_t)row, again);
        at++;
    }
    struct tensors t = {0};
    tensors_add_integers(&t, "sequences", ids, count, 0);
    tensors_add_integers(&t, "indptr", indptr, count + 1, 0);
    if (placed)
        tensors_add_integers(&t, "positions", positions, count, 0);
    if ((size_t)cJSON_GetArraySize(tokens) == rows)
        add_tokens(&t, "token_ids", tokens);
    if (cJSON_IsTrue(member(request, "k")))
        add_keys_and_values(&t, m, contents, rows, all ? 0 : layer, all ? m->layers : 1, all);
    if (q)
        add_queries(&t, m, digest, layer, rows);
    add_wishes(call, request, q);
    free(ids);
    free(contents);
    return put_tensors(call, &t);
}

/* The block that stands here for the recorded one of a lease; -1: there is none. */
static int64_t block_here(const struct replay_thing *lease, unsigned target, uint64_t block)
{
    for (uint32_t i = 0; i < lease->count; i++) {
        if (lease->blocks[i] == block)
            return lease->here[target][i];
    }
    return -1;
}

/* Lists of integers of the record as a tensor; the number of those. */
static size_t add_integers(struct tensors *t, const char *name, const cJSON *list)
{
    if (cJSON_GetArraySize(list) > 0)
        add_tokens(t, name, list);
    return (size_t)cJSON_GetArraySize(list);
}

static const char *make_paged(const struct replay_world *w, const cJSON *request, unsigned target,
                              struct replay_call *call)
{
    const struct replay_thing *lease = id_map_get(&w->things, integer(request, "id"));
    const struct model *m = &w->model;
    const cJSON *tables = member(request, "block_tables"), *table, *slots = member(request, "slot_mapping"),
                *item;
    size_t sequences = (size_t)cJSON_GetArraySize(tables), tokens = (size_t)cJSON_GetArraySize(slots),
           columns = 1, at = 0;
    uint32_t layer = (uint32_t)integer(request, "layer");
    uint64_t digest = hex(request, "digest");
    bool q = cJSON_IsTrue(member(request, "q"));
    struct tensors t = {0};
    if (lease && (!lease->lease || !lease->here[target]))
        return no_lease;
    cJSON_ArrayForEach (table, tables)
        columns = (size_t)cJSON_GetArraySize(table) > columns ? (size_t)cJSON_GetArraySize(table) : columns;
    int64_t *ids = memory_must(calloc(sequences * columns + tokens + 1, sizeof *ids)),
            *places = ids + sequences * columns;
    uint64_t *contents = memory_must(calloc(tokens + 1, sizeof *contents));
    cJSON_ArrayForEach (table, tables) {
        size_t column = 0;
        cJSON_ArrayForEach (item, table)
            ids[at * columns + column++] =
                lease ? block_here(lease, target, (uint64_t)item->valuedouble) : (int64_t)item->valuedouble;
        for (; column < columns; column++)
            ids[at * columns + column] = -1;
        at++;
    }
    at = 0;
    cJSON_ArrayForEach (item, slots) {
        double slot = item->valuedouble;
        int64_t block = slot < 0 || !lease ? (int64_t)slot / m->block_size
                                           : block_here(lease, target, (uint64_t)slot / m->block_size);
        places[at] = slot < 0 || block < 0 ? -1 : block * m->block_size + (int64_t)slot % m->block_size;
        contents[at] = mix(digest, at);
        at++;
    }
    if (q) {
        add_integers(&t, "indptr", member(request, "indptr"));
        add_integers(&t, "context_lens", member(request, "context_lens"));
        tensors_add_integers(&t, "block_tables", ids, sequences * columns, columns);
        add_queries(&t, m, digest, layer, (size_t)integer(request, "rows"));
    }
    if (tokens)
        tensors_add_integers(&t, "slot_mapping", places, tokens, 0);
    if (cJSON_IsTrue(member(request, "k")))
        add_keys_and_values(&t, m, contents, tokens, layer, 1, false);
    add_wishes(call, request, q);
    add_path(call, "%clease=%" PRIu64, strchr(call->path, '?') ? '&' : '?', integer(request, "id"));
    free(ids);
    free(contents);
    return put_tensors(call, &t);
}

/* States of which the journal has no digest: numbers of the request. */
static const char *make_merge(const struct replay_world *w, const cJSON *request, struct replay_call *call)
{
    const struct model *m = &w->model;
    const uint64_t shape[] = {integer(request, "states"), integer(request, "rows"), m->query_heads,
                              m->head_dim};
    size_t heads = (size_t)(shape[0] * shape[1] * shape[2]), seed = (size_t)integer(request, "request");
    float *values = memory_must(calloc(heads * m->head_dim + 1, sizeof *values));
    struct tensors t = {0};
    tensors_generate(seed, STREAM_O, 0, heads * m->head_dim, values);
    tensors_add_values(&t, "o", m->dtype, 4, shape, values);
    tensors_generate(seed, STREAM_LSE, 0, heads, values);
    tensors_add_values(&t, "lse", "f32", 3, shape, values);
    free(values);
    call->accept = "application/x-safetensors";
    return put_tensors(call, &t);
}

static const char *make_parameters(const cJSON *request, struct replay_call *call)
{
    static const char *const names[] = {"sinks", "alibi_slopes", "k_scale", "v_scale"};
    cJSON *o = memory_must(cJSON_CreateObject());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        copy_list(o, names[i], member(request, names[i]));
    return put_json(call, o);
}

/* ---- workloads ------------------------------------------------------------------------------------- */

/* One request of a workload, as an entry of "sequences"; NULL: it cannot be said. */
static cJSON *sequences_entry(const cJSON *r)
{
    const cJSON *spans = member(r, "spans"), *span = cJSON_GetArrayItem(spans, 0);
    double priority = answer_number(r, "priority");
    if (answer_number(r, "arrival_s") > 0 || cJSON_GetArraySize(spans) > 1 ||
        (span && !is(span, "content", "prefix")) || priority > 1000 || priority < -1000)
        return NULL;
    cJSON *o = memory_must(cJSON_CreateObject());
    cJSON_AddNumberToObject(o, "prompt", answer_number(r, "prompt"));
    cJSON_AddNumberToObject(o, "decode", answer_number(r, "decode"));
    if (priority != 0)
        cJSON_AddNumberToObject(o, "priority", priority);
    if (span) {
        cJSON *prefix = cJSON_AddObjectToObject(o, "prefix");
        cJSON_AddNumberToObject(prefix, "id", answer_number(span, "number"));
        cJSON_AddNumberToObject(prefix, "length", answer_number(span, "end"));
    }
    if (integer(r, "forks")) {
        cJSON *fork = cJSON_AddObjectToObject(o, "fork");
        cJSON_AddNumberToObject(fork, "at", answer_number(r, "fork_at"));
        cJSON_AddNumberToObject(fork, "count", answer_number(r, "forks"));
    }
    return o;
}

/* Likewise of "trace". */
static cJSON *trace_entry(const cJSON *r)
{
    const cJSON *spans = member(r, "spans"), *span;
    double end = 0, prompt = answer_number(r, "prompt");
    if (integer(r, "forks") || answer_number(r, "priority") != 0)
        return NULL;
    cJSON *o = memory_must(cJSON_CreateObject());
    cJSON_AddNumberToObject(o, "arrival_s", answer_number(r, "arrival_s"));
    cJSON_AddNumberToObject(o, "prompt", prompt);
    cJSON_AddNumberToObject(o, "decode", answer_number(r, "decode"));
    cJSON *hashes = cJSON_AddArrayToObject(o, "hash_ids");
    cJSON_ArrayForEach (span, spans) {
        end = end + HASH_TOKENS < prompt ? end + HASH_TOKENS : prompt;
        if (!is(span, "content", "hash") || answer_number(span, "end") != end) {
            cJSON_Delete(o);
            return NULL;
        }
        cJSON_AddItemToArray(hashes, cJSON_CreateNumber(answer_number(span, "number")));
    }
    return o;
}

/* All requests as entries; false: one cannot be said so. Equal ones in a row are one with a count. */
static bool add_entries(cJSON *body, const char *name, cJSON *(*entry_of)(const cJSON *r),
                        const cJSON *requests)
{
    cJSON *list = memory_must(cJSON_AddArrayToObject(body, name)), *last = NULL;
    const cJSON *r, *before = NULL;
    cJSON_ArrayForEach (r, requests) {
        cJSON *count = last && entry_of == sequences_entry && cJSON_Compare(r, before, true)
                           ? cJSON_GetObjectItem(last, "count")
                           : NULL;
        before = r;
        if (count) {
            cJSON_SetNumberValue(count, count->valuedouble + 1);
            continue;
        }
        last = entry_of(r);
        if (!last) {
            cJSON_DeleteItemFromObject(body, name);
            return false;
        }
        if (entry_of == sequences_entry)
            cJSON_AddNumberToObject(last, "count", 1);
        cJSON_AddItemToArray(list, last);
    }
    return true;
}

static const char *make_workload(const struct replay_world *w, const cJSON *request, struct replay_call *call)
{
    cJSON *o = memory_must(cJSON_CreateObject());
    const cJSON *requests = member(request, "requests");
    double deadline = answer_number(request, "deadline_s");
    cJSON_AddNumberToObject(o, "seed", answer_number(request, "seed"));
    cJSON_AddStringToObject(o, "sharing", answer_text(request, "sharing"));
    if (cJSON_IsTrue(member(request, "attend_prompt")))
        cJSON_AddStringToObject(o, "prefill", "attend");
    if (deadline > 0 && deadline < w->workload_s)
        cJSON_AddNumberToObject(o, "deadline_s", deadline);
    if (integer(request, "verify_rows"))
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(o, "verify"), "rows",
                                answer_number(request, "verify_rows"));
    if (!add_entries(o, "sequences", sequences_entry, requests) &&
        !add_entries(o, "trace", trace_entry, requests)) {
        cJSON_Delete(o);
        return no_json;
    }
    return put_json(call, o) ? no_json : NULL;
}

/* The id here of a workload that was recorded; 0: it is not here. */
static uint64_t workload_here(const struct replay_world *w, uint64_t id, unsigned target)
{
    const uint64_t *ids = id_map_get(&w->workloads, id);
    return ids ? ids[target] : 0;
}

static bool has_ended(const cJSON *answer)
{
    return is(answer, "state", "finished") || is(answer, "state", "cancelled");
}

/* A look at a workload, or its end: one that had ended when it was looked at is waited for, as a stream. */
static const char *make_look(const struct replay_world *w, const cJSON *request, const cJSON *answer,
                             unsigned target, struct replay_call *call)
{
    uint64_t id = integer(request, "id"), here = workload_here(w, id, target);
    if (!here && was_done(answer))
        return "a workload that was not begun here";
    snprintf(call->path, sizeof call->path, "/v1/workloads/%" PRIu64, here ? here : id);
    if (is(request, "what", "workload_cancel")) {
        call->method = "DELETE";
    } else if (has_ended(answer)) {
        add_path(call, "/events");
        call->accept = "application/x-ndjson";
    }
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------- */

enum kind_of_body {
    BODY_NONE,
    BODY_PAGE,
    BODY_CREATE,
    BODY_FORK,
    BODY_TRUNCATE,
    BODY_BATCH,
    BODY_LEASE,
    BODY_ATTEND,
    BODY_PAGED,
    BODY_MERGE,
    BODY_PARAMETERS,
    BODY_WORKLOAD,
    BODY_LOOK,
    BODY_EXPORT,
    BODY_MOVED,
    BODY_STEPS
};

/* How a kind of request is sent: "{}" is the resource, sequences or leases, and "#" the id. */
static const struct route {
    const char *what, *method, *path;
    enum kind_of_body body;
} routes[] = {
    {"create", "POST", "/v1/sequences", BODY_CREATE},
    {"sequence", "GET", "/v1/{}/#", BODY_NONE},
    {"blocks", "GET", "/v1/{}/#/blocks", BODY_PAGE},
    {"fork", "POST", "/v1/sequences/#/fork", BODY_FORK},
    {"truncate", "POST", "/v1/sequences/#/truncate", BODY_TRUNCATE},
    {"export", "GET", "/v1/sequences/#/kv", BODY_EXPORT},
    {"moved", "POST", "/v1/sequences/#/moved", BODY_MOVED},
    {"delete", "DELETE", "/v1/{}/#", BODY_NONE},
    {"batch", "POST", "/v1/batch", BODY_BATCH},
    {"lease", "POST", "/v1/leases", BODY_LEASE},
    {"append", "POST", "/v1/append", BODY_ATTEND},
    {"attend", "POST", "/v1/attend", BODY_ATTEND},
    {"paged", "POST", "/v1/paged", BODY_PAGED},
    {"merge", "POST", "/v1/merge", BODY_MERGE},
    {"parameters", "PUT", "/v1/parameters", BODY_PARAMETERS},
    {"roof", "POST", "/v1/roof", BODY_NONE},
    {"self_test", "POST", "/v1/selftest", BODY_NONE},
    {"stats", "GET", "/stats", BODY_PAGE},
    {"list", "GET", "/v1/{}", BODY_PAGE},
    {"pool", "GET", "/v1/blocks", BODY_PAGE},
    {"steps", "GET", "/v1/steps", BODY_STEPS},
    {"block_life", "GET", "/v1/blocks/#/history", BODY_NONE},
    {"waiting", "GET", "/v1/waiting", BODY_NONE},
    {"prefixes", "GET", "/v1/prefixes", BODY_NONE},
    {"audit", "POST", "/v1/audit", BODY_NONE},
    {"trim", "POST", "/v1/trim", BODY_NONE},
    {"workload_start", "POST", "/v1/workloads", BODY_WORKLOAD},
    {"workloads", "GET", "/v1/workloads", BODY_NONE},
    {"workload", "GET", "", BODY_LOOK},
    {"workload_cancel", "DELETE", "", BODY_LOOK},
};

static const struct route *route_of(const cJSON *request)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (is(request, "what", routes[i].what))
            return &routes[i];
    }
    return NULL;
}

static void fill_path(struct replay_call *call, const char *path, const cJSON *request)
{
    for (const char *s = path; *s; s++) {
        if (*s == '#')
            add_path(call, "%" PRIu64, integer(request, "id"));
        else if (*s == '{')
            add_path(call, "%s", cJSON_IsTrue(member(request, "of_leases")) ? "leases" : "sequences");
        else if (*s != '}')
            add_path(call, "%c", *s);
    }
}

static const char *make_body(struct replay_world *w, enum kind_of_body body, const cJSON *request,
                             const cJSON *answer, unsigned target, struct replay_call *call)
{
    cJSON *o;
    uint64_t limit = integer(request, "limit");
    switch (body) {
    case BODY_NONE:
        return NULL;
    case BODY_PAGE:
        add_page(call, request);
        return NULL;
    case BODY_STEPS:
        add_path(call, "?limit=%" PRIu64, limit < 1 ? 1 : limit > 1000 ? 1000 : limit);
        return NULL;
    case BODY_EXPORT:
        add_path(call, "?range=%" PRIu64 ":%" PRIu64, integer(request, "first"), integer(request, "end"));
        call->accept = "application/x-safetensors";
        return NULL;
    case BODY_CREATE:
        return make_create(request, answer, call);
    case BODY_FORK:
        return make_fork(request, answer, call);
    case BODY_BATCH:
        return make_batch(request, answer, call);
    case BODY_TRUNCATE:
        o = memory_must(cJSON_CreateObject());
        cJSON_AddNumberToObject(o, "length", answer_number(request, "length"));
        return put_json(call, o);
    case BODY_MOVED:
        o = memory_must(cJSON_CreateObject());
        cJSON_AddStringToObject(o, "moved_to", answer_text(request, "moved_to"));
        cJSON_AddNumberToObject(o, "length", answer_number(request, "length"));
        return put_json(call, o);
    case BODY_LEASE:
        o = create_object(request, id_of_new(request, answer));
        cJSON_DeleteItemFromObject(o, "max_tokens");
        cJSON_AddNumberToObject(o, "blocks", answer_number(request, "blocks"));
        return put_json(call, o);
    case BODY_ATTEND:
        return make_attend(w, request, answer, call);
    case BODY_PAGED:
        return make_paged(w, request, target, call);
    case BODY_MERGE:
        return make_merge(w, request, call);
    case BODY_PARAMETERS:
        return make_parameters(request, call);
    case BODY_WORKLOAD:
        return make_workload(w, request, call);
    case BODY_LOOK:
        return make_look(w, request, answer, target, call);
    }
    return NULL;
}

const char *replay_world_call(struct replay_world *w, const cJSON *request, const cJSON *answer,
                              unsigned target, struct replay_call *call)
{
    const struct route *route = route_of(request);
    *call = (struct replay_call){0};
    if (!route)
        return is(request, "what", "events") ? a_stream : daemons_own;
    call->method = route->method;
    fill_path(call, route->path, request);
    return make_body(w, route->body, request, answer, target, call);
}

/* ---- what follows ---------------------------------------------------------------------------------- */

static void note_create(struct replay_world *w, const cJSON *of, uint64_t id, uint32_t length)
{
    if (!id)
        return;
    struct replay_thing *t = add_thing(w, id, false);
    t->salt = hex(of, "salt");
    name_tokens(t, member(of, "tokens"), 0, (uint32_t)cJSON_GetArraySize(member(of, "tokens")));
    set_length(w, t, length);
}

/* One that the daemon had from its start, and that is not here. */
static void note_restored(struct replay_world *w, const cJSON *request, uint64_t id)
{
    note_create(w, request, id, (uint32_t)integer(request, "length"));
    mark_astray(w, id);
}

static void note_children(struct replay_world *w, uint64_t parent, const cJSON *of, const cJSON *children)
{
    const cJSON *child;
    bool cut = cJSON_IsNumber(member(of, "length"));
    uint32_t cut_at = (uint32_t)integer(of, "length");
    cJSON_ArrayForEach (child, children) {
        uint64_t id = cJSON_IsNumber(child) ? (uint64_t)child->valuedouble : integer(child, "id");
        struct replay_thing *t = add_thing(w, id, false), *from = id_map_get(&w->things, parent);
        if (!from)
            continue;
        for (uint32_t i = 0; i < w->model.layers; i++)
            t->cursors[i] = cut && cut_at < from->cursors[i] ? cut_at : from->cursors[i];
        make_room(t, from->room);
        if (from->room)
            memcpy(t->contents, from->contents, from->room * sizeof *t->contents);
        for (uint32_t i = cut ? cut_at : t->room; i < t->room; i++)
            t->contents[i] = 0;
        t->salt = from->salt;
        t->known = cut && cut_at < from->known ? cut_at : from->known;
        if (t->known > length_of(w, t))
            t->known = length_of(w, t);
        t->chain = memory_must(calloc(t->known + 1, sizeof *t->chain));
        if (t->known)
            memcpy(t->chain, from->chain, t->known * sizeof *t->chain);
        t->cached = from->cached;
        t->doubtful = from->doubtful;
        if (from->astray)
            mark_astray(w, id);
    }
}

static void note_truncate(struct replay_world *w, uint64_t id, uint32_t length)
{
    struct replay_thing *t = id_map_get(&w->things, id);
    uint32_t most = 0;
    for (uint32_t i = 0; t && i < w->model.layers; i++)
        most = t->cursors[i] > most ? t->cursors[i] : most;
    if (!t || length >= most) /* nothing is cut: what stands behind the end is named as before */
        return;
    for (uint32_t i = 0; i < w->model.layers; i++)
        t->cursors[i] = t->cursors[i] < length ? t->cursors[i] : length;
    for (uint32_t i = length; i < t->room; i++)
        t->contents[i] = 0;
    t->known = t->known < length ? t->known : length;
}

static void note_rows(struct replay_world *w, const cJSON *request)
{
    const cJSON *named;
    uint32_t layer = (uint32_t)integer(request, "layer"), row = 0;
    bool all = !cJSON_IsNumber(member(request, "layer")), keys = cJSON_IsTrue(member(request, "k"));
    uint64_t digest = hex(request, "digest");
    if (!keys || layer >= w->model.layers)
        return;
    cJSON_ArrayForEach (named, member(request, "sequences")) {
        struct replay_thing *t = id_map_get(&w->things, integer(named, "id"));
        uint32_t n = (uint32_t)integer(named, "rows"), position = position_of(w, t, named, layer, all);
        if (t && !t->lease) {
            make_room(t, position + n);
            for (uint32_t i = 0; i < n; i++)
                t->contents[position + i] = content_at(t, layer, position + i, digest, row + i, false);
            for (uint32_t i = 0; i < w->model.layers; i++) {
                if ((all || i == layer) && t->cursors[i] < position + n)
                    t->cursors[i] = position + n;
            }
            note_odd(w, t, position, position + n);
        }
        row += n;
    }
}

static void note_batch(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    const cJSON *op, *result = member(answer, "results") ? member(answer, "results")->child : NULL;
    cJSON_ArrayForEach (op, member(request, "ops")) {
        uint64_t id = integer(op, "id");
        const cJSON *made = member(result, "sequences"), *first = cJSON_GetArrayItem(made, 0);
        if (is(op, "op", "create"))
            note_create(w, op, integer(first, "id"), (uint32_t)integer(first, "length"));
        else if (is(op, "op", "fork"))
            note_children(w, id, op, made);
        else if (is(op, "op", "truncate"))
            note_truncate(w, id, (uint32_t)integer(op, "length"));
        else
            remove_thing(w, id);
        result = result ? result->next : NULL;
    }
}

static void note_lease(struct replay_world *w, const cJSON *answer)
{
    const cJSON *blocks = member(answer, "block_ids"), *block;
    struct replay_thing *t =
        add_thing(w, integer(cJSON_GetArrayItem(member(answer, "sequences"), 0), "id"), true);
    t->blocks = memory_must(calloc((size_t)cJSON_GetArraySize(blocks) + 1, sizeof *t->blocks));
    cJSON_ArrayForEach (block, blocks)
        t->blocks[t->count++] = (uint32_t)block->valuedouble;
}

void replay_world_note(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    uint64_t id = integer(request, "id");
    const cJSON *sequences = member(answer, "sequences"), *first = cJSON_GetArrayItem(sequences, 0);
    if (!was_done(answer))
        return;
    if (is(request, "what", "create"))
        note_create(w, request, integer(first, "id"), (uint32_t)integer(first, "length"));
    else if (is(request, "what", "restore"))
        note_restored(w, request, id);
    else if (is(request, "what", "fork"))
        note_children(w, id, request, sequences);
    else if (is(request, "what", "truncate"))
        note_truncate(w, id, (uint32_t)integer(request, "length"));
    else if (is(request, "what", "append") || is(request, "what", "attend"))
        note_rows(w, request);
    else if (is(request, "what", "batch"))
        note_batch(w, request, answer);
    else if (is(request, "what", "lease"))
        note_lease(w, answer);
    else if (is(request, "what", "delete") || is(request, "what", "moved"))
        remove_thing(w, id);
}

void replay_world_learn(struct replay_world *w, const cJSON *request, const cJSON *answer, const cJSON *here,
                        unsigned target)
{
    if (!was_done(answer))
        return;
    if (is(request, "what", "lease")) {
        struct replay_thing *t =
            id_map_get(&w->things, integer(cJSON_GetArrayItem(member(answer, "sequences"), 0), "id"));
        const cJSON *blocks = member(here, "blocks"), *block;
        uint32_t n = 0;
        if (!t || (uint32_t)cJSON_GetArraySize(blocks) != t->count)
            return;
        free(t->here[target]);
        t->here[target] = memory_must(calloc(t->count + 1, sizeof *t->blocks));
        cJSON_ArrayForEach (block, blocks)
            t->here[target][n++] = (uint32_t)block->valuedouble;
    } else if (is(request, "what", "workload_start")) {
        uint64_t *ids = id_map_get(&w->workloads, integer(answer, "workload"));
        if (!ids) {
            ids = memory_must(calloc(REPLAY_TARGETS, sizeof *ids));
            id_map_put(&w->workloads, integer(answer, "workload"), ids);
        }
        ids[target] = integer(here, "id");
    }
}

/* Call `each` for every id that a request names or, being answered, makes. */
static void each_id(const cJSON *request, const cJSON *answer, void (*each)(uint64_t id, void *cookie),
                    void *cookie)
{
    const cJSON *item, *child;
    each(integer(request, "id"), cookie);
    cJSON_ArrayForEach (item, member(request, "sequences"))
        each(integer(item, "id"), cookie);
    cJSON_ArrayForEach (item, member(answer, "sequences"))
        each(integer(item, "id"), cookie);
    cJSON_ArrayForEach (item, member(answer, "results"))
        cJSON_ArrayForEach (child, member(item, "sequences"))
            each(integer(child, "id"), cookie);
    cJSON_ArrayForEach (item, member(request, "ids"))
        each((uint64_t)item->valuedouble, cookie);
    cJSON_ArrayForEach (item, member(request, "ops")) {
        each(integer(item, "id"), cookie);
        cJSON_ArrayForEach (child, member(item, "ids"))
            each((uint64_t)child->valuedouble, cookie);
    }
}

static void mark_one(uint64_t id, void *cookie)
{
    mark_astray(cookie, id);
}

void replay_world_stray(struct replay_world *w, const cJSON *request, const cJSON *answer)
{
    each_id(request, answer, mark_one, w);
}

struct search {
    const struct replay_world *world;
    bool found, cached, doubtful;
};

static void look_at_one(uint64_t id, void *cookie)
{
    struct search *s = cookie;
    const struct replay_thing *t = id_map_get(&s->world->things, id);
    s->found |= t && t->astray;
    s->cached |= t && t->cached;
    s->doubtful |= t && t->doubtful;
}

bool replay_world_is_astray(const struct replay_world *w, const cJSON *request)
{
    struct search s = {.world = w};
    each_id(request, NULL, look_at_one, &s);
    return s.found;
}

bool replay_world_is_doubtful(const struct replay_world *w, const cJSON *request, bool strayed)
{
    struct search s = {.world = w};
    each_id(request, NULL, look_at_one, &s);
    return s.doubtful || (s.cached && strayed);
}
