/* SPDX-License-Identifier: Apache-2.0 */
/* terminal.c - see terminal.h. */
#include "clients/terminal.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ESCAPED_BYTES = 16 };

/* Set by signals, so it is of the process. */
static volatile sig_atomic_t interrupted;

/* The character at `s`, at most `n` bytes, and how many it takes. What is not UTF-8 takes one and is -1. */
static size_t read_character(const unsigned char *s, size_t n, int32_t *c)
{
    size_t length = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    *c = -1;
    if (length == 1) {
        *c = s[0];
        return 1;
    }
    if (s[0] < 0xc2 || s[0] > 0xf4 || length > n)
        return 1;
    int32_t value = s[0] & (0x7f >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 1;
        value = value << 6 | (s[i] & 0x3f);
    }
    bool is_short = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
    if (is_short || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
        return 1;
    *c = value;
    return length;
}

/* Characters that are not seen themselves and change how others are: controls of direction, of width zero, line and paragraph
 * separators, tags. */
static bool is_hidden(int32_t c)
{
    static const struct {
        int32_t first, last;
    } ranges[] = {{0x00ad, 0x00ad}, {0x034f, 0x034f}, {0x061c, 0x061c}, {0x115f, 0x1160},  {0x180e, 0x180e},
                  {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0x3164, 0x3164},  {0xfe00, 0xfe0f},
                  {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    }
    return false;
}

/* What is shown of the next character of `s`; returns how many bytes of it that was. */
static size_t escape_one(const unsigned char *s, size_t n, char out[ESCAPED_BYTES])
{
    int32_t c;
    size_t length = read_character(s, n, &c);
    if (c < 0)
        snprintf(out, ESCAPED_BYTES, "\\x%02x", s[0]);
    else if (c < 0x20 || (c >= 0x7f && c < 0xa0))
        snprintf(out, ESCAPED_BYTES, "\\x%02x", (unsigned)c);
    else if (is_hidden(c))
        snprintf(out, ESCAPED_BYTES, c > 0xffff ? "\\U%08x" : "\\u%04x", (unsigned)c);
    else
        snprintf(out, ESCAPED_BYTES, "%.*s", (int)length, (const char *)s);
    return length;
}

void terminal_put(FILE *f, const char *text)
{
    char piece[ESCAPED_BYTES];
    size_t n = text ? strlen(text) : 0;
    for (size_t i = 0; i < n;) {
        i += escape_one((const unsigned char *)text + i, n - i, piece);
        fputs(piece, f);
    }
}

char *terminal_escape(const char *text, char *out, size_t room)
{
    char piece[ESCAPED_BYTES];
    size_t n = text ? strlen(text) : 0, used = 0;
    for (size_t i = 0; i < n;) {
        i += escape_one((const unsigned char *)text + i, n - i, piece);
        size_t more = strlen(piece);
        if (used + more + 1 > room)
            break;
        memcpy(out + used, piece, more);
        used += more;
    }
    if (room > 0)
        out[used] = '\0';
    return out;
}

void terminal_put_csv(FILE *f, const char *text)
{
    char piece[ESCAPED_BYTES];
    size_t n = strlen(text);
    bool quoted = strpbrk(text, ",\" ") != NULL;
    if (quoted)
        fputc('"', f);
    for (size_t i = 0; i < n;) {
        i += escape_one((const unsigned char *)text + i, n - i, piece);
        fputs(strcmp(piece, "\"") == 0 ? "\"\"" : piece, f);
    }
    if (quoted)
        fputc('"', f);
}

bool terminal_has_colours(FILE *f)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && (!none || !*none) && term && strcmp(term, "dumb") != 0;
}

int terminal_columns(FILE *f)
{
    struct winsize size = {0};
    return ioctl(fileno(f), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void note_signal(int signal)
{
    (void)signal;
    interrupted = 1;
}

void terminal_watch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    /* Not restarted, so that what waits for the daemon or for a key looks at once. */
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
}

bool terminal_interrupted(void)
{
    return interrupted;
}
