/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files as text: a name may be any bytes, but a reader of a log or a terminal must not take it for
 * our own lines, and the terminal must not obey it. */
#ifndef GAIAFS_FS_ESCAPE_H
#define GAIAFS_FS_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

/* The longest text of so many bytes, with its end. */
#define ESCAPED_SIZE(bytes) ((size_t)(bytes)*4 + 1)

/* Writes text to out, which has size bytes, 1 or more, with control characters and bytes that are no UTF-8 as
 * \ooo; what does not fit is left out. backslashes: escape them, too, so that the text says which name it was
 * (as /proc/mounts does); not for text that may have been escaped already. Returns the length of what is in
 * out, which ends with '\0'. Any thread. */
size_t escape(const char *text, char *out, size_t size, bool backslashes);

#endif
