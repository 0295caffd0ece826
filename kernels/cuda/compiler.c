/* compiler.c - see compiler.h.
 *
 * A file of the cache is named ARCH-HASH-nvrtcMAJOR.MINOR.cubin and holds a header and the machine
 * code:
 *
 *   "attndcub"   size (u64)   XXH3 of the code (128 bits)   code
 *
 * It is written under another name and renamed, so it is there whole or not at all. Where there is no
 * NVRTC, a file of any compiler version will do. */
#include "kernels/cuda/compiler.h"

#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/sources.h"

#include <nvrtc.h>
#include <xxhash.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    OPTIONS_MAX = 32,
    OPTION_BYTES = 64,
    FOLDER_BYTES = 1024,
    NAME_BYTES = 256,
    PATH_BYTES = FOLDER_BYTES + 2 * NAME_BYTES,
    FIRST_TENSOR_CORE_ARCH = 80, /* with bf16 and cp.async */
    WARPGROUP_ARCH = 90,         /* that has wgmma */
    FIRST_CLUSTER_ARCH = 90,
    FIRST_TMA_ARCH = 90,
    LAST_TMA_ARCH = 119, /* from sm_120 on the kernels would use local memory (NVRTC 13.0) */
    TMA_ALIGNMENT = 16,  /* of rows, in bytes */
    TMA_BLOCK_MIN = 8,   /* smaller blocks would be too many boxes */
    CUBIN_BYTES_MAX = 64 << 20
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

_Static_assert((int)PATH_BYTES <= (int)CUDA_CUBIN_PATH_BYTES, "a file's name fits");

struct nvrtc {
    void *library;
    int major, minor;
#define XX(function) __typeof__(function) *function;
    NVRTC_SYMBOLS(XX)
#undef XX
};

struct cubin_header {
    char magic[8];
    uint64_t size;
    XXH128_canonical_t hash;
};

static const char MAGIC[8] = {'a', 't', 't', 'n', 'd', 'c', 'u', 'b'};

/* What is compiled, and with what. */
struct request {
    const struct geometry *g;
    const struct cuda_target *target;
    char options[OPTIONS_MAX][OPTION_BYTES];
    int option_count;
    XXH128_hash_t hash; /* of sources and options */
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

bool cuda_has_clusters(const struct cuda_target *target)
{
    return arch_of(target) >= FIRST_CLUSTER_ARCH;
}

bool cuda_uses_tma(const struct geometry *g, const struct cuda_target *target)
{
    bool whole = TILE_TOKENS % g->block_size == 0 || g->block_size % TILE_TOKENS == 0;
    int arch = arch_of(target);
    return arch >= FIRST_TMA_ARCH && arch <= LAST_TMA_ARCH && whole && g->block_size >= TMA_BLOCK_MIN &&
           g->head_dim * dtype_bytes(g->kv_dtype) % TMA_ALIGNMENT == 0;
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
        snprintf(error, CUDA_COMPILER_ERROR_BYTES,
                 "no NVRTC to compile kernels with: libnvrtc.so.13 or .12 is neither on the library "
                 "path nor under /usr/local/cuda, and the cache has none compiled");
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

static void make_request(struct request *r, const struct geometry *g, const struct cuda_target *target)
{
    static const char *const dtypes[] = {"DTYPE_F32", "DTYPE_F16", "DTYPE_BF16", "DTYPE_E4M3", "DTYPE_E5M2"};
    static const char *const layouts[] = {"LAYOUT_HND", "LAYOUT_NHD", "LAYOUT_VLLM"};
    *r = (struct request){.g = g, .target = target};
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
    add_option(r, "-DCOLUMNS_MAX=%u", cuda_columns_max(g, target));
    add_option(r, "-DTMA=%d", cuda_uses_tma(g, target));
    add_option(r, "-DWGMMA=%d", cuda_uses_warpgroups(g, target));
    add_option(r, "-DPAGED=%d", g->layout == LAYOUT_VLLM);
    if (g->layout == LAYOUT_VLLM) {
        add_option(r, "-DSPARSE_VERT_STRIDE=%u", g->sparse.vert_stride);
        add_option(r, "-DSPARSE_LOCAL_BLOCKS=%u", g->sparse.local_blocks);
        add_option(r, "-DSPARSE_BLOCK_SIZE=%u", g->sparse.block_size);
        add_option(r, "-DSPARSE_HEAD_STEP=%d", (int)g->sparse.head_sliding_step);
        add_option(r, "-DSPARSE_TP_RANK=%u", g->sparse.tp_rank);
    }
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        abort();
    XXH3_128bits_reset(state);
    for (int i = 0; cuda_source_texts[i]; i++)
        XXH3_128bits_update(state, cuda_source_texts[i], strlen(cuda_source_texts[i]) + 1);
    for (int i = 0; i < r->option_count; i++)
        XXH3_128bits_update(state, r->options[i], strlen(r->options[i]) + 1);
    r->hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
}

/* The first line of a compiler's log that is an error. */
static void first_error(const char *log, char error[CUDA_COMPILER_ERROR_BYTES])
{
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n')
        at--;
    snprintf(error, CUDA_COMPILER_ERROR_BYTES, "the kernels do not compile: %.*s",
             at ? (int)strcspn(at, "\n") : 0, at ? at : "");
}

/* Read what ptxas says of each kernel. */
static void read_report(const char *log, FILE *report, struct cuda_cubin *cubin)
{
    static const char entry[] = "Compiling entry function '";
    char kernel[64];
    for (const char *at = strstr(log, entry); at; at = strstr(at, entry)) {
        unsigned stack = 0, stores = 0, loads = 0, registers = 0;
        at += strlen(entry);
        snprintf(kernel, sizeof kernel, "%.*s", (int)strcspn(at, "'"), at);
        const char *end = strstr(at, entry), *frame = strstr(at, "bytes stack frame"),
                   *used = strstr(at, "Used ");
        while (frame && frame > at && (frame[-1] == ' ' || (frame[-1] >= '0' && frame[-1] <= '9')))
            frame--;
        if (!frame || !used || (end && (frame > end || used > end)) ||
            sscanf(frame, "%u bytes stack frame, %u bytes spill stores, %u bytes spill loads", &stack,
                   &stores, &loads) != 3 ||
            sscanf(used, "Used %u registers", &registers) != 1)
            continue;
        if (report)
            fprintf(report, "  %-14s %3u registers, %u bytes of stack, %u spilled\n", kernel, registers,
                    stack, stores);
        bool attention = strncmp(kernel, "attend", 6) == 0 || strncmp(kernel, "merge", 5) == 0 ||
                         strncmp(kernel, "paged", 5) == 0;
        if (attention && (stack || stores || loads))
            snprintf(cubin->uses_local_memory, sizeof cubin->uses_local_memory, "%s", kernel);
    }
}

static int compile(const struct nvrtc *n, const struct request *r, FILE *report, struct cuda_cubin *cubin,
                   char error[CUDA_COMPILER_ERROR_BYTES])
{
    nvrtcProgram program;
    const char *options[OPTIONS_MAX + 1];
    int headers = 0, rc = ATTND_INTERNAL;
    size_t log_bytes = 0;
    char *log = NULL;
    snprintf(error, CUDA_COMPILER_ERROR_BYTES, "NVRTC %d.%d fails without a word", n->major, n->minor);
    while (cuda_source_names[headers + 1])
        headers++;
    for (int i = 0; i < r->option_count; i++)
        options[i] = r->options[i];
    if (n->nvrtcCreateProgram(&program, cuda_source_texts[0], cuda_source_names[0], headers,
                              cuda_source_texts + 1, cuda_source_names + 1) != NVRTC_SUCCESS)
        return rc;
    /* on all processors, where this NVRTC can: the same code for attention, a quarter sooner on two */
    options[r->option_count] = "--split-compile=0";
    nvrtcResult result = n->nvrtcCompileProgram(program, r->option_count + 1, options);
    if (result == NVRTC_ERROR_INVALID_OPTION)
        result = n->nvrtcCompileProgram(program, r->option_count, options);
    if (n->nvrtcGetProgramLogSize(program, &log_bytes) != NVRTC_SUCCESS ||
        !(log = calloc(1, log_bytes + 1)) || n->nvrtcGetProgramLog(program, log) != NVRTC_SUCCESS)
        goto out;
    if (result != NVRTC_SUCCESS) {
        first_error(log, error);
        goto out;
    }
    read_report(log, report, cubin);
    if (n->nvrtcGetCUBINSize(program, &cubin->size) != NVRTC_SUCCESS || !(cubin->bytes = malloc(cubin->size)))
        goto out;
    if (n->nvrtcGetCUBIN(program, cubin->bytes) == NVRTC_SUCCESS) {
        rc = 0;
    } else {
        free(cubin->bytes);
        cubin->bytes = NULL;
    }
out:
    free(log);
    n->nvrtcDestroyProgram(&program);
    return rc;
}

/* ---- the cache ----------------------------------------------------------------------------------- */

/* The part of a file's name that does not say which compiler made it. */
static void stem_of(const struct request *r, char stem[NAME_BYTES])
{
    snprintf(stem, NAME_BYTES, "%s-%016llx%016llx-nvrtc", r->target->arch, (unsigned long long)r->hash.high64,
             (unsigned long long)r->hash.low64);
}

static bool read_file(const char *path, struct cuda_cubin *cubin)
{
    struct cubin_header header;
    FILE *f = fopen(path, "rb");
    bool ok = false;
    if (!f)
        return false;
    if (fread(&header, sizeof header, 1, f) == 1 && memcmp(header.magic, MAGIC, sizeof MAGIC) == 0 &&
        header.size > 0 && header.size <= CUBIN_BYTES_MAX && (cubin->bytes = malloc(header.size))) {
        cubin->size = header.size;
        XXH128_canonical_t hash;
        ok = fread(cubin->bytes, header.size, 1, f) == 1 && fgetc(f) == EOF;
        if (ok) {
            XXH128_canonicalFromHash(&hash, XXH3_128bits(cubin->bytes, cubin->size));
            ok = memcmp(&hash, &header.hash, sizeof hash) == 0;
        }
    }
    fclose(f);
    if (!ok) {
        free(cubin->bytes);
        *cubin = (struct cuda_cubin){0};
    }
    if (ok)
        snprintf(cubin->file, sizeof cubin->file, "%s", path);
    return ok;
}

/* Look for a file of this compiler, or, without one, of any. */
static bool find_cached(const struct request *r, const char *cache, const struct nvrtc *n,
                        struct cuda_cubin *cubin)
{
    char stem[NAME_BYTES], path[PATH_BYTES];
    bool found = false;
    stem_of(r, stem);
    if (n) {
        snprintf(path, sizeof path, "%.*s/%s%d.%d.cubin", FOLDER_BYTES - 1, cache, stem, n->major, n->minor);
        return read_file(path, cubin);
    }
    DIR *folder = opendir(cache);
    const struct dirent *entry;
    while (folder && !found && (entry = readdir(folder))) {
        if (strncmp(entry->d_name, stem, strlen(stem)) != 0)
            continue;
        snprintf(path, sizeof path, "%.*s/%s", FOLDER_BYTES - 1, cache, entry->d_name);
        found = read_file(path, cubin);
    }
    if (folder)
        closedir(folder);
    return found;
}

/* Make a folder and those above it. */
static void make_folders(const char *path)
{
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        (void)mkdir(part, 0755); /* what is missing in the end shows when the file is written */
        *at = '/';
    }
    (void)mkdir(part, 0755);
}

/* Keep it; a cache that cannot be written to is no error, only slow. */
static void keep(const struct request *r, const char *cache, const struct nvrtc *n, struct cuda_cubin *cubin)
{
    char stem[NAME_BYTES], path[PATH_BYTES], temporary[PATH_BYTES + 16];
    struct cubin_header header = {.size = cubin->size};
    memcpy(header.magic, MAGIC, sizeof MAGIC);
    XXH128_canonicalFromHash(&header.hash, XXH3_128bits(cubin->bytes, cubin->size));
    stem_of(r, stem);
    make_folders(cache);
    snprintf(path, sizeof path, "%.*s/%s%d.%d.cubin", FOLDER_BYTES - 1, cache, stem, n->major, n->minor);
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    snprintf(cubin->file, sizeof cubin->file, "%s", path);
    errno = 0;
    FILE *f = fopen(temporary, "wb");
    bool ok = f && fwrite(&header, sizeof header, 1, f) == 1 && fwrite(cubin->bytes, cubin->size, 1, f) == 1;
    ok = (!f || fclose(f) == 0) && ok && rename(temporary, path) == 0;
    if (ok)
        return;
    cubin->keep_errno = errno ? errno : EIO;
    (void)unlink(temporary);
}

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
                 struct cuda_cubin *cubin, char error[CUDA_COMPILER_ERROR_BYTES])
{
    struct request r;
    struct nvrtc n;
    char folder[FOLDER_BYTES];
    cache = cache_folder(cache, folder);
    make_request(&r, g, target);
    *cubin = (struct cuda_cubin){0};
    int rc = open_nvrtc(&n, error);
    if (cache && find_cached(&r, cache, rc == 0 ? &n : NULL, cubin)) {
        if (report)
            fprintf(report, "  in the cache: %s\n", cubin->file);
    } else if (rc == 0) {
        rc = compile(&n, &r, report, cubin, error);
        if (rc == 0 && cache)
            keep(&r, cache, &n, cubin);
        if (rc == 0 && report && !cubin->keep_errno)
            fprintf(report, cache ? "  written to %s\n" : "  not kept\n", cubin->file);
    }
    /* NVRTC stays loaded: it leaves memory behind when it is closed */
    return cubin->bytes ? 0 : rc;
}
