/* SPDX-License-Identifier: Apache-2.0 */
/* hang.c - a GPU that hangs is given up, at whichever wait it hangs, and its driver left alone.
 *
 * Everything that the backend can be asked for is asked for once, on the stub driver, which counts the
 * waits. Then again in as many processes, in each of which the GPU hangs from another wait on: there
 * has to be a failure within the timeout, no call of the driver after it (the stub aborts), and every
 * function has to return. One case alone: hang N. */
#include "kernels/attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "scheduler/calibration.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BLOCKS = 256,
    STRIDE = 128,
    ROWS = 16,
    KEYS = 40,
    PASSES_FEW = 8,
    PASSES_MANY = 1000, /* more than can be written down at once */
    PARTIALS = 1024,
    TIMEOUT_S = 1,
    WAITS_MAX = 1000,
    HANG_S = 600 /* only ends what hangs */
};

static struct geometry geometry = {.layers = 2,
                                   .query_heads = 8,
                                   .kv_heads = 2,
                                   .head_dim = 64,
                                   .block_size = 16,
                                   .dtype = DTYPE_BF16,
                                   .kv_dtype = DTYPE_BF16,
                                   .scale = 0.125F};
static struct model_constants constants;
static unsigned *hangs_at, *questions;
static bool *hangs, *closed;

static void *stub(const char *name)
{
    static void *library;
    library = library ? library : dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, name) : NULL;
    if (symbol)
        return symbol;
    printf("not ok the stub driver has %s\n", name);
    exit(1);
}

enum { HOST_BYTES = 1 << 16 }; /* for tensors */

/* A step of so many passes of one row; `memory` is the backend's. */
static uint64_t submit(struct attention *a, uint32_t pass_count, uint8_t *memory)
{
    static uint32_t table[STRIDE];
    static struct attention_pass passes[PASSES_MANY];
    static const uint32_t work_tile_queries[] = {0};
    static const struct plan_query row = {0, KEYS};
    static const struct work_tile work_tile = {0, 0, 1, 0, 1, PLAN_NO_PARTIAL};
    static const struct value_source source = {.seed = 1};
    static const struct plan plan = {&row, &work_tile, work_tile_queries, NULL, NULL, 1, 1, 0, 0, NULL};
    static const struct table_use use = {0, STRIDE, 1};
    for (uint32_t i = 0; i < pass_count; i++)
        passes[i] = (struct attention_pass){.plan = &plan, .q_source = &source, .o = memory};
    const struct attention_step step = {.tables = table,
                                        .stride = STRIDE,
                                        .uses = &use,
                                        .use_count = 1,
                                        .passes = passes,
                                        .pass_count = pass_count};
    if (pass_count == 0) { /* not run but timed, as the passes of a step that was */
        double us[2];
        struct attention_step timed = step;
        timed.pass_count = 1;
        (void)attention_time_passes(a, &timed, 2, true, us);
        return 0;
    }
    return attention_submit(a, &step);
}

/* After a failure the driver must not be asked for anything. */
static void look(const struct attention *a)
{
    *closed |= attention_failure(a) != NULL;
}

/* A step of compares, reads and merges; more compares than have room for their results. */
static void operate(struct attention *a, uint8_t *memory)
{
    enum {
        COMPARES = CUDA_COMPARED_MAX + 1,
        TOKENS = 20,
        KV_BYTES = TOKENS * 2 * 64 * 2,
        O_BYTES = 2 * 8 * 64 * 2
    };
    uint8_t *k = memory, *v = k + KV_BYTES, *o = v + KV_BYTES;
    float *lse = (float *)(void *)(o + O_BYTES);
    static uint32_t table[STRIDE], equal[COMPARES];
    static struct kv_compare compares[COMPARES];
    static const struct table_use use = {0, STRIDE, 2};
    const struct kv_read read = {.count = TOKENS, .k = k, .v = v};
    const struct merge_states m = {2, 1, 8, 64, DTYPE_BF16, o, lse, o, lse};
    for (int i = 0; i < COMPARES; i++)
        compares[i] =
            (struct kv_compare){.count = 1, .dtype = DTYPE_BF16, .k = k, .v = k, .equal = &equal[i]};
    const struct attention_step step = {.tables = table,
                                        .stride = STRIDE,
                                        .uses = &use,
                                        .use_count = 1,
                                        .compares = compares,
                                        .compare_count = COMPARES,
                                        .reads = &read,
                                        .read_count = 1,
                                        .merges = &m,
                                        .merge_count = 1};
    attention_await(a, attention_submit(a, &step));
}

/* All that a backend is asked for, in turn; false when it could not be opened. */
static bool ask_for_everything(char error[ATTENTION_ERROR_BYTES])
{
    const struct attention_options options = {.backend = "cuda",
                                              .isa = "auto",
                                              .cache = "none",
                                              .step_timeout_s = TIMEOUT_S,
                                              .geometry = &geometry,
                                              .constants = &constants,
                                              .blocks = BLOCKS,
                                              .rows_max = ROWS,
                                              .partials_max = PARTIALS,
                                              .table_rows = ROWS,
                                              .table_stride = STRIDE};
    const struct calibration calibration = {&geometry, BLOCKS, ROWS, PARTIALS, ROWS, STRIDE, 1};
    struct attention *a;
    if (attention_open(&options, &a, error) != 0)
        return false;
    error[0] = '\0';
    (void)attention_measure_roof(a);
    look(a);
    (void)calibrate(&calibration, a);
    look(a);
    void *memory = attention_host_memory(a, HOST_BYTES);
    for (int i = 0; i < 3; i++) /* the third one waits for the first */
        (void)submit(a, PASSES_FEW, memory);
    look(a);
    attention_await(a, submit(a, PASSES_MANY, memory));
    look(a);
    (void)submit(a, 0, memory);
    look(a);
    operate(a, memory);
    look(a);
    (void)submit(a, PASSES_FEW, memory); /* beside it */
    while (attention_self_test(a) == ATTENTION_TEST_RUNS)
        look(a);
    look(a);
    attention_free_host_memory(a, memory, HOST_BYTES);
    if (attention_failure(a))
        snprintf(error, ATTENTION_ERROR_BYTES, "%s", attention_failure(a));
    attention_close(a);
    if (*hangs && !error[0]) /* then it is still there */
        snprintf(error, ATTENTION_ERROR_BYTES, "%s", attention_failure(a));
    return true;
}

/* In a process of its own: what is said of a GPU that hangs at a wait. */
static int hang_at(unsigned wait)
{
    char error[ATTENTION_ERROR_BYTES] = "";
    alarm(HANG_S);
    *hangs_at = wait;
    (void)ask_for_everything(error);
    printf("wait %u: %s\n", wait, error);
    fflush(stdout);
    return *hangs && strstr(error, "the device hangs: ") ? 0 : 1;
}

int main(int argc, char **argv)
{
    char error[ATTENTION_ERROR_BYTES] = "";
    constants.k_scale = constants.v_scale = (float[]){1, 1, 1, 1};
    hangs_at = stub("stub_hangs_at");
    questions = stub("stub_questions");
    hangs = stub("stub_hangs");
    closed = stub("stub_closed");
    if (argc > 1)
        _exit(hang_at((unsigned)atoi(argv[1])));
    if (!ask_for_everything(error) || error[0]) {
        printf("not ok a GPU that works: %s\n", error);
        return 1;
    }
    unsigned waits = *questions, bad = 0;
    pid_t children[WAITS_MAX];
    *questions = 0;
    for (unsigned i = 0; i < waits && i < WAITS_MAX; i++) {
        fflush(stdout);
        children[i] = fork();
        if (children[i] == 0)
            _exit(hang_at(i + 1));
    }
    for (unsigned i = 0; i < waits && i < WAITS_MAX; i++) {
        int status;
        if (waitpid(children[i], &status, 0) < 0 || status != 0) {
            printf("not ok a GPU that hangs at wait %u (status %d)\n", i + 1, status);
            bad++;
        }
    }
    printf("%s a GPU that hangs at any of %u waits is given up, and its driver left alone\n",
           bad ? "not ok" : "ok", waits);
    return bad != 0;
}
