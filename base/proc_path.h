/* SPDX-License-Identifier: Apache-2.0 */
/* "/proc/self/fd/N": opens anew what a descriptor stands for, one of O_PATH, too. */
#ifndef GAIAFS_BASE_PROC_PATH_H
#define GAIAFS_BASE_PROC_PATH_H

#include <stdio.h>

struct proc_path {
    char text[32];
};

static inline struct proc_path proc_path(int fd)
{
    struct proc_path path;

    snprintf(path.text, sizeof path.text, "/proc/self/fd/%d", fd);
    return path;
}

#endif
