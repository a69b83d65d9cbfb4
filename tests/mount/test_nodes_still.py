# SPDX-License-Identifier: Apache-2.0
"""Nodes that stand still together, for longer than peer_timeout, as in a container that is frozen: none takes another for dead,
but one that is."""
import os
import signal
import time

import pytest

from files import pattern
from helpers import PAGE, agents, stand_still, statistics, wait_until  # noqa: F401
from nodes import SIDES, TAKEN_OVER, Program, all_see, cluster  # noqa: F401

TIMEOUT_S = 1
STILL_S = 2.5 * TIMEOUT_S
PATIENCE_S = 3 * TIMEOUT_S + 4  # what is promised, on a machine that is busy with other things


@pytest.fixture
def two(cluster, agents):  # noqa: F811
    """A file, its home's program and its agent's, which have it mapped on a device; and the nodes, the home first."""
    nodes = cluster(2, f"timeout=0,peer_timeout={TIMEOUT_S}")
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    programs = [Program(agents(), nodes.path(number)) for number in range(2)]
    for at, program in enumerate(programs):
        store_and_release(program, content, at, b"before")
    yield nodes, programs, content
    for program in programs:
        program.agent.kill()


def store_and_release(program, content, page, data):
    program.device_store(page * PAGE + 10, data)
    program.release()
    content[page * PAGE + 10:page * PAGE + 10 + len(data)] = data


def go_on(m):
    os.kill(m.pid, signal.SIGCONT)


def nobody_is_down(nodes):
    assert not any(other["down"] for m in nodes for other in statistics(m.mnt)["nodes"]["nodes"])
    assert not any(TAKEN_OVER in m.log_text() for m in nodes)


@pytest.mark.parametrize("first", SIDES)
def test_two_that_stand_still_together(two, first):
    """Maps of before hold, which end with the session of the two."""
    nodes, programs, content = two
    order = nodes if first == "home" else nodes[::-1]
    for m in order:
        stand_still(m.pid)
    time.sleep(STILL_S)
    for m in order:
        go_on(m)
    for turn in range(2):
        for at, program in enumerate(programs):
            store_and_release(program, content, 2 + 2 * turn + at, b"device")
            program.write((2 + 2 * turn + at) * PAGE + 30, b"write")
            content[(2 + 2 * turn + at) * PAGE + 30:(2 + 2 * turn + at) * PAGE + 35] = b"write"
            program.fsync()
        all_see({"home": programs[0], "agent": programs[1]}, content)
        time.sleep(1.5 * TIMEOUT_S)  # what has not been heard would be late by then
    nobody_is_down(nodes)


def test_two_that_stand_still_again_and_again_at_work(two):
    """Whatever they are at: no call fails."""
    nodes, programs, content = two
    for at, program in enumerate(programs):
        program.agent.do("from time import monotonic\nturns = 0", at=(2 + at) * PAGE)
        program.agent.start("end = monotonic() + long\nwhile monotonic() < end:\n    turns += 1\n"
                            "    map[at:at + 4] = turns.to_bytes(4, 'little')\n    map.release()\n    map.acquire()\n"
                            "    os.pwrite(fd, turns.to_bytes(4, 'little'), at + 100)", long=3 * (STILL_S + 0.5))
    for _ in range(3):
        for m in nodes:
            stand_still(m.pid)
        time.sleep(STILL_S)
        for m in nodes:
            go_on(m)
        time.sleep(0.3)
    for at, program in enumerate(programs):
        program.agent.finish()
        turns = program.agent("turns")
        assert turns > 1
        for offset in 0, 100:
            content[(2 + at) * PAGE + offset:(2 + at) * PAGE + offset + 4] = turns.to_bytes(4, "little")
    all_see({"home": programs[0], "agent": programs[1]}, content)
    nobody_is_down(nodes)


@pytest.mark.parametrize("which", SIDES)
def test_one_dies_while_both_stand_still(two, which):
    """The other finds that, as if nobody had stood still."""
    nodes, programs, content = two
    dead, alive = (0, 1) if which == "home" else (1, 0)
    for program in programs:
        program.fsync()
    for m in nodes:
        stand_still(m.pid)
    time.sleep(STILL_S / 2)
    nodes[dead].kill()
    time.sleep(STILL_S / 2)
    go_on(nodes[alive])
    wait_until(lambda: statistics(nodes[alive].mnt)["nodes"]["nodes"][dead]["down"], PATIENCE_S, "the dead one is down")
    assert programs[alive].read() == bytes(content)
