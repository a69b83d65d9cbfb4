# SPDX-License-Identifier: Apache-2.0
"""Files mapped on a GPU, which is a stand-in (tests/cuda/standin.c): the client's and the daemon's halves of the driver
cuda are the real ones, and all that is missing is the GPU. What kernels would do, threads and copies do here. The
promises that hold on every device are tested by the whole suite with GAIA_DEVICE=cuda:0 (tests/README.md); here is what
only a GPU has: nothing tells of its stores, nothing stops it, and it fails in its own ways. Most of it is tested twice:
with the file's home on the GPU's node, and on another one that has no GPU."""
import contextlib
import errno
import os
import re
import signal
import subprocess
import time

import pytest

import helpers
from conftest import so_much
from helpers import (PAGE, agents, device_statistics, make_random, read_at, read_file, wait_until, write_at,  # noqa: F401
                     write_file)
from nodes import Cluster

MIB = 1 << 20
CHUNK = 2 * MIB  # of a small file
RECVMSG = (b"47", b"212")  # of x86-64, and of the generic table

MAP = """
fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
dev = gaia.Device("cuda:0")
map = dev.mmap(fd, length, 3 if writable else 1)
"""


@pytest.fixture(params=["here", "on another node"])
def gpu(mount, agents, monkeypatch, workdir, request):
    """A mount and programs with a GPU: gpu.mount(standin="words"), gpu.program(path, length) -> an agent with `map`.
    Its parameter: where the home of the files is that make() makes."""
    monkeypatch.setenv("LD_LIBRARY_PATH", helpers.cuda_standin())
    monkeypatch.setenv("GAIA_DEVICE", "cuda:0")

    class Gpu:
        control = os.path.join(workdir, "control")

        def mount(self, standin="", options=""):
            env = {"STANDIN_CUDA": f"{standin},control={self.control}"}
            if request.param == "here":
                m = mount(options, env=env)
                m.nodes = None
                return m
            data = os.path.join(workdir, "shared")
            os.mkdir(data)
            nodes = Cluster(mount, data, 2, f"timeout=0,{options}".strip(","))
            m = nodes.mount(0, env=env)
            nodes.mount(1, "timeout=0", env={"STANDIN_CUDA": "gpus=0"})
            m.nodes = nodes
            return m

        def agent(self, standin="", **env):
            return agents({"STANDIN_CUDA": standin, **env})

        def program(self, path, length=None, writable=True, standin=""):
            agent = self.agent(standin)
            agent.do(MAP, path=path, length=length or os.stat(path).st_size, writable=writable)
            return agent

        def fail(self, name, count, error):
            """The daemon's next calls of the driver: see standin.c."""
            with open(self.control + ".new", "w") as file:
                file.write(f"{name} {count} {error}\n")
            os.rename(self.control + ".new", self.control)

        def failed(self):
            with open(self.control) as file:
                return file.read().startswith("done")

        def heal(self):
            os.unlink(self.control)

    return Gpu()


only_here = pytest.mark.parametrize("gpu", ["here"], indirect=True)


def make(m, content, name="f"):
    if getattr(m, "nodes", None):
        m.nodes.make(content, name, home=1)
    else:
        write_file(os.path.join(m.mnt, name), content)
    return os.path.join(m.mnt, name)


def keeps_twins(m):
    """Of a file in passthrough nobody hears of writes: every page that can be stored to has a twin of its own."""
    return helpers.statistics(m.mnt)["passthrough"]


def released(m):
    """The GPU's counters, which the home has."""
    return device_statistics(m.nodes[1].mnt, "node:0") if m.nodes else device_statistics(m.mnt, "cuda:0")


# --- one copy, and who has it ---------------------------------------------------------------------------------------

def test_processes_share_one_copy(gpu):
    m = gpu.mount()
    content = os.urandom(3 * MIB + 5)
    path = make(m, content)
    one, two = gpu.program(path), gpu.program(path)
    assert one("map[:]") == content and two("map[:]") == content
    one.do("map[MIB:MIB + 5] = b'hello'")
    assert two("map[MIB:MIB + 5]") == b"hello"
    assert released(m)["resident_bytes"] == -(-len(content) // PAGE) * PAGE
    assert read_at(path, 5, MIB) == content[MIB:MIB + 5]
    two.do("map.release()")  # there is one copy: what the other stored is released too
    expected = content[:MIB] + b"hello" + content[MIB + 5:]
    assert read_file(path) == expected
    assert released(m)["bytes_in"] == -(-len(content) // PAGE) * PAGE  # placed once


def test_what_only_reads_has_a_copy_of_its_own(gpu):
    """Else who may not write to a file could: memory of a GPU can't be given away read only."""
    m = gpu.mount()
    path = make(m, b"a" * 10 * PAGE)
    writer, reader = gpu.program(path), gpu.program(path, writable=False)
    writer.do("map[5:10] = b'bbbbb'")
    assert reader("map[5:10]") == b"aaaaa"
    writer.do("map.release()")
    reader.do("map.acquire()")
    assert reader("map[:]") == b"aaaaabbbbb" + b"a" * (10 * PAGE - 10)
    with pytest.raises(OSError) as caught:
        reader.do("map.release()")
    assert caught.value.errno == errno.EACCES
    # Who makes the memory writable all the same changes no file.
    reader.do("import ctypes\nassert ctypes.CDLL(None).mprotect(ctypes.c_void_p(map.address), PAGE, 3) == 0\n"
              "ctypes.memmove(map.address, b'evil', 4)")
    reader.do("map.acquire()")
    writer.do("map.acquire()\nmap.release()")
    reader.kill()
    writer.do("map.acquire()\nmap.release()")
    assert read_file(path)[:10] == b"aaaaabbbbb"
    assert writer("map[0:10]") == b"aaaaabbbbb"


def test_a_killed_program_keeps_what_it_released(gpu):
    m = gpu.mount()
    path = make(m, bytes(600 * PAGE))
    program = gpu.program(path)
    program.do("for page in range(0, 600, 3):\n    map[page * PAGE + 7] = page % 255 + 1\nmap.release()\nmap[PAGE] = 99")
    program.kill()
    content = read_file(path)
    assert [content[page * PAGE + 7] for page in range(600)] == \
           [page % 255 + 1 if page % 3 == 0 else 0 for page in range(600)]
    if m.nodes:  # with the last map all is released: cache/claim.h
        wait_until(lambda: read_file(path)[PAGE] == 99, what="the last map is gone")
        return
    # What it did not release stays in the copy: seen by the next that acquires.
    assert content[PAGE] == 0
    gpu.program(path).do("map.acquire()")
    assert read_file(path)[PAGE] == 99


def test_unreleased_stores_reach_the_file_at_the_unmount(gpu):
    m = gpu.mount()
    path = make(m, bytes(20 * PAGE))
    gpu.program(path).do("map[3 * PAGE:3 * PAGE + 4] = b'late'\nmap.unmap()\ndev.close()\nos.close(fd)")
    problem = m.unmount()
    assert problem is None
    assert read_file(os.path.join(m.data, "f"))[3 * PAGE:3 * PAGE + 4] == b"late"


@pytest.mark.parametrize("gpu", ["on another node"], indirect=True)
def test_the_node_of_the_gpu_dies(gpu):
    """Both of its copies are forgotten where the file's home is; when it comes again they are made anew."""
    m = gpu.mount()
    path = make(m, b"." * 300 * PAGE)
    writer, reader = gpu.program(path), gpu.program(path, writable=False)
    writer.do("map[5 * PAGE:5 * PAGE + 3] = b'new'\nmap.release()")
    reader.do("map.acquire()")  # so it was collected
    home = m.nodes[1]
    beside = gpu.agent()  # so that the file stays
    beside.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)", path=os.path.join(home.mnt, "f"))

    def resident():
        return [d["resident_bytes"] for d in helpers.statistics(home.mnt)["files"][0]["devices"] if d["device"] == "node:0"]

    assert resident() == [300 * PAGE] * 2
    m.kill()
    wait_until(lambda: resident() == [0] * 2, what="the copies are forgotten")
    expected = b"." * 5 * PAGE + b"new" + b"." * (295 * PAGE - 3)
    assert read_file(os.path.join(home.mnt, "f")) == expected
    for call in ("map.acquire()", "map.release()"):
        with pytest.raises(OSError) as caught:
            writer.do(call)
        assert caught.value.errno == errno.ENOTCONN
    writer.kill()
    reader.kill()
    m.unmount()
    again = m.nodes.mount(0)
    program = gpu.program(os.path.join(again.mnt, "f"))
    assert program("map[:]") == expected
    program.do("map[299 * PAGE] = 7\nmap.release()")
    assert read_at(os.path.join(home.mnt, "f"), 1, 299 * PAGE) == b"\x07"


# --- finding what was stored ----------------------------------------------------------------------------------------

def test_only_modified_pages_move(gpu):
    m = gpu.mount()
    pages = 5000
    path = make(m, os.urandom(pages * PAGE))
    program = gpu.program(path)
    before = released(m)
    program.do("map.release()\nmap.acquire()")
    assert released(m)["collects"] == 0 and released(m)["bytes_out"] == before["bytes_out"]
    rng = make_random("pages")
    chosen = sorted(rng.sample(range(pages), 37))
    program.do("for page in chosen:\n    map[page * PAGE + page % PAGE] ^= 0xff\nmap.release()", chosen=chosen)
    content = read_file(path)
    after = released(m)
    assert after["collects"] == after["pages_merged"] == len(chosen)
    assert after["bytes_out"] - before["bytes_out"] == len(chosen) * PAGE
    assert after["bytes_in"] == before["bytes_in"]
    assert after["twins"] == 0 or keeps_twins(m)  # the home's bytes are what is compared with
    assert content == program("map[:]")


def test_a_store_that_brings_back_what_was_there(gpu):
    """What is compared with is what was taken last, not what was placed first: else this store would be none."""
    m = gpu.mount()
    path = make(m, b"a" * 4 * PAGE)
    program = gpu.program(path)
    for turn in range(6):
        value = b"b" if turn % 2 == 0 else b"a"
        program.do("map[PAGE + 1:PAGE + 2] = value\nmap.release()", value=value)
        assert read_file(path)[PAGE + 1:PAGE + 2] == value
        if turn == 3:  # not collected in between
            program.do("map[PAGE + 1:PAGE + 2] = b'c'\nmap.release()\nmap[PAGE + 1:PAGE + 2] = b'a'\nmap.release()")
            assert read_file(path)[PAGE + 1:PAGE + 2] == b"a"


@pytest.mark.parametrize("when", ["before the write", "after the write"])
def test_a_page_that_a_cpu_and_a_kernel_write(gpu, when):
    """The twin is the home copy, until that changes."""
    m = gpu.mount()
    path = make(m, b"." * 8 * PAGE)
    program = gpu.program(path)
    fd = os.open(path, os.O_RDWR)
    if when == "before the write":
        program.do("map[2 * PAGE + 100] = ord('d')")
    os.pwrite(fd, b"cpu", 2 * PAGE + 10)
    if when == "after the write":
        program.do("map[2 * PAGE + 100] = ord('d')")
    assert released(m)["twins"] == 1 or keeps_twins(m)
    program.do("map.release()")
    page = read_file(path)[2 * PAGE:3 * PAGE]
    assert page == b"." * 10 + b"cpu" + b"." * 87 + b"d" + b"." * (PAGE - 101)
    program.do("map.acquire()")
    assert program("map[2 * PAGE:3 * PAGE]") == page
    assert released(m)["twins"] == 0 or keeps_twins(m)
    os.close(fd)


def test_an_acquire_changes_pages_in_place(gpu):
    """A kernel that stores to a page without pause, while CPUs write to other bytes of it and it is acquired again and
    again, loses nothing: neither does the CPU."""
    m = gpu.mount()
    path = make(m, bytes(2 * PAGE))
    program, other = gpu.program(path), gpu.program(path)
    program.start("""
import time
end = time.monotonic() + seconds
n = 0
while time.monotonic() < end:
    n += 1
    map[16:24] = n.to_bytes(8, "little")
    map[PAGE + 4000:PAGE + 4008] = n.to_bytes(8, "little")
count = n
""", seconds=so_much(3, 1))
    fd = os.open(path, os.O_RDWR)
    turn = acquires = 0
    while program.busy():
        turn += 1
        os.pwrite(fd, turn.to_bytes(8, "little"), 8 * (turn % 2))
        os.pwrite(fd, turn.to_bytes(8, "little"), PAGE + 4008)
        other.do("map.acquire()")
        acquires += 1
        assert other("map[PAGE + 4008:PAGE + 4016]") == turn.to_bytes(8, "little")
    program.finish()
    count = program("count")
    program.do("map.release()")
    content = read_file(path)
    assert int.from_bytes(content[16:24], "little") == count
    assert int.from_bytes(content[PAGE + 4000:PAGE + 4008], "little") == count
    assert int.from_bytes(content[PAGE + 4008:PAGE + 4016], "little") == turn
    print(f"{count} stores, {acquires} acquires")
    assert acquires > 20 and count > 1000
    os.close(fd)


def test_many_pages_at_once(gpu):
    """Of an acquire and of a release, all different: more than go through a slot."""
    m = gpu.mount()
    pages = 300
    content = make_random("content").randbytes(pages * PAGE)
    path = make(m, bytes(pages * PAGE))
    program = gpu.program(path)
    write_at(path, content, 0)
    program.do("map.acquire()")
    assert program("map[:]") == content
    program.do("for page in range(pages):\n    map[page * PAGE + 5] ^= page % 255 + 1\nmap.release()", pages=pages)
    expected = bytearray(content)
    for page in range(pages):
        expected[page * PAGE + 5] ^= page % 255 + 1
    assert read_file(path) == bytes(expected)


def test_placed_beside_a_writer(gpu):
    """A write() may come between the reading of a page and the moment when it is resident."""
    m = gpu.mount("slow=2000", "device_cache=cuda:0=9M")
    size = 8 * MIB
    path, other = make(m, bytes(size)), make(m, bytes(size), "other")
    writer = gpu.agent()
    writer.start("""
fd = os.open(path, os.O_RDWR)
import random, time
rng = random.Random(7)
last = {}
end = time.monotonic() + seconds
while time.monotonic() < end:
    page = rng.randrange(size // PAGE)
    last[page] = last.get(page, 0) % 250 + 1
    os.pwrite(fd, bytes([last[page]]), page * PAGE + 9)
""", path=path, size=size, seconds=so_much(8, 4))
    rounds = 0
    while writer.busy():
        rounds += 1
        program = gpu.program(path)
        program.do("for page in range(0, length // PAGE, 5):\n    map[page * PAGE + 77] = turn\nmap.release()\n"
                   "map.unmap()\ndev.close()\nos.close(fd)", length=size, turn=rounds % 250 + 1)
        program.end()
        pusher = gpu.program(other, writable=False)  # of the first one's pages, so that they are placed anew
        pusher.do("map.unmap()\ndev.close()\nos.close(fd)")
        pusher.end()
    writer.finish()
    last, content = writer("last"), read_file(path)
    assert rounds
    for page in range(size // PAGE):
        assert content[page * PAGE + 9] == last.get(page, 0), (page, rounds)
        assert content[page * PAGE + 77] == (rounds % 250 + 1 if page % 5 == 0 else 0), (page, rounds)


def test_past_the_end_of_the_file(gpu):
    """Zeros, whatever the memory held before; what is stored there is no part of the file, also when it grows."""
    m = gpu.mount()
    path = make(m, b"x" * 100)
    program = gpu.program(path, length=3 * MIB)
    assert program("map[:]") == b"x" * 100 + bytes(3 * MIB - 100)
    program.do("map[100:200] = b'y' * 100\nmap[50 * PAGE] = 1\nmap.release()")
    assert read_file(path) == b"x" * 100
    os.truncate(path, 60 * PAGE)
    program.do("map.acquire()")
    expected = b"x" * 100 + bytes(60 * PAGE - 100)
    assert read_file(path) == expected
    assert program("map[:60 * PAGE]") == expected
    program.do("map[59 * PAGE] = 5\nmap.release()")
    assert read_file(path)[59 * PAGE] == 5
    os.truncate(path, PAGE + 1)
    program.do("map.acquire()\nmap.release()")
    assert read_file(path) == expected[:PAGE + 1]


# --- room -----------------------------------------------------------------------------------------------------------

def test_room_is_made_of_files_that_nobody_maps(gpu):
    m = gpu.mount(f"memory={20 * MIB}", "device_cache=cuda:0=9M")
    one, two = make(m, bytes(8 * MIB), "one"), make(m, b"2" * 8 * MIB, "two")
    program = gpu.program(one)
    with pytest.raises(OSError) as caught:
        gpu.program(two)
    assert caught.value.errno == errno.ENOMEM
    program.do("map[5 * MIB] = 55\nmap.acquire()\nmap[6 * MIB] = 66\nmap.unmap()")
    other = gpu.program(two)
    assert other("map[:]") == b"2" * 8 * MIB
    assert released(m)["evictions"] >= 7 * 256
    content = read_file(one)  # an eviction is an early release
    assert (content[5 * MIB], content[6 * MIB]) == (55, 66)


@pytest.mark.parametrize("gpu", ["on another node"], indirect=True)
@pytest.mark.parametrize("home", [0, 1])
def test_room_is_made_of_files_of_other_homes(gpu, home):
    """That somebody maps elsewhere, and nobody here."""
    m = gpu.mount(f"memory={56 * MIB}")
    m.nodes.make(b"1" * 32 * MIB, "one", home=home)
    two = make(m, b"2" * 32 * MIB, "two")
    elsewhere = gpu.agent()
    elsewhere.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)", path=m.nodes.path(1, "one"))
    program = gpu.program(m.nodes.path(0, "one"))
    program.do("map[9] = 9\nmap.unmap()")
    other = gpu.program(two)
    assert other("map[:]") == b"2" * 32 * MIB
    assert read_at(m.nodes.path(1, "one"), 10, 0) == b"1" * 9 + b"\x09"


def test_no_memory(gpu):
    m = gpu.mount(f"memory={9 * MIB}")  # the daemon itself takes five
    small, large = make(m, b"s" * MIB, "small"), make(m, bytes(8 * MIB), "large")
    program = gpu.program(small)
    with pytest.raises(OSError) as caught:
        gpu.program(large)
    assert caught.value.errno == errno.ENOMEM
    assert program("map[:]") == b"s" * MIB
    program.do("map[1] = 1\nmap.release()")
    assert read_file(small)[:2] == b"s\x01"


# --- what is wrong with a GPU ---------------------------------------------------------------------------------------

@only_here
@pytest.mark.parametrize("standin, number", [
    ("gpus=0", 0), ("gpus=1", 1), ("version=11080", 0), ("missing=cuMemCreate", 0), ("cannot=102", 0), ("cannot=103", 0)])
def test_no_such_gpu(gpu, standin, number):
    with pytest.raises(OSError) as caught:
        gpu.agent(standin).do("gaia.Device('cuda:%d' % number)", number=number)
    assert caught.value.errno == errno.ENODEV


@only_here
@pytest.mark.parametrize("client, daemon, why", [
    ("", "gpus=0", "finds no GPU"), ("first=1", "gpus=1", "no GPU with that UUID"),
    ("", "missing=cuLaunchKernel", "has no cuLaunchKernel"), ("", "version=11000", "the driver is of CUDA 11.0")])
def test_the_daemon_has_no_such_gpu(gpu, client, daemon, why):
    m = gpu.mount(daemon)
    path = make(m, bytes(PAGE))
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            gpu.program(path, standin=client)
        assert caught.value.errno == errno.ENODEV
    assert why in m.log_text()
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\nmap = gaia.Device('soft:0').mmap(fd, PAGE)\nmap[0] = 1\nmap.release()",
               path=path)
    assert read_file(path)[0] == 1


@only_here
def test_gpus_are_told_by_their_uuids(gpu):
    """What is number 0 to a program may be number 1 to the daemon."""
    m = gpu.mount("gpus=2")
    path = make(m, bytes(PAGE))
    program = gpu.program(path, standin="gpus=1,first=1")
    program.do("map[0] = 1\nmap.release()")
    assert read_file(path)[0] == 1
    assert [d["device"] for d in helpers.statistics(m.mnt)["files"][0]["devices"]] == ["cuda:1"]
    other = gpu.program(path, standin="gpus=2")
    other.do("map.acquire()\nmap[1] = 2\nmap.release()")
    program.do("map.acquire()")
    assert program("map[:2]") == b"\x01\x02"
    assert program("dev.stat().resident_bytes") == PAGE


@only_here
def test_the_default_device(gpu):
    m = gpu.mount()
    path = make(m, bytes(PAGE))
    program = gpu.agent(GAIA_DEVICE="")
    program.do("import ctypes\nhandle = ctypes.c_void_p()\n"
               "gaia.check(gaia.lib.gaia_device_open(None, ctypes.byref(handle)))\nfd = os.open(path, os.O_RDWR)\n"
               "address = gaia.lib.gaia_mmap(handle, PAGE, 3, 0, fd, 0)\nassert address != gaia.MAP_FAILED", path=path)
    assert [d["device"] for d in helpers.statistics(m.mnt)["files"][0]["devices"]] == ["cuda:0"]


OPENING = ["cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuStreamCreate", "cuMemHostAlloc",
           "cuMemAlloc", "cuMemGetAllocationGranularity"]
MAPPING = ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemsetD8Async",
           "cuMemExportToShareableHandle"]
PLACING = ["cuMemcpyHtoDAsync", "cuLaunchKernel", "cuStreamSynchronize", "cuCtxPushCurrent"]


@pytest.mark.parametrize("name", OPENING + MAPPING + PLACING)
@pytest.mark.parametrize("error, expected", [(2, errno.ENOMEM), (999, errno.EIO)])
def test_the_daemons_driver_fails_at_a_map(gpu, name, error, expected):
    m = gpu.mount()
    content = os.urandom(5 * PAGE)
    path = make(m, content)
    if name not in OPENING:
        gpu.program(make(m, bytes(PAGE), "first"))
    gpu.fail(name, 1, error)
    with pytest.raises(OSError) as caught:
        gpu.program(path)
    assert gpu.failed()
    assert caught.value.errno == expected
    gpu.heal()
    program = gpu.program(path)  # nothing is left of it
    assert program("map[:]") == content
    program.do("map[PAGE] ^= 1\nmap.release()")
    assert read_file(path)[PAGE] == content[PAGE] ^ 1


@pytest.mark.parametrize("call", ["map.release()", "map.acquire()", "content = os.pread(fd, PAGE, 3 * PAGE)"])
@pytest.mark.parametrize("name, sticky", [("cuLaunchKernel", False), ("cuMemcpyDtoHAsync", False),
                                          ("cuMemcpyHtoDAsync", False), ("cuStreamSynchronize", False), ("*", True)])
def test_a_gpu_that_fails_keeps_its_bytes(gpu, call, name, sticky):
    """EIO, and nothing is lost that can be had again: what was stored is released when the GPU works."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    if call.startswith("content") and keeps_twins(m):
        pytest.skip("in passthrough a read asks nobody")
    program = gpu.program(path)
    program.do("map[3 * PAGE:3 * PAGE + 4] = b'kept'")
    if call.startswith("content"):
        program.do("map.release()")
    else:
        write_at(path, b"cpu", 3 * PAGE + 10)
    failed = landed = 0
    for count in [0] if sticky else range(1, 12):
        gpu.fail(name, count, 999)
        try:
            program.do(call)
            assert not sticky
        except OSError as error:
            assert error.errno == errno.EIO
            failed += 1
        if not sticky and not gpu.failed():
            break
        landed += 1
    print(f"{landed} calls failed, {failed} times the program heard of it")
    assert landed or (call.startswith("content") and name == "cuLaunchKernel")
    # A READ that failed is asked for again by the kernel; what only notes something is done anew another time.
    assert failed or call.startswith("content") or name == "cuMemcpyHtoDAsync"
    gpu.heal()
    program.do("map.release()\nmap.acquire()")
    expected = b"kept......" + (b"..." if call.startswith("content") else b"cpu")
    assert read_file(path)[3 * PAGE:3 * PAGE + 13] == expected
    assert program("map[3 * PAGE:3 * PAGE + 13]") == expected


def test_what_the_driver_says_is_logged(gpu):
    """By the daemon that has the GPU: once for each thing that it says; and gaiactl stat shows it."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    program = gpu.program(path)
    logged = lambda: re.findall(r"cuda:0: its driver reports (\w+)", m.log_text())  # noqa: E731
    gpu.fail("cuMemcpyDtoHAsync", 1, 2)  # memory is short: that is no fault of the GPU's
    program.do("map[0:1] = b'x'")
    with contextlib.suppress(OSError):
        program.do("map.release()")
    assert gpu.failed() and logged() == []
    assert not any("failure" in one for one in helpers.statistics(m.mnt)["devices"])
    for error in 999, 999, 1, 999, 1:
        gpu.fail("*", 0, error)
        program.do("map[0:1] = bytes([map[0] ^ 1])")
        for _ in range(3):
            assert program("error_of(map.release)") == errno.EIO
        gpu.heal()
        program.do("map.release()")
    assert logged() == ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_INVALID_VALUE"]
    if not m.nodes:
        failures = {one["device"]: one.get("failure") for one in helpers.statistics(m.mnt)["devices"]}
        assert failures == {"soft:0": None, "cuda:0": "CUDA_ERROR_INVALID_VALUE"}
        text = subprocess.run([os.path.join(helpers.BIN, "gaiactl"), "stat", m.mnt], capture_output=True, text=True).stdout
        assert "its driver has reported CUDA_ERROR_INVALID_VALUE\n" in text


def test_a_gpu_that_fails_at_its_first_use_is_seen(gpu):
    """Nothing ever got there, and no program has it: gaiactl stat shows it all the same, and what it said."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    gpu.fail("cuMemcpyHtoDAsync", 0, 999)
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\ndevice = gaia.Device('cuda:0')", path=path)
    assert program("error_of(device.mmap, fd, 6 * PAGE)") == errno.EIO
    gpu.heal()
    program.do("device.close()\nos.close(fd)")
    os.unlink(path)
    if not m.nodes:
        failures = {one["device"]: one.get("failure") for one in helpers.statistics(m.mnt)["devices"]}
        assert failures == {"soft:0": None, "cuda:0": "CUDA_ERROR_UNKNOWN"}


def test_memory_that_the_driver_does_not_share(gpu):
    """As in a container that forbids it: the map fails, and the log says why."""
    m = gpu.mount()
    path = make(m, b"." * 6 * PAGE)
    gpu.fail("cuMemExportToShareableHandle", 1, 999)
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\ndevice = gaia.Device('cuda:0')", path=path)
    assert program("error_of(device.mmap, fd, 6 * PAGE)") == errno.EIO
    assert re.findall(r"cuda:0: its driver reports (\w+)", m.log_text()) == ["CUDA_ERROR_UNKNOWN"]
    gpu.heal()
    program.do("map = device.mmap(fd, 6 * PAGE)\nassert map[:2] == b'..'")


@pytest.mark.parametrize("name, count", [("cuLaunchKernel", 2), ("cuLaunchKernel", 3), ("cuMemcpyHtoDAsync", 5),
                                         ("cuMemcpyHtoDAsync", 6), ("cuMemcpyHtoDAsync", 10)])
def test_an_acquire_that_fails_when_some_pages_have_changed(gpu, name, count):
    """What a page has become is what it was granted with: it is no kernel's store, and changes back when the file does."""
    m = gpu.mount()
    path = make(m, b"A" * 64 * PAGE)
    program = gpu.program(path)
    fd = os.open(path, os.O_RDWR)
    for letter in "BA":
        for page in range(64):
            os.pwrite(fd, letter.encode(), page * PAGE)
        if letter == "B":
            gpu.fail(name, count, 2)
            with contextlib.suppress(OSError):
                program.do("map.acquire()")
            assert gpu.failed() or (not m.nodes and count == 3)  # there it is one piece
            gpu.heal()
    program.do("map.acquire()")
    assert program("bytes(map[page * PAGE] for page in range(64))") == b"A" * 64
    program.do("map.release()")
    assert read_file(path)[::PAGE] == b"A" * 64
    os.close(fd)


@only_here
def test_a_device_closed_beside_a_call(gpu, agents):
    """What a call of another thread has mapped there is unmapped when that ends, by the device."""
    m = gpu.mount(options="passthrough=off,timeout=0")
    path = os.path.join(m.mnt, "f")
    write_file(path, bytes(MIB))
    agent = gpu.agent(MALLOC_PERTURB_="165")  # memory that is free is garbage
    agent.do(MAP, path=path, length=MIB, writable=True)
    agent.do("""
import threading
ended = []
def acquire():
    try:
        map.acquire()
    except OSError as error:
        ended.append(error.errno)
    else:
        ended.append(0)
thread = threading.Thread(target=acquire)
""")
    helpers.stand_still(m.pid)
    agent.do("thread.start()")
    doing = f"/proc/{agent.pid}/task/{agent('thread.native_id')}/syscall"
    wait_until(lambda: read_file(doing).split()[0] in RECVMSG, what="the acquire waits for its answer")
    agent.start("dev.close()")
    time.sleep(0.3)
    os.kill(m.pid, signal.SIGCONT)
    assert not agent.busy(10)
    agent.finish()
    agent.do("thread.join()")
    assert agent("ended") == [0]
    agent.do("dev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, length)\nmap[5:6] = b'x'\nmap.release()\ndev.close()")
    assert read_file(path)[5:6] == b"x"


def test_a_context_that_is_broken(gpu, workdir):
    """A program whose kernel has failed hears of it at its next call; the daemon and the others live."""
    m = gpu.mount()
    path = make(m, bytes(4 * PAGE))
    control = os.path.join(workdir, "client-control")
    broken, other = gpu.program(path, standin=f"control={control}"), gpu.program(path)
    broken.do("map[0:4] = b'mine'\nmap.release()\nmap[4:8] = b'more'")
    with open(control, "w") as file:
        file.write("* 0 700\n")  # CUDA_ERROR_ILLEGAL_ADDRESS, from now on
    for call in ("map.release()", "map.acquire()"):
        with pytest.raises(OSError) as caught:
            broken.do(call)
        assert caught.value.errno == errno.EIO
    assert read_file(path)[:4] == b"mine"
    broken.kill()
    other.do("map.acquire()\nmap[100] = 1\nmap.release()")
    content = read_file(path)
    assert content[:8] == b"minemore" and content[100] == 1


def test_garbage_about_chunks(gpu):
    m = gpu.mount()
    path = make(m, bytes(3 * CHUNK))
    program = gpu.program(path)
    agent = gpu.agent()
    agent.do("""
import socket
fd = os.open(path, os.O_RDWR)
address, token = get_token(fd)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(address)
def ask(**words):
    sock.send(message(**words))
    data, ancillary, _, _ = sock.recvmsg(256, 4096)
    for _, _, fds in ancillary:
        import array
        a = array.array("i"); a.frombytes(fds)
        for one in a: os.close(one)
    return MESSAGE.unpack(data)
""", path=path)
    assert agent("ask(op=1, flags=2)[3]") == 0  # HELLO without a descriptor for faults
    # A device that needs one.
    assert agent("ask(op=2, device=b'soft:0', token=token, bytes=PAGE, prot=3)[3]") == -errno.EPERM
    assert agent("ask(op=2, device=b'cuda:0', token=bytes(16), bytes=PAGE, prot=3)[3]") < 0
    agent.do("_, token = get_token(fd)")
    uuid = "(int.from_bytes(b'stand-in', 'little'), int.from_bytes(b' 0'.ljust(8, bytes(1)), 'little')) + (0,) * 18"
    agent.do(f"reply = ask(op=2, device=b'cuda:0', token=token, bytes=3 << 20, offset=3 << 20, prot=3, value={uuid})")
    assert agent("reply[3]") == 0
    number = agent("reply[4]")
    for chunk, error in ((0, errno.EINVAL), (1, 0), (2, 0), (3, errno.EINVAL), (1 << 63, errno.EINVAL)):
        assert agent("ask(op=11, map=number, value=(chunk,) + (0,) * 19)[3]", number=number, chunk=chunk) == -error
    assert agent("ask(op=11, map=12345)[3]") == -errno.EINVAL
    agent.kill()
    assert program("map[:10]") == bytes(10)
