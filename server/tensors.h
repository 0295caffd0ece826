/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h - the tensors and arguments of a body, and what is checked of any tensor.
 *
 * A body is JSON, whose members are arguments and (nested lists) tensors, or safetensors, with arguments in the
 * query. Both become a struct named_tensors, so an endpoint checks them once and in the same words. Tensors of a
 * body that lies in staging memory (x->staging) are used where they are; others are copied there.
 *
 * Functions that return int return 0, or a status with the answer already made a problem. Loop thread. */
#ifndef SERVER_TENSORS_H
#define SERVER_TENSORS_H

#include "scheduler/requests.h"
#include "server/arguments.h"
#include "server/safetensors.h"

/* What numbers in JSON become. */
enum tensor_kind {
    TENSOR_INTEGERS, /* I64; safetensors may have I32 and U64 */
    TENSOR_VALUES,   /* geometry.dtype; safetensors may have what the endpoint takes */
    TENSOR_FLOATS    /* F32, and null is minus infinity */
};

struct tensor_spec {
    const char *name; /* NULL: the end of a list */
    enum tensor_kind kind;
};

struct tensor_body {
    struct http_exchange *x;
    struct request *request; /* its memory is the tensors' */
    const struct geometry *g;
    struct arguments arguments;
    struct named_tensors tensors;
};

/* tensors_wanted: whether the request's body says that it is safetensors. */
bool tensors_wanted(const struct http_exchange *x);

/* tensors_open(b, x, request, g, names, specs): read the body: arguments that are in `names`, tensors that are in
 * `specs`. The caller ends with tensors_close(), also when this has failed. */
int tensors_open(struct tensor_body *b, struct http_exchange *x, struct request *request,
                 const struct geometry *g, const char *const *names, const struct tensor_spec *specs);
void tensors_close(struct tensor_body *b);

/* tensors_open_object: likewise, of an object in a JSON body, at the JSON pointer `where`. Nothing is to be
 * closed. */
int tensors_open_object(struct tensor_body *b, struct http_exchange *x, struct request *request,
                        const struct geometry *g, const struct cJSON *object, const char *where,
                        const char *const *names, const struct tensor_spec *specs);

/* The tensor of that name, NULL if there is none. */
const struct named_tensor *tensors_find(const struct tensor_body *b, const char *name);

/* Say what is wrong with one; the second adds dtype and shape that it has, or that it is missing. */
int tensors_refuse(struct tensor_body *b, const char *name, const char *wants);
int tensors_mismatch(struct tensor_body *b, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Say that there is no staging memory for the tensors of a body or its answer. */
int tensors_no_room(struct http_exchange *x);

/* Whether a tensor has that dtype and that shape, `rank` numbers. */
bool tensors_is(const struct named_tensor *t, const char *dtype, unsigned rank, const uint64_t *shape);

/* Whether it is a list of `n` integers; one of them, false if it is 2^63 or more. */
bool tensors_is_list(const struct named_tensor *t, uint64_t n);
bool tensors_integer(const struct named_tensor *t, uint64_t i, int64_t *value);

/* An optional list of token ids, `count` of them (UINT64_MAX: any number). */
int tensors_tokens(struct tensor_body *b, const char *name, uint64_t count, struct request_tokens *tokens);

/* A tensor's data in memory that the backend can use; NULL: there is no room. */
const void *tensors_data(struct tensor_body *b, const struct named_tensor *t);

/* A tensor [n][heads][head_dim], all finite, of geometry.dtype or of `other`; with `layered`, [layers] may come
 * before; with `summed`, sums of its elements are finite too (numeric_first_unsummable). *rows stays NULL when
 * it is absent and not `required`. */
struct tensor_rows {
    bool required, layered, summed;
    uint32_t n, heads;
    enum dtype other;
};
int tensors_rows(struct tensor_body *b, const char *name, const struct tensor_rows *wants, const void **rows,
                 enum dtype *dtype);

#endif
