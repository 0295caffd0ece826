/* SPDX-License-Identifier: Apache-2.0 */
/* api_observe.c - what is looked at: /livez, /readyz, /v1/info, /stats, /metrics and /v1/blocks. */
#include "config/geometry_json.h"
#include "config/registered.h"
#include "server/access.h"
#include "server/api.h"
#include "server/metrics.h"
#include "config/version.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- probes ---------------------------------------------------------------------------------------- */

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
    if (daemon->leaving)
        write_status(x, 503, "draining");
    else if (engine_failure(daemon->engine))
        write_status(x, 503, "failed");
    else if (is_stalled(daemon))
        write_status(x, 503, "stalled");
    else
        write_status(x, 200, "ready");
}

/* ---- /openapi.json --------------------------------------------------------------------------------- */

static void get_openapi(struct http_exchange *x, struct daemon_state *daemon)
{
    json_raw(&x->reply, daemon->openapi);
}

/* ---- /v1/info -------------------------------------------------------------------------------------- */

static void write_geometry(struct json_writer *w, const struct daemon_state *daemon)
{
    const struct geometry *g = &daemon->config->geometry;
    json_open(w, "geometry", '{');
    geometry_write(w, g);
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
    const struct roof_report roof = engine_roof(daemon->engine);
    struct json_writer *w = &x->reply;
    char instance[17];
    json_open(w, NULL, '{');
    json_string(w, "name", "attnd");
    json_string(w, "version", ATTND_VERSION);
    json_string(w, "commit", ATTND_COMMIT);
    json_uint(w, "node", daemon->config->node);
    snprintf(instance, sizeof instance, "%016" PRIx64, daemon->instance);
    json_string(w, "instance", instance);
    json_open(w, "backend", '{');
    json_string(w, "name", backend->name);
    json_string(w, "device", backend->device);
    json_string(w, "isa", backend->isa);
    json_uint(w, "threads", backend->threads);
    json_float(w, "roof_gb_per_s", (float)roof.gb_per_s);
    json_open(w, "roof", '{');
    api_write_roof(w, &roof, engine_now_s(daemon->engine));
    json_close(w, '}');
    json_float(w, "grouping_us", (float)engine_grouping_us(daemon->engine));
    json_bool(w, "bit_stable", backend->bit_stable);
    json_close(w, '}');
    write_geometry(w, daemon);
    json_open(w, "pool", '{');
    json_uint(w, "blocks", config->pool_blocks);
    json_uint(w, "bytes_per_block", geometry_block_bytes(&config->geometry));
    json_close(w, '}');
    json_open(w, "debug", '{');
    json_bool(w, "poison", config->poison != 0);
    json_close(w, '}');
    json_open(w, "limits", '{');
    json_uint(w, "connections", config->limits.connections);
    json_uint(w, "json_bytes", HTTP_JSON_BYTES_MAX);
    json_uint(w, "body_bytes", config->limits.body_bytes);
    json_uint(w, "staging_bytes", config->limits.staging_bytes);
    json_uint(w, "memory_bytes", daemon->memory.limit);
    json_uint(w, "header_bytes", HTTP_HEAD_BYTES_MAX);
    json_uint(w, "headers", HTTP_HEADERS_MAX);
    json_uint(w, "url_bytes", HTTP_URL_BYTES_MAX);
    json_uint(w, "sequences", config->limits.sequences);
    json_uint(w, "sequence_tokens", config->limits.sequence_tokens);
    json_uint(w, "calls", config->limits.calls);
    json_uint(w, "rows_per_call", config->limits.rows_per_call);
    json_uint(w, "kv_range_tokens", api_kv_range_tokens(config));
    json_uint(w, "paged_sequences", STEP_LOOSE_TABLES);
    json_uint(w, "idle_timeout_s", config->limits.idle_timeout_s);
    json_uint(w, "workload_s", config->limits.workload_s);
    json_uint(w, "workload_kept_s", config->limits.workload_kept_s);
    json_close(w, '}');
    if (config->transport.address[0]) {
        json_open(w, "transport", '{');
        json_string(w, "listen", config->transport.address);
        json_uint(w, "version", REGISTERED_VERSION);
        json_uint(w, "clients", config->transport_clients);
        json_uint(w, "calls", REGISTERED_CALLS);
        json_uint(w, "regions", REGISTERED_REGIONS);
        json_uint(w, "region_bytes", config->limits.body_bytes);
        json_uint(w, "gpu_bytes", backend->region_unit ? config->transport_gpu_bytes : 0);
        json_uint(w, "gpu_rows", backend->region_unit ? config->step_rows_max : 0);
        json_close(w, '}');
    }
    json_open(w, "kernels", '{');
    json_string(w, "attend", backend->kernel);
    json_close(w, '}');
    access_write_key(w, x);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- /stats ---------------------------------------------------------------------------------------- */

/* Where host blocks are that host memory has no room for. */
static void write_file(struct json_writer *w, const struct swap_cache_counts *swap)
{
    json_open(w, "file", '{');
    json_uint(w, "in_memory", swap->frames - swap->room);
    json_uint(w, "memory_blocks", swap->frames);
    json_uint(w, "writes", swap->writes);
    json_uint(w, "reads", swap->reads);
    json_bool(w, "failed", swap->failed);
    json_close(w, '}');
}

static void write_pool(struct json_writer *w, const struct engine_stats *s, const struct render_context *c)
{
    const struct block_pool_counts *p = &s->pool;
    const struct block_tables_counts *t = &s->tables;
    /* leased blocks are filled as their owners like */
    double slots = (double)(p->held - s->leased_blocks) * c->config->geometry.block_size;
    json_open(w, "pool", '{');
    json_uint(w, "blocks", p->blocks);
    json_uint(w, "free", p->free);
    json_uint(w, "cached", p->cached);
    json_uint(w, "held", p->held);
    json_uint(w, "fenced", p->fenced);
    json_uint(w, "shared", p->shared);
    json_uint(w, "leased", s->leased_blocks);
    json_uint(w, "promised", s->promised);
    json_uint(w, "block_size", c->config->geometry.block_size);
    json_uint(w, "tokens_logical", t->tokens_logical);
    json_uint(w, "tokens_physical", t->tokens_physical);
    json_float(w, "sharing_ratio",
               t->tokens_physical ? (float)((double)t->tokens_logical / (double)t->tokens_physical) : 1);
    json_float(w, "internal_fragmentation", slots > 0 ? (float)(1 - (double)t->tokens_physical / slots) : 0);
    json_uint(w, "bytes_per_block", geometry_block_bytes(&c->config->geometry));
    json_uint(w, "host_blocks", t->host_blocks);
    json_uint(w, "host_free", t->host_free);
    if (s->swap.file_blocks)
        write_file(w, &s->swap);
    json_close(w, '}');
    json_open(w, "counters", '{');
    json_uint(w, "cow_copies", t->copies);
    json_uint(w, "forks", t->forks);
    json_uint(w, "evictions", p->evictions);
    json_uint(w, "prefix_blocks_asked", t->blocks_asked);
    json_uint(w, "prefix_blocks_hit", t->blocks_hit);
    json_uint(w, "swaps_out", t->swaps_out);
    json_uint(w, "swaps_in", t->swaps_in);
    json_uint(w, "preemptions", s->preemptions);
    json_uint(w, "alloc_failures", s->refusals);
    json_close(w, '}');
}

/* What reading the latest steps' K and V takes at the roof, and its share of what they took. */
static double ideal_seconds(const struct engine_stats *s, const struct render_context *c)
{
    return c->roof.gb_per_s > 0 ? (double)s->steps.latest.bytes / (c->roof.gb_per_s * 1e9) : 0;
}

double api_latest_fraction(const struct engine_stats *s, const struct render_context *c)
{
    return s->steps.latest.seconds > 0 ? ideal_seconds(s, c) / s->steps.latest.seconds : 0;
}

/* Name the state that an answer shows; true when the client has it already, and 304 is the answer. */
static bool is_known(struct http_exchange *x, uint64_t epoch, uint64_t instance)
{
    char tag[48];
    int n =
        snprintf(tag, sizeof tag, "W/\"%llx-%llu\"", (unsigned long long)instance, (unsigned long long)epoch);
    snprintf(x->extra, sizeof x->extra, "ETag: %s\r\n", tag);
    bool known = memmem(x->head.if_none_match.bytes, x->head.if_none_match.n, tag, (size_t)n) != NULL;
    x->http_status = known ? 304 : x->http_status;
    return known;
}

/* Clients with registered memory. */
static void write_transport(struct json_writer *w, const struct doorbell_counts *counts)
{
    json_open(w, "transport", '{');
    json_uint(w, "clients", counts->clients);
    json_uint(w, "regions", counts->regions);
    json_uint(w, "region_bytes", counts->bytes);
    json_uint(w, "gpu_bytes", counts->gpu_bytes);
    json_uint(w, "calls", counts->calls);
    json_uint(w, "ended", counts->ended);
    json_close(w, '}');
}

static void write_journal(struct json_writer *w, const struct journal_state *journal)
{
    json_open(w, "journal", '{');
    json_uint(w, "records", journal->records);
    json_uint(w, "bytes", journal->bytes);
    json_uint(w, "files", journal->files);
    if (journal->stopped)
        json_string(w, "stopped", journal->stopped);
    else
        json_null(w, "stopped");
    json_close(w, '}');
}

static void write_kv_events(struct json_writer *w, const struct kv_events_counts *events)
{
    json_open(w, "kv_events", '{');
    json_uint(w, "batches", events->batches);
    json_uint(w, "stored", events->stored);
    json_uint(w, "removed", events->removed);
    json_uint(w, "replays", events->replays);
    json_uint(w, "rescans", events->rescans);
    json_close(w, '}');
}

static void render_stats(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct engine_stats *s = &request->stats.all;
    struct json_writer *w = &x->reply;
    bool all = access_sees_all(x); /* else the key's own; figures of the whole are everybody's */
    if (is_known(x, s->epoch, c->instance ^ c->leaving))
        return;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", s->epoch);
    json_uint(w, "node", c->config->node);
    if (c->leaving) {
        json_open(w, "draining", '{');
        json_uint(w, "lame_duck_s", c->lame_duck_left_s);
        json_close(w, '}');
    }
    json_rounded(w, "uptime_s", c->uptime_s, 1);
    json_open(w, "backend", '{');
    json_string(w, "name", c->backend->name);
    json_string(w, "isa", c->backend->isa);
    json_uint(w, "threads", c->backend->threads);
    json_close(w, '}');
    write_pool(w, s, c);
    json_open(w, "scheduler", '{');
    json_uint(w, "idle", s->states[SEQUENCE_IDLE]);
    json_uint(w, "queued", s->states[SEQUENCE_QUEUED]);
    json_uint(w, "running", s->states[SEQUENCE_RUNNING]);
    json_uint(w, "swapped", s->states[SEQUENCE_SWAPPED]);
    json_uint(w, "steps", s->steps.steps);
    json_open(w, "batch_rows", '{');
    json_uint(w, "p50", s->steps.rows_p50);
    json_uint(w, "max", s->steps.rows_max);
    json_close(w, '}');
    json_open(w, "step_us", '{');
    json_float(w, "p50", (float)s->steps.step_us_p50);
    json_float(w, "p99", (float)s->steps.step_us_p99);
    json_close(w, '}');
    json_open(w, "idle_us", '{'); /* of the backend, before a step */
    json_float(w, "p50", (float)s->steps.idle_us_p50);
    json_close(w, '}');
    json_uint(w, "bytes_read", s->steps.bytes_read);
    api_write_rate(w, s->gb_per_s, &c->roof);
    json_open(w, "roof", '{');
    api_write_roof(w, &c->roof, c->now_s);
    json_close(w, '}');
    json_open(w, "latest", '{'); /* steps, a thousand at most; ideal: at the roof */
    json_uint(w, "bytes_read", s->steps.latest.bytes);
    json_double(w, "seconds", s->steps.latest.seconds);
    json_double(w, "ideal_seconds", ideal_seconds(s, c));
    api_write_fraction(w, api_latest_fraction(s, c), &c->roof);
    json_close(w, '}');
    json_close(w, '}');
    json_open(w, "sequences", '{');
    json_uint(w, "count", all ? s->tables.rows - s->leases : s->own.sequences - s->own.leases);
    api_write_items(w, request, api_write_sequence);
    json_close(w, '}');
    json_uint(w, "leases", all ? s->leases : s->own.leases);
    if (c->config->transport.address[0])
        write_transport(w, &s->doorbell);
    if (s->journal.on)
        write_journal(w, &s->journal);
    if (s->kv_events.on)
        write_kv_events(w, &s->kv_events);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- /v1/blocks ------------------------------------------------------------------------------------ */

enum { BLOCK_FIELDS = 5, TABLES_DEFAULT = 200 /* sequences */ };

/* Members of a block, in the order of their bits in answer.fields. */
static const char *const block_fields[BLOCK_FIELDS] = {"block", "state", "refs", "fill", "owner"};

/* "fields", a list like block,refs, into bits. */
static int read_fields(struct arguments *a, struct request *request)
{
    struct http_text list = {"", 0}, word;
    unsigned fields = 0;
    int rc = arguments_text(a, "fields", 64, &list);
    bool good = rc == 0;
    for (const char *end = list.bytes + list.n; good && arguments_has(a, "fields");
         list.bytes += word.n + 1) {
        const char *comma = memchr(list.bytes, ',', (size_t)(end - list.bytes));
        word = (struct http_text){list.bytes, (size_t)((comma ? comma : end) - list.bytes)};
        unsigned field = 0;
        while (field < BLOCK_FIELDS && !http_text_is(word, block_fields[field]))
            field++;
        good = field < BLOCK_FIELDS;
        fields |= 1U << field;
        if (!comma)
            break;
    }
    answer_of(request)->fields = fields;
    return rc != 0 || good ? rc : arguments_refuse(a, "fields", "wants some of block,state,refs,fill,owner");
}

/* "epoch": of when something is shown; now, if it is absent. */
static int read_epoch(struct arguments *a, struct request_epoch *at)
{
    int64_t epoch = 0;
    int rc = arguments_integer(a, "epoch", 0, ID_MAX, &epoch);
    at->past = arguments_has(a, "epoch");
    at->epoch = (uint64_t)epoch;
    return rc;
}

static int parse_pool(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"limit", "cursor", "state", "fields", "format", "epoch", NULL},
                             *const formats[] = {"objects", "columns"};
    struct arguments a;
    unsigned format = 0;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_word(&a, "format", formats, 2, &format);
    if (rc == 0)
        rc = api_read_page(&a, request, PAGE_DEFAULT, format == 1 ? REQUEST_COLUMNS_MAX : REQUEST_PAGE_MAX);
    if (rc == 0)
        rc = api_read_state(&a, api_block_states, 4, request);
    if (rc == 0)
        rc = read_fields(&a, request);
    if (rc == 0)
        rc = read_epoch(&a, &request->pool.at);
    answer_of(request)->columns = format == 1;
    return rc == 0 ? arguments_no_body(x) : rc;
}

static void write_block_field(struct json_writer *w, const struct block_view *v, unsigned field,
                              const char *name)
{
    switch (field) {
    case 0:
        json_uint(w, name, v->block);
        break;
    case 1:
        json_string(w, name, api_block_states[v->state]);
        break;
    case 2:
        if (v->foreign)
            json_null(w, name);
        else
            json_uint(w, name, v->refs);
        break;
    case 3:
        if (v->foreign)
            json_null(w, name);
        else
            json_uint(w, name, v->fill);
        break;
    default:
        if (v->foreign)
            json_string(w, name, "other");
        else if (v->owner)
            json_uint(w, name, v->owner);
        else
            json_null(w, name);
        break;
    }
}

/* An object a block, or with format=columns an array a field. */
static void write_pool_blocks(struct json_writer *w, const struct request_blocks *blocks,
                              const struct answer *answer)
{
    unsigned fields = answer->fields ? answer->fields : (1U << BLOCK_FIELDS) - 1;
    if (!answer->columns)
        json_open(w, "blocks", '[');
    for (unsigned field = 0; answer->columns && field < BLOCK_FIELDS; field++) {
        if (!(fields >> field & 1))
            continue;
        json_open(w, block_fields[field], '[');
        for (uint32_t i = 0; i < blocks->count; i++)
            write_block_field(w, &blocks->views[i], field, NULL);
        json_close(w, ']');
    }
    for (uint32_t i = 0; !answer->columns && i < blocks->count; i++) {
        json_open(w, NULL, '{');
        for (unsigned field = 0; field < BLOCK_FIELDS; field++) {
            if (fields >> field & 1)
                write_block_field(w, &blocks->views[i], field, block_fields[field]);
        }
        json_close(w, '}');
    }
    if (!answer->columns)
        json_close(w, ']');
}

/* The way to the next page, with the same parameters. */
static void link_next(struct http_exchange *x, const struct request_pool *of, const struct answer *answer)
{
    const struct request_page *page = &of->page;
    int n = snprintf(x->extra, sizeof x->extra, "Link: </v1/blocks?cursor=%llu&limit=%u",
                     (unsigned long long)page->next, page->limit);
    if (page->filter.on)
        n += snprintf(x->extra + n, sizeof x->extra - (size_t)n, "&state=%s",
                      api_block_states[page->filter.state]);
    for (unsigned field = 0, first = 1; field < BLOCK_FIELDS; field++) {
        if (!(answer->fields >> field & 1))
            continue;
        n += snprintf(x->extra + n, sizeof x->extra - (size_t)n, "%s%s", first ? "&fields=" : ",",
                      block_fields[field]);
        first = 0;
    }
    if (of->at.past)
        n += snprintf(x->extra + n, sizeof x->extra - (size_t)n, "&epoch=%llu",
                      (unsigned long long)of->at.epoch);
    snprintf(x->extra + n, sizeof x->extra - (size_t)n, "%s>; rel=\"next\"\r\n",
             answer->columns ? "&format=columns" : "");
}

static void render_pool(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    const struct answer *answer = answer_of(request);
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", request->pool.at.epoch);
    write_pool_blocks(w, &request->pool.blocks, answer);
    api_write_next(w, request->page.next);
    json_close(w, '}');
    json_raw(w, "\n");
    if (request->page.next)
        link_next(x, &request->pool, answer);
}

/* ---- /v1/tables ------------------------------------------------------------------------------------ */

static int parse_tables(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"limit", "epoch", NULL};
    struct arguments a;
    int64_t limit = TABLES_DEFAULT;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "limit", 1, REQUEST_PAGE_MAX, &limit);
    if (rc == 0)
        rc = read_epoch(&a, &request->tables.at);
    request->tables.limit = (uint32_t)limit;
    return rc == 0 ? arguments_no_body(x) : rc;
}

static void render_tables(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_tables *of = &request->tables;
    const uint32_t *ids = of->block_ids;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", of->at.epoch);
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < of->count; i++) {
        const struct table_view *view = &of->views[i];
        json_open(w, NULL, '{');
        json_uint(w, "id", view->id);
        if (view->parent)
            json_uint(w, "parent", view->parent);
        else
            json_null(w, "parent");
        api_write_ids(w, "blocks", ids, view->listed);
        json_uint(w, "block_count", view->blocks);
        json_close(w, '}');
        ids += view->listed;
    }
    json_close(w, ']');
    json_uint(w, "left_out", of->left_out);
    json_close(w, '}');
    json_raw(w, "\n");
}

static const struct api_schema schemas[] = {
    {"Status", "{status:(live|ready|stalled|draining|failed)}"},
    {"Info", "{name:text version:text commit:text node:uint instance:text backend:{name:text device:text "
             "isa:text threads:uint "
             "roof_gb_per_s:number roof:Roof grouping_us:number bit_stable:bool} geometry:{layers:uint "
             "query_heads:uint "
             "kv_heads:uint head_dim:uint block_size:uint dtype:text kv_dtype:text layout:text scale:number "
             "window:[uint] softcap:number sinks:bool alibi:bool} pool:{blocks:uint bytes_per_block:uint} "
             "debug:{poison:bool} "
             "limits:{connections:uint json_bytes:uint body_bytes:uint staging_bytes:uint memory_bytes:uint "
             "header_bytes:uint "
             "headers:uint url_bytes:uint sequences:uint sequence_tokens:uint calls:uint rows_per_call:uint "
             "kv_range_tokens:uint "
             "paged_sequences:uint idle_timeout_s:uint workload_s:uint workload_kept_s:uint} "
             "transport?:{listen:text version:uint clients:uint calls:uint regions:uint region_bytes:uint "
             "gpu_bytes:uint gpu_rows:uint} "
             "kernels:{attend:text} key?:{name:text scopes:[(read|infer|admin|keep)]}}"},
    {"Stats",
     "{epoch:uint node:uint draining?:{lame_duck_s:uint} uptime_s:number backend:{name:text "
     "isa:text threads:uint} "
     "pool:{blocks:uint free:uint cached:uint held:uint fenced:uint shared:uint leased:uint promised:uint "
     "block_size:uint tokens_logical:uint tokens_physical:uint sharing_ratio:number "
     "internal_fragmentation:number bytes_per_block:uint host_blocks:uint host_free:uint "
     "file?:{in_memory:uint memory_blocks:uint writes:uint reads:uint failed:bool}} "
     "counters:{cow_copies:uint forks:uint evictions:uint "
     "prefix_blocks_asked:uint prefix_blocks_hit:uint swaps_out:uint swaps_in:uint "
     "preemptions:uint alloc_failures:uint} scheduler:{idle:uint queued:uint running:uint "
     "swapped:uint steps:uint batch_rows:{p50:uint max:uint} step_us:{p50:number p99:number} "
     "idle_us:{p50:number} bytes_read:uint gb_per_s:number roof_gb_per_s:number "
     "roof_fraction:number above_roof?:text roof:Roof latest:{bytes_read:uint seconds:number "
     "ideal_seconds:number roof_fraction:number above_roof?:text}} sequences:{count:uint "
     "items:[Sequence] next:uint?} leases:uint "
     "transport?:{clients:uint regions:uint region_bytes:uint gpu_bytes:uint calls:uint ended:uint} "
     "journal?:{records:uint bytes:uint files:uint stopped:text?} "
     "kv_events?:{batches:uint stored:uint removed:uint replays:uint rescans:uint}}"},
    {"Block", "{block?:uint state?:(free|held|cached|fenced) refs?:uint? fill?:uint? owner?:id|(other)?}"},
    {"Blocks", "{epoch:uint blocks:[Block] next:uint?}"},
    {"BlockColumns",
     "{epoch:uint block?:[uint] state?:[(free|held|cached|fenced)] refs?:[uint?] fill?:[uint?] "
     "owner?:[id|(other)?] next:uint?}"},
    {"Tables", "{epoch:uint sequences:[{id:id parent:id? blocks:[uint] block_count:uint}] left_out:uint}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ANSWER(GET, "/livez", OPEN, 0, 200, get_livez, "Whether a restart would not help", NULL, NULL, "Status",
           503),
    ANSWER(GET, "/readyz", OPEN, 0, 200, get_readyz, "Whether clients are welcome", NULL, NULL, "Status",
           503),
    ANSWER(GET, "/openapi.json", OPEN, TYPE_JSON, 200, get_openapi, "This document", NULL, NULL, "any", 0),
    ANSWER(GET, "/v1/info", READ, TYPE_JSON, 200, get_info, "Backend, geometry and limits", NULL, NULL,
           "Info", 0),
    ASK(GET, "/stats", READ, STATS, SMALL, api_parse_page, render_stats, 200,
        "The state at a glance, with sequences and their blocks",
        "limit?:uint(1..1000) cursor?:uint(0..4294967295)", NULL, "Stats", 304),
    ASK_TYPES(GET, "/metrics", METRICS, STATS, SMALL, TYPE_TEXT, metrics_parse, metrics_render, 200,
              "Figures for Prometheus", NULL, NULL, "text", 0),
    ASK(GET, "/v1/blocks", READ, POOL, SMALL, parse_pool, render_pool, 200,
        "The pool, block by block, a page at a time",
        "limit?:uint(1..4000) cursor?:uint(0..4294967295) state?:(free|held|cached|fenced) "
        "fields?:text(..64) "
        "format?:(objects|columns) epoch?:uint",
        NULL, "Blocks|BlockColumns", 0),
    ASK(GET, "/v1/tables", READ, TABLES, SMALL, parse_tables, render_tables, 200,
        "The tables of sequences, at one epoch", "limit?:uint(1..1000) epoch?:uint", NULL, "Tables", 0),
    {0},
};

const struct api_resource api_observe = {routes, schemas};
