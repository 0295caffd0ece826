/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what is said of a workload: a line while it runs, a table when it is over. */
#ifndef CLIENTS_REPORT_H
#define CLIENTS_REPORT_H

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stddef.h>

/* report_line: how far it is, in `room` bytes. */
void report_line(const cJSON *report, char *line, size_t room);

/* report_waits: whether it has not begun; the state is "running" then, too. */
bool report_waits(const cJSON *report);

/* report_show: all of it, on stdout. */
void report_show(const cJSON *report);

#endif
