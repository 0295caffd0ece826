/* routes.c - the table of routes.
 *
 * A route either answers by itself (probes, /v1/info) or names a kind of request, the function that reads the
 * exchange into one, and the function that writes its answer. Such a request goes to the engine and its
 * exchange waits; routes_deliver() has the answer written when it is back. What the engine need not know of
 * it is kept in its struct answer (answer.h). A new kind of request may have its two functions here. */
#include "server/routes.h"

#include "scheduler/staging.h"
#include "server/answer.h"
#include "server/body.h"
#include "server/request_parse.h"
#include "server/request_render.h"
#include "server/tensor_parse.h"
#include "server/version.h"
#include "server/workload_parse.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*route_answer)(struct http_exchange *x, struct daemon_state *daemon);
typedef int (*route_parse)(struct http_exchange *x, struct request *request, const struct config *config);

struct route {
    enum http_method method;
    const char *path;    /* "{id}" stands for a sequence id */
    route_answer answer; /* or, when NULL: */
    enum request_kind kind;
    route_parse parse;
    answer_render render; /* of success; NULL: no body */
    int http_status;      /* likewise */
    bool tensors;         /* its body may be safetensors, and large */
};

enum {
    UPLOADS_MAX = 8,       /* traces being read at a time; each may take 100 MiB while it is */
    ARENA_SPARE = 4 << 20, /* of a large body's lists, which may be larger than they are in the body */
    DRAIN_DEADLINE_S = 30,
    DRAIN_DEADLINE_S_MAX = 86400
};

static const double STALL_S_MAX = 10; /* without a sign of life from a busy engine */

static void write_status(struct http_exchange *x, int http_status, const char *status)
{
    x->http_status = http_status;
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", status);
    json_close(&x->reply, '}');
    json_raw(&x->reply, "\n");
}

static bool is_stalled(const struct daemon_state *daemon)
{
    return engine_stall_s(daemon->engine) > STALL_S_MAX;
}

static void get_livez(struct http_exchange *x, struct daemon_state *daemon)
{
    bool stalled = is_stalled(daemon);
    write_status(x, stalled ? 503 : 200, stalled ? "stalled" : "live");
}

static void get_readyz(struct http_exchange *x, struct daemon_state *daemon)
{
    if (daemon->draining)
        write_status(x, 503, "draining");
    else if (engine_failure(daemon->engine))
        write_status(x, 503, "failed");
    else if (is_stalled(daemon))
        write_status(x, 503, "stalled");
    else
        write_status(x, 200, "ready");
}

static void write_geometry(struct json_writer *w, const struct daemon_state *daemon)
{
    const struct geometry *g = &daemon->config->geometry;
    json_open(w, "geometry", '{');
    json_uint(w, "layers", g->layers);
    json_uint(w, "query_heads", g->query_heads);
    json_uint(w, "kv_heads", g->kv_heads);
    json_uint(w, "head_dim", g->head_dim);
    json_uint(w, "block_size", g->block_size);
    json_string(w, "dtype", dtype_name(g->dtype));
    json_string(w, "kv_dtype", dtype_name(g->kv_dtype));
    json_string(w, "layout", layout_names[g->layout]);
    json_float(w, "scale", g->scale);
    json_open(w, "window", '[');
    for (uint32_t layer = 0; layer < g->layers; layer++)
        json_uint(w, NULL, g->window[layer]);
    json_close(w, ']');
    json_float(w, "softcap", g->softcap);
    json_bool(w, "sinks", engine_has_sinks(daemon->engine));
    json_bool(w, "alibi", engine_has_alibi(daemon->engine));
    json_close(w, '}');
}

static void get_info(struct http_exchange *x, struct daemon_state *daemon)
{
    const struct config *config = daemon->config;
    const struct attention_info *backend = engine_backend(daemon->engine);
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_string(w, "name", "attnd");
    json_string(w, "version", ATTND_VERSION);
    json_string(w, "commit", ATTND_COMMIT);
    json_uint(w, "node", 0);
    json_open(w, "backend", '{');
    json_string(w, "name", backend->name);
    json_string(w, "device", backend->device);
    json_string(w, "isa", backend->isa);
    json_uint(w, "threads", backend->threads);
    json_float(w, "roof_gb_per_s", (float)engine_roof_gb_per_s(daemon->engine));
    json_float(w, "grouping_us", (float)engine_grouping_us(daemon->engine));
    json_bool(w, "bit_stable", backend->bit_stable);
    json_close(w, '}');
    write_geometry(w, daemon);
    json_open(w, "pool", '{');
    json_uint(w, "blocks", config->pool_blocks);
    json_uint(w, "bytes_per_block", geometry_block_bytes(&config->geometry));
    json_close(w, '}');
    json_open(w, "limits", '{');
    json_uint(w, "connections", config->limits.connections);
    json_uint(w, "json_bytes", HTTP_JSON_BYTES_MAX);
    json_uint(w, "body_bytes", config->limits.body_bytes);
    json_uint(w, "staging_bytes", config->limits.staging_bytes);
    json_uint(w, "header_bytes", HTTP_HEAD_BYTES_MAX);
    json_uint(w, "headers", HTTP_HEADERS_MAX);
    json_uint(w, "url_bytes", HTTP_URL_BYTES_MAX);
    json_uint(w, "sequences", config->limits.sequences);
    json_uint(w, "sequence_tokens", config->limits.sequence_tokens);
    json_uint(w, "calls", config->limits.calls);
    json_uint(w, "rows_per_call", config->limits.rows_per_call);
    json_uint(w, "paged_sequences", STEP_LOOSE_TABLES);
    json_uint(w, "idle_timeout_s", config->limits.idle_timeout_s);
    json_close(w, '}');
    json_open(w, "kernels", '{');
    json_string(w, "attend", backend->kernel);
    json_close(w, '}');
    json_close(w, '}');
    json_raw(w, "\n");
}

/* {"deadline_s"?} */
static void post_drain(struct http_exchange *x, struct daemon_state *daemon)
{
    static const char *const names[] = {"deadline_s", NULL};
    int64_t deadline_s = DRAIN_DEADLINE_S;
    cJSON *body;
    if (body_open(x, names, &body) != 0)
        return;
    int rc = member_integer(x, "", body, "deadline_s", 1, DRAIN_DEADLINE_S_MAX, &deadline_s);
    cJSON_Delete(body);
    if (rc != 0)
        return;
    daemon->drain((uint32_t)deadline_s, daemon->cookie);
    x->http_status = 202;
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", "draining");
    json_uint(&x->reply, "deadline_s", (uint64_t)deadline_s);
    json_close(&x->reply, '}');
    json_raw(&x->reply, "\n");
}

/* ---- workloads ----------------------------------------------------------------------------------- */

static const char workloads_path[] = "/v1/workloads";

/* Whether the client asks for lines; false with a problem when it asks for what is not served. */
static int accepts_lines(struct http_exchange *x, bool *lines)
{
    static const char type[] = "application/x-ndjson";
    *lines = memmem(x->accept.bytes, x->accept.n, type, sizeof type - 1) != NULL;
    if (!*lines && memmem(x->accept.bytes, x->accept.n, "text/event-stream", 17)) {
        http_problem(x, ATTND_NOT_ACCEPTABLE, "text/event-stream is not built yet; send Accept: %s", type);
        return ATTND_NOT_ACCEPTABLE;
    }
    return 0;
}

static int parse_workload(struct http_exchange *x, struct request *request, const struct config *config)
{
    bool lines;
    int rc = accepts_lines(x, &lines);
    if (rc == 0)
        rc = workload_parse(x, request, config);
    answer_of(request)->streams = answer_of(request)->cancels = lines;
    if (!lines)
        answer_of(request)->http_status = 202;
    return rc;
}

static int parse_events(struct http_exchange *x, struct request *request, const struct config *config)
{
    bool lines;
    int rc = accepts_lines(x, &lines);
    answer_of(request)->streams = true;
    return rc == 0 ? request_parse_nothing(x, request, config) : rc;
}

/* ---- metrics ------------------------------------------------------------------------------------- */

static int parse_metrics(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->page.limit = 1;
    return request_parse_nothing(x, request, config);
}

/* clang-format off */
#define ANSWER(method, path, answer) {HTTP_METHOD_##method, path, answer, 0, NULL, NULL, 0, false}
#define ASK(method, path, kind, parse, render, status)                                                       \
    {HTTP_METHOD_##method, path, NULL, REQUEST_##kind, parse, render, status, false}
#define ASK_TENSORS(method, path, kind, parse, render, status)                                               \
    {HTTP_METHOD_##method, path, NULL, REQUEST_##kind, parse, render, status, true}

static const struct route routes[] = {
    ANSWER(GET, "/livez", get_livez),
    ANSWER(GET, "/readyz", get_readyz),
    ANSWER(GET, "/v1/info", get_info),
    ASK(GET, "/stats", STATS, request_parse_page, request_render_stats, 200),
    ASK(GET, "/metrics", STATS, parse_metrics, request_render_metrics, 200),
    ASK(GET, "/v1/blocks", POOL, request_parse_pool, request_render_pool, 200),
    ASK(POST, "/v1/audit", AUDIT, request_parse_nothing, request_render_audit, 200),
    ASK(POST, "/v1/trim", TRIM, request_parse_nothing, request_render_trim, 200),
    ASK(POST, "/v1/selftest", SELF_TEST, request_parse_nothing, request_render_self_test, 200),
    ANSWER(POST, "/v1/drain", post_drain),
    ASK_TENSORS(PUT, "/v1/parameters", PARAMETERS, tensor_parse_parameters, NULL, 204),
    ASK(GET, "/v1/sequences", LIST, request_parse_sequences, request_render_list, 200),
    ASK_TENSORS(POST, "/v1/sequences", CREATE, request_parse_create, request_render_create, 201),
    ASK(GET, "/v1/sequences/{id}", SEQUENCE, request_parse_nothing, request_render_sequence, 200),
    ASK(DELETE, "/v1/sequences/{id}", DELETE, request_parse_nothing, NULL, 204),
    ASK(GET, "/v1/sequences/{id}/blocks", BLOCKS, request_parse_nothing, request_render_table, 200),
    ASK(POST, "/v1/sequences/{id}/fork", FORK, request_parse_fork, request_render_fork, 201),
    ASK(POST, "/v1/sequences/{id}/truncate", TRUNCATE, request_parse_truncate, request_render_truncate, 200),
    ASK(POST, "/v1/batch", BATCH, request_parse_batch, request_render_batch, 200),
    ASK(POST, workloads_path, WORKLOAD_START, parse_workload, request_render_workload, 200),
    ASK(GET, "/v1/workloads/{id}", WORKLOAD, request_parse_nothing, request_render_workload, 200),
    ASK(DELETE, "/v1/workloads/{id}", WORKLOAD_CANCEL, request_parse_nothing, request_render_workload, 200),
    ASK(GET, "/v1/workloads/{id}/events", WORKLOAD, parse_events, request_render_workload, 200),
    ASK(GET, "/v1/leases", LIST, request_parse_leases, request_render_list, 200),
    ASK(POST, "/v1/leases", LEASE, request_parse_lease, request_render_lease, 201),
    ASK(GET, "/v1/leases/{id}", SEQUENCE, request_parse_one_lease, request_render_sequence, 200),
    ASK(DELETE, "/v1/leases/{id}", DELETE, request_parse_one_lease, NULL, 204),
    ASK_TENSORS(POST, "/v1/paged", PAGED, request_parse_paged, request_render_paged, 200),
    ASK_TENSORS(POST, "/v1/merge", MERGE, request_parse_merge, request_render_merge, 200),
    ASK_TENSORS(POST, "/v1/append", APPEND, request_parse_append, request_render_append, 200),
    ASK_TENSORS(POST, "/v1/attend", ATTEND, request_parse_attend, request_render_attend, 200),
};
/* clang-format on */

#undef ANSWER
#undef ASK
#undef ASK_TENSORS

/* Whether the path is the route's; a number in the place of "{id}" goes to *id. */
static bool path_matches(struct http_text path, const char *pattern, uint64_t *id)
{
    const char *hole = strstr(pattern, "{id}");
    if (!hole)
        return http_text_is(path, pattern);
    size_t front = (size_t)(hole - pattern), at = front;
    if (path.n <= front || memcmp(path.bytes, pattern, front) != 0)
        return false;
    for (*id = 0; at < path.n && at < front + 16 && path.bytes[at] >= '0' && path.bytes[at] <= '9'; at++)
        *id = *id * 10 + (uint64_t)(path.bytes[at] - '0');
    struct http_text rest = {path.bytes + at, path.n - at};
    return at > front && http_text_is(rest, hole + 4);
}

static void refuse_method(struct http_exchange *x, unsigned allowed)
{
    static const struct {
        enum http_method method;
        const char *names;
    } all[] = {{HTTP_METHOD_GET, "GET, HEAD"},
               {HTTP_METHOD_POST, "POST"},
               {HTTP_METHOD_PUT, "PUT"},
               {HTTP_METHOD_DELETE, "DELETE"}};
    char list[64] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (allowed & all[i].method)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", all[i].names);
    }
    http_problem(x, ATTND_BAD_METHOD, "this path serves %s", list);
    snprintf(x->extra, sizeof x->extra, "Allow: %s\r\n", list);
}

static void release_request(struct daemon_state *daemon, struct request *request)
{
    daemon->streams -= answer_of(request)->streams;
    engine_release(daemon->engine, request);
}

static void refuse_given_up(struct http_exchange *x, const struct daemon_state *daemon)
{
    http_problem(x, ATTND_DEVICE, "%s; the daemon ends", daemon->given_up);
}

/* Room for the lists of a large body. */
static bool enlarge_arena(struct request *request, uint64_t body_bytes)
{
    if (body_bytes <= HTTP_BODY_BYTES_MAX)
        return true;
    size_t bytes = (size_t)body_bytes + ARENA_SPARE;
    uint8_t *arena = request_tensor(request, bytes, 1);
    if (!arena)
        return false;
    request->arena = arena;
    request->arena_bytes = bytes;
    return true;
}

/* Read the exchange into the request, which gets its staging memory; false: the answer is a problem. */
static bool read_exchange(struct http_exchange *x, struct daemon_state *daemon, const struct route *route,
                          struct request *request)
{
    int rc = enlarge_arena(request, x->staging ? x->body_length : 0) ? 0 : body_no_room(x);
    if (rc == 0)
        rc = route->parse(x, request, daemon->config);
    daemon->tensors_copied += answer_of(request)->copied;
    if (rc == 0 && request_make_outputs(request, &daemon->config->geometry) != 0)
        rc = body_no_room(x);
    if (rc == 0 && x->staging) {
        request_adopt_tensor(request, x->staging);
        x->staging = NULL;
    }
    return rc == 0;
}

/* Read the exchange into a request and hand it to the engine. */
static void start_request(struct http_exchange *x, struct daemon_state *daemon, const struct route *route,
                          uint64_t id)
{
    if (daemon->given_up) {
        refuse_given_up(x, daemon);
        return;
    }
    struct request *request = engine_acquire(daemon->engine);
    if (!request) {
        http_problem(x, ATTND_BUSY, "limits.calls are under way");
        return;
    }
    struct answer *answer = answer_of(request);
    request->kind = route->kind;
    request->id = id;
    request->owner = x->peer;
    request->connection = x->connection;
    *answer = (struct answer){.x = x, .http_status = route->http_status, .render = route->render};
    request->deadline_s = x->timeout_ms * 1e-3;
    if (!read_exchange(x, daemon, route, request)) {
        engine_release(daemon->engine, request);
        return;
    }
    if (answer->streams && daemon->streams >= (daemon->config->limits.calls + 1) / 2) {
        workload_destroy(request->workload.workload); /* only requests on workloads stream */
        answer->streams = false;
        release_request(daemon, request);
        http_problem(x, ATTND_BUSY, "half of limits.calls are streams of workloads");
        return;
    }
    daemon->streams += answer->streams;
    x->pending = request;
    x->deferred = true;
    engine_submit(daemon->engine, request);
}

static void dispatch(struct http_exchange *x, struct daemon_state *daemon)
{
    unsigned allowed = 0;
    uint64_t id = 0;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const struct route *route = &routes[i];
        if (!path_matches(x->path, route->path, &id))
            continue;
        if (route->method != x->method) {
            allowed |= route->method;
            continue;
        }
        if (!route->answer) {
            start_request(x, daemon, route, id);
        } else if (route->method != HTTP_METHOD_GET || request_parse_nothing(x, NULL, NULL) == 0) {
            route->answer(x, daemon);
        }
        return;
    }
    if (allowed)
        refuse_method(x, allowed);
    else
        http_problem(x, ATTND_NOT_FOUND, "no such path: %.*s", (int)(x->path.n < 200 ? x->path.n : 200),
                     x->path.bytes);
}

void routes_handle(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    daemon->uploads -= x->upload != NULL;
    dispatch(x, daemon);
    workload_parse_drop(x); /* a trace that nobody took, since the request was refused; */
    staging_give(engine_staging(daemon->engine), x->staging); /* likewise */
    x->staging = NULL;
}

/* Memory for a body with tensors. */
static bool give_staging(struct http_exchange *x, struct daemon_state *daemon)
{
    x->staging = staging_take(engine_staging(daemon->engine), (size_t)x->body_length);
    if (!x->staging) {
        (void)body_no_room(x);
        return false;
    }
    x->body_buffer = x->staging;
    x->body_max = (size_t)x->body_length;
    return true;
}

/* Whether the request sends tensors to a route that takes them. */
static bool takes_tensors(const struct http_exchange *x)
{
    uint64_t id;
    bool takes = false;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++)
        takes |=
            routes[i].tensors && routes[i].method == x->method && path_matches(x->path, routes[i].path, &id);
    return takes && tensor_parse_wanted(x);
}

bool routes_begun(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    if (takes_tensors(x)) {
        x->wants_length = x->body_length == 0;
        return x->body_length == 0 || x->body_length > daemon->config->limits.body_bytes ||
               give_staging(x, daemon);
    }
    if (x->method != HTTP_METHOD_POST || !http_text_is(x->path, workloads_path))
        return true;
    if (daemon->uploads == UPLOADS_MAX) {
        http_problem(x, ATTND_BUSY, "as many workloads as may be are being posted");
        return false;
    }
    bool ok = workload_parse_begin(x, daemon->config);
    daemon->uploads += x->upload != NULL;
    return ok;
}

/* Nobody waits for a request's answer any more: the workload that was to end with its client ends, then
 * the request is free. */
static void drop_request(struct daemon_state *daemon, struct request *request)
{
    if (!answer_of(request)->cancels || request->status != 0 || request->kind == REQUEST_WORKLOAD_CANCEL) {
        release_request(daemon, request);
        return;
    }
    engine_reuse(request, REQUEST_WORKLOAD_CANCEL, request->workload.report->id);
    engine_submit(daemon->engine, request);
}

void routes_abandon(struct http_exchange *x, void *cookie)
{
    struct request *request = x->pending;
    struct daemon_state *daemon = cookie;
    daemon->uploads -= x->upload != NULL;
    workload_parse_drop(x);
    staging_give(engine_staging(daemon->engine), x->staging);
    if (!request)
        return;
    answer_of(request)->x = NULL;
    atomic_store(&request->cancelled, true);
    if (!x->deferred) /* it is here, between two parts of an answer */
        drop_request(cookie, request);
}

void routes_finish(struct http_exchange *x, void *cookie)
{
    release_request(cookie, x->pending);
}

/* End a deferred exchange in place of the engine. */
static void fail_given_up(struct http_exchange *x, const struct daemon_state *daemon)
{
    x->pending = NULL;
    x->more = false;
    refuse_given_up(x, daemon);
    http_answer(x);
}

void routes_proceed(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    struct request *request = x->pending;
    if (daemon->given_up) {
        x->deferred = true;
        fail_given_up(x, daemon);
        release_request(daemon, request);
        return;
    }
    bool cancel = daemon->draining && answer_of(request)->cancels;
    engine_reuse(request, cancel ? REQUEST_WORKLOAD_CANCEL : REQUEST_WORKLOAD, request->workload.report->id);
    request->workload.waits = !daemon->draining;
    x->deferred = true;
    engine_submit(daemon->engine, request);
}

/* Whether a stream has more to say: its workload runs, and nobody waits for its end in vain. */
static bool goes_on(const struct daemon_state *daemon, const struct request *request)
{
    enum workload_state state = request->workload.report->state;
    return state != WORKLOAD_FINISHED && state != WORKLOAD_CANCELLED &&
           !(daemon->draining && !answer_of(request)->cancels);
}

void routes_deliver(struct daemon_state *daemon)
{
    const struct render_context context = {.config = daemon->config,
                                           .backend = engine_backend(daemon->engine),
                                           .roof_gb_per_s = engine_roof_gb_per_s(daemon->engine),
                                           .tensors_copied = daemon->tensors_copied,
                                           .staging_used = staging_used(engine_staging(daemon->engine)),
                                           .uptime_s = (double)(uv_hrtime() - daemon->started_ns) * 1e-9};
    struct request *request;
    while ((request = engine_take(daemon->engine))) {
        struct answer *answer = answer_of(request);
        struct http_exchange *x = answer->x;
        if (!x) {
            drop_request(daemon, request);
            continue;
        }
        request_render(x, request, &context);
        x->more = answer->streams && request->status == 0 && goes_on(daemon, request);
        if (answer->streams && request->status == 0)
            x->content_type = "application/x-ndjson";
        if (!x->more && x->tail_count == 0) { /* else what is sent lies in the request */
            x->pending = NULL;
            release_request(daemon, request);
        }
        http_answer(x);
    }
}

void routes_give_up(struct daemon_state *daemon, const char *why)
{
    daemon->given_up = why;
    for (uint32_t i = 0; i < daemon->config->limits.calls; i++) {
        struct request *request = engine_request(daemon->engine, i);
        struct http_exchange *x = answer_of(request)->x;
        if (!x || x->pending != request || !x->deferred)
            continue;
        answer_of(request)->x = NULL; /* the request itself stays the engine's */
        fail_given_up(x, daemon);
    }
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int routes_create(struct daemon_state *daemon)
{
    uint32_t requests = daemon->config->limits.calls;
    daemon->answers = calloc(requests, sizeof *daemon->answers);
    if (!daemon->answers)
        return ATTND_NO_MEMORY;
    for (uint32_t i = 0; i < requests; i++)
        engine_request(daemon->engine, i)->cookie = &daemon->answers[i];
    return 0;
}

void routes_destroy(struct daemon_state *daemon)
{
    free(daemon->answers);
}
