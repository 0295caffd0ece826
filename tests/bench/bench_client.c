/* SPDX-License-Identifier: Apache-2.0 */
/* bench_client.c - what a client in C sees of an append+attend of one layer, over a unix socket: Llama-3-8B's
 * heads (32/8 of 128, bf16), every sequence at 1 000 tokens.
 *
 * Starts the daemon ($ATTND, or build/release/attnd) with the arguments given, and asks with one connection
 * for steps of 1, 8 and 64 sequences, then with 16 connections of 8 sequences each. Beside the time of a
 * call stand the step that the daemon reports and a plain echo of the same bytes over such a socket.
 *
 *   bench_client [--short] [DAEMON-ARGUMENT...]      e.g. --set backend.name=cpu
 *
 * Or beside a workload: what it reads of K and V in SECONDS alone, beside CONNECTIONS that attend for one
 * sequence each, and alone again.
 *
 *   bench_client --beside WORKLOAD SECONDS CONNECTIONS [DAEMON-ARGUMENT...] */
#include "tests/bench/bench.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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

enum {
    QUERY_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    CONTEXT = 1000,
    CONNECTIONS = 16,
    CALLS_MAX = 1000,
    BESIDE_CALLS_MAX = 100000, /* of a connection */
    FILL_TOKENS = 250,         /* of a sequence, in one append */
    HEAD_BYTES = 4096
};

static char socket_path[64];
static bool brief;
static atomic_bool over; /* connections stop before they have made all their calls */

static void die(const char *what)
{
    fprintf(stderr, "bench_client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_to_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, socket_path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void send_all(int fd, const void *bytes, size_t n)
{
    for (const uint8_t *at = bytes; n > 0;) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            die("sending");
        at += sent;
        n -= (size_t)sent;
    }
}

static void receive_all(int fd, void *bytes, size_t n)
{
    for (uint8_t *at = bytes; n > 0;) {
        ssize_t got = recv(fd, at, n, 0);
        if (got <= 0)
            die("receiving");
        at += got;
        n -= (size_t)got;
    }
}

/* ---- requests ------------------------------------------------------------------------------------ */

/* A request, ready to be sent, and room for its answer. */
struct exchange {
    uint8_t *request, *answer;
    size_t request_bytes, answer_bytes, room;
};

/* Numbers that are near normal; no zeros. */
static uint16_t noise(uint32_t *state)
{
    float sum = 0;
    uint32_t bits;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525 + 1013904223;
        sum += (float)(*state >> 8) / (1 << 24) - 0.5F;
    }
    memcpy(&bits, &sum, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* POST `path` with `rows` rows of each of `sequences` sequences from id `first` on. */
static struct exchange make_request(const char *path, uint64_t first, uint32_t sequences, uint32_t rows,
                                    bool appends, bool attends)
{
    struct exchange x = {.room = HEAD_BYTES};
    size_t n = (size_t)sequences * rows, kv = appends ? n * KV_HEADS * HEAD_DIM * 2 : 0,
           q = attends ? n * QUERY_HEADS * HEAD_DIM * 2 : 0, ids = sequences * sizeof(uint64_t),
           starts = (sequences + 1) * sizeof(int64_t);
    char head[HEAD_BYTES], tensors[HEAD_BYTES];
    int at = snprintf(tensors, sizeof tensors,
                      "{\"sequences\":{\"dtype\":\"U64\",\"shape\":[%u],\"data_offsets\":[0,%zu]},"
                      "\"indptr\":{\"dtype\":\"I64\",\"shape\":[%u],\"data_offsets\":[%zu,%zu]},",
                      sequences, ids, sequences + 1, ids, ids + starts);
    const struct {
        const char *name;
        uint32_t heads;
        size_t bytes;
    } all[] = {{"k", KV_HEADS, kv}, {"v", KV_HEADS, kv}, {"q", QUERY_HEADS, q}};
    size_t offset = ids + starts;
    for (int i = 0; i < 3; offset += all[i++].bytes) {
        if (all[i].bytes == 0)
            continue;
        at += snprintf(tensors + at, sizeof tensors - (size_t)at,
                       "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%zu,%u,%d],\"data_offsets\":[%zu,%zu]}",
                       offset > ids + starts ? "," : "", all[i].name, n, all[i].heads, HEAD_DIM, offset,
                       offset + all[i].bytes);
    }
    uint64_t header = (uint64_t)(at + 1 + 7) / 8 * 8; /* data begins at a multiple of 8 */
    memset(tensors + at, ' ', header - (uint64_t)at);
    tensors[at] = '}';
    size_t body = sizeof header + header + offset;
    int begin = snprintf(head, sizeof head,
                         "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"
                         "Content-Length: %zu\r\n\r\n",
                         path, body);
    x.request_bytes = (size_t)begin + body;
    x.request = malloc(x.request_bytes);
    x.room += q + HEAD_BYTES + 256 * (size_t)sequences;
    x.answer = malloc(x.room);
    if (!x.request || !x.answer)
        die("memory");
    uint8_t *to = x.request;
    memcpy(to, head, (size_t)begin);
    memcpy(to += begin, &header, sizeof header);
    memcpy(to += sizeof header, tensors, header);
    to += header;
    for (uint32_t i = 0; i < sequences; i++, to += sizeof(uint64_t))
        memcpy(to, &(uint64_t){first + i}, sizeof(uint64_t));
    for (uint32_t i = 0; i <= sequences; i++, to += sizeof(int64_t))
        memcpy(to, &(int64_t){(int64_t)i * rows}, sizeof(int64_t));
    uint32_t seed = (uint32_t)first;
    for (; to < x.request + x.request_bytes; to += 2)
        memcpy(to, &(uint16_t){noise(&seed)}, 2);
    return x;
}

static void free_exchange(struct exchange *x)
{
    free(x->request);
    free(x->answer);
}

/* Send the request, receive the answer whole; it must be 200 or 201. */
static void ask(int fd, struct exchange *x)
{
    size_t got = 0;
    char *end = NULL;
    send_all(fd, x->request, x->request_bytes);
    while (!end) {
        ssize_t n = recv(fd, x->answer + got, x->room - got - 1, 0);
        if (n <= 0)
            die("receiving");
        got += (size_t)n;
        x->answer[got] = 0;
        end = strstr((char *)x->answer, "\r\n\r\n");
    }
    const char *length = strcasestr((char *)x->answer, "\r\nContent-Length:");
    size_t head = (size_t)(end + 4 - (char *)x->answer);
    x->answer_bytes = head + (length ? strtoul(length + 17, NULL, 10) : 0);
    if (strncmp((char *)x->answer + 9, "20", 2) != 0 || x->answer_bytes > x->room) {
        fprintf(stderr, "bench_client: %s\n", (char *)x->answer);
        exit(1);
    }
    if (x->answer_bytes > got)
        receive_all(fd, x->answer + got, x->answer_bytes - got);
}

/* The step that an answer reports, in microseconds. */
static double step_us(const struct exchange *x)
{
    const char *end = memmem(x->answer, x->answer_bytes, "\"step_us\":\"", 11);
    return end ? strtod(end + 11, NULL) : 0;
}

/* ---- runs ---------------------------------------------------------------------------------------- */

/* One connection and its sequences. */
struct client {
    pthread_t thread;
    uint64_t first;
    uint32_t sequences, calls;
    bool appends;
    double *us, *step; /* [calls] */
};

static pthread_barrier_t begin;

static void make_sequences(int fd, const struct client *c)
{
    for (uint32_t i = 0; i < c->sequences; i++) {
        char request[256];
        struct exchange x = {.room = HEAD_BYTES, .answer = malloc(HEAD_BYTES)};
        int body = snprintf(request + 200, 56, "{\"id\":%llu}", (unsigned long long)(c->first + i));
        int n = snprintf(request, 200,
                         "POST /v1/sequences HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                         "application/json\r\nContent-Length: %d\r\n\r\n",
                         body);
        memmove(request + n, request + 200, (size_t)body);
        x.request = (uint8_t *)request;
        x.request_bytes = (size_t)(n + body);
        ask(fd, &x);
        free(x.answer);
    }
    for (uint32_t done = 0; done < (brief ? 50 : CONTEXT); done += brief ? 50 : FILL_TOKENS) {
        for (uint32_t i = 0; i < c->sequences; i++) {
            struct exchange x =
                make_request("/v1/append", c->first + i, 1, brief ? 50 : FILL_TOKENS, true, false);
            ask(fd, &x);
            free_exchange(&x);
        }
    }
}

static void *run_client(void *cookie)
{
    struct client *c = cookie;
    int fd = connect_to_daemon();
    if (fd < 0)
        die("connecting");
    make_sequences(fd, c);
    struct exchange x = make_request("/v1/attend", c->first, c->sequences, 1, c->appends, true);
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&begin);
    uint32_t done = 0;
    for (; done < c->calls && !atomic_load(&over); done++) {
        double start = bench_now();
        ask(fd, &x);
        c->us[done] = (bench_now() - start) * 1e6;
        c->step[done] = step_us(&x);
    }
    c->calls = done;
    free_exchange(&x);
    close(fd);
    return NULL;
}

/* Answer every `in` bytes with `out`. */
struct echo {
    int fd;
    size_t in, out;
};

static void *run_echo(void *cookie)
{
    const struct echo *e = cookie;
    uint8_t *bytes = calloc(1, e->in > e->out ? e->in : e->out);
    for (;;) {
        size_t got = 0;
        while (got < e->in) {
            ssize_t n = recv(e->fd, bytes + got, e->in - got, 0);
            if (n <= 0) {
                free(bytes);
                return NULL;
            }
            got += (size_t)n;
        }
        send_all(e->fd, bytes, e->out);
    }
}

/* Median time of an echo of as many bytes as a call of that many sequences takes. */
static double echo_us(uint32_t sequences, uint32_t calls)
{
    struct exchange x = make_request("/v1/attend", 1, sequences, 1, true, true);
    size_t out = (size_t)sequences * QUERY_HEADS * HEAD_DIM * 2 + 600;
    int fds[2];
    double us[CALLS_MAX];
    pthread_t thread;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        die("socketpair");
    struct echo e = {fds[1], x.request_bytes, out};
    pthread_create(&thread, NULL, run_echo, &e);
    for (uint32_t i = 0; i < calls; i++) {
        double start = bench_now();
        send_all(fds[0], x.request, x.request_bytes);
        receive_all(fds[0], x.answer, out);
        us[i] = (bench_now() - start) * 1e6;
    }
    close(fds[0]);
    pthread_join(thread, NULL);
    close(fds[1]);
    free_exchange(&x);
    return bench_spread(us, calls).median;
}

static struct client clients[CONNECTIONS];
static double *all_us, *all_steps; /* [CONNECTIONS * BESIDE_CALLS_MAX] */

/* Connections that each have their sequences, and begin with one more wait at `begin`. */
static void make_clients(uint32_t connections, uint32_t sequences, uint32_t calls, bool appends)
{
    static uint64_t next_id = 1 << 20; /* away from those that the daemon gives */
    size_t all = (size_t)CONNECTIONS * BESIDE_CALLS_MAX;
    all_us = all_us ? all_us : calloc(2 * all, sizeof *all_us);
    all_steps = all_us + all;
    if (!all_us)
        die("memory");
    pthread_barrier_init(&begin, NULL, connections + 1);
    for (uint32_t i = 0; i < connections; i++, next_id += sequences) {
        clients[i] = (struct client){.first = next_id,
                                     .sequences = sequences,
                                     .calls = calls,
                                     .appends = appends,
                                     .us = calloc(calls, sizeof(double)),
                                     .step = calloc(calls, sizeof(double))};
        if (!clients[i].us || !clients[i].step)
            die("memory");
        pthread_create(&clients[i].thread, NULL, run_client, &clients[i]);
    }
    pthread_barrier_wait(&begin); /* all have their sequences */
}

/* Wait for them; how many calls they made, whose times are in all_us and all_steps. */
static size_t end_clients(uint32_t connections)
{
    size_t n = 0;
    for (uint32_t i = 0; i < connections; i++) {
        struct client *c = &clients[i];
        pthread_join(c->thread, NULL);
        memcpy(all_us + n, c->us, c->calls * sizeof *all_us);
        memcpy(all_steps + n, c->step, c->calls * sizeof *all_steps);
        n += c->calls;
        free(c->us);
        free(c->step);
    }
    pthread_barrier_destroy(&begin);
    return n;
}

static void run(uint32_t connections, uint32_t sequences, uint32_t calls)
{
    make_clients(connections, sequences, calls, true);
    pthread_barrier_wait(&begin);
    double start = bench_now();
    size_t n = end_clients(connections);
    double seconds = bench_now() - start;
    struct bench_spread call = bench_spread(all_us, n), step = bench_spread(all_steps, n);
    printf("client: %2u x %2u sequences: p50 %.0f us, p99 %.0f, %.0f calls/s; step %.0f us; echo %.0f us\n",
           connections, sequences, call.median, all_us[n * 99 / 100], (double)n / seconds, step.median,
           echo_us(sequences, calls));
    fflush(stdout);
}

/* ---- beside a workload --------------------------------------------------------------------------- */

/* Ask something in text; the answer's body, valid until the next one. */
static const char *ask_text(int fd, const char *method, const char *path, const char *body, size_t n)
{
    static uint8_t answer[1 << 20];
    char *request = malloc(n + HEAD_BYTES);
    if (!request)
        die("memory");
    int head = snprintf(request, HEAD_BYTES,
                        "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\n\r\n",
                        method, path, n);
    memcpy(request + head, body, n);
    struct exchange x = {.request = (uint8_t *)request,
                         .request_bytes = (size_t)head + n,
                         .answer = answer,
                         .room = sizeof answer - 1};
    ask(fd, &x);
    answer[x.answer_bytes] = 0;
    free(request);
    return strstr((char *)answer, "\r\n\r\n") + 4;
}

static double metric(int fd, const char *name)
{
    char line[128];
    snprintf(line, sizeof line, "\nattnd_%s ", name);
    const char *at = strstr(ask_text(fd, "GET", "/metrics", "", 0), line);
    return at ? strtod(at + strlen(line), NULL) : 0;
}

/* The p50 of the latest steps that /stats gives, 0: none. */
static double p50(int fd, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\":{\"p50\":", name);
    const char *at = strstr(ask_text(fd, "GET", "/stats", "", 0), key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

/* Print what steps do in so many seconds. Returns GB/s of K and V that they read. */
static double watch_steps(int fd, const char *when, double seconds)
{
    double recorded = metric(fd, "graphs_recorded_total"), launched = metric(fd, "graphs_launched_total"),
           steps = metric(fd, "steps_total");
    double bytes = metric(fd, "kv_read_bytes_total"), start = bench_now();
    usleep((useconds_t)(seconds * 1e6));
    double per_s = (metric(fd, "kv_read_bytes_total") - bytes) / (bench_now() - start) * 1e-9;
    printf(
        "client: %s: K and V read at %.1f GB/s; %.0f steps, p50 %.0f us, %.1f us between them; %.0f of %.0f "
        "graphs recorded\n",
        when, per_s, metric(fd, "steps_total") - steps, p50(fd, "step_us"), p50(fd, "idle_us"),
        metric(fd, "graphs_recorded_total") - recorded, metric(fd, "graphs_launched_total") - launched);
    return per_s;
}

/* Post the workload in a file; its id. */
static unsigned post_workload(int fd, const char *path)
{
    char body[1 << 16];
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(body, 1, sizeof body, file) : 0;
    if (!file || n == sizeof body)
        die(path);
    fclose(file);
    const char *id = strstr(ask_text(fd, "POST", "/v1/workloads", body, n), "\"id\":");
    return id ? (unsigned)strtoul(id + 5, NULL, 10) : 0;
}

static void run_beside(const char *workload, double seconds, uint32_t connections)
{
    int fd = connect_to_daemon();
    char path[64];
    make_clients(connections, 1, BESIDE_CALLS_MAX, false);
    snprintf(path, sizeof path, "/v1/workloads/%u", post_workload(fd, workload));
    usleep((useconds_t)(seconds * 1e6)); /* until it is under way */
    double before = watch_steps(fd, "a workload alone", seconds);
    pthread_barrier_wait(&begin);
    double start = bench_now(), beside = watch_steps(fd, "beside", seconds);
    atomic_store(&over, true);
    size_t n = end_clients(connections);
    double per_s = (double)n / (bench_now() - start);
    double after = watch_steps(fd, "alone again", seconds);
    bool runs = strstr(ask_text(fd, "GET", path, "", 0), "\"running\"") != NULL;
    (void)ask_text(fd, "DELETE", path, "", 0);
    close(fd);
    struct bench_spread call = bench_spread(all_us, n);
    printf("client: %u beside a workload that %s: p50 %.0f us, p99 %.0f, max %.0f, %.0f calls/s; %.3f of "
           "what is "
           "read alone\n",
           connections, runs ? "runs on" : "HAS ENDED", call.median, all_us[n * 99 / 100], all_us[n - 1],
           per_s, beside / (before + after) * 2);
}

/* ---- the daemon ---------------------------------------------------------------------------------- */

static pid_t start_daemon(int argc, char **argv)
{
    const char *attnd = getenv("ATTND") ? getenv("ATTND") : "build/release/attnd";
    char listen[96];
    char shape[][32] = {"geometry.layers=1",     "geometry.query_heads=32", "geometry.kv_heads=8",
                        "geometry.head_dim=128", "log.level=warning",       "pool.blocks=24576"};
    char *arguments[64], set[] = "--set", name[] = "attnd";
    int n = 0;
    if (brief)
        strcpy(shape[5], "pool.blocks=512");
    arguments[n++] = name;
    arguments[n++] = set;
    arguments[n++] = listen;
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        arguments[n++] = set;
        arguments[n++] = shape[i];
    }
    snprintf(socket_path, sizeof socket_path, "/tmp/bench_client.%d", (int)getpid());
    snprintf(listen, sizeof listen, "listen=unix:%s", socket_path);
    for (int i = 0; i < argc && n < 63; i++)
        arguments[n++] = argv[i];
    arguments[n] = NULL;
    pid_t daemon = fork();
    if (daemon == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with this process */
        execv(attnd, arguments);
        die(attnd);
    }
    for (int fd = -1; fd < 0; usleep(20000)) {
        if (waitpid(daemon, NULL, WNOHANG) != 0)
            die("the daemon did not start");
        fd = connect_to_daemon();
        if (fd >= 0) {
            close(fd);
            break;
        }
    }
    return daemon;
}

int main(int argc, char **argv)
{
    brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    bool is_beside = argc > 4 && strcmp(argv[1], "--beside") == 0;
    int status = 0, skip = is_beside ? 5 : brief ? 2 : 1;
    pid_t daemon = start_daemon(argc - skip, argv + skip);
    uint32_t calls = brief ? 3 : 300;
    bench_print_machine("client");
    if (is_beside) {
        uint32_t connections = (uint32_t)atoi(argv[4]);
        run_beside(argv[2], atof(argv[3]), connections < CONNECTIONS ? connections : CONNECTIONS);
    } else {
        run(1, 1, calls);
        run(1, 8, calls);
        if (!brief)
            run(1, 64, calls);
        run(brief ? 2 : CONNECTIONS, brief ? 2 : 8, calls);
    }
    kill(daemon, SIGTERM);
    waitpid(daemon, &status, 0);
    unlink(socket_path);
    return status == 0 ? 0 : 1;
}
