/* api.c - see api.h. */
#include "server/api.h"

#include <cjson/cJSON.h>

#include <math.h>

const char *const api_block_states[] = {"free", "held", "cached", "fenced"};
const char *const api_sequence_states[] = {"idle", "queued", "running", "swapped"};

/* ---- reading --------------------------------------------------------------------------------------- */

int api_parse_nothing(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)request;
    (void)config;
    int rc = query_none(x);
    return rc == 0 ? body_none(x) : rc;
}

unsigned api_index_of(struct http_text word, const char *const *names, unsigned n)
{
    unsigned i = 0;
    while (i < n && !http_text_is(word, names[i]))
        i++;
    return i;
}

bool api_read_page(struct http_text text, struct request *request)
{
    uint64_t value;
    if (query_number(text, "limit", &value) && value >= 1 && value <= REQUEST_PAGE_MAX)
        request->page.limit = (uint32_t)value;
    else if (query_number(text, "cursor", &value) && value <= UINT32_MAX)
        request->page.cursor = value;
    else
        return false;
    return true;
}

bool api_read_state(struct http_text text, const char *const *names, unsigned n, struct request *request)
{
    struct http_text word;
    if (!query_is(text, "state", &word))
        return false;
    request->page.filter = (struct request_filter){true, api_index_of(word, names, n)};
    return request->page.filter.state < n;
}

int api_parse_page(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct http_text text;
    (void)config;
    request->page.limit = PAGE_DEFAULT;
    for (size_t at = 0; query_next(x->head.query, &at, &text);) {
        if (!api_read_page(text, request))
            return query_refuse(x, text, "wants limit=1..1000 or cursor=N");
    }
    return body_none(x);
}

bool api_read_kernel(struct http_text name, enum attention_kernel *kernel)
{
    unsigned n = ATTENTION_PAGED_V2 + 1, i = api_index_of(name, config_kernel_names, n);
    if (i < n)
        *kernel = (enum attention_kernel)i;
    return i < n;
}

int api_read_tokens(struct json_body *b, const char *name, struct request *request, uint32_t count,
                    struct request_tokens *tokens)
{
    const cJSON *list = json_body_member(b, name), *item;
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : -1;
    int64_t id;
    if (!list)
        return 0;
    if (n < 0 || (count != UINT32_MAX && (uint32_t)n != count))
        return json_body_refuse(b, name, "wants a list of token ids, one for each row");
    tokens->ids = request_alloc(request, (size_t)n, sizeof *tokens->ids);
    if (!tokens->ids)
        return json_body_refuse(b, name, "is too long");
    cJSON_ArrayForEach (item, list) {
        if (!json_is_integer(item, 0, UINT32_MAX, &id))
            return json_body_refuse(b, name, "wants integers in 0..4294967295");
        tokens->ids[tokens->count++] = (uint32_t)id;
    }
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------------- */

void api_write_ids(struct json_writer *w, const char *name, const uint32_t *ids, uint32_t n)
{
    json_open(w, name, '[');
    for (uint32_t i = 0; i < n; i++)
        json_uint(w, NULL, ids[i]);
    json_close(w, ']');
}

void api_write_sequence(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    json_uint(w, "id", v->id);
    json_string(w, "state", api_sequence_states[v->state]);
    json_uint(w, "length", v->length);
    api_write_ids(w, "blocks", ids, v->swapped ? 0 : v->blocks);
    if (v->swapped)
        api_write_ids(w, "host_blocks", ids, v->blocks);
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
    json_double(w, "age_s", round(v->age_s * 1e3) / 1e3);
    json_double(w, "idle_s", round(v->idle_s * 1e3) / 1e3);
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
        ids += shown->views[i].blocks;
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

void api_write_rate(struct json_writer *w, double gb_per_s, double roof_gb_per_s)
{
    json_float(w, "gb_per_s", (float)gb_per_s);
    json_float(w, "roof_gb_per_s", (float)roof_gb_per_s);
    json_float(w, "roof_fraction", roof_gb_per_s > 0 ? (float)(gb_per_s / roof_gb_per_s) : 0);
}
