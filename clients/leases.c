/* SPDX-License-Identifier: Apache-2.0 */
/* leases.c - take blocks for tables of one's own (POST /v1/paged), list them, give them back. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS_SHOWN = 8, BLOCKS_MOST = 100000 };

static void show_lease(const cJSON *lease)
{
    const cJSON *block, *blocks = answer_at(lease, "blocks");
    int left = BLOCKS_SHOWN;
    bool is_cut = answer_at(lease, "blocks_next") && answer_number(lease, "blocks_next") > 0;
    int count = cJSON_GetArraySize(blocks);
    printf("%8.0f  %s%d block%s  [", answer_number(lease, "id"), is_cut ? "more than " : "", count,
           answer_plural(count));
    cJSON_ArrayForEach (block, blocks) {
        if (left-- == 0) {
            fputs(" ...", stdout);
            break;
        }
        printf("%s%.0f", left == BLOCKS_SHOWN - 1 ? "" : " ", block->valuedouble);
    }
    putchar(']');
    if (*answer_text(lease, "owner")) {
        fputs("  ", stdout);
        terminal_put(stdout, answer_text(lease, "owner"));
    }
    putchar('\n');
}

static int list(const struct command *c)
{
    cJSON *all;
    const cJSON *lease;
    enum exit_code code = command_get_all(c, "/v1/leases", &all);
    int count = cJSON_GetArraySize(all);
    if (code == EXIT_OK && !c->json) {
        command_put_node(c);
        if (count > 0)
            printf("%d lease%s\n", count, answer_plural(count));
        else
            puts("there is no lease: attnctl lease new BLOCKS takes one");
    }
    cJSON_ArrayForEach (lease, all)
        show_lease(lease);
    cJSON_Delete(all);
    return code;
}

static int ask_and_show(const struct command *c, const char *method, const char *path, const char *body)
{
    cJSON *lease;
    int code = command_ask(c, method, path, body, &lease);
    if (lease)
        show_lease(lease);
    cJSON_Delete(lease);
    return code;
}

static int take(const struct command *c)
{
    char body[160];
    uint64_t blocks, id = 0, idle = 0;
    if (!command_read_integer("BLOCKS", c->argv[0], 1, BLOCKS_MOST, &blocks) ||
        !command_integer(c, "id", 1, COMMAND_ID_MOST, &id) ||
        !command_integer(c, "idle-timeout", 0, 31536000, &idle))
        return EXIT_USAGE;
    http_client_about(c->client, id);
    int n = snprintf(body, sizeof body, "{\"blocks\":%llu", (unsigned long long)blocks);
    if (command_option(c, "id"))
        n += snprintf(body + n, sizeof body - (size_t)n, ",\"id\":%llu", (unsigned long long)id);
    if (command_option(c, "idle-timeout"))
        n +=
            snprintf(body + n, sizeof body - (size_t)n, ",\"idle_timeout_s\":%llu", (unsigned long long)idle);
    snprintf(body + n, sizeof body - (size_t)n, "}");
    return ask_and_show(c, "POST", "/v1/leases", body);
}

static int show(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    return command_id_path(c, "leases", "", path) ? ask_and_show(c, "GET", path, NULL) : EXIT_USAGE;
}

static int give_back(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    return command_id_path(c, "leases", "", path) ? ask_and_show(c, "DELETE", path, NULL) : EXIT_USAGE;
}

static const struct command_verb verbs[] = {{"list", "", 0, 0, NULL, list},
                                            {"new", "BLOCKS", 1, 1, NULL, take},
                                            {"show", "ID", 1, 1, NULL, show},
                                            {"delete", "ID", 1, 1, NULL, give_back},
                                            {0}};
static const struct command_option options[] = {
    {"id", "ID", "of new: the daemon chooses one otherwise"},
    {"idle-timeout", "SECONDS", "of new: taken back when it was not used for so long"},
    {0}};

const struct command_info leases_info = {.name = "lease",
                                         .text =
                                             "take blocks for block tables of one's own, and give them back",
                                         .verbs = verbs,
                                         .options = options};
