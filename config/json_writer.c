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
    while (*text) {
        char escape[8];
        size_t plain = 0;
        while ((unsigned char)text[plain] >= 0x20 && text[plain] != '"' && text[plain] != '\\')
            plain++;
        put(w, text, plain);
        text += plain;
        if (!*text)
            break;
        int n = (unsigned char)*text < 0x20 ? snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*text)
                                            : snprintf(escape, sizeof escape, "\\%c", *text);
        put(w, escape, (size_t)n);
        text++;
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

/* The decimal digits of a number, which end before `end`; returns where they begin. (printf takes ten times as long, and answers are lists
 * of numbers.) */
static char *digits_before(char *end, uint64_t value)
{
    do
        *--end = (char)('0' + value % 10);
    while (value /= 10);
    return end;
}

static void put_uint(struct json_writer *w, uint64_t value)
{
    char digits[24], *end = digits + sizeof digits, *begin = digits_before(end, value);
    put(w, begin, (size_t)(end - begin));
}

void json_uint(struct json_writer *w, const char *name, uint64_t value)
{
    put_prefix(w, name);
    put_uint(w, value);
}

void json_int(struct json_writer *w, const char *name, int64_t value)
{
    put_prefix(w, name);
    if (value < 0)
        put(w, "-", 1);
    put_uint(w, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
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

/* Integers, exactly, as far as every one is a double; whether it is one. */
static bool put_integer(struct json_writer *w, double value)
{
    if (!(fabs(value) < 1e15) || value != trunc(value) || (value == 0 && signbit(value)))
        return false;
    if (value < 0)
        put(w, "-", 1);
    put_uint(w, (uint64_t)fabs(value));
    return true;
}

/* units / 10^places, places <= 11. */
static void put_decimal(struct json_writer *w, uint64_t units, unsigned places)
{
    char digits[32], *end = digits + sizeof digits, *begin = end;
    uint64_t one = 1;
    for (; places > 0 && units % 10 == 0; places--)
        units /= 10;
    for (unsigned i = 0; i < places; i++)
        one *= 10;
    if (places > 0) {
        begin =
            digits_before(end, one + units % one); /* its leading 1 keeps zeros, and gives way to the point */
        *begin = '.';
        units /= one;
    }
    begin = digits_before(begin, units);
    put(w, begin, (size_t)(end - begin));
}

/* Zero, or a float from 0.001 on and below a million, with as many
 * of 6 to 9 digits as it takes to read back equal; whether it is one.
 *
 * m / 10^d is rounded twice, to a double and to a float. That is the float nearest to the decimal unless the decimal is nearer to the middle of
 * two floats than 2^-53 of itself, and not the middle: but m / 10^d and M / 2^k, d <= 11 and k <= 34, are either equal or 1 / (5^11 * 2^34) apart,
 * 2^-49 of 0.001; of larger values d and k are less. */
static bool put_short_float(struct json_writer *w, float value)
{
    static const double tens[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11};
    double size = fabs((double)value);
    int places = 8; /* behind the point, of 6 digits of a number below 0.01 */
    if (size == 0 && !signbit(value)) {
        put(w, "0", 1);
        return true;
    }
    if (!(size >= 1e-3 && size < 1e6))
        return false;
    for (uint64_t thousandths = (uint64_t)(size * 1e3); thousandths >= 10; thousandths /= 10)
        places--;
    uint64_t m = (uint64_t)llrint(size * tens[places]);
    for (int more = 0; (float)((double)m / tens[places]) != fabsf(value); more++, places++) {
        if (more == 3)
            return false;
        m = (uint64_t)llrint(size * tens[places + 1]);
    }
    if (value < 0)
        put(w, "-", 1);
    put_decimal(w, m, (unsigned)places);
    return true;
}

/* The fewest digits, from `precision` on, that read back equal; 15 are any double's, and 6 any float's. */
static void put_shortest(struct json_writer *w, double value, int precision, bool as_float)
{
    char digits[32];
    int n = 0;
    for (; precision <= 17; precision++) {
        n = snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (as_float ? strtof(digits, NULL) == (float)value : strtod(digits, NULL) == value)
            break;
    }
    put(w, digits, (size_t)n);
}

void json_double(struct json_writer *w, const char *name, double value)
{
    if (!isfinite(value)) {
        json_null(w, name);
        return;
    }
    put_prefix(w, name);
    if (!put_integer(w, value))
        put_shortest(w, value, 15, false);
}

void json_float(struct json_writer *w, const char *name, float value)
{
    if (!isfinite(value)) {
        json_null(w, name);
        return;
    }
    put_prefix(w, name);
    if (!put_short_float(w, value))
        put_shortest(w, (double)value, 6, true);
}

void json_rounded(struct json_writer *w, const char *name, double value, unsigned places)
{
    static const double tens[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    double units = fabs(value) * tens[places];
    if (!(units < 9007199254740992)) { /* 2^53: such a value has no digits there */
        json_double(w, name, value);
        return;
    }
    put_prefix(w, name);
    uint64_t whole = (uint64_t)llrint(units);
    if (value < 0 && whole > 0)
        put(w, "-", 1);
    put_decimal(w, whole, places);
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
