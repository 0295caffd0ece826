/* SPDX-License-Identifier: Apache-2.0 */
/* attnctl.c - drive and look at a daemon from the terminal: the list of commands. */
#include "clients/commands.h"
#include "clients/options.h"
#include "config/config.h"
#include "config/version.h"

#include <stdio.h>
#include <stdlib.h>

static const struct command_info *const commands[] = {
    /* look */
    &top_info, &tour_info, &status_stats_info, &blocks_info, &waiting_info, &events_info, &prefixes_info,
    &status_audit_info,
    /* drive */
    &run_info, &workloads_info, &sweep_info, &compare_info, &sequences_info, &attention_append_info,
    &attention_attend_info, &batch_info, &leases_info, &kv_file_export_info, &kv_file_import_info, &move_info,
    /* manage */
    &replay_info, &diff_info, &keys_info, &manage_parameters_info, &manage_trim_info, &manage_selftest_info,
    &manage_roof_info, &manage_drain_info, NULL};

static void show_help(void)
{
    puts("attnctl - drive and look at an attnd daemon\n"
         "\n"
         "usage: attnctl [--url URL] [--key-file FILE] [--ca-file FILE] [--node N]\n"
         "               [--json] COMMAND [OPERAND]...\n");
    for (size_t i = 0; commands[i]; i++)
        printf("  %-12s %s\n", commands[i]->name, commands[i]->text);
    puts("\n"
         "  attnctl COMMAND --help says what a command takes\n"
         "\n"
         "  --url URL             http://HOST:PORT, https://HOST:PORT (of a proxy) or\n"
         "                        unix:PATH (default: $ATTNCTL_URL, else\n"
         "                        http://127.0.0.1:8400)\n"
         "  --key-file FILE       holds the key that the daemon wants (default:\n"
         "                        $ATTNCTL_KEY_FILE)\n"
         "  --ca-file FILE        certificates of the authorities that https is trusted by\n"
         "                        (default: $ATTNCTL_CA_FILE, else the system's)\n"
         "  --node N              of the daemons behind a proxy the one with this number,\n"
         "                        for commands that name no id (default: any)\n"
         "  --json                print what the daemon answers\n"
         "  -h, --help            this text\n"
         "  -V, --version         version and commit\n"
         "\n"
         "exit codes: 0 done, 1 refused or not verified, 2 usage, 69 no daemon answers,\n"
         "130 interrupted. NO_COLOR=1: no colours");
}

int main(int argc, char **argv)
{
    const char *url = getenv("ATTNCTL_URL");
    struct command c = {.url = url && *url ? url : "http://127.0.0.1:8400",
                        .key_file = getenv("ATTNCTL_KEY_FILE"),
                        .ca_file = getenv("ATTNCTL_CA_FILE")};
    char *key = NULL;
    switch (options_read(argc, argv, commands, &c)) {
    case OPTIONS_HELP:
        if (c.info)
            options_show_help(c.info);
        else
            show_help();
        return EXIT_OK;
    case OPTIONS_VERSION:
        puts("attnctl " ATTND_VERSION " (" ATTND_COMMIT ")");
        return EXIT_OK;
    case OPTIONS_WRONG:
        return EXIT_USAGE;
    case OPTIONS_READ:
        break;
    }
    if (!c.info->offline && !command_check_url(c.url == url ? "ATTNCTL_URL" : "--url", c.url))
        return EXIT_USAGE;
    if (!c.info->offline && c.key_file && *c.key_file && !(key = command_read_key(c.key_file)))
        return EXIT_USAGE;
    c.key = key;
    if (!c.info->offline && !(c.client = http_client_create(c.url, key, c.ca_file)))
        return command_usage("out of memory");
    uint64_t node = 0;
    if (c.node && !command_read_integer("--node", c.node, 0, CONFIG_NODE_MAX, &node))
        return EXIT_USAGE;
    if (c.info->one_daemon && !command_one_daemon(&c, c.info->name))
        return EXIT_USAGE;
    if (c.node && c.client)
        http_client_ask_node(c.client, node);
    int code = c.verb->run(&c);
    http_client_destroy(c.client);
    free(key);
    return code;
}
