/* SPDX-License-Identifier: Apache-2.0 */
/* listen_address.c - see listen_address.h. */
#include "server/listen_address.h"

#include "config/log.h"
#include "server/service.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(char reason[ADDRESS_REASON_BYTES], const char *why, const char *text)
{
    snprintf(reason, ADDRESS_REASON_BYTES, "%s: \"%.80s\"", why, text);
    return ATTND_INVALID;
}

/* The port of "host:port" where it is a number that is too large, else NULL. */
static const char *too_large(const char *text)
{
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : "";
    bool is_number = *port && strspn(port, "0123456789") == strlen(port);
    return is_number && strtoul(port, NULL, 10) > 65535 ? port : NULL;
}

/* Split "host:port" at its last colon; brackets around the host are dropped. */
static bool split(const char *text, char host[64], unsigned *port)
{
    const char *colon = strrchr(text, ':');
    char *end;
    if (!colon || colon[1] < '0' || colon[1] > '9')
        return false;
    unsigned long number = strtoul(colon + 1, &end, 10);
    size_t n = (size_t)(colon - text);
    if (*end != '\0' || number > 65535)
        return false;
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n == 0 || n >= 64)
        return false;
    memcpy(host, text, n);
    host[n] = '\0';
    *port = (unsigned)number;
    return true;
}

/* Whether an IP address is a loopback one. */
static bool is_loopback(const struct sockaddr_storage *ip)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memcpy(&v4, ip, sizeof v4);
    memcpy(&v6, ip, sizeof v6);
    return ip->ss_family == AF_INET ? ntohl(v4.sin_addr.s_addr) >> 24 == 127
                                    : IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

/* "fd:N": a socket that was handed over, and what it is. */
static int parse_fd(const char *text, int fds, struct listen_address *address,
                    char reason[ADDRESS_REASON_BYTES])
{
    struct sockaddr_storage name = {0};
    struct sockaddr_un unix_name = {0};
    socklen_t bytes = sizeof name, size = sizeof(int);
    int listens = 0;
    char *end;
    long fd = strtol(text + 3, &end, 10);
    int below = fds != LISTEN_FDS_UNKNOWN ? fds : SERVICE_SOCKETS_FIRST + SERVICE_SOCKETS_MAX;
    if (text[3] < '0' || text[3] > '9' || *end != '\0' || fd < SERVICE_SOCKETS_FIRST || fd >= below)
        return refuse(reason, "no such socket was handed over (LISTEN_FDS counts them, from fd:3 on)", text);
    if (fds == LISTEN_FDS_UNKNOWN) {
        address->fd = (int)fd;
        address->is_unix = address->is_local = true;
        return 0;
    }
    if (getsockname((int)fd, (struct sockaddr *)&name, &bytes) != 0 ||
        getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
        return refuse(reason, "is no socket that listens", text);
    address->fd = (int)fd;
    address->is_unix = name.ss_family == AF_UNIX;
    if (!address->is_unix && name.ss_family != AF_INET && name.ss_family != AF_INET6)
        return refuse(reason, "is no TCP or unix socket", text);
    if (address->is_unix) {
        memcpy(&unix_name, &name, sizeof unix_name);
        memcpy(address->path, unix_name.sun_path, sizeof address->path - 1);
        address->is_local = true;
        return 0;
    }
    address->ip = name;
    address->is_local = is_loopback(&name);
    return 0;
}

int listen_address_parse(const char *text, int fds, struct listen_address *address,
                         char reason[ADDRESS_REASON_BYTES])
{
    char host[64];
    unsigned port;
    *address = (struct listen_address){0};
    if (strncmp(text, "fd:", 3) == 0)
        return parse_fd(text, fds, address, reason);
    if (strncmp(text, "unix:", 5) == 0) {
        address->is_unix = address->is_local = true;
        if (text[5] == '\0' || strlen(text + 5) >= sizeof address->path)
            return refuse(reason, "the path of a unix socket has 1 to 107 bytes", text);
        strcpy(address->path, text + 5);
        return 0;
    }
    if (too_large(text)) {
        snprintf(reason, ADDRESS_REASON_BYTES, "port %.20s: wants 1 to 65535, or 0: any free one",
                 too_large(text));
        return ATTND_INVALID;
    }
    if (!split(text, host, &port))
        return refuse(reason, "wants HOST:PORT, [HOST]:PORT, unix:PATH or fd:N", text);

    struct sockaddr_in *v4 = (struct sockaddr_in *)&address->ip;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address->ip;
    if (strcmp(host, "localhost") == 0)
        strcpy(host, "127.0.0.1");
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
    } else if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
    } else {
        return refuse(reason, "the host is a numeric address or localhost", text);
    }
    address->is_local = is_loopback(&address->ip);
    return 0;
}

/* ---- files of unix sockets ------------------------------------------------------------------------- */

void listen_address_clear(const char *path, int type)
{
    struct stat info;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (stat(path, &info) != 0 || !S_ISSOCK(info.st_mode))
        return;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    strcpy(address.sun_path, path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED)
        unlink(path);
    close(fd);
}

int listen_address_folder(const struct listen_address *address)
{
    char folder[sizeof address->path];
    const char *path = address->path, *slash = strrchr(path, '/');
    if (!address->is_unix || address->fd)
        return 0;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

int listen_address_try(const struct listen_address *address)
{
    const int one = 1;
    int error = 0;
    if (address->is_unix || address->fd)
        return 0;
    int fd = socket(address->ip.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* as libuv does */
    if (bind(fd, (const struct sockaddr *)&address->ip,
             address->ip.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) !=
        0)
        error = errno;
    close(fd);
    return error;
}

bool listen_address_may_come(const struct listen_address *address)
{
    static const char runtime[] = "/run/";
    return strncmp(address->path, runtime, sizeof runtime - 1) == 0;
}

bool listen_address_is_same(const struct listen_address *a, const struct listen_address *b)
{
    struct sockaddr_in v4[2];
    struct sockaddr_in6 v6[2];
    if (a->fd || b->fd)
        return a->fd == b->fd;
    if (a->is_unix || b->is_unix)
        return strcmp(a->path, b->path) == 0; /* "" where it is none */
    if (a->ip.ss_family != b->ip.ss_family)
        return false;
    memcpy(&v4[0], &a->ip, sizeof v4[0]);
    memcpy(&v4[1], &b->ip, sizeof v4[1]);
    memcpy(&v6[0], &a->ip, sizeof v6[0]);
    memcpy(&v6[1], &b->ip, sizeof v6[1]);
    if (a->ip.ss_family == AF_INET)
        return v4[0].sin_port && v4[0].sin_port == v4[1].sin_port &&
               v4[0].sin_addr.s_addr == v4[1].sin_addr.s_addr;
    return v6[0].sin6_port && v6[0].sin6_port == v6[1].sin6_port &&
           memcmp(&v6[0].sin6_addr, &v6[1].sin6_addr, sizeof v6[0].sin6_addr) == 0;
}

static bool find_group(const char *name, gid_t *id)
{
    struct group group, *found = NULL;
    char text[4096];
    bool is = getgrnam_r(name, &group, text, sizeof text, &found) == 0 && found;
    *id = is ? group.gr_gid : 0;
    return is;
}

bool listen_address_has_group(const char *name)
{
    gid_t ignored;
    return find_group(name, &ignored);
}

int listen_address_restrict(const struct listen_options *o)
{
    const char *path = o->address.path;
    gid_t group = 0;
    if (o->group[0] && !find_group(o->group, &group)) {
        log_line(LOG_ERROR, "listen: there is no group %s", o->group);
        return EINVAL;
    }
    if (o->group[0] && chown(path, (uid_t)-1, group) != 0)
        return errno;
    return o->mode && chmod(path, o->mode) != 0 ? errno : 0;
}

/* ---- hosts ----------------------------------------------------------------------------------------- */

/* Nothing, or ":" and, perhaps, a port. */
static bool is_port(const char *text, size_t n)
{
    unsigned port = 0;
    for (size_t i = 1; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || port > 65535)
            return false;
        port = port * 10 + (unsigned)(text[i] - '0');
    }
    return n == 0 || (text[0] == ':' && port <= 65535);
}

bool listen_address_is_loopback_host(const char *host, size_t n)
{
    static const char local[] = "localhost";
    char text[64];
    struct in_addr v4;
    bool is_v6 = n >= 5 && memcmp(host, "[::1]", 5) == 0;
    const char *colon = is_v6 ? host + 5 : n ? memchr(host, ':', n) : NULL;
    size_t name = colon ? (size_t)(colon - host) : n;
    if (!is_port(host + name, n - name))
        return false;
    if (is_v6)
        return true;
    n = name;
    if (n >= sizeof text)
        return false;
    memcpy(text, host, n);
    text[n] = '\0';
    if (strcasecmp(text, local) == 0)
        return true;
    return inet_pton(AF_INET, text, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}
