/* SPDX-License-Identifier: Apache-2.0 */
/* prefixes.c - what new sequences may share: the chains of the prefix cache. */
#include "clients/answer.h"
#include "clients/commands.h"

#include <stdio.h>

enum { PAGE = 500 };

static void show(const cJSON *chain)
{
    printf("%-16.16s  %8.0f %7.0f %7.0f %7.0f %10.1f", answer_text(chain, "chain"),
           answer_number(chain, "tokens"), answer_number(chain, "held"), answer_number(chain, "cached"),
           answer_number(chain, "hits"), answer_number(chain, "last_used_s"));
    if (cJSON_IsNumber(answer_at(chain, "evicted_next")))
        printf("  %.0f. to be evicted", answer_number(chain, "evicted_next"));
    puts(cJSON_IsTrue(answer_at(chain, "salted")) ? "  salted" : "");
}

static int list(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    bool any = false, more = true;
    int code = EXIT_OK;
    for (double next = 0; more && code == EXIT_OK;) {
        cJSON *page = NULL;
        const cJSON *chain;
        snprintf(path, sizeof path, "/v1/prefixes?limit=%d&cursor=%.0f", PAGE, next);
        code = command_get(c, path, &page);
        cJSON_ArrayForEach (chain, answer_at(page, "items")) {
            if (!any && !c->json) {
                command_put_node(c);
                puts("what new sequences may share");
                puts("last block          tokens    held  cached    hits     used s");
            }
            any = true;
            if (!c->json)
                show(chain);
        }
        more = cJSON_IsNumber(answer_at(page, "next"));
        next = answer_number(page, "next");
        cJSON_Delete(page);
    }
    if (!any && !c->json && code == EXIT_OK) {
        command_put_node(c);
        puts("no prompt is cached: none was named by token ids, or none has a full block");
    }
    return code;
}

static const struct command_verb verbs[] = {
    {"", "", 0, 0, "a line for each chain of blocks, to its last one", list},
    {0},
};

const struct command_info prefixes_info = {
    .name = "prefixes", .text = "what new sequences may share, and what goes next", .verbs = verbs};
