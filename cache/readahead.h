/* SPDX-License-Identifier: Apache-2.0 */
/* Readahead for device faults. A GPU kernel walks a file in many streams at once, a stride for each group of
 * threads, and its faults come in no order: so several streams are followed for each map, and a stream's
 * window doubles each time a fault lands at its end (GAIA, section 4.2: windows up to 16 MiB, at least 512
 * KiB after a sequential hint). */
#ifndef GAIAFS_CACHE_READAHEAD_H
#define GAIAFS_CACHE_READAHEAD_H

#include <stdint.h>

#include "base/lock.h"
#include "consistency/page.h"

#define READAHEAD_STREAMS 16u
#define READAHEAD_MAX 4096u /* pages: 16 MiB */

enum readahead_mode { READAHEAD_NORMAL, READAHEAD_RANDOM, READAHEAD_SEQUENTIAL };

struct readahead_stream {
    uint64_t next;   /* the page at which its window ends */
    uint64_t window; /* pages */
    uint64_t used;   /* when it was last followed, in faults */
};

struct readahead {
    pthread_mutex_t lock; /* guards all; a leaf */
    enum readahead_mode mode;
    uint64_t unit; /* pages, a power of two */
    uint64_t faults;
    struct readahead_stream streams[READAHEAD_STREAMS];
};

struct readahead_window {
    uint64_t first, count; /* pages */
};

void readahead_init(struct readahead *readahead, uint64_t unit);
void readahead_free(struct readahead *readahead);
void readahead_set_mode(struct readahead *readahead, enum readahead_mode mode);

/* What to place for a touch of `page`, which is not resident: pages [first, first + count), which contain it.
 * limit: pages of the file; most: pages that may be placed at once for the device's sake. */
struct readahead_window readahead_next(struct readahead *readahead, uint64_t page, uint64_t limit,
                                       uint64_t most);

#endif
