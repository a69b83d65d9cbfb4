/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a mapping that may raise SIGBUS, by a thread of libgaia: what a program's own touch
 * would be told by the signal is an error here. */
#ifndef GAIAFS_GPU_TOUCH_H
#define GAIAFS_GPU_TOUCH_H

#include <stddef.h>

/* Puts a handler of SIGBUS before the program's, once: on the thread of a call that the program has made, so
 * that it knows when. Signals that are not ours go on to the handler that was there. One that the program
 * puts before ours later has to hand on what is not its own. Any thread. */
void touch_begin(void);

/* 0, or -EIO: a part of either could not be touched, and any bytes may have been copied. After
 * touch_begin(). */
int touch_copy(void *to, const void *from, size_t length);

/* The same of those bytes of `from` that differ from `twin`, and no others: what is between them may be
 * stored to by somebody else. */
int touch_store_changed(void *to, const void *from, const void *twin, size_t length);

#endif
