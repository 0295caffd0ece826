/* SPDX-License-Identifier: Apache-2.0 */
/* command.c - see command.h. */
#include "clients/command.h"
#include "clients/answer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum exit_code command_explain(const struct http_reply *reply)
{
    if (reply->status == 0) {
        fprintf(stderr, "attnctl: %s\n", reply->text);
        return EXIT_UNAVAILABLE;
    }
    cJSON *problem = reply->text ? cJSON_Parse(reply->text) : NULL;
    fprintf(stderr, "attnctl: %ld %s: %s\n", reply->status, answer_text(problem, "code"),
            problem ? answer_text(problem, "detail") : "");
    cJSON_Delete(problem);
    return EXIT_FAILED;
}

enum exit_code command_ask(const struct command *c, const char *method, const char *path, const char *body,
                           cJSON **tree)
{
    const struct http_request request = {.method = method, .path = path, .body = body};
    struct http_reply reply = http_client_send(c->client, &request);
    *tree = NULL;
    if (reply.status < 200 || reply.status > 299)
        return command_explain(&reply);
    if (c->o->json) {
        fwrite(reply.text ? reply.text : "", 1, reply.bytes, stdout);
        return EXIT_OK;
    }
    *tree = reply.bytes ? cJSON_Parse(reply.text) : NULL;
    return EXIT_OK;
}

int command_usage(const char *what)
{
    fprintf(stderr, "attnctl: %s (--help lists the commands)\n", what);
    return EXIT_USAGE;
}

void command_row(const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  %-22s", name);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

char *command_read_key(const char *path)
{
    char *line = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    ssize_t n = f ? getline(&line, &room, f) : -1;
    if (f)
        fclose(f);
    if (n > 0)
        line[strcspn(line, "\r\n")] = '\0';
    if (n > 0 && *line)
        return line;
    fprintf(stderr, "attnctl: %s: %s\n", path, n < 0 && errno ? strerror(errno) : "has no key");
    free(line);
    return NULL;
}
