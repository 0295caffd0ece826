/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c - a map of the pool. */
#include "clients/answer.h"
#include "clients/commands.h"

#include <stdio.h>
#include <string.h>

enum { MAP_COLUMNS = 64, PAGE = 1000 };

/* One character for a block: '.' free, 'c' cached, 'f' fenced, and held: its references, '+' for more
 * than 9. */
static char block_mark(const cJSON *block)
{
    const char *state = answer_text(block, "state");
    double refs = answer_number(block, "refs");
    if (strcmp(state, "held") == 0)
        return refs > 9 ? '+' : (char)('0' + (int)refs);
    return strcmp(state, "free") == 0 ? '.' : state[0];
}

static int show_blocks(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    double next = 0;
    unsigned long shown = 0;
    int code = EXIT_OK;
    do {
        cJSON *page;
        const cJSON *block;
        snprintf(path, sizeof path, "/v1/blocks?limit=%d&cursor=%.0f", PAGE, next);
        code = command_get(c, path, &page);
        if (!page)
            return code;
        cJSON_ArrayForEach (block, answer_at(page, "blocks")) {
            if (c->json)
                break;
            if (shown % MAP_COLUMNS == 0)
                printf("%s%8lu  ", shown ? "\n" : "", shown);
            putchar(block_mark(block));
            shown++;
        }
        next = answer_number(page, "next");
        cJSON_Delete(page);
    } while (next > 0);
    if (!c->json)
        puts("\n\n. free   1-9 + held by so many sequences   c cached   f fenced");
    return code;
}

static const struct command_verb verbs[] = {{"", "", 0, 0, NULL, show_blocks}, {0}};

const struct command_info blocks_info = {.name = "blocks", .text = "a map of the pool", .verbs = verbs};
