# SPDX-License-Identifier: Apache-2.0
"""A node that stood still for longer than others wait, and goes on: until it has heard who is the home of what, it does nothing to
a file that another node may have taken over, or begun to track, meanwhile."""
import contextlib
import errno
import os
import signal
import socket
import time

import pytest

from files import pattern
from helpers import PAGE, ROWS, AgentDied, daemon_with_faults, agents, error_of, read_file, stand_still, standing_still, states_of, statistics, wait_until, write_file  # noqa: F401
from member import OPS, Member
from nodes import TAKEN_OVER, Program, check, cluster, taken_for_dead  # noqa: F401

TIMEOUT_S = 1
OPTIONS = f"timeout=0,peer_timeout={TIMEOUT_S}"
GIVEN_UP_S = 2.5 * TIMEOUT_S
AT = 3 * PAGE + 10


def two_nodes(cluster, home):
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=home)
    return nodes, content


def sync(program):
    """Once or twice EIO: what the home from before had may be lost."""
    wait_until(lambda: error_of(program.agent, "os.fsync(fd)") == 0)


def both_agree(nodes, a, b, content):
    """Soon: what is read on either node is what is in the data directory."""
    wait_until(lambda: a.read() == b.read(), 10, "both read the same")
    sync(b)
    check("the data directory", read_file(nodes.below()), b.read())
    check("read()", b.read(), content)


def end(*programs):
    for program in programs:
        program.agent.kill()


# What has the home take what devices have released, to the data directory.
COLLECTS = {"read": "os.pread(fd, 10, at)", "sync": "os.fsync(fd)", "seek": "os.lseek(fd, 0, os.SEEK_DATA)",
            "touch": "second[at]", "advice": "first.advise(gaia.ADV_DONTNEED)", "release": "second.release()",
            "unmap": "(first.unmap(), second.unmap())"}


@pytest.mark.parametrize("how", COLLECTS)
def test_what_had_been_released_does_not_undo_what_was_written_since(cluster, agents, how):
    nodes, content = two_nodes(cluster, home=0)
    a, b = Program(agents(), nodes.path(0), device=None), Program(agents(), nodes.path(1), device=None, cpu=False)
    a.agent.do("first, second = (gaia.Device(f'soft:{number}').mmap(fd, length) for number in range(2))", at=AT)
    check("read()", b.read(), content)
    a.agent.do("first[at:at + 8] = b'released'\nfirst.release()")
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        a.agent.start(f"outcome = error_of(lambda: {COLLECTS[how]})")
        b.write(AT, b"taken over")
        sync(b)
    content[AT:AT + 10] = b"taken over"
    with contextlib.suppress(AgentDied):  # a touch whose home has gone
        a.agent.finish()
    wait_until(lambda: TAKEN_OVER in nodes[0].log_text(), 10)
    check("read()", b.read(), content)
    check("the data directory", read_file(nodes.below()), content)
    end(a, b)


def test_a_daemon_that_is_told_to_end_as_it_goes_on(cluster, agents):
    """SIGTERM and SIGCONT, as service managers send them to what stands still."""
    nodes, content = two_nodes(cluster, home=0)
    a, b = Program(agents(), nodes.path(0), cpu=False), Program(agents(), nodes.path(1), device=None, cpu=False)
    check("read()", b.read(), content)
    a.device_store(AT, b"released")
    a.release()
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        b.write(AT, b"taken over")
        sync(b)
        os.kill(nodes[0].pid, signal.SIGTERM)
    content[AT:AT + 10] = b"taken over"
    nodes[0].expected_exit = None
    nodes[0].proc.wait(60)
    sync(b)
    check("read()", b.read(), content)
    check("the data directory", read_file(nodes.below()), content)
    end(a, b)


def test_a_copy_is_made_at_the_next_home(cluster, agents):
    nodes, content = two_nodes(cluster, home=0)
    write_file(nodes.path(0, "source"), b"s" * PAGE)
    a, b = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(1), device=None)
    a.agent.do("source = os.open(path, os.O_RDONLY)", path=nodes.path(0, "source"))
    a.device_load()
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        a.agent.start("copied = os.copy_file_range(source, fd, 4096, 0, 3 * 4096)")
        b.write(AT, b"taken over")
        sync(b)
        check("load()", b.load(AT, AT + 10), b"taken over")
    a.agent.finish()
    assert a.agent("copied") == PAGE
    content[3 * PAGE:4 * PAGE] = b"s" * PAGE
    wait_until(lambda: TAKEN_OVER in nodes[0].log_text(), 10)
    both_agree(nodes, a, b, content)
    check("load()", b.load(), content)
    end(a, b)


# --- files that nobody tracked before --------------------------------------------------------------------------------------------

UNTRACKED = {"flush": "cpu.flush()", "sync": "os.fsync(fd)", "write": "os.pwrite(fd, b'late', 5 * 4096)",
             "truncate": "os.ftruncate(fd, 5 * 4096)", "copy": "os.copy_file_range(source, fd, 4096, 0, 5 * 4096)",
             "punch": "fallocate(fd, 3, 5 * 4096, 4096)"}


@pytest.mark.parametrize("how", UNTRACKED)
def test_what_is_tracked_since(cluster, agents, how):
    """Whose home nobody has told it of: another node's device has released, and synced, what is in the same pages."""
    nodes, content = two_nodes(cluster, home=1)
    write_file(nodes.path(0, "source"), b"s" * PAGE)
    a = Program(agents(), nodes.path(0), device=None)
    a.agent.do("source = os.open(path, os.O_RDONLY)\nlibc = ctypes.CDLL(None, use_errno=True)\n"
               "def fallocate(fd, mode, offset, length):\n"
               "    return libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length))",
               path=nodes.path(0, "source"))
    check("load()", a.load(), content)
    stores = how in ("flush", "sync")
    if stores:
        a.store(3 * PAGE + 1000, b"stored")
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        a.agent.start(f"outcome = error_of(lambda: {UNTRACKED[how]})")
        b = Program(agents(), nodes.path(1))
        for page in 3, 5:
            b.device_store(page * PAGE + 10, b"device")
            content[page * PAGE + 10:page * PAGE + 16] = b"device"
        b.release()
        sync(b)
        check("load()", b.load(), content)
    a.agent.finish()
    assert a.agent("outcome") in ((0, errno.EIO) if stores else (0, ))
    if how == "write":
        content[5 * PAGE:5 * PAGE + 4] = b"late"
    elif how == "truncate":
        del content[5 * PAGE:]
    elif how == "copy":
        content[5 * PAGE:6 * PAGE] = b"s" * PAGE
    elif how == "punch":
        content[5 * PAGE:6 * PAGE] = bytes(PAGE)
    both_agree(nodes, a, b, content)
    b.acquire()
    check("the device", b.device_load(end=len(content)), content)
    end(a, b)


def test_what_is_tracked_meanwhile_by_who_waits(cluster, agents):
    """It stood still for half of the time, and the home waits for its answer: nothing is lost, and nobody waits for long."""
    nodes = cluster(2, f"timeout=0,peer_timeout={4 * TIMEOUT_S}")
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=1)
    a, b = Program(agents(), nodes.path(0), device=None), Program(agents(), nodes.path(1), device=None)
    a.store(AT, b"stored")
    content[AT:AT + 6] = b"stored"
    with standing_still(nodes[0].pid):
        b.agent.start("map = gaia.Device('soft:0').mmap(fd, length)")
        time.sleep(2.4 * TIMEOUT_S)
        assert b.agent.busy(0)
    assert not b.agent.busy(3 * TIMEOUT_S)
    b.agent.finish()
    check("the device", b.device_load(end=len(content)), content)
    assert error_of(a.agent, "os.fsync(fd)") == 0
    end(a, b)


def beside_a_member(nodes, agents, **more):
    """(a file's content, its path below, a program of node 0 that has it open, the member that is its home)"""
    nodes.mount(0, **more)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=1)
    return content, nodes.below(), Program(agents(), nodes.path(0), device=None), Member(nodes.peers)


def test_who_told_of_a_file_may_have_given_up_since(cluster, agents):
    """What a home had told is there when the node goes on, and the home may be one that nobody hears any more, which takes the node to
    be dead, and whose devices store: nothing is written back before the home has said that it is not so."""
    nodes = cluster(2, f"timeout=0,peer_timeout={4 * TIMEOUT_S}", only=[])
    content, path, a, home = beside_a_member(nodes, agents)
    try:
        wait_until(lambda: meets(nodes[0], "b"), 10)
        a.store(AT, b"stored")
        with standing_still(nodes[0].pid):
            home.start("take_over", path)
            time.sleep(2.4 * TIMEOUT_S)
            stand_still(home.proc.pid)
        time.sleep(0.5 * TIMEOUT_S)
        check("the data directory", read_file(path), content)
        os.kill(home.proc.pid, signal.SIGCONT)
        assert int(home.proc.stdout.readline()) == 0
        content[AT:AT + 6] = b"stored"
        check("the data directory", read_file(path), content)
    finally:
        home.kill()
        end(a)


def test_who_stands_still_as_it_writes_back_what_a_home_waits_for(cluster, agents, workdir, monkeypatch):
    """The home has given it up meanwhile: but for what it was just writing nothing is written before that is known."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, f"timeout=0,peer_timeout={4 * TIMEOUT_S}", only=[])
    content, path, a, home = beside_a_member(nodes, agents, env=env)
    try:
        wait_until(lambda: meets(nodes[0], "b"), 10)
        for page in 1, 5:
            a.store(page * PAGE, b"stored")
        plan.arm_wait(ROWS.index("pwrite64"), 700, 1, 0)
        home.start("take_over", path)
        wait_until(lambda: plan.landed == 1, 10, "it is being written back")
        try:
            os.kill(nodes[0].pid, signal.SIGSTOP)
            wait_until(lambda: states_of(nodes[0].pid) == {"T", "D"}, 10, "it stands still, but for who waits in the kernel")
            content[PAGE:PAGE + 6] = b"stored"
            time.sleep(2.4 * TIMEOUT_S)
            stand_still(home.proc.pid)
        finally:
            os.kill(nodes[0].pid, signal.SIGCONT)
        wait_until(lambda: read_file(path)[PAGE:PAGE + 6] == b"stored", 10)
        time.sleep(0.5 * TIMEOUT_S)
        check("the data directory", read_file(path), content)
        os.kill(home.proc.pid, signal.SIGCONT)
        assert int(home.proc.stdout.readline()) == 0
        content[5 * PAGE:5 * PAGE + 6] = b"stored"
        check("the data directory", read_file(path), content)
    finally:
        home.kill()
        end(a)


def test_a_change_beside_what_the_node_is_just_told_of(cluster, agents):
    """As soon as it knows who has become the home a program's change goes there; what its kernel has from before does not."""
    nodes = cluster(2, OPTIONS, only=[])
    _, _, a, home = beside_a_member(nodes, agents)
    try:
        wait_until(lambda: meets(nodes[0], "b"), 10)
        a.store(AT, b"stored")
        with standing_still(nodes[0].pid):
            met = home.do("asked", OPS["NODE_HELLO"])
            home.do("give_up")
            home.do("pause", OPS["NODE_HELLO"], 3000)
            home.do("pause", OPS["NODE_OPEN"], -1000)
            time.sleep(GIVEN_UP_S)
        wait_until(lambda: home.do("asked", OPS["NODE_HELLO"]) > met, 10, "it meets the home anew")
        home.start("take_over", nodes.below())
        time.sleep(0.3)
        a.agent.start("outcome = error_of(lambda: os.ftruncate(fd, 7 * PAGE))")
        assert int(home.proc.stdout.readline()) == 0
        a.agent.finish()
        assert a.agent("outcome") == 0 and home.do("asked", OPS["NODE_TRUNCATE"]) == 1
        assert home.do("asked", OPS["NODE_WRITE"]) == 0
    finally:
        home.kill()
        end(a)


def test_a_map_waits_until_it_is_known_who_is_the_home(cluster, agents, workdir, monkeypatch):
    """The first member of the list was not there, and another has become the home: it stays so, with what was released there, also
    where it takes a while until the two have met."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, OPTIONS, only=[])
    nodes.mount(0, env=env)
    nodes.mount(1)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    a = Program(agents(), nodes.path(0), device=None, cpu=False)
    a.agent.do("dev = gaia.Device('soft:0')")
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        plan.arm_wait(ROWS.index("connect"), 700, 1, 0)
        b = Program(agents(), nodes.path(1))
        b.device_store(AT, b"released")
        b.release()
        a.agent.start("map = dev.mmap(fd, length)")
    content[AT:AT + 8] = b"released"
    a.agent.finish()
    check("the device of who stood still", a.acquired(), content)
    b.acquire()
    for name, program in ("who stood still", a), ("the home", b):
        check(f"read() of {name}", program.read(), content)
    assert TAKEN_OVER not in nodes[1].log_text()
    sync(b)
    check("the data directory", read_file(nodes.below()), content)
    end(a, b)


# --- twice -----------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def silent():
    """The address of a member that lets nobody in and says nothing, so that it takes a while to know who is there."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = f"gaiafs-test-{os.getpid()}-zombies-silent"
    one.bind("\0" + name)
    one.listen(1000)
    yield f"/S@local:{name}"
    one.close()


def meets(m, name):
    """Both ways."""
    return any(other["name"] == name and other["home"] and other["agent"] for other in statistics(m.mnt)["nodes"]["nodes"])


def test_who_stands_still_again_before_all_were_asked(cluster, agents, silent):
    """What a node had asked for that has met it in between, and has given it up since, is not done."""
    nodes = cluster(2, OPTIONS, only=[])
    nodes.peers += silent
    for number in range(2):
        nodes.mount(number)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(content, home=0)
    kept = Program(agents(), nodes.path(0))
    kept.device_load()
    with taken_for_dead(nodes[0], GIVEN_UP_S):
        wait_until(lambda: statistics(nodes[1].mnt)["nodes"]["nodes"][0]["down"], 10)
    wait_until(lambda: meets(nodes[1], "a"), 10)
    b, other = (Program(agents(), nodes.path(1), device=None, cpu=False) for _ in range(2))
    check("read()", b.read(), content)
    with standing_still(nodes[0].pid):
        b.agent.start("os.ftruncate(fd, 4 * 4096)")
        wait_until(lambda: not b.agent.busy(0.1), 15, "it is done at the next home")
        b.agent.finish()
        other.write(5 * PAGE, b"new")
        sync(other)
    content[4 * PAGE:] = bytes(PAGE) + b"new"
    wait_until(lambda: TAKEN_OVER in nodes[0].log_text(), 15)
    check("the data directory", read_file(nodes.below()), content)
    end(kept, b, other)
