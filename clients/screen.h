/* SPDX-License-Identifier: Apache-2.0 */
/* screen.h - lines that are drawn again and again in a terminal, or once where there is none.
 *
 * A live screen is the terminal's other one, so that what was there before comes back when it is closed. A frame is composed in
 * memory and written at once; its lines are cut at the width of the terminal. Plain ANSI (ECMA-48) is all that it needs. */
#ifndef CLIENTS_SCREEN_H
#define CLIENTS_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <termios.h>

enum { SCREEN_INTERRUPTED = -1, SCREEN_UP = 1000, SCREEN_DOWN };

enum screen_style {
    SCREEN_PLAIN,
    SCREEN_BOLD,
    SCREEN_DIM,
    SCREEN_RED,
    SCREEN_GREEN,
    SCREEN_YELLOW,
    SCREEN_BLUE,
    SCREEN_MAGENTA,
    SCREEN_CYAN,
    SCREEN_CHANGED /* reversed */
};

struct screen {
    bool live, colours, has_keys;
    int columns, lines; /* of the terminal, since the frame was begun; 80 and 24 where there is none */
    int used;           /* lines of this frame */
    char *text;
    size_t n, room;
    struct termios before;
};

/* screen_open: a live one if it is wanted and stdout is a terminal. Signals are watched from here on (terminal.h). */
void screen_open(struct screen *s, bool live);
/* screen_close: the terminal is as it was. */
void screen_close(struct screen *s);

/* screen_begin, screen_line, screen_show: a frame. Lines beyond the last one of the terminal are dropped when it is live.
 * What is printed is escaped by the caller; styles are of screen_style(). */
void screen_begin(struct screen *s);
void screen_line(struct screen *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void screen_show(struct screen *s);

/* screen_style: what begins text in this style, SCREEN_PLAIN what ends it; "" without colours. */
const char *screen_style(const struct screen *s, enum screen_style style);

/* screen_wait: until a key is pressed, which is returned; 0: it took that long; SCREEN_INTERRUPTED: a signal came. */
int screen_wait(struct screen *s, double seconds);

/* screen_bar: `cells` characters, of which so many as each part says are of its letter. */
void screen_bar(char *bar, size_t cells, const double *parts, const char *letters, size_t count);

#endif
