/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - see log.h.
 *
 *   whoever logs:  format, then a copy into the ring    tail ...... head    the writer: write(), then tail + 1
 *
 * The ring's mutex is held for a copy of one line only, never for a write(). */
#include "config/log.h"

#include "config/clock.h"
#include "config/numbers.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 1024, RING_LINES = 1024, MEMBER_BYTES_MAX = 160 };

const char *const log_level_names[LOG_LEVEL_COUNT + 1] = {"error", "warning", "info", "debug"};
const char *const log_format_names[] = {"text", "logfmt", "json", NULL};

struct line {
    size_t n;
    char bytes[LINE_BYTES_MAX];
};

/* What a line of an event says besides its message. */
struct event {
    const char *name, *reason;        /* NULL: it has none */
    const struct log_number *numbers; /* likewise */
};

/* How many lines of a kind may still be logged this second. */
struct kind {
    double second;
    unsigned left;
    uint64_t held_back;
};

static struct {
    enum log_level threshold; /* these three are written once, before the second thread starts */
    enum log_format format;
    bool to_journal;
    bool to_sink; /* likewise: not to stderr, but there: */
    void (*sink)(enum log_level level, const char *message, void *cookie);
    void *cookie;

    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t wake;
    bool running, stopping, ended; /* the writer */
    pthread_t writer;
    uint64_t head, tail; /* lines put in, and written */
    uint64_t dropped, told;
    bool failing, torn; /* the last line could not be written; nor its end */
    struct kind kinds[LOG_KINDS];
    struct line ring[RING_LINES];
} all = {.threshold = LOG_INFO, .mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* Whether stderr is the stream that systemd says is the journal's. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat info;
    unsigned long long device, inode;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &info) == 0 &&
           info.st_dev == device && info.st_ino == inode;
}

void log_init(enum log_level level, enum log_format format)
{
    all.threshold = level;
    all.format = format;
    all.to_journal = is_journal();
}

void log_to(void (*sink)(enum log_level level, const char *message, void *cookie), void *cookie)
{
    all.sink = sink;
    all.cookie = cookie;
    all.to_sink = true;
}

/* ---- writing --------------------------------------------------------------------------------------- */

/* All of `bytes`, however slowly it is read. Returns how much could be written: less where nobody reads any more, or a disk is full. */
static size_t write_all(const char *bytes, size_t n)
{
    size_t done = 0;
    while (done < n) {
        ssize_t written = write(STDERR_FILENO, bytes + done, n - done);
        if (written < 0 && errno == EAGAIN) {
            struct pollfd p = {STDERR_FILENO, POLLOUT, 0};
            poll(&p, 1, -1);
        } else if (written < 0 && errno != EINTR) {
            break;
        }
        done += written > 0 ? (size_t)written : 0;
    }
    return done;
}

/* A line, on a line of its own; one that cannot be written is dropped. */
static void write_line(const char *bytes, size_t n)
{
    pthread_mutex_lock(&all.mutex);
    bool torn = all.torn;
    pthread_mutex_unlock(&all.mutex);
    bool begins = !torn || write_all("\n", 1) == 1;
    size_t done = begins ? write_all(bytes, n) : 0;
    pthread_mutex_lock(&all.mutex);
    all.torn = !begins || (done > 0 && done < n);
    all.failing = done < n;
    all.dropped += all.failing;
    pthread_mutex_unlock(&all.mutex);
}

/* Copy a line into the ring, which is locked. False: there is no room. */
static bool put(const char *bytes, size_t n)
{
    if (all.head - all.tail == RING_LINES)
        return false;
    struct line *line = &all.ring[all.head++ % RING_LINES];
    memcpy(line->bytes, bytes, n);
    line->n = n;
    pthread_cond_signal(&all.wake);
    return true;
}

static void emit(const char *bytes, size_t n)
{
    pthread_mutex_lock(&all.mutex);
    bool running = all.running;
    if (running && !put(bytes, n))
        all.dropped++;
    pthread_mutex_unlock(&all.mutex);
    if (!running)
        write_line(bytes, n);
}

static void *run_writer(void *cookie)
{
    (void)cookie;
    pthread_mutex_lock(&all.mutex);
    for (;;) {
        uint64_t lost = all.failing ? 0 : all.dropped - all.told; /* to be told, where that can be written */
        while (all.head == all.tail && !lost && !all.stopping)
            pthread_cond_wait(&all.wake, &all.mutex);
        bool empty = all.head == all.tail;
        const struct line *line = &all.ring[all.tail % RING_LINES];
        all.told += empty ? lost : 0;
        if (empty && !lost && all.stopping)
            break;
        pthread_mutex_unlock(&all.mutex);
        if (empty && lost)
            log_event(LOG_WARNING, "lines_dropped", LOG_NUMBERS({"lines", (double)lost}),
                      "%llu line%s of the log %s dropped: nobody read it, or it could not be written",
                      (unsigned long long)lost, plural(lost), lost == 1 ? "was" : "were");
        else if (!empty)
            write_line(line->bytes, line->n);
        pthread_mutex_lock(&all.mutex);
        all.tail += !empty;
    }
    all.ended = true;
    pthread_cond_broadcast(&all.wake);
    pthread_mutex_unlock(&all.mutex);
    return NULL;
}

void log_start(void)
{
    pthread_mutex_lock(&all.mutex); /* the writer may have something to tell at once */
    all.running = pthread_create(&all.writer, NULL, run_writer, NULL) == 0;
    pthread_mutex_unlock(&all.mutex);
}

void log_stop(unsigned patience_ms)
{
    struct timespec until;
    pthread_mutex_lock(&all.mutex);
    if (!all.running) {
        pthread_mutex_unlock(&all.mutex);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience_ms / 1000;
    until.tv_nsec += (long)(patience_ms % 1000) * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    all.stopping = true;
    pthread_cond_broadcast(&all.wake);
    int rc = 0;
    while (!all.ended && rc == 0)
        rc = pthread_cond_timedwait(&all.wake, &all.mutex, &until);
    bool ended = all.ended;
    all.running = !ended; /* else what is still logged would wait as it does */
    pthread_mutex_unlock(&all.mutex);
    if (ended)
        pthread_join(all.writer, NULL);
    else
        pthread_detach(all.writer);
}

uint64_t log_dropped(void)
{
    pthread_mutex_lock(&all.mutex);
    uint64_t dropped = all.dropped;
    pthread_mutex_unlock(&all.mutex);
    return dropped;
}

/* ---- formatting ------------------------------------------------------------------------------------ */

/* A line being made; what does not fit is cut off. */
struct text {
    char bytes[LINE_BYTES_MAX];
    size_t n;
};

static void __attribute__((format(printf, 2, 3))) add(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->bytes + t->n, sizeof t->bytes - t->n, format, args);
    va_end(args);
    t->n += n > 0 ? (size_t)n : 0;
    t->n = t->n < sizeof t->bytes - 1 ? t->n : sizeof t->bytes - 1;
}

/* A message: what a client sent may be quoted in it, which must not begin a line, or end a string, of its own.
 * `spare`: bytes of what follows it. */
static void add_message(struct text *t, const char *message, bool quoted, size_t spare)
{
    for (; *message && t->n + spare + 2 < sizeof t->bytes; message++) {
        unsigned char c = (unsigned char)*message;
        if (quoted && (c == '"' || c == '\\'))
            t->bytes[t->n++] = '\\';
        t->bytes[t->n++] = (char)(c < ' ' || c == 0x7f || (quoted && c >= 0x80) ? '?' : c);
    }
    t->bytes[t->n] = '\0';
}

static void add_time(struct text *t)
{
    struct timespec now;
    struct tm utc;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    add(t, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

static void add_number(struct text *t, const char *name, int decimals, double value)
{
    add(t, all.format == LOG_JSON ? "\"%s\":%.*f," : "%s=%.*f ", name, decimals, value);
}

static void add_member(struct text *t, const char *name, const char *value, size_t n)
{
    char whole[MEMBER_BYTES_MAX];
    if (!value)
        return;
    snprintf(whole, sizeof whole, "%.*s", n < sizeof whole ? (int)n : (int)sizeof whole, value);
    add(t, all.format == LOG_JSON ? "\"%s\":\"" : "%s=\"", name);
    add_message(t, whole, true, 2);
    add(t, all.format == LOG_JSON ? "\"," : "\" ");
}

/* "sequence_ids":[7,91], in logfmt sequence_ids=7,91; and how many there are, where that is more. */
static void add_subject(struct text *t, const struct log_subject *s)
{
    uint32_t n = s->count < LOG_IDS_MAX ? s->count : LOG_IDS_MAX;
    if (!n)
        return;
    add(t, all.format == LOG_JSON ? "\"%s\":[" : "%s=", s->are_leases ? "lease_ids" : "sequence_ids");
    for (uint32_t i = 0; i < n; i++)
        add(t, "%s%llu", i ? "," : "", (unsigned long long)s->ids[i]);
    add(t, all.format == LOG_JSON ? "]," : " ");
    if (s->count > n)
        add_number(t, "id_count", 0, s->count);
}

/* What a line is about, each member with what divides it from the next one. */
static void add_members(struct text *t, const struct log_about *about)
{
    add_member(t, "method", about->method, MEMBER_BYTES_MAX);
    add_member(t, "path", about->path, (size_t)about->path_bytes);
    add_member(t, "route", about->route, MEMBER_BYTES_MAX);
    add_member(t, "client", about->client, MEMBER_BYTES_MAX);
    add_member(t, "key", about->key, MEMBER_BYTES_MAX);
    if (about->status)
        add_number(t, "status", 0, about->status);
    add_member(t, "code", about->code, MEMBER_BYTES_MAX);
    if (about->timed) {
        add_number(t, "ms", 3, about->ms);
        add_number(t, "bytes", 0, (double)about->bytes);
    }
    add_subject(t, &about->subject);
}

/* What happened, likewise. */
static void add_event(struct text *t, const struct event *event)
{
    if (event->name)
        add(t, all.format == LOG_JSON ? "\"event\":\"%s\"," : "event=%s ", event->name);
    for (const struct log_number *n = event->numbers; n && n->name; n++)
        add_number(t, n->name, n->value == floor(n->value) ? 0 : 3, n->value);
    add_member(t, "reason", event->reason, MEMBER_BYTES_MAX);
}

/* The whole line, of a request, of an event, or of both; NULL: it is of none. */
static void make_line(struct text *t, enum log_level level, const struct log_about *about,
                      const struct event *event, const char *message)
{
    char id[MEMBER_BYTES_MAX];
    const char *request = about && about->id ? id : NULL;
    if (request)
        snprintf(id, sizeof id, "%s", about->id);
    static const char priorities[] = "3467"; /* syslog's, by level */
    const char *name = log_level_names[level];
    t->n = 0;
    if (all.to_journal) /* journald takes it off the line */
        add(t, "<%c>", priorities[level]);
    if (all.format == LOG_JSON) {
        add(t, "{\"time\":\"");
        add_time(t);
        add(t, "\",\"level\":\"%s\",", name);
        if (request)
            add(t, "\"request\":\"%s\",", request);
        if (about)
            add_members(t, about);
        if (event)
            add_event(t, event);
        add(t, "\"msg\":\"");
        add_message(t, message, true, 2);
        add(t, "\"}");
    } else if (all.format == LOG_LOGFMT) {
        add(t, "time=");
        add_time(t);
        add(t, " level=%s", name);
        if (request)
            add(t, " request=%s", request);
        add(t, " ");
        if (about)
            add_members(t, about);
        if (event)
            add_event(t, event);
        add(t, "msg=\"");
        add_message(t, message, true, 1);
        add(t, "\"");
    } else {
        if (!all.to_journal) {
            add(t, "attnd: ");
            add_time(t);
            add(t, " %s ", name);
        }
        add_message(t, message, false, request ? strlen(request) + 11 : 0);
        if (request)
            add(t, " (request %s)", request);
    }
    t->bytes[t->n++] = '\n'; /* add() left room for it */
}

static void __attribute__((format(printf, 4, 0)))
say(enum log_level level, const struct log_about *about, const struct event *event, const char *format,
    va_list args)
{
    char message[LINE_BYTES_MAX];
    struct text text;
    if (level > all.threshold)
        return;
    vsnprintf(message, sizeof message, format, args);
    if (all.to_sink) {
        if (all.sink)
            all.sink(level, message, all.cookie);
        return;
    }
    make_line(&text, level, about, event, message);
    emit(text.bytes, text.n);
}

void log_line(enum log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(level, NULL, &(struct event){0}, format, args);
    va_end(args);
}

void log_event(enum log_level level, const char *event, const struct log_number *numbers, const char *format,
               ...)
{
    va_list args;
    va_start(args, format);
    say(level, NULL, &(struct event){.name = event, .numbers = numbers}, format, args);
    va_end(args);
}

void log_event_of(enum log_level level, const char *event, const struct log_about *about,
                  const struct log_number *numbers, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(level, about, &(struct event){.name = event, .numbers = numbers}, format, args);
    va_end(args);
}

void log_fault(const char *format, ...)
{
    char message[LINE_BYTES_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (all.format != LOG_TEXT) {
        log_event(LOG_ERROR, "not_started", NULL, "%s", message);
        return;
    }
    struct text text = {.n = 0};
    add(&text, "%s", all.to_journal ? "<3>" : "attnd: ");
    add_message(&text, message, false, 0);
    text.bytes[text.n++] = '\n';
    emit(text.bytes, text.n); /* behind what was logged before */
}

void log_end(enum log_level level, int exit_code, const char *reason, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(level, NULL,
        &(struct event){
            .name = "stopped", .reason = reason, .numbers = LOG_NUMBERS({"exit_code", exit_code})},
        format, args);
    va_end(args);
}

bool log_wants(enum log_level level)
{
    return level <= all.threshold;
}

/* Whether another line of a kind may be logged now; *held_back: how many before could not. */
static bool may_log(unsigned kind, uint64_t *held_back)
{
    double now = clock_s();
    pthread_mutex_lock(&all.mutex);
    struct kind *k = &all.kinds[kind];
    if (now - k->second >= 1) {
        k->second = now;
        k->left = kind == LOG_ANSWERED ? LOG_ANSWERED_PER_S : LOG_KIND_PER_S;
    }
    bool may = k->left > 0;
    *held_back = k->held_back;
    k->left -= may;
    k->held_back = may ? 0 : k->held_back + 1;
    pthread_mutex_unlock(&all.mutex);
    return may;
}

void log_request(enum log_level level, unsigned kind, const struct log_about *about, const char *format, ...)
{
    char message[LINE_BYTES_MAX];
    struct text text;
    uint64_t held_back = 0;
    va_list args;
    if (level > all.threshold || (all.threshold < LOG_DEBUG && !may_log(kind, &held_back)))
        return;
    va_start(args, format);
    int n = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (held_back && n > 0 && n < LINE_BYTES_MAX)
        snprintf(message + n, sizeof message - (size_t)n, "; %llu more like it were not logged",
                 (unsigned long long)held_back);
    make_line(&text, level, about, NULL, message);
    emit(text.bytes, text.n);
}
