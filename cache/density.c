/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/density.h"

#include <stdlib.h>

#define CELL(number) (UINT32_C(1) << (number))

void density_init(struct density *density, uint64_t pages)
{
    uint64_t count = (pages + DENSITY_BLOCK_PAGES - 1) / DENSITY_BLOCK_PAGES + (pages != 0); /* not aligned */

    if (count > DENSITY_BLOCKS_MAX)
        count = DENSITY_BLOCKS_MAX;
    density->blocks = count ? calloc(count, sizeof *density->blocks) : NULL;
    density->count = density->blocks ? count : 0;
}

void density_free(struct density *density)
{
    free(density->blocks);
}

/* Of a block in which little was shown the touched cell; else as many, a power of two, as are more than those
 * that were, aligned, so that they lie around it. */
static uint32_t choose(uint32_t shown, unsigned cell, unsigned thick)
{
    unsigned count = 1, before = (unsigned)__builtin_popcount(shown);

    while (before >= thick && count <= before)
        count *= 2;
    uint32_t cells = count < DENSITY_BLOCK_CELLS ? (CELL(count) - 1) << (cell & ~(count - 1)) : UINT32_MAX;
    return cells & ~shown;
}

uint32_t density_touch(struct density *density, uint64_t page, unsigned thick)
{
    uint64_t number = page / DENSITY_BLOCK_PAGES;
    unsigned cell = (unsigned)(page % DENSITY_BLOCK_PAGES / DENSITY_CELL_PAGES);
    uint32_t shown, cells;

    if (!density->count)
        return CELL(cell);
    _Atomic uint64_t *block = &density->blocks[number % density->count];
    uint64_t old = atomic_load_explicit(block, memory_order_relaxed);
    do {
        shown = old >> 32 == (uint32_t)number ? (uint32_t)old : 0;
        if (shown == UINT32_MAX)
            shown = 0;
        else if (shown & CELL(cell)) /* somebody shows it now, or it has come back */
            return CELL(cell);
        cells = choose(shown, cell, thick);
    } while (!atomic_compare_exchange_weak_explicit(block, &old,
                                                    (uint64_t)(uint32_t)number << 32 | shown | cells,
                                                    memory_order_relaxed, memory_order_relaxed));
    return cells;
}

void density_forget(struct density *density, uint64_t page, uint64_t count)
{
    uint64_t number = page / DENSITY_BLOCK_PAGES,
             blocks = (page + count - 1) / DENSITY_BLOCK_PAGES - number + 1;

    for (uint64_t i = 0; i < blocks && i < density->count; i++) /* of another that has its place, too */
        atomic_store_explicit(&density->blocks[(number + i) % density->count], 0, memory_order_relaxed);
}

page_mask density_pages(uint64_t page, uint32_t cells, uint64_t leaf)
{
    uint64_t first = page - page % DENSITY_BLOCK_PAGES;
    page_mask pages = 0;

    for (uint32_t left = cells; left; left &= left - 1)
        pages |= page_range_mask(leaf, first + (uint64_t)__builtin_ctz(left) * DENSITY_CELL_PAGES,
                                 DENSITY_CELL_PAGES);
    return pages;
}

struct gaia_run density_run(uint64_t page, uint32_t *cells)
{
    page_mask left = *cells;
    unsigned length, first = page_mask_run(&left, &length);

    *cells = (uint32_t)left;
    return (struct gaia_run){.page = page - page % DENSITY_BLOCK_PAGES + first * DENSITY_CELL_PAGES,
                             .count = length * DENSITY_CELL_PAGES};
}
