/* SPDX-License-Identifier: Apache-2.0 */
/* workloads.c - run a workload, show how far it is, and its report. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "config/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR_CELLS = 24 };

static const double PLAIN_PROGRESS_S = 2; /* between two lines when there is no terminal */

struct progress {
    const struct options *o;
    bool terminal;
    double shown_s;
    cJSON *last; /* the latest report */
};

static void show_progress(const struct progress *p)
{
    const cJSON *r = p->last;
    double done = answer_number(r, "tokens.done"), total = answer_number(r, "tokens.total");
    double part = total > 0 ? done / total : 0;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(part * BAR_CELLS) ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    if (strcmp(answer_text(r, "state"), "verifying") == 0)
        fprintf(stderr, "%s[%s] verifying %.0f of %.0f rows", p->terminal ? "\r\033[K" : "", bar,
                answer_number(r, "verify.done"), answer_number(r, "verify.rows"));
    else
        fprintf(stderr,
                "%s[%s] %3.0f %%  %.0f of %.0f tokens  %.0f steps  %.1f GB/s (%.2f of roof)  %.0f of "
                "%.0f blocks",
                p->terminal ? "\r\033[K" : "", bar, part * 100, done, total, answer_number(r, "steps"),
                answer_number(r, "gb_per_s"), answer_number(r, "roof_fraction"),
                answer_number(r, "blocks.held"), answer_number(r, "blocks.total"));
    if (!p->terminal)
        fputc('\n', stderr);
    fflush(stderr);
}

static void on_report(const char *line, size_t bytes, void *cookie)
{
    struct progress *p = cookie;
    cJSON *report = cJSON_ParseWithLength(line, bytes);
    if (!report)
        return;
    cJSON_Delete(p->last);
    p->last = report;
    if (p->o->json)
        return;
    double now = clock_s();
    if (p->terminal || now - p->shown_s >= PLAIN_PROGRESS_S) {
        show_progress(p);
        p->shown_s = now;
    }
}

static void row_of_times(const cJSON *r, const char *name, const char *path, double scale, const char *unit)
{
    char p50[64], p90[64], p99[64];
    snprintf(p50, sizeof p50, "%s.p50", path);
    snprintf(p90, sizeof p90, "%s.p90", path);
    snprintf(p99, sizeof p99, "%s.p99", path);
    command_row(name, "%.2f / %.2f / %.2f %s (p50 / p90 / p99)", answer_number(r, p50) * scale,
                answer_number(r, p90) * scale, answer_number(r, p99) * scale, unit);
}

/* An error that is no number arrives as null. */
static const char *error_text(const cJSON *item, char text[32])
{
    snprintf(text, 32, "%.5f", cJSON_IsNumber(item) ? item->valuedouble : 0);
    return cJSON_IsNumber(item) ? text : "NaN";
}

static void show_report(const cJSON *r)
{
    char error[32];
    printf("workload %.0f %s in %.2f s\n", answer_number(r, "id"), answer_text(r, "state"),
           answer_number(r, "wall_s"));
    command_row("sequences", "%.0f of %.0f requests, %.0f forks", answer_number(r, "sequences.total"),
                answer_number(r, "requests"), answer_number(r, "forks"));
    command_row("tokens", "%.0f attended, %.0f appended as prompts, %.0f found in the cache",
                answer_number(r, "tokens.done"), answer_number(r, "tokens.prompt"),
                answer_number(r, "tokens.cached"));
    command_row("steps", "%.0f", answer_number(r, "steps"));
    row_of_times(r, "step", "step_us", 1e-3, "ms");
    row_of_times(r, "queue", "queue_ms", 1, "ms");
    row_of_times(r, "first token", "first_token_ms", 1, "ms");
    row_of_times(r, "per token", "per_token_ms", 1, "ms");
    command_row("read", "%.2f GB, %.2f GB/s, %.2f of the machine's %.1f GB/s",
                answer_number(r, "bytes_read") * 1e-9, answer_number(r, "gb_per_s"),
                answer_number(r, "roof_fraction"), answer_number(r, "roof_gb_per_s"));
    if (cJSON_IsString(answer_at(r, "above_roof")))
        command_row("", "%s", answer_text(r, "above_roof"));
    command_row("blocks", "%.0f at most of %.0f, %.0f saved by sharing", answer_number(r, "blocks.peak"),
                answer_number(r, "blocks.total"), answer_number(r, "blocks.saved_peak"));
    command_row("copies on write", "%.0f", answer_number(r, "copies"));
    command_row("preemptions", "%.0f (%.0f tokens appended again)", answer_number(r, "preemptions"),
                answer_number(r, "tokens.recomputed"));
    command_row("digest", "%s", answer_text(r, "digest"));
    if (cJSON_IsObject(answer_at(r, "verify")))
        command_row("verified", "%.0f rows, largest error %s (tolerance %.5f): %s",
                    answer_number(r, "verify.done"), error_text(answer_at(r, "verify.largest_error"), error),
                    answer_number(r, "verify.tolerance"),
                    cJSON_IsTrue(answer_at(r, "verify.ok")) ? "ok" : "NOT OK");
}

/* The body for --shape. NULL: the options do not make sense. */
static char *shape_body(const struct options *o)
{
    double fraction;
    unsigned long length, count, fork_at = 0;
    cJSON *tree = cJSON_CreateObject(), *part;
    bool ok = true;
    const struct {
        const char *name, *value;
    } numbers[] = {{"count", o->count},
                   {"seed", o->seed},
                   {"length_scale", o->length_scale},
                   {"time_scale", o->time_scale}};
    cJSON_AddStringToObject(tree, "shape", o->shape);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].value)
            cJSON_AddNumberToObject(tree, numbers[i].name, strtod(numbers[i].value, NULL));
    }
    if (o->verify)
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(tree, "verify"), "rows", strtod(o->verify, NULL));
    if (o->prefill)
        cJSON_AddStringToObject(tree, "prefill", o->prefill);
    if (o->sharing)
        cJSON_AddStringToObject(tree, "sharing", o->sharing);
    if (o->arrival_rate) {
        part = cJSON_AddObjectToObject(tree, "arrival");
        cJSON_AddNumberToObject(part, "rate", strtod(o->arrival_rate, NULL));
        if (o->arrival_cv)
            cJSON_AddNumberToObject(part, "cv", strtod(o->arrival_cv, NULL));
    }
    if (o->prefix_share) {
        ok &= sscanf(o->prefix_share, "%lf:%lu", &fraction, &length) == 2;
        part = cJSON_AddObjectToObject(tree, "prefix_share");
        cJSON_AddNumberToObject(part, "fraction", ok ? fraction : 0);
        cJSON_AddNumberToObject(part, "length", ok ? (double)length : 0);
    }
    if (o->fork_share) {
        int n = sscanf(o->fork_share, "%lf:%lu:%lu", &fraction, &count, &fork_at);
        ok &= n >= 2;
        part = cJSON_AddObjectToObject(tree, "fork_share");
        cJSON_AddNumberToObject(part, "fraction", n >= 2 ? fraction : 0);
        cJSON_AddNumberToObject(part, "count", n >= 2 ? (double)count : 0);
        if (n == 3)
            cJSON_AddNumberToObject(part, "at", (double)fork_at);
    }
    char *body = ok ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON_Delete(tree);
    return body;
}

/* The path for --trace, its options in the query; false for an option that a trace does not take. */
static bool trace_path(const struct options *o, char path[COMMAND_PATH_BYTES])
{
    const struct {
        const char *name, *value;
    } parts[] = {{"count", o->count},           {"seed", o->seed},     {"length_scale", o->length_scale},
                 {"time_scale", o->time_scale}, {"verify", o->verify}, {"prefill", o->prefill},
                 {"sharing", o->sharing}};
    if (o->arrival_rate || o->arrival_cv || o->prefix_share || o->fork_share)
        return false;
    size_t n = (size_t)snprintf(path, COMMAND_PATH_BYTES, "/v1/workloads");
    char mark = '?';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!parts[i].value || n >= COMMAND_PATH_BYTES)
            continue;
        n += (size_t)snprintf(path + n, COMMAND_PATH_BYTES - n, "%c%s=%s", mark, parts[i].name,
                              parts[i].value);
        mark = '&';
    }
    return true;
}

int workloads_run(const struct command *c)
{
    const struct options *o = c->o;
    struct progress progress = {.o = o, .terminal = isatty(STDERR_FILENO), .shown_s = clock_s()};
    char path[COMMAND_PATH_BYTES] = "/v1/workloads", *body = NULL;
    struct http_request request = {.method = "POST",
                                   .path = path,
                                   .accept = "application/x-ndjson",
                                   .line = on_report,
                                   .cookie = &progress};
    if ((o->shape != NULL) + (o->trace != NULL) + (c->argc == 1) != 1 || c->argc > 1)
        return command_usage("run wants a file, or --shape, or --trace");
    if (o->shape && !(request.body = body = shape_body(o)))
        return command_usage("--prefix-share wants FRACTION:TOKENS, --fork-share FRACTION:COUNT[:AT]");
    if (o->trace) {
        size_t n = strlen(o->trace);
        bool lines = n > 6 && strcmp(o->trace + n - 6, ".jsonl") == 0;
        if (!trace_path(o, path))
            return command_usage("--trace takes no arrivals, prefixes or forks");
        request.type = lines ? "application/x-ndjson" : "text/csv";
        request.file = o->trace;
    }
    if (c->argc == 1) {
        request.file = c->argv[0];
        if (o->count || o->seed || o->length_scale || o->time_scale || o->verify || o->prefill ||
            o->arrival_rate || o->arrival_cv || o->prefix_share || o->fork_share || o->sharing)
            return command_usage("a workload file says it all: options belong to --shape and --trace");
    }
    if (request.file && access(request.file, R_OK) != 0) {
        perror(request.file);
        return EXIT_USAGE;
    }
    struct http_reply reply = http_client_send(c->client, &request);
    free(body);
    if (progress.terminal && progress.last && !o->json)
        fputs("\r\033[K", stderr);
    bool ended = progress.last && strcmp(answer_text(progress.last, "state"), "finished") == 0;
    const cJSON *verify = answer_at(progress.last, "verify");
    enum exit_code code =
        ended && (!cJSON_IsObject(verify) || cJSON_IsTrue(answer_at(verify, "ok"))) ? EXIT_OK : EXIT_FAILED;
    if (reply.status < 200 || reply.status > 299) {
        code = command_explain(&reply);
    } else if (o->json) {
        char *line = cJSON_PrintUnformatted(progress.last);
        puts(line ? line : "null");
        free(line);
    } else {
        show_report(progress.last);
    }
    cJSON_Delete(progress.last);
    return code;
}
