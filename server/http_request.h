/* SPDX-License-Identifier: Apache-2.0 */
/* http_request.h - from the bytes of a request to what it asks, and the bytes of its body.
 *
 * No connection and no libuv: bytes come in, a struct http_request or a fault goes out. The parsing itself
 * is llhttp's. Around it stands what llhttp 8.1.0, compiled strict, does not check and what would let a
 * proxy in front read another request than we do: folded headers, a space before a header name or none at
 * all, a protocol other than HTTP, two Hosts or Origins, a bare LF at the end of the chunks. */
#ifndef SERVER_HTTP_REQUEST_H
#define SERVER_HTTP_REQUEST_H

#include "config/status.h"

#include <llhttp.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_HEAD_BYTES_MAX = 16 * 1024, /* request line and headers; more is 431 */
    HTTP_URL_BYTES_MAX = 4096,       /* more is 414 */
    HTTP_HEADERS_MAX = 64,           /* more is 431 */
    HTTP_REQUEST_ID_BYTES = 129,
    HTTP_FAULT_BYTES = 256
};

enum http_method { HTTP_METHOD_GET = 1, HTTP_METHOD_POST = 2, HTTP_METHOD_PUT = 4, HTTP_METHOD_DELETE = 8 };

/* A span of the request's bytes; not NUL-terminated. */
struct http_text {
    const char *bytes;
    size_t n;
};

/* What a head says. The spans point into its bytes; a header that is not there is an empty span. */
struct http_request {
    enum http_method method;      /* 0: one that is not served, or none was read */
    const char *method_name;      /* as it was sent; "-": none was read, or HTTP has none of that name */
    bool head_only;               /* HEAD, which arrives as GET */
    bool is_1_0;                  /* HTTP/1.0: no chunks, no 100-continue */
    bool keeps_alive;             /* the connection may serve another one */
    bool expects;                 /* 100-continue: the body waits for it */
    bool has_length;              /* Content-Length, of */
    uint64_t body_length;         /* so many bytes; else 0 */
    uint32_t timeout_ms;          /* X-Request-Timeout-Ms; 0 if there is none */
    struct http_text path, query; /* query without its '?' */
    struct http_text body_type;   /* Content-Type */
    struct http_text accept;      /* Accept */
    struct http_text authorization;
    struct http_text if_none_match; /* If-None-Match */
    struct http_text if_match;      /* If-Match */
    struct http_text last_event_id; /* Last-Event-ID */
    struct http_text node;          /* X-Attnd-Node */
    char id[HTTP_REQUEST_ID_BYTES]; /* X-Request-Id if it is sane, else a random one */
};

/* Why a request is refused: a status and a sentence. */
struct http_fault {
    int status;
    char detail[HTTP_FAULT_BYTES];
};

/* Takes the next bytes of a body, 0 of them never. Anything but 0 ends the reading. */
typedef int (*http_take)(void *cookie, const char *bytes, size_t n);

struct http_header {
    struct http_text name, value;
};

/* A request being read; any bytes before http_parser_begin(). */
struct http_parser {
    llhttp_t llhttp;
    unsigned header_count;
    struct http_header headers[HTTP_HEADERS_MAX];
    struct http_text url, authority; /* the authority of a URL that has one */
    http_take take;
    void *cookie;
    bool in_body, complete;
    bool stopped; /* `take` has ended the reading */
    char last;    /* byte that was parsed */
};

enum http_progress {
    HTTP_MORE,    /* the body goes on */
    HTTP_WHOLE,   /* the message is complete */
    HTTP_STOPPED, /* http_take has ended it */
    HTTP_REFUSED  /* there is a fault */
};

/* http_head_length(bytes, n): length of the head at the start of `bytes`, its empty line included; 0 if
 * that line is not there yet. Empty lines before the request line belong to the head (RFC 9112, 2.2). */
size_t http_head_length(const char *bytes, size_t n);

/* http_request_none(request): one of which nothing was read, with a random id. */
void http_request_none(struct http_request *request);

/* http_request_read(p, head, n, local, request, fault): a complete head of `n` bytes, which stay where they
 * are as long as the request is used. local: Host and Origin may name loopback only. Returns whether the
 * request may go on; else there is a fault, and of the request what could be read. p->complete tells
 * whether a body follows. */
bool http_request_read(struct http_parser *p, const char *head, size_t n, bool local,
                       struct http_request *request, struct http_fault *fault);

/* http_body_read(p, bytes, n, take, cookie, used, fault): the bytes that follow the head: what is body goes to
 * `take`. *used: how many of them belong to the message, if it is complete; else all. */
enum http_progress http_body_read(struct http_parser *p, const char *bytes, size_t n, http_take take,
                                  void *cookie, size_t *used, struct http_fault *fault);

/* http_text_is: whether the span equals `text`. */
bool http_text_is(struct http_text span, const char *text);

/* http_method_name: "GET" and so on; of none "-". */
const char *http_method_name(enum http_method method);

#endif
