/* SPDX-License-Identifier: Apache-2.0 */
/* service.h - what a service manager (systemd) and the daemon say to each other: sd_notify(3), sd_listen_fds(3), and
 * the watchdog. Without one all of it does nothing. Any thread. */
#ifndef SERVER_SERVICE_H
#define SERVER_SERVICE_H

#include <stdint.h>

/* service_notify(format, ...): send lines like "READY=1\nSTATUS=..." to $NOTIFY_SOCKET. Never waits: what finds no room
 * is lost. */
void service_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* service_sockets: how many listening sockets were handed over; they are the file descriptors from
 * SERVICE_SOCKETS_FIRST on. They are not handed on. */
enum { SERVICE_SOCKETS_FIRST = 3, SERVICE_SOCKETS_MAX = 8 };
unsigned service_sockets(void);

/* service_watchdog_us: how often at least the manager wants to hear WATCHDOG=1; 0: never. */
uint64_t service_watchdog_us(void);

#endif
