# SPDX-License-Identifier: Apache-2.0
"""Sizes between nodes, while others write to the file or release: who has been told of a size does not forget it."""
import os
import signal
import subprocess

import pytest

from conftest import so_much
from files import pattern
from helpers import (ALL_ROWS, PAGE, AgentDied, agents, daemon_with_faults, drop_host_cache, read_file,  # noqa: F401
                     wait_until)
from nodes import SIDES, Program, check, cluster  # noqa: F401
from member import OPS, Member, meet  # noqa: F401

RECORD = 16
TURNS = so_much(300, 100)
BESIDE = pytest.mark.parametrize("beside", ["write", "release"])
# The kernel forgets what it is told of a size when an invalidation of the inode begins meanwhile: these make it begin.
DISTURB = {"write": "os.pwrite(fd, os.urandom(1), PAGE)", "release": "map[0] ^= 1\n            map.release()"}


# More than there is of the file.
MAP = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
mapping = libc.mmap(None, 1 << 30, 3, 1, fd, 0)"""


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


@pytest.mark.parametrize("change, row", [("os.chmod(path, 0o640)", "fuse_reply_attr"), ("os.utime(path)", "fuse_reply_attr"),
                                         ("os.link(path, path + '2')", "fuse_reply_entry")])
@pytest.mark.parametrize("home", [0, 1])
def test_an_answer_that_does_not_know_the_size_yet(cluster, agents, workdir, monkeypatch, change, row, home):
    """It sets the kernel's size, whatever that was told meanwhile: nobody is told that the file has grown before it is taken."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, "timeout=30", only=[0])
    nodes.mount(1, env=env)
    nodes.make(pattern(4 * PAGE), home=home)
    writer, reader, other = agents(), agents(), agents()
    writer.do("dev = gaia.Device('soft:0')\nfd = os.open(path, os.O_RDWR | os.O_APPEND)\n"
              "map = dev.mmap(os.open(path, os.O_RDWR), PAGE)", path=nodes.path(0))
    reader.do("fd = os.open(path, os.O_RDWR)\nos.pread(fd, PAGE, 0)" + MAP, path=nodes.path(1))
    plan.arm_wait(ALL_ROWS.index(row), 500, 1, False)
    other.start(change, path=nodes.path(1))
    wait_until(lambda: plan.landed, what="the answer is made")
    writer.do("os.write(fd, b'A' * PAGE)\nos.fsync(fd)")
    at = 4 * PAGE
    reader.do("ctypes.memset(mapping + at, 66, PAGE // 2)", at=at)
    other.finish()
    reader.do("os.fsync(fd)")
    assert writer("os.pread(fd, PAGE, at)", at=at) == b"B" * (PAGE // 2) + b"A" * (PAGE // 2)


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


CUTS = 3  # of the file, before it is opened here


@pytest.fixture
def late(cluster, workdir, request):
    """The daemon of node a, a file of two pages, and b (the test's), which is its home. The data directory's filesystem is not one
    that is known to know each change at once, and never hears of what the home does to the file."""
    for name in ("lower", "upper", "work", "data"):
        os.mkdir(os.path.join(workdir, name))
    data = os.path.join(workdir, "data")
    options = ",".join(["nfs_export=on,index=on", *(f"{name}dir={os.path.join(workdir, name)}" for name in ("lower", "upper", "work"))])
    made = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", data], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no overlay here: {made.stderr.strip()}")
    home = None
    try:
        nodes = cluster(2, f"timeout={getattr(request, 'param', 0)},peer_timeout=2", only=[], data=data)
        nodes.mount(0)
        nodes.make(pattern(2 * PAGE), home=1)
        home = Member(nodes.peers)
        home.do("answer", OPS["NODE_READ"], PAGE)  # of zeros
        home.do("value", OPS["NODE_OPEN"], 2 * CUTS)
        home.do("second", OPS["NODE_OPEN"], 2 * PAGE)
        wait_until(lambda: home.do("follow", nodes.below()) == 0)
        yield nodes[0], nodes.path(0), home
        nodes[0].expected_exit = None
    finally:
        if home:
            home.kill()
        nodes[0].unmount()
        subprocess.run(["umount", data], check=True)


def test_a_size_that_the_filesystem_knows_late(late, agents):
    """As an NFS client that keeps attributes: what was stored past what it takes for the end is written back."""
    _, path, home = late
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)\nmap = None", path=path)
    assert home.do("size", 5 * PAGE, CUTS) == 0
    assert agent("os.fstat(fd).st_size") == 5 * PAGE and os.stat(path).st_size == 5 * PAGE
    agent.do("import mmap\nmap = mmap.mmap(fd, 5 * PAGE)\n"
             "map.madvise(mmap.MADV_RANDOM)\nmap[4 * PAGE] = 1")  # READs of a page, as the home answers
    assert os.stat(path).st_size == 5 * PAGE
    wrote = home.do("asked", OPS["NODE_WRITE"])
    home.do("answer", OPS["NODE_WRITE"], PAGE)
    agent.do("map.flush()")
    assert home.do("asked", OPS["NODE_WRITE"]) == wrote + 1
    assert home.do("size", 3 * PAGE, CUTS) == 0  # older: it was not cut
    assert os.stat(path).st_size == 5 * PAGE
    assert home.do("size", 3 * PAGE, CUTS + 1) == 0
    assert os.stat(path).st_size == 3 * PAGE


@pytest.mark.parametrize("change", ["os.pwrite(fd, b'x', 9 * PAGE)", "os.posix_fallocate(fd, 0, 9 * PAGE + 1)", "os.ftruncate(fd, 9 * PAGE + 1)"])
def test_a_size_that_the_home_answers(late, agents, change):
    _, path, home = late
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)", path=path)
    for op in ("NODE_WRITE", "NODE_TRUNCATE", "NODE_FALLOCATE"):
        home.do("value", OPS[op], CUTS + 1)
        home.do("second", OPS[op], 9 * PAGE + 1)
    home.do("answer", OPS["NODE_WRITE"], 1)
    agent.do(change)
    assert os.stat(path).st_size == 9 * PAGE + 1
    assert home.do("size", 100 * PAGE, CUTS) == 0  # from before
    assert os.stat(path).st_size == 9 * PAGE + 1


@pytest.mark.parametrize("late", [0, 30], indirect=True)
def test_what_was_cut_is_short_at_once(late, agents):
    _, path, home = late
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)", path=path)
    home.do("value", OPS["NODE_TRUNCATE"], CUTS + 1)
    home.do("second", OPS["NODE_TRUNCATE"], 100)
    assert agent("os.ftruncate(fd, 100) or os.fstat(fd).st_size") == 100
    assert agent("os.lseek(fd, 0, os.SEEK_END)") == 100
    home.do("value", OPS["NODE_TRUNCATE"], CUTS + 2)  # and longer, after another one's cut
    home.do("second", OPS["NODE_TRUNCATE"], 9 * PAGE)
    assert agent("os.ftruncate(fd, 9 * PAGE) or os.fstat(fd).st_size") == 9 * PAGE


def test_what_the_home_has_cut_is_short(late, agents):
    _, path, home = late
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)", path=path)
    assert home.do("size", 100, CUTS + 1) == 0
    assert agent("os.fstat(fd).st_size") == 100


def test_a_size_from_before_an_open(late, agents):
    """What the home had sent before it answered the OPEN is older, and what it says with as many cuts makes no file shorter."""
    _, path, home = late
    agent = agents()
    agent.do("fd = os.open(path, os.O_RDWR)", path=path)
    for cuts in (0, CUTS - 1, CUTS):
        assert home.do("size", 100, cuts) == 0
        assert agent("os.fstat(fd).st_size") == 2 * PAGE
    assert home.do("size", 100, CUTS + 1) == 0
    assert agent("os.fstat(fd).st_size") == 100


def test_the_home_answers_sizes(meet):
    """To each change, with a count that rises when it has cut the file."""
    _, path, member = meet()
    one = member()
    assert one.do("track", path) == 0 and one.do("open", path) == 0

    def said():
        return one.do("said", 0), one.do("said", 1)
    assert said() == (0, 2 * PAGE)
    assert one.do("write") == PAGE
    cuts, size = said()
    assert size == 2 * PAGE
    assert one.do("fallocate", 3 * PAGE + 1) == 0
    assert said() == (cuts, 3 * PAGE + 1)
    assert one.do("cut", 100) == 0
    now, size = said()
    assert now > cuts and size == 100
    assert one.do("write") == PAGE  # a page that is written back makes no file longer
    assert said() == (now, 100)


@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("change", ["a", "r+"])
def test_a_change_behind_the_mounts_and_an_open(cluster, agents, home, change):
    """An open looks at the data directory, also where the file's home is another node; a device there has the old bytes."""
    nodes = cluster(2, "timeout=0")
    nodes.make(b"a" * 5000, home=home)
    device, cpu = agents(), agents()
    for agent in device, cpu:
        agent.do("def look():\n    with open(path, 'rb') as file:\n        return file.read()", path=nodes.path(0))
    device.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 8192)\nassert map[0] == 97 and map[4999] == 97")
    assert cpu("look()") == b"a" * 5000
    with open(nodes.below(), change, encoding="ascii") as file:
        file.write("b" * 1000)
    drop_host_cache(nodes.below())
    assert cpu("look()") == read_file(nodes.below())


@pytest.mark.parametrize("opener", SIDES)
def test_a_change_behind_the_mounts_an_open_and_an_acquire(cluster, agents, opener):
    """What a program of whatever node has opened and read a device has after its next acquire, though it has asked the data
    directory just before (`timeout`)."""
    nodes = cluster(2, "timeout=60")
    nodes.make(b"a" * 5000, home=0)
    device = Program(agents(), nodes.path(0), cpu=False)
    check("before", device.acquired(), b"a" * 5000)
    with open(nodes.below(), "r+b") as file:
        file.write(b"b" * 1000)
    changed = read_file(nodes.below())
    assert read_file(nodes.path(0 if opener == "home" else 1)) == changed
    check("after", device.acquired(), changed)
