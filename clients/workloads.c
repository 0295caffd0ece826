/* SPDX-License-Identifier: Apache-2.0 */
/* workloads.c - list, show, follow and cancel workloads, whoever started them. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/report.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 256 };

static int list(const struct command *c)
{
    cJSON *page;
    const cJSON *item;
    int code = command_ask(c, "GET", "/v1/workloads", NULL, &page);
    int count = cJSON_GetArraySize(answer_at(page, "items"));
    if (page) {
        command_put_node(c);
        if (count > 0)
            printf("%d workload%s\n", count, answer_plural(count));
        else
            puts("no workload runs or has ended lately");
    }
    cJSON_ArrayForEach (item, answer_at(page, "items")) {
        printf("%6.0f  %-9s %8.0f of %.0f token%s  %6.0f %-9s  %6.1f GB/s  %8.2f s",
               answer_number(item, "id"), report_waits(item) ? "waiting" : answer_text(item, "state"),
               answer_number(item, "tokens.done"), answer_number(item, "tokens.total"),
               answer_plural(answer_number(item, "tokens.total")), answer_number(item, "sequences.total"),
               answer_number(item, "sequences.total") == 1 ? "sequence" : "sequences",
               answer_number(item, "gb_per_s"), answer_number(item, "wall_s"));
        if (*answer_text(item, "owner")) {
            fputs("  ", stdout);
            terminal_put(stdout, answer_text(item, "owner"));
        }
        putchar('\n');
    }
    cJSON_Delete(page);
    return code;
}

static int show_answer(const struct command *c, const char *method)
{
    char path[COMMAND_PATH_BYTES];
    cJSON *report;
    if (!command_id_path(c, "workloads", "", path))
        return EXIT_USAGE;
    int code = command_ask(c, method, path, NULL, &report);
    if (report)
        report_show(report);
    cJSON_Delete(report);
    return code;
}

static int show(const struct command *c)
{
    return show_answer(c, "GET");
}

static int cancel(const struct command *c)
{
    return show_answer(c, "DELETE");
}

static void on_event(const char *line, size_t bytes, void *cookie)
{
    const struct command *c = cookie;
    char text[LINE_BYTES];
    cJSON *report = cJSON_ParseWithLength(line, bytes);
    if (c->json || !report) {
        printf("%.*s\n", (int)bytes, line);
    } else {
        const char *state = answer_text(report, "state");
        report_line(report, text, sizeof text);
        printf("%-9s ", report_waits(report) ? "waiting" : state);
        puts(text);
        if (strcmp(state, "running") != 0 && strcmp(state, "verifying") != 0)
            report_show(report);
    }
    fflush(stdout);
    cJSON_Delete(report);
}

static int follow(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    struct command cookie = *c;
    if (!command_id_path(c, "workloads", "/events", path))
        return EXIT_USAGE;
    return command_follow(c, path, on_event, &cookie, NULL);
}

static const struct command_verb verbs[] = {
    {"list", "", 0, 0, NULL, list},
    {"show", "ID", 1, 1, "its report, as far as it is", show},
    {"events", "ID", 1, 1, "a line for each of its events, then its report", follow},
    {"cancel", "ID", 1, 1, NULL, cancel},
    {0}};

const struct command_info workloads_info = {
    .name = "workload", .text = "list, show, follow and cancel workloads", .verbs = verbs};
