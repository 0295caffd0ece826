/* SPDX-License-Identifier: Apache-2.0 */
/* journal_lines.h - the records of a journal, one after the other. `attnd --journal-print` reads the files; its lines come through a pipe. */
#ifndef CLIENTS_JOURNAL_LINES_H
#define CLIENTS_JOURNAL_LINES_H

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct journal_lines {
    FILE *from;
    pid_t pid;
    int says; /* where its stderr comes out */
    char *line;
    size_t room;
    const char *path;
    bool torn; /* the last file ends within a record, which was left out */
};

/* journal_lines_open: have `binary` (NULL: the attnd beside this program) print a journal. `path` stays the caller's. False, and said why. */
bool journal_lines_open(struct journal_lines *lines, const char *binary, const char *path);

/* journal_lines_next: a record, to be deleted; NULL: there are no more that can be read. */
cJSON *journal_lines_next(struct journal_lines *lines);

/* journal_lines_close: whether the journal was read to its end; if not, what is wrong with it was said on stderr. One that was not read to
 * its end by us is fine. */
bool journal_lines_close(struct journal_lines *lines);

#endif
