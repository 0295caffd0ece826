/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - see replay.h. */
#include "scheduler/replay.h"

#include "kernels/backend.h"
#include "scheduler/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the backend that stands in -------------------------------------------------------------------- */

enum { SLOTS = ATTENTION_STEPS_IN_FLIGHT };

/* Of a step in flight. */
struct slot {
    uint32_t **equal; /* [count] where results of comparisons belong */
    uint32_t count;
    struct attention_times times;
};

struct stand_in {
    struct attention base;
    struct journal *journal;
    struct slot slots[SLOTS];
    uint32_t *places[SLOTS][STEP_COMPARES];
};

/* What the backend is opened with; engine_create() hands on no more than options. */
static struct {
    struct journal *journal;
    const struct journal_begin *begin;
} opening;

static void close_stand_in(struct attention *attention)
{
    free(attention);
}

static void submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    struct stand_in *b = (struct stand_in *)attention;
    struct slot *slot = &b->slots[ticket % SLOTS];
    slot->equal = b->places[ticket % SLOTS];
    slot->count = step->compare_count;
    for (uint32_t i = 0; i < step->compare_count; i++)
        slot->equal[i] = step->compares[i].equal;
}

/* A step is done when that comes next. */
static bool poll(struct attention *attention, uint64_t ticket)
{
    struct stand_in *b = (struct stand_in *)attention;
    struct slot *slot = &b->slots[ticket % SLOTS];
    struct journal_step_done done;
    if (!journal_peek_done(b->journal, &done))
        return false;
    slot->times = (struct attention_times){done.busy_s, done.idle_s};
    for (uint32_t i = 0; i < slot->count && i < done.count; i++)
        memcpy(slot->equal[i], done.equal + i * sizeof *slot->equal[i], sizeof *slot->equal[i]);
    return true;
}

static struct attention_times times(struct attention *attention, uint64_t ticket)
{
    return ((struct stand_in *)attention)->slots[ticket % SLOTS].times;
}

static int open_stand_in(const struct attention_options *options, struct attention **attention,
                         char error[ATTENTION_ERROR_BYTES])
{
    static const struct attention_ops ops = {
        .close = close_stand_in, .submit = submit, .poll = poll, .times = times};
    struct stand_in *b = calloc(1, sizeof *b);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the backend");
    (void)options;
    if (!b)
        return ATTND_NO_MEMORY;
    b->journal = opening.journal;
    b->base.ops = &ops;
    b->base.info = (struct attention_info){.name = "none",
                                           .isa = "none",
                                           .kernel = "none",
                                           .threads = 1,
                                           .tasks = opening.begin->tasks,
                                           .on_device = opening.begin->on_device,
                                           .paged_v1_tokens = opening.begin->paged_v1_tokens,
                                           .tile_caps = opening.begin->tile_caps};
    *attention = &b->base;
    return 0;
}

/* ---- the engine ------------------------------------------------------------------------------------ */

/* Time within a turn stands still: what it decided was recorded. */
static double no_clock(void *cookie)
{
    (void)cookie;
    return 0;
}

static void no_notice(void *cookie)
{
    (void)cookie;
}

/* Turn after turn, as they were recorded. */
static void run(struct engine *engine, struct journal *journal)
{
    struct request *request;
    while (journal_next_is(journal, JOURNAL_TURN)) {
        engine_turn(engine, 0);
        journal_end_turn(journal);
        while ((request = engine_take(engine)))
            engine_release(engine, request);
    }
}

int replay_config(const char *settings, const struct journal_begin *begin, struct config *config,
                  char reason[JOURNAL_REASON_BYTES])
{
    char blocks[64], error[CONFIG_ERROR_BYTES], *none[] = {NULL};
    snprintf(blocks, sizeof blocks, "pool.blocks=%llu", (unsigned long long)begin->pool_blocks);
    const char *const sets[] = {blocks, "pool.memory=0", "journal.path=\"\"", "scheduler.slow_step_ms=0"};
    const struct config_inputs inputs = {
        .text = settings, .sets = sets, .set_count = sizeof sets / sizeof sets[0], .environment = none};
    int rc = config_load(config, &inputs, error);
    if (rc != 0)
        snprintf(reason, JOURNAL_REASON_BYTES, "the configuration that was recorded: %s", error);
    return rc;
}

/* With what it has begun. */
static int check_all(struct journal *journal, struct journal_check *check, char reason[JOURNAL_REASON_BYTES])
{
    struct journal_begin begin;
    struct config config;
    struct engine *engine;
    char error[ATTENTION_ERROR_BYTES];
    const char *settings = journal_settings(journal, &begin);
    if (!settings) {
        snprintf(reason, JOURNAL_REASON_BYTES, "its first record is of another version");
        return ATTND_INVALID;
    }
    char *copy = strdup(settings);
    int rc = copy ? replay_config(copy, &begin, &config, reason) : ATTND_NO_MEMORY;
    free(copy);
    if (rc != 0)
        return rc;
    const struct step_measures measures = {begin.cost, begin.costs};
    const struct engine_options options = {.config = &config,
                                           .spare_requests = begin.spare_requests,
                                           .notify = no_notice,
                                           .open_backend = open_stand_in,
                                           .clock = no_clock,
                                           .journal = journal,
                                           .measures = &measures};
    opening.journal = journal;
    opening.begin = &begin;
    journal_check_config(journal, &config);
    rc = engine_create(&options, &engine, error);
    if (rc == 0) {
        run(engine, journal);
        *check = journal_check(journal);
        engine_destroy(engine);
    } else {
        snprintf(reason, JOURNAL_REASON_BYTES, "%s", error);
    }
    config_deinit(&config);
    return rc;
}

int replay_check(const char *path, struct journal_check *check, char reason[JOURNAL_REASON_BYTES])
{
    struct journal *journal;
    *check = (struct journal_check){0};
    int rc = journal_create_check(path, &journal, reason);
    if (rc != 0)
        return rc;
    rc = check_all(journal, check, reason);
    if (rc == 0 && check->fault) {
        snprintf(reason, JOURNAL_REASON_BYTES, "%s", check->fault);
        rc = check->damaged ? ATTND_INVALID : 1;
    }
    check->fault = NULL; /* it was the journal's */
    journal_destroy(journal);
    return rc;
}
