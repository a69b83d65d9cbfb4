# SPDX-License-Identifier: Apache-2.0
"""Files mapped on a GPU, which is a stand-in (tests/cuda/standin.c): the client's and the daemon's halves of the driver
cuda are the real ones, and all that is missing is the GPU. What kernels would do, threads and copies do here. The
promises that hold on every device are tested by the whole suite with GAIA_DEVICE=cuda:0 (tests/README.md); here is what
only a GPU has: nothing tells of its stores, nothing stops it, and it fails in its own ways. Most of it is tested twice:
with the file's home on the GPU's node, and on another one that has no GPU."""
import errno
import os
import random
import struct
import time

import pytest

import helpers
from conftest import so_much
from files import pattern
from gpu_fixture import gpu, keeps_twins, make, only_here, released  # noqa: F401
from helpers import (ACQUIRE, ATTACH, HELLO, MAP, PAGE, RELEASE, ROWS, Raw, agents, daemon_with_faults, device_statistics, get_token,  # noqa: F401
                     make_random, message, read_at, read_file, wait_until, write_at)

MIB = 1 << 20


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
    """Both of its copies are forgotten where the file's home is, which has what was released; when it comes again they are
    made anew."""
    m = gpu.mount()
    path = make(m, b"." * 300 * PAGE)
    writer, reader = gpu.program(path), gpu.program(path, writable=False)
    writer.do("map[5 * PAGE:5 * PAGE + 3] = b'new'\nmap.release()")
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


def test_placings_overlap(gpu):
    """A GPU copies for one while it hashes for another, and the daemon reads for a third. One after the other they
    could not be as fast: each copy sleeps for so long."""
    pieces, sleep = 16, 0.2
    m = gpu.mount(f"slow={int(sleep * 1e6)}")
    for turn in range(3):  # on a machine that does much else
        content = os.urandom(pieces * 512 << 10)
        path = make(m, content, f"f{turn}")
        begin = time.monotonic()
        program = gpu.program(path)
        took = time.monotonic() - begin
        assert program("map[:]") == content
        program.do("map.unmap()\ndev.close()\nos.close(fd)")
        program.end()
        if took < pieces * sleep:
            return
    raise AssertionError(f"{took:.1f} s for {pieces} copies of {sleep} s each")


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


def test_an_acquire_of_much_that_changed(gpu):
    """Many pages go at once, by runs: each becomes what its home copy is, and keeps what a kernel stored to its other bytes."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    m = gpu.mount()
    count = 1500
    content = bytearray(os.urandom(count * PAGE - 300))
    path = make(m, bytes(content))
    program = gpu.program(path)
    for turn in range(1, 4):
        stored = chance.sample(range(count), 200)
        program.do("for page in pages:\n    map[page * PAGE + 100] = turn", pages=stored, turn=turn)
        for page in stored:
            content[page * PAGE + 100] = turn
        page = chance.randrange(5)
        with open(path, "r+b", buffering=0) as file:
            while page < count:
                length = min(chance.choice([1, 1, 2, 3, 9, 70]), count - page)
                for at in range(page, page + length):
                    data = chance.randbytes(chance.randrange(1, 3000))
                    offset = at * PAGE + 200 + chance.randrange(300)
                    data = data[:len(content) - offset]
                    os.pwrite(file.fileno(), data, offset)
                    content[offset:offset + len(data)] = data
                page += length + chance.choice([1, 1, 2, 5, 40])
        program.do("map.acquire()")
        assert program("map[:length]", length=len(content)) == bytes(content)
    assert read_file(path) == bytes(content)


def test_pages_that_were_cut_off_are_placed_again(gpu):
    """A map knows that all of its pages are there, until some leave or the file grows."""
    m = gpu.mount()
    content = bytearray(os.urandom(700 * PAGE))
    path = make(m, bytes(content))
    program = gpu.program(path, length=900 * PAGE)
    program.do("map.acquire()\nmap.acquire(5 * PAGE, 3 * PAGE)")
    before = released(m)["bytes_in"]
    program.do("map.acquire()")
    assert released(m)["bytes_in"] == before
    os.truncate(path, 300 * PAGE)
    os.truncate(path, 700 * PAGE)
    content[300 * PAGE:] = bytes(400 * PAGE)
    write_at(path, b"again", 650 * PAGE + 3)  # as long as it was
    content[650 * PAGE + 3:650 * PAGE + 8] = b"again"
    program.do("map.acquire()")
    assert program("map[:700 * PAGE]") == bytes(content)
    write_at(path, b"beyond", 850 * PAGE)
    program.do("map.acquire()")
    assert program("map[:]") == bytes(content) + bytes(150 * PAGE) + b"beyond" + bytes(50 * PAGE - 6)
    program.do("map[899 * PAGE:899 * PAGE + 4] = b'last'\nmap[660 * PAGE] = 1\nmap.release()")
    assert read_file(path)[660 * PAGE] == 1


@only_here
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("how", ["append over the end", "cut and grown"])
def test_the_page_of_the_end_when_a_file_grows_behind_the_mount(gpu, how, stored):
    """Its bytes before the end may have changed, too: they are no stores of a kernel's, whose own are kept."""
    m = gpu.mount(options="passthrough=off,timeout=0")
    path = make(m, b"A" * (PAGE + 100))
    program = gpu.program(path, length=4 * PAGE)
    program.do("map.acquire()")
    if how == "cut and grown":
        os.truncate(os.path.join(m.data, "f"), 10)
        os.truncate(os.path.join(m.data, "f"), 2 * PAGE)
        expected = bytearray(b"A" * 10 + bytes(2 * PAGE - 10))
    else:
        write_at(os.path.join(m.data, "f"), b"X" * 200, PAGE + 50)
        expected = bytearray(b"A" * (PAGE + 50) + b"X" * 200)
    program.do("map.acquire()")
    assert program("map[:length]", length=len(expected)) == expected
    if stored:
        program.do("map[PAGE + 60] = map[PAGE + 170] = 5")
        expected[PAGE + 60] = expected[PAGE + 170] = 5
    program.do("map.release()")
    assert read_file(path) == read_file(os.path.join(m.data, "f")) == expected


@only_here
def test_stores_in_the_page_of_the_end_before_it_grows_behind(gpu):
    m = gpu.mount(options="passthrough=off,timeout=0")
    path = make(m, b"A" * (PAGE + 100))
    program = gpu.program(path, length=4 * PAGE)
    program.do("map[PAGE + 20] = 5\nmap[PAGE + 120] = 6")
    write_at(os.path.join(m.data, "f"), b"X" * 200, PAGE + 100)
    gpu.program(path, writable=False)  # a map looks whether the file has changed
    program.do("map.release()")
    expected = b"A" * (PAGE + 20) + b"\5" + b"A" * 79 + b"X" * 200
    assert read_file(path) == read_file(os.path.join(m.data, "f")) == expected


def most_memory_kib(pid):
    """That it has ever had."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


@only_here
def test_a_range_that_is_longer_than_any_file(gpu):
    """Costs the daemon what the file is worth."""
    m = gpu.mount(options="passthrough=off")
    fd = os.open(make(m, b"a" * 10 * PAGE), os.O_RDWR)
    address, token = get_token(fd)
    raw = Raw(address)
    assert raw.call(message(HELLO, flags=2)) == 0
    uuid = struct.unpack("<2Q", b"stand-in 0".ljust(16, b"\0"))
    length = 1 << 44
    assert raw.call(message(MAP, bytes=length, prot=3, token=token, device=b"cuda:0", value=uuid + (0,) * 18)) == 0
    number = raw.reply["map"]
    assert raw.call(message(ATTACH, map=number, address=1 << 30)) == 0
    before = most_memory_kib(m.pid)
    assert raw.call(message(RELEASE, map=number, bytes=length)) == 0
    after = most_memory_kib(m.pid)
    raw.close()
    os.close(fd)
    assert after < before + 16 * 1024


@only_here
def test_an_acquire_that_is_longer_than_any_file(gpu):
    """Nobody goes through what is not there."""
    m = gpu.mount()
    fd = os.open(make(m, b"a" * 10 * PAGE), os.O_RDWR)
    address, token = get_token(fd)
    raw = Raw(address)
    assert raw.call(message(HELLO, flags=2)) == 0
    uuid = struct.unpack("<2Q", b"stand-in 0".ljust(16, b"\0"))
    assert raw.call(message(MAP, bytes=1 << 62, prot=3, token=token, device=b"cuda:0", value=uuid + (0,) * 18)) == 0
    number = raw.reply["map"]
    assert raw.call(message(ATTACH, map=number, address=1 << 30)) == 0
    assert raw.call(message(ACQUIRE, map=number, bytes=1 << 62)) == 0
    assert device_statistics(m.mnt, "cuda:0")["resident_bytes"] == 10 * PAGE
    raw.close()
    os.close(fd)


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
    program.do("map[5 * MIB] = 55\nmap.acquire()\nfor page in range(0, 2048):\n    map[page * PAGE + 1] = 66\nmap.unmap()")
    other = gpu.program(two)
    assert other("map[:]") == b"2" * 8 * MIB
    evictions = released(m)["evictions"]
    assert evictions >= 7 * 256
    content = read_file(one)  # an eviction is an early release
    assert content[5 * MIB] == 55
    # Which pages stayed depends on the order in which they were placed, by several threads.
    assert evictions <= content[1::PAGE].count(66) <= 8 * 256
    other.do("map.unmap()")
    assert gpu.program(one)("map[1::PAGE]") == bytes([66]) * 2048  # and what stayed was kept, or released


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
    m = gpu.mount(f"memory={11 * MIB}")  # the daemon itself takes seven
    small, large = make(m, b"s" * MIB, "small"), make(m, bytes(8 * MIB), "large")
    program = gpu.program(small)
    with pytest.raises(OSError) as caught:
        gpu.program(large)
    assert caught.value.errno == errno.ENOMEM
    assert program("map[:]") == b"s" * MIB
    program.do("map[1] = 1\nmap.release()")
    assert read_file(small)[:2] == b"s\x01"


@only_here
@pytest.mark.parametrize("end", ["map.unmap()", "dev.close()"])
def test_a_copy_that_is_on_its_way_at_the_end(gpu, end):
    """cuMemcpyHtoD() of a few bytes that are not pinned returns before they have arrived, on a real GPU: where the memory has
    gone by then, the process has lost the GPU."""
    m = gpu.mount()
    path = make(m, bytes(3 * PAGE))
    other = gpu.program(path)
    program = gpu.program(path, standin="opaque=1,late=100000")
    program.do(f"map[PAGE:PAGE + 4] = b'late'\n{end}", PAGE=PAGE)
    other.do("map.release()")
    assert read_file(path)[PAGE:PAGE + 4] == b"late"


@only_here
@pytest.mark.parametrize("end", ["map.unmap()", "dev.close()"])
def test_a_copy_in_a_threads_own_stream_at_the_end(gpu, end):
    """The same of a program that was made with a default stream for each thread."""
    m = gpu.mount()
    path = make(m, bytes(3 * PAGE))
    other = gpu.program(path)
    program = gpu.program(path, standin="opaque=1,late=100000")
    program.do(f"""
import ctypes
copy = dev.memory.cuda.cuMemcpyHtoD_v2_ptds
copy.argtypes = dev.memory.cuda.cuMemcpyHtoD_v2.argtypes
source = ctypes.create_string_buffer(b"late", 4)
dev.memory._copy(copy, map.address + PAGE, ctypes.addressof(source), 4)
{end}""", PAGE=PAGE)
    other.do("map.release()")
    assert read_file(path)[PAGE:PAGE + 4] == b"late"


@only_here
@pytest.mark.parametrize("number", [1, 2, 3])
def test_placing_where_threads_are_not_to_be_had(gpu, workdir, monkeypatch, number):
    """Who reads waits for the bus himself then: where there is none, where there is only who looks at the bus, and not where one does
    what follows. When the next file is mapped there is room for them."""
    plan, env = daemon_with_faults(monkeypatch, os.path.join(workdir, "plan"))
    monkeypatch.setenv("GAIAFS_FAULTS", env["GAIAFS_FAULTS"])
    content = pattern(3 * MIB)
    m = gpu.mount()
    path = make(m, content)
    program = gpu.agent()
    program.do("fd = os.open(path, os.O_RDWR)\nsoft = gaia.Device('soft:0')\nsoft.mmap(fd, length)", path=path, length=len(content))
    plan.arm(ROWS.index("pthread_create"), errno.EAGAIN, number, 1)
    program.do("dev = gaia.Device('cuda:0')\nmap = dev.mmap(fd, length)")
    assert plan.landed
    plan.row = -1
    assert program("map[:]") == content
    program.do("map[MIB] = 7\nmap.release()", MIB=MIB)
    assert read_file(path) == content[:MIB] + b"\7" + content[MIB + 1:]
    program.do("other = dev.mmap(os.open(path, os.O_RDWR), length)", path=make(m, content, "other"))
    assert program("other[:]") == content
