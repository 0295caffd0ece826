/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.c - see daemon.h. */
#include "tests/fuzz/daemon.h"

#include "config/log.h"
#include "scheduler/engine.h"
#include "server/answer.h"
#include "server/http_connection.h"
#include "server/json_arena.h"
#include "server/keys.h"
#include "server/routes.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    RUN_MS = 300,   /* a stream that goes on is cut off then */
    TIDY_RUNS = 16, /* after so many everything is removed */
    HEAD_BYTES = 8192
};

static struct {
    struct config config;
    struct engine *engine;
    struct daemon_state state;
    uv_loop_t loop;
    uv_async_t completed;
    uv_timer_t wake;
    struct listen_options options;
    struct sockaddr_un
        address; /* where it listens: a name outside of the file system that the kernel chose */
    socklen_t address_bytes;
    struct http_listener *listener;
    struct http_connections *connections;
    unsigned runs;
} fuzz;

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "fuzz: %s (the last error: %s)\n", what, strerror(errno));
    abort();
}

/* What the machine must give before anything can be tested. */
static void need(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "fuzz: not started: %s (the last error: %s)\n", what, strerror(errno));
    _exit(FUZZ_NOT_STARTED);
}

static void notify(void *cookie)
{
    (void)cookie;
    uv_async_send(&fuzz.completed);
}

static void on_completed(uv_async_t *async)
{
    (void)async;
    routes_deliver(&fuzz.state);
}

static void on_wake(uv_timer_t *timer)
{
    (void)timer;
}

static uint32_t no_drain(uint32_t lame_duck_s, uint32_t deadline_s, void *cookie)
{
    (void)lame_duck_s;
    (void)deadline_s;
    (void)cookie;
    return 0;
}

static bool no_stay(void *cookie)
{
    (void)cookie;
    return false;
}

static uint32_t no_lame_duck(void *cookie)
{
    (void)cookie;
    return 0;
}

static void start_engine(void)
{
    static const char *const sets[] = {"backend.name=cpu",
                                       "backend.threads=1",
                                       "geometry.layers=2",
                                       "geometry.query_heads=2",
                                       "geometry.kv_heads=1",
                                       "geometry.head_dim=8",
                                       "geometry.block_size=4",
                                       "geometry.dtype=f32",
                                       "geometry.kv_dtype=f32",
                                       "pool.blocks=64",
                                       "pool.host_blocks=16",
                                       "limits.sequences=32",
                                       "limits.sequence_tokens=200",
                                       "limits.body_bytes=1MiB",
                                       "limits.calls=16",
                                       "limits.connections=4",
                                       "limits.workload_s=2"};
    const struct config_inputs inputs = {.sets = sets, .set_count = sizeof sets / sizeof sets[0]};
    char error[CONFIG_ERROR_BYTES], why[ATTENTION_ERROR_BYTES];
    must(config_load(&fuzz.config, &inputs, error) == 0, error);
    fuzz.state.memory.limit = 256 << 20;
    const struct engine_options options = {.config = &fuzz.config,
                                           .budget = &fuzz.state.memory,
                                           .partials_max = 16384,
                                           .spare_requests = ROUTES_SPARE_REQUESTS,
                                           .notify = notify};
    need(engine_create(&options, &fuzz.engine, why) == 0, why);
    need(engine_start(fuzz.engine) == 0, "no thread");
}

/* A bound socket. */
static int bind_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    fuzz.address.sun_family = AF_UNIX;
    need(fd >= 0 && bind(fd, (struct sockaddr *)&fuzz.address, sizeof fuzz.address.sun_family) == 0,
         "cannot bind a unix socket");
    fuzz.address_bytes = sizeof fuzz.address;
    need(getsockname(fd, (struct sockaddr *)&fuzz.address, &fuzz.address_bytes) == 0, "a socket has no name");
    return fd;
}

static void start(void)
{
    signal(SIGPIPE, SIG_IGN); /* clients leave while they are answered */
    log_init(LOG_ERROR, LOG_TEXT);
    need(uv_loop_init(&fuzz.loop) == 0, "no loop");
    uv_async_init(&fuzz.loop, &fuzz.completed, on_completed);
    uv_timer_init(&fuzz.loop, &fuzz.wake);
    uv_timer_start(&fuzz.wake, on_wake, 5, 5);
    start_engine();
    json_arena_install();
    fuzz.state.config = &fuzz.config;
    fuzz.state.engine = fuzz.engine;
    fuzz.state.loop = &fuzz.loop;
    fuzz.state.drain = no_drain;
    fuzz.state.stay = no_stay;
    fuzz.state.lame_duck_left = no_lame_duck;
    need(routes_create(&fuzz.state) == 0, "no memory for routes");
    const struct http_service service = {routes_begun,      routes_handle,  routes_finish,  routes_answered,
                                         routes_unanswered, routes_proceed, routes_abandon, &fuzz.state};
    need(http_connections_create(&fuzz.loop, &fuzz.config.limits, &fuzz.state.memory, &service,
                                 &fuzz.connections) == 0,
         "no memory for connections");
    fuzz.state.connections = fuzz.connections;
    fuzz.options.address.is_unix = true;
    fuzz.options.address.fd = bind_socket();
    fuzz.options.local = true;
    need(http_listen(&fuzz.loop, &fuzz.options, http_connections_accept, fuzz.connections, &fuzz.listener) ==
             0,
         "cannot listen");
}

/* ---- a run --------------------------------------------------------------------------------------- */

/* Remove every sequence, lease and workload. */
static void tidy(void)
{
    struct request *request = NULL;
    while (!(request = engine_acquire(fuzz.engine))) /* all are under way still */
        uv_run(&fuzz.loop, UV_RUN_ONCE);
    memset(request->cookie, 0, sizeof(struct answer));
    static const struct api_key everybody = {.name = "everybody"};
    answer_of(request)->forgets = &everybody;
    request->kind = REQUEST_FORGET;
    engine_submit(fuzz.engine, request); /* routes_deliver() goes on until it is done */
    for (int i = 0; i < 20; i++)
        uv_run(&fuzz.loop, UV_RUN_NOWAIT);
}

static int connect_to_daemon(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&fuzz.address, fuzz.address_bytes) == 0, "cannot connect");
    must(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "a socket stays blocking");
    return fd;
}

/* Read what there is; false: there is no more. The first bytes are looked at. */
static bool read_answer(int fd, bool *begun)
{
    static char bytes[1 << 16];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n > 8 && !*begun) {
        must(memcmp(bytes, "HTTP/1.1 ", 9) == 0, "an answer that is none");
        *begun = true;
    }
    return n > 0 || (n < 0 && errno == EAGAIN);
}

void fuzz_send(const uint8_t *bytes, size_t n, size_t piece)
{
    if (!fuzz.engine)
        start();
    int fd = connect_to_daemon();
    size_t at = 0;
    bool begun = false, more = true;
    uint64_t end = uv_hrtime() + RUN_MS * UINT64_C(1000000);
    while (more && uv_hrtime() < end) {
        size_t part = piece && piece < n - at ? piece : n - at;
        ssize_t sent = part ? send(fd, bytes + at, part, MSG_NOSIGNAL) : 0;
        at += sent > 0 ? (size_t)sent : 0;
        if (part && at == n)
            shutdown(fd, SHUT_WR);
        uv_run(&fuzz.loop, at < n || sent > 0 ? UV_RUN_NOWAIT : UV_RUN_ONCE);
        more = read_answer(fd, &begun);
    }
    close(fd);
    while (http_connections_counts(fuzz.connections).open > 0)
        uv_run(&fuzz.loop, UV_RUN_ONCE);
    if (++fuzz.runs % TIDY_RUNS == 0)
        tidy();
}

void fuzz_request(const char *method, const char *target, const char *type, const uint8_t *body, size_t n)
{
    static uint8_t all[HEAD_BYTES + (2 << 20)];
    if (n > sizeof all - HEAD_BYTES)
        return;
    int head = snprintf(
        (char *)all, HEAD_BYTES,
        "%s %.4000s HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson, */*\r\nContent-Type: %s\r\n"
        "Content-Length: %zu\r\n\r\n",
        method, target, type, n);
    memcpy(all + head, body, n);
    fuzz_send(all, (size_t)head + n, 0);
}

void fuzz_line(const uint8_t **bytes, size_t *n, char *line, size_t room)
{
    const uint8_t *mark = memchr(*bytes, '\n', *n);
    size_t length = mark ? (size_t)(mark - *bytes) : *n, kept = length < room - 1 ? length : room - 1;
    for (size_t i = 0; i < kept; i++) {
        uint8_t c = (*bytes)[i];
        line[i] = c > ' ' && c < 0x7f ? (char)c : '_';
    }
    line[kept] = '\0';
    *bytes += length + (mark != NULL);
    *n -= length + (mark != NULL);
}
