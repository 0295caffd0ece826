/* api_attention.c - /v1/append, /v1/attend, /v1/paged and /v1/merge. */
#include "kernels/numeric.h"
#include "server/api.h"
#include "server/paged_parse.h"
#include "server/safetensors.h"
#include "server/tensor_parse.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { JSON_NUMBERS_MAX = 100000 /* of an answer */ };

/* ---- tensors in JSON ------------------------------------------------------------------------------- */

/* "sequences" and "indptr": which sequences, and how many rows of each. */
static int read_sequences(struct json_body *b, struct request *request)
{
    const cJSON *list = json_body_member(b, "sequences"), *indptr = json_body_member(b, "indptr"), *item,
                *positions = json_body_member(b, "positions");
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    int64_t id, from, to;
    if (n == 0)
        return json_body_refuse(b, "sequences", "wants a list of sequence ids");
    request->attend.sequences = request_alloc(request, (size_t)n, sizeof *request->attend.sequences);
    if (!request->attend.sequences)
        return json_body_refuse(b, "sequences", "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 1, ID_MAX, &id))
            return json_body_refuse(b, "sequences", "wants a list of sequence ids");
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
        return json_body_refuse(b, "positions", "wants one position for each sequence, 0..2147483647");
    if (!indptr)
        return 0;
    item = cJSON_IsArray(indptr) && cJSON_GetArraySize(indptr) == n + 1 ? indptr->child : NULL;
    if (!json_is_integer(item, 0, 0, &from))
        return json_body_refuse(b, "indptr", "wants one number more than sequences, rising from 0");
    for (uint32_t i = 0; i < request->attend.sequence_count; i++, from = to) {
        item = item ? item->next : NULL;
        if (!json_is_integer(item, from + 1, INT32_MAX, &to))
            return json_body_refuse(
                b, "indptr", "wants one number more than sequences, rising from 0, each by at least 1");
        request->attend.sequences[i].rows = (uint32_t)(to - from);
    }
    request->rows.count = (uint32_t)from;
    return 0;
}

static int wrong_shape(struct json_body *b, const char *name, const char *where, int have, uint32_t want,
                       const char *of)
{
    char text[160];
    if (have < 0)
        snprintf(text, sizeof text, "%sis not a list", where);
    else
        snprintf(text, sizeof text, "%shas %d entries, wants %u (%s)", where, have, want, of);
    return json_body_refuse(b, name, text);
}

/* Entries of a list, -1 if it is none. */
static int entries(const cJSON *list)
{
    return cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
}

/* One head of one row: head_dim finite numbers, stored in `dtype` at `to`. */
static int read_head(struct json_body *b, const char *name, uint32_t row, uint32_t head, const cJSON *list,
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
            return json_body_refuse(b, name, where);
        }
        d++;
    }
    numeric_from_float(g->dtype, values, g->head_dim, to);
    return 0;
}

/* `count` rows [heads][head_dim] of a list, stored in geometry.dtype at `to`. */
static int read_row_list(struct json_body *b, const char *name, const cJSON *rows, uint32_t count,
                         uint32_t heads, const struct geometry *g, uint8_t *to)
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
static int read_tensor(struct json_body *b, struct request *request, const char *name, bool required,
                       uint32_t n, uint32_t heads, const struct geometry *g, const void **tensor)
{
    const cJSON *rows = json_body_member(b, name);
    if (!rows)
        return required ? json_body_refuse(b, name, "is missing") : 0;
    if (entries(rows) != (int)n)
        return wrong_shape(b, name, "", entries(rows), n, "one for each row");
    uint8_t *to = request_tensor(request, (size_t)n * heads, g->head_dim * dtype_bytes(g->dtype));
    if (!to)
        return body_no_room(b->x);
    *tensor = to;
    return read_row_list(b, name, rows, n, heads, g, to);
}

/* k and v of n rows: both or, if they are not `required`, none. */
static int read_keys_and_values(struct json_body *b, struct request *request, const struct geometry *g,
                                bool required, uint32_t n)
{
    int rc = read_tensor(b, request, "k", required, n, g->kv_heads, g, &request->rows.k);
    if (rc == 0)
        rc = read_tensor(b, request, "v", required, n, g->kv_heads, g, &request->rows.v);
    if (rc == 0 && !request->rows.k != !request->rows.v)
        rc = json_body_refuse(b, request->rows.k ? "v" : "k", "is missing: k and v come together");
    return rc;
}

/* "lse" and "kernel", of what computes. */
static int read_wishes(struct json_body *b, struct request *request)
{
    const cJSON *lse = json_body_member(b, "lse"), *kernel = json_body_member(b, "kernel");
    const char *name = cJSON_IsString(kernel) ? kernel->valuestring : "";
    if (lse && !cJSON_IsBool(lse))
        return json_body_refuse(b, "lse", "wants true or false");
    if (kernel && !api_read_kernel((struct http_text){name, strlen(name)}, &request->rows.kernel))
        return json_body_refuse(b, "kernel", "wants auto, paged_v1 or paged_v2");
    answer_of(request)->wants_lse = cJSON_IsTrue(lse);
    return 0;
}

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

/* ---- outputs --------------------------------------------------------------------------------------- */

/* Rows of o, and lse if it is wanted. */
struct output {
    const struct request_output *of;
    uint32_t rows;
    bool lse;
    const char *kernel;
    double roof_fraction; /* of its step */
};

static struct output output_of(const struct request *request, const struct request_output *of, uint32_t rows,
                               enum attention_kernel kernel, const struct render_context *c)
{
    double roof = c->roof_gb_per_s * 1e9 * of->step_us * 1e-6;
    return (struct output){.of = of,
                           .rows = rows,
                           .lse = answer_of(request)->wants_lse,
                           .kernel =
                               kernel == ATTENTION_AUTO ? c->backend->kernel : config_kernel_names[kernel],
                           .roof_fraction = roof > 0 ? (double)of->bytes_read / roof : 0};
}

static void write_output(struct json_writer *w, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    json_open(w, NULL, '{');
    json_open(w, "o", '[');
    for (uint32_t row = 0; row < out->rows; row++) {
        json_open(w, NULL, '[');
        for (uint32_t head = 0; head < g->query_heads; head++) {
            json_open(w, NULL, '[');
            for (uint32_t d = 0; d < g->head_dim; d++)
                json_float(
                    w, NULL,
                    numeric_load(g->dtype, of->o, ((size_t)row * g->query_heads + head) * g->head_dim + d));
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_close(w, ']');
    if (out->lse) {
        json_open(w, "lse", '[');
        for (uint32_t row = 0; row < out->rows; row++) {
            json_open(w, NULL, '[');
            for (uint32_t head = 0; head < g->query_heads; head++)
                json_float(w, NULL, of->lse[(size_t)row * g->query_heads + head]);
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_float(w, "queue_us", (float)of->queue_us);
    json_float(w, "step_us", (float)of->step_us);
    json_uint(w, "rows_in_step", of->rows_in_step);
    json_uint(w, "bytes_read", of->bytes_read);
    json_float(w, "roof_fraction", (float)out->roof_fraction);
    json_string(w, "kernel", out->kernel);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* o, and lse if asked for, with the request's timing as metadata. The numbers are sent from where they lie
 * in the request's arena. */
static void send_tensors(struct http_exchange *x, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    size_t o_bytes = out->rows * geometry_q_row_bytes(g);
    size_t lse_bytes = (size_t)out->rows * g->query_heads * sizeof *of->lse;
    struct safetensors tensors = {
        .count = out->lse ? 2 : 1,
        .tensors =
            {{.name = "o", .rank = 3, .shape = {out->rows, g->query_heads, g->head_dim}, .end = o_bytes},
             {.name = "lse",
              .dtype = "F32",
              .rank = 2,
              .shape = {out->rows, g->query_heads},
              .end = lse_bytes}},
    };
    char metadata[320];
    snprintf(tensors.tensors[0].dtype, sizeof tensors.tensors[0].dtype, "%s",
             safetensors_dtype_name(g->dtype));
    snprintf(metadata, sizeof metadata,
             "{\"queue_us\":\"%.1f\",\"step_us\":\"%.1f\",\"rows_in_step\":\"%u\",\"bytes_read\":\"%llu\","
             "\"roof_fraction\":\"%.4f\",\"kernel\":\"%s\"}",
             of->queue_us, of->step_us, of->rows_in_step, (unsigned long long)of->bytes_read,
             out->roof_fraction, out->kernel);
    x->content_type = "application/x-safetensors";
    x->reply.length = safetensors_write_header(&tensors, metadata, x->reply.buffer, x->reply.capacity);
    x->reply.overflow = x->reply.length == 0;
    x->tail[x->tail_count++] = (struct http_text){of->o, o_bytes};
    if (out->lse)
        x->tail[x->tail_count++] = (struct http_text){(const char *)of->lse, lse_bytes};
}

static void render_output(struct http_exchange *x, const struct request *request, const struct output *out,
                          const struct render_context *c)
{
    if (answer_of(request)->wants_tensors)
        send_tensors(x, out, &c->config->geometry);
    else
        write_output(&x->reply, out, &c->config->geometry);
}

/* ---- append and attend ----------------------------------------------------------------------------- */

/* What append and attend have in common. */
static int read_rows(struct json_body *b, struct request *request, const struct geometry *g, bool attend)
{
    int64_t layer = 0;
    int rc = json_body_integer(b, "layer", 0, g->layers - 1, &layer);
    request->rows.layer = (uint32_t)layer;
    request->rows.kv_source = g->dtype;
    if (rc == 0)
        rc = read_sequences(b, request);
    if (rc == 0 && attend)
        rc = read_tensor(b, request, "q", true, request->rows.count, g->query_heads, g, &request->rows.q);
    if (rc == 0)
        rc = read_keys_and_values(b, request, g, !attend, request->rows.count);
    if (rc == 0 && !request->rows.k && json_body_member(b, "token_ids"))
        rc = json_body_refuse(b, "token_ids", "belongs to k and v");
    if (rc == 0)
        rc = api_read_tokens(b, "token_ids", request, request->rows.count, &request->attend.tokens);
    return rc;
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

static int parse_append(struct http_exchange *x, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr",    "positions",
                                        "k",     "v",         "token_ids", NULL};
    struct json_body b;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_rows(x, request, config, false);
        return bad ? bad : limit_lengths(x, request, g);
    }
    int rc = json_body_open(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, request, g, false);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_lengths(x, request, g) : rc;
}

static int parse_attend(struct http_exchange *x, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    static const char *const names[] = {"layer", "sequences", "indptr", "positions", "q", "k",
                                        "v",     "token_ids", "lse",    "kernel",    NULL};
    struct json_body b;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_rows(x, request, config, true);
        return bad ? bad : limit_json(x, request, request->rows.count, g);
    }
    int rc = json_body_open(&b, x, names);
    if (rc == 0)
        rc = read_rows(&b, request, g, true);
    if (rc == 0)
        rc = read_wishes(&b, request);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->rows.count, g) : rc;
}

static void render_append(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_attend *append = &request->attend;
    uint32_t layers = c->config->geometry.layers;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < append->view_count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", append->views[i].id);
        json_uint(w, "length", append->views[i].length);
        api_write_lengths(w, append->lengths + (size_t)i * layers, layers);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

static void render_attend(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_rows *rows = &request->rows;
    const struct output out = output_of(request, &rows->out, rows->count, rows->kernel, c);
    render_output(x, request, &out, c);
}

/* ---- tables of the caller's own -------------------------------------------------------------------- */

/* An optional list of integers, or of lists of as many each. */
static int read_list(struct json_body *b, struct request *request, const char *name, bool nested,
                     struct paged_list *list)
{
    const cJSON *rows = json_body_member(b, name), *row, *item;
    const char *wants = nested ? "wants lists of integers, of the same length" : "wants integers";
    int n, columns = 1;
    if (!rows)
        return 0;
    n = entries(rows);
    if (nested)
        columns = n > 0 ? entries(rows->child) : 0;
    if (n < 0 || columns < 0)
        return json_body_refuse(b, name, wants);
    int64_t *values = request_alloc(request, (size_t)n * (size_t)columns, sizeof *values);
    if (!values)
        return json_body_refuse(b, name, "is too long for one call");
    *list = (struct paged_list){values, 0, (uint64_t)columns};
    cJSON_ArrayForEach (row, rows) {
        if (nested && entries(row) != columns)
            return json_body_refuse(b, name, wants);
        item = nested ? row->child : row;
        for (int i = 0; i < columns; i++, item = item->next) {
            if (!json_is_integer(item, -ID_MAX, ID_MAX, &values[list->n++]))
                return json_body_refuse(b, name, wants);
        }
    }
    return 0;
}

static int read_paged(struct json_body *b, struct request *request, const struct config *config)
{
    const struct geometry *g = &config->geometry;
    struct paged_lists lists = {0};
    int64_t layer = 0, lease = 0;
    request->rows.kv_source = g->dtype;
    int rc = json_body_integer(b, "layer", 0, g->layers - 1, &layer);
    if (rc == 0)
        rc = json_body_integer(b, "lease", 1, ID_MAX, &lease);
    request->rows.layer = (uint32_t)layer;
    request->id = (uint64_t)lease;
#define XX(name)                                                                                             \
    if (rc == 0)                                                                                             \
        rc = read_list(b, request, #name, &lists.name == &lists.block_tables, &lists.name);
    PAGED_LISTS(XX)
#undef XX
    if (rc == 0)
        rc = paged_build(b->x, request, config, &lists, json_body_member(b, "q"),
                         json_body_member(b, "k") || json_body_member(b, "v"));
    if (rc == 0)
        rc = read_tensor(b, request, "q", false, request->rows.count, g->query_heads, g, &request->rows.q);
    if (rc == 0)
        rc = read_keys_and_values(b, request, g, false, request->paged.tokens);
    return rc == 0 ? read_wishes(b, request) : rc;
}

static int parse_paged(struct http_exchange *x, struct request *request, const struct config *config)
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
    struct json_body b = {.x = x};
    request->of_leases = true;
    int rc = tensor_parse_wanted(x) ? tensor_parse_paged(x, request, config) : json_body_open(&b, x, names);
    if (rc == 0 && !tensor_parse_wanted(x))
        rc = read_paged(&b, request, config);
    if (rc == 0 && !request->id)
        rc = json_body_refuse(&b, "lease", "is missing: POST /v1/leases reserves blocks");
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->rows.count, &config->geometry) : rc;
}

/* Without q: k and v that were written and not read. */
static void render_paged(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    uint32_t n = 0;
    if (request->rows.q) {
        render_attend(x, request, c);
        return;
    }
    for (uint32_t i = 0; i < request->paged.tokens; i++)
        n += request->paged.slots[i] >= 0;
    json_open(w, NULL, '{');
    json_uint(w, "tokens", n);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- merge ----------------------------------------------------------------------------------------- */

/* "lse": [states][rows][heads] of numbers, or null for minus infinity. */
static int read_lse(struct json_body *b, struct request *request, uint32_t heads, float *to)
{
    const cJSON *states = json_body_member(b, "lse"), *rows, *row, *item;
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
                    return json_body_refuse(b, "lse", "wants numbers, or null for a state without keys");
            }
        }
    }
    return 0;
}

static int read_states(struct json_body *b, struct request *request, const struct geometry *g)
{
    const cJSON *states = json_body_member(b, "o"), *state;
    int n = entries(states), rows = n > 0 ? entries(states->child) : -1;
    if (n < 1 || rows < 1)
        return json_body_refuse(b, "o",
                                "wants [states][rows][heads][head_dim], of at least one state and row");
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

static int parse_merge(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"o", "lse", NULL};
    const struct geometry *g = &config->geometry;
    struct json_body b;
    answer_of(request)->wants_lse = true;
    if (tensor_parse_wanted(x)) {
        int bad = tensor_parse_states(x, request, config);
        return bad ? bad : limit_json(x, request, request->merge.rows, g);
    }
    int rc = json_body_open(&b, x, names);
    if (rc == 0)
        rc = read_states(&b, request, g);
    cJSON_Delete(b.tree);
    return rc == 0 ? limit_json(x, request, request->merge.rows, g) : rc;
}

static void render_merge(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_merge *merge = &request->merge;
    const struct output out = output_of(request, &merge->out, merge->rows, ATTENTION_AUTO, c);
    render_output(x, request, &out, c);
}

const struct route api_attention[] = {
    ASK(POST, "/v1/append", APPEND, TENSORS, parse_append, render_append, 200),
    ASK_TYPES(POST, "/v1/attend", ATTEND, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_attend, render_attend,
              200),
    ASK_TYPES(POST, "/v1/paged", PAGED, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_paged, render_paged, 200),
    ASK_TYPES(POST, "/v1/merge", MERGE, TENSORS, TYPE_JSON | TYPE_TENSORS, parse_merge, render_merge, 200),
    {0},
};
