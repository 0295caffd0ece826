/* SPDX-License-Identifier: Apache-2.0 */
/* api_leases.c - /v1/leases. */
#include "server/api.h"

#include <stdio.h>

/* The members of one lease, inside an open object. */
static void write_lease(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    json_uint(w, "id", v->id);
    api_write_table(w, v, ids);
    json_int(w, "priority", v->priority);
    json_rounded(w, "age_s", v->age_s, 3);
    json_rounded(w, "idle_s", v->idle_s, 3);
    if (v->owner)
        json_string(w, "owner", v->owner);
}

static int parse_lease(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"blocks", "id", "priority", "idle_timeout_s", NULL};
    struct arguments a;
    int64_t id = 0, blocks = 0, priority = 0;
    uint32_t idle = 0;
    request->of_leases = true;
    int rc = arguments_of_json(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "blocks", 1, REQUEST_IDS_MAX, &blocks); /* they are all in the answer */
    if (rc == 0 && !blocks)
        rc = arguments_refuse(&a, "blocks", "is missing");
    if (rc == 0)
        rc = arguments_integer(&a, "id", 1, ID_MAX, &id);
    if (rc == 0)
        rc = arguments_integer(&a, "priority", -REQUEST_PRIORITY_MAX, REQUEST_PRIORITY_MAX, &priority);
    if (rc == 0)
        rc = api_read_idle(&a, config, &idle);
    arguments_close(&a);
    request->id = (uint64_t)id;
    request->lease.blocks = (uint32_t)blocks;
    request->lease.options = (struct sequence_options){0, (int32_t)priority, idle};
    return rc;
}

static void render_lease(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_shown *shown = &request->lease.shown;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "id", shown->views[0].id);
    api_write_table(w, &shown->views[0], shown->block_ids);
    json_close(w, '}');
    json_raw(w, "\n");
    snprintf(x->extra, sizeof x->extra, "Location: /v1/leases/%llu\r\n",
             (unsigned long long)shown->views[0].id);
}

static int parse_leases(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->of_leases = true;
    return api_parse_page(x, request, config);
}

static int parse_one_lease(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->of_leases = true;
    return api_parse_nothing(x, request, config);
}

static int parse_table(struct http_exchange *x, struct request *request, const struct config *config)
{
    request->of_leases = true;
    return api_parse_table(x, request, config);
}

static void render_leases(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    (void)c;
    api_write_page(&x->reply, request, write_lease);
}

static void render_one_lease(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    write_lease(w, &request->look.shown.views[0], request->look.shown.block_ids);
    json_close(w, '}');
    json_raw(w, "\n");
}

static const struct api_schema schemas[] = {
    {"NewLease",
     "{blocks:uint(1..100000) id?:id priority?:int(-1000000..1000000) idle_timeout_s?:uint(0..31536000)}"},
    {"Leased", "{id:id blocks:[uint] blocks_next?:uint}"},
    {"Lease", "{id:id blocks:[uint] blocks_next?:uint priority:int age_s:number idle_s:number "
              "owner?:text(..63)}"},
    {"Leases", "{items:[Lease] next:uint?}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK(GET, "/v1/leases", READ, LIST, SMALL, parse_leases, render_leases, 200, "Leases, a page at a time",
        "limit?:uint(1..1000) cursor?:uint(0..4294967295)", NULL, "Leases", 0),
    ASK(POST, "/v1/leases", INFER, LEASE, SMALL, parse_lease, render_lease, 201,
        "Lease blocks, for tables of the caller's own", NULL, "NewLease", "Leased", 0),
    ASK(GET, "/v1/leases/{id}", READ, SEQUENCE, SMALL, parse_one_lease, render_one_lease, 200, "One lease",
        NULL, NULL, "Lease", 0),
    ASK(GET, "/v1/leases/{id}/blocks", READ, BLOCKS, SMALL, parse_table, api_render_table, 200,
        "Its blocks, a page at a time", "limit?:uint(1..1000) cursor?:uint(0..4294967295)", NULL, "Table", 0),
    ASK(DELETE, "/v1/leases/{id}", INFER, DELETE, SMALL, parse_one_lease, NULL, 204, "Give the blocks back",
        NULL, NULL, NULL, 0),
    {0},
};

const struct api_resource api_leases = {routes, schemas};
