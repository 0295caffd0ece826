/* SPDX-License-Identifier: Apache-2.0 */
/* shape.c - see shape.h.
 *
 * The quantiles were taken from the Azure LLM inference trace of 2023 (Microsoft, CC-BY-4.0), from the
 * conversation trace of Mooncake (FAST 2025, Apache-2.0), and from the lengths of arXiv summarisation.
 * Below the first point the value is the first one. */
#include "scheduler/shape.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { POINTS = 9 };

static const double CV_LEAST = 1e-3;

static const double parts[POINTS] = {0.01, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1};

struct shape {
    const char *name;
    double rate, cv; /* arrivals a second, and their coefficient of variation */
    double prompt[POINTS], decode[POINTS];
};

static const struct shape shapes[] = {
    {"azure-conv",
     5.53,
     1.09,
     {29, 207, 396, 1020, 1189, 2735, 4083, 4142, 14050},
     {16, 54, 85, 129, 395, 424, 451, 601, 1000}},
    {"azure-code",
     2.57,
     13.2,
     {17, 147, 578, 1469, 2745, 5194, 7315, 7436, 7437},
     {6, 7, 9, 13, 24, 55, 90, 252, 1899}},
    {"mooncake-conv",
     3.40,
     3.03,
     {894, 964, 2306, 6909, 15368, 27367, 39552, 85401, 126195},
     {3, 24, 156, 350, 472, 597, 698, 1120, 2000}},
    {"arxiv-summary",
     0,
     0,
     {73, 1242, 1986, 2730, 3370, 3702, 3813, 3934, 4054},
     {36, 78, 115, 167, 242, 372, 737, 3273, 4056}},
};

const char shape_names[] = "azure-conv, azure-code, mooncake-conv or arxiv-summary";

uint64_t random_next(struct random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double random_unit(struct random *r)
{
    return (double)(random_next(r) >> 11) * 0x1p-53;
}

/* Standard normal, by Box and Muller. */
static double random_normal(struct random *r)
{
    double u = 1 - random_unit(r), angle = 2 * 3.14159265358979323846 * random_unit(r);
    return sqrt(-2 * log(u)) * cos(angle);
}

/* Gamma of mean `shape`, by Marsaglia and Tsang (ACM TOMS 26, 2000). */
static double random_gamma(struct random *r, double shape)
{
    double boost = 1;
    if (shape < 1) {
        boost = pow(1 - random_unit(r), 1 / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = random_normal(r), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(1 - random_unit(r)) < x * x / 2 + d - d * v + d * log(v))
            return boost * d * v;
    }
}

double random_gap(struct random *r, double rate, double cv)
{
    if (cv < CV_LEAST) /* 1 / cv^2 must stay a number */
        return 1 / rate;
    return random_gamma(r, 1 / (cv * cv)) * cv * cv / rate;
}

static uint32_t draw(const double quantiles[POINTS], struct random *r)
{
    double u = random_unit(r);
    int i = 0;
    if (u <= parts[0])
        return (uint32_t)quantiles[0];
    while (u > parts[i + 1])
        i++;
    double part = (u - parts[i]) / (parts[i + 1] - parts[i]);
    return (uint32_t)lround(quantiles[i] + part * (quantiles[i + 1] - quantiles[i]));
}

const struct shape *shape_find(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    }
    return NULL;
}

uint32_t shape_prompt(const struct shape *shape, struct random *r)
{
    return draw(shape->prompt, r);
}

uint32_t shape_decode(const struct shape *shape, struct random *r)
{
    return draw(shape->decode, r);
}

double shape_rate(const struct shape *shape)
{
    return shape->rate;
}

double shape_cv(const struct shape *shape)
{
    return shape->cv;
}
