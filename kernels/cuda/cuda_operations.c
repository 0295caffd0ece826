/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_operations.c - compares, reads and merges of a step, written down ahead of its passes: a list of
 * one kind in the control buffer, and a launch of a thread block for so many tokens, or a head. Tensors
 * stay in the host's memory.
 *
 * As many operations as have room share a launch. They are issued one by one, outside of the graph of the
 * passes, which stays as it is.
 *
 *   compare:   | 0 1 ... 7 | 8 ... 15 | 16 .. 20 |     tokens of a thread block
 *   results:   |     8     |    3     |    5     |     in pinned memory: 11 tokens are equal
 *
 * A thread block stores how many of its tokens are equal, and the host adds up: nothing is atomic, and
 * nothing has to be copied or cleared. */
#include "kernels/cuda/cuda_backend.h"

#include "config/numbers.h"

#include <assert.h>

enum { WARP = 32 };

_Static_assert(sizeof(struct cuda_operations_pass) % 8 == 0 &&
                   sizeof(struct cuda_operations_pass) <= CUDA_ARGUMENT_BYTES,
               "launches are compared byte by byte");

/* Operations of one kind, of which as many as have room are a launch. */
struct batch {
    enum cuda_kernel kernel;
    uint32_t threads; /* 0: CUDA_THREADS */
    size_t size;      /* of an operation */
    uint32_t most;    /* operations of the step */
    /* Of the launch that is written next: */
    uint8_t *list; /* in the control buffer, with room for so many; */
    uint32_t room, count, blocks;
    uint32_t results; /* where those of its compares begin */
};

/* ---- batches ------------------------------------------------------------------------------------- */

/* Write down the launch of what there is. */
static void end_batch(struct cuda_backend *b, struct batch *x)
{
    if (x->count) {
        const struct cuda_operations_pass pass = {.pool = b->pool,
                                                  .list = cuda_queue_address(&b->queue, x->list),
                                                  .equal = (uintptr_t)(b->compared->results + x->results),
                                                  .k_scale = b->k_scale,
                                                  .v_scale = b->v_scale,
                                                  .count = x->count};
        cuda_queue_launch(&b->queue, x->kernel,
                          cuda_grid_of(x->blocks, x->threads ? x->threads : CUDA_THREADS), &pass,
                          sizeof pass);
    }
    x->room = x->count = x->blocks = 0;
}

/* Room for one more operation, of the next launch if this one is full. */
static void *add_operation(struct cuda_backend *b, struct batch *x)
{
    if (x->count == x->room) {
        end_batch(b, x);
        x->room = smaller(x->most, (uint32_t)(b->queue.control_bytes / 4 / x->size));
        cuda_queue_reserve(&b->queue, x->room * x->size, 1);
        x->list = cuda_queue_take(&b->queue, x->room, x->size);
        x->results = b->compared->used;
    }
    return x->list + x->count++ * x->size;
}

/* ---- compares ------------------------------------------------------------------------------------ */

/* Add up the results of what was compared, in order. */
static void deliver(struct cuda_compared *x)
{
    for (uint32_t i = 0; i < x->count; i++) {
        const struct cuda_compared_rows *rows = &x->rows[i];
        if (*rows->equal < rows->first)
            continue; /* the rows ahead of them differ */
        for (uint32_t left = rows->count, block = rows->block, n; left; left -= n, block++) {
            n = smaller(left, CUDA_COMPARE_TOKENS);
            *rows->equal += x->results[block];
            if (x->results[block] < n)
                break;
        }
    }
    x->count = x->used = 0;
}

void cuda_operations_deliver(struct cuda_backend *b, uint64_t ticket)
{
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        struct cuda_compared *x = &b->compared_of[i];
        if (x->count && x->ticket <= ticket && !cuda_failed(&b->device))
            deliver(x);
    }
}

/* Rows [first, first + n) of a comparison. */
static void add_compare(struct cuda_backend *b, struct batch *x, const struct kv_compare *c, uint32_t first,
                        uint32_t n)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_compared *to = b->compared;
    size_t at = first * geometry_kv_row_bytes(g, c->dtype);
    assert(b->queue.streamed || cuda_is_pinned(&b->device, c->k));
    struct cuda_compare *compare = add_operation(b, x);
    *compare = (struct cuda_compare){.first = x->blocks,
                                     .table = c->table,
                                     .layer = c->layer,
                                     .position = c->position + first,
                                     .count = n,
                                     .dtype = c->dtype,
                                     .k = (uintptr_t)c->k + at,
                                     .v = (uintptr_t)c->v + at};
    to->rows[to->count++] = (struct cuda_compared_rows){c->equal, first, n, to->used};
    to->used += ceiling(n, CUDA_COMPARE_TOKENS);
    x->blocks += ceiling(n, CUDA_COMPARE_TOKENS);
}

static void add_compares(struct cuda_backend *b, const struct attention_step *step)
{
    struct cuda_compared *to = b->compared;
    struct batch x = {
        .kernel = KERNEL_COMPARE_KV, .size = sizeof(struct cuda_compare), .most = step->compare_count};
    for (uint32_t i = 0; i < step->compare_count; i++) {
        const struct kv_compare *c = &step->compares[i];
        for (uint32_t done = 0, n; done < c->count; done += n) {
            if (to->used == CUDA_COMPARED_MAX) { /* the results of a part make room */
                end_batch(b, &x);
                cuda_queue_finish_part(&b->queue);
                if (cuda_failed(&b->device))
                    return;
                deliver(to);
            }
            n = smaller(c->count - done, (CUDA_COMPARED_MAX - to->used) * CUDA_COMPARE_TOKENS);
            add_compare(b, &x, c, done, n);
        }
    }
    end_batch(b, &x);
}

/* ---- reads --------------------------------------------------------------------------------------- */

static void add_reads(struct cuda_backend *b, const struct attention_step *step)
{
    struct batch x = {.kernel = KERNEL_READ_KV, .size = sizeof(struct cuda_read), .most = step->read_count};
    for (uint32_t i = 0; i < step->read_count; i++) {
        const struct kv_read *r = &step->reads[i];
        if (r->count == 0)
            continue;
        assert(cuda_is_pinned(&b->device, r->k));
        struct cuda_read *read = add_operation(b, &x);
        *read = (struct cuda_read){.first = x.blocks,
                                   .table = r->table,
                                   .layer = r->layer,
                                   .position = r->position,
                                   .k = (uintptr_t)r->k,
                                   .v = (uintptr_t)r->v};
        x.blocks += r->count;
    }
    end_batch(b, &x);
}

/* ---- merges -------------------------------------------------------------------------------------- */

static void add_merges(struct cuda_backend *b, const struct attention_step *step)
{
    struct batch x = {
        .kernel = KERNEL_MERGE_STATES, .size = sizeof(struct cuda_merge_states), .most = step->merge_count};
    for (uint32_t i = 0; i < step->merge_count; i++) {
        const struct merge_states *m = &step->merges[i];
        uint32_t heads = m->rows * m->heads;
        if (heads == 0)
            continue;
        assert(step->streamed ||
               (cuda_is_pinned(&b->device, m->o) && cuda_is_pinned(&b->device, m->merged_o)));
        struct cuda_merge_states *merge = add_operation(b, &x);
        *merge = (struct cuda_merge_states){.first = x.blocks,
                                            .states = m->states,
                                            .apart = heads,
                                            .head_dim = m->head_dim,
                                            .dtype = m->dtype,
                                            .o = (uintptr_t)m->o,
                                            .lse = (uintptr_t)m->lse,
                                            .merged_o = (uintptr_t)m->merged_o,
                                            .merged_lse = (uintptr_t)m->merged_lse};
        x.blocks += heads;
        x.threads = larger(x.threads, ceiling(m->head_dim, WARP) * WARP);
    }
    end_batch(b, &x);
}

/* ---- a step -------------------------------------------------------------------------------------- */

void cuda_operations_add(struct cuda_backend *b, const struct attention_step *step, uint64_t ticket)
{
    b->compared = &b->compared_of[ticket % ATTENTION_STEPS_IN_FLIGHT];
    if (!cuda_failed(&b->device) && !step->continues)
        deliver(b->compared); /* of the step two before, which is done, if nobody has asked */
    b->compared->ticket = ticket;
    for (uint32_t i = 0; i < step->compare_count; i++)
        *step->compares[i].equal = 0;
    add_compares(b, step);
    add_reads(b, step);
    add_merges(b, step);
}

bool cuda_operations_init(struct cuda_backend *b)
{
    bool ok = true;
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        b->compared_of[i].results = cuda_host_memory(&b->device, CUDA_COMPARED_MAX * sizeof(uint32_t));
        ok &= b->compared_of[i].results != NULL;
    }
    return ok;
}
