/* workload_parse.c - see workload_parse.h.
 *
 * A trace is never held as a whole: bytes go into a line, and a full line becomes a request. */
#include "server/workload_parse.h"

#include "scheduler/workload_build.h"
#include "server/body.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LINE_BYTES_MAX = 64 * 1024,
    TOKENS_MAX = 1 << 24,
    HASHES_MAX = 16384, /* of one request */
    VERIFY_DEFAULT = 64
};

static const double ARRIVAL_S_MAX = 1e7, SCALE_MAX = 1e4, RATE_MAX = 1e6;

/* What is asked for beside the requests. */
struct options {
    int64_t seed, verify_rows, count;
    bool attend_prompt;
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
    size_t line_bytes;
    char line[LINE_BYTES_MAX];
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
                            .sharing = config->sharing,
                            .shaping = {.length_scale = 1, .time_scale = 1}};
}

/* An empty workload with these options; NULL without memory. */
static struct workload *make_workload(const struct options *o)
{
    struct workload *w = workload_create((uint64_t)o->seed);
    if (w) {
        w->verify_rows = (uint32_t)o->verify_rows;
        w->attend_prompt = o->attend_prompt;
        w->report.sharing = o->sharing;
    }
    return w;
}

/* The value of enum sharing that a text names; false if there is none. */
static bool read_sharing(struct http_text text, enum sharing *sharing)
{
    int i = 0;
    while (config_sharing_names[i] && !http_text_is(text, config_sharing_names[i]))
        i++;
    if (!config_sharing_names[i])
        return false;
    *sharing = (enum sharing)i;
    return true;
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

static int read_options(struct http_exchange *x, const cJSON *tree, struct options *o)
{
    static const char *const verify[] = {"rows", NULL}, *const arrival[] = {"rate", "cv", NULL},
                             *const prefix[] = {"fraction", "length", NULL},
                             *const fork[] = {"fraction", "at", "count", NULL};
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, "verify"),
                *a = cJSON_GetObjectItemCaseSensitive(tree, "arrival"),
                *p = cJSON_GetObjectItemCaseSensitive(tree, "prefix_share"),
                *f = cJSON_GetObjectItemCaseSensitive(tree, "fork_share"),
                *prefill = cJSON_GetObjectItemCaseSensitive(tree, "prefill"),
                *sharing = cJSON_GetObjectItemCaseSensitive(tree, "sharing"),
                *returns = cJSON_GetObjectItemCaseSensitive(tree, "return");
    struct workload_shaping *s = &o->shaping;
    int64_t prefix_length = 0, fork_at = 0, fork_count = 1;
    o->verify_rows = v ? VERIFY_DEFAULT : 0;
    s->cv = 1;
    if (member_check(x, "/verify", v, verify) || member_check(x, "/arrival", a, arrival) ||
        member_check(x, "/prefix_share", p, prefix) || member_check(x, "/fork_share", f, fork) ||
        member_integer(x, "", tree, "seed", 0, (INT64_C(1) << 53) - 1, &o->seed) ||
        member_integer(x, "/verify", v, "rows", 0, WORKLOAD_VERIFY_MAX, &o->verify_rows) ||
        member_number(x, "/arrival", a, "rate", 1e-6, RATE_MAX, &s->rate) ||
        member_number(x, "/arrival", a, "cv", 0, 100, &s->cv) ||
        member_number(x, "", tree, "length_scale", 1e-6, SCALE_MAX, &s->length_scale) ||
        member_number(x, "", tree, "time_scale", 0, SCALE_MAX, &s->time_scale) ||
        member_number(x, "/prefix_share", p, "fraction", 0, 1, &s->prefix_fraction) ||
        member_integer(x, "/prefix_share", p, "length", 1, TOKENS_MAX, &prefix_length) ||
        member_number(x, "/fork_share", f, "fraction", 0, 1, &s->fork_fraction) ||
        member_integer(x, "/fork_share", f, "at", 1, TOKENS_MAX, &fork_at) ||
        member_integer(x, "/fork_share", f, "count", 1, WORKLOAD_FORKS_MAX, &fork_count))
        return ATTND_INVALID;
    if (a && s->rate <= 0)
        return member_wrong(x, "/arrival", "rate", "is missing");
    if (p && prefix_length == 0)
        return member_wrong(x, "/prefix_share", "length", "is missing");
    if (prefill && (!cJSON_IsString(prefill) || (strcmp(prefill->valuestring, "append") != 0 &&
                                                 strcmp(prefill->valuestring, "attend") != 0)))
        return member_wrong(x, "", "prefill", "wants \"append\" or \"attend\"");
    const char *word = cJSON_IsString(sharing) ? sharing->valuestring : "";
    if (sharing && !read_sharing((struct http_text){word, strlen(word)}, &o->sharing))
        return member_wrong(x, "", "sharing", "wants \"auto\", \"on\" or \"off\"");
    if (returns && (!cJSON_IsString(returns) || strcmp(returns->valuestring, "digest") != 0))
        return member_wrong(x, "", "return", "wants \"digest\"; \"outputs\" is not built yet");
    s->prefix_length = (uint32_t)prefix_length;
    s->fork_at = (uint32_t)fork_at;
    s->fork_count = (uint32_t)fork_count;
    o->attend_prompt = prefill && strcmp(prefill->valuestring, "attend") == 0;
    return 0;
}

/* One entry of "sequences": `count` equal requests. */
static int read_sequences_entry(struct http_exchange *x, const char *where, const cJSON *entry,
                                struct workload_builder *b)
{
    static const char *const names[] = {"count", "prompt", "decode", "prefix", "fork", "priority", NULL},
                             *const prefix[] = {"id", "length", NULL}, *const fork[] = {"at", "count", NULL};
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(entry, "prefix"),
                *f = cJSON_GetObjectItemCaseSensitive(entry, "fork");
    int64_t count = 1, prompt = 0, decode = 0, id = 0, length = 0, at = 0, forks = 0, priority = 0;
    char inner[96], reason[WORKLOAD_REASON_BYTES];
    snprintf(inner, sizeof inner, "%s/prefix", where);
    if (member_check(x, where, entry, names) || member_check(x, inner, p, prefix) ||
        member_integer(x, inner, p, "id", 0, (int64_t)CONTENT_ID_MAX, &id) ||
        member_integer(x, inner, p, "length", 1, TOKENS_MAX, &length) ||
        member_integer(x, where, entry, "count", 1, WORKLOAD_REQUESTS_MAX, &count) ||
        member_integer(x, where, entry, "prompt", 0, TOKENS_MAX, &prompt) ||
        member_integer(x, where, entry, "decode", 0, TOKENS_MAX, &decode) ||
        member_integer(x, where, entry, "priority", -1000, 1000, &priority))
        return ATTND_INVALID;
    if (p && (length == 0 || length > prompt))
        return member_wrong(x, inner, "length", "wants 1 to all tokens of the prompt");
    snprintf(inner, sizeof inner, "%s/fork", where);
    if (member_check(x, inner, f, fork) || member_integer(x, inner, f, "at", 1, TOKENS_MAX, &at) ||
        member_integer(x, inner, f, "count", 1, WORKLOAD_FORKS_MAX, &forks))
        return ATTND_INVALID;
    if (f && (at == 0 || at >= prompt + decode))
        return member_wrong(x, inner, "at", "wants a token before the sequence's last one");
    if (f && forks == 0)
        forks = 1;
    const struct workload_span span = {.end = (uint32_t)length,
                                       .content = workload_content_id(CONTENT_PREFIX, (uint64_t)id)};
    for (int64_t i = 0; i < count; i++) {
        const struct workload_request r = {.arrival_s = workload_builder_arrival(b, 0),
                                           .prompt = (uint32_t)prompt,
                                           .decode = (uint32_t)decode,
                                           .fork_at = (uint32_t)at,
                                           .forks = (uint32_t)forks,
                                           .priority = (int32_t)priority};
        int rc = workload_add(b->workload, &r, &span, p != NULL, reason);
        if (rc != 0)
            return refuse(x, rc, reason);
    }
    return 0;
}

/* "hash_ids" of a trace entry into `ids`; their number in *n. */
static int read_hashes(struct http_exchange *x, const char *where, const cJSON *entry, uint64_t *ids,
                       uint32_t *n)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(entry, "hash_ids"), *item;
    int64_t id;
    *n = 0;
    if (!list)
        return 0;
    cJSON_ArrayForEach (item, list) {
        if (*n == HASHES_MAX || !json_is_integer(item, 0, (int64_t)CONTENT_ID_MAX, &id))
            return member_wrong(x, where, "hash_ids", "wants a list of at most 16384 integers below 2^53");
        ids[(*n)++] = (uint64_t)id;
    }
    return cJSON_IsArray(list) ? 0 : member_wrong(x, where, "hash_ids", "wants a list");
}

static int read_trace_entry(struct http_exchange *x, const char *where, const cJSON *entry,
                            struct workload_builder *b)
{
    static const char *const names[] = {"arrival_s", "prompt", "decode", "hash_ids", NULL};
    int64_t prompt = 0, decode = 0;
    double arrival_s = 0;
    uint32_t n;
    char reason[WORKLOAD_REASON_BYTES];
    uint64_t *ids = malloc(HASHES_MAX * sizeof *ids);
    int rc = ids ? 0 : refuse(x, ATTND_NO_MEMORY, "");
    if (rc == 0 && (member_check(x, where, entry, names) ||
                    member_number(x, where, entry, "arrival_s", 0, ARRIVAL_S_MAX, &arrival_s) ||
                    member_integer(x, where, entry, "prompt", 0, TOKENS_MAX, &prompt) ||
                    member_integer(x, where, entry, "decode", 0, TOKENS_MAX, &decode) ||
                    read_hashes(x, where, entry, ids, &n)))
        rc = ATTND_INVALID;
    if (rc == 0) {
        rc = workload_builder_add(b, workload_builder_arrival(b, arrival_s), (uint32_t)prompt,
                                  (uint32_t)decode, ids, n, reason);
        if (rc != 0)
            refuse(x, rc, reason);
    }
    free(ids);
    return rc;
}

static int read_entries(struct http_exchange *x, const cJSON *list, const char *name,
                        int (*read)(struct http_exchange *, const char *, const cJSON *,
                                    struct workload_builder *),
                        struct workload_builder *b)
{
    const cJSON *entry;
    int index = 0, rc = cJSON_IsArray(list) ? 0 : member_wrong(x, "", name, "wants a list");
    for (entry = rc == 0 ? list->child : NULL; rc == 0 && entry; entry = entry->next) {
        char where[64];
        snprintf(where, sizeof where, "/%s/%d", name, index++);
        rc = read(x, where, entry, b);
    }
    return rc;
}

static int read_requests(struct http_exchange *x, const cJSON *tree, struct workload_builder *b)
{
    const cJSON *sequences = cJSON_GetObjectItemCaseSensitive(tree, "sequences"),
                *shape = cJSON_GetObjectItemCaseSensitive(tree, "shape"),
                *trace = cJSON_GetObjectItemCaseSensitive(tree, "trace"),
                *count = cJSON_GetObjectItemCaseSensitive(tree, "count");
    char text[WORKLOAD_REASON_BYTES];
    if (!!sequences + !!shape + !!trace != 1)
        return refuse(x, ATTND_INVALID, "exactly one of sequences, shape and trace is wanted");
    if (!shape && count)
        return member_wrong(x, "", "count", "belongs to a shape");
    if (sequences) {
        static const char *const not_here[] = {"length_scale", "time_scale", "prefix_share", "fork_share"};
        for (size_t i = 0; i < sizeof not_here / sizeof not_here[0]; i++) {
            if (cJSON_GetObjectItemCaseSensitive(tree, not_here[i]))
                return member_wrong(x, "", not_here[i], "belongs to a shape or trace");
        }
        return read_entries(x, sequences, "sequences", read_sequences_entry, b);
    }
    if (trace)
        return read_entries(x, trace, "trace", read_trace_entry, b);
    const struct shape *found = cJSON_IsString(shape) ? shape_find(shape->valuestring) : NULL;
    int64_t n = 100;
    if (!found) {
        snprintf(text, sizeof text, "wants %s", shape_names);
        return member_wrong(x, "", "shape", text);
    }
    if (member_integer(x, "", tree, "count", 1, WORKLOAD_REQUESTS_MAX, &n))
        return ATTND_INVALID;
    int rc = workload_builder_draw(b, found, (uint32_t)n, text);
    return rc == 0 ? 0 : refuse(x, rc, text);
}

static int parse_json(struct http_exchange *x, const struct config *config, struct workload **workload)
{
    static const char *const names[] = {"seed",       "sequences",    "shape",      "trace",   "count",
                                        "arrival",    "verify",       "return",     "prefill", "length_scale",
                                        "time_scale", "prefix_share", "fork_share", "sharing", NULL};
    cJSON *tree;
    struct options options = default_options(config);
    struct workload_builder builder;
    int rc = body_open(x, names, &tree);
    if (rc == 0)
        rc = read_options(x, tree, &options);
    if (rc == 0 && !(*workload = make_workload(&options)))
        rc = refuse(x, ATTND_NO_MEMORY, "");
    if (rc == 0) {
        workload_builder_init(&builder, *workload, &options.shaping);
        rc = read_requests(x, tree, &builder);
        workload_builder_deinit(&builder);
    }
    cJSON_Delete(tree);
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
    cJSON *tree;
    char where[64];
    double timestamp = 0;
    int64_t prompt = 0, decode = 0;
    uint64_t *ids = malloc(HASHES_MAX * sizeof *ids);
    uint32_t n;
    if (!ids)
        return refuse(x, ATTND_NO_MEMORY, "");
    int rc = json_parse(t->line, t->line_bytes, &tree, &error);
    if (rc != 0)
        bad_line(x, t, rc, error.reason);
    snprintf(where, sizeof where, "line %llu: ", (unsigned long long)t->line_number);
    if (rc == 0 && (member_check(x, where, tree, names) ||
                    member_number(x, where, tree, "timestamp", 0, ARRIVAL_S_MAX * 1e3, &timestamp) ||
                    member_integer(x, where, tree, "input_length", 0, TOKENS_MAX, &prompt) ||
                    member_integer(x, where, tree, "output_length", 0, TOKENS_MAX, &decode) ||
                    read_hashes(x, where, tree, ids, &n)))
        rc = ATTND_INVALID;
    if (rc == 0)
        rc = add_traced(x, t, timestamp * 1e-3, (uint32_t)prompt, (uint32_t)decode, ids, n);
    cJSON_Delete(tree);
    free(ids);
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

/* An http_sink. */
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

/* The number behind "name=" in one parameter; false when it is another one or no number in the range. */
static bool read_parameter(struct http_text text, const char *name, bool whole, double min, double max,
                           double *value)
{
    char digits[32], *end;
    size_t n = strlen(name);
    if (text.n <= n + 1 || text.n - n - 1 >= sizeof digits || memcmp(text.bytes, name, n) != 0 ||
        text.bytes[n] != '=')
        return false;
    memcpy(digits, text.bytes + n + 1, text.n - n - 1);
    digits[text.n - n - 1] = '\0';
    if (strspn(digits, "0123456789.e-+") != text.n - n - 1)
        return false;
    *value = strtod(digits, &end);
    return *end == '\0' && *value >= min && *value <= max && (!whole || *value == floor(*value));
}

static int read_query(struct http_exchange *x, struct options *o)
{
    struct workload_shaping *s = &o->shaping;
    double seed = 1, verify = 0, count = WORKLOAD_REQUESTS_MAX, length = 0, at = 0, forks = 1;
    const struct {
        const char *name;
        bool whole;
        double min, max, *value;
    } known[] = {{"seed", true, 0, 0x1p53 - 1, &seed},
                 {"verify", true, 0, WORKLOAD_VERIFY_MAX, &verify},
                 {"count", true, 1, WORKLOAD_REQUESTS_MAX, &count},
                 {"length_scale", false, 1e-6, SCALE_MAX, &s->length_scale},
                 {"time_scale", false, 0, SCALE_MAX, &s->time_scale},
                 {"prefix_fraction", false, 0, 1, &s->prefix_fraction},
                 {"prefix_length", true, 1, TOKENS_MAX, &length},
                 {"fork_fraction", false, 0, 1, &s->fork_fraction},
                 {"fork_at", true, 1, TOKENS_MAX, &at},
                 {"fork_count", true, 1, WORKLOAD_FORKS_MAX, &forks}};
    struct http_text text;
    for (size_t place = 0; query_next(x->head.query, &place, &text);) {
        size_t i = 0;
        while (
            i < sizeof known / sizeof known[0] &&
            !read_parameter(text, known[i].name, known[i].whole, known[i].min, known[i].max, known[i].value))
            i++;
        if (i < sizeof known / sizeof known[0])
            continue;
        struct http_text value;
        if (http_text_is(text, "prefill=attend"))
            o->attend_prompt = true;
        else if (!http_text_is(text, "prefill=append") &&
                 !(query_is(text, "sharing", &value) && read_sharing(value, &o->sharing)))
            return query_refuse(
                x, text,
                "wants seed, verify, count, prefix_length, fork_at or fork_count with an "
                "integer, length_scale, time_scale, prefix_fraction or fork_fraction with a number, "
                "prefill=attend, or sharing=auto, on or off");
    }
    o->seed = (int64_t)seed;
    o->verify_rows = (int64_t)verify;
    o->count = (int64_t)count;
    s->prefix_length = (uint32_t)length;
    s->fork_at = (uint32_t)at;
    s->fork_count = (uint32_t)forks;
    return 0;
}

bool workload_parse_begin(struct http_exchange *x, const struct config *config)
{
    bool csv = body_is_type(x->head.body_type, "text/csv");
    if (!csv && !body_is_type(x->head.body_type, "application/x-ndjson"))
        return true;
    struct options options = default_options(config);
    if (read_query(x, &options) != 0)
        return false;
    struct trace_reader *t = calloc(1, sizeof *t);
    struct workload *w = make_workload(&options);
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
    x->sink = read_trace;
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
