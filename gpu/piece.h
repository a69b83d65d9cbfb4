/* SPDX-License-Identifier: Apache-2.0 */
/* What the public calls do to a piece of a mapping: the client's part of an acquire, a release, a sync and an
 * advice. The daemon's is cache/acquire.c, cache/release.c and so on. From any thread; no lock is held, as
 * all of them wait for the kernel or the daemon. All return 0 or the negative of an errno that gaia.h lists
 * for the call. */
#ifndef GAIAFS_GPU_PIECE_H
#define GAIAFS_GPU_PIECE_H

#include "gpu/mapping.h"

/* Once, before all else: finds out which kernel this is. */
void piece_begin(void);

/* errno as our callers know it: the kernel's error for a request that was under way when the daemon ended
 * becomes -ENOTCONN. */
int piece_kernel_error(void);

/* The checks that all calls on a range share; *length becomes whole pages. -EINVAL. */
int piece_check_range(const void *addr, size_t *length);

/* Call fn for every piece of the range; the first error. any_device: device is not looked at. -EINVAL (the
 * range, a gap in it, or the device is another), -ENOMEM. */
int piece_each(void *addr, size_t length, struct gaia_device *device, bool any_device,
               int (*fn)(struct gaia_piece *piece));

int piece_acquire(struct gaia_piece *piece);
/* The same where no work of the device concerns the piece: that work has ended, or the piece is new. */
int piece_acquire_settled(struct gaia_piece *piece);
/* For a mapping that is read only this does nothing. */
int piece_release(struct gaia_piece *piece);
int piece_sync(struct gaia_piece *piece);
/* advice: GAIA_ADV_*. */
int piece_advise(struct gaia_piece *piece, int advice);

#endif
