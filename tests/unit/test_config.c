/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c - precedence of the four sources, and the sentence each kind of mistake gets. */
#include "config/config.h"
#include "tests/unit/suites.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Load from a file of `text` (NULL: none), one environment entry and one flag; NULL on success, else
 * the error. */
static const char *load(struct config *config, const char *text, const char *variable, const char *set)
{
    static char error[CONFIG_ERROR_BYTES];
    static char path[] = "/tmp/attnd-test-config.jsonc";
    char *environment[] = {variable ? strdup(variable) : NULL, NULL};
    const struct config_inputs inputs = {.file = text ? path : NULL,
                                         .sets = &set,
                                         .set_count = set != NULL,
                                         .environment = environment,
                                         .has_help = true};
    if (text) {
        FILE *f = fopen(path, "w");
        ck_assert_ptr_nonnull(f);
        fputs(text, f);
        fclose(f);
    }
    int rc = config_load(config, &inputs, error);
    free(environment[0]);
    unlink(path);
    return rc == 0 ? NULL : error;
}

START_TEST(a_text_is_what_a_file_would_be)
{
    struct config c;
    char error[CONFIG_ERROR_BYTES];
    struct config_inputs inputs = {.text = "{\"geometry\": {\"layers\": 5}} // five"};
    ck_assert_int_eq(config_load(&c, &inputs, error), 0);
    ck_assert_uint_eq(c.geometry.layers, 5);
    config_deinit(&c);
    inputs.text = "{\n  \"geometry\": {\"layers\": 0}}";
    ck_assert_int_ne(config_load(&c, &inputs, error), 0);
    ck_assert_int_eq(strncmp(error, "configuration:2:26: geometry.layers: ", 37), 0);
    inputs.text = "{\"layers\": 5}"; /* of a library, which has no --help */
    ck_assert_int_eq(config_load(&c, &inputs, error), ATTND_INVALID);
    ck_assert_str_eq(error, "configuration:1:12: layers: no such key; did you mean geometry.layers?");
}
END_TEST

START_TEST(stronger_sources_win)
{
    struct config c;
    const char *file = "{\"geometry\": {\"layers\": 5}} // five";
    ck_assert_ptr_null(load(&c, NULL, NULL, NULL));
    ck_assert_uint_eq(c.geometry.layers, 4);
    config_deinit(&c);
    ck_assert_ptr_null(load(&c, file, NULL, NULL));
    ck_assert_uint_eq(c.geometry.layers, 5);
    config_deinit(&c);
    ck_assert_ptr_null(load(&c, file, "ATTND_GEOMETRY__LAYERS=6", NULL));
    ck_assert_uint_eq(c.geometry.layers, 6);
    config_deinit(&c);
    ck_assert_ptr_null(load(&c, file, "ATTND_GEOMETRY__LAYERS=6", "geometry.layers=7"));
    ck_assert_uint_eq(c.geometry.layers, 7);
    config_deinit(&c);
    ck_assert_ptr_null(load(&c, file, "ATTND_PORT=tcp://a__b:8400", NULL)); /* Kubernetes sets it */
    config_deinit(&c);
}
END_TEST

static const struct {
    const char *file, *variable, *set, *error;
} mistakes[] = {
    {"{\n  \"geometry\": {\"leyers\": 3}\n}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:2:26: geometry.leyers: no such key; did you mean "
     "geometry.layers? (attnd --help lists the keys)"},
    {"{\"layers\": 3}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:12: layers: no such key; did you mean geometry.layers? (attnd --help "
     "lists the keys)"},
    {"{\"geometry\": {\"query_heads\": 6, \"kv_heads\": 4}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:30: geometry.query_heads: 6 is not a multiple of kv_heads (4)"},
    {"{\"geometry\": {\"layout\": \"vllm\", \"sinks\": 1}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:42: geometry.sinks: the kernels of the layout vllm know no sinks"},
    {"{\"geometry\": {\"head_dim\": 64.5}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:27: geometry.head_dim: wants an integer in 1..256"},
    {"{\"listen\": \"a\", \"listen\": \"b\"}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:17: member \"listen\" occurs twice"},
    {"{\"node\": 1, // one\n \"pool\": {\"blocks\": 64, \"memory\": 0,\n  \"blocks\": 65}, \"node\": 2}",
     NULL, NULL, "/tmp/attnd-test-config.jsonc:3:18: member \"node\" occurs twice"},
    {"{\"pool\": {\"blocks\": 64, \"memory\": 0,\n  \"blocks\": 65}, \"node\": 2}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:2:3: member \"blocks\" occurs twice"},
    {"{\"listen\" \"a\"}", NULL, NULL, "/tmp/attnd-test-config.jsonc:1:11: ':' was expected here"},
    {NULL, "ATTND_LIMITS__NOPE=1", NULL,
     "environment ATTND_LIMITS__NOPE: limits.nope: no such key (attnd --help lists the keys)"},
    {NULL, "ATTND_POOL__BLOKS=1", NULL,
     "environment ATTND_POOL__BLOKS: pool.bloks: no such key; did you mean pool.blocks? (attnd --help lists "
     "the keys)"},
    {NULL, NULL, "pool.block=64",
     "--set pool.block=64: pool.block: no such key; did you mean pool.blocks? (attnd --help lists the keys)"},
    {"# attnd\n\nA \"daemon\" /* that", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:1: this is no JSON: a configuration is one JSON object, with comments "
     "if "
     "wanted"},
    {"\n listen: 127.0.0.1:8400\n", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:2:2: this is no JSON: a configuration is one JSON object, with comments "
     "if "
     "wanted"},
    {NULL, NULL, "memory.bytes=1KiB",
     "--set memory.bytes=1KiB: memory.bytes: wants at least 64MiB, or 0: what is left after the start"},
    {NULL, NULL, "listen={\"addres\": \"127.0.0.1:1\"}",
     "--set listen={\"addres\": \"127.0.0.1:1\"}: listen: addres: no such member; did you mean address?"},
    {NULL, NULL, "listen={\"tls\": true}",
     "--set listen={\"tls\": true}: listen: tls: no such member; there are address, anonymous, "
     "proxy_protocol, "
     "mode and group"},
    {NULL, NULL, "listen=[\"127.0.0.1:8400\"",
     "--set listen=[\"127.0.0.1:8400\": listen: broken JSON at character 18: ',' or ']' was expected here"},
    {NULL, "ATTND_GEOMETRY__WINDOW=[1,2", NULL,
     "environment ATTND_GEOMETRY__WINDOW: geometry.window: broken JSON at character 5: ',' or ']' was "
     "expected here"},
    {NULL, NULL, "listen=8503",
     "--set listen=8503: listen: wants an address of at most 127 bytes, HOST:PORT, [HOST]:PORT, unix:PATH or "
     "fd:N, "
     "or an object with one"},
    {"{\"pool\": {\"blocks\": 64},\n \"geometri\": {}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:2:14: geometri: no such section; did you mean geometry? (attnd --help "
     "lists "
     "the keys)"},
    {"{\"geometri\": {\"layers\": 1}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:14: geometri: no such section; did you mean geometry? (attnd --help "
     "lists "
     "the keys)"},
    {"{\"nothing\": {}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:13: nothing: no such section (attnd --help lists the keys)"},
    {"{\"pool\": {\"blocks\": {}}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:21: pool.blocks: wants an integer in 1..2147483647"},
    {NULL, "ATTND_POOL__BLOCKS=many", NULL,
     "environment ATTND_POOL__BLOCKS=many: pool.blocks: wants an integer in 1..2147483647"},
    {NULL, NULL, "pool.blocks=64KiB",
     "--set pool.blocks=64KiB: pool.blocks: wants an integer in 1..2147483647"},
    {NULL, NULL, "pool.host_blocks=64k",
     "--set pool.host_blocks=64k: pool.host_blocks: wants an integer in 0..2147483647"},
    {NULL, NULL, "pool.file_blocks=1MiB",
     "--set pool.file_blocks=1MiB: pool.file_blocks: wants an integer in 0..2147483647"},
    {NULL, NULL, "pool.bytes=64k",
     "--set pool.bytes=64k: pool.bytes: wants a whole number, or one with KiB, MiB, GiB or TiB"},
    {NULL, NULL, "geometry.window=-1",
     "--set geometry.window=-1: geometry.window: wants an integer in 0..4294967295, or a list of these"},
    {NULL, NULL, "geometry.dtype=f64",
     "--set geometry.dtype=f64: geometry.dtype: wants one of \"f32\" \"f16\" \"bf16\""},
    {NULL, NULL, "geometry.dtype=e4m3",
     "--set geometry.dtype=e4m3: geometry.dtype: wants one of \"f32\" \"f16\" \"bf16\""},
    {NULL, NULL, "geometry.head_dim=12",
     "--set geometry.head_dim=12: geometry.head_dim: 12 is not a multiple of 8"},
    {NULL, NULL, "geometry.k_scale=2",
     "--set geometry.k_scale=2: geometry.k_scale: only fp8 has scales, and kv_dtype is bf16"},
    {NULL, NULL, "geometry.sinks=[1,2]",
     "--set geometry.sinks=[1,2]: geometry.sinks: wants false, a number, a list of 8 (or one such list "
     "per layer), "
     "or \"seeded\""},
    {NULL, NULL, "pool.bytes=100",
     "--set pool.bytes=100: pool.bytes: 0 blocks of 32768 bytes fit; wants 1..2147483647"},
    {"{\"pool\": {\"blocks\": 1, \"bytes\": 65536}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:33: pool.bytes: set pool.blocks or pool.bytes, not both"},
    {NULL, NULL, "pool.blocks", "--set pool.blocks: wants PATH=VALUE"},
    {"{\"events\": {\n\"zmq\": {\"endpoint\": \"tcp://127.0.0.1\"}}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:2:21: events.zmq.endpoint: tcp:// wants HOST:PORT or [HOST]:PORT; port *: "
     "any free one"},
    {"{\"events\": {\"zmq\": {\"endpoynt\": 1}}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:33: events.zmq.endpoynt: no such key; did you mean events.zmq.endpoint? "
     "(attnd --help lists the keys)"},
    {"{\"events\": {\"smq\": {}}}", NULL, NULL,
     "/tmp/attnd-test-config.jsonc:1:20: events.smq: no such section; did you mean events.zmq? (attnd --help "
     "lists the keys)"},
    {NULL, NULL, "events.zmq.replay=ipc:///tmp/a",
     "--set events.zmq.replay=ipc:///tmp/a: events.zmq.replay: nothing is published: events.zmq.endpoint is "
     "not set"},
    {"{\"events\": {\"zmq\": {\"endpoint\": \"ipc:///tmp/a\"}}}", NULL, "events.zmq.replay=ipc:///tmp/a",
     "--set events.zmq.replay=ipc:///tmp/a: events.zmq.replay: wants another path than events.zmq.endpoint"},
    {NULL, NULL, "events.zmq.token_ids=maybe",
     "--set events.zmq.token_ids=maybe: events.zmq.token_ids: wants one of \"off\" \"on\""},
};

START_TEST(mistakes_name_place_and_reason)
{
    struct config c;
    const char *error = load(&c, mistakes[_i].file, mistakes[_i].variable, mistakes[_i].set);
    ck_assert_ptr_nonnull(error);
    ck_assert_str_eq(error, mistakes[_i].error);
}
END_TEST

/* Events leave the machine for those only who have a key, and when that is wanted: both, or neither helps. */
START_TEST(events_have_token_ids)
{
    static const char *const remote[] = {"tcp://0.0.0.0:5557", "tcp://192.0.2.1:5557", "tcp://[::]:*",
                                         "tcp://[::ffff:127.0.0.1]:1"};
    static const char *const local[] = {"ipc:///run/attnd/events", "tcp://127.0.0.1:*",
                                        "tcp://127.9.0.1:5557", "tcp://[::1]:0"};
    static const char *const words[] = {"\"off\"", "\"on\"", "false", "true"};
    for (size_t i = 0; i < 4 * 4 * 2 * 2 * 2; i++) {
        bool is_remote = i & 1, replay = i >> 1 & 1, curve = i >> 2 & 1, on = i >> 3 & 1;
        const char *word = words[i >> 3 & 3], *address = (is_remote ? remote : local)[i >> 5 & 3];
        char text[512];
        struct config c;
        snprintf(text, sizeof text,
                 "{\"events\": {\"zmq\": {\"endpoint\": \"%s\", \"replay\": \"%s\", \"curve_file\": \"%s\", "
                 "\"token_ids\": %s}}}",
                 replay ? "ipc:///tmp/a" : address, replay ? address : "", curve ? "/etc/keys" : "", word);
        const char *error = load(&c, text, NULL, NULL);
        ck_assert_msg((error == NULL) == (!is_remote || (curve && on)), "%s: %s", text,
                      error ? error : "taken");
        if (error)
            ck_assert_msg(strstr(error, replay ? ": events.zmq.replay: events have the token ids"
                                               : ": events.zmq.endpoint: events have the token ids"),
                          "%s", error);
        else
            config_deinit(&c);
    }
}
END_TEST

/* What --print-config prints is a file that says the same. */
START_TEST(sections_within_sections_are_printed)
{
    struct config c, again;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    ck_assert_ptr_null(
        load(&c, "{\"events\": {\"zmq\": {\"topic\": \"kv\", \"salted\": true}}, \"node\": 3}", NULL, NULL));
    config_print(&c, out);
    fclose(out);
    ck_assert_ptr_nonnull(
        strstr(text, "\n  \"events\": {\n    \"zmq\": {\n      \"endpoint\": \"\", // default\n"));
    ck_assert_ptr_nonnull(strstr(text, "\n    }\n  },\n  \"log\": {\n"));
    ck_assert_msg(load(&again, text, NULL, NULL) == NULL, "%s", text);
    ck_assert_str_eq(again.events.topic, "kv");
    ck_assert_int_eq(again.events.salted, 1);
    ck_assert_uint_eq(again.node, 3);
    free(text);
    config_deinit(&c);
    config_deinit(&again);
}
END_TEST

START_TEST(constants_expand)
{
    struct config c;
    ck_assert_ptr_null(
        load(&c,
             "{\"geometry\": {\"layers\": 3, \"kv_dtype\": \"e4m3\", \"window\": [128, 0],"
             " \"k_scale\": [0.5, 2], \"v_scale\": \"seeded\", \"sinks\": 1.5, \"alibi\": \"seeded\"}}",
             NULL, NULL));
    ck_assert_uint_eq(c.geometry.window[0], 128);
    ck_assert_uint_eq(c.geometry.window[1], 0);
    ck_assert_uint_eq(c.geometry.window[2], 128);
    ck_assert_float_eq(c.constants.k_scale[2 * 2 + 1], 2.0F); /* a flat list holds for every layer */
    ck_assert_float_eq(c.constants.sinks[3 * 8 - 1], 1.5F);
    ck_assert_float_eq(c.constants.alibi[0], 0.5F);
    ck_assert_float_eq(c.constants.alibi[7], 1.0F / 256);
    for (int i = 0; i < 3 * 2; i++)
        ck_assert(c.constants.v_scale[i] >= 0.25F && c.constants.v_scale[i] <= 2.0F);
    config_deinit(&c);
}
END_TEST

/* Found in review: 2^29 + 1 blocks of 2^35 bytes wrapped around to 32 GiB and passed every check. */
START_TEST(bug_pool_bytes_wrapped_around)
{
    struct config c;
    const char *error = load(&c,
                             "{\"geometry\": {\"layers\": 256, \"query_heads\": 256, \"kv_heads\": 256,"
                             " \"head_dim\": 256, \"block_size\": 256, \"kv_dtype\": \"f32\"}}",
                             NULL, "pool.blocks=536870913");
    ck_assert_ptr_nonnull(error);
    ck_assert_str_eq(error,
                     "--set pool.blocks=536870913: pool.blocks: 536870913 blocks of 34359738368 bytes are "
                     "more than 1 PiB");
}
END_TEST

START_TEST(the_stronger_pool_key_counts)
{
    struct config c;
    ck_assert_ptr_null(load(&c, "{\"pool\": {\"blocks\": 10}}", NULL, "pool.bytes=1MiB"));
    ck_assert_uint_eq(c.pool_blocks, 32);
    ck_assert_uint_eq(c.pool_bytes, 1 << 20);
    config_deinit(&c);
}
END_TEST

/* What --print-config writes of `c`; the caller frees it. */
static char *printed(const struct config *c)
{
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    config_print(c, f);
    fclose(f);
    return text;
}

START_TEST(printed_configuration_loads_and_prints_the_same)
{
    struct config first, second;
    ck_assert_ptr_null(load(&first, NULL, NULL, "pool.bytes=1GiB"));
    char *text = printed(&first);
    ck_assert_ptr_null(load(&second, text, NULL, NULL));
    ck_assert_uint_eq(second.pool_blocks, first.pool_blocks);
    ck_assert_int_eq(memcmp(&second.geometry, &first.geometry, sizeof first.geometry), 0);
    free(text);
    config_deinit(&first);
    config_deinit(&second);
}
END_TEST

START_TEST(every_preset_loads)
{
    glob_t files;
    char error[CONFIG_ERROR_BYTES];
    struct config c, defaults;
    ck_assert_int_eq(glob("config/*.jsonc", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 7);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const struct config_inputs inputs = {.file = files.gl_pathv[i]};
        ck_assert_msg(config_load(&c, &inputs, error) == 0, "%s", error);
        if (strcmp(files.gl_pathv[i], "config/demo.jsonc") == 0) {
            ck_assert_ptr_null(load(&defaults, NULL, NULL, NULL));
            ck_assert_int_eq(memcmp(&c.geometry, &defaults.geometry, sizeof c.geometry), 0);
            ck_assert_uint_eq(c.pool_blocks, defaults.pool_blocks);
            ck_assert_str_eq(c.listeners[0].address, defaults.listeners[0].address);
            config_deinit(&defaults);
        }
        config_deinit(&c);
    }
    globfree(&files);
}
END_TEST

TCase *config_case(void)
{
    TCase *tc = tcase_create("config");
    tcase_add_test(tc, a_text_is_what_a_file_would_be);
    tcase_add_test(tc, stronger_sources_win);
    tcase_add_loop_test(tc, mistakes_name_place_and_reason, 0, sizeof mistakes / sizeof mistakes[0]);
    tcase_add_test(tc, events_have_token_ids);
    tcase_add_test(tc, sections_within_sections_are_printed);
    tcase_add_test(tc, constants_expand);
    tcase_add_test(tc, bug_pool_bytes_wrapped_around);
    tcase_add_test(tc, the_stronger_pool_key_counts);
    tcase_add_test(tc, printed_configuration_loads_and_prints_the_same);
    tcase_add_test(tc, every_preset_loads);
    return tc;
}
