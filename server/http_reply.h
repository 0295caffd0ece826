/* SPDX-License-Identifier: Apache-2.0 */
/* http_reply.h - the head of an answer, and the answer that says what is wrong. No connection: text goes
 * into buffers. Loop thread. */
#ifndef SERVER_HTTP_REPLY_H
#define SERVER_HTTP_REPLY_H

#include "config/log.h"
#include "server/http_exchange.h"

/* http_problem(x, status, format, ...): make the answer an RFC 9457 problem with a detail sentence,
 * dropping what was written before. */
void http_problem(struct http_exchange *x, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* http_problem_at: likewise, of what `pointer` names: the detail becomes "pointer: wants", and `errors`
 * lists the pointer. */
void http_problem_at(struct http_exchange *x, int status, const char *pointer, const char *wants);

/* http_problem_of_query: likewise, of a parameter. */
void http_problem_of_query(struct http_exchange *x, int status, const char *name, const char *wants);

/* http_problem_moved: likewise, of what is elsewhere now: `moved_to` says where; NULL: that is not known. */
void http_problem_moved(struct http_exchange *x, const char *detail, const char *moved_to);

/* http_problem_with: likewise, with members that `more` writes. */
typedef void (*http_more_fn)(struct json_writer *w, const void *cookie);
void http_problem_with(struct http_exchange *x, int status, const char *detail, http_more_fn more,
                       const void *cookie);

/* http_log_whose: who asks, for a line of the log: "127.0.0.1, key alice", or ", no key", ", unknown key", or neither, where there
 * are no keys. Returns text. */
enum { HTTP_WHOSE_BYTES = 256 };
const char *http_log_whose(const struct http_exchange *x, char text[HTTP_WHOSE_BYTES]);

/* http_log_subject(x, text): the end of a sentence: ", sequences 7 91 92"; "" where the path has all. */
enum { HTTP_SUBJECT_BYTES = 64 + 21 * LOG_IDS_MAX };
const char *http_log_subject(const struct http_exchange *x, char text[HTTP_SUBJECT_BYTES]);

/* http_log_about(x, took_ns): what a line of the log says of an exchange, so long after it began; it points into it. */
struct log_about http_log_about(const struct http_exchange *x, uint64_t took_ns);

/* How the bytes behind a head come. */
enum http_framing { HTTP_LENGTH, HTTP_CHUNKED, HTTP_UNTIL_CLOSE };

/* Whether an answer of that status has neither body nor length. */
bool http_reply_is_bare(int http_status);

/* http_reply_head(x, framing, length, close, out, capacity): status line and headers of the answer; `length`
 * bytes follow if the framing is by length. close: the connection ends with it. Returns its bytes. */
size_t http_reply_head(const struct http_exchange *x, enum http_framing framing, uint64_t length, bool close,
                       char *out, size_t capacity);

#endif
