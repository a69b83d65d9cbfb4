# SPDX-License-Identifier: Apache-2.0
"""Bad input, full disks, dead processes, and clients that do not keep to the protocol."""
import contextlib
import ctypes
import errno
import glob
import fcntl
import mmap
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time

import pytest

import gaia
import helpers
from helpers import (ACQUIRE, ADVISE, ATTACH, DUMP, HELLO, MAP, PAGE, RELEASE, STAT, SYNC, UNMAP, AgentDied, Raw,
                     agents, device_statistics, devices, get_token, make_random, message, read_file,  # noqa: F401
                     statistics, tool, userfaultfd, wait_until, write_file)
from helpers import ALL_ROWS, Plan, client_with_faults

lib, NULL, MAP_FAILED = gaia.lib, None, gaia.MAP_FAILED
MIB = 1 << 20


def code_of(result, good=0):
    """0, or the errno of a call that failed as it should: with -1 (MAP_FAILED)."""
    if result == MAP_FAILED or result == -1:
        return ctypes.get_errno()
    assert result == good if good is not None else result
    return 0


class Setup:
    def __init__(self, m, devices, size=10 * PAGE):
        self.path = os.path.join(m.mnt, "f")
        write_file(self.path, bytes(size))
        self.fd = os.open(self.path, os.O_RDWR)
        self.device, self.other = devices(), devices("soft:1")
        self.map = self.device.mmap(self.fd, size)
        self.address, self.handle = self.map.address, self.device.handle


# --- arguments ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name, code", [
    (b"", 0), (b"soft:0", 0), (b"soft:7", 0), (NULL, 0), (b"soft:63", 0), (b"soft:64", errno.ENODEV), (b"soft:9999", errno.ENODEV),
    (b"cuda:0", errno.ENODEV), (b"soft", errno.EINVAL), (b"soft:", errno.EINVAL), (b"soft:x", errno.EINVAL),
    (b"soft:1x", errno.EINVAL), (b"soft:-1", errno.EINVAL), (b"soft: 1", errno.EINVAL), (b"Soft:0", errno.EINVAL),
    (b"hard:0", errno.EINVAL), (b"soft:0:0", errno.EINVAL), (b"s" * 10000, errno.EINVAL),
    (b"soft:" + b"1" * 300, (errno.EINVAL, errno.ENODEV))])
def test_open_device(name, code):
    if name == b"":
        name = b"soft:3"  # what an empty name means is not said
    out = ctypes.c_void_p(0x1234)
    result = code_of(lib.gaia_device_open(name, ctypes.byref(out)))
    assert result in code if isinstance(code, tuple) else result == code
    if result:
        assert out.value == 0x1234  # written on success only
    else:
        lib.gaia_device_close(out)


def test_open_device_from_the_environment(agents):
    child = agents({"GAIA_DEVICE": "soft:5"})
    child.do("dev = gaia.Device(None)")
    for value, code in (("nonsense", errno.EINVAL), ("soft:64", errno.ENODEV)):
        with pytest.raises(OSError) as caught:
            agents({"GAIA_DEVICE": value}).do("gaia.Device(None)")
        assert caught.value.errno == code


def test_null_arguments(mount, devices):
    lib.gaia_device_close(None)
    assert code_of(lib.gaia_device_open(b"soft:0", None)) == errno.EINVAL
    s = Setup(mount(), devices)
    assert code_of(lib.gaia_mmap(None, PAGE, 3, 0, s.fd, 0)) == errno.EINVAL
    assert code_of(lib.gaia_macquire(s.address, PAGE, None)) == errno.EINVAL
    assert code_of(lib.gaia_mrelease(s.address, PAGE, None)) == errno.EINVAL
    assert code_of(lib.gaia_stat(None, None)) == errno.EINVAL
    assert code_of(lib.gaia_stat(s.handle, None)) == errno.EINVAL
    assert code_of(lib.gaia_stat(None, ctypes.byref(gaia.Stat()))) == errno.EINVAL
    assert code_of(lib.gaia_stat(s.other.handle, ctypes.byref(gaia.Stat()))) == errno.ENOTCONN  # nothing is mapped


BIG = (1 << 63) - 1


@pytest.mark.parametrize("length, prot, flags, offset, code", [
    (1, 3, 0, 0, 0), (PAGE, 1, 0, 0, 0), (PAGE + 1, 3, 1, 0, 0), (PAGE, 3, 2, PAGE, 0), (PAGE, 3, 0, 100 * PAGE, 0),
    (0, 3, 0, 0, errno.EINVAL), (PAGE, 0, 0, 0, errno.EINVAL), (PAGE, 2, 0, 0, errno.EINVAL),
    (PAGE, 4, 0, 0, errno.EINVAL), (PAGE, 7, 0, 0, errno.EINVAL), (PAGE, 5, 0, 0, errno.EINVAL),
    (PAGE, -1, 0, 0, errno.EINVAL), (PAGE, 3, 3, 0, errno.EINVAL), (PAGE, 3, 4, 0, errno.EINVAL),
    (PAGE, 3, -1, 0, errno.EINVAL), (PAGE, 3, 1 << 31, 0, errno.EINVAL), (PAGE, 3, 0, 1, errno.EINVAL),
    (PAGE, 3, 0, 4095, errno.EINVAL), (PAGE, 3, 0, 512, errno.EINVAL), (PAGE, 3, 0, -PAGE, errno.EINVAL),
    (PAGE, 3, 0, -1, errno.EINVAL), (PAGE, 3, 0, BIG // PAGE * PAGE, errno.EOVERFLOW),
    (1 << 62, 3, 0, 1 << 62, errno.EOVERFLOW), (BIG, 3, 0, PAGE, errno.EOVERFLOW),
    ((1 << 64) - 1, 3, 0, 0, errno.EOVERFLOW), ((1 << 64) - PAGE, 3, 0, 0, errno.EOVERFLOW),
    (1 << 50, 3, 0, 0, errno.ENOMEM), (1 << 61, 3, 0, 0, errno.ENOMEM)])
def test_mmap_arguments(mount, devices, length, prot, flags, offset, code):
    s = Setup(mount(), devices)
    assert code_of(lib.gaia_mmap(s.handle, length, prot, flags, s.fd, offset), None) == code
    assert s.map[0] == 0


def test_mmap_of_what_cannot_be_mapped(mount, devices, workdir):
    m = mount()
    s = Setup(m, devices)
    write_file(os.path.join(workdir, "elsewhere"), bytes(PAGE))
    os.mkfifo(os.path.join(m.mnt, "fifo"))
    os.mkdir(os.path.join(m.mnt, "folder"))
    pipe_read, pipe_write = os.pipe()
    opened = [os.open(path, flags) for path, flags in (
        (os.path.join(workdir, "elsewhere"), os.O_RDWR), ("/proc/self/status", os.O_RDONLY),
        (m.mnt, os.O_RDONLY), (os.path.join(m.mnt, "folder"), os.O_RDONLY),
        (os.path.join(m.mnt, "fifo"), os.O_RDWR), ("/dev/null", os.O_RDWR), ("/dev/zero", os.O_RDWR),
        (s.path, os.O_WRONLY), (s.path, os.O_PATH), (s.path, os.O_RDONLY), ("/dev/fuse", os.O_RDWR))]
    other_fs, proc, root, folder, fifo, null, zero, write_only, path_only, read_only, fuse = opened
    memfd, sock = os.memfd_create("x"), socket.socket(socket.AF_UNIX)
    closed = os.dup2(s.fd, 900)  # a number that nobody else will be given
    os.close(closed)
    for fd, prot, codes in (
            (other_fs, 3, [errno.ENODEV]), (proc, 1, [errno.ENODEV]), (root, 1, [errno.ENODEV]),
            (folder, 1, [errno.ENODEV]), (fifo, 3, [errno.ENODEV]), (pipe_read, 1, [errno.ENODEV]),
            (pipe_write, 3, [errno.EACCES, errno.ENODEV]), (null, 3, [errno.ENODEV]), (zero, 3, [errno.ENODEV]),
            (fuse, 3, [errno.ENODEV]), (memfd, 3, [errno.ENODEV]), (sock.fileno(), 3, [errno.ENODEV]),
            (write_only, 3, [errno.EACCES]), (write_only, 1, [errno.EACCES]), (path_only, 1, [errno.EBADF]),
            (read_only, 3, [errno.EACCES]), (read_only, 1, [0]), (closed, 3, [errno.EBADF]), (-1, 3, [errno.EBADF]),
            (1 << 30, 3, [errno.EBADF])):
        assert code_of(lib.gaia_mmap(s.handle, PAGE, prot, 0, fd, 0), None) in codes, (os.readlink(f'/proc/self/fd/{fd}') if fd in opened else fd)
    for fd in opened + [pipe_read, pipe_write, memfd]:
        os.close(fd)
    sock.close()


def test_ranges(mount, devices):
    """Each of the range calls, with ranges that are wrong in each way."""
    s = Setup(mount(), devices)
    calls = {
        "acquire": lambda a, n: lib.gaia_macquire(a, n, s.handle), "release": lambda a, n: lib.gaia_mrelease(a, n, s.handle),
        "sync": lambda a, n: lib.gaia_msync(a, n, gaia.MS_SYNC), "async": lambda a, n: lib.gaia_msync(a, n, gaia.MS_ASYNC),
        "advise": lambda a, n: lib.gaia_madvise(a, n, 0)}
    a = s.address
    plain = ctypes.create_string_buffer(3 * PAGE)
    aligned = (ctypes.addressof(plain) + PAGE - 1) // PAGE * PAGE
    for name, call in calls.items():
        for address, length, code in (
                (a, 1, 0), (a, PAGE + 1, 0), (a, 10 * PAGE, 0), (a + 9 * PAGE, PAGE, 0), (a + 5 * PAGE, 5 * PAGE - 1, 0),
                (a, 0, errno.EINVAL), (a + 1, PAGE, errno.EINVAL), (a + 4095, 1, errno.EINVAL),
                (a, 10 * PAGE + 1, errno.EINVAL), (a + 9 * PAGE, 2 * PAGE, errno.EINVAL),
                (a - PAGE, PAGE, errno.EINVAL), (a - PAGE, 2 * PAGE, errno.EINVAL), (a + 10 * PAGE, PAGE, errno.EINVAL),
                (aligned, PAGE, errno.EINVAL), (0, PAGE, errno.EINVAL), (a, (1 << 64) - 1, errno.EINVAL),
                (a, (1 << 64) - PAGE, errno.EINVAL), ((1 << 64) - PAGE, PAGE, errno.EINVAL),
                ((1 << 64) - PAGE, 2 * PAGE, errno.EINVAL), (a, 1 << 62, errno.EINVAL)):
            assert code_of(call(address, length)) == code, (name, hex(address), length)
    # another device's range
    assert code_of(lib.gaia_macquire(a, PAGE, s.other.handle)) == errno.EINVAL
    assert code_of(lib.gaia_mrelease(a, PAGE, s.other.handle)) == errno.EINVAL
    second = s.other.mmap(s.fd, PAGE)
    assert code_of(lib.gaia_macquire(a, PAGE, s.other.handle)) == errno.EINVAL
    assert code_of(lib.gaia_macquire(second.address, PAGE, s.handle)) == errno.EINVAL
    for flags in (0, 2, 3, 5, 6, -1, 8):
        assert code_of(lib.gaia_msync(a, PAGE, flags)) == errno.EINVAL, flags
    for advice in (-1, 5, 1000, 1 << 30):
        assert code_of(lib.gaia_madvise(a, PAGE, advice)) == errno.EINVAL, advice
    for address, length, code in ((a + 1, PAGE, errno.EINVAL), (a, 0, errno.EINVAL), (a, (1 << 64) - 1, errno.EINVAL),
                                  ((1 << 64) - PAGE, 2 * PAGE, errno.EINVAL), (aligned, PAGE, 0), (a, PAGE, 0),
                                  (a, PAGE, 0), (a - 3 * PAGE, 5 * PAGE, 0)):
        assert code_of(lib.gaia_munmap(address, length)) == code, (hex(address), length)
    for name, call in calls.items():
        assert code_of(call(a, 10 * PAGE)) == errno.EINVAL, name  # the first pages are no longer mapped
        assert code_of(call(a + 2 * PAGE, 8 * PAGE)) == 0, name
    plain[0] = b"x"  # munmap skipped what is not ours


def test_a_read_only_mapping_is_not_released(mount, devices):
    s = Setup(mount(), devices)
    mapping = s.device.mmap(s.fd, 4 * PAGE, gaia.PROT_READ)
    assert code_of(lib.gaia_mrelease(mapping.address, PAGE, s.handle)) == errno.EACCES
    assert code_of(lib.gaia_macquire(mapping.address, PAGE, s.handle)) == 0
    assert code_of(lib.gaia_msync(mapping.address, PAGE, gaia.MS_SYNC)) == 0


def test_calls_on_a_closed_mapping(mount, devices):
    s = Setup(mount(), devices)
    address = s.address
    s.device.close()
    fresh = devices()
    assert code_of(lib.gaia_macquire(address, PAGE, fresh.handle)) == errno.EINVAL
    assert code_of(lib.gaia_msync(address, PAGE, gaia.MS_SYNC)) == errno.EINVAL
    assert code_of(lib.gaia_munmap(address, PAGE)) == 0
    assert code_of(lib.gaia_stat(fresh.handle, ctypes.byref(gaia.Stat()))) == errno.ENOTCONN


def test_nothing_stays_open_in_the_client(mount, devices):
    """A program that maps and unmaps, or tries in vain, has as many descriptors as before."""
    m = mount("device_cache=256K")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    fd, device = os.open(path, os.O_RDWR), devices()
    first = device.mmap(fd, PAGE)  # the session's own
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        device.mmap(fd, PAGE).unmap()
        with pytest.raises(OSError) as caught:
            device.mmap(fd, MIB, flags=gaia.RESIDENT)
        assert caught.value.errno == errno.ENOMEM
    assert len(os.listdir("/proc/self/fd")) == before
    first.unmap()
    os.close(fd)


# --- no room ------------------------------------------------------------------------------------------------------------

@pytest.fixture
def small(workdir):
    """A data directory on a filesystem of 4 MiB."""
    folder = os.path.join(workdir, "small")
    os.mkdir(folder)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs: {done.stderr}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


@pytest.fixture
def small_ext4(workdir):
    folder, image = os.path.join(workdir, "small"), os.path.join(workdir, "image")
    os.mkdir(folder)
    with open(image, "wb") as file:
        file.truncate(16 * MIB)
    done = subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], capture_output=True, text=True)
    if not done.returncode:
        done = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no ext4 in a file here: {done.stderr}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


def fill(folder):
    """Until nothing goes in; returns the ballast's path."""
    path = os.path.join(folder, "ballast")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for size in (65536, PAGE):
        try:
            while True:
                os.write(fd, bytes(size))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.close(fd)
    return path


@pytest.mark.parametrize("kind", ["small", "small_ext4"])
def test_no_space(mount, agents, request, kind):
    """write() says so, fsync, msync and acquires of others too; the device keeps its bytes until there is room."""
    data = request.getfixturevalue(kind)
    m = mount(data=data)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)  # a hole: no room is set aside
    fd = os.open(path, os.O_RDWR)
    one, two = agents(), agents()
    for agent, name in ((one, "soft:0"), (two, "soft:1")):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 1 << 20)\nassert map[:] == bytes(1 << 20)",
                 path=path, name=name)
    content = random.Random(1).randbytes(MIB)
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


def test_reads_while_there_is_no_space(mount, agents, small):
    """A read() either has the released bytes or says why not: never the old bytes."""
    m = mount(data=small)
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


def test_eviction_while_there_is_no_space(mount, agents, small):
    """What can't be evicted stays; the toucher gets its page or SIGBUS, no hang, and what it stored is not lost."""
    m = mount("device_cache=256K", data=small)
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, MIB)
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 1 << 20)", path=path)
    child.do("for i in range(32): map[i * PAGE:(i + 1) * PAGE] = bytes([i + 1]) * PAGE")
    child.do("map.release(0, 32 * PAGE)")
    ballast = fill(small)
    child.start("for i in range(32, 256): map[i * PAGE]")
    try:
        assert not child.busy(20), "a touch hangs"
        child.finish()
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
    os.unlink(ballast)
    assert read_file(path)[:32 * PAGE] == b"".join(bytes([i + 1]) * PAGE for i in range(32))


def test_no_space_for_one_of_two_pages(mount, devices, small):
    """A failed fsync() says so, also when what was written last went well."""
    m = mount(data=small)
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
    m = mount(data=small)
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


# --- a broken disk ------------------------------------------------------------------------------------------------------

class Disk:
    """An ext4 on a loop device whose image can be broken: reads of file data fail when its end is cut off, writes fail
    when the filesystem below it has no room for the image's holes."""

    def __init__(self, workdir):
        self.below, self.folder = os.path.join(workdir, "below"), os.path.join(workdir, "disk")
        self.image = os.path.join(self.below, "image")
        os.mkdir(self.below)
        os.mkdir(self.folder)
        self.undo = []
        self.run("mount", "-t", "tmpfs", "-o", "size=40m", "none", self.below)
        self.undo.append(["umount", "-l", self.below])
        with open(self.image, "wb") as file:
            file.truncate(64 * MIB)
        # Its metadata is at the beginning, and stays good.
        self.run("mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", self.image)
        self.loop = self.run("losetup", "-f", "--show", self.image).strip()
        self.undo.append(["losetup", "-d", self.loop])
        self.run("mount", "-o", "errors=continue", self.loop, self.folder)
        self.undo.append(["umount", "-l", self.folder])

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.end()
            pytest.skip(f"no disk in a file here: {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def end(self):
        while self.undo:
            subprocess.run(self.undo.pop(), check=False, capture_output=True)

    def sync(self):
        subprocess.run(["sync", "-f", self.folder], check=True)

    def cut(self):
        """From now on what is not in memory can't be read."""
        self.sync()
        with open(self.image, "r+b") as file:
            file.seek(6 * MIB)
            self.rest = file.read()
            file.truncate(6 * MIB)

    def mend(self):
        with open(self.image, "r+b") as file:
            file.truncate(64 * MIB)
            for at in range(0, len(self.rest), PAGE):
                if self.rest[at:at + PAGE].strip(b"\0"):  # holes stay holes: there is no room for all
                    os.pwrite(file.fileno(), self.rest[at:at + PAGE], 6 * MIB + at)

    def fill(self):
        """From now on what was never written can't be written."""
        self.sync()
        self.ballast = fill(self.below)

    def empty(self):
        os.unlink(self.ballast)


@pytest.fixture
def disk(workdir):
    made = Disk(workdir)
    yield made
    made.end()


@pytest.fixture(params=["1", "0"], ids=["", "before-6.6"])
def broken_disk_mount(disk, mount, request):
    """The mount is gone before the disk below it. Also without what kernels before 6.6 lack."""
    yield mount(data=disk.folder, env={"GAIA_SOFT_POISON": request.param})
    helpers.close_files()


def test_a_disk_that_cannot_be_read(broken_disk_mount, disk, agents):
    """EIO for read() and for calls, SIGBUS for a touch; others go on, and all is well when the disk is."""
    m = broken_disk_mount
    content = random.Random(1).randbytes(4 * MIB)
    for name in ("low", "pad"):  # so that the file lies behind what stays
        write_file(os.path.join(m.mnt, name), content)
    disk.sync()
    path, direct = os.path.join(m.mnt, "f"), os.path.join(disk.folder, "f")
    write_file(path, content)
    write_file(os.path.join(m.mnt, "other"), b"o" * PAGE)
    child, dying, storing = agents(), agents(), agents()
    for agent, flags in ((child, gaia.RESIDENT), (dying, 0), (storing, 0)):
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 4 << 20, 3, flags)", path=path,
                 flags=flags)
    for forgotten in (path, direct):
        helpers.drop_host_cache(forgotten)
    disk.cut()
    fd = os.open(direct, os.O_RDONLY | os.O_DIRECT)
    try:
        try:
            os.preadv(fd, [mmap.mmap(-1, PAGE)], MIB)
            pytest.skip("reads of the cut image do not fail here")
        except OSError as error:
            assert error.errno == errno.EIO
    finally:
        os.close(fd)
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(OSError) as caught:
        os.pread(fd, PAGE, MIB)
    assert caught.value.errno == errno.EIO
    child.start("map.acquire()")
    assert not child.busy(10), "an acquire hangs"
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.EIO
    for agent, touch in ((dying, "map[2 << 20]"), (storing, "map[3 << 20:(3 << 20) + 1] = b'x'")):
        agent.start(touch)
        assert not agent.busy(10), "a touch hangs"
        with pytest.raises(AgentDied) as died:
            agent.finish()
        assert died.value.code == -signal.SIGBUS
    assert m.proc.poll() is None
    statistics(m.mnt)
    disk.mend()
    child.do("map.acquire()")
    assert child("map[:]") == content
    os.close(fd)
    assert read_file(path) == content
    child.end()


TOUCH = '''
libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
hole = os.memfd_create("hole")
def touch(offset):
    "A touch by the kernel: it gets EFAULT where a program gets SIGBUS."
    return libc.write(hole, map.address + offset, 1), ctypes.get_errno()
'''


def test_a_page_that_can_be_read_again(mount, disk, agents):
    """What could not be served is tried again after an acquire, by the same process."""
    m = mount(data=disk.folder)
    content = random.Random(3).randbytes(4 * MIB)
    for name in ("low", "pad", "f"):
        write_file(os.path.join(m.mnt, name), content)
    disk.sync()
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 4 << 20)\nmap.advise(gaia.ADV_RANDOM)" + TOUCH,
             path=os.path.join(m.mnt, "f"))
    for forgotten in (os.path.join(m.mnt, "f"), os.path.join(disk.folder, "f")):
        helpers.drop_host_cache(forgotten)
    disk.cut()
    done, code = child("touch(2 << 20)")
    disk.mend()
    if done == 1:
        pytest.skip("reads of the cut image do not fail here")
    assert code == errno.EFAULT
    child.do("map.acquire()")
    assert child("touch(2 << 20)")[0] == 1
    assert child("map[:]") == content
    child.end()


def test_fsync_of_a_file_that_no_device_has(mount, disk):
    m = mount(data=disk.folder)
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 * MIB)
    disk.fill()
    with contextlib.suppress(OSError):
        os.pwrite(fd, b"w" * MIB, 6 * MIB)
    with pytest.raises(OSError) as caught:
        os.fsync(fd)
    assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    disk.empty()
    os.close(fd)


def test_a_disk_that_cannot_be_written(broken_disk_mount, disk, agents):
    """fsync() and msync say so to each descriptor; nobody sees old bytes; what the device holds is not lost."""
    m = broken_disk_mount
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 8 * MIB)
    fds = [os.open(path, os.O_RDWR) for _ in range(2)]
    one, two = agents(), agents()
    for agent, name in ((one, "soft:0"), (two, "soft:1")):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device(name).mmap(fd, 8 << 20)\nmap[5]", path=path, name=name)
    content = random.Random(2).randbytes(4 * MIB)
    one.do("map[:4 << 20] = content", content=content)
    disk.fill()
    one.do("map.release()")
    try:
        os.pwrite(fds[0], b"w" * MIB, 6 * MIB)
        written = True
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOSPC)
        written = False
    for fd in fds:
        with pytest.raises(OSError) as caught:
            os.fsync(fd)
        assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        one.do("map.sync()")
    assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    # what is still there is what was stored, for everyone
    try:
        two.do("map.acquire()")
        assert two("map[:4 << 20]") == content
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOSPC)
    assert one("map[:4 << 20]") == content
    disk.empty()
    fresh = os.open(path, os.O_RDWR)
    if written:  # and called clean by the filesystem: the next fsync would have nothing to do
        for fd in (*fds, fresh, *fds):
            with pytest.raises(OSError) as caught:
                os.fsync(fd)
            assert caught.value.errno in (errno.EIO, errno.ENOSPC)
        with pytest.raises(OSError):
            one.do("map.sync()")
    for agent in (one, two):
        agent.do("map.acquire()")
    one.do("map[:4 << 20] = bytes(4 << 20)\nmap.release()")  # storing what is there already would write nothing
    os.pwrite(fresh, b"w" * MIB, 6 * MIB)
    for fd in (fresh, *fds):
        try:
            os.fsync(fd)
        except OSError as error:  # the last of the old trouble
            assert error.errno in (errno.EIO, errno.ENOSPC)
        os.fsync(fd)  # all was written again
    one.do("map[:4 << 20] = content\nmap.release()\nmap.sync()")
    print("written", written)
    assert read_file(path)[:4 * MIB] == content
    for fd in (*fds, fresh):
        os.close(fd)
    one.end()
    two.end()


# --- the daemon dies ------------------------------------------------------------------------------------------------------

KERNEL = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device()
size = os.fstat(fd).st_size
map = dev.mmap(fd, size)
rng = random.Random(1)
def kernel(seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(50):
            at = rng.randrange(size)
            map[at] = (map[at] + 1) % 256
        map.release()
        if rng.random() < 0.3:
            map.acquire()
"""


def kill_daemon(m):
    m.expected_exit = None
    os.kill(m.pid, signal.SIGKILL)
    m.proc.wait(10)


@pytest.mark.parametrize("what", ["map[size - 1]", "map[size - 1:size] = b'x'", "map[0]", "map[0:1] = b'x'"])
def test_touching_memory_of_a_dead_daemon(mount, agents, what):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * MIB))
    child = agents()
    child.do(KERNEL + "map[0:1]\n", path=path)
    kill_daemon(m)
    started = time.monotonic()
    child.start(what)
    assert not child.busy(5), "a touch of a dead daemon's memory hangs"
    try:
        child.finish()
        assert "0" in what.split("=")[0]  # a page that was there may be seen still
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
    print(time.monotonic() - started)


def test_calls_after_the_daemon_is_dead(mount, agents):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    child = agents()
    child.do(KERNEL + "map[0:1] = b'x'", path=path)
    kill_daemon(m)
    for call in ("map.release()", "map.acquire()", "map.sync()", "map.sync(gaia.MS_ASYNC)", "map.advise(3)", "dev.stat()",
                 "dev.mmap(fd, 4096)"):
        child.start(call)
        assert not child.busy(5), call
        with pytest.raises(OSError) as caught:
            child.finish()
        assert caught.value.errno == errno.ENOTCONN, call
    child.start("(map.unmap(), dev.close())")
    assert not child.busy(5)
    child.finish()


def states_of(pid):
    """Of a process's threads, as ps says them."""
    states = set()
    for stat in glob.glob(f"/proc/{pid}/task/*/stat"):
        with open(stat) as file:
            states.add(file.read().rpartition(")")[2].split()[0])
    return states


@pytest.mark.parametrize("call", ["dev.mmap(fd, 4096)", "map.acquire()", "map.release()", "map.sync()", "map.advise(3)",
                                  "dev.stat()"])
def test_a_call_under_way_when_the_daemon_is_killed(mount, agents, call):
    """Whatever it waits for: the kernel has other words for requests that were under way."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    child = agents()
    child.do(KERNEL + "map[0:1] = b'x'\ncpu = mmap.mmap(fd, 4096)\ncpu[9] = 1", path=path)
    os.kill(m.pid, signal.SIGSTOP)
    wait_until(lambda: states_of(m.pid) == {"T"}, what="the daemon stands still")
    child.start(call)
    assert child.busy(0.3), child.finish()
    kill_daemon(m)
    assert not child.busy(5), call
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN


def test_daemon_killed_while_it_invalidates(mount, agents):
    """A thread of it that has the kernel drop dirty pages waits for WRITEs that nobody answers any more."""
    m = mount("device_cache=64M")
    path = os.path.join(m.mnt, "f")
    pages = 8000
    write_file(path, bytes(pages * PAGE))
    child = agents()
    child.do(KERNEL + "cpu = mmap.mmap(fd, size)\n"
             "for page in range(size // PAGE):\n    cpu[page * PAGE] = 1\n    map[page * PAGE + 9] = 1", path=path)
    child.start("map.release()")
    time.sleep(0.01)
    while True:
        assert child.busy(), "too late"
        os.kill(m.pid, signal.SIGSTOP)  # nobody answers the next WRITE, and who waits for that does not even stop
        wait_until(lambda: states_of(m.pid) <= {"T", "D"}, what="the daemon stands still")
        time.sleep(0.01)
        if states_of(m.pid) == {"T", "D"}:
            break
        os.kill(m.pid, signal.SIGCONT)
        time.sleep(0.003)
    kill_daemon(m)  # waits for its end
    assert not child.busy(5), "the call hangs"
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN


def test_stores_that_found_no_daemon(mount, agents, workdir):
    """The kernel throws away dirty pages that it can't send any more, and tells who flushes them nothing: an acquire
    that has nothing else to do must see for itself that the daemon was there."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    plan = Plan.make(os.path.join(workdir, "plan"))
    child = agents(client_with_faults(os.path.join(workdir, "plan")))
    child.do(KERNEL + "cpu = mmap.mmap(fd, 4096)\nmap.acquire()\ncpu[9] = 1\nmap.acquire()", path=path)
    assert read_file(os.path.join(m.data, "f"))[9] == 1
    plan.arm_kill(ALL_ROWS.index("sync_file_range"), 1, 1, signal=signal.SIGSTOP)
    child.start("cpu[9] = 2\nmap.acquire()")
    wait_until(lambda: states_of(child.pid) == {"T"}, what="the program is about to flush")
    assert plan.landed == 1
    kill_daemon(m)
    os.kill(child.pid, signal.SIGCONT)
    with pytest.raises(OSError) as caught:
        child.finish()
    assert caught.value.errno == errno.ENOTCONN
    assert read_file(os.path.join(m.data, "f"))[9] == 1  # else there was nothing to see


def test_daemon_killed_under_running_kernels(mount, agents):
    m = mount("device_cache=1M")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(8 * MIB))
    children = [agents() for _ in range(3)]
    for child in children:
        child.do(KERNEL, path=path)
        child.start("kernel()")
    time.sleep(0.7)
    assert all(child.busy() for child in children)
    kill_daemon(m)
    deadline = time.monotonic() + 5
    for child in children:
        assert not child.busy(max(0, deadline - time.monotonic())), "a kernel hangs"
        try:
            child.finish()
            raise AssertionError("a kernel went on")
        except AgentDied as died:
            assert died.code == -signal.SIGBUS
        except OSError as error:
            assert error.errno == errno.ENOTCONN


# --- clients die ------------------------------------------------------------------------------------------------------------

def memory_kib(pid):
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon", "RssShmem")))


@pytest.mark.limit(90)
def test_clients_killed_at_random_times(mount, devices, agents):
    m = mount("device_cache=1M")
    rng = make_random("kill")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * MIB))
    own_path = os.path.join(m.mnt, "own")
    content = bytearray(rng.randbytes(40 * PAGE))
    write_file(own_path, content)
    fd = os.open(own_path, os.O_RDWR)
    good = devices().mmap(fd, len(content))
    helper = helpers.tool_path("tool_busy")
    memory = []
    for turn in range(50):
        proc = subprocess.Popen([helper, path, "soft:0" if turn % 2 else "soft:1", str(turn + 1)],
                                stdout=subprocess.PIPE)
        assert proc.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.03)
        proc.kill()
        proc.wait()
        proc.stdout.close()
        at = rng.randrange(len(content))
        good[at] = content[at] = (content[at] + 1) % 256
        good.release()
        assert os.pread(fd, 1, at)[0] == content[at]
        good.acquire()
        assert good[:] == content
        assert m.proc.poll() is None
        memory.append(memory_kib(m.pid))
    assert len(read_file(path)) == 4 * MIB
    print(memory)
    assert max(memory[40:]) < max(memory[10:20]) * 1.2 + 4096, memory
    wait_until(lambda: len(os.listdir(f"/proc/{m.pid}/task")) < 100)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_ended_clients_leave_no_descriptors(mount, agents):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    counts = []
    for turn in range(12):
        child = agents()
        child.do(KERNEL + "kernel(0.01)", path=path)
        if turn % 2:
            child.kill()
        else:
            child.end()
        time.sleep(0.1)
        counts.append((descriptors(m.pid), len(os.listdir(f"/proc/{m.pid}/task"))))
    print(counts)
    # libfuse starts threads of its own as it needs them; eight clients that left one each would be more.
    assert counts[-1][0] <= counts[3][0] and counts[-1][1] <= counts[3][1] + 4


# --- what is no message -----------------------------------------------------------------------------------------------------

class Good:
    """A client that keeps to the rules, in a process of its own, and a way to see that it is still served."""

    def __init__(self, m, agents):
        self.m, self.agents = m, agents
        self.path = os.path.join(m.mnt, "good")
        write_file(self.path, bytes(8 * PAGE))
        self.child = agents()
        self.child.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 8 * PAGE)\nn = 0", path=self.path)

    def works(self):
        self.child.do("n += 1\nmap[5 * PAGE] = n % 256\nmap.release()\nassert os.pread(fd, 1, 5 * PAGE)[0] == n % 256\n"
                      "os.pwrite(fd, bytes([n % 256]), 3)\nmap.acquire()\nassert map[3] == n % 256")
        assert self.m.proc.poll() is None


@pytest.fixture
def served(mount, agents):
    """A mount, a good client on it, and a file to ask for."""
    m = mount()
    good = Good(m, agents)
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(64 * PAGE))
    fd = os.open(path, os.O_RDWR)
    yield m, good, fd
    good.works()
    os.close(fd)


def mapped(fd, writable=True, pages=64):
    """A raw client that has said hello and has a map: (client, its number)."""
    address, token = get_token(fd)
    raw, faults = Raw(address), userfaultfd()
    assert raw.call(message(HELLO, flags=helpers.TRAPS), [faults]) == 0
    os.close(faults)
    assert raw.call(message(MAP, bytes=pages * PAGE, prot=3 if writable else 1, token=token)) == 0
    return raw, raw.reply["map"]


@pytest.mark.parametrize("data", [
    b"x", b"\0" * 255, b"\0" * 256, b"\0" * 257, b"\xff" * 256, b"\xff" * 60000,
    message(HELLO)[:-1], message(HELLO) + b"\0", message(HELLO, length=255), message(HELLO, length=0),
    message(HELLO, version=0), message(HELLO, version=2), message(HELLO, version=65535), message(0), message(11),
    message(65535), message(STAT, device=b"x" * 32),
    message(MAP, bytes=PAGE), message(ATTACH), message(UNMAP), message(ACQUIRE), message(RELEASE), message(SYNC),
    message(ADVISE)], ids=lambda data: f"{len(data)}-{data[:8].hex()}")
def test_no_message(served, data):
    """What is no message, or asks for maps before hello, ends that client."""
    _, good, fd = served
    raw = Raw(get_token(fd)[0])
    assert raw.call(data) == -1
    good.works()


def test_silence_and_hanging_up(served):
    m, good, fd = served
    address, _ = get_token(fd)
    silent = [Raw(address) for _ in range(20)]
    good.works()
    for raw in silent[:10]:
        raw.close()
    for raw in silent[10:]:
        raw.send(message(DUMP))
        raw.close()  # before the answer
    good.works()
    before = descriptors(m.pid)
    for _ in range(100):
        raw = Raw(address)
        raw.send(message(STAT))
        raw.close()
    good.works()
    wait_until(lambda: descriptors(m.pid) <= before + 2, what="descriptors of clients that hung up are closed")


def test_300_connections(served):
    """More than the daemon takes: the surplus is turned away, the good client goes on, later ones are taken again."""
    m, good, fd = served
    address, _ = get_token(fd)
    crowd = [Raw(address) for _ in range(60)]
    answered = 0
    for _ in range(240):
        try:
            crowd.append(Raw(address))
        except OSError:
            pass
    for raw in crowd:
        answered += raw.call(message(STAT)) == 0
    print("answered", answered)
    assert answered >= 100
    good.works()
    for raw in crowd:
        raw.close()

    def taken():
        raw = Raw(address)
        result = raw.call(message(STAT))
        raw.close()
        return result == 0
    wait_until(taken, what="a new client is taken")
    statistics(m.mnt)


def test_descriptors_that_are_not_for_faults(served):
    m, good, fd = served
    address, token = get_token(fd)
    before = descriptors(m.pid)
    pipe = os.pipe()
    memfd, null, folder = os.memfd_create("x"), os.open("/dev/null", os.O_RDWR), os.open(m.mnt, os.O_RDONLY)
    for wrong in (memfd, null, folder, fd, pipe[0], pipe[1]):
        raw = Raw(address)
        assert raw.call(message(HELLO), [wrong]) != 0
        raw.close()
        good.works()
    raw = Raw(address)
    raw.call(message(HELLO), [null] * 8)  # too many
    raw.close()
    raw = Raw(address)
    raw.call(message(STAT), [null, null])  # on a message that takes none
    raw.close()
    for one in (*pipe, memfd, null, folder):
        os.close(one)
    wait_until(lambda: descriptors(m.pid) <= before + 2, what="descriptors that a client sent are closed")


def test_hello_twice_and_maps_of_others(served):
    _, good, fd = served
    raw, number = mapped(fd)
    faults = userfaultfd()
    assert raw.call(message(HELLO), [faults]) != 0
    os.close(faults)
    other, other_number = mapped(fd)
    # numbers of maps are per client or unknown to others
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE, UNMAP, ATTACH):
        for unknown in (number + 1000, 0xFFFFFFFF, 0x80000000):
            assert raw.call(message(op, map=unknown, bytes=PAGE)) in (errno.EINVAL, errno.ENOENT, errno.EBADF), op
            good.works()
    assert other.call(message(RELEASE, map=other_number, bytes=PAGE)) in (0, errno.EINVAL)
    raw.close()
    other.close()


def test_attach_to_addresses_that_are_not_there(served):
    _, good, fd = served
    for address in (0, PAGE, 1, (1 << 64) - PAGE, 1 << 47, 0xDEAD000, 123):
        raw, number = mapped(fd)
        raw.call(message(ATTACH, map=number, address=address))
        good.works()
        for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
            raw.call(message(op, map=number, bytes=64 * PAGE, flags=3 if op == ADVISE else 0))
        good.works()
        raw.close()
    good.works()


def test_attach_twice(served):
    """A map has one place: the first."""
    _, good, fd = served
    raw, number = mapped(fd)
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    for address in (1 << 40, 1 << 41):
        assert raw.call(message(ATTACH, map=number, address=address)) == errno.EBUSY
    raw.close()
    good.works()


def test_who_may_not_write_releases_nothing(served):
    """libgaia does not ask; somebody else might."""
    m, _, _ = served
    fd = os.open(os.path.join(m.mnt, "f"), os.O_RDONLY)
    raw, number = mapped(fd, writable=False)
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    assert raw.call(message(RELEASE, map=number, bytes=PAGE)) == errno.EACCES
    assert raw.call(message(SYNC, map=number, bytes=PAGE)) == 0
    raw.close()
    os.close(fd)


def test_ranges_of_a_map_end_with_it(served):
    """A map in the middle of a file: not a page before it, not a page behind it."""
    _, _, fd = served
    address, token = get_token(fd)
    raw = hello(address)
    assert raw.call(message(MAP, offset=8 * PAGE, bytes=8 * PAGE, prot=3, token=token)) == 0
    number = raw.reply["map"]
    assert raw.call(message(ATTACH, map=number, address=1 << 40)) == 0
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
        for first, pages in ((8, 8), (8, 1), (15, 1)):
            assert raw.call(message(op, map=number, offset=first * PAGE, bytes=pages * PAGE)) == 0, (op, first, pages)
        for first, pages in ((7, 1), (7, 2), (8, 9), (15, 2), (16, 1), (9, 8), (0, 1)):
            assert raw.call(message(op, map=number, offset=first * PAGE, bytes=pages * PAGE)) == errno.EINVAL, (op, first, pages)
    for offset, size in ((1 << 62, 1 << 62), ((1 << 63) - 2 * PAGE, 2 * PAGE), (0, (1 << 63) - PAGE), (1, PAGE), (0, 0)):
        _, token = get_token(fd)
        assert raw.call(message(MAP, offset=offset, bytes=size, prot=3, token=token)) == errno.EINVAL, (offset, size)
    raw.close()


def test_descriptors_of_who_may_not_write(served):
    """Neither frames nor counters can be opened for writing by who is given them for reading."""
    _, _, fd = served
    for prot, frames in ((1, os.O_RDONLY), (3, os.O_RDWR)):
        address, token = get_token(fd)
        raw = hello(address)
        raw.send(message(MAP, bytes=PAGE, prot=prot, token=token))
        _, fds = raw.receive()
        assert [fcntl.fcntl(one, fcntl.F_GETFL) & os.O_ACCMODE for one in fds] == [frames, os.O_RDONLY]
        assert [stat.S_IMODE(os.fstat(one).st_mode) for one in fds] == [0, 0]
        for one in fds:
            os.close(one)
        raw.close()


@pytest.mark.limit(120)
def test_more_maps_than_there_may_be(served):
    """EMFILE; and what was opened for the answer is closed again."""
    m, _, fd = served
    address, _ = get_token(fd)
    raw, before = hello(address), descriptors(m.pid)
    codes = [raw.call(message(MAP, bytes=PAGE, prot=3, token=get_token(fd)[1])) for _ in range(4096 + 20)]
    assert codes == [0] * 4096 + [errno.EMFILE] * 20
    wait_until(lambda: descriptors(m.pid) <= before + 4, what="descriptors of refused maps are closed")
    raw.close()


def test_a_file_that_became_immutable(mount, agents):
    """Who could write when he opened it may not map it for writing when nobody can write any more."""
    m = mount()
    path, direct = os.path.join(m.mnt, "f"), os.path.join(m.data, "f")
    write_file(path, bytes(PAGE))
    fd = os.open(path, os.O_RDWR)
    if subprocess.run(["chattr", "+i", direct], capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        raw, token = hello(get_token(fd)[0]), get_token(fd)[1]
        assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == errno.EACCES
        assert raw.call(message(MAP, bytes=PAGE, prot=1, token=get_token(fd)[1])) == 0
        raw.close()
    finally:
        subprocess.run(["chattr", "-i", direct], check=True)
        os.close(fd)


def test_requests_with_ranges_out_of_bounds(served):
    _, good, fd = served
    raw, number = mapped(fd)
    edges = [0, 1, PAGE, PAGE - 1, 63 * PAGE, 64 * PAGE, 65 * PAGE, 1 << 62, 1 << 63, (1 << 64) - PAGE, (1 << 64) - 1]
    for op in (ACQUIRE, RELEASE, SYNC, ADVISE):
        for offset in edges:
            for size in edges:
                code = raw.call(message(op, map=number, offset=offset, bytes=size, flags=4))
                if code == -1:
                    raw, number = mapped(fd)
    for offset in edges:
        for size in edges:
            _, token = get_token(fd)
            if raw.call(message(MAP, offset=offset, bytes=size, prot=3, token=token)) == -1:
                raw, number = mapped(fd)
    raw.close()
    good.works()


@pytest.mark.limit(90)
def test_fuzzed_messages(served):
    """Valid headers with random fields, and random bytes, from clients that have maps and clients that have not."""
    m, good, fd = served
    rng = make_random("fuzz")
    edges = [0, 1, 2, PAGE, 64 * PAGE, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, (1 << 63), (1 << 64) - 1,
             (1 << 64) - PAGE]
    raw, number, ended, answered = None, 0, 0, 0
    null = os.open("/dev/null", os.O_RDWR)
    for turn in range(1500):
        if raw is None:
            address, token = get_token(fd)
            if rng.random() < 0.7:
                raw, number = mapped(fd)
            else:
                raw, number = Raw(address), 1
        if rng.random() < 0.05:
            data = rng.randbytes(rng.choice([1, 100, 255, 256, 256, 256, 257, 5000]))
        else:
            def some64():
                return rng.choice(edges) if rng.random() < 0.7 else rng.getrandbits(64)
            if rng.random() < 0.3:
                _, token = get_token(fd)
            data = message(rng.choice([HELLO, MAP, ATTACH, UNMAP, ACQUIRE, RELEASE, SYNC, ADVISE, STAT, rng.getrandbits(16)]),
                           error=rng.getrandbits(31), map=rng.choice([number, number, number + 1, rng.getrandbits(32)]),
                           address=some64() // PAGE * PAGE if rng.random() < 0.5 else some64(), offset=some64(),
                           bytes=some64(), prot=rng.choice([1, 3, rng.getrandbits(32)]),
                           flags=rng.choice([0, 1, 2, 3, 4, rng.getrandbits(32)]),
                           device=rng.choice([b"soft:0", b"soft:1", b"soft:99", b"cuda:0", b"", rng.randbytes(31)]),
                           token=token if rng.random() < 0.7 else rng.randbytes(16),
                           value=[some64() for _ in range(20)])
        code = raw.call(data, [null] if rng.random() < 0.1 else [])
        answered += code >= 0
        if code == -1 or rng.random() < 0.02:
            ended += code == -1
            raw.close()
            raw = None
        if turn % 100 == 0:
            good.works()
    os.close(null)
    if raw:
        raw.close()
    print("ended", ended, "answered", answered)
    assert ended > 10 and answered > 100
    good.works()
    statistics(m.mnt)


# --- tokens -----------------------------------------------------------------------------------------------------------------

def hello(address):
    raw, faults = Raw(address), userfaultfd()
    assert raw.call(message(HELLO), [faults]) == 0
    os.close(faults)
    return raw


def test_tokens(served, agents):
    m, _, fd = served
    address, token = get_token(fd)
    raw = hello(address)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=b"")) == errno.EACCES
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=os.urandom(16))) == errno.EACCES
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == 0
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) == errno.EACCES  # once
    # from a descriptor that is open for reading only
    path = os.path.join(m.mnt, "f")
    for flags, prot, code in ((os.O_RDONLY, 3, errno.EACCES), (os.O_RDONLY, 1, 0), (os.O_WRONLY, 1, errno.EACCES),
                              (os.O_WRONLY, 3, errno.EACCES), (os.O_RDWR, 1, 0)):
        other = os.open(path, flags)
        token = get_token(other)[1]
        assert raw.call(message(MAP, bytes=PAGE, prot=prot, token=token)) == code, (flags, prot)
        if code:  # a refusal does not leave it for a second try
            assert raw.call(message(MAP, bytes=PAGE, prot=1, token=token)) == errno.EACCES
        os.close(other)
    # of another process
    child = agents()
    child.do("fd = os.open(path, os.O_RDWR)\ntoken = get_token(fd)[1]", path=path)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=child("token"))) == errno.EACCES
    # a directory has none
    folder = os.open(m.mnt, os.O_RDONLY)
    address_again, nothing = get_token(folder)
    assert address_again == address and nothing == bytes(16)
    os.close(folder)
    raw.close()


def test_a_token_of_a_file_that_was_closed_and_deleted(served):
    """The file may be closed and unlinked between the ioctl and the map: no harm."""
    m, _, _ = served
    path = os.path.join(m.mnt, "gone")
    write_file(path, b"x" * PAGE)
    fd = os.open(path, os.O_RDWR)
    address, token = get_token(fd)
    os.close(fd)
    os.unlink(path)
    raw = hello(address)
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token)) in (0, errno.EACCES, errno.ESTALE, errno.ENOENT)
    raw.close()


def test_many_tokens(served):
    """Tokens that nobody uses do not pile up."""
    m, _, fd = served
    before = memory_kib(m.pid)
    for _ in range(20000):
        get_token(fd)
    # A sanitizer keeps what is freed for a while.
    assert memory_kib(m.pid) < before + (65536 if os.environ.get("GAIAFS_SANITIZE") else 4096)
    raw, _ = mapped(fd)
    raw.close()


def test_only_who_mounted_sees_the_dump(served):
    """The dump has the paths of all files."""
    m, _, _ = served
    shutil.copy(os.path.join(helpers.BIN, "gaiactl"), os.path.dirname(m.mnt))
    os.chmod(m.mnt, 0o755)
    done = subprocess.run([os.path.join(os.path.dirname(m.mnt), "gaiactl"), "stat", m.mnt], user=65534, group=65534,
                          extra_groups=[], capture_output=True, text=True)
    assert done.returncode == 1 and "good" not in done.stdout, done.stdout
