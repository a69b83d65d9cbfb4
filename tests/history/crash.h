/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GAIAFS_HISTORY_CRASH_H
#define GAIAFS_HISTORY_CRASH_H

/* From now on a SIGSEGV of this process is told to stderr, with where and what was touched, and then ends it
 * as ever: it may come once in a thousand runs, and nowhere but where nobody can look. */
void tell_crashes(void);

#endif
