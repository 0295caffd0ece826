/* SPDX-License-Identifier: Apache-2.0 */
/* api_sequences.c - /v1/sequences and /v1/batch. */
#include "server/api.h"
#include "server/tensors.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <string.h>

/* ---- create ---------------------------------------------------------------------------------------- */

/* Arguments of single requests and, with the first ones, of ops of a batch. */
#define CREATE_NAMES "id", "salt", "max_tokens", "priority", "idle_timeout_s"
static const char *const create_names[] = {CREATE_NAMES, "owner", NULL};
static const char *const create_op_names[] = {"op", CREATE_NAMES, NULL};
static const char *const fork_names[] = {"op", "id", "count", "length", "ids", NULL};
static const char *const truncate_names[] = {"op", "id", "length", NULL};
static const char *const delete_names[] = {"op", "id", NULL};
enum { AFTER_ID = 2 };

static const struct tensor_spec create_tensors[] = {{"tokens", TENSOR_INTEGERS}, {NULL, TENSOR_VALUES}},
                                no_tensors[] = {{NULL, TENSOR_VALUES}};

static int read_create(struct tensor_body *b, const struct config *config, struct request_create *create,
                       uint64_t *result)
{
    struct arguments *a = &b->arguments;
    int64_t id = 0, max_tokens = 0, priority = 0;
    uint32_t idle = 0;
    struct http_text salt = {"", 0};
    int rc = arguments_integer(a, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = arguments_integer(a, "max_tokens", 1, config->limits.sequence_tokens, &max_tokens);
    if (rc == 0)
        rc = arguments_integer(a, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &priority);
    if (rc == 0)
        rc = api_read_idle(a, config, &idle);
    if (rc == 0)
        rc = arguments_text(a, "salt", sizeof create->salt, &salt);
    *result = (uint64_t)id;
    create->options = (struct sequence_options){(uint32_t)max_tokens, (int32_t)priority, idle};
    memcpy(create->salt, salt.bytes, salt.n);
    create->salt_bytes = (uint32_t)salt.n;
    return rc == 0 ? tensors_tokens(b, "tokens", UINT64_MAX, &create->tokens) : rc;
}

static int parse_create(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, &config->geometry, create_names, create_tensors);
    if (rc == 0)
        rc = api_read_owner(&b.arguments, request);
    if (rc == 0)
        rc = read_create(&b, config, &request->create, &request->id);
    tensors_close(&b);
    return rc;
}

static void write_created(struct json_writer *w, const struct request_shown *shown)
{
    json_open(w, NULL, '{');
    json_uint(w, "id", shown->views[0].id);
    json_uint(w, "length", shown->views[0].length);
    json_uint(w, "cached_tokens", shown->views[0].length);
    api_write_table(w, &shown->views[0], shown->block_ids);
    json_close(w, '}');
}

static void render_create(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_shown *shown = &request->create.shown;
    (void)c;
    write_created(&x->reply, shown);
    json_raw(&x->reply, "\n");
    snprintf(x->extra, sizeof x->extra, "Location: /v1/sequences/%llu\r\n",
             (unsigned long long)shown->views[0].id);
}

/* ---- fork and truncate ----------------------------------------------------------------------------- */

/* "ids": one for each of `count` children. */
static int read_fork_ids(struct arguments *a, struct request *request, struct request_fork *fork,
                         int64_t count)
{
    const cJSON *list = arguments_member(a, "ids"), *item;
    uint32_t n = 0;
    int64_t id;
    if (!list)
        return 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != count || count < 1 || count > REQUEST_FORKS_MAX)
        return arguments_refuse(a, "ids", "wants a list of ids, one for each fork");
    fork->ids = request_alloc(request, (size_t)count, sizeof *fork->ids);
    if (!fork->ids)
        return arguments_refuse(a, "ids", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return arguments_refuse(a, "ids", "wants integers in 1..2^53-1");
        fork->ids[n++] = (uint64_t)id;
    }
    return 0;
}

static int read_fork(struct arguments *a, struct request *request, struct request_fork *fork)
{
    int64_t count = 1, length = UINT32_MAX;
    if (arguments_member(a, "ids"))
        count = cJSON_GetArraySize(arguments_member(a, "ids")); /* unless it is given */
    int rc = arguments_integer(a, "count", 1, REQUEST_FORKS_MAX, &count);
    if (rc == 0)
        rc = arguments_integer(a, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0)
        rc = read_fork_ids(a, request, fork, count);
    fork->count = (uint32_t)count;
    fork->length = (uint32_t)length;
    return rc;
}

static int parse_fork(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct arguments a;
    (void)config;
    int rc = arguments_of_json(&a, x, fork_names + AFTER_ID, NULL);
    if (rc == 0)
        rc = read_fork(&a, request, &request->fork);
    arguments_close(&a);
    return rc;
}

static void write_forks(struct json_writer *w, const struct request_shown *shown)
{
    const uint32_t *ids = shown->block_ids;
    json_open(w, NULL, '{');
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < shown->count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", shown->views[i].id);
        json_uint(w, "length", shown->views[i].length);
        api_write_table(w, &shown->views[i], ids);
        json_close(w, '}');
        ids += shown->views[i].listed;
    }
    json_close(w, ']');
    json_close(w, '}');
}

static void render_fork(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    (void)c;
    write_forks(&x->reply, &request->fork.shown);
    json_raw(&x->reply, "\n");
}

static int read_truncate(struct arguments *a, struct request_truncate *truncate)
{
    int64_t length = -1;
    int rc = arguments_integer(a, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0 && length < 0)
        rc = arguments_refuse(a, "length", "is missing");
    truncate->length = (uint32_t)length;
    return rc;
}

static int parse_truncate(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct arguments a;
    (void)config;
    int rc = arguments_of_json(&a, x, truncate_names + AFTER_ID, NULL);
    if (rc == 0)
        rc = read_truncate(&a, &request->truncate);
    arguments_close(&a);
    return rc;
}

static void write_truncated(struct json_writer *w, const struct request_shown *shown)
{
    json_open(w, NULL, '{');
    api_write_sequence(w, &shown->views[0], shown->block_ids);
    json_close(w, '}');
}

static void render_truncate(struct http_exchange *x, const struct request *request,
                            const struct render_context *c)
{
    (void)c;
    write_truncated(&x->reply, &request->truncate.shown);
    json_raw(&x->reply, "\n");
}

/* ---- batches --------------------------------------------------------------------------------------- */

/* The id of the sequence that an op is about. */
static int read_op_id(struct arguments *a, uint64_t *result)
{
    int64_t id = 0;
    int rc = arguments_integer(a, "id", 1, ID_MAX, &id);
    if (rc == 0 && id == 0)
        rc = arguments_refuse(a, "id", "is missing");
    *result = (uint64_t)id;
    return rc;
}

/* One op, an object at the JSON pointer `where`. */
static int read_op(struct http_exchange *x, const cJSON *object, const char *where, struct request *request,
                   const struct config *config)
{
    static const struct {
        const char *name;
        enum request_kind kind;
        const char *const *names;
        const struct tensor_spec *specs;
    } ops[] = {{"create", REQUEST_CREATE, create_op_names, create_tensors},
               {"fork", REQUEST_FORK, fork_names, no_tensors},
               {"truncate", REQUEST_TRUNCATE, truncate_names, no_tensors},
               {"delete", REQUEST_DELETE, delete_names, no_tensors}};
    const cJSON *member = cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, "op") : NULL;
    const char *name = member && cJSON_IsString(member) ? member->valuestring : "";
    struct request_op *op = &request->batch.ops[request->batch.count++];
    struct tensor_body b;
    char pointer[40];
    size_t i = 0, n = sizeof ops / sizeof ops[0];
    while (i < n && strcmp(name, ops[i].name) != 0)
        i++;
    if (i == n) {
        snprintf(pointer, sizeof pointer, "%s/op", where);
        http_problem_at(x, ATTND_INVALID, pointer, "wants create, fork, truncate or delete");
        return ATTND_INVALID;
    }
    op->kind = ops[i].kind;
    int rc =
        tensors_open_object(&b, x, request, &config->geometry, object, where, ops[i].names, ops[i].specs);
    if (rc == 0 && op->kind == REQUEST_CREATE)
        return read_create(&b, config, &op->create, &op->id);
    if (rc == 0)
        rc = read_op_id(&b.arguments, &op->id);
    if (rc == 0 && op->kind == REQUEST_FORK)
        rc = read_fork(&b.arguments, request, &op->fork);
    if (rc == 0 && op->kind == REQUEST_TRUNCATE)
        rc = read_truncate(&b.arguments, &op->truncate);
    return rc;
}

static int read_ops(struct arguments *a, struct request *request, const struct config *config)
{
    struct request_batch *batch = &request->batch;
    const cJSON *list = arguments_member(a, "ops");
    char where[32], text[80];
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1, rc = 0;
    if (n < 0)
        return arguments_refuse(a, "ops", list ? "wants a list of ops" : "is missing");
    snprintf(text, sizeof text, "has %d ops, and one batch takes at most %d", n, REQUEST_OPS_MAX);
    if (n > REQUEST_OPS_MAX)
        return arguments_refuse(a, "ops", text);
    batch->ops = request_alloc(request, (size_t)n, sizeof *batch->ops);
    if (!batch->ops)
        return arguments_refuse(a, "ops", "is too long");
    memset(batch->ops, 0, (size_t)n * sizeof *batch->ops);
    for (const cJSON *item = list->child; rc == 0 && item; item = item->next) {
        snprintf(where, sizeof where, "/ops/%u", batch->count);
        snprintf(a->x->prefix, sizeof a->x->prefix, "ops[%u]: ", batch->count);
        rc = read_op(a->x, item, where, request, config);
    }
    if (rc == 0)
        a->x->prefix[0] = '\0';
    return rc;
}

static int parse_batch(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"ops", NULL};
    struct arguments a;
    int rc = arguments_of_json(&a, x, names, NULL);
    if (rc == 0)
        rc = read_ops(&a, request, config);
    arguments_close(&a);
    return rc;
}

static void render_batch(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_open(w, "results", '[');
    for (uint32_t i = 0; i < request->batch.count; i++) {
        const struct request_op *op = &request->batch.ops[i];
        if (op->kind == REQUEST_CREATE) {
            write_created(w, &op->create.shown);
        } else if (op->kind == REQUEST_FORK) {
            write_forks(w, &op->fork.shown);
        } else if (op->kind == REQUEST_TRUNCATE) {
            write_truncated(w, &op->truncate.shown);
        } else {
            json_open(w, NULL, '{');
            json_close(w, '}');
        }
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- looking --------------------------------------------------------------------------------------- */

static int parse_sequences(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"limit", "cursor", "state", NULL};
    struct arguments a;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = api_read_page(&a, request, PAGE_DEFAULT, REQUEST_PAGE_MAX);
    if (rc == 0)
        rc = api_read_state(&a, api_sequence_states, SEQUENCE_STATES, request);
    return rc == 0 ? arguments_no_body(x) : rc;
}

static void render_list(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    (void)c;
    api_write_page(&x->reply, request, api_write_sequence);
}

static void render_sequence(struct http_exchange *x, const struct request *request,
                            const struct render_context *c)
{
    const struct request_look *look = &request->look;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    api_write_sequence(w, &look->shown.views[0], look->shown.block_ids);
    if (look->lengths)
        api_write_lengths(w, look->lengths, c->config->geometry.layers);
    json_close(w, '}');
    json_raw(w, "\n");
}

static const struct api_schema schemas[] = {
    {"NewSequence", "{id?:id tokens?:[uint] salt?:text(..64) max_tokens?:uint "
                    "priority?:int(-1000000..1000000) idle_timeout_s?:uint(0..31536000) owner?:text(..63)}"},
    {"Created", "{id:id length:uint cached_tokens:uint blocks:[uint] host_blocks?:[uint] blocks_next?:uint}"},
    {"Sequence",
     "{id:id state:(idle|queued|running|swapped) length:uint blocks:[uint] host_blocks?:[uint] "
     "blocks_next?:uint block_count:uint shared_blocks:uint parent:id? priority:int max_tokens?:uint "
     "workload?:uint age_s:number idle_s:number owner?:text(..63)}"},
    {"SequenceAtLayers",
     "{id:id state:(idle|queued|running|swapped) length:uint blocks:[uint] "
     "host_blocks?:[uint] blocks_next?:uint block_count:uint shared_blocks:uint parent:id? priority:int "
     "max_tokens?:uint workload?:uint age_s:number idle_s:number owner?:text(..63) lengths?:[uint]}"},
    {"Sequences", "{items:[Sequence] next:uint?}"},
    {"Table", "[{index:uint block?:uint host_block?:uint fill:uint refs?:uint}]"},
    {"Fork", "{count?:uint(1..1000) length?:uint ids?:[id]}"},
    {"Forked", "{sequences:[{id:id length:uint blocks:[uint] host_blocks?:[uint] blocks_next?:uint}]}"},
    {"Truncate", "{length:uint}"},
    {"OpCreate", "{op:(create) id?:id tokens?:[uint] salt?:text(..64) max_tokens?:uint "
                 "priority?:int(-1000000..1000000) idle_timeout_s?:uint(0..31536000)}"},
    {"OpFork", "{op:(fork) id:id count?:uint(1..1000) length?:uint ids?:[id]}"},
    {"OpTruncate", "{op:(truncate) id:id length:uint}"},
    {"OpDelete", "{op:(delete) id:id}"},
    {"Batch", "{ops:[OpCreate|OpFork|OpTruncate|OpDelete]}"},
    {"Nothing", "{}"},
    {"BatchDone", "{results:[Created|Forked|Sequence|Nothing]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK(GET, "/v1/sequences", READ, LIST, SMALL, parse_sequences, render_list, 200,
        "Sequences, a page at a time",
        "limit?:uint(1..1000) cursor?:uint(0..4294967295) state?:(idle|queued|running|swapped)", NULL,
        "Sequences", 0),
    ASK(POST, "/v1/sequences", INFER, CREATE, TENSORS, parse_create, render_create, 201,
        "Create a sequence, with what the cache has of its prompt",
        "id?:id salt?:text(..64) max_tokens?:uint priority?:int idle_timeout_s?:uint owner?:text(..63)",
        "NewSequence", "Created", 0),
    ASK(GET, "/v1/sequences/{id}", READ, SEQUENCE, SMALL, api_parse_nothing, render_sequence, 200,
        "One sequence, with its lengths at all layers", NULL, NULL, "SequenceAtLayers", 0),
    ASK(DELETE, "/v1/sequences/{id}", INFER, DELETE, SMALL, api_parse_nothing, NULL, 204,
        "Delete a sequence; calls that wait on it end with 410", NULL, NULL, NULL, 0),
    ASK(GET, "/v1/sequences/{id}/blocks", READ, BLOCKS, SMALL, api_parse_table, api_render_table, 200,
        "Its block table, a page at a time", "limit?:uint(1..1000) cursor?:uint(0..4294967295)", NULL,
        "Table", 0),
    ASK(POST, "/v1/sequences/{id}/fork", INFER, FORK, SMALL, parse_fork, render_fork, 201,
        "Make sequences that share its blocks", NULL, "Fork", "Forked", 0),
    ASK(POST, "/v1/sequences/{id}/truncate", INFER, TRUNCATE, SMALL, parse_truncate, render_truncate, 200,
        "Cut it to a length, at every layer", NULL, "Truncate", "Sequence", 0),
    ASK(POST, "/v1/batch", INFER, BATCH, SMALL, parse_batch, render_batch, 200,
        "Creates, forks, truncates and deletes: all of them, in order, or none", NULL, "Batch", "BatchDone",
        0),
    {0},
};

const struct api_resource api_sequences = {routes, schemas};
