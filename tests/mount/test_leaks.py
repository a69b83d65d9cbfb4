# SPDX-License-Identifier: Apache-2.0
"""What the kernel was told of is forgotten, what was opened is closed: nothing of a file is left in the daemon.

At an unmount the kernel sends no FORGET, so that nothing can be compared then. But a remount makes it drop all dentries of
that one mount that nobody uses, and it then forgets their inodes: what the daemon still counts was leaked. In the other
direction (a file forgotten more often than looked up), and for references of the daemon's own that are left at the
unmount, checked builds end the daemon, and all builds log.
"""
import contextlib
import ctypes
import os
import sys
import threading

import pytest

from conftest import TOP
from helpers import PAGE, Agent, make_random, repeats, statistics, wait_until, write_file

sys.path.append(os.path.join(TOP, "tests", "soak"))

import load  # noqa: E402

MS_REMOUNT = 32


def remount(mnt):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", mnt.encode(), None, ctypes.c_ulong(MS_REMOUNT), None):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


ONLY_THE_ROOT = {"inodes": 1, "lookups": 1, "open": 0}


def settled(mnt, inodes=1, handles=0):
    """What the kernel knows after a remount, once the daemon has read all FORGETs and RELEASEs (gaiactl's own, too);
    after 20 s as it is then."""
    known = {}

    def done():
        remount(mnt)
        known.update(statistics(mnt)["kernel"])
        return known["inodes"] == inodes and known["open"] == handles
    with contextlib.suppress(AssertionError):
        wait_until(done, 20)
    return known


def play(top, seed, rounds):
    player = load.Names(top, seed)
    for _ in range(rounds):
        player.turn()


@pytest.mark.limit(150)
@pytest.mark.parametrize("options", ["", "timeout=0"], ids=["", "no-timeout"])
def test_all_is_forgotten(mount, options):
    m = mount(options)
    rng = make_random("names")
    seeds = [rng.randrange(1 << 30) for _ in range(4)]
    before = settled(m.mnt)
    players = [threading.Thread(target=play, args=(m.mnt, seed, repeats(800))) for seed in seeds]
    for player in players:
        player.start()
    for player in players:
        player.join()
    for name in range(500):  # whoever wants memory has the kernel forget some of them
        write_file(os.path.join(m.mnt, f"known{name}"), b"")
    known = statistics(m.mnt)["kernel"]
    assert known["inodes"] > 50 and known["lookups"] > 50, "the kernel knows nothing, so that nothing can be forgotten"
    assert settled(m.mnt) == before == ONLY_THE_ROOT


def test_what_is_open_is_counted_and_what_a_device_held_is_forgotten(mount):
    m = mount()
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(4 * PAGE))
    agent = Agent()
    try:
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device().mmap(fd, 4 * PAGE)\nmap[5] = 7\nmap.release()",
                 path=path)
        found = settled(m.mnt, 2, 1)
        assert found["open"] == 1 and found["inodes"] == 2, found  # who has it open is not forgotten
    finally:
        agent.end()
    with open(path, "rb") as file:
        assert file.read(6)[5] == 7
    os.unlink(path)  # while it has a name, what the device holds of it is kept, and the file with it
    assert settled(m.mnt) == ONLY_THE_ROOT


def test_a_remount_forgets_only_what_nobody_uses(mount):
    """The test's own means: a file that is open stays known, and forgetting does not touch its bytes."""
    m = mount()
    for name in ("held", "free"):
        write_file(os.path.join(m.mnt, name), name.encode())
    with open(os.path.join(m.mnt, "held"), "rb") as file:
        found = settled(m.mnt, 2, 1)
        assert found["inodes"] == 2 and found["open"] == 1, found
        assert file.read() == b"held"
