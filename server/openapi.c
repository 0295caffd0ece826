/* SPDX-License-Identifier: Apache-2.0 */
/* openapi.c - see openapi.h. */
#include "server/openapi.h"

#include "config/json_writer.h"
#include "server/access.h"
#include "server/api.h"
#include "config/version.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENT_BYTES = 1 << 20, NAME_BYTES = 64 };

/* ---- the notation -------------------------------------------------------------------------------- */

/* What is read, and what is written of it. */
struct notation {
    const char *at, *whole;
    struct json_writer *w;
};

static _Noreturn void misread(const struct notation *n)
{
    fprintf(stderr, "attnd: openapi.c cannot read the schema \"%s\" from \"%s\" on\n", n->whole, n->at);
    abort();
}

static bool take(struct notation *n, char c)
{
    while (*n->at == ' ')
        n->at++;
    bool there = *n->at == c;
    n->at += there;
    return there;
}

static void take_word(struct notation *n, char word[NAME_BYTES])
{
    size_t length = 0;
    while (isalnum((unsigned char)n->at[length]) || n->at[length] == '_' || n->at[length] == '-' ||
           n->at[length] == '/')
        length++;
    if (length == 0 || length >= NAME_BYTES)
        misread(n);
    snprintf(word, NAME_BYTES, "%.*s", (int)length, n->at);
    n->at += length;
}

static void write_type(struct notation *n, const char *name);

/* "$ref", a member of an open object. */
static void write_ref(struct json_writer *w, const char *kind, const char *to)
{
    char text[NAME_BYTES + 40];
    snprintf(text, sizeof text, "#/components/%s/%s", kind, to);
    json_string(w, "$ref", text);
}

static void write_reference(struct json_writer *w, const char *name, const char *kind, const char *to)
{
    json_open(w, name, '{');
    write_ref(w, kind, to);
    json_close(w, '}');
}

/* The members of an object, up to the bracket. */
static void write_members(struct notation *n)
{
    const char *begin = n->at;
    char word[NAME_BYTES];
    json_string(n->w, "type", "object");
    json_bool(n->w, "additionalProperties", false);
    json_open(n->w, "properties", '{');
    while (!take(n, '}')) {
        take_word(n, word);
        (void)take(n, '?');
        if (!take(n, ':'))
            misread(n);
        write_type(n, word);
    }
    json_close(n->w, '}');
    const char *end = n->at;
    json_open(n->w, "required", '[');
    int depth = 0;
    for (n->at = begin; n->at < end;) { /* names outside of inner brackets */
        depth += *n->at == '{' || *n->at == '[' || *n->at == '(';
        depth -= *n->at == '}' || *n->at == ']' || *n->at == ')';
        bool starts = depth == 0 && (n->at == begin || n->at[-1] == ' ') && islower((unsigned char)*n->at);
        if (!starts) {
            n->at++;
            continue;
        }
        take_word(n, word);
        if (*n->at == ':')
            json_string(n->w, NULL, word);
    }
    json_close(n->w, ']');
}

/* "(1..1000)" behind a type: bounds of a number, the length of a text. */
static void write_bounds(struct notation *n, bool of_text)
{
    char *end;
    if (*n->at != '(')
        return;
    n->at++;
    if (*n->at != '.') {
        json_double(n->w, of_text ? "minLength" : "minimum", strtod(n->at, &end));
        n->at = strstr(n->at, "..");
    }
    if (!n->at || strncmp(n->at, "..", 2) != 0)
        misread(n);
    n->at += 2;
    if (*n->at != ')') {
        json_double(n->w, of_text ? "maxLength" : "maximum", strtod(n->at, &end));
        n->at = end;
    }
    if (!take(n, ')'))
        misread(n);
}

static void write_simple(struct notation *n, const char *word)
{
    static const struct {
        const char *word, *type;
    } types[] = {{"uint", "integer"}, {"int", "integer"}, {"id", "integer"},   {"number", "number"},
                 {"bool", "boolean"}, {"text", "string"}, {"range", "string"}, {"any", NULL}};
    size_t i = 0;
    while (i < sizeof types / sizeof types[0] && strcmp(word, types[i].word) != 0)
        i++;
    if (i == sizeof types / sizeof types[0])
        misread(n);
    if (types[i].type)
        json_string(n->w, "type", types[i].type);
    if (strcmp(word, "id") == 0) {
        json_uint(n->w, "minimum", 1);
        json_uint(n->w, "maximum", REQUEST_ID_MAX);
    } else if (strcmp(word, "range") == 0) {
        json_string(n->w, "pattern", "^[0-9]{1,8}:[0-9]{1,8}$");
    } else if (strcmp(word, "uint") == 0 && *n->at != '(') {
        json_uint(n->w, "minimum", 0);
    }
    write_bounds(n, strcmp(word, "text") == 0);
}

/* One type without what may follow it, as the members of an open object. */
static void write_inside(struct notation *n)
{
    char word[NAME_BYTES];
    if (take(n, '{')) {
        write_members(n);
    } else if (take(n, '[')) {
        json_string(n->w, "type", "array");
        write_type(n, "items");
        if (!take(n, ']'))
            misread(n);
    } else if (take(n, '(')) {
        json_open(n->w, "enum", '[');
        do {
            take_word(n, word);
            json_string(n->w, NULL, word);
        } while (take(n, '|'));
        json_close(n->w, ']');
        if (!take(n, ')'))
            misread(n);
    } else {
        take_word(n, word);
        if (isupper((unsigned char)word[0]))
            write_ref(n->w, "schemas", word);
        else
            write_simple(n, word);
    }
}

/* Where a type ends, nothing written. */
static const char *end_of(const char *at)
{
    int depth = 0;
    for (; *at && (depth > 0 || !strchr(" |?}])", *at)); at++) {
        depth += *at == '{' || *at == '[' || *at == '(';
        depth -= *at == '}' || *at == ']' || *at == ')';
    }
    return at;
}

/* A type as the value of `name`: several with '|' between them, or null too with '?' behind. */
static void write_type(struct notation *n, const char *name)
{
    while (*n->at == ' ')
        n->at++;
    const char *end = end_of(n->at);
    bool several = *end == '|' || *end == '?';
    json_open(n->w, name, '{');
    if (several)
        json_open(n->w, "anyOf", '[');
    do {
        if (several)
            json_open(n->w, NULL, '{');
        write_inside(n);
        if (several)
            json_close(n->w, '}');
    } while (take(n, '|'));
    if (several && *n->at == '?') {
        n->at++;
        json_open(n->w, NULL, '{');
        json_string(n->w, "type", "null");
        json_close(n->w, '}');
    }
    if (several)
        json_close(n->w, ']');
    json_close(n->w, '}');
}

static void write_schema(struct json_writer *w, const char *name, const char *text)
{
    struct notation n = {text, text, w};
    write_type(&n, name);
    if (*n.at)
        misread(&n);
}

/* ---- operations ---------------------------------------------------------------------------------- */

static void write_parameter(struct json_writer *w, const char *name, const char *in, bool required,
                            struct notation *schema)
{
    json_open(w, NULL, '{');
    json_string(w, "name", name);
    json_string(w, "in", in);
    json_bool(w, "required", required);
    write_type(schema, "schema");
    json_close(w, '}');
}

/* Whether it heeds If-Match. */
static bool is_conditional(const struct route *route)
{
    return !route->answer && (route->kind == REQUEST_EXPORT || route->kind == REQUEST_MOVED);
}

static void write_parameters(struct json_writer *w, const struct route *route)
{
    const char *of = route->kind == REQUEST_BLOCK_LIFE && !route->answer ? "uint(0..4294967295)" : "id";
    struct notation id = {of, of, w}, query = {route->about.query, route->about.query, w},
                    tag = {"text", "text", w}, name_of = {"text(1..64)", "text(1..64)", w};
    char name[NAME_BYTES];
    json_open(w, "parameters", '[');
    if (strstr(route->path, "{id}"))
        write_parameter(w, "id", "path", true, &id);
    if (strstr(route->path, "{name}"))
        write_parameter(w, "name", "path", true, &name_of);
    while (query.at && !take(&query, '\0')) {
        take_word(&query, name);
        bool required = !take(&query, '?');
        if (!take(&query, ':'))
            misread(&query);
        write_parameter(w, name, "query", required, &query);
        if (*query.at == '\0')
            break;
    }
    if (is_conditional(route))
        write_parameter(w, "If-Match", "header", false, &tag);
    json_close(w, ']');
}

static void write_content(struct json_writer *w, const char *type, const char *schema)
{
    json_open(w, type, '{');
    write_schema(w, "schema", schema);
    json_close(w, '}');
}

static void write_body(struct json_writer *w, const struct route *route)
{
    if (!route->about.reads)
        return;
    json_open(w, "requestBody", '{');
    json_open(w, "content", '{');
    write_content(w, "application/json", route->about.reads);
    if (route->body == BODY_TENSORS) {
        write_content(w, "application/x-safetensors", "any");
        write_content(w, "application/octet-stream", "any");
    } else if (route->body == BODY_TRACE) {
        write_content(w, "text/csv", "any");
        write_content(w, "application/x-ndjson", "any");
    }
    json_close(w, '}');
    json_close(w, '}');
}

static void write_response(struct json_writer *w, const struct route *route, int status, const char *schema)
{
    char code[8];
    snprintf(code, sizeof code, "%d", status);
    json_open(w, code, '{');
    json_string(w, "description",
                status == 304   ? "The client has this state"
                : status == 503 ? "Not now"
                                : "Done");
    if (schema) {
        json_open(w, "content", '{');
        if (route->types == 0 || route->types & TYPE_JSON)
            write_content(w, "application/json", schema);
        if (route->types & TYPE_TEXT)
            write_content(w, "text/plain", "text");
        if (route->types & TYPE_TENSORS)
            write_content(w, "application/x-safetensors", "any");
        if (route->types & TYPE_LINES)
            write_content(w, "application/x-ndjson", "text");
        if (route->types & TYPE_EVENTS)
            write_content(w, "text/event-stream", "text");
        if (route->types & TYPE_PAGE)
            write_content(w, "text/html", "text");
        if (route->types & TYPE_FILES) {
            write_content(w, "text/css", "text");
            write_content(w, "text/javascript", "text");
            write_content(w, "image/svg+xml", "text");
        }
        if (status == 503) /* of a daemon that has no connection left */
            write_content(w, "application/problem+json", "Problem");
        json_close(w, '}');
    }
    json_close(w, '}');
}

/* Whether an operation may fail with that status. */
static bool may_answer(const struct route *route, int http_status)
{
    bool open = route->access == ACCESS_OPEN, asks = !route->answer, reads = route->about.reads,
         named = strstr(route->path, "{id}") || route->access == ACCESS_INFER;
    switch (http_status) {
    case 401: /* of a key, or of a connection too many, which probes declare themselves, */
    case 429:
    case 503:
        return !open;
    case 404: /* of what is named, or of everything at the management listener, */
        return named || !open || strstr(route->path, "{name}");
    case 410: /* likewise, and of what was, */
        return named || (asks && (route->kind == REQUEST_POOL || route->kind == REQUEST_TABLES));
    case 412: /* of a content, */
        return is_conditional(route);
    case 409:
        return asks && (route->access == ACCESS_INFER || route->access == ACCESS_ADMIN);
    case 405: /* of the path, not of the operation, */
        return false;
    case 406: /* of what is wanted, */
        return route->types != 0;
    case 411: /* of a body, */
        return reads && route->body != BODY_SMALL;
    case 504: /* of the engine; the others of every request */
        return asks;
    default:
        return true;
    }
}

static void write_problems(struct json_writer *w, const struct route *route)
{
    static const int statuses[] = {
#define XX(constant, code, title, http) http,
        STATUS_MAP(XX)
#undef XX
    };
    char code[8], name[16];
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        bool first = true;
        for (size_t k = 0; k < i; k++)
            first &= statuses[k] != statuses[i];
        if (!first || !may_answer(route, statuses[i]))
            continue;
        snprintf(code, sizeof code, "%d", statuses[i]);
        snprintf(name, sizeof name, "Problem%d", statuses[i]);
        write_reference(w, code, "responses", name);
    }
}

static const char *method_name(enum http_method method)
{
    return method == HTTP_METHOD_GET    ? "get"
           : method == HTTP_METHOD_POST ? "post"
           : method == HTTP_METHOD_PUT  ? "put"
                                        : "delete";
}

/* "post_v1_sequences_id_fork" */
static void write_operation_id(struct json_writer *w, const struct route *route)
{
    char text[128];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", method_name(route->method));
    for (const char *p = route->path; *p && n + 2 < sizeof text; p++) {
        if (*p == '/' || *p == '.')
            text[n++] = '_';
        else if (*p != '{' && *p != '}')
            text[n++] = *p;
    }
    text[n] = '\0';
    json_string(w, "operationId", text);
}

static void write_security(struct json_writer *w, const struct route *route)
{
    const char *scope = access_scope(route->access);
    json_open(w, "security", '[');
    json_open(w, NULL, '{'); /* none is needed where there is no keys file */
    json_close(w, '}');
    if (scope) {
        json_open(w, NULL, '{');
        json_open(w, "key", '[');
        json_string(w, NULL, scope);
        json_close(w, ']');
        json_close(w, '}');
    }
    json_close(w, ']');
}

static void write_operation(struct json_writer *w, const struct route *route)
{
    json_open(w, method_name(route->method), '{');
    json_string(w, "summary", route->about.summary);
    write_operation_id(w, route);
    write_security(w, route);
    write_parameters(w, route);
    write_body(w, route);
    json_open(w, "responses", '{');
    write_response(w, route, route->http_status, route->about.writes);
    if (route->about.also)
        write_response(w, route, route->about.also, route->about.also == 304 ? NULL : route->about.writes);
    write_problems(w, route);
    json_close(w, '}');
    json_close(w, '}');
}

/* ---- components ---------------------------------------------------------------------------------- */

static const char problem[] =
    "{type:text title:text status:uint detail:text code:text request_id:text "
    "moved_to?:text errors?:[{pointer?:text "
    "parameter?:text detail:text}] "
    "unwritten?:{row:uint layer:uint table?:uint sequence?:id position:uint block:uint "
    "slot:uint slots:uint blocks:uint owners:[{id:id? key:text? since:uint until:uint?}]}}";

/* What answers with that status say, and which codes there are. */
static void write_problem_response(struct json_writer *w, int http_status)
{
    char name[16];
    snprintf(name, sizeof name, "Problem%d", http_status);
    json_open(w, name, '{');
#define XX(constant, text, title, http)                                                                      \
    if (http == http_status && !w->comma)                                                                    \
        json_string(w, "description", title);
    STATUS_MAP(XX)
#undef XX
    json_open(w, "content", '{');
    json_open(w, "application/problem+json", '{');
    json_open(w, "schema", '{');
    json_open(w, "allOf", '[');
    write_reference(w, NULL, "schemas", "Problem");
    json_open(w, NULL, '{');
    json_open(w, "properties", '{');
    json_open(w, "code", '{');
    json_open(w, "enum", '[');
#define XX(constant, text, title, http)                                                                      \
    if (http == http_status)                                                                                 \
        json_string(w, NULL, text);
    STATUS_MAP(XX)
#undef XX
    json_close(w, ']');
    json_close(w, '}');
    json_close(w, '}');
    json_close(w, '}');
    json_close(w, ']');
    json_close(w, '}');
    json_close(w, '}');
    json_close(w, '}');
    json_close(w, '}');
}

static void write_components(struct json_writer *w, const struct api_resource *const *resources, size_t n)
{
    bool done[600] = {false};
    json_open(w, "components", '{');
    json_open(w, "securitySchemes", '{');
    json_open(w, "key", '{');
    json_string(w, "type", "http");
    json_string(w, "scheme", "bearer");
    json_string(w, "description", "A key of the keys file; where there is none, none is needed.");
    json_close(w, '}');
    json_close(w, '}');
    json_open(w, "responses", '{');
#define XX(constant, code, title, http)                                                                      \
    if (!done[http])                                                                                         \
        write_problem_response(w, http);                                                                     \
    done[http] = true;
    STATUS_MAP(XX)
#undef XX
    json_close(w, '}');
    json_open(w, "schemas", '{');
    write_schema(w, "Problem", problem);
    for (size_t i = 0; i < n; i++) {
        for (const struct api_schema *s = resources[i]->schemas; s->name; s++)
            write_schema(w, s->name, s->text);
    }
    json_close(w, '}');
    json_close(w, '}');
}

/* ---- the document -------------------------------------------------------------------------------- */

/* Routes of one path, of which this is the first. */
static void write_path(struct json_writer *w, const struct route *first)
{
    json_open(w, first->path, '{');
    for (const struct route *route = first; route->path; route++) {
        if (strcmp(route->path, first->path) == 0)
            write_operation(w, route);
    }
    json_close(w, '}');
}

static bool is_first(const struct api_resource *resource, const struct route *route)
{
    const struct route *first = resource->routes;
    while (strcmp(first->path, route->path) != 0)
        first++;
    return first == route;
}

char *openapi_create(const struct api_resource *const *resources, size_t n)
{
    char *text = malloc(DOCUMENT_BYTES);
    struct json_writer w;
    if (!text)
        return NULL;
    json_writer_init(&w, text, DOCUMENT_BYTES - 1);
    json_open(&w, NULL, '{');
    json_string(&w, "openapi", "3.1.0");
    json_open(&w, "info", '{');
    json_string(&w, "title", "attnd");
    json_string(&w, "version", ATTND_VERSION);
    json_string(&w, "description", "A paged KV cache, and attention over it. docs/API.md says it in words.");
    json_close(&w, '}');
    json_open(&w, "paths", '{');
    for (size_t i = 0; i < n; i++) {
        for (const struct route *route = resources[i]->routes; route->path; route++) {
            if (is_first(resources[i], route))
                write_path(&w, route);
        }
    }
    json_close(&w, '}');
    write_components(&w, resources, n);
    json_close(&w, '}');
    json_raw(&w, "\n");
    if (w.overflow)
        abort();
    text[w.length] = '\0';
    return text;
}
