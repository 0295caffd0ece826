/* api_admin.c - /v1/audit, /v1/trim, /v1/selftest, /v1/drain and /v1/parameters. */
#include "server/api.h"
#include "server/tensor_parse.h"

#include <cjson/cJSON.h>

enum { DRAIN_DEADLINE_S = 30, DRAIN_DEADLINE_S_MAX = 86400 };

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

const struct route api_admin[] = {
    ASK(POST, "/v1/audit", AUDIT, SMALL, api_parse_nothing, render_audit, 200),
    ASK(POST, "/v1/trim", TRIM, SMALL, api_parse_nothing, render_trim, 200),
    ASK(POST, "/v1/selftest", SELF_TEST, SMALL, api_parse_nothing, render_self_test, 200),
    ANSWER(POST, "/v1/drain", TYPE_JSON, post_drain),
    ASK(PUT, "/v1/parameters", PARAMETERS, TENSORS, tensor_parse_parameters, NULL, 204),
    {0},
};
