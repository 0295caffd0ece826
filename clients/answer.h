/* SPDX-License-Identifier: Apache-2.0 */
/* answer.h - what a daemon answered: members of JSON by their path, "a.b.c". */
#ifndef CLIENTS_ANSWER_H
#define CLIENTS_ANSWER_H

#include <cjson/cJSON.h>

/* answer_at: the item; NULL when it is not there. */
const cJSON *answer_at(const cJSON *tree, const char *path);

/* answer_number, answer_text: what it says; 0 and "" when there is none. */
double answer_number(const cJSON *tree, const char *path);
const char *answer_text(const cJSON *tree, const char *path);

/* answer_plural: the end of a word that is counted: "" for 1, else "s". */
const char *answer_plural(double count);

#endif
