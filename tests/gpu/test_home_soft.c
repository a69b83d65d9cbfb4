/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device's frames against an array: placed in runs of all lengths, by copies and by writes, dropped,
 * cleared, cut and made longer, also beside each other. What is not there reads as zeros. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu/device.h"
#include "gpu/home_copy.h"

#define PAGES 9000u /* more than two windows */
#define RUN_MAX 300u

struct world {
    struct gaia_frames *frames;
    uint64_t pages;
    bool present[PAGES];
    uint8_t value[PAGES]; /* of all bytes of a page that is present */
};

static uint8_t bytes[RUN_MAX * GAIA_PAGE_SIZE];
static unsigned seed;

static unsigned below(unsigned n)
{
    return (unsigned)rand_r(&seed) % n;
}

static void assert_page(struct gaia_frames *frames, uint64_t page, int value)
{
    static uint8_t got[GAIA_PAGE_SIZE];
    void *where = got;

    assert_int_equal(frames->ops->fetch(frames, page, 1, &where), 0);
    for (size_t i = 0; i < GAIA_PAGE_SIZE; i++)
        if (got[i] != value)
            fail_msg("byte %zu of page %llu is %d, not %d", i, (unsigned long long)page, got[i], value);
}

static void place(struct world *w, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        w->value[first + i] = (uint8_t)(1 + below(255));
        w->present[first + i] = true;
        memset(bytes + i * GAIA_PAGE_SIZE, w->value[first + i], GAIA_PAGE_SIZE);
    }
    assert_int_equal(w->frames->ops->place(w->frames, first, count, bytes), 0);
}

static void forget(struct world *w, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        w->present[first + i] = false;
}

static void act(struct world *w)
{
    uint64_t first = below((unsigned)w->pages), count = 1 + below(RUN_MAX), page = below((unsigned)w->pages);
    unsigned what = below(20);

    if (count > w->pages - first)
        count = w->pages - first;
    if (what < 10) { /* also over what is there */
        place(w, first, count);
    } else if (what < 15) {
        assert_int_equal(w->frames->ops->drop(w->frames, first, count), 0);
        forget(w, first, count);
    } else if (what < 18) {
        assert_page(w->frames, page, w->present[page] ? w->value[page] : 0);
    } else if (what < 19 && w->present[page]) {
        assert_int_equal(w->frames->ops->clear(w->frames, page, 0), 0);
        w->value[page] = 0;
    } else {
        uint64_t pages = PAGES / 2 + below(PAGES / 2);
        assert_int_equal(w->frames->ops->resize(w->frames, pages), 0);
        if (pages < w->pages)
            forget(w, pages, w->pages - pages);
        w->pages = pages;
    }
}

static void test_against_an_array(void **state)
{
    static struct world w;

    (void)state;
    memset(&w, 0, sizeof w);
    w.pages = PAGES / 3;
    assert_int_equal(gaia_soft_frames_open(w.pages, &w.frames), 0);
    for (unsigned i = 0; i < 600; i++)
        act(&w);
    for (uint64_t page = 0; page < w.pages; page++)
        assert_page(w.frames, page, w.present[page] ? w.value[page] : 0);
    w.frames->ops->close(w.frames);
}

/* A run of which a client has cut off the end comes all the same, as a short one does. */
static void test_past_the_end(void **state)
{
    static struct world w;
    char path[40];
    int fd;

    (void)state;
    memset(&w, 0, sizeof w);
    w.pages = RUN_MAX;
    assert_int_equal(gaia_soft_frames_open(w.pages, &w.frames), 0);
    assert_int_equal(w.frames->ops->share(w.frames, true, 0, &fd), 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(truncate(path, 100 * GAIA_PAGE_SIZE), 0);
    place(&w, 50, 200);
    for (uint64_t page = 50; page < 250; page++)
        assert_page(w.frames, page, w.value[page]);
    close(fd);
    w.frames->ops->close(w.frames);
}

struct placer {
    struct gaia_frames *frames;
    uint64_t first;
    int error;
};

#define PLACED (2u * RUN_MAX)

static void *place_some(void *argument)
{
    struct placer *placer = argument;
    uint8_t *run = malloc(RUN_MAX * GAIA_PAGE_SIZE);

    for (unsigned round = 0; run && round < 20; round++)
        for (uint64_t page = placer->first; page < placer->first + PLACED && !placer->error;
             page += RUN_MAX) {
            const struct gaia_frames_ops *ops = placer->frames->ops;
            memset(run, (int)((page - placer->first) / RUN_MAX + round), RUN_MAX * GAIA_PAGE_SIZE);
            placer->error = ops->place(placer->frames, page, RUN_MAX, run);
            if (!placer->error && round < 19)
                placer->error = ops->drop(placer->frames, page, RUN_MAX);
        }
    placer->error = run ? placer->error : -1;
    free(run);
    return NULL;
}

/* Each in its own pages, and so far from each other that they need windows of their own, of which there are
 * fewer than threads. */
static void test_beside_each_other(void **state)
{
    enum { PLACERS = 20, FILES = 3 };
    struct gaia_frames *frames[FILES];
    struct placer placers[PLACERS];
    pthread_t threads[PLACERS];

    (void)state;
    for (unsigned f = 0; f < FILES; f++) {
        assert_int_equal(gaia_soft_frames_open((uint64_t)PLACERS * PAGES, &frames[f]), 0);
        for (unsigned i = 0; i < PLACERS; i++) {
            placers[i] = (struct placer){.frames = frames[f], .first = (uint64_t)i * PAGES + 4000};
            assert_int_equal(pthread_create(&threads[i], NULL, place_some, &placers[i]), 0);
        }
        for (unsigned i = 0; i < PLACERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(placers[i].error, 0);
        }
    }
    for (unsigned f = 0; f < FILES; f++) {
        for (unsigned i = 0; i < PLACERS; i++)
            for (uint64_t page = placers[i].first; page < placers[i].first + PLACED; page++)
                assert_page(frames[f], page, (uint8_t)((page - placers[i].first) / RUN_MAX + 19));
        frames[f]->ops->close(frames[f]);
    }
}

/* kB of a line of /proc/self/status. */
static unsigned long status(const char *name)
{
    unsigned long kb = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "r");

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            kb = strtoul(line + strlen(name) + 1, NULL, 10);
    fclose(file);
    return kb;
}

/* Where the runs are, and of how many files, is nothing that a client may use up our addresses with. */
static void test_far_from_each_other(void **state)
{
    enum { FILES = 60 };
    const uint64_t pages = (UINT64_C(16) << 40) / GAIA_PAGE_SIZE;
    static struct gaia_frames *frames[FILES];
    unsigned long before = status("VmSize"), tables = status("VmPTE");

    (void)state;
    memset(bytes, 9, sizeof bytes);
    for (unsigned f = 0; f < FILES; f++) {
        assert_int_equal(gaia_soft_frames_open(pages, &frames[f]), 0);
        for (unsigned i = 1; i < 16; i++)
            assert_int_equal(frames[f]->ops->place(frames[f], pages / 16 * i - 70, 140, bytes), 0);
    }
    assert_in_range(status("VmSize"), before, before + (300 << 10));
    assert_in_range(status("VmPTE"), 0, tables + (2 << 10));
    for (unsigned f = 0; f < FILES; f++) {
        assert_page(frames[f], pages / 2 - 70, 9);
        assert_page(frames[f], pages / 2 + 69, 9);
        frames[f]->ops->close(frames[f]);
    }
}

/* The same pages of two files. */
static void test_two_files(void **state)
{
    struct gaia_frames *frames[2];

    (void)state;
    for (unsigned f = 0; f < 2; f++) {
        assert_int_equal(gaia_soft_frames_open(RUN_MAX, &frames[f]), 0);
        memset(bytes, (int)f + 1, sizeof bytes);
        assert_int_equal(frames[f]->ops->place(frames[f], 10, 100, bytes), 0);
        assert_page(frames[f], 50, (int)f + 1);
        assert_int_equal(frames[f]->ops->drop(frames[f], 10, 100), 0);
    }
    for (unsigned f = 0; f < 2; f++) {
        assert_page(frames[f], 50, 0);
        frames[f]->ops->close(frames[f]);
    }
}

/* Long runs go by the windows, so that the threads of a stream don't stand in line; else nothing above says
 * anything of them. */
static void test_long_runs_are_copied(void **state)
{
    struct gaia_frames *frames;
    struct stat st;
    int fd, other = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)state;
    memset(bytes, 7, sizeof bytes);
    assert_int_equal(home_copy_run(other, 0, 100, bytes), 0); /* no memory, and no harm is done */
    close(other);
    assert_int_equal(gaia_soft_frames_open(RUN_MAX, &frames), 0);
    assert_int_equal(frames->ops->share(frames, true, 0, &fd), 0);
    if (!home_copy_run(fd, 0, 100, bytes)) {
        close(fd);
        frames->ops->close(frames);
        skip(); /* no userfaultfd is to be had here */
    }
    assert_int_equal(home_copy_run(fd, 0, 100, bytes), 0);     /* they have bytes */
    assert_int_equal(home_copy_run(fd, 100, 300, bytes), 200); /* the rest is past the end */
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_blocks * 512, RUN_MAX * GAIA_PAGE_SIZE);
    assert_page(frames, RUN_MAX - 1, 7);
    home_copy_forget(fd);
    close(fd);
    frames->ops->close(frames);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_an_array),     cmocka_unit_test(test_past_the_end),
        cmocka_unit_test(test_beside_each_other),    cmocka_unit_test(test_far_from_each_other),
        cmocka_unit_test(test_long_runs_are_copied), cmocka_unit_test(test_two_files),
    };

    seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
