# SPDX-License-Identifier: Apache-2.0
"""Several nodes, one of which is slow, stands still or lies: what others do beside it goes on."""
import errno
import os
import re
import signal
import time

import pytest

from conftest import not_in_the_gate
from files import pattern
from gpu_fixture import gpu, make  # noqa: F401
from helpers import (MIB, PAGE, ROWS, agents, cuda_standin, daemon_with_faults, error_of, read_file,  # noqa: F401
                     stand_still, statistics, wait_until)
from nodes import Program, cluster  # noqa: F401
from member import OPS, Member
from test_frames import Hostile

on_another_node = pytest.mark.parametrize("gpu", ["on another node"], indirect=True)
MANY = 12  # files; more than the threads that some version had for them


def files_of_a_node_that_stands_still(nodes, agents, many):
    """Many files of node 0 that devices there map, and whose first page node 2's kernel holds: their writer, whose
    function makes these pages old."""
    for number in range(many):
        nodes.make(pattern(2 * PAGE), f"held{number}", home=0)
    writer, still = agents(), agents()
    for agent, node in (writer, 0), (still, 2):
        agent.do("held = [os.open(path + str(number), os.O_RDWR) for number in range(many)]", path=nodes.path(node, "held"),
                 many=many)
    writer.do("dev = gaia.Device('soft:0')\nmaps = [dev.mmap(fd, PAGE) for fd in held]")
    still.do("assert all(len(os.pread(fd, PAGE, 0)) == PAGE for fd in held)")

    def write():
        writer.do("for fd in held:\n    assert os.pwrite(fd, os.urandom(1), 0) == 1")
    return write


@pytest.fixture
def still(cluster, agents):
    """A function: still(options="timeout=0") -> (nodes of which the third will stand still, a function that makes it)."""
    stopped = []

    def start(options="timeout=0"):
        nodes = cluster(3, f"{options},peer_timeout=25".strip(","))

        def stop(many=MANY):
            write = files_of_a_node_that_stands_still(nodes, agents, many)
            stopped.append(nodes[2].pid)
            stand_still(nodes[2].pid)
            write()
        return nodes, stop

    yield start
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_a_sync_of_a_file_that_a_still_node_does_not_have(still, agents):
    """However many files there are of which it has."""
    nodes, stop = still()
    nodes.make(pattern(2 * PAGE), home=0)
    mine, other = Program(agents(), nodes.path(0), cpu=False), Program(agents(), nodes.path(1), device=None)
    stop()
    for turn in range(3):
        other.read()
        mine.write(turn, b"NEW")
        mine.agent.start("error_of(os.fsync, fd)", "eval")
        assert not mine.agent.busy(10)
        assert mine.agent.finish() == 0


@pytest.mark.parametrize("what", ["acquire()", "release()"])
def test_a_map_beside_many_syncs_that_wait_for_a_still_node(still, agents, what):
    """Of a node that is no home: its programs wait for as many fsync()s as may be under way. (CALL_WIDTH of io/call.h)"""
    many = 16
    nodes, stop = still()
    nodes.make(pattern(2 * PAGE), home=0)
    mine = Program(agents(), nodes.path(1), cpu=False)
    waits = [agents() for _ in range(many)]
    stop(many)
    for number, agent in enumerate(waits):
        agent.do("fd = os.open(path, os.O_RDWR)\nos.pwrite(fd, b'x', 5)", path=nodes.path(1, f"held{number}"))
        agent.start("error_of(os.fsync, fd)", "eval")
    assert all(agent.busy(0.1) for agent in waits)
    mine.device_store(0, b"device")
    mine.agent.start(f"map.{what}")
    assert not mine.agent.busy(10)
    mine.agent.finish()


def one_beside_many(nodes, agents, name, many):
    """Programs of node 1, which map files of node 0: one, and one for each of many other files."""
    nodes.make(pattern(2 * PAGE), home=0)
    mine, others = Program(agents(), nodes.path(1), cpu=False), [agents() for _ in range(many)]
    for number, agent in enumerate(others):
        nodes.make(pattern(2 * PAGE), f"{name}{number}", home=0)
        agent.do("map = gaia.Device('soft:0').mmap(os.open(path, os.O_RDWR), PAGE)\nmap[0]",
                 path=nodes.path(1, f"{name}{number}"))
    return mine, others


def test_a_map_beside_many_acquires_that_wait_for_a_still_node(still, agents):
    """Which has open what a CPU has appended to. Each is of a file of its own: of one file few are under way at a time. It reads
    only: no acquire asks it for stores."""
    many = 16
    nodes, stop = still()
    mine, waits = one_beside_many(nodes, agents, "grows", many)
    writer, other = agents(), agents()
    for agent, node, flags in (writer, 0, os.O_RDWR), (other, 2, os.O_RDONLY):
        agent.do("grow = [os.open(path + str(number), flags) for number in range(many)]\n"
                 "for fd in grow:\n    os.pread(fd, 1, 0)", path=nodes.path(node, "grows"), flags=flags, many=many)
    stop()
    writer.do("for fd in grow:\n    os.pwrite(fd, b'x', 2 * PAGE)")
    for agent in waits:
        agent.start("error_of(map.acquire)", "eval")
    assert all(agent.busy(0.1) for agent in waits)
    mine.device_store(0, b"device")
    mine.agent.start("map.release()")
    assert not mine.agent.busy(10)
    mine.agent.finish()


@pytest.mark.parametrize("what", ["release()", "map"])
def test_a_map_beside_many_acquires_that_ask_a_still_node_for_stores(still, agents, what):
    """Whose programs have the files open for writing, and may have stored to them. Neither who releases another file waits behind
    that, nor who maps it."""
    many = 16
    nodes, stop = still()
    mine, waits = one_beside_many(nodes, agents, "stored", many)
    other = agents()
    other.do("stored = [os.open(path + str(number), os.O_RDWR) for number in range(many)]\n"
             "for fd in stored:\n    os.pread(fd, 1, 0)", path=nodes.path(2, "stored"), many=many)
    stop(1)
    for agent in waits:
        agent.start("error_of(map.acquire)", "eval")
    assert all(agent.busy(0.1) for agent in waits)
    mine.device_store(0, b"device")
    mine.agent.start("again = dev.mmap(fd, length)" if what == "map" else "map.release()")
    assert not mine.agent.busy(10)
    mine.agent.finish()


@pytest.mark.parametrize("node", [0, 2])
def test_an_acquire_of_what_was_appended(cluster, agents, node):
    """When it has returned every kernel knows the size: who hears of it from what the device stores next reads it. (All are told
    at the same time, so c knows before that.)"""
    nodes = cluster(3, "timeout=30,peer_timeout=25", only=[0, 2])
    for name in "f", "flag":
        nodes.make(pattern(2 * PAGE), name, home=0)
    device = agents()
    device.do("dev = gaia.Device('soft:0')\nmap, flag = (dev.mmap(os.open(path, os.O_RDWR), 1 << 20) for path in paths)",
              paths=[nodes.path(node, name) for name in ("f", "flag")])
    writer, reader = agents(), agents()
    writer.do("fd = os.open(path, os.O_WRONLY | os.O_APPEND)", path=nodes.path(0))
    reader.do("fd, flag = (os.open(path, os.O_RDONLY) for path in paths)", paths=[nodes.path(2, name) for name in ("f", "flag")])
    slow = Member(nodes.peers)  # b
    try:
        slow.has_read_page(nodes.below())
        assert reader("len(os.pread(fd, 1 << 20, 0))") == 2 * PAGE
        slow.do("pause", OPS["NODE_INVALIDATE"], 3000)
        began = time.monotonic()
        writer.do("os.write(fd, b'NEW')")
        device.do("map.acquire()\nflag[:4] = map[at:at + 3] + b'!'\nflag.release()", at=2 * PAGE)
        assert time.monotonic() - began >= 3, "b has not said yet that it knows"
        assert reader("os.pread(flag, 4, 0)") == b"NEW!"
        assert reader("os.pread(fd, 3, at)", at=2 * PAGE) == b"NEW"
    finally:
        slow.kill()


def test_heals_beside_a_node_that_stands_still(cluster, agents, request):
    """WRITEs that meet releases whose pages a kernel that stands still has not dropped: they concern their own kernel, and
    all are healed in time, as are those of a file that the still node does not have."""
    nodes = cluster(3, "timeout=0,peer_timeout=25")
    for name in "held0", "held1", "f":
        nodes.make(pattern(4 * PAGE), name, home=0)
    held = [Program(agents(), nodes.path(0, name), cpu=False) for name in ("held0", "held1")]
    mine = Program(agents(), nodes.path(0), cpu=False)
    still = agents()
    still.do("fds = [os.open(path, os.O_RDWR) for path in paths]\nassert all(os.pread(fd, 1, 0) for fd in fds)",
             paths=[nodes.path(2, name) for name in ("held0", "held1")])
    request.addfinalizer(lambda: os.kill(nodes[2].pid, signal.SIGCONT))
    stand_still(nodes[2].pid)
    writers = [Program(agents(), nodes.path(0, name), device=None, cpu=False) for name in ("held0", "held1", "f")]
    for program, writer in zip(held, writers):
        program.device_store(0, b"device")
        program.agent.start("map.release()")
        assert program.agent.busy(0.3)
        for _ in range(2):
            writer.read(10)
            writer.write(0, b"W" * 2 * PAGE)
    mine.device_store(0, b"device")
    mine.release()
    writers[2].read(10)
    writers[2].write(0, b"W" * 2 * PAGE)
    writers[2].fsync()
    counts = statistics(nodes[0].mnt)
    assert counts["heals"] > 0 and counts["heals_late"] == 0
    os.kill(nodes[2].pid, signal.SIGCONT)
    for program in held:
        program.agent.finish()


@pytest.mark.parametrize("options", ["", "timeout=30"])
def test_what_a_touch_has_brought_is_acquired(cluster, agents, options):
    """A page that the device had not held, with what a CPU has just written: an acquire comes to the home, though nothing
    of the device's has changed, and waits for the kernel of the node that holds it from before."""
    nodes = cluster(3, f"{options},peer_timeout=25".strip(","), only=[0, 2])
    content = pattern(128 * PAGE)
    nodes.make(content, home=0)
    device, writer = (Program(agents(), nodes.path(0), cpu=False, device=name) for name in ("soft:0", None))
    kernel = Member(nodes.peers)
    try:
        device.device_load(100 * PAGE, 100 * PAGE + 1)
        device.acquire()
        device.acquire()
        kernel.has_read_page(nodes.below())
        kernel.do("pause", OPS["NODE_INVALIDATE"], 3000)
        writer.write(0, b"NEW")
        assert device.device_load(0, 3) == b"NEW"
        device.agent.start("map.acquire()")
        assert device.agent.busy(1)
        device.agent.finish()
    finally:
        kernel.kill()


@on_another_node
def test_a_soft_fault_beside_a_map_of_a_gpu(gpu):  # noqa: F811
    """Slots are left to it by what fills the GPU's memory: else it is served when next to all of that is done."""
    m = gpu.mount("cannot=118,slow=100000")  # no NIC reaches the GPU: each of many copies to it takes its time
    m.nodes.make(bytes(4 * MIB), "soft", home=1)
    big = make(m, bytes(64 * MIB), "big")
    soft, user = gpu.agent(), gpu.agent()
    soft.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 4 << 20)\nmap[0]", path=m.nodes.path(0, "soft"))
    user.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=big)
    user.start("map = dev.mmap(fd, 64 << 20, 3)")
    time.sleep(0.3)
    begun = time.monotonic()
    soft.do("map[2 << 20]")
    fault = time.monotonic()
    assert user.busy(0), "the map was done before it"
    user.finish()
    assert fault - begun < time.monotonic() - fault, "the fault waited for the most of the map"


@on_another_node
def test_the_last_unmap_asks_for_stores_once(gpu):  # noqa: F811
    """Not for each 256 KiB; and finds them."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(16 * MIB)))
    program.do("for at in range(0, 16 << 20, 3 << 20): map[at] = 7")
    asked = statistics(m.mnt)["nodes"]["served"].get("modified", 0)
    program.do("map.unmap()")
    assert 0 < statistics(m.mnt)["nodes"]["served"]["modified"] - asked < 16
    content = read_file(os.path.join(m.mnt, "f"))
    assert [found.start() for found in re.finditer(b"[^\0]", content)] == list(range(0, 16 * MIB, 3 * MIB))


@on_another_node
def test_the_last_unmap_of_parts(gpu):  # noqa: F811
    """Of which a kernel has stored to the second."""
    m = gpu.mount()
    program = gpu.program(make(m, bytes(16 * MIB)), MIB)
    program.do("part = dev.mmap(fd, 1 << 20, 3, offset=8 << 20)\npart[300000] = 7\npart.unmap()\nmap.unmap()")
    content = read_file(os.path.join(m.mnt, "f"))
    assert [found.start() for found in re.finditer(b"[^\0]", content)] == [8 * MIB + 300000]


@on_another_node
def test_a_home_that_gives_up_more_than_was_asked_for(gpu):  # noqa: F811
    """In whole units of files, of which the first is small."""
    m = gpu.mount(f"memory={56 * MIB}")
    elsewhere = gpu.agent()
    for name, size in ("small", 25 * PAGE), ("one", 32 * MIB):
        m.nodes.make(b"1" * size, name, home=1)
        elsewhere.do(f"fd_{name} = os.open(path, os.O_RDWR)\nmap_{name} = gaia.Device('soft:0').mmap(fd_{name}, PAGE)",
                     path=m.nodes.path(1, name))
    for name in "small", "one":
        gpu.program(m.nodes.path(0, name)).do("map.unmap()")
    assert gpu.program(make(m, b"2" * 32 * MIB, "two"))("map[-9:]") == b"2" * 9


@on_another_node
def test_room_of_a_file_in_larger_chunks(gpu):
    """Memory comes back by the chunk, which is 256 MiB of a file of more than 1 GiB, and of a small one 2 MiB."""
    m = gpu.mount(f"memory={280 * MIB}", options=f"device_cache=cuda:0={274 * MIB}")
    m.nodes.make(b"1", "big", home=1)
    os.truncate(m.nodes.path(1, "big"), (1 << 30) + PAGE)
    elsewhere = gpu.agent()
    elsewhere.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)", path=m.nodes.path(1, "big"))
    gpu.program(m.nodes.path(0, "big"), 256 * MIB).do("map.unmap()")
    for name in "one", "two", "three":
        m.nodes.make(name.encode() * 4 * MIB, name, home=1)
        assert gpu.program(m.nodes.path(0, name), 12 * MIB)("map[:3]") == name.encode()[:3]


def test_a_home_that_lies_beside_one_that_gives_up(cluster, agents, monkeypatch):
    """It is not asked alone."""
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", "cuda:0")
    nodes = cluster(3, "timeout=0,peer_timeout=5", only=[])
    nodes.mount(0, env={"STANDIN_CUDA": f"memory={56 * MIB}"})
    nodes.mount(2, env={"STANDIN_CUDA": "gpus=0"})
    for name in "one", "two":
        nodes.make(name.encode() * 12 * MIB, name, home=2)
    elsewhere = agents({"STANDIN_CUDA": ""})
    elsewhere.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)", path=nodes.path(2, "one"))
    agent = agents({"STANDIN_CUDA": ""})
    agent.do("dev = gaia.Device('cuda:0')\ndev.mmap(os.open(path, os.O_RDWR), 32 << 20, 3).unmap()", path=nodes.path(0, "one"))
    liar = Member(nodes.peers)
    try:
        liar.do("value", OPS["NODE_ROOM"], 1 << 20)
        agent.start("map = dev.mmap(os.open(path, os.O_RDWR), 32 << 20, 3)", path=nodes.path(0, "two"))
        assert not agent.busy(20)
        agent.finish()
        assert liar.do("asked", OPS["NODE_ROOM"]) > 0
    finally:
        liar.kill()


def test_a_home_that_says_it_gives_up_and_does_not(cluster, agents, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", "cuda:0")
    nodes = cluster(2, "timeout=0,peer_timeout=2", only=[])
    nodes.mount(0, env={"STANDIN_CUDA": f"memory={20 * MIB}"})
    nodes.make(bytes(32 * MIB), home=0)
    one = Member(nodes.peers)
    try:
        one.do("value", OPS["NODE_ROOM"], 1)
        agent = agents({"STANDIN_CUDA": ""})
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=nodes.path(0))
        agent.start("error_of(dev.mmap, fd, 32 << 20, 3)", "eval")
        assert not agent.busy(20)
        assert agent.finish() == errno.ENOMEM
        assert one.do("asked", OPS["NODE_ROOM"]) > 0
    finally:
        one.kill()


def test_a_kernel_that_drops_in_the_end(cluster, agents, workdir, monkeypatch):
    """Who has written waits until it has, and is not told that it did not."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    nodes = cluster(2, only=[0])
    nodes.mount(1, env=env)
    nodes.make(pattern(2 * PAGE), home=0)
    writer, reader = Program(agents(), nodes.path(0), cpu=False), Program(agents(), nodes.path(1), device=None)
    reader.read()
    plan.arm(ROWS.index("fuse_lowlevel_notify_inval_inode"), errno.ENOMEM, 1, 1)
    writer.write(5, b"NEW")
    writer.agent.start("error_of(os.fsync, fd)", "eval")
    wait_until(lambda: plan.landed, what="the drop has failed")
    assert writer.agent.busy(0.5)
    plan.row = -1
    assert writer.agent.finish() == 0
    assert reader.read()[5:8] == b"NEW"


# --- programs that stand still --------------------------------------------------------------------------------------------

@pytest.mark.traps
def test_a_client_that_holds_frames_which_are_to_change(cluster, agents):
    """Pages of one file there are to be dropped, another file is cut: that takes the lock, which a client has for longer than
    anything between nodes may take. Who waits is who acquires the first file; nobody else does, and no session ends."""
    nodes = cluster(2, "timeout=0,unit=4K")
    content = pattern(64 * PAGE)
    for name in "fgh":
        nodes.make(content, name, home=0)
    holders = [Hostile(nodes.path(1, name)) for name in "fh"]
    f, g = (Program(agents(), nodes.path(1, name), cpu=False) for name in "fg")
    for program in (f, g):
        program.agent("map[2 * PAGE]")
    for holder in holders:
        holder.hold()
    with open(nodes.path(0, "f"), "r+b") as file:
        file.seek(2 * PAGE)
        file.write(b"x")
    began = time.monotonic()
    os.truncate(nodes.path(0, "h"), 32 * PAGE)
    assert time.monotonic() - began < 8
    f.agent.start("map.acquire()\nseen = map[2 * PAGE]")
    assert f.agent.busy(22), "it has not waited for the lock"
    with open(nodes.path(0, "g"), "r+b") as file:
        file.seek(5 * PAGE)
        file.write(b"y")
    g.agent.start("map.acquire()\nseen = map[5 * PAGE], map[40 * PAGE]")
    assert not g.agent.busy(15)
    g.agent.finish()
    assert g.agent("seen") == (ord("y"), content[40 * PAGE])
    for holder in holders:
        holder.let_go()
        holder.end()
    assert not f.agent.busy(15)
    f.agent.finish()
    assert f.agent("seen") == ord("x")


@not_in_the_gate
@pytest.mark.traps
@pytest.mark.parametrize("held", [4, 5])
def test_files_that_clients_hold(cluster, agents, held):
    """Of four the home waits for as long as it takes; with a fifth the node is given up as one that does not answer, so that
    what others wait for ends in time."""
    nodes = cluster(2, "timeout=0,unit=4K")
    names = [f"f{number}" for number in range(held)]
    for name in (*names, "g"):
        nodes.make(pattern(64 * PAGE), name, home=0)
    holders = [Hostile(nodes.path(1, name)) for name in names]
    programs = {name: Program(agents(), nodes.path(1, name), cpu=False) for name in (*names, "g")}
    for program in programs.values():
        program.agent("map[2 * PAGE]")
    for holder in holders:
        holder.hold()
    for name in names:
        with open(nodes.path(0, name), "r+b") as file:
            file.seek(2 * PAGE)
            file.write(b"x")
        programs[name].agent.start("error_of(map.acquire)", "eval")
        assert programs[name].agent.busy(0.5)  # one after the other, so that it is known which is the fifth
    last = programs[names[-1]].agent
    assert last.busy(15)
    assert last.busy(15) == (held == 4)
    found = programs["g"].agent("error_of(map.acquire)")
    assert found == 0 if held == 4 else found in (errno.EIO, errno.ENOTCONN)
    for holder in holders:
        holder.let_go()
        holder.end()
    for name in names:
        assert not programs[name].agent.busy(15)
        assert programs[name].agent.finish() == 0 if held == 4 else programs[name].agent.finish()


@pytest.mark.traps
def test_a_client_that_cuts_and_holds_its_frames(cluster, agents):
    """What is to be placed behind the cut can't be: to wait for the lock then would keep others' places and slots."""
    nodes = cluster(2, "timeout=0,unit=4K")
    contents = {"f": pattern(1024 * PAGE), "g": pattern(64 * PAGE)}
    for name, content in contents.items():
        nodes.make(content, name, home=0)
    hostile = Hostile(nodes.path(1, "f"))
    f, g = (Program(agents(), nodes.path(1, name), cpu=False) for name in "fg")
    g.agent("map[2 * PAGE]")
    os.ftruncate(hostile.frames, 0)
    hostile.hold()
    f.agent.start("error_of(map.advise, 3)", "eval")  # GAIA_ADV_WILLNEED
    f.agent.busy(1)
    g.agent.start("map[40 * PAGE]", "eval")
    assert not g.agent.busy(15)
    assert g.agent.finish() == contents["g"][40 * PAGE]
    hostile.let_go()
    hostile.end()
    assert not f.agent.busy(15)
    f.agent.finish()


@pytest.mark.traps
def test_many_acquires_of_what_a_client_holds(cluster, agents):
    """They wait, and leave places to those that have nothing to do with that file."""
    nodes = cluster(2, "timeout=0,unit=4K")
    for name in "fg":
        nodes.make(pattern(64 * PAGE), name, home=0)
    holder = Hostile(nodes.path(1, "f"))
    fs = [Program(agents(), nodes.path(1, "f"), cpu=False) for _ in range(18)]
    g = Program(agents(), nodes.path(1, "g"), cpu=False)
    for program in (*fs, g):
        program.agent("map[2 * PAGE]")
    holder.hold()
    with open(nodes.path(0, "f"), "r+b") as file:
        file.seek(2 * PAGE)
        file.write(b"x")
    for f in fs:
        f.agent.start("map.acquire()")
    assert fs[0].agent.busy(1) and fs[-1].agent.busy(0)
    g.agent.start("map[5 * PAGE] = 1\nmap.release()\nmap.acquire()")
    assert not g.agent.busy(15)
    g.agent.finish()
    holder.let_go()
    holder.end()
    for f in fs:
        assert not f.agent.busy(15)
        f.agent.finish()
        assert f.agent("map[2 * PAGE]") == ord("x")


@pytest.mark.traps
def test_a_client_that_holds_its_frames(cluster, agents):
    """It has their lock for as long as it likes (a write() into them whose source never comes). Who touches or stores to the
    same file on that node goes on, and who has mapped another, too: placing takes no such lock."""
    nodes = cluster(2, "timeout=0,unit=4K")
    contents = {name: pattern(64 * PAGE) for name in "fg"}
    for name, content in contents.items():
        nodes.make(content, name, home=0)
    hostile = Hostile(nodes.path(1, "f"))
    programs = {name: Program(agents(), nodes.path(1, name), cpu=False) for name in "fg"}
    for program in programs.values():
        program.agent("map[2 * PAGE]")
    hostile.hold()
    for name, program in programs.items():
        program.agent.start("map[40 * PAGE] = 7\nseen = bytes(map[50 * PAGE:51 * PAGE])")
        assert not program.agent.busy(15), name
        program.agent.finish()
        assert program.agent("seen") == contents[name][50 * PAGE:51 * PAGE]
    hostile.let_go()
    hostile.end()
    for program in programs.values():
        program.release()
