/* SPDX-License-Identifier: Apache-2.0 */
/* engine_simulation.c - the engine against a model, in virtual time.
 *
 * Property: whatever clients ask, in whatever order, with whatever faults, every answer is the one that
 * the contract demands, every output is that of exactly the tokens that the sequence holds, no invariant
 * breaks, nobody waits for ever, and nothing is left when everything was deleted.
 *
 * Method: the real allocator, planner, scheduler and engine loop (scheduler/), turned by hand, on a
 * backend that computes with tags (symbolic_backend.h), for clients whose sequences a model knows as
 * lists of tokens (token_model.h, clients.h). One seed is one simulation: its configuration, its clients,
 * its latencies and its faults, and it is the same each time (episode.h).
 *
 * Usage: engine_simulation [--operations N] [--seeds N] [--actions N] [--jobs N] [--brief] [--random | SEED]
 * By default seeds 1, 2, ... until N operations are done; --random: from a random seed on; with a SEED, that
 * one. An operation is an accepted request, a fault, or a token of a workload. A failing history is shortened
 * by leaving out actions; with --brief it is not shown. */
#include "config/log.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/episode.h"
#include "tests/simulation/returns.h"
#include "tests/simulation/transitions.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MEET_OPERATIONS = 1000000,   /* in which something of all that is counted must be met, */
    COVER_OPERATIONS = 10000000, /* and each transition and return statement */
    RETURNS_MOST = 256,
    JOBS_MOST = 16,
    ACTIONS = 3000,
    REPORT_S = 10,
    SHORTEN_RUNS = 400,
    HANG_S = 120
};

/* What the processes share. */
struct worker {
    uint64_t seed, seeds; /* in progress; done */
    struct coverage seen;
    struct transitions moved;
    uint64_t returns[RETURNS_MOST]; /* taken */
    uint64_t action_most;
    char fault[SIM_FAULT_BYTES];
};

static struct {
    uint64_t operations, seeds, actions, first;
    uint32_t jobs;
    bool one, brief;        /* a seed was given; failures are only named */
    struct worker *workers; /* [JOBS_MOST + 1] shared; the last one is for looking again */
} run;

static uint64_t operations_of(const struct coverage *c)
{
    return c->requests + c->faults + c->workload_tokens;
}

static void add_coverage(struct coverage *to, const struct coverage *from)
{
#define XX(name, text) to->name += from->name;
    COVERAGE_MAP(XX)
#undef XX
}

/* ---- one simulation in a process of its own ------------------------------------------------------ */

static struct worker *me;

static void print_history(void)
{
    uint64_t n = sim.keep_history ? sim.history_count : 0, most = SIM_HISTORY_LINES;
    for (uint64_t i = 0; i < n && i < most; i++)
        printf("%s\n", sim.history[i]);
    if (n > 2 * most)
        printf("    ... %llu lines ...\n", (unsigned long long)(n - 2 * most));
    for (uint64_t i = n > 2 * most ? n - most : most; i < n; i++)
        printf("%s\n", sim.history[most + i % most]);
    fflush(stdout);
}

/* An assertion of the engine failed, or worse. */
static void on_signal(int number)
{
    snprintf(me->fault, sizeof me->fault, "signal %d: %s", number, strsignal(number));
    me->action_most = sim.action_most;
    print_history();
    _exit(1);
}

static void watch_signals(void)
{
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        signal(numbers[i], on_signal);
}

static bool simulate(uint64_t seed)
{
    alarm(HANG_S); /* a simulation takes milliseconds, so this is a turn that never ends */
    bool ok = episode_run(seed, run.actions);
    alarm(0);
    me->seeds++;
    add_coverage(&me->seen, &sim.seen);
    transitions_add(&me->moved, &sim.moved);
    for (uint32_t i = 0; i < returns_count(); i++)
        me->returns[i] = __start_return_places[i]->taken;
    if (ok)
        return true;
    memcpy(me->fault, sim.fault, sizeof me->fault);
    me->action_most = sim.action_most;
    print_history();
    return false;
}

/* Run one seed again, without some actions; returns whether it fails. */
static bool fails(uint64_t seed, const uint8_t *skip, uint64_t n, bool show)
{
    int status;
    me = &run.workers[JOBS_MOST];
    me->fault[0] = '\0';
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        watch_signals();
        if (!show && freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        sim.keep_history = show;
        sim.skip = skip;
        sim.skip_count = n;
        _exit(simulate(seed) ? 0 : 1);
    }
    return waitpid(child, &status, 0) == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- a failure ----------------------------------------------------------------------------------- */

/* Whether two faults are the same but for their numbers. */
static bool is_same_fault(const char *a, const char *b)
{
    for (int n = 0; n < 60; n++) {
        a += strspn(a, "0123456789.");
        b += strspn(b, "0123456789.");
        if (*a != *b)
            return false;
        if (!*a)
            return true;
        a++;
        b++;
    }
    return true;
}

/* Leave out as many of the actions as the fault does not need: halves, quarters and so on. Returns how
 * many are left. */
static uint64_t shorten(uint64_t seed, const char *fault, uint8_t *skip, uint64_t n)
{
    uint64_t left = 0;
    uint32_t runs = 0;
    for (uint64_t size = n / 2; size >= 1 && runs < SHORTEN_RUNS; size /= 2) {
        for (uint64_t at = 0; at < n && runs < SHORTEN_RUNS; at += size) {
            uint8_t *before = malloc(n);
            if (!before)
                abort();
            memcpy(before, skip, n);
            uint64_t end = at + size < n ? at + size : n;
            memset(skip + at, 1, end - at);
            if (memcmp(before, skip, n) != 0) {
                runs++;
                if (!fails(seed, skip, n, false) || !is_same_fault(fault, run.workers[JOBS_MOST].fault))
                    memcpy(skip, before, n);
            }
            free(before);
        }
    }
    for (uint64_t i = 0; i < n; i++)
        left += !skip[i];
    return left;
}

static void explain(uint64_t seed, const char *fault, uint64_t action_most)
{
    uint64_t n = action_most + 1;
    printf("seed %llu: %s\n", (unsigned long long)seed, fault);
    fflush(stdout);
    if (run.brief)
        return;
    uint8_t *skip = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (skip == MAP_FAILED || !fails(seed, skip, n, false)) {
        printf("it does not fail again: the simulation is not deterministic\n");
        return;
    }
    run.actions = n; /* what comes later is not needed */
    if (!fails(seed, skip, n, false))
        run.actions = ACTIONS;
    uint64_t left = shorten(seed, fault, skip, n);
    printf("shortened to %llu of %llu actions:\n", (unsigned long long)left, (unsigned long long)n);
    (void)fails(seed, skip, n, true);
    printf("fault: %s\n", run.workers[JOBS_MOST].fault);
    printf("to run it again: engine_simulation --actions %llu %llu\n", (unsigned long long)run.actions,
           (unsigned long long)seed);
    munmap(skip, n);
}

/* ---- all of them --------------------------------------------------------------------------------- */

static void work(uint32_t job)
{
    me = &run.workers[job];
    watch_signals();
    for (uint64_t i = job; i < run.seeds; i += run.jobs) {
        if (operations_of(&me->seen) >= run.operations / run.jobs)
            break;
        me->seed = run.first + i;
        if (!simulate(me->seed))
            _exit(1);
    }
    _exit(0);
}

static struct coverage sum_up(uint64_t *seeds)
{
    struct coverage all = {0};
    *seeds = 0;
    for (uint32_t i = 0; i < run.jobs; i++) {
        add_coverage(&all, &run.workers[i].seen);
        *seeds += run.workers[i].seeds;
    }
    return all;
}

static double seconds_since(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

static void report(const struct timespec *start, FILE *out)
{
    uint64_t seeds;
    struct coverage all = sum_up(&seeds);
    double seconds = seconds_since(start);
    fprintf(out, "%llu operations in %.1f s (%.0f a second), %llu seeds\n",
            (unsigned long long)operations_of(&all), seconds, (double)operations_of(&all) / seconds,
            (unsigned long long)seeds);
}

/* Print what was met, and, if wanted, the names of the transitions and return statements that were not;
 * whether all of these were. */
static bool print_coverage(bool names)
{
    static struct transitions moved;
    uint64_t seeds, returns[RETURNS_MOST] = {0};
    struct coverage all = sum_up(&seeds);
    for (uint32_t job = 0; job < run.jobs; job++) {
        transitions_add(&moved, &run.workers[job].moved);
        for (uint32_t i = 0; i < returns_count(); i++)
            returns[i] += run.workers[job].returns[i];
    }
#define XX(name, text) printf("  %-50s %12llu\n", text, (unsigned long long)all.name);
    COVERAGE_MAP(XX)
#undef XX
    bool moves = transitions_report(&moved, names), taken = returns_report(returns, names);
    return moves && taken;
}

/* Whatever the simulation is to meet, it has met. */
static bool is_covered(void)
{
    uint64_t seeds;
    struct coverage all = sum_up(&seeds);
    bool covered = true;
#define XX(name, text)                                                                                       \
    if (!all.name) {                                                                                         \
        printf("never met: %s\n", text);                                                                     \
        covered = false;                                                                                     \
    }
    COVERAGE_MAP(XX)
#undef XX
    return covered;
}

/* Start the workers and wait for them; returns the one that failed, or -1. */
static int run_workers(const struct timespec *start)
{
    pid_t children[JOBS_MOST];
    int failed = -1;
    double reported = 0;
    for (uint32_t i = 0; i < run.jobs; i++) {
        children[i] = fork();
        if (children[i] == 0)
            work(i);
    }
    for (uint32_t left = run.jobs; left > 0;) {
        int status;
        pid_t child = waitpid(-1, &status, WNOHANG);
        if (child <= 0) {
            usleep(20000);
            if (seconds_since(start) - reported > REPORT_S) {
                reported = seconds_since(start);
                report(start, stderr);
            }
            continue;
        }
        left--;
        for (uint32_t i = 0; i < run.jobs; i++) {
            if (children[i] == child && !(WIFEXITED(status) && WEXITSTATUS(status) == 0) && failed < 0)
                failed = (int)i;
        }
        for (uint32_t i = 0; failed >= 0 && i < run.jobs; i++)
            kill(children[i], SIGKILL);
    }
    return failed;
}

static uint64_t random_seed(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return sim_mix((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20) % 1000000000;
}

static bool parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--random") == 0) {
            run.first = random_seed();
            continue;
        }
        if (strcmp(argv[i], "--brief") == 0) {
            run.brief = true;
            continue;
        }
        uint64_t *value = strcmp(argv[i], "--operations") == 0 ? &run.operations
                          : strcmp(argv[i], "--seeds") == 0    ? &run.seeds
                          : strcmp(argv[i], "--actions") == 0  ? &run.actions
                                                               : NULL;
        char *end;
        bool jobs = strcmp(argv[i], "--jobs") == 0, named = value || jobs;
        if (named && ++i == argc)
            return false;
        uint64_t number = strtoull(argv[i], &end, 10);
        if (*end || end == argv[i] || (jobs && (number < 1 || number > JOBS_MOST)))
            return false;
        if (jobs)
            run.jobs = (uint32_t)number;
        else if (value)
            *value = number;
        else {
            run.first = number;
            run.one = true;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    log_to(NULL, NULL); /* thousands of workloads begin and end */
    struct timespec start;
#ifdef __SANITIZE_THREAD__
    bool sanitized = true;
#else
    bool sanitized = ATTND_CHECK >= 3;
#endif
    run.first = 1;
    run.operations = sanitized ? 100000 : 5000000;
    run.seeds = UINT64_MAX / 2;
    run.actions = ACTIONS;
    run.jobs = 2;
    if (!parse(argc, argv)) {
        fprintf(stderr,
                "usage: %s [--operations N] [--seeds N] [--actions N] [--jobs N] [--brief] "
                "[--random | SEED]\n",
                argv[0]);
        return 2;
    }
    if (run.one && run.seeds == UINT64_MAX / 2)
        run.seeds = run.jobs = 1;
    run.workers = mmap(NULL, (JOBS_MOST + 1) * sizeof *run.workers, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.workers == MAP_FAILED)
        return 2;
    clock_gettime(CLOCK_MONOTONIC, &start);
    printf("the engine against its model: first seed %llu\n", (unsigned long long)run.first);
    fflush(stdout);
    int failed = run_workers(&start);
    report(&start, stdout);
    bool ok = failed < 0, all = print_coverage(ok && !run.one);
    if (!ok)
        explain(run.workers[failed].seed, run.workers[failed].fault, run.workers[failed].action_most);
    else if (run.operations >= MEET_OPERATIONS && !run.one)
        ok = is_covered() && (all || run.operations < COVER_OPERATIONS);
    printf("%s the engine keeps to its model\n", ok ? "ok" : "not ok");
    return !ok;
}
