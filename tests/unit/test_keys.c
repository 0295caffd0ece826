/* SPDX-License-Identifier: Apache-2.0 */
/* test_keys.c - keys files: what is read, what is refused, and what reading one again changes. */
#include "server/keys.h"
#include "tests/unit/suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* SHA-256 of "abc" and of the empty text (FIPS 180-4). */
#define ABC                     "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define EMPTY                   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define KEY(name, digest, more) "{\"name\": \"" name "\", \"sha256\": \"" digest "\", \"scopes\": [" more "}"

static char path[64] = "/tmp/attnd-keys-XXXXXX";

static void write_file(const char *text, unsigned mode)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void make_file(void)
{
    strcpy(path, "/tmp/attnd-keys-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static void remove_file(void)
{
    unlink(path);
}

START_TEST(reads_keys)
{
    struct keys *keys;
    char reason[KEYS_REASON_BYTES];
    write_file("{\"keys\": [ // people\n" KEY(
                   "a.b-c_1", ABC,
                   "\"infer\", \"keep\"], \"weight\": 3, \"quotas\": {\"calls\": 2, "
                   "\"staging_bytes\": 5000000000}") "," KEY("root", EMPTY, "\"admin\"]") "]}",
               0600);
    ck_assert_msg(keys_load(path, &keys, reason) == 0, "%s", reason);
    struct api_key *key = keys_find(keys, "abc", 3), *root = keys_find(keys, "", 0);
    ck_assert(key && root && key != root && keys_count(keys) == 2);
    ck_assert_str_eq(key->name, "a.b-c_1");
    ck_assert_uint_eq(key->scopes, SCOPE_INFER | SCOPE_READ | SCOPE_KEEP);
    ck_assert_uint_eq(root->scopes, SCOPE_ADMIN | SCOPE_INFER | SCOPE_READ | SCOPE_KEEP);
    ck_assert(key->weight == 3 && root->weight == 1);
    ck_assert(key->quotas.calls == 2 && key->quotas.of_engine.sequences == 0);
    ck_assert_uint_eq(key->quotas.staging_bytes, UINT64_C(5000000000));
    ck_assert(key->id != root->id && key->id != keys_anonymous(keys)->id);
    ck_assert_ptr_null(keys_find(keys, "abcd", 4));
    ck_assert_ptr_null(keys_find(keys, "ab", 2));
    ck_assert(keys_with_id(keys, key->id) == key && keys_with_id(keys, root->id) == root);
    ck_assert(!keys_with_id(keys, 0) && !keys_with_id(keys, UINT64_MAX) && !keys_with_id(keys, key->id + 1));
    keys_destroy(keys);
}
END_TEST

START_TEST(reading_again_keeps_and_ends)
{
    struct keys *keys;
    char reason[KEYS_REASON_BYTES];
    write_file("{\"keys\": [" KEY("a", ABC, "\"infer\"]") "," KEY("b", EMPTY, "\"read\"]") "]}", 0640);
    ck_assert_int_eq(keys_load(path, &keys, reason), 0);
    struct api_key *a = keys_find(keys, "abc", 3), *b = keys_find(keys, "", 0);
    uint64_t id = a->id;
    a->use.calls = 7;
    write_file("{\"keys\": [" KEY("a", ABC, "\"read\"]") "]}", 0600);
    ck_assert_int_eq(keys_reload(keys, reason), 0);
    ck_assert(keys_find(keys, "abc", 3) == a && a->id == id && a->use.calls == 7 && a->scopes == SCOPE_READ);
    ck_assert(b->gone && !a->gone && keys_find(keys, "", 0) == NULL && keys_count(keys) == 1);
    ck_assert(keys_with_id(keys, id) == a && keys_with_id(keys, b->id) == b); /* not all is removed yet */
    write_file("{\"keys\": [", 0600);
    ck_assert_int_ne(keys_reload(keys, reason), 0);
    ck_assert_ptr_eq(keys_find(keys, "abc", 3), a); /* as it was */
    write_file("{\"keys\": [" KEY("b", EMPTY, "\"read\"]") "]}", 0600);
    ck_assert_int_eq(keys_reload(keys, reason), 0);
    ck_assert(keys_find(keys, "", 0) == b && !b->gone && a->gone); /* the same key, back again */
    keys_destroy(keys);
}
END_TEST

/* A key gets another secret, and clients change from one to the other while both open. */
START_TEST(a_key_is_its_name)
{
    struct keys *keys;
    char reason[KEYS_REASON_BYTES];
    write_file("{\"keys\": [" KEY("a", ABC, "\"read\"]") "]}", 0600);
    ck_assert_int_eq(keys_load(path, &keys, reason), 0);
    struct api_key *a = keys_find(keys, "abc", 3);
    uint64_t id = a->id;
    write_file("{\"keys\": [{\"name\": \"a\", \"sha256\": [\"" ABC "\", \"" EMPTY
               "\"], \"scopes\": [\"read\"]}]}",
               0600);
    ck_assert_int_eq(keys_reload(keys, reason), 0);
    ck_assert(keys_find(keys, "abc", 3) == a && keys_find(keys, "", 0) == a && keys_count(keys) == 1);
    write_file("{\"keys\": [" KEY("a", EMPTY, "\"read\"]") "]}", 0600);
    ck_assert_int_eq(keys_reload(keys, reason), 0);
    ck_assert(keys_find(keys, "", 0) == a && a->id == id && keys_find(keys, "abc", 3) == NULL);
    write_file("{\"keys\": [" KEY("other", EMPTY, "\"read\"]") "]}", 0600);
    ck_assert_int_eq(keys_reload(keys, reason), 0);
    ck_assert(a->gone && keys_find(keys, "", 0) != a && keys_find(keys, "", 0)->id != id);
    keys_destroy(keys);
}
END_TEST

static const struct {
    const char *text;
    unsigned mode;
    const char *reason;
} wrong[] = {
    {"", 0600, "is empty"},
    {"{\"keys\": [{\"name\": \"a\", \"sha256\": [], \"scopes\": [\"read\"]}]}", 0600,
     "key \"a\": sha256: has 0 digests: wants 1 to 4"},
    {"{\"keys\": [{\"name\": \"a\", \"sha256\": [1, 2, 3, 4, 5], \"scopes\": [\"read\"]}]}", 0600,
     "key \"a\": sha256: has 5 digests: wants 1 to 4"},
    {"{\"keys\": [{\"name\": \"a\", \"sha256\": 7, \"scopes\": [\"read\"]}]}", 0600,
     "key \"a\": sha256: wants 64 hex digits"},
    {"{\"keys\": [{\"name\": \"a\", \"sha256\": [\"" ABC "\", 7], \"scopes\": [\"read\"]}]}", 0600,
     "key \"a\": sha256: wants 64 hex digits"},
    {"{\"keys\": []}", 0644, "its mode is 0644: others can read or change it (chmod 600)"},
    {"{\"keys\": []}", 0620, "its mode is 0620: others can read or change it (chmod 600)"},
    {"{\"keys\": [}", 0600, "line 1, column 11: "},
    {"[]", 0600, "wants {\"keys\": [...]}"},
    {"{\"keys\": [], \"x\": 1}", 0600, "wants {\"keys\": [...]}"},
    {"{\"keys\": [7]}", 0600, "keys[0]: wants an object"},
    {"{\"keys\": [" KEY("", ABC, "\"read\"]") "]}", 0600, "keys[0]: wants a name"},
    {"{\"keys\": [" KEY("a b", ABC, "\"read\"]") "]}", 0600, "keys[0]: wants a name"},
    {"{\"keys\": [" KEY("a", "12", "\"read\"]") "]}", 0600, "key \"a\": sha256: wants 64 hex digits"},
    {"{\"keys\": [" KEY("a", ABC, "]") "]}", 0600,
     "key \"a\": scopes: wants some of read, infer, admin, keep"},
    {"{\"keys\": [" KEY("a", ABC, "\"write\"]") "]}", 0600, "key \"a\": scopes: "},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"], \"weight\": 0") "]}", 0600,
     "key \"a\": weight: wants an integer in 1..1000"},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"], \"quota\": {}") "]}", 0600,
     "key \"a\": quota: there is no such member"},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"], \"quotas\": {\"x\": 1}") "]}", 0600,
     "key \"a\": quotas.x: there is no such quota"},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"], \"quotas\": {\"calls\": 0}") "]}", 0600,
     "key \"a\": quotas.calls: wants an integer"},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"]") "," KEY("a", EMPTY, "\"read\"]") "]}", 0600,
     "key \"a\": is there twice"},
    {"{\"keys\": [" KEY("a", ABC, "\"read\"]") "," KEY("b", ABC, "\"read\"]") "]}", 0600,
     "key \"b\": has the digest of \"a\""},
};

START_TEST(refuses_what_is_none)
{
    struct keys *keys;
    char reason[KEYS_REASON_BYTES], expected[256];
    write_file(wrong[_i].text, wrong[_i].mode);
    ck_assert_int_ne(keys_load(path, &keys, reason), 0);
    snprintf(expected, sizeof expected, "%s: %s", path, wrong[_i].reason);
    ck_assert_msg(strncmp(reason, expected, strlen(expected)) == 0, "%s", reason);
}
END_TEST

TCase *keys_case(void)
{
    TCase *tc = tcase_create("keys");
    tcase_add_checked_fixture(tc, make_file, remove_file);
    tcase_add_test(tc, reads_keys);
    tcase_add_test(tc, reading_again_keeps_and_ends);
    tcase_add_test(tc, a_key_is_its_name);
    tcase_add_loop_test(tc, refuses_what_is_none, 0, sizeof wrong / sizeof wrong[0]);
    return tc;
}
