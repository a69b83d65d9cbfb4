/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options_value.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/log.h"

const char *option_value(const char *option)
{
    return strchr(option, '=') + 1;
}

static int number_between(const char *option, size_t least, size_t most, size_t *number_out)
{
    const char *text = option_value(option);
    char *end;
    unsigned long long number = strtoull(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || number < least || number > most) {
        fs_log(LOG_ERR, "option %s: not a number from %zu to %zu", option, least, most);
        return -1;
    }
    *number_out = number;
    return 0;
}

int option_number(const char *option, size_t least, size_t *number_out)
{
    return number_between(option, least, UINT32_MAX, number_out);
}

int option_count(const char *option, unsigned least, unsigned most, unsigned *number_out)
{
    size_t number;

    if (number_between(option, least, most, &number))
        return -1;
    *number_out = (unsigned)number;
    return 0;
}

int option_choice(const char *option, const char *first, const char *second, bool *is_second)
{
    const char *text = option_value(option);

    if (strcmp(text, first) != 0 && strcmp(text, second) != 0) {
        fs_log(LOG_ERR, "option %s: neither %s nor %s", option, first, second);
        return -1;
    }
    *is_second = strcmp(text, second) == 0;
    return 0;
}

int option_set_text(char **text, const char *value)
{
    free(*text);
    *text = strdup(value);
    if (!*text)
        fs_log(LOG_ERR, "options: %s", strerror(errno));
    return *text ? 0 : -1;
}
