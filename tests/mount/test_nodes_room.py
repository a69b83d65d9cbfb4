# SPDX-License-Identifier: Apache-2.0
"""Several nodes: what can't be stored. A disk that is full, a quota, a limit, a mount that is read only; whichever node a
program is on, the right one is told, nothing hangs, and the daemons live."""
import contextlib
import errno
import mmap
import os
import signal

import pytest

import conftest
from conftest import measures_memory
from files import pattern
from helpers import MIB, PAGE, ROWS, AgentDied, Plan, agents, daemon_with_faults, error_of, read_file, stand_still  # noqa: F401
from nodes import SIDES, Program, check, cluster, tracked, tracked_by_all  # noqa: F401
from test_disks import fill, small, small_ext4  # noqa: F401
from test_durability import write_async
from test_small_memory import memory_group  # noqa: F401


@pytest.fixture
def full(cluster, agents, request):
    """Two nodes over a small filesystem, and a program on each that has a file of 1 MiB, which is a hole, open twice:
    (cluster, the program of who acts first, the other node's, a function that takes all room, one that gives it back)."""
    first = request.getfixturevalue("first")

    def start(kind="small", options="timeout=0"):
        nodes = cluster(2, options, data=request.getfixturevalue(kind))
        nodes.make(b"", home=0)
        os.truncate(nodes.path(0), MIB)
        programs = [Program(agents(), nodes.path(number)) for number in nodes.sides(nodes.below(), first)]
        for program in programs:
            program.agent.do("quiet = os.open(path, os.O_RDWR)")
            assert program.load() == bytes(MIB)
        return nodes, *programs, lambda: fill(nodes.data), lambda: os.unlink(os.path.join(nodes.data, "ballast"))

    return start


def told(*programs):
    """What fsync() says to each descriptor."""
    return [error_of(program.agent.do, f"os.fsync({fd})") for program in programs for fd in ("fd", "quiet")]


def end(nodes, *programs):
    for program in programs:
        program.agent.end()
    for m in nodes:
        assert m.unmount() is None


# --- a full disk ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_a_write_for_which_there_is_no_room(full, first):
    """Its writer is told, nobody else; where half of it goes in, it says how much, and the other node sees that."""
    nodes, one, two, take, give = full()
    take()
    assert error_of(one.write, 0, b"x" * 65536) == errno.ENOSPC
    assert told(one, two) == [0] * 4
    check("read()", two.read(), bytes(MIB))
    ballast = os.path.join(nodes.data, "ballast")
    os.truncate(ballast, os.path.getsize(ballast) // PAGE * PAGE - 80 * PAGE)
    done = one.agent("os.pwrite(fd, b'w' * (1 << 20), 0)")
    assert 0 < done < MIB
    one.fsync()
    for program in two, one:
        check("what went in", program.read(), b"w" * done + bytes(MIB - done))
    give()
    one.write(0, b"z" * MIB)
    one.fsync()
    for program in two, one:
        check("with room", program.read(), b"z" * MIB)
    end(nodes, one, two)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("kind, count", [("small", 256), ("small_ext4", 1)])
def test_stores_that_cannot_be_written_back(full, first, kind, count):
    """They are lost, as the kernel calls its pages clean: whoever had the file open is told, on both nodes, and fsync()
    fails on and on, until all that was lost was written again, by whichever node."""
    nodes, one, two, take, give = full(kind)
    take()
    one.store(0, b"S" * count * PAGE)
    assert error_of(one.msync) == errno.ENOSPC
    for _ in range(2):
        assert told(one, two) == [errno.ENOSPC] * 4
    for program in one, two:
        assert error_of(program.agent.do, "map.sync()") == errno.ENOSPC
    give()
    assert told(one, two) == [errno.ENOSPC] * 4  # the room came too late
    if count > 1:
        two.write(0, b"R" * (count - 1) * PAGE)
        assert told(one, two) == [errno.ENOSPC] * 4
    two.write((count - 1) * PAGE, b"R" * PAGE)
    told(one, two)  # each may hear once more of what went before
    assert told(one, two) == [0] * 4
    for program in one, two:
        error_of(program.agent.do, "map.sync()")
        program.agent.do("map.sync()")
        check("written again", program.read(), b"R" * count * PAGE + bytes(MIB - count * PAGE))
    end(nodes, one, two)


@pytest.mark.parametrize("first", SIDES)
def test_a_release_for_which_there_is_no_room(full, agents, first):
    """Who reads it or syncs is told, on both nodes; a touch of another device is SIGBUS. The bytes stay with the device,
    and are there for all when there is room."""
    nodes, one, two, take, give = full("small_ext4")
    content = bytes(pattern(MIB))
    one.device_store(0, content)
    take()
    one.release()
    assert told(one, two) == [errno.ENOSPC] * 4
    for program in one, two:
        assert error_of(program.agent.do, "map.sync()") == errno.ENOSPC
        assert error_of(program.read, 10, 5 * PAGE) == errno.ENOSPC
    assert error_of(two.acquire) in (0, errno.ENOSPC)
    toucher = Program(agents(), f"/proc/{two.pid}/fd/{two.agent('fd')}", "soft:1")
    toucher.agent.start("map[7 * PAGE]", "eval")
    assert not toucher.agent.busy(20), "a touch hangs"
    with pytest.raises(AgentDied) as died:
        toucher.agent.finish()
    assert died.value.code == -signal.SIGBUS
    check("the device that has it", one.device_load(), content)
    give()
    told(one, two)
    assert told(one, two) == [0] * 4
    for program in one, two:
        check("with room", program.read(), content)
    check("the other device", two.acquired(), content)
    check("below", read_file(nodes.below()), content)
    end(nodes, one, two)


@pytest.mark.parametrize("first", ["agent"])
def test_what_is_released_again_with_room(full, first):
    """The home has it then, as well as what it had no room for, and keeps it when the node dies."""
    nodes, one, two, take, give = full("small_ext4")
    content = bytearray(pattern(PAGE))
    one.device_store(0, bytes(content))
    take()
    one.release()
    assert error_of(two.read, 10) == errno.ENOSPC
    give()
    content[9:14] = b"again"
    one.device_store(9, b"again")
    one.release()
    nodes[nodes.sides(nodes.below(), first)[0]].kill()
    check("with room", two.read(PAGE), content)
    one.agent.kill()


@pytest.mark.parametrize("first", ["agent"])
@pytest.mark.parametrize("asked", ["later", "meanwhile"])
def test_what_there_was_no_room_for_goes_with_its_node(full, first, asked):
    """And the next sync says so, once to each descriptor. Who asks for it while the node is found out to be gone gets what
    there is."""
    nodes, one, two, take, give = full("small_ext4", "timeout=0,peer_timeout=1")
    one.device_store(0, b"released" * 512)
    take()
    one.release()
    give()
    node = nodes[nodes.sides(nodes.below(), first)[0]]
    if asked == "later":
        node.kill()
    else:
        node.expected_exit = None
        stand_still(node.pid)
    check("what there is", two.read(PAGE), bytes(PAGE))
    assert told(two) == [errno.EIO] * 2
    assert told(two) == [0] * 2
    if asked == "meanwhile":
        node.kill()
    one.agent.kill()


@pytest.mark.traps  # what is mapped on another is not evicted
@pytest.mark.parametrize("first", SIDES)
def test_evictions_for_which_there_is_no_room(full, first):
    """A device that is smaller than the file: a touch gets its page or SIGBUS, and nothing that was released is lost."""
    _nodes, one, two, take, give = full(options="timeout=0,device_cache=512K")
    for page in range(48):
        one.device_store(page * PAGE, bytes([page + 1]) * PAGE)
    one.release()
    take()
    one.agent.start("for at in range(48, 256): map[at * PAGE]")
    assert not one.agent.busy(20), "a touch hangs"
    try:
        one.agent.finish()
    except AgentDied as died:
        assert died.code == -signal.SIGBUS
    give()
    check("read()", two.read(48 * PAGE), b"".join(bytes([page + 1]) * PAGE for page in range(48)))


@pytest.mark.parametrize("first", SIDES)
def test_unmounts_while_there_is_no_room(full, first):
    """What can't be stored is lost then, and only that; both daemons end, and the home says that it could not."""
    nodes, one, two, take, _ = full()
    one.write(0, b"stored")
    one.fsync()
    one.device_store(50 * PAGE, b"device")
    one.release()
    two.device_store(60 * PAGE, b"device")
    take()
    for program in one, two:
        program.agent.end()
    for m in nodes[::-1]:
        m.expected_exit = None
        assert m.unmount() is None
        said = "what devices held and nodes wrote could not all be written, and is lost: No space left on device" in m.log_text()
        assert m.proc.returncode == said
    assert any(m.proc.returncode for m in nodes)
    content = read_file(nodes.below())
    assert len(content) == MIB and content[:6] == b"stored"
    for page in range(256):
        was = b"stored" if not page else b"device" if page in (50, 60) else b""
        assert content[page * PAGE:(page + 1) * PAGE] in (was + bytes(PAGE - len(was)), bytes(PAGE))


# --- quotas and limits ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_a_home_whose_quota_is_used_up(cluster, agents, workdir, monkeypatch, first):
    """Its programs and an agent's are told the same. (The daemon's calls are made to fail: tests/faults.)"""
    code = errno.EDQUOT
    monkeypatch.setattr(conftest, "BIN", os.path.join(os.environ.get("GAIAFS_BUILD", os.path.join(conftest.TOP, "build", "gcc")),
                                                      "faults"))
    nodes = cluster(2, only=[])
    plan = Plan.make(os.path.join(workdir, "plan"))
    for number in range(2):
        nodes.mount(number, env={"GAIAFS_FAULTS": os.path.join(workdir, "plan")} if number == 0 else {})
    content = pattern(8 * PAGE)
    nodes.make(content, home=0)
    one, two = (Program(agents(), nodes.path(number)) for number in nodes.sides(nodes.below(), first))
    for program in one, two:
        check("before", program.load(), content)
        check("before", program.device_load(), content)  # else it is filled by a write, too
    for what in ("write", "store", "device"):
        plan.arm(ROWS.index("pwrite64"), code, 1, 1)
        if what == "write":
            assert error_of(one.write, 5, b"write") == code
        elif what == "store":
            one.store(PAGE + 5, b"store")
            assert error_of(one.msync) == code
            assert error_of(two.fsync) == code == error_of(one.fsync)
        else:
            one.device_store(2 * PAGE + 5, b"device")
            one.release()
            assert error_of(one.fsync) == code == error_of(two.fsync)
            assert error_of(two.read, 10, 2 * PAGE) == code
        plan.row = -1
        assert plan.landed
    one.write(PAGE, content[PAGE:2 * PAGE])
    for program in (one, two):
        error_of(program.fsync)
        program.fsync()
        check("with room", program.read(), content[:2 * PAGE + 5] + b"device" + content[2 * PAGE + 11:])
    end(nodes, one, two)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("what", ["direct", "appended"])
def test_a_write_of_an_agent_that_asks_to_be_durable(cluster, agents, workdir, monkeypatch, what):
    """Of a descriptor of O_SYNC. The kernel asks for no fsync after direct I/O that nobody has waited for."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, only=[])
    for number in range(2):
        nodes.mount(number, env=env if number == 0 else {})
    nodes.make(pattern(2 * PAGE), home=0)
    programs = [Program(agents(), nodes.path(number)) for number in range(2)]
    tracked_by_all(nodes)
    fd = os.open(nodes.path(1), os.O_SYNC | (os.O_RDWR | os.O_DIRECT if what == "direct" else os.O_WRONLY | os.O_APPEND))
    with mmap.mmap(-1, PAGE) as page:
        write = {"direct": lambda: -write_async(fd, page, 0), "appended": lambda: error_of(os.write, fd, page)}[what]
        plan.arm(ROWS.index("fsync"), errno.EIO, 1, 0)
        assert write() == errno.EIO and plan.landed
        plan.row = -1
    os.close(fd)
    for program in programs:
        program.write(0, bytes(4 * PAGE))
        error_of(program.fsync)
    end(nodes, *programs)


@pytest.mark.parametrize("first", SIDES)
def test_daemons_with_a_limit_of_file_size(cluster, agents, first):
    """RLIMIT_FSIZE would end them with SIGXFSZ: who writes is told instead."""
    nodes = cluster(2, only=[])
    for number in range(2):
        nodes.mount(number, before=["prlimit", f"--fsize={1 << 30}"])
    content = pattern(2 * PAGE)
    nodes.make(content, home=0)
    one, two = (Program(agents(), nodes.path(number)) for number in nodes.sides(nodes.below(), first))
    for program in one, two:
        assert error_of(program.write, 1 << 30, b"x") == errno.EFBIG
        assert error_of(program.truncate, (1 << 30) + 1) == errno.EFBIG
        assert error_of(program.agent.do, "os.posix_fallocate(fd, 1 << 30, 1)") == errno.EFBIG
        check("after it", program.read(), content)
    one.write(5, b"goes on")
    one.fsync()
    check("after it", two.read(), content[:5] + b"goes on" + content[12:])


# --- read only ------------------------------------------------------------------------------------------------------------

READER = """
fd = os.open(path, os.O_RDONLY)
cpu = mmap.mmap(fd, length, prot=mmap.PROT_READ)
dev = gaia.Device()
map = dev.mmap(fd, length, prot=gaia.PROT_READ)
"""


@pytest.mark.parametrize("which", SIDES)
def test_a_node_that_is_mounted_read_only(cluster, agents, which):
    """Its programs see what the others write, and write nothing; as the home it stores what others write."""
    nodes = cluster(2)
    content = bytearray(pattern(6 * PAGE + 10))
    nodes.make(content, home=0)
    reads, writes = nodes.sides(nodes.below(), which)
    assert nodes[reads].unmount() is None
    nodes.mount(reads, "timeout=0,ro")
    writer, reader = Program(agents(), nodes.path(writes)), agents()
    reader.do(READER, path=nodes.path(reads), length=len(content))
    assert tracked(nodes[0]) == ["f"]
    for turn, what in enumerate(["write", "store", "device_store", "truncate"] * 4):
        at = turn * 700
        if what == "truncate":
            writer.truncate(len(content) - 1)
            writer.fsync()
            content.pop()
        else:
            getattr(writer, what)(at, b"turn %d" % turn)
            {"write": writer.fsync, "store": writer.msync, "device_store": writer.release}[what]()
            new = b"turn %d" % turn
            content[at:at + len(new)] = new
        assert reader("os.fstat(fd).st_size") == len(content)
        check("read()", reader("os.pread(fd, 1 << 30, 0)"), content)
        check("load", reader("cpu[:n]", n=len(content)), content)
        check("device", reader("(map.acquire(), map[:n])[1]", n=len(content)), content)
    assert error_of(reader.do, "os.open(path, os.O_RDWR)") == errno.EROFS
    assert error_of(reader.do, "dev.mmap(fd, length)") == errno.EACCES
    assert error_of(os.truncate, nodes.path(reads), 5) == errno.EROFS == error_of(os.unlink, nodes.path(reads))
    reader.end()
    end(nodes, writer)
    check("the data directory", read_file(nodes.below()), bytes(content))


def frames_of(mounted):
    """What the memory of a daemon's soft devices has, in bytes: of its own files, and of other homes'."""
    found = {}
    for fd in os.listdir(f"/proc/{mounted.pid}/fd"):
        with contextlib.suppress(OSError):
            path = f"/proc/{mounted.pid}/fd/{fd}"
            if "gaiafs:frames" in os.readlink(path):
                status = os.stat(path)
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


@measures_memory
@pytest.mark.limit(120)
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=conftest.not_in_the_gate)])
def test_devices_of_a_node_with_little_memory(memory_group, cluster, agents, monkeypatch, count):
    """All its soft devices read files of all homes, with nothing said of how much each may have: they have a quarter of
    its memory, as without nodes, and the daemon is not killed for it."""
    before, kills = memory_group
    # ASan keeps up to 256 MiB of what was freed.
    monkeypatch.setenv("ASAN_OPTIONS", f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=16")
    nodes = cluster(count, only=[])
    nodes.mount(0, before=before)
    for number in range(1, count):
        nodes.mount(number)
    pages = 32 << 8
    for home in range(count):
        nodes.make(b"." * PAGE * pages, name=f"f{home}", home=home, through=count - 1)
    program = agents()
    for home in [*range(1, count), 0]:
        program.do("fd = os.open(path, os.O_RDWR)\nmaps = [gaia.Device(f'soft:{n}').mmap(fd, pages * PAGE) for n in range(8)]\n"
                   "for n, map in enumerate(maps):\n    for page in range(pages):\n        map[page * PAGE + n]",
                   path=nodes.path(0, f"f{home}"), pages=pages)
        have = frames_of(nodes[0])
        print(home, have >> 20)
        assert have <= 33 << 20
    program.kill()
    assert kills() == 0
