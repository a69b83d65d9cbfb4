# SPDX-License-Identifier: Apache-2.0
"""Programs that close libgaia's descriptors, as close_range() of all does, and open others, which get their numbers: nobody waits for
ever, and the others are neither written to nor closed."""
import errno
import os
import socket

import pytest

from files import make, open_map, pattern
from helpers import PAGE, agents, error_of, functions_of, in_child, read_file, wait_until  # noqa: F401

WHAT = ["nothing", "eventfd", "file", "mapped-file", "socket"]


def numbers():
    return {int(name) for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")}


def another(what, path):
    """(a descriptor of something that is not libgaia's, what is to be kept for that)"""
    if what == "eventfd":
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), None
    if what in ("file", "mapped-file"):
        return os.open(path, os.O_RDWR | os.O_CREAT), None
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.setblocking(False)
    return one.detach(), other


def replace(ours, what, path):
    """Closes them, and puts something else in their places: that, and what look() is to go on saying of it."""
    kept = {}
    for number in ours:
        if what == "nothing":
            os.close(number)
            continue
        new, kept[number] = another(what, path)
        os.dup2(new, number, inheritable=False)
        os.close(new)
    return kept, look(kept)


def look(kept):
    """What each is, and what is in it: the count of an eventfd, the size of a file; nothing has come to a socket, nor has it ended."""
    seen = {}
    for number, other in kept.items():
        st = os.fstat(number)
        with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
            seen[number] = (os.readlink(f"/proc/self/fd/{number}"), st.st_ino, st.st_size, file.read())
        if other:
            assert error_of(other.recv, 1) == errno.EAGAIN
    return seen


def ended(agent, code):
    agent.start(code)
    assert not agent.busy(20), f"{code} waits"
    agent.finish()


def begin(agent, path, calls):
    """What libgaia has is what has come since."""
    functions_of(__name__, agent)
    agent.do("import gaia\nfd, before, threads = os.open(path, os.O_RDWR), numbers(), len(os.listdir('/proc/self/task'))\n"
             "device = gaia.Device('soft:0')\n" + calls + "\nours = numbers() - before\nassert len(ours) >= 3", path=path)


@pytest.mark.parametrize("calls", ["map = device.mmap(fd, 4 * PAGE)\nassert map[0] == content[0]", "device.mmap(fd, PAGE).unmap()",
                                   "map = device.mmap(fd, 4 * PAGE)\nmap.unmap(0, PAGE)"], ids=["mapped", "idle", "in-part"])
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.whole
def test_the_end(mount, agents, workdir, what, calls):
    """Of what is mapped, of the device, and of a child."""
    m, agent, content = mount(), agents(), pattern(4 * PAGE, 3)
    path = make(m, content)
    agent.do("pass", content=content)
    begin(agent, path, calls)
    agent.do("kept, seen = replace(ours, what, other)", what=what, other=path if what == "mapped-file" else os.path.join(workdir, "other"))
    assert agent("in_child(lambda: look(kept))[1] == seen")
    if "map =" in calls:
        if what == "nothing":
            assert agent("error_of(map.acquire, PAGE)") in (errno.EIO, errno.ENOTCONN)
        assert agent("error_of(map.sync, gaia.MS_SYNC, PAGE)") == agent("error_of(device.stat)") == errno.ENOTCONN
        ended(agent, "map.unmap()")
    ended(agent, "device.close()")
    assert agent("look(kept) == seen and set(kept) <= numbers() and set(kept) == ours & numbers()")
    agent.end()
    assert read_file(path) == content


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.whole
def test_later_maps(mount, agents, workdir, what):
    """By a new connection, and what is mapped by that is as ever; also where parts of another mapping are blocked."""
    m, agent, content = mount(), agents(), pattern(4 * PAGE, 5)
    path = make(m, content)
    begin(agent, path, "old = device.mmap(fd, 4 * PAGE)\nold.unmap(PAGE, PAGE)")
    agent.do("kept, seen = replace(ours, what, other)\nothers = numbers()", what=what,
             other=path if what == "mapped-file" else os.path.join(workdir, "other"))
    ended(agent, "map = open_map(device, path)")
    assert agent("map[:]") == content
    agent.do("map[5] = map[5] ^ 1\nmap.release()\nmap.acquire()")
    assert read_file(path) == content[:5] + bytes([content[5] ^ 1]) + content[6:]
    ended(agent, "old.unmap(2 * PAGE, PAGE)\nold.unmap()\nmap.acquire()\nmap[:]\nmap.unmap()")
    assert agent("error_of(lambda: open_map(device, path).unmap())") == 0
    ended(agent, "device.close()")
    assert agent("look(kept) == seen")
    # of the second connection nothing is left, nor of its thread; of the first, whose descriptors are gone, the thread
    assert agent("numbers() == others and len(os.listdir('/proc/self/task')) <= threads + 1")
    agent.end()


def test_the_daemon_ends_first(mount, agents):
    """Then the connection's thread ends, as ever, and what is mapped is dead."""
    m, agent = mount(), agents()
    begin(agent, make(m, pattern(PAGE)), "map = device.mmap(fd, PAGE)\nassert map[0] == pattern(PAGE)[0]")
    agent.do("replace(ours, 'nothing', '')")
    m.kill()
    wait_until(lambda: agent("len(os.listdir('/proc/self/task')) == threads"), what="its thread ends")
    ended(agent, "map.unmap()\ndevice.close()")
    agent.end()
