# SPDX-License-Identifier: Apache-2.0
"""Where a part of what is to be written has its room and another has none: the one is written, and the other is told of."""
import errno
import mmap
import os
import stat

import pytest

from files import Opened
from gpu_fixture import MAP
from helpers import (MIB, PAGE, agents, cuda_standin, devices, drop_host_cache, error_of, read_file, write_at,  # noqa: F401
                     write_file)
from test_broken_disks import disk  # noqa: F401
from test_disks import fill, small  # noqa: F401


def with_room_for(path, pages, count):
    """A file of so many pages, of which those have their place on the disk. The others are holes."""
    write_file(path, b"")
    os.truncate(path, count * PAGE)
    for page in pages:
        write_at(path, bytes(PAGE), page * PAGE)


@pytest.mark.parametrize("holes", [{0}, {17}, {0, 1, 30}])
@pytest.mark.parametrize("released", [True, False])
def test_an_unmount_loses_no_page_that_has_its_room(mount, devices, small, holes, released):  # noqa: F811
    m = mount("passthrough=off", data=small)
    m.expected_exit = 1  # it says that some is lost
    path = os.path.join(m.mnt, "f")
    count = 80
    with_room_for(path, set(range(count)) - holes, count)
    opened = Opened(devices(), path)
    for page in range(count):
        opened.map[page * PAGE] = page + 1
    fill(small)
    if released:
        opened.map.release()
    opened.close()
    assert m.unmount() is None
    assert list(read_file(os.path.join(small, "f"))[::PAGE]) == [0 if page in holes else page + 1 for page in range(count)]


@pytest.mark.parametrize("call", ["fsync", "sync"])
def test_a_sync_that_finds_no_space_brings_what_has_its_room(mount, devices, small, call):  # noqa: F811
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    with_room_for(path, range(1, 20), 20)
    opened = Opened(devices(), path)
    for page in range(20):
        opened.map[page * PAGE] = page + 1
    ballast = fill(small)
    opened.map.release()
    assert error_of(opened.map.sync if call == "sync" else lambda: os.fsync(opened.fd)) == errno.ENOSPC
    below = os.path.join(small, "f")
    assert list(read_file(below)[::PAGE]) == [0, *range(2, 21)]
    os.unlink(ballast)
    assert list(read_file(path)[::PAGE]) == list(range(1, 21))
    opened.close()


@pytest.mark.parametrize("options", ["shared,timeout=0,passthrough=off", "shared,timeout=0,passthrough=all", "passthrough=all"])
def test_what_has_its_room_is_released_beside_what_has_none(mount, devices, small, options):  # noqa: F811
    """And seen by whoever reads the file, by another mount, too; an acquire brings what others have written, though it says that
    it could not bring all that the device has."""
    m = mount(options, data=small)
    other = mount(options, data=small) if "shared" in options else m
    path, theirs = (os.path.join(each.mnt, "f") for each in (m, other))
    with_room_for(path, [1, 2, 5, 70], 80)
    opened = Opened(devices(), path)
    assert opened.map[5 * PAGE] == opened.map[2 * PAGE] == 0
    ballast = fill(small)
    for page in 0, 1, 70:
        opened.map[page * PAGE] = page + 1
    assert error_of(opened.map.release) == errno.ENOSPC
    assert list(read_file(theirs)[page * PAGE] for page in (0, 1, 70)) == [0, 2, 71]
    write_at(theirs, b"w", 5 * PAGE)
    assert error_of(opened.map.acquire) == errno.ENOSPC
    assert opened.map[5 * PAGE] == ord("w")
    opened.map[2 * PAGE] = 9
    assert error_of(opened.map.acquire) == errno.ENOSPC
    assert read_file(theirs)[2 * PAGE] == 9
    os.unlink(ballast)
    opened.map.acquire()
    assert list(read_file(theirs)[page * PAGE] for page in (0, 1, 2, 5, 70)) == [1, 2, 9, ord("w"), 71]
    opened.close()


@pytest.mark.parametrize("options", ["shared,timeout=0,passthrough=off", "timeout=0,passthrough=all"])
def test_a_release_of_which_a_part_was_written_clears_set_id_bits(mount, devices, small, options):  # noqa: F811
    m = mount(options, data=small)
    path = os.path.join(m.mnt, "f")
    with_room_for(path, [0], 80)
    opened = Opened(devices(), path)
    os.chmod(path, 0o4755)
    ballast = fill(small)
    opened.map[0] = opened.map[70 * PAGE] = 1
    assert error_of(opened.map.release) == errno.ENOSPC
    assert read_file(os.path.join(small, "f"))[0] == 1
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o755
    os.unlink(ballast)
    opened.close()


@pytest.mark.parametrize("tracked", [False, True], ids=["", "mapped"])
def test_a_write_back_for_which_half_the_space_is_there(mount, devices, small, tracked):  # noqa: F811
    """Each descriptor is told why, also one that asks when all was written again; and before that, syncs fail."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    with_room_for(path, [], 64)
    one, two = (os.open(path, os.O_RDWR) for _ in range(2))
    if tracked:
        opened = Opened(devices(), path)
    with mmap.mmap(one, 64 * PAGE) as cpu:
        ballast = fill(small)
        os.truncate(ballast, os.path.getsize(ballast) // PAGE * PAGE - 8 * PAGE)
        cpu[:32 * PAGE] = b"w" * (32 * PAGE)
        assert error_of(os.fsync, one) == errno.ENOSPC
        os.unlink(ballast)
        assert error_of(os.fsync, one) == errno.ENOSPC
        cpu[:32 * PAGE] = b"v" * (32 * PAGE)
        os.fsync(one)
        assert error_of(os.fsync, two) == errno.ENOSPC
        os.fsync(two)
    assert read_file(os.path.join(small, "f")) == b"v" * (32 * PAGE) + bytes(32 * PAGE)
    if tracked:
        opened.close()
    os.close(one)
    os.close(two)


@pytest.mark.parametrize("way", ["device", "mapping"])
def test_what_a_disk_has_lost_is_not_written_with_its_page(mount, devices, disk, way):  # noqa: F811
    """A program has written it, and a failed sync has said that it may be lost. Then the host drops the page, and another byte of
    it is stored."""
    m = mount("passthrough=off", data=disk.folder)
    path, at = os.path.join(m.mnt, "f"), 2 * MIB
    write_file(path, b"")
    os.truncate(path, 4 * MIB)
    fd = os.open(path, os.O_RDWR)
    opened = Opened(devices(), path)
    disk.fill()
    os.pwrite(fd, b"lost", at)
    assert error_of(os.fsync, fd) in (errno.EIO, errno.ENOSPC)
    disk.empty()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    drop_host_cache(os.path.join(disk.folder, "f"))
    if os.pread(fd, 4, at) != bytes(4):
        pytest.skip("the host has kept the page")
    if way == "device":
        opened.map[at + 100] = 7
        opened.map.release()
    else:
        with mmap.mmap(fd, 4 * MIB) as cpu:
            cpu[at + 100] = 7
            error_of(cpu.flush)
    for _ in range(3):
        assert error_of(os.fsync, fd) in (errno.EIO, errno.ENOSPC)
    os.pwrite(fd, b"kept", at)
    error_of(os.fsync, fd)
    os.fsync(fd)
    opened.close()
    os.close(fd)


@pytest.mark.parametrize("options", ["shared,timeout=0,passthrough=off", "timeout=0,passthrough=all"])
def test_what_has_its_room_is_released_far_behind_what_has_none(mount, monkeypatch, agents, small, options):  # noqa: F811
    """By a GPU: what it has stored is brought in pieces of 64 leaves."""
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    m = mount(options, data=small, env={"STANDIN_CUDA": ""})
    path, leaf, leaves = os.path.join(m.mnt, "f"), 64 * PAGE, 80
    with_room_for(path, [79 * 64], leaves * 64)
    child = agents({"STANDIN_CUDA": ""})
    child.do(MAP, path=path, length=leaves * leaf, writable=True)
    ballast = fill(small)
    child.do("for at in range(0, end, leaf): map[at] = 1", leaf=leaf, end=leaves * leaf)
    assert error_of(child.do, "map.release()") == errno.ENOSPC
    below = os.path.join(small, "f")
    assert list(read_file(below)[::leaf]) == [0] * 79 + [1]
    os.unlink(ballast)
    child.do("map.release()")
    assert list(read_file(below)[::leaf]) == [1] * 80
    child.end()
