/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's log: one line a message, to stderr or to syslog. Safe from any thread. */
#ifndef GAIAFS_FS_LOG_H
#define GAIAFS_FS_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <syslog.h>

/* Where messages go from now on; at the start it is stderr. */
void log_to_syslog(bool to_syslog);
/* priority: LOG_ERR, LOG_WARNING, LOG_NOTICE ... as for syslog(3). No newline at the end of format.
 * Control characters of what it is given are escaped (fs/escape.h); code that logs the name of a file escapes
 * its backslashes, too. */
void fs_log(int priority, const char *format, ...) __attribute__((format(printf, 2, 3)));
void fs_vlog(int priority, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));

#endif
