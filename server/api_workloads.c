/* SPDX-License-Identifier: Apache-2.0 */
/* api_workloads.c - /v1/workloads. How a body becomes a workload: workload_parse.c. */
#include "kernels/numeric.h"
#include "scheduler/workload.h"
#include "server/api.h"
#include "server/media_type.h"
#include "server/workload_parse.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Whether the client asks for a stream, by name: a range is no wish. Of server-sent events it is one if it says
 * so, else of lines. */
static bool note_stream(const struct http_exchange *x, struct request *request)
{
    answer_of(request)->events = media_type_asked_for(x->head.accept, "text/event-stream");
    return answer_of(request)->events || media_type_asked_for(x->head.accept, "application/x-ndjson");
}

static int parse_workload(struct http_exchange *x, struct request *request, const struct config *config)
{
    bool streams = note_stream(x, request);
    int rc = workload_parse(x, request, config);
    struct workload *w = request->workload.workload;
    if (rc == 0 && w->outputs_room && !streams) {
        http_problem(
            x, ATTND_INVALID,
            "return: outputs are streamed: ask with Accept: application/x-ndjson or text/event-stream");
        workload_destroy(w);
        return ATTND_INVALID;
    }
    if (rc == 0) {
        struct memory_budget *budget = &answer_of(request)->daemon->memory;
        uint64_t bytes = workload_bytes(w, &config->geometry);
        if (!memory_take_bulk(budget, bytes)) {
            http_problem(x, ATTND_BUSY, "the workload takes %llu MiB, and memory.bytes has less left",
                         (unsigned long long)(bytes >> 20));
            workload_destroy(w);
            return ATTND_BUSY;
        }
        w->budget = budget;
        w->charged = bytes;
        w->awaited = streams;
    }
    request->workload.takes_outputs = rc == 0 && w->outputs_room;
    answer_of(request)->streams = answer_of(request)->cancels = streams;
    if (!streams)
        answer_of(request)->http_status = 202;
    return rc;
}

static int parse_events(struct http_exchange *x, struct request *request, const struct config *config)
{
    (void)note_stream(x, request);
    answer_of(request)->streams = true;
    return api_parse_nothing(x, request, config);
}

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

static bool has_ended(const struct workload_report *r)
{
    return r->state == WORKLOAD_FINISHED || r->state == WORKLOAD_CANCELLED;
}

static void write_word(struct json_writer *w, const char *name, const char *word)
{
    if (word)
        json_string(w, name, word);
    else
        json_null(w, name);
}

/* One column of a table: its member at `offset` of each row. */
static void write_column(struct json_writer *w, const char *name, const struct workload_table_row *rows,
                         uint32_t n, size_t offset)
{
    json_open(w, name, '[');
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value;
        memcpy(&value, (const char *)&rows[i] + offset, sizeof value);
        json_uint(w, NULL, value);
    }
    json_close(w, ']');
}

/* The rounds, in the columns that simulators of serving read. */
static void write_table(struct json_writer *w, const struct workload_report *r,
                        const struct workload_table_row *rows)
{
    json_open(w, "table", '{');
    json_uint(w, "left_out", r->table_left_out);
    json_open(w, "columns", '{');
#define COLUMN(name) write_column(w, #name, rows, r->table_rows, offsetof(struct workload_table_row, name))
    COLUMN(prefill_chunk);
    COLUMN(kv_prefill);
    COLUMN(n_decode);
    COLUMN(kv_decode);
#undef COLUMN
    json_open(w, "time_us", '[');
    for (uint32_t i = 0; i < r->table_rows; i++)
        json_rounded(w, NULL, (double)rows[i].time_us, 1);
    json_close(w, ']');
    json_close(w, '}');
    json_close(w, '}');
}

/* A workload as it stands: progress, or the report at its end, perhaps with a table. */
static void write_report(struct json_writer *w, const struct workload_report *r,
                         const struct workload_table_row *table, const struct render_context *c)
{
    static const char *const states[] = {"running", "verifying", "finished", "cancelled"}, *const reasons[] =
    {
#define XX(constant, name, words) name,
        WORKLOAD_REASON_MAP(XX)
#undef XX
    };
    bool ended = has_ended(r);
    char digest[33];
    json_open(w, NULL, '{');
    json_uint(w, "id", r->id);
    json_string(w, "state", states[r->state]);
    write_word(w, "reason", ended ? reasons[r->reason] : NULL);
    write_word(w, "owner", r->owner[0] ? r->owner : NULL);
    json_double(w, "deadline_s", r->deadline_s);
    if (ended)
        json_double(w, "expires_in_s", round(fmax(0, r->expires_in_s)));
    else
        json_null(w, "expires_in_s");
    json_rounded(w, "wall_s", r->wall_s, 3);
    json_string(w, "sharing", config_sharing_names[r->sharing]);
    json_uint(w, "requests", r->requests);
    json_open(w, "sequences", '{');
    json_uint(w, "total", r->sequences);
    json_uint(w, "waiting", r->waiting);
    json_uint(w, "running", r->running);
    json_uint(w, "finished", r->finished);
    json_close(w, '}');
    json_open(w, "arrivals", '{');
    json_uint(w, "left", r->to_arrive);
    json_rounded(w, "next_s", r->next_arrival_s, 3);
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
    api_write_rate(w, r->busy_s > 0 ? (double)r->bytes_read / r->busy_s * 1e-9 : 0, &c->roof);
    json_open(w, "pool", '{'); /* whoever holds the blocks */
    json_uint(w, "blocks", r->pool_blocks);
    json_uint(w, "held", r->pool_held);
    json_uint(w, "held_peak", r->pool_held_peak);
    json_uint(w, "saved_peak", r->pool_saved_tokens_peak / c->config->geometry.block_size);
    json_close(w, '}');
    json_uint(w, "forks", r->forks);
    json_uint(w, "copies", r->copies);
    json_uint(w, "preemptions", r->preemptions);
    snprintf(digest, sizeof digest, "%016llx%016llx", (unsigned long long)r->digest_high,
             (unsigned long long)r->digest_low);
    json_string(w, "digest", digest);
    write_verify(w, r);
    if (table)
        write_table(w, r, table);
    json_close(w, '}');
}

static void render_workloads(struct http_exchange *x, const struct request *request,
                             const struct render_context *c)
{
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_open(w, "items", '[');
    for (uint32_t i = 0; i < request->workload.count; i++)
        write_report(w, &request->workload.report[i], NULL, c);
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

/* One output: [query_heads][head_dim] numbers, which are those of geometry.dtype. */
static void write_output(struct json_writer *w, const struct workload_output *of, const uint8_t *row,
                         const struct geometry *g)
{
    json_open(w, NULL, '{');
    json_uint(w, "sequence", of->ordinal);
    json_uint(w, "position", of->position);
    json_uint(w, "layer", of->layer);
    json_open(w, "o", '[');
    for (size_t head = 0; head < g->query_heads; head++) {
        json_open(w, NULL, '[');
        for (size_t d = 0; d < g->head_dim; d++)
            json_float(w, NULL, numeric_load(g->dtype, row, head * g->head_dim + d));
        json_close(w, ']');
    }
    json_close(w, ']');
    json_close(w, '}');
}

/* What a line, or an event (HTML, 9.2.5), begins and ends with. */
static void begin_line(struct json_writer *w, bool events, const char *event)
{
    json_raw(w, events ? "event: " : "");
    json_raw(w, events ? event : "");
    json_raw(w, events ? "\ndata: " : "");
}

static void end_line(struct json_writer *w, bool events)
{
    json_end(w, events ? "\n\n" : "\n");
}

/* The outputs that have come, then how the workload stands, unless there are more. */
static void render_workload(struct http_exchange *x, const struct request *request,
                            const struct render_context *c)
{
    const struct request_workload *of = &request->workload;
    const struct geometry *g = &c->config->geometry;
    bool events = answer_of(request)->events;
    for (uint32_t i = 0; i < of->output_count; i++) {
        begin_line(&x->reply, events, "output");
        write_output(&x->reply, &of->outputs[i], of->output_rows + i * geometry_q_row_bytes(g), g);
        end_line(&x->reply, events);
    }
    if (!of->more) {
        begin_line(&x->reply, events, has_ended(of->report) ? "report" : "progress");
        write_report(&x->reply, of->report, of->table, c);
        end_line(&x->reply, events);
    }
    if (request->kind == REQUEST_WORKLOAD_START)
        snprintf(x->extra, sizeof x->extra, "Location: /v1/workloads/%llu\r\n",
                 (unsigned long long)of->report->id);
}

static const struct api_schema schemas[] = {
    {"NewWorkload",
     "{seed?:uint sequences?:[{count?:uint(1..131072) prompt?:uint decode?:uint prefix?:{id?:uint "
     "length:uint(1..)} fork?:{at:uint(1..) count?:uint(1..1000)} priority?:int(-1000..1000)}] "
     "shape?:(azure-conv|azure-code|mooncake-conv|arxiv-summary) count?:uint(1..131072) "
     "trace?:[{arrival_s?:number(0..) prompt?:uint decode?:uint hash_ids?:[uint]}] arrival?:{rate:number "
     "cv?:number(0..100)} verify?:{rows?:uint(0..4096)} return?:(digest|outputs) prefill?:(append|attend) "
     "sharing?:(auto|on|off) deadline_s?:number length_scale?:number time_scale?:number "
     "prefix_share?:{fraction?:number(0..1) length:uint(1..)} fork_share?:{fraction?:number(0..1) "
     "at?:uint(1..) count?:uint(1..1000)} table?:uint(0..4096)}"},
    {"Percentiles", "{p50:number p90:number p99:number}"},
    {"Workload",
     "{id:uint state:(running|verifying|finished|cancelled) "
     "reason:(request|client|key|deadline|drain|failure)? "
     "owner:text? "
     "deadline_s:number expires_in_s:number? wall_s:number sharing:(auto|on|off) requests:uint "
     "sequences:{total:uint waiting:uint running:uint finished:uint} arrivals:{left:uint next_s:number?} "
     "tokens:{total:uint done:uint "
     "prompt:uint cached:uint recomputed:uint} rows:uint steps:uint step_us:Percentiles queue_ms:Percentiles "
     "first_token_ms:Percentiles per_token_ms:Percentiles bytes_read:uint gb_per_s:number "
     "roof_gb_per_s:number roof_fraction:number above_roof?:text pool:{blocks:uint held:uint "
     "held_peak:uint saved_peak:uint} "
     "forks:uint copies:uint preemptions:uint digest:text verify:{rows:uint done:uint largest_error:number? "
     "tolerance:number ok:bool?}? table?:{left_out:uint columns:{prefill_chunk:[uint] kv_prefill:[uint] "
     "n_decode:[uint] kv_decode:[uint] time_us:[number]}}}"},
    {"Workloads", "{items:[Workload]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK_TYPES(POST, "/v1/workloads", INFER, WORKLOAD_START, TRACE, TYPE_JSON | TYPE_LINES | TYPE_EVENTS,
              parse_workload, render_workload, 200,
              "Decode a list of requests: 202, or a stream of its progress",
              "seed?:uint verify?:uint(0..4096) count?:uint(1..131072) length_scale?:number "
              "time_scale?:number prefill?:(append|attend) sharing?:(auto|on|off) return?:(digest|outputs) "
              "deadline_s?:number prefix_fraction?:number(0..1) prefix_length?:uint fork_at?:uint "
              "fork_fraction?:number(0..1) fork_count?:uint table?:uint(0..4096)",
              "NewWorkload", "Workload", 202),
    ASK(GET, "/v1/workloads", READ, WORKLOADS, SMALL, api_parse_nothing, render_workloads, 200,
        "Workloads, the newest first", NULL, NULL, "Workloads", 0),
    ASK(GET, "/v1/workloads/{id}", READ, WORKLOAD, SMALL, api_parse_nothing, render_workload, 200,
        "How one stands, or its report", NULL, NULL, "Workload", 0),
    ASK(DELETE, "/v1/workloads/{id}", INFER, WORKLOAD_CANCEL, SMALL, api_parse_nothing, render_workload, 200,
        "Cancel one", NULL, NULL, "Workload", 0),
    ASK_TYPES(GET, "/v1/workloads/{id}/events", READ, WORKLOAD, SMALL, TYPE_LINES | TYPE_EVENTS, parse_events,
              render_workload, 200, "A stream of its progress", NULL, NULL, "Workload", 0),
    {0},
};

const struct api_resource api_workloads = {routes, schemas};
