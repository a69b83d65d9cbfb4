/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a mapping that may raise SIGBUS, by a thread of libgaia: where a program's own touch
 * would get the signal, these return an error. */
#ifndef GAIAFS_GPU_TOUCH_H
#define GAIAFS_GPU_TOUCH_H

#include <stddef.h>

/* Puts a handler of SIGBUS before the program's, once: on the thread of a call that the program has made, so
 * that it knows when. Signals that are not ours go on to the handler that was there. A handler that the
 * program puts before ours later must hand on what is not its own. Any thread. */
void touch_begin(void);

/* 0, or -EIO: a part of either could not be touched, and any bytes may have been copied. After
 * touch_begin(). */
int touch_copy(void *to, const void *from, size_t length);

/* The same for those bytes of `from` that differ from `twin`, and no others: somebody else may be storing to
 * the bytes between them. */
int touch_store_changed(void *to, const void *from, const void *twin, size_t length);

#endif
