# SPDX-License-Identifier: Apache-2.0
"""Disks that are full. (Broken ones: test_broken_disks.py.)"""
import errno
import mmap
import os
import signal
import subprocess

import pytest

from files import fill, mount_ext4, mount_tmpfs, pattern
from helpers import ALL_ROWS, MIB, PAGE, AgentDied, agents, daemon_with_faults, devices, error_of, read_file, write_file  # noqa: F401


@pytest.fixture
def small(workdir):
    """A data directory on a filesystem of 4 MiB."""
    folder = mount_tmpfs(workdir, 4 * MIB)
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


@pytest.fixture
def small_ext4(workdir):
    folder = mount_ext4(workdir, 16 * MIB, "-O", "^has_journal")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


@pytest.mark.parametrize("kind", ["small", "small_ext4"])
def test_no_space(mount, agents, request, kind):
    """write() says so, fsync, msync and acquires of others too; the device keeps its bytes until there is room."""
    data = request.getfixturevalue(kind)
    m = mount("passthrough=off", data=data)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)  # a hole: no room is set aside
    fd = os.open(path, os.O_RDWR)
    one, two = agents(), agents()
    for agent, name in ((one, "soft:0"), (two, "soft:1")):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 1 << 20)\nassert map[:] == bytes(1 << 20)",
                 path=path, name=name)
    content = pattern(MIB)
    one.do("map[:] = content", content=content)
    ballast = fill(data)
    with pytest.raises(OSError) as caught:
        os.pwrite(fd, b"x" * 65536, 2 * MIB)
    assert caught.value.errno == errno.ENOSPC
    one.do("map.release()")
    for agent, call in ((one, "os.fsync(fd)"), (one, "map.sync()"), (two, "map.acquire()"), (two, "os.fsync(fd)")):
        with pytest.raises(OSError) as caught:
            agent.do(call)
        assert caught.value.errno == errno.ENOSPC
    assert one("map[:] == content")
    os.unlink(ballast)
    with pytest.raises(OSError) as caught:
        one.do("map.sync()")  # the fsync by two, which failed since
    assert caught.value.errno == errno.ENOSPC
    one.do("map.sync()")
    with pytest.raises(OSError) as caught:
        os.fsync(fd)  # it has not heard of any
    assert caught.value.errno == errno.ENOSPC
    os.fsync(fd)
    two.do("map.acquire()")
    assert read_file(path) == content
    assert one("map[:] == content") and two("map[:] == content", content=content)
    assert read_file(os.path.join(data, "f")) == content
    os.close(fd)
    one.end()
    two.end()
    assert m.unmount() is None


@pytest.mark.traps
def test_another_device_while_there_is_no_space(mount, agents, small):
    """What it would get must be in the data directory first: advice says why not, a touch is SIGBUS; and nothing is lost."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)
    one, advised, touching = agents(), agents(), agents()
    for agent, name in ((one, "soft:0"), (advised, "soft:1"), (touching, "soft:2")):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 1 << 20)", path=path, name=name)
    content = pattern(MIB)
    one.do("map[:] = content", content=content)
    ballast = fill(small)
    one.do("map.release()")
    assert error_of(advised.do, "map.advise(gaia.ADV_WILLNEED)") == errno.ENOSPC
    with pytest.raises(AgentDied) as caught:
        touching("map[:8]")
    assert caught.value.code == -signal.SIGBUS
    os.unlink(ballast)
    advised.do("map.acquire()\nmap.advise(gaia.ADV_WILLNEED)")
    assert advised("map[:] == content", content=content) and read_file(path) == content


def test_reads_while_there_is_no_space(mount, agents, small):
    """A read() either has the released bytes or says why not: never the old bytes."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)
    fd = os.open(path, os.O_RDWR)
    child = agents()  # a touch that can't be served must not end the tests
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 1 << 20)\nmap[:] = b'D' * (1 << 20)", path=path)
    ballast = fill(small)
    child.do("map.release()")
    for offset in (0, 100 * PAGE, MIB - PAGE):
        try:
            assert os.pread(fd, PAGE, offset) == b"D" * PAGE
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EIO)
    os.unlink(ballast)
    assert read_file(path) == b"D" * MIB
    os.close(fd)


def hold_all_but(child, m, data, frames, pages):
    """A device of 64 frames, all but some of which hold what can't be written any more. What makes room again."""
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, pages * PAGE)
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, pages * PAGE)\nmap.advise(gaia.ADV_RANDOM)",
             path=path, pages=pages)
    child.do("for i in range(stored): map[i * PAGE:(i + 1) * PAGE] = bytes([i + 1]) * PAGE", stored=64 - frames)
    child.do("map.release(0, stored * PAGE)")
    return fill(data)


@pytest.mark.parametrize("frames, unit", [(32, "64K"), (1, "4K"), (1, "64K")])
@pytest.mark.traps
def test_eviction_while_there_is_no_space(mount, agents, small, frames, unit):
    """What can't be evicted stays, and is not lost; a toucher gets its page as long as there is a frame that can be
    free, also when it lies between those that can't (from page 64 on there are others) and readahead wants it, too."""
    m = mount(f"passthrough=off,device_cache=256K,unit={unit}", data=small)
    child = agents()
    ballast = hold_all_but(child, m, small, frames, 256)
    for advice, last in (("RANDOM", 80), ("SEQUENTIAL", 256), ("NORMAL", 256)):
        child.do(f"map.advise(gaia.ADV_{advice})")
        child.start("for i in range(stored, last): assert map[i * PAGE] == 0", last=last)
        assert not child.busy(40), "a touch hangs"
        child.finish()
    os.unlink(ballast)
    assert read_file(os.path.join(m.mnt, "f"))[:(64 - frames) * PAGE] == \
        b"".join(bytes([i + 1]) * PAGE for i in range(64 - frames))


@pytest.mark.traps
def test_no_frame_can_be_free(mount, agents, small):
    """Then a touch is SIGBUS, within a time; and nothing is lost."""
    m = mount("passthrough=off,device_cache=256K,unit=4K", data=small)
    child = agents()
    ballast = hold_all_but(child, m, small, 0, 256)
    with pytest.raises(AgentDied) as died:
        child.do("map[100 * PAGE]")
    assert died.value.code == -signal.SIGBUS
    os.unlink(ballast)
    assert read_file(os.path.join(m.mnt, "f"))[:64 * PAGE] == b"".join(bytes([i + 1]) * PAGE for i in range(64))


@pytest.mark.traps
def test_no_frame_of_another_program_can_be_free(mount, agents, small, workdir, monkeypatch):
    """The same where it takes the disk longer to say so than who wants room waits for another's frames (cache/evictor.h)."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off,device_cache=256K,unit=4K", data=small, env=env)
    child, other = agents(), agents()
    paths = [os.path.join(m.mnt, name) for name in "fg"]
    for agent, path in zip((child, other), paths):
        write_file(path, b"")
        os.truncate(path, 64 * PAGE)
        agent.do("map = gaia.Device().mmap(os.open(path, os.O_RDWR), 64 * PAGE)", path=path)
    child.do("map[:] = b'D' * (64 * PAGE)\nmap.release()")
    ballast = fill(small)
    plan.arm_wait(ALL_ROWS.index("pwrite64"), 20, 1, True)
    other.start("map[0]")
    slow = other.busy(20)
    plan.row = -1
    os.unlink(ballast)
    assert not slow, "it is not told"
    with pytest.raises(AgentDied) as died:
        other.finish()
    assert died.value.code == -signal.SIGBUS
    assert read_file(paths[0]) == b"D" * (64 * PAGE)


def test_no_space_for_one_of_two_pages(mount, devices, small):
    """A failed fsync() says so, also when what was written last went well."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)  # holes in front, and a page that has its room
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"room" * 1024, MIB - PAGE)
    mapping = devices().mmap(fd, MIB)
    mapping[0], mapping[MIB - PAGE] = 1, 2  # in this order
    ballast = fill(small)
    mapping.release()
    for call in (lambda: os.fsync(fd), mapping.sync):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
        mapping[MIB - PAGE] += 1
        mapping.release()
    os.unlink(ballast)
    with pytest.raises(OSError):  # the descriptor is told of the mapping's failure
        os.fsync(fd)
    os.fsync(fd)
    content = read_file(os.path.join(small, "f"))
    assert content[0] == 1 and content[MIB - PAGE] == 4
    os.close(fd)


@pytest.mark.parametrize("passthrough", ["off", "on", "all"])
def test_a_store_that_is_taken_back_when_half_was_collected(mount, devices, small, passthrough):
    """Of two pages one can be collected. A store that makes it what it was before that is a store."""
    m = mount(f"passthrough={passthrough}", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(PAGE))
    os.truncate(path, 4 * PAGE)  # a page that has its room, and holes
    fd = os.open(path, os.O_RDWR)
    mapping = devices().mmap(fd, 4 * PAGE)
    ballast = fill(small)
    mapping[0], mapping[PAGE] = 1, 2
    assert error_of(mapping.release) in (0, errno.ENOSPC)
    assert error_of(os.fsync, fd) == errno.ENOSPC
    mapping[0] = 0
    assert error_of(mapping.release) in (0, errno.ENOSPC)
    os.unlink(ballast)
    mapping.release()
    assert error_of(os.fsync, fd) in (0, errno.ENOSPC)  # it may be told of the one before
    os.fsync(fd)
    content = read_file(os.path.join(small, "f"))
    assert (content[0], content[PAGE]) == (0, 2) == (mapping[0], mapping[PAGE])
    assert os.pread(fd, 1, 0) == b"\0"
    os.close(fd)


@pytest.mark.parametrize("again", ["device", "cpu"])
def test_what_was_not_written_back_is_not_written_with_the_page(mount, devices, small, again):
    """A store through a mapping finds no space; the kernel drops its page; then another byte of it is stored. That does not make
    syncs good: only the byte itself does."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 4 * PAGE)
    fd = os.open(path, os.O_RDWR)
    mapping = devices().mmap(fd, 4 * PAGE)
    with mmap.mmap(fd, 4 * PAGE) as cpu:
        assert cpu[100] == 0
        ballast = fill(small)
        cpu[100] = 1
        assert error_of(cpu.flush) == errno.ENOSPC
        os.unlink(ballast)
        mapping[300] = 3
        mapping.release()
        assert cpu[300] == 3
        if again == "cpu":
            cpu[200] = 2
            error_of(cpu.flush)
        for _ in range(3):
            assert error_of(os.fsync, fd) == errno.ENOSPC
        other = os.open(path, os.O_RDWR)
        assert error_of(os.fsync, other) == errno.ENOSPC
        os.close(other)
        assert cpu[100] == 0  # it is lost indeed
        os.pwrite(fd, b"\1", 100)
        assert error_of(os.fsync, fd) == errno.ENOSPC  # of the page only that byte has come again
        os.pwrite(fd, bytes(PAGE), 0)
        error_of(os.fsync, fd)
        os.fsync(fd)
    os.close(fd)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_write_for_which_half_the_space_is_there(mount, devices, small, tracked):
    """It says how much it has written, as on the data directory itself."""
    m = mount(data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    fd = os.open(path, os.O_RDWR)
    if tracked:
        devices().mmap(fd, MIB)
    ballast = fill(small)
    os.truncate(ballast, os.path.getsize(ballast) // PAGE * PAGE - 8 * PAGE)
    done = os.pwrite(fd, b"w" * 32 * PAGE, 0)
    assert 0 < done < 32 * PAGE
    assert os.fstat(fd).st_size == done and os.pread(fd, MIB, 0) == b"w" * done
    os.close(fd)


def test_a_touch_after_one_that_found_no_space(mount, agents, small):
    """Granting a page that another device has released needs room in the data directory. Later there is some."""
    m = mount("passthrough=off", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)
    agent = [agents() for _ in range(3)]
    for one, name in zip(agent, ("soft:0", "soft:1", "soft:1")):
        one.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 1 << 20)", path=path, name=name)
    agent[0].do("map[100 * PAGE] = 7")
    ballast = fill(small)
    agent[0].do("map.release()")
    with pytest.raises(AgentDied) as died:
        agent[1]("map[100 * PAGE]")
    assert died.value.code == -signal.SIGBUS
    os.unlink(ballast)
    agent[2].start("map[100 * PAGE]", "eval")
    assert not agent[2].busy(20), "a touch hangs"
    assert agent[2].finish() == 7
