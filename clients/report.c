/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - see report.h. */
#include "clients/report.h"
#include "clients/answer.h"
#include "clients/command.h"

#include <stdio.h>
#include <string.h>

enum { BAR_CELLS = 20 };

void report_line(const cJSON *r, char *line, size_t room)
{
    double done = answer_number(r, "tokens.done"), total = answer_number(r, "tokens.total");
    double part = total > 0 ? done / total : 0;
    char bar[BAR_CELLS + 1];
    for (int i = 0; i < BAR_CELLS; i++)
        bar[i] = i < (int)(part * BAR_CELLS) ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    if (strcmp(answer_text(r, "state"), "verifying") == 0)
        snprintf(line, room, "[%s] verifying %.0f of %.0f rows", bar, answer_number(r, "verify.done"),
                 answer_number(r, "verify.rows"));
    else
        snprintf(
            line, room,
            "[%s] %3.0f %%  %.0f of %.0f tokens  %.1f GB/s (%.2f of roof)  pool %.0f of %.0f  %.0f steps",
            bar, part * 100, done, total, answer_number(r, "gb_per_s"), answer_number(r, "roof_fraction"),
            answer_number(r, "pool.held"), answer_number(r, "pool.blocks"), answer_number(r, "steps"));
}

/* Percentiles; "-" while nothing was timed, of which the daemon says 0. */
static void row_of_times(const cJSON *r, const char *name, const char *path, double scale, const char *unit)
{
    char p50[64], p90[64], p99[64];
    snprintf(p50, sizeof p50, "%s.p50", path);
    snprintf(p90, sizeof p90, "%s.p90", path);
    snprintf(p99, sizeof p99, "%s.p99", path);
    if (answer_number(r, p99) == 0)
        command_row(name, "-");
    else
        command_row(name, "%.2f / %.2f / %.2f %s (p50 / p90 / p99)", answer_number(r, p50) * scale,
                    answer_number(r, p90) * scale, answer_number(r, p99) * scale, unit);
}

/* An error that is no number arrives as null. */
static const char *error_text(const cJSON *item, char text[32])
{
    snprintf(text, 32, "%.5f", cJSON_IsNumber(item) ? item->valuedouble : 0);
    return cJSON_IsNumber(item) ? text : "NaN";
}

/* Whether the outputs were right: known only of a workload that has finished. */
static void row_of_verify(const cJSON *r)
{
    char error[32];
    const cJSON *ok = answer_at(r, "verify.ok");
    if (cJSON_IsBool(ok))
        command_row("verified", "%.0f rows, largest error %s (tolerance %.5f): %s",
                    answer_number(r, "verify.done"), error_text(answer_at(r, "verify.largest_error"), error),
                    answer_number(r, "verify.tolerance"), cJSON_IsTrue(ok) ? "ok" : "NOT OK");
    else
        command_row("verified", "not verified (%s)", answer_text(r, "state"));
}

bool report_waits(const cJSON *r)
{
    return strcmp(answer_text(r, "state"), "running") == 0 && answer_number(r, "steps") == 0 &&
           answer_number(r, "sequences.running") == 0;
}

/* "finished in", "running for", "cancelled after". */
static const char *state_for(const char *state)
{
    bool goes_on = strcmp(state, "running") == 0 || strcmp(state, "verifying") == 0;
    return goes_on ? "for" : strcmp(state, "finished") == 0 ? "in" : "after";
}

/* How many there are, and how many of them have finished where not all have. */
static void row_of_sequences(const cJSON *r)
{
    double total = answer_number(r, "sequences.total"), finished = answer_number(r, "sequences.finished");
    double requests = answer_number(r, "requests"), forks = answer_number(r, "forks");
    if (finished < total)
        command_row("sequences", "%.0f of %.0f finished; they are of %.0f request%s, %.0f fork%s", finished,
                    total, requests, answer_plural(requests), forks, answer_plural(forks));
    else
        command_row("sequences", "%.0f of %.0f request%s, %.0f fork%s", total, requests,
                    answer_plural(requests), forks, answer_plural(forks));
}

void report_show(const cJSON *r)
{
    const char *state = answer_text(r, "state");
    double id = answer_number(r, "id"), wall_s = answer_number(r, "wall_s");
    if (strcmp(state, "running") == 0 && answer_number(r, "steps") == 0) {
        printf("workload %.0f had not begun after %.2f s\n", id, wall_s);
        return;
    }
    printf("workload %.0f %s %s %.2f s", id, state, state_for(state), wall_s);
    if (*answer_text(r, "reason"))
        printf(" (%s)", answer_text(r, "reason"));
    putchar('\n');
    row_of_sequences(r);
    command_row("tokens", "%.0f attended, %.0f appended as prompts, %.0f found in the cache",
                answer_number(r, "tokens.done"), answer_number(r, "tokens.prompt"),
                answer_number(r, "tokens.cached"));
    command_row("steps", "%.0f", answer_number(r, "steps"));
    row_of_times(r, "step", "step_us", 1e-3, "ms");
    row_of_times(r, "queue", "queue_ms", 1, "ms");
    row_of_times(r, "first token", "first_token_ms", 1, "ms");
    row_of_times(r, "per token", "per_token_ms", 1, "ms");
    if (answer_number(r, "steps") == 0)
        command_row("read", "-");
    else
        command_row("read", "%.2f GB, %.2f GB/s, %.2f of the machine's %.1f GB/s",
                    answer_number(r, "bytes_read") * 1e-9, answer_number(r, "gb_per_s"),
                    answer_number(r, "roof_fraction"), answer_number(r, "roof_gb_per_s"));
    if (cJSON_IsString(answer_at(r, "above_roof")))
        command_row("", "%s", answer_text(r, "above_roof"));
    command_row("whole pool", "%.0f of %.0f blocks held at most, %.0f saved by sharing",
                answer_number(r, "pool.held_peak"), answer_number(r, "pool.blocks"),
                answer_number(r, "pool.saved_peak"));
    command_row("copies on write", "%.0f", answer_number(r, "copies"));
    command_row("preemptions", "%.0f (%.0f tokens appended again)", answer_number(r, "preemptions"),
                answer_number(r, "tokens.recomputed"));
    command_row("digest", "%s", answer_text(r, "digest"));
    if (cJSON_IsObject(answer_at(r, "verify")))
        row_of_verify(r);
}
