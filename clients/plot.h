/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h - lines over a logarithmic axis, in panels beside each other, as SVG. */
#ifndef CLIENTS_PLOT_H
#define CLIENTS_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { PLOT_POINTS_MOST = 32, PLOT_NAME = 64 };

struct plot_line {
    char name[PLOT_NAME]; /* the same in all panels */
    double x[PLOT_POINTS_MOST], y[PLOT_POINTS_MOST];
    size_t count;
};

struct plot_panel {
    const char *title;
    bool logarithmic;
    const struct plot_line *lines;
    size_t count;
    double limit; /* drawn across; 0: none */
    const char *limit_name;
};

/* plot_write: the picture; numbers on the x axis are those that lines have. It follows the reader's light or dark colours. False
 * when it cannot be written. */
bool plot_write(FILE *f, const char *title, const char *x_name, const struct plot_panel *panels,
                size_t count);

#endif
