/* SPDX-License-Identifier: Apache-2.0 */
/* fibers.h - the threads of a thread block as fibers of one thread of the host: a seed decides which one goes
 * on.
 *
 * A fiber runs until it has to wait, or yields: at a barrier, at a shuffle, wherever it touches what others
 * touch too. Which one is next, and when a copy in the background arrives (copies.h), is drawn anew each
 * time, by one of a few habits that the seed has too: all warps evenly, one warp as far as it goes, one warp
 * or one lane left behind; copies at once, now and then, or only when nothing else can go on. So a run is the
 * same each time, and what takes a thousand runs on a GPU takes some here.
 *
 * What can never go on is found: fibers that all wait, with nothing on its way, end the test and say for
 * what. Included by cuda_on_host.h where EMULATED_FIBERS is defined; without _FORTIFY_SOURCE, which knows no
 * jumps from stack to stack. */
#ifndef TESTS_EMULATION_FIBERS_H
#define TESTS_EMULATION_FIBERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <map>
#include <string>

enum { EMULATED_NAMED_BARRIERS = 16, EMULATED_STACK_BYTES = 64 << 10, EMULATED_LOG_BYTES = 256 };

/* Fibers that wait for the same. */
struct emulated_fiber;
struct emulated_gate {
    std::vector<emulated_fiber *> waiting;
};

/* A copy's arrival behind those that its thread issued before (copies.h). */
struct emulated_arrival {
    uint32_t barrier, epoch;
};

struct emulated_fiber {
    jmp_buf at;
    ucontext_t begin;
    emulated_index thread;
    uint32_t index; /* in the block */
    std::string waits_for;

    /* copies.h: cp.async in epochs, each begun by a commit or by an arrival behind copies */
    std::vector<uint32_t> left;    /* in flight, of each epoch */
    std::vector<uint32_t> commits; /* the epoch that each commit ended */
    uint32_t whole;                /* epochs below have arrived */
    std::vector<emulated_arrival> arrivals;
    emulated_gate copied;
    std::vector<uint32_t> stored; /* pieces of shared memory, since its last proxy fence */
    uint64_t fenced_at;
};

struct emulated_named {
    uint32_t threads, arrived;
    std::vector<bool> who;
    emulated_gate gate;
};

struct emulated_block {
    uint32_t lanes[EMULATED_WARPS_MAX][EMULATED_LANES];
    float *dynamic; /* shared memory */
    size_t bytes;
    uint32_t arrived[EMULATED_WARPS_MAX]; /* at the warp's barrier, */
    const char *why[EMULATED_WARPS_MAX];  /* for what */
    emulated_gate warp[EMULATED_WARPS_MAX];
    emulated_named named[EMULATED_NAMED_BARRIERS];
    uint32_t leader; /* the lane that elect.sync takes */
};

/* How a seed chooses. */
enum emulated_warps { WARPS_EVENLY, WARPS_IN_BURSTS, WARPS_WITH_A_LAGGARD, WARP_HABITS };
enum emulated_lanes { LANES_EVENLY, LANES_IN_ORDER, LANES_WITH_A_LAGGARD, LANE_HABITS };
enum emulated_copying { COPIES_NOW_AND_THEN, COPIES_AT_ONCE, COPIES_LATE, COPY_HABITS };

struct emulated_scheduler {
    std::vector<emulated_fiber *> fibers, ready[EMULATED_WARPS_MAX];
    uint32_t ready_count, running, warps;
    emulated_fiber *self;
    jmp_buf main;
    const std::function<void()> *kernel;
    uint64_t random, clock;
    int warp_habit, lane_habit, copy_habit;
    uint32_t favoured, laggard, yield_odds;
    char what[EMULATED_LOG_BYTES]; /* the case, for messages */
};

static emulated_scheduler scheduler;
static emulated_block emulated_only, *emulated = &emulated_only;

static size_t emulated_copies_in_flight();
static void emulated_copies_arrive();

/* splitmix64 */
static inline uint32_t emulated_random(uint32_t below)
{
    uint64_t z = scheduler.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (uint32_t)((z >> 32) * below >> 32);
}

static inline uint32_t emulated_warp()
{
    return (threadIdx.y * blockDim.x + threadIdx.x) / EMULATED_LANES;
}

/* Say what is wrong, of which case, and end the test. */
__attribute__((format(printf, 1, 2), noreturn)) static void emulated_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("%s: ", scheduler.what);
    if (scheduler.self)
        printf("split %u, warp %u, lane %u: ", threadIdx.y, threadIdx.x / EMULATED_LANES,
               threadIdx.x % EMULATED_LANES);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

/* ---- switching */

static void emulated_make_ready(emulated_fiber *fiber)
{
    scheduler.ready[fiber->index / EMULATED_LANES].push_back(fiber);
    scheduler.ready_count++;
}

static void emulated_switch()
{
    if (_setjmp(scheduler.self->at) == 0)
        _longjmp(scheduler.main, 1);
}

static inline void emulated_yield()
{
    if (emulated_random(scheduler.yield_odds) == 0) {
        emulated_make_ready(scheduler.self);
        emulated_switch();
    }
}

__attribute__((format(printf, 2, 3))) static void emulated_wait(emulated_gate &gate, const char *format, ...)
{
    char text[EMULATED_LOG_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    scheduler.self->waits_for = text;
    gate.waiting.push_back(scheduler.self);
    emulated_switch();
}

static void emulated_open(emulated_gate &gate)
{
    for (emulated_fiber *fiber : gate.waiting)
        emulated_make_ready(fiber);
    gate.waiting.clear();
}

/* A fiber's whole life: a kernel of each run. */
static void emulated_live()
{
    for (;;) {
        (*scheduler.kernel)();
        scheduler.running--;
        emulated_switch();
    }
}

static emulated_fiber *emulated_fiber_at(uint32_t index)
{
    while (scheduler.fibers.size() <= index) {
        emulated_fiber *fiber = new emulated_fiber();
        void *stack = mmap(nullptr, EMULATED_STACK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fiber->index = (uint32_t)scheduler.fibers.size();
        getcontext(&fiber->begin);
        fiber->begin.uc_stack = {stack, 0, EMULATED_STACK_BYTES};
        makecontext(&fiber->begin, emulated_live, 0);
        scheduler.fibers.push_back(fiber);
        if (_setjmp(scheduler.main) == 0) { /* as far as its first switch, with a kernel that does nothing */
            static const std::function<void()> nothing = [] {};
            scheduler.kernel = &nothing;
            scheduler.self = fiber;
            setcontext(&fiber->begin);
        }
        scheduler.self = nullptr;
    }
    return scheduler.fibers[index];
}

/* The warp that goes on. */
static uint32_t emulated_choose_warp()
{
    uint32_t first = emulated_random(scheduler.warps), warp = first;
    if (scheduler.warp_habit == WARPS_IN_BURSTS && emulated_random(64) != 0)
        warp = scheduler.favoured;
    if (scheduler.warp_habit == WARPS_WITH_A_LAGGARD && emulated_random(512) == 0)
        scheduler.favoured = emulated_random(scheduler.warps); /* the laggard */
    for (uint32_t tries = 0; tries < 2 * scheduler.warps; tries++, warp = (warp + 1) % scheduler.warps) {
        bool lags = scheduler.warp_habit == WARPS_WITH_A_LAGGARD && warp == scheduler.favoured &&
                    tries < scheduler.warps;
        if (!scheduler.ready[warp].empty() && !lags)
            break;
    }
    if (scheduler.warp_habit == WARPS_IN_BURSTS)
        scheduler.favoured = warp;
    return warp;
}

static emulated_fiber *emulated_choose()
{
    std::vector<emulated_fiber *> &of = scheduler.ready[emulated_choose_warp()];
    size_t at = scheduler.lane_habit == LANES_IN_ORDER ? 0 : emulated_random((uint32_t)of.size());
    if (scheduler.lane_habit == LANES_WITH_A_LAGGARD &&
        of[at]->index % EMULATED_LANES == scheduler.laggard % EMULATED_LANES && of.size() > 1)
        at = (at + 1) % of.size();
    emulated_fiber *fiber = of[at];
    if (scheduler.lane_habit == LANES_IN_ORDER) {
        of.erase(of.begin());
    } else {
        of[at] = of.back();
        of.pop_back();
    }
    scheduler.ready_count--;
    return fiber;
}

static bool emulated_is_copies_turn()
{
    if (emulated_copies_in_flight() == 0)
        return false;
    return scheduler.ready_count == 0 || scheduler.copy_habit == COPIES_AT_ONCE ||
           (scheduler.copy_habit == COPIES_NOW_AND_THEN && emulated_random(16) == 0);
}

static void emulated_report_hang()
{
    std::map<std::string, std::vector<uint32_t>> waits;
    std::string all;
    for (emulated_fiber *fiber : scheduler.fibers) {
        if (!fiber->waits_for.empty())
            waits["split " + std::to_string(fiber->thread.y) + ", warp " +
                  std::to_string(fiber->thread.x / EMULATED_LANES) + ": " + fiber->waits_for]
                .push_back(fiber->index % EMULATED_LANES);
    }
    for (auto &wait : waits)
        all += "\n  " + wait.first + ", " + std::to_string(wait.second.size()) + " lanes, of them " +
               std::to_string(wait.second[0]);
    emulated_fail("it hangs: %u threads are left, and nothing is on its way%s", scheduler.running,
                  all.c_str());
}

/* Run `kernel` on all threads of a block. */
static void emulate_block(emulated_index at, emulated_index threads, size_t bytes,
                          const std::function<void()> &kernel)
{
    static std::vector<float> memory;
    const uint32_t count = threads.x * threads.y;
    memory.resize(bytes / sizeof(float));
    memset(memory.data(), 0xff, bytes);
    blockIdx = at;
    blockDim = threads;
    emulated_only = emulated_block();
    emulated_only.dynamic = memory.data();
    emulated_only.bytes = bytes;
    emulated_only.leader = emulated_random(EMULATED_LANES);
    for (emulated_named &named : emulated_only.named)
        named.who.resize(count);
    scheduler.warps = count / EMULATED_LANES;
    scheduler.warp_habit = (int)emulated_random(WARP_HABITS);
    scheduler.lane_habit = (int)emulated_random(LANE_HABITS);
    scheduler.copy_habit = (int)emulated_random(COPY_HABITS);
    scheduler.favoured = emulated_random(scheduler.warps);
    scheduler.laggard = emulated_random(EMULATED_LANES);
    scheduler.yield_odds = 2u << emulated_random(3) * 2;
    emulated_fiber_at(count - 1);
    for (uint32_t i = 0; i < count; i++) {
        emulated_fiber *fiber = scheduler.fibers[i];
        fiber->thread = {i % threads.x, i / threads.x, 0};
        fiber->left.assign(1, 0);
        fiber->commits.clear();
        fiber->whole = 0;
        fiber->arrivals.clear();
        fiber->stored.clear();
        fiber->fenced_at = 0;
        emulated_make_ready(fiber);
    }
    scheduler.running = count;
    scheduler.kernel = &kernel;
    while (scheduler.running > 0) {
        scheduler.clock++;
        if (emulated_is_copies_turn()) {
            emulated_copies_arrive();
        } else if (scheduler.ready_count > 0) {
            scheduler.self = emulated_choose();
            scheduler.self->waits_for.clear();
            threadIdx = scheduler.self->thread;
            if (_setjmp(scheduler.main) == 0)
                _longjmp(scheduler.self->at, 1);
            scheduler.self = nullptr;
        } else {
            emulated_report_hang();
        }
    }
}

/* ---- barriers */

/* All lanes of the warp come here, for the same. */
static inline void emulated_converge(const char *why)
{
    const uint32_t warp = emulated_warp();
    if (emulated->arrived[warp] > 0 && emulated->why[warp] != why)
        emulated_fail("some lanes are at %s, others at %s", why, emulated->why[warp]);
    emulated->why[warp] = why;
    if (++emulated->arrived[warp] == EMULATED_LANES) {
        emulated->arrived[warp] = 0;
        emulated_open(emulated->warp[warp]);
        emulated_yield();
    } else {
        emulated_wait(emulated->warp[warp], "%s", why);
    }
}

static inline void __syncwarp()
{
    static const char why[] = "__syncwarp()";
    emulated_converge(why);
}

/* Arrive at a named barrier; whether that was the last one. */
static inline bool emulated_arrive_named(uint32_t barrier, uint32_t threads)
{
    if (barrier >= EMULATED_NAMED_BARRIERS || threads % EMULATED_LANES != 0)
        emulated_fail("named barrier %u of %u threads: there is none such", barrier, threads);
    emulated_named &b = emulated->named[barrier];
    if (b.arrived > 0 && b.threads != threads)
        emulated_fail("named barrier %u is awaited by %u threads, by others by %u", barrier, threads,
                      b.threads);
    if (b.who[scheduler.self->index])
        emulated_fail("at named barrier %u a thread arrives twice in a round", barrier);
    b.threads = threads;
    b.who[scheduler.self->index] = true;
    if (++b.arrived < threads)
        return false;
    b.arrived = 0;
    b.who.assign(b.who.size(), false);
    emulated_open(b.gate);
    return true;
}

static inline void named_barrier_arrive(uint32_t barrier, uint32_t threads)
{
    emulated_arrive_named(barrier, threads);
    emulated_yield();
}

static inline void named_barrier_sync(uint32_t barrier, uint32_t threads)
{
    if (emulated_arrive_named(barrier, threads))
        emulated_yield();
    else
        emulated_wait(emulated->named[barrier].gate, "named barrier %u, of %u threads", barrier, threads);
}

static inline void __syncthreads()
{
    named_barrier_sync(0, blockDim.x * blockDim.y);
}

static inline void cluster_sync()
{
    abort(); /* one thread block at a time */
}

static inline const uint8_t *cluster_pointer(const uint8_t *, uint32_t)
{
    abort();
}

#endif
