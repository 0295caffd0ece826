/* SPDX-License-Identifier: Apache-2.0 */
/* api_admin.c - /v1/audit, /v1/trim, /v1/selftest, /v1/roof, /v1/drain and /v1/parameters. */
#include "server/api.h"
#include "server/keys.h"
#include "server/tensors.h"

#include <math.h>
#include <string.h>

enum { DRAIN_S_MAX = 86400 }; /* of either time */

static void render_audit(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    static const char *const checked[] = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9"};
    struct json_writer *w = &x->reply;
    (void)c;
    if (request->check.fault) {
        http_problem(x, ATTND_INTERNAL, "%s", request->check.fault);
        return;
    }
    json_open(w, NULL, '{');
    json_bool(w, "ok", true);
    json_open(w, "checked", '[');
    for (size_t i = 0; i < sizeof checked / sizeof checked[0]; i++)
        json_string(w, NULL, checked[i]);
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

static void render_trim(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "dropped", request->trim.dropped);
    json_close(w, '}');
    json_raw(w, "\n");
}

static void render_self_test(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    if (request->check.fault) {
        http_problem(x, ATTND_INTERNAL, "%s", request->check.fault);
        return;
    }
    json_open(w, NULL, '{');
    json_bool(w, "ok", true);
    json_string(w, "kernel", c->backend->kernel);
    json_close(w, '}');
    json_raw(w, "\n");
}

static void render_roof(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)request;
    json_open(w, NULL, '{');
    api_write_roof(w, &c->roof, c->now_s);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* Who asks, for the log. */
static struct log_about asker(const struct http_exchange *x)
{
    return (struct log_about){
        .id = x->head.id, .client = x->client, .key = x->key && x->known ? x->key->name : NULL};
}

/* {"lame_duck_s"?, "deadline_s"?} */
static void post_drain(struct http_exchange *x, struct daemon_state *daemon)
{
    static const char *const names[] = {"lame_duck_s", "deadline_s", NULL};
    int64_t lame_duck_s = daemon->config->drain_lame_duck_s;
    int64_t deadline_s = daemon->config->drain_deadline_s;
    struct arguments a;
    int rc = arguments_of_json(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "lame_duck_s", 0, DRAIN_S_MAX, &lame_duck_s);
    if (rc == 0)
        rc = arguments_integer(&a, "deadline_s", 1, DRAIN_S_MAX, &deadline_s);
    arguments_close(&a);
    if (rc != 0)
        return;
    char whose[HTTP_WHOSE_BYTES];
    const struct log_about about = asker(x);
    log_event_of(LOG_INFO, "drain_asked", &about, NULL, "%s asks for the end", http_log_whose(x, whose));
    uint32_t left_s = daemon->drain((uint32_t)lame_duck_s, (uint32_t)deadline_s, daemon->cookie);
    x->http_status = 202;
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", "draining");
    json_uint(&x->reply, "node", daemon->config->node);
    json_uint(&x->reply, "lame_duck_s", left_s);
    json_uint(&x->reply, "deadline_s", (uint64_t)deadline_s);
    json_close(&x->reply, '}');
    json_raw(&x->reply, "\n");
}

/* A lame duck that a request has begun is taken back. */
static void delete_drain(struct http_exchange *x, struct daemon_state *daemon)
{
    char whose[HTTP_WHOSE_BYTES];
    if (!daemon->stay(daemon->cookie)) {
        http_problem(x, ATTND_NOT_FOUND,
                     daemon->leaving ? "the end cannot be taken back: a signal asked for it, or it has begun"
                                     : "nothing is draining");
        return;
    }
    const struct log_about about = asker(x);
    log_event_of(LOG_INFO, "drain_taken_back", &about, NULL, "%s takes the end back",
                 http_log_whose(x, whose));
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", "ready");
    json_uint(&x->reply, "node", daemon->config->node);
    json_close(&x->reply, '}');
    json_raw(&x->reply, "\n");
}

/* ---- parameters of the model ----------------------------------------------------------------------- */

/* An optional tensor F32 [rows][columns], or [columns] if rows is 0, of finite numbers; `positive`: scales. */
static int read_constants(struct tensor_body *b, const char *name, uint32_t rows, uint32_t columns,
                          bool positive, float **to)
{
    const struct named_tensor *t = tensors_find(b, name);
    const uint64_t shape[] = {rows, columns};
    unsigned rank = rows ? 2 : 1;
    if (!t)
        return 0;
    if (!tensors_is(t, "F32", rank, shape + 2 - rank))
        return rows ? tensors_mismatch(b, name, "wants F32 [%u, %u]", rows, columns)
                    : tensors_mismatch(b, name, "wants F32 [%u]", columns);
    size_t n = (size_t)(rows ? rows : 1) * columns;
    *to = request_alloc(b->request, n, sizeof **to);
    if (!*to)
        return tensors_refuse(b, name, "is too large");
    memcpy(*to, t->data, n * sizeof **to);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite((*to)[i]) || (positive && !((*to)[i] > 0 && (*to)[i] < MODEL_SCALE_LIMIT)))
            return tensors_refuse(b, name,
                                  positive ? "wants numbers above 0 and below 2^30" : "wants finite numbers");
    }
    return 0;
}

static int parse_parameters(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const struct tensor_spec specs[] = {{"sinks", TENSOR_FLOATS},
                                               {"alibi_slopes", TENSOR_FLOATS},
                                               {"k_scale", TENSOR_FLOATS},
                                               {"v_scale", TENSOR_FLOATS},
                                               {NULL, TENSOR_FLOATS}};
    static const char *const names[] = {NULL};
    const struct geometry *g = &config->geometry;
    struct model_constants *c = &request->parameters;
    struct tensor_body b;
    int rc = tensors_open(&b, x, request, g, names, specs);
    if (rc == 0)
        rc = read_constants(&b, "sinks", g->layers, g->query_heads, false, &c->sinks);
    if (rc == 0)
        rc = read_constants(&b, "alibi_slopes", 0, g->query_heads, false, &c->alibi);
    if (rc == 0)
        rc = read_constants(&b, "k_scale", g->layers, g->kv_heads, true, &c->k_scale);
    if (rc == 0)
        rc = read_constants(&b, "v_scale", g->layers, g->kv_heads, true, &c->v_scale);
    if (rc == 0 && c->sinks && g->layout == LAYOUT_VLLM)
        rc = tensors_refuse(&b, "sinks", "the kernels of the layout vllm know no sinks");
    if (rc == 0 && (c->k_scale || c->v_scale) && !dtype_is_fp8(g->kv_dtype))
        rc = tensors_refuse(&b, c->k_scale ? "k_scale" : "v_scale", "only fp8 has scales");
    tensors_close(&b);
    return rc;
}

static const struct api_schema schemas[] = {
    {"Audit", "{ok:bool checked:[text]}"},
    {"Trim", "{dropped:uint}"},
    {"SelfTest", "{ok:bool kernel:text}"},
    {"Roof", "{roof_gb_per_s:number roof_age_s:number best_gb_per_s:number median_gb_per_s:number "
             "worst_gb_per_s:number age_s:number measurements:uint}"},
    {"Drain", "{lame_duck_s?:uint(0..86400) deadline_s?:uint(1..86400)}"},
    {"Draining", "{status:(draining) node:uint lame_duck_s:uint deadline_s:uint}"},
    {"Stays", "{status:(ready) node:uint}"},
    {"Parameters", "{sinks?:[any] alibi_slopes?:[any] k_scale?:[any] v_scale?:[any]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK(POST, "/v1/audit", CONTROL, AUDIT, SMALL, api_parse_nothing, render_audit, 200,
        "Check every invariant now", NULL, NULL, "Audit", 0),
    ASK(POST, "/v1/trim", CONTROL, TRIM, SMALL, api_parse_nothing, render_trim, 200,
        "Drop what is cached of prompts and used by nobody", NULL, NULL, "Trim", 0),
    ASK(POST, "/v1/selftest", CONTROL, SELF_TEST, SMALL, api_parse_nothing, render_self_test, 200,
        "Compare the kernels with the reference", NULL, NULL, "SelfTest", 0),
    ASK(POST, "/v1/roof", CONTROL, ROOF, SMALL, api_parse_nothing, render_roof, 200,
        "Measure the rate at which the pool is read", NULL, NULL, "Roof", 0),
    ANSWER(POST, "/v1/drain", CONTROL, TYPE_JSON, 202, post_drain,
           "End the daemon, once what is under way is done", NULL, "Drain", "Draining", 0),
    ANSWER(DELETE, "/v1/drain", CONTROL, TYPE_JSON, 200, delete_drain,
           "Take back a lame duck that a request has begun", NULL, NULL, "Stays", 0),
    ASK(PUT, "/v1/parameters", ADMIN, PARAMETERS, TENSORS, parse_parameters, NULL, 204,
        "Set the model's constants, before anything is appended", NULL, "Parameters", NULL, 0),
    {0},
};

const struct api_resource api_admin = {routes, schemas};
