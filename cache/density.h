/* SPDX-License-Identifier: Apache-2.0 */
/* Where touches come in no order, but densely: the threads of a GPU together go through all of a file. For
 * each block of a map this remembers which of its cells were shown. In a block that the device has, once an
 * eighth was shown, each touch shows more than twice as much as there was: the block is whole after seven
 * touches instead of 32, and of a file that is touched here and there only what is touched is shown. Of a
 * block that the device lacks the rest is brought when half of it was touched, as NVIDIA's driver does for
 * managed memory: Ganguly et al., "Interplay between Hardware Prefetcher and Page Eviction Policy in CPU-GPU
 * Unified Virtual Memory", ISCA 2019. */
#ifndef GAIAFS_CACHE_DENSITY_H
#define GAIAFS_CACHE_DENSITY_H

#include <stdatomic.h>

#include "cache/index.h"
#include "gpu/device.h"

#define DENSITY_CELL_PAGES GAIA_UNIT_PAGES
#define DENSITY_BLOCK_CELLS 32u /* 2 MiB */
#define DENSITY_BLOCK_PAGES (DENSITY_BLOCK_CELLS * DENSITY_CELL_PAGES)
#define DENSITY_TO_SHOW 4u        /* cells of a block that make it thick, where the rest is there, */
#define DENSITY_TO_PLACE 16u      /* and where it must be brought */
#define DENSITY_BLOCKS_MAX 65536u /* of a map that are known at a time */
#define DENSITY_BLOCKS_OF_CLIENT (8 * DENSITY_BLOCKS_MAX) /* and of all of its maps: 4 MiB */

struct density {
    /* Each entry is the low half of a block's number, above a bit for each of its cells. A block's place is
     * its number modulo how many there are: the later block takes it. */
    _Atomic uint64_t *blocks;
    uint64_t count; /* 0: none is kept, and a touch shows its own cell */
};

/* The bit of the cell that a page is in. */
static inline uint32_t density_cell(uint64_t page)
{
    return UINT32_C(1) << page % DENSITY_BLOCK_PAGES / DENSITY_CELL_PAGES;
}

/* For a map of so many pages. Where there is no memory nothing is remembered. */
void density_init(struct density *density, uint64_t pages);
void density_free(struct density *density);

/* The cells to show for a touch of a page that was not shown: bits of the block that the page is in. Its own
 * is among them. thick: DENSITY_TO_SHOW or DENSITY_TO_PLACE. A block that is touched although all of it was
 * shown begins anew: it has left the device since. From any thread, without a lock. */
uint32_t density_touch(struct density *density, uint64_t page, unsigned thick);

/* What was shown of the blocks of these pages, one at least, has been let go: they begin anew. */
void density_forget(struct density *density, uint64_t page, uint64_t count);

/* The pages of a leaf that lie in cells of the block that `page` is in. */
page_mask density_pages(uint64_t page, uint32_t cells, uint64_t leaf);

/* Take the lowest run of cells out of *cells, which is not 0: its pages. */
struct gaia_run density_run(uint64_t page, uint32_t *cells);

#endif
