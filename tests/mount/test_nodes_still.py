# SPDX-License-Identifier: Apache-2.0
"""Nodes that stand still together, for longer than peer_timeout, as in a container that is frozen: none takes another for dead,
but one that is. And what others did meanwhile, who have to."""
import contextlib
import errno
import os
import signal
import time
from random import Random

import pytest

from files import pattern
from helpers import PAGE, agents, error_of, forget_inodes, read_file, stand_still, statistics, wait_until  # noqa: F401
from nodes import (SIDES, TAKEN_OVER, Program, all_see, check, cluster, served, tracked)  # noqa: F401

TIMEOUT_S = 1
STILL_S = 2.5 * TIMEOUT_S
PATIENCE_S = 3 * TIMEOUT_S + 4  # what is promised, on a machine that is busy with other things
# Of the log of a home that stood still, where others have changed a file meanwhile.
LOST = "what programs had stored to it through mappings and not synced"


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


# --- a third one goes on alone ------------------------------------------------------------------------------------------------

class Three:
    """Programs of a file's home and of an agent, and the third node, where nobody has the file open."""

    def __init__(self, nodes, agents):  # noqa: F811
        self.nodes = nodes
        self.content = bytearray(pattern(16 * PAGE))
        nodes.make(self.content, home=0)
        self.programs = [Program(agents(), nodes.path(number)) for number in range(2)]
        for at, program in enumerate(self.programs):
            store_and_release(program, self.content, at, b"before")
        self.settled = False
        self.each_reads_all()
        for program in self.programs:
            program.fsync()
        self.each_reads_all()  # the kernels have all pages, and all of them clean

    def each_reads_all(self):
        for program in self.programs:
            check("read()", program.read(), self.content)
            check("load()", program.load(), self.content)

    def put(self, at, data):
        self.content[at:at + len(data)] = data

    @contextlib.contextmanager
    def standing_still(self, seconds=0, order=(0, 1)):
        """So long; or until the third takes both to be dead, which knows nothing of the file any more, if it did."""
        if not seconds:
            forget_inodes()
            wait_until(lambda: not statistics(self.nodes[2].mnt)["nodes"]["far_files"], what="the third has forgotten the file")
        for number in order:
            stand_still(self.nodes[number].pid)
        try:
            time.sleep(seconds)
            if not seconds:
                wait_until(lambda: self.downs() == [True, True], PATIENCE_S, "both are taken to be dead")
            yield
        finally:
            for number in order:
                go_on(self.nodes[number])

    def downs(self):
        return [other["down"] for other in statistics(self.nodes[2].mnt)["nodes"]["nodes"][:2]]

    def write_alone(self, at, data):
        """By the third: it is on storage."""
        with open(self.nodes.path(2), "r+b", buffering=0) as file:
            assert os.pwrite(file.fileno(), data, at) == len(data)
            os.fsync(file.fileno())
        self.put(at, data)
        assert not tracked(self.nodes[2])

    def all_agree(self):
        """By the descriptors and mappings of before: soon, and then for good."""
        wanted = bytes(self.content)
        wait_until(lambda: all(p.read() == p.load() == wanted for p in self.programs), PATIENCE_S, "all read the same")
        all_see({"home": self.programs[0], "agent": self.programs[1]}, self.content)
        check("the third", read_file(self.nodes.path(2)), wanted)


def come_again(programs, at, data):
    """What was lost is said until it does, by the end of the mount, too; and each failed sync once to everybody."""
    for program in programs:
        program.write(at, data)
    wait_until(lambda: not any([error_of(program.fsync) for program in programs]), what="nothing is lost any more")


@pytest.fixture
def three(cluster, agents):  # noqa: F811
    one = Three(cluster(3, f"timeout=0,peer_timeout={TIMEOUT_S}"), agents)
    yield one
    for program in one.programs:
        program.agent.kill()


@pytest.mark.parametrize("first", SIDES)
def test_a_third_writes_alone(three, first):
    with three.standing_still(order=(0, 1) if first == "home" else (1, 0)):
        three.write_alone(5 * PAGE + 7, b"alone")
        three.write_alone(9 * PAGE - 3, b"in two pages")
    three.all_agree()
    for number, program in enumerate(three.programs):  # maps and files of before go on
        store_and_release(program, three.content, 5 + number, b"device")
        program.write((5 + number) * PAGE + 100, b"write")
        three.put((5 + number) * PAGE + 100, b"write")
        program.store((5 + number) * PAGE + 200, b"store")
        three.put((5 + number) * PAGE + 200, b"store")
        program.fsync()
    three.all_agree()
    assert not any(TAKEN_OVER in m.log_text() for m in three.nodes)
    check("the data directory", read_file(three.nodes.below()), three.content)


def test_who_writes_again_reads_what_a_third_has_written(three, agents):  # noqa: F811
    """At once: a write() waits until its home is sure again, and what was from before is dropped by then. Much of it is."""
    size = 64 << 20
    three.nodes.make(bytes(size), name="large", home=0)
    programs = [Program(agents(), three.nodes.path(number, "large"), device=None) for number in range(2)]
    first = Program(agents(), three.nodes.path(0, "large"), length=PAGE)  # it is tracked
    for program in programs:
        program.agent.do("assert not any(cpu[::4096])")
        program.store(8 * PAGE, b"stored")
    with three.standing_still():
        with open(three.nodes.path(2, "large"), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"alone", size - PAGE)
        for number, program in enumerate(programs):
            program.agent.start("os.pwrite(fd, b'w', at)\ngot = os.pread(fd, 5, size - 4096), cpu[size - 4096:size - 4091]",
                                at=number * PAGE, size=size)
    for program in programs:
        program.agent.finish()
    assert [program.agent("got") for program in programs] == [(b"alone", b"alone")] * 2
    come_again(programs, 0, bytes(4 << 20))  # a kernel writes back many pages as one
    for program in programs + [first]:
        program.agent.kill()


@pytest.mark.parametrize("seed", range(2))
def test_a_third_writes_alone_again_and_again(three, seed):
    """Beside all kinds of stores, each to bytes of its own: only those through mappings may be lost, and no other is undone."""
    random = Random(seed)
    pages = [bytes([32 + page]) for page in range(16)]
    for turn in range(3):
        stores = []
        for number, program in enumerate(three.programs):
            for page in random.sample(range(16), 6):
                at = page * PAGE + 100 * (number + 1) + 16 * turn
                program.store(at + 1000, b"mapping")
                stores.append((at + 1000, b"mapping"))
                program.write(at + 2000, b"write")
                three.put(at + 2000, b"write")
                program.device_store(at + 3000, b"device")
                three.put(at + 3000, b"device")
            program.release()
        with three.standing_still(order=random.sample(range(2), 2)):
            for page in random.sample(range(16), 8):
                three.write_alone(page * PAGE + 16 * turn, b"alone" + pages[page])
        for program in three.programs:
            error_of(program.fsync)  # the stores may be lost
        for program in three.programs:
            error_of(program.acquire)
        got = three.programs[0].read()
        for at, data in stores:
            assert got[at:at + len(data)] in (data, bytes(three.content[at:at + len(data)]))
            three.put(at, got[at:at + len(data)])
        three.all_agree()
        check("the data directory", read_file(three.nodes.below()), three.content)
    come_again(three.programs, 0, bytes(three.content))


def test_only_what_a_third_has_changed_is_dropped(three, agents):  # noqa: F811
    """Of another file no page, and no store."""
    content = bytearray(pattern(8 * PAGE))
    three.nodes.make(content, name="g", home=0)
    other = Program(agents(), three.nodes.path(0, "g"))
    check("load()", other.load(), content)
    other.store(3 * PAGE, b"stored")
    content[3 * PAGE:3 * PAGE + 6] = b"stored"
    with three.standing_still():
        three.write_alone(5 * PAGE + 7, b"alone")
        with open(three.nodes.path(2, "g"), "rb") as file:
            check("the third", file.read(), pattern(8 * PAGE))
    three.all_agree()
    assert other.agent("pages_held(cpu)") == 8
    other.fsync()
    assert other.agent("pages_held(cpu)") == 8
    check("load()", other.load(), content)
    check("the data directory", read_file(three.nodes.below("g")), content)
    other.agent.kill()


def test_what_was_changed_alone_before_a_node_comes(cluster, agents):  # noqa: F811
    """It may have been cut off for a while from a home that has not stood still: here somebody else has changed the file."""
    nodes = cluster(3, f"timeout=0,peer_timeout={TIMEOUT_S}", only=[0, 1])
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    programs = [Program(agents(), nodes.path(number)) for number in range(2)]
    for number, program in enumerate(programs):
        check("load()", program.load(), content)
        program.store(2 * PAGE + 100 * number, b"stored")
    with open(nodes.below(), "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"alone", 5 * PAGE)
    content[5 * PAGE:5 * PAGE + 5] = b"alone"
    for number in range(2):
        content[2 * PAGE + 100 * number:2 * PAGE + 100 * number + 6] = b"stored"
    nodes.mount(2)
    wait_until(lambda: all(p.read() == p.load() == bytes(content) for p in programs), PATIENCE_S, "they read it")
    for program in programs:
        program.fsync()
        program.agent.kill()


def test_the_other_of_two_writes_alone(cluster, agents):  # noqa: F811
    """Only the home stands still, and the agent has the file open no more."""
    nodes = cluster(2, f"timeout=0,peer_timeout={TIMEOUT_S}")
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(0))
    check("load()", program.load(), content)
    stand_still(nodes[0].pid)
    try:
        wait_until(lambda: statistics(nodes[1].mnt)["nodes"]["nodes"][0]["down"], PATIENCE_S, "the home is down")
        with open(nodes.path(1), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"alone", 5 * PAGE)
    finally:
        go_on(nodes[0])
    content[5 * PAGE:5 * PAGE + 5] = b"alone"
    wait_until(lambda: program.load() == program.read() == bytes(content), PATIENCE_S, "it is read")


@pytest.mark.parametrize("size", [3 * PAGE + 100, 20 * PAGE])
def test_a_third_makes_a_file_shorter_or_longer_alone(three, size):
    with three.standing_still():
        with open(three.nodes.path(2), "r+b", buffering=0) as file:
            file.truncate(size)
            os.fsync(file.fileno())
        three.content = bytearray(bytes(three.content[:size]).ljust(size, b"\0"))
        three.write_alone(size - 50, b"end")
    wait_until(lambda: all(p.read() == bytes(three.content) and p.size() == size for p in three.programs), PATIENCE_S, "its end")
    assert [program.load(end=min(size, 16 * PAGE)) for program in three.programs] == [bytes(three.content[:16 * PAGE])] * 2


@pytest.mark.one_of(4)
@pytest.mark.parametrize("gone", ["storing on", "forgotten", "writing on", "killed"])
def test_a_third_that_has_written_alone_and(three, agents, gone):  # noqa: F811
    """It does not know any more that it has; or goes on and on while it meets the others again: what it has stored stays, too."""
    with three.standing_still():
        three.write_alone(5 * PAGE + 7, b"alone")
        if gone == "forgotten":
            forget_inodes()
        elif gone == "killed":
            three.nodes[2].kill()
        else:
            third = Program(agents(), three.nodes.path(2), device=None)
            third.agent.do("from time import monotonic\nturn = 0")
            third.agent.start("end = monotonic() + long\nwhile monotonic() < end:\n    turn += 1\n    " +
                              ("os.pwrite(fd, b'%09d' % turn, at)" if gone == "writing on" else "cpu[at:at + 9] = b'%09d' % turn"),
                              at=7 * PAGE, long=4 * TIMEOUT_S)
            time.sleep(0.2)
    if gone.endswith("on"):
        assert not third.agent.busy(4 * TIMEOUT_S + PATIENCE_S)  # nobody waits for each other
        third.agent.finish()
        third.fsync()
        three.put(7 * PAGE, b"%09d" % third.agent("turn"))
        check("the third", third.read(), three.content)
    if gone == "killed":
        wait_until(lambda: all(p.read() == p.load() == bytes(three.content) for p in three.programs), PATIENCE_S, "both read it")
    else:
        three.all_agree()


def test_devices_stores_beside_what_a_third_writes_alone(three):
    """Released or not, they stay, byte by byte."""
    for number, program in enumerate(three.programs):
        program.device_store(5 * PAGE + 100 * number, b"released")
        program.release()
        program.device_store(6 * PAGE + 100 * number, b"stored")
    with three.standing_still():
        three.write_alone(5 * PAGE + 50, b"alone")
        three.write_alone(6 * PAGE + 50, b"alone")
    for number, program in enumerate(three.programs):
        three.put(5 * PAGE + 100 * number, b"released")
        three.put(6 * PAGE + 100 * number, b"stored")
        program.release()
    three.all_agree()


@pytest.mark.parametrize("when", ["before", "while"])
def test_stores_through_mappings_beside_what_a_third_writes_alone(three, when):
    """What nobody has synced is lost, as always when others go on alone, and fsync() says so, an acquire, too, and the log; what
    the third has on storage is not undone by the pages that hold it."""
    def store():
        for number, program in enumerate(three.programs):
            for page in 5, 8 + number:
                program.store(page * PAGE + 200 + 100 * number, b"stored")
    if when == "before":
        store()
    with three.standing_still():
        three.write_alone(5 * PAGE + 7, b"alone")
        three.write_alone(8 * PAGE + 7, b"alone")
        three.write_alone(9 * PAGE + 7, b"alone")
        if when == "while":
            store()
    for program in three.programs:
        program.agent.start("os.fsync(fd)")
    for program in three.programs:
        assert error_of(program.agent.finish) == errno.EIO
    assert [error_of(program.acquire) for program in three.programs] == [errno.EIO] * 2
    three.all_agree()
    check("the data directory", read_file(three.nodes.below()), three.content)
    wait_until(lambda: LOST in three.nodes[0].log_text(), what="the log says so")  # when all files were looked at
    come_again(three.programs, 0, bytes(three.content))
    for number, program in enumerate(three.programs):  # and what is stored from now on stays
        program.store((11 + number) * PAGE, b"stored")
        three.put((11 + number) * PAGE, b"stored")
        program.fsync()
    three.all_agree()
    check("the data directory", read_file(three.nodes.below()), three.content)


def test_writes_that_wait_beside_what_a_third_writes_alone(three):
    """write() is no store through a mapping: no byte of it is lost, nor any beside it."""
    with three.standing_still():
        for number, program in enumerate(three.programs):
            program.agent.start("os.pwrite(fd, data, at)", data=b"waits", at=5 * PAGE + 100 * (number + 1))
        three.write_alone(5 * PAGE + 7, b"alone")
    for number, program in enumerate(three.programs):
        program.agent.finish()
        three.put(5 * PAGE + 100 * (number + 1), b"waits")
    three.all_agree()
    for program in three.programs:
        program.fsync()
    check("the data directory", read_file(three.nodes.below()), three.content)


@pytest.mark.parametrize("third", ["goes on", "is not there", "stands still, too"])
def test_nothing_was_changed_meanwhile(three, third):
    """No page is dropped, no byte read anew, and no store lost."""
    if third == "is not there":
        three.nodes[2].kill()
    for number, program in enumerate(three.programs):
        program.store((5 + number) * PAGE + 200, b"stored")
        three.put((5 + number) * PAGE + 200, b"stored")
    if third == "stands still, too":
        stand_still(three.nodes[2].pid)
    with three.standing_still(STILL_S):
        pass
    if third == "stands still, too":
        go_on(three.nodes[2])
    elif third == "goes on":
        all_have_met(three.nodes)
    for program in three.programs:
        program.fsync()
    time.sleep(1.5 * TIMEOUT_S)
    held, reads = pages_and_reads(three)
    assert held == [15, 15]  # but for those that the other one has stored to
    for program in three.programs:
        check("load()", program.load(), three.content)
    assert pages_and_reads(three) == ([16, 16], reads + 1)
    assert LOST not in three.nodes[0].log_text()
    check("the data directory", read_file(three.nodes.below()), three.content)


def pages_and_reads(three):
    return [program.agent("pages_held(cpu)") for program in three.programs], served(three.nodes[0], "read")


def all_have_met(nodes):
    wait_until(lambda: not any(other["down"] for m in nodes for other in statistics(m.mnt)["nodes"]["nodes"]), 15, "all have met")


def test_a_store_is_not_lost_where_nobody_went_on_alone(three):
    """They stood still for a shorter time than others wait; that the file was changed behind them before is no reason."""
    three.programs[0].store(5 * PAGE + 200, b"stored")
    three.put(5 * PAGE + 200, b"stored")
    os.utime(three.nodes.below(), ns=(1, 1))
    with three.standing_still(0.6 * TIMEOUT_S):
        pass
    for program in three.programs:
        program.fsync()
    three.all_agree()
    check("the data directory", read_file(three.nodes.below()), three.content)


@pytest.mark.parametrize("by", SIDES)
def test_a_store_is_not_lost_where_an_attribute_was_changed_before(three, by):
    """That moves the file's times, too, and nobody tells the home of it; and a member that is not there may have gone on alone."""
    three.nodes[2].kill()
    for number, program in enumerate(three.programs):
        program.store((5 + number) * PAGE + 200, b"stored")
        three.put((5 + number) * PAGE + 200, b"stored")
    os.chmod(three.nodes.path(SIDES.index(by)), 0o640)
    time.sleep(3 * TIMEOUT_S)  # longer than clocks may be apart
    with three.standing_still(STILL_S):
        pass
    for program in three.programs:
        program.fsync()
    check("the data directory", read_file(three.nodes.below()), three.content)
    assert LOST not in three.nodes[0].log_text()
    for program in three.programs:
        program.acquire()
    all_see({"home": three.programs[0], "agent": three.programs[1]}, three.content)


def test_no_page_is_dropped_where_all_is_well(three):
    """Not at each beat, and not as a member comes again."""
    before = pages_and_reads(three)
    three.nodes[2].kill()
    time.sleep(STILL_S)
    three.nodes.mount(2)
    all_have_met(three.nodes)
    time.sleep(TIMEOUT_S)
    assert pages_and_reads(three) == before
