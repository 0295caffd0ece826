/* SPDX-License-Identifier: Apache-2.0 */
/* bench_library.c - what a layer of a decode step takes through libattnd with tensors on the GPU, compiled against attnd.h alone.
 *
 *   host time of a call     attnd_attend() with k, v and q of a token a sequence
 *   a layer on the GPU      between two events around the layers of a step, with the host ahead (the GPU is busy with something
 *                           else first), or not
 *   the same in a graph     attnd_kernels_cache() and attnd_kernels_paged() of those tokens over caches of the same size, captured for all
 *                           layers and replayed: the kernels without a library ahead of them. What a layer takes more is "beyond".
 *
 * Llama-3-8B's shape, bf16, contexts of 1 024 tokens. Medians of ROUNDS steps. The driver is looked for at run time; without one
 * there is nothing to measure. */
#include <attnd.h>

#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LAYERS = 32,
    QUERY_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    CONTEXT = 1024,
    BATCH_MAX = 64,
    TOGETHER = 2, /* sequences whose contexts are appended in a call */
    ROUNDS = 60,
    BFLOAT = 4, /* DLPack's */
    ON_GPU = 2,
    BLOCK_SIZE = 16,
    TABLE_BLOCKS = CONTEXT / BLOCK_SIZE + 1, /* of a context and the token behind it */
    BUSY_FILLS = 3 /* of BUSY_BYTES, which keep the GPU busy for some milliseconds */
};

#define BUSY_BYTES        ((size_t)4 << 30)
#define PATTERN_BYTES     ((size_t)16 << 20) /* of values, which are repeated */
#define CACHE_BLOCK_BYTES ((size_t)2 * KV_HEADS * BLOCK_SIZE * HEAD_DIM * 2)

static const char configuration[] =
    "{\"geometry\": {\"layers\": 32, \"query_heads\": 32, \"kv_heads\": 8, \"head_dim\": 128, "
    "\"block_size\": 16, \"dtype\": \"bf16\","
    " \"kv_dtype\": \"bf16\"}, \"pool\": {\"blocks\": 16384}, \"backend\": {\"name\": \"cuda\"}}";

/* ---- the driver ---- */

#define SYMBOLS(XX)                                                                                          \
    XX(cuInit)                                                                                               \
    XX(cuDeviceGet)                                                                                          \
    XX(cuDevicePrimaryCtxRetain)                                                                             \
    XX(cuCtxSetCurrent)                                                                                      \
    XX(cuMemAlloc_v2)                                                                                        \
    XX(cuMemFree_v2)                                                                                         \
    XX(cuMemcpyHtoDAsync_v2)                                                                                 \
    XX(cuMemsetD8Async)                                                                                      \
    XX(cuStreamCreate)                                                                                       \
    XX(cuStreamQuery)                                                                                        \
    XX(cuStreamBeginCapture_v2)                                                                              \
    XX(cuStreamEndCapture)                                                                                   \
    XX(cuGraphInstantiateWithFlags)                                                                          \
    XX(cuGraphLaunch)                                                                                        \
    XX(cuGraphExecDestroy)                                                                                   \
    XX(cuGraphDestroy)                                                                                       \
    XX(cuEventCreate)                                                                                        \
    XX(cuEventRecord)

static struct {
#define XX(function) __typeof__(function) *function;
    SYMBOLS(XX)
#undef XX
    /* under this name, not a later version's */
    CUresult (*elapsed)(float *ms, CUevent begin, CUevent end);
    CUstream stream;
    CUdeviceptr busy;
} gpu;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        printf("the driver has no %s\n", name);
        exit(1);
    }
    return symbol;
}

static bool load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    if (!library)
        return false;
#define XX(function)                                                                                         \
    symbol = find(library, #function);                                                                       \
    memcpy(&gpu.function, &symbol, sizeof symbol);
    SYMBOLS(XX)
#undef XX
    symbol = find(library, "cuEventElapsedTime");
    memcpy(&gpu.elapsed, &symbol, sizeof symbol);
    return gpu.cuInit(0) == CUDA_SUCCESS;
}

static void holds(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("CUDA: %d while %s\n", (int)result, what);
    exit(1);
}

static void good(int rc, const char *what)
{
    if (rc == ATTND_OK)
        return;
    printf("%s: %s (%s)\n", what, attnd_error(), attnd_code_name(rc));
    exit(1);
}

static void wait_for_gpu(void)
{
    CUresult result;
    while ((result = gpu.cuStreamQuery(gpu.stream)) == CUDA_ERROR_NOT_READY) {
    }
    holds(result, "waiting");
}

static void *copy_to_gpu(const void *from, size_t bytes)
{
    CUdeviceptr at;
    holds(gpu.cuMemAlloc_v2(&at, bytes), "taking memory");
    holds(gpu.cuMemcpyHtoDAsync_v2(at, from, bytes, gpu.stream), "copying");
    wait_for_gpu();
    return (void *)(uintptr_t)at;
}

/* Memory with something in it: values of plus and minus 0.5 to 1.3. */
static void *take(size_t bytes)
{
    static uint16_t pattern[PATTERN_BYTES / sizeof(uint16_t)];
    CUdeviceptr at;
    if (!pattern[0]) {
        for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
            pattern[i] = (uint16_t)(0x3f00 + rand() % 200 + (rand() & 1) * 0x8000);
    }
    holds(gpu.cuMemAlloc_v2(&at, bytes), "taking memory");
    for (size_t from = 0; from < bytes; from += PATTERN_BYTES)
        holds(gpu.cuMemcpyHtoDAsync_v2(at + from, pattern,
                                       bytes - from < PATTERN_BYTES ? bytes - from : PATTERN_BYTES,
                                       gpu.stream),
              "copying");
    wait_for_gpu();
    return (void *)(uintptr_t)at;
}

static void give_back(void *memory)
{
    holds(gpu.cuMemFree_v2((CUdeviceptr)(uintptr_t)memory), "giving memory back");
}

/* ---- a step ---- */

static struct attnd *a;

struct batch {
    uint32_t size;
    uint64_t ids[BATCH_MAX];
    void *q, *k, *v, *o;
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static struct attnd_tensor tensor(void *data, const int64_t shape[3])
{
    return (struct attnd_tensor){.data = data,
                                 .device_type = ON_GPU,
                                 .ndim = 3,
                                 .dtype_code = BFLOAT,
                                 .dtype_bits = 16,
                                 .dtype_lanes = 1,
                                 .shape = shape};
}

/* The contexts of a batch, at every layer. */
static void fill(struct batch *b)
{
    for (uint32_t i = 0; i < b->size; i++) {
        struct attnd_creation creation = {.size = sizeof creation};
        good(attnd_create(a, &creation), "creating a sequence");
        b->ids[i] = creation.id;
    }
    for (uint32_t at = 0, n; at < b->size; at += n) {
        n = b->size - at < TOGETHER ? b->size - at : TOGETHER;
        const int64_t shape[] = {(int64_t)n * CONTEXT, KV_HEADS, HEAD_DIM};
        const struct attnd_tensor k = tensor(b->k, shape), v = tensor(b->v, shape);
        const uint32_t counts[TOGETHER] = {CONTEXT, CONTEXT};
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const struct attnd_rows rows = {.size = sizeof rows,
                                            .layer = layer,
                                            .sequences = b->ids + at,
                                            .sequence_count = n,
                                            .counts = counts,
                                            .k = &k,
                                            .v = &v,
                                            .stream = gpu.stream};
            int rc;
            while ((rc = attnd_append(a, &rows, 1, NULL)) == ATTND_ERR_BUSY) {
            }
            good(rc, "appending");
        }
    }
    wait_for_gpu();
}

/* A token of each sequence: microseconds of each call, and of a layer on the GPU. */
static double step(const struct batch *b, bool ahead, const CUevent events[2], double *host_us)
{
    const int64_t of_q[] = {b->size, QUERY_HEADS, HEAD_DIM}, of_kv[] = {b->size, KV_HEADS, HEAD_DIM};
    const struct attnd_tensor q = tensor(b->q, of_q), k = tensor(b->k, of_kv), v = tensor(b->v, of_kv),
                              o = tensor(b->o, of_q);
    float ms = 0;
    for (int i = 0; ahead && i < BUSY_FILLS; i++)
        holds(gpu.cuMemsetD8Async(gpu.busy, 0, BUSY_BYTES, gpu.stream), "keeping the GPU busy");
    holds(gpu.cuEventRecord(events[0], gpu.stream), "timing");
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct attnd_rows rows = {.size = sizeof rows,
                                        .layer = layer,
                                        .sequences = b->ids,
                                        .sequence_count = b->size,
                                        .q = &q,
                                        .k = &k,
                                        .v = &v,
                                        .o = &o,
                                        .stream = gpu.stream};
        double begin = now_us();
        good(attnd_attend(a, &rows, 1, NULL), "attending");
        host_us[layer] = now_us() - begin;
    }
    holds(gpu.cuEventRecord(events[1], gpu.stream), "timing");
    wait_for_gpu();
    holds(gpu.elapsed(&ms, events[0], events[1]), "timing");
    return (double)ms * 1e3 / LAYERS;
}

/* ---- the same in a graph ---- */

/* Caches of all layers, with tables and lengths of a batch behind this step's token. */
struct operators {
    struct attnd_kernels *kernels;
    uint8_t launches[ATTND_LAUNCHES_BYTES];
    void *caches[LAYERS], *lists, *workspace;
    void *tables, *lengths, *slots; /* of the GPU's */
    void *scales;                   /* [KV_HEADS], ones */
};

static void plan(struct operators *ops, const struct batch *b)
{
    static int32_t tables[BATCH_MAX * TABLE_BLOCKS], lengths[BATCH_MAX];
    static int64_t slots[BATCH_MAX];
    for (uint32_t i = 0; i < b->size; i++) {
        for (int32_t j = 0; j < TABLE_BLOCKS; j++)
            tables[i * TABLE_BLOCKS + (uint32_t)j] = (int32_t)i * TABLE_BLOCKS + j;
        lengths[i] = CONTEXT + 1;
        slots[i] = ((int64_t)i * TABLE_BLOCKS + CONTEXT / BLOCK_SIZE) * BLOCK_SIZE + CONTEXT % BLOCK_SIZE;
    }
    struct attnd_plan of = {.size = sizeof of,
                            .block_tables = tables,
                            .seq_lens = lengths,
                            .table_row = TABLE_BLOCKS,
                            .sequences = b->size,
                            .max_seq_len = CONTEXT + 1,
                            .launches = ops->launches};
    good(attnd_kernels_plan(ops->kernels, &of), "planning");
    of.lists = malloc(of.lists_bytes);
    good(of.lists ? attnd_kernels_plan(ops->kernels, &of) : ATTND_ERR_NO_MEMORY, "planning");
    ops->lists = copy_to_gpu(of.lists, of.lists_bytes);
    free(of.lists);
    ops->workspace = take(of.workspace_bytes ? of.workspace_bytes : 1);
    ops->tables = copy_to_gpu(tables, sizeof *tables * b->size * TABLE_BLOCKS);
    ops->lengths = copy_to_gpu(lengths, sizeof *lengths * b->size);
    ops->slots = copy_to_gpu(slots, sizeof *slots * b->size);
}

static void prepare(struct operators *ops, const struct batch *b)
{
    static const float ones[KV_HEADS] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct attnd_shape shape = {.size = sizeof shape,
                                .query_heads = QUERY_HEADS,
                                .kv_heads = KV_HEADS,
                                .head_dim = HEAD_DIM,
                                .block_size = BLOCK_SIZE,
                                .dtype_code = BFLOAT,
                                .dtype_bits = 16,
                                .kv_dtype_code = BFLOAT,
                                .kv_dtype_bits = 16,
                                .layout = ATTND_OWN};
    good(attnd_kernels_open(&shape, &ops->kernels), "opening kernels");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        ops->caches[layer] = take(b->size * TABLE_BLOCKS * CACHE_BLOCK_BYTES);
    ops->scales = copy_to_gpu(ones, sizeof ones);
    plan(ops, b);
}

static void launch_layer(const struct operators *ops, const struct batch *b, uint32_t layer)
{
    const struct attnd_cache_call store = {.size = sizeof store,
                                           .kind = ATTND_STORE,
                                           .count = b->size,
                                           .key = b->k,
                                           .value = b->v,
                                           .key_row = KV_HEADS * HEAD_DIM,
                                           .value_row = KV_HEADS * HEAD_DIM,
                                           .slots = ops->slots,
                                           .k_scale = ops->scales,
                                           .v_scale = ops->scales,
                                           .dtype_code = BFLOAT,
                                           .dtype_bits = 16,
                                           .key_caches = &ops->caches[layer],
                                           .layers = 1,
                                           .stream = gpu.stream};
    const struct attnd_paged_call attend = {.size = sizeof attend,
                                            .query = b->q,
                                            .out = b->o,
                                            .key_cache = ops->caches[layer],
                                            .block_tables = ops->tables,
                                            .seq_lens = ops->lengths,
                                            .k_scale = ops->scales,
                                            .v_scale = ops->scales,
                                            .workspace = ops->workspace,
                                            .table_row = TABLE_BLOCKS,
                                            .sequences = b->size,
                                            .scale = 0.0883883F,
                                            .stream = gpu.stream,
                                            .launches = ops->launches,
                                            .lists = ops->lists,
                                            .attend = 1,
                                            .blocks = (uint64_t)b->size * TABLE_BLOCKS};
    good(attnd_kernels_cache(ops->kernels, &store), "storing");
    good(attnd_kernels_paged(ops->kernels, &attend), "attending");
}

/* Microseconds of a layer on the GPU, in ROUNDS replays. */
static void replay(const struct batch *b, const CUevent events[2], double *layer_us)
{
    struct operators ops = {0};
    CUgraph graph;
    CUgraphExec exec;
    prepare(&ops, b);
    launch_layer(&ops, b, 0); /* what is made once is made outside of the graph */
    holds(gpu.cuStreamBeginCapture_v2(gpu.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capturing");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        launch_layer(&ops, b, layer);
    holds(gpu.cuStreamEndCapture(gpu.stream, &graph), "capturing");
    holds(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0), "making a graph");
    for (int i = 0; i < ROUNDS; i++) {
        float ms = 0;
        for (int fill = 0; fill < BUSY_FILLS; fill++)
            holds(gpu.cuMemsetD8Async(gpu.busy, 0, BUSY_BYTES, gpu.stream), "keeping the GPU busy");
        holds(gpu.cuEventRecord(events[0], gpu.stream), "timing");
        holds(gpu.cuGraphLaunch(exec, gpu.stream), "replaying");
        holds(gpu.cuEventRecord(events[1], gpu.stream), "timing");
        wait_for_gpu();
        holds(gpu.elapsed(&ms, events[0], events[1]), "timing");
        layer_us[i] = (double)ms * 1e3 / LAYERS;
    }
    holds(gpu.cuGraphExecDestroy(exec), "ending a graph");
    holds(gpu.cuGraphDestroy(graph), "ending a graph");
    void *const memory[] = {ops.lists, ops.workspace, ops.tables, ops.lengths, ops.slots, ops.scales};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        give_back(memory[i]);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        give_back(ops.caches[layer]);
    attnd_kernels_close(ops.kernels);
}

static int compare(const void *a_, const void *b_)
{
    double x = *(const double *)a_, y = *(const double *)b_;
    return (x > y) - (x < y);
}

static double part(double *values, size_t n, size_t percent)
{
    qsort(values, n, sizeof *values, compare);
    return values[n * percent / 100];
}

static void measure(uint32_t size, const CUevent events[2])
{
    static double host[ROUNDS * LAYERS], layer[2][ROUNDS], in_graph[ROUNDS];
    struct batch b = {.size = size,
                      .q = take((size_t)size * QUERY_HEADS * HEAD_DIM * 2),
                      .o = take((size_t)size * QUERY_HEADS * HEAD_DIM * 2),
                      .k = take((size_t)TOGETHER * CONTEXT * KV_HEADS * HEAD_DIM * 2),
                      .v = take((size_t)TOGETHER * CONTEXT * KV_HEADS * HEAD_DIM * 2)};
    fill(&b);
    for (int ahead = 0; ahead < 2; ahead++) {
        for (int i = 0; i < ROUNDS; i++)
            layer[ahead][i] = step(&b, ahead, events, host + i * LAYERS);
    }
    replay(&b, events, in_graph);
    double median = part(layer[1], ROUNDS, 50), replayed = part(in_graph, ROUNDS, 50);
    printf("batch %2u: a layer takes %5.1f us on the GPU with the host ahead (p99 %.1f), %5.1f without; the "
           "same in a "
           "graph %5.1f: %4.1f beyond; a call %5.1f us of the host's time (p99 %.1f)\n",
           size, median, part(layer[1], ROUNDS, 99), part(layer[0], ROUNDS, 50), replayed, median - replayed,
           part(host, ROUNDS * LAYERS, 50), part(host, ROUNDS * LAYERS, 99));
    for (uint32_t i = 0; i < size; i++)
        good(attnd_delete(a, b.ids[i]), "deleting a sequence");
    void *const memory[] = {b.q, b.k, b.v, b.o};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        give_back(memory[i]);
}

int main(void)
{
    static const uint32_t sizes[] = {1, 8, BATCH_MAX};
    const struct attnd_options options = {.size = sizeof options, .configuration = configuration};
    struct attnd_description description = {.size = sizeof description};
    CUdevice device;
    CUcontext context;
    CUevent events[2];
    if (!load_driver()) {
        puts("skip: there is no GPU here");
        return 0;
    }
    good(attnd_open(&options, &a), "opening");
    good(attnd_describe(a, &description), "describing");
    printf("%s, %s\n", description.device, attnd_version());
    holds(gpu.cuDeviceGet(&device, 0), "opening");
    holds(gpu.cuDevicePrimaryCtxRetain(&context, device), "opening");
    holds(gpu.cuCtxSetCurrent(context), "opening");
    holds(gpu.cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING), "opening");
    holds(gpu.cuMemAlloc_v2(&gpu.busy, BUSY_BYTES), "taking memory");
    for (int i = 0; i < 2; i++)
        holds(gpu.cuEventCreate(&events[i], CU_EVENT_DEFAULT), "opening");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        measure(sizes[i], events);
    attnd_close(a);
    return 0;
}
