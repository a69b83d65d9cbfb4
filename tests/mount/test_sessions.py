# SPDX-License-Identifier: Apache-2.0
"""A program's connection to the daemon (gpu/session.h): kept while it has a device open, as long as nobody else needs its place."""
import errno
import os
import signal
import subprocess

import pytest

from conftest import so_much
from files import make, pattern
from helpers import PAGE, ROWS, Plan, agents, client_with_faults, daemon_with_faults, read_file, wait_until  # noqa: F401

OPEN = "dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR)"
ROUND = "map = dev.mmap(fd, PAGE)\nassert map[0] == first\nmap.unmap()"
ATTEMPT = "error_of(lambda: dev.mmap(fd, PAGE).unmap())"
# Processes that begin one after the other: each maps, says so, waits, and maps again. keep: what it has mapped then it keeps.
CROWD = """
import select
processes, (heard, said), (go, let_go) = [], os.pipe(), os.pipe()

def two_rounds(keep):
    dev = gaia.Device('soft:0')
    if keep is None:  # what it maps it does not get, and it stays
        failed = error_of(lambda: gaia.Device('soft:20').mmap(fd, PAGE))
        os.write(said, b'.')
        os.read(go, 1)
        return failed
    dev.mmap(fd, PAGE).unmap()
    kept = dev.mmap(fd, PAGE) if keep else None
    os.write(said, b'.')
    os.read(go, 1)
    dev.mmap(fd, PAGE).unmap()
    assert not keep or kept[PAGE - 1] == last

def begin(count, keep):
    for _ in range(count):
        processes.append(os.fork())
        if not processes[-1]:
            os._exit(two_rounds(None) if keep is None else error_of(two_rounds, keep))
        assert select.select([heard], [], [], 20)[0], "one can't map"
        os.read(heard, 1)

def rounds_of(many):
    # the errors of so many that map and unmap all the time, for a second
    until = time.monotonic() + 1
    for _ in range(many):
        processes.append(os.fork())
        if not processes[-1]:
            dev, errors = gaia.Device('soft:0'), set()
            while time.monotonic() < until:
                errors.add(error_of(lambda: dev.mmap(fd, PAGE).unmap()))
            os._exit(next(iter(errors - {0, errno.EUSERS}), 0))
    return {os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(many)}

def finish():
    results = []
    for _ in processes:
        os.write(let_go, b'.')
        results.append(os.waitstatus_to_exitcode(os.wait()[1]))
    return results
"""


def sockets(agent):
    return set(agent("[os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') "
                     "if os.path.islink('/proc/self/fd/' + n) and os.readlink('/proc/self/fd/' + n).startswith('socket:')]"))


def test_one_file_after_the_other(mount, agents):
    """By one connection, which ends with the last device."""
    m, agent = mount(), agents()
    make(m, pattern(PAGE, 3))
    first = pattern(PAGE, 3)[0]
    before = sockets(agent)
    agent.do(OPEN + "\nsecond = gaia.Device('soft:1')\n" + ROUND, path=os.path.join(m.mnt, "f"), first=first)
    kept = sockets(agent) - before
    assert len(kept) == 1
    for number in range(20):
        agent.do("os.close(fd)\nfd = os.open(path, os.O_RDWR)\n" + ROUND, path=make(m, pattern(PAGE, number), str(number)),
                 first=pattern(PAGE, number)[0])
        assert sockets(agent) - before == kept
    agent.do("dev.close()")
    assert sockets(agent) - before == kept
    agent.do("second.close()")
    assert sockets(agent) == before


def test_a_device_that_is_closed_under_a_mapping(mount, agents):
    """The mapping ends with it, and so does the connection."""
    m, agent = mount(), agents()
    before = sockets(agent)
    agent.do(OPEN + "\nmap = dev.mmap(fd, PAGE)\nmap[0]", path=make(m, pattern(PAGE)))
    assert len(sockets(agent) - before) == 1
    agent.do("dev.close()")
    assert sockets(agent) == before


def test_two_mounts(mount, agents):
    """Only the last connection is kept: a program that walks through many mounts has no descriptors of each."""
    one, two, agent = mount(), mount(), agents()
    before = sockets(agent)
    content = pattern(PAGE, 5)
    agent.do("dev = gaia.Device('soft:0')")
    for m in one, two, one, two:
        agent.do("fd = os.open(path, os.O_RDWR)\n" + ROUND + "\nos.close(fd)", path=make(m, content), first=content[0])
        assert len(sockets(agent) - before) == 1
    agent.do("maps = [dev.mmap(os.open(path, os.O_RDWR), PAGE) for path in paths]",
             paths=[os.path.join(m.mnt, "f") for m in (one, two)])
    assert len(sockets(agent) - before) == 2
    agent.do("[map.unmap() for map in maps]")
    assert len(sockets(agent) - before) == 1


@pytest.mark.parametrize("how", ["unmounted", "killed"])
def test_a_daemon_that_ends(mount, agents, how):
    """What is kept does not keep the mount, and who maps from its next one finds the new daemon."""
    m, agent = mount(), agents()
    content = pattern(PAGE, 7)
    agent.do(OPEN + "\n" + ROUND + "\nos.close(fd)", path=make(m, content), first=content[0])
    if how == "unmounted":
        assert subprocess.run(["umount", m.mnt], check=False).returncode == 0
        wait_until(lambda: m.proc.poll() is not None, what="the daemon ends")
    else:
        m.kill()
    again = mount(data=m.data)
    agent.do("fd = os.open(path, os.O_RDWR)\n" + ROUND, path=os.path.join(again.mnt, "f"), first=content[0])


def test_a_program_that_becomes_another_user(mount, agents):
    """With files mapped and without: who maps is who has opened the file."""
    m, agent = mount(), agents()
    content = pattern(2 * PAGE, 11)
    path = make(m, content)
    os.chmod(path, 0o666)
    agent.do(OPEN + "\nkept = dev.mmap(fd, PAGE)\n" + ROUND, path=path, first=content[0])
    agent.do("os.setresuid(12345, 12345, 0)\n" + ROUND + "\nmap = dev.mmap(fd, PAGE)\nmap[1] = 1\nmap.release()", first=content[0])
    assert read_file(path)[1] == 1
    agent.do("kept[2] = 2\nkept.release()\nkept.unmap()\nmap.unmap()")
    agent.do("os.setresuid(0, 0, 0)\n" + ROUND, first=content[0])
    assert read_file(path)[2] == 2


def test_the_counters_of_who_has_become_another_user(mount, agents):
    """A device counts once, though the program has two connections to its mount."""
    m, agent = mount(), agents()
    path = make(m, pattern(2 * PAGE, 13))
    os.chmod(path, 0o666)
    agent.do(OPEN + "\nkept = dev.mmap(fd, PAGE)\nkept[0]\nbefore = dev.stat()", path=path)
    agent.do("os.setresuid(12345, 12345, 0)\nmap = dev.mmap(fd, PAGE)\nmap[0]\nafter = dev.stat()")
    assert agent("after.capacity_bytes == before.capacity_bytes and after.resident_bytes == before.resident_bytes > 0")


def test_a_user_that_changes_while_it_connects(mount, agents, workdir):
    """Who maps meanwhile is refused; the others are not, by a connection that is another's than it was meant to be."""
    plan = Plan.make(os.path.join(workdir, "plan"))
    m, agent = mount(), agents(client_with_faults(os.path.join(workdir, "plan")))
    content = pattern(PAGE, 17)
    agent.do(OPEN, path=make(m, content), first=content[0])
    plan.arm_wait(ROWS.index("connect"), 500, 1, 0)
    agent.do("import threading\ncodes = []\nmapper = threading.Thread(target=lambda: codes.append(" + ATTEMPT + "))\nmapper.start()")
    wait_until(lambda: plan.landed, what="it connects")
    agent.do("os.seteuid(12345)\nmapper.join()\nos.seteuid(0)")
    assert agent("codes") == [errno.EACCES]
    agent.do(ROUND)
    agent.do(ROUND)


@pytest.fixture
def crowd(mount, agents):
    """A mount, its file and a program that is nobody's but a user's; and another program of that user."""
    m, user, late = mount(), agents(), agents()
    content = pattern(PAGE)
    path = make(m, content)
    os.chmod(path, 0o666)
    for agent in user, late:
        agent.do("fd = os.open(path, os.O_RDWR)\nos.setresuid(20001, 20001, 20001)", path=path, last=content[-1])
    user.do(CROWD)
    late.do("dev = gaia.Device('soft:0')")
    return m, user, late


def test_those_that_map_nothing_make_room(crowd):
    """More programs of a user than may map at a time have a device open: each can map when it wants to."""
    m, user, late = crowd
    user.do("begin(1, True)\nbegin(69, False)")
    assert late(ATTEMPT) == 0
    assert user("finish()") == [0] * 70
    assert "turned away" not in m.log_text()


def test_those_that_got_nothing_make_room(crowd):
    _, user, late = crowd
    user.do("begin(64, None)")
    assert late(ATTEMPT) == 0
    assert user("finish()") == [errno.ENODEV] * 64


def test_an_error_of_the_data_directory_ends_no_session(mount, agents, monkeypatch, workdir):
    """Whatever its words: what else the program has mapped is as it was."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m, agent = mount("passthrough=off", env=env), agents()
    agent.do(OPEN + "\nmap = dev.mmap(fd, PAGE)\nmap[0]\nsecond = os.open(other, os.O_RDWR)", path=make(m, pattern(PAGE)),
             other=make(m, pattern(PAGE), "other"))
    for code in errno.ECONNABORTED, errno.EKEYEXPIRED, errno.ENOTCONN, errno.EPROTO, errno.ESTALE:
        for row in "dup", "fstatvfs64":
            plan.arm(ROWS.index(row), code, 1, 0)
            assert agent("error_of(lambda: dev.mmap(second, PAGE).unmap())") == errno.EIO and plan.landed
    for byte, code in enumerate((errno.EKEYEXPIRED, errno.ENOTCONN, errno.EPROTO, errno.ESTALE)):
        agent.do("map[1] = byte\nmap.release()", byte=byte)
        plan.arm(ROWS.index("pwrite64"), code, 1, 1)
        assert agent("error_of(lambda: map.advise(gaia.ADV_DONTNEED))") == errno.EIO and plan.landed
        plan.row = -1
        assert agent("map[1]") == byte
    agent.do("map[0] = 7\nmap.release()")
    assert read_file(os.path.join(m.mnt, "f"))[:2] == b"\x07\x03"


def test_what_the_data_directory_says_of_a_write_back(mount, agents, monkeypatch, workdir):
    """Of what a CPU has stored, which an acquire waits for: not that the daemon is gone, nor what gaia.h does not have."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m, agent = mount("passthrough=off", env=env), agents()
    agent.do(OPEN + "\nimport mmap\nmap = dev.mmap(fd, PAGE)\nmap[0]\ncpu = mmap.mmap(fd, PAGE)", path=make(m, pattern(PAGE)))
    for code, said in ((errno.ENOTCONN, errno.EIO), (errno.ECONNABORTED, errno.EIO), (errno.EROFS, errno.EIO), (errno.ENOSPC, errno.ENOSPC)):
        agent.do("cpu[1] ^= 1")
        plan.arm(ROWS.index("pwrite64"), code, 1, 1)
        assert agent("error_of(map.acquire)") == said and plan.landed
        plan.row = -1
        agent("error_of(map.acquire)")
    m.kill()
    assert agent("error_of(map.acquire)") == errno.ENOTCONN


@pytest.mark.parametrize("code", [errno.ENOTCONN, errno.ECONNABORTED])
def test_a_data_directory_whose_own_daemon_is_dead(mount, agents, monkeypatch, workdir, code):
    """It is on another FUSE filesystem, say. This mount's daemon is not gone: nobody is told so, but the log says what is."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m, agent = mount("passthrough=off,timeout=0", env=env), agents()
    agent.do(OPEN + "\nmap = dev.mmap(fd, PAGE)\nmap[0]\nsecond = os.open(other, os.O_RDWR)", path=make(m, pattern(PAGE)),
             other=make(m, bytes(PAGE), "other"))
    for row, call in (("fstatvfs64", "dev.mmap(second, PAGE)"), ("fstatvfs64", "os.fstatvfs(fd)"),
                      ("fstat64", "os.fstat(second)"), ("pwrite64", "os.pwrite(second, b'w', 0)"),
                      ("fdatasync", "os.fdatasync(second)"), ("pread64", "os.pread(second, 1, 0)")):
        plan.arm(ROWS.index(row), code, 1, 1)
        assert (call, agent(f"error_of(lambda: {call})"), plan.landed > 0) == (call, errno.EIO, True)
        plan.row = -1
    agent.do("map.acquire()\nmap[0] = 1\nmap.release()")
    assert ("daemon has died" in m.log_text()) == (code == errno.ENOTCONN)


def test_many_that_come_back(crowd):
    """One that is about to map as it is to make room does so by a new connection. (More map at a time than may: some are told so.)"""
    assert crowd[1]("rounds_of(80)") == {0}


def test_those_that_map_something_do_not(crowd):
    """Who is one too many is told so, and who has a mapping keeps it."""
    m, user, late = crowd
    user.do("begin(64, True)")
    assert late(ATTEMPT) == errno.EUSERS
    wait_until(lambda: "turned away: its user has as many as one may have" in m.log_text(), what="the log says so")
    assert user("finish()") == [0] * 64
    wait_until(lambda: late(ATTEMPT) == 0, what="there is room again")


# In a process that has closed its standard descriptors: which of them it has again, as bits, or 99.
CLOSED = """
import fcntl

def taken():
    return sum(1 << n for n in range(3) if os.path.exists(f'/proc/self/fd/{n}'))

def without_standard_descriptors():
    high = fcntl.fcntl(os.open(path, os.O_RDWR), fcntl.F_DUPFD, 20)
    for n in range(3):
        os.close(n)
    dev = gaia.Device()
    map = dev.mmap(high, PAGE)
    if map[0] != first:
        return 99
    map[1:3] = b'ab'
    map.release()
    mapped = taken()
    map.unmap()
    return mapped | taken()

child = os.fork()
if not child:
    try:
        os._exit(without_standard_descriptors())
    except BaseException:
        os._exit(99)
"""


def test_a_program_without_standard_descriptors(mount, agents):
    """What it prints goes nowhere then, and not into a connection or a device's memory."""
    path = make(mount(), pattern(PAGE))
    agent = agents()
    agent.do(CLOSED, path=path, first=pattern(PAGE)[0])
    assert agent("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    assert read_file(path)[:4] == pattern(PAGE)[:1] + b"ab" + pattern(PAGE)[3:4]


# In a process that has closed its output: its daemon is killed. What it can read then, or how it ends.
DEAD = """
import select, signal
(heard, said), (go, let_go) = os.pipe(), os.pipe()
child = os.fork()
if not child:
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (os.open(path, os.O_RDWR), said, go)]
    os.close(1)
    os.close(2)
    map = gaia.Device().mmap(above[0], PAGE)
    map[0]
    os.write(above[1], b'.')
    while not select.select([above[2]], [], [], 0.001)[0]:
        error_of(os.write, 1, b'X' * PAGE)
    os._exit(map[0])
os.read(heard, 1)
"""


@pytest.mark.traps
def test_what_is_printed_into_a_mapping_whose_daemon_is_dead(mount, agents, workdir):
    """Nothing: it is SIGBUS, whatever the program prints while the memory that stands for it takes its place."""
    plan = Plan.make(os.path.join(workdir, "plan"))
    m, agent = mount(), agents(client_with_faults(os.path.join(workdir, "plan")))
    agent.do("import fcntl\n" + DEAD, path=make(m, bytes(PAGE)))
    plan.arm_wait(ROWS.index("mmap64"), 500, 1, 0)
    m.kill()
    wait_until(lambda: plan.landed, what="the mapping goes")
    wait_until(lambda: b"gaia:gone" in read_file(f"/proc/{agent('child')}/maps"), what="something else is there")
    agent.do("os.write(let_go, b'.')")
    assert agent("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == -signal.SIGBUS


# One that has closed its standard output, and prints while it maps.
PRINTS = """
import fcntl, threading

def map_and_print():
    high, ended = fcntl.fcntl(os.open(path, os.O_RDWR), fcntl.F_DUPFD, 20), False
    device = gaia.Device()
    kept = device.mmap(high, PAGE)
    os.close(1)

    def print_on():
        while not ended:
            try:
                os.write(1, b'X')
            except OSError:
                pass

    threads = [threading.Thread(target=print_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(count):
        kept[100] = number % 251
        device.mmap(high, PAGE).unmap()
        if kept[0] != first:
            break
    ended = True
    for thread in threads:
        thread.join()
    kept.release()
    return kept[0] != first

child = os.fork()
if not child:
    try:
        os._exit(map_and_print())
    except BaseException:
        os._exit(99)
"""


def test_what_is_printed_without_standard_output(mount, agents):
    """A descriptor that the daemon sends is never standard output, not even for a moment."""
    path = make(mount(), pattern(PAGE))
    agent = agents()
    agent.do(PRINTS, path=path, first=pattern(PAGE)[0], count=so_much(4000, 1500))
    assert agent("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 0
    assert read_file(path)[:1] == pattern(PAGE)[:1]
