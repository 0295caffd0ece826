/* SPDX-License-Identifier: Apache-2.0 */
/* own_daemon.h - a daemon that a command starts for itself, on a unix socket in a folder of its own. It ends with the command. */
#ifndef CLIENTS_OWN_DAEMON_H
#define CLIENTS_OWN_DAEMON_H

struct own_daemon;

/* own_daemon_start: `binary` with these arguments, which end with NULL; NULL: the attnd that lies beside this program, or is in
 * $PATH. Waits until it serves. NULL, and said why with the last lines of its log, when it does not. */
struct own_daemon *own_daemon_start(const char *binary, const char *const *arguments);

/* own_daemon_binary: the attnd that lies beside this program, in `path` of PATH_MAX bytes; or "attnd", which is looked for. */
const char *own_daemon_binary(char *path);

/* own_daemon_url: "unix:..."; the daemon's until it is stopped. */
const char *own_daemon_url(const struct own_daemon *d);

/* own_daemon_stop: SIGTERM, and wait until it has ended. NULL is fine. */
void own_daemon_stop(struct own_daemon *d);

#endif
