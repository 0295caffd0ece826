/* SPDX-License-Identifier: Apache-2.0 */
/* json_writer.c - see json_writer.h. */
#include "config/json_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct json_writer *w, const char *bytes, size_t n)
{
    if (n > w->capacity - w->length) {
        w->overflow = true;
        return;
    }
    memcpy(w->buffer + w->length, bytes, n);
    w->length += n;
}

static void put_quoted(struct json_writer *w, const char *text)
{
    put(w, "\"", 1);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char escape[8];
        if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = (char)c;
            put(w, escape, 2);
        } else if (c < 0x20) {
            int n = snprintf(escape, sizeof escape, "\\u%04x", c);
            put(w, escape, (size_t)n);
        } else {
            put(w, text, 1);
        }
    }
    put(w, "\"", 1);
}

/* What comes before every value: a comma unless it is the first, and its name unless it has none. */
static void put_prefix(struct json_writer *w, const char *name)
{
    if (w->comma)
        put(w, ",", 1);
    if (name) {
        put_quoted(w, name);
        put(w, ":", 1);
    }
    w->comma = true;
}

void json_writer_init(struct json_writer *w, char *buffer, size_t capacity)
{
    *w = (struct json_writer){.buffer = buffer, .capacity = capacity};
}

void json_open(struct json_writer *w, const char *name, char bracket)
{
    put_prefix(w, name);
    put(w, &bracket, 1);
    w->comma = false;
}

void json_close(struct json_writer *w, char bracket)
{
    put(w, &bracket, 1);
    w->comma = true;
}

void json_string(struct json_writer *w, const char *name, const char *value)
{
    put_prefix(w, name);
    put_quoted(w, value);
}

void json_uint(struct json_writer *w, const char *name, uint64_t value)
{
    char digits[24];
    put_prefix(w, name);
    int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    put(w, digits, (size_t)n);
}

void json_int(struct json_writer *w, const char *name, int64_t value)
{
    char digits[24];
    put_prefix(w, name);
    int n = snprintf(digits, sizeof digits, "%lld", (long long)value);
    put(w, digits, (size_t)n);
}

void json_bool(struct json_writer *w, const char *name, bool value)
{
    put_prefix(w, name);
    put(w, value ? "true" : "false", value ? 4 : 5);
}

void json_null(struct json_writer *w, const char *name)
{
    put_prefix(w, name);
    put(w, "null", 4);
}

/* The shortest of %.{first}g .. %.17g that reads back as `value`, as a float or as a double. */
static void put_shortest(struct json_writer *w, const char *name, double value, bool as_float)
{
    char digits[32];
    int n = 0;
    if (!isfinite(value)) {
        json_null(w, name);
        return;
    }
    for (int precision = 6; precision <= 17; precision++) {
        n = snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (as_float ? strtof(digits, NULL) == (float)value : strtod(digits, NULL) == value)
            break;
    }
    put_prefix(w, name);
    put(w, digits, (size_t)n);
}

void json_double(struct json_writer *w, const char *name, double value)
{
    put_shortest(w, name, value, false);
}

void json_float(struct json_writer *w, const char *name, float value)
{
    put_shortest(w, name, (double)value, true);
}

void json_name(struct json_writer *w, const char *name)
{
    put_prefix(w, name);
}

void json_raw(struct json_writer *w, const char *text)
{
    put(w, text, strlen(text));
}

void json_end(struct json_writer *w, const char *text)
{
    json_raw(w, text);
    w->comma = false;
}
