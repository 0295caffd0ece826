/* SPDX-License-Identifier: Apache-2.0 */
/* service.c - see service.h. */
#include "server/service.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 512 };

/* A whole number in the environment; 0 when there is none. */
static unsigned long long number_of(const char *name)
{
    const char *text = getenv(name);
    char *end;
    errno = 0;
    unsigned long long value = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    return value && *end == '\0' && errno == 0 ? value : 0;
}

void service_notify(const char *format, ...)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char message[MESSAGE_BYTES];
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, n);
    if (path[0] == '@') /* an abstract one */
        address.sun_path[0] = '\0';
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)sendto(fd, message, strlen(message), MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}

unsigned service_sockets(void)
{
    unsigned long long n = number_of("LISTEN_FDS");
    if (number_of("LISTEN_PID") != (unsigned long long)getpid() || n > SERVICE_SOCKETS_MAX)
        return 0;
    for (int fd = SERVICE_SOCKETS_FIRST; fd < SERVICE_SOCKETS_FIRST + (int)n; fd++)
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return (unsigned)n;
}

uint64_t service_watchdog_us(void)
{
    unsigned long long pid = number_of("WATCHDOG_PID");
    return pid == 0 || pid == (unsigned long long)getpid() ? number_of("WATCHDOG_USEC") : 0;
}
