/* SPDX-License-Identifier: Apache-2.0 */
/* test_snapshot.c - what is written is read back; whatever byte is damaged, nothing wrong is, and the sequences that it does not
 * touch still are. */
#include "server/snapshot.h"
#include "tests/unit/suites.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 2, DIM = 8, SEQUENCES = 3, TOKENS = 5, STEP = 2, ROW = LAYERS * DIM, FILE_MOST = 16384 };

static struct geometry g = {.layers = LAYERS,
                            .query_heads = 1,
                            .kv_heads = 1,
                            .head_dim = DIM,
                            .block_size = 4,
                            .dtype = DTYPE_F32,
                            .kv_dtype = DTYPE_F32};
static float sinks[LAYERS] = {1, 2};
static uint32_t prompt[] = {5, 6, 7};
static char folder[64];
static int dir;

static void set_up(void)
{
    strcpy(folder, "/tmp/attnd-snapshot-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(dir, 0);
}

static void tear_down(void)
{
    (void)unlinkat(dir, "snapshot", 0);
    ck_assert_int_eq(rmdir(folder), 0); /* no draft is left */
    close(dir);
}

/* Sequence n: n * 10 of them, of which the third shares the front of the first. */
static struct snapshot_sequence sequence(uint32_t n)
{
    return (struct snapshot_sequence){.id = 100 + n,
                                      .parent = n == 2 ? 100 : 0,
                                      .key = 7,
                                      .options = {n, -(int32_t)n, 60},
                                      .base = n == 2 ? 100 : 0,
                                      .shared = n == 2 ? 4 : 0,
                                      .length = TOKENS,
                                      .salt = "salt",
                                      .salt_bytes = 4,
                                      .prompt = prompt,
                                      .prompt_count = n == 1 ? 0 : 3};
}

static float value(uint32_t n, uint32_t token, uint32_t i)
{
    return (float)(n * 1000 + token * 100 + i);
}

static void fill(uint32_t n, uint32_t first, uint32_t end, float *k, float *v)
{
    for (uint32_t i = 0; i < (end - first) * ROW; i++) {
        k[i] = value(n, first, i);
        v[i] = -value(n, first, i);
    }
}

static void put_tokens(struct snapshot_writer *w, uint32_t n, uint32_t first, uint32_t end)
{
    char reason[SNAPSHOT_REASON_BYTES];
    float k[STEP * ROW], v[STEP * ROW];
    uint32_t ids[STEP] = {first, first + 1};
    const struct snapshot_tokens tokens = {first, end, end - first - (end == TOKENS), ids, k, v};
    fill(n, first, end, k, v);
    ck_assert_int_eq(snapshot_put(w, &tokens, reason), 0);
}

static void write_snapshot(void)
{
    struct model_constants constants = {.sinks = sinks};
    struct snapshot_head head = {.geometry = "two layers",
                                 .backend = "cpu x",
                                 .constants_digest = 42,
                                 .node = 3,
                                 .constants = &constants};
    char reason[SNAPSHOT_REASON_BYTES];
    struct snapshot_writer *w;
    ck_assert_int_eq(snapshot_create(dir, "snapshot", &head, &g, SEQUENCES + 1, &w, reason), 0);
    for (uint32_t n = 0; n < SEQUENCES; n++) {
        const struct snapshot_sequence q = sequence(n);
        ck_assert_int_eq(snapshot_begin(w, &q, reason), 0);
        put_tokens(w, n, q.shared, q.shared + 1);
        snapshot_drop(w); /* as if it had not been tried */
        ck_assert_int_eq(snapshot_begin(w, &q, reason), 0);
        for (uint32_t at = q.shared; at < TOKENS; at += STEP)
            put_tokens(w, n, at, at + STEP < TOKENS ? at + STEP : TOKENS);
        snapshot_end(w);
    }
    ck_assert_int_eq(snapshot_publish(w, reason), 0);
}

/* Whether the tokens that were read are those that were written. */
static bool right_tokens(uint32_t n, const struct snapshot_tokens *t)
{
    float k[STEP * ROW], v[STEP * ROW];
    size_t bytes = (t->end - t->first) * ROW * sizeof *k;
    fill(n, t->first, t->end, k, v);
    return t->end - t->first <= STEP && memcmp(k, t->k, bytes) == 0 && memcmp(v, t->v, bytes) == 0 &&
           t->id_count == t->end - t->first - (t->end == TOKENS) &&
           (t->id_count == 0 || t->ids[0] == t->first);
}

/* Read one sequence: 1 as it was written, 0 refused; anything else is wrong. */
static int read_one(struct snapshot_reader *r, uint32_t n)
{
    char reason[SNAPSHOT_REASON_BYTES];
    float k[STEP * ROW], v[STEP * ROW];
    uint32_t ids[STEP];
    struct snapshot_sequence q, wanted = sequence(n);
    struct snapshot_tokens t;
    if (snapshot_read(r, n, &q, reason) != 0)
        return 0;
    ck_assert_uint_eq(q.id, wanted.id);
    ck_assert_uint_eq(q.parent, wanted.parent);
    ck_assert_uint_eq(q.key, wanted.key);
    ck_assert_int_eq(memcmp(&q.options, &wanted.options, sizeof q.options), 0);
    ck_assert_uint_eq(q.base, wanted.base);
    ck_assert_uint_eq(q.shared, wanted.shared);
    ck_assert_uint_eq(q.length, wanted.length);
    ck_assert_uint_eq(q.salt_bytes, 4);
    ck_assert_int_eq(memcmp(q.salt, "salt", 4), 0);
    ck_assert_uint_eq(q.prompt_count, wanted.prompt_count);
    ck_assert_int_eq(memcmp(q.prompt, prompt, q.prompt_count * sizeof *prompt), 0);
    for (uint32_t at = q.shared;; at = t.end) {
        if (snapshot_next(r, STEP, ids, k, v, &t, reason) != 0)
            return 0;
        ck_assert_uint_eq(t.first, at);
        if (t.end == t.first)
            break;
        ck_assert(right_tokens(n, &t));
    }
    ck_assert_uint_eq(t.first, TOKENS);
    return 1;
}

START_TEST(what_is_written_is_read)
{
    char reason[SNAPSHOT_REASON_BYTES];
    struct snapshot_reader *r;
    struct stat status;
    write_snapshot();
    ck_assert_int_eq(fstatat(dir, "snapshot", &status, 0), 0);
    ck_assert_uint_eq(status.st_mode & 0777, 0600);
    ck_assert_int_eq(snapshot_open(openat(dir, "snapshot", O_RDONLY), &g, 3, &r, reason), 0);
    ck_assert_uint_eq(snapshot_count(r), SEQUENCES);
    ck_assert_str_eq(snapshot_head(r)->geometry, "two layers");
    ck_assert_str_eq(snapshot_head(r)->backend, "cpu x");
    ck_assert_uint_eq(snapshot_head(r)->constants_digest, 42);
    ck_assert_uint_eq(snapshot_head(r)->node, 3);
    ck_assert_int_eq(memcmp(snapshot_head(r)->constants->sinks, sinks, sizeof sinks), 0);
    ck_assert_ptr_null(snapshot_head(r)->constants->alibi);
    for (uint32_t n = SEQUENCES; n-- > 0;) /* in any order */
        ck_assert_int_eq(read_one(r, n), 1);
    snapshot_close(r);
    ck_assert_int_eq(snapshot_open(openat(dir, "snapshot", O_RDONLY), &g, 2, &r, reason), 0);
    struct snapshot_sequence q;
    ck_assert_int_eq(snapshot_read(r, 0, &q, reason), ATTND_INVALID); /* a prompt of 3 */
    snapshot_close(r);
}
END_TEST

/* Read what is in a file; how many sequences are as they were written, -1: it is refused. */
static int read_all(const uint8_t *bytes, size_t n)
{
    char reason[SNAPSHOT_REASON_BYTES];
    struct snapshot_reader *r;
    int fd = memfd_create("snapshot", MFD_CLOEXEC), good = 0;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, n), (ssize_t)n);
    if (snapshot_open(fd, &g, 3, &r, reason) != 0)
        return -1;
    for (uint32_t i = 0; i < snapshot_count(r); i++)
        good += read_one(r, i);
    snapshot_close(r);
    return good;
}

START_TEST(damage_is_found)
{
    static uint8_t bytes[FILE_MOST];
    uint32_t refused = 0, harmless = 0, partly = 0;
    write_snapshot();
    int fd = openat(dir, "snapshot", O_RDONLY);
    ssize_t n = read(fd, bytes, sizeof bytes);
    close(fd);
    ck_assert_int_gt(n, 4096);
    ck_assert_int_lt(n, FILE_MOST);
    ck_assert_int_eq(read_all(bytes, (size_t)n), SEQUENCES);
    for (ssize_t at = 0; at < n; at++) {
        bytes[at] ^= 0x10;
        int good = read_all(bytes, (size_t)n);
        bytes[at] ^= 0x10;
        refused += good < 0;
        harmless += good == SEQUENCES; /* in the room between the parts */
        partly += good >= 0 && good < SEQUENCES;
        if (good >= 0)
            ck_assert_int_ge(good, SEQUENCES - 1);
    }
    ck_assert_uint_gt(refused, 400);
    ck_assert_uint_gt(partly, 1000);
    ck_assert_uint_lt(harmless, 4096);
    for (ssize_t cut = 0; cut < n; cut++) /* a file that is shorter */
        ck_assert_int_lt(read_all(bytes, (size_t)cut), SEQUENCES);
}
END_TEST

START_TEST(a_draft_is_nothing)
{
    struct model_constants constants = {0};
    struct snapshot_head head = {.constants = &constants};
    char reason[SNAPSHOT_REASON_BYTES];
    struct snapshot_writer *w;
    write_snapshot();
    ck_assert_int_eq(snapshot_create(dir, "snapshot", &head, &g, 1, &w, reason), 0);
    struct snapshot_reader *r;
    ck_assert_int_eq(snapshot_open(openat(dir, "snapshot", O_RDONLY), &g, 3, &r, reason), 0);
    ck_assert_uint_eq(snapshot_count(r), SEQUENCES); /* the one before is there still */
    snapshot_close(r);
    snapshot_abandon(w);
}
END_TEST

TCase *snapshot_case(void)
{
    TCase *tc = tcase_create("snapshot");
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, what_is_written_is_read);
    tcase_add_test(tc, damage_is_found);
    tcase_add_test(tc, a_draft_is_nothing);
    return tc;
}
