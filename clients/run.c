/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - run a workload: from a file, drawn like a trace, or of a trace; show how far it is, and its report.
 *
 * The answer is a stream of reports. Whoever closes it cancels the workload, so Ctrl-C does; what was computed until then is
 * shown as it was last told; so is that of a daemon that goes away. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/report.h"
#include "clients/terminal.h"
#include "clients/waiting.h"
#include "config/clock.h"
#include "config/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double PLAIN_PROGRESS_S = 10; /* between two lines when there is no terminal */

enum { LINE_BYTES = 256 };

/* Of --prefix-share and --fork-share. */
struct shares {
    double prefix_fraction, fork_fraction;
    unsigned long prefix_length, fork_count, fork_at;
    bool has_fork_at;
};

/* ---- progress ------------------------------------------------------------------------------------ */

struct progress {
    bool json, terminal;
    double shown_s;
    cJSON *last; /* the latest report */
    struct waiting_watch waiting;
};

static void on_report(const char *line, size_t bytes, void *cookie)
{
    struct progress *p = cookie;
    char text[LINE_BYTES];
    cJSON *report = cJSON_ParseWithLength(line, bytes);
    if (!report)
        return;
    cJSON_Delete(p->last);
    p->last = report;
    double now = clock_s();
    if (waiting_look(&p->waiting, report))
        return;
    if (p->json || (!p->terminal && now - p->shown_s < PLAIN_PROGRESS_S))
        return;
    report_line(report, text, sizeof text);
    if (p->terminal)
        fprintf(stderr, "\r\033[K%.*s", terminal_columns(stderr) - 1, text);
    else
        fprintf(stderr, "%s\n", text);
    fflush(stderr);
    p->shown_s = now;
}

/* ---- what is asked for --------------------------------------------------------------------------- */

static bool read_shares(const struct command *c, struct shares *s)
{
    const char *prefix = command_option(c, "prefix-share"), *fork = command_option(c, "fork-share");
    int end = 0, all = -1;
    if (prefix &&
        (sscanf(prefix, "%lf:%lu%n", &s->prefix_fraction, &s->prefix_length, &end) != 2 || prefix[end])) {
        command_usage("--prefix-share wants FRACTION:TOKENS, not \"%.40s\"", prefix);
        return false;
    }
    if (!fork)
        return true;
    int n = sscanf(fork, "%lf:%lu%n:%lu%n", &s->fork_fraction, &s->fork_count, &end, &s->fork_at, &all);
    s->has_fork_at = n == 3;
    if (n < 2 || fork[n == 3 ? all : end]) {
        command_usage("--fork-share wants FRACTION:COUNT[:AT], not \"%.40s\"", fork);
        return false;
    }
    return true;
}

/* The options that are numbers, into a body or a query; their names there have "_" for "-". */
static const struct {
    const char *option, *member;
    double low, high;
} numbers[] = {{"count", "count", 1, 1e9},
               {"seed", "seed", 0, 9007199254740991.0},
               {"length-scale", "length_scale", 0, 1e9},
               {"time-scale", "time_scale", 0, 1e9},
               {"deadline", "deadline_s", 0, 1e9}};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static bool add_numbers(const struct command *c, cJSON *tree)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        double value = 0;
        if (!command_number(c, numbers[i].option, numbers[i].low, numbers[i].high, &value))
            return false;
        if (command_option(c, numbers[i].option))
            cJSON_AddNumberToObject(tree, numbers[i].member, value);
    }
    return true;
}

/* The body for --shape, to be freed. NULL, and said why: the options make no sense. */
static char *shape_body(const struct command *c)
{
    cJSON *tree = cJSON_CreateObject(), *part;
    struct shares shares = {0};
    double rate = 0, cv = 0;
    uint64_t verify = 0;
    bool ok = read_shares(c, &shares) && command_number(c, "arrival-rate", 0, 1e9, &rate) &&
              command_number(c, "arrival-cv", 0, 1e9, &cv) &&
              command_integer(c, "verify", 0, UINT32_MAX, &verify);
    cJSON_AddStringToObject(tree, "shape", command_option(c, "shape"));
    ok = ok && add_numbers(c, tree);
    if (command_option(c, "verify"))
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(tree, "verify"), "rows", (double)verify);
    if (command_option(c, "prefill"))
        cJSON_AddStringToObject(tree, "prefill", command_option(c, "prefill"));
    if (command_option(c, "sharing"))
        cJSON_AddStringToObject(tree, "sharing", command_option(c, "sharing"));
    if (command_option(c, "arrival-rate")) {
        part = cJSON_AddObjectToObject(tree, "arrival");
        cJSON_AddNumberToObject(part, "rate", rate);
        if (command_option(c, "arrival-cv"))
            cJSON_AddNumberToObject(part, "cv", cv);
    }
    if (command_option(c, "prefix-share")) {
        part = cJSON_AddObjectToObject(tree, "prefix_share");
        cJSON_AddNumberToObject(part, "fraction", shares.prefix_fraction);
        cJSON_AddNumberToObject(part, "length", (double)shares.prefix_length);
    }
    if (command_option(c, "fork-share")) {
        part = cJSON_AddObjectToObject(tree, "fork_share");
        cJSON_AddNumberToObject(part, "fraction", shares.fork_fraction);
        cJSON_AddNumberToObject(part, "count", (double)shares.fork_count);
        if (shares.has_fork_at)
            cJSON_AddNumberToObject(part, "at", (double)shares.fork_at);
    }
    char *body = ok ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON_Delete(tree);
    return body;
}

/* Add a parameter to the query. */
static void __attribute__((format(printf, 3, 4)))
add_parameter(char path[COMMAND_PATH_BYTES], const char *name, const char *format, ...)
{
    char value[64];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    size_t n = strlen(path);
    n += (size_t)snprintf(path + n, COMMAND_PATH_BYTES - n, "%c%s=", strchr(path, '?') ? '&' : '?', name);
    for (const char *s = value; *s && n + 4 < COMMAND_PATH_BYTES; s++) {
        bool is_plain = (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || strchr(".-_", *s);
        n += (size_t)snprintf(path + n, 4, is_plain ? "%c" : "%%%02X", (unsigned char)*s);
    }
}

/* The path for --trace, its options in the query; false, and said why, when they make no sense. */
static bool trace_path(const struct command *c, char path[COMMAND_PATH_BYTES])
{
    static const char *const texts[] = {"verify", "prefill", "sharing"};
    struct shares shares = {0};
    if (command_option(c, "arrival-rate") || command_option(c, "arrival-cv")) {
        command_usage(
            "a trace says when its requests arrive: --arrival-rate and --arrival-cv go with --shape");
        return false;
    }
    if (!read_shares(c, &shares))
        return false;
    snprintf(path, COMMAND_PATH_BYTES, "/v1/workloads");
    for (size_t i = 0; i < NUMBERS; i++) {
        double value = 0;
        if (!command_number(c, numbers[i].option, numbers[i].low, numbers[i].high, &value))
            return false;
        if (command_option(c, numbers[i].option))
            add_parameter(path, numbers[i].member, "%.16g", value);
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (command_option(c, texts[i]))
            add_parameter(path, texts[i], "%s", command_option(c, texts[i]));
    }
    if (command_option(c, "prefix-share")) {
        add_parameter(path, "prefix_fraction", "%.16g", shares.prefix_fraction);
        add_parameter(path, "prefix_length", "%lu", shares.prefix_length);
    }
    if (command_option(c, "fork-share")) {
        add_parameter(path, "fork_fraction", "%.16g", shares.fork_fraction);
        add_parameter(path, "fork_count", "%lu", shares.fork_count);
        if (shares.has_fork_at)
            add_parameter(path, "fork_at", "%lu", shares.fork_at);
    }
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* Say what is wrong with a workload's file, at a place in it. */
static void refuse_file(const char *file, struct json_place at, const char *why)
{
    fputs("attnctl: ", stderr);
    terminal_put(stderr, file);
    fprintf(stderr, ":%u:%u: %s\n", at.line, at.column, why);
}

/* Whether a text, that may have comments, has what only a configuration has. */
static bool is_configuration(char *text, size_t bytes)
{
    struct json_error ignored;
    cJSON *tree;
    if (json_blank_comments(text, bytes, &ignored) != 0 || json_parse(text, bytes, &tree, &ignored) != 0)
        return false;
    bool is = answer_at(tree, "geometry") || answer_at(tree, "pool") || answer_at(tree, "listen");
    cJSON_Delete(tree);
    return is;
}

/* Read a workload's file, which is checked before it is sent: what the daemon says of it names no file. The text, to be freed; NULL, and
 * said why, when it is no JSON, or the daemon's own. */
static char *read_workload(const char *file, size_t *bytes)
{
    struct json_error wrong;
    cJSON *tree = NULL;
    char *text = command_read_file(file, bytes);
    if (!text)
        return NULL;
    bool is_json = json_parse(text, *bytes, &tree, &wrong) == 0, is_daemons = is_configuration(text, *bytes);
    cJSON_Delete(tree);
    if (is_json && !is_daemons)
        return text;
    if (is_daemons)
        refuse_file(file, (struct json_place){1, 1}, "this is a configuration of the daemon: attnd --config");
    else
        refuse_file(file, json_place(text, wrong.offset), wrong.reason);
    free(text);
    return NULL;
}

/* Fill in what is sent; false, and said why, when there is nothing. */
static bool read_request(const struct command *c, struct http_request *request, char path[COMMAND_PATH_BYTES],
                         char **body)
{
    const char *shape = command_option(c, "shape"), *trace = command_option(c, "trace");
    if ((shape != NULL) + (trace != NULL) + (c->argc == 1) != 1) {
        command_usage((shape || trace) && c->argc == 1 ? "run wants one of these: a file, --shape, --trace"
                                                       : "run wants a file, or --shape, or --trace");
        return false;
    }
    if (shape) {
        request->body = *body = shape_body(c);
        return *body != NULL;
    }
    if (trace) {
        bool lines = ends_with(trace, ".jsonl") || ends_with(trace, ".ndjson");
        request->type = lines ? "application/x-ndjson" : "text/csv";
        request->file = trace;
        return trace_path(c, path) && command_can_send(trace);
    }
    for (size_t i = 0; c->info->options[i].name; i++) {
        if (c->values[i]) {
            command_usage("a workload file says it all: --%s belongs to --shape or --trace",
                          c->info->options[i].name);
            return false;
        }
    }
    request->body = *body = read_workload(c->argv[0], &request->body_bytes);
    return *body != NULL;
}

/* ---- running ------------------------------------------------------------------------------------- */

static void show_result(const struct progress *p)
{
    char *line = p->json ? cJSON_PrintUnformatted(p->last) : NULL;
    if (p->json)
        puts(line ? line : "null");
    else
        report_show(p->last);
    free(line);
}

/* A report is up to a quarter of a second old: when it says that nothing was done, ask again. */
static void ask_whether_begun(const struct command *c, struct progress *p)
{
    char path[COMMAND_PATH_BYTES];
    if (!p->last || answer_number(p->last, "steps") > 0)
        return;
    snprintf(path, sizeof path, "/v1/workloads/%.0f", answer_number(p->last, "id"));
    struct http_reply reply =
        http_client_send(c->client, &(struct http_request){.method = "GET", .path = path});
    cJSON *now = reply.status == 200 ? cJSON_Parse(reply.text) : NULL;
    if (now && answer_number(now, "steps") > 0) {
        cJSON_Delete(p->last);
        p->last = now;
    } else {
        cJSON_Delete(now);
    }
}

/* Whether the workload was cut: the answer ended, and its last report says that it goes on. */
static bool was_cut(const struct progress *p, const struct http_reply *reply)
{
    const char *state = answer_text(p->last, "state");
    return (reply->status == 0 || reply->status == 200) &&
           (strcmp(state, "running") == 0 || strcmp(state, "verifying") == 0);
}

/* Say who went away. The daemon still has a workload whose connection broke; one that was started anew has not. */
static void say_cut(const struct command *c, const struct progress *p)
{
    char path[COMMAND_PATH_BYTES];
    snprintf(path, sizeof path, "/v1/workloads/%.0f", answer_number(p->last, "id"));
    bool is_there = command_say_cut(c, path, "the workload");
    fprintf(stderr, ", which %s. Its last report:\n", is_there ? "is cancelled then" : "does not outlast it");
}

static int run(const struct command *c)
{
    struct progress progress = {
        .json = c->json, .terminal = isatty(STDERR_FILENO), .shown_s = clock_s(), .waiting = {.command = c}};
    char path[COMMAND_PATH_BYTES] = "/v1/workloads", *body = NULL;
    struct http_request request = {.method = "POST",
                                   .path = path,
                                   .accept = "application/x-ndjson",
                                   .line = on_report,
                                   .stopped = terminal_interrupted,
                                   .cookie = &progress};
    if (!read_request(c, &request, path, &body))
        return EXIT_USAGE;
    terminal_watch_signals();
    struct http_reply reply = http_client_send(c->client, &request);
    free(body);
    waiting_end(&progress.waiting);
    if (progress.terminal && progress.last && !c->json)
        fputs("\r\033[K", stderr);
    bool ended = progress.last && strcmp(answer_text(progress.last, "state"), "finished") == 0;
    const cJSON *verify = answer_at(progress.last, "verify");
    enum exit_code code =
        ended && (!cJSON_IsObject(verify) || cJSON_IsTrue(answer_at(verify, "ok"))) ? EXIT_OK : EXIT_FAILED;
    if (terminal_interrupted()) {
        fputs("attnctl: interrupted; the daemon cancels the workload. So far:\n", stderr);
        ask_whether_begun(c, &progress);
        show_result(&progress);
        if (progress.waiting.why[0] && !c->json)
            command_row("waited for", "%s", progress.waiting.why);
        code = EXIT_INTERRUPTED;
    } else if (was_cut(&progress, &reply)) {
        say_cut(c, &progress);
        show_result(&progress);
        code = EXIT_FAILED;
    } else if (reply.status < 200 || reply.status > 299) {
        code = command_explain(&reply);
    } else {
        show_result(&progress);
    }
    cJSON_Delete(progress.last);
    return code;
}

static const struct command_verb verbs[] = {
    {"", "FILE", 0, 1, "the workload of a JSON file, - for standard input", run},
    {"", "--shape NAME [OPTION]...", 0, 1, "requests that are drawn like those of a trace", run},
    {"", "--trace FILE [OPTION]...", 0, 1, "Azure's CSV, or Mooncake's JSON lines (*.jsonl, *.ndjson)", run},
    {0}};
static const struct command_option options[] = {
    {"shape", "NAME", "azure-conv, azure-code, mooncake-conv, arxiv-summary"},
    {"trace", "FILE", "requests as they are in this file"},
    {"count", "N", "requests (of a trace: all)"},
    {"seed", "N", "another one draws others"},
    {"length-scale", "F", "times all lengths"},
    {"time-scale", "F", "times all gaps between arrivals"},
    {"verify", "ROWS", "outputs to be computed again in double precision"},
    {"prefill", "append|attend", "attend computes outputs for prompts, too"},
    {"sharing", "auto|on|off", "whether rows read common blocks together"},
    {"prefix-share", "FRACTION:TOKENS", "so many of the requests begin with the same tokens"},
    {"fork-share", "FRACTION:COUNT[:AT]", "so many fork, at a token (the end of the prompt)"},
    {"arrival-rate", "F", "requests a second, with --shape"},
    {"arrival-cv", "F", "variation of the gaps, with --shape"},
    {"deadline", "SECONDS", "after which it is cancelled"},
    {0}};

const struct command_info run_info = {
    .name = "run",
    .text = "run a workload and report",
    .verbs = verbs,
    .options = options,
    .more = "Ctrl-C cancels it and prints the summary so far. That of a daemon that goes\n"
            "away is printed, too: a workload does not outlast its daemon. When nothing has\n"
            "happened for a second, it says what the workload waits for, as `attnctl waiting`\n"
            "does. Exit code 1: not finished or not verified. docs/WORKLOADS.md says what a\n"
            "file can ask for and what the report says."};
