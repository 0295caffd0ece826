/* routes.c - the table of routes and the handlers that need no engine. */
#include "server/routes.h"

#include "server/version.h"

#include <stdio.h>
#include <string.h>

typedef void (*route_handler)(struct http_exchange *x, struct daemon_state *daemon);

struct route {
    enum http_method method;
    const char *path;
    route_handler handler;
};

static void get_livez(struct http_exchange *x, struct daemon_state *daemon)
{
    (void)daemon;
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", "live");
    json_close(&x->reply, '}');
}

static void get_readyz(struct http_exchange *x, struct daemon_state *daemon)
{
    x->http_status = daemon->draining ? 503 : 200;
    json_open(&x->reply, NULL, '{');
    json_string(&x->reply, "status", daemon->draining ? "draining" : "ready");
    json_close(&x->reply, '}');
}

static void write_geometry(struct json_writer *w, const struct config *config)
{
    const struct geometry *g = &config->geometry;
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
    json_bool(w, "sinks", config->constants.sinks != NULL);
    json_bool(w, "alibi", config->constants.alibi != NULL);
    json_close(w, '}');
}

static void get_info(struct http_exchange *x, struct daemon_state *daemon)
{
    const struct config *config = daemon->config;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_string(w, "name", "attnd");
    json_string(w, "version", ATTND_VERSION);
    json_string(w, "commit", ATTND_COMMIT);
    json_uint(w, "node", 0);
    json_open(w, "backend", '{');
    json_string(w, "name", daemon->backend->name);
    json_string(w, "device", daemon->backend->device);
    json_string(w, "isa", daemon->backend->isa);
    json_uint(w, "threads", daemon->backend->threads);
    json_float(w, "roof_gb_per_s", (float)daemon->roof_gb_per_s);
    json_bool(w, "bit_stable", daemon->backend->bit_stable);
    json_close(w, '}');
    write_geometry(w, config);
    json_open(w, "pool", '{');
    json_uint(w, "blocks", config->pool_blocks);
    json_uint(w, "bytes_per_block", geometry_block_bytes(&config->geometry));
    json_close(w, '}');
    json_open(w, "limits", '{');
    json_uint(w, "connections", config->limits.connections);
    json_uint(w, "json_bytes", HTTP_JSON_BYTES_MAX);
    json_uint(w, "header_bytes", HTTP_HEAD_BYTES_MAX);
    json_uint(w, "headers", HTTP_HEADERS_MAX);
    json_uint(w, "url_bytes", HTTP_URL_BYTES_MAX);
    json_close(w, '}');
    json_close(w, '}');
}

static const struct route routes[] = {
    {HTTP_METHOD_GET, "/livez", get_livez},
    {HTTP_METHOD_GET, "/readyz", get_readyz},
    {HTTP_METHOD_GET, "/v1/info", get_info},
};

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

void routes_handle(struct http_exchange *x, void *cookie)
{
    unsigned allowed = 0;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!http_text_is(x->path, routes[i].path))
            continue;
        if (routes[i].method != x->method) {
            allowed |= routes[i].method;
            continue;
        }
        if (x->query.n)
            http_problem(x, ATTND_INVALID, "this path takes no parameters: \"%.*s\"", (int)x->query.n,
                         x->query.bytes);
        else
            routes[i].handler(x, cookie);
        if (!x->reply.overflow && x->http_status < 400)
            json_raw(&x->reply, "\n");
        return;
    }
    if (allowed)
        refuse_method(x, allowed);
    else
        http_problem(x, ATTND_NOT_FOUND, "no such path: %.*s", (int)(x->path.n < 200 ? x->path.n : 200),
                     x->path.bytes);
}
