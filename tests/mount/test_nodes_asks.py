# SPDX-License-Identifier: Apache-2.0
"""What nodes ask each other for, and how often: a page that did not change does not travel, nor does a question for each page."""
import os

import pytest

from files import pattern
from helpers import PAGE, agents, device_statistics, statistics  # noqa: F401
from nodes import Program, cluster  # noqa: F401

PAGES = 64  # of a leaf: what one question is about


def asked(nodes, what):
    """(what the home was asked, what the agent was) meanwhile."""
    def served():
        return [statistics(nodes[number].mnt)["nodes"]["served"] for number in (0, 1)]

    before = served()
    what()
    return tuple({op: count - then.get(op, 0) for op, count in now.items() if count != then.get(op, 0)}
                 for then, now in zip(before, served()))


def agent_of(cluster, agents, content):
    nodes = cluster(2, "timeout=0,unit=4K")
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(1), cpu=False)
    assert program.acquired() == content
    program.acquire()
    return nodes, program


@pytest.mark.parametrize("tail", [0, 100])
def test_pages_that_did_not_change(cluster, agents, tail):
    """Written again as they were: their digests say so. The page in which the file ends, too."""
    content = pattern(PAGES * PAGE - tail)
    nodes, program = agent_of(cluster, agents, content)
    fd = os.open(nodes.path(0), os.O_RDWR)
    assert os.pwrite(fd, content, 0) == len(content)
    home, agent = asked(nodes, program.acquire)
    assert home["acquire"] == 1 and agent == {"digests": 1}
    assert asked(nodes, lambda: program.agent(f"map[:{len(content)}]")) == ({}, {})
    # One of them has changed: it is dropped, and the others stay.
    assert os.pwrite(fd, content, 0) == len(content)
    assert os.pwrite(fd, bytes([content[7 * PAGE] ^ 1]), 7 * PAGE) == 1
    home, agent = asked(nodes, program.acquire)
    assert home["acquire"] == 1 and agent == {"digests": 1, "drop": 1}
    os.close(fd)
    expected = bytearray(content)
    expected[7 * PAGE] ^= 1
    assert program.agent(f"map[:{len(content)}]") == expected


@pytest.mark.traps  # what is mapped on another is placed as a whole
def test_a_page_comes_along_with_its_placement(cluster, agents):
    """To read it from the home would be a round trip more. Several at a time are read."""
    nodes = cluster(2, "timeout=0,unit=4K")
    content = pattern(PAGES * PAGE - 100)
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(1), cpu=False)
    program.agent.do("map.advise(gaia.ADV_RANDOM)")
    pages = [*range(PAGES - 1, -1, -2)] + [*range(0, PAGES, 2)]
    _, agent = asked(nodes, lambda: program.agent.do("seen = {page: map[page * PAGE:(page + 1) * PAGE] for page in pages}", pages=pages))
    assert agent["place"] == PAGES
    assert statistics(nodes[1].mnt)["nodes"]["transfers"]["reads"] == 0
    assert program.agent(f"b''.join(seen[page] for page in range({PAGES}))")[:len(content)] == content


def test_first_stores(cluster, agents):
    """Twins of pages that are stored to one after another are asked for as long runs, and each page has its own."""
    content = pattern(4 * PAGES * PAGE)
    nodes, program = agent_of(cluster, agents, content)
    _, agent = asked(nodes, lambda: program.agent.do(f"for page in range({4 * PAGES}): map[page * PAGE] = 1"))
    assert 0 < agent["fetch"] < PAGES / 2
    expected = bytearray(content)
    expected[::PAGE] = b"\1" * (4 * PAGES)
    fd = os.open(nodes.path(0), os.O_RDWR)
    for page in range(4 * PAGES):
        assert os.pwrite(fd, b"c", page * PAGE + 9) == 1
        expected[page * PAGE + 9] = ord("c")
    os.close(fd)
    program.release()
    with open(nodes.path(0), "rb") as file:
        assert file.read() == expected


@pytest.mark.parametrize("before", ["nothing", "a release", "what a CPU wrote", "a device of the home"])
def test_what_was_released_is_asked_for_once(cluster, agents, before):
    """The home looks at it as it is released, and has it then."""
    content = bytearray(pattern(4 * PAGES * PAGE))
    nodes, program = agent_of(cluster, agents, bytes(content))
    chosen = [*range(7, 40), 100, 255]

    def store(value):
        program.agent.do("for page in chosen: map[page * PAGE + 5] = value", chosen=chosen, value=value)
        for page in chosen:
            content[page * PAGE + 5] = value

    with open(nodes.path(0), "r+b", buffering=0) as file:
        fd = file.fileno()
        if before == "a release":
            store(2)
            program.release()
        store(1)
        if before == "what a CPU wrote":
            for page in chosen[::2]:
                assert os.pwrite(fd, b"c", page * PAGE + 9) == 1
                content[page * PAGE + 9] = ord("c")
        if before == "a device of the home":
            other = Program(agents(), nodes.path(0), cpu=False)
            other.agent.do("for page in chosen[1::2]: map[page * PAGE + 7] = 9\nmap.release()", chosen=chosen)
            for page in chosen[1::2]:
                content[page * PAGE + 7] = 9
        _, agent = asked(nodes, program.release)
        assert 5 <= agent["fetch"] <= 8  # a page of which nothing was stored is looked at with those beside it
        collects = device_statistics(nodes[0].mnt, "node:0")["collects"]
        assert collects >= len(chosen)
        got = []
        assert asked(nodes, lambda: got.append(os.pread(fd, len(content), 0))) == ({}, {})
        assert got == [content]
        assert device_statistics(nodes[0].mnt, "node:0")["collects"] == collects
