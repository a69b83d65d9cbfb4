# SPDX-License-Identifier: Apache-2.0
"""Orders of events on a GPU (the stand-in) that lost bytes, or memory, once: each test was red before its mend."""
import errno
import os
import struct

import pytest

import helpers
from gpu_fixture import gpu, make  # noqa: F401
from helpers import (ACQUIRE, ATTACH, HELLO, MAP, MIB, PAGE, Raw, agents, get_token, message, read_at,  # noqa: F401
                     write_at)
from test_cuda_demand import Program, programs  # noqa: F401


def test_what_could_not_be_mapped_gives_its_memory_back(gpu):
    """A file larger than the GPU: the chunks that it got before there was no room are not kept."""
    m = gpu.mount("memory=33554432")
    large = make(m, b"", "large")
    os.truncate(large, 64 * MIB)
    small = make(m, b"s" * 3 * MIB, "small")
    agent = gpu.agent("memory=33554432")
    agent.do("dev = gaia.Device('cuda:0')")
    agent.do("fd = os.open(path, os.O_RDWR)", path=large)
    with pytest.raises(OSError) as caught:
        agent.do("map = dev.mmap(fd, 64 * (1 << 20), 3)")
    assert caught.value.errno == errno.ENOMEM
    agent.do("fd = os.open(path, os.O_RDWR)", path=small)
    agent.do("map = dev.mmap(fd, 3 * (1 << 20), 3)")
    assert agent("map[:]") == b"s" * 3 * MIB


def test_times_changed_elsewhere_do_not_take_a_write_back(gpu):
    """chmod() changes no byte. A CPU's write() after it to a page that the GPU has stays, whatever the GPU stores to
    other bytes of the page."""
    m = gpu.mount()
    path = make(m, b"a" * 4 * PAGE)
    agent = gpu.program(path)
    os.chmod(path, 0o640)
    write_at(path, b"C", 100)
    agent.do("map[200:201] = b'G'")
    agent.do("map.release()")
    assert read_at(path, 1, 200) == b"G"
    assert read_at(path, 1, 100) == b"C"


def test_times_changed_behind_the_mount_do_not_take_a_write_back(gpu):
    m = gpu.mount()
    path = make(m, b"a" * 4 * PAGE)
    agent = gpu.program(path)
    os.chmod(os.path.join(m.data, "f"), 0o640)
    write_at(path, b"C", 100)
    agent.do("map[200:201] = b'G'")
    agent.do("map.release()")
    assert read_at(path, 1, 200) == b"G"
    assert read_at(path, 1, 100) == b"C"


def test_a_second_release_of_a_page_is_seen_on_demand(gpu, programs):
    """Two programs with a demand mapping of one file, on one device: nobody else reads between, so the page stays
    pending from its first release on."""
    m = gpu.mount()
    path = make(m, b"a" * 4 * PAGE)
    one, two = programs(path), programs(path)
    for value in b"x", b"y", b"z":
        one.store(10, value)
        one.do("release")
        two.do("acquire")
        assert two.load(10, 1) == value


@pytest.mark.parametrize("size", [PAGE, 3 * PAGE + 5, 16 * PAGE])
def test_what_a_file_grows_by_is_seen_on_demand(gpu, programs, size):
    m = gpu.mount()
    path = make(m, b"a" * 20 * PAGE)
    program = programs(path)
    os.truncate(path, size)
    program.do("acquire")
    assert program.load(size - 1, 2) == b"a\0" and program.load(19 * PAGE, 1) == b"\0"
    write_at(path, b"b" * (20 * PAGE - size), size)
    program.do("acquire")
    assert program.load(size - 1, 2) == b"ab"
    assert program.load(19 * PAGE, 1) == b"b"


MAPS, CHUNK = 2, helpers.DUMP + 1  # of HELLO; the message


def test_memory_that_a_client_was_given_stays_before_it_attaches(gpu):
    """A client has the descriptor of a chunk, and has not said yet where it maps it, when others cut the file: pages are
    placed into what it was given."""
    m = gpu.mount()
    path = make(m, b"a" * PAGE)
    fd = os.open(path, os.O_RDWR)
    address, token = get_token(fd)
    raw = Raw(address)
    assert raw.call(message(HELLO, flags=MAPS)) == 0
    uuid = struct.unpack("<2Q", b"stand-in 0".ljust(16, b"\0"))
    assert raw.call(message(MAP, bytes=PAGE, prot=3, token=token, device=b"cuda:0", value=uuid + (0,) * 18)) == 0
    map = raw.reply["map"]
    raw.send(message(CHUNK, map=map))
    reply, fds = raw.receive()
    assert reply["error"] == 0 and len(fds) == 1
    os.ftruncate(fd, 5 * PAGE)
    os.ftruncate(fd, PAGE)
    assert raw.call(message(ATTACH, map=map, address=1 << 30)) == 0
    assert raw.call(message(ACQUIRE, map=map, bytes=PAGE)) == 0
    assert os.pread(fds[0], 4, 0) == b"aaaa"
    os.close(fds[0])
    raw.close()
    os.close(fd)


def test_a_part_of_a_demand_mapping_is_unmapped(gpu, programs):
    """What the GPU has stored there is given back later, with all the rest, and a unit goes on that lies in both
    parts."""
    m = gpu.mount()
    path = make(m, b"a" * 64 * PAGE)
    program = programs(path)
    program.store(0, b"x")
    program.store(40 * PAGE, b"y")
    program.do(f"unmap 0 {20 * PAGE}")
    program.do(f"release {20 * PAGE} {44 * PAGE}")
    assert program.load(30 * PAGE, 1) == b"a"
    program.store(30 * PAGE, b"z")
    program.do(f"release {20 * PAGE} {44 * PAGE}")
    assert read_at(path, 1, 40 * PAGE) == b"y" and read_at(path, 1, 30 * PAGE) == b"z"
    program.end()


def test_advice_releases_what_leaves_on_demand(gpu, programs):
    m = gpu.mount()
    path = make(m, b"a" * 64 * PAGE)
    program = programs(path)
    program.store(5, b"x")
    program.do(f"dontneed 0 {64 * PAGE}")
    assert read_at(path, 1, 5) == b"x"


def test_threads_acquire_parts_of_a_demand_mapping(gpu, programs):
    """No kernel runs; each thread has a range of its own."""
    m = gpu.mount()
    path = make(m, b"a" * 64 * PAGE)
    program = programs(path)
    for i in range(30):
        for unit in range(4):
            assert program.load(unit * 16 * PAGE, 1) == bytes([97 + i % 26])
        write_at(path, bytes([97 + (i + 1) % 26]) * 64 * PAGE, 0)
        program.do("acquires 4 1")


def test_room_is_made_behind_much_that_is_mapped(gpu):
    """More than an eviction looks at, 256 MiB, is mapped and can't go; what can was placed later."""
    m = gpu.mount(f"memory={370 * MIB}")
    for name, size in ("mapped", 256), ("left", 64), ("new", 64):
        os.truncate(make(m, b"", name), size * MIB)
    mapped, other = gpu.program(os.path.join(m.mnt, "mapped")), gpu.program(os.path.join(m.mnt, "left"))
    other.do("map.unmap()")
    new = gpu.program(os.path.join(m.mnt, "new"))
    assert new("map[:1]") == mapped("map[:1]") == b"\0"


def test_what_was_cut_off_is_gone(gpu):
    """gaia.h: past the end there are zeros; not what was there before, which somebody else may map next."""
    m = gpu.mount()
    path = make(m, b"secret00" * PAGE)
    program = gpu.program(path)
    os.truncate(path, PAGE)
    assert program("map[:]") == b"secret00" * (PAGE // 8) + bytes(7 * PAGE)
    assert gpu.program(path, 8 * PAGE)("map[:]") == b"secret00" * (PAGE // 8) + bytes(7 * PAGE)
