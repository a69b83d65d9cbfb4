# SPDX-License-Identifier: Apache-2.0
"""Programs that do to the memory of a soft device's frames whatever its descriptor allows."""
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import threading
import time

import pytest

from helpers import (HELLO, MAP, PAGE, UNMAP, Raw, agents, devices, get_token, message, states_of, statistics,  # noqa: F401
                     userfaultfd, wait_until, write_file)

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.pwrite.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]


class Hostile:
    """A client with a map of a file, and the memory of its frames."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR)
        self.raw, faults = Raw(get_token(self.fd)[0]), userfaultfd()
        assert self.raw.call(message(HELLO), [faults]) == 0
        os.close(faults)
        self.raw.send(message(MAP, bytes=PAGE, prot=3, token=get_token(self.fd)[1]))
        reply, (self.frames, state) = self.raw.receive()
        assert reply["error"] == 0
        os.close(state)
        self.map, self.faults, self.thread = reply["map"], -1, None

    def hold(self):
        """The lock of the memory's inode, until let_go(): write() has it while what it writes from is waited for."""
        self.faults = userfaultfd()
        self.at = libc.mmap(None, PAGE, 3, 0x22, -1, 0)
        fcntl.ioctl(self.faults, 3 << 30 | 32 << 16 | 0xAA << 8, bytearray(struct.pack("=QQQQ", self.at, PAGE, 1, 0)))
        self.thread = threading.Thread(target=lambda: libc.pwrite(self.frames, self.at, PAGE, PAGE), daemon=True)
        self.thread.start()
        wait_until(lambda: struct.unpack_from("=B", self.fault()) == (0x12,), what="the write() waits")

    def fault(self):
        try:
            return os.read(self.faults, 32)
        except BlockingIOError:
            return b"\0"

    def let_go(self):
        os.close(self.faults)  # then its pages are plain ones
        self.thread.join(10)
        assert not self.thread.is_alive()
        libc.munmap(self.at, PAGE)

    def unmap(self):
        return self.raw.call(message(UNMAP, map=self.map))

    def end(self):
        self.raw.close()
        os.close(self.frames)
        os.close(self.fd)


def pages_of(frames):
    status = os.fstat(frames)
    return status.st_size / PAGE, status.st_blocks * 512 // PAGE


@pytest.mark.parametrize("size", [1 << 30, 1 << 60])
def test_what_was_stored_far_away_is_freed_at_once(mount, size):
    """What it costs to free it follows what there is, not how long the file is: a sparse one may have 2^60 bytes."""
    data = f"/dev/shm/gaiafs-test-{os.getpid()}"
    os.mkdir(data)
    try:
        path = os.path.join(mount(data=data).mnt, "f")
        write_file(path, b"")
        os.truncate(path, size)
        hostile = Hostile(path)
        os.pwrite(hostile.frames, b"x", size - PAGE)
        os.pwrite(hostile.frames, b"x", size // 2)
        os.pwrite(hostile.frames, b"x", size + 5 * PAGE)
        assert hostile.unmap() == 0
        wait_until(lambda: pages_of(hostile.frames) == (size / PAGE, 0), what="it is free")
        hostile.end()
    finally:
        shutil.rmtree(data)


@pytest.mark.parametrize("what", ["os.truncate(path, 1 << 60)\nfallocate(fd, 3, 0, 1 << 60)",  # keep the size, punch
                                  "map.advise(4)"])  # GAIA_ADV_DONTNEED
def test_what_is_far_away_costs_nothing(mount, devices, agents, what):
    """Nor does it to let go of what a device has: the same, and not by how long the range is."""
    data = f"/dev/shm/gaiafs-test-{os.getpid()}"
    os.mkdir(data)
    try:
        path = os.path.join(mount(data=data).mnt, "f")
        write_file(path, b"")
        size = 1 << 46
        os.truncate(path, size)
        program = agents()
        program.do("""from posix_calls import fallocate
fd = os.open(path, os.O_RDWR)
map = gaia.Device("soft:0").mmap(fd, size)
map[size - PAGE] = 1""", path=path, size=size)
        program.start(what, path=path, size=size)
        assert not program.busy(20), "it looks at every page of the range"
        program.finish()
    finally:
        shutil.rmtree(data)


def test_the_longest_file(mount, devices):
    """Its last page is read, though a byte of that can't be, and the others go on: also where it becomes so long meanwhile."""
    data = f"/dev/shm/gaiafs-test-{os.getpid()}"
    os.mkdir(data)
    try:
        path, longest = os.path.join(mount("passthrough=off", data=data).mnt, "f"), (1 << 63) - 1
        write_file(path, b"f" * PAGE)
        fd = os.open(path, os.O_RDWR)
        maps = [devices("soft:0").mmap(fd, PAGE)]
        os.truncate(path, longest)
        os.pwrite(fd, b"end", longest - 3)
        maps.append(devices("soft:1").mmap(fd, PAGE))
        for value, mapping in enumerate(maps):
            mapping.acquire()
            assert mapping[1] == ord("f")
            mapping[0] = value
            mapping.release()
            assert os.pread(fd, 2, 0) == bytes([value]) + b"f"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 3, longest - 3) == b"end"
        os.close(fd)
    finally:
        shutil.rmtree(data)


CHANGES = {
    "unmap": lambda hostile: hostile.unmap(),
    "cut": lambda hostile: os.ftruncate(hostile.fd, 3 * PAGE),
    "cut_in_a_page": lambda hostile: os.ftruncate(hostile.fd, 3 * PAGE + 10),
    "append": lambda hostile: os.pwrite(hostile.fd, b"a", 300 * PAGE),
}
LENGTHS = {"unmap": 256, "cut": 3, "cut_in_a_page": 4, "append": 301}
OTHERS = """fd = os.open(path, os.O_RDWR)
assert os.pread(fd, 1, 2 * PAGE) == b'f'
assert os.pwrite(fd, b'f', 2 * PAGE) == 1
os.close(fd)"""


def others_go_on(aside, path):
    aside.start(OTHERS, path=path)
    assert not aside.busy(8), "a program that opens, reads and writes the file waits"
    aside.finish()


def hold(mount, devices, change):
    """A mount, and a client that holds the memory of a file's frames after they were to change."""
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, b"f" * (256 * PAGE))
    hostile = Hostile(path)
    mapping = devices().mmap(hostile.fd, 256 * PAGE)
    assert [mapping[page * PAGE] for page in (2, 3, 200)] == [ord("f")] * 3
    mapping.unmap()
    hole = os.lseek(hostile.frames, 0, os.SEEK_HOLE)
    assert hole < 250 * PAGE
    os.pwrite(hostile.frames, b"x" * PAGE, hole)
    hostile.hold()
    done = threading.Thread(target=CHANGES[change], args=(hostile,), daemon=True)
    done.start()
    return m, path, hostile, done


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_that_holds_the_memory_of_frames(mount, agents, devices, change):
    """Nobody who opens, reads or writes the file waits for it; who changes the size, not for long. What was to be done to the
    frames is done in the end."""
    if change == "append" and "passthrough=all" in os.environ.get("GAIA_TEST_OPTIONS", ""):
        pytest.skip("nobody hears of an append that the kernel makes: the frames grow at an acquire")
    m, path, hostile, done = hold(mount, devices, change)
    try:
        for _ in range(3):
            others_go_on(agents(), path)
        done.join(8)
        assert not done.is_alive(), "who changed the size waits"
    finally:
        hostile.let_go()
    wait_until(lambda: pages_of(hostile.frames)[0] == LENGTHS[change], what="the frames fit")
    if change == "unmap":
        wait_until(lambda: pages_of(hostile.frames)[1] * PAGE == statistics(m.mnt)["devices"][0]["resident_bytes"], what="they are free")
    hostile.end()


def test_frames_that_are_held_until_the_end(mount, devices):
    """The mount ends all the same."""
    m, _, hostile, done = hold(mount, devices, "cut")
    try:
        done.join(8)
        hostile.raw.close()
        os.close(hostile.fd)
        began = time.monotonic()
        subprocess.run(["umount", m.mnt], check=True)
        wait_until(lambda: states_of(m.pid) <= {"Z", "D"}, 15, "nothing is left of the daemon but who waits")
        assert time.monotonic() - began < 15
    finally:
        hostile.let_go()
    assert m.proc.wait(10) == 0
