/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - see options.h.
 *
 *   attnctl [OPTION]... COMMAND [VERB] [OPTION | OPERAND]...
 *
 * Options stand anywhere behind their command, as --name VALUE or --name=VALUE. "--" ends them; what begins with "-" and a
 * digit or a point is a number. getopt_long() would do, but takes -1 for an option and does not know which command it is for. */
#include "clients/options.h"
#include "clients/terminal.h"
#include "config/nearest.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { OPTION_COLUMNS = 25 };
enum { NAME_MOST = 32 };

/* ---- help ---------------------------------------------------------------------------------------- */

static void show_usage(FILE *f, const struct command_info *info, const struct command_verb *verb)
{
    fprintf(f, "attnctl %s%s%s%s%s", info->name, *verb->name ? " " : "", verb->name,
            *verb->operands ? " " : "", verb->operands);
}

void options_show_help(const struct command_info *info)
{
    char line[96];
    printf("attnctl %s - %s\n\n", info->name, info->text);
    for (const struct command_verb *verb = info->verbs; verb->name; verb++) {
        fputs(verb == info->verbs ? "usage: " : "       ", stdout);
        show_usage(stdout, info, verb);
        putchar('\n');
        if (verb->text)
            printf("           %s\n", verb->text);
    }
    for (const struct command_option *o = info->options; o && o->name; o++) {
        snprintf(line, sizeof line, "--%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("%s  %-24s%s%s\n", o == info->options ? "\n" : "", line,
               strlen(line) >= OPTION_COLUMNS ? "\n                           " : " ", o->text);
    }
    if (info->more)
        printf("\n%s\n", info->more);
    printf("\nOptions of every command: --url, --key-file, --ca-file, --node,%s --help.\n",
           info->text_only ? "" : " --json,");
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct reader {
    int argc, at;
    char **argv;
    struct command *c;
};

static enum options_result wrong(const struct command_info *info, const char *what, const char *written,
                                 const char *near)
{
    char hint[96] = "", more[64] = "";
    if (near)
        snprintf(hint, sizeof hint, "; did you mean %s?", near);
    if (info)
        snprintf(more, sizeof more, " (attnctl %s --help says what it takes)", info->name);
    if (!info) {
        command_usage("%s%s%s", what, written, hint);
        return OPTIONS_WRONG;
    }
    fprintf(stderr, "attnctl: %s", what);
    terminal_put(stderr, written);
    fprintf(stderr, "%s%s\n", hint, more);
    return OPTIONS_WRONG;
}

/* The value of the option at hand: behind "=" or in the next argument; NULL: there is none. */
static const char *value_of(struct reader *r, const char *equals)
{
    if (equals)
        return equals + 1;
    return r->at + 1 < r->argc ? r->argv[++r->at] : NULL;
}

/* The verb of a command, among those that may be meant, that has NAME among its operands ("ID [COUNT]"), where that is not the value of an
 * option; NULL: none has. */
static const struct command_verb *verb_with_operand(const struct command *c, const char *name)
{
    for (const struct command_verb *verb = c->info ? c->info->verbs : NULL; verb && verb->name; verb++) {
        bool is_value = false;
        if (*verb->name && c->argc > 0 && strcmp(verb->name, c->argv[0]) != 0)
            continue;
        for (const char *word = verb->operands; *word;) {
            size_t n = strcspn(word, " []|");
            if (n > 1 && !is_value && n == strlen(name) && strncasecmp(word, name, n) == 0)
                return verb;
            if (n > 0)
                is_value = word[0] == '-';
            word += n + (word[n] != '\0');
        }
    }
    return NULL;
}

/* "seq has no option --count; COUNT is an operand: attnctl seq fork ID [COUNT]" */
static enum options_result say_operand(const struct command_info *info, const struct command_verb *verb,
                                       const char *name)
{
    fprintf(stderr, "attnctl: %s has no option --%s; ", info->name, name);
    for (const char *s = name; *s; s++)
        fputc(toupper((unsigned char)*s), stderr);
    fputs(" is an operand: ", stderr);
    show_usage(stderr, info, verb);
    fputc('\n', stderr);
    return OPTIONS_WRONG;
}

/* An option of the command at hand, or of all. */
static enum options_result read_option(struct reader *r, const char *arg)
{
    static const struct command_option all[] = {
        {"url", "URL", NULL}, {"key-file", "FILE", NULL}, {"ca-file", "FILE", NULL}, {"node", "N", NULL},
        {"json", NULL, NULL}, {"help", NULL, NULL},       {"version", NULL, NULL},   {NULL, NULL, NULL}};
    struct command *c = r->c;
    const char *equals = strchr(arg, '='), *near = NULL, **to = NULL, *given = NULL;
    char name[NAME_MOST + 1], what[96], option[NAME_MOST + 8];
    const struct command_option *found = NULL;
    if (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)
        return OPTIONS_HELP;
    if (strcmp(arg, "-V") == 0 || strcmp(arg, "--version") == 0)
        return OPTIONS_VERSION;
    if (arg[1] == '-')
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - arg) - 2 : NAME_MOST, arg + 2);
    else
        snprintf(name, sizeof name, "%.*s", NAME_MOST, arg + 1);
    for (const struct command_option *o = c->info ? c->info->options : NULL; o && o->name; o++) {
        near = nearest_of(name, near, o->name);
        if (arg[1] == '-' && strcmp(o->name, name) == 0) {
            found = o;
            to = &c->values[o - c->info->options];
        }
    }
    for (const struct command_option *o = all; o->name && !found; o++) {
        near = nearest_of(name, near, o->name);
        if (arg[1] == '-' && strcmp(o->name, name) == 0) {
            found = o;
            to = *name == 'u'   ? &c->url
                 : *name == 'k' ? &c->key_file
                 : *name == 'c' ? &c->ca_file
                 : *name == 'n' ? &c->node
                                : &given;
        }
    }
    const struct command_verb *verb = found || arg[1] != '-' ? NULL : verb_with_operand(c, name);
    if (verb)
        return say_operand(c->info, verb, name);
    if (!found) {
        snprintf(what, sizeof what, "%s%s has no option ", c->info ? c->info->name : "attnctl",
                 c->info ? "" : " itself");
        snprintf(option, sizeof option, "--%s", near ? near : "");
        return wrong(c->info, what, arg, near ? option : NULL);
    }
    if (!found->value && equals)
        return wrong(c->info, "there is no value to ", arg, NULL);
    *to = found->value ? value_of(r, equals) : "";
    if (!*to)
        return wrong(c->info, "a value is missing behind ", arg, NULL);
    c->json |= given != NULL;
    return OPTIONS_READ;
}

static bool is_option(const char *arg)
{
    return arg[0] == '-' && arg[1] != '\0' && !(arg[1] >= '0' && arg[1] <= '9') && arg[1] != '.';
}

/* Words that other programs have for a verb or a command. The first one is the API's, and is taken for it. */
static const struct {
    const char *word, *name;
} synonyms[] = {{"create", "new"},   {"add", "new"},       {"make", "new"},          {"gen", "new"},
                {"generate", "new"}, {"ls", "list"},       {"ps", "list"},           {"rm", "delete"},
                {"del", "delete"},   {"remove", "delete"}, {"rm", "cancel"},         {"delete", "cancel"},
                {"stop", "cancel"},  {"kill", "cancel"},   {"get", "show"},          {"cut", "truncate"},
                {"status", "stats"}, {"info", "stats"},    {"sequence", "seq"},      {"sequences", "seq"},
                {"leases", "lease"}, {"keys", "key"},      {"workloads", "workload"}};
enum { SYNONYMS = sizeof synonyms / sizeof synonyms[0] };

static const struct command_info *command_named(const struct command_info *const *commands, const char *name)
{
    for (; *commands; commands++) {
        if (strcmp((*commands)->name, name) == 0)
            return *commands;
    }
    return NULL;
}

static const struct command_verb *verb_named(const struct command_info *info, const char *name)
{
    for (const struct command_verb *verb = info->verbs; verb->name; verb++) {
        if (*name && strcmp(verb->name, name) == 0)
            return verb;
    }
    return NULL;
}

/* Likewise of what is typed: "create" is "new". */
static const struct command_verb *verb_typed(const struct command_info *info, const char *word)
{
    const struct command_verb *verb = verb_named(info, word);
    return verb || strcmp(word, synonyms[0].word) != 0 ? verb : verb_named(info, synonyms[0].name);
}

/* "seq fork": the commands that have a verb of that name, as they are typed; NULL where there is none. */
static const char *commands_of_verb(const struct command_info *const *commands, const char *name,
                                    char text[64])
{
    size_t n = 0;
    for (size_t i = 0; commands[i]; i++) {
        if (verb_named(commands[i], name) && n < 64)
            n += (size_t)snprintf(text + n, 64 - n, "%s%s %s", n ? " or " : "", commands[i]->name, name);
    }
    return n ? text : NULL;
}

/* What was meant by a word that is no command: a verb of some, or what others call one; NULL where it is neither. */
static const char *commands_meant(const struct command_info *const *commands, const char *word, char text[64])
{
    const char *meant = commands_of_verb(commands, word, text);
    for (size_t i = 0; i < SYNONYMS && !meant; i++) {
        if (strcmp(synonyms[i].word, word) != 0)
            continue;
        const struct command_info *info = command_named(commands, synonyms[i].name);
        meant = info ? info->name : commands_of_verb(commands, synonyms[i].name, text);
    }
    return meant;
}

static const char *verb_meant(const struct command_info *info, const char *word)
{
    const char *near = NULL;
    for (size_t i = 0; i < SYNONYMS; i++) {
        if (strcmp(synonyms[i].word, word) == 0 && verb_named(info, synonyms[i].name))
            return synonyms[i].name;
    }
    for (const struct command_verb *verb = info->verbs; verb->name; verb++)
        near = nearest_of(word, near, verb->name);
    return near;
}

/* "It has list, new and show." */
static void list_verbs(const struct command_info *info, char *text, size_t room)
{
    size_t n = (size_t)snprintf(text, room, "It has ");
    for (const struct command_verb *verb = info->verbs; verb->name && n < room; verb++)
        n += (size_t)snprintf(text + n, room - n, "%s%s",
                              verb == info->verbs ? ""
                              : (verb + 1)->name  ? ", "
                                                  : " and ",
                              verb->name);
}

static enum options_result find_command(struct reader *r, const struct command_info *const *commands)
{
    const char *near = NULL;
    char written[64], verbs[64];
    for (; r->at < r->argc && is_option(r->argv[r->at]); r->at++) {
        enum options_result is = read_option(r, r->argv[r->at]);
        if (is != OPTIONS_READ)
            return is;
    }
    if (r->at == r->argc) {
        command_usage("a command is missing");
        return OPTIONS_WRONG;
    }
    const char *name = r->argv[r->at++];
    if (strcmp(name, "help") == 0 && r->at == r->argc)
        return OPTIONS_HELP;
    if (strcmp(name, "help") == 0)
        name = r->argv[r->at];
    if ((r->c->info = command_named(commands, name))) {
        command_set_name(name);
        return r->at > 1 && strcmp(r->argv[r->at - 1], "help") == 0 ? OPTIONS_HELP : OPTIONS_READ;
    }
    for (size_t i = 0; commands[i]; i++)
        near = nearest_of(name, near, commands[i]->name);
    snprintf(written, sizeof written, "\"%.40s\"", name);
    const char *meant = strcmp(name, "version") == 0 ? "--version" : commands_meant(commands, name, verbs);
    return wrong(NULL, "there is no command ", written, meant ? meant : near);
}

/* The verb: the first operand, where the command has verbs. */
static enum options_result find_verb(struct command *c)
{
    char verbs[96];
    c->verb = c->info->verbs;
    if (!*c->verb->name || c->argc == 0)
        return OPTIONS_READ;
    const struct command_verb *verb = verb_typed(c->info, c->argv[0]);
    if (verb) {
        c->verb = verb;
        c->argc--;
        c->argv++;
        return OPTIONS_READ;
    }
    const char *meant = verb_meant(c->info, c->argv[0]);
    list_verbs(c->info, verbs, sizeof verbs);
    fprintf(stderr, "attnctl: %s has no \"", c->info->name);
    terminal_put(stderr, c->argv[0]);
    fprintf(stderr, "\"%s%s%s %s (attnctl %s --help says what it takes)\n", meant ? "; did you mean " : ".",
            meant ? meant : "", meant ? "?" : "", verbs, c->info->name);
    return OPTIONS_WRONG;
}

static enum options_result check_operands(const struct command *c)
{
    const struct command_verb *verb = c->verb;
    if (c->argc >= verb->least && (verb->most < 0 || c->argc <= verb->most))
        return OPTIONS_READ;
    char what[128];
    if (c->argc < verb->least)
        snprintf(what, sizeof what, "something is missing");
    else
        snprintf(what, sizeof what, "\"%.40s\" is one operand too many", c->argv[verb->most]);
    fputs("attnctl: ", stderr);
    terminal_put(stderr, what);
    fputs("; usage: ", stderr);
    show_usage(stderr, c->info, verb);
    for (; !*verb->name && verb[1].name; verb++) { /* one thing to do, in several forms */
        fputs(" or ", stderr);
        show_usage(stderr, c->info, verb + 1);
    }
    fputc('\n', stderr);
    return OPTIONS_WRONG;
}

enum options_result options_read(int argc, char **argv, const struct command_info *const *commands,
                                 struct command *c)
{
    struct reader r = {.argc = argc, .at = 1, .argv = argv, .c = c};
    enum options_result is = find_command(&r, commands);
    bool ended = false;
    if (is != OPTIONS_READ)
        return is;
    c->argv = argv + r.at;
    for (; r.at < argc; r.at++) {
        if (!ended && strcmp(argv[r.at], "--") == 0) {
            ended = true;
        } else if (ended || !is_option(argv[r.at])) {
            c->argv[c->argc++] = argv[r.at];
        } else if ((is = read_option(&r, argv[r.at])) != OPTIONS_READ) {
            return is;
        }
    }
    if (c->json && c->info->text_only)
        return wrong(c->info, c->info->name, " has no --json: the API's answers are JSON", NULL);
    is = find_verb(c);
    return is == OPTIONS_READ ? check_operands(c) : is;
}
