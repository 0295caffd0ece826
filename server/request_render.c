/* request_render.c - see request_render.h. */
#include "server/request_render.h"

#include "kernels/numeric.h"
#include "server/answer.h"
#include "server/request_parse.h"
#include "server/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void write_ids(struct json_writer *w, const char *name, const uint32_t *ids, uint32_t n)
{
    json_open(w, name, '[');
    for (uint32_t i = 0; i < n; i++)
        json_uint(w, NULL, ids[i]);
    json_close(w, ']');
}

/* The members of one sequence as /stats and GET /v1/sequences show it, inside an open object. */
static void write_sequence(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    json_uint(w, "id", v->id);
    json_string(w, "state", request_sequence_states[v->state]);
    json_uint(w, "length", v->length);
    write_ids(w, "blocks", ids, v->swapped ? 0 : v->blocks);
    if (v->swapped)
        write_ids(w, "host_blocks", ids, v->blocks);
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

/* Likewise of a lease. */
static void write_lease(struct json_writer *w, const struct sequence_view *v, const uint32_t *ids)
{
    json_uint(w, "id", v->id);
    write_ids(w, "blocks", ids, v->blocks);
    json_int(w, "priority", v->priority);
    json_double(w, "age_s", round(v->age_s * 1e3) / 1e3);
    json_double(w, "idle_s", round(v->idle_s * 1e3) / 1e3);
}

static void write_lengths(struct json_writer *w, const uint32_t *lengths, uint32_t layers)
{
    json_open(w, "lengths", '[');
    for (uint32_t layer = 0; layer < layers; layer++)
        json_uint(w, NULL, lengths[layer]);
    json_close(w, ']');
}

static void write_next(struct json_writer *w, uint64_t next)
{
    if (next)
        json_uint(w, "next", next);
    else
        json_null(w, "next");
}

static void write_items(struct json_writer *w, const struct request *request)
{
    const struct request_shown *shown = &request->list.shown;
    const uint32_t *ids = shown->block_ids;
    json_open(w, "items", '[');
    for (uint32_t i = 0; i < shown->count; i++) {
        json_open(w, NULL, '{');
        (request->of_leases ? write_lease : write_sequence)(w, &shown->views[i], ids);
        json_close(w, '}');
        ids += shown->views[i].blocks;
    }
    json_close(w, ']');
    write_next(w, request->page.next);
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
    json_uint(w, "block_size", c->config->geometry.block_size);
    json_uint(w, "tokens_logical", t->tokens_logical);
    json_uint(w, "tokens_physical", t->tokens_physical);
    json_float(w, "sharing_ratio",
               t->tokens_physical ? (float)((double)t->tokens_logical / (double)t->tokens_physical) : 1);
    json_float(w, "internal_fragmentation", slots > 0 ? (float)(1 - (double)t->tokens_physical / slots) : 0);
    json_uint(w, "bytes_per_block", geometry_block_bytes(&c->config->geometry));
    json_uint(w, "host_blocks", t->host_blocks);
    json_uint(w, "host_free", t->host_free);
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
    json_uint(w, "alloc_failures", p->failures);
    json_close(w, '}');
}

static void write_rate(struct json_writer *w, double gb_per_s, double roof_gb_per_s)
{
    json_float(w, "gb_per_s", (float)gb_per_s);
    json_float(w, "roof_gb_per_s", (float)roof_gb_per_s);
    json_float(w, "roof_fraction", roof_gb_per_s > 0 ? (float)(gb_per_s / roof_gb_per_s) : 0);
}

/* What reading the latest steps' K and V takes at the roof, and its share of what they took. */
static double ideal_seconds(const struct engine_stats *s, const struct render_context *c)
{
    return c->roof_gb_per_s > 0 ? (double)s->steps.latest.bytes / (c->roof_gb_per_s * 1e9) : 0;
}

static double latest_fraction(const struct engine_stats *s, const struct render_context *c)
{
    return s->steps.latest.seconds > 0 ? ideal_seconds(s, c) / s->steps.latest.seconds : 0;
}

/* Name the state that an answer shows; true when the client has it already, and 304 is the answer. */
static bool is_known(struct http_exchange *x, uint64_t epoch)
{
    char tag[32];
    int n = snprintf(tag, sizeof tag, "W/\"%llu\"", (unsigned long long)epoch);
    snprintf(x->extra, sizeof x->extra, "ETag: %s\r\n", tag);
    bool known = memmem(x->if_none_match.bytes, x->if_none_match.n, tag, (size_t)n) != NULL;
    x->http_status = known ? 304 : x->http_status;
    return known;
}

void request_render_stats(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct engine_stats *s = &request->stats.all;
    struct json_writer *w = &x->reply;
    if (is_known(x, s->epoch))
        return;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", s->epoch);
    json_double(w, "uptime_s", round(c->uptime_s * 10) / 10);
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
    write_rate(w, s->gb_per_s, c->roof_gb_per_s);
    json_open(w, "latest", '{'); /* steps, a thousand at most; ideal: at the roof */
    json_uint(w, "bytes_read", s->steps.latest.bytes);
    json_double(w, "seconds", s->steps.latest.seconds);
    json_double(w, "ideal_seconds", ideal_seconds(s, c));
    json_float(w, "roof_fraction", (float)latest_fraction(s, c));
    json_close(w, '}');
    json_close(w, '}');
    json_open(w, "sequences", '{');
    json_uint(w, "count", s->tables.rows - s->leases);
    write_items(w, request);
    json_close(w, '}');
    json_uint(w, "leases", s->leases);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* One family of /metrics: its help and type, then by write_sample() its samples. */
static void write_family(struct json_writer *w, const char *name, const char *type, const char *help)
{
    char text[256];
    snprintf(text, sizeof text, "# HELP attnd_%s %s\n# TYPE attnd_%s %s\n", name, help, name, type);
    json_raw(w, text);
}

/* `label` is "" or the labels in braces. */
static void write_sample(struct json_writer *w, const char *name, const char *label, double value)
{
    char text[160];
    snprintf(text, sizeof text, "attnd_%s%s %.17g\n", name, label, value);
    json_raw(w, text);
}

static void write_metric(struct json_writer *w, const char *name, const char *type, const char *help,
                         double value)
{
    write_family(w, name, type, help);
    write_sample(w, name, "", value);
}

/* Prometheus text format 0.0.4, from the figures of /stats. */
void request_render_metrics(struct http_exchange *x, const struct request *request,
                            const struct render_context *c)
{
    const struct engine_stats *s = &request->stats.all;
    const struct block_pool_counts *p = &s->pool;
    const struct block_tables_counts *t = &s->tables;
    struct json_writer *w = &x->reply;
    const double blocks[] = {p->free, p->held, p->cached, p->fenced};
    char label[64];
    x->content_type = "text/plain; version=0.0.4; charset=utf-8";
    write_family(w, "blocks", "gauge", "KV blocks by state.");
    for (int i = 0; i < 4; i++) {
        snprintf(label, sizeof label, "{state=\"%s\"}", request_block_states[i]);
        write_sample(w, "blocks", label, blocks[i]);
    }
    write_metric(w, "blocks_shared", "gauge", "Held blocks with more than one reference.", p->shared);
    write_family(w, "sequences", "gauge", "Sequences by state.");
    for (int i = 0; i < SEQUENCE_STATES; i++) {
        snprintf(label, sizeof label, "{state=\"%s\"}", request_sequence_states[i]);
        write_sample(w, "sequences", label, s->states[i]);
    }
    write_metric(w, "tokens_logical", "gauge", "Tokens of all sequences.", (double)t->tokens_logical);
    write_metric(w, "tokens_physical", "gauge", "Token slots that hold them.", (double)t->tokens_physical);
    write_metric(w, "steps_total", "counter", "Steps run.", (double)s->steps.steps);
    write_metric(w, "step_seconds_total", "counter", "Time spent in steps.", s->steps.busy_s);
    write_metric(w, "kv_read_bytes_total", "counter", "K and V that steps have read.",
                 (double)s->steps.bytes_read);
    write_metric(w, "roof_bytes_per_second", "gauge",
                 "Rate at which the pool can be read, measured at start.", c->roof_gb_per_s * 1e9);
    write_metric(w, "latest_roof_fraction", "gauge",
                 "Of the latest steps: time to read their K and V at that rate, over the time they took.",
                 latest_fraction(s, c));
    write_metric(w, "graphs_launched_total", "counter", "Graphs of passes that a GPU was given.",
                 (double)s->steps.graphs.launched);
    write_metric(w, "graphs_recorded_total", "counter", "Of these, recorded anew for that.",
                 (double)s->steps.graphs.recorded);
    write_metric(w, "forks_total", "counter", "Sequences forked.", (double)t->forks);
    write_metric(w, "cow_copies_total", "counter", "Blocks copied on write.", (double)t->copies);
    write_metric(w, "evictions_total", "counter", "Cached blocks evicted.", (double)p->evictions);
    write_metric(w, "host_blocks", "gauge", "Blocks of host memory to swap to.", t->host_blocks);
    write_metric(w, "host_blocks_free", "gauge", "Of these, free.", t->host_free);
    write_metric(w, "swaps_out_total", "counter", "Sequences swapped out.", (double)t->swaps_out);
    write_metric(w, "swaps_in_total", "counter", "Sequences swapped in.", (double)t->swaps_in);
    write_metric(w, "preemptions_total", "counter", "Sequences of workloads preempted.",
                 (double)s->preemptions);
    write_metric(w, "alloc_failures_total", "counter", "Requests for blocks that failed.",
                 (double)p->failures);
    write_metric(w, "prefix_blocks_asked_total", "counter", "Full blocks of prompts looked up.",
                 (double)t->blocks_asked);
    write_metric(w, "prefix_blocks_hit_total", "counter", "Of these, found.", (double)t->blocks_hit);
    write_metric(w, "staging_bytes_used", "gauge", "Of limits.staging_bytes.", (double)c->staging_used);
    write_metric(w, "tensors_copied_total", "counter",
                 "Tensors of bodies that were copied, since they came in chunks or not aligned to 8 bytes.",
                 (double)c->tensors_copied);
    write_metric(w, "uptime_seconds", "gauge", "Since the start.", c->uptime_s);
}

void request_render_table(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_blocks *blocks = &request->table.blocks;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '[');
    for (uint32_t i = 0; i < blocks->count; i++) {
        const struct block_view *v = &blocks->views[i];
        json_open(w, NULL, '{');
        json_uint(w, "index", i);
        json_uint(w, v->on_host ? "host_block" : "block", v->block);
        json_uint(w, "fill", v->fill);
        if (!v->on_host)
            json_uint(w, "refs", v->refs);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_raw(w, "\n");
}

static void write_block_field(struct json_writer *w, const struct block_view *v, unsigned field,
                              const char *name)
{
    switch (field) {
    case 0:
        json_uint(w, name, v->block);
        break;
    case 1:
        json_string(w, name, request_block_states[v->state]);
        break;
    case 2:
        json_uint(w, name, v->refs);
        break;
    case 3:
        json_uint(w, name, v->fill);
        break;
    default:
        if (v->owner)
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
    unsigned fields = answer->fields ? answer->fields : (1U << REQUEST_BLOCK_FIELDS) - 1;
    if (!answer->columns)
        json_open(w, "blocks", '[');
    for (unsigned field = 0; answer->columns && field < REQUEST_BLOCK_FIELDS; field++) {
        if (!(fields >> field & 1))
            continue;
        json_open(w, request_block_fields[field], '[');
        for (uint32_t i = 0; i < blocks->count; i++)
            write_block_field(w, &blocks->views[i], field, NULL);
        json_close(w, ']');
    }
    for (uint32_t i = 0; !answer->columns && i < blocks->count; i++) {
        json_open(w, NULL, '{');
        for (unsigned field = 0; field < REQUEST_BLOCK_FIELDS; field++) {
            if (fields >> field & 1)
                write_block_field(w, &blocks->views[i], field, request_block_fields[field]);
        }
        json_close(w, '}');
    }
    if (!answer->columns)
        json_close(w, ']');
}

/* The way to the next page, with the same parameters. */
static void link_next(struct http_exchange *x, const struct request_page *page, const struct answer *answer)
{
    int n = snprintf(x->extra, sizeof x->extra, "Link: </v1/blocks?cursor=%llu&limit=%u",
                     (unsigned long long)page->next, page->limit);
    if (page->filter.on)
        n += snprintf(x->extra + n, sizeof x->extra - (size_t)n, "&state=%s",
                      request_block_states[page->filter.state]);
    for (unsigned field = 0, first = 1; field < REQUEST_BLOCK_FIELDS; field++) {
        if (!(answer->fields >> field & 1))
            continue;
        n += snprintf(x->extra + n, sizeof x->extra - (size_t)n, "%s%s", first ? "&fields=" : ",",
                      request_block_fields[field]);
        first = 0;
    }
    snprintf(x->extra + n, sizeof x->extra - (size_t)n, "%s>; rel=\"next\"\r\n",
             answer->columns ? "&format=columns" : "");
}

void request_render_pool(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct answer *answer = answer_of(request);
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", request->pool.epoch);
    write_pool_blocks(w, &request->pool.blocks, answer);
    write_next(w, request->page.next);
    json_close(w, '}');
    json_raw(w, "\n");
    if (request->page.next)
        link_next(x, &request->page, answer);
}

/* ---- what was computed --------------------------------------------------------------------------- */

/* Rows of o, and lse if it is wanted. */
struct output {
    const struct request_output *of;
    uint32_t rows;
    bool lse;
    const char *kernel;
    double roof_fraction; /* of its step */
};

static struct output output_of(const struct request *request, const struct request_output *of, uint32_t rows,
                               enum attention_kernel kernel, const struct render_context *c)
{
    double roof = c->roof_gb_per_s * 1e9 * of->step_us * 1e-6;
    return (struct output){.of = of,
                           .rows = rows,
                           .lse = answer_of(request)->wants_lse,
                           .kernel =
                               kernel == ATTENTION_AUTO ? c->backend->kernel : config_kernel_names[kernel],
                           .roof_fraction = roof > 0 ? (double)of->bytes_read / roof : 0};
}

static void write_output(struct json_writer *w, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    json_open(w, NULL, '{');
    json_open(w, "o", '[');
    for (uint32_t row = 0; row < out->rows; row++) {
        json_open(w, NULL, '[');
        for (uint32_t head = 0; head < g->query_heads; head++) {
            json_open(w, NULL, '[');
            for (uint32_t d = 0; d < g->head_dim; d++)
                json_float(
                    w, NULL,
                    numeric_load(g->dtype, of->o, ((size_t)row * g->query_heads + head) * g->head_dim + d));
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_close(w, ']');
    if (out->lse) {
        json_open(w, "lse", '[');
        for (uint32_t row = 0; row < out->rows; row++) {
            json_open(w, NULL, '[');
            for (uint32_t head = 0; head < g->query_heads; head++)
                json_float(w, NULL, of->lse[(size_t)row * g->query_heads + head]);
            json_close(w, ']');
        }
        json_close(w, ']');
    }
    json_float(w, "queue_us", (float)of->queue_us);
    json_float(w, "step_us", (float)of->step_us);
    json_uint(w, "rows_in_step", of->rows_in_step);
    json_uint(w, "bytes_read", of->bytes_read);
    json_float(w, "roof_fraction", (float)out->roof_fraction);
    json_string(w, "kernel", out->kernel);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* o, and lse if asked for, with the request's timing as metadata. The numbers are sent from where they lie
 * in the request's arena. */
static void send_tensors(struct http_exchange *x, const struct output *out, const struct geometry *g)
{
    const struct request_output *of = out->of;
    size_t o_bytes = out->rows * geometry_q_row_bytes(g);
    size_t lse_bytes = (size_t)out->rows * g->query_heads * sizeof *of->lse;
    struct safetensors tensors = {
        .count = out->lse ? 2 : 1,
        .tensors =
            {{.name = "o", .rank = 3, .shape = {out->rows, g->query_heads, g->head_dim}, .end = o_bytes},
             {.name = "lse",
              .dtype = "F32",
              .rank = 2,
              .shape = {out->rows, g->query_heads},
              .end = lse_bytes}},
    };
    char metadata[320];
    snprintf(tensors.tensors[0].dtype, sizeof tensors.tensors[0].dtype, "%s",
             safetensors_dtype_name(g->dtype));
    snprintf(metadata, sizeof metadata,
             "{\"queue_us\":\"%.1f\",\"step_us\":\"%.1f\",\"rows_in_step\":\"%u\",\"bytes_read\":\"%llu\","
             "\"roof_fraction\":\"%.4f\",\"kernel\":\"%s\"}",
             of->queue_us, of->step_us, of->rows_in_step, (unsigned long long)of->bytes_read,
             out->roof_fraction, out->kernel);
    x->content_type = "application/x-safetensors";
    x->reply.length = safetensors_write_header(&tensors, metadata, x->reply.buffer, x->reply.capacity);
    x->reply.overflow = x->reply.length == 0;
    x->tail[x->tail_count++] = (struct http_text){of->o, o_bytes};
    if (out->lse)
        x->tail[x->tail_count++] = (struct http_text){(const char *)of->lse, lse_bytes};
}

static void render_output(struct http_exchange *x, const struct request *request, const struct output *out,
                          const struct render_context *c)
{
    if (answer_of(request)->wants_tensors)
        send_tensors(x, out, &c->config->geometry);
    else
        write_output(&x->reply, out, &c->config->geometry);
}

void request_render_attend(struct http_exchange *x, const struct request *request,
                           const struct render_context *c)
{
    const struct request_rows *rows = &request->rows;
    const struct output out = output_of(request, &rows->out, rows->count, rows->kernel, c);
    render_output(x, request, &out, c);
}

/* Without q: k and v that were written and not read. */
void request_render_paged(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    uint32_t n = 0;
    if (request->rows.q) {
        request_render_attend(x, request, c);
        return;
    }
    for (uint32_t i = 0; i < request->paged.tokens; i++)
        n += request->paged.slots[i] >= 0;
    json_open(w, NULL, '{');
    json_uint(w, "tokens", n);
    json_close(w, '}');
    json_raw(w, "\n");
}

void request_render_merge(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_merge *merge = &request->merge;
    const struct output out = output_of(request, &merge->out, merge->rows, ATTENTION_AUTO, c);
    render_output(x, request, &out, c);
}

void request_render_append(struct http_exchange *x, const struct request *request,
                           const struct render_context *c)
{
    const struct request_attend *append = &request->attend;
    uint32_t layers = c->config->geometry.layers;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < append->view_count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", append->views[i].id);
        json_uint(w, "length", append->views[i].length);
        write_lengths(w, append->lengths + (size_t)i * layers, layers);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- sequences and leases ------------------------------------------------------------------------ */

static void write_forks(struct json_writer *w, const struct request_shown *shown)
{
    const uint32_t *ids = shown->block_ids;
    json_open(w, NULL, '{');
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < shown->count; i++) {
        json_open(w, NULL, '{');
        json_uint(w, "id", shown->views[i].id);
        json_uint(w, "length", shown->views[i].length);
        write_ids(w, "blocks", ids, shown->views[i].blocks);
        json_close(w, '}');
        ids += shown->views[i].blocks;
    }
    json_close(w, ']');
    json_close(w, '}');
}

void request_render_fork(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    (void)c;
    write_forks(&x->reply, &request->fork.shown);
    json_raw(&x->reply, "\n");
}

static void write_created(struct json_writer *w, const struct request_shown *shown)
{
    json_open(w, NULL, '{');
    json_uint(w, "id", shown->views[0].id);
    json_uint(w, "length", shown->views[0].length);
    json_uint(w, "cached_tokens", shown->views[0].length);
    write_ids(w, "blocks", shown->block_ids, shown->views[0].blocks);
    json_close(w, '}');
}

void request_render_create(struct http_exchange *x, const struct request *request,
                           const struct render_context *c)
{
    const struct request_shown *shown = &request->create.shown;
    (void)c;
    write_created(&x->reply, shown);
    json_raw(&x->reply, "\n");
    snprintf(x->extra, sizeof x->extra, "Location: /v1/sequences/%llu\r\n",
             (unsigned long long)shown->views[0].id);
}

void request_render_lease(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_shown *shown = &request->lease.shown;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "id", shown->views[0].id);
    write_ids(w, "blocks", shown->block_ids, shown->views[0].blocks);
    json_close(w, '}');
    json_raw(w, "\n");
    snprintf(x->extra, sizeof x->extra, "Location: /v1/leases/%llu\r\n",
             (unsigned long long)shown->views[0].id);
}

void request_render_sequence(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    const struct request_look *look = &request->look;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    (request->of_leases ? write_lease : write_sequence)(w, &look->shown.views[0], look->shown.block_ids);
    if (look->lengths && !request->of_leases)
        write_lengths(w, look->lengths, c->config->geometry.layers);
    json_close(w, '}');
    json_raw(w, "\n");
}

static void write_truncated(struct json_writer *w, const struct request_shown *shown)
{
    json_open(w, NULL, '{');
    write_sequence(w, &shown->views[0], shown->block_ids);
    json_close(w, '}');
}

void request_render_truncate(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    (void)c;
    write_truncated(&x->reply, &request->truncate.shown);
    json_raw(&x->reply, "\n");
}

void request_render_batch(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_open(w, "results", '[');
    for (uint32_t i = 0; i < request->batch.count; i++) {
        const struct request_op *op = &request->batch.ops[i];
        if (op->kind == REQUEST_CREATE) {
            write_created(w, &op->create.shown);
        } else if (op->kind == REQUEST_FORK) {
            write_forks(w, &op->fork.shown);
        } else if (op->kind == REQUEST_TRUNCATE) {
            write_truncated(w, &op->truncate.shown);
        } else {
            json_open(w, NULL, '{');
            json_close(w, '}');
        }
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

void request_render_list(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    write_items(w, request);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- the pool and the backend -------------------------------------------------------------------- */

void request_render_trim(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "dropped", request->trim.dropped);
    json_close(w, '}');
    json_raw(w, "\n");
}

void request_render_audit(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    static const char *const checked[] = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I9"};
    struct json_writer *w = &x->reply;
    (void)c;
    if (request->check.fault) {
        http_problem(x, ATTND_INTERNAL, "%s", request->check.fault);
        json_raw(w, "\n");
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

void request_render_self_test(struct http_exchange *x, const struct request *request,
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

/* ---- workloads ----------------------------------------------------------------------------------- */

/* Microseconds shown as such, or as milliseconds (per_unit 1e3). */
static void write_percentiles(struct json_writer *w, const char *name, struct percentiles p, double per_unit)
{
    json_open(w, name, '{');
    json_float(w, "p50", (float)(p.p50 / per_unit));
    json_float(w, "p90", (float)(p.p90 / per_unit));
    json_float(w, "p99", (float)(p.p99 / per_unit));
    json_close(w, '}');
}

static void write_verify(struct json_writer *w, const struct workload_report *r)
{
    if (r->verify_rows == 0) {
        json_null(w, "verify");
        return;
    }
    json_open(w, "verify", '{');
    json_uint(w, "rows", r->verify_rows);
    json_uint(w, "done", r->verify_done);
    json_float(w, "largest_error", (float)r->verify_error);
    json_float(w, "tolerance", (float)r->verify_tolerance);
    if (r->state == WORKLOAD_FINISHED)
        json_bool(w, "ok", r->verify_ok);
    else
        json_null(w, "ok");
    json_close(w, '}');
}

/* A workload as it stands: progress, or the report at its end. */
static void write_report(struct json_writer *w, const struct workload_report *r,
                         const struct render_context *c)
{
    static const char *const states[] = {"running", "verifying", "finished", "cancelled"};
    char digest[33];
    json_open(w, NULL, '{');
    json_uint(w, "id", r->id);
    json_string(w, "state", states[r->state]);
    json_double(w, "wall_s", round(r->wall_s * 1e3) / 1e3);
    json_string(w, "sharing", config_sharing_names[r->sharing]);
    json_uint(w, "requests", r->requests);
    json_open(w, "sequences", '{');
    json_uint(w, "total", r->sequences);
    json_uint(w, "waiting", r->waiting);
    json_uint(w, "running", r->running);
    json_uint(w, "finished", r->finished);
    json_close(w, '}');
    json_open(w, "tokens", '{');
    json_uint(w, "total", r->tokens);
    json_uint(w, "done", r->tokens_done);
    json_uint(w, "prompt", r->prompt_tokens);
    json_uint(w, "cached", r->cached_tokens);
    json_uint(w, "recomputed", r->recomputed_tokens);
    json_close(w, '}');
    json_uint(w, "rows", r->rows);
    json_uint(w, "steps", r->steps);
    write_percentiles(w, "step_us", r->step_us, 1);
    write_percentiles(w, "queue_ms", r->queue_us, 1e3);
    write_percentiles(w, "first_token_ms", r->first_token_us, 1e3);
    write_percentiles(w, "per_token_ms", r->per_token_us, 1e3);
    json_uint(w, "bytes_read", r->bytes_read);
    write_rate(w, r->busy_s > 0 ? (double)r->bytes_read / r->busy_s * 1e-9 : 0, c->roof_gb_per_s);
    json_open(w, "blocks", '{');
    json_uint(w, "total", r->blocks);
    json_uint(w, "held", r->blocks_held);
    json_uint(w, "peak", r->blocks_peak);
    json_uint(w, "saved_peak", r->saved_tokens_peak / c->config->geometry.block_size);
    json_close(w, '}');
    json_uint(w, "forks", r->forks);
    json_uint(w, "copies", r->copies);
    json_uint(w, "preemptions", r->preemptions);
    snprintf(digest, sizeof digest, "%016llx%016llx", (unsigned long long)r->digest_high,
             (unsigned long long)r->digest_low);
    json_string(w, "digest", digest);
    write_verify(w, r);
    json_close(w, '}');
}

void request_render_workload(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    const struct workload_report *report = request->workload.report;
    write_report(&x->reply, report, c);
    json_raw(&x->reply, "\n");
    if (request->kind == REQUEST_WORKLOAD_START)
        snprintf(x->extra, sizeof x->extra, "Location: /v1/workloads/%llu\r\n",
                 (unsigned long long)report->id);
}

/* ---- all ----------------------------------------------------------------------------------------- */

void request_render(struct http_exchange *x, const struct request *request, const struct render_context *c)
{
    const struct answer *answer = answer_of(request);
    x->http_status = answer->http_status;
    if (request->status != 0)
        http_problem(x, request->status, "%s", request->detail);
    else if (answer->render)
        answer->render(x, request, c);
}
