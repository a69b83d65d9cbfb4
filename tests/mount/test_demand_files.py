# SPDX-License-Identifier: Apache-2.0
"""What becomes of files under mappings on demand: they grow, are cut, can't be written for a while, and others store to them. The
GPU is a stand-in, as in test_cuda_demand.py."""
import ctypes
import errno
import os
import threading
import time

import pytest

import gaia
from files import make
from helpers import PAGE, ROWS, agents, daemon_with_faults, read_file, stand_still, write_at  # noqa: F401
from nodes import SIDES, cluster  # noqa: F401
from passing import passing  # noqa: F401
from test_cuda_demand import MIB, UNIT, programs  # noqa: F401
from test_disks import fill, small  # noqa: F401

CALLS = ("release", "acquire", "acquire", "release")


def four_calls(program):
    return [program.ask(call) for call in CALLS]


def test_with_space_again_all_is_well(mount, programs, small):  # noqa: F811
    """A touch of libgaia's that was refused when the disk was full is tried again: nothing is lost, and no call fails for ever."""
    m = mount("passthrough=off,device_cache=256K,unit=4K", data=small)
    path, pages = os.path.join(m.mnt, "f"), [100 * i for i in range(68)]
    with open(path, "wb") as file:
        file.truncate(8000 * PAGE)
    program = programs(path, small=True, frames=256)
    for page in pages:
        program.store(page * PAGE, bytes([page % 255 + 1]) * 8)
    assert program.ask("error") == "0"
    ballast = fill(small)
    assert program.error("release") == errno.EIO
    os.unlink(ballast)
    assert four_calls(program) == ["ok"] * 4
    content = read_file(path)
    assert all(content[page * PAGE:][:8] == bytes([page % 255 + 1]) * 8 for page in pages)


@pytest.fixture(params=["passthrough", "tracked", "behind"])
def grown(request, mount, programs):  # noqa: F811
    """grown(content, more, before) -> (a program, the path): a file of that content, mapped; before(program); then `more` was
    appended, by a program or behind the mount."""
    def start(content, more, before):
        passes = request.param == "passthrough"
        m = request.getfixturevalue("passing")() if passes else mount("passthrough=off")
        path = make(m, content)
        cpu = os.open(path, os.O_RDWR)
        request.addfinalizer(lambda: os.close(cpu))
        program = programs(path, length=2 * UNIT)
        before(program)
        if request.param == "behind":
            with open(os.path.join(m.data, "f"), "ab") as file:
                file.write(more)
            time.sleep(1.1)  # the mount's timeout
        else:
            os.pwrite(cpu, more, len(content))
        return program, path
    return start


@pytest.mark.parametrize("first", CALLS[:2])
def test_stores_past_the_end_before_it_grows(grown, first):
    """They are lost, in the page of the end and behind it; what was stored before the end is not, and no call fails."""
    def before(program):
        program.store(10, b"mine")
        program.store(200, b"lost")
        program.store(5 * PAGE, b"lost")
        assert program.ask("error") == "0"
    program, path = grown(b"x" * 100, b"y" * UNIT, before)
    program.do(first)
    assert four_calls(program) == ["ok"] * 4
    content = b"x" * 10 + b"mine" + b"x" * 86 + b"y" * UNIT
    assert read_file(path) == content
    assert b"".join(program.load(at, 1000) for at in range(0, 66000, 1000)) == content.ljust(66000, b"\0")


def test_loads_of_what_was_there_after_it_has_grown(grown):
    """A touch of a page that was the file's all the time does not fail because others have come behind it."""
    program, _path = grown(b"x" * 3 * PAGE, b"y" * 3 * PAGE, lambda program: program.do("acquire"))
    assert program.load(PAGE, 4) == b"xxxx" and program.ask("error") == "0"
    program.store(PAGE, b"mine")
    assert four_calls(program) == ["ok"] * 4
    assert program.load(PAGE - 4, 8) == b"xxxxmine" and program.load(5 * PAGE, 4) == b"yyyy"


@pytest.mark.parametrize("how", ["demand", "soft:0"])
def test_a_value_that_was_there_for_a_moment(mount, programs, agents, how):  # noqa: F811
    """Another program's GPU has seen a store that was undone before it was released. An acquire takes it away, so that storing it
    again is a store."""
    m = mount("passthrough=off,timeout=60")
    path = make(m, b"X" * MIB)
    two = programs(path)
    if how == "demand":
        one = programs(path)
        one.do("acquire")
    else:
        agent = agents()
        agent.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, 1 << 20)\nmap.acquire()", path=path)

    def store(value):
        if how == "demand":
            one.store(7, value)
            one.do(f"release {8 * UNIT} {PAGE}")  # the soft mapping has it, and nobody else is told
        else:
            agent.do("map[7:8] = value", value=value)

    two.do("acquire")
    two.do("acquire")
    store(b"Y")
    assert two.load(7, 1) == b"Y"
    store(b"X")
    one.do("release") if how == "demand" else agent.do("map.release()")
    two.do("acquire")
    assert two.load(7, 1) == read_file(path)[7:8] == b"X"
    two.store(7, b"Y")
    two.do("release")
    assert read_file(path)[7:8] == b"Y"


@pytest.mark.parametrize("unmapped", [False, True])
def test_a_daemon_that_dies_during_a_release(mount, programs, unmapped):  # noqa: F811
    """What waits for it is told, also in a part of the mapping that was unmapped before."""
    m = mount("passthrough=off")
    path = make(m, b"x" * 4 * UNIT)
    program = programs(path)
    program.store(2 * UNIT + 5, b"first")
    for call in "release", "acquire":
        program.do(call)
    program.store(2 * UNIT + 5, b"again")
    if unmapped:
        program.do(f"unmap {2 * UNIT} {UNIT}")
    stand_still(m.pid)
    program.proc.stdin.write(f"release 0 {PAGE}\n")
    program.proc.stdin.flush()
    time.sleep(0.5)  # until it waits
    since = time.monotonic()
    m.kill()
    assert program.proc.stdout.readline().startswith("error ")
    assert time.monotonic() - since < 20


@pytest.mark.parametrize("address", [-1, 1, 4096, 0, (1 << 64) - 4096])
def test_parameters_of_no_mapping(address):
    there = ctypes.c_void_p()
    assert gaia.lib.gaia_demand_parameters(ctypes.c_void_p(address), ctypes.create_string_buffer(4096), ctypes.byref(there)) == -1
    assert ctypes.get_errno() == errno.EINVAL


def test_stores_behind_a_cut_before_it_grows_again(mount, programs):  # noqa: F811
    """They are lost, in the page of the cut and behind it; what was stored before it is not, and no call fails."""
    m = mount("passthrough=off")
    path = make(m, b"x" * 2 * UNIT)
    program = programs(path)
    for round in range(2):
        for at, data in (50, b"mine"), (200, b"lost"), (5 * PAGE, b"lost"), (UNIT + 5 * PAGE, b"lost"):
            program.store(at, data)
        os.truncate(path, 100)
        write_at(path, b"y" * (2 * UNIT - 100), 100)
        program.do("release" if round else "acquire")
        assert read_file(path) == b"x" * 50 + b"mine" + b"x" * 46 + b"y" * (2 * UNIT - 100)
        program.do("acquire")
        program.store(2 * UNIT - 4, b"kept")
        program.do("release")
        assert read_file(path)[100:] == b"y" * (2 * UNIT - 104) + b"kept"


def test_a_release_while_a_file_is_cut(mount, programs, workdir, monkeypatch):  # noqa: F811
    """The device has lost the pages, and the file is not shorter yet for who asks: what a kernel has stored there need not be
    touched."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    m = mount("passthrough=off", env=env)
    path = make(m, b"x" * 2 * UNIT)
    program = programs(path)
    for number in range(1, 8):  # one of them is made for the answer
        program.store(50, b"%04d" % number)
        program.store(UNIT + 5 * PAGE, b"lost")
        plan.arm_wait(ROWS.index("fstat64"), 200, number, 0)
        cut = threading.Thread(target=os.truncate, args=(path, 100))
        cut.start()
        while not plan.landed and cut.is_alive():
            time.sleep(0.01)
        program.do("release")
        plan.row = -1
        cut.join()
        assert read_file(path) == b"x" * 50 + b"%04d" % number + b"x" * 46
        os.truncate(path, 2 * UNIT)
        program.do("acquire")
        os.truncate(path, 100)
        os.truncate(path, 2 * UNIT)
        write_at(path, b"x" * (2 * UNIT - 100), 100)
        program.do("acquire")


@pytest.mark.parametrize("by", ["home", "agent"])
def test_stores_behind_a_cut_of_a_file_of_another_node(cluster, programs, by):  # noqa: F811
    """As those of a file of this node's, whoever cuts it: in pages that go, and in the last one."""
    nodes = cluster()
    nodes.make(b"x" * 2 * UNIT, home=0)
    path = nodes.path(SIDES.index(by))
    program = programs(nodes.path(1))
    assert program.started == "ok"
    for end in 100, 2 * UNIT - 50:
        program.store(50, b"mine")
        program.store(2 * UNIT - 20, b"lost")
        os.truncate(path, end)
        write_at(path, b"y" * (2 * UNIT - end), end)
        program.do("release")
        content = read_file(path)
        assert content[50:54] == b"mine" and content[end:] == b"y" * (2 * UNIT - end)
        program.do("acquire")
        write_at(path, b"x" * 2 * UNIT, 0)
        program.do("acquire")
