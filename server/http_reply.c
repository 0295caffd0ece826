/* SPDX-License-Identifier: Apache-2.0 */
/* http_reply.c - see http_reply.h. */
#include "server/http_reply.h"

#include "config/log.h"
#include "config/numbers.h"
#include "server/keys.h"

#include <assert.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <uv.h>

enum { PHRASE_BYTES = 48, FRAMING_BYTES = 160 };
static_assert((int)STATUS_COUNT < (int)LOG_UNANSWERED, "each status is a kind of line of its own");

/* What is wrong: what a JSON pointer points at, or a parameter of the query. */
struct place {
    bool of_query;
    char name[128];
};

/* What is quoted may be cut, or no UTF-8 at all. */
static void make_ascii(char *text)
{
    for (; *text; text++)
        *text = (unsigned char)*text < 0x80 ? *text : '?';
}

struct log_about http_log_about(const struct http_exchange *x, uint64_t took_ns)
{
    return (struct log_about){.id = x->head.id,
                              .method = x->head.method_name,
                              .path = x->head.path.bytes,
                              .path_bytes = (int)x->head.path.n,
                              .route = x->route_path,
                              .client = x->client,
                              .key = x->key && x->known ? x->key->name : NULL,
                              .status = x->http_status,
                              .code = x->problem ? status_code(x->problem) : NULL,
                              .timed = true,
                              .ms = (double)took_ns * 1e-6,
                              .bytes = x->sent_bytes,
                              .subject = x->subject};
}

const char *http_log_subject(const struct http_exchange *x, char text[HTTP_SUBJECT_BYTES])
{
    const struct log_subject *s = &x->subject;
    uint32_t shown = s->count < LOG_IDS_MAX ? s->count : LOG_IDS_MAX;
    text[0] = '\0';
    if (!shown || (shown == 1 && x->id == s->ids[0])) /* the path has it */
        return text;
    size_t n = (size_t)snprintf(text, HTTP_SUBJECT_BYTES, ", %s%s", s->are_leases ? "lease" : "sequence",
                                plural(s->count));
    for (uint32_t i = 0; i < shown; i++)
        n += (size_t)snprintf(text + n, HTTP_SUBJECT_BYTES - n, " %llu", (unsigned long long)s->ids[i]);
    if (s->count > shown)
        snprintf(text + n, HTTP_SUBJECT_BYTES - n, " and %u more", s->count - shown);
    return text;
}

const char *http_log_whose(const struct http_exchange *x, char text[HTTP_WHOSE_BYTES])
{
    bool named = x->key && x->known;
    snprintf(text, HTTP_WHOSE_BYTES, "%s%s%s", x->client ? x->client : "nobody",
             named         ? ", key "
             : x->stranger ? ", unknown key"
             : x->key      ? ", no key"
                           : "",
             named ? x->key->name : "");
    return text;
}

/* A client's mistake is its own; that there is no room or time is for an operator to see; a failure is ours. */
static enum log_level level_of(int http_status)
{
    return http_status == 500 ? LOG_ERROR : http_status == 503 || http_status == 504 ? LOG_WARNING : LOG_INFO;
}

/* The problem's body. `place`: NULL, it is none in particular; `moved_to`: NULL, nowhere; `more`: NULL, there is no more. */
static void write_problem(struct http_exchange *x, int status, struct place *place, const char *moved_to,
                          char *detail, http_more_fn more, const void *cookie)
{
    char type[64], all[704];
    struct json_writer *w = &x->reply;
    make_ascii(detail);
    if (place)
        make_ascii(place->name);
    snprintf(all, sizeof all, "%s%s%s%s%s", x->prefix, place && place->of_query ? "parameter " : "",
             place ? place->name : "", place ? ": " : "", detail);
    json_writer_init(w, w->buffer, w->capacity);
    x->tail_count = 0;
    x->headers = NULL;
    x->problem = status;
    x->http_status = status_http(status);
    if (x->http_status == 503) /* it may be better soon */
        snprintf(x->extra, sizeof x->extra, "Retry-After: 1\r\n");
    x->content_type = "application/problem+json";
    snprintf(type, sizeof type, "/problems/%s", status_code(status));
    for (char *p = type; *p; p++)
        *p = *p == '_' ? '-' : *p;
    json_open(w, NULL, '{');
    json_string(w, "type", type);
    json_string(w, "title", status_title(status));
    json_uint(w, "status", (uint64_t)x->http_status);
    json_string(w, "detail", all);
    json_string(w, "code", status_code(status));
    json_string(w, "request_id", x->head.id);
    if (moved_to)
        json_string(w, "moved_to", moved_to);
    if (more)
        more(w, cookie);
    if (place) {
        json_open(w, "errors", '[');
        json_open(w, NULL, '{');
        json_string(w, place->of_query ? "parameter" : "pointer", place->name);
        json_string(w, "detail", detail);
        json_close(w, '}');
        json_close(w, ']');
    }
    json_close(w, '}');
    json_raw(w, "\n");
    char whose[HTTP_WHOSE_BYTES];
    struct log_about about = http_log_about(x, uv_hrtime() - x->begun_ns);
    about.bytes += w->length; /* sent next */
    log_request(level_of(x->http_status), (unsigned)(status - ATTND_STATUS_BASE), &about,
                "refused %s %.*s from %s: %d %s: %s", x->head.method_name, (int)x->head.path.n,
                x->head.path.bytes, http_log_whose(x, whose), x->http_status, status_code(status), all);
}

void http_problem(struct http_exchange *x, int status, const char *format, ...)
{
    char detail[512];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    write_problem(x, status, NULL, NULL, detail, NULL, NULL);
}

void http_problem_with(struct http_exchange *x, int status, const char *detail, http_more_fn more,
                       const void *cookie)
{
    char text[512];
    snprintf(text, sizeof text, "%s", detail);
    write_problem(x, status, NULL, NULL, text, more, cookie);
}

void http_problem_moved(struct http_exchange *x, const char *detail, const char *moved_to)
{
    char text[512];
    snprintf(text, sizeof text, "%s%s%s", detail, moved_to ? " to " : "", moved_to ? moved_to : "");
    write_problem(x, ATTND_MOVED, NULL, moved_to, text, NULL, NULL);
}

static void place_problem(struct http_exchange *x, int status, bool of_query, const char *name,
                          const char *wants)
{
    char detail[512];
    struct place place = {.of_query = of_query};
    snprintf(detail, sizeof detail, "%s", wants);
    snprintf(place.name, sizeof place.name, "%s", name);
    write_problem(x, status, &place, NULL, detail, NULL, NULL);
}

void http_problem_at(struct http_exchange *x, int status, const char *pointer, const char *wants)
{
    place_problem(x, status, false, pointer, wants);
}

void http_problem_of_query(struct http_exchange *x, int status, const char *name, const char *wants)
{
    place_problem(x, status, true, name, wants);
}

/* "NO_CONTENT" as llhttp names it -> "No Content" */
static void reason_phrase(int http_status, char phrase[PHRASE_BYTES])
{
    const char *name = "Unknown";
    switch (http_status) {
#define XX(number, constant, text)                                                                           \
    case number:                                                                                             \
        name = #constant;                                                                                    \
        break;
        HTTP_STATUS_MAP(XX)
#undef XX
    default:
        break;
    }
    snprintf(phrase, PHRASE_BYTES, "%s", http_status == 414 ? "URI Too Long" : name);
    for (size_t i = 1; phrase[i] && http_status != 200 && http_status != 414; i++) {
        bool first = phrase[i - 1] == ' ';
        phrase[i] = phrase[i] == '_' ? ' ' : first ? phrase[i] : (char)tolower((unsigned char)phrase[i]);
    }
}

bool http_reply_is_bare(int http_status)
{
    return http_status == 204 || http_status == 304;
}

size_t http_reply_head(const struct http_exchange *x, enum http_framing framing, uint64_t length, bool close,
                       char *out, size_t capacity)
{
    char date[40], phrase[PHRASE_BYTES], body[FRAMING_BYTES] = "";
    struct tm utc;
    time_t now = time(NULL);
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    reason_phrase(x->http_status, phrase);
    if (framing == HTTP_LENGTH && !http_reply_is_bare(x->http_status))
        snprintf(body, sizeof body, "Content-Type: %s\r\nContent-Length: %llu\r\n", x->content_type,
                 (unsigned long long)length);
    else if (framing != HTTP_LENGTH)
        snprintf(body, sizeof body, "Content-Type: %s\r\n%s", x->content_type,
                 framing == HTTP_CHUNKED ? "Transfer-Encoding: chunked\r\n" : "");
    int n =
        snprintf(out, capacity,
                 "HTTP/1.1 %d %s\r\nDate: %s\r\n%s%sX-Request-Id: %s\r\n"
                 "X-Attnd-Node: n%u\r\n%s%s\r\n",
                 x->http_status, phrase, date, body, x->headers ? x->headers : "Cache-Control: no-store\r\n",
                 x->head.id, x->listener->node, x->extra, close ? "Connection: close\r\n" : "");
    assert(n > 0 && (size_t)n < capacity);
    return (size_t)n;
}
