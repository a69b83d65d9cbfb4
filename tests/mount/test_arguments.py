# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of libgaia's calls."""
import ctypes
import errno
import os
import socket

import pytest

import gaia
from helpers import MIB, PAGE, agents, descriptors, devices, statistics, write_file  # noqa: F401

lib, NULL, MAP_FAILED = gaia.lib, None, gaia.MAP_FAILED


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
    (1, 3, 0, BIG // PAGE * PAGE - PAGE, errno.EOVERFLOW), (PAGE - 1, 3, 0, BIG // PAGE * PAGE - PAGE, errno.EOVERFLOW),
    (1, 3, 0, BIG // PAGE * PAGE - 2 * PAGE, 0), (PAGE, 3, 0, BIG // PAGE * PAGE - 2 * PAGE, 0),
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


def test_counters_are_of_what_is_mapped_now(mount, devices):
    """On all mounts from which this process has something mapped, and only on those."""
    device, maps = devices("soft:0"), []
    for m in mount("device_cache=1M"), mount("device_cache=2M"):
        write_file(os.path.join(m.mnt, "f"), bytes(PAGE))
        fd = os.open(os.path.join(m.mnt, "f"), os.O_RDWR)
        maps.append(device.mmap(fd, PAGE))
        os.close(fd)
        assert maps[-1][0] == 0
    both = device.stat()
    assert (both.capacity_bytes, both.resident_bytes, both.faults) == (3 * MIB, 2 * PAGE, 2)
    maps[0].unmap()
    one = device.stat()
    assert (one.capacity_bytes, one.resident_bytes, one.faults) == (2 * MIB, PAGE, 1)
    maps[1].unmap()
    assert code_of(lib.gaia_stat(device.handle, ctypes.byref(gaia.Stat()))) == errno.ENOTCONN


@pytest.mark.skipif("cuda" in os.environ.get("GAIA_DEVICE", ""), reason="there is a GPU then")
@pytest.mark.parametrize("wish", ["soft:5", "nonsense"])
def test_an_empty_name_asks_for_no_wish(mount, agents, wish):
    """It means any device, whatever $GAIA_DEVICE says."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"bytes")
    program = agents({"GAIA_DEVICE": wish})
    program.do(f"handle = ctypes.c_void_p()\ngaia.check(gaia.lib.gaia_device_open(b'', ctypes.byref(handle)))\n"
               f"at = gaia.lib.gaia_mmap(handle, 4096, 3, 0, os.open({path!r}, os.O_RDWR), 0)")
    assert program("ctypes.string_at(at, 5)") == b"bytes"
    assert [device["device"] for device in statistics(m.mnt)["devices"]] == ["soft:0"]


def test_nothing_stays_open_in_the_client(mount, devices):
    """A program that maps and unmaps, or tries in vain, has as many descriptors as before."""
    m = mount("device_cache=256K")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    fd, device = os.open(path, os.O_RDWR), devices()
    first = device.mmap(fd, PAGE)  # the session's own
    before = descriptors("self")
    for _ in range(10):
        device.mmap(fd, PAGE).unmap()
        with pytest.raises(OSError) as caught:
            device.mmap(fd, MIB, flags=gaia.RESIDENT)
        assert caught.value.errno == errno.ENOMEM
    assert descriptors("self") == before
    first.unmap()
    os.close(fd)
