/* SPDX-License-Identifier: Apache-2.0 */
/* commands.h - the commands of attnctl, each in the file of its story. */
#ifndef CLIENTS_COMMANDS_H
#define CLIENTS_COMMANDS_H

#include "clients/command.h"

/* top.c */
extern const struct command_info top_info;
/* tour.c */
extern const struct command_info tour_info;
/* run.c */
extern const struct command_info run_info;
/* sweep.c */
extern const struct command_info sweep_info;
/* compare.c */
extern const struct command_info compare_info;
/* waiting.c */
extern const struct command_info waiting_info;
/* workloads.c */
extern const struct command_info workloads_info;
/* status.c */
extern const struct command_info status_stats_info, status_audit_info;
/* blocks.c */
extern const struct command_info blocks_info;
/* events.c */
extern const struct command_info events_info;
/* prefixes.c */
extern const struct command_info prefixes_info;
/* attention.c */
extern const struct command_info attention_append_info, attention_attend_info;
/* kv_file.c */
extern const struct command_info kv_file_export_info, kv_file_import_info;
/* batch.c */
extern const struct command_info batch_info;
/* leases.c */
extern const struct command_info leases_info;
/* manage.c */
extern const struct command_info manage_trim_info, manage_selftest_info, manage_roof_info, manage_drain_info,
    manage_parameters_info;
/* sequences.c */
extern const struct command_info sequences_info;
/* move.c */
extern const struct command_info move_info;
/* replay.c */
extern const struct command_info replay_info;
/* diff.c */
extern const struct command_info diff_info;
/* keys.c */
extern const struct command_info keys_info;

#endif
