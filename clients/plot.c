/* SPDX-License-Identifier: Apache-2.0 */
/* plot.c - see plot.h. */
#include "clients/plot.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Pixels. */
enum {
    WIDTH = 460,
    HEIGHT = 300,
    LEFT = 64,
    RIGHT = 32,
    TOP = 64,
    BOTTOM = 52,
    LEGEND_LINE = 18,
    COLOURS = 8
};

/* Colours that people without red or green tell apart, too (Okabe and Ito). */
static const char *const colours[COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                             "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"};

struct axis {
    double low, high;
    bool logarithmic;
};

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        const char *entity = *text == '<' ? "&lt;" : *text == '>' ? "&gt;" : *text == '&' ? "&amp;" : NULL;
        if (entity)
            fputs(entity, f);
        else
            fputc(*text, f);
    }
}

/* Where a value is, from 0 to 1. */
static double place(const struct axis *a, double value)
{
    if (a->logarithmic)
        return (log(value) - log(a->low)) / (log(a->high) - log(a->low));
    return (value - a->low) / (a->high - a->low);
}

/* 1, 2 or 5 times a power of ten, at least `value`. */
static double round_up(double value)
{
    double power = pow(10, floor(log10(value)));
    return value <= power       ? power
           : value <= 2 * power ? 2 * power
           : value <= 5 * power ? 5 * power
                                : 10 * power;
}

static struct axis x_axis(const struct plot_panel *panels, size_t count)
{
    struct axis a = {INFINITY, 0, true};
    for (size_t p = 0; p < count; p++) {
        for (size_t l = 0; l < panels[p].count; l++) {
            for (size_t i = 0; i < panels[p].lines[l].count; i++) {
                a.low = fmin(a.low, panels[p].lines[l].x[i]);
                a.high = fmax(a.high, panels[p].lines[l].x[i]);
            }
        }
    }
    if (!(a.low < a.high)) { /* one value, or none */
        a.low = a.high > 0 ? a.high / 2 : 1;
        a.high = 4 * a.low;
    }
    return a;
}

static struct axis y_axis(const struct plot_panel *p)
{
    struct axis a = {INFINITY, p->limit, p->logarithmic};
    for (size_t l = 0; l < p->count; l++) {
        for (size_t i = 0; i < p->lines[l].count; i++) {
            a.low = fmin(a.low, p->lines[l].y[i]);
            a.high = fmax(a.high, p->lines[l].y[i]);
        }
    }
    a.high = a.high > 0 ? a.high * 1.05 : 1;
    a.low = !p->logarithmic ? 0 : a.low < a.high ? a.low / 1.3 : a.high / 10;
    return a;
}

static void draw_y_tick(FILE *f, const struct axis *a, double value)
{
    double y = TOP + HEIGHT * (1 - place(a, value));
    fprintf(f,
            "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.10g</text>\n",
            LEFT, y, LEFT + WIDTH, y, LEFT - 6, y + 4, value);
}

static void draw_y_ticks(FILE *f, const struct axis *a)
{
    if (!a->logarithmic) {
        double step = round_up(a->high / 6);
        for (int i = 0; i * step <= a->high; i++)
            draw_y_tick(f, a, i * step);
        return;
    }
    double value = round_up(a->low);
    while (value <= a->high) {
        draw_y_tick(f, a, value);
        value = round_up(value * 1.5);
    }
}

/* Each value of x that lines have, once. */
static void draw_x_ticks(FILE *f, const struct axis *a, const struct plot_panel *p)
{
    double last = 0;
    for (;;) {
        double next = INFINITY;
        for (size_t l = 0; l < p->count; l++) {
            for (size_t i = 0; i < p->lines[l].count; i++) {
                if (p->lines[l].x[i] > last)
                    next = fmin(next, p->lines[l].x[i]);
            }
        }
        if (!isfinite(next))
            return;
        fprintf(f, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                LEFT + WIDTH * place(a, next), TOP + HEIGHT + 18, next);
        last = next;
    }
}

static void draw_line(FILE *f, const struct axis *x, const struct axis *y, const struct plot_line *line,
                      size_t at)
{
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"", colours[at % COLOURS],
            at >= COLOURS ? " stroke-dasharray=\"6 4\"" : "");
    for (size_t i = 0; i < line->count; i++)
        fprintf(f, "%.1f,%.1f ", LEFT + WIDTH * place(x, line->x[i]),
                TOP + HEIGHT * (1 - place(y, line->y[i])));
    fputs("\"/>\n", f);
    for (size_t i = 0; i < line->count; i++)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>",
                LEFT + WIDTH * place(x, line->x[i]), TOP + HEIGHT * (1 - place(y, line->y[i])),
                colours[at % COLOURS]);
    fputc('\n', f);
}

static void draw_panel(FILE *f, const struct plot_panel *p, const struct axis *x, const char *x_name)
{
    struct axis y = y_axis(p);
    fprintf(f, "<text class=\"head\" x=\"%d\" y=\"%d\">", LEFT, TOP - 12);
    put_text(f, p->title);
    fputs("</text>\n", f);
    draw_y_ticks(f, &y);
    draw_x_ticks(f, x, p);
    fprintf(f, "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", LEFT, TOP, WIDTH,
            HEIGHT);
    fprintf(f, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", LEFT + WIDTH / 2,
            TOP + HEIGHT + 38);
    put_text(f, x_name);
    fputs("</text>\n", f);
    if (p->limit > 0) {
        double at = TOP + HEIGHT * (1 - place(&y, p->limit));
        fprintf(f,
                "<line class=\"limit\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>"
                "<text class=\"tick\" x=\"%d\" y=\"%.1f\">",
                LEFT, at, LEFT + WIDTH, at, LEFT + 6, at < TOP + 20 ? at + 15 : at - 5);
        put_text(f, p->limit_name);
        fputs("</text>\n", f);
    }
    for (size_t i = 0; i < p->count; i++)
        draw_line(f, x, &y, &p->lines[i], i);
}

static void draw_legend(FILE *f, const struct plot_panel *p, int top)
{
    for (size_t i = 0; i < p->count; i++) {
        int y = top + (int)i * LEGEND_LINE;
        fprintf(f,
                "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"%s/>"
                "<text class=\"tick\" x=\"%d\" y=\"%d\">",
                LEFT, y, LEFT + 28, y, colours[i % COLOURS], i >= COLOURS ? " stroke-dasharray=\"6 4\"" : "",
                LEFT + 36, y + 4);
        put_text(f, p->lines[i].name);
        fputs("</text>\n", f);
    }
}

bool plot_write(FILE *f, const char *title, const char *x_name, const struct plot_panel *panels, size_t count)
{
    struct axis x = x_axis(panels, count);
    int panel = LEFT + WIDTH + RIGHT, width = panel * (int)count;
    int legend = TOP + HEIGHT + BOTTOM + LEGEND_LINE,
        height = legend + LEGEND_LINE * (count ? (int)panels[0].count : 0);
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n",
            width, height, width, height);
    fputs("<style>text{font:12px sans-serif;fill:#222}.head{font-weight:bold}.title{font-size:15px}"
          ".grid{stroke:#ddd}.frame{fill:none;stroke:#888}.limit{stroke:#888;stroke-dasharray:4 "
          "3}.back{fill:#fff}"
          "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#333}.back{fill:#111}}</style>\n"
          "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n",
          f);
    fprintf(f, "<text class=\"title\" x=\"%d\" y=\"24\">", LEFT);
    put_text(f, title);
    fputs("</text>\n", f);
    for (size_t i = 0; i < count; i++) {
        fprintf(f, "<g transform=\"translate(%zu 0)\">\n", i * (size_t)panel);
        draw_panel(f, &panels[i], &x, x_name);
        fputs("</g>\n", f);
    }
    if (count)
        draw_legend(f, &panels[0], legend);
    fputs("</svg>\n", f);
    return !ferror(f);
}
