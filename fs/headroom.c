/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/headroom.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fs/memory.h"

#define EACH 1024u           /* inodes: up to 2 MiB, with their names */
#define ROOM_MOST (8u << 20) /* bytes; more than others look up while one makes room */
#define HUGE_PAGE (2u << 20) /* on x86, and on ARM with small pages */

void headroom_init(struct headroom *headroom)
{
    headroom->usage = memory_usage(&headroom->limit);
    headroom->room = ROOM_MOST;
    if (headroom->limit / 16 < ROOM_MOST) /* whole huge pages */
        headroom->room = headroom->limit / 16 / HUGE_PAGE * HUGE_PAGE + HUGE_PAGE;
    atomic_init(&headroom->inodes, 0);
    atomic_flag_clear(&headroom->busy);
}

void headroom_end(struct headroom *headroom)
{
    if (headroom->usage >= 0)
        close(headroom->usage);
}

static bool is_there(const struct headroom *headroom)
{
    char text[32];
    ssize_t length = pread(headroom->usage, text, sizeof(text) - 1, 0);

    if (length <= 0)
        return true;
    text[length] = '\0';
    return strtoull(text, NULL, 10) + headroom->room <= headroom->limit;
}

/* Takes memory and gives it back: what the kernel has let go for it stays free. In huge pages, because for
 * those nobody is killed: where nothing can be let go the kernel is content with a small one. */
static void make_room(size_t room)
{
    size_t length = room + HUGE_PAGE;
    char *area =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (area == MAP_FAILED)
        return;
    char *aligned = area + (-(uintptr_t)area & (HUGE_PAGE - 1));
    if (!madvise(aligned, room, MADV_HUGEPAGE))
        for (size_t at = 0; at < room; at += HUGE_PAGE)
            *(volatile char *)(aligned + at) = 1;
    munmap(area, length);
}

void headroom_keep(struct headroom *headroom)
{
    if (headroom->usage < 0 || atomic_fetch_add_explicit(&headroom->inodes, 1, memory_order_relaxed) % EACH)
        return;
    if (is_there(headroom) || atomic_flag_test_and_set(&headroom->busy))
        return;
    make_room(headroom->room);
    atomic_flag_clear(&headroom->busy);
}
