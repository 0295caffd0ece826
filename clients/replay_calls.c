/* SPDX-License-Identifier: Apache-2.0 */
/* replay_calls.c - see replay_calls.h. */
#include "clients/replay_calls.h"
#include "clients/memory.h"
#include "clients/replay_record.h"
#include "clients/tensors.h"

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
                         *const no_json =
                             "a workload that a body of JSON cannot say (arrivals with forks, priorities or "
                             "prefixes; more than 64 KiB)",
                         *const too_long = "a body of more than 64 KiB",
                         *const no_lease = "a lease whose blocks are not known here";

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
    uint64_t limit = record_integer(request, "limit"), cursor = record_integer(request, "cursor");
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
    if (record_integer(of, "max_tokens"))
        cJSON_AddNumberToObject(to, "max_tokens", (double)record_integer(of, "max_tokens"));
    if (answer_number(of, "priority") != 0)
        cJSON_AddNumberToObject(to, "priority", answer_number(of, "priority"));
    cJSON_AddNumberToObject(to, "idle_timeout_s", (double)record_integer(of, "idle_timeout_s"));
}

/* The id that was asked for; or, where the daemon chose it, the one that it chose: so they are the same here. */
static uint64_t id_of_new(const cJSON *request, const cJSON *answer)
{
    uint64_t id = record_integer(request, "id");
    const cJSON *first = cJSON_GetArrayItem(record_member(answer, "sequences"), 0);
    return id ? id : record_integer(first, "id");
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
    const cJSON *tokens = record_member(request, "tokens");
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
    const cJSON *asked = record_member(request, "ids"), *child;
    if (cJSON_GetArraySize(asked) > 0) {
        copy_list(o, "ids", asked);
    } else if (cJSON_GetArraySize(record_member(answer, "sequences")) > 0) {
        cJSON *ids = memory_must(cJSON_AddArrayToObject(o, "ids"));
        cJSON_ArrayForEach (child, record_member(answer, "sequences"))
            cJSON_AddItemToArray(ids, cJSON_CreateNumber(answer_number(child, "id")));
    } else {
        cJSON_AddNumberToObject(o, "count", answer_number(request, "count"));
    }
    if (cJSON_IsNumber(record_member(request, "length")))
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
    const cJSON *result = record_member(answer, "results") ? record_member(answer, "results")->child : NULL;
    cJSON *o = memory_must(cJSON_CreateObject()), *ops = memory_must(cJSON_AddArrayToObject(o, "ops"));
    const cJSON *op;
    cJSON_ArrayForEach (op, record_member(request, "ops")) {
        bool creates = record_is(op, "op", "create");
        cJSON *to = creates ? create_object(op, id_of_new(op, result)) : memory_must(cJSON_CreateObject());
        cJSON_AddStringToObject(to, "op", answer_text(op, "op"));
        if (creates)
            copy_list(to, "tokens", record_member(op, "tokens"));
        else
            cJSON_AddNumberToObject(to, "id", answer_number(op, "id"));
        if (record_is(op, "op", "fork"))
            add_children(to, op, result);
        else if (record_is(op, "op", "truncate"))
            cJSON_AddNumberToObject(to, "length", answer_number(op, "length"));
        cJSON_AddItemToArray(ops, to);
        result = result ? result->next : NULL;
    }
    return put_json(call, o);
}

/* ---- rows of numbers ------------------------------------------------------------------------------- */

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
    if (cJSON_IsNumber(record_member(request, "layer"))) {
        add_path(call, "?layer=%" PRIu64, record_integer(request, "layer"));
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
    const cJSON *sequences = record_member(request, "sequences"), *named,
                *tokens = record_member(request, "token_ids");
    size_t count = (size_t)cJSON_GetArraySize(sequences), rows = (size_t)record_integer(request, "rows"),
           at = 0, row = 0;
    uint32_t layer = (uint32_t)record_integer(request, "layer");
    bool all = !cJSON_IsNumber(record_member(request, "layer")), placed = false,
         q = cJSON_IsTrue(record_member(request, "q"));
    bool again = record_is(answer, "status", "content_conflict");
    uint64_t digest = record_hex(request, "digest");
    int64_t *ids = memory_must(calloc(3 * count + 3, sizeof *ids)), *indptr = ids + count,
            *positions = indptr + count + 1;
    uint64_t *contents = memory_must(calloc(rows + 1, sizeof *contents));
    if (layer >= m->layers)
        layer = 0;
    if (record_was_done(answer))
        replay_world_name_rows(w, request, layer, all);
    cJSON_ArrayForEach (named, sequences) {
        const struct replay_thing *t = id_map_get(&w->things, record_integer(named, "id"));
        uint32_t n = (uint32_t)record_integer(named, "rows"),
                 position = replay_world_position(w, t, named, layer, all);
        ids[at] = (int64_t)record_integer(named, "id");
        positions[at] = position;
        placed |= cJSON_IsNumber(record_member(named, "position"));
        indptr[at + 1] = indptr[at] + n;
        for (uint32_t i = 0; i < n && row < rows; i++, row++)
            contents[row] = replay_world_content(t, layer, position + i, digest, (uint32_t)row, again);
        at++;
    }
    struct tensors t = {0};
    tensors_add_integers(&t, "sequences", ids, count, 0);
    tensors_add_integers(&t, "indptr", indptr, count + 1, 0);
    if (placed)
        tensors_add_integers(&t, "positions", positions, count, 0);
    if ((size_t)cJSON_GetArraySize(tokens) == rows)
        add_tokens(&t, "token_ids", tokens);
    if (cJSON_IsTrue(record_member(request, "k")))
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
    const struct replay_thing *lease = id_map_get(&w->things, record_integer(request, "id"));
    const struct model *m = &w->model;
    const cJSON *tables = record_member(request, "block_tables"), *table,
                *slots = record_member(request, "slot_mapping"), *item;
    size_t sequences = (size_t)cJSON_GetArraySize(tables), tokens = (size_t)cJSON_GetArraySize(slots),
           columns = 1, at = 0;
    uint32_t layer = (uint32_t)record_integer(request, "layer");
    uint64_t digest = record_hex(request, "digest");
    bool q = cJSON_IsTrue(record_member(request, "q"));
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
        contents[at] = replay_world_hash(digest, at);
        at++;
    }
    if (q) {
        add_integers(&t, "indptr", record_member(request, "indptr"));
        add_integers(&t, "context_lens", record_member(request, "context_lens"));
        tensors_add_integers(&t, "block_tables", ids, sequences * columns, columns);
        add_queries(&t, m, digest, layer, (size_t)record_integer(request, "rows"));
    }
    if (tokens)
        tensors_add_integers(&t, "slot_mapping", places, tokens, 0);
    if (cJSON_IsTrue(record_member(request, "k")))
        add_keys_and_values(&t, m, contents, tokens, layer, 1, false);
    add_wishes(call, request, q);
    add_path(call, "%clease=%" PRIu64, strchr(call->path, '?') ? '&' : '?', record_integer(request, "id"));
    free(ids);
    free(contents);
    return put_tensors(call, &t);
}

/* States of which the journal has no digest: numbers of the request. */
static const char *make_merge(const struct replay_world *w, const cJSON *request, struct replay_call *call)
{
    const struct model *m = &w->model;
    const uint64_t shape[] = {record_integer(request, "states"), record_integer(request, "rows"),
                              m->query_heads, m->head_dim};
    size_t heads = (size_t)(shape[0] * shape[1] * shape[2]),
           seed = (size_t)record_integer(request, "request");
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
        copy_list(o, names[i], record_member(request, names[i]));
    return put_json(call, o);
}

/* ---- workloads ------------------------------------------------------------------------------------- */

/* One request of a workload, as an entry of "sequences"; NULL: it cannot be said. */
static cJSON *sequences_entry(const cJSON *r)
{
    const cJSON *spans = record_member(r, "spans"), *span = cJSON_GetArrayItem(spans, 0);
    double priority = answer_number(r, "priority");
    if (answer_number(r, "arrival_s") > 0 || cJSON_GetArraySize(spans) > 1 ||
        (span && !record_is(span, "content", "prefix")) || priority > 1000 || priority < -1000)
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
    if (record_integer(r, "forks")) {
        cJSON *fork = cJSON_AddObjectToObject(o, "fork");
        cJSON_AddNumberToObject(fork, "at", answer_number(r, "fork_at"));
        cJSON_AddNumberToObject(fork, "count", answer_number(r, "forks"));
    }
    return o;
}

/* Likewise of "trace". */
static cJSON *trace_entry(const cJSON *r)
{
    const cJSON *spans = record_member(r, "spans"), *span;
    double end = 0, prompt = answer_number(r, "prompt");
    if (record_integer(r, "forks") || answer_number(r, "priority") != 0)
        return NULL;
    cJSON *o = memory_must(cJSON_CreateObject());
    cJSON_AddNumberToObject(o, "arrival_s", answer_number(r, "arrival_s"));
    cJSON_AddNumberToObject(o, "prompt", prompt);
    cJSON_AddNumberToObject(o, "decode", answer_number(r, "decode"));
    cJSON *hashes = cJSON_AddArrayToObject(o, "hash_ids");
    cJSON_ArrayForEach (span, spans) {
        end = end + HASH_TOKENS < prompt ? end + HASH_TOKENS : prompt;
        if (!record_is(span, "content", "hash") || answer_number(span, "end") != end) {
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
    const cJSON *requests = record_member(request, "requests");
    double deadline = answer_number(request, "deadline_s");
    cJSON_AddNumberToObject(o, "seed", answer_number(request, "seed"));
    cJSON_AddStringToObject(o, "sharing", answer_text(request, "sharing"));
    if (cJSON_IsTrue(record_member(request, "attend_prompt")))
        cJSON_AddStringToObject(o, "prefill", "attend");
    if (deadline > 0 && deadline < w->workload_s)
        cJSON_AddNumberToObject(o, "deadline_s", deadline);
    if (record_integer(request, "verify_rows"))
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
    return record_is(answer, "state", "finished") || record_is(answer, "state", "cancelled");
}

/* A look at a workload, or its end: one that had ended when it was looked at is waited for, as a stream. */
static const char *make_look(const struct replay_world *w, const cJSON *request, const cJSON *answer,
                             unsigned target, struct replay_call *call)
{
    uint64_t id = record_integer(request, "id"), here = workload_here(w, id, target);
    if (!here && record_was_done(answer))
        return "a workload that was not begun here";
    snprintf(call->path, sizeof call->path, "/v1/workloads/%" PRIu64, here ? here : id);
    if (record_is(request, "what", "workload_cancel")) {
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
    {"steps", "GET", "/v1/steps", BODY_STEPS},
    {"block_life", "GET", "/v1/blocks/#/history", BODY_NONE},
    {"waiting", "GET", "/v1/waiting", BODY_NONE},
    {"trim", "POST", "/v1/trim", BODY_NONE},
    {"workload_start", "POST", "/v1/workloads", BODY_WORKLOAD},
    {"workloads", "GET", "/v1/workloads", BODY_NONE},
    {"workload", "GET", "", BODY_LOOK},
    {"workload_cancel", "DELETE", "", BODY_LOOK},
};

static const struct route *route_of(const cJSON *request)
{
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (record_is(request, "what", routes[i].what))
            return &routes[i];
    }
    return NULL;
}

static void fill_path(struct replay_call *call, const char *path, const cJSON *request)
{
    for (const char *s = path; *s; s++) {
        if (*s == '#')
            add_path(call, "%" PRIu64, record_integer(request, "id"));
        else if (*s == '{')
            add_path(call, "%s", cJSON_IsTrue(record_member(request, "of_leases")) ? "leases" : "sequences");
        else if (*s != '}')
            add_path(call, "%c", *s);
    }
}

static const char *make_body(struct replay_world *w, enum kind_of_body body, const cJSON *request,
                             const cJSON *answer, unsigned target, struct replay_call *call)
{
    cJSON *o;
    uint64_t limit = record_integer(request, "limit");
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
        add_path(call, "?range=%" PRIu64 ":%" PRIu64, record_integer(request, "first"),
                 record_integer(request, "end"));
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

const char *replay_call_of(struct replay_world *w, const cJSON *request, const cJSON *answer, unsigned target,
                           struct replay_call *call)
{
    const struct route *route = route_of(request);
    *call = (struct replay_call){0};
    if (!route)
        return daemons_own;
    call->method = route->method;
    fill_path(call, route->path, request);
    return make_body(w, route->body, request, answer, target, call);
}
