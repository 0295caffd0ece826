/* SPDX-License-Identifier: Apache-2.0 */
/* http_listen.c - see http_listen.h. */
#include "server/http_listen.h"

#include "config/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* A socket file that nobody listens on any more is in the way; one that is in use is not touched. */
static void remove_stale_socket(const char *path)
{
    struct stat info;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (stat(path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    strcpy(address.sun_path, path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        unlink(path);
    close(fd);
}

/* Whether the folder of a socket is there: libuv says EACCES where it is not. */
static bool has_folder(const char *path)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return true;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return access(folder, F_OK) == 0 || errno != ENOENT;
}

/* Mode and group of a bound unix socket. */
static int restrict_socket(const struct listen_options *o)
{
    const char *path = o->address.path;
    struct group group, *found = NULL;
    char text[4096];
    if (o->group[0] && (getgrnam_r(o->group, &group, text, sizeof text, &found) != 0 || !found)) {
        log_line(LOG_ERROR, "listen: there is no group %s", o->group);
        return UV_EINVAL;
    }
    if (found && chown(path, (uid_t)-1, group.gr_gid) != 0)
        return uv_translate_sys_error(errno);
    return o->mode && chmod(path, o->mode) != 0 ? uv_translate_sys_error(errno) : 0;
}

static int bind_unix(uv_loop_t *loop, struct http_listener *l)
{
    const char *path = l->options->address.path;
    uv_pipe_init(loop, &l->handle.pipe, 0);
    snprintf(l->url, sizeof l->url, "unix:%s", path);
    if (l->options->address.fd)
        return uv_pipe_open(&l->handle.pipe, l->options->address.fd);
    remove_stale_socket(path);
    int rc = has_folder(path) ? uv_pipe_bind(&l->handle.pipe, path) : UV_ENOENT;
    return rc == 0 ? restrict_socket(l->options) : rc;
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
