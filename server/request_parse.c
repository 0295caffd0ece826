/* request_parse.c - see request_parse.h. */
#include "server/request_parse.h"

#include "kernels/numeric.h"
#include "server/answer.h"
#include "server/body.h"
#include "server/paged_parse.h"
#include "server/tensor_parse.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORKS_MAX = 1000,
    PAGE_DEFAULT = 100,
    JSON_NUMBERS_MAX = 100000 /* of an answer */
};

static const int64_t ID_MAX = (int64_t)REQUEST_ID_MAX;

const char *const request_block_fields[REQUEST_BLOCK_FIELDS] = {"block", "state", "refs", "fill", "owner"};
const char *const request_block_states[] = {"free", "held", "cached", "fenced"};
const char *const request_sequence_states[] = {"idle", "queued", "running", "swapped"};

/* ---- small requests ------------------------------------------------------------------------------ */

int request_parse_nothing(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)request;
    (void)config;
    int rc = query_none(x);
    return rc == 0 ? body_none(x) : rc;
}

/* Where a word stands in a list; `n` when it does not. */
static unsigned index_of(struct http_text word, const char *const *names, unsigned n)
{
    unsigned i = 0;
    while (i < n && !http_text_is(word, names[i]))
        i++;
    return i;
}

/* limit= and cursor=; false when the parameter is neither. */
static bool read_page(struct http_text text, struct request *request)
{
    uint64_t value;
    if (query_number(text, "limit", &value) && value >= 1 && value <= REQUEST_PAGE_MAX)
        request->page.limit = (uint32_t)value;
    else if (query_number(text, "cursor", &value) && value <= UINT32_MAX)
        request->page.cursor = value;
    else
        return false;
    return true;
}

/* state= one of `names`. */
static bool read_state(struct http_text text, const char *const *names, unsigned n, struct request *request)
{
    struct http_text word;
    if (!query_is(text, "state", &word))
        return false;
    request->page.filter = (struct request_filter){true, index_of(word, names, n)};
    return request->page.filter.state < n;
}

int request_parse_page(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct http_text text;
    (void)config;
    request->page.limit = PAGE_DEFAULT;
    for (size_t at = 0; query_next(x->query, &at, &text);) {
        if (!read_page(text, request))
            return query_refuse(x, text, "wants limit=1..1000 or cursor=N");
    }
    return body_none(x);
}

int request_parse_sequences(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct http_text text;
    (void)config;
    request->page.limit = PAGE_DEFAULT;
    for (size_t at = 0; query_next(x->query, &at, &text);) {
        if (!read_page(text, request) && !read_state(text, request_sequence_states, SEQUENCE_STATES, request))
            return query_refuse(x, text,
                                "wants limit=1..1000, cursor=N or state=idle|queued|running|swapped");
    }
    return body_none(x);
}

/* fields=a,b,c into bits. */
static bool read_fields(struct http_text text, struct request *request)
{
    struct http_text list, word;
    if (!query_is(text, "fields", &list))
        return false;
    for (answer_of(request)->fields = 0; list.n; list.bytes += word.n, list.n -= word.n) {
        const char *comma = memchr(list.bytes, ',', list.n);
        word = (struct http_text){list.bytes, comma ? (size_t)(comma - list.bytes) : list.n};
        unsigned field = index_of(word, request_block_fields, REQUEST_BLOCK_FIELDS);
        if (field == REQUEST_BLOCK_FIELDS)
            return false;
        answer_of(request)->fields |= 1U << field;
        word.n += comma != NULL;
    }
    return answer_of(request)->fields != 0;
}

int request_parse_pool(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct http_text text, format;
    (void)config;
    request->page.limit = PAGE_DEFAULT;
    for (size_t at = 0; query_next(x->query, &at, &text);) {
        if (query_is(text, "format", &format) && http_text_is(format, "columns"))
            answer_of(request)->columns = true;
        else if (!read_page(text, request) && !read_fields(text, request) &&
                 !read_state(text, request_block_states, 4, request))
            return query_refuse(x, text,
                                "wants limit=1..1000, cursor=N, state=free|held|cached|fenced, "
                                "fields=block,state,refs,fill,owner or format=columns");
    }
    return body_none(x);
}

/* A body being read. */
struct body {
    struct http_exchange *x;
    cJSON *tree;
    const char *where; /* the JSON pointer of the object; NULL: it is the body itself */
};

static int open_body(struct body *b, struct http_exchange *x, const char *const *names)
{
    b->x = x;
    b->where = NULL;
    return body_open(x, names, &b->tree);
}

static int refuse(struct body *b, const char *member, const char *wants)
{
    return member_wrong(b->x, b->where ? b->where : "", member, wants);
}

static const cJSON *member(const struct body *b, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(b->tree, name);
}

static int read_integer(struct body *b, const char *name, int64_t min, int64_t max, int64_t *value)
{
    return member_integer(b->x, b->where ? b->where : "", b->tree, name, min, max, value);
}

/* An optional list of token ids, `count` of them (UINT32_MAX: any number). */
static int read_tokens(struct body *b, const char *name, struct request *request, uint32_t count,
                       struct request_tokens *tokens)
{
    const cJSON *list = member(b, name), *item;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    int64_t id;
    if (!list)
        return 0;
    if (n < 0 || (count != UINT32_MAX && (uint32_t)n != count))
        return refuse(b, name, "wants a list of token ids, one for each row");
    tokens->ids = request_alloc(request, (size_t)n, sizeof *tokens->ids);
    if (!tokens->ids)
        return refuse(b, name, "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 0, UINT32_MAX, &id))
            return refuse(b, name, "wants integers in 0..4294967295");
        tokens->ids[tokens->count++] = (uint32_t)id;
    }
    return 0;
}

static int read_salt(struct body *b, struct request_create *create)
{
    const cJSON *salt = member(b, "salt");
    size_t n = cJSON_IsString(salt) ? strlen(salt->valuestring) : 0;
    if (!salt)
        return 0;
    if (!cJSON_IsString(salt) || n > sizeof create->salt)
        return refuse(b, "salt", "wants a string of at most 64 bytes");
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

static int read_create(struct body *b, struct request *request, const struct config *config,
                       struct request_create *create, uint64_t *result)
{
    int64_t id = 0, max_tokens = 0, priority = 0, idle = config->limits.idle_timeout_s;
    int rc = read_integer(b, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = read_integer(b, "max_tokens", 1, config->limits.sequence_tokens, &max_tokens);
    if (rc == 0)
        rc = read_integer(b, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &priority);
    if (rc == 0)
        rc = read_integer(b, "idle_timeout_s", 0, REQUEST_IDLE_S_MAX, &idle);
    if (rc == 0)
        rc = read_tokens(b, "tokens", request, UINT32_MAX, &create->tokens);
    if (rc == 0)
        rc = read_salt(b, create);
    *result = (uint64_t)id;
    create->options = (struct sequence_options){(uint32_t)max_tokens, (int32_t)priority, (uint32_t)idle};
    return rc;
}

int request_parse_create(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct body b;
    request->create.options.idle_timeout_s = config->limits.idle_timeout_s;
    if (tensor_parse_wanted(x))
        return tensor_parse_create(x, request, config);
    int rc = open_body(&b, x, create_members + AFTER_OP);
    if (rc == 0)
        rc = read_create(&b, request, config, &request->create, &request->id);
    cJSON_Delete(b.tree);
    return rc;
}

/* "ids": one for each of `count` children. */
static int read_fork_ids(struct body *b, struct request *request, struct request_fork *fork, int64_t count)
{
    const cJSON *list = member(b, "ids"), *item;
    uint32_t n = 0;
    int64_t id;
    if (!list)
        return 0;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != count || count < 1 || count > FORKS_MAX)
        return refuse(b, "ids", "wants a list of ids, one for each fork");
    fork->ids = request_alloc(request, (size_t)count, sizeof *fork->ids);
    if (!fork->ids)
        return refuse(b, "ids", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return refuse(b, "ids", "wants integers in 1..2^53-1");
        fork->ids[n++] = (uint64_t)id;
    }
    return 0;
}

static int read_fork(struct body *b, struct request *request, struct request_fork *fork)
{
    int64_t count = 1, length = UINT32_MAX;
    if (member(b, "ids"))
        count = cJSON_GetArraySize(member(b, "ids")); /* unless it is given */
    int rc = read_integer(b, "count", 1, FORKS_MAX, &count);
    if (rc == 0)
        rc = read_integer(b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0)
        rc = read_fork_ids(b, request, fork, count);
    fork->count = (uint32_t)count;
    fork->length = (uint32_t)length;
    return rc;
}

int request_parse_fork(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct body b;
    (void)config;
    int rc = open_body(&b, x, fork_members + AFTER_ID);
    if (rc == 0)
        rc = read_fork(&b, request, &request->fork);
    cJSON_Delete(b.tree);
    return rc;
}

static int read_truncate(struct body *b, struct request_truncate *truncate)
{
    int64_t length = -1;
    int rc = read_integer(b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0 && length < 0)
        rc = refuse(b, "length", "is missing");
    truncate->length = (uint32_t)length;
    return rc;
}

int request_parse_truncate(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct body b;
    (void)config;
    int rc = open_body(&b, x, truncate_members + AFTER_ID);
    if (rc == 0)
        rc = read_truncate(&b, &request->truncate);
    cJSON_Delete(b.tree);
    return rc;
}

/* ---- batches ------------------------------------------------------------------------------------- */

/* The id of the sequence that an op is about. */
static int read_op_id(struct body *b, uint64_t *result)
{
    int64_t id = 0;
    int rc = read_integer(b, "id", 1, ID_MAX, &id);
    if (rc == 0 && id == 0)
        rc = refuse(b, "id", "is missing");
    *result = (uint64_t)id;
    return rc;
}

static int read_op(struct body *b, struct request *request, const struct config *config,
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
    const cJSON *member_op = cJSON_IsObject(b->tree) ? member(b, "op") : NULL;
    const char *name = member_op && cJSON_IsString(member_op) ? member_op->valuestring : "";
    size_t i = 0, n = sizeof ops / sizeof ops[0];
    while (i < n && strcmp(name, ops[i].name) != 0)
        i++;
    if (i == n)
        return refuse(b, "op", "wants create, fork, truncate or delete");
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

static int read_ops(struct body *b, struct request *request, const struct config *config)
{
    struct request_batch *batch = &request->batch;
    const cJSON *list = member(b, "ops");
    char where[32], text[80];
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    if (n < 0)
        return refuse(b, "ops", list ? "wants a list of ops" : "is missing");
    snprintf(text, sizeof text, "has %d ops, and one batch takes at most %d", n, REQUEST_OPS_MAX);
    if (n > REQUEST_OPS_MAX)
        return refuse(b, "ops", text);
    batch->ops = request_alloc(request, (size_t)n, sizeof *batch->ops);
    if (!batch->ops)
        return refuse(b, "ops", "is too long");
    memset(batch->ops, 0, (size_t)n * sizeof *batch->ops);
    for (cJSON *item = list->child; item; item = item->next) {
        struct body one = {.x = b->x, .tree = item, .where = where};
        snprintf(where, sizeof where, "/ops/%u", batch->count);
        snprintf(b->x->prefix, sizeof b->x->prefix, "ops[%u]: ", batch->count);
        int rc = read_op(&one, request, config, &batch->ops[batch->count++]);
        if (rc != 0)
            return rc;
    }
    b->x->prefix[0] = '\0';
    return 0;
}

int request_parse_batch(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"ops", NULL};
    struct body b;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_ops(&b, request, config);
    cJSON_Delete(b.tree);
    return rc;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

/* "sequences" and "indptr": which sequences, and how many rows of each. */
static int read_sequences(struct body *b, struct request *request)
{
    const cJSON *list = member(b, "sequences"), *indptr = member(b, "indptr"), *item,
                *positions = member(b, "positions");
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    int64_t id, from, to;
    if (n == 0)
        return refuse(b, "sequences", "wants a list of sequence ids");
    request->attend.sequences = request_alloc(request, (size_t)n, sizeof *request->attend.sequences);
    if (!request->attend.sequences)
        return refuse(b, "sequences", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return refuse(b, "sequences", "wants a list of sequence ids");
        request->attend.sequences[request->attend.sequence_count++] =
            (struct request_sequence){.id = (uint64_t)id, .rows = 1, .position = REQUEST_POSITION_ABSENT};
    }
    request->rows.count = request->attend.sequence_count;
    uint32_t given = 0;
    cJSON_ArrayForEach (item, positions) {
        if (given == request->attend.sequence_count || !json_is_integer(item, 0, INT32_MAX, &from))
            break;
        request->attend.sequences[given++].position = (uint32_t)from;
    }
    if (positions && (!cJSON_IsArray(positions) || item || given < request->attend.sequence_count))
        return refuse(b, "positions", "wants one position for each sequence, 0..2147483647");
    if (!indptr)
        return 0;
    item = cJSON_IsArray(indptr) && cJSON_GetArraySize(indptr) == n + 1 ? indptr->child : NULL;
    if (!json_is_integer(item, 0, 0, &from))
        return refuse(b, "indptr", "wants one number more than sequences, rising from 0");
    for (uint32_t i = 0; i < request->attend.sequence_count; i++, from = to) {
        item = item ? item->next : NULL;
        if (!json_is_integer(item, from + 1, INT32_MAX, &to))
            return refuse(b, "indptr",
                          "wants one number more than sequences, rising from 0, each by at least 1");
        request->attend.sequences[i].rows = (uint32_t)(to - from);
    }
    request->rows.count = (uint32_t)from;
    return 0;
}

static int wrong_shape(struct body *b, const char *name, const char *where, int have, uint32_t want,
                       const char *of)
{
    char text[160];
    if (have < 0)
        snprintf(text, sizeof text, "%sis not a list", where);
    else
        snprintf(text, sizeof text, "%shas %d entries, wants %u (%s)", where, have, want, of);
    return refuse(b, name, text);
}

/* Entries of a list, -1 if it is none. */
static int entries(const cJSON *list)
{
    return cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
}

/* One head of one row: head_dim finite numbers, stored in `dtype` at `to`. */
static int read_head(struct body *b, const char *name, uint32_t row, uint32_t head, const cJSON *list,
                     const struct geometry *g, uint8_t *to)
{
    float values[HEAD_DIM_MAX];
    char where[64];
    uint32_t d = 0;
    const cJSON *item;
    snprintf(where, sizeof where, "row %u, head %u: ", row, head);
    if (entries(list) != (int)g->head_dim)
        return wrong_shape(b, name, where, entries(list), g->head_dim, "head_dim");
    cJSON_ArrayForEach (item, list) {
        values[d] = cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
        if (!isfinite(values[d])) {
            snprintf(where, sizeof where, "row %u, head %u, element %u is no finite number", row, head, d);
            return refuse(b, name, where);
        }
        d++;
    }
    numeric_from_float(g->dtype, values, g->head_dim, to);
    return 0;
}

/* `count` rows [heads][head_dim] of a list, stored in geometry.dtype at `to`. */
static int read_row_list(struct body *b, const char *name, const cJSON *rows, uint32_t count, uint32_t heads,
                         const struct geometry *g, uint8_t *to)
{
    const cJSON *row, *head;
    size_t head_bytes = g->head_dim * dtype_bytes(g->dtype);
    uint32_t r = 0;
    if (entries(rows) != (int)count)
        return wrong_shape(b, name, "", entries(rows), count, "one for each row");
    cJSON_ArrayForEach (row, rows) {
        char where[32];
        uint32_t h = 0;
        snprintf(where, sizeof where, "row %u: ", r);
        if (entries(row) != (int)heads)
            return wrong_shape(b, name, where, entries(row), heads, "heads");
        cJSON_ArrayForEach (head, row) {
            int rc = read_head(b, name, r, h, head, g, to + ((size_t)r * heads + h) * head_bytes);
            if (rc != 0)
                return rc;
            h++;
        }
        r++;
    }
    return 0;
}

/* A tensor [n][heads][head_dim]; `*tensor` stays NULL when the member is absent and may be. */
static int read_tensor(struct body *b, struct request *request, const char *name, bool required, uint32_t n,
                       uint32_t heads, const struct geometry *g, const void **tensor)
{
    const cJSON *rows = member(b, name);
    if (!rows)
        return required ? refuse(b, name, "is missing") : 0;
    if (entries(rows) != (int)n)
        return wrong_shape(b, name, "", entries(rows), n, "one for each row");
    uint8_t *to = request_tensor(request, (size_t)n * heads, g->head_dim * dtype_bytes(g->dtype));
    if (!to)
        return body_no_room(b->x);
    *tensor = to;
    return read_row_list(b, name, rows, n, heads, g, to);
}

/* k and v of n rows: both or, if they are not `required`, none. */
static int read_keys_and_values(struct body *b, struct request *request, const struct geometry *g,
                                bool required, uint32_t n)
{
    int rc = read_tensor(b, request, "k", required, n, g->kv_heads, g, &request->rows.k);
    if (rc == 0)
        rc = read_tensor(b, request, "v", required, n, g->kv_heads, g, &request->rows.v);
    if (rc == 0 && !request->rows.k != !request->rows.v)
        rc = refuse(b, request->rows.k ? "v" : "k", "is missing: k and v come together");
    return rc;
}

bool request_parse_kernel(struct http_text name, enum attention_kernel *kernel)
{
    unsigned n = ATTENTION_PAGED_V2 + 1, i = index_of(name, config_kernel_names, n);
    if (i < n)
        *kernel = (enum attention_kernel)i;
    return i < n;
}

/* "lse" and "kernel", of what computes. */
static int read_wishes(struct body *b, struct request *request)
{
    const cJSON *lse = member(b, "lse"), *kernel = member(b, "kernel");
    const char *name = cJSON_IsString(kernel) ? kernel->valuestring : "";
    if (lse && !cJSON_IsBool(lse))
        return refuse(b, "lse", "wants true or false");
    if (kernel && !request_parse_kernel((struct http_text){name, strlen(name)}, &request->rows.kernel))
        return refuse(b, "kernel", "wants auto, paged_v1 or paged_v2");
    answer_of(request)->wants_lse = cJSON_IsTrue(lse);
    return 0;
}

/* What append and attend have in common. */
static int read_rows(struct body *b, struct request *request, const struct geometry *g, bool attend)
{
    int64_t layer = 0;
    int rc = read_integer(b, "layer", 0, g->layers - 1, &layer);
    request->rows.layer = (uint32_t)layer;
    request->rows.kv_source = g->dtype;
    if (rc == 0)
        rc = read_sequences(b, request);
    if (rc == 0 && attend)
        rc = read_tensor(b, request, "q", true, request->rows.count, g->query_heads, g, &request->rows.q);
    if (rc == 0)
        rc = read_keys_and_values(b, request, g, !attend, request->rows.count);
    if (rc == 0 && !request->rows.k && member(b, "token_ids"))
        rc = refuse(b, "token_ids", "belongs to k and v");
    if (rc == 0)
        rc = read_tokens(b, "token_ids", request, request->rows.count, &request->attend.tokens);
    return rc;
}

/* ---- append and attend ---------------------------------------------------------------------------- */

/* An answer in JSON has at most JSON_NUMBERS_MAX numbers. */
static int limit_json(struct http_exchange *x, const struct request *request, uint32_t rows,
                      const struct geometry *g)
{
    if (answer_of(request)->wants_tensors ||
        (uint64_t)rows * g->query_heads * g->head_dim <= JSON_NUMBERS_MAX)
        return 0;
    http_problem(x, ATTND_INVALID, "o would have more than %d numbers; ask for safetensors",
                 JSON_NUMBERS_MAX);
    return ATTND_INVALID;
}

/* The answer of an append has a number for every layer of every sequence, and must have room: what was
 * appended cannot be taken back. */
static int limit_lengths(struct http_exchange *x, const struct request *request, const struct geometry *g)
{
    enum { NUMBER_BYTES = 11, SEQUENCE_BYTES = 64 };
    uint64_t bytes =
        (uint64_t)request->attend.sequence_count * (SEQUENCE_BYTES + (uint64_t)g->layers * NUMBER_BYTES);
    if (bytes + SEQUENCE_BYTES <= HTTP_REPLY_BYTES_MAX)
        return 0;
    http_problem(x, ATTND_INVALID, "%u sequences of %u layers are too many for one answer",
                 request->attend.sequence_count, g->layers);
    return ATTND_INVALID;
}

int request_parse_append(struct http_exchange *x, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr",    "positions",
                                        "k",     "v",         "token_ids", NULL};
    struct body b;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_rows(x, request, config, false);
        return bad ? bad : limit_lengths(x, request, g);
    }
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, request, g, false);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_lengths(x, request, g) : rc;
}

int request_parse_attend(struct http_exchange *x, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr", "positions", "q", "k",
                                        "v",     "token_ids", "lse",    "kernel",    NULL};
    struct body b;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_rows(x, request, config, true);
        return bad ? bad : limit_json(x, request, request->rows.count, g);
    }
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, request, g, true);
    if (rc == 0)
        rc = read_wishes(&b, request);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->rows.count, g) : rc;
}

/* ---- leases, and tables of the caller's own ------------------------------------------------------- */

int request_parse_lease(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"blocks", "id", "priority", "idle_timeout_s", NULL};
    struct body b;
    int64_t id = 0, blocks = 0, priority = 0, idle = config->limits.idle_timeout_s;
    request->of_leases = true;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "blocks", 1, REQUEST_IDS_MAX, &blocks); /* they are all in the answer */
    if (rc == 0 && !blocks)
        rc = refuse(&b, "blocks", "is missing");
    if (rc == 0)
        rc = read_integer(&b, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = read_integer(&b, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &priority);
    if (rc == 0)
        rc = read_integer(&b, "idle_timeout_s", 0, REQUEST_IDLE_S_MAX, &idle);
    cJSON_Delete(b.tree);
    request->id = (uint64_t)id;
    request->lease.blocks = (uint32_t)blocks;
    request->lease.options = (struct sequence_options){0, (int32_t)priority, (uint32_t)idle};
    return rc;
}

int request_parse_leases(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->of_leases = true;
    return request_parse_page(x, request, config);
}

int request_parse_one_lease(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->of_leases = true;
    return request_parse_nothing(x, request, config);
}

/* An optional list of integers, or of lists of as many each. */
static int read_list(struct body *b, struct request *request, const char *name, bool nested,
                     struct paged_list *list)
{
    const cJSON *rows = member(b, name), *row, *item;
    const char *wants = nested ? "wants lists of integers, of the same length" : "wants integers";
    int n, columns = 1;
    if (!rows)
        return 0;
    n = entries(rows);
    if (nested)
        columns = n > 0 ? entries(rows->child) : 0;
    if (n < 0 || columns < 0)
        return refuse(b, name, wants);
    int64_t *values = request_alloc(request, (size_t)n * (size_t)columns, sizeof *values);
    if (!values)
        return refuse(b, name, "is too long for one call");
    *list = (struct paged_list){values, 0, (uint64_t)columns};
    cJSON_ArrayForEach (row, rows) {
        if (nested && entries(row) != columns)
            return refuse(b, name, wants);
        item = nested ? row->child : row;
        for (int i = 0; i < columns; i++, item = item->next) {
            if (!json_is_integer(item, -ID_MAX, ID_MAX, &values[list->n++]))
                return refuse(b, name, wants);
        }
    }
    return 0;
}

static int read_paged(struct body *b, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    struct paged_lists lists = {0};
    int64_t layer = 0, lease = 0;
    request->rows.kv_source = g->dtype;
    int rc = read_integer(b, "layer", 0, g->layers - 1, &layer);
    if (rc == 0)
        rc = read_integer(b, "lease", 1, ID_MAX, &lease);
    request->rows.layer = (uint32_t)layer;
    request->id = (uint64_t)lease;
#define XX(name)                                                                                             \
    if (rc == 0)                                                                                             \
        rc = read_list(b, request, #name, &lists.name == &lists.block_tables, &lists.name);
    PAGED_LISTS(XX)
#undef XX
    if (rc == 0)
        rc = paged_build(b->x, request, config, &lists, member(b, "q"), member(b, "k") || member(b, "v"));
    if (rc == 0)
        rc = read_tensor(b, request, "q", false, request->rows.count, g->query_heads, g, &request->rows.q);
    if (rc == 0)
        rc = read_keys_and_values(b, request, g, false, request->paged.tokens);
    return rc == 0 ? read_wishes(b, request) : rc;
}

int request_parse_paged(struct http_exchange *x, struct request *request, const struct config *config)
{
#define XX(name) #name,
    static const char *const names[] = {
        "lease",
        "layer",
        PAGED_LISTS(XX) "q",
        "k",
        "v",
        "lse",
        "kernel",
        NULL
    };
#undef XX
    struct body b = {.x = x};
    request->of_leases = true;
    int rc = tensor_parse_wanted(x) ? tensor_parse_paged(x, request, config) : open_body(&b, x, names);
    if (rc == 0 && !tensor_parse_wanted(x))
        rc = read_paged(&b, request, config);
    if (rc == 0 && !request->id)
        rc = refuse(&b, "lease", "is missing: POST /v1/leases reserves blocks");
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->rows.count, &config->geometry) : rc;
}

/* ---- merge --------------------------------------------------------------------------------------- */

/* "lse": [states][rows][heads] of numbers, or null for minus infinity. */
static int read_lse(struct body *b, struct request *request, uint32_t heads, float *to)
{
    const cJSON *states = member(b, "lse"), *rows, *row, *item;
    if (entries(states) != (int)request->merge.states)
        return wrong_shape(b, "lse", "", entries(states), request->merge.states, "states, as o has");
    cJSON_ArrayForEach (rows, states) {
        if (entries(rows) != (int)request->merge.rows)
            return wrong_shape(b, "lse", "a state ", entries(rows), request->merge.rows, "rows, as o has");
        cJSON_ArrayForEach (row, rows) {
            if (entries(row) != (int)heads)
                return wrong_shape(b, "lse", "a row ", entries(row), heads, "heads");
            cJSON_ArrayForEach (item, row) {
                *to = cJSON_IsNull(item) ? -INFINITY : cJSON_IsNumber(item) ? (float)item->valuedouble : NAN;
                if (!(*to++ < INFINITY))
                    return refuse(b, "lse", "wants numbers, or null for a state without keys");
            }
        }
    }
    return 0;
}

static int read_states(struct body *b, struct request *request, const struct geometry *g)
{
    const cJSON *states = member(b, "o"), *state;
    int n = entries(states), rows = n > 0 ? entries(states->child) : -1;
    if (n < 1 || rows < 1)
        return refuse(b, "o", "wants [states][rows][heads][head_dim], of at least one state and row");
    request->merge.states = (uint32_t)n;
    request->merge.rows = (uint32_t)rows;
    size_t state_bytes = (size_t)rows * geometry_q_row_bytes(g);
    uint8_t *o = request_tensor(request, (size_t)n, state_bytes);
    float *lse = request_tensor(request, (size_t)n * (size_t)rows, g->query_heads * sizeof *lse);
    if (!o || !lse)
        return body_no_room(b->x);
    request->merge.o = o;
    request->merge.lse = lse;
    uint32_t i = 0;
    cJSON_ArrayForEach (state, states) {
        char name[16];
        snprintf(name, sizeof name, "o/%u", i++);
        int rc = read_row_list(b, name, state, request->merge.rows, g->query_heads, g, o);
        if (rc != 0)
            return rc;
        o += state_bytes;
    }
    return read_lse(b, request, g->query_heads, lse);
}

int request_parse_merge(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"o", "lse", NULL};
    const struct geometry *g = &config->geometry;
    struct body b;
    answer_of(request)->wants_lse = true;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_states(x, request, config);
        return bad ? bad : limit_json(x, request, request->merge.rows, g);
    }
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_states(&b, request, g);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->merge.rows, g) : rc;
}
