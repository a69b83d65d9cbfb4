# SPDX-License-Identifier: Apache-2.0
"""Stores through CPU mappings on one node, and acquires on another: whose kernel is asked to write back, when, and what that
costs it. (That an acquire sees such stores: test_nodes.py, test_nodes_random.py and tests/history, too.)"""
import errno
import os
import signal
import subprocess
import time

import pytest

from conftest import Mount, so_much
from files import pattern
from helpers import PAGE, agents, error_of, functions_of, make_random, read_file, statistics, tool, wait_until  # noqa: F401
from nodes import SIDES, Program, check, cluster, served, tracked_by_all  # noqa: F401

PAGES = 40
FLUSHER = " (gaiafs-flusher) "


def flushers():
    """(pid, parent) of all."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                pid, _, rest = file.read().partition(FLUSHER)
        except (OSError, ValueError):
            continue
        if rest and not rest.startswith("Z"):
            found.append((int(pid), int(rest.split()[1])))
    return found


def flusher_of(m):
    return [pid for pid, parent in flushers() if parent == m.pid]


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(") ")[2][0]


def stop_between(m, pid):
    """SIGSTOP to a flusher that does nothing just now: with a file open it would be in the way of umount."""
    def stopped():
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: state_of(pid) == "T", what="a flusher that is stopped")  # an open() under way comes to its end first
        open_ = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        if not any(name.startswith(m.mnt) for name in open_):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(stopped, 10, "a flusher that has nothing open")


@pytest.fixture
def two(cluster, agents, request):
    """(cluster, content, node that writes, node that acquires, a program there), the first being `writer`."""
    writer = request.getfixturevalue("writer")

    def start(options="timeout=60", count=2):
        nodes = cluster(count, options)
        content = bytearray(pattern(PAGES * PAGE))
        nodes.make(content, home=0)
        one, other = nodes.sides(nodes.below(), writer)
        return nodes, content, one, other, Program(agents(), nodes.path(other), cpu=False)

    return start


class Writer:
    """A process that stores through a mapping, and has nothing to do with devices."""

    def __init__(self, agent, path, flags="os.O_RDWR"):
        self.agent = functions_of("nodes", agent)
        agent.do(f"fd = os.open(path, {flags})", path=path)

    def map(self, prot="mmap.PROT_READ | mmap.PROT_WRITE"):
        self.agent.do(f"cpu = mmap.mmap(fd, 0, prot={prot})")

    def store(self, content, offset, new):
        self.agent.do("cpu[at:at + len(new)] = new", at=offset, new=new)
        content[offset:offset + len(new)] = new

    def close(self):
        self.agent.do("os.close(fd)")

    def unmap(self):
        self.agent.do("cpu.close()")


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_who_has_it_mapped_before_a_device_has(cluster, agents, writer, when):
    """The home hears of writers when it begins to track the file, too."""
    nodes = cluster(2, "timeout=60")
    content = bytearray(pattern(PAGES * PAGE))
    nodes.make(content, home=0)
    one, other = nodes.sides(nodes.below(), writer)
    cpu = Writer(agents(), nodes.path(one)) if when == "before" else None
    if cpu:
        cpu.map()
        cpu.store(content, 5, b"before")
    device = Program(agents(), nodes.path(other), cpu=False)
    if not cpu:
        cpu = Writer(agents(), nodes.path(one))
        cpu.map()
    check("first", device.acquired(), content)
    for turn in range(5):
        cpu.store(content, turn * PAGE + 100, b"store%d" % turn)
        check(f"turn {turn}", device.acquired(), content)


@pytest.mark.parametrize("writer", SIDES)
def test_a_mapping_that_outlives_its_descriptor(two, agents, writer):
    """Others that come and go say nothing of it."""
    nodes, content, one, _other, device = two()
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    cpu.close()
    for turn in range(3):
        os.close(os.open(nodes.path(one), os.O_RDWR))
        cpu.store(content, turn * PAGE + 7, b"kept")
        check(f"turn {turn}", device.acquired(), content)
    cpu.store(content, 9 * PAGE, b"last")
    cpu.unmap()
    check("unmapped", device.acquired(), content)


@pytest.mark.parametrize("writer", ["agent"])
def test_only_nodes_with_writers_are_asked(two, agents, writer):
    """Who reads costs an acquire nothing; nor does who wrote, once that is over."""
    nodes, content, one, _other, device = two()
    reader = Writer(agents(), nodes.path(one), "os.O_RDONLY")
    reader.map("mmap.PROT_READ")
    tracked_by_all(nodes)
    assert reader.agent("cpu[:]") == content
    before = served(nodes[one], "write_back")

    def asked_by(times):
        nonlocal before
        for _ in range(times):
            check("acquire", device.acquired(), content)
        now = served(nodes[one], "write_back")
        count, before = now - before, now
        return count

    assert asked_by(3) == 0
    writers = [Writer(agents(), nodes.path(one), flags) for flags in ("os.O_RDWR", "os.O_WRONLY")]
    assert asked_by(3) == 3
    writers[0].close()
    assert asked_by(3) == 3
    writers[1].close()

    def over():
        return asked_by(1) == 0
    wait_until(over, what="an acquire that asks nobody")
    assert asked_by(3) == 0
    writers[0].agent.do("fd = os.open(path, os.O_RDWR)", path=nodes.path(one))
    writers[0].map()
    writers[0].store(content, 3, b"again")
    assert asked_by(3) == 3


@pytest.mark.parametrize("writer", ["agent"])
def test_who_holds_no_page_is_not_asked(two, agents, writer):
    """As programs that store with their devices alone: they have the file open for writing, and the kernel has nothing of it."""
    nodes, content, one, _other, device = two()
    writer = Program(agents(), nodes.path(one))
    before = served(nodes[one], "write_back")
    for turn in range(3):
        writer.device_store(turn, b"device")
        writer.release()
        content[turn:turn + 6] = b"device"
        check(f"turn {turn}", device.acquired(), content)
    assert served(nodes[one], "write_back") == before
    writer.store(PAGE + 1, b"cpu")
    content[PAGE + 1:PAGE + 4] = b"cpu"
    check("mapping", device.acquired(), content)
    assert served(nodes[one], "write_back") == before + 1


@pytest.mark.parametrize("writer", SIDES)
def test_pages_stay_where_they_are(two, agents, writer):
    """What a kernel holds of the file it goes on holding: only what was stored to moves."""
    nodes, content, one, _other, device = two()
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    assert cpu.agent("bytes(cpu)") == content
    rng = make_random()
    for turn in range(4):
        cpu.store(content, rng.randrange(PAGES) * PAGE + turn, bytes([turn]))
        check(f"turn {turn}", device.acquired(), content)
        assert cpu.agent("pages_held(cpu)") == PAGES


@pytest.mark.parametrize("writer", SIDES)
def test_without_its_flusher(two, agents, writer):
    """Pages are dropped then."""
    nodes, content, one, _other, device = two()
    (pid,) = flusher_of(nodes[one])
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    cpu.store(content, 1, b"flushed")
    check("with it", device.acquired(), content)
    os.kill(pid, signal.SIGKILL)
    for turn in range(12):  # more than it had threads
        cpu.store(content, turn * PAGE + 5, b"dropped")
        check(f"turn {turn}", device.acquired(), content)
    assert nodes[one].log_text().count("no flusher: it has ended") == 1


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("flusher", ["there", "killed"])
def test_writes_beside_acquires(two, agents, writer, flusher):
    """What a write() has written the next read() finds, also where acquires elsewhere have the page dropped meanwhile."""
    nodes, _content, one, _other, device = two()
    if flusher == "killed":
        os.kill(flusher_of(nodes[one])[0], signal.SIGKILL)
    device.agent.start("end = time.monotonic() + seconds\nwhile time.monotonic() < end: map.acquire()",
                       seconds=so_much(5, 3))
    status, stale = tool("tool_beside", nodes.path(one), so_much(4, 2))
    device.agent.finish()
    assert status == 0, stale


@pytest.mark.parametrize("writer", SIDES)
def test_who_writes_on_and_on(two, agents, writer):
    """A write() that was on its way as the pages were dropped is followed by one more drop of its page (cache/heal.h). The next ones
    can't have been, though the other node's kernel writes nothing."""
    nodes, content, one, other, device = two()
    path = nodes.path(one)
    with open(path, "r+b", buffering=0) as file:
        check("before", file.read(), content)
        check("elsewhere", read_file(nodes.path(other)), content)
        for page in range(PAGES):
            device.device_store(page * PAGE + 9, b"device")
            content[page * PAGE + 9:page * PAGE + 15] = b"device"
        device.release()
        time.sleep(1.1)  # OPEN_NS: for so long each may have been
        before = sum(statistics(node.mnt)["heals"] for node in nodes)
        for turn in range(3):
            for page in range(PAGES):
                os.pwrite(file.fileno(), bytes([turn]), page * PAGE + turn)
                content[page * PAGE + turn] = turn
        assert sum(statistics(node.mnt)["heals"] for node in nodes) - before <= 2
    check("device", device.acquired(), content)


@pytest.mark.parametrize("writer", SIDES)
def test_a_number_of_a_dead_flusher(two, agents, writer):
    """A program that gets the thread's number opens files as any other."""
    nodes, content, one, _other, device = two()
    (pid,) = flusher_of(nodes[one])
    numbers = sorted(int(number) for number in os.listdir(f"/proc/{pid}/task"))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not flusher_of(nodes[one]), what="end of the flusher")
    check("first", device.acquired(), content)
    cpu = functions_of("nodes", agents())
    child = cpu("store_as(number, path, at, new)", number=numbers[3], path=nodes.path(one), at=5, new=b"heir")
    if child < 0:
        pytest.skip(f"no process can be had by its number: errno {-child}")
    content[5:9] = b"heir"
    try:
        check("stored", device.acquired(), content)
    finally:
        os.kill(child, signal.SIGKILL)
        cpu.do("os.waitpid(child, 0)", child=child)


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("flusher", ["there", "killed"])
@pytest.mark.parametrize("when", ["in the acquire", "before"])
def test_what_cannot_be_written_back(cluster, agents, workdir, writer, flusher, when):
    """Each map hears of it once, whoever had it written back; the programs' fsync() as ever."""
    data = os.path.join(workdir, "small")
    os.mkdir(data)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", data], check=True)
    try:
        nodes = cluster(2, "timeout=60", data=data)
        nodes.make(b"", home=0)
        os.truncate(nodes.path(0), PAGES * PAGE)
        one, other = nodes.sides(nodes.below(), writer)
        devices = [Program(agents(), nodes.path(other), cpu=False) for _ in range(2)]
        for device in devices:
            check("first", device.acquired(), bytes(PAGES * PAGE))
        cpu = Writer(agents(), nodes.path(one))
        cpu.map()
        assert cpu.agent("bytes(cpu)") == bytes(PAGES * PAGE)
        if flusher == "killed":
            os.kill(flusher_of(nodes[one])[0], signal.SIGKILL)
        with open(os.path.join(data, "ballast"), "wb", buffering=0) as ballast:
            assert error_of(lambda: [ballast.write(bytes(PAGE)) for _ in range(2000)]) == errno.ENOSPC
        cpu.store(bytearray(PAGE), 5, b"store")
        if when == "before":
            cpu.agent("sync_file_range(fd)")
        for device in devices:
            assert error_of(device.acquire) == errno.ENOSPC
        for device in devices:
            device.acquire()
        assert error_of(cpu.agent, "os.fsync(fd)") in (errno.ENOSPC, errno.EIO)
        for program in (*devices, cpu):
            program.agent.end()
        for m in nodes:
            m.expected_exit = None
            m.unmount()
    finally:
        subprocess.run(["umount", "-l", data], check=True)


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("how", ["umount", "SIGTERM"])
def test_a_flusher_that_was_stopped(two, agents, writer, how):
    """It holds up acquires, and not the end of the mount."""
    nodes, content, one, other, device = two("timeout=60,peer_timeout=2")
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    cpu.store(content, 5, b"x")
    (pid,) = flusher_of(nodes[one])
    stop_between(nodes[one], pid)
    device.agent.start("map.acquire()")
    time.sleep(1)  # until it has been told to
    cpu.unmap()
    cpu.close()
    cpu.agent.end()
    if how == "umount":
        subprocess.run(["umount", nodes[one].mnt], check=True)
    else:
        os.kill(nodes[one].pid, signal.SIGTERM)
    assert nodes[one].proc.wait(30) == 0
    device.agent.kill()
    nodes[other].expected_exit = None


@pytest.mark.parametrize("stopped", [1, 2])
def test_nodes_are_asked_at_once(cluster, agents, stopped):
    """One whose flusher does nothing keeps no other from writing back, whichever is asked first."""
    nodes = cluster(3, "timeout=60")
    content = bytearray(pattern(PAGES * PAGE))
    nodes.make(content, home=0)
    device = Program(agents(), nodes.path(0), cpu=False)
    cpus = [Writer(agents(), nodes.path(number)) for number in (1, 2)]
    for at, cpu in enumerate(cpus):
        cpu.map()
        cpu.store(content, at * PAGE, b"at once")
    (pid,) = flusher_of(nodes[stopped])
    before = served(nodes[3 - stopped], "write_back")
    os.kill(pid, signal.SIGSTOP)
    try:
        device.agent.start("map.acquire()")
        wait_until(lambda: served(nodes[3 - stopped], "write_back") > before, what="the other node's write-back")
    finally:
        os.kill(pid, signal.SIGCONT)
    device.agent.finish()
    check("both", device.device_load(), content)


@pytest.mark.parametrize("writer", SIDES)
def test_a_lease_is_not_waited_for(two, agents, writer):
    nodes, content, one, _other, device = two()
    check("first", device.acquired(), content)
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    cpu.agent.do("import fcntl, signal\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
                 "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)")
    cpu.store(content, 5, b"leased")
    begin = time.monotonic()
    check("acquired", device.acquired(), content)
    assert time.monotonic() - begin < 20  # of 45 that a lease may take


@pytest.mark.parametrize("writer", SIDES)
def test_a_mount_over_the_mount(two, agents, writer):
    """What lies at the mount's path now is none of the flusher's business."""
    nodes, content, one, _other, device = two()
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", nodes[one].mnt], check=True)
    try:
        for turn in range(3):
            cpu.store(content, turn * PAGE + 5, b"below")
            check(f"turn {turn}", device.acquired(), content)
    finally:
        subprocess.run(["umount", nodes[one].mnt], check=True)


@pytest.mark.parametrize("writer", SIDES)
@pytest.mark.parametrize("how", ["umount", "SIGTERM", "SIGKILL"])
def test_the_flusher_ends_with_its_daemon(two, agents, writer, how):
    """It keeps nobody from unmounting, either."""
    nodes, content, one, _other, device = two()
    cpu = Writer(agents(), nodes.path(one))
    cpu.map()
    cpu.store(content, 1, b"x")
    check("acquired", device.acquired(), content)
    cpu.unmap()
    cpu.close()
    (pid,) = flusher_of(nodes[one])
    if how == "umount":
        assert nodes[one].unmount() is None
    elif how == "SIGTERM":
        os.kill(nodes[one].pid, signal.SIGTERM)
        assert nodes[one].proc.wait(20) == 0
    else:
        Mount.kill(nodes[one])
    wait_until(lambda: pid not in [flusher for flusher, _ in flushers()], what="end of the flusher")


@pytest.mark.parametrize("writer", ["agent"])
def test_the_next_home_knows_of_them(cluster, agents, writer):
    """Who has mapped the file for stores goes on when its home dies; what it stores then a device's acquire sees."""
    nodes = cluster(3, "timeout=60,peer_timeout=4")  # the next home is waited for for four times as long
    content = bytearray(pattern(PAGES * PAGE))
    nodes.make(content, home=0)
    cpu = Writer(agents(), nodes.path(1))
    cpu.map()
    first = Program(agents(), nodes.path(2), cpu=False)
    check("first", first.acquired(), content)
    cpu.store(content, 5, b"one")
    check("one", first.acquired(), content)
    cpu.agent.do("os.fsync(fd)")
    Mount.kill(nodes[0])
    first.direct()  # which waits for the next home
    # What is stored before its kernel has dropped what it had is lost with the dead home, and an acquire would say so.
    wait_until(lambda: cpu.agent("pages_held(cpu)") == 0, 20)
    second = Program(agents(), nodes.path(2), device="soft:1", cpu=False)
    for turn in range(3):
        cpu.store(content, turn * PAGE + 50, b"two")
        check(f"turn {turn}", second.acquired(), content)
