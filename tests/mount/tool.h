/* SPDX-License-Identifier: Apache-2.0 */
/* What programs of the mount tests share that draw what they do: numbers that a seed repeats, and the end
 * when a call fails that should not. */
#ifndef GAIAFS_TESTS_MOUNT_TOOL_H
#define GAIAFS_TESTS_MOUNT_TOOL_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

#define PAGE 4096u

static inline _Noreturn void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(2);
}

#endif
