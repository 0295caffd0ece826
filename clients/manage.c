/* SPDX-License-Identifier: Apache-2.0 */
/* manage.c - what an operator asks of a daemon in one call: trim, selftest, roof, drain, parameters. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <string.h>

static int trim(const struct command *c)
{
    cJSON *r;
    int code = command_ask(c, "POST", "/v1/trim", NULL, &r);
    if (r) {
        command_put_node(c);
        printf("%.0f cached block%s free now\n", answer_number(r, "dropped"),
               answer_number(r, "dropped") == 1 ? " is" : "s are");
    }
    cJSON_Delete(r);
    return code;
}

static int self_test(const struct command *c)
{
    cJSON *r;
    char kernel[128];
    int code = command_ask(c, "POST", "/v1/selftest", NULL, &r);
    if (r) {
        bool ok = cJSON_IsTrue(answer_at(r, "ok"));
        command_put_node(c);
        printf("self-test of %s: %s\n", terminal_escape(answer_text(r, "kernel"), kernel, sizeof kernel),
               ok ? "ok" : "NOT OK");
        code = ok ? code : EXIT_FAILED;
    }
    cJSON_Delete(r);
    return code;
}

static int roof(const struct command *c)
{
    cJSON *r;
    int code = command_ask(c, "POST", "/v1/roof", NULL, &r);
    if (r) {
        command_put_node(c);
        printf("%.1f GB/s: now %.1f at best, %.1f in the median, %.1f at worst\n",
               answer_number(r, "roof_gb_per_s"), answer_number(r, "best_gb_per_s"),
               answer_number(r, "median_gb_per_s"), answer_number(r, "worst_gb_per_s"));
    }
    cJSON_Delete(r);
    return code;
}

/* Take a lame duck back. */
static int stay(const struct command *c)
{
    cJSON *r;
    int code = command_ask(c, "DELETE", "/v1/drain", NULL, &r);
    if (r) {
        command_put_node(c);
        puts("no longer draining: it is ready for clients");
    }
    cJSON_Delete(r);
    return code;
}

static int drain(const struct command *c)
{
    if (command_option(c, "cancel") && (command_option(c, "lame-duck") || command_option(c, "deadline")))
        return command_usage("drain --cancel takes back what others ask for");
    if (command_option(c, "cancel"))
        return stay(c);
    char body[128];
    uint64_t lame_duck_s = 0, deadline_s = 0;
    cJSON *r, *asked = cJSON_CreateObject();
    bool good = command_integer(c, "lame-duck", 0, 86400, &lame_duck_s) &&
                command_integer(c, "deadline", 1, 86400, &deadline_s);
    if (good && command_option(c, "lame-duck"))
        cJSON_AddNumberToObject(asked, "lame_duck_s", (double)lame_duck_s);
    if (good && command_option(c, "deadline"))
        cJSON_AddNumberToObject(asked, "deadline_s", (double)deadline_s);
    good = good && cJSON_PrintPreallocated(asked, body, sizeof body, false);
    cJSON_Delete(asked);
    if (!good)
        return EXIT_USAGE;
    int code = command_ask(c, "POST", "/v1/drain", body, &r);
    double served_s = answer_number(r, "lame_duck_s");
    if (r)
        command_put_node(c);
    if (r && served_s > 0)
        printf("draining: clients are served for %.0f s more; what is under way then has %.0f s, then the "
               "daemon ends",
               served_s, answer_number(r, "deadline_s"));
    else if (r)
        printf("draining: what is under way has %.0f s, then the daemon ends",
               answer_number(r, "deadline_s"));
    if (r)
        puts(command_option(c, "lame-duck") && served_s < (double)lame_duck_s
                 ? "; it was asked for before, and is not made longer"
                 : "");
    cJSON_Delete(r);
    return code;
}

static int set_parameters(const struct command *c)
{
    static const char end[] = ".safetensors";
    const char *file = c->argv[0];
    size_t n = strlen(file);
    bool tensors = n > sizeof end - 1 && strcmp(file + n - (sizeof end - 1), end) == 0;
    const struct http_request request = {.method = "PUT",
                                         .path = "/v1/parameters",
                                         .file = file,
                                         .type = tensors ? "application/x-safetensors" : NULL};
    if (!command_can_send(file))
        return EXIT_USAGE;
    struct http_reply reply = http_client_send(c->client, &request);
    if (reply.status < 200 || reply.status > 299)
        return command_explain(&reply);
    if (!c->json) {
        command_put_node(c);
        puts("the parameters are set");
    }
    return EXIT_OK;
}

static const struct command_verb trim_verbs[] = {{"", "", 0, 0, NULL, trim}, {0}};
static const struct command_verb self_test_verbs[] = {{"", "", 0, 0, NULL, self_test}, {0}};
static const struct command_verb roof_verbs[] = {{"", "", 0, 0, NULL, roof}, {0}};
static const struct command_verb drain_verbs[] = {
    {"", "[--lame-duck SECONDS] [--deadline SECONDS]", 0, 0, NULL, drain},
    {"", "--cancel", 0, 0, NULL, drain},
    {0}};
static const struct command_verb parameters_verbs[] = {
    {"", "FILE", 1, 1, "JSON, - for standard input, or *.safetensors", set_parameters}, {0}};
static const struct command_option drain_options[] = {
    {"lame-duck", "SECONDS", "serve so long first, not ready (drain.lame_duck_s)"},
    {"deadline", "SECONDS", "for what is under way (drain.deadline_s)"},
    {"cancel", NULL, "take back the lame duck of an earlier --lame-duck"},
    {0}};

const struct command_info manage_trim_info = {.name = "trim",
                                              .text = "drop what is cached of prompts and used by nobody",
                                              .verbs = trim_verbs,
                                              .one_daemon = true};
const struct command_info manage_selftest_info = {.name = "selftest",
                                                  .text = "compare the kernels with the reference",
                                                  .verbs = self_test_verbs,
                                                  .one_daemon = true};
const struct command_info manage_roof_info = {.name = "roof",
                                              .text = "measure the rate at which the pool is read",
                                              .verbs = roof_verbs,
                                              .one_daemon = true};
const struct command_info manage_drain_info = {
    .name = "drain",
    .text = "end the daemon, once what is under way is done",
    .verbs = drain_verbs,
    .one_daemon = true,
    .options = drain_options,
    .more = "During the lame duck /readyz says draining, so proxies send nobody new, and\n"
            "clients are served as before. Asked again, it can end sooner (0: now),\n"
            "not later; --cancel takes it back."};
const struct command_info manage_parameters_info = {
    .name = "parameters",
    .text = "set the model's sinks, slopes and scales",
    .one_daemon = true,
    .verbs = parameters_verbs,
    .more = "{\"sinks\": [layers][query_heads], \"alibi_slopes\": [query_heads],\n"
            "\"k_scale\" and \"v_scale\" (fp8): [layers][kv_heads]}, before anything is appended."};
