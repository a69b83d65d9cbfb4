# SPDX-License-Identifier: Apache-2.0
"""Files that have no name any more, or never had one: whoever has them, open or not, keeps them."""
import errno
import os
import stat

import pytest

import helpers
from descriptors import churn, small  # noqa: F401
from helpers import error_of, read_file, statistics, write_file
from posix_calls import link_descriptor


def test_an_open_file_outlives_its_name(small):
    path = f"{small.mnt}/f"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"first")
    os.unlink(path)
    churn(small)
    os.pwrite(fd, b"second", 5)
    os.fchmod(fd, 0o640)
    os.ftruncate(fd, 8)
    os.utime(fd, ns=(5, 7))
    assert os.pread(fd, 100, 0) == b"firstsec"
    found = os.fstat(fd)
    assert (found.st_nlink, found.st_size, found.st_mode & 0o7777, found.st_mtime_ns) == (0, 8, 0o640, 7)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    assert os.read(again, 100) == b"firstsec"
    os.close(again)
    os.close(fd)
    helpers.wait_until(lambda: statistics(small.mnt)["inodes"]["descriptors_last"] == 0, what="it is let go")


@pytest.mark.parametrize("how", ["unlink", "rmdir", "rename", "rename of a folder"])
def test_what_is_held_without_being_open_outlives_its_name(small, how):
    """The daemon knows nothing of an O_PATH descriptor, nor of a working directory."""
    path, other = f"{small.mnt}/held", f"{small.mnt}/other"
    if how in ("rmdir", "rename of a folder"):
        os.mkdir(path)
        os.mkdir(other)
    else:
        write_file(path, b"held")
        write_file(other, b"other")
    fd = os.open(path, os.O_PATH)
    inode = os.fstat(fd).st_ino
    churn(small)
    if how == "unlink":
        os.unlink(path)
    elif how == "rmdir":
        os.rmdir(path)
    else:
        os.rename(other, path)
    churn(small)
    assert os.fstat(fd).st_ino == inode
    if how in ("unlink", "rename"):
        assert os.fstat(fd).st_nlink == 0
        assert read_file(f"/proc/self/fd/{fd}") == b"held"
    os.close(fd)
    helpers.wait_until(lambda: statistics(small.mnt)["inodes"]["descriptors_last"] == 0, what="it is let go")


@pytest.mark.parametrize("then", ["read", "link"])
def test_what_was_made_without_a_name_and_is_held_without_being_open(small, then):
    """O_TMPFILE: the filesystem below frees it when the daemon has no descriptor of it any more."""
    fd = os.open(small.mnt, os.O_RDWR | os.O_TMPFILE, 0o600)
    os.write(fd, b"held")
    path = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
    os.close(fd)
    churn(small)
    try:
        if then == "link":
            link_descriptor(path, f"{small.mnt}/name")
            assert read_file(f"{small.mnt}/name") == b"held"
            assert statistics(small.mnt)["inodes"]["descriptors_last"] == 0  # it can be opened by its handle now
            churn(small)
            os.unlink(f"{small.mnt}/name")
            churn(small)
        assert read_file(f"/proc/self/fd/{path}") == b"held"
    finally:
        os.close(path)
    helpers.wait_until(lambda: statistics(small.mnt)["inodes"]["descriptors_last"] == 0, what="it is let go")


def test_many_that_are_held_without_a_name(small):
    """There is a bound to those, too: the oldest are gone then, with an error, and everything else works."""
    fds = []
    for i in range(200):
        os.mkdir(f"{small.mnt}/d{i}")
        fds.append(os.open(f"{small.mnt}/d{i}", os.O_PATH))
        os.rmdir(f"{small.mnt}/d{i}")
    known = statistics(small.mnt)["inodes"]
    print(known)
    assert 0 < known["descriptors_last"] <= 64 + 16
    answers = [error_of(os.fstat, fd) for fd in fds]
    assert set(answers) == {0, errno.ESTALE} and answers[-1] == 0
    write_file(f"{small.mnt}/f", b"works")
    assert read_file(f"{small.mnt}/f") == b"works"
    for fd in fds:
        os.close(fd)


def test_an_inode_number_that_is_used_again(small):
    """Another file with the number of one that was deleted behind the mount is another file."""
    path, below = f"{small.mnt}/f", f"{small.data}/f"
    for attempt in range(200):
        write_file(below, b"old")
        held = os.open(path, os.O_PATH)
        number = os.fstat(held).st_ino
        churn(small)
        os.unlink(below)
        write_file(below, b"new one")
        if os.stat(below).st_ino == number:
            break
        os.close(held)
        os.unlink(below)
    else:
        pytest.skip("this filesystem does not use a number again")
    assert read_file(path) == b"new one"
    assert error_of(os.fstat, held) == errno.ESTALE
    assert error_of(os.chmod, f"/proc/self/fd/{held}", 0o777) == errno.ESTALE
    assert stat.S_IMODE(os.stat(below).st_mode) != 0o777
    os.close(held)
