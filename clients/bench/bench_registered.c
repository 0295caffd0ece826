/* SPDX-License-Identifier: Apache-2.0 */
/* bench_registered.c - what a call takes beyond its step: by registered memory, and by HTTP on a unix socket, beside each other.
 *
 *     bench_registered RING_SOCKET HTTP_SOCKET PID [ROUNDS]
 *
 * A call appends a token of one sequence and attends, a layer, context as printed; its time beyond the step is what the client waits, less
 * what the daemon says that the step took. "following": the next call comes at once; "parked": IDLE_US later, when the engine sleeps. A client
 * that looks waits for its answer by looking at the ring; else it sleeps. First come wake-ups alone: of a process on another processor that
 * sleeps in a read of an eventfd.
 * The ways take turns, BLOCK calls each. Processor time is that of the daemon and of the client together, less that of the steps, a call. */
#include "clients/registered/client.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    QUERY_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    BLOCK = 25,
    ROUNDS = 60,
    ROUNDS_MAX = 1000,
    IDLE_US = 1500,
    LOOKS_US = 2000, /* of a client that looks */
    WAKES = 300,
    WAYS = 5,
    Q_BYTES = QUERY_HEADS * HEAD_DIM * 2,
    KV_BYTES = KV_HEADS * HEAD_DIM * 2,
    REGION_BYTES = 16 << 20,
    AT_IDS = 0, /* in the region */
    AT_COUNTS = 64,
    AT_Q = 4096,
    AT_K = AT_Q + Q_BYTES,
    AT_V = AT_K + KV_BYTES,
    AT_O = AT_V + KV_BYTES,
    AT_LSE = AT_O + Q_BYTES,
    AT_MANY = 1 << 20 /* k and v of a context */
};

static struct registered_client ring;
static struct registered_region region;
static int http = -1;

static char reply[1 << 17];

static _Noreturn void end(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

static double clock_us(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static double now_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

/* ---- HTTP ---------------------------------------------------------------------------------------- */

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        end("there is no daemon at the HTTP socket");
    return fd;
}

/* Send a request and read the whole answer; where its body begins. */
static const char *ask(const char *request, size_t bytes)
{
    size_t have = 0, want = sizeof reply - 1;
    const char *body = NULL;
    if (write(http, request, bytes) != (ssize_t)bytes)
        end("HTTP: the daemon does not read");
    while (have < want) {
        ssize_t n = read(http, reply + have, sizeof reply - 1 - have);
        if (n <= 0)
            end("HTTP: the daemon is gone");
        have += (size_t)n;
        reply[have] = '\0';
        char *head_end = body ? NULL : strstr(reply, "\r\n\r\n"),
             *length = head_end ? strstr(reply, "Content-Length: ") : NULL;
        if (!length)
            continue;
        body = head_end + 4;
        want = (size_t)(body - reply) + strtoul(length + strlen("Content-Length: "), NULL, 10);
    }
    if (strncmp(reply, "HTTP/1.1 2", 10) != 0)
        end(reply);
    return body;
}

static uint64_t create(void)
{
    static const char request[] =
        "POST /v1/sequences HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 2\r\n\r\n{}";
    const char *id = strstr(ask(request, sizeof request - 1), "\"id\":");
    return id ? strtoull(id + 5, NULL, 10) : 0;
}

/* An attend with a token of one sequence, as a request that is sent again and again. */
static size_t make_request(uint64_t id, char *request)
{
    static char body[Q_BYTES + 2 * KV_BYTES + 1024];
    const int64_t one = (int64_t)id;
    char header[512];
    int n =
        snprintf(header, sizeof header,
                 "{\"sequences\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
                 "\"q\":{\"dtype\":\"BF16\",\"shape\":[1,%d,%d],\"data_offsets\":[8,%d]},"
                 "\"k\":{\"dtype\":\"BF16\",\"shape\":[1,%d,%d],\"data_offsets\":[%d,%d]},"
                 "\"v\":{\"dtype\":\"BF16\",\"shape\":[1,%d,%d],\"data_offsets\":[%d,%d]}}",
                 QUERY_HEADS, HEAD_DIM, 8 + Q_BYTES, KV_HEADS, HEAD_DIM, 8 + Q_BYTES, 8 + Q_BYTES + KV_BYTES,
                 KV_HEADS, HEAD_DIM, 8 + Q_BYTES + KV_BYTES, 8 + Q_BYTES + 2 * KV_BYTES);
    uint64_t header_bytes = ((uint64_t)n + 7) / 8 * 8;
    memset(header + n, ' ', header_bytes - (uint64_t)n);
    memcpy(body, &header_bytes, 8);
    memcpy(body + 8, header, header_bytes);
    memcpy(body + 8 + header_bytes, &one, 8);
    memcpy(body + 16 + header_bytes, region.memory + AT_Q,
           Q_BYTES + 2 * KV_BYTES); /* q, k and v follow each other there */
    size_t bytes = 16 + header_bytes + Q_BYTES + 2 * KV_BYTES;
    int head = sprintf(
        request,
        "POST /v1/attend?layer=0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\n"
        "Content-Length: %zu\r\n\r\n",
        bytes);
    memcpy(request + head, body, bytes);
    return (size_t)head + bytes;
}

/* ---- calls --------------------------------------------------------------------------------------- */

static double call_http(const char *request, size_t bytes, double *step_us)
{
    double begin = now_us();
    const char *body = ask(request, bytes);
    double took = now_us() - begin;
    const char *step = memmem(body, 512, "\"step_us\":\"", 11);
    if (!step)
        end("HTTP: no step_us");
    *step_us = strtod(step + 11, NULL);
    return took;
}

static double call_ring(const struct registered_call *call, unsigned spin_us, double *step_us)
{
    struct registered_completion done;
    double begin = now_us();
    if (!registered_put(&ring, call) || !registered_wait(&ring, spin_us, &done))
        end("the ring: the daemon is gone");
    double took = now_us() - begin;
    if (done.status != 200)
        end(done.detail);
    *step_us = done.step_us;
    return took;
}

/* A sequence with a context. */
static uint64_t make_context(uint32_t tokens)
{
    uint64_t id = create();
    double ignored;
    for (uint32_t at = 0, n; at < tokens; at += n) {
        n = tokens - at < 1024 ? tokens - at : 1024;
        struct registered_call append = {.kind = REGISTERED_APPEND,
                                         .region = region.number,
                                         .sequence_count = 1,
                                         .rows = n,
                                         .sequences = AT_IDS,
                                         .counts = AT_COUNTS,
                                         .positions = REGISTERED_NONE,
                                         .k = AT_MANY,
                                         .v = AT_MANY + (uint64_t)n * KV_BYTES,
                                         .lse = REGISTERED_NONE};
        memcpy(region.memory + AT_IDS, &id, sizeof id);
        memcpy(region.memory + AT_COUNTS, &n, sizeof n);
        (void)call_ring(&append, 0, &ignored);
    }
    return id;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What waking a process takes that sleeps on another processor. */
static void measure_wakes(void)
{
    double took[WAKES];
    int bell = eventfd(0, 0);
    volatile double *woken =
        mmap(NULL, sizeof *woken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (child == 0) {
        cpu_set_t others;
        CPU_ZERO(&others);
        for (int cpu = 1; cpu < sysconf(_SC_NPROCESSORS_ONLN); cpu++)
            CPU_SET((size_t)cpu, &others);
        (void)sched_setaffinity(0, sizeof others, &others);
        for (uint64_t n; read(bell, &n, sizeof n) == sizeof n;)
            *woken = now_us();
        _exit(0);
    }
    for (int i = 0; i < WAKES; i++) {
        const uint64_t one = 1;
        usleep(IDLE_US);
        *woken = 0;
        double begin = now_us();
        (void)!write(bell, &one, sizeof one);
        while (*woken == 0) {
        }
        took[i] = *woken - begin;
    }
    kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    qsort(took, WAKES, sizeof took[0], compare);
    printf("waking a process on another processor, by an eventfd: p50 %.1f us, p99 %.1f us\n",
           took[WAKES / 2], took[WAKES * 99 / 100]);
}

static void measure(uint32_t context, unsigned rounds, clockid_t daemon)
{
    static const struct {
        const char *name;
        bool http, parked;
        unsigned spin_us;
    } ways[WAYS] = {{"doorbell, following, client looks", false, false, LOOKS_US},
                    {"doorbell, following, client sleeps", false, false, 0},
                    {"doorbell, parked, client looks", false, true, LOOKS_US},
                    {"HTTP on a unix socket, following", true, false, 0},
                    {"HTTP on a unix socket, parked", true, true, 0}};
    static double beyond[WAYS][ROUNDS_MAX * BLOCK], steps[WAYS][ROUNDS_MAX * BLOCK];
    static char requests[WAYS][1 << 16];
    double processor_us[WAYS] = {0};
    size_t bytes[WAYS] = {0};
    uint64_t ids[WAYS], calls = (uint64_t)rounds * BLOCK;
    for (int way = 0; way < WAYS; way++) {
        ids[way] = make_context(context);
        bytes[way] = make_request(ids[way], requests[way]);
    }
    for (unsigned round = 0; round < rounds; round++) {
        for (int way = 0; way < WAYS; way++) {
            const struct registered_call call = {.kind = REGISTERED_ATTEND,
                                                 .region = region.number,
                                                 .sequence_count = 1,
                                                 .rows = 1,
                                                 .sequences = AT_IDS,
                                                 .counts = REGISTERED_NONE,
                                                 .positions = REGISTERED_NONE,
                                                 .q = AT_Q,
                                                 .k = AT_K,
                                                 .v = AT_V,
                                                 .o = AT_O,
                                                 .lse = REGISTERED_NONE};
            memcpy(region.memory + AT_IDS, &ids[way], sizeof ids[way]);
            double used = clock_us(daemon) + clock_us(CLOCK_PROCESS_CPUTIME_ID);
            for (int i = -1; i < BLOCK; i++) {
                double step_us;
                if (ways[way].parked)
                    usleep(IDLE_US);
                double took = !ways[way].http ? call_ring(&call, ways[way].spin_us, &step_us)
                                              : call_http(requests[way], bytes[way], &step_us);
                if (i < 0) /* the first one comes from somewhere else */
                    continue;
                steps[way][round * BLOCK + (unsigned)i] = step_us;
                beyond[way][round * BLOCK + (unsigned)i] = took - step_us;
            }
            processor_us[way] += clock_us(daemon) + clock_us(CLOCK_PROCESS_CPUTIME_ID) - used;
        }
    }
    for (int way = 0; way < WAYS; way++) {
        qsort(beyond[way], calls, sizeof beyond[way][0], compare);
        qsort(steps[way], calls, sizeof steps[way][0], compare);
        printf("context %5u, %-34s beyond the step p50 %6.1f us, p99 %6.1f us; step p50 %6.1f us; processor "
               "time %6.1f us a call\n",
               context, ways[way].name, beyond[way][calls / 2], beyond[way][calls * 99 / 100],
               steps[way][calls / 2], processor_us[way] / (double)(calls + rounds));
    }
}

int main(int argc, char **argv)
{
    static const uint32_t contexts[] = {64, 1024};
    unsigned rounds = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 10) : ROUNDS;
    clockid_t daemon;
    if (argc < 4 || rounds < 1 || rounds > ROUNDS_MAX)
        end("usage: bench_registered RING_SOCKET HTTP_SOCKET PID [ROUNDS]");
    if (clock_getcpuclockid(atoi(argv[3]), &daemon) != 0)
        end("there is no such process");
    if (!registered_open(&ring, argv[1], "") || !registered_make_region(&ring, REGION_BYTES, &region))
        end(ring.answer.detail);
    http = connect_to(argv[2]);
    uint16_t *values = (uint16_t *)(void *)region.memory;
    for (size_t i = 0; i < REGION_BYTES / 2; i++)
        values[i] = (uint16_t)(0x3f00 + rand() % 200 + (rand() & 1) * 0x8000);
    measure_wakes();
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++)
        measure(contexts[i], rounds, daemon);
    registered_close(&ring);
    return 0;
}
