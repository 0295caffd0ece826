/* SPDX-License-Identifier: Apache-2.0 */
/* api_steps.c - the latest steps: /v1/steps as a table, /v1/trace for Perfetto and other readers of Chrome's traces.
 *
 * Both show the engine's ring (scheduler/step_log.h). What the loop thread knows beside, names of keys and turns of the
 * loop, is copied when the question is read, since the answer is written by a worker:
 *
 *     thread     events of a trace
 *     loop       turn          as long as its processor time
 *     engine     form, plan, and submit or, of a device, upload
 *     backend    step          ends when it was found done; its length is by the backend's clock
 *     passes     append, attend, merge, store, of each layer: a GPU with backend.pass_stamps
 *     swaps      swap          beside the step
 *     queue      wait          asynchronous: of the request that waited longest */
#include "scheduler/step_log.h"
#include "server/access.h"
#include "server/api.h"
#include "server/keys.h"
#include "server/loop_turns.h"

#include <math.h>
#include <string.h>

enum {
    TRACE_STEPS = 100,
    OWNERS_LISTED = 32, /* further ones are counted together */
    PROCESS = 1         /* of a trace */
};

struct key_name {
    uint64_t id;
    char name[KEY_NAME_BYTES];
};

struct steps_beside {
    struct key_name *names; /* [name_count]; NULL: no owners are shown */
    uint32_t name_count;
    struct loop_turn *turns; /* [turn_count]; NULL: none */
    uint32_t turn_count;
};

/* ---- reading --------------------------------------------------------------------------------------- */

/* Copy what all keys are called. */
static bool copy_names(struct request *request, struct keys *keys, struct steps_beside *beside)
{
    unsigned at = 0, count = 0;
    const struct api_key *key;
    while (keys_next(keys, &at))
        count++;
    beside->names = request_alloc(request, count, sizeof *beside->names);
    at = 0;
    while (beside->names && beside->name_count < count && (key = keys_next(keys, &at))) {
        struct key_name *to = &beside->names[beside->name_count++];
        to->id = key->id;
        memcpy(to->name, key->name, sizeof to->name);
    }
    return beside->names;
}

static bool copy_turns(struct request *request, const struct loop_turns *turns, struct steps_beside *beside)
{
    beside->turns = request_alloc(request, LOOP_TURNS, sizeof *beside->turns);
    if (beside->turns)
        beside->turn_count = loop_turns_read(turns, beside->turns);
    return beside->turns;
}

/* Note what the loop knows beside. */
static int note_beside(struct http_exchange *x, struct request *request, bool turns)
{
    struct answer *answer = answer_of(request);
    struct steps_beside *beside = request_alloc(request, 1, sizeof *beside);
    if (beside)
        *beside = (struct steps_beside){0};
    bool names = beside && answer->daemon->keys && access_sees_all(x);
    answer->beside = beside;
    if (beside && (!names || copy_names(request, answer->daemon->keys, beside)) &&
        (!turns || copy_turns(request, &answer->daemon->turns, beside)))
        return 0;
    http_problem(x, ATTND_BUSY, "no room for the answer");
    return ATTND_BUSY;
}

static int parse_steps(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"limit", "since", NULL};
    struct arguments a;
    int64_t limit = STEP_LOG_STEPS, since = 0;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "limit", 1, STEP_LOG_STEPS, &limit);
    if (rc == 0)
        rc = arguments_integer(&a, "since", 0, ID_MAX, &since);
    if (rc == 0)
        rc = arguments_no_body(x);
    request->steps.limit = (uint32_t)limit;
    request->steps.since = (uint64_t)since;
    request->steps.latest = rc == 0 && !arguments_has(&a, "since");
    return rc == 0 ? note_beside(x, request, false) : rc;
}

static int parse_trace(struct http_exchange *x, struct request *request, const struct config *config)
{
    static const char *const names[] = {"steps", NULL};
    struct arguments a;
    int64_t steps = TRACE_STEPS;
    (void)config;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "steps", 1, STEP_LOG_STEPS, &steps);
    if (rc == 0)
        rc = arguments_no_body(x);
    request->steps.limit = (uint32_t)steps;
    request->steps.latest = request->steps.passes = true;
    return rc == 0 ? note_beside(x, request, true) : rc;
}

/* ---- the table ------------------------------------------------------------------------------------- */

static double ideal_us(const struct step_log_entry *e, const struct roof_report *roof)
{
    return roof->gb_per_s > 0 ? (double)e->kv_bytes / roof->gb_per_s * 1e-3 : (double)NAN;
}

static double gb_per_s(const struct step_log_entry *e)
{
    return e->compute_us > 0 ? (double)e->kv_bytes / (double)e->compute_us * 1e-3 : (double)NAN;
}

static double roof_fraction(const struct step_log_entry *e, const struct roof_report *roof)
{
    return e->compute_us > 0 ? ideal_us(e, roof) / (double)e->compute_us : (double)NAN;
}

static void write_us(struct json_writer *w, double us)
{
    json_rounded(w, NULL, us, 1);
}

static void write_s(struct json_writer *w, double s)
{
    json_rounded(w, NULL, s, 7);
}

static void write_count(struct json_writer *w, uint64_t n)
{
    json_uint(w, NULL, n);
}

static void write_ratio(struct json_writer *w, double ratio)
{
    json_rounded(w, NULL, ratio, 4);
}

/* XX(name, function that writes it, value) of entry `e`, in this order. */
#define COLUMNS(XX)                                                                                          \
    XX("step", count, e->step)                                                                               \
    XX("begin_s", s, e->begin_s - c->started_s)                                                              \
    XX("end_s", s, e->end_s - c->started_s)                                                                  \
    XX("rows_clients", count, e->rows_clients)                                                               \
    XX("rows_workloads", count, e->rows_workloads)                                                           \
    XX("sequences", count, e->sequences)                                                                     \
    XX("appends", count, e->appends)                                                                         \
    XX("copies", count, e->copies)                                                                           \
    XX("swaps", count, e->swaps_out + e->swaps_in)                                                           \
    XX("queue_us", us, (double)e->queue_us)                                                                  \
    XX("plan_us", us, (double)(e->form_us + e->plan_us))                                                     \
    XX("upload_us", us, (double)e->upload_us)                                                                \
    XX("compute_us", us, (double)e->compute_us)                                                              \
    XX("merge_us", us, (double)e->merge_us)                                                                  \
    XX("idle_us", us, (double)e->idle_us)                                                                    \
    XX("ideal_us", us, ideal_us(e, &c->roof))                                                                \
    XX("kv_bytes", count, e->kv_bytes)                                                                       \
    XX("gb_per_s", ratio, gb_per_s(e))                                                                       \
    XX("roof_fraction", ratio, roof_fraction(e, &c->roof))

static void write_columns(struct json_writer *w, const struct request_steps *of,
                          const struct render_context *c)
{
#define XX(name, written, value)                                                                             \
    json_open(w, name, '[');                                                                                 \
    for (uint32_t i = 0; i < of->count; i++) {                                                               \
        const struct step_log_entry *e = &of->entries[i];                                                    \
        write_##written(w, value);                                                                           \
    }                                                                                                        \
    json_close(w, ']');
    COLUMNS(XX)
#undef XX
}

/* Owners of the steps, in the order in which they appear; how many. */
static uint32_t find_owners(const struct request_steps *of, uint64_t keys[OWNERS_LISTED])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < of->count; i++) {
        for (uint32_t k = 0; k < of->entries[i].owner_count; k++) {
            uint64_t key = of->entries[i].owners[k].key;
            uint32_t at = 0;
            while (at < n && keys[at] != key)
                at++;
            if (at == n && n < OWNERS_LISTED)
                keys[n++] = key;
        }
    }
    return n;
}

/* The queries of a step that are a key's. */
static uint32_t rows_of(const struct step_log_entry *e, uint64_t key)
{
    for (uint32_t i = 0; i < e->owner_count; i++) {
        if (e->owners[i].key == key)
            return e->owners[i].rows;
    }
    return 0;
}

/* Name a key; null: it has none, or is no more. */
static void write_name(struct json_writer *w, const struct steps_beside *beside, uint64_t key)
{
    for (uint32_t i = 0; i < beside->name_count; i++) {
        if (beside->names[i].id == key) {
            json_string(w, "owner", beside->names[i].name);
            return;
        }
    }
    json_null(w, "owner");
}

/* What no owner that is listed has comes last, without a name. */
static void write_owners(struct json_writer *w, const struct request_steps *of,
                         const struct steps_beside *beside)
{
    uint64_t keys[OWNERS_LISTED];
    uint32_t n = find_owners(of, keys), others = 0;
    json_open(w, "owners", '[');
    for (uint32_t owner = 0; owner < n; owner++) {
        json_open(w, NULL, '{');
        write_name(w, beside, keys[owner]);
        json_open(w, "rows", '[');
        for (uint32_t i = 0; i < of->count; i++)
            json_uint(w, NULL, rows_of(&of->entries[i], keys[owner]));
        json_close(w, ']');
        json_close(w, '}');
    }
    for (uint32_t i = 0; i < of->count; i++)
        others += of->entries[i].rows_of_others;
    if (others || n == OWNERS_LISTED) {
        json_open(w, NULL, '{');
        json_null(w, "owner");
        json_open(w, "rows", '[');
        for (uint32_t i = 0; i < of->count; i++) {
            const struct step_log_entry *e = &of->entries[i];
            uint32_t rest = e->rows_clients + e->rows_workloads;
            for (uint32_t owner = 0; owner < n; owner++)
                rest -= rows_of(e, keys[owner]);
            json_uint(w, NULL, rest);
        }
        json_close(w, ']');
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void render_steps(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_steps *of = &request->steps;
    const struct steps_beside *beside = answer_of(request)->beside;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_uint(w, "next", of->count ? of->entries[of->count - 1].step : of->since);
    json_open(w, "columns", '{');
    write_columns(w, of, c);
    json_close(w, '}');
    if (beside->names)
        write_owners(w, of, beside);
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- the trace ------------------------------------------------------------------------------------- */

enum track { TRACK_LOOP = 1, TRACK_ENGINE, TRACK_BACKEND, TRACK_SWAPS, TRACK_QUEUE, TRACK_PASSES, TRACKS };

static void begin_event(struct json_writer *w, const char *phase, const char *name, enum track track)
{
    json_open(w, NULL, '{');
    json_string(w, "name", name);
    json_string(w, "ph", phase);
    json_uint(w, "pid", PROCESS);
    json_uint(w, "tid", track);
}

static void name_tracks(struct json_writer *w)
{
    static const char *const names[TRACKS] = {NULL,          "loop thread",   "engine thread", "backend",
                                              "block swaps", "request queue", "passes"};
    for (int track = TRACK_LOOP; track < TRACKS; track++) {
        begin_event(w, "M", "thread_name", (enum track)track);
        json_open(w, "args", '{');
        json_string(w, "name", names[track]);
        json_close(w, '}');
        json_close(w, '}');
    }
}

/* A complete event of so many microseconds, up to its args. */
static void begin_span(struct json_writer *w, const char *name, enum track track, double begin_us, double us)
{
    begin_event(w, "X", name, track);
    json_rounded(w, "ts", begin_us, 1);
    json_rounded(w, "dur", us, 1);
}

static void write_span(struct json_writer *w, const char *name, enum track track, double begin_us, double us,
                       uint64_t step)
{
    begin_span(w, name, track, begin_us, us);
    json_open(w, "args", '{');
    json_uint(w, "step", step);
    json_close(w, '}');
    json_close(w, '}');
}

/* Waits overlap, so they are asynchronous events. */
static void write_wait(struct json_writer *w, const struct step_log_entry *e, double begin_us)
{
    for (int ends = 0; ends < 2; ends++) {
        begin_event(w, ends ? "e" : "b", "wait", TRACK_QUEUE);
        json_string(w, "cat", "queue");
        json_uint(w, "id", e->step);
        json_rounded(w, "ts", ends ? begin_us : begin_us - (double)e->queue_us, 1);
        json_close(w, '}');
    }
}

static void write_step(struct json_writer *w, const struct step_log_entry *e, double begin_us, double us,
                       const struct render_context *c)
{
    begin_span(w, "step", TRACK_BACKEND, begin_us, us);
    json_open(w, "args", '{');
    json_uint(w, "step", e->step);
    json_uint(w, "rows_clients", e->rows_clients);
    json_uint(w, "rows_workloads", e->rows_workloads);
    json_uint(w, "sequences", e->sequences);
    json_uint(w, "appends", e->appends);
    json_uint(w, "copies", e->copies);
    json_uint(w, "kv_bytes", e->kv_bytes);
    json_rounded(w, "gb_per_s", gb_per_s(e), 3);
    json_rounded(w, "ideal_us", ideal_us(e, &c->roof), 1);
    json_close(w, '}');
    json_close(w, '}');
}

static void write_swap(struct json_writer *w, const struct step_log_entry *e, double begin_us, double us)
{
    begin_span(w, "swap", TRACK_SWAPS, begin_us, us);
    json_open(w, "args", '{');
    json_uint(w, "step", e->step);
    json_uint(w, "blocks_out", e->swaps_out);
    json_uint(w, "blocks_in", e->swaps_in);
    json_close(w, '}');
    json_close(w, '}');
}

/* The parts of each pass, on the backend's clock from the begin of the step on. */
static void write_passes(struct json_writer *w, const struct step_log_passes *of, double step_us)
{
    static const char *const names[] = {"append", "attend", "merge", "store"};
    for (uint32_t i = 0; i < of->count; i++) {
        const struct attention_pass_times *pass = &of->passes[i];
        const float parts[] = {pass->append_us, pass->attend_us, pass->merge_us, pass->store_us};
        double begin_us = step_us + (double)pass->begin_us;
        for (int part = 0; part < 4; part++) {
            if (parts[part] <= 0)
                continue;
            begin_span(w, names[part], TRACK_PASSES, begin_us, (double)parts[part]);
            json_open(w, "args", '{');
            json_uint(w, "step", of->step);
            json_uint(w, "layer", pass->layer);
            json_close(w, '}');
            json_close(w, '}');
            begin_us += (double)parts[part];
        }
    }
}

static void trace_step(struct json_writer *w, const struct step_log_entry *e,
                       const struct step_log_passes *passes, const struct render_context *c)
{
    double begin_us = (e->begin_s - c->started_s) * 1e6, end_us = (e->end_s - c->started_s) * 1e6,
           planned_us = begin_us + (double)e->form_us, submitted_us = planned_us + (double)e->plan_us;
    bool on_device = !isnan(e->upload_us);
    /* A device may have done the step well before it was found so: it cannot have begun before it was handed over. */
    double us = isnan(e->compute_us) ? end_us - submitted_us : (double)e->compute_us,
           computes_us = on_device ? fmax(submitted_us, end_us - us) : submitted_us;
    write_span(w, "form", TRACK_ENGINE, begin_us, (double)e->form_us, e->step);
    write_span(w, "plan", TRACK_ENGINE, planned_us, (double)e->plan_us, e->step);
    write_span(w, on_device ? "upload" : "submit", TRACK_ENGINE, submitted_us, (double)e->submit_us, e->step);
    write_step(w, e, computes_us, us, c);
    if (passes)
        write_passes(w, passes, computes_us);
    if (e->swaps_out + e->swaps_in)
        write_swap(w, e, computes_us, us);
    if (!isnan(e->queue_us))
        write_wait(w, e, begin_us);
}

/* Turns of the loop that ended behind `since_s`. */
static void trace_turns(struct json_writer *w, const struct steps_beside *beside, double since_s,
                        const struct render_context *c)
{
    for (uint32_t i = 0; i < beside->turn_count; i++) {
        const struct loop_turn *turn = &beside->turns[i];
        double us = (double)turn->processor_us;
        if (turn->end_s < since_s)
            continue;
        begin_span(w, "turn", TRACK_LOOP, (turn->end_s - c->started_s) * 1e6 - us, us);
        json_close(w, '}');
    }
}

static void render_trace(struct http_exchange *x, const struct request *request,
                         const struct render_context *c)
{
    const struct request_steps *of = &request->steps;
    struct json_writer *w = &x->reply;
    json_open(w, NULL, '{');
    json_string(w, "displayTimeUnit", "ms");
    json_open(w, "traceEvents", '[');
    name_tracks(w);
    for (uint32_t i = 0, at = 0; i < of->count; i++) { /* both in order of steps */
        bool stamped = at < of->stamped_count && of->stamped[at].step == of->entries[i].step;
        trace_step(w, &of->entries[i], stamped ? &of->stamped[at++] : NULL, c);
    }
    if (of->count)
        trace_turns(w, answer_of(request)->beside, of->entries[0].begin_s, c);
    json_close(w, ']');
    json_close(w, '}');
    json_raw(w, "\n");
}

/* ---- routes ---------------------------------------------------------------------------------------- */

static const struct api_schema schemas[] = {
    {"Steps",
     "{next:uint columns:{step:[uint] begin_s:[number] end_s:[number] rows_clients:[uint] "
     "rows_workloads:[uint] sequences:[uint] appends:[uint] copies:[uint] swaps:[uint] queue_us:[number?] "
     "plan_us:[number] upload_us:[number?] compute_us:[number?] merge_us:[number?] idle_us:[number?] "
     "ideal_us:[number?] kv_bytes:[uint] gb_per_s:[number?] roof_fraction:[number?]} "
     "owners?:[{owner:text? rows:[uint]}]}"},
    {"Trace",
     "{displayTimeUnit:text traceEvents:[{name:text ph:text pid:uint tid:uint cat?:text id?:uint ts?:number "
     "dur?:number args?:{name?:text step?:uint rows_clients?:uint rows_workloads?:uint sequences?:uint "
     "appends?:uint copies?:uint kv_bytes?:uint gb_per_s?:number? ideal_us?:number? blocks_out?:uint "
     "blocks_in?:uint}}]}"},
    {NULL, NULL},
};

static const struct route routes[] = {
    ASK(GET, "/v1/steps", READ, STEPS, SMALL, parse_steps, render_steps, 200,
        "The latest steps: what was in them, and what they took", "limit?:uint(1..1000) since?:uint", NULL,
        "Steps", 0),
    ASK(GET, "/v1/trace", ADMIN, STEPS, SMALL, parse_trace, render_trace, 200,
        "The latest steps in Chrome's trace format", "steps?:uint(1..1000)", NULL, "Trace", 0),
    {0},
};

const struct api_resource api_steps = {routes, schemas};
