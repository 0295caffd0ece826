/* body.c - see body.h. */
#include "server/body.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- queries ------------------------------------------------------------------------------------- */

bool query_next(struct http_text query, size_t *at, struct http_text *text)
{
    if (*at >= query.n)
        return false;
    const char *bytes = query.bytes + *at, *mark = memchr(bytes, '&', query.n - *at);
    *text = (struct http_text){bytes, mark ? (size_t)(mark - bytes) : query.n - *at};
    *at += text->n + 1;
    return true;
}

bool query_is(struct http_text text, const char *name, struct http_text *value)
{
    size_t n = strlen(name);
    if (text.n <= n || memcmp(text.bytes, name, n) != 0 || text.bytes[n] != '=')
        return false;
    *value = (struct http_text){text.bytes + n + 1, text.n - n - 1};
    return true;
}

bool query_integer(struct http_text text, const char *name, int64_t min, int64_t max, int64_t *value)
{
    struct http_text digits;
    if (!query_is(text, name, &digits))
        return false;
    size_t sign = digits.n && digits.bytes[0] == '-';
    *value = 0;
    if (digits.n == sign || digits.n > sign + 16)
        return false;
    for (size_t i = sign; i < digits.n; i++) {
        if (digits.bytes[i] < '0' || digits.bytes[i] > '9')
            return false;
        *value = *value * 10 + (digits.bytes[i] - '0');
    }
    *value = sign ? -*value : *value;
    return *value >= min && *value <= max;
}

bool query_number(struct http_text text, const char *name, uint64_t *value)
{
    int64_t number;
    bool ok = query_integer(text, name, 0, INT64_C(1) << 53, &number);
    *value = ok ? (uint64_t)number : 0;
    return ok;
}

int query_refuse(struct http_exchange *x, struct http_text text, const char *wants)
{
    http_problem(x, ATTND_INVALID, "parameter \"%.*s\": %s", (int)(text.n < 100 ? text.n : 100), text.bytes,
                 wants);
    return ATTND_INVALID;
}

int query_none(struct http_exchange *x)
{
    return x->head.query.n ? query_refuse(x, x->head.query, "this request takes no parameters") : 0;
}

/* ---- bodies -------------------------------------------------------------------------------------- */

int body_none(struct http_exchange *x)
{
    if (x->body.n == 0)
        return 0;
    http_problem(x, ATTND_INVALID, "this request takes no body");
    return ATTND_INVALID;
}

int body_no_room(struct http_exchange *x)
{
    http_problem(x, ATTND_BUSY, "limits.staging_bytes are in use");
    return ATTND_BUSY;
}

bool body_is_type(struct http_text type, const char *name)
{
    size_t n = strlen(name);
    return type.n >= n && strncasecmp(type.bytes, name, n) == 0 &&
           (type.n == n || type.bytes[n] == ';' || type.bytes[n] == ' ');
}

/* Whether one element of an Accept header, "type/subtype;q=0.5", takes `type`. */
static bool element_accepts(const char *element, size_t n, const char *type)
{
    const char *slash = strchr(type, '/');
    size_t front = (size_t)(slash - type) + 1, name = 0, q;
    while (n && (*element == ' ' || *element == '\t')) {
        element++;
        n--;
    }
    while (name < n && !strchr("; \t", element[name]))
        name++;
    bool named = name == strlen(type) && strncasecmp(element, type, name) == 0;
    bool ranged =
        name > 2 && element[name - 1] == '*' &&
        ((name == 3 && element[0] == '*') || (name == front + 1 && strncasecmp(element, type, front) == 0));
    for (q = name; q + 2 < n && strncasecmp(element + q, "q=0", 3) != 0; q++)
        ;
    bool refused = q + 2 < n;
    for (q += 3; refused && q < n && element[q] != ',' && element[q] != ';'; q++)
        refused = !(element[q] >= '1' && element[q] <= '9');
    return (named || ranged) && !refused;
}

bool accepts(struct http_text accept, const char *type)
{
    bool takes = accept.n == 0;
    for (size_t at = 0, n; !takes && at < accept.n; at += n + 1) {
        const char *comma = memchr(accept.bytes + at, ',', accept.n - at);
        n = comma ? (size_t)(comma - accept.bytes) - at : accept.n - at;
        takes = element_accepts(accept.bytes + at, n, type);
    }
    return takes;
}

int body_open(struct http_exchange *x, const char *const *names, cJSON **tree)
{
    struct json_error wrong;
    *tree = NULL;
    if (query_none(x) != 0)
        return ATTND_INVALID;
    if (x->body.n && !body_is_type(x->head.body_type, "application/json")) {
        http_problem(x, ATTND_BAD_TYPE, "Content-Type is \"%.*s\"; send application/json (curl --json does)",
                     (int)(x->head.body_type.n < 80 ? x->head.body_type.n : 80), x->head.body_type.bytes);
        return ATTND_BAD_TYPE;
    }
    if (x->body.n > HTTP_JSON_BYTES_MAX) {
        http_problem(x, ATTND_BODY_TOO_LARGE, "a JSON body has at most %d bytes; send safetensors",
                     HTTP_JSON_BYTES_MAX);
        return ATTND_BODY_TOO_LARGE;
    }
    const char *text = x->body.n ? x->body.bytes : "{}";
    if (json_parse(text, x->body.n ? x->body.n : 2, tree, &wrong) != 0) {
        struct json_place at = json_place(text, wrong.offset);
        http_problem(x, ATTND_MALFORMED, "line %u, column %u: %s", at.line, at.column, wrong.reason);
        return ATTND_MALFORMED;
    }
    int rc = cJSON_IsObject(*tree) ? member_check(x, "", *tree, names)
                                   : member_wrong(x, "", "", "the body is one JSON object");
    if (rc != 0) {
        cJSON_Delete(*tree);
        *tree = NULL;
    }
    return rc;
}

/* ---- members ------------------------------------------------------------------------------------- */

int member_wrong(struct http_exchange *x, const char *where, const char *name, const char *wants)
{
    char pointer[128];
    snprintf(pointer, sizeof pointer, "%s/%s", where, name);
    http_problem_at(x, ATTND_INVALID, pointer, wants);
    return ATTND_INVALID;
}

int member_check(struct http_exchange *x, const char *where, const cJSON *object, const char *const *names)
{
    const cJSON *item;
    if (!object)
        return 0;
    if (!cJSON_IsObject(object)) {
        http_problem(x, ATTND_INVALID, "%s: wants an object", where);
        return ATTND_INVALID;
    }
    cJSON_ArrayForEach (item, object) {
        size_t i = 0;
        while (names[i] && strcmp(names[i], item->string) != 0)
            i++;
        if (!names[i])
            return member_wrong(x, where, item->string, "there is no such member, or it is not built yet");
    }
    return 0;
}

int member_integer(struct http_exchange *x, const char *where, const cJSON *object, const char *name,
                   int64_t min, int64_t max, int64_t *value)
{
    char wants[80];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!item || json_is_integer(item, min, max, value))
        return 0;
    snprintf(wants, sizeof wants, "wants an integer in %lld..%lld", (long long)min, (long long)max);
    return member_wrong(x, where, name, wants);
}

int member_number(struct http_exchange *x, const char *where, const cJSON *object, const char *name,
                  double min, double max, double *value)
{
    char wants[80];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!item)
        return 0;
    if (cJSON_IsNumber(item) && item->valuedouble >= min && item->valuedouble <= max) {
        *value = item->valuedouble;
        return 0;
    }
    snprintf(wants, sizeof wants, "wants a number in %g..%g", min, max);
    return member_wrong(x, where, name, wants);
}

int json_body_open(struct json_body *b, struct http_exchange *x, const char *const *names)
{
    b->x = x;
    b->where = NULL;
    return body_open(x, names, &b->tree);
}

int json_body_refuse(struct json_body *b, const char *member, const char *wants)
{
    return member_wrong(b->x, b->where ? b->where : "", member, wants);
}

const cJSON *json_body_member(const struct json_body *b, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(b->tree, name);
}

int json_body_integer(struct json_body *b, const char *name, int64_t min, int64_t max, int64_t *value)
{
    return member_integer(b->x, b->where ? b->where : "", b->tree, name, min, max, value);
}
