/* SPDX-License-Identifier: Apache-2.0 */
/* http_listen.c - see http_listen.h. */
#include "server/http_listen.h"

#include "config/log.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

enum { BACKLOG = 511, URL_BYTES_MAX = 160 };

struct http_listener {
    union {
        uv_handle_t any;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } handle;
    const struct listen_options *options;
    http_on_client on_client;
    void *cookie;
    char url[URL_BYTES_MAX];
};

static int bind_unix(uv_loop_t *loop, struct http_listener *l)
{
    const char *path = l->options->address.path;
    uv_pipe_init(loop, &l->handle.pipe, 0);
    snprintf(l->url, sizeof l->url, "unix:%s", path);
    if (l->options->address.fd)
        return uv_pipe_open(&l->handle.pipe, l->options->address.fd);
    listen_address_clear(path, SOCK_STREAM);
    int rc = uv_translate_sys_error(listen_address_folder(&l->options->address));
    rc = rc == 0 ? uv_pipe_bind(&l->handle.pipe, path) : rc;
    return rc == 0 ? uv_translate_sys_error(listen_address_restrict(l->options)) : rc;
}

static int bind_tcp(uv_loop_t *loop, struct http_listener *l)
{
    uv_tcp_init(loop, &l->handle.tcp);
    if (l->options->address.fd)
        return uv_tcp_open(&l->handle.tcp, l->options->address.fd);
    return uv_tcp_bind(&l->handle.tcp, (const struct sockaddr *)&l->options->address.ip, 0);
}

/* The address the kernel gave us: the port may have been 0. */
static void note_url(struct http_listener *l)
{
    struct sockaddr_storage name;
    int bytes = sizeof name;
    char host[INET6_ADDRSTRLEN];
    if (l->options->address.is_unix ||
        uv_tcp_getsockname(&l->handle.tcp, (struct sockaddr *)&name, &bytes) != 0)
        return;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&name;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&name;
    bool is_v6 = name.ss_family == AF_INET6;
    inet_ntop(name.ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host, sizeof host);
    snprintf(l->url, sizeof l->url, is_v6 ? "http://[%s]:%u" : "http://%s:%u", host,
             ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct http_listener *l = stream->data;
    if (status == 0)
        l->on_client(l, l->cookie);
    else
        log_line(LOG_WARNING, "%s: a connection could not be accepted: %s", l->url, uv_strerror(status));
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

int http_listen(uv_loop_t *loop, const struct listen_options *options, http_on_client on_client, void *cookie,
                struct http_listener **listener)
{
    struct http_listener *l = calloc(1, sizeof *l);
    if (!l)
        return UV_ENOMEM;
    l->options = options;
    l->on_client = on_client;
    l->cookie = cookie;
    int rc = options->address.is_unix ? bind_unix(loop, l) : bind_tcp(loop, l);
    l->handle.any.data = l;
    if (rc == 0)
        rc = uv_listen(&l->handle.stream, BACKLOG, on_connection);
    if (rc != 0) {
        http_listener_close(l);
        return rc;
    }
    note_url(l);
    *listener = l;
    return 0;
}

int http_listener_accept(struct http_listener *listener, uv_stream_t *stream)
{
    return uv_accept(&listener->handle.stream, stream);
}

const struct listen_options *http_listener_options(const struct http_listener *listener)
{
    return listener->options;
}

const char *http_listener_url(const struct http_listener *listener)
{
    return listener->url;
}

void http_listener_close(struct http_listener *listener)
{
    if (listener)
        uv_close(&listener->handle.any, on_closed);
}
