/* SPDX-License-Identifier: Apache-2.0 */
/* compiler.c - see compiler.h.
 *
 *   geometry, GPU -> options -> pieces -> NVRTC, a thread a piece -> cubins -> one file of the cache
 *
 * A piece is a kernel that takes long to compile, or a file of those that do not; each is a program of its own
 * to NVRTC, which compiles different programs side by side (since 12.3; before that it lets one wait for the
 * other). So the start waits for the longest piece, not for the sum: 2.3 s of 6.4 for llama-3-8b on sm_90a. The
 * code of a kernel is the same as that of all pieces compiled as one. Its own --split-compile, alone, shares out
 * too little; in each piece it has kernels optimised one by one, without which some use local memory (gemma-2-9b's
 * attend_8 on sm_100a, merge_states there).
 *
 * A file of the cache is named ARCH-HASH-nvrtcMAJOR.MINOR.cubin. Where there is no NVRTC, a file of any
 * compiler version will do. */
#include "kernels/cuda/compiler.h"

#include "config/clock.h"
#include "config/numbers.h"
#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/sources.h"
#include "kernels/thread_pool.h"

#include <nvrtc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <assert.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTIONS_MAX = 32,
    OPTION_BYTES = 64,
    PIECE_NAME_BYTES = 32,
    FOLDER_BYTES = 1024,
    NAME_BYTES = 256,
    FIRST_TENSOR_CORE_ARCH = 80, /* with bf16 and cp.async */
    WARPGROUP_ARCH = 90,         /* that has wgmma */
    FIRST_TMA_ARCH = 90,
    LAST_TMA_ARCH = 119,       /* from sm_120 on the kernels would use local memory (NVRTC 13.0) */
    TMA_ALIGNMENT = 16,        /* of rows, in bytes */
    PAGED_STATIC_BYTES = 4096, /* of shared memory of paged_v1, for q and reductions, at most */
    TMA_BLOCK_MIN = 8          /* smaller blocks would be too many boxes */
};

static const struct cuda_target known_targets[] = {{"sm_75", 65536},  {"sm_80", 167936},  {"sm_86", 102400},
                                                   {"sm_89", 102400}, {"sm_90a", 233472}, {"sm_100a", 233472},
                                                   {"sm_120", 102400}};

#define NVRTC_SYMBOLS(XX)                                                                                    \
    XX(nvrtcVersion)                                                                                         \
    XX(nvrtcCreateProgram)                                                                                   \
    XX(nvrtcDestroyProgram)                                                                                  \
    XX(nvrtcCompileProgram)                                                                                  \
    XX(nvrtcGetProgramLogSize)                                                                               \
    XX(nvrtcGetProgramLog)                                                                                   \
    XX(nvrtcGetCUBINSize)                                                                                    \
    XX(nvrtcGetCUBIN)

_Static_assert((int)FOLDER_BYTES + NAME_BYTES <= (int)CUDA_CUBIN_PATH_BYTES, "a file's name fits");

struct nvrtc {
    void *library;
    int major, minor;
#define XX(function) __typeof__(function) *function;
    NVRTC_SYMBOLS(XX)
#undef XX
};

const struct cuda_kernel_info cuda_kernels[KERNEL_COUNT] = {
#define XX(constant, name, file, of, query_heads, chunks) {name, file, of, query_heads, chunks},
    CUDA_KERNEL_MAP(XX)
#undef XX
};

/* What is compiled as one: a file, with all of its kernels or, where they take long, with one. */
struct piece {
    char name[PIECE_NAME_BYTES]; /* of the kernel, or the file's without its ending */
    char path[OPTION_BYTES];
    uint32_t query_heads; /* of that kernel's tiles; 0: all kernels */
};

/* What is compiled, and with what. */
struct request {
    char options[OPTIONS_MAX][OPTION_BYTES];
    int option_count;
    struct piece pieces[CUDA_PIECES_MAX];
    uint32_t piece_count;
    uint8_t piece_of[KERNEL_COUNT];
    XXH128_hash_t hash; /* of sources, options and pieces */
};

/* ---- targets ------------------------------------------------------------------------------------- */

bool cuda_target_known(const char *arch, struct cuda_target *target)
{
    for (size_t i = 0; i < sizeof known_targets / sizeof known_targets[0]; i++) {
        if (strcmp(known_targets[i].arch, arch) == 0) {
            *target = known_targets[i];
            return true;
        }
    }
    return false;
}

struct cuda_target cuda_target_of(int major, int minor, uint32_t sm_bytes)
{
    struct cuda_target target = {.sm_bytes = sm_bytes};
    bool own_instructions = (major == 9 || major == 10) && minor == 0;
    snprintf(target.arch, sizeof target.arch, "sm_%d%d%s", major, minor, own_instructions ? "a" : "");
    return target;
}

/* 90 for "sm_90a" */
static int arch_of(const struct cuda_target *target)
{
    return atoi(target->arch + strlen("sm_"));
}

/* 16 bits, as tensor cores take them. */
static bool is_half(enum dtype dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

uint32_t cuda_columns_max(const struct geometry *g, const struct cuda_target *target)
{
    bool formats = is_half(g->dtype) && (g->kv_dtype == g->dtype || dtype_is_fp8(g->kv_dtype));
    bool instructions = arch_of(target) >= FIRST_TENSOR_CORE_ARCH;
    if (g->layout == LAYOUT_VLLM || !formats || !instructions)
        return 0;
    uint32_t columns = tile_columns_max(g->head_dim, (uint32_t)dtype_bytes(g->kv_dtype), target->sm_bytes,
                                        cuda_uses_tma(g, target));
    return columns == TILE_GROUP_COLUMNS && cuda_uses_warpgroups(g, target) ? columns / 2 : columns;
}

bool cuda_uses_warpgroups(const struct geometry *g, const struct cuda_target *target)
{
    return arch_of(target) == WARPGROUP_ARCH && g->layout != LAYOUT_VLLM && is_half(g->dtype) &&
           g->kv_dtype == g->dtype && g->head_dim <= TILE_GROUP_DIM_MAX;
}

bool cuda_uses_tma(const struct geometry *g, const struct cuda_target *target)
{
    bool whole = TILE_TOKENS % g->block_size == 0 || g->block_size % TILE_TOKENS == 0;
    int arch = arch_of(target);
    return arch >= FIRST_TMA_ARCH && arch <= LAST_TMA_ARCH && whole && g->block_size >= TMA_BLOCK_MIN &&
           g->head_dim * dtype_bytes(g->kv_dtype) % TMA_ALIGNMENT == 0;
}

uint32_t cuda_paged_shared_bytes(const struct geometry *g, uint32_t tokens)
{
    uint32_t logits = (tokens + g->block_size - 1) / g->block_size * g->block_size;
    uint32_t outputs = CUDA_THREADS / 32 / 2 * g->head_dim;
    return (logits > outputs ? logits : outputs) * (uint32_t)sizeof(float);
}

uint32_t cuda_paged_shared_max(const struct cuda_target *target)
{
    return target->sm_bytes - TILE_BLOCK_BYTES - PAGED_STATIC_BYTES;
}

bool cuda_has_kernel(const struct geometry *g, const struct cuda_target *target, enum cuda_kernel kernel)
{
    const struct cuda_kernel_info *info = &cuda_kernels[kernel];
    bool paged = g->layout == LAYOUT_VLLM;
    switch (info->of) {
    case OF_ALL:
        return true;
    case OF_PAGED:
        return paged;
    case OF_TILES:
        return !paged;
    case OF_SIMPLE:
        return !paged && cuda_columns_max(g, target) == 0;
    case OF_MMA:
        return info->query_heads <= cuda_columns_max(g, target);
    case OF_WIDE:
        return cuda_uses_warpgroups(g, target);
    }
    return false;
}

/* ---- the compiler -------------------------------------------------------------------------------- */

static const char *look_up(struct nvrtc *n)
{
#define XX(function)                                                                                         \
    {                                                                                                        \
        void *symbol = dlsym(n->library, #function);                                                         \
        if (!symbol)                                                                                         \
            return #function;                                                                                \
        memcpy(&n->function, &symbol, sizeof symbol);                                                        \
    }
    NVRTC_SYMBOLS(XX)
#undef XX
    return NULL;
}

static int open_nvrtc(struct nvrtc *n, char error[CUDA_COMPILER_ERROR_BYTES])
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    *n = (struct nvrtc){0};
    for (size_t i = 0; !n->library && i < sizeof names / sizeof names[0]; i++)
        n->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        snprintf(
            error, CUDA_COMPILER_ERROR_BYTES,
            "no NVRTC to compile kernels with: libnvrtc.so.13 or .12 is neither on the library "
            "path nor under /usr/local/cuda, and the cache has none compiled (make cuda-headers gets one: "
            "LD_LIBRARY_PATH=build/cuda/lib)");
        return ATTND_NOT_FOUND;
    }
    const char *missing = look_up(n);
    if (missing || n->nvrtcVersion(&n->major, &n->minor) != NVRTC_SUCCESS) {
        snprintf(error, CUDA_COMPILER_ERROR_BYTES, "this NVRTC is too old: it has no %s",
                 missing ? missing : "version");
        dlclose(n->library);
        return ATTND_NOT_FOUND;
    }
    return 0;
}

static void __attribute__((format(printf, 2, 3))) add_option(struct request *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->options[r->option_count++], OPTION_BYTES, format, args);
    va_end(args);
}

/* Which piece a kernel is compiled in: one of its own if it takes long, or that of its file. It is added if
 * need be. */
static uint8_t piece_with(struct request *r, const struct cuda_kernel_info *kernel)
{
    struct piece piece = {0};
    uint8_t i = 0;
    if (kernel->of == OF_MMA || kernel->of == OF_WIDE) {
        snprintf(piece.name, sizeof piece.name, "%s", kernel->name);
        piece.query_heads = kernel->query_heads;
    } else {
        snprintf(piece.name, sizeof piece.name, "%.*s", (int)strcspn(kernel->file, "."), kernel->file);
    }
    snprintf(piece.path, sizeof piece.path, "kernels/cuda/device/%s", kernel->file);
    while (i < r->piece_count && strcmp(r->pieces[i].name, piece.name) != 0)
        i++;
    assert(i < CUDA_PIECES_MAX);
    r->pieces[i] = piece;
    r->piece_count = larger(r->piece_count, i + 1U);
    return i;
}

static void hash_request(struct request *r)
{
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (int i = 0; cuda_source_texts[i]; i++)
        XXH3_128bits_update(&state, cuda_source_texts[i], strlen(cuda_source_texts[i]) + 1);
    for (int i = 0; i < r->option_count; i++)
        XXH3_128bits_update(&state, r->options[i], strlen(r->options[i]) + 1);
    for (uint32_t i = 0; i < r->piece_count; i++)
        XXH3_128bits_update(&state, r->pieces[i].name, strlen(r->pieces[i].name) + 1);
    r->hash = XXH3_128bits_digest(&state);
}

/* The macros of the device code, among them SOFTCAP (whether there is one), SM_BYTES (shared memory of a
 * multiprocessor), TENSOR_CORES (whether formats and GPU have them), TMA (whether K and V come by it) and WGMMA
 * (whether attend_wide.cu takes wider work tiles). A piece of one width has two more (compile_program). */
static void make_request(struct request *r, const struct geometry *g, const struct cuda_target *target)
{
    static const char *const dtypes[] = {"DTYPE_F32", "DTYPE_F16", "DTYPE_BF16", "DTYPE_E4M3", "DTYPE_E5M2"};
    static const char *const layouts[] = {"LAYOUT_HND", "LAYOUT_NHD", "LAYOUT_VLLM"};
    *r = (struct request){0};
    add_option(r, "--gpu-architecture=%s", target->arch);
    add_option(r, "--std=c++17");
    add_option(r, "--fmad=false");
    add_option(r, "--device-as-default-execution-space");
    add_option(r, "--ptxas-options=-v");    /* for the report */
    add_option(r, "--diag-suppress=20044"); /* names of formats, declared and not used */
    add_option(r, "-DHEAD_DIM=%u", g->head_dim);
    add_option(r, "-DBLOCK_SIZE=%u", g->block_size);
    add_option(r, "-DKV_HEADS=%u", g->kv_heads);
    add_option(r, "-DGROUP=%u", geometry_group(g));
    add_option(r, "-DQ_DTYPE=%s", dtypes[g->dtype]);
    add_option(r, "-DKV_DTYPE=%s", dtypes[g->kv_dtype]);
    add_option(r, "-DLAYOUT=%s", layouts[g->layout]);
    add_option(r, "-DSOFTCAP=%d", g->softcap > 0);
    add_option(r, "-DSM_BYTES=%u", target->sm_bytes);
    add_option(r, "-DTENSOR_CORES=%d", cuda_columns_max(g, target) > 0);
    add_option(r, "-DTMA=%d", cuda_uses_tma(g, target));
    add_option(r, "-DWGMMA=%d", cuda_uses_warpgroups(g, target));
    if (g->layout == LAYOUT_VLLM) {
        add_option(r, "-DSPARSE_VERT_STRIDE=%u", g->sparse.vert_stride);
        add_option(r, "-DSPARSE_LOCAL_BLOCKS=%u", g->sparse.local_blocks);
        add_option(r, "-DSPARSE_BLOCK_SIZE=%u", g->sparse.block_size);
        add_option(r, "-DSPARSE_HEAD_STEP=%d", (int)g->sparse.head_sliding_step);
        add_option(r, "-DSPARSE_TP_RANK=%u", g->sparse.tp_rank);
    }
    /* the widest tiles first, which take longest, so that no processor begins one when the others are done */
    for (enum cuda_kernel i = KERNEL_COUNT; i-- > 0;) {
        if (cuda_has_kernel(g, target, i))
            r->piece_of[i] = piece_with(r, &cuda_kernels[i]);
    }
    hash_request(r);
}

/* ---- pieces -------------------------------------------------------------------------------------- */

/* What became of a piece. */
struct outcome {
    char *log; /* of the compiler */
    double seconds;
    char error[CUDA_COMPILER_ERROR_BYTES]; /* why there is no machine code; empty: there is */
};

/* All pieces, under way. */
struct compilation {
    const struct nvrtc *n;
    const struct request *r;
    struct thread_pool *pool;
    struct cuda_cubin *cubins;
    struct outcome outcomes[CUDA_PIECES_MAX];
    _Atomic bool failed; /* one has: begin no more */
};

/* The first line of a compiler's log that is an error. */
static void first_error(const char *piece, const char *log, char error[CUDA_COMPILER_ERROR_BYTES])
{
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n')
        at--;
    snprintf(error, CUDA_COMPILER_ERROR_BYTES, "the kernels do not compile: %s: %.*s", piece,
             at ? (int)strcspn(at, "\n") : 0, at ? at : "");
}

/* A new program of NVRTC: the file of the piece, and all files for it to include. */
static nvrtcResult create_program(const struct nvrtc *n, const struct piece *piece, nvrtcProgram *program)
{
    int root = 0, count = 0;
    while (cuda_source_names[root] && strcmp(cuda_source_names[root], piece->path) != 0)
        root++;
    while (cuda_source_names[count])
        count++;
    return n->nvrtcCreateProgram(program, cuda_source_texts[root], piece->path, count, cuda_source_texts,
                                 cuda_source_names);
}

static nvrtcResult compile_program(const struct nvrtc *n, const struct request *r, const struct piece *piece,
                                   nvrtcProgram program)
{
    const char *options[OPTIONS_MAX];
    struct request own = *r;
    if (piece->query_heads) {
        add_option(&own, "-DKERNEL=%s", piece->name);
        add_option(&own, "-DKERNEL_COLUMNS=%u", piece->query_heads);
    }
    add_option(&own, "--split-compile=2"); /* kernels are optimised one by one */
    for (int i = 0; i < own.option_count; i++)
        options[i] = own.options[i];
    nvrtcResult result = n->nvrtcCompileProgram(program, own.option_count, options);
    return result == NVRTC_ERROR_INVALID_OPTION
               ? n->nvrtcCompileProgram(program, own.option_count - 1, options)
               : result;
}

/* Take log and machine code out of a program that was compiled; true if both are there. */
static bool take_code(const struct nvrtc *n, const struct piece *piece, nvrtcProgram program,
                      nvrtcResult result, struct outcome *x, struct cuda_cubin *cubin)
{
    size_t log_bytes = 0;
    if (n->nvrtcGetProgramLogSize(program, &log_bytes) != NVRTC_SUCCESS ||
        !(x->log = calloc(1, log_bytes + 1)) || n->nvrtcGetProgramLog(program, x->log) != NVRTC_SUCCESS)
        return false;
    if (result != NVRTC_SUCCESS) {
        first_error(piece->name, x->log, x->error);
        return false;
    }
    return n->nvrtcGetCUBINSize(program, &cubin->size) == NVRTC_SUCCESS &&
           (cubin->bytes = malloc(cubin->size)) && n->nvrtcGetCUBIN(program, cubin->bytes) == NVRTC_SUCCESS;
}

static void compile_piece(struct compilation *c, uint32_t index)
{
    const struct nvrtc *n = c->n;
    const struct piece *piece = &c->r->pieces[index];
    struct outcome *x = &c->outcomes[index];
    nvrtcProgram program;
    double began = clock_s();
    snprintf(x->error, sizeof x->error, "%s: NVRTC %d.%d fails without a word", piece->name, n->major,
             n->minor);
    if (create_program(n, piece, &program) == NVRTC_SUCCESS) {
        nvrtcResult result = compile_program(n, c->r, piece, program);
        if (take_code(n, piece, program, result, x, &c->cubins[index]))
            x->error[0] = '\0';
        n->nvrtcDestroyProgram(&program);
    }
    if (x->error[0])
        c->failed = true;
    x->seconds = clock_s() - began;
}

/* Take piece after piece. They are begun in order and all that are begun are ended, so the first that fails is
 * the same however many threads there are. */
static void compile_pieces(uint32_t worker, void *cookie)
{
    struct compilation *c = cookie;
    uint32_t index;
    (void)worker;
    while (!c->failed && (index = thread_pool_take(c->pool)) < c->r->piece_count)
        compile_piece(c, index);
}

void cuda_read_report(const char *log, FILE *report, struct cuda_program *program)
{
    char kernel[64] = "";
    unsigned local[3] = {0}, registers = 0; /* stack, stores, loads */
    for (const char *at = log; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        unsigned bytes[3]; /* their line begins with blanks, or with "ptxas ." */
        if (sscanf(at + strcspn(at, "0123456789\n"),
                   "%u bytes stack frame, %u bytes spill stores, %u bytes spill loads", &bytes[0], &bytes[1],
                   &bytes[2]) == 3)
            memcpy(local, bytes, sizeof local);
        if (sscanf(at, "ptxas info : Compiling entry function '%63[^']'", kernel) == 1 ||
            sscanf(at, "ptxas info : Used %u registers", &registers) != 1)
            continue;
        if (report)
            fprintf(report, "  %-14s %3u registers, %u bytes of stack, %u spilled\n", kernel, registers,
                    local[0], local[1]);
        bool attention = strncmp(kernel, "attend", 6) == 0 || strncmp(kernel, "merge", 5) == 0 ||
                         strncmp(kernel, "paged", 5) == 0;
        if (attention && (local[0] || local[1] || local[2]))
            snprintf(program->uses_local_memory, sizeof program->uses_local_memory, "%s", kernel);
    }
}

/* Compile all pieces side by side; say in `report` what there is to say. */
static int compile(const struct nvrtc *n, const struct request *r, FILE *report, struct cuda_program *program,
                   char error[CUDA_COMPILER_ERROR_BYTES])
{
    struct compilation c = {.n = n, .r = r, .cubins = program->cubins};
    uint32_t threads = smaller(r->piece_count, thread_pool_default_threads()), longest = 0, good = 0;
    if (thread_pool_create(threads, &c.pool) != 0 && thread_pool_create(threads = 1, &c.pool) != 0) {
        snprintf(error, CUDA_COMPILER_ERROR_BYTES, "no threads to compile the kernels");
        return ATTND_NO_MEMORY;
    }
    double began = clock_s();
    thread_pool_run(c.pool, compile_pieces, &c);
    thread_pool_destroy(c.pool);
    program->compile_s = clock_s() - began;
    while (good < r->piece_count && !c.outcomes[good].error[0])
        good++;
    if (good == r->piece_count)
        program->count = r->piece_count;
    else
        snprintf(error, CUDA_COMPILER_ERROR_BYTES, "%s", c.outcomes[good].error);
    for (uint32_t i = 0; i < r->piece_count; i++) {
        if (program->count)
            cuda_read_report(c.outcomes[i].log, report, program);
        free(c.outcomes[i].log);
        longest = c.outcomes[i].seconds > c.outcomes[longest].seconds ? i : longest;
    }
    if (!program->count) {
        cuda_program_deinit(program);
        return ATTND_INTERNAL;
    }
    if (report)
        fprintf(report, "  %u piece%s by %u thread%s in %.1f s, the longest in %.1f: %s\n", r->piece_count,
                plural(r->piece_count), threads, plural(threads), program->compile_s,
                c.outcomes[longest].seconds, r->pieces[longest].name);
    return 0;
}

/* ---- the cache ----------------------------------------------------------------------------------- */

/* The folder that `cache` stands for, in `path`; NULL: none. */
static const char *cache_folder(const char *cache, char path[FOLDER_BYTES])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (strcmp(cache, "none") == 0)
        return NULL;
    if (cache[0])
        return cache;
    if (base && base[0] == '/')
        snprintf(path, FOLDER_BYTES, "%s/attnd", base);
    else if (home && home[0] == '/')
        snprintf(path, FOLDER_BYTES, "%s/.cache/attnd", home);
    else
        return NULL;
    return path;
}

int cuda_compile(const struct geometry *g, const struct cuda_target *target, const char *cache, FILE *report,
                 struct cuda_program *program, char error[CUDA_COMPILER_ERROR_BYTES])
{
    struct request r;
    struct nvrtc n;
    char folder[FOLDER_BYTES], name[NAME_BYTES];
    cache = cache_folder(cache, folder);
    make_request(&r, g, target);
    *program = (struct cuda_program){0};
    int rc = open_nvrtc(&n, error);
    int end = snprintf(name, sizeof name, "%s-%016llx%016llx-nvrtc", target->arch,
                       (unsigned long long)r.hash.high64, (unsigned long long)r.hash.low64);
    if (rc == 0)
        snprintf(name + end, sizeof name - (size_t)end, "%d.%d.cubin", n.major, n.minor);
    if (cache && cubin_cache_find(cache, name, program)) {
        if (report)
            fprintf(report, "  in the cache: %s\n", program->file);
    } else if (rc == 0) {
        rc = compile(&n, &r, report, program, error);
        if (rc == 0 && cache)
            cubin_cache_keep(cache, name, program);
        if (rc == 0 && report && !program->keep_errno)
            fprintf(report, cache ? "  written to %s\n" : "  not kept\n", program->file);
    }
    /* NVRTC stays loaded: it leaves memory behind when it is closed */
    memcpy(program->piece_of, r.piece_of, sizeof r.piece_of);
    return program->count ? 0 : rc;
}
