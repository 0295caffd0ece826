/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - the whole daemon in the process of a fuzzer: connections, routes, engine, a CPU backend with a tiny pool.
 *
 * A run is one connection over a unix socket: what the fuzzer has made is sent, then the sending side is shut down, and
 * what comes back is read until the daemon closes. Every answer must begin as one of HTTP/1.1. */
#ifndef TESTS_FUZZ_DAEMON_H
#define TESTS_FUZZ_DAEMON_H

#include <stddef.h>
#include <stdint.h>

/* The exit code where the daemon cannot be started: the machine lacks something. Said on stderr. */
#define FUZZ_NOT_STARTED 78

/* fuzz_send: bytes as they are, in pieces of `piece` bytes (0: all at once). */
void fuzz_send(const uint8_t *bytes, size_t n, size_t piece);

/* fuzz_request: a request with that method, target (cut at its end by a line end) and type, and a body. */
void fuzz_request(const char *method, const char *target, const char *type, const uint8_t *body, size_t n);

/* fuzz_line: the first line of the input, without its end, as text that ends with NUL, of at most `room` bytes; what follows it is left in
 * *bytes, *n. Bytes that would end a line or a word of the head become "_". */
void fuzz_line(const uint8_t **bytes, size_t *n, char *line, size_t room);

#endif
