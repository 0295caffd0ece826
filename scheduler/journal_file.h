/* SPDX-License-Identifier: Apache-2.0 */
/* journal_file.h - the files of a journal: records with checksums, written by one thread and read by the checker.
 *
 *     FOLDER/20261126T071500-RUN.000001.journal      a run of the daemon has files 1, 2, ...
 *
 *     header   magic, run, number of the file, number of its first record | checksum
 *     record   kind and bytes | checksum of these | checksum of the payload | payload
 *
 * The checksum of a head is apart, so that a tail that was torn (it ends before its record does) is told from bits
 * that were flipped. Checksums take in the record's number, so no record can be left out. Little-endian. */
#ifndef SCHEDULER_JOURNAL_FILE_H
#define SCHEDULER_JOURNAL_FILE_H

#include "config/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JOURNAL_RECORD_BYTES = 1 << 23, /* of a payload, at most */
    JOURNAL_FOLDER_BYTES = 192,
    JOURNAL_NAME_BYTES = 64,
    JOURNAL_PLACE_BYTES = 320,
    JOURNAL_REASON_BYTES = 640
};

/* ---- writing: one thread ---- */

struct journal_files {
    char folder[JOURNAL_FOLDER_BYTES], name[JOURNAL_NAME_BYTES]; /* of the run, without number */
    uint64_t run, number;                                        /* of the record that comes next */
    uint64_t file_bytes, bytes_max; /* of a file, after which the next one begins; of all */
    uint64_t bytes, whole;          /* written in all; and in this file, up to the last whole record */
    uint32_t file;
    int fd; /* -1: none is open */
    uint8_t *buffer;
    size_t used;
};

/* journal_files_check: whether a journal can be in this folder; leaves nothing there. 0, or ATTND_INVALID with a sentence. */
MUST_USE int journal_files_check(const char *folder, char reason[JOURNAL_REASON_BYTES]);

/* journal_files_open: a new run in a folder that is there. Files of earlier runs are removed, the oldest first, as long as they
 * are more than half of bytes_max. Returns 0, ATTND_INVALID or ATTND_NO_MEMORY with a sentence. _close: what was put is written. */
MUST_USE int journal_files_open(struct journal_files *files, const char *folder, uint64_t file_bytes,
                                uint64_t bytes_max, char reason[JOURNAL_REASON_BYTES]);
void journal_files_close(struct journal_files *files);

/* journal_files_why: why a file cannot be made or written, by errno: a constant text, where the system knows the number. */
const char *journal_files_why(int error);

/* journal_files_put, _flush: NULL, or why nothing more can be written, as a constant sentence. The last file then ends with a
 * whole record. */
const char *journal_files_put(struct journal_files *files, uint8_t kind, const void *payload, uint32_t n);
const char *journal_files_flush(struct journal_files *files);

/* ---- reading ---- */

struct journal_record {
    uint8_t kind;
    uint32_t n;
    const uint8_t *payload; /* until the next one is read */
    uint64_t number, offset;
};

struct journal_reader {
    char folder[JOURNAL_FOLDER_BYTES], name[JOURNAL_NAME_BYTES];
    uint64_t run, number;
    uint32_t file;
    uint8_t *bytes; /* [n] of the file */
    size_t n, at;
    bool torn; /* the last file ended within a record, which was left out */
};

/* journal_reader_open: the run that a file belongs to, or the latest one of a folder. journal_reader_next: 1 and a record; 0: that was
 * the last; or ATTND_INVALID with the place and what is wrong there. journal_reader_place: FILE:OFFSET of a record. */
MUST_USE int journal_reader_open(struct journal_reader *reader, const char *path,
                                 char reason[JOURNAL_REASON_BYTES]);
MUST_USE int journal_reader_next(struct journal_reader *reader, struct journal_record *record,
                                 char reason[JOURNAL_REASON_BYTES]);
void journal_reader_place(const struct journal_reader *reader, const struct journal_record *record,
                          char place[JOURNAL_PLACE_BYTES]);
void journal_reader_close(struct journal_reader *reader);

#endif
