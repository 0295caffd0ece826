/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h - the commands of attnctl. Each returns an exit code. */
#ifndef CLIENTS_COMMANDS_H
#define CLIENTS_COMMANDS_H

#include "clients/command.h"

int workloads_run(const struct command *c);
int status_stats(const struct command *c);
int status_audit(const struct command *c);
int blocks_show(const struct command *c);
int sequences_run(const struct command *c);
int keys_run(const struct command *c);

#endif
