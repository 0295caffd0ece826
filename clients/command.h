/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - what the commands of attnctl have in common. */
#ifndef CLIENTS_COMMAND_H
#define CLIENTS_COMMAND_H

#include "clients/http_client.h"

#include <cjson/cJSON.h>

#include <stdbool.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,      /* the daemon refused, or a workload was not verified */
    EXIT_USAGE = 2,       /* the command line */
    EXIT_UNAVAILABLE = 69 /* no daemon answers */
};

enum { COMMAND_PATH_BYTES = 1024 };

struct options {
    const char *url, *key_file;
    bool json;
    /* of run */
    const char *shape, *trace;
    const char *count, *seed, *length_scale, *time_scale, *verify, *prefill, *arrival_rate, *arrival_cv;
    const char *prefix_share; /* FRACTION:LENGTH */
    const char *fork_share;   /* FRACTION:COUNT[:AT] */
    const char *sharing;
    /* of move */
    const char *to, *to_key_file, *as, *salt;
    bool all;
};

struct command {
    struct http_client *client;
    const struct options *o;
    int argc;
    char **argv;
    const char *key; /* NULL: none */
};

/* command_explain: say what went wrong; the exit code for it. */
enum exit_code command_explain(const struct http_reply *reply);

/* command_ask: send and parse. With --json the answer is printed as it is. *tree is NULL after an error, and when
 * nothing is left to show; free it with cJSON_Delete(). */
enum exit_code command_ask(const struct command *c, const char *method, const char *path, const char *body,
                           cJSON **tree);

/* command_usage: say what is wrong with the command line; EXIT_USAGE. */
int command_usage(const char *what);

/* command_row: a line of a summary. */
void command_row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* command_read_key: the first line of the key file, to be freed; NULL: it cannot be read. */
char *command_read_key(const char *path);

#endif
