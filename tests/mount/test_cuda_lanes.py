# SPDX-License-Identifier: Apache-2.0
"""What nobody waits for on its way to a GPU (gpu/home_lanes.c): it holds up nobody else, and it is waited for at last, whatever
fails. On the stand-in, whose copies take as long as they are told to."""
import os
import subprocess
import time

import pytest

import helpers
from conftest import not_in_the_gate
from gpu_fixture import MAP, gpu, make, only_here  # noqa: F401
from helpers import PAGE, agents, read_file, write_at, write_file  # noqa: F401
from nodes import cluster  # noqa: F401

MIB = 1 << 20
COPIED = "cannot=118"  # no windows: test_cuda_broken.py


@only_here
@pytest.mark.limit(180)  # half a minute of copies of a tenth of a second, and 48 programs
@pytest.mark.parametrize("first", [pytest.param(1, marks=not_in_the_gate), 50])
def test_a_context_that_can_not_be_entered(gpu, first):
    """At any call of a map: a copy that is under way then comes to its end before its memory is another's."""
    m = gpu.mount(f"slow=100000,{COPIED}", "device_cache=cuda:0=256K")
    gpu.program(make(m, bytes(first * PAGE), "first"))  # of 50 pages: it leaves no room to place anything ahead of an acquire
    failed = 0
    for count in range(1, 17):
        content = os.urandom(5 * PAGE)
        path = make(m, content, f"f{count}")
        gpu.fail("cuCtxPushCurrent", count, 999)
        agent = gpu.agent()
        agent.do("fd = os.open(path, os.O_RDWR)\ndev = gaia.Device('cuda:0')", path=path)
        failed += agent("error_of(dev.mmap, fd, 5 * 4096)") != 0
        agent.do("dev.close()\nos.close(fd)")
        os.unlink(path)
        time.sleep(0.2)  # a copy that went on would find nothing where it goes, and end the daemon
        gpu.heal()
        path = make(m, content, f"f{count}")
        other = gpu.program(make(m, content[::-1], f"g{count}"))  # takes what was given back
        again = gpu.program(path)
        time.sleep(0.2)
        assert other("map[:]") == content[::-1] and again("map[:]") == content
        again.do("map[0:1] = b'x'\nmap.release()")
        assert read_file(path) == b"x" + content[1:]
        for program in agent, other, again:
            program.end()
    assert failed


@only_here
@pytest.mark.skipif(bool(os.environ.get("GAIAFS_SANITIZE")), reason="what a lost GPU holds can't be given back: a leak")
@pytest.mark.parametrize("name", ["cuCtxPushCurrent", "*"])
def test_the_end_with_a_gpu_that_is_lost(gpu, name):
    m = gpu.mount()
    program = gpu.program(make(m, os.urandom(5 * PAGE)))
    program.do("map.unmap()\nos.close(fd)\ndev.close()")
    program.end()
    gpu.fail(name, 0, 999)
    m.expected_exit = 1  # nobody can tell whether something was stored
    subprocess.run(["umount", m.mnt], check=True)
    assert m.proc.wait(15) == 1
    assert "could not all be written" in m.log_text()


@only_here
def test_a_desk_that_could_not_be_had_is_asked_for_again(gpu):
    """A thread that compares pages on the GPU has one (gpu/home_desk.c); a GPU that is full may have room later."""
    m = gpu.mount("slow=100000")
    paths = [make(m, os.urandom(4 * PAGE), f"f{i}") for i in range(4)]
    programs = [gpu.program(path) for path in paths]

    def acquire_at_once(byte):
        for path in paths:
            write_at(path, byte * PAGE, 2 * PAGE)
        for program in programs:
            program.start("map.acquire()")
        for program in programs:
            program.finish()
        for path, program in zip(paths, programs):
            assert program("map[:]") == read_file(path)

    for byte in b"1", b"2":
        gpu.fail("cuStreamCreate", 1, 2)
        acquire_at_once(byte)
        assert gpu.failed(), "all did with the desks that there were"
        gpu.heal()
        time.sleep(1.1)
    acquire_at_once(b"3")


@pytest.fixture
def held_up(cluster, agents, monkeypatch, workdir):
    """A file of which an acquire on another node takes 10 s, all of them with its lock; programs that map it meanwhile. When
    that has been seen nothing is slow any more: a daemon waits ten seconds for what programs have left to it, and no longer."""
    monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    slow = os.path.join(workdir, "slow")
    write_file(slow, b"")
    n = cluster(2, "timeout=0", only=[])
    n.mount(0, env={"STANDIN_CUDA": f"slow=1000000,while={slow},{COPIED}"})
    n.mount(1, "timeout=0", env={"STANDIN_CUDA": f"slow=400000,while={slow},{COPIED}"})
    n.make(os.urandom(64 * MIB), "X", home=0)
    for name in "Z", "W":
        n.make(os.urandom(8 * PAGE), name, home=0)
    far, opener = agents({"STANDIN_CUDA": ""}), agents({"STANDIN_CUDA": ""})
    far.do(MAP, path=n.path(1, "X"), length=2 * MIB, writable=True)
    opener.do(MAP, path=n.path(0, "W"), length=PAGE, writable=True)  # the GPU has been started
    data = b"".join(os.urandom(1) + bytes(PAGE - 1) for _ in range(512))
    write_at(n.path(0, "X"), data, 0)

    def begin(count):
        """The lock is taken, and this returns, while what the programs copied first is on its way: a second."""
        programs = [agents({"STANDIN_CUDA": ""}) for _ in range(count)]
        for program in programs:
            program.do("pass")  # it has been started
        for program in programs:
            program.start(MAP, path=n.path(0, "X"), length=64 * MIB, writable=True)
        time.sleep(0.3)
        begun = time.monotonic()
        far.start("map.acquire()")
        time.sleep(0.3)

        def end():
            assert all(program.busy() for program in programs), "the lock was taken too late to hold up anybody"
            far.finish()
            assert time.monotonic() - begun > 4, "too fast to hold up anybody"
            os.unlink(slow)
            for program in programs:
                program.finish()
            assert far("map[:]") == data
        return end
    return n, begin


def test_a_file_that_takes_long_holds_up_no_other(held_up, agents):
    n, begin = held_up
    program = agents({"STANDIN_CUDA": ""})
    end = begin(1)
    start = time.monotonic()
    program.do(MAP, path=n.path(0, "Z"), length=8 * PAGE, writable=True)
    assert time.monotonic() - start < 3
    end()


@not_in_the_gate
def test_a_file_that_takes_long_leaves_others_their_stages(held_up, agents):
    n, begin = held_up
    program = agents({"STANDIN_CUDA": ""})
    program.do(MAP.replace("cuda:0", "soft:0"), path=n.path(0, "Z"), length=8 * PAGE, writable=True)
    end = begin(16)
    start = time.monotonic()
    program("map[:4096]")
    assert time.monotonic() - start < 3
    end()
