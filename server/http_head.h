/* http_head.h - what llhttp does not check about the head of a request.
 *
 * llhttp 8.1.0, compiled strict, still accepts header folding (and so `Transfer-Encoding:` with its
 * value on the next line), a space before a header name, and an empty header name: each lets a proxy in
 * front of us read another request than we do. So does another protocol than HTTP in the request line.
 * The raw bytes are scanned for them before llhttp sees any. */
#ifndef SERVER_HTTP_HEAD_H
#define SERVER_HTTP_HEAD_H

#include <stddef.h>

/* http_head_length(bytes, n): length of the head at the start of `bytes`, its empty line included; 0 if
 * that line is not there yet. Empty lines before the request line belong to the head (RFC 9112, 2.2). */
size_t http_head_length(const char *bytes, size_t n);

/* http_head_fault(head, n): why a complete head must be refused, as a constant sentence; NULL if
 * nothing is wrong with it. Pure; any thread. */
const char *http_head_fault(const char *head, size_t n);

#endif
