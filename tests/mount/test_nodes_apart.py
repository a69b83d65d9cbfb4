# SPDX-License-Identifier: Apache-2.0
"""Nodes that did not hear each other for a while, whose files each took itself for the home of: when they meet again the later home
keeps a file, and what was synced there stays."""
import errno
import os
import signal
import socket
import sys
import threading
import time

import pytest

from files import pattern
from helpers import PAGE, TOP, agents, error_of, read_file, stand_still, standing_still, statistics, wait_until, write_file  # noqa: F401
from nodes import TAKEN_OVER, Program, all_see, check, cluster, home_of, taken_for_dead  # noqa: F401

sys.path.append(os.path.join(TOP, "tests", "kills"))

from links import Links  # noqa: E402

OPTIONS = "timeout=0,peer_timeout=1"
GIVEN_UP_S = 2.5  # one that stands still so long is taken to be dead


def homes_of(path, names):
    """All, in the order in which they become the file's home."""
    order = []
    while len(order) < len(names):
        order.append(home_of(path, [name for name in names if name not in order]))
    return order


def make_with_homes(m, data, names, order, content):
    """A file whose homes in the course of time are those of `order`, a part of names."""
    for number in range(500):
        path = os.path.join(m.mnt, f".{number}")
        write_file(path, content)
        if homes_of(os.path.join(data, f".{number}"), names)[:len(order)] == list(order):
            os.rename(path, os.path.join(m.mnt, "f"))
            return
    pytest.fail("none of 500 files has these homes")


def takes_over(m, b, content):
    """The mount stands still; b goes on, and syncs what it has written since."""
    with taken_for_dead(m, GIVEN_UP_S):
        b.write(PAGE + 7, b"taken over")
        error_of(b.agent, "os.fsync(fd)")  # once EIO: what the home had may be lost
        assert error_of(b.agent, "os.fsync(fd)") == 0
    content[PAGE + 7:PAGE + 17] = b"taken over"


def all_agree(below, a, b, content):
    """Both read the same soon, and see each other's writes; what was synced is in the data directory, also after stores of who held
    the page from before."""
    wait_until(lambda: a.read() == b.read() == bytes(content), 15, "both read what was synced")
    for turn in range(3):
        for number, (one, other) in enumerate(((a, b), (b, a))):
            at = (4 + number) * PAGE + turn * 20
            one.write(at, b"turn %d" % turn)
            one.fsync()
            content[at:at + 6] = b"turn %d" % turn
            check(f"turn {turn}.{number}", other.read(), content)
    a.store(PAGE + 100, b"stored")
    content[PAGE + 100:PAGE + 106] = b"stored"
    a.msync()
    a.fsync()
    with open(below, "rb") as file:
        check("the data directory", file.read(), content)
    for program in a, b:
        program.agent.kill()


@pytest.fixture
def three(cluster, agents):
    """three(only, order) -> (nodes, a's program, b's, the file's content): all have read it, and nothing of it is dirty."""
    def start(only, order, patience_s=(1, 1, 1), more=""):
        nodes = cluster(3, only=[])
        nodes.peers += more
        for number in only:
            nodes.mount(number, f"timeout=0,peer_timeout={patience_s[number]}")
        content = bytearray(pattern(8 * PAGE))
        make_with_homes(nodes[0], nodes.data, nodes.names, order, bytes(content))
        a, b = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(1))
        all_see({"a": a, "b": b}, content)
        for program in a, b:
            program.fsync()
        assert a.load() == bytes(content)  # its kernel has all pages
        return nodes, a, b, content
    return start


@pytest.mark.parametrize("only, order", [([0, 1, 2], "ab"), ([0, 1], "ca")])
def test_a_home_that_stood_still(three, only, order):
    """It is the first of the list, or took the place of one that is not there."""
    nodes, a, b, content = three(only, order)
    takes_over(nodes[0], b, content)
    all_agree(nodes.below(), a, b, content)


def test_a_home_that_stood_still_when_the_first_was_back(three):
    """Which takes the file over, and had been its home before."""
    nodes, a, b, content = three([0, 1, 2], "ca")
    nodes[2].kill()
    time.sleep(2 * GIVEN_UP_S)
    wait_until(lambda: a.read() == b.read() == bytes(content), 10)
    for program in a, b:
        error_of(program.agent, "os.fsync(fd)")
    nodes.mount(2)
    wait_until(lambda: not downs(nodes), 15, "all have met")
    assert a.load() == bytes(content)
    takes_over(nodes[0], b, content)
    all_agree(nodes.below(), a, b, content)


def test_a_home_that_stood_still_when_a_node_had_been_added(mount, workdir, agents):
    """Whose file it is by the new list: it takes it over when its home stands still."""
    data, peers = os.path.join(workdir, "data"), os.path.join(workdir, "peers")
    os.mkdir(data)

    def write_list(names):
        write_file(peers, "".join(f"{name}@local:gaiafs-test-{os.getpid()}-apart-{name}\n" for name in names).encode())

    def one(name):
        return mount(f"node={name},peers={peers},{OPTIONS}", data=data)

    write_list("ab")
    nodes = [one("a"), one("b")]
    content = bytearray(pattern(8 * PAGE))
    make_with_homes(nodes[0], data, "abc", "ca", bytes(content))
    a, b = (Program(agents(), os.path.join(m.mnt, "f")) for m in nodes)
    all_see({"a": a, "b": b}, content)
    for program in a, b:
        program.fsync()
    write_list("abc")
    for m in nodes:
        os.kill(m.pid, signal.SIGHUP)
    for m in nodes:
        wait_until(lambda m=m: "there are 3 nodes now" in m.log_text(), 10)
    one("c")
    all_see({"a": a, "b": b}, content)
    assert a.load() == bytes(content)
    takes_over(nodes[0], b, content)
    all_agree(os.path.join(data, "f"), a, b, content)


WAITING = ["cpu.flush()", "os.fsync(fd)", "os.ftruncate(fd, 4 * 4096)", "os.pwrite(fd, b'late', 3 * 4096)"]


@pytest.mark.parametrize("how, patience_s", [*((how, (1, 1)) for how in WAITING), ("cpu.flush()", (20, 1)), ("os.fsync(fd)", (20, 1))])
def test_what_waited_at_a_home_that_stood_still(three, how, patience_s):
    """It goes on when another is the home: what its kernel has waiting for it is not done over what was synced there. Also
    where by its own peer_timeout it has not stood still for long, but by the other's."""
    waits_while_another_syncs(*three([0, 1], "ab", patience_s), how)


def waits_while_another_syncs(nodes, a, b, _, how):
    for page in range(8):
        a.store(page * PAGE, b"a's store")
    with standing_still(nodes[0].pid):
        a.agent.start(how)
        time.sleep(GIVEN_UP_S)
        for page in range(8):
            b.write(page * PAGE + 100, b"b's write()")
        for expected in errno.EIO, 0, 0:
            assert error_of(b.agent, "os.fsync(fd)") in (expected, 0)
    outcome = error_of(a.agent.finish)
    assert outcome in ((0, errno.EIO) if "fsync" in how or "flush" in how else (0,))
    wait_until(lambda: TAKEN_OVER in nodes[0].log_text(), 10)
    kept = 4 if "truncate" in how else 8
    wait_until(lambda: a.read() == b.read() and len(b.read()) == kept * PAGE, 10, "both read the same")
    b.fsync()
    got = read_file(nodes.below())
    assert got == b.read()
    assert [got[page * PAGE + 100:page * PAGE + 111] for page in range(kept)] == [b"b's write()"] * kept
    assert "late" not in how or got[3 * PAGE:3 * PAGE + 4] == b"late"
    a.write(0, got)  # what its kernel called clean and nobody has was told until it comes again
    assert [error_of(a.agent, "os.fsync(fd)") for _ in range(2)][1] == 0
    for program in a, b:
        program.agent.kill()


@pytest.fixture
def silent():
    """A function: silent(count) -> so many members more, for a list, and before all others in it: whoever connects to one
    hears nothing."""
    sockets = []

    def listen(count):
        for number in range(count):
            sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sockets[-1].bind(f"\0gaiafs-test-{os.getpid()}-silent-{number}")
            sockets[-1].listen(1000)
        return "".join(f"/S{number}@local:gaiafs-test-{os.getpid()}-silent-{number}" for number in range(count))

    yield listen
    for one in sockets:
        one.close()


def test_what_waited_where_many_members_do_not_answer(three, silent):
    """They are met all at once, by a mount, again and again, and by who stood still: one after the other it would take longer than
    a change of a file waits."""
    waits_while_another_syncs(*three([0, 1], "ab", more=silent(24)), "os.fsync(fd)")


def downs(nodes):
    return [(name, other["name"]) for name, m in zip(nodes.names, nodes) for other in statistics(m.mnt)["nodes"]["nodes"]
            if other["down"]]


def test_both_missed_each_other(cluster, agents):
    """One stands still, then the other, as if a cable had been pulled for longer than either tries to meet the other."""
    nodes = cluster(2, OPTIONS)
    content = bytearray(pattern(8 * PAGE))
    nodes.make(bytes(content), home=0)
    a, b = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(1))
    all_see({"a": a, "b": b}, content)
    a.fsync()
    stand_still(nodes[1].pid)
    time.sleep(3.5)  # a has given b up, and tried to meet it
    stand_still(nodes[0].pid)
    os.kill(nodes[1].pid, signal.SIGCONT)
    time.sleep(3.5)  # the same of b
    os.kill(nodes[0].pid, signal.SIGCONT)
    wait_until(lambda: not downs(nodes), 15, "they have met")
    b.write(PAGE + 7, b"taken over")
    error_of(b.agent, "os.fsync(fd)")
    content[PAGE + 7:PAGE + 17] = b"taken over"
    all_agree(nodes.below(), a, b, content)


@pytest.mark.parametrize("delay_s", [0, 0.001])
def test_two_stalls_in_a_row(cluster, delay_s):
    nodes = cluster(2, OPTIONS)
    for _ in range(2):
        stand_still(nodes[0].pid)
        time.sleep(GIVEN_UP_S)
        os.kill(nodes[0].pid, signal.SIGCONT)
        time.sleep(delay_s)
    wait_until(lambda: not downs(nodes), 15, "they have met")


def test_a_node_that_is_restarted_while_it_is_asked_for(cluster, agents):
    """The home is still about what its last session had asked for, and takes no new one: it does so later."""
    nodes = cluster(3, "timeout=0,peer_timeout=20")
    content = bytearray(pattern(8 * PAGE))
    nodes.make(bytes(content), home=0)
    home, old, third = (Program(agents(), nodes.path(number)) for number in range(3))
    all_see({"home": home, "old": old, "third": third}, content)
    stand_still(nodes[2].pid)  # its kernel has the pages: who syncs waits for it
    try:
        old.write(5, b"old")
        content[5:8] = b"old"
        old.agent.start("os.fsync(fd)")
        assert old.agent.busy(0.5)
        nodes[1].kill()
        old.agent.kill()
        timer = threading.Timer(8, os.kill, (nodes[2].pid, signal.SIGCONT))
        timer.start()
        nodes.mount(1)
        timer.join()
    finally:
        os.kill(nodes[2].pid, signal.SIGCONT)
    wait_until(lambda: not downs(nodes), 45, "all have met")
    home.device_store(PAGE + 3, b"released")
    home.release()
    content[PAGE + 3:PAGE + 11] = b"released"
    new = Program(agents(), nodes.path(1), device=None)
    check("the new one", new.read(), content)
    new.store(2 * PAGE + 1, b"store")
    new.msync()
    content[2 * PAGE + 1:2 * PAGE + 6] = b"store"
    check("the home", home.read(), content)
    check("its device", home.acquired(), content)
    for program in home, third, new:
        program.agent.kill()


@pytest.fixture
def networks():
    made = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def links(networks, mount):
    """A function that puts nodes of these names into networks of their own: (the links, the list of members). They are whole again
    before the mounts end."""
    def make(names):
        prefix = f"gaiafs-links-{os.getpid()}"
        networks.append(Links(names, prefix))
        return networks[-1], "/".join(f"{name}@local:{prefix}-{name}" for name in names)

    yield make
    for one in networks:
        one.heal()


def test_a_node_that_hears_of_the_next_home_while_it_opens_the_file_at_the_last_one(links, mount, workdir, agents):
    """Both answer the opens of the third node, the last home first. It must not stay there: the last home gives the file up when it meets
    the next one, and nobody tells of that again."""
    names = "abd"
    net, peers = links(names)
    data = os.path.join(workdir, "data")
    os.mkdir(data)
    options = "timeout=0,peer_timeout=4"

    def inside(name, function, *args):
        with net.inside(name):
            return function(*args)

    def followed():
        return inside("d", statistics, mounts["d"].mnt)["nodes"]["served"].get("follow", 0)

    mounts = {}
    for name in names:
        with net.inside(name):
            mounts[name] = mount(f"node={name},peers={peers},{options}", data=data)
    content = bytearray(pattern(8 * PAGE))
    make_with_homes(mounts["a"], data, names, "ab", content)
    a, b = (inside(name, lambda n=name: Program(agents(), os.path.join(mounts[n].mnt, "f"))) for name in "ab")
    third = inside("d", agents)
    before = followed()
    net.cut = {("a", "b"), ("b", "a")}
    net.break_off("a", "b")
    time.sleep(3)  # in a second b takes a for dead
    net.cut |= {("d", "a"), ("d", "b")}
    opening = threading.Thread(target=third.do, args=("fd = os.open(path, os.O_RDWR)",),
                               kwargs={"path": os.path.join(mounts["d"].mnt, "f"), "length": len(content)})
    opening.start()
    wait_until(lambda: followed() > before, 20, "the next home tells")
    time.sleep(0.3)
    net.cut -= {("d", "a")}
    opening.join()
    net.cut -= {("d", "b")}
    time.sleep(0.3)
    net.cut = set()
    wait_until(lambda: TAKEN_OVER in mounts["a"].log_text(), 15, "the last home gives the file up")
    wait_until(lambda: not error_of(third.do, "dev = gaia.Device('soft:0')\ndev.mmap(fd, length).unmap()"), 10, "it can be mapped")
    wait_until(lambda: not error_of(b.agent, "os.fsync(fd)"), 10, "a sync that is told of nothing any more")
    wait_until(lambda: not error_of(third, "os.fsync(fd)"), 10, "a sync that is told of nothing any more")
    assert third("os.pwrite(fd, b'third', 5)") == 5
    content[5:10] = b"third"
    assert not error_of(third, "os.fsync(fd)")
    check("read()", b.read(), content)
    for program in a.agent, b.agent, third:
        program.kill()


def test_a_home_that_stood_still_while_it_tried_to_meet_the_next_one(links, mount, workdir, agents):
    """What it had begun before is in vain, and says nothing of the other, who has taken its files over and lives: it tries once more
    before it serves what waits. Else a write() is lost under a store of the next home's kernel, which has the page from before."""
    names = "ab"
    net, peers = links(names)
    data = os.path.join(workdir, "data")
    os.mkdir(data)
    mounts, programs = {}, {}
    for name in names:
        with net.inside(name):
            mounts[name] = mount(f"node={name},peers={peers},timeout=0,peer_timeout=2", data=data)
    content = bytearray(pattern(8 * PAGE))
    make_with_homes(mounts["a"], data, names, "ab", content)
    for name in names:
        with net.inside(name):
            programs[name] = Program(agents(), os.path.join(mounts[name].mnt, "f"))
    a, b = programs["a"], programs["b"]
    all_see(programs, content)
    net.cut = {("a", "b")}
    net.break_off("a", "b")
    time.sleep(0.2)  # a begins to meet b
    with standing_still(mounts["a"].pid):
        a.agent.start("os.pwrite(fd, data, at)", data=b"waits", at=5 * PAGE + 100)
        with net.inside("b"):
            wait_until(lambda: statistics(mounts["b"].mnt)["nodes"]["nodes"][0]["down"], 20, "b takes a for dead")
        b.write(6 * PAGE + 7, b"alone")
        wait_until(lambda: not error_of(b.agent, "os.fsync(fd)"), 10, "a sync that is told of nothing any more")
        b.store(5 * PAGE + 200, b"stored")
    time.sleep(0.15)  # it wants to know who lives, and that is under way
    net.break_off("a", "b")
    net.cut = set()
    a.agent.finish()
    content[5 * PAGE + 100:5 * PAGE + 105] = b"waits"
    content[5 * PAGE + 200:5 * PAGE + 206] = b"stored"
    content[6 * PAGE + 7:6 * PAGE + 12] = b"alone"
    for program in b, a:
        wait_until(lambda p=program: not error_of(p.agent, "os.fsync(fd)"), 10, "a sync that is told of nothing any more")
    wait_until(lambda: a.read() == b.read() == bytes(content), 15, "both read what was written")
    check("the data directory", read_file(os.path.join(data, "f")), content)
    for program in a, b:
        program.agent.kill()
