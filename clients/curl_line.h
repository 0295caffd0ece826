/* SPDX-License-Identifier: Apache-2.0 */
/* curl_line.h - a call as the line for a shell that makes it. */
#ifndef CLIENTS_CURL_LINE_H
#define CLIENTS_CURL_LINE_H

#include <stddef.h>

/* curl_line_write: curl with this body; NULL: none; "@-": of standard input. What it quotes is for a POSIX shell. A key is named
 * $ATTND_KEY, never written. Returns out. */
char *curl_line_write(const char *url, const char *key, const char *ca_file, const char *method,
                      const char *path, const char *body, char *out, size_t room);

#endif
