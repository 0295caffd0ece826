/* http_head.c - see http_head.h. */
#include "server/http_head.h"

#include <stdbool.h>
#include <string.h>

/* Index of the first byte that is not part of an empty line. */
static size_t skip_empty_lines(const char *bytes, size_t n)
{
    size_t at = 0;
    while (at + 1 < n && bytes[at] == '\r' && bytes[at + 1] == '\n')
        at += 2;
    return at;
}

size_t http_head_length(const char *bytes, size_t n)
{
    size_t start = skip_empty_lines(bytes, n);
    const char *end = start < n ? memmem(bytes + start, n - start, "\r\n\r\n", 4) : NULL;
    return end ? (size_t)(end - bytes) + 4 : 0;
}

/* Whether the request line ends with a version of HTTP: llhttp takes RTSP/1.0 and ICE/1.0, too. */
static bool names_http(const char *head, size_t n)
{
    static const char token[] = " HTTP/";
    size_t start = skip_empty_lines(head, n);
    const char *end = memmem(head + start, n - start, "\r\n", 2);
    return end && memmem(head + start, (size_t)(end - head) - start, token, sizeof token - 1);
}

const char *http_head_fault(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char next = i + 1 < n ? head[i + 1] : '\0';
        if (head[i] == '\0')
            return "a NUL byte in the head";
        if (head[i] == '\r' && next != '\n')
            return "a CR without LF in the head";
        if (head[i] != '\n')
            continue;
        if (i == 0 || head[i - 1] != '\r')
            return "a LF without CR in the head";
        if (next == ' ' || next == '\t')
            return "a header line that begins with white space";
        if (next == ':')
            return "a header without a name";
    }
    return names_http(head, n) ? NULL : "a request line that does not end with HTTP/1.1 or HTTP/1.0";
}
