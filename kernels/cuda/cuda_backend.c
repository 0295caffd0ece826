/* cuda_backend.c - the CUDA backend: executes plans on a GPU.
 *
 *   step:   table changes -> copies
 *           for each pass:  k, v -> append;  q (copied or generated) -> items -> merges -> o, lse
 *
 * on one stream, so everything is in order by itself; outputs are copied on a second one, while the
 * next pass is computed. Submitting a step only writes down what is to be done (struct operation) and
 * puts the control data that it needs (changed table entries, appends, plans) into a pinned buffer;
 * then the buffer is uploaded at once and the operations are issued. A step that needs more than the
 * buffer holds  * is issued in parts, with a wait between them. There are two buffers, so that a step
 * is prepared while the one before is computed.
 *
 * What a step of many passes does for them is issued as one graph, since a launch costs the host some
 * 10 us where it runs in a virtual machine, and a pass has six. The passes' control data comes first in
 * the buffer and so lies at the same addresses step after step: a decode step mostly repeats the one
 * before it, and its graph with it. Otherwise the graph is recorded again, and updated in place if it
 * still has the same form. Outputs must be in pinned memory for that (attention_host_memory).
 *
 * The GPU keeps a copy of the block tables. A row is uploaded again from its first entry when its
 * version is another than the last time it was named, and otherwise from where it was known to
 * (attention.h, table_use): a decode step uploads an entry when a sequence begins a block.
 *
 * An item of the plan becomes a thread block for every KV head and every piece of up to 32 packed
 * columns; pieces of 8, 16 and 32 columns are separate launches of kernels made for them.
 *
 * The first error that CUDA reports is kept (attention_failure()); after it nothing is issued any more,
 * since the context is lost. */
#include "kernels/backend.h"

#include "config/log.h"
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/device/step.h"
#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/driver.h"
#include "kernels/kv_pool.h"
#include "kernels/numeric.h"
#include "kernels/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONTROL_BYTES = 32 << 20, /* of the pinned buffer, at least */
    CONTROL_ALIGNMENT = 16,
    GIVEN_BYTES = 64 << 20, /* of k and v that are being appended, each, on the device */
    OPERATIONS_MAX = 4096,
    EVENTS = 2 * ATTENTION_STEPS_IN_FLIGHT, /* so that the step before can still be asked for its end */
    SIDES = 2,
    PINNED_MAX = 16,
    GRAPH_OPERATIONS = 24, /* fewer are issued one by one */
    WIDTHS_MAX = 3,
    PREPARED_MAX = 8,   /* plans of a step that are remembered: one a window */
    SIMPLE_COLUMNS = 8, /* attend_simple.cu */
    ROOF_THREADS = 512, /* pool.cu, read_all */
    ROOF_ROUNDS = 5,
    WARM_UP = 3,                    /* replays of a graph before it is timed */
    TEST_KEYS = CHUNK_TOKENS + 100, /* of the self-test, */
    TEST_ROWS = 2                   /* and its rows, and partial states */
};

#define ROOF_BYTES_MAX (UINT64_C(8) << 30)

/* XX(constant, name of the kernel) */
#define KERNEL_MAP(XX)                                                                                 \
    XX(KERNEL_CHANGE_TABLES, "change_tables")                                                          \
    XX(KERNEL_COPY_SLOTS, "copy_slots")                                                                \
    XX(KERNEL_APPEND, "append")                                                                        \
    XX(KERNEL_GENERATE_Q, "generate_q")                                                                \
    XX(KERNEL_MERGE, "merge")                                                                          \
    XX(KERNEL_READ_ALL, "read_all")                                                                    \
    XX(KERNEL_ATTEND_8, "attend_8")                                                                    \
    XX(KERNEL_ATTEND_16, "attend_16")                                                                  \
    XX(KERNEL_ATTEND_32, "attend_32")                                                                  \
    XX(KERNEL_ATTEND_SIMPLE, "attend_simple")

enum kernel {
#define XX(constant, name) constant,
    KERNEL_MAP(XX)
#undef XX
        KERNEL_COUNT
};

static const char *const kernel_names[] = {
#define XX(constant, name) name,
    KERNEL_MAP(XX)
#undef XX
};

/* Pieces of items of up to so many packed columns, and the kernel for them. */
struct width {
    enum kernel kernel;
    uint32_t columns, shared_bytes;
};

/* What the device knows of one row of the block tables. */
struct known_row {
    uint64_t version;
    uint32_t entries;
};

/* The first arguments of table changes and copies. */
struct pool_arguments {
    struct cuda_pool pool;
    uint64_t list, ids;
};

_Static_assert(sizeof(struct cuda_append_pass) % 8 == 0 && sizeof(struct cuda_attend_pass) % 8 == 0,
               "launches are compared byte by byte");

enum operation_kind {
    LAUNCH,
    COPY_IN,
    COPY_OUT,  /* on the stream of copies, like */
    BEGIN_OUT, /* wait there for what is computed, for the outputs `side`; */
    END_OUT,   /* they are copied; */
    AWAIT_OUT  /* and on the stream of kernels: wait until they are */
};

struct operation {
    enum operation_kind kind;
    enum kernel kernel;
    uint32_t grid[3], threads, shared_bytes;
    union { /* of a launch */
        struct pool_arguments pool;
        struct cuda_append_pass append;
        struct cuda_attend_pass attend;
    } arguments;
    CUdeviceptr device; /* of a copy */
    void *host;
    size_t bytes;
    unsigned side;
};

/* What is to be done, in order. */
struct operations {
    struct operation *list; /* [OPERATIONS_MAX] */
    uint32_t count;
};

/* What belongs to one of the steps in flight: a pinned buffer and its copy on the device; and a graph,
 * with what it was recorded from. */
struct slot {
    uint8_t *host;
    CUdeviceptr device;
    size_t used, top; /* taken: from the front for passes, from `top` on for what comes before them */
    CUgraphExec graph;
    struct operations recorded;
};

/* Memory that was handed out by attention_host_memory(). */
struct pinned {
    const uint8_t *memory;
    size_t bytes;
};

/* A plan in the control buffer. */
struct prepared_plan {
    const struct plan *plan;        /* whose; NULL: none */
    struct cuda_attend_pass arrays; /* rows, item_rows, merges, parts */
    uint64_t items[WIDTHS_MAX];     /* device addresses */
    uint32_t item_counts[WIDTHS_MAX];
};

struct cuda_backend {
    struct attention base;
    struct attention_options options;
    struct cuda_driver cu;
    struct cuda_target target;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernels[KERNEL_COUNT]; /* NULL: not in this program */
    CUstream stream, copies;
    CUevent begun[EVENTS], done[EVENTS];    /* of steps, by ticket */
    CUevent computed[SIDES], copied[SIDES]; /* outputs */
    uint32_t multiprocessors;
    struct width widths[WIDTHS_MAX]; /* narrowest first */
    uint32_t width_count;

    struct kv_pool layout; /* sizes only, no bytes */
    uint32_t test_blocks;  /* behind the caller's, for the self-test, as is one table row */
    struct cuda_pool pool;
    struct known_row *known; /* [table_rows + 1] */
    CUdeviceptr q, k, v, partial_ml, partial_o;
    CUdeviceptr o[SIDES], lse[SIDES]; /* used in turn */
    unsigned side;
    CUdeviceptr sinks, alibi, k_scale, v_scale;
    uint64_t constants_version;

    struct slot slots[ATTENTION_STEPS_IN_FLIGHT], *slot; /* and the one in use */
    uint64_t graphs_launched, graphs_recorded, graphs_made;
    size_t control_bytes;
    struct pinned pinned[PINNED_MAX];
    CUevent begins; /* to be recorded when something is issued for the first time; NULL: it is */
    struct operations preparation, passes, *list; /* written down, not yet issued; and where to */
    bool side_used[SIDES];                        /* by the passes that are written down */
    struct prepared_plan
        prepared[PREPARED_MAX]; /* that lie in the control buffer, oldest overwritten */
    uint32_t prepared_count;
    uint8_t *block; /* [block_bytes of a layer] to read one back */
};

/* ---- errors -------------------------------------------------------------------------------------- */

static bool failed(const struct cuda_backend *b)
{
    return b->base.failure[0] != '\0';
}

/* Note a result; the first bad one stays. True when everything is well so far. */
static bool __attribute__((format(printf, 3, 4)))
holds(struct cuda_backend *b, CUresult result, const char *doing, ...)
{
    char what[128];
    va_list args;
    if (result == CUDA_SUCCESS || failed(b))
        return !failed(b);
    va_start(args, doing);
    vsnprintf(what, sizeof what, doing, args);
    va_end(args);
    snprintf(b->base.failure, sizeof b->base.failure, "%s while %s", cuda_driver_error(&b->cu, result),
             what);
    return false;
}

/* ---- operations and control data ----------------------------------------------------------------- */

static void issue(struct cuda_backend *b, struct operation *x)
{
    void *whole[] = {&x->arguments},
         *parts[] = {&x->arguments.pool.pool, &x->arguments.pool.list, &x->arguments.pool.ids};
    bool in_parts = x->kernel == KERNEL_CHANGE_TABLES || x->kernel == KERNEL_COPY_SLOTS;
    switch (x->kind) {
    case LAUNCH:
        holds(b,
              b->cu.cuLaunchKernel(b->kernels[x->kernel], x->grid[0], x->grid[1], x->grid[2],
                                   x->threads, 1, 1, x->shared_bytes, b->stream,
                                   in_parts ? parts : whole, NULL),
              "launching %s", kernel_names[x->kernel]);
        break;
    case COPY_IN:
        holds(b, b->cu.cuMemcpyHtoDAsync_v2(x->device, x->host, x->bytes, b->stream),
              "copying %zu bytes to the GPU", x->bytes);
        break;
    case COPY_OUT:
        holds(b, b->cu.cuMemcpyDtoHAsync_v2(x->host, x->device, x->bytes, b->copies),
              "copying %zu bytes from the GPU", x->bytes);
        break;
    case BEGIN_OUT:
        holds(b, b->cu.cuEventRecord(b->computed[x->side], b->stream), "ordering a copy");
        holds(b, b->cu.cuStreamWaitEvent(b->copies, b->computed[x->side], 0), "ordering a copy");
        break;
    case END_OUT:
        holds(b, b->cu.cuEventRecord(b->copied[x->side], b->copies), "ordering a copy");
        break;
    case AWAIT_OUT:
        holds(b, b->cu.cuStreamWaitEvent(b->stream, b->copied[x->side], 0), "ordering a copy");
        break;
    }
}

static struct operation *add_to(struct operations *list, enum operation_kind kind)
{
    struct operation *x = &list->list[list->count++];
    memset(x, 0, sizeof *x); /* they are compared with memcmp() */
    x->kind = kind;
    return x;
}

static void upload_control(struct cuda_backend *b)
{
    const struct slot *s = b->slot;
    size_t behind = b->control_bytes - s->top;
    if (s->used)
        holds(b, b->cu.cuMemcpyHtoDAsync_v2(s->device, s->host, s->used, b->stream),
              "uploading %zu bytes of a step", s->used);
    if (behind)
        holds(b, b->cu.cuMemcpyHtoDAsync_v2(s->device + s->top, s->host + s->top, behind, b->stream),
              "uploading %zu bytes of a step", behind);
}

static void issue_list(struct cuda_backend *b, const struct operations *list)
{
    for (uint32_t i = 0; i < list->count && !failed(b); i++)
        issue(b, &list->list[i]);
}

static bool is_pinned(const struct cuda_backend *b, const void *memory, size_t bytes)
{
    const uint8_t *at = memory;
    for (int i = 0; i < PINNED_MAX; i++) {
        const struct pinned *p = &b->pinned[i];
        if (p->memory && at >= p->memory && at + bytes <= p->memory + p->bytes)
            return true;
    }
    return false;
}

/* Whether a list is worth a graph and can be one. */
static bool fits_graph(const struct cuda_backend *b, const struct operations *list)
{
    if (list->count < GRAPH_OPERATIONS)
        return false;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operation *x = &list->list[i];
        if ((x->kind == COPY_IN || x->kind == COPY_OUT) && !is_pinned(b, x->host, x->bytes))
            return false;
    }
    return true;
}

/* Record a list; NULL after a failure. */
static CUgraph record(struct cuda_backend *b, const struct operations *list)
{
    CUgraph graph = NULL;
    if (holds(b, b->cu.cuStreamBeginCapture_v2(b->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "recording a graph")) {
        issue_list(b, list);
        holds(b, b->cu.cuStreamEndCapture(b->stream, &graph), "recording a graph");
    }
    return graph;
}

/* Issue the passes as the graph of the slot. */
static void issue_graph(struct cuda_backend *b)
{
    struct slot *s = b->slot;
    struct operations *list = &b->passes;
    bool same = s->graph && s->recorded.count == list->count &&
                memcmp(s->recorded.list, list->list, list->count * sizeof *list->list) == 0;
    b->graphs_launched++;
    if (!same) {
        CUgraph graph = record(b, list);
        b->graphs_recorded++;
        CUgraphExecUpdateResultInfo info;
        if (s->graph && !failed(b) &&
            b->cu.cuGraphExecUpdate_v2(s->graph, graph, &info) != CUDA_SUCCESS) {
            (void)b->cu.cuGraphExecDestroy(s->graph);
            s->graph = NULL;
        }
        if (!s->graph && !failed(b)) {
            holds(b, b->cu.cuGraphInstantiateWithFlags(&s->graph, graph, 0), "making a graph");
            b->graphs_made++;
        }
        if (graph)
            (void)b->cu.cuGraphDestroy(graph);
        memcpy(s->recorded.list, list->list, list->count * sizeof *list->list);
        s->recorded.count = list->count;
    }
    if (!failed(b))
        holds(b, b->cu.cuGraphLaunch(s->graph, b->stream), "launching a graph");
}

/* Upload the control data and issue all that is written down. */
static void issue_all(struct cuda_backend *b)
{
    if (b->begins)
        holds(b, b->cu.cuEventRecord(b->begins, b->stream), "beginning a step");
    b->begins = NULL;
    upload_control(b);
    issue_list(b, &b->preparation);
    for (unsigned side = 0; side < SIDES; side++) {
        if (b->side_used[side])
            add_to(&b->passes, AWAIT_OUT)->side = side;
        b->side_used[side] = false;
    }
    if (fits_graph(b, &b->passes))
        issue_graph(b);
    else
        issue_list(b, &b->passes);
    b->preparation.count = b->passes.count = 0;
}

/* The control buffer is used anew. */
static void empty_slot(struct cuda_backend *b)
{
    b->slot->used = 0;
    b->slot->top = b->control_bytes;
    memset(b->prepared, 0, sizeof b->prepared);
    b->prepared_count = 0;
}

/* Issue what there is, and wait until buffer and list are free. */
static void make_room(struct cuda_backend *b)
{
    issue_all(b);
    if (!failed(b))
        holds(b, b->cu.cuStreamSynchronize(b->stream), "waiting for the GPU");
    empty_slot(b);
}

/* See that `bytes` in up to `arrays` arrays, and as many operations, can be added. */
static void ensure_room(struct cuda_backend *b, size_t bytes, uint32_t arrays)
{
    bytes += (size_t)arrays * CONTROL_ALIGNMENT;
    assert(bytes <= b->control_bytes);
    if (bytes > b->slot->top - b->slot->used || arrays > OPERATIONS_MAX - b->list->count)
        make_room(b);
}

/* Room for `n` elements, which ensure_room() has seen to. */
static void *take_control(struct cuda_backend *b, size_t n, size_t size)
{
    struct slot *s = b->slot;
    size_t bytes = (n * size + CONTROL_ALIGNMENT - 1) / CONTROL_ALIGNMENT * CONTROL_ALIGNMENT;
    assert(bytes <= s->top - s->used);
    if (b->list == &b->preparation) {
        s->top -= bytes;
        return s->host + s->top;
    }
    s->used += bytes;
    return s->host + s->used - bytes;
}

static uint64_t control_address(const struct cuda_backend *b, const void *at)
{
    return b->slot->device + (uint64_t)((const uint8_t *)at - b->slot->host);
}

/* Copy an array in; its device address. */
static uint64_t put_control(struct cuda_backend *b, const void *array, size_t n, size_t size)
{
    void *at = take_control(b, n, size);
    if (n)
        memcpy(at, array, n * size);
    return control_address(b, at);
}

static struct operation *add_operation(struct cuda_backend *b, enum operation_kind kind)
{
    if (b->list->count >= OPERATIONS_MAX - SIDES) /* the last ones are for issue_all() */
        issue_all(b);
    return add_to(b->list, kind);
}

static struct operation *add_launch(struct cuda_backend *b, enum kernel kernel, uint32_t blocks,
                                    uint32_t threads)
{
    struct operation *x = add_operation(b, LAUNCH);
    x->kernel = kernel;
    x->grid[0] = blocks;
    x->grid[1] = x->grid[2] = 1;
    x->threads = threads;
    return x;
}

static void add_copy(struct cuda_backend *b, enum operation_kind kind, CUdeviceptr device,
                     const void *host, size_t bytes)
{
    struct operation *x = add_operation(b, kind);
    x->device = device;
    memcpy(&x->host, &host, sizeof x->host); /* a source is only read */
    x->bytes = bytes;
}

/* ---- tables and copies --------------------------------------------------------------------------- */

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* From which entry on the device does not know a row. */
static uint32_t first_unknown(const struct cuda_backend *b, const struct table_use *use)
{
    const struct known_row *known = &b->known[use->row];
    return known->version == use->version ? smaller(known->entries, use->entries) : 0;
}

/* Rows [from, end) of the uses, whose changes come to `ids` entries. */
static void change_tables(struct cuda_backend *b, const struct attention_step *step, uint32_t from,
                          uint32_t end, uint32_t ids)
{
    ensure_room(b, (end - from) * sizeof(struct cuda_table_change) + ids * sizeof(uint32_t), 2);
    struct cuda_table_change *changes = take_control(b, end - from, sizeof *changes);
    uint32_t *entries = take_control(b, ids, sizeof *entries), n = 0, at = 0;
    for (uint32_t i = from; i < end; i++) {
        const struct table_use *use = &step->uses[i];
        uint32_t first = first_unknown(b, use), count = use->entries - first;
        b->known[use->row] = (struct known_row){use->version, use->entries};
        if (count == 0)
            continue;
        memcpy(entries + at, step->tables + (uint64_t)use->row * step->stride + first,
               count * sizeof *entries);
        changes[n++] = (struct cuda_table_change){use->row, first, count, at};
        at += count;
    }
    if (n)
        add_launch(b, KERNEL_CHANGE_TABLES, n, CUDA_THREADS)->arguments.pool =
            (struct pool_arguments){b->pool, control_address(b, changes), control_address(b, entries)};
}

static void update_tables(struct cuda_backend *b, const struct attention_step *step)
{
    uint32_t from = 0, ids = 0, room = (uint32_t)(b->control_bytes / sizeof(uint32_t) / 2);
    for (uint32_t i = 0; i < step->use_count; i++) {
        uint32_t count = step->uses[i].entries - first_unknown(b, &step->uses[i]);
        if (ids + count > room) {
            change_tables(b, step, from, i, ids);
            from = i;
            ids = 0;
        }
        ids += count;
    }
    if (ids)
        change_tables(b, step, from, step->use_count, ids);
}

static void make_copies(struct cuda_backend *b, const struct attention_step *step)
{
    uint32_t part = (uint32_t)(b->control_bytes / sizeof(struct cuda_copy) / 2);
    for (uint32_t done = 0; done < step->copy_count; done += part) {
        uint32_t n = smaller(part, step->copy_count - done);
        ensure_room(b, (size_t)n * sizeof(struct cuda_copy), 1);
        struct cuda_copy *copies = take_control(b, n, sizeof *copies);
        for (uint32_t i = 0; i < n; i++)
            copies[i] = (struct cuda_copy){step->copies[done + i].from, step->copies[done + i].to,
                                           step->copies[done + i].slots};
        struct operation *x = add_launch(b, KERNEL_COPY_SLOTS, n, CUDA_THREADS);
        x->grid[1] = b->options.geometry->layers;
        x->grid[2] = 2; /* K and V */
        x->arguments.pool = (struct pool_arguments){b->pool, control_address(b, copies), 0};
    }
}

/* ---- appends ------------------------------------------------------------------------------------- */

/* Issue `n` appends of `tokens` tokens in all, which lie in the control buffer. */
static void launch_appends(struct cuda_backend *b, const struct attention_pass *pass,
                           const struct cuda_append *appends, uint32_t n, uint32_t tokens)
{
    uint64_t first = (uint64_t)pass->layer * b->options.geometry->kv_heads * sizeof(float);
    if (n)
        add_launch(b, KERNEL_APPEND, tokens, CUDA_THREADS)->arguments.append =
            (struct cuda_append_pass){.pool = b->pool,
                                      .appends = control_address(b, appends),
                                      .append_count = n,
                                      .layer = pass->layer,
                                      .k = pass->k ? b->k : 0,
                                      .v = pass->k ? b->v : 0,
                                      .source_dtype = pass->source_dtype,
                                      .k_scale = b->k_scale + first,
                                      .v_scale = b->v_scale + first};
}

/* Appends of given k and v are cut where the device's room for k and v ends; each piece is copied to
 * its place there first. */
static void add_appends(struct cuda_backend *b, const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(pass->source_dtype);
    uint32_t room = pass->k ? (uint32_t)(GIVEN_BYTES / row_bytes) : UINT32_MAX, tokens = 0, n = 0;
    struct cuda_append *appends = NULL;
    for (uint32_t i = 0; i < pass->append_count; i++) {
        const struct kv_append *append = &pass->appends[i];
        for (uint32_t done = 0, count; done < append->count; done += count) {
            if (!appends || tokens == room) {
                launch_appends(b, pass, appends, n, tokens);
                ensure_room(b, (pass->append_count - i) * sizeof *appends, 3);
                appends = take_control(b, pass->append_count - i, sizeof *appends);
                n = tokens = 0;
            }
            count = smaller(append->count - done, room - tokens);
            appends[n++] = (struct cuda_append){.first = tokens,
                                                .count = count,
                                                .table = append->table,
                                                .position = append->position + done,
                                                .source = tokens,
                                                .generated = append->generated};
            if (pass->k) {
                size_t from = (size_t)(append->source + done) * row_bytes;
                add_copy(b, COPY_IN, b->k + tokens * row_bytes, (const uint8_t *)pass->k + from,
                         count * row_bytes);
                add_copy(b, COPY_IN, b->v + tokens * row_bytes, (const uint8_t *)pass->v + from,
                         count * row_bytes);
            }
            tokens += count;
        }
    }
    launch_appends(b, pass, appends, n, tokens);
}

/* ---- attention ----------------------------------------------------------------------------------- */

/* The narrowest width that takes `columns`, or the widest. */
static uint32_t width_for(const struct cuda_backend *b, uint32_t columns)
{
    uint32_t i = 0;
    while (i + 1 < b->width_count && b->widths[i].columns < columns)
        i++;
    return i;
}

/* Cut an item into pieces, and count or store them by width. */
static void cut_item(const struct cuda_backend *b, const struct plan_item *item,
                     struct cuda_item *to[WIDTHS_MAX], uint32_t counts[WIDTHS_MAX])
{
    uint32_t columns = item->rows * geometry_group(b->options.geometry);
    for (uint32_t at = 0, n; at < columns; at += n) {
        uint32_t width = width_for(b, columns - at);
        n = smaller(columns - at, b->widths[width].columns);
        if (to)
            to[width][counts[width]] = (struct cuda_item){
                item->table, item->first_chunk, item->chunks, item->first_row, at, n, item->partial};
        counts[width]++;
    }
}

/* Put a plan into the control buffer, unless it is there already. */
static const struct prepared_plan *prepare_plan(struct cuda_backend *b, const struct plan *plan)
{
    uint32_t counts[WIDTHS_MAX] = {0}, pieces = 0, item_rows = 0, parts = 0;
    struct cuda_item *items[WIDTHS_MAX] = {0};
    for (uint32_t i = 0; i < PREPARED_MAX; i++) {
        if (b->prepared[i].plan == plan)
            return &b->prepared[i];
    }
    for (uint32_t i = 0; i < plan->item_count; i++) {
        cut_item(b, &plan->items[i], NULL, counts);
        item_rows += plan->items[i].rows;
    }
    for (uint32_t i = 0; i < plan->merge_count; i++)
        parts += plan->merges[i].count;
    for (uint32_t i = 0; i < WIDTHS_MAX; i++)
        pieces += counts[i];
    ensure_room(b,
                plan->row_count * sizeof *plan->rows + pieces * sizeof **items +
                    item_rows * sizeof *plan->item_rows + plan->merge_count * sizeof *plan->merges +
                    parts * sizeof *plan->merge_parts,
                4 + WIDTHS_MAX);
    struct prepared_plan *prepared = &b->prepared[b->prepared_count++ % PREPARED_MAX];
    *prepared = (struct prepared_plan){.plan = plan};
    for (uint32_t i = 0; i < b->width_count; i++) {
        items[i] = take_control(b, counts[i], sizeof *items[i]);
        prepared->items[i] = control_address(b, items[i]);
    }
    for (uint32_t i = 0; i < plan->item_count; i++)
        cut_item(b, &plan->items[i], items, prepared->item_counts);
    struct cuda_attend_pass *arrays = &prepared->arrays;
    arrays->rows = put_control(b, plan->rows, plan->row_count, sizeof *plan->rows);
    arrays->item_rows = put_control(b, plan->item_rows, item_rows, sizeof *plan->item_rows);
    arrays->merges = put_control(b, plan->merges, plan->merge_count, sizeof *plan->merges);
    arrays->parts = put_control(b, plan->merge_parts, parts, sizeof *plan->merge_parts);
    return prepared;
}

static struct cuda_attend_pass attend_pass(const struct cuda_backend *b,
                                           const struct prepared_plan *plan,
                                           const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct model_constants *c = b->options.constants;
    uint64_t of_query = (uint64_t)pass->layer * g->query_heads * sizeof(float),
             of_kv = (uint64_t)pass->layer * g->kv_heads * sizeof(float);
    struct cuda_attend_pass p = plan->arrays;
    p.pool = b->pool;
    p.q = b->q;
    p.o = b->o[b->side];
    p.lse = b->lse[b->side];
    p.partial_ml = b->partial_ml;
    p.partial_o = b->partial_o;
    p.k_scale = b->k_scale + of_kv;
    p.v_scale = b->v_scale + of_kv;
    p.sinks = c->sinks ? b->sinks + of_query : 0;
    p.alibi = c->alibi ? b->alibi : 0;
    p.scale = g->scale;
    p.softcap = g->softcap;
    p.inverse_softcap = g->softcap > 0 ? 1.0F / g->softcap : 0;
    p.layer = pass->layer;
    p.window = g->window[pass->layer];
    return p;
}

static void add_attention(struct cuda_backend *b, const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct plan *plan = pass->plan;
    size_t row_bytes = (size_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    /* so that the plan is not issued without its q_source */
    ensure_room(b, b->control_bytes / 2, OPERATIONS_MAX / 2);
    const struct prepared_plan *prepared = prepare_plan(b, plan);
    struct cuda_attend_pass p = attend_pass(b, prepared, pass);
    if (b->side_used[b->side])
        add_operation(b, AWAIT_OUT)->side = b->side;
    if (pass->q) {
        add_copy(b, COPY_IN, b->q, pass->q, plan->row_count * row_bytes);
    } else {
        p.q_source = put_control(b, pass->q_source, plan->row_count, sizeof *pass->q_source);
        add_launch(b, KERNEL_GENERATE_Q, plan->row_count, CUDA_THREADS)->arguments.attend = p;
    }
    for (uint32_t i = 0; i < b->width_count; i++) {
        if (prepared->item_counts[i] == 0)
            continue;
        struct operation *x =
            add_launch(b, b->widths[i].kernel, prepared->item_counts[i] * g->kv_heads, CUDA_THREADS);
        x->shared_bytes = b->widths[i].shared_bytes;
        x->arguments.attend = p;
        x->arguments.attend.items = prepared->items[i];
    }
    if (plan->merge_count)
        add_launch(b, KERNEL_MERGE, plan->merge_count * g->query_heads, (g->head_dim + 31) / 32 * 32)
            ->arguments.attend = p;
    add_operation(b, BEGIN_OUT)->side = b->side;
    add_copy(b, COPY_OUT, b->o[b->side], pass->o, plan->row_count * row_bytes);
    if (pass->lse)
        add_copy(b, COPY_OUT, b->lse[b->side], pass->lse,
                 plan->row_count * g->query_heads * sizeof(float));
    add_operation(b, END_OUT)->side = b->side;
    b->side_used[b->side] = true;
    b->side = (b->side + 1) % SIDES;
}

/* Bring the device's copy of the model constants up to date. */
static void update_constants(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    const struct model_constants *c = b->options.constants;
    size_t by_query = (size_t)g->layers * g->query_heads, by_kv = (size_t)g->layers * g->kv_heads;
    if (b->constants_version == c->version)
        return;
    b->constants_version = c->version;
    add_copy(b, COPY_IN, b->k_scale, c->k_scale, by_kv * sizeof(float));
    add_copy(b, COPY_IN, b->v_scale, c->v_scale, by_kv * sizeof(float));
    if (c->sinks)
        add_copy(b, COPY_IN, b->sinks, c->sinks, by_query * sizeof(float));
    if (c->alibi)
        add_copy(b, COPY_IN, b->alibi, c->alibi, g->query_heads * sizeof(float));
}

/* Begin anew with the control buffer of a step; the step that had it is done. */
static void take_slot(struct cuda_backend *b, uint64_t ticket)
{
    uint64_t before = ticket - ATTENTION_STEPS_IN_FLIGHT;
    holds(b, b->cu.cuCtxSetCurrent(b->context), "choosing the context");
    if (ticket > ATTENTION_STEPS_IN_FLIGHT)
        holds(b, b->cu.cuEventSynchronize(b->done[before % EVENTS]), "running a step");
    b->slot = &b->slots[ticket % ATTENTION_STEPS_IN_FLIGHT];
    empty_slot(b);
    b->side = 0; /* so that the same step is the same graph */
    b->begins = b->begun[ticket % EVENTS];
}

static void cuda_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (failed(b))
        return;
    take_slot(b, ticket);
    b->list = &b->preparation;
    update_constants(b);
    update_tables(b, step);
    make_copies(b, step);
    b->list = &b->passes;
    for (uint32_t i = 0; i < step->pass_count && !failed(b); i++) {
        const struct attention_pass *pass = &step->passes[i];
        assert(!pass->plan || (pass->plan->partial_count <= b->options.partials_max &&
                               pass->plan->row_count <= b->options.rows_max));
        if (pass->append_count)
            add_appends(b, pass);
        if (pass->plan && pass->plan->row_count)
            add_attention(b, pass);
    }
    issue_all(b);
    if (!failed(b))
        holds(b, b->cu.cuEventRecord(b->done[ticket % EVENTS], b->stream), "ending a step");
}

static bool cuda_poll(struct attention *attention, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (failed(b))
        return true;
    CUresult result = b->cu.cuEventQuery(b->done[ticket % EVENTS]);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    holds(b, result, "running a step");
    return true;
}

static struct attention_times cuda_times(struct attention *attention, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    float busy_ms = 0, idle_ms = 0;
    CUevent begun = b->begun[ticket % EVENTS];
    if (!failed(b))
        holds(b, b->cu.cuEventElapsedTime(&busy_ms, begun, b->done[ticket % EVENTS]), "timing a step");
    if (!failed(b) && ticket > 1)
        holds(b, b->cu.cuEventElapsedTime(&idle_ms, b->done[(ticket - 1) % EVENTS], begun),
              "timing a step");
    return (struct attention_times){(double)busy_ms * 1e-3, (double)idle_ms * 1e-3};
}

static void *cuda_host_memory(struct attention *attention, size_t bytes)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    void *memory = NULL;
    (void)b->cu.cuCtxSetCurrent(b->context);
    if (b->cu.cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
        return NULL;
    for (int i = 0; i < PINNED_MAX; i++) {
        if (!b->pinned[i].memory) { /* without a place it is memory like any other */
            b->pinned[i] = (struct pinned){memory, bytes};
            break;
        }
    }
    return memory;
}

static void cuda_free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    (void)bytes;
    for (int i = 0; i < PINNED_MAX; i++) {
        if (b->pinned[i].memory == memory)
            b->pinned[i] = (struct pinned){0};
    }
    (void)b->cu.cuCtxSetCurrent(b->context);
    (void)b->cu.cuMemFreeHost(memory);
}

/* ---- reading back -------------------------------------------------------------------------------- */

/* K and V of one block of one layer, in b->block. */
static bool fetch_block(struct cuda_backend *b, uint32_t layer, uint32_t block)
{
    CUdeviceptr from = b->pool.bytes + layer * b->pool.layer_bytes + block * b->pool.block_bytes;
    return !failed(b) &&
           holds(b, b->cu.cuMemcpyDtoHAsync_v2(b->block, from, b->pool.block_bytes, b->stream),
                 "reading a block") &&
           holds(b, b->cu.cuStreamSynchronize(b->stream), "reading a block");
}

/* A host pool in which every block of every layer is the one in b->block. */
static struct kv_pool one_block(const struct cuda_backend *b)
{
    struct kv_pool pool = b->layout;
    pool.bytes = b->block;
    pool.layer_bytes = pool.block_bytes = 0;
    return pool;
}

static void cuda_read_kv(struct attention *attention, uint32_t layer, uint32_t block, uint32_t slot,
                         uint32_t count, void *k, void *v)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    const struct kv_pool pool = one_block(b);
    if (fetch_block(b, layer, block))
        kv_pool_read(&pool, layer, block, slot, count, k, v);
}

static uint32_t cuda_compare_kv(struct attention *attention, const struct kv_rows *rows,
                                const uint32_t *ids)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    const struct geometry *g = b->options.geometry;
    const struct kv_pool pool = one_block(b);
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(rows->dtype);
    for (uint32_t done = 0, n; done < rows->count; done += n) {
        struct kv_rows part = *rows;
        part.position += done;
        part.k = (const uint8_t *)rows->k + done * row_bytes;
        part.v = (const uint8_t *)rows->v + done * row_bytes;
        part.count = n = smaller(rows->count - done, g->block_size - part.position % g->block_size);
        if (!fetch_block(b, rows->layer, ids[part.position / g->block_size]))
            return done;
        uint32_t equal = kv_pool_compare(&pool, b->options.constants, &part, ids);
        if (equal < n)
            return done + equal;
    }
    return rows->count;
}

/* ---- the self-test ------------------------------------------------------------------------------- */

/* Keys of the self-test as they are stored. */
struct test_source {
    const struct cuda_backend *b;
    struct value_source values;
};

static void test_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct test_source *s = cookie;
    const struct geometry *g = s->b->options.geometry;
    const struct model_constants *c = s->b->options.constants;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    for (int i = 0; i < 2; i++) {
        float *row = i ? v : k, scale = i ? c->v_scale[kv_head] : c->k_scale[kv_head];
        values_row(s->values, position, 0, i ? VALUES_V : VALUES_K, kv_head, g->head_dim, row);
        for (uint32_t d = 0; d < g->head_dim; d++)
            row[d] /= scale;
        numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
        numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
    }
}

/* Whether one row's outputs are near those in double precision: within 2 % of the largest of them,
 * which is several roundings of bf16, and a wrong key or factor shows. */
static bool test_row(const struct cuda_backend *b, struct test_source *source, uint32_t keys,
                     const uint8_t *o)
{
    const struct geometry *g = b->options.geometry;
    for (uint32_t head = 0; head < g->query_heads; head++) {
        float q[HEAD_DIM_MAX];
        double expected[HEAD_DIM_MAX], lse, largest = 0, worst = 0;
        uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
        values_row(source->values, keys - 1, 0, VALUES_Q, head, g->head_dim, q);
        numeric_from_float(g->dtype, q, g->head_dim, rounded);
        numeric_to_float(g->dtype, rounded, g->head_dim, q);
        reference_row(g, b->options.constants, 0, keys, head, q, test_kv, source, expected, &lse);
        for (uint32_t d = 0; d < g->head_dim; d++) {
            double got = (double)numeric_load(g->dtype, o, (size_t)head * g->head_dim + d);
            largest = fmax(largest, fabs(expected[d]));
            worst = isfinite(got) ? fmax(worst, fabs(got - expected[d])) : INFINITY;
        }
        if (!(worst <= 0.02 * largest))
            return false;
    }
    return true;
}

/* Two rows over blocks that are nobody else's: one finished by an item, one cut into chunks and merged.
 */
static bool cuda_self_test(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    const struct geometry *g = b->options.geometry;
    struct test_source source = {b, {.seed = 7, .content = 1}};
    const struct plan_row rows[TEST_ROWS] = {{b->options.table_rows, TEST_KEYS},
                                             {b->options.table_rows, TEST_KEYS - 7}};
    uint32_t first[TEST_ROWS], end = (TEST_KEYS + CHUNK_TOKENS - 1) / CHUNK_TOKENS, chunk = 0;
    const uint32_t item_rows[] = {0, 1, 1};
    struct plan_item items[3] = {0};
    struct plan_part parts[2];
    for (int i = 0; i < TEST_ROWS; i++)
        first[i] = plan_first_key(rows[i].keys, g->window[0]) / CHUNK_TOKENS;
    items[0] = (struct plan_item){rows[0].table, first[0], end - first[0], 0, 1, PLAN_NO_PARTIAL};
    for (; first[1] + chunk < end; chunk++) {
        items[1 + chunk] = (struct plan_item){rows[1].table, first[1] + chunk, 1, 1 + chunk, 1, chunk};
        parts[chunk] = (struct plan_part){chunk, first[1] + chunk + 1, PLAN_CHUNK};
    }
    const struct plan_merge merge = {1, 0, chunk};
    const struct plan plan = {rows, items, item_rows, &merge, parts, TEST_ROWS, 1 + chunk, 1, chunk};
    assert(!plan_fault(&plan, g->window[0]));

    size_t row_bytes = (size_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    uint32_t *table = malloc(b->test_blocks * sizeof *table);
    uint8_t *o = malloc(TEST_ROWS * row_bytes);
    const struct kv_append append = {rows[0].table, 0, TEST_KEYS, 0, source.values};
    const struct value_source q_source[TEST_ROWS] = {source.values, source.values};
    const struct attention_pass pass = {
        .appends = &append, .append_count = 1, .plan = &plan, .q_source = q_source, .o = o};
    if (!table || !o)
        abort();
    for (uint32_t i = 0; i < b->test_blocks; i++)
        table[i] = b->options.blocks + i;
    const struct table_use use = {rows[0].table, b->test_blocks, 1};
    const struct attention_step step = {.tables = table, /* whichever row it is */
                                        .stride = 0,
                                        .uses = &use,
                                        .use_count = 1,
                                        .passes = &pass,
                                        .pass_count = 1};
    uint64_t ticket = attention_submit(attention, &step);
    while (!cuda_poll(attention, ticket)) {
    }
    bool ok = !failed(b) && test_row(b, &source, rows[0].keys, o) &&
              test_row(b, &source, rows[1].keys, o + row_bytes);
    free(table);
    free(o);
    return ok;
}

/* ---- the roof ------------------------------------------------------------------------------------ */

static double cuda_measure_roof(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    static const uint32_t per_multiprocessor[] = {2, 4, 16};
    uint64_t total = b->pool.layer_bytes * b->options.geometry->layers;
    uint64_t bytes = total < ROOF_BYTES_MAX ? total : ROOF_BYTES_MAX, vectors = bytes / 16;
    CUdeviceptr from = b->pool.bytes, sink = b->slots[0].device;
    void *parameters[] = {&from, &vectors, &sink};
    float ms, best = INFINITY;
    for (size_t i = 0; i < sizeof per_multiprocessor / sizeof per_multiprocessor[0]; i++) {
        for (int round = 0; round < ROOF_ROUNDS && !failed(b); round++) {
            bool ok =
                holds(b, b->cu.cuEventRecord(b->begun[0], b->stream), "measuring the roof") &&
                holds(b,
                      b->cu.cuLaunchKernel(b->kernels[KERNEL_READ_ALL],
                                           b->multiprocessors * per_multiprocessor[i], 1, 1,
                                           ROOF_THREADS, 1, 1, 0, b->stream, parameters, NULL),
                      "measuring the roof") &&
                holds(b, b->cu.cuEventRecord(b->done[0], b->stream), "measuring the roof") &&
                holds(b, b->cu.cuEventSynchronize(b->done[0]), "measuring the roof") &&
                holds(b, b->cu.cuEventElapsedTime(&ms, b->begun[0], b->done[0]), "measuring the roof");
            if (ok && ms < best)
                best = ms;
        }
    }
    return failed(b) ? 0 : (double)bytes / ((double)best * 1e6);
}

/* ---- timing -------------------------------------------------------------------------------------- */

/* Keep only what computes attention. */
static void keep_attention(struct operations *list)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct operation *x = &list->list[i];
        if (x->kind == LAUNCH && (x->kernel == KERNEL_MERGE || x->kernel >= KERNEL_ATTEND_8))
            list->list[n++] = *x;
    }
    list->count = n;
}

static bool cuda_time_passes(struct attention *attention, const struct attention_step *step,
                             uint32_t replays, double *us)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    CUgraphExec graph = NULL;
    float ms = 0;
    if (failed(b))
        return false;
    empty_slot(b);
    b->list = &b->passes;
    for (uint32_t i = 0; i < step->pass_count; i++)
        add_attention(b, &step->passes[i]);
    keep_attention(&b->passes);
    upload_control(b);
    CUgraph recorded = record(b, &b->passes);
    b->passes.count = 0;
    memset(b->side_used, 0, sizeof b->side_used);
    if (!failed(b))
        holds(b, b->cu.cuGraphInstantiateWithFlags(&graph, recorded, 0), "making a graph");
    if (recorded)
        (void)b->cu.cuGraphDestroy(recorded);
    for (uint32_t i = 0; i < replays + WARM_UP && !failed(b); i++) {
        bool ok = holds(b, b->cu.cuEventRecord(b->begun[0], b->stream), "timing") &&
                  holds(b, b->cu.cuGraphLaunch(graph, b->stream), "replaying a graph") &&
                  holds(b, b->cu.cuEventRecord(b->done[0], b->stream), "timing") &&
                  holds(b, b->cu.cuEventSynchronize(b->done[0]), "replaying a graph") &&
                  holds(b, b->cu.cuEventElapsedTime(&ms, b->begun[0], b->done[0]), "timing");
        if (ok && i >= WARM_UP)
            us[i - WARM_UP] = (double)ms * 1e3 / step->pass_count;
    }
    if (graph)
        (void)b->cu.cuGraphExecDestroy(graph);
    return !failed(b);
}

/* ---- open and close ------------------------------------------------------------------------------ */

static void free_device(struct cuda_backend *b, CUdeviceptr address)
{
    if (address)
        (void)b->cu.cuMemFree_v2(address);
}

static void destroy_event(struct cuda_backend *b, CUevent event)
{
    if (event)
        (void)b->cu.cuEventDestroy_v2(event);
}

static void cuda_close(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    log_line(LOG_DEBUG, "of %llu graphs launched %llu were recorded anew, %llu of them made anew",
             (unsigned long long)b->graphs_launched, (unsigned long long)b->graphs_recorded,
             (unsigned long long)b->graphs_made);
    if (b->context) { /* results are not looked at: after a failure they all say so again */
        const CUdeviceptr all[] = {b->pool.bytes, b->pool.tables, b->q,        b->o[0],
                                   b->o[1],       b->lse[0],      b->lse[1],   b->k,
                                   b->v,          b->sinks,       b->alibi,    b->k_scale,
                                   b->v_scale,    b->partial_ml,  b->partial_o};
        (void)b->cu.cuCtxSetCurrent(b->context);
        (void)b->cu.cuStreamSynchronize(b->stream);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            free_device(b, all[i]);
        for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
            free_device(b, b->slots[i].device);
            if (b->slots[i].host)
                (void)b->cu.cuMemFreeHost(b->slots[i].host);
            if (b->slots[i].graph)
                (void)b->cu.cuGraphExecDestroy(b->slots[i].graph);
            free(b->slots[i].recorded.list);
        }
        for (int i = 0; i < EVENTS; i++) {
            destroy_event(b, b->begun[i]);
            destroy_event(b, b->done[i]);
        }
        for (int i = 0; i < SIDES; i++) {
            destroy_event(b, b->computed[i]);
            destroy_event(b, b->copied[i]);
        }
        if (b->copies)
            (void)b->cu.cuStreamDestroy_v2(b->copies);
        if (b->stream)
            (void)b->cu.cuStreamDestroy_v2(b->stream);
        if (b->module)
            (void)b->cu.cuModuleUnload(b->module);
        (void)b->cu.cuDevicePrimaryCtxRelease_v2(b->device);
    }
    cuda_driver_unload(&b->cu);
    free(b->known);
    free(b->preparation.list);
    free(b->passes.list);
    free(b->block);
    free(b);
}

static const struct attention_ops ops = {
    .close = cuda_close,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .times = cuda_times,
    .host_memory = cuda_host_memory,
    .free_host_memory = cuda_free_host_memory,
    .read_kv = cuda_read_kv,
    .compare_kv = cuda_compare_kv,
    .self_test = cuda_self_test,
    .measure_roof = cuda_measure_roof,
    .time_passes = cuda_time_passes,
};

static int attribute(struct cuda_backend *b, CUdevice_attribute which)
{
    int value = 0;
    holds(b, b->cu.cuDeviceGetAttribute(&value, which, b->device), "asking for the GPU's properties");
    return value;
}

/* Take a device, its context and a stream. */
static bool open_device(struct cuda_backend *b)
{
    int count = 0;
    char name[96] = "";
    size_t memory = 0;
    if (!holds(b, b->cu.cuDeviceGetCount(&count), "looking for GPUs"))
        return false;
    if (b->options.device >= (uint32_t)count) {
        snprintf(b->base.failure, sizeof b->base.failure, "there is no GPU %u, but %d in all",
                 b->options.device, count);
        return false;
    }
    if (!holds(b, b->cu.cuDeviceGet(&b->device, (int)b->options.device), "choosing a GPU") ||
        !holds(b, b->cu.cuDeviceGetName(name, sizeof name, b->device), "asking for the GPU's name") ||
        !holds(b, b->cu.cuDeviceTotalMem_v2(&memory, b->device), "asking for the GPU's memory"))
        return false;
    b->multiprocessors = (uint32_t)attribute(b, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    b->target = cuda_target_of(
        attribute(b, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        attribute(b, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        (uint32_t)attribute(b, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
    if (failed(b) ||
        !holds(b, b->cu.cuDevicePrimaryCtxRetain(&b->context, b->device), "making a context") ||
        !holds(b, b->cu.cuCtxSetCurrent(b->context), "making a context") ||
        !holds(b, b->cu.cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING), "making a stream") ||
        !holds(b, b->cu.cuStreamCreate(&b->copies, CU_STREAM_NON_BLOCKING), "making a stream"))
        return false;
    for (int i = 0; i < EVENTS; i++) {
        holds(b, b->cu.cuEventCreate(&b->begun[i], CU_EVENT_DEFAULT), "making an event");
        holds(b, b->cu.cuEventCreate(&b->done[i], CU_EVENT_DEFAULT), "making an event");
    }
    for (int i = 0; i < SIDES; i++) {
        holds(b, b->cu.cuEventCreate(&b->computed[i], CU_EVENT_DISABLE_TIMING), "making an event");
        holds(b, b->cu.cuEventCreate(&b->copied[i], CU_EVENT_DISABLE_TIMING), "making an event");
    }
    b->base.info = (struct attention_info){
        .name = "cuda",
        .threads = b->multiprocessors,
        .bit_stable = true,
        .on_device = true,
    };
    b->base.info.isa = b->target.arch;
    snprintf(b->base.info.device, sizeof b->base.info.device, "%s, %u multiprocessors, %.1f GiB", name,
             b->multiprocessors, (double)memory / 0x1p30);
    return true;
}

/* Compile or find the kernels, load them, and allow them their shared memory. */
static int load_kernels(struct cuda_backend *b)
{
    static const struct width mma[WIDTHS_MAX] = {
        {KERNEL_ATTEND_8, 8, 0}, {KERNEL_ATTEND_16, 16, 0}, {KERNEL_ATTEND_32, 32, 0}};
    const struct geometry *g = b->options.geometry;
    char error[CUDA_COMPILER_ERROR_BYTES];
    struct cuda_cubin cubin;
    int rc = cuda_compile(g, &b->target, b->options.cache, NULL, &cubin, error);
    if (rc != 0) {
        snprintf(b->base.failure, sizeof b->base.failure, "%.250s", error);
        return rc;
    }
    holds(b, b->cu.cuModuleLoadData(&b->module, cubin.bytes), "loading the kernels");
    free(cubin.bytes);
    if (cubin.uses_local_memory[0])
        log_line(LOG_WARNING, "the kernel %s uses local memory for this geometry and will be slower",
                 cubin.uses_local_memory);
    bool tensor_cores = cuda_uses_tensor_cores(g, &b->target);
    for (int i = 0; i < KERNEL_COUNT; i++) {
        bool simple = i == KERNEL_ATTEND_SIMPLE, is_mma = i >= KERNEL_ATTEND_8 && !simple;
        bool too_wide = i == KERNEL_ATTEND_32 && tile_columns_max(g->head_dim) < 32;
        if ((simple && tensor_cores) || (is_mma && (!tensor_cores || too_wide)))
            continue;
        if (!holds(b, b->cu.cuModuleGetFunction(&b->kernels[i], b->module, kernel_names[i]),
                   "looking for the kernel %s", kernel_names[i]))
            return ATTND_INTERNAL;
    }
    b->base.info.p_rounded = tensor_cores;
    b->width_count = !tensor_cores ? 1 : tile_columns_max(g->head_dim) < 32 ? 2 : WIDTHS_MAX;
    b->widths[0] = (struct width){KERNEL_ATTEND_SIMPLE, SIMPLE_COLUMNS, 0};
    for (uint32_t i = 0; tensor_cores && i < b->width_count; i++) {
        b->widths[i] = mma[i];
        b->widths[i].shared_bytes = tile_shape_of(g->head_dim, (uint32_t)dtype_bytes(g->kv_dtype),
                                                  mma[i].columns, b->target.sm_bytes)
                                        .bytes;
        holds(b,
              b->cu.cuFuncSetAttribute(b->kernels[mma[i].kernel],
                                       CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                       (int)b->widths[i].shared_bytes),
              "allowing %u bytes of shared memory", b->widths[i].shared_bytes);
        holds(b,
              b->cu.cuFuncSetAttribute(b->kernels[mma[i].kernel],
                                       CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                       CU_SHAREDMEM_CARVEOUT_MAX_SHARED),
              "asking for shared memory");
    }
    return failed(b) ? ATTND_INTERNAL : 0;
}

static void allocate(struct cuda_backend *b, CUdeviceptr *address, uint64_t bytes, const char *what)
{
    size_t available = 0, total = 0;
    if (failed(b) || bytes == 0)
        return;
    (void)b->cu.cuMemGetInfo_v2(&available, &total);
    holds(b, b->cu.cuMemAlloc_v2(address, bytes), "allocating %.2f GiB for %s (%.2f GiB are free)",
          (double)bytes / 0x1p30, what, (double)available / 0x1p30);
}

static int take_memory(struct cuda_backend *b)
{
    const struct attention_options *o = &b->options;
    const struct geometry *g = o->geometry;
    size_t row = (size_t)g->query_heads * g->head_dim, heads = (size_t)o->partials_max * g->query_heads;
    size_t available = 0, total = 0;
    b->test_blocks = TEST_KEYS / g->block_size + 1;
    kv_pool_lay_out(&b->layout, g, o->blocks + b->test_blocks);
    b->pool = (struct cuda_pool){.layer_bytes = b->layout.layer_bytes,
                                 .block_bytes = b->layout.block_bytes,
                                 .half_bytes = b->layout.half_bytes,
                                 .head_bytes = b->layout.head_bytes,
                                 .slot_bytes = b->layout.slot_bytes,
                                 .stride = o->table_stride > b->test_blocks ? o->table_stride
                                                                            : b->test_blocks};
    uint64_t table_bytes = (o->table_rows + UINT64_C(1)) * b->pool.stride * sizeof(uint32_t);
    b->control_bytes = 4 * b->pool.stride * sizeof(uint32_t);
    b->control_bytes = b->control_bytes > CONTROL_BYTES ? b->control_bytes : CONTROL_BYTES;
    (void)b->cu.cuMemGetInfo_v2(&available, &total);
    if (b->layout.total_bytes > available) {
        snprintf(
            b->base.failure, sizeof b->base.failure,
            "the pool does not fit: %u blocks of %llu bytes are %llu MiB, and %zu MiB of the GPU's "
            "memory are free (set pool.blocks or pool.bytes)",
            o->blocks, (unsigned long long)geometry_block_bytes(g),
            (unsigned long long)(o->blocks * geometry_block_bytes(g) >> 20), available >> 20);
        return ATTND_NO_MEMORY;
    }
    allocate(b, &b->pool.bytes, b->layout.total_bytes, "the KV pool");
    allocate(b, &b->pool.tables, table_bytes, "block tables");
    allocate(b, &b->q, o->rows_max * row * dtype_bytes(g->dtype), "q");
    for (int i = 0; i < SIDES; i++) {
        allocate(b, &b->o[i], o->rows_max * row * dtype_bytes(g->dtype), "o");
        allocate(b, &b->lse[i], (uint64_t)o->rows_max * g->query_heads * sizeof(float), "lse");
    }
    allocate(b, &b->k, GIVEN_BYTES, "k");
    allocate(b, &b->v, GIVEN_BYTES, "v");
    allocate(b, &b->partial_ml, heads * 2 * sizeof(float), "partial states");
    allocate(b, &b->partial_o, heads * g->head_dim * sizeof(float), "partial states");
    allocate(b, &b->k_scale, (uint64_t)g->layers * g->kv_heads * sizeof(float), "scales");
    allocate(b, &b->v_scale, (uint64_t)g->layers * g->kv_heads * sizeof(float), "scales");
    allocate(b, &b->sinks, (uint64_t)g->layers * g->query_heads * sizeof(float), "sinks");
    allocate(b, &b->alibi, g->query_heads * sizeof(float), "slopes");
    for (int i = 0; i < ATTENTION_STEPS_IN_FLIGHT; i++) {
        struct slot *slot = &b->slots[i];
        allocate(b, &slot->device, b->control_bytes, "control data");
        slot->host = cuda_host_memory(&b->base, b->control_bytes);
        slot->recorded.list = calloc(OPERATIONS_MAX, sizeof *slot->recorded.list);
        if (!slot->host || !slot->recorded.list)
            return ATTND_NO_MEMORY;
    }
    b->slot = &b->slots[0];
    if (failed(b))
        return ATTND_NO_MEMORY;
    holds(b, b->cu.cuMemsetD8Async(b->pool.bytes, 0, b->layout.total_bytes, b->stream),
          "clearing the KV pool");
    holds(b, b->cu.cuStreamSynchronize(b->stream), "clearing the KV pool");
    b->known = calloc(o->table_rows + 1, sizeof *b->known);
    b->preparation.list = calloc(OPERATIONS_MAX, sizeof *b->preparation.list);
    b->passes.list = calloc(OPERATIONS_MAX, sizeof *b->passes.list);
    b->block = malloc(b->layout.block_bytes);
    b->constants_version = UINT64_MAX;
    return failed(b) || !b->known || !b->preparation.list || !b->passes.list || !b->block
               ? ATTND_NO_MEMORY
               : 0;
}

int cuda_backend_open(const struct attention_options *options, struct attention **attention,
                      char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_backend *b = calloc(1, sizeof *b);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the CUDA backend");
    if (!b)
        return ATTND_NO_MEMORY;
    b->base.ops = &ops;
    b->options = *options;
    b->options.rows_max = options->rows_max > TEST_ROWS ? options->rows_max : TEST_ROWS;
    b->options.partials_max = options->partials_max > TEST_ROWS ? options->partials_max : TEST_ROWS;
    int rc = cuda_driver_load(&b->cu, error, ATTENTION_ERROR_BYTES);
    if (rc != 0) {
        free(b);
        return rc;
    }
    rc = open_device(b) ? load_kernels(b) : ATTND_NOT_FOUND;
    if (rc == 0)
        rc = take_memory(b);
    if (rc == 0 && !cuda_self_test(&b->base)) {
        if (!failed(b))
            snprintf(b->base.failure, sizeof b->base.failure,
                     "the kernels differ from the reference on this GPU");
        rc = ATTND_INTERNAL;
    }
    if (rc != 0) {
        snprintf(error, ATTENTION_ERROR_BYTES, "CUDA: %.240s",
                 failed(b) ? b->base.failure : "no memory on the host");
        cuda_close(&b->base);
        return rc;
    }
    *attention = &b->base;
    return 0;
}

bool attention_cuda_present(char why[ATTENTION_ERROR_BYTES])
{
    struct cuda_driver cu;
    int count = 0;
    if (cuda_driver_load(&cu, why, ATTENTION_ERROR_BYTES) != 0)
        return false;
    if (cu.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
        snprintf(why, ATTENTION_ERROR_BYTES, "the CUDA driver finds no GPU");
    cuda_driver_unload(&cu);
    return count > 0;
}

const char *attention_cuda_build(void)
{
    return "built in; driver and NVRTC are looked for at start";
}

int attention_compile_kernels(const struct geometry *g, const char *arch, const char *cache,
                              FILE *report, char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_target target;
    struct cuda_cubin cubin;
    char why[CUDA_COMPILER_ERROR_BYTES];
    if (!cuda_target_known(arch, &target)) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "there is no \"%.32s\": sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a or sm_120", arch);
        return ATTND_INVALID;
    }
    int rc = cuda_compile(g, &target, cache, report, &cubin, why);
    if (rc != 0)
        snprintf(error, ATTENTION_ERROR_BYTES, "%.250s", why);
    free(cubin.bytes);
    if (rc == 0 && cubin.uses_local_memory[0]) {
        snprintf(error, ATTENTION_ERROR_BYTES, "the kernel %s uses local memory",
                 cubin.uses_local_memory);
        rc = ATTND_INTERNAL;
    }
    return rc;
}
