/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - every way an operation can fail, in one table.
 *
 * Functions return 0 or one of these negative codes. Each has a name for logs and for the `code` member
 * of a problem+json answer, a title for people, and the HTTP status that the server answers with. */
#ifndef CONFIG_STATUS_H
#define CONFIG_STATUS_H

#define MUST_USE __attribute__((warn_unused_result))

/* XX(constant, code on the wire, title, HTTP status) */
#define STATUS_MAP(XX)                                                                                       \
    XX(ATTND_MALFORMED, "malformed", "The request is not well formed", 400)                                  \
    XX(ATTND_NO_KEY, "unauthorized", "A key is needed", 401)                                                 \
    XX(ATTND_FORBIDDEN, "forbidden", "The request is not allowed", 403)                                      \
    XX(ATTND_NOT_FOUND, "not_found", "There is no such thing", 404)                                          \
    XX(ATTND_BAD_METHOD, "method_not_allowed", "The method is not served here", 405)                         \
    XX(ATTND_NOT_ACCEPTABLE, "not_acceptable", "No representation that Accept allows", 406)                  \
    XX(ATTND_TIMEOUT, "timeout", "The request took too long to arrive", 408)                                 \
    XX(ATTND_EXISTS, "exists", "It exists already", 409)                                                     \
    XX(ATTND_GAP, "position_gap", "The rows do not continue what stands", 409)                               \
    XX(ATTND_CONFLICT, "content_conflict", "Other content stands there", 409)                                \
    XX(ATTND_FIXED, "parameters_fixed", "The parameters are in use", 409)                                    \
    XX(ATTND_IN_WORKLOAD, "in_workload", "The sequence is driven by a workload", 409)                        \
    XX(ATTND_GONE, "gone", "It existed, and is gone", 410)                                                   \
    XX(ATTND_EPOCH_GONE, "epoch_gone", "The epoch is too long ago", 410)                                     \
    XX(ATTND_MOVED, "moved", "It is on another daemon now", 410)                                             \
    XX(ATTND_LENGTH_REQUIRED, "length_required", "Content-Length is missing", 411)                           \
    XX(ATTND_CHANGED, "changed", "It is not what it was", 412)                                               \
    XX(ATTND_BODY_TOO_LARGE, "body_too_large", "The body is too large", 413)                                 \
    XX(ATTND_URL_TOO_LONG, "url_too_long", "The URL is too long", 414)                                       \
    XX(ATTND_BAD_TYPE, "unsupported_media_type", "The content type is not served here", 415)                 \
    XX(ATTND_EXPECTATION, "expectation_failed", "Only Expect: 100-continue is served", 417)                  \
    XX(ATTND_OTHER_NODE, "other_node", "The id belongs to another node", 421)                                \
    XX(ATTND_INVALID, "invalid", "The request is well formed but wrong", 422)                                \
    XX(ATTND_QUOTA, "quota_exceeded", "A quota of the key is used up", 429)                                  \
    XX(ATTND_HEADERS_TOO_LARGE, "headers_too_large", "The headers are too large", 431)                       \
    XX(ATTND_NO_MEMORY, "out_of_memory", "Out of memory", 500)                                               \
    XX(ATTND_INTERNAL, "internal", "A defect in the daemon", 500)                                            \
    XX(ATTND_DEVICE, "device_failed", "The device failed", 500)                                              \
    XX(ATTND_LOST, "content_lost", "What was swapped to a file cannot be read back", 500)                    \
    XX(ATTND_BAD_VERSION, "http_version", "Only HTTP/1.0 and HTTP/1.1 are served", 505)                      \
    XX(ATTND_BUSY, "busy", "The daemon is busy", 503)                                                        \
    XX(ATTND_NO_BLOCKS, "blocks_exhausted", "KV blocks exhausted", 503)                                      \
    XX(ATTND_NO_HOST_BLOCKS, "host_blocks_exhausted", "Host blocks for swapping exhausted", 503)             \
    XX(ATTND_NO_SEQUENCES, "sequences_exhausted", "Sequence slots exhausted", 503)                           \
    XX(ATTND_DEADLINE, "deadline", "The deadline passed before it was done", 504)                            \
    XX(ATTND_UNWRITTEN, "unwritten", "A slot was read that nobody has written", 422)

enum attnd_status {
    ATTND_STATUS_BASE = -1000, /* away from errno and libuv codes, so that a mix-up shows */
#define XX(constant, code, title, http) constant,
    STATUS_MAP(XX)
#undef XX
        ATTND_STATUS_END
};

/* How many there are; status_number() is 0 to that. */
enum { STATUS_COUNT = ATTND_STATUS_END - ATTND_STATUS_BASE - 1 };

/* The three columns for `status`, which must be one of the codes above. Constant strings; any thread. */
const char *status_code(int status);
const char *status_title(int status);
int status_http(int status);

/* status_number: the place of `status` in the table. status_of_number: the other way. */
unsigned status_number(int status);
int status_of_number(unsigned number);

#endif
