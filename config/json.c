/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - a scanner for RFC 8259, and what is built on it.
 *
 * The scanner is a recursive descent over the bytes: each scan_*() starts at `s->at`, moves it past
 * what it names and returns true, or fills `s->error` and returns false. It builds nothing; cJSON does,
 * afterwards, from a text that is known to be good. Depth is bounded, so recursion is too. */
#include "config/json.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct scanner {
    const char *text;
    size_t bytes, at;
    unsigned depth;
    size_t members; /* whose names were scanned, */
    size_t wanted;  /* and which of them is looked for, from 1 on; 0: none */
    size_t wanted_at;
    struct json_error *error;
};

enum { NUMBER_BYTES_MAX = 63 };

static bool scan_value(struct scanner *s);

static bool __attribute__((format(printf, 2, 3))) fail(struct scanner *s, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    s->error->offset = s->at;
    vsnprintf(s->error->reason, sizeof s->error->reason, format, args);
    va_end(args);
    return false;
}

/* The byte at the cursor; -1 at the end. */
static int peek(const struct scanner *s)
{
    return s->at < s->bytes ? (unsigned char)s->text[s->at] : -1;
}

static void skip_space(struct scanner *s)
{
    while (peek(s) == ' ' || peek(s) == '\t' || peek(s) == '\n' || peek(s) == '\r')
        s->at++;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(int c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Length of the UTF-8 sequence at the cursor, 0 if it is not one (RFC 3629: no surrogates, no overlong
 * forms, nothing above U+10FFFF). */
static size_t utf8_length(const struct scanner *s)
{
    const unsigned char *p = (const unsigned char *)s->text + s->at;
    size_t left = s->bytes - s->at;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */
    size_t n;
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        n = 3;
        low = p[0] == 0xe0 ? 0xa0 : 0x80;
        high = p[0] == 0xed ? 0x9f : 0xbf;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;
        low = p[0] == 0xf0 ? 0x90 : 0x80;
        high = p[0] == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    if (left < n || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < n; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf)
            return 0;
    }
    return n;
}

static bool scan_escape(struct scanner *s)
{
    s->at++; /* the backslash */
    int c = peek(s);
    if (c < 0 || !strchr("\"\\/bfnrtu", c))
        return fail(s, "unknown escape in a string");
    s->at++;
    if (c != 'u')
        return true;
    for (int i = 0; i < 4; i++) {
        if (!is_hex(peek(s)))
            return fail(s, "\\u wants four hexadecimal digits");
        s->at++;
    }
    if (memcmp(s->text + s->at - 4, "0000", 4) == 0)
        return fail(s, "\\u0000 is not allowed in a string");
    return true;
}

static bool scan_string(struct scanner *s)
{
    s->at++; /* the opening quote */
    for (;;) {
        int c = peek(s);
        if (c < 0)
            return fail(s, "a string without an end");
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c == '\\') {
            if (!scan_escape(s))
                return false;
            continue;
        }
        if (c < 0x20)
            return fail(s, "a raw control character (0x%02x) in a string", (unsigned)c);
        size_t n = utf8_length(s);
        if (n == 0)
            return fail(s, "bytes that are not UTF-8 in a string");
        s->at += n;
    }
}

static bool scan_digits(struct scanner *s)
{
    if (!is_digit(peek(s)))
        return fail(s, "a digit is missing in a number");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool scan_number_parts(struct scanner *s)
{
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return fail(s, "a number with a leading zero");
    } else if (!scan_digits(s)) {
        return false;
    }
    if (peek(s) == '.') {
        s->at++;
        if (!scan_digits(s))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        return scan_digits(s);
    }
    return true;
}

/* cJSON reads 63 characters of a number, and takes the rest for what follows it. */
static bool scan_number(struct scanner *s)
{
    size_t start = s->at;
    if (!scan_number_parts(s))
        return false;
    if (s->at - start <= NUMBER_BYTES_MAX)
        return true;
    s->at = start;
    return fail(s, "a number of more than %d characters", NUMBER_BYTES_MAX);
}

static bool scan_word(struct scanner *s, const char *word)
{
    size_t n = strlen(word);
    if (s->bytes - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return fail(s, "a value was expected here");
    s->at += n;
    return true;
}

/* After an element: true at a comma (skipped) or at `close` (left); anything else is an error. */
static bool scan_separator(struct scanner *s, char close)
{
    skip_space(s);
    if (peek(s) == close)
        return true;
    if (peek(s) != ',')
        return fail(s, "',' or '%c' was expected here", close);
    s->at++;
    skip_space(s);
    if (peek(s) == close)
        return fail(s, "a comma before '%c'", close);
    return true;
}

static bool scan_member_name(struct scanner *s)
{
    if (peek(s) != '"')
        return fail(s, "a member name in quotes was expected here");
    if (++s->members == s->wanted)
        s->wanted_at = s->at;
    if (!scan_string(s))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return fail(s, "':' was expected here");
    s->at++;
    skip_space(s);
    return true;
}

static bool scan_container(struct scanner *s, char close)
{
    unsigned members = 0;
    if (++s->depth > JSON_DEPTH_MAX)
        return fail(s, "nested deeper than %d", JSON_DEPTH_MAX);
    s->at++; /* the bracket */
    skip_space(s);
    while (peek(s) != close) {
        if (close == '}') {
            if (++members > JSON_MEMBERS_MAX)
                return fail(s, "an object with more than %d members", JSON_MEMBERS_MAX);
            if (!scan_member_name(s))
                return false;
        }
        if (!scan_value(s) || !scan_separator(s, close))
            return false;
    }
    s->at++;
    s->depth--;
    return true;
}

static bool scan_value(struct scanner *s)
{
    switch (peek(s)) {
    case '{':
        return scan_container(s, '}');
    case '[':
        return scan_container(s, ']');
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    default:
        if (peek(s) == '-' || is_digit(peek(s)))
            return scan_number(s);
        return fail(s, peek(s) < 0 ? "the text ends too early" : "a value was expected here");
    }
}

static bool scan_text(struct scanner *s)
{
    skip_space(s);
    if (!scan_value(s))
        return false;
    skip_space(s);
    return s->at == s->bytes || fail(s, "bytes after the value");
}

/* A member whose name one before it in the same object has, or NULL. Bounded by JSON_MEMBERS_MAX. */
static const cJSON *duplicate_member(const cJSON *tree)
{
    const cJSON *a, *b;
    cJSON_ArrayForEach (a, tree) {
        for (b = a->next; cJSON_IsObject(tree) && b; b = b->next) {
            if (strcmp(a->string, b->string) == 0)
                return b;
        }
        const cJSON *inner = duplicate_member(a);
        if (inner)
            return inner;
    }
    return NULL;
}

/* Count members in the order of the text, up to `member`; whether it is in `tree`. */
static bool count_members(const cJSON *tree, const cJSON *member, size_t *count)
{
    const cJSON *item;
    cJSON_ArrayForEach (item, tree) {
        *count += cJSON_IsObject(tree);
        if (item == member || count_members(item, member, count))
            return true;
    }
    return false;
}

/* Say where the name of `member` is: the tree does not know, so the text is scanned once more. */
static void fail_twice(const struct scanner *before, const cJSON *root, const cJSON *member)
{
    struct scanner s = {.text = before->text, .bytes = before->bytes, .error = before->error};
    (void)count_members(root, member, &s.wanted);
    (void)scan_text(&s);
    s.at = s.wanted_at;
    fail(&s, "member \"%.64s\" occurs twice", member->string);
}

/* Whether a number of `tree` does not fit a double ("1e999"). */
static bool has_infinity(const cJSON *tree)
{
    const cJSON *item;
    if (cJSON_IsNumber(tree) && !isfinite(tree->valuedouble))
        return true;
    cJSON_ArrayForEach (item, tree) {
        if (has_infinity(item))
            return true;
    }
    return false;
}

int json_blank_comments(char *text, size_t bytes, struct json_error *error)
{
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        if (in_string) {
            if (text[i] == '\\')
                i++;
            else if (text[i] == '"' || text[i] == '\n')
                in_string = false;
            continue;
        }
        if (text[i] == '"')
            in_string = true;
        if (text[i] != '/' || i + 1 == bytes || (text[i + 1] != '/' && text[i + 1] != '*'))
            continue;
        size_t begin = i;
        bool to_line_end = text[i + 1] == '/';
        text[i] = text[i + 1] = ' ';
        for (i += 2; i < bytes; i++) {
            if (to_line_end ? text[i] == '\n' : text[i] == '*' && i + 1 < bytes && text[i + 1] == '/')
                break;
            if (text[i] != '\n')
                text[i] = ' ';
        }
        if (!to_line_end) {
            if (i >= bytes) {
                struct scanner s = {.at = begin, .error = error};
                fail(&s, "a comment without an end");
                return ATTND_MALFORMED;
            }
            text[i] = text[i + 1] = ' ';
            i++;
        }
    }
    return 0;
}

int json_parse(const char *text, size_t bytes, cJSON **root, struct json_error *error)
{
    struct scanner s = {.text = text, .bytes = bytes, .error = error};
    *root = NULL;
    if (!scan_text(&s))
        return ATTND_MALFORMED;

    s.at = 0; /* what cJSON's tree shows has no place of its own */
    *root = cJSON_ParseWithLength(text, bytes);
    if (!*root) {
        fail(&s, "half of a surrogate pair in a string, or too large to parse");
        return ATTND_MALFORMED;
    }
    const cJSON *twice = duplicate_member(*root);
    if (twice || has_infinity(*root)) {
        if (twice)
            fail_twice(&s, *root, twice);
        else
            fail(&s, "a number is too large");
        cJSON_Delete(*root);
        *root = NULL;
        return ATTND_MALFORMED;
    }
    return 0;
}

/* Move the scanner from the opening brace of an object to the value of `name`; false if it is not
 * there. */
static bool enter_member(struct scanner *s, const char *name, size_t name_bytes)
{
    if (peek(s) != '{')
        return false;
    s->at++;
    skip_space(s);
    while (peek(s) == '"') {
        const char *found = s->text + s->at + 1;
        if (!scan_member_name(s))
            return false;
        if (strncmp(found, name, name_bytes) == 0 && found[name_bytes] == '"')
            return true;
        if (!scan_value(s) || !scan_separator(s, '}'))
            return false;
    }
    return false;
}

size_t json_locate(const char *text, size_t bytes, const char *path)
{
    struct json_error ignored;
    struct scanner s = {.text = text, .bytes = bytes, .error = &ignored};
    skip_space(&s);
    while (*path) {
        size_t n = strcspn(path, ".");
        size_t outer = s.at;
        if (!enter_member(&s, path, n))
            return outer;
        path += n + (path[n] == '.');
    }
    return s.at;
}

struct json_place json_place(const char *text, size_t offset)
{
    struct json_place place = {1, 1};
    for (size_t i = 0; i < offset; i++) {
        place.column++;
        if (text[i] == '\n') {
            place.line++;
            place.column = 1;
        }
    }
    return place;
}

bool json_is_integer(const cJSON *item, int64_t min, int64_t max, int64_t *value)
{
    if (!cJSON_IsNumber(item))
        return false;
    double d = item->valuedouble;
    if (!(d >= (double)min && d <= (double)max) || d != floor(d))
        return false;
    *value = (int64_t)d;
    return true;
}
