/* SPDX-License-Identifier: Apache-2.0 */
/* events.c - what happens to blocks and sequences, a line each, as it happens. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 24 };

static void put_word(const cJSON *event, const char *member, int width)
{
    char word[WORD_BYTES];
    printf("%-*s", width, terminal_escape(answer_text(event, member), word, sizeof word));
}

static void show_block(const cJSON *e)
{
    printf("block %-6.0f ", answer_number(e, "block"));
    put_word(e, "change", 12);
    printf("  ");
    put_word(e, "state", 6);
    double refs = answer_number(e, "refs"), fill = answer_number(e, "fill");
    printf("  %.0f reference%s, %.0f token%s", refs, answer_plural(refs), fill, answer_plural(fill));
    if (cJSON_IsNumber(answer_at(e, "from")))
        printf(", from block %.0f", answer_number(e, "from"));
    if (cJSON_IsNumber(answer_at(e, "sequence")))
        printf(", sequence %.0f", answer_number(e, "sequence"));
}

static void show_sequence(const cJSON *e)
{
    printf("%s %-*.0f ", answer_at(e, "lease") ? "lease" : "sequence", answer_at(e, "lease") ? 6 : 3,
           answer_number(e, "sequence"));
    put_word(e, "change", 12);
    double length = answer_number(e, "length"), blocks = answer_number(e, "blocks");
    printf("  %.0f token%s, %.0f block%s", length, answer_plural(length), blocks, answer_plural(blocks));
    if (answer_at(e, "parent"))
        printf(", of %.0f", answer_number(e, "parent"));
    if (answer_at(e, "reason")) {
        fputs(": ", stdout);
        terminal_put(stdout, answer_text(e, "reason"));
    }
}

static void show_step(const cJSON *e)
{
    double rows = answer_number(e, "rows"), sequences = answer_number(e, "sequences");
    printf("step %-7.0f %.0f quer%s of %.0f sequence%s in %.1f us", answer_number(e, "step"), rows,
           rows == 1 ? "y" : "ies", sequences, answer_plural(sequences), answer_number(e, "compute_us"));
}

/* An event as a line; of one that was missed, how many there were. */
static void show(const cJSON *e)
{
    const char *kind = answer_text(e, "event");
    if (strcmp(kind, "missed") == 0) {
        printf("%.0f change%s missed; what follows begins at %.0f\n", answer_number(e, "missed"),
               answer_number(e, "missed") == 1 ? " was" : "s were", answer_number(e, "next"));
        return;
    }
    printf("%8.0f %12.6f s  ", answer_number(e, "id"), answer_number(e, "time_s"));
    if (strcmp(kind, "block") == 0)
        show_block(e);
    else if (strcmp(kind, "sequence") == 0)
        show_sequence(e);
    else
        show_step(e);
    putchar('\n');
}

struct following {
    bool json;
    double last; /* the number of the latest event; 0: none came */
};

static void on_line(const char *line, size_t bytes, void *cookie)
{
    struct following *f = cookie;
    cJSON *event = cJSON_ParseWithLength(line, bytes);
    double id = answer_number(event, "id");
    f->last = id > 0 ? id : f->last;
    if (event && f->json)
        printf("%.*s\n", (int)bytes, line);
    else if (event)
        show(event);
    fflush(stdout);
    cJSON_Delete(event); /* NULL: an empty line, while nothing happens */
}

static int follow(const struct command *c)
{
    const char *types = command_option(c, "types");
    char path[COMMAND_PATH_BYTES], since_text[32] = "";
    struct following following = {.json = c->json};
    uint64_t since = 0;
    if (!command_integer(c, "since", 0, COMMAND_ID_MOST, &since))
        return EXIT_USAGE;
    if (types && types[strspn(types, "abcdefghijklmnopqrstuvwxyz,")] != '\0')
        return command_usage("--types wants some of block,sequence,step, not \"%s\"", types);
    if (command_option(c, "since"))
        snprintf(since_text, sizeof since_text, "&since=%llu", (unsigned long long)since);
    snprintf(path, sizeof path, "/v1/events?types=%.100s%s", types ? types : "block,sequence,step",
             since_text);
    return command_follow(c, path, on_line, &following, &following.last);
}

static const struct command_verb verbs[] = {
    {"", "", 0, 0, "what happens to blocks and sequences, until Ctrl-C", follow},
    {0},
};
static const struct command_option options[] = {
    {"since", "EPOCH", "begin behind this one; 0: as far back as is kept"},
    {"types", "T,T...", "some of block,sequence,step (all)"},
    {0},
};

const struct command_info events_info = {.name = "events",
                                         .text = "what happens to blocks and sequences, as it happens",
                                         .verbs = verbs,
                                         .options = options};
