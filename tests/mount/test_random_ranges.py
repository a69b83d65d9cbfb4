# SPDX-License-Identifier: Apache-2.0
"""Random programs of one process after the other that change the size of a file, punch, zero and copy its ranges, and map
parts of it on several devices, against the oracle of what each byte may be."""
import mmap
import os

import pytest

import gaia
from conftest import so_much
from helpers import PAGE, agents, devices, make_random, read_direct  # noqa: F401
from posix_calls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, fallocate
from test_sharing import Oracle


class Sized(Oracle):
    """Of a file that changes its size. Behind its end all is zero, and nobody's."""

    def __init__(self, content, most, device_count):
        super().__init__(content + bytes(most - len(content)), device_count)
        self.size = len(content)

    def fresh(self, at):
        """Never zero, which is what holes are."""
        value = super().fresh(at)
        return value or super().fresh(at)

    def resize(self, size):
        self.time += 1
        for at in range(min(size, self.size), max(size, self.size)):
            self.released[at] = [(0, self.time, "cpu")]
            for stores, early in zip(self.stores, self.early):
                stores.pop(at, None)
                early.pop(at, None)
        self.size = size

    def write(self, start, data):
        if start + len(data) > self.size:
            self.resize(start + len(data))
        self.cpu_write(start, data)

    def is_stored(self, start, length):
        return any(at in early for early in self.early for at in range(start, start + length))


class Program:
    def __init__(self, m, devices, rng, most, device_count, flags, unheard):
        self.m, self.rng, self.most, self.flags, self.unheard = m, rng, most, flags, unheard
        size = rng.randrange(1, most)
        content = rng.randbytes(size)
        self.path = os.path.join(m.mnt, "f")
        with open(self.path, "wb") as file:
            file.write(content)
        self.devices = [devices(f"soft:{i}") for i in range(device_count)]
        self.fd = os.open(self.path, os.O_RDWR)
        self.appends = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        self.maps = []  # (device, map, first page, pages, writable)
        self.oracle = Sized(content, most, device_count)
        for at in range(most):
            self.oracle.count[at] = ((content[at] if at < size else 0) - at * 7) % 256
        self.log = []
        self.seen = size  # up to where devices know the file, if it grows unheard

    def close(self):
        for fd in self.fd, self.appends, self.direct:
            os.close(fd)

    def note(self, *words):
        self.log.append(" ".join(map(str, words)) + f" (size {self.oracle.size})")

    # --- what is chosen

    def offset(self, limit):
        rng = self.rng
        edge = rng.choice([0, self.oracle.size, self.oracle.size // PAGE * PAGE, rng.randrange(self.most)])
        return max(0, min(limit - 1, edge + rng.choice([0, 0, -1, 1, -7, 13, -300, PAGE])))

    def piece(self, limit):
        """Some bytes before limit."""
        start = self.offset(limit)
        return start, min(limit - start, self.rng.choice([1, 1, 2, 7, 30, 500, PAGE, PAGE + 1, 3 * PAGE]))

    def fresh(self, start, length):
        return bytes(self.oracle.fresh(at) for at in range(start, start + length))

    def map(self, writable=False):
        found = [entry for entry in self.maps if entry[4] or not writable]
        return self.rng.choice(found) if found else None

    def look_at_size(self, entry):
        """Growth in passthrough is seen by an acquire."""
        if self.unheard and self.oracle.size > self.seen:
            self.note("acquire of all", entry[0])
            entry[1].acquire()
            self.oracle.acquire(entry[0], entry[2], entry[3])
        self.seen = self.oracle.size

    def part(self, entry):
        """Pages of a map that the file has."""
        self.look_at_size(entry)
        pages = min(entry[3], (self.oracle.size + PAGE - 1) // PAGE - entry[2])
        if pages <= 0:
            return None
        first = self.rng.randrange(pages) if self.rng.random() < 0.5 else 0
        return first, self.rng.randint(1, pages - first) if self.rng.random() < 0.5 else pages - first

    # --- what CPUs do

    def do_write(self):
        start, length = self.piece(self.most)
        data = self.fresh(start, length)
        self.note("write", start, length)
        assert os.pwrite(self.fd, data, start) == length
        self.oracle.write(start, data)

    def do_append(self):
        start = self.oracle.size
        length = min(self.most - start, self.rng.choice([1, 100, PAGE, 2 * PAGE + 5]))
        if length:
            data = self.fresh(start, length)
            self.note("append", length)
            assert os.write(self.appends, data) == length
            self.oracle.write(start, data)

    def do_direct(self):
        first = self.rng.randrange(self.most // PAGE)
        data = self.fresh(first * PAGE, PAGE)
        self.note("direct", first)
        with mmap.mmap(-1, PAGE) as buffer:
            buffer[:] = data
            assert os.pwrite(self.direct, buffer, first * PAGE) == PAGE
        self.oracle.write(first * PAGE, data)

    def do_store(self):
        if not self.oracle.size:
            return
        start, length = self.piece(self.oracle.size)
        data = self.fresh(start, length)
        self.note("cpu store", start, length)
        with mmap.mmap(self.fd, self.oracle.size) as mapping:
            mapping[start:start + length] = data
            if self.rng.random() < 0.1:
                mapping.flush()
        self.oracle.cpu_write(start, data)

    def do_truncate(self):
        size = self.offset(self.most)
        self.note("truncate", size)
        os.ftruncate(self.fd, size)
        self.oracle.resize(size)
        self.seen = min(self.seen, size)

    def do_hole(self):
        mode = self.rng.choice([FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE, FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, FALLOC_ZERO_RANGE])
        start, length = self.piece(self.most)
        self.note("fallocate", mode, start, length)
        fallocate(self.fd, mode, start, length)
        if mode & FALLOC_KEEP_SIZE:
            length = max(0, min(start + length, self.oracle.size) - start)
        if length > 0:
            self.oracle.write(start, bytes(length))

    def do_allocate(self):
        start, length = self.piece(self.most)
        self.note("fallocate 0", start, length)
        fallocate(self.fd, 0, start, length)
        if start + length > self.oracle.size:
            self.oracle.resize(start + length)

    def do_copy(self):
        if not self.oracle.size:
            return
        start, length = self.piece(self.oracle.size)
        target = self.offset(self.most)
        length = min(length, self.most - target, abs(start - target))
        if not length or self.oracle.is_stored(start, length):
            return
        known = [self.oracle.released[at] for at in range(start, start + length)]
        if all(len(writes) == 1 for writes in known):  # what is only released, nobody has read yet
            data = bytes(writes[0][0] for writes in known)
        else:
            data = os.pread(self.fd, length, start)
            self.oracle.check("cpu before a copy", start, data)
        self.note("copy", start, length, target)
        done = 0
        while done < length:
            done += os.copy_file_range(self.fd, self.fd, length - done, start + done, target + done)
        self.oracle.write(target, data)

    def do_read(self):
        self.look(self.rng.randrange(4))

    def look(self, how):
        size = self.oracle.size
        self.note("read", ("pread", "mapping", "direct", "part")[how])
        if how == 1 and size:
            with mmap.mmap(self.fd, size, prot=mmap.PROT_READ) as mapping:
                data, start = mapping[:], 0
        elif how == 2:
            data, start = read_direct(self.path, size), 0
        elif how == 3 and size:
            start, length = self.piece(size)
            data = os.pread(self.fd, length, start)
            assert len(data) == length
        else:
            data, start = os.pread(self.fd, self.most + PAGE, 0), 0
        if how != 3:
            assert len(data) == size, (len(data), size)
        self.oracle.check("cpu", start, data)

    def do_sync(self):
        self.note("fsync")
        os.fsync(self.fd)
        with open(os.path.join(self.m.data, "f"), "rb") as file:
            data = file.read()
        assert len(data) == self.oracle.size
        self.oracle.check("data directory", 0, data)

    def do_forget(self):
        self.note("fadvise")
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    # --- what devices do

    def do_map(self):
        device, writable = self.rng.randrange(len(self.devices)), self.rng.random() < 0.8
        most = self.most // PAGE
        first = self.rng.choice([0, 0, self.rng.randrange(most)])
        pages = self.rng.choice([most - first, self.rng.randint(1, most - first)])
        flags = self.rng.choice(self.flags)
        self.note("map", device, first, pages, writable, flags)
        prot = gaia.PROT_READ | (gaia.PROT_WRITE if writable else 0)
        length = pages * PAGE - self.rng.choice([0, 0, 1, PAGE - 1])
        mapping = self.devices[device].mmap(self.fd, length, prot, flags, first * PAGE)
        mapping.length = pages * PAGE
        self.maps.append((device, mapping, first, pages, writable))

    def do_unmap(self):
        if len(self.maps) > 3:
            entry = self.maps.pop(self.rng.randrange(len(self.maps)))
            self.note("unmap", *entry[::2])
            entry[1].unmap()

    def do_device_store(self):
        entry = self.map(writable=True)
        part = entry and self.part(entry)
        if not part:
            return
        device, mapping, first, _, _ = entry
        begin = (first + part[0]) * PAGE
        limit = min(begin + part[1] * PAGE, self.oracle.size)
        start = self.rng.randrange(begin, limit)
        if self.rng.random() < 0.3:
            start = limit - 1
        length = min(limit - start, self.rng.choice([1, 1, 3, 50, PAGE, 2 * PAGE]))
        data = self.fresh(start, length)
        self.note("store", device, start, length)
        mapping[start - first * PAGE:start - first * PAGE + length] = data
        for at, value in enumerate(data, start):
            self.oracle.store(device, at, value)

    def do_device_load(self):
        entry = self.map()
        part = entry and self.part(entry)
        if part:
            self.note("load", entry[0], entry[2] + part[0], part[1])
            entry[1][part[0] * PAGE:(part[0] + part[1]) * PAGE:PAGE]

    def do_release(self):
        entry = self.map(writable=True)
        part = entry and self.part(entry)
        if part:
            self.note("release", entry[0], entry[2] + part[0], part[1])
            entry[1].release(part[0] * PAGE, part[1] * PAGE - self.rng.choice([0, 1, PAGE - 1]))
            self.oracle.release(entry[0], entry[2] + part[0], part[1])

    def do_acquire(self):
        entry = self.map()
        part = entry and self.part(entry)
        if not part:
            return
        device, mapping, first, pages, _ = entry
        if self.rng.random() < 0.4:
            part = 0, pages
        self.note("acquire", device, first + part[0], part[1])
        mapping.acquire(part[0] * PAGE, part[1] * PAGE)
        self.oracle.acquire(device, first + part[0], part[1])
        begin, end = (first + part[0]) * PAGE, min((first + part[0] + part[1]) * PAGE, self.oracle.size)
        if begin < end:
            self.oracle.check(f"device {device}", begin, mapping[begin - first * PAGE:end - first * PAGE])
            end_of_page = (end + PAGE - 1) // PAGE * PAGE
            assert not any(mapping[end - first * PAGE:end_of_page - first * PAGE]), "behind the end"

    def do_advise(self):
        entry = self.map()
        part = entry and self.part(entry)
        if not part:
            return
        advice = self.rng.randrange(5)
        self.note("advise", entry[0], entry[2] + part[0], part[1], advice)
        entry[1].advise(advice, part[0] * PAGE, part[1] * PAGE)
        if advice == gaia.ADV_DONTNEED:
            self.oracle.release(entry[0], entry[2] + part[0], part[1])

    def do_device_sync(self):
        entry = self.map()
        if entry:
            self.note("msync", entry[0])
            entry[1].sync()

    def run(self, steps):
        weights = {"write": 4, "append": 1, "direct": 1, "store": 4, "truncate": 2, "hole": 3, "allocate": 1, "copy": 3,
                   "read": 4, "sync": 1, "forget": 1, "map": 2, "unmap": 2, "device_store": 10, "device_load": 3, "release": 4,
                   "acquire": 5, "advise": 2, "device_sync": 1}
        actions = [getattr(self, f"do_{name}") for name in weights]
        self.do_map()
        for _ in range(steps):
            self.rng.choices(actions, list(weights.values()))[0]()
        for device, mapping, first, pages, writable in self.maps:
            if writable:
                mapping.release()
                self.oracle.release(device, first, pages)
        for how in range(3):
            self.look(how)
        self.do_sync()


@pytest.mark.limit(120)
@pytest.mark.one_of(4)
@pytest.mark.parametrize("options, pages", [("", 9), ("unit=4K", 9), ("unit=2M", 9), ("device_cache=256K", 90), ("passthrough=all", 9),
                                            ("passthrough=off,timeout=0", 9), ("shared", 9)])
def test_random_ranges(mount, devices, options, pages):
    m, rng = mount(options), make_random("ranges")
    program = Program(m, devices, rng, pages * PAGE, rng.choice([1, 2, 3]), [0, 0, gaia.RESIDENT] if pages < 60 else [0],
                      "passthrough=all" in options)
    try:
        program.run(int(os.environ.get("GAIA_TEST_STEPS", so_much(800, 200))))
    except (AssertionError, OSError):
        print("\n".join(program.log[-80:]))
        raise
    finally:
        program.close()
