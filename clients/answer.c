/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - see answer.h. */
#include "clients/answer.h"

#include <stdio.h>
#include <string.h>

const cJSON *answer_at(const cJSON *tree, const char *path)
{
    char name[64];
    while (tree && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        tree = cJSON_GetObjectItemCaseSensitive(tree, name);
        path += n + (path[n] == '.');
    }
    return tree;
}

double answer_number(const cJSON *tree, const char *path)
{
    const cJSON *item = answer_at(tree, path);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const char *answer_text(const cJSON *tree, const char *path)
{
    const cJSON *item = answer_at(tree, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

const char *answer_plural(double count)
{
    return count == 1 ? "" : "s";
}
