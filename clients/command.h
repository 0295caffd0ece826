/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - what the commands of attnctl have in common.
 *
 * A command is a struct command_info in the file of its story: its verbs, its options and the text of its --help. options.c
 * reads the command line by it, so that what is not in it is an error. attnctl.c lists the commands. */
#ifndef CLIENTS_COMMAND_H
#define CLIENTS_COMMAND_H

#include "clients/http_client.h"

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdint.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,       /* the daemon refused, or a workload was not verified */
    EXIT_USAGE = 2,        /* the command line */
    EXIT_UNAVAILABLE = 69, /* no daemon answers, or a proxy that it reaches none */
    EXIT_INTERRUPTED = 130 /* Ctrl-C */
};

enum { COMMAND_PATH_BYTES = 1024, COMMAND_OPTIONS_MOST = 24 };

#define COMMAND_ID_MOST ((UINT64_C(1) << 53) - 1) /* of sequences, leases and workloads */

struct command;

/* "count", "N", what it does; a value of NULL: a flag. */
struct command_option {
    const char *name, *value, *text;
};

/* `attnctl seq fork ID [COUNT]`. The name is "" where a command has one thing to do. */
struct command_verb {
    const char *name, *operands;
    int least, most; /* operands */
    const char *text;
    int (*run)(const struct command *c); /* returns an exit code */
};

struct command_info {
    const char *name, *text;
    const struct command_verb
        *verbs; /* ends with a name of NULL; the first one is meant when none is named */
    const struct command_option *options; /* ends with a name of NULL; NULL: none */
    const char *more;                     /* of its --help; NULL: nothing */
    bool offline;                         /* needs no daemon */
    bool text_only;                       /* has no --json */
    bool one_daemon;                      /* is about one as a whole: through a proxy it wants --node */
};

/* What the command line says. */
struct command {
    const struct command_info *info;
    const struct command_verb *verb;
    struct http_client *client; /* NULL when offline */
    const char *url, *key_file, *key, *ca_file, *node;
    bool json;
    int argc; /* operands */
    char **argv;
    const char *values[COMMAND_OPTIONS_MOST]; /* in the order of info->options */
};

/* command_option: its value, "" of a flag; NULL: it was not given. The command has to have such an option. */
const char *command_option(const struct command *c, const char *name);

/* command_number, command_integer: the value of an option within bounds, to *value, which stays as it is when the option was
 * not given. False, and said why, when it is no such number. */
bool command_number(const struct command *c, const char *name, double low, double high, double *value);
bool command_integer(const struct command *c, const char *name, uint64_t low, uint64_t high, uint64_t *value);

/* command_check_url: whether attnctl speaks the URL's protocol; if not, that was said. `what` names where it comes from. */
bool command_check_url(const char *what, const char *url);

/* command_count: how many, by --count or as the second operand; not by both. */
bool command_count(const struct command *c, uint64_t most, uint64_t *count);

/* command_read_integer: likewise of an operand; `what` names it. */
bool command_read_integer(const char *what, const char *text, uint64_t low, uint64_t high, uint64_t *value);

/* command_read_ids: "5,6,7", of tokens, to be freed; NULL: it is none. */
int64_t *command_read_ids(const char *text, size_t *count);

/* command_id_path: "/v1/RESOURCE/ID" and what follows it, of the first operand; false, and said why, when that is no id. */
bool command_id_path(const struct command *c, const char *resource, const char *rest,
                     char path[COMMAND_PATH_BYTES]);

/* command_explain: say what went wrong, in the words of the problem document; the exit code for it. */
enum exit_code command_explain(const struct http_reply *reply);

/* command_explain_other: likewise of another daemon than that of --url, whose key is that of `key_option`. */
enum exit_code command_explain_other(const struct http_reply *reply, const char *url, const char *key_option);

/* command_reached_none: whether a problem is that of a proxy that reaches no daemon. */
bool command_reached_none(const cJSON *problem);

/* command_is_unavailable: whether no daemon has answered: none came, or it is a proxy's, which reaches none. */
bool command_is_unavailable(const struct http_reply *reply);

/* command_reason: the same words for a screen, escaped, to be freed. */
char *command_reason(const struct http_reply *reply);

/* command_ask: send and parse. With --json the answer is printed as it is. *tree is NULL after an error, and when
 * nothing is left to show; free it with cJSON_Delete(). command_fetch: likewise, never printed. command_get: printed and
 * in *tree, for answers of several pages. */
enum exit_code command_ask(const struct command *c, const char *method, const char *path, const char *body,
                           cJSON **tree);
enum exit_code command_fetch(const struct command *c, const char *method, const char *path, const char *body,
                             cJSON **tree);
enum exit_code command_get(const struct command *c, const char *path, cJSON **tree);

/* command_get_all: the items of all pages of a list, as far as they came; with --json the pages are printed, and there are none. Free
 * `*all` with cJSON_Delete(). */
enum exit_code command_get_all(const struct command *c, const char *list, cJSON **all);

/* command_try: likewise without a word, for screens and for what a daemon may not have: status 0 or of the answer. */
struct http_reply command_try(const struct command *c, const char *path, cJSON **tree);

/* command_sees_all: whether the key is told what belongs to others; true where the daemon does not say. */
bool command_sees_all(const struct command *c);

/* command_follow: have `line` called for each line of a stream of events, with `cookie`, until it ends or Ctrl-C; the exit code. *last: the
 * number of the latest event, 0: none; NULL: they have none. It is said where the daemon goes away. */
enum exit_code command_follow(const struct command *c, const char *path, http_client_line line, void *cookie,
                              const double *last);

/* command_say_cut: begin a line that says who ended an answer, and amid what; whether the daemon is still there, and answers GET `path`. */
bool command_say_cut(const struct command *c, const char *path, const char *amid);

/* command_can_send: whether there is such a file to be sent, "-": standard input; if not, it is said why. */
bool command_can_send(const char *file);

/* command_read_file: all of a file, "-": standard input, to be freed; NULL, and said why. */
char *command_read_file(const char *file, size_t *bytes);

/* command_usage: say what is wrong with the command line, and where help is; EXIT_USAGE. command_set_name: from now on that is the help of
 * this command. */
void command_set_name(const char *name);
int command_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* command_is_proxy: whether a proxy is at the URL, which chooses who answers: attnd has no TLS. command_one_daemon: whether the command line
 * says which daemon is to do `what`, which is about one as a whole; if not, that was said. */
bool command_is_proxy(const char *url);
bool command_one_daemon(const struct command *c, const char *what);

/* command_put_node: begin a line with the daemon that gave the latest answer, "node n1: ", and that a proxy chose it, if so; nothing
 * where it did not say. */
void command_put_node(const struct command *c);

/* command_row: a line of a summary. */
void command_row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* command_read_key: the first line of the key file, to be freed; NULL: it cannot be read. */
char *command_read_key(const char *path);

#endif
