/* SPDX-License-Identifier: Apache-2.0 */
/* replay_record.h - what a record of a journal says, as --journal-print has it. */
#ifndef CLIENTS_REPLAY_RECORD_H
#define CLIENTS_REPLAY_RECORD_H

#include "clients/answer.h"

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline const cJSON *record_member(const cJSON *of, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(of, name);
}

static inline uint64_t record_integer(const cJSON *of, const char *name)
{
    const cJSON *item = record_member(of, name);
    return cJSON_IsNumber(item) ? (uint64_t)item->valuedouble : 0;
}

static inline bool record_is(const cJSON *of, const char *name, const char *text)
{
    return strcmp(answer_text(of, name), text) == 0;
}

static inline uint64_t record_hex(const cJSON *of, const char *name)
{
    return strtoull(answer_text(of, name), NULL, 16);
}

static inline bool record_was_done(const cJSON *answer)
{
    return record_is(answer, "status", "ok");
}

#endif
