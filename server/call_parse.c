/* call_parse.c - see call_parse.h. */
#include "server/call_parse.h"

#include "config/json.h"
#include "kernels/numeric.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { FORKS_MAX = 1000, PAGE_DEFAULT = 100 };

static const int64_t ID_MAX = (INT64_C(1) << 53) - 1;

/* ---- queries ------------------------------------------------------------------------------------- */

/* The number behind "name=" in one parameter of the query, if that is what it is. */
static bool parameter_number(struct http_text text, const char *name, uint64_t *value)
{
    size_t n = strlen(name);
    *value = 0;
    if (text.n <= n + 1 || text.n > n + 1 + 15 || memcmp(text.bytes, name, n) != 0 ||
        text.bytes[n] != '=')
        return false;
    for (size_t i = n + 1; i < text.n; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
        *value = *value * 10 + (uint64_t)(text.bytes[i] - '0');
    }
    return true;
}

static int refuse_parameter(struct http_exchange *x, struct http_text text, const char *wants)
{
    http_problem(x, ATTND_INVALID, "parameter \"%.*s\": %s", (int)(text.n < 100 ? text.n : 100),
                 text.bytes, wants);
    return ATTND_INVALID;
}

static int no_body(struct http_exchange *x)
{
    if (x->body.n == 0)
        return 0;
    http_problem(x, ATTND_INVALID, "this request takes no body");
    return ATTND_INVALID;
}

static int no_query(struct http_exchange *x)
{
    return x->query.n ? refuse_parameter(x, x->query, "this request takes no parameters") : 0;
}

int call_parse_nothing(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    (void)call;
    (void)g;
    int rc = no_query(x);
    return rc == 0 ? no_body(x) : rc;
}

int call_parse_page(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    (void)g;
    call->limit = PAGE_DEFAULT;
    for (size_t at = 0; at < x->query.n;) {
        const char *bytes = x->query.bytes + at, *mark = memchr(bytes, '&', x->query.n - at);
        struct http_text text = {bytes, mark ? (size_t)(mark - bytes) : x->query.n - at};
        uint64_t value;
        if (parameter_number(text, "limit", &value) && value >= 1 && value <= CALL_PAGE_MAX)
            call->limit = (uint32_t)value;
        else if (parameter_number(text, "cursor", &value) && value <= UINT32_MAX)
            call->cursor = value;
        else
            return refuse_parameter(x, text, "wants limit=1..1000 or cursor=N");
        at += text.n + 1;
    }
    return no_body(x);
}

/* ---- JSON bodies --------------------------------------------------------------------------------- */

/* A body being read: its tree, and the names that it may have. */
struct body {
    struct http_exchange *x;
    cJSON *tree;
};

static int refuse(struct body *b, const char *member, const char *wants)
{
    http_problem(b->x, ATTND_INVALID, "/%s: %s", member, wants);
    return ATTND_INVALID;
}

static bool is_json_type(struct http_text type)
{
    static const char json[] = "application/json";
    size_t n = sizeof json - 1;
    return type.n >= n && strncasecmp(type.bytes, json, n) == 0 &&
           (type.n == n || type.bytes[n] == ';' || type.bytes[n] == ' ');
}

/* Parse the body as an object whose members are all in `names` (NULL-terminated). An empty body counts
 * as {}. */
static int open_body(struct body *b, struct http_exchange *x, const char *const *names)
{
    struct json_error wrong;
    const cJSON *item;
    *b = (struct body){.x = x};
    if (no_query(x) != 0)
        return ATTND_INVALID;
    if (x->body.n && !is_json_type(x->body_type)) {
        http_problem(x, ATTND_BAD_TYPE,
                     "Content-Type is \"%.*s\"; send application/json (curl --json does)",
                     (int)(x->body_type.n < 80 ? x->body_type.n : 80), x->body_type.bytes);
        return ATTND_BAD_TYPE;
    }
    const char *text = x->body.n ? x->body.bytes : "{}";
    if (json_parse(text, x->body.n ? x->body.n : 2, &b->tree, &wrong) != 0) {
        struct json_place at = json_place(text, wrong.offset);
        http_problem(x, ATTND_MALFORMED, "line %u, column %u: %s", at.line, at.column, wrong.reason);
        return ATTND_MALFORMED;
    }
    int rc = cJSON_IsObject(b->tree) ? 0 : refuse(b, "", "the body is one JSON object");
    cJSON_ArrayForEach (item, b->tree) {
        size_t i = 0;
        while (rc == 0 && names[i] && strcmp(names[i], item->string) != 0)
            i++;
        if (rc == 0 && !names[i])
            rc = refuse(b, item->string, "there is no such member, or it is not built yet");
    }
    if (rc != 0) {
        cJSON_Delete(b->tree);
        b->tree = NULL;
    }
    return rc;
}

static const cJSON *member(const struct body *b, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(b->tree, name);
}

/* An optional integer member in [min, max]; left alone when it is absent. */
static int read_integer(struct body *b, const char *name, int64_t min, int64_t max, int64_t *value)
{
    char wants[80];
    const cJSON *item = member(b, name);
    if (!item || json_is_integer(item, min, max, value))
        return 0;
    snprintf(wants, sizeof wants, "wants an integer in %lld..%lld", (long long)min, (long long)max);
    return refuse(b, name, wants);
}

int call_parse_create(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    static const char *const names[] = {"id", NULL};
    struct body b;
    int64_t id = 0;
    (void)g;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "id", 1, ID_MAX, &id);
    cJSON_Delete(b.tree);
    call->id = (uint64_t)id;
    return rc;
}

int call_parse_fork(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    static const char *const names[] = {"count", "length", NULL};
    struct body b;
    int64_t count = 1, length = UINT32_MAX;
    (void)g;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "count", 1, FORKS_MAX, &count);
    if (rc == 0)
        rc = read_integer(&b, "length", 0, UINT32_MAX - 1, &length);
    cJSON_Delete(b.tree);
    call->count = (uint32_t)count;
    call->length = (uint32_t)length;
    return rc;
}

int call_parse_truncate(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    static const char *const names[] = {"length", NULL};
    struct body b;
    int64_t length = -1;
    (void)g;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_integer(&b, "length", 0, UINT32_MAX - 1, &length);
    if (rc == 0 && length < 0)
        rc = refuse(&b, "length", "is missing");
    cJSON_Delete(b.tree);
    call->length = (uint32_t)length;
    return rc;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

/* "sequences" and "indptr": which sequences, and how many rows of each. */
static int read_sequences(struct body *b, struct call *call)
{
    const cJSON *list = member(b, "sequences"), *indptr = member(b, "indptr"), *item;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    int64_t id, from, to;
    if (n == 0)
        return refuse(b, "sequences", "wants a list of sequence ids");
    call->sequences = call_alloc(call, (size_t)n, sizeof *call->sequences);
    if (!call->sequences)
        return refuse(b, "sequences", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return refuse(b, "sequences", "wants a list of sequence ids");
        call->sequences[call->sequence_count++] = (struct call_sequence){(uint64_t)id, 1};
    }
    call->rows = call->sequence_count;
    if (!indptr)
        return 0;
    item = cJSON_IsArray(indptr) && cJSON_GetArraySize(indptr) == n + 1 ? indptr->child : NULL;
    if (!json_is_integer(item, 0, 0, &from))
        return refuse(b, "indptr", "wants one number more than sequences, rising from 0");
    for (uint32_t i = 0; i < call->sequence_count; i++, from = to) {
        item = item ? item->next : NULL;
        if (!json_is_integer(item, from + 1, INT32_MAX, &to))
            return refuse(b, "indptr",
                          "wants one number more than sequences, rising from 0, each by at least 1");
        call->sequences[i].rows = (uint32_t)(to - from);
    }
    call->rows = (uint32_t)from;
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
            snprintf(where, sizeof where, "row %u, head %u, element %u is no finite number", row, head,
                     d);
            return refuse(b, name, where);
        }
        d++;
    }
    numeric_from_float(g->dtype, values, g->head_dim, to);
    return 0;
}

/* A tensor [rows][heads][head_dim]; `*tensor` stays NULL when the member is absent and may be. */
static int read_tensor(struct body *b, struct call *call, const char *name, bool required,
                       uint32_t heads, const struct geometry *g, void **tensor)
{
    const cJSON *rows = member(b, name), *row, *head;
    size_t head_bytes = g->head_dim * dtype_bytes(g->dtype);
    uint32_t r = 0;
    if (!rows)
        return required ? refuse(b, name, "is missing") : 0;
    if (entries(rows) != (int)call->rows)
        return wrong_shape(b, name, "", entries(rows), call->rows, "one for each row");
    uint8_t *to = call_alloc(call, (size_t)call->rows * heads, head_bytes);
    if (!to)
        return refuse(b, name, "is too large");
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
    *tensor = to;
    return 0;
}

/* What append and attend have in common. */
static int read_rows(struct body *b, struct call *call, const struct geometry *g, bool attend)
{
    int64_t layer = 0;
    int rc = read_integer(b, "layer", 0, g->layers - 1, &layer);
    call->layer = (uint32_t)layer;
    if (rc == 0)
        rc = read_sequences(b, call);
    if (rc == 0 && attend)
        rc = read_tensor(b, call, "q", true, g->query_heads, g, &call->q);
    if (rc == 0)
        rc = read_tensor(b, call, "k", !attend, g->kv_heads, g, &call->k);
    if (rc == 0)
        rc = read_tensor(b, call, "v", !attend, g->kv_heads, g, &call->v);
    if (rc == 0 && !call->k != !call->v)
        rc = refuse(b, call->k ? "v" : "k", "is missing: k and v come together");
    return rc;
}

int call_parse_append(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    static const char *const names[] = {"layer", "sequences", "indptr", "k", "v", NULL};
    struct body b;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, call, g, false);
    cJSON_Delete(b.tree);
    return rc;
}

int call_parse_attend(struct http_exchange *x, struct call *call, const struct geometry *g)
{
    static const char *const names[] = {"layer", "sequences", "indptr", "q", "k", "v", "lse", NULL};
    struct body b;
    int rc = open_body(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, call, g, true);
    if (rc == 0 && member(&b, "lse") && !cJSON_IsBool(member(&b, "lse")))
        rc = refuse(&b, "lse", "wants true or false");
    call->wants_lse = rc == 0 && cJSON_IsTrue(member(&b, "lse"));
    cJSON_Delete(b.tree);
    return rc;
}
