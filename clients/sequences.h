/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.h - a sequence in a line. */
#ifndef CLIENTS_SEQUENCES_H
#define CLIENTS_SEQUENCES_H

#include <cjson/cJSON.h>

/* sequences_print: its id, state, tokens, blocks, its owner where that is told, and the first blocks. */
void sequences_print(const cJSON *sequence);

#endif
