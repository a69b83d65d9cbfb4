/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/home_untrapped.h"

int untrapped_expose(struct gaia_frames_map *map, uint64_t page, uint64_t count, bool trap_stores)
{
    (void)map, (void)page, (void)count, (void)trap_stores;
    return 0;
}

int untrapped_protect(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    (void)frames, (void)page, (void)count;
    return 0;
}

int untrapped_unprotect(struct gaia_frames_map *map, uint64_t page, uint64_t count)
{
    (void)map, (void)page, (void)count;
    return 0;
}

void untrapped_wake(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    (void)frames, (void)page, (void)count;
}

int untrapped_poison(struct gaia_frames_map *map, uint64_t page, uint64_t count, uint32_t thread)
{
    (void)map, (void)page, (void)count, (void)thread;
    return 0;
}

void untrapped_refuse(struct gaia_frames_map *map, uint64_t page, uint32_t thread)
{
    (void)map, (void)page, (void)thread;
}
