/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_backend.c - the CUDA backend: opening a GPU, its memory and its kernels; and everything but
 * steps, which cuda_step.c writes down.
 *
 * The first error that CUDA reports is kept (attention_failure()); after it nothing is issued any more,
 * since the context is lost. All waits have a bound (gpu.h). */
#include "kernels/cuda/cuda_backend.h"

#include "config/config.h"
#include "config/log.h"
#include "config/numbers.h"
#include "kernels/cuda/cuda_self_test.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONTROL_BYTES = 32 << 20, /* of a step's control data, at least */
    ROOF_THREADS = 512,       /* measure.cu, read_all */
    ROOF_ALIGNMENT = 4096
};

#define ROOF_BYTES_MAX (UINT64_C(8) << 30)
static const double ROOF_PASS_US = 3000; /* at most, about: an H200 reads 8 GiB in 1 900 */

/* ---- steps --------------------------------------------------------------------------------------- */

static bool cuda_poll(struct attention *attention, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (!cuda_queue_is_done(&b->queue, ticket))
        return false;
    cuda_operations_deliver(b, ticket);
    return true;
}

static struct attention_times cuda_times(struct attention *attention, uint64_t ticket)
{
    return cuda_queue_times(&((struct cuda_backend *)attention)->queue, ticket);
}

static uint32_t cuda_passes(struct attention *attention, uint64_t ticket, struct attention_pass_times *passes)
{
    return cuda_queue_pass_times(&((struct cuda_backend *)attention)->queue, ticket, passes);
}

static void *take_host_memory(struct attention *attention, size_t bytes)
{
    return cuda_host_memory(&((struct cuda_backend *)attention)->device, bytes);
}

static void free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    (void)bytes;
    cuda_free_host_memory(&((struct cuda_backend *)attention)->device, memory);
}

/* ---- streamed steps -------------------------------------------------------------------------------- */

static bool cuda_may_continue(struct attention *attention)
{
    return cuda_queue_has_room(&((struct cuda_backend *)attention)->queue);
}

static const char *cuda_look_at(struct attention *attention, const void *address)
{
    const struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    CUmemorytype type = 0;
    int device = -1;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *answers[] = {&type, &device};
    if (d->cu.cuPointerGetAttributes(2, asked, answers, (CUdeviceptr)(uintptr_t)address) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE)
        return "is not memory of a GPU";
    return device == d->device ? NULL : "is memory of another GPU than the engine's";
}

static const char *cuda_look_at_stream(struct attention *attention, void *stream)
{
    const struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (d->cu.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS)
        return "is no stream of the engine's GPU";
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? NULL
                                                   : "is being captured, and a call cannot be replayed";
}

static void *cuda_own_stream(struct attention *attention)
{
    return ((struct cuda_backend *)attention)->device.stream;
}

/* An error that another process has made, under MPS, comes with whatever is called next. */
static void cuda_look(struct attention *attention)
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    cuda_enter(d);
    CUresult result = cuda_failed(d) ? CUDA_SUCCESS : d->cu.cuStreamQuery(d->stream);
    if (result != CUDA_ERROR_NOT_READY)
        cuda_note(d, result, "looking whether it is there");
}

static bool shares_context(const struct cuda_device *d)
{
    int shares = 0;
    return d->cu.cuDeviceGetAttribute(&shares, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, d->device) == CUDA_SUCCESS &&
           shares;
}

static void cuda_visit(struct attention *attention, bool begins)
{
    struct cuda_device *d = &((struct cuda_backend *)attention)->device;
    if (begins)
        cuda_note_context(d);
    else
        cuda_leave(d);
}

/* ---- measuring ----------------------------------------------------------------------------------- */

static struct attention_graphs cuda_graphs(const struct attention *attention)
{
    return ((const struct cuda_backend *)attention)->queue.graphs;
}

static enum attention_verdict cuda_self_test(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    enum attention_verdict verdict = cuda_self_test_part(b);
    if (verdict == ATTENTION_TEST_FAILED && !cuda_failed(&b->device))
        log_line(LOG_ERROR, "self-test: %s", cuda_self_test_finding(b));
    return verdict;
}

/* A pass a part. A slow GPU reads less in one, so that nothing waits long. */
static bool cuda_roof_part(struct attention *attention, bool begins, struct attention_roof *roof)
{
    static const uint32_t per_multiprocessor[ROOF_WAYS] = {2, 4, 16};
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (begins) {
        uint64_t most = b->layout.total_bytes < ROOF_BYTES_MAX ? b->layout.total_bytes : ROOF_BYTES_MAX;
        roof_trial_begin(&b->roof, ROOF_PASSES_MAX);
        /* twice as much as last time, which others may have slowed down */
        b->roof_bytes = b->roof_bytes && b->roof_bytes < most / 2 ? 2 * b->roof_bytes : most;
    }
    uint32_t blocks = b->device.multiprocessors * per_multiprocessor[roof_trial_way(&b->roof)];
    const struct cuda_read_pass pass = {b->pool.bytes, b->roof_bytes / 16};
    cuda_enter(&b->device);
    double us = cuda_queue_time_read(&b->queue, cuda_grid_of(blocks, ROOF_THREADS), &pass);
    if (cuda_failed(&b->device))
        return true;
    double gb_per_s = us > 0 ? (double)b->roof_bytes / us * 1e-3 : 0;
    if (us > ROOF_PASS_US)
        b->roof_bytes =
            (uint64_t)((double)b->roof_bytes * ROOF_PASS_US / us) / ROOF_ALIGNMENT * ROOF_ALIGNMENT;
    return roof_trial_add(&b->roof, gb_per_s, roof);
}

static bool cuda_time_passes(struct attention *attention, const struct attention_step *step, uint32_t replays,
                             bool apart, double *us)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (cuda_failed(&b->device))
        return false;
    cuda_queue_begin(&b->queue, ++attention->submitted, false, NULL);
    cuda_queue_begin_passes(&b->queue);
    for (uint32_t i = 0; i < step->pass_count; i++)
        cuda_step_attention(b, step, &step->passes[i]);
    if (!cuda_queue_time(&b->queue, replays, apart, us))
        return false;
    for (uint32_t i = 0; i < replays; i++)
        us[i] /= step->pass_count;
    return true;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static void cuda_close(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    struct cuda_device *d = &b->device;
    (void)d->cu.cuCtxSetCurrent(d->context);
    if (!cuda_failed(d))
        cuda_await(d, NULL, d->stream, "what was issued before the end");
    if (!cuda_failed(d))
        cuda_self_test_await(b);
    if (attention->hangs) {
        log_event(LOG_ERROR, "backend_failed", NULL, "the backend has failed: %s", attention->failure);
        return;
    }
    cuda_self_test_deinit(b);
    cuda_queue_deinit(&b->queue);
    free(b->known);
    for (uint32_t i = 0; i < b->module_count; i++)
        (void)d->cu.cuModuleUnload(b->modules[i]);
    cuda_device_close(d);
    free(b);
}

static const struct attention_ops ops = {
    .close = cuda_close,
    .submit = cuda_step_submit,
    .poll = cuda_poll,
    .times = cuda_times,
    .passes = cuda_passes,
    .host_memory = take_host_memory,
    .free_host_memory = free_host_memory,
    .may_continue = cuda_may_continue,
    .look_at = cuda_look_at,
    .look_at_stream = cuda_look_at_stream,
    .visit = cuda_visit,
    .own_stream = cuda_own_stream,
    .region_make = cuda_region_make,
    .region_take = cuda_region_take,
    .region_open = cuda_region_open,
    .region_end = cuda_region_end,
    .look = cuda_look,
    .graphs = cuda_graphs,
    .self_test = cuda_self_test,
    .roof_part = cuda_roof_part,
    .time_passes = cuda_time_passes,
};

/* Say how long it took to compile, which is most of a cold start. */
static void log_program(const struct cuda_program *program)
{
    if (program->compile_s > 0)
        log_line(LOG_INFO, "compiled the kernels in %.1f s, in %u pieces; %s%s%s%s", program->compile_s,
                 program->count, program->keep_errno || !program->file[0] ? "not kept" : "kept in ",
                 program->keep_errno ? "" : program->file, program->keep_errno ? ": " : "",
                 program->keep_errno ? strerror(program->keep_errno) : "");
    if (program->uses_local_memory[0])
        log_line(LOG_WARNING, "the kernel %s uses local memory for this geometry and will be slower",
                 program->uses_local_memory);
}

/* Compile or find the kernels, and load them. */
static int load_kernels(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_device *d = &b->device;
    char error[CUDA_COMPILER_ERROR_BYTES];
    struct cuda_program program;
    int rc = cuda_compile(g, &d->target, b->options.cache, NULL, &program, error);
    if (rc != 0) {
        snprintf(b->base.failure, sizeof b->base.failure, "CUDA: %.240s", error);
        return rc;
    }
    log_program(&program);
    cuda_load_kernels(d, g, &program, b->modules, &b->module_count, b->queue.kernels);
    cuda_program_deinit(&program);
    cuda_find_widths(d, g, b->queue.kernels, &b->tiles);
    b->base.info.tile_caps = b->tiles.caps;
    if (g->layout == LAYOUT_VLLM && !cuda_failed(d)) {
        cuda_allow_shared_memory(d, b->queue.kernels[KERNEL_PAGED_V1], cuda_paged_shared_max(&d->target));
        b->base.info.paged_v1_tokens =
            cuda_paged_shared_max(&d->target) / (uint32_t)sizeof(float) / g->block_size * g->block_size;
    }
    b->base.info.p_rounded = cuda_columns_max(g, &d->target) > 0;
    return cuda_failed(d) ? ATTND_INTERNAL : 0;
}

/* What the largest plan takes in the control buffer, whatever its cut (plan.h): work tiles
 * of every 8 query heads, and as many of splits that have nothing to do, work tile queries,
 * partials, merges, queries, sources of q. */
static size_t plan_bytes_max(const struct cuda_backend *b)
{
    size_t rows = b->options.rows_max, group = geometry_group(b->options.geometry);
    size_t work_tile_queries = rows + b->options.partials_max;
    return work_tile_queries * (2 * ((group + 7) / 8) * sizeof(struct cuda_work_tile) +
                                sizeof(struct cuda_work_tile_query) + sizeof(struct partial_ref)) +
           rows * (sizeof(struct plan_merge) + sizeof(struct plan_query) + sizeof(struct cuda_client_row)) +
           CUDA_PASS_OPERATIONS * sizeof(uint64_t) * 8;
}

static int open_all(struct cuda_backend *b)
{
    size_t table_bytes = 8 * (size_t)b->options.table_stride * sizeof(uint32_t);
    size_t control_bytes = 2 * plan_bytes_max(b);
    control_bytes = table_bytes > control_bytes ? table_bytes : control_bytes;
    control_bytes = CONTROL_BYTES > control_bytes ? CONTROL_BYTES : control_bytes;
    if (!cuda_queue_init(&b->queue, &b->device, control_bytes) ||
        (b->options.pass_stamps && !cuda_queue_stamp_passes(&b->queue)))
        return ATTND_NO_MEMORY;
    int rc = load_kernels(b);
    if (rc == 0 && (!cuda_memory_take(b) || !cuda_operations_init(b) || !cuda_self_test_init(b)))
        rc = ATTND_NO_MEMORY;
    if (rc != 0)
        return rc;
    enum attention_verdict verdict;
    while ((verdict = cuda_self_test(&b->base)) == ATTENTION_TEST_RUNS) {
    }
    if (verdict == ATTENTION_TEST_PASSED)
        return 0;
    if (!cuda_failed(&b->device))
        snprintf(b->base.failure, sizeof b->base.failure, "CUDA: on this GPU %s", cuda_self_test_finding(b));
    return ATTND_INTERNAL;
}

static const char *kernel_name(const struct attention_options *o, const struct cuda_target *target)
{
    if (o->geometry->layout == LAYOUT_VLLM)
        return o->kernel == ATTENTION_AUTO ? "paged_v1 or paged_v2" : config_kernel_names[o->kernel];
    return cuda_columns_max(o->geometry, target) ? "attend_mma" : "attend_simple";
}

int cuda_backend_open(const struct attention_options *options, struct attention **attention,
                      char error[ATTENTION_ERROR_BYTES])
{
    const bool paged = options->geometry->layout == LAYOUT_VLLM;
    if (options->kernel != ATTENTION_AUTO && !paged) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "backend.kernel: paged_v1 and paged_v2 go with geometry.layout vllm");
        return ATTND_INVALID;
    }
    struct cuda_backend *b = calloc(1, sizeof *b);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the CUDA backend");
    if (!b)
        return ATTND_NO_MEMORY;
    b->base.ops = &ops;
    b->base.step_timeout_s = options->step_timeout_s;
    b->options = *options;
    if (paged) /* the longest query has room */
        b->options.partials_max =
            larger(options->partials_max,
                   options->table_stride * options->geometry->block_size / PAGED_PARTITION + 1);
    int rc = cuda_device_open(&b->device, options->device, &b->base);
    if (rc != 0) {
        snprintf(error, ATTENTION_ERROR_BYTES, "%s", b->base.failure);
        free(b);
        return rc;
    }
    b->base.info = (struct attention_info){
        .name = "cuda",
        .isa = b->device.target.arch,
        .threads = b->device.multiprocessors,
        .tasks = CUDA_TASKS_PER_MULTIPROCESSOR * b->device.multiprocessors,
        .kernel = kernel_name(options, &b->device.target),
        .bit_stable = !paged,
        .on_device = true,
        .takes_streams = true,
        .region_unit = cuda_region_unit(&b->device),
        .shares_context = shares_context(&b->device),
    };
    snprintf(b->base.info.device, sizeof b->base.info.device, "%s", b->device.name);
    rc = open_all(b);
    if (rc != 0) {
        if (cuda_failed(&b->device))
            snprintf(error, ATTENTION_ERROR_BYTES, "%s", b->base.failure);
        attention_close(&b->base);
        return rc;
    }
    *attention = &b->base;
    return 0;
}

/* ---- without a backend --------------------------------------------------------------------------- */

uint64_t cuda_memory_available(uint32_t index)
{
    struct cuda_device d;
    struct attention nobody = {0};
    if (cuda_device_open(&d, index, &nobody) != 0)
        return 0;
    uint64_t bytes = cuda_free_bytes(&d);
    cuda_device_close(&d);
    return bytes;
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

int attention_compile_kernels(const struct geometry *g, const char *arch, const char *cache, FILE *report,
                              char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_target target;
    struct cuda_program program;
    char why[CUDA_COMPILER_ERROR_BYTES];
    if (!cuda_target_known(arch, &target)) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "there is no \"%.32s\": sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a or sm_120", arch);
        return ATTND_INVALID;
    }
    int rc = cuda_compile(g, &target, cache, report, &program, why);
    if (rc != 0)
        snprintf(error, ATTENTION_ERROR_BYTES, "%.250s", why);
    if (rc == 0 && program.keep_errno) {
        snprintf(error, ATTENTION_ERROR_BYTES, "%.160s cannot be written: %s", program.file,
                 strerror(program.keep_errno));
        rc = ATTND_NOT_FOUND;
    }
    if (rc == 0 && program.uses_local_memory[0]) {
        snprintf(error, ATTENTION_ERROR_BYTES, "the kernel %s uses local memory", program.uses_local_memory);
        rc = ATTND_INTERNAL;
    }
    cuda_program_deinit(&program);
    return rc;
}
