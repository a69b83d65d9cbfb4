# SPDX-License-Identifier: Apache-2.0
"""Several nodes (-o node=, peers=): what is promised of a file does not depend on which of them a program or a device is.
Each test has two orders: the home of the file acts first, or an agent does."""
import os
import re
import stat
import subprocess
import sys

import pytest

import gaia
from files import pattern
from helpers import BIN, MIB, PAGE, agents, make_random, read_file, statistics  # noqa: F401
from nodes import SIDES, Program, all_see, check, cluster, home_of, pair, tracked, tracked_by_all  # noqa: F401

PAGES = 20


# --- who is the home ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("count", [2, 3])
def test_home_is_where_the_hash_says(cluster, agents, count):
    """The other tests rely on home_of(); and every node is the home of some file."""
    nodes = cluster(count)
    for home in range(count):
        name = f"f{home}"
        nodes.make(pattern(PAGE), name, home)
        assert home_of(nodes.below(name), nodes.names) == nodes.names[home]
        for number in range(count):
            Program(agents(), nodes.path(number, name), cpu=False).device_load()
        assert [name in tracked(m) for m in nodes] == [number == home for number in range(count)]


# --- whose change it is ---------------------------------------------------------------------------------------------------

USER = 65534


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("change", ["os.ftruncate(fd, 200)", "os.truncate(path, 300)", "os.open(path, os.O_WRONLY | os.O_TRUNC)",
                                    "os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b'x')", "os.pwrite(fd, b'x', 0)"])
def test_a_users_change_clears_set_id_bits(cluster, agents, first, change):
    """Who makes it at the home is root, for whom they stay. Without the group's x bit the one of the group stays if the user is in it."""
    nodes = cluster(2)
    nodes.make(bytes(PAGE), home=0)
    path = nodes.path(nodes.sides(nodes.below(), first)[0])
    Program(agents(), path).device_load()
    with open(path, "rb+") as file:
        for group, before, after in (0, 0o6777, 0o777), (0, 0o6767, 0o767), (USER, 0o6767, 0o2767):
            os.chown(path, 0, group)
            os.chmod(path, before)
            subprocess.run([sys.executable, "-c", f"import os, sys\nfd = int(sys.argv[1])\npath = f'/proc/self/fd/{{fd}}'\n{change}",
                            str(file.fileno())], pass_fds=[file.fileno()], user=USER, group=USER, extra_groups=[], check=True)
            assert [stat.S_IMODE(os.stat(where).st_mode) for where in (path, nodes.below())] == [after, after]


# --- devices and CPUs, one after the other --------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
def test_release_is_seen_by_everyone(pair, agents, first, flags):
    """By read(), mappings and devices of both nodes; another reader is the first in each turn."""
    content = bytearray(pattern(PAGES * PAGE))
    nodes, writer, other, numbers = pair(content, flags=flags)
    beside = Program(agents(), nodes.path(numbers[0]), device="soft:1", flags=flags)
    readers = {"the writer's node": beside, "the other node": other}
    all_see(readers, content)
    rng = make_random()
    for turn in range(30):
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        writer.device_store(offset, new)
        content[offset:offset + len(new)] = new
        writer.release()
        looks = [(name, look) for name in readers for look in ("read", "load", "acquired", "direct")]
        for name, look in looks[turn % len(looks):] + looks[:turn % len(looks)]:
            check(f"turn {turn}, {look} on {name}", getattr(readers[name], look)(), content)


@pytest.mark.parametrize("first", SIDES)
def test_durable_writes_to_a_page_that_others_write_to(pair, first):
    """Their kernel keeps the page locked until it has the answer, and asks for a sync by itself after it: a sync within the write would
    wait until the page is dropped that is locked."""
    content = bytearray(PAGE)
    _nodes, writer, other, _ = pair(content)
    other.agent.start("turn = 0\nwhile os.pread(fd, 1, 50) == b'\\0': turn += os.pwrite(fd, b'%8d' % turn, 100)")
    writer.agent.do("for turn in range(60): os.pread(fd, 1, 0), os.pwritev(fd, [b'%8d' % turn], 0, os.RWF_DSYNC)\n"
                    "os.pwritev(fd, [b'x'], 50, os.RWF_DSYNC)")
    other.agent.finish()
    content[:8], content[50:51], content[100:108] = b"%8d" % 59, b"x", b"%8d" % (other.agent("turn") - 8)
    all_see({"the writer": writer, "the other": other}, content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
def test_write_is_seen_by_the_next_acquire(pair, agents, first, flags):
    """No flush, no close: write() has returned."""
    content = bytearray(pattern(PAGES * PAGE))
    nodes, writer, other, numbers = pair(content, flags=flags)
    beside = Program(agents(), nodes.path(numbers[0]), device="soft:1", flags=flags)
    rng = make_random()
    for turn in range(30):
        length = rng.choice([1, 100, PAGE, 3 * PAGE + 7])
        offset = rng.randrange(len(content) - length)
        new = rng.randbytes(length)
        writer.write(offset, new)
        content[offset:offset + length] = new
        for program in (other, beside, writer)[:: 1 if turn % 2 else -1]:
            check(f"turn {turn}", program.acquired(), content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("flush", ["msync", "sync_file_range", "acquire"])
def test_store_through_a_mapping_is_seen_by_devices(pair, first, flush):
    content = bytearray(pattern(PAGES * PAGE))
    _nodes, writer, other, _ = pair(content)
    check("other", other.acquired(), content)
    rng = make_random()
    for turn in range(30):
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        writer.store(offset, new)
        content[offset:offset + len(new)] = new
        getattr(writer, flush)()
        check(f"turn {turn}", other.acquired(), content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("look", ["its own device", "the other node's"])
@pytest.mark.parametrize("flags", [gaia.SHARED, gaia.RESIDENT])
def test_store_through_a_mapping_is_seen_by_the_next_acquire(pair, first, look, flags):
    """Nobody flushes: the kernel of the node where it was made is made to write it back."""
    content = bytearray(pattern(PAGES * PAGE))
    _nodes, writer, other, _ = pair(content, options="timeout=60", flags=flags)
    tell = writer if look == "its own device" else other
    check("other", tell.acquired(), content)
    rng = make_random()
    for turn in range(30):
        for _ in range(rng.choice([1, 1, 5])):
            offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
            writer.store(offset, new)
            content[offset:offset + len(new)] = new
        check(f"turn {turn}", tell.acquired(), content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("how", ["write", "store"])
@pytest.mark.parametrize("flush", ["fsync", "close_once", "msync"])
def test_what_a_cpu_has_flushed_is_seen_by_the_other_nodes_cpus(pair, first, how, flush):
    """By read() and by loads of a program that has read and mapped it all along."""
    if (how, flush) == ("store", "close_once"):
        pytest.skip("closing a descriptor is promised for write()")
    content = bytearray(pattern(PAGES * PAGE))
    nodes, writer, other, _ = pair(content)
    tracked_by_all(nodes)
    rng = make_random()
    for turn in range(30):
        assert other.read() == bytes(content) == other.load()  # its kernel has the pages
        offset, new = rng.randrange(len(content) - 10), rng.randbytes(rng.choice([1, 10]))
        getattr(writer, how)(offset, new)
        content[offset:offset + len(new)] = new
        getattr(writer, flush)()
        for look in ("read", "load") if turn % 2 else ("load", "read"):
            check(f"turn {turn}, {look}", getattr(other, look)(), content)


@pytest.mark.parametrize("first", SIDES)
def test_both_nodes_alternate_in_one_page(pair, first):
    """CPU and device of either node store bytes of one page in turn; everyone sees everything after each turn."""
    content = bytearray(pattern(PAGE))
    _nodes, one, two, _ = pair(content)
    rng = make_random()
    for turn in range(40):
        program = (one, two)[turn % 2]
        offset, value = rng.randrange(PAGE), bytes([rng.randrange(256)])
        what = rng.choice(["device_store", "write", "store"])
        getattr(program, what)(offset, value)
        {"device_store": program.release, "write": program.fsync, "store": program.msync}[what]()
        content[offset] = value[0]
        all_see({"the one": one, "the other": two}, content)


# --- at the same time -----------------------------------------------------------------------------------------------------

ROUNDS = """
import random
rng = random.Random(seed)
last = {}
for round_ in range(rounds):
    for _ in range(40):
        value, which = rng.randrange(256), rng.randrange(len(kinds))
        kind = kinds[which]
        offset = rng.randrange(start + which * step, size, step * most)
        if kind == "write":
            os.pwrite(fd, bytes([value]), offset)
        elif kind == "store":
            cpu[offset] = value
        else:
            map[offset] = value
            if rng.random() < 0.1:
                map.release()
        last[offset] = value
    if rng.random() < 0.3:
        os.fsync(fd)
    if "device" in kinds and rng.random() < 0.5:
        map.acquire()
os.fsync(fd)
if "device" in kinds:
    map.release()
"""


def race(programs, content, kinds, rounds=30):
    """Each stores to its own bytes of all pages at once, its device and its CPU, too (bytes that both store without
    release and acquire between them would be either's). content becomes what the file must hold then."""
    seed = make_random().randrange(1 << 30)
    for number, (program, kind) in enumerate(zip(programs, kinds)):
        program.agent.start(ROUNDS, start=number, step=len(programs), size=len(content), kinds=kind, rounds=rounds,
                            seed=seed + number, most=max(map(len, kinds)))
    for program in programs:
        program.agent.finish()
    for program in programs:
        for offset, value in program.agent("last").items():
            content[offset] = value


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("kinds", ["write", "store", "write store"])
def test_cpus_of_two_nodes_in_the_same_pages(pair, first, kinds):
    """Every second byte of each page belongs to the other node; no byte is undone by a neighbour's."""
    content = bytearray(pattern(4 * PAGE))
    nodes, one, two, _ = pair(content)
    tracked_by_all(nodes)
    for _ in range(3):
        race([one, two], content, [kinds.split()] * 2)
        all_see({"the one": one, "the other": two}, content)
    assert read_file(nodes.below()) == bytes(content)


@pytest.mark.parametrize("first", SIDES)
def test_devices_of_two_nodes_in_the_same_pages_and_writes_beside_them(pair, agents, first):
    content = bytearray(pattern(4 * PAGE))
    nodes, one, two, numbers = pair(content)
    writers = [Program(agents(), nodes.path(number), device="soft:1") for number in numbers]
    for _ in range(3):
        race([one, two, *writers], content, [["device"], ["device"], ["write"], ["write"]], 20)
        all_see({"the one": one, "the other": two, "writer one": writers[0], "writer two": writers[1]}, content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.limit(120)
def test_everything_of_both_nodes_in_the_same_pages(pair, agents, first):
    content = bytearray(pattern(3 * PAGE + 100))
    nodes, one, two, numbers = pair(content)
    more = [Program(agents(), nodes.path(number), device="soft:1") for number in numbers]
    for _ in range(3):
        race([one, two, *more], content, [["device", "write", "store"]] * 4, 20)
        all_see({"the one": one, "the other": two, "third": more[0], "fourth": more[1]}, content)


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("how", ["write", "store", "device_store"])
def test_of_two_that_store_the_same_byte_one_wins_the_same_for_all(pair, first, how):
    content = bytearray(pattern(2 * PAGE))
    nodes, one, two, _ = pair(content)
    tracked_by_all(nodes)
    flush = {"write": "fsync", "store": "msync", "device_store": "release"}[how]
    for turn in range(20):
        at = turn * 7
        if how == "device_store":
            one.acquire()
            two.acquire()
        getattr(one, how)(at, b"\1" if content[at] != 1 else b"\3")
        getattr(two, how)(at, b"\2" if content[at] != 2 else b"\4")
        for program in (one, two):
            program.agent.start({"fsync": "os.fsync(fd)", "msync": "cpu.flush()", "release": "map.release()"}[flush])
        for program in (one, two):
            program.agent.finish()
        got = one.read()
        assert got[at] in (1, 2, 3, 4) and got[:at] + got[at + 1:] == bytes(content[:at] + content[at + 1:])
        content[at] = got[at]
        all_see({"the one": one, "the other": two}, content)


# --- sizes ----------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("how", ["ftruncate", "truncate", "fallocate", "write"])
@pytest.mark.parametrize("timeout", [0, 20])
def test_a_new_size_is_seen_on_the_other_node(pair, first, how, timeout):
    """By stat() at once, or, where the kernel keeps attributes, after an fsync(); by read() after that."""
    length = 8 * PAGE
    content = bytearray(pattern(length))
    nodes, one, two, numbers = pair(content, f"timeout={timeout}")
    both = {"the one": one, "the other": two}
    all_see(both, content)
    rng = make_random()
    for turn in range(20):
        size = rng.choice([0, 1, PAGE - 1, PAGE, PAGE + 1, rng.randrange(length), length])
        if how in ("fallocate", "write"):  # these only grow
            one.truncate(rng.randrange(size + 1))
            del content[one.size():]
        content[size:] = b""
        content += bytes(size - len(content))
        if how == "ftruncate":
            one.truncate(size)
        elif how == "truncate":
            os.truncate(nodes.path(numbers[0]), size)
        elif how == "fallocate" and size:
            one.agent.do("os.posix_fallocate(fd, 0, size)", size=size)
        elif how == "write" and size:
            one.write(size - 1, b"x")
            content[size - 1:] = b"x"
        if timeout:
            one.fsync()
        assert two.size() == size == os.stat(nodes.path(numbers[1])).st_size
        one.fsync()
        if size:
            all_see(both, content)
        assert two.read() == bytes(content)
        one, two, numbers = two, one, numbers[::-1]


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("flush", ["fsync", "close_once"])
@pytest.mark.parametrize("look", ["read", "device", "size and load"])
def test_growth_is_seen_without_a_look_at_the_size(pair, first, flush, look):
    """By read() and devices. What can't be done is a load past the end that the kernel knows, before anything else of its
    node has asked for the size: no FUSE server can tell the kernel of a new one."""
    content = bytearray(pattern(8 * PAGE))
    _nodes, one, two, _ = pair(content, "timeout=20")
    for turn in range(10):
        one.truncate(100)
        one.fsync()
        assert two.size() == 100
        check("before", two.read(), content[:100])
        new = pattern(8 * PAGE - 100, turn)
        one.write(100, new)
        getattr(one, flush)()
        content[100:] = new
        if look == "size and load":
            assert two.size() == len(content)
            check("load()", two.load(), content)
        else:
            check(look, two.read() if look == "read" else two.acquired(), content)


@pytest.mark.parametrize("first", SIDES)
def test_what_was_cut_off_does_not_come_back(pair, first):
    """Nor with bytes that a device of the other node, or its kernel, had there; past the end there are zeros."""
    content = bytearray(pattern(4 * PAGE))
    _nodes, one, two, _ = pair(content)
    two.device_store(3 * PAGE + 5, b"device")
    two.store(3 * PAGE + 50, b"mapping")
    two.store(PAGE + 3000, b"tail")
    two.device_store(PAGE + 3100, b"tail")
    two.release()
    one.truncate(PAGE + 100)
    assert two.size() == PAGE + 100
    two.msync()
    two.release()
    assert one.size() == two.size() == PAGE + 100
    one.truncate(4 * PAGE)
    one.fsync()
    content[PAGE + 100:] = bytes(3 * PAGE - 100)
    all_see({"the one": one, "the other": two}, content)


@pytest.mark.parametrize("first", SIDES)
def test_appends_of_both_nodes(pair, agents, first):
    """O_APPEND goes to the end that the file has, whoever has moved it."""
    nodes, one, two, _ = pair(pattern(100), cpu=False)
    content = bytearray(pattern(100))
    for program in one, two:
        program.agent.do("log = os.open(f'/proc/self/fd/{fd}', os.O_WRONLY | os.O_APPEND)")
    for turn in range(30):
        line = b"%d\n" % turn * (turn + 1)
        (one, two)[turn % 2].agent.do("os.write(log, line)\nos.fsync(log)", line=line)
        content += line
        for program in one, two:
            check(f"turn {turn}", program.read(), content)
            assert program.size() == len(content)
    assert read_file(nodes.below()) == bytes(content)


# --- small devices --------------------------------------------------------------------------------------------------------

@pytest.mark.traps  # what is mapped on another stays
@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("options", ["unit=4K", "unit=64K", "evict=clock"])
@pytest.mark.limit(120)
def test_a_file_larger_than_the_device(pair, first, options):
    """Twice the cache and more, on both nodes at once: evictions, readahead, stores that leave with them."""
    content = bytearray(pattern(4 * MIB))
    nodes, one, two, _ = pair(content, f"timeout=0,device_cache=1M,{options}")
    for program in one, two:
        check("a first pass", program.device_load(), content)
    for turn in range(3):
        for number, program in enumerate((one, two)):
            program.agent.start("for at in range(number, length, 1024): map[at] = at // 1024 * 7 + turn & 255",
                                number=number, turn=turn)
            for at in range(number, len(content), 1024):
                content[at] = at // 1024 * 7 + turn & 255
        for program in one, two:
            program.agent.finish()
        for program in one, two:
            program.release()
        for program in one, two:
            check(f"turn {turn}", program.acquired(), content)
    check("read()", two.read(), content)
    evictions = sum(d["evictions"] for m in nodes for d in statistics(m.mnt)["devices"])
    assert evictions > 0


@pytest.mark.parametrize("first", SIDES)
@pytest.mark.parametrize("advice", [gaia.ADV_RANDOM, gaia.ADV_SEQUENTIAL, gaia.ADV_WILLNEED, gaia.ADV_DONTNEED])
def test_advice(pair, first, advice):
    content = bytearray(pattern(2 * MIB))
    _nodes, one, two, _ = pair(content)
    for program in one, two:
        program.device_store(MIB, b"before")
        content[MIB:MIB + 6] = b"before"
        program.agent.do("map.advise(advice)", advice=advice)
        check("", program.device_load(), content)
        program.release()


# --- three nodes ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("writer", range(3))
@pytest.mark.parametrize("home", range(3))
@pytest.mark.limit(120)
def test_three_nodes(cluster, agents, writer, home):
    nodes = cluster(3)
    content = bytearray(pattern(4 * PAGE))
    nodes.make(content, home=home)
    programs = [Program(agents(), nodes.path(number)) for number in range(3)]
    by_name = dict(zip(nodes.names, programs))
    all_see(by_name, content)
    for turn, what in enumerate(["device_store", "write", "store"] * 3):
        getattr(programs[writer], what)(100 * turn, b"abc%d" % turn)
        {"device_store": programs[writer].release, "write": programs[writer].fsync, "store": programs[writer].msync}[what]()
        content[100 * turn:100 * turn + 4] = b"abc%d" % turn
        all_see(by_name, content)
    race(programs, content, [["device", "write"], ["device", "store"], ["write", "store"]], 15)
    all_see(by_name, content)


# --- what gaiactl says ----------------------------------------------------------------------------------------------------

def test_gaiactl_says_how_bytes_move_between_nodes(cluster, agents):
    """Path, counts and latency of the transfers that an agent posts, in both forms; a home posts none."""
    nodes = cluster(options="timeout=0,queues=3,depth=5")
    content = pattern(PAGES * PAGE)
    nodes.make(content, home=0)
    program = Program(agents(), nodes.path(1), cpu=False)
    assert program.device_load() == content
    seen = statistics(nodes[1].mnt)["nodes"]["transfers"]
    assert (seen["queues"], seen["depth"]) == (3, 5)
    # Another process can't write to a GPU's memory, which a first transfer finds out.
    failed = int(os.environ.get("GAIA_DEVICE", "").startswith("cuda"))
    assert (seen["path"], seen["device"], seen["outstanding"], seen["failed"]) == ("local", "local", 0, failed)
    assert seen["reads"] > 0 and seen["bytes_read"] >= len(content) and seen["outstanding_max"] > 0
    assert 0 < seen["latency_p50_ns"] <= seen["latency_p99_ns"] <= seen["latency_max_ns"]
    program.device_store(3 * PAGE, b"abc")
    program.release()
    seen = statistics(nodes[1].mnt)["nodes"]["transfers"]
    assert seen["writes"] > 0 and seen["bytes_written"] >= PAGE
    assert not any(statistics(nodes[0].mnt)["nodes"]["transfers"][kind] for kind in ("reads", "writes", "failed"))

    said = [subprocess.run([os.path.join(BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True, check=True).stdout
            for m in nodes]
    assert "\n  node a of 2\n  node b: up, home, agent\n" in said[0] and "\n  node b of 2\n  node a: up, home, agent\n" in said[1]
    line = re.search(r"^  transfers: path local \(local\), 3 queues of 5, 0 outstanding \(at most (\d+)\), (\d+) reads, \S+, "
                     rf"(\d+) writes, \S+, p50 (\S+) us, p99 (\S+) us, max (\S+) us, {failed} failed$", said[1], re.M)
    assert line and [int(n) for n in line.groups()[:3]] == [seen[kind] for kind in ("outstanding_max", "reads", "writes")]
    assert 0 < float(line[4]) <= float(line[5]) <= float(line[6])
    assert "transfers: path local (local), 3 queues of 5, 0 outstanding (at most 0), 0 reads, 0B, 0 writes, 0B, " in said[0]


def test_gaiactl_says_nothing_of_nodes_where_there_are_none(mount):
    m = mount()
    assert "transfers" not in statistics(m.mnt)["nodes"]
    said = subprocess.run([os.path.join(BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True, check=True).stdout
    assert "node" not in said.replace(m.mnt, "").replace(m.data, "") and "transfers" not in said
