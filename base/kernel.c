/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kernel.h"

#include <stdio.h>
#include <sys/utsname.h>

bool kernel_is_at_least(unsigned major, unsigned minor)
{
    struct utsname name;
    unsigned is_major, is_minor;

    if (uname(&name) || sscanf(name.release, "%u.%u", &is_major, &is_minor) != 2)
        return false;
    return is_major > major || (is_major == major && is_minor >= minor);
}
