/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.c - a map of the pool: a character a block, once, or again and again with what has changed reversed. */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/screen.h"
#include "clients/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAP_COLUMNS = 64, PAGE = 1000, NODE_BYTES = 64, AROUND_LINES = 4 /* head, legend, and between */ };

/* Some blocks, from `first` on. */
struct map {
    char *marks, *before; /* [room]; `before`: of the last frame, if that had the same first */
    size_t count, count_before, room;
    double first, first_before, epoch;
};

/* One character for a block: '.' free, 'c' cached, 'f' fenced, and held: its references, '+' for more than 9, 'x' by another key. */
static char block_mark(const cJSON *block)
{
    const char *state = answer_text(block, "state");
    double refs = answer_number(block, "refs");
    if (strcmp(state, "held") == 0 && strcmp(answer_text(block, "owner"), "other") == 0)
        return 'x';
    if (strcmp(state, "held") == 0)
        return refs > 9 ? '+' : (char)('0' + (int)refs);
    return strcmp(state, "free") == 0 ? '.' : state[0];
}

static enum screen_style style_of(char mark)
{
    static const struct {
        char mark;
        enum screen_style style;
    } styles[] = {{'.', SCREEN_DIM},  {'c', SCREEN_BLUE},    {'f', SCREEN_RED}, {'1', SCREEN_GREEN},
                  {'2', SCREEN_CYAN}, {'+', SCREEN_MAGENTA}, {'x', SCREEN_DIM}};
    for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
        if (styles[i].mark == mark)
            return styles[i].style;
    }
    return SCREEN_YELLOW; /* 3 to 9 */
}

static bool add(struct map *m, char mark)
{
    if (m->count == m->room) {
        size_t room = m->room ? 2 * m->room : PAGE;
        char *marks = realloc(m->marks, room);
        if (!marks)
            return false;
        m->marks = marks;
        char *before = realloc(m->before, room);
        if (!before)
            return false;
        m->before = before;
        m->room = room;
    }
    m->marks[m->count++] = mark;
    return true;
}

/* Ask for `most` blocks from m->first on. With --json the answers are printed. False: *reply says why not. */
static bool fetch(const struct command *c, struct map *m, double most, struct http_reply *reply)
{
    char path[COMMAND_PATH_BYTES], *swap = m->before;
    double next = m->first;
    m->before = m->marks;
    m->marks = swap;
    m->count_before = m->count;
    m->count = 0;
    do {
        cJSON *page;
        const cJSON *block;
        double left = most - (double)m->count;
        snprintf(path, sizeof path, "/v1/blocks?limit=%.0f&cursor=%.0f", left < PAGE ? left : PAGE, next);
        *reply = command_try(c, path, &page);
        if (!page)
            return false;
        if (c->json)
            puts(reply->text);
        m->epoch = answer_number(page, "epoch");
        cJSON_ArrayForEach (block, answer_at(page, "blocks")) {
            if (!add(m, block_mark(block)))
                break;
        }
        next = answer_number(page, "next");
        cJSON_Delete(page);
    } while (next > 0 && (double)m->count < most);
    return true;
}

/* One line of the map. */
static void draw_line(struct screen *s, const struct map *m, size_t at)
{
    char line[MAP_COLUMNS * 16], *end = line;
    bool can_compare = m->count_before == m->count && m->first_before == m->first;
    const char *style = "", *plain = screen_style(s, SCREEN_PLAIN);
    for (size_t i = at; i < m->count && i < at + MAP_COLUMNS; i++) {
        bool changed = can_compare && m->marks[i] != m->before[i];
        const char *wanted = screen_style(s, changed ? SCREEN_CHANGED : style_of(m->marks[i]));
        if (strcmp(wanted, style) != 0)
            end += snprintf(end, (size_t)(line + sizeof line - end), "%s%s", plain, wanted);
        style = wanted;
        *end++ = m->marks[i];
    }
    *end = '\0';
    screen_line(s, "%8.0f  %s", m->first + (double)at, line);
}

/* What the marks are: those of other keys where there are some. */
static void draw_legend(struct screen *s, const struct map *m)
{
    static const struct {
        char mark;
        const char *text;
    } parts[] = {{'.', ". free"},
                 {'1', "1"},
                 {'2', "2"},
                 {'3', "3-9"},
                 {'+', "+ held by so many sequences"},
                 {'c', "c cached"},
                 {'f', "f fenced"},
                 {'x', "x another key's"}};
    char line[512], *end = line;
    size_t count = sizeof parts / sizeof parts[0] - (m->count && memchr(m->marks, 'x', m->count) ? 0 : 1);
    for (size_t i = 0; i < count; i++)
        end +=
            snprintf(end, (size_t)(line + sizeof line - end), "%s%s%s%s",
                     i == 0             ? ""
                     : i >= 2 && i <= 4 ? " "
                                        : "  ",
                     screen_style(s, style_of(parts[i].mark)), parts[i].text, screen_style(s, SCREEN_PLAIN));
    screen_line(s, "%s", line);
}

static void count_marks(const struct map *m, unsigned long *is_free, unsigned long *shared,
                        unsigned long *cached)
{
    *is_free = *shared = *cached = 0;
    for (size_t i = 0; i < m->count; i++) {
        *is_free += m->marks[i] == '.';
        *cached += m->marks[i] == 'c';
        *shared += (m->marks[i] >= '2' && m->marks[i] <= '9') || m->marks[i] == '+';
    }
}

/* Whose blocks these are, and what they are. */
static void draw_head(struct screen *s, const struct command *c, const struct map *m)
{
    char node[NODE_BYTES];
    unsigned long is_free, shared, cached;
    terminal_escape(http_client_node(c->client), node, sizeof node);
    count_marks(m, &is_free, &shared, &cached);
    screen_line(s, "%s%s%s%sblocks %.0f to %.0f%s: %lu free, %lu shared, %lu cached; epoch %.0f",
                screen_style(s, SCREEN_BOLD), *node ? "node " : "", node, *node ? ": " : "", m->first,
                m->first + (double)m->count - 1, screen_style(s, SCREEN_PLAIN), is_free, shared, cached,
                m->epoch);
}

static int show_once(const struct command *c, struct map *m, double most)
{
    struct screen s;
    struct http_reply reply;
    if (!fetch(c, m, most, &reply))
        return command_explain(&reply);
    if (c->json)
        return EXIT_OK;
    screen_open(&s, false);
    screen_begin(&s);
    draw_head(&s, c, m);
    for (size_t at = 0; at < m->count; at += MAP_COLUMNS)
        draw_line(&s, m, at);
    screen_line(&s, "%s", "");
    draw_legend(&s, m);
    screen_show(&s);
    screen_close(&s);
    return EXIT_OK;
}

/* Draw what fits until somebody ends it; arrows and space move. */
static int watch(const struct command *c, struct map *m, double interval)
{
    struct screen s;
    struct http_reply reply;
    int key = 0;
    bool ok = true;
    screen_open(&s, true);
    while (key != 'q' && key != SCREEN_INTERRUPTED) {
        screen_begin(&s);
        double rows = s.lines > AROUND_LINES + 1 ? s.lines - AROUND_LINES : 1, step = rows * MAP_COLUMNS;
        ok = fetch(c, m, step, &reply);
        if (!ok)
            break;
        draw_head(&s, c, m);
        screen_line(&s, "%s", "q ends, space goes on");
        for (size_t at = 0; at < m->count; at += MAP_COLUMNS)
            draw_line(&s, m, at);
        screen_line(&s, "%s", "");
        draw_legend(&s, m);
        screen_show(&s);
        m->first_before = m->first;
        key = s.live ? screen_wait(&s, interval) : 'q';
        bool is_last = (double)m->count < step;
        if (key == ' ')
            m->first = is_last ? 0 : m->first + step;
        else if (key == SCREEN_DOWN || key == 'j')
            m->first += is_last ? 0 : MAP_COLUMNS;
        else if ((key == SCREEN_UP || key == 'k') && m->first > 0)
            m->first -= MAP_COLUMNS;
    }
    screen_close(&s);
    if (key == SCREEN_INTERRUPTED || terminal_interrupted())
        return EXIT_INTERRUPTED;
    return ok ? EXIT_OK : command_explain(&reply);
}

static int show_blocks(const struct command *c)
{
    struct map m = {.first_before = -1};
    uint64_t first = 0, count = UINT32_MAX;
    double interval = 0.5;
    if (!command_integer(c, "from", 0, UINT32_MAX, &first) ||
        !command_integer(c, "count", 1, UINT32_MAX, &count) ||
        !command_number(c, "interval", 0.05, 3600, &interval))
        return EXIT_USAGE;
    m.first = (double)first;
    int code =
        command_option(c, "watch") && !c->json ? watch(c, &m, interval) : show_once(c, &m, (double)count);
    free(m.marks);
    free(m.before);
    return code;
}

static const struct command_verb verbs[] = {{"", "[OPTION]...", 0, 0, NULL, show_blocks}, {0}};
static const struct command_option options[] = {
    {"watch", NULL, "again and again; what has changed is reversed"},
    {"interval", "SECONDS", "between two looks (0.5)"},
    {"from", "BLOCK", "the first one (0)"},
    {"count", "N", "how many (all), without --watch"},
    {0}};

const struct command_info blocks_info = {
    .name = "blocks",
    .text = "a map of the pool, a character a block",
    .verbs = verbs,
    .options = options,
    .more = "q or Ctrl-C ends --watch; space shows the next blocks, arrows move by a line.\n"
            "A key that is not admin sees x where another key holds a block, and is not told\n"
            "how often; c is a block that any key has cached.\n"
            "A pipe, TERM=dumb and NO_COLOR=1 get no colours."};
