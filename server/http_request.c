/* SPDX-License-Identifier: Apache-2.0 */
/* http_request.c - see http_request.h. */
#include "server/http_request.h"

#include "server/listen_address.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

_Static_assert(LLHTTP_STRICT_MODE == 1, "llhttp accepts smuggled headers unless it is compiled strict");

enum { TIMEOUT_MS_MAX = 86400000, METHOD_BYTES_MAX = 20 };

static bool __attribute__((format(printf, 3, 4)))
refuse(struct http_fault *fault, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(fault->detail, sizeof fault->detail, format, args);
    va_end(args);
    fault->status = status;
    return false;
}

const char *http_method_name(enum http_method method)
{
    switch (method) {
    case HTTP_METHOD_GET:
        return "GET";
    case HTTP_METHOD_POST:
        return "POST";
    case HTTP_METHOD_PUT:
        return "PUT";
    case HTTP_METHOD_DELETE:
        return "DELETE";
    default:
        return "-";
    }
}

bool http_text_is(struct http_text span, const char *text)
{
    return span.n == strlen(text) && memcmp(span.bytes, text, span.n) == 0;
}

/* Likewise, whatever the case. */
static bool text_says(struct http_text span, const char *text)
{
    return span.n == strlen(text) && strncasecmp(span.bytes, text, span.n) == 0;
}

/* ---- raw bytes ------------------------------------------------------------------------------------- */

/* Index of the first byte that is not part of an empty line. */
static size_t skip_empty_lines(const char *bytes, size_t n)
{
    size_t at = 0;
    while (at + 1 < n && bytes[at] == '\r' && bytes[at + 1] == '\n')
        at += 2;
    return at;
}

size_t http_head_length(const char *bytes, size_t n)
{
    size_t start = skip_empty_lines(bytes, n);
    const char *end = start < n ? memmem(bytes + start, n - start, "\r\n\r\n", 4) : NULL;
    return end ? (size_t)(end - bytes) + 4 : 0;
}

/* Whether the request line ends with a version of HTTP: llhttp takes RTSP/1.0 and ICE/1.0, too. */
static bool names_http(const char *head, size_t n)
{
    static const char token[] = " HTTP/";
    size_t start = skip_empty_lines(head, n);
    const char *end = memmem(head + start, n - start, "\r\n", 2);
    return end && memmem(head + start, (size_t)(end - head) - start, token, sizeof token - 1);
}

/* What llhttp would let pass in the bytes of a complete head, as a sentence; NULL: nothing. */
static const char *fault_of_bytes(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char next = i + 1 < n ? head[i + 1] : '\0';
        if (head[i] == '\0')
            return "a NUL byte in the head";
        if (head[i] == '\r' && next != '\n')
            return "a CR without LF in the head";
        if (head[i] != '\n')
            continue;
        if (i == 0 || head[i - 1] != '\r')
            return "a LF without CR in the head";
        if (next == ' ' || next == '\t')
            return "a header line that begins with white space";
        if (next == ':')
            return "a header without a name";
    }
    return names_http(head, n) ? NULL : "a request line that does not end with HTTP/1.1 or HTTP/1.0";
}

/* ---- llhttp's callbacks: note where things are ----------------------------------------------------- */

/* The head is contiguous, so pieces of one span are too. */
static void extend(struct http_text *span, const char *at, size_t n)
{
    if (span->n == 0)
        span->bytes = at;
    span->n += n;
}

static int on_url(llhttp_t *llhttp, const char *at, size_t n)
{
    struct http_parser *p = llhttp->data;
    extend(&p->url, at, n);
    return p->url.n > HTTP_URL_BYTES_MAX ? HPE_USER : 0;
}

static int on_header_field(llhttp_t *llhttp, const char *at, size_t n)
{
    struct http_parser *p = llhttp->data;
    if (p->in_body) /* a trailer: could say anything about a message already accepted */
        return HPE_USER;
    if (p->header_count == HTTP_HEADERS_MAX)
        return HPE_USER;
    extend(&p->headers[p->header_count].name, at, n);
    return 0;
}

static int on_header_value(llhttp_t *llhttp, const char *at, size_t n)
{
    struct http_parser *p = llhttp->data;
    if (p->header_count == HTTP_HEADERS_MAX)
        return HPE_USER;
    extend(&p->headers[p->header_count].value, at, n);
    return 0;
}

static int on_header_value_complete(llhttp_t *llhttp)
{
    struct http_parser *p = llhttp->data;
    p->header_count++;
    return 0;
}

/* An Upgrade is an offer: it is not taken, and the request is served as it is (RFC 9110, 7.8). */
static int on_headers_complete(llhttp_t *llhttp)
{
    if (llhttp->method != HTTP_CONNECT)
        llhttp->upgrade = 0;
    return 0;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t n)
{
    struct http_parser *p = llhttp->data;
    p->stopped = p->take(p->cookie, at, n) != 0;
    return p->stopped ? HPE_USER : 0;
}

static int on_message_complete(llhttp_t *llhttp)
{
    struct http_parser *p = llhttp->data;
    p->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {.on_url = on_url,
                                           .on_header_field = on_header_field,
                                           .on_header_value = on_header_value,
                                           .on_headers_complete = on_headers_complete,
                                           .on_body = on_body,
                                           .on_message_complete = on_message_complete,
                                           .on_header_value_complete = on_header_value_complete};

/* ---- parsing --------------------------------------------------------------------------------------- */

/* The length of a method in front of a request line; 0: it is none. */
static int method_length(const char *bytes, size_t n)
{
    int length = 0;
    while ((size_t)length < n && length < METHOD_BYTES_MAX && bytes[length] >= 'A' && bytes[length] <= 'Z')
        length++;
    return (size_t)length < n && bytes[length] == ' ' ? length : 0;
}

/* Say what the parser did not like of these bytes. */
static enum http_progress refuse_syntax(const struct http_parser *p, enum llhttp_errno error,
                                        const char *bytes, size_t n, struct http_fault *fault)
{
    int method = error == HPE_INVALID_METHOD && !p->in_body ? method_length(bytes, n) : 0;
    if (p->stopped)
        return HTTP_STOPPED;
    if (p->url.n > HTTP_URL_BYTES_MAX)
        refuse(fault, ATTND_URL_TOO_LONG, "more than %d bytes", HTTP_URL_BYTES_MAX);
    else if (error == HPE_USER && p->header_count == HTTP_HEADERS_MAX)
        refuse(fault, ATTND_HEADERS_TOO_LARGE, "more than %d headers", HTTP_HEADERS_MAX);
    else if (error == HPE_USER)
        refuse(fault, ATTND_MALFORMED, "trailers are not served");
    else if (method) /* one that the parser does not know either */
        refuse(fault, ATTND_BAD_METHOD, "%.*s is not served", method, bytes);
    else
        refuse(fault, ATTND_MALFORMED, "%s", llhttp_get_error_reason(&p->llhttp));
    return HTTP_REFUSED;
}

static enum http_progress feed(struct http_parser *p, const char *bytes, size_t n, size_t *used,
                               struct http_fault *fault)
{
    enum llhttp_errno error = llhttp_execute(&p->llhttp, bytes, n);
    char before = p->last;
    *used = n;
    p->last = n ? bytes[n - 1] : before;
    if (error == HPE_OK)
        return HTTP_MORE;
    if (error != HPE_PAUSED || !p->complete)
        return refuse_syntax(p, error, bytes, n, fault);
    *used = (size_t)(llhttp_get_error_pos(&p->llhttp) - bytes);
    char last_but_one = *used > 1 ? bytes[*used - 2] : before;
    if (!(p->llhttp.flags & F_CHUNKED) || last_but_one == '\r')
        return HTTP_WHOLE;
    refuse(fault, ATTND_MALFORMED, "a LF without CR ends the chunks");
    return HTTP_REFUSED;
}

enum http_progress http_body_read(struct http_parser *p, const char *bytes, size_t n, http_take take,
                                  void *cookie, size_t *used, struct http_fault *fault)
{
    p->take = take;
    p->cookie = cookie;
    return feed(p, bytes, n, used, fault);
}

/* ---- what the head says ---------------------------------------------------------------------------- */

/* The value of the header `name`, or a span of no bytes; `*count` says how often it occurs. */
static struct http_text find_header(const struct http_parser *p, const char *name, unsigned *count)
{
    struct http_text value = {"", 0};
    *count = 0;
    for (unsigned i = 0; i < p->header_count; i++) {
        if (text_says(p->headers[i].name, name)) {
            value = p->headers[i].value;
            ++*count;
        }
    }
    return value;
}

static void clear(struct http_request *request)
{
    static const struct http_text empty = {"", 0};
    *request = (struct http_request){.method_name = "-",
                                     .path = {"/", 1},
                                     .query = empty,
                                     .body_type = empty,
                                     .accept = empty,
                                     .authorization = empty,
                                     .if_none_match = empty,
                                     .if_match = empty,
                                     .last_event_id = empty,
                                     .node = empty};
}

/* A system call for every id would be as much as reading the request. Loop thread. */
static uint64_t random_number(void)
{
    static uint64_t numbers[64];
    static unsigned left;
    if (left == 0) {
        if (getrandom(numbers, sizeof numbers, GRND_NONBLOCK) != sizeof numbers)
            return (uint64_t)clock();
        left = sizeof numbers / sizeof numbers[0];
    }
    return numbers[--left];
}

/* The client's id if it is 1 to 128 visible ASCII characters that need no quoting, else 16 random hex
 * digits. */
static void choose_id(struct http_text given, unsigned count, char id[HTTP_REQUEST_ID_BYTES])
{
    bool sane = count == 1 && given.n >= 1 && given.n < HTTP_REQUEST_ID_BYTES;
    for (size_t i = 0; sane && i < given.n; i++)
        sane =
            given.bytes[i] > ' ' && given.bytes[i] < 0x7f && given.bytes[i] != '"' && given.bytes[i] != '\\';
    if (sane) {
        memcpy(id, given.bytes, given.n);
        id[given.n] = '\0';
        return;
    }
    snprintf(id, HTTP_REQUEST_ID_BYTES, "%016llx", (unsigned long long)random_number());
}

void http_request_none(struct http_request *request)
{
    clear(request);
    request->path = (struct http_text){"-", 1}; /* for the log */
    choose_id(request->query, 0, request->id);
}

/* Path and query of the URL, whose authority, if it has one, is noted: http://HOST:PORT/PATH?QUERY. */
static struct http_text target_of(struct http_parser *p)
{
    static const char scheme[] = "http://";
    const size_t n = sizeof scheme - 1;
    if (p->url.n <= n || strncasecmp(p->url.bytes, scheme, n) != 0)
        return p->url;
    struct http_text rest = {p->url.bytes + n, p->url.n - n};
    size_t end = 0;
    while (end < rest.n && rest.bytes[end] != '/' && rest.bytes[end] != '?')
        end++;
    p->authority = (struct http_text){rest.bytes, end};
    return (struct http_text){rest.bytes + end, rest.n - end};
}

static void read_method(const struct http_parser *p, struct http_request *request)
{
    static const struct {
        uint8_t parsed;
        enum http_method method;
    } methods[] = {{HTTP_GET, HTTP_METHOD_GET},
                   {HTTP_HEAD, HTTP_METHOD_GET},
                   {HTTP_POST, HTTP_METHOD_POST},
                   {HTTP_PUT, HTTP_METHOD_PUT},
                   {HTTP_DELETE, HTTP_METHOD_DELETE}};
    request->method_name = llhttp_method_name(p->llhttp.method);
    request->head_only = p->llhttp.method == HTTP_HEAD;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].parsed == p->llhttp.method)
            request->method = methods[i].method;
    }
}

/* What has been parsed, also of a head that is refused. */
static void describe(struct http_parser *p, struct http_request *request)
{
    static const struct http_text none = {"-", 1}; /* for the log */
    unsigned count;
    struct http_text id = find_header(p, "x-request-id", &count);
    choose_id(id, count, request->id);
    request->body_type = find_header(p, "content-type", &count);
    request->accept = find_header(p, "accept", &count);
    request->authorization = find_header(p, "authorization", &count);
    request->if_none_match = find_header(p, "if-none-match", &count);
    request->if_match = find_header(p, "if-match", &count);
    request->last_event_id = find_header(p, "last-event-id", &count);
    request->node = find_header(p, "x-attnd-node", &count);
    request->expects = find_header(p, "expect", &count).n > 0;
    request->has_length = p->llhttp.flags & F_CONTENT_LENGTH;
    request->body_length = request->has_length ? p->llhttp.content_length : 0;
    struct http_text url = target_of(p);
    const char *mark = url.n ? memchr(url.bytes, '?', url.n) : NULL;
    size_t path = mark ? (size_t)(mark - url.bytes) : url.n;
    if (path)
        request->path = (struct http_text){url.bytes, path};
    if (p->url.n) /* and so its method is known */
        read_method(p, request);
    else
        request->path = none;
    if (mark)
        request->query = (struct http_text){mark + 1, url.n - path - 1};
}

/* X-Request-Timeout-Ms; false when it is no such number. */
static bool read_timeout(const struct http_parser *p, struct http_request *request)
{
    unsigned count;
    struct http_text text = find_header(p, "x-request-timeout-ms", &count);
    uint32_t ms = 0;
    if (count == 0)
        return true;
    for (size_t i = 0; i < text.n && text.n <= 8; i++) {
        if (text.bytes[i] < '0' || text.bytes[i] > '9')
            return false;
        ms = ms * 10 + (uint32_t)(text.bytes[i] - '0');
    }
    request->timeout_ms = ms;
    return count == 1 && ms >= 1 && ms <= TIMEOUT_MS_MAX;
}

/* ---- what must not go on --------------------------------------------------------------------------- */

/* An Origin is foreign unless its authority is a loopback name; "null" is foreign. */
static bool is_foreign(struct http_text origin)
{
    const char *authority = origin.n ? memmem(origin.bytes, origin.n, "://", 3) : NULL;
    if (!authority)
        return true;
    authority += 3;
    return !listen_address_is_loopback_host(authority, origin.n - (size_t)(authority - origin.bytes));
}

/* Where the request is to go, and where it comes from. */
static bool check_names(const struct http_parser *p, bool local, struct http_fault *fault)
{
    unsigned hosts, origins, keys;
    struct http_text host = find_header(p, "host", &hosts), origin = find_header(p, "origin", &origins);
    (void)find_header(p, "authorization", &keys);
    if (keys > 1)
        return refuse(fault, ATTND_MALFORMED, "wants at most one Authorization header, not %u", keys);
    if (origins > 1)
        return refuse(fault, ATTND_MALFORMED, "wants at most one Origin header, not %u", origins);
    if (hosts > 1 || (hosts == 0 && p->llhttp.http_minor == 1))
        return refuse(fault, ATTND_MALFORMED, "wants exactly one Host header, not %u", hosts);
    if (p->authority.n) /* instead of the Host (RFC 9112, 3.2.2) */
        host = p->authority;
    if (local && hosts && !listen_address_is_loopback_host(host.bytes, host.n))
        return refuse(fault, ATTND_FORBIDDEN, "Host is \"%.*s\", and only loopback names are served",
                      (int)host.n, host.bytes);
    if (local && origins && is_foreign(origin))
        return refuse(fault, ATTND_FORBIDDEN, "Origin is \"%.*s\", and only loopback origins are served",
                      (int)origin.n, origin.bytes);
    return true;
}

/* How the body comes. */
static bool check_framing(const struct http_parser *p, struct http_fault *fault)
{
    unsigned codings, encodings, expects;
    struct http_text coding = find_header(p, "content-encoding", &codings),
                     encoding = find_header(p, "transfer-encoding", &encodings),
                     expect = find_header(p, "expect", &expects);
    if (codings && (codings > 1 || !text_says(coding, "identity")))
        return refuse(fault, ATTND_BAD_TYPE, "Content-Encoding is \"%.*s\"; send the body as it is",
                      (int)coding.n, coding.bytes);
    if (encodings && (p->llhttp.http_minor == 0 || encodings > 1 || !text_says(encoding, "chunked")))
        return refuse(fault, ATTND_MALFORMED,
                      "of transfer encodings only chunked is served, and only in HTTP/1.1");
    if (expects && (expects > 1 || !text_says(expect, "100-continue")))
        return refuse(fault, ATTND_EXPECTATION, "Expect is \"%.*s\"", (int)expect.n, expect.bytes);
    return true;
}

/* What llhttp leaves to us. */
static bool check(const struct http_parser *p, bool local, struct http_request *request,
                  struct http_fault *fault)
{
    if (p->llhttp.http_major != 1 || p->llhttp.http_minor > 1)
        return refuse(fault, ATTND_BAD_VERSION, "HTTP/%d.%d", p->llhttp.http_major, p->llhttp.http_minor);
    if (p->llhttp.upgrade) /* llhttp takes what follows for another protocol */
        return refuse(fault, ATTND_MALFORMED, "CONNECT is not served");
    if (!check_names(p, local, fault) || !check_framing(p, fault))
        return false;
    if (!read_timeout(p, request))
        return refuse(fault, ATTND_MALFORMED, "X-Request-Timeout-Ms wants a number of milliseconds in 1..%d",
                      TIMEOUT_MS_MAX);
    return request->method ||
           refuse(fault, ATTND_BAD_METHOD, "%s is not served", llhttp_method_name(p->llhttp.method));
}

bool http_request_read(struct http_parser *p, const char *head, size_t n, bool local,
                       struct http_request *request, struct http_fault *fault)
{
    size_t used;
    const char *wrong = n > HTTP_HEAD_BYTES_MAX ? NULL : fault_of_bytes(head, n);
    memset(p, 0, sizeof *p);
    if (n > HTTP_HEAD_BYTES_MAX || wrong) {
        http_request_none(request);
        return wrong ? refuse(fault, ATTND_MALFORMED, "%s", wrong)
                     : refuse(fault, ATTND_HEADERS_TOO_LARGE, "more than %d bytes", HTTP_HEAD_BYTES_MAX);
    }
    clear(request);
    llhttp_init(&p->llhttp, HTTP_REQUEST, &settings);
    p->llhttp.data = p;
    enum http_progress progress = feed(p, head, n, &used, fault);
    describe(p, request);
    if (progress == HTTP_REFUSED)
        return false;
    p->in_body = true;
    request->is_1_0 = p->llhttp.http_minor == 0;
    request->keeps_alive = llhttp_should_keep_alive(&p->llhttp);
    return check(p, local, request, fault);
}
