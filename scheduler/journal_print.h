/* SPDX-License-Identifier: Apache-2.0 */
/* journal_print.h - a journal as text, a line of JSON a record: for people, jq and attnctl, which reads journals in no other way. */
#ifndef SCHEDULER_JOURNAL_PRINT_H
#define SCHEDULER_JOURNAL_PRINT_H

#include "scheduler/journal_file.h"

#include <stdio.h>

/* journal_print(path, out, reason): write the records of a run (a folder's latest one, or the one that a file belongs to) to `out`. The
 * last line says "torn" when the last file ends within a record. Returns 0; ATTND_INVALID: it cannot be read, or is damaged, and `reason`
 * says where (the records before have been written); ATTND_NO_MEMORY. Any thread; O(bytes). */
MUST_USE int journal_print(const char *path, FILE *out, char reason[JOURNAL_REASON_BYTES]);

#endif
