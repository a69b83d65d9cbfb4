/* SPDX-License-Identifier: Apache-2.0 */
/* The claim of a file that several mounts may have (cache/claim.h): when it is given up. What its two ends do
 * to WRITEs on their way is in test_heal.c. */
#include "tests/cache/fixture.inc"

#include "cache/internal.h"

#define AT 200u /* the byte that is looked at */

static struct fixture f;
static struct device_map map;

static void device_unmap(void)
{
    assert_int_equal(cache_map_close(f.client, map.id), 0);
    munmap(map.bytes, FIXTURE_PAGES * 4096);
}

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
    device_unmap();
    bool stays = claimed();
    f.invalidate_error = 0;
    map = device_map(&f, 0);
    device_unmap();
    bool goes = !claimed();
    assert_int_equal(pread(f.fd, &last, 1, AT), 1);
    fixture_stop(&f);
    assert_true(stays);
    assert_true(goes);
    assert_int_equal(last, 's');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim_stays_when_the_kernel_drops_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
