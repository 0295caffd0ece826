/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - see cost.h. */
#include "scheduler/cost.h"

#include <math.h>

static const double SHARE = 1.0 / 3;          /* of the way that the factor goes */
static const double LEAST = 1e-3, MOST = 1e5; /* of the factor; what is beyond is not a machine's speed */

struct cost_rates cost_fallback(const struct geometry *g)
{
    double token = (double)geometry_token_bytes(g) * 1e-3;
    return (struct cost_rates){.step_us = 20,
                               .pass_us = 5,
                               .token_us = token,
                               .weigh_us = 4e-3 * g->query_heads * g->head_dim,
                               .query_us = 4e-3 * g->query_heads * g->head_dim,
                               .append_us = 2 * token,
                               .generate_us = 20 * token,
                               .copy_us = 2 * token * g->block_size * g->layers};
}

double cost_us(const struct cost_model *m, const struct cost_work *w)
{
    const struct cost_rates *r = &m->rates;
    return m->factor * ((double)w->passes * r->pass_us + (double)w->tokens * r->token_us +
                        (double)w->weighed * r->weigh_us + (double)w->queries * r->query_us +
                        (double)w->appended * r->append_us + (double)w->generated * r->generate_us +
                        (double)w->copies * r->copy_us);
}

double cost_step_us(const struct cost_model *m, const struct cost_work *w)
{
    return m->factor * m->rates.step_us + cost_us(m, w);
}

void cost_add(struct cost_work *sum, const struct cost_work *w)
{
    sum->passes += w->passes;
    sum->tokens += w->tokens;
    sum->weighed += w->weighed;
    sum->queries += w->queries;
    sum->appended += w->appended;
    sum->generated += w->generated;
    sum->copies += w->copies;
}

void cost_correct(struct cost_model *m, double estimate_us, double took_us)
{
    if (!(estimate_us > 0) || !(took_us > 0))
        return;
    double factor = m->factor * pow(took_us / estimate_us, SHARE);
    m->factor = fmin(fmax(factor, LEAST), MOST);
}
