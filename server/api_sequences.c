/* api_sequences.c - /v1/sequences and /v1/batch. */
#include "server/api.h"
#include "server/tensor_parse.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <string.h>

/* ---- create ---------------------------------------------------------------------------------------- */

static int read_salt(struct json_body *b, struct request_create *create)
{
    const cJSON *salt = json_body_member(b, "salt");
    size_t n = cJSON_IsString(salt) ? strlen(salt->valuestring) : 0;
    if (!salt)
        return 0;
    if (!cJSON_IsString(salt) || n > sizeof create->salt)
        return json_body_refuse(b, "salt", "wants a string of at most 64 bytes");
    memcpy(create->salt, salt->valuestring, n);
    create->salt_bytes = (uint32_t)n;
    return 0;
}

/* Members of single requests and, with the first ones, of ops of a batch. */
static const char *const create_members[] = {"op",         "id",       "tokens",         "salt",
                                             "max_tokens", "priority", "idle_timeout_s", NULL};
static const char *const fork_members[] = {"op", "id", "count", "length", "ids", NULL};
static const char *const truncate_members[] = {"op", "id", "length", NULL};
static const char *const delete_members[] = {"op", "id", NULL};
enum { AFTER_OP = 1, AFTER_ID = 2 };

static int read_create(struct json_body *b, struct request *request, const struct config *config,
                       struct request_create *create, uint64_t *result)
{
    int64_t id = 0, max_tokens = 0, priority = 0, idle = config->limits.idle_timeout_s;
    int rc = json_body_integer(b, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = json_body_integer(b, "max_tokens", 1, config->limits.sequence_tokens, &max_tokens);
    if (rc == 0)
        rc = json_body_integer(b, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &priority);
    if (rc == 0)
        rc = json_body_integer(b, "idle_timeout_s", 0, REQUEST_IDLE_S_MAX, &idle);
    if (rc == 0)
        rc = api_read_tokens(b, "tokens", request, UINT32_MAX, &create->tokens);
    if (rc == 0)
        rc = read_salt(b, create);
    *result = (uint64_t)id;
    create->options = (struct sequence_options){(uint32_t)max_tokens, (int32_t)priority, (uint32_t)idle};
    return rc;
}

static int parse_create(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct json_body b;
    request->create.options.idle_timeout_s = config->limits.idle_timeout_s;
    if (tensor_parse_wanted(x))
        return tensor_parse_create(x, request, config);
    int rc = json_body_open(&b, x, create_members + AFTER_OP);
    if (rc == 0)
        rc = read_create(&b, request, config, &request->create, &request->id);
    cJSON_Delete(b.tree);
    return rc;
}

static void write_created(struct json_writer *w, const struct request_shown *shown)
{
    json_open(w, NULL, '{');
    json_uint(w, "id", shown->views[0].id);
    json_uint(w, "length", shown->views[0].length);
    json_uint(w, "cached_tokens", shown->views[0].length);
    api_write_ids(w, "blocks", shown->block_ids, shown->views[0].blocks);
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
static int read_fork_ids(struct json_body *b, struct request *request, struct request_fork *fork,
                         int64_t count)
{
    const cJSON *list = json_body_member(b, "ids"), *item;
    uint32_t n = 0;
    int64_t id;
    if (!list)
        return 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != count || count < 1 || count > FORKS_MAX)
        return json_body_refuse(b, "ids", "wants a list of ids, one for each fork");
    fork->ids = request_alloc(request, (size_t)count, sizeof *fork->ids);
    if (!fork->ids)
        return json_body_refuse(b, "ids", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return json_body_refuse(b, "ids", "wants integers in 1..2^53-1");
        fork->ids[n++] = (uint64_t)id;
    }
    return 0;
}

static int read_fork(struct json_body *b, struct request *request, struct request_fork *fork)
{
    int64_t count = 1, length = UINT32_MAX;
    if (json_body_member(b, "ids"))
        count = cJSON_GetArraySize(json_body_member(b, "ids")); /* unless it is given */
    int rc = json_body_integer(b, "count", 1, FORKS_MAX, &count);
    if (rc == 0)
        rc = json_body_integer(b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0)
        rc = read_fork_ids(b, request, fork, count);
    fork->count = (uint32_t)count;
    fork->length = (uint32_t)length;
    return rc;
}

static int parse_fork(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct json_body b;
    (void)config;
    int rc = json_body_open(&b, x, fork_members + AFTER_ID);
    if (rc == 0)
        rc = read_fork(&b, request, &request->fork);
    cJSON_Delete(b.tree);
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
        api_write_ids(w, "blocks", ids, shown->views[i].blocks);
        json_close(w, '}');
        ids += shown->views[i].blocks;
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

static int read_truncate(struct json_body *b, struct request_truncate *truncate)
{
    int64_t length = -1;
    int rc = json_body_integer(b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0 && length < 0)
        rc = json_body_refuse(b, "length", "is missing");
    truncate->length = (uint32_t)length;
    return rc;
}

static int parse_truncate(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct json_body b;
    (void)config;
    int rc = json_body_open(&b, x, truncate_members + AFTER_ID);
    if (rc == 0)
        rc = read_truncate(&b, &request->truncate);
    cJSON_Delete(b.tree);
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
static int read_op_id(struct json_body *b, uint64_t *result)
{
    int64_t id = 0;
    int rc = json_body_integer(b, "id", 1, ID_MAX, &id);
    if (rc == 0 && id == 0)
        rc = json_body_refuse(b, "id", "is missing");
    *result = (uint64_t)id;
    return rc;
}

static int read_op(struct json_body *b, struct request *request, const struct config *config,
                   struct request_op *op)
{
    static const struct {
        const char *name;
        enum request_kind kind;
        const char *const *members;
    } ops[] = {{"create", REQUEST_CREATE, create_members},
               {"fork", REQUEST_FORK, fork_members},
               {"truncate", REQUEST_TRUNCATE, truncate_members},
               {"delete", REQUEST_DELETE, delete_members}};
    const cJSON *member_op = cJSON_IsObject(b->tree) ? json_body_member(b, "op") : NULL;
    const char *name = member_op && cJSON_IsString(member_op) ? member_op->valuestring : "";
    size_t i = 0, n = sizeof ops / sizeof ops[0];
    while (i < n && strcmp(name, ops[i].name) != 0)
        i++;
    if (i == n)
        return json_body_refuse(b, "op", "wants create, fork, truncate or delete");
    op->kind = ops[i].kind;
    int rc = member_check(b->x, b->where, b->tree, ops[i].members);
    if (rc == 0 && op->kind == REQUEST_CREATE)
        return read_create(b, request, config, &op->create, &op->id);
    if (rc == 0)
        rc = read_op_id(b, &op->id);
    if (rc == 0 && op->kind == REQUEST_FORK)
        rc = read_fork(b, request, &op->fork);
    if (rc == 0 && op->kind == REQUEST_TRUNCATE)
        rc = read_truncate(b, &op->truncate);
    return rc;
}

static int read_ops(struct json_body *b, struct request *request, const struct config *config)
{
    struct request_batch *batch = &request->batch;
    const cJSON *list = json_body_member(b, "ops");
    char where[32], text[80];
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (n < 0)
        return json_body_refuse(b, "ops", list ? "wants a list of ops" : "is missing");
    snprintf(text, sizeof text, "has %d ops, and one batch takes at most %d", n, REQUEST_OPS_MAX);
    if (n > REQUEST_OPS_MAX)
        return json_body_refuse(b, "ops", text);
    batch->ops = request_alloc(request, (size_t)n, sizeof *batch->ops);
    if (!batch->ops)
        return json_body_refuse(b, "ops", "is too long");
    memset(batch->ops, 0, (size_t)n * sizeof *batch->ops);
    for (cJSON *item = list->child; item; item = item->next) {
        struct json_body one = {.x = b->x, .tree = item, .where = where};
        snprintf(where, sizeof where, "/ops/%u", batch->count);
        snprintf(b->x->prefix, sizeof b->x->prefix, "ops[%u]: ", batch->count);
        int rc = read_op(&one, request, config, &batch->ops[batch->count++]);
        if (rc != 0)
            return rc;
    }
    b->x->prefix[0] = '\0';
    return 0;
}

static int parse_batch(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"ops", NULL};
    struct json_body b;
    int rc = json_body_open(&b, x, names);
    if (rc == 0)
        rc = read_ops(&b, request, config);
    cJSON_Delete(b.tree);
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
    struct http_text text;
    (void)config;
    request->page.limit = PAGE_DEFAULT;
    for (size_t at = 0; query_next(x->head.query, &at, &text);) {
        if (!api_read_page(text, request) &&
            !api_read_state(text, api_sequence_states, SEQUENCE_STATES, request))
            return query_refuse(x, text,
                                "wants limit=1..1000, cursor=N or state=idle|queued|running|swapped");
    }
    return body_none(x);
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

static void render_table(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_blocks *blocks = &request->table.blocks;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '[');
    for (uint32_t i = 0; i < blocks->count; i++) {
        const struct block_view *v = &blocks->views[i];
        json_open(w, NULL, '{');
        json_uint(w, "index", i);
        json_uint(w, v->on_host ? "host_block" : "block", v->block);
        json_uint(w, "fill", v->fill);
        if (!v->on_host)
            json_uint(w, "refs", v->refs);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_raw(w, "\n");
}

const struct route api_sequences[] = {
    ASK(GET, "/v1/sequences", LIST, SMALL, parse_sequences, render_list, 200),
    ASK(POST, "/v1/sequences", CREATE, TENSORS, parse_create, render_create, 201),
    ASK(GET, "/v1/sequences/{id}", SEQUENCE, SMALL, api_parse_nothing, render_sequence, 200),
    ASK(DELETE, "/v1/sequences/{id}", DELETE, SMALL, api_parse_nothing, NULL, 204),
    ASK(GET, "/v1/sequences/{id}/blocks", BLOCKS, SMALL, api_parse_nothing, render_table, 200),
    ASK(POST, "/v1/sequences/{id}/fork", FORK, SMALL, parse_fork, render_fork, 201),
    ASK(POST, "/v1/sequences/{id}/truncate", TRUNCATE, SMALL, parse_truncate, render_truncate, 200),
    ASK(POST, "/v1/batch", BATCH, SMALL, parse_batch, render_batch, 200),
    {0},
};
