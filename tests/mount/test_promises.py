# SPDX-License-Identifier: Apache-2.0
"""The promises of gaia.h, through a real mount: plain POSIX on one side, libgaia on the other, one after the other."""
import contextlib
import errno
import mmap
import os
import signal

import pytest

import gaia
from files import Opened, everyone_reads, make, pattern
from helpers import (MIB, PAGE, SIGBUS_CODE, AgentDied, agents, device_statistics, devices, make_random,  # noqa: F401
                     read_file, write_file)

# --- one writer at a time -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT, pytest.param(gaia.DEMAND, marks=pytest.mark.traps)])
def test_device_reads_what_is_there(mount, devices, flags):
    m = mount()
    content = pattern(MIB + 1)
    path = make(m, content)
    opened = Opened(devices(), path, flags=flags)
    opened.map.acquire()
    assert opened.map[:] == content


@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
@pytest.mark.parametrize("length", [1, 100, PAGE, 3 * PAGE + 7])
def test_cpu_write_is_seen_after_acquire(mount, devices, agents, flags, length):
    m = mount()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    writer = agents()
    writer.do("fd = os.open(path, os.O_RDWR)", path=path)
    opened = Opened(devices(), path, flags=flags)
    assert opened.map[:] == content
    for offset in (0, PAGE, 5 * PAGE - 50, 17 * PAGE - 7):
        new = pattern(length, offset)
        assert writer("os.pwrite(fd, new, offset)", new=new, offset=offset) == length
        content[offset:offset + length] = new
        opened.map.acquire()
        assert opened.map[:] == content


def test_cpu_store_of_another_process_is_seen_after_acquire(mount, devices, agents):
    m = mount()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    storer = agents()
    storer.do("fd = os.open(path, os.O_RDWR)\nmapping = mmap.mmap(fd, 0)\nos.close(fd)", path=path)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    rng = make_random()
    for _ in range(50):
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        storer.do("mapping[offset:offset + len(new)] = new", offset=offset, new=new)
        content[offset:offset + len(new)] = new
        opened.map.acquire()
        assert opened.map[:] == content


def test_device_store_is_seen_after_release(mount, devices, agents):
    """By read(), by a mapping that another process has had all along, by O_DIRECT, by another device."""
    m = mount()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    other = agents()
    other.do("fd = os.open(path, os.O_RDONLY)\nmapping = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\n"
             "dev = gaia.Device('soft:1')\nmap = dev.mmap(fd, len(mapping), gaia.PROT_READ)", path=path)
    assert other("mapping[:] == map[:]")
    opened = Opened(devices(), path)
    rng = make_random()
    for turn in range(60):
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        opened.map[offset:offset + len(new)] = new
        content[offset:offset + len(new)] = new
        opened.map.release()
        # a different reader is the first in each turn
        readers = ["os.pread(fd, len(content), 0) == content", "mapping[:] == content",
                   "read_direct(path, len(content)) == content", "(map.acquire(), map[:] == content)[1]"]
        for i in range(4):
            reader = readers[(i + turn) % 4]
            assert other(reader, content=bytes(content)), reader
    everyone_reads(m, "f", bytes(content), opened.map)


def test_a_mapping_of_a_direct_descriptor_sees_releases(mount, devices):
    """Its READs say O_DIRECT, and fill the kernel's cache all the same."""
    path = make(mount(), pattern(16 * PAGE))
    o = Opened(devices(), path)
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    o.map[3 * PAGE]  # from here on the kernel's pages are known
    os.posix_fadvise(o.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(fd, 16 * PAGE) as cpu:
        for value in range(1, 20):
            assert len(cpu[:16 * PAGE:PAGE]) == 16
            o.map[3 * PAGE:3 * PAGE + 1] = bytes([value])
            o.map.release()
            assert cpu[3 * PAGE] == value
    os.close(fd)


def test_unreleased_stores_in_an_acquired_range_survive(mount, devices, agents):
    m = mount()
    path = make(m, bytes(4 * PAGE))
    opened, writer = Opened(devices(), path), agents()
    opened.map[10] = 1
    opened.map[PAGE:2 * PAGE] = b"d" * PAGE
    writer.do("write = os.open(path, os.O_RDWR)\nos.pwrite(write, b'c', 11)", path=path)
    opened.map.acquire()
    assert opened.map[8:14] == b"\0\0\x01c\0\0"
    assert opened.map[PAGE:2 * PAGE] == b"d" * PAGE
    opened.map.release()
    everyone_reads(m, "f", b"\0" * 10 + b"\x01c" + bytes(PAGE - 12) + b"d" * PAGE + bytes(2 * PAGE), opened.map)


def test_an_acquire_releases_though_nothing_changed(mount, devices):
    """An acquire need not ask the daemon when nothing can have changed, but for what was stored here."""
    m = mount("timeout=60")
    path = make(m, bytes(4 * PAGE))
    opened = Opened(devices(), path)
    for value in (1, 2, 3):
        opened.map.acquire()
        opened.map[PAGE] = value
        opened.map.acquire()
        assert os.pread(opened.fd, 1, PAGE) == bytes([value])


def test_acquire_of_a_part_updates_that_part(mount, devices):
    m = mount()
    path = make(m, b"0" * 8 * PAGE)
    opened = Opened(devices(), path)
    assert opened.map[:] == b"0" * 8 * PAGE  # resident from here on
    with open(path, "r+b", buffering=0) as file:
        file.write(b"1" * 8 * PAGE)
    opened.map.acquire(2 * PAGE, 3 * PAGE)
    assert opened.map[2 * PAGE:5 * PAGE] == b"1" * 3 * PAGE
    assert opened.map[:2 * PAGE] == b"0" * 2 * PAGE and opened.map[5 * PAGE:] == b"0" * 3 * PAGE
    opened.map.acquire(0, 1)  # a byte: its page
    assert opened.map[:PAGE] == b"1" * PAGE and opened.map[PAGE:2 * PAGE] == b"0" * PAGE
    opened.map.acquire()
    assert opened.map[:] == b"1" * 8 * PAGE


def test_release_of_a_part_publishes_that_part(mount, devices):
    m = mount()
    path = make(m, b"0" * 8 * PAGE)
    opened = Opened(devices(), path)
    opened.map[:] = b"1" * 8 * PAGE
    opened.map.release(3 * PAGE, 2 * PAGE)
    assert read_file(path)[3 * PAGE:5 * PAGE] == b"1" * 2 * PAGE
    opened.map.release(0, 1)
    assert read_file(path)[:PAGE] == b"1" * PAGE
    opened.map.release()
    everyone_reads(m, "f", b"1" * 8 * PAGE, opened.map)


@pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1, MIB + 1])
@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
def test_sizes(mount, devices, agents, size, flags):
    """Bytes past the end never reach the file, and a file that grows there has zeros, wherever it is looked at."""
    m = mount()
    content = pattern(size)
    path = make(m, content)
    opened = Opened(devices(), path, flags=flags)
    whole = (size + PAGE - 1) // PAGE * PAGE
    opened.map.acquire()
    assert opened.map[:] == content
    memory, behind = opened.map.device.memory, opened.map.address + size
    assert memory.load(behind, whole - size) == bytes(whole - size)
    new = pattern(size, 2)
    opened.map[:] = new
    memory.store(behind, b"\xee" * (whole - size))
    opened.map.release()
    assert os.stat(path).st_size == size
    everyone_reads(m, "f", new, opened.map)
    os.truncate(path, size + 3 * PAGE)
    everyone_reads(m, "f", new + bytes(3 * PAGE))
    opened.map.acquire()
    assert opened.map[:] == new
    assert memory.load(behind, whole - size) == bytes(whole - size)


@pytest.mark.traps
@pytest.mark.parametrize("size", [0, 1, PAGE, PAGE + 1, 100 * PAGE])
@pytest.mark.parametrize("touch", ["map[at]", "map[at:at + 1] = b'x'"])
def test_touch_past_the_last_page_raises_sigbus(mount, agents, size, touch):
    m = mount()
    path = make(m, pattern(size))
    child = agents()
    child.do(SIGBUS_CODE, path=path, length=size + 10 * PAGE)
    if size:
        assert child("map[:size] == os.pread(fd, size, 0)", size=size)
    for call in ("map.acquire()", "map.release()", "map.sync()"):
        child(call)
    with pytest.raises(AgentDied) as died:
        child.do(touch, at=(size + PAGE - 1) // PAGE * PAGE)
    assert died.value.code == -signal.SIGBUS
    assert os.stat(path).st_size == size
    assert m.mounted()


def test_a_file_that_grows_into_a_mapping(mount, devices, agents):
    """A mapping longer than its file is a way to wait for the file to grow, as with mmap()."""
    m = mount()
    path = make(m, b"")
    opened = Opened(devices(), path, length=10 * PAGE)
    writer = agents()
    writer.do("fd = os.open(path, os.O_WRONLY | os.O_APPEND)", path=path)
    content = b""
    for turn in range(20):
        more = pattern(1700 + turn, turn)
        writer.do("os.write(fd, more)", more=more)
        content += more
        opened.map.acquire()
        assert opened.map[:len(content)] == content
    child = agents()
    child.do(SIGBUS_CODE, path=path, length=100 * PAGE)
    assert child("map[:size] == os.pread(fd, size, 0)", size=len(content))
    if gaia.default_device().startswith("soft:"):
        with pytest.raises(AgentDied):
            child("map[50 * PAGE]")
    writer.do("os.ftruncate(fd, 60 * PAGE)")
    child = agents()
    child.do(SIGBUS_CODE, path=path, length=100 * PAGE)
    assert child("map[50 * PAGE]") == 0


def test_offsets(mount, devices):
    m = mount()
    content = bytearray(pattern(300 * PAGE + 5))
    path = make(m, content)
    device = devices()
    tail = Opened(device, path, length=5 * PAGE + 5, offset=295 * PAGE)
    middle = Opened(device, path, length=3 * PAGE - 7, offset=17 * PAGE)
    whole = Opened(devices("soft:1"), path)
    assert tail.map[:] == content[295 * PAGE:]
    assert middle.map[:] == content[17 * PAGE:20 * PAGE - 7]
    tail.map[5 * PAGE:] = b"tail!"
    content[300 * PAGE:] = b"tail!"
    middle.map[PAGE] = content[18 * PAGE] = 0x5A
    tail.map.release()
    assert read_file(path)[295 * PAGE:] == content[295 * PAGE:]
    middle.map.release()
    whole.map.acquire()
    assert whole.map[:] == content
    everyone_reads(m, "f", bytes(content), whole.map)


def test_a_file_far_beyond_4_gib(mount, devices):
    m = mount()
    path = make(m, b"")
    offset = (1 << 33) - PAGE
    os.truncate(path, offset + 3 * PAGE)
    opened = Opened(devices(), path, length=3 * PAGE, offset=offset)
    assert opened.map[:] == bytes(3 * PAGE)
    opened.map[PAGE:PAGE + 4] = b"beyo"
    opened.map.release()
    with open(path, "r+b", buffering=0) as file:
        assert os.pread(file.fileno(), 6, offset + PAGE - 1) == b"\0beyo\0"
        os.pwrite(file.fileno(), b"nd", offset + PAGE + 4)
        opened.map.acquire()
        assert opened.map[PAGE:PAGE + 7] == b"beyond\0"
        assert os.fstat(file.fileno()).st_blocks * 512 < MIB  # it stays sparse


# --- processes --------------------------------------------------------------------------------------------------------

def test_a_unit_that_two_processes_brought(mount, agents):
    """One has seen a page of it, the other has brought the rest: then the first touches that."""
    m = mount()
    path = make(m, pattern(16 * PAGE))
    first, second = agents(), agents()
    for agent in (first, second):
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 16 * PAGE)", path=path)
    first.do("map.advise(gaia.ADV_RANDOM)\nmap[3 * PAGE]")
    second.do("map[8 * PAGE]")
    for page in (8, 15, 0):
        first.start(f"map[{page} * PAGE]", "eval")
        assert not first.busy(20), "a touch hangs"
        assert first.finish() == pattern(16 * PAGE)[page * PAGE]
    assert first("map[:]") == second("map[:]") == pattern(16 * PAGE)


def test_two_processes_share_one_copy(mount, agents):
    m = mount()
    path = make(m, pattern(256 * PAGE))
    first, second = agents(), agents()
    for agent in (first, second):
        agent.do(SIGBUS_CODE, path=path, length=256 * PAGE)
        assert agent("map[:] == os.pread(fd, 256 * PAGE, 0)")
    stat = device_statistics(m.mnt)
    assert stat["resident_bytes"] <= 256 * PAGE + 65536 and stat["bytes_in"] <= 300 * PAGE, stat
    # within a device a store is seen at once
    first.do("map[1000:1005] = b'first'")
    assert second("map[1000:1005]") == b"first"
    second.do("map[1005:1011] = b'second'\nmap.release()")
    assert read_file(path)[1000:1011] == b"firstsecond"


@pytest.mark.parametrize("how", ["exit", "kill", "close"])
@pytest.mark.parametrize("released", [True, False])
def test_a_process_that_ends(mount, devices, agents, how, released):
    """What it released is there. What it did not may be there or not, but nothing else is harmed."""
    m = mount()
    content = pattern(50 * PAGE)
    path = make(m, content)
    new = pattern(30 * PAGE, 2)
    child = agents()
    child.do(SIGBUS_CODE + "map[10 * PAGE:40 * PAGE] = new", path=path, length=50 * PAGE, new=new)
    if released:
        child.do("map.release()")
    if how == "kill":
        child.kill()
    elif how == "exit":
        child.end()
    else:
        child.do("dev.close()")
    both = content[:10 * PAGE] + new + content[40 * PAGE:]
    seen = read_file(path)
    if released:
        assert seen == both
    else:
        assert all(s in (a, b) for s, a, b in zip(seen, content, both))
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"after", 11 * PAGE)
    opened = Opened(devices(), path)
    opened.map.acquire()
    final = read_file(path)
    assert final[11 * PAGE:11 * PAGE + 5] == b"after" or not released
    everyone_reads(m, "f", final, opened.map)
    if released:
        assert final == both[:11 * PAGE] + b"after" + both[11 * PAGE + 5:]


def test_stores_that_were_not_released_reach_the_file_at_the_next_acquire(mount, devices, agents):
    """gaia_device_close(): they stay in the device's copy until that is evicted, acquired or released."""
    m = mount()
    path = make(m, bytes(4 * PAGE))
    opened = Opened(devices(), path)
    child = agents()
    child.do(SIGBUS_CODE + "map[100:105] = b'child'\ndev.close()", path=path, length=4 * PAGE)
    opened.map.acquire()
    assert opened.map[100:105] == b"child"
    opened.map.release()
    assert read_file(path)[100:105] == b"child"


def test_release_then_unmount_keeps_the_bytes(mount, devices):
    m = mount()
    content = pattern(100 * PAGE)
    path = make(m, bytes(100 * PAGE))
    device = devices()
    opened = Opened(device, path)
    opened.map[:] = content
    opened.map.release()
    opened.map.unmap()
    device.close()
    os.close(opened.fd)
    assert m.unmount() is None
    assert read_file(os.path.join(m.data, "f")) == content


# --- protection -----------------------------------------------------------------------------------------------------------

def test_read_only_mapping(mount, devices, agents):
    m = mount()
    content = pattern(10 * PAGE)
    path = make(m, content)
    fd = os.open(path, os.O_RDONLY)
    device = devices()
    mapping = device.mmap(fd, 10 * PAGE, gaia.PROT_READ)
    assert mapping[:] == content
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"new", PAGE)
    mapping.acquire()
    assert mapping[PAGE:PAGE + 3] == b"new"
    for call, code in ((mapping.release, errno.EACCES),
                       (lambda: device.mmap(fd, PAGE), errno.EACCES),
                       (lambda: device.mmap(os.open(path, os.O_WRONLY), PAGE, gaia.PROT_READ), errno.EACCES),
                       (lambda: device.mmap(os.open(path, os.O_WRONLY), PAGE), errno.EACCES)):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == code
    child = agents()
    child.do("fd = os.open(path, os.O_RDONLY)\nmap = gaia.Device().mmap(fd, PAGE, gaia.PROT_READ)", path=path)
    with pytest.raises((AgentDied, AssertionError)) as refused:
        child.do("map[0] = 1")
    if gaia.default_device().startswith("cuda:"):  # a copy of the driver's is refused
        assert "CUDA error" in str(refused.value)
    else:
        assert refused.value.code == -signal.SIGSEGV


def test_read_only_frames_cannot_be_made_writable(mount, devices, agents):
    """Whatever mprotect() says to the holder of a read-only mapping, its stores reach nobody."""
    m = mount()
    path = make(m, bytes(PAGE))
    opened = Opened(devices(), path)
    child = agents()
    child.do("fd = os.open(path, os.O_RDONLY)\nmap = gaia.Device().mmap(fd, PAGE, gaia.PROT_READ)\nmap[0]\n"
             "libc = ctypes.CDLL(None, use_errno=True)\nlibc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, "
             "ctypes.c_int]\nresult = libc.mprotect(map.address, PAGE, 3)", path=path)
    if child("result") == 0:
        with contextlib.suppress(AssertionError):  # of the driver's copy
            child.do("map[0] = 7")
    opened.map[1] = 1
    opened.map.release()
    opened.map.acquire()
    assert opened.map[:2] == read_file(path)[:2] == b"\0\1"


@pytest.mark.parametrize("which", ["into", "out of"])
def test_copies_between_a_mapped_file_and_another(mount, devices, which):
    """copy_file_range() with a file that no device has mapped: its gate is held over the copy, and over nothing that waits
    (seen by a build that checks locks)."""
    m = mount()
    names = [os.path.join(m.mnt, name) for name in ("plain", "mapped")]
    for name, byte in zip(names, b"pm"):
        write_file(name, bytes([byte]) * 4 * PAGE)
    fds = [os.open(name, os.O_RDWR) for name in names]
    map = devices().mmap(fds[1], 4 * PAGE)  # nothing of it is on the device yet
    source, target = fds if which == "into" else reversed(fds)
    assert os.copy_file_range(source, target, PAGE, 0, PAGE) == PAGE
    map.acquire()
    assert map[:3 * PAGE:PAGE] == (b"mpm" if which == "into" else b"mmm")
    map[0:1] = b"s"
    map.release()
    assert os.copy_file_range(source, target, PAGE, 0, 2 * PAGE) == PAGE
    map.acquire()
    assert map[:4 * PAGE:PAGE] == (b"sppm" if which == "into" else b"smmm")
    assert read_file(names[0])[::PAGE] == (b"pppp" if which == "into" else b"pmsp")
