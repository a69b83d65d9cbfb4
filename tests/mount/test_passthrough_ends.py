# SPDX-License-Identifier: Apache-2.0
"""Files in passthrough when something ends or fails: mounts, daemons, syncs, disks, the kernel's own way."""
import ctypes
import errno
import os
import subprocess

import pytest

import helpers
from files import make, pattern
from helpers import (MIB, PAGE, agents, daemon_with_faults, devices, error_of, read_file, standing_still,  # noqa: F401
                     statistics, wait_until, write_file)
from passing import mode, modes, open_map, passing, program  # noqa: F401
from test_disks import fill, small_ext4  # noqa: F401


def test_a_mapping_keeps_the_mount_busy(passing, agents):
    """And nothing else does: what was mapped and closed is let go of with its last mapping."""
    m = passing()
    path = make(m, bytes(PAGE))
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    cpu.do("os.close(fd)\nos.close(aside)\nmapping.close()\nclosed[3] = 4")
    assert modes(m) == {}
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 32
    cpu.do("closed[4] = 5\ndel closed\nassert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0")
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 0
    assert read_file(os.path.join(m.data, "f"))[3:5] == b"\4\5"


def test_unreleased_stores_arrive_at_the_unmount(passing, agents):
    m = passing()
    path = make(m, bytes(4 * PAGE))
    client = agents()
    client.do("dev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 4 * PAGE)\nmap[5000] = 77", path=path)
    client.end()
    assert subprocess.run(["umount", m.mnt], capture_output=True).returncode == 0
    assert m.stop() is None
    assert read_file(os.path.join(m.data, "f"))[5000] == 77


def test_the_daemon_is_killed(passing, devices, agents):
    """What CPUs wrote or stored is in the file, and they go on; what a device released is, too."""
    m = passing()
    content = bytearray(pattern(4 * PAGE))
    path = make(m, content)
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    client = agents()
    client.do("dev = gaia.Device()\nfd = os.open(path, os.O_RDWR)\nmap = dev.mmap(fd, 4 * PAGE)\n"
              "map[100] = 1\nmap.release()", path=path)
    cpu.do("os.pwrite(fd, b'w', 200)\nmapping[300] = 3\nclosed[400] = 4")
    content[100], content[200], content[300], content[400] = 1, ord("w"), 3, 4
    m.kill()
    below = os.path.join(m.data, "f")
    assert read_file(below) == content
    cpu.do("mapping[301] = 5\nclosed[401] = 6")  # the mappings are of the backing file
    content[301], content[401] = 5, 6
    assert read_file(below) == content
    assert cpu("closed[301], mapping[401]") == (5, 6)
    with pytest.raises(OSError) as gone:
        client.do("map.acquire()")
    assert gone.value.errno == errno.ENOTCONN


@pytest.fixture
def failing(passing, workdir, monkeypatch):
    """A mount whose daemon's calls can be made to fail: (mount, plan)."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    return passing(env=env), plan


def arm(plan, row, error, sticky=0):
    plan.arm(helpers.ROWS.index(row), error, 1, sticky)


def landed(plan):
    plan.row = -1
    assert plan.landed


def test_a_failed_sync_is_told_to_all_and_stays(failing):
    """Which bytes were written nobody knows: all of the file is lost. A file that was closed by all is opened in another
    mode, in which it is seen that they are written again."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    fds = [os.open(path, os.O_RDWR) for _ in range(3)]
    assert mode(m) == "passthrough"
    os.pwrite(fds[0], b"lost", 5000)
    arm(plan, "fsync", errno.EIO)
    assert error_of(os.fsync, fds[0]) == errno.EIO
    landed(plan)
    os.pwrite(fds[0], bytes(4 * PAGE), 0)  # of which nobody hears
    fds.append(os.open(path, os.O_RDONLY))
    for fd in (fds[1], fds[0], fds[2], fds[3]):
        assert error_of(os.fsync, fd) == errno.EIO
    for fd in fds:
        os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "cached"
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(3 * PAGE), 0)
    assert error_of(os.fsync, fd) == errno.EIO
    os.pwrite(fd, bytes(PAGE), 3 * PAGE)
    assert error_of(os.fsync, fd) == 0
    os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough" and error_of(os.fsync, fd) == 0
    os.close(fd)


def test_of_two_devices_bytes_those_of_the_second_cannot_be_written(failing, devices):
    """A store to the first one that makes the page what it was before is a store."""
    m, plan = failing
    path = make(m, bytes(PAGE))
    (first, fd), (second, _) = (open_map(devices(name), path) for name in ("soft:0", "soft:1"))
    first[0], second[100] = 1, 2
    arm(plan, "pwrite64", errno.ENOSPC, 1)
    assert error_of(second.release) == errno.ENOSPC
    landed(plan)
    plan.arm(helpers.ROWS.index("pwrite64"), errno.ENOSPC, 2, 1)
    assert error_of(first.release) == errno.ENOSPC
    landed(plan)
    assert os.pread(fd, PAGE, 0) == b"\1" + bytes(PAGE - 1)
    first[0] = 0
    first.release()
    os.fsync(fd)
    assert os.pread(fd, PAGE, 0) == bytes(100) + b"\2" + bytes(PAGE - 101)


def test_a_failed_sync_after_a_cut(failing):
    """The file grows again unseen: that is lost as well."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough"
    os.ftruncate(fd, PAGE)
    os.pwrite(fd, b"x" * 7 * PAGE, PAGE)
    arm(plan, "fsync", errno.EIO)
    assert error_of(os.fsync, fd) == errno.EIO
    landed(plan)
    os.close(fd)
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "cached"
    os.pwrite(fd, bytes(PAGE), 0)
    again = error_of(os.fsync, fd)
    os.close(fd)
    assert again == errno.EIO


def test_lost_bytes_and_a_mapping_without_a_descriptor(failing, agents):
    """The mapping goes on storing unseen, so the file goes on being passed through, and its syncs failing."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    cpu = program(agents(), path, os.path.join(m.mnt, "aside"))
    cpu.do("mapping.close()")
    arm(plan, "fsync", errno.EIO)
    with pytest.raises(OSError):
        cpu.do("os.fsync(fd)")
    landed(plan)
    cpu.do("os.close(fd)\nos.close(aside)")
    wait_until(lambda: modes(m) == {})
    fd = os.open(path, os.O_RDWR)
    assert mode(m) == "passthrough"
    os.pwrite(fd, bytes(4 * PAGE), 0)
    assert error_of(os.fsync, fd) == errno.EIO
    os.ftruncate(fd, 0)
    assert error_of(os.fsync, fd) == 0
    os.close(fd)


def test_a_release_that_cannot_be_collected(failing, devices):
    """It says so, loses nothing, and is tried again by the next one."""
    m, plan = failing
    path = make(m, bytes(4 * PAGE))
    mapping, fd = open_map(devices(), path)
    mapping[100:110] = b"0123456789"
    arm(plan, "pwrite64", errno.ENOSPC, sticky=1)
    assert error_of(mapping.release) == errno.ENOSPC
    assert error_of(mapping.release) == errno.ENOSPC
    assert error_of(mapping.acquire) == errno.ENOSPC
    landed(plan)
    assert read_file(path) == bytes(4 * PAGE) and mapping[100:110] == b"0123456789"
    mapping.release()
    assert read_file(path)[100:110] == b"0123456789"
    mapping[PAGE] = 1
    arm(plan, "pwrite64", errno.EIO)
    assert error_of(mapping.release) == errno.EIO
    landed(plan)
    mapping.sync()
    assert read_file(path)[PAGE] == 1
    os.close(fd)


@pytest.mark.parametrize("stored", ["all", "every-second"])
def test_no_space(passing, devices, small_ext4, stored):  # noqa: F811
    """A release says so, loses nothing and ends nobody: also where it stores to a mapping that finds no room."""
    m = passing(data=small_ext4)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)  # a hole: no room is set aside
    mapping, fd = open_map(devices(), path)
    content = bytearray(pattern(MIB))
    if stored == "every-second":
        content[::2] = bytes(MIB // 2)
    (ctypes.c_ubyte * MIB).from_address(mapping.address)[1::2] = content[1::2]
    if stored == "all":
        mapping[:] = bytes(content)
    ballast = fill(small_ext4)
    for call in mapping.release, mapping.release, mapping.sync, mapping.acquire:
        assert error_of(call) == errno.ENOSPC
        assert mapping[:] == content
    os.unlink(ballast)
    os.sync()
    mapping.release()
    assert read_file(path) == content
    assert error_of(os.fsync, fd) in (0, errno.ENOSPC)  # it is told to each descriptor once
    assert error_of(os.fsync, fd) == 0
    os.close(fd)


def test_a_kernel_that_wants_another_descriptor(failing):
    """Before 6.16 one with O_PATH is none."""
    m, plan = failing
    write_file(os.path.join(m.data, "f"), b"content")  # through the mount its RELEASE might yet have to come
    arm(plan, "ioctl", errno.EBADF)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
    landed(plan)
    assert mode(m) == "passthrough" and os.pread(fd, 9, 0) == b"content"
    os.close(fd)


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOMEM, errno.ELOOP], ids=errno.errorcode.get)
def test_a_kernel_that_refuses(failing, devices, error):
    """The file is opened in the other mode, and works."""
    m, plan = failing
    path = os.path.join(m.data, "f")
    write_file(path, bytes(PAGE))
    arm(plan, "ioctl", error)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
    landed(plan)
    assert mode(m) == "cached"
    assert statistics(m.mnt)["passthrough"] == (error == errno.ENOMEM)
    os.pwrite(fd, b"x", 0)
    mapping = devices().mmap(fd, PAGE)
    assert mode(m) == "tracked" and mapping[0] == ord("x")
    mapping[1] = 5
    mapping.release()
    assert os.pread(fd, 2, 0) == b"x\5"
    os.close(fd)


def test_who_writes_from_memory_that_does_not_come_and_many_who_cut(passing, mount, agents):
    """The kernel has the file's lock below as long as it waits for the bytes. Others wait for that, but not all threads of the
    daemon: what is asked of other files is answered."""
    m, stuck = passing(), mount("passthrough=off")
    path = make(m, b"x" * PAGE)
    write_file(os.path.join(stuck.data, "f"), bytes(PAGE))  # the kernel has no page of it
    writer, many, other = agents(), agents(), agents()
    writer.do("fd = os.open(path, os.O_RDWR)\nmemory = mmap.mmap(os.open(far, os.O_RDWR), PAGE)", path=path,
              far=os.path.join(stuck.mnt, "f"))
    with standing_still(stuck.pid):
        writer.start("os.pwrite(fd, memory, 0)")
        assert writer.busy(0.2)
        many.do("def cut():\n    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))\n"
                "threads = [threading.Thread(target=cut) for _ in range(40)]\nfor thread in threads:\n    thread.start()\n"
                "time.sleep(0.3)", path=path)
        other.start("open(path, 'wb').write(b'more')\nassert open(path, 'rb').read() == b'more'",
                    path=os.path.join(m.mnt, "other"))
        assert not other.busy(10)
        other.finish()
    writer.finish()
    many.do("for thread in threads:\n    thread.join()")
    assert len(read_file(path)) in (0, PAGE)
