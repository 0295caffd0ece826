/* log.h - one line to stderr per event that an operator wants to know of.
 *
 *   attnd: 2026-11-21T05:16:29Z info listening on http://127.0.0.1:8400
 *
 * Any thread; a line is written by one write(), so lines never mix. */
#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG, LOG_LEVEL_COUNT };

extern const char *const log_level_names[LOG_LEVEL_COUNT + 1]; /* NULL-terminated, for parsing */

/* Lines above `level` are dropped. Called once, before threads are started; LOG_INFO until then. */
void log_init(enum log_level level);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
