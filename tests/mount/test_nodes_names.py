# SPDX-License-Identifier: Apache-2.0
"""Several nodes: names of a tracked file that go, change and come through another node than the one that uses it."""
import ctypes
import os

import pytest

from files import pattern
from helpers import PAGE, agents, make_random, read_file, statistics, wait_until, write_file  # noqa: F401
from nodes import SIDES, Program, all_see, check, cluster, tracked  # noqa: F401

SIZE = 6 * PAGE + 100
AT_FDCWD, RENAME_EXCHANGE = -100, 2


@pytest.fixture
def pair(cluster, agents, request):
    """Two nodes and a program on each: (cluster, programs by the number of their node, content, who acts first, the other)."""
    def start(content=None, options="timeout=0"):
        nodes = cluster(2, options)
        content = bytearray(pattern(SIZE) if content is None else content)
        nodes.make(content, home=0)
        first, second = nodes.sides(nodes.below(), request.getfixturevalue("first"))
        programs = {number: Program(agents(), nodes.path(number)) for number in (first, second)}
        return nodes, programs, content, first, second

    return start


def go_on(programs, content, rng):
    """Everything that programs do to a file, by each of them; and everyone sees it."""
    for program in programs.values():
        for what, flush in (("device_store", "release"), ("write", "fsync"), ("store", "msync")):
            new = rng.randbytes(rng.choice([1, 30, PAGE]))
            at = rng.randrange(len(content) - len(new))
            getattr(program, what)(at, new)
            getattr(program, flush)()
            content[at:at + len(new)] = new
        all_see(programs, content)


def deleted_files_of(m):
    """Descriptors that the daemon holds of files without a name."""
    found = []
    for fd in os.listdir(f"/proc/{m.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{m.pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(m.data) and target.endswith(" (deleted)"):
            found.append(target)
    return found


def held(m):
    """What the mount has of files that are open, on a device, or gone."""
    stat = statistics(m.mnt)
    return {"files": stat["files"], "open": stat["open"], "handles": stat["kernel"]["open"],
            "far": stat["nodes"]["far_files"], "resident": sum(d["resident_bytes"] for d in stat["devices"]),
            "twins": sum(d["twins"] for d in stat["devices"]), "deleted": deleted_files_of(m)}


def nothing_is_held(nodes, programs, *names):
    """All programs end. A kernel finds out about a name that went through another node when it looks at it again."""
    for program in programs:
        program.agent.end()
    empty = {"files": [], "open": [], "handles": 0, "far": 0, "resident": 0, "twins": 0, "deleted": []}

    def done():
        for m in nodes:
            for name in names:
                os.path.lexists(os.path.join(m.mnt, name))
        return all(held(m) == empty for m in nodes)
    try:
        wait_until(done, what="nothing held")
    except AssertionError:
        pytest.fail("; ".join(f"{m.mnt}: {held(m)}" for m in nodes))


def names_of(nodes):
    """As every node has them: they must agree with the data directory."""
    below = sorted(os.listdir(nodes.data))
    for m in nodes:
        assert sorted(os.listdir(m.mnt)) == below
    return below


# --- names that go --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_unlinked_through_the_other_node(pair, first):
    """What is open and mapped goes on on both nodes; a new file of that name is another one; in the end all is free."""
    rng = make_random()
    nodes, programs, content, one, two = pair()
    programs[one].device_store(10, b"released and not read")
    programs[one].release()
    content[10:31] = b"released and not read"
    os.unlink(nodes.path(two))
    go_on(programs, content, rng)
    assert names_of(nodes) == [] and not os.path.exists(nodes.path(one))
    programs[two].truncate(3 * PAGE + 7)
    programs[one].truncate(SIZE)
    content[3 * PAGE + 7:] = bytes(SIZE - 3 * PAGE - 7)
    for program in programs.values():
        program.grown()
    go_on(programs, content, rng)
    write_file(nodes.path(two), b"another")
    assert read_file(nodes.path(one)) == b"another" and programs[one].size() == SIZE
    go_on(programs, content, rng)
    assert read_file(nodes.below()) == b"another"
    nothing_is_held(nodes, programs.values(), "f")


@pytest.mark.parametrize("first", SIDES)
def test_only_one_node_has_it_when_its_name_goes(pair, agents, first):
    """The home may have nothing of it open; the other node's program goes on, opens it anew and maps it again."""
    rng = make_random()
    nodes, programs, content, one, two = pair()
    all_see(programs, content)
    programs.pop(two).agent.end()
    os.unlink(nodes.path(two))
    assert names_of(nodes) == []
    go_on(programs, content, rng)
    again = Program(agents(), f"/proc/{programs[one].pid}/fd/{programs[one].agent('fd')}", "soft:1", length=SIZE)
    programs = {"old": programs[one], "again": again}
    go_on(programs, content, rng)
    programs.pop("old").agent.end()
    go_on(programs, content, rng)
    nothing_is_held(nodes, programs.values(), "f")


@pytest.mark.parametrize("first", SIDES)
def test_mapped_by_a_device_after_its_name_went(cluster, agents, first):
    """It becomes tracked when it has no name any more."""
    rng = make_random()
    nodes = cluster()
    content = bytearray(pattern(SIZE))
    nodes.make(content, home=0)
    one, two = nodes.sides(nodes.below(), first)
    programs = {number: Program(agents(), nodes.path(number), device=None) for number in (one, two)}
    programs[one].store(100, b"stored, and not written back")
    content[100:128] = b"stored, and not written back"
    check("before", programs[two].read(), bytes(pattern(SIZE)))
    os.unlink(nodes.path(two))
    for number in (one, two):
        programs[number].agent.do("dev = gaia.Device('soft:0')\nmap = dev.mmap(fd, length)")
        check(f"the first look of {number}", programs[number].acquired(), content)
    go_on(programs, content, rng)
    nothing_is_held(nodes, programs.values(), "f")


@pytest.mark.parametrize("first", SIDES)
def test_programs_are_killed_that_have_a_file_without_a_name(pair, first):
    nodes, programs, content, one, two = pair()
    all_see(programs, content)
    os.unlink(nodes.path(two))
    for program in programs.values():
        program.device_store(5, b"unreleased")
        program.store(50, b"dirty")
    programs[one].release()
    programs[one].agent.kill()
    content[5:15] = b"unreleased"
    content[50:55] = b"dirty"
    programs[two].release()
    check("the survivor", programs[two].read(), content)
    programs[two].agent.kill()
    nothing_is_held(nodes, [], "f")


@pytest.mark.parametrize("first", SIDES)
def test_many_files_that_come_and_go_leave_no_descriptor(cluster, agents, first):
    nodes = cluster()
    nodes.make(b"stays", home=0)
    one, two = nodes.sides(nodes.below(), first)
    worker = agents()
    counts = []
    for turn in range(24):
        nodes.make(pattern(PAGE, turn), "g", home=turn % 2)
        worker.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device()\nmap = dev.mmap(fd, 4096)\nmap[turn] = 1\n"
                  "map.release()\nos.close(fd)", path=nodes.path(one, "g"), turn=turn)
        os.unlink(nodes.path(two, "g"))
        worker.do("map.release()\nmap.acquire()\nassert map[turn] == 1\ndev.close()")
        for m in nodes:
            os.path.exists(os.path.join(m.mnt, "g"))
        if turn in (7, 23):
            wait_until(lambda: not any(deleted_files_of(m) or held(m)["far"] for m in nodes), what="closed")
            counts.append([len(os.listdir(f"/proc/{m.pid}/fd")) for m in nodes])
    assert all(after <= before + 2 for before, after in zip(*counts)), counts


# --- names that change ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_renamed_through_the_other_node(pair, agents, first):
    """Also into a folder, and the folder with it; by its new name each node finds the same file."""
    rng = make_random()
    nodes, programs, content, one, two = pair()
    all_see(programs, content)
    os.rename(nodes.path(two), nodes.path(two, "moved"))
    go_on(programs, content, rng)
    os.mkdir(nodes.path(one, "folder"))
    os.rename(nodes.path(two, "moved"), nodes.path(two, "folder/inside"))
    go_on(programs, content, rng)
    os.rename(nodes.path(one, "folder"), nodes.path(one, "other"))
    assert names_of(nodes) == ["other"]
    for number in (one, two):
        programs[f"by its new name on {number}"] = Program(agents(), nodes.path(number, "other/inside"), "soft:1")
    go_on(programs, content, rng)
    assert not os.path.exists(nodes.path(one, "folder/inside")) and not os.path.exists(nodes.path(two, "moved"))
    os.unlink(nodes.path(two, "other/inside"))
    os.rmdir(nodes.path(two, "other"))
    go_on(programs, content, rng)
    nothing_is_held(nodes, programs.values(), "f", "moved", "folder", "other")


@pytest.mark.parametrize("first", SIDES)
def test_renamed_over_through_the_other_node(pair, agents, first):
    """Both are tracked, by two homes. Who has the replaced one open keeps it; by the name there is the other."""
    rng = make_random()
    nodes, programs, content, one, two = pair()
    fresh = bytearray(pattern(2 * SIZE, 7))
    nodes.make(fresh, "g", home=1)
    others = {number: Program(agents(), nodes.path(number, "g"), "soft:1") for number in (one, two)}
    for program in (programs[one], others[one]):
        program.device_store(1000, b"pending")
        program.release()
    content[1000:1007] = fresh[1000:1007] = b"pending"
    os.rename(nodes.path(two, "g"), nodes.path(two))
    assert names_of(nodes) == ["f"]
    go_on(programs, content, rng)
    go_on(others, fresh, rng)
    for number in (one, two):
        others[f"by name on {number}"] = Program(agents(), nodes.path(number), "soft:2")
    go_on(others, fresh, rng)
    all_see(programs, content)
    os.unlink(nodes.path(one))
    nothing_is_held(nodes, [*programs.values(), *others.values()], "f", "g")


@pytest.mark.parametrize("first", SIDES)
def test_names_exchanged_through_the_other_node(pair, agents, first):
    rng = make_random()
    nodes, programs, content, one, two = pair()
    fresh = bytearray(pattern(SIZE, 7))
    nodes.make(fresh, "g", home=1)
    others = {one: Program(agents(), nodes.path(one, "g"), "soft:1")}
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(AT_FDCWD, nodes.path(two).encode(), AT_FDCWD, nodes.path(two, "g").encode(), RENAME_EXCHANGE) == 0
    others["by its new name"] = Program(agents(), nodes.path(two, "f"), "soft:2")
    programs["by its new name"] = Program(agents(), nodes.path(one, "g"), "soft:2")
    go_on(programs, content, rng)
    go_on(others, fresh, rng)
    assert read_file(nodes.below("g")) == bytes(content) and read_file(nodes.below("f")) == bytes(fresh)


# --- names that come ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_a_second_name_through_the_other_node(pair, agents, first):
    """It is the same file on both nodes; it stays when the first name goes."""
    rng = make_random()
    nodes, programs, content, one, two = pair()
    os.link(nodes.path(two), nodes.path(two, "link"))
    for number in (one, two):
        assert os.stat(nodes.path(number)).st_nlink == os.stat(nodes.path(number, "link")).st_nlink == 2
        programs[f"by its second name on {number}"] = Program(agents(), nodes.path(number, "link"), "soft:1")
    go_on(programs, content, rng)
    os.unlink(nodes.path(one))
    assert names_of(nodes) == ["link"] and os.stat(nodes.path(two, "link")).st_nlink == 1
    go_on(programs, content, rng)
    programs.pop(one).agent.end()
    programs.pop(two).agent.end()
    go_on(programs, content, rng)
    os.unlink(nodes.path(two, "link"))
    go_on(programs, content, rng)
    nothing_is_held(nodes, programs.values(), "f", "link")


TMPFILE = """
fd = os.open(folder, os.O_RDWR | os.O_TMPFILE)
os.pwrite(fd, content, 0)
cpu = mmap.mmap(fd, len(content))
dev = gaia.Device()
map = dev.mmap(fd, len(content))
"""


@pytest.mark.parametrize("first", SIDES)
def test_a_name_for_a_file_that_had_none(cluster, agents, first):
    """O_TMPFILE on one node, linked there after a device has mapped it, opened on the other."""
    rng = make_random()
    nodes = cluster()
    content = bytearray(pattern(SIZE))
    for _ in range(100):  # its home is what the hash says; nobody can ask for another
        agent = agents()
        one = Program(agent, os.devnull, device=None, cpu=False, length=SIZE)
        agent.do(TMPFILE, folder=nodes[0].mnt, content=bytes(content))
        if bool(tracked(nodes[0])) == (first == "home"):
            break
        agent.end()
    else:
        pytest.fail("none of 100 files has the home that was wanted")
    one.device_store(7, b"before it has a name")
    one.release()
    content[7:27] = b"before it has a name"
    assert agent("ctypes.CDLL(None).linkat(-100, b'/proc/self/fd/%d' % fd, -100, os.fsencode(path), 0x400)",  # follow it
                 path=nodes.path(0)) == 0
    assert names_of(nodes) == ["f"]
    programs = {"maker": one, "other": Program(agents(), nodes.path(1))}
    go_on(programs, content, rng)
    os.unlink(nodes.path(1))
    go_on(programs, content, rng)
    nothing_is_held(nodes, programs.values(), "f")


# --- times ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
def test_times_that_are_set_after_a_release_stay(pair, first):
    """On whichever node they are set, and whoever has released."""
    nodes, programs, _content, one, two = pair()
    for turn, (stores, sets) in enumerate(((one, two), (two, one), (one, one), (two, two))):
        programs[stores].device_store(turn * PAGE, b"released")
        programs[stores].release()
        os.utime(nodes.path(sets), ns=(10 ** 18, 10 ** 18 + turn))
        for program in programs.values():
            assert program.read()[turn * PAGE:turn * PAGE + 8] == b"released"
            program.fsync()
        assert os.stat(nodes.below()).st_mtime_ns == 10 ** 18 + turn
