/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/escape.h"

static atomic_bool use_syslog;

void log_to_syslog(bool to_syslog)
{
    if (to_syslog)
        openlog("mount.gaiafs", LOG_PID, LOG_DAEMON);
    atomic_store(&use_syslog, to_syslog);
}

void fs_vlog(int priority, const char *format, va_list arguments)
{
    char text[1024], line[1024] = "mount.gaiafs: ";
    size_t prefix = strlen(line);

    /* A parameter: the caller has begun it. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
    vsnprintf(text, sizeof(text), format, arguments);
    for (size_t length = strlen(text); length > 0 && text[length - 1] == '\n';)
        text[--length] = '\0';
    /* Words of others may be in it: names of files, of devices, of mount points. */
    size_t length = prefix + escape(text, line + prefix, sizeof(line) - prefix - 1, false);
    if (atomic_load(&use_syslog)) {
        syslog(priority, "%s", line + prefix);
        return;
    }
    /* One write() a line, so that lines of several threads do not mix. */
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        return; /* nowhere left to say it */
}

void fs_log(int priority, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fs_vlog(priority, format, arguments);
    va_end(arguments);
}
