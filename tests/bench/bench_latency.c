/* bench_latency.c - what one client waits for a call of one row beyond the step that computes it, on a geometry so small that a step
 * is next to nothing: HTTP, the loop, and the way to the engine and back.
 *
 *   bench_latency PORT|PATH [CALLS]     a daemon of config/tiny.jsonc on a port of 127.0.0.1 or a unix socket
 *
 * Prints microseconds: the call, the step that the answer reports, what is between them; and an echo of as many bytes. */
#include "tests/bench/bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CALLS = 20000, WARM = 2000, ROOM = 8192 };

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

int main(int argc, char **argv)
{
    char request[ROOM];
    uint32_t calls = argc > 2 ? (uint32_t)atoi(argv[2]) : CALLS;
    if (argc < 2 || calls == 0 || calls > CALLS) {
        fprintf(stderr, "bench_latency PORT|PATH [CALLS]\n");
        return 64;
    }
    int fd = connect_to(argv[1]);
    (void)ask(fd, request, post(request, "/v1/sequences", "{\"id\":1}"));
    (void)ask(fd, request,
              post(request, "/v1/append",
                   "{\"sequences\":[1],\"k\":[[[1,2,3,4,5,6,7,8]]],\"v\":[[[8,7,6,5,4,3,2,1]]]}"));
    size_t n = post(request, "/v1/attend", "{\"sequences\":[1],\"q\":[[[1,0,2,0,1,0,0,1]]]}"), got = 0;
    for (uint32_t i = 0; i < WARM; i++)
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
    printf("%s: a call %.1f us, its step %.1f, beyond it p50 %.1f; an echo of its bytes %.1f\n",
           strchr(argv[1], '/') ? "unix" : "TCP", call.median, step.median, beyond.median,
           echo_us(argv[1], request, n, got, calls));
    return 0;
}
