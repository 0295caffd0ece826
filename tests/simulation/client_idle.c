/* SPDX-License-Identifier: Apache-2.0 */
/* client_idle.c - see clients.h: who is removed because nobody used it.
 *
 * Of each sequence, and lease, the model knows when it was used at the earliest and at the latest: between
 * the submission and the answer of a request on it. What is removed was not used for its idle_timeout_s
 * after the one, and has no request under way; what was not used for so long after the other is removed by
 * the next look. */
#include "tests/simulation/clients.h"

#include "tests/simulation/watch.h"

#include <math.h>

/* REAP_S: until the next look for sequences that nobody uses: half a second between two, a second between
 * turns, and the longest step that is not said to hang, which may have some of its blocks swapped. */
static const double REAP_S = 1.81, TIME_TOLERANCE_S = 1e-9;

/* A request that has run has used its sequences, or the lease, after it was submitted. */
void client_idle_note_answer(const struct op *op)
{
    const struct request *request = op->request;
    bool uses = request_kinds[request->kind].when == REQUEST_STEPPED || request->kind == REQUEST_FORK ||
                request->kind == REQUEST_TRUNCATE || request->kind == REQUEST_EXPORT;
    for (uint32_t i = 0; uses && request->status == 0 && i < op->count; i++)
        op->on[i]->used_low_s = fmax(op->on[i]->used_low_s, op->submitted_s);
}

void client_idle_note_reaped(uint64_t id, double now_s)
{
    struct model_sequence *s = model_find(id);
    sim_note("  %llu is removed, since nobody used it", (unsigned long long)id);
    if (!s) {
        model_note_unborn(id);
        return;
    }
    uint32_t timeout_s = s->options.idle_timeout_s;
    if (!timeout_s || now_s - s->used_low_s < timeout_s - TIME_TOLERANCE_S)
        sim_fail("sequence %llu was removed %.3f s after it was used, and its idle_timeout_s is %u",
                 (unsigned long long)id, now_s - s->used_low_s, timeout_s);
    sim.seen.reaped++;
    s->reaped = true;
    s->reaped_s = now_s;
    s->reaped_behind = s->queued;
    s->live = s->queued > 0; /* and somebody may name it still */
}

/* What came before a sequence was removed was over. */
static void check_reaped(const struct model_sequence *s)
{
    for (uint32_t i = 0; s->reaped_s == sim.now_s && i < s->reaped_behind; i++) {
        if (!s->queue[i]->done)
            sim_fail("sequence %llu was removed while request %llu on it was under way",
                     (unsigned long long)s->id, (unsigned long long)s->queue[i]->action);
    }
}

void client_idle_check(void)
{
    for (uint32_t i = 0; i < MODEL_SEQUENCES; i++) {
        struct model_sequence *s = &model.sequences[i];
        if (!s->used || !s->live || !s->options.idle_timeout_s)
            continue;
        if (s->reaped)
            check_reaped(s);
        else if (s->queued == 0 &&
                 sim.now_s - fmax(s->used_high_s, watch_hung_s()) > s->options.idle_timeout_s + REAP_S)
            sim_fail("sequence %llu was not used for %.3f s, and is still there: its idle_timeout_s is %u",
                     (unsigned long long)s->id, sim.now_s - s->used_high_s, s->options.idle_timeout_s);
    }
}
