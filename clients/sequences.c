/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.c - list, make, fork, cut and delete sequences. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/sequences.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWNER_ROOM = 80 };

/* Whose it is, as an admin is told; NULL: that is not told. */
static const char *owner_of(const cJSON *s)
{
    const cJSON *owner = answer_at(s, "owner");
    return !cJSON_IsString(owner) ? NULL : *owner->valuestring ? owner->valuestring : "(no key)";
}

/* Print one; its owner is in a column of so many characters. */
static void print_one(const cJSON *s, int owner_width)
{
    const cJSON *block;
    char name[OWNER_ROOM];
    const char *token = answer_number(s, "length") == 1 ? "token" : "tokens";
    const cJSON *count =
        answer_at(s, "block_count"); /* not every answer has it; of a long one not all are listed */
    double blocks = count ? count->valuedouble : cJSON_GetArraySize(answer_at(s, "blocks"));
    printf("%8.0f  %-7s %8.0f %-6s  %5.0f %-6s", answer_number(s, "id"), answer_text(s, "state"),
           answer_number(s, "length"), token, blocks, blocks == 1 ? "block" : "blocks");
    if (cJSON_IsNumber(answer_at(s, "shared_blocks"))) /* not every answer counts them */
        printf(" (%.0f shared)", answer_number(s, "shared_blocks"));
    if (owner_of(s))
        printf("  owner %-*s", owner_width, terminal_escape(owner_of(s), name, sizeof name));
    if (answer_number(s, "max_tokens") > 0)
        printf("  max_tokens %.0f", answer_number(s, "max_tokens"));
    if (answer_number(s, "cached_tokens") > 0)
        printf("  %.0f token%s found in the cache", answer_number(s, "cached_tokens"),
               answer_plural(answer_number(s, "cached_tokens")));
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

void sequences_print(const cJSON *s)
{
    print_one(s, 0);
}

static int by_id(const void *a, const void *b)
{
    double left = answer_number(*(cJSON *const *)a, "id"), right = answer_number(*(cJSON *const *)b, "id");
    return (left > right) - (left < right);
}

/* Print sequences by id: the daemon lists them by slot, and after a restore the slots are in another order. */
static void print_by_id(cJSON *all)
{
    int n = cJSON_GetArraySize(all), i = 0, width = 0;
    const cJSON *item;
    const cJSON **order = calloc((size_t)n + 1, sizeof(const cJSON *));
    cJSON_ArrayForEach (item, all) {
        int wide = owner_of(item) ? (int)strlen(owner_of(item)) : 0;
        width = wide >= OWNER_ROOM ? OWNER_ROOM - 1 : wide > width ? wide : width;
        if (order)
            order[i++] = item;
    }
    if (order)
        qsort(order, (size_t)n, sizeof(const cJSON *), by_id);
    for (i = 0; i < n; i++)
        print_one(order ? order[i] : cJSON_GetArrayItem(all, i), width);
    free(order);
}

static int list_sequences(const struct command *c)
{
    cJSON *all;
    enum exit_code code = command_get_all(c, "/v1/sequences", &all);
    int count = cJSON_GetArraySize(all);
    if (code == EXIT_OK && !c->json) {
        command_put_node(c);
        if (count > 0)
            printf("%d sequence%s\n", count, answer_plural(count));
        else
            puts(c->node ? "there is no sequence" : "there is no sequence: attnctl seq new makes one");
    }
    print_by_id(all);
    cJSON_Delete(all);
    return code;
}

/* Send, and show the sequences of the answer. */
static int send_and_show(const struct command *c, const char *method, const char *path, const char *body)
{
    cJSON *tree;
    const cJSON *item;
    int code = command_ask(c, method, path, body, &tree);
    if (tree && answer_at(tree, "sequences")) {
        cJSON_ArrayForEach (item, answer_at(tree, "sequences")) {
            sequences_print(item);
        }
    } else if (tree) {
        sequences_print(tree);
    }
    cJSON_Delete(tree);
    return code;
}

/* Add the ids of --tokens to the body; false, and said why, when they are none. */
static bool add_tokens(const struct command *c, cJSON *body)
{
    const char *given = command_option(c, "tokens");
    size_t n = 0;
    int64_t *ids = given ? command_read_ids(given, &n) : NULL;
    if (given && !ids) {
        command_usage("--tokens wants ids with commas between, not \"%.40s\"", given);
        return false;
    }
    cJSON *list = ids ? cJSON_AddArrayToObject(body, "tokens") : NULL;
    for (size_t i = 0; i < n; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ids[i]));
    free(ids);
    return true;
}

static int make_sequence(const struct command *c)
{
    char *text = NULL;
    uint64_t id = 0, tokens = 0;
    cJSON *body = cJSON_CreateObject();
    bool ok = command_integer(c, "max-tokens", 1, UINT32_MAX, &tokens) && add_tokens(c, body);
    if (c->argc == 1) {
        ok = ok && command_read_integer("the id", c->argv[0], 1, COMMAND_ID_MOST, &id);
        cJSON_AddNumberToObject(body, "id", ok ? (double)id : 0);
    }
    http_client_about(c->client, id);
    if (tokens)
        cJSON_AddNumberToObject(body, "max_tokens", (double)tokens);
    if (command_option(c, "salt"))
        cJSON_AddStringToObject(body, "salt", command_option(c, "salt"));
    text = cJSON_PrintUnformatted(body);
    int code = ok ? send_and_show(c, "POST", "/v1/sequences", text) : EXIT_USAGE;
    cJSON_Delete(body);
    free(text);
    return code;
}

static int show_one(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    return command_id_path(c, "sequences", "", path) ? send_and_show(c, "GET", path, NULL) : EXIT_USAGE;
}

static int delete_one(const struct command *c)
{
    char path[COMMAND_PATH_BYTES];
    return command_id_path(c, "sequences", "", path) ? send_and_show(c, "DELETE", path, NULL) : EXIT_USAGE;
}

/* Show a new sequence with what it shares, which the answer to a fork does not count. */
static void show_fork(const struct command *c, const cJSON *fork)
{
    char path[COMMAND_PATH_BYTES];
    cJSON *now;
    snprintf(path, sizeof path, "/v1/sequences/%.0f", answer_number(fork, "id"));
    command_try(c, path, &now);
    sequences_print(now ? now : fork);
    cJSON_Delete(now);
}

static int fork_one(const struct command *c)
{
    char path[COMMAND_PATH_BYTES], body[64];
    const cJSON *fork;
    uint64_t count = 1;
    cJSON *tree;
    if (!command_id_path(c, "sequences", "/fork", path) || !command_count(c, UINT32_MAX, &count))
        return EXIT_USAGE;
    snprintf(body, sizeof body, "{\"count\":%llu}", (unsigned long long)count);
    int code = command_ask(c, "POST", path, body, &tree);
    cJSON_ArrayForEach (fork, answer_at(tree, "sequences")) {
        show_fork(c, fork);
    }
    cJSON_Delete(tree);
    return code;
}

/* Tokens of a sequence at the layer that has most. */
static double longest_of(const cJSON *s)
{
    const cJSON *length;
    double most = answer_number(s, "length");
    cJSON_ArrayForEach (length, answer_at(s, "lengths")) {
        most = length->valuedouble > most ? length->valuedouble : most;
    }
    return most;
}

/* The daemon takes a length that a sequence does not have for what it is: nothing is cut. Say so. */
static int truncate_one(const struct command *c)
{
    char path[COMMAND_PATH_BYTES], cut[COMMAND_PATH_BYTES], body[64];
    uint64_t length;
    cJSON *before;
    if (!command_id_path(c, "sequences", "", path) || !command_id_path(c, "sequences", "/truncate", cut) ||
        !command_read_integer("LENGTH", c->argv[1], 0, UINT32_MAX, &length))
        return EXIT_USAGE;
    snprintf(body, sizeof body, "{\"length\":%llu}", (unsigned long long)length);
    command_try(c, path, &before);
    double had = longest_of(before);
    int code = send_and_show(c, "POST", cut, body);
    if (code == EXIT_OK && before && had <= (double)length)
        fprintf(stderr, "attnctl: sequence %s has %.0f token%s: nothing was truncated\n", c->argv[0], had,
                answer_plural(had));
    cJSON_Delete(before);
    return code;
}

static const struct command_verb verbs[] = {{"list", "", 0, 0, NULL, list_sequences},
                                            {"new", "[ID]", 0, 1, NULL, make_sequence},
                                            {"show", "ID", 1, 1, NULL, show_one},
                                            {"fork", "ID [--count N]", 1, 2, NULL, fork_one},
                                            {"truncate", "ID LENGTH", 2, 2, NULL, truncate_one},
                                            {"delete", "ID", 1, 1, NULL, delete_one},
                                            {0}};
static const struct command_option options[] = {
    {"count", "N", "of fork: how many (1)"},
    {"max-tokens", "N", "of new: keep blocks for so many tokens"},
    {"tokens", "ID,ID...", "of new: of its prompt; what is cached of it is found"},
    {"salt", "TEXT", "of new: prompts are found under the same salt only"},
    {0}};

const struct command_info sequences_info = {
    .name = "seq",
    .text = "list, make, fork, cut and delete sequences",
    .verbs = verbs,
    .options = options,
    .more = "A salt is of what --tokens finds, and of what `append --tokens` lets others\n"
            "find; it does nothing for a sequence without ids of tokens."};
