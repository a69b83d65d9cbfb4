/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t size_parse(const char *text)
{
    static const char suffixes[] = "KkMmGgTt";
    unsigned long long value;
    const char *suffix;
    unsigned shift = 0;
    char *end;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno)
        return 0;
    if (*end != '\0') {
        suffix = strchr(suffixes, *end);
        if (!suffix || end[1] != '\0')
            return 0;
        shift = 10 * ((unsigned)(suffix - suffixes) / 2 + 1);
    }
    return value > (UINT64_MAX >> shift) ? 0 : (uint64_t)value << shift;
}
