/* SPDX-License-Identifier: Apache-2.0 */
/* episode.c - see episode.h.
 *
 *   act -> turn -> take and judge answers -> let time pass -> act ...
 *
 * Time is virtual. After a turn that did something a microsecond or so passes; otherwise time jumps to
 * whatever comes first: the end of a step, the end of the engine's idle time, the next client. When none
 * of them ever comes and a request is under way, it waits for ever. Within a turn time passes when the engine
 * looks at the clock, which it does before each request that no step computes. */
#include "tests/simulation/episode.h"

#include "config/numbers.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/scarce_memory.h"
#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/symbolic_file.h"
#include "tests/simulation/watch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 0x57e4, POISONED = 0xdead, POISONED_SEEDS = 8 };

enum {
    SPINS_MOST = 1000,       /* turns that do nothing although there is something to do */
    WAIT_STEPS_MOST = 20000, /* that a request waits while others are served */
    WIND_UP_TURNS = 500000,
    UNWRITTEN_TURNS = 7, /* between two looks at what is left in blocks that nobody has */
    LOOK_TURNS = 64,     /* between two looks for requests that wait too long */
    FAMILIES = 8,        /* one seed in so many has many forks and few blocks */
    STEP_US = 20000,     /* scheduler.step_us_max and */
    SHARED_US = 2000,    /* step_us_shared, unless they are set; the latter is never more than the former */
    REQUESTS_PART = 4,   /* a turn has for requests that no step computes two such parts of step_us_shared, */
    ENDS_PART = 8,       /* and for what workloads end and admit, of step_us_max */
    ADMITS_PART = 4,
    FILE_LONGEST = 60, /* blocks of a sequence, where there is a file for swapped ones */
    LONG = 25,         /* one seed in so many has long sequences, */
    LONGER = 10        /* and in those requests may wait so many times as long */
};

/* WAIT_S_MOST: a request waits. Of steps that hang: one that comes back, and one that takes longer than
 * the device is given (backend.step_timeout_s). */
static const double WAIT_S_MOST = 120, HANG_S = 30, TIMEOUT_S = 100, LOOK_S = 0.5;

static struct {
    uint64_t random;
    uint32_t spins;
    uint32_t look_us; /* that a look at the clock within a turn takes */
    bool in_turn;
} episode;

static uint32_t below(uint32_t n)
{
    return sim_below(&episode.random, n);
}

static uint32_t one_of(const uint32_t *list, uint32_t n)
{
    return list[below(n)];
}

/* ---- the engine ---------------------------------------------------------------------------------- */

enum { SETTINGS = 24, SETTING_BYTES = 64 };

struct settings {
    char text[SETTINGS][SETTING_BYTES];
    const char *list[SETTINGS];
    uint32_t count;
};

static void set_text(struct settings *s, const char *key, const char *value)
{
    snprintf(s->text[s->count], SETTING_BYTES, "%s=%s", key, value);
    s->list[s->count] = s->text[s->count];
    s->count++;
    sim_note("%s", s->list[s->count - 1]);
}

static void set(struct settings *s, const char *key, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    set_text(s, key, text);
}

/* A file below host memory, which has room for the longest sequence and a few blocks more. */
static void choose_file(struct settings *s, uint32_t pool, uint32_t tokens, uint32_t block_size)
{
    uint32_t longest = smaller(tokens / block_size, pool) + 1, host = longest + below(below(2) ? 3 : 20);
    if (longest > FILE_LONGEST)
        return;
    set(s, "pool.host_blocks", host);
    set(s, "pool.file_blocks", host + 1 + below(200));
    set_text(s, "state.dir", "nowhere");
}

static uint32_t choose_geometry(struct settings *s)
{
    static const uint32_t sizes[] = {1, 2, 4, 16}, windows[] = {0, 0, 1, 5, 70, 300};
    set(s, "geometry.layers", 1 + below(SIM_LAYERS_MOST));
    uint32_t kv_heads = below(3) ? 1 : 2, group = below(3) ? 1 : SYMBOLIC_HEADS_MOST / 2;
    set(s, "geometry.query_heads", kv_heads * group);
    set(s, "geometry.kv_heads", kv_heads);
    set(s, "geometry.head_dim", SYMBOLIC_HEAD_DIM);
    uint32_t block_size = sim.long_sequences ? 4U << 2 * below(2) : one_of(sizes, sim.families ? 2 : 4);
    set(s, "geometry.block_size", block_size);
    set(s, "geometry.window", one_of(windows, 6));
    s->list[s->count++] = "geometry.dtype=f32";
    s->list[s->count++] = "geometry.kv_dtype=f32";
    return block_size;
}

static void choose_limits(struct settings *s, uint32_t block_size)
{
    static const uint32_t tokens[] = {64, 200, 1000}, windows[] = {0, 0, 100, 2000},
                          times[] = {0, 0, 50, 500, 60000000}, long_times[] = {50, 100, 300, 1000};
    bool is_long = sim.long_sequences;
    uint32_t pool = is_long        ? 2000 + below(4000)
                    : sim.families ? 8 + below(30)
                    : below(3)     ? 40 + below(400)
                                   : 2 + below(40),
             longest = is_long ? SIM_TOKENS_MOST - 100 : one_of(tokens, 3);
    set(s, "pool.blocks", pool);
    set(s, "limits.sequences", 4 + below(24));
    set(s, "limits.sequence_tokens", longest);
    if (below(3) == 0)
        choose_file(s, pool, longest, block_size);
    else
        set(s, "pool.host_blocks", sim.families || below(3) ? 1 + below(60) : 0);
    set(s, "limits.calls", 4 + below(SIM_REQUESTS_MOST - 8));
    set(s, "scheduler.step_rows_max", 8 + below(below(2) ? 24 : 120));
    set(s, "limits.rows_per_call", is_long ? SIM_TOKENS_MOST : 100 + below(200));
    set(s, "scheduler.step_us_max", is_long ? one_of(long_times, 4) : one_of(times, 5));
    set(s, "scheduler.batch_window_us", one_of(windows, 4));
    set(s, "scheduler.slow_step_ms", 0);
    s->list[s->count++] = below(2) ? "scheduler.admission=optimistic" : "scheduler.admission=forecast";
    set_text(s, "scheduler.sharing", config_sharing_names[below(3)]);
    if (sim_mix(sim.seed ^ POISONED) % POISONED_SEEDS == 0)
        set_text(s, "debug.poison", "on");
}

static void make_config(void)
{
    struct settings settings = {.count = 0};
    char error[CONFIG_ERROR_BYTES];
    choose_limits(&settings, choose_geometry(&settings));
    const struct config_inputs inputs = {.sets = settings.list, .set_count = settings.count};
    if (config_load(&sim.config, &inputs, error) != 0) {
        fprintf(stderr, "the simulator's configuration is refused: %s\n", error);
        exit(2);
    }
}

static void choose_conduct(uint64_t actions)
{
    static const uint32_t latency_us[] = {5, 100, 5000};
    symbolic_backend_conduct = (struct symbolic_conduct){
        .seed = sim_mix(episode.random), .at_once = below(4) == 0, .latency_s = one_of(latency_us, 3) * 1e-6};
    symbolic_backend_conduct.differs = below(20) == 0;
    if (below(10) == 0)
        symbolic_backend_conduct.fail_at = 1 + below((uint32_t)actions / 2 + 1);
    symbolic_backend_conduct.fail_given_up = below(40) == 0;
    if (below(10) == 0)
        symbolic_backend_conduct.hang_at = 1 + below((uint32_t)actions / 2 + 1);
    symbolic_backend_conduct.hang_s = below(2) ? HANG_S : TIMEOUT_S;
}

/* Whether the device may be lost. */
static bool may_fail(void)
{
    const struct symbolic_conduct *c = &symbolic_backend_conduct;
    return c->fail_at || c->fail_given_up || (c->hang_at && c->hang_s >= TIMEOUT_S);
}

static void notice(void *cookie)
{
    bool in_turn = episode.in_turn;
    (void)cookie;
    episode.in_turn = false;
    client_refusals_look();
    clients_notice();
    episode.in_turn = in_turn;
}

static double virtual_clock(void *cookie)
{
    (void)cookie;
    if (episode.in_turn && episode.look_us)
        sim.now_s += 1e-6 * episode.look_us;
    return sim.now_s;
}

/* An engine for which some piece of memory is missing. */
static void make_engine_without_memory(const struct engine_options *options)
{
    enum { PIECES = 200 }; /* that an engine asks for, about */
    char error[ATTENTION_ERROR_BYTES];
    struct engine *engine = NULL;
    int64_t pieces = scarce_memory_pieces();
    scarce_memory_refuse(below(PIECES));
    int rc = engine_create(options, &engine, error);
    scarce_memory_end();
    bool refused = scarce_memory_refused();
    if (refused != (rc == ATTND_NO_MEMORY))
        sim_fail("an engine was made without memory, or was not made with enough");
    if (rc == 0)
        engine_destroy(engine);
    if (scarce_memory_pieces() != pieces)
        sim_fail("an engine that %s left %lld pieces of memory behind",
                 refused ? "was not made" : "was ended", (long long)(scarce_memory_pieces() - pieces));
    sim.seen.scarce += refused;
}

static void make_engine(void)
{
    char error[ATTENTION_ERROR_BYTES];
    static const uint32_t partials[] = {2, 64, 4096}, works[] = {0, 3, 50};
    uint64_t fails_at = below(4) ? 0 : 1 + below(60);
    symbolic_file_begin(sim_mix(episode.random), (uint32_t)sim.config.file_blocks, fails_at);
    const struct engine_options options = {.config = &sim.config,
                                           .partials_max = one_of(partials, 3),
                                           .notify = notice,
                                           .swap = sim.config.file_blocks ? &symbolic_file_io : NULL,
                                           .open_backend = symbolic_backend_open,
                                           .clock = virtual_clock,
                                           .question_work = one_of(works, 3)};
    if (below(2))
        make_engine_without_memory(&options);
    if (engine_create(&options, &sim.engine, error) != 0) {
        fprintf(stderr, "the engine cannot be made: %s\n", error);
        exit(2);
    }
}

/* ---- time ---------------------------------------------------------------------------------------- */

/* News of a workload come by time, however many steps that takes. Long requests may take a step a token. */
static void check_waits(void)
{
    uint32_t longer = sim.long_sequences ? LONGER : 1;
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        const struct op *op = &clients_ops()[i];
        if (op->request && !op->done &&
            (sim.now_s - op->submitted_s > WAIT_S_MOST * longer ||
             (op->request->kind != REQUEST_WORKLOAD &&
              sim.seen.steps - op->steps > (uint64_t)WAIT_STEPS_MOST * longer)))
            sim_fail("request %llu (%s) has waited for %.1f s and %llu steps", (unsigned long long)op->action,
                     request_kinds[op->request->kind].name, sim.now_s - op->submitted_s,
                     (unsigned long long)(sim.seen.steps - op->steps));
    }
}

static double earlier(double a, double b)
{
    return b >= 0 && b < a ? b : a;
}

static _Noreturn void fail_waiting(void)
{
    const struct op *op = clients_ops();
    while (!op->request || op->done)
        op++;
    sim_fail("request %llu (%s) waits for ever", (unsigned long long)op->action,
             request_kinds[op->request->kind].name);
}

/* After a turn that did nothing: whatever comes first. False: nothing ever comes, and nobody waits. */
static bool jump(double next)
{
    double idle = engine_idle_s(sim.engine);
    bool in_flight = engine_in_flight(sim.engine);
    if (in_flight) /* turns follow each other: some are made, however long it takes */
        next = earlier(next, fmin(symbolic_backend_done_s(), sim.now_s + LOOK_S));
    next = earlier(next, symbolic_file_due_s());
    if (idle > 0 || !in_flight)
        next = earlier(next, idle < 0 ? idle : sim.now_s + idle);
    if (isinf(next) && clients_under_way())
        fail_waiting();
    bool is_due = in_flight ? symbolic_backend_done_s() <= sim.now_s : idle == 0; /* and not just a client */
    episode.spins = is_due ? episode.spins + 1 : 0;
    if (episode.spins > SPINS_MOST)
        sim_fail("I10: the engine has something to do and does nothing");
    sim.now_s = isinf(next) ? sim.now_s : next > sim.now_s ? next : sim.now_s + 1e-7;
    return !isinf(next);
}

/* Microseconds that a budget of `us` may be used for: overdrawn by the first that is done and by the last. */
static double used_us(double us)
{
    return us + 2.0 * episode.look_us;
}

/* Another number in every turn. */
static uint64_t seed_of_turn(void)
{
    return sim.seed ^ sim.seen.turns << 20;
}

/* A turn of the engine, which is bounded however many requests and sequences there are. */
static bool turn_engine(void)
{
    double began_s = sim.now_s, max_us = sim.config.step_us_max ? sim.config.step_us_max : STEP_US;
    double requests_us = fmin(max_us, SHARED_US) / REQUESTS_PART, most_us = 2 * used_us(requests_us);
    for (uint32_t i = 0; i < SIM_WORKLOADS; i++) {
        if (client_workloads()[i].used)
            most_us = 2 * used_us(requests_us) + used_us(max_us / ENDS_PART) + used_us(max_us / ADMITS_PART);
    }
    episode.in_turn = true;
    bool worked = sim.streams && sim_mix(seed_of_turn()) % 2 ? engine_stream_turn(sim.engine, sim.now_s)
                                                             : engine_turn(sim.engine, sim.now_s);
    episode.in_turn = false;
    double us = (sim.now_s - began_s) * 1e6;
    sim.seen.budgets_spent += us > requests_us + episode.look_us;
    if (us > most_us + 0.1)
        sim_fail("a turn took %.1f us, and its budgets are %.1f us together", us, most_us);
    return worked;
}

bool episode_pass_time(bool worked, double next_s)
{
    if (!worked)
        return jump(next_s);
    episode.spins = 0;
    sim.now_s += 1e-7 * (1 + below(30));
    return true;
}

/* One turn; false: nothing is to be done any more. */
static bool turn(void)
{
    clients_act();
    bool worked = turn_engine();
    worked |= clients_take() > 0;
    watch_turn();
    client_idle_check();
    if (++sim.seen.turns % LOOK_TURNS == 0)
        check_waits();
    if (sim.seen.turns % UNWRITTEN_TURNS == 0)
        watched_blocks_check_unwritten();
    return episode_pass_time(worked, clients_next_s());
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void wait_for_answers(void)
{
    for (uint32_t n = 0; clients_under_way() || engine_in_flight(sim.engine); n++) {
        (void)turn();
        check_waits();
        if (n > WIND_UP_TURNS && clients_under_way())
            fail_waiting();
    }
}

static void ask(enum request_kind kind, uint64_t id, bool lease)
{
    clients_ask(kind, id, lease);
    wait_for_answers();
}

/* Whatever happened, every sequence holds what it should. */
static void read_all(void)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES && !sim.lost; i++) {
        struct model_sequence *s = &model.sequences[i];
        for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++) {
            if (!s->used || !s->live || s->lease || s->layer[layer].cursor == 0)
                continue;
            clients_read(s, layer);
            wait_for_answers();
        }
    }
}

static void delete_all(void)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        const struct model_sequence *s = &model.sequences[i];
        if (s->used && s->live)
            ask(REQUEST_DELETE, s->id, s->lease);
    }
}

/* Wait until they have ended; or cancel them, since clients' sequences may keep them from starting. All are asked in
 * turn: one whose outputs nobody takes holds blocks that others wait for. */
static void end_workloads(bool cancel)
{
    double began = sim.now_s;
    for (bool any = true; any;) {
        any = false;
        for (uint32_t i = 0; i < SIM_WORKLOADS; i++) {
            struct sim_workload *w = &client_workloads()[i];
            if (!w->used || !w->running)
                continue;
            any = true;
            w->cancelled |= cancel;
            ask(cancel ? REQUEST_WORKLOAD_CANCEL : REQUEST_WORKLOAD, w->id, false);
            if (sim.now_s - began > WAIT_S_MOST * SIM_WORKLOADS)
                sim_fail("workload %llu never ends: %llu tokens of %llu", (unsigned long long)w->id,
                         (unsigned long long)w->tokens_done, (unsigned long long)w->tokens);
        }
    }
}

/* Nothing is left of all that was there. */
static void check_empty(void)
{
    const struct engine_stats *s = &sim.stats;
    if (s->pool.free != s->pool.blocks)
        sim_fail("%u of %u blocks are free after everything was deleted (%u cached, %u held, %u fenced)",
                 s->pool.free, s->pool.blocks, s->pool.cached, s->pool.held, s->pool.fenced);
    if (s->tables.host_free != s->tables.host_blocks)
        sim_fail("%u of %u host blocks are free after everything was deleted", s->tables.host_free,
                 s->tables.host_blocks);
    if (s->tables.rows || s->leases || s->leased_blocks || s->tables.tokens_physical)
        sim_fail("%u sequences, %u leases of %u blocks, %llu tokens are left after everything was deleted",
                 s->tables.rows, s->leases, s->leased_blocks, (unsigned long long)s->tables.tokens_physical);
}

static void wind_up(void)
{
    bool cancel = sim.seed % 4 == 0;
    sim_note("no more faults");
    sim.faults = false;
    clients_stop();
    wait_for_answers();
    read_all();
    if (!cancel)
        delete_all();
    if (!engine_failure(sim.engine))
        end_workloads(cancel);
    delete_all();
    ask(REQUEST_AUDIT, 0, false);
    ask(REQUEST_TRIM, 0, false);
    ask(REQUEST_STATS, 0, false);
    if (sim.lost)
        return;
    check_empty();
    uint64_t refused = sim.seen.refused;
    ask(REQUEST_CREATE, 0, false);
    if (sim.seen.refused != refused)
        sim_fail("blocks are still promised to somebody after everything was deleted");
}

/* ---- all ----------------------------------------------------------------------------------------- */

bool episode_run(uint64_t seed, uint64_t actions)
{
    const struct simulation kept = sim;
    memset(&sim, 0, offsetof(struct simulation, keep_history));
    sim.keep_history = kept.keep_history;
    sim.seed = seed;
    sim.now_s = 1;
    sim.history_count = sim.action_most = 0;
    sim.fault[0] = '\0';
    episode.random = sim_mix(seed);
    episode.spins = 0;
    episode.in_turn = false;
    memset(symbolic_meters, 0, sizeof symbolic_meters);
    watch_begin();
    if (setjmp(sim.failed))
        return false;
    if (fairness_wants(seed)) {
        fairness_run(seed);
        return true;
    }
    static const uint32_t look_us[] = {0, 0, 5, 100};
    sim.long_sequences = below(LONG) == 0;
    episode.look_us = one_of(look_us, 4);
    sim.families = !sim.long_sequences && below(FAMILIES) == 0;
    make_config();
    choose_conduct(actions);
    make_engine();
    sim.faults = below(4) != 0;
    sim.streams = sim_mix(seed ^ STREAMS) % 3 == 0;
    sim.notices = below(3) == 0 && !may_fail(); /* then the engine tells of it late */
    clients_begin(episode.random, 1 + below(SIM_CONNECTIONS_MOST));
    client_workloads_begin();
    client_parameters_begin();
    while (sim.action_most < actions && turn())
        continue;
    wind_up();
    sim.seen.files_failed += symbolic_file_has_failed();
    engine_destroy(sim.engine);
    config_deinit(&sim.config);
    return true;
}
