# SPDX-License-Identifier: Apache-2.0
"""Pages on their way to devices: many at once, to devices of other nodes, of clients whose stores are not trapped."""
import os

import pytest

from files import pattern
from helpers import MIB, PAGE, agents, statistics, write_file  # noqa: F401
from nodes import Program, check, cluster  # noqa: F401

NO_TRAP = {"GAIA_SOFT_TRAP": "0"}


@pytest.mark.parametrize("side", ["alone", "agent"])
def test_twins_of_pages_that_come_together(mount, workdir, cluster, agents, side):
    """A store brings a unit of more than one leaf to a client whose stores are not trapped: each page has its own bytes as its
    twin, so what others write to one is not undone by the release."""
    content = bytearray(pattern(65 * PAGE))
    if side == "alone":
        path = os.path.join(mount("timeout=0,unit=2M").mnt, "f")
        write_file(path, bytes(content))
    else:
        nodes = cluster(2, "timeout=0,unit=2M")
        nodes.make(content, home=0)
        path = nodes.path(1)
    program = Program(agents(NO_TRAP), path, cpu=False)
    program.device_store(0, b"stored")
    content[:6] = b"stored"
    check("the other leaf", program.device_load(64 * PAGE), content[64 * PAGE:])
    program.write(64 * PAGE + 100, b"written")
    content[64 * PAGE + 100:64 * PAGE + 107] = b"written"
    program.release()
    check("read()", program.read(), content)


LARGE = 16 * MIB


@pytest.mark.parametrize("env", [NO_TRAP, None], ids=["not trapped", "trapped"])
def test_all_stages_at_once(cluster, agents, env):
    """16 MiB are asked for at once. Who places holds no slot that who takes twins under the file's lock waits for."""
    nodes = cluster(2, "timeout=0")
    content = pattern(LARGE)
    nodes.make(content, home=0)
    program = Program(agents(env), nodes.path(1), cpu=False)
    for turn in range(5):
        program.agent.do("map.advise(gaia.ADV_WILLNEED)")
        check(f"turn {turn}", program.device_load(), content)
        program.agent.do("map.advise(gaia.ADV_DONTNEED)")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("side", ["alone", "agent"])
def test_twins_of_what_is_touched_in_no_order(mount, cluster, agents, side, there):
    """A client whose stores are not trapped has twins of the units that it has touched, and not of the blocks around them, be
    they there or not."""
    content = pattern(4 * MIB)
    if side == "alone":
        home = mount("timeout=0,fault_threads=1")
        path = os.path.join(home.mnt, "f")
        write_file(path, content)
    else:
        nodes = cluster(2, "timeout=0,fault_threads=1")
        home = nodes[0]
        nodes.make(content, home=0)
        path = nodes.path(1)

    def count(what):
        return sum(device[what] for device in statistics(home.mnt)["devices"])

    if there:
        first = Program(agents(), path, cpu=False)
        check("all", first.device_load(), content)
    program = Program(agents(NO_TRAP), path, cpu=False)
    ahead = count("readahead_pages")
    unit = 16 * PAGE
    for at in *range(42, -1, -2), 54, 31, 50:  # none lies where a stream would go on
        check(f"unit {at}", program.device_load(at * unit, at * unit + 1), content[at * unit:at * unit + 1])
    assert count("twins") == 25 * 16 and count("readahead_pages") == ahead


@pytest.mark.parametrize("copies", ["1", "windows", "0"])
def test_long_runs(mount, agents, copies):
    """Straight into the mapping, by windows, and as where there is no userfaultfd for the daemon: read ahead of the touches, dropped,
    changed, and again."""
    daemon = mount("timeout=0", env={"GAIA_SOFT_COPY": copies})
    content = bytearray(pattern(2 * LARGE + 3 * PAGE + 5))
    path = os.path.join(daemon.mnt, "f")
    write_file(path, bytes(content))
    program = Program(agents(), path, cpu=False)
    for turn in range(3):
        program.agent.do("map.advise(gaia.ADV_WILLNEED)")
        check(f"turn {turn}", program.device_load(), content)
        for at in range(turn * PAGE, len(content), 1000 * PAGE):
            program.write(at, b"written")
            content[at:at + 7] = b"written"
        program.acquire()
        check(f"turn {turn}, changed", program.device_load(), content)
        program.agent.do("map.advise(gaia.ADV_DONTNEED)")
