/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h - bodies in safetensors, made and read; rows of numbers from the command line, or generated. */
#ifndef CLIENTS_TENSORS_H
#define CLIENTS_TENSORS_H

#include "clients/command.h"

#include <stddef.h>
#include <stdint.h>

enum { TENSORS_MOST = 8, TENSORS_RANK = 4, TENSORS_NAME = 32 };

/* Of a body that is made or read. */
struct tensor {
    char name[TENSORS_NAME], dtype[12];
    unsigned rank;
    uint64_t shape[TENSORS_RANK];
    const char *data; /* of one that is read: within the body */
    size_t begin, bytes;
};

struct tensors {
    struct tensor list[TENSORS_MOST];
    size_t count;
    char *data; /* of one that is made */
    size_t n, room;
};

/* What attention a daemon computes, from /v1/info. */
struct model {
    uint32_t layers, query_heads, kv_heads, head_dim, block_size;
    uint64_t body_bytes, rows_per_call, kv_range_tokens, blocks, sequence_tokens, bytes_per_block;
    char dtype[8], layout[8], backend[16];
    double scale;
    bool is_plain; /* no window, softcap, sinks or slopes, and K and V are stored as they come */
};

/* model_fetch: ask for it; the exit code, said why. */
enum exit_code model_fetch(const struct command *c, struct model *m);

/* tensors_add_values: floats, rounded to `dtype` (f32, f16 or bf16), in a tensor of this shape. tensors_add_integers: as I64, of one
 * dimension, or of two when `columns` is not 0. */
void tensors_add_values(struct tensors *t, const char *name, const char *dtype, unsigned rank,
                        const uint64_t *shape, const float *values);
void tensors_add_integers(struct tensors *t, const char *name, const int64_t *values, size_t count,
                          size_t columns);

/* tensors_body: the body, to be freed, with the text of a JSON object as its metadata, or NULL. */
char *tensors_body(const struct tensors *t, const char *metadata, size_t *bytes);
void tensors_free(struct tensors *t);

/* tensors_read: find what a body has; its metadata to *metadata, to be deleted. False: it is no safetensors. */
bool tensors_read(const char *body, size_t bytes, struct tensors *t, cJSON **metadata);
const struct tensor *tensors_find(const struct tensors *t, const char *name);

/* tensors_value: element i of a tensor of f32, f16 or bf16. */
double tensors_value(const struct tensor *t, size_t i);

/* tensors_parse_rows: "1,0,2:3" is two rows, with a number for all elements (3), for each element of a head, or for each of all
 * heads. To be freed; NULL, and said why. */
float *tensors_parse_rows(const char *option, const char *text, uint32_t heads, uint32_t head_dim,
                          size_t *rows);

/* tensors_generate: `count` numbers n/64, -2 < n/64 < 2, that every format stores exactly; a pure function of the seed, the
 * stream (which tensor) and the place. */
void tensors_generate(uint64_t seed, uint64_t stream, uint64_t first, size_t count, float *values);

#endif
