/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - the state of a daemon at a glance, and whether its counts agree. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"

#include <stdio.h>

static int show_stats(const struct command *c)
{
    cJSON *r;
    int code = command_ask(c, "GET", "/stats?limit=1", NULL, &r);
    if (!r)
        return code;
    bool all = command_sees_all(c);
    command_put_node(c);
    printf("up %.1f s, %s (%s) on %.0f thread%s%s\n", answer_number(r, "uptime_s"),
           answer_text(r, "backend.name"), answer_text(r, "backend.isa"), answer_number(r, "backend.threads"),
           answer_plural(answer_number(r, "backend.threads")),
           all ? "" : "; blocks, tokens and steps are those of all keys");
    if (answer_at(r, "draining"))
        command_row("draining", "%.0f s more for clients (attnctl drain --cancel)",
                    answer_number(r, "draining.lame_duck_s"));
    char promised[48] = "";
    if (answer_number(r, "pool.promised") > 0)
        snprintf(promised, sizeof promised, "; %.0f promised", answer_number(r, "pool.promised"));
    command_row("blocks", "%.0f: %.0f free, %.0f held (%.0f shared), %.0f cached, %.0f fenced%s",
                answer_number(r, "pool.blocks"), answer_number(r, "pool.free"), answer_number(r, "pool.held"),
                answer_number(r, "pool.shared"), answer_number(r, "pool.cached"),
                answer_number(r, "pool.fenced"), promised);
    command_row("tokens", "%.0f in sequences, %.0f stored: sharing %.2f",
                answer_number(r, "pool.tokens_logical"), answer_number(r, "pool.tokens_physical"),
                answer_number(r, "pool.sharing_ratio"));
    command_row("sequences", "%.0f%s: %.0f idle, %.0f queued, %.0f running, %.0f swapped",
                answer_number(r, "sequences.count"), all ? "" : " yours; of all keys",
                answer_number(r, "scheduler.idle"), answer_number(r, "scheduler.queued"),
                answer_number(r, "scheduler.running"), answer_number(r, "scheduler.swapped"));
    command_row("steps", "%.0f, p50 %.0f us, p99 %.0f us, %.0f row%s at most",
                answer_number(r, "scheduler.steps"), answer_number(r, "scheduler.step_us.p50"),
                answer_number(r, "scheduler.step_us.p99"), answer_number(r, "scheduler.batch_rows.max"),
                answer_plural(answer_number(r, "scheduler.batch_rows.max")));
    command_row("read", "%.2f GB since the start, at %.2f GB/s in steps, %.2f of the machine's %.1f GB/s",
                answer_number(r, "scheduler.bytes_read") * 1e-9, answer_number(r, "scheduler.gb_per_s"),
                answer_number(r, "scheduler.roof_fraction"), answer_number(r, "scheduler.roof_gb_per_s"));
    if (cJSON_IsString(answer_at(r, "scheduler.above_roof")))
        command_row("", "%s", answer_text(r, "scheduler.above_roof"));
    double forks = answer_number(r, "counters.forks"), evictions = answer_number(r, "counters.evictions");
    double copies = answer_number(r, "counters.cow_copies");
    command_row("since the start",
                "%.0f fork%s, %.0f cop%s on write, %.0f eviction%s, %.0f refused for blocks", forks,
                answer_plural(forks), copies, copies == 1 ? "y" : "ies", evictions, answer_plural(evictions),
                answer_number(r, "counters.alloc_failures"));
    cJSON_Delete(r);
    return code;
}

static int run_audit(const struct command *c)
{
    cJSON *r;
    int code = command_ask(c, "POST", "/v1/audit", NULL, &r);
    if (r) {
        command_put_node(c);
        printf("audit: %s, %d invariants\n", cJSON_IsTrue(answer_at(r, "ok")) ? "ok" : "NOT OK",
               cJSON_GetArraySize(answer_at(r, "checked")));
    }
    cJSON_Delete(r);
    return code;
}

static const struct command_verb stats_verbs[] = {{"", "", 0, 0, NULL, show_stats}, {0}};
static const struct command_verb audit_verbs[] = {{"", "", 0, 0, NULL, run_audit}, {0}};

const struct command_info status_stats_info = {
    .name = "stats", .text = "the state at a glance", .verbs = stats_verbs};
const struct command_info status_audit_info = {.name = "audit",
                                               .text = "check every count against every other",
                                               .verbs = audit_verbs,
                                               .one_daemon = true};
