/* SPDX-License-Identifier: Apache-2.0 */
/* Two that drop one page: the second one, who finds it forgotten, waits until its frame is free. */
#include "tests/cache/fixture.inc"
#include "tests/cache/second.inc"

#include "cache/drop.h"

static struct fixture f;
static struct device_map map;
static struct replica *replica;
static enum drop_why second_why;

static int drop_page_0(enum drop_why why)
{
    uint64_t dropped;

    return drop_pages(replica, &(struct copy_pages){.leaf = 0, .pages = 1}, 1, why, &dropped);
}

static void *drop_too(void *argument)
{
    (void)argument;
    assert_int_equal(drop_page_0(second_why), 0);
    returned = true;
    return NULL;
}

static int drop_beside(struct gaia_frames *frames, uint64_t page, uint64_t count)
{
    begin(drop_too);
    if (second_why != DROP_EVICT)
        assert_false(returned); /* the frame is there yet, and a client that had touched it reads it */
    return plain_frames->drop(frames, page, count);
}

static void drop_twice(enum drop_why why)
{
    if (!fixture_start(&f, 1 << 20))
        skip();
    map = device_map(&f, 0);
    replica = SLIST_FIRST(&f.file->replicas);
    assert_int_equal(((volatile uint8_t *)map.bytes)[0], 0);
    pthread_mutex_lock(&f.file->lock);
    while (leaf_find_copy(index_find(&f.file->index, 0), replica)->busy) /* it is shown before it is there */
        pthread_cond_wait(&f.file->changed, &f.file->lock);
    pthread_mutex_unlock(&f.file->lock);
    kernel_write(&f, 0, 0, (const uint8_t *)"w", 1); /* so the device's page is out of date */
    second_why = why;
    f.drop = drop_beside;
    assert_int_equal(drop_page_0(DROP_EVICT), 0);
    assert_null(f.drop);
    end();
    assert_int_equal(map.bytes[0], 'w');
    fixture_stop(&f);
}

static void test_an_acquire_beside_an_eviction(void **state)
{
    (void)state;
    drop_twice(DROP_STALE);
}

static void test_advice_beside_an_eviction(void **state)
{
    (void)state;
    drop_twice(DROP_ADVISED);
}

/* Who wants room goes on to what can go. */
static void test_two_evictions(void **state)
{
    (void)state;
    drop_twice(DROP_EVICT);
}

static page_mask present(uint64_t leaf)
{
    pthread_mutex_lock(&f.file->lock);
    struct leaf *found = index_find(&f.file->index, leaf);
    struct leaf_copy *copy = found ? leaf_find_copy(found, replica) : NULL;
    page_mask pages = copy ? copy->present & ~copy->busy : 0;
    pthread_mutex_unlock(&f.file->lock);
    return pages;
}

/* Advice is about its own pages, of a few leaves of those that the file has. */
static void test_advice_of_a_part(void **state)
{
    const page_mask all = ~UINT64_C(0), low = (UINT64_C(1) << 10) - 1;

    (void)state;
    if (!fixture_start(&f, 4 << 20))
        skip();
    map = device_map(&f, 0);
    replica = SLIST_FIRST(&f.file->replicas);
    for (unsigned page = 0; page < FIXTURE_PAGES; page++)
        assert_int_equal(((volatile uint8_t *)map.bytes)[(size_t)page * 4096], 0);
    for (uint64_t leaf = 0; leaf < FIXTURE_PAGES / LEAF_PAGES; leaf++)
        while (present(leaf) != all)
            usleep(1000);
    assert_int_equal(drop_range(replica, LEAF_PAGES + 10, 2 * LEAF_PAGES), 0);
    assert_true(present(1) == low);
    assert_true(present(2) == 0);
    assert_true(present(3) == (all & ~low));
    for (uint64_t leaf = 0; leaf < FIXTURE_PAGES / LEAF_PAGES; leaf++)
        assert_true((leaf >= 1 && leaf <= 3) || present(leaf) == all);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_acquire_beside_an_eviction),
        cmocka_unit_test(test_advice_beside_an_eviction),
        cmocka_unit_test(test_two_evictions),
        cmocka_unit_test(test_advice_of_a_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
