# SPDX-License-Identifier: Apache-2.0
"""Holes, zeros, copies and SEEK_DATA beside stores through mappings, which are in the kernel's page cache alone."""
import concurrent.futures
import contextlib
import mmap
import os
import threading

import pytest

from helpers import (ALL_ROWS, PAGE, agents, daemon_with_faults, error_of, kernel_at_least, make_random, read_at,  # noqa: F401
                     read_file, standing_still, tool, wait_until, write_file)
from posix_calls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE, fallocate

HALF = PAGE // 2
ROUNDS = 1000

cached = pytest.mark.parametrize("shared", [False, True], ids=["untracked", "tracked"])


@cached
@pytest.mark.parametrize("change", ["punch", "zero", "copy", "part"])
def test_a_range_of_a_page_that_is_stored_to(mount, agents, shared, change):
    """What was there before does not come back with the kernel's write-back, and what is stored is not lost."""
    if change != "part" and not kernel_at_least(6, 16):
        pytest.skip("docs/limits.md: such kernels write back late")
    m = mount("passthrough=off")
    path, source = os.path.join(m.mnt, "f"), os.path.join(m.mnt, "source")
    write_file(source, b"s" * PAGE)
    write_file(path, b"x" * PAGE)
    if shared:
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, PAGE)", path=path)
    status, output = tool("tool_ranges", path, os.path.join(m.data, "f"), source, change, ROUNDS,
                          make_random("range").randrange(2**32))
    assert status == 0, output


@cached
def test_a_store_while_a_part_of_its_page_is_copied_to(mount, agents, monkeypatch, workdir, shared):
    """It is not the daemon that copies: when it has answered, the kernel would drop the page, and the store with it."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off", env=env)
    path, source = os.path.join(m.mnt, "f"), os.path.join(m.mnt, "source")
    write_file(source, b"s" * PAGE)
    write_file(path, b"x" * PAGE)
    if shared:
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, PAGE)", path=path)
    with open(source, "rb") as given, open(path, "r+b") as file, mmap.mmap(file.fileno(), PAGE) as cpu:
        os.fsync(file.fileno())
        plan.arm_wait(ALL_ROWS.index("fuse_reply_write"), 600, 1, False)
        copy = threading.Thread(target=os.copy_file_range, args=(given.fileno(), file.fileno(), HALF, 0, 0))
        copy.start()
        wait_until(lambda: plan.landed or not copy.is_alive(), what="the daemon is about to answer, or nobody copies any more")
        cpu[HALF] = ord("c")
        copy.join()
        assert cpu[:] == b"s" * HALF + b"c" + b"x" * (HALF - 1)


def test_copies_of_parts_of_pages(mount):
    """With the kernel's help, or without: what comes of it is the same."""
    m, rng = mount("passthrough=off"), make_random("parts")
    path = os.path.join(m.mnt, "f")
    content = bytearray(rng.randbytes(6 * PAGE + 77))
    write_file(path, content)
    fd = os.open(path, os.O_RDWR)
    for _ in range(60):
        length, source = rng.choice([1, HALF, PAGE, PAGE + 1, 2 * PAGE]), rng.choice([0, 1, HALF, PAGE])
        target = rng.choice([3 * PAGE, 3 * PAGE + 1, 4 * PAGE, 6 * PAGE, 6 * PAGE + 77, 7 * PAGE])
        done = os.copy_file_range(fd, fd, length, source, target)
        assert done == length
        content.extend(bytes(max(0, target + length - len(content))))
        content[target:target + length] = content[source:source + length]
    assert os.pread(fd, len(content) + 1, 0) == content
    os.close(fd)
    assert read_at(os.path.join(m.data, "f"), len(content) + 1, 0) == content


def layout(fd):
    """Where data begins and ends."""
    found, at = [], 0
    while not error_of(os.lseek, fd, at, os.SEEK_DATA):
        start = os.lseek(fd, at, os.SEEK_DATA)
        at = os.lseek(fd, start, os.SEEK_HOLE)
        found.append((start, at))
    return found


@pytest.mark.parametrize("options", ["passthrough=on", "passthrough=off"])
@cached
def test_data_that_is_only_stored(mount, agents, options, shared):
    """What nobody has written back yet is no hole: who copies a sparse file would leave it out."""
    m, rng = mount(options), make_random("stored")
    path, plain = os.path.join(m.mnt, "f"), os.path.join(m.data, "plain")
    for name in path, plain:
        write_file(name, b"")
        os.truncate(name, 64 * PAGE)
    if shared:
        agents().do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, PAGE)", path=path)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(name, "r+b", buffering=0)) for name in (path, plain)]
        maps = [stack.enter_context(mmap.mmap(file.fileno(), 64 * PAGE)) for file in files]
        for _ in range(20):
            page = rng.randrange(64)
            for cpu in maps:
                cpu[page * PAGE] = 1
            for offset in rng.randrange(64 * PAGE), page * PAGE, 0:
                for whence in os.SEEK_DATA, os.SEEK_HOLE:
                    answers = [error_of(file.seek, offset, whence) or file.seek(offset, whence) for file in files]
                    assert answers[0] == answers[1], (page, offset, whence)
            assert layout(files[0].fileno()) == layout(files[1].fileno())


def test_many_that_look_for_data_that_is_only_stored(mount):
    """More of them at once than there are threads that have the kernel write it back: they wait for their turn."""
    m = mount("passthrough=off")
    fds, size = [], 64 * PAGE

    def seek(fd):
        assert os.lseek(fd, 0, os.SEEK_DATA) == size // 2

    def seeking():
        calls = [read_file(f"/proc/self/task/{task}/syscall").split()[0] for task in os.listdir("/proc/self/task")]
        return calls.count(b"8")  # lseek()

    with contextlib.ExitStack() as stack:
        for number in range(100):
            fds.append(os.open(os.path.join(m.mnt, f"f{number}"), os.O_RDWR | os.O_CREAT))
            stack.callback(os.close, fds[-1])
            os.truncate(fds[-1], size)
            memory = stack.enter_context(mmap.mmap(fds[-1], size))
            memory[size // 2] = 1
        with concurrent.futures.ThreadPoolExecutor(len(fds)) as pool:
            with standing_still(m.pid):  # so that they all come before any WRITE
                found = [pool.submit(error_of, seek, fd) for fd in fds]
                wait_until(lambda: seeking() == len(fds), what="all have asked")
            assert [one.result() for one in found] == [0] * len(fds)


def test_stores_in_holes_between_data(mount):
    """A hole that is full by what was stored is none: the next one may be so, too."""
    m = mount("passthrough=off")
    path = os.path.join(m.mnt, "f")
    write_file(path, b"")
    os.truncate(path, 8 * PAGE)
    with open(path, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), 8 * PAGE) as cpu:
        for page in 0, 2, 4:
            os.pwrite(file.fileno(), b"w" * PAGE, page * PAGE)
        for page in 1, 3, 5:
            cpu[page * PAGE] = 1
        assert file.seek(0, os.SEEK_HOLE) == 6 * PAGE
        assert layout(file.fileno()) == [(0, 6 * PAGE)]


@pytest.mark.parametrize("mode", [FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE], ids=["punch", "zero"])
def test_large_holes(mount, mode):
    """They are made in parts, beside others: what lies across two is freed, too, and a sparse file takes no time."""
    m, rng = mount("passthrough=off"), make_random("large")
    path, plain = os.path.join(m.mnt, "f"), os.path.join(m.data, "plain")
    content = bytearray(rng.randbytes(9 << 20))
    for name in path, plain:
        write_file(name, content)
        os.truncate(name, 1 << 42)
    with open(path, "r+b", buffering=0) as file, open(plain, "r+b", buffering=0) as other:
        for offset, length in ((4097, (5 << 20) + 3), ((6 << 20) - PAGE, 2 * PAGE), ((7 << 20) + 5, (1 << 41) * (mode == 2) + PAGE)):
            for one in file, other:
                fallocate(one.fileno(), FALLOC_KEEP_SIZE | mode, offset, length)
            content[offset:min(offset + length, len(content))] = bytes(max(0, min(offset + length, len(content)) - offset))
        assert os.pread(file.fileno(), len(content), 0) == content
        os.fsync(file.fileno())
        os.fsync(other.fileno())
        with open(os.path.join(m.data, "f"), "rb") as below:  # zeros may be written, or not
            assert mode == FALLOC_ZERO_RANGE or layout(below.fileno()) == layout(other.fileno())
        # Written in other pieces, it may take a block more for the list of them.
        assert abs(os.fstat(file.fileno()).st_blocks - os.fstat(other.fileno()).st_blocks) * 512 <= PAGE
        assert os.fstat(file.fileno()).st_size == 1 << 42
    assert read_at(os.path.join(m.data, "f"), len(content), 0) == content
