/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs, where its behaviour differs and nothing else tells. */
#ifndef GAIAFS_BASE_KERNEL_H
#define GAIAFS_BASE_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

/* Linux MAJOR.MINOR or newer; false when the kernel does not say what it is. Any thread. */
bool kernel_is_at_least(unsigned major, unsigned minor);

/* Before 6.16 FUSE writes dirty pages back through copies, and a call that made it do so may return while a
 * copy is still on its way: only a FLUSH and a FSYNC wait for those. */
static inline bool kernel_writes_back_late(void)
{
    return !kernel_is_at_least(6, 16);
}

/* What FUSE writes past its cache is dropped from the cache of those who use it, also what they have read
 * while it was on its way. Linux 6.1 drops nothing: they would go on with zeros behind the old end, and what
 * they store to that page would bring those over the written bytes. From 6.5 on it is dropped before, and
 * since January 2026 afterwards, too (6.19, and updates of 6.18 and of older ones, which do not tell). */
static inline bool kernel_drops_behind_writes(void)
{
    return kernel_is_at_least(6, 18);
}

/* How long such copies are expected, at most: they come when the daemon has answered what came before. */
#define KERNEL_LATE_NS UINT64_C(60000000000)

#endif
