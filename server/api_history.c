/* SPDX-License-Identifier: Apache-2.0 */
/* api_history.c - what has happened: /v1/events and /v1/blocks/{id}/history.
 *
 * A stream of events is one request that goes back and forth: the engine keeps it until there is something to tell,
 * here that is written, and when the client has taken it the request is asked again, from the number on at which the
 * last one ended (routes.c). */
#include "allocator/block_log.h"
#include "scheduler/history.h"
#include "server/api.h"
#include "server/media_type.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ID_DIGITS_MAX = 15 };

static const char *const event_names[] = {"block", "sequence", "step"};

/* ---- reading --------------------------------------------------------------------------------------- */

/* "types", a list like block,step, into bits. */
static int read_types(struct arguments *a, unsigned *types)
{
    struct http_text list = {"", 0}, word;
    int rc = arguments_text(a, "types", 64, &list);
    unsigned wanted = 0;
    *types = REQUEST_EVENTS_BLOCK | REQUEST_EVENTS_SEQUENCE | REQUEST_EVENTS_STEP;
    if (rc != 0 || !arguments_has(a, "types"))
        return rc;
    for (const char *end = list.bytes + list.n;; list.bytes += word.n + 1) {
        const char *comma = memchr(list.bytes, ',', (size_t)(end - list.bytes));
        word = (struct http_text){list.bytes, (size_t)((comma ? comma : end) - list.bytes)};
        unsigned i = 0;
        while (i < 3 && !http_text_is(word, event_names[i]))
            i++;
        if (i == 3)
            return arguments_refuse(a, "types", "wants some of block,sequence,step");
        wanted |= 1U << i;
        if (!comma)
            break;
    }
    *types = wanted;
    return 0;
}

/* Last-Event-ID, which a client sends that goes on; it counts more than ?since=, which stays in its URL. */
static int read_last_id(struct http_exchange *x, int64_t *since)
{
    struct http_text id = x->head.last_event_id;
    int64_t number = 0;
    bool good = id.n <= ID_DIGITS_MAX;
    for (size_t i = 0; good && i < id.n; i++) {
        good = id.bytes[i] >= '0' && id.bytes[i] <= '9';
        number = number * 10 + (id.bytes[i] - '0');
    }
    if (!good) {
        http_problem(x, ATTND_INVALID,
                     "Last-Event-ID wants the id of an event, a number of at most %d digits", ID_DIGITS_MAX);
        return ATTND_INVALID;
    }
    *since = id.n ? number : *since;
    return 0;
}

static int parse_events(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"types", "since", NULL};
    struct answer *answer = answer_of(request);
    struct arguments a;
    int64_t since = -1;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = read_types(&a, &request->events.types);
    if (rc == 0)
        rc = arguments_integer(&a, "since", 0, ID_MAX, &since);
    if (rc == 0)
        rc = read_last_id(x, &since);
    request->events.next = since < 0 ? REQUEST_EVENTS_NOW : (uint64_t)since + 1;
    request->events.begins = true;
    answer->events = !media_type_asked_for(x->head.accept, "application/x-ndjson") ||
                     media_type_asked_for(x->head.accept, "text/event-stream");
    answer->streams = true;
    return rc == 0 ? arguments_no_body(x) : rc;
}

/* ---- writing --------------------------------------------------------------------------------------- */

/* A time of the engine's clock in seconds since the start. */
static double seconds_of(const struct render_context *c, uint64_t time_us)
{
    return round((c->uptime_s - c->now_s + (double)time_us * 1e-6) * 1e6) / 1e6;
}

/* Slots as they are shown. */
static uint32_t fill_of(const struct block_change *c, const struct render_context *context)
{
    if (c->state == BLOCK_FREE)
        return 0;
    return c->refs == 0 && c->published ? context->config->geometry.block_size : c->fill;
}

static void write_id(struct json_writer *w, const char *name, uint64_t id)
{
    if (id)
        json_uint(w, name, id);
    else
        json_null(w, name);
}

static void write_block_change(struct json_writer *w, const struct block_change *c,
                               const struct render_context *context)
{
    json_uint(w, "block", c->block);
    json_uint(w, "generation", c->generation);
    json_string(w, "state", api_block_states[c->state]);
    json_uint(w, "refs", c->refs);
    json_uint(w, "fill", fill_of(c, context));
    write_id(w, "sequence", c->sequence);
    if (c->kind == CHANGE_COPIED)
        json_uint(w, "from", c->from);
    if (c->kind == CHANGE_SWAPPED_OUT || c->kind == CHANGE_SWAPPED_IN)
        json_uint(w, "host_block", c->from);
}

static void write_sequence_change(struct json_writer *w, const struct block_change *c)
{
    json_uint(w, "sequence", c->sequence);
    if (c->lease)
        json_bool(w, "lease", true);
    if (c->kind == CHANGE_FORKED)
        json_uint(w, "parent", c->parent);
    json_uint(w, "length", c->length);
    json_uint(w, "blocks", c->blocks);
    if (c->kind == CHANGE_ENDED)
        json_string(w, "reason", history_reason_name(c->reason));
}

static void write_step(struct json_writer *w, const struct block_change *c)
{
    json_uint(w, "step", c->sequence);
    json_uint(w, "rows", c->rows);
    json_uint(w, "sequences", c->sequences);
    json_double(w, "queued_us", round((double)c->queued_us * 10) / 10);
    json_double(w, "compute_us", round((double)c->compute_us * 10) / 10);
    json_uint(w, "kv_bytes", c->kv_bytes);
}

/* An event begins: of a stream of events with its id ahead, of lines with both as members. */
static void begin_event(struct json_writer *w, bool events, const char *name, uint64_t id)
{
    char head[64];
    if (!events) {
        json_open(w, NULL, '{');
        if (id)
            json_uint(w, "id", id);
        json_string(w, "event", name);
        return;
    }
    if (id) {
        snprintf(head, sizeof head, "id: %llu\n", (unsigned long long)id);
        json_raw(w, head);
    }
    snprintf(head, sizeof head, "event: %s\ndata: ", name);
    json_raw(w, head);
    json_open(w, NULL, '{');
}

static void end_event(struct json_writer *w, bool events)
{
    json_close(w, '}');
    json_end(w, events ? "\n\n" : "\n");
}

static void write_event(struct json_writer *w, bool events, const struct block_change *c,
                        const struct render_context *context)
{
    bool step = c->kind == CHANGE_STEP, block = change_is_of_block(c->kind);
    begin_event(w, events, event_names[block ? 0 : step ? 2 : 1], c->number);
    json_uint(w, "epoch", c->number - step);
    json_double(w, "time_s", seconds_of(context, c->time_us));
    if (!step)
        json_string(w, "change", change_name(c->kind));
    if (block)
        write_block_change(w, c, context);
    else if (step)
        write_step(w, c);
    else
        write_sequence_change(w, c);
    end_event(w, events);
}

static void render_events(struct http_exchange *x, const struct request *request,
                          const struct render_context *c)
{
    const struct request_events *of = &request->events;
    struct json_writer *w = &x->reply;
    bool events = answer_of(request)->events;
    if (of->missed || of->restarted) {
        begin_event(w, events, "missed", 0);
        json_uint(w, "missed", of->missed);
        json_uint(w, "next", of->resumed);
        end_event(w, events);
    } else if (of->count == 0) {
        json_raw(w, events ? ":\n\n" : "\n");
    }
    for (uint32_t i = 0; i < of->count; i++)
        write_event(w, events, &of->changes[i], c);
}

/* ---- the life of a block --------------------------------------------------------------------------- */

static void render_life(struct http_exchange *x, const struct request *request,
                        const struct render_context *c)
{
    const struct request_life *life = &request->life;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", life->epoch);
    json_uint(w, "block", request->id);
    json_uint(w, "generation", life->generation);
    json_string(w, "state", api_block_states[life->state]);
    json_open(w, "changes", '[');
    for (uint32_t i = 0; i < life->count; i++) {
        const struct block_change *change = &life->changes[i];
        json_open(w, NULL, '{');
        json_uint(w, "epoch", change->number);
        json_double(w, "time_s", seconds_of(c, change->time_us));
        json_string(w, "change", change_name(change->kind));
        json_uint(w, "refs", change->refs);
        json_uint(w, "fill", change->fill);
        write_id(w, "sequence", change->sequence);
        json_uint(w, "generation", change->generation);
        json_close(w, '}');
    }
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

#define BLOCK_CHANGES                                                                                        \
    "(taken|shared|unshared|copied|published|unpublished|fenced|cached|freed|evicted|swapped_out|swapped_"   \
    "in)"

static const struct api_schema schemas[] = {
    {"BlockEvent",
     "{id?:uint event?:(block) epoch:uint time_s:number change:" BLOCK_CHANGES
     " block:uint generation:uint state:(free|held|cached|fenced) refs:uint fill:uint sequence:id? "
     "from?:uint host_block?:uint}"},
    {"SequenceEvent",
     "{id?:uint event?:(sequence) epoch:uint time_s:number change:(created|forked|truncated|ended) "
     "sequence:id lease?:bool parent?:id length:uint blocks:uint "
     "reason?:(request|idle|moved|key|undone|workload|cancelled|preempted)}"},
    {"StepEvent", "{id?:uint event?:(step) epoch:uint time_s:number step:uint rows:uint sequences:uint "
                  "queued_us:number compute_us:number kv_bytes:uint}"},
    {"MissedEvent", "{event?:(missed) missed:uint next:uint}"},
    {"BlockHistory",
     "{epoch:uint block:uint generation:uint state:(free|held|cached|fenced) changes:[{epoch:uint "
     "time_s:number change:" BLOCK_CHANGES " refs:uint fill:uint sequence:id? generation:uint}]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK_TYPES(GET, "/v1/events", READ, EVENTS, SMALL, TYPE_EVENTS | TYPE_LINES, parse_events, render_events,
              200, "A stream of what happens to blocks and sequences, and of steps",
              "types?:text(..64) since?:uint", NULL, "BlockEvent|SequenceEvent|StepEvent|MissedEvent", 0),
    ASK(GET, "/v1/blocks/{id}/history", READ, BLOCK_LIFE, SMALL, api_parse_nothing, render_life, 200,
        "The latest changes of a block", NULL, NULL, "BlockHistory", 0),
    {0},
};

const struct api_resource api_history = {routes, schemas};
