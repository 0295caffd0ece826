/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c - from an exchange to its route, to the engine and back.
 *
 * A route either answers by itself (probes, /v1/info) or names a kind of request, the function that reads the
 * exchange into one, and the function that writes its answer (api.h). Such a request goes to the engine and
 * its exchange waits; routes_deliver() has the answer written when it is back. What the engine need not know
 * of it is kept in its struct answer (answer.h). */
#include "server/routes.h"

#include "config/log.h"
#include "scheduler/staging.h"
#include "scheduler/workload.h"
#include "scheduler/workload_run.h"
#include "server/access.h"
#include "server/answer.h"
#include "server/api.h"
#include "server/http_connection.h"
#include "server/http_tally.h"
#include "server/keys.h"
#include "server/media_type.h"
#include "server/openapi.h"
#include "server/registered.h"
#include "server/state.h"
#include "server/tensors.h"
#include "server/workload_parse.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct api_resource *const resources[] = {
    &api_observe,   &api_history, &api_steps,     &api_sequences, &api_kv,
    &api_attention, &api_leases,  &api_workloads, &api_admin,     &api_dashboard};

enum { RESOURCES = sizeof resources / sizeof resources[0] };

enum {
    UPLOADS_MAX = 8,           /* traces being read at a time */
    UPLOAD_BYTES = 128 << 20,  /* that one may take while it is read */
    ARENA_SPARE = 4 << 20,     /* of a large body's lists, which may be larger than they are in the body */
    LONG_JSON_BYTES = 8 << 10, /* beyond these the loop has workers do it */
    LONG_TENSOR_BYTES = 128 << 10,
    LONG_LIST_BYTES = 16 << 10,
    LONG_OUTPUT_BYTES = 1 << 10,
    LONG_EVENTS = 128,
    SILENT_S = 15,      /* after which a stream says something, for the proxies between */
    DELIVER_NS = 500000 /* of a turn, for answers of the engine */
};

/* Whether the path is the route's; a number in the place of "{id}" goes to *id. What stands for "{name}" has no slash. */
static bool path_matches(struct http_text path, const char *pattern, uint64_t *id)
{
    const char *hole = strchr(pattern, '{');
    if (!hole)
        return http_text_is(path, pattern);
    size_t front = (size_t)(hole - pattern), at = front;
    if (path.n <= front || memcmp(path.bytes, pattern, front) != 0)
        return false;
    if (strcmp(hole, "{name}") == 0)
        return !memchr(path.bytes + front, '/', path.n - front);
    for (*id = 0; at < path.n && at < front + 16 && path.bytes[at] >= '0' && path.bytes[at] <= '9'; at++)
        *id = *id * 10 + (uint64_t)(path.bytes[at] - '0');
    struct http_text rest = {path.bytes + at, path.n - at};
    return at > front && http_text_is(rest, hole + 4);
}

/* Note the route of an exchange, or the methods that its path has. */
static void find_route(struct http_exchange *x)
{
    uint32_t number = 0;
    for (size_t i = 0; i < RESOURCES; i++) {
        for (const struct route *route = resources[i]->routes; route->path; route++, number++) {
            if (!path_matches(x->head.path, route->path, &x->id))
                continue;
            if (route->method == x->head.method) {
                x->route = route;
                x->route_path = route->path;
                x->route_number = number;
                return;
            }
            x->methods |= route->method;
        }
    }
}

static void refuse_method(struct http_exchange *x)
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
        if (x->methods & all[i].method)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", all[i].names);
    }
    http_problem(x, ATTND_BAD_METHOD, "this path serves %s", list);
    snprintf(x->extra, sizeof x->extra, "Allow: %s\r\n", list);
}

/* The pattern that the path would match, had it a number in the place of "{id}"; NULL: there is none. */
static const char *pattern_without_number(struct http_text path)
{
    for (size_t i = 0; i < RESOURCES; i++) {
        for (const struct route *route = resources[i]->routes; route->path; route++) {
            const char *hole = strstr(route->path, "{id}");
            size_t front = hole ? (size_t)(hole - route->path) : 0, at = front;
            if (!hole || path.n <= front || memcmp(path.bytes, route->path, front) != 0)
                continue;
            while (at < path.n && path.bytes[at] != '/')
                at++;
            if (at > front && http_text_is((struct http_text){path.bytes + at, path.n - at}, hole + 4))
                return route->path;
        }
    }
    return NULL;
}

/* There is no such path, or none with this method. */
static void refuse_path(struct http_exchange *x)
{
    const char *pattern = x->methods ? NULL : pattern_without_number(x->head.path);
    if (x->methods)
        refuse_method(x);
    else if (pattern)
        http_problem(x, ATTND_NOT_FOUND,
                     "no such path: %.*s: {id} of %s wants a number, at most 9007199254740991",
                     (int)(x->head.path.n < 100 ? x->head.path.n : 100), x->head.path.bytes, pattern);
    else
        http_problem(x, ATTND_NOT_FOUND, "no such path: %.*s",
                     (int)(x->head.path.n < 200 ? x->head.path.n : 200), x->head.path.bytes);
}

/* Whether the client takes what the route may answer with; otherwise the answer is a problem. */
static bool is_acceptable(struct http_exchange *x)
{
    static const struct {
        unsigned types;
        const char *name;
    } all[] = {{TYPE_JSON, "application/json"},
               {TYPE_TEXT, "text/plain"},
               {TYPE_TENSORS, "application/x-safetensors"},
               {TYPE_TENSORS, "application/octet-stream"},
               {TYPE_LINES, "application/x-ndjson"},
               {TYPE_EVENTS, "text/event-stream"},
               {TYPE_PAGE, "text/html"},
               {TYPE_FILES, "text/css"},
               {TYPE_FILES, "text/javascript"},
               {TYPE_FILES, "image/svg+xml"}};
    char served[160] = "";
    size_t n = 0;
    if (x->route->types == 0)
        return true;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!(x->route->types & all[i].types))
            continue;
        if (media_type_accepted(x->head.accept, all[i].name))
            return true;
        n += (size_t)snprintf(served + n, sizeof served - n, "%s%s", n ? " or " : "", all[i].name);
    }
    http_problem(x, ATTND_NOT_ACCEPTABLE, "Accept is \"%.*s\", and this path answers with %s",
                 (int)(x->head.accept.n < 100 ? x->head.accept.n : 100), x->head.accept.bytes, served);
    return false;
}

const struct route *routes_at(uint32_t number)
{
    for (size_t i = 0; i < RESOURCES; i++) {
        for (const struct route *route = resources[i]->routes; route->path; route++) {
            if (number-- == 0)
                return route;
        }
    }
    return NULL;
}

/* ---- what requests have in use --------------------------------------------------------------------- */

/* Whether the lists of a request lie in staging memory, too: those of a large body may be large. */
static bool has_large_body(const struct http_exchange *x)
{
    return x->staging && x->head.body_length > HTTP_BODY_BYTES_MAX;
}

/* What the lists of a request, and its answer, come to at most. A client's list is at most LISTS_FACTOR times as long
 * as it is in the body. */
static void estimate_memory(const struct http_exchange *x, const struct config *config, uint64_t *lists,
                            uint64_t *answer)
{
    enum {
        LITTLE = 64 << 10,
        LISTS_FACTOR = 16,
        PAGE_LISTS = 1 << 20,
        MADE_ANSWER = 1 << 20,
        TABLE_ANSWER = 256 << 10
    };
    uint64_t of_body = LITTLE + LISTS_FACTOR * (uint64_t)x->body.n;
    *lists = LITTLE;
    *answer = LITTLE;
    switch (x->route->kind) {
    case REQUEST_APPEND:
    case REQUEST_ATTEND:
    case REQUEST_PAGED:
    case REQUEST_MERGE:
        *lists = has_large_body(x) ? 0 : of_body;
        *answer = tensors_wanted(x) ? LITTLE : HTTP_REPLY_BYTES_MAX;
        break;
    case REQUEST_CREATE:
        *lists = of_body;
        break;
    case REQUEST_EVENTS:
    case REQUEST_WAITING:
    case REQUEST_PREFIXES:
    case REQUEST_FORK:
    case REQUEST_LEASE:
    case REQUEST_BLOCKS:
    case REQUEST_WORKLOADS:
        *lists = PAGE_LISTS;
        *answer = MADE_ANSWER;
        break;
    case REQUEST_EXPORT: /* ids of tokens */
        *lists = LITTLE + (uint64_t)config->limits.rows_per_call * 2 * sizeof(int64_t);
        break;
    case REQUEST_LIST:
    case REQUEST_STATS:
    case REQUEST_POOL:
    case REQUEST_TABLES:
    case REQUEST_STEPS:
        *lists = PAGE_LISTS;
        *answer = HTTP_REPLY_BYTES_MAX;
        break;
    case REQUEST_WORKLOAD: /* perhaps a table */
    case REQUEST_WORKLOAD_CANCEL:
        *lists = LITTLE + WORKLOAD_TABLE_MAX * sizeof(struct workload_table_row);
        *answer = TABLE_ANSWER;
        break;
    case REQUEST_BATCH:
    case REQUEST_WORKLOAD_START: /* perhaps a stream of outputs */
        *lists = REQUEST_ARENA_BYTES;
        *answer = HTTP_REPLY_BYTES_MAX;
        break;
    default:
        break;
    }
    *lists = *lists < REQUEST_ARENA_BYTES ? *lists : REQUEST_ARENA_BYTES;
}

static bool refuse_memory(struct http_exchange *x, const struct daemon_state *daemon)
{
    http_problem(x, ATTND_BUSY, "memory.bytes (%llu MiB) are in use",
                 (unsigned long long)(daemon->memory.limit >> 20));
    return false;
}

/* Take memory for a request and its answer; false: the answer is a problem. Managers are always served. */
static bool take_memory(struct http_exchange *x, struct daemon_state *daemon, struct request *request)
{
    uint64_t lists, answer;
    estimate_memory(x, daemon->config, &lists, &answer);
    if (x->listener->management)
        return true;
    if (!memory_take(&daemon->memory, lists + answer))
        return refuse_memory(x, daemon);
    answer_of(request)->memory = lists;
    x->memory += answer;
    return true;
}

/* Let go of what is counted for a request. */
static void uncount(struct daemon_state *daemon, struct answer *answer)
{
    daemon->calls -= answer->counts;
    daemon->streams -= answer->streams;
    memory_give(&daemon->memory, answer->memory);
    if (answer->key) {
        tenant_calls_give(&answer->key->use);
        answer->key->streams -= answer->streams;
        tenant_calls_give_staging(&answer->key->use, answer->staging_bytes);
    }
    *answer = (struct answer){0};
}

static void release_request(struct daemon_state *daemon, struct request *request)
{
    uncount(daemon, answer_of(request));
    engine_release(daemon->engine, request);
}

/* A request for an exchange; NULL: the answer is a problem. */
static struct request *acquire_request(struct http_exchange *x, struct daemon_state *daemon)
{
    struct api_key *key = x->key;
    bool counts = !x->listener->management;
    if (key && !(counts ? tenant_calls_take(&key->use) : tenant_calls_add(&key->use))) {
        (void)access_refuse_quota(x, "calls", key->quotas.calls);
        return NULL;
    }
    bool full = counts && daemon->calls == daemon->config->limits.calls;
    struct request *request = full ? NULL : engine_acquire(daemon->engine);
    if (!request) {
        if (key)
            tenant_calls_give(&key->use);
        http_problem(x, ATTND_BUSY, "limits.calls are under way");
        return NULL;
    }
    *answer_of(request) = (struct answer){.x = x, .key = key, .counts = counts};
    daemon->calls += counts;
    if (take_memory(x, daemon, request))
        return request;
    release_request(daemon, request);
    return NULL;
}

/* What a key may have of something that there is so much of: as its quota says, or half. */
static uint64_t part_of_key(uint64_t quota, uint64_t all)
{
    return quota ? quota : all / 2;
}

/* Count staging memory for a key; false: its quota has no room, and the answer is a problem. */
static bool count_staging(struct http_exchange *x, const struct config *config, uint64_t bytes,
                          uint64_t *counted)
{
    struct api_key *key = x->key;
    if (!key)
        return true;
    uint64_t part = tenant_calls_part(&key->use, config->limits.staging_bytes);
    if (!tenant_calls_take_staging(&key->use, bytes, config->limits.staging_bytes)) {
        if (bytes > part)
            http_problem(x, ATTND_INVALID,
                         "quotas.staging_bytes of the key \"%s\" is %llu, and this takes %llu", key->name,
                         (unsigned long long)part, (unsigned long long)bytes);
        else
            (void)access_refuse_quota(x, "staging_bytes", part);
        return false;
    }
    *counted = bytes;
    return true;
}

/* The body has been taken, or nobody will: it is not an upload any more. */
static void end_body(struct http_exchange *x, struct daemon_state *daemon)
{
    daemon->uploads -= x->counts;
    if (x->key) {
        x->key->uploads -= x->counts;
        tenant_calls_give_staging(&x->key->use, x->staging_bytes);
    }
    x->counts = false;
    x->staging_bytes = 0;
    memory_give(&daemon->memory, x->upload_memory);
    x->upload_memory = 0;
    workload_parse_drop(x); /* a trace that nobody took, since the request was refused; */
    staging_give(engine_staging(daemon->engine), x->staging); /* likewise */
    x->staging = NULL;
}

_Static_assert((int)REQUEST_NAME_BYTES >= (int)HTTP_REQUEST_ID_BYTES &&
                   (int)REQUEST_OWNER_BYTES >= (int)KEY_NAME_BYTES,
               "names of requests and keys fit");

/* Who asks, for the engine. */
static void identify(struct request *request, const struct http_exchange *x)
{
    const struct api_key *key = x->key;
    request->sees_all = access_sees_all(x);
    snprintf(request->name, sizeof request->name, "%s", x->head.id);
    request->owner = x->peer;
    request->connection = x->connection;
    request->weight = 1;
    if (!key)
        return;
    request->key = key->id;
    snprintf(request->owner_name, sizeof request->owner_name, "%s", key->name);
    request->owner = x->known ? key->id : x->peer;
    request->weight = key->weight;
    request->quotas = key->quotas.of_engine;
    request->use = &x->key->use;
    request->quotas.workloads =
        x->known ? (uint32_t)part_of_key(request->quotas.workloads, WORKLOADS_MAX) : 0;
}

/* ---- from an exchange to the engine ---------------------------------------------------------------- */

static void refuse_given_up(struct http_exchange *x, const struct daemon_state *daemon)
{
    http_problem(x, ATTND_DEVICE, "%s; the daemon ends", daemon->given_up);
}

/* Room for the lists of a large body. */
static bool enlarge_arena(struct request *request, const struct http_exchange *x)
{
    if (!has_large_body(x))
        return true;
    size_t bytes = (size_t)x->head.body_length + ARENA_SPARE;
    uint8_t *arena = request_tensor(request, bytes, 1);
    if (!arena)
        return false;
    request->arena = arena;
    request->arena_bytes = bytes;
    return true;
}

/* Read the exchange into the request, which gets its staging memory; false: the answer is a problem. Any
 * thread, which has both. */
static bool read_exchange(struct http_exchange *x, const struct config *config, struct request *request)
{
    int rc = enlarge_arena(request, x) ? 0 : tensors_no_room(x);
    if (rc == 0)
        rc = x->route->parse(x, request, config);
    if (rc == 0 && request_make_outputs(request, &config->geometry) != 0)
        rc = tensors_no_room(x);
    if (rc == 0 && x->staging) {
        request_adopt_tensor(request, x->staging, x->head.body_length);
        x->staging = NULL;
    }
    return rc == 0;
}

/* Whether another answer that goes on may be given; else the answer is a problem. */
static bool may_stream(struct http_exchange *x, struct daemon_state *daemon)
{
    struct api_key *key = x->key;
    bool half = daemon->streams >= (daemon->config->limits.calls + 1) / 2;
    if (half)
        http_problem(x, ATTND_BUSY, "half of limits.calls are streams");
    else if (key && key->quotas.streams && key->streams >= key->quotas.streams)
        half = access_refuse_quota(x, "streams", key->quotas.streams) != 0;
    if (half)
        return false;
    daemon->streams++;
    if (key)
        key->streams++;
    return true;
}

static void refuse_gone(struct http_exchange *x)
{
    http_problem(x, ATTND_NO_KEY, "the key \"%s\" is no more", x->key->name);
}

/* An admin acts for the owner that the request names: what it makes is the owner's and within its quotas, and only the owner's exists.
 * False: there is no such key, and the answer is a problem. */
static bool act_for_owner(struct http_exchange *x, struct daemon_state *daemon, struct request *request)
{
    const struct answer *answer = answer_of(request);
    if (!answer->has_owner)
        return true;
    if (!daemon->keys) {
        http_problem(x, ATTND_INVALID, "owner: this daemon has no keys (keys.file)");
        return false;
    }
    const struct api_key *key =
        answer->owner[0] ? keys_named(daemon->keys, answer->owner) : keys_anonymous(daemon->keys);
    if (!key) {
        http_problem(x, ATTND_INVALID, "owner: there is no key \"%s\"", answer->owner);
        return false;
    }
    request->key = key->id;
    request->quotas = key->quotas.of_engine;
    request->sees_all = false;
    return true;
}

/* Whether what was read may be asked of the engine; else the answer is a problem. */
static bool may_submit(struct http_exchange *x, struct daemon_state *daemon, struct request *request)
{
    struct answer *answer = answer_of(request);
    if (x->key) { /* what was counted for the body is the request's now */
        tenant_calls_give_staging(&x->key->use, x->staging_bytes);
        x->staging_bytes = 0;
    }
    if (daemon->given_up)
        refuse_given_up(x, daemon);
    else if (x->key && x->key->gone)
        refuse_gone(x);
    else
        return act_for_owner(x, daemon, request) &&
               count_staging(x, daemon->config, request->tensor_bytes, &answer->staging_bytes) &&
               (!answer->streams || may_stream(x, daemon));
    return false;
}

/* A request that will not be asked is let go. */
static void forgo(struct daemon_state *daemon, struct request *request)
{
    struct answer *answer = answer_of(request);
    answer->streams = false;
    if (answer->good && request->kind == REQUEST_WORKLOAD_START)
        workload_destroy(request->workload.workload);
    release_request(daemon, request);
}

/* The exchange has been read: hand the request to the engine, or let it go with the problem that stands. */
static void submit(struct http_exchange *x, struct daemon_state *daemon, struct request *request)
{
    struct answer *answer = answer_of(request);
    daemon->tensors_copied += answer->copied;
    if (!answer->good || !may_submit(x, daemon, request)) {
        forgo(daemon, request);
        return;
    }
    x->pending = request;
    x->deferred = true;
    engine_submit(daemon->engine, request);
}

/* The ids that a request chooses are kept before they are used. Worker. */
static void keep_ids(struct answer *answer)
{
    char reason[STATE_REASON_BYTES];
    struct state *state = answer->daemon->outlasting;
    if (!answer->good || !state || state_ids_keep(state, answer->request, reason) == 0)
        return;
    http_problem(answer->x, ATTND_BUSY, "%s", reason);
    answer->good = false;
}

static void keep_off_loop(uv_work_t *work)
{
    keep_ids(work->data);
}

/* Worker. */
static void read_off_loop(uv_work_t *work)
{
    struct answer *answer = work->data;
    answer->good = read_exchange(answer->x, answer->daemon->config, answer->request);
    keep_ids(answer);
}

static void after_read(uv_work_t *work, int status)
{
    struct answer *answer = work->data;
    struct daemon_state *daemon = answer->daemon;
    struct http_exchange *x = answer->x;
    (void)status;
    if (answer->good && daemon->outlasting)
        state_ids_note(daemon->outlasting, answer->request);
    if (!http_let_go(x)) {
        forgo(daemon, answer->request);
        return;
    }
    submit(x, daemon, answer->request);
    end_body(x, daemon);
    if (!x->pending)
        http_answer(x);
}

/* Whether reading an exchange may take long: a millisecond is 30 KiB of JSON or 10 MiB of tensors. */
static bool reads_long(const struct http_exchange *x)
{
    size_t most = tensors_wanted(x) ? LONG_TENSOR_BYTES : LONG_JSON_BYTES;
    return x->body.n > most || x->route->body == BODY_TRACE;
}

/* Read the exchange into a request and hand it to the engine. */
static void start_request(struct http_exchange *x, struct daemon_state *daemon)
{
    const struct route *route = x->route;
    if (daemon->given_up) {
        refuse_given_up(x, daemon);
        return;
    }
    struct request *request = acquire_request(x, daemon);
    if (!request)
        return;
    struct answer *answer = answer_of(request);
    request->kind = route->kind;
    request->id = x->id;
    answer->http_status = route->http_status;
    answer->render = route->render;
    answer->daemon = daemon;
    answer->request = request;
    answer->work.data = answer;
    identify(request, x);
    request->deadline_s = x->head.timeout_ms * 1e-3;
    if (reads_long(x) && uv_queue_work(daemon->loop, &answer->work, read_off_loop, after_read) == 0) {
        x->held = x->deferred = true;
        return;
    }
    answer->good = read_exchange(x, daemon->config, request);
    bool keeps = answer->good && daemon->outlasting && !state_ids_have(daemon->outlasting, request);
    if (keeps && uv_queue_work(daemon->loop, &answer->work, keep_off_loop, after_read) == 0)
        x->held = x->deferred = true;
    else
        submit(x, daemon, request);
}

/* Whether the node that the request names is this one; a proxy may have sent it elsewhere. An id in the path says so by itself. */
static bool is_for_us(struct http_exchange *x, const struct daemon_state *daemon)
{
    char here[16];
    size_t n = (size_t)snprintf(here, sizeof here, "n%u", daemon->config->node);
    struct http_text there = x->head.node;
    if (there.n == 0 || strchr(x->route->path, '{') || (there.n == n && memcmp(there.bytes, here, n) == 0))
        return true;
    http_problem(x, ATTND_OTHER_NODE, "X-Attnd-Node is \"%.*s\", and this is node %s",
                 (int)(there.n < 40 ? there.n : 40), there.bytes, here);
    return false;
}

static void dispatch(struct http_exchange *x, struct daemon_state *daemon)
{
    const struct route *route = x->route;
    if (x->key && x->key->gone) /* since the head was read */
        refuse_gone(x);
    else if (!route)
        refuse_path(x);
    else if (!is_acceptable(x) || !is_for_us(x, daemon))
        return;
    else if (!route->answer)
        start_request(x, daemon);
    else if (route->method != HTTP_METHOD_GET || api_parse_nothing(x, NULL, NULL) == 0)
        route->answer(x, daemon);
}

void routes_handle(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    dispatch(x, daemon);
    if (!x->held)
        end_body(x, daemon);
}

/* Memory for a body with tensors. */
static bool give_staging(struct http_exchange *x, struct daemon_state *daemon)
{
    if (!count_staging(x, daemon->config, x->head.body_length, &x->staging_bytes))
        return false;
    x->staging = staging_take(engine_staging(daemon->engine), (size_t)x->head.body_length);
    if (!x->staging) {
        tensors_no_room(x);
        return false;
    }
    x->body_buffer = x->staging;
    x->body_max = (size_t)x->head.body_length;
    return true;
}

bool routes_begun(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    find_route(x);
    if (!access_admit(x, daemon))
        return false;
    enum route_body body = x->route ? x->route->body : BODY_SMALL;
    if (!x->route && x->head.expects) { /* nobody wants the body */
        refuse_path(x);
        return false;
    }
    if (body == BODY_TENSORS && tensors_wanted(x)) {
        uint64_t most = daemon->config->limits.body_bytes;
        x->wants_length = x->head.body_length == 0;
        if (x->head.body_length > most)
            x->body_max = (size_t)most; /* which is what the refusal names */
        return x->head.body_length == 0 || x->head.body_length > most || give_staging(x, daemon);
    }
    if (body != BODY_TRACE)
        return true;
    struct api_key *key = x->key;
    if (daemon->uploads == UPLOADS_MAX) {
        http_problem(x, ATTND_BUSY, "as many workloads as may be are being posted");
        return false;
    }
    uint64_t of_key = key ? part_of_key(key->quotas.uploads, UPLOADS_MAX) : UPLOADS_MAX;
    if (key && key->uploads >= of_key)
        return access_refuse_quota(x, "uploads", of_key) == 0;
    bool ok = workload_parse_begin(x, daemon->config, daemon->loop);
    if (x->upload && !memory_take_bulk(&daemon->memory, UPLOAD_BYTES)) {
        workload_parse_drop(x);
        return refuse_memory(x, daemon);
    }
    x->upload_memory = x->upload ? UPLOAD_BYTES : 0;
    x->counts = x->upload != NULL;
    daemon->uploads += x->counts;
    if (key)
        key->uploads += x->counts;
    return ok;
}

/* What a request has made that its client must be told of: sequences or a lease; NULL: nothing. */
static const struct request_shown *made_by(const struct request *request)
{
    if (request->status != 0)
        return NULL;
    return request->kind == REQUEST_CREATE  ? &request->create.shown
           : request->kind == REQUEST_FORK  ? &request->fork.shown
           : request->kind == REQUEST_LEASE ? &request->lease.shown
                                            : NULL;
}

/* Delete what a request has made, since its client does not know of it. */
static void undo(struct daemon_state *daemon, struct request *request, const struct request_shown *made)
{
    uint64_t ids[REQUEST_FORKS_MAX];
    uint32_t count = made->count;
    bool of_leases = request->kind == REQUEST_LEASE;
    assert(count >= 1 && count <= REQUEST_FORKS_MAX);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = made->views[i].id;
    release_request(daemon, request); /* and with it its lists */
    request = engine_acquire(daemon->engine);
    request->sees_all = true;
    request->kind = count == 1 ? REQUEST_DELETE : REQUEST_BATCH;
    request->id = ids[0];
    request->of_leases = of_leases;
    if (count > 1) {
        request->batch.ops = request_alloc(request, count, sizeof *request->batch.ops);
        request->batch.count = count;
        for (uint32_t i = 0; i < count; i++)
            request->batch.ops[i] = (struct request_op){.kind = REQUEST_DELETE, .id = ids[i]};
    }
    engine_submit(daemon->engine, request);
}

/* All that belonged to a key has been removed. */
static void log_removed(const struct answer *answer)
{
    uint32_t sequences = answer->removed_sequences, workloads = answer->removed_workloads;
    log_event_of(LOG_WARNING, "key_removed", &(struct log_about){.key = answer->forgets->name},
                 LOG_NUMBERS({"sequences", sequences}, {"workloads", workloads}),
                 "what belonged to the key \"%s\" is removed: sequences and leases: %u, workloads: %u",
                 answer->forgets->name, sequences, workloads);
}

/* Ask the engine to go on removing what belonged to a key, if that is what was asked; false: it is not, or it
 * is done. A workload is cancelled first. */
static bool forget_on(struct daemon_state *daemon, struct request *request)
{
    struct request_forget forget = request->forget;
    struct answer *answer = answer_of(request);
    uint64_t key = request->key;
    if (!answer->forgets)
        return false;
    if (request->kind == REQUEST_WORKLOAD_CANCEL) {
        answer->removed_workloads += request->status == 0;
        forget = (struct request_forget){0};
    } else {
        answer->removed_sequences += forget.removed;
    }
    if (forget.done) {
        log_removed(answer);
        return false;
    }
    engine_reuse(request, forget.workload ? REQUEST_WORKLOAD_CANCEL : REQUEST_FORGET, forget.workload);
    request->key = key;
    if (forget.workload)
        request->workload.reason = WORKLOAD_BY_KEY;
    else
        request->forget = forget;
    engine_submit(daemon->engine, request);
    return true;
}

/* Why a workload ends with the stream in which it was told. */
static enum workload_reason end_of_stream(const struct daemon_state *daemon, const struct answer *answer)
{
    return daemon->overdue                    ? WORKLOAD_BY_DRAIN
           : answer->key && answer->key->gone ? WORKLOAD_BY_KEY
                                              : WORKLOAD_BY_CLIENT;
}

/* Nobody waits for a request's answer any more: what it has made is undone; the workload that was to end with
 * its client ends; then the request is free. */
static void drop_request(struct daemon_state *daemon, struct request *request)
{
    if (forget_on(daemon, request))
        return;
    const struct request_shown *made = made_by(request);
    if (made) {
        undo(daemon, request, made);
        return;
    }
    if (!answer_of(request)->cancels || request->status != 0 || request->kind == REQUEST_WORKLOAD_CANCEL) {
        release_request(daemon, request);
        return;
    }
    engine_reuse(request, REQUEST_WORKLOAD_CANCEL, request->workload.report->id);
    request->sees_all = true;
    request->workload.reason = end_of_stream(daemon, answer_of(request));
    engine_submit(daemon->engine, request);
}

void routes_abandon(struct http_exchange *x, void *cookie)
{
    struct request *request = x->pending;
    struct daemon_state *daemon = cookie;
    end_body(x, daemon);
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

/* Where the line of a request that has succeeded belongs, as log.requests says; at debug each has one. What is read on the
 * management listener is probes and metrics, every second: it is in the access log only when it is slow. */
static enum log_level level_of_answered(const struct http_exchange *x, const struct config *config,
                                        uint64_t took_ns)
{
    bool slow = (double)took_ns * 1e-6 > config->log_slow_ms,
         probe = x->listener->management && x->head.method == HTTP_METHOD_GET,
         wanted = config->log_requests != LOG_REQUESTS_OFF &&
                  (slow || (config->log_requests == LOG_REQUESTS_ALL && !probe));
    return wanted ? LOG_INFO : LOG_DEBUG;
}

/* Whether an exchange is a workload that ends with its client. */
static bool has_streamed_workload(const struct http_exchange *x)
{
    return x->pending && answer_of(x->pending)->cancels;
}

static void log_answered(const struct http_exchange *x, const struct config *config, uint64_t took_ns)
{
    /* The end of the daemon has cut a workload: its client was told, and has its report. */
    enum log_level level = x->cut ? LOG_WARNING : level_of_answered(x, config, took_ns);
    char whose[HTTP_WHOSE_BYTES];
    if (!log_wants(level))
        return;
    struct log_about about = http_log_about(x, took_ns);
    about.code = x->cut ? "cut" : NULL;
    char subject[HTTP_SUBJECT_BYTES];
    log_request(level, LOG_ANSWERED, &about, "%s %.*s from %s: %d%s after %.3f ms%s", x->head.method_name,
                (int)x->head.path.n, x->head.path.bytes, http_log_whose(x, whose), x->http_status,
                x->cut ? ", cut by the end of the daemon," : "", about.ms, http_log_subject(x, subject));
}

static void count_answer(struct http_exchange *x, struct daemon_state *daemon, uint64_t took_ns)
{
    uint32_t number = x->route ? x->route_number : daemon->tally->routes;
    http_tally_note(daemon->tally, number, x->http_status, x->problem, took_ns);
    if (x->problem && x->key)
        atomic_fetch_add(&x->key->use.problems, 1);
}

void routes_answered(struct http_exchange *x, void *cookie)
{
    struct daemon_state *daemon = cookie;
    uint64_t took_ns = uv_hrtime() - x->begun_ns;
    count_answer(x, daemon, took_ns);
    if (!x->problem) /* http_problem() has told the log */
        log_answered(x, daemon->config, took_ns);
}

/* One that ends without its answer has a line, too: 499 is what proxies call a client that did not wait. A stream is mostly
 * ended by its client, but with that of a workload, the workload ends, too. */
void routes_unanswered(struct http_exchange *x, enum http_end why, enum http_stage stage, void *cookie)
{
    static const struct {
        const char *code, *text;
        int http_status;
    } ends[] = {[HTTP_CLIENT_GONE] = {"client_gone", "the client went away", 499},
                [HTTP_CLIENT_SLOW] = {"client_slow", "the client did not read on", 499},
                [HTTP_CUT] = {"cut", "cut by the end of the daemon", 503}};
    static const char *const stages[] = {[HTTP_ARRIVING] = "while its body arrived",
                                         [HTTP_WAITING] = "before it was answered",
                                         [HTTP_SENDING] = "while it was answered",
                                         [HTTP_STREAMING] = "amid its stream"};
    struct daemon_state *daemon = cookie;
    uint64_t took_ns = uv_hrtime() - x->begun_ns;
    bool left_stream = why == HTTP_CLIENT_GONE && stage == HTTP_STREAMING && !has_streamed_workload(x);
    enum log_level level = why != HTTP_CLIENT_GONE ? LOG_WARNING
                           : left_stream           ? level_of_answered(x, daemon->config, took_ns)
                                                   : LOG_INFO;
    if (!x->problem && stage != HTTP_STREAMING)
        x->http_status = ends[why].http_status;
    count_answer(x, daemon, took_ns);
    if (x->problem || !log_wants(level)) /* http_problem() has told the log */
        return;
    char whose[HTTP_WHOSE_BYTES];
    struct log_about about = http_log_about(x, took_ns);
    about.code = ends[why].code;
    log_request(level, LOG_UNANSWERED + why, &about, "%s %.*s from %s: %d %s: %s %s, after %.3f ms",
                x->head.method_name, (int)x->head.path.n, x->head.path.bytes, http_log_whose(x, whose),
                x->http_status, about.code, ends[why].text, stages[stage], about.ms);
}

/* End a deferred exchange in place of the engine. */
static void fail_given_up(struct http_exchange *x, const struct daemon_state *daemon)
{
    x->pending = NULL;
    x->more = false;
    refuse_given_up(x, daemon);
    http_answer(x);
}

/* Ask for the events that follow. */
static void listen_on(struct daemon_state *daemon, struct request *request)
{
    struct http_exchange *x = answer_of(request)->x;
    const struct request_events ask = {.types = request->events.types, .next = request->events.next};
    engine_reuse(request, REQUEST_EVENTS, 0);
    request->events = ask;
    identify(request, x);
    x->deferred = true;
    engine_submit(daemon->engine, request);
}

/* Whether a stream of events has nothing to say, and need not yet. */
static bool is_silent(const struct daemon_state *daemon, const struct request *request, double now_s)
{
    const struct answer *answer = answer_of(request);
    const struct request_events *of = &request->events;
    return request->kind == REQUEST_EVENTS && request->status == 0 && answer->said_s > 0 && of->count == 0 &&
           of->missed == 0 && now_s - answer->said_s < SILENT_S && !daemon->draining &&
           !(answer->key && answer->key->gone);
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
    if (x->key && x->key->gone) {
        x->pending = NULL;
        x->more = false;
        answer_of(request)->x = NULL;
        drop_request(daemon, request);
        x->deferred = true;
        refuse_gone(x);
        http_answer(x);
        return;
    }
    if (request->kind == REQUEST_EVENTS) {
        listen_on(daemon, request);
        return;
    }
    bool streamed = answer_of(request)->cancels, cancel = streamed && daemon->overdue;
    engine_reuse(request, cancel ? REQUEST_WORKLOAD_CANCEL : REQUEST_WORKLOAD, request->workload.report->id);
    request->workload.reason = cancel ? WORKLOAD_BY_DRAIN : WORKLOAD_NO_REASON;
    request->workload.waits = streamed || !daemon->draining;
    request->workload.takes_outputs = streamed;
    identify(request, x);
    x->deferred = true;
    engine_submit(daemon->engine, request);
}

/* Whether a stream has more to say: its workload runs, and nobody waits for its end in vain. */
static bool goes_on(const struct daemon_state *daemon, const struct request *request)
{
    if (request->kind == REQUEST_EVENTS)
        return !daemon->draining;
    enum workload_state state = request->workload.report->state;
    return (request->workload.more || (state != WORKLOAD_FINISHED && state != WORKLOAD_CANCELLED)) &&
           !(daemon->draining && !answer_of(request)->cancels);
}

/* What the name of a key is; NULL: there is none. */
static const char *name_of_key(const struct keys *keys, uint64_t id)
{
    const struct api_key *key = keys && id ? keys_with_id(keys, id) : NULL;
    return key ? key->name : NULL;
}

/* Whose the sequences are that an admin looks at: one, or a page of them. Keys stay where they are, so the answer may be written off
 * the loop. */
static void name_owners(struct daemon_state *daemon, struct request *request)
{
    bool one = request->kind == REQUEST_SEQUENCE;
    if (!daemon->keys || !request->sees_all || request->status != 0 ||
        (!one && request->kind != REQUEST_LIST && request->kind != REQUEST_STATS))
        return;
    const struct request_shown *shown = one ? &request->look.shown : &request->list.shown;
    uint64_t anonymous = keys_anonymous(daemon->keys)->id;
    for (uint32_t i = 0; i < shown->count; i++) {
        struct sequence_view *v = &shown->views[i];
        v->owner = v->key == anonymous ? "" : name_of_key(daemon->keys, v->key);
    }
}

/* Which slot an output has seen that nobody has written, and who has had its block. */
static void write_unwritten(struct json_writer *w, const void *cookie)
{
    const struct request *request = cookie;
    const struct request_unwritten *u = request->unwritten;
    json_open(w, "unwritten", '{');
    json_uint(w, "row", u->row);
    json_uint(w, "layer", u->layer);
    json_uint(w, request->kind == REQUEST_PAGED ? "table" : "sequence", u->id);
    json_uint(w, "position", u->position);
    json_uint(w, "block", u->block);
    json_uint(w, "slot", u->slot);
    json_uint(w, "slots", u->slots);
    json_uint(w, "blocks", u->blocks);
    json_open(w, "owners", '[');
    for (uint32_t i = 0; i < u->owner_count; i++) {
        const struct block_owner *owner = &u->owners[i];
        const char *name =
            owner->foreign ? "other" : name_of_key(answer_of(request)->daemon->keys, owner->key);
        json_open(w, NULL, '{');
        if (owner->foreign)
            json_null(w, "id");
        else
            json_uint(w, "id", owner->id);
        if (name)
            json_string(w, "key", name);
        else
            json_null(w, "key");
        json_uint(w, "since", owner->since);
        if (owner->until)
            json_uint(w, "until", owner->until);
        else
            json_null(w, "until");
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
}

static void add_subject(struct log_subject *s, uint64_t id)
{
    uint32_t n = s->count < LOG_IDS_MAX ? s->count : LOG_IDS_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (s->ids[i] == id)
            return;
    }
    if (id && n < LOG_IDS_MAX)
        s->ids[n] = id;
    s->count += id != 0;
}

/* What the path, then the body names, and what has been made. */
static struct log_subject subject_of(const struct http_exchange *x, const struct request *request)
{
    const struct request_shown *made = made_by(request);
    const struct request_queued *q = &request->queued;
    const struct request_batch *batch = request->kind == REQUEST_BATCH ? &request->batch : NULL;
    struct log_subject s = {.are_leases = request->of_leases || request->kind == REQUEST_LEASE ||
                                          request->kind == REQUEST_PAGED};
    if (x->route_path && (strncmp(x->route_path, "/v1/sequences", 13) == 0 || s.are_leases))
        add_subject(&s, x->id);
    for (uint32_t i = 0; batch && batch->ops && i < batch->count; i++) {
        const struct request_op *op = &batch->ops[i];
        const struct request_shown *shown = op->kind == REQUEST_CREATE ? &op->create.shown
                                            : op->kind == REQUEST_FORK ? &op->fork.shown
                                                                       : NULL;
        add_subject(&s, op->id);
        for (uint32_t k = 0; shown && k < shown->count; k++)
            add_subject(&s, shown->views[k].id);
    }
    if (request->kind == REQUEST_CREATE || request->kind == REQUEST_LEASE)
        add_subject(&s, request->id); /* that was asked for */
    for (uint32_t i = 0; !batch && q->on && i < q->on_count; i++)
        add_subject(&s, q->on[i].id);
    for (uint32_t i = 0; made && i < made->count; i++)
        add_subject(&s, made->views[i].id);
    return s;
}

/* Write the answer of a request: a problem when it failed, else what its route promises. */
static void write_answer(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct answer *answer = answer_of(request);
    x->subject = subject_of(x, request);
    x->http_status = answer->http_status;
    if (request->status == ATTND_MOVED)
        http_problem_moved(x, request->detail, request->moved_to);
    else if (request->status == ATTND_UNWRITTEN && request->unwritten)
        http_problem_with(x, request->status, request->detail, write_unwritten, request);
    else if (request->status != 0)
        http_problem(x, request->status, "%s", request->detail);
    else if (answer->render)
        answer->render(x, request, c);
}

/* The answer is written: send it. */
static void send_answer(struct daemon_state *daemon, struct request *request)
{
    struct answer *answer = answer_of(request);
    struct http_exchange *x = answer->x;
    x->pending = request;
    x->more = answer->streams && request->status == 0 && goes_on(daemon, request);
    x->cut = has_streamed_workload(x) && request->status == 0 &&
             request->workload.report->reason == WORKLOAD_BY_DRAIN;
    if (answer->streams && request->status == 0)
        x->content_type = answer->events ? "text/event-stream" : "application/x-ndjson";
    if (!x->more && x->tail_count == 0 && !made_by(request)) { /* else it is wanted until that is sent */
        x->pending = NULL;
        release_request(daemon, request);
    }
    http_answer(x);
}

/* Worker. */
static void write_off_loop(uv_work_t *work)
{
    struct answer *answer = work->data;
    write_answer(answer->x, answer->request, &answer->context);
}

static void after_write(uv_work_t *work, int status)
{
    struct answer *answer = work->data;
    struct daemon_state *daemon = answer->daemon;
    (void)status;
    if (http_let_go(answer->x)) {
        send_answer(daemon, answer->request);
        return;
    }
    answer->x = NULL;
    drop_request(daemon, answer->request);
}

/* Whether writing an answer may take long: by the lists that it shows, or by its tensors, of which it makes numbers in
 * JSON or a digest. */
static bool writes_long(const struct request *request)
{
    const struct answer *answer = answer_of(request);
    bool little = answer->streams && request->workload.output_count == 0 && !request->workload.table;
    if (request->kind == REQUEST_EVENTS)
        return request->status == 0 && request->events.count > LONG_EVENTS;
    return request->status == 0 && !little &&
           (request->arena_used > LONG_LIST_BYTES ||
            (!answer->wants_tensors && request->tensor_bytes > LONG_OUTPUT_BYTES));
}

/* Whether others are to have their turns; it goes on after that. */
static bool is_over(struct daemon_state *daemon, uint64_t until_ns)
{
    if (!daemon->completed || uv_hrtime() <= until_ns)
        return false;
    uv_async_send(daemon->completed);
    return true;
}

void routes_deliver(struct daemon_state *daemon)
{
    const struct render_context context = {.config = daemon->config,
                                           .instance = daemon->instance,
                                           .backend = engine_backend(daemon->engine),
                                           .roof = engine_roof(daemon->engine),
                                           .now_s = engine_now_s(daemon->engine),
                                           .started_s = (double)daemon->started_ns * 1e-9,
                                           .started_unix_s = daemon->started_s,
                                           .tensors_copied = daemon->tensors_copied,
                                           .connections = http_connections_counts(daemon->connections),
                                           .managers = http_connections_counts(daemon->managers),
                                           .calls = daemon->calls,
                                           .streams = daemon->streams,
                                           .uploads = daemon->uploads,
                                           .leaving = daemon->leaving,
                                           .lame_duck_left_s = daemon->lame_duck_left(daemon->cookie),
                                           .tally = daemon->tally,
                                           .memory_used = atomic_load(&daemon->memory.used),
                                           .memory_limit = daemon->memory.limit,
                                           .restored = daemon->restored,
                                           .not_restored = daemon->not_restored,
                                           .follows_unclean = daemon->follows_unclean,
                                           .keys_refused = daemon->keys && keys_latest(daemon->keys).refused,
                                           .memory_refused = atomic_load(&daemon->memory.refused),
                                           .staging_used = staging_used(engine_staging(daemon->engine)),
                                           .longest_turn_s = daemon->longest_turns_s[0],
                                           .uptime_s = (double)(uv_hrtime() - daemon->started_ns) * 1e-9};
    uint64_t until_ns = uv_hrtime() + DELIVER_NS;
    struct request *request;
    while ((request = engine_take(daemon->engine))) {
        struct answer *answer = answer_of(request);
        if (request == daemon->asked) {
            daemon->asked = NULL;
            continue;
        }
        if (answer->registered) {
            registered_deliver(answer->registered, request);
            if (is_over(daemon, until_ns))
                break;
            continue;
        }
        if (!answer->x) {
            drop_request(daemon, request);
            continue;
        }
        if (is_silent(daemon, request, context.now_s)) {
            listen_on(daemon, request);
            continue;
        }
        answer->said_s = context.now_s;
        answer->context = context;
        name_owners(daemon, request);
        if (writes_long(request) &&
            uv_queue_work(daemon->loop, &answer->work, write_off_loop, after_write) == 0) {
            answer->x->held = true;
            answer->x->pending = NULL; /* what becomes of it is after_write()'s */
            continue;
        }
        write_answer(answer->x, request, &context);
        send_answer(daemon, request);
        if (is_over(daemon, until_ns))
            break;
    }
    if (daemon->outlasting)
        state_ids_look(daemon->outlasting, daemon);
}

/* Let the loop go on, until the engine answers something or gives up. */
static void wait_for_engine(struct daemon_state *daemon)
{
    uv_ref((uv_handle_t *)daemon->completed); /* or the loop would not wait */
    uv_run(daemon->loop, UV_RUN_ONCE);
    uv_unref((uv_handle_t *)daemon->completed);
}

struct request *routes_request(struct daemon_state *daemon)
{
    struct request *request;
    while (!(request = engine_acquire(daemon->engine)) && !daemon->given_up)
        wait_for_engine(daemon);
    if (request)
        *answer_of(request) = (struct answer){0};
    return request;
}

bool routes_ask(struct daemon_state *daemon, struct request *request)
{
    daemon->asked = request;
    engine_submit(daemon->engine, request);
    while (daemon->asked && !daemon->given_up)
        wait_for_engine(daemon);
    return !daemon->asked;
}

uint32_t routes_streamed(const struct daemon_state *daemon)
{
    struct request *request;
    uint32_t n = 0;
    for (uint32_t i = 0; (request = engine_request(daemon->engine, i)); i++)
        n += answer_of(request)->x && answer_of(request)->cancels;
    return n;
}

void routes_give_up(struct daemon_state *daemon, const char *why)
{
    daemon->given_up = why;
    struct request *request;
    for (uint32_t i = 0; (request = engine_request(daemon->engine, i)); i++) {
        struct http_exchange *x = answer_of(request)->x;
        if (!x || x->pending != request || !x->deferred)
            continue;
        answer_of(request)->x = NULL; /* the request itself stays the engine's */
        fail_given_up(x, daemon);
    }
}

void routes_end_key(struct daemon_state *daemon, struct api_key *key)
{
    struct request *request;
    for (uint32_t i = 0; (request = engine_request(daemon->engine, i)); i++) {
        struct answer *answer = answer_of(request);
        struct http_exchange *x = answer->x;
        if (answer->key != key || !x || x->pending != request || !x->deferred)
            continue;
        answer->x = NULL;
        atomic_store(&request->cancelled, true);
        x->pending = NULL;
        x->more = false;
        refuse_gone(x);
        http_answer(x);
    }
    request = engine_acquire(daemon->engine);
    if (!request) {
        log_line(LOG_ERROR, "what belongs to the key \"%s\" stays: no request is free (SIGHUP again)",
                 key->name);
        return;
    }
    *answer_of(request) = (struct answer){.forgets = key};
    request->kind = REQUEST_FORGET;
    request->key = key->id;
    engine_submit(daemon->engine, request);
    key->ended = true;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int routes_create(struct daemon_state *daemon)
{
    struct request *request;
    uint32_t routes = 0;
    while (routes_at(routes))
        routes++;
    daemon->tally = http_tally_create(routes);
    daemon->answers = calloc(daemon->config->limits.calls + ROUTES_SPARE_REQUESTS, sizeof *daemon->answers);
    daemon->openapi = openapi_create(resources, RESOURCES);
    if (!daemon->answers || !daemon->openapi || !daemon->tally)
        return ATTND_NO_MEMORY;
    for (uint32_t i = 0; (request = engine_request(daemon->engine, i)); i++)
        request->cookie = &daemon->answers[i];
    return 0;
}

void routes_destroy(struct daemon_state *daemon)
{
    free(daemon->answers);
    free(daemon->openapi);
    free(daemon->tally);
}
