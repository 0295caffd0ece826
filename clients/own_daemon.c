/* SPDX-License-Identifier: Apache-2.0 */
/* own_daemon.c - see own_daemon.h. */
#include "clients/own_daemon.h"
#include "clients/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGUMENTS_MOST = 64, FOLDER_BYTES = 64, POLL_MS = 10, LOG_BYTES = 1 << 16, LOG_SHOWN = 1024 };

struct own_daemon {
    pid_t pid;
    char folder[FOLDER_BYTES], url[FOLDER_BYTES + 16], listen[FOLDER_BYTES + 32], log[FOLDER_BYTES + 16];
};

const char *own_daemon_binary(char *path)
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - sizeof "attnd");
    char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;
    if (slash)
        memcpy(slash + 1, "attnd", sizeof "attnd");
    return slash && access(path, X_OK) == 0 ? path : "attnd";
}

static void run(const struct own_daemon *d, const char *binary, const char *const *arguments, pid_t parent)
{
    char *argv[ARGUMENTS_MOST] = {strdup(binary), strdup("--set"), strdup(d->listen)};
    int n = 3, log = open(d->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (n + 1 < ARGUMENTS_MOST && *arguments)
        argv[n++] = strdup(*arguments++);
    /* It ends with the command, however that ends; Ctrl-C is the command's. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_IGN);
    if (getppid() != parent || log < 0 || dup2(log, STDERR_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0)
        _exit(127);
    execvp(binary, argv);
    fprintf(stderr, "%s: %s\n", binary, strerror(errno));
    fflush(stderr);
    _exit(127);
}

/* The log, as far as it goes. */
static size_t read_log(const struct own_daemon *d, char text[LOG_BYTES])
{
    FILE *f = fopen(d->log, "r");
    size_t n = f ? fread(text, 1, LOG_BYTES - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    return n;
}

static bool has_ended(struct own_daemon *d)
{
    if (d->pid > 0 && waitpid(d->pid, NULL, WNOHANG) != d->pid)
        return false;
    d->pid = 0;
    return true;
}

/* Wait until it listens; false: it has ended, or somebody gave up. */
static bool wait_until_ready(struct own_daemon *d)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    char *text = malloc(LOG_BYTES);
    bool ready = false, ended = false;
    while (text && !ready && !ended && !terminal_interrupted()) {
        ended = has_ended(d);
        read_log(d, text);
        ready = strstr(text, "listening on") != NULL;
        if (!ready && !ended)
            nanosleep(&pause, NULL);
    }
    if (text && !ready && ended) {
        size_t n = read_log(d, text);
        fputs("attnctl: a daemon of its own does not start:\n", stderr);
        fputs(n > LOG_SHOWN ? text + n - LOG_SHOWN : text, stderr);
    }
    free(text);
    return ready;
}

struct own_daemon *own_daemon_start(const char *binary, const char *const *arguments)
{
    char path[PATH_MAX];
    struct own_daemon *d = calloc(1, sizeof *d);
    pid_t parent = getpid();
    if (!d)
        return NULL;
    snprintf(d->folder, sizeof d->folder, "/tmp/attnctl-XXXXXX");
    if (!mkdtemp(d->folder)) {
        perror("attnctl: /tmp");
        free(d);
        return NULL;
    }
    snprintf(d->url, sizeof d->url, "unix:%s/s", d->folder);
    snprintf(d->listen, sizeof d->listen, "listen=%s", d->url);
    snprintf(d->log, sizeof d->log, "%s/log", d->folder);
    d->pid = fork();
    if (d->pid == 0)
        run(d, binary ? binary : own_daemon_binary(path), arguments, parent);
    if (d->pid > 0 && wait_until_ready(d))
        return d;
    own_daemon_stop(d);
    return NULL;
}

const char *own_daemon_url(const struct own_daemon *d)
{
    return d->url;
}

void own_daemon_stop(struct own_daemon *d)
{
    char socket[FOLDER_BYTES + 8];
    if (!d)
        return;
    if (d->pid > 0) {
        kill(d->pid, SIGTERM);
        while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    snprintf(socket, sizeof socket, "%s/s", d->folder);
    unlink(socket);
    unlink(d->log);
    rmdir(d->folder);
    free(d);
}
