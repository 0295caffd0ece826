/* SPDX-License-Identifier: Apache-2.0 */
/* screen.c - see screen.h. */
#include "clients/screen.h"
#include "clients/terminal.h"
#include "config/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, LINES = 24, COLUMNS = 80, WIDE_FROM = 0x1100 };

static const char OPEN[] = "\033[?1049h\033[?25l", CLOSE[] = "\033[?25h\033[?1049l";

static void append(struct screen *s, const char *text, size_t n)
{
    if (s->n + n + 1 > s->room) {
        size_t room = 2 * (s->n + n + 1);
        char *grown = realloc(s->text, room);
        if (!grown)
            return;
        s->text = grown;
        s->room = room;
    }
    memcpy(s->text + s->n, text, n);
    s->n += n;
}

/* All of it, at once if the terminal takes it. */
static void write_all(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);
        if (done < 0 && errno != EINTR)
            return;
        if (done > 0) {
            text += done;
            n -= (size_t)done;
        }
    }
}

void screen_open(struct screen *s, bool live)
{
    *s = (struct screen){.live = live && isatty(STDOUT_FILENO), .colours = terminal_has_colours(stdout)};
    terminal_watch_signals();
    if (!s->live)
        return;
    fflush(stdout);
    s->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &s->before) == 0;
    if (s->has_keys) {
        struct termios raw = s->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped one would leave the other screen behind */
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    write_all(OPEN, sizeof OPEN - 1);
}

void screen_close(struct screen *s)
{
    if (s->live)
        write_all(CLOSE, sizeof CLOSE - 1);
    if (s->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &s->before);
    free(s->text);
    *s = (struct screen){0};
}

void screen_begin(struct screen *s)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    s->columns = known ? size.ws_col : COLUMNS;
    s->lines = known ? size.ws_row : LINES;
    s->used = 0;
    s->n = 0;
}

/* The bytes of a line that fit the width. Styles take none of it; characters from WIDE_FROM on may take two cells, and the
 * terminal alone knows. */
static size_t fitting(const char *line, size_t n, int columns)
{
    int used = 0;
    for (size_t i = 0; i < n;) {
        size_t start = i;
        unsigned char c = (unsigned char)line[i++];
        if (c == '\033') {
            while (i < n && line[i] != 'm')
                i++;
            i += i < n;
            continue;
        }
        while (i < n && ((unsigned char)line[i] & 0xc0) == 0x80)
            i++;
        used += c >= 0xe1 ? 2 : 1; /* the first byte of U+1000 and on: close enough to WIDE_FROM */
        if (used > columns)
            return start;
    }
    return n;
}

void screen_line(struct screen *s, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    size_t n = strlen(line);
    if (s->live && s->used >= s->lines)
        return;
    if (s->live && s->used > 0)
        append(s, "\r\n", 2);
    append(s, line, s->live ? fitting(line, n, s->columns) : n);
    if (s->colours)
        append(s, "\033[0m", 4);
    append(s, s->live ? "\033[K" : "\n", s->live ? 3 : 1);
    s->used++;
}

void screen_show(struct screen *s)
{
    if (s->live) {
        append(s, "\033[J", 3);
        write_all("\033[H", 3);
        write_all(s->text, s->n);
    } else {
        fwrite(s->text ? s->text : "", 1, s->n, stdout);
        fflush(stdout);
    }
}

const char *screen_style(const struct screen *s, enum screen_style style)
{
    static const char *const styles[] = {
        [SCREEN_PLAIN] = "\033[0m",  [SCREEN_BOLD] = "\033[1m",     [SCREEN_DIM] = "\033[2m",
        [SCREEN_RED] = "\033[31m",   [SCREEN_GREEN] = "\033[32m",   [SCREEN_YELLOW] = "\033[33m",
        [SCREEN_BLUE] = "\033[34m",  [SCREEN_MAGENTA] = "\033[35m", [SCREEN_CYAN] = "\033[36m",
        [SCREEN_CHANGED] = "\033[7m"};
    return s->colours ? styles[style] : "";
}

/* The key that was pressed: a byte, or an arrow. */
static int read_key(void)
{
    char bytes[8];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    if (n >= 3 && bytes[0] == '\033' && bytes[1] == '[')
        return bytes[2] == 'A' ? SCREEN_UP : bytes[2] == 'B' ? SCREEN_DOWN : 0;
    return n > 0 ? (unsigned char)bytes[0] : 'q'; /* the terminal is gone */
}

int screen_wait(struct screen *s, double seconds)
{
    double end = clock_s() + seconds, left = seconds;
    while (left > 0) {
        struct pollfd keys = {.fd = s->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
        if (terminal_interrupted())
            return SCREEN_INTERRUPTED;
        if (poll(&keys, 1, (int)(left * 1e3) + 1) > 0)
            return read_key();
        left = end - clock_s();
    }
    return terminal_interrupted() ? SCREEN_INTERRUPTED : 0;
}

void screen_bar(char *bar, size_t cells, const double *parts, const char *letters, size_t count)
{
    double before = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        before += parts[i] > 0 ? parts[i] : 0;
        size_t end = before >= 1 ? cells : (size_t)(before * (double)cells + 0.5);
        if (parts[i] > 0 && end == at && end < cells)
            end++; /* what there is is seen */
        while (at < end)
            bar[at++] = letters[i];
    }
    while (at < cells)
        bar[at++] = '.';
    bar[cells] = '\0';
}
