/* SPDX-License-Identifier: Apache-2.0 */
/* json_writer.h - JSON text written front to back into a buffer of the caller, commas and quotes added.
 *
 * Never allocates: what does not fit is dropped and `overflow` set, to be looked at once at the end.
 * Names and strings are escaped; doubles and floats print with as many digits as it takes to read back equal. Any thread,
 * one writer per thread. */
#ifndef CONFIG_JSON_WRITER_H
#define CONFIG_JSON_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_writer {
    char *buffer;
    size_t capacity, length; /* bytes; no terminating NUL is written */
    bool overflow;           /* something did not fit */
    bool comma;              /* the next value is not the first of its container */
};

void json_writer_init(struct json_writer *w, char *buffer, size_t capacity);

/* Containers. `name` is the member name, NULL inside an array and at the top. The same goes for values. */
void json_open(struct json_writer *w, const char *name, char bracket);
void json_close(struct json_writer *w, char bracket);

void json_string(struct json_writer *w, const char *name, const char *value);
void json_uint(struct json_writer *w, const char *name, uint64_t value);
void json_int(struct json_writer *w, const char *name, int64_t value);
void json_bool(struct json_writer *w, const char *name, bool value);
void json_null(struct json_writer *w, const char *name);

/* json_double: a finite `value` of double or float precision; NaN and infinities become null. */
void json_double(struct json_writer *w, const char *name, double value);
void json_float(struct json_writer *w, const char *name, float value);

/* json_rounded: a value with at most `places` digits behind the point, places <= 9. */
void json_rounded(struct json_writer *w, const char *name, double value, unsigned places);

/* json_name: the name of a member whose value follows by json_raw(). */
void json_name(struct json_writer *w, const char *name);

/* json_raw(w, text): bytes as they are, such as a line end between two values. */
void json_raw(struct json_writer *w, const char *text);

/* json_end(w, text): likewise, behind a whole text: what follows is another one. */
void json_end(struct json_writer *w, const char *text);

#endif
