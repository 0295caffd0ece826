/* SPDX-License-Identifier: Apache-2.0 */
/* attnctl.c - drive and look at a daemon from the terminal. */
#include "clients/http_client.h"
#include "clients/move.h"
#include "config/clock.h"
#include "config/config.h"

#include <cjson/cJSON.h>
#include <sha2.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,      /* the daemon refused, or a workload was not verified */
    EXIT_USAGE = 2,       /* the command line */
    EXIT_UNAVAILABLE = 69 /* no daemon answers */
};

enum { PATH_BYTES = 1024, KEY_BYTES = 64, BAR_CELLS = 24, MAP_COLUMNS = 64, PAGE = 1000 };

static const double PLAIN_PROGRESS_S = 2; /* between two lines when there is no terminal */

struct options {
    const char *url, *key_file;
    bool json;
    /* of run */
    const char *shape, *trace;
    const char *count, *seed, *length_scale, *time_scale, *verify, *prefill, *arrival_rate, *arrival_cv;
    const char *prefix_share; /* FRACTION:LENGTH */
    const char *fork_share;   /* FRACTION:COUNT[:AT] */
    const char *sharing;
    /* of move */
    const char *to, *to_key_file, *as, *salt;
    bool all;
};

struct command {
    struct http_client *client;
    const struct options *o;
    int argc;
    char **argv;
    const char *key; /* NULL: none */
};

static void print_help(void)
{
    puts("attnctl - drive and look at an attnd daemon\n"
         "\n"
         "usage: attnctl [--url URL] [--json] COMMAND\n"
         "\n"
         "  run FILE              run the workload of a JSON file\n"
         "  run --shape NAME      run one drawn like a trace: azure-conv, azure-code, mooncake-conv,\n"
         "                        arxiv-summary\n"
         "  run --trace FILE      run a trace: Azure's CSV, or Mooncake's JSON lines (*.jsonl)\n"
         "      --count N --seed N --length-scale F --time-scale F --verify ROWS\n"
         "      --prefill append|attend --arrival-rate F --arrival-cv F\n"
         "      --prefix-share FRACTION:TOKENS --fork-share FRACTION:COUNT[:AT]\n"
         "      --sharing auto|on|off\n"
         "  stats                 the state at a glance\n"
         "  blocks                a map of the pool\n"
         "  audit                 check every count against every other\n"
         "  seq                   list the sequences\n"
         "  seq new | seq show ID | seq fork ID [COUNT] | seq truncate ID LENGTH | seq delete ID\n"
         "  move --to URL ID... | move --to URL --all\n"
         "                        bring sequences to another daemon; calls on them are told where they are\n"
         "      --to-key-file FILE    the key for that daemon (default: the same one)\n"
         "      --as URL              what its clients call it (default: the URL)\n"
         "      --salt TEXT           that they share their prompts under there\n"
         "  key new NAME [SCOPE]...  make a key, and its entry for the daemon's keys.file; scopes are read,\n"
         "                        infer (unless another is named), admin and keep. Needs no daemon\n"
         "\n"
         "  --url URL             http://HOST:PORT or unix:PATH (default: $ATTNCTL_URL, else\n"
         "                        http://127.0.0.1:8400)\n"
         "  --key-file FILE       holds the key that the daemon wants (default: $ATTNCTL_KEY_FILE)\n"
         "  --json                print what the daemon answers\n"
         "  --help                this text\n"
         "\n"
         "exit codes: 0 done, 1 refused or not verified, 2 usage, 69 no daemon answers");
}

/* ---- JSON ---------------------------------------------------------------------------------------- */

/* The item at "a.b.c"; NULL when it is not there. */
static const cJSON *at(const cJSON *tree, const char *path)
{
    char name[64];
    while (tree && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        tree = cJSON_GetObjectItemCaseSensitive(tree, name);
        path += n + (path[n] == '.');
    }
    return tree;
}

static double number(const cJSON *tree, const char *path)
{
    const cJSON *item = at(tree, path);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static const char *text(const cJSON *tree, const char *path)
{
    const cJSON *item = at(tree, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* Say what went wrong; the exit code for it. */
static enum exit_code explain(const struct http_reply *reply)
{
    if (reply->status == 0) {
        fprintf(stderr, "attnctl: %s\n", reply->text);
        return EXIT_UNAVAILABLE;
    }
    cJSON *problem = reply->text ? cJSON_Parse(reply->text) : NULL;
    fprintf(stderr, "attnctl: %ld %s: %s\n", reply->status, text(problem, "code"),
            problem ? text(problem, "detail") : "");
    cJSON_Delete(problem);
    return EXIT_FAILED;
}

/* Send and parse. With --json the answer is printed as it is. *tree is NULL after an error, and when
 * nothing is left to show; free it with cJSON_Delete(). */
static enum exit_code ask(const struct command *c, const char *method, const char *path, const char *body,
                          cJSON **tree)
{
    const struct http_request request = {.method = method, .path = path, .body = body};
    struct http_reply reply = http_client_send(c->client, &request);
    *tree = NULL;
    if (reply.status < 200 || reply.status > 299)
        return explain(&reply);
    if (c->o->json) {
        fwrite(reply.text ? reply.text : "", 1, reply.bytes, stdout);
        return EXIT_OK;
    }
    *tree = reply.bytes ? cJSON_Parse(reply.text) : NULL;
    return EXIT_OK;
}

static int usage(const char *what)
{
    fprintf(stderr, "attnctl: %s (--help lists the commands)\n", what);
    return EXIT_USAGE;
}

/* ---- run ----------------------------------------------------------------------------------------- */

struct progress {
    const struct options *o;
    bool terminal;
    double shown_s;
    cJSON *last; /* the latest report */
};

static void show_progress(const struct progress *p)
{
    const cJSON *r = p->last;
    double done = number(r, "tokens.done"), total = number(r, "tokens.total");
    double part = total > 0 ? done / total : 0;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(part * BAR_CELLS) ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    if (strcmp(text(r, "state"), "verifying") == 0)
        fprintf(stderr, "%s[%s] verifying %.0f of %.0f rows", p->terminal ? "\r\033[K" : "", bar,
                number(r, "verify.done"), number(r, "verify.rows"));
    else
        fprintf(stderr,
                "%s[%s] %3.0f %%  %.0f of %.0f tokens  %.0f steps  %.1f GB/s (%.2f of roof)  %.0f of "
                "%.0f blocks",
                p->terminal ? "\r\033[K" : "", bar, part * 100, done, total, number(r, "steps"),
                number(r, "gb_per_s"), number(r, "roof_fraction"), number(r, "blocks.held"),
                number(r, "blocks.total"));
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

static void __attribute__((format(printf, 2, 3))) row(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  %-22s", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

static void row_of_times(const cJSON *r, const char *name, const char *path, double scale, const char *unit)
{
    char p50[64], p90[64], p99[64];
    snprintf(p50, sizeof p50, "%s.p50", path);
    snprintf(p90, sizeof p90, "%s.p90", path);
    snprintf(p99, sizeof p99, "%s.p99", path);
    row(name, "%.2f / %.2f / %.2f %s (p50 / p90 / p99)", number(r, p50) * scale, number(r, p90) * scale,
        number(r, p99) * scale, unit);
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
    printf("workload %.0f %s in %.2f s\n", number(r, "id"), text(r, "state"), number(r, "wall_s"));
    row("sequences", "%.0f of %.0f requests, %.0f forks", number(r, "sequences.total"), number(r, "requests"),
        number(r, "forks"));
    row("tokens", "%.0f attended, %.0f appended as prompts, %.0f found in the cache",
        number(r, "tokens.done"), number(r, "tokens.prompt"), number(r, "tokens.cached"));
    row("steps", "%.0f", number(r, "steps"));
    row_of_times(r, "step", "step_us", 1e-3, "ms");
    row_of_times(r, "queue", "queue_ms", 1, "ms");
    row_of_times(r, "first token", "first_token_ms", 1, "ms");
    row_of_times(r, "per token", "per_token_ms", 1, "ms");
    row("read", "%.2f GB, %.2f GB/s, %.2f of the machine's %.1f GB/s", number(r, "bytes_read") * 1e-9,
        number(r, "gb_per_s"), number(r, "roof_fraction"), number(r, "roof_gb_per_s"));
    if (cJSON_IsString(at(r, "above_roof")))
        row("", "%s", text(r, "above_roof"));
    row("blocks", "%.0f at most of %.0f, %.0f saved by sharing", number(r, "blocks.peak"),
        number(r, "blocks.total"), number(r, "blocks.saved_peak"));
    row("copies on write", "%.0f", number(r, "copies"));
    row("preemptions", "%.0f (%.0f tokens appended again)", number(r, "preemptions"),
        number(r, "tokens.recomputed"));
    row("digest", "%s", text(r, "digest"));
    if (cJSON_IsObject(at(r, "verify")))
        row("verified", "%.0f rows, largest error %s (tolerance %.5f): %s", number(r, "verify.done"),
            error_text(at(r, "verify.largest_error"), error), number(r, "verify.tolerance"),
            cJSON_IsTrue(at(r, "verify.ok")) ? "ok" : "NOT OK");
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
static bool trace_path(const struct options *o, char path[PATH_BYTES])
{
    const struct {
        const char *name, *value;
    } parts[] = {{"count", o->count},           {"seed", o->seed},     {"length_scale", o->length_scale},
                 {"time_scale", o->time_scale}, {"verify", o->verify}, {"prefill", o->prefill},
                 {"sharing", o->sharing}};
    if (o->arrival_rate || o->arrival_cv || o->prefix_share || o->fork_share)
        return false;
    size_t n = (size_t)snprintf(path, PATH_BYTES, "/v1/workloads");
    char mark = '?';
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (!parts[i].value || n >= PATH_BYTES)
            continue;
        n += (size_t)snprintf(path + n, PATH_BYTES - n, "%c%s=%s", mark, parts[i].name, parts[i].value);
        mark = '&';
    }
    return true;
}

static int run_workload(const struct command *c)
{
    const struct options *o = c->o;
    struct progress progress = {.o = o, .terminal = isatty(STDERR_FILENO), .shown_s = clock_s()};
    char path[PATH_BYTES] = "/v1/workloads", *body = NULL;
    struct http_request request = {.method = "POST",
                                   .path = path,
                                   .accept = "application/x-ndjson",
                                   .line = on_report,
                                   .cookie = &progress};
    if ((o->shape != NULL) + (o->trace != NULL) + (c->argc == 1) != 1 || c->argc > 1)
        return usage("run wants a file, or --shape, or --trace");
    if (o->shape && !(request.body = body = shape_body(o)))
        return usage("--prefix-share wants FRACTION:TOKENS, --fork-share FRACTION:COUNT[:AT]");
    if (o->trace) {
        size_t n = strlen(o->trace);
        bool lines = n > 6 && strcmp(o->trace + n - 6, ".jsonl") == 0;
        if (!trace_path(o, path))
            return usage("--trace takes no arrivals, prefixes or forks");
        request.type = lines ? "application/x-ndjson" : "text/csv";
        request.file = o->trace;
    }
    if (c->argc == 1) {
        request.file = c->argv[0];
        if (o->count || o->seed || o->length_scale || o->time_scale || o->verify || o->prefill ||
            o->arrival_rate || o->arrival_cv || o->prefix_share || o->fork_share || o->sharing)
            return usage("a workload file says it all: options belong to --shape and --trace");
    }
    if (request.file && access(request.file, R_OK) != 0) {
        perror(request.file);
        return EXIT_USAGE;
    }
    struct http_reply reply = http_client_send(c->client, &request);
    free(body);
    if (progress.terminal && progress.last && !o->json)
        fputs("\r\033[K", stderr);
    bool ended = progress.last && strcmp(text(progress.last, "state"), "finished") == 0;
    const cJSON *verify = at(progress.last, "verify");
    enum exit_code code =
        ended && (!cJSON_IsObject(verify) || cJSON_IsTrue(at(verify, "ok"))) ? EXIT_OK : EXIT_FAILED;
    if (reply.status < 200 || reply.status > 299) {
        code = explain(&reply);
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

/* ---- looking ------------------------------------------------------------------------------------- */

static int run_stats(const struct command *c)
{
    cJSON *r;
    int code = ask(c, "GET", "/stats?limit=1", NULL, &r);
    if (!r)
        return code;
    printf("up %.1f s, %s (%s) on %.0f threads\n", number(r, "uptime_s"), text(r, "backend.name"),
           text(r, "backend.isa"), number(r, "backend.threads"));
    row("blocks", "%.0f: %.0f free, %.0f held (%.0f shared), %.0f cached, %.0f fenced",
        number(r, "pool.blocks"), number(r, "pool.free"), number(r, "pool.held"), number(r, "pool.shared"),
        number(r, "pool.cached"), number(r, "pool.fenced"));
    row("tokens", "%.0f in sequences, %.0f stored: sharing %.2f", number(r, "pool.tokens_logical"),
        number(r, "pool.tokens_physical"), number(r, "pool.sharing_ratio"));
    row("sequences", "%.0f: %.0f idle, %.0f queued, %.0f running", number(r, "sequences.count"),
        number(r, "scheduler.idle"), number(r, "scheduler.queued"), number(r, "scheduler.running"));
    row("steps", "%.0f, p50 %.0f us, p99 %.0f us, %.0f rows at most", number(r, "scheduler.steps"),
        number(r, "scheduler.step_us.p50"), number(r, "scheduler.step_us.p99"),
        number(r, "scheduler.batch_rows.max"));
    row("read", "%.2f GB, %.2f GB/s, %.2f of the machine's %.1f GB/s",
        number(r, "scheduler.bytes_read") * 1e-9, number(r, "scheduler.gb_per_s"),
        number(r, "scheduler.roof_fraction"), number(r, "scheduler.roof_gb_per_s"));
    if (cJSON_IsString(at(r, "scheduler.above_roof")))
        row("", "%s", text(r, "scheduler.above_roof"));
    row("since the start", "%.0f forks, %.0f copies on write, %.0f evictions, %.0f refused for blocks",
        number(r, "counters.forks"), number(r, "counters.cow_copies"), number(r, "counters.evictions"),
        number(r, "counters.alloc_failures"));
    cJSON_Delete(r);
    return code;
}

static int run_audit(const struct command *c)
{
    cJSON *r;
    int code = ask(c, "POST", "/v1/audit", NULL, &r);
    if (r)
        row("audit", "%s, %d invariants", cJSON_IsTrue(at(r, "ok")) ? "ok" : "NOT OK",
            cJSON_GetArraySize(at(r, "checked")));
    cJSON_Delete(r);
    return code;
}

/* One character for a block: '.' free, 'c' cached, 'f' fenced, and held: its references, '+' for more
 * than 9. */
static char block_mark(const cJSON *block)
{
    const char *state = text(block, "state");
    double refs = number(block, "refs");
    if (strcmp(state, "held") == 0)
        return refs > 9 ? '+' : (char)('0' + (int)refs);
    return strcmp(state, "free") == 0 ? '.' : state[0];
}

static int run_blocks(const struct command *c)
{
    char path[PATH_BYTES];
    double next = 0;
    unsigned long shown = 0;
    int code = EXIT_OK;
    do {
        cJSON *page;
        const cJSON *block;
        snprintf(path, sizeof path, "/v1/blocks?limit=%d&cursor=%.0f", PAGE, next);
        code = ask(c, "GET", path, NULL, &page);
        if (!page)
            return code; /* with --json the first page is what there is to print */
        cJSON_ArrayForEach (block, at(page, "blocks")) {
            if (shown % MAP_COLUMNS == 0)
                printf("%s%8lu  ", shown ? "\n" : "", shown);
            putchar(block_mark(block));
            shown++;
        }
        next = number(page, "next");
        cJSON_Delete(page);
    } while (next > 0);
    puts("\n\n. free   1-9 + held by so many sequences   c cached   f fenced");
    return code;
}

/* ---- sequences ----------------------------------------------------------------------------------- */

static void show_sequence(const cJSON *s)
{
    const cJSON *block;
    printf("%8.0f  %-7s %8.0f tokens  %5d blocks (%.0f shared)", number(s, "id"), text(s, "state"),
           number(s, "length"), cJSON_GetArraySize(at(s, "blocks")), number(s, "shared_blocks"));
    if (number(s, "parent") > 0)
        printf("  fork of %.0f", number(s, "parent"));
    int left = 8;
    fputs("  [", stdout);
    cJSON_ArrayForEach (block, at(s, "blocks")) {
        if (left-- == 0) {
            fputs(" ...", stdout);
            break;
        }
        printf("%s%.0f", left == 7 ? "" : " ", block->valuedouble);
    }
    puts("]");
}

static int list_sequences(const struct command *c)
{
    char path[PATH_BYTES];
    double next = 0;
    int code = EXIT_OK;
    do {
        cJSON *page;
        const cJSON *item;
        snprintf(path, sizeof path, "/v1/sequences?limit=100&cursor=%.0f", next);
        code = ask(c, "GET", path, NULL, &page);
        if (!page)
            return code;
        cJSON_ArrayForEach (item, at(page, "items")) {
            show_sequence(item);
        }
        next = number(page, "next");
        cJSON_Delete(page);
    } while (next > 0);
    return code;
}

static int run_seq(const struct command *c)
{
    char path[PATH_BYTES], body[64] = "{}";
    const char *verb = c->argc > 0 ? c->argv[0] : "list", *id = c->argc > 1 ? c->argv[1] : "";
    cJSON *tree;
    const cJSON *item;
    if (strcmp(verb, "list") == 0)
        return list_sequences(c);
    if (strcmp(verb, "new") != 0 && (!*id || strspn(id, "0123456789") != strlen(id)))
        return usage("seq wants new, or show, fork, truncate or delete and an id");
    snprintf(path, sizeof path, "/v1/sequences/%.20s", id);
    const char *method = "GET", *sent = NULL;
    if (strcmp(verb, "new") == 0) {
        snprintf(path, sizeof path, "/v1/sequences");
        method = "POST";
        sent = body;
    } else if (strcmp(verb, "fork") == 0) {
        snprintf(path, sizeof path, "/v1/sequences/%.20s/fork", id);
        if (c->argc > 2)
            snprintf(body, sizeof body, "{\"count\":%ld}", strtol(c->argv[2], NULL, 10));
        method = "POST";
        sent = body;
    } else if (strcmp(verb, "truncate") == 0 && c->argc > 2) {
        snprintf(path, sizeof path, "/v1/sequences/%.20s/truncate", id);
        snprintf(body, sizeof body, "{\"length\":%ld}", strtol(c->argv[2], NULL, 10));
        method = "POST";
        sent = body;
    } else if (strcmp(verb, "delete") == 0) {
        method = "DELETE";
    } else if (strcmp(verb, "show") != 0) {
        return usage("seq wants new, show ID, fork ID [COUNT], truncate ID LENGTH or delete ID");
    }
    int code = ask(c, method, path, sent, &tree);
    if (tree && at(tree, "sequences")) {
        cJSON_ArrayForEach (item, at(tree, "sequences")) {
            show_sequence(item);
        }
    } else if (tree) {
        show_sequence(tree);
    }
    cJSON_Delete(tree);
    return code;
}

/* ---- keys ---------------------------------------------------------------------------------------- */

/* Make a key of 256 random bits, as text that needs no quoting anywhere. */
static bool make_key(char key[KEY_BYTES])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[43]; /* of 6 bits each */
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return false;
    size_t n = (size_t)snprintf(key, KEY_BYTES, "attnd_");
    for (size_t i = 0; i < sizeof random; i++)
        key[n + i] = digits[random[i] & 63];
    key[n + sizeof random] = '\0';
    return true;
}

static int run_key(const struct command *c)
{
    static const char *const scopes[] = {
#define XX(constant, name, bit, includes) name,
        SCOPE_MAP(XX)
#undef XX
    };
    char key[KEY_BYTES], digest[SHA256_DIGEST_STRING_LENGTH];
    if (c->argc < 2 || strcmp(c->argv[0], "new") != 0)
        return usage("key wants new NAME [SCOPE]...");
    cJSON *entry = cJSON_CreateObject(), *list = cJSON_CreateArray();
    for (int i = 2; i < c->argc; i++) {
        bool known = false;
        for (size_t s = 0; s < sizeof scopes / sizeof scopes[0]; s++)
            known |= strcmp(scopes[s], c->argv[i]) == 0;
        if (!known) {
            cJSON_Delete(entry);
            cJSON_Delete(list);
            return usage("scopes are"
#define XX(constant, name, bit, includes) " " name
                         SCOPE_MAP(XX)
#undef XX
            );
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(c->argv[i]));
    }
    if (c->argc == 2)
        cJSON_AddItemToArray(list, cJSON_CreateString("infer"));
    if (!make_key(key)) {
        cJSON_Delete(entry);
        cJSON_Delete(list);
        fprintf(stderr, "attnctl: no random numbers: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    SHA256Data((const uint8_t *)key, strlen(key), digest);
    cJSON_AddStringToObject(entry, "name", c->argv[1]);
    cJSON_AddStringToObject(entry, "sha256", digest);
    cJSON_AddItemToObject(entry, "scopes", list);
    char *text = cJSON_PrintUnformatted(entry);
    if (c->o->json)
        printf("{\"key\":\"%s\",\"entry\":%s}\n", key, text);
    else
        printf("the key, for the client; it is kept nowhere else:\n    %s\n"
               "its entry, for \"keys\" in the daemon's keys.file; then send the daemon SIGHUP:\n    %s\n",
               key, text);
    free(text);
    cJSON_Delete(entry);
    return EXIT_OK;
}

/* The first line of the key file, to be freed; NULL: it cannot be read. */
static char *read_key(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    ssize_t n = f ? getline(&line, &room, f) : -1;
    if (f)
        fclose(f);
    if (n > 0)
        line[strcspn(line, "\r\n")] = '\0';
    if (n > 0 && *line)
        return line;
    fprintf(stderr, "attnctl: %s: %s\n", path, n < 0 && errno ? strerror(errno) : "has no key");
    free(line);
    return NULL;
}

/* ---- move ---------------------------------------------------------------------------------------- */

static int run_move(const struct command *c)
{
    const struct options *o = c->o;
    char *key = NULL;
    if (!o->to || (c->argc > 0) == o->all)
        return usage("move wants --to URL, and ids or --all");
    if (o->to_key_file && !(key = read_key(o->to_key_file)))
        return EXIT_USAGE;
    struct http_client *to = http_client_create(o->to, key ? key : c->key);
    const struct move_options options = {.from = c->client,
                                         .to = to,
                                         .url = o->as                             ? o->as
                                                : strncmp(o->to, "unix:", 5) == 0 ? ""
                                                                                  : o->to,
                                         .salt = o->salt,
                                         .ids = c->argv,
                                         .count = o->all ? 0 : (size_t)c->argc,
                                         .json = o->json};
    if (!to)
        return usage("out of memory");
    enum move_result result = move_run(&options);
    http_client_destroy(to);
    free(key);
    return result == MOVE_DONE ? EXIT_OK : result == MOVE_UNAVAILABLE ? EXIT_UNAVAILABLE : EXIT_FAILED;
}

/* ---- main ---------------------------------------------------------------------------------------- */

static bool parse_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {{"url", required_argument, NULL, 'u'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"key-file", required_argument, NULL, 'k'},
                                          {"shape", required_argument, NULL, 1},
                                          {"trace", required_argument, NULL, 2},
                                          {"count", required_argument, NULL, 3},
                                          {"seed", required_argument, NULL, 4},
                                          {"length-scale", required_argument, NULL, 5},
                                          {"time-scale", required_argument, NULL, 6},
                                          {"verify", required_argument, NULL, 7},
                                          {"prefill", required_argument, NULL, 8},
                                          {"arrival-rate", required_argument, NULL, 9},
                                          {"arrival-cv", required_argument, NULL, 10},
                                          {"prefix-share", required_argument, NULL, 11},
                                          {"fork-share", required_argument, NULL, 12},
                                          {"sharing", required_argument, NULL, 13},
                                          {"to", required_argument, NULL, 14},
                                          {"to-key-file", required_argument, NULL, 15},
                                          {"as", required_argument, NULL, 16},
                                          {"salt", required_argument, NULL, 17},
                                          {"all", no_argument, NULL, 'a'},
                                          {NULL, 0, NULL, 0}};
    const char **const values[] = {
        &o->shape,   &o->trace,   &o->count,        &o->seed,       &o->length_scale, &o->time_scale,
        &o->verify,  &o->prefill, &o->arrival_rate, &o->arrival_cv, &o->prefix_share, &o->fork_share,
        &o->sharing, &o->to,      &o->to_key_file,  &o->as,         &o->salt};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == 'u') {
            o->url = optarg;
        } else if (c == 'k') {
            o->key_file = optarg;
        } else if (c == 'a') {
            o->all = true;
        } else if (c == 'j') {
            o->json = true;
        } else if (c == 'h') {
            print_help();
            exit(EXIT_OK);
        } else if (c >= 1 && c <= (int)(sizeof values / sizeof values[0])) {
            *values[c - 1] = optarg;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct command *c);
    } commands[] = {{"run", run_workload}, {"stats", run_stats}, {"blocks", run_blocks}, {"audit", run_audit},
                    {"seq", run_seq},      {"move", run_move},   {"key", run_key}};
    const char *from_environment = getenv("ATTNCTL_URL");
    struct options o = {.url = from_environment ? from_environment : "http://127.0.0.1:8400",
                        .key_file = getenv("ATTNCTL_KEY_FILE")};
    char *key = NULL;
    if (!parse_options(argc, argv, &o))
        return EXIT_USAGE;
    if (optind == argc)
        return usage("a command is missing");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[optind], commands[i].name) != 0)
            continue;
        if (o.key_file && commands[i].run != run_key && !(key = read_key(o.key_file)))
            return EXIT_USAGE;
        struct command command = {http_client_create(o.url, key), &o, argc - optind - 1, argv + optind + 1,
                                  key};
        if (!command.client)
            return usage("out of memory");
        int code = commands[i].run(&command);
        http_client_destroy(command.client);
        free(key);
        return code;
    }
    return usage("there is no such command");
}
