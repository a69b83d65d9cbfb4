# SPDX-License-Identifier: Apache-2.0
"""A program that holds up who works on its frames, by the lock of their memory or by that of its own addresses (test_frames.py has
both), holds up no program that uses other files of the mount."""
import errno
import glob
import os
import signal
import subprocess
import time

import pytest

from helpers import ALL_ROWS, PAGE, agents, daemon_with_faults, stand_still, states_of, write_file  # noqa: F401
from test_frames import COVER, HANGS, PROGRAM, Hostile, leaves_nothing

PAGES = 64  # of the device
FILE = 256  # pages


class HeldFrames:
    """The lock of the memory of a file's frames."""

    def __init__(self, mount, program, path):
        self.client = Hostile(path)

    def hold(self):
        self.client.hold()

    def let_go(self):
        self.client.let_go()
        self.client.end()


class HeldAddresses:
    """The lock of a program's addresses."""

    def __init__(self, mount, program, path):
        self.stuck, self.program = mount("passthrough=off"), program
        elsewhere = os.path.join(self.stuck.mnt, "f")
        write_file(elsewhere, b"f" * PAGE)
        program.do(HANGS, elsewhere=elsewhere)

    def hold(self):
        stand_still(self.stuck.pid)
        self.program.start(COVER)
        assert self.program.busy(1), "it is not held up"

    def let_go(self):
        os.kill(self.stuck.pid, signal.SIGCONT)
        self.program.finish()


def evictors(m):
    """The threads that make room in others' frames."""
    names = [open(path).read() for path in glob.glob(f"/proc/{m.pid}/task/*/comm")]
    return names.count("gaiafs-evict\n")


HOLDS = {"frames": HeldFrames, "addresses": HeldAddresses}


@pytest.mark.traps
@pytest.mark.parametrize("options", ["", ",evict=clock", ",fault=local"])
@pytest.mark.parametrize("holds", HOLDS)
def test_room_beside_a_client_that_holds_its_frames(mount, agents, holds, options):
    """A full device gives others what can go. What the held program has stored is not lost."""
    m = mount(f"timeout=0,unit=4K,device_cache={PAGES * PAGE}{options}")
    paths = [os.path.join(m.mnt, name) for name in "fgh"]
    for path in paths:
        write_file(path, b"f" * (FILE * PAGE))
    held, others = agents(), [agents() for _ in range(3)]
    held.do(PROGRAM + """
for page in range(32):
    map[page * PAGE] = page + 1""", path=paths[0], prot=3)
    for at, other in enumerate(others):
        other.do(PROGRAM, path=paths[1 + at % 2], prot=3)
    hold = HOLDS[holds](mount, held, paths[0])
    # To have had that file, too, changes nothing.
    others[0].do("gaia.Device('soft:0').mmap(os.open(held, os.O_RDONLY), PAGE, 1).unmap()", held=paths[0])
    hold.hold()
    try:
        for at, other in enumerate(others):
            other.start(f"""map.advise(gaia.ADV_RANDOM)
for round in range(3):
    for page in range({80 * at}, {80 * at + 80}):
        assert map[page * PAGE] == (round or ord('f'))
        map[page * PAGE] = round + 1
map.release()""")
        slow = [other.busy(15) for other in others]
        waiting = evictors(m)
    finally:
        hold.let_go()
    assert not any(slow), "programs that use other files wait"
    assert waiting <= 8 * len(others), "each eviction waits for it anew"
    for other in others:
        other.finish()
    held.do("map.release()")
    for path, pages in zip(paths, [range(32), [*range(80), *range(160, 240)], range(80, 160)]):
        with open(path, "rb") as file:
            content = file.read()
        for page in range(FILE):
            first = 0 if page not in pages else page + 1 if path == paths[0] else 3
            assert content[page * PAGE] == (first or ord("f")), (path, page)
    # What was held goes as other frames do: all of the device was given to it, and is taken away.
    for program, name in (held, "f"), (others[0], "g"), (held, "f"):
        program.start("for page in range(FILE):\n    map[page * PAGE]", FILE=FILE)
        assert not program.busy(15), f"no room for {name}"
        program.finish()


@pytest.mark.traps
def test_the_end_of_a_mount_that_makes_room_in_held_frames(mount, agents):
    """Who takes pages from them is left behind."""
    m = mount(f"timeout=0,unit=4K,device_cache={PAGES * PAGE}")
    paths = [os.path.join(m.mnt, name) for name in "fg"]
    for path in paths:
        write_file(path, b"f" * (FILE * PAGE))
    programs = [agents() for _ in paths]
    for program, path in zip(programs, paths):
        program.do(PROGRAM + "\nmap[2 * PAGE] = 1\nmap.release()\nmap[3 * PAGE]", path=path, prot=3)
    hostile = Hostile(paths[0])
    hostile.hold()
    try:
        programs[1].do("for page in range(4, FILE):\n    map[page * PAGE] = 2\nmap.release()", FILE=FILE)
        for program in programs:
            program.kill()
        hostile.raw.close()
        os.close(hostile.fd)
        subprocess.run(["umount", m.mnt], check=True)
        leaves_nothing(m)
        assert "D" in states_of(m.pid), "nobody is held up"
        for name, last in ("f", ord("f")), ("g", 2):
            with open(os.path.join(m.data, name), "rb") as file:
                content = file.read()
            assert content[2 * PAGE] == 1 and content[200 * PAGE] == last
    finally:
        hostile.let_go()
    assert m.proc.wait(10) == 0


@pytest.mark.traps
def test_room_where_no_thread_can_begin(mount, agents, workdir, monkeypatch):
    """For want of processes, say (pids.max): who wants room takes it itself, as nobody is known to hold anything."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount(f"timeout=0,unit=4K,device_cache={PAGES * PAGE}", env=env)
    programs = [agents(), agents()]
    for program, name in zip(programs, "fg"):
        path = os.path.join(m.mnt, name)
        write_file(path, b"f" * (FILE * PAGE))
        program.do(PROGRAM.rsplit("\n", 1)[0], path=path, prot=3)
    programs[0].do("for page in range(FILE):\n    map[page * PAGE] = 1", FILE=FILE)
    assert not evictors(m)
    plan.arm(ALL_ROWS.index("pthread_create"), errno.EAGAIN, 1, True)
    programs[1].start("for page in range(FILE):\n    map[page * PAGE] = 2", FILE=FILE)
    slow = programs[1].busy(10)
    plan.row = -1
    assert plan.landed and not slow, "a touch waits for a thread"
    programs[1].finish()


TOUCHES = """
import ctypes, random, threading
map.advise(gaia.ADV_RANDOM)
def touch(page):
    ctypes.memmove(ctypes.create_string_buffer(1), map.address + page * PAGE, 1)  # lets go of the interpreter's lock
threads = [threading.Thread(target=touch, args=(page,), daemon=True) for page in range(20, 40)]
for thread in threads:
    thread.start()"""


@pytest.mark.traps
@pytest.mark.parametrize("prot", [1, 3])
def test_many_touches_of_held_frames(mount, agents, prot):
    """More than there are stages (cache/frame.h): who waits for the frames leaves enough of them for others."""
    m = mount("timeout=0,unit=4K,fault_threads=16")
    paths = [os.path.join(m.mnt, name) for name in "fg"]
    for path in paths:
        write_file(path, b"f" * (FILE * PAGE))
    other, held = agents(), [agents() for _ in range(4)]
    other.do(PROGRAM, path=paths[1], prot=3)
    for program in held:
        program.do(PROGRAM, path=paths[0], prot=prot)
    hostile = Hostile(paths[0])
    hostile.hold()
    try:
        for at, program in enumerate(held):
            program.do(TOUCHES.replace("range(20, 40)", f"range({20 + 20 * at}, {40 + 20 * at})"))
        time.sleep(1)
        other.start("for page in range(10, 30):\n    map[page * PAGE] = 1\nmap.release()")
        slow = other.busy(10)
    finally:
        hostile.let_go()
    assert not slow, "a program that uses another file waits"
    other.finish()
    for program in held:
        program.do("for thread in threads:\n    thread.join()")
    hostile.end()
