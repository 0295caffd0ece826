/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - what the files of the API share.
 *
 * There is one file a resource: api_sequences.c, api_kv.c, api_attention.c, api_leases.c, api_workloads.c,
 * api_steps.c, api_dashboard.c for the page, and api_observe.c and api_admin.c for the rest. In it, of each
 * endpoint, how a request is read and how its
 * answer is written stand side by side, and the routes are at its end. A new endpoint is written there, and if
 * it asks the engine for something new, in scheduler/requests.h.
 *
 * A function that reads an exchange into a request returns 0, or a status with the answer already made a
 * problem that says which member is wrong. Counts and ranges are checked there, before anything is sized
 * by them. All on the loop thread. */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "server/answer.h"
#include "server/arguments.h"
#include "server/routes.h"

/* ---- routes -------------------------------------------------------------------------------------- */

typedef void (*route_answer)(struct http_exchange *x, struct daemon_state *daemon);
typedef int (*route_parse)(struct http_exchange *x, struct request *request, const struct config *config);

/* What the body of a request may be. */
enum route_body {
    BODY_SMALL,   /* none, or JSON */
    BODY_TENSORS, /* likewise, or safetensors, which may be large */
    BODY_TRACE    /* likewise, or a trace, which is read as it comes */
};

/* What it may answer with; errors are always application/problem+json. */
enum route_type {
    TYPE_JSON = 1,
    TYPE_TEXT = 2,    /* text/plain */
    TYPE_TENSORS = 4, /* safetensors */
    TYPE_LINES = 8,   /* application/x-ndjson */
    TYPE_EVENTS = 16, /* text/event-stream */
    TYPE_PAGE = 32,   /* text/html */
    TYPE_FILES = 64   /* style, scripts and pictures of a page */
};

/* Who may ask, and where; access.c. */
enum route_access {
    ACCESS_OPEN,    /* everybody, everywhere */
    ACCESS_METRICS, /* with scope read; without, at the management listener */
    ACCESS_CONTROL, /* with scope admin, also at the management listener */
#define XX(constant, name, bit, includes) ACCESS_##constant, /* with that scope */
    SCOPE_MAP(XX)
#undef XX
        ACCESSES
};

/* What /openapi.json says of a route, in the notation of openapi.h. */
struct route_about {
    const char *summary;
    const char *query;  /* parameters; NULL: none */
    const char *reads;  /* the JSON body; NULL: none */
    const char *writes; /* the JSON of success; NULL: no body */
    int also;           /* another status with the same answer; 0: none */
};

struct route {
    enum http_method method;
    enum route_body body;
    enum route_access access;
    unsigned types;      /* enum route_type */
    const char *path;    /* "{id}" stands for a number, "{name}" for a last part; NULL: the end of a list */
    route_answer answer; /* or, when NULL: */
    enum request_kind kind;
    route_parse parse;
    answer_render render; /* of success; NULL: no body */
    int http_status;      /* likewise */
    struct route_about about;
};

struct api_schema {
    const char *name, *text; /* NULL: the end of a list */
};

/* What a file of the API is about. */
struct api_resource {
    const struct route *routes;
    const struct api_schema *schemas;
};

extern const struct api_resource api_admin, api_attention, api_dashboard, api_history, api_kv, api_leases,
    api_observe, api_sequences, api_steps, api_workloads;

/* Of a route that answers by itself; of one that asks the engine. Behind them: struct route_about. */
#define ANSWER(method, path, access, types, status, answer, ...)                                             \
    {                                                                                                        \
        HTTP_METHOD_##method, BODY_SMALL, ACCESS_##access, types, path, answer, 0, NULL, NULL, status,       \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
#define ASK(method, path, access, kind, body, parse, render, status, ...)                                    \
    ASK_TYPES(method, path, access, kind, body, TYPE_JSON, parse, render, status, __VA_ARGS__)
#define ASK_TYPES(method, path, access, kind, body, types, parse, render, status, ...)                       \
    {                                                                                                        \
        HTTP_METHOD_##method, BODY_##body, ACCESS_##access, types, path, NULL, REQUEST_##kind, parse,        \
            render, status,                                                                                  \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

/* ---- words of the wire --------------------------------------------------------------------------- */

extern const char *const api_block_states[], *const api_sequence_states[];

/* ---- reading ------------------------------------------------------------------------------------- */

enum { PAGE_DEFAULT = 100 /* items */ };
static const int64_t ID_MAX = (int64_t)REQUEST_ID_MAX;

/* No body and no query are allowed. */
int api_parse_nothing(struct http_exchange *x, struct request *request, const struct config *config);

/* ?limit= and ?cursor= */
int api_parse_page(struct http_exchange *x, struct request *request, const struct config *config);

/* A page of the block table of a sequence, or of a lease. */
int api_parse_table(struct http_exchange *x, struct request *request, const struct config *config);
void api_render_table(struct http_exchange *x, const struct request *request, const struct render_context *c);

/* "idle_timeout_s"; 0, for ever, wants the scope keep. */
int api_read_idle(struct arguments *a, const struct config *config, uint32_t *seconds);

/* "owner", the name of the key that a sequence belongs to, "" for clients without one; only an admin's request may have it. The loop
 * finds the key (routes.c), since others may read this off it. */
int api_read_owner(struct arguments *a, const struct request *request);

/* "limit" up to `most`, or that many if there is none, and "cursor"; "state", one of `names`. */
int api_read_page(struct arguments *a, struct request *request, uint32_t limit, uint32_t most);
int api_read_state(struct arguments *a, const char *const *names, unsigned n, struct request *request);

/* k and v of n rows, in api_attention.c: both or, if they are not `required`, none. With `layered` they may be
 * those of all layers. */
struct tensor_body;
int api_read_keys_and_values(struct tensor_body *b, uint32_t n, bool required, bool layered);

/* Tokens of which K and V of all layers fit a body, and so an export; api_kv.c. */
uint32_t api_kv_range_tokens(const struct config *config);

/* ---- writing, into an open object ---------------------------------------------------------------- */

/* The members of one sequence as /stats and GET /v1/sequences show it. */
void api_write_sequence(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids);

/* "blocks" of a sequence or lease, or its "host_blocks", of which a bounded number is listed; "blocks_next" when
 * there are more: where its /blocks goes on. */
void api_write_table(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids);

/* "items" of a page, each by `write_item`, and "next"; _page: they alone are the answer. */
typedef void (*api_write_item)(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids);
void api_write_items(struct json_writer *w, const struct request *request, api_write_item write_item);
void api_write_page(struct json_writer *w, const struct request *request, api_write_item write_item);

void api_write_ids(struct json_writer *w, const char *name, const uint32_t *ids, uint32_t n);
void api_write_lengths(struct json_writer *w, const uint32_t *lengths, uint32_t layers);
void api_write_next(struct json_writer *w, uint64_t next);

/* "gb_per_s" beside the roof, its fraction of that, and, where it is above it, why. */
void api_write_rate(struct json_writer *w, double gb_per_s, const struct roof_report *roof);
/* Of the latest steps: the time to read their K and V at the roof, over the time they took. */
double api_latest_fraction(const struct engine_stats *stats, const struct render_context *c);
/* "roof_fraction", and why it is above 1. */
void api_write_fraction(struct json_writer *w, double fraction, const struct roof_report *roof);
/* The members of a Roof: how the roof was measured, as of now_s on the engine's clock. */
void api_write_roof(struct json_writer *w, const struct roof_report *roof, double now_s);

#endif
