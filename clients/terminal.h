/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.h - text and colours for people.
 *
 * Names come from other people: keys, salts, files. Control characters in them could move the cursor, and those that change
 * the direction of text could make one name look like another. They are shown by their numbers. */
#ifndef CLIENTS_TERMINAL_H
#define CLIENTS_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* terminal_put: the text with control characters as \x1b, characters that change direction or are not seen as \u202e, and
 * what is not UTF-8 as \xff. NULL is nothing. terminal_escape: likewise into `out`, cut at its end; returns out. */
void terminal_put(FILE *f, const char *text);
char *terminal_escape(const char *text, char *out, size_t room);

/* terminal_put_csv: a field of CSV: escaped likewise, in quotes where it needs them. */
void terminal_put_csv(FILE *f, const char *text);

/* terminal_has_colours: whether f is a terminal that shows colours and nobody asked for none (NO_COLOR, TERM=dumb). */
bool terminal_has_colours(FILE *f);

/* terminal_columns: its width; 80 where that is not known. */
int terminal_columns(FILE *f);

/* What ends a live screen or a workload: SIGINT, SIGTERM and SIGHUP are noted from terminal_watch_signals() on; the second
 * one ends the process. */
void terminal_watch_signals(void);
bool terminal_interrupted(void);

#endif
