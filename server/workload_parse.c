/* SPDX-License-Identifier: Apache-2.0 */
/* workload_parse.c - see workload_parse.h.
 *
 * A trace is never held as a whole: bytes go into a line, and a full line becomes a request. */
#include "server/workload_parse.h"

#include "scheduler/workload_build.h"
#include "server/arguments.h"
#include "server/http_connection.h"
#include "server/keys.h"
#include "server/media_type.h"

#include <cjson/cJSON.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LINE_BYTES_MAX = 64 * 1024,
    CHUNK_BYTES_MAX = 64 * 1024, /* more than one read of a socket brings */
    TOKENS_MAX = 1 << 24,
    HASHES_MAX = 16384, /* of one request */
    VERIFY_DEFAULT = 64
};

static const double ARRIVAL_S_MAX = 1e7, SCALE_MAX = 1e4, RATE_MAX = 1e6;

/* What is asked for beside the requests. */
struct options {
    int64_t seed, verify_rows, count, table_rows;
    double deadline_s;
    bool attend_prompt, returns_outputs;
    enum sharing sharing;
    struct workload_shaping shaping;
};

/* A trace on its way in. */
struct trace_reader {
    struct options options;
    struct workload *workload;
    struct workload_builder builder;
    bool json; /* else CSV */
    uint64_t line_number;
    int64_t requests;
    double first_s; /* arrival of the first request */
    uv_loop_t *loop;
    uv_work_t work; /* the worker reads what stands in `chunk` */
    int rc;         /* of that */
    size_t line_bytes, chunk_bytes;
    char line[LINE_BYTES_MAX], chunk[CHUNK_BYTES_MAX];
};

static int refuse(struct http_exchange *x, int status, const char *what)
{
    if (status == ATTND_NO_MEMORY)
        what = "no memory for the workload";
    http_problem(x, status, "%s", what);
    return status;
}

/* What counts where nothing is said. */
static struct options default_options(const struct config *config)
{
    return (struct options){.seed = 1,
                            .count = WORKLOAD_REQUESTS_MAX,
                            .deadline_s = config->limits.workload_s,
                            .sharing = config->sharing,
                            .shaping = {.length_scale = 1, .time_scale = 1}};
}

/* An empty workload with these options; NULL without memory. */
static struct workload *make_workload(const struct http_exchange *x, const struct options *o)
{
    struct workload *w = workload_create((uint64_t)o->seed);
    if (w) {
        w->verify_rows = (uint32_t)o->verify_rows;
        w->attend_prompt = o->attend_prompt;
        w->report.sharing = o->sharing;
        w->report.deadline_s = o->deadline_s;
        w->table_room = (uint32_t)o->table_rows;
        w->outputs_room = o->returns_outputs ? WORKLOAD_OUTPUTS_ROOM : 0;
        if (x->known && x->key)
            snprintf(w->report.owner, sizeof w->report.owner, "%s", x->key->name);
    }
    return w;
}

/* "sharing", "prefill", "return", "table" and "deadline_s", which both formats have. */
static int read_words(struct arguments *a, struct options *o)
{
    static const char *const prefills[] = {"append", "attend"}, *const returns[] = {"digest", "outputs"};
    unsigned sharing = o->sharing, prefill = 0, what = 0, n = 0;
    while (config_sharing_names[n])
        n++;
    int rc = arguments_word(a, "sharing", config_sharing_names, n, &sharing);
    if (rc == 0)
        rc = arguments_word(a, "prefill", prefills, 2, &prefill);
    if (rc == 0)
        rc = arguments_word(a, "return", returns, 2, &what);
    if (rc == 0)
        rc = arguments_integer(a, "table", 0, WORKLOAD_TABLE_MAX, &o->table_rows);
    if (rc == 0)
        rc = arguments_number(a, "deadline_s", 1e-3, o->deadline_s, &o->deadline_s);
    o->sharing = (enum sharing)sharing;
    o->attend_prompt = prefill == 1;
    o->returns_outputs = what == 1;
    return rc;
}

/* The scales, likewise. */
static int read_scales(struct arguments *a, struct workload_shaping *s)
{
    int rc = arguments_number(a, "length_scale", 1e-6, SCALE_MAX, &s->length_scale);
    return rc == 0 ? arguments_number(a, "time_scale", 0, SCALE_MAX, &s->time_scale) : rc;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static int read_arrival(struct http_exchange *x, const cJSON *object, struct workload_shaping *s)
{
    static const char *const names[] = {"rate", "cv", NULL};
    struct arguments a;
    s->cv = 1;
    int rc = arguments_of_object(&a, x, object, "/arrival", names, NULL);
    if (rc == 0)
        rc = arguments_number(&a, "rate", 1e-6, RATE_MAX, &s->rate);
    if (rc == 0)
        rc = arguments_number(&a, "cv", 0, 100, &s->cv);
    return rc == 0 && object && s->rate <= 0 ? arguments_refuse(&a, "rate", "is missing") : rc;
}

static int read_prefix_share(struct http_exchange *x, const cJSON *object, struct workload_shaping *s)
{
    static const char *const names[] = {"fraction", "length", NULL};
    struct arguments a;
    int64_t length = 0;
    int rc = arguments_of_object(&a, x, object, "/prefix_share", names, NULL);
    if (rc == 0)
        rc = arguments_number(&a, "fraction", 0, 1, &s->prefix_fraction);
    if (rc == 0)
        rc = arguments_integer(&a, "length", 1, TOKENS_MAX, &length);
    s->prefix_length = (uint32_t)length;
    return rc == 0 && object && length == 0 ? arguments_refuse(&a, "length", "is missing") : rc;
}

static int read_fork_share(struct http_exchange *x, const cJSON *object, struct workload_shaping *s)
{
    static const char *const names[] = {"fraction", "at", "count", NULL};
    struct arguments a;
    int64_t at = 0, count = 1;
    int rc = arguments_of_object(&a, x, object, "/fork_share", names, NULL);
    if (rc == 0)
        rc = arguments_number(&a, "fraction", 0, 1, &s->fork_fraction);
    if (rc == 0)
        rc = arguments_integer(&a, "at", 1, TOKENS_MAX, &at);
    if (rc == 0)
        rc = arguments_integer(&a, "count", 1, WORKLOAD_FORKS_MAX, &count);
    s->fork_at = (uint32_t)at;
    s->fork_count = (uint32_t)count;
    return rc;
}

static int read_verify(struct http_exchange *x, const cJSON *object, int64_t *rows)
{
    static const char *const names[] = {"rows", NULL};
    struct arguments a;
    *rows = object ? VERIFY_DEFAULT : 0;
    int rc = arguments_of_object(&a, x, object, "/verify", names, NULL);
    return rc == 0 ? arguments_integer(&a, "rows", 0, WORKLOAD_VERIFY_MAX, rows) : rc;
}

static int read_options(struct arguments *a, struct options *o)
{
    struct workload_shaping *s = &o->shaping;
    int rc = arguments_integer(a, "seed", 0, (INT64_C(1) << 53) - 1, &o->seed);
    if (rc == 0)
        rc = read_scales(a, s);
    if (rc == 0)
        rc = read_words(a, o);
    if (rc == 0)
        rc = read_verify(a->x, arguments_member(a, "verify"), &o->verify_rows);
    if (rc == 0)
        rc = read_arrival(a->x, arguments_member(a, "arrival"), s);
    if (rc == 0)
        rc = read_prefix_share(a->x, arguments_member(a, "prefix_share"), s);
    if (rc == 0)
        rc = read_fork_share(a->x, arguments_member(a, "fork_share"), s);
    return rc;
}

/* What the requests of an entry of "sequences" begin with. */
static int read_prefix(struct http_exchange *x, const cJSON *object, const char *where, uint32_t prompt,
                       struct workload_span *span)
{
    static const char *const names[] = {"id", "length", NULL};
    struct arguments a;
    int64_t id = 0, length = 0;
    int rc = arguments_of_object(&a, x, object, where, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "id", 0, (int64_t)CONTENT_ID_MAX, &id);
    if (rc == 0)
        rc = arguments_integer(&a, "length", 1, TOKENS_MAX, &length);
    if (rc == 0 && object && (length == 0 || length > prompt))
        rc = arguments_refuse(&a, "length", "wants 1 to all tokens of the prompt");
    *span = (struct workload_span){.end = (uint32_t)length,
                                   .content = workload_content_id(CONTENT_PREFIX, (uint64_t)id)};
    return rc;
}

/* Where they fork, and into how many. */
static int read_fork(struct http_exchange *x, const cJSON *object, const char *where,
                     struct workload_request *r)
{
    static const char *const names[] = {"at", "count", NULL};
    struct arguments a;
    int64_t at = 0, count = object ? 1 : 0;
    int rc = arguments_of_object(&a, x, object, where, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "at", 1, TOKENS_MAX, &at);
    if (rc == 0)
        rc = arguments_integer(&a, "count", 1, WORKLOAD_FORKS_MAX, &count);
    if (rc == 0 && object && (at == 0 || at >= (int64_t)r->prompt + r->decode))
        rc = arguments_refuse(&a, "at", "wants a token before the sequence's last one");
    r->fork_at = (uint32_t)at;
    r->forks = (uint32_t)count;
    return rc;
}

/* One entry of "sequences": `count` equal requests. */
static int read_sequences_entry(struct http_exchange *x, const char *where, const cJSON *entry,
                                struct workload_builder *b)
{
    static const char *const names[] = {"count", "prompt", "decode", "prefix", "fork", "priority", NULL};
    struct arguments a;
    struct workload_span span;
    struct workload_request r = {0};
    int64_t count = 1, prompt = 0, decode = 0, priority = 0;
    char inner[96], reason[WORKLOAD_REASON_BYTES];
    int rc = arguments_of_object(&a, x, entry, where, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "count", 1, WORKLOAD_REQUESTS_MAX, &count);
    if (rc == 0)
        rc = arguments_integer(&a, "prompt", 0, TOKENS_MAX, &prompt);
    if (rc == 0)
        rc = arguments_integer(&a, "decode", 0, TOKENS_MAX, &decode);
    if (rc == 0)
        rc = arguments_integer(&a, "priority", -1000, 1000, &priority);
    r.prompt = (uint32_t)prompt;
    r.decode = (uint32_t)decode;
    r.priority = (int32_t)priority;
    snprintf(inner, sizeof inner, "%s/prefix", where);
    if (rc == 0)
        rc = read_prefix(x, arguments_member(&a, "prefix"), inner, r.prompt, &span);
    snprintf(inner, sizeof inner, "%s/fork", where);
    if (rc == 0)
        rc = read_fork(x, arguments_member(&a, "fork"), inner, &r);
    if (rc != 0)
        return rc;
    bool prefixed = arguments_has(&a, "prefix");
    for (int64_t i = 0; rc == 0 && i < count; i++) {
        r.arrival_s = workload_builder_arrival(b, 0);
        rc = workload_add(b->workload, &r, &span, prefixed, reason);
    }
    return rc == 0 ? 0 : refuse(x, rc, reason);
}

/* "hash_ids" of a trace entry into `ids`; their number in *n. */
static int read_hashes(struct arguments *a, uint64_t *ids, uint32_t *n)
{
    const cJSON *list = arguments_member(a, "hash_ids"), *item;
    int64_t id;
    *n = 0;
    if (!list)
        return 0;
    cJSON_ArrayForEach (item, list) {
        if (*n == HASHES_MAX || !json_is_integer(item, 0, (int64_t)CONTENT_ID_MAX, &id))
            return arguments_refuse(a, "hash_ids", "wants a list of at most 16384 integers below 2^53");
        ids[(*n)++] = (uint64_t)id;
    }
    return cJSON_IsArray(list) ? 0 : arguments_refuse(a, "hash_ids", "wants a list");
}

/* A request of a trace, by the names that its format has. */
struct traced {
    double arrival;
    int64_t prompt, decode;
    uint64_t *ids; /* [HASHES_MAX], of which there are */
    uint32_t n;
};

static int read_traced(struct arguments *a, const char *arrival, double arrival_max, const char *prompt,
                       const char *decode, struct traced *r)
{
    int rc = arguments_number(a, arrival, 0, arrival_max, &r->arrival);
    if (rc == 0)
        rc = arguments_integer(a, prompt, 0, TOKENS_MAX, &r->prompt);
    if (rc == 0)
        rc = arguments_integer(a, decode, 0, TOKENS_MAX, &r->decode);
    return rc == 0 ? read_hashes(a, r->ids, &r->n) : rc;
}

static int read_trace_entry(struct http_exchange *x, const char *where, const cJSON *entry,
                            struct workload_builder *b)
{
    static const char *const names[] = {"arrival_s", "prompt", "decode", "hash_ids", NULL};
    struct arguments a;
    struct traced r = {.ids = malloc(HASHES_MAX * sizeof *r.ids)};
    char reason[WORKLOAD_REASON_BYTES];
    int rc = r.ids ? 0 : refuse(x, ATTND_NO_MEMORY, "");
    if (rc == 0)
        rc = arguments_of_object(&a, x, entry, where, names, NULL);
    if (rc == 0)
        rc = read_traced(&a, "arrival_s", ARRIVAL_S_MAX, "prompt", "decode", &r);
    if (rc == 0) {
        rc = workload_builder_add(b, workload_builder_arrival(b, r.arrival), (uint32_t)r.prompt,
                                  (uint32_t)r.decode, r.ids, r.n, reason);
        if (rc != 0)
            refuse(x, rc, reason);
    }
    free(r.ids);
    return rc;
}

static int read_entries(struct arguments *a, const char *name,
                        int (*read)(struct http_exchange *, const char *, const cJSON *,
                                    struct workload_builder *),
                        struct workload_builder *b)
{
    const cJSON *list = arguments_member(a, name);
    int index = 0, rc = cJSON_IsArray(list) ? 0 : arguments_refuse(a, name, "wants a list");
    for (const cJSON *entry = rc == 0 ? list->child : NULL; rc == 0 && entry; entry = entry->next) {
        char where[64];
        snprintf(where, sizeof where, "/%s/%d", name, index++);
        rc = read(a->x, where, entry, b);
    }
    return rc;
}

/* "shape" and "count": requests drawn from the tables of a real trace. */
static int read_shape(struct arguments *a, struct workload_builder *b)
{
    char text[WORKLOAD_REASON_BYTES];
    const cJSON *shape = arguments_member(a, "shape");
    const struct shape *found = cJSON_IsString(shape) ? shape_find(shape->valuestring) : NULL;
    int64_t n = 100;
    snprintf(text, sizeof text, "wants %s", shape_names);
    int rc = found ? arguments_integer(a, "count", 1, WORKLOAD_REQUESTS_MAX, &n)
                   : arguments_refuse(a, "shape", text);
    if (rc != 0)
        return rc;
    rc = workload_builder_draw(b, found, (uint32_t)n, text);
    return rc == 0 ? 0 : refuse(a->x, rc, text);
}

static int read_requests(struct arguments *a, struct workload_builder *b)
{
    static const char *const not_here[] = {"length_scale", "time_scale", "prefix_share", "fork_share"};
    bool sequences = arguments_has(a, "sequences"), shape = arguments_has(a, "shape"),
         trace = arguments_has(a, "trace");
    if (sequences + shape + trace != 1)
        return refuse(a->x, ATTND_INVALID, "exactly one of sequences, shape and trace is wanted");
    if (!shape && arguments_has(a, "count"))
        return arguments_refuse(a, "count", "belongs to a shape");
    for (size_t i = 0; sequences && i < sizeof not_here / sizeof not_here[0]; i++) {
        if (arguments_has(a, not_here[i]))
            return arguments_refuse(a, not_here[i], "belongs to a shape or trace");
    }
    return sequences ? read_entries(a, "sequences", read_sequences_entry, b)
           : trace   ? read_entries(a, "trace", read_trace_entry, b)
                     : read_shape(a, b);
}

static int parse_json(struct http_exchange *x, const struct config *config, struct workload **workload)
{
    static const char *const names[] = {
        "seed",       "sequences", "shape",      "trace",        "count",      "arrival",
        "verify",     "return",    "prefill",    "length_scale", "time_scale", "prefix_share",
        "fork_share", "sharing",   "deadline_s", "table",        NULL};
    struct arguments a;
    struct options options = default_options(config);
    struct workload_builder builder;
    int rc = arguments_of_json(&a, x, names, NULL);
    if (rc == 0)
        rc = read_options(&a, &options);
    if (rc == 0 && !(*workload = make_workload(x, &options)))
        rc = refuse(x, ATTND_NO_MEMORY, "");
    if (rc == 0) {
        workload_builder_init(&builder, *workload, &options.shaping);
        rc = read_requests(&a, &builder);
        workload_builder_deinit(&builder);
    }
    arguments_close(&a);
    return rc;
}

/* ---- traces -------------------------------------------------------------------------------------- */

static int bad_line(struct http_exchange *x, const struct trace_reader *t, int status, const char *what)
{
    http_problem(x, status, "line %llu: %s", (unsigned long long)t->line_number, what);
    return status;
}

static int add_traced(struct http_exchange *x, struct trace_reader *t, double at_s, uint32_t prompt,
                      uint32_t decode, const uint64_t *ids, uint32_t n)
{
    char reason[WORKLOAD_REASON_BYTES];
    if (t->requests++ == 0)
        t->first_s = at_s;
    double arrival_s = at_s > t->first_s ? at_s - t->first_s : 0;
    if (arrival_s > ARRIVAL_S_MAX)
        return bad_line(x, t, ATTND_INVALID, "arrives more than 10^7 s after the first");
    int rc = workload_builder_add(&t->builder, workload_builder_arrival(&t->builder, arrival_s), prompt,
                                  decode, ids, n, reason);
    if (rc == ATTND_INVALID)
        return bad_line(x, t, rc, reason);
    return rc == 0 ? 0 : refuse(x, rc, reason);
}

/* "2023-11-16 18:15:46.6805900,374,44" */
static int read_csv_line(struct http_exchange *x, struct trace_reader *t)
{
    struct tm date = {0};
    double seconds;
    unsigned prompt, decode;
    int end = 0;
    bool is_date =
        sscanf(t->line, "%4d-%2d-%2d %2d:%2d:%lf,%8u,%8u%n", &date.tm_year, &date.tm_mon, &date.tm_mday,
               &date.tm_hour, &date.tm_min, &seconds, &prompt, &decode, &end) == 8 &&
        (size_t)end == t->line_bytes;
    if (t->line_number == 1 && strncmp(t->line, "TIMESTAMP,", 10) == 0)
        return 0;
    if (!is_date || !(seconds >= 0 && seconds < 61) || prompt > TOKENS_MAX || decode > TOKENS_MAX ||
        date.tm_year < 1970 || date.tm_year > 9999 || date.tm_mon < 1 || date.tm_mon > 12 ||
        date.tm_mday < 1 || date.tm_mday > 31 || date.tm_hour < 0 || date.tm_hour > 23 || date.tm_min < 0 ||
        date.tm_min > 59)
        return bad_line(x, t, ATTND_MALFORMED, "wants YYYY-MM-DD HH:MM:SS.FFF,ContextTokens,GeneratedTokens");
    date.tm_year -= 1900;
    date.tm_mon -= 1;
    return add_traced(x, t, (double)timegm(&date) + seconds, prompt, decode, NULL, 0);
}

/* {"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [...]} */
static int read_json_line(struct http_exchange *x, struct trace_reader *t)
{
    static const char *const names[] = {"timestamp", "input_length", "output_length", "hash_ids", NULL};
    struct json_error error;
    struct arguments a;
    cJSON *tree;
    struct traced r = {.ids = malloc(HASHES_MAX * sizeof *r.ids)};
    if (!r.ids)
        return refuse(x, ATTND_NO_MEMORY, "");
    int rc = json_parse(t->line, t->line_bytes, &tree, &error);
    if (rc != 0)
        bad_line(x, t, rc, error.reason);
    snprintf(x->prefix, sizeof x->prefix, "line %llu: ", (unsigned long long)t->line_number);
    if (rc == 0)
        rc = arguments_of_object(&a, x, tree, "", names, NULL);
    if (rc == 0)
        rc = read_traced(&a, "timestamp", ARRIVAL_S_MAX * 1e3, "input_length", "output_length", &r);
    x->prefix[0] = '\0';
    if (rc == 0)
        rc = add_traced(x, t, r.arrival * 1e-3, (uint32_t)r.prompt, (uint32_t)r.decode, r.ids, r.n);
    cJSON_Delete(tree);
    free(r.ids);
    return rc;
}

/* A whole line has been collected. */
static int end_line(struct http_exchange *x, struct trace_reader *t)
{
    int rc = 0;
    t->line_number++;
    if (t->line_bytes && t->line[t->line_bytes - 1] == '\r')
        t->line_bytes--;
    t->line[t->line_bytes] = '\0';
    if (t->line_bytes && t->requests < t->options.count)
        rc = t->json ? read_json_line(x, t) : read_csv_line(x, t);
    t->line_bytes = 0;
    return rc;
}

/* Worker, which has the exchange and the reader. */
static int read_trace(struct http_exchange *x, const char *bytes, size_t n)
{
    struct trace_reader *t = x->upload;
    while (n > 0) {
        const char *mark = memchr(bytes, '\n', n);
        size_t part = mark ? (size_t)(mark - bytes) : n;
        if (part >= LINE_BYTES_MAX - t->line_bytes)
            return bad_line(x, t, ATTND_INVALID, "is longer than 65535 bytes");
        memcpy(t->line + t->line_bytes, bytes, part);
        t->line_bytes += part;
        bytes += part + (mark != NULL);
        n -= part + (mark != NULL);
        int rc = mark ? end_line(x, t) : 0;
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int read_query(struct http_exchange *x, struct options *o)
{
    static const char *const names[] = {"seed",          "verify",     "count",         "length_scale",
                                        "time_scale",    "prefill",    "sharing",       "prefix_fraction",
                                        "prefix_length", "fork_at",    "fork_fraction", "fork_count",
                                        "return",        "deadline_s", "table",         NULL};
    struct workload_shaping *s = &o->shaping;
    int64_t length = 0, at = 0, forks = 1;
    struct arguments a;
    int rc = arguments_of_query(&a, x, names, NULL);
    if (rc == 0)
        rc = arguments_integer(&a, "seed", 0, (INT64_C(1) << 53) - 1, &o->seed);
    if (rc == 0)
        rc = arguments_integer(&a, "verify", 0, WORKLOAD_VERIFY_MAX, &o->verify_rows);
    if (rc == 0)
        rc = arguments_integer(&a, "count", 1, WORKLOAD_REQUESTS_MAX, &o->count);
    if (rc == 0)
        rc = read_scales(&a, s);
    if (rc == 0)
        rc = read_words(&a, o);
    if (rc == 0)
        rc = arguments_number(&a, "prefix_fraction", 0, 1, &s->prefix_fraction);
    if (rc == 0)
        rc = arguments_integer(&a, "prefix_length", 1, TOKENS_MAX, &length);
    if (rc == 0)
        rc = arguments_number(&a, "fork_fraction", 0, 1, &s->fork_fraction);
    if (rc == 0)
        rc = arguments_integer(&a, "fork_at", 1, TOKENS_MAX, &at);
    if (rc == 0)
        rc = arguments_integer(&a, "fork_count", 1, WORKLOAD_FORKS_MAX, &forks);
    s->prefix_length = (uint32_t)length;
    s->fork_at = (uint32_t)at;
    s->fork_count = (uint32_t)forks;
    return rc;
}

static void read_chunk(uv_work_t *work)
{
    struct http_exchange *x = work->data;
    struct trace_reader *t = x->upload;
    t->rc = read_trace(x, t->chunk, t->chunk_bytes);
}

static void after_chunk(uv_work_t *work, int status)
{
    struct http_exchange *x = work->data;
    struct trace_reader *t = x->upload;
    (void)status;
    t->chunk_bytes = 0;
    x->failed = t->rc != 0;
    (void)http_let_go(x);
}

/* An http_sink: what one read of the socket has brought is read by a worker. */
static int take_bytes(struct http_exchange *x, const char *bytes, size_t n)
{
    struct trace_reader *t = x->upload;
    assert(!x->held && n <= sizeof t->chunk - t->chunk_bytes);
    if (n)
        memcpy(t->chunk + t->chunk_bytes, bytes, n);
    t->chunk_bytes += n;
    if (n || !t->chunk_bytes)
        return 0;
    t->work.data = x;
    if (uv_queue_work(t->loop, &t->work, read_chunk, after_chunk) != 0)
        return refuse(x, ATTND_NO_MEMORY, "");
    x->held = true;
    return 0;
}

bool workload_parse_begin(struct http_exchange *x, const struct config *config, uv_loop_t *loop)
{
    bool csv = media_type_is(x->head.body_type, "text/csv");
    if (!csv && !media_type_is(x->head.body_type, "application/x-ndjson"))
        return true;
    struct options options = default_options(config);
    if (read_query(x, &options) != 0)
        return false;
    struct trace_reader *t = calloc(1, sizeof *t);
    struct workload *w = make_workload(x, &options);
    if (!t || !w) {
        free(t);
        workload_destroy(w);
        refuse(x, ATTND_NO_MEMORY, "");
        return false;
    }
    t->options = options;
    t->json = !csv;
    t->workload = w;
    workload_builder_init(&t->builder, w, &options.shaping);
    x->upload = t;
    t->loop = loop;
    x->sink = take_bytes;
    x->body_max = TRACE_BYTES_MAX;
    return true;
}

void workload_parse_drop(struct http_exchange *x)
{
    struct trace_reader *t = x->upload;
    x->upload = NULL;
    if (!t)
        return;
    workload_builder_deinit(&t->builder);
    workload_destroy(t->workload);
    free(t);
}

/* The trace has been read to its end. */
static int finish_trace(struct http_exchange *x, struct workload **workload)
{
    struct trace_reader *t = x->upload;
    int rc = t->line_bytes ? end_line(x, t) : 0; /* the last line may lack its end */
    if (rc == 0) {
        *workload = t->workload;
        t->workload = NULL;
    }
    workload_parse_drop(x);
    return rc;
}

int workload_parse(struct http_exchange *x, struct request *request, const struct config *config)
{
    struct workload *w = NULL;
    char reason[WORKLOAD_REASON_BYTES];
    int rc = x->upload ? finish_trace(x, &w) : parse_json(x, config, &w);
    if (rc == 0) {
        rc = workload_close(w, &config->geometry, (uint32_t)config->pool_blocks,
                            config->limits.sequences < config->step_rows_max ? config->limits.sequences
                                                                             : config->step_rows_max,
                            config->limits.sequence_tokens, reason);
        if (rc != 0)
            refuse(x, rc, reason);
    }
    if (rc != 0) {
        workload_destroy(w);
        return rc;
    }
    request->workload.workload = w;
    return 0;
}
