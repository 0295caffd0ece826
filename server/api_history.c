/* SPDX-License-Identifier: Apache-2.0 */
/* api_history.c - what happens, and why it does not: /v1/events, /v1/blocks/{id}/history, /v1/waiting, /v1/prefixes.
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

/* A time of the engine's clock, in seconds since the start. */
static void write_time(struct json_writer *w, const struct render_context *c, uint64_t time_us)
{
    json_rounded(w, "time_s", c->uptime_s - c->now_s + (double)time_us * 1e-6, 6);
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
    if (c->kind >= CHANGE_SWAPPED_OUT && c->kind <= CHANGE_UNPARKED)
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
    json_rounded(w, "queued_us", (double)c->queued_us, 1);
    json_rounded(w, "compute_us", (double)c->compute_us, 1);
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
    write_time(w, context, c->time_us);
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

/* ---- the prefix cache ------------------------------------------------------------------------------ */

static void write_chain(struct json_writer *w, const struct chain_view *v, const uint32_t *ids,
                        const struct render_context *c)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)v->chain.hash);
    json_open(w, NULL, '{');
    json_string(w, "chain", hash);
    json_bool(w, "salted", v->chain.salted);
    json_uint(w, "tokens", (uint64_t)v->chain.blocks * c->config->geometry.block_size);
    api_write_ids(w, "blocks", ids, v->listed);
    json_uint(w, "block_count", v->chain.blocks);
    json_uint(w, "cached", v->chain.cached);
    json_uint(w, "held", v->chain.held);
    json_uint(w, "hits", v->chain.hits);
    json_rounded(w, "last_used_s", v->idle_s, 3);
    if (v->chain.rank == NO_BLOCK)
        json_null(w, "evicted_next");
    else
        json_uint(w, "evicted_next", (uint64_t)v->chain.rank + 1);
    json_close(w, '}');
}

static void render_prefixes(struct http_exchange *x, const struct request *request,
                            const struct render_context *c)
{
    const struct request_prefixes *of = &request->prefixes;
    const uint32_t *ids = of->block_ids;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", of->epoch);
    json_open(w, "items", '[');
    for (uint32_t i = 0; i < of->count; i++) {
        write_chain(w, &of->chains[i], ids, c);
        ids += of->chains[i].listed;
    }
    json_close(w, ']');
    api_write_next(w, request->page.next);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- what waits ------------------------------------------------------------------------------------ */

static const char *const wait_reasons[] = {
#define XX(constant, name) name,
    WAIT_MAP(XX)
#undef XX
};

/* What it waits behind, in words; empty: nothing. */
static void describe_behind(const struct wait_note *note, char *text, size_t bytes)
{
    text[0] = '\0';
    if (note->behind != BEHIND_NOTHING && !note->behind_id)
        snprintf(text, bytes, "%sbehind what belongs to another key",
                 note->reason == WAIT_FOR_BLOCKS ? "; " : "");
    else if (note->behind != BEHIND_NOTHING)
        snprintf(text, bytes, "%sbehind %s %llu", note->reason == WAIT_FOR_BLOCKS ? "; " : "",
                 note->behind == BEHIND_WORKLOAD   ? "workload"
                 : note->reason == WAIT_FOR_BLOCKS ? "a call that needs blocks on sequence"
                                                   : "another call on sequence",
                 (unsigned long long)note->behind_id);
}

/* Which limit leaves no room for more sequences. */
static void describe_limit(const struct wait_note *note, char *text, size_t bytes)
{
    static const char *const limits[] = {
#define XX(constant, name) name,
        WAIT_LIMIT_MAP(XX)
#undef XX
    };
    if (note->limit == LIMIT_STEP)
        snprintf(text, bytes, "waits for sequences that end with a step in flight");
    else if (note->limit == LIMIT_IDS)
        snprintf(text, bytes, "waits for ids of sequences: others end first");
    else
        snprintf(text, bytes, "%s is %llu: %llu taken, %llu needed", limits[note->limit],
                 (unsigned long long)note->most, (unsigned long long)note->used,
                 (unsigned long long)note->needed);
}

static void write_detail(struct json_writer *w, const struct wait_view *v)
{
    static const char *const details[] = {"its turn has not come",
                                          "",
                                          "waits for a step in flight, or for room in one",
                                          "",
                                          "its sequence is being swapped in",
                                          "not due yet",
                                          ""};
    char behind[96], text[224];
    const struct wait_note *note = &v->note;
    describe_behind(note, behind, sizeof behind);
    if (note->reason == WAIT_FOR_BLOCKS && !v->kind)
        snprintf(text, sizeof text, "with all that run it needs %llu blocks up to their end; %llu can be had",
                 (unsigned long long)note->needed, (unsigned long long)note->free);
    else if (note->reason == WAIT_FOR_BLOCKS)
        snprintf(text, sizeof text, "needs %llu blocks; %llu free, %llu can be reclaimed%s",
                 (unsigned long long)note->needed, (unsigned long long)note->free,
                 (unsigned long long)note->reclaimable, behind);
    else if (note->reason == WAIT_FOR_SLOTS)
        describe_limit(note, text, sizeof text);
    else if (note->reason == WAIT_FOR_SEQUENCE && note->behind == BEHIND_NOTHING)
        snprintf(text, sizeof text, "another sequence is appending the same beginning, which it will share");
    else
        snprintf(text, sizeof text, "%s", behind[0] ? behind : details[note->reason]);
    json_string(w, "detail", text);
}

static void write_wait(struct json_writer *w, const struct wait_view *v)
{
    char kind[24];
    const struct wait_note *note = &v->note;
    bool blocks = note->reason == WAIT_FOR_BLOCKS;
    snprintf(kind, sizeof kind, "%s", v->kind ? v->kind : "workload");
    for (char *c = kind; *c; c++)
        *c = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
    json_open(w, NULL, '{');
    json_string(w, "kind", kind);
    if (v->name[0])
        json_string(w, "request", v->name);
    else
        json_null(w, "request");
    json_open(w, "sequences", '[');
    for (uint32_t i = 0; i < v->id_count; i++)
        json_uint(w, NULL, v->ids[i]);
    json_close(w, ']');
    json_uint(w, "sequence_count", v->sequences);
    write_id(w, "workload", v->workload);
    if (v->owner[0])
        json_string(w, "owner", v->owner);
    else
        json_null(w, "owner");
    json_rounded(w, "since_s", fmax(v->since_s, 0), 3);
    json_string(w, "reason", wait_reasons[note->reason]);
    static const char *const figures[] = {"needed", "free", "reclaimable"};
    const uint64_t values[] = {note->needed, note->free, note->reclaimable};
    for (int i = 0; i < 3; i++) {
        if (blocks)
            json_uint(w, figures[i], values[i]);
        else
            json_null(w, figures[i]);
    }
    if (note->behind == BEHIND_NOTHING) {
        json_null(w, "behind");
    } else {
        json_open(w, "behind", '{');
        json_string(w, "kind", note->behind == BEHIND_WORKLOAD ? "workload" : "sequence");
        write_id(w, "id", note->behind_id);
        json_close(w, '}');
    }
    if (isnan(v->estimate_s))
        json_null(w, "estimate_s");
    else
        json_rounded(w, "estimate_s", v->estimate_s, 6);
    write_detail(w, v);
    json_close(w, '}');
}

static void render_waiting(struct http_exchange *x, const struct request *request,
                           const struct render_context *c)
{
    const struct request_waiting *of = &request->waiting;
    struct json_writer *w = &x->reply;
    (void)c;
    json_open(w, NULL, '{');
    json_uint(w, "epoch", of->epoch);
    json_uint(w, "count", of->count);
    json_uint(w, "others", of->others);
    json_open(w, "items", '[');
    for (uint32_t i = 0; i < of->count; i++)
        write_wait(w, &of->views[i]);
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
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
        write_time(w, c, change->time_us);
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
    "in|parked|unparked)"

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
    {"Prefixes", "{epoch:uint items:[{chain:text(16..16) salted:bool tokens:uint blocks:[uint] "
                 "block_count:uint cached:uint "
                 "held:uint hits:uint last_used_s:number evicted_next:uint?}] next:uint?}"},
    {"Wait",
     "{kind:text request:text? sequences:[id] sequence_count:uint workload:uint? owner:text? since_s:number "
     "reason:(turn|blocks|step|sequence|swap|arrival|slots) needed:uint? free:uint? reclaimable:uint? "
     "behind:{kind:(sequence|workload) id:uint?}? estimate_s:number? detail:text}"},
    {"Waiting", "{epoch:uint count:uint others:uint items:[Wait]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK_TYPES(GET, "/v1/events", READ, EVENTS, SMALL, TYPE_EVENTS | TYPE_LINES, parse_events, render_events,
              200, "A stream of what happens to blocks and sequences, and of steps",
              "types?:text(..64) since?:uint", NULL, "BlockEvent|SequenceEvent|StepEvent|MissedEvent", 0),
    ASK(GET, "/v1/blocks/{id}/history", READ, BLOCK_LIFE, SMALL, api_parse_nothing, render_life, 200,
        "The latest changes of a block", NULL, NULL, "BlockHistory", 0),
    ASK(GET, "/v1/prefixes", READ, PREFIXES, SMALL, api_parse_page, render_prefixes, 200,
        "What new sequences may share: the chains of the prefix cache",
        "limit?:uint(1..1000) cursor?:uint(0..4294967295)", NULL, "Prefixes", 0),
    ASK(GET, "/v1/waiting", READ, WAITING, SMALL, api_parse_nothing, render_waiting, 200,
        "What waits, and why: as the scheduler has decided", NULL, NULL, "Waiting", 0),
    {0},
};

const struct api_resource api_history = {routes, schemas};
