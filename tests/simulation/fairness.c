/* SPDX-License-Identifier: Apache-2.0 */
/* fairness.c - owners who always have work, for a second of virtual time.
 *
 * Property: each owner has the same part of the second within 5 % of it, and so has every connection of
 * its own, and every workload, however they differ in number, size and time of coming; none is left out
 * for long; and a small request of somebody within its share is in the first step that is formed after it
 * came.
 *
 * Method: attends on sequences of the connections' own, larger than a step, one after the other; workloads
 * that do not end; one more owner, who makes a small request now and then, and another who comes late. The
 * backend takes time for every key that a query sees, and counts these by connection and workload. */
#include "tests/simulation/episode.h"
#include "tests/simulation/simulation.h"

#include "scheduler/workload.h"
#include "tests/simulation/symbolic_backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEEDS_EACH = 40, /* one seed in so many */
    OWNERS_MOST = 3,
    CONNECTIONS_LEAST = 3, /* of an owner, so that one waits while the other is answered */
    CONNECTIONS_MOST = 4,
    CLIENTS_MOST = OWNERS_MOST * CONNECTIONS_MOST + 1,
    WORKLOADS_MOST = 2,
    TOKENS = 2048, /* of a sequence, whose last rows see whole chunks but for 3 %, as they are estimated, */
    SMALL_TOKENS = 100, /* and of one for small requests */
    SMALL_STEPS = 3,    /* the first after a small request, the next, and one formed as it is answered */
    IDLE_STEPS =
        160, /* without anything of a connection that has work: each of 4 of 5 owners may have a slice
                         before, and a slice may be 8 times the least (policy.h) */
};

static const double WARM_S = 0.1, WINDOW_S = 1, TOLERANCE = 0.05, LATE_S = 0.4, KEY_US = 0.032,
                    THINK_S = 1e-3;

struct client {
    uint32_t owner, rows;
    uint64_t sequence, steps; /* steps when it asked */
    bool small, asked;
    double next_s;
};

static struct {
    uint64_t random;
    struct client clients[CLIENTS_MOST];
    uint32_t client_count, owner_count, workload_count;
    double begin_s;              /* of the measured second */
    double had[SYMBOLIC_METERS]; /* before it */
} fair;

static uint32_t below(uint32_t n)
{
    return sim_below(&fair.random, n);
}

bool fairness_wants(uint64_t seed)
{
    return seed % SEEDS_EACH == SEEDS_EACH / 2;
}

/* ---- the engine ---------------------------------------------------------------------------------- */

static void notice(void *cookie)
{
    (void)cookie;
}

static double virtual_clock(void *cookie)
{
    (void)cookie;
    return sim.now_s;
}

static void make_engine(uint64_t seed)
{
    const char *settings[] = {"geometry.layers=1",
                              "geometry.query_heads=1",
                              "geometry.kv_heads=1",
                              "geometry.head_dim=8",
                              "geometry.block_size=16",
                              "geometry.dtype=f32",
                              "geometry.kv_dtype=f32",
                              "pool.blocks=12000",
                              "limits.sequences=64",
                              "limits.sequence_tokens=4000",
                              "limits.calls=40",
                              "scheduler.step_rows_max=256",
                              "limits.rows_per_call=2100",
                              "scheduler.step_us_max=1000",
                              "scheduler.step_us_shared=500",
                              "scheduler.batch_window_us=0"};
    char error[CONFIG_ERROR_BYTES];
    const struct config_inputs inputs = {.sets = settings, .set_count = sizeof settings / sizeof settings[0]};
    const struct engine_options options = {.config = &sim.config,
                                           .partials_max = 4096,
                                           .notify = notice,
                                           .open_backend = symbolic_backend_open,
                                           .clock = virtual_clock};
    symbolic_backend_conduct = (struct symbolic_conduct){.seed = sim_mix(seed), .key_us = KEY_US};
    if (config_load(&sim.config, &inputs, error) != 0 || engine_create(&options, &sim.engine, error) != 0) {
        fprintf(stderr, "the simulator's configuration is refused: %s\n", error);
        exit(2);
    }
}

/* Let the engine turn once, and time pass. */
static void turn(double until_s)
{
    bool worked = engine_turn(sim.engine, sim.now_s);
    sim.seen.turns++;
    (void)episode_pass_time(worked, until_s);
}

/* Submit a request and wait for its answer. */
static void ask(struct request *request)
{
    struct request *answer;
    engine_submit(sim.engine, request);
    while (!(answer = engine_take(sim.engine)))
        turn(INFINITY);
    if (answer != request || request->status != 0)
        sim_fail("a request that prepares the second fails: %s", request->detail);
    engine_release(sim.engine, request);
    sim.seen.requests++;
}

/* ---- clients ------------------------------------------------------------------------------------- */

static struct request *new_request(enum request_kind kind, const struct client *c)
{
    struct request *request = engine_acquire(sim.engine);
    request->kind = kind;
    request->owner = c->owner;
    request->connection = (uint64_t)(c - fair.clients);
    return request;
}

/* Rows of a sequence, the last ones or new ones. */
static struct request *new_rows(enum request_kind kind, const struct client *c, uint32_t rows)
{
    struct request *request = new_request(kind, c);
    struct symbolic_row *q = request_tensor(request, rows, sizeof *q),
                        *v = request_tensor(request, rows, sizeof *v);
    request->attend.sequences = request_alloc(request, 1, sizeof *request->attend.sequences);
    request->attend.sequences[0] =
        (struct request_sequence){.id = c->sequence, .rows = rows, .position = REQUEST_POSITION_ABSENT};
    request->attend.sequence_count = 1;
    request->rows.count = rows;
    request->rows.kv_source = DTYPE_F32;
    for (uint32_t i = 0; i < rows; i++) {
        uint64_t tag = sim_mix(c->sequence << 20 | i);
        q[i] = kind == REQUEST_ATTEND
                   ? (struct symbolic_row){.word = {[0] = tag, [SYMBOLIC_METER] = request->connection + 1}}
                   : symbolic_k(tag, 0);
        v[i] = symbolic_v(tag);
    }
    if (kind == REQUEST_ATTEND) {
        request->rows.q = q;
    } else {
        request->rows.k = q;
        request->rows.v = v;
    }
    if (request_make_outputs(request, &sim.config.geometry) != 0)
        sim_fail("no staging memory is left");
    return request;
}

static void make_client(uint32_t owner, bool small, double next_s)
{
    struct client *c = &fair.clients[fair.client_count++];
    *c = (struct client){.owner = owner,
                         .sequence = 1000 + fair.client_count,
                         .rows = small ? 1 : 80 + below(60),
                         .small = small,
                         .next_s = next_s};
    struct request *create = new_request(REQUEST_CREATE, c);
    create->id = c->sequence;
    ask(create);
    ask(new_rows(REQUEST_APPEND, c, small ? SMALL_TOKENS : TOKENS));
}

static void act(void)
{
    for (uint32_t i = 0; i < fair.client_count; i++) {
        struct client *c = &fair.clients[i];
        if (c->asked || c->next_s > sim.now_s)
            continue;
        c->asked = true;
        c->steps = sim.seen.steps;
        engine_submit(sim.engine, new_rows(REQUEST_ATTEND, c, c->rows));
    }
}

static void take(void)
{
    struct request *request;
    while ((request = engine_take(sim.engine))) {
        struct client *c = &fair.clients[request->connection];
        if (request->status != 0)
            sim_fail("a request of connection %u fails: %s", (unsigned)request->connection, request->detail);
        if (c->small && sim.seen.steps - c->steps > SMALL_STEPS)
            sim_fail("a small request of an owner within its share took %llu steps",
                     (unsigned long long)(sim.seen.steps - c->steps));
        sim.seen.small_at_once += c->small;
        sim.seen.requests++;
        c->asked = false;
        c->next_s = sim.now_s + (c->small ? THINK_S * (1 + below(1000) * 2e-3) : 0);
        engine_release(sim.engine, request);
    }
}

static double next_act_s(void)
{
    double next = INFINITY;
    for (uint32_t i = 0; i < fair.client_count; i++)
        next = fair.clients[i].asked ? next : fmin(next, fair.clients[i].next_s);
    return next;
}

static void run_until(double end_s)
{
    while (sim.now_s < end_s) {
        act();
        turn(fmin(next_act_s(), end_s));
        take();
    }
}

/* ---- workloads ----------------------------------------------------------------------------------- */

static void make_workload(uint32_t at)
{
    static const struct client nobody = {0};
    char reason[WORKLOAD_REASON_BYTES];
    struct workload *w = workload_create(sim_mix(fair.random));
    struct workload_request r = {.prompt = fair.workload_count > 1 ? 400 + below(400) : 100, .decode = 3000};
    bool both = fair.workload_count > 1; /* then a round of each is to be worth more than a common one */
    uint32_t sequences = both ? 8 + below(9) : 2;
    int rc = w ? 0 : ATTND_NO_MEMORY;
    w->report.sharing = symbolic_sharing(w->seed);
    symbolic_meters[CLIENTS_MOST + at].seed = w->seed;
    for (uint32_t i = 0; rc == 0 && i < sequences; i++)
        rc = workload_add(w, &r, NULL, 0, reason);
    if (rc != 0 ||
        workload_close(w, &sim.config.geometry, (uint32_t)sim.config.pool_blocks, sim.config.limits.sequences,
                       sim.config.limits.sequence_tokens, reason) != 0)
        sim_fail("a workload cannot be made: %s", reason);
    struct request *request = new_request(REQUEST_WORKLOAD_START, fair.clients);
    request->owner = nobody.owner;
    request->workload.workload = w;
    ask(request);
}

/* ---- the second ---------------------------------------------------------------------------------- */

static void expect_part(const char *who, uint32_t number, double us, double part, double all)
{
    if (fabs(us - part) > TOLERANCE * all)
        sim_fail("%s %u had %.1f %% of the second, and should have had %.1f %%", who, number, 100 * us / all,
                 100 * part / all);
}

static void check_parts(void)
{
    double all = 0, owners = fair.owner_count + fair.workload_count, of[OWNERS_MOST] = {0};
    uint32_t connections[OWNERS_MOST] = {0};
    for (uint32_t i = 0; i < SYMBOLIC_METERS; i++) {
        fair.had[i] = symbolic_meters[i].us - fair.had[i];
        bool small = i < fair.client_count && fair.clients[i].small;
        all += small ? 0 : fair.had[i];
        if (i < fair.client_count && !small) {
            of[fair.clients[i].owner] += fair.had[i];
            connections[fair.clients[i].owner]++;
        }
        bool works = (i < fair.client_count && !small) || symbolic_meters[i].seed;
        if (works && symbolic_meters[i].longest > IDLE_STEPS)
            sim_fail("meter %u had nothing of %llu steps", i, (unsigned long long)symbolic_meters[i].longest);
    }
    for (uint32_t i = 0; i < fair.owner_count; i++)
        expect_part("owner", i, of[i], all / owners, all);
    for (uint32_t i = 0; i < fair.workload_count; i++)
        expect_part("workload", i, fair.had[CLIENTS_MOST + i], all / owners, all);
    for (uint32_t i = 0; i < fair.client_count; i++) {
        const struct client *c = &fair.clients[i];
        if (!c->small)
            expect_part("connection", i, fair.had[i], of[c->owner] / connections[c->owner], all);
    }
}

void fairness_run(uint64_t seed)
{
    memset(&fair, 0, sizeof fair);
    fair.random = sim_mix(seed);
    make_engine(seed);
    fair.owner_count = (uint32_t)(seed / SEEDS_EACH % (OWNERS_MOST + 1));
    fair.workload_count = fair.owner_count < 2 ? 2 - fair.owner_count : below(WORKLOADS_MOST + 1);
    double begin_s = sim.now_s;
    for (uint32_t i = 0; i < fair.owner_count; i++) {
        bool late = i > 0 && below(3) == 0;
        for (uint32_t n = CONNECTIONS_LEAST + below(CONNECTIONS_MOST - CONNECTIONS_LEAST + 1); n > 0; n--)
            make_client(i, false, late ? begin_s + LATE_S : 0);
    }
    if (below(2))
        make_client(OWNERS_MOST, true, 0);
    for (uint32_t i = 0; i < fair.workload_count; i++)
        make_workload(i);
    run_until(begin_s + LATE_S + WARM_S);
    for (uint32_t i = 0; i < SYMBOLIC_METERS; i++) {
        fair.had[i] = symbolic_meters[i].us;
        symbolic_meters[i].longest = 0;
    }
    run_until(sim.now_s + WINDOW_S);
    check_parts();
    sim.seen.seconds_shared++;
    engine_destroy(sim.engine);
    config_deinit(&sim.config);
}
