/* SPDX-License-Identifier: Apache-2.0 */
/* http_client.h - one request after the other to a daemon, by libcurl; or one of each of several clients at a time. */
#ifndef CLIENTS_HTTP_CLIENT_H
#define CLIENTS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_client;

/* Called for every line of an answer that comes in lines, without its end. */
typedef void (*http_client_line)(const char *line, size_t bytes, void *cookie);

struct http_request {
    const char *method, *path;
    const char *type, *accept; /* NULL: application/json */
    const char *if_match;      /* NULL: none */
    uint64_t timeout_ms;       /* after which the daemon is to give up; 0: it waits as long as it does */
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
    const char *type; /* its Content-Type, likewise; NULL: none */
    bool is_plain;    /* asked for over http:// */
    bool is_cut;      /* of status 0: an answer had begun, and the connection ended amid it */
    const char *node; /* who gave it of those behind a proxy, "n1"; NULL: not said, or no proxy */
};

/* http_client_create(url, key, ca_file): "http://HOST:PORT", "https://HOST:PORT" or "unix:PATH"; the key is sent with every request,
 * NULL: none is. Of https the certificate and its name are verified, always: by the authorities in ca_file (PEM), NULL or "": those of
 * the system. All three stay the caller's. NULL without memory. */
struct http_client *http_client_create(const char *url, const char *key, const char *ca_file);
void http_client_destroy(struct http_client *client);

/* http_client_is_tls(url): whether it is https://. */
bool http_client_is_tls(const char *url);

/* http_client_about(client, id): requests whose path names no sequence or lease are about this one, which their bodies name; 0: about none.
 * Proxies route by X-Attnd-Node, and an id begins with its node; a request about none goes where the latest answer came from. */
void http_client_about(struct http_client *client, uint64_t id);

/* http_client_node_of(id): the node that an id begins with. */
uint64_t http_client_node_of(uint64_t id);

/* http_client_node(client): who gave the latest answer, "n1", escaped for terminals by who prints it; "": that was not said. */
const char *http_client_node(const struct http_client *client);

/* http_client_ask_node(client, node): every request goes to this node, through a proxy; it refuses ids of others. */
void http_client_ask_node(struct http_client *client, uint64_t node);

struct http_reply http_client_send(struct http_client *client, const struct http_request *request);

/* ---- several at a time: one thread, a connection for each client ---- */

struct http_group;

/* http_group_create: NULL without memory. http_group_destroy: no client has a request in it any more. NULL is fine. */
struct http_group *http_group_create(void);
void http_group_destroy(struct http_group *group);

/* http_group_start: begin a request of a client, which has none under way. What `request` refers to stays until it is done; `file` is not
 * taken. False: there is no memory, and nothing is under way. */
bool http_group_start(struct http_group *group, struct http_client *client,
                      const struct http_request *request);

/* http_group_turn: send and receive what there is, and wait for more for `wait_ms` at most. */
void http_group_turn(struct http_group *group, int wait_ms);

/* http_client_has_sent: whether all bytes of the request that is under way are with the system. http_client_has_reply: whether the
 * request is done; then *reply is as http_client_send() has it. */
bool http_client_has_sent(const struct http_client *client);
bool http_client_has_reply(struct http_client *client, struct http_reply *reply);

/* http_group_give_up: drop a request that is under way; the connection is closed. */
void http_group_give_up(struct http_group *group, struct http_client *client);

#endif
