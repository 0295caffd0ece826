/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - attnctl replay --check: a journal is run again. The scheduler does that, so it is the daemon's own program that is started. */
#include "clients/commands.h"
#include "clients/own_daemon.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int replay(const struct command *c)
{
    const char *journal = command_option(c, "check"), *binary = command_option(c, "attnd");
    char beside[PATH_MAX];
    if (!journal) {
        fprintf(stderr, "attnctl: replay: --check PATH is missing\n");
        return EXIT_USAGE;
    }
    binary = binary ? binary : own_daemon_binary(beside);
    execlp(binary, "attnd", "--replay-check", journal, (char *)NULL);
    fprintf(stderr, "attnctl: replay: %s: %s\n", binary, strerror(errno));
    return EXIT_UNAVAILABLE;
}

static const struct command_option options[] = {
    {"check", "PATH", "a journal's folder (its latest run), or a file of it"},
    {"attnd", "PROGRAM", "the daemon's program; else the one beside this one"},
    {NULL, NULL, NULL},
};

static const struct command_verb verbs[] = {
    {"", "", 0, 0, "run a daemon's journal again, and compare every id and count", replay},
    {NULL, NULL, 0, 0, NULL, NULL},
};

const struct command_info replay_info = {
    .name = "replay",
    .text = "run a journal again and compare",
    .verbs = verbs,
    .options = options,
    .more = "Exit code 0: all is as it was recorded. 1: the first record that differs is\n"
            "named, with file and offset. 69: a file is damaged or missing; where, is said.\n",
    .offline = true,
};
