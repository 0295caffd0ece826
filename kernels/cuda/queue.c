/* SPDX-License-Identifier: Apache-2.0 */
/* queue.c - see queue.h. */
#include "kernels/cuda/queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT = 16, /* of arrays in the control buffer */
    OPERATIONS_MAX = 4096,
    GRAPH_OPERATIONS = 24, /* fewer are a graph when they come again, */
    GRAPH_LEAST = 3,       /* and those never */
    LAST_COPIES = 4,       /* operations that copy a pass's outputs */
    WARM_UP = 3            /* replays of a graph before it is timed */
};

enum kind {
    LAUNCH,
    COPY_IN,
    COPY_OUT,     /* on the stream of copies, like */
    BEGIN_COPIES, /* wait there for what is computed, for the outputs of `side`; */
    END_COPIES,   /* they are copied; */
    AWAIT_SIDE,   /* and on the stream of kernels: wait until they are */
    CLEAR
};

struct cuda_operation {
    enum kind kind;
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    bool early; /* of a launch: it may begin while the one before it ends */
    uint32_t side;
    CUdeviceptr device;
    void *host;
    size_t bytes;
    uint64_t arguments[CUDA_ARGUMENT_BYTES / sizeof(uint64_t)];
    size_t pitch; /* of blocks, */
    uint32_t rows, fill;
};

/* ---- issuing ------------------------------------------------------------------------------------- */

static void launch(struct cuda_queue *q, struct cuda_operation *x)
{
    struct cuda_device *d = q->d;
    void *parameters[] = {x->arguments};
    cuda_holds(d, cuda_launch(&d->cu, q->kernels[x->kernel], &x->grid, x->early, q->on, parameters),
               "launching %s", cuda_kernels[x->kernel].name);
}

/* What is issued on stream `later` from now on waits for what was issued on `now`. */
static void order_streams(struct cuda_queue *q, CUstream now, CUstream later)
{
    cuda_holds(q->d, q->d->cu.cuEventRecord(q->ordered, now), "ordering streams");
    cuda_holds(q->d, q->d->cu.cuStreamWaitEvent(later, q->ordered, 0), "ordering streams");
}

static void issue(struct cuda_queue *q, struct cuda_operation *x)
{
    static const char ordering[] = "ordering a copy";
    struct cuda_device *d = q->d;
    switch (x->kind) {
    case LAUNCH:
        launch(q, x);
        break;
    case COPY_IN:
        cuda_holds(d, d->cu.cuMemcpyHtoDAsync_v2(x->device, x->host, x->bytes, q->on),
                   "copying %zu bytes to the GPU", x->bytes);
        break;
    case COPY_OUT:
        cuda_holds(d, d->cu.cuMemcpyDtoHAsync_v2(x->host, x->device, x->bytes, d->copies),
                   "copying %zu bytes from the GPU", x->bytes);
        break;
    case BEGIN_COPIES:
        order_streams(q, q->on, d->copies);
        break;
    case END_COPIES:
        cuda_holds(d, d->cu.cuEventRecord(q->copied[x->side], d->copies), ordering);
        break;
    case AWAIT_SIDE:
        cuda_holds(d, d->cu.cuStreamWaitEvent(q->on, q->copied[x->side], 0), ordering);
        break;
    case CLEAR:
        cuda_holds(
            d, d->cu.cuMemsetD2D8Async(x->device, x->pitch, (unsigned char)x->fill, x->bytes, x->rows, q->on),
            "clearing a block");
        break;
    }
}

static void issue_list(struct cuda_queue *q, const struct cuda_operations *list)
{
    for (uint32_t i = 0; i < list->count && !cuda_failed(q->d); i++)
        issue(q, &list->list[i]);
}

/* Upload what has been written down since the last time. */
static void upload(struct cuda_queue *q, CUstream stream)
{
    struct cuda_slot *s = q->slot;
    struct cuda_device *d = q->d;
    size_t front = s->used - s->uploaded, behind = s->uploaded_top - s->top;
    if (front)
        cuda_holds(d,
                   d->cu.cuMemcpyHtoDAsync_v2(s->device + s->uploaded, s->host + s->uploaded, front, stream),
                   "uploading %zu bytes of a step", front);
    if (behind)
        cuda_holds(d, d->cu.cuMemcpyHtoDAsync_v2(s->device + s->top, s->host + s->top, behind, stream),
                   "uploading %zu bytes of a step", behind);
    s->uploaded = s->used;
    s->uploaded_top = s->top;
}

static struct cuda_operation stamp(uint64_t *to)
{
    return (struct cuda_operation){
        .kind = LAUNCH, .kernel = KERNEL_STAMP, .grid = cuda_grid_of(1, 1), .arguments = {(uintptr_t)to}};
}

static void put_stamp(struct cuda_queue *q, uint64_t *to)
{
    struct cuda_operation x = stamp(to);
    launch(q, &x);
}

/* ---- graphs -------------------------------------------------------------------------------------- */

/* Record a list; NULL after a failure. */
static CUgraph record(struct cuda_queue *q, const struct cuda_operations *list)
{
    struct cuda_device *d = q->d;
    CUgraph graph = NULL;
    if (cuda_holds(d, d->cu.cuStreamBeginCapture_v2(q->on, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                   "recording a graph")) {
        issue_list(q, list);
        CUresult ended = d->cu.cuStreamEndCapture(q->on, &graph); /* whatever was recorded */
        cuda_holds(d, ended, "recording a graph");
    }
    return graph;
}

/* Whether a graph of `old` may be updated to one of `new`: what an update changes are parameters. That
 * a node may begin early belongs to the edge before it, and dimensions of clusters would stay as they
 * are without an error. */
static bool same_nodes(const struct cuda_operations *old, const struct cuda_operations *new)
{
    bool same = old->count == new->count;
    for (uint32_t i = 0; same && i < new->count; i++)
        same = old->list[i].kind == new->list[i].kind && old->list[i].kernel == new->list[i].kernel &&
               old->list[i].early == new->list[i].early &&
               old->list[i].grid.cluster == new->list[i].grid.cluster;
    return same;
}

static bool is_same(const struct cuda_operations *a, const struct cuda_operations *b)
{
    return a->count == b->count && memcmp(a->list, b->list, a->count * sizeof *a->list) == 0;
}

static void drop_exec(const struct cuda_device *d, struct cuda_graph *g)
{
    if (g->exec)
        (void)d->cu.cuGraphExecDestroy(g->exec);
    g->exec = NULL;
}

static void remember(struct cuda_graph *g, const struct cuda_operations *list)
{
    memcpy(g->recorded.list, list->list, list->count * sizeof *list->list);
    g->recorded.count = list->count;
}

/* Make a graph that of a list. */
static void renew_graph(struct cuda_queue *q, struct cuda_graph *g, const struct cuda_operations *list)
{
    struct cuda_device *d = q->d;
    CUgraph graph = record(q, list);
    CUgraphExecUpdateResultInfo info;
    if (g->exec && !cuda_failed(d) &&
        (!same_nodes(&g->recorded, list) ||
         d->cu.cuGraphExecUpdate_v2(g->exec, graph, &info) != CUDA_SUCCESS))
        drop_exec(d, g);
    if (!g->exec && !cuda_failed(d)) {
        cuda_holds(d, d->cu.cuGraphInstantiateWithFlags(&g->exec, graph, 0), "making a graph");
        q->graphs.made++;
    }
    if (graph)
        (void)d->cu.cuGraphDestroy(graph);
    q->graphs.recorded++;
}

/* Of graphs [from, end) that of a list, or the one that was not used for longest; whether it is that of the
 * list. */
static bool find_graph(struct cuda_queue *q, uint32_t from, uint32_t end, const struct cuda_operations *list,
                       struct cuda_graph **found)
{
    struct cuda_graph *graphs = q->slot->graphs;
    bool same = false;
    *found = &graphs[from];
    for (uint32_t i = from; i < end && !same; i++) {
        same = is_same(&graphs[i].recorded, list);
        if (same || graphs[i].used < (*found)->used)
            *found = &graphs[i];
    }
    (*found)->used = ++q->uses;
    return same;
}

/* Issue passes: many as a graph; few one by one, and as a graph when they come again: a client that
 * decodes repeats itself, and each operation costs the host up to 6 us. */
static void issue_passes(struct cuda_queue *q, struct cuda_operations *list)
{
    bool many = list->count >= GRAPH_OPERATIONS && !q->streamed, same = false;
    struct cuda_graph *g = NULL;
    if (many)
        same = find_graph(q, 0, CUDA_GRAPHS_MANY, list, &g);
    else if (list->count >= GRAPH_LEAST && !q->streamed)
        same = find_graph(q, CUDA_GRAPHS_MANY, CUDA_GRAPHS, list, &g);
    if (g && !same && !many) {
        drop_exec(q->d, g);
        remember(g, list);
    }
    if (!g || (!many && !same)) {
        issue_list(q, list);
    } else {
        if (!same || !g->exec) {
            renew_graph(q, g, list);
            remember(g, list);
        }
        q->graphs.launched++;
        cuda_holds(q->d, q->d->cu.cuGraphLaunch(g->exec, q->on), "launching a graph");
    }
    list->count = 0;
}

/* ---- writing down -------------------------------------------------------------------------------- */

static struct cuda_operation *add_to(struct cuda_operations *list, enum kind kind)
{
    struct cuda_operation *x = &list->list[list->count++];
    memset(x, 0, sizeof *x); /* they are compared with memcmp() */
    x->kind = kind;
    return x;
}

static void empty_slot(struct cuda_queue *q)
{
    q->slot->used = q->slot->uploaded = 0;
    q->slot->top = q->slot->uploaded_top = q->control_bytes;
    q->emptied++;
}

/* The step's last outputs are copied beside the next step, outside of the graph. */
static void take_last_copies(struct cuda_queue *q)
{
    struct cuda_operations *list = q->now, *last = &q->last_copies;
    uint32_t n = 0;
    if (list->count == 0 || list->list[list->count - 1].kind != END_COPIES)
        return;
    while (list->list[list->count - 1 - n++].kind != BEGIN_COPIES) {
    }
    assert(last->count == 0 && n <= LAST_COPIES);
    list->count -= n;
    last->count = n;
    memcpy(last->list, list->list + list->count, n * sizeof *last->list);
    q->side_used[last->list[0].side] = false;
}

/* The list being written down ends when all its copies have. */
static void end_list(struct cuda_queue *q)
{
    for (unsigned side = 0; side < CUDA_SIDES; side++) {
        if (q->side_used[side])
            add_to(q->now, AWAIT_SIDE)->side = side;
        q->side_used[side] = false;
    }
}

/* Upload the control data and issue all that is written down. */
static void issue_all(struct cuda_queue *q)
{
    struct cuda_device *d = q->d;
    bool beside = q->steady.count > 0 && q->passes.count > 0;
    end_list(q);
    /* beside the step before, or what the caller's stream has to do */
    bool ahead = q->streamed || (q->begins && q->known_done + 1 < q->ticket);
    if (ahead) {
        upload(q, d->uploads);
        order_streams(q, d->uploads, q->main);
    }
    if (q->begins)
        put_stamp(q, q->begins);
    q->begins = NULL;
    if (!ahead)
        upload(q, q->main);
    issue_list(q, &q->preparation);
    q->preparation.count = 0;
    if (beside)
        order_streams(q, q->main, d->beside);
    issue_passes(q, &q->steady);
    q->on = beside ? d->beside : q->main;
    issue_passes(q, &q->passes);
    q->on = q->main;
    if (beside)
        order_streams(q, d->beside, q->main);
}

void cuda_queue_finish_part(struct cuda_queue *q)
{
    issue_all(q);
    cuda_await(q->d, NULL, q->main, "a part of a step");
    empty_slot(q);
}

void cuda_queue_reserve(struct cuda_queue *q, size_t bytes, uint32_t n)
{
    bytes += (size_t)n * ALIGNMENT;
    assert(bytes <= q->control_bytes);
    if (bytes <= q->slot->top - q->slot->used && n <= OPERATIONS_MAX - CUDA_SIDES - q->now->count)
        return;
    cuda_queue_finish_part(q);
}

void *cuda_queue_take(struct cuda_queue *q, size_t n, size_t size)
{
    struct cuda_slot *s = q->slot;
    size_t bytes = (n * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    assert(bytes <= s->top - s->used);
    if (q->now == &q->preparation) {
        s->top -= bytes;
        return s->host + s->top;
    }
    s->used += bytes;
    return s->host + s->used - bytes;
}

uint64_t cuda_queue_address(const struct cuda_queue *q, const void *taken)
{
    return q->slot->device + (uint64_t)((const uint8_t *)taken - q->slot->host);
}

uint64_t cuda_queue_put(struct cuda_queue *q, const void *array, size_t n, size_t size)
{
    void *at = cuda_queue_take(q, n, size);
    if (n)
        memcpy(at, array, n * size);
    return cuda_queue_address(q, at);
}

static struct cuda_operation *add(struct cuda_queue *q, enum kind kind)
{
    if (q->now->count >= OPERATIONS_MAX - CUDA_SIDES) /* the last ones are for end_list() */
        issue_all(q);
    return add_to(q->now, kind);
}

void cuda_queue_launch(struct cuda_queue *q, enum cuda_kernel kernel, struct cuda_grid grid,
                       const void *arguments, size_t bytes)
{
    struct cuda_operation *x = add(q, LAUNCH);
    assert(bytes <= sizeof x->arguments && grid.x > 0);
    x->kernel = kernel;
    x->grid = grid;
    x->early = grid.overlaps && q->d->follows_early && q->now->count > 1 && x[-1].kind == LAUNCH;
    memcpy(x->arguments, arguments, bytes);
}

static void add_copy(struct cuda_queue *q, enum kind kind, CUdeviceptr device, const void *host, size_t bytes)
{
    struct cuda_operation *x = add(q, kind);
    x->device = device;
    memcpy(&x->host, &host, sizeof x->host); /* a source is only read */
    x->bytes = bytes;
}

void cuda_queue_copy_in(struct cuda_queue *q, CUdeviceptr to, const void *from, size_t bytes)
{
    add_copy(q, COPY_IN, to, from, bytes);
}

void cuda_queue_await_side(struct cuda_queue *q, unsigned side)
{
    if (q->side_used[side])
        add(q, AWAIT_SIDE)->side = side;
}

void cuda_queue_copy_out(struct cuda_queue *q, unsigned side, const struct cuda_output *outputs, uint32_t n)
{
    cuda_queue_reserve(q, 0, n + 2); /* the copies belong together */
    add(q, BEGIN_COPIES)->side = side;
    for (uint32_t i = 0; i < n; i++)
        add_copy(q, COPY_OUT, outputs[i].from, outputs[i].to, outputs[i].bytes);
    add(q, END_COPIES)->side = side;
    q->side_used[side] = true;
}

void cuda_queue_clear(struct cuda_queue *q, const struct cuda_block *block)
{
    struct cuda_operation *x = add(q, CLEAR);
    x->device = block->device;
    x->bytes = block->bytes;
    x->pitch = block->pitch;
    x->rows = block->rows;
    x->fill = block->fill;
}

/* Swaps wait for what came before the step. */
void cuda_queue_begin_swaps(struct cuda_queue *q)
{
    order_streams(q, q->main, q->d->swaps);
    q->swapping = true;
}

void cuda_queue_swap(struct cuda_queue *q, const struct cuda_block *block, bool out)
{
    struct cuda_device *d = q->d;
    CUDA_MEMCPY2D copy = {.WidthInBytes = block->bytes, .Height = block->rows};
    copy.srcMemoryType = out ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstMemoryType = out ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = copy.dstDevice = block->device;
    copy.srcHost = copy.dstHost = block->host;
    copy.srcPitch = out ? block->pitch : block->bytes;
    copy.dstPitch = out ? block->bytes : block->pitch;
    cuda_holds(d, d->cu.cuMemcpy2DAsync_v2(&copy, d->swaps), "swapping a block %s", out ? "out" : "in");
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* What is issued from now on goes to `stream`, behind what was issued before. That is waited for on a stream of the caller's also when
 * it seems to be the same: another one may have its handle by now, and each thread has a default one with one handle. */
static void turn_to(struct cuda_queue *q, bool streamed, CUstream stream)
{
    CUstream to = streamed ? stream : q->d->stream;
    if ((streamed || q->streamed) && q->ticket)
        cuda_holds(q->d, q->d->cu.cuStreamWaitEvent(to, q->done[q->ticket % CUDA_TICKETS], 0),
                   "ordering streams");
    q->main = q->on = to;
    q->streamed = streamed;
    q->now = &q->preparation;
}

void cuda_queue_continue(struct cuda_queue *q, bool streamed, CUstream stream)
{
    cuda_enter(q->d);
    turn_to(q, streamed, stream);
}

bool cuda_queue_has_room(const struct cuda_queue *q)
{
    return q->streamed && q->slot->top - q->slot->used > q->control_bytes / 4 * 3;
}

void cuda_queue_begin(struct cuda_queue *q, uint64_t ticket, bool streamed, CUstream stream)
{
    struct cuda_device *d = q->d;
    cuda_enter(d);
    turn_to(q, streamed, stream);
    if (ticket > ATTENTION_STEPS_IN_FLIGHT)
        cuda_await(d, q->done[(ticket - ATTENTION_STEPS_IN_FLIGHT) % CUDA_TICKETS], NULL, "a step");
    q->slot = &q->slots[ticket % ATTENTION_STEPS_IN_FLIGHT];
    empty_slot(q);
    q->ticket = ticket;
    struct cuda_stamps *stamps = &q->stamps[ticket % CUDA_TICKETS];
    q->timed = !streamed; /* what the caller's stream does meanwhile is not ours */
    q->begins = q->timed ? &stamps->begin : NULL;
    if (!q->timed)
        *stamps = (struct cuda_stamps){0};
    q->passes_begun[ticket % ATTENTION_STEPS_IN_FLIGHT] = 0;
    q->pass = NULL;
}

void cuda_queue_begin_steady(struct cuda_queue *q)
{
    q->now = &q->steady;
}

void cuda_queue_begin_passes(struct cuda_queue *q)
{
    take_last_copies(q);
    end_list(q);
    q->now = &q->passes;
}

void cuda_queue_issue(struct cuda_queue *q)
{
    take_last_copies(q);
    issue_all(q);
}

void cuda_queue_end(struct cuda_queue *q)
{
    struct cuda_device *d = q->d;
    uint64_t place = q->ticket % CUDA_TICKETS;
    if (q->swapping) /* the step is not done before its swaps are */
        order_streams(q, d->swaps, q->main);
    q->swapping = false;
    if (q->timed)
        put_stamp(q, &q->stamps[place].end);
    issue_list(q, &q->last_copies);
    cuda_holds(d, d->cu.cuEventRecord(q->done[place], q->last_copies.count ? d->copies : q->main),
               "ending a step");
    q->last_copies.count = 0;
}

bool cuda_queue_is_done(struct cuda_queue *q, uint64_t ticket)
{
    if (cuda_failed(q->d))
        return true;
    CUresult result = q->d->cu.cuEventQuery(q->done[ticket % CUDA_TICKETS]);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    cuda_holds(q->d, result, "running a step");
    q->known_done = ticket > q->known_done ? ticket : q->known_done;
    return true;
}

struct attention_times cuda_queue_times(const struct cuda_queue *q, uint64_t ticket)
{
    const struct cuda_stamps *now = &q->stamps[ticket % CUDA_TICKETS],
                             *before = &q->stamps[(ticket - 1) % CUDA_TICKETS];
    double idle =
        ticket > 1 && before->end && now->begin > before->end ? (double)(now->begin - before->end) : 0;
    return (struct attention_times){(double)(now->end - now->begin) * 1e-9, idle * 1e-9};
}

/* ---- passes ---------------------------------------------------------------------------------------- */

bool cuda_queue_stamp_passes(struct cuda_queue *q)
{
    q->passes_at =
        cuda_host_memory(q->d, ATTENTION_STEPS_IN_FLIGHT * ATTENTION_PASSES_STAMPED * sizeof *q->passes_at);
    return q->passes_at != NULL;
}

void cuda_queue_begin_pass(struct cuda_queue *q, uint32_t layer)
{
    uint32_t slot = (uint32_t)(q->ticket % ATTENTION_STEPS_IN_FLIGHT), n = q->passes_begun[slot];
    q->pass = NULL;
    if (!q->passes_at || !q->timed || n == ATTENTION_PASSES_STAMPED)
        return;
    q->pass = &q->passes_at[slot * ATTENTION_PASSES_STAMPED + n];
    memset(q->pass, 0, sizeof *q->pass); /* the step that had it is done */
    q->pass_layers[slot][n] = layer;
    q->passes_begun[slot] = n + 1;
    cuda_queue_mark(q, CUDA_BEGUN);
}

void cuda_queue_mark(struct cuda_queue *q, enum cuda_mark mark)
{
    if (q->pass)
        *add(q, LAUNCH) = stamp(&q->pass->at[mark]);
}

uint32_t cuda_queue_pass_times(const struct cuda_queue *q, uint64_t ticket,
                               struct attention_pass_times passes[ATTENTION_PASSES_STAMPED])
{
    uint32_t slot = (uint32_t)(ticket % ATTENTION_STEPS_IN_FLIGHT), n = q->passes_begun[slot];
    uint64_t begin = q->stamps[ticket % CUDA_TICKETS].begin;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *at = q->passes_at[slot * ATTENTION_PASSES_STAMPED + i].at;
        uint64_t before = at[CUDA_BEGUN];
        struct attention_pass_times *to = &passes[i];
        float *const parts[CUDA_MARKS] = {NULL, &to->append_us, &to->attend_us, &to->merge_us, &to->store_us};
        *to = (struct attention_pass_times){.layer = q->pass_layers[slot][i],
                                            .begin_us = before > begin ? (float)(before - begin) * 1e-3F : 0};
        for (int mark = CUDA_APPENDED; mark < CUDA_MARKS; mark++) {
            if (at[mark] <= before)
                continue;
            *parts[mark] = (float)(at[mark] - before) * 1e-3F;
            before = at[mark];
        }
    }
    return n;
}

/* ---- timing -------------------------------------------------------------------------------------- */

/* Drop all but the kernels that are timed, with an empty one ahead of each pass if they are to be
 * `apart`; return how many of these. */
static uint32_t keep_timed(const struct cuda_queue *q, struct cuda_operations *list, bool apart)
{
    uint32_t n = 0, empty = 0;
    bool dropped = true;
    for (uint32_t i = 0; i < list->count; i++) {
        struct cuda_operation x = list->list[i];
        bool keep = x.kind == LAUNCH && x.kernel >= KERNEL_FIRST_TIMED;
        x.early = x.grid.overlaps && q->d->follows_early && n > 0 && !(dropped && apart);
        if (keep && dropped && apart) {
            assert(n < i); /* ahead of a pass its q is generated or copied, and that dropped */
            list->list[n++] = stamp(NULL);
            empty++;
        }
        if (keep)
            list->list[n++] = x;
        dropped = !keep;
    }
    list->count = n;
    return empty;
}

/* What is issued between these two is timed. */
static void start_timer(struct cuda_queue *q)
{
    cuda_holds(q->d, q->d->cu.cuEventRecord(q->timer[0], q->d->stream), "timing");
}

/* Wait until it is done: microseconds, 0 after a failure. */
static double stop_timer(struct cuda_queue *q, const char *doing)
{
    struct cuda_device *d = q->d;
    float ms = 0;
    if (cuda_holds(d, d->cu.cuEventRecord(q->timer[1], d->stream), "timing") &&
        cuda_await(d, q->timer[1], NULL, doing))
        cuda_holds(d, d->cu.cuEventElapsedTime(&ms, q->timer[0], q->timer[1]), "timing");
    return (double)ms * 1e3;
}

/* Replay a list as a graph. */
static bool time_list(struct cuda_queue *q, const struct cuda_operations *list, uint32_t replays, double *us)
{
    struct cuda_device *d = q->d;
    struct cuda_graph graph = {0};
    renew_graph(q, &graph, list);
    for (uint32_t i = 0; i < replays + WARM_UP && !cuda_failed(d); i++) {
        start_timer(q);
        cuda_holds(d, d->cu.cuGraphLaunch(graph.exec, d->stream), "replaying a graph");
        double took = stop_timer(q, "replaying a graph");
        if (i >= WARM_UP)
            us[i - WARM_UP] = took;
    }
    if (!d->owner->hangs)
        drop_exec(d, &graph);
    return !cuda_failed(d);
}

bool cuda_queue_time(struct cuda_queue *q, uint32_t replays, bool apart, double *us)
{
    double *empty = calloc(replays, sizeof *empty);
    uint32_t passes = keep_timed(q, &q->passes, apart);
    upload(q, q->d->stream);
    bool ok = empty && time_list(q, &q->passes, replays, us);
    if (ok && apart) {
        for (q->passes.count = 0; q->passes.count < passes; q->passes.count++)
            q->passes.list[q->passes.count] = stamp(NULL);
        ok = time_list(q, &q->passes, replays, empty);
        for (uint32_t i = 0; i < replays; i++)
            us[i] -= empty[i];
    }
    q->passes.count = 0;
    memset(q->side_used, 0, sizeof q->side_used);
    q->begins = NULL;
    free(empty);
    return ok;
}

double cuda_queue_time_read(struct cuda_queue *q, struct cuda_grid grid, const struct cuda_read_pass *pass)
{
    struct cuda_operation first = {.kind = LAUNCH, .kernel = KERNEL_READ_ALL, .grid = grid}, timed = first;
    struct cuda_read_pass eighth = {pass->from, pass->vectors / 8};
    memcpy(first.arguments, &eighth, sizeof eighth);
    memcpy(timed.arguments, pass, sizeof *pass);
    q->on = q->d->stream;
    launch(q, &first);
    start_timer(q);
    launch(q, &timed);
    return stop_timer(q, "timing the read roof");
}

/* ---- init and deinit ----------------------------------------------------------------------------- */

static bool make_list(struct cuda_operations *list, size_t n)
{
    list->list = calloc(n, sizeof *list->list);
    return list->list != NULL;
}

bool cuda_queue_init(struct cuda_queue *q, struct cuda_device *d, size_t control_bytes)
{
    *q = (struct cuda_queue){
        .d = d, .main = d->stream, .on = d->stream, .control_bytes = control_bytes, .now = &q->preparation};
    for (int i = 0; i < CUDA_TICKETS; i++)
        q->done[i] = cuda_make_event(d, false);
    for (int i = 0; i < CUDA_SIDES; i++)
        q->copied[i] = cuda_make_event(d, false);
    for (int i = 0; i < 2; i++)
        q->timer[i] = cuda_make_event(d, true);
    q->ordered = cuda_make_event(d, false);
    bool ok = make_list(&q->preparation, OPERATIONS_MAX) && make_list(&q->steady, OPERATIONS_MAX) &&
              make_list(&q->passes, OPERATIONS_MAX) && make_list(&q->last_copies, LAST_COPIES);
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        q->slots[i].device = cuda_allocate(d, control_bytes, "control data");
        q->slots[i].host = cuda_host_memory(d, control_bytes);
        ok &= q->slots[i].host != NULL;
        for (int k = 0; k < CUDA_GRAPHS; k++)
            ok &= make_list(&q->slots[i].graphs[k].recorded,
                            k < CUDA_GRAPHS_MANY ? OPERATIONS_MAX : GRAPH_OPERATIONS);
    }
    q->stamps = cuda_host_memory(d, CUDA_TICKETS * sizeof *q->stamps);
    if (q->stamps)
        memset(q->stamps, 0, CUDA_TICKETS * sizeof *q->stamps);
    q->slot = &q->slots[0];
    return ok && q->stamps && !cuda_failed(d);
}

void cuda_queue_deinit(struct cuda_queue *q)
{
    struct cuda_device *d = q->d;
    if (!d)
        return;
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT * CUDA_GRAPHS; i++) {
        struct cuda_graph *g = &q->slots[i / CUDA_GRAPHS].graphs[i % CUDA_GRAPHS];
        drop_exec(d, g);
        free(g->recorded.list);
    }
    free(q->preparation.list);
    free(q->steady.list);
    free(q->passes.list);
    free(q->last_copies.list);
}
