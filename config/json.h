/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - strict JSON on top of cJSON.
 *
 * cJSON builds the tree, but accepts much that JSON does not (duplicate members, bytes after the value,
 * raw control characters, invalid UTF-8, leading zeros) and tells no position. So every text is first
 * checked against RFC 8259 by a scanner of our own, which reports the byte offset of what is wrong, and
 * which also finds the place of a value that turned out wrong later. */
#ifndef CONFIG_JSON_H
#define CONFIG_JSON_H

#include "config/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

enum {
    JSON_DEPTH_MAX = 32,    /* nested arrays and objects */
    JSON_MEMBERS_MAX = 256, /* of one object */
    JSON_REASON_BYTES = 128
};

/* What is wrong, and at which byte of the text. */
struct json_error {
    size_t offset;
    char reason[JSON_REASON_BYTES];
};

/* A place in a text, both counted from 1; columns count bytes. */
struct json_place {
    unsigned line, column;
};

/* json_blank_comments(text, bytes, error): overwrite // and C comments outside strings with spaces,
 * keeping line ends, so that offsets stay true. O(bytes). Returns 0 or ATTND_MALFORMED (a comment
 * without an end). */
MUST_USE int json_blank_comments(char *text, size_t bytes, struct json_error *error);

/* json_parse(text, bytes, root, error): parse exactly one JSON value that fills `text` (white space
 * around it allowed). On success `*root` is a tree that the caller frees with cJSON_Delete(). Any
 * thread; O(bytes). Returns 0 or ATTND_MALFORMED with `error` filled and `*root` NULL. */
MUST_USE int json_parse(const char *text, size_t bytes, struct cJSON **root, struct json_error *error);

/* json_locate(text, bytes, path): the offset of the value named by `path` ("geometry.window") in a text
 * that json_parse() accepted, or of the innermost enclosing value that is there. */
size_t json_locate(const char *text, size_t bytes, const char *path);

struct json_place json_place(const char *text, size_t offset);

/* json_is_integer(item, min, max, value): whether `item` is a number without a fraction in [min, max];
 * if so it is stored. The bounds lie within +-2^53, where a double is exact. */
bool json_is_integer(const struct cJSON *item, int64_t min, int64_t max, int64_t *value);

#endif
