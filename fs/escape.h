/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files as text: a name may be any bytes, and who reads a log or a terminal is not to take what it
 * says for lines of ours, nor is the terminal to obey it. */
#ifndef GAIAFS_FS_ESCAPE_H
#define GAIAFS_FS_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

/* The longest text of so many bytes, with its end. */
#define ESCAPED_SIZE(bytes) ((size_t)(bytes)*4 + 1)

/* Control characters, and bytes that are no UTF-8, are written as \ooo to out, which has size bytes, 1 or
 * more; what does not fit is left out. backslashes: they, too, so that the text says which name it was (as
 * /proc/mounts does); not of text that may have been escaped already. Returns the length of what is in out,
 * which ends with '\0'. Any thread. */
size_t escape(const char *text, char *out, size_t size, bool backslashes);

#endif
