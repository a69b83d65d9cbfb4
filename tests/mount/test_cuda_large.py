# SPDX-License-Identifier: Apache-2.0
"""Files of many pieces on a GPU: what is placed while the client maps them (cache/map.c), in wide stages (cache/filler.c), and
whose descriptors are kept (gpu/home_cuda.c)."""
import contextlib
import errno
import hashlib
import os
import resource
import time

import pytest

from conftest import so_much
from gpu_fixture import gpu, make, only_here  # noqa: F401
from helpers import MIB, PAGE, agents, make_random, wait_until, write_at  # noqa: F401

SIZE = 65 * MIB  # its pieces are of 16 MiB, of which descriptors are kept, and more than three threads have wide stages to place
HASH = "__import__('hashlib').sha1(map[:]).hexdigest()"


def memory_of(m):
    """How many descriptors of the stand-in's memory the daemon has: one for each piece that there is, and those that are kept."""
    folder, count = f"/proc/{m.proc.pid}/fd", 0
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # the daemon closes what it had of a client that has gone
            count += "stand-in GPU" in os.readlink(os.path.join(folder, fd))
    return count


def cold(m, name):
    """The host has nothing of it in memory: storage is read."""
    fd = os.open(os.path.join(m.data, name), os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def sha(data):
    return hashlib.sha1(data).hexdigest()


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("cached", [True, False])
def test_what_is_placed_is_the_file(gpu, writable, cached):
    """From wherever the mapping begins, to wherever it ends, past the file's end, too; and after changes here and there."""
    m = gpu.mount()
    rng = make_random("large")
    content = bytearray(rng.randbytes(SIZE + 1234))
    path = make(m, bytes(content))
    ranges = ((5, SIZE - 9 * PAGE), (SIZE // PAGE - 3000, 3000 * PAGE), (0, SIZE + 1234))
    for first, length in ranges[so_much(0, 1):]:
        if not cached and not m.nodes:
            cold(m, "f")
        program = gpu.agent()
        program.do("fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)\ndev = gaia.Device('cuda:0')\n"
                   "map = dev.mmap(fd, length, 3 if writable else 1, 0, first)", path=path, length=length, first=first * PAGE,
                   writable=writable)
        part = slice(first * PAGE, first * PAGE + length)
        tail = bytes(-length % PAGE) if length == len(content) else b""
        assert program(HASH) in (sha(content[part]), sha(bytes(content[part]) + tail))
        changes = [(9 * MIB + 77, 9 * MIB)] + [(rng.randrange(SIZE), 10) for _ in range(200)]
        for at, count in changes:
            content[at:at + count] = rng.randbytes(count)
            write_at(path, bytes(content[at:at + count]), at)
        program.do("map.acquire()")
        assert program(HASH) in (sha(content[part]), sha(bytes(content[part]) + tail))
        program.end()


@only_here
def test_descriptors_of_large_pieces_are_kept(gpu):
    """One of each, until the piece goes. A small file's are not."""
    m = gpu.mount()
    small, large = make(m, b"s" * PAGE, "small"), make(m, b"", "large")
    os.truncate(large, SIZE)
    write_at(large, b"end", 32 * MIB - 3)
    first = gpu.program(small, writable=False)
    assert memory_of(m) == 1
    one = gpu.program(large, 32 * MIB, writable=False)
    assert memory_of(m) == 1 + 2 * 2
    other = gpu.program(large, 32 * MIB, writable=False)
    assert memory_of(m) == 1 + 2 * 2
    assert one("map[-3:]") == other("map[-3:]") == b"end"
    one.end()
    assert memory_of(m) == 1 + 2 * 2
    other.end()
    os.unlink(large)
    wait_until(lambda: memory_of(m) == 1)
    assert first("map[0:1]") == b"s"


@only_here
def test_kept_descriptors_are_few_where_descriptors_are(gpu):
    """A sixteenth of what the daemon may have; of pieces that come when it has so many, clients get the only ones."""
    m = gpu.mount()
    limit = resource.prlimit(m.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(m.pid, resource.RLIMIT_NOFILE, (7 * 16, limit[1]))
    names = "one", "two", "three"
    for name in names:
        make(m, b"", name)
        os.truncate(os.path.join(m.mnt, name), SIZE)
    pieces = -(-SIZE // (16 * MIB))
    programs = [gpu.program(os.path.join(m.mnt, name), writable=False) for name in names[:2]]
    assert memory_of(m) == 2 * pieces + 7
    programs.pop(0).end()
    os.unlink(os.path.join(m.mnt, "one"))
    wait_until(lambda: memory_of(m) == pieces + 2)
    programs.append(gpu.program(os.path.join(m.mnt, "three"), writable=False))
    assert memory_of(m) == 2 * pieces + 7
    assert all(program("map[-3:]") == bytes(3) for program in programs)


@only_here
def test_who_maps_a_file_that_just_fits(gpu):
    """Two at once place the same pages, which there is room for once."""
    size = 6 * MIB
    m = gpu.mount(options=f"device_cache=cuda:0={size}")
    programs = [gpu.agent() for _ in range(2)]
    for program in programs:
        program.do("dev = gaia.Device('cuda:0')")
    for turn in range(so_much(12, 4)):
        content = os.urandom(size)
        path = make(m, content, f"f{turn}")
        for program in programs:
            program.do("fd = os.open(path, os.O_RDONLY)", path=path)
        for program in programs:
            program.start("map = dev.mmap(fd, os.fstat(fd).st_size, 1)")
        for program in programs:
            program.finish()
        for program in programs:
            assert program(HASH) == sha(content)
            program.do("map.unmap()\nos.close(fd)")


@only_here
def test_programs_that_die_while_they_map(gpu):
    """What is on its way for them comes to its end, and what is not is not begun."""
    m = gpu.mount("slow=3000")
    content = os.urandom(SIZE)
    path = make(m, content)
    rng = make_random("die")
    for _ in range(so_much(12, 3)):
        program = gpu.agent()
        program.do("fd = os.open(path, os.O_RDONLY)\ndev = gaia.Device('cuda:0')", path=path)
        program.start("map = dev.mmap(fd, os.fstat(fd).st_size, 1)")
        time.sleep(rng.random() / 5)
        program.proc.kill()
        program.proc.wait()
    begin = time.monotonic()
    program = gpu.program(path, writable=False)
    assert program(HASH) == sha(content)
    program.end()
    assert time.monotonic() - begin < 30


@only_here
def test_a_map_that_is_refused(gpu):
    """Its client has mapped some of its pieces, which a slow GPU is having placed: the next map finds the file. (That it waits
    for nobody else: tests/cache/test_filler.c.)"""
    m = gpu.mount("slow=20000")
    content = os.urandom(SIZE)
    path = make(m, content)
    program = gpu.agent(standin=f"control={gpu.control}")
    program.do("fd = os.open(path, os.O_RDONLY)\ndev = gaia.Device('cuda:0')", path=path)
    gpu.fail("cuMemImportFromShareableHandle", 5, 2)
    assert program("error_of(dev.mmap, fd, os.fstat(fd).st_size, 1)") == errno.ENOMEM
    assert gpu.failed()
    gpu.heal()
    program.do("map = dev.mmap(fd, os.fstat(fd).st_size, 1)")
    assert program(HASH) == sha(content)
