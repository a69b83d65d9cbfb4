# SPDX-License-Identifier: Apache-2.0
"""Sizes between nodes, while others write to the file or release: who has been told of a size does not forget it."""
import os
import signal

import pytest

from files import pattern
from helpers import PAGE, AgentDied, agents, read_file, wait_until  # noqa: F401
from nodes import cluster  # noqa: F401
from test_nodes_words import OPS, meet  # noqa: F401

RECORD = 16
TURNS = 300
BESIDE = pytest.mark.parametrize("beside", ["write", "release"])
# The kernel forgets what it is told of a size when an invalidation of the inode begins meanwhile: these make it begin.
DISTURB = {"write": "os.pwrite(fd, os.urandom(1), PAGE)", "release": "map[0] ^= 1\n            map.release()"}


# More than there is of the file.
MAP = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
mapping = libc.mmap(None, 1 << 30, 1, 1, fd, 0)"""


def load(agent, at):
    """The byte at an offset, or None: a SIGBUS, and the agent is dead."""
    try:
        return agent("ctypes.string_at(mapping + at, 1)", at=at)
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
        return None


class Disturber:
    """A program of node 0 that writes to the second page of a file, or has a device release the first, without end."""

    def __init__(self, agent, beside):
        self.agent = agent
        agent.do(f"""
fd = None
running = True
def disturb():
    while running:
        if fd is not None:
            {DISTURB[beside]}
thread = threading.Thread(target=disturb)
thread.start()
dev = gaia.Device('soft:0')""")

    def take(self, path):
        self.agent.do("map = dev.mmap(os.open(path, os.O_RDWR), PAGE)\nfd = os.open(path, os.O_RDWR)", path=path)

    def end(self):
        self.agent.do("running = False\nthread.join()")


@pytest.fixture
def disturbed(cluster, agents, request):
    """A function: disturbed(beside, options, home) -> (nodes, the disturber, who appends on node 0, who looks on node 1)."""
    def start(beside, options="timeout=0", home=0):
        nodes = cluster(2, options)
        nodes.make(pattern(4 * PAGE), home=home)
        disturber = Disturber(agents(), beside)
        disturber.take(nodes.path(0))
        request.addfinalizer(disturber.end)
        writer, reader = agents(), agents()
        writer.do("fd = os.open(path, os.O_RDWR | os.O_APPEND)", path=nodes.path(0))
        reader.do("fd = os.open(path, os.O_RDWR)", path=nodes.path(1))
        return nodes, disturber, writer, reader
    return start


@BESIDE
@pytest.mark.parametrize("options", ["timeout=0", "timeout=30"])
@pytest.mark.parametrize("home", [0, 1])
def test_what_was_appended_and_synced_is_read(disturbed, beside, options, home):
    nodes, _, writer, reader = disturbed(beside, options, home)
    for turn in range(TURNS):
        reader.do("os.pread(fd, 1, PAGE)")  # its kernel has the page, and is told to drop it
        record = b"A%015d" % turn
        writer.do("os.write(fd, record)\nos.fsync(fd)", record=record)
        assert reader("os.pread(fd, size, at)", size=RECORD, at=4 * PAGE + turn * RECORD) == record, turn


@pytest.mark.parametrize("size", [1 << 30, (1 << 30) + 1, (5 << 30) - 7])
def test_what_was_appended_to_a_large_file_is_read(disturbed, size):
    """A kernel is told of a size by the GiB (fs/grow.c)."""
    nodes, _, writer, reader = disturbed("write")
    os.truncate(nodes.path(0), size)
    for turn in range(TURNS):
        reader.do("os.pread(fd, 1, PAGE)")
        record = b"A%015d" % turn
        writer.do("os.write(fd, record)\nos.fsync(fd)", record=record)
        assert reader("os.pread(fd, size, at)", size=RECORD, at=size + turn * RECORD) == record, turn


@BESIDE
def test_who_seeks_to_the_end_and_writes_overwrites_nothing(disturbed, beside):
    """Of what was synced before."""
    nodes, _, writer, reader = disturbed(beside)
    for turn in range(TURNS):
        reader.do("os.pread(fd, 1, PAGE)")
        writer.do("os.write(fd, record)\nos.fsync(fd)", record=b"A%015d" % turn)
        reader.do("os.lseek(fd, 0, os.SEEK_END)\nos.write(fd, record)\nos.fsync(fd)", record=b"B%015d" % turn)
    assert read_file(nodes.below())[4 * PAGE:] == b"".join(b"A%015d" % turn + b"B%015d" % turn for turn in range(TURNS))


@BESIDE
def test_what_was_appended_and_synced_is_loaded(disturbed, beside):
    nodes, _, writer, reader = disturbed(beside)
    reader.do(MAP)
    for turn in range(TURNS):
        reader.do("os.pread(fd, 1, PAGE)")
        writer.do("os.write(fd, page)\nos.fsync(fd)", page=bytes([turn % 251 + 1]) * PAGE)
        assert load(reader, (4 + turn) * PAGE) == bytes([turn % 251 + 1]), turn


def test_who_opens_what_was_appended_and_synced(disturbed):
    """Its kernel knows the file from before, shorter than it is."""
    nodes, disturber, _, reader = disturbed("write", "timeout=30")
    for turn in range(TURNS // 2):
        name = f"file{turn}"
        nodes.make(pattern(4 * PAGE), name, home=0)
        disturber.take(nodes.path(0, name))
        assert reader("os.stat(path).st_size", path=nodes.path(1, name)) == 4 * PAGE
        disturber.agent.do("one = os.open(path, os.O_WRONLY | os.O_APPEND)\nos.write(one, b'x' * PAGE)\n"
                           "os.fsync(one)\nos.close(one)", path=nodes.path(0, name))
        reader.do("os.close(fd)\nfd = os.open(path, os.O_RDWR)\nos.pread(fd, 1, PAGE)", path=nodes.path(1, name))
        assert reader("os.pread(fd, PAGE, at)", at=4 * PAGE) == b"x" * PAGE, turn


@pytest.mark.parametrize("truncations", [4, 5])
def test_a_size_from_before_a_truncation(meet, agents, truncations):
    """The home was told of it after it had said the size: the kernel knows better."""
    daemon, path, member = meet(home="b")
    home = member()
    home.do("value", OPS["NODE_TRUNCATE"], 5)
    home.do("answer", OPS["NODE_READ"], 5000 - PAGE)  # of zeros
    wait_until(lambda: home.do("follow", path) == 0)
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)" + MAP, path=os.path.join(daemon.mnt, "f"))
    os.truncate(path, 100)  # as the home does
    agent.do("os.ftruncate(fd, 100)")
    assert home.do("asked", OPS["NODE_TRUNCATE"]) == 1
    assert home.do("size", 5000, truncations) == 0
    assert load(agent, PAGE) == (None if truncations < 5 else b"\0")
    daemon.expected_exit = None
    home.kill()
