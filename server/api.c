/* SPDX-License-Identifier: Apache-2.0 */
/* api.c - see api.h. */
#include "server/api.h"

#include "server/access.h"
#include "server/keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const api_block_states[] = {"free", "held", "cached", "fenced"};
const char *const api_sequence_states[] = {"idle", "queued", "running", "swapped"};

/* ---- reading --------------------------------------------------------------------------------------- */

int api_parse_nothing(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)request;
    (void)config;
    return arguments_none(x);
}

int api_read_idle(struct arguments *a, const struct config *config, uint32_t *seconds)
{
    int64_t idle = config->limits.idle_timeout_s;
    int rc = arguments_integer(a, "idle_timeout_s", 0, REQUEST_IDLE_S_MAX, &idle);
    *seconds = (uint32_t)idle;
    if (rc != 0 || idle != 0 || !arguments_has(a, "idle_timeout_s") || a->x->scopes & SCOPE_KEEP)
        return rc;
    http_problem(a->x, ATTND_FORBIDDEN, "idle_timeout_s: 0 is for keys with the scope keep");
    return ATTND_FORBIDDEN;
}

int api_read_owner(struct arguments *a, const struct request *request)
{
    struct answer *answer = answer_of(request);
    struct http_text name = {NULL, 0};
    int rc = arguments_text(a, "owner", sizeof answer->owner - 1, &name);
    if (rc != 0 || !arguments_has(a, "owner"))
        return rc;
    if (!access_sees_all(a->x)) {
        http_problem(a->x, ATTND_FORBIDDEN, "owner: the key \"%s\" lacks the scope admin", a->x->key->name);
        return ATTND_FORBIDDEN;
    }
    memcpy(answer->owner, name.bytes, name.n);
    answer->owner[name.n] = '\0';
    answer->has_owner = true;
    return 0;
}

int api_read_page(struct arguments *a, struct request *request, uint32_t limit, uint32_t most)
{
    int64_t wanted = limit, cursor = 0;
    int rc = arguments_integer(a, "limit", 1, most, &wanted);
    if (rc == 0)
        rc = arguments_integer(a, "cursor", 0, UINT32_MAX, &cursor);
    request->page.limit = (uint32_t)wanted;
    request->page.cursor = (uint64_t)cursor;
    return rc;
}

int api_read_state(struct arguments *a, const char *const *names, unsigned n, struct request *request)
{
    struct request_filter *filter = &request->page.filter;
    filter->on = arguments_has(a, "state");
    return arguments_word(a, "state", names, n, &filter->state);
}

static int parse_page(struct http_exchange *x, struct request *request, uint32_t limit)
{
    static const char *const names[] = {"limit", "cursor", NULL};
    struct arguments a;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = api_read_page(&a, request, limit, REQUEST_PAGE_MAX);
    return rc == 0 ? arguments_no_body(x) : rc;
}

int api_parse_page(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)config;
    return parse_page(x, request, PAGE_DEFAULT);
}

int api_parse_table(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)config;
    return parse_page(x, request, REQUEST_LISTED_MAX);
}

/* ---- writing --------------------------------------------------------------------------------------- */

void api_write_ids(struct json_writer *w, const char *name, const uint32_t *ids, uint32_t n)
{
    json_open(w, name, '[');
    for (uint32_t i = 0; i < n; i++)
        json_uint(w, NULL, ids[i]);
    json_close(w, ']');
}

void api_write_table(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    api_write_ids(w, "blocks", ids, v->swapped ? 0 : v->listed);
    if (v->swapped)
        api_write_ids(w, "host_blocks", ids, v->listed);
    if (v->listed < v->blocks)
        json_uint(w, "blocks_next", v->listed);
}

void api_write_sequence(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    json_uint(w, "id", v->id);
    json_string(w, "state", api_sequence_states[v->state]);
    json_uint(w, "length", v->length);
    api_write_table(w, v, ids);
    json_uint(w, "block_count", v->blocks);
    json_uint(w, "shared_blocks", v->shared_blocks);
    if (v->parent)
        json_uint(w, "parent", v->parent);
    else
        json_null(w, "parent");
    json_int(w, "priority", v->priority);
    if (v->max_tokens)
        json_uint(w, "max_tokens", v->max_tokens);
    if (v->workload)
        json_uint(w, "workload", v->workload);
    json_rounded(w, "age_s", v->age_s, 3);
    json_rounded(w, "idle_s", v->idle_s, 3);
    if (v->owner)
        json_string(w, "owner", v->owner);
}

void api_write_lengths(struct json_writer *w, const uint32_t *lengths, uint32_t layers)
{
    json_open(w, "lengths", '[');
    for (uint32_t layer = 0; layer < layers; layer++)
        json_uint(w, NULL, lengths[layer]);
    json_close(w, ']');
}

void api_write_next(struct json_writer *w, uint64_t next)
{
    if (next)
        json_uint(w, "next", next);
    else
        json_null(w, "next");
}

void api_write_items(struct json_writer *w, const struct request *request, api_write_item write_item)
{
    const struct request_shown *shown = &request->list.shown;
    const uint32_t *ids = shown->block_ids;
    json_open(w, "items", '[');
    for (uint32_t i = 0; i < shown->count; i++) {
        json_open(w, NULL, '{');
        write_item(w, &shown->views[i], ids);
        json_close(w, '}');
        ids += shown->views[i].listed;
    }
    json_close(w, ']');
    api_write_next(w, request->page.next);
}

void api_write_page(struct json_writer *w, const struct request *request, api_write_item write_item)
{
    json_open(w, NULL, '{');
    api_write_items(w, request, write_item);
    json_close(w, '}');
    json_raw(w, "\n");
}

void api_render_table(struct http_exchange *x, const struct request *request, const struct render_context *c)
{
    const struct request_table *table = &request->table;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '[');
    for (uint32_t i = 0; i < table->blocks.count; i++) {
        const struct block_view *v = &table->blocks.views[i];
        json_open(w, NULL, '{');
        json_uint(w, "index", table->page.cursor + i);
        json_uint(w, v->on_host ? "host_block" : "block", v->block);
        json_uint(w, "fill", v->fill);
        if (!v->on_host)
            json_uint(w, "refs", v->refs);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_raw(w, "\n");
    if (table->page.next)
        snprintf(x->extra, sizeof x->extra, "Link: <%.*s?cursor=%llu&limit=%u>; rel=\"next\"\r\n",
                 (int)x->head.path.n, x->head.path.bytes, (unsigned long long)table->page.next,
                 table->page.limit);
}

void api_write_fraction(struct json_writer *w, double fraction, const struct roof_report *roof)
{
    const char *why = roof_explain(roof, fraction);
    json_float(w, "roof_fraction", (float)fraction);
    if (why)
        json_string(w, "above_roof", why);
}

void api_write_rate(struct json_writer *w, double gb_per_s, const struct roof_report *roof)
{
    json_float(w, "gb_per_s", (float)gb_per_s);
    json_float(w, "roof_gb_per_s", (float)roof->gb_per_s);
    api_write_fraction(w, roof->gb_per_s > 0 ? gb_per_s / roof->gb_per_s : 0, roof);
}

void api_write_roof(struct json_writer *w, const struct roof_report *roof, double now_s)
{
    json_float(w, "roof_gb_per_s", (float)roof->gb_per_s);
    json_rounded(w, "roof_age_s", fmax(now_s - roof->seen_s, 0), 1);
    json_float(w, "best_gb_per_s", (float)roof->latest.best);
    json_float(w, "median_gb_per_s", (float)roof->latest.median);
    json_float(w, "worst_gb_per_s", (float)roof->latest.worst);
    json_rounded(w, "age_s", fmax(now_s - roof->latest_s, 0), 1);
    json_uint(w, "measurements", roof->measurements);
}
