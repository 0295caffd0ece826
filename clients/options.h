/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line, as the tables of the commands say it. */
#ifndef CLIENTS_OPTIONS_H
#define CLIENTS_OPTIONS_H

#include "clients/command.h"

enum options_result { OPTIONS_READ, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WRONG };

/* options_read: find the command among `commands`, which end with NULL, and read its verb, options and operands into *c.
 * OPTIONS_HELP: c->info is NULL where the help of all is wanted. OPTIONS_WRONG: stderr says what. argv is reordered, and
 * keeps what *c refers to. */
enum options_result options_read(int argc, char **argv, const struct command_info *const *commands,
                                 struct command *c);

/* options_show_help: the --help of one command. */
void options_show_help(const struct command_info *info);

#endif
