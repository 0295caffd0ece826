/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - attnctl replay: a journal is run again.
 *
 *     replay --check PATH     by the daemon's own program, through its scheduler, without computing: every id and count
 *     replay FILE             by a daemon, through its HTTP API: statuses, lengths, sharing; and outputs, by two daemons */
#include "clients/answer.h"
#include "clients/commands.h"
#include "clients/journal_lines.h"
#include "clients/own_daemon.h"
#include "clients/replay_run.h"
#include "clients/terminal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GEOMETRY_BYTES = 256, PATIENCE_S = 10, PATIENCE_MOST_S = 86400 };

/* ---- --check --------------------------------------------------------------------------------------- */

static int check(const struct command *c)
{
    const char *binary = command_option(c, "attnd");
    char beside[PATH_MAX];
    binary = binary ? binary : own_daemon_binary(beside);
    execlp(binary, "attnd", "--replay-check", command_option(c, "check"), (char *)NULL);
    fprintf(stderr, "attnctl: replay: %s: %s\n", binary, strerror(errno));
    return EXIT_UNAVAILABLE;
}

/* ---- against daemons ------------------------------------------------------------------------------- */

/* A geometry in words; of /v1/info, or of a journal's first record. */
static const char *describe(const cJSON *of, char text[GEOMETRY_BYTES])
{
    const cJSON *g = answer_at(of, "geometry");
    snprintf(text, GEOMETRY_BYTES,
             "%.0f layers, %.0f query heads, %.0f KV heads of %.0f, blocks of %.0f tokens, %s, KV %s",
             answer_number(g, "layers"), answer_number(g, "query_heads"), answer_number(g, "kv_heads"),
             answer_number(g, "head_dim"), answer_number(g, "block_size"), answer_text(g, "dtype"),
             answer_text(g, "kv_dtype"));
    return text;
}

static void note(const char *url, const char *what, double here, double there)
{
    fputs("note: ", stdout);
    terminal_put(stdout, url);
    printf(" has %.0f %s, the journal's daemon had %.0f\n", here, what, there);
}

/* Look at one daemon before anything is sent; the exit code, and said why. */
static enum exit_code look_at(const struct command *c, struct replay_target *t, const cJSON *begin,
                              struct replay_judge *judge)
{
    char here[GEOMETRY_BYTES], there[GEOMETRY_BYTES];
    struct command asks = *c;
    cJSON *info = NULL, *stats = NULL;
    asks.client = t->client;
    asks.url = t->url;
    enum exit_code code = command_fetch(&asks, "GET", "/v1/info", NULL, &info);
    if (code == EXIT_OK)
        code = command_fetch(&asks, "GET", "/stats?limit=1", NULL, &stats);
    if (code == EXIT_OK && strcmp(describe(info, here), describe(begin, there)) != 0) {
        fputs("attnctl: replay: the geometry differs: the journal has ", stderr);
        terminal_put(stderr, there);
        fputs("; ", stderr);
        terminal_put(stderr, t->url);
        fputs(" has ", stderr);
        terminal_put(stderr, here);
        fputc('\n', stderr);
        code = EXIT_FAILED;
    }
    if (code == EXIT_OK) {
        snprintf(t->backend, sizeof t->backend, "%s %s", answer_text(info, "backend.name"),
                 answer_text(info, "backend.isa"));
        double blocks = answer_number(stats, "pool.blocks"), host = answer_number(stats, "pool.host_blocks");
        double blocks_there = answer_number(begin, "pool_blocks"),
               host_there = answer_number(begin, "host_blocks");
        double others = answer_number(stats, "sequences.count");
        if (blocks != blocks_there)
            note(t->url, "blocks", blocks, blocks_there);
        if (host != host_there)
            note(t->url, "host blocks", host, host_there);
        if (others > 0)
            note(t->url, "sequences already", others, 0);
        judge->smaller |= blocks < blocks_there || host < host_there;
        judge->larger |= blocks > blocks_there || host > host_there;
        judge->uncountable |= others > 0;
    }
    cJSON_Delete(info);
    cJSON_Delete(stats);
    return code;
}

/* All of it, once the first record is read. */
static enum exit_code run(const struct command *c, struct replay_options *o, struct journal_lines *lines,
                          const cJSON *begin)
{
    char text[GEOMETRY_BYTES];
    struct replay_world world = {.workload_s = answer_number(begin, "settings.limits.workload_s")};
    struct replay_judge judge = {
        .world = &world, .targets = o->target_count, .shows_all = command_option(c, "all") != NULL};
    if (!command_number(c, "tolerance", 0, 1e30, &judge.tolerance))
        return EXIT_USAGE;
    enum exit_code code = EXIT_OK;
    for (unsigned t = 0; code == EXIT_OK && t < o->target_count; t++) {
        judge.urls[t] = o->targets[t].url;
        code = look_at(c, &o->targets[t], begin, &judge);
    }
    if (code == EXIT_OK)
        code = model_fetch(c, &world.model);
    if (code != EXIT_OK)
        return code;
    if (o->target_count > 1 && strcmp(o->targets[0].backend, o->targets[1].backend) != 0) {
        fputs("note: they compute by ", stdout);
        terminal_put(stdout, o->targets[0].backend);
        fputs(" and ", stdout);
        terminal_put(stdout, o->targets[1].backend);
        puts(": the same bits are promised of one instruction set (--tolerance X)");
    }
    printf("journal of attnd %s: %s\n", answer_text(begin, "version"), describe(begin, text));
    puts("note: q, k and v are made up from the digests of the journal");
    if (!cJSON_IsTrue(answer_at(begin, "token_ids_are_plain")))
        puts("note: ids of tokens, and salts, are hashes: equal where they were equal");
    fflush(stdout);
    terminal_watch_signals();
    bool there = replay_run(o, lines, &world, &judge);
    bool interrupted = terminal_interrupted();
    replay_judge_show(&judge);
    puts(replay_judge_differs(&judge) ? "differs"
         : interrupted                ? "interrupted"
         : there                      ? "ok"
                                      : "ended early");
    replay_world_free(&world);
    return replay_judge_differs(&judge) ? EXIT_FAILED
           : interrupted                ? EXIT_INTERRUPTED
           : there                      ? EXIT_OK
                                        : EXIT_UNAVAILABLE;
}

static int replay_file(const struct command *c, struct replay_options *o)
{
    struct journal_lines lines;
    if (!journal_lines_open(&lines, command_option(c, "attnd"), c->argv[0]))
        return EXIT_UNAVAILABLE;
    cJSON *begin = journal_lines_next(&lines);
    enum exit_code code = EXIT_UNAVAILABLE;
    bool begun = strcmp(answer_text(begin, "kind"), "begin") == 0;
    if (begun)
        code = run(c, o, &lines, begin);
    if (begun && lines.torn)
        puts("note: the last file ends within a record, which was left out");
    if (!journal_lines_close(&lines) || !begun)
        code = code == EXIT_FAILED ? code : EXIT_UNAVAILABLE;
    cJSON_Delete(begin);
    return code;
}

static int replay(const struct command *c)
{
    const char *beside = command_option(c, "beside"), *key_file = command_option(c, "beside-key-file");
    uint64_t patience = PATIENCE_S;
    char *key = NULL;
    if (!command_integer(c, "patience", 1, PATIENCE_MOST_S, &patience))
        return EXIT_USAGE;
    if (command_option(c, "check")) {
        if (c->argc == 0 && !beside && !key_file && !command_option(c, "all"))
            return check(c);
        return command_usage("replay --check PATH computes nothing, and takes no FILE and no daemon");
    }
    if (command_option(c, "tolerance") && !beside)
        return command_usage("--tolerance goes with --beside URL");
    if (c->argc == 0)
        return command_usage("replay wants a journal: FILE for a daemon, or --check PATH");
    if (key_file && !beside)
        return command_usage("--beside-key-file goes with --beside URL");
    if (beside && !command_check_url("--beside", beside))
        return EXIT_USAGE;
    if (key_file && !(key = command_read_key(key_file)))
        return EXIT_USAGE;
    struct replay_options o = {.targets = {{.url = c->url, .key = c->key, .client = c->client}},
                               .ca_file = c->ca_file,
                               .target_count = 1,
                               .patience_s = (double)patience};
    if (beside) {
        o.target_count = 2;
        o.targets[1] = (struct replay_target){.url = beside, .key = key ? key : c->key};
        o.targets[1].client = http_client_create(beside, o.targets[1].key, c->ca_file);
    }
    int code = beside && !o.targets[1].client ? command_usage("out of memory") : replay_file(c, &o);
    http_client_destroy(o.targets[1].client);
    free(key);
    return code;
}

static const struct command_option options[] = {
    {"check", "PATH", "without a daemon: a journal's folder, or a file of it"},
    {"beside", "URL", "send the same here, and compare outputs bit by bit"},
    {"beside-key-file", "FILE", "the key for that daemon (the same one)"},
    {"tolerance", "X", "outputs may differ by so much (0: not by a bit)"},
    {"patience", "SECONDS", "for an answer that was recorded before (10)"},
    {"all", NULL, "show every difference, and what is explained"},
    {"attnd", "PROGRAM", "the daemon's program; else the one beside this one"},
    {NULL, NULL, NULL},
};

static const struct command_verb verbs[] = {
    {"", "[FILE]", 0, 1, "send a journal's requests to a daemon, in their order, and compare", replay},
    {NULL, NULL, 0, 0, NULL, NULL},
};

const struct command_info replay_info = {
    .name = "replay",
    .text = "run a journal again and compare",
    .verbs = verbs,
    .options = options,
    .more = "FILE is a journal's folder (its latest run), or a file of it. The daemon\n"
            "should be fresh, and of the journal's geometry. Tensors are not in a journal:\n"
            "they are made up from its digests, the same for what was the same. Compared\n"
            "are the status of each answer, the lengths of sequences, and counts of held\n"
            "and shared blocks. What cannot be sent, or the same, is counted by reason.\n"
            "\n"
            "Exit code 0: all is as it was recorded. 1: the first difference is named.\n"
            "69: a daemon does not answer, or a file is damaged or missing; where, is said.\n",
    .text_only = true,
};
