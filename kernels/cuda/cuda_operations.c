/* cuda_operations.c - compares, reads and merges of a step, written down ahead of its passes:
 *
 *   a list of one kind      in the control buffer
 *   its tensors             where they are, if they are pinned and aligned; else on the device, in the room for k and v
 *   a launch                of a thread block for so many tokens, or a head
 *   copies back             of results that are on the device
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

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 16, /* of tensors on the device, and of those that kernels find in the host's memory */
    BACK_MAX = 512, /* copies back of a launch */
    WARP = 32
};

_Static_assert(sizeof(struct cuda_operations_pass) % 8 == 0 &&
                   sizeof(struct cuda_operations_pass) <= CUDA_ARGUMENT_BYTES,
               "launches are compared byte by byte");

struct copy_back {
    void *to;
    CUdeviceptr from;
    size_t bytes;
};

/* Operations of a launch. */
struct batch {
    enum cuda_kernel kernel;
    uint32_t threads;
    void *list; /* in the control buffer; NULL: not begun */
    uint32_t count, blocks;
    size_t k_used, v_used; /* of the room for k, and for v */
    struct copy_back back[BACK_MAX];
    uint32_t back_count;
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- batches ------------------------------------------------------------------------------------- */

/* Begin a batch of at most n operations of `size` bytes; returns how many there may be. */
static uint32_t begin_batch(struct cuda_backend *b, struct batch *x, enum cuda_kernel kernel, uint32_t n,
                            size_t size)
{
    struct cuda_queue *q = &b->queue;
    uint32_t most = (uint32_t)smaller(n, q->control_bytes / 4 / size);
    cuda_queue_reserve(q, most * size, 1);
    x->kernel = kernel;
    x->threads = CUDA_THREADS;
    x->list = cuda_queue_take(q, most, size);
    x->count = x->blocks = x->back_count = 0;
    x->k_used = x->v_used = 0;
    return most;
}

/* Write down the launch of what a batch has, and the copies behind it. */
static void end_batch(struct cuda_backend *b, const struct batch *x)
{
    struct cuda_queue *q = &b->queue;
    const struct cuda_operations_pass pass = {.pool = b->pool,
                                              .list = cuda_queue_address(q, x->list),
                                              .equal = (uintptr_t)(b->compared->results + b->compared->used),
                                              .k_scale = b->k_scale,
                                              .v_scale = b->v_scale,
                                              .count = x->count};
    if (x->count == 0)
        return;
    cuda_queue_launch(q, x->kernel, cuda_grid_of(x->blocks, x->threads), &pass, sizeof pass);
    for (uint32_t i = 0; i < x->back_count; i++)
        cuda_queue_copy_back(q, x->back[i].to, x->back[i].from, x->back[i].bytes);
}

/* Whether kernels can use a tensor where it is. */
static bool is_direct(const struct cuda_backend *b, const void *tensor, size_t bytes)
{
    return (uintptr_t)tensor % ALIGNMENT == 0 && cuda_is_pinned(&b->device, tensor, bytes);
}

/* Take room of k, or v, which is there. */
static CUdeviceptr take(CUdeviceptr room, size_t *used, size_t bytes)
{
    CUdeviceptr at = room + *used;
    *used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    assert(*used <= CUDA_GIVEN_BYTES);
    return at;
}

static void copy_back_later(struct batch *x, void *to, CUdeviceptr from, size_t bytes)
{
    x->back[x->back_count++] = (struct copy_back){to, from, bytes};
}

/* Rows of `row_bytes` that the room for k, and for v, has left. */
static uint32_t rows_left(const struct batch *x, size_t row_bytes)
{
    size_t used = x->k_used > x->v_used ? x->k_used : x->v_used;
    return (uint32_t)((CUDA_GIVEN_BYTES - used) / row_bytes);
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
            n = (uint32_t)smaller(left, CUDA_COMPARE_TOKENS);
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
                        uint32_t n, bool direct)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_compared *to = b->compared;
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(c->dtype), at = first * row_bytes,
           bytes = n * row_bytes;
    const uint8_t *k = (const uint8_t *)c->k + at, *v = (const uint8_t *)c->v + at;
    CUdeviceptr k_at = (uintptr_t)k, v_at = (uintptr_t)v;
    if (!direct) {
        k_at = take(b->k, &x->k_used, bytes);
        v_at = take(b->v, &x->v_used, bytes);
        cuda_queue_copy_in(&b->queue, k_at, k, bytes);
        cuda_queue_copy_in(&b->queue, v_at, v, bytes);
    }
    ((struct cuda_compare *)x->list)[x->count++] = (struct cuda_compare){.first = x->blocks,
                                                                         .table = c->table,
                                                                         .layer = c->layer,
                                                                         .position = c->position + first,
                                                                         .count = n,
                                                                         .dtype = c->dtype,
                                                                         .k = k_at,
                                                                         .v = v_at};
    to->rows[to->count++] = (struct cuda_compared_rows){c->equal, first, n, to->used + x->blocks};
    x->blocks += (n + CUDA_COMPARE_TOKENS - 1) / CUDA_COMPARE_TOKENS;
}

static void add_compares(struct cuda_backend *b, const struct attention_step *step)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_compared *to = b->compared;
    struct batch x;
    for (uint32_t i = 0, done = 0; i < step->compare_count && !cuda_failed(&b->device);) {
        uint32_t most =
            begin_batch(b, &x, KERNEL_COMPARE_KV, step->compare_count - i, sizeof(struct cuda_compare));
        while (i < step->compare_count && x.count < most) {
            const struct kv_compare *c = &step->compares[i];
            size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(c->dtype);
            bool direct =
                is_direct(b, c->k, c->count * row_bytes) && is_direct(b, c->v, c->count * row_bytes);
            uint32_t left = c->count - done, blocks = CUDA_COMPARED_MAX - to->used - x.blocks,
                     n = (uint32_t)smaller(left, (size_t)blocks * CUDA_COMPARE_TOKENS);
            n = direct ? n : (uint32_t)smaller(n, rows_left(&x, row_bytes));
            if (n < left && n == 0)
                break;
            if (n)
                add_compare(b, &x, c, done, n, direct);
            done += n;
            if (done < c->count)
                break; /* the rest in another batch */
            done = 0;
            i++;
        }
        end_batch(b, &x);
        to->used += x.blocks;
        if (to->used == CUDA_COMPARED_MAX) { /* the results of a part make room */
            cuda_queue_finish_part(&b->queue);
            if (!cuda_failed(&b->device))
                deliver(to);
        }
    }
}

/* ---- reads --------------------------------------------------------------------------------------- */

/* Rows [first, first + n) of what is read. */
static void add_read(struct cuda_backend *b, struct batch *x, const struct kv_read *r, uint32_t first,
                     uint32_t n, bool direct)
{
    const struct geometry *g = b->options.geometry;
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(g->kv_dtype), at = first * row_bytes,
           bytes = n * row_bytes;
    uint8_t *k = (uint8_t *)r->k + at, *v = (uint8_t *)r->v + at;
    CUdeviceptr k_at = (uintptr_t)k, v_at = (uintptr_t)v;
    if (!direct) {
        k_at = take(b->k, &x->k_used, bytes);
        v_at = take(b->v, &x->v_used, bytes);
        copy_back_later(x, k, k_at, bytes);
        copy_back_later(x, v, v_at, bytes);
    }
    ((struct cuda_read *)x->list)[x->count++] = (struct cuda_read){.first = x->blocks,
                                                                   .table = r->table,
                                                                   .layer = r->layer,
                                                                   .position = r->position + first,
                                                                   .k = k_at,
                                                                   .v = v_at};
    x->blocks += n;
}

static void add_reads(struct cuda_backend *b, const struct attention_step *step)
{
    const struct geometry *g = b->options.geometry;
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(g->kv_dtype);
    struct batch x;
    for (uint32_t i = 0, done = 0; i < step->read_count && !cuda_failed(&b->device);) {
        uint32_t most = begin_batch(b, &x, KERNEL_READ_KV, step->read_count - i, sizeof(struct cuda_read));
        while (i < step->read_count && x.count < most && x.back_count + 2 <= BACK_MAX) {
            const struct kv_read *r = &step->reads[i];
            bool direct =
                is_direct(b, r->k, r->count * row_bytes) && is_direct(b, r->v, r->count * row_bytes);
            uint32_t left = r->count - done,
                     n = direct ? left : (uint32_t)smaller(left, rows_left(&x, row_bytes));
            if (n)
                add_read(b, &x, r, done, n, direct);
            done += n;
            if (done < r->count)
                break;
            done = 0;
            i++;
        }
        end_batch(b, &x);
    }
}

/* ---- merges -------------------------------------------------------------------------------------- */

/* Heads [first, first + n) of states on the device, where they are merged in place. */
static struct cuda_merge_states stage_states(struct cuda_backend *b, struct batch *x,
                                             const struct merge_states *m, size_t first, size_t n)
{
    size_t all = (size_t)m->rows * m->heads, head_bytes = m->head_dim * dtype_bytes(m->dtype);
    CUdeviceptr o = take(b->k, &x->k_used, m->states * n * head_bytes),
                lse = take(b->v, &x->v_used, m->states * n * sizeof(float));
    uint32_t pieces = n == all ? 1 : m->states; /* that lie together */
    size_t heads = m->states / pieces * n;
    for (uint32_t i = 0; i < pieces; i++) {
        cuda_queue_copy_in(&b->queue, o + i * heads * head_bytes,
                           (const uint8_t *)m->o + (i * all + first) * head_bytes, heads * head_bytes);
        cuda_queue_copy_in(&b->queue, lse + i * heads * sizeof(float), m->lse + i * all + first,
                           heads * sizeof(float));
    }
    copy_back_later(x, (uint8_t *)m->merged_o + first * head_bytes, o, n * head_bytes);
    copy_back_later(x, m->merged_lse + first, lse, n * sizeof(float));
    return (struct cuda_merge_states){
        .apart = (uint32_t)n, .o = o, .lse = lse, .merged_o = o, .merged_lse = lse};
}

static bool is_direct_merge(const struct cuda_backend *b, const struct merge_states *m)
{
    size_t all = (size_t)m->rows * m->heads, o_bytes = all * m->head_dim * dtype_bytes(m->dtype),
           lse_bytes = all * sizeof(float);
    return is_direct(b, m->o, m->states * o_bytes) && is_direct(b, m->lse, m->states * lse_bytes) &&
           is_direct(b, m->merged_o, o_bytes) && is_direct(b, m->merged_lse, lse_bytes);
}

/* Heads [first, first + n) of a merge. */
static void add_merge(struct cuda_backend *b, struct batch *x, const struct merge_states *m, size_t first,
                      size_t n, bool direct)
{
    struct cuda_merge_states one = {.apart = m->rows * m->heads,
                                    .o = (uintptr_t)m->o,
                                    .lse = (uintptr_t)m->lse,
                                    .merged_o = (uintptr_t)m->merged_o,
                                    .merged_lse = (uintptr_t)m->merged_lse};
    if (!direct)
        one = stage_states(b, x, m, first, n);
    one.first = x->blocks;
    one.states = m->states;
    one.head_dim = m->head_dim;
    one.dtype = m->dtype;
    ((struct cuda_merge_states *)x->list)[x->count++] = one;
    x->blocks += (uint32_t)n;
    uint32_t threads = (m->head_dim + WARP - 1) / WARP * WARP;
    x->threads = threads > x->threads ? threads : x->threads;
}

static void add_merges(struct cuda_backend *b, const struct attention_step *step)
{
    struct batch x;
    size_t done = 0;
    for (uint32_t i = 0; i < step->merge_count && !cuda_failed(&b->device);) {
        uint32_t most =
            begin_batch(b, &x, KERNEL_MERGE_STATES, step->merge_count - i, sizeof(struct cuda_merge_states));
        x.threads = WARP;
        while (i < step->merge_count && x.count < most && x.back_count + 2 <= BACK_MAX) {
            const struct merge_states *m = &step->merges[i];
            size_t all = (size_t)m->rows * m->heads, left = all - done,
                   head_bytes = m->states * m->head_dim * dtype_bytes(m->dtype);
            bool direct = is_direct_merge(b, m);
            assert(head_bytes <= CUDA_GIVEN_BYTES); /* else it would never fit */
            size_t n = direct ? left : smaller(left, rows_left(&x, head_bytes));
            if (n)
                add_merge(b, &x, m, done, n, direct);
            done += n;
            if (done < all)
                break;
            done = 0;
            i++;
        }
        end_batch(b, &x);
    }
}

/* ---- a step -------------------------------------------------------------------------------------- */

void cuda_operations_add(struct cuda_backend *b, const struct attention_step *step, uint64_t ticket)
{
    b->compared = &b->compared_of[ticket % ATTENTION_STEPS_IN_FLIGHT];
    if (!cuda_failed(&b->device))
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
        struct cuda_compared *x = &b->compared_of[i];
        x->results = cuda_host_memory(&b->device, CUDA_COMPARED_MAX * sizeof *x->results);
        x->rows = calloc(CUDA_COMPARED_MAX, sizeof *x->rows);
        ok &= x->results && x->rows;
    }
    return ok;
}

void cuda_operations_deinit(struct cuda_backend *b)
{
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        cuda_free_host_memory(&b->device, b->compared_of[i].results);
        free(b->compared_of[i].rows);
    }
}
