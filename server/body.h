/* body.h - reading queries and JSON bodies, with one sentence for what is wrong with them.
 *
 * Every function that returns int returns 0, or a status with the answer of `x` already made a problem.
 * `where` is the JSON pointer of the object that a member belongs to, "" for the body itself. */
#ifndef SERVER_BODY_H
#define SERVER_BODY_H

#include "config/json.h"
#include "server/http_reply.h"

/* query_next(query, at, text): the next parameter of a query from *at on, which moves past it; false at
 * the end. */
bool query_next(struct http_text query, size_t *at, struct http_text *text);

/* query_number: the number behind "name=" of a parameter, if that is what it is. */
bool query_number(struct http_text text, const char *name, uint64_t *value);

/* query_integer: likewise an integer, perhaps negative, in [min, max]. */
bool query_integer(struct http_text text, const char *name, int64_t min, int64_t max, int64_t *value);

/* query_is: whether the parameter is `name=...`; what stands behind goes to *value. */
bool query_is(struct http_text text, const char *name, struct http_text *value);

int query_refuse(struct http_exchange *x, struct http_text text, const char *wants);

/* No query; no body. */
int query_none(struct http_exchange *x);
int body_none(struct http_exchange *x);

/* Whether a media type, its parameters aside, is `name`. */
bool body_is_type(struct http_text type, const char *name);

/* accepts: whether an Accept header takes `type`, by its name or by a range, and with a q above 0;
 * an empty one takes everything (RFC 9110, 12.5.1). */
bool accepts(struct http_text accept, const char *type);

/* body_no_room: staging memory for the body, or for its answer, is all in use. */
int body_no_room(struct http_exchange *x);

/* body_open(x, names, tree): the body as an object whose members are all in `names` (NULL-terminated);
 * an empty body counts as {}. The caller frees *tree with cJSON_Delete(); after an error it is NULL. */
int body_open(struct http_exchange *x, const char *const *names, struct cJSON **tree);

/* A JSON body being read. */
struct json_body {
    struct http_exchange *x;
    struct cJSON *tree;
    const char *where; /* the JSON pointer of the object; NULL: it is the body itself */
};

/* The functions below for one, which json_body_open() opens as body_open() does. */
int json_body_open(struct json_body *b, struct http_exchange *x, const char *const *names);
int json_body_refuse(struct json_body *b, const char *member, const char *wants);
int json_body_integer(struct json_body *b, const char *name, int64_t min, int64_t max, int64_t *value);

/* The member of that name; NULL if there is none. */
const struct cJSON *json_body_member(const struct json_body *b, const char *name);

/* member_wrong: the member `name` is not what is wanted. */
int member_wrong(struct http_exchange *x, const char *where, const char *name, const char *wants);

/* member_check: whether `object` is one, with members of `names` only. NULL is fine: it is absent. */
int member_check(struct http_exchange *x, const char *where, const struct cJSON *object,
                 const char *const *names);

/* An optional member that is an integer (within +-2^53), or a number, in [min, max]; left alone when it
 * is absent. */
int member_integer(struct http_exchange *x, const char *where, const struct cJSON *object, const char *name,
                   int64_t min, int64_t max, int64_t *value);
int member_number(struct http_exchange *x, const char *where, const struct cJSON *object, const char *name,
                  double min, double max, double *value);

#endif
