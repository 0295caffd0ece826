/* SPDX-License-Identifier: Apache-2.0 */
/* replay_judge.h - what a daemon answers beside what was recorded: the same, explained, or a difference. All of it is counted. */
#ifndef CLIENTS_REPLAY_JUDGE_H
#define CLIENTS_REPLAY_JUDGE_H

#include "clients/http_client.h"
#include "clients/replay_world.h"

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdint.h>

/* Why an answer is another one, without a difference between the daemons (replay_judge.c). */
enum replay_reason {
    REPLAY_SAME,     /* there is no reason */
    REPLAY_FOLLOWS,  /* from one that was other before */
    REPLAY_TIME,     /* a deadline, or an idle timeout */
    REPLAY_TOGETHER, /* the recorded daemon had several calls at once */
    REPLAY_LARGER,   /* the pool is larger here */
    REPLAY_KEYS,     /* requests of several keys go with one here */
    REPLAY_CACHED,   /* what a hit of the prompt cache holds is not in the journal */
    REPLAY_REASONS
};

enum replay_kind { REPLAY_STATUS, REPLAY_LENGTH, REPLAY_COUNTS, REPLAY_OUTPUTS, REPLAY_NONE, REPLAY_KINDS };

enum { REPLAY_CAUSES = 16 };

struct replay_judge {
    struct replay_world *world;
    unsigned targets;
    const char *urls[REPLAY_TARGETS];
    bool shows_all;
    bool smaller, larger; /* the pool of one of them, than the recorded one */
    bool keys;            /* the journal has requests of several keys */
    bool together;        /* the recorded daemon has had several calls at once */
    bool strayed;         /* something was other than it was recorded */
    bool uncountable;     /* something was not sent that changes counts */
    double tolerance;     /* by which outputs may differ; 0: not by a bit */
    double largest;       /* by which they do, within it */
    uint64_t rounded;     /* outputs that do */
    uint64_t requests, sent, answers, same, counts, outputs, outputs_left, counts_left;
    struct replay_cause {
        const char *why; /* a constant; NULL: none yet */
        uint64_t n;
    } not_sent[REPLAY_CAUSES];
    struct replay_tally {
        uint64_t n, first; /* the first one's record */
    } explained[REPLAY_REASONS], differences[REPLAY_KINDS];
};

/* A request with what was recorded of it. */
struct replay_case {
    const cJSON *request, *answer;
    bool together; /* others were under way */
    bool astray;   /* something that it names was another one already when it was sent */
};

/* replay_judge_not_sent: note that a request was not, and why. */
void replay_judge_not_sent(struct replay_judge *judge, const char *why);

/* replay_judge_answer: compare what a daemon has answered. `*here` is the answer, to be deleted, if it is JSON; NULL: it is none. Returns
 * whether the daemon has made sequences or a lease that it had refused to make when the journal was recorded. */
bool replay_judge_answer(struct replay_judge *judge, const struct replay_case *of, unsigned target,
                         const struct http_reply *reply, cJSON **here);

/* replay_judge_late: there is no answer, after so many seconds. */
void replay_judge_late(struct replay_judge *judge, const struct replay_case *of, unsigned target,
                       double seconds);

/* replay_judge_outputs: compare what both daemons have computed, bit by bit, or within the tolerance. */
void replay_judge_outputs(struct replay_judge *judge, const struct replay_case *of,
                          const struct http_reply replies[REPLAY_TARGETS]);

/* replay_judge_counts: compare /stats with the counts that were recorded, when nothing was under way. */
void replay_judge_counts(struct replay_judge *judge, const struct replay_case *of, unsigned target,
                         const cJSON *stats);

/* replay_judge_differs: whether there was a difference. replay_judge_show: the summary, on stdout. */
bool replay_judge_differs(const struct replay_judge *judge);
void replay_judge_show(const struct replay_judge *judge);

#endif
