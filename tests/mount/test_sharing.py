# SPDX-License-Identifier: Apache-2.0
"""Several who write at once: CPUs and devices, in the same pages and to the same bytes."""
import mmap
import os

import pytest

from files import Opened, everyone_reads, make
from helpers import PAGE, agents, devices, make_random, read_direct, read_file, repeats, tool  # noqa: F401

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


class Players:
    """Random writes, stores, releases, acquires and reads of a CPU and of devices, each against the oracle."""

    def __init__(self, path, content, maps, rng):
        self.path, self.size, self.maps, self.rng = path, len(content), maps, rng
        self.fd = os.open(path, os.O_RDWR)
        self.cpu_map = mmap.mmap(self.fd, 0)
        self.oracle = Oracle(content, len(maps))
        self.oracle.count = [(value - at * 7) % 256 for at, value in enumerate(content)]
        self.hot = [rng.randrange(self.size) for _ in range(30)]  # where they collide
        self.log = []
        self.actions = [self.write] * 3 + [self.cpu_store] * 3 + [self.store] * 8 + [self.release] * 3 + \
            [self.acquire] * 2 + [self.read] * 4

    def close(self):
        os.close(self.fd)

    def act(self):
        self.rng.choice(self.actions)()

    def some_device(self):
        return self.rng.randrange(len(self.maps))

    def some_pages(self):
        pages = self.size // PAGE
        first = self.rng.randrange(pages)
        return (0, pages) if self.rng.random() < 0.6 else (first, self.rng.randint(1, pages - first))

    def some_bytes(self):
        if self.rng.random() < 0.4:
            return self.rng.choice(self.hot), 1
        start = self.rng.randrange(self.size)
        return start, min(self.size - start, self.rng.choice([1, 1, 2, 7, 30]))

    def fresh(self, start, length):
        return bytes(self.oracle.fresh(at) for at in range(start, start + length))

    def write(self):
        if self.rng.random() < 0.15:
            start, length = self.rng.randrange(self.size // PAGE) * PAGE, PAGE
        else:
            start, length = self.some_bytes()
        data = self.fresh(start, length)
        self.log.append(f"pwrite {start} {length}")
        assert os.pwrite(self.fd, data, start) == length
        self.oracle.cpu_write(start, data)

    def cpu_store(self):
        start, length = self.some_bytes()
        data = self.fresh(start, length)
        self.log.append(f"cpu store {start} {length}")
        self.cpu_map[start:start + length] = data
        self.oracle.cpu_write(start, data)

    def store(self):
        device = self.some_device()
        start, length = self.some_bytes()
        data = self.fresh(start, length)
        self.log.append(f"store {device} {start} {length}")
        self.maps[device][start:start + length] = data
        for at, value in enumerate(data, start):
            self.oracle.store(device, at, value)

    def release(self):
        device, (first, count) = self.some_device(), self.some_pages()
        self.log.append(f"release {device} {first} {count}")
        self.maps[device].release(first * PAGE, count * PAGE)
        self.oracle.release(device, first, count)

    def acquire(self):
        device, (first, count) = self.some_device(), self.some_pages()
        self.log.append(f"acquire {device} {first} {count}")
        self.maps[device].acquire(first * PAGE, count * PAGE)
        self.oracle.acquire(device, first, count)
        self.oracle.check(f"device {device}", first * PAGE, self.maps[device][first * PAGE:(first + count) * PAGE])

    def read(self):
        start, length = self.some_bytes()
        start, length = (0, self.size) if self.rng.random() < 0.2 else (start // PAGE * PAGE, PAGE)
        how = self.rng.randrange(3)
        self.log.append(f"read {start} {length} {('pread', 'mapping', 'direct')[how]}")
        if how == 2:
            data = read_direct(self.path, self.size)[start:start + length]
        else:
            data = self.cpu_map[start:start + length] if how else os.pread(self.fd, length, start)
        self.oracle.check("cpu", start, data)

    def end(self):
        """All devices release -> what the file has then, as every reader must see it."""
        for device, one in enumerate(self.maps):
            one.release()
            self.oracle.release(device, 0, self.size // PAGE)
        final = os.pread(self.fd, self.size, 0)
        self.oracle.check("cpu", 0, final)
        assert self.cpu_map[:] == final
        self.cpu_map.close()
        return final


@pytest.mark.limit(60)
@pytest.mark.parametrize("device_count, options", [(1, ""), (2, ""), (4, ""), (4, "device_cache=256K")])
def test_random_programs(mount, devices, agents, device_count, options):
    m = mount(options)
    rng = make_random("random program")
    content = rng.randbytes((8 if not options else 100) * PAGE)
    path = make(m, content)
    players = Players(path, content, [Opened(devices(f"soft:{i}"), path).map for i in range(device_count)], rng)
    try:
        for _ in range(1500 if not options else 700):
            players.act()
        everyone_reads(m, "f", players.end(), *players.maps)
    except AssertionError:
        print("\n".join(players.log[-60:]))
        raise
    finally:
        players.close()


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
