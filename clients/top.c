/* SPDX-License-Identifier: Apache-2.0 */
/* top.c - what the daemon does now: steps, bytes, the pool, what waits and why, workloads and sequences.
 *
 *     attnd http://127.0.0.1:8400  node n0  up 0:12:00  cpu (avx2), 2 threads
 *     steps       52.0/s, 1832 in all; p50 812 us, p99 2105 us; 64 rows at most
 *     read        [##########..........]  14.1 GB/s, 0.52 of the roof (27.0 GB/s)
 *     pool        [################----cccc....]  4096: 2211 held (512 shared), 310 cached, 1575 free
 *     ...
 *
 * All of it is asked for anew each time. What a daemon does not have, or not for this key, is done without, and said. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/screen.h"
#include "clients/terminal.h"
#include "clients/waiting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    READ_CELLS = 24,
    POOL_CELLS = 24,
    STRIP_CELLS = 64,
    TEXT_BYTES = 192,
    WAITING_MOST = 5,
    WORKLOADS_MOST = 3,
    ONCE_SEQUENCES = 20 /* lines where there is no terminal */
};

struct top {
    const struct command *c;
    struct screen screen;
    double uptime_s, steps, bytes; /* of the last frame, to say what came since */
    bool has_before, sees_all, has_begun;
    char node[TEXT_BYTES]; /* that answers, as it is shown; "": it does not say */
    time_t silent_since;   /* 0: it answers */
};

/* Note who answers, and stay with it: behind a proxy figures of another node are no continuation. */
static void note_node(struct top *t, const cJSON *r)
{
    const cJSON *node = answer_at(r, "node");
    terminal_escape(http_client_node(t->c->client), t->node, sizeof t->node);
    if (cJSON_IsNumber(node) && node->valuedouble >= 0 && !t->c->node)
        http_client_ask_node(t->c->client, (uint64_t)node->valuedouble);
}

static void title(struct top *t, const cJSON *r)
{
    char name[TEXT_BYTES], isa[TEXT_BYTES], url[TEXT_BYTES];
    double up = answer_number(r, "uptime_s");
    screen_line(&t->screen, "%sattnd %s%s%s%s  up %.0f:%02.0f:%02.0f  %s (%s), %.0f thread%s",
                screen_style(&t->screen, SCREEN_BOLD), terminal_escape(t->c->url, url, sizeof url),
                screen_style(&t->screen, SCREEN_PLAIN), *t->node ? "  node " : "", t->node,
                (double)(uint64_t)(up / 3600), (double)((uint64_t)(up / 60) % 60),
                (double)((uint64_t)up % 60),
                terminal_escape(answer_text(r, "backend.name"), name, sizeof name),
                terminal_escape(answer_text(r, "backend.isa"), isa, sizeof isa),
                answer_number(r, "backend.threads"), answer_plural(answer_number(r, "backend.threads")));
    if (answer_at(r, "draining"))
        screen_line(&t->screen, "draining  %.0f s more for clients",
                    answer_number(r, "draining.lame_duck_s"));
}

/* Steps and bytes a second since the last frame; in the first one, since the start. */
static void rates(struct top *t, const cJSON *r)
{
    char bar[READ_CELLS + 1];
    double up = answer_number(r, "uptime_s"), steps = answer_number(r, "scheduler.steps");
    double bytes = answer_number(r, "scheduler.bytes_read"),
           roof = answer_number(r, "scheduler.roof_gb_per_s");
    double seconds = answer_number(r, "scheduler.latest.seconds");
    double passed = t->has_before && up > t->uptime_s ? up - t->uptime_s : up;
    double new_steps = t->has_before ? steps - t->steps : steps,
           new_bytes = t->has_before ? bytes - t->bytes : bytes;
    double in_steps = seconds > 0 ? answer_number(r, "scheduler.latest.bytes_read") / seconds * 1e-9 : 0;
    double now = passed > 0 ? new_bytes / passed * 1e-9 : 0;
    screen_line(&t->screen, "steps     %.1f/s, %.0f in all; p50 %.0f us, p99 %.0f us; %.0f row%s at most",
                passed > 0 ? new_steps / passed : 0, steps, answer_number(r, "scheduler.step_us.p50"),
                answer_number(r, "scheduler.step_us.p99"), answer_number(r, "scheduler.batch_rows.max"),
                answer_plural(answer_number(r, "scheduler.batch_rows.max")));
    screen_bar(bar, READ_CELLS, (const double[]){roof > 0 ? now / roof : 0}, "#", 1);
    screen_line(&t->screen, "read      [%s%s%s] %.1f GB/s of %.1f (roof); %.1f within steps",
                screen_style(&t->screen, SCREEN_GREEN), bar, screen_style(&t->screen, SCREEN_PLAIN), now,
                roof, in_steps);
    t->uptime_s = up;
    t->steps = steps;
    t->bytes = bytes;
    t->has_before = true;
}

static void pool(struct top *t, const cJSON *r)
{
    char bar[POOL_CELLS + 1], of_these[32] = "";
    double blocks = answer_number(r, "pool.blocks"), shared = answer_number(r, "pool.shared");
    double held = answer_number(r, "pool.held"), cached = answer_number(r, "pool.cached");
    const double parts[] = {shared / blocks, (held - shared) / blocks, cached / blocks};
    screen_bar(bar, POOL_CELLS, parts, "S#c", 3);
    if (shared > 0)
        snprintf(of_these, sizeof of_these, " (%.0f Shared)", shared);
    screen_line(&t->screen, "pool      [%s%s%s] %.0f: %.0f held%s, %.0f cached, %.0f free",
                screen_style(&t->screen, SCREEN_CYAN), bar, screen_style(&t->screen, SCREEN_PLAIN), blocks,
                held, of_these, cached, answer_number(r, "pool.free"));
    screen_line(
        &t->screen,
        "          %.0f tokens, %.0f stored (sharing %.2f); %.0f copies, %.0f evictions, %.0f/%.0f swaps",
        answer_number(r, "pool.tokens_logical"), answer_number(r, "pool.tokens_physical"),
        answer_number(r, "pool.sharing_ratio"), answer_number(r, "counters.cow_copies"),
        answer_number(r, "counters.evictions"), answer_number(r, "counters.swaps_out"),
        answer_number(r, "counters.swaps_in"));
}

/* The mean of a column; false: none of it was measured. */
static bool mean_of(const cJSON *columns, const char *name, double *mean)
{
    const cJSON *item;
    double sum = 0, count = 0;
    cJSON_ArrayForEach (item, answer_at(columns, name)) {
        sum += cJSON_IsNumber(item) ? item->valuedouble : 0;
        count += cJSON_IsNumber(item);
    }
    *mean = count > 0 ? sum / count : 0;
    return count > 0;
}

/* The latest steps: a character each for its share of the roof, and where the time went. */
static void strip(struct top *t)
{
    static const char levels[] = " .:-=+*#%@";
    static const char *const names[] = {"queue_us",   "plan_us",  "upload_us",
                                        "compute_us", "merge_us", "idle_us"};
    char path[COMMAND_PATH_BYTES], line[STRIP_CELLS + 1], times[TEXT_BYTES] = "", *end = times;
    const cJSON *item;
    cJSON *answer;
    size_t n = 0;
    snprintf(path, sizeof path, "/v1/steps?limit=%d", STRIP_CELLS);
    struct http_reply reply = command_try(t->c, path, &answer);
    if (!answer) {
        screen_line(&t->screen, "steps     %s",
                    reply.status == 404 ? "no /v1/steps at this daemon: no strip of steps"
                                        : "/v1/steps is not for this key");
        return;
    }
    const cJSON *columns = answer_at(answer, "columns");
    cJSON_ArrayForEach (item, answer_at(columns, "roof_fraction")) {
        double part = cJSON_IsNumber(item) ? item->valuedouble : 0;
        size_t level = part >= 1  ? sizeof levels - 2
                       : part > 0 ? (size_t)(part * (double)(sizeof levels - 1))
                                  : 0;
        if (n < STRIP_CELLS)
            line[n++] = levels[level];
    }
    line[n] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double mean;
        if (mean_of(columns, names[i], &mean))
            end += snprintf(end, (size_t)(times + sizeof times - end), "%s%.*s %.0f",
                            end == times ? "" : ", ", (int)strlen(names[i]) - 3, names[i], mean);
    }
    screen_line(&t->screen, "of roof   |%s|", line);
    screen_line(&t->screen, "us a step %s", *times ? times : "(no steps yet)");
    cJSON_Delete(answer);
}

/* What waits, and why: the scheduler's own words. */
static void waiting(struct top *t, const cJSON *stats)
{
    char who[WAITING_WHO], why[WAITING_WHY];
    const cJSON *item;
    cJSON *answer;
    int left = WAITING_MOST;
    struct http_reply reply = command_try(t->c, "/v1/waiting", &answer);
    if (!answer) {
        screen_line(&t->screen, "waiting   %.0f sequence%s queued; %s",
                    answer_number(stats, "scheduler.queued"),
                    answer_plural(answer_number(stats, "scheduler.queued")),
                    reply.status == 404 ? "no /v1/waiting at this daemon: not said why"
                                        : "/v1/waiting is not for this key");
        return;
    }
    double count = answer_number(answer, "count"), others = answer_number(answer, "others");
    screen_line(&t->screen, "waiting   %.0f%s", count, count > 0 ? ":" : "");
    cJSON_ArrayForEach (item, answer_at(answer, "items")) {
        if (left-- == 0)
            break;
        waiting_who(item, who);
        waiting_why(item, why);
        screen_line(&t->screen, "  %s%s%s  %.1f s  %s", screen_style(&t->screen, SCREEN_YELLOW), who,
                    screen_style(&t->screen, SCREEN_PLAIN), answer_number(item, "since_s"), why);
    }
    if (others > 0)
        screen_line(&t->screen, "  and %.0f of other keys", others);
    cJSON_Delete(answer);
}

static void workloads(struct top *t)
{
    const cJSON *item;
    cJSON *answer;
    int left = WORKLOADS_MOST;
    command_try(t->c, "/v1/workloads", &answer);
    cJSON_ArrayForEach (item, answer_at(answer, "items")) {
        const char *state = answer_text(item, "state");
        if ((strcmp(state, "running") != 0 && strcmp(state, "verifying") != 0) || left-- <= 0)
            continue;
        screen_line(&t->screen,
                    "workload  %.0f %s: %.0f of %.0f tokens; %.0f waiting, %.0f running, %.0f finished",
                    answer_number(item, "id"), state, answer_number(item, "tokens.done"),
                    answer_number(item, "tokens.total"), answer_number(item, "sequences.waiting"),
                    answer_number(item, "sequences.running"), answer_number(item, "sequences.finished"));
    }
    cJSON_Delete(answer);
}

static void sequence(struct top *t, const cJSON *s)
{
    static const struct {
        const char *state;
        enum screen_style style;
    } styles[] = {{"running", SCREEN_GREEN}, {"queued", SCREEN_YELLOW}, {"swapped", SCREEN_MAGENTA}};
    const char *state = answer_text(s, "state"), *style = "";
    char parent[32] = "-", shown[32];
    for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
        if (strcmp(styles[i].state, state) == 0)
            style = screen_style(&t->screen, styles[i].style);
    }
    if (answer_number(s, "parent") > 0)
        snprintf(parent, sizeof parent, "%.0f", answer_number(s, "parent"));
    screen_line(&t->screen, "%12.0f  %s%-8s%s %8.0f  %7.0f  %7.0f  %10s  %6.1f", answer_number(s, "id"),
                style, terminal_escape(state, shown, sizeof shown), screen_style(&t->screen, SCREEN_PLAIN),
                answer_number(s, "length"), answer_number(s, "block_count"),
                answer_number(s, "shared_blocks"), parent, answer_number(s, "idle_s"));
}

/* As many as there is room for, those that do something first. */
static void sequences(struct top *t, const cJSON *stats)
{
    static const char *const states[] = {"running", "queued", "swapped", "idle"};
    char path[COMMAND_PATH_BYTES];
    int left = t->screen.live ? t->screen.lines - t->screen.used - 2 : ONCE_SEQUENCES;
    double count = answer_number(stats, "sequences.count"), leases = answer_number(stats, "leases");
    double running = answer_number(stats, "scheduler.running");
    double queued = answer_number(stats, "scheduler.queued");
    double swapped = answer_number(stats, "scheduler.swapped"), idle = answer_number(stats, "scheduler.idle");
    if (t->sees_all)
        screen_line(&t->screen,
                    "sequences %.0f: %.0f running, %.0f queued, %.0f swapped, %.0f idle; %.0f lease%s", count,
                    running, queued, swapped, idle, leases, answer_plural(leases));
    else
        screen_line(
            &t->screen,
            "sequences %.0f, leases %.0f yours; all keys: %.0f running, %.0f queued, %.0f swapped, %.0f idle",
            count, leases, running, queued, swapped, idle);
    if (count == 0)
        return;
    screen_line(&t->screen, "%s          id  state      tokens   blocks   shared      parent  idle s%s",
                screen_style(&t->screen, SCREEN_BOLD), screen_style(&t->screen, SCREEN_PLAIN));
    for (size_t i = 0; i < sizeof states / sizeof states[0] && left > 0; i++) {
        const cJSON *item;
        cJSON *page;
        snprintf(path, sizeof path, "/v1/sequences?state=%s&limit=%d", states[i], left);
        command_try(t->c, path, &page);
        cJSON_ArrayForEach (item, answer_at(page, "items")) {
            if (left-- > 0)
                sequence(t, item);
        }
        cJSON_Delete(page);
    }
}

/* One frame; false: *reply says why there is none. */
static bool frame(struct top *t, struct http_reply *reply)
{
    cJSON *stats;
    *reply = command_try(t->c, "/stats?limit=1", &stats);
    if (!stats)
        return false;
    note_node(t, stats);
    t->has_before &= t->silent_since == 0; /* it may have been started anew */
    t->silent_since = 0;
    t->has_begun = true;
    screen_begin(&t->screen);
    title(t, stats);
    rates(t, stats);
    pool(t, stats);
    strip(t);
    waiting(t, stats);
    workloads(t);
    sequences(t, stats);
    screen_show(&t->screen);
    cJSON_Delete(stats);
    return true;
}

/* Text in lines that fit, cut between words. */
static void lines_of_words(struct top *t, const char *text)
{
    int most = t->screen.columns > 4 ? t->screen.columns - 2 : 2;
    while (*text) {
        int n = (int)strnlen(text, (size_t)most + 1), cut = n;
        while (n > most && cut > 0 && text[--cut] != ' ') {
        }
        if (n > most && cut == 0)
            cut = (int)strcspn(text, " "); /* a long word: screen_line() cuts it */
        screen_line(&t->screen, "  %.*s", cut, text);
        text += cut + (int)strspn(text + cut, " ");
    }
}

/* In place of a frame: since when there is none, and why. */
static void silence(struct top *t, const struct http_reply *reply)
{
    char url[TEXT_BYTES], since[32] = "";
    char *reason = command_reason(reply);
    struct tm at;
    if (!t->silent_since)
        t->silent_since = time(NULL);
    if (localtime_r(&t->silent_since, &at))
        strftime(since, sizeof since, "%H:%M:%S", &at);
    screen_begin(&t->screen);
    screen_line(&t->screen, "%sattnd %s%s%s%s", screen_style(&t->screen, SCREEN_BOLD),
                terminal_escape(t->c->url, url, sizeof url), screen_style(&t->screen, SCREEN_PLAIN),
                *t->node ? "  node " : "", t->node);
    screen_line(&t->screen, "%sno answer since %s%s:", screen_style(&t->screen, SCREEN_RED), since,
                screen_style(&t->screen, SCREEN_PLAIN));
    lines_of_words(t, reason);
    screen_line(&t->screen, "it is asked again until q or Ctrl-C");
    screen_show(&t->screen);
    free(reason);
}

static int run_top(const struct command *c)
{
    struct top t = {.c = c};
    struct http_reply reply = {0};
    double interval = 1;
    int key = 0;
    bool ok = true;
    if (!command_number(c, "interval", 0.05, 3600, &interval))
        return EXIT_USAGE;
    t.sees_all = command_sees_all(c);
    screen_open(&t.screen, !command_option(c, "once"));
    while (ok && key != 'q' && key != SCREEN_INTERRUPTED && !terminal_interrupted()) {
        ok = frame(&t, &reply);
        if (!ok && t.screen.live && t.has_begun && !terminal_interrupted()) {
            silence(&t, &reply);
            ok = true;
        }
        key = !t.screen.live ? 'q' : ok ? screen_wait(&t.screen, interval) : key;
    }
    screen_close(&t.screen);
    if (terminal_interrupted())
        return EXIT_INTERRUPTED;
    return ok ? EXIT_OK : command_explain(&reply);
}

static const struct command_verb verbs[] = {{"", "[OPTION]...", 0, 0, NULL, run_top}, {0}};
static const struct command_option options[] = {
    {"interval", "SECONDS", "between two looks (1)"},
    {"once", NULL, "one look, as text; also where there is no terminal"},
    {0}};

const struct command_info top_info = {
    .name = "top",
    .text = "what the daemon does now, live",
    .verbs = verbs,
    .text_only = true,
    .options = options,
    .more = "q or Ctrl-C ends it, any other key looks again. When the daemon answers no\n"
            "more, it says since when and why, and goes on asking. In bars: # is held,\n"
            "S shared, c cached, . free; in the strip of steps from blank (nothing) to @\n"
            "(the roof)."};
