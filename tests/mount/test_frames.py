# SPDX-License-Identifier: Apache-2.0
"""Programs that do to the memory of a soft device's frames whatever its descriptor allows."""
import ctypes
import fcntl
import glob
import os
import shutil
import signal
import struct
import subprocess
import threading
import time

import pytest

import helpers
from helpers import (HELLO, MAP, PAGE, UNMAP, Raw, agents, daemon_with_faults, devices, drop_host_cache,  # noqa: F401
                     get_token, message, standing_still, states_of, statistics, userfaultfd, wait_until, write_file)

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


def leaves_nothing(m):
    """Of the daemon is left who waits, and nothing of the mount's with it."""
    wait_until(lambda: states_of(m.pid) <= {"Z", "D"}, 20, "nothing is left of the daemon but who waits")
    left = {os.readlink(fd) for fd in glob.glob(f"/proc/{m.pid}/task/*/fd/*")}
    assert ("D" in states_of(m.pid)) == bool(left) and not [path for path in left if m.data in path or "/dev/fuse" in path], left


def test_frames_that_are_held_until_the_end(mount, devices):
    """The mount ends all the same."""
    m, _, hostile, done = hold(mount, devices, "cut")
    try:
        done.join(8)
        hostile.raw.close()
        os.close(hostile.fd)
        began = time.monotonic()
        subprocess.run(["umount", m.mnt], check=True)
        leaves_nothing(m)
        assert time.monotonic() - began < 15
    finally:
        hostile.let_go()
    assert m.proc.wait(10) == 0


PROGRAM = """fd = os.open(path, os.O_RDWR)
map = gaia.Device('soft:0').mmap(fd, 256 * PAGE, prot)
map[2 * PAGE]"""
WAITS = {
    # A page is placed by a write into the memory,
    "touch": "map[100 * PAGE]",
    # or, where it came too late, dropped: a hole in it.
    "late": "map[100 * PAGE]",
    # So is what an acquire finds out of date.
    "acquire": "map.acquire()",
}


@pytest.mark.traps
@pytest.mark.parametrize("ends", ["umount", "SIGTERM"])
@pytest.mark.parametrize("waits", WAITS)
def test_the_end_of_a_mount_while_a_client_holds_frames(mount, agents, workdir, monkeypatch, waits, ends):
    """Who waits for that memory is left behind. What programs have released, or stored, is in the file, and it can be mounted."""
    options = "timeout=0,unit=4K" + (",fault=local" if waits == "late" else "")
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(options, env=env)
    paths = [os.path.join(m.mnt, name) for name in "afz"]
    for path in paths:
        write_file(path, b"f" * (256 * PAGE))
    programs = [agents() for _ in range(4)]
    for program, path in zip(programs, paths):
        program.do(PROGRAM + "\nmap[0:8] = b'released'\nmap.release()\nmap[3 * PAGE:3 * PAGE + 6] = b'stored'", path=path, prot=3)
    waiter = programs[3]
    waiter.do(PROGRAM, path=paths[1], prot=3 if waits == "late" else 1)
    hostile = Hostile(paths[1])
    if waits == "acquire":
        os.pwrite(hostile.fd, b"w", 2 * PAGE)
    hostile.hold()
    try:
        if waits == "late":
            plan.arm_wait(helpers.ROWS.index("sendmsg"), 1000, 1, 0)
        waiter.start(WAITS[waits])
        if waits == "late":
            wait_until(lambda: plan.landed, what="the read is under way")
            plan.row = -1
            os.truncate(paths[1], 50 * PAGE)
        assert waiter.busy(2)
        os.close(hostile.fd)
        if ends == "umount":
            for program in programs:
                program.kill()
            subprocess.run(["umount", m.mnt], check=True)
        else:
            os.kill(m.pid, signal.SIGTERM)
        leaves_nothing(m)
        for name in "afz":
            with open(os.path.join(m.data, name), "rb") as file:
                content = file.read(4 * PAGE)
            assert content[:8] == b"released" and content[3 * PAGE:3 * PAGE + 6] == b"stored", name
        if ends == "umount":
            assert mount(data=m.data, mnt=m.mnt).mounted()
    finally:
        hostile.let_go()
    assert m.proc.wait(10) == 0


HANGS = """import ctypes, threading
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
other = os.open(elsewhere, os.O_RDWR)
at = libc.mmap(None, PAGE, 3, 1, other, 0)
ctypes.memset(at, 1, PAGE)"""
COVER = "libc.mmap(at, PAGE, 3, 0x32, -1, 0)"  # fixed, private, anonymous: what was there is written back first


@pytest.mark.traps
def test_the_end_of_a_mount_while_a_client_maps(mount, agents, workdir):
    """It has the lock of its own addresses, as it takes away a mapping of a file whose filesystem does not answer: its stores can't
    be trapped, for none of those who map the same file. What they have released is in the file, and others' stores are; that
    more may be lost is said."""
    m, stuck = mount("timeout=0,unit=4K"), mount("passthrough=off")
    paths = [os.path.join(m.mnt, name) for name in "afz"]
    for path in [*paths, os.path.join(stuck.mnt, "f")]:
        write_file(path, b"f" * (256 * PAGE))
    programs = [agents() for _ in range(5)]
    for program, path in zip(programs, [*paths, paths[1]]):
        program.do(PROGRAM + "\nmap[0:8] = b'released'\nmap.release()\nmap[3 * PAGE:3 * PAGE + 6] = b'stored'", path=path, prot=3)
    hostile = programs[4]
    hostile.do(PROGRAM + "\nmap[5 * PAGE] = 1\n" + HANGS, path=paths[1], prot=3, elsewhere=os.path.join(stuck.mnt, "f"))
    with standing_still(stuck.pid):
        hostile.start(COVER)
        assert hostile.busy(1), "it is not held up"
        programs[1].start("map[0] = ord('r')\nmap.release()")
        assert programs[1].busy(2), "its release traps nothing"
        programs[3].do("map[100 * PAGE:100 * PAGE + 6] = b'stored'")
        os.kill(m.pid, signal.SIGTERM)
        leaves_nothing(m)
    m.expected_exit = 1
    assert m.proc.wait(10) == 1 and "is lost: a program has kept it busy" in m.log_text()
    for name in "afz":
        with open(os.path.join(m.data, name), "rb") as file:
            content = file.read()
        stored = (100 if name == "f" else 3) * PAGE
        assert content[:8] == b"released" and content[stored:stored + 6] == b"stored", name


@pytest.mark.traps
def test_reads_of_storage_beside_a_client_that_holds_frames(mount, agents):
    """The one thread that hears of them waits for no such client: touches of another file go on. Of several such reads, too."""
    m = mount("timeout=0,unit=4K")
    paths = [os.path.join(m.mnt, name) for name in "fg"]
    for path in paths:
        write_file(path, b"f" * (256 * PAGE))
    programs = [agents() for _ in range(4)]
    for program, path in zip(programs, [paths[1]] + [paths[0]] * 3):
        program.do(PROGRAM + "\nmap.advise(gaia.ADV_RANDOM)", path=path, prot=1)
    hostile = Hostile(paths[0])
    for path in paths:
        drop_host_cache(os.path.join(m.data, os.path.basename(path)))
    hostile.hold()
    for at, program in enumerate(programs[1:]):
        program.start(f"seen = map[{100 + 10 * at} * PAGE]")
    programs[0].start("seen = [map[page * PAGE] for page in range(40, 60)]")
    held = programs[0].busy(8)
    hostile.let_go()
    assert not held, "a program that maps another file waits"
    for program in programs:
        program.finish()
    assert programs[0]("seen") == [ord("f")] * 20
    hostile.end()


@pytest.mark.traps
def test_clients_that_hold_the_frames_of_many_files(mount, agents):
    """Four of those who change their sizes wait a while, 2 s, and the others for a moment: who has to do with none of
    these files finds a thread at once, not when fs/loop.c has seen that all are stuck."""
    m = mount()
    aside, hostile = agents(), []
    aside("os.getpid()")
    for i in range(24):
        path = os.path.join(m.mnt, f"f{i}")
        write_file(path, b"f" * (16 * PAGE))
        hostile.append(Hostile(path))
    for one in hostile:
        one.hold()
    cuts = [threading.Thread(target=os.ftruncate, args=(one.fd, 3 * PAGE), daemon=True) for one in hostile]
    try:
        began = time.monotonic()
        for cut in cuts:
            cut.start()
        wait_until(lambda: sum(cut.is_alive() for cut in cuts) <= 4, what="all but four are answered")
        most = time.monotonic() - began
        assert any(cut.is_alive() for cut in cuts), "nobody waits"
        began = time.monotonic()
        aside("os.mkdir(path)", path=os.path.join(m.mnt, "d"))
        took = time.monotonic() - began
    finally:
        for one in hostile:
            one.let_go()
    for cut in cuts:
        cut.join(8)
        assert not cut.is_alive()
    for one in hostile:
        wait_until(lambda: pages_of(one.frames)[0] == 3, what="the frames fit")
        one.end()
    assert most < 1.8, f"those who wait for a moment only have waited {most} s"
    assert took < 1, f"a program that has to do with none of these files waits {took} s"
