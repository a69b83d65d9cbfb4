/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_bool use_syslog;

void log_to_syslog(bool to_syslog)
{
    if (to_syslog)
        openlog("mount.gaiafs", LOG_PID, LOG_DAEMON);
    atomic_store(&use_syslog, to_syslog);
}

void fs_vlog(int priority, const char *format, va_list arguments)
{
    char line[1024];
    int length;

    if (atomic_load(&use_syslog)) {
        vsyslog(priority, format, arguments);
        return;
    }
    /* One write() a line, so that lines of several threads do not mix. */
    length = snprintf(line, sizeof(line), "mount.gaiafs: ");
    /* A parameter: the caller has begun it. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    length += vsnprintf(line + length, sizeof(line) - (size_t)length - 1, format, arguments);
    if (length > (int)sizeof(line) - 2)
        length = (int)sizeof(line) - 2;
    while (length > 0 && line[length - 1] == '\n')
        length--;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return; /* nowhere left to say it */
}

void fs_log(int priority, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fs_vlog(priority, format, arguments);
    va_end(arguments);
}
