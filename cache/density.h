/* SPDX-License-Identifier: Apache-2.0 */
/* Where touches come in no order, but thick: the threads of a GPU go through all of a file between them. For
 * each block of a map it is kept which of its cells were shown. Once an eighth of them were, each touch shows
 * more than twice as much as there was: a block is whole after seven touches instead of 32, and of a file
 * that is touched here and there nothing is shown but that. (NVIDIA's driver prefetches the rest of a block
 * that is half there: Ganguly et al., "Interplay between Hardware Prefetcher and Page Eviction Policy in
 * CPU-GPU Unified Virtual Memory", ISCA 2019. Nothing is read or copied here: this is for what the device
 * has.) */
#ifndef GAIAFS_CACHE_DENSITY_H
#define GAIAFS_CACHE_DENSITY_H

#include <stdatomic.h>

#include "cache/index.h"

#define DENSITY_CELL_PAGES GAIA_UNIT_PAGES
#define DENSITY_BLOCK_CELLS 32u /* 2 MiB */
#define DENSITY_BLOCK_PAGES (DENSITY_BLOCK_CELLS * DENSITY_CELL_PAGES)
#define DENSITY_THICK_CELLS 4u
#define DENSITY_BLOCKS_MAX 65536u /* of a map that are known at a time */

struct density {
    /* Each the low half of a block's number, above a bit for each of its cells. A block's place is its number
     * modulo how many there are: who comes later has it. */
    _Atomic uint64_t *blocks;
    uint64_t count; /* 0: none is kept, and a touch shows its own cell */
};

/* For a map of so many pages. Where there is no memory none is kept. */
void density_init(struct density *density, uint64_t pages);
void density_free(struct density *density);

/* The cells to show for a touch of a page that was not shown: bits of the block that the page is in. Its own
 * is among them. From any thread, without a lock. */
uint32_t density_touch(struct density *density, uint64_t page);

/* The pages of a leaf that lie in cells of the block that `page` is in. */
page_mask density_pages(uint64_t page, uint32_t cells, uint64_t leaf);

#endif
