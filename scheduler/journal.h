/* SPDX-License-Identifier: Apache-2.0 */
/* journal.h - what the engine was asked, what it met, and what it decided, in its order.
 *
 *     engine thread --- ring of fixed size ---> writer thread ---> files (journal_file.h)
 *
 * Two sorts of records make it possible to run a journal again (replay.h), through the same engine:
 *
 *     inputs     a turn's time, requests as they are taken, clients that have gone, steps that are done and what they took,
 *                budgets that were spent, measurements that ended, blocks that the file has written or read
 *     effects    steps with their copies and tables, retired steps, answers; each with the counts of all blocks
 *
 * A journal either records or checks. When it records, a function for an input notes the value and returns it, and one for
 * an effect notes it. When it checks, the same functions return what was recorded, and compare. So there is one
 * path through the engine for both. NULL is no journal, and costs a comparison.
 *
 * The engine never waits: when the ring is full, or the disk, the journal ends where it is, and journal_state() says why.
 * Engine thread, but for journal_state(). */
#ifndef SCHEDULER_JOURNAL_H
#define SCHEDULER_JOURNAL_H

#include "scheduler/engine_state.h"
#include "scheduler/journal_file.h"
#include "scheduler/swap_file.h"

enum journal_kind {
    JOURNAL_BEGIN = 1, /* version, settings, what was measured */
    JOURNAL_TURN,
    JOURNAL_REQUEST,
    JOURNAL_GONE,    /* the client of the request that is being looked at */
    JOURNAL_DONE,    /* a step */
    JOURNAL_SPENT,   /* a budget */
    JOURNAL_ROOF,    /* measuring it has ended */
    JOURNAL_TESTED,  /* a self-test has */
    JOURNAL_SWAPPED, /* a block has been written to, or read from, the file for swapped blocks */
    JOURNAL_STEP,    /* effects: submitted, */
    JOURNAL_RETIRED, /* retired, */
    JOURNAL_ANSWER,  /* completed */
    JOURNAL_END,
    JOURNAL_DROPPED, /* an input: clients have ended, and their calls that wait are looked through */
    JOURNAL_KINDS
};

/* What records consist of, for who reads them: journal_print.c. A request is journal_request.h's. */
enum { JOURNAL_VERSION_BYTES = 64 };

struct journal_turn {
    double now_s;
    uint8_t keeps_all, stopping, zero[6];
};

/* Of a step that is done; `count` 32-bit results of comparisons follow. */
struct journal_done {
    uint64_t step;
    double busy_s, idle_s;
    uint32_t count, zero;
};

/* Of a block that was on its way between a frame of host memory and the file. */
struct journal_swapped {
    uint32_t block, frame;
    int32_t error; /* errno, as swap_transfer has it */
    uint8_t write, zero[3];
};

/* journal_kind_name: in words. journal_value_names: of the 64-bit values of an effect, in their order, ending with NULL; the last name
 * is that of a list. NULL: a record of that kind is none of an effect. Constant; any thread. */
const char *journal_kind_name(enum journal_kind kind);
const char *const *journal_value_names(enum journal_kind kind);

struct journal;

struct journal_options {
    const struct config
        *config; /* journal_path, journal_bytes, journal_file_bytes, journal_token_ids; borrowed */
};

/* journal_create: record. Returns 0, ATTND_INVALID or ATTND_NO_MEMORY with a sentence. journal_create_check: check what stands in
 * `path` against what the engine does. journal_destroy: what was recorded is written. NULL is fine. */
MUST_USE int journal_create(const struct journal_options *options, struct journal **journal,
                            char reason[JOURNAL_REASON_BYTES]);
MUST_USE int journal_create_check(const char *path, struct journal **journal,
                                  char reason[JOURNAL_REASON_BYTES]);
void journal_destroy(struct journal *journal);

struct journal_state journal_state(const struct journal *journal); /* any thread */

/* ---- the seams in the engine ---- */

/* What an engine has measured when it was made, on which its decisions depend. */
struct journal_begin {
    uint32_t tasks, paged_v1_tokens, spare_requests;
    bool on_device;
    struct tile_caps tile_caps;
    struct cost_model cost;
    struct planner_costs costs;
    uint64_t pool_blocks;
};

/* journal_begin: the first record. `settings`: the configuration as config_print() has it. */
void journal_begin(struct journal *journal, const struct journal_begin *begin, const char *settings,
                   const char *version);

/* journal_turn: a turn begins. When it records, a turn is noted with the first thing that happens in it, or by journal_note_turn(). */
void journal_turn(struct journal *journal, double *now_s, bool *keeps_all, bool *stopping);
void journal_note_turn(struct journal *journal);

/* journal_note_attempt: likewise, of a turn in which a step was to be formed and there was nothing for it: that may have an effect on
 * the next one. Of such turns in a row the first one. */
void journal_note_attempt(struct journal *journal);

/* journal_take: a request is taken. journal_next_request: the next thing is a request: fill `request` in; false: it is
 * not. Of one that checks. */
void journal_take(struct journal *journal, struct request *request);
bool journal_next_is(const struct journal *journal, enum journal_kind kind);
bool journal_next_request(struct journal *journal, struct request *request);
bool journal_checks(const struct journal *journal);

bool journal_gone(struct journal *journal, const struct request *request);
bool journal_dropped(struct journal *journal, bool drops);
bool journal_spent(struct journal *journal, bool spent);
bool journal_roof(struct journal *journal, bool done);
bool journal_tested(struct journal *journal, bool done);

/* journal_done: a step is done, and what the backend says of it. */
void journal_done(struct journal *journal, const struct step *step);

/* journal_swap_io: how an engine with this journal has blocks moved, to or from `frames` frames: by `file` (copied), of which it notes what is
 * done; one that checks moves nothing, and says what was recorded. Without a journal *io is *file. Until the journal is destroyed, which is
 * after the engine. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int journal_swap_io(struct journal *journal, const struct swap_io *file, uint32_t frames,
                             struct swap_io *io);

/* Effects. */
void journal_step(struct journal *journal, const struct engine_state *state, const struct step *step);
void journal_retired(struct journal *journal, const struct engine_state *state, const struct step *step);
void journal_answer(struct journal *journal, const struct engine_state *state, const struct request *request);

/* journal_end: nothing more is recorded, for this reason. journal_stop: likewise, where that is to be seen: the log has it. */
void journal_stop(struct journal *journal, const char *reason);
void journal_end(struct journal *journal, const char *reason);

/* ---- of one that checks ---- */

struct journal_check {
    uint64_t records, turns, requests, steps;
    bool ended;        /* there are no more records */
    bool torn;         /* since the last file ends within one */
    bool damaged;      /* and what is wrong with it is that it is damaged: */
    const char *fault; /* the first record that differs, or is damaged: its place and how; NULL: none */
};
struct journal_check journal_check(const struct journal *journal);
const char *journal_settings(const struct journal *journal,
                             struct journal_begin *begin); /* of its first record */

/* journal_read_begin: a first record as it was read. Its settings, within the record, with what was measured and, if wanted, the
 * version; NULL: it is none of this version. Any thread. */
const char *journal_read_begin(const struct journal_record *record, struct journal_begin *begin,
                               const char **version);

/* journal_end_turn: a turn is over: what was recorded of it has been met. */
void journal_end_turn(struct journal *journal);

/* journal_check_config: the first record has been looked at, and this is what it says. */
void journal_check_config(struct journal *journal, const struct config *config);

/* The record of a step that is done: false: the next record is another. For the backend that stands in. */
struct journal_step_done {
    uint64_t step;
    double busy_s, idle_s;
    uint32_t count;
    const uint8_t *equal; /* [count] 32-bit results of comparisons, in their order */
};
bool journal_peek_done(const struct journal *journal, struct journal_step_done *done);

#endif
