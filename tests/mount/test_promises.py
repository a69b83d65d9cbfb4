# SPDX-License-Identifier: Apache-2.0
"""The promises of gaia.h, through a real mount: plain POSIX on one side, libgaia on the other, several processes."""
import contextlib
import ctypes
import errno
import mmap
import os
import random
import signal
import stat
import threading
import time

import pytest

import gaia
from helpers import (PAGE, AgentDied, agents, device_statistics, devices, drop_host_cache, make_random,  # noqa: F401
                     read_direct, read_file, repeats, statistics, tool, wait_until, write_file)

MIB = 1 << 20


def pattern(size, seed=1):
    return random.Random(seed).randbytes(size)


def make(m, content, name="f"):
    """A file of the mount, with its data directory's cache as a program leaves it; returns its path."""
    path = os.path.join(m.mnt, name)
    write_file(path, content)
    return path


class Opened:
    """A file of the mount and a mapping of it on a device of this process."""

    def __init__(self, device, path, length=None, flags=0, offset=0, prot=gaia.PROT_READ | gaia.PROT_WRITE):
        self.fd = os.open(path, os.O_RDWR if prot & gaia.PROT_WRITE else os.O_RDONLY)
        self.map = device.mmap(self.fd, length or os.fstat(self.fd).st_size, prot, flags, offset)


def everyone_reads(m, name, content, *maps):
    """read(), O_DIRECT, a new mapping and the backing file after fsync() agree; so do acquired device mappings."""
    path = os.path.join(m.mnt, name)
    assert read_file(path) == content
    if content:
        fd = os.open(path, os.O_RDONLY)
        with mmap.mmap(fd, len(content), prot=mmap.PROT_READ) as mapping:
            assert mapping[:] == content
        os.fsync(fd)
        os.close(fd)
    assert read_direct(path, len(content)) == content
    assert read_file(os.path.join(m.data, name)) == content
    for mapping in maps:
        mapping.acquire()
        assert mapping[:len(content)] == content


# --- one writer at a time -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT, gaia.DEMAND])
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
    tail = ctypes.string_at(opened.map.address + size, whole - size)
    assert tail == bytes(whole - size)
    new = pattern(size, 2)
    opened.map[:] = new
    ctypes.memset(opened.map.address + size, 0xEE, whole - size)
    opened.map.release()
    assert os.stat(path).st_size == size
    everyone_reads(m, "f", new, opened.map)
    os.truncate(path, size + 3 * PAGE)
    everyone_reads(m, "f", new + bytes(3 * PAGE))
    opened.map.acquire()
    assert opened.map[:] == new
    assert ctypes.string_at(opened.map.address + size, whole - size) == bytes(whole - size)


SIGBUS_CODE = """
fd = os.open(path, os.O_RDWR)
dev = gaia.Device()
map = dev.mmap(fd, length)
"""


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


# --- sharing, racing ------------------------------------------------------------------------------------------------

def test_merge_of_cpu_and_devices_in_one_page(mount, devices, agents):
    m = mount()
    path = make(m, bytes(PAGE))
    maps = [Opened(devices(f"soft:{i}"), path).map for i in range(4)]
    writer = agents()
    writer.do("fd = os.open(path, os.O_RDWR)", path=path)
    assert all(mapping[:] == bytes(PAGE) for mapping in maps)
    for i, mapping in enumerate(maps):
        mapping[100 * i + 1] = i + 1
    writer.do("os.pwrite(fd, b'c', 0)")
    for mapping in maps:
        mapping.release()
    expected = bytearray(PAGE)
    expected[0] = ord("c")
    for i in range(4):
        expected[100 * i + 1] = i + 1
    assert read_file(path) == expected
    everyone_reads(m, "f", bytes(expected), *maps)


def test_a_racing_byte_has_one_value(mount, devices, agents):
    """Whoever wins, all readers agree, and go on agreeing."""
    m = mount()
    path = make(m, bytes(PAGE))
    maps = [Opened(devices(f"soft:{i}"), path).map for i in range(3)]
    writer = agents()
    writer.do("fd = os.open(path, os.O_RDWR)\nmapping = mmap.mmap(fd, 0)", path=path)
    rng = make_random()
    for turn in range(100):
        for mapping in maps:
            mapping.acquire()
        values = rng.sample(range(1, 256), 4)
        values = [v for v in values if v != maps[0][7]]
        for mapping, value in zip(maps, values):
            mapping[7] = value
        steps = [mapping.release for mapping in maps]
        if len(values) == 4:
            steps.append(lambda: writer.do(rng.choice(["os.pwrite(fd, bytes([value]), 7)", "mapping[7] = value"]),
                                           value=values[3]))
        rng.shuffle(steps)
        for step in steps:
            step()
        first = os.pread(os.open(path, os.O_RDONLY), 1, 7)[0] if turn % 2 else writer("mapping[7]")
        assert first in values
        for mapping in maps:
            mapping.acquire()
            assert mapping[7] == first
        assert writer("(mapping[7], os.pread(fd, 1, 7)[0])") == (first, first)


class Oracle:
    """Which values each byte may have, by what gaia.h promises and no more.

    For each byte: the released writes of which none is known to have come after the other (value, time of release,
    writer), and for each device a store of its own that is not released. A device knows what was released before its
    last acquire of the page."""

    def __init__(self, content, device_count):
        self.time = 0
        self.released = [[(value, 0, None)] for value in content]
        self.stores = [{} for _ in range(device_count)]  # byte -> (value, the time up to which the device knew)
        self.early = [{} for _ in range(device_count)]  # byte -> every value since the last release: a collect that
        #                                                 something else caused may have made it seen before its release
        self.known = [[0] * (len(content) // PAGE) for _ in range(device_count)]
        self.count = [0] * len(content)

    def fresh(self, at):
        """A value that the byte has not had for long."""
        self.count[at] += 1
        return (at * 7 + self.count[at]) % 256

    def cpu_write(self, start, data):
        self.time += 1
        for at, value in enumerate(data, start):
            self.released[at] = [(value, self.time, "cpu")]

    def store(self, device, at, value):
        self.stores[device][at] = value, self.known[device][at // PAGE]
        self.early[device].setdefault(at, set()).add(value)

    def release(self, device, first, count):
        self.time += 1
        mine = [at for at in self.stores[device] if first <= at // PAGE < first + count]
        for at in mine:
            value, known = self.stores[device].pop(at)
            del self.early[device][at]
            self.released[at] = [w for w in self.released[at] if w[1] > known and w[2] != device] + \
                                [(value, self.time, device)]

    def acquire(self, device, first, count):
        self.release(device, first, count)
        self.known[device][first:first + count] = [self.time] * count

    def check(self, reader, start, data):
        """data is what a reader that is up to date got."""
        for at, value in enumerate(data, start):
            if len(self.released[at]) == 1 and self.released[at][0][0] == value:
                continue
            unreleased = [value for s in self.early if at in s for value in s[at]]
            allowed = [w for w in self.released[at] if w[0] == value]
            assert allowed or value in unreleased, \
                f"{reader}: byte {at} (page {at // PAGE} + {at % PAGE}) is {value}; may be {self.released[at]} {unreleased}"
            if not unreleased and len(self.released[at]) > 1:  # the same for every reader from now on
                self.released[at] = [(value, max(w[1] for w in self.released[at]), "race")]


@pytest.mark.limit(60)
@pytest.mark.parametrize("device_count, options", [(1, ""), (2, ""), (4, ""), (4, "device_cache=256K")])
def test_random_programs(mount, devices, agents, device_count, options):
    """Random writes, stores, releases and acquires of all, against the oracle."""
    m = mount(options)
    rng = make_random("random program")
    pages = 8 if not options else 100
    content = rng.randbytes(pages * PAGE)
    path = make(m, content)
    fd = os.open(path, os.O_RDWR)
    maps = [Opened(devices(f"soft:{i}"), path).map for i in range(device_count)]
    cpu_map = mmap.mmap(fd, 0)
    oracle = Oracle(content, device_count)
    for at in range(len(content)):
        oracle.count[at] = (content[at] - at * 7) % 256
    hot = [rng.randrange(len(content)) for _ in range(30)]  # where they collide
    log = []

    def some_range():
        first = rng.randrange(pages)
        return (0, pages) if rng.random() < 0.6 else (first, rng.randint(1, pages - first))

    def some_bytes():
        if rng.random() < 0.4:
            return rng.choice(hot), 1
        start = rng.randrange(len(content))
        return start, min(len(content) - start, rng.choice([1, 1, 2, 7, 30]))

    def fresh(start, length):
        return bytes(oracle.fresh(at) for at in range(start, start + length))

    def write():
        if rng.random() < 0.15:
            start = rng.randrange(pages) * PAGE
            length = PAGE
        else:
            start, length = some_bytes()
        data = fresh(start, length)
        log.append(f"pwrite {start} {length}")
        assert os.pwrite(fd, data, start) == length
        oracle.cpu_write(start, data)

    def cpu_store():
        start, length = some_bytes()
        data = fresh(start, length)
        log.append(f"cpu store {start} {length}")
        cpu_map[start:start + length] = data
        oracle.cpu_write(start, data)

    def store():
        d = rng.randrange(device_count)
        start, length = some_bytes()
        data = fresh(start, length)
        log.append(f"store {d} {start} {length}")
        maps[d][start:start + length] = data
        for at, value in enumerate(data, start):
            oracle.store(d, at, value)

    def release():
        d, (first, count) = rng.randrange(device_count), some_range()
        log.append(f"release {d} {first} {count}")
        maps[d].release(first * PAGE, count * PAGE)
        oracle.release(d, first, count)

    def acquire():
        d, (first, count) = rng.randrange(device_count), some_range()
        log.append(f"acquire {d} {first} {count}")
        maps[d].acquire(first * PAGE, count * PAGE)
        oracle.acquire(d, first, count)
        oracle.check(f"device {d}", first * PAGE, maps[d][first * PAGE:(first + count) * PAGE])

    def read():
        start, length = some_bytes()
        start, length = (0, len(content)) if rng.random() < 0.2 else (start // PAGE * PAGE, PAGE)
        how = rng.randrange(3)
        log.append(f"read {start} {length} {('pread', 'mapping', 'direct')[how]}")
        if how == 2:
            data = read_direct(path, len(content))[start:start + length]
        else:
            data = cpu_map[start:start + length] if how else os.pread(fd, length, start)
        oracle.check("cpu", start, data)

    actions = [write] * 3 + [cpu_store] * 3 + [store] * 8 + [release] * 3 + [acquire] * 2 + [read] * 4
    try:
        for _ in range(1500 if not options else 700):
            rng.choice(actions)()
        for d in range(device_count):
            maps[d].release()
            oracle.release(d, 0, pages)
        final = os.pread(fd, len(content), 0)
        oracle.check("cpu", 0, final)
        assert cpu_map[:] == final
        cpu_map.close()
        everyone_reads(m, "f", final, *maps)
    except AssertionError:
        print("\n".join(log[-60:]))
        raise
    finally:
        os.close(fd)


@pytest.mark.parametrize("device", ["soft:0", "soft:7"])
def test_alternating_writers_lose_nothing(mount, device):
    m = mount()
    seed = make_random().randrange(1 << 30)
    status, output = tool("tool_alternate", os.path.join(m.mnt, "f"), device, repeats(2500), seed)
    assert status == 0, output


@pytest.mark.parametrize("pages, grain, rounds, writers", [
    (4, 1, 3000, "map soft:0"),
    (1, 1, 3000, "map soft:0"),
    (4, 1, 600, "write soft:0"),
    (8, 64, 2000, "write soft:0"),
    (3, 1, 700, "write map soft:0 soft:1"),
    (40, 4096, 500, "write map soft:0 soft:1"),
    (20, 128, 400, "map soft:0 soft:1 soft:2 write"),
])
def test_writers_without_pause_lose_nothing(mount, pages, grain, rounds, writers):
    """Rule 6: a CPU process stores through its mapping, or writes, without pause, while devices store other bytes of the
    same pages, release every round and acquire every 7th."""
    m = mount()
    seed = make_random().randrange(1 << 30)
    status, output = tool("tool_mapping", os.path.join(m.mnt, "f"), pages, grain, repeats(rounds), seed,
                          *writers.split())
    assert status == 0, output


def test_writers_without_pause_under_pressure(mount):
    m = mount("device_cache=256K")
    seed = make_random().randrange(1 << 30)
    status, output = tool("tool_mapping", os.path.join(m.mnt, "f"), 150, 512, repeats(60), seed, "map", "soft:0",
                          "soft:0", "soft:1")
    assert status == 0, output


# --- files that change under a mapping --------------------------------------------------------------------------------

def test_truncate_and_extend_gives_zeros(mount, devices, agents):
    m = mount()
    content = pattern(20 * PAGE)
    path = make(m, content)
    opened = Opened(devices(), path)
    other = Opened(devices("soft:1"), path)
    opened.map.acquire()
    other.map.acquire()
    assert opened.map[:] == other.map[:] == content
    opened.map[7 * PAGE:] = b"S" * 13 * PAGE  # released
    opened.map.release()
    other.map[7 * PAGE:] = b"T" * 13 * PAGE  # not released
    os.truncate(path, 6 * PAGE + 100)
    assert read_file(path) == content[:6 * PAGE + 100]
    os.truncate(path, 20 * PAGE)
    expected = content[:6 * PAGE + 100] + bytes(14 * PAGE - 100)
    assert read_file(path) == expected
    other.map.release()
    assert read_file(path) == expected
    everyone_reads(m, "f", expected, opened.map, other.map)


def test_shrunk_file_raises_sigbus(mount, agents):
    m = mount()
    path = make(m, pattern(20 * PAGE))
    for touch in ("map[10 * PAGE]", "map[10 * PAGE:10 * PAGE + 1] = b'x'"):
        child = agents()
        os.truncate(path, 20 * PAGE)
        child.do(SIGBUS_CODE + "map[:] = b'x' * 20 * PAGE", path=path, length=20 * PAGE)
        os.truncate(path, 5 * PAGE + 1)
        assert child("map[5 * PAGE]") == ord("x")
        with pytest.raises(AgentDied) as died:
            child.do(touch)
        assert died.value.code == -signal.SIGBUS
        assert os.stat(path).st_size == 5 * PAGE + 1


def test_truncate_with_o_trunc_while_mapped(mount, devices):
    m = mount()
    path = make(m, b"1" * 4 * PAGE)
    opened = Opened(devices(), path)
    opened.map[:PAGE] = b"D" * PAGE
    opened.map.release()
    write_file(path, b"new")  # O_TRUNC
    assert read_file(path) == b"new"
    opened.map.acquire()
    assert opened.map[:4] == b"new\0"
    everyone_reads(m, "f", b"new", opened.map)


def test_rename_and_unlink_while_mapped(mount, devices):
    m = mount()
    path = make(m, b"1" * 4 * PAGE)
    device = devices()
    opened = Opened(device, path)
    opened.map[5] = 5
    moved = os.path.join(m.mnt, "moved")
    os.rename(path, moved)
    opened.map.release()
    assert read_file(moved)[5] == 5
    with open(moved, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"c", 6)
        opened.map.acquire()
        assert opened.map[4:8] == b"1\x05c1"
        # another file in its place is another file
        write_file(path, b"2" * 4 * PAGE)
        second = Opened(device, path)
        assert second.map[:] == b"2" * 4 * PAGE
        os.rename(path, moved)  # replaces the mapped file
        opened.map[7] = 7
        opened.map.release()
        assert os.pread(file.fileno(), 4, 5) == b"\x05c1\x07" or os.pread(file.fileno(), 3, 5) == b"\x05c\x07"
        os.unlink(moved)
        opened.map[8] = second.map[8] = 8
        opened.map.release()
        second.map.release()
        assert os.pread(file.fileno(), 1, 8) == os.pread(second.fd, 1, 8) == b"\x08"
        os.pwrite(file.fileno(), b"C", 9)
        opened.map.acquire()
        assert opened.map[9] == ord("C")
        assert os.listdir(m.data) == [] == os.listdir(m.mnt)
    os.close(opened.fd)
    os.close(second.fd)
    second.map.unmap()
    assert opened.map[9] == ord("C")
    opened.map[10] = 10
    opened.map.release()
    opened.map.acquire()
    assert opened.map[10] == 10


def test_holes_and_copies_are_writes(mount, devices):
    m = mount()
    content = bytearray(pattern(20 * PAGE))
    path = make(m, content)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    opened.map[2 * PAGE:4 * PAGE] = b"d" * 2 * PAGE
    opened.map.release()
    assert libc.fallocate(opened.fd, 3, 3 * PAGE, 5 * PAGE + 10) == 0  # punch, keep the size
    content[2 * PAGE:4 * PAGE] = b"d" * 2 * PAGE
    content[3 * PAGE:8 * PAGE + 10] = bytes(5 * PAGE + 10)
    assert read_file(path) == content
    opened.map.acquire()
    assert opened.map[:] == content
    opened.map[15 * PAGE:15 * PAGE + 5] = content[15 * PAGE:15 * PAGE + 5] = b"moved"
    opened.map.release()
    assert os.copy_file_range(opened.fd, opened.fd, 2 * PAGE, 15 * PAGE, 0) == 2 * PAGE
    content[:2 * PAGE] = content[15 * PAGE:17 * PAGE]
    assert read_file(path) == content
    # zeroing is a write, in a page that was released too
    opened.map[11 * PAGE:12 * PAGE] = b"z" * PAGE
    opened.map.release()
    assert libc.fallocate(opened.fd, 0x11, 11 * PAGE, PAGE // 2) == 0  # zero a range, keep the size
    content[11 * PAGE:12 * PAGE] = bytes(PAGE // 2) + b"z" * (PAGE // 2)
    assert read_file(path) == content
    opened.map.acquire()
    assert opened.map[:] == content
    # released bytes in a hole are data
    opened.map[7 * PAGE] = content[7 * PAGE] = 7
    opened.map.release()
    assert os.lseek(opened.fd, 3 * PAGE, os.SEEK_DATA) == 7 * PAGE
    everyone_reads(m, "f", bytes(content), opened.map)


def test_a_copy_has_what_a_device_released(mount, devices):
    m = mount()
    path, target = make(m, b"o" * 4 * PAGE), make(m, b"", "target")
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"d" * PAGE
    opened.map.release()
    with open(path, "rb") as source, open(target, "r+b") as file:
        assert os.copy_file_range(source.fileno(), file.fileno(), 4 * PAGE, 0, 0) == 4 * PAGE
    assert read_file(target) == b"o" * PAGE + b"d" * PAGE + b"o" * 2 * PAGE


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


# --- advice, sync, residence --------------------------------------------------------------------------------------------

def test_resident_places_at_acquire(mount, devices):
    m = mount()
    path = make(m, pattern(100 * PAGE))
    device = devices()
    opened = Opened(device, path, flags=gaia.RESIDENT)
    opened.map.acquire()
    before = device.stat()
    assert before.resident_bytes >= 100 * PAGE
    assert opened.map[:] == pattern(100 * PAGE)
    assert device.stat().bytes_in == before.bytes_in


def test_resident_larger_than_the_device(mount, devices):
    m = mount("device_cache=1M")
    path = make(m, pattern(512 * PAGE))
    device = devices()
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(OSError) as caught:
        device.mmap(fd, 512 * PAGE, flags=gaia.RESIDENT)
    assert caught.value.errno == errno.ENOMEM
    fits = device.mmap(fd, 200 * PAGE, flags=gaia.RESIDENT)
    fits.acquire()
    assert fits[:] == pattern(512 * PAGE)[:200 * PAGE]


def test_resident_exactly_the_device(mount, devices):
    m = mount("device_cache=256K")
    path = make(m, pattern(65 * PAGE))
    device = devices()
    with pytest.raises(OSError) as caught:
        Opened(device, path, 65 * PAGE, gaia.RESIDENT)
    assert caught.value.errno == errno.ENOMEM
    opened = Opened(device, path, 64 * PAGE, gaia.RESIDENT)
    opened.map.acquire()
    assert device.stat().resident_bytes == 64 * PAGE
    assert opened.map[:] == pattern(65 * PAGE)[:64 * PAGE]


def test_two_residents_that_do_not_fit_together(mount, devices):
    """Slower or ENOMEM, but never wrong bytes and never a hang."""
    m = mount("device_cache=1M")
    path = make(m, pattern(512 * PAGE))
    device = devices()
    fd = os.open(path, os.O_RDWR)
    maps = [device.mmap(fd, 200 * PAGE, flags=gaia.RESIDENT, offset=offset * PAGE) for offset in (0, 250)]
    for mapping, offset in zip(maps, (0, 250)):
        try:
            mapping.acquire()
        except OSError as error:
            assert error.errno == errno.ENOMEM
        assert mapping[:] == pattern(512 * PAGE)[offset * PAGE:(offset + 200) * PAGE]


@pytest.mark.parametrize("advice", [gaia.ADV_NORMAL, gaia.ADV_RANDOM, gaia.ADV_SEQUENTIAL])
def test_advice_changes_no_bytes(mount, devices, advice):
    m = mount()
    content = pattern(3 * MIB)
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(advice)
    assert opened.map[1000 * 1000] == content[1000 * 1000]
    least = {gaia.ADV_RANDOM: PAGE, gaia.ADV_SEQUENTIAL: 512 * 1024, gaia.ADV_NORMAL: 65536}[advice]
    wait_until(lambda: device.stat().resident_bytes >= least)  # what is read ahead comes after the fault's page
    if advice == gaia.ADV_RANDOM:
        assert device.stat().resident_bytes == PAGE
    assert opened.map[:] == content


def test_advice_willneed_and_dontneed(mount, devices):
    m = mount()
    content = bytearray(pattern(2 * MIB))
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(gaia.ADV_WILLNEED)
    before = device.stat()
    assert before.resident_bytes >= 2 * MIB
    assert opened.map[:] == content
    assert device.stat().bytes_in == before.bytes_in
    opened.map[5 * PAGE:5 * PAGE + 3] = content[5 * PAGE:5 * PAGE + 3] = b"new"
    opened.map.advise(gaia.ADV_DONTNEED)  # releases first
    assert read_file(path) == content
    assert device.stat().resident_bytes == 0
    assert opened.map[:] == content


def test_dontneed_releases_what_was_stored_just_now(mount, devices):
    """The fault of the last store may not be over yet in the daemon when the store is."""
    m = mount()
    path = make(m, bytes(64 * PAGE))
    opened = Opened(devices(), path)
    for round in range(500):
        at, value = round % 64 * PAGE, b"%07d" % round
        opened.map[at:at + 7] = value
        opened.map.advise(gaia.ADV_DONTNEED, at, PAGE)
        assert os.pread(opened.fd, 7, at) == value, round


def test_willneed_beyond_the_device(mount, devices):
    m = mount("device_cache=1M")
    content = pattern(4 * MIB)
    path = make(m, content)
    device = devices()
    opened = Opened(device, path)
    opened.map.advise(gaia.ADV_WILLNEED)
    stat = device.stat()
    assert 0 < stat.resident_bytes <= stat.capacity_bytes == MIB
    assert opened.map[:] == content


def test_msync_brings_released_bytes_to_storage(mount, devices):
    m = mount()
    path = make(m, bytes(100 * PAGE))
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"r" * PAGE
    opened.map.release()
    opened.map.sync(gaia.MS_ASYNC)
    assert read_file(os.path.join(m.data, "f")) == bytes(100 * PAGE)  # it checks its arguments
    opened.map.sync(gaia.MS_SYNC)
    assert read_file(os.path.join(m.data, "f")) == bytes(PAGE) + b"r" * PAGE + bytes(98 * PAGE)


def test_fsync_brings_released_bytes_to_storage(mount, devices):
    m = mount()
    path = make(m, bytes(10 * PAGE))
    opened = Opened(devices(), path)
    opened.map[PAGE:2 * PAGE] = b"r" * PAGE
    opened.map.release()
    os.fsync(opened.fd)
    assert read_file(os.path.join(m.data, "f")) == bytes(PAGE) + b"r" * PAGE + bytes(8 * PAGE)


def test_a_deleted_file_leaves_the_device(mount, devices):
    """When nobody has it open or mapped any more; and the daemon has let it go."""
    m = mount()
    device, kept = devices(), make(m, pattern(16 * PAGE), "kept")
    keeper = Opened(device, kept)
    assert keeper.map[:] == pattern(16 * PAGE)
    before = device.stat().resident_bytes
    for turn in range(5):
        path = make(m, pattern(16 * PAGE))
        opened = Opened(device, path)
        assert opened.map[:] == pattern(16 * PAGE)
        opened.map[turn] = 7
        opened.map.unmap()
        os.close(opened.fd)
        os.unlink(path)
    wait_until(lambda: device.stat().resident_bytes == before, what="nothing of the deleted files is on the device")

    def deleted():
        links = []
        for entry in os.listdir(f"/proc/{m.pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/{m.pid}/fd/{entry}"))
        return [link for link in links if link.startswith(m.data) and link.endswith("(deleted)")]
    wait_until(lambda: not deleted(), what="the daemon has no deleted file open")


# --- room, peers, counters ----------------------------------------------------------------------------------------------

def test_reads_come_from_the_device(mount, devices):
    """Peer caching: what the host's memory has lost but a device holds is not read from storage."""
    m = mount()
    content = bytearray(pattern(4 * MIB))
    path = make(m, content)
    opened = Opened(devices(), path)
    assert opened.map[:] == content
    opened.map[PAGE] = content[PAGE] = (content[PAGE] + 1) % 256
    opened.map.release()
    os.fsync(opened.fd)
    os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the kernel's copy of the mount's file
    drop_host_cache(os.path.join(m.data, "f"))
    before = device_statistics(m.mnt)
    assert read_file(path) == content
    after = device_statistics(m.mnt)
    assert after["peer_reads"] > before["peer_reads"] and after["bytes_out"] > before["bytes_out"]


COUNTERS = ("capacity_bytes resident_bytes faults write_faults bytes_in bytes_out collects merges pages_merged peer_reads "
            "evictions twins").split()


def test_statistics(mount, devices):
    m = mount("device_cache=8M,device_cache=soft:1=1M")
    content = pattern(40 * PAGE)
    path = make(m, content, "counted")
    devs = devices(), devices("soft:1")
    maps = [Opened(device, path).map for device in devs]
    for mapping in maps:
        assert mapping[:] == content
    maps[0][:PAGE] = b"\x00" * PAGE
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"cpu", 3 * PAGE)
    maps[0][3 * PAGE + 10] = content[3 * PAGE + 10] ^ 1
    maps[0].release()
    read_file(path)
    maps[1].acquire()
    assert maps[1][:PAGE] == bytes(PAGE)
    stat = statistics(m.mnt)
    by_name = {d["device"]: d for d in stat["devices"]}
    assert by_name["soft:0"]["capacity_bytes"] == 8 * MIB and by_name["soft:1"]["capacity_bytes"] == MIB
    file = next(f for f in stat["files"] if f["path"].endswith("counted"))
    assert file["size"] == 40 * PAGE
    for holder in [*stat["devices"], *file["devices"]]:
        for name in COUNTERS:
            assert isinstance(holder[name], int) and holder[name] >= 0, (name, holder)
    one = by_name["soft:0"]
    assert one["resident_bytes"] == 40 * PAGE and one["bytes_in"] == 40 * PAGE
    assert one["faults"] > 0 and one["write_faults"] == 2
    assert one["collects"] == 2 and one["merges"] == 1 and one["pages_merged"] == 2
    assert 2 * PAGE >= one["bytes_out"] > 0
    assert by_name["soft:1"]["drops"] == 2
    per_file = {d["device"]: d for d in file["devices"]}
    assert all(per_file["soft:0"][name] == one[name] for name in COUNTERS if name != "capacity_bytes")
    mine = devs[0].stat()
    assert all(getattr(mine, name) == one[name] for name in COUNTERS)


def test_a_second_run_moves_only_what_changed(mount, devices):
    m = mount()
    path = make(m, pattern(8 * MIB))
    device = devices()
    opened = Opened(device, path)
    assert opened.map[:] == pattern(8 * MIB)
    before = device.stat()
    with open(path, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"changed", 3 * MIB)
    opened.map.acquire()
    assert opened.map[3 * MIB:3 * MIB + 7] == b"changed" and len(opened.map[:]) == 8 * MIB
    after = device.stat()
    assert after.drops - before.drops == 1
    assert after.bytes_in - before.bytes_in <= 65536


def test_metadata_is_small(mount, devices):
    m = mount()
    path = make(m, pattern(8 * MIB))
    opened = Opened(devices(), path)
    assert len(opened.map[:]) == 8 * MIB
    file = statistics(m.mnt)["files"][0]
    assert file["metadata_bytes"] <= 0.01 * 8 * MIB
    for i in range(20):
        write_file(os.path.join(m.mnt, f"plain{i}"), b"x" * 10000)
    assert len(statistics(m.mnt)["files"]) == 1  # nothing for files that no device maps


# --- what a write does to a file's attributes -----------------------------------------------------------------------------

def test_a_release_is_a_write_to_make_and_rsync(mount, devices):
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.chmod(path, 0o4755)
    os.utime(path, ns=(10 ** 18, 10 ** 18))
    before = os.stat(path)
    opened.map.release()
    assert opened.map[1] == 0
    opened.map.release()
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns and os.stat(path).st_ctime_ns == before.st_ctime_ns
    time.sleep(0.02)
    opened.map[1] = 1
    opened.map.release()
    after = os.stat(path)
    assert after.st_mtime_ns > before.st_mtime_ns and abs(after.st_mtime - time.time()) < 10
    assert after.st_ctime_ns > before.st_ctime_ns
    assert os.stat(os.path.join(m.data, "f")).st_mtime_ns == after.st_mtime_ns


def test_a_users_release_clears_set_id_bits(mount, devices):
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    device = devices()
    opened = Opened(device, path)
    os.chmod(path, 0o6777)
    opened.map[1] = 1
    opened.map.release()
    read_file(path)
    mode = stat.S_IMODE(os.stat(path).st_mode)
    assert mode in (0o777, 0o6777) and mode == stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode)
    assert mode == 0o777  # "clears set-id bits as a write would"


@pytest.mark.parametrize("before, after", [(0o6710, 0o710), (0o6701, 0o2701), (0o2745, 0o2745), (0o4644, 0o644)])
def test_set_id_bits_that_a_release_clears(mount, devices, before, after):
    """Without the group's x bit the set-group-ID bit means something else, and stays."""
    m = mount("timeout=0")
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.chmod(path, before)
    opened.map[1] = 1
    opened.map.release()
    assert stat.S_IMODE(os.stat(path).st_mode) == stat.S_IMODE(os.stat(os.path.join(m.data, "f")).st_mode) == after


def test_file_capabilities_do_not_survive_a_release(mount, devices):
    m = mount()
    path = make(m, bytes(2 * PAGE))
    opened = Opened(devices(), path)
    os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    opened.map[1] = 1
    opened.map.release()
    for top in (m.mnt, m.data):
        with pytest.raises(OSError) as caught:
            os.getxattr(os.path.join(top, "f"), "security.capability")
        assert caught.value.errno == errno.ENODATA


# --- changes behind the mount ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("timeout", [0, 1])
def test_changes_behind_the_mount_are_seen_at_acquire(mount, devices, timeout):
    """At once, or after the timeout: with nothing else that would make the client ask."""
    m = mount(f"timeout={timeout}")
    path = make(m, b"1" * 8 * PAGE)
    opened = Opened(devices(), path)
    opened.map.acquire()
    assert opened.map[:] == b"1" * 8 * PAGE
    with open(os.path.join(m.data, "f"), "r+b") as behind:
        behind.write(b"2" * PAGE)
    time.sleep(1.1 * timeout)
    opened.map.acquire()
    assert opened.map[:] == b"2" * PAGE + b"1" * 7 * PAGE


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
    with pytest.raises(AgentDied) as died:
        child.do("map[0] = 1")
    assert died.value.code == -signal.SIGSEGV


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
