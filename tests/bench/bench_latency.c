/* SPDX-License-Identifier: Apache-2.0 */
/* bench_latency.c - what one client waits for a call of one row beyond the step that computes it, on a geometry so small that a step
 * is next to nothing: HTTP, the loop, and the way to the engine and back.
 *
 *   bench_latency [--short]
 *
 * Starts the daemon ($ATTND, or build/release/attnd) with config/tiny.jsonc on a port of 127.0.0.1 and a unix socket, and
 * asks over each in turn. Prints microseconds: the call, the step that the answer reports, what is between them; and an echo
 * of as many bytes. */
#include "tests/bench/bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLS = 20000, BRIEF = 100, ROOM = 8192 };

static char answer[ROOM];
static double call_us[CALLS], step_us[CALLS], beyond_us[CALLS];

static void die(const char *what)
{
    fprintf(stderr, "bench_latency: ");
    perror(what);
    exit(1);
}

/* The address of a daemon, or of nobody yet. */
static socklen_t address_of(const char *where, struct sockaddr_storage *address)
{
    memset(address, 0, sizeof *address);
    if (strchr(where, '/')) {
        struct sockaddr_un *local = (struct sockaddr_un *)address;
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof local->sun_path, "%s", where);
        return sizeof *local;
    }
    struct sockaddr_in *port = (struct sockaddr_in *)address;
    port->sin_family = AF_INET;
    port->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    port->sin_port = htons((uint16_t)atoi(where));
    return sizeof *port;
}

static int open_socket(const struct sockaddr_storage *address)
{
    int fd = socket(address->ss_family, SOCK_STREAM, 0);
    if (fd < 0)
        die("a socket");
    if (address->ss_family == AF_INET)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

static int connect_to(const char *where)
{
    struct sockaddr_storage address;
    socklen_t bytes = address_of(where, &address);
    int fd = open_socket(&address);
    if (connect(fd, (struct sockaddr *)&address, bytes) != 0)
        die(where);
    return fd;
}

/* Send a request, receive the whole answer; its bytes. */
static size_t ask(int fd, const char *request, size_t n)
{
    size_t got = 0, wanted = 0;
    if (send(fd, request, n, MSG_NOSIGNAL) != (ssize_t)n)
        die("sending");
    while (wanted == 0 || got < wanted) {
        ssize_t more = recv(fd, answer + got, ROOM - 1 - got, 0);
        if (more <= 0)
            die("receiving");
        got += (size_t)more;
        answer[got] = 0;
        const char *end = strstr(answer, "\r\n\r\n"), *length = strcasestr(answer, "\r\nContent-Length:");
        if (end)
            wanted = (size_t)(end + 4 - answer) + (length ? strtoul(length + 17, NULL, 10) : 0);
    }
    if (strncmp(answer + 9, "20", 2) != 0) {
        fprintf(stderr, "bench_latency: %s\n", answer);
        exit(1);
    }
    return got;
}

static size_t post(char *request, const char *path, const char *body)
{
    return (size_t)snprintf(request, ROOM,
                            "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                            "Content-Length: %zu\r\n\r\n%s",
                            path, strlen(body), body);
}

/* ---- an echo ------------------------------------------------------------------------------------- */

struct echo {
    int fd;
    size_t in, out;
};

static void *run_echo(void *cookie)
{
    const struct echo *e = cookie;
    static char bytes[ROOM];
    int fd = accept(e->fd, NULL, NULL);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    while (recv(fd, bytes, e->in, MSG_WAITALL) == (ssize_t)e->in)
        if (send(fd, bytes, e->out, MSG_NOSIGNAL) != (ssize_t)e->out)
            break;
    close(fd);
    return NULL;
}

/* Of two threads on a socket of the same kind. */
static double echo_us(const char *where, const char *request, size_t in, size_t out, uint32_t calls)
{
    struct sockaddr_storage address;
    char path[64];
    snprintf(path, sizeof path, "/tmp/bench_latency.%d", (int)getpid());
    socklen_t bytes = address_of(strchr(where, '/') ? path : "0", &address);
    struct echo e = {open_socket(&address), in, out};
    if (bind(e.fd, (struct sockaddr *)&address, bytes) != 0 || listen(e.fd, 1) != 0)
        die("an echo");
    (void)getsockname(e.fd, (struct sockaddr *)&address, &bytes);
    pthread_t thread;
    pthread_create(&thread, NULL, run_echo, &e);
    int fd = open_socket(&address);
    if (connect(fd, (struct sockaddr *)&address, bytes) != 0)
        die("an echo");
    for (uint32_t i = 0; i < calls; i++) {
        double start = bench_now();
        if (send(fd, request, in, MSG_NOSIGNAL) != (ssize_t)in ||
            recv(fd, answer, out, MSG_WAITALL) != (ssize_t)out)
            die("an echo");
        beyond_us[i] = (bench_now() - start) * 1e6;
    }
    close(fd);
    pthread_join(thread, NULL);
    close(e.fd);
    (void)unlink(path);
    return bench_spread(beyond_us, calls).median;
}

/* ---- the daemon ---------------------------------------------------------------------------------- */

/* Start it on a unix socket and a port, which is written to `port`. */
static pid_t start_daemon(const char *path, char port[16])
{
    char listen[160], line[1024];
    const char *attnd = getenv("ATTND");
    int log[2];
    snprintf(listen, sizeof listen, "listen=[\"127.0.0.1:0\",\"unix:%s\"]", path);
    if (pipe(log) != 0)
        die("a pipe");
    pid_t daemon = fork();
    if (daemon == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(log[1], STDERR_FILENO);
        close(log[0]);
        attnd = attnd ? attnd : "build/release/attnd";
        execl(attnd, attnd, "--config", "config/tiny.jsonc", "--backend", "cpu", "--set", "backend.threads=1",
              "--set", listen, (char *)NULL);
        _exit(127);
    }
    close(log[1]);
    FILE *lines = fdopen(log[0], "r");
    bool local = false, found = false;
    while (lines && !(found && local) && fgets(line, sizeof line, lines)) {
        const char *at = strstr(line, "listening on http://127.0.0.1:");
        local |= strstr(line, "listening on unix:") || strstr(line, path);
        if (!at)
            continue;
        snprintf(port, 16, "%d", atoi(at + strlen("listening on http://127.0.0.1:")));
        found = true;
    }
    if (!found || !local) {
        fprintf(stderr, "bench_latency: the daemon does not start\n");
        exit(1);
    }
    return daemon; /* its log is not read any more: it drops lines rather than wait */
}

static void measure(const char *where, uint32_t calls)
{
    char request[ROOM];
    int fd = connect_to(where);
    size_t n = post(request, "/v1/attend", "{\"sequences\":[1],\"q\":[[[1,0,2,0,1,0,0,1]]]}"), got = 0;
    for (uint32_t i = 0; i < calls / 10; i++)
        (void)ask(fd, request, n);
    for (uint32_t i = 0; i < calls; i++) {
        double start = bench_now();
        got = ask(fd, request, n);
        call_us[i] = (bench_now() - start) * 1e6;
        const char *step = strstr(answer, "\"step_us\":");
        step_us[i] = step ? strtod(step + 10, NULL) : 0;
        beyond_us[i] = call_us[i] - step_us[i];
    }
    close(fd);
    struct bench_spread call = bench_spread(call_us, calls), step = bench_spread(step_us, calls),
                        beyond = bench_spread(beyond_us, calls);
    printf("%-4s: a call %.1f us, its step %.1f, beyond it p50 %.1f; an echo of its bytes %.1f\n",
           strchr(where, '/') ? "unix" : "TCP", call.median, step.median, beyond.median,
           echo_us(where, request, n, got, calls));
}

int main(int argc, char **argv)
{
    uint32_t calls = argc > 1 && strcmp(argv[1], "--short") == 0 ? BRIEF : CALLS;
    char request[ROOM], path[64], port[16];
    snprintf(path, sizeof path, "/tmp/bench_latency.%d.s", (int)getpid());
    bench_print_machine("bench_latency");
    pid_t daemon = start_daemon(path, port);
    int fd = connect_to(port);
    (void)ask(fd, request, post(request, "/v1/sequences", "{\"id\":1}"));
    (void)ask(fd, request,
              post(request, "/v1/append",
                   "{\"sequences\":[1],\"k\":[[[1,2,3,4,5,6,7,8]]],\"v\":[[[8,7,6,5,4,3,2,1]]]}"));
    close(fd);
    measure(port, calls);
    measure(path, calls);
    kill(daemon, SIGTERM);
    int status;
    return waitpid(daemon, &status, 0) == daemon && status == 0 ? 0 : 1;
}
