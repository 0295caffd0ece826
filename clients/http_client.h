/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.h - one request after the other to a daemon, by libcurl. */
#ifndef CLIENTS_HTTP_CLIENT_H
#define CLIENTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

struct http_client;

/* Called for every line of an answer that comes in lines, without its end. */
typedef void (*http_client_line)(const char *line, size_t bytes, void *cookie);

struct http_request {
    const char *method, *path;
    const char *type, *accept; /* NULL: application/json */
    const char *if_match;      /* NULL: none */
    const char *body;          /* NULL: none */
    size_t body_bytes;         /* 0: it is text */
    const char *file;          /* or this file, as a stream; "-": standard input */
    bool (*stopped)(void);     /* asked again and again; true: give up. NULL: never */
    http_client_line line;     /* NULL: the answer is collected */
    void *cookie;
};

/* An answer; status 0: none came, and `text` says why. */
struct http_reply {
    long status;
    char *text; /* owned by the client until the next request */
    size_t bytes;
    const char *etag; /* likewise; "": none */
};

/* http_client_create(url, key): "http://HOST:PORT" or "unix:PATH"; the key is sent with every request, NULL: none
 * is. Both stay the caller's. NULL without memory. */
struct http_client *http_client_create(const char *url, const char *key);
void http_client_destroy(struct http_client *client);

struct http_reply http_client_send(struct http_client *client, const struct http_request *request);

#endif
