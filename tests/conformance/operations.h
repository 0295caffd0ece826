/* SPDX-License-Identifier: Apache-2.0 */
/* operations.h - compares, reads and merges of steps, on a backend that holds known sequences. */
#ifndef TESTS_CONFORMANCE_OPERATIONS_H
#define TESTS_CONFORMANCE_OPERATIONS_H

#include "kernels/attention.h"

struct operations_world {
    struct attention *attention;
    const struct geometry *g;
    const uint32_t *tables; /* [sequences][stride] */
    uint32_t stride, sequences;
    const uint32_t *lengths; /* [sequences] */
    uint64_t version;        /* of tables: the backend knows none from this one on */
    enum dtype given;        /* rows may be handed in in this format, or in geometry.kv_dtype as they stand */
    /* One head of a token: as it was handed in, or as it stands. */
    void (*row)(void *cookie, bool stands, uint32_t sequence, uint32_t position, uint32_t layer,
                enum values_tensor tensor, uint32_t head, float *row);
    void *cookie;
};

/* operations_fault(w): what is wrong with compares, reads and merges, or NULL. Overwrites K and V. */
const char *operations_fault(const struct operations_world *w);

#endif
