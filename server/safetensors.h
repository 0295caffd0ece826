/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - tensors as an HTTP body, in both directions.
 *
 *   u64 N little-endian | N bytes of JSON | data
 *
 *   {"name": {"dtype": "F32", "shape": [2, 8], "data_offsets": [begin, end]}, ...,
 *    "__metadata__": {"key": "text"}}
 *
 * Read strictly: the tensors fill the data without holes or overlaps, sizes follow from shapes, nothing
 * follows the last one. All sizes are checked in 64 bits before anything is read. */
#ifndef SERVER_SAFETENSORS_H
#define SERVER_SAFETENSORS_H

#include "config/geometry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SAFETENSORS_MAX = 16,
    SAFETENSORS_RANK_MAX = 8,
    SAFETENSORS_NAME_BYTES = 64,
    SAFETENSORS_HEADER_BYTES_MAX = 64 * 1024,
    SAFETENSORS_REASON_BYTES = 160
};

/* A tensor of a body, whatever the body's format (tensors.h). */
struct named_tensor {
    char name[SAFETENSORS_NAME_BYTES];
    char dtype[16]; /* as written: "F32", "BF16", "I64", ... */
    unsigned rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint64_t begin, end; /* in the data */
    const uint8_t *data; /* not aligned */
    bool stays;          /* where it is, as long as its request */
};

struct named_tensors {
    unsigned count;
    struct named_tensor tensors[SAFETENSORS_MAX]; /* by position in the data */
};

/* safetensors_parse(bytes, n, tensors, reason): 0; ATTND_MALFORMED (not safetensors) or ATTND_INVALID
 * (more than is served) with a sentence. Data pointers point into `bytes`. */
MUST_USE int safetensors_parse(const void *bytes, size_t n, struct named_tensors *tensors,
                               char reason[SAFETENSORS_REASON_BYTES]);

/* The tensor of that name, NULL if there is none. */
const struct named_tensor *safetensors_find(const struct named_tensors *tensors, const char *name);

/* A text of __metadata__. */
struct safetensors_text {
    const char *name;
    char *text; /* [room] where it goes, */
    size_t room;
    bool there; /* out: if there is one of that name, and it has room */
};

/* safetensors_metadata(bytes, n, texts, count): what the __metadata__ of what safetensors_parse() took says. */
void safetensors_metadata(const void *bytes, size_t n, struct safetensors_text *texts, unsigned count);

/* Bytes of one element of a dtype name; 0 if it is not known. */
size_t safetensors_dtype_bytes(const char *dtype);

/* The name of a dtype on the wire. */
const char *safetensors_dtype_name(enum dtype dtype);

/* safetensors_write_header(tensors, metadata, out, capacity): what comes before the data of the
 * tensors, which follow in the order given (offsets are computed), with `metadata`, a JSON object text.
 * Padded so that data begins at a multiple of 8. Returns its length, 0 when it does not fit. */
size_t safetensors_write_header(struct named_tensors *tensors, const char *metadata, void *out,
                                size_t capacity);

#endif
