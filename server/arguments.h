/* SPDX-License-Identifier: Apache-2.0 */
/* arguments.h - what a request says beside its tensors: members of its JSON body, or parameters of its query.
 *
 * Both are read by the same functions and refused in the same words. Every function that returns int returns
 * 0, or a status with the answer of the exchange already made a problem. Loop thread. */
#ifndef SERVER_ARGUMENTS_H
#define SERVER_ARGUMENTS_H

#include "config/json.h"
#include "server/http_reply.h"

enum {
    ARGUMENTS_MAX = 16, /* parameters of a query */
    ARGUMENTS_TEXT_BYTES = 160
};

struct arguments {
    struct http_exchange *x;
    struct cJSON *tree;         /* of the body, to be freed */
    const struct cJSON *object; /* whose members they are; NULL: they are parameters */
    const char *where;          /* its JSON pointer; "": the body */
    unsigned count;             /* of parameters: */
    struct {
        const char *name;
        struct http_text value; /* decoded, and followed by a NUL */
    } query[ARGUMENTS_MAX];
    char text[HTTP_URL_BYTES_MAX + 1];
};

/* arguments_of_query(a, x, names, elsewhere): parameters, each at most once, all in `names`; `elsewhere`: what
 * belongs in the body and is told so. Lists end with NULL; a NULL list is an empty one. */
int arguments_of_query(struct arguments *a, struct http_exchange *x, const char *const *names,
                       const char *const *elsewhere);

/* arguments_of_json(a, x, names, lists): the members of a JSON body, all in `names` or `lists`; no body is
 * the same as {}. There is no query. The caller ends with arguments_close(). */
int arguments_of_json(struct arguments *a, struct http_exchange *x, const char *const *names,
                      const char *const *lists);

/* arguments_of_object(a, x, object, where, names, lists): likewise those of an object inside. NULL: it is
 * absent. */
int arguments_of_object(struct arguments *a, struct http_exchange *x, const struct cJSON *object,
                        const char *where, const char *const *names, const char *const *lists);

/* arguments_no_such: "there is no such WHAT", with the name of both lists that is near to `name`, where there is one. */
void arguments_no_such(const char *what, const char *name, const char *const *names, const char *const *lists,
                       char text[ARGUMENTS_TEXT_BYTES]);

/* arguments_close: free what arguments_of_json() made. Also of one that failed. */
void arguments_close(struct arguments *a);

/* No body; neither body nor query. */
int arguments_no_body(struct http_exchange *x);
int arguments_none(struct http_exchange *x);

bool arguments_has(const struct arguments *a, const char *name);

/* The JSON value; NULL: it is absent, or a parameter. */
const struct cJSON *arguments_member(const struct arguments *a, const char *name);

/* Each leaves *value alone when the argument is absent: an integer in [min, max], within +-2^53; a number;
 * true or false, or in a query 1 or 0; the index of one of `n` words; a text of at most `most` bytes, as long
 * as `a` is open. */
int arguments_integer(struct arguments *a, const char *name, int64_t min, int64_t max, int64_t *value);
int arguments_number(struct arguments *a, const char *name, double min, double max, double *value);
int arguments_flag(struct arguments *a, const char *name, bool *value);
int arguments_word(struct arguments *a, const char *name, const char *const *words, unsigned n,
                   unsigned *index);
int arguments_text(struct arguments *a, const char *name, size_t most, struct http_text *value);

/* Say what is wrong with one. */
int arguments_refuse(struct arguments *a, const char *name, const char *wants);

#endif
