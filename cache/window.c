/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool gaia_window_is_doubted(const struct gaia_window *window)
{
    return !gaia_standing_is_proven(window->registered);
}

/* Whether the bytes are there: 1, 0, or an errno. */
static int holds(struct gaia_frames *frames, const struct gaia_window *window, const void *bytes)
{
    uint8_t *found = malloc(GAIA_FETCH_MAX * GAIA_PAGE_SIZE);
    void *pages[GAIA_FETCH_MAX];
    bool same = true;
    int error = found ? 0 : -ENOMEM;

    for (unsigned i = 0; i < GAIA_FETCH_MAX && found; i++)
        pages[i] = found + i * GAIA_PAGE_SIZE;
    for (uint64_t done = 0; done < window->count && same && !error;) {
        uint64_t left = window->count - done, count = left < GAIA_FETCH_MAX ? left : GAIA_FETCH_MAX;

        error = frames->ops->fetch(frames, window->page + done, (unsigned)count, pages);
        same =
            !error && !memcmp(found, (const uint8_t *)bytes + done * GAIA_PAGE_SIZE, count * GAIA_PAGE_SIZE);
        done += count;
    }
    free(found);
    return error ? error : same;
}

int gaia_window_look(struct gaia_frames *frames, struct gaia_window *window, const void *bytes)
{
    int there = holds(frames, window, bytes);

    if (there < 0)
        return there;
    window->bytes = bytes;
    window->proves = !there;
    return 0;
}

/* It was looked at before, and the driver has placed the pages. */
static int look_again(struct gaia_frames *frames, const struct gaia_window *window, enum gaia_path path)
{
    int there = holds(frames, window, window->bytes);

    if (there == 1 && window->proves)
        gaia_standing_prove(window->standing, path, window->registered);
    if (there == 1)
        return 0;
    if (there == 0)
        gaia_standing_give_up(window->standing, path);
    frames->ops->drop(frames, window->page, window->count);
    return there ? there : -EOPNOTSUPP;
}

int gaia_window_end(struct gaia_frames *frames, struct gaia_window *window, enum gaia_path path, int error)
{
    const struct gaia_frames_ops *ops = frames->ops;
    struct gaia_window still; /* the memory stays until it was looked at, whoever cuts the file off */
    bool look = !error && window->bytes;

    /* Others have learnt meanwhile what nobody knew, or what was wrong, when this began. */
    if (!error && !look && gaia_standing_reach(window->standing, path) == GAIA_REACH_NONE)
        error = -EOPNOTSUPP;
    if (look && (error = ops->open_window(frames, window->page, window->count, &still)))
        look = false;
    int closed = ops->close_window(frames, window, !error);
    if (!error)
        error = closed;
    if (!error && look)
        error = look_again(frames, window, path);
    if (look)
        ops->close_window(frames, &still, false);
    return error;
}
