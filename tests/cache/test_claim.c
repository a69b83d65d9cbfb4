/* SPDX-License-Identifier: Apache-2.0 */
/* The claim of a file that several mounts may have (cache/claim.h): when it is given up. What its two ends do
 * to WRITEs on their way is in test_heal.c. */
#include "tests/cache/fixture.inc"

#include <signal.h>
#include <sys/resource.h>

#include "cache/internal.h"
#include "cache/map.h"

#define AT 200u /* the byte that is looked at */

static struct fixture f;
static struct device_map map;

static bool claimed(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = INT64_MAX - 1, .l_len = 1};
    int fd = open(f.path, O_RDWR);

    assert_int_equal(fcntl(fd, F_OFD_GETLK, &lock), 0);
    close(fd);
    return lock.l_type != F_UNLCK;
}

/* What CPUs have stored may be in pages that are not written back: nobody else may have the file yet. */
static void test_claim_stays_when_the_kernel_drops_nothing(void **state)
{
    uint8_t last;

    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 1 << 20))
        skip();
    fixture_shared = false;
    map = device_map(&f, 0);
    kernel_store(&f, 0, AT, 's');
    f.invalidate_error = -ENOMEM;
    device_unmap(&f, &map);
    bool stays = claimed();
    f.invalidate_error = 0;
    map = device_map(&f, 0);
    device_unmap(&f, &map);
    bool goes = !claimed();
    last = home_byte(&f, AT);
    fixture_stop(&f);
    assert_true(stays);
    assert_true(goes);
    assert_int_equal(last, 's');
}

/* To another node, while a map was being opened here: its home could not claim it, for as long as it is known
 * here. */
static void test_a_claim_that_comes_after_the_file_was_given_up(void **state)
{
    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 1 << 20))
        skip();
    fixture_shared = false;
    cache_file_give_up(f.file);
    int error = claim_take(f.file);
    bool held = claimed();
    fixture_stop(&f);
    assert_int_equal(error, -EIO);
    assert_false(held);
}

/* Programs of other mounts read the file alone: where the bytes can't be brought there, no release says that
 * they can be seen, and the next one tries again. */
static void test_a_release_that_others_would_not_see(void **state)
{
    const struct rlimit part = {.rlim_cur = 5 * 4096, .rlim_max = RLIM_INFINITY},
                        all = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    uint8_t seen[2];

    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 1 << 20))
        skip();
    fixture_shared = false;
    signal(SIGXFSZ, SIG_IGN);
    map = device_map(&f, 0);
    map.bytes[4 * 4096] = 4;
    map.bytes[5 * 4096] = 5;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &part), 0);
    int failed = device_release(&f, &map);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    int again = device_release(&f, &map);
    assert_int_equal(pread(f.fd, seen, 1, 4 * 4096), 1);
    assert_int_equal(pread(f.fd, seen + 1, 1, 5 * 4096), 1);
    device_unmap(&f, &map);
    fixture_stop(&f);
    assert_int_equal(failed, -EFBIG);
    assert_int_equal(again, 0);
    assert_int_equal(seen[0], 4);
    assert_int_equal(seen[1], 5);
}

static int open_one_more(uint32_t *id_out)
{
    struct cache_map_request request = {.file = f.file, .count = FIXTURE_PAGES, .writable = true};
    int frames, state;
    uint64_t chunk;
    int error = cache_map_open(f.client, &request, id_out, &frames, &state, &chunk);

    if (!error) {
        close(frames);
        close(state);
    }
    return error;
}

static unsigned descriptors(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 4096; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* One for which there is no number any more has no descriptor, no use and no claim: the last of the others
 * gives that up. */
static void test_a_map_too_many(void **state)
{
    static uint32_t ids[MAPS_MAX];
    uint32_t none;

    (void)state;
    fixture_shared = true;
    if (!fixture_start(&f, 4 << 20))
        skip();
    fixture_shared = false;
    for (unsigned i = 0; i < MAPS_MAX; i++)
        assert_int_equal(open_one_more(&ids[i]), 0);
    unsigned had = descriptors(), used = f.file->uses, users = f.durable.users;
    uint64_t blocks = f.client->blocks;
    assert_int_equal(open_one_more(&none), -EMFILE);
    assert_int_equal(descriptors(), had);
    assert_int_equal(f.file->uses, used);
    assert_int_equal(f.durable.users, users);
    assert_int_equal(f.client->blocks, blocks);
    for (unsigned i = 0; i < MAPS_MAX; i++) {
        assert_true(claimed());
        assert_int_equal(cache_map_close(f.client, ids[i]), 0);
    }
    assert_false(claimed());
    assert_int_equal(open_one_more(&none), 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim_stays_when_the_kernel_drops_nothing),
        cmocka_unit_test(test_a_claim_that_comes_after_the_file_was_given_up),
        cmocka_unit_test(test_a_release_that_others_would_not_see),
        cmocka_unit_test(test_a_map_too_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
