/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of byte ranges against an array of flags, and what cache/durable.h says to descriptors. Failing syncs
 * are tested through a real mount (tests/mount/test_durability.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>

#include <cmocka.h>

#include "cache/durable.h"
#include "tests/consistency/seed.h"

#define SIZE 4096

static void check_form(const struct ranges *ranges)
{
    const struct range *at = ranges->many ? ranges->many : ranges->few;

    assert_true(ranges->count <= RANGES_MAX);
    for (unsigned i = 0; i < ranges->count; i++) {
        assert_true(at[i].start < at[i].end);
        assert_true(i == 0 || at[i - 1].end < at[i].start);
    }
}

static void fill_flags(const struct ranges *ranges, uint8_t flags[SIZE])
{
    const struct range *at = ranges->many ? ranges->many : ranges->few;

    memset(flags, 0, SIZE);
    for (unsigned i = 0; i < ranges->count; i++)
        memset(flags + at[i].start, 1, (size_t)(at[i].end - at[i].start));
}

static void test_ranges(void **state)
{
    struct ranges ranges = {.count = 0}, copy = {.count = 0};
    uint8_t want[SIZE] = {0}, found[SIZE];

    (void)state;
    for (unsigned round = 0; round < 20000; round++) {
        unsigned start = (unsigned)(seed_next() % SIZE);
        unsigned length = 1 + (unsigned)(seed_next() % (round % 3 ? 8 : 200));
        unsigned end = start + length < SIZE ? start + length : SIZE;
        bool add = seed_next() % 2;
        memset(want + start, add, end - start);
        if (add)
            ranges_add(&ranges, start, end);
        else
            ranges_remove(&ranges, start, end);
        check_form(&ranges);
        fill_flags(&ranges, found);
        assert_memory_equal(found, want, SIZE);
        start = (unsigned)(seed_next() % SIZE);
        end = start + (unsigned)(seed_next() % (SIZE - start < 8 ? SIZE - start + 1 : 8));
        assert_int_equal(ranges_touch(&ranges, start, end), memchr(want + start, 1, end - start) != NULL);
    }
    ranges_add_all(&copy, &ranges);
    fill_flags(&copy, found);
    assert_memory_equal(found, want, SIZE);
    ranges_clear(&copy);
    ranges_clear(&ranges);
    assert_true(ranges_empty(&ranges));
}

/* More than fit: nothing is missing. */
/* An append goes to the end that the file has, wherever its kernel took it to be: what lies between the two
 * is not written, and what was lost of it stays lost. */
static void test_an_append(void **state)
{
    FILE *file = tmpfile();
    struct durable durable;

    (void)state;
    assert_non_null(file);
    int fd = fileno(file);
    durable_init(&durable);
    ranges_add(&durable.lost, 0, 1); /* a sync of the empty file has failed */
    unsigned begun = durable_begin(&durable, fd);
    assert_int_equal(pwrite(fd, "1", 1, 0), 1);
    durable_appended(&durable, begun, fd, 0, 1);
    assert_false(durable_is_lost(&durable));
    assert_int_equal(ftruncate(fd, 8192), 0);
    ranges_add(&durable.lost, 0, 8192);
    ranges_clear(&durable.written);
    begun = durable_begin(&durable, fd);
    assert_int_equal(pwrite(fd, "0123456789", 10, 8192), 10);
    durable_appended(&durable, begun, fd, 4096, 10);
    assert_true(durable_is_lost_in(&durable, 4096, 10));
    assert_true(durable_is_lost_in(&durable, 4200, 10));
    assert_false(durable_is_lost_in(&durable, 8192, 10));
    assert_true(ranges_touch(&durable.written, 8192, 8193));
    assert_true(ranges_touch(&durable.written, 8201, 8202));
    atomic_fetch_add(&durable.failures, 1); /* a sync that came between */
    durable_appended(&durable, begun, fd, 4096, 10);
    assert_true(durable_is_lost_in(&durable, 8192, 10));
    fclose(file);
    durable_destroy(&durable);
}

/* A sync covers what was asked for before it. */
static void test_asked(void **state)
{
    struct durable durable;

    (void)state;
    durable_init(&durable);
    assert_false(durable_is_asked(&durable));
    durable_ask(&durable);
    assert_true(durable_is_asked(&durable));
    uint64_t first = durable_asked(&durable);
    durable_ask(&durable);
    durable_asked_synced(&durable, first);
    assert_true(durable_is_asked(&durable));
    durable_asked_synced(&durable, durable_asked(&durable));
    durable_asked_synced(&durable, first); /* one that was slower */
    assert_false(durable_is_asked(&durable));
    durable_destroy(&durable);
}

static void test_too_many(void **state)
{
    struct ranges ranges = {.count = 0};
    uint8_t want[SIZE] = {0}, found[SIZE];

    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        unsigned at = (unsigned)(seed_next() % (SIZE / 2)) * 2;
        want[at] = 1;
        ranges_add(&ranges, at, at + 1);
        check_form(&ranges);
    }
    assert_int_equal(ranges.count, RANGES_MAX);
    fill_flags(&ranges, found);
    for (unsigned i = 0; i < SIZE; i++)
        assert_true(found[i] || !want[i]);
    ranges_remove(&ranges, 0, SIZE);
    assert_true(ranges_empty(&ranges));
    ranges_clear(&ranges);
}

/* Of many sets that have pieces everywhere, those that come later have no memory. */
static void test_bound(void **state)
{
    struct ranges sets[20] = {0};
    const size_t most = 10 * RANGES_MAX * sizeof(struct range), before = ranges_allocated();

    (void)state;
    ranges_bound(before + most);
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned at = 0; at < 2 * RANGES_MAX; at += 2) {
            ranges_add(&sets[i], at, at + 1);
            assert_true(ranges_touch(&sets[i], at, at + 1));
        }
        for (unsigned at = 0; at < 2 * RANGES_MAX; at += 2)
            assert_true(ranges_touch(&sets[i], at, at + 1));
        check_form(&sets[i]);
        assert_true(ranges_allocated() <= before + most);
    }
    assert_int_equal(sets[0].count, RANGES_MAX);
    assert_int_equal(sets[19].count, RANGES_FEW);
    ranges_clear(&sets[0]);
    for (unsigned at = 0; at < 2 * RANGES_MAX; at += 4)
        ranges_add(&sets[19], 2 * RANGES_MAX + at, 2 * RANGES_MAX + at + 1);
    assert_true(sets[19].count > RANGES_MAX / 4); /* there is some again */
    for (unsigned i = 0; i < 20; i++)
        ranges_clear(&sets[i]);
    assert_int_equal(ranges_allocated(), before);
    ranges_bound(SIZE_MAX);
}

/* What was lost elsewhere each node tells its own; what else nobody was told stays to be told to all. */
static void test_who_is_told_elsewhere(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct durable_seen here, there, later;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    durable_init(&durable);
    durable_open(&durable, false, &here);
    durable_fail_elsewhere(&durable, -EIO);
    durable_fail_elsewhere(&durable, -EIO);
    durable_open_elsewhere(&durable, &there);
    assert_int_equal(durable_sync(&durable, fd, false, &there), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &here), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &here), 0);

    durable_fail(&durable, -ENOSPC);
    durable_fail_elsewhere(&durable, -EIO);
    durable_open_elsewhere(&durable, &later);
    assert_int_equal(durable_sync(&durable, fd, false, &later), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &later), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &there), -EIO);
    for (unsigned i = 0; i < 3; i++)
        durable_close(&durable);
    close(fd);
    durable_destroy(&durable);
}

static void test_who_is_told(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct durable_seen first, second, late, map;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    durable_init(&durable);
    durable_open(&durable, false, &first);
    durable_open(&durable, false, &second);
    durable_fail(&durable, -ENOSPC);
    durable_open(&durable, false, &late); /* nobody was told yet */
    assert_int_equal(durable_sync(&durable, fd, true, &first), -ENOSPC);
    assert_int_equal(durable_sync(&durable, fd, true, &first), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &late), -ENOSPC);
    durable_open(&durable, true, &map); /* by now somebody was */
    assert_int_equal(durable_sync(&durable, fd, false, &map), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &second), -ENOSPC);

    /* What the kernel's write-backs have lost is lost for all; maps must be told of it by us, too. */
    durable_lose(&durable, 100, 10, -EIO);
    assert_true(durable_is_lost(&durable));
    assert_int_equal(durable_sync(&durable, fd, false, &first), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &first), -EIO);
    durable_wrote(&durable, durable_begin(&durable, fd), 100, 10, DURABLE_STORED);
    assert_false(durable_is_lost(&durable));
    assert_int_equal(durable_sync(&durable, fd, false, &second), 0);
    assert_int_equal(durable_sync(&durable, fd, false, &map), -EIO);
    assert_int_equal(durable_sync(&durable, fd, false, &map), 0);

    /* Begun before a sync has failed: it may be lost with the rest. */
    unsigned begun = durable_begin(&durable, fd);
    atomic_fetch_add(&durable.failures, 1);
    durable_wrote(&durable, begun, 0, 10, DURABLE_STORED);
    assert_true(durable_is_lost(&durable));
    durable_cut(&durable, 0);
    assert_false(durable_is_lost(&durable));
    for (unsigned i = 0; i < 4; i++)
        durable_close(&durable);
    durable_destroy(&durable);
    close(fd);
}

static void assert_lost(struct durable *durable, off_t offset, bool lost)
{
    assert_int_equal(durable_is_lost_in(durable, offset, 1), lost);
}

/* What the kernel could not write back its page still has, until it asks for it anew: then a page that is
 * written for another byte's sake does not bring it back. */
static void test_what_comes_again(void **state)
{
    struct durable durable;
    unsigned begun = 0;

    (void)state;
    durable_init(&durable);
    for (off_t page = 0; page < 4; page++)
        durable_lose(&durable, page * 4096, 4096, -ENOSPC);
    durable_wrote(&durable, begun, 0, 2 * 4096, DURABLE_MERGED); /* the home never had it */
    assert_lost(&durable, 0, true);
    assert_lost(&durable, 4096, true);
    durable_wrote(&durable, begun, 0, 4096, DURABLE_WRITTEN_BACK);
    assert_lost(&durable, 0, false);
    assert_lost(&durable, 4096, true);
    durable_read(&durable, 4096 + 100, 2 * 4096);
    durable_wrote(&durable, begun, 4096, 3 * 4096, DURABLE_WRITTEN_BACK);
    assert_lost(&durable, 4096, false); /* of what was not asked for */
    assert_lost(&durable, 4096 + 100, true);
    assert_lost(&durable, 3 * 4096 + 99, true);
    assert_lost(&durable, 3 * 4096 + 100, false);
    durable_wrote(&durable, begun, 4096 + 100, 10, DURABLE_STORED);
    assert_lost(&durable, 4096 + 100, false);
    assert_lost(&durable, 4096 + 110, true);
    durable_wrote(&durable, begun, 4096, 2 * 4096, DURABLE_MERGED);
    assert_lost(&durable, 4096 + 109, false);
    assert_lost(&durable, 4096 + 110, true);
    durable_cut(&durable, 2 * 4096);
    assert_lost(&durable, 2 * 4096, false);
    durable_lose(&durable, 2 * 4096, 4096, -EIO); /* it has come again since, and could not be written */
    durable_wrote(&durable, begun, 2 * 4096, 4096, DURABLE_WRITTEN_BACK);
    assert_lost(&durable, 2 * 4096, false);
    assert_lost(&durable, 4096 + 110, true);
    durable_destroy(&durable);
}

/* The kernel, as far as two syncs of one description meet in it: pages that both wait for can't be written,
 * and it tells one of them, here the last to come. Each waits a while for the other, which must not come at
 * all; the one that was told comes back later than the other. */
static pthread_mutex_t kernel_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static pthread_cond_t kernel_changed = PTHREAD_COND_INITIALIZER;
static unsigned entered, left;
static bool breaks;            /* what is to be written can't be */
static struct durable *closes; /* its last user goes just before the kernel gets the call */

static void wait_a_while(const unsigned *count, unsigned wanted)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    while (*count < wanted && pthread_cond_timedwait(&kernel_changed, &kernel_lock, &until) != ETIMEDOUT)
        ;
}

/* In place of libc's, which cache/durable.c calls. */
int fsync(int fd)
{
    bool told;

    if (closes)
        durable_close(closes);
    closes = NULL;
    pthread_mutex_lock(&kernel_lock);
    if (!breaks) {
        pthread_mutex_unlock(&kernel_lock);
        return (int)syscall(SYS_fsync, fd);
    }
    unsigned number = ++entered;
    pthread_cond_broadcast(&kernel_changed);
    wait_a_while(&entered, 2);
    told = number == entered;
    if (told) {
        wait_a_while(&left, 1);
        breaks = false;
    }
    pthread_mutex_unlock(&kernel_lock);
    errno = EIO;
    return told ? -1 : 0;
}

struct syncer {
    struct durable *durable;
    struct durable_seen seen;
    off_t offset;
    int fd, error;
    pthread_t thread;
};

static void *write_and_sync(void *argument)
{
    struct syncer *me = argument;

    durable_wrote(me->durable, durable_begin(me->durable, me->fd), me->offset, 10, DURABLE_STORED);
    me->error = durable_sync(me->durable, me->fd, false, &me->seen);
    pthread_mutex_lock(&kernel_lock);
    left++;
    pthread_cond_broadcast(&kernel_changed);
    pthread_mutex_unlock(&kernel_lock);
    return NULL;
}

static void test_two_at_once(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct syncer syncers[2];
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, 100), 0);
    durable_init(&durable);
    entered = left = 0;
    breaks = true;
    for (unsigned i = 0; i < 2; i++) {
        syncers[i] = (struct syncer){.durable = &durable, .offset = i * 50, .fd = fd};
        durable_open(&durable, false, &syncers[i].seen);
        assert_int_equal(pthread_create(&syncers[i].thread, NULL, write_and_sync, &syncers[i]), 0);
        pthread_mutex_lock(&kernel_lock);
        wait_a_while(&entered, i + 1);
        pthread_mutex_unlock(&kernel_lock);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(syncers[i].thread, NULL);
    assert_false(breaks);
    assert_int_equal(syncers[0].error, -EIO);
    assert_int_equal(syncers[1].error, -EIO);
    /* Both have lost their bytes. */
    for (unsigned i = 2; i-- > 0;) {
        assert_int_equal(durable_sync(&durable, fd, false, &syncers[i].seen), -EIO);
        durable_wrote(&durable, durable_begin(&durable, fd), syncers[i].offset, 10, DURABLE_STORED);
        assert_int_equal(durable_sync(&durable, fd, false, &syncers[i].seen), i ? -EIO : 0);
    }
    durable_close(&durable);
    durable_close(&durable);
    durable_destroy(&durable);
    close(fd);
}

/* Passthrough: any byte may be written at any time, and nobody tells. */
static void test_blind(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct durable_seen seen;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    assert_int_equal(ftruncate(fd, 100), 0);
    durable_init(&durable);
    durable_open(&durable, false, &seen);
    durable_blind(&durable, fd, true);
    assert_int_equal(durable_sync(&durable, fd, false, &seen), 0);
    assert_true(durable_is_written(&durable)); /* since then, for all that is known */
    entered = left = 0;
    breaks = true;
    assert_int_equal(durable_sync(&durable, fd, false, &seen), -EIO);
    durable_wrote(&durable, durable_begin(&durable, fd), 0, 99, DURABLE_STORED);
    assert_int_equal(durable_sync(&durable, fd, false, &seen), -EIO);
    assert_true(durable_is_lost(&durable));
    durable_blind(&durable, fd, false);
    durable_wrote(&durable, durable_begin(&durable, fd), 99, 1, DURABLE_STORED);
    assert_int_equal(durable_sync(&durable, fd, false, &seen), 0);
    assert_false(durable_is_written(&durable));
    durable_close(&durable);
    durable_destroy(&durable);
    close(fd);
}

/* Who stores for another node has no descriptor of his own: the last one may be closed beside it. */
static void test_closed_beside_a_store(void **state)
{
    char path[] = "/var/tmp/gaiafs-durable-XXXXXX";
    struct durable durable;
    struct durable_seen seen;
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    unlink(path);
    durable_init(&durable);
    durable_open(&durable, false, &seen);
    durable_wrote(&durable, durable_begin(&durable, fd), 0, 10, DURABLE_STORED);
    assert_true(durable.fd >= 0 && durable.fd != fd);
    closes = &durable;
    assert_int_equal(durable_store(&durable, fd), 0);
    assert_null(closes);
    assert_int_equal(durable.result, 0); /* not EBADF */
    assert_int_equal(durable.users, 0);
    assert_int_equal(durable.fd, -1);
    assert_int_equal(durable_store(&durable, fd), 0); /* nobody has it: nothing is done */
    durable_destroy(&durable);
    close(fd);
}

int main(void)
{
    seed_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_comes_again),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_an_append),
        cmocka_unit_test(test_asked),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_who_is_told),
        cmocka_unit_test(test_who_is_told_elsewhere),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_blind),
        cmocka_unit_test(test_closed_beside_a_store),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
