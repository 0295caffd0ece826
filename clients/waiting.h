/* SPDX-License-Identifier: Apache-2.0 */
/* waiting.h - what waits, and why, in the scheduler's words: for people, and while a workload stands still. */
#ifndef CLIENTS_WAITING_H
#define CLIENTS_WAITING_H

#include "clients/command.h"

enum { WAITING_WHO = 192, WAITING_WHY = 256 };

/* waiting_who: what an item of /v1/waiting is about, as shown: "attend 7 8", "attend workload 4", "workload 4". */
void waiting_who(const cJSON *item, char who[WAITING_WHO]);

/* waiting_why: why it waits, as shown, and when that may change. */
void waiting_why(const cJSON *item, char why[WAITING_WHY]);

/* A workload that is followed. Zero it, with `command` set. */
struct waiting_watch {
    const struct command *command;
    struct http_client *client; /* the other one is reading the reports */
    double moved_s, asked_s;    /* when it last did something, and when the daemon was last asked why not */
    double steps;               /* so many then */
    char why[WAITING_WHY];      /* "": it goes on */
    char said[WAITING_WHY];     /* the latest line where there is no terminal */
    bool shown;                 /* a line of a terminal that has to be cleared */
};

/* waiting_look: look at a report of the workload. After a second without a step and without a sequence that runs, ask the daemon
 * why, and say so on stderr: in a terminal on one line again and again, elsewhere once for each reason. Returns whether it
 * stands still. waiting_end: clear that line; nothing is held any more. `why` stays. */
bool waiting_look(struct waiting_watch *watch, const cJSON *report);
void waiting_end(struct waiting_watch *watch);

#endif
