/* log.c - see log.h. */
#include "config/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1024 };

const char *const log_level_names[LOG_LEVEL_COUNT + 1] = {"error", "warning", "info", "debug"};

static enum log_level threshold = LOG_INFO; /* written once, before the second thread starts */

void log_init(enum log_level level)
{
    threshold = level;
}

void log_line(enum log_level level, const char *format, ...)
{
    char line[LINE_BYTES_MAX];
    struct tm utc;
    time_t now = time(NULL);
    va_list args;
    if (level > threshold)
        return;

    gmtime_r(&now, &utc);
    size_t n = strftime(line, sizeof line, "attnd: %Y-%m-%dT%H:%M:%SZ ", &utc);
    n += (size_t)snprintf(line + n, sizeof line - n, "%s ", log_level_names[level]);
    va_start(args, format);
    int wanted = vsnprintf(line + n, sizeof line - n, format, args);
    va_end(args);
    if (wanted > 0)
        n += (size_t)wanted;
    if (n > sizeof line - 1)
        n = sizeof line - 1;       /* a longer line is cut */
    for (size_t i = 0; i < n; i++) /* what a client sent may be quoted: it must not begin a line of its own */
        line[i] = (unsigned char)line[i] < ' ' ? '?' : line[i];
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nobody reads the log; nothing else to tell */
}
