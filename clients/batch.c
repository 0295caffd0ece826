/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - several creates, forks, truncates and deletes as one: all of them happen, or none.
 *
 *     attnctl batch create fork:7:2 truncate:8:100 delete:9 */
#include "clients/answer.h"
#include "clients/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 3, PART_BYTES = 24 };

/* What follows the colons of each operation. */
static const struct {
    const char *op, *members[PARTS - 1];
    int least; /* of the members */
} known[] = {{"create", {"id", NULL}, 0},
             {"fork", {"id", "count"}, 1},
             {"truncate", {"id", "length"}, 2},
             {"delete", {"id", NULL}, 1}};

/* "fork:7:2" as {"op":"fork","id":7,"count":2}; NULL, and said why. */
static cJSON *read_op(const char *text)
{
    char parts[PARTS][PART_BYTES] = {{0}};
    int count = 0, used = 0;
    const char *rest = text;
    while (count < PARTS && sscanf(rest, "%23[^:]%n", parts[count], &used) == 1) {
        count++;
        rest += used;
        if (*rest != ':')
            break;
        rest++;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !*rest; i++) {
        int most = known[i].members[1] ? 2 : 1;
        if (count == 0 || strcmp(known[i].op, parts[0]) != 0 || count - 1 < known[i].least ||
            count - 1 > most)
            continue;
        cJSON *op = cJSON_CreateObject();
        cJSON_AddStringToObject(op, "op", parts[0]);
        for (int p = 1; p < count; p++) {
            const char *member = known[i].members[p - 1];
            uint64_t value, least = strcmp(member, "length") != 0;
            if (!command_read_integer(member, parts[p], least, COMMAND_ID_MOST, &value)) {
                cJSON_Delete(op);
                return NULL;
            }
            cJSON_AddNumberToObject(op, member, (double)value);
        }
        return op;
    }
    command_usage(
        "an operation is create[:ID], fork:ID[:COUNT], truncate:ID:LENGTH or delete:ID, not \"%.40s\"", text);
    return NULL;
}

static void show_results(const struct command *c, const cJSON *answer)
{
    const cJSON *result, *sequence;
    int at = 0;
    cJSON_ArrayForEach (result, answer_at(answer, "results")) {
        printf("%s", at < c->argc ? c->argv[at] : "operation");
        at++;
        if (answer_at(result, "id"))
            printf(" -> %.0f", answer_number(result, "id"));
        cJSON_ArrayForEach (sequence, answer_at(result, "sequences")) {
            printf(" -> %.0f", answer_number(sequence, "id"));
        }
        putchar('\n');
    }
}

/* All of a batch is of one node, so its first id says which. */
static void note_about(const struct command *c, const cJSON *ops)
{
    const cJSON *op;
    double id = 0;
    cJSON_ArrayForEach (op, ops) {
        if (id == 0)
            id = answer_number(op, "id");
    }
    if (id >= 1 && id <= (double)COMMAND_ID_MOST)
        http_client_about(c->client, (uint64_t)id);
}

static int send_file(const struct command *c, const char *file)
{
    struct http_request request = {.method = "POST", .path = "/v1/batch"};
    char *body = command_can_send(file) ? command_read_file(file, &request.body_bytes) : NULL;
    if (!body)
        return EXIT_USAGE;
    cJSON *tree = cJSON_ParseWithLength(body, request.body_bytes);
    note_about(c, answer_at(tree, "ops"));
    cJSON_Delete(tree);
    if (request.body_bytes == 0)
        body[0] = '\0';
    request.body = body;
    struct http_reply reply = http_client_send(c->client, &request);
    free(body);
    if (reply.status < 200 || reply.status > 299)
        return command_explain(&reply);
    cJSON *answer = cJSON_Parse(reply.text);
    if (c->json)
        fputs(reply.text, stdout);
    else
        show_results(c, answer);
    cJSON_Delete(answer);
    return EXIT_OK;
}

static int run_batch(const struct command *c)
{
    const char *file = command_option(c, "file");
    if ((file != NULL) == (c->argc > 0))
        return command_usage("batch wants operations, or --file FILE");
    if (file)
        return send_file(c, file);
    cJSON *body = cJSON_CreateObject(), *ops = cJSON_AddArrayToObject(body, "ops"), *answer = NULL;
    int code = EXIT_OK;
    for (int i = 0; i < c->argc && code == EXIT_OK; i++) {
        cJSON *op = read_op(c->argv[i]);
        if (op)
            cJSON_AddItemToArray(ops, op);
        else
            code = EXIT_USAGE;
    }
    char *text = cJSON_PrintUnformatted(body);
    note_about(c, ops);
    if (code == EXIT_OK)
        code = command_ask(c, "POST", "/v1/batch", text, &answer);
    if (answer)
        show_results(c, answer);
    cJSON_Delete(answer);
    cJSON_Delete(body);
    free(text);
    return code;
}

static const struct command_verb verbs[] = {
    {"", "OPERATION...", 0, -1, "create[:ID], fork:ID[:COUNT], truncate:ID:LENGTH, delete:ID", run_batch},
    {"", "--file FILE", 0, -1, "the body of POST /v1/batch, - for standard input", run_batch},
    {0}};
static const struct command_option options[] = {
    {"file", "FILE", "{\"ops\": [{\"op\": \"fork\", \"id\": 7}, ...]}"}, {0}};

const struct command_info batch_info = {.name = "batch",
                                        .text = "several operations on sequences as one",
                                        .verbs = verbs,
                                        .options = options,
                                        .more = "All of them happen, or none."};
