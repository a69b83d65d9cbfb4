# SPDX-License-Identifier: Apache-2.0
"""The members of several nodes: a list in a file, read again at SIGHUP; and what the death of a home costs who had not synced."""
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from files import pattern
from helpers import (PAGE, ROWS, agents, daemon_with_faults, error_of, forget_inodes, read_file, refused_mount, statistics,  # noqa: F401
                     stand_still, standing_still, wait_until, write_file)
from nodes import Program, all_see, cluster, served  # noqa: F401
from test_nodes_apart import make_with_homes
from test_nodes_deaths import OPTIONS, killed  # noqa: F401

# Of another user; says how many bytes it has heard of who connects first.
STRANGER = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind("\\0" + sys.argv[1])
listening.listen()
print("listens", flush=True)
came, _ = listening.accept()
print("heard", len(came.recv(4096)), flush=True)
while True:
    came = listening.accept()
"""

# A program of the node's own user that answers each that comes with what is no HELLO.
BABBLER = """
import socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind("\\0" + sys.argv[1])
listening.listen()
print("listens", flush=True)
while True:
    came, _ = listening.accept()
    came.recv(4096)
    came.send(b"no HELLO")
    came.close()
"""


def make_folder(workdir, name):
    os.mkdir(os.path.join(workdir, name))
    return os.path.join(workdir, name)


def write_list(path, names):
    write_file(path, "".join(f"{name}@local:gaiafs-test-{os.getpid()}-m-{name}\n" for name in names).encode())


def test_a_node_over_another_data_directory(mount, workdir):
    """It is refused. If it was mounted while the other could not say so, both logs do when they meet."""
    peers = os.path.join(workdir, "peers")
    write_list(peers, "ab")
    datas = [os.path.join(workdir, name) for name in ("right", "wrong")]
    for data in datas:
        os.mkdir(data)
    first = mount(f"node=a,peers={peers},timeout=0,peer_timeout=1", data=datas[0])
    with pytest.raises(pytest.fail.Exception) as failed:
        mount(f"node=b,peers={peers},timeout=0,peer_timeout=1", data=datas[1], mnt=make_folder(workdir, "b"))
    assert "meeting the other nodes: node a is mounted over another data directory" in str(failed.value)
    with standing_still(first.pid):
        second = mount(f"node=b,peers={peers},timeout=0,peer_timeout=1", data=datas[1], mnt=os.path.join(workdir, "b"))
    for m, other in (first, "b"), (second, "a"):
        wait_until(lambda m=m, other=other: f"node {other} is mounted over another data directory than this one" in m.log_text(), 15)


def test_a_list_is_read_again(mount, workdir, agents):
    """A node joins and maps what the others have mapped; a list that is not good, or lacks the node itself, changes nothing."""
    data, peers = os.path.join(workdir, "data"), os.path.join(workdir, "peers")
    os.mkdir(data)
    write_list(peers, "ab")
    mounts = [mount(f"node={name},peers={peers},{OPTIONS}", data=data) for name in "ab"]
    content = bytearray(pattern(4 * PAGE))
    for number in range(8):
        write_file(os.path.join(mounts[0].mnt, str(number)), content)
    programs = [Program(agents(), os.path.join(m.mnt, "0")) for m in mounts]

    def hup(word):
        for m in mounts:
            os.kill(m.pid, signal.SIGHUP)
        for m in mounts:
            wait_until(lambda m=m: word in m.log_text(), 10)

    write_list(peers, "b")
    os.kill(mounts[0].pid, signal.SIGHUP)
    wait_until(lambda: "the members stay as they were" in mounts[0].log_text(), 10)
    write_list(peers, "abc")
    hup("there are 3 nodes now")
    mounts.append(mount(f"node=c,peers={peers},{OPTIONS}", data=data))
    programs.append(Program(agents(), os.path.join(mounts[2].mnt, "0")))
    for at, program in enumerate(programs):
        program.device_store(at, b"!")
        program.release()
        content[at] = ord("!")
    all_see({"a": programs[0], "b": programs[1], "c, which came later": programs[2]}, content)
    for program in programs:
        program.agent.kill()


def test_nodes_that_do_not_hear_each_other_while_the_list_is_read_again(mount, workdir, agents):
    """One has the new list, the other has not read it yet, and stands still: they meet all the same. Else each took the other for dead,
    and what was synced by way of one was lost by the other's. A node that mounts must have the list."""
    data, peers = os.path.join(workdir, "data"), os.path.join(workdir, "peers")
    os.mkdir(data)
    write_list(peers, "ab")
    mounts = [mount(f"node={name},peers={peers},{OPTIONS},peer_timeout=1", data=data) for name in "ab"]
    content = bytearray(pattern(4 * PAGE))
    write_file(os.path.join(mounts[0].mnt, "f"), content)
    programs = [Program(agents(), os.path.join(m.mnt, "f")) for m in mounts]
    write_list(peers, "abz")
    os.kill(mounts[0].pid, signal.SIGHUP)
    wait_until(lambda: "there are 3 nodes now" in mounts[0].log_text(), 10)
    stand_still(mounts[1].pid)
    wait_until(lambda: is_down(mounts[0], "b"), 10, "it is taken for dead")
    os.kill(mounts[1].pid, signal.SIGCONT)
    wait_until(lambda: not is_down(mounts[0], "b") and not is_down(mounts[1], "a"), 10, "they meet")
    for at, program in enumerate(programs):
        wait_until(lambda p=program: not error_of(p.agent, "os.fsync(fd)"), 10, "a sync that is told of nothing any more")
        program.agent.do("map.unmap()\nmap = dev.mmap(fd, length)")
        program.write(at, b"!")
        program.fsync()
        content[at] = ord("!")
    all_see({"a": programs[0], "b": programs[1]}, content)
    said = refused_mount(workdir, f"node=z,peers={peers},{OPTIONS},peer_timeout=1", data)
    assert "node b has another list of members" in said, said
    for program in programs:
        program.agent.kill()


def is_down(m, name):
    return any(other["down"] for other in statistics(m.mnt)["nodes"]["nodes"] if other["name"] == name)


def test_a_longer_list_without_the_memory_for_it(mount, workdir, monkeypatch):
    """Of the sessions that are to come: it is said at once, and not only by who can't be met."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    data, peers = os.path.join(workdir, "data"), os.path.join(workdir, "peers")
    os.mkdir(data)
    write_list(peers, "ab")
    mounts = [mount(f"node={name},peers={peers},{OPTIONS}", data=data, env=env if name == "a" else None) for name in "ab"]
    write_list(peers, "abcd")
    plan.arm(ROWS.index("mmap64"), errno.ENOMEM, 1, 0)
    os.kill(mounts[0].pid, signal.SIGHUP)
    wait_until(lambda: "there are 4 nodes now" in mounts[0].log_text(), 10)
    assert "there are 4 nodes now: memory of 4 sessions: Cannot allocate memory" in mounts[0].log_text()


@pytest.mark.parametrize("stores", [False, True])
def test_a_dead_home_is_told_to_who_had_not_synced(killed, stores):
    """fsync() says EIO once, as what the home had acknowledged may have been in its memory only; what was written stays. A
    store through a mapping that was not written back does not come back over it."""
    nodes, survivor, content, alive, victim, dead = killed("home")
    survivor.fsync()
    survivor.write(5 * PAGE, b"written")
    if stores:
        survivor.store(6 * PAGE, b"stored")
    nodes[dead].expected_exit = None
    os.kill(nodes[dead].pid, signal.SIGKILL)
    content = bytearray(content)
    content[5 * PAGE:5 * PAGE + 7] = b"written"
    wait_until(lambda: survivor.read() == bytes(content), 10)
    assert error_of(survivor.agent, "os.fsync(fd)") == errno.EIO
    if stores:  # what a kernel called clean and nobody has is lost until it comes again
        assert error_of(survivor.agent, "os.fsync(fd)") == errno.EIO
        survivor.write(6 * PAGE, bytes(content[6 * PAGE:7 * PAGE]))
    assert error_of(survivor.agent, "os.fsync(fd)") == 0
    assert survivor.read() == bytes(content) == read_file(nodes.below())
    for program in survivor, victim:
        program.agent.kill()


def test_what_was_lost_with_a_home_stays_lost_when_its_page_is_stored_to_again(cluster, agents):
    """A kernel's page, which it has read anew from the next home, lacks what it could not write back to the last one: another store to it
    brings none of that."""
    nodes = cluster(3, "timeout=0,peer_timeout=1")
    make_with_homes(nodes[0], nodes.data, nodes.names, "ab", pattern(PAGE))
    home, program = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(2), device=None)
    assert program.load() == pattern(PAGE)
    program.store(5, b"lost")
    nodes[0].expected_exit = None
    os.kill(nodes[0].pid, signal.SIGKILL)
    wait_until(lambda: program.read() == pattern(PAGE), 10)
    assert program.load() == pattern(PAGE)
    program.store(100, b"stored")
    error_of(program.agent, "sync_file_range(fd)")
    assert [error_of(program.agent, "os.fsync(fd)") for _ in range(3)] == [errno.EIO] * 3
    program.write(0, pattern(PAGE))
    assert error_of(program.agent, "os.fsync(fd)") == 0
    for one in home, program:
        one.agent.kill()


@pytest.mark.parametrize("how", ["released", "stored"])
def test_a_map_that_is_made_anew_is_told_what_went_with_a_home(cluster, agents, how):
    """gaia_msync() asks the next home, which knows of nothing. This node does: it tells once what the last home may not have synced, and
    that a kernel's page is lost until it is stored again."""
    nodes = cluster(3, "timeout=0,peer_timeout=1")
    make_with_homes(nodes[0], nodes.data, nodes.names, "ab", pattern(PAGE))
    home, program = Program(agents(), nodes.path(0)), Program(agents(), nodes.path(2))
    assert program.load() == pattern(PAGE) == program.device_load()
    if how == "released":
        program.device_store(5, b"released")
        program.release()
    else:
        program.store(5, b"stored")
    nodes[0].expected_exit = None
    os.kill(nodes[0].pid, signal.SIGKILL)
    wait_until(lambda: error_of(program.agent, "os.pread(fd, 1, 0)") == 0, 10)
    program.agent.do("map.unmap()\nmap = dev.mmap(fd, length)")
    errors = [error_of(program.agent, "map.sync()") for _ in range(3)]
    assert errors == ([errno.EIO] * 3 if how == "stored" else [errno.EIO, 0, 0])
    program.write(0, pattern(PAGE))
    program.agent.do("map.sync()")
    for one in home, program:
        one.agent.kill()


@pytest.mark.parametrize("how", ["written", "released", "nothing"])
def test_a_sync_that_waits_for_a_home_that_dies(killed, how):
    """It is asked again where the next home is, and what that says is not taken for an answer about the first."""
    nodes, survivor, content, alive, victim, dead = killed("home")
    survivor.fsync()
    if how == "written":
        survivor.write(5 * PAGE, b"written")
    if how == "released":
        survivor.device_store(5 * PAGE, b"released")
        survivor.release()
    stand_still(nodes[dead].pid)
    survivor.agent.start("os.fsync(fd)")
    assert survivor.agent.busy(0.2)
    nodes[dead].expected_exit = None
    os.kill(nodes[dead].pid, signal.SIGKILL)
    assert error_of(survivor.agent.finish) == (0 if how == "nothing" else errno.EIO)
    assert error_of(survivor.agent, "os.fsync(fd)") == 0
    for program in survivor, victim:
        program.agent.kill()


@pytest.mark.parametrize("what", ["os.ftruncate(fd, 5000)", "os.posix_fallocate(fd, 0, 50000)", "os.lseek(fd, 0, os.SEEK_HOLE)",
                                  "os.close(os.dup(fd))", "os.pwrite(fd, b'again', 0)"])
def test_what_waits_for_a_home_that_dies_is_done_at_the_next(killed, what):
    nodes, survivor, content, alive, victim, dead = killed("home")
    stand_still(nodes[dead].pid)
    survivor.agent.start(what)
    assert survivor.agent.busy(0.2)
    nodes[dead].expected_exit = None
    os.kill(nodes[dead].pid, signal.SIGKILL)
    survivor.agent.finish()
    size = {"os.ft": 5000, "os.po": 50000}.get(what[:5], len(content))
    if "again" in what:
        content[:5] = b"again"
    assert survivor.size() == size
    assert survivor.read() == bytes(content[:size]).ljust(size, b"\0") == read_file(nodes.below())
    for program in survivor, victim:
        program.agent.kill()


@pytest.mark.parametrize("stopped", [1, 2])
def test_members_are_told_at_once(cluster, agents, stopped):
    """One that says nothing keeps no other from hearing that a file is tracked, whichever the home has met first."""
    nodes = cluster(3, "timeout=0,peer_timeout=20")
    nodes.make(pattern(PAGE), home=0)
    home, other = (Program(agents(), nodes.path(number), device=None) for number in (0, 3 - stopped))
    stand_still(nodes[stopped].pid)
    home.agent.start("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
    try:
        wait_until(lambda: served(nodes[3 - stopped], "follow") == 1, 10)
        assert home.agent.busy(), "all have been told"
    finally:
        os.kill(nodes[stopped].pid, signal.SIGCONT)
    home.agent.finish()
    for program in home, other:
        program.agent.kill()


def test_who_comes_is_told_of_all_files(cluster, agents):
    """Several at a time, and of each once."""
    count = 50
    nodes = cluster(2, only=[0])
    for number in range(count):
        nodes.make(pattern(PAGE), f"f{number}", home=0)
    home = agents()
    home.do("dev = gaia.Device('soft:0')\nfds = [os.open(path, os.O_RDWR) for path in paths]\n"
            "maps = [dev.mmap(fd, length) for fd in fds]",
            paths=[nodes.path(0, f"f{number}") for number in range(count)], length=PAGE)
    nodes.mount(1)
    wait_until(lambda: served(nodes[1], "follow") == count, 10)
    paths = [nodes.path(1, f"f{number}") for number in range(count)]
    home.do("for map in maps:\n    map[5:10] = b'there'\n    map.release()")
    assert all(read_file(path)[:12] == pattern(PAGE)[:5] + b"there" + pattern(PAGE)[10:12] for path in paths)
    assert served(nodes[1], "follow") == count


def followed(mounted):
    return statistics(mounted.mnt)["nodes"]["followed"]


def wait_until_forgotten(*mounts):
    """A home tracks a file until its kernel forgets the inode."""
    def forgotten():
        forget_inodes()
        return not any(followed(m) for m in mounts)
    wait_until(forgotten, 20)


MAP_ALL = """
fds = [os.open(path, os.O_RDWR) for path in paths]
maps = [dev.mmap(fd, length) for fd in fds]
"""
UNMAP_ALL = """
for map, fd in zip(maps, fds):
    map.unmap()
    os.close(fd)
"""


def test_deleted_files_are_forgotten(cluster, agents):
    """Of files that were mapped at their home, and unlinked, no node remembers anything."""
    count = 60
    nodes = cluster(3)
    for number in range(count):
        nodes.make(pattern(PAGE), f"f{number}", home=0)
    paths = [nodes.path(0, f"f{number}") for number in range(count)]
    home = agents()
    home.do("dev = gaia.Device('soft:0')\n" + MAP_ALL, paths=paths, length=PAGE)
    assert [followed(nodes[number]) for number in range(3)] == [0, count, count]
    for path in paths:
        os.unlink(path)
    home.do(UNMAP_ALL)
    for number in 1, 2:
        wait_until(lambda number=number: followed(nodes[number]) == 0, 20)
        assert served(nodes[number], "unfollow") == count


@pytest.mark.limit(200)  # ninety times gaiactl, which ASan makes slow to start
def test_what_is_tracked_again_is_followed_again(cluster, agents):
    """Also when the end of the last time is told beside the begin of this one."""
    nodes = cluster(3)
    nodes.make(pattern(PAGE), home=0)
    home, elsewhere = agents(), nodes.path(1)
    home.do("dev = gaia.Device('soft:0')", paths=[nodes.path(0)], length=PAGE)
    for turn in range(30):
        home.do(MAP_ALL)
        assert [followed(nodes[number]) for number in range(3)] == [0, 1, 1]
        stored = b"turn%d." % turn
        home.do("maps[0][:len(stored)] = stored\nmaps[0].release()", stored=stored)
        assert read_file(elsewhere)[:len(stored)] == stored
        home.do(UNMAP_ALL)
        forget_inodes()
    wait_until_forgotten(nodes[1], nodes[2])
    assert served(nodes[1], "unfollow") > 1, "it was closed at all"


def test_nobody_waits_until_who_stands_still_knows_what_is_closed(cluster, agents):
    """The daemon starts a thread for whatever waits: many files are closed, and a node says nothing that is told of each."""
    count = 150
    nodes = cluster(2, "timeout=0,peer_timeout=20")
    for number in range(count):
        nodes.make(pattern(PAGE), f"f{number}", home=0)
    paths = [nodes.path(0, f"f{number}") for number in range(count)]
    home = agents()
    home.do("dev = gaia.Device('soft:0')\n" + MAP_ALL, paths=paths, length=PAGE)
    for path in paths:
        os.unlink(path)
    threads = len(os.listdir(f"/proc/{nodes[0].pid}/task"))
    with standing_still(nodes[1].pid):
        home.do(UNMAP_ALL)
        wait_until(lambda: statistics(nodes[0].mnt)["inodes"]["known"] == 1, 10)
        assert len(os.listdir(f"/proc/{nodes[0].pid}/task")) < threads + count // 3
    wait_until_forgotten(nodes[1])


@contextlib.contextmanager
def beside(cluster, program):
    """A node, and a program that listens where another node would which does not run: (nodes, that process). Homes are chosen
    without it."""
    nodes = cluster(2, "timeout=0,peer_timeout=2", only=[])
    listens = subprocess.Popen([sys.executable, "-c", program, nodes.addresses[1][len("local:"):]], stdout=subprocess.PIPE, text=True)
    try:
        assert listens.stdout.readline() == "listens\n"
        nodes.mount(0)
        yield nodes, listens
        assert not statistics(nodes[0].mnt)["nodes"]["nodes"][1]["home"]
        nodes.make(pattern(PAGE), home=1)
        assert read_file(nodes.path(0)) == pattern(PAGE)
    finally:
        listens.kill()
        listens.wait()


def said_of_node_b(nodes):
    return [line for line in nodes[0].log_text().splitlines() if "node b is taken to be down" in line]


def test_another_users_process_is_no_node(cluster):
    """Whoever likes may listen where a node would: he hears nothing."""
    with beside(cluster, STRANGER) as (nodes, listens):
        assert listens.stdout.readline() == "heard 0\n"
        said = said_of_node_b(nodes)
        assert len(said) == 1 and "of user 65534" in said[0], nodes[0].log_text()


def test_what_answers_as_no_node_does_is_no_node(cluster):
    """The log says so, once: it may be a node whose program is broken."""
    with beside(cluster, BABBLER) as (nodes, _):
        time.sleep(2)  # it tries again and again
        said = said_of_node_b(nodes)
        assert len(said) == 1 and "HELLO" in said[0], nodes[0].log_text()


def test_a_node_that_ends_says_nothing_of_whom_it_meets(cluster):
    """What it has begun to say to another one ends with it, and not because of that one."""
    nodes = cluster(2, "timeout=0,peer_timeout=2")
    wait_until(lambda: statistics(nodes[0].mnt)["nodes"]["nodes"][1]["home"], what="they have met")
    with standing_still(nodes[1].pid):
        wait_until(lambda: not statistics(nodes[0].mnt)["nodes"]["nodes"][1]["home"], what="the session ends")
        time.sleep(0.5)  # it connects anew, which is not answered for two seconds
        assert "node b" not in nodes[0].log_text()
        nodes[0].unmount()
        assert "node b" not in nodes[0].log_text(), nodes[0].log_text()


def test_who_follows_first_loses_nothing_to_who_follows_last(cluster, agents):
    """While a file is announced, a node that was not told yet writes past the home. What it writes stays when one that was told, and
    has the page from before, stores to another byte of it."""
    nodes = cluster(3, "timeout=0,peer_timeout=20")
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=0)
    home, first = Program(agents(), nodes.path(0), device=None), Program(agents(), nodes.path(2), device=None)
    stand_still(nodes[1].pid)  # it has met the home first, and is told last
    home.agent.start("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
    try:
        wait_until(lambda: "tracked" in {o["mode"] for o in statistics(nodes[2].mnt)["open"]}, 10)
        assert first.load(2 * PAGE, 3 * PAGE) == content[2 * PAGE:3 * PAGE]
        assert home.agent.busy(), "all have been told"
        with open(nodes.below(), "r+b") as below:  # as the node does that is not told yet
            os.pwrite(below.fileno(), b"late", 2 * PAGE + 100)
        first.store(2 * PAGE + 200, b"early")
        assert home.agent.busy(), "all have been told"
    finally:
        os.kill(nodes[1].pid, signal.SIGCONT)
    home.agent.finish()
    content[2 * PAGE + 100:2 * PAGE + 104] = b"late"
    content[2 * PAGE + 200:2 * PAGE + 205] = b"early"
    first.msync()
    assert first.read() == home.read() == bytes(content)
    assert home.acquired() == bytes(content)
    for program in home, first:
        program.agent.kill()


def test_a_sync_beside_a_release_does_not_forget_it(cluster, agents):
    """The sync is over before the release has returned: what that has released then is not on storage, so the home's death is told."""
    nodes = cluster(3, "timeout=0,peer_timeout=20")
    content = bytearray(pattern(4 * PAGE))
    nodes.make(bytes(content), home=0)
    releases, syncs, third = (Program(agents(), nodes.path(number), device=device)
                              for number, device in ((1, "soft:0"), (1, None), (2, None)))
    releases.device_store(PAGE, b"released")
    assert third.load() == content
    syncs.fsync()
    stand_still(nodes[2].pid)  # its kernel has the page
    try:
        releases.agent.start("map.release()")
        assert releases.agent.busy(0.3)
        syncs.fsync()
        assert releases.agent.busy(), "the sync was not beside the release"
    finally:
        os.kill(nodes[2].pid, signal.SIGCONT)
    releases.agent.finish()
    nodes[0].expected_exit = None
    os.kill(nodes[0].pid, signal.SIGKILL)
    wait_until(lambda: error_of(syncs.agent, "os.pread(fd, 1, 0)") == 0, 10)
    assert error_of(syncs.agent, "os.fsync(fd)") == errno.EIO
    for program in releases, syncs, third:
        program.agent.kill()


def test_who_was_told_of_a_loss_is_not_told_again_by_the_next_home(cluster, agents):
    """The first home dies, and the next one. What was lost with the first each node tells its own programs, once each: the third home was
    an agent then, and has programs that have not synced since."""
    nodes = cluster(4, "timeout=0,peer_timeout=1")
    make_with_homes(nodes[0], nodes.data, nodes.names, "abc", pattern(PAGE))
    third, told = (Program(agents(), nodes.path(number), device=None) for number in (2, 3))
    Program(agents(), nodes.path(0)).agent.kill()
    for program in third, told:
        wait_until(lambda n=3 if program is told else 2: "tracked" in {o["mode"] for o in statistics(nodes[n].mnt)["open"]}, 10)
    third.write(5, b"third")
    told.write(50, b"told")
    other = told.agent("os.open(path, os.O_RDWR)")
    for dead in range(2):
        nodes[dead].expected_exit = None
        os.kill(nodes[dead].pid, signal.SIGKILL)
        wait_until(lambda: not error_of(told.agent, "os.pread(fd, 1, 0)"), 10)
        expected = [errno.EIO, 0] if dead == 0 else [0, 0]
        assert [error_of(told.agent, "os.fsync(fd)") for _ in range(2)] == expected
    assert [error_of(told.agent, f"os.fsync({other})") for _ in range(2)] == [errno.EIO, 0], "each descriptor"
    assert [error_of(third.agent, "os.fsync(fd)") for _ in range(2)] == [errno.EIO, 0]
    for program in third, told:
        program.agent.kill()
