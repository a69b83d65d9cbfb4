# SPDX-License-Identifier: Apache-2.0
"""A failed fsync is told to every open descriptor, and never turns into success later: not before the lost bytes were
written again, or cut off.

The failures are put in by tests/faults; each is shown to have landed. tests/vm cuts the power.
"""
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import shutil
import struct
import subprocess
import threading
import time

import pytest

import gaia
import helpers
from helpers import ROWS, daemon_with_faults, descriptors, error_of, forget_inodes, wait_until, write_file

PAGE = 4096
MIB = 1 << 20


class Failing:
    """A mount whose daemon's calls can be made to fail."""

    def __init__(self, mount, workdir, monkeypatch, options="passthrough=off"):
        self.plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
        # What the kernel passes through nobody hears of: test_passthrough_ends.py has what is promised then.
        self.mount = mount(options, env=env)
        self.path = os.path.join(self.mount.mnt, "f")
        self.below = os.path.join(self.mount.data, "f")

    @contextlib.contextmanager
    def failing(self, row, error=errno.EIO, number=1, sticky=False):
        """The call fails once within, or each time; the test fails if it never does."""
        self.plan.arm(ROWS.index(row), error, number, int(sticky))
        yield
        self.plan.row = -1
        assert self.plan.landed, f"no {row}() has failed"

    def make(self, size=64 * PAGE):
        with open(self.path, "wb") as file:
            file.write(bytes(size))
            file.flush()
            os.fsync(file.fileno())


@pytest.fixture
def failing(mount, workdir, monkeypatch):
    return Failing(mount, workdir, monkeypatch)


@pytest.fixture
def fds(failing):
    """A function that opens the file; all are closed before the unmount."""
    opened = []

    def start(flags=os.O_RDWR):
        opened.append(os.open(failing.path, flags))
        return opened[-1]

    yield start
    for fd in opened:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.fixture
def maps(fds):
    """A function that maps the whole file into a device, through a descriptor of its own."""
    opened = []

    def start(name="soft:0"):
        device = gaia.Device(name)
        opened.append(device)
        fd = fds()
        return device.mmap(fd, os.fstat(fd).st_size)

    yield start
    for device in opened:
        device.close()


SYNCS = {"fsync": os.fsync, "fdatasync": os.fdatasync}


@pytest.mark.parametrize("tracked", [False, True], ids=["", "mapped"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("row", SYNCS)
def test_each_descriptor_and_for_ever(failing, fds, maps, row, code, tracked):
    failing.make()
    one, two, quiet = fds(), fds(), fds()
    if tracked:
        maps()
    os.pwrite(one, b"lost" * 10, 5000)
    with failing.failing(row, code):
        assert error_of(SYNCS[row], one) == code
    for fd in (two, one, two, fds(), fds(os.O_RDONLY), one):  # the storage says 0 by now
        assert error_of(os.fsync, fd) == code
        assert error_of(os.fdatasync, fd) == code
    os.pwrite(one, b"lost" * 9, 5000)  # not all of it
    assert error_of(os.fsync, one) == code
    os.pwrite(two, b"last", 5036)
    assert error_of(os.fsync, one) == 0
    assert error_of(os.fsync, two) == 0
    assert error_of(os.fsync, quiet) == code  # was open, and has not asked yet
    assert error_of(os.fsync, quiet) == 0
    assert error_of(os.fsync, fds()) == 0


def test_two_syncs_that_failed(failing, fds):
    """What the second one lost is not forgotten because the first one's bytes were written again."""
    failing.make()
    fd = fds()
    for at in (5000, 50000):
        os.pwrite(fd, b"lost", at)
        with failing.failing("fsync"):
            assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"here", 5000)
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"here", 50000)
    assert error_of(os.fsync, fd) == 0


def test_interrupted_is_not_failed(failing, fds):
    failing.make()
    fd = fds()
    os.pwrite(fd, b"x", 0)
    with failing.failing("fsync", errno.EINTR):
        os.fsync(fd)


@pytest.mark.parametrize("way", ["ftruncate", "truncate", "O_TRUNC", "punch", "zero"])
def test_cut_off_and_zeroed_bytes_are_lost_no_more(failing, fds, way):
    failing.make()
    fd = fds()
    os.pwrite(fd, b"lost", 40 * PAGE)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    assert error_of(os.fsync, fd) == errno.EIO
    if way == "ftruncate":
        os.ftruncate(fd, 40 * PAGE + 1)
        assert error_of(os.fsync, fd) == errno.EIO  # one byte of it is there yet
        os.ftruncate(fd, 40 * PAGE)
    elif way == "truncate":
        os.truncate(failing.path, 40 * PAGE)
    elif way == "O_TRUNC":
        fds(os.O_RDWR | os.O_TRUNC)
    else:
        helper = {"punch": 3, "zero": 16}[way]  # FALLOC_FL_PUNCH_HOLE | KEEP_SIZE, FALLOC_FL_ZERO_RANGE
        if gaia.ctypes.CDLL(None).fallocate(fd, helper, gaia.ctypes.c_long(40 * PAGE), gaia.ctypes.c_long(PAGE)):
            pytest.skip("the data directory's filesystem can't")
    assert error_of(os.fsync, fd) == 0


def test_random_writes(failing, fds):
    """Against a set of bytes as the oracle."""
    seed = int(os.environ.get("GAIA_TEST_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    size = 200
    failing.make(size)
    fd = fds()
    since, lost = set(), set()
    failures = 0
    for _ in range(1500):
        start = rng.randrange(size)
        length = rng.randint(1, min(40, size - start))
        what = rng.random()
        if what < 0.7:
            os.pwrite(fd, bytes([rng.randrange(256)]) * length, start)
            since |= set(range(start, start + length))
            lost -= set(range(start, start + length))
        elif what < 0.73 and lost:
            end = rng.randrange(size)
            os.ftruncate(fd, end)
            os.ftruncate(fd, size)
            cut = set(range(end, size))
            zeroed = cut if end else set()  # bytes of a page that stays; the rest is a hole, of which nothing is written
            since, lost = since - cut | zeroed, lost - cut
        elif what < 0.8:
            with failing.failing("fsync"):
                assert error_of(os.fsync, fd) == errno.EIO
            failures += 1
            lost |= since
            lost = lost or set(range(size))
            since = set()
        else:
            assert error_of(os.fsync, fd) == (errno.EIO if lost else 0), sorted(lost)
            since = set()
    assert failures


def test_nothing_but_the_size(failing, fds):
    """No byte was written, but the sync failed: an empty file, and one that was cut."""
    failing.make(0)
    fd = fds()
    for size in (0, 100):
        assert os.fstat(fd).st_size == size
        with failing.failing("fsync"):
            assert error_of(os.fsync, fd) == errno.EIO
        assert error_of(os.fsync, fd) == errno.EIO
        os.ftruncate(fd, 0)
        assert error_of(os.fsync, fd) == 0
        os.pwrite(fd, bytes(PAGE), 0)
        os.fsync(fd)
        os.ftruncate(fd, 100)


def test_what_a_cut_has_zeroed_is_written(failing, fds):
    """The rest of the last page: lost with what was written elsewhere, when the file has grown over it again."""
    failing.make()
    fd = fds()
    os.ftruncate(fd, PAGE + 100)
    os.ftruncate(fd, 64 * PAGE)
    os.pwrite(fd, b"lost", 40 * PAGE)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"kept", 40 * PAGE)
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(PAGE - 100), PAGE + 100)
    assert error_of(os.fsync, fd) == 0


@pytest.mark.parametrize("flag", [os.O_DSYNC, os.O_SYNC], ids=["O_DSYNC", "O_SYNC"])
def test_writes_that_failed_are_lost_with_the_others(failing, fds, flag):
    """A write through such a descriptor fails when its bytes are in memory already, and can't be brought to storage."""
    failing.make()
    fd, other = fds(os.O_RDWR | flag), fds()
    with failing.failing("pwrite64"):
        assert error_of(os.pwrite, fd, b"lost", 5 * PAGE) == errno.EIO
    os.pwrite(other, b"lost", 40 * PAGE)
    with failing.failing("fsync"):
        assert error_of(os.fsync, other) == errno.EIO
    os.pwrite(other, b"kept", 40 * PAGE)
    assert error_of(os.fsync, other) == errno.EIO
    os.pwrite(other, b"kept", 5 * PAGE)
    assert error_of(os.fsync, other) == 0


def test_lost_and_closed(failing, fds):
    """Nobody has it open, and the kernel has forgotten it: the daemon has not."""
    failing.make()
    fd = fds()
    os.pwrite(fd, b"lost", 0)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    os.close(fd)
    forget_inodes()
    fd = fds()
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"kept", 0)
    assert error_of(os.fsync, fd) == 0


def test_lost_and_deleted_behind_the_mount(mount, workdir, monkeypatch):
    """A file that is kept for its lost bytes alone is let go when it has no name any more, whoever took that away."""
    failing = Failing(mount, workdir, monkeypatch, "passthrough=off,timeout=0,remember=0")
    mnt, data, count = failing.mount.mnt, failing.mount.data, 100
    for generation in range(10):
        os.mkdir(f"{mnt}/d")
        with failing.failing("fsync", sticky=True):
            for i in range(count):
                with open(f"{mnt}/d/{i}", "wb", buffering=0) as file:
                    file.write(b"lost")
                    assert error_of(os.fsync, file.fileno()) == errno.EIO
            if generation == 0:
                os.mkdir(f"{mnt}/other")
                with open(f"{mnt}/other/named", "wb", buffering=0) as file:
                    file.write(b"lost")
                    assert error_of(os.fsync, file.fileno()) == errno.EIO
                os.rename(f"{data}/other", f"{data}/elsewhere")
                assert not os.path.exists(f"{mnt}/other")
        # A name that is gone for a moment makes the kernel forget what is below it.
        os.rename(f"{data}/d", f"{data}/aside")
        assert not os.path.exists(f"{mnt}/d")
        time.sleep(0.2)  # gaiactl, which could say that it has, looks at each inode and lets go what it can
        shutil.rmtree(f"{data}/aside")
    known = helpers.statistics(mnt)["inodes"]["known"]
    with open(f"{mnt}/elsewhere/named", "rb") as file:
        assert error_of(os.fsync, file.fileno()) == errno.EIO
    print(known, "of", 10 * count, "are known")
    assert known < 5 * count


def test_written_and_forgotten(failing, fds):
    """What was written before the kernel forgot the file is lost with what was written after that."""
    failing.make()
    fd = fds()
    os.pwrite(fd, b"lost", 0)
    os.close(fd)
    forget_inodes()
    fd = fds()
    os.pwrite(fd, b"lost", 40 * PAGE)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"kept", 40 * PAGE)
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(64 * PAGE), 0)
    assert error_of(os.fsync, fd) == 0


def test_closed_before_anybody_was_told(failing, fds):
    """As Linux has it: who opens the file next is told. Here by the write that nobody synced."""
    failing.make()
    fd = fds()
    os.pwrite(fd, b"lost", 0)
    os.close(fd)
    fd = fds()
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"?", 1)
    assert error_of(os.fsync, fd) == errno.EIO  # three of the bytes that the other descriptor wrote
    os.pwrite(fd, b"kept", 0)
    assert error_of(os.fsync, fd) == 0


@pytest.mark.parametrize("row", ["fsync"])
def test_maps_are_told_too(failing, fds, maps, row):
    failing.make()
    one, two, quiet = maps("soft:0"), maps("soft:1"), maps("soft:0")
    fd = fds()
    one[5000:5004] = b"lost"
    one.release()
    with failing.failing(row):
        assert error_of(one.sync) == errno.EIO
    for sync in (two.sync, one.sync, lambda: os.fsync(fd), maps("soft:1").sync, two.sync):
        assert error_of(sync) == errno.EIO
    one[5000:5004] = b"kept"
    one.release()
    assert error_of(one.sync) == 0  # collected again, and synced
    assert error_of(two.sync) == 0 and error_of(os.fsync, fd) == 0
    assert error_of(quiet.sync) == errno.EIO
    assert error_of(quiet.sync) == 0
    with open(failing.below, "rb") as file:
        assert file.read()[5000:5004] == b"kept"


def test_what_cannot_be_collected(failing, fds, maps):
    """The sync fails, and everybody is told; the bytes stay with the device, and the next sync brings them."""
    failing.make()
    device, other = maps("soft:0"), maps("soft:1")
    one, two = fds(), fds()
    device[5000:5004] = b"kept"
    device.release()
    with failing.failing("pwrite64", errno.ENOSPC):
        assert error_of(os.fsync, one) == errno.ENOSPC
    assert error_of(os.fsync, one) == 0
    with open(failing.below, "rb") as file:
        assert file.read()[5000:5004] == b"kept"
    for sync in (lambda: os.fsync(two), device.sync, other.sync):
        assert error_of(sync) == errno.ENOSPC
        assert error_of(sync) == 0
    assert error_of(os.fsync, fds()) == 0


@pytest.mark.parametrize("tracked", [False, True], ids=["", "mapped"])
def test_stores_that_cannot_be_written_back(failing, fds, maps, tracked):
    """The kernel calls the page clean, and tells each descriptor once: what comes after that must fail too."""
    failing.make()
    device = maps() if tracked else None
    one, two = fds(), fds()
    with mmap.mmap(one, 64 * PAGE) as mapping:
        mapping[3 * PAGE:3 * PAGE + 4] = b"lost"
        with failing.failing("pwrite64"):
            assert error_of(os.fsync, one) == errno.EIO
        for fd in (one, two, one, two, fds()):
            assert error_of(os.fsync, fd) == errno.EIO
        if tracked:
            assert error_of(device.sync) == errno.EIO
        mapping[3 * PAGE:3 * PAGE + 4] = b"kept"
        mapping.flush()
        assert error_of(os.fsync, one) == 0 and error_of(os.fsync, two) == 0
        if tracked:
            assert error_of(device.sync) == 0
    with open(failing.below, "rb") as file:
        assert file.read()[3 * PAGE:3 * PAGE + 4] == b"kept"


@pytest.mark.parametrize("way", ["device", "mapping"])
def test_another_byte_of_a_page_with_lost_bytes(failing, fds, maps, way):
    """It is written with the page, of which the host may have dropped the lost bytes since: only these themselves make syncs
    good."""
    failing.make()
    fd = fds()
    device = maps()
    os.pwrite(fd, b"lost", 3 * PAGE)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    if way == "device":
        device.acquire()
        device[3 * PAGE + 100] = 7
        device.release()
    else:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(fd, 64 * PAGE) as mapping:
            mapping[3 * PAGE + 100] = 7
            assert error_of(mapping.flush) == errno.EIO
    for each in (fd, fds(), fd):
        assert error_of(os.fsync, each) == errno.EIO
    os.pwrite(fd, b"kept", 3 * PAGE)
    assert error_of(os.fsync, fd) == 0


@pytest.mark.parametrize("tracked", [False, True], ids=["", "mapped"])
def test_a_page_that_is_read_while_its_bytes_are_lost(failing, fds, maps, tracked):
    """The read has begun before the sync that fails. What it has read may lack the bytes, too."""
    failing.make()
    fd = fds()
    if tracked:
        maps()
    os.pwrite(fd, b"lost", 3 * PAGE)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    failing.plan.arm_wait(ROWS.index("pread64"), 2000, 1, 0)
    reader = threading.Thread(target=os.pread, args=(fd, 4, 3 * PAGE))
    reader.start()
    wait_until(lambda: failing.plan.landed, what="the read has begun")
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    if not reader.is_alive():
        pytest.skip("the machine is too busy")
    reader.join()
    with mmap.mmap(fd, 64 * PAGE) as mapping:
        mapping[3 * PAGE + 100] = 7
        assert error_of(mapping.flush) == errno.EIO
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, b"kept", 3 * PAGE)
    assert error_of(os.fsync, fd) == 0


def test_directories(failing, mount):
    """What of a directory was lost nobody can write again: it stays so as long as the mount."""
    fd = os.open(failing.mount.mnt, os.O_RDONLY | os.O_DIRECTORY)
    other = os.open(failing.mount.mnt, os.O_RDONLY | os.O_DIRECTORY)
    with failing.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    for each in (other, fd, other):
        assert error_of(os.fsync, each) == errno.EIO
    os.close(fd)
    os.close(other)
    assert failing.mount.unmount() is None
    monitor = mount(data=failing.mount.data)
    fd = os.open(monitor.mnt, os.O_RDONLY | os.O_DIRECTORY)
    assert error_of(os.fsync, fd) == 0
    os.close(fd)


def test_syncs_leave_no_descriptors_behind(failing):
    """The daemon syncs a file through one description, for as long as somebody has it open."""
    before = descriptors(failing.mount.pid)
    with open(failing.path, "wb", buffering=0) as file:
        for turn in range(20):
            file.write(b"x" * 100)
            os.fsync(file.fileno())
        assert descriptors(failing.mount.pid) <= before + 3
    helpers.wait_until(lambda: descriptors(failing.mount.pid) <= before + 1, what="they are closed")


@pytest.mark.parametrize("first_known", [False, True])
def test_what_was_lost_is_remembered(mount, workdir, monkeypatch, first_known):
    """However many other files the kernel forgets meanwhile, and though this one had its turn to be forgotten before."""
    f = Failing(mount, workdir, monkeypatch, "passthrough=off,remember=16,timeout=0")
    f.make(4 * PAGE)
    if first_known:
        forget_inodes()
        time.sleep(0.5)
    fd = os.open(f.path, os.O_RDWR)
    os.pwrite(fd, b"lost" * 10, 5000)
    with f.failing("fsync"):
        assert error_of(os.fsync, fd) == errno.EIO
    os.close(fd)
    forget_inodes()
    for _ in range(2):
        time.sleep(0.5)
        for number in range(64):
            write_file(os.path.join(f.mount.mnt, f"other{number}"), b"x")
        forget_inodes()
    time.sleep(0.5)
    fd = os.open(f.path, os.O_RDWR)
    assert error_of(os.fsync, fd) == errno.EIO
    os.close(fd)


def write_async(fd, page, flags):
    """One pwritev2() of it, by io_submit(): bytes written, or a negative errno."""
    context, syscall = ctypes.c_ulong(0), ctypes.CDLL(None, use_errno=True).syscall
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    request = ctypes.create_string_buffer(struct.pack("<QIiHhIQQqQII", 0, 0, flags, 1, 0, fd, address, len(page), 0, 0, 0, 0))
    event = ctypes.create_string_buffer(32)
    assert syscall(206, ctypes.c_ulong(1), ctypes.byref(context)) == 0  # io_setup
    try:
        assert syscall(209, context, ctypes.c_long(1), ctypes.byref(ctypes.c_void_p(ctypes.addressof(request)))) == 1
        assert syscall(208, context, ctypes.c_long(1), ctypes.c_long(1), event, None) == 1  # io_getevents
    finally:
        syscall(207, context)  # io_destroy
    return struct.unpack_from("<q", event, 16)[0]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_durable_descriptor_that_appended(failing, fds):
    """One opened with O_DSYNC is durable also when its O_APPEND was taken back, for which the daemon has another descriptor."""
    failing.make(4 * PAGE)
    fd = fds(os.O_RDWR | os.O_DIRECT | os.O_APPEND | os.O_DSYNC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_APPEND)
    with mmap.mmap(-1, PAGE) as page:
        with failing.failing("fdatasync"):
            assert write_async(fd, page, 0) == -errno.EIO
        assert write_async(fd, page, 0) == PAGE


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("flags", [os.O_DIRECT, 0], ids=["direct", "buffered"])
@pytest.mark.parametrize("wish, row", [(os.RWF_DSYNC, "fdatasync"), (os.RWF_SYNC, "fsync")], ids=["dsync", "sync"])
def test_a_write_that_asks_to_be_durable(failing, fds, flags, wish, row):
    """Of a descriptor that does not: the kernel asks for no fsync after direct I/O that nobody has waited for."""
    failing.make(4 * PAGE)
    fd = fds(os.O_RDWR | flags)
    with mmap.mmap(-1, PAGE) as page:
        assert write_async(fd, page, 0) == PAGE
        with failing.failing(row):
            assert write_async(fd, page, wish) == -errno.EIO
        assert write_async(fd, page, wish) == PAGE  # written again, and synced


def write_by_ring(path, how):
    """One write of a page by io_uring that asks to be durable: bytes written, or a negative errno."""
    done = subprocess.run([helpers.tool_path("tool_ring"), path, how], capture_output=True, text=True, timeout=20)
    if done.returncode == 3:
        pytest.skip("no io_uring")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("how", ["call", "worker", "poll"])
def test_a_write_by_a_ring_that_asks_to_be_durable(failing, how):
    """Whichever thread of the kernel does it: it says whose the write is, as if the program itself had called."""
    failing.make(4 * PAGE)
    with failing.failing("fdatasync"):
        assert write_by_ring(failing.path, how) == -errno.EIO
    assert write_by_ring(failing.path, how) == PAGE


@pytest.mark.parametrize("wish, row", [(os.RWF_DSYNC, "fdatasync"), (os.RWF_SYNC, "fsync")], ids=["dsync", "sync"])
def test_an_append_that_asks_to_be_durable(mount, workdir, monkeypatch, wish, row):
    """Of a file that the kernel passes through: appends come to the daemon, and the kernel asks for no fsync after them."""
    f = Failing(mount, workdir, monkeypatch, "passthrough=all")
    if not helpers.statistics(f.mount.mnt)["passthrough"]:
        pytest.skip(f"no passthrough with Linux {os.uname().release}")
    with open(f.path, "ab", buffering=0) as file:
        assert os.pwritev(file.fileno(), [b"first"], 0, wish) == 5
        with f.failing(row):
            assert error_of(os.pwritev, file.fileno(), [b"lost"], 0, wish) == errno.EIO
