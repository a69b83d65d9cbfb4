/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations of a CPU and two devices, one after the other, on a file whose end moves, told or not,
 * and that can't always be written: against an oracle of each byte. Every device has bytes of its own; the
 * CPU has others, and shares some with the first device. GAIA_TEST_SEED: see seed.h. */
#include "tests/cache/fixture.inc"

#include "cache/internal.h"
#include "gpu/gaia.h"
#include "tests/consistency/seed.h"
#include "tests/gate.h"

#define PAGE 4096u
#define BYTES (3u * PAGE)
#define STEPS 200u
#define SPOTS 15u

/* Who tells the cache of what a CPU does: everybody; in passthrough nobody, but of cuts; or there is another
 * mount, which tells of nothing. */
enum mode { TRACKED, PASSED, SHARED };

struct byte {
    uint8_t home, stored[2], before[2]; /* by the devices since their last release, and what was there then */
    bool dirty[2];                      /* a device has stored, and not released */
    bool fresh; /* the CPU has written since the first device has acquired, which does not know of it */
    bool raced; /* two have stored, and neither knew of the other: one of the two is there */
    bool again; /* and a device has stored since, and knew of it */
};

static struct fixture f;
static struct device_map map[2];
static enum mode mode;
static off_t size;
static struct byte oracle[BYTES];
static unsigned spots[SPOTS]; /* bytes of which most is done, so that they meet */
/* Of a device some of what was released may not be in the file, as that could not be written: what another
 * mount cuts off then may come back. */
static bool kept[2];
static _Atomic int home_fd = -1; /* the cache's descriptor of the file */
static _Atomic off_t room;       /* no byte behind it can be written; BYTES: all can */

/* In place of libc's, which the cache calls. */
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
    if (fd == f.fd || fd == home_fd) {
        if (offset >= room) {
            errno = ENOSPC;
            return -1;
        }
        length = offset + (off_t)length > room ? (size_t)(room - offset) : length;
    }
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}

static unsigned choose(void)
{
    return seed_below(4) ? spots[seed_below(SPOTS)] : (unsigned)seed_below(BYTES);
}

static void may_fill(void)
{
    room = seed_below(4) ? (off_t)BYTES : (off_t)choose();
}

static bool is_cpus(unsigned at)
{
    return at % 5 == 0 || at % 5 == 3;
}

static bool is_devices(unsigned at, unsigned device)
{
    return at % 5 == device + 1 || (at % 5 == 3 && !device);
}

static bool is_known(const struct byte *byte)
{
    return !byte->dirty[0] && !byte->dirty[1] && !byte->raced;
}

static void check(const char *who, const volatile uint8_t *bytes)
{
    for (unsigned at = 0; at < (unsigned)size; at++)
        if (is_known(&oracle[at]) && bytes[at] != oracle[at].home) {
            print_error("mode %u: %s sees %u at %u, not %u\n", mode, who, bytes[at], at, oracle[at].home);
            fail();
        }
}

static void check_home(void)
{
    uint8_t bytes[BYTES];
    struct cache_read read;
    ssize_t n;

    if (mode == TRACKED) {
        n = cache_file_read(f.file, f.fd, bytes, BYTES, 0, 0, &read);
        cache_file_read_end(f.file, &read);
    } else {
        n = pread(f.fd, bytes, BYTES, 0);
    }
    assert_int_equal(n, size);
    check("the CPU", bytes);
}

static void cpu_writes(void)
{
    unsigned at = choose();
    uint8_t value = (uint8_t)seed_below(3);

    if (!is_cpus(at) || (at >= size && seed_below(2)))
        return;
    bool told = mode == TRACKED || (mode == SHARED && seed_below(2));
    if (told)
        may_fill();
    ssize_t n = told ? cache_file_write(f.file, f.fd, &value, 1, at, 0) : pwrite(f.fd, &value, 1, at);
    room = BYTES;
    if (n != 1)
        return;
    struct byte *byte = &oracle[at];
    size = at < size ? size : (off_t)at + 1;
    byte->home = value;
    byte->fresh = true;
    byte->raced = byte->dirty[0] || byte->dirty[1];
    byte->again = false;
}

static void end_moves(void)
{
    off_t end = 1 + (off_t)choose();
    bool told = mode == TRACKED || (mode == PASSED && end < size) || seed_below(2);

    assert_int_equal(told ? cache_file_truncate(f.file, f.fd, end) : ftruncate(f.fd, end), 0);
    for (unsigned at = (unsigned)end; at < BYTES; at++) {
        struct byte *byte = &oracle[at];
        bool comes = !told && (byte->dirty[0] || byte->dirty[1] || kept[0] || kept[1]);
        if (!comes)
            *byte = (struct byte){0};
        byte->raced = comes;
        byte->again = false;
    }
    size = end;
}

/* Of the pages that the frames have, before the end that the file has. */
static void device_stores(unsigned device)
{
    off_t framed = (off_t)file_pages(f.file->size) * PAGE, end = size < framed ? size : framed;

    for (size_t left = 1 + seed_below(8); left; left--) {
        unsigned at = choose();
        volatile uint8_t *there = map[device].bytes + at;
        uint8_t value = (uint8_t)seed_below(3);
        if (at >= end || !is_devices(at, device) || *there == value) /* what changes nothing is no store */
            continue;
        struct byte *byte = &oracle[at];
        if (!byte->dirty[device])
            byte->before[device] = *there;
        byte->again |= !byte->dirty[device];
        if (byte->fresh) {
            byte->raced = true;
            byte->again = false;
        }
        byte->dirty[device] = true;
        byte->stored[device] = *there = value;
    }
}

/* Who stores what was there when he released last need not have stored at all. */
static void was_released(unsigned device)
{
    for (unsigned at = 0; at < BYTES; at++) {
        struct byte *byte = &oracle[at];
        if (!byte->dirty[device])
            continue;
        byte->dirty[device] = false;
        if (byte->stored[device] == byte->before[device] && byte->stored[device] != byte->home)
            byte->raced = true;
        else if (!byte->raced || byte->again) {
            byte->home = byte->stored[device];
            byte->raced = false;
        }
        byte->again = false;
    }
}

static void synchronize(unsigned device, bool acquires)
{
    may_fill();
    kept[device] = room < (off_t)BYTES;
    if (mode == TRACKED && !seed_below(12))
        f.invalidate_error = -EIO;
    int error = acquires ? device_acquire(&f, &map[device]) : device_release(&f, &map[device]);
    room = BYTES;
    f.invalidate_error = 0;
    if (error)
        return;
    was_released(device);
    if (!acquires)
        return;
    for (unsigned at = 0; at < BYTES; at++)
        oracle[at].fresh &= device != 0;
    check("a device", map[device].bytes);
}

static void leave(unsigned device)
{
    may_fill();
    cache_map_advise(f.client, map[device].id, seed_below(BYTES / PAGE) * PAGE, PAGE, GAIA_ADV_DONTNEED);
    room = BYTES;
}

static void collect(void)
{
    may_fill();
    cache_file_collect(f.file);
    room = BYTES;
    if (mode == TRACKED)
        check_home();
}

static void forget_in_memory(void)
{
    fdatasync(f.fd);
    posix_fadvise(f.fd, 0, 0, POSIX_FADV_DONTNEED);
}

static void step(void)
{
    unsigned device = (unsigned)seed_below(2);

    switch (seed_below(15)) {
    case 0:
    case 1:
    case 2:
    case 3:
        cpu_writes();
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        device_stores(device);
        break;
    case 8:
    case 9:
        synchronize(device, false);
        break;
    case 10:
        synchronize(device, true);
        break;
    case 11:
        end_moves();
        break;
    case 12:
        leave(device);
        break;
    case 13:
        forget_in_memory();
        break;
    default:
        collect();
    }
}

static bool begin(void)
{
    room = BYTES;
    fixture_shared = mode == SHARED;
    if (!fixture_start(&f, seed_below(2) ? 1 << 20 : 5 * PAGE))
        return false;
    home_fd = f.file->fd;
    memset(oracle, 0, sizeof oracle);
    kept[0] = kept[1] = false;
    for (unsigned i = 0; i < SPOTS; i++)
        spots[i] = (unsigned)seed_below(BYTES);
    size = 1 + (off_t)choose();
    assert_int_equal(ftruncate(f.fd, size), 0);
    if (mode == PASSED)
        cache_file_pass(f.file, &(struct cache_passed){.passed = true, .written = true});
    for (unsigned device = 0; device < 2; device++)
        map[device] = device_map(&f, device);
    return true;
}

static void end(void)
{
    for (unsigned device = 0; device < 2; device++) {
        assert_int_equal(device_release(&f, &map[device]), 0);
        was_released(device);
    }
    check_home();
    for (unsigned device = 0; device < 2; device++) {
        assert_int_equal(device_acquire(&f, &map[device]), 0);
        check("a device", map[device].bytes);
        munmap(map[device].bytes, FIXTURE_PAGES * PAGE);
    }
    home_fd = -1;
    fixture_stop(&f);
}

static void test_random_ends(void **state)
{
    (void)state;
    for (unsigned round = 0; round < so_many(60); round++) {
        mode = round % 3;
        if (!begin())
            skip();
        for (unsigned i = 0; i < STEPS; i++)
            step();
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_ends)};

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
