/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c - make a key for a client, and its entry for the daemon. */
#include "clients/commands.h"
#include "config/config.h"
#include "config/key_name.h"

#include <cjson/cJSON.h>
#include <sha2.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { KEY_BYTES = 64 };

/* Make a key of 256 random bits, as text that needs no quoting anywhere. */
static bool make_key(char key[KEY_BYTES])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[43]; /* of 6 bits each */
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return false;
    size_t n = (size_t)snprintf(key, KEY_BYTES, "attnd_");
    for (size_t i = 0; i < sizeof random; i++)
        key[n + i] = digits[random[i] & 63];
    key[n + sizeof random] = '\0';
    return true;
}

static int make_new(const struct command *c)
{
    static const char *const scopes[] = {
#define XX(constant, name, bit, includes) name,
        SCOPE_MAP(XX)
#undef XX
    };
#define XX(constant, name, bit, includes) " " name
    static const char no_scope[] = "\"%.40s\" is no scope; scopes are" SCOPE_MAP(XX);
#undef XX
    char key[KEY_BYTES], digest[SHA256_DIGEST_STRING_LENGTH];
    if (!key_name_is_good(c->argv[0]))
        return command_usage("\"%.80s\" is no name: a key wants a name of " KEY_NAME_WANTS, c->argv[0]);
    cJSON *entry = cJSON_CreateObject(), *list = cJSON_CreateArray();
    for (int i = 1; i < c->argc; i++) {
        bool known = false;
        for (size_t s = 0; s < sizeof scopes / sizeof scopes[0]; s++)
            known |= strcmp(scopes[s], c->argv[i]) == 0;
        if (!known) {
            cJSON_Delete(entry);
            cJSON_Delete(list);
            return command_usage(no_scope, c->argv[i]);
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(c->argv[i]));
    }
    if (c->argc == 1)
        cJSON_AddItemToArray(list, cJSON_CreateString("infer"));
    if (!make_key(key)) {
        cJSON_Delete(entry);
        cJSON_Delete(list);
        fprintf(stderr, "attnctl: no random numbers: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    SHA256Data((const uint8_t *)key, strlen(key), digest);
    cJSON_AddStringToObject(entry, "name", c->argv[0]);
    cJSON_AddStringToObject(entry, "sha256", digest);
    cJSON_AddItemToObject(entry, "scopes", list);
    char *text = cJSON_PrintUnformatted(entry);
    if (c->json)
        printf("{\"key\":\"%s\",\"entry\":%s}\n", key, text);
    else
        printf("the key, for the client; it is kept nowhere else:\n    %s\n"
               "its entry, for \"keys\" in the daemon's keys.file; then send the daemon SIGHUP:\n    %s\n",
               key, text);
    free(text);
    cJSON_Delete(entry);
    return EXIT_OK;
}

static const struct command_verb verbs[] = {
    {"new", "NAME [SCOPE]...", 1, -1, "scopes are read, infer (unless another is named), admin and keep",
     make_new},
    {0}};

const struct command_info keys_info = {.name = "key",
                                       .text = "make a key, and its entry for the daemon's keys.file",
                                       .verbs = verbs,
                                       .offline = true};
