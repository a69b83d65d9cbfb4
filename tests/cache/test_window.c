/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of frames that the test has made: whose bytes arrive, or not, or were there before; what is learnt
 * of it, what counts as placed, and that windows are closed and memory is looked at while it is there. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cache/window.h"
#include "io/transport.h"

#define PAGE GAIA_PAGE_SIZE
#define PAGES 200u
#define FIRST 30u
#define COUNT 150u /* more than are fetched at a time */

static struct frames {
    struct gaia_frames base; /* first */
    struct gaia_standing standing;
    struct gaia_reaches reaches;
    uint8_t memory[PAGES * PAGE];
    unsigned open, fetches, opens_well; /* opens_well: so many more */
    int fetch_error, close_error;
    bool placed[PAGES];
} frames;
static uint8_t bytes[COUNT * PAGE];

static int open_window(struct gaia_frames *base, uint64_t page, uint64_t count,
                       struct gaia_window *window_out)
{
    struct frames *f = (struct frames *)base;

    if (!f->opens_well)
        return -EOPNOTSUPP;
    f->opens_well--;
    f->open++;
    *window_out = (struct gaia_window){
        .page = page, .count = count, .memory = f->memory + page * PAGE, .standing = &f->standing};
    return 0;
}

static int close_window(struct gaia_frames *base, const struct gaia_window *window, bool arrived)
{
    struct frames *f = (struct frames *)base;

    assert_true(f->open > 0);
    f->open--;
    if (!arrived || f->close_error)
        return arrived ? f->close_error : 0;
    memset(f->placed + window->page, true, window->count);
    return 0;
}

static int fetch(struct gaia_frames *base, uint64_t page, unsigned count, void *const *pages_out)
{
    struct frames *f = (struct frames *)base;

    assert_in_range(count, 1, GAIA_FETCH_MAX);
    assert_true(f->open > 0); /* else nobody knows whose memory it is */
    f->fetches++;
    for (unsigned i = 0; i < count && !f->fetch_error; i++)
        memcpy(pages_out[i], f->memory + (page + i) * PAGE, PAGE);
    return f->fetch_error;
}

static int drop(struct gaia_frames *base, uint64_t page, uint64_t count)
{
    memset(((struct frames *)base)->placed + page, false, count);
    return 0;
}

static const struct gaia_frames_ops ops = {
    .open_window = open_window, .close_window = close_window, .fetch = fetch, .drop = drop};

static struct gaia_transport *transport;

static int set_up(void **state)
{
    const struct gaia_transport_config config = {.carrier = GAIA_CARRIER_LOCAL,
                                                 .address = "gaiafs-test-window",
                                                 .timeout_ms = 1000,
                                                 .path = GAIA_PATH_FAULTS};

    (void)state;
    if (gaia_transport_open(&config, &transport))
        return -1;
    memset(&frames, 0, sizeof frames);
    frames.base.ops = &ops;
    frames.standing = (struct gaia_standing){
        .address = frames.memory, .length = sizeof frames.memory, .reaches = &frames.reaches};
    frames.opens_well = UINT32_MAX;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i % 251 + i / PAGE);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    gaia_standing_end(&frames.standing);
    gaia_transport_close(transport);
    return 0;
}

/* Its transport is to bring bytes there. */
static void begin(struct gaia_window *window)
{
    assert_int_equal(open_window(&frames.base, FIRST, COUNT, window), 0);
    assert_int_equal(gaia_standing_register(&frames.standing, transport, &window->registered), 0);
}

static enum gaia_reach known(void)
{
    return gaia_standing_reach(&frames.standing, GAIA_PATH_FAULTS);
}

static bool is_placed(void)
{
    for (unsigned i = 0; i < PAGES; i++)
        if (frames.placed[i] != (i >= FIRST && i < FIRST + COUNT))
            return false;
    return true;
}

/* A transfer that carries so many of its bytes, and ends like this. */
static int carry(size_t arrive, int error)
{
    struct gaia_window window;
    bool doubted;

    begin(&window);
    doubted = gaia_window_is_doubted(&window);
    int looked = doubted ? gaia_window_look(&frames.base, &window, bytes) : 0;
    if (!looked)
        memcpy(window.memory, bytes, arrive);
    error = gaia_window_end(&frames.base, &window, GAIA_PATH_FAULTS, looked ? looked : error);
    assert_int_equal(frames.open, 0);
    return error;
}

static void test_bytes_arrive(void **state)
{
    (void)state;
    assert_int_equal(carry(sizeof bytes, 0), 0);
    assert_int_equal(known(), GAIA_REACH_PROVEN);
    assert_int_equal(gaia_standing_reach(&frames.standing, GAIA_PATH_CALLS), GAIA_REACH_UNKNOWN);
    assert_true(is_placed());
    unsigned fetches = frames.fetches;
    assert_int_equal(carry(sizeof bytes, 0), 0);
    assert_int_equal(frames.fetches, fetches);
}

static void test_bytes_do_not_arrive(void **state)
{
    (void)state;
    assert_int_equal(carry(sizeof bytes - 1, 0), -EOPNOTSUPP); /* the last one is missing */
    assert_int_equal(known(), GAIA_REACH_NONE);
    assert_false(frames.placed[FIRST]);
}

static void test_bytes_are_there_before(void **state)
{
    (void)state;
    memcpy(frames.memory + FIRST * PAGE, bytes, sizeof bytes);
    assert_int_equal(carry(0, 0), 0);
    assert_int_equal(known(), GAIA_REACH_UNKNOWN);
    assert_true(is_placed());
    frames.memory[FIRST * PAGE + sizeof bytes - 1]++;
    assert_int_equal(carry(sizeof bytes, 0), 0);
    assert_int_equal(known(), GAIA_REACH_PROVEN);
}

/* Transfers that fail are not looked at: what is learnt of them is not this file's affair. */
static void test_transfers_that_fail(void **state)
{
    (void)state;
    assert_int_equal(carry(5, -EIO), -EIO);
    assert_false(frames.placed[FIRST]);
    assert_int_equal(known(), GAIA_REACH_UNKNOWN);
    frames.fetch_error = -EIO;
    assert_int_equal(carry(sizeof bytes, 0), -EIO); /* not known what was there: it is not even tried */
    assert_false(frames.placed[FIRST]);
    frames.fetch_error = 0;
    frames.close_error = -ENOMEM;
    assert_int_equal(carry(sizeof bytes, 0), -ENOMEM);
    assert_int_equal(known(), GAIA_REACH_UNKNOWN);
}

/* Afterwards it can't be looked at: so nobody knows what is there, and nothing is placed. */
static void test_looks_that_fail(void **state)
{
    struct gaia_window window;

    (void)state;
    for (unsigned turn = 0; turn < 2; turn++) {
        begin(&window);
        assert_int_equal(gaia_window_look(&frames.base, &window, bytes), 0);
        frames.fetch_error = turn ? -EIO : 0;
        frames.opens_well = turn;
        assert_int_equal(gaia_window_end(&frames.base, &window, GAIA_PATH_FAULTS, 0),
                         turn ? -EIO : -EOPNOTSUPP);
        assert_false(frames.placed[FIRST]);
        assert_int_equal(frames.open, 0);
        assert_int_equal(known(), GAIA_REACH_UNKNOWN);
        frames.opens_well = UINT32_MAX;
    }
}

/* It began when nobody doubted any more, or had not been asked, and others have found out: what it brought is
 * not trusted, though nobody had looked before. */
static void test_others_learn_meanwhile(void **state)
{
    struct gaia_window window;

    (void)state;
    begin(&window);
    gaia_standing_prove(&frames.standing, GAIA_PATH_FAULTS, window.registered);
    assert_false(gaia_window_is_doubted(&window));
    gaia_standing_give_up(&frames.standing, GAIA_PATH_FAULTS);
    assert_int_equal(gaia_window_end(&frames.base, &window, GAIA_PATH_FAULTS, 0), -EOPNOTSUPP);
    assert_false(frames.placed[FIRST]);
    assert_int_equal(frames.open, 0);
    /* By another registration it is as it was. */
    assert_int_equal(open_window(&frames.base, FIRST, COUNT, &window), 0);
    assert_true(gaia_window_is_doubted(&window));
    assert_int_equal(gaia_window_end(&frames.base, &window, GAIA_PATH_CALLS, -EIO), -EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bytes_arrive, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bytes_do_not_arrive, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bytes_are_there_before, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_transfers_that_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_looks_that_fail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_others_learn_meanwhile, set_up, tear_down),
    };

    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
