/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.c - see arguments.h. */
#include "server/arguments.h"

#include "config/nearest.h"
#include "server/media_type.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_in(const char *const *names, const char *name)
{
    for (; names && *names; names++) {
        if (strcmp(*names, name) == 0)
            return true;
    }
    return false;
}

int arguments_refuse(struct arguments *a, const char *name, const char *wants)
{
    char pointer[128];
    if (!a->object) {
        http_problem_of_query(a->x, ATTND_INVALID, name, wants);
    } else {
        snprintf(pointer, sizeof pointer, "%s/%s", a->where, name);
        http_problem_at(a->x, ATTND_INVALID, pointer, wants);
    }
    return ATTND_INVALID;
}

/* ---- queries --------------------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decode `n` bytes of a query to `to`, which has room for as many and a NUL. False: they are no such text. */
static bool decode(const char *from, size_t n, char *to, struct http_text *text)
{
    *text = (struct http_text){to, 0};
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%') {
            int high = n - i > 2 ? hex_digit(from[i + 1]) : -1;
            int low = high >= 0 ? hex_digit(from[i + 2]) : -1;
            if (low < 0)
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        } else if (c == '+') { /* a space to some, a plus to others */
            return false;
        }
        if (c == '\0')
            return false;
        to[text->n++] = c;
    }
    to[text->n] = '\0';
    return true;
}

/* "there is none of that name; there are a, b and c" */
static int refuse_name(struct arguments *a, const char *name, const char *const *names,
                       const char *const *elsewhere)
{
    char text[256] = "there is none of that name; there are ";
    size_t n = strlen(text);
    if (is_in(elsewhere, name))
        return arguments_refuse(a, name, "belongs in the body");
    if (!names || !*names)
        return arguments_refuse(a, name, "this request takes no parameters");
    for (; *names && n < sizeof text; names++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", *names, names[1] ? ", " : "");
    return arguments_refuse(a, name, text);
}

/* One parameter, "name=value". `*room` is where it is decoded to; it moves behind that. */
static int take_parameter(struct arguments *a, struct http_text text, char **room, const char *const *names,
                          const char *const *elsewhere)
{
    const char *mark = memchr(text.bytes, '=', text.n);
    struct http_text name, value = {"", 0};
    size_t front = mark ? (size_t)(mark - text.bytes) : text.n;
    bool good = decode(text.bytes, front, *room, &name);
    *room += name.n + 1;
    if (good && mark) {
        good = decode(mark + 1, text.n - front - 1, *room, &value);
        *room += value.n + 1;
    }
    if (!good || name.n == 0) {
        http_problem(a->x, ATTND_INVALID,
                     "query: \"%.*s\": wants name=value, with %%20 for a space, %%2B for a plus, %%25 for a "
                     "percent sign",
                     (int)(text.n < 100 ? text.n : 100), text.bytes);
        return ATTND_INVALID;
    }
    if (!is_in(names, name.bytes))
        return refuse_name(a, name.bytes, names, elsewhere);
    if (arguments_has(a, name.bytes))
        return arguments_refuse(a, name.bytes, "is there twice");
    if (!mark)
        return arguments_refuse(a, name.bytes, "wants a value");
    a->query[a->count].name = name.bytes; /* `names` has ARGUMENTS_MAX at most, and none twice */
    a->query[a->count++].value = value;
    return 0;
}

int arguments_of_query(struct arguments *a, struct http_exchange *x, const char *const *names,
                       const char *const *elsewhere)
{
    struct http_text query = x->head.query;
    // cppcheck-suppress ctuuninitvar ; it is memory to write to
    char *room = a->text; /* decoded it is no longer, and a NUL takes the place of '=' and '&' */
    a->x = x;
    a->where = "";
    a->tree = NULL;
    a->object = NULL;
    a->count = 0;
    while (query.n) {
        const char *mark = memchr(query.bytes, '&', query.n);
        size_t n = mark ? (size_t)(mark - query.bytes) : query.n;
        int rc = take_parameter(a, (struct http_text){query.bytes, n}, &room, names, elsewhere);
        if (rc != 0)
            return rc;
        n += mark != NULL;
        query = (struct http_text){query.bytes + n, query.n - n};
    }
    return 0;
}

/* ---- bodies ---------------------------------------------------------------------------------------- */

/* Where parameters are none: those that are members are told so. */
static int refuse_query(struct http_exchange *x, const char *const *names)
{
    static const char *const none[] = {NULL};
    struct arguments a;
    return x->head.query.n ? arguments_of_query(&a, x, none, names) : 0;
}

int arguments_no_body(struct http_exchange *x)
{
    if (x->body.n == 0)
        return 0;
    http_problem(x, ATTND_INVALID, "this request takes no body");
    return ATTND_INVALID;
}

int arguments_none(struct http_exchange *x)
{
    int rc = refuse_query(x, NULL);
    return rc == 0 ? arguments_no_body(x) : rc;
}

static int parse_body(struct http_exchange *x, cJSON **tree)
{
    struct json_error wrong;
    const char *text = x->body.n ? x->body.bytes : "{}";
    *tree = NULL;
    if (x->body.n && !media_type_is(x->head.body_type, "application/json")) {
        http_problem(x, ATTND_BAD_TYPE, "Content-Type is \"%.*s\"; send application/json (curl --json does)",
                     (int)(x->head.body_type.n < 80 ? x->head.body_type.n : 80), x->head.body_type.bytes);
        return ATTND_BAD_TYPE;
    }
    if (x->body.n > HTTP_JSON_BYTES_MAX) {
        http_problem(x, ATTND_BODY_TOO_LARGE, "a JSON body has at most %d bytes; send safetensors",
                     HTTP_JSON_BYTES_MAX);
        return ATTND_BODY_TOO_LARGE;
    }
    if (json_parse(text, x->body.n ? x->body.n : 2, tree, &wrong) != 0) {
        struct json_place at = json_place(text, wrong.offset);
        http_problem(x, ATTND_MALFORMED, "line %u, column %u: %s", at.line, at.column, wrong.reason);
        return ATTND_MALFORMED;
    }
    return 0;
}

void arguments_no_such(const char *what, const char *name, const char *const *names, const char *const *lists,
                       char text[ARGUMENTS_TEXT_BYTES])
{
    const char *near = NULL;
    for (; names && *names; names++)
        near = nearest_of(name, near, *names);
    for (; lists && *lists; lists++)
        near = nearest_of(name, near, *lists);
    snprintf(text, ARGUMENTS_TEXT_BYTES, "there is no such %s%s%s%s", what, near ? "; did you mean " : "",
             near ? near : "", near ? "?" : "");
}

/* Every member has a name that is in one of the lists. */
static int check_names(struct arguments *a, const char *const *names, const char *const *lists)
{
    const cJSON *item;
    char text[ARGUMENTS_TEXT_BYTES];
    cJSON_ArrayForEach (item, a->object) {
        if (is_in(names, item->string) || is_in(lists, item->string))
            continue;
        arguments_no_such("member", item->string, names, lists, text);
        return arguments_refuse(a, item->string, text);
    }
    return 0;
}

int arguments_of_json(struct arguments *a, struct http_exchange *x, const char *const *names,
                      const char *const *lists)
{
    a->x = x;
    a->where = "";
    a->object = NULL;
    a->count = 0;
    a->tree = NULL;
    int rc = refuse_query(x, names);
    if (rc == 0)
        rc = parse_body(x, &a->tree);
    if (rc != 0)
        return rc;
    a->object = a->tree;
    return cJSON_IsObject(a->tree) ? check_names(a, names, lists)
                                   : arguments_refuse(a, "", "the body is one JSON object");
}

int arguments_of_object(struct arguments *a, struct http_exchange *x, const cJSON *object, const char *where,
                        const char *const *names, const char *const *lists)
{
    static const cJSON empty = {.type = cJSON_Object};
    a->x = x;
    a->where = where;
    a->object = object ? object : &empty;
    a->count = 0;
    a->tree = NULL;
    if (cJSON_IsObject(a->object))
        return check_names(a, names, lists);
    http_problem_at(x, ATTND_INVALID, where, "wants an object");
    return ATTND_INVALID;
}

void arguments_close(struct arguments *a)
{
    cJSON_Delete(a->tree);
    a->tree = NULL;
    a->object = NULL;
}

/* ---- one of them ----------------------------------------------------------------------------------- */

const cJSON *arguments_member(const struct arguments *a, const char *name)
{
    return a->object ? cJSON_GetObjectItemCaseSensitive(a->object, name) : NULL;
}

/* The value of a parameter; NULL: it is absent, or a member. */
static const struct http_text *parameter(const struct arguments *a, const char *name)
{
    for (unsigned i = 0; i < a->count; i++) {
        if (strcmp(a->query[i].name, name) == 0)
            return &a->query[i].value;
    }
    return NULL;
}

bool arguments_has(const struct arguments *a, const char *name)
{
    return arguments_member(a, name) || parameter(a, name);
}

/* A number as JSON writes it, which is in [min, max]. */
static bool read_number(struct http_text text, double min, double max, double *value)
{
    char *end;
    if (text.n == 0 || text.n > 32 || strspn(text.bytes, "0123456789.eE+-") != text.n)
        return false;
    *value = strtod(text.bytes, &end);
    return *end == '\0' && *value >= min && *value <= max;
}

/* Digits, perhaps behind a minus. */
static bool read_integer(struct http_text text, int64_t min, int64_t max, int64_t *value)
{
    char *end;
    size_t sign = text.n && text.bytes[0] == '-';
    if (text.n == sign || text.n > 17 || strspn(text.bytes + sign, "0123456789") != text.n - sign)
        return false;
    *value = strtoll(text.bytes, &end, 10);
    return *value >= min && *value <= max;
}

int arguments_integer(struct arguments *a, const char *name, int64_t min, int64_t max, int64_t *value)
{
    char wants[80];
    const cJSON *member = arguments_member(a, name);
    const struct http_text *text = parameter(a, name);
    int64_t number;
    if (!member && !text)
        return 0;
    if (member ? json_is_integer(member, min, max, &number) : read_integer(*text, min, max, &number)) {
        *value = number;
        return 0;
    }
    if (min == max)
        snprintf(wants, sizeof wants, "wants %lld", (long long)min);
    else
        snprintf(wants, sizeof wants, "wants an integer in %lld..%lld", (long long)min, (long long)max);
    return arguments_refuse(a, name, wants);
}

int arguments_number(struct arguments *a, const char *name, double min, double max, double *value)
{
    char wants[80];
    const cJSON *member = arguments_member(a, name);
    const struct http_text *text = parameter(a, name);
    double number = cJSON_IsNumber(member) ? member->valuedouble : NAN;
    if (!member && !text)
        return 0;
    if (text && !read_number(*text, min, max, &number))
        number = NAN;
    if (number >= min && number <= max) {
        *value = number;
        return 0;
    }
    snprintf(wants, sizeof wants, "wants a number in %g..%g", min, max);
    return arguments_refuse(a, name, wants);
}

int arguments_flag(struct arguments *a, const char *name, bool *value)
{
    const cJSON *member = arguments_member(a, name);
    const struct http_text *text = parameter(a, name);
    if (!member && !text)
        return 0;
    if (member && !cJSON_IsBool(member))
        return arguments_refuse(a, name, "wants true or false");
    if (text && !http_text_is(*text, "0") && !http_text_is(*text, "1"))
        return arguments_refuse(a, name, "wants 0 or 1");
    *value = member ? cJSON_IsTrue(member) : text->bytes[0] == '1';
    return 0;
}

int arguments_text(struct arguments *a, const char *name, size_t most, struct http_text *value)
{
    char wants[80];
    const cJSON *member = arguments_member(a, name);
    const struct http_text *text = parameter(a, name);
    size_t n = cJSON_IsString(member) ? strlen(member->valuestring) : text ? text->n : 0;
    if (!member && !text)
        return 0;
    snprintf(wants, sizeof wants, "wants a string of at most %zu bytes", most);
    if (n > most || (member && !cJSON_IsString(member)))
        return arguments_refuse(a, name, wants);
    *value = member ? (struct http_text){member->valuestring, n} : *text;
    return 0;
}

int arguments_word(struct arguments *a, const char *name, const char *const *words, unsigned n,
                   unsigned *index)
{
    char wants[160] = "wants ";
    size_t end = strlen(wants);
    const cJSON *member = arguments_member(a, name);
    const struct http_text *text = parameter(a, name);
    const char *word = cJSON_IsString(member) ? member->valuestring : text ? text->bytes : "";
    if (!member && !text)
        return 0;
    for (unsigned i = 0; i < n; i++) {
        if (strcmp(word, words[i]) == 0) {
            *index = i;
            return 0;
        }
    }
    for (unsigned i = 0; i < n && end < sizeof wants; i++)
        end += (size_t)snprintf(wants + end, sizeof wants - end, "%s%s", words[i],
                                i + 2 < n    ? ", "
                                : i + 2 == n ? " or "
                                             : "");
    return arguments_refuse(a, name, wants);
}
