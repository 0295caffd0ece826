/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - a workload for each point of a grid: how long a token takes by batch, context, sharing and block size; a table, and
 * if it is wanted CSV and a picture.
 *
 * A point is `batch` sequences that see `context` tokens on average, of which a fraction is the same for all. The time of a token
 * is the median gap between two of a sequence (per_token_ms), so prompts are not in it. But their appends take time, and the first
 * sequence decodes while the last one is appended:
 *
 *     first  appended | decodes ----------------------|
 *     last              ... appended | decodes ----------------------|
 *                       <-- spread -->
 *
 * The median is of the whole batch when sequences decode for several spreads. Unless --decode says how long, a point is run again
 * with as many tokens as that takes; 64 sequences of 4 096 tokens on an H200 showed 7 TB/s before, of 4.8 that there are. What
 * still overlaps too little is marked.
 *
 * All sequences of a point have to fit the pool at once; otherwise it is skipped, and said. Block sizes are daemons: started for
 * it, or given. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/own_daemon.h"
#include "clients/plot.h"
#include "clients/tensors.h"
#include "clients/terminal.h"
#include "clients/waiting.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VALUES_MOST = 16,
    POINTS_MOST = 4096,
    LINES_MOST = 64,
    URL_BYTES = 256,
    DECODE_FIRST = 32,
    DECODE_MOST = 4096,
    SPREADS = 4 /* that sequences are to decode for */
};

struct list {
    double values[VALUES_MOST];
    size_t count;
};

struct point {
    uint32_t batch, context, block_size, decode;
    double shared;             /* fraction of the context */
    bool measured, is_partial; /* is_partial: sequences decoded together for less than half of the time */
    double spread_ms;          /* between the first tokens of the first and the last sequence */
    double token_ms, token_ms_p99, tokens_per_s, logical_gb_per_s, read_gb_per_s, roof_fraction, peak, saved;
    char digest[40], backend[32];
};

struct sweep {
    const struct command *c;
    struct list batch, context, shared, block_size;
    uint64_t decode, repeat, seed;
    struct command here; /* of the daemon at hand */
    struct model model;
    struct point *points; /* [POINTS_MOST] */
    size_t count, skipped;
    bool has_head; /* of the table */
    double roof;
};

/* ---- the command line ---------------------------------------------------------------------------- */

/* "1,8,64"; false, and said why. */
static bool read_list(const struct command *c, const char *name, double low, double high, bool whole,
                      struct list *list)
{
    const char *text = command_option(c, name);
    if (!text)
        return true;
    list->count = 0;
    for (const char *s = text;;) {
        char *end;
        double value = strtod(s, &end);
        if (end == s || (*end && *end != ',') || !(value >= low) || !(value <= high) ||
            (whole && value != floor(value)) || list->count == VALUES_MOST)
            break;
        list->values[list->count++] = value;
        if (!*end)
            return true;
        s = end + 1;
    }
    command_usage("--%s wants at most %d %s in %g..%g, with commas between, not \"%.40s\"", name, VALUES_MOST,
                  whole ? "integers" : "numbers", low, high, text);
    return false;
}

static bool read_options(struct sweep *s)
{
    const struct command *c = s->c;
    s->batch = (struct list){{1, 4, 8}, 3};
    s->context = (struct list){{256, 1024, 4096}, 3};
    s->shared = (struct list){{0, 0.5}, 2};
    if (!read_list(c, "batch", 1, 65536, true, &s->batch) ||
        !read_list(c, "context", 1, 1 << 24, true, &s->context) ||
        !read_list(c, "shared", 0, 1, false, &s->shared) ||
        !read_list(c, "block-size", 1, 4096, true, &s->block_size) ||
        !command_integer(c, "decode", 2, 100000, &s->decode) ||
        !command_integer(c, "repeat", 1, 1000, &s->repeat) ||
        !command_integer(c, "seed", 0, COMMAND_ID_MOST, &s->seed))
        return false;
    if (s->block_size.count && command_option(c, "at")) {
        command_usage("sweep starts daemons for --block-size, or asks those of --at");
        return false;
    }
    if (!s->block_size.count &&
        (command_option(c, "attnd") || command_option(c, "config") || command_option(c, "pool"))) {
        command_usage("--attnd, --config and --pool are for daemons that --block-size starts");
        return false;
    }
    return true;
}

/* ---- a point ------------------------------------------------------------------------------------- */

/* Tokens of a prompt, so that the mean of what its queries see is the context. */
static uint32_t prompt_of(const struct point *p)
{
    return p->context > p->decode / 2 ? p->context - p->decode / 2 : 1;
}

/* Tokens that all prompts begin with. */
static uint32_t common_of(const struct point *p)
{
    uint32_t common = (uint32_t)(p->context * p->shared);
    return common < prompt_of(p) ? common : prompt_of(p);
}

/* Blocks that its sequences hold at their end. */
static double blocks_of(const struct point *p)
{
    double size = p->block_size, common = floor(common_of(p) / size);
    return common + p->batch * (ceil((prompt_of(p) + p->decode) / size) - common);
}

static char *workload_of(const struct sweep *s, const struct point *p)
{
    cJSON *body = cJSON_CreateObject(), *group = cJSON_CreateObject();
    uint32_t common = common_of(p);
    cJSON_AddNumberToObject(body, "seed", (double)s->seed);
    cJSON_AddNumberToObject(group, "count", p->batch);
    cJSON_AddNumberToObject(group, "prompt", prompt_of(p));
    cJSON_AddNumberToObject(group, "decode", p->decode);
    if (common) {
        cJSON *prefix = cJSON_AddObjectToObject(group, "prefix");
        cJSON_AddNumberToObject(prefix, "id", 1);
        cJSON_AddNumberToObject(prefix, "length", common);
    }
    cJSON_AddItemToArray(cJSON_AddArrayToObject(body, "sequences"), group);
    char *text = cJSON_PrintUnformatted(body);
    cJSON_Delete(body);
    return text;
}

struct followed {
    cJSON *last; /* the latest report */
    struct waiting_watch waiting;
};

static void on_report(const char *line, size_t bytes, void *cookie)
{
    struct followed *f = cookie;
    cJSON *report = cJSON_ParseWithLength(line, bytes);
    if (!report)
        return;
    cJSON_Delete(f->last);
    f->last = report;
    waiting_look(&f->waiting, report);
}

/* Note what a report says, if it is the best so far. */
static void note_report(struct sweep *s, struct point *p, const cJSON *report)
{
    double ms = answer_number(report, "per_token_ms.p50");
    if (strcmp(answer_text(report, "state"), "finished") != 0 || !(ms > 0) ||
        (p->measured && ms >= p->token_ms))
        return;
    double token_bytes = (double)s->model.bytes_per_block / s->model.block_size;
    p->measured = true;
    p->token_ms = ms;
    p->token_ms_p99 = answer_number(report, "per_token_ms.p99");
    p->tokens_per_s = p->batch / ms * 1e3;
    p->logical_gb_per_s = p->batch * (prompt_of(p) + p->decode / 2.0) * token_bytes / ms * 1e-6;
    /* p50 and p99 of the batch; half of it is between them. */
    p->spread_ms =
        2 * (answer_number(report, "first_token_ms.p99") - answer_number(report, "first_token_ms.p50"));
    p->is_partial = p->decode * ms < 2 * p->spread_ms;
    p->read_gb_per_s = answer_number(report, "gb_per_s");
    p->roof_fraction = answer_number(report, "roof_fraction");
    p->peak = answer_number(report, "pool.held_peak");
    p->saved = answer_number(report, "pool.saved_peak");
    snprintf(p->digest, sizeof p->digest, "%s", answer_text(report, "digest"));
    s->roof = fmax(s->roof, answer_number(report, "roof_gb_per_s"));
}

static enum exit_code run_once(struct sweep *s, struct point *p)
{
    struct followed followed = {.waiting = {.command = &s->here}};
    char *body = workload_of(s, p);
    const struct http_request request = {.method = "POST",
                                         .path = "/v1/workloads",
                                         .accept = "application/x-ndjson",
                                         .body = body,
                                         .line = on_report,
                                         .stopped = terminal_interrupted,
                                         .cookie = &followed};
    struct http_reply reply = http_client_send(s->here.client, &request);
    enum exit_code code = terminal_interrupted()                      ? EXIT_INTERRUPTED
                          : reply.status >= 200 && reply.status < 300 ? EXIT_OK
                                                                      : command_explain(&reply);
    waiting_end(&followed.waiting);
    if (code == EXIT_OK)
        note_report(s, p, followed.last);
    cJSON_Delete(followed.last);
    free(body);
    return code;
}

/* Once, above the first line. */
static void print_head(struct sweep *s)
{
    if (!s->has_head)
        puts(" batch context shared block |  ms/token     p99  tokens/s | GB/s seen   read of roof");
    s->has_head = true;
}

static void print_point(struct sweep *s, const struct point *p)
{
    print_head(s);
    printf("%6u %7u %6.2f %5u | %c%8.3f %7.3f %9.0f | %9.1f %6.1f %7.2f\n", p->batch, p->context, p->shared,
           p->block_size, p->is_partial ? '~' : ' ', p->token_ms, p->token_ms_p99, p->tokens_per_s,
           p->logical_gb_per_s, p->read_gb_per_s, p->roof_fraction);
    fflush(stdout);
}

/* Have sequences decode for as long as it takes that they do so together. False: they do, or there is no room. */
static bool lengthen(const struct sweep *s, struct point *p)
{
    struct point longer = *p;
    double wanted = ceil(SPREADS * p->spread_ms / p->token_ms);
    longer.decode = (uint32_t)fmin(wanted, fmin(DECODE_MOST, p->context));
    if (longer.decode <= p->decode || blocks_of(&longer) > (double)s->model.blocks)
        return false;
    p->decode = longer.decode;
    p->measured = false; /* what was measured does not count */
    return true;
}

static enum exit_code measure(struct sweep *s, struct point *p)
{
    enum exit_code code = EXIT_OK;
    p->decode = s->decode ? (uint32_t)s->decode : DECODE_FIRST;
    double needed = blocks_of(p);
    if (needed > (double)s->model.blocks) {
        print_head(s);
        printf("%6u %7u %6.2f %5u | does not fit: needs %.0f blocks of %llu\n", p->batch, p->context,
               p->shared, p->block_size, needed, (unsigned long long)s->model.blocks);
        s->skipped++;
        return EXIT_OK;
    }
    code = run_once(s, p);
    if (code == EXIT_OK && !s->decode && p->measured && lengthen(s, p))
        code = run_once(s, p);
    for (uint64_t i = 1; i < s->repeat && code == EXIT_OK; i++)
        code = run_once(s, p);
    if (p->measured)
        print_point(s, p);
    s->skipped += !p->measured && code != EXIT_INTERRUPTED;
    return code == EXIT_FAILED ? EXIT_OK : code; /* what is refused is said; others may do */
}

/* The grid, on the daemon at hand. */
static enum exit_code sweep_daemon(struct sweep *s)
{
    enum exit_code code = model_fetch(&s->here, &s->model);
    size_t per = s->context.count * s->shared.count, all = s->batch.count * per;
    for (size_t i = 0; i < all && code == EXIT_OK && s->count < POINTS_MOST; i++) {
        struct point *p = &s->points[s->count];
        *p = (struct point){.batch = (uint32_t)s->batch.values[i / per],
                            .context = (uint32_t)s->context.values[i / s->shared.count % s->context.count],
                            .shared = s->shared.values[i % s->shared.count],
                            .block_size = s->model.block_size};
        terminal_escape(s->model.backend, p->backend, sizeof p->backend);
        code = measure(s, p);
        s->count += p->measured;
    }
    return code;
}

/* ---- daemons ------------------------------------------------------------------------------------- */

static enum exit_code sweep_url(struct sweep *s, const char *url, const char *key)
{
    s->here = *s->c;
    s->here.url = url;
    s->here.client = http_client_create(url, key, s->c->ca_file);
    enum exit_code code = s->here.client ? sweep_daemon(s) : EXIT_FAILED;
    http_client_destroy(s->here.client);
    s->here = (struct command){0}; /* the url is the caller's */
    return code;
}

/* A daemon with blocks of this size, for as long as it takes. */
static enum exit_code sweep_block_size(struct sweep *s, double size)
{
    char block_size[64], pool[64];
    const char *arguments[8] = {"--set", block_size, "--set", pool}, *config = command_option(s->c, "config");
    const char *bytes = command_option(s->c, "pool");
    if (config) {
        arguments[4] = "--config";
        arguments[5] = config;
    }
    snprintf(block_size, sizeof block_size, "geometry.block_size=%.0f", size);
    snprintf(pool, sizeof pool, "pool.bytes=%s", bytes ? bytes : "256MiB");
    struct own_daemon *d = own_daemon_start(command_option(s->c, "attnd"), arguments);
    enum exit_code code = d                        ? sweep_url(s, own_daemon_url(d), NULL)
                          : terminal_interrupted() ? EXIT_INTERRUPTED
                                                   : EXIT_UNAVAILABLE;
    own_daemon_stop(d);
    return code;
}

static enum exit_code sweep_all(struct sweep *s)
{
    const char *at = command_option(s->c, "at");
    enum exit_code code = EXIT_OK;
    char url[URL_BYTES];
    if (s->block_size.count) {
        for (size_t i = 0; i < s->block_size.count && code == EXIT_OK; i++)
            code = sweep_block_size(s, s->block_size.values[i]);
        return code;
    }
    if (!at)
        return sweep_url(s, s->c->url, s->c->key);
    while (*at && code == EXIT_OK) {
        size_t n = strcspn(at, ",");
        snprintf(url, sizeof url, "%.*s", (int)n, at);
        code = sweep_url(s, url, s->c->key);
        at += n + (at[n] == ',');
    }
    return code;
}

/* ---- files --------------------------------------------------------------------------------------- */

static bool write_csv(const struct sweep *s, FILE *f)
{
    fputs("batch,context,shared,block_size,decode,together,token_ms_p50,token_ms_p99,tokens_per_s,seen_gb_"
          "per_s,read_gb_per_s,"
          "roof_fraction,pool_held_peak,pool_saved_peak,backend,digest\n",
          f);
    for (size_t i = 0; i < s->count; i++) {
        const struct point *p = &s->points[i];
        fprintf(f, "%u,%u,%g,%u,%u,%d,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.0f,%.0f,", p->batch, p->context,
                p->shared, p->block_size, p->decode, !p->is_partial, p->token_ms, p->token_ms_p99,
                p->tokens_per_s, p->logical_gb_per_s, p->read_gb_per_s, p->roof_fraction, p->peak, p->saved);
        terminal_put_csv(f, p->backend);
        fputc(',', f);
        terminal_put_csv(f, p->digest);
        fputc('\n', f);
    }
    return !ferror(f);
}

/* The lines of the picture: over context, or over batch where there is one context only. */
static size_t make_lines(const struct sweep *s, struct plot_line *time, struct plot_line *rate)
{
    bool over_context = s->context.count > 1 || s->batch.count == 1;
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct point *p = &s->points[i];
        char name[PLOT_NAME];
        size_t l = 0;
        snprintf(name, sizeof name, "%s %u, %g shared, blocks of %u", over_context ? "batch" : "context",
                 over_context ? p->batch : p->context, p->shared, p->block_size);
        while (l < count && strcmp(time[l].name, name) != 0)
            l++;
        if (l == LINES_MOST)
            continue;
        if (l == count) {
            time[l] = rate[l] = (struct plot_line){.count = 0};
            memcpy(time[l].name, name, sizeof name);
            memcpy(rate[l].name, name, sizeof name);
            count++;
        }
        size_t n = time[l].count;
        if (n == PLOT_POINTS_MOST)
            continue;
        time[l].x[n] = rate[l].x[n] = over_context ? p->context : p->batch;
        time[l].y[n] = p->token_ms;
        rate[l].y[n] = p->logical_gb_per_s;
        time[l].count = rate[l].count = n + 1;
    }
    return count;
}

static bool write_svg(const struct sweep *s, FILE *f)
{
    struct plot_line *lines = calloc(2 * (size_t)LINES_MOST, sizeof *lines);
    bool over_context = s->context.count > 1 || s->batch.count == 1;
    if (!lines)
        return false;
    size_t count = make_lines(s, lines, lines + LINES_MOST);
    const struct plot_panel panels[] = {{"milliseconds a token", true, lines, count, 0, ""},
                                        {"GB/s of K and V that queries see", false, lines + LINES_MOST, count,
                                         s->roof, "what the machine reads (roof)"}};
    bool ok =
        plot_write(f, "attnctl sweep", over_context ? "context (tokens)" : "batch (sequences)", panels, 2);
    free(lines);
    return ok;
}

static bool write_file(const struct sweep *s, const char *option,
                       bool (*write)(const struct sweep *s, FILE *f))
{
    const char *name = command_option(s->c, option);
    if (!name)
        return true;
    FILE *f = fopen(name, "w");
    bool ok = f && write(s, f);
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        fprintf(stderr, "attnctl: %s: %s\n", name, strerror(errno));
    return ok;
}

static int run_sweep(const struct command *c)
{
    struct sweep s = {.c = c, .repeat = 1, .seed = 1};
    if (!read_options(&s))
        return EXIT_USAGE;
    s.points = calloc(POINTS_MOST, sizeof *s.points);
    if (!s.points)
        return EXIT_FAILED;
    terminal_watch_signals();
    int code = sweep_all(&s);
    bool ok = write_file(&s, "csv", write_csv);
    ok = write_file(&s, "svg", write_svg) && ok;
    if (code == EXIT_INTERRUPTED)
        fprintf(stderr, "attnctl: interrupted; %s\n",
                s.count ? "that is what was measured" : "nothing was measured");
    else if (s.skipped)
        fprintf(stderr, "attnctl: %zu point%s not measured\n", s.skipped, s.skipped == 1 ? " was" : "s were");
    free(s.points);
    return code != EXIT_OK ? code : ok && s.count ? EXIT_OK : EXIT_FAILED;
}

static const struct command_verb verbs[] = {{"", "[OPTION]...", 0, 0, NULL, run_sweep}, {0}};
static const struct command_option options[] = {
    {"batch", "N,N...", "sequences (1,4,8)"},
    {"context", "N,N...", "tokens that each sees, on average (256,1024,4096)"},
    {"shared", "F,F...", "fraction of these that all have in common (0,0.5)"},
    {"block-size", "N,N...", "start a daemon for each"},
    {"at", "URL,URL...", "or ask these, which have theirs (the one at --url)"},
    {"decode", "N", "tokens that each decodes (as many as it takes)"},
    {"repeat", "N", "runs of each point, of which the best counts (1)"},
    {"seed", "N", "of the numbers (1)"},
    {"csv", "FILE", "all columns"},
    {"svg", "FILE", "a picture"},
    {"attnd", "PATH", "of --block-size: the daemon (beside attnctl)"},
    {"config", "FILE", "likewise: its configuration"},
    {"pool", "SIZE", "likewise: its pool (256MiB)"},
    {0}};

const struct command_info sweep_info = {
    .name = "sweep",
    .text = "measure a grid of batch, context, sharing and block size",
    .verbs = verbs,
    .text_only = true,
    .options = options,
    .more = "ms/token: median time between two tokens of a sequence, without prompts. GB/s\n"
            "seen: K and V that its queries see in that time, a shared block once for each;\n"
            "read: what was read in all steps, prompts too, a block that is read for several\n"
            "sequences at once counted once. ~: for most of the time only some sequences\n"
            "decoded, while others were still appended; more --decode helps. Ctrl-C ends it\n"
            "with what was measured."};
