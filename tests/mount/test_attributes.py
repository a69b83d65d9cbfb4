# SPDX-License-Identifier: Apache-2.0
"""Attributes: times, extended attributes."""
import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
import subprocess
import time

import pytest

from helpers import kernel_at_least, read_file, write_file
from posix_calls import libc


@contextlib.contextmanager
def open_any(path):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_extended_attributes(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    assert os.listxattr(path) == []
    big = os.urandom(3000)
    os.setxattr(path, "user.big", big)
    os.setxattr(path, "user.empty", b"")
    assert os.getxattr(path, "user.big") == big and os.getxattr(path, "user.empty") == b""
    assert sorted(os.listxattr(path)) == ["user.big", "user.empty"]
    assert os.getxattr(os.path.join(m.data, "f"), "user.big") == big
    # the size alone, and a buffer that is too small
    assert libc.getxattr(os.fsencode(path), b"user.big", None, 0) == 3000
    assert libc.getxattr(os.fsencode(path), b"user.big", ctypes.create_string_buffer(10), 10) == -1
    assert ctypes.get_errno() == errno.ERANGE
    for attempt, code in ((lambda: os.setxattr(path, "user.big", b"", os.XATTR_CREATE), errno.EEXIST),
                          (lambda: os.setxattr(path, "user.no", b"", os.XATTR_REPLACE), errno.ENODATA),
                          (lambda: os.getxattr(path, "user.no"), errno.ENODATA),
                          (lambda: os.removexattr(path, "user.no"), errno.ENODATA)):
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == code
    os.removexattr(path, "user.big")
    assert os.listxattr(path) == ["user.empty"]


def test_times(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    st = os.stat(path)
    assert (st.st_atime_ns, st.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    subprocess.run(["touch", "-m", path], check=True)  # UTIME_NOW and UTIME_OMIT
    st = os.stat(path)
    assert st.st_atime_ns == 1_000_000_001 and abs(st.st_mtime - time.time()) < 10
    before = st.st_mtime_ns
    time.sleep(0.02)
    with open(path, "ab") as file:
        file.write(b"x")
    assert os.stat(path).st_mtime_ns > before


# --- statx -----------------------------------------------------------------------------------------------------------

AT_EMPTY_PATH, AT_NOFOLLOW, AT_FORCE_SYNC = 0x1000, 0x100, 0x2000
STATX_BASIC, STATX_BTIME = 0x7FF, 0x800
STATX = struct.Struct("=IIQIIIH2xQQQQ" + "qi4x" * 4 + "IIII")


def statx(path, mask=STATX_BASIC | STATX_BTIME):
    buffer = ctypes.create_string_buffer(256)
    if libc.statx(-100, os.fsencode(path), AT_NOFOLLOW | AT_FORCE_SYNC, mask, buffer) < 0:
        raise OSError(ctypes.get_errno(), path)
    names = ("mask blksize attributes nlink uid gid mode ino size blocks attributes_mask atime atime_ns btime btime_ns "
             "ctime ctime_ns mtime mtime_ns rdev_major rdev_minor dev_major dev_minor")
    return dict(zip(names.split(), STATX.unpack_from(buffer)))


def test_statx_with_the_time_of_birth(mount):
    """The kernel asks for it by a request that libfuse 3.14 does not know (since Linux 6.6)."""
    m = mount()
    if not kernel_at_least(6, 6):
        pytest.skip("this kernel has no FUSE_STATX")
    os.mkdir(os.path.join(m.mnt, "d"))
    os.symlink("nowhere", os.path.join(m.mnt, "l"))
    os.mknod(os.path.join(m.mnt, "n"), stat.S_IFCHR | 0o600, os.makedev(5, 7))
    write_file(os.path.join(m.mnt, "f"), b"x" * 10000)
    os.utime(os.path.join(m.mnt, "f"), ns=(1_000_000_007, -5_000_000_001))
    os.chown(os.path.join(m.mnt, "f"), 70000, 80000)
    for name in ("f", "d", "l", "n", "."):
        through, plain = (statx(os.path.join(folder, name)) for folder in (m.mnt, m.data))
        assert through["mask"] & STATX_BTIME and through["btime"] > 0
        for key in set(through) - {"mask", "attributes", "attributes_mask", "blksize", "dev_major", "dev_minor"}:
            assert through[key] == plain[key], (name, key)
        # the same file without that request
        assert os.lstat(os.path.join(m.mnt, name)).st_ino == through["ino"]
    before = statx(os.path.join(m.mnt, "f"))["btime"]
    with open(os.path.join(m.mnt, "f"), "ab") as file:
        file.write(b"more")
        file.flush()
        assert statx(os.path.join(m.mnt, "f"))["size"] == 10004
    assert statx(os.path.join(m.mnt, "f"))["btime"] == before
    with pytest.raises(FileNotFoundError):
        statx(os.path.join(m.mnt, "none"))


# --- times of access -------------------------------------------------------------------------------------------------

OLD = 1_000_000_000 * 10 ** 9


def age(m):
    """A file, a folder with an entry, and links, all last read long ago; the data directory is relatime."""
    write_file(os.path.join(m.data, "f"), b"bytes")
    os.makedirs(os.path.join(m.data, "d", "in"))
    for name in ("f", "d"):
        os.utime(os.path.join(m.data, name), ns=(OLD, OLD + 1))


def read_all(m):
    read_file(os.path.join(m.mnt, "f"))
    assert os.listdir(os.path.join(m.mnt, "d")) == ["in"]
    return [os.stat(os.path.join(m.data, name)).st_atime_ns == OLD for name in ("f", "d")]


def test_access_times_are_kept_by_the_filesystem_below(mount):
    """Through descriptors that read: READs of the kernel's reach it."""
    m = mount("timeout=0")
    age(m)
    assert read_all(m) == [False, False]
    for name in ("f", "d"):
        assert os.stat(os.path.join(m.mnt, name)).st_atime_ns == os.stat(os.path.join(m.data, name)).st_atime_ns
    age_again = os.path.join(m.mnt, "f")
    os.utime(age_again, ns=(OLD, OLD + 1))
    fd = os.open(age_again, os.O_RDONLY | os.O_NOATIME)
    assert os.read(fd, 10) == b"bytes" and os.stat(age_again).st_atime_ns == OLD
    os.close(fd)


@pytest.mark.parametrize("options", ["passthrough=on", "passthrough=off"])
def test_a_read_of_what_the_kernel_has_is_dated(mount, options):
    """It answers from its pages and tells nobody. What was written since the last read is new, until it is read."""
    m = mount(f"{options},timeout=0.01")
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")

    def is_new():
        time.sleep(0.05)  # the timeout, and a tick of the filesystem's clock
        through, there = os.stat(path), os.stat(below)
        assert through.st_atime_ns == there.st_atime_ns
        return through.st_atime_ns <= through.st_mtime_ns, through.st_atime_ns <= through.st_ctime_ns

    write_file(path, b"1" * 5000)
    read_file(path)
    for size in 5000, 1, 9000:
        is_new()
        with open(path, "r+b") as file:
            file.write(b"2" * size)
        assert is_new() == (True, True)
        read_file(path)
        assert is_new() == (False, False)
    os.chmod(path, 0o600)
    assert is_new() == (False, True)
    read_file(path)
    assert is_new() == (False, False)
    os.utime(path, ns=(OLD + 1, OLD))
    os.utime(path, ns=(time.time_ns() + 10 ** 9, OLD))  # newer than all: as it is, it stays
    before = os.stat(below).st_atime_ns
    read_file(path)
    is_new()
    assert os.stat(below).st_atime_ns == before


@pytest.mark.parametrize("options", ["passthrough=on", "passthrough=off"])
def test_opens_that_read_nothing_are_not_dated(mount, options):
    """Of who may write, and of who says O_NOATIME."""
    m = mount(options)
    path, below = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(path, b"1" * 5000)
    read_file(path)
    os.utime(path, ns=(OLD, OLD + 1))
    for flags in os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDONLY | os.O_NOATIME:
        os.close(os.open(path, flags))
        assert os.stat(below).st_atime_ns == OLD, flags
    os.close(os.open(path, os.O_RDONLY | os.O_NOATIME))
    assert os.stat(below).st_atime_ns == OLD


@pytest.mark.parametrize("options, kept", [("noatime", [True, True]), ("ro", [True, True]), ("nodiratime", [False, True])])
def test_reading_leaves_no_trace_where_the_mount_says_so(mount, options, kept):
    m = mount(options)
    age(m)
    assert read_all(m) == kept


def test_flags_of_the_filesystem_below(mount):
    """lsattr(1) and xfs_io show what the filesystem below has; nothing of it is changed through the mount."""
    get_flags, set_flags, get_extended, size = 0x80086601, 0x40086602, 0x801C581F, 28
    no_dump, compressed = 0x40, 0x4  # what is set below is seen, and no other bit
    m = mount()
    os.mkdir(f"{m.data}/d")
    write_file(f"{m.data}/f", b"")
    for name in ("d", "f"):
        with open_any(f"{m.data}/{name}") as below, open_any(f"{m.mnt}/{name}") as fd:
            try:
                found = struct.unpack("=i4x", fcntl.ioctl(below, get_flags, bytes(8)))[0]
                fcntl.ioctl(below, set_flags, struct.pack("=i4x", found | no_dump))
            except OSError as error:
                pytest.skip(f"the filesystem below has no flags: {error}")
            shown = struct.unpack("=i4x", fcntl.ioctl(fd, get_flags, bytes(8)))[0]
            assert shown == struct.unpack("=i4x", fcntl.ioctl(below, get_flags, bytes(8)))[0]
            assert shown & no_dump and not shown & compressed
            assert fcntl.ioctl(fd, get_extended, bytes(size)) == fcntl.ioctl(below, get_extended, bytes(size))
            with pytest.raises(OSError):
                fcntl.ioctl(fd, set_flags, struct.pack("=i4x", 0))
            assert struct.unpack("=i4x", fcntl.ioctl(below, get_flags, bytes(8)))[0] & no_dump
