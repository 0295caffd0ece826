/* SPDX-License-Identifier: Apache-2.0 */
/* waiting.c - see waiting.h. Also the command of that name. */
#include "clients/waiting.h"
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"
#include "config/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double STILL_S = 1;   /* without a step, until it is asked why */
static const double ASK_AGAIN = 1; /* seconds */

/* ---- an item of /v1/waiting ---------------------------------------------------------------------- */

void waiting_who(const cJSON *item, char who[WAITING_WHO])
{
    const cJSON *id;
    const char *kind = answer_text(item, "kind");
    terminal_escape(kind, who, WAITING_WHO);
    size_t n = strlen(who);
    if (answer_number(item, "workload") > 0 && n + 32 < WAITING_WHO)
        n += (size_t)snprintf(who + n, WAITING_WHO - n, "%s %.0f",
                              strcmp(kind, "workload") == 0 ? "" : " workload",
                              answer_number(item, "workload"));
    cJSON_ArrayForEach (id, answer_at(item, "sequences")) {
        if (n + 32 < WAITING_WHO)
            n += (size_t)snprintf(who + n, WAITING_WHO - n, " %.0f", id->valuedouble);
    }
}

void waiting_why(const cJSON *item, char why[WAITING_WHY])
{
    terminal_escape(answer_text(item, "detail"), why, WAITING_WHY);
    if (cJSON_IsNumber(answer_at(item, "estimate_s"))) {
        size_t n = strlen(why);
        snprintf(why + n, WAITING_WHY - n, "; changes in about %.1f s", answer_number(item, "estimate_s"));
    }
}

/* ---- a workload that stands still ---------------------------------------------------------------- */

/* What the daemon says of a workload, to watch->why; "" when it says nothing. */
static void ask(struct waiting_watch *w, double workload)
{
    struct command c = *w->command;
    const cJSON *item;
    cJSON *answer = NULL;
    if (!w->client)
        w->client = http_client_create(c.url, c.key, c.ca_file);
    w->why[0] = '\0';
    if (!(c.client = w->client))
        return;
    command_try(&c, "/v1/waiting", &answer);
    cJSON_ArrayForEach (item, answer_at(answer, "items")) {
        if (strcmp(answer_text(item, "kind"), "workload") == 0 && answer_number(item, "workload") == workload)
            waiting_why(item, w->why);
    }
    cJSON_Delete(answer);
}

static void clear(struct waiting_watch *w)
{
    if (w->shown)
        fputs("\r\033[K", stderr);
    w->shown = false;
}

/* Say why; the time goes on in a terminal only. */
static void say(struct waiting_watch *w, double now)
{
    char line[WAITING_WHY + 64];
    if (isatty(STDERR_FILENO)) {
        snprintf(line, sizeof line, "waits %.0f s: %s", now - w->moved_s, w->why);
        fprintf(stderr, "\r\033[K%.*s", terminal_columns(stderr) - 1, line);
        w->shown = true;
    } else if (strcmp(w->why, w->said) != 0) {
        fprintf(stderr, "waits: %s\n", w->why);
        memcpy(w->said, w->why, sizeof w->said);
    }
    fflush(stderr);
}

bool waiting_look(struct waiting_watch *w, const cJSON *report)
{
    double now = clock_s(), steps = answer_number(report, "steps");
    bool goes_on = w->moved_s == 0 || steps != w->steps || answer_number(report, "sequences.running") > 0 ||
                   strcmp(answer_text(report, "state"), "running") != 0;
    if (goes_on) {
        w->moved_s = now;
        w->steps = steps;
        w->why[0] = w->said[0] = '\0';
        clear(w);
        return false;
    }
    if (now - w->moved_s < STILL_S)
        return false;
    if (now - w->asked_s >= ASK_AGAIN) {
        ask(w, answer_number(report, "id"));
        w->asked_s = now;
        if (w->why[0])
            say(w, now);
    }
    return w->why[0] != '\0';
}

void waiting_end(struct waiting_watch *w)
{
    clear(w);
    http_client_destroy(w->client);
    w->client = NULL;
}

/* ---- the command --------------------------------------------------------------------------------- */

static int list(const struct command *c)
{
    char who[WAITING_WHO], why[WAITING_WHY];
    const cJSON *item;
    cJSON *answer;
    int code = command_ask(c, "GET", "/v1/waiting", NULL, &answer);
    double others = answer_number(answer, "others");
    int count = cJSON_GetArraySize(answer_at(answer, "items"));
    if (answer) {
        command_put_node(c);
        if (count > 0 || others > 0)
            printf("%.0f wait%s\n", count + others, count + others == 1 ? "s" : "");
        else
            puts("nothing waits");
    }
    cJSON_ArrayForEach (item, answer_at(answer, "items")) {
        waiting_who(item, who);
        waiting_why(item, why);
        printf("%-16s %8.1f s  %s\n", who, answer_number(item, "since_s"), why);
    }
    if (others > 0)
        printf("%.0f of other keys\n", others);
    cJSON_Delete(answer);
    return code;
}

static const struct command_verb verbs[] = {{"", "", 0, 0, NULL, list}, {0}};

const struct command_info waiting_info = {
    .name = "waiting",
    .text = "what waits, for how long, and why",
    .verbs = verbs,
    .more = "Calls that wait for a step, and of each workload the sequence that is next.\n"
            "docs/API.md has the reasons."};
