# SPDX-License-Identifier: Apache-2.0
"""A member that says anything (tool_babble.c), as the agent of a daemon and as the home of its files, while programs use
them: the daemon lives, answers, and what the member has no part in is as it was."""
import json
import os
import subprocess

import pytest

from files import pattern
from helpers import (PAGE, AgentDied, agents, cuda_standin, error_of, make_random, read_file, statistics,  # noqa: F401
                     tool_path, wait_until, write_file)
from nodes import cluster  # noqa: F401
from member import OPS

PAGES = 64
FILES = ("home0", "home1", "far0", "far1")

# Reads, writes, cuts, syncs and stores through mappings of the kernel's; every error is an answer.
CALLS = """
import mmap, random, time
rng, end, done, failed = random.Random(seed), time.monotonic() + seconds, 0, 0
while time.monotonic() < end:
    try:
        fd = os.open(os.path.join(mnt, rng.choice(names)), os.O_RDWR)
    except OSError:
        failed += 1
        time.sleep(0.01)
        continue
    try:
        for turn in range(8):
            at, length = rng.randrange(size), rng.randrange(1, 70000)
            try:
                {0: lambda: os.pread(fd, length, at), 1: lambda: os.pwrite(fd, bytes(length), at), 2: lambda: os.fsync(fd),
                 3: lambda: os.ftruncate(fd, max(at, PAGE)), 4: lambda: os.fstat(fd), 5: lambda: os.lseek(fd, at, os.SEEK_DATA),
                 6: lambda: os.posix_fallocate(fd, at, length)}[rng.randrange(7)]()
                done += 1
            except OSError:
                failed += 1
    finally:
        try:
            os.close(fd)
        except OSError:
            failed += 1
"""
# Until it gets SIGBUS, or waits for what nobody brings.
TOUCHES = """
import contextlib, random
rng = random.Random(seed)
dev = gaia.Device(gaia.default_device())
while True:
    with contextlib.suppress(OSError), open(os.path.join(mnt, rng.choice(names)), "r+b", 0) as file:
        map = dev.mmap(file.fileno(), size)
        for turn in range(20):
            at = rng.randrange(size)
            if rng.randrange(2):
                map[at:at + 1] = b"x"
            else:
                map[at]
            if rng.randrange(4) == 0:
                with contextlib.suppress(OSError):
                    rng.choice((map.acquire, map.release, map.sync))()
        map.unmap()
"""


def babble(cluster, agents, seconds, options=""):
    rng = make_random("babble")
    nodes = cluster(2, "timeout=0,peer_timeout=2" + options, only=[])
    m = nodes.mount(0)
    for name in FILES:
        nodes.make(pattern(PAGES * PAGE, 1), name, home=0 if name.startswith("home") else 1)
    nodes.make(pattern(PAGES * PAGE, 2), "aside", home=0)
    seed = rng.randrange(1 << 60)
    member = subprocess.Popen([tool_path("tool_babble"), nodes.peers, "b", "a", str(seed), str(seconds),
                               *map(nodes.below, FILES)], stdout=subprocess.PIPE, text=True)
    common = {"mnt": m.mnt, "names": FILES, "size": PAGES * PAGE, "seconds": seconds}
    try:
        caller, toucher = agents(), agents()
        caller.start(CALLS, seed=seed, **common)
        toucher.start(TOUCHES, seed=seed, **common)
        deaths = 0
        while member.poll() is None:
            assert m.proc.poll() is None, m.log_text()[-4000:]
            assert read_file(os.path.join(m.mnt, "aside")) == pattern(PAGES * PAGE, 2)
            if toucher.busy(0.2):
                if rng.randrange(4):
                    continue
                toucher.kill()
            else:
                with pytest.raises(AgentDied):
                    toucher.finish()
            deaths += 1
            toucher = agents()
            toucher.start(TOUCHES, seed=seed + deaths, **common)
        said = json.loads(member.stdout.read())
    finally:
        member.kill()
        member.wait()
    print({name: [said[kind][op - 1] for kind in ("taken", "refused", "answered", "slowest_ms")] for name, op in OPS.items()})
    print({key: value for key, value in said.items() if not isinstance(value, list)}, "deaths", deaths)
    caller.finish()
    print("calls", caller("(done, failed)"))
    toucher.kill()
    return m, nodes, said


@pytest.mark.parametrize("device", ["soft:0", "cuda:0"])
def test_a_node_that_says_anything(cluster, agents, monkeypatch, device):
    monkeypatch.setenv("GAIA_DEVICE", device)
    if device == "cuda:0":
        monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    m, nodes, said = babble(cluster, agents, float(os.environ.get("GAIA_TEST_SECONDS", 4)))
    assert not said["hung"], "an answer took 15 s"
    assert "its driver reports" not in m.log_text(), "the member is mistaken, and no GPU"
    statistics(m.mnt)
    for name in FILES:  # what the member has left, which may be of any size
        path = os.path.join(m.mnt, name)
        wait_until(lambda path=path: error_of(os.truncate, path, 0) == 0, 20, f"{name} can be cut off")
        wait_until(lambda path=path: error_of(write_file, path, b"again") == 0, 20, f"{name} can be written")
        assert read_file(nodes.below(name)) == b"again"
    assert read_file(os.path.join(m.mnt, "aside")) == pattern(PAGES * PAGE, 2)
