/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the attnd daemon: command line, configuration, loop, signals, exit code. */
#include "config/clock.h"
#include "config/config.h"
#include "allocator/block_log.h"
#include "config/host_memory.h"
#include "config/log.h"
#include "config/nearest.h"
#include "config/numbers.h"
#include "scheduler/engine.h"
#include "scheduler/journal_file.h"
#include "scheduler/journal_print.h"
#include "scheduler/replay.h"
#include "scheduler/staging.h"
#include "server/http_connection.h"
#include "server/json_arena.h"
#include "server/keys.h"
#include "server/kv_publisher.h"
#include "server/metrics.h"
#include "server/registered.h"
#include "server/routes.h"
#include "server/service.h"
#include "server/state.h"
#include "config/version.h"

#include <uv.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum exit_code {
    EXIT_OK = 0,
    EXIT_RUNTIME = 1,        /* something failed while serving, or the second signal */
    EXIT_USAGE = 2,          /* the command line */
    EXIT_UNAVAILABLE = 69,   /* the address or the backend cannot be used (EX_UNAVAILABLE) */
    EXIT_CONFIGURATION = 78, /* the configuration (EX_CONFIG) */
    EXIT_LEFT = 256          /* none of them: a signal came while the daemon restored sequences */
};

enum action {
    ACTION_SERVE,
    ACTION_CHECK_CONFIG,
    ACTION_CHECK_KEYS,
    ACTION_PRINT_CONFIG,
    ACTION_COMPILE_KERNELS,
    ACTION_DESCRIBE,
    ACTION_REPLAY_CHECK,
    ACTION_JOURNAL_PRINT,
    ACTION_HELP,
    ACTION_VERSION
};

enum { SETS_MAX = 256 };

struct options {
    enum action action;
    const char *file;
    const char *arch;     /* to compile kernels for */
    const char *describe; /* which table */
    const char *journal;  /* to be checked, or printed */
    const char *sets[SETS_MAX];
    size_t set_count;
    char backend[64];                         /* --backend, as the --set that it stands for, */
    char state_dir[CONFIG_STRING_BYTES + 16]; /* and --state-dir */
};

enum { SIGNALS = 5 };

struct daemon {
    uv_loop_t loop;
    uv_signal_t signals[SIGNALS];
    struct http_listener *listeners[CONFIG_LISTENERS_MAX], *management;
    struct registered *registered;
    struct http_connections *connections, *managers;
    struct address_ranges trusted;
    struct daemon_state state;
    uv_timer_t lame_duck, drain_deadline;
    uint32_t deadline_s;    /* of the drain */
    double write_rate;      /* bytes a second, into its folder */
    struct swap_file *swap; /* of pool.file_blocks; NULL: those are 0 */
    int fds;                /* below it are sockets that were handed over */
    uv_timer_t watchdog;    /* the service manager's */
    bool cut;               /* it passed, with something under way */
    bool failed;            /* the backend has */
    uv_prepare_t turn;      /* the loop is about to wait */
    double turned_s;        /* processor time of its thread, when that was last so */
    uv_timer_t trimmer;     /* looks for memory that is used no more; */
    uv_work_t trim;         /* a worker gives it back, */
    bool trimming;          /* now */
    uint32_t idle_trims;    /* looks since it is unused */
    uv_timer_t watch;       /* on the driver's calls */
    uint64_t watched;       /* the call that the engine was in; 0: none */
    uint32_t watches;       /* that found it in the same one */
    uv_async_t completed;   /* the engine has requests for routes_deliver() */

    bool starting;             /* the start thread runs: what follows is its own until it has ended */
    uv_async_t start_done;     /* it has */
    enum exit_code start_code; /* EXIT_OK, or why there is no engine */
    struct engine *engine;
    struct journal *journal;        /* NULL: none */
    struct kv_publisher *publisher; /* likewise */
    uint64_t progress_ns;           /* when the pool's progress was last logged */
    uint64_t signalled_ns;          /* when a signal first wanted the end; 0: not yet */
};

enum {
    FAILURE_DRAIN_S = 5,         /* for the answers that say so, when the backend has failed */
    WATCHES = 20,                /* looks at a call of the driver before it has taken too long */
    STOP_SPARE_S = 10,           /* for the end itself */
    SAME_SIGNAL_NS = 1000000000, /* timeout(1) signals a process and its group: one wish, and no second one */
    REPORTS_MS = 2000,           /* of the spare time: for reports of streamed workloads */
    LOG_PATIENCE_MS = 500,       /* for who reads the log, at the end */
    TRIM_MS = 500,               /* between two looks for unused memory, */
    IDLE_TRIMS = 4,              /* and looks after which it goes back */
    MANAGERS = 32,               /* connections to the management listener */
    RING_FILES = 4,              /* of a client with registered memory, one with another */
    OTHER_FILES = 192,           /* beside connections: refusals, the loop's, a GPU's, libraries' */
    PROBE_BYTES = 4096,          /* written where the journal is to be */
    END_TIMEOUTS = 4             /* for the end: two steps in flight, one more, closing the device */
};

static const uint64_t BUDGET_UNKNOWN = UINT64_C(1) << 40,
                      START_BYTES = 128 << 20; /* START: of the daemon itself, about */

/* End at once, but for what the log still has. */
static _Noreturn void end_now(enum exit_code code)
{
    log_stop(LOG_PATIENCE_MS);
    _exit(code);
}

static void print_help(void)
{
    puts("attnd - a daemon that owns a paged KV cache and computes attention over it\n"
         "\n"
         "usage: attnd [--config FILE] [--backend NAME] [--set PATH=VALUE]...\n"
         "\n"
         "  --config FILE      JSON with comments; without it the built-in defaults "
         "(config/demo.jsonc)\n"
         "  --set PATH=VALUE   one key; stronger than ATTND_PATH__KEY in the environment, which is "
         "stronger\n"
         "                     than the file\n"
         "  --backend NAME     auto, cuda, cpu or reference: short for --set backend.name=NAME\n"
         "  --state-dir DIR    keep sequences there between the end and the next start: short for --set\n"
         "                     state.dir=DIR\n"
         "  --check-config     refuse what a start would refuse, print the memory arithmetic, exit\n"
         "  --check-keys       refuse a keys.file that SIGHUP would refuse, exit; disturbs no daemon\n"
         "  --replay-check PATH   run a journal (a folder, or one of its files) again, compare every id and "
         "count, exit\n"
         "  --journal-print PATH   print a journal, a line of JSON a record, exit\n"
         "  --print-config     print the effective configuration and where each value came from, exit\n"
         "  --compile-kernels --arch ARCH\n"
         "                     compile the CUDA kernels for the configured geometry and sm_75, sm_80, "
         "sm_86,\n"
         "                     sm_89, sm_90a, sm_100a or sm_120 into backend.cache, exit; needs NVRTC "
         "but "
         "no GPU\n"
         "  --describe keys|keys.file|metrics|problems\n"
         "                     print a line a key of the configuration, a family of /metrics, or a code of a "
         "problem,\n"
         "                     with tabs between its columns, exit; documents are made of it\n"
         "  -V, --version      print version and commit, exit\n"
         "  -h, --help         this text\n"
         "\n"
         "exit codes: 0 done, 1 failed while running, 2 usage, 69 what cannot be had now (address, GPU, "
         "memory), 78 "
         "configuration\n"
         "signals:    SIGTERM, SIGINT: end, after drain.lame_duck_s, with drain.deadline_s for the requests "
         "under way; "
         "a later one ends at once; POST /v1/drain is the first one with times of its own, and a signal "
         "during its lame duck ends that; while the daemon starts, the first one ends it at once, with 0. "
         "SIGHUP: read keys.file again\n"
         "\n"
         "keys and their defaults:");
    config_print_keys(stdout);
}

static void print_version(void)
{
    printf("attnd %s (%s)\ninstruction sets of this build that this processor has:", ATTND_VERSION,
           ATTND_COMMIT);
    for (int i = 1; attention_isa_names[i]; i++) {
        if (attention_isa_supported(attention_isa_names[i]))
            printf(" %s", attention_isa_names[i]);
    }
    printf("\nCUDA: %s\n", attention_cuda_build());
}

static void describe_problems(FILE *out)
{
    for (unsigned i = 0; i < STATUS_COUNT; i++) {
        int status = status_of_number(i);
        fprintf(out, "%s\t%d\t%s\n", status_code(status), status_http(status), status_title(status));
    }
}

static enum exit_code describe(const char *table)
{
    static const struct {
        const char *name;
        void (*describe)(FILE *out);
    } tables[] = {{"keys", config_describe_keys},
                  {"keys.file", keys_describe},
                  {"metrics", metrics_describe},
                  {"problems", describe_problems}};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        if (strcmp(table, tables[i].name) == 0) {
            tables[i].describe(stdout);
            return EXIT_OK;
        }
    }
    fprintf(stderr, "attnd: --describe %s: wants keys, keys.file, metrics or problems\n", table);
    return EXIT_USAGE;
}

/* Whether it is PATH=VALUE; a blank between the two makes two words of it. */
static bool is_set(const char *text)
{
    if (strchr(text, '='))
        return true;
    fprintf(stderr, "attnd: --set %s: wants PATH=VALUE, in one word\n", text);
    return false;
}

/* One more --set; false: they are too many. */
static bool add_set(struct options *options, const char *set)
{
    if (options->set_count == SETS_MAX) {
        fprintf(stderr, "attnd: more than %d --set\n", SETS_MAX);
        return false;
    }
    options->sets[options->set_count++] = set;
    return true;
}

static const struct option known_options[] = {
    {"config", required_argument, NULL, 'c'},
    {"set", required_argument, NULL, 's'},
    {"backend", required_argument, NULL, 'b'},
    {"check-config", no_argument, NULL, 'k'},
    {"check-keys", no_argument, NULL, 'y'},
    {"print-config", no_argument, NULL, 'p'},
    {"compile-kernels", no_argument, NULL, 'K'},
    {"state-dir", required_argument, NULL, 'd'},
    {"arch", required_argument, NULL, 'a'},
    {"describe", required_argument, NULL, 'D'},
    {"replay-check", required_argument, NULL, 'r'},
    {"journal-print", required_argument, NULL, 'j'},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* The option that one which is none is near to, or NULL. */
static const char *near_option(const char *option)
{
    char name[64];
    const char *near = NULL;
    if (strncmp(option, "--", 2) != 0)
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(option + 2, "="), option + 2);
    for (const struct option *o = known_options; o->name; o++)
        near = nearest_of(name, near, o->name);
    return near;
}

/* What was meant by an option that is none, where it can be said: a key is set by --set. */
static void hint_option(const char *option)
{
    static const struct {
        const char *begin, *hint;
    } meant[] = {{"--port", "--set listen=HOST:PORT"},
                 {"--listen", "--set listen=HOST:PORT"},
                 {"--host", "--set listen=HOST:PORT"},
                 {"--bind", "--set listen=HOST:PORT"},
                 {"-c", "--config FILE"},
                 {"-p", "--set listen=HOST:PORT"},
                 {"-v", "--version"}};
    for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++) {
        size_t n = strlen(meant[i].begin);
        if (strncmp(option, meant[i].begin, n) == 0 && (option[n] == '\0' || option[n] == '=')) {
            fprintf(stderr, "attnd: did you mean %s?\n", meant[i].hint);
            return;
        }
    }
    const char *near = near_option(option);
    if (near)
        fprintf(stderr, "attnd: did you mean --%s?\n", near);
    else
        fputs("attnd: --help lists the options; a key of the configuration is given as --set PATH=VALUE\n",
              stderr);
}

/* Fill `options`; false when the command line is not understood (getopt has said why). */
static bool parse_options(int argc, char **argv, struct options *options)
{
    int c;
    bool good = true;
    *options = (struct options){.action = ACTION_SERVE};
    while (good && (c = getopt_long(argc, argv, "hV", known_options, NULL)) != -1) {
        switch (c) {
        case 'c':
            options->file = optarg;
            break;
        case 'b':
            snprintf(options->backend, sizeof options->backend, "backend.name=%s", optarg);
            good = add_set(options, options->backend);
            break;
        case 'd':
            snprintf(options->state_dir, sizeof options->state_dir, "state.dir=%s", optarg);
            good = add_set(options, options->state_dir);
            break;
        case 's':
            good = is_set(optarg) && add_set(options, optarg);
            break;
        case 'k':
            options->action = ACTION_CHECK_CONFIG;
            break;
        case 'y':
            options->action = ACTION_CHECK_KEYS;
            break;
        case 'p':
            options->action = ACTION_PRINT_CONFIG;
            break;
        case 'K':
            options->action = ACTION_COMPILE_KERNELS;
            break;
        case 'a':
            options->arch = optarg;
            break;
        case 'D':
            options->action = ACTION_DESCRIBE;
            options->describe = optarg;
            break;
        case 'r':
        case 'j':
            options->action = c == 'r' ? ACTION_REPLAY_CHECK : ACTION_JOURNAL_PRINT;
            options->journal = optarg;
            break;
        case 'V':
            options->action = ACTION_VERSION;
            break;
        case 'h':
            options->action = ACTION_HELP;
            break;
        default:
            hint_option(argv[optind - 1]);
            return false;
        }
    }
    if (!good)
        return false;
    if ((options->arch != NULL) != (options->action == ACTION_COMPILE_KERNELS)) {
        fprintf(stderr, "attnd: --compile-kernels and --arch go together\n");
        return false;
    }
    if (optind < argc) {
        fprintf(
            stderr,
            "attnd: %s: is no option; a configuration is given as --config FILE (--help lists the options)\n",
            argv[optind]);
        return false;
    }
    return true;
}

/* Cancel streamed workloads, whose clients are told how far they came; then cut what remains. */
static void on_drain_deadline(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    uint32_t streamed = d->state.overdue ? 0 : routes_streamed(&d->state);
    d->state.overdue = true;
    if (streamed) {
        log_event(LOG_WARNING, "drain_deadline", LOG_NUMBERS({"workloads", streamed}),
                  "the drain's deadline passed: %u streamed workload%s cancelled", streamed,
                  streamed == 1 ? " is" : "s are");
        d->cut = true;
        uv_timer_start(timer, on_drain_deadline, REPORTS_MS, 0);
        return;
    }
    uint32_t cut = http_connections_cut(d->connections);
    cut += d->managers ? http_connections_cut(d->managers) : 0;
    cut += registered_cut(d->registered);
    log_event(LOG_WARNING, "drain_deadline", LOG_NUMBERS({"connections", cut}),
              "the drain's deadline passed: %u connection%s cut", cut, cut == 1 ? " was" : "s were");
    d->cut |= cut > 0;
}

static void ignore_empty(void *cookie)
{
    (void)cookie;
}

/* No client is left: the managers, who watched until now, may go. */
static void end_management(void *cookie)
{
    struct daemon *d = cookie;
    http_listener_close(d->management);
    d->management = NULL;
    if (d->managers)
        http_connections_drain(d->managers, ignore_empty, d);
}

/* Take no new clients, and finish what is under way. */
static void finish_clients(struct daemon *d)
{
    d->state.draining = true;
    for (unsigned i = 0; i < CONFIG_LISTENERS_MAX; i++) {
        http_listener_close(d->listeners[i]);
        d->listeners[i] = NULL;
    }
    registered_drain(d->registered);
    http_connections_drain(d->connections, end_management, d);
    if (!d->deadline_s)
        return;
    uv_timer_start(&d->drain_deadline, on_drain_deadline, (uint64_t)d->deadline_s * 1000, 0);
    uv_unref((uv_handle_t *)&d->drain_deadline);
}

static bool is_lame_duck(const struct daemon *d)
{
    return uv_is_active((const uv_handle_t *)&d->lame_duck);
}

/* Of a daemon that says STOPPING=1 systemd thinks that it has been signalled, and `systemctl stop` sends no SIGTERM any more: so a lame
 * duck that a request asked for, which a signal is to end, does not say it. */
static void notify_end(const struct daemon *d, uint32_t lame_duck_s)
{
    uint64_t most_s = (uint64_t)lame_duck_s + d->deadline_s + STOP_SPARE_S;
    if (lame_duck_s && !d->signalled_ns)
        service_notify("STATUS=draining: clients are served for %u s more", lame_duck_s);
    else
        service_notify("STOPPING=1\nSTATUS=draining: %u s for clients, then %u s for what is under way\n"
                       "EXTEND_TIMEOUT_USEC=%llu",
                       lame_duck_s, d->deadline_s, (unsigned long long)most_s * 1000000);
}

static void on_lame_duck_end(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    notify_end(d, 0);
    finish_clients(d);
}

/* End: after `lame_duck_s`, and with `deadline_s` seconds for what is under way then (0: as long as it takes). Asked again, the deadline is
 * another one, and the lame duck ends sooner, never later. Return the seconds that it has. */
static uint32_t drain(uint32_t lame_duck_s, uint32_t deadline_s, void *cookie)
{
    struct daemon *d = cookie;
    uint64_t lame_duck_ms = (uint64_t)lame_duck_s * 1000;
    if (d->state.leaving) {
        uint64_t left_ms = is_lame_duck(d) ? uv_timer_get_due_in(&d->lame_duck) : 0;
        lame_duck_ms = left_ms < lame_duck_ms ? left_ms : lame_duck_ms;
        lame_duck_s = (uint32_t)((lame_duck_ms + 999) / 1000);
    }
    d->state.leaving = true;
    d->deadline_s = deadline_s;
    if (!d->connections) {
        d->state.draining = true;
        return 0;
    }
    notify_end(d, lame_duck_s);
    char has[32] = "as long as it takes";
    if (deadline_s)
        snprintf(has, sizeof has, "%u s", deadline_s);
    char served[64] = "";
    if (lame_duck_s)
        snprintf(served, sizeof served, "clients are served for %u s more; then ", lame_duck_s);
    log_event(LOG_INFO, "drain", LOG_NUMBERS({"lame_duck_s", lame_duck_s}, {"deadline_s", deadline_s}),
              "draining: %swhat is under way has %s", served, has);
    uv_timer_stop(&d->lame_duck);
    if (lame_duck_ms)
        uv_timer_start(&d->lame_duck, on_lame_duck_end, lame_duck_ms, 0);
    else
        finish_clients(d);
    return lame_duck_s;
}

static uint32_t lame_duck_left(void *cookie)
{
    const struct daemon *d = cookie;
    return is_lame_duck(d) ? (uint32_t)((uv_timer_get_due_in(&d->lame_duck) + 999) / 1000) : 0;
}

/* Take a lame duck back. One that a signal began goes on: whoever sent it waits for the end. */
static bool stay(void *cookie)
{
    struct daemon *d = cookie;
    if (!is_lame_duck(d) || d->signalled_ns)
        return false;
    uv_timer_stop(&d->lame_duck);
    d->state.leaving = false;
    service_notify("STATUS=serving on %s", http_listener_url(d->listeners[0]));
    return true;
}

/* The backend has failed: tell those who wait, and end. */
static void fail_clients(struct daemon *d)
{
    d->state.leaving = true;
    d->deadline_s = FAILURE_DRAIN_S;
    uv_timer_stop(&d->lame_duck);
    if (d->connections)
        finish_clients(d);
}

/* Read the keys file again, and end what belongs to keys that are no more. */
static void reload_keys(struct daemon *d)
{
    char reason[KEYS_REASON_BYTES];
    struct api_key *key;
    unsigned ended = 0;
    if (keys_reload(d->state.keys, reason) != 0) {
        log_event(LOG_ERROR, "keys_refused", NULL, "SIGHUP: the keys stay as they are: %s", reason);
        return;
    }
    for (unsigned at = 0; (key = keys_next(d->state.keys, &at));) {
        if (!key->gone && key->changed)
            log_event_of(LOG_INFO, "key_changed", &(struct log_about){.key = key->name}, NULL,
                         "the key \"%s\" is new, or has changed", key->name);
        if (!key->gone || key->ended)
            continue;
        log_event_of(LOG_WARNING, "key_ended", &(struct log_about){.key = key->name}, NULL,
                     "the key \"%s\" is no more: what belongs to it ends", key->name);
        routes_end_key(&d->state, key);
        ended++;
    }
    registered_renew(d->registered);
    struct keys_outcome latest = keys_latest(d->state.keys);
    unsigned count = keys_count(d->state.keys);
    log_event(
        LOG_INFO, "keys_read",
        LOG_NUMBERS({"keys", count}, {"added", latest.added}, {"changed", latest.changed}, {"ended", ended}),
        "SIGHUP: %u key%s: %u new, %u changed; %u %s no more", count, plural(count), latest.added,
        latest.changed, ended, ended == 1 ? "is" : "are");
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    if (number == SIGHUP && d->state.keys) {
        reload_keys(d);
        return;
    }
    if (number != SIGTERM && number != SIGINT) {
        log_line(LOG_INFO, "signal %d: there is nothing to reload", number);
        return;
    }
    if (d->starting) { /* nobody is served yet; files of the kernel cache are renamed when whole */
        log_end(LOG_INFO, EXIT_OK, "signal while starting", "signal %d while starting: stopped: exit code %d",
                number, EXIT_OK);
        end_now(EXIT_OK);
    }
    uint64_t now = uv_hrtime();
    if (d->signalled_ns && now - d->signalled_ns < SAME_SIGNAL_NS)
        return;
    bool first = !d->signalled_ns && is_lame_duck(d); /* a request has asked for the lame duck */
    if (d->state.leaving && !first) {
        log_end(LOG_WARNING, EXIT_RUNTIME, "second signal", "second %s: ending at once%s: exit code %d",
                number == SIGTERM ? "SIGTERM" : "SIGINT", d->state.outlasting ? ", and saving nothing" : "",
                EXIT_RUNTIME);
        end_now(EXIT_RUNTIME);
    }
    d->signalled_ns = now;
    log_event(LOG_INFO, "signal", LOG_NUMBERS({"signal", number}), "%s: draining",
              number == SIGTERM ? "SIGTERM" : "SIGINT");
    drain(d->state.config->drain_lame_duck_s, d->state.config->drain_deadline_s, d);
}

static void watch_signals(struct daemon *d)
{
    static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a snapshot that may not be that large is one for which there is no room */
    for (int i = 0; i < SIGNALS; i++) {
        uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        uv_signal_start(&d->signals[i], on_signal, numbers[i]);
        uv_unref((uv_handle_t *)&d->signals[i]);
    }
}

/* Close what still lives on the loop, and the loop. */
static void close_loop(struct daemon *d)
{
    for (int i = 0; i < SIGNALS; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    uv_close((uv_handle_t *)&d->completed, NULL);
    uv_close((uv_handle_t *)&d->watchdog, NULL);
    uv_close((uv_handle_t *)&d->lame_duck, NULL);
    uv_close((uv_handle_t *)&d->drain_deadline, NULL);
    uv_close((uv_handle_t *)&d->watch, NULL);
    uv_close((uv_handle_t *)&d->trimmer, NULL);
    uv_close((uv_handle_t *)&d->turn, NULL);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&d->loop);
    assert(rc == 0);
    (void)rc;
}

/* Start thread. */
static void log_progress(uint64_t bytes_done, uint64_t bytes, void *cookie)
{
    struct daemon *d = cookie;
    uint64_t now = uv_hrtime();
    bool due = now - d->progress_ns >= 1000000000; /* a line a second is enough */
    if (due)
        service_notify("STATUS=touching the pool: %llu of %llu MiB\nEXTEND_TIMEOUT_USEC=60000000",
                       (unsigned long long)(bytes_done >> 20), (unsigned long long)(bytes >> 20));
    d->progress_ns = due ? now : d->progress_ns;
    log_line(due ? LOG_INFO : LOG_DEBUG, "touching the pool: %llu of %llu MiB",
             (unsigned long long)(bytes_done >> 20), (unsigned long long)(bytes >> 20));
}

/* Engine thread. */
static void notify(void *cookie)
{
    struct daemon *d = cookie;
    uv_async_send(&d->completed);
}

static void on_completed(uv_async_t *handle)
{
    struct daemon *d = handle->data;
    if (!d->state.engine) /* at the end the loop outlives it */
        return;
    routes_deliver(&d->state);
    registered_look(d->registered);
    if (engine_failure(d->state.engine) && !d->failed) {
        d->failed = true;
        log_line(LOG_ERROR, "ending within %d s with exit code %d", FAILURE_DRAIN_S, EXIT_RUNTIME);
        fail_clients(d);
    }
}

/* When the engine stays in one call of the driver, answer in its place and end. Looks are counted, not
 * seconds, so that a daemon that was stopped for a while is not taken for one that hangs. */
static void on_watch(uv_timer_t *timer)
{
    static const char why[] = "the device hangs: its driver does not return";
    struct daemon *d = timer->data;
    uint64_t call = engine_device_call(d->engine);
    d->watches = call && call == d->watched ? d->watches + 1 : 0;
    d->watched = call;
    if (d->watches <= WATCHES || d->state.given_up)
        return;
    log_event(LOG_ERROR, "backend_failed", NULL, "the backend has failed: %s", why);
    engine_give_up(d->engine, why);
    routes_give_up(&d->state, why);
    registered_give_up(d->registered, why);
    on_completed(&d->completed);
}

/* Loop thread's processor time, in seconds. */
static double processor_s(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_turn(uv_prepare_t *handle)
{
    struct daemon *d = handle->data;
    double now = processor_s(), took = now - d->turned_s;
    d->turned_s = now;
    loop_turns_add(&d->state.turns, clock_s(), took);
    for (int i = 0; i < ROUTES_TURNS; i++) {
        double kept = d->state.longest_turns_s[i];
        if (took <= kept)
            continue;
        d->state.longest_turns_s[i] = took;
        took = kept;
    }
}

/* From now on: what the start took is nobody's turn. */
static void watch_turns(struct daemon *d)
{
    d->turned_s = processor_s();
    uv_prepare_start(&d->turn, on_turn);
    uv_unref((uv_handle_t *)&d->turn);
}

/* Tell the service manager that the daemon is alive: as long as the engine is. A loop that hangs tells nothing. */
static void on_watchdog(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    if (d->state.engine && engine_stall_s(d->state.engine) < (double)service_watchdog_us() * 1e-6)
        service_notify("WATCHDOG=1");
}

static void tell_service(struct daemon *d)
{
    uint64_t period_ms = service_watchdog_us() / 3000;
    service_notify("READY=1\nSTATUS=serving on %s", http_listener_url(d->listeners[0]));
    if (!period_ms)
        return;
    uv_timer_start(&d->watchdog, on_watchdog, period_ms, period_ms);
    uv_unref((uv_handle_t *)&d->watchdog);
}

static void watch_driver(struct daemon *d)
{
    uint64_t period_ms = (uint64_t)d->state.config->step_timeout_s * 1000 / WATCHES;
    uv_timer_start(&d->watch, on_watch, period_ms, period_ms);
    uv_unref((uv_handle_t *)&d->watch);
}

static void on_alarm(int number)
{
    (void)number;
    _exit(EXIT_RUNTIME);
}

/* End the engine. Its driver is not watched any more: what is left, exit() included, has a bound
 * instead, where there is a driver. */
static void end_engine(struct daemon *d)
{
    if (d->state.given_up) /* its thread never ends */
        end_now(EXIT_RUNTIME);
    uv_timer_stop(&d->watch);
    uv_timer_stop(&d->watchdog);
    if (d->state.engine && engine_backend(d->state.engine)->on_device) {
        signal(SIGALRM, on_alarm);
        alarm(END_TIMEOUTS * d->state.config->step_timeout_s);
    }
    assert(!d->trimming && !uv_is_active((uv_handle_t *)&d->trimmer));
    engine_destroy(d->state.engine); /* before the loop that it notifies */
    d->state.engine = NULL;
    journal_destroy(d->journal);
    kv_publisher_close(d->publisher);
}

static void log_backend(const struct engine *engine)
{
    const struct attention_info *backend = engine_backend(engine);
    log_line(LOG_INFO,
             "backend %s (%s) on %s, %u thread%s, reads the pool at %.1f GB/s; "
             "grouping rows costs %.1f us a layer",
             backend->name, backend->isa, backend->device, backend->threads, plural(backend->threads),
             engine_roof(engine).gb_per_s, engine_grouping_us(engine));
}

/* Start thread: take the pool's memory, open the backend, start the engine. */
static void create_engine(void *cookie)
{
    struct daemon *d = cookie;
    char error[ATTENTION_ERROR_BYTES];
    const struct swap_io swap = d->swap ? swap_file_io(d->swap) : (struct swap_io){0};
    const struct engine_options options = {.config = d->state.config,
                                           .spare_requests = ROUTES_SPARE_REQUESTS,
                                           .rings = d->state.config->transport.address[0],
                                           .swap = d->swap ? &swap : NULL,
                                           .budget = &d->state.memory,
                                           .journal = d->journal,
                                           .kv_events = kv_publisher_events(d->publisher),
                                           .notify = notify,
                                           .progress = log_progress,
                                           .cookie = d};
    int rc = engine_create(&options, &d->engine, error);
    if (rc == 0 && engine_start(d->engine) != 0) {
        snprintf(error, sizeof error, "no memory for the engine's thread");
        engine_destroy(d->engine);
        d->engine = NULL;
        rc = ATTND_NO_MEMORY;
    }
    if (rc == 0)
        log_backend(d->engine);
    else
        log_fault("%s", error);
    d->start_code = rc == 0 ? EXIT_OK : rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
    uv_async_send(&d->start_done);
}

static void on_start_done(uv_async_t *handle)
{
    uv_close((uv_handle_t *)handle, NULL);
}

/* Open the journal, in which the engine's first record is what it measures when it is created. */
static enum exit_code open_journal(struct daemon *d)
{
    const struct journal_options options = {.config = d->state.config};
    char reason[JOURNAL_REASON_BYTES];
    if (!d->state.config->journal_path[0])
        return EXIT_OK;
    int rc = journal_create(&options, &d->journal, reason);
    if (rc == 0)
        return EXIT_OK;
    log_fault("journal.path: %s", reason);
    return rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
}

/* Bind what events are published on. */
static enum exit_code open_publisher(struct daemon *d)
{
    char reason[KV_PUBLISHER_REASON_BYTES];
    if (!d->state.config->events.endpoint[0])
        return EXIT_OK;
    int rc = kv_publisher_open(d->state.config, &d->publisher, reason);
    if (rc == 0)
        return EXIT_OK;
    log_fault("%s", reason);
    return rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
}

/* Create the engine on a thread of its own: touching a pool takes half a second a GiB, compiling
 * kernels some seconds. The loop runs meanwhile, for on_signal(). */
static enum exit_code start_engine(struct daemon *d)
{
    uv_thread_t thread;
    uv_async_init(&d->loop, &d->start_done, on_start_done);
    d->starting = true;
    if (uv_thread_create(&thread, create_engine, d) != 0) {
        log_fault("no memory for the start thread");
        uv_close((uv_handle_t *)&d->start_done, NULL);
        return EXIT_UNAVAILABLE;
    }
    uv_run(&d->loop, UV_RUN_DEFAULT); /* until start_done is closed */
    uv_thread_join(&thread);
    d->starting = false;
    d->state.engine = d->engine;
    notify(d); /* until now on_completed() had no engine to ask */
    return d->start_code;
}

/* What connections may take apart from memory.bytes. */
static uint64_t connection_bytes(const struct config *config)
{
    return (uint64_t)(config->limits.connections + MANAGERS) * HTTP_CONNECTION_BYTES;
}

/* What the log of changes comes to take as blocks change. */
static uint64_t history_bytes(const struct config *config)
{
    return block_log_bytes(config->pool_blocks, config->limits.sequences, config->history_epochs);
}

/* What is left for clients of what is available after the start; or memory.bytes. 0, with a sentence on stderr: it is
 * too little to serve anybody. */
static uint64_t budget_of(const struct config *config, uint64_t available)
{
    uint64_t connections = connection_bytes(config), history = history_bytes(config),
             fixed = connections + history, left = available > fixed ? available - fixed : 0;
    if (!available)
        return config->memory_bytes ? config->memory_bytes : BUDGET_UNKNOWN;
    if (config->memory_bytes > left) {
        log_fault("memory.bytes: %llu MiB are wanted; %llu MiB are available after the start, of which "
                  "limits.connections (%u) may take %llu MiB, and the history of %llu blocks %llu MiB",
                  (unsigned long long)(config->memory_bytes >> 20), (unsigned long long)(available >> 20),
                  config->limits.connections, (unsigned long long)(connections >> 20),
                  (unsigned long long)config->pool_blocks, (unsigned long long)(history >> 20));
        return 0;
    }
    if (left >= CONFIG_MEMORY_LEAST)
        return config->memory_bytes ? config->memory_bytes : left;
    fprintf(
        stderr,
        "attnd: memory.bytes: %llu MiB are available after the start, of which limits.connections (%u) "
        "may take %llu MiB, and the history of %llu blocks %llu MiB; %llu MiB are left, and at least %d are "
        "wanted\n",
        (unsigned long long)(available >> 20), config->limits.connections,
        (unsigned long long)(connections >> 20), (unsigned long long)config->pool_blocks,
        (unsigned long long)(history >> 20), (unsigned long long)(left >> 20), CONFIG_MEMORY_LEAST >> 20);
    return 0;
}

static bool set_budget(struct daemon *d)
{
    d->state.memory.limit = budget_of(d->state.config, host_memory_available());
    if (d->state.memory.limit)
        log_line(LOG_INFO, "memory.bytes: %llu MiB for what clients have under way",
                 (unsigned long long)(d->state.memory.limit >> 20));
    return d->state.memory.limit > 0;
}

/* ---- what outlives the daemon ----------------------------------------------------------------------- */

static enum exit_code refuse_state(int rc, const char *reason)
{
    log_fault("%s", reason);
    return rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
}

/* Take the folder, and its room for blocks that are swapped. */
static enum exit_code open_state(struct daemon *d)
{
    const struct config *config = d->state.config;
    uint64_t swap_bytes = config->file_blocks * geometry_block_bytes(&config->geometry);
    char reason[STATE_REASON_BYTES];
    int fd, rc;
    if (!config->state_dir[0])
        return EXIT_OK;
    rc = state_open(config->state_dir, &d->state.outlasting, reason);
    if (rc != 0 || !swap_bytes)
        return rc == 0 ? EXIT_OK : refuse_state(rc, reason);
    rc = state_swap_file(d->state.outlasting, swap_bytes, &fd, reason);
    if (rc == 0) {
        snprintf(reason, sizeof reason, "no memory for pool.file_blocks");
        rc = swap_file_create(fd, (uint32_t)config->host_blocks, &d->swap);
    }
    return rc == 0 ? EXIT_OK : refuse_state(rc, reason);
}

#define SMALL_DISK                                                                                           \
    "state.dir: its disk has %llu MiB left, and the pool is %llu MiB: a full one cannot be saved"

/* Restore what a daemon before has saved. */
static enum exit_code restore(struct daemon *d)
{
    const struct config *config = d->state.config;
    char reason[STATE_REASON_BYTES];
    if (!d->state.outlasting)
        return EXIT_OK;
    int rc = state_ids_begin(d->state.outlasting, &d->state, reason);
    if (rc != 0)
        return refuse_state(rc, reason);
    d->write_rate = state_write_rate(d->state.outlasting);
    log_line(LOG_INFO, "state.dir: %.0f MB/s; saving the whole pool takes %.0f s at most",
             d->write_rate * 1e-6, state_save_seconds(config, d->write_rate, config->pool_bytes));
    if (!state_restore(d->state.outlasting, &d->state))
        return EXIT_LEFT;
    uint64_t room = state_room(d->state.outlasting);
    if (room < config->pool_bytes)
        log_event(LOG_WARNING, "state_room",
                  LOG_NUMBERS({"bytes", (double)room}, {"pool_bytes", (double)config->pool_bytes}),
                  SMALL_DISK, (unsigned long long)(room >> 20),
                  (unsigned long long)(config->pool_bytes >> 20));
    return EXIT_OK;
}

/* Save what is there. False: not all of it. */
static bool save(struct daemon *d)
{
    if (!d->state.outlasting || engine_failure(d->state.engine))
        return true;
    return state_save(d->state.outlasting, &d->state, d->write_rate);
}

/* ---- memory that is used no more ------------------------------------------------------------------- */

static void trim(uv_work_t *work)
{
    struct daemon *d = work->data;
    staging_trim(engine_staging(d->engine));
}

static void after_trim(uv_work_t *work, int status)
{
    struct daemon *d = work->data;
    (void)status;
    d->trimming = false;
}

/* Staging memory in which nothing has been for a while goes back to the system. */
static void on_trim(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    struct staging *staging = engine_staging(d->engine);
    if (d->state.outlasting)
        state_ids_look(d->state.outlasting, &d->state);
    engine_trim_requests(d->engine);
    registered_tick(d->registered);
    bool idle = staging_used(staging) == 0 && staging_is_touched(staging);
    d->idle_trims = idle ? d->idle_trims + 1 : 0;
    if (d->idle_trims < IDLE_TRIMS || d->trimming)
        return;
    d->trim.data = d;
    d->trimming = uv_queue_work(&d->loop, &d->trim, trim, after_trim) == 0;
}

/* ---- clients --------------------------------------------------------------------------------------- */

/* A connection is an open file: have room for all, or say that there is none. */
static void raise_file_limit(const struct config *config)
{
    struct rlimit limit;
    uint32_t connections = config->limits.connections;
    rlim_t rings = config->transport.address[0] ? (rlim_t)config->transport_clients * RING_FILES : 0,
           wanted = (rlim_t)connections + rings + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        log_line(LOG_WARNING,
                 "limits.connections (%u) want %llu open files, and %llu are allowed (ulimit -n): clients "
                 "beyond that are not "
                 "answered",
                 connections, (unsigned long long)wanted, (unsigned long long)limit.rlim_cur);
}

/* One way in. */
static enum exit_code open_listener(struct daemon *d, const struct listen_options *options, const char *text,
                                    const char *key, struct http_connections *connections,
                                    struct http_listener **listener)
{
    int rc = http_listen(&d->loop, options, http_connections_accept, connections, listener);
    if (rc == 0)
        return EXIT_OK;
    log_fault("cannot listen on %s: %s (set %s=...)", text, uv_strerror(rc), key);
    return EXIT_UNAVAILABLE;
}

/* The options of a listener; false with a sentence on stderr when they make no sense. */
static bool make_options(const struct daemon *d, const struct config_listener *from, const char *key,
                         struct listen_options *o)
{
    const struct config *config = d->state.config;
    char reason[ADDRESS_REASON_BYTES];
    *o = (struct listen_options){.proxy_protocol = from->proxy_protocol,
                                 .trusted = &d->trusted,
                                 .node = config->node,
                                 .anonymous = from->anonymous,
                                 .mode = from->mode};
    memcpy(o->group, from->group, sizeof o->group);
    const char *wrong = reason;
    if (listen_address_parse(from->address, d->fds, &o->address, reason) == 0)
        wrong = !o->address.is_local && !config->keys_file[0]
                    ? "without keys.file only loopback addresses and unix sockets are listened on"
                : !o->address.is_unix && (o->mode || o->group[0])    ? "mode and group are for unix sockets"
                : o->group[0] && !listen_address_has_group(o->group) ? "there is no such group"
                : from->anonymous && !config->keys_file[0]
                    ? "anonymous is for daemons with a keys.file: without one nobody needs a key"
                : from->proxy_protocol && !o->address.is_unix && d->trusted.count == 0
                    ? "proxy_protocol wants trusted_proxies: whose headers are believed"
                    : NULL;
    o->local = !config->keys_file[0] && !o->address.is_unix;
    if (wrong)
        log_fault("%s: %s: %s", key, from->address, wrong);
    return !wrong;
}

/* Say that nobody can do anything, where nobody can. */
static void warn_of_no_keys(const struct daemon *d)
{
    const struct config *config = d->state.config;
    unsigned anonymous = config->transport.anonymous;
    for (unsigned i = 0; i < config->listener_count; i++)
        anonymous |= config->listeners[i].anonymous;
    if (d->state.keys && keys_count(d->state.keys) == 0 && !anonymous)
        log_line(LOG_WARNING,
                 "keys.file: %s: has no keys: nobody can do anything until it has one (attnctl key new makes "
                 "one; SIGHUP reads the file again)",
                 config->keys_file);
}

/* Read keys.file, if there is one; false with a sentence on stderr when it is refused. */
static bool load_keys(struct daemon *d)
{
    const char *path = d->state.config->keys_file;
    char reason[KEYS_REASON_BYTES];
    if (!path[0] || keys_load(path, &d->state.keys, reason) == 0)
        return true;
    log_fault("keys.file: %s", reason);
    return false;
}

/* What is said about clients, listeners and keys; EXIT_CONFIGURATION when it makes no sense. */
static enum exit_code read_access(struct daemon *d, struct listen_options *options,
                                  struct listen_options *management, struct listen_options *transport)
{
    const struct config *config = d->state.config;
    char reason[KEYS_REASON_BYTES];
    struct config_listener manager = {.mode = 0600};
    if (address_ranges_parse(config->trusted_proxies, &d->trusted, reason) != 0) {
        log_fault("trusted_proxies: %s", reason);
        return EXIT_CONFIGURATION;
    }
    if (!load_keys(d))
        return EXIT_CONFIGURATION;
    for (unsigned i = 0; i < config->listener_count; i++) {
        if (!make_options(d, &config->listeners[i], "listen", &options[i]))
            return EXIT_CONFIGURATION;
    }
    if (config->transport.address[0] && !make_options(d, &config->transport, "transport.listen", transport))
        return EXIT_CONFIGURATION;
    if (config->transport.address[0] && (!transport->address.is_unix || transport->proxy_protocol)) {
        log_fault("transport.listen: %s: wants unix:PATH or fd:N, without proxy_protocol",
                  config->transport.address);
        return EXIT_CONFIGURATION;
    }
    if (!config->management[0])
        return EXIT_OK;
    memcpy(manager.address, config->management, sizeof manager.address);
    if (strncmp(manager.address, "unix:", 5) != 0)
        manager.mode = 0; /* others have none, or were handed over with theirs */
    if (!make_options(d, &manager, "management.listen", management))
        return EXIT_CONFIGURATION;
    management->management = true;
    return EXIT_OK;
}

/* Whether the folder of a socket takes one, and whether an address is free: that is looked at before the pool is touched, which takes
 * long. The check lets folders in /run be missing, since the service manager makes them at the start, and addresses be those of a daemon
 * that runs. */
static enum exit_code check_address(const struct listen_address *address, bool checks, const char *text,
                                    const char *key)
{
    int error = listen_address_folder(address);
    if (error == 0 && !checks)
        error = listen_address_try(address);
    if (error == 0 || (checks && error == ENOENT && listen_address_may_come(address)))
        return EXIT_OK;
    log_fault("cannot listen on %s: %s (set %s=...)", text, uv_strerror(uv_translate_sys_error(error)), key);
    return EXIT_UNAVAILABLE;
}

/* Whether each listener can have its address beside those before it. */
static enum exit_code check_listeners(const struct config *config, bool checks,
                                      const struct listen_options *options,
                                      const struct listen_options *management,
                                      const struct listen_options *transport)
{
    const struct {
        const char *key, *text;
        const struct listen_address *address;
    } others[] = {{"transport.listen", config->transport.address, &transport->address},
                  {"management.listen", config->management, &management->address}};
    const struct listen_address *taken[CONFIG_LISTENERS_MAX + 2];
    const char *by[CONFIG_LISTENERS_MAX + 2];
    unsigned count = config->listener_count;
    for (unsigned i = 0, n = 0; i < count + 2; i++) {
        const char *key = i < count ? "listen" : others[i - count].key,
                   *text = i < count ? config->listeners[i].address : others[i - count].text;
        if (!text[0])
            continue;
        taken[n] = i < count ? &options[i].address : others[i - count].address;
        by[n] = key;
        for (unsigned j = 0; j < n; j++) {
            if (listen_address_is_same(taken[j], taken[n])) {
                log_fault("%s: %s: %s has this address already", key, text, by[j]);
                return EXIT_CONFIGURATION;
            }
        }
        enum exit_code code = check_address(taken[n++], checks, text, key);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

/* Whether a file of the journal can be made and written; it is removed again. Beside a daemon that runs, too. */
static bool probe_journal(const char *folder)
{
    static const char zeros[PROBE_BYTES];
    char path[JOURNAL_FOLDER_BYTES + 32];
    snprintf(path, sizeof path, "%s/probe.%lld", folder, (long long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        return true; /* of a process that was killed: the journal's own file says more */
    ssize_t wrote = fd >= 0 ? write(fd, zeros, sizeof zeros) : -1;
    int error = wrote < 0 ? errno : ENOSPC;
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    if (wrote == (ssize_t)sizeof zeros)
        return true;
    log_fault("journal.path: %s: no file can be written there: %s", folder, journal_files_why(error));
    return false;
}

/* Refuse what can be known to be wrong before anything is taken: the start and --check-config both do. Binds nothing, and
 * leaves no file. */
static enum exit_code check_start(struct daemon *d, bool checks, struct listen_options *options,
                                  struct listen_options *management, struct listen_options *transport)
{
    const struct config *config = d->state.config;
    char reason[JOURNAL_REASON_BYTES];
    static_assert((int)JOURNAL_REASON_BYTES >= (int)KV_PUBLISHER_REASON_BYTES,
                  "kv_publisher_check() writes so much");
    int handed = (int)service_sockets();
    d->fds = checks && !handed ? LISTEN_FDS_UNKNOWN : SERVICE_SOCKETS_FIRST + handed;
    enum exit_code code = read_access(d, options, management, transport);
    if (code != EXIT_OK)
        return code;
    code = check_listeners(config, checks, options, management, transport);
    if (code != EXIT_OK)
        return code;
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like others */
    if (config->journal_path[0] && journal_files_check(config->journal_path, reason) != 0) {
        log_fault("journal.path: %s", reason);
        return EXIT_CONFIGURATION;
    }
    if (config->journal_path[0] && !probe_journal(config->journal_path))
        return EXIT_CONFIGURATION;
    warn_of_no_keys(d);
    int rc = config->events.endpoint[0] ? kv_publisher_check(config, reason) : 0;
    if (rc == 0)
        return EXIT_OK;
    log_fault("%s", reason);
    return rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
}

/* Take memory for connections and listen. */
static enum exit_code open_server(struct daemon *d, const struct listen_options *options,
                                  const struct listen_options *management,
                                  const struct listen_options *transport)
{
    const struct config *config = d->state.config;
    const struct http_service service = {routes_begun,      routes_handle,  routes_finish,  routes_answered,
                                         routes_unanswered, routes_proceed, routes_abandon, &d->state};
    struct config_limits limits = config->limits, few = config->limits;
    few.connections = MANAGERS;
    few.unknown_connections = 0;
    if (!d->state.keys)
        limits.unknown_connections = 0; /* nobody can be known */
    if (http_connections_create(&d->loop, &limits, &d->state.memory, &service, &d->connections) != 0 ||
        (management->management &&
         http_connections_create(&d->loop, &few, &d->state.memory, &service, &d->managers) != 0)) {
        log_fault("no memory for limits.connections");
        return EXIT_UNAVAILABLE;
    }
    d->state.connections = d->connections;
    d->state.managers = d->managers;
    enum exit_code code = EXIT_OK;
    for (unsigned i = 0; code == EXIT_OK && i < config->listener_count; i++)
        code = open_listener(d, &options[i], config->listeners[i].address, "listen", d->connections,
                             &d->listeners[i]);
    if (code == EXIT_OK && management->management)
        code = open_listener(d, management, config->management, "management.listen", d->managers,
                             &d->management);
    int rc = code == EXIT_OK && config->transport.address[0]
                 ? registered_listen(&d->state, transport, &d->registered)
                 : 0;
    if (rc != 0) {
        log_fault("cannot listen on %s: %s (set transport.listen=...)", config->transport.address,
                  strerror(rc));
        code = EXIT_UNAVAILABLE;
    }
    if (code != EXIT_OK)
        finish_clients(d); /* what has been opened */
    return code;
}

static void log_listeners(const struct daemon *d)
{
    for (unsigned i = 0; i < d->state.config->listener_count; i++)
        log_event(LOG_INFO, "listening", NULL, "attnd %s (%s) listening on %s%s", ATTND_VERSION, ATTND_COMMIT,
                  http_listener_url(d->listeners[i]),
                  d->state.config->listeners[i].proxy_protocol ? ", for a proxy (proxy_protocol)" : "");
    if (d->management)
        log_event(LOG_INFO, "listening", NULL, "management on %s", http_listener_url(d->management));
    if (d->registered)
        log_event(LOG_INFO, "listening", NULL, "registered memory on %s", d->state.config->transport.address);
    kv_publisher_log(d->publisher);
    if (d->state.keys)
        log_event(LOG_INFO, "keys_read", LOG_NUMBERS({"keys", keys_count(d->state.keys)}), "%u %s",
                  keys_count(d->state.keys), keys_count(d->state.keys) == 1 ? "key" : "keys");
}

/* Why the daemon ends, for the log, and *code, its exit code. */
static const char *why_ended(const struct daemon *d, bool saved, enum exit_code *code)
{
    const char *failure = engine_failure(d->state.engine) ? "the backend has failed"
                          : d->cut                        ? "the drain's deadline cut what was under way"
                          : !saved                        ? "not all sequences were saved"
                                                          : NULL;
    *code = failure ? EXIT_RUNTIME : EXIT_OK;
    return failure ? failure : "asked to end";
}

static enum exit_code serve(const struct config *config, const char *file)
{
    struct listen_options options[CONFIG_LISTENERS_MAX], management = {0}, transport = {0};
    struct daemon d = {.state = {.config = config,
                                 .started_ns = uv_hrtime(),
                                 .started_s = (double)time(NULL),
                                 .drain = drain,
                                 .stay = stay,
                                 .lame_duck_left = lame_duck_left},
                       .progress_ns = uv_hrtime()};
    d.state.cookie = &d;
    d.state.loop = &d.loop;
    if (getrandom(&d.state.instance, sizeof d.state.instance, GRND_NONBLOCK) < 0)
        d.state.instance = uv_hrtime();
    enum exit_code code = check_start(&d, false, options, &management, &transport);
    if (code != EXIT_OK) {
        keys_destroy(d.state.keys);
        return code;
    }
    log_start();
    log_event(LOG_INFO, "starting", LOG_NUMBERS({"pid", getpid()}, {"node", config->node}),
              "attnd %s (%s) starts: node n%u, pid %d, %s%s", ATTND_VERSION, ATTND_COMMIT, config->node,
              getpid(), file ? "configuration " : "no configuration file", file ? file : "");
    raise_file_limit(config);
    uv_loop_init(&d.loop);
    watch_signals(&d);
    uv_async_init(&d.loop, &d.completed, on_completed);
    d.completed.data = &d;
    uv_unref((uv_handle_t *)&d.completed);
    uv_timer_init(&d.loop, &d.watchdog);
    d.watchdog.data = &d;
    uv_timer_init(&d.loop, &d.lame_duck);
    d.lame_duck.data = &d;
    uv_timer_init(&d.loop, &d.drain_deadline);
    d.drain_deadline.data = &d;
    uv_timer_init(&d.loop, &d.watch);
    d.watch.data = &d;
    uv_timer_init(&d.loop, &d.trimmer);
    d.trimmer.data = &d;
    uv_unref((uv_handle_t *)&d.trimmer);
    uv_prepare_init(&d.loop, &d.turn);
    d.turn.data = &d;
    code = open_state(&d);
    if (code == EXIT_OK)
        code = open_journal(&d);
    if (code == EXIT_OK)
        code = open_publisher(&d);
    if (code == EXIT_OK)
        code = start_engine(&d);
    json_arena_install();
    if (code == EXIT_OK && routes_create(&d.state) != 0) {
        log_fault("no memory for limits.calls answers");
        code = EXIT_UNAVAILABLE;
    }
    if (code == EXIT_OK && !set_budget(&d))
        code = EXIT_UNAVAILABLE;
    d.state.completed = &d.completed;
    if (code == EXIT_OK)
        code = restore(&d);
    const char *why = NULL; /* it has served, and ends */
    bool restored = code == EXIT_OK;
    if (restored)
        code = open_server(&d, options, &management, &transport);
    if (restored && code != EXIT_OK)
        (void)save(&d); /* again: the snapshot is used up */
    if (code == EXIT_OK) {
        log_listeners(&d);
        watch_driver(&d);
        watch_turns(&d);
        uv_timer_start(&d.trimmer, on_trim, TRIM_MS, TRIM_MS);
        tell_service(&d);
        uv_run(&d.loop, UV_RUN_DEFAULT);
        uv_timer_stop(&d.trimmer); /* no worker looks at the engine while it ends */
        bool saved = d.state.given_up || save(&d);
        why = why_ended(&d, saved, &code);
    }
    if (code == EXIT_LEFT)
        code = EXIT_OK;
    registered_destroy(d.registered);
    end_engine(&d);
    swap_file_destroy(d.swap);
    state_close(d.state.outlasting);
    d.state.outlasting = NULL;
    http_connections_destroy(d.connections);
    http_connections_destroy(d.managers);
    routes_destroy(&d.state);
    keys_destroy(d.state.keys);
    close_loop(&d);
    json_arena_remove();
    if (why)
        log_end(code == EXIT_OK ? LOG_INFO : LOG_WARNING, code, why,
                "stopped: exit code %d, %s; the longest turns of the loop took %.3f, %.3f and %.3f ms", code,
                why, d.state.longest_turns_s[0] * 1e3, d.state.longest_turns_s[1] * 1e3,
                d.state.longest_turns_s[2] * 1e3);
    log_stop(LOG_PATIENCE_MS);
    return code;
}

static enum exit_code compile_kernels(const struct config *config, const char *arch)
{
    char error[ATTENTION_ERROR_BYTES];
    printf("kernels for %s, head_dim %u, %u/%u heads, block_size %u, %s, kv %s, %s:\n", arch,
           config->geometry.head_dim, config->geometry.query_heads, config->geometry.kv_heads,
           config->geometry.block_size, dtype_name(config->geometry.dtype),
           dtype_name(config->geometry.kv_dtype), layout_names[config->geometry.layout]);
    fflush(stdout); /* before what is wrong, which is not buffered */
    int rc = attention_compile_kernels(&config->geometry, arch, config->cache, stdout, error);
    if (rc == 0)
        return EXIT_OK;
    log_fault("%s", error);
    return rc == ATTND_INVALID ? EXIT_USAGE : rc == ATTND_NOT_FOUND ? EXIT_UNAVAILABLE : EXIT_RUNTIME;
}

/* A pool that is a share of what is free; in the memory of the host, with the history of its blocks. */
static void size_pool(struct config *config)
{
    uint64_t available, block = geometry_block_bytes(&config->geometry);
    if (config->pool_memory == 0)
        return;
    bool on_device = attention_is_on_device(config->backend, config->device);
    available = attention_memory_available(config->backend, config->device);
    config->pool_blocks = 0;
    uint64_t share = (uint64_t)((double)available * (double)config->pool_memory),
             fixed = on_device ? 0 : history_bytes(config);
    config->pool_blocks = 1;
    uint64_t each = block + (on_device ? 0 : history_bytes(config) - fixed),
             blocks = share > fixed ? (share - fixed) / each : 0;
    blocks = blocks > POOL_BLOCKS_MAX ? POOL_BLOCKS_MAX : blocks;
    config->pool_blocks = blocks ? blocks : 1;
    config->pool_bytes = config->pool_blocks * block;
    log_line(LOG_INFO, "pool.memory: %.0f %% of %llu MiB are %llu blocks%s",
             (double)config->pool_memory * 100, (unsigned long long)(available >> 20),
             (unsigned long long)config->pool_blocks, on_device ? "" : " with their history");
}

/* Whether the snapshot would be used, and how long saving what the pool can hold may take. */
static enum exit_code check_state(const struct config *config)
{
    char reason[STATE_REASON_BYTES];
    struct state *state;
    if (!config->state_dir[0])
        return EXIT_OK;
    int rc = state_open(config->state_dir, &state, reason);
    if (rc == ATTND_BUSY) { /* the daemon that runs: it knows */
        printf("%s\n", reason);
        return EXIT_OK;
    }
    if (rc != 0)
        return refuse_state(rc, reason);
    rc = state_has_room(state, config->file_blocks * geometry_block_bytes(&config->geometry), reason);
    if (rc == 0)
        rc = state_ids_check(state, reason);
    if (rc != 0) {
        state_close(state);
        return refuse_state(rc, reason);
    }
    if (state_snapshot_check(state, config, reason) != 0)
        printf("warning: not restored: %s\n", reason);
    double rate = state_write_rate(state);
    printf("saving the pool          %.0f MB/s into state.dir: %.0f s at most (drain.save_deadline_s)\n",
           rate * 1e-6, state_save_seconds(config, rate, config->pool_bytes));
    uint64_t room = state_room(state);
    if (room < config->pool_bytes)
        printf("warning: " SMALL_DISK "\n", (unsigned long long)(room >> 20),
               (unsigned long long)(config->pool_bytes >> 20));
    state_close(state);
    return EXIT_OK;
}

/* All the memory that the daemon may come to take, and whether that is there. */
static enum exit_code check_memory(const struct config *config)
{
    uint64_t here = host_memory_available(),
             there = attention_memory_available(config->backend, config->device),
             connections = connection_bytes(config),
             host = config->host_blocks * geometry_block_bytes(&config->geometry),
             history = history_bytes(config), events = kv_publisher_bytes(config);
    bool on_device = attention_is_on_device(config->backend, config->device);
    uint64_t staging = on_device ? config->limits.staging_bytes : 0; /* else a part of memory.bytes */
    uint64_t fixed = (on_device ? 0 : config->pool_bytes) + host + staging + connections + history + events +
                     START_BYTES,
             clients = config->memory_bytes ? config->memory_bytes
                       : here > fixed       ? here - fixed
                                            : 0;
    config_print_memory(config, stdout);
    if (on_device)
        config_print_bytes(stdout, "  available on the GPU", there);
    config_print_bytes(stdout, "host blocks", host);
    if (config->file_blocks)
        config_print_bytes(stdout, "file blocks, in state.dir",
                           config->file_blocks * geometry_block_bytes(&config->geometry));
    if (on_device)
        config_print_bytes(stdout, "staging, pinned", staging);
    printf("connections              %u x %d KiB\n", config->limits.connections, HTTP_CONNECTION_BYTES >> 10);
    config_print_bytes(stdout, "  together", connections);
    config_print_bytes(stdout, "history of blocks", history);
    if (events)
        config_print_bytes(stdout, "kv events", events);
    config_print_bytes(stdout, "the daemon, about", START_BYTES);
    config_print_bytes(stdout, "in all, without clients", fixed);
    config_print_bytes(stdout, config->memory_bytes ? "clients (memory.bytes)" : "clients (what is left)",
                       clients);
    config_print_bytes(stdout, "in all, at most", fixed + clients);
    if (here)
        config_print_bytes(stdout, "available now", here);
    uint64_t taken = fixed - connections - history, left = here > taken ? here - taken : 1;
    bool fits = !here || taken < here;
    if (fits && on_device && config->pool_bytes > there) {
        log_fault("this does not fit: %llu MiB are wanted on the GPU, and %llu MiB are available",
                  (unsigned long long)(config->pool_bytes >> 20), (unsigned long long)(there >> 20));
        return EXIT_UNAVAILABLE;
    }
    if (fits)
        return budget_of(config, here ? left : 0) ? EXIT_OK : EXIT_UNAVAILABLE;
    log_fault("this does not fit: %llu MiB are wanted, %llu of them for clients at least, and %llu MiB are "
              "available",
              (unsigned long long)((fixed + CONFIG_MEMORY_LEAST) >> 20),
              (unsigned long long)(CONFIG_MEMORY_LEAST >> 20), (unsigned long long)(here >> 20));
    return EXIT_UNAVAILABLE;
}

/* Whether the backend takes the configuration; a GPU is not opened. */
static enum exit_code check_backend(const struct config *config)
{
    const struct attention_options options = {
        .backend = config->backend, .isa = config->isa, .geometry = &config->geometry};
    char error[ATTENTION_ERROR_BYTES];
    int rc = attention_check(&options, error);
    if (rc == 0)
        return EXIT_OK;
    log_fault("%s", error);
    return rc == ATTND_INVALID ? EXIT_CONFIGURATION : EXIT_UNAVAILABLE;
}

static enum exit_code check_config(const struct config *config)
{
    struct listen_options options[CONFIG_LISTENERS_MAX], management = {0}, transport = {0};
    struct daemon d = {.state = {.config = config}};
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a refusal comes after the arithmetic, wherever both go */
    enum exit_code code = check_start(&d, true, options, &management, &transport);
    keys_destroy(d.state.keys);
    code = code == EXIT_OK ? check_backend(config) : code;
    code = code == EXIT_OK ? check_memory(config) : code;
    return code == EXIT_OK ? check_state(config) : code;
}

/* Read keys.file as SIGHUP does. */
static enum exit_code check_keys(const struct config *config)
{
    struct daemon d = {.state = {.config = config}};
    if (!load_keys(&d))
        return EXIT_CONFIGURATION;
    if (d.state.keys && keys_count(d.state.keys) == 0) {
        log_fault("keys.file: %s: " KEYS_NONE, config->keys_file);
        keys_destroy(d.state.keys);
        return EXIT_CONFIGURATION;
    }
    if (d.state.keys)
        printf("keys.file: %s: %u %s\n", config->keys_file, keys_count(d.state.keys),
               keys_count(d.state.keys) == 1 ? "key" : "keys");
    else
        puts("keys.file: is not set: there is nothing to read again");
    keys_destroy(d.state.keys);
    return EXIT_OK;
}

/* Run a journal again. */
static enum exit_code check_replay(const char *path)
{
    char reason[JOURNAL_REASON_BYTES];
    struct journal_check check;
    log_init(LOG_ERROR, LOG_TEXT);
    int rc = replay_check(path, &check, reason);
    if (rc == 0)
        printf("ok: %llu records, %llu turns, %llu requests, %llu steps%s\n",
               (unsigned long long)check.records, (unsigned long long)check.turns,
               (unsigned long long)check.requests, (unsigned long long)check.steps,
               check.torn ? "; the last file ends within a record, which was left out" : "");
    else
        printf("%s: %s\n", rc == 1 ? "differs" : "cannot be checked", reason);
    return rc == 0 ? EXIT_OK : rc == 1 ? EXIT_RUNTIME : EXIT_UNAVAILABLE;
}

static enum exit_code print_journal(const char *path)
{
    char reason[JOURNAL_REASON_BYTES];
    log_init(LOG_ERROR, LOG_TEXT);
    int rc = journal_print(path, stdout, reason);
    if (rc != 0)
        fprintf(stderr, "attnd: %s\n", reason);
    return rc == 0 ? EXIT_OK : EXIT_UNAVAILABLE;
}

static enum exit_code run(const struct options *options)
{
    extern char **environ;
    const struct config_inputs inputs = {.file = options->file,
                                         .sets = options->sets,
                                         .set_count = options->set_count,
                                         .environment = environ,
                                         .has_help = true};
    struct config config;
    char error[CONFIG_ERROR_BYTES];
    enum exit_code code = EXIT_OK;
    bool serves = options->action == ACTION_SERVE;
    int rc = config_load(&config, &inputs, error);
    log_init(rc == 0 ? config.log_level : LOG_ERROR, serves ? config.log_format : LOG_TEXT);
    if (rc != 0) {
        log_fault("%s", error);
        return EXIT_CONFIGURATION;
    }
    if (options->action != ACTION_CHECK_KEYS)
        size_pool(&config);
    if (options->action == ACTION_CHECK_KEYS)
        code = check_keys(&config);
    else if (options->action == ACTION_CHECK_CONFIG)
        code = check_config(&config);
    else if (options->action == ACTION_PRINT_CONFIG)
        config_print(&config, stdout);
    else if (options->action == ACTION_COMPILE_KERNELS)
        code = compile_kernels(&config, options->arch);
    else
        code = serve(&config, options->file);
    config_deinit(&config);
    return code;
}

/* What was closed when we were started is /dev/null: else a socket would take its number, and get our log. */
static void open_standard_files(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    struct options options;
    open_standard_files();
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20); /* large lists go back to the system when they are freed */
    if (!parse_options(argc, argv, &options))
        return EXIT_USAGE;
    if (options.action == ACTION_HELP) {
        print_help();
        return EXIT_OK;
    }
    if (options.action == ACTION_DESCRIBE)
        return describe(options.describe);
    if (options.action == ACTION_VERSION) {
        print_version();
        return EXIT_OK;
    }
    if (options.action == ACTION_REPLAY_CHECK)
        return check_replay(options.journal);
    if (options.action == ACTION_JOURNAL_PRINT)
        return print_journal(options.journal);
    enum exit_code code = run(&options);
    if (code != EXIT_RUNTIME && code != EXIT_UNAVAILABLE)
        return code;
    fflush(NULL);
    end_now(code); /* what a driver does at exit() may wait for the device that has failed */
}
