/* SPDX-License-Identifier: Apache-2.0 */
/* attnctl.c - drive and look at a daemon from the terminal. */
#include "clients/commands.h"
#include "clients/move.h"
#include "clients/move.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(void)
{
    puts("attnctl - drive and look at an attnd daemon\n"
         "\n"
         "usage: attnctl [--url URL] [--json] COMMAND\n"
         "\n"
         "  run FILE              run the workload of a JSON file\n"
         "  run --shape NAME      run one drawn like a trace: azure-conv, azure-code, mooncake-conv,\n"
         "                        arxiv-summary\n"
         "  run --trace FILE      run a trace: Azure's CSV, or Mooncake's JSON lines (*.jsonl)\n"
         "      --count N --seed N --length-scale F --time-scale F --verify ROWS\n"
         "      --prefill append|attend --arrival-rate F --arrival-cv F\n"
         "      --prefix-share FRACTION:TOKENS --fork-share FRACTION:COUNT[:AT]\n"
         "      --sharing auto|on|off\n"
         "  stats                 the state at a glance\n"
         "  blocks                a map of the pool\n"
         "  audit                 check every count against every other\n"
         "  seq                   list the sequences\n"
         "  seq new | seq show ID | seq fork ID [COUNT] | seq truncate ID LENGTH | seq delete ID\n"
         "  move --to URL ID... | move --to URL --all\n"
         "                        bring sequences to another daemon; calls on them are told where they are\n"
         "      --to-key-file FILE    the key for that daemon (default: the same one)\n"
         "      --as URL              what its clients call it (default: the URL)\n"
         "      --salt TEXT           that they share their prompts under there\n"
         "  key new NAME [SCOPE]...  make a key, and its entry for the daemon's keys.file; scopes are read,\n"
         "                        infer (unless another is named), admin and keep. Needs no daemon\n"
         "\n"
         "  --url URL             http://HOST:PORT or unix:PATH (default: $ATTNCTL_URL, else\n"
         "                        http://127.0.0.1:8400)\n"
         "  --key-file FILE       holds the key that the daemon wants (default: $ATTNCTL_KEY_FILE)\n"
         "  --json                print what the daemon answers\n"
         "  --help                this text\n"
         "\n"
         "exit codes: 0 done, 1 refused or not verified, 2 usage, 69 no daemon answers");
}

/* ---- move ---------------------------------------------------------------------------------------- */

static int run_move(const struct command *c)
{
    const struct options *o = c->o;
    char *key = NULL;
    if (!o->to || (c->argc > 0) == o->all)
        return command_usage("move wants --to URL, and ids or --all");
    if (o->to_key_file && !(key = command_read_key(o->to_key_file)))
        return EXIT_USAGE;
    struct http_client *to = http_client_create(o->to, key ? key : c->key);
    const struct move_options options = {.from = c->client,
                                         .to = to,
                                         .url = o->as                             ? o->as
                                                : strncmp(o->to, "unix:", 5) == 0 ? ""
                                                                                  : o->to,
                                         .salt = o->salt,
                                         .ids = c->argv,
                                         .count = o->all ? 0 : (size_t)c->argc,
                                         .json = o->json};
    if (!to)
        return command_usage("out of memory");
    enum move_result result = move_run(&options);
    http_client_destroy(to);
    free(key);
    return result == MOVE_DONE ? EXIT_OK : result == MOVE_UNAVAILABLE ? EXIT_UNAVAILABLE : EXIT_FAILED;
}

/* ---- main ---------------------------------------------------------------------------------------- */

static bool parse_options(int argc, char **argv, struct options *o)
{
    static const struct option known[] = {{"url", required_argument, NULL, 'u'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"key-file", required_argument, NULL, 'k'},
                                          {"shape", required_argument, NULL, 1},
                                          {"trace", required_argument, NULL, 2},
                                          {"count", required_argument, NULL, 3},
                                          {"seed", required_argument, NULL, 4},
                                          {"length-scale", required_argument, NULL, 5},
                                          {"time-scale", required_argument, NULL, 6},
                                          {"verify", required_argument, NULL, 7},
                                          {"prefill", required_argument, NULL, 8},
                                          {"arrival-rate", required_argument, NULL, 9},
                                          {"arrival-cv", required_argument, NULL, 10},
                                          {"prefix-share", required_argument, NULL, 11},
                                          {"fork-share", required_argument, NULL, 12},
                                          {"sharing", required_argument, NULL, 13},
                                          {"to", required_argument, NULL, 14},
                                          {"to-key-file", required_argument, NULL, 15},
                                          {"as", required_argument, NULL, 16},
                                          {"salt", required_argument, NULL, 17},
                                          {"all", no_argument, NULL, 'a'},
                                          {NULL, 0, NULL, 0}};
    const char **const values[] = {
        &o->shape,   &o->trace,   &o->count,        &o->seed,       &o->length_scale, &o->time_scale,
        &o->verify,  &o->prefill, &o->arrival_rate, &o->arrival_cv, &o->prefix_share, &o->fork_share,
        &o->sharing, &o->to,      &o->to_key_file,  &o->as,         &o->salt};
    int c;
    while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (c == 'u') {
            o->url = optarg;
        } else if (c == 'k') {
            o->key_file = optarg;
        } else if (c == 'a') {
            o->all = true;
        } else if (c == 'j') {
            o->json = true;
        } else if (c == 'h') {
            print_help();
            exit(EXIT_OK);
        } else if (c >= 1 && c <= (int)(sizeof values / sizeof values[0])) {
            *values[c - 1] = optarg;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct command *c);
    } commands[] = {{"run", workloads_run},  {"stats", status_stats}, {"blocks", blocks_show},
                    {"audit", status_audit}, {"seq", sequences_run},  {"move", run_move},
                    {"key", keys_run}};
    const char *from_environment = getenv("ATTNCTL_URL");
    struct options o = {.url = from_environment ? from_environment : "http://127.0.0.1:8400",
                        .key_file = getenv("ATTNCTL_KEY_FILE")};
    char *key = NULL;
    if (!parse_options(argc, argv, &o))
        return EXIT_USAGE;
    if (optind == argc)
        return command_usage("a command is missing");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[optind], commands[i].name) != 0)
            continue;
        if (o.key_file && commands[i].run != keys_run && !(key = command_read_key(o.key_file)))
            return EXIT_USAGE;
        struct command command = {http_client_create(o.url, key), &o, argc - optind - 1, argv + optind + 1,
                                  key};
        if (!command.client)
            return command_usage("out of memory");
        int code = commands[i].run(&command);
        http_client_destroy(command.client);
        free(key);
        return code;
    }
    return command_usage("there is no such command");
}
