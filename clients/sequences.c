/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.c - list, make, fork, cut and delete sequences. */
#include "clients/answer.h"
#include "clients/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_sequence(const cJSON *s)
{
    const cJSON *block;
    printf("%8.0f  %-7s %8.0f tokens  %5d blocks (%.0f shared)", answer_number(s, "id"),
           answer_text(s, "state"), answer_number(s, "length"), cJSON_GetArraySize(answer_at(s, "blocks")),
           answer_number(s, "shared_blocks"));
    if (answer_number(s, "parent") > 0)
        printf("  fork of %.0f", answer_number(s, "parent"));
    int left = 8;
    fputs("  [", stdout);
    cJSON_ArrayForEach (block, answer_at(s, "blocks")) {
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
    char path[COMMAND_PATH_BYTES];
    double next = 0;
    int code = EXIT_OK;
    do {
        cJSON *page;
        const cJSON *item;
        snprintf(path, sizeof path, "/v1/sequences?limit=100&cursor=%.0f", next);
        code = command_ask(c, "GET", path, NULL, &page);
        if (!page)
            return code;
        cJSON_ArrayForEach (item, answer_at(page, "items")) {
            show_sequence(item);
        }
        next = answer_number(page, "next");
        cJSON_Delete(page);
    } while (next > 0);
    return code;
}

int sequences_run(const struct command *c)
{
    char path[COMMAND_PATH_BYTES], body[64] = "{}";
    const char *verb = c->argc > 0 ? c->argv[0] : "list", *id = c->argc > 1 ? c->argv[1] : "";
    cJSON *tree;
    const cJSON *item;
    if (strcmp(verb, "list") == 0)
        return list_sequences(c);
    if (strcmp(verb, "new") != 0 && (!*id || strspn(id, "0123456789") != strlen(id)))
        return command_usage("seq wants new, or show, fork, truncate or delete and an id");
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
        return command_usage("seq wants new, show ID, fork ID [COUNT], truncate ID LENGTH or delete ID");
    }
    int code = command_ask(c, method, path, sent, &tree);
    if (tree && answer_at(tree, "sequences")) {
        cJSON_ArrayForEach (item, answer_at(tree, "sequences")) {
            show_sequence(item);
        }
    } else if (tree) {
        show_sequence(tree);
    }
    cJSON_Delete(tree);
    return code;
}
