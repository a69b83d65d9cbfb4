/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers into windows of frames (gaia_frames_ops.open_window), and what they tell about a GPU's memory. A
 * NIC whose writes a bridge or an IOMMU drops gets no error: its read ends well, and nothing has arrived. So
 * until bytes were seen to arrive by a registration, the memory's bytes are fetched and compared before each
 * transfer (bytes that are there already prove nothing) and after it; mostly that is once for a chunk of a
 * GPU's memory and a transport.
 *
 * Thread safety: as the driver's own calls. No lock is held. */
#ifndef GAIAFS_CACHE_WINDOW_H
#define GAIAFS_CACHE_WINDOW_H

#include <stdbool.h>

#include "gpu/device.h"
#include "io/standing.h"

/* Whether nobody knows yet that bytes arrive in such a window, which is registered: then gaia_window_look()
 * is to be called. */
bool gaia_window_is_doubted(const struct gaia_window *window);

/* Before the transfer, for a window that is doubted: bytes are what must arrive, whole pages, valid until
 * gaia_window_end() has returned. 0, or what fetch() says, -ENOMEM. */
int gaia_window_look(struct gaia_frames *frames, struct gaia_window *window, const void *bytes);

/* Instead of close_window(): error says how the transfer has ended, or why there was none. `error`, or, after
 * 0, what close_window() and fetch() say, or -EOPNOTSUPP: the bytes have not arrived. After an error the
 * pages do not count as placed. */
int gaia_window_end(struct gaia_frames *frames, struct gaia_window *window, enum gaia_path path, int error);

#endif
