/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - one line to stderr per event that an operator wants to know of. Any thread. docs/OPERATIONS.md ("The log") is the reference.
 *
 *   text     attnd: 2026-11-21T05:16:29.123Z info listening on http://127.0.0.1:8400
 *   logfmt   time=2026-11-21T05:16:29.123Z level=info event=listening msg="listening on http://127.0.0.1:8400"
 *   json     {"time":"2026-11-21T05:16:29.123Z","level":"info","event":"listening","msg":"listening on http://127.0.0.1:8400"}
 *
 * Where stderr is journald's, text has no name and time, which the journal has, but the priority (sd-daemon(3)):
 * "<6>listening on ...". A line that belongs to a request has its id: (request ID), request=ID, "request":"ID"; and in the latter two
 * what else struct log_about has.
 *
 * Nobody waits for whoever reads the log. From log_start() on a thread writes the lines; of those for which there
 * is no room, since nobody reads, and of those that cannot be written, it says later how many they were. */
#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG, LOG_LEVEL_COUNT };
enum log_format { LOG_TEXT, LOG_LOGFMT, LOG_JSON };

extern const char *const log_level_names[LOG_LEVEL_COUNT + 1]; /* NULL-terminated, for parsing */
extern const char *const log_format_names[];                   /* likewise */

/* Lines above `level` are dropped. Called once, before threads are started; LOG_INFO and LOG_TEXT until then. */
void log_init(enum log_level level, enum log_format format);

/* log_to(sink, cookie): messages go to `sink`, without time and level, instead of stderr, and are dropped where it is NULL. Called
 * by whatever thread logs. Before threads are started, or while none logs. */
void log_to(void (*sink)(enum log_level level, const char *message, void *cookie), void *cookie);

/* log_start: lines are written by a thread from now on; until then, and if there is none to be had, by whoever logs
 * them. log_stop: write what there is, for `patience_ms` at most, and end that. */
void log_start(void);
void log_stop(unsigned patience_ms);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A number of a line, which is a member of its own in logfmt and JSON. One without a name ends a list. */
struct log_number {
    const char *name;
    double value;
};
#define LOG_NUMBERS(...) ((const struct log_number[]){__VA_ARGS__, {NULL, 0}})

/* Sequences, or leases, that a request has made or used. */
enum { LOG_IDS_MAX = 16 };
struct log_subject {
    uint64_t ids[LOG_IDS_MAX];
    uint32_t count; /* of all; the first ones are in `ids` */
    bool are_leases;
};

/* What a line of a request or a key is about. In logfmt and JSON these are members of their own; a text has them in its sentence, but for the id.
 * NULL and 0 are left out. */
struct log_about {
    const char *id, *method, *path, *route, *client, *key, *code;
    int path_bytes, status;
    bool timed;     /* it has: */
    double ms;      /* since its head was there */
    uint64_t bytes; /* of the answer's body */
    struct log_subject subject;
};

/* log_event: likewise, of one of the main events, whose name, of a-z and _, stays when the sentence changes, as do names of
 * `numbers`; NULL: it has none. */
void log_event(enum log_level level, const char *event, const struct log_number *numbers, const char *format,
               ...) __attribute__((format(printf, 4, 5)));

/* log_event_of: likewise, of a request, of a key, or of both: what `about` has is a member, too. */
void log_event_of(enum log_level level, const char *event, const struct log_about *about,
                  const struct log_number *numbers, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* log_fault: why the daemon does not start: the event "not_started", at error; in text "attnd: " and why, or the priority. */
void log_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* log_end: the last line: the event "stopped", with the exit code and why. */
void log_end(enum log_level level, int exit_code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* log_wants: whether lines of a level are written at all, for who would make one at some cost. */
bool log_wants(enum log_level level);

/* log_request: a line of a request, at most LOG_KIND_PER_S a second of each kind, a number of the caller's, and LOG_ANSWERED_PER_S of
 * LOG_ANSWERED. The next one that is let through says how many were not. Where the level is LOG_DEBUG, all are. */
enum { LOG_UNANSWERED = 60, LOG_ANSWERED = 64, LOG_KINDS, LOG_KIND_PER_S = 20, LOG_ANSWERED_PER_S = 1000 };
void log_request(enum log_level level, unsigned kind, const struct log_about *about, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Lines that were dropped, since nobody read or they could not be written. */
uint64_t log_dropped(void);

#endif
