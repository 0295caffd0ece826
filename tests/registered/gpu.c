/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c - a client whose tensors are in memory of the daemon's GPU, seen from this one's.
 *
 *   gpu PATH [--device N] [--stub] [--bench ROUNDS] [--die STAGE | --ipc | --fault] IDS...
 *
 * Of a daemon with 32 query heads and 8 KV heads of 128, bf16, and two layers. The sequences are empty. What is computed from GPU memory
 * has the bits of what is computed from host memory: the first half of the sequences has the one, the other half the other. Lines are ok or
 * not ok. --stub: kernels do nothing there, so only what is refused and given back is looked at. --bench: instead, how long a layer's call
 * takes for all of them, from q, k and v written until o can be read. --die: instead, die at that stage of it. --ipc: memory of the client's by a handle of
 * CUDA IPC. --fault: write where no memory is, which under MPS takes the daemon's context, too. */
#include "clients/registered/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include(<cuda.h>)
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

enum {
    QUERY_HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    LAYERS = 2,
    IDS_MAX = 64,
    PROMPT = 300,
    CONTEXT = 1024,
    Q_BYTES = QUERY_HEADS * HEAD_DIM * 2, /* of a row */
    KV_BYTES = KV_HEADS * HEAD_DIM * 2,
    LSE_BYTES = QUERY_HEADS * 4,
    SPIN_US = 1000,
    REGION = 32 << 20
};

#define SYMBOLS(XX)                                                                                          \
    XX(cuInit)                                                                                               \
    XX(cuDeviceGet)                                                                                          \
    XX(cuDevicePrimaryCtxRetain)                                                                             \
    XX(cuCtxSetCurrent)                                                                                      \
    XX(cuMemCreate)                                                                                          \
    XX(cuMemRelease)                                                                                         \
    XX(cuMemExportToShareableHandle)                                                                         \
    XX(cuMemImportFromShareableHandle)                                                                       \
    XX(cuMemAddressReserve)                                                                                  \
    XX(cuMemMap)                                                                                             \
    XX(cuMemUnmap)                                                                                           \
    XX(cuMemSetAccess)                                                                                       \
    XX(cuMemcpyHtoDAsync_v2)                                                                                 \
    XX(cuMemcpyDtoHAsync_v2)                                                                                 \
    XX(cuMemcpyAsync)                                                                                        \
    XX(cuMemAlloc_v2)                                                                                        \
    XX(cuIpcGetMemHandle)                                                                                    \
    XX(cuModuleLoadData)                                                                                     \
    XX(cuModuleGetFunction)                                                                                  \
    XX(cuLaunchKernel)                                                                                       \
    XX(cuStreamCreate)                                                                                       \
    XX(cuStreamQuery)

static struct {
#define XX(function) __typeof__(function) *function;
    SYMBOLS(XX)
#undef XX
    CUdevice device;
    CUstream stream;
} gpu;

static struct registered_client client;
static struct registered_region lists;
static uint64_t ids[IDS_MAX];
static uint32_t id_count;
static bool stub;

static void die(const char *what, int code)
{
    printf("not ok %s: %d\n", what, code);
    exit(1);
}

static void holds(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        die(what, (int)result);
}

static void expect(const char *what, bool right, const char *else_)
{
    printf("%s %s%s%s\n", right ? "ok" : "not ok", what, right ? "" : ": ", right ? "" : else_);
    if (!right)
        exit(1);
}

static void open_gpu(int index)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol;
    CUcontext context;
    if (!library)
        die("finding a driver", 0);
#define XX(function)                                                                                         \
    symbol = dlsym(library, #function);                                                                      \
    if (!symbol)                                                                                             \
        die(#function, 0);                                                                                   \
    memcpy(&gpu.function, &symbol, sizeof symbol);
    SYMBOLS(XX)
#undef XX
    holds(gpu.cuInit(0), "beginning");
    holds(gpu.cuDeviceGet(&gpu.device, index), "finding the GPU");
    holds(gpu.cuDevicePrimaryCtxRetain(&context, gpu.device), "taking the GPU");
    holds(gpu.cuCtxSetCurrent(context), "taking the GPU");
    holds(gpu.cuStreamCreate(&gpu.stream, CU_STREAM_NON_BLOCKING), "making a stream");
}

static void wait_for_gpu(void)
{
    CUresult result;
    while ((result = gpu.cuStreamQuery(gpu.stream)) == CUDA_ERROR_NOT_READY) {
    }
    holds(result, "waiting");
}

static void write_gpu(CUdeviceptr to, const void *from, size_t bytes)
{
    holds(gpu.cuMemcpyHtoDAsync_v2(to, from, bytes, gpu.stream), "writing");
    wait_for_gpu();
}

static void read_gpu(void *to, CUdeviceptr from, size_t bytes)
{
    holds(gpu.cuMemcpyDtoHAsync_v2(to, from, bytes, gpu.stream), "reading");
    wait_for_gpu();
}

/* Map what a handle is of, for this client's GPU. */
static CUdeviceptr map(CUmemGenericAllocationHandle handle, uint64_t bytes)
{
    CUdeviceptr at;
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = gpu.device;
    holds(gpu.cuMemAddressReserve(&at, bytes, 0, 0, 0), "reserving addresses");
    holds(gpu.cuMemMap(at, bytes, 0, handle, 0), "mapping");
    holds(gpu.cuMemSetAccess(at, bytes, &access, 1), "mapping");
    holds(gpu.cuMemRelease(handle), "mapping");
    return at;
}

/* A region of the daemon's GPU, by its number. */
static CUdeviceptr make_region(uint64_t bytes, uint32_t *number)
{
    const struct registered_message m = {.kind = REGISTERED_GPU_REGION, .bytes = bytes};
    CUmemGenericAllocationHandle handle;
    int fd;
    expect("a region of GPU memory", registered_ask(&client, &m, -1, &fd) && fd >= 0, client.answer.detail);
    *number = client.answer.region;
    holds(gpu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "importing");
    close(fd);
    return map(handle, client.answer.bytes);
}

/* Random bf16 of either sign between 2^-15 and 4. */
static void fill(uint16_t *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        values[i] = (uint16_t)((rand() & 1) << 15 | (112 + rand() % 17) << 7 | (rand() & 127));
}

static struct registered_completion run(const struct registered_call *call)
{
    struct registered_completion done;
    if (!registered_put(&client, call) || !registered_wait(&client, SPIN_US, &done))
        die("the daemon is gone", 0);
    return done;
}

static void runs(const struct registered_call *call, const char *what)
{
    struct registered_completion done = run(call);
    if (done.status != 200)
        expect(what, false, done.detail);
}

static void fails(const struct registered_call *call, uint32_t status, const char *detail, const char *what)
{
    struct registered_completion done = run(call);
    char else_[256];
    snprintf(else_, sizeof else_, "%u %s", done.status, done.detail);
    expect(what, done.status == status && strstr(done.detail, detail), else_);
}

/* A call on some sequences, so many rows of each; tensors one behind the other in the region: q, k, v, o, lse. */
static struct registered_call call_of(const uint64_t *named, uint32_t count, uint32_t rows_each,
                                      uint32_t layer, bool attends, uint32_t tensors)
{
    const uint64_t rows = (uint64_t)count * rows_each;
    uint32_t *counts = (uint32_t *)(void *)(lists.memory + sizeof ids);
    memcpy(lists.memory, named, count * sizeof *named);
    for (uint32_t i = 0; i < count; i++)
        counts[i] = rows_each;
    return (struct registered_call){.kind = attends ? REGISTERED_ATTEND : REGISTERED_APPEND,
                                    .region = lists.number,
                                    .layer = layer,
                                    .sequence_count = count,
                                    .rows = (uint32_t)rows,
                                    .tensors = tensors,
                                    .sequences = 0,
                                    .counts = sizeof ids,
                                    .positions = REGISTERED_NONE,
                                    .q = 0,
                                    .k = rows * Q_BYTES,
                                    .v = rows * (Q_BYTES + KV_BYTES),
                                    .o = rows * (Q_BYTES + 2 * KV_BYTES),
                                    .lse = rows * (2 * Q_BYTES + 2 * KV_BYTES)};
}

/* ---- the same bits -------------------------------------------------------------------------------- */

static void compare(CUdeviceptr there, uint32_t number, struct registered_region *host)
{
    static uint16_t in[PROMPT * IDS_MAX * (Q_BYTES + 2 * KV_BYTES) / 2];
    static uint8_t out[IDS_MAX * (Q_BYTES + LSE_BYTES)];
    const uint32_t half = id_count / 2;
    bool same = true;
    for (uint32_t step = 0; step < 6; step++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint32_t each = step == 0 ? PROMPT : 1, rows = half * each;
            size_t bytes = rows * (size_t)(Q_BYTES + 2 * KV_BYTES);
            struct registered_call on_gpu = call_of(ids, half, each, layer, step > 0, number + 1), on_host;
            fill(in, bytes / 2);
            write_gpu(there, in, bytes);
            runs(&on_gpu, "a call from GPU memory");
            /* lists are in a region of their own, with those of the other half behind */
            memcpy(host->memory, in, bytes);
            on_host = on_gpu;
            on_host.tensors = 0;
            on_host.region = host->number;
            on_host.sequences = host->bytes - sizeof ids - IDS_MAX * 4;
            on_host.counts = host->bytes - IDS_MAX * 4;
            memcpy(host->memory + on_host.sequences, ids + half, half * sizeof *ids);
            memcpy(host->memory + on_host.counts, lists.memory + on_gpu.counts, half * 4);
            runs(&on_host, "a call from host memory");
            if (step == 0)
                continue;
            read_gpu(out, there + on_gpu.o, rows * (size_t)(Q_BYTES + LSE_BYTES));
            same &= memcmp(out, host->memory + on_host.o, rows * (size_t)(Q_BYTES + LSE_BYTES)) == 0;
        }
    }
    expect("calls from GPU memory have the bits of those from host memory", stub || same, "they differ");
}

/* ---- what is refused ------------------------------------------------------------------------------- */

static void refuse(CUdeviceptr there, uint32_t number)
{
    struct registered_call call = call_of(ids, 1, 1, 0, true, number + 1);
    const uint16_t nan = 0x7fc0;
    uint16_t was;
    uint64_t k = call.k;
    call.o = REGION;
    fails(&call, 422, "o: has", "an output behind the region's end");
    call.o = call.k + 2;
    fails(&call, 422, "o: wants a multiple of 8 in GPU memory", "an output that is not aligned");
    call = call_of(ids, 1, 1, 0, true, lists.number + 1);
    fails(&call, 404, "in GPU memory", "host memory for GPU memory");
    call = call_of(ids, 1, 1, 0, true, number + 1);
    call.region = number;
    fails(&call, 404, "in host memory", "lists in GPU memory");
    if (stub)
        return;
    call = call_of(ids, 1, 1, 0, true, number + 1);
    call.positions = 3 * sizeof ids;
    memcpy(lists.memory + call.positions, &(uint32_t){5}, 4);
    fails(&call, 409, "", "a position that stands, without retry");
    call.positions = REGISTERED_NONE;
    read_gpu(&was, there + k, sizeof was);
    write_gpu(there + k, &nan, sizeof nan);
    fails(&call, 422, "not finite", "a k that is not finite");
    write_gpu(there + k, &was, sizeof was);
    fails(&call, 422, "void", "and the next call says so, once");
    runs(&call, "the one behind goes on");
}

/* Memory of the client's own GPU, to be read and, if it says so, written by the daemon. */
static void lend(void)
{
    CUmemAllocationProp of = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle handle;
    struct registered_message m = {.kind = REGISTERED_OWN_GPU_REGION, .bytes = REGION};
    int fd = -1, none = open("/dev/null", O_RDWR);
    of.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    of.location.id = gpu.device;
    holds(gpu.cuMemCreate(&handle, REGION, &of, 0), "taking memory");
    holds(gpu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "exporting");
    expect("no descriptor",
           !registered_ask(&client, &m, -1, NULL) && strstr(client.answer.detail, "no descriptor"),
           client.answer.detail);
    expect("a descriptor of something else",
           !registered_ask(&client, &m, none, NULL) && client.answer.status == 422, client.answer.detail);
    expect("memory of the client's own", registered_ask(&client, &m, fd, NULL), client.answer.detail);
    uint32_t number = client.answer.region;
    struct registered_call call = call_of(ids, 1, 1, 0, true, number + 1);
    fails(&call, 422, "read only", "an output there");
    m = (struct registered_message){.kind = REGISTERED_CLOSE_REGION, .region = number};
    expect("it is closed", registered_ask(&client, &m, -1, NULL), client.answer.detail);
    fails(&call, 404, "in GPU memory", "and is no more");
    m = (struct registered_message){.kind = REGISTERED_OWN_GPU_REGION, .bytes = REGION, .writes = 1};
    expect("memory that is written, too", registered_ask(&client, &m, fd, NULL), client.answer.detail);
    call = call_of(ids, 1, 1, 0, true, client.answer.region + 1);
    CUdeviceptr there = map(handle, REGION);
    uint16_t in[(Q_BYTES + 2 * KV_BYTES) / 2];
    fill(in, sizeof in / 2);
    write_gpu(there, in, sizeof in);
    runs(&call, "a call from there");
    close(fd);
    close(none);
}

/* ---- how long it takes ------------------------------------------------------------------------------ */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A client's kernel is a copy of q, k and v on its own GPU into the region. */
static void bench(CUdeviceptr there, uint32_t number, uint32_t rounds)
{
    double *all = calloc(rounds, sizeof *all), *beyond = calloc(rounds, sizeof *beyond);
    size_t bytes = id_count * (size_t)(Q_BYTES + 2 * KV_BYTES);
    CUdeviceptr source;
    uint16_t *in = malloc(REGION);
    fill(in, REGION / 2);
    holds(gpu.cuMemAlloc_v2(&source, REGION), "taking memory");
    write_gpu(source, in, REGION);
    for (uint32_t i = 0; i < id_count; i++) { /* contexts */
        struct registered_call call = call_of(ids + i, 1, CONTEXT, 0, false, number + 1);
        write_gpu(there, in, CONTEXT * (size_t)(Q_BYTES + 2 * KV_BYTES));
        runs(&call, "a context");
    }
    for (uint32_t i = 0; i < rounds; i++) {
        struct registered_call call = call_of(ids, id_count, 1, 0, true, number + 1);
        double begin = now_us();
        holds(gpu.cuMemcpyAsync(there, source, bytes, gpu.stream), "writing");
        wait_for_gpu();
        double written = now_us();
        runs(&call, "a step");
        all[i] = now_us() - begin;
        beyond[i] = now_us() - written;
    }
    qsort(all, rounds, sizeof *all, by_size);
    qsort(beyond, rounds, sizeof *beyond, by_size);
    printf("batch %2u: from input written to output there p50 %6.1f us, p99 %6.1f; with writing it p50 %6.1f "
           "us, p99 %6.1f\n",
           id_count, beyond[rounds / 2], beyond[rounds * 99 / 100], all[rounds / 2], all[rounds * 99 / 100]);
    free(all);
    free(beyond);
    free(in);
}

/* Memory as PyTorch's, by a handle. */
static void lend_by_handle(void)
{
    struct registered_message m = {
        .kind = REGISTERED_IPC_REGION, .bytes = REGION, .key_bytes = REGISTERED_IPC_BYTES, .writes = 1};
    CUdeviceptr there;
    CUipcMemHandle handle = {{0}};
    uint16_t in[(Q_BYTES + 2 * KV_BYTES) / 2];
    holds(gpu.cuMemAlloc_v2(&there, REGION), "taking memory");
    holds(gpu.cuIpcGetMemHandle(&handle, there), "making a handle");
    memcpy(m.key, &handle, sizeof handle);
    expect("memory by a handle of CUDA IPC", registered_ask(&client, &m, -1, NULL), client.answer.detail);
    struct registered_call call = call_of(ids, 1, 1, 0, true, client.answer.region + 1);
    fill(in, sizeof in / 2);
    write_gpu(there, in, sizeof in);
    runs(&call, "a call from there");
    m = (struct registered_message){.kind = REGISTERED_CLOSE_REGION, .region = client.answer.region};
    expect("it is closed", registered_ask(&client, &m, -1, NULL), client.answer.detail);
    m = (struct registered_message){
        .kind = REGISTERED_IPC_REGION, .bytes = 2 * (uint64_t)REGION, .key_bytes = REGISTERED_IPC_BYTES};
    memcpy(m.key, &handle, sizeof handle);
    expect("more than it has", !registered_ask(&client, &m, -1, NULL) && client.answer.status == 422,
           client.answer.detail);
    memset(m.key, 7, REGISTERED_IPC_BYTES);
    expect("a handle that is none", !registered_ask(&client, &m, -1, NULL) && client.answer.status == 422,
           client.answer.detail);
}

static void write_nowhere(void)
{
    static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry "
                              "nowhere()\n{\n.reg .b64 a;\n.reg .b32 x;\n"
                              "mov.u64 a, 8;\nmov.u32 x, 1;\nst.global.u32 [a], x;\nret;\n}\n";
    CUmodule module;
    CUfunction function;
    uint32_t number;
    (void)make_region(REGION, &number); /* something of the daemon's is in use */
    holds(gpu.cuModuleLoadData(&module, ptx), "loading a kernel");
    holds(gpu.cuModuleGetFunction(&function, module, "nowhere"), "loading a kernel");
    holds(gpu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, gpu.stream, NULL, NULL), "launching it");
    while (gpu.cuStreamQuery(gpu.stream) == CUDA_ERROR_NOT_READY) {
    }
}

/* Kill itself: with a region asked for, with one mapped, with a call put, with one of the client's own memory, or in the midst of calls. */
static void die_at(int stage)
{
    const struct registered_message m = {.kind = REGISTERED_GPU_REGION, .bytes = 3 << 20};
    uint32_t number;
    if (stage == 0)
        (void)!write(client.socket, &m, sizeof m);
    else
        (void)make_region(REGION, &number);
    if (stage == 2 || stage == 4) {
        for (int i = 0; i < (stage == 2 ? 1 : REGISTERED_CALLS); i++) {
            struct registered_call call = call_of(ids, id_count, 1, (uint32_t)i % LAYERS, true, number + 1);
            (void)registered_put(&client, &call);
        }
    }
    if (stage == 3)
        lend();
    kill(getpid(), SIGKILL);
}

int main(int argc, char **argv)
{
    int device = 0, stage = -1;
    bool ipc = false, fault = false;
    uint32_t rounds = 0, number;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            device = atoi(argv[++i]);
        else if (strcmp(argv[i], "--bench") == 0 && i + 1 < argc)
            rounds = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--die") == 0 && i + 1 < argc)
            stage = atoi(argv[++i]);
        else if (strcmp(argv[i], "--ipc") == 0)
            ipc = true;
        else if (strcmp(argv[i], "--fault") == 0)
            fault = true;
        else if (strcmp(argv[i], "--stub") == 0)
            stub = true;
        else if (!path)
            path = argv[i];
        else if (id_count < IDS_MAX)
            ids[id_count++] = strtoull(argv[i], NULL, 10);
    }
    if (!path || id_count == 0) {
        puts("usage: gpu PATH [--device N] [--stub] [--bench ROUNDS] [--die STAGE | --ipc | --fault] IDS...");
        return 64;
    }
    open_gpu(device);
    if (!registered_open(&client, path, "") || !registered_make_region(&client, 1 << 16, &lists))
        expect("a client", false, client.answer.detail);
    if (stage >= 0)
        die_at(stage);
    if (ipc || fault) {
        (ipc ? lend_by_handle : write_nowhere)();
        return 0;
    }
    CUdeviceptr there = make_region(REGION, &number);
    if (rounds) {
        bench(there, number, rounds);
        return 0;
    }
    struct registered_region host;
    if (!registered_make_region(&client, REGION, &host))
        expect("host memory", false, client.answer.detail);
    compare(there, number, &host);
    refuse(there, number);
    lend();
    registered_close(&client);
    return 0;
}
#else
int main(void)
{
    puts("skip: built without CUDA's headers");
    return 0;
}
#endif
